//! RNN, GRU and LSTM.
//!
//! Weights are panels ([`panels`](super::panels)): the host packs constants once, others are packed in each launch. The products
//! of the inputs with their weights do not depend on the state. They are made by blocks of steps, those of a block beside the
//! steps of the one before where there are threads, and begin with the biases. A step is a product of the state with the recurrent weights, a few panels
//! at a time, each followed by the cells of its units ([`cell`](super::cell)). The state before a step and the one behind it lie
//! apart, so that the spans of panels of a step do not depend on each other: large layers share them out to threads.
//!
//! Directions share nothing but the input, and sequences nothing but the weights: they run beside each other where there are
//! threads and enough to do. How sequences are divided depends on the number of threads; a sum does not depend on how they are
//! ([`tile`](crate::kernels::product::tile)).
//!
//! With lengths of sequences, a sequence that has ended keeps its state, and its outputs are 0.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::kernels::product::tile::{AHEAD, Job, PANELS_MAX, ROWS_MAX, RowJob, Segment, Tiles, VECTORS_MAX};
use crate::kernels::recurrent::cell::{self, CellFn, CellStep, Row, UNITS};
use crate::kernels::recurrent::panels::{PARTS, Panels, Weights, parts};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, Activation, Cell, Extents};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::mem::MaybeUninit;
use std::ops::Range;

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

/// Multiply-adds of a chunk of a loop: less is not worth another thread.
const CHUNK: usize = 256 * 1024;

/// The same for a chunk of a step, whose weights come from a cache.
const STEP_CHUNK: usize = 64 * 1024;

/// Multiply-adds of a direction, or of a group of sequences, from which they run beside each other.
const BESIDE: usize = 1024 * 1024;

/// Rows of a block of the inputs' products: enough to make much of each panel, few enough for the cache.
const BLOCK_ROWS: usize = 48;

/// Panels, or blocks of units where those are wider, of a span of a step.
const SPAN: usize = PANELS_MAX;

/// Numbers of the products of a span with the rows of a tile, at most.
const SPAN_MAX: usize = ROWS_MAX * SPAN * VECTORS_MAX * UNITS;

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
    /// True for each input that is present.
    has: [bool; 8],
    tiles: Tiles,
    /// The weights of the inputs and of the state.
    weights: [Weights; 2],
    /// True for the weights and the biases that come packed.
    is_packed: [bool; 3],
    /// Groups that the sequences are divided into.
    n_groups: usize,
    /// True if there are more threads than groups, so that a group shares out its steps.
    shares: bool,
    /// Steps of a block of the inputs' products.
    block: usize,
    room: Room,
    /// By direction and part.
    cells: [[CellFn; PARTS]; 2],
}

/// Places in the workspace, of the first direction unless they are of all.
#[derive(Clone, Copy)]
struct Room {
    /// The weights and biases of all directions, those that do not come packed.
    packed: [usize; 3],
    peepholes: usize,
    /// The state before and behind a step.
    states: [usize; 2],
    /// The cell of an LSTM, or what the reset gate leaves of a GRU's state.
    other: usize,
    /// Numbers of the sequences that have not ended.
    active: usize,
    /// The inputs' products of two blocks.
    x_gates: [usize; 2],
    /// Distance from a place of one direction to that of the next.
    direction: usize,
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
    const WHAT: &str = "a recurrent layer's workspace";
    let layer = read::Recurrent::of(request, cell)?;
    let [length, batch, inputs, n_directions, hidden] = counted(&layer.extents);
    let isa = request.device.isa;
    let tiles = Tiles::of(isa);
    let steps = [0, n_directions - 1].map(|direction| step(&layer, direction));
    let gates = parts(cell, layer.linear_before_reset);
    let weights =
        [Weights::of(&tiles, hidden, inputs, gates.clone())?, Weights::of(&tiles, hidden, hidden, gates)?];
    let macs = Size::of(length) * batch * weights[0].columns() * inputs.saturating_add(hidden);
    let groups_max = (batch / 2).min(request.host.n_slots() / n_directions);
    let n_groups = (macs.saturated() / BESIDE).min(groups_max).max(1);
    let n_blocks = (Size::of(length) * batch.div_ceil(n_groups)).saturated().div_ceil(BLOCK_ROWS);
    let block = length.div_ceil(n_blocks.clamp(1, length.max(1)));
    // The weights and the biases, each with its bytes if it comes packed.
    let resets_after = steps[0].resets_after();
    let sizes = [weights[0].size(), weights[1].size(), weights[0].biases()];
    let mut packs = [None; 3];
    for (i, pack) in packs.iter_mut().enumerate() {
        let bytes = (sizes[i] * n_directions * size_of::<f32>()).get("packed weights")?;
        let is_constant = request.input(i + 1).is_some_and(|tensor| tensor.constant().is_some());
        *pack = (request.abi_minor >= 2 && is_constant && bytes > 0).then_some(bytes);
    }
    let is_packed = packs.map(|pack| pack.is_some());

    // The workspace, whose parts begin at lines of the cache.
    let mut end = Size::of(0);
    let mut room = |numbers: Size| {
        let start = end.saturated();
        end = end + numbers.next_multiple_of(16);
        start
    };
    let packed = [0, 1, 2].map(|i| match is_packed[i] {
        true => room(Size::of(0)),
        false => room(sizes[i] * n_directions),
    });
    let directions = room(Size::of(0));
    let padded = hidden.next_multiple_of(UNITS);
    let columns = weights[0].columns();
    let state = Size::of(batch) * padded;
    let x_gates = Size::of(block) * batch * columns;
    let n_x_gates = if block < length { 2 } else { 1 };
    let room = Room {
        packed,
        peepholes: room(Size::of(padded) * 3),
        states: [room(state), room(state)],
        other: room(state),
        active: room(Size::of(batch)),
        x_gates: {
            let first = room(x_gates);
            [first, if n_x_gates == 2 { room(x_gates) } else { first }]
        },
        direction: 0,
    };
    let end = end.get(WHAT)?;
    let room = Room { direction: end - directions, ..room };
    let workspace = Size::of(directions) + Size::of(room.direction) * n_directions;

    let kernel = Recurrent {
        host: request.host,
        steps,
        n_directions,
        reverse: layer.reverse,
        batch_first: layer.extents.batch_first,
        length,
        batch,
        inputs,
        hidden,
        has: layer.has,
        tiles,
        weights: weights.clone(),
        is_packed,
        n_groups,
        shares: request.host.n_slots() > n_directions * n_groups,
        block,
        room,
        cells: steps.map(|step| cell::functions(isa, &step)),
    };
    let mut prepared = Prepared::new(kernel).with_room(workspace * size_of::<f32>(), 64)?;
    let [of_x, of_h] = weights;
    for (i, (weights, bytes)) in [of_x.clone(), of_h, of_x].into_iter().zip(packs).enumerate() {
        let Some(bytes) = bytes else { continue };
        let gates = weights.parts.each_ref().map(|panels| panels.gates.len() as u64);
        let layer = [tiles.lanes as u64, n_directions as u64, gates[0], gates[1], hidden as u64];
        let of = if i == BIAS - 1 { [10, resets_after.into()] } else { [11, weights.parts[0].k as u64] };
        let id = layout_id(&[of.as_slice(), &layer].concat());
        prepared = prepared.with_packed(i + 1, id, bytes, 64, move |src, dst| {
            let (src, dst) = (to_f32s(src)?, as_f32s_mut(dst)?);
            match i + 1 == BIAS {
                true => weights.pack_biases(&src, dst, resets_after),
                false => weights.pack(&src, dst),
            }
            Ok(())
        });
    }
    Ok(prepared)
}

/// Returns a direction's step.
fn step(layer: &read::Recurrent, direction: usize) -> CellStep {
    let mut activations = [Activation::Tanh; 3];
    let own = layer.of_direction(direction);
    activations[..own.len()].copy_from_slice(own);
    CellStep {
        cell: layer.cell,
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
    /// The packed weights of the inputs and of the state, and the biases laid out.
    packed: [SendPtr<f32>; 3],
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
        if self.hidden == 0 || self.batch == 0 {
            return Ok(());
        }
        let (inputs, outputs) = (operands.input_refs(), operands.output_refs());
        let input = |i: usize, there: bool| match inputs.get(i) {
            Some(reference) if there => reference.addr as *mut f32,
            _ => core::ptr::null_mut(),
        };
        let output = |i: usize| outputs.get(i).map_or(0, |reference| reference.addr) as *mut f32;
        let mut at = Addresses {
            x: SendPtr(input(0, true)),
            packed: [1, 2, BIAS].map(|i| SendPtr(input(i, self.has[i]))),
            lengths: SendPtr(input(LENGTHS, self.has[LENGTHS]).cast()),
            initial_h: SendPtr(input(INITIAL_H, self.has[INITIAL_H])),
            initial_c: SendPtr(input(INITIAL_C, self.has[INITIAL_C])),
            peepholes: SendPtr(input(PEEPHOLES, self.has[PEEPHOLES])),
            y: SendPtr(output(0)),
            y_h: SendPtr(output(1)),
            y_c: SendPtr(output(2)),
            workspace: SendPtr(operands.workspace_ptr()),
        };
        for i in 0..3 {
            if !self.is_packed[i] && self.has[i + 1] {
                let to = SendPtr(at.workspace.at(self.room.packed[i]));
                // SAFETY: the operand has the weights or biases of all directions, and the workspace has room for them.
                unsafe { self.pack(i, at.packed[i].0, to.0) };
                at.packed[i] = to;
            }
        }
        if self.has[PEEPHOLES] {
            for direction in 0..self.n_directions {
                // SAFETY: the addresses are the launch's, and nothing else runs yet.
                unsafe { self.lay_out_peepholes(&at, direction) };
            }
        }
        let n = self.n_directions * self.n_groups;
        let macs = self.length * self.batch * self.weights[0].columns() * (self.inputs + self.hidden);
        let grain = if macs < BESIDE { n } else { 1 };
        self.host.parallel_for(n, grain, |range, _| {
            for idx in range {
                // SAFETY: the addresses are those of the operands whose extents `prepare` checked, packed, and
                // each sequence of each direction is one chunk's.
                unsafe { Group::new(self, &at, idx / self.n_groups, idx % self.n_groups) }.run()?;
            }
            Ok(())
        })
    }
}

/// A row of numbers at `at`.
///
/// # Safety
/// `at` holds `n` numbers, which live and are nobody else's to write for `'a`.
unsafe fn slice<'a>(at: *const f32, n: usize) -> &'a [f32] {
    // SAFETY: `at` holds `n` numbers, which no other thread writes during `'a` (# Safety).
    unsafe { core::slice::from_raw_parts(at, n) }
}

/// A row of numbers at `at`, to be written.
///
/// # Safety
/// `at` holds `n` numbers, which live and are nobody else's for `'a`.
unsafe fn slice_mut<'a>(at: *mut f32, n: usize) -> &'a mut [f32] {
    // SAFETY: `at` holds `n` numbers, which are this caller's alone during `'a` (# Safety).
    unsafe { core::slice::from_raw_parts_mut(at, n) }
}

/// Sums of a span, of a tile's rows.
#[repr(C, align(64))]
struct Sums([f32; SPAN_MAX]);

/// Some sequences of one direction of a launch.
///
/// # Invariants
/// The addresses are those of a launch of `op`, its weights and biases are packed, and no other thread works on
/// these sequences of this direction meanwhile, but for what this one shares out.
struct Group<'a> {
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
    unsafe fn new(op: &'a Recurrent, at: &'a Addresses, direction: usize, group: usize) -> Self {
        let first = |group: usize| op.batch * group / op.n_groups;
        let room = SendPtr(at.workspace.at(direction * op.room.direction));
        Self { op, at, direction, step: &op.steps[direction], batch: first(group)..first(group + 1), room }
    }

    fn run(&self) -> Result<()> {
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

    /// Units of all blocks.
    fn padded(&self) -> usize {
        self.hidden.next_multiple_of(UNITS)
    }

    /// Where the packed weights of a part of a direction begin.
    fn weights(&self, at: &Addresses, which: usize, direction: usize, part: usize) -> *mut f32 {
        let weights = &self.weights[which];
        let k = weights.parts[0].k;
        at.packed[which].at((direction * weights.columns() + weights.column(part)) * k)
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

    /// Packs the weights of the inputs or of the state, or the biases.
    ///
    /// # Safety
    /// `from` has those of all directions, and `to` room for them packed.
    unsafe fn pack(&self, which: usize, from: *const f32, to: *mut f32) {
        let weights = &self.weights[which % 2];
        let (k, columns) = match which {
            2 => (2, 2 * weights.columns()),
            _ => (weights.parts[0].k, weights.columns() * weights.parts[0].k),
        };
        let n = self.n_directions * weights.parts[PARTS - 1].gates.end * self.hidden * k;
        if n == 0 {
            return;
        }
        // SAFETY: the operand has so many numbers (# Safety).
        let from = unsafe { slice(from, n) };
        // SAFETY: there is room for those of all directions (# Safety), which nothing else uses yet.
        let to = unsafe { slice_mut(to, self.n_directions * columns) };
        match which {
            2 => weights.pack_biases(from, to, self.steps[0].resets_after()),
            _ => weights.pack(from, to),
        }
    }

    /// Lays out the peepholes of a direction in blocks, with zeros beyond the last unit.
    ///
    /// # Safety
    /// The addresses are a launch's, and nothing else uses this part of the workspace.
    unsafe fn lay_out_peepholes(&self, at: &Addresses, direction: usize) {
        let (hidden, padded) = (self.hidden, self.padded());
        let room = SendPtr(at.workspace.at(direction * self.room.direction));
        for gate in 0..3 {
            // SAFETY: the operand has a weight for each unit (# Safety).
            let from = unsafe { slice(at.peepholes.at((direction * 3 + gate) * hidden), hidden) };
            // SAFETY: the workspace has room for them, which is this caller's (# Safety).
            let to = unsafe { slice_mut(room.at(self.room.peepholes + gate * padded), padded) };
            to[..hidden].copy_from_slice(from);
            to[hidden..].fill(0.0);
        }
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
            // Weights and biases that are packed in the launch, and constants.
            for (isa, constants) in isas().flat_map(|isa| [(isa, 0), (isa, 0b110), (isa, 0b1110)]) {
                let found =
                    run_with_constants(isa, op, &attrs, &inputs_of, &outputs, constants).expect("runs");
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
                    let mut array = |extents: [usize; 3]| {
                        Array::of(&extents, &random.floats(extents.iter().product(), 0.3))
                    };
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
                        assert_eq!(
                            alone.to_bits(),
                            among.to_bits(),
                            "{isa:?} {op}, sequence {b}, number {i}"
                        );
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
                let cell =
                    (1.0 - input) * f64::from(before[j]) + input * f64::from(gates[3 * hidden + j]).tanh();
                let expected = sigmoid(gates[hidden + j]) * cell.tanh();
                assert!((f64::from(found) - expected).abs() < 1e-6, "{isa:?}: {found}, not {expected}");
            }
        }
    }
}
