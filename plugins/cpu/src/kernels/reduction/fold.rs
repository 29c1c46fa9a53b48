//! Folds: how many elements become one, whatever loops over them.
//!
//! A contiguous row adds up in lanes of f32 that are emptied into an f64 after a fixed number of elements: close to a
//! sum in f64 at the price of one in f32. The order depends on the row's length alone, so that a sum has the same bits
//! on every instruction set.

use crate::isa::Arith;
use crate::kernels::elementwise::loops::HEAVY_FLOPS;
use crate::kernels::numbers::math;
use crate::kernels::numbers::number::Number;
use crate::lanes::{Lanes, unrolled};
use devbay_plugin_api::sdk::F32;
use std::marker::PhantomData;

/// An associative operation with the number that changes nothing.
pub(crate) trait Rule: 'static {
    fn start<T: Number>() -> T;
    fn combine<T: Number>(a: T, b: T) -> T;
    /// As [`Rule::combine`], of vectors of numbers; where one is none it may be either.
    fn last_lanes<L: Lanes>(a: L, b: L) -> L;
    /// As [`Rule::combine`], of vectors.
    #[inline(always)]
    fn combine_lanes<L: Lanes>(a: L, b: L) -> L {
        Self::last_lanes(a, b).or_nan(a)
    }
}

/// Defines rules: name, start, combination of numbers and of vectors.
macro_rules! rules {
    ($($name:ident = $start:ident, $combine:ident, |$a:ident, $b:ident| $lanes:expr;)*) => {$(
        pub(crate) struct $name;

        impl Rule for $name {
            #[inline(always)]
            fn start<T: Number>() -> T {
                T::$start
            }
            #[inline(always)]
            fn combine<T: Number>(a: T, b: T) -> T {
                a.$combine(b)
            }
            #[inline(always)]
            fn last_lanes<L: Lanes>($a: L, $b: L) -> L {
                $lanes
            }
        }
    )*};
}
rules! {
    Plus = ZERO, add, |a, b| a.add(b);
    Times = ONE, mul, |a, b| a.mul(b);
    Highest = LOWEST, larger, |a, b| b.at_least(a);
    Lowest = HIGHEST, smaller, |a, b| b.at_most(a);
}

/// Fold of a row's elements into one total.
pub(crate) trait Fold: 'static {
    type In: Number;
    /// Type of a lane.
    type Lane: Number;
    /// Type that the lanes are emptied into.
    type Total: Number + From<Self::Lane>;
    type Rule: Rule;
    /// Arithmetic operations for an element, roughly.
    const FLOPS: u64 = 1;

    fn map<A: Arith>(x: Self::In, shift: Self::In) -> Self::Lane;

    /// The total of a contiguous row.
    ///
    /// # Safety
    /// The processor has the instructions of `A`.
    #[inline(always)]
    unsafe fn of_row<A: Arith>(x: &[Self::In], shift: Self::In) -> Self::Total
    where
        Self: Sized,
    {
        row::<A, Self>(x, shift)
    }
}

/// A reduction of many elements to one of the same type.
pub(crate) trait Reduce: Fold {
    /// `map` and `finish` are given the largest element, or 0 if that is not finite.
    const SHIFTED: bool = false;

    fn finish(total: Self::Total, count: usize, shift: Self::In) -> Self::In;
}

/// Defines reductions: name, types, rule, what each element becomes, what the total becomes.
macro_rules! reductions {
    ($($name:ident $(<$t:ty>)?: $in:ty, $lane:ty, $total:ty, $rule:ty, |$x:pat_param| $map:expr, |$sum:pat_param, $count:pat_param| $finish:expr;)*) => {$(
        impl Fold for $name $(<$t>)? {
            type In = $in;
            type Lane = $lane;
            type Total = $total;
            type Rule = $rule;

            #[inline(always)]
            fn map<A: Arith>($x: $in, _: $in) -> $lane {
                $map
            }
        }

        impl Reduce for $name $(<$t>)? {
            #[inline(always)]
            fn finish($sum: $total, $count: usize, _: $in) -> $in {
                $finish
            }
        }
    )*};
}

pub(crate) struct Sum<T>(PhantomData<T>);
pub(crate) struct Mean<T>(PhantomData<T>);
pub(crate) struct Product<T>(PhantomData<T>);
pub(crate) struct SumSquare;
pub(crate) struct L1;
pub(crate) struct L2;
pub(crate) struct LogSum;
pub(crate) struct LogSumExp;
/// The smallest of truth values.
pub(crate) struct All;
/// The sum of squared distances from `shift`.
pub(crate) struct SquaredDistance;
pub(crate) struct Extreme<T, R>(PhantomData<(T, R)>);

reductions! {
    Sum<f32>: f32, f32, f64, Plus, |x| x, |sum, _| sum as f32;
    Sum<i64>: i64, i64, i64, Plus, |x| x, |sum, _| sum;
    Sum<i32>: i32, i32, i32, Plus, |x| x, |sum, _| sum;
    Mean<f32>: f32, f32, f64, Plus, |x| x, |sum, count| (sum / count as f64) as f32;
    Mean<i64>: i64, i64, i64, Plus, |x| x, |sum, count| sum.div(count as i64);
    Mean<i32>: i32, i64, i64, Plus, |x| i64::from(x), |sum, count| sum.div(count as i64) as i32;
    Product<f32>: f32, f32, f64, Times, |x| x, |product, _| product as f32;
    Product<i64>: i64, i64, i64, Times, |x| x, |product, _| product;
    Product<i32>: i32, i32, i32, Times, |x| x, |product, _| product;
    SumSquare: f32, f32, f64, Plus, |x| x * x, |sum, _| sum as f32;
    L1: f32, f32, f64, Plus, |x| x.abs(), |sum, _| sum as f32;
    L2: f32, f32, f64, Plus, |x| x * x, |sum, _| sum.sqrt() as f32;
    LogSum: f32, f32, f64, Plus, |x| x, |sum, _| sum.ln() as f32;
    // The smallest of no truth values is true, which is 1.
    All: u8, u8, u8, Lowest, |x| u8::from(x != 0), |total, _| total.min(1);
}

impl<T: Number, R: Rule> Fold for Extreme<T, R> {
    type In = T;
    type Lane = T;
    type Total = T;
    type Rule = R;

    #[inline(always)]
    fn map<A: Arith>(x: T, _: T) -> T {
        x
    }

    #[inline(always)]
    unsafe fn of_row<A: Arith>(x: &[T], shift: T) -> T {
        if T::DTYPE == F32 && A::Lanes::N >= FEW_LANES && x.len() >= FEW_LANES {
            // SAFETY: the processor has the instructions (# Safety).
            return bytemuck::cast(unsafe { extreme_row::<A, R>(bytemuck::cast_slice(x)) });
        }
        row::<A, Self>(x, shift)
    }
}

impl<T: Number, R: Rule> Reduce for Extreme<T, R> {
    #[inline(always)]
    fn finish(total: T, _: usize, _: T) -> T {
        total
    }
}

impl Fold for SquaredDistance {
    type In = f32;
    type Lane = f32;
    type Total = f64;
    type Rule = Plus;

    #[inline(always)]
    fn map<A: Arith>(x: f32, shift: f32) -> f32 {
        (x - shift) * (x - shift)
    }
}

impl Fold for LogSumExp {
    type In = f32;
    type Lane = f32;
    type Total = f64;
    type Rule = Plus;
    const FLOPS: u64 = 22;

    #[inline(always)]
    fn map<A: Arith>(x: f32, shift: f32) -> f32 {
        math::exp::<A>(x - shift)
    }
}

impl Reduce for LogSumExp {
    const SHIFTED: bool = true;

    #[inline(always)]
    fn finish(total: f64, _: usize, shift: f32) -> f32 {
        (f64::from(shift) + total.ln()) as f32
    }
}

/// Elements that are mapped already.
struct Mapped<Op>(PhantomData<Op>);

impl<Op: Fold> Fold for Mapped<Op> {
    type In = Op::Lane;
    type Lane = Op::Lane;
    type Total = Op::Total;
    type Rule = Op::Rule;

    #[inline(always)]
    fn map<A: Arith>(x: Op::Lane, _: Op::Lane) -> Op::Lane {
        x
    }
}
/// Lanes of a long row: so many that the compiler vectorises the loop over them, where it would unroll a
/// shorter one and then often find no vectors in it.
const LANES: usize = 128;
/// Elements from which on a row is long: enough to pay for combining the lanes.
const LONG: usize = 4 * LANES;
/// Lanes of a short row, and of what is left of a long one.
const FEW_LANES: usize = 8;
/// Elements after which lanes are emptied into a total.
const ROW_BLOCK: usize = 4096;
/// Elements that are mapped at once, where mapping is dear.
const MAPPED: usize = 256;

/// The total of a contiguous row.
#[inline(always)]
pub(crate) fn row<A: Arith, Op: Fold>(x: &[Op::In], shift: Op::In) -> Op::Total {
    if Op::FLOPS < HEAVY_FLOPS {
        return light_row::<A, Op>(x, shift);
    }
    // Two loops, because a function and a sum are vectorised by different forms.
    let mut mapped = [Op::Lane::ZERO; MAPPED];
    let mut total = Op::Rule::start::<Op::Total>();
    for block in x.chunks(MAPPED) {
        let mapped = &mut mapped[..block.len()];
        for (mapped, &x) in mapped.iter_mut().zip(block) {
            *mapped = Op::map::<A>(x, shift);
        }
        total = Op::Rule::combine(total, light_row::<A, Mapped<Op>>(mapped, Op::Lane::ZERO));
    }
    total
}

#[inline(always)]
fn light_row<A: Arith, Op: Fold>(x: &[Op::In], shift: Op::In) -> Op::Total {
    let start = Op::Rule::start::<Op::Lane>();
    let add = |sum, &x: &Op::In| Op::Rule::combine(sum, Op::map::<A>(x, shift));
    if Op::Lane::ANY_ORDER || x.len() < FEW_LANES {
        return Op::Total::from(x.iter().fold(start, add));
    }
    let mut total = Op::Rule::start::<Op::Total>();
    for block in x.chunks(ROW_BLOCK) {
        let mut few = [start; FEW_LANES];
        let (long, rest) = block.split_at(if block.len() < LONG { 0 } else { block.len() / LANES * LANES });
        if !long.is_empty() {
            let (steps, _) = long.as_chunks::<LANES>();
            let mut lanes = [start; LANES];
            for step in steps {
                for k in 0..LANES {
                    lanes[k] = Op::Rule::combine(lanes[k], Op::map::<A>(step[k], shift));
                }
            }
            let lanes = halved::<Op::Rule, _, LANES, 64>(&lanes);
            let lanes = halved::<Op::Rule, _, 64, 32>(&lanes);
            let lanes = halved::<Op::Rule, _, 32, 16>(&lanes);
            few = halved::<Op::Rule, _, 16, FEW_LANES>(&lanes);
        }
        let (parts, rest) = rest.as_chunks::<FEW_LANES>();
        for part in parts {
            for k in 0..FEW_LANES {
                few[k] = Op::Rule::combine(few[k], Op::map::<A>(part[k], shift));
            }
        }
        let lanes = halved::<Op::Rule, _, FEW_LANES, 4>(&few);
        let [lane] = halved::<Op::Rule, _, 2, 1>(&halved::<Op::Rule, _, 4, 2>(&lanes));
        let last = rest.iter().fold(start, add);
        total = Op::Rule::combine(total, Op::Total::from(Op::Rule::combine(lane, last)));
    }
    total
}

/// Vectors of sixteen that a long row's lanes are.
const VECTORS: usize = LANES / 16;

/// As [`row`] of an extreme of at least [`FEW_LANES`] numbers: the same lanes, combined in the same order, so that of zeros of both
/// signs the same one is left.
///
/// # Safety
/// The processor has the instructions of `A`, whose vectors have at least [`FEW_LANES`] numbers.
#[inline(always)]
unsafe fn extreme_row<A: Arith, R: Rule>(x: &[f32]) -> f32 {
    let mut total = R::start::<f32>();
    for (i, block) in x.chunks(ROW_BLOCK).enumerate() {
        let is_long = block.len() >= LONG;
        let of_block = if A::Lanes::N == FEW_LANES && is_long {
            // Such processors have too few registers for the lanes of a long row.
            light_row::<A, Extreme<f32, R>>(block, 0.0)
        } else if A::Lanes::N == FEW_LANES {
            // SAFETY: the processor has the instructions (# Safety).
            unsafe { short_extreme::<A::Lanes, R>(block, A::Lanes::splat(R::start())) }
        } else if is_long {
            // SAFETY: the processor has the instructions (# Safety); the next vectors after those of eight have sixteen.
            unsafe { long_extreme::<A::Lanes, R>(block) }
        } else {
            // SAFETY: the processor has the instructions (# Safety), and with them those of the half.
            let start = unsafe { <A::Lanes as Lanes>::Half::splat(R::start()) };
            // SAFETY: as above.
            unsafe { short_extreme::<<A::Lanes as Lanes>::Half, R>(block, start) }
        };
        total = if i == 0 { of_block } else { R::combine(total, of_block) };
    }
    total
}

/// # Safety
/// The processor has the vector's instructions, which has sixteen numbers.
#[inline(always)]
unsafe fn long_extreme<L: Lanes, R: Rule>(block: &[f32]) -> f32 {
    let (steps, rest) = block.as_chunks::<LANES>();
    // SAFETY: the processor has the instructions (# Safety).
    let mut lanes = [unsafe { L::splat(R::start()) }; VECTORS];
    let mut none = lanes;
    for step in steps {
        unrolled!(k below VECTORS {
            // SAFETY: the step has as many numbers.
            let part = unsafe { L::load(step.as_ptr().add(16 * k)) };
            lanes[k] = R::last_lanes(lanes[k], part);
            none[k] = none[k].or_nan(part);
        });
    }
    unrolled!(k below VECTORS {
        lanes[k] = lanes[k].or_nan(none[k]);
    });
    let [a, b, c, d, e, f, g, h] = lanes;
    let (a, b, c, d) =
        (R::combine_lanes(a, e), R::combine_lanes(b, f), R::combine_lanes(c, g), R::combine_lanes(d, h));
    let all = R::combine_lanes(R::combine_lanes(a, c), R::combine_lanes(b, d));
    let few = R::combine_lanes(all, all.turned(8));
    let mut numbers = [0f32; 16];
    // SAFETY: sixteen numbers are enough.
    unsafe { few.store(numbers.as_mut_ptr()) };
    // SAFETY: a half has the first eight; its instructions come with the vector's.
    let few = unsafe { L::Half::load(numbers.as_ptr()) };
    // SAFETY: the instructions of the half come with the vector's.
    unsafe { short_extreme::<L::Half, R>(rest, few) }
}

/// The extreme of numbers and of what eight lanes hold.
///
/// # Safety
/// The processor has the vector's instructions, which has [`FEW_LANES`] numbers.
#[inline(always)]
unsafe fn short_extreme<L: Lanes, R: Rule>(x: &[f32], few: L) -> f32 {
    let (parts, rest) = x.as_chunks::<FEW_LANES>();
    // What is no number is kept apart, so that a step does not wait for it.
    let (mut few, mut none) = (few, few);
    for part in parts {
        // SAFETY: the part has as many numbers as the vector.
        let part = unsafe { L::load(part.as_ptr()) };
        few = R::last_lanes(few, part);
        none = none.or_nan(part);
    }
    few = few.or_nan(none);
    few = R::combine_lanes(few, few.turned(4));
    few = R::combine_lanes(few, few.turned(2));
    few = R::combine_lanes(few, few.turned(1));
    let mut numbers = [0f32; 16];
    // SAFETY: sixteen numbers are enough.
    unsafe { few.store(numbers.as_mut_ptr()) };
    match rest {
        [] => numbers[0],
        _ => R::combine(numbers[0], rest.iter().fold(R::start(), |last, &x| R::combine::<f32>(last, x))),
    }
}

/// One half of the lanes combined with the other.
#[inline(always)]
fn halved<R: Rule, T: Number, const N: usize, const HALF: usize>(lanes: &[T; N]) -> [T; HALF] {
    let mut half = [T::ZERO; HALF];
    for k in 0..HALF {
        half[k] = R::combine(lanes[k], lanes[k + HALF]);
    }
    half
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;
    use crate::kernels::testing::{Chance, isas};

    dispatch! { fn extremes(x: &[f32]) -> [f32; 2] = extremes_body }

    /// # Safety
    /// None but the instructions.
    #[inline(always)]
    unsafe fn extremes_body<A: Arith>(x: &[f32]) -> [f32; 2] {
        // SAFETY: the caller has the instructions.
        unsafe { [Extreme::<f32, Highest>::of_row::<A>(x, 0.0), Extreme::<f32, Lowest>::of_row::<A>(x, 0.0)] }
    }

    /// The same bits with vectors and without, of zeros of both signs too.
    #[test]
    fn extremes_of_rows_of_any_length_are_those_of_single_numbers() {
        let mut chance = Chance::new(9);
        for n in (0..40).chain([63, 64, 65, 500, 511, 512, 600, 700, 4096, 4100, 9001]) {
            for kind in 0..4 {
                let mut x = chance.floats(n, 2.0);
                match kind {
                    0 => {}
                    1 => x.iter_mut().for_each(|x| *x = x.trunc().min(0.0)),
                    2 => x.iter_mut().for_each(|x| *x = x.trunc().max(-0.0)),
                    _ => x.iter_mut().for_each(|x| *x = x.round() * f32::INFINITY),
                }
                let expected = [
                    row::<crate::isa::Separate, Extreme<f32, Highest>>(&x, 0.0),
                    row::<crate::isa::Separate, Extreme<f32, Lowest>>(&x, 0.0),
                ];
                for isa in isas() {
                    // SAFETY: the instructions are this machine's.
                    let found = unsafe { extremes(isa)(&x) };
                    for (found, expected) in found.into_iter().zip(expected) {
                        let same =
                            found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                        assert!(same, "{n} numbers of kind {kind}, {isa:?}: {found}, not {expected}");
                    }
                }
            }
        }
    }
}
