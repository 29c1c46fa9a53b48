//! Ops that scale numbers by what their neighbours are: Softmax, and normalisations.

use super::builder::{Builder, Value};
use super::node::Node;
use super::primitive::{Fold, Window};
use super::reduce::{mean_keeping, widened};
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

/// Softmax, LogSoftmax and Hardmax. Before opset 13 they took all axes from `axis` on as one.
pub(super) fn softmax<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let rank = given.rank();
    let over: Vec<usize> = if node.since() >= 13 {
        vec![node.axis(-1, rank)?]
    } else {
        let from = node.attrs().int("axis", 1)?;
        // An axis behind the last one leaves nothing to be summed but one element.
        if from == rank as i64 { Vec::new() } else { (super::node::axis(from, rank)?..rank).collect() }
    };
    if node.op() == "Hardmax" {
        return hardmax(b, &given, &over);
    }
    let x = widened(b, &given);
    let largest = b.reduce_keeping(Fold::Maximum, &x, &over)?;
    let largest = b.broadcast(&largest, x.dims())?;
    let less = b.subtract(&x, &largest);
    let powers = b.unary("stablehlo.exponential", &less);
    let sum = b.reduce_keeping(Fold::Add, &powers, &over)?;
    let result = if node.op() == "LogSoftmax" {
        let log = b.unary("stablehlo.log", &sum);
        let log = b.broadcast(&log, x.dims())?;
        b.subtract(&less, &log)
    } else {
        let sum = b.broadcast(&sum, x.dims())?;
        b.divide(&powers, &sum)
    };
    Ok(b.convert(&result, given.element()))
}

/// 1 at the first of the largest elements, 0 elsewhere.
fn hardmax(b: &mut Builder<'_>, x: &Value, over: &[usize]) -> Result<Value> {
    // The axes stand side by side at the end, or are one.
    let (Some(&first), Some(&last)) = (over.first(), over.last()) else {
        return b.splat(1.0, &x.ty);
    };
    let joined: i64 = x.dims()[first..=last].iter().product();
    let dims = [&x.dims()[..first], &[joined], &x.dims()[last + 1..]].concat();
    let flat = b.reshape(x, &dims);
    let largest = b.reduce_keeping(Fold::Maximum, &flat, &[first])?;
    let largest = b.broadcast(&largest, &dims)?;
    let is_largest = b.compare("EQ", &flat, &largest);
    let places = super::builder::Type::new(ElementType::S64, &dims);
    let at = b.iota(&places, first);
    let none = b.splat(joined as f64, &places)?;
    let candidates = b.select(&is_largest, &at, &none);
    let place = b.reduce_keeping(Fold::Minimum, &candidates, &[first])?;
    let place = b.broadcast(&place, &dims)?;
    let is_first = b.compare("EQ", &at, &place);
    let ones = b.convert(&is_first, x.element());
    Ok(b.reshape(&ones, x.dims()))
}

/// `1 / sqrt(x + epsilon)`.
fn inverse_deviation(b: &mut Builder<'_>, variance: &Value, epsilon: f64) -> Result<Value> {
    let sum = b.with_number("stablehlo.add", variance, epsilon)?;
    let root = b.unary("stablehlo.sqrt", &sum);
    let one = b.splat(1.0, &root.ty)?;
    Ok(b.divide(&one, &root))
}

/// Numbers less their mean over axes, that mean, and what to multiply them by so that their variance is 1.
fn standardised(
    b: &mut Builder<'_>,
    x: &Value,
    over: &[usize],
    epsilon: f64,
) -> Result<(Value, Value, Value)> {
    let mean = mean_keeping(b, x, over)?;
    let spread = b.broadcast(&mean, x.dims())?;
    let less = b.subtract(x, &spread);
    let square = b.multiply(&less, &less);
    let variance = mean_keeping(b, &square, over)?;
    let inverse = inverse_deviation(b, &variance, epsilon)?;
    Ok((less, mean, inverse))
}

/// `x * scale + bias`, with one number of each for every channel.
fn per_channel(b: &mut Builder<'_>, x: &Value, scale: &Value, bias: &Value) -> Value {
    let scale = b.convert(scale, x.element());
    let bias = b.convert(bias, x.element());
    let scale = b.broadcast_in_dim(&scale, &[1], x.dims());
    let bias = b.broadcast_in_dim(&bias, &[1], x.dims());
    let scaled = b.multiply(x, &scale);
    b.add(&scaled, &bias)
}

/// BatchNormalization with given means and variances.
pub(super) fn batch<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let attrs = node.attrs();
    let is_training =
        attrs.int("training_mode", 0)? != 0 || (node.since() < 7 && attrs.int("is_test", 0)? == 0);
    if is_training || attrs.int("spatial", 1)? == 0 {
        return Err(Error::unsupported("BatchNormalization in training, or of each place by itself"));
    }
    let given = node.input(b, 0)?;
    let x = widened(b, &given);
    let mut channel = |at| -> Result<Value> {
        let value = node.input(b, at)?;
        if value.rank() != 1 || x.dims().get(1) != Some(&value.dims()[0]) {
            return Err(Error::invalid(format!("{} for the channels of {}", value.ty, x.ty)));
        }
        Ok(b.convert(&value, x.element()))
    };
    let (scale, bias, mean, variance) = (channel(1)?, channel(2)?, channel(3)?, channel(4)?);
    let inverse = inverse_deviation(b, &variance, attrs.float("epsilon", 1e-5)?.into())?;
    let scale = b.multiply(&scale, &inverse);
    let mean = b.broadcast_in_dim(&mean, &[1], x.dims());
    let less = b.subtract(&x, &mean);
    let result = per_channel(b, &less, &scale, &bias);
    Ok(b.convert(&result, given.element()))
}

/// InstanceNormalization: over the spatial axes of each channel.
pub(super) fn instance<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let (scale, bias) = (node.input(b, 1)?, node.input(b, 2)?);
    let x = widened(b, &given);
    if x.rank() < 3 || scale.dims() != [x.dims()[1]] || bias.dims() != scale.dims() {
        return Err(Error::unsupported(format!("InstanceNormalization of {} by {}", x.ty, scale.ty)));
    }
    let over: Vec<usize> = (2..x.rank()).collect();
    let (less, _, inverse) = standardised(b, &x, &over, node.attrs().float("epsilon", 1e-5)?.into())?;
    let inverse = b.broadcast(&inverse, x.dims())?;
    let normal = b.multiply(&less, &inverse);
    let result = per_channel(b, &normal, &scale, &bias);
    Ok(b.convert(&result, given.element()))
}

/// GroupNormalization: over groups of channels with their spatial axes. Scale and bias are one for each channel since
/// opset 21, one for each group before.
pub(super) fn group<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let (scale, bias) = (node.input(b, 1)?, node.input(b, 2)?);
    let x = widened(b, &given);
    let n_groups = node.attrs().int("num_groups", 0)?;
    if x.rank() < 3 || n_groups < 1 || x.dims()[1] % n_groups != 0 || scale.rank() != 1 {
        return Err(Error::invalid(format!("{n_groups} groups of the channels of {}", x.ty)));
    }
    let per_group = x.dims()[1] / n_groups;
    let dims = [&[x.dims()[0], n_groups, per_group], &x.dims()[2..]].concat();
    let grouped = b.reshape(&x, &dims);
    let over: Vec<usize> = (2..dims.len()).collect();
    let (less, _, inverse) = standardised(b, &grouped, &over, node.attrs().float("epsilon", 1e-5)?.into())?;
    let inverse = b.broadcast(&inverse, &dims)?;
    let normal = b.multiply(&less, &inverse);
    let normal = b.reshape(&normal, x.dims());
    let mut channels = |value: &Value| {
        if value.dims() == [x.dims()[1]] {
            return Ok(value.clone());
        }
        if value.dims() != [n_groups] {
            return Err(Error::invalid(format!("{} for {n_groups} groups", value.ty)));
        }
        let repeated = b.broadcast_in_dim(value, &[0], &[n_groups, per_group]);
        Ok(b.reshape(&repeated, &[x.dims()[1]]))
    };
    let (scale, bias) = (channels(&scale)?, channels(&bias)?);
    let result = per_channel(b, &normal, &scale, &bias);
    Ok(b.convert(&result, given.element()))
}

/// LayerNormalization over the axes from `axis` on; also its mean and its inverse deviation.
pub(super) fn layer<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let given = node.input(b, 0)?;
    let x = widened(b, &given);
    let over: Vec<usize> = (node.axis(-1, x.rank())?..x.rank()).collect();
    let (less, mean, inverse) = standardised(b, &x, &over, node.attrs().float("epsilon", 1e-5)?.into())?;
    let spread = b.broadcast(&inverse, x.dims())?;
    let normal = b.multiply(&less, &spread);
    let result = scaled(node, b, &normal, given.element())?;
    Ok(vec![result, mean, inverse])
}

/// RMSNormalization: numbers divided by the root of the mean of their squares.
pub(super) fn root_mean_square<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let x = widened(b, &given);
    let over: Vec<usize> = (node.axis(-1, x.rank())?..x.rank()).collect();
    let square = b.multiply(&x, &x);
    let mean = mean_keeping(b, &square, &over)?;
    let inverse = inverse_deviation(b, &mean, node.attrs().float("epsilon", 1e-5)?.into())?;
    let spread = b.broadcast(&inverse, x.dims())?;
    let normal = b.multiply(&x, &spread);
    scaled(node, b, &normal, given.element())
}

/// Numbers times the second input plus the third, in the type of the first.
fn scaled<'g>(node: &Node<'g>, b: &mut Builder<'g>, x: &Value, element: ElementType) -> Result<Value> {
    let mut result = x.clone();
    for (at, op) in [(1, "stablehlo.multiply"), (2, "stablehlo.add")] {
        let Some(value) = node.optional_input(b, at)? else { continue };
        let value = b.convert(&value, x.element());
        let value = b.broadcast(&value, x.dims())?;
        result = b.binary(op, &result, &value);
    }
    Ok(b.convert(&result, element))
}

/// MeanVarianceNormalization; its axes are all but the second by default.
pub(super) fn mean_variance<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let given = node.input(b, 0)?;
    let x = widened(b, &given);
    let over = node.attrs().ints("axes")?.unwrap_or_else(|| vec![0, 2, 3]);
    let over = super::node::axes(&over, x.rank())?;
    let mean = mean_keeping(b, &x, &over)?;
    let mean = b.broadcast(&mean, x.dims())?;
    let less = b.subtract(&x, &mean);
    let square = b.multiply(&less, &less);
    let variance = mean_keeping(b, &square, &over)?;
    let deviation = b.unary("stablehlo.sqrt", &variance);
    // The function of the specification adds this to the deviation.
    let deviation = b.with_number("stablehlo.add", &deviation, 1e-9)?;
    let deviation = b.broadcast(&deviation, x.dims())?;
    let result = b.divide(&less, &deviation);
    Ok(b.convert(&result, given.element()))
}

/// LpNormalization along one axis; what has a norm of 0 stays 0.
pub(super) fn lp<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let axis = node.axis(-1, x.rank())?;
    let norm = match node.attrs().int("p", 2)? {
        1 => {
            let size = b.unary("stablehlo.abs", &x);
            b.reduce_keeping(Fold::Add, &size, &[axis])?
        }
        2 => {
            let square = b.multiply(&x, &x);
            let sum = b.reduce_keeping(Fold::Add, &square, &[axis])?;
            b.unary("stablehlo.sqrt", &sum)
        }
        p => return Err(Error::invalid(format!("LpNormalization with p = {p}"))),
    };
    let norm = b.broadcast(&norm, x.dims())?;
    let divided = b.divide(&x, &norm);
    let is_zero = b.compare_number("EQ", &norm, 0.0)?;
    let zero = b.splat(0.0, &x.ty)?;
    Ok(b.select(&is_zero, &zero, &divided))
}

/// LRN: over neighbouring channels, `(size - 1) / 2` before, rounded down, and the rest behind.
pub(super) fn local_response<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let size = node.attrs().int("size", 0)?;
    if size < 1 || x.rank() < 2 {
        return Err(Error::invalid(format!("LRN of {size} channels of {}", x.ty)));
    }
    let mut window = Window {
        extents: vec![1; x.rank()],
        strides: vec![1; x.rank()],
        dilations: vec![1; x.rank()],
        pads: vec![(0, 0); x.rank()],
    };
    window.extents[1] = size;
    window.pads[1] = ((size - 1) / 2, size / 2);
    let square = b.multiply(&x, &x);
    let sum = b.reduce_window(Fold::Add, &square, &window)?;
    let attr = |name, default| node.attrs().float(name, default).map(f64::from);
    let part = b.with_number("stablehlo.multiply", &sum, attr("alpha", 1e-4)? / size as f64)?;
    let more = b.with_number("stablehlo.add", &part, attr("bias", 1.0)?)?;
    let power = b.with_number("stablehlo.power", &more, attr("beta", 0.75)?)?;
    Ok(b.divide(&x, &power))
}
