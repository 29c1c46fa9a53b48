//! devbay for C: the functions of `include/devbay.h`, which is made from this crate (`cargo xtask c-header`).
//!
//! Documentation of public items is the header's: it speaks to readers of C. What all functions have in common is in the
//! header's preamble (`cbindgen.toml`).
//!
//! A handle is a key of a table (`handles.rs`), not an address: a handle that was destroyed before is an error, not a crash.

// The names are C's.
#![allow(non_camel_case_types, reason = "types have the names that they have in C")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the header's preamble says what all functions ask of pointers"
)]

mod arguments;
mod eager;
mod errors;
mod handles;
mod options;
mod run;
mod runtime;
mod session;
mod values;
mod version;
