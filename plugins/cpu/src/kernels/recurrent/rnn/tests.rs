//! Recurrent layers beside the specification's steps, in f64.

use super::*;
use crate::isa::Isa;
use crate::kernels::test_host::{Array, Value, run_with_constants};
use crate::kernels::testing::{Chance, isas};
use devbay_plugin_api::abi::Str;

/// A layer in f64, step by step as the specification writes it.
struct Naive<'a> {
    cell: Cell,
    reverse: [bool; 2],
    directions: usize,
    length: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
    before_reset: bool,
    x: &'a [f32],
    w: &'a [f32],
    r: &'a [f32],
    b: &'a [f32],
    p: &'a [f32],
    h0: &'a [f32],
    c0: &'a [f32],
    lengths: &'a [i32],
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

impl Naive<'_> {
    /// Y, Y_h and Y_c in layout 0.
    fn run(&self) -> [Vec<f64>; 3] {
        let (n, hidden, batch) = (self.cell.gates() as usize, self.hidden, self.batch);
        let mut y = vec![0.0; self.length * self.directions * batch * hidden];
        let mut last = vec![0.0; self.directions * batch * hidden];
        let mut cells = last.clone();
        for d in 0..self.directions {
            for b in 0..batch {
                let at = (d * batch + b) * hidden;
                let row = |a: &[f32]| -> Vec<f64> { a[at..at + hidden].iter().map(|&v| v.into()).collect() };
                let (mut h, mut c) = (row(self.h0), row(self.c0));
                let length = self.lengths[b] as usize;
                for s in 0..length {
                    let t = if self.reverse[d] { length - 1 - s } else { s };
                    let x = &self.x[(t * batch + b) * self.inputs..][..self.inputs];
                    let of_x = |gate: usize, j: usize| -> f64 {
                        let row = (d * n + gate) * hidden + j;
                        let w = &self.w[row * self.inputs..][..self.inputs];
                        let bias = self.b[d * 2 * n * hidden + gate * hidden + j];
                        let dot = |(&w, &x): (&f32, &f32)| f64::from(w) * f64::from(x);
                        w.iter().zip(x).map(dot).sum::<f64>() + f64::from(bias)
                    };
                    let bias_h = |gate: usize, j: usize| {
                        f64::from(self.b[(d * 2 + 1) * n * hidden + gate * hidden + j])
                    };
                    let of_h = |gate: usize, j: usize, h: &[f64]| -> f64 {
                        let row = (d * n + gate) * hidden + j;
                        let r = &self.r[row * hidden..][..hidden];
                        r.iter().zip(h).map(|(&r, &h)| f64::from(r) * h).sum()
                    };
                    let gate = |gate: usize, j: usize| of_x(gate, j) + of_h(gate, j, &h) + bias_h(gate, j);
                    let peep = |gate: usize, j: usize| f64::from(self.p[(d * 3 + gate) * hidden + j]);
                    let all = 0..hidden;
                    h = match self.cell {
                        Cell::Rnn => all.map(|j| gate(0, j).tanh()).collect(),
                        Cell::Gru => {
                            let z: Vec<f64> = all.clone().map(|j| sigmoid(gate(0, j))).collect();
                            let r: Vec<f64> = all.clone().map(|j| sigmoid(gate(1, j))).collect();
                            let reset: Vec<f64> = r.iter().zip(&h).map(|(r, h)| r * h).collect();
                            let new = |j: usize| match self.before_reset {
                                true => of_x(2, j) + r[j] * (of_h(2, j, &h) + bias_h(2, j)),
                                false => of_x(2, j) + of_h(2, j, &reset) + bias_h(2, j),
                            };
                            all.map(|j| (1.0 - z[j]) * new(j).tanh() + z[j] * h[j]).collect()
                        }
                        Cell::Lstm => {
                            let before = c.clone();
                            for j in all.clone() {
                                let input = sigmoid(gate(0, j) + peep(0, j) * before[j]);
                                let forget = sigmoid(gate(2, j) + peep(2, j) * before[j]);
                                c[j] = forget * before[j] + input * gate(3, j).tanh();
                            }
                            all.map(|j| sigmoid(gate(1, j) + peep(1, j) * c[j]) * c[j].tanh()).collect()
                        }
                    };
                    let to = ((t * self.directions + d) * batch + b) * hidden;
                    y[to..to + hidden].copy_from_slice(&h);
                }
                last[at..at + hidden].copy_from_slice(&h);
                cells[at..at + hidden].copy_from_slice(&c);
            }
        }
        [y, last, cells]
    }
}

/// Swaps the first dimensions of what is `[a, b, inner]`.
fn swapped(x: &[f32], a: usize, b: usize, inner: usize) -> Vec<f32> {
    let element = |i: usize| {
        let (row, k) = (i / inner, i % inner);
        x[(row % a * b + row / a) * inner + k]
    };
    (0..a * b * inner).map(element).collect()
}

#[test]
fn layers_agree_with_a_naive_loop() {
    let mut random = Chance::new(7);
    for round in 0..120 {
        let cell = [Cell::Rnn, Cell::Gru, Cell::Lstm][round % 3];
        let direction = ["forward", "reverse", "bidirectional"][random.below(3)];
        let directions = if direction == "bidirectional" { 2 } else { 1 };
        let (length, batch) = (1 + random.below(7), 1 + random.below(4));
        let (inputs, hidden) = (1 + random.below(40), 1 + random.below(70));
        let gates = cell.gates() as usize;
        let before_reset = random.below(2) == 1;
        let batch_first = random.below(3) == 0;
        let mut optional = |n: usize, range: f32| match random.below(3) {
            0 => (None, vec![0.0; n]),
            _ => {
                let values = random.floats(n, range);
                (Some(()), values)
            }
        };
        let (has_b, b) = optional(directions * 2 * gates * hidden, 0.5);
        let (has_h, h0) = optional(directions * batch * hidden, 1.0);
        let (has_c, c0) = optional(directions * batch * hidden, 1.0);
        let (has_p, p) = match cell {
            Cell::Lstm => optional(directions * 3 * hidden, 0.5),
            _ => (None, Vec::new()),
        };
        let has_c = has_c.filter(|_| cell == Cell::Lstm);
        let c0 = if has_c.is_some() { c0 } else { vec![0.0; directions * batch * hidden] };
        let has_lengths = random.below(2) == 1;
        let lengths: Vec<i32> =
            (0..batch).map(|_| if has_lengths { random.below(length + 1) } else { length } as i32).collect();
        let x = random.floats(length * batch * inputs, 1.0);
        let w = random.floats(directions * gates * hidden * inputs, 0.5);
        let r = random.floats(directions * gates * hidden * hidden, 0.3);
        let naive = Naive {
            cell,
            reverse: [direction == "reverse", true],
            directions,
            length,
            batch,
            inputs,
            hidden,
            before_reset,
            x: &x,
            w: &w,
            r: &r,
            b: &b,
            p: &p,
            h0: &h0,
            c0: &c0,
            lengths: &lengths,
        };
        let expected = naive.run();

        // Layout 1 has the batch first, in the state too.
        let state = |v: &[f32]| match batch_first {
            true => Array::of(&[batch, directions, hidden], &swapped(v, directions, batch, hidden)),
            false => Array::of(&[directions, batch, hidden], v),
        };
        let mut inputs_of = vec![
            Some(match batch_first {
                true => Array::of(&[batch, length, inputs], &swapped(&x, length, batch, inputs)),
                false => Array::of(&[length, batch, inputs], &x),
            }),
            Some(Array::of(&[directions, gates * hidden, inputs], &w)),
            Some(Array::of(&[directions, gates * hidden, hidden], &r)),
            has_b.map(|()| Array::of(&[directions, 2 * gates * hidden], &b)),
            has_lengths.then(|| Array::of(&[batch], &lengths)),
            has_h.map(|()| state(&h0)),
        ];
        let of_state = match batch_first {
            true => [batch, directions, hidden],
            false => [directions, batch, hidden],
        };
        let of_y = match batch_first {
            true => [batch, length, directions, hidden],
            false => [length, directions, batch, hidden],
        };
        let mut outputs = vec![
            Some(Array::empty::<f32>(&of_y)),
            (random.below(2) == 1).then(|| Array::empty::<f32>(&of_state)),
        ];
        let op = match cell {
            Cell::Rnn => "RNN",
            Cell::Gru => "GRU",
            Cell::Lstm => "LSTM",
        };
        if cell == Cell::Lstm {
            inputs_of.push(has_c.map(|()| state(&c0)));
            inputs_of.push(has_p.map(|()| Array::of(&[directions, 3 * hidden], &p)));
            outputs.push(Some(Array::empty::<f32>(&of_state)));
        }
        let mut attrs = vec![
            ("direction", Value::Text(direction)),
            ("hidden_size", Value::Int(hidden as i64)),
            ("layout", Value::Int(batch_first.into())),
        ];
        if cell == Cell::Gru {
            attrs.push(("linear_before_reset", Value::Int(before_reset.into())));
        }
        // Weights and biases that are packed in the launch, and constants.
        for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 0b110), (isa, 0b1110)]) {
            let found = run_with_constants(isa, op, &attrs, &inputs_of, &outputs, constants).expect("runs");
            for (i, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let Some(found) = found else { continue };
                let mut expected: Vec<f32> = expected.iter().map(|&v| v as f32).collect();
                if batch_first && i == 0 {
                    // [length, directions, batch, hidden] by way of [length, batch, ...].
                    let mut by_time = Vec::new();
                    for t in expected.chunks_exact(directions * batch * hidden) {
                        by_time.extend(swapped(t, directions, batch, hidden));
                    }
                    expected = swapped(&by_time, length, batch, directions * hidden);
                } else if batch_first {
                    expected = swapped(&expected, directions, batch, hidden);
                }
                for (at, (f, e)) in found.elements::<f32>().iter().zip(&expected).enumerate() {
                    assert!(
                        (f - e).abs() < 2e-5,
                        "{isa:?} {op} {direction} {length} {batch} {inputs} {hidden}, output {i}: \
                         {f} at {at}, expected {e}"
                    );
                }
            }
        }
    }
}

/// A layer of two directions over sequences that the tests below divide.
struct Layer {
    op: &'static str,
    before_reset: i64,
    w: Array,
    r: Array,
    b: Array,
}

const LENGTH: usize = 16;
const BATCH: usize = 9;
const INPUTS: usize = 40;
const HIDDEN: usize = 84;

impl Layer {
    /// Every kind of cell.
    fn all() -> impl Iterator<Item = Self> {
        [("RNN", 1, 0), ("GRU", 3, 0), ("GRU", 3, 1), ("LSTM", 4, 0)].into_iter().map(
            |(op, gates, before_reset)| {
                let mut random = Chance::new(3);
                let mut array =
                    |extents: [usize; 3]| Array::of(&extents, &random.floats(extents.iter().product(), 0.3));
                let (w, r) = (array([2, gates * HIDDEN, INPUTS]), array([2, gates * HIDDEN, HIDDEN]));
                let b = Array::of(&[2, 2 * gates * HIDDEN], &random.floats(4 * gates * HIDDEN, 0.3));
                Self { op, before_reset, w, r, b }
            },
        )
    }

    /// The states of some sequences, `[length, direction, sequence, hidden]`.
    fn run(&self, isa: Isa, batch: usize, x: &[f32]) -> Vec<f32> {
        let mut attrs = vec![("direction", Value::Text("bidirectional"))];
        if self.op == "GRU" {
            attrs.push(("linear_before_reset", Value::Int(self.before_reset)));
        }
        let x = Array::of(&[LENGTH, batch, INPUTS], x);
        let inputs = [x, self.w.clone(), self.r.clone(), self.b.clone()].map(Some);
        let y = Array::empty::<f32>(&[LENGTH, 2, batch, HIDDEN]);
        let found = run_with_constants(isa, self.op, &attrs, &inputs, &[Some(y)], 0b1110).expect("runs");
        found[0].as_ref().expect("states").elements()
    }
}

#[test]
fn a_sequence_has_the_same_bits_alone_and_among_others() {
    let x = Chance::new(5).floats(LENGTH * BATCH * INPUTS, 1.0);
    for layer in Layer::all() {
        for isa in isas() {
            let together = layer.run(isa, BATCH, &x);
            for b in 0..BATCH {
                let own = x.chunks_exact(INPUTS).skip(b).step_by(BATCH).flatten().copied();
                let alone = layer.run(isa, 1, &own.collect::<Vec<f32>>());
                let among = together.chunks_exact(HIDDEN).skip(b).step_by(BATCH).flatten();
                for (i, (alone, among)) in alone.iter().zip(among).enumerate() {
                    let op = layer.op;
                    assert_eq!(alone.to_bits(), among.to_bits(), "{isa:?} {op}, sequence {b}, number {i}");
                }
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_in_its_sequence() {
    let x = Chance::new(6).floats(LENGTH * BATCH * INPUTS, 1.0);
    let (t, b) = (7, 4);
    for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut with = x.clone();
        with[(t * BATCH + b) * INPUTS] = special;
        for layer in Layer::all() {
            for isa in isas() {
                let (before, after) = (layer.run(isa, BATCH, &x), layer.run(isa, BATCH, &with));
                for (i, (before, after)) in before.iter().zip(&after).enumerate() {
                    let (row, place) = (i / HIDDEN % BATCH, i / HIDDEN / BATCH);
                    let sees = row == b && if place % 2 == 0 { place / 2 >= t } else { place / 2 <= t };
                    let op = layer.op;
                    let what = format!("{isa:?} {op}, {special}, sequence {row}, step {}", place / 2);
                    match sees {
                        true if special.is_nan() => assert!(after.is_nan(), "{what}: {after}"),
                        true => assert!(!after.is_nan() && after.abs() <= 1.0, "{what}: {after}"),
                        false => assert_eq!(before.to_bits(), after.to_bits(), "{what}"),
                    }
                }
            }
        }
    }
}

/// The states behind one step whose gates are `gates`, `[gate, unit]`, whatever the state before is.
fn one_step(
    isa: Isa,
    op: &str,
    attrs: &[(&'static str, Value)],
    gates: &[f32],
    cell: Option<&[f32]>,
) -> Vec<f32> {
    let n_gates = if op == "LSTM" { 4 } else { 1 };
    let hidden = gates.len() / n_gates;
    let mut inputs = vec![
        Some(Array::of(&[1, 1, 1], &[1.0f32])),
        Some(Array::of(&[1, gates.len(), 1], gates)),
        Some(Array::of(&[1, gates.len(), hidden], &vec![0.0f32; gates.len() * hidden])),
    ];
    if let Some(cell) = cell {
        inputs.extend([None, None, None, Some(Array::of(&[1, 1, hidden], cell))]);
    }
    let y = Array::empty::<f32>(&[1, 1, 1, hidden]);
    let found = run_with_constants(isa, op, attrs, &inputs, &[Some(y)], 0b110).expect("runs");
    found[0].as_ref().expect("states").elements()
}

const SUMS: [f32; 21] = [
    0.0,
    -0.0,
    0.1,
    -0.1,
    0.4,
    -0.4,
    0.7,
    -0.7,
    1.0,
    -1.0,
    1.5,
    -1.5,
    2.6,
    -2.6,
    5.0,
    -5.0,
    20.0,
    -20.0,
    1e-30,
    f32::INFINITY,
    f32::NAN,
];

#[test]
fn activations_are_what_the_specification_says() {
    let (alpha, beta) = (0.3f64, 0.6f64);
    /// A sum, alpha and beta.
    type Formula = fn(f64, f64, f64) -> f64;
    let cases: [(&str, Formula); 11] = [
        ("Sigmoid", |x, _, _| 1.0 / (1.0 + (-x).exp())),
        ("Tanh", |x, _, _| x.tanh()),
        ("Relu", |x, _, _| if x < 0.0 { 0.0 } else { x }),
        ("LeakyRelu", |x, a, _| if x < 0.0 { a * x } else { x }),
        ("ThresholdedRelu", |x, a, _| if x > a { x } else { 0.0 }),
        ("Elu", |x, a, _| if x < 0.0 { a * x.exp_m1() } else { x }),
        ("HardSigmoid", |x, a, b| (a * x + b).clamp(0.0, 1.0)),
        ("ScaledTanh", |x, a, b| a * (b * x).tanh()),
        ("Affine", |x, a, b| a * x + b),
        ("Softsign", |x, _, _| x / (1.0 + x.abs())),
        ("Softplus", |x, _, _| x.max(0.0) + (-x.abs()).exp().ln_1p()),
    ];
    for ((name, f), clip) in cases.into_iter().flat_map(|case| [(case, None), (case, Some(1.25))]) {
        let mut attrs = vec![
            ("activations", Value::Texts(vec![Str::new(name)])),
            ("activation_alpha", Value::Floats(vec![alpha])),
            ("activation_beta", Value::Floats(vec![beta])),
        ];
        attrs.extend(clip.map(|clip| ("clip", Value::Float(clip))));
        for isa in isas() {
            let found = one_step(isa, "RNN", &attrs, &SUMS, None);
            for (&sum, found) in SUMS.iter().zip(found) {
                let sum = f64::from(sum);
                let clipped =
                    clip.map_or(sum, |clip| if sum.is_nan() { sum } else { sum.clamp(-clip, clip) });
                let expected = f(clipped, alpha, beta);
                // Softsign of infinity is infinity by infinity.
                let same = f64::from(found) == expected || found.is_nan() && expected.is_nan();
                let close = (f64::from(found) - expected).abs() <= 2e-6 * expected.abs().max(0.1);
                assert!(same || close, "{isa:?} {name}, clip {clip:?}: {found} of {sum}, not {expected}");
            }
        }
    }
}

#[test]
fn a_forget_gate_may_be_what_the_input_gate_leaves() {
    let hidden = 19;
    let gates = Chance::new(9).floats(4 * hidden, 2.0);
    let before = Chance::new(10).floats(hidden, 1.0);
    let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
    for isa in isas() {
        let found = one_step(isa, "LSTM", &[("input_forget", Value::Int(1))], &gates, Some(&before));
        for (j, found) in found.into_iter().enumerate() {
            let input = sigmoid(gates[j]);
            let cell = (1.0 - input) * f64::from(before[j]) + input * f64::from(gates[3 * hidden + j]).tanh();
            let expected = sigmoid(gates[hidden + j]) * cell.tanh();
            assert!((f64::from(found) - expected).abs() < 1e-6, "{isa:?}: {found}, not {expected}");
        }
    }
}
