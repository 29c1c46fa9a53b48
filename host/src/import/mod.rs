//! Imports a model file as a [`Program`].
//!
//! Reads two formats, distinguished by their first bytes: the text form of programs, and ONNX. A file is never trusted: the
//! result is a verified program, or an error with its place.

#![deny(unsafe_code)]

pub(crate) mod file;
mod info;
mod onnx;

use crate::values::graph::HostGraph;
use crate::values::{Value, ValueType};
use bytes::Bytes;
use devbay_core::program::{Program, text, verify};
use devbay_core::{Error, ErrorKind, Result, Tensor};
use std::path::Path;

pub use info::{ModelFormat, ModelInfo};

/// First bytes of the text form.
const TEXT_MAGIC: &[u8] = b"devbay-program";

/// Method of reading files into memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Reading {
    /// Mapped: constants are views of the file. The file must keep its length and content while a program made from it
    /// lives. Replace a model by renaming a new file over the old one, never by writing into it.
    #[default]
    Mapped,
    /// Copied into memory, for files that other processes may change.
    Copied,
}

/// Treatment of ONNX's initializers that are also inputs: their values are defaults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Defaults {
    /// Constants, so that passes may use their values.
    #[default]
    Constants,
    /// Inputs of the program. The caller passes their default values, or others.
    Inputs,
    /// Constants, which are not listed.
    Ignored,
}

/// A model as its file has it.
pub struct Imported {
    /// The program.
    pub program: Program,
    /// The facts that the file states about itself.
    pub info: ModelInfo,
    /// Values of initializers that are also inputs, by name.
    pub defaults: Vec<(String, Tensor)>,
    /// The graph of a model with strings, sequences, optionals or maps; `program` is then all of its segments side by side.
    pub values: Option<HostGraph>,
}

impl Imported {
    /// Returns the program, for callers that run programs only.
    fn into_program(self) -> Result<Program> {
        if self.values.is_some() {
            let text = "the model has strings, sequences, optionals or maps, so it is no program: run it in a session";
            return Err(Error::new(ErrorKind::UnsupportedModel, text));
        }
        Ok(self.program)
    }
}

/// Reads the model in a file, and the data files beside it that the model refers to.
///
/// # Errors
/// [`ErrorKind::Io`] if a file cannot be read, [`ErrorKind::InvalidModel`] if the model is damaged or breaks ONNX's rules,
/// [`ErrorKind::UnsupportedModel`] if it uses features that devbay lacks; with the file, and the node at fault if there is
/// one.
pub fn open(path: impl AsRef<Path>, reading: Reading) -> Result<Program> {
    open_all(path.as_ref(), reading, Defaults::Constants)?.into_program()
}

/// Reads the model in a file as [`open`] does, with all that the file says.
///
/// # Errors
/// As [`open`].
pub fn open_all(path: &Path, reading: Reading, defaults: Defaults) -> Result<Imported> {
    let read = || {
        let bytes = file::read(path, reading)?;
        // A bare file name has the parent "".
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        import(bytes, Some(parent.unwrap_or(Path::new("."))), reading, defaults)
    };
    read().map_err(|error| error.in_file(path.display()))
}

/// Reads a model in memory; `folder` holds the data files that it may refer to.
///
/// # Errors
/// As [`open`]; [`ErrorKind::UnsupportedModel`] if it refers to data files and there is no folder.
pub fn from_bytes(bytes: impl Into<Bytes>, folder: Option<&Path>) -> Result<Program> {
    all_from_bytes(bytes.into(), folder, Defaults::Constants)?.into_program()
}

/// Reads a model in memory as [`from_bytes`] does, with all that the file says.
///
/// # Errors
/// As [`from_bytes`].
pub fn all_from_bytes(bytes: Bytes, folder: Option<&Path>, defaults: Defaults) -> Result<Imported> {
    import(bytes, folder, Reading::default(), defaults)
}

/// Reads one tensor in ONNX's form (TensorProto), the form of stored test data.
///
/// # Errors
/// As [`open`]; [`ErrorKind::UnsupportedModel`] for a tensor whose content is in another file.
pub fn read_tensor(bytes: impl Into<Bytes>) -> Result<Tensor> {
    onnx::read_tensor(bytes.into())
}

/// Reads a value of a type in the form of stored test data: TensorProto, SequenceProto, OptionalProto or MapProto.
///
/// # Errors
/// As [`open`]; [`ErrorKind::InvalidModel`] for a value of another type.
pub fn read_value(bytes: impl Into<Bytes>, ty: &ValueType) -> Result<Value> {
    onnx::read_value(bytes.into(), ty)
}

/// Writes a value in the form of stored test data.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`] for an element type that ONNX lacks.
pub fn write_value(value: &Value) -> Result<Vec<u8>> {
    onnx::write_value(value)
}

fn import(bytes: Bytes, folder: Option<&Path>, reading: Reading, defaults: Defaults) -> Result<Imported> {
    let imported = if bytes.starts_with(TEXT_MAGIC) {
        let text = str::from_utf8(&bytes).map_err(|e| {
            Error::new(ErrorKind::InvalidModel, "expected UTF-8 in a program's text").because(e)
        })?;
        let (program, info) = (text::parse(text)?, ModelInfo::of(ModelFormat::Text));
        Imported { program, info, defaults: Vec::new(), values: None }
    } else {
        onnx::import(bytes, folder, reading, defaults)?
    };
    if imported.values.is_none() {
        verify::verify(&imported.program)?;
    }
    Ok(imported)
}
