//! Some sequences of one direction of a recurrent layer: the inputs' products by blocks, and the steps.

use super::{Addresses, BIAS, INITIAL_C, INITIAL_H, LENGTHS, PEEPHOLES, Recurrent, slice, slice_mut};
use crate::kernels::product::tile::{AHEAD, Job, PANELS_MAX, ROWS_MAX, RowJob, Segment, VECTORS_MAX};
use crate::kernels::recurrent::cell::{CellStep, Row, UNITS};
use crate::kernels::recurrent::panels::Panels;
use devbay_plugin_api::sdk::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Multiply-adds of a chunk of a loop: less is not worth another thread.
const CHUNK: usize = 256 * 1024;

/// The same for a chunk of a step, whose weights come from a cache.
const STEP_CHUNK: usize = 64 * 1024;

/// Panels, or blocks of units where those are wider, of a span of a step.
const SPAN: usize = PANELS_MAX;

/// Numbers of the products of a span with the rows of a tile, at most.
const SPAN_MAX: usize = ROWS_MAX * SPAN * VECTORS_MAX * UNITS;

/// Sums of a span, of a tile's rows.
#[repr(C, align(64))]
struct Sums([f32; SPAN_MAX]);

/// Some sequences of one direction of a launch.
///
/// # Invariants
/// The addresses are those of a launch of `op`, its weights and biases are packed, and no other thread works on
/// these sequences of this direction meanwhile, but for what this one shares out.
pub(super) struct Group<'a> {
    op: &'a Recurrent,
    at: &'a Addresses,
    direction: usize,
    step: &'a CellStep,
    /// The sequences.
    batch: Range<usize>,
    /// What the direction's places in the workspace count from.
    room: SendPtr<f32>,
}

impl<'a> Group<'a> {
    /// # Safety
    /// The invariants.
    pub(super) unsafe fn new(op: &'a Recurrent, at: &'a Addresses, direction: usize, group: usize) -> Self {
        let first = |group: usize| op.batch * group / op.n_groups;
        let room = SendPtr(at.workspace.at(direction * op.room.direction));
        Self { op, at, direction, step: &op.steps[direction], batch: first(group)..first(group + 1), room }
    }

    pub(super) fn run(&self) -> Result<()> {
        self.begin();
        let op = self.op;
        let n_blocks = op.length.div_ceil(op.block.max(1));
        if n_blocks > 0 {
            self.multiply_inputs(0)?;
        }
        // The next block's products are of no use to another thread where they are small.
        let macs = op.block * self.batch.len() * op.weights[0].columns() * op.inputs;
        let grain = if op.shares && macs >= CHUNK { 1 } else { 2 };
        for block in 0..n_blocks {
            let n = if block + 1 < n_blocks { 2 } else { 1 };
            op.host.parallel_for(n, grain, |range, _| {
                for idx in range {
                    match idx {
                        0 => self.run_block(block)?,
                        _ => self.multiply_inputs(block + 1)?,
                    }
                }
                Ok(())
            })?;
        }
        self.end();
        Ok(())
    }

    /// The steps of a block.
    fn steps(&self, block: usize) -> Range<usize> {
        let first = block * self.op.block;
        first..(first + self.op.block).min(self.op.length)
    }

    /// Where the inputs' products of a block begin.
    fn x_gates(&self, block: usize) -> SendPtr<f32> {
        let op = self.op;
        let first = self.batch.start * op.block * op.weights[0].columns();
        SendPtr(self.room.at(op.room.x_gates[block % 2] + first))
    }

    /// The state before a step, or behind the one before it.
    fn state(&self, step: usize, b: usize) -> SendPtr<f32> {
        SendPtr(self.room.at(self.op.room.states[step % 2] + b * self.op.padded()))
    }

    /// The cell of an LSTM, or what the reset gate leaves of a GRU's state.
    fn other(&self, b: usize) -> SendPtr<f32> {
        SendPtr(self.room.at(self.op.room.other + b * self.op.padded()))
    }

    /// The sequences that have not ended.
    fn active(&self) -> SendPtr<u32> {
        SendPtr(self.room.at(self.op.room.active + self.batch.start).cast())
    }

    /// Where the biases of the inputs' or the state's products begin, from a column on; NULL if there are none.
    fn bias(&self, which: usize, column: usize) -> *mut f32 {
        let columns = self.op.weights[0].columns();
        match self.op.has[BIAS] {
            true => self.at.packed[2].at((2 * self.direction + which) * columns + column),
            false => core::ptr::null_mut(),
        }
    }

    /// The products of the inputs of a block's steps with their weights, and the biases.
    fn multiply_inputs(&self, block: usize) -> Result<()> {
        let (op, steps) = (self.op, self.steps(block));
        let (columns, n) = (op.weights[0].columns(), self.batch.len());
        let rows = steps.len() * n;
        for (part, panels) in op.weights[0].parts.iter().enumerate() {
            let (first, k) = (op.weights[0].column(part), panels.k);
            let weights = SendPtr(op.weights(self.at, 0, self.direction, part));
            let y = SendPtr(self.x_gates(block).at(first));
            let bias = SendPtr(self.bias(0, first));
            let tile = even(rows, panels.rows);
            let n_spans = panels.n().div_ceil(SPAN);
            let grain = op.grain(CHUNK, rows * k * panels.width() * SPAN);
            op.host.parallel_for(n_spans, grain, |spans, _| {
                let mut pace = op.host.pace();
                for span in spans {
                    let span = span * SPAN..((span + 1) * SPAN).min(panels.n());
                    for (nth, row) in (0..rows).step_by(tile).enumerate() {
                        let mut segment = Segment { len: k, ..Segment::EMPTY };
                        let of_tile = tile.min(rows - row);
                        pace.work(of_tile * k * panels.width() * span.len())?;
                        for (i, x) in segment.rows[..of_tile].iter_mut().enumerate() {
                            let (s, b) = (steps.start + (row + i) / n, self.batch.start + (row + i) % n);
                            // A sequence that has ended gets products that are of no use.
                            let t = op.time(self.at, self.direction, b, s).unwrap_or(0);
                            *x = self.at.x.at(op.row_of(b, t) * op.inputs);
                        }
                        let product = Product {
                            panels,
                            weights: weights.at(0),
                            span: span.clone(),
                            bias: bias.at(0),
                            nth,
                        };
                        let y = y.at(row * columns + span.start * panels.width());
                        // SAFETY: the rows lie within the input, the weights are packed, and these rows of the
                        // workspace have the columns of the span, which is this chunk's.
                        unsafe { op.multiply(&product, &segment, of_tile, y, columns) };
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// The initial state: zeros if it is not given.
    fn begin(&self) {
        let (op, has) = (self.op, &self.op.has);
        for (i, b) in self.batch.clone().enumerate() {
            // SAFETY: there is a number for each sequence (invariant).
            unsafe { self.active().at(i).write(b as u32) };
            for (there, from, to) in [
                (has[INITIAL_H], self.at.initial_h, self.state(0, b)),
                (has[INITIAL_C], self.at.initial_c, self.other(b)),
            ] {
                // SAFETY: the row lies within the workspace (invariant).
                let to = unsafe { slice_mut(to.0, op.padded()) };
                let (to, beyond) = to.split_at_mut(op.hidden);
                beyond.fill(0.0);
                match there {
                    // SAFETY: the operand has a row for each sequence.
                    true => to.copy_from_slice(unsafe {
                        slice(from.at(op.state_at(self.direction, b)), op.hidden)
                    }),
                    false => to.fill(0.0),
                }
            }
        }
    }

    /// The steps of a block.
    fn run_block(&self, block: usize) -> Result<()> {
        let op = self.op;
        let mut pace = op.host.pace();
        let row = self.batch.len() * op.weights[0].columns();
        for (i, s) in self.steps(block).enumerate() {
            pace.work(self.batch.len() * op.weights[1].columns() * op.hidden)?;
            self.step(s, SendPtr(self.x_gates(block).at(i * row)))?;
        }
        Ok(())
    }

    /// One step of all sequences.
    fn step(&self, s: usize, x_gates: SendPtr<f32>) -> Result<()> {
        let op = self.op;
        let mut n = self.batch.len();
        if op.has[LENGTHS] {
            n = 0;
            for b in self.batch.clone().filter(|&b| s < op.length_of(self.at, b)) {
                // SAFETY: there are no more than the group's sequences, for each of which there is a number.
                unsafe { self.active().at(n).write(b as u32) };
                n += 1;
            }
        }
        for (part, panels) in op.weights[1].parts.iter().enumerate() {
            let span = panels.span();
            let macs = self.batch.len() * span * panels.k;
            let n_spans = panels.columns().div_ceil(span);
            op.host.parallel_for(n_spans, op.grain(STEP_CHUNK, macs), |spans, _| {
                for span in spans {
                    self.span(part, span, n, s, x_gates);
                }
                Ok(())
            })?;
        }
        if !self.at.y.0.is_null() {
            for b in (0..n).map(|i| self.sequence(i)) {
                let t = op.time(self.at, self.direction, b, s).unwrap_or(0);
                self.give(self.state(s + 1, b).0, self.at.y, op.output_at(self.direction, b, t));
            }
        }
        Ok(())
    }

    /// The `i`th sequence that has not ended.
    fn sequence(&self, i: usize) -> usize {
        // SAFETY: `step` and `begin` wrote the number of each sequence that has not ended.
        unsafe { self.active().at(i).read() as usize }
    }

    /// One span of a part of a step, of `n` sequences.
    fn span(&self, part: usize, span: usize, n: usize, s: usize, x_gates: SendPtr<f32>) {
        let op = self.op;
        let (panels, columns) = (&op.weights[1].parts[part], op.weights[0].columns());
        let first = span * panels.span();
        let width = panels.span().min(panels.columns() - first);
        let (unit, units) = (first / panels.gates.len(), width / panels.gates.len());
        let column = op.weights[0].column(part) + first;
        // Otherwise the inputs' products begin with the state's biases too.
        let bias = match self.step.resets_after() {
            true => self.bias(1, 0),
            false => core::ptr::null_mut(),
        };
        let product = Product {
            panels,
            weights: op.weights(self.at, 1, self.direction, part),
            span: first / panels.width()..(first + width).div_ceil(panels.width()),
            bias,
            nth: 0,
        };
        let peepholes = op.has[PEEPHOLES].then(|| {
            [0, 1, 2].map(|gate| {
                // SAFETY: the workspace has the peepholes, with a number for each unit (invariant).
                unsafe { slice(self.room.at(op.room.peepholes + gate * op.padded() + unit), units) }
            })
        });
        let mut sums = MaybeUninit::<Sums>::uninit();
        let sums = sums.as_mut_ptr().cast::<f32>();
        let tile = even(n, panels.rows);
        for (nth, begin) in (0..n).step_by(tile).enumerate() {
            let rows = tile.min(n - begin);
            let mut segment = Segment { len: panels.k, ..Segment::EMPTY };
            for (i, row) in segment.rows[..rows].iter_mut().enumerate() {
                let b = self.sequence(begin + i);
                *row = if part == 0 { self.state(s, b).0 } else { self.other(b).0 };
            }
            let product = Product { nth, span: product.span.clone(), ..product };
            // SAFETY: rows of the state have the hidden size, the weights are packed, and there is room for the sums of
            // as many rows as a tile has.
            unsafe { op.multiply(&product, &segment, rows, sums, width) };
            for i in 0..rows {
                let b = self.sequence(begin + i);
                // SAFETY: the sums were just written. The other rows lie within the workspace, no two overlap, and the
                // units of the span are this chunk's (invariant).
                let mut row = unsafe {
                    Row {
                        h_gates: slice(sums.add(i * width), width),
                        x_gates: slice(x_gates.at((b - self.batch.start) * columns + column), width),
                        h: slice(self.state(s, b).at(unit), units),
                        next: slice_mut(self.state(s + 1, b).at(unit), units),
                        other: slice_mut(self.other(b).at(unit), units),
                        peepholes,
                    }
                };
                // SAFETY: the instructions are the device's.
                unsafe { (op.cells[self.direction][part])(self.step, &mut row) };
            }
        }
    }

    /// The last states, and zeros for what comes after the end of a sequence.
    fn end(&self) {
        let op = self.op;
        for b in self.batch.clone() {
            let (length, place) = (op.length_of(self.at, b), op.state_at(self.direction, b));
            self.give(self.state(length, b).0, self.at.y_h, place);
            self.give(self.other(b).0, self.at.y_c, place);
            for t in length..op.length {
                if !self.at.y.0.is_null() {
                    let y = self.at.y.at(op.output_at(self.direction, b, t));
                    // SAFETY: the row lies within the output.
                    unsafe { y.write_bytes(0, op.hidden) };
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

/// Rows of a tile such that tiles of at most `max` rows are even.
fn even(rows: usize, max: usize) -> usize {
    rows.div_ceil(rows.div_ceil(max).max(1)).max(1)
}

/// Some panels of a product.
struct Product<'a> {
    panels: &'a Panels,
    /// The part's weights.
    weights: *const f32,
    /// The panels.
    span: Range<usize>,
    /// A number for each of the part's columns; or NULL.
    bias: *const f32,
    /// Number of the tile, of those that use the panels in turn.
    nth: usize,
}

impl Recurrent {
    /// Iterations of a chunk of a group's loop, for a chunk of so many multiply-adds and an iteration's.
    fn grain(&self, chunk: usize, macs: usize) -> usize {
        if self.shares { chunk.div_ceil(macs.max(1)) } else { usize::MAX }
    }

    /// Multiplies rows with a span of panels; the columns of `y` are those of the span.
    ///
    /// # Safety
    /// 1. The segment has so many rows, at most a tile's, of the panels' terms, and the part's weights are packed.
    /// 2. `y` has so many rows, `stride` apart, with the span's columns, which no other thread touches.
    #[inline]
    unsafe fn multiply(
        &self,
        product: &Product<'_>,
        segment: &Segment,
        rows: usize,
        y: *mut f32,
        stride: usize,
    ) {
        let Product { panels, weights, bias, nth, .. } = *product;
        let mut panel = product.span.start;
        while panel < product.span.end {
            let (column, vectors) = (panel * panels.width(), panels.vectors(panel));
            let y = y.wrapping_add(column - product.span.start * panels.width());
            let bias = if bias.is_null() { bias } else { bias.wrapping_add(column) };
            let of_panel = weights.wrapping_add(panels.at(panel));
            if rows == 1 {
                let alike = (panel..product.span.end.min(panel + PANELS_MAX))
                    .take_while(|&panel| panels.vectors(panel) == vectors)
                    .count();
                let job = RowJob { x: segment.rows[0], len: segment.len, weights: of_panel, y, bias };
                // SAFETY: the row and the panels have the terms (# Safety, 1), the span has the panels (2).
                unsafe { self.tiles.row(vectors, alike, &job) };
                panel += alike;
                continue;
            }
            // The first tiles ask for parts of the next panel.
            let (len, ahead) = (vectors * self.tiles.lanes * panels.k, nth * panels.k * AHEAD);
            let job = Job {
                segments: core::slice::from_ref(segment),
                weights: of_panel,
                ahead: if ahead < len { of_panel.wrapping_add(len + ahead) } else { of_panel },
                y,
                stride,
                columns: vectors * self.tiles.lanes,
                bias,
                adds: false,
                tail: None,
            };
            // SAFETY: the rows and the panel have the terms (# Safety, 1), and `y` has the columns (2).
            unsafe { self.tiles.run(vectors, rows, &job) };
            panel += 1;
        }
    }

    /// Where the packed weights of a part of a direction begin.
    fn weights(&self, at: &Addresses, which: usize, direction: usize, part: usize) -> *mut f32 {
        let weights = &self.weights[which];
        let k = weights.parts[0].k;
        at.packed[which].at((direction * weights.columns() + weights.column(part)) * k)
    }
}
