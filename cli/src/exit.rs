//! Exit codes, and the text of errors.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | success |
//! | 1 | a file cannot be read or written, or another failure |
//! | 2 | the command line or the configuration file is wrong |
//! | 3 | results differ from the expected ones; a conformance case failed; lint found errors |
//! | 4 | the model is damaged, or uses unsupported features |
//! | 5 | the inputs do not fit the model |
//! | 6 | no suitable plugin or device, or it was refused |
//! | 7 | too little memory |
//! | 8 | a plugin or device failed; a layer found a broken rule |
//! | 9 | the deadline passed |
//! | 130 | cancelled, as by Ctrl-C |

use devbay_host::{Error, ErrorKind};
use devbay_plugin_api::reserve::NoMemory;

/// Returns the exit code for errors of a kind.
pub fn code_of(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::InvalidArgument => 2,
        ErrorKind::Mismatch => 3,
        ErrorKind::InvalidModel | ErrorKind::UnsupportedModel | ErrorKind::UnsupportedOp => 4,
        ErrorKind::InvalidInput => 5,
        ErrorKind::NotFound | ErrorKind::Refused | ErrorKind::Unavailable => 6,
        ErrorKind::OutOfMemory => 7,
        ErrorKind::DeviceLost
        | ErrorKind::PluginFailed
        | ErrorKind::PluginPoisoned
        | ErrorKind::PluginBroken => 8,
        ErrorKind::DeadlineExceeded => 9,
        ErrorKind::Cancelled => 130,
        _ => 1,
    }
}

/// Returns an error's kind: the library's own, or out of memory if the system or another library ran out, or a file's if the
/// cause is one of reading or writing.
pub fn kind(error: &anyhow::Error) -> ErrorKind {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.kind();
    }
    let is_of_memory = |cause: &(dyn std::error::Error + 'static)| {
        let of_io = cause.downcast_ref::<std::io::Error>().map(ErrorKind::of_io);
        let of_image = matches!(cause.downcast_ref(), Some(image::ImageError::Limits(_)));
        of_io == Some(ErrorKind::OutOfMemory) || of_image || cause.is::<NoMemory>()
    };
    let is_of_file = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<std::io::Error>() || cause.is::<image::ImageError>() || cause.is::<serde_json::Error>()
    };
    match () {
        () if error.chain().any(is_of_memory) => ErrorKind::OutOfMemory,
        () if error.chain().any(is_of_file) => ErrorKind::Io,
        () => ErrorKind::Internal,
    }
}

/// Returns the error with its causes, on one line.
pub fn describe(error: &anyhow::Error) -> String {
    let mut text = error.to_string();
    for cause in error.chain().skip(1) {
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text.push_str(": ");
            text.push_str(&cause);
        }
    }
    text
}

/// Returns an error of the command line itself.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Error::new(ErrorKind::InvalidArgument, text).into()
}
