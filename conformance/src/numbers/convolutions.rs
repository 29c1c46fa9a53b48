//! Convolutions in floats: Conv, ConvTranspose, DeformConv, Col2Im and CausalConvWithState.
//!
//! All are sums of products over a window. The convolutions of integers are in `quantised`.

use super::index::{every, index_of, position, word};
use super::windows::{Windows, spatial};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Conv", FLOATS, conv),
    OpTrials::new("ConvTranspose", FLOATS, conv_transpose),
    OpTrials::new("DeformConv", FLOATS, deform_conv),
    OpTrials::new("Col2Im", NUMBERS, col2im),
    OpTrials::new("CausalConvWithState", &[F32, F16, BF16], causal_conv_with_state),
];

/// Sums under way: of the terms, of their magnitudes, and how many there are.
pub(super) struct Sums(Vec<(f64, f64, usize)>);

impl Sums {
    fn new(n: usize) -> Self {
        Self(vec![(0.0, 0.0, 0); n])
    }

    fn add(&mut self, at: usize, term: f64) {
        let (sum, magnitude, n) = &mut self.0[at];
        (*sum, *magnitude, *n) = (*sum + term, *magnitude + term.abs(), *n + 1);
    }

    /// Returns the sums alone.
    pub(super) fn values(&self) -> impl Iterator<Item = f64> + '_ {
        self.0.iter().map(|(sum, ..)| *sum)
    }

    /// Returns the sums as an output; each term has `n_roundings` of its own.
    fn expected(self, dtype: DType, shape: &[i64], n_roundings: usize) -> Expected {
        let bounds =
            self.0.iter().map(|(_, magnitude, n)| sum_bound(dtype, n + n_roundings, *magnitude)).collect();
        Expected::within(dtype, shape, self.0.iter().map(|(sum, ..)| *sum).collect(), bounds)
    }
}

/// Groups, and channels of input and output in each: one, several, or a depthwise convolution.
pub(super) fn channels(dice: &mut Dice, i: u64) -> (i64, i64, i64) {
    match i % 4 {
        0 => (1, 1 + dice.below(3) as i64, 1 + dice.below(5) as i64),
        1 => (1, 4, 8),
        2 => (2 + dice.below(2) as i64, 1 + dice.below(3) as i64, 1 + dice.below(3) as i64),
        _ => (3 + dice.below(6) as i64, 1, 1 + dice.below(2) as i64),
    }
}

/// Returns the sums of a convolution, with their shape.
pub(super) fn convolve(
    x: &HostTensor,
    w: &HostTensor,
    bias: Option<&HostTensor>,
    windows: &Windows,
    groups: i64,
) -> (Vec<i64>, Sums) {
    let shape = [&[x.shape[0], w.shape[0]], windows.output().as_slice()].concat();
    let (area, taps) = (n_elements(&windows.input), n_elements(&windows.kernel));
    let (c, m) = (w.shape[1] as usize, (w.shape[0] / groups) as usize);
    let mut sums = Sums::new(n_elements(&shape));
    for (at, out) in every(&shape).enumerate() {
        let (image, filter) = (out[0] as usize, out[1] as usize);
        bias.iter().for_each(|bias| sums.add(at, bias.values[filter]));
        for (tap, from) in windows.taps(&out[2..]) {
            let Some(from) = from else { continue };
            for channel in 0..c {
                let plane = image * groups as usize * c + filter / m * c + channel;
                let weight = w.values[(filter * c + channel) * taps + tap];
                sums.add(at, x.values[plane * area + from] * weight);
            }
        }
    }
    (shape, sums)
}

/// A bias in two of three trials.
fn bias_of(dtype: DType, dice: &mut Dice, i: u64, n: i64) -> Option<HostTensor> {
    (!i.is_multiple_of(3)).then(|| random(dtype, dice, &[n], (-1.0, 1.0)))
}

pub(super) fn conv(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let windows = Windows::random(dice, i, &input, false);
    let (groups, c, m) = channels(dice, i);
    let n = 1 + (i % 2) as i64;
    let x = random(dtype, dice, &[&[n, groups * c], input.as_slice()].concat(), (-1.0, 1.0));
    let w = random(dtype, dice, &[&[groups * m, c], windows.kernel.as_slice()].concat(), (-1.0, 1.0));
    let bias = bias_of(dtype, dice, i, groups * m);
    let (shape, sums) = convolve(&x, &w, bias.as_ref(), &windows, groups);
    let mut attributes = windows.attributes(dice);
    attributes.push(("group", AttrValue::Int(groups)));
    if i.is_multiple_of(2) {
        attributes.push(("kernel_shape", AttrValue::Ints(windows.kernel.clone())));
    }
    Trial { attributes, inputs: vec![Some(x), Some(w), bias], outputs: vec![sums.expected(dtype, &shape, 2)] }
}

/// A plane of many channels under windows of 3 x 3 that move by one.
pub(super) fn conv_of_many(dtype: DType, dice: &mut Dice) -> Trial {
    let (c, m) = (16 + dice.below(20) as i64, 16 + dice.below(20) as i64);
    let input = [6 + dice.below(6) as i64, 6 + dice.below(9) as i64];
    let x = random(dtype, dice, &[1, c, input[0], input[1]], (-1.0, 1.0));
    let w = random(dtype, dice, &[m, c, 3, 3], (-1.0, 1.0));
    let bias = random(dtype, dice, &[m], (-1.0, 1.0));
    let mut sums = Sums::new((m * input[0] * input[1]) as usize);
    let shape = [1, m, input[0], input[1]];
    for (at, out) in every(&shape).enumerate() {
        sums.add(at, bias.values[out[1] as usize]);
        for tap in every(&[c, 3, 3]) {
            let from = [0, tap[0], out[2] + tap[1] - 1, out[3] + tap[2] - 1];
            let Some(from) = position(&from, &x.shape) else { continue };
            let weight = ((out[1] * c + tap[0]) * 3 + tap[1]) * 3 + tap[2];
            sums.add(at, x.values[from] * w.values[weight as usize]);
        }
    }
    let attributes = vec![("pads", AttrValue::Ints(vec![1; 4]))];
    let inputs = vec![Some(x), Some(w), Some(bias)];
    Trial { attributes, inputs, outputs: vec![sums.expected(dtype, &shape, 2)] }
}

fn conv_transpose(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = spatial(dice, i);
    let (axes, (groups, c, m)) = (input.len(), channels(dice, i));
    let draw = |dice: &mut Dice, low: u64, n: u64| -> Vec<i64> {
        input.iter().map(|_| (low + dice.below(n)) as i64).collect()
    };
    let kernel = if i == 0 { vec![1] } else { draw(dice, 1, 4) };
    let dilations = draw(dice, 1, 2);
    let reach: Vec<i64> = (0..axes).map(|axis| (kernel[axis] - 1) * dilations[axis] + 1).collect();
    let mut strides = draw(dice, 1, 3);
    let mut more: Vec<i64> = (0..axes).map(|axis| dice.below(strides[axis] as u64) as i64).collect();
    let auto_pad = ["", "", "", "SAME_UPPER", "SAME_LOWER", "VALID", "", ""][dice.below(8) as usize];
    let is_same = auto_pad.starts_with("SAME");
    if is_same {
        // Elsewhere pads would be negative.
        strides.iter_mut().zip(&reach).for_each(|(stride, reach)| *stride = (*stride).min(*reach));
        more.fill(0);
    }
    let full: Vec<i64> =
        (0..axes).map(|axis| strides[axis] * (input[axis] - 1) + more[axis] + reach[axis]).collect();
    let says_output = auto_pad.is_empty() && i % 4 == 3;
    let (mut before, mut after) = (vec![0; axes], vec![0; axes]);
    for axis in 0..axes {
        // At least one element is left.
        let total = match auto_pad {
            "VALID" => 0,
            "" => dice.below(full[axis].min(4) as u64) as i64,
            _ => full[axis] - input[axis] * strides[axis],
        };
        before[axis] = match auto_pad {
            "SAME_UPPER" => total / 2,
            "" if !says_output => dice.below(total as u64 + 1) as i64,
            _ => total - total / 2,
        };
        after[axis] = total - before[axis];
    }
    let output: Vec<i64> = (0..axes).map(|axis| full[axis] - before[axis] - after[axis]).collect();

    let n = 1 + (i % 2) as i64;
    let x = random(dtype, dice, &[&[n, groups * c], input.as_slice()].concat(), (-1.0, 1.0));
    let w = random(dtype, dice, &[&[groups * c, m], kernel.as_slice()].concat(), (-1.0, 1.0));
    let bias = bias_of(dtype, dice, i, groups * m);
    let shape = [&[n, groups * m], output.as_slice()].concat();
    let mut sums = Sums::new(n_elements(&shape));
    for (at, out) in every(&shape).enumerate() {
        bias.iter().for_each(|bias| sums.add(at, bias.values[out[1] as usize]));
    }
    for (at, from) in every(&x.shape).enumerate() {
        for (weight_at, tap) in every(&w.shape).enumerate().filter(|(_, tap)| tap[0] == from[1]) {
            let mut to = vec![from[0], from[1] / c * m + tap[1]];
            to.extend(
                (0..axes).map(|axis| {
                    from[axis + 2] * strides[axis] + tap[axis + 2] * dilations[axis] - before[axis]
                }),
            );
            if let Some(to) = position(&to, &shape) {
                sums.add(to, x.values[at] * w.values[weight_at]);
            }
        }
    }
    let mut attributes = vec![
        ("group", AttrValue::Int(groups)),
        ("strides", AttrValue::Ints(strides)),
        ("dilations", AttrValue::Ints(dilations)),
    ];
    if more.iter().any(|&more| more != 0) {
        attributes.push(("output_padding", AttrValue::Ints(more)));
    }
    match auto_pad {
        "" if says_output => attributes.push(("output_shape", AttrValue::Ints(output))),
        "" => attributes.push(("pads", AttrValue::Ints([before, after].concat()))),
        _ => attributes.push(("auto_pad", word(auto_pad))),
    }
    Trial { attributes, inputs: vec![Some(x), Some(w), bias], outputs: vec![sums.expected(dtype, &shape, 2)] }
}

fn deform_conv(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let input = match i {
        0 => vec![1, 1],
        1 => vec![4, 31],
        2 => vec![13, 14],
        _ => vec![2 + dice.below(6) as i64, 2 + dice.below(6) as i64],
    };
    let mut windows = Windows::random(dice, if i == 0 { 3 } else { i }, &input, false);
    while !windows.auto_pad.is_empty() {
        windows = Windows::random(dice, i.max(3), &input, false);
    }
    // Each group of offsets is about some channels; it need not be a group of the convolution.
    let (groups, c, m) = if i.is_multiple_of(2) { (1, 2, 2) } else { (2, 2, 3) };
    let channels = groups * c;
    let offset_groups = [1, 2, channels][(i % 3) as usize];
    let (n, taps, output) = (1 + (i % 2) as i64, n_elements(&windows.kernel), windows.output());
    let on_output = |channels: i64| [n, channels, output[0], output[1]];
    let x = random(dtype, dice, &[n, channels, input[0], input[1]], (-1.0, 1.0));
    let w = random(dtype, dice, &[groups * m, c, windows.kernel[0], windows.kernel[1]], (-1.0, 1.0));
    let mut offset = random(dtype, dice, &on_output(offset_groups * taps as i64 * 2), (-9.0, 9.0));
    // Quarters, so that each dtype holds every point and its weights exactly.
    offset.values.iter_mut().for_each(|value| *value = value.round() / 4.0);
    let bias = bias_of(dtype, dice, i, groups * m);
    let mask = (i % 4 > 1).then(|| random(dtype, dice, &on_output(offset_groups * taps as i64), (0.0, 1.0)));
    let shape = on_output(groups * m);
    let mut sums = Sums::new(n_elements(&shape));
    let at_of = |channel: i64, out: &[i64]| {
        let channels = offset_groups * taps as i64 * 2;
        position(&[out[0], channel, out[2], out[3]], &on_output(channels)).unwrap_or(0)
    };
    for (at, out) in every(&shape).enumerate() {
        bias.iter().for_each(|bias| sums.add(at, bias.values[out[1] as usize]));
        let points = windows.points(&out[2..]);
        for (tap, own) in (0..taps).flat_map(|tap| (0..c).map(move |own| (tap, own))) {
            let channel = out[1] / m * c + own;
            let block = channel / (channels / offset_groups) * taps as i64 + tap as i64;
            let moved =
                |axis: i64| points[tap][axis as usize] as f64 + offset.values[at_of(block * 2 + axis, &out)];
            let mut factor = w.values[position(&[out[1], own], &w.shape[..2]).unwrap_or(0) * taps + tap];
            if let Some(mask) = &mask {
                let index = position(&[out[0], block, out[2], out[3]], &mask.shape);
                factor *= mask.values[index.unwrap_or(0)];
            }
            // Between the four neighbours, of which those outside are 0.
            let (y, x_at) = (moved(0), moved(1));
            for (dy, dx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                let (near_y, near_x) = (y.floor() as i64 + dy, x_at.floor() as i64 + dx);
                let share = (1.0 - (y - near_y as f64).abs()) * (1.0 - (x_at - near_x as f64).abs());
                if let Some(from) = position(&[out[0], channel, near_y, near_x], &x.shape) {
                    sums.add(at, x.values[from] * share * factor);
                }
            }
        }
    }
    let mut attributes = windows.attributes(dice);
    attributes.push(("group", AttrValue::Int(groups)));
    attributes.push(("offset_group", AttrValue::Int(offset_groups)));
    // A term has a share, a mask and a weight, each with a rounding.
    let outputs = vec![sums.expected(dtype, &shape, 6)];
    Trial { attributes, inputs: vec![Some(x), Some(w), Some(offset), bias, mask], outputs }
}

fn col2im(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let image = spatial(dice, i);
    let mut windows = Windows::random(dice, i, &image, false);
    while !windows.auto_pad.is_empty() {
        windows = Windows::random(dice, i, &image, false);
    }
    let (n, c) = (1 + (i % 2) as i64, 1 + dice.below(3) as i64);
    let (blocks, taps) = (windows.output(), n_elements(&windows.kernel) as i64);
    // No 8-bit sum of 27 of these overflows.
    let range = if is_float(dtype) { (-1.0, 1.0) } else { (-4.0, 4.0) };
    let x = random(dtype, dice, &[n, c * taps, n_elements(&blocks) as i64], range);
    let shape = [&[n, c], image.as_slice()].concat();
    let mut sums = Sums::new(n_elements(&shape));
    let area = n_elements(&image);
    for (value, from) in x.values.iter().zip(every(&x.shape)) {
        let (channel, tap) = (from[1] / taps, (from[1] % taps) as usize);
        if let (_, Some(to)) = windows.taps(&index_of(from[2] as usize, &blocks))[tap] {
            sums.add((from[0] * c + channel) as usize * area + to, *value);
        }
    }
    let list = |values: &[i64]| {
        let values: Vec<f64> = values.iter().map(|&value| value as f64).collect();
        Some(HostTensor::new(I64, &[values.len() as i64], values))
    };
    Trial {
        attributes: windows.attributes(dice),
        inputs: vec![Some(x), list(&image), list(&windows.kernel)],
        outputs: vec![sums.expected(dtype, &shape, 1)],
    }
}

fn causal_conv_with_state(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (n, c, length, k) = match i {
        0 => (1, 1, 1, 2),
        1 => (2, 5, 67, 4),
        2 => (1, 33, 130, 3),
        // A kernel of one element has a state of none; a state may be longer than the input.
        _ => (1 + dice.below(3), 1 + dice.below(9), 1 + dice.below(9), 1 + dice.below(5)),
    };
    let (n, c, length, k) = (n as i64, c as i64, length as i64, k as i64);
    let x = random(dtype, dice, &[n, c, length], (-1.0, 1.0));
    let w = random(dtype, dice, &[c, 1, k], (-1.0, 1.0));
    let bias = bias_of(dtype, dice, i, c);
    let past = (i % 2 == 1).then(|| random(dtype, dice, &[n, c, k - 1], (-1.0, 1.0)));
    let padded = |image: i64, channel: i64, at: i64| match (
        position(&[image, channel, at - (k - 1)], &x.shape),
        &past,
    ) {
        (Some(at), _) => x.values[at],
        (None, Some(past)) => past.values[((image * c + channel) * (k - 1) + at) as usize],
        (None, None) => 0.0,
    };
    let activation = ["none", "silu", "swish", ""][(i % 4) as usize];
    let is_gated = matches!(activation, "silu" | "swish");
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for out in every(&x.shape) {
        let bias = bias.as_ref().map_or(0.0, |bias| bias.values[out[1] as usize]);
        let product = |tap| padded(out[0], out[1], out[2] + tap) * w.values[(out[1] * k + tap) as usize];
        let terms = || (0..k).map(product).chain([bias]);
        let sum: f64 = terms().sum();
        let bound = sum_bound(dtype, k as usize + 3, terms().map(f64::abs).sum());
        values.push(if is_gated { sum / (1.0 + (-sum).exp()) } else { sum });
        // SiLU's slope is nowhere above 1.1.
        let gated = 1.1 * bound + Rounding::Function.bound(dtype, sum);
        bounds.push(if is_gated { gated } else { bound });
    }
    let present = every(&[n, c, k - 1]).map(|at| padded(at[0], at[1], at[2] + length)).collect();
    Trial {
        attributes: if activation.is_empty() { Vec::new() } else { vec![("activation", word(activation))] },
        outputs: vec![
            Expected::within(dtype, &[n, c, length], values, bounds),
            Expected::exact(dtype, &[n, c, k - 1], present),
        ],
        inputs: vec![Some(x), Some(w), bias, past],
    }
}
