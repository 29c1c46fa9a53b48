//! Numbers of few bits, with a scale and a zero point.

use super::Operands;
use super::conv_pool::conv_shape;
use super::matrix::product_shape;
use crate::error::Result;
use crate::tensor::{F32, TensorType, U8};

/// QuantizeLinear: the result has the zero point's type, `u8` if there is none.
pub fn quantize(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    ops.required(1)?;
    let dtype = ops.optional(2).map_or(U8, |zero_point| zero_point.dtype);
    ops.result(dtype, x.shape.clone())
}

/// DequantizeLinear: the result has the scale's type.
pub fn dequantize(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let (x, scale) = (ops.required(0)?, ops.required(1)?);
    ops.shared_dtype(&[0, 2])?;
    ops.result(scale.dtype, x.shape.clone())
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
        check("DequantizeLinear", "i8[2,n] f16[] i8[]", "f16[2,n]");
        check("DequantizeLinear", "i8[2] f32[] u8[]", "error: one element type");
        check("DynamicQuantizeLinear", "f32[2,n]", "u8[2,n] f32[] u8[]");
        check("QLinearMatMul", "u8[2,3] f32[] u8[] i8[3,n] f32[] i8[] f32[] u8[]", "u8[2,n]");
        check("QLinearConv", "u8[1,2,5] f32[] u8[] i8[4,2,3] f32[] i8[] f32[] i8[] i32[4]", "i8[1,4,3]");
    }
}
