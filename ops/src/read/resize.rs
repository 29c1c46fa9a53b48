//! Resize: a node's content, and the source positions and weights of a resized axis, as specified.
//!
//! Resizing is separable, so one axis at a time suffices. Positions are computed in f64, as in ONNX's reference
//! Resizing is separable, so one axis at a time suffices. Positions are computed in f64, as in ONNX's reference
//! implementation, which resolves two ambiguities of the text. The length that some transformations divide by is scale times
//! extent, unrounded. A position on an element counts as the end of the interval before it.

use super::{axis, extents, host_ints};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::{Attrs, Error, PrepareRequest, Result};

/// A Resize node's content.
#[derive(Debug)]
pub struct Resize {
    /// The method for all axes.
    pub method: Method,
    /// All axes of the input, resized or not.
    pub axes: Vec<Axis>,
    /// The value for positions outside the input.
    pub outside: f32,
}

impl Resize {
    /// Reads a node's attributes and operands.
    ///
    /// # Errors
    /// Invalid for content that is not in the specification.
    pub fn of<D>(request: &PrepareRequest<'_, D>) -> Result<Self> {
        let outside = request.attrs.float("extrapolation_value", 0.0)?;
        Ok(Self { method: Method::of(&request.attrs)?, axes: axes(request)?, outside })
    }

    /// Returns the samples of each axis; None for unchanged axes. An axis has at most `most` positions, counting all their
    /// weights.
    ///
    /// # Errors
    /// As [`Axis::samples`].
    pub fn samples(&self, most: usize) -> Result<Vec<Option<Samples>>> {
        let of_axis = |axis: &Axis| match axis.is_identity(self.method.transform) {
            true => Ok(None),
            false => axis.samples(&self.method, most).map(Some),
        };
        self.axes.iter().map(of_axis).collect()
    }
}

fn axes<D>(request: &PrepareRequest<'_, D>) -> Result<Vec<Axis>> {
    let from = extents(request.required_input(0)?)?;
    let to = extents(request.required_output(0)?)?;
    if from.len() != to.len() {
        return Err(Error::invalid(format!("{from:?} resized to {to:?}")));
    }
    let named = match request.attrs.ints("axes")? {
        None => (0..from.len()).collect::<Vec<_>>(),
        Some(axes) => axes.iter().map(|&i| axis(i, from.len())).collect::<Result<_>>()?,
    };
    let floats = |i: usize| match request.input(i) {
        Some(tensor) if tensor.n_elements() > 0 => tensor
            .constant_f32s()?
            .map(Some)
            .ok_or_else(|| Error::invalid(format!("input {i} has to be a constant of f32"))),
        _ => Ok(None),
    };
    let sizes = host_ints(request, 3)?.filter(|sizes| !sizes.is_empty());
    let scales: Vec<f64> = match (floats(2)?, sizes) {
        (Some(scales), None) => scales.into_iter().map(f64::from).collect(),
        (None, Some(sizes)) => scales_of(&request.attrs, from, &named, &sizes)?,
        (scales, _) => {
            return Err(Error::invalid(match scales {
                Some(_) => "scales and sizes, expected one of them",
                None => "neither scales nor sizes, expected one of them",
            }));
        }
    };
    let roi = floats(1)?.unwrap_or_default();
    if scales.len() != named.len() {
        return Err(Error::invalid(format!("{} scales or sizes for {} axes", scales.len(), named.len())));
    }
    let stays = |(&from, &to): (&i64, &i64)| Axis {
        from: from as usize,
        to: to as usize,
        scale: 1.0,
        roi: (0.0, 1.0),
    };
    let mut axes: Vec<Axis> = from.iter().zip(to).map(stays).collect();
    for (k, &i) in named.iter().enumerate() {
        axes[i].scale = scales[k];
        if let (Some(&start), Some(&end)) = (roi.get(k), roi.get(named.len() + k)) {
            axes[i].roi = (start.into(), end.into());
        }
    }
    if let Some(axis) = axes.iter().find(|axis| axis.from == 0 && axis.to > 0) {
        return Err(Error::invalid(format!("an empty axis resized to {} elements", axis.to)));
    }
    Ok(axes)
}

/// Returns the scales for given sizes.
fn scales_of(attrs: &Attrs<'_>, from: &[i64], named: &[usize], sizes: &[i64]) -> Result<Vec<f64>> {
    let each = named.iter().zip(sizes);
    let each = each.map(|(&i, &size)| size as f64 / from[i] as f64);
    let one = match attrs.string("keep_aspect_ratio_policy", "stretch")? {
        "stretch" => return Ok(each.collect()),
        "not_larger" => each.fold(f64::INFINITY, f64::min),
        "not_smaller" => each.fold(0.0, f64::max),
        policy => {
            return Err(Error::invalid(format!("unknown keep_aspect_ratio_policy {policy}")));
        }
    };
    Ok(vec![one; sizes.len()])
}

/// The mapping from a position of the output to one of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transform {
    /// `half_pixel`.
    HalfPixel,
    /// `half_pixel_symmetric`.
    HalfPixelSymmetric,
    /// `pytorch_half_pixel`.
    PytorchHalfPixel,
    /// `align_corners`.
    AlignCorners,
    /// `asymmetric`.
    Asymmetric,
    /// `tf_crop_and_resize`.
    TfCropAndResize,
}

impl Transform {
    /// Returns the transformation called `name`.
    ///
    /// # Errors
    /// Invalid for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
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

/// The rule for the nearest element.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Nearest {
    /// `round_prefer_floor`.
    RoundPreferFloor,
    /// `round_prefer_ceil`.
    RoundPreferCeil,
    /// `floor`.
    Floor,
    /// `ceil`.
    Ceil,
}

impl Nearest {
    /// Returns the rule called `name`.
    ///
    /// # Errors
    /// Invalid for an unknown name.
    pub fn named(name: &str) -> Result<Self> {
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

/// The filter that combines several elements into one.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Filter {
    /// The nearest element.
    Nearest(Nearest),
    /// Two elements, or with `antialias` all that merge into one.
    Linear {
        /// True if the filter is widened by the factor of shrinking.
        antialias: bool,
    },
    /// Four elements, likewise.
    Cubic {
        /// The coefficient of the cubic, usually -0.75 or -0.5.
        a: f64,
        /// True if the filter is widened by the factor of shrinking.
        antialias: bool,
    },
}

/// Maximum number of elements on one side of a position: above the extent of any axis.
const SUPPORT_MAX: i64 = 1 << 48;

impl Filter {
    /// Returns the elements whose weights are computed: the first, relative to the one before the position, and their
    /// number.
    fn support(self, scale: f64) -> (i64, usize) {
        let (reach, antialias) = match self {
            Self::Nearest(_) => return (0, 1),
            Self::Linear { antialias } => (1.0, antialias),
            Self::Cubic { antialias, .. } => (2.0, antialias),
        };
        // Antialiasing widens the filter by the factor of shrinking.
        let stretch = if antialias { scale.min(1.0) } else { 1.0 };
        // An extreme scale would need more elements than exist.
        let first = ((-reach / stretch).floor() as i64).max(-SUPPORT_MAX) + 1;
        (first, (2 - 2 * first) as usize)
    }

    /// Returns the weight at a distance, in elements of the output for a widened filter.
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

/// One resized axis.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Extent before.
    pub from: usize,
    /// Extent after.
    pub to: usize,
    /// Approximate factor from the old to the new length.
    pub scale: f64,
    /// The part of the input shown in the output, from 0 to 1, for TfCropAndResize.
    pub roi: (f64, f64),
}

/// The method of resizing, for all axes.
#[derive(Clone, Copy, Debug)]
pub struct Method {
    /// The mapping of positions.
    pub transform: Transform,
    /// The filter that combines elements.
    pub filter: Filter,
    /// True if missing elements have no weight, instead of their neighbour's value.
    pub exclude_outside: bool,
}

impl Method {
    fn of(attrs: &Attrs<'_>) -> Result<Self> {
        let antialias = attrs.int("antialias", 0)? != 0;
        let filter = match attrs.string("mode", "nearest")? {
            "nearest" if antialias => {
                return Err(Error::invalid("antialias with mode nearest"));
            }
            "nearest" => {
                Filter::Nearest(Nearest::named(attrs.string("nearest_mode", "round_prefer_floor")?)?)
            }
            "linear" => Filter::Linear { antialias },
            "cubic" => Filter::Cubic { a: attrs.float("cubic_coeff_a", -0.75)?.into(), antialias },
            mode => return Err(Error::invalid(format!("unknown mode {mode}"))),
        };
        Ok(Self {
            transform: Transform::named(attrs.string("coordinate_transformation_mode", "half_pixel")?)?,
            filter,
            exclude_outside: attrs.int("exclude_outside", 0)? != 0,
        })
    }
}

/// The input elements that contribute to each output element of an axis.
#[derive(Debug)]
pub struct Samples {
    /// Number of input elements per output element.
    pub taps: usize,
    /// Their positions: the first for all elements of the output, then the second, ...
    pub positions: Vec<u32>,
    /// Their weights, likewise; empty for the nearest element.
    pub weights: Vec<f32>,
    /// True for output elements outside the input, which get another value.
    pub outside: Vec<bool>,
}

impl Axis {
    /// Returns whether the axis stays unchanged.
    pub fn is_identity(&self, transform: Transform) -> bool {
        let whole = transform != Transform::TfCropAndResize || self.roi == (0.0, 1.0);
        self.from == self.to && (self.scale - 1.0).abs() < 1e-9 && whole
    }

    /// Returns the input position for an output position.
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

    /// Returns the samples for each output element.
    ///
    /// # Errors
    /// Invalid if the input is empty; unsupported for more elements than positions can count, or more than `most` positions
    /// with all their weights; out of memory.
    pub fn samples(&self, method: &Method, most: usize) -> Result<Samples> {
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
        if n > most {
            return Err(Error::unsupported(format!("{} elements of {taps} weights each", self.to)));
        }
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
                    let samples = axis.samples(&method, usize::MAX).expect("samples");
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
