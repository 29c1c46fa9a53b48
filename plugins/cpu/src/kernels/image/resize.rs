//! Resize: other extents for the same picture, element by element or interpolated.
//!
//! Every resized axis has a table of positions and weights, made when the kernel is prepared. The nearest
//! element is copied, whatever its type. Interpolation goes one axis at a time, those first that shrink
//! most, except for the usual case: two elements along each of the last two axes are done row by row,
//! so that what lies between the two axes stays in the cache.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{element_size, row_major};
use crate::kernels::geometry::rows::{OUTSIDE, Rows};
use crate::kernels::geometry::strided::{GRAIN_BYTES, copy_run, fill};
use crate::kernels::types::MOVABLE;
use crate::stream::CpuStream;
use core::ops::Range;
use devbay_ops::descriptor;
use devbay_ops::read::{Axis, Filter, Resize, Samples};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Resize", 19, prepare)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[F32]), TypeVar::of(&[I64])])
    .operands(&[0, 1, 1, 2], &[0])
    .inputs(1, 4)
    .cost(cost)
    .doc("nearest for every dtype; linear and cubic for f32")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n = request.required_output(0)?.n_elements() as u64;
    let flops = match request.attrs.string("mode", "nearest")? {
        "nearest" => 0,
        "linear" => 8 * n,
        _ => 16 * n,
    };
    Ok(cost::of(request, flops))
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let resize = Resize::of(request)?;
    let samples = resize.samples(usize::MAX)?;
    match (resize.method.filter, input.dtype()) {
        (Filter::Nearest(_), _) => nearest(request, &resize.axes, samples, resize.outside),
        (_, F32) => interpolate(request, &resize.axes, samples, resize.outside),
        (_, dtype) => Err(Error::unsupported(format!("interpolation of {dtype}, expected f32"))),
    }
}

// ---------------------------------------------------------------------------------------------------
// The nearest element
// ---------------------------------------------------------------------------------------------------

type NearestFn = fn(&Repeat, &mut Operands<'_>) -> Result<()>;
type InTurnFn = unsafe fn(*const u8, *mut u8, usize, usize, usize);

struct Repeat {
    host: Host,
    /// Everything outside the last axis that is resized.
    rows: Rows,
    /// Along that axis: the byte of the input for each position, or [`OUTSIDE`].
    row: Vec<usize>,
    /// The power of two that says how often each element of a row comes in turn, and the loop for it, if it is the same for all.
    in_turn: Option<(u32, InTurnFn)>,
    /// Bytes of one position of that axis.
    run: usize,
    outside: f32,
    body: NearestFn,
}

fn nearest(
    request: &PrepareRequest<'_, CpuDevice>,
    axes: &[Axis],
    samples: Vec<Option<Samples>>,
    outside: f32,
) -> Result<Prepared> {
    let dtype = request.required_input(0)?.dtype();
    let size = element_size(dtype);
    let any_outside = samples.iter().flatten().any(|s| s.outside.contains(&true));
    if any_outside && dtype != F32 {
        return Err(Error::unsupported(format!("extrapolation of dtype {dtype:?}, expected f32")));
    }
    let from: Vec<usize> = axes.iter().map(|axis| axis.from).collect();
    let strides = row_major(&from);
    const WHAT: &str = "a table of positions";
    let table = |i: usize| -> Result<Vec<usize>> {
        let bytes = strides[i] as usize * size;
        Ok(match &samples[i] {
            None => reserve::collected((0..axes[i].to).map(|at| at * bytes), WHAT)?,
            Some(samples) => {
                let positions = samples.positions.iter().zip(&samples.outside);
                let start =
                    |(&at, &outside): (&u32, &bool)| if outside { OUTSIDE } else { at as usize * bytes };
                reserve::collected(positions.map(start), WHAT)?
            }
        })
    };
    let last = samples.iter().rposition(Option::is_some);
    let last = last.unwrap_or(from.len().saturating_sub(1));
    // A scalar is one position of an axis that it does not have.
    let row = if from.is_empty() { vec![0] } else { table(last)? };
    let run = size * from.get(last + 1..).unwrap_or_default().iter().product::<usize>();
    let times = row.len() / from.get(last).copied().unwrap_or(1).max(1);
    let is_in_turn = row.iter().enumerate().all(|(i, &at)| at == i / times.max(1) * run);
    let isa = request.device.isa;
    let in_turn: Option<InTurnFn> = match (times, run) {
        _ if !is_in_turn => None,
        (2, 1) => Some(in_turn::<[u8; 2]>(isa)),
        (2, 2) => Some(in_turn::<[u16; 2]>(isa)),
        (2, 4) => Some(in_turn::<[u32; 2]>(isa)),
        (2, 8) => Some(in_turn::<[u64; 2]>(isa)),
        (4, 1) => Some(in_turn::<[u8; 4]>(isa)),
        (4, 2) => Some(in_turn::<[u16; 4]>(isa)),
        (4, 4) => Some(in_turn::<[u32; 4]>(isa)),
        (4, 8) => Some(in_turn::<[u64; 4]>(isa)),
        _ => None,
    };
    Ok(Prepared::new(Repeat {
        host: request.host,
        rows: Rows::new((0..last).map(table).collect::<Result<_>>()?),
        row,
        in_turn: in_turn.map(|body| (times.ilog2(), body)),
        run,
        outside,
        body: match run {
            1 => repeat::<u8>,
            2 => repeat::<u16>,
            4 => repeat::<u32>,
            8 => repeat::<u64>,
            _ => repeat_runs,
        },
    }))
}

impl Launch<CpuDevice> for Repeat {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        (self.body)(self, operands)
    }
}

impl Repeat {
    /// Writes all rows; `write(source, target, rows, positions)` writes a piece of some that are the same.
    fn write_rows(
        &self,
        operands: &mut Operands<'_>,
        write: impl Fn(*const u8, *mut u8, usize, Range<usize>) + Sync,
    ) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let bytes = self.row_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let grain = (GRAIN_BYTES / bytes).max(1);
        self.host.parallel_for(self.rows.len(), grain, |range, _| {
            let mut pace = self.host.pace();
            let mut goes_on = Ok(());
            self.rows.runs(range, |rows, start| {
                if goes_on.is_err() {
                    return;
                }
                let target = y.at(rows.start * bytes);
                if start == OUTSIDE {
                    // SAFETY: the rows lie within the output, whose dtype is f32.
                    unsafe { fill(target.cast::<f32>(), rows.len() * bytes / 4, self.outside) };
                    return;
                }
                goes_on = in_pieces(self.row.len(), self.run * rows.len(), &mut pace, |piece| {
                    write(x.at(start), target, rows.len(), piece);
                });
            });
            goes_on
        })
    }

    /// Bytes of a row of the output.
    fn row_bytes(&self) -> usize {
        self.row.len() * self.run
    }

    /// Copies a piece of a row to the rows behind it, of which there are `n` in all.
    ///
    /// # Safety
    /// The rows begin at `target`, and the piece of the first is written.
    unsafe fn copy_down(&self, target: *mut u8, n: usize, piece: &Range<usize>) {
        let first = target.wrapping_add(piece.start * self.run);
        for row in 1..n {
            let to = first.wrapping_add(row * self.row_bytes());
            // SAFETY: the piece is one of both rows (# Safety), which are apart.
            unsafe { core::ptr::copy_nonoverlapping(first, to, piece.len() * self.run) };
        }
    }
}

/// Rows whose positions are one element of type `U`.
fn repeat<U: Element + Sync>(op: &Repeat, operands: &mut Operands<'_>) -> Result<()> {
    let outside = op.outside.to_bits();
    op.write_rows(operands, |source, target, n_rows, piece| {
        // Pieces begin at multiples of 4, and so do elements that come 2 or 4 times.
        match op.in_turn {
            Some((power, body)) => {
                let from = source.cast::<U>().wrapping_add(piece.start >> power);
                let to = target.cast::<U>().wrapping_add(piece.start);
                // SAFETY: the row has as many elements of the input, each as often in the output; the instructions are the
                // device's.
                unsafe { body(from.cast(), to.cast(), piece.len() >> power, n_rows, op.row_bytes()) }
            }
            None => {
                let to = target.cast::<U>();
                for (i, &at) in piece.clone().zip(&op.row[piece.clone()]) {
                    if at == OUTSIDE {
                        // SAFETY: the element lies within the row of the output, whose dtype is f32.
                        unsafe { to.add(i).cast::<u32>().write(outside) };
                        continue;
                    }
                    // SAFETY: the table names bytes of the input's row.
                    let element = unsafe { source.add(at).cast::<U>().read() };
                    // SAFETY: `i` lies within the row of the output.
                    unsafe { to.add(i).write(element) };
                }
                // SAFETY: the piece of the first row is written.
                unsafe { op.copy_down(target, n_rows, &piece) };
            }
        }
    })
}

/// An element that comes several times.
trait Times: Copy + 'static {
    type Element: Copy;

    fn of(element: Self::Element) -> Self;
}

impl<U: Element, const TIMES: usize> Times for [U; TIMES] {
    type Element = U;

    #[inline(always)]
    fn of(element: U) -> Self {
        [element; TIMES]
    }
}

dispatch! {
    fn in_turn<T: Times>(from: *const u8, to: *mut u8, n: usize, n_rows: usize, row_bytes: usize) = in_turn_body
}

/// Elements that are written to each row at once.
const TOGETHER: usize = 8;

/// # Safety
/// `from` holds `n` elements, and each of the rows from `to` on, so many bytes apart, each of them as often as `T` says.
#[inline(always)]
unsafe fn in_turn_body<A: Arith, T: Times>(
    from: *const u8,
    to: *mut u8,
    n: usize,
    n_rows: usize,
    row_bytes: usize,
) {
    let from = from.cast::<T::Element>();
    let mut at = 0;
    while at + TOGETHER <= n {
        // SAFETY: as many elements are left (# Safety).
        let elements = unsafe { from.add(at).cast::<[T::Element; TOGETHER]>().read_unaligned() };
        let copies = elements.map(T::of);
        for row in 0..n_rows {
            let to = to.wrapping_add(row * row_bytes).cast::<T>().wrapping_add(at);
            // SAFETY: each row has the copies of the elements (# Safety).
            unsafe { to.cast::<[T; TOGETHER]>().write_unaligned(copies) };
        }
        at += TOGETHER;
    }
    for at in at..n {
        // SAFETY: `at` is below `n` (# Safety).
        let copies = T::of(unsafe { from.add(at).read() });
        for row in 0..n_rows {
            let to = to.wrapping_add(row * row_bytes).cast::<T>().wrapping_add(at);
            // SAFETY: each row has the copies of the element (# Safety).
            unsafe { to.write_unaligned(copies) };
        }
    }
}

/// Rows whose positions are runs of elements.
fn repeat_runs(op: &Repeat, operands: &mut Operands<'_>) -> Result<()> {
    op.write_rows(operands, |source, target, n_rows, piece| {
        for (i, &at) in piece.clone().zip(&op.row[piece.clone()]) {
            let to = target.wrapping_add(i * op.run);
            if at == OUTSIDE {
                // SAFETY: the run lies within the row of the output, whose dtype is f32.
                unsafe { fill(to.cast::<f32>(), op.run / 4, op.outside) };
            } else {
                // SAFETY: the table names runs of the input's row.
                unsafe { copy_run(source.add(at), to, op.run) };
            }
        }
        // SAFETY: the piece of the first row is written.
        unsafe { op.copy_down(target, n_rows, &piece) };
    })
}

// ---------------------------------------------------------------------------------------------------
// Interpolation
// ---------------------------------------------------------------------------------------------------

/// Elements of a chunk.
const GRAIN: usize = 16 * 1024;

type BlendFn = unsafe fn([*const f32; 2], [f32; 2], *mut f32, usize, bool);
type LaneFn = unsafe fn(*const f32, &Samples, *mut f32, Range<usize>);

/// The weighted sum of two rows of `n` elements, added to what is there if `adds`.
///
/// # Safety
/// All three rows hold `n` elements, y overlaps neither, and the processor has the instructions.
#[inline(always)]
unsafe fn blend_body<A: Arith>(x: [*const f32; 2], weights: [f32; 2], y: *mut f32, n: usize, adds: bool) {
    let sum = |i: usize, before: f32| {
        // SAFETY: `i` is below `n`.
        let (a, b) = unsafe { (x[0].add(i).read(), x[1].add(i).read()) };
        A::fma(b, weights[1], A::fma(a, weights[0], before))
    };
    if adds {
        for i in 0..n {
            // SAFETY: `i` is below `n`, which `y` has.
            unsafe { y.add(i).write(sum(i, y.add(i).read())) };
        }
    } else {
        for i in 0..n {
            // SAFETY: `i` is below `n`, which `y` has.
            unsafe { y.add(i).write(sum(i, 0.0)) };
        }
    }
}

dispatch! {
    fn blend(x: [*const f32; 2], weights: [f32; 2], y: *mut f32, n: usize, adds: bool) = blend_body
}

/// Resizes a piece of elements that lie side by side.
///
/// # Safety
/// `x` holds the elements that the samples name, `y` one for each of the output and is apart, the piece is of the output,
/// and the processor has the instructions.
#[inline(always)]
unsafe fn lane_body<A: Arith>(x: *const f32, samples: &Samples, y: *mut f32, piece: Range<usize>) {
    let n = samples.outside.len();
    let y = y.wrapping_add(piece.start);
    for tap in (0..samples.taps).step_by(2) {
        let (first, second) = samples.positions[tap * n..][..2 * n].split_at(n);
        let (weights, other_weights) = samples.weights[tap * n..][..2 * n].split_at(n);
        let positions = first[piece.clone()].iter().zip(&second[piece.clone()]);
        let weights = weights[piece.clone()].iter().zip(&other_weights[piece.clone()]);
        for (i, ((&a, &b), (&w, &v))) in positions.zip(weights).enumerate() {
            // SAFETY: positions lie within the lane.
            let (a, b) = unsafe { (x.add(a as usize).read(), x.add(b as usize).read()) };
            // SAFETY: `i` is below the number of elements of the piece.
            let before = if tap == 0 { 0.0 } else { unsafe { y.add(i).read() } };
            // SAFETY: `i` is below the number of elements of the piece, which `y` has.
            unsafe { y.add(i).write(A::fma(b, v, A::fma(a, w, before))) };
        }
    }
}

dispatch! { fn lane(x: *const f32, samples: &Samples, y: *mut f32, piece: Range<usize>) = lane_body }

/// Elements between two looks whether the run goes on; a multiple of 4.
const PIECE: usize = 1 << 16;

/// Calls `body` with pieces of `0..n`, of which each element costs so many operations, and looks between them.
///
/// # Errors
/// CANCELLED if the run is to end.
fn in_pieces(n: usize, cost: usize, pace: &mut Pace<'_>, mut body: impl FnMut(Range<usize>)) -> Result<()> {
    for start in (0..n).step_by(PIECE) {
        let piece = start..n.min(start + PIECE);
        pace.work(piece.len().saturating_mul(cost))?;
        body(piece);
    }
    Ok(())
}

fn interpolate(
    request: &PrepareRequest<'_, CpuDevice>,
    axes: &[Axis],
    mut samples: Vec<Option<Samples>>,
    outside: f32,
) -> Result<Prepared> {
    let isa = request.device.isa;
    let (host, blend, lane) = (request.host, blend(isa), lane(isa));
    let rank = axes.len();
    let usual = rank >= 2
        && samples.iter().flatten().count() == 2
        && samples[rank - 2..].iter().flatten().filter(|s| s.taps == 2 && !s.outside.contains(&true)).count()
            == 2;
    if usual && let (Some(cols), Some(rows)) = (samples.pop().flatten(), samples.pop().flatten()) {
        let planes = Planes {
            host,
            n: axes[..rank - 2].iter().map(|axis| axis.to).product(),
            from: [axes[rank - 2].from, axes[rank - 1].from],
            to: [axes[rank - 2].to, axes[rank - 1].to],
            rows,
            cols,
            blend,
            lane,
        };
        let bytes = Size::of(planes.slot_scratch()) * (host.n_slots() * size_of::<f32>());
        return Prepared::new(planes).with_room(bytes, 64);
    }

    // Those that shrink most come first, then the innermost, so that little lies between the passes.
    let mut order: Vec<usize> = (0..rank).filter(|&i| samples[i].is_some()).collect();
    let growth = |i: usize| axes[i].to as f64 / axes[i].from as f64;
    order.sort_by(|&a, &b| growth(a).total_cmp(&growth(b)).then(b.cmp(&a)));
    let mut now: Vec<usize> = axes.iter().map(|axis| axis.from).collect();
    let mut passes = Vec::with_capacity(order.len());
    // Passes write to the two halves of the workspace in turn, the last one to the output.
    let mut scratch = [0; 2];
    for (k, &i) in order.iter().enumerate() {
        let Some(samples) = samples[i].take() else {
            continue;
        };
        passes.push(Pass {
            outer: now[..i].iter().product(),
            from: axes[i].from,
            to: axes[i].to,
            inner: now[i + 1..].iter().product(),
            any_outside: samples.outside.contains(&true),
            samples,
        });
        now[i] = axes[i].to;
        if k + 1 < order.len() {
            // Between the passes there may be more than either end has.
            let n = Size::of_extents(&now).get("what lies between two passes of a resize")?;
            scratch[k % 2] = scratch[k % 2].max(n.next_multiple_of(16));
        }
    }
    let kernel =
        Interpolate { host, n: now.iter().product(), passes, scratch: scratch[0], outside, blend, lane };
    let bytes = (Size::of(scratch[0]) + scratch[1]) * size_of::<f32>();
    Prepared::new(kernel).with_room(bytes, 64)
}

/// The last two axes, two elements along each.
struct Planes {
    host: Host,
    n: usize,
    from: [usize; 2],
    to: [usize; 2],
    rows: Samples,
    cols: Samples,
    blend: BlendFn,
    lane: LaneFn,
}

/// Rows of the output that one chunk makes at least, so that few rows of the input are done twice.
const ROWS: usize = 32;

impl Planes {
    /// Numbers that a slot needs: two rows whose columns are resized.
    fn slot_scratch(&self) -> usize {
        2 * self.to[1].next_multiple_of(16)
    }
}

impl Launch<CpuDevice> for Planes {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let [from_rows, from_cols] = self.from;
        let [to_rows, to_cols] = self.to;
        if to_cols == 0 {
            return Ok(());
        }
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<f32>(0));
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let blocks = to_rows.div_ceil(ROWS);
        let grain = (GRAIN / (ROWS.min(to_rows) * to_cols).max(1)).max(1);
        self.host.parallel_for(self.n * blocks, grain, |range, slot| {
            let scratch = workspace.at(slot * self.slot_scratch());
            let wide = |which: usize| scratch.wrapping_add(which * self.slot_scratch() / 2);
            let mut pace = self.host.pace();
            for block in range {
                let plane = block / blocks;
                let first = block % blocks * ROWS;
                // The row of the input that each of the two holds.
                let mut held = [usize::MAX; 2];
                for row in first..to_rows.min(first + ROWS) {
                    let needed =
                        [self.rows.positions[row] as usize, self.rows.positions[to_rows + row] as usize];
                    let mut places = [0; 2];
                    for (k, &at) in needed.iter().enumerate() {
                        if let Some(which) = held.iter().position(|&held| held == at) {
                            places[k] = which;
                            continue;
                        }
                        // The one that the other row is not in.
                        let which = usize::from(held[0] == needed[1 - k]);
                        let source = x.at((plane * from_rows + at) * from_cols);
                        in_pieces(to_cols, self.cols.taps, &mut pace, |piece| {
                            // SAFETY: the row lies within the plane, the scratch is this slot's own, and
                            // the instructions are the device's.
                            unsafe { (self.lane)(source, &self.cols, wide(which), piece) };
                        })?;
                        held[which] = at;
                        places[k] = which;
                    }
                    let weights = [self.rows.weights[row], self.rows.weights[to_rows + row]];
                    let rows = places.map(|which| wide(which).cast_const());
                    let target = y.at((plane * to_rows + row) * to_cols);
                    in_pieces(to_cols, 2, &mut pace, |piece| {
                        let rows = rows.map(|row| row.wrapping_add(piece.start));
                        let target = target.wrapping_add(piece.start);
                        // SAFETY: both rows are in this slot's scratch, and the row of the output is no other chunk's.
                        unsafe { (self.blend)(rows, weights, target, piece.len(), false) };
                    })?;
                }
            }
            Ok(())
        })
    }
}

/// One axis that is resized, seen as the middle one of three.
struct Pass {
    outer: usize,
    from: usize,
    to: usize,
    inner: usize,
    samples: Samples,
    any_outside: bool,
}

struct Interpolate {
    host: Host,
    /// Elements of the output.
    n: usize,
    passes: Vec<Pass>,
    /// Numbers of the workspace that even passes write.
    scratch: usize,
    outside: f32,
    blend: BlendFn,
    lane: LaneFn,
}

impl Launch<CpuDevice> for Interpolate {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut source = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let output = SendPtr(operands.output_ptr::<f32>(0));
        if self.n == 0 {
            return Ok(());
        }
        let Some(last) = self.passes.len().checked_sub(1) else {
            return self.host.parallel_for(self.n, GRAIN, |range, _| {
                let (from, to) = (source.at(range.start), output.at(range.start));
                // SAFETY: nothing is resized, so that both have the same extents.
                unsafe { core::ptr::copy_nonoverlapping(from, to, range.len()) };
                Ok(())
            });
        };
        for (k, pass) in self.passes.iter().enumerate() {
            let target = match k {
                k if k == last => output,
                k => SendPtr(operands.workspace_ptr::<f32>().wrapping_add(k % 2 * self.scratch)),
            };
            self.run(pass, source, target)?;
            source = target;
        }
        Ok(())
    }
}

impl Interpolate {
    fn run(&self, pass: &Pass, x: SendPtr<f32>, y: SendPtr<f32>) -> Result<()> {
        match pass.inner {
            1 => self.lanes(pass, x, y),
            _ => self.rows(pass, x, y),
        }
    }

    /// The elements of the axis lie side by side.
    fn lanes(&self, pass: &Pass, x: SendPtr<f32>, y: SendPtr<f32>) -> Result<()> {
        let grain = (GRAIN / (pass.to * pass.samples.taps)).max(1);
        self.host.parallel_for(pass.outer, grain, |range, _| {
            let mut pace = self.host.pace();
            for outer in range {
                let (from, to) = (x.at(outer * pass.from), y.at(outer * pass.to));
                in_pieces(pass.to, pass.samples.taps, &mut pace, |piece| {
                    // SAFETY: the lane lies within both sides, of which chunks write their own lanes, and
                    // the instructions are the device's.
                    unsafe { (self.lane)(from, &pass.samples, to, piece) };
                })?;
                if pass.any_outside {
                    for (i, _) in pass.samples.outside.iter().enumerate().filter(|(_, o)| **o) {
                        // SAFETY: `i` lies within the lane of the output, which is this chunk's own.
                        unsafe { to.add(i).write(self.outside) };
                    }
                }
            }
            Ok(())
        })
    }

    /// The elements of the axis are rows.
    fn rows(&self, pass: &Pass, x: SendPtr<f32>, y: SendPtr<f32>) -> Result<()> {
        let (n, inner, samples) = (pass.to, pass.inner, &pass.samples);
        let grain = (GRAIN / (inner * samples.taps)).max(1);
        self.host.parallel_for(pass.outer * n, grain, |range, _| {
            let mut pace = self.host.pace();
            for row in range {
                let (outer, i) = (row / n, row % n);
                let target = y.at(row * inner);
                if samples.outside[i] {
                    // SAFETY: the row is this chunk's own.
                    unsafe { fill(target, inner, self.outside) };
                    continue;
                }
                for tap in (0..samples.taps).step_by(2) {
                    let taps = [tap * n + i, (tap + 1) * n + i];
                    let rows = taps.map(|k| {
                        let at = samples.positions[k] as usize;
                        x.at((outer * pass.from + at) * inner).cast_const()
                    });
                    let weights = taps.map(|k| samples.weights[k]);
                    in_pieces(inner, 2, &mut pace, |piece| {
                        let rows = rows.map(|row| row.wrapping_add(piece.start));
                        let target = target.wrapping_add(piece.start);
                        // SAFETY: the rows lie within both sides, and the instructions are the device's.
                        unsafe { (self.blend)(rows, weights, target, piece.len(), tap > 0) };
                    })?;
                }
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};
    use devbay_plugin_api::sdk::Element;

    #[test]
    fn planes_agree_with_the_definition() {
        let mut random = Chance::new(2);
        for ([rows, cols], [to_rows, to_cols]) in
            [([5, 7], [70, 9]), ([40, 33], [13, 80]), ([1, 4], [3, 1]), ([6, 6], [12, 6])]
        {
            let x = random.floats(6 * rows * cols, 1.0);
            // The two elements around a position, and the weight of the second.
            let around = |i: usize, from: usize, to: usize| {
                let at = (i as f64 + 0.5) * from as f64 / to as f64 - 0.5;
                let at = at.clamp(0.0, from as f64 - 1.0);
                (at as usize, (at as usize + 1).min(from - 1), at.fract())
            };
            let mut expected = Vec::new();
            for at in 0..6 * to_rows * to_cols {
                let (plane, row, col) = (at / (to_rows * to_cols), at / to_cols % to_rows, at % to_cols);
                let (r0, r1, v) = around(row, rows, to_rows);
                let (c0, c1, w) = around(col, cols, to_cols);
                let x = |r: usize, c: usize| f64::from(x[(plane * rows + r) * cols + c]);
                let line = |r: usize| x(r, c0) * (1.0 - w) + x(r, c1) * w;
                expected.push(line(r0) * (1.0 - v) + line(r1) * v);
            }
            let inputs = [
                Some(Array::of(&[2, 3, rows, cols], &x)),
                None,
                None,
                Some(Array::of(&[4], &[2i64, 3, to_rows as i64, to_cols as i64])),
            ];
            for isa in isas() {
                let output = [Some(Array::empty::<f32>(&[2, 3, to_rows, to_cols]))];
                let mode = [("mode", Value::Text("linear"))];
                let found = run(isa, "Resize", &mode, &inputs, &output).expect("resizes");
                let found = found[0].as_ref().expect("an output").elements::<f32>();
                for (at, (f, e)) in found.iter().zip(&expected).enumerate() {
                    assert!((f64::from(*f) - e).abs() < 1e-5, "{isa:?} {f} at {at}, expected {e}");
                }
            }
        }
    }

    /// Elements of all widths twice, four times and unevenly, in rows that fill vectors or do not.
    #[test]
    fn the_nearest_element_is_copied() {
        fn check<T: Element + PartialEq + std::fmt::Debug>(of: fn(usize) -> T) {
            for (rows, cols) in [(3, 1), (2, 7), (5, 16), (1, 33), (2, 100)] {
                for times in [1, 2, 3, 4] {
                    let x: Vec<T> = (0..2 * rows * cols).map(of).collect();
                    let to = [2, rows * times, cols * times];
                    let expected: Vec<T> = (0..to.iter().product())
                        .map(|i| {
                            let (plane, row, col) = (i / (to[1] * to[2]), i / to[2] % to[1], i % to[2]);
                            x[(plane * rows + row / times) * cols + col / times]
                        })
                        .collect();
                    for isa in isas() {
                        let inputs = [
                            Some(Array::of(&[2, rows, cols], &x)),
                            None,
                            None,
                            Some(Array::of(&[3], &to.map(|n| n as i64))),
                        ];
                        let attrs = [
                            ("mode", Value::Text("nearest")),
                            ("coordinate_transformation_mode", Value::Text("asymmetric")),
                            ("nearest_mode", Value::Text("floor")),
                        ];
                        let found = run(isa, "Resize", &attrs, &inputs, &[Some(Array::empty::<T>(&to))])
                            .expect("resizes");
                        assert_eq!(found[0].as_ref().expect("an output").elements::<T>(), expected);
                    }
                }
            }
        }
        check(|i| i as u8);
        check(|i| i as i16);
        check(|i| i as f32);
        check(|i| i as f64);
    }
}
