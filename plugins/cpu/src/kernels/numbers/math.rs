//! Elementary functions of f32 that the compiler can vectorise: no branches, no table, no call.
//!
//! Each reduces its argument to a small interval and evaluates a polynomial there. The polynomials are our
//! own minimax fits: weighted least squares in double precision on Chebyshev nodes, weights adapted until
//! the largest relative error is even (Lawson's method), coefficients then rounded to f32. Beside each one
//! stand its interval and the relative error of the fit; the tests compare the functions with f64 over
//! all of f32 and hold the errors that the comments state, with and without fused multiply-add.
//!
//! An ulp is the distance between two neighbouring f32 at the true result.

use crate::isa::Arith;

/// Adding and subtracting it rounds to the nearest integer, ties to even, for |x| below 2^22; the integer
/// then stands in the low bits of the sum.
pub(super) const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts. The first has so few bits that its product with an exponent is exact.
pub(super) const LN2_HIGH: f32 = 0.693_359_4;
pub(super) const LN2_LOW: f32 = -2.121_944_4e-4;

/// (e^r - 1 - r) / r^2 on +-0.3468, relative error of e^r 2^-28.
pub(super) const EXP: [f32; 5] = [0.499_999_94, 0.166_665_21, 0.041_668_39, 0.008_368_745, 0.001_381_454];
/// Arguments of the exponential beyond which it is infinite or 0.
pub(super) const EXP_MAX: f32 = 89.0;
pub(super) const EXP_MIN: f32 = -104.0;
/// From here on the exponential is a normal number.
pub(super) const EXP_NORMAL: f32 = -87.336;
/// (tanh(x) / x - 1) / x^2 in z = x^2 up to 0.625^2, relative error of tanh 2^-27.8.
pub(super) const TANH: [f32; 5] = [-0.333_332_8, 0.133_314_42, -0.053_739_715, 0.020_639_088, -0.005_704_987];
/// Numbers below are small ones for the tangent.
pub(super) const TANH_SMALL: f32 = 0.625;

/// The polynomial with coefficients `c`, lowest power first (Horner's scheme).
#[inline(always)]
fn polynomial<A: Arith, const N: usize>(x: f32, c: [f32; N]) -> f32 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = A::fma(sum, x, c[i]);
    }
    sum
}

/// 2^k for k from -126 to 127.
#[inline(always)]
fn power_of_two(k: i32) -> f32 {
    f32::from_bits((k.wrapping_add(127) as u32) << 23)
}

/// The nearest integer, ties to even. The baseline has no instruction for it, and std's is a call there.
#[inline(always)]
pub(crate) fn round(x: f32) -> f32 {
    let a = x.abs();
    // From 2^23 on every f32 is an integer; below, the sum has no bits for a fraction.
    let rounded = (a + 8_388_608.0) - 8_388_608.0;
    (if a < 8_388_608.0 { rounded } else { a }).copysign(x)
}

/// The next integer below.
#[inline(always)]
pub(crate) fn floor(x: f32) -> f32 {
    let rounded = round(x);
    if rounded > x { rounded - 1.0 } else { rounded }
}

/// The next integer above.
#[inline(always)]
pub(crate) fn ceil(x: f32) -> f32 {
    let rounded = round(x);
    // The sign for -0.
    (if rounded < x { rounded + 1.0 } else { rounded }).copysign(x)
}

/// e^x within 1.1 ulp; exp(-inf) = 0, results that are subnormal included.
#[inline(always)]
pub(crate) fn exp<A: Arith>(x: f32) -> f32 {
    // NaN passes both.
    let x = if x > EXP_MAX { EXP_MAX } else { x };
    let x = if x < EXP_MIN { EXP_MIN } else { x };
    // x = k ln 2 + r with |r| <= ln(2) / 2.
    let shifted = A::fma(x, std::f32::consts::LOG2_E, ROUND);
    let k = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    let n = shifted - ROUND;
    let r = A::fma(n, -LN2_HIGH, x);
    let r = A::fma(n, -LN2_LOW, r);
    let p = polynomial::<A, 5>(r, EXP);
    let y = A::fma(r * r, p, r) + 1.0;
    // Twice, because 2^k alone leaves the range of normal numbers at both ends.
    let half = k >> 1;
    y * power_of_two(half) * power_of_two(k.wrapping_sub(half))
}

/// As [`exp`], but 0 for what would be subnormal: some processors take microseconds for each product with such a number.
#[inline(always)]
pub(crate) fn exp_or_zero<A: Arith>(x: f32) -> f32 {
    let e = exp::<A>(if x < EXP_NORMAL { EXP_NORMAL } else { x });
    if x < EXP_NORMAL { 0.0 } else { e }
}

/// The natural logarithm within 1 ulp; log(0) = -inf, NaN below 0, subnormal arguments included.
#[inline(always)]
pub(crate) fn log<A: Arith>(x: f32) -> f32 {
    let subnormal = x < f32::MIN_POSITIVE;
    let scaled = if subnormal { x * 8_388_608.0 } else { x };
    // scaled = 2^k m with m from sqrt(1/2) to sqrt(2).
    let bits = scaled.to_bits() as i32;
    let k = bits.wrapping_sub(std::f32::consts::FRAC_1_SQRT_2.to_bits() as i32) >> 23;
    let m = f32::from_bits(bits.wrapping_sub(k << 23) as u32);
    let k = k as f32 - if subnormal { 23.0 } else { 0.0 };
    let f = m - 1.0;
    // (log(1 + f) - f + f^2 / 2) / f^3 on sqrt(1/2) - 1 to sqrt(2) - 1, relative error of the logarithm 2^-30.
    let q = polynomial::<A, 9>(
        f,
        [
            0.333_333_13,
            -0.250_000_1,
            0.200_021_2,
            -0.166_679_96,
            0.142_195_51,
            -0.124_055_86,
            0.118_881_67,
            -0.116_756_71,
            0.067_466_52,
        ],
    );
    let square = f * f;
    // Smallest first.
    let tail = A::fma(square * f, q, k * LN2_LOW);
    let tail = A::fma(-0.5, square, tail);
    let y = A::fma(k, LN2_HIGH, f + tail);
    let y = if x < f32::INFINITY { y } else { x };
    let zero_or_less = if x == 0.0 { f32::NEG_INFINITY } else { f32::NAN };
    if x > 0.0 { y } else { zero_or_less }
}

/// 1 / (1 + e^-x) within 2.5 ulp, small results included.
#[inline(always)]
pub(crate) fn sigmoid<A: Arith>(x: f32) -> f32 {
    // The exponential of a negative number cannot overflow, and keeps its relative error.
    let e = exp::<A>(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// The hyperbolic tangent within 1.5 ulp.
#[inline(always)]
pub(crate) fn tanh<A: Arith>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let p = polynomial::<A, 5>(z, TANH);
    let small = A::fma(x * z, p, x);
    // Beyond, 1 - tanh is small enough that its error does not show.
    let large = 1.0 - 2.0 / (exp::<A>(a + a) + 1.0);
    // The sign last, so that -0 keeps it.
    (if a < TANH_SMALL { small } else { large }).copysign(x)
}

/// The error function within 1.3 ulp.
#[inline(always)]
pub(crate) fn erf<A: Arith>(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    // erf(x) / x - 1 in z = x^2 up to 0.9375^2, relative error of erf 2^-30.9.
    let p = polynomial::<A, 7>(
        z,
        [
            0.128_379_17,
            -0.376_126_32,
            0.112_836_79,
            -0.026_858_497,
            0.005_198_83,
            -0.000_811_807_5,
            8.267_462e-5,
        ],
    );
    let small = A::fma(x, p, x);
    // -log(1 - erf(t)) / t - 1 on 0.92 to 4, relative error of erf 2^-28.3; from 3.92 on erf rounds to 1.
    let t = if a > 4.0 { 4.0 } else { a };
    let r = polynomial::<A, 6>(
        t,
        [0.128_514_36, 0.635_718_3, 0.105_261_84, -0.022_889_964, 0.003_214_955_6, -0.000_213_984_95],
    );
    let large = 1.0 - exp::<A>(-A::fma(t, r, t));
    (if a < 0.9375 { small } else { large }).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::{Fused, Separate};

    /// Largest error in ulp over every `step`-th f32 pattern, and where it is.
    fn worst(f: fn(f32) -> f32, reference: fn(f64) -> f64, step: usize) -> (f64, f32) {
        let mut worst = (0.0, 0.0);
        for bits in (0..=u32::MAX).step_by(step) {
            let x = f32::from_bits(bits);
            let (found, expected) = (f(x), reference(f64::from(x)));
            let rounded = expected as f32;
            if found.to_bits() == rounded.to_bits() || found.is_nan() && rounded.is_nan() {
                continue;
            }
            let ulp = if rounded.is_infinite() {
                f64::from(f32::MAX) / 2f64.powi(24)
            } else {
                let exponent = (expected.abs().max(f64::from(f32::MIN_POSITIVE))).log2().floor();
                2f64.powf(exponent - 23.0)
            };
            let found = if found.is_infinite() {
                // Where the rounding of the largest numbers would end.
                2f64.powi(128).copysign(f64::from(found))
            } else {
                f64::from(found)
            };
            let error = (found - expected.clamp(-(2f64.powi(128)), 2f64.powi(128))).abs() / ulp;
            assert!(!error.is_nan(), "f({x}) = {found}, not {expected}");
            if error > worst.0 {
                worst = (error, x);
            }
        }
        worst
    }

    fn check(name: &str, limit: f64, functions: [fn(f32) -> f32; 2], reference: fn(f64) -> f64) {
        for (f, arith) in functions.into_iter().zip(["fused", "separate"]) {
            let (error, x) = worst(f, reference, 2003);
            assert!(error <= limit, "{name}, {arith}: {error} ulp at {x}");
        }
    }

    /// The error function from its series without cancellation (Abramowitz and Stegun 7.1.6).
    fn erf_f64(x: f64) -> f64 {
        if x.abs() >= 6.0 {
            return x.signum();
        }
        let (mut term, mut sum, mut n) = (x, x, 0.0);
        while term.abs() > sum.abs() * 1e-18 {
            n += 1.0;
            term *= 2.0 * x * x / (2.0 * n + 1.0);
            sum += term;
        }
        2.0 / std::f64::consts::PI.sqrt() * (-x * x).exp() * sum
    }

    #[test]
    fn errors_stay_below_what_the_comments_state() {
        check("exp", 1.1, [exp::<Fused>, exp::<Separate>], f64::exp);
        check("log", 1.0, [log::<Fused>, log::<Separate>], f64::ln);
        check("tanh", 1.5, [tanh::<Fused>, tanh::<Separate>], f64::tanh);
        check("erf", 1.3, [erf::<Fused>, erf::<Separate>], |x| if x.is_nan() { x } else { erf_f64(x) });
        check("sigmoid", 2.5, [sigmoid::<Fused>, sigmoid::<Separate>], |x| 1.0 / (1.0 + (-x).exp()));
    }

    #[test]
    fn rounding_is_that_of_std() {
        for bits in (0..=u32::MAX).step_by(1009) {
            let x = f32::from_bits(bits);
            for (found, expected) in
                [(round(x), x.round_ties_even()), (floor(x), x.floor()), (ceil(x), x.ceil())]
            {
                assert!(
                    found.to_bits() == expected.to_bits() || x.is_nan(),
                    "of {x}: {found}, not {expected}"
                );
            }
        }
        assert_eq!([0.5, 1.5, 2.5, -0.5, -1.5].map(round), [0.0, 2.0, 2.0, -0.0, -2.0]);
    }

    #[test]
    fn special_arguments_have_exact_results() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!([exp::<Separate>(-inf), exp::<Separate>(inf)], [0.0, inf]);
        assert_eq!(exp::<Separate>(0.0), 1.0);
        assert_eq!([log::<Separate>(0.0), log::<Separate>(inf)], [-inf, inf]);
        assert_eq!([log::<Separate>(-0.0), log::<Separate>(1.0)], [-inf, 0.0]);
        assert!(log::<Separate>(-1.0).is_nan() && log::<Separate>(-inf).is_nan());
        assert_eq!([tanh::<Separate>(-inf), tanh::<Separate>(inf)], [-1.0, 1.0]);
        assert_eq!([erf::<Separate>(-inf), erf::<Separate>(inf)], [-1.0, 1.0]);
        assert_eq!([sigmoid::<Separate>(-inf), sigmoid::<Separate>(inf)], [0.0, 1.0]);
        for f in [exp::<Separate>, log::<Separate>, tanh::<Separate>, erf::<Separate>] {
            assert!(f(nan).is_nan());
        }
        assert!(sigmoid::<Separate>(nan).is_nan());
        for f in [tanh::<Separate>, erf::<Separate>] {
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
        }
    }
}
