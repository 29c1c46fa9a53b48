//! Resize and Upsample: each axis by itself, from a few elements of the input for each of the result.

use super::builder::{Builder, Type, Value, constant_floats};
use super::index::take;
use super::node::{Node, axis};
use super::reduce::widened;
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// Resizing of one axis.
struct Axis<'a> {
    /// Elements of the input and of the result.
    extent: i64,
    result: i64,
    /// Elements of the result for one of the input.
    scale: f64,
    /// Mapping of places of the result to places of the input.
    places: &'a str,
}

impl Axis<'_> {
    /// Returns the place of an element of the result among those of the input.
    fn place(&self, at: i64) -> Result<f64> {
        let (at, extent, scale) = (at as f64, self.extent as f64, self.scale);
        // The result's extent before it was cut to a whole number.
        let length = scale * extent;
        let half_pixel = (at + 0.5) / scale - 0.5;
        Ok(match self.places {
            "asymmetric" => at / scale,
            "half_pixel" => half_pixel,
            // The part that cutting took away is taken from both ends alike.
            "half_pixel_symmetric" => extent / 2.0 * (1.0 - self.result as f64 / length) + half_pixel,
            "pytorch_half_pixel" | "align_corners" if length == 1.0 => 0.0,
            "pytorch_half_pixel" => half_pixel,
            "align_corners" => at * (extent - 1.0) / (length - 1.0),
            other => return Err(Error::unsupported(format!("coordinate_transformation_mode {other}"))),
        })
    }
}

/// Elements that make a result: as many for each of its places, with their weights.
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

/// A filter: how far it reaches to both sides, and its weight at a distance.
struct Filter {
    reach: f64,
    weight: fn(f64, f64) -> f64,
    /// Keys' parameter of the cubic one.
    a: f64,
    /// Against aliases: as wide as the input is shrunk.
    is_stretched: bool,
    /// True if elements that are not there have no weight, instead of their neighbour's value.
    leaves_out: bool,
}

fn linear(x: f64, _: f64) -> f64 {
    (1.0 - x).max(0.0)
}

/// Cubic interpolation by Keys: the specification's coefficients at distances below 1 and below 2.
fn cubic(x: f64, a: f64) -> f64 {
    match x {
        x if x <= 1.0 => ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0,
        x if x < 2.0 => ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a,
        _ => 0.0,
    }
}

fn weighted(axis: &Axis<'_>, filter: &Filter) -> Result<Taps> {
    let stretch = if filter.is_stretched { axis.scale.min(1.0) } else { 1.0 };
    // The first tap, counted from the element before the place.
    let first = (-filter.reach / stretch).floor() as i64 + 1;
    let n = usize::try_from(2 - 2 * first).unwrap_or_default();
    if n > 64 {
        return Err(Error::unsupported(format!("a resize that takes {n} elements for one")));
    }
    let mut places = vec![Vec::new(); n];
    let mut weights = vec![Vec::new(); n];
    for at in 0..axis.result {
        let place = axis.place(at)?;
        let before = place.ceil() as i64 - 1;
        let taps = (0..n).map(|tap| before + first + tap as i64);
        let is_there = |at: i64| (0..axis.extent).contains(&at);
        let weight = |at: i64| match is_there(at) || !filter.leaves_out {
            true => (filter.weight)(((at as f64 - place) * stretch).abs(), filter.a),
            false => 0.0,
        };
        let sum: f64 = taps.clone().map(weight).sum();
        let sum = if sum == 0.0 { 1.0 } else { sum };
        for (tap, at) in taps.enumerate() {
            places[tap].push(at.clamp(0, axis.extent - 1));
            weights[tap].push(weight(at) / sum);
        }
    }
    Ok(Taps { places, weights: Some(weights) })
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
    let axes = match node.attrs().ints("axes")? {
        Some(axes) => axes.iter().map(|&one| axis(one, x.rank())).collect::<Result<Vec<_>>>()?,
        None => (0..x.rank()).collect(),
    };
    let mut scales = vec![1.0; x.rank()];
    if given.is_empty() {
        let policy = node.attrs().string("keep_aspect_ratio_policy", "stretch")?;
        let sizes = match policy {
            // The graph has the extents that are asked for.
            "stretch" => axes.iter().map(|&axis| result.dims[axis]).collect(),
            _ => node.ints(3)?.unwrap_or_default(),
        };
        if sizes.len() != axes.len() {
            return Err(Error::invalid(format!("{} sizes for {} axes", sizes.len(), axes.len())));
        }
        let each = axes.iter().zip(&sizes).map(|(&axis, &size)| size as f64 / x.dims[axis] as f64);
        let same = match policy {
            "stretch" => None,
            "not_larger" => Some(each.clone().fold(f64::INFINITY, f64::min)),
            "not_smaller" => Some(each.clone().fold(0.0, f64::max)),
            other => return Err(Error::invalid(format!("keep_aspect_ratio_policy {other}"))),
        };
        for (&axis, scale) in axes.iter().zip(each) {
            scales[axis] = same.unwrap_or(scale);
        }
        return Ok(scales);
    }
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
    if given.rank() != result.rank() || given.ty.n_elements() == 0 {
        return Err(Error::unsupported(format!("{} resized to {result}", given.ty)));
    }
    let is_old = node.op() == "Upsample" || node.since() < 11;
    let (places, rounding) = if is_old {
        ("asymmetric", "floor")
    } else {
        let places = attrs.string("coordinate_transformation_mode", "half_pixel")?;
        (places, attrs.string("nearest_mode", "round_prefer_floor")?)
    };
    let mode = attrs.string("mode", "nearest")?;
    let (reach, weight): (f64, fn(f64, f64) -> f64) = match mode {
        "nearest" => (0.0, linear),
        "linear" | "bilinear" | "trilinear" => (1.0, linear),
        "cubic" => (2.0, cubic),
        other => return Err(Error::unsupported(format!("Resize by {other}"))),
    };
    let filter = Filter {
        reach,
        weight,
        a: f64::from(attrs.float("cubic_coeff_a", -0.75)?),
        is_stretched: attrs.int("antialias", 0)? != 0,
        leaves_out: attrs.int("exclude_outside", 0)? != 0,
    };
    let scales = scales(node, &given.ty, &result)?;
    let is_nearest = mode == "nearest";
    let mut x = if is_nearest { given.clone() } else { widened(b, &given) };
    if !is_nearest && !x.ty.is_float() {
        return Err(Error::unsupported(format!("Resize of {} by {mode}", x.ty)));
    }
    for (axis, &scale) in scales.iter().enumerate() {
        let one = Axis { extent: x.dims()[axis], result: result.dims[axis], scale, places };
        if one.extent == one.result && one.scale == 1.0 {
            continue;
        }
        if !(scale > 0.0 && scale.is_finite()) {
            return Err(Error::invalid(format!("a scale of {scale}")));
        }
        let taps = if is_nearest { nearest(&one, rounding)? } else { weighted(&one, &filter)? };
        x = apply(b, &x, axis, &taps)?;
    }
    Ok(b.convert(&x, given.element()))
}
