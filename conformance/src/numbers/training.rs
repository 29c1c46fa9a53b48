//! Ops of training, and what they leave at inference: losses, optimisers, Dropout.

use super::index::*;
use super::*;
use crate::ops::random;

const TRAINING: &str = "ai.onnx.preview.training";
const WIDE: &[DType] = &[F32, F64];

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Dropout", FLOATS, |dtype, dice, i| {
        let shape = shape_of(dice, i, 0..=4);
        let x = anything(dtype, dice, &shape);
        // Without training nothing is dropped, at any ratio.
        let ratio_dtype = if i % 3 == 1 { dtype } else { F32 };
        let ratio = (i % 3 != 0).then(|| HostTensor::new(ratio_dtype, &[], vec![0.25]));
        let is_training = (i % 4 > 1).then(|| integers(BOOL, &[], &[0]));
        let mut outputs = vec![Expected::exact(dtype, &shape, x.values.clone())];
        if i % 2 == 1 {
            outputs.push(Expected::exact(BOOL, &shape, vec![1.0; x.values.len()]));
        }
        Trial { attributes: Vec::new(), inputs: vec![Some(x), ratio, is_training], outputs }
    }),
    OpTrials::new("NegativeLogLikelihoodLoss", FLOATS, |dtype, dice, i| {
        let labelled = Labelled::new(dtype, dice, i, (-9.0, 0.0));
        let outputs = vec![labelled.loss(dtype, &labelled.scores.values, &labelled.exact())];
        labelled.trial(outputs)
    }),
    OpTrials::new("SoftmaxCrossEntropyLoss", FLOATS, |dtype, dice, i| {
        // Also where an exponential of the score itself is infinite.
        let range = if i % 4 == 3 { (90.0, 98.0) } else { (-6.0, 6.0) };
        let labelled = Labelled::new(dtype, dice, i, range);
        let shape = &labelled.scores.shape;
        let logs = filled(shape, |index| {
            let class = |class| get(&labelled.scores, &with(index, 1, class));
            let sum: f64 = (0..shape[1]).map(|k| class(k).exp()).sum();
            class(index[1]) - sum.ln()
        });
        // An exponential and a logarithm.
        let bounds: Vec<f64> = logs.iter().map(|&log| Rounding::Function.bound(dtype, log)).collect();
        let mut outputs = vec![labelled.loss(dtype, &logs, &bounds)];
        if i % 2 == 1 {
            outputs.push(Expected::within(dtype, shape, logs, bounds));
        }
        labelled.trial(outputs)
    }),
    OpTrials { domain: TRAINING, ..OpTrials::new("Adagrad", WIDE, adagrad) },
    OpTrials { domain: TRAINING, ..OpTrials::new("Adam", WIDE, adam) },
    OpTrials { domain: TRAINING, ..OpTrials::new("Momentum", WIDE, momentum) },
];

/// Scores of classes, and which class is right.
struct Labelled {
    scores: HostTensor,
    labels: HostTensor,
    weights: Option<HostTensor>,
    ignored: Option<i64>,
    reduction: Option<&'static str>,
}

impl Labelled {
    fn new(dtype: DType, dice: &mut Dice, i: u64, range: (f64, f64)) -> Self {
        let shape = shape_of(dice, i, 2..=4);
        let n_classes = shape[1];
        let label_shape = [&shape[..1], &shape[2..]].concat();
        // An ignored label may be a class or none.
        let ignored = match i % 4 {
            2 if n_classes > 1 => Some(0),
            3 => Some(-100),
            _ => None,
        };
        let mut label = |k: usize| match ignored {
            // Not all of them, since there would be no mean.
            Some(ignored) if k > 0 && dice.below(3) == 0 => ignored,
            Some(0) => 1 + dice.below(n_classes as u64 - 1) as i64,
            _ => dice.below(n_classes as u64) as i64,
        };
        let labels: Vec<i64> = (0..n_elements(&label_shape)).map(&mut label).collect();
        Self {
            scores: random(dtype, dice, &shape, range),
            labels: integers(index_dtype(i / 2), &label_shape, &labels),
            weights: (!i.is_multiple_of(3)).then(|| random(dtype, dice, &[n_classes], (0.25, 2.0))),
            ignored,
            reduction: [None, Some("none"), Some("sum"), Some("mean"), Some("none")][i as usize % 5],
        }
    }

    /// Bounds of log-probabilities that are operands.
    fn exact(&self) -> Vec<f64> {
        vec![0.0; self.scores.values.len()]
    }

    /// Returns the loss, from logarithms of probabilities and how far each may be off.
    fn loss(&self, dtype: DType, logs: &[f64], bounds: &[f64]) -> Expected {
        let shape = &self.labels.shape;
        // Loss, weight and error of each label. An ignored one has no weight, in a mean either: so the reference
        // implementation and its test cases, where the text says only `mean(loss)`.
        let each: Vec<(f64, f64, f64)> = (0..self.labels.values.len())
            .map(|k| {
                let label = self.labels.values[k] as i64;
                if self.ignored == Some(label) {
                    return (0.0, 0.0, 0.0);
                }
                let index = index_of(k, shape);
                let at = offset(&[&index[..1], &[label], &index[1..]].concat(), &self.scores.shape);
                let weight = self.weights.as_ref().map_or(1.0, |weights| weights.values[label as usize]);
                (-logs[at] * weight, weight, bounds[at] * weight)
            })
            .collect();
        if self.reduction == Some("none") {
            let values = each.iter().map(|(loss, ..)| *loss).collect();
            let bounds = each.iter().map(|(loss, _, error)| error + sum_bound(dtype, 2, loss.abs()));
            return Expected::within(dtype, shape, values, bounds.collect());
        }
        let n = each.len();
        let loss: f64 = each.iter().map(|(loss, ..)| loss).sum();
        let magnitude: f64 = each.iter().map(|(loss, ..)| loss.abs()).sum();
        let error: f64 = each.iter().map(|(.., error)| error).sum();
        let bound = error + sum_bound(dtype, n + 2, magnitude);
        if self.reduction == Some("sum") {
            return Expected::within(dtype, &[], vec![loss], vec![bound]);
        }
        // The divisor is a sum of as many positive terms, with its own roundings.
        let weight: f64 = each.iter().map(|(_, weight, _)| weight).sum();
        let bound = bound / weight + sum_bound(dtype, n + 2, (loss / weight).abs());
        Expected::within(dtype, &[], vec![loss / weight], vec![bound])
    }

    fn trial(self, outputs: Vec<Expected>) -> Trial {
        let reduction = self.reduction.map(|name| ("reduction", word(name)));
        let ignored = self.ignored.map(|label| ("ignore_index", AttrValue::Int(label)));
        Trial {
            attributes: reduction.into_iter().chain(ignored).collect(),
            inputs: vec![Some(self.scores), Some(self.labels), self.weights],
            outputs,
        }
    }
}

/// An optimiser's step for one to three tensors.
struct OptimiserStep {
    dtype: DType,
    rate: HostTensor,
    count: i64,
    /// By role, then by tensor: values, gradients, then what was accumulated.
    groups: Vec<Vec<HostTensor>>,
    norm: f64,
}

impl OptimiserStep {
    /// `ranges` are those of what was accumulated.
    fn new(dtype: DType, dice: &mut Dice, i: u64, ranges: &[(f64, f64)]) -> Self {
        let n = 1 + i % 3;
        let shapes: Vec<Vec<i64>> = (0..n).map(|_| shape_of(dice, i, 0..=3)).collect();
        let mut group = |range| shapes.iter().map(|shape| random(dtype, dice, shape, range)).collect();
        let groups = [(-2.0, 2.0), (-2.0, 2.0)].iter().chain(ranges).map(|&range| group(range)).collect();
        Self {
            dtype,
            // Its dtype is one of its own.
            rate: random(if i % 4 == 3 { F32 } else { dtype }, dice, &[], (0.01, 0.5)),
            // 0 is a case of its own.
            count: (i % 4) as i64,
            groups,
            norm: if i.is_multiple_of(2) { 0.0 } else { f64::from(0.1f32) },
        }
    }

    fn rate(&self) -> f64 {
        self.rate.values[0]
    }

    /// The trial, from a function that gives the new values of an element, and the magnitude of what each is made of:
    /// the tensor itself and what is accumulated.
    fn trial<const N: usize>(
        self,
        mut attributes: Vec<(&'static str, AttrValue)>,
        new: impl Fn(&Self, &[f64]) -> [(f64, f64); N],
    ) -> Trial {
        let n = self.groups[0].len();
        let mut results: Vec<Vec<Expected>> = (0..N).map(|_| Vec::new()).collect();
        for tensor in 0..n {
            let shape = &self.groups[0][tensor].shape;
            let each: Vec<[(f64, f64); N]> = (0..n_elements(shape))
                .map(|k| {
                    let operands: Vec<f64> =
                        self.groups.iter().map(|group| group[tensor].values[k]).collect();
                    new(&self, &operands)
                })
                .collect();
            for (role, results) in results.iter_mut().enumerate() {
                let values = each.iter().map(|new| new[role].0).collect();
                // The longest way to a result has 16 roundings, a square root among them.
                let bounds = each.iter().map(|new| sum_bound(self.dtype, 16, new[role].1)).collect();
                results.push(Expected::within(self.dtype, shape, values, bounds));
            }
        }
        if self.norm != 0.0 {
            attributes.push(("norm_coefficient", AttrValue::Float(self.norm as f32)));
        }
        let operands = [self.rate, integers(I64, &[], &[self.count])];
        Trial {
            attributes,
            inputs: operands.into_iter().chain(self.groups.into_iter().flatten()).map(Some).collect(),
            outputs: results.into_iter().flatten().collect(),
        }
    }
}

/// A parameter as a node says it: an f32; None is its default.
fn parameter(
    attributes: &mut Vec<(&'static str, AttrValue)>,
    name: &'static str,
    is_said: bool,
    value: f32,
    default: f32,
) -> f64 {
    if is_said {
        attributes.push((name, AttrValue::Float(value)));
    }
    f64::from(if is_said { value } else { default })
}

fn adagrad(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let step = OptimiserStep::new(dtype, dice, i, &[(0.5, 2.0)]);
    let mut attributes = Vec::new();
    let decay = parameter(&mut attributes, "decay_factor", !i.is_multiple_of(3), 0.125, 0.0);
    let epsilon = parameter(&mut attributes, "epsilon", i % 3 == 1, 0.01, 1e-6);
    step.trial(attributes, |step, operands| {
        let &[x, g, h] = operands else { unreachable!("three groups") };
        let rate = step.rate() / (1.0 + step.count as f64 * decay);
        let (gradient, size) = (step.norm * x + g, (step.norm * x).abs() + g.abs());
        let squares = h + gradient * gradient;
        let root = squares.sqrt() + epsilon;
        // An error of the squares is halved in their root, relative to it.
        let share = 1.0 + size * size / squares;
        [(x - rate * gradient / root, x.abs() + rate * size / root * share), (squares, h + size * size)]
    })
}

fn adam(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let step = OptimiserStep::new(dtype, dice, i, &[(-1.0, 1.0), (0.5, 2.0)]);
    let mut attributes = Vec::new();
    let alpha = parameter(&mut attributes, "alpha", !i.is_multiple_of(3), 0.75, 0.9);
    let beta = parameter(&mut attributes, "beta", !i.is_multiple_of(3), 0.9, 0.999);
    let epsilon = parameter(&mut attributes, "epsilon", i % 3 == 1, 0.01, 1e-6);
    let post = parameter(&mut attributes, "norm_coefficient_post", i % 5 > 2, 0.05, 0.0);
    step.trial(attributes, |step, operands| {
        let &[x, g, v, h] = operands else { unreachable!("four groups") };
        let (gradient, size) = (step.norm * x + g, (step.norm * x).abs() + g.abs());
        let average = alpha * v + (1.0 - alpha) * gradient;
        let average_size = alpha * v.abs() + (1.0 - alpha) * size;
        let squares = beta * h + (1.0 - beta) * gradient * gradient;
        let squares_size = beta * h + (1.0 - beta) * size * size;
        let root = squares.sqrt() + epsilon;
        let (power_a, power_b) = (alpha.powi(step.count as i32), beta.powi(step.count as i32));
        let is_first = step.count == 0;
        let rate =
            if is_first { step.rate() } else { step.rate() * (1.0 - power_b).sqrt() / (1.0 - power_a) };
        // The error of a power grows with its distance from 1.
        let powers = if is_first { 0.0 } else { power_a / (1.0 - power_a) + power_b / (1.0 - power_b) };
        let update = rate * average_size / root * (squares_size / squares + powers);
        [
            ((1.0 - post) * (x - rate * average / root), (1.0 - post) * (x.abs() + update)),
            (average, average_size),
            (squares, squares_size),
        ]
    })
}

fn momentum(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let step = OptimiserStep::new(dtype, dice, i, &[(-1.0, 1.0)]);
    let (alpha, beta) = (f64::from(0.95f32), f64::from(0.1f32));
    let is_nesterov = i % 3 == 1;
    let mut attributes = vec![
        ("alpha", AttrValue::Float(alpha as f32)),
        ("beta", AttrValue::Float(beta as f32)),
        ("mode", word(if is_nesterov { "nesterov" } else { "standard" })),
    ];
    // This one has no default.
    if step.norm == 0.0 {
        attributes.push(("norm_coefficient", AttrValue::Float(0.0)));
    }
    step.trial(attributes, |step, operands| {
        let &[x, g, v] = operands else { unreachable!("three groups") };
        let beta = if step.count > 0 { beta } else { 1.0 };
        let (gradient, size) = (step.norm * x + g, (step.norm * x).abs() + g.abs());
        let (new, new_size) = (alpha * v + beta * gradient, alpha * v.abs() + beta * size);
        let (update, update_size) =
            if is_nesterov { (gradient + alpha * new, size + alpha * new_size) } else { (new, new_size) };
        [(x - step.rate() * update, x.abs() + step.rate() * update_size), (new, new_size)]
    })
}
