//! Shape and Size, which the host answers from the operand's type.

use super::Operands;
use super::extent::extent;
use crate::error::Result;
use crate::program::Node;
use crate::tensor::{Dim, I64, Tensor, TensorType, n_elements};

/// Shape: as many numbers as there are dimensions between the attributes `start` and `end`.
pub fn shape(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    let n = match x.rank() {
        Some(rank) => Dim::Known(asked_for(ops.node, rank).len()),
        None => Dim::unknown(),
    };
    ops.result(I64, Some(vec![n]))
}

/// Size: one number.
pub fn size(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    ops.required(0)?;
    ops.result(I64, Some(Vec::new()))
}

/// The dimensions that a Shape node asks for: those beyond the first or last do not count.
fn asked_for(node: &Node, rank: usize) -> std::ops::Range<usize> {
    let bound = |name: &str, default: usize| match node.attr(name) {
        None => default,
        Some(_) => {
            let at = i128::from(node.int(name, 0));
            let at = if at < 0 { at + rank as i128 } else { at };
            extent(at.clamp(0, rank as i128)).unwrap_or_default()
        }
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    start..end.max(start)
}

/// The result of a Shape or Size node, if its operand's type tells it: for Shape, the extents that it asks
/// for must be known; for Size, all. None also for any other op.
///
/// # Errors
/// Out of memory.
pub fn query(node: &Node, operand: &TensorType) -> Result<Option<Tensor>> {
    answer(node, operand).map(|(shape, ints)| Tensor::from_elements(&shape, &ints)).transpose()
}

/// Extents and numbers of the result.
fn answer(node: &Node, operand: &TensorType) -> Option<(Vec<usize>, Vec<i64>)> {
    let dims = operand.shape.as_ref()?;
    let as_ints = |dims: &[Dim]| {
        let known = dims.iter().map(|dim| i64::try_from(dim.known()?).ok());
        known.collect::<Option<Vec<i64>>>()
    };
    if node.op.is("Shape") {
        let ints = as_ints(&dims[asked_for(node, dims.len())])?;
        return Some((vec![ints.len()], ints));
    }
    if node.op.is("Size") {
        let n = n_elements(&operand.known_shape()?)?;
        return Some((Vec::new(), vec![i64::try_from(n).ok()?]));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::infer::testing::check;
    use crate::program::{AttrValue, Op};
    use crate::tensor::F32;

    #[test]
    fn types() {
        check("Shape", "f32[2,n]", "i64[2]");
        check("Shape start=1", "f32[2,n]", "i64[1]");
        check("Shape start=-9 end=-1", "f32[2,n,3]", "i64[2]");
        check("Shape start=2 end=1", "f32[2,n,3]", "i64[0]");
        check("Shape", "f32[..]", "i64[?]");
        check("Shape start=-9223372036854775808 end=9223372036854775807", "f32[2]", "i64[1]");
        check("Size", "f32[..]", "i64[]");
    }

    #[test]
    fn answers() {
        let check = |op: &str, range: (Option<i64>, Option<i64>), dims: &[Dim], expected| {
            let mut node = Node::new(Op::onnx(op, 25), Vec::new(), Vec::new());
            for (name, value) in [("start", range.0), ("end", range.1)] {
                if let Some(value) = value {
                    node.set_attr(name, AttrValue::Int(value));
                }
            }
            let ty = TensorType { dtype: F32, shape: Some(dims.to_vec()) };
            let found = query(&node, &ty).expect("memory").and_then(|tensor| tensor.to_ints().ok()?);
            assert_eq!(found, expected, "{op} {range:?} of {dims:?}");
        };
        let known = [Dim::Known(2), Dim::Known(3), Dim::Known(4)];
        let partly = [Dim::unknown(), Dim::Known(3), Dim::Known(4)];
        check("Shape", (None, None), &known, Some(vec![2, 3, 4]));
        check("Shape", (Some(1), None), &known, Some(vec![3, 4]));
        check("Shape", (Some(-1), None), &known, Some(vec![4]));
        check("Shape", (None, Some(-1)), &known, Some(vec![2, 3]));
        check("Shape", (Some(1), None), &partly, Some(vec![3, 4]));
        check("Shape", (None, None), &partly, None);
        check("Shape", (None, None), &[], Some(vec![]));
        check("Size", (None, None), &known, Some(vec![24]));
        check("Size", (None, None), &[], Some(vec![1]));
        check("Size", (None, None), &partly, None);
        check("Relu", (None, None), &known, None);
    }
}
