//! Reductions: the dimensions that they fold (ONNX ReduceSum-13).

use super::axis;
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// Returns the dimensions that a reduction folds: those in input 1; without it all, or none if the node asks for that.
///
/// # Errors
/// Unsupported for axes that are not yet known; invalid for an axis that does not exist.
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
