//! Tensors of the cases, in the host's memory: values in f64, bytes in the dtype of the operand.

use devbay_plugin_api::abi::DType;
use devbay_plugin_api::sdk::{BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64};
use half::{bf16, f16};

/// A tensor whose values an f64 holds exactly.
#[derive(Clone, Debug)]
pub(crate) struct HostTensor {
    pub dtype: DType,
    pub shape: Vec<i64>,
    pub values: Vec<f64>,
}

impl HostTensor {
    /// Makes a tensor; values are rounded to what the dtype has.
    pub(crate) fn new(dtype: DType, shape: &[i64], values: Vec<f64>) -> Self {
        debug_assert_eq!(values.len(), n_elements(shape));
        let mut tensor = Self { dtype, shape: shape.to_vec(), values };
        tensor.values = from_bytes(dtype, &tensor.bytes());
        tensor
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.values.len() * 8);
        for &value in &self.values {
            match self.dtype {
                F64 => bytes.extend_from_slice(&value.to_le_bytes()),
                F16 => bytes.extend_from_slice(&f16::from_f64(value).to_le_bytes()),
                BF16 => bytes.extend_from_slice(&bf16::from_f64(value).to_le_bytes()),
                I16 => bytes.extend_from_slice(&(value as i16).to_le_bytes()),
                I32 => bytes.extend_from_slice(&(value as i32).to_le_bytes()),
                I64 => bytes.extend_from_slice(&(value as i64).to_le_bytes()),
                U16 => bytes.extend_from_slice(&(value as u16).to_le_bytes()),
                U32 => bytes.extend_from_slice(&(value as u32).to_le_bytes()),
                U64 => bytes.extend_from_slice(&(value as u64).to_le_bytes()),
                I8 => bytes.push(value as i8 as u8),
                U8 | BOOL => bytes.push(value as u8),
                _ => bytes.extend_from_slice(&(value as f32).to_le_bytes()),
            }
        }
        bytes
    }

    /// Bytes of the whole.
    pub(crate) fn size(&self) -> usize {
        self.values.len() * usize::from(self.dtype.bits / 8)
    }
}

/// Returns whether a dtype's numbers have a fraction.
pub(crate) fn is_float(dtype: DType) -> bool {
    matches!(dtype, F16 | BF16 | F32 | F64)
}

/// Half the distance from 1 to the next number; 0 for integers.
pub(crate) fn unit_roundoff(dtype: DType) -> f64 {
    match dtype {
        F16 => f64::from(f16::EPSILON) / 2.0,
        BF16 => f64::from(bf16::EPSILON) / 2.0,
        F32 => f64::from(f32::EPSILON) / 2.0,
        // The reference is in f64 itself.
        F64 => f64::EPSILON,
        _ => 0.0,
    }
}

/// Returns the smallest number that is not subnormal: below it, absolute errors count.
pub(crate) fn smallest(dtype: DType) -> f64 {
    match dtype {
        F16 => f64::from(f16::MIN_POSITIVE),
        BF16 | F32 => f64::from(f32::MIN_POSITIVE),
        F64 => f64::MIN_POSITIVE,
        _ => 0.0,
    }
}

/// Returns a value, or the infinity that stands for it beyond a float's range.
pub(crate) fn in_range(dtype: DType, value: f64) -> f64 {
    let rounded = HostTensor::new(dtype, &[1], vec![value]).values[0];
    if rounded.is_infinite() { rounded } else { value }
}

/// Bytes as values.
pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<const N: usize>(bytes: &[u8], read: impl Fn([u8; N]) -> f64) -> Vec<f64> {
        bytes.as_chunks::<N>().0.iter().map(|chunk| read(*chunk)).collect()
    }
    match dtype {
        F64 => each(bytes, f64::from_le_bytes),
        F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()),
        BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()),
        I16 => each(bytes, |b| f64::from(i16::from_le_bytes(b))),
        I32 => each(bytes, |b| f64::from(i32::from_le_bytes(b))),
        I64 => each(bytes, |b| i64::from_le_bytes(b) as f64),
        U16 => each(bytes, |b| f64::from(u16::from_le_bytes(b))),
        U32 => each(bytes, |b| f64::from(u32::from_le_bytes(b))),
        U64 => each(bytes, |b| u64::from_le_bytes(b) as f64),
        I8 => each(bytes, |b| f64::from(i8::from_le_bytes(b))),
        U8 | BOOL => each(bytes, |b: [u8; 1]| f64::from(b[0])),
        _ => each(bytes, |b| f64::from(f32::from_le_bytes(b))),
    }
}

pub(crate) fn n_elements(shape: &[i64]) -> usize {
    shape.iter().map(|&extent| extent.max(0) as usize).product()
}

/// A small generator, so that every run of a case sees the same numbers.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }

    /// Below `n`.
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Between two numbers.
    pub(crate) fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * (self.next() as f64 / (1u64 << 53) as f64)
    }
}
