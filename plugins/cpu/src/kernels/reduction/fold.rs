//! Folds: how many elements become one, whatever loops over them.
//!
//! A contiguous row adds up in lanes of f32 that are emptied into an f64 after a fixed number of elements: close to a
//! sum in f64 at the price of one in f32. The order depends on the row's length alone, so that a sum has the same bits
//! on every instruction set.

use crate::isa::Arith;
use crate::kernels::elementwise::loops::HEAVY_FLOPS;
use crate::kernels::numbers::math;
use crate::kernels::numbers::number::Number;
use std::marker::PhantomData;

/// An associative operation with the number that changes nothing.
pub(crate) trait Rule: 'static {
    fn start<T: Number>() -> T;
    fn combine<T: Number>(a: T, b: T) -> T;
}

/// Defines rules: name, start, combination.
macro_rules! rules {
    ($($name:ident = $start:ident, $combine:ident;)*) => {$(
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
        }
    )*};
}
rules! {
    Plus = ZERO, add;
    Times = ONE, mul;
    Highest = LOWEST, larger;
    Lowest = HIGHEST, smaller;
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

/// One half of the lanes combined with the other.
#[inline(always)]
fn halved<R: Rule, T: Number, const N: usize, const HALF: usize>(lanes: &[T; N]) -> [T; HALF] {
    let mut half = [T::ZERO; HALF];
    for k in 0..HALF {
        half[k] = R::combine(lanes[k], lanes[k + HALF]);
    }
    half
}
