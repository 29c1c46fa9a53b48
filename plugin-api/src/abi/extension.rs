//! Ids of the extensions that `get_extension` knows (B6), under their Rust names.
//!
//! An extension is a table with its own revision, looked up by id on either side; a side that does not know
//! an id returns NULL. `v0.rs` assigns the ids and says what each reserved one is for; an id is never reused.
//! A vendor's extension has an id in the vendor's range ([`VENDOR_FIRST`]). An experimental one has an id
//! from [`EXPERIMENTAL`] on, and gets a new one when it becomes stable.

pub use super::v0::{
    DEVBAY_EXPERIMENTAL_FIRST as EXPERIMENTAL, DEVBAY_EXTENSION_COMPILE as COMPILE,
    DEVBAY_EXTENSION_FAULT as FAULT, DEVBAY_EXTENSION_INTEROP as INTEROP, DEVBAY_EXTENSION_REPLAY as REPLAY,
    DEVBAY_VENDOR_FIRST as VENDOR_FIRST,
};
