//! RNN, GRU and LSTM.
//!
//! The products of the inputs with their weights do not depend on the state: they are made for all steps
//! at once. A step is then one product of the state with the recurrent weights, and the cell: sums,
//! activations, and the new state, on rows of the hidden size. The two directions share nothing but the
//! input and run beside each other when there is enough to do. Nothing of the weights' size is kept
//! between launches; the workspace holds the inputs' products and the state.
//!
//! With lengths of sequences, a sequence that has ended keeps its state, and its outputs are 0.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::product::row_product::{self, RowProduct};
use crate::kernels::recurrent::cell::{CellStep, Row, add, reset, update};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, Activation, Cell, Extents};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const TYPES: &[TypeVar] = &[TypeVar::of(&[F32]), TypeVar::of(&[I32])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("RNN", 14, |request| prepare(request, Cell::Rnn))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Rnn)),
    descriptor("GRU", 14, |request| prepare(request, Cell::Gru))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Gru)),
    descriptor("LSTM", 14, |request| prepare(request, Cell::Lstm))
        .types(TYPES)
        .cost(|request| cost(request, Cell::Lstm)),
];

/// Multiply-adds of a chunk of a product: a step of a small layer is one chunk.
const GRAIN: usize = 256 * 1024;

/// Multiply-adds of a direction from which the two run beside each other.
const DIRECTION: usize = 1024 * 1024;

/// Rows and columns of a block of a product.
const ROWS: usize = 64;
const COLS: usize = 64;

struct Recurrent {
    host: Host,
    steps: [CellStep; 2],
    n_directions: usize,
    /// True if direction 0 begins with the last element; direction 1 does.
    reverse: bool,
    /// True if the batch is the outermost dimension.
    batch_first: bool,
    length: usize,
    batch: usize,
    inputs: usize,
    hidden: usize,
    gates: usize,
    /// Numbers of the workspace for each direction.
    scratch: usize,
    /// True for each input that is present.
    has: [bool; 8],
    multiply: unsafe fn(&RowProduct),
    add: unsafe fn(&mut [f32], &[f32]),
    update: unsafe fn(&CellStep, &mut Row<'_>),
    reset: unsafe fn(&CellStep, &mut Row<'_>),
}

/// Extents of a node as they are counted: length, batch, inputs, directions, hidden size.
fn counted(extents: &Extents) -> [usize; 5] {
    let Extents { length, batch, inputs, directions, hidden, .. } = *extents;
    // All are from 0.
    [length, batch, inputs, directions, hidden].map(|extent| extent as usize)
}

fn cost(request: &PrepareRequest<'_, CpuDevice>, cell: Cell) -> Result<Cost> {
    let [length, batch, inputs, directions, hidden] = counted(&Extents::of(request, cell)?);
    let products = 2 * (inputs + hidden) + 20;
    let flops = Size::of(directions * cell.gates() as usize) * length * batch * hidden * products;
    Ok(cost::of(request, flops.saturated() as u64))
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>, cell: Cell) -> Result<Prepared> {
    let layer = read::Recurrent::of(request, cell)?;
    let [length, batch, inputs, n_directions, hidden] = counted(&layer.extents);
    let gates = cell.gates() as usize;
    let isa = request.device.isa;
    let products = Size::of(length) * batch * gates * hidden;
    let scratch = products + Size::of(batch) * hidden * (gates + 2);
    let scratch = scratch.next_multiple_of(16);
    let kernel = Recurrent {
        host: request.host,
        steps: [0, n_directions - 1].map(|direction| step(&layer, direction)),
        n_directions,
        reverse: layer.reverse,
        batch_first: layer.extents.batch_first,
        length,
        batch,
        inputs,
        hidden,
        gates,
        // The inputs' products, the state's, the state, and the cell or the reset state.
        scratch: scratch.get("a recurrent op's state")?,
        has: layer.has,
        multiply: row_product::multiply(isa),
        add: add(isa),
        update: update(isa),
        reset: reset(isa),
    };
    Prepared::new(kernel).with_room(scratch * (n_directions * size_of::<f32>()), 64)
}

/// Returns a direction's step.
fn step(layer: &read::Recurrent, direction: usize) -> CellStep {
    let mut activations = [Activation::Tanh; 3];
    let own = layer.of_direction(direction);
    activations[..own.len()].copy_from_slice(own);
    CellStep {
        cell: layer.cell,
        hidden: layer.extents.hidden as usize,
        activations,
        clip: layer.clip,
        input_forget: layer.input_forget,
        linear_before_reset: layer.linear_before_reset,
    }
}

/// Places of the optional inputs.
const BIAS: usize = 3;
const LENGTHS: usize = 4;
const INITIAL_H: usize = 5;
const INITIAL_C: usize = 6;
const PEEPHOLES: usize = 7;

/// Addresses of a launch; those of absent operands are NULL.
struct Addresses {
    x: SendPtr<f32>,
    w: SendPtr<f32>,
    r: SendPtr<f32>,
    bias: SendPtr<f32>,
    lengths: SendPtr<i32>,
    initial_h: SendPtr<f32>,
    initial_c: SendPtr<f32>,
    peepholes: SendPtr<f32>,
    y: SendPtr<f32>,
    y_h: SendPtr<f32>,
    y_c: SendPtr<f32>,
    workspace: SendPtr<f32>,
}

impl Launch<CpuDevice> for Recurrent {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (inputs, outputs) = (operands.input_refs(), operands.output_refs());
        let input = |i: usize, there: bool| match inputs.get(i) {
            Some(reference) if there => reference.addr as *mut f32,
            _ => core::ptr::null_mut(),
        };
        let output = |i: usize| outputs.get(i).map_or(0, |reference| reference.addr) as *mut f32;
        let at = Addresses {
            x: SendPtr(input(0, true)),
            w: SendPtr(input(1, true)),
            r: SendPtr(input(2, true)),
            bias: SendPtr(input(BIAS, self.has[BIAS])),
            lengths: SendPtr(input(LENGTHS, self.has[LENGTHS]).cast()),
            initial_h: SendPtr(input(INITIAL_H, self.has[INITIAL_H])),
            initial_c: SendPtr(input(INITIAL_C, self.has[INITIAL_C])),
            peepholes: SendPtr(input(PEEPHOLES, self.has[PEEPHOLES])),
            y: SendPtr(output(0)),
            y_h: SendPtr(output(1)),
            y_c: SendPtr(output(2)),
            workspace: SendPtr(match self.scratch {
                0 => core::ptr::null_mut(),
                _ => operands.workspace_ptr(),
            }),
        };
        let macs = self.length * self.batch * self.gates * self.hidden * (self.inputs + self.hidden);
        let grain = if macs < DIRECTION { 2 } else { 1 };
        self.host.parallel_for(self.n_directions, grain, |range, _| {
            for direction in range {
                // SAFETY: the addresses are those of the operands whose extents `prepare` checked, and
                // each direction is one chunk's.
                unsafe { Direction::new(self, &at, direction) }.run()?;
            }
            Ok(())
        })
    }
}

/// A row of hidden numbers at `at`.
///
/// # Safety
/// `at` holds `n` numbers, which live and are nobody else's to write for `'a`.
unsafe fn slice<'a>(at: *mut f32, n: usize) -> &'a [f32] {
    // SAFETY: `at` holds `n` numbers, which no other thread writes during `'a` (# Safety).
    unsafe { core::slice::from_raw_parts(at, n) }
}

/// A row of hidden numbers at `at`, to be written.
///
/// # Safety
/// `at` holds `n` numbers, which live and are nobody else's for `'a`.
unsafe fn slice_mut<'a>(at: *mut f32, n: usize) -> &'a mut [f32] {
    // SAFETY: `at` holds `n` numbers, which are this caller's alone during `'a` (# Safety).
    unsafe { core::slice::from_raw_parts_mut(at, n) }
}

/// One direction of a launch.
///
/// # Invariants
/// The addresses are those of a launch of `op`, and no other thread works on this direction meanwhile.
struct Direction<'a> {
    op: &'a Recurrent,
    at: &'a Addresses,
    idx: usize,
    step: &'a CellStep,
    /// In the workspace: the inputs' products for all steps, the state's for one, and the state.
    x_gates: SendPtr<f32>,
    h_gates: SendPtr<f32>,
    h: SendPtr<f32>,
    /// The cell of an LSTM, or what the reset gate leaves of a GRU's state.
    other: SendPtr<f32>,
}

impl<'a> Direction<'a> {
    /// # Safety
    /// The invariants.
    unsafe fn new(op: &'a Recurrent, at: &'a Addresses, idx: usize) -> Self {
        let (rows, width) = (op.batch, op.width());
        let x_gates = SendPtr(at.workspace.at(idx * op.scratch));
        let h_gates = SendPtr(x_gates.at(op.length * rows * width));
        let h = SendPtr(h_gates.at(rows * width));
        let other = SendPtr(h.at(rows * op.hidden));
        Self { op, at, idx, step: &op.steps[idx], x_gates, h_gates, h, other }
    }

    fn run(&self) -> Result<()> {
        if self.op.hidden == 0 || self.op.batch == 0 {
            return Ok(());
        }
        self.multiply_inputs()?;
        self.begin();
        let mut pace = self.op.host.pace();
        for s in 0..self.op.length {
            pace.work(4 * self.op.batch * self.op.width() * self.op.hidden)?;
            self.step(s)?;
        }
        self.end();
        Ok(())
    }

    /// Returns whether the reset gate acts after the product with the state, whose bias then stays apart.
    fn resets_after(&self) -> bool {
        self.step.cell == Cell::Gru && self.step.linear_before_reset
    }

    /// The biases of the inputs' products; those of the state's follow.
    fn bias(&self) -> *mut f32 {
        self.at.bias.at(self.idx * 2 * self.op.width())
    }

    /// The products of all inputs with their weights, and the biases.
    fn multiply_inputs(&self) -> Result<()> {
        let (op, width) = (self.op, self.op.width());
        let w = self.at.w.at(self.idx * width * op.inputs);
        let n = op.length * op.batch;
        op.multiply(self.at.x.at(0), op.inputs, n, w, width, self.x_gates.at(0))?;
        if !op.has[BIAS] {
            return Ok(());
        }
        let plain = if self.resets_after() { 2 * op.hidden } else { width };
        // SAFETY: the bias has `width` numbers for the inputs and for the state.
        let (of_x, of_h) = unsafe { (slice(self.bias(), width), slice(self.bias().add(width), plain)) };
        for row in 0..n {
            // SAFETY: the row lies within the workspace (invariant).
            let sums = unsafe { slice_mut(self.x_gates.at(row * width), width) };
            // SAFETY: the instructions are the device's.
            unsafe { (op.add)(sums, of_x) };
            // SAFETY: the instructions are the device's.
            unsafe { (op.add)(&mut sums[..plain], of_h) };
        }
        Ok(())
    }

    /// The initial state: zeros if it is not given.
    fn begin(&self) {
        let has = &self.op.has;
        for b in 0..self.op.batch {
            for (there, from, to) in
                [(has[INITIAL_H], self.at.initial_h, self.h), (has[INITIAL_C], self.at.initial_c, self.other)]
            {
                // SAFETY: the row lies within the workspace (invariant).
                let to = unsafe { slice_mut(to.at(b * self.op.hidden), self.op.hidden) };
                match there {
                    // SAFETY: the operand has a row for each sequence.
                    true => to.copy_from_slice(unsafe {
                        slice(from.at(self.op.state_at(self.idx, b)), self.op.hidden)
                    }),
                    false => to.fill(0.0),
                }
            }
        }
    }

    /// One step of all sequences.
    fn step(&self, s: usize) -> Result<()> {
        let (op, hidden, width) = (self.op, self.op.hidden, self.op.width());
        let r = self.at.r.at(self.idx * width * hidden);
        let resets_before = self.step.cell == Cell::Gru && !self.step.linear_before_reset;
        let now = if resets_before { 2 * hidden } else { width };
        op.multiply(self.h.at(0), hidden, op.batch, r, now, self.h_gates.at(0))?;
        let active = |b: usize| op.time(self.at, self.idx, b, s).map(|t| (b, t));
        if resets_before {
            for (b, t) in (0..op.batch).filter_map(active) {
                // SAFETY: the instructions are the device's.
                unsafe { (op.reset)(self.step, &mut self.row(b, t)) };
            }
            let r = r.wrapping_add(now * hidden);
            op.multiply(self.other.at(0), hidden, op.batch, r, hidden, self.h_gates.at(now))?;
        }
        for (b, t) in (0..op.batch).filter_map(active) {
            // SAFETY: the instructions are the device's.
            unsafe { (op.update)(self.step, &mut self.row(b, t)) };
            self.give(self.h.at(b * hidden), self.at.y, op.output_at(self.idx, b, t));
        }
        Ok(())
    }

    /// The rows of one sequence at one position; a caller lets go of them before it asks for others.
    fn row(&self, b: usize, t: usize) -> Row<'_> {
        let (op, hidden, width) = (self.op, self.op.hidden, self.op.width());
        let reset_bias =
            (self.resets_after() && op.has[BIAS]).then(|| self.bias().wrapping_add(width + 2 * hidden));
        let peepholes = op.has[PEEPHOLES].then(|| self.at.peepholes.at(self.idx * 3 * hidden));
        // SAFETY: the rows lie within the workspace and the operands, and no two overlap (invariant).
        unsafe {
            Row {
                x_gates: slice(self.x_gates.at(op.row_of(b, t) * width), width),
                h_gates: slice_mut(self.h_gates.at(b * width), width),
                h: slice_mut(self.h.at(b * hidden), hidden),
                other: slice_mut(self.other.at(b * hidden), hidden),
                reset_bias: reset_bias.map(|bias| slice(bias, hidden)),
                peepholes: peepholes.map(|weights| slice(weights, 3 * hidden)),
            }
        }
    }

    /// The last states, and zeros for what comes after the end of a sequence.
    fn end(&self) {
        let (op, hidden) = (self.op, self.op.hidden);
        for b in 0..op.batch {
            let state = op.state_at(self.idx, b);
            self.give(self.h.at(b * hidden), self.at.y_h, state);
            self.give(self.other.at(b * hidden), self.at.y_c, state);
            for t in op.length_of(self.at, b)..op.length {
                if !self.at.y.0.is_null() {
                    let y = self.at.y.at(op.output_at(self.idx, b, t));
                    // SAFETY: the row lies within the output.
                    unsafe { y.write_bytes(0, hidden) };
                }
            }
        }
    }

    /// Copies a row of the workspace to an output, if there is one.
    fn give(&self, from: *const f32, output: SendPtr<f32>, place: usize) {
        if !output.0.is_null() {
            // SAFETY: both have the row, and do not overlap (B21).
            unsafe { core::ptr::copy_nonoverlapping(from, output.at(place), self.op.hidden) };
        }
    }
}

impl Recurrent {
    /// Numbers of all gates of a sequence.
    fn width(&self) -> usize {
        self.gates * self.hidden
    }

    /// Products of rows of `depth` numbers with `cols` rows of weights, to rows of all gates.
    fn multiply(
        &self,
        x: *mut f32,
        depth: usize,
        rows: usize,
        w: *mut f32,
        cols: usize,
        to: *mut f32,
    ) -> Result<()> {
        let width = self.width();
        let (x, w, to) = (SendPtr(x), SendPtr(w), SendPtr(to));
        // Blocks of rows and of columns, so that both long inputs and wide layers are shared out.
        let col_blocks = cols.div_ceil(COLS);
        let grain = (GRAIN / (rows.min(ROWS) * COLS * depth).max(1)).max(1);
        let n_blocks = rows.div_ceil(ROWS) * col_blocks;
        self.host.parallel_for(n_blocks, grain, |range, _| {
            let mut block = range.start;
            while block < range.end {
                let (row, col) = (block / col_blocks * ROWS, block % col_blocks * COLS);
                // Blocks beside each other are one product.
                let n = (range.end - block).min(col_blocks - block % col_blocks);
                block += n;
                let product = RowProduct {
                    x: x.at(row * depth),
                    x_stride: depth,
                    rows: ROWS.min(rows - row),
                    w: w.at(col * depth),
                    cols: (n * COLS).min(cols - col),
                    depth,
                    y: to.at(row * width + col),
                    y_stride: width,
                };
                // SAFETY: the callers name operands or workspace of these sizes, blocks of y do not
                // overlap, and the instructions are the device's.
                unsafe { (self.multiply)(&product) };
            }
            Ok(())
        })
    }

    /// Returns the length of a sequence.
    fn length_of(&self, at: &Addresses, b: usize) -> usize {
        if !self.has[LENGTHS] {
            return self.length;
        }
        // SAFETY: there is a length for each sequence of the batch.
        let length = unsafe { at.lengths.at(b).read() };
        (length.max(0) as usize).min(self.length)
    }

    /// The position of the input that a step is for; None after the end of the sequence.
    fn time(&self, at: &Addresses, direction: usize, b: usize, s: usize) -> Option<usize> {
        let length = self.length_of(at, b);
        let backward = direction == 1 || self.reverse;
        match s < length {
            true if backward => Some(length - 1 - s),
            true => Some(s),
            false => None,
        }
    }

    /// The row of the input for a sequence and a position.
    fn row_of(&self, b: usize, t: usize) -> usize {
        match self.batch_first {
            true => b * self.length + t,
            false => t * self.batch + b,
        }
    }

    /// The number of the first output where a row begins.
    fn output_at(&self, direction: usize, b: usize, t: usize) -> usize {
        let row = match self.batch_first {
            true => self.row_of(b, t) * self.n_directions + direction,
            false => (t * self.n_directions + direction) * self.batch + b,
        };
        row * self.hidden
    }

    /// The number of a state's operand where a row begins.
    fn state_at(&self, direction: usize, b: usize) -> usize {
        let row = match self.batch_first {
            true => b * self.n_directions + direction,
            false => direction * self.batch + b,
        };
        row * self.hidden
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

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
                    let row =
                        |a: &[f32]| -> Vec<f64> { a[at..at + hidden].iter().map(|&v| v.into()).collect() };
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
                        let gate =
                            |gate: usize, j: usize| of_x(gate, j) + of_h(gate, j, &h) + bias_h(gate, j);
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
            let lengths: Vec<i32> = (0..batch)
                .map(|_| if has_lengths { random.below(length + 1) } else { length } as i32)
                .collect();
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
            for isa in isas() {
                let found = run(isa, op, &attrs, &inputs_of, &outputs).expect("runs");
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
}
