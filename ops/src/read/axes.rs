//! Ops that work along some axes: which these are.

use super::{axis, extents};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// Which dimensions of its operand a reduction folds (ONNX ReduceSum-13): those that input 1 names; all without it, or none if the node says so.
///
/// # Errors
/// Unsupported for axes that are not known yet; invalid for an axis that there is not.
pub fn reduced_axes<D>(request: &PrepareRequest<'_, D>, rank: usize) -> Result<Vec<bool>> {
    let axes = match request.input(1) {
        None => Vec::new(),
        Some(axes) => axes
            .constant_ints()?
            .ok_or_else(|| Error::unsupported("axes that are not known when the node is prepared"))?,
    };
    if axes.is_empty() {
        let none = request.attrs.int("noop_with_empty_axes", 0)? != 0;
        return Ok(vec![!none; rank]);
    }
    let mut reduced = vec![false; rank];
    for given in axes {
        reduced[axis(given, rank)?] = true;
    }
    Ok(reduced)
}

/// OneHot-11: where a new dimension stands in its output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OneHot {
    /// Indices before it.
    pub outer: i64,
    /// Its extent.
    pub depth: i64,
    /// Indices behind it.
    pub inner: i64,
}

impl OneHot {
    /// Reads a node. The depth is an operand of any type; the host has put it into the output's shape.
    ///
    /// # Errors
    /// Invalid for an output that is not the indices' with one more dimension, and without two values.
    pub fn of<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let values = request.required_input(2)?;
        let from = extents(request.required_input(0)?)?;
        let to = extents(request.required_output(0)?)?;
        let axis = axis(request.attrs.int("axis", -1)?, from.len() + 1)?;
        let mut without = to.to_vec();
        let depth = match to.len() == from.len() + 1 {
            true => without.remove(axis),
            false => 0,
        };
        if without != from || values.n_elements() != 2 {
            return Err(Error::invalid(format!(
                "an output of {to:?} from indices of {from:?} along axis {axis}, and {} values",
                values.n_elements()
            )));
        }
        Ok(Self { outer: from[..axis].iter().product(), depth, inner: from[axis..].iter().product() })
    }
}
