//! The order of elements of any type, as integers that compare alike.
//!
//! Zeros are equal, whatever their sign; what is no number comes last, as NumPy has it.

use crate::kernels::numbers::real::{Brain, Half, Stored, stored};
use devbay_plugin_api::sdk::{BOOL, DType, Result};

/// An element type with an order.
pub(crate) trait Ordered: Copy + 'static {
    /// Integers that are compared instead of elements.
    type Key: Into<u64> + Copy + Ord + 'static;

    /// The place of an element in the order of its type.
    fn key(self) -> Self::Key;
}

macro_rules! ordered {
    ($($type:ty: $key:ty = |$x:ident| $value:expr;)*) => {$(
        impl Ordered for $type {
            type Key = $key;

            #[inline(always)]
            fn key(self) -> $key {
                let $x = self;
                $value
            }
        }
    )*};
}
ordered! {
    f32: u32 = |x| of_single(x);
    f64: u64 = |x| of_double(x);
    // Exact in f32.
    Half: u32 = |x| of_single(x.value() as f32);
    Brain: u32 = |x| of_single(x.value() as f32);
    i64: u64 = |x| x as u64 ^ 1 << 63;
    i32: u32 = |x| x as u32 ^ 1 << 31;
    i16: u32 = |x| i32::from(x).key();
    i8: u32 = |x| i32::from(x).key();
    u64: u64 = |x| x;
    u32: u32 = |x| x;
    u16: u32 = |x| x.into();
    u8: u32 = |x| x.into();
}

/// The place of an element in the order of its type.
pub(crate) type KeyFn = unsafe fn(*const u8) -> u64;

/// The function for a type: its caller has an element there.
///
/// # Errors
/// Unsupported for a type without an order.
pub(crate) fn key_of(dtype: DType) -> Result<KeyFn> {
    fn reader<T: Ordered>() -> KeyFn {
        unsafe fn key<T: Ordered>(at: *const u8) -> u64 {
            // SAFETY: the caller has an element of this type there (`key_of`).
            unsafe { at.cast::<T>().read_unaligned() }.key().into()
        }
        key::<T>
    }
    if dtype == BOOL {
        // SAFETY: the caller has an element there (`key_of`).
        return Ok(|at| u64::from(unsafe { at.read() } != 0));
    }
    stored!(dtype, reader())
}

macro_rules! of_float {
    ($name:ident, $float:ty, $bits:ty) => {
        #[inline(always)]
        fn $name(value: $float) -> $bits {
            const SIGN: $bits = 1 << (<$bits>::BITS - 1);
            // Adding 0 makes a zero positive.
            let bits = (value + 0.0).to_bits();
            let key = if bits & SIGN == 0 { bits | SIGN } else { !bits };
            if value.is_nan() { <$bits>::MAX } else { key }
        }
    };
}
of_float!(of_single, f32, u32);
of_float!(of_double, f64, u64);

#[cfg(test)]
mod tests {
    use super::{Ordered, key_of};
    use devbay_plugin_api::sdk::BOOL;

    #[test]
    fn keys_compare_as_their_elements() {
        let floats = [f64::NEG_INFINITY, -2.5, -1.0, -1e-30, 0.0, 1e-30, 1.0, f64::INFINITY, f64::NAN];
        assert!(floats.map(f64::key).is_sorted_by(|a, b| a < b));
        assert!(floats.map(|x| (x as f32).key()).is_sorted_by(|a, b| a < b));
        assert_eq!((-0.0f64).key(), 0.0f64.key());
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        assert_eq!((-f64::NAN).key(), f64::NAN.key());
        assert_eq!((-f32::NAN).key(), f32::NAN.key());
        assert!([i64::MIN, -1, 0, 1, i64::MAX].map(i64::key).is_sorted_by(|a, b| a < b));
        assert!([i32::MIN, -1, 0, 1, i32::MAX].map(i32::key).is_sorted_by(|a, b| a < b));
        assert!([i8::MIN, -1, 0, 1, i8::MAX].map(i8::key).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn all_bytes_but_0_are_true() {
        let key = key_of(BOOL).expect("truth values have an order");
        // SAFETY: each is one element.
        let keys = [0u8, 1, 7].map(|byte| unsafe { key(&byte) });
        assert_eq!(keys, [0, 1, 1]);
    }
}
