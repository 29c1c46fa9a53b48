//! ArgMax and ArgMin: where the largest or smallest element along an axis is. NaN counts as both.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::loops::slice;
use crate::kernels::geometry::extents::{around, axis, extents};
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::widen;
use crate::kernels::reduction::fold::{Extreme, Fold, Highest, Lowest, Rule};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const TYPES: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32, F16, BF16]), TypeVar::of(&[I64])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[kernel("ArgMax", prepare::<Highest>), kernel("ArgMin", prepare::<Lowest>)];

const fn kernel(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<CpuDevice> {
    descriptor(name, 13, prepare)
        .types(TYPES)
        .adapted(widen::floats)
        .cost(|request| cost::per_input(request, 2))
}

/// Columns that are worked on at once, and elements of a row that are searched at once.
const TILE: usize = 64;
/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 32 * 1024;

#[derive(Clone, Copy)]
struct Plan {
    /// Extents before, at and after the axis.
    outer: usize,
    n: usize,
    inner: usize,
    /// Of equal elements, the last one.
    last: bool,
}

impl Plan {
    /// Units of parallel work: tiles of results.
    fn n_items(&self) -> usize {
        self.outer * self.inner.div_ceil(TILE)
    }
}

type Body = unsafe fn(*const u8, *mut i64, &Plan, Range<usize>);

dispatch! {
    fn body<T: Number, R: Rule>(x: *const u8, y: *mut i64, plan: &Plan, items: Range<usize>) = arg_body
}

#[inline(always)]
unsafe fn arg_body<A: Arith, T: Number, R: Rule>(
    x: *const u8,
    y: *mut i64,
    plan: &Plan,
    items: Range<usize>,
) {
    let (n, inner) = (plan.n, plan.inner);
    // SAFETY: the caller lends the input, and nothing is in place.
    let x = unsafe { slice(x.cast::<T>(), plan.outer * n * inner) };
    let n_tiles = inner.div_ceil(TILE);
    let mut places = [0i32; TILE];
    for item in items {
        let first = item % n_tiles * TILE;
        let width = TILE.min(inner - first);
        let x = &x[item / n_tiles * n * inner..][..n * inner];
        if inner == 1 {
            places[0] = in_row::<A, T, R>(x, plan.last);
        } else {
            in_columns::<T, R>(x, inner, first, plan.last, &mut places[..width]);
        }
        let at = item / n_tiles * inner + first;
        for (k, &place) in places[..width].iter().enumerate() {
            // SAFETY: the tiles cover the results, which the caller lends, and a chunk has its own.
            unsafe { y.add(at + k).write(i64::from(place)) };
        }
    }
}

/// Equal, or both NaN.
#[inline(always)]
fn same<T: Number>(a: T, b: T) -> bool {
    (a == b) | (a.is_nan() & b.is_nan())
}

/// First the extreme, then where it is: two loops that vectorise.
#[inline(always)]
fn in_row<A: Arith, T: Number, R: Rule>(x: &[T], last: bool) -> i32 {
    // SAFETY: the processor has the instructions of `A`, whose bodies alone come here.
    let extreme = unsafe { Extreme::<T, R>::of_row::<A>(x, T::ZERO) };
    let n_tiles = x.len().div_ceil(TILE);
    for i in 0..n_tiles {
        let tile = if last { n_tiles - 1 - i } else { i };
        let elements = &x[tile * TILE..x.len().min((tile + 1) * TILE)];
        let mut found = false;
        for &element in elements {
            found |= same(element, extreme);
        }
        if found {
            let mut hits = elements.iter().map(|&element| same(element, extreme));
            let place = if last { hits.rposition(|hit| hit) } else { hits.position(|hit| hit) };
            return (tile * TILE + place.unwrap_or(0)) as i32;
        }
    }
    0
}

/// Row by row, the extremes up to there and where they are.
#[inline(always)]
fn in_columns<T: Number, R: Rule>(x: &[T], inner: usize, first: usize, last: bool, places: &mut [i32]) {
    let width = places.len();
    let mut extremes = [R::start::<T>(); TILE];
    let extremes = &mut extremes[..width];
    extremes.copy_from_slice(&x[first..first + width]);
    places.fill(0);
    for (i, row) in x.chunks_exact(inner).enumerate().skip(1) {
        let i = i as i32;
        let row = &row[first..first + width];
        for ((place, extreme), &element) in places.iter_mut().zip(&mut *extremes).zip(row) {
            let new = R::combine(*extreme, element);
            // Of equal elements the first one leaves the extreme as it is, and the last one is it.
            let moves = if last { same(element, new) } else { !same(*extreme, new) };
            *place = if moves { i } else { *place };
            *extreme = new;
        }
    }
}

struct Arg {
    host: Host,
    plan: Plan,
    grain: usize,
    body: Body,
}

impl Launch<CpuDevice> for Arg {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<i64>(0));
        self.host.parallel_for(self.plan.n_items(), self.grain, |items, _| {
            // SAFETY: the operands have the shapes that `prepare` was told; chunks are apart; the
            // instructions are the device's.
            unsafe { (self.body)(x.at(0), y.at(0), &self.plan, items) };
            Ok(())
        })
    }
}

fn prepare<R: Rule>(request: &Request<'_>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let extents = extents(x)?;
    let axis = request.attrs.int("axis", 0)?;
    let last = request.attrs.int("select_last_index", 0)? != 0;
    let [outer, n, inner] = match extents.len() {
        // A scalar counts as one element.
        0 => [1, 1, 1],
        rank => around(&extents, self::axis(axis, rank)?),
    };
    let n_out = request.required_output(0)?.n_elements();
    if n_out != outer * inner {
        return Err(Error::invalid(format!("an output of {n_out} elements, expected {}", outer * inner)));
    }
    if i32::try_from(n).is_err() {
        return Err(Error::unsupported(format!("{n} elements along the axis")));
    }
    if n == 0 && n_out > 0 {
        return Err(Error::invalid("the extreme of no elements"));
    }
    let plan = Plan { outer, n, inner, last };
    let isa = request.device.isa;
    Ok(Prepared::new(Arg {
        host: request.host,
        plan,
        grain: (GRAIN / (n * inner.min(TILE)).max(1)).max(1),
        body: match x.dtype() {
            I64 => body::<i64, R>(isa),
            I32 => body::<i32, R>(isa),
            _ => body::<f32, R>(isa),
        },
    }))
}
