//! Sets of element types that kernels take.

use devbay_plugin_api::sdk::{BF16, BOOL, DType, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use devbay_plugin_api::sdk::{F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, I2, I4, U2, U4};

/// Floats that ops of mathematics take: loops for f32, often for f64, and conversions for the others.
pub(crate) const FLOATS: &[DType] = &[F32, F16, BF16, F64];

/// Floats that are calculated in f32.
pub(crate) const SINGLES: &[DType] = &[F32, F16, BF16];

/// Element types of arithmetic.
pub(crate) const NUMBERS: &[DType] = &[F32, I64, I32, F16, BF16, F64, I8, I16, U8, U16, U32, U64];

/// Integers.
pub(crate) const INTEGERS: &[DType] = &[I64, I32, U8, I8, I16, U16, U32, U64];

/// Element types that numbers are read from and written to.
pub(crate) const NUMERIC: &[DType] = &[
    F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64, F8E4M3FN, F8E4M3FNUZ, F8E5M2,
    F8E5M2FNUZ, F8E8M0, F4E2M1, I4, U4, I2, U2,
];

/// Element types that are only moved.
pub(crate) const MOVABLE: &[DType] = &[F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64];

/// [`MOVABLE`], and elements of half a byte.
pub(crate) const GATHERED: &[DType] =
    &[F32, I64, I32, BOOL, U8, I8, F64, F16, BF16, I16, U16, U32, U64, I4, U4];
