//! Reductions over any set of axes.
//!
//! Neighbouring dimensions that are both kept or both reduced are one, so that kept and reduced groups
//! alternate. The innermost group decides the loop: if it is reduced, each result comes from
//! contiguous rows ([`crate::kernels::reduction::fold`]); if it is kept, rows are added to a row of results, in columns of f32 that are
//! emptied into an f64 after a fixed number of rows. The order depends on the shape alone, so that a sum has the same
//! bits on every instruction set and any number of threads.

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::loops::slice;
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::shape::RANK_MAX;
use crate::kernels::numbers::number::Number;
use crate::kernels::numbers::widen;
use crate::kernels::reduction::fold::{
    All, Extreme, Fold, Highest, L1, L2, LogSum, LogSumExp, Lowest, Mean, Product, Reduce, Rule, Sum,
    SumSquare,
};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_ops::read::reduced_axes;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::marker::PhantomData;
use std::ops::Range;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const AXES: TypeVar = TypeVar::of(&[I64]);
const FLOAT: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES), AXES];
const NUMBERS: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32, F16, BF16]), AXES];
const ORDERED: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32, U8, I8, BOOL, F16, BF16]), AXES];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel("ReduceSum", 13, NUMBERS, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Sum<i64>>(request),
        I32 => prepare::<Sum<i32>>(request),
        _ => prepare::<Sum<f32>>(request),
    }),
    kernel("ReduceMean", 18, NUMBERS, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Mean<i64>>(request),
        I32 => prepare::<Mean<i32>>(request),
        _ => prepare::<Mean<f32>>(request),
    })
    .doc("the mean of integers is without its fraction"),
    kernel("ReduceMax", 20, ORDERED, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Extreme<i64, Highest>>(request),
        I32 => prepare::<Extreme<i32, Highest>>(request),
        I8 => prepare::<Extreme<i8, Highest>>(request),
        U8 | BOOL => prepare::<Extreme<u8, Highest>>(request),
        _ => prepare::<Extreme<f32, Highest>>(request),
    }),
    kernel("ReduceMin", 20, ORDERED, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Extreme<i64, Lowest>>(request),
        I32 => prepare::<Extreme<i32, Lowest>>(request),
        I8 => prepare::<Extreme<i8, Lowest>>(request),
        U8 => prepare::<Extreme<u8, Lowest>>(request),
        BOOL => prepare::<All>(request),
        _ => prepare::<Extreme<f32, Lowest>>(request),
    }),
    kernel("ReduceProd", 18, NUMBERS, |request| match request.required_input(0)?.dtype() {
        I64 => prepare::<Product<i64>>(request),
        I32 => prepare::<Product<i32>>(request),
        _ => prepare::<Product<f32>>(request),
    }),
    kernel("ReduceSumSquare", 18, FLOAT, prepare::<SumSquare>),
    kernel("ReduceL1", 18, FLOAT, prepare::<L1>),
    kernel("ReduceL2", 18, FLOAT, prepare::<L2>),
    kernel("ReduceLogSum", 18, FLOAT, prepare::<LogSum>),
    kernel("ReduceLogSumExp", 18, FLOAT, prepare::<LogSumExp>)
        .cost(|request| cost::per_input(request, LogSumExp::FLOPS)),
];

/// The descriptor of a reduction whose axes are input 1.
const fn kernel(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare)
        .types(types)
        .adapted(widen::floats)
        .cost(|request| cost::per_input(request, 1))
}
/// Rows after which columns are emptied into totals.
const COLUMN_BLOCK: usize = 32;
/// Columns that are worked on at once.
const TILE: usize = 256;
/// Columns below which rows are joined.
const WIDE: usize = 64;
/// Elements of a chunk of a parallel loop, and of a piece of a large reduction.
const GRAIN: usize = 64 * 1024;
/// Elements that are reduced in the time that a row takes besides its own: rows of two elements took 3 ns each.
const ROW: usize = 32;
/// A reduction with fewer results than this is cut into pieces.
const ITEMS_MIN: usize = 16;
/// Pieces of a reduction, at most.
const PIECES_MAX: usize = 64;

/// Nested loops over dimensions of the input, innermost first.
#[derive(Clone, Copy, Default)]
struct Nest {
    rank: usize,
    extents: [usize; RANK_MAX],
    strides: [usize; RANK_MAX],
}

impl Nest {
    fn push(&mut self, extent: usize, stride: usize) -> Result<()> {
        if self.rank == RANK_MAX {
            return Err(Error::unsupported(format!("a reduction with more than {RANK_MAX} groups of axes")));
        }
        self.extents[self.rank] = extent;
        self.strides[self.rank] = stride;
        self.rank += 1;
        Ok(())
    }

    /// Takes the innermost dimension out.
    fn pop_innermost(&mut self) -> usize {
        let extent = self.extents[0];
        self.extents.copy_within(1.., 0);
        self.strides.copy_within(1.., 0);
        self.rank -= 1;
        extent
    }

    /// Iterations.
    fn len(&self) -> usize {
        self.extents[..self.rank].iter().product()
    }

    /// Returns the beginning of iteration `i` in the input.
    #[inline(always)]
    fn offset(&self, mut i: usize) -> usize {
        let mut offset = 0;
        for d in 0..self.rank {
            let position = if d + 1 == self.rank {
                i
            } else {
                let position = i % self.extents[d];
                i /= self.extents[d];
                position
            };
            offset += position * self.strides[d];
        }
        offset
    }
}

/// The loops of a reduction.
#[derive(Clone, Copy)]
struct Plan {
    /// True if the innermost group is kept.
    by_columns: bool,
    /// Extent of the innermost group.
    inner: usize,
    /// The other groups.
    kept: Nest,
    reduced: Nest,
    n_steps: usize,
    /// Copies of the columns of the result side by side in `inner`.
    n_copies: usize,
    n_in: usize,
    n_out: usize,
    /// Elements that make one result.
    count: usize,
    /// Units of parallel work: results, or tiles of them.
    n_items: usize,
    /// Parts into which the elements of an item are cut.
    n_pieces: usize,
}

impl Plan {
    /// `reduced[d]` says whether dimension `d` is reduced.
    fn new(extents: &[usize], reduced: &[bool], splits: bool) -> Result<Self> {
        let mut nests = [Nest::default(); 2];
        let (mut stride, mut last, mut by_columns) = (1, None, true);
        for (&extent, &is_reduced) in extents.iter().zip(reduced).rev() {
            if extent == 1 {
                continue;
            }
            let nest = &mut nests[usize::from(is_reduced)];
            match last {
                Some(before) if before == is_reduced => nest.extents[nest.rank - 1] *= extent,
                _ => nest.push(extent, stride)?,
            }
            if last.is_none() {
                by_columns = !is_reduced;
            }
            last = Some(is_reduced);
            stride *= extent;
        }
        let [mut kept, mut reduced] = nests;
        let (n_out, count) = (kept.len(), reduced.len());
        let inner = match (by_columns, last) {
            (_, None) => 1,
            (true, _) => kept.pop_innermost(),
            (false, _) => reduced.pop_innermost(),
        };
        let (mut inner, mut n_copies) = (inner, 1);
        if by_columns && reduced.rank > 0 && splits {
            // Few columns would leave most of a vector empty. Several rows, which follow each other, are one
            // then, and the copies of a column are combined in the end.
            let n_rows = reduced.extents[0];
            n_copies = (1..=WIDE / inner.max(1)).rev().find(|n| n_rows % n == 0).unwrap_or(1);
            reduced.extents[0] /= n_copies;
            reduced.strides[0] *= n_copies;
            inner *= n_copies;
        }
        let n_items = match by_columns {
            true => kept.len() * inner.div_ceil(TILE),
            false => kept.len(),
        };
        let n_steps = reduced.len();
        let width = if by_columns { inner.min(TILE) } else { 1 };
        // A piece has a grain of elements, and a step at least.
        let pieces = (width * count / GRAIN).min(if n_steps > 1 { n_steps } else { count });
        let n_pieces = match splits && n_items < ITEMS_MIN && pieces > 1 {
            true => pieces.min(PIECES_MAX),
            false => 1,
        };
        Ok(Self {
            by_columns,
            inner,
            kept,
            reduced,
            n_steps,
            n_copies,
            n_in: n_out * count,
            n_out,
            count,
            n_items,
            n_pieces,
        })
    }

    /// Items of a chunk of a parallel loop.
    fn grain(&self) -> usize {
        let work = match self.by_columns {
            true => self.inner.min(TILE) * self.count,
            false => self.count.saturating_add(ROW),
        };
        (GRAIN / work.max(1)).max(1)
    }

    /// The steps of a piece, and the part of a row if there is one step only.
    #[inline(always)]
    fn piece(&self, piece: usize) -> (Range<usize>, Range<usize>) {
        let share = |n: usize| n * piece / self.n_pieces..n * (piece + 1) / self.n_pieces;
        if self.by_columns || self.n_steps > 1 {
            (share(self.n_steps), 0..self.inner)
        } else {
            (0..self.n_steps, share(self.inner))
        }
    }
}

type Body = unsafe fn(*const u8, *mut u8, &Plan, Range<usize>, usize);

dispatch! {
    /// One piece of some items. Writes results to `out`; if there are several pieces, then totals.
    fn body<Op: Reduce>(x: *const u8, out: *mut u8, plan: &Plan, items: Range<usize>, piece: usize) = reduce_body
}

/// # Safety
/// 1. `x` has the elements of the plan, `out` its results or the totals of all pieces.
/// 2. `items` and `piece` are of the plan, and no other thread works on them.
#[inline(always)]
unsafe fn reduce_body<A: Arith, Op: Reduce>(
    x: *const u8,
    out: *mut u8,
    plan: &Plan,
    items: Range<usize>,
    piece: usize,
) {
    // SAFETY: the caller lends the input, and the output is other memory (nothing here is in place).
    let x = unsafe { slice(x.cast::<Op::In>(), plan.n_in) };
    let results = Results::<Op> { out, plan, piece, op: PhantomData };
    if plan.by_columns {
        // SAFETY: `x` and the results are of the plan (# Safety, 1), and `items` and `piece` are this caller's (2).
        unsafe { columns::<A, Op>(x, plan, items, piece, results) };
    } else {
        // SAFETY: `x` and the results are of the plan (# Safety, 1), and `items` and `piece` are this caller's (2).
        unsafe { rows::<A, Op>(x, plan, items, piece, results) };
    }
}

/// Destination of results.
struct Results<'a, Op> {
    out: *mut u8,
    plan: &'a Plan,
    piece: usize,
    op: PhantomData<Op>,
}

impl<Op: Reduce> Results<'_, Op> {
    /// # Safety
    /// 1. `out` has `n_out` results, or as many totals for each piece if there are several.
    /// 2. `at` is below `n_out`, and no other thread writes it.
    #[inline(always)]
    unsafe fn write(&self, at: usize, total: Op::Total, shift: Op::In) {
        if self.plan.n_pieces == 1 {
            let result = Op::finish(total, self.plan.count, shift);
            // SAFETY: there are `n_out` results (# Safety, 1), and `at` is below that and this caller's (2).
            unsafe { self.out.cast::<Op::In>().add(at).write(result) };
        } else {
            let at = self.piece * self.plan.n_out + at;
            // SAFETY: there are `n_out` totals for each piece (# Safety, 1), and this one is this caller's (2).
            unsafe { self.out.cast::<Op::Total>().add(at).write(total) };
        }
    }
}

/// Returns what `map` is given for elements whose largest is `largest`: not an infinity, because the difference of
/// two is NaN.
#[inline(always)]
fn shift<T: Number>(largest: T) -> T {
    if largest == T::LOWEST || largest == T::HIGHEST { T::ZERO } else { largest }
}

/// Items are results, each of one or several rows.
///
/// # Safety
/// As for [`reduce_body`].
#[inline(always)]
unsafe fn rows<A: Arith, Op: Reduce>(
    x: &[Op::In],
    plan: &Plan,
    items: Range<usize>,
    piece: usize,
    results: Results<'_, Op>,
) {
    let (steps, part) = plan.piece(piece);
    for item in items {
        let start = plan.kept.offset(item);
        let part = |step| {
            let start = start + plan.reduced.offset(step);
            &x[start + part.start..start + part.end]
        };
        let mut largest = Op::In::ZERO;
        if Op::SHIFTED {
            largest = Op::In::LOWEST;
            for step in steps.clone() {
                // SAFETY: the processor has the instructions of `A`, whose bodies alone come here.
                let of_row = unsafe { Extreme::<Op::In, Highest>::of_row::<A>(part(step), Op::In::ZERO) };
                largest = largest.larger(of_row);
            }
            largest = shift(largest);
        }
        let mut total = Op::Rule::start::<Op::Total>();
        for step in steps.clone() {
            // SAFETY: the processor has the instructions of `A`, whose bodies alone come here.
            let of_row = unsafe { Op::of_row::<A>(part(step), largest) };
            total = Op::Rule::combine(total, of_row);
        }
        // SAFETY: the item is a result of the plan, and this call's own.
        unsafe { results.write(item, total, largest) };
    }
}

/// Items are tiles of columns.
///
/// # Safety
/// As for [`reduce_body`].
#[inline(always)]
unsafe fn columns<A: Arith, Op: Reduce>(
    x: &[Op::In],
    plan: &Plan,
    items: Range<usize>,
    piece: usize,
    results: Results<'_, Op>,
) {
    let n_tiles = plan.inner.div_ceil(TILE);
    let (steps, _) = plan.piece(piece);
    let mut lanes = [Op::Rule::start::<Op::Lane>(); TILE];
    let mut totals = [Op::Rule::start::<Op::Total>(); TILE];
    let mut shifts = [Op::In::ZERO; TILE];
    for item in items {
        let first = item % n_tiles * TILE;
        let n = TILE.min(plan.inner - first);
        let start = plan.kept.offset(item / n_tiles) + first;
        let part = |step| {
            let start = start + plan.reduced.offset(step);
            &x[start..start + n]
        };
        let (lanes, totals, shifts) = (&mut lanes[..n], &mut totals[..n], &mut shifts[..n]);
        if Op::SHIFTED {
            shifts.fill(Op::In::LOWEST);
            for step in steps.clone() {
                for (largest, &x) in shifts.iter_mut().zip(part(step)) {
                    *largest = largest.larger(x);
                }
            }
            for largest in &mut *shifts {
                *largest = shift(*largest);
            }
        }
        totals.fill(Op::Rule::start::<Op::Total>());
        for block in steps.clone().step_by(COLUMN_BLOCK) {
            lanes.fill(Op::Rule::start::<Op::Lane>());
            for step in block..steps.end.min(block + COLUMN_BLOCK) {
                for ((lane, &x), &shift) in lanes.iter_mut().zip(part(step)).zip(&*shifts) {
                    *lane = Op::Rule::combine(*lane, Op::map::<A>(x, shift));
                }
            }
            for (total, &lane) in totals.iter_mut().zip(&*lanes) {
                *total = Op::Rule::combine(*total, Op::Total::from(lane));
            }
        }
        // One tile has all copies, for they are made where columns are few.
        let n_own = n / plan.n_copies;
        for copy in 1..plan.n_copies {
            for k in 0..n_own {
                totals[k] = Op::Rule::combine(totals[k], totals[copy * n_own + k]);
            }
        }
        let first = (item / n_tiles * plan.inner + first) / plan.n_copies;
        for (k, (&total, &shift)) in totals[..n_own].iter().zip(&*shifts).enumerate() {
            // SAFETY: the tile's columns are results of the plan, and this call's own.
            unsafe { results.write(first + k, total, shift) };
        }
    }
}

type Merge = unsafe fn(*const u8, *mut u8, &Plan);

/// Combines the totals of the pieces, in their order.
///
/// # Safety
/// `totals` are those of all pieces, `y` has `n_out` results.
unsafe fn merge<Op: Reduce>(totals: *const u8, y: *mut u8, plan: &Plan) {
    for at in 0..plan.n_out {
        let mut total = Op::Rule::start::<Op::Total>();
        for piece in 0..plan.n_pieces {
            let at = piece * plan.n_out + at;
            // SAFETY: `totals` are those of all pieces (# Safety), `n_out` for each.
            let of_piece = unsafe { totals.cast::<Op::Total>().add(at).read() };
            total = Op::Rule::combine(total, of_piece);
        }
        let result = Op::finish(total, plan.count, Op::In::ZERO);
        // SAFETY: `y` has `n_out` results (# Safety).
        unsafe { y.cast::<Op::In>().add(at).write(result) };
    }
}

struct Reduction {
    host: Host,
    plan: Plan,
    body: Body,
    merge: Merge,
}

impl Launch<CpuDevice> for Reduction {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let plan = &self.plan;
        if plan.n_pieces == 1 {
            return self.host.parallel_for(plan.n_items, plan.grain(), |items, _| {
                // SAFETY: the operands have the shapes that `prepare` was told; chunks are apart; the
                // instructions are the device's.
                unsafe { (self.body)(x.at(0), y.at(0), plan, items, 0) };
                Ok(())
            });
        }
        let totals = SendPtr(operands.workspace_ptr::<u8>());
        let n = plan.n_items * plan.n_pieces;
        self.host.parallel_for(n, 1, |units, _| {
            for unit in units {
                let (item, piece) = (unit / plan.n_pieces, unit % plan.n_pieces);
                // SAFETY: `x` has the shape that `prepare` was told; the workspace has a total for each result and
                // piece, which only this unit writes.
                unsafe { (self.body)(x.at(0), totals.at(0), plan, item..item + 1, piece) };
            }
            Ok(())
        })?;
        // SAFETY: all pieces have written their totals; the output is the launch's.
        unsafe { (self.merge)(totals.at(0), y.at(0), plan) };
        Ok(())
    }
}

fn prepare<Op: Reduce>(request: &Request<'_>) -> Result<Prepared> {
    let (body, merge) = (body::<Op>(request.device.isa), merge::<Op>);
    prepared(request, !Op::SHIFTED, body, merge, size_of::<Op::Total>())
}

/// Prepares a reduction that is given by its loops, whether it may be split, and bytes of a total.
fn prepared(request: &Request<'_>, splits: bool, body: Body, merge: Merge, total: usize) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let extents = extents(x)?;
    let reduced = reduced_axes(request, extents.len())?;
    let plan = Plan::new(&extents, &reduced, splits)?;
    let n_out = request.required_output(0)?.n_elements();
    if n_out != plan.n_out {
        return Err(Error::invalid(format!("an output of {n_out} elements, expected {}", plan.n_out)));
    }
    let prepared = Prepared::new(Reduction { host: request.host, plan, body, merge });
    match plan.n_pieces {
        1 => Ok(prepared),
        n => prepared.with_room(Size::of(n) * plan.n_out * total, 64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::{Chance, isas};

    /// All items and pieces, last first: the order must not matter.
    fn run<Op: Reduce>(isa: crate::isa::Isa, plan: &Plan, x: &[Op::In]) -> Vec<Op::In> {
        let mut y = vec![Op::In::ZERO; plan.n_out];
        let mut totals = vec![Op::Total::ZERO; plan.n_out * plan.n_pieces];
        let whole = plan.n_pieces == 1;
        let out = if whole { y.as_mut_ptr().cast() } else { totals.as_mut_ptr().cast() };
        for item in (0..plan.n_items).rev() {
            for piece in (0..plan.n_pieces).rev() {
                // SAFETY: the operands have the sizes of the plan.
                unsafe { body::<Op>(isa)(x.as_ptr().cast(), out, plan, item..item + 1, piece) };
            }
        }
        if !whole {
            // SAFETY: all pieces have written their totals.
            unsafe { merge::<Op>(totals.as_ptr().cast(), y.as_mut_ptr().cast(), plan) };
        }
        y
    }

    /// Sums of integers by chance, against one element after the other.
    fn check(chance: &mut Chance, extents: &[usize], reduced: &[bool]) {
        let x = chance.values(extents.iter().product());
        let kept: Vec<usize> = extents.iter().zip(reduced).map(|(&e, &r)| if r { 1 } else { e }).collect();
        let mut sums = vec![0.0; kept.iter().product()];
        let mut largest = vec![f32::NEG_INFINITY; sums.len()];
        for (i, &x) in x.iter().enumerate() {
            let at = crate::kernels::testing::broadcast_position(extents, &kept, i);
            sums[at] += x;
            largest[at] = largest[at].max(x);
        }
        let ints: Vec<i32> = x.iter().map(|&x| x as i32).collect();
        let int_sums: Vec<i32> = sums.iter().map(|&sum| sum as i32).collect();
        let plan = Plan::new(extents, reduced, true).expect("few dimensions");
        for isa in isas() {
            let what = format!("{extents:?}, {reduced:?}, {isa:?}");
            assert_eq!(run::<Sum<f32>>(isa, &plan, &x), sums, "{what}");
            assert_eq!(run::<Sum<i32>>(isa, &plan, &ints), int_sums, "{what}");
            assert_eq!(run::<Extreme<f32, Highest>>(isa, &plan, &x), largest, "{what}");
        }
    }

    #[test]
    fn every_set_of_axes_is_reduced() {
        let mut chance = Chance::new(3);
        for _ in 0..400 {
            let extents = chance.extents();
            let reduced: Vec<bool> = extents.iter().map(|_| chance.below(2) == 0).collect();
            check(&mut chance, &extents, &reduced);
        }
    }

    #[test]
    fn short_rows_are_smaller_chunks() {
        let plan =
            |extents: &[usize], reduced: &[bool]| Plan::new(extents, reduced, true).expect("few dimensions");
        // A row of two elements takes as long as 34.
        assert_eq!(plan(&[100_000, 2], &[false, true]).grain(), GRAIN / 34);
        assert_eq!(plan(&[100, 1 << 20], &[false, true]).grain(), 1);
        assert_eq!(plan(&[1000, 64, 256], &[false, true, false]).grain(), GRAIN / (64 * 256));
    }

    #[test]
    fn large_reductions_in_pieces_are_the_same() {
        let mut chance = Chance::new(4);
        for (extents, reduced) in [
            (&[300_001][..], &[true][..]),
            (&[2, 150_000], &[false, true]),
            (&[150_000, 3], &[true, false]),
            (&[700, 300], &[true, false]),
            (&[80, 3, 2000], &[true, false, true]),
        ] {
            let plan = Plan::new(extents, reduced, true).expect("few dimensions");
            assert!(plan.n_pieces > 1, "{extents:?}");
            check(&mut chance, extents, reduced);
        }
    }

    #[test]
    fn nan_is_the_largest_wherever_it_is() {
        for isa in isas() {
            for n in [1, 7, 8, 64, 700] {
                for at in [0, n / 2, n - 1] {
                    let mut x = vec![1.0f32; n];
                    x[at] = f32::NAN;
                    let plan = Plan::new(&[n], &[true], true).expect("one dimension");
                    assert!(run::<Extreme<f32, Highest>>(isa, &plan, &x)[0].is_nan());
                    assert!(run::<Extreme<f32, Lowest>>(isa, &plan, &x)[0].is_nan());
                }
            }
        }
    }

    #[test]
    fn sums_are_the_same_bits_on_every_instruction_set() {
        let x: Vec<f32> = (0..100_000).map(|i| (i as f32 * 0.7).sin()).collect();
        for (extents, reduced) in
            [(&[100_000][..], &[true][..]), (&[100, 1000], &[true, false]), (&[100, 1000], &[false, true])]
        {
            let plan = Plan::new(extents, reduced, true).expect("few dimensions");
            let bits = |isa| run::<Sum<f32>>(isa, &plan, &x).iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert!(isas().all(|isa| bits(isa) == bits(crate::isa::Isa::Baseline)));
        }
    }
}
