//! Sequences: making, reading and changing them, splitting tensors into them and joining them.

use super::{Operands, Site, Work, invalid, take, take_int, wrong};
use crate::values::layout::{axis_of, joined, part, reshaped, stacked};
use crate::values::{Element, Sequence, Value, ValueType};
use devbay_core::program::onnx_types::dtype_from_onnx;
use devbay_core::tensor::{F32, I64};
use devbay_core::{Result, Tensor};

/// Parts of a split at most: each is a tensor of its own.
const PARTS_MAX: usize = 1 << 24;

/// A sequence of the first operand's type.
pub fn of_first(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::sequence(site.input(0)?.without_shape())])
}

/// The type of the sequence that is the first operand.
pub fn same(site: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![site.input(0)?.clone()])
}

/// The type of the elements of the first operand.
pub fn element(site: &Site<'_>) -> Result<Vec<ValueType>> {
    match site.input(0)? {
        ValueType::Sequence(of) => Ok(vec![(**of).clone()]),
        other => Err(invalid(format!("expected a sequence, found {other}"))),
    }
}

/// One integer.
pub fn count(_: &Site<'_>) -> Result<Vec<ValueType>> {
    Ok(vec![ValueType::of_shape(Some(Element::Number(I64)), &[])])
}

/// A sequence of tensors of the attribute's type.
pub fn of_dtype(site: &Site<'_>) -> Result<Vec<ValueType>> {
    let element = match site.attrs.int("dtype")? {
        None => Element::Number(F32),
        Some(&number) => element_of(number)?,
    };
    Ok(vec![ValueType::sequence(ValueType::tensor(Some(element)))])
}

/// Returns the element type of ONNX's number.
///
/// # Errors
/// As for numbers in models.
pub fn element_of(number: i64) -> Result<Element> {
    const STRING: i64 = 8;
    if number == STRING { Ok(Element::String) } else { Ok(Element::Number(dtype_from_onnx(number)?)) }
}

/// SequenceConstruct.
pub fn construct(site: &Site<'_>) -> Result<Work> {
    let element = site.input(0)?.without_shape();
    if let Some(other) = site.inputs.iter().flatten().find(|other| !element.takes(&other.without_shape())) {
        return Err(invalid(format!("expected elements of one type, found {element} and {other}")));
    }
    Ok(Box::new(|operands| Ok(vec![Sequence::of(operands.into_iter().flatten().collect())?.into()])))
}

/// SequenceEmpty.
pub fn empty(site: &Site<'_>) -> Result<Work> {
    let ValueType::Sequence(of) = of_dtype(site)?.remove(0) else {
        return Err(invalid("expected a sequence"));
    };
    Ok(Box::new(move |_| Ok(vec![Sequence::new((*of).clone(), Vec::new())?.into()])))
}

/// Takes the sequence that is the first operand.
fn sequence(operands: &mut Operands) -> Result<Sequence> {
    take(operands, 0)?.into_sequence()
}

/// Returns a position among `n`, counted from the front; `default` for none.
fn position(given: Option<i64>, n: usize, last: usize, default: usize) -> Result<usize> {
    let Some(given) = given else { return Ok(default) };
    let counted = if given < 0 { given.saturating_add_unsigned(n as u64) } else { given };
    let fits = usize::try_from(counted).ok().filter(|&at| at <= last && (at < n || last == n));
    fits.ok_or_else(|| wrong(format!("expected a position in a sequence of {n} elements, found {given}")))
}

/// SequenceAt.
pub fn at(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let sequence = sequence(&mut operands)?;
        let n = sequence.values().len();
        let at = position(take_int(&mut operands, 1)?, n, n.saturating_sub(1), 0)?;
        let found = sequence.values().get(at).cloned();
        Ok(vec![found.ok_or_else(|| wrong("expected an element of a sequence, found an empty sequence"))?])
    }))
}

/// SequenceInsert: before a position, or at the end.
pub fn insert(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let mut sequence = sequence(&mut operands)?;
        let value = take(&mut operands, 1)?;
        if !sequence.element().is_of(&value) {
            let text = format!("expected an element of type {}, found {}", sequence.element(), value.ty());
            return Err(wrong(text));
        }
        let n = sequence.values().len();
        let at = position(take_int(&mut operands, 2)?, n, n, n)?;
        if n == 0 && *sequence.element() == ValueType::tensor(None) {
            return Ok(vec![Sequence::of(vec![value])?.into()]);
        }
        sequence.change(|values| values.insert(at, value));
        Ok(vec![sequence.into()])
    }))
}

/// SequenceErase: the element at a position, or the last one.
pub fn erase(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let mut sequence = sequence(&mut operands)?;
        let n = sequence.values().len();
        if n == 0 {
            return Err(wrong("expected an element to erase, found an empty sequence"));
        }
        let at = position(take_int(&mut operands, 1)?, n, n - 1, n - 1)?;
        sequence.change(|values| drop(values.remove(at)));
        Ok(vec![sequence.into()])
    }))
}

/// SequenceLength.
pub fn length(_: &Site<'_>) -> Result<Work> {
    Ok(Box::new(|mut operands| {
        let n = sequence(&mut operands)?.values().len();
        Ok(vec![Tensor::from_elements(&[], &[n as i64])?.into()])
    }))
}

/// SplitToSequence: into parts of one size, or of given sizes; without them into single elements.
pub fn split(site: &Site<'_>) -> Result<Work> {
    let axis = site.attrs.int_or("axis", 0)?;
    let keeps = site.attrs.int_or("keepdims", 1)? != 0;
    Ok(Box::new(move |mut operands| {
        let value = take(&mut operands, 0)?;
        let sizes = operands.get_mut(1).and_then(Option::take);
        let shape = value.shape()?.to_vec();
        let axis = axis_of(axis, shape.len())?;
        let squeezes = sizes.is_none() && !keeps;
        let mut values = Vec::new();
        let mut start = 0;
        for size in part_sizes(sizes, shape[axis])? {
            let element = part(&value, axis, start, start + size)?;
            start += size;
            let mut narrow = element.shape()?.to_vec();
            if squeezes {
                narrow.remove(axis);
            }
            values.push(reshaped(&element, &narrow)?);
        }
        let element = value.ty().without_shape();
        Ok(vec![Sequence::new(element, values)?.into()])
    }))
}

/// Returns the sizes of the parts of `extent` elements.
fn part_sizes(sizes: Option<Value>, extent: usize) -> Result<Vec<usize>> {
    let refused = |found: &dyn std::fmt::Display| {
        wrong(format!("expected sizes of parts that are positive and add up to {extent}, found {found}"))
    };
    let Some(sizes) = sizes else {
        return equal_parts(1, extent);
    };
    let tensor = sizes.into_tensor()?;
    let numbers = tensor.to_ints()?.ok_or_else(|| refused(&tensor.tensor_type()))?;
    let sizes: Option<Vec<usize>> = numbers.iter().map(|&size| usize::try_from(size).ok()).collect();
    let sizes = sizes.ok_or_else(|| refused(&format!("{numbers:?}")))?;
    if tensor.shape().is_empty() {
        return match sizes[..] {
            [size] if size > 0 => equal_parts(size, extent),
            _ => Err(refused(&format!("{numbers:?}"))),
        };
    }
    let sum = sizes.iter().try_fold(0usize, |sum, &size| sum.checked_add(size));
    if sum == Some(extent) { Ok(sizes) } else { Err(refused(&format!("{numbers:?}"))) }
}

/// Divides `extent` elements into parts of one size; the last one may be smaller.
fn equal_parts(size: usize, extent: usize) -> Result<Vec<usize>> {
    let n = extent.div_ceil(size);
    if n > PARTS_MAX {
        return Err(wrong(format!("expected at most {PARTS_MAX} parts, found {n}")));
    }
    Ok((0..n).map(|i| size.min(extent - i * size)).collect())
}

/// ConcatFromSequence: along an axis, or along a new one.
pub fn concat(site: &Site<'_>) -> Result<Work> {
    let axis =
        *site.attrs.int("axis")?.ok_or_else(|| invalid("expected the attribute \"axis\", found none"))?;
    let is_new = site.attrs.int_or("new_axis", 0)? != 0;
    Ok(Box::new(move |mut operands| {
        let sequence = sequence(&mut operands)?;
        let Some(first) = sequence.values().first() else {
            return Err(wrong("expected tensors to join, found an empty sequence"));
        };
        let rank = first.shape()?.len() + usize::from(is_new);
        let axis = axis_of(axis, rank)?;
        let join = if is_new { stacked } else { joined };
        Ok(vec![join(sequence.values(), axis)?])
    }))
}
