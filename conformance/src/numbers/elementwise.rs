//! Ops whose elements stand by themselves, beyond the forms of [`crate::ops`]: with attributes, with several
//! operands, on bits.

use super::index::word;
use super::*;
use crate::functions::{self, Function};
use crate::ops::{broadcast_index, broadcast_operand, random};

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Shrink", NUMBERS, |dtype, dice, i| unary(dtype, dice, i, functions::get("Shrink"))),
    OpTrials::new("Not", &[BOOL], |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = random(dtype, dice, &shape, (0.0, 1.0));
        let values = x.values.iter().map(|x| 1.0 - x).collect();
        let outputs = vec![Expected::exact(dtype, &shape, values)];
        Trial { attributes: Vec::new(), outputs, inputs: vec![Some(x)] }
    }),
    OpTrials::new("IsNaN", FLOATS, |dtype, dice, i| question(dtype, dice, i, Vec::new(), f64::is_nan)),
    OpTrials::new("IsInf", FLOATS, |dtype, dice, i| {
        let (negative, positive) = (i % 3 != 1, i % 3 != 2);
        let attributes = vec![
            ("detect_negative", AttrValue::Int(negative.into())),
            ("detect_positive", AttrValue::Int(positive.into())),
        ];
        question(dtype, dice, i, attributes, |x| x.is_infinite() && if x < 0.0 { negative } else { positive })
    }),
    OpTrials::new("Clip", NUMBERS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = random(dtype, dice, &shape, (-9.0, 9.0));
        let limit = |value| HostTensor::new(dtype, &[], vec![value]);
        // Each limit may be left out; the lower one is not above the upper.
        let low = (i % 3 != 1).then(|| limit(if is_float(dtype) { -2.5 } else { 2.0 }));
        let high = (i % 3 != 2).then(|| limit(4.0));
        let value = |tensor: &Option<HostTensor>, other| tensor.as_ref().map_or(other, |t| t.values[0]);
        let (from, to) = (value(&low, f64::NEG_INFINITY), value(&high, f64::INFINITY));
        let values = x.values.iter().map(|x| x.clamp(from, to)).collect();
        let outputs = vec![Expected::exact(dtype, &shape, values)];
        Trial { attributes: Vec::new(), inputs: vec![Some(x), low, high], outputs }
    }),
    OpTrials::new("BitwiseNot", INTEGERS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = random(dtype, dice, &shape, (-100.0, 100.0));
        let values = x.values.iter().map(|&x| wrapped(dtype, !(x as i128))).collect();
        Trial {
            attributes: Vec::new(),
            // 2^64 - 1 - x is no f64: of the widest unsigned integers only those with few bits.
            outputs: vec![Expected::exact(dtype, &shape, values)],
            inputs: vec![Some(x)],
        }
    }),
    OpTrials::new("BitwiseAnd", INTEGERS, |dtype, dice, i| bits(dtype, dice, i, |a, b| a & b)),
    OpTrials::new("BitwiseOr", INTEGERS, |dtype, dice, i| bits(dtype, dice, i, |a, b| a | b)),
    OpTrials::new("BitwiseXor", INTEGERS, |dtype, dice, i| bits(dtype, dice, i, |a, b| a ^ b)),
    OpTrials::new("BitShift", &[U8, U16, U32, U64], |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = random(dtype, dice, &shape, (0.0, 250.0));
        let mut by = broadcast_operand(dtype, dice, &shape);
        by.values.iter_mut().for_each(|by| *by = by.abs() % 8.0);
        let to_left = i.is_multiple_of(2);
        let values = pairs(&shape, &x, &by)
            .map(|(x, by)| {
                let (x, by) = (x as i128, by as u32);
                wrapped(dtype, if to_left { x << by } else { x >> by })
            })
            .collect();
        let direction = if to_left { "LEFT" } else { "RIGHT" };
        Trial {
            attributes: vec![("direction", word(direction))],
            outputs: vec![Expected::exact(dtype, &shape, values)],
            inputs: vec![Some(x), Some(by)],
        }
    }),
    OpTrials::new("Mod", NUMBERS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = random(dtype, dice, &shape, (-60.0, 60.0));
        let by = broadcast_operand(dtype, dice, &shape);
        // The remainder of a float has the dividend's sign; that of an integer the divisor's, unless fmod is asked for.
        let is_fmod = is_float(dtype) || i % 2 == 1;
        let remainder = |(x, by): (f64, f64)| if is_fmod { x % by } else { x - by * (x / by).floor() };
        let values = pairs(&shape, &x, &by).map(remainder).collect();
        Trial {
            attributes: vec![("fmod", AttrValue::Int(is_fmod.into()))],
            // The remainder of two floats is one.
            outputs: vec![Expected::exact(dtype, &shape, values)],
            inputs: vec![Some(x), Some(by)],
        }
    }),
    OpTrials::new("Pow", NUMBERS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        // 4^3 is in every dtype's range.
        let base = random(dtype, dice, &shape, if is_float(dtype) { (0.1, 4.0) } else { (0.0, 4.0) });
        let mut power = broadcast_operand(dtype, dice, &shape);
        let whole = !is_float(dtype) || i.is_multiple_of(2);
        power.values.iter_mut().for_each(|power| {
            let value = *power % 3.0;
            *power = if whole { value.abs().round() } else { value };
        });
        let power = HostTensor::new(dtype, &power.shape, power.values);
        let values = pairs(&shape, &base, &power).map(|(base, power)| base.powf(power)).collect();
        Trial {
            attributes: Vec::new(),
            outputs: vec![Expected::rounded(dtype, &shape, values, Rounding::Function)],
            inputs: vec![Some(base), Some(power)],
        }
    }),
    OpTrials::new("Where", ANYTHING, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let range = (-100.0, 100.0);
        let mut condition = random(BOOL, dice, &shape, (0.0, 1.0));
        if i % 3 == 2 {
            // Broadcast along the last axis.
            let mut small = shape.clone();
            small.iter_mut().rev().take(1).for_each(|extent| *extent = 1);
            condition = random(BOOL, dice, &small, (0.0, 1.0));
        }
        let (yes, no) = (random(dtype, dice, &shape, range), broadcast_operand(dtype, dice, &shape));
        let chosen = |(at, (yes, no)): (usize, (f64, f64))| {
            if condition.values[broadcast_index(at, &shape, &condition.shape)] != 0.0 { yes } else { no }
        };
        let values = pairs(&shape, &yes, &no).enumerate().map(chosen).collect();
        let outputs = vec![Expected::exact(dtype, &shape, values)];
        Trial { attributes: Vec::new(), inputs: vec![Some(condition), Some(yes), Some(no)], outputs }
    }),
    OpTrials::new("Sum", FLOATS, |dtype, dice, i| several(dtype, dice, i, |_| 1.0)),
    OpTrials::new("Mean", FLOATS, |dtype, dice, i| several(dtype, dice, i, |n| 1.0 / n as f64)),
];

/// Ops of one number, over shapes and within the range in which they are usual.
pub(super) fn unary(dtype: DType, dice: &mut Dice, i: u64, function: &Function) -> Trial {
    let shape = shape_of(dice, i, 0..=4);
    let x = random(dtype, dice, &shape, function.from);
    let values = x.values.iter().map(|&x| function.of(x)).collect();
    Trial {
        attributes: attributes(function),
        outputs: vec![Expected::rounded(dtype, &shape, values, function.rounding)],
        inputs: vec![Some(x)],
    }
}

/// Returns the attributes that make an op the function.
pub(super) fn attributes(function: &Function) -> Vec<(&'static str, AttrValue)> {
    let Some(formula) = function.formula() else { return Vec::new() };
    let has = |name: &str| formula.row.attributes.has(name);
    let params = formula.params.iter().zip(function.params).filter(|(param, _)| has(param.name));
    let numbers = params.map(|(param, number)| (param.name, AttrValue::Float(number)));
    numbers.chain(formula.form.when.map(|(name, value)| (name, word(value)))).collect()
}

/// A truth about each element, of which a third are no numbers or infinite.
fn question(
    dtype: DType,
    dice: &mut Dice,
    i: u64,
    attributes: Vec<(&'static str, AttrValue)>,
    f: impl Fn(f64) -> bool,
) -> Trial {
    let shape = shape_of(dice, i, 0..=4);
    let mut x = random(dtype, dice, &shape, (-5.0, 5.0));
    for value in &mut x.values {
        match dice.below(9) {
            0 => *value = f64::NAN,
            1 => *value = f64::INFINITY,
            2 => *value = f64::NEG_INFINITY,
            _ => {}
        }
    }
    let values = x.values.iter().map(|&x| f64::from(u8::from(f(x)))).collect();
    Trial { attributes, outputs: vec![Expected::exact(BOOL, &shape, values)], inputs: vec![Some(x)] }
}

/// Returns the part of an integer that the dtype's bits hold.
pub(super) fn wrapped(dtype: DType, value: i128) -> f64 {
    let modulus = 1i128 << dtype.bits;
    let value = value.rem_euclid(modulus);
    let is_signed = matches!(dtype, I8 | I16 | I32 | I64);
    (if is_signed && value >= modulus / 2 { value - modulus } else { value }) as f64
}

fn bits(dtype: DType, dice: &mut Dice, i: u64, f: fn(i128, i128) -> i128) -> Trial {
    let shape = shape_of(dice, i, 0..=4);
    let (a, b) = (random(dtype, dice, &shape, (-100.0, 100.0)), broadcast_operand(dtype, dice, &shape));
    let values = pairs(&shape, &a, &b).map(|(a, b)| wrapped(dtype, f(a as i128, b as i128))).collect();
    let outputs = vec![Expected::exact(dtype, &shape, values)];
    Trial { attributes: Vec::new(), inputs: vec![Some(a), Some(b)], outputs }
}

/// Elements of two operands that stand beside each other, where both are broadcast to a shape.
fn pairs<'a>(
    shape: &'a [i64],
    a: &'a HostTensor,
    b: &'a HostTensor,
) -> impl Iterator<Item = (f64, f64)> + 'a {
    let at = |tensor: &HostTensor, i| tensor.values[broadcast_index(i, shape, &tensor.shape)];
    (0..n_elements(shape)).map(move |i| (at(a, i), at(b, i)))
}

/// A weighed sum of one to four operands.
fn several(dtype: DType, dice: &mut Dice, i: u64, weight: fn(usize) -> f64) -> Trial {
    let shape = shape_of(dice, i, 0..=4);
    let n = 1 + i as usize % 4;
    let first = random(dtype, dice, &shape, (-9.0, 9.0));
    let inputs: Vec<HostTensor> =
        std::iter::once(first).chain((1..n).map(|_| broadcast_operand(dtype, dice, &shape))).collect();
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for at in 0..n_elements(&shape) {
        let terms =
            inputs.iter().map(|input| input.values[broadcast_index(at, &shape, &input.shape)] * weight(n));
        values.push(terms.clone().sum());
        bounds.push(sum_bound(dtype, n + 2, terms.map(f64::abs).sum()));
    }
    Trial {
        attributes: Vec::new(),
        outputs: vec![Expected::within(dtype, &shape, values, bounds)],
        inputs: inputs.into_iter().map(Some).collect(),
    }
}
