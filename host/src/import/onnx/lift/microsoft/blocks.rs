//! Weights of a few bits with one scale for each block: their bytes are ONNX's packed tensors, with another shape.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, ValueId};
use devbay_core::tensor::{Bytes, DType, I4, Tensor, TensorType, U2, U4, U8, bytes_of, n_elements};
use devbay_plugin_api::reserve;
use std::ops::Range;
use std::sync::Arc;

/// A tensor whose bytes another one shares.
struct Of(Tensor);

impl Bytes for Of {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn is_of_file(&self) -> bool {
        self.0.is_of_file()
    }

    fn release(&self, range: Range<usize>) {
        self.0.release_part(range);
    }
}

/// Returns the same bytes as elements of another type; None if they are not as many as these need.
fn reread(tensor: &Tensor, dtype: DType, shape: &[usize]) -> Result<Option<Tensor>> {
    let size = tensor.bytes().len();
    if n_elements(shape).and_then(|n| bytes_of(dtype, n)) != Some(size) {
        return Ok(None);
    }
    Tensor::from_storage(dtype, shape, Arc::new(Of(tensor.clone())), 0, size).map(Some)
}

/// Returns rows of packed elements, each of which begins with a byte, as a tensor, whose elements follow without gaps; None if
/// the bytes are not as many as the rows need.
fn unpadded(tensor: &Tensor, dtype: DType, shape: &[usize]) -> Result<Option<Tensor>> {
    let Some((&n, leading)) = shape.split_last() else { return Ok(None) };
    let bits = usize::from(dtype.bits);
    let (Some(n_rows), Some(row_bits)) = (n_elements(leading), n.checked_mul(bits)) else { return Ok(None) };
    let row_bytes = row_bits.div_ceil(8);
    let bytes = tensor.bytes();
    if n_rows.checked_mul(row_bytes) != Some(bytes.len()) {
        return Ok(None);
    }
    if row_bits.is_multiple_of(8) {
        return reread(tensor, dtype, shape);
    }
    let mask = (1u16 << bits) - 1;
    let mut packed = reserve::zeroed::<u8>((n_rows * n * bits).div_ceil(8), "zero points")?;
    for i in 0..n_rows * n {
        let (row, at) = (i / n, i % n * bits);
        let element = (u16::from(bytes[row * row_bytes + at / 8]) >> (at % 8)) & mask;
        packed[i * bits / 8] |= u8::try_from(element << (i * bits % 8)).unwrap_or(0);
    }
    Tensor::from_bytes(dtype, shape, &packed).map(Some)
}

/// Returns a tensor whose elements are all the middle of an unsigned type's range.
fn middles(dtype: DType, shape: &[usize]) -> Result<Tensor> {
    let byte = match dtype {
        U2 => 0xaa,
        U4 => 0x88,
        _ => 0x80,
    };
    let n = n_elements(shape).and_then(|n| bytes_of(dtype, n)).unwrap_or(0);
    Tensor::from_bytes(dtype, shape, &reserve::filled(byte, n, "zero points")?)
}

fn unsigned(l: &Lowering<'_>, bits: i64) -> Result<DType> {
    match bits {
        2 => Ok(U2),
        4 => Ok(U4),
        8 => Ok(U8),
        _ => Err(l.refused(&format!("{bits} bits"))),
    }
}

/// Returns an attribute that must be above 0.
fn count(l: &Lowering<'_>, name: &str, default: i64) -> Result<usize> {
    let found = l.int(name, default);
    usize::try_from(found).ok().filter(|&n| n > 0).ok_or_else(|| l.refused(&format!("{name} = {found}")))
}

/// Returns the elements of a block, of which onnxruntime takes powers of two from 16 on.
fn block_size(l: &Lowering<'_>, default: i64) -> Result<usize> {
    let block = count(l, "block_size", default)?;
    if block < 16 || !block.is_power_of_two() {
        return Err(l.refused(&format!("block_size = {block}, expected a power of two from 16 on")));
    }
    Ok(block)
}

/// Returns the first columns of a matrix of elements of few bits, of which each row begins with a byte.
fn leading(tensor: &Tensor, dtype: DType, [rows, padded, k]: [usize; 3]) -> Result<Tensor> {
    let bits = usize::from(dtype.bits);
    let row_bytes = padded * bits / 8;
    let bytes = tensor.bytes();
    let mut packed = reserve::zeroed::<u8>((rows * k * bits).div_ceil(8), "weights")?;
    for row in 0..rows {
        let from = &bytes[row * row_bytes..][..row_bytes];
        if (k * bits).is_multiple_of(8) {
            packed[row * k * bits / 8..][..k * bits / 8].copy_from_slice(&from[..k * bits / 8]);
            continue;
        }
        for i in 0..k {
            let element = (from[i * bits / 8] >> (i * bits % 8)) & ((1 << bits) - 1);
            let to = (row * k + i) * bits;
            packed[to / 8] |= element << (to % 8);
        }
    }
    Tensor::from_bytes(dtype, &[rows, k], &packed)
}

/// MatMulNBits: `A W' + bias`, where each row of W has a scale and maybe a zero point for each block.
pub(super) fn matmul_n_bits(l: &mut Lowering<'_>) -> Result<()> {
    if l.optional(4).is_some() {
        return Err(l.refused("g_idx"));
    }
    if l.int("weight_prepacked", 0) != 0 {
        return Err(l.refused("weights packed for one device (weight_prepacked)"));
    }
    let (a, scales) = (l.operand(0)?, l.operand(2)?);
    let (n, k) = (count(l, "N", 0)?, count(l, "K", 0)?);
    let block = block_size(l, 0)?;
    let dtype = unsigned(l, l.int("bits", 4))?;
    let n_blocks = k.div_ceil(block);
    let padded = n_blocks.checked_mul(block).ok_or_else(|| l.refused("weights larger than memory"))?;
    let b = constant(l, 1, "B")?;
    let weight = reread(&b, dtype, &[n, padded])?.ok_or_else(|| {
        l.refused(&format!("{} as B, expected the bytes of [{n}, {padded}]", b.tensor_type()))
    })?;
    let dims =
        |dims: &[usize]| dims.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect::<Vec<_>>();
    let by_block = dims(&[n, n_blocks]);
    let scales = l.reshape_constant(scales, &by_block)?;
    let weight = match l.optional(3) {
        Some(zeros) if l.required_dtype(zeros)? != U8 => {
            // Zero points between the integers: the difference is calculated in the scales' type.
            let zeros = l.reshape_constant(zeros, &dims(&[n, n_blocks, 1]))?;
            let scales = l.reshape_constant(scales, &dims(&[n, n_blocks, 1]))?;
            let weight = l.program.add_constant("", weight.reshaped(&[n, n_blocks, block])?);
            let one = l.number(1.0, scales)?;
            let weight = l.op("DequantizeLinear", &[weight, one])?;
            let weight = l.op("Sub", &[weight, zeros])?;
            let weight = l.op("Mul", &[weight, scales])?;
            let weight = l.reshape(weight, &dims(&[n, padded]))?;
            if padded == k { weight } else { first_columns(l, weight, k)? }
        }
        zeros => {
            let zeros = match zeros {
                None => middles(dtype, &[n, n_blocks])?,
                Some(_) => {
                    let zeros = constant(l, 3, "zero_points")?;
                    unpadded(&zeros, dtype, &[n, n_blocks])?
                        .ok_or_else(|| l.refused(&format!("{} as zero_points", zeros.tensor_type())))?
                }
            };
            let weight = if padded == k { weight } else { leading(&weight, dtype, [n, padded, k])? };
            let weight = l.program.add_constant("", weight);
            let zeros = l.program.add_constant("", zeros);
            l.op_with("DequantizeLinear", &[weight, scales, zeros], &blocked(1, block))?
        }
    };
    let weight = l.transpose(weight, &[1, 0])?;
    let y = l.op("MatMul", &[a, weight])?;
    let y = l.plus(y, 5)?;
    l.give(0, y).map(drop)
}

/// Returns the first columns of a matrix.
fn first_columns(l: &mut Lowering<'_>, x: ValueId, n: usize) -> Result<ValueId> {
    let (start, axis) = (l.ints(&[0])?, l.ints(&[1])?);
    let end = l.ints(&[i64::try_from(n).unwrap_or(i64::MAX)])?;
    l.op("Slice", &[x, start, end, axis])
}

fn blocked(axis: i64, block: usize) -> [(&'static str, AttrValue); 2] {
    let block = i64::try_from(block).unwrap_or(i64::MAX);
    [("axis", AttrValue::Int(axis)), ("block_size", AttrValue::Int(block))]
}

/// Returns an operand that must be constant, because its bytes are read in another way.
fn constant(l: &Lowering<'_>, i: usize, what: &str) -> Result<Tensor> {
    let id = l.operand(i)?;
    l.program.constant(id).cloned().ok_or_else(|| l.refused(&format!("{what} that is not constant")))
}

impl Lowering<'_> {
    /// Returns a value with another shape; a constant stays one.
    fn reshape_constant(&mut self, id: ValueId, shape: &[i64]) -> Result<ValueId> {
        let Some(tensor) = self.program.constant(id).cloned() else {
            return self.reshape(id, shape);
        };
        let extents: Vec<usize> = shape.iter().map(|&n| usize::try_from(n).unwrap_or(0)).collect();
        if tensor.shape() == extents {
            return Ok(id);
        }
        Ok(self.program.add_constant("", tensor.reshaped(&extents)?))
    }
}

/// GatherBlockQuantized: Gather of quantised data, as real numbers.
pub(super) fn gather_block_quantized(l: &mut Lowering<'_>) -> Result<()> {
    let (mut data, indices, scales) = (l.operand(0)?, l.operand(1)?, l.operand(2)?);
    let rank = i64::try_from(l.required_rank(data)?).unwrap_or(i64::MAX);
    let from_front = |axis: i64| if axis < 0 { axis + rank } else { axis };
    let (gather, quantize) = (from_front(l.int("gather_axis", 0)), from_front(l.int("quantize_axis", 1)));
    let block = block_size(l, 128)?;
    let bits = l.int("bits", 4);
    let mut zeros = l.optional(3);
    match l.required_dtype(data)? {
        U4 | I4 if bits == 4 => {}
        U8 => {
            if gather != 0 || quantize != rank - 1 || rank < 2 {
                return Err(l.refused("bytes that are quantised along another axis than the last, or gathered along another than the first"));
            }
            let dtype = unsigned(l, bits)?;
            let packed = constant(l, 0, "data")?;
            let per_byte = 8 / usize::from(dtype.bits);
            let mut shape = Vec::from(packed.shape());
            if let Some(last) = shape.last_mut() {
                *last = last.saturating_mul(per_byte);
            }
            let read = reread(&packed, dtype, &shape)?
                .ok_or_else(|| l.refused(&format!("{} as data", packed.tensor_type())))?;
            data = l.program.add_constant("", read);
            if let Some(last) = shape.last_mut() {
                *last = last.div_ceil(block);
            }
            let of_blocks = match zeros {
                None => middles(dtype, &shape)?,
                Some(_) => {
                    let packed = constant(l, 3, "zero_points")?;
                    unpadded(&packed, dtype, &shape)?
                        .ok_or_else(|| l.refused(&format!("{} as zero_points", packed.tensor_type())))?
                }
            };
            zeros = Some(l.program.add_constant("", of_blocks));
        }
        other => {
            let name = devbay_core::tensor::dtype_name(other);
            return Err(l.refused(&format!("data of {name} and {bits} bits")));
        }
    }
    // What DequantizeLinear would say of its zero points, which this node may not have.
    let shape = |id: ValueId| l.program.value(id).ty.as_ref().and_then(TensorType::known_shape);
    if let (Some(mut expected), Some(found)) = (shape(data), shape(scales)) {
        if let Some(extent) = usize::try_from(quantize).ok().and_then(|axis| expected.get_mut(axis)) {
            *extent = extent.div_ceil(block);
        }
        if found != expected {
            return Err(l.refused(&format!("scales of {found:?}, expected {expected:?}")));
        }
    }
    let operands = [Some(data), Some(scales), zeros];
    let real = l.op_with("DequantizeLinear", &operands, &blocked(quantize, block))?;
    let y = l.op_with("Gather", &[real, indices], &[("axis", AttrValue::Int(gather))])?;
    l.give(0, y).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_end_within_a_byte() {
        // Two rows of three elements of 4 bits: 1 2 3 and 4 5 6.
        let padded = Tensor::from_elements(&[2, 2], &[0x21u8, 0x03, 0x54, 0x06]).unwrap();
        let found = unpadded(&padded, U4, &[2, 3]).unwrap().unwrap();
        assert_eq!(found.bytes(), [0x21, 0x43, 0x65]);
        assert!(unpadded(&padded, U4, &[2, 5]).unwrap().is_none());
        // Rows of whole bytes share them.
        let found = unpadded(&padded, U4, &[2, 4]).unwrap().unwrap();
        assert_eq!(found.bytes().as_ptr(), padded.bytes().as_ptr());
    }
}
