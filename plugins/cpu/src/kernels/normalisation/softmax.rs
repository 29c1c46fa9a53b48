//! Softmax and LogSoftmax along any axis. The largest element is subtracted first, so that no exponential
//! overflows.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{blocks, slice};
use crate::kernels::geometry::extents::{around, axis, expect_output, extents};
use crate::kernels::numbers::math;
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::widen;
use crate::kernels::reduction::fold::{self, Extreme, Highest, LogSumExp, Sum};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FLOAT: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel("Softmax", |request| prepare(request, softmax)),
    kernel("LogSoftmax", |request| prepare(request, log_softmax)),
];

const fn kernel(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<CpuDevice> {
    descriptor(name, 13, prepare)
        .types(FLOAT)
        .in_place(&[0])
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, 25))
}

/// Columns that are worked on at once.
const TILE: usize = 64;
/// Elements of rows that are worked on together, unless one has more.
const ROWS_AT_ONCE: usize = 1024;
/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 8 * 1024;

/// Extents at and after the axis.
#[derive(Clone, Copy)]
pub(crate) struct Plan {
    n: usize,
    inner: usize,
}

impl Plan {
    /// For rows of so many elements.
    pub(crate) fn of_rows(n: usize) -> Self {
        Self { n, inner: 1 }
    }
}

pub(crate) type Body = unsafe fn(*const f32, *mut f32, &Plan, Range<usize>);

dispatch! { pub(crate) fn softmax(x: *const f32, y: *mut f32, plan: &Plan, items: Range<usize>) = softmax_body }
dispatch! { fn log_softmax(x: *const f32, y: *mut f32, plan: &Plan, items: Range<usize>) = log_softmax_body }

/// Items are rows, or tiles of columns where the axis is not the last.
///
/// # Safety
/// As for every loop: `x` and `y` have the elements of the plan, and may be the same memory.
#[inline(always)]
unsafe fn softmax_body<A: Arith>(x: *const f32, y: *mut f32, plan: &Plan, items: Range<usize>) {
    if plan.inner == 1 {
        let rows_at_once = (ROWS_AT_ONCE / plan.n.max(1)).max(1);
        for first in items.clone().step_by(rows_at_once) {
            let (start, n_rows) = (first * plan.n, rows_at_once.min(items.end - first));
            // SAFETY: the items are rows of both operands.
            unsafe { softmax_rows::<A>(x.add(start), y.add(start), n_rows, plan.n) };
        }
        return;
    }
    for item in items {
        // SAFETY: `x` and `y` have the elements of the plan (# Safety), of which `item` is one.
        unsafe { softmax_columns::<A>(x, y, plan, item, false) };
    }
}

/// As [`softmax_body`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn log_softmax_body<A: Arith>(x: *const f32, y: *mut f32, plan: &Plan, items: Range<usize>) {
    for item in items {
        if plan.inner == 1 {
            let start = item * plan.n;
            // SAFETY: the item is a row of both operands.
            unsafe { log_softmax_row::<A>(x.add(start), y.add(start), plan.n) };
        } else {
            // SAFETY: `x` and `y` have the elements of the plan (# Safety), of which `item` is one.
            unsafe { softmax_columns::<A>(x, y, plan, item, true) };
        }
    }
}

/// Rows together, whose exponentials are one loop: rows of attention are shorter than what that loop does at once.
///
/// # Safety
/// `x` and `y` have `n_rows * n` elements; they may be the same.
#[inline(always)]
unsafe fn softmax_rows<A: Arith>(x: *const f32, y: *mut f32, n_rows: usize, n: usize) {
    for row in 0..n_rows {
        let (x, y) = (x.wrapping_add(row * n), y.wrapping_add(row * n));
        // SAFETY: the caller lends them, and nothing of this row is written yet.
        let largest = fold::row::<A, Extreme<f32, Highest>>(unsafe { slice(x, n) }, 0.0);
        blocks!(false, n, y, [v = x] => v - largest);
    }
    blocks!(true, n_rows * n, y, [v = y.cast_const()] => math::exp::<A>(v));
    for row in 0..n_rows {
        let y = y.wrapping_add(row * n);
        // SAFETY: the loops have written them; the next one comes after the sum.
        let sum = fold::row::<A, Sum<f32>>(unsafe { slice(y, n) }, 0.0);
        let scale = (1.0 / sum) as f32;
        blocks!(false, n, y, [v = y.cast_const()] => v * scale);
    }
}

/// # Safety
/// `x` and `y` have `n` elements; they may be the same.
#[inline(always)]
unsafe fn log_softmax_row<A: Arith>(x: *const f32, y: *mut f32, n: usize) {
    // SAFETY: the caller lends them, and nothing is written before their last use here.
    let row = unsafe { slice(x, n) };
    let largest = fold::row::<A, Extreme<f32, Highest>>(row, 0.0);
    let log_sum = fold::row::<A, LogSumExp>(row, largest).ln() as f32;
    blocks!(false, n, y, [v = x] => (v - largest) - log_sum);
}

/// A tile of columns, row by row.
///
/// # Safety
/// `x` and `y` have the elements of the plan; they may be the same.
#[inline(always)]
unsafe fn softmax_columns<A: Arith>(x: *const f32, y: *mut f32, plan: &Plan, item: usize, logarithm: bool) {
    let n_tiles = plan.inner.div_ceil(TILE);
    let first = item % n_tiles * TILE;
    let width = TILE.min(plan.inner - first);
    let start = item / n_tiles * plan.n * plan.inner + first;
    let rows = (0..plan.n).map(|i| start + i * plan.inner);
    let (mut largest, mut sums) = ([f32::LOWEST; TILE], [0f64; TILE]);
    let (largest, sums) = (&mut largest[..width], &mut sums[..width]);
    for at in rows.clone() {
        // SAFETY: the tile lies within the operand, and nothing is written yet.
        let row = unsafe { slice(x.add(at), width) };
        for (largest, &x) in largest.iter_mut().zip(row) {
            *largest = largest.larger(x);
        }
    }
    let mut values = [0f32; TILE];
    let values = &mut values[..width];
    for at in rows.clone() {
        // SAFETY: the tile lies within the operand, and its row is written after this.
        let row = unsafe { slice(x.add(at), width) };
        for (((value, sum), &largest), &x) in values.iter_mut().zip(&mut *sums).zip(&*largest).zip(row) {
            *value = math::exp::<A>(x - largest);
            *sum += f64::from(*value);
        }
        if !logarithm {
            // SAFETY: the tile lies within the output, and the values are locals.
            unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), y.add(at), width) };
        }
    }
    // Turns a row into its results: a factor, or a subtrahend.
    let mut last = [0f32; TILE];
    let last = &mut last[..width];
    for (last, &sum) in last.iter_mut().zip(&*sums) {
        *last = if logarithm { sum.ln() } else { 1.0 / sum } as f32;
    }
    let source = if logarithm { x } else { y.cast_const() };
    for at in rows {
        // SAFETY: the tile lies within the operand, and its row is written after this.
        let row = unsafe { slice(source.add(at), width) };
        for (((value, &last), &largest), &x) in values.iter_mut().zip(&*last).zip(&*largest).zip(row) {
            *value = if logarithm { (x - largest) - last } else { x * last };
        }
        // SAFETY: the tile lies within the output, and the values are locals.
        unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), y.add(at), width) };
    }
}

struct Softmax {
    host: Host,
    plan: Plan,
    n_items: usize,
    grain: usize,
    body: Body,
}

impl Launch<CpuDevice> for Softmax {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<f32>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<f32>(0));
        self.host.parallel_for(self.n_items, self.grain, |items, _| {
            // SAFETY: the operands have the shape that `prepare` was told; chunks are apart; the
            // instructions are the device's.
            unsafe { (self.body)(x.at(0), y.at(0), &self.plan, items) };
            Ok(())
        })
    }
}

fn prepare(request: &Request<'_>, body: fn(Isa) -> Body) -> Result<Prepared> {
    let extents = extents(request.required_input(0)?)?;
    expect_output(request, 0, &extents)?;
    let axis = request.attrs.int("axis", -1)?;
    let [outer, n, inner] = match extents.len() {
        // A scalar counts as one element.
        0 => [1, 1, 1],
        rank => around(&extents, self::axis(axis, rank)?),
    };
    Ok(Prepared::new(Softmax {
        host: request.host,
        plan: Plan { n, inner },
        n_items: if n == 0 { 0 } else { outer * inner.div_ceil(TILE) },
        grain: (GRAIN / (n * inner.min(TILE)).max(1)).max(1),
        body: body(request.device.isa),
    }))
}
