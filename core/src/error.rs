//! The one error type of core and host: a kind to match on, the place, words for a person, and the cause.
//!
//! Messages are lower case without a full stop, say what was expected and what was found, and name the
//! next thing to try where there is one. A panic means a bug in this repository, never a bad plugin, file
//! or program.

mod status;

pub use status::{Phase, status_name};

use devbay_plugin_api::abi::ListError;
use devbay_plugin_api::reserve::NoMemory;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Result of the library's functions.
pub type Result<T> = std::result::Result<T, Error>;

/// The kind of failure, to match on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A file cannot be read or written.
    Io,
    /// A model or program is damaged, inconsistent or hostile.
    InvalidModel,
    /// A model uses something that this build does not do.
    UnsupportedModel,
    /// No device that may be used has a kernel for an op.
    UnsupportedOp,
    /// An input is missing, unknown, or of another type or shape than the model takes.
    InvalidInput,
    /// An argument, option or name breaks its rule.
    InvalidArgument,
    /// A plugin, device, value or file does not exist.
    NotFound,
    /// A plugin was not loaded; the message has the refusal.
    Refused,
    /// More memory than there is or than the limit allows.
    OutOfMemory,
    /// The caller cancelled the run.
    Cancelled,
    /// The deadline passed first.
    DeadlineExceeded,
    /// A driver or device is not there now.
    Unavailable,
    /// The device is gone.
    DeviceLost,
    /// A plugin's function failed.
    PluginFailed,
    /// A plugin panicked before, and is not called any more.
    PluginPoisoned,
    /// A plugin broke a rule of the ABI.
    PluginBroken,
    /// As many runs are in flight as may be; one that ends makes room.
    Busy,
    /// The results differ from the expected ones.
    Mismatch,
    /// A bug in this repository.
    Internal,
}

impl ErrorKind {
    /// Returns the kind of a system error: out of memory, or a file error.
    pub fn of_io(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::OutOfMemory => Self::OutOfMemory,
            _ => Self::Io,
        }
    }

    /// Returns its name in JSON and in exit codes' documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::Io => "io",
            Self::InvalidModel => "invalid-model",
            Self::UnsupportedModel => "unsupported-model",
            Self::UnsupportedOp => "unsupported-op",
            Self::InvalidInput => "invalid-input",
            Self::InvalidArgument => "invalid-argument",
            Self::NotFound => "not-found",
            Self::Refused => "refused",
            Self::OutOfMemory => "out-of-memory",
            Self::Cancelled => "cancelled",
            Self::DeadlineExceeded => "deadline-exceeded",
            Self::Unavailable => "unavailable",
            Self::DeviceLost => "device-lost",
            Self::PluginFailed => "plugin-failed",
            Self::PluginPoisoned => "plugin-poisoned",
            Self::PluginBroken => "plugin-broken",
            Self::Busy => "busy",
            Self::Mismatch => "mismatch",
            Self::Internal => "internal",
        }
    }
}

/// Where it went wrong; empty parts are unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// File that was read.
    pub file: String,
    /// Plugin by name.
    pub plugin: String,
    /// Device, as `PLUGIN:INDEX`.
    pub device: String,
    /// Node by name, with its op.
    pub node: String,
}

impl Place {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts =
            [("", &self.file), ("node ", &self.node), ("device ", &self.device), ("plugin ", &self.plugin)];
        let mut first = true;
        for (label, part) in parts {
            if !part.is_empty() {
                write!(f, "{}{label}{part}", if first { "" } else { ", " })?;
                first = false;
            }
        }
        Ok(())
    }
}

/// An error; a counted pointer, so that results stay small and all dependents of a failure show the
/// same first cause. Adding to an error that is shared changes a copy.
#[derive(Clone)]
pub struct Error(Arc<Inner>);

#[derive(Clone)]
struct Inner {
    kind: ErrorKind,
    place: Place,
    text: String,
    source: Option<Arc<dyn std::error::Error + Send + Sync>>,
}

impl Error {
    /// Creates an error of a kind, with words.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self(Arc::new(Inner { kind, place: Place::default(), text: text.into(), source: None }))
    }

    /// This error's own content: a copy, if others hold the same.
    fn inner_mut(&mut self) -> &mut Inner {
        Arc::make_mut(&mut self.0)
    }

    /// Returns whether both are clones of one error, not merely alike.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the kind, to match on.
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Blames the inputs of a run, of these types, for an error that was found in a node.
    #[must_use]
    pub(crate) fn of_inputs(mut self, types: &str) -> Self {
        let inner = self.inner_mut();
        inner.kind = ErrorKind::InvalidInput;
        inner.text = format!("{}; the inputs are {types}", inner.text);
        self
    }

    /// Where it happened.
    pub fn place(&self) -> &Place {
        &self.0.place
    }

    /// Returns the words, without place and cause.
    pub fn text(&self) -> &str {
        &self.0.text
    }

    /// Adds the cause.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        self.inner_mut().source = Some(Arc::from(source.into()));
        self
    }

    /// Adds the file, unless one is known.
    #[must_use]
    pub fn in_file(mut self, file: impl fmt::Display) -> Self {
        if self.0.place.file.is_empty() {
            self.inner_mut().place.file = file.to_string();
        }
        self
    }

    /// Adds the plugin, unless one is known.
    #[must_use]
    pub fn in_plugin(mut self, plugin: &str) -> Self {
        if self.0.place.plugin.is_empty() {
            plugin.clone_into(&mut self.inner_mut().place.plugin);
        }
        self
    }

    /// Adds the device, unless one is known.
    #[must_use]
    pub fn on_device(mut self, device: &str) -> Self {
        if self.0.place.device.is_empty() {
            device.clone_into(&mut self.inner_mut().place.device);
        }
        self
    }

    /// Adds the node, unless one is known.
    #[must_use]
    pub fn at_node(mut self, node: impl fmt::Display) -> Self {
        if self.0.place.node.is_empty() {
            self.inner_mut().place.node = node.to_string();
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.place.is_empty() {
            write!(f, "{}", self.0.text)
        } else {
            write!(f, "{}: {}", self.0.place, self.0.text)
        }
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self} [{}]", self.0.kind.name())?;
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            write!(f, "; because: {cause}")?;
            source = cause.source();
        }
        Ok(())
    }
}

/// Returns the error for a plugin's list that could not be copied: its fault, unless there was no memory.
pub(crate) fn of_list(error: ListError, broken: impl FnOnce(ListError) -> Error) -> Error {
    match error {
        ListError::NoMemory(error) => error.into(),
        error => broken(error),
    }
}

impl From<NoMemory> for Error {
    fn from(error: NoMemory) -> Self {
        Self::new(ErrorKind::OutOfMemory, error.to_string())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.0.source.as_deref().map(|source| source as _)
    }
}

/// Runs code that may be wrong: an application's, or a job's.
///
/// # Errors
/// [`ErrorKind::Internal`], with the panic's message, if it panics.
#[inline]
pub fn caught<R>(what: &str, code: impl FnOnce() -> R) -> Result<R> {
    // State that the code left half done is its own: it is used no more, except for state that it shares by its own
    // choice.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| panicked(what, panic))
}

/// Returns the error that a panic is. The panic hook has said where it happened.
#[cold]
pub(crate) fn panicked(what: &str, panic: Box<dyn Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    let error =
        Error::new(ErrorKind::Internal, format!("{what} panicked: {}", text.unwrap_or("without a message")));
    // Dropping the payload of a panic could panic again.
    std::mem::forget(panic);
    error
}
