//! Seeds for fuzz targets: ONNX's node tests and the hostile corpus in the forms that targets read.

use super::corpus::{Corpus, Selection};
use devbay_host::internals::core::program::text::print;
use devbay_host::internals::import::from_bytes;
use std::io;
use std::path::Path;

/// Format that a target reads.
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

/// Seeds for an op whose changes are written too, as `cargo xtask hostile` takes them.
const CHANGED_PER_OP: usize = 4;

/// Writes a file for each node test, named by it, and for each hostile change of some, named `TEST-N`. Returns how many there are.
///
/// # Errors
/// If a file cannot be written.
pub fn write_seeds(form: Form, folder: &Path) -> io::Result<usize> {
    let whole = Selection { ops: Vec::new(), seeds_per_op: usize::MAX, every: usize::MAX };
    let changed = Selection { seeds_per_op: CHANGED_PER_OP, every: 1, ..whole.clone() };
    let mut n = 0;
    let mut write = |name: &str, bytes: &[u8]| {
        n += 1;
        std::fs::write(folder.join(name), bytes)
    };
    for (selection, is_change) in [(whole, false), (changed, true)] {
        let corpus = Corpus::select(&selection);
        for case in corpus.cases().iter().filter(|case| (case.mutation_idx > 0) == is_change) {
            let Some(model) = corpus.model(case) else { continue };
            let name =
                if is_change { format!("{}-{}", case.seed, case.mutation_idx) } else { case.seed.clone() };
            match form {
                Form::Model => write(&name, &model.model)?,
                Form::Text => {
                    if let Ok(program) = from_bytes(model.model, None) {
                        write(&name, print(&program).as_bytes())?;
                    }
                }
                // Changes are of models and of numbers, and not of how a tensor is written.
                Form::Inputs if is_change => {}
                Form::Inputs => {
                    for (i, (_, bytes)) in model.inputs.iter().enumerate() {
                        write(&format!("{name}-{i}"), &[&[TENSOR], bytes.as_slice()].concat())?;
                    }
                }
            }
        }
    }
    Ok(n)
}
