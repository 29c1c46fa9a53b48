//! Softmax and LogSoftmax along any axis. The largest element is subtracted first, so that no exponential
//! overflows. Shares that would be subnormal are 0: what multiplies them, as attention does, would take a hundred times as long
//! on some processors.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::cost;
use crate::kernels::elementwise::loops::{blocks, slice};
use crate::kernels::geometry::extents::{around, axis, expect_output, extents};
use crate::kernels::numbers::math;
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::vectors::{self, like};
use crate::kernels::numbers::widen;
use crate::lanes::{self, Lanes, unrolled};
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
/// Elements of rows that are worked on together, unless one has more, and such rows at most. What one row waits for, the others
/// fill: its largest element, its sum.
const ROWS_ELEMENTS: usize = 1024;
const ROWS_MAX: usize = 16;
/// Elements up to which a row is short.
const SHORT_ROW: usize = 12;
/// Elements after which sums are emptied into an f64.
const SUM_BLOCK: usize = 4096;
/// Vectors that are worked on at once.
const VECTORS: usize = 4;
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
    // SAFETY: `x` and `y` have the elements of the plan (# Safety).
    unsafe { any_body::<A, false>(x, y, plan, items) };
}

/// As [`softmax_body`].
///
/// # Safety
/// As there.
#[inline(always)]
unsafe fn log_softmax_body<A: Arith>(x: *const f32, y: *mut f32, plan: &Plan, items: Range<usize>) {
    // SAFETY: `x` and `y` have the elements of the plan (# Safety).
    unsafe { any_body::<A, true>(x, y, plan, items) };
}

/// # Safety
/// As for [`softmax_body`].
#[inline(always)]
unsafe fn any_body<A: Arith, const LOGARITHM: bool>(
    x: *const f32,
    y: *mut f32,
    plan: &Plan,
    items: Range<usize>,
) {
    if plan.inner == 1 {
        let is_short = plan.n <= SHORT_ROW;
        let n_together = ROWS_ELEMENTS / plan.n.max(1);
        let n_together = if is_short { n_together } else { n_together.clamp(1, ROWS_MAX) };
        for first in items.clone().step_by(n_together) {
            let (start, n_rows) = (first * plan.n, n_together.min(items.end - first));
            if is_short {
                // SAFETY: the items are rows of both operands.
                unsafe { short_rows::<A, LOGARITHM>(x.add(start), y.add(start), n_rows, plan.n) };
                continue;
            }
            // SAFETY: the items are rows of both operands; the instructions are those of `A`.
            unsafe { rows::<A::Lanes, LOGARITHM>(x.add(start), y.add(start), n_rows, plan.n) };
        }
        return;
    }
    for item in items {
        // SAFETY: `x` and `y` have the elements of the plan (# Safety), of which `item` is one.
        unsafe { softmax_columns::<A>(x, y, plan, item, LOGARITHM) };
    }
}

/// Rows that leave much of a vector empty: their exponentials are one loop.
///
/// # Safety
/// `x` and `y` have `n_rows * n` elements, at most [`ROWS_ELEMENTS`]; they may be the same.
#[inline(always)]
unsafe fn short_rows<A: Arith, const LOGARITHM: bool>(x: *const f32, y: *mut f32, n_rows: usize, n: usize) {
    if n == 0 {
        return;
    }
    let mut powers = [0f32; ROWS_ELEMENTS];
    for row in 0..n_rows {
        let (x, y) = (x.wrapping_add(row * n), y.wrapping_add(row * n));
        let mut largest = f32::LOWEST;
        for i in 0..n {
            // SAFETY: the row is one of `x` (# Safety), and nothing of it is written yet.
            largest = largest.larger(unsafe { x.add(i).read() });
        }
        for i in 0..n {
            // SAFETY: the row is one of both operands (# Safety).
            unsafe { y.add(i).write(x.add(i).read() - largest) };
        }
    }
    let to = powers.as_mut_ptr();
    blocks!(true, n_rows * n, to, [v = y.cast_const()] => math::exp_or_zero::<A>(v));
    for (row, powers) in powers.chunks_exact(n).take(n_rows).enumerate() {
        let y = y.wrapping_add(row * n);
        let sum: f64 = powers.iter().map(|&power| f64::from(power)).sum();
        let last = Last::of::<LOGARITHM>(sum);
        for (i, &power) in powers.iter().enumerate() {
            // SAFETY: the row is one of `y` (# Safety), where its differences are.
            unsafe {
                y.add(i).write(if LOGARITHM { y.add(i).read() - last.number } else { last.share(power) })
            };
        }
    }
}

/// Rows together, step by step.
///
/// # Safety
/// 1. `x` and `y` have `n_rows * n` elements; they may be the same. There are [`ROWS_MAX`] rows at most.
/// 2. The processor has the instructions.
#[inline(always)]
unsafe fn rows<L: Lanes, const LOGARITHM: bool>(x: *const f32, y: *mut f32, n_rows: usize, n: usize) {
    // SAFETY: the processor has the instructions (# Safety, 2).
    let mut largest = [unsafe { L::splat(0.0) }; ROWS_MAX];
    for (row, largest) in largest[..n_rows].iter_mut().enumerate() {
        // SAFETY: the row is one of `x` (# Safety, 1).
        *largest = unsafe { largest_of(x.wrapping_add(row * n), n) };
    }
    let mut last = [Last::default(); ROWS_MAX];
    for (row, (last, &largest)) in last.iter_mut().zip(&largest[..n_rows]).enumerate() {
        let (x, y) = (x.wrapping_add(row * n), y.wrapping_add(row * n));
        // SAFETY: the row is one of both operands (# Safety, 1), and nothing of it is written yet.
        let sum = unsafe { exponentials::<L, LOGARITHM>(x, y, n, largest) };
        *last = Last::of::<LOGARITHM>(sum);
    }
    for (row, (&last, &largest)) in last.iter().zip(&largest[..n_rows]).enumerate() {
        let y = y.wrapping_add(row * n);
        let from = if LOGARITHM { x.wrapping_add(row * n) } else { y.cast_const() };
        let (least, zero, last) = (like(largest, last.least), like(largest, 0.0), like(largest, last.number));
        for at in (0..n).step_by(L::N) {
            let n = L::N.min(n - at);
            // SAFETY: the elements are of the row (# Safety, 1).
            let v = unsafe { lanes::read::<L>(from.add(at), n) };
            let v = if LOGARITHM { v.sub(largest).sub(last) } else { v.if_below(least, zero, v).mul(last) };
            // SAFETY: the elements are of the row (# Safety, 1), and were read before.
            unsafe { lanes::write(v, y.add(at), n) };
        }
    }
}

/// What turns the exponentials of a row into shares, or its differences into logarithms.
#[derive(Clone, Copy, Default)]
struct Last {
    /// A factor, or a subtrahend.
    number: f32,
    /// The least exponential whose share is a normal number.
    least: f32,
}

impl Last {
    /// Of a row whose exponentials have this sum.
    #[inline(always)]
    fn of<const LOGARITHM: bool>(sum: f64) -> Self {
        let number = if LOGARITHM { sum.ln() } else { 1.0 / sum } as f32;
        // A little more, as factor and product are rounded.
        Self { number, least: (sum * (1.000_001 * f64::from(f32::MIN_POSITIVE))) as f32 }
    }

    /// The share of an exponential.
    #[inline(always)]
    fn share(self, power: f32) -> f32 {
        (if power < self.least { 0.0 } else { power }) * self.number
    }
}

/// The places of a vector's numbers, as numbers.
const PLACES: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];

/// The first `n` numbers of a vector, and `rest` behind them.
#[inline(always)]
fn first<L: Lanes>(v: L, n: usize, rest: L) -> L {
    // SAFETY: there is a vector, so there are its instructions; sixteen numbers are enough.
    let places = unsafe { L::load(PLACES.as_ptr()) };
    places.if_below(like(v, n as f32), v, rest)
}

/// The larger ones; NaN where one is.
#[inline(always)]
fn larger<L: Lanes>(a: L, b: L) -> L {
    b.at_least(a).or_nan(a)
}

/// The largest of `n` numbers, everywhere; NaN if one is.
///
/// # Safety
/// `x` has `n` numbers, and the processor the instructions.
#[inline(always)]
unsafe fn largest_of<L: Lanes>(x: *const f32, n: usize) -> L {
    // SAFETY: the processor has the instructions (# Safety).
    let lowest = unsafe { L::splat(f32::LOWEST) };
    let mut lanes = [lowest; VECTORS];
    // What is no number is kept apart, so that a step does not wait for it.
    let mut none = lowest;
    let mut at = 0;
    while at + VECTORS * L::N <= n {
        unrolled!(k below VECTORS {
            // SAFETY: the vector ends at `n` or before.
            let x = unsafe { L::load(x.add(at + k * L::N)) };
            lanes[k] = lanes[k].at_least(x);
            none = none.or_nan(x);
        });
        at += VECTORS * L::N;
    }
    while at + L::N <= n {
        // SAFETY: the vector ends at `n` or before.
        let x = unsafe { L::load(x.add(at)) };
        lanes[0] = lanes[0].at_least(x);
        none = none.or_nan(x);
        at += L::N;
    }
    if at < n {
        // SAFETY: as many numbers are left.
        let rest = first(unsafe { L::load_first(x.add(at), n - at) }, n - at, lowest);
        lanes[1] = lanes[1].at_least(rest);
        none = none.or_nan(rest);
    }
    let [a, b, c, d] = lanes;
    let mut all = a.at_least(b).at_least(c.at_least(d)).or_nan(none);
    let mut half = L::N / 2;
    while half > 0 {
        all = larger(all, all.turned(half as i32));
        half /= 2;
    }
    all
}

/// The sum of the exponentials of `n` numbers less `largest`, which are written unless `ONLY_SUM`.
///
/// # Safety
/// `x` and `y` have `n` numbers; they may be the same.
#[inline(always)]
unsafe fn exponentials<L: Lanes, const ONLY_SUM: bool>(
    x: *const f32,
    y: *mut f32,
    n: usize,
    largest: L,
) -> f64 {
    let zero = like(largest, 0.0);
    let mut total = 0.0;
    for block in (0..n).step_by(SUM_BLOCK) {
        let (mut at, end) = (block, n.min(block + SUM_BLOCK));
        let mut sums = [zero; VECTORS];
        while at + VECTORS * L::N <= end {
            unrolled!(k below VECTORS {
                // SAFETY: the vector ends at `n` or before.
                let e = vectors::exp_or_zero(unsafe { L::load(x.add(at + k * L::N)) }.sub(largest));
                if !ONLY_SUM {
                    // SAFETY: the vector ends at `n` or before, and was read before.
                    unsafe { e.store(y.add(at + k * L::N)) };
                }
                sums[k] = sums[k].add(e);
            });
            at += VECTORS * L::N;
        }
        while at < end {
            let n = L::N.min(end - at);
            // SAFETY: as many numbers are left.
            let e = vectors::exp_or_zero(unsafe { lanes::read::<L>(x.add(at), n) }.sub(largest));
            if !ONLY_SUM {
                // SAFETY: as many numbers are left, and were read before.
                unsafe { lanes::write(e, y.add(at), n) };
            }
            sums[0] = sums[0].add(if n == L::N { e } else { first(e, n, zero) });
            at += n;
        }
        total += L::sums(sums).into_iter().map(f64::from).sum::<f64>();
    }
    total
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
            *value = math::exp_or_zero::<A>(x - largest);
            *sum += f64::from(*value);
        }
        if !logarithm {
            // SAFETY: the tile lies within the output, and the values are locals.
            unsafe { core::ptr::copy_nonoverlapping(values.as_ptr(), y.add(at), width) };
        }
    }
    let mut last = [Last::default(); TILE];
    let last = &mut last[..width];
    for (last, &sum) in last.iter_mut().zip(&*sums) {
        *last = if logarithm { Last::of::<true>(sum) } else { Last::of::<false>(sum) };
    }
    let source = if logarithm { x } else { y.cast_const() };
    for at in rows {
        // SAFETY: the tile lies within the operand, and its row is written after this.
        let row = unsafe { slice(source.add(at), width) };
        for (((value, &last), &largest), &x) in values.iter_mut().zip(&*last).zip(&*largest).zip(row) {
            *value = if logarithm { (x - largest) - last.number } else { last.share(x) };
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

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use crate::kernels::testing::{Chance, isas};

    fn found(isa: Isa, op: &str, shape: [usize; 3], x: &[f32]) -> Vec<f32> {
        let inputs = [Some(Array::of(&shape, x))];
        let output = [Some(Array::empty::<f32>(&shape))];
        let found = run(isa, op, &[("axis", Value::Int(1))], &inputs, &output).expect(op);
        found[0].as_ref().expect("a result").elements::<f32>()
    }

    /// Rows and columns that fill vectors, tiles and blocks of a sum, or do not.
    #[test]
    fn both_ops_agree_with_their_definition() {
        let mut chance = Chance::new(4);
        for n in [1, 2, 3, 7, 8, 15, 16, 17, 49, 63, 64, 65, 128, 300, 1000, 4097, 9000] {
            for (outer, inner) in [(1, 1), (5, 1), (19, 1), (2, 3), (1, 70)] {
                if outer * inner > 5 && n > 300 {
                    continue;
                }
                let x = chance.floats(outer * n * inner, 20.0);
                let (mut expected, mut logarithms) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                for lane in 0..outer * inner {
                    let at = |i: usize| (lane / inner * n + i) * inner + lane % inner;
                    let largest = (0..n).map(|i| f64::from(x[at(i)])).fold(f64::NEG_INFINITY, f64::max);
                    let sum: f64 = (0..n).map(|i| (f64::from(x[at(i)]) - largest).exp()).sum();
                    for i in 0..n {
                        let less = f64::from(x[at(i)]) - largest;
                        (expected[at(i)], logarithms[at(i)]) = (less.exp() / sum, less - sum.ln());
                    }
                }
                for isa in isas() {
                    let results = [("Softmax", &expected), ("LogSoftmax", &logarithms)];
                    for (op, expected) in results {
                        for (f, &e) in found(isa, op, [outer, n, inner], &x).iter().zip(expected) {
                            // The difference from the largest is rounded once more.
                            let off = (f64::from(*f) - e).abs();
                            assert!(
                                off <= 4e-6 * e.abs() + 1e-30 + if op == "Softmax" { 0.0 } else { 1e-6 },
                                "{op} of {n}, {isa:?}: {f}, not {e}"
                            );
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn shares_are_normal_numbers_or_zeros() {
        for shape @ [outer, n, inner] in [[5, 9, 1], [5, 70, 1], [2, 40, 70]] {
            // From 0 down to -99.9: exponentials below the normal numbers, and sums that make shares of others so.
            let along = |at: usize| at / inner % n;
            let x: Vec<f32> =
                (0..outer * n * inner).map(|at| (along(at) * 919 % 1000) as f32 / -10.0).collect();
            for isa in isas() {
                let y = found(isa, "Softmax", shape, &x);
                assert!(y.iter().all(|y| !y.is_subnormal()) && y.contains(&0.0), "{isa:?}");
                assert!(y.iter().any(|&y| y > 0.0 && y < 1e-30), "{isa:?}: smaller ones stay");
            }
        }
    }

    /// What is no number makes all of its row none, and of no other; so does what is infinite, but for minus infinity.
    #[test]
    fn specials_stay_within_their_row() {
        let mut chance = Chance::new(5);
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for n in [1, 5, 16, 37, 130, 5000] {
            for isa in isas() {
                for at in [0, n / 2, n - 1] {
                    let mut x = chance.floats(4 * n, 2.0);
                    (x[at], x[n + at], x[2 * n + at]) = (nan, inf, -inf);
                    for op in ["Softmax", "LogSoftmax"] {
                        let y = found(isa, op, [4, n, 1], &x);
                        assert!(y[..2 * n].iter().all(|y| y.is_nan()), "{op} of {n}, {isa:?}");
                        let below = if op == "Softmax" { 0.0 } else { -inf };
                        let is_right = |i: usize, y: f32| match n {
                            1 => y.is_nan(),
                            _ if i == at => y == below,
                            _ => y.is_finite(),
                        };
                        assert!(
                            y[2 * n..3 * n].iter().enumerate().all(|(i, &y)| is_right(i, y)),
                            "{op} of {n}"
                        );
                        assert!(y[3 * n..].iter().all(|y| y.is_finite()), "{op} of {n}, {isa:?}");
                    }
                }
                assert!(found(isa, "Softmax", [1, n, 1], &vec![-inf; n]).iter().all(|y| y.is_nan()));
            }
        }
    }
}
