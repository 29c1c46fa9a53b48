//! Ops whose result's shape is given by an operand's content.

use super::extent::{extent, unknown_of};
use super::movement::known_dims;
use super::{Node, invalid};
use crate::onnx_types::dtype_from_onnx;
use crate::types::{BF16, Dim, F16, F32, F64, I64, TensorType, U32, dtype_name};
use crate::{AttrRef, Constant};
use devbay_plugin_api::sdk::Result;

/// Infers ConstantOfShape.
pub fn constant_of_shape(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(0)?;
    let dtype = match node.attr("value") {
        Some(AttrRef::Tensor(dtype)) => dtype,
        _ => F32,
    };
    let shape = match node.constant_ints(0)? {
        Some(shape) => Some(known_dims(&shape)?),
        None => node.n_ints(0)?.map(unknown_of).transpose()?,
    };
    node.result(dtype, shape)
}

/// Infers devbay's Philox: random numbers of a shape.
pub fn philox(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let seed = node.required(0)?;
    if !seed.takes(U32, &[4]) {
        return Err(invalid(format!("expected a seed of type u32[4], found {seed}")));
    }
    let dtype = dtype_from_onnx(node.int("dtype", 1))?;
    if ![F32, F64, U32].contains(&dtype) {
        return Err(invalid(format!("expected f32, f64 or u32 as dtype, found {}", dtype_name(dtype))));
    }
    node.required(1)?;
    let shape = match node.constant_ints(1)? {
        Some(shape) => Some(known_dims(&shape)?),
        None => node.n_ints(1)?.map(unknown_of).transpose()?,
    };
    node.result(dtype, shape)
}

/// Infers EyeLike: a matrix of the operand's shape.
pub fn eye_like(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.expect_rank(0, 2)?;
    let dtype = match node.attr("dtype") {
        Some(_) => dtype_from_onnx(node.int("dtype", 0))?,
        None => x.dtype,
    };
    let shape = x.shape.clone().unwrap_or_else(|| super::extent::unknown(2));
    node.result(dtype, Some(shape))
}

/// Infers NonZero: a position per nonzero element. Their number stays unknown even for a constant: kernels write it
/// themselves, into room for all elements (B21).
pub fn non_zero(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let rank = node.required(0)?.rank().map_or_else(Dim::unknown, Dim::Known);
    node.result(I64, Some(vec![rank, Dim::unknown()]))
}

/// Infers HannWindow, HammingWindow, BlackmanWindow.
pub fn window(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(0)?;
    let dtype = dtype_from_onnx(node.int("output_datatype", 1))?;
    let size = match node.constant_int(0)? {
        Some(size) => Dim::Known(extent(size.into())?),
        None => Dim::unknown(),
    };
    node.result(dtype, Some(vec![size]))
}

/// Infers OneHot: one more dimension, whose depth is the second operand.
pub fn one_hot(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let (indices, values) = (node.required(0)?, node.required(2)?);
    node.required(1)?;
    let depth = match node.constant(1) {
        Some(depth) => Dim::Known(extent(whole_number(depth)?)?),
        None => Dim::unknown(),
    };
    let shape = match &indices.shape {
        Some(dims) => {
            let mut dims = dims.clone();
            let at = super::extent::axis(node.int("axis", -1), dims.len() + 1)?;
            dims.insert(at, depth);
            Some(dims)
        }
        None => None,
    };
    node.result(values.dtype, shape)
}

/// Returns one number of any type, truncated to an integer.
fn whole_number(constant: Constant<'_>) -> Result<i128> {
    if let Some(value) = constant.to_int() {
        return Ok(value.into());
    }
    match floats(constant).as_deref() {
        // A cast saturates, and turns NaN into 0.
        Some([value]) => Ok(*value as i128),
        _ => Err(invalid(format!("expected one number, found {}", constant.tensor_type()))),
    }
}

/// Infers Range: from start to limit in steps of delta.
pub fn range(node: &Node<'_>) -> Result<Vec<TensorType>> {
    for i in 0..3 {
        node.required(i)?;
    }
    let dtype = node.shared_dtype(&[0, 1, 2])?;
    let length = match (node.constant(0), node.constant(1), node.constant(2)) {
        (Some(start), Some(limit), Some(delta)) => Dim::Known(length(start, limit, delta)?),
        _ => Dim::unknown(),
    };
    node.result(dtype, Some(vec![length]))
}

fn length(start: Constant<'_>, limit: Constant<'_>, delta: Constant<'_>) -> Result<usize> {
    let wrong = |found: String| Err(invalid(format!("expected a range, found {found}")));
    if let (Some(start), Some(limit), Some(delta)) = (start.to_int(), limit.to_int(), delta.to_int()) {
        let (start, limit, delta) = (i128::from(start), i128::from(limit), i128::from(delta));
        if delta == 0 {
            return wrong(format!("{start} to {limit} in steps of 0"));
        }
        let distance = (limit - start) * delta.signum();
        return extent((distance.max(0) + delta.abs() - 1) / delta.abs());
    }
    let single = start.dtype != F64;
    let [start, limit, delta] = [start, limit, delta].map(floats);
    let (Some([start]), Some([limit]), Some([delta])) =
        (start.as_deref(), limit.as_deref(), delta.as_deref())
    else {
        return wrong("operands that are no single numbers".to_owned());
    };
    // As in onnxruntime: the difference in f32, or f64 for f64 operands, and the quotient in f64.
    let distance = match single {
        true => f64::from(*limit as f32 - *start as f32),
        false => limit - start,
    };
    let n = (distance / delta).ceil();
    if !n.is_finite() {
        return wrong(format!("{start} to {limit} in steps of {delta}"));
    }
    extent((n as i128).max(0))
}

/// Returns the content of a floating-point tensor.
fn floats(constant: Constant<'_>) -> Option<Vec<f64>> {
    fn each<const N: usize>(bytes: &[u8], number: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    }
    let bytes = constant.bytes;
    Some(match constant.dtype {
        F64 => each(bytes, f64::from_le_bytes),
        F32 => each(bytes, |bytes| f32::from_le_bytes(bytes).into()),
        BF16 => each(bytes, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16).into()),
        F16 => each(bytes, |bytes| f16_to_f64(u16::from_le_bytes(bytes))),
        _ => return None,
    })
}

/// Converts IEEE 754 binary16: 1 bit of sign, 5 of exponent, 10 of fraction.
fn f16_to_f64(bits: u16) -> f64 {
    let sign = if bits >> 15 == 0 { 1.0 } else { -1.0 };
    let exponent = i32::from(bits >> 10 & 0x1f);
    let fraction = f64::from(bits & 0x3ff) / 1024.0;
    sign * match exponent {
        0 => fraction * f64::powi(2.0, -14),
        0x1f if fraction == 0.0 => f64::INFINITY,
        0x1f => f64::NAN,
        exponent => (1.0 + fraction) * f64::powi(2.0, exponent - 15),
    }
}

/// Infers MelWeightMatrix: the frequencies of half a spectrum by bands.
pub fn mel_weight_matrix(node: &Node<'_>) -> Result<Vec<TensorType>> {
    for i in 0..5 {
        node.required(i)?;
    }
    let dtype = dtype_from_onnx(node.int("output_datatype", 1))?;
    let count = |i: usize| node.constant_int(i)?.map(|n| extent(n.into())).transpose();
    let rows = count(1)?.map_or_else(Dim::unknown, |n| Dim::Known(n / 2 + 1));
    let cols = count(0)?.map_or_else(Dim::unknown, Dim::Known);
    node.result(dtype, Some(vec![rows, cols]))
}

/// Infers TfIdfVectorizer: per row, the counts of the pool's sequences, at the positions of an attribute.
pub fn tf_idf_vectorizer(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let largest = node.ints("ngram_indexes").and_then(|list| list.iter().max().copied());
    let Some(largest) = largest else {
        return Err(invalid("expected the attribute ngram_indexes, found none"));
    };
    let n = Dim::Known(extent(i128::from(largest) + 1)?);
    let shape = match x.shape.as_deref() {
        None => None,
        Some([] | [_]) => Some(vec![n]),
        Some([batch, _]) => Some(vec![batch.clone(), n]),
        Some(found) => {
            return Err(invalid(format!(
                "expected at most 2 dimensions as input 0, found {}",
                super::extent::show(found)
            )));
        }
    };
    node.result(F32, shape)
}

#[cfg(test)]
mod tests {
    use super::f16_to_f64;
    use crate::infer::testing::check;

    #[test]
    fn shapes_from_content() {
        check("ConstantOfShape", "i64[2]{2,0}", "f32[2,0]");
        check("ConstantOfShape value=i64[1]{7}", "i64[0]{}", "i64[]");
        check("ConstantOfShape", "i64[2]", "f32[?,?]");
        check("ConstantOfShape", "i64[?]", "f32[..]");
        check("ConstantOfShape", "i64[1]{-1}", "error: negative");
        check("ConstantOfShape", "i64[3]{1099511627776,1099511627776,0}", "error: larger than memory");
        check("ConstantOfShape", "i64[99]", "error: at most 64 dimensions");
        check("EyeLike dtype=7", "f32[2,n]", "i64[2,n]");
        check("EyeLike", "f32[..]", "f32[?,?]");
        check("NonZero", "f32[2,n]", "i64[2,?]");
        check("NonZero", "bool[..]", "i64[?,?]");
        check("NonZero", "bool[2,2]{1,0,1,1}", "i64[2,?]");
        check("HannWindow", "i64[]{10}", "f32[10]");
        check("HannWindow output_datatype=11", "i64[]", "f64[?]");
    }

    #[test]
    fn random_numbers() {
        check("Philox stream=3", "u32[4] i64[2]{2,0}", "f32[2,0]");
        check("Philox stream=3 dtype=11", "u32[4] i64[2]", "f64[?,?]");
        check("Philox stream=3 dtype=12", "u32[?] i64[?]", "u32[..]");
        check(
            "Philox stream=3 dtype=7",
            "u32[4] i64[1]{1}",
            "error: expected f32, f64 or u32 as dtype, found i64",
        );
        check("Philox stream=3", "u32[2] i64[1]{1}", "error: expected a seed of type u32[4], found u32[2]");
        check("Philox stream=3", "u64[4] i64[1]{1}", "error: expected a seed of type u32[4]");
        check("Philox stream=3", "u32[4] i64[1]{-1}", "error: negative");
    }

    #[test]
    fn one_more_dimension() {
        check("OneHot", "i64[2,n] i64[]{5} f32[2]", "f32[2,n,5]");
        check("OneHot axis=0", "i64[2,n] f32[1]{5.7} i32[2]", "i32[5,2,n]");
        check("OneHot axis=-3", "i64[2,n] i64[] i32[2]", "i32[?,2,n]");
        check("OneHot axis=3", "i64[2,n] i64[] i32[2]", "error: axis 3");
        check("OneHot", "i64[2] i64[]{-5} f32[2]", "error: negative");
        check("OneHot", "i64[2] f32[]{1e30} f32[2]", "error: too large");
    }

    #[test]
    fn ranges() {
        check("Range", "i64[]{2} i64[]{9} i64[]{3}", "i64[3]");
        check("Range", "i32[]{9} i32[]{2} i32[]{-3}", "i32[3]");
        check("Range", "i64[]{9} i64[]{2} i64[]{3}", "i64[0]");
        check("Range", "f32[]{0} f32[]{1} f32[]{0.3}", "f32[4]");
        check("Range", "bf16[]{0} bf16[]{16256} bf16[]{16000}", "bf16[4]");
        check("Range", "f16[]{0} f16[]{15360} f16[]{14336}", "f16[2]");
        check("Range", "i64[] i64[]{9} i64[]{3}", "i64[?]");
        check("Range", "i64[]{0} i64[]{9} i64[]{0}", "error: expected a range, found 0 to 9 in steps of 0");
        check("Range", "f32[]{0} f32[]{1} f32[]{0}", "error: steps of 0");
        check("Range", "f32[]{0} f32[]{NaN} f32[]{1}", "error: 0 to NaN");
        check(
            "Range",
            "i64[]{-9223372036854775808} i64[]{9223372036854775807} i64[]{1}",
            "error: larger than memory",
        );
        check("Range", "i64[2]{0,0} i64[]{1} i64[]{1}", "error: operands that are no single numbers");
    }

    #[test]
    fn half_precision() {
        let check = |bits, expected: f64| assert_eq!(f16_to_f64(bits), expected, "{bits:#x}");
        check(0x0000, 0.0);
        check(0x0001, f64::powi(2.0, -24));
        check(0x3c00, 1.0);
        check(0xc000, -2.0);
        check(0x7bff, 65504.0);
        check(0xfc00, f64::NEG_INFINITY);
        assert!(f16_to_f64(0x7e00).is_nan());
    }

    #[test]
    fn matrices_of_attributes() {
        let edges = "f32[] f32[]";
        check("MelWeightMatrix", &format!("i64[]{{8}} i64[]{{16}} i64[] {edges}"), "f32[9,8]");
        check("MelWeightMatrix output_datatype=11", &format!("i64[] i64[] i64[] {edges}"), "f64[?,?]");
        check("MelWeightMatrix", &format!("i64[]{{-8}} i64[] i64[] {edges}"), "error: negative");
        check("TfIdfVectorizer ngram_indexes=[0,3,1]", "i64[n,7]", "f32[n,4]");
        check("TfIdfVectorizer ngram_indexes=[0,3,1]", "i32[7]", "f32[4]");
        check("TfIdfVectorizer ngram_indexes=[0]", "i32[7,1,1]", "error: at most 2 dimensions");
        check("TfIdfVectorizer", "i32[7]", "error: ngram_indexes");
    }
}
