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

mod group;
#[cfg(test)]
mod tests;

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::kernels::product::tile::Tiles;
use crate::kernels::recurrent::cell::{self, CellFn, CellStep, UNITS};
use crate::kernels::recurrent::panels::{PARTS, Weights, parts};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::{self, Activation, Cell, Extents};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use group::Group;

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

/// Multiply-adds of a direction, or of a group of sequences, from which they run beside each other.
const BESIDE: usize = 1024 * 1024;

/// Rows of a block of the inputs' products: enough to make much of each panel, few enough for the cache.
const BLOCK_ROWS: usize = 48;

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
            let (src, dst) = (to_weights(src)?, as_f32s_mut(dst)?);
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

impl Recurrent {
    /// Units of all blocks.
    fn padded(&self) -> usize {
        self.hidden.next_multiple_of(UNITS)
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
