//! devbay's own ops, which its passes make of several of ONNX's (`docs/fused-ops.md`): the trials of the plain op, then
//! what is added, then the activation.

use super::index::word;
use super::*;
use super::{convolutions, products};
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials {
        domain: "devbay",
        op: "FusedConv",
        dtypes: FLOATS,
        make: |dtype, dice, i| {
            let mut trial = convolutions::conv(dtype, dice, i);
            trial.inputs.resize(3, None);
            if i % 3 != 1 {
                let shape = trial.outputs[0].tensor.shape.clone();
                trial.inputs.push(Some(random(dtype, dice, &shape, (-1.0, 1.0))));
            }
            finished(trial, 3, i)
        },
    },
    OpTrials {
        domain: "devbay",
        op: "FusedGemm",
        dtypes: FLOATS,
        make: |dtype, dice, i| finished(products::gemm(dtype, dice, i), usize::MAX, i),
    },
    OpTrials {
        domain: "devbay",
        op: "FusedMatMul",
        dtypes: FLOATS,
        make: |dtype, dice, i| {
            let (m, k, n) = (1 + dice.below(20) as i64, 1 + dice.below(40) as i64, 1 + dice.below(20) as i64);
            let batch: &[i64] = if i % 4 == 3 { &[3] } else { &[] };
            let mut trial = Trial::from(ops::mat_mul(dtype, dice, &[batch, &[m, k]].concat(), &[k, n]));
            if i % 3 != 1 {
                trial.inputs.push(Some(random(dtype, dice, &[n], (-1.0, 1.0))));
            }
            finished(trial, 2, i)
        },
    },
];

/// An activation: its name, its parameters, what it does with them, and how much steeper than the identity it gets.
type Activation = (&'static str, &'static [f32], fn(f64, &[f64]) -> f64, f64);

const ACTIVATIONS: &[Activation] = &[
    ("", &[], |x, _| x, 1.0),
    ("Relu", &[], |x, _| x.max(0.0), 1.0),
    ("LeakyRelu", &[0.2], |x, p| if x < 0.0 { p[0] * x } else { x }, 1.0),
    ("Clip", &[-0.5, 0.75], |x, p| x.clamp(p[0], p[1]), 1.0),
    ("HardSigmoid", &[0.3, 0.4], |x, p| (p[0] * x + p[1]).clamp(0.0, 1.0), 0.3),
    ("HardSwish", &[], |x, _| x * (x / 6.0 + 0.5).clamp(0.0, 1.0), 1.5),
    ("Sigmoid", &[], |x, _| 1.0 / (1.0 + (-x).exp()), 0.25),
    ("Tanh", &[], |x, _| x.tanh(), 1.0),
    ("Silu", &[], |x, _| x / (1.0 + (-x).exp()), 1.1),
];

/// Adds the operand at this place to the result, if it is there, and applies an activation. An error before it is as
/// much larger behind it as it is steep.
fn finished(mut trial: Trial, added: usize, i: u64) -> Trial {
    let (name, params, function, slope) = ACTIVATIONS[i as usize % ACTIVATIONS.len()];
    let addend = trial.inputs.get(added).cloned().flatten();
    let Expected { tensor, bounds, .. } = &mut trial.outputs[0];
    let numbers: Vec<f64> = params.iter().map(|&param| f64::from(param)).collect();
    for (at, (value, bound)) in tensor.values.iter_mut().zip(bounds).enumerate() {
        if let Some(addend) = &addend {
            let term = addend.values[at % addend.values.len()];
            *bound += sum_bound(tensor.dtype, 2, value.abs() + term.abs());
            *value += term;
        }
        *value = function(*value, &numbers);
        *bound = slope * *bound + Rounding::Function.bound(tensor.dtype, *value);
    }
    if !name.is_empty() {
        trial.attributes.push(("activation", word(name)));
        trial.attributes.push(("activation_params", AttrValue::Floats(params.to_vec())));
    }
    trial
}
