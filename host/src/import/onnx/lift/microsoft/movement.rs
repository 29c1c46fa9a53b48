//! Ops that ONNX has under the same name, with other operands or another layout.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, ValueId};
use devbay_core::tensor::{F32, F64, I16, I32, I64, Tensor};

/// Pad: the amounts may be one row of a matrix, and the value a vector of one.
pub(super) fn pad(l: &mut Lowering<'_>) -> Result<()> {
    let (data, mut pads) = (l.operand(0)?, l.operand(1)?);
    if l.rank(pads) != Some(1) {
        pads = l.reshape(pads, &[-1])?;
    }
    let value = l.optional(2).map(|value| l.scalar_of(value)).transpose()?;
    let attrs = l.attributes(&["mode"]);
    let y = l.op_with("Pad", &[Some(data), Some(pads), value], &attrs)?;
    l.give(0, y).map(drop)
}

/// Unique: the elements in the order of their first occurrence, their positions in the result, and their counts.
pub(super) fn unique(l: &mut Lowering<'_>) -> Result<()> {
    let x = l.operand(0)?;
    if l.rank(x).is_some_and(|rank| rank != 1) {
        return Err(l.refused("an operand that is no vector"));
    }
    l.finish("Unique", &[Some(x)], &[("sorted", AttrValue::Int(0))], &[Some(0), None, Some(1), Some(2)])
}

/// Range: the operands may be vectors of one, and the step defaults to 1.
pub(super) fn range(l: &mut Lowering<'_>) -> Result<()> {
    let (start, limit) = (l.operand(0)?, l.operand(1)?);
    let delta = match l.optional(2) {
        Some(delta) => l.scalar_of(delta)?,
        None => {
            let one = match l.required_dtype(start)? {
                I16 => Tensor::from_bytes(I16, &[], &1i16.to_le_bytes())?,
                I32 => Tensor::from_elements(&[], &[1i32])?,
                I64 => Tensor::from_elements(&[], &[1i64])?,
                F32 => Tensor::from_elements(&[], &[1f32])?,
                F64 => Tensor::from_elements(&[], &[1f64])?,
                _ => return Err(l.refused("operands of this element type")),
            };
            l.program.add_constant("", one)
        }
    };
    let (start, limit) = (l.scalar_of(start)?, l.scalar_of(limit)?);
    let y = l.op("Range", &[start, limit, delta])?;
    l.give(0, y).map(drop)
}

/// Trilu: ONNX's.
pub(super) fn trilu(l: &mut Lowering<'_>) -> Result<()> {
    let operands = [Some(l.operand(0)?), l.optional(1)];
    let attrs = l.attributes(&["upper"]);
    let y = l.op_with("Trilu", &operands, &attrs)?;
    l.give(0, y).map(drop)
}

/// ExpandDims: Unsqueeze at one axis.
pub(super) fn expand_dims(l: &mut Lowering<'_>) -> Result<()> {
    let (x, axis) = (l.operand(0)?, l.operand(1)?);
    let y = match l.program.constant(axis).and_then(Tensor::to_int) {
        Some(axis) => l.unsqueeze(x, &[axis])?,
        None => {
            let axis = l.cast(axis, I64)?;
            let axis = l.reshape(axis, &[1])?;
            l.op("Unsqueeze", &[x, axis])?
        }
    };
    l.give(0, y).map(drop)
}

/// NhwcMaxPool: MaxPool with the channels last.
pub(super) fn nhwc_max_pool(l: &mut Lowering<'_>) -> Result<()> {
    let x = l.operand(0)?;
    let attrs = l.attributes(&["auto_pad", "ceil_mode", "dilations", "kernel_shape", "pads", "strides"]);
    let y = l.nhwc_pool("MaxPool", x, &attrs)?;
    l.give(0, y).map(drop)
}

impl Lowering<'_> {
    /// Appends a pooling op between two transpositions, for channels that are last.
    pub(super) fn nhwc_pool(&mut self, op: &str, x: ValueId, attrs: &[(&str, AttrValue)]) -> Result<ValueId> {
        if self.int("ceil_mode", 0) != 0 && self.node.string("auto_pad", "NOTSET") == "VALID" {
            // onnxruntime has one more window there than ONNX.
            return Err(self.refused("auto_pad = VALID and ceil_mode"));
        }
        let rank = self.node.ints("kernel_shape").map_or(0, <[i64]>::len) + 2;
        let x = self.channels_first(x, rank)?;
        let y = self.op_with(op, &[x], attrs)?;
        self.channels_last(y, rank)
    }

    /// Moves the channels from the last axis to the second.
    pub(super) fn channels_first(&mut self, x: ValueId, rank: usize) -> Result<ValueId> {
        let rank = i64::try_from(rank).unwrap_or(i64::MAX);
        let perm: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        self.transpose(x, &perm)
    }

    /// Moves the channels from the second axis to the last.
    pub(super) fn channels_last(&mut self, x: ValueId, rank: usize) -> Result<ValueId> {
        let rank = i64::try_from(rank).unwrap_or(i64::MAX);
        let perm: Vec<i64> = [0].into_iter().chain(2..rank).chain([1]).collect();
        self.transpose(x, &perm)
    }
}
