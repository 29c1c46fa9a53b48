//! Types of values: [`devbay_ops::infer`] for nodes of programs, and inference of regions.
//!
//! Unknown extents are no error: they make the results' extents unknown. A contradiction is an error that names
//! expected and found.

mod control;

pub use control::{infer_program, infer_region, whole_bytes};

use super::{AttrValue, Node, catalogue, of_model};
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Tensor, TensorType};
use devbay_ops::{AttrRef, NodeAttrs, OpRow, infer as ops};

impl NodeAttrs for Node {
    fn get(&self, name: &str) -> Option<AttrRef<'_>> {
        Some(match self.attr(name)? {
            AttrValue::Int(value) => AttrRef::Int(*value),
            AttrValue::Float(value) => AttrRef::Float(*value),
            AttrValue::String(value) => AttrRef::String(value),
            AttrValue::Ints(values) => AttrRef::Ints(values),
            AttrValue::Floats(values) => AttrRef::Floats(values.len()),
            AttrValue::Strings(values) => AttrRef::Strings(values.len()),
            AttrValue::Tensor(tensor) => AttrRef::Tensor(tensor.dtype()),
        })
    }
}

/// Returns the types of a node's results, as many as it has outputs. `types` and `constants` have an entry for each
/// input. Control flow needs the types of its regions: that is [`infer_region`]'s.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] if the op is not in the catalogue; as [`infer_row`]; the place is the node.
pub fn infer(
    node: &Node,
    types: &[Option<TensorType>],
    constants: &[Option<Tensor>],
) -> Result<Vec<TensorType>> {
    let Some(row) = catalogue::find(&node.op.domain, &node.op.name) else {
        let error = Error::new(
            ErrorKind::UnsupportedOp,
            format!("expected an op of the catalogue, found {}", node.op),
        );
        return Err(error.at_node(node.label()));
    };
    infer_row(row, node, types, constants).map_err(|error| error.at_node(node.label()))
}

/// As [`infer`], for a node whose row is known; the error has no place.
///
/// # Errors
/// [`ErrorKind::InvalidModel`] if the operands or attributes cannot be right; [`ErrorKind::UnsupportedModel`] for element
/// types that devbay does not have; [`ErrorKind::OutOfMemory`]; [`ErrorKind::Internal`] for control flow.
pub fn infer_row(
    row: &OpRow,
    node: &Node,
    types: &[Option<TensorType>],
    constants: &[Option<Tensor>],
) -> Result<Vec<TensorType>> {
    let Some(infer) = ops::of(row) else {
        return Err(Error::new(
            ErrorKind::Internal,
            format!("expected {} to be inferred with its regions, by infer_region", node.op),
        ));
    };
    let constant = |i: usize| constants.get(i)?.as_ref().map(Tensor::as_constant);
    infer(&ops::Node { attrs: node, n_outputs: node.outputs.len(), types, constant: &constant })
        .map_err(of_model)
}

/// Returns the result of a Shape or Size node, if its operand's type tells it: for Shape, the extents that it asks
/// for must be known; for Size, all. None also for any other op.
///
/// # Errors
/// Out of memory.
pub fn query(node: &Node, operand: &TensorType) -> Result<Option<Tensor>> {
    if !node.op.domain.is_empty() {
        return Ok(None);
    }
    let answer = ops::answer(&node.op.name, node, operand);
    answer.map(|(shape, ints)| Tensor::from_elements(&shape, &ints)).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Op, ValueId};
    use crate::tensor::F32;

    #[test]
    fn kinds_of_errors() {
        let check = |op: Op, to: i64, kind: ErrorKind, text: &str| {
            let mut node = Node::new(op, vec![Some(ValueId(0))], vec![Some(ValueId(1))]);
            node.set_attr("to", AttrValue::Int(to));
            let error = infer(&node, &[Some(TensorType::new(F32, &[2]))], &[None]).expect_err(text);
            assert_eq!((error.kind(), error.text()), (kind, text));
            assert_eq!(error.place().node, node.label());
        };
        let none = "expected an element type that devbay has, found ONNX's STRING";
        check(Op::onnx("Cast", 28), 8, ErrorKind::UnsupportedModel, none);
        let none = "expected ONNX's number of an element type, found 99";
        check(Op::onnx("Cast", 28), 99, ErrorKind::InvalidModel, none);
        let none = "expected If@25 to be inferred with its regions, by infer_region";
        check(Op::onnx("If", 25), 0, ErrorKind::Internal, none);
        let none = "expected an op of the catalogue, found FromElsewhere@1";
        check(Op::onnx("FromElsewhere", 1), 0, ErrorKind::UnsupportedOp, none);
    }
}
