//! Ops of one number at a time that are several of StableHLO's.

use super::builder::{Builder, Value};
use super::node::Node;
use crate::element::ElementType;
use devbay_plugin_api::sdk::{Error, Result};

const ADD: &str = "stablehlo.add";
const SUBTRACT: &str = "stablehlo.subtract";
const MULTIPLY: &str = "stablehlo.multiply";
const DIVIDE: &str = "stablehlo.divide";
const MAXIMUM: &str = "stablehlo.maximum";
const MINIMUM: &str = "stablehlo.minimum";

/// `min(1, max(0, alpha * x + beta))`.
fn hard_sigmoid(b: &mut Builder<'_>, x: &Value, alpha: f64, beta: f64) -> Result<Value> {
    let scaled = b.with_number(MULTIPLY, x, alpha)?;
    let moved = b.with_number(ADD, &scaled, beta)?;
    let from_zero = b.with_number(MAXIMUM, &moved, 0.0)?;
    b.with_number(MINIMUM, &from_zero, 1.0)
}

/// `log(1 + exp(x))` as `max(x, 0) + log1p(exp(-|x|))`, which does not overflow.
fn softplus(b: &mut Builder<'_>, x: &Value) -> Result<Value> {
    let size = b.unary("stablehlo.abs", x);
    let negative = b.unary("stablehlo.negate", &size);
    let exponential = b.unary("stablehlo.exponential", &negative);
    let rest = b.unary("stablehlo.log_plus_one", &exponential);
    let above = b.with_number(MAXIMUM, x, 0.0)?;
    Ok(b.add(&above, &rest))
}

/// `x` where it is above `limit`, `other` elsewhere.
fn above(b: &mut Builder<'_>, x: &Value, limit: f64, other: &Value) -> Result<Value> {
    let is_above = b.compare_number("GT", x, limit)?;
    Ok(b.select(&is_above, x, other))
}

/// The op of a node with its input and attributes. Defaults are those of the specification.
pub(super) fn activation<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let x = &node.input(b, 0)?;
    let attr = |name: &str, default: f32| node.attrs().float(name, default).map(f64::from);
    let op = node.op();
    if op == "Relu" {
        return b.with_number(MAXIMUM, x, 0.0);
    }
    if !x.ty.is_float() {
        return Err(Error::unsupported(format!("{op} of {}", x.ty)));
    }
    match op {
        "LeakyRelu" => {
            let scaled = b.with_number(MULTIPLY, x, attr("alpha", 0.01)?)?;
            let is_negative = b.compare_number("LT", x, 0.0)?;
            Ok(b.select(&is_negative, &scaled, x))
        }
        "ThresholdedRelu" => {
            let zero = b.splat(0.0, &x.ty)?;
            above(b, x, attr("alpha", 1.0)?, &zero)
        }
        "Elu" => {
            let less = b.unary("stablehlo.exponential_minus_one", x);
            let scaled = b.with_number(MULTIPLY, &less, attr("alpha", 1.0)?)?;
            above(b, x, 0.0, &scaled)
        }
        "Selu" => {
            // The defaults had fewer digits at first.
            let (alpha, gamma) = if node.since() < 6 { (1.6732, 1.0507) } else { (1.673_263_2, 1.050_701) };
            let less = b.unary("stablehlo.exponential_minus_one", x);
            let scaled = b.with_number(MULTIPLY, &less, attr("alpha", alpha)?)?;
            let joined = above(b, x, 0.0, &scaled)?;
            b.with_number(MULTIPLY, &joined, attr("gamma", gamma)?)
        }
        "Celu" => {
            let alpha = attr("alpha", 1.0)?;
            let divided = b.with_number(DIVIDE, x, alpha)?;
            let less = b.unary("stablehlo.exponential_minus_one", &divided);
            let scaled = b.with_number(MULTIPLY, &less, alpha)?;
            let below = b.with_number(MINIMUM, &scaled, 0.0)?;
            let above = b.with_number(MAXIMUM, x, 0.0)?;
            Ok(b.add(&above, &below))
        }
        "HardSigmoid" => hard_sigmoid(b, x, attr("alpha", 0.2)?, attr("beta", 0.5)?),
        "HardSwish" => {
            let gate = hard_sigmoid(b, x, 1.0 / 6.0, 0.5)?;
            Ok(b.multiply(x, &gate))
        }
        "Swish" => {
            let scaled = b.with_number(MULTIPLY, x, attr("alpha", 1.0)?)?;
            let gate = b.unary("stablehlo.logistic", &scaled);
            Ok(b.multiply(x, &gate))
        }
        "Mish" => {
            let plus = softplus(b, x)?;
            let gate = b.unary("stablehlo.tanh", &plus);
            Ok(b.multiply(x, &gate))
        }
        "Softplus" => softplus(b, x),
        "Softsign" => {
            let size = b.unary("stablehlo.abs", x);
            let more = b.with_number(ADD, &size, 1.0)?;
            Ok(b.divide(x, &more))
        }
        "Reciprocal" => {
            let one = b.splat(1.0, &x.ty)?;
            Ok(b.divide(&one, x))
        }
        "Shrink" => {
            let (limit, bias) = (attr("lambd", 0.5)?, attr("bias", 0.0)?);
            let (less, more) = (b.with_number(SUBTRACT, x, bias)?, b.with_number(ADD, x, bias)?);
            let zero = b.splat(0.0, &x.ty)?;
            let is_above = b.compare_number("GT", x, limit)?;
            let is_below = b.compare_number("LT", x, -limit)?;
            let below = b.select(&is_below, &more, &zero);
            Ok(b.select(&is_above, &less, &below))
        }
        "Gelu" => gelu(b, x, node.attrs().string("approximate", "none")?),
        _ => Err(Error::unsupported(op)),
    }
}

/// `x / 2 * (1 + erf(x / sqrt(2)))`, or its approximation by tanh.
fn gelu(b: &mut Builder<'_>, x: &Value, approximate: &str) -> Result<Value> {
    let bent = match approximate {
        "none" => {
            let scaled = b.with_number(MULTIPLY, x, std::f64::consts::FRAC_1_SQRT_2)?;
            let erf = b.unary("chlo.erf", &scaled);
            // Compilers expand it to what stays a little below 1, and an infinity times that little is infinite. From here
            // on no number of the type is nearer than 1.
            let one = b.unary("stablehlo.sign", &scaled);
            let size = b.unary("stablehlo.abs", &scaled);
            let from = if x.element() == ElementType::F64 { 6.0 } else { 4.0 };
            let is_one = b.compare_number("GE", &size, from)?;
            b.select(&is_one, &one, &erf)
        }
        "tanh" => {
            let square = b.multiply(x, x);
            let cube = b.multiply(&square, x);
            let part = b.with_number(MULTIPLY, &cube, 0.044_715)?;
            let sum = b.add(x, &part);
            let scaled = b.with_number(MULTIPLY, &sum, (2.0 / std::f64::consts::PI).sqrt())?;
            b.unary("stablehlo.tanh", &scaled)
        }
        other => return Err(Error::invalid(format!("approximate {other} of Gelu"))),
    };
    let more = b.with_number(ADD, &bent, 1.0)?;
    let half = b.with_number(MULTIPLY, x, 0.5)?;
    Ok(b.multiply(&half, &more))
}
