//! Folds BatchNormalization, and additions of a constant per channel, into the convolution before them.
//!
//! `BN(conv(x, W) + b) = conv(x, W * k) + (b - mean) * k + B` with `k = scale / sqrt(variance + epsilon)`, each
//! per output channel (ONNX BatchNormalization-15, inference form). The factors are computed in f64, so that
//! the fold costs one rounding of each weight.

use super::each_region;
use super::uses::Uses;
use crate::error::Result;
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{F32, Tensor};
use std::collections::HashMap;

/// Folds wherever a convolution's result goes to the normalisation alone and all parameters are constant;
/// gives the number of nodes that are gone.
///
/// # Errors
/// Out of memory for the new weights.
pub fn run(program: &mut Program) -> Result<usize> {
    let uses = Uses::of(program);
    each_region(program, &mut |program, region| fold(program, region, &uses))
}

fn fold(program: &mut Program, region: &mut Region, uses: &Uses) -> Result<usize> {
    let mut folded = 0;
    // Position of the convolution that makes a value, as long as nobody else uses it.
    let mut convolutions: HashMap<ValueId, usize> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    for node in std::mem::take(&mut region.nodes) {
        let change = change_of(program, &node);
        let convolution = change.as_ref().and_then(|(input, _)| {
            (uses.count(*input) == 1).then(|| convolutions.get(input).copied()).flatten()
        });
        if let (Some((input, change)), Some(at), Some(output)) = (change, convolution, node.output(0))
            && apply(program, &mut kept[at], &change)?
        {
            kept[at].outputs[0] = Some(output);
            convolutions.remove(&input);
            convolutions.insert(output, at);
            folded += 1;
            continue;
        }
        if (node.op.is("Conv") || node.op.is("ConvTranspose"))
            && let Some(output) = node.output(0)
        {
            convolutions.insert(output, kept.len());
        }
        kept.push(node);
    }
    region.nodes = kept;
    Ok(folded)
}

/// What a node does to each channel of its input: multiply, then add.
struct Change {
    factor: Vec<f64>,
    term: Vec<f64>,
}

/// The input that a node changes per channel with constants, and how.
fn change_of(program: &Program, node: &Node) -> Option<(ValueId, Change)> {
    if node.op.is("BatchNormalization") {
        let unused = node.outputs.iter().skip(1).all(Option::is_none);
        if node.int("training_mode", 0) != 0 || !unused {
            return None;
        }
        let list = |i: usize| program.constant(node.input(i)?)?.elements::<f32>();
        let (scale, offset, mean, variance) = (list(1)?, list(2)?, list(3)?, list(4)?);
        let n = scale.len();
        if [offset.len(), mean.len(), variance.len()] != [n; 3] {
            return None;
        }
        let epsilon = f64::from(node.float("epsilon", 1e-5));
        let factor: Vec<f64> = scale
            .iter()
            .zip(variance)
            .map(|(&s, &v)| f64::from(s) / (f64::from(v) + epsilon).sqrt())
            .collect();
        let term = (0..n).map(|c| f64::from(offset[c]) - f64::from(mean[c]) * factor[c]).collect();
        return Some((node.input(0)?, Change { factor, term }));
    }
    if node.op.is("Add") {
        let sides = [(node.input(0)?, node.input(1)?), (node.input(1)?, node.input(0)?)];
        let (input, constant) = sides.into_iter().find(|(_, side)| program.constant(*side).is_some())?;
        let constant = program.constant(constant)?;
        let term: Vec<f64> = constant.elements::<f32>()?.iter().map(|&v| f64::from(v)).collect();
        return per_channel(constant).then_some((input, Change { factor: Vec::new(), term }));
    }
    None
}

/// Whether a constant has one value per channel of an image, `[C, 1, 1]` or `[1, C, 1, 1]`, so that adding it
/// changes no extent. A vector along the last axis is none, nor is one value for all.
fn per_channel(constant: &Tensor) -> bool {
    let shape = constant.shape();
    let Some(channels) = shape.iter().position(|&extent| extent != 1) else {
        return false;
    };
    let spatial = shape.len() - channels - 1;
    let others_are_one = shape[channels + 1..].iter().all(|&extent| extent == 1);
    others_are_one && spatial >= 1 && channels <= 1
}

/// Applies a change to a convolution's weights and bias, if they are constant and fit.
fn apply(program: &mut Program, node: &mut Node, change: &Change) -> Result<bool> {
    let Some(weights) = node.input(1).and_then(|id| program.constant(id)).cloned() else {
        return Ok(false);
    };
    let bias = match node.input(2) {
        None => None,
        Some(id) => match program.constant(id).cloned() {
            Some(bias) => Some(bias),
            None => return Ok(false),
        },
    };
    let shape = weights.shape().to_vec();
    let groups = usize::try_from(node.int("group", 1)).unwrap_or(0);
    let transposed = node.op.is("ConvTranspose");
    // Weights are [out, in / groups, ...], or [in, out / groups, ...] when transposed (ONNX Conv-11).
    let channels = match (transposed, shape.as_slice()) {
        (false, [out, _, ..]) => *out,
        (true, [_, out, ..]) => out * groups,
        _ => return Ok(false),
    };
    if weights.dtype() != F32 || change.term.len() != channels || shape.len() < 3 || groups == 0 {
        return Ok(false);
    }
    let Some(old) = weights.elements::<f32>() else {
        return Ok(false);
    };
    let old_bias: Vec<f64> = match bias.as_ref().map(|bias| bias.elements::<f32>()) {
        None => vec![0.0; channels],
        Some(Some(values)) if values.len() == channels => values.iter().map(|&v| f64::from(v)).collect(),
        Some(_) => return Ok(false),
    };
    let factor = |c: usize| change.factor.get(c).copied().unwrap_or(1.0);
    if !change.factor.is_empty() {
        let taps: usize = shape[2..].iter().product();
        let scaled: Vec<f32> = old
            .iter()
            .enumerate()
            .map(|(i, &w)| {
                let channel = if transposed {
                    let (input, output) = (i / taps / shape[1], i / taps % shape[1]);
                    input / (shape[0] / groups) * shape[1] + output
                } else {
                    i / taps / shape[1]
                };
                (f64::from(w) * factor(channel)) as f32
            })
            .collect();
        let new = Tensor::from_elements(&shape, &scaled)?;
        node.inputs[1] = Some(program.add_constant("", new));
    }
    let new_bias: Vec<f32> =
        (0..channels).map(|c| (old_bias[c] * factor(c) + change.term[c]) as f32).collect();
    let new_bias = program.add_constant("", Tensor::from_elements(&[channels], &new_bias)?);
    node.inputs.resize(3, None);
    node.inputs[2] = Some(new_bias);
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Op, Value};
    use crate::tensor::TensorType;

    #[test]
    fn a_normalisation_becomes_weights_and_bias() {
        let mut program = Program::default();
        let x = program.add_typed("x", TensorType::new(F32, &[1, 1, 2, 2]));
        let constant = |program: &mut Program, shape: &[usize], values: &[f32]| {
            Some(program.add_constant("", Tensor::from_elements(shape, values).unwrap()))
        };
        let weights = constant(&mut program, &[2, 1, 1, 1], &[2.0, 3.0]);
        let lists: [Option<ValueId>; 4] = [
            constant(&mut program, &[2], &[1.0, 4.0]),
            constant(&mut program, &[2], &[0.5, 0.25]),
            constant(&mut program, &[2], &[1.0, 2.0]),
            constant(&mut program, &[2], &[4.0, 16.0]),
        ];
        let y = program.add_value(Value::default());
        let z = program.add_value(Value::default());
        let mut norm = Node::new(Op::onnx("BatchNormalization", 15), vec![Some(y)], vec![Some(z)]);
        norm.inputs.extend(lists);
        norm.set_attr("epsilon", crate::program::AttrValue::Float(0.0));
        program.main.inputs = vec![x];
        program.main.nodes =
            vec![Node::new(Op::onnx("Conv", 11), vec![Some(x), weights], vec![Some(y)]), norm];
        program.main.outputs = vec![z];
        assert_eq!(run(&mut program).unwrap(), 1);
        let conv = &program.main.nodes[0];
        let list =
            |i: usize| program.constant(conv.input(i).unwrap()).unwrap().elements::<f32>().unwrap().to_vec();
        // k = 1/2 and 4/4; bias = offset - mean * k.
        assert_eq!((list(1), list(2)), (vec![1.0, 3.0], vec![0.0, -1.75]));
        assert_eq!(conv.output(0), Some(z));
    }
}
