//! The cells of recurrent layers: what happens to one sequence in one step, once the products are made.
//!
//! Everything works on rows of the hidden size. The sums are in the place of the state's products, and
//! become the gates there.

use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::numbers::math::{exp, sigmoid, tanh};
use devbay_ops::read::{Activation, Cell};

/// Step of a direction.
#[derive(Clone, Copy)]
pub(crate) struct CellStep {
    pub(crate) cell: Cell,
    pub(crate) hidden: usize,
    /// The specification's f, g and h.
    pub(crate) activations: [Activation; 3],
    pub(crate) clip: Option<f32>,
    /// LSTM: the forget gate is what the input gate leaves.
    pub(crate) input_forget: bool,
    /// GRU: the reset gate acts after the product with the state.
    pub(crate) linear_before_reset: bool,
}

/// One sequence in one step.
pub(crate) struct Row<'a> {
    /// The input's products, all gates.
    pub(crate) x_gates: &'a [f32],
    /// The state's products; the gates are worked out in their place.
    pub(crate) h_gates: &'a mut [f32],
    pub(crate) h: &'a mut [f32],
    /// LSTM: the cell. GRU: what the reset gate leaves of the state.
    pub(crate) other: &'a mut [f32],
    /// GRU, if the reset gate acts after the product: its bias.
    pub(crate) reset_bias: Option<&'a [f32]>,
    /// LSTM: weights of the cell in the input, output and forget gate.
    pub(crate) peepholes: Option<&'a [f32]>,
}

/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn add_body<A: Arith>(to: &mut [f32], from: &[f32]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to += from;
    }
}

dispatch! {
    /// Adds numbers to others.
    pub(crate) fn add(to: &mut [f32], from: &[f32]) = add_body
}

/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn reset_body<A: Arith>(step: &CellStep, row: &mut Row<'_>) {
    let gates = &mut row.h_gates[..2 * step.hidden];
    for (gate, x) in gates.iter_mut().zip(row.x_gates) {
        *gate += x;
    }
    activate::<A>(step, 0, gates);
    let resets = &gates[step.hidden..];
    for ((other, h), reset) in row.other.iter_mut().zip(&*row.h).zip(resets) {
        *other = reset * h;
    }
}

dispatch! {
    /// The gates of a GRU whose reset gate acts before the product, and what it leaves of the state.
    pub(crate) fn reset(step: &CellStep, row: &mut Row<'_>) = reset_body
}

/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn update_body<A: Arith>(step: &CellStep, row: &mut Row<'_>) {
    match step.cell {
        Cell::Rnn => {
            for ((h, gate), x) in row.h.iter_mut().zip(&*row.h_gates).zip(row.x_gates) {
                *h = gate + x;
            }
            activate::<A>(step, 0, row.h);
        }
        Cell::Gru => update_gru::<A>(step, row),
        Cell::Lstm => update_lstm::<A>(step, row),
    }
}

dispatch! {
    /// The new state of a sequence.
    pub(crate) fn update(step: &CellStep, row: &mut Row<'_>) = update_body
}

#[inline(always)]
fn update_gru<A: Arith>(step: &CellStep, row: &mut Row<'_>) {
    let n = step.hidden;
    let (gates, new) = row.h_gates.split_at_mut(2 * n);
    let (x_gates, x_new) = row.x_gates.split_at(2 * n);
    if step.linear_before_reset {
        for (gate, x) in gates.iter_mut().zip(x_gates) {
            *gate += x;
        }
        activate::<A>(step, 0, gates);
        if let Some(bias) = row.reset_bias {
            for (new, bias) in new.iter_mut().zip(bias) {
                *new += bias;
            }
        }
        for ((new, reset), x) in new.iter_mut().zip(&gates[n..]).zip(x_new) {
            *new = A::fma(*new, *reset, *x);
        }
    } else {
        for (new, x) in new.iter_mut().zip(x_new) {
            *new += x;
        }
    }
    activate::<A>(step, 1, new);
    for ((h, update), new) in row.h.iter_mut().zip(&gates[..n]).zip(&*new) {
        *h = A::fma(*update, *h - new, *new);
    }
}

#[inline(always)]
fn update_lstm<A: Arith>(step: &CellStep, row: &mut Row<'_>) {
    let n = step.hidden;
    for (gate, x) in row.h_gates.iter_mut().zip(row.x_gates) {
        *gate += x;
    }
    // The gates are input, output, forget and cell.
    let (gates, new) = row.h_gates.split_at_mut(3 * n);
    activate::<A>(step, 1, new);
    if let Some(peepholes) = row.peepholes {
        for (gate, peephole) in [(0, 0), (2, 2)] {
            let gate = &mut gates[gate * n..][..n];
            let peephole = &peepholes[peephole * n..][..n];
            for ((gate, weight), cell) in gate.iter_mut().zip(peephole).zip(&*row.other) {
                *gate = A::fma(*weight, *cell, *gate);
            }
            activate::<A>(step, 0, gate);
        }
    } else {
        activate::<A>(step, 0, gates);
    }
    let (input, rest) = gates.split_at_mut(n);
    let (output, forget) = rest.split_at_mut(n);
    if step.input_forget {
        for (forget, input) in forget.iter_mut().zip(&*input) {
            *forget = 1.0 - input;
        }
    }
    for ((cell, forget), (input, new)) in row.other.iter_mut().zip(&*forget).zip(input.iter().zip(&*new)) {
        *cell = A::fma(*forget, *cell, input * new);
    }
    if let Some(peepholes) = row.peepholes {
        for ((gate, weight), cell) in output.iter_mut().zip(&peepholes[n..2 * n]).zip(&*row.other) {
            *gate = A::fma(*weight, *cell, *gate);
        }
        activate::<A>(step, 0, output);
    }
    row.h.copy_from_slice(row.other);
    activate::<A>(step, 2, row.h);
    for (h, output) in row.h.iter_mut().zip(&*output) {
        *h *= output;
    }
}

/// The specification's f, g or h, on numbers that are clipped first.
#[inline(always)]
fn activate<A: Arith>(step: &CellStep, which: usize, x: &mut [f32]) {
    if let Some(clip) = step.clip {
        for x in x.iter_mut() {
            // Not `clamp`, which panics where the limits cross.
            let from_below = if *x < -clip { -clip } else { *x };
            *x = if from_below > clip { clip } else { from_below };
        }
    }
    macro_rules! each {
        (|$x:ident| $body:expr) => {
            for x in x.iter_mut() {
                let $x = *x;
                *x = $body;
            }
        };
    }
    match step.activations[which] {
        Activation::Sigmoid => each!(|x| sigmoid::<A>(x)),
        Activation::Tanh => each!(|x| tanh::<A>(x)),
        // Not `max`, which takes 0 for NaN.
        Activation::Relu => each!(|x| if x < 0.0 { 0.0 } else { x }),
        Activation::LeakyRelu(alpha) => each!(|x| if x < 0.0 { alpha * x } else { x }),
        Activation::ThresholdedRelu(alpha) => each!(|x| if x > alpha { x } else { 0.0 }),
        Activation::Elu(alpha) => {
            each!(|x| if x < 0.0 { alpha * (exp::<A>(x) - 1.0) } else { x })
        }
        Activation::HardSigmoid(alpha, beta) => {
            each!(|x| A::fma(alpha, x, beta).clamp(0.0, 1.0))
        }
        Activation::ScaledTanh(alpha, beta) => each!(|x| alpha * tanh::<A>(beta * x)),
        Activation::Affine(alpha, beta) => each!(|x| A::fma(alpha, x, beta)),
        Activation::Softsign => each!(|x| x / (1.0 + x.abs())),
        Activation::Softplus => each!(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()),
    }
}
