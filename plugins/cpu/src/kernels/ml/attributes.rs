//! Readers of attributes that are lists. Lists that are left out are empty: exporters write either.

use crate::kernels::numbers::small_float::Format;
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::{
    AttrContent, Attrs, DType, Error, F16, F32, F64, I16, I32, I64, Result, TensorView, U8,
};

/// Returns integers.
///
/// # Errors
/// Invalid for an attribute of another kind; out of memory.
pub(super) fn ints(attrs: &Attrs<'_>, name: &str) -> Result<Vec<i64>> {
    Ok(attrs.ints(name)?.unwrap_or_default())
}

/// Returns words.
///
/// # Errors
/// Invalid for an attribute of another kind; out of memory.
pub(super) fn words<'a>(attrs: &Attrs<'a>, name: &str) -> Result<Vec<&'a str>> {
    match attrs.get(name) {
        None => Ok(Vec::new()),
        Some(AttrContent::Strings(words)) => Ok(reserve::copied(words, "an attribute's words")?),
        Some(_) => Err(Error::invalid(format!("attribute {name} is no list of texts"))),
    }
}

/// Numbers of an attribute, and their element type.
pub(super) struct Numbers {
    /// The attribute that has them.
    pub name: &'static str,
    /// The numbers, each exact.
    pub values: Vec<f64>,
    /// F32 for a list of numbers, the tensor's for a tensor.
    pub dtype: DType,
}

/// Returns the numbers of one of two attributes: a list, or a tensor, which may have more digits.
///
/// # Errors
/// Invalid if both are given, or for an attribute of another kind; out of memory.
pub(super) fn numbers(attrs: &Attrs<'_>, list: &'static str, tensor: &'static str) -> Result<Numbers> {
    let of_list = match attrs.get(list) {
        None => Vec::new(),
        Some(AttrContent::Floats(values)) => reserve::copied(values, "an attribute's numbers")?,
        // Exporters write an empty list without its kind.
        Some(AttrContent::Ints(values)) if values.is_empty() => Vec::new(),
        Some(_) => return Err(Error::invalid(format!("attribute {list} is no list of numbers"))),
    };
    let Some(of_tensor) = tensor_of(attrs, tensor)?.filter(|tensor| tensor.n_elements() > 0) else {
        return Ok(Numbers { name: list, values: of_list, dtype: F32 });
    };
    if !of_list.is_empty() {
        return Err(Error::invalid(format!(
            "expected one of the attributes {list} and {tensor}, found both"
        )));
    }
    Ok(Numbers { name: tensor, values: elements(tensor, &of_tensor)?, dtype: of_tensor.dtype() })
}

/// Returns a tensor.
///
/// # Errors
/// Invalid for an attribute of another kind.
pub(super) fn tensor_of<'a>(attrs: &Attrs<'a>, name: &str) -> Result<Option<TensorView<'a>>> {
    match attrs.get(name) {
        None => Ok(None),
        Some(AttrContent::Tensor(tensor)) => Ok(Some(*tensor)),
        Some(_) => Err(Error::invalid(format!("attribute {name} is no tensor"))),
    }
}

/// Returns the elements of a tensor of floats or bytes.
///
/// # Errors
/// Unsupported for other element types; invalid without a content; out of memory.
pub(super) fn elements(name: &str, tensor: &TensorView<'_>) -> Result<Vec<f64>> {
    const WHAT: &str = "a tensor's numbers";
    let bytes = content(name, tensor)?;
    Ok(match tensor.dtype() {
        F32 => reserve::collected(bytes.as_chunks().0.iter().map(|&b| f32::from_le_bytes(b).into()), WHAT)?,
        F64 => reserve::collected(bytes.as_chunks().0.iter().map(|&b| f64::from_le_bytes(b)), WHAT)?,
        F16 => {
            let decode = |&b: &[u8; 2]| Format::BINARY16.decode(u16::from_le_bytes(b).into());
            reserve::collected(bytes.as_chunks().0.iter().map(decode), WHAT)?
        }
        U8 => reserve::collected(bytes.iter().map(|&b| b.into()), WHAT)?,
        other => return Err(Error::unsupported(format!("attribute {name} of {other:?} elements"))),
    })
}

/// Returns the elements of a tensor of signed integers.
///
/// # Errors
/// Unsupported for other element types; invalid without a content; out of memory.
pub(super) fn integers(name: &str, tensor: &TensorView<'_>) -> Result<Vec<i64>> {
    const WHAT: &str = "a tensor's integers";
    let bytes = content(name, tensor)?;
    Ok(match tensor.dtype() {
        I64 => reserve::collected(bytes.as_chunks().0.iter().map(|&b| i64::from_le_bytes(b)), WHAT)?,
        I32 => reserve::collected(bytes.as_chunks().0.iter().map(|&b| i32::from_le_bytes(b).into()), WHAT)?,
        I16 => reserve::collected(bytes.as_chunks().0.iter().map(|&b| i16::from_le_bytes(b).into()), WHAT)?,
        other => return Err(Error::unsupported(format!("attribute {name} of {other:?} elements"))),
    })
}

fn content<'a>(name: &str, tensor: &TensorView<'a>) -> Result<&'a [u8]> {
    tensor.constant().ok_or_else(|| Error::invalid(format!("attribute {name} is a tensor without a content")))
}
