//! Products of matrices.

use super::extent::{Shape, agree, agree_all, agree_shape, broadcast, broadcasts_to, show};
use super::{Node, invalid};
use crate::AttrRef;
use crate::types::{Dim, I32, TensorType};
use devbay_plugin_api::sdk::{Error, Result};

/// Infers MatMul.
pub fn matmul(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1])?;
    node.result(dtype, product_shape(node, 0, 1)?)
}

/// Infers MatMulInteger: products of bytes, summed in 32 bits.
pub fn matmul_integer(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.result(I32, product_shape(node, 0, 1)?)
}

/// Infers devbay's MatMulIntegerToFloat: products of bytes, scaled, with a bias of the last dimension, then an activation.
pub fn matmul_integer_to_float(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[2, 5])?;
    activation(node)?;
    let mut shape = product_shape(node, 0, 1)?;
    node.expect_rank(5, 1)?;
    if let (Some(last), Some([bias])) = (shape.iter_mut().flatten().last(), node.shape(5)) {
        *last = agree(last, bias)
            .ok_or_else(|| invalid(format!("expected a bias of {last} elements, found {bias}")))?;
    }
    node.result(dtype, shape)
}

/// Infers devbay's MatMulDequantized: numbers times a matrix that is quantised in blocks along its terms.
pub fn matmul_dequantized(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 2, 4])?;
    node.shared_dtype(&[1, 3])?;
    node.required(2)?;
    activation(node)?;
    let transposed = node.flag("transB", false)?;
    let (depth, columns) = matrix(node, 1, transposed)?;
    let block = node.int("block_size", 0);
    let block = usize::try_from(block)
        .map_err(|_| invalid(format!("expected blocks of 0 or more elements, found {block}")))?;
    let n_blocks = match (block, depth.known()) {
        (0, _) => Dim::Known(1),
        (_, Some(depth)) => Dim::Known(depth.div_ceil(block)),
        _ => Dim::unknown(),
    };
    let by_block = if transposed { [columns.clone(), n_blocks] } else { [n_blocks, columns.clone()] };
    let is_one = |shape: &[Dim]| shape.iter().all(|dim| dim.known() == Some(1));
    let scale = node.shape(2);
    if let Some(scale) = scale.filter(|scale| !is_one(scale) && !agree_all(scale, &by_block)) {
        let text = format!("expected one scale or scales of {}, found {}", show(&by_block), show(scale));
        return Err(invalid(text));
    }
    if let (Some(scale), Some(zeros)) = (scale, node.shape(3))
        && !agree_all(scale, zeros)
    {
        let text = format!("expected zero points of {}, found {}", show(scale), show(zeros));
        return Err(invalid(text));
    }
    node.expect_rank(4, 1)?;
    if let Some([bias]) = node.shape(4)
        && agree(&columns, bias).is_none()
    {
        return Err(invalid(format!("expected a bias of {columns} elements, found {bias}")));
    }
    let mut shape = match node.shape(0) {
        None => return node.result(dtype, None),
        Some([]) => return Err(scalar(0)),
        Some(shape) => shape.to_vec(),
    };
    if let Some(last) = shape.last_mut() {
        if agree(last, &depth).is_none() {
            return Err(differ(node, 0, 1));
        }
        *last = columns;
    }
    node.result(dtype, Some(shape))
}

/// Infers devbay's FusedMatMul: a bias of the last dimension, then an activation.
pub fn fused_matmul(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    activation(node)?;
    let mut shape = product_shape(node, 0, 1)?;
    node.expect_rank(2, 1)?;
    if let (Some(last), Some([bias])) = (shape.iter_mut().flatten().last(), node.shape(2)) {
        *last = agree(last, bias)
            .ok_or_else(|| invalid(format!("expected a bias of {last} elements, found {bias}")))?;
    }
    node.result(dtype, shape)
}

/// Infers Gemm.
pub fn gemm(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    let (rows, depth) = matrix(node, 0, node.flag("transA", false)?)?;
    let (depth_b, columns) = matrix(node, 1, node.flag("transB", false)?)?;
    if agree(&depth, &depth_b).is_none() {
        return Err(differ(node, 0, 1));
    }
    let shape = [rows, columns];
    broadcasts_to("an addend", node.shape(2), Some(&shape))?;
    node.result(dtype, Some(shape.to_vec()))
}

/// Infers devbay's FusedGemm: Gemm, then an activation.
pub fn fused_gemm(node: &Node<'_>) -> Result<Vec<TensorType>> {
    activation(node)?;
    gemm(node)
}

/// Returns rows and columns of a matrix, swapped if it is transposed.
fn matrix(node: &Node<'_>, i: usize, transposed: bool) -> Result<(Dim, Dim)> {
    node.required(i)?;
    node.expect_rank(i, 2)?;
    Ok(match (node.shape(i), transposed) {
        (Some([rows, columns]), false) | (Some([columns, rows]), true) => (rows.clone(), columns.clone()),
        _ => (Dim::unknown(), Dim::unknown()),
    })
}

/// Returns the shape of NumPy's matmul of two operands.
pub(super) fn product_shape(node: &Node<'_>, a: usize, b: usize) -> Result<Shape> {
    node.required(a)?;
    node.required(b)?;
    let (Some(left), Some(right)) = (node.shape(a), node.shape(b)) else {
        return Ok(None);
    };
    // A vector is a row on the left and a column on the right; the result drops its other dimension.
    let (batch_a, rows, depth_a) = match left {
        [] => return Err(scalar(a)),
        [depth] => (&[][..], None, depth),
        [batch @ .., rows, depth] => (batch, Some(rows), depth),
    };
    let (batch_b, depth_b, columns) = match right {
        [] => return Err(scalar(b)),
        [depth] => (&[][..], depth, None),
        [batch @ .., depth, columns] => (batch, depth, Some(columns)),
    };
    if agree(depth_a, depth_b).is_none() {
        return Err(differ(node, a, b));
    }
    let mut shape = broadcast(&[Some(batch_a), Some(batch_b)])?.unwrap_or_default();
    shape.extend(rows.into_iter().chain(columns).cloned());
    Ok(Some(shape))
}

fn scalar(i: usize) -> Error {
    invalid(format!("expected a matrix or vector as input {i}, found a scalar"))
}

fn differ(node: &Node<'_>, a: usize, b: usize) -> Error {
    let text = |i| node.shape(i).map_or_else(|| "[..]".to_owned(), show);
    invalid(format!("expected matrices with a shared dimension, found {} and {}", text(a), text(b)))
}

/// Activations that devbay's own ops may apply to their result.
const ACTIVATIONS: [&str; 9] =
    ["", "Relu", "LeakyRelu", "Clip", "HardSigmoid", "HardSwish", "Sigmoid", "Tanh", "Silu"];

/// Checks the attribute `activation` of devbay's fused ops.
pub(super) fn activation(node: &Node<'_>) -> Result<()> {
    let name = match node.attr("activation") {
        None => "",
        Some(AttrRef::String(name)) => name,
        Some(_) => return Err(invalid("expected a text as attribute activation, found another kind")),
    };
    if ACTIVATIONS.contains(&name) {
        return Ok(());
    }
    Err(invalid(format!("expected an activation of {}, found {name}", ACTIVATIONS[1..].join(", "))))
}

/// Combines the equal shapes of a result and its addend; either may determine extents that the other lacks.
pub(super) fn added(node: &Node<'_>, i: usize, shape: Shape) -> Result<Shape> {
    let addend = node.optional(i).and_then(|ty| ty.shape.clone());
    agree_shape("an addend", shape, addend)
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn products() {
        check("MatMul", "f32[2,3] f32[3,4]", "f32[2,4]");
        check("MatMul", "f32[n,2,3] f32[3,m]", "f32[n,2,m]");
        check("MatMul", "f32[5,1,2,3] f32[7,3,4]", "f32[5,7,2,4]");
        check("MatMul", "f32[3] f32[3]", "f32[]");
        check("MatMul", "f32[3] f32[n,3,4]", "f32[n,4]");
        check("MatMul", "f32[n,2,3] f32[3]", "f32[n,2]");
        check("MatMul", "f32[2,?] f32[3,4]", "f32[2,4]");
        check("MatMul", "f32[..] f32[3,4]", "f32[..]");
        check("MatMulInteger", "u8[2,3] i8[3,4]", "i32[2,4]");
        check(
            "MatMul",
            "f32[2,3] f32[2,3]",
            "error: expected matrices with a shared dimension, found [2,3] and [2,3]",
        );
        check("MatMul", "f32[] f32[2]", "error: as input 0, found a scalar");
        check("MatMul", "f32[2] f64[2]", "error: one element type");
        check("MatMul", "f32[2,1,1] f32[3,1,1]", "error: broadcast");
    }

    #[test]
    fn with_an_addend() {
        check("Gemm", "f32[2,3] f32[3,4]", "f32[2,4]");
        check("Gemm transA=1 transB=1", "f32[3,n] f32[4,3] f32[4]", "f32[n,4]");
        check("Gemm", "f32[..] f32[3,4] f32[..]", "f32[?,4]");
        check("Gemm", "f32[2,3] f32[3,4] f32[3]", "error: an addend");
        check("Gemm", "f32[2,3] f32[4,4]", "error: a shared dimension");
        check("Gemm", "f32[2,3] f32[3]", "error: expected 2 dimensions");
        check("Gemm transA=2", "f32[2,3] f32[3,4]", "error: 0 or 1");
    }

    #[test]
    fn fused() {
        check("FusedGemm activation=Relu", "f32[2,3] f32[3,4]", "f32[2,4]");
        check("FusedMatMul activation=Silu", "f32[n,2,3] f32[3,?] f32[4]", "f32[n,2,4]");
        check("FusedMatMul", "f32[2,3] f32[3,4]", "f32[2,4]");
        check("FusedMatMul", "f32[2,3] f32[3,4] f32[5]", "error: expected a bias of 4 elements, found 5");
        check(
            "FusedGemm activation=Softmax",
            "f32[2,3] f32[3,4]",
            "error: expected an activation of Relu, LeakyRelu",
        );
    }

    #[test]
    fn of_quantised_weights() {
        check("MatMulDequantized block_size=2", "f32[n,3] i8[3,4] f32[2,4] i8[2,4] f32[4]", "f32[n,4]");
        check("MatMulDequantized transB=1", "f32[5,n,3] u4[4,3] f32[4,1]", "f32[5,n,4]");
        check("MatMulDequantized", "f32[3] u8[3,4] f32[] u8[]", "f32[4]");
        check(
            "MatMulDequantized",
            "f32[2,3] u8[3,4] f32[4]",
            "error: one scale or scales of [1,4], found [4]",
        );
        check("MatMulDequantized", "f32[2,3] u8[3,4] f32[1,4] u8[4]", "error: zero points of [1,4]");
        check("MatMulDequantized", "f32[2,3] u8[4,4] f32[]", "error: a shared dimension");
        check("MatMulDequantized block_size=-1", "f32[2,3] u8[3,4] f32[]", "error: blocks of 0 or more");
        check("MatMulDequantized", "f32[2,3] u8[3,4] f32[] - f32[5]", "error: a bias of 4 elements, found 5");
    }
}
