//! Shape and Size, which the host answers from the operand's type.

use super::Node;
use super::extent::extent;
use crate::types::{Dim, I64, TensorType, n_elements};
use crate::{AttrRef, NodeAttrs};
use devbay_plugin_api::sdk::Result;

/// Infers Shape: as many numbers as there are dimensions between the attributes `start` and `end`.
pub fn shape(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let n = match x.rank() {
        Some(rank) => Dim::Known(asked_for(node.attrs, rank).len()),
        None => Dim::unknown(),
    };
    node.result(I64, Some(vec![n]))
}

/// Infers Size: one number.
pub fn size(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(0)?;
    node.result(I64, Some(Vec::new()))
}

/// Returns the dimensions that a Shape node requests, clamped to the existing ones.
fn asked_for(attrs: &dyn NodeAttrs, rank: usize) -> std::ops::Range<usize> {
    let bound = |name: &str, default: usize| match attrs.get(name) {
        None => default,
        Some(value) => {
            let at = if let AttrRef::Int(at) = value { i128::from(at) } else { 0 };
            let at = if at < 0 { at + rank as i128 } else { at };
            extent(at.clamp(0, rank as i128)).unwrap_or_default()
        }
    };
    let (start, end) = (bound("start", 0), bound("end", rank));
    start..end.max(start)
}

/// Returns the result of an ONNX op `Shape` or `Size`, as its extents and numbers, if its operand's type determines it: for
/// Shape, the requested extents must be known; for Size, all. None for any other op.
pub fn answer(op: &str, attrs: &dyn NodeAttrs, operand: &TensorType) -> Option<(Vec<usize>, Vec<i64>)> {
    let dims = operand.shape.as_ref()?;
    let as_ints = |dims: &[Dim]| {
        let known = dims.iter().map(|dim| i64::try_from(dim.known()?).ok());
        known.collect::<Option<Vec<i64>>>()
    };
    match op {
        "Shape" => {
            let ints = as_ints(&dims[asked_for(attrs, dims.len())])?;
            Some((vec![ints.len()], ints))
        }
        "Size" => {
            let n = n_elements(&operand.known_shape()?)?;
            Some((Vec::new(), vec![i64::try_from(n).ok()?]))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::infer::testing::{Attr, check};
    use crate::types::F32;

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
        let check =
            |op: &str, range: (Option<i64>, Option<i64>), dims: &[Dim], expected: Option<Vec<i64>>| {
                let attrs = [("start", range.0), ("end", range.1)];
                let attrs =
                    attrs.into_iter().filter_map(|(name, value)| Some((name.to_owned(), Attr::Int(value?))));
                let ty = TensorType { dtype: F32, shape: Some(dims.to_vec()) };
                let found = answer(op, &attrs.collect::<Vec<_>>(), &ty).map(|(_, ints)| ints);
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
