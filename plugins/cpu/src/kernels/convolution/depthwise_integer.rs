//! Convolutions of bytes whose groups have one channel each: a filter's taps, one after the other, over a whole plane.
//!
//! The plane of results is one run of its phases ([`Phases`]), of which a few columns at the end of each row belong to no
//! element.

use super::phases::Phases;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::product::int_tile::{FAR, SHIFT, Tail};

/// Elements of the result that are made at once.
pub(super) const CHUNK: usize = 64;

/// One filter over one plane.
pub(super) struct Plane<'a> {
    /// The phases; behind them there are a row and a [`CHUNK`].
    pub plane: *const i8,
    pub phases: &'a Phases,
    /// The taps' weights as unsigned bytes, and their zero point.
    pub weights: *const u8,
    pub zero: i32,
    /// What sums begin with.
    pub start: i32,
    /// Of [`Tail::Bytes`] the factor is the first; others are [`Tail::Ints`].
    pub tail: Tail,
    pub y: *mut u8,
}

/// Makes a plane of the result.
///
/// # Safety
/// 1. The processor has the instructions that the function was made for.
/// 2. There are phases, and a weight for each tap.
/// 3. The plane of the result is of the tail's type, and no other thread's.
pub(super) type PlaneFn = unsafe fn(&Plane<'_>);

/// # Safety
/// As [`PlaneFn`].
#[inline(always)]
unsafe fn plane_body<A: Arith>(plane: &Plane<'_>) {
    let (phases, width) = (plane.phases, plane.phases.width);
    let (rows, columns) = (phases.rows.output, phases.cols.output);
    let mut at = 0;
    while at < rows * width {
        let mut sums = [plane.start; CHUNK];
        for (i, &offset) in phases.taps.iter().enumerate() {
            // SAFETY: there is a weight for each tap (# Safety, 2).
            let weight = i32::from(unsafe { plane.weights.add(i).read() }) - plane.zero;
            let from = plane.plane.wrapping_add(offset + at).cast::<[i8; CHUNK]>();
            // SAFETY: there are a row and a chunk behind the phases (# Safety, 2).
            let bytes = unsafe { &*from };
            for (sum, &x) in sums.iter_mut().zip(bytes) {
                *sum = sum.wrapping_add(weight * i32::from(x));
            }
        }
        let mut bytes = [0u8; CHUNK];
        if let Tail::Bytes { factors, zero, low, high } = plane.tail {
            // SAFETY: there is one.
            let factor = unsafe { *factors.first };
            for (byte, &sum) in bytes.iter_mut().zip(&sums) {
                let x = sum as f32 * factor;
                // What is no number becomes the lowest.
                let x = if x > -FAR { x } else { -FAR };
                let x = if x < FAR { x } else { FAR };
                let x = (x + SHIFT) - SHIFT + zero;
                let x = if x > low { x } else { low };
                let x = if x < high { x } else { high };
                // SAFETY: a whole number between -128 and 255.
                *byte = unsafe { x.to_int_unchecked::<i32>() } as u8;
            }
        }
        // What of the chunk are elements.
        let (mut row, mut col, mut i) = (at / width, at % width, 0);
        while i < CHUNK && row < rows {
            let n = columns.saturating_sub(col).min(CHUNK - i);
            let to = row * columns + col;
            match plane.tail {
                _ if n == 0 => {}
                // SAFETY: the elements are within the plane of the result (# Safety, 3), and no more than a chunk's.
                Tail::Bytes { .. } => unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr().add(i), plane.y.add(to), n);
                },
                // SAFETY: the same.
                _ => unsafe {
                    std::ptr::copy_nonoverlapping(sums.as_ptr().add(i), plane.y.cast::<i32>().add(to), n);
                },
            }
            i += width - col;
            (row, col) = (row + 1, 0);
        }
        at += CHUNK;
    }
}

dispatch! {
    /// Makes a plane of the result.
    pub(super) fn plane(plane: &Plane<'_>) = plane_body
}
