//! Resize: every way to place the output on the input, and every filter.
//!
//! An axis is a list of weights for each of its outputs; an element is the sum over the product of the axes' lists.

use super::index::{every, interpolated, word};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[OpTrials::new("Resize", ANYTHING, resize)];

/// Request to a plugin.
struct Request {
    mode: &'static str,
    placing: &'static str,
    nearest: &'static str,
    cubic_a: f64,
    is_antialiased: bool,
    excludes_outside: bool,
}

/// One axis and how it is resized.
struct Axis {
    input: i64,
    output: i64,
    scale: f64,
    /// Start and end of what is cut out.
    roi: (f64, f64),
}

/// Returns the filter of cubic convolution (Keys, equation 4), and that of two neighbours.
pub(super) fn weight(mode: &str, a: f64, x: f64) -> f64 {
    let x = x.abs();
    match mode {
        "cubic" if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        "cubic" if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        "cubic" => 0.0,
        _ => (1.0 - x).max(0.0),
    }
}

impl Axis {
    /// Returns the place of an output on the input.
    fn origin(&self, placing: &str, out: i64) -> f64 {
        let (x, n, m) = (out as f64, self.input as f64, self.output as f64);
        let half_pixel = (x + 0.5) / self.scale - 0.5;
        match placing {
            "half_pixel_symmetric" => n / 2.0 * (1.0 - m / (n * self.scale)) + half_pixel,
            "pytorch_half_pixel" if self.output == 1 => 0.0,
            "align_corners" if self.output == 1 => 0.0,
            "align_corners" => x * (n - 1.0) / (m - 1.0),
            "asymmetric" => x / self.scale,
            "tf_crop_and_resize" if self.output == 1 => 0.5 * (self.roi.0 + self.roi.1) * (n - 1.0),
            "tf_crop_and_resize" => {
                self.roi.0 * (n - 1.0) + x * (self.roi.1 - self.roi.0) * (n - 1.0) / (m - 1.0)
            }
            _ => half_pixel,
        }
    }

    /// Returns the inputs of an output with their weights; None where it is outside of what a crop may see.
    fn taps(&self, request: &Request, out: i64) -> Option<Vec<(i64, f64)>> {
        let x = self.origin(request.placing, out);
        let last = self.input - 1;
        if request.placing == "tf_crop_and_resize" && !(0.0..=last as f64).contains(&x) {
            return None;
        }
        if request.mode == "nearest" {
            let nearest = match request.nearest {
                "round_prefer_floor" => (x - 0.5).ceil(),
                "round_prefer_ceil" => (x + 0.5).floor(),
                "floor" => x.floor(),
                _ => x.ceil(),
            };
            return Some(vec![((nearest as i64).clamp(0, last), 1.0)]);
        }
        // Where the output is smaller, the filter reaches over as many inputs more.
        let shrink = if request.is_antialiased { self.scale.min(1.0) } else { 1.0 };
        let reach = (2.0 / shrink).ceil() as i64 + 1;
        let near = x.floor() as i64;
        let weigh = |at: i64| {
            let is_counted = !request.excludes_outside || (0..=last).contains(&at);
            let weight = weight(request.mode, request.cubic_a, (at as f64 - x) * shrink);
            (at.clamp(0, last), if is_counted { weight } else { 0.0 })
        };
        let mut taps: Vec<_> = (near - reach..=near + reach).map(weigh).filter(|(_, w)| *w != 0.0).collect();
        let sum: f64 = taps.iter().map(|(_, weight)| weight).sum();
        taps.iter_mut().for_each(|(_, weight)| *weight /= sum);
        Some(taps)
    }

    /// Returns whether rounding decides an output: which input is the nearest, or whether a crop has any.
    fn is_unsure(&self, request: &Request) -> bool {
        let is_crop = request.placing == "tf_crop_and_resize";
        // Quotients by powers of two are exact.
        let is_power = self.scale.log2().fract() == 0.0
            && matches!(request.placing, "half_pixel" | "asymmetric" | "pytorch_half_pixel");
        let unsure = |out| {
            let x = self.origin(request.placing, out);
            let near = |point: f64| (x - point).abs() < 1e-4;
            // Where 0 is a factor or is said to be the place, nothing is rounded.
            if x == 0.0 && (out == 0 || self.output == 1) && request.placing != "half_pixel_symmetric" {
                return false;
            }
            // The modes that round are the long words.
            let is_step = if request.nearest.len() > 5 { near(x.floor() + 0.5) } else { near(x.round()) };
            let is_edge = near(0.0) || near(self.input as f64 - 1.0);
            (request.mode == "nearest" && is_step && !is_power) || (is_crop && is_edge)
        };
        let is_kept = self.input == self.output && self.roi == (0.0, 1.0);
        !is_kept && (0..self.output).any(unsure)
    }
}

fn resize(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    loop {
        if let Some(trial) = attempt(dtype, dice, i) {
            return trial;
        }
    }
}

/// A trial, unless it would be about rounding.
fn attempt(dtype: DType, dice: &mut Dice, i: u64) -> Option<Trial> {
    // ONNX does not say how a weighed sum becomes an integer.
    let mode = if is_float(dtype) { ["nearest", "linear", "cubic"][i as usize % 3] } else { "nearest" };
    let placings = [
        "half_pixel",
        "asymmetric",
        "align_corners",
        "pytorch_half_pixel",
        "tf_crop_and_resize",
        "half_pixel_symmetric",
    ];
    // Each with each mode.
    let placing = placings[((i / 3 + i % 3) % 6) as usize];
    let request = Request {
        mode,
        placing,
        nearest: ["round_prefer_floor", "floor", "round_prefer_ceil", "ceil"][(i / 3 % 4) as usize],
        cubic_a: if i.is_multiple_of(2) { -0.75 } else { -0.5 },
        is_antialiased: mode != "nearest" && dice.below(2) == 0,
        excludes_outside: mode == "cubic" && dice.below(2) == 0,
    };
    let n_axes = if mode == "cubic" || i < 3 { 2 } else { 1 + i % 3 };
    let extent = |dice: &mut Dice| if i == 0 { 1 } else { 2 + dice.below(7) as i64 };
    let mut spatial: Vec<i64> = (0..n_axes).map(|_| extent(dice)).collect();
    match i {
        1 => spatial = vec![5, 33],
        2 => spatial = vec![16, 17],
        _ => {}
    }
    // A ratio that is kept is exact where all extents are the same.
    let policy = if i % 5 == 4 { ["not_larger", "not_smaller"][i as usize % 2] } else { "stretch" };
    if policy != "stretch" {
        let same = spatial[0];
        spatial.fill(same);
    }
    // Of a fractional output some ways to place it are said in two ways.
    let by_scales = policy == "stretch"
        && dice.below(2) == 0
        && !matches!(placing, "align_corners" | "tf_crop_and_resize");
    let scales = [0.5, 2.0, 1.0, 0.75, 1.25, 1.5, 3.0, 4.0];
    let mut axes = Vec::new();
    let mut asked = Vec::new();
    for &input in &spatial {
        let scale: f64 = scales[dice.below(8) as usize];
        let output = if by_scales { (input as f64 * scale) as i64 } else { 1 + dice.below(14) as i64 };
        let roi = if placing == "tf_crop_and_resize" {
            (dice.below(6) as f64 / 8.0 - 0.25, 0.5 + dice.below(6) as f64 / 8.0)
        } else {
            (0.0, 1.0)
        };
        asked.push(if by_scales { scale } else { output as f64 });
        axes.push(Axis { input, output, scale: if by_scales { scale } else { 0.0 }, roi });
    }
    let outputs = axes.iter().map(|axis| axis.output);
    let kept = if policy == "not_larger" { outputs.min() } else { outputs.max() };
    for axis in &mut axes {
        if policy != "stretch" {
            axis.output = kept.unwrap_or(1);
        }
        if !by_scales {
            axis.scale = axis.output as f64 / axis.input as f64;
        }
    }
    if axes.iter().any(|axis| axis.output < 1 || axis.is_unsure(&request)) {
        return None;
    }

    // Either all axes are said, or those that change.
    let says_axes = matches!(i % 4, 1 | 2) || policy != "stretch";
    let lead: [i64; 2] = [1 + (i % 2) as i64, 1 + dice.below(2) as i64];
    let range = if is_float(dtype) { (-4.0, 4.0) } else { (-100.0, 100.0) };
    let x = random(dtype, dice, &[&lead, spatial.as_slice()].concat(), range);
    let outer = lead.map(|extent| Axis { input: extent, output: extent, scale: 1.0, roi: (0.0, 1.0) });
    let all: Vec<&Axis> = outer.iter().chain(&axes).collect();
    let shape: Vec<i64> = all.iter().map(|axis| axis.output).collect();
    let beyond = if dtype == BOOL { 1.0f32 } else { 7.0 };
    let plain = Request { mode: "nearest", placing: "asymmetric", nearest: "floor", ..request };
    let value = |at: Vec<i64>| {
        let along = |(n, axis): (usize, &&Axis)| axis.taps(if n < 2 { &plain } else { &request }, at[n]);
        let taps: Option<Vec<_>> = all.iter().enumerate().map(along).collect();
        taps.map_or(f64::from(beyond), |taps| interpolated(&x, taps))
    };
    let values: Vec<f64> = every(&shape).map(value).collect();
    // Weights are made in f32, as scales are: an origin is off by some u of its axis, and a filter's weights move by
    // at most four times as much. Weights have magnitudes that sum to less than two.
    let largest = x.values.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    let longest = spatial.iter().max().map_or(1.0, |extent| *extent as f64 + 1.0);
    let moved = 4.0 * 8.0 * unit_roundoff(F32) * longest * n_axes as f64 * 2.0 * largest;
    let n_taps: usize = axes.iter().map(|axis| 4 + (4.0 / axis.scale.min(1.0)) as usize).sum();
    let bound = if mode == "nearest" { 0.0 } else { moved + sum_bound(dtype, n_taps + 8, 2.0 * largest) };
    // In another order than they have, and counted from the back.
    let mut order: Vec<usize> = (0..axes.len()).collect();
    let mut attributes = vec![
        ("mode", word(mode)),
        ("coordinate_transformation_mode", word(placing)),
        ("nearest_mode", word(request.nearest)),
        ("cubic_coeff_a", AttrValue::Float(request.cubic_a as f32)),
        ("antialias", AttrValue::Int(request.is_antialiased.into())),
        ("exclude_outside", AttrValue::Int(request.excludes_outside.into())),
        ("extrapolation_value", AttrValue::Float(beyond)),
    ];
    if policy != "stretch" {
        attributes.push(("keep_aspect_ratio_policy", word(policy)));
    }
    let said = |order: &[usize], of: &dyn Fn(usize) -> f64, outer: [f64; 2]| -> Vec<f64> {
        let own = order.iter().map(|axis| of(*axis));
        if says_axes { own.collect() } else { outer.into_iter().chain(own).collect() }
    };
    if says_axes {
        if i % 2 == 1 {
            order.reverse();
        }
        let count = |axis: &usize| *axis as i64 - if i % 8 < 4 { axes.len() as i64 } else { -2 };
        attributes.push(("axes", AttrValue::Ints(order.iter().map(count).collect())));
    }
    let list = |dtype: DType, values: Vec<f64>| HostTensor::new(dtype, &[values.len() as i64], values);
    let roi = (placing == "tf_crop_and_resize").then(|| {
        let starts = said(&order, &|axis| axes[axis].roi.0, [0.0; 2]);
        list(F32, [starts, said(&order, &|axis| axes[axis].roi.1, [1.0; 2])].concat())
    });
    let outer = if by_scales { [1.0; 2] } else { lead.map(|extent| extent as f64) };
    let asked = list(if by_scales { F32 } else { I64 }, said(&order, &|axis| asked[axis], outer));
    let (scales, sizes) = if by_scales { (Some(asked), None) } else { (None, Some(asked)) };
    let bounds = vec![bound; values.len()];
    let outputs = vec![Expected::within(dtype, &shape, values, bounds)];
    Some(Trial { attributes, inputs: vec![Some(x), roi, scales, sizes], outputs })
}
