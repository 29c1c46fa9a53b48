//! RNN, GRU and LSTM on real libraries, against the specification's equations number by number.

use crate::support::graph::{Attr, Graph, NONE, Tensor, check, f32s, irregular};
use devbay_plugin_api::sdk::F32;

const STEPS: usize = 3;
const BATCH: usize = 2;
const INPUTS: usize = 4;
const HIDDEN: usize = 3;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Operands for so many directions, and the op's own number of gates.
struct Operands {
    x: Tensor,
    w: Tensor,
    r: Tensor,
    bias: Tensor,
    h: Tensor,
    cell: Tensor,
    peepholes: Tensor,
}

impl Operands {
    fn new(n_directions: i64, gates: i64) -> Self {
        let (batch, inputs, hidden) = (BATCH as i64, INPUTS as i64, HIDDEN as i64);
        Self {
            x: irregular(&[STEPS as i64, batch, inputs], 1),
            w: irregular(&[n_directions, gates * hidden, inputs], 2),
            r: irregular(&[n_directions, gates * hidden, hidden], 3),
            bias: irregular(&[n_directions, 2 * gates * hidden], 4),
            h: irregular(&[n_directions, batch, hidden], 5),
            cell: irregular(&[n_directions, batch, hidden], 6),
            peepholes: irregular(&[n_directions, 3 * hidden], 7),
        }
    }

    /// The input's part and the state's part of a gate: weights times numbers, with their biases.
    fn parts(&self, gates: usize, direction: usize, unit: usize, x: &[f64], h: &[f64]) -> (f64, f64) {
        let (w, r, bias) = (self.w.numbers(), self.r.numbers(), self.bias.numbers());
        let row = direction * gates * HIDDEN + unit;
        let product = |weights: &[f32], numbers: &[f64]| -> f64 {
            let n = numbers.len();
            weights[row * n..][..n].iter().zip(numbers).map(|(&a, b)| f64::from(a) * b).sum()
        };
        let first = direction * 2 * gates * HIDDEN + unit;
        (product(&w, x) + f64::from(bias[first]), product(&r, h) + f64::from(bias[first + gates * HIDDEN]))
    }

    /// Runs `step` over the sequence of each direction: all hidden states, and the last states.
    fn run(
        &self,
        reverse: &[bool],
        step: impl Fn(&Self, usize, &[f64], &[f64], &[f64]) -> (Vec<f64>, Vec<f64>),
    ) -> [Tensor; 3] {
        let n = reverse.len();
        let mut all = vec![0f32; STEPS * n * BATCH * HIDDEN];
        let (mut last, mut cells) = (Vec::new(), Vec::new());
        for (direction, is_reverse) in reverse.iter().enumerate() {
            for batch in 0..BATCH {
                let own = |tensor: &Tensor, at: usize, n: usize| -> Vec<f64> {
                    tensor.numbers()[at * n..][..n].iter().map(|&x| x.into()).collect()
                };
                let mut h = own(&self.h, direction * BATCH + batch, HIDDEN);
                let mut cell = own(&self.cell, direction * BATCH + batch, HIDDEN);
                for at in 0..STEPS {
                    let at = if *is_reverse { STEPS - 1 - at } else { at };
                    let x = own(&self.x, at * BATCH + batch, INPUTS);
                    (h, cell) = step(self, direction, &x, &h, &cell);
                    let first = ((at * n + direction) * BATCH + batch) * HIDDEN;
                    for (unit, &value) in h.iter().enumerate() {
                        all[first + unit] = value as f32;
                    }
                }
                last.extend(h.iter().map(|&x| x as f32));
                cells.extend(cell.iter().map(|&x| x as f32));
            }
        }
        let (steps, n, batch, hidden) = (STEPS as i64, n as i64, BATCH as i64, HIDDEN as i64);
        let state = [n, batch, hidden];
        [f32s(&[steps, n, batch, hidden], &all), f32s(&state, &last), f32s(&state, &cells)]
    }

    /// Runs the op on every library with the operands that it has and compares its results.
    fn check(&self, op: &str, attrs: &[(&str, Attr)], has_cell: bool, expected: &[Tensor]) {
        let mut graph = Graph::default();
        let x = graph.input(F32, &self.x.dims);
        let mut inputs = vec![x];
        for tensor in [&self.w, &self.r, &self.bias] {
            inputs.push(graph.constant(tensor.clone()));
        }
        let h = graph.input(F32, &self.h.dims);
        inputs.extend([NONE, h]);
        let mut given = vec![self.x.clone(), self.h.clone()];
        if has_cell {
            inputs.push(graph.input(F32, &self.cell.dims));
            given.push(self.cell.clone());
            inputs.push(graph.constant(self.peepholes.clone()));
        }
        let results: Vec<u32> = expected.iter().map(|tensor| graph.result(F32, &tensor.dims)).collect();
        let hidden = ("hidden_size", Attr::Int(HIDDEN as i64));
        graph.node(op, 14, &inputs, &results, &[&[hidden], attrs].concat());
        for result in results {
            graph.output(result);
        }
        check(&graph, &given, expected);
    }
}

fn direction(word: &str) -> (&'static str, Attr) {
    ("direction", Attr::Text(word.into()))
}

#[test]
fn a_simple_network_runs_backward() {
    let operands = Operands::new(1, 1);
    let expected = operands.run(&[true], |operands, direction, x, h, _| {
        let unit = |unit| {
            let (given, own) = operands.parts(1, direction, unit, x, h);
            (given + own).tanh()
        };
        ((0..HIDDEN).map(unit).collect(), vec![0.0; HIDDEN])
    });
    operands.check("RNN", &[direction("reverse")], false, &expected[..2]);
}

#[test]
fn gated_units_reset_before_or_behind_the_product() {
    let operands = Operands::new(2, 3);
    for resets_late in [false, true] {
        let expected = operands.run(&[false, true], |operands, direction, x, h, _| {
            let gate = |gate: usize, unit: usize, h: &[f64]| {
                operands.parts(3, direction, gate * HIDDEN + unit, x, h)
            };
            let sum = |(given, own): (f64, f64)| given + own;
            let reset: Vec<f64> = (0..HIDDEN).map(|unit| sigmoid(sum(gate(1, unit, h)))).collect();
            let kept: Vec<f64> = reset.iter().zip(h).map(|(a, b)| a * b).collect();
            let unit = |unit: usize| {
                let update = sigmoid(sum(gate(0, unit, h)));
                let new = if resets_late {
                    let (given, own) = gate(2, unit, h);
                    given + reset[unit] * own
                } else {
                    sum(gate(2, unit, &kept))
                };
                (1.0 - update) * new.tanh() + update * h[unit]
            };
            ((0..HIDDEN).map(unit).collect(), vec![0.0; HIDDEN])
        });
        let late = ("linear_before_reset", Attr::Int(resets_late.into()));
        operands.check("GRU", &[direction("bidirectional"), late], false, &expected[..2]);
    }
}

#[test]
fn memory_cells_are_seen_through_peepholes() {
    let operands = Operands::new(2, 4);
    let expected = operands.run(&[false, true], |operands, direction, x, h, cell| {
        let peepholes = operands.peepholes.numbers();
        // Gates in order: input, output, forget, cell; peepholes for the first three.
        let gate = |gate: usize, unit: usize, cell: f64| {
            let (given, own) = operands.parts(4, direction, gate * HIDDEN + unit, x, h);
            let peephole = match gate {
                3 => 0.0,
                _ => f64::from(peepholes[(direction * 3 + gate) * HIDDEN + unit]),
            };
            given + own + peephole * cell
        };
        let unit = |unit: usize| {
            let (input, forget) = (sigmoid(gate(0, unit, cell[unit])), sigmoid(gate(2, unit, cell[unit])));
            let new = forget * cell[unit] + input * gate(3, unit, 0.0).tanh();
            (sigmoid(gate(1, unit, new)) * new.tanh(), new)
        };
        (0..HIDDEN).map(unit).unzip()
    });
    operands.check("LSTM", &[direction("bidirectional")], true, &expected);
}

#[test]
fn what_changes_the_equations_is_not_claimed() {
    for attr in [("clip", Attr::Float(1.0)), ("layout", Attr::Int(1))] {
        let mut graph = Graph::default();
        let (x, w, r) =
            (graph.input(F32, &[1, 1, 1]), graph.input(F32, &[1, 1, 1]), graph.input(F32, &[1, 1, 1]));
        let result = graph.result(F32, &[1, 1, 1, 1]);
        graph.node("RNN", 14, &[x, w, r], &[result], &[attr]);
        assert_eq!(graph.claimed(), (0, 1));
    }
}
