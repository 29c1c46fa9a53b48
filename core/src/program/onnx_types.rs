//! ONNX's numbers for element types ([`devbay_ops::onnx_types`]), with errors of models.

use super::of_model;
use crate::error::Result;
use crate::tensor::DType;
use devbay_ops::onnx_types;

/// Returns the element type of ONNX's number.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`](crate::error::ErrorKind::UnsupportedModel) for strings and the floats of 6 bits, which
/// devbay does not have; [`ErrorKind::InvalidModel`](crate::error::ErrorKind::InvalidModel) for an unknown number.
pub fn dtype_from_onnx(number: i64) -> Result<DType> {
    onnx_types::dtype_from_onnx(number).map_err(of_model)
}

/// ONNX's number of an element type.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`](crate::error::ErrorKind::UnsupportedModel) if ONNX has no such type.
pub fn dtype_to_onnx(dtype: DType) -> Result<i64> {
    onnx_types::dtype_to_onnx(dtype).map_err(of_model)
}
