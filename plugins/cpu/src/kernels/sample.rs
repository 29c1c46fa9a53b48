//! Where a resized axis takes its elements from: positions and weights, as Resize's specification has
//! them.
//!
//! Resizing is separable, so that one axis at a time is enough. Positions are worked out in f64, like in
//! ONNX's reference implementation, which decides where the text leaves a choice: the length that some
//! transformations divide by is scale times extent, not rounded, and a position on an element counts as
//! the end of the interval before it.

use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::{Error, Result};

/// How a position of the output becomes one of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transform {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    TfCropAndResize,
}

impl Transform {
    /// The one called `name`.
    ///
    /// # Errors
    /// Invalid if there is none.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "half_pixel" => Self::HalfPixel,
            "half_pixel_symmetric" => Self::HalfPixelSymmetric,
            "pytorch_half_pixel" => Self::PytorchHalfPixel,
            "align_corners" => Self::AlignCorners,
            "asymmetric" => Self::Asymmetric,
            "tf_crop_and_resize" => Self::TfCropAndResize,
            _ => {
                return Err(Error::invalid(format!("unknown coordinate_transformation_mode {name}")));
            }
        })
    }
}

/// Which element is nearest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
}

impl Nearest {
    /// The one called `name`.
    ///
    /// # Errors
    /// Invalid if there is none.
    pub(crate) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "round_prefer_floor" => Self::RoundPreferFloor,
            "round_prefer_ceil" => Self::RoundPreferCeil,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            _ => return Err(Error::invalid(format!("unknown nearest_mode {name}"))),
        })
    }

    fn of(self, x: f64) -> f64 {
        match self {
            Self::RoundPreferFloor => (x - 0.5).ceil(),
            Self::RoundPreferCeil => (x + 0.5).floor(),
            Self::Floor => x.floor(),
            Self::Ceil => x.ceil(),
        }
    }
}

/// How elements become one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Filter {
    Nearest(Nearest),
    Linear { antialias: bool },
    Cubic { a: f64, antialias: bool },
}

/// Elements on one side of a position, at most: no axis has more.
const SUPPORT_MAX: i64 = 1 << 48;

impl Filter {
    /// Elements beside a position whose weights are worked out: the first, counted from the one before
    /// the position, and how many.
    fn support(self, scale: f64) -> (i64, usize) {
        let (reach, antialias) = match self {
            Self::Nearest(_) => return (0, 1),
            Self::Linear { antialias } => (1.0, antialias),
            Self::Cubic { antialias, .. } => (2.0, antialias),
        };
        // Against aliases the filter is stretched as far as the image is shrunk.
        let stretch = if antialias { scale.min(1.0) } else { 1.0 };
        // A scale that shrinks to next to nothing: more elements than there are.
        let first = ((-reach / stretch).floor() as i64).max(-SUPPORT_MAX) + 1;
        (first, (2 - 2 * first) as usize)
    }

    /// The weight at a distance, in elements of the output if the filter is stretched.
    fn weight(self, x: f64) -> f64 {
        let x = x.abs();
        match self {
            Self::Nearest(_) => 1.0,
            Self::Linear { .. } => (1.0 - x).max(0.0),
            Self::Cubic { a, .. } if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
            Self::Cubic { a, .. } if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
            Self::Cubic { .. } => 0.0,
        }
    }
}

/// One axis that is resized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Axis {
    /// Extents before and after.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) scale: f64,
    /// The part of the input that the output shows, from 0 to 1, for TfCropAndResize.
    pub(crate) roi: (f64, f64),
}

/// How all axes are resized.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Method {
    pub(crate) transform: Transform,
    pub(crate) filter: Filter,
    /// Whether elements that are not there have no weight, instead of their neighbour's value.
    pub(crate) exclude_outside: bool,
}

/// What each element of an axis is made of.
pub(crate) struct Samples {
    /// Elements of the input for one of the output.
    pub(crate) taps: usize,
    /// Their positions: the first for all elements of the output, then the second, ...
    pub(crate) positions: Vec<u32>,
    /// Their weights, likewise; empty for the nearest element.
    pub(crate) weights: Vec<f32>,
    /// Elements of the output that are outside the input, and get another value.
    pub(crate) outside: Vec<bool>,
}

impl Axis {
    /// Whether nothing happens.
    pub(crate) fn is_identity(&self, transform: Transform) -> bool {
        let whole = transform != Transform::TfCropAndResize || self.roi == (0.0, 1.0);
        self.from == self.to && (self.scale - 1.0).abs() < 1e-9 && whole
    }

    /// The position of the input for one of the output.
    fn position(&self, transform: Transform, i: usize) -> f64 {
        let (x, from, to) = (i as f64, self.from as f64, self.to as f64);
        let length = self.scale * from;
        let half_pixel = (x + 0.5) / self.scale - 0.5;
        match transform {
            Transform::HalfPixel => half_pixel,
            Transform::HalfPixelSymmetric => from / 2.0 * (1.0 - to / length) + half_pixel,
            Transform::PytorchHalfPixel if length == 1.0 => 0.0,
            Transform::PytorchHalfPixel => half_pixel,
            Transform::AlignCorners if length == 1.0 => 0.0,
            Transform::AlignCorners => x * (from - 1.0) / (length - 1.0),
            Transform::Asymmetric => x / self.scale,
            Transform::TfCropAndResize => {
                let (start, end) = self.roi;
                let within = match length == 1.0 {
                    true => (end - start) * (from - 1.0) / 2.0,
                    false => x * (end - start) * (from - 1.0) / (length - 1.0),
                };
                start * (from - 1.0) + within
            }
        }
    }

    /// What each element of the output is made of.
    ///
    /// # Errors
    /// Invalid if there is nothing to take it from, or more than positions can count; out of memory.
    pub(crate) fn samples(&self, method: &Method) -> Result<Samples> {
        let last = match self.from {
            0 if self.to > 0 => {
                return Err(Error::invalid(format!("an empty axis resized to {} elements", self.to)));
            }
            n if u32::try_from(n).is_ok() => n as i64 - 1,
            n => {
                return Err(Error::unsupported(format!(
                    "a resized axis of {n} elements, fewer than 2^32 are"
                )));
            }
        };
        if !(self.scale > 0.0 && self.scale.is_finite()) {
            return Err(Error::invalid(format!("a scale of {}", self.scale)));
        }
        let (first, taps) = method.filter.support(self.scale);
        let nearest = matches!(method.filter, Filter::Nearest(_));
        let stretch = match method.filter {
            Filter::Linear { antialias: true } | Filter::Cubic { antialias: true, .. } => self.scale.min(1.0),
            _ => 1.0,
        };
        const WHAT: &str = "the positions and weights of a resized axis";
        let n = (Size::of(taps) * self.to).get(WHAT)?;
        let mut samples = Samples {
            taps,
            positions: reserve::zeroed(n, WHAT)?,
            weights: reserve::zeroed(if nearest { 0 } else { n }, WHAT)?,
            outside: reserve::zeroed(self.to, WHAT)?,
        };
        let mut weights: Vec<f64> = reserve::zeroed(taps, WHAT)?;
        for i in 0..self.to {
            let x = self.position(method.transform, i);
            samples.outside[i] =
                method.transform == Transform::TfCropAndResize && !(0.0..=last as f64).contains(&x);
            if let Filter::Nearest(nearest) = method.filter {
                samples.positions[i] = (nearest.of(x) as i64).clamp(0, last) as u32;
                continue;
            }
            // The last element before the position.
            let before = x.ceil() - 1.0;
            let mut sum = 0.0;
            for (t, weight) in weights.iter_mut().enumerate() {
                let at = (before as i64).saturating_add(first).saturating_add(t as i64);
                let is_there = (0..=last).contains(&at);
                *weight = match is_there || !method.exclude_outside {
                    true => method.filter.weight((at as f64 - x) * stretch),
                    false => 0.0,
                };
                sum += *weight;
                samples.positions[t * self.to + i] = at.clamp(0, last) as u32;
            }
            let sum = if sum == 0.0 { 1.0 } else { sum };
            for (t, weight) in weights.iter().enumerate() {
                samples.weights[t * self.to + i] = (weight / sum) as f32;
            }
        }
        Ok(samples)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_their_transformation() {
        let axis = Axis { from: 4, to: 8, scale: 2.0, roi: (0.0, 1.0) };
        let check = |transform, expected: [f64; 3]| {
            let found = [0, 1, 7].map(|i| axis.position(transform, i));
            assert_eq!(found, expected, "{transform:?}");
        };
        check(Transform::HalfPixel, [-0.25, 0.25, 3.25]);
        check(Transform::HalfPixelSymmetric, [-0.25, 0.25, 3.25]);
        check(Transform::PytorchHalfPixel, [-0.25, 0.25, 3.25]);
        check(Transform::AlignCorners, [0.0, 3.0 / 7.0, 3.0]);
        check(Transform::Asymmetric, [0.0, 0.5, 3.5]);
        check(Transform::TfCropAndResize, [0.0, 3.0 / 7.0, 3.0]);
    }

    #[test]
    fn weights_sum_to_one_and_positions_exist() {
        for filter in [
            Filter::Linear { antialias: false },
            Filter::Linear { antialias: true },
            Filter::Cubic { a: -0.75, antialias: false },
            Filter::Cubic { a: -0.5, antialias: true },
        ] {
            for (from, to) in [(1, 5), (5, 1), (7, 3), (3, 7), (6, 6)] {
                for exclude_outside in [false, true] {
                    let axis = Axis { from, to, scale: to as f64 / from as f64, roi: (0.0, 1.0) };
                    let method = Method { transform: Transform::HalfPixel, filter, exclude_outside };
                    let samples = axis.samples(&method).expect("samples");
                    assert!(samples.positions.iter().all(|&at| (at as usize) < from));
                    for i in 0..to {
                        let sum: f32 = (0..samples.taps).map(|t| samples.weights[t * to + i]).sum();
                        assert!((sum - 1.0).abs() < 1e-5, "{filter:?} {from} {to}: {sum}");
                    }
                }
            }
        }
    }
}
