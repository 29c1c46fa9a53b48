//! Pools: maxima with their places, means, norms, of windows and of whole planes; and MaxUnpool.

use super::index::{every, index_of, position};
use super::windows::{Windows, spatial};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("MaxPool", &[F32, F64, F16, BF16, I8, U8], max_pool),
    OpTrials::new("AveragePool", FLOATS, average_pool),
    OpTrials::new("GlobalAveragePool", FLOATS, |dtype, dice, i| {
        global(dtype, dice, i, Vec::new(), |dtype, plane| mean(dtype, plane, plane.len()))
    }),
    OpTrials::new("GlobalMaxPool", FLOATS, |dtype, dice, i| {
        let max = |_, plane: &[f64]| (plane.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x)), 0.0);
        global(dtype, dice, i, Vec::new(), max)
    }),
    OpTrials::new("LpPool", FLOATS, lp_pool),
    OpTrials::new("GlobalLpPool", FLOATS, |dtype, dice, i| {
        let p = 1 + i % 3;
        // 2 is the default.
        let attributes = if p == 2 { Vec::new() } else { vec![("p", AttrValue::Int(p as i64))] };
        global(dtype, dice, i, attributes, move |dtype, plane| norm(dtype, plane, p as i32))
    }),
    OpTrials::new("MaxUnpool", FLOATS, max_unpool),
];

/// Values of which no two are the same, in no order; so that a maximum has one place.
fn distinct(dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
    let n = n_elements(shape);
    let low = if dtype == U8 { 0.0 } else { -((n / 2) as f64) };
    let mut values: Vec<f64> = (0..n).map(|i| i as f64 + low).collect();
    for i in (1..n).rev() {
        values.swap(i, dice.below(i as u64 + 1) as usize);
    }
    HostTensor::new(dtype, shape, values)
}

/// A mean by a count, with its bound.
fn mean(dtype: DType, values: &[f64], count: usize) -> (f64, f64) {
    let magnitude: f64 = values.iter().map(|value| value.abs()).sum();
    let mean = values.iter().sum::<f64>() / count as f64;
    (mean, sum_bound(dtype, values.len() + 2, magnitude / count as f64))
}

/// A norm, with its bound. Terms are positive: errors are relative, of the sum n roundings and of each power and the
/// root what [`Rounding::Function`] has.
fn norm(dtype: DType, values: &[f64], p: i32) -> (f64, f64) {
    let norm = values.iter().map(|value| value.abs().powi(p)).sum::<f64>().powf(1.0 / f64::from(p));
    let n_roundings = values.len() + if p < 3 { 4 } else { 128 };
    (norm, sum_bound(dtype, n_roundings, norm))
}

/// Numbers of either sign whose powers no dtype rounds to 0.
fn far_from_zero(dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
    let mut x = random(dtype, dice, shape, (0.25, 2.0));
    x.values.iter_mut().for_each(|x| *x *= if dice.below(2) == 0 { -1.0 } else { 1.0 });
    x
}

/// A pool of windows: what becomes of the elements of a window and the number of its places within the padded input.
fn pool(x: &HostTensor, windows: &Windows, f: impl Fn(&[f64], usize) -> (f64, f64)) -> Expected {
    let shape = [&x.shape[..2], windows.output().as_slice()].concat();
    let area = n_elements(&windows.input);
    let is_padded = |point: &Vec<i64>| {
        let within = |axis: usize| point[axis] < windows.input[axis] + windows.after[axis];
        (0..point.len()).all(within)
    };
    let result = |out: Vec<i64>| {
        let plane = (out[0] * shape[1] + out[1]) as usize * area;
        let found: Vec<f64> =
            windows.taps(&out[2..]).iter().filter_map(|(_, at)| at.map(|at| x.values[plane + at])).collect();
        f(&found, windows.points(&out[2..]).iter().filter(|point| is_padded(point)).count())
    };
    let (values, bounds) = every(&shape).map(result).unzip();
    Expected::within(x.dtype, &shape, values, bounds)
}

fn planes(dice: &mut Dice, i: u64, input: &[i64]) -> Vec<i64> {
    [&[1 + (i % 2) as i64, 1 + dice.below(3) as i64], input].concat()
}

fn with_kernel(dice: &mut Dice, windows: &Windows) -> Vec<(&'static str, AttrValue)> {
    let mut attributes = windows.attributes(dice);
    attributes.push(("kernel_shape", AttrValue::Ints(windows.kernel.clone())));
    attributes
}

fn max_pool(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let windows = Windows::random(dice, i, &input, true);
    let shape = planes(dice, i, &input);
    // As far as whole numbers of the dtype go without a gap.
    let n_distinct = match dtype {
        BF16 | I8 | U8 => 256,
        F16 => 2048,
        _ => usize::MAX,
    };
    let has_places = n_elements(&shape) <= n_distinct && i % 4 != 3;
    let x =
        if has_places { distinct(dtype, dice, &shape) } else { random(dtype, dice, &shape, (-100.0, 100.0)) };
    let max = |found: &[f64], _| (found.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x)), 0.0);
    let mut outputs = vec![pool(&x, &windows, max)];
    let mut attributes = with_kernel(dice, &windows);
    if has_places {
        let columns_first = i % 2 == 1;
        attributes.push(("storage_order", AttrValue::Int(columns_first.into())));
        // The place counts all planes; within one, the first axis may be the fastest.
        let place = |value: &f64| {
            let at =
                every(&shape).nth(x.values.iter().position(|x| x == value).unwrap_or(0)).unwrap_or_default();
            let inner = if columns_first {
                (2..at.len()).rev().fold(0, |sum, axis| sum * shape[axis] + at[axis])
            } else {
                (2..at.len()).fold(0, |sum, axis| sum * shape[axis] + at[axis])
            };
            ((at[0] * shape[1] + at[1]) * n_elements(&input) as i64 + inner) as f64
        };
        let maxima = &outputs[0].tensor;
        let places = maxima.values.iter().map(place).collect();
        outputs.push(Expected::exact(I64, &maxima.shape.clone(), places));
    }
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

/// MaxPool without the places of the maxima.
pub(super) fn max_pool_alone(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let windows = Windows::random(dice, i, &input, true);
    let shape = planes(dice, i, &input);
    let x = random(dtype, dice, &shape, (-100.0, 100.0));
    let max = |found: &[f64], _| (found.iter().fold(f64::NEG_INFINITY, |max, x| max.max(*x)), 0.0);
    let outputs = vec![pool(&x, &windows, max)];
    Trial { attributes: with_kernel(dice, &windows), inputs: vec![Some(x)], outputs }
}

pub(super) fn average_pool(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let windows = Windows::random(dice, i, &input, true);
    let shape = planes(dice, i, &input);
    let x = random(dtype, dice, &shape, (-2.0, 2.0));
    let counts_pads = i % 2 == 1;
    // Positions that ceil_mode adds beyond the padding never count.
    let average =
        |found: &[f64], n_places| mean(dtype, found, if counts_pads { n_places } else { found.len() });
    let outputs = vec![pool(&x, &windows, average)];
    let mut attributes = with_kernel(dice, &windows);
    attributes.push(("count_include_pad", AttrValue::Int(counts_pads.into())));
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

fn lp_pool(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let windows = Windows::random(dice, i, &input, true);
    let shape = planes(dice, i, &input);
    let x = far_from_zero(dtype, dice, &shape);
    let p = 1 + (i % 3) as i32;
    let outputs = vec![pool(&x, &windows, |found, _| norm(dtype, found, p))];
    let mut attributes = with_kernel(dice, &windows);
    attributes.push(("p", AttrValue::Int(p.into())));
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

/// A pool of whole planes.
fn global(
    dtype: DType,
    dice: &mut Dice,
    i: u64,
    attributes: Vec<(&'static str, AttrValue)>,
    f: impl Fn(DType, &[f64]) -> (f64, f64),
) -> Trial {
    let input = spatial(dice, i);
    let shape = planes(dice, i, &input);
    let x = far_from_zero(dtype, dice, &shape);
    let (values, bounds) = x.values.chunks(n_elements(&input)).map(|plane| f(dtype, plane)).unzip();
    let shape: Vec<i64> = (0..shape.len()).map(|axis| if axis < 2 { shape[axis] } else { 1 }).collect();
    let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
    Trial { attributes, inputs: vec![Some(x)], outputs }
}

fn max_unpool(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let pooled = if i == 2 { vec![17, 18] } else { spatial(dice, i) };
    let from = planes(dice, i, &pooled);
    let x = random(dtype, dice, &from, (-9.0, 9.0));
    let kernel: Vec<i64> = pooled.iter().map(|_| 2 + dice.below(2) as i64).collect();
    let strides: Vec<i64> = pooled.iter().map(|_| 1 + dice.below(3) as i64).collect();
    let pads: Vec<i64> =
        kernel.iter().chain(&kernel).map(|_| if i % 3 == 2 { dice.below(2) as i64 } else { 0 }).collect();
    let axes = pooled.len();
    let inferred =
        |axis: usize| (pooled[axis] - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axes + axis];
    let mut plane: Vec<i64> = (0..axes).map(inferred).collect();
    let mut pads = pads;
    if n_elements(&plane) < n_elements(&pooled) || plane.iter().any(|&extent| extent < 1) {
        // More values than places: without the padding there is one for each.
        pads.fill(0);
        plane = (0..axes).map(|axis| (pooled[axis] - 1) * strides[axis] + kernel[axis]).collect();
    }
    let shape = [&x.shape[..2], plane.as_slice()].concat();
    // Each plane's values go to places of that plane, each to its own.
    let (area, n) = (n_elements(&plane), n_elements(&pooled));
    let mut indices = Vec::new();
    for at in 0..x.values.len() / n {
        let mut places: Vec<usize> = (0..area).collect();
        for one in 0..n {
            places.swap(one, one + dice.below((area - one) as u64) as usize);
            indices.push((at * area + places[one]) as f64);
        }
    }
    // An output that is asked to be larger has the inferred one in its corner; ONNX's example says so.
    let larger = i % 4 == 3;
    let to: Vec<i64> = (0..shape.len()).map(|axis| shape[axis] + i64::from(larger && axis > 1)).collect();
    let mut values = vec![0.0; n_elements(&to)];
    for (value, index) in x.values.iter().zip(&indices) {
        let at = index_of(*index as usize, &shape);
        values[position(&at, &to).unwrap_or(0)] = *value;
    }
    let size = to.iter().map(|&extent| extent as f64).collect();
    let indices = HostTensor::new(I64, &x.shape, indices);
    Trial {
        attributes: vec![
            ("kernel_shape", AttrValue::Ints(kernel)),
            ("strides", AttrValue::Ints(strides)),
            ("pads", AttrValue::Ints(pads)),
        ],
        outputs: vec![Expected::exact(dtype, &to, values)],
        inputs: vec![Some(x), Some(indices), larger.then(|| HostTensor::new(I64, &[to.len() as i64], size))],
    }
}
