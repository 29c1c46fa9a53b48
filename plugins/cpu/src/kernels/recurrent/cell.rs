//! The cells of recurrent layers: what happens to some units of one sequence in one step, once the products are made.
//!
//! Units come in blocks of [`UNITS`], whole vectors of every instruction set, and a vector of them stays in registers from its
//! sums to the new state. Activations are chosen when the layer is prepared ([`functions`]): the specification's defaults are
//! compiled into the cells.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::numbers::vectors::{exp, like, sigmoid, tanh};
use crate::lanes::Lanes;
use devbay_ops::read::{Activation, Cell};

/// Units of a block.
pub(crate) const UNITS: usize = 16;

/// Step of a direction.
#[derive(Clone, Copy)]
pub(crate) struct CellStep {
    pub(crate) cell: Cell,
    /// The specification's f, g and h.
    pub(crate) activations: [Activation; 3],
    pub(crate) clip: Option<f32>,
    /// LSTM: the forget gate is what the input gate leaves.
    pub(crate) input_forget: bool,
    /// GRU: the reset gate acts after the product with the state.
    pub(crate) linear_before_reset: bool,
}

impl CellStep {
    /// True if a reset gate acts after the product with the state, whose bias then stays apart.
    pub(crate) fn resets_after(&self) -> bool {
        self.cell == Cell::Gru && self.linear_before_reset
    }

    /// True if the activations are the specification's defaults, and nothing is clipped.
    fn is_usual(&self) -> bool {
        let expected: &[Activation] = match self.cell {
            Cell::Rnn => &[Activation::Tanh],
            Cell::Gru => &[Activation::Sigmoid, Activation::Tanh],
            Cell::Lstm => &[Activation::Sigmoid, Activation::Tanh, Activation::Tanh],
        };
        self.clip.is_none() && self.activations.starts_with(expected)
    }
}

/// Some blocks of units of one sequence in one step.
///
/// # Invariants
/// All rows have the same blocks: those of the gates have the part's gates in each.
pub(crate) struct Row<'a> {
    /// The state's products.
    pub(crate) h_gates: &'a [f32],
    /// The input's.
    pub(crate) x_gates: &'a [f32],
    /// The state before the step.
    pub(crate) h: &'a [f32],
    /// The state behind it. Between a GRU's two products it has the update gate.
    pub(crate) next: &'a mut [f32],
    /// LSTM: the cell. GRU: what the reset gate leaves of the state.
    pub(crate) other: &'a mut [f32],
    /// LSTM: weights of the cell in the input, output and forget gate.
    pub(crate) peepholes: Option<[&'a [f32]; 3]>,
}

/// Works out some blocks.
///
/// # Safety
/// The processor has the instructions, and the row its invariants.
pub(crate) type CellFn = unsafe fn(&CellStep, &mut Row<'_>);

/// Returns the functions of each part: a GRU whose reset gate acts before the product has two.
pub(crate) fn functions(isa: Isa, step: &CellStep) -> [CellFn; 2] {
    match step.is_usual() {
        true => [first::<Usual>(isa), second::<Usual>(isa)],
        false => [first::<Any>(isa), second::<Any>(isa)],
    }
}

/// The activations of a step.
trait Functions {
    /// The specification's f, g or h.
    fn activate<A: Arith>(step: &CellStep, which: usize, x: A::Lanes) -> A::Lanes;
}

/// The specification's defaults.
struct Usual;

impl Functions for Usual {
    #[inline(always)]
    fn activate<A: Arith>(step: &CellStep, which: usize, x: A::Lanes) -> A::Lanes {
        if which == 0 && step.cell != Cell::Rnn { sigmoid(x) } else { tanh(x) }
    }
}

/// Any activations, of numbers that may be clipped first.
struct Any;

impl Functions for Any {
    #[inline(always)]
    fn activate<A: Arith>(step: &CellStep, which: usize, x: A::Lanes) -> A::Lanes {
        let (zero, one) = (like(x, 0.0), like(x, 1.0));
        let x = match step.clip {
            Some(clip) => x.at_least(like(x, -clip)).at_most(like(x, clip)),
            None => x,
        };
        match step.activations[which] {
            Activation::Sigmoid => sigmoid(x),
            Activation::Tanh => tanh(x),
            Activation::Relu => x.if_below(zero, zero, x),
            Activation::LeakyRelu(alpha) => x.if_below(zero, like(x, alpha).mul(x), x),
            Activation::ThresholdedRelu(alpha) => like(x, alpha).if_below(x, x, zero),
            Activation::Elu(alpha) => x.if_below(zero, like(x, alpha).mul(exp(x).sub(one)), x),
            Activation::HardSigmoid(alpha, beta) => {
                like(x, alpha).fma(x, like(x, beta)).at_least(zero).at_most(one)
            }
            Activation::ScaledTanh(alpha, beta) => like(x, alpha).mul(tanh(like(x, beta).mul(x))),
            Activation::Affine(alpha, beta) => like(x, alpha).fma(x, like(x, beta)),
            Activation::Softsign => x.div(one.add(x.abs())),
            Activation::Softplus => x.each(x, |x, _| x.max(0.0) + (-x.abs()).exp().ln_1p()),
        }
    }
}

/// The vector of numbers from `at` on.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn get<A: Arith>(numbers: &[f32], at: usize) -> A::Lanes {
    let vector = &numbers[at..at + A::Lanes::N];
    // SAFETY: the slice is a vector, and the processor has the instructions (# Safety).
    unsafe { A::Lanes::load(vector.as_ptr()) }
}

/// Sets the vector of numbers from `at` on.
#[inline(always)]
fn set<L: Lanes>(numbers: &mut [f32], at: usize, vector: L) {
    let to = &mut numbers[at..at + L::N];
    // SAFETY: the slice has room for a vector.
    unsafe { vector.store(to.as_mut_ptr()) };
}

/// The sums of the products of `G` gates, for a vector of units.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn sums<A: Arith, const G: usize>(row: &Row<'_>, unit: usize) -> [A::Lanes; G] {
    let at = unit / UNITS * UNITS * G + unit % UNITS;
    // SAFETY: the processor has the instructions (# Safety).
    let mut sums = [unsafe { get::<A>(row.h_gates, at) }; G];
    for (gate, sum) in sums.iter_mut().enumerate() {
        // SAFETY: the processor has the instructions (# Safety).
        let (h, x) =
            unsafe { (get::<A>(row.h_gates, at + gate * UNITS), get::<A>(row.x_gates, at + gate * UNITS)) };
        *sum = h.add(x);
    }
    sums
}

/// # Safety
/// As [`CellFn`].
#[inline(always)]
unsafe fn first_body<A: Arith, F: Functions>(step: &CellStep, row: &mut Row<'_>) {
    for unit in (0..row.next.len()).step_by(A::Lanes::N) {
        // SAFETY: as this function (# Safety).
        unsafe {
            match (step.cell, step.linear_before_reset) {
                (Cell::Rnn, _) => {
                    let [sum] = sums::<A, 1>(row, unit);
                    set(row.next, unit, F::activate::<A>(step, 0, sum));
                }
                (Cell::Gru, true) => gru::<A, F>(step, row, unit),
                (Cell::Gru, false) => reset::<A, F>(step, row, unit),
                (Cell::Lstm, _) => lstm::<A, F>(step, row, unit),
            }
        }
    }
}

dispatch! {
    /// The new state; or a GRU's gates and what its reset gate leaves of the state, if that is before the second product.
    fn first<F: Functions>(step: &CellStep, row: &mut Row<'_>) = first_body
}

/// # Safety
/// As [`CellFn`].
#[inline(always)]
unsafe fn second_body<A: Arith, F: Functions>(step: &CellStep, row: &mut Row<'_>) {
    for unit in (0..row.next.len()).step_by(A::Lanes::N) {
        // SAFETY: the processor has the instructions (# Safety).
        let ([new], update, h) =
            unsafe { (sums::<A, 1>(row, unit), get::<A>(row.next, unit), get::<A>(row.h, unit)) };
        let new = F::activate::<A>(step, 1, new);
        set(row.next, unit, update.fma(h.sub(new), new));
    }
}

dispatch! {
    /// The new state of a GRU whose reset gate acted before the product.
    fn second<F: Functions>(step: &CellStep, row: &mut Row<'_>) = second_body
}

/// The gates are update, reset and new.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn gru<A: Arith, F: Functions>(step: &CellStep, row: &mut Row<'_>, unit: usize) {
    // The reset gate acts on the state's product alone.
    let new = unit / UNITS * UNITS * 3 + 2 * UNITS + unit % UNITS;
    // SAFETY: the processor has the instructions (# Safety).
    let ([update, reset, _], of_h, of_x, h) = unsafe {
        let (of_h, of_x) = (get::<A>(row.h_gates, new), get::<A>(row.x_gates, new));
        (sums::<A, 3>(row, unit), of_h, of_x, get::<A>(row.h, unit))
    };
    let update = F::activate::<A>(step, 0, update);
    let reset = F::activate::<A>(step, 0, reset);
    let new = F::activate::<A>(step, 1, of_h.fma(reset, of_x));
    set(row.next, unit, update.fma(h.sub(new), new));
}

/// The gates are update and reset.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn reset<A: Arith, F: Functions>(step: &CellStep, row: &mut Row<'_>, unit: usize) {
    // SAFETY: the processor has the instructions (# Safety).
    let ([update, reset], h) = unsafe { (sums::<A, 2>(row, unit), get::<A>(row.h, unit)) };
    set(row.next, unit, F::activate::<A>(step, 0, update));
    set(row.other, unit, F::activate::<A>(step, 0, reset).mul(h));
}

/// The gates are input, output, forget and cell.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn lstm<A: Arith, F: Functions>(step: &CellStep, row: &mut Row<'_>, unit: usize) {
    // SAFETY: the processor has the instructions (# Safety).
    let ([mut input, mut output, mut forget, new], before) =
        unsafe { (sums::<A, 4>(row, unit), get::<A>(row.other, unit)) };
    if let Some([of_input, _, of_forget]) = row.peepholes {
        // SAFETY: the processor has the instructions (# Safety).
        let (of_input, of_forget) = unsafe { (get::<A>(of_input, unit), get::<A>(of_forget, unit)) };
        input = of_input.fma(before, input);
        forget = of_forget.fma(before, forget);
    }
    let new = F::activate::<A>(step, 1, new);
    input = F::activate::<A>(step, 0, input);
    forget = match step.input_forget {
        true => like(input, 1.0).sub(input),
        false => F::activate::<A>(step, 0, forget),
    };
    let cell = forget.fma(before, input.mul(new));
    if let Some([_, of_output, _]) = row.peepholes {
        // SAFETY: the processor has the instructions (# Safety).
        let of_output = unsafe { get::<A>(of_output, unit) };
        output = of_output.fma(cell, output);
    }
    output = F::activate::<A>(step, 0, output);
    set(row.other, unit, cell);
    set(row.next, unit, F::activate::<A>(step, 2, cell).mul(output));
}
