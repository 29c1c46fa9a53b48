//! The order of elements of any type, as integers that compare alike.
//!
//! Zeros are equal, whatever their sign; what is no number comes last, as NumPy has it.

use crate::kernels::numbers::small_float::Format;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use devbay_plugin_api::sdk::{DType, Error, Result};

/// The place of an element in the order of its type.
pub(crate) type KeyFn = unsafe fn(*const u8) -> u64;

macro_rules! key {
    ($type:ty, $key:expr) => {{
        unsafe fn key(at: *const u8) -> u64 {
            let key: fn($type) -> u64 = $key;
            // SAFETY: the caller has an element of this type there (`key_of`).
            key(unsafe { at.cast::<$type>().read_unaligned() })
        }
        key
    }};
}

/// The function for a type: its caller has an element there.
///
/// # Errors
/// Unsupported for a type without an order.
pub(crate) fn key_of(dtype: DType) -> Result<KeyFn> {
    Ok(match dtype {
        F32 => key!(f32, |x| of_float(x.into())),
        F64 => key!(f64, of_float),
        F16 => key!(u16, |x| of_float(Format::BINARY16.decode(x.into()))),
        BF16 => key!(u16, |x| of_float(Format::BFLOAT16.decode(x.into()))),
        I64 => key!(i64, of_int),
        I32 => key!(i32, |x| of_int(x.into())),
        I16 => key!(i16, |x| of_int(x.into())),
        I8 => key!(i8, |x| of_int(x.into())),
        U64 => key!(u64, |x| x),
        U32 => key!(u32, u64::from),
        U16 => key!(u16, u64::from),
        U8 => key!(u8, u64::from),
        BOOL => key!(u8, |x| u64::from(x != 0)),
        dtype => return Err(Error::unsupported(format!("dtype {dtype:?}"))),
    })
}

fn of_int(value: i64) -> u64 {
    value as u64 ^ 1 << 63
}

fn of_float(value: f64) -> u64 {
    if value.is_nan() {
        return u64::MAX;
    }
    // Adding 0 makes a zero positive.
    let bits = (value + 0.0).to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

#[cfg(test)]
mod tests {
    use super::{of_float, of_int};

    #[test]
    fn keys_compare_as_their_elements() {
        let floats = [f64::NEG_INFINITY, -2.5, -1.0, -1e-300, 0.0, 1e-300, 1.0, f64::INFINITY, f64::NAN];
        assert!(floats.map(of_float).is_sorted_by(|a, b| a < b));
        assert_eq!(of_float(-0.0), of_float(0.0));
        assert_eq!(of_float(-f64::NAN), of_float(f64::NAN));
        assert!([i64::MIN, -1, 0, 1, i64::MAX].map(of_int).is_sorted_by(|a, b| a < b));
    }
}
