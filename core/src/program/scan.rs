//! The division of a Scan's operands, as its attributes say.

use super::{Node, Region};
use crate::error::{Error, ErrorKind, Result};

/// The division of a Scan's operands.
pub struct ScanLayout {
    /// State values.
    pub n_states: usize,
    /// Axis of each scan input.
    pub input_axes: Vec<i64>,
    /// For each scan input, true if it is read backwards.
    pub input_backwards: Vec<bool>,
    /// Axis of each scan output.
    pub output_axes: Vec<i64>,
    /// For each scan output, true if it is written backwards.
    pub output_backwards: Vec<bool>,
}

impl ScanLayout {
    /// Reads a Scan's attributes (ONNX Scan, versions 9 and later).
    pub fn of(node: &Node, body: &Region) -> Result<Self> {
        let n_inputs = node.inputs.len();
        let n_scanned = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(usize::MAX);
        let broken = || {
            Error::new(
                ErrorKind::InvalidModel,
                format!(
                    "a scan of {n_inputs} inputs, {n_scanned} of them scanned, has a body of {} inputs and {} outputs",
                    body.inputs.len(),
                    body.outputs.len()
                ),
            )
        };
        let n_states = n_inputs.checked_sub(n_scanned).ok_or_else(broken)?;
        let n_out = body.outputs.len().checked_sub(n_states).ok_or_else(broken)?;
        if n_scanned == 0 || body.inputs.len() != n_inputs || node.outputs.len() > body.outputs.len() {
            return Err(broken());
        }
        let list = |name: &str, n: usize| -> Result<Vec<i64>> {
            match node.ints(name) {
                None => Ok(vec![0; n]),
                Some(values) if values.len() == n => Ok(values.to_vec()),
                Some(values) => Err(Error::new(
                    ErrorKind::InvalidModel,
                    format!("attribute {name} has {} entries, expected {n}", values.len()),
                )),
            }
        };
        Ok(Self {
            n_states,
            input_axes: list("scan_input_axes", n_scanned)?,
            input_backwards: list("scan_input_directions", n_scanned)?.iter().map(|&d| d == 1).collect(),
            output_axes: list("scan_output_axes", n_out)?,
            output_backwards: list("scan_output_directions", n_out)?.iter().map(|&d| d == 1).collect(),
        })
    }
}

/// An axis counted from the front, if it is within the rank.
pub(crate) fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
}
