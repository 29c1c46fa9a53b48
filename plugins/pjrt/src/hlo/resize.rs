//! Resize and Upsample: each axis by itself, from a few elements of the input for each of the result.

use super::builder::{Builder, Type, Value, constant_floats};
use super::index::take;
use super::node::{Node, axis};
use super::reduce::widened;
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// How one axis is resized.
struct Axis<'a> {
    /// Elements of the input and of the result.
    extent: i64,
    result: i64,
    /// Elements of the result for one of the input.
    scale: f64,
    /// How places of the result are places of the input.
    places: &'a str,
}

impl Axis<'_> {
    /// Where an element of the result lies among those of the input.
    fn place(&self, at: i64) -> Result<f64> {
        let (at, extent, scale) = (at as f64, self.extent as f64, self.scale);
        Ok(match self.places {
            "asymmetric" => at / scale,
            "half_pixel" => (at + 0.5) / scale - 0.5,
            "pytorch_half_pixel" if self.result > 1 => (at + 0.5) / scale - 0.5,
            "pytorch_half_pixel" => 0.0,
            "align_corners" if self.result > 1 => at * (extent - 1.0) / (self.result as f64 - 1.0),
            "align_corners" => 0.0,
            "half_pixel_symmetric" => {
                // What rounding the result's extent took away is taken from both ends alike.
                let adjustment = self.result as f64 / (scale * extent);
                extent / 2.0 * (1.0 - adjustment) + (at + 0.5) / scale - 0.5
            }
            other => return Err(Error::unsupported(format!("coordinate_transformation_mode {other}"))),
        })
    }
}

/// What a result is made of: as many elements for each of its places, with their weights.
struct Taps {
    /// For each tap the place of the input for every place of the result.
    places: Vec<Vec<i64>>,
    /// Likewise the weights; none where the one element is taken as it is.
    weights: Option<Vec<Vec<f64>>>,
}

fn nearest(axis: &Axis<'_>, rounding: &str) -> Result<Taps> {
    let place = |at: i64| -> Result<i64> {
        let place = axis.place(at)?;
        let rounded = match rounding {
            "floor" => place.floor(),
            "ceil" => place.ceil(),
            "round_prefer_floor" => (place - 0.5).ceil(),
            "round_prefer_ceil" => (place + 0.5).floor(),
            other => return Err(Error::invalid(format!("nearest_mode {other}"))),
        };
        Ok((rounded as i64).clamp(0, axis.extent - 1))
    };
    Ok(Taps { places: vec![(0..axis.result).map(place).collect::<Result<_>>()?], weights: None })
}

/// Several taps: `weights` gives those of the elements around a place, from the fraction behind the one in front of it.
/// The first tap lies `before` elements ahead of that one.
fn weighted(
    axis: &Axis<'_>,
    before: i64,
    is_outside_left_out: bool,
    weights: impl Fn(f64) -> Vec<f64>,
) -> Result<Taps> {
    let n = weights(0.0).len();
    let mut taps = Taps { places: vec![Vec::new(); n], weights: None };
    let mut all = vec![Vec::new(); n];
    for at in 0..axis.result {
        let place = axis.place(at)?;
        let first = place.floor() as i64 - before;
        let mut own = weights(place - place.floor());
        if is_outside_left_out {
            for (tap, weight) in own.iter_mut().enumerate() {
                if !(0..axis.extent).contains(&(first + tap as i64)) {
                    *weight = 0.0;
                }
            }
            let sum: f64 = own.iter().sum();
            own.iter_mut().for_each(|weight| *weight /= sum);
        }
        for (tap, weight) in own.into_iter().enumerate() {
            taps.places[tap].push((first + tap as i64).clamp(0, axis.extent - 1));
            all[tap].push(weight);
        }
    }
    taps.weights = Some(all);
    Ok(taps)
}

/// Weights of the four elements around a place in cubic interpolation, with Keys' parameter `a`.
fn cubic(fraction: f64, a: f64) -> Vec<f64> {
    let near = |x: f64| ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
    let far = |x: f64| ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a;
    vec![far(fraction + 1.0), near(fraction), near(1.0 - fraction), far(2.0 - fraction)]
}

/// Writes one axis.
fn apply(b: &mut Builder<'_>, x: &Value, axis: usize, taps: &Taps) -> Result<Value> {
    let n = taps.places[0].len() as i64;
    let mut dims = x.dims().to_vec();
    dims[axis] = n;
    let Some(weights) = &taps.weights else {
        // Every element so many times in a row needs no gather.
        let extent = x.dims()[axis];
        let times = n / extent.max(1);
        let is_even =
            times * extent == n && taps.places[0].iter().enumerate().all(|(at, &p)| at as i64 / times == p);
        if is_even {
            let apart = [&x.dims()[..=axis], &[times], &x.dims()[axis + 1..]].concat();
            let axes: Vec<usize> = (0..apart.len()).filter(|&one| one != axis + 1).collect();
            let repeated = b.broadcast_in_dim(x, &axes, &apart);
            return Ok(b.reshape(&repeated, &dims));
        }
        let places = b.integers(&taps.places[0], &Type::new(ElementType::S32, &[n]))?;
        return Ok(take(b, x, &places, axis));
    };
    let mut sum: Option<Value> = None;
    for (places, weights) in taps.places.iter().zip(weights) {
        let places = b.integers(places, &Type::new(ElementType::S32, &[n]))?;
        let taken = take(b, x, &places, axis);
        let weights = b.numbers(weights, &Type::new(x.element(), &[n]))?;
        let weights = b.broadcast_in_dim(&weights, &[axis], &dims);
        let part = b.multiply(&taken, &weights);
        sum = Some(match sum {
            Some(before) => b.add(&before, &part),
            None => part,
        });
    }
    sum.ok_or_else(|| Error::internal("an interpolation of nothing"))
}

/// The scales of all axes: an attribute in Upsample before opset 9, a constant input later, or by the result's extents.
fn scales(node: &Node<'_>, x: &Type, result: &Type) -> Result<Vec<f64>> {
    let at = if node.op() == "Upsample" || node.since() < 11 { 1 } else { 2 };
    let given = match node.attrs().floats("scales")? {
        Some(scales) => scales.into_iter().map(f64::from).collect(),
        None => match node.tensor(at).filter(|tensor| tensor.n_elements() > 0) {
            Some(scales) => constant_floats(scales)?,
            None => Vec::new(),
        },
    };
    let mut scales: Vec<f64> =
        x.dims.iter().zip(&result.dims).map(|(&from, &to)| to as f64 / from as f64).collect();
    if given.is_empty() {
        if node.attrs().string("keep_aspect_ratio_policy", "stretch")? != "stretch" {
            return Err(Error::unsupported("Resize that keeps the aspect ratio"));
        }
        return Ok(scales);
    }
    let axes = match node.attrs().ints("axes")? {
        Some(axes) => axes.iter().map(|&one| axis(one, x.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..x.rank()).collect(),
    };
    if axes.len() != given.len() {
        return Err(Error::invalid(format!("{} scales for {} axes", given.len(), axes.len())));
    }
    for (axis, scale) in axes.into_iter().zip(given) {
        scales[axis] = scale;
    }
    Ok(scales)
}

pub(super) fn resize<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let result = node.result(0)?;
    let attrs = node.attrs();
    if given.rank() != result.rank() || given.ty.n_elements() == 0 || attrs.int("antialias", 0)? != 0 {
        return Err(Error::unsupported(format!("Resize of {} to {result}, or with antialias", given.ty)));
    }
    let is_old = node.op() == "Upsample" || node.since() < 11;
    let (places, rounding) = if is_old {
        ("asymmetric", "floor")
    } else {
        let places = attrs.string("coordinate_transformation_mode", "half_pixel")?;
        (places, attrs.string("nearest_mode", "round_prefer_floor")?)
    };
    let mode = attrs.string("mode", "nearest")?;
    let leaves_out = attrs.int("exclude_outside", 0)? != 0;
    let a = f64::from(attrs.float("cubic_coeff_a", -0.75)?);
    let scales = scales(node, &given.ty, &result)?;
    let is_exact = mode == "nearest";
    let mut x = if is_exact { given.clone() } else { widened(b, &given) };
    if !is_exact && !x.ty.is_float() {
        return Err(Error::unsupported(format!("Resize of {} by {mode}", x.ty)));
    }
    for axis in 0..x.rank() {
        let one = Axis { extent: x.dims()[axis], result: result.dims[axis], scale: scales[axis], places };
        if one.extent == one.result && one.scale == 1.0 {
            continue;
        }
        let taps = match mode {
            "nearest" => nearest(&one, rounding)?,
            "linear" | "bilinear" | "trilinear" => {
                weighted(&one, 0, leaves_out, |fraction| vec![1.0 - fraction, fraction])?
            }
            "cubic" => weighted(&one, 1, leaves_out, |fraction| cubic(fraction, a))?,
            other => return Err(Error::unsupported(format!("Resize by {other}"))),
        };
        x = apply(b, &x, axis, &taps)?;
    }
    Ok(b.convert(&x, given.element()))
}
