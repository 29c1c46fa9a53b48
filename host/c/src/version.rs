//! The interface's version, and a count for finding leaks.

use crate::handles;

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
