//! Folding constants: running one node on operands that are known.
//!
//! Constants are folded by kernels, so that folding and running cannot differ. Specialising and passes call this trait,
//! the executor implements it, and neither knows the other.

use super::Node;
use crate::error::Result;
use crate::tensor::{Tensor, TensorType};

/// Results larger than this are not folded unless their operands are as large: a filled or repeated tensor
/// is cheaper to make than to keep.
pub const FOLDED_BYTES_MAX: usize = 1 << 20;

/// Runs a node on constants.
pub trait Evaluator {
    /// The results, or None if this evaluator cannot run the node, which is then left in the program.
    ///
    /// # Errors
    /// Errors that the kernel reports for these operands.
    fn evaluate(&mut self, node: &Node, inputs: &[Option<Tensor>]) -> Result<Option<Vec<Tensor>>>;

    /// Types of the results of an op that the catalogue does not have; None if this evaluator does not know
    /// them either.
    ///
    /// # Errors
    /// Errors that the kernel reports for these operands.
    fn output_types(
        &mut self,
        _node: &Node,
        _inputs: &[Option<(TensorType, Option<Tensor>)>],
    ) -> Result<Option<Vec<TensorType>>> {
        Ok(None)
    }
}
