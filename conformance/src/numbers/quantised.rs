//! Integers that stand for numbers: what makes them, what reads them, and the convolutions of them.
//!
//! A quotient that is rounded to an integer has no error but where it is so near to a tie that the error of the
//! quotient itself decides; there either neighbour is right. [`quantised`] says so.

use super::convolutions::{channels, convolve};
use super::index::{every, limits, onnx_dtype, position};
use super::windows::{Windows, spatial};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("ConvInteger", &[I8, U8], conv_integer),
    OpTrials::new("QLinearConv", &[I8, U8], q_linear_conv),
    OpTrials::new("QuantizeLinear", &[F32, F16, BF16, I32], quantize_linear),
    OpTrials::new("DequantizeLinear", &[I8, U8, I16, U16, I32], dequantize_linear),
    OpTrials::new("DynamicQuantizeLinear", &[F32], dynamic_quantize_linear),
];

/// Quantises a quotient with this error, and returns it with its maximum error.
pub(super) fn quantised(dtype: DType, quotient: f64, error: f64, zero: f64) -> (f64, f64) {
    let (low, high) = limits(dtype);
    let rounded = |quotient: f64| (quotient.round_ties_even() + zero).clamp(low, high);
    let value = rounded(quotient);
    (value, (rounded(quotient + error) - value).max(value - rounded(quotient - error)))
}

/// Scales, neither so small nor so large that a dtype of 16 bits loses a product of two.
pub(super) fn scale_of(dtype: DType, dice: &mut Dice, shape: &[i64]) -> HostTensor {
    random(dtype, dice, shape, (0.02, 0.5))
}

/// A convolution of 8-bit integers: operands, windows, groups, and whether weights have a zero point a filter.
struct Convolution {
    x: HostTensor,
    w: HostTensor,
    windows: Windows,
    groups: i64,
    /// Shape of what is said of the weights.
    of_w: Vec<i64>,
}

fn convolution(dtype: DType, dice: &mut Dice, i: u64) -> Convolution {
    let input = if i == 2 { vec![17, 18] } else { spatial(dice, i) };
    let windows = Windows::random(dice, i, &input, false);
    let (groups, c, m) = channels(dice, i);
    // The choice of dtypes must not follow the choice of channels.
    let w_dtype = if (i / 2).is_multiple_of(2) { I8 } else { U8 };
    let x =
        random(dtype, dice, &[&[1 + (i % 2) as i64, groups * c], input.as_slice()].concat(), (-128.0, 255.0));
    let w = random(w_dtype, dice, &[&[groups * m, c], windows.kernel.as_slice()].concat(), (-128.0, 255.0));
    let of_w = if i % 3 == 2 { vec![groups * m] } else { Vec::new() };
    Convolution { x, w, windows, groups, of_w }
}

impl Convolution {
    /// Returns the sums without zero points. Padding stands for 0, and not for the integer 0.
    fn sums(&self, x_zero: f64, w_zero: &[f64], bias: Option<&HostTensor>) -> (Vec<i64>, Vec<f64>) {
        let each = self.w.values.len() / self.w.shape[0] as usize;
        let x = self.x.values.iter().map(|x| x - x_zero).collect();
        let w = self.w.values.iter().enumerate();
        let w = w.map(|(at, w)| w - w_zero[(at / each).min(w_zero.len() - 1)]).collect();
        let (x, w) = (HostTensor::new(I32, &self.x.shape, x), HostTensor::new(I32, &self.w.shape, w));
        let (shape, sums) = convolve(&x, &w, bias, &self.windows, self.groups);
        (shape, sums.values().collect())
    }

    fn attributes(&self, dice: &mut Dice) -> Vec<(&'static str, AttrValue)> {
        let mut attributes = self.windows.attributes(dice);
        attributes.push(("group", AttrValue::Int(self.groups)));
        attributes
    }
}

fn conv_integer(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let convolution = convolution(dtype, dice, i);
    let x_zero = (!i.is_multiple_of(4)).then(|| random(dtype, dice, &[], (-128.0, 255.0)));
    let w_zero = (i % 4 > 1).then(|| random(convolution.w.dtype, dice, &convolution.of_w, (-128.0, 255.0)));
    let values = |zero: &Option<HostTensor>| zero.as_ref().map_or(vec![0.0], |zero| zero.values.clone());
    let (shape, sums) = convolution.sums(values(&x_zero)[0], &values(&w_zero), None);
    Trial {
        attributes: convolution.attributes(dice),
        outputs: vec![Expected::exact(I32, &shape, sums)],
        inputs: vec![Some(convolution.x), Some(convolution.w), x_zero, w_zero],
    }
}

fn q_linear_conv(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let convolution = convolution(dtype, dice, i);
    let y_dtype = if i % 5 == 4 { I8 } else { dtype };
    let w = &convolution.w;
    let (x_scale, w_scale) = (scale_of(F32, dice, &[]), scale_of(F32, dice, &convolution.of_w));
    let x_zero = random(dtype, dice, &[], (-128.0, 255.0));
    let w_zero = random(w.dtype, dice, &convolution.of_w, (-128.0, 255.0));
    let bias = (i % 2 == 1).then(|| random(I32, dice, &w.shape[..1], (-9000.0, 9000.0)));
    let n_terms = (w.values.len() / w.shape[0] as usize) as f64;
    // So that most results are within 8 bits, and some are not.
    let typical = x_scale.values[0] * w_scale.values[0] * n_terms.sqrt() * 120.0;
    let y_scale = HostTensor::new(F32, &[], vec![typical]);
    let y_zero = random(y_dtype, dice, &[], (-20.0, 140.0));
    let (shape, sums) = convolution.sums(x_zero.values[0], &w_zero.values, bias.as_ref());
    let element = |(sum, out): (f64, Vec<i64>)| {
        let of_w = if w_scale.values.len() > 1 { out[1] as usize } else { 0 };
        let quotient = sum * x_scale.values[0] * w_scale.values[of_w] / y_scale.values[0];
        // Four operations in f32, one of them a division.
        quantised(y_dtype, quotient, sum_bound(F32, 8, quotient.abs()), y_zero.values[0])
    };
    let (values, bounds) = sums.into_iter().zip(every(&shape)).map(element).unzip();
    let (attributes, Convolution { x, w, .. }) = (convolution.attributes(dice), convolution);
    let inputs =
        [x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero].into_iter().map(Some).chain([bias]);
    let outputs = vec![Expected::within(y_dtype, &shape, values, bounds)];
    Trial { attributes, inputs: inputs.collect(), outputs }
}

/// Sharing of scales: by all elements, those at one place of an axis, or those of a block along an axis.
struct Grain {
    /// Of the elements.
    shape: Vec<i64>,
    /// Of the scales.
    scales: Vec<i64>,
    axis: usize,
    block: i64,
    attributes: Vec<(&'static str, AttrValue)>,
}

impl Grain {
    fn random(dice: &mut Dice, i: u64) -> Self {
        let has_axis = !i.is_multiple_of(3);
        // Along the axis of a vector all share a scale.
        let shape = shape_of(dice, i, if has_axis { 2..=4 } else { 0..=4 });
        let mut grain = Self { shape, scales: Vec::new(), axis: 0, block: 0, attributes: Vec::new() };
        if !has_axis {
            return grain;
        }
        let rank = grain.shape.len();
        grain.axis = dice.below(rank as u64) as usize;
        if i % 3 == 1 {
            grain.scales = vec![grain.shape[grain.axis]];
        } else {
            grain.block = 1 + dice.below(4) as i64;
            grain.scales = grain.shape.clone();
            grain.scales[grain.axis] = (grain.shape[grain.axis] + grain.block - 1) / grain.block;
            grain.attributes.push(("block_size", AttrValue::Int(grain.block)));
        }
        let said = if i.is_multiple_of(2) { grain.axis as i64 } else { grain.axis as i64 - rank as i64 };
        // 1 is the default.
        if said != 1 {
            grain.attributes.push(("axis", AttrValue::Int(said)));
        }
        grain
    }

    /// Returns the index of an element's scale.
    fn index(&self, at: &[i64]) -> usize {
        match (self.scales.len(), self.block) {
            (0, _) => 0,
            (_, 0) => at[self.axis] as usize,
            (_, block) => {
                let mut own = at.to_vec();
                own[self.axis] /= block;
                position(&own, &self.scales).unwrap_or(0)
            }
        }
    }

    /// Returns the scale's index for each element in order.
    fn indices(&self) -> Vec<usize> {
        every(&self.shape).map(|at| self.index(&at)).collect()
    }
}

fn quantize_linear(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mut grain = Grain::random(dice, i);
    let y_dtype = [U8, I8, U16, I16][(i / 3) as usize % 4];
    let (low, high) = limits(y_dtype);
    // The scale's dtype is the precision of the division.
    let scale_dtype = if dtype == I32 { F32 } else { dtype };
    let mut scale = scale_of(scale_dtype, dice, &grain.scales);
    // By powers of two quotients are exact, and so are ties.
    let is_exact = i.is_multiple_of(2);
    if is_exact {
        scale.values.iter_mut().for_each(|scale| *scale = if dtype == I32 { 2.0 } else { 0.25 });
    }
    let has_zero = i % 5 != 4;
    let zero = has_zero.then(|| random(y_dtype, dice, &grain.scales, (low / 2.0, high / 2.0)));
    if !has_zero && (y_dtype != U8 || i == 4) {
        grain.attributes.push(("output_dtype", onnx_dtype(y_dtype)));
    }
    let n = n_elements(&grain.shape);
    let indices = grain.indices();
    let x = (0..n).map(|at| {
        let scale = scale.values[indices[at]];
        match dice.below(24) {
            0 if is_float(dtype) => f64::INFINITY,
            1 if is_float(dtype) => f64::NEG_INFINITY,
            2 if dtype == I32 => 1e9,
            // Of small quotients half are ties.
            3..=12 => dice.between(-60.0, 60.0).round() / 2.0 * scale,
            _ => dice.between(low - high / 4.0, high * 1.25) * scale,
        }
    });
    let x = x.map(|x| if dtype == I32 { x.round() } else { x }).collect();
    let x = HostTensor::new(dtype, &grain.shape, x);
    let element = |(x, index): (&f64, &usize)| {
        let quotient = x / scale.values[*index];
        let error = if is_exact { 0.0 } else { Rounding::Division.bound(scale_dtype, quotient) };
        quantised(y_dtype, quotient, error, zero.as_ref().map_or(0.0, |zero| zero.values[*index]))
    };
    let (values, bounds) = x.values.iter().zip(&indices).map(element).unzip();
    let outputs = vec![Expected::within(y_dtype, &grain.shape, values, bounds)];
    Trial { attributes: grain.attributes, inputs: vec![Some(x), Some(scale), zero], outputs }
}

fn dequantize_linear(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mut grain = Grain::random(dice, i);
    let scale_dtype = [F32, F16, BF16][(i / 3) as usize % 3];
    // The precision is that of the output, which is the scale's unless said otherwise.
    let y_dtype = if i == 13 { F16 } else { scale_dtype };
    if y_dtype != scale_dtype {
        grain.attributes.push(("output_dtype", onnx_dtype(y_dtype)));
    }
    let scale = scale_of(scale_dtype, dice, &grain.scales);
    // An integer of 32 bits has no zero point.
    let (low, high) = limits(dtype);
    let zero = (dtype != I32 && i % 4 != 3).then(|| random(dtype, dice, &grain.scales, (low, high)));
    let zero_of = |index: usize| zero.as_ref().map_or(0.0, |zero| zero.values[index]);
    let indices = grain.indices();
    // Differences that f16 holds, of integers that it may not.
    let x = indices.iter().map(|&index| (zero_of(index) + dice.between(-2e4, 2e4).round()).clamp(low, high));
    let mut x: Vec<f64> = x.collect();
    x.iter_mut().zip(&indices).step_by(2).for_each(|(x, index)| {
        *x = (zero_of(*index) + dice.between(-99.0, 99.0).round()).clamp(low, high);
    });
    let x = HostTensor::new(dtype, &grain.shape, x);
    let element = |(x, index): (&f64, &usize)| {
        let y = (x - zero_of(*index)) * scale.values[*index];
        // The scale, the difference, and the product are each rounded to the output's dtype.
        (y, sum_bound(y_dtype, 4, y.abs()))
    };
    let (values, bounds) = x.values.iter().zip(&indices).map(element).unzip();
    let outputs = vec![Expected::within(y_dtype, &grain.shape, values, bounds)];
    Trial { attributes: grain.attributes, inputs: vec![Some(x), Some(scale), zero], outputs }
}

fn dynamic_quantize_linear(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = shape_of(dice, i, 0..=4);
    // Of both signs, or of one; then 0 is in the range as well.
    let range = [(-3.0, 5.0), (1.0, 9.0), (-9.0, -1.0), (-0.001, 70.0)][i as usize % 4];
    let x = random(dtype, dice, &shape, range);
    let least = x.values.iter().fold(0.0, |least: f64, x| least.min(*x));
    let most = x.values.iter().fold(0.0, |most: f64, x| most.max(*x));
    let scale = (most - least) / 255.0;
    // The scale is a difference and a division, and each quotient by it a division more.
    let quotient = |x: f64| (x / scale, sum_bound(F32, 12, (x / scale).abs()));
    let (from_zero, error) = quotient(-least);
    let (zero, zero_bound) = quantised(U8, from_zero, error, 0.0);
    let element = |x: &f64| {
        let (quotient, error) = quotient(*x);
        let (value, bound) = quantised(U8, quotient, error, zero);
        (value, bound + zero_bound)
    };
    let (values, bounds) = x.values.iter().map(element).unzip();
    Trial {
        attributes: Vec::new(),
        outputs: vec![
            Expected::within(U8, &shape, values, bounds),
            Expected::within(F32, &[], vec![scale], vec![sum_bound(F32, 6, scale)]),
            Expected::within(U8, &[], vec![zero], vec![zero_bound]),
        ],
        inputs: vec![Some(x)],
    }
}
