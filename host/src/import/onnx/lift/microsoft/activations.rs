//! Gelu and its fusions with additions, and activations that other ops name.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, ValueId};

/// Gelu: `gelu(X)`.
pub(super) fn gelu(l: &mut Lowering<'_>) -> Result<()> {
    let x = l.operand(0)?;
    let y = l.op("Gelu", &[x])?;
    l.give(0, y).map(drop)
}

/// FastGelu: `gelu(X + bias)`, by tanh.
pub(super) fn fast_gelu(l: &mut Lowering<'_>) -> Result<()> {
    let x = l.operand(0)?;
    let x = l.plus(x, 1)?;
    let y = l.op_with("Gelu", &[x], &[("approximate", AttrValue::String("tanh".to_owned()))])?;
    l.give(0, y).map(drop)
}

/// BiasGelu: `gelu(A + B)`.
pub(super) fn bias_gelu(l: &mut Lowering<'_>) -> Result<()> {
    let (a, b) = (l.operand(0)?, l.operand(1)?);
    let x = l.op("Add", &[a, b])?;
    let y = l.op("Gelu", &[x])?;
    l.give(0, y).map(drop)
}

/// BiasAdd: `X + bias + skip`.
pub(super) fn bias_add(l: &mut Lowering<'_>) -> Result<()> {
    let (x, bias, skip) = (l.operand(0)?, l.operand(1)?, l.operand(2)?);
    let x = l.op("Add", &[x, bias])?;
    let y = l.op("Add", &[x, skip])?;
    l.give(0, y).map(drop)
}

/// BiasSplitGelu: the left half of `X + bias` times gelu of the right half.
pub(super) fn bias_split_gelu(l: &mut Lowering<'_>) -> Result<()> {
    let (x, bias) = (l.operand(0)?, l.operand(1)?);
    let x = l.op("Add", &[x, bias])?;
    let attrs = [("axis", AttrValue::Int(-1)), ("num_outputs", AttrValue::Int(2))];
    let halves = l.append(super::held("Split"), &[Some(x)], &attrs, 2)?;
    let gate = l.op("Gelu", &[halves[1]])?;
    let y = l.op("Mul", &[halves[0], gate])?;
    l.give(0, y).map(drop)
}

/// Appends an activation, by the name and the parameters that FusedConv has.
pub(super) fn activated(l: &mut Lowering<'_>, x: ValueId, name: &str, params: &[f32]) -> Result<ValueId> {
    let float = AttrValue::Float;
    match (name, params) {
        ("", _) => Ok(x),
        ("Relu" | "Sigmoid" | "Tanh" | "Softplus" | "Softsign", []) => l.op(name, &[x]),
        ("LeakyRelu" | "Elu" | "ThresholdedRelu" | "Celu", &[alpha]) => {
            l.op_with(name, &[x], &[("alpha", float(alpha))])
        }
        ("HardSigmoid", &[alpha, beta]) => {
            l.op_with(name, &[x], &[("alpha", float(alpha)), ("beta", float(beta))])
        }
        ("Selu", &[alpha, gamma]) => {
            l.op_with(name, &[x], &[("alpha", float(alpha)), ("gamma", float(gamma))])
        }
        ("Clip", &[min, max]) => {
            let (min, max) = (l.number(min, x)?, l.number(max, x)?);
            l.op("Clip", &[x, min, max])
        }
        _ => Err(l.refused(&format!("the activation {name:?} and {} parameters", params.len()))),
    }
}
