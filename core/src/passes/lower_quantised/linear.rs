//! Scales and zero points that are constant.

use super::super::position;
use crate::program::{Node, Program, ValueId};
use crate::tensor::{DType, F32, I8, U8};

/// One scale and one zero point for all elements of a value.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Linear {
    pub scale: f32,
    pub zero: i32,
    /// u8 or i8.
    pub dtype: DType,
}

impl Linear {
    /// The lowest and the highest byte.
    pub fn range(self) -> [i32; 2] {
        range(self.dtype)
    }

    /// Returns the byte that QuantizeLinear makes of a number.
    pub fn of(self, number: f32) -> i32 {
        let [low, high] = self.range();
        let quotient = number / self.scale;
        // NaN becomes the lowest, as in the kernels.
        let x = if quotient.is_nan() { -65536.0 } else { quotient.clamp(-65536.0, 65536.0) };
        (x.round_ties_even() as i32 + self.zero).clamp(low, high)
    }
}

/// Scales and zero points of a value: one of each, or one for each position of an axis.
#[derive(Debug)]
pub struct Scales {
    pub scales: Vec<f32>,
    /// One for all, or as many as there are scales.
    pub zeros: Vec<i32>,
    pub dtype: DType,
}

impl Scales {
    /// Returns those of a QuantizeLinear or DequantizeLinear between f32 and 8-bit integers, if they are constant and
    /// one for all, or one for each position of axis `axis` of `rank`.
    pub fn of(program: &Program, node: &Node, dtype: DType, axis: usize, rank: usize) -> Option<Self> {
        let scale = program.constant(node.input(1)?)?;
        let scales = scale.elements::<f32>()?.to_vec();
        let zeros = match node.input(2) {
            None => vec![0],
            Some(id) => {
                let zeros = program.constant(id).filter(|zeros| zeros.dtype() == dtype)?;
                let fits = zeros.shape() == scale.shape() || zeros.n_elements() == 1 && scales.len() == 1;
                let zeros = zeros.to_ints().ok()??;
                fits.then_some(zeros)?.into_iter().map(i32::try_from).collect::<Result<_, _>>().ok()?
            }
        };
        let is_along = match scale.shape() {
            [] | [1] => true,
            [_] => position(node.int("axis", 1), rank) == Some(axis),
            _ => false,
        };
        let is_plain = node.int("block_size", 0) == 0 && node.int("precision", 0) == 0;
        // Differences of bytes times the scale stay finite and have all their digits.
        let is_usual = |scale: &f32| *scale > 0.0 && scale.is_normal() && (scale * 256.0).is_finite();
        (is_along && is_plain && scales.iter().all(is_usual)).then_some(Self { scales, zeros, dtype })
    }

    /// Returns the greatest difference between a byte and its zero point.
    pub fn reach(&self) -> u64 {
        let [low, high] = range(self.dtype);
        let reach = |zero: &i32| (zero - low).max(high - zero).unsigned_abs().into();
        self.zeros.iter().map(reach).max().unwrap_or(0)
    }

    /// Returns them if they are one for all.
    fn linear(&self) -> Option<Linear> {
        match (&self.scales[..], &self.zeros[..]) {
            (&[scale], &[zero]) => Some(Linear { scale, zero, dtype: self.dtype }),
            _ => None,
        }
    }
}

fn range(dtype: DType) -> [i32; 2] {
    if dtype == I8 { [-128, 127] } else { [0, 255] }
}

/// Returns the type of a value, if it is u8 or i8.
pub fn byte_type(program: &Program, id: ValueId) -> Option<DType> {
    program.value(id).ty.as_ref().map(|ty| ty.dtype).filter(|dtype| [U8, I8].contains(dtype))
}

/// Returns whether a value is of f32.
pub fn is_f32(program: &Program, id: ValueId) -> bool {
    program.value(id).ty.as_ref().is_some_and(|ty| ty.dtype == F32)
}

/// Returns the bytes that a node makes f32 of, and how.
pub fn dequantised(program: &Program, node: &Node) -> Option<(ValueId, Linear)> {
    if !node.op.is("DequantizeLinear") || !is_f32(program, node.output(0)?) {
        return None;
    }
    let bytes = node.input(0)?;
    let scales = Scales::of(program, node, byte_type(program, bytes)?, usize::MAX, 0)?;
    Some((bytes, scales.linear()?))
}

/// Returns the f32 that a node makes bytes of, and how.
pub fn quantised(program: &Program, node: &Node) -> Option<(ValueId, Linear)> {
    let number = node.input(0).filter(|_| node.op.is("QuantizeLinear"))?;
    let dtype = byte_type(program, node.output(0)?).filter(|_| is_f32(program, number))?;
    Some((number, Scales::of(program, node, dtype, usize::MAX, 0)?.linear()?))
}
