//! ONNX's numbers for element types (`TensorProto.DataType`), as used in files and in the attributes `to`, `dtype` and
//! `output_dtype`.

use crate::types::{
    BF16, BOOL, DType, F4E2M1, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F8E8M0, F16, F32, F64, I2, I4, I8,
    I16, I32, I64, U2, U4, U8, U16, U32, U64, dtype_name,
};
use devbay_plugin_api::abi::DEVBAY_DTYPE_COMPLEX;
use devbay_plugin_api::sdk::{Error, Result};

/// ONNX's names by number; 0 is not a type.
const NAMES: [&str; 29] = [
    "UNDEFINED",
    "FLOAT",
    "UINT8",
    "INT8",
    "UINT16",
    "INT16",
    "INT32",
    "INT64",
    "STRING",
    "BOOL",
    "FLOAT16",
    "DOUBLE",
    "UINT32",
    "UINT64",
    "COMPLEX64",
    "COMPLEX128",
    "BFLOAT16",
    "FLOAT8E4M3FN",
    "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2",
    "FLOAT8E5M2FNUZ",
    "UINT4",
    "INT4",
    "FLOAT4E2M1",
    "FLOAT8E8M0",
    "UINT2",
    "INT2",
    "FLOAT6E2M3",
    "FLOAT6E3M2",
];

/// Element types that both sides have.
const TYPES: &[(i64, DType)] = &[
    (1, F32),
    (2, U8),
    (3, I8),
    (4, U16),
    (5, I16),
    (6, I32),
    (7, I64),
    (9, BOOL),
    (10, F16),
    (11, F64),
    (12, U32),
    (13, U64),
    (14, dtype(DEVBAY_DTYPE_COMPLEX, 64)),
    (15, dtype(DEVBAY_DTYPE_COMPLEX, 128)),
    (16, BF16),
    (17, F8E4M3FN),
    (18, F8E4M3FNUZ),
    (19, F8E5M2),
    (20, F8E5M2FNUZ),
    (21, U4),
    (22, I4),
    (23, F4E2M1),
    (24, F8E8M0),
    (25, U2),
    (26, I2),
];

const fn dtype(code: u8, bits: u8) -> DType {
    DType { code, bits, lanes: 1 }
}

/// Returns the element type of ONNX's number.
///
/// # Errors
/// Unsupported for strings and 6-bit floats, which devbay lacks; invalid for an unknown number.
pub fn dtype_from_onnx(number: i64) -> Result<DType> {
    if let Some((_, dtype)) = TYPES.iter().find(|(known, _)| *known == number) {
        return Ok(*dtype);
    }
    let name = usize::try_from(number).ok().and_then(|i| NAMES.get(i));
    Err(match name {
        Some(&name) if number != 0 => {
            Error::unsupported(format!("expected an element type that devbay has, found ONNX's {name}"))
        }
        _ => Error::invalid(format!("expected ONNX's number of an element type, found {number}")),
    })
}

/// Returns ONNX's number of an element type.
///
/// # Errors
/// Unsupported if ONNX has no such type.
pub fn dtype_to_onnx(dtype: DType) -> Result<i64> {
    TYPES.iter().find(|(_, known)| *known == dtype).map(|(number, _)| *number).ok_or_else(|| {
        Error::unsupported(format!("expected an element type that ONNX has, found {}", dtype_name(dtype)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_plugin_api::abi::{DEVBAY_STATUS_INVALID, DEVBAY_STATUS_UNSUPPORTED, Status};

    #[test]
    fn numbers_of_element_types() {
        let check = |number, expected: std::result::Result<&str, Status>| {
            let found = dtype_from_onnx(number);
            if let Ok(dtype) = found {
                assert_eq!(dtype_to_onnx(dtype).unwrap(), number);
            }
            let found = found.map(dtype_name).map_err(|error| error.status());
            assert_eq!(found, expected.map(str::to_owned), "{number}");
        };
        check(1, Ok("f32"));
        check(9, Ok("bool"));
        check(16, Ok("bf16"));
        check(22, Ok("i4"));
        check(8, Err(DEVBAY_STATUS_UNSUPPORTED));
        check(17, Ok("f8e4m3fn"));
        check(23, Ok("f4e2m1"));
        check(26, Ok("i2"));
        check(27, Err(DEVBAY_STATUS_UNSUPPORTED));
        for nonsense in [0, -1, 99, i64::MIN, i64::MAX] {
            check(nonsense, Err(DEVBAY_STATUS_INVALID));
        }
    }
}
