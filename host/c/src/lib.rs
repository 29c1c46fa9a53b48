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

/// Version of this interface. A library has the functions of its own version and of all before it.
pub const DEVBAY_API_VERSION: u32 = 1;

/// Returns the version of the interface that the library has: at least the header's, or the library is too old.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_api_version() -> u32 {
    DEVBAY_API_VERSION
}

/// Returns the number of handles of all kinds that were made and not destroyed: 0 for a program without leaks.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_live_handles() -> usize {
    handles::n_live()
}
