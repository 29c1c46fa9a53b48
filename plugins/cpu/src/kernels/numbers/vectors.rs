//! Elementary functions of vectors that are already in registers. Each has the bits of the function of the same name in
//! [`math`](super::math), whose comments state the errors.

use super::math::{EXP, EXP_MAX, EXP_MIN, EXP_NORMAL, LN2_HIGH, LN2_LOW, ROUND, TANH, TANH_SMALL};
use crate::lanes::Lanes;

/// The same number everywhere, for a vector's processor.
#[inline(always)]
pub(crate) fn like<L: Lanes>(_: L, x: f32) -> L {
    // SAFETY: there is a vector, so there are its instructions.
    unsafe { L::splat(x) }
}

/// The polynomial with coefficients `c`, lowest power first (Horner's scheme).
#[inline(always)]
fn polynomial<L: Lanes>(x: L, c: [f32; 5]) -> L {
    let sum = like(x, c[4]).fma(x, like(x, c[3]));
    let sum = sum.fma(x, like(x, c[2]));
    let sum = sum.fma(x, like(x, c[1]));
    sum.fma(x, like(x, c[0]))
}

/// e^x, for numbers between the limits.
#[inline(always)]
fn exp_within<L: Lanes>(x: L) -> L {
    let round = like(x, ROUND);
    let n = x.fma(like(x, std::f32::consts::LOG2_E), round).sub(round);
    let r = n.fma(like(x, -LN2_HIGH), x);
    let r = n.fma(like(x, -LN2_LOW), r);
    let y = r.mul(r).fma(polynomial(r, EXP), r).add(like(x, 1.0));
    y.scaled(n)
}

/// e^x.
#[inline(always)]
pub(crate) fn exp<L: Lanes>(x: L) -> L {
    exp_within(x.at_most(like(x, EXP_MAX)).at_least(like(x, EXP_MIN)))
}

/// e^x, for numbers that are not above 0.
#[inline(always)]
pub(crate) fn exp_of_negative<L: Lanes>(x: L) -> L {
    exp_within(x.at_least(like(x, EXP_MIN)))
}

/// As [`exp_of_negative`], but 0 for what would be subnormal.
#[inline(always)]
pub(crate) fn exp_or_zero<L: Lanes>(x: L) -> L {
    let limit = like(x, EXP_NORMAL);
    x.if_below(limit, like(x, 0.0), exp_within(x.at_least(limit)))
}

/// 1 / (1 + e^-x).
#[inline(always)]
pub(crate) fn sigmoid<L: Lanes>(x: L) -> L {
    let (zero, one) = (like(x, 0.0), like(x, 1.0));
    let e = exp_of_negative(zero.sub(x.abs()));
    x.if_below(zero, e, one).div(one.add(e))
}

/// The hyperbolic tangent.
#[inline(always)]
pub(crate) fn tanh<L: Lanes>(x: L) -> L {
    let (a, z, one) = (x.abs(), x.mul(x), like(x, 1.0));
    let small = x.mul(z).fma(polynomial(z, TANH), x);
    let e = exp_within(a.add(a).at_most(like(x, EXP_MAX)));
    let large = one.sub(like(x, 2.0).div(e.add(one)));
    a.if_below(like(x, TANH_SMALL), small, large).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;
    use crate::isa::Arith;
    use crate::kernels::numbers::math;
    use crate::kernels::testing::isas;

    /// # Safety
    /// The processor has the instructions, and `x` whole vectors.
    #[inline(always)]
    unsafe fn compare_body<A: Arith>(x: &[f32]) {
        for x in x.chunks_exact(A::Lanes::N) {
            // SAFETY: the chunk is a vector (# Safety).
            let vector = unsafe { A::Lanes::load(x.as_ptr()) };
            let found = [exp(vector), sigmoid(vector), tanh(vector)];
            let functions = [math::exp::<A>, math::sigmoid::<A>, math::tanh::<A>];
            for ((found, f), name) in found.into_iter().zip(functions).zip(["exp", "sigmoid", "tanh"]) {
                let mut numbers = [0.0; 16];
                // SAFETY: 16 numbers are enough.
                unsafe { found.store(numbers.as_mut_ptr()) };
                for (x, found) in x.iter().zip(numbers) {
                    let expected = f(*x);
                    let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                    assert!(same, "{name}({x}) = {found}, not {expected}");
                }
            }
            let mut numbers = [0.0; 16];
            // SAFETY: 16 numbers are enough.
            unsafe { exp_or_zero(vector).store(numbers.as_mut_ptr()) };
            for (x, found) in x.iter().zip(numbers).filter(|(x, _)| x.is_nan() || **x <= 0.0) {
                let (expected, all) = (math::exp_or_zero::<A>(*x), math::exp::<A>(*x));
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "exp_or_zero({x}) = {found}, not {expected}");
                // It leaves out what is subnormal, and one number in a thousand above it.
                let near =
                    expected.to_bits() == all.to_bits() || expected == 0.0 && all < 1.001 * f32::MIN_POSITIVE;
                assert!(
                    near && !expected.is_subnormal() || x.is_nan(),
                    "exp_or_zero({x}) = {expected}, not {all}"
                );
            }
        }
    }

    dispatch! { fn compare(x: &[f32]) = compare_body }

    #[test]
    fn vectors_have_the_bits_of_single_numbers() {
        let mut x: Vec<f32> = (0..=u32::MAX).step_by(4003).map(f32::from_bits).collect();
        x.extend((-15000..15000).map(|i| i as f32 / 100.0));
        x.resize(x.len().next_multiple_of(16), -0.0);
        for isa in isas() {
            // SAFETY: `isas` has instructions of this processor, and there are whole vectors.
            unsafe { compare(isa)(&x) };
        }
    }
}
