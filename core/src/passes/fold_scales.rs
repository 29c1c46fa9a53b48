//! Folds operations with constants on each output channel into the convolution or product before them: a
//! BatchNormalization, or Mul, Div, Add and Sub.
//!
//! `(conv(x, W) + b) * k + t = conv(x, W * k) + (b * k + t)`, with `k` and `t` one number per output channel, or one for
//! all. For a normalisation `k = scale / sqrt(variance + epsilon)` and `t = B - mean * k` (ONNX BatchNormalization-15,
//! inference form). Factors are computed in f64, so that the fold costs one rounding of each weight. Gemm is
//! `alpha * A * B + beta * C`, in which `k` goes to B and C, and `t / beta` to C. MatMul has no bias and takes factors
//! alone.
//!
//! Shapes need not be known: ranks follow from the weights. A constant that would give the result other extents, or
//! another rank, stays an op of its own.

use super::each_region;
use super::uses::Uses;
use crate::cancel::look;
use crate::error::Result;
use crate::program::{AttrValue, Node, Program, Region, ValueId};
use crate::tensor::{AlignedBytes, F32, Tensor, n_elements};
use devbay_plugin_api::reserve;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

/// The kind of nodes that are folded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folds {
    /// BatchNormalization.
    Normalisations,
    /// Mul, Div, Add and Sub.
    Arithmetic,
}

/// Folds wherever the result of a convolution or product goes to such a node alone and all parameters are constant, but
/// for nodes that `stay`; gives the number of nodes that are gone.
///
/// # Errors
/// Out of memory for the new weights.
pub fn run(program: &mut Program, folds: Folds, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let uses = Uses::of(program);
    each_region(program, &mut |program, region| fold(program, region, folds, stay, &uses))
}

fn fold(
    program: &mut Program,
    region: &mut Region,
    folds: Folds,
    stay: &dyn Fn(&Node) -> bool,
    uses: &Uses,
) -> Result<usize> {
    let mut folded = 0;
    // Position of the node that makes a value, as long as the value has no other use.
    let mut makers: HashMap<ValueId, usize> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        let change = if stay(&node) { None } else { change_of(program, &node, folds) };
        let maker = change
            .as_ref()
            .and_then(|(input, _)| (uses.count(*input) == 1).then(|| makers.get(input).copied()).flatten());
        if let (Some((input, change)), Some(at), Some(output)) = (change, maker, node.output(0))
            && apply(program, &mut kept[at], &change, uses)?
        {
            kept[at].outputs[0] = Some(output);
            makers.remove(&input);
            makers.insert(output, at);
            folded += 1;
            continue;
        }
        if Form::of(&node).is_some()
            && !stay(&node)
            && let Some(output) = node.output(0)
        {
            makers.insert(output, kept.len());
        }
        kept.push(node);
    }
    region.nodes = kept;
    Ok(folded)
}

/// The purpose of the memory that the pass takes.
const FOLDED: &str = "folded weights";

/// Numbers with their shape.
struct Numbers {
    /// None for a list of one number per channel.
    shape: Option<Vec<usize>>,
    values: Vec<f64>,
}

impl Numbers {
    fn of(constant: &Tensor, map: impl Fn(f64) -> f64) -> Option<Self> {
        let values = constant.elements::<f32>()?.iter().map(|&value| map(f64::from(value)));
        let values = reserve::collected(values, FOLDED).ok()?;
        Some(Self { shape: Some(constant.shape().to_vec()), values })
    }

    fn list(values: Vec<f64>) -> Option<Self> {
        Some(Self { shape: None, values })
    }

    /// One number per channel; None if they are along other axes, or would change the shape of the result.
    fn per_channel(&self, result: &ResultShape) -> Option<Vec<f64>> {
        if let Some(shape) = &self.shape {
            let fits = |(i, &extent): (usize, &usize)| {
                extent == 1 || (i == result.axes_behind && extent == result.n_channels)
            };
            if shape.len() > result.rank_min || !shape.iter().rev().enumerate().all(fits) {
                return None;
            }
        }
        match self.values.as_slice() {
            [value] => Some(vec![*value; result.n_channels]),
            values => (values.len() == result.n_channels).then(|| values.to_vec()),
        }
    }
}

/// The effect of a node on each channel of its input: multiply, then add.
struct Change {
    factor: Option<Numbers>,
    term: Option<Numbers>,
    /// True if weights that others use too may be copied for it.
    copies_weights: bool,
}

/// Returns the input that a node changes per channel with constants, and how.
fn change_of(program: &Program, node: &Node, folds: Folds) -> Option<(ValueId, Change)> {
    if !node.op.domain.is_empty() {
        return None;
    }
    match folds {
        Folds::Normalisations => normalisation(program, node),
        Folds::Arithmetic => arithmetic(program, node),
    }
}

fn normalisation(program: &Program, node: &Node) -> Option<(ValueId, Change)> {
    let unused = node.outputs.iter().skip(1).all(Option::is_none);
    if !node.op.is("BatchNormalization") || node.int("training_mode", 0) != 0 || !unused {
        return None;
    }
    let list = |i: usize| program.constant(node.input(i)?)?.elements::<f32>();
    let (scale, offset, mean, variance) = (list(1)?, list(2)?, list(3)?, list(4)?);
    let n = scale.len();
    if [offset.len(), mean.len(), variance.len()] != [n; 3] {
        return None;
    }
    let epsilon = f64::from(node.float("epsilon", 1e-5));
    let factor: Vec<f64> =
        scale.iter().zip(variance).map(|(&s, &v)| f64::from(s) / (f64::from(v) + epsilon).sqrt()).collect();
    let term = (0..n).map(|c| f64::from(offset[c]) - f64::from(mean[c]) * factor[c]).collect();
    let change = Change { factor: Numbers::list(factor), term: Numbers::list(term), copies_weights: true };
    Some((node.input(0)?, change))
}

fn arithmetic(program: &Program, node: &Node) -> Option<(ValueId, Change)> {
    let (left, right) = (node.input(0)?, node.input(1)?);
    let (input, constant, is_right) = match (program.constant(left), program.constant(right)) {
        (None, Some(constant)) => (left, constant, true),
        (Some(constant), None) => (right, constant, false),
        _ => return None,
    };
    let numbers = |map: fn(f64) -> f64| Numbers::of(constant, map);
    let (factor, term) = match (&*node.op.name, is_right) {
        ("Mul", _) => (Some(numbers(|value| value)?), None),
        ("Div", true) => (Some(numbers(f64::recip)?), None),
        ("Add", _) => (None, Some(numbers(|value| value)?)),
        ("Sub", true) => (None, Some(numbers(|value| -value)?)),
        ("Sub", false) => {
            let minus = Numbers { shape: Some(Vec::new()), values: vec![-1.0] };
            (Some(minus), Some(numbers(|value| value)?))
        }
        _ => return None,
    };
    Some((input, Change { factor, term, copies_weights: false }))
}

/// The kind of node that can take a change, by where its weights have their output channels.
#[derive(Clone, Copy)]
enum Form {
    /// Weights `[out, in / groups, ...]` (ONNX Conv-11).
    Conv,
    /// Weights `[in, out / groups, ...]` (ONNX ConvTranspose-11).
    ConvTranspose { groups: usize },
    /// Weights `[in, out]`, or `[out, in]` when transposed (ONNX Gemm-13).
    Gemm { transposed: bool },
    /// Weights `[..., in, out]` (ONNX MatMul-13).
    MatMul,
}

/// The known facts of a result's shape.
struct ResultShape {
    n_channels: usize,
    /// Axes after that of the channels.
    axes_behind: usize,
    /// The least rank that it may have.
    rank_min: usize,
}

impl Form {
    fn of(node: &Node) -> Option<Self> {
        if !node.op.domain.is_empty() {
            return None;
        }
        Some(match &*node.op.name {
            "Conv" => Self::Conv,
            "ConvTranspose" => {
                Self::ConvTranspose { groups: usize::try_from(node.int("group", 1)).ok().filter(|&n| n > 0)? }
            }
            "Gemm" => Self::Gemm { transposed: node.int("transB", 0) != 0 },
            "MatMul" => Self::MatMul,
            _ => return None,
        })
    }

    /// Derives the result's shape from weights of this shape, and the first operand's rank if it is known.
    fn result(self, weights: &[usize], rank: Option<usize>) -> Option<ResultShape> {
        let (n_channels, axes_behind, rank_min) = match (self, weights) {
            (Self::Conv, [out, _, _, ..]) => (*out, weights.len() - 2, weights.len()),
            (Self::ConvTranspose { groups }, [_, out, _, ..]) => {
                (out.checked_mul(groups)?, weights.len() - 2, weights.len())
            }
            (Self::Gemm { transposed: false }, [_, out]) | (Self::Gemm { transposed: true }, [out, _]) => {
                (*out, 0, 2)
            }
            (Self::MatMul, [.., _, out]) => {
                let rank_min = match rank {
                    // A vector has no rows, so that the result has none either.
                    None | Some(1) => weights.len() - 1,
                    Some(rank) => rank.max(weights.len()),
                };
                (*out, 0, rank_min)
            }
            _ => return None,
        };
        (n_channels > 0).then_some(ResultShape { n_channels, axes_behind, rank_min })
    }

    /// Divides weights of this shape into runs for `f`, with the output channel of each: all weights of a run have it, or each
    /// of them has the next one.
    fn each_run(self, shape: &[usize], mut f: impl FnMut(Range<usize>, Run)) {
        let n = n_elements(shape).unwrap_or(0);
        let of = |extents: &[usize]| n_elements(extents).unwrap_or(0).max(1);
        let mut runs = |len: usize, run: &dyn Fn(usize) -> Run| {
            (0..n).step_by(len).enumerate().for_each(|(i, at)| f(at..at + len, run(i)));
        };
        match self {
            Self::Conv | Self::Gemm { transposed: true } => runs(of(&shape[1..]), &Run::One),
            Self::ConvTranspose { groups } => {
                let (of_group, outputs) = ((shape[0] / groups).max(1), shape[1]);
                runs(of(&shape[2..]), &|i| Run::One(i / outputs / of_group * outputs + i % outputs));
            }
            Self::Gemm { transposed: false } | Self::MatMul => runs(shape[shape.len() - 1], &|_| Run::Each),
        }
    }
}

/// The output channels of a run of weights.
#[derive(Clone, Copy)]
enum Run {
    /// One for all.
    One(usize),
    /// Each weight its own, in order.
    Each,
}

/// Returns weights with a factor for each channel; None if a weight would be another one, or without memory.
///
/// A weight that becomes 0, or loses digits below the normal numbers, is another weight: an infinity times it is NaN, and a
/// large number times it is off. One that becomes infinite or NaN is no result of before.
fn scaled(form: Form, old: &Tensor, factor: &[f64]) -> Option<Tensor> {
    let weights = old.elements::<f32>()?;
    let mut new = AlignedBytes::zeroed(size_of_val(weights)).ok()?;
    let scaled: &mut [f32] = bytemuck::cast_slice_mut(new.as_mut_slice());
    let mut fits = true;
    // Without a way out of the loop, so that it runs on vectors.
    let mut scale = |new: &mut f32, old: f32, factor: f64| {
        let exact = f64::from(old) * factor;
        *new = exact as f32;
        fits &= (exact == 0.0) | (*new).is_normal();
    };
    form.each_run(old.shape(), |run, channels| {
        let pairs = scaled[run.clone()].iter_mut().zip(&weights[run]);
        match channels {
            Run::One(channel) => {
                let factor = factor[channel];
                pairs.for_each(|(new, &old)| scale(new, old, factor));
            }
            Run::Each => pairs.zip(factor).for_each(|((new, &old), &factor)| scale(new, old, factor)),
        }
    });
    let size = size_of_val(weights);
    let tensor = || Tensor::from_storage(F32, old.shape(), Arc::new(new), 0, size).ok();
    fits.then(tensor).flatten()
}

/// Applies a change to a node's weights and bias, if they are constant and fit, and gives whether it did.
fn apply(program: &mut Program, node: &mut Node, change: &Change, uses: &Uses) -> Result<bool> {
    let Some(folded) = folded(program, node, change, uses) else {
        return Ok(false);
    };
    if let Some(weights) = folded.weights {
        node.inputs[1] = Some(program.add_constant("", weights));
    }
    if let Some(bias) = folded.bias {
        let bias = Tensor::from_elements(&[bias.len()], &bias)?;
        let bias = program.add_constant("", bias);
        node.inputs.resize(3, None);
        node.inputs[2] = Some(bias);
        if node.op.is("Gemm") && node.attr("beta").is_some() {
            node.set_attr("beta", AttrValue::Float(1.0));
        }
    }
    Ok(true)
}

/// Weights and a bias that have a change in them; None where they stay as they are.
struct Folded {
    weights: Option<Tensor>,
    bias: Option<Vec<f32>>,
}

fn folded(program: &Program, node: &Node, change: &Change, uses: &Uses) -> Option<Folded> {
    let form = Form::of(node)?;
    let id = node.input(1)?;
    let tensor = program.constant(id).filter(|tensor| tensor.dtype() == F32)?;
    let shape = tensor.shape();
    let rank = program.value(node.input(0)?).ty.as_ref().and_then(|ty| Some(ty.shape.as_ref()?.len()));
    let result = form.result(shape, rank)?;
    let lists = |numbers: &Option<Numbers>| match numbers {
        None => Some(None),
        Some(numbers) => numbers.per_channel(&result).map(Some),
    };
    let (factor, term) = (lists(&change.factor)?, lists(&change.term)?);
    let weights = match &factor {
        None => None,
        // Weights with other uses stay, so that these would be there twice.
        Some(_) if !change.copies_weights && uses.count(id) > 1 => return None,
        Some(factor) => {
            let weights = scaled(form, tensor, factor)?;
            // Now, so that a file's pages and the new weights are not both there for all of a model.
            tensor.release();
            Some(weights)
        }
    };
    let bias = match (form, node.input(2)) {
        (Form::MatMul, _) if term.is_some() => return None,
        (Form::MatMul, _) => None,
        (_, None) if term.is_none() => None,
        (_, bias) => {
            let old = match bias {
                None => vec![0.0; result.n_channels],
                Some(id) => old_bias(form, node, program.constant(id)?, &result)?,
            };
            let of =
                |list: &Option<Vec<f64>>, c: usize, absent: f64| list.as_ref().map_or(absent, |list| list[c]);
            let new =
                old.iter().enumerate().map(|(c, b)| (b * of(&factor, c, 1.0) + of(&term, c, 0.0)) as f32);
            Some(new.collect::<Vec<f32>>())
        }
    };
    let all_finite = bias.as_ref().is_none_or(|bias| bias.iter().all(|value| value.is_finite()));
    all_finite.then_some(Folded { weights, bias })
}

/// Returns the number that a node adds to each channel.
fn old_bias(form: Form, node: &Node, bias: &Tensor, result: &ResultShape) -> Option<Vec<f64>> {
    let Form::Gemm { .. } = form else {
        let values = bias.elements::<f32>()?;
        return (values.len() == result.n_channels)
            .then(|| values.iter().map(|&value| f64::from(value)).collect());
    };
    let beta = f64::from(node.float("beta", 1.0));
    Numbers::of(bias, |value| value * beta)?.per_channel(result)
}

#[cfg(test)]
#[path = "fold_scales_tests.rs"]
mod tests;
