//! Ops of one number at a time that are no formula of operands of one type: conversions, and what takes several types, absent
//! operands or any number of them.

use super::builder::{Builder, Value};
use super::node::Node;
use super::primitive::Fold;
use devbay_plugin_api::sdk::{Error, Result};

/// Extents of two operands broadcast to each other.
///
/// # Errors
/// Invalid if they do not go together.
pub(super) fn joint_dims(x: &[i64], y: &[i64]) -> Result<Vec<i64>> {
    let rank = x.len().max(y.len());
    let at = |dims: &[i64], axis: usize| (axis + dims.len()).checked_sub(rank).map_or(1, |axis| dims[axis]);
    let joint = |axis| match (at(x, axis), at(y, axis)) {
        (1, other) | (other, 1) => Ok(other),
        (a, b) if a == b => Ok(a),
        _ => Err(Error::invalid(format!("extents {x:?} and {y:?} of one operation"))),
    };
    (0..rank).map(joint).collect()
}

/// Two operands broadcast to each other.
fn joined(b: &mut Builder<'_>, x: &Value, y: &Value) -> Result<(Value, Value)> {
    let dims = joint_dims(x.dims(), y.dims())?;
    Ok((b.broadcast(x, &dims)?, b.broadcast(y, &dims)?))
}

/// The two operands of a node. Before opset 7 they were broadcast by attributes, which is not done here.
pub(super) fn operands<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<(Value, Value)> {
    if node.attrs().int("broadcast", 0)? != 0 {
        return Err(Error::unsupported("operands broadcast by attributes, as before opset 7"));
    }
    let (x, y) = (node.input(b, 0)?, node.input(b, 1)?);
    joined(b, &x, &y)
}

/// BitShift; what comes in from the left of a negative number are ones.
pub(super) fn bit_shift<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, y) = operands(node, b)?;
    match node.attrs().string("direction", "")? {
        "LEFT" => Ok(b.binary("stablehlo.shift_left", &x, &y)),
        "RIGHT" if x.ty.is_unsigned() => Ok(b.binary("stablehlo.shift_right_logical", &x, &y)),
        "RIGHT" => Ok(b.binary("stablehlo.shift_right_arithmetic", &x, &y)),
        other => Err(Error::invalid(format!("direction {other} of a shift"))),
    }
}

/// Mod: the remainder with the divisor's sign, or with `fmod` the dividend's.
pub(super) fn modulo<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, y) = operands(node, b)?;
    let remainder = b.binary("stablehlo.remainder", &x, &y);
    if node.attrs().int("fmod", 0)? != 0 || x.ty.is_unsigned() {
        return Ok(remainder);
    }
    let zero = b.splat(0.0, &x.ty)?;
    let is_rest = b.compare("NE", &remainder, &zero);
    let (left, right) = (b.compare("LT", &remainder, &zero), b.compare("LT", &y, &zero));
    let differ = b.compare("NE", &left, &right);
    let is_off = b.binary("stablehlo.and", &is_rest, &differ);
    let moved = b.add(&remainder, &y);
    Ok(b.select(&is_off, &moved, &remainder))
}

/// Pow: the result has the base's type, and the exponent may have another.
pub(super) fn pow<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    use crate::element::ElementType as E;
    let (x, y) = operands(node, b)?;
    let result = x.element();
    if x.ty.is_float() || !y.ty.is_float() {
        let y = b.convert(&y, result);
        return Ok(b.binary("stablehlo.power", &x, &y));
    }
    // An integer to a power that may be no integer: calculated wide enough for either.
    let (x, y) = (b.convert(&x, E::F64), b.convert(&y, E::F64));
    let power = b.binary("stablehlo.power", &x, &y);
    Ok(b.convert(&power, result))
}

/// Max, Min, Sum and Mean of any number of operands.
pub(super) fn variadic<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let fold = match node.op() {
        "Max" => Fold::Maximum,
        "Min" => Fold::Minimum,
        _ => Fold::Add,
    };
    let inputs = node.all_inputs(b)?;
    let mut result = inputs.first().ok_or_else(|| Error::invalid("no operand"))?.clone();
    for (at, input) in inputs.iter().enumerate().skip(1) {
        let (x, y) = joined(b, &result, input)?;
        result = b.binary(fold.op(), &x, &y);
        // XLA's CPU keeps NaN in the first operand alone, unless an option of its own is set.
        let is_known = node.tensor(at).is_some_and(|tensor| tensor.constant().is_some());
        if fold != Fold::Add && y.ty.is_float() && !is_known {
            let is_nan = b.compare("NE", &y, &y);
            result = b.select(&is_nan, &y, &result);
        }
    }
    match node.op() {
        "Mean" => b.with_number("stablehlo.divide", &result, node.n_inputs() as f64),
        _ => Ok(result),
    }
}

/// Where.
pub(super) fn select<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (condition, yes, no) = (node.input(b, 0)?, node.input(b, 1)?, node.input(b, 2)?);
    let dims = joint_dims(&joint_dims(condition.dims(), yes.dims())?, no.dims())?;
    let condition = b.broadcast(&condition, &dims)?;
    let (yes, no) = (b.broadcast(&yes, &dims)?, b.broadcast(&no, &dims)?);
    Ok(b.select(&condition, &yes, &no))
}

/// Cast and CastLike: the graph has the type of the result.
pub(super) fn cast<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let element = node.result(0)?.element;
    Ok(b.convert(&x, element))
}

/// BitCast between types of the same size.
pub(super) fn bit_cast<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = node.input(b, 0)?;
    let result = node.result(0)?;
    if x.ty.size_bytes() != result.size_bytes() || x.ty.is_bool() != result.is_bool() {
        return Err(Error::unsupported(format!("the bits of {} as {result}", x.ty)));
    }
    Ok(b.op("stablehlo.bitcast_convert", &[&x], "", result))
}

/// Clip: limits are attributes before opset 11, and optional inputs since. The upper one wins where they cross.
pub(super) fn clip<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let mut x = node.input(b, 0)?;
    for (at, name, op) in [(1, "min", "stablehlo.maximum"), (2, "max", "stablehlo.minimum")] {
        if node.attrs().get(name).is_some() {
            x = b.with_number(op, &x, node.attrs().float(name, 0.0)?.into())?;
        } else if let Some(limit) = node.optional_input(b, at)? {
            let limit = b.reshape(&limit, &[]);
            let limit = b.broadcast(&limit, x.dims())?;
            x = b.binary(op, &x, &limit);
        }
    }
    Ok(x)
}

/// PRelu: the slope is broadcast to the input alone. Before opset 7 it was one for each channel.
pub(super) fn prelu<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, slope) = (node.input(b, 0)?, node.input(b, 1)?);
    let slope = if node.since() < 7 && slope.ty.n_elements() > 1 {
        b.broadcast_in_dim(&slope, &[1], x.dims())
    } else {
        b.broadcast(&slope, x.dims())?
    };
    let scaled = b.multiply(&x, &slope);
    let is_negative = b.compare_number("LT", &x, 0.0)?;
    Ok(b.select(&is_negative, &scaled, &x))
}

/// Identity, and Dropout's first result.
pub(super) fn identity<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    node.input(b, 0)
}

/// Dropout where nothing is dropped; its second result says that everything was kept.
pub(super) fn dropout<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Vec<Value>> {
    let is_training = match node.tensor(2) {
        Some(training) => {
            let known = training
                .constant()
                .ok_or_else(|| Error::unsupported("a training_mode that is not constant"))?;
            known.iter().any(|&byte| byte != 0)
        }
        None => node.since() < 7 && node.attrs().int("is_test", 0)? == 0,
    };
    if is_training {
        return Err(Error::unsupported("Dropout in training"));
    }
    let mut results = vec![node.input(b, 0)?];
    if node.has_result(1) {
        results.push(b.splat(1.0, &node.result(1)?)?);
    }
    Ok(results)
}
