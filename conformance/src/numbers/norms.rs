//! Normalisations by mean and variance, or by the mean square.
//!
//! Where the specification gives the precision of the statistics (`stash_type`, f32 unless said otherwise), bounds
//! are about that one, and about the dtype only for what comes after. Elsewhere plugins have the dtype itself.

use super::near::{Near, nears};
use super::*;
use crate::ops::{broadcast_index, random};

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("LayerNormalization", FLOATS, layer),
    OpTrials::new("InstanceNormalization", FLOATS, |dtype, dice, i| {
        let shape = image(dice, i, 1);
        let attributes = epsilon(i);
        let (x, scale, bias) = channels(dtype, dice, i, &shape);
        let inner = n_elements(&shape[2..]);
        let lines = nears(&x);
        let normalised = lines.chunks(inner).flat_map(|line| standardised(dtype, line, attributes.1).0);
        let y = scaled(normalised, &shape, &scale, &bias);
        Trial {
            attributes: attributes.0,
            outputs: vec![Expected::near(dtype, &shape, y)],
            inputs: vec![Some(x), Some(scale), Some(bias)],
        }
    }),
    OpTrials::new("GroupNormalization", FLOATS, |dtype, dice, i| {
        let mut shape = image(dice, i, 1);
        let n_groups = 1 + dice.below(3) as i64;
        shape[1] *= n_groups;
        let (mut attributes, epsilon) = epsilon(i);
        attributes.push(("num_groups", AttrValue::Int(n_groups)));
        let (x, scale, bias) = channels(dtype, dice, i, &shape);
        let stage: Vec<Near> = nears(&x).into_iter().map(|x| x.cast(F32)).collect();
        let group = n_elements(&shape[1..]) / n_groups as usize;
        let normalised = stage.chunks(group).flat_map(|group| standardised(F32, group, epsilon).0);
        let y = scaled(normalised.map(|number| number.cast(dtype)), &shape, &scale, &bias);
        Trial {
            attributes,
            outputs: vec![Expected::near(dtype, &shape, y)],
            inputs: vec![Some(x), Some(scale), Some(bias)],
        }
    }),
    OpTrials::new("BatchNormalization", FLOATS, |dtype, dice, i| {
        // A tensor of one dimension has one channel.
        let shape = if i == 4 { vec![7] } else { image(dice, i, i.min(1) as usize) };
        let n_channels = shape.get(1).copied().unwrap_or(1);
        let (attributes, epsilon) = epsilon(i);
        let x = random(dtype, dice, &shape, (-3.0, 3.0));
        // Statistics of 16-bit floats often are of f32.
        let statistics = if i % 4 == 3 && dtype != F64 { F32 } else { dtype };
        let mut channel = |range| random(statistics, dice, &[n_channels], range);
        let (scale, bias) = (channel((-2.0, 2.0)), channel((-2.0, 2.0)));
        let (mean, variance) = (channel((-2.0, 2.0)), channel((0.0, 4.0)));
        let inner = n_elements(shape.get(2..).unwrap_or(&[]));
        let y = nears(&x).into_iter().enumerate().map(|(at, x)| {
            let channel = at / inner % n_channels as usize;
            let of = |tensor: &HostTensor| Near::rounded(dtype, tensor.values[channel]);
            let deviation = (of(&variance) + Near::rounded(dtype, epsilon)).sqrt();
            // As plugins fold it: a product and a sum, which loses more than the difference first.
            let factor = of(&scale) / deviation;
            x * factor + (of(&bias) - of(&mean) * factor)
        });
        let outputs = vec![Expected::near(dtype, &shape, y.collect())];
        Trial { attributes, inputs: [x, scale, bias, mean, variance].map(Some).into(), outputs }
    }),
    OpTrials::new("RMSNormalization", FLOATS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 1..=4);
        let (mut attributes, epsilon) = epsilon(i);
        let axis = first_axis(dice, i, shape.len(), &mut attributes);
        let x = random(dtype, dice, &shape, (-3.0, 3.0));
        let scale = scale_of(dtype, dice, i, &shape[axis..]);
        let stage: Vec<Near> = nears(&x).into_iter().map(|x| x.cast(F32)).collect();
        let normalised = stage.chunks(n_elements(&shape[axis..])).flat_map(|line| {
            let squares: Vec<Near> = line.iter().map(|&x| x * x).collect();
            let root = (Near::mean(F32, &squares) + Near::rounded(F32, epsilon)).sqrt();
            line.iter().map(move |&x| (x / root).cast(dtype))
        });
        let factors = nears(&scale);
        let y = normalised
            .enumerate()
            .map(|(at, x)| x * factors[broadcast_index(at, &shape, &scale.shape)])
            .collect();
        let outputs = vec![Expected::near(dtype, &shape, y)];
        Trial { attributes, inputs: vec![Some(x), Some(scale)], outputs }
    }),
    OpTrials::new("MeanVarianceNormalization", FLOATS, mean_variance),
];

/// Batches of channels: at least `spatial` dimensions beside them.
fn image(dice: &mut Dice, i: u64, spatial: usize) -> Vec<i64> {
    match i {
        0 => vec![1; 2 + spatial],
        1 => vec![2, 4, 67],
        2 => vec![3, 5, 17, 11],
        _ => {
            let rank = 2 + spatial + dice.below(3) as usize;
            (0..rank).map(|_| 1 + dice.below(6) as i64).collect()
        }
    }
}

/// Returns the attribute, or its default.
fn epsilon(i: u64) -> (Vec<(&'static str, AttrValue)>, f64) {
    match i % 3 {
        0 => (Vec::new(), f64::from(1e-5f32)),
        _ => (vec![("epsilon", AttrValue::Float(0.03))], f64::from(0.03f32)),
    }
}

/// Returns the first axis of those that are normalised, counted from either end or left out for the last.
fn first_axis(
    dice: &mut Dice,
    i: u64,
    rank: usize,
    attributes: &mut Vec<(&'static str, AttrValue)>,
) -> usize {
    if i % 4 == 1 {
        return rank - 1;
    }
    let axis = dice.below(rank as u64) as i64;
    attributes.push(("axis", AttrValue::Int(if i.is_multiple_of(2) { axis - rank as i64 } else { axis })));
    axis as usize
}

/// Of the normalised shape, or broadcast to it.
fn scale_of(dtype: DType, dice: &mut Dice, i: u64, shape: &[i64]) -> HostTensor {
    let shape = if i % 5 == 4 { &shape[shape.len() - 1..] } else { shape };
    random(dtype, dice, shape, (-2.0, 2.0))
}

/// Data around a mean that is not 0 every second time, and a scale and a bias for each channel.
fn channels(dtype: DType, dice: &mut Dice, i: u64, shape: &[i64]) -> (HostTensor, HostTensor, HostTensor) {
    let x = random(dtype, dice, shape, around(i));
    let mut channel = || random(dtype, dice, &[shape[1]], (-2.0, 2.0));
    let (scale, bias) = (channel(), channel());
    (x, scale, bias)
}

fn around(i: u64) -> (f64, f64) {
    if i.is_multiple_of(2) { (-3.0, 3.0) } else { (2.0, 4.0) }
}

/// Elements without their mean over their deviation; the mean; the inverse of the deviation.
fn standardised(dtype: DType, line: &[Near], epsilon: f64) -> (Vec<Near>, Near, Near) {
    let mean = Near::mean(dtype, line);
    let differences: Vec<Near> = line.iter().map(|&x| x - mean).collect();
    let squares: Vec<Near> = differences.iter().map(|&d| d * d).collect();
    let variance = Near::mean(dtype, &squares) + Near::rounded(dtype, epsilon);
    let inverse = Near::of(dtype, 1.0) / variance.sqrt();
    (differences.into_iter().map(|d| d * inverse).collect(), mean, inverse)
}

/// Scaled and shifted by channel.
fn scaled(
    normalised: impl Iterator<Item = Near>,
    shape: &[i64],
    scale: &HostTensor,
    bias: &HostTensor,
) -> Vec<Near> {
    let (scale, bias) = (nears(scale), nears(bias));
    let inner = n_elements(&shape[2..]);
    let each = normalised.enumerate().map(|(at, x)| {
        let channel = at / inner % scale.len();
        x * scale[channel] + bias[channel]
    });
    each.collect()
}

fn layer(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = shape_of(dice, i, 1..=4);
    let (mut attributes, epsilon) = epsilon(i);
    let axis = first_axis(dice, i, shape.len(), &mut attributes);
    let x = random(dtype, dice, &shape, around(i));
    let scale = scale_of(dtype, dice, i, &shape[axis..]);
    let bias = (i % 3 != 2).then(|| scale_of(dtype, dice, i + 1, &shape[axis..]));
    let stage: Vec<Near> = nears(&x).into_iter().map(|x| x.cast(F32)).collect();
    let (mut y, mut means, mut inverses) = (Vec::new(), Vec::new(), Vec::new());
    for line in stage.chunks(n_elements(&shape[axis..])) {
        let (normalised, mean, inverse) = standardised(F32, line, epsilon);
        y.extend(normalised.into_iter().map(|number| number.cast(dtype)));
        means.push(mean);
        inverses.push(inverse);
    }
    for (at, y) in y.iter_mut().enumerate() {
        let of =
            |tensor: &HostTensor| Near::of(dtype, tensor.values[broadcast_index(at, &shape, &tensor.shape)]);
        *y = *y * of(&scale);
        if let Some(bias) = &bias {
            *y = *y + of(bias);
        }
    }
    let mut outputs = vec![Expected::near(dtype, &shape, y)];
    if i.is_multiple_of(2) {
        let mut statistics = shape.clone();
        statistics[axis..].fill(1);
        outputs.push(Expected::near(F32, &statistics, means));
        outputs.push(Expected::near(F32, &statistics, inverses));
    }
    Trial { attributes, inputs: vec![Some(x), Some(scale), bias], outputs }
}

fn mean_variance(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    // For a line of equal numbers the formula gives NaN.
    let shape: Vec<i64> = match i {
        0 => vec![2, 1, 1, 1],
        1 => vec![2, 3, 5, 13],
        2 => vec![2, 5, 17, 11],
        _ => (0..4).map(|_| 2 + dice.below(4) as i64).collect(),
    };
    let axes: Vec<i64> = if i < 3 || i.is_multiple_of(3) {
        vec![0, 2, 3]
    } else {
        let first = dice.below(3) as i64;
        vec![first, [-1, 3][i as usize % 2]]
    };
    let is_default = i.is_multiple_of(2) && axes.len() == 3;
    let x = random(dtype, dice, &shape, (-3.0, 3.0));
    // The elements beside which an element stands: those of the same place along the other axes.
    let mut kept = shape.clone();
    axes.iter().for_each(|&axis| kept[axis.rem_euclid(4) as usize] = 1);
    let mut lines = vec![Vec::new(); n_elements(&kept)];
    let line_of = |at| broadcast_index(at, &shape, &kept);
    nears(&x).into_iter().enumerate().for_each(|(at, x)| lines[line_of(at)].push(x));
    let statistics: Vec<(Near, Near)> = lines
        .iter()
        .map(|line| {
            let squares: Vec<Near> = line.iter().map(|&x| x * x).collect();
            let mean = Near::mean(dtype, line);
            // The specification's function takes the difference of the means, which loses more than the mean of
            // the differences, and adds 1e-9 to the deviation, which the formula does not have.
            let mut deviation = (Near::mean(dtype, &squares) - mean * mean).sqrt();
            deviation.error += 1e-9;
            (mean, deviation)
        })
        .collect();
    let y = nears(&x).into_iter().enumerate().map(|(at, x)| {
        let (mean, deviation) = statistics[line_of(at)];
        (x - mean) / deviation
    });
    let outputs = vec![Expected::near(dtype, &shape, y.collect())];
    let attributes = if is_default { Vec::new() } else { vec![("axes", AttrValue::Ints(axes))] };
    Trial { attributes, inputs: vec![Some(x)], outputs }
}
