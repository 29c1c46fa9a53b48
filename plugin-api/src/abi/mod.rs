//! The types of the ABI, and the code with which both sides read each other's structs.
//!
//! `v0` is the definition; everything else here reads it. [`version`] agrees on a minor, [`growable`] reads
//! structs and lists whose size the other side chose, and [`tables`] is generated and holds each struct's
//! layout and each function's rules as data.

mod dtype;
pub mod extension;
pub mod growable;
pub mod tables;
mod v0;
pub mod version;

pub use growable::{
    Growable, LAYOUT_FIELDS, ListError, read_growable_list, read_list, read_struct, write_struct,
};
pub use tables::{FUNCTIONS, FunctionRule, LAYOUTS, StructLayout, ThreadClass};
pub use v0::*;

/// Prefix of option keys that belong to the host, for plugins of every vendor ([`CreateDesc`]);
/// `DEVBAY_IS_HOSTS` in C.
pub const HOST_OPTIONS: &str = "devbay.";
/// The host's option that limits the total size of a plugin's buffers in a memory space, in bytes.
pub const MEMORY_LIMIT: &str = "devbay.memory_limit";
pub use version::{ABI_MAJOR, MinorRange, QUERY_SYMBOL, REQUIRED_FUNCTIONS};
