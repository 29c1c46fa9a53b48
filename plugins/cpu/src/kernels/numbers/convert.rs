//! Elements of every type as numbers: one at a time ([`Kind`]), and the common conversions as loops ([`Convert`]).
//!
//! Reading is exact: integers are read as integers, all floats are exact in f64. Writing rounds once, to the nearest,
//! ties to even. Elements of fewer than 8 bits are packed, low bits first. Each write begins and ends at
//! whole bytes, or at the end of the tensor, whose last bits are 0.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::numbers::small_float::{Format, Overflow, PowerOfTwo, Rounding};
use devbay_plugin_api::abi::{DEVBAY_DTYPE_INT, DEVBAY_DTYPE_UINT};
use devbay_plugin_api::sdk::{BF16, BOOL, DType, Error, F32, F64, Result};

/// A loop that converts `n` elements from one type to another.
///
/// # Safety
/// There are `n` elements of the types behind the pointers, and they do not overlap.
pub(crate) type Convert = unsafe fn(*const u8, *mut u8, usize);

/// An element's value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Value {
    Int(i128),
    Float(f64),
}

impl Value {
    /// As a float; a large integer is rounded to the nearest.
    pub(crate) fn to_f64(self) -> f64 {
        match self {
            Self::Int(x) => x as f64,
            Self::Float(x) => x,
        }
    }
}

/// Treatment of numbers that are rounded and out of range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    /// For floats of 8 bits.
    pub overflow: Overflow,
    /// For powers of two.
    pub rounding: Rounding,
}

impl Limits {
    /// Limits of Cast unless the node says something else.
    pub(crate) const DEFAULT: Self = Self { overflow: Overflow::Saturate, rounding: Rounding::Up };
}

/// Format in which elements of a type are read and written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Int { bits: u32, is_signed: bool },
    Bool,
    F32,
    F64,
    Small(Format),
    PowerOfTwo,
}

impl Kind {
    /// The kind of an element type.
    ///
    /// # Errors
    /// Unsupported for complex numbers and types that are not known.
    pub(crate) fn of(dtype: DType) -> Result<Self> {
        let bits = u32::from(dtype.bits);
        match (dtype.code, bits) {
            _ if dtype == F32 => Ok(Self::F32),
            _ if dtype == F64 => Ok(Self::F64),
            _ if dtype == BOOL => Ok(Self::Bool),
            _ if dtype == PowerOfTwo::DTYPE => Ok(Self::PowerOfTwo),
            (DEVBAY_DTYPE_INT | DEVBAY_DTYPE_UINT, 2 | 4 | 8 | 16 | 32 | 64) => {
                Ok(Self::Int { bits, is_signed: dtype.code == DEVBAY_DTYPE_INT })
            }
            _ => Format::of(dtype)
                .map(Self::Small)
                .ok_or_else(|| Error::unsupported(format!("elements of {dtype:?}"))),
        }
    }

    /// Bits of an element.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Self::Int { bits, .. } => bits,
            Self::Bool | Self::PowerOfTwo => 8,
            Self::F32 => 32,
            Self::F64 => 64,
            Self::Small(format) => format.bits,
        }
    }

    /// The smallest and largest integer, for integers.
    pub(crate) fn integers(self) -> Option<(i128, i128)> {
        match self {
            Self::Int { bits, is_signed: true } => Some((-(1 << (bits - 1)), (1 << (bits - 1)) - 1)),
            Self::Int { bits, is_signed: false } => Some((0, (1 << bits) - 1)),
            _ => None,
        }
    }

    /// A number as an element of this type holds it.
    pub(crate) fn rounded(self, x: f64) -> f64 {
        match self {
            Self::F32 => f64::from(x as f32),
            Self::Small(format) => format.decode(format.encode(x, Overflow::Infinite)),
            _ => x,
        }
    }

    /// Element `i`.
    ///
    /// # Safety
    /// There are more than `i` elements behind the pointer.
    pub(crate) unsafe fn read(self, x: *const u8, i: usize) -> Value {
        // SAFETY: there are more than `i` elements of these bits (# Safety).
        let code = unsafe { read_bits(x, i, self.bits()) };
        match self {
            Self::Int { bits, is_signed: true } => {
                Value::Int(i128::from((code << (64 - bits)) as i64 >> (64 - bits)))
            }
            Self::Int { is_signed: false, .. } => Value::Int(i128::from(code)),
            Self::Bool => Value::Int(i128::from(code != 0)),
            Self::F32 => Value::Float(f64::from(f32::from_bits(code as u32))),
            Self::F64 => Value::Float(f64::from_bits(code)),
            Self::Small(format) => Value::Float(format.decode(code as u32)),
            Self::PowerOfTwo => Value::Float(PowerOfTwo::decode(code as u8)),
        }
    }

    /// Writes element `i`, as Cast does: integers keep their low bits; floats become integers without their fraction,
    /// saturated from 8 bits on, by their low bits below, and 0 for NaN; what is too large for a float of 16 bits or
    /// more is infinite.
    ///
    /// # Safety
    /// There are more than `i` elements behind the pointer. No other thread writes their byte, and below 8 bits
    /// elements are written in order.
    pub(crate) unsafe fn write(self, y: *mut u8, i: usize, value: Value, limits: Limits) {
        let code = match (self, value) {
            (Self::Int { .. }, Value::Int(x)) => x as u64,
            (Self::Int { bits: 2 | 4, .. }, Value::Float(x)) => x as i64 as u64,
            (Self::Int { .. }, Value::Float(x)) => {
                let (low, high) = self.integers().unwrap_or_default();
                (x as i128).clamp(low, high) as u64
            }
            (Self::Bool, Value::Int(x)) => u64::from(x != 0),
            (Self::Bool, Value::Float(x)) => u64::from(x != 0.0),
            (Self::F32, Value::Int(x)) => u64::from((x as f32).to_bits()),
            (Self::F32, Value::Float(x)) => u64::from((x as f32).to_bits()),
            (Self::F64, value) => value.to_f64().to_bits(),
            (Self::Small(format), value) => {
                let overflow = if format.is_ieee() { Overflow::Infinite } else { limits.overflow };
                u64::from(format.encode(sticky(value), overflow))
            }
            (Self::PowerOfTwo, value) => {
                u64::from(PowerOfTwo::encode(sticky(value), limits.rounding, limits.overflow))
            }
        };
        // SAFETY: there are more than `i` elements of these bits, whose byte no other thread writes (# Safety).
        unsafe { write_bits(y, i, self.bits(), code) };
    }
}

/// A float that rounds to fewer bits as the value itself does: where an integer needs more bits than f64 has, the
/// last one says so.
fn sticky(value: Value) -> f64 {
    match value {
        Value::Float(x) => x,
        Value::Int(x) => {
            let nearest = x as f64;
            if nearest as i128 == x {
                return nearest;
            }
            let is_above = (nearest as i128).unsigned_abs() > x.unsigned_abs();
            f64::from_bits((nearest.to_bits() - u64::from(is_above)) | 1)
        }
    }
}

/// The bits of element `i`.
///
/// # Safety
/// There are more than `i` elements of `bits` bits, a power of two up to 64.
unsafe fn read_bits(x: *const u8, i: usize, bits: u32) -> u64 {
    match bits {
        // SAFETY: there are more than `i` elements of 64 bits (# Safety).
        64 => unsafe { x.cast::<u64>().add(i).read_unaligned() },
        // SAFETY: there are more than `i` elements of 32 bits (# Safety).
        32 => u64::from(unsafe { x.cast::<u32>().add(i).read_unaligned() }),
        // SAFETY: there are more than `i` elements of 16 bits (# Safety).
        16 => u64::from(unsafe { x.cast::<u16>().add(i).read_unaligned() }),
        // SAFETY: there are more than `i` elements of 8 bits (# Safety).
        8 => u64::from(unsafe { x.add(i).read() }),
        _ => {
            let in_byte = 8 / bits as usize;
            // SAFETY: there are more than `i` elements, so there is the byte of this one (# Safety).
            let byte = unsafe { x.add(i / in_byte).read() };
            u64::from(byte >> (i % in_byte * bits as usize)) & ((1 << bits) - 1)
        }
    }
}

/// Writes the low bits of `code` as element `i`.
///
/// # Safety
/// 1. There are more than `i` elements of `bits` bits, a power of two up to 64.
/// 2. No other thread writes the byte, and below 8 bits elements are written in order.
unsafe fn write_bits(y: *mut u8, i: usize, bits: u32, code: u64) {
    match bits {
        // SAFETY: there are more than `i` elements of 64 bits (# Safety, 1).
        64 => unsafe { y.cast::<u64>().add(i).write_unaligned(code) },
        // SAFETY: there are more than `i` elements of 32 bits (# Safety, 1).
        32 => unsafe { y.cast::<u32>().add(i).write_unaligned(code as u32) },
        // SAFETY: there are more than `i` elements of 16 bits (# Safety, 1).
        16 => unsafe { y.cast::<u16>().add(i).write_unaligned(code as u16) },
        // SAFETY: there are more than `i` elements of 8 bits (# Safety, 1).
        8 => unsafe { y.add(i).write(code as u8) },
        _ => {
            let in_byte = 8 / bits as usize;
            let place = y.wrapping_add(i / in_byte);
            let code = (code & ((1 << bits) - 1)) << (i % in_byte * bits as usize);
            // The first element of a byte clears the others.
            // SAFETY: there is the byte of element `i` (# Safety, 1), whose elements before this one were written (2).
            let before = if i.is_multiple_of(in_byte) { 0 } else { unsafe { place.read() } };
            // SAFETY: there is the byte of element `i` (# Safety, 1), which no other thread writes (2).
            unsafe { place.write(before | code as u8) };
        }
    }
}

/// f16 or bf16 to f32.
pub(crate) fn half_to_single(dtype: DType, isa: Isa) -> Convert {
    if dtype == BF16 { each::<BrainToSingle>(isa) } else { each::<HalfToSingle>(isa) }
}

/// f32 to f16 or bf16.
pub(crate) fn single_to_half(dtype: DType, isa: Isa) -> Convert {
    if dtype == BF16 { each::<SingleToBrain>(isa) } else { each::<SingleToHalf>(isa) }
}

/// Bytes as they are.
///
/// # Safety
/// As [`Convert`].
pub(crate) unsafe fn bytes(x: *const u8, y: *mut u8, n: usize) {
    // SAFETY: both hold `n` bytes, and are apart (# Safety of `Convert`).
    unsafe { core::ptr::copy_nonoverlapping(x, y, n) };
}

/// A function of bits, without branches, so that the compiler vectorises the loop over it. The instructions that processors have for
/// f16 keep the digits of what is no number, of which this makes one and the same number's bits everywhere.
trait Bits: 'static {
    type From: Copy;
    type To;

    fn of(x: Self::From) -> Self::To;
}

dispatch! { fn each<F: Bits>(x: *const u8, y: *mut u8, n: usize) = each_body }

/// # Safety
/// As [`Convert`].
#[inline(always)]
unsafe fn each_body<A: Arith, F: Bits>(x: *const u8, y: *mut u8, n: usize) {
    let (x, y) = (x.cast::<F::From>(), y.cast::<F::To>());
    for i in 0..n {
        // SAFETY: `i` is below `n`, and `x` has `n` elements (# Safety of `Convert`).
        let value = unsafe { x.add(i).read_unaligned() };
        // SAFETY: `i` is below `n`, and `y` has `n` elements (# Safety of `Convert`).
        unsafe { y.add(i).write_unaligned(F::of(value)) };
    }
}

struct BrainToSingle;

impl Bits for BrainToSingle {
    type From = u16;
    type To = u32;

    #[inline(always)]
    fn of(x: u16) -> u32 {
        u32::from(x) << 16
    }
}

struct SingleToBrain;

impl Bits for SingleToBrain {
    type From = u32;
    type To = u16;

    #[inline(always)]
    fn of(x: u32) -> u16 {
        let rounded = x.wrapping_add(0x7fff + (x >> 16 & 1)) >> 16;
        let nan = x >> 16 | 0x40;
        (if x & 0x7fff_ffff > 0x7f80_0000 { nan } else { rounded }) as u16
    }
}

struct HalfToSingle;

impl Bits for HalfToSingle {
    type From = u16;
    type To = u32;

    #[inline(always)]
    fn of(x: u16) -> u32 {
        let magnitude = u32::from(x & 0x7fff) << 13;
        // 2^112 makes up for the biases, and makes normal numbers of those below the first exponent.
        let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
        let special = if magnitude >= 0x0f80_0000 { 0x7f80_0000 } else { 0 };
        scaled.to_bits() | special | u32::from(x & 0x8000) << 16
    }
}

struct SingleToHalf;

impl Bits for SingleToHalf {
    type From = u32;
    type To = u16;

    #[inline(always)]
    fn of(x: u32) -> u16 {
        let (a, sign) = (x & 0x7fff_ffff, x >> 16 & 0x8000);
        let normal = a.wrapping_add(0xfff + (a >> 13 & 1)).wrapping_sub(0x3800_0000) >> 13;
        // The sum with 1/2 has the quantum of the smallest numbers, so that adding rounds to it.
        let small = (f32::from_bits(a) + 0.5).to_bits().wrapping_sub(0x3f00_0000);
        let finite = if a < 0x3880_0000 { small } else { normal };
        let limited = if a >= 0x4780_0000 { 0x7c00 } else { finite };
        (sign | if a > 0x7f80_0000 { 0x7e00 } else { limited }) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::isas;
    use bytemuck::bytes_of;
    use devbay_plugin_api::sdk::{F8E4M3FN, F16, I8, I64, U8, U64};

    const I4: DType = DType { code: DEVBAY_DTYPE_INT, bits: 4, lanes: 1 };
    const U2: DType = DType { code: DEVBAY_DTYPE_UINT, bits: 2, lanes: 1 };

    fn cast(from: DType, bytes: &[u8], to: DType, n: usize) -> Vec<u8> {
        let (from, to) = (Kind::of(from).expect("a kind"), Kind::of(to).expect("a kind"));
        let mut out = vec![0xa5; (n * to.bits() as usize).div_ceil(8)];
        for i in 0..n {
            // SAFETY: both have `n` elements.
            let value = unsafe { from.read(bytes.as_ptr(), i) };
            // SAFETY: both have `n` elements.
            unsafe { to.write(out.as_mut_ptr(), i, value, Limits::DEFAULT) };
        }
        out
    }

    #[test]
    fn the_loops_round_as_the_formats_say() {
        for (dtype, isa) in [F16, BF16].into_iter().flat_map(|dtype| isas().map(move |isa| (dtype, isa))) {
            let format = Format::of(dtype).expect("a format");
            // One more than whole vectors.
            let codes: Vec<u16> = (0..=u16::MAX).chain([0x3c00]).collect();
            let mut singles = vec![0f32; codes.len()];
            // SAFETY: both have as many elements; the instructions are this machine's.
            unsafe {
                half_to_single(dtype, isa)(codes.as_ptr().cast(), singles.as_mut_ptr().cast(), codes.len())
            };
            for (&code, &found) in codes.iter().zip(&singles) {
                let expected = format.decode(u32::from(code)) as f32;
                let same = found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan();
                assert!(same, "{code:#x} on {isa:?}");
            }
            let edges = [0x3880_0000, 0x387f_ffff, 0x477f_efff, 0x477f_f000, 0x7f80_0001, 0xffc0_0000];
            let singles: Vec<f32> = (0..=u32::MAX).step_by(997).chain(edges).map(f32::from_bits).collect();
            let mut halves = vec![0u16; singles.len()];
            // SAFETY: both have as many elements; the instructions are this machine's.
            unsafe {
                single_to_half(dtype, isa)(singles.as_ptr().cast(), halves.as_mut_ptr().cast(), singles.len())
            };
            for (&x, &found) in singles.iter().zip(&halves) {
                let expected = format.encode(f64::from(x), Overflow::Infinite);
                let is_nan = format.decode(found.into()).is_nan() && format.decode(expected).is_nan();
                assert!(
                    u32::from(found) == expected || is_nan,
                    "{dtype:?} {x}: {found:#x}, not {expected:#x}"
                );
            }
        }
    }

    #[test]
    fn elements_below_a_byte_are_dense_low_bits_first() {
        // -1, 2, -8 in four bits: f, 2, 8, and a last half byte of 0.
        assert_eq!(cast(I8, &[255, 2, 248], I4, 3), [0x2f, 0x08]);
        assert_eq!(cast(I4, &[0x2f, 0x08], I8, 3), [255, 2, 248]);
        assert_eq!(cast(U8, &[1, 2, 3, 0, 7], U2, 5), [0b00_11_10_01, 0b11]);
        assert_eq!(cast(F32, bytes_of(&[-9.0f32, 8.0, 1.9, f32::NAN]), I4, 4), [0x87, 0x01]);
    }

    #[test]
    fn integers_keep_low_bits_and_floats_saturate() {
        assert_eq!(cast(I64, bytes_of(&300i64), U8, 1), [44]);
        assert_eq!(cast(U64, bytes_of(&u64::MAX), I64, 1), bytes_of(&-1i64));
        assert_eq!(cast(F64, bytes_of(&1e30f64), U64, 1), bytes_of(&u64::MAX));
        assert_eq!(cast(F64, bytes_of(&-1e30f64), I8, 1), [128]);
        assert_eq!(cast(F64, bytes_of(&f64::NAN), I64, 1), [0; 8]);
        assert_eq!(cast(F32, bytes_of(&-0.0f32), BOOL, 1), [0]);
        assert_eq!(cast(F32, bytes_of(&f32::NAN), BOOL, 1), [1]);
    }

    /// 2^60 + 2^52 + 1 is just above the middle of two bf16; in f64 it would be the middle itself.
    #[test]
    fn large_integers_are_rounded_once() {
        let x = (1i64 << 60) + (1 << 52) + 1;
        assert_eq!(cast(I64, bytes_of(&x), BF16, 1), bytes_of(&0x5d81u16));
        assert_eq!(cast(I64, bytes_of(&(x - 1)), BF16, 1), bytes_of(&0x5d80u16));
        assert_eq!(cast(I64, bytes_of(&-x), BF16, 1), bytes_of(&0xdd81u16));
        assert_eq!(cast(I64, bytes_of(&1000i64), F8E4M3FN, 1), [0x7e]);
    }

    #[test]
    fn types_that_are_not_numbers_are_refused() {
        let complex = DType { code: 5, bits: 64, lanes: 1 };
        assert!(Kind::of(complex).is_err_and(|error| error.text().contains("elements of")));
        assert!(Kind::of(DType { code: DEVBAY_DTYPE_INT, bits: 3, lanes: 1 }).is_err());
    }
}
