//! Exit codes, and how an error reads.
//!
//! | code | meaning |
//! | --- | --- |
//! | 0 | it worked |
//! | 1 | something else failed |
//! | 2 | the command line is wrong |
//! | 3 | the results differ from what was expected; a conformance case failed; lint found what fails |
//! | 4 | the model is damaged, or uses what is not supported |
//! | 5 | the inputs do not fit the model |
//! | 6 | no plugin or device that would do, or it was refused |
//! | 7 | too little memory |
//! | 8 | a plugin or device failed; a layer found that a rule was broken |
//! | 9 | the deadline passed |
//! | 130 | cancelled, as Ctrl-C does |

use devbay_host::{Error, ErrorKind};
use devbay_plugin_api::reserve::NoMemory;
use std::process::ExitCode;

/// The code for an error.
pub fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(match kind(error) {
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
    })
}

/// What an error is to match on: the library's own kind, or a lack of memory that the system or another library found.
fn kind(error: &anyhow::Error) -> ErrorKind {
    if let Some(error) = error.downcast_ref::<Error>() {
        return error.kind();
    }
    let is_of_memory = |cause: &(dyn std::error::Error + 'static)| {
        let of_io = cause.downcast_ref::<std::io::Error>().map(ErrorKind::of_io);
        let of_image = matches!(cause.downcast_ref(), Some(image::ImageError::Limits(_)));
        of_io == Some(ErrorKind::OutOfMemory) || of_image || cause.is::<NoMemory>()
    };
    if error.chain().any(is_of_memory) { ErrorKind::OutOfMemory } else { ErrorKind::Internal }
}

/// The error with its causes, on one line.
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

/// An error of the command line itself.
pub fn usage(text: impl Into<String>) -> anyhow::Error {
    Error::new(ErrorKind::InvalidArgument, text).into()
}
