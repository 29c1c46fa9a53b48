//! Elements by their indices: what references of ops are written with that only move elements. Slow on purpose: an
//! output is a function from the index of an element to its value.

use super::*;
use devbay_host::internals::core::program::onnx_types::dtype_to_onnx;

/// Returns the values of a tensor, element by element in row-major order.
pub(super) fn filled(shape: &[i64], mut at: impl FnMut(&[i64]) -> f64) -> Vec<f64> {
    every(shape).map(|index| at(&index)).collect()
}

/// Returns the index of the `i`-th element.
pub(super) fn index_of(i: usize, shape: &[i64]) -> Vec<i64> {
    let mut rest = i as i64;
    let mut index = vec![0; shape.len()];
    for axis in (0..shape.len()).rev() {
        index[axis] = rest % shape[axis];
        rest /= shape[axis];
    }
    index
}

/// Returns the indices of all elements in order.
pub(super) fn every(shape: &[i64]) -> impl Iterator<Item = Vec<i64>> + '_ {
    (0..n_elements(shape)).map(|i| index_of(i, shape))
}

/// Returns the position of an index's element; None outside.
pub(super) fn position(index: &[i64], shape: &[i64]) -> Option<usize> {
    let inside = index.iter().zip(shape).all(|(i, n)| (0..*n).contains(i));
    inside.then(|| index.iter().zip(shape).fold(0, |offset, (i, n)| offset * n + i) as usize)
}

/// Returns the position of an index's element, which there is.
pub(super) fn offset(index: &[i64], shape: &[i64]) -> usize {
    assert!(index.len() == shape.len(), "an index of another rank");
    position(index, shape).expect("the index is inside")
}

/// Returns the element of an index.
pub(super) fn get(tensor: &HostTensor, index: &[i64]) -> f64 {
    tensor.values[offset(index, &tensor.shape)]
}

/// An index with another one in the place of an axis.
pub(super) fn with(index: &[i64], axis: usize, value: i64) -> Vec<i64> {
    let mut index = index.to_vec();
    index[axis] = value;
    index
}

/// A sum of elements by the weights of their positions along each axis.
pub(super) fn interpolated(x: &HostTensor, taps: impl IntoIterator<Item = Vec<(i64, f64)>>) -> f64 {
    let mut terms = vec![(Vec::new(), 1.0)];
    for taps in taps {
        let extend = |(from, share): &(Vec<i64>, f64)| -> Vec<(Vec<i64>, f64)> {
            taps.iter().map(|(tap, weight)| ([from.as_slice(), &[*tap]].concat(), share * weight)).collect()
        };
        terms = terms.iter().flat_map(extend).collect();
    }
    terms.iter().map(|(from, share)| share * get(x, from)).sum()
}

/// Returns the limits of an integer dtype.
pub(super) fn limits(dtype: DType) -> (f64, f64) {
    let n = 2f64.powi(i32::from(dtype.bits));
    if matches!(dtype, U8 | U16 | U32 | U64) { (0.0, n - 1.0) } else { (-n / 2.0, n / 2.0 - 1.0) }
}

/// Values from all over a dtype's range, among those of floats some that only a copy of their bits keeps.
pub(super) fn anything(dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
    let range = match dtype {
        // The range of an f64.
        I64 => (-9e15, 9e15),
        U64 => (0.0, 9e15),
        dtype if is_float(dtype) || dtype == BOOL => (-100.0, 100.0),
        dtype => limits(dtype),
    };
    let mut tensor = ops::random(dtype, dice, shape, range);
    if is_float(dtype) {
        for value in &mut tensor.values {
            match dice.below(40) {
                0 => *value = f64::NAN,
                1 => *value = f64::INFINITY,
                2 => *value = f64::NEG_INFINITY,
                _ => {}
            }
        }
    }
    tensor
}

/// Integers as an operand.
pub(super) fn integers(dtype: DType, shape: &[i64], values: &[i64]) -> HostTensor {
    HostTensor::new(dtype, shape, values.iter().map(|&value| value as f64).collect())
}

/// A list of integers as an operand.
pub(super) fn list(dtype: DType, values: &[i64]) -> HostTensor {
    integers(dtype, &[values.len() as i64], values)
}

/// Where an operand of positions may be of either width: both in turn.
pub(super) fn index_dtype(i: u64) -> DType {
    if i.is_multiple_of(2) { I64 } else { I32 }
}

/// An axis, counted from the front or from the back.
pub(super) fn either_way(dice: &mut Dice, axis: usize, rank: usize) -> i64 {
    axis as i64 - if dice.below(2) == 0 { 0 } else { rank as i64 }
}

/// Some axis.
pub(super) fn any_axis(dice: &mut Dice, rank: usize) -> usize {
    dice.below(rank as u64) as usize
}

/// Returns the first numbers in any order.
pub(super) fn shuffled(dice: &mut Dice, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, dice.below(i as u64 + 1) as usize);
    }
    order
}

/// A trial whose result is only moved: exact.
pub(super) fn moved(
    attributes: Vec<(&'static str, AttrValue)>,
    inputs: Vec<Option<HostTensor>>,
    shape: &[i64],
    at: impl FnMut(&[i64]) -> f64,
) -> Trial {
    let dtype = inputs[0].as_ref().expect("the first input is what is moved").dtype;
    Trial { attributes, inputs, outputs: vec![Expected::exact(dtype, shape, filled(shape, at))] }
}

/// A word as an attribute.
pub(super) fn word(text: &str) -> AttrValue {
    AttrValue::String(text.to_owned())
}

/// A dtype as an attribute.
pub(super) fn onnx_dtype(dtype: DType) -> AttrValue {
    AttrValue::Int(dtype_to_onnx(dtype).expect("ONNX has all the suite's dtypes"))
}
