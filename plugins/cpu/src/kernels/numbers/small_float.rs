//! Floats of 16 bits and fewer: what their bits mean, and the nearest of them to a number.
//!
//! A [`Format`] is data, so one function reads all formats and one writes them. Loops over f16 and bf16, which are
//! common, have conversions of their own in [`crate::kernels::numbers::convert`].
//!
//! **Source**: IEEE 754 for f16, OCP 8-bit Floating Point 1.0 and Microscaling Formats 1.0, and the tables of
//! ONNX's Cast 28 for what is out of range.

use devbay_plugin_api::sdk::{BF16, DType, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16};

/// Use of the largest codes of a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Special {
    /// The largest exponent is infinity and NaN, as in IEEE 754.
    Infinity,
    /// All ones are NaN; no infinity.
    OnesNan,
    /// The code of -0 is NaN; no infinity and no -0.
    NegativeZeroNan,
    /// Numbers alone.
    None,
}

/// Treatment of a number above the largest of a format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Overflow {
    /// The largest number, of the same sign; so for infinities.
    Saturate,
    /// Infinity, or NaN where there is none.
    Infinite,
}

/// A format with a sign, an exponent and a mantissa.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) bits: u32,
    mantissa_bits: u32,
    bias: i32,
    special: Special,
}

const fn format(bits: u32, mantissa_bits: u32, bias: i32, special: Special) -> Format {
    Format { bits, mantissa_bits, bias, special }
}

impl Format {
    /// IEEE 754's of 16 bits.
    pub(crate) const BINARY16: Self = format(16, 10, 15, Special::Infinity);
    /// The upper half of binary32.
    pub(crate) const BFLOAT16: Self = format(16, 7, 127, Special::Infinity);

    /// The format of an element type; None for other types, and for exponents alone ([`PowerOfTwo`]).
    pub(crate) fn of(dtype: DType) -> Option<Self> {
        Some(match dtype {
            F16 => Self::BINARY16,
            BF16 => Self::BFLOAT16,
            F8E4M3FN => format(8, 3, 7, Special::OnesNan),
            F8E4M3FNUZ => format(8, 3, 8, Special::NegativeZeroNan),
            F8E5M2 => format(8, 2, 15, Special::Infinity),
            F8E5M2FNUZ => format(8, 2, 16, Special::NegativeZeroNan),
            F4E2M1 => format(4, 1, 1, Special::None),
            _ => return None,
        })
    }

    fn sign(self) -> u32 {
        1 << (self.bits - 1)
    }

    /// Returns whether numbers out of range become infinite unless a node says something else.
    pub(crate) fn is_ieee(self) -> bool {
        self.special == Special::Infinity && self.bits == 16
    }

    /// The largest finite code.
    fn largest(self) -> u32 {
        match self.special {
            Special::Infinity => self.infinity() - 1,
            Special::OnesNan => self.sign() - 2,
            Special::NegativeZeroNan | Special::None => self.sign() - 1,
        }
    }

    /// The code of infinity, where there is one.
    fn infinity(self) -> u32 {
        self.sign() - (1 << self.mantissa_bits)
    }

    /// The code of NaN with a sign; for a format without NaN that of -0, as in ONNX's test data.
    fn nan(self, sign: u32) -> u32 {
        match self.special {
            Special::Infinity => sign | self.infinity() | 1 << (self.mantissa_bits - 1),
            Special::OnesNan => sign | (self.sign() - 1),
            Special::NegativeZeroNan | Special::None => self.sign(),
        }
    }

    /// The number of a code; exact.
    pub(crate) fn decode(self, code: u32) -> f64 {
        let magnitude = code & (self.sign() - 1);
        let is_negative = code & self.sign() != 0;
        let signed = |x: f64| if is_negative { -x } else { x };
        match self.special {
            Special::Infinity if magnitude == self.infinity() => return signed(f64::INFINITY),
            Special::Infinity if magnitude > self.infinity() => return signed(f64::NAN),
            Special::OnesNan if magnitude == self.sign() - 1 => return signed(f64::NAN),
            Special::NegativeZeroNan if code == self.sign() => return f64::NAN,
            _ => {}
        }
        let exponent = (magnitude >> self.mantissa_bits) as i32;
        let mantissa = magnitude & ((1 << self.mantissa_bits) - 1);
        // Below the first exponent there is no leading one.
        let leading = if exponent > 0 { 1 << self.mantissa_bits } else { 0 };
        let quantum = power_of_two(exponent.max(1) - self.bias - self.mantissa_bits as i32);
        signed(f64::from(mantissa | leading) * quantum)
    }

    /// The code of the nearest number, ties to even.
    pub(crate) fn encode(self, x: f64, overflow: Overflow) -> u32 {
        let sign = if x.is_sign_negative() { self.sign() } else { 0 };
        if x.is_nan() {
            return self.nan(sign);
        }
        let a = x.abs();
        // Exponents below the first one share its quantum. Those of f64's own subnormals are far below.
        let exponent = ((a.to_bits() >> 52) as i32 - 1023).max(1 - self.bias);
        let code = if exponent > 200 {
            u32::MAX
        } else {
            let quanta = (a * power_of_two(self.mantissa_bits as i32 - exponent)).round_ties_even() as u32;
            // The leading one of the mantissa counts the exponent up, and so does a carry of the rounding.
            (((exponent + self.bias - 1) as u32) << self.mantissa_bits) + quanta
        };
        if code > self.largest() {
            return match (overflow, self.special) {
                (Overflow::Saturate, _) | (_, Special::None) => sign | self.largest(),
                (_, Special::Infinity) => sign | self.infinity(),
                _ => self.nan(sign),
            };
        }
        if code == 0 && self.special == Special::NegativeZeroNan {
            return 0;
        }
        sign | code
    }
}

/// 2^k for k within the exponents of f64's normal numbers.
fn power_of_two(k: i32) -> f64 {
    f64::from_bits(((k + 1023) as u64) << 52)
}

/// Rounding of a number to a power of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rounding {
    Up,
    Down,
    /// Ties go up.
    Nearest,
}

/// The type f8e8m0: powers of two from 2^-127 to 2^127, and NaN; no sign and no zero.
pub(crate) struct PowerOfTwo;

impl PowerOfTwo {
    pub(crate) const DTYPE: DType = F8E8M0;
    const NAN: u8 = 0xff;

    /// The number of a code.
    pub(crate) fn decode(code: u8) -> f64 {
        if code == Self::NAN { f64::NAN } else { power_of_two(i32::from(code) - 127) }
    }

    /// The code of a number. Negative numbers have none: NaN. What is too large or too small, 0 among it, is the
    /// last or first power, or NaN without saturation.
    pub(crate) fn encode(x: f64, rounding: Rounding, overflow: Overflow) -> u8 {
        if x.is_nan() || x < 0.0 {
            return Self::NAN;
        }
        let outside = |limit: u8| if overflow == Overflow::Saturate { limit } else { Self::NAN };
        if x < power_of_two(-127) {
            return outside(0);
        }
        let exponent = (x.to_bits() >> 52) as i32 - 1023;
        // From 1 to below 2; infinity has an exponent beyond the range.
        let mantissa = f64::from_bits(x.to_bits() & ((1 << 52) - 1) | 1023 << 52);
        let is_up = match rounding {
            Rounding::Up => mantissa > 1.0,
            Rounding::Down => false,
            Rounding::Nearest => mantissa >= 1.5,
        };
        match exponent + i32::from(is_up) {
            exponent if exponent > 127 => outside(0xfe),
            exponent => (exponent + 127) as u8,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [DType; 7] = [F16, BF16, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1];

    #[test]
    fn every_code_comes_back() {
        for dtype in ALL {
            let format = Format::of(dtype).expect("a format");
            for code in 0..1u32 << format.bits {
                let x = format.decode(code);
                let back = format.encode(x, Overflow::Infinite);
                assert!(
                    back == code || x.is_nan() && format.decode(back).is_nan(),
                    "{dtype:?} {code:#x} {x}"
                );
            }
        }
        for code in 0..=u8::MAX {
            assert_eq!(
                PowerOfTwo::encode(PowerOfTwo::decode(code), Rounding::Nearest, Overflow::Infinite),
                code
            );
        }
    }

    /// Between two neighbours the nearer one, half-way the one whose last bit is 0.
    #[test]
    fn numbers_between_codes_go_to_the_nearest() {
        for dtype in ALL {
            let format = Format::of(dtype).expect("a format");
            for code in 0..format.largest() {
                let (low, high) = (format.decode(code), format.decode(code + 1));
                let middle = (low + high) / 2.0;
                let even = code + (code & 1);
                let encode = |x: f64| format.encode(x, Overflow::Infinite);
                assert_eq!(encode(middle), even, "{dtype:?} {middle}");
                assert_eq!(encode(low + (high - low) * 0.49), code, "{dtype:?} {low}");
                assert_eq!(encode(low + (high - low) * 0.51), code + 1, "{dtype:?} {low}");
            }
        }
    }

    /// The limits of the formats' specifications.
    #[test]
    fn largest_and_smallest_numbers() {
        let limits = [
            (F16, 65504.0, 2f64.powi(-24)),
            (BF16, 2f64.powi(127) * (2.0 - 2f64.powi(-7)), 2f64.powi(-133)),
            (F8E4M3FN, 448.0, 2f64.powi(-9)),
            (F8E4M3FNUZ, 240.0, 2f64.powi(-10)),
            (F8E5M2, 57344.0, 2f64.powi(-16)),
            (F8E5M2FNUZ, 57344.0, 2f64.powi(-17)),
            (F4E2M1, 6.0, 0.5),
        ];
        for (dtype, largest, smallest) in limits {
            let format = Format::of(dtype).expect("a format");
            assert_eq!(format.decode(format.largest()), largest, "{dtype:?}");
            assert_eq!(format.decode(1), smallest, "{dtype:?}");
            assert_eq!(format.decode(format.encode(-1e300, Overflow::Saturate)), -largest, "{dtype:?}");
            assert_eq!(format.decode(format.encode(1e-300, Overflow::Saturate)), 0.0, "{dtype:?}");
        }
    }

    /// The tables of ONNX's Cast.
    #[test]
    fn what_is_out_of_range() {
        let encode = |dtype, x, overflow| {
            let format = Format::of(dtype).expect("a format");
            format.decode(format.encode(x, overflow))
        };
        let inf = f64::INFINITY;
        for dtype in [F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ] {
            assert!(encode(dtype, inf, Overflow::Saturate).is_finite(), "{dtype:?}");
            assert!(encode(dtype, f64::NAN, Overflow::Saturate).is_nan(), "{dtype:?}");
            assert!(!encode(dtype, 1e6, Overflow::Infinite).is_finite(), "{dtype:?}");
        }
        assert_eq!(encode(F8E5M2, -inf, Overflow::Infinite), -inf);
        assert!(encode(F8E4M3FN, -inf, Overflow::Infinite).is_nan());
        assert_eq!(encode(F8E4M3FNUZ, -0.0, Overflow::Saturate).to_bits(), 0);
        assert_eq!(encode(F8E4M3FN, -0.0, Overflow::Saturate).to_bits(), (-0.0f64).to_bits());
        assert_eq!(encode(F4E2M1, f64::NAN, Overflow::Infinite), 0.0);
        assert_eq!(encode(F4E2M1, -inf, Overflow::Infinite), -6.0);
        // The first number that rounds to infinity, and the last that does not.
        assert_eq!(encode(F16, 65520.0, Overflow::Infinite), inf);
        assert_eq!(encode(F16, 65519.99, Overflow::Infinite), 65504.0);
    }

    #[test]
    fn powers_of_two() {
        let encode = |x, rounding, overflow| PowerOfTwo::encode(x, rounding, overflow);
        for (x, [up, down, nearest]) in
            [(1.0, [127, 127, 127]), (1.1, [128, 127, 127]), (1.5, [128, 127, 128]), (0.124, [124, 123, 124])]
        {
            assert_eq!(encode(x, Rounding::Up, Overflow::Saturate), up, "{x}");
            assert_eq!(encode(x, Rounding::Down, Overflow::Saturate), down, "{x}");
            assert_eq!(encode(x, Rounding::Nearest, Overflow::Saturate), nearest, "{x}");
        }
        for (x, limit) in [(0.0, 0), (1e-40, 0), (1e39, 0xfe), (f64::INFINITY, 0xfe)] {
            assert_eq!(encode(x, Rounding::Up, Overflow::Saturate), limit, "{x}");
            assert_eq!(encode(x, Rounding::Nearest, Overflow::Infinite), 0xff, "{x}");
        }
        assert_eq!(encode(-1.0, Rounding::Up, Overflow::Saturate), 0xff);
    }
}
