//! Converts ONNX's tensors and types to devbay's.
//!
//! Every size that a tensor claims is compared with the bytes present before memory is allocated.

use super::super::file::Shared;
use super::external::External;
use super::proto::tensor_proto::{DataLocation, DataType};
use super::proto::tensor_shape_proto::dimension::Value as Extent;
use super::proto::type_proto::Value as Kind;
use super::proto::{TensorProto, TypeProto};
use bytemuck::NoUninit;
use bytes::Bytes;
use devbay_core::program::onnx_types::dtype_from_onnx;
use devbay_core::tensor::{
    self, BOOL, DType, Dim, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F32, F64, I8, I16, I32, I64,
    Tensor, TensorType, U8, U32, U64, bytes_of, n_elements,
};
use devbay_core::{Error, ErrorKind, Result};
use devbay_plugin_api::reserve;
use std::sync::Arc;

/// Maximum rank of a type, far above the ranks of real models. A type is copied for each value.
pub(super) const RANK_MAX: usize = 64;

/// Returns the element type for ONNX's number. Complex numbers have no type in programs.
pub(super) fn dtype(number: i32) -> Result<DType> {
    let dtype = dtype_from_onnx(i64::from(number))?;
    if tensor::dtype_from_name(&tensor::dtype_name(dtype)) != Some(dtype) {
        let name = DataType::try_from(number).map_or("another", |data_type| data_type.as_str_name());
        let text = format!("expected an element type that programs have, found {name}");
        return Err(Error::new(ErrorKind::UnsupportedModel, text));
    }
    Ok(dtype)
}

/// Returns a value's type; None if the model declares none.
pub(super) fn value_type(proto: &TypeProto) -> Result<Option<TensorType>> {
    let kind = match &proto.value {
        None => return Ok(None),
        Some(Kind::TensorType(tensor)) => {
            if tensor.elem_type() == DataType::Undefined as i32 {
                return Ok(None);
            }
            check_rank(tensor.shape.as_ref().map_or(0, |shape| shape.dim.len()))?;
            let dims =
                tensor.shape.as_ref().map(|shape| shape.dim.iter().map(|dim| extent(dim.value.as_ref())));
            let shape = dims.map(Iterator::collect::<Result<Vec<Dim>>>).transpose()?;
            return Ok(Some(TensorType { dtype: dtype(tensor.elem_type())?, shape }));
        }
        Some(Kind::SequenceType(_)) => "a sequence",
        Some(Kind::MapType(_)) => "a map",
        Some(Kind::OptionalType(_)) => "an optional",
        Some(Kind::SparseTensorType(_)) => "a sparse tensor",
        Some(Kind::OpaqueType(_)) => "an opaque value",
    };
    Err(Error::new(ErrorKind::UnsupportedModel, format!("expected a tensor, found {kind}")))
}

fn extent(value: Option<&Extent>) -> Result<Dim> {
    match value {
        None => Ok(Dim::unknown()),
        Some(Extent::DimParam(name)) => Ok(Dim::Unknown(Arc::from(&**name))),
        // Not valid ONNX, but common for an unknown extent.
        Some(Extent::DimValue(-1)) => Ok(Dim::unknown()),
        Some(Extent::DimValue(n)) => {
            let known = usize::try_from(*n).map_err(|_| invalid(format!("expected an extent, found {n}")))?;
            Ok(Dim::Known(known))
        }
    }
}

/// Purpose of memory for content that is not shared.
const CONTENT: &str = "a tensor's content";

/// Decodes a tensor.
pub(super) fn tensor<'m>(proto: &'m TensorProto, external: &mut External<'m>) -> Result<Tensor> {
    if proto.segment.is_some() {
        return Err(Error::new(ErrorKind::UnsupportedModel, "tensors in segments are not supported"));
    }
    let dtype = dtype(proto.data_type())?;
    let shape = shape(&proto.dims)?;
    let n = n_elements(&shape).ok_or_else(|| too_large(&proto.dims))?;
    let size = bytes_of(dtype, n).ok_or_else(|| too_large(&proto.dims))?;
    if proto.data_location() == DataLocation::External {
        check_stored(proto, dtype, None, n)?;
        let bytes = external.bytes(&proto.external_data)?;
        check_size(dtype, &shape, size, bytes.len())?;
        let element = usize::from(dtype.bits).div_ceil(8).max(1);
        if !(bytes.as_ptr() as usize).is_multiple_of(element) {
            external.charge_copy(size)?;
        }
        return share(dtype, &shape, bytes);
    }
    if let Some(raw) = &proto.raw_data {
        check_stored(proto, dtype, None, n)?;
        check_size(dtype, &shape, size, raw.len())?;
        return share(dtype, &shape, raw.clone());
    }
    let bytes = stored(proto, dtype, n)?;
    Tensor::from_bytes(dtype, &shape, &bytes)
}

/// Returns a tensor that shares `bytes`. Kernels rely on bools of 0 and 1, so a bool tensor with other bytes is copied, with
/// each of them as 1, as NumPy reads it.
fn share(dtype: DType, shape: &[usize], bytes: Bytes) -> Result<Tensor> {
    if dtype == BOOL && bytes.iter().any(|&byte| byte > 1) {
        let bools: Vec<u8> = reserve::collected(bytes.iter().map(|&byte| u8::from(byte != 0)), CONTENT)?;
        return Tensor::from_bytes(dtype, shape, &bools);
    }
    let size = bytes.len();
    Tensor::from_storage(dtype, shape, Arc::new(Shared::new(bytes)), 0, size)
}

fn check_rank(found: usize) -> Result<()> {
    if found <= RANK_MAX {
        return Ok(());
    }
    let text = format!("expected at most {RANK_MAX} extents, found {found}");
    Err(Error::new(ErrorKind::UnsupportedModel, text))
}

fn shape(dims: &[i64]) -> Result<Vec<usize>> {
    check_rank(dims.len())?;
    let known: std::result::Result<Vec<usize>, _> = dims.iter().map(|&dim| usize::try_from(dim)).collect();
    let shape = known.map_err(|_| invalid(format!("expected extents, found {dims:?}")))?;
    // Strides are products of the other extents, so these count even if one extent is 0.
    let others = shape.iter().filter(|&&extent| extent > 0);
    let product = others.copied().try_fold(1isize, |n, extent| n.checked_mul(isize::try_from(extent).ok()?));
    product.map(|_| shape).ok_or_else(|| too_large(dims))
}

fn check_size(dtype: DType, shape: &[usize], expected: usize, found: usize) -> Result<()> {
    if expected == found {
        return Ok(());
    }
    let ty = TensorType::new(dtype, shape);
    Err(invalid(format!("expected {expected} bytes for a tensor {ty}, found {found}")))
}

/// Returns the schema's name of the typed field that holds elements of a type.
fn field(dtype: DType) -> &'static str {
    match dtype {
        F32 => "float_data",
        F64 => "double_data",
        I64 => "int64_data",
        U32 | U64 => "uint64_data",
        _ => "int32_data",
    }
}

/// Checks that only the field `expected` holds elements, and that it holds `n`.
fn check_stored(proto: &TensorProto, dtype: DType, expected: Option<&str>, n: usize) -> Result<()> {
    let fields = [
        ("float_data", proto.float_data.len()),
        ("double_data", proto.double_data.len()),
        ("int64_data", proto.int64_data.len()),
        ("uint64_data", proto.uint64_data.len()),
        ("int32_data", proto.int32_data.len()),
        ("string_data", proto.string_data.len()),
    ];
    for (field, found) in fields {
        let expected = if Some(field) == expected { n } else { 0 };
        if found != expected {
            let dtype = tensor::dtype_name(dtype);
            return Err(invalid(format!(
                "expected {expected} elements in {field} of a tensor of {n} {dtype}, found {found}"
            )));
        }
    }
    Ok(())
}

/// Returns the content of a tensor stored in the typed field of its type.
fn stored(proto: &TensorProto, dtype: DType, n: usize) -> Result<Vec<u8>> {
    if dtype.bits < 8 {
        // Elements of fewer than 8 bits share a byte as in memory; each stored integer holds one byte.
        let size = bytes_of(dtype, n).ok_or_else(|| too_large(&proto.dims))?;
        check_stored(proto, dtype, Some("int32_data"), size)?;
        return narrowed(&proto.int32_data, dtype, |&x| u8::try_from(x).ok());
    }
    check_stored(proto, dtype, Some(field(dtype)), n)?;
    match dtype {
        F32 => copied(&proto.float_data),
        F64 => copied(&proto.double_data),
        I64 => copied(&proto.int64_data),
        U64 => copied(&proto.uint64_data),
        U32 => narrowed(&proto.uint64_data, dtype, |&x| u32::try_from(x).ok()),
        I32 => copied(&proto.int32_data),
        I16 => narrowed(&proto.int32_data, dtype, |&x| i16::try_from(x).ok()),
        I8 => narrowed(&proto.int32_data, dtype, |&x| i8::try_from(x).ok()),
        // The bits of floats are stored as unsigned integers.
        U8 | F8E4M3FN | F8E4M3FNUZ | F8E5M2 | F8E5M2FNUZ | F8E8M0 => {
            narrowed(&proto.int32_data, dtype, |&x| u8::try_from(x).ok())
        }
        BOOL => narrowed(&proto.int32_data, dtype, |&x| Some(u8::from(x != 0))),
        // Half-precision floats are stored the same way.
        _ => narrowed(&proto.int32_data, dtype, |&x| u16::try_from(x).ok()),
    }
}

/// The content of a field whose elements are those of the tensor.
fn copied<T: NoUninit>(values: &[T]) -> Result<Vec<u8>> {
    Ok(reserve::copied(bytemuck::cast_slice(values), CONTENT)?)
}

fn narrowed<T: std::fmt::Display, N: NoUninit>(
    values: &[T],
    dtype: DType,
    narrow: impl Fn(&T) -> Option<N>,
) -> Result<Vec<u8>> {
    let mut bytes = reserve::with_capacity(values.len().saturating_mul(size_of::<N>()), CONTENT)?;
    for value in values {
        let narrowed = narrow(value).ok_or_else(|| {
            invalid(format!("expected elements of type {}, found {value}", tensor::dtype_name(dtype)))
        })?;
        bytes.extend_from_slice(bytemuck::bytes_of(&narrowed));
    }
    Ok(bytes)
}

fn too_large(dims: &[i64]) -> Error {
    invalid(format!("expected a tensor that fits in memory, found extents {dims:?}"))
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}
