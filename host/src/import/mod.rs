//! From a model file to a [`Program`].
//!
//! Two forms are read, told apart by their first bytes: the text form of programs, and ONNX. Whatever a
//! file holds, the answer is a program that is verified or an error with its place; a file is never trusted.

#![deny(unsafe_code)]

pub(crate) mod file;
mod onnx;

use bytes::Bytes;
use devbay_core::program::{Program, text, verify};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use std::path::Path;

/// First bytes of the text form.
const TEXT_MAGIC: &[u8] = b"devbay-program";

/// Method of reading files into memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reading {
    /// Mapped: constants are views of the file. The file must keep its length and content while a program
    /// made of it lives; replace models by renaming a new file over the old one, never by writing into it.
    #[default]
    Mapped,
    /// Copied into memory, for files that others may change.
    Copied,
}

/// Reads the model in a file, and the data files beside it that it names.
///
/// # Errors
/// [`ErrorKind::Io`] if a file cannot be read, [`ErrorKind::InvalidModel`] if the model is damaged or breaks
/// ONNX's rules, [`ErrorKind::UnsupportedModel`] if it uses what devbay does not do; with the file, and the
/// node where one is to blame.
pub fn open(path: impl AsRef<Path>, reading: Reading) -> Result<Program> {
    let path = path.as_ref();
    let read = || {
        let bytes = file::read(path, reading)?;
        // A bare file name has the parent "".
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        import(bytes, Some(parent.unwrap_or(Path::new("."))), reading)
    };
    read().map_err(|error| error.in_file(path.display()))
}

/// Reads a model in memory; `folder` is where the data files are that it may name.
///
/// # Errors
/// As [`open`]; [`ErrorKind::UnsupportedModel`] if it names data files and there is no folder.
pub fn from_bytes(bytes: impl Into<Bytes>, folder: Option<&Path>) -> Result<Program> {
    import(bytes.into(), folder, Reading::default())
}

/// Reads one tensor in ONNX's form (TensorProto), as test data is stored.
///
/// # Errors
/// As [`open`]; [`ErrorKind::UnsupportedModel`] for one whose content is in another file.
pub fn read_tensor(bytes: impl Into<Bytes>) -> Result<Tensor> {
    onnx::read_tensor(bytes.into())
}

fn import(bytes: Bytes, folder: Option<&Path>, reading: Reading) -> Result<Program> {
    let program = if bytes.starts_with(TEXT_MAGIC) {
        let text = str::from_utf8(&bytes).map_err(|e| {
            Error::new(ErrorKind::InvalidModel, "expected UTF-8 in a program's text").because(e)
        })?;
        text::parse(text)?
    } else {
        onnx::import(bytes, folder, reading)?
    };
    verify::verify(&program)?;
    Ok(program)
}
