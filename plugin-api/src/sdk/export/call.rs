//! Conversion of the host's calls to calls of the plugin: handles become references, panics and errors become
//! a status.

use crate::abi::*;
use crate::sdk::error::{Error, Result, guard, guard_kernel};

pub(in crate::sdk) use crate::sdk::view::broken as refused;

/// Runs a function of the plugin and returns its status; writes the detail to the caller's [`ErrorDetail`].
///
/// # Safety
/// `detail` is NULL or as [`ErrorDetail`] says.
pub(in crate::sdk) unsafe fn report(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<()>) -> Status {
    // SAFETY: `detail` is NULL or as `ErrorDetail` says (# Safety).
    unsafe { reported(detail, guard(body)) }
}

/// Reports as [`report`], for a function that looks at a node and changes nothing: a panic fails only that
/// call.
///
/// # Safety
/// As [`report`].
pub(super) unsafe fn report_kernel(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<()>) -> Status {
    // SAFETY: `detail` is NULL or as `ErrorDetail` says (# Safety).
    unsafe { reported(detail, guard_kernel(body)) }
}

/// # Safety
/// As [`report`].
unsafe fn reported(detail: *mut ErrorDetail, result: Result<()>) -> Status {
    match result {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => {
            // SAFETY: `detail` is NULL or as `ErrorDetail` says (# Safety).
            unsafe { error.store(detail) };
            error.status()
        }
    }
}

/// Returns the value behind a handle, or an error for NULL.
///
/// # Safety
/// `handle` is NULL or a handle of this plugin whose value is a `T`, alive for `'a`.
pub(in crate::sdk) unsafe fn deref<'a, T, H>(handle: *mut H, what: &str) -> Result<&'a T> {
    // SAFETY: `handle` is NULL or a `T` that lives for `'a` (# Safety).
    unsafe { handle.cast::<T>().cast_const().as_ref() }
        .ok_or_else(|| Error::invalid(format!("{what} is NULL")))
}

/// Refuses a place for a result that is NULL.
pub(in crate::sdk) fn refuse_null<T>(place: *mut T, what: &str) -> Result<()> {
    match place.is_null() {
        true => Err(Error::invalid(format!("{what} is NULL"))),
        false => Ok(()),
    }
}

/// Drops the object behind a handle; a panic in its destructor does not escape.
///
/// # Safety
/// `handle` is NULL or came from `Box::into_raw` of a `T`, and is given back once.
pub(in crate::sdk) unsafe fn free<T, H>(handle: *mut H) {
    if !handle.is_null() {
        // The message went to standard error; a function without a status has no other way.
        let _ = guard(|| {
            // SAFETY: `handle` is not NULL, came from `Box::into_raw` of a `T`, and is given back once (# Safety).
            drop(unsafe { Box::from_raw(handle.cast::<T>()) });
            Ok(())
        });
    }
}
