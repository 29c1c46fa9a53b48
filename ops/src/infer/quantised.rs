//! Quantised numbers, with a scale and a zero point.

use super::conv_pool::conv_shape;
use super::extent::{agree_all, axis, show};
use super::matrix::product_shape;
use super::{Node, invalid};
use crate::onnx_types::dtype_from_onnx;
use crate::types::{Dim, F32, TensorType, U8};
use devbay_plugin_api::sdk::Result;

/// Infers QuantizeLinear: the result has the zero point's type, else the type that the node names, else `u8`.
pub fn quantize(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    check_scales(node)?;
    let dtype = match (node.optional(2), node.int("output_dtype", 0)) {
        (Some(zero_point), _) => zero_point.dtype,
        (None, 0) => U8,
        (None, named) => dtype_from_onnx(named)?,
    };
    node.result(dtype, x.shape.clone())
}

/// Checks that there is one scale, one per position of an axis, or one per block of positions, and as many zero points.
/// Exporters mix scalars and vectors of one, so both mean one scale for the whole tensor, for any length of the axis.
fn check_scales(node: &Node<'_>) -> Result<()> {
    let is_one = |shape: &[Dim]| matches!(shape, [] | [Dim::Known(1) | Dim::Unknown(_)]);
    let Some(scale) = node.shape(1) else { return Ok(()) };
    if let Some(zeros) = node.shape(2)
        && !(is_one(zeros) && is_one(scale))
        && !agree_all(zeros, scale)
    {
        let text =
            format!("expected zero points of {}, one for each scale, found {}", show(scale), show(zeros));
        return Err(invalid(text));
    }
    let block = node.int("block_size", 0);
    let block = usize::try_from(block)
        .map_err(|_| invalid(format!("expected blocks of 0 or more elements, found {block}")))?;
    let Some(x) = node.shape(0).filter(|_| block > 0 || !is_one(scale)) else { return Ok(()) };
    let axis = axis(node.int("axis", 1), x.len())?;
    let expected = match block {
        0 => vec![x[axis].clone()],
        _ => {
            let mut expected = x.to_vec();
            let blocks = x[axis].known().map(|n| n.div_ceil(block));
            expected[axis] = blocks.map_or_else(Dim::unknown, Dim::Known);
            expected
        }
    };
    if agree_all(scale, &expected) {
        return Ok(());
    }
    Err(invalid(format!(
        "expected one scale, or scales of {} along axis {axis} of {}, found {}",
        show(&expected),
        show(x),
        show(scale)
    )))
}

/// Infers DequantizeLinear: the result has the type that the node names, else the scale's.
pub fn dequantize(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (x, scale) = (node.required(0)?, node.required(1)?);
    node.shared_dtype(&[0, 2])?;
    check_scales(node)?;
    let dtype = match node.int("output_dtype", 0) {
        0 => scale.dtype,
        named => dtype_from_onnx(named)?,
    };
    node.result(dtype, x.shape.clone())
}

/// Infers DynamicQuantizeLinear: bytes, their scale and their zero point.
pub fn dynamic_quantize(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.results(vec![
        TensorType { dtype: U8, shape: x.shape.clone() },
        TensorType::new(F32, &[]),
        TensorType::new(U8, &[]),
    ])
}

/// Infers QLinearMatMul: operands 0 and 3 with their scales and zero points, then the result's.
pub fn qlinear_matmul(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.required(7)?.dtype;
    node.result(dtype, product_shape(node, 0, 3)?)
}

/// Infers QLinearConv: as QLinearMatMul, with a bias at the end.
pub fn qlinear_conv(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.required(7)?.dtype;
    node.result(dtype, conv_shape(node, 0, 3, Some(8))?)
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn scales_and_zero_points() {
        // One number, as a scalar or a vector.
        check("QuantizeLinear", "f32[2,3] f32[1] u8[]", "u8[2,3]");
        check("QuantizeLinear", "f32[2,3] f32[] u8[1]", "u8[2,3]");
        check("DequantizeLinear axis=7", "u8[2,3] f32[1] u8[1]", "f32[2,3]");
        check("DequantizeLinear", "u8[2,3] f32[n] u8[]", "f32[2,3]");
        check("DequantizeLinear", "u8[2,3] f32[3] u8[3]", "f32[2,3]");
        check("DequantizeLinear axis=0", "u8[2,3] f32[3]", "error: one scale, or scales of [2] along axis 0");
        check("DequantizeLinear", "u8[2,3] f32[3] u8[]", "error: zero points of [3]");
        check("DequantizeLinear", "u8[2,3] f32[3] u8[2]", "error: zero points of [3]");
        check("DequantizeLinear", "u8[2,3] f32[1,1]", "error: one scale");
        check("DequantizeLinear block_size=2", "u8[2,3] f32[2,2] u8[2,2]", "f32[2,3]");
        check("DequantizeLinear block_size=2", "u8[2,3] f32[2,3]", "error: scales of [2,2] along axis 1");
        check("DequantizeLinear block_size=-2", "u8[2,3] f32[2,3]", "error: blocks of 0 or more");
    }

    #[test]
    fn element_types() {
        check("QuantizeLinear", "f32[2,n] f32[]", "u8[2,n]");
        check("QuantizeLinear", "f32[2,n] f32[] i8[]", "i8[2,n]");
        check("QuantizeLinear output_dtype=22", "f32[2,n] f32[]", "i4[2,n]");
        check("QuantizeLinear output_dtype=99", "f32[2] f32[]", "error: expected ONNX's number");
        check("DequantizeLinear", "i8[2,n] f16[] i8[]", "f16[2,n]");
        check("DequantizeLinear output_dtype=16", "i8[2,n] f32[] i8[]", "bf16[2,n]");
        check("DequantizeLinear", "i8[2] f32[] u8[]", "error: one element type");
        check("DynamicQuantizeLinear", "f32[2,n]", "u8[2,n] f32[] u8[]");
        check("QLinearMatMul", "u8[2,3] f32[] u8[] i8[3,n] f32[] i8[] f32[] u8[]", "u8[2,n]");
        check("QLinearConv", "u8[1,2,5] f32[] u8[] i8[4,2,3] f32[] i8[] f32[] i8[] i32[4]", "i8[1,4,3]");
    }
}
