//! Failures: words and codes of a PJRT library, and what is refused before it is asked.

use std::fmt;
use std::path::PathBuf;

/// `Result` with this crate's error.
pub type Result<T> = std::result::Result<T, Error>;

/// A number of `PJRT_Error_Code`, which are absl's status codes. Not an enum: a newer library may have more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Code(
    /// The header's number.
    pub i32,
);

impl Code {
    /// The code of libraries for what they do not do.
    pub const UNIMPLEMENTED: Self = Self(12);

    /// The header's name without its prefix, for numbers that the header has.
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 17] = [
            "OK",
            "CANCELLED",
            "UNKNOWN",
            "INVALID_ARGUMENT",
            "DEADLINE_EXCEEDED",
            "NOT_FOUND",
            "ALREADY_EXISTS",
            "PERMISSION_DENIED",
            "RESOURCE_EXHAUSTED",
            "FAILED_PRECONDITION",
            "ABORTED",
            "OUT_OF_RANGE",
            "UNIMPLEMENTED",
            "INTERNAL",
            "UNAVAILABLE",
            "DATA_LOSS",
            "UNAUTHENTICATED",
        ];
        NAMES.get(usize::try_from(self.0).ok()?).copied()
    }

    /// The devbay ABI's status (`DEVBAY_STATUS_*`) with the same meaning, never 0.
    ///
    /// Most are the same number. The others: `ALREADY_EXISTS` is a failed precondition (9), `OUT_OF_RANGE` is an invalid
    /// argument (3), `PERMISSION_DENIED` and `UNAUTHENTICATED` are a device that is not available (14), and `OK` within
    /// an error or a number of a newer header is unknown (2).
    pub fn status(self) -> i32 {
        match self.0 {
            same @ (1..=5 | 8..=10 | 12..=15) => same,
            6 => 9,
            7 | 16 => 14,
            11 => 3,
            _ => 2,
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "code {}", self.0),
        }
    }
}

/// Reason why a call did not do what it says.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is not a library that can be loaded here.
    #[error("expected a PJRT library in {}: {reason}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The library loads and is none of PJRT's.
    #[error("expected a PJRT library in {}, found no function GetPjrtApi: {reason}", path.display())]
    NoSymbol {
        /// The file.
        path: PathBuf,
        /// The loader's words.
        reason: String,
    },
    /// The library's table is of an API that is not spoken here.
    #[error(
        "expected PJRT API {}.{} or a newer minor, found {major}.{minor}",
        crate::api::MAJOR,
        crate::api::MINOR_MIN
    )]
    Version {
        /// The library's major.
        major: i32,
        /// The library's minor.
        minor: i32,
    },
    /// The library has not this function: its table ends before it, or has NULL there.
    #[error("the PJRT library has no function {function}")]
    Missing {
        /// The header's name.
        function: &'static str,
    },
    /// The library says no.
    #[error("{function}: {message} ({code})")]
    Library {
        /// The function that failed, or by which the failure was learned.
        function: &'static str,
        /// The library's code.
        code: Code,
        /// The library's words.
        message: String,
    },
    /// An argument that the library was not given because it cannot be right.
    #[error("{text}")]
    Invalid {
        /// Expectation and actual finding.
        text: String,
    },
    /// The library did what the API excludes.
    #[error("the PJRT library breaks its API in {function}: {text}")]
    Broken {
        /// The header's name.
        function: &'static str,
        /// Violation that was found.
        text: &'static str,
    },
}

impl Error {
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::Invalid { text: text.into() }
    }

    /// The devbay ABI's status, never 0: 14 for a library that cannot be opened or is too old, 12 for a function that it
    /// does not have, 3 for what was refused here, 13 for a library that breaks its API, and [`Code::status`] else.
    pub fn status(&self) -> i32 {
        match self {
            Self::Open { .. } | Self::NoSymbol { .. } | Self::Version { .. } => 14,
            Self::Missing { .. } => 12,
            Self::Library { code, .. } => code.status(),
            Self::Invalid { .. } => 3,
            Self::Broken { .. } => 13,
        }
    }

    /// The library's own code, 0 where the error is not the library's: for `native_code` of the devbay ABI.
    pub fn native_code(&self) -> i64 {
        match self {
            Self::Library { code, .. } => code.0.into(),
            _ => 0,
        }
    }

    /// Returns whether the library does not do this at all, so that the caller can go another way: the function is
    /// missing, or answers [`Code::UNIMPLEMENTED`].
    pub fn is_unimplemented(&self) -> bool {
        matches!(self, Self::Missing { .. } | Self::Library { code: Code::UNIMPLEMENTED, .. })
    }
}

/// `None` where the library does not do this at all.
pub(crate) fn optional<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_unimplemented() => Ok(None),
        Err(error) => Err(error),
    }
}
