//! Folding constants: running one node on operands that are known.
//!
//! Constants are folded by kernels, so that folding and running cannot differ. Specialising and passes call this trait,
//! the executor implements it, and neither knows the other.

use super::Node;
use super::catalogue::{self, OpKind};
use crate::error::Result;
use crate::tensor::{Tensor, TensorType, bytes_of, n_elements};

/// Results larger than this are not folded unless their operands are as large: a filled or repeated tensor
/// is cheaper to make than to keep.
const FOLDED_BYTES_MAX: usize = 1 << 20;

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

/// The results of a node on constants, of these types; None if no kernel runs it.
///
/// # Errors
/// Errors that the kernel reports for these operands.
pub fn fold(
    evaluator: &mut dyn Evaluator,
    node: &Node,
    constants: &[Option<Tensor>],
    types: &[TensorType],
) -> Result<Option<Vec<Tensor>>> {
    let def = catalogue::find(&node.op.domain, &node.op.name);
    if def.is_some_and(|def| def.kind == OpKind::View) {
        let shape = types.first().and_then(TensorType::known_shape);
        let (Some(shape), Some(Some(tensor)), Some(ty)) = (shape, constants.first(), types.first()) else {
            return Ok(None);
        };
        return Ok(Some(vec![match ty.dtype == tensor.dtype() {
            true => tensor.reshaped(&shape)?,
            // BitCast: the same bytes mean something else.
            false => Tensor::from_bytes(ty.dtype, &shape, tensor.bytes())?,
        }]));
    }
    evaluator.evaluate(node, constants)
}

/// Returns whether results of these types are worth keeping in place of the constants that they are made of.
pub fn worth_folding(types: &[TensorType], constants: &[Option<Tensor>]) -> bool {
    let result: Option<usize> = types
        .iter()
        .map(|ty| ty.known_shape().and_then(|shape| n_elements(&shape)).and_then(|n| bytes_of(ty.dtype, n)))
        .sum();
    let operands: usize = constants.iter().flatten().map(|tensor| tensor.bytes().len()).sum();
    // Results of unknown extent are small when their operands are constants.
    result.is_none_or(|result| result <= FOLDED_BYTES_MAX.max(operands))
}
