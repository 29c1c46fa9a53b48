//! Trigonometric and hyperbolic functions of f32, and their inverses, that the compiler can vectorise: no branches, no table, no call.
//!
//! They are calculated in f64, whose digits make up for what reductions and differences lose, so that each is a series and its
//! argument's reduction. A series ends where the rest is below 2^-38 of the result. Rounded to f32, results are within 0.51 ulp, which
//! the tests hold over all of f32.
//!
//! Products and sums are rounded separately, so that results have the same bits on every processor.

use core::f64::consts::{FRAC_2_PI, FRAC_PI_2, FRAC_PI_4, LN_2, LOG2_E, PI, SQRT_2};

/// Adding it to a number below 2^51 rounds to an integer, which then stands in the low bits of the sum.
const ROUND: f64 = 6_755_399_441_055_744.0;

/// Magnitudes up to which [`sin`], [`cos`] and [`tan`] reduce their argument: multiples of the first part of pi / 2 are exact.
pub(crate) const ANGLE_MAX: f32 = 1e6;

/// Pi / 2 in two parts, of which the first has 33 bits.
const FRAC_PI_2_HIGH: f64 = 1.570_796_326_734_125_6;
const FRAC_PI_2_LOW: f64 = 6.077_100_506_506_192e-11;

/// The polynomial with coefficients `c`, lowest power first (Horner's scheme).
#[inline(always)]
fn polynomial<const N: usize>(x: f64, c: [f64; N]) -> f64 {
    let mut sum = c[N - 1];
    let mut i = N - 1;
    while i > 0 {
        i -= 1;
        sum = sum * x + c[i];
    }
    sum
}

/// Sine and cosine of what is left of an angle, at most pi / 4, and the number of quarter turns before it, of which the last two bits
/// count.
#[inline(always)]
fn quarter(x: f32) -> (f64, f64, u64) {
    let x = f64::from(x);
    let turns = x * FRAC_2_PI + ROUND;
    let n = turns - ROUND;
    let r = (x - n * FRAC_PI_2_HIGH) - n * FRAC_PI_2_LOW;
    let z = r * r;
    let sine = polynomial(
        z,
        [
            1.0,
            -1.0 / 6.0,
            1.0 / 120.0,
            -1.0 / 5040.0,
            1.0 / 362_880.0,
            -1.0 / 39_916_800.0,
            1.0 / 6_227_020_800.0,
        ],
    );
    let cosine = polynomial(
        z,
        [1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0, -1.0 / 3_628_800.0, 1.0 / 479_001_600.0],
    );
    // A factor, because a sum would lose the sign of -0.
    (r * sine, cosine, turns.to_bits())
}

/// With the other sign where a bit of the number is set.
#[inline(always)]
fn signed(x: f64, bit: u64) -> f64 {
    f64::from_bits(x.to_bits() ^ (bit & 1) << 63)
}

/// The sine, for magnitudes up to [`ANGLE_MAX`].
#[inline(always)]
pub(crate) fn sin(x: f32) -> f32 {
    let (sine, cosine, turns) = quarter(x);
    signed(if turns & 1 == 0 { sine } else { cosine }, turns >> 1) as f32
}

/// The cosine, for magnitudes up to [`ANGLE_MAX`].
#[inline(always)]
pub(crate) fn cos(x: f32) -> f32 {
    let (sine, cosine, turns) = quarter(x);
    signed(if turns & 1 == 0 { cosine } else { sine }, turns.wrapping_add(1) >> 1) as f32
}

/// The tangent, for magnitudes up to [`ANGLE_MAX`].
#[inline(always)]
pub(crate) fn tan(x: f32) -> f32 {
    let (sine, cosine, turns) = quarter(x);
    let is_even = turns & 1 == 0;
    let (y, x) = if is_even { (sine, cosine) } else { (cosine, -sine) };
    (y / x) as f32
}

/// The angle of a point with no coordinate below 0, and one above.
#[inline(always)]
fn angle(y: f64, x: f64) -> f64 {
    /// The tangent of 3 / 8 pi, beyond which the angle is nearest to a right one, and of pi / 8.
    const STEEP: f64 = 1.0 + SQRT_2;
    const FLAT: f64 = SQRT_2 - 1.0;
    let (is_steep, is_flat) = (y > STEEP * x, y > FLAT * x);
    let (start, rest_y, rest_x) = if is_flat { (FRAC_PI_4, y - x, y + x) } else { (0.0, y, x) };
    let (start, rest_y, rest_x) = if is_steep { (FRAC_PI_2, -x, y) } else { (start, rest_y, rest_x) };
    let t = rest_y / rest_x;
    let z = t * t;
    let series = polynomial(
        z,
        [
            1.0,
            -1.0 / 3.0,
            1.0 / 5.0,
            -1.0 / 7.0,
            1.0 / 9.0,
            -1.0 / 11.0,
            1.0 / 13.0,
            -1.0 / 15.0,
            1.0 / 17.0,
            -1.0 / 19.0,
            1.0 / 21.0,
            -1.0 / 23.0,
            1.0 / 25.0,
            -1.0 / 27.0,
        ],
    );
    start + t * series
}

/// The inverse tangent.
#[inline(always)]
pub(crate) fn atan(x: f32) -> f32 {
    angle(f64::from(x.abs()), 1.0).copysign(x.into()) as f32
}

/// The other short side of a right triangle whose long side is 1; NaN if `x` is longer.
#[inline(always)]
fn other_side(x: f64) -> f64 {
    ((1.0 - x) * (1.0 + x)).sqrt()
}

/// The inverse sine; NaN beyond 1.
#[inline(always)]
pub(crate) fn asin(x: f32) -> f32 {
    let a = f64::from(x.abs());
    angle(a, other_side(a)).copysign(x.into()) as f32
}

/// The inverse cosine; NaN beyond 1.
#[inline(always)]
pub(crate) fn acos(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let angle = angle(other_side(a), a);
    (if x < 0.0 { PI - angle } else { angle }) as f32
}

/// e^x for magnitudes up to 700.
#[inline(always)]
fn exp(x: f64) -> f64 {
    let shifted = x * LOG2_E + ROUND;
    let n = shifted - ROUND;
    // The error of n ln 2 stays below 2^-45.
    let r = x - n * LN_2;
    let series = polynomial(
        r,
        [
            1.0,
            1.0,
            1.0 / 2.0,
            1.0 / 6.0,
            1.0 / 24.0,
            1.0 / 120.0,
            1.0 / 720.0,
            1.0 / 5040.0,
            1.0 / 40_320.0,
            1.0 / 362_880.0,
            1.0 / 3_628_800.0,
        ],
    );
    series * f64::from_bits(shifted.to_bits().wrapping_add(1023) << 52)
}

/// e^a and e^-a; beyond 100 both functions of them are infinite in f32.
#[inline(always)]
fn exponentials(a: f32) -> (f64, f64) {
    let e = exp(f64::from(if a > 100.0 { 100.0 } else { a }));
    (e, 1.0 / e)
}

/// The hyperbolic sine.
#[inline(always)]
pub(crate) fn sinh(x: f32) -> f32 {
    let a = x.abs();
    let (up, down) = exponentials(a);
    let wide = f64::from(a);
    let z = wide * wide;
    let series = polynomial(
        z,
        [
            1.0,
            1.0 / 6.0,
            1.0 / 120.0,
            1.0 / 5040.0,
            1.0 / 362_880.0,
            1.0 / 39_916_800.0,
            1.0 / 6_227_020_800.0,
        ],
    );
    let y = if a < 1.0 { wide * series } else { 0.5 * (up - down) };
    y.copysign(x.into()) as f32
}

/// The hyperbolic cosine.
#[inline(always)]
pub(crate) fn cosh(x: f32) -> f32 {
    let (up, down) = exponentials(x.abs());
    (0.5 * (up + down)) as f32
}

/// The natural logarithm of numbers from 1 on; NaN for others.
#[inline(always)]
fn log(x: f64) -> f64 {
    // x = 2^k m with m from sqrt(1/2) to sqrt(2).
    let bits = x.to_bits();
    let k = bits.wrapping_sub(core::f64::consts::FRAC_1_SQRT_2.to_bits()) >> 52;
    let m = f64::from_bits(bits.wrapping_sub(k << 52));
    let k = f64::from_bits(ROUND.to_bits().wrapping_add(k)) - ROUND;
    let s = (m - 1.0) / (m + 1.0);
    let z = s * s;
    let series =
        polynomial(z, [2.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0, 2.0 / 11.0, 2.0 / 13.0, 2.0 / 15.0]);
    let y = k * LN_2 + s * series;
    let y = if x < f64::INFINITY { y } else { x };
    if x < 1.0 { f64::NAN } else { y }
}

/// Below, the inverse hyperbolic functions are the beginnings of their series.
const SMALL: f64 = 1.0 / 32.0;

/// The inverse hyperbolic sine.
#[inline(always)]
pub(crate) fn asinh(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let series = a * polynomial(a * a, [1.0, -1.0 / 6.0, 3.0 / 40.0, -15.0 / 336.0]);
    let y = if a < SMALL { series } else { log(a + (a * a + 1.0).sqrt()) };
    y.copysign(x.into()) as f32
}

/// The inverse hyperbolic cosine; NaN below 1.
#[inline(always)]
pub(crate) fn acosh(x: f32) -> f32 {
    let x = f64::from(x);
    let y = log(x + ((x - 1.0) * (x + 1.0)).sqrt());
    (if x < 1.0 { f64::NAN } else { y }) as f32
}

/// The inverse hyperbolic tangent; NaN beyond 1.
#[inline(always)]
pub(crate) fn atanh(x: f32) -> f32 {
    let a = f64::from(x.abs());
    let series = a * polynomial(a * a, [1.0, 1.0 / 3.0, 1.0 / 5.0, 1.0 / 7.0]);
    let y = if a < SMALL { series } else { 0.5 * log((1.0 + a) / (1.0 - a)) };
    y.copysign(x.into()) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    type Pair = (&'static str, fn(f32) -> f32, fn(f64) -> f64);

    const FUNCTIONS: [Pair; 11] = [
        ("sin", sin, f64::sin),
        ("cos", cos, f64::cos),
        ("tan", tan, f64::tan),
        ("asin", asin, f64::asin),
        ("acos", acos, f64::acos),
        ("atan", atan, f64::atan),
        ("sinh", sinh, f64::sinh),
        ("cosh", cosh, f64::cosh),
        ("asinh", asinh, libm::asinh),
        ("acosh", acosh, f64::acosh),
        ("atanh", atanh, f64::atanh),
    ];

    #[test]
    fn errors_stay_below_what_the_comments_state() {
        let near = |x: f32| (-500..500).map(move |i| f32::from_bits((x.to_bits() as i32 + i) as u32));
        let edges = [
            0.5f32,
            1.0 - 5e-5,
            1.0 + 5e-5,
            2.414_213_7,
            0.414_213_57,
            core::f32::consts::FRAC_PI_2,
            core::f32::consts::PI,
            1.0 / 32.0,
        ];
        let points: Vec<f32> = (0..=u32::MAX)
            .step_by(2003)
            .map(f32::from_bits)
            .chain(edges.into_iter().flat_map(near))
            .chain((0..200_000).map(|i| i as f32 * 0.05))
            .flat_map(|x| [x, -x])
            .collect();
        for (name, f, reference) in FUNCTIONS {
            let is_angle = ["sin", "cos", "tan"].contains(&name);
            let mut worst = (0.0, 0.0);
            for &x in points.iter().filter(|x| !is_angle || x.is_nan() || x.abs() <= ANGLE_MAX) {
                let (found, expected) = (f(x), reference(f64::from(x)));
                let rounded = expected as f32;
                let is_same = found == rounded && found.is_sign_negative() == rounded.is_sign_negative();
                if is_same || found.is_nan() && rounded.is_nan() {
                    continue;
                }
                let exponent = expected.abs().max(f64::from(f32::MIN_POSITIVE)).log2().floor();
                let error = (f64::from(found) - expected).abs() / 2f64.powf(exponent - 23.0);
                assert!(error < 2.0, "{name}({x}) = {found}, not {expected}");
                if error > worst.0 {
                    worst = (error, x);
                }
            }
            assert!(worst.0 <= 0.51, "{name}: {} ulp at {}", worst.0, worst.1);
        }
    }

    #[test]
    fn special_arguments_have_exact_results() {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        for (name, f, _) in FUNCTIONS {
            assert!(f(nan).is_nan(), "{name}");
        }
        for f in [sin, tan, asin, atan, sinh, asinh, atanh] {
            assert_eq!(f(0.0).to_bits(), 0);
            assert_eq!(f(-0.0).to_bits(), (-0.0f32).to_bits());
        }
        assert_eq!([cos(0.0), cos(-0.0), cosh(-0.0), acosh(1.0), acos(1.0)], [1.0, 1.0, 1.0, 0.0, 0.0]);
        assert_eq!([sinh(inf), sinh(-inf), cosh(-inf)], [inf, -inf, inf]);
        assert_eq!(
            [sinh(-1e30), asinh(-inf), acosh(inf), atanh(1.0), atanh(-1.0)],
            [-inf, -inf, inf, inf, -inf]
        );
        assert_eq!(
            [atan(inf), atan(-inf), asin(-1.0)],
            [FRAC_PI_2 as f32, -FRAC_PI_2 as f32, -FRAC_PI_2 as f32]
        );
        assert_eq!([acos(-1.0), acos(0.0), acos(-0.0)], [PI as f32, FRAC_PI_2 as f32, FRAC_PI_2 as f32]);
        for x in [1.000_000_1f32, -1.5, inf, -inf] {
            assert!(asin(x).is_nan() && acos(x).is_nan() && atanh(x).is_nan(), "{x}");
        }
        for x in [0.999_999_9f32, 0.0, -1.0, -2.0, -1e30, -inf] {
            assert!(acosh(x).is_nan(), "{x}");
        }
    }
}
