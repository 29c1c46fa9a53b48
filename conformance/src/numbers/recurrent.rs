//! Recurrent layers: all directions, both layouts, lengths of sequences, initial states, clipping, peepholes,
//! activations with and without parameters.
//!
//! The clip is on the input of each activation, as the specification says: also of the last one of LSTM, whose input
//! onnxruntime leaves as it is. Activations are not mixed where their lists of alphas and betas could be read in two ways.

use super::index::word;
use super::near::{Near, nears};
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("RNN", FLOATS, |dtype, dice, i| trial(Cell::Rnn, dtype, dice, i)),
    OpTrials::new("GRU", FLOATS, |dtype, dice, i| trial(Cell::Gru, dtype, dice, i)),
    OpTrials::new("LSTM", FLOATS, |dtype, dice, i| trial(Cell::Lstm, dtype, dice, i)),
];

#[derive(Clone, Copy, PartialEq)]
enum Cell {
    Rnn,
    Gru,
    Lstm,
}

/// A function of the specification's list.
#[derive(Clone, Copy)]
struct Activation {
    name: &'static str,
    alpha: f32,
    beta: f32,
}

impl Activation {
    /// Returns the function with the parameters that it has by default.
    fn new(name: &'static str) -> Self {
        let (alpha, beta) = match name {
            "LeakyRelu" => (0.01, 0.0),
            "HardSigmoid" => (0.2, 0.5),
            _ => (1.0, 0.0),
        };
        Self { name, alpha, beta }
    }

    fn of(self, dtype: DType, x: Near) -> Near {
        let (zero, one) = (Near::of(dtype, 0.0), Near::of(dtype, 1.0));
        let parameter = |value: f32| Near::rounded(dtype, f64::from(value));
        // Near the bend of these an error is passed on by the steeper side.
        let bent = |y: Near| y.at_least_off(x.error);
        match self.name {
            "Sigmoid" => x.sigmoid(),
            "Tanh" => x.tanh(),
            "Relu" => x.max(zero),
            "LeakyRelu" if x.value < 0.0 => bent(parameter(self.alpha) * x),
            "Elu" if x.value < 0.0 => bent(parameter(self.alpha) * (x.exp() - one)),
            "LeakyRelu" | "Elu" => x,
            "HardSigmoid" => (parameter(self.alpha) * x + parameter(self.beta)).clamp(0.0, 1.0),
            "Softsign" => x / (one + x.abs()),
            "Softplus" => x.max(zero) + (one + (-x.abs()).exp()).ln(),
            name => unreachable!("{name} is in no list below"),
        }
    }
}

/// Properties of a node besides its data.
struct Layer {
    cell: Cell,
    dtype: DType,
    n_directions: usize,
    is_reversed: [bool; 2],
    n_inputs: usize,
    hidden: usize,
    /// Those of the cell, which both directions have.
    activations: Vec<Activation>,
    clip: f64,
    couples: bool,
    linear_before_reset: bool,
}

/// The operands as numbers; what is left out is 0.
struct Weights {
    w: Vec<Near>,
    r: Vec<Near>,
    b: Vec<Near>,
    p: Vec<Near>,
}

impl Layer {
    fn n_gates(&self) -> usize {
        match self.cell {
            Cell::Rnn => 1,
            Cell::Gru => 3,
            Cell::Lstm => 4,
        }
    }

    /// Returns the next hidden state and the next cell of one sequence.
    fn step(
        &self,
        d: usize,
        weights: &Weights,
        x: &[Near],
        h: &[Near],
        c: &[Near],
    ) -> (Vec<Near>, Vec<Near>) {
        let (n, rows) = (self.hidden, self.n_gates() * self.hidden);
        let from_input = |gate: usize, unit: usize| {
            let row = d * rows + gate * n + unit;
            let w = &weights.w[row * self.n_inputs..][..self.n_inputs];
            let products = w.iter().zip(x).map(|(&w, &x)| w * x);
            products.chain([weights.b[2 * d * rows + gate * n + unit]]).collect::<Vec<_>>()
        };
        let from_state = |gate: usize, unit: usize, h: &[Near]| {
            let row = d * rows + gate * n + unit;
            let products = weights.r[row * n..][..n].iter().zip(h).map(|(&r, &h)| r * h);
            products.chain([weights.b[2 * d * rows + rows + gate * n + unit]]).collect::<Vec<_>>()
        };
        let sum = |terms: Vec<Near>| Near::sum(self.dtype, terms);
        let activate =
            |which: usize, x: Near| self.activations[which].of(self.dtype, x.clamp(-self.clip, self.clip));
        let gate = |which: usize, gate: usize, unit: usize, peephole: Option<Near>| {
            let terms = [from_input(gate, unit), from_state(gate, unit, h), Vec::from_iter(peephole)];
            activate(which, sum(terms.concat()))
        };
        let one = Near::of(self.dtype, 1.0);
        match self.cell {
            Cell::Rnn => ((0..n).map(|unit| gate(0, 0, unit, None)).collect(), Vec::new()),
            Cell::Gru => {
                let reset: Vec<Near> = (0..n).map(|unit| gate(0, 1, unit, None)).collect();
                let kept: Vec<Near> = reset.iter().zip(h).map(|(&r, &h)| r * h).collect();
                let next = |unit: usize| {
                    let update = gate(0, 0, unit, None);
                    let state = if self.linear_before_reset {
                        vec![reset[unit] * sum(from_state(2, unit, h))]
                    } else {
                        from_state(2, unit, &kept)
                    };
                    let candidate = activate(1, sum([from_input(2, unit), state].concat()));
                    (one - update) * candidate + update * h[unit]
                };
                ((0..n).map(next).collect(), Vec::new())
            }
            Cell::Lstm => {
                let peephole = |gate: usize, unit: usize, cell: Near| {
                    Some(weights.p[d * 3 * n + gate * n + unit] * cell)
                };
                let next = |unit: usize| {
                    let input = gate(0, 0, unit, peephole(0, unit, c[unit]));
                    let forget =
                        if self.couples { one - input } else { gate(0, 2, unit, peephole(2, unit, c[unit])) };
                    let cell = forget * c[unit] + input * gate(1, 3, unit, None);
                    let output = gate(0, 1, unit, peephole(1, unit, cell));
                    (output * activate(2, cell), cell)
                };
                (0..n).map(next).unzip()
            }
        }
    }
}

fn trial(cell: Cell, dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let mut some = |n: u64| 1 + dice.below(n) as usize;
    let (steps, batches, n_inputs, hidden) = match i {
        0 => (1, 1, 1, 1),
        1 => (3, 2, 5, 17),
        2 => (4, 3, 33, 35),
        _ => (some(5), some(4), some(6), some(6)),
    };
    let (direction, is_reversed) =
        [("forward", [false, false]), ("reverse", [true, false]), ("bidirectional", [false, true])]
            [i as usize % 3];
    let n_directions = 1 + usize::from(direction == "bidirectional");
    let mut layer = Layer {
        cell,
        dtype,
        n_directions,
        is_reversed,
        n_inputs,
        hidden,
        activations: match cell {
            Cell::Rnn => vec!["Tanh"],
            Cell::Gru => vec!["Sigmoid", "Tanh"],
            Cell::Lstm => vec!["Sigmoid", "Tanh", "Tanh"],
        }
        .into_iter()
        .map(Activation::new)
        .collect(),
        clip: f64::INFINITY,
        couples: false,
        linear_before_reset: false,
    };
    let mut attributes = vec![("hidden_size", AttrValue::Int(hidden as i64))];
    if !i.is_multiple_of(6) {
        attributes.push(("direction", word(direction)));
    }
    if i % 4 == 3 {
        layer.clip = f64::from(0.4f32);
        attributes.push(("clip", AttrValue::Float(0.4)));
    }
    if cell == Cell::Gru && i % 2 == 1 {
        layer.linear_before_reset = true;
        attributes.push(("linear_before_reset", AttrValue::Int(1)));
    }
    if cell == Cell::Lstm && i % 5 == 2 {
        layer.couples = true;
        attributes.push(("input_forget", AttrValue::Int(1)));
    }
    layer.activate_otherwise(i, &mut attributes);
    let batch_first = i % 5 == 4;
    if batch_first {
        attributes.push(("layout", AttrValue::Int(1)));
    }

    let sequences = if batch_first { [batches, steps] } else { [steps, batches] };
    let states = if batch_first { [batches, n_directions] } else { [n_directions, batches] };
    let rows = layer.n_gates() * hidden;
    let mut operand = |extents: &[usize], limit: f64| {
        let shape: Vec<i64> = extents.iter().map(|&extent| extent as i64).collect();
        random(dtype, dice, &shape, (-limit, limit))
    };
    let x = operand(&[sequences[0], sequences[1], n_inputs], 1.0);
    let w = operand(&[n_directions, rows, n_inputs], 0.6);
    // So that states neither grow nor vanish.
    let r = operand(&[n_directions, rows, hidden], (2.0 / hidden as f64).min(0.6));
    let b = (i % 4 != 1).then(|| operand(&[n_directions, 2 * rows], 0.5));
    let is_lstm = cell == Cell::Lstm;
    let h = (i % 3 != 1).then(|| operand(&[states[0], states[1], hidden], 1.0));
    let c = (is_lstm && !i.is_multiple_of(4)).then(|| operand(&[states[0], states[1], hidden], 1.0));
    let p = (is_lstm && !i.is_multiple_of(3)).then(|| operand(&[n_directions, 3 * hidden], 0.5));
    let lengths = (i % 4 == 2).then(|| {
        let length = |_| 1.0 + dice.below(steps as u64) as f64;
        HostTensor::new(I32, &[batches as i64], (0..batches).map(length).collect())
    });

    let numbers = |tensor: &Option<HostTensor>, n: usize| match tensor {
        Some(tensor) => nears(tensor),
        None => vec![Near::of(dtype, 0.0); n],
    };
    let weights = Weights {
        w: nears(&w),
        r: nears(&r),
        b: numbers(&b, 2 * n_directions * rows),
        p: numbers(&p, 3 * n_directions * hidden),
    };
    let n_states = n_directions * batches * hidden;
    let (inputs, mut y_h, mut y_c) = (nears(&x), numbers(&h, n_states), numbers(&c, n_states));
    // The content after the end of a sequence is unspecified: any number will do.
    let anything = Near::of(dtype, 0.0).at_least_off(f64::MAX);
    let mut y = vec![anything; steps * n_states];
    for (d, batch) in (0..n_directions).flat_map(|d| (0..batches).map(move |batch| (d, batch))) {
        let length = lengths.as_ref().map_or(steps, |lengths| lengths.values[batch] as usize);
        let state = if batch_first { batch * n_directions + d } else { d * batches + batch } * hidden;
        for step in 0..length {
            let t = if layer.is_reversed[d] { length - 1 - step } else { step };
            let sequence = if batch_first { batch * steps + t } else { t * batches + batch } * n_inputs;
            let (next_h, next_c) = layer.step(
                d,
                &weights,
                &inputs[sequence..][..n_inputs],
                &y_h[state..][..hidden],
                &y_c[state..][..hidden],
            );
            y_h[state..][..hidden].copy_from_slice(&next_h);
            y_c[state..][..next_c.len()].copy_from_slice(&next_c);
            let row = if batch_first {
                (batch * steps + t) * n_directions + d
            } else {
                (t * n_directions + d) * batches + batch
            };
            y[row * hidden..][..hidden].copy_from_slice(&next_h);
        }
    }
    let shape = |extents: &[usize]| extents.iter().map(|&extent| extent as i64).collect::<Vec<_>>();
    let y_shape = if batch_first {
        shape(&[batches, steps, n_directions, hidden])
    } else {
        shape(&[steps, n_directions, batches, hidden])
    };
    let state_shape = shape(&[states[0], states[1], hidden]);
    let mut outputs = vec![Expected::near(dtype, &y_shape, y), Expected::near(dtype, &state_shape, y_h)];
    if is_lstm {
        outputs.push(Expected::near(dtype, &state_shape, y_c));
    }
    let mut inputs = vec![Some(x), Some(w), Some(r), b, lengths, h];
    if is_lstm {
        inputs.extend([c, p]);
    }
    Trial { attributes, inputs, outputs }
}

impl Layer {
    /// Other activations than the cell has by default, every second time.
    fn activate_otherwise(&mut self, i: u64, attributes: &mut Vec<(&'static str, AttrValue)>) {
        let names = match i {
            4 | 9 => ["Relu", "Softsign", "Tanh"],
            5 | 12 => ["Sigmoid", "Softplus", "Relu"],
            6 | 13 => ["HardSigmoid", "LeakyRelu", "Elu"],
            7 | 14 => ["HardSigmoid"; 3],
            8 => ["LeakyRelu"; 3],
            10 => ["Elu"; 3],
            _ => return,
        };
        self.activations = names[..self.activations.len()].iter().copied().map(Activation::new).collect();
        // Of functions that are all the same, each takes a parameter of each list; the others have theirs by default.
        let n = self.activations.len() * self.n_directions;
        if names[0] == names[1] {
            let (alpha, beta) = (0.3, 0.25);
            self.activations.iter_mut().for_each(|activation| activation.alpha = alpha);
            attributes.push(("activation_alpha", AttrValue::Floats(vec![alpha; n])));
            if names[0] == "HardSigmoid" {
                self.activations.iter_mut().for_each(|activation| activation.beta = beta);
                attributes.push(("activation_beta", AttrValue::Floats(vec![beta; n])));
            }
        }
        let names = (0..n).map(|at| names[at % self.activations.len()].to_owned()).collect();
        attributes.push(("activations", AttrValue::Strings(names)));
    }
}
