//! A plugin's errors, and the guards that keep panics from crossing the boundary (B18, B19).

use crate::abi::*;
use crate::reserve::NoMemory;
use std::cell::Cell;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Once;

/// Reason for a call's failure: a status of the ABI, and a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    status: Status,
    text: String,
    native_code: i64,
    /// True if a chunk of a parallel loop panicked and all of the loop's chunks have ended.
    is_of_loop: bool,
}

/// Result of the SDK's functions.
pub type Result<T> = core::result::Result<T, Error>;

impl Error {
    /// Creates an error with a non-zero status. The text is lower case without a full stop, and says what was
    /// expected and what was found.
    pub fn new(status: Status, text: impl Into<String>) -> Self {
        let status = match status {
            DEVBAY_STATUS_OK => DEVBAY_STATUS_UNKNOWN,
            status => status,
        };
        Self { status, text: text.into(), native_code: 0, is_of_loop: false }
    }

    /// Creates the error for a variant, dtype or shape that the plugin does not support.
    pub fn unsupported(text: impl Into<String>) -> Self {
        Self::new(DEVBAY_STATUS_UNSUPPORTED, text)
    }

    /// Creates the error for an argument that breaks a rule.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(DEVBAY_STATUS_INVALID, text)
    }

    /// Creates the error for a lack of memory.
    pub fn out_of_memory(text: impl Into<String>) -> Self {
        Self::new(DEVBAY_STATUS_OUT_OF_MEMORY, text)
    }

    /// Creates the error for a bug in the plugin or its driver.
    pub fn internal(text: impl Into<String>) -> Self {
        Self::new(DEVBAY_STATUS_INTERNAL, text)
    }

    /// Creates the error for a missing driver or device.
    pub fn unavailable(text: impl Into<String>) -> Self {
        Self::new(DEVBAY_STATUS_UNAVAILABLE, text)
    }

    /// Adds the driver's own error code.
    #[must_use]
    pub fn with_native_code(mut self, native_code: i64) -> Self {
        self.native_code = native_code;
        self
    }

    /// Marks the error as the failure of a parallel loop that has ended: none of its chunks still runs.
    pub(crate) fn of_loop(mut self) -> Self {
        self.is_of_loop = self.status == DEVBAY_STATUS_PANICKED;
        self
    }

    /// Returns the ABI's status, never 0.
    pub fn status(&self) -> Status {
        self.status
    }

    /// Returns the message.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Writes the error to the caller's [`ErrorDetail`].
    ///
    /// # Safety
    /// `detail` is NULL or as [`ErrorDetail`] says.
    pub(crate) unsafe fn store(&self, detail: *mut ErrorDetail) {
        // SAFETY: `detail` is NULL or as `ErrorDetail` says (# Safety); a struct of another size is left alone.
        let Ok(mut known) = (unsafe { read_struct(detail.cast_const()) }) else {
            return;
        };
        let mut len = self.text.len().min(known.text_capacity as usize);
        while !self.text.is_char_boundary(len) {
            len -= 1;
        }
        if !known.text.is_null() {
            // SAFETY: the host owns `text_capacity` bytes there, and `len` is no more.
            unsafe { core::ptr::copy_nonoverlapping(self.text.as_ptr(), known.text.cast(), len) };
        }
        known.status = self.status;
        known.text_len = self.text.len() as u64;
        known.native_code = self.native_code;
        // SAFETY: `detail` was just read, so it is a struct of the size that it says, and the host's to write (#
        // Safety).
        let _ = unsafe { write_struct(detail, &known) };
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (status {})", self.text, self.status)
    }
}

impl std::error::Error for Error {}

impl From<NoMemory> for Error {
    fn from(error: NoMemory) -> Self {
        Self::out_of_memory(error.to_string())
    }
}

/// Place of a thread's last panic. Has no destructor, so that the library can be unloaded.
#[derive(Clone, Copy)]
struct PanicPlace {
    text: [u8; 160],
    len: usize,
}

thread_local! {
    static PLACE: Cell<PanicPlace> = const { Cell::new(PanicPlace { text: [0; 160], len: 0 }) };
}

/// Installs a hook that records the place of every panic, then runs the previous hook.
pub(crate) fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let mut place = PanicPlace { text: [0; 160], len: 0 };
            if let Some(location) = info.location() {
                let text = format!("{}:{}", location.file(), location.line());
                // The end of a long path tells more than its beginning.
                let start = text.len().saturating_sub(place.text.len());
                let bytes = &text.as_bytes()[start..];
                place.text[..bytes.len()].copy_from_slice(bytes);
                place.len = bytes.len();
            }
            PLACE.set(place);
            before(info);
        }));
    });
}

/// Runs the plugin's code, and turns a panic into an error with its message and place.
///
/// # Errors
/// The error of `body`, or PANICKED.
#[inline]
pub fn guard<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    match std::panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(result) => result,
        Err(payload) => Err(panicked(payload)),
    }
}

/// Runs a function that looks at a node or launches a kernel. A panic fails only that call, with INTERNAL and
/// not PANICKED, because it leaves nothing half done: such a function does not change its arguments (B21),
/// its loops have ended when it unwinds, and everything it created is dropped.
///
/// # Errors
/// The error of `body`; INTERNAL with the message and place of a panic in it or in a chunk of its loops.
#[inline]
pub(crate) fn guard_kernel<T>(body: impl FnOnce() -> Result<T>) -> Result<T> {
    let caught = match std::panic::catch_unwind(AssertUnwindSafe(body)) {
        Ok(Err(error)) if error.is_of_loop => error,
        Ok(result) => return result,
        Err(payload) => panicked(payload),
    };
    Err(Error { status: DEVBAY_STATUS_INTERNAL, ..caught })
}

#[cold]
fn panicked(payload: Box<dyn std::any::Any + Send>) -> Error {
    let message = match (payload.downcast_ref::<&str>(), payload.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        _ => "a value that is no text".to_owned(),
    };
    // Dropping a foreign payload could panic again.
    std::mem::forget(payload);
    let place = PLACE.get();
    let place = String::from_utf8_lossy(&place.text[..place.len]).into_owned();
    let place = if place.is_empty() { "an unknown place".to_owned() } else { place };
    Error::new(DEVBAY_STATUS_PANICKED, format!("panicked at {place}: {message}"))
}
