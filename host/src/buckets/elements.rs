//! Elements as bytes: creating them, and copying them between tensors of different extents.

use devbay_core::tensor::{BOOL, DType, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, bytes_of};

/// Returns the size of an element in bytes; None for elements that share bytes.
pub(super) fn element_bytes(dtype: DType) -> Option<usize> {
    bytes_of(dtype, 1).filter(|_| (dtype.bits as usize * dtype.lanes as usize).is_multiple_of(8))
}

fn bytes<T: bytemuck::NoUninit>(number: T) -> Vec<u8> {
    bytemuck::bytes_of(&number).to_vec()
}

/// Returns the element for a value; None if the type cannot hold it.
pub(super) fn element_of(dtype: DType, value: f64) -> Option<Vec<u8>> {
    if value == 0.0 {
        return element_bytes(dtype).map(|size| vec![0; size]);
    }
    let whole = value.fract() == 0.0;
    let int = |low: f64, high: f64| (whole && value >= low && value <= high).then_some(value as i64);
    match dtype {
        F32 => Some(bytes(value as f32)),
        F64 => Some(bytes(value)),
        I64 => int(-(2f64.powi(63)), 2f64.powi(63) - 1025.0).map(bytes),
        I32 => int(i32::MIN.into(), i32::MAX.into()).map(|value| bytes(value as i32)),
        I16 => int(i16::MIN.into(), i16::MAX.into()).map(|value| bytes(value as i16)),
        I8 => int(i8::MIN.into(), i8::MAX.into()).map(|value| bytes(value as i8)),
        U64 => int(0.0, 2f64.powi(63) - 1025.0).map(bytes),
        U32 => int(0.0, u32::MAX.into()).map(|value| bytes(value as u32)),
        U16 => int(0.0, u16::MAX.into()).map(|value| bytes(value as u16)),
        U8 => int(0.0, u8::MAX.into()).map(|value| bytes(value as u8)),
        BOOL => int(0.0, 1.0).map(|value| bytes(value as u8)),
        _ => None,
    }
}

/// Copies the elements at positions that two dense tensors of one rank share: those within the lesser extents.
pub(super) fn copy_common(
    element: usize,
    (from_shape, from): (&[usize], &[u8]),
    (to_shape, to): (&[usize], &mut [u8]),
) {
    if from_shape == to_shape {
        to.copy_from_slice(from);
        return;
    }
    let ([from_extent, from_rest @ ..], [to_extent, to_rest @ ..]) = (from_shape, to_shape) else {
        return;
    };
    let row = |shape: &[usize]| shape.iter().product::<usize>() * element;
    let (from_row, to_row) = (row(from_rest), row(to_rest));
    if from_row == 0 || to_row == 0 {
        return;
    }
    if from_rest == to_rest {
        let size = (*from_extent).min(*to_extent) * from_row;
        to[..size].copy_from_slice(&from[..size]);
        return;
    }
    for (from, to) in from.chunks_exact(from_row).zip(to.chunks_exact_mut(to_row)) {
        copy_common(element, (from_rest, from), (to_rest, to));
    }
}
