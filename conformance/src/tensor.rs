//! Tensors of the cases, in the host's memory: values in f64, bytes in the dtype of the operand.

use bytemuck::{AnyBitPattern, NoUninit};
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
        let values = &self.values;
        match self.dtype {
            F64 => each_as(values, |value| value),
            F16 => each_as(values, f16::from_f64),
            BF16 => each_as(values, bf16::from_f64),
            I8 => each_as(values, |value| value as i8),
            I16 => each_as(values, |value| value as i16),
            I32 => each_as(values, |value| value as i32),
            I64 => each_as(values, |value| value as i64),
            U8 | BOOL => each_as(values, |value| value as u8),
            U16 => each_as(values, |value| value as u16),
            U32 => each_as(values, |value| value as u32),
            U64 => each_as(values, |value| value as u64),
            _ => each_as(values, |value| value as f32),
        }
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

/// The bytes of values, each as an element of another type.
fn each_as<T: NoUninit>(values: &[f64], element: impl Fn(f64) -> T) -> Vec<u8> {
    let elements: Vec<T> = values.iter().map(|&value| element(value)).collect();
    bytemuck::cast_slice(&elements).to_vec()
}

/// Bytes as values.
pub(crate) fn from_bytes(dtype: DType, bytes: &[u8]) -> Vec<f64> {
    fn each<T: AnyBitPattern>(bytes: &[u8], value: impl Fn(T) -> f64) -> Vec<f64> {
        let elements = bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned);
        elements.map(value).collect()
    }
    match dtype {
        F64 => each(bytes, |x: f64| x),
        F16 => each(bytes, f16::to_f64),
        BF16 => each(bytes, bf16::to_f64),
        I8 => each::<i8>(bytes, f64::from),
        I16 => each::<i16>(bytes, f64::from),
        I32 => each::<i32>(bytes, f64::from),
        I64 => each(bytes, |x: i64| x as f64),
        U8 | BOOL => each::<u8>(bytes, f64::from),
        U16 => each::<u16>(bytes, f64::from),
        U32 => each::<u32>(bytes, f64::from),
        U64 => each(bytes, |x: u64| x as f64),
        _ => each::<f32>(bytes, f64::from),
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
