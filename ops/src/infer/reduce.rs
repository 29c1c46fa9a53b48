//! Reductions along axes.

use super::extent::{Shape, axes, axis, extent, unknown};
use super::{Node, invalid};
use crate::types::{Dim, I64, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers ReduceSum and its kin: the axes are the second operand; none mean all.
pub fn reduce(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let keep = node.flag("keepdims", true)?;
    let no_op = node.flag("noop_with_empty_axes", false)?;
    let n_axes = match node.optional(1) {
        Some(_) => node.n_ints(1)?,
        None => Some(0),
    };
    let shape = match (node.constant_ints(1)?, n_axes) {
        (_, Some(0)) if no_op => x.shape.clone(),
        (_, Some(0)) => reduce_all(x.shape.as_deref(), keep),
        (Some(list), _) => match &x.shape {
            Some(dims) => Some(reduce_at(dims, &axes(&list, dims.len())?, keep)),
            None => None,
        },
        (None, n_axes) => reduce_somewhere(x.shape.as_deref(), n_axes, keep)?,
    };
    node.result(x.dtype, shape)
}

fn reduce_all(dims: Option<&[Dim]>, keep: bool) -> Shape {
    match (dims, keep) {
        (_, false) => Some(Vec::new()),
        (Some(dims), true) => Some(vec![Dim::Known(1); dims.len()]),
        (None, true) => None,
    }
}

fn reduce_at(dims: &[Dim], axes: &[usize], keep: bool) -> Vec<Dim> {
    let mut shape = Vec::with_capacity(dims.len());
    for (i, dim) in dims.iter().enumerate() {
        match (axes.contains(&i), keep) {
            (false, _) => shape.push(dim.clone()),
            (true, true) => shape.push(Dim::Known(1)),
            (true, false) => {}
        }
    }
    shape
}

/// Infers a reduction whose axes, and perhaps their number, come at run time. Only extents of 1 stay known.
fn reduce_somewhere(dims: Option<&[Dim]>, n_axes: Option<usize>, keep: bool) -> Result<Shape> {
    let Some(dims) = dims else { return Ok(None) };
    if keep {
        let kept = |dim: &Dim| match dim {
            Dim::Known(1) => Dim::Known(1),
            _ => Dim::unknown(),
        };
        return Ok(Some(dims.iter().map(kept).collect()));
    }
    match n_axes {
        None => Ok(None),
        Some(n) if n <= dims.len() => Ok(Some(unknown(dims.len() - n))),
        Some(n) => Err(invalid(format!("expected at most {} axes, found {n}", dims.len()))),
    }
}

/// Infers ArgMax and ArgMin.
pub fn arg(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let keep = node.flag("keepdims", true)?;
    let shape = match &x.shape {
        Some(dims) => {
            let axis = axis(node.int("axis", 0), dims.len())?;
            Some(reduce_at(dims, &[axis], keep))
        }
        None => None,
    };
    node.result(I64, shape)
}

/// Infers TopK: values and their positions.
pub fn top_k(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    let k = node.constant_int(1)?.map(|k| extent(k.into())).transpose()?;
    let mut shape = x.shape.clone();
    if let Some(dims) = &mut shape {
        let axis = axis(node.int("axis", -1), dims.len())?;
        if let (Some(k), Some(n)) = (k, dims[axis].known())
            && k > n
        {
            return Err(invalid(format!("expected at most {n} as k, found {k}")));
        }
        dims[axis] = k.map_or_else(Dim::unknown, Dim::Known);
    }
    let positions = TensorType { dtype: I64, shape: shape.clone() };
    node.results(vec![TensorType { dtype: x.dtype, shape }, positions])
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn known_axes() {
        check("ReduceSum", "f32[2,3,4] i64[1]{1}", "f32[2,1,4]");
        check("ReduceSum keepdims=0", "f32[2,n,4] i64[2]{-1,0}", "f32[n]");
        check("ReduceMean", "f32[2,n]", "f32[1,1]");
        check("ReduceMean keepdims=0", "f32[..]", "f32[]");
        check("ReduceMean", "f32[..]", "f32[..]");
        check("ReduceMax noop_with_empty_axes=1", "f32[2,n]", "f32[2,n]");
        check("ReduceMax noop_with_empty_axes=1", "f32[2,n] i64[0]", "f32[2,n]");
        check("ReduceMax keepdims=0", "f32[2,n] i64[0]", "f32[]");
        check("ReduceMax", "f32[] i64[0]{}", "f32[]");
    }

    #[test]
    fn axes_that_come_later() {
        check("ReduceSum", "f32[2,1,n] i64[1]", "f32[?,1,?]");
        check("ReduceSum keepdims=0", "f32[2,1,n] i64[2]", "f32[?]");
        check("ReduceSum keepdims=0", "f32[2,1,n] i64[?]", "f32[..]");
        check("ReduceSum", "f32[..] i64[1]", "f32[..]");
    }

    #[test]
    fn wrong_axes() {
        let check_error = |op, operands, text| check(op, operands, text);
        check_error(
            "ReduceSum",
            "f32[2,3] i64[1]{2}",
            "error: expected an axis of 2 dimensions, found axis 2",
        );
        check_error(
            "ReduceSum",
            "f32[2,3] i64[2]{1,-1}",
            "error: expected each axis once, found [1, -1] of 2 dimensions",
        );
        check_error("ReduceSum keepdims=0", "f32[2] i64[3]", "error: expected at most 1 axes, found 3");
        check_error(
            "ReduceSum keepdims=2",
            "f32[2]",
            "error: expected 0 or 1 as attribute keepdims, found 2",
        );
        check_error("ReduceSum", "f32[2] f32[1]{0}", "error: expected integers as input 1, found f32[1]");
        check_error("ArgMax axis=-9223372036854775808", "f32[2]", "error: expected an axis of 1 dimensions");
    }

    #[test]
    fn positions() {
        check("ArgMax", "f32[2,n]", "i64[1,n]");
        check("ArgMin axis=-1 keepdims=0", "f32[2,n]", "i64[2]");
        check("TopK", "f32[2,5] i64[1]{3}", "f32[2,3] i64[2,3]");
        check("TopK axis=0", "f32[n,5] i64[1]", "f32[?,5] i64[?,5]");
        check("TopK #2", "f32[2,5] i64[1]{6}", "error: expected at most 5 as k, found 6");
    }
}
