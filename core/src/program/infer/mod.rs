//! Shape inference: the types of a node's results from those of its operands.
//!
//! A function takes what is known (types, and the content of constant operands) and gives what follows.
//! Unknown extents are no error: they make the results' extents unknown. What cannot be right is an error
//! that names expected and found. One file for each kind of op.

use super::Node;
use crate::error::Result;
use crate::tensor::{Tensor, TensorType};

/// What is known of a node's operands.
pub struct Operands<'a> {
    /// The node.
    pub node: &'a Node,
    /// Types, None where an optional operand is absent.
    pub types: &'a [Option<TensorType>],
    /// Contents of those that are constant.
    pub constants: &'a [Option<Tensor>],
}

/// Gives the types of the results, as many as the node has outputs.
pub type InferFn = fn(&Operands<'_>) -> Result<Vec<TensorType>>;
