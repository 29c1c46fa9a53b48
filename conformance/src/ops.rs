//! The ops whose numbers the suite judges, each with a plain reference in f64 and a stated bound.
//!
//! The bound of an element is `relative * |expected| + absolute`. Sums of products have the textbook bound for
//! any order of summation, `(k + 2) * u * sum(|a| * |b|)` with u the dtype's unit roundoff; plugins sum 16-bit elements
//! in f32 or in their own type, so theirs has that type's u. Integers are exact. Where the exact result is beyond the
//! dtype's range it is an infinity, and a result that is no number is a NaN.

use crate::functions::{self, Function};
use crate::tensor::{Dice, HostTensor, in_range, is_float, n_elements, smallest, unit_roundoff};
use devbay_plugin_api::abi::DType;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use std::ops::RangeInclusive;

/// An attribute of a case.
#[derive(Clone, Debug)]
pub(crate) enum Attribute {
    Int(&'static str, i64),
    Ints(&'static str, Vec<i64>),
}

/// One node with its data and what has to come out.
#[derive(Clone)]
pub(crate) struct Sample {
    pub attributes: Vec<Attribute>,
    pub inputs: Vec<HostTensor>,
    pub expected: HostTensor,
    /// Maximum error of each element.
    pub bounds: Vec<f64>,
    /// Results that are right as well: on a device that takes subnormal operands for 0.
    pub flushed: Option<Vec<f64>>,
}

/// An op that is judged by itself.
pub(crate) struct Op {
    pub name: &'static str,
    /// Versions whose definition is the one that is tested.
    pub versions: RangeInclusive<u32>,
    pub dtypes: &'static [DType],
    make: Make,
}

enum Make {
    Unary(&'static Function),
    Binary {
        function: fn(f64, f64) -> f64,
        from: (f64, f64),
        rounding: Rounding,
    },
    /// A question about two numbers, or two truths.
    Relation {
        function: fn(f64, f64) -> bool,
    },
    MatMul,
    Softmax,
    Transpose,
}

/// Required exactness of an op.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Rounding {
    /// The nearest number, or the one beside it.
    Exact,
    /// A division: 2.5 units in the last place, which is what OpenCL and CUDA promise at the least.
    Division,
    /// An approximation: 32 units in the last place, and as much of 1.
    Function,
}

impl Rounding {
    /// Returns the maximum error of a result.
    pub(crate) fn bound(self, dtype: DType, expected: f64) -> f64 {
        let unit = unit_roundoff(dtype);
        if !expected.is_finite() {
            return 0.0;
        }
        // Subnormal results may be flushed to 0.
        match (self, unit) {
            (_, 0.0) => 0.0,
            (Self::Exact, unit) => 2.0 * unit * expected.abs() + smallest(dtype),
            (Self::Division, unit) => 5.0 * unit * expected.abs() + smallest(dtype),
            (Self::Function, unit) => 64.0 * unit * (expected.abs() + 1.0),
        }
    }
}

const NUMBERS: &[DType] = &[F32, F64, I32, I64, F16, BF16, I8, I16, U8, U16, U32, U64];
const SIGNED: &[DType] = &[F32, F64, I32, I64, F16, BF16, I8, I16];
const FLOATS: &[DType] = &[F32, F64, F16, BF16];
const ORDERED: &[DType] = NUMBERS;
const TRUTHS: &[DType] = &[BOOL];
const ANYTHING: &[DType] = &[F32, F64, I32, I64, F16, BF16, I8, I16, U8, U16, U32, U64, BOOL];
const ANY: RangeInclusive<u32> = 1..=u32::MAX;
/// Since 7 broadcasting is numpy's.
const BROADCASTS: RangeInclusive<u32> = 7..=u32::MAX;

const fn unary(name: &'static str, dtypes: &'static [DType]) -> Op {
    Op { name, versions: ANY, dtypes, make: Make::Unary(functions::get(name)) }
}

const fn binary(
    name: &'static str,
    dtypes: &'static [DType],
    rounding: Rounding,
    function: fn(f64, f64) -> f64,
) -> Op {
    Op { name, versions: BROADCASTS, dtypes, make: Make::Binary { function, from: (-9.0, 9.0), rounding } }
}

const fn relation(name: &'static str, dtypes: &'static [DType], function: fn(f64, f64) -> bool) -> Op {
    Op { name, versions: BROADCASTS, dtypes, make: Make::Relation { function } }
}

/// Returns the smaller, or what is no number: as numpy's `minimum`.
fn minimum(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() { f64::NAN } else { a.min(b) }
}

fn maximum(a: f64, b: f64) -> f64 {
    -minimum(-a, -b)
}

/// The base set: what launches are judged with.
pub(crate) static OPS: &[Op] = &[
    binary("Add", NUMBERS, Rounding::Exact, |a, b| a + b),
    binary("Sub", SIGNED, Rounding::Exact, |a, b| a - b),
    binary("Mul", NUMBERS, Rounding::Exact, |a, b| a * b),
    binary("Div", NUMBERS, Rounding::Division, |a, b| a / b),
    binary("Min", NUMBERS, Rounding::Exact, minimum),
    binary("Max", NUMBERS, Rounding::Exact, maximum),
    relation("Equal", ANYTHING, |a, b| a == b),
    relation("Less", ORDERED, |a, b| a < b),
    relation("Greater", ORDERED, |a, b| a > b),
    relation("And", TRUTHS, |a, b| a != 0.0 && b != 0.0),
    relation("Or", TRUTHS, |a, b| a != 0.0 || b != 0.0),
    relation("Xor", TRUTHS, |a, b| (a != 0.0) != (b != 0.0)),
    unary("Relu", SIGNED),
    unary("Neg", SIGNED),
    unary("Abs", NUMBERS),
    unary("Floor", FLOATS),
    unary("Ceil", FLOATS),
    unary("Reciprocal", FLOATS),
    unary("Exp", FLOATS),
    unary("Log", FLOATS),
    unary("Sqrt", FLOATS),
    unary("Sin", FLOATS),
    unary("Cos", FLOATS),
    unary("Tanh", FLOATS),
    unary("Sigmoid", FLOATS),
    Op { name: "MatMul", versions: ANY, dtypes: FLOATS, make: Make::MatMul },
    // Since 13 the axis is one axis, and not the border of a matrix.
    Op { name: "Softmax", versions: 13..=u32::MAX, dtypes: FLOATS, make: Make::Softmax },
    Op { name: "Transpose", versions: ANY, dtypes: ANYTHING, make: Make::Transpose },
];

/// Ops of the same forms whose numbers alone are judged.
pub(crate) static MORE: &[Op] = &[
    binary("PRelu", NUMBERS, Rounding::Exact, |x, slope| if x < 0.0 { x * slope } else { x }),
    relation("LessOrEqual", ORDERED, |a, b| a <= b),
    relation("GreaterOrEqual", ORDERED, |a, b| a >= b),
    unary("Sign", NUMBERS),
];

/// Ops that are not tried with each special number against each: PRelu broadcasts its second operand to the first, and not the other way round.
const WITHOUT_EDGES: &[&str] = &["PRelu"];

/// Returns the op of that name.
pub(crate) fn find(name: &str) -> Option<&'static Op> {
    OPS.iter().chain(MORE).find(|op| op.name == name)
}

/// Samples of an op in one dtype: edges first, then random shapes.
const N_SAMPLES: u64 = 24;

impl Op {
    /// Returns the number of its inputs.
    pub(crate) fn n_inputs(&self) -> usize {
        match self.make {
            Make::Binary { .. } | Make::Relation { .. } | Make::MatMul => 2,
            _ => 1,
        }
    }

    /// Returns the samples of a dtype.
    pub(crate) fn samples(&self, dtype: DType) -> Vec<Sample> {
        let plain = (0..N_SAMPLES).map(|i| self.sample(dtype, i));
        // Sizes of many chunks are a question of the loop, which dtypes mostly share.
        let large = (dtype == F32).then(|| self.large(dtype));
        plain.chain(self.special(dtype)).chain(large).collect()
    }

    /// Returns one sample of a good size, for cases that are not about numbers.
    pub(crate) fn typical(&self, dtype: DType) -> Sample {
        match self.make {
            Make::MatMul => mat_mul(dtype, &mut Dice::new(77), &[13, 17], &[17, 19]),
            _ => self.sample_of(dtype, &mut Dice::new(77), &[6, 11]),
        }
    }

    /// Returns a sample big enough for several threads.
    pub(crate) fn large(&self, dtype: DType) -> Sample {
        match self.make {
            Make::MatMul => mat_mul(dtype, &mut Dice::new(78), &[64, 96], &[96, 128]),
            _ => self.sample_of(dtype, &mut Dice::new(78), &[40, 33, 64]),
        }
    }

    fn sample(&self, dtype: DType, i: u64) -> Sample {
        let mut dice = Dice::new(1000 + i);
        if let Make::MatMul = self.make {
            return random_mat_mul(dtype, &mut dice, i);
        }
        // A scalar, a single element, vectors with a tail for every width of SIMD, nothing at all, then anything small.
        let shape: Vec<i64> = match i {
            0 => vec![],
            1 => vec![1],
            2 => vec![67],
            3 => vec![1025],
            4 => vec![3, 0],
            _ => (0..=dice.below(4)).map(|_| 1 + dice.below(9) as i64).collect(),
        };
        self.sample_of(dtype, &mut dice, &shape)
    }

    fn sample_of(&self, dtype: DType, dice: &mut Dice, shape: &[i64]) -> Sample {
        match &self.make {
            Make::Unary(function) => {
                let x = random(dtype, dice, shape, function.from);
                self.elementwise(shape, vec![x])
            }
            Make::Binary { from, .. } => {
                let (a, b) = (random(dtype, dice, shape, *from), broadcast_operand(dtype, dice, shape));
                self.elementwise(shape, vec![a, b])
            }
            Make::Relation { .. } => {
                // Few values, so that equal ones meet.
                let a = random(dtype, dice, shape, (0.0, 4.0));
                let mut b = broadcast_operand(dtype, dice, shape);
                let n = if dtype == BOOL { 2.0 } else { 4.0 };
                b.values.iter_mut().for_each(|value| *value = value.abs().round() % n);
                self.elementwise(shape, vec![a, HostTensor::new(dtype, &b.shape, b.values)])
            }
            Make::Softmax => softmax(dtype, dice, if shape.is_empty() { &[5] } else { shape }),
            Make::Transpose => transpose(dtype, dice, shape),
            Make::MatMul => mat_mul(dtype, dice, &[4, 5], &[5, 6]),
        }
    }

    /// Makes operands from the edges of numbers: both zeros, infinities, NaN, the largest, the smallest, and
    /// subnormal ones, which a device may take for 0.
    fn special(&self, dtype: DType) -> Option<Sample> {
        let has_edges = match self.make {
            Make::Unary(function) => function.has_edges,
            _ => !WITHOUT_EDGES.contains(&self.name),
        };
        if !is_float(dtype) || !has_edges {
            return None;
        }
        let largest = match dtype {
            F16 => f64::from(half::f16::MAX),
            BF16 => f64::from(half::bf16::MAX),
            F64 => f64::MAX,
            _ => f64::from(f32::MAX),
        };
        let edges = [
            0.0,
            -0.0,
            1.0,
            -1.0,
            0.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            largest,
            -largest,
            smallest(dtype),
            -smallest(dtype),
            smallest(dtype) / 2.0,
            -smallest(dtype) / 2.0,
        ];
        let n = edges.len() as i64;
        match &self.make {
            Make::Unary(_) => {
                Some(self.elementwise(&[n], vec![HostTensor::new(dtype, &[n], edges.to_vec())]))
            }
            // Each with each.
            Make::Binary { .. } | Make::Relation { .. } => {
                let rows = HostTensor::new(dtype, &[n, 1], edges.to_vec());
                let columns = HostTensor::new(dtype, &[1, n], edges.to_vec());
                Some(self.elementwise(&[n, n], vec![rows, columns]))
            }
            _ => None,
        }
    }

    /// Returns a sample whose elements stand by themselves, with operands that are broadcast.
    fn elementwise(&self, shape: &[i64], inputs: Vec<HostTensor>) -> Sample {
        let operand_dtype = inputs[0].dtype;
        let whole = |value: f64| if is_float(operand_dtype) { value } else { value.trunc() };
        let results = |operand: fn(DType, f64) -> f64| -> Vec<f64> {
            let at = |input: &HostTensor, i| {
                operand(operand_dtype, input.values[broadcast_index(i, shape, &input.shape)])
            };
            let result = |i| match &self.make {
                Make::Unary(function) => whole(function.of(at(&inputs[0], i))),
                // Integers divide towards zero.
                Make::Binary { function, .. } => whole(function(at(&inputs[0], i), at(&inputs[1], i))),
                Make::Relation { function } => {
                    f64::from(u8::from(function(at(&inputs[0], i), at(&inputs[1], i))))
                }
                Make::MatMul | Make::Softmax | Make::Transpose => 0.0,
            };
            (0..n_elements(shape)).map(result).collect()
        };
        let values = results(|_, value| value);
        let is_subnormal = |value: &f64| *value != 0.0 && value.abs() < smallest(operand_dtype);
        let flushed = inputs.iter().flat_map(|input| &input.values).any(is_subnormal).then(|| results(flush));
        let (dtype, rounding) = match self.make {
            Make::Unary(function) => (operand_dtype, function.rounding),
            Make::Binary { rounding, .. } => (operand_dtype, rounding),
            _ => (BOOL, Rounding::Exact),
        };
        let bounds = values.iter().map(|&value| rounding.bound(dtype, value)).collect();
        let in_range = |values: Vec<f64>| values.into_iter().map(|value| in_range(dtype, value)).collect();
        let expected = HostTensor { dtype, shape: shape.to_vec(), values: in_range(values) };
        Sample { attributes: Vec::new(), inputs, expected, bounds, flushed: flushed.map(in_range) }
    }
}

/// Turns a subnormal operand into 0, as some devices do.
pub(crate) fn flush(dtype: DType, value: f64) -> f64 {
    if value.abs() < smallest(dtype) { 0.0f64.copysign(value) } else { value }
}

/// Random values; whole ones for integers.
pub(crate) fn random(dtype: DType, dice: &mut Dice, shape: &[i64], (low, high): (f64, f64)) -> HostTensor {
    // Unsigned numbers have no negative half.
    let low = if matches!(dtype, U8 | U16 | U32 | U64 | BOOL) { low.max(0.0) } else { low };
    let high = if dtype == BOOL { 1.0 } else { high };
    let value = |_| {
        let value = dice.between(low, high);
        if is_float(dtype) { value } else { value.round() }
    };
    HostTensor::new(dtype, shape, (0..n_elements(shape)).map(value).collect())
}

/// Returns a second operand: of the same shape, or of one that is broadcast to it. Never 0, for divisions.
pub(crate) fn broadcast_operand(dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
    let mut small = shape.to_vec();
    match dice.below(4) {
        0 => small.clear(),
        1 => small.drain(..shape.len() / 2).for_each(drop),
        2 => small.iter_mut().for_each(|extent| {
            if dice.below(2) == 0 {
                *extent = 1;
            }
        }),
        _ => {}
    }
    let mut tensor = random(dtype, dice, &small, (1.0, 9.0));
    if is_float(dtype) || matches!(dtype, I8 | I16 | I32 | I64) {
        for value in &mut tensor.values {
            if dice.below(2) == 0 {
                *value = -*value;
            }
        }
    }
    tensor
}

/// Returns the element of a broadcast operand that stands beside element `i` of the whole.
pub(crate) fn broadcast_index(i: usize, shape: &[i64], small: &[i64]) -> usize {
    let (mut rest, mut index, mut stride) = (i, 0, 1);
    for axis in (0..shape.len()).rev() {
        let at = rest % shape[axis] as usize;
        rest /= shape[axis] as usize;
        if let Some(own) = (axis + small.len()).checked_sub(shape.len()) {
            let extent = small[own] as usize;
            index += if extent == 1 { 0 } else { at * stride };
            stride *= extent;
        }
    }
    index
}

fn random_mat_mul(dtype: DType, dice: &mut Dice, i: u64) -> Sample {
    let (m, k, n) = match i {
        0 => (1, 1, 1),
        1 => (1, 64, 1),
        2 => (33, 65, 17),
        3 => (64, 128, 96),
        _ => (1 + dice.below(20) as i64, 1 + dice.below(40) as i64, 1 + dice.below(20) as i64),
    };
    let (batch_a, batch_b): (&[i64], &[i64]) = match i % 5 {
        4 => (&[3], &[3]),
        3 => (&[2, 1], &[3]),
        _ => (&[], &[]),
    };
    let a = [batch_a, &[m, k]].concat();
    let b = [batch_b, &[k, n]].concat();
    mat_mul(dtype, dice, &a, &b)
}

pub(crate) fn mat_mul(dtype: DType, dice: &mut Dice, a_shape: &[i64], b_shape: &[i64]) -> Sample {
    let a = random(dtype, dice, a_shape, (-1.0, 1.0));
    let b = random(dtype, dice, b_shape, (-1.0, 1.0));
    let (batch_a, ma) = a_shape.split_at(a_shape.len() - 2);
    let (batch_b, mb) = b_shape.split_at(b_shape.len() - 2);
    let rank = batch_a.len().max(batch_b.len());
    let extent =
        |batch: &[i64], axis: usize| (axis + batch.len()).checked_sub(rank).map_or(1, |own| batch[own]);
    let batch: Vec<i64> = (0..rank).map(|axis| extent(batch_a, axis).max(extent(batch_b, axis))).collect();
    let (m, k, n) = (ma[0] as usize, ma[1] as usize, mb[1] as usize);
    let mut values = Vec::new();
    let mut bounds = Vec::new();
    let unit = unit_roundoff(dtype);
    for one in 0..n_elements(&batch) {
        let a = &a.values[broadcast_index(one, &batch, batch_a) * m * k..];
        let b = &b.values[broadcast_index(one, &batch, batch_b) * k * n..];
        for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
            let products = (0..k).map(|p| a[i * k + p] * b[p * n + j]);
            let magnitude: f64 = products.clone().map(f64::abs).sum();
            values.push(products.sum());
            bounds.push((k + 2) as f64 * unit * magnitude + smallest(dtype));
        }
    }
    let shape = [batch.as_slice(), &[m as i64, n as i64]].concat();
    let expected = HostTensor { dtype, shape, values };
    Sample { attributes: Vec::new(), inputs: vec![a, b], expected, bounds, flushed: None }
}

fn softmax(dtype: DType, dice: &mut Dice, shape: &[i64]) -> Sample {
    let x = random(dtype, dice, shape, (-8.0, 8.0));
    let axis = dice.below(shape.len() as u64) as usize;
    let extent = shape[axis] as usize;
    let inner: usize = n_elements(&shape[axis + 1..]);
    let mut values = vec![0.0; x.values.len()];
    for start in (0..x.values.len()).filter(|i| (i / inner).is_multiple_of(extent)) {
        let line = || (0..extent).map(|i| start + i * inner);
        let max = line().map(|i| x.values[i]).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = line().map(|i| (x.values[i] - max).exp()).sum();
        for i in line() {
            values[i] = (x.values[i] - max).exp() / sum;
        }
    }
    let bounds = values.iter().map(|&value| Rounding::Function.bound(dtype, value)).collect();
    let expected = HostTensor { dtype, shape: shape.to_vec(), values };
    Sample {
        attributes: vec![Attribute::Int("axis", axis as i64)],
        inputs: vec![x],
        expected,
        bounds,
        flushed: None,
    }
}

fn transpose(dtype: DType, dice: &mut Dice, shape: &[i64]) -> Sample {
    let x = random(dtype, dice, shape, (-100.0, 100.0));
    let mut perm: Vec<usize> = (0..shape.len()).collect();
    for i in (1..perm.len()).rev() {
        perm.swap(i, dice.below(i as u64 + 1) as usize);
    }
    let out: Vec<i64> = perm.iter().map(|&axis| shape[axis]).collect();
    let stride = |axis: usize| n_elements(&shape[axis + 1..]);
    let values = (0..x.values.len()).map(|i| {
        let (mut rest, mut from) = (i, 0);
        for axis in (0..out.len()).rev() {
            from += rest % out[axis] as usize * stride(perm[axis]);
            rest /= out[axis] as usize;
        }
        x.values[from]
    });
    let values: Vec<f64> = values.collect();
    let perm = perm.into_iter().map(|axis| axis as i64).collect();
    let bounds = vec![0.0; values.len()];
    let expected = HostTensor { dtype, shape: out, values };
    Sample {
        attributes: vec![Attribute::Ints("perm", perm)],
        inputs: vec![x],
        expected,
        bounds,
        flushed: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_agree_with_numbers_worked_out_by_hand() {
        let mut dice = Dice::new(1);
        let product = mat_mul(F32, &mut dice, &[2, 1, 1, 2], &[3, 2, 1]);
        assert_eq!(product.expected.shape, [2, 3, 1, 1]);
        let (a, b) = (&product.inputs[0].values, &product.inputs[1].values);
        assert_eq!(product.expected.values[4], a[2] * b[2] + a[3] * b[3]);

        assert_eq!(broadcast_index(5, &[2, 3], &[3]), 2);
        assert_eq!(broadcast_index(5, &[2, 3], &[2, 1]), 1);
        assert_eq!(broadcast_index(5, &[2, 3], &[]), 0);

        for seed in 0..20 {
            let sample = softmax(F64, &mut Dice::new(seed), &[3, 4]);
            assert!(
                (sample.expected.values.iter().sum::<f64>() - 3.0).abs() < 1e-9 || {
                    // Along the other axis there are four lines.
                    (sample.expected.values.iter().sum::<f64>() - 4.0).abs() < 1e-9
                }
            );
        }

        let turned = transpose(I32, &mut Dice::new(3), &[2, 3]);
        let Attribute::Ints(_, perm) = &turned.attributes[0] else { panic!("perm is a list") };
        let x = &turned.inputs[0].values;
        let swapped = vec![x[0], x[3], x[1], x[4], x[2], x[5]];
        assert_eq!(turned.expected.values, if perm == &[1, 0] { swapped } else { x.clone() });
    }
}
