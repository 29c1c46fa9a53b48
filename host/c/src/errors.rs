//! Errors, as handles.

use crate::arguments::c_text;
use crate::handles::{self, object};
use devbay_host::internals::core::error::caught;
use devbay_host::{Error, ErrorKind, Result};
use std::ffi::{CString, c_char};
use std::ptr::{null, null_mut};
use std::sync::LazyLock;

/// The failure of a call. NULL is success.
pub struct devbay_error;

/// The kind of an error: one of DEVBAY_ERROR_*. A later version may return kinds that an older header does not have.
pub type devbay_error_kind_t = u32;

/// A bug in devbay.
pub const DEVBAY_ERROR_INTERNAL: devbay_error_kind_t = 1;
/// A file cannot be read or written.
pub const DEVBAY_ERROR_IO: devbay_error_kind_t = 2;
/// A model is damaged, inconsistent or hostile.
pub const DEVBAY_ERROR_INVALID_MODEL: devbay_error_kind_t = 3;
/// A model uses something that devbay does not do.
pub const DEVBAY_ERROR_UNSUPPORTED_MODEL: devbay_error_kind_t = 4;
/// No device that may be used has a kernel for an op, or the device cannot do what was asked.
pub const DEVBAY_ERROR_UNSUPPORTED_OP: devbay_error_kind_t = 5;
/// An input of a model is missing, or of another type or shape than the model takes.
pub const DEVBAY_ERROR_INVALID_INPUT: devbay_error_kind_t = 6;
/// An argument, option, name or handle breaks its rule.
pub const DEVBAY_ERROR_INVALID_ARGUMENT: devbay_error_kind_t = 7;
/// A plugin, device, input or file does not exist.
pub const DEVBAY_ERROR_NOT_FOUND: devbay_error_kind_t = 8;
/// A plugin was not loaded; the message has the reason.
pub const DEVBAY_ERROR_REFUSED: devbay_error_kind_t = 9;
/// More memory than there is, or than a limit allows.
pub const DEVBAY_ERROR_OUT_OF_MEMORY: devbay_error_kind_t = 10;
/// The run was cancelled.
pub const DEVBAY_ERROR_CANCELLED: devbay_error_kind_t = 11;
/// The deadline passed first.
pub const DEVBAY_ERROR_DEADLINE_EXCEEDED: devbay_error_kind_t = 12;
/// A driver or device is not there now.
pub const DEVBAY_ERROR_UNAVAILABLE: devbay_error_kind_t = 13;
/// The device is gone.
pub const DEVBAY_ERROR_DEVICE_LOST: devbay_error_kind_t = 14;
/// A function of a plugin failed.
pub const DEVBAY_ERROR_PLUGIN_FAILED: devbay_error_kind_t = 15;
/// A plugin panicked before, and is not called any more.
pub const DEVBAY_ERROR_PLUGIN_POISONED: devbay_error_kind_t = 16;
/// A plugin broke a rule of the plugin ABI.
pub const DEVBAY_ERROR_PLUGIN_BROKEN: devbay_error_kind_t = 17;
/// As many runs are in flight as may be.
pub const DEVBAY_ERROR_BUSY: devbay_error_kind_t = 18;
/// Results differ from the expected ones.
pub const DEVBAY_ERROR_MISMATCH: devbay_error_kind_t = 19;

/// The engine's kinds, by number.
const KINDS: [(devbay_error_kind_t, ErrorKind); 19] = [
    (DEVBAY_ERROR_INTERNAL, ErrorKind::Internal),
    (DEVBAY_ERROR_IO, ErrorKind::Io),
    (DEVBAY_ERROR_INVALID_MODEL, ErrorKind::InvalidModel),
    (DEVBAY_ERROR_UNSUPPORTED_MODEL, ErrorKind::UnsupportedModel),
    (DEVBAY_ERROR_UNSUPPORTED_OP, ErrorKind::UnsupportedOp),
    (DEVBAY_ERROR_INVALID_INPUT, ErrorKind::InvalidInput),
    (DEVBAY_ERROR_INVALID_ARGUMENT, ErrorKind::InvalidArgument),
    (DEVBAY_ERROR_NOT_FOUND, ErrorKind::NotFound),
    (DEVBAY_ERROR_REFUSED, ErrorKind::Refused),
    (DEVBAY_ERROR_OUT_OF_MEMORY, ErrorKind::OutOfMemory),
    (DEVBAY_ERROR_CANCELLED, ErrorKind::Cancelled),
    (DEVBAY_ERROR_DEADLINE_EXCEEDED, ErrorKind::DeadlineExceeded),
    (DEVBAY_ERROR_UNAVAILABLE, ErrorKind::Unavailable),
    (DEVBAY_ERROR_DEVICE_LOST, ErrorKind::DeviceLost),
    (DEVBAY_ERROR_PLUGIN_FAILED, ErrorKind::PluginFailed),
    (DEVBAY_ERROR_PLUGIN_POISONED, ErrorKind::PluginPoisoned),
    (DEVBAY_ERROR_PLUGIN_BROKEN, ErrorKind::PluginBroken),
    (DEVBAY_ERROR_BUSY, ErrorKind::Busy),
    (DEVBAY_ERROR_MISMATCH, ErrorKind::Mismatch),
];

/// An error with its texts, as C reads them.
pub struct Failure {
    kind: devbay_error_kind_t,
    kind_name: CString,
    message: CString,
    plugin: CString,
    device: CString,
    node: CString,
    file: CString,
    causes: Vec<CString>,
}

object!(Failure, devbay_error, "error");

impl Failure {
    fn new(error: &Error) -> Self {
        let known = KINDS.iter().find(|(_, kind)| *kind == error.kind());
        let place = error.place();
        let first = std::error::Error::source(error);
        let causes = std::iter::successors(first, |cause| cause.source());
        Self {
            kind: known.map_or(DEVBAY_ERROR_INTERNAL, |(number, _)| *number),
            kind_name: c_text(error.kind().name()),
            message: c_text(&error.to_string()),
            plugin: c_text(&place.plugin),
            device: c_text(&place.device),
            node: c_text(&place.node),
            file: c_text(&place.file),
            causes: causes.map(|cause| c_text(&cause.to_string())).collect(),
        }
    }
}

/// The error of which [`handles::no_place`] is the handle.
static NO_PLACE: LazyLock<Failure> = LazyLock::new(|| {
    Failure::new(&Error::new(ErrorKind::OutOfMemory, "too many errors are kept; destroy them"))
});

/// Makes the handle of an error.
#[cold]
pub fn handle(error: &Error) -> *mut devbay_error {
    handles::try_make(Failure::new(error)).unwrap_or_else(handles::no_place)
}

/// Runs the body of a function of the interface: an error or panic becomes its result.
#[inline]
pub fn attempt(body: impl FnOnce() -> Result<()>) -> *mut devbay_error {
    match caught("devbay", body).flatten() {
        Ok(()) => null_mut(),
        Err(error) => handle(&error),
    }
}

/// Returns a text of an error that lives for as long as its handle; NULL for a handle that is gone.
fn of(error: *const devbay_error, text: impl FnOnce(&Failure) -> Option<&CString>) -> *const c_char {
    let found = if error == handles::no_place::<devbay_error>().cast_const() {
        text(&NO_PLACE).map(|text| text.as_ptr())
    } else {
        // The text's memory stays where it is until the handle is destroyed.
        handles::get::<Failure>(error).ok().and_then(|failure| text(&failure).map(|text| text.as_ptr()))
    };
    found.unwrap_or(null())
}

/// Returns the kind of an error, one of DEVBAY_ERROR_*; 0 for NULL.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_kind(error: *const devbay_error) -> devbay_error_kind_t {
    if error == handles::no_place::<devbay_error>().cast_const() {
        return DEVBAY_ERROR_OUT_OF_MEMORY;
    }
    handles::get::<Failure>(error).map_or(0, |failure| failure.kind)
}

/// Returns the name of an error's kind, such as "invalid-input". It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_kind_name(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.kind_name))
}

/// Returns the message of an error, with its place, for a person. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_message(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.message))
}

/// Returns the plugin in which an error happened; empty if it is not known. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_plugin(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.plugin))
}

/// Returns the device on which an error happened; empty if it is not known. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_device(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.device))
}

/// Returns the node of the model at which an error happened; empty if it is not known. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_node(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.node))
}

/// Returns the file in which an error was found; empty if it is not known. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_file(error: *const devbay_error) -> *const c_char {
    of(error, |failure| Some(&failure.file))
}

/// Returns a cause of an error: 0 is the nearest. NULL after the last one. It lives as long as the error.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_cause(error: *const devbay_error, i: usize) -> *const c_char {
    of(error, |failure| failure.causes.get(i))
}

/// Destroys an error. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_error_destroy(error: *mut devbay_error) {
    handles::destroy::<Failure>(error);
}
