//! Parts of tensors and strings along an axis: the work that ConcatFromSequence, SplitToSequence and scans share.

use super::{Strings, Value};
use devbay_core::tensor::n_elements;
use devbay_core::{Error, ErrorKind, Result, Tensor};

/// Returns an axis counted from the front.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for an axis outside of `-rank..rank`.
pub fn axis_of(axis: i64, rank: usize) -> Result<usize> {
    let counted = if axis < 0 { axis.saturating_add_unsigned(rank as u64) } else { axis };
    usize::try_from(counted).ok().filter(|&axis| axis < rank).ok_or_else(|| {
        let text = format!("expected an axis of a tensor with {rank} extents, found {axis}");
        Error::new(ErrorKind::InvalidInput, text)
    })
}

/// Returns the size of an element in bytes.
fn element_size(tensor: &Tensor) -> Result<usize> {
    let bits = usize::from(tensor.dtype().bits);
    if bits.is_multiple_of(8) {
        return Ok(bits / 8);
    }
    let text = format!("expected elements of whole bytes in a sequence, found {}", tensor.tensor_type());
    Err(Error::new(ErrorKind::UnsupportedModel, text))
}

/// Copies the range `start..end` of the axis, whose elements have `width` units.
fn cut<T: Clone>(
    from: &[T],
    shape: &[usize],
    axis: usize,
    (start, end): (usize, usize),
    width: usize,
) -> Vec<T> {
    // Without elements, the other extents may be of any size.
    if from.is_empty() {
        return Vec::new();
    }
    let inner = shape[axis + 1..].iter().product::<usize>() * width;
    let outer: usize = shape[..axis].iter().product();
    let row = shape[axis] * inner;
    (0..outer).flat_map(|i| from[i * row + start * inner..i * row + end * inner].iter().cloned()).collect()
}

/// Returns the range `start..end` of a value along an axis.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a value that is no tensor, or a range outside of it.
pub fn part(value: &Value, axis: usize, start: usize, end: usize) -> Result<Value> {
    let mut shape = value.shape()?.to_vec();
    if start > end || end > shape[axis] {
        let text = format!(
            "expected a part of the {} elements along axis {axis}, found {start}..{end}",
            shape[axis]
        );
        return Err(Error::new(ErrorKind::InvalidInput, text));
    }
    let whole = std::mem::replace(&mut shape[axis], end - start);
    let mut full = shape.clone();
    full[axis] = whole;
    match value {
        Value::Strings(strings) => {
            Ok(Strings::new(&shape, cut(strings.elements(), &full, axis, (start, end), 1))?.into())
        }
        other => {
            let tensor = other.clone().into_tensor()?;
            let bytes = cut(tensor.bytes(), &full, axis, (start, end), element_size(&tensor)?);
            Ok(Tensor::from_bytes(tensor.dtype(), &shape, &bytes)?.into())
        }
    }
}

/// Returns a value with another shape of as many elements.
///
/// # Errors
/// If the numbers of elements differ.
pub fn reshaped(value: &Value, shape: &[usize]) -> Result<Value> {
    match value {
        Value::Strings(strings) => Ok(Strings::new(shape, strings.elements().to_vec())?.into()),
        other => Ok(other.clone().into_tensor()?.reshaped(shape)?.into()),
    }
}

/// Joins values along an axis.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for no values, or values whose types or other extents differ.
pub fn joined(values: &[Value], axis: usize) -> Result<Value> {
    let invalid = |text: String| Error::new(ErrorKind::InvalidInput, text);
    let Some(first) = values.first() else {
        return Err(invalid("expected at least one tensor to join, found none".to_owned()));
    };
    let mut shape = first.shape()?.to_vec();
    let mut extent = 0usize;
    for (i, value) in values.iter().enumerate() {
        let other = value.shape()?;
        let fits = other.len() == shape.len() && (0..shape.len()).all(|j| j == axis || other[j] == shape[j]);
        if !fits || value.ty().element() != first.ty().element() {
            let found = (value.ty().without_shape(), other);
            let text = format!(
                "element {i} is {} {:?}, which does not fit {} {shape:?}",
                found.0,
                found.1,
                first.ty()
            );
            return Err(invalid(text));
        }
        extent = extent.saturating_add(other[axis]);
    }
    shape[axis] = extent;
    let n = n_elements(&shape);
    let n = n.ok_or_else(|| invalid(format!("a tensor of extents {shape:?} is larger than memory")))?;
    // Without elements, the other extents may be of any size.
    let outer: usize = if n == 0 { 0 } else { shape[..axis].iter().product() };
    match first {
        Value::Strings(_) => {
            let mut elements = Vec::new();
            for i in 0..outer {
                for value in values {
                    let Value::Strings(strings) = value else { continue };
                    let row = strings.elements().len() / outer;
                    elements.extend_from_slice(&strings.elements()[i * row..(i + 1) * row]);
                }
            }
            Ok(Strings::new(&shape, elements)?.into())
        }
        other => {
            let dtype = other.clone().into_tensor()?;
            element_size(&dtype)?;
            let mut bytes = Vec::new();
            for i in 0..outer {
                for value in values {
                    let Value::Tensor(tensor) = value else { continue };
                    let row = tensor.bytes().len() / outer;
                    bytes.extend_from_slice(&tensor.bytes()[i * row..(i + 1) * row]);
                }
            }
            Ok(Tensor::from_bytes(dtype.dtype(), &shape, &bytes)?.into())
        }
    }
}

/// Joins values along a new axis.
///
/// # Errors
/// As [`joined`].
pub fn stacked(values: &[Value], axis: usize) -> Result<Value> {
    let widened = |value: &Value| {
        let mut shape = value.shape()?.to_vec();
        shape.insert(axis.min(shape.len()), 1);
        reshaped(value, &shape)
    };
    joined(&values.iter().map(widened).collect::<Result<Vec<_>>>()?, axis)
}
