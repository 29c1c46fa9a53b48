//! Ops that read or write at positions given by an operand.

use super::extent::{Shape, agree, axis, extent, product, show, unknown};
use super::{Node, invalid};
use crate::types::{Dim, I64, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers Gather: the shape of the indices replaces an axis.
pub fn gather(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, indices) = (node.required(0)?, node.required(1)?);
    let shape = match (&x.shape, &indices.shape) {
        (Some(dims), Some(indices)) => {
            let axis = axis(node.int("axis", 0), dims.len())?;
            Some([&dims[..axis], indices, &dims[axis + 1..]].concat())
        }
        _ => None,
    };
    node.result(x.dtype, shape)
}

/// Infers GatherElements: one element per index.
pub fn gather_elements(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, indices) = (node.required(0)?, node.required(1)?);
    along_same_rank(node, 1)?;
    let shape = match (&indices.shape, &x.shape) {
        (None, Some(dims)) => Some(unknown(dims.len())),
        (shape, _) => shape.clone(),
    };
    node.result(x.dtype, shape)
}

/// Infers ScatterElements: the operand, with elements replaced.
pub fn scatter_elements(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.required(2)?;
    node.shared_dtype(&[0, 2])?;
    along_same_rank(node, 1)?;
    along_same_rank(node, 2)?;
    node.result(x.dtype, x.shape.clone())
}

/// Checks that an operand has the first one's rank, and that the axis is within it.
fn along_same_rank(node: &Node<'_>, i: usize) -> Result<()> {
    let Some(dims) = node.shape(0) else {
        return Ok(());
    };
    axis(node.int("axis", 0), dims.len())?;
    node.expect_rank(i, dims.len())
}

/// Infers GatherND: the last dimension of the indices is a position in the operand, after the batch.
pub fn gather_nd(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, indices) = (node.required(0)?, node.required(1)?);
    let batch = extent(node.int("batch_dims", 0).into())?;
    let (Some(dims), Some(indices)) = (&x.shape, &indices.shape) else {
        return node.result(x.dtype, None);
    };
    let Some((depth, outer)) = indices.split_last() else {
        return Err(invalid("expected indices, found a scalar as input 1"));
    };
    if batch > outer.len() || batch > dims.len() {
        return Err(invalid(format!(
            "expected batch_dims below the ranks of {} and {}, found {batch}",
            show(dims),
            show(indices)
        )));
    }
    let mut result = outer.to_vec();
    for i in 0..batch {
        result[i] = agree(&outer[i], &dims[i]).ok_or_else(|| {
            invalid(format!(
                "expected {batch} shared batch dimensions, found {} and {}",
                show(dims),
                show(indices)
            ))
        })?;
    }
    let Some(depth) = depth.known() else {
        return node.result(x.dtype, None);
    };
    let inner = depth.checked_add(batch).and_then(|from| dims.get(from..)).ok_or_else(|| {
        invalid(format!("expected positions in {}, found {depth} numbers for each", show(dims)))
    })?;
    result.extend_from_slice(inner);
    node.result(x.dtype, Some(result))
}

/// Infers ScatterND: the operand, with parts replaced.
pub fn scatter_nd(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, indices) = (node.required(0)?, node.required(1)?);
    node.required(2)?;
    node.shared_dtype(&[0, 2])?;
    if let (Some(dims), Some(indices)) = (&x.shape, &indices.shape) {
        let depth = indices.last().map(Dim::known);
        let Some(depth) = depth else {
            return Err(invalid("expected indices, found a scalar as input 1"));
        };
        if let Some(depth) = depth {
            if depth > dims.len() {
                return Err(invalid(format!(
                    "expected positions in {}, found {depth} numbers for each",
                    show(dims)
                )));
            }
            node.expect_rank(2, indices.len() - 1 + dims.len() - depth)?;
        }
    }
    node.result(x.dtype, x.shape.clone())
}

/// Infers Compress: the selected slices along the axis, or of all elements without an axis. Their number stays unknown even
/// for a constant condition: kernels write it themselves, into room for all elements (B21).
pub fn compress(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    node.expect_rank(1, 1)?;
    let chosen = Dim::unknown();
    let shape: Shape = match node.attr("axis") {
        None => Some(vec![chosen]),
        Some(_) => match &x.shape {
            None => None,
            Some(dims) => {
                let mut dims = dims.clone();
                let axis = axis(node.int("axis", 0), dims.len())?;
                dims[axis] = chosen;
                Some(dims)
            }
        },
    };
    node.result(x.dtype, shape)
}

/// Infers NonMaxSuppression: `[selected, 3]` of batch, class and box.
pub fn non_max_suppression(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.expect_rank(0, 3)?;
    node.expect_rank(1, 3)?;
    node.required(0)?;
    node.required(1)?;
    node.result(I64, Some(vec![Dim::unknown(), Dim::Known(3)]))
}

/// Infers Unique: the distinct elements or slices, the first position of each, the index of each input's, and the counts.
/// Their number stays unknown even for a constant, like that of NonZero.
pub fn unique(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let (shape, all) = match (node.attr("axis"), &x.shape) {
        (None, dims) => {
            let all = dims.as_ref().map(|dims| product(dims)).transpose()?;
            (Some(vec![Dim::unknown()]), all)
        }
        (Some(_), None) => (None, None),
        (Some(_), Some(dims)) => {
            let axis = axis(node.int("axis", 0), dims.len())?;
            let (mut dims, all) = (dims.clone(), dims[axis].clone());
            dims[axis] = Dim::unknown();
            (Some(dims), Some(all))
        }
    };
    let positions = |n: Dim| TensorType { dtype: I64, shape: Some(vec![n]) };
    node.results(vec![
        TensorType { dtype: x.dtype, shape },
        positions(Dim::unknown()),
        positions(all.unwrap_or_else(Dim::unknown)),
        positions(Dim::unknown()),
    ])
}

/// Infers TensorScatter: a cache that an update is written into.
pub fn tensor_scatter(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let cache = node.required(0)?;
    node.required(1)?;
    node.shared_dtype(&[0, 1])?;
    if let Some(dims) = &cache.shape {
        axis(node.int("axis", -2), dims.len())?;
        node.expect_rank(1, dims.len())?;
    }
    node.expect_rank(2, 1)?;
    node.result(cache.dtype, cache.shape.clone())
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn gathering() {
        check("Gather", "f32[5,n] i64[2,3]", "f32[2,3,n]");
        check("Gather axis=-1", "f32[5,n] i64[]", "f32[5]");
        check("Gather axis=1", "f32[5,n] i64[m]", "f32[5,m]");
        check("Gather", "f32[5,n] i64[..]", "f32[..]");
        check("Gather axis=2", "f32[5,n] i64[]", "error: found axis 2");
        check("Gather", "f32[] i64[1]", "error: found axis 0");
        check("GatherElements", "f32[5,4] i64[2,n]", "f32[2,n]");
        check("GatherElements", "f32[5,4] i64[..]", "f32[?,?]");
        check("GatherElements", "f32[5,4] i64[2]", "error: expected 2 dimensions as input 1, found [2]");
        check("GatherND", "f32[2,3,n] i64[4,2]", "f32[4,n]");
        check("GatherND", "f32[2,3,n] i64[4,3]", "f32[4]");
        check("GatherND batch_dims=1", "f32[2,3,n] i64[?,4,1]", "f32[2,4,n]");
        check("GatherND", "f32[2,3] i64[4,?]", "f32[..]");
        check("GatherND", "f32[2,3] i64[4,3]", "error: found 3 numbers");
        check("GatherND", "f32[2,3] i64[]", "error: found a scalar");
        check(
            "GatherND batch_dims=1",
            "f32[2,3] i64[3,1]",
            "error: expected 1 shared batch dimensions, found [2,3] and [3,1]",
        );
        check(
            "GatherND batch_dims=9223372036854775807",
            "f32[2,3] i64[3,1]",
            "error: expected batch_dims below the ranks",
        );
        check("GatherND batch_dims=-1", "f32[2] i64[1]", "error: negative");
    }

    #[test]
    fn scattering() {
        check("ScatterElements", "f32[5,n] i64[2,3] f32[2,3]", "f32[5,n]");
        check("ScatterElements axis=-3", "f32[5,n] i64[2,3] f32[2,3]", "error: found axis -3");
        check("ScatterND", "f32[5,n] i64[2,1] f32[2,n]", "f32[5,n]");
        check("ScatterND", "f32[5,n] i64[2,1] f32[2]", "error: expected 2 dimensions as input 2, found [2]");
        check(
            "ScatterND",
            "f32[5,n] i64[2,3] f32[2]",
            "error: expected positions in [5,n], found 3 numbers for each",
        );
        check("ScatterND", "f32[5] i64[1,1] i64[1]", "error: expected one element type");
    }

    #[test]
    fn selecting() {
        check("Compress axis=1", "f32[2,3] bool[3]{1,0,1}", "f32[2,?]");
        check("Compress", "f32[2,3] bool[]", "error: expected 1 dimensions as input 1, found []");
        check("Compress axis=-1", "f32[2,3] bool[3]", "f32[2,?]");
        check("Compress", "f32[2,3] bool[6]", "f32[?]");
        check("NonMaxSuppression", "f32[1,6,4] f32[1,1,6]", "i64[?,3]");
    }

    #[test]
    fn different_elements() {
        check("Unique", "f32[2,n]", "f32[?] i64[?] i64[?] i64[?]");
        check("Unique", "f32[2,3]{1,1,1,1,1,1}", "f32[?] i64[?] i64[6] i64[?]");
        check("Unique axis=-1", "f32[2,n]", "f32[2,?] i64[?] i64[n] i64[?]");
        check("Unique axis=2", "f32[2,n]", "error: found axis 2");
        check("TensorScatter", "f32[2,9,4] f32[2,1,4] i64[2]", "f32[2,9,4]");
        check("TensorScatter", "f32[2,9,4] f32[1,4]", "error: expected 3 dimensions as input 1");
    }
}
