//! Numbers of the extensions that `get_extension` knows (B6), by the names that Rust uses.
//!
//! An extension is a table of its own with its own revision, looked up by id on either side; a side that
//! does not know an id answers NULL. `v0.rs` gives the ids out, and what each reserved one is for; an id is never
//! reused. An extension of a vendor's has an id of the vendor's range ([`VENDOR_FIRST`]), one that is tried out an id from
//! [`EXPERIMENTAL`] on, and a new one when it becomes stable.

pub use super::v0::{
    DEVBAY_EXPERIMENTAL_FIRST as EXPERIMENTAL, DEVBAY_EXTENSION_COMPILE as COMPILE,
    DEVBAY_EXTENSION_FAULT as FAULT, DEVBAY_EXTENSION_INTEROP as INTEROP, DEVBAY_EXTENSION_REPLAY as REPLAY,
    DEVBAY_VENDOR_FIRST as VENDOR_FIRST,
};
