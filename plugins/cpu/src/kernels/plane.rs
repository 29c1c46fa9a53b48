//! Padded copies of an image's plane, in which a window's taps are contiguous rows.
//!
//! A plane is copied once into scratch memory, with its padding and, for a stride above 1, with its columns
//! sorted by their remainder; then every tap of every output row is a run of neighbouring elements, and the
//! loops over a row have no edge and no stride.

use super::window::Window;
use crate::dispatch;
use crate::isa::Arith;

/// How a padded copy is laid out. Two spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// Extents of the input: height, width.
    input: [usize; 2],
    /// Padding before: rows, columns.
    pad: [usize; 2],
    /// Rows of the copy.
    rows: usize,
    /// Column stride of the window: how many phases a row is sorted into.
    phases: usize,
    /// Elements of one phase of a row.
    phase_len: usize,
}

/// Elements after the last that a vector may touch.
const SLACK: usize = 16;

impl Plane {
    /// The copy for a window; None if it slides over more than two dimensions.
    pub fn of(window: &Window) -> Option<Self> {
        if window.input[0] != 1 || window.kernel[0] != 1 || window.output[0] != 1 || window.pad[0] != 0 {
            return None;
        }
        let needed = |i: usize| {
            (window.output[i].max(1) - 1) * window.stride[i]
                + (window.kernel[i].max(1) - 1) * window.dilation[i]
                + 1
        };
        let columns = needed(2).max(window.input[2] + window.pad[2]);
        Some(Self {
            input: [window.input[1], window.input[2]],
            pad: [window.pad[1], window.pad[2]],
            rows: needed(1).max(window.input[1] + window.pad[1]),
            phases: window.stride[2],
            phase_len: columns.div_ceil(window.stride[2]) + SLACK,
        })
    }

    /// Elements of the copy.
    pub fn len(&self) -> usize {
        self.rows * self.row_len() + SLACK
    }

    /// Elements of a row of the copy.
    pub fn row_len(&self) -> usize {
        self.phases * self.phase_len
    }

    /// Where the tap of a window at column `tap_column` begins within a row.
    pub fn tap(&self, tap_column: usize) -> usize {
        tap_column % self.phases * self.phase_len + tap_column / self.phases
    }

    /// Where each tap of a window begins, from the first row of the window in the copy.
    pub fn taps(&self, window: &Window) -> Vec<usize> {
        let columns = |row: usize| {
            (0..window.kernel[2]).map(move |column| {
                row * window.dilation[1] * self.row_len() + self.tap(column * window.dilation[2])
            })
        };
        (0..window.kernel[1]).flat_map(columns).collect()
    }

    /// Fills the copy with the padding's value; once per scratch memory, since the padding stays.
    ///
    /// # Safety
    /// `dst` has room for the copy.
    pub unsafe fn clear(&self, dst: *mut f32, value: f32) {
        for i in 0..self.len() {
            // SAFETY: `i` is within the copy.
            unsafe { *dst.wrapping_add(i) = value };
        }
    }
}

/// Copies a plane in.
pub type FillFn = unsafe fn(plane: &Plane, src: *const f32, dst: *mut f32);

dispatch! {
    /// The copying of planes for an instruction set.
    pub fn fill(plane: &Plane, src: *const f32, dst: *mut f32) = fill_body
}

/// # Safety
/// `src` is a plane of the input, `dst` has room for the copy.
#[inline(always)]
unsafe fn fill_body<A: Arith>(plane: &Plane, src: *const f32, dst: *mut f32) {
    let [height, width] = plane.input;
    for row in 0..height {
        let src = src.wrapping_add(row * width);
        let dst = dst.wrapping_add((row + plane.pad[0]) * plane.row_len());
        if plane.phases == 1 {
            // SAFETY: the row fits behind its padding.
            unsafe { copy(src, dst.wrapping_add(plane.pad[1]), width) };
            continue;
        }
        for phase in 0..plane.phases {
            // The first column of this phase that is not padding.
            let first = (phase + plane.phases - plane.pad[1] % plane.phases) % plane.phases;
            let dst = dst.wrapping_add(plane.tap(first + plane.pad[1]));
            let n = (width + plane.phases - 1).saturating_sub(first) / plane.phases;
            // SAFETY: the columns are within the row, and their places within the phase.
            unsafe {
                match plane.phases {
                    2 => every::<2>(src.wrapping_add(first), dst, n, 2),
                    phases => every::<0>(src.wrapping_add(first), dst, n, phases),
                }
            };
        }
    }
}

/// Copies every `step`th element, the last ones perhaps twice; `STEP` is `step` where the compiler shall know it.
///
/// # Safety
/// `src` has `n` such elements, `dst` room for them, and they are apart.
#[inline(always)]
pub(super) unsafe fn every<const STEP: usize>(src: *const f32, dst: *mut f32, n: usize, step: usize) {
    /// # Safety
    /// As `every`, of `N` elements from `i`.
    #[inline(always)]
    unsafe fn block<const N: usize>(src: *const f32, dst: *mut f32, step: usize, i: usize) {
        let src = src.wrapping_add(i * step);
        // Read before they are written: one block of shuffles and not `N` moves.
        // SAFETY: the caller's promise, here and below.
        let values: [f32; N] = std::array::from_fn(|lane| unsafe { *src.wrapping_add(lane * step) });
        // SAFETY: as above.
        unsafe { dst.wrapping_add(i).cast::<[f32; N]>().write_unaligned(values) };
    }
    let step = if STEP == 0 { step } else { STEP };
    // SAFETY: each block is within the `n` elements.
    unsafe {
        match n {
            8.. => {
                for i in (0..n - 8).step_by(8) {
                    block::<8>(src, dst, step, i);
                }
                block::<8>(src, dst, step, n - 8);
            }
            4.. => {
                block::<4>(src, dst, step, 0);
                block::<4>(src, dst, step, n - 4);
            }
            _ => {
                for i in 0..n {
                    *dst.wrapping_add(i) = *src.wrapping_add(i * step);
                }
            }
        }
    }
}

/// # Safety
/// `dst` has room for `n` elements.
#[inline(always)]
pub(super) unsafe fn zero(dst: *mut f32, n: usize) {
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        unsafe { *dst.wrapping_add(i) = 0.0 };
    }
}

/// Copies a few elements, the last ones perhaps twice: a call to the library's copy, or a loop over the rest,
/// costs more than the copy.
///
/// # Safety
/// As `copy_nonoverlapping`.
#[inline(always)]
pub(super) unsafe fn copy(src: *const f32, dst: *mut f32, n: usize) {
    /// # Safety
    /// As `copy_nonoverlapping` of `N` elements from `i`.
    #[inline(always)]
    unsafe fn block<const N: usize>(src: *const f32, dst: *mut f32, i: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            dst.wrapping_add(i)
                .cast::<[f32; N]>()
                .write_unaligned(src.wrapping_add(i).cast::<[f32; N]>().read_unaligned())
        };
    }
    // SAFETY: each block is within the `n` elements.
    unsafe {
        match n {
            16.. => {
                for i in (0..n - 16).step_by(16) {
                    block::<16>(src, dst, i);
                }
                block::<16>(src, dst, n - 16);
            }
            8.. => {
                block::<8>(src, dst, 0);
                block::<8>(src, dst, n - 8);
            }
            4.. => {
                block::<4>(src, dst, 0);
                block::<4>(src, dst, n - 4);
            }
            _ => {
                for i in 0..n {
                    *dst.wrapping_add(i) = *src.wrapping_add(i);
                }
            }
        }
    }
}
