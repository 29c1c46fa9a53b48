//! Numbers of few bits, with a scale and a zero point.

use super::Operands;
use super::conv_pool::conv_shape;
use super::matrix::product_shape;
use crate::error::Result;
use crate::program::onnx_types::dtype_from_onnx;
use crate::tensor::{F32, TensorType, U8};

/// QuantizeLinear: the result has the zero point's type, without one that which the node names, else `u8`.
pub fn quantize(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    ops.required(1)?;
    let dtype = match (ops.optional(2), ops.node.int("output_dtype", 0)) {
        (Some(zero_point), _) => zero_point.dtype,
        (None, 0) => U8,
        (None, named) => dtype_from_onnx(named)?,
    };
    ops.result(dtype, x.shape.clone())
}

/// DequantizeLinear: the result has the type that the node names, else the scale's.
pub fn dequantize(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let (x, scale) = (ops.required(0)?, ops.required(1)?);
    ops.shared_dtype(&[0, 2])?;
    let dtype = match ops.node.int("output_dtype", 0) {
        0 => scale.dtype,
        named => dtype_from_onnx(named)?,
    };
    ops.result(dtype, x.shape.clone())
}

/// DynamicQuantizeLinear: bytes, their scale and their zero point.
pub fn dynamic_quantize(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    ops.results(vec![
        TensorType { dtype: U8, shape: x.shape.clone() },
        TensorType::new(F32, &[]),
        TensorType::new(U8, &[]),
    ])
}

/// QLinearMatMul: operands 0 and 3 with their scales and zero points, then the result's.
pub fn qlinear_matmul(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let dtype = ops.required(7)?.dtype;
    ops.result(dtype, product_shape(ops, 0, 3)?)
}

/// QLinearConv: as QLinearMatMul, with a bias at the end.
pub fn qlinear_conv(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let dtype = ops.required(7)?.dtype;
    ops.result(dtype, conv_shape(ops, 0, 3, Some(8))?)
}

#[cfg(test)]
mod tests {
    use crate::program::infer::testing::check;

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
