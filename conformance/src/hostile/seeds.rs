//! Seeds for fuzz targets: ONNX's node tests in the forms that targets read.

use super::corpus::{Case, Corpus, Selection};
use devbay_host::core::program::text::print;
use devbay_host::import::from_bytes;
use std::io;
use std::path::Path;

/// What a target reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// ONNX models.
    Model,
    /// Programs in text form.
    Text,
    /// Serialised tensors, behind the byte by which the target knows them.
    Inputs,
}

/// Begins a serialised tensor in the target `arrays`.
const TENSOR: u8 = 1;

/// Writes a file for each seed, named by its node test, and returns how many there are.
///
/// # Errors
/// If a file cannot be written.
pub fn write_seeds(form: Form, folder: &Path) -> io::Result<usize> {
    let corpus = Corpus::select(&Selection { ops: Vec::new(), seeds_per_op: usize::MAX, every: usize::MAX });
    let mut n = 0;
    let mut write = |name: &str, bytes: &[u8]| {
        n += 1;
        std::fs::write(folder.join(name), bytes)
    };
    for case in corpus.cases() {
        let Case { seed, mutation_idx: 0 } = &case else { continue };
        let Some(model) = corpus.model(&case) else { continue };
        match form {
            Form::Model => write(seed, &model.model)?,
            Form::Text => {
                if let Ok(program) = from_bytes(model.model, None) {
                    write(seed, print(&program).as_bytes())?;
                }
            }
            Form::Inputs => {
                for (i, (_, bytes)) in model.inputs.iter().enumerate() {
                    write(&format!("{seed}-{i}"), &[&[TENSOR], bytes.as_slice()].concat())?;
                }
            }
        }
    }
    Ok(n)
}
