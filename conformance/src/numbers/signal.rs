//! Windows, Fourier transforms, and the weights of mel spectra.
//!
//! Transforms are sums over all elements, written down as such. A fast one goes through fewer additions, but one by
//! way of a convolution loses some more in each: hence the constant in [`transform_bound`].

use super::index::onnx_dtype;
use super::*;
use crate::ops::random;
use std::f64::consts::PI;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("HannWindow", NUMBERS, |dtype, dice, i| window(dtype, dice, i, [0.5, 0.5, 0.0])),
    // The reference implementation's numbers; the specification's text has none.
    OpTrials::new("HammingWindow", NUMBERS, |dtype, dice, i| {
        window(dtype, dice, i, [25.0 / 46.0, 21.0 / 46.0, 0.0])
    }),
    OpTrials::new("BlackmanWindow", NUMBERS, |dtype, dice, i| window(dtype, dice, i, [0.42, 0.5, 0.08])),
    OpTrials::new("DFT", FLOATS, dft),
    OpTrials::new("STFT", FLOATS, stft),
    OpTrials::new("MelWeightMatrix", NUMBERS, mel_weight_matrix),
];

/// A whole number that an op is told.
fn scalar(i: u64, value: usize) -> Option<HostTensor> {
    Some(HostTensor::new(if i.is_multiple_of(2) { I64 } else { I32 }, &[], vec![value as f64]))
}

/// Returns the attribute that names the output's type; f32 is the default.
fn output_type(dtype: DType, i: u64) -> Vec<(&'static str, AttrValue)> {
    if dtype == F32 && i.is_multiple_of(2) {
        return Vec::new();
    }
    vec![("output_datatype", onnx_dtype(dtype))]
}

/// a - b cos(2 pi n / N) + c cos(4 pi n / N).
fn window(dtype: DType, dice: &mut Dice, i: u64, [a, b, c]: [f64; 3]) -> Trial {
    let is_periodic = i % 4 < 2;
    let size = match i {
        0 => 1,
        1 => 67,
        2 => 1030,
        // The symmetric window of one element is 0 / 0.
        _ => 2 + dice.below(40) as usize,
    };
    let period = if is_periodic { size } else { size - 1 } as f64;
    let angle = |n: usize| 2.0 * PI * n as f64 / period;
    let exact: Vec<f64> = (0..size).map(|n| a - b * angle(n).cos() + c * (2.0 * angle(n)).cos()).collect();
    // The specification's function computes in f32, for every type of result.
    let off = |value: f64| Rounding::Function.bound(F32, value);
    let shape = [size as i64];
    let expected = if is_float(dtype) {
        let bounds = exact.iter().map(|&value| off(value) + Rounding::Exact.bound(dtype, value)).collect();
        Expected::within(dtype, &shape, exact, bounds)
    } else {
        // Towards zero: a value of almost 1 may be either.
        let bounds = exact.iter().map(|&value| f64::from(u8::from((value - 1.0).abs() < off(1.0))));
        Expected::within(dtype, &shape, exact.iter().map(|value| value.trunc()).collect(), bounds.collect())
    };
    let mut attributes = output_type(dtype, i);
    if !i.is_multiple_of(4) {
        attributes.push(("periodic", AttrValue::Int(is_periodic.into())));
    }
    Trial { attributes, inputs: vec![scalar(i, size)], outputs: vec![expected] }
}

/// Elements of a spectrum of a signal that is cut or filled with zeros to a length.
fn transform(signal: &[[f64; 2]], length: usize, n_bins: usize, is_inverse: bool) -> Vec<[f64; 2]> {
    let sign = if is_inverse { 1.0 } else { -1.0 };
    let factor = if is_inverse { 1.0 / length as f64 } else { 1.0 };
    let bin = |k: usize| {
        let terms = signal.iter().take(length).enumerate().map(|(n, [re, im])| {
            let angle = sign * 2.0 * PI * (k * n % length) as f64 / length as f64;
            let (sin, cos) = angle.sin_cos();
            [factor * (re * cos - im * sin), factor * (re * sin + im * cos)]
        });
        terms.fold([0.0; 2], |sum, term| [sum[0] + term[0], sum[1] + term[1]])
    };
    (0..n_bins).map(bin).collect()
}

/// Bound of each element of a transform.
fn transform_bound(dtype: DType, signal: &[[f64; 2]], length: usize, is_inverse: bool) -> f64 {
    let sum: f64 = signal.iter().take(length).map(|[re, im]| re.abs() + im.abs()).sum();
    sum_bound(dtype, length + 32, if is_inverse { sum / length as f64 } else { sum })
}

fn dft(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let is_inverse = i % 4 >= 2;
    let is_onesided = i % 3 == 1;
    // One side of a spectrum stands for a real signal, before or after.
    let is_complex = if is_onesided { is_inverse } else { i.is_multiple_of(2) };
    let mut shape = match i {
        0 => vec![1, 1],
        1 => vec![2, 67],
        2 => vec![3, 130],
        _ => (0..2 + dice.below(2)).map(|_| 2 + dice.below(8) as i64).collect(),
    };
    let rank = shape.len() + 1;
    // The last axis but one is the default.
    let axis = if i < 4 { rank - 2 } else { dice.below(rank as u64 - 1) as usize };
    if i == 3 {
        // A prime, which fast transforms have another way for.
        shape[axis] = 97;
    }
    let extent = shape[axis] as usize;
    let inner = n_elements(&shape[axis + 1..]);
    shape.push(1 + i64::from(is_complex));
    let mut x = random(dtype, dice, &shape, (-1.0, 1.0));
    let default = if is_onesided && is_inverse { 2 * (extent - 1) } else { extent };
    let length =
        if i % 5 == 4 { (default + dice.below(6) as usize).saturating_sub(3).max(1) } else { default };

    let width = 1 + usize::from(is_complex);
    let half = length / 2 + 1;
    let n_out = if is_onesided && !is_inverse { half } else { length };
    let out_width = if is_onesided && is_inverse { 1 } else { 2 };
    let mut out = shape.clone();
    out[axis] = n_out as i64;
    out[rank - 1] = out_width as i64;
    let mut values = vec![0.0; n_elements(&out)];
    let mut bounds = values.clone();
    let n_lines = n_elements(&shape[..rank - 1]) / extent;
    for (outer, at) in (0..n_lines).map(|line| (line / inner, line % inner)) {
        let place = |n: usize| ((outer * extent + n) * inner + at) * width;
        if is_onesided && is_inverse {
            // Of a real signal these are real.
            for n in [0, length / 2].into_iter().filter(|&n| n < extent && (n == 0 || length % 2 == 0)) {
                x.values[place(n) + 1] = 0.0;
            }
        }
        let element = |n: usize| {
            let of = |part: usize| if part < width { x.values[place(n) + part] } else { 0.0 };
            if n < extent { [of(0), of(1)] } else { [0.0; 2] }
        };
        let signal: Vec<[f64; 2]> = if is_onesided && is_inverse {
            let conjugate = |[re, im]: [f64; 2]| [re, -im];
            (0..length).map(|n| if n < half { element(n) } else { conjugate(element(length - n)) }).collect()
        } else {
            (0..extent).map(element).collect()
        };
        let bound = transform_bound(dtype, &signal, length, is_inverse);
        for (k, bin) in transform(&signal, length, n_out, is_inverse).into_iter().enumerate() {
            let to = ((outer * n_out + k) * inner + at) * out_width;
            values[to..to + out_width].copy_from_slice(&bin[..out_width]);
            bounds[to..to + out_width].fill(bound);
        }
    }
    let mut attributes = Vec::new();
    if is_inverse {
        attributes.push(("inverse", AttrValue::Int(1)));
    }
    if i % 3 != 2 {
        attributes.push(("onesided", AttrValue::Int(is_onesided.into())));
    }
    let length = if length == default && i.is_multiple_of(2) { None } else { scalar(i, length) };
    let axis = (i >= 4 || i == 1).then(|| {
        let axis = if i.is_multiple_of(2) { axis as f64 } else { axis as f64 - rank as f64 };
        HostTensor::new(I64, &[], vec![axis])
    });
    let outputs = vec![Expected::within(dtype, &out, values, bounds)];
    Trial { attributes, inputs: vec![Some(x), length, axis], outputs }
}

fn stft(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let (batches, length, frame, step) = match i {
        0 => (1, 1, 1, 1),
        1 => (2, 131, 67, 16),
        2 => (2, 520, 128, 40),
        _ => {
            let frame = 2 + dice.below(15) as usize;
            let length = frame + dice.below(30) as usize;
            (1 + dice.below(3) as usize, length, frame, 1 + dice.below(9) as usize)
        }
    };
    let is_onesided = i % 3 != 2;
    let width = if is_onesided || i.is_multiple_of(2) { 1 } else { 2 };
    let x = random(dtype, dice, &[batches as i64, length as i64, width as i64], (-1.0, 1.0));
    let window = (i % 4 != 1).then(|| random(dtype, dice, &[frame as i64], (0.0, 1.0)));
    let says_length = window.is_none() || i.is_multiple_of(2);

    let n_frames = (length - frame) / step + 1;
    let n_bins = if is_onesided { frame / 2 + 1 } else { frame };
    let (mut values, mut bounds) = (Vec::new(), Vec::new());
    for (batch, at) in (0..batches).flat_map(|batch| (0..n_frames).map(move |at| (batch, at))) {
        let element = |n: usize| {
            let weight = window.as_ref().map_or(1.0, |window| window.values[n]);
            let of = |part: usize| {
                let place = (batch * length + at * step + n) * width + part;
                if part < width { weight * x.values[place] } else { 0.0 }
            };
            [of(0), of(1)]
        };
        let signal: Vec<[f64; 2]> = (0..frame).map(element).collect();
        values.extend(transform(&signal, frame, n_bins, false).into_iter().flatten());
        bounds.resize(values.len(), transform_bound(dtype, &signal, frame, false));
    }
    let shape = [batches as i64, n_frames as i64, n_bins as i64, 2];
    let default = is_onesided && i.is_multiple_of(2);
    Trial {
        attributes: if default { Vec::new() } else { vec![("onesided", AttrValue::Int(is_onesided.into()))] },
        inputs: vec![Some(x), scalar(i, step), window, if says_length { scalar(i, frame) } else { None }],
        outputs: vec![Expected::within(dtype, &shape, values, bounds)],
    }
}

/// Triangles, whose corners are bins: equal steps in mel from the lower edge, by the reference implementation n + 2 of
/// them to the upper edge, which the specification's text leaves open.
fn mel_weight_matrix(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let rate = 16000.0;
    let n_mels = if i == 0 { 1 } else { 2 + dice.below(12) as usize };
    let mel = |hertz: f64| 2595.0 * (1.0 + hertz / 700.0).log10();
    let (length, lower, upper, corners) = loop {
        let length = if i == 0 { 8 } else { 16 + dice.below(500) as usize };
        let lower = if i.is_multiple_of(2) { 0.0 } else { dice.between(20.0, 400.0).round() };
        let upper = dice.between(5000.0, 8000.0).round();
        let mel_step = (mel(upper) - mel(lower)) / (n_mels + 2) as f64;
        let corner = |at: usize| {
            let hertz = 700.0 * (10f64.powf((mel(lower) + at as f64 * mel_step) / 2595.0) - 1.0);
            (length + 1) as f64 * hertz / rate
        };
        let corners: Vec<f64> = (0..n_mels + 2).map(corner).collect();
        // Corners that functions of f32 do not move to another bin.
        let is_clear = |&corner: &f64| corner == 0.0 || (0.02..0.98).contains(&corner.fract());
        if corners.iter().all(is_clear) {
            break (
                length,
                lower,
                upper,
                corners.into_iter().map(|corner| corner.floor()).collect::<Vec<_>>(),
            );
        }
    };
    let n_bins = length / 2 + 1;
    let mut values = vec![0.0; n_bins * n_mels];
    for (mel, corners) in corners.windows(3).enumerate() {
        let [left, peak, right] = corners else { unreachable!("three at a time") };
        for bin in *left as usize..=*right as usize {
            let at = bin as f64;
            let value = match at {
                _ if at == *peak => 1.0,
                _ if at < *peak => (at - left) / (peak - left),
                _ => (right - at) / (right - peak),
            };
            values[bin * n_mels + mel] = if is_float(dtype) { value } else { value.trunc() };
        }
    }
    // A quotient of f32, rounded to the type.
    let bound = |&value: &f64| match value {
        _ if !is_float(dtype) || value == 0.0 || value == 1.0 => 0.0,
        _ => Rounding::Division.bound(F32, value) + Rounding::Exact.bound(dtype, value),
    };
    let bounds = values.iter().map(bound).collect();
    let float = |value| Some(HostTensor::new(F32, &[], vec![value]));
    Trial {
        attributes: output_type(dtype, i),
        inputs: vec![
            scalar(i, n_mels),
            scalar(i, length),
            scalar(i, rate as usize),
            float(lower),
            float(upper),
        ],
        outputs: vec![Expected::within(dtype, &[n_bins as i64, n_mels as i64], values, bounds)],
    }
}
