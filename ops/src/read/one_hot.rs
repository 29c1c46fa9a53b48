//! Reads OneHot-11: indices that become positions of ones.

use super::{axis, extents};
use devbay_plugin_api::sdk::{Error, PrepareRequest, Result};

/// The place of the new dimension in the output.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OneHot {
    /// Number of indices before it.
    pub outer: i64,
    /// Its extent.
    pub depth: i64,
    /// Number of indices after it.
    pub inner: i64,
}

impl OneHot {
    /// Reads a node. The depth is an operand of any type; the host has already put it into the output's shape.
    ///
    /// # Errors
    /// Invalid for an output that is not the indices' with one more dimension, and unless there are two values.
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
