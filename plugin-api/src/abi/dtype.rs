//! Names of element types, for messages: `f32`, `i64`, `bool`, `f8e4m3fn`.

use super::v0::*;
use core::fmt;

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.bits;
        match self.code {
            DEVBAY_DTYPE_INT => write!(f, "i{bits}"),
            DEVBAY_DTYPE_UINT => write!(f, "u{bits}"),
            DEVBAY_DTYPE_FLOAT => write!(f, "f{bits}"),
            DEVBAY_DTYPE_BFLOAT => write!(f, "bf{bits}"),
            DEVBAY_DTYPE_COMPLEX => write!(f, "c{bits}"),
            DEVBAY_DTYPE_BOOL if bits == 8 => f.write_str("bool"),
            DEVBAY_DTYPE_BOOL => write!(f, "bool{bits}"),
            DEVBAY_DTYPE_FLOAT8_E4M3FN => f.write_str("f8e4m3fn"),
            DEVBAY_DTYPE_FLOAT8_E4M3FNUZ => f.write_str("f8e4m3fnuz"),
            DEVBAY_DTYPE_FLOAT8_E5M2 => f.write_str("f8e5m2"),
            DEVBAY_DTYPE_FLOAT8_E5M2FNUZ => f.write_str("f8e5m2fnuz"),
            DEVBAY_DTYPE_FLOAT8_E8M0FNU => f.write_str("f8e8m0"),
            DEVBAY_DTYPE_FLOAT4_E2M1FN => f.write_str("f4e2m1"),
            code => write!(f, "code{code}x{bits}"),
        }?;
        if self.lanes == 1 { Ok(()) } else { write!(f, "x{}", self.lanes) }
    }
}

/// Same text as in messages, because a kernel's errors name dtypes and reach users.
impl fmt::Debug for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
