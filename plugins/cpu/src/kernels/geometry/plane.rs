//! Padded copies of an image's plane, in which a window's taps are contiguous rows.
//!
//! A plane is copied into scratch memory, with its padding and, for a stride above 1, with its columns
//! sorted by their remainder; then every tap of every output row is a run of neighbouring elements, and the
//! loops over a row have no edge and no stride. Large planes are copied in bands of rows that fit the nearest cache.

use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::geometry::window::Window;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::Result;
use std::ops::Range;

/// Layout of a padded copy. Two spatial dimensions.
#[derive(Clone, Copy, Debug)]
pub struct Plane {
    /// Extents of the input: height, width.
    input: [usize; 2],
    /// Padding before: rows, columns.
    pad: [usize; 2],
    /// Rows of the output, of one band of it, and how far the window moves from one to the next.
    output: usize,
    band: usize,
    stride: usize,
    /// Rows that the window spans.
    span: usize,
    /// Column stride of the window: how many phases a row is sorted into.
    phases: usize,
    /// Elements of one phase of a row.
    phase_len: usize,
    /// The phases, where there are two: divisions take long beside a row.
    halves: [Phase; 2],
}

/// The columns of a row that have one remainder.
#[derive(Clone, Copy, Default, Debug)]
struct Phase {
    /// The first one that is not padding.
    first: usize,
    /// Place of that one in a row of the copy.
    at: usize,
    n: usize,
}

/// Elements after the last that a vector may touch.
const SLACK: usize = 16;
/// Elements of a band's copy, unless a few rows have more: 24 KiB.
const BAND_MAX: usize = 6 * 1024;
/// Rows of a band, at least.
const BAND_MIN: usize = 8;

impl Plane {
    /// The copy for a window; None if it slides over more than two dimensions.
    pub fn of(window: &Window) -> Option<Self> {
        if window.input[0] != 1 || window.kernel[0] != 1 || window.output[0] != 1 || window.pad[0] != 0 {
            return None;
        }
        let span = |i: usize| (window.kernel[i].max(1) - 1) * window.dilation[i] + 1;
        let columns = (window.output[2].max(1) - 1) * window.stride[2] + span(2);
        let columns = columns.max(window.input[2] + window.pad[2]);
        let mut plane = Self {
            input: [window.input[1], window.input[2]],
            pad: [window.pad[1], window.pad[2]],
            output: window.output[1],
            band: window.output[1].max(1),
            stride: window.stride[1],
            span: span(1),
            phases: window.stride[2],
            phase_len: columns.div_ceil(window.stride[2]) + SLACK,
            halves: Default::default(),
        };
        plane.halves = [plane.phase(0), plane.phase(1)];
        if plane.size().saturated() <= BAND_MAX {
            return Some(plane);
        }
        let rows = (BAND_MAX / plane.row_len()).saturating_sub(plane.span) / plane.stride + 1;
        Some(Self { band: rows.max(BAND_MIN).min(plane.band), ..plane })
    }

    /// The bands, as rows of the output.
    pub fn bands(self) -> impl Iterator<Item = Range<usize>> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let band = at..self.output.min(at + self.band);
            at = band.end;
            Some(band).filter(|band| !band.is_empty())
        })
    }

    /// Rows of the copy for so many rows of the output.
    fn rows(&self, n: usize) -> usize {
        (n.max(1) - 1) * self.stride + self.span
    }

    /// Elements of the copy.
    pub fn len(&self) -> usize {
        self.rows(self.band) * self.row_len() + SLACK
    }

    /// Elements of the copy, as a size that may not be countable.
    pub fn size(&self) -> Size {
        let rows = Size::of(self.band.max(1) - 1) * self.stride + self.span;
        rows * (Size::of(self.phases) * self.phase_len) + SLACK
    }

    /// Elements of a row of the copy.
    pub fn row_len(&self) -> usize {
        self.phases * self.phase_len
    }

    /// Returns the beginning within a row of the tap of a window at column `tap_column`.
    pub fn tap(&self, tap_column: usize) -> usize {
        tap_column % self.phases * self.phase_len + tap_column / self.phases
    }

    /// Returns the place of the columns of a phase.
    fn phase(&self, phase: usize) -> Phase {
        let first = (phase + self.phases - self.pad[1] % self.phases) % self.phases;
        let n = (self.input[1] + self.phases - 1).saturating_sub(first) / self.phases;
        Phase { first, at: self.tap(first + self.pad[1]), n }
    }

    /// Returns the beginning of each tap of a window, from the first row of the window in the copy.
    ///
    /// # Errors
    /// Out of memory.
    pub fn taps(&self, window: &Window) -> Result<Vec<usize>> {
        // Every tap lies within the copy, whose size may be more than can be counted.
        self.size().get("the copy of a plane")?;
        let columns = |row: usize| {
            (0..window.kernel[2]).map(move |column| {
                row * window.dilation[1] * self.row_len() + self.tap(column * window.dilation[2])
            })
        };
        let mut taps = reserve::with_capacity(window.n_taps(), "the taps of a window")?;
        taps.extend((0..window.kernel[1]).flat_map(columns));
        Ok(taps)
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

/// Copies what a band of a plane needs. Elements beyond it are `padding`.
pub type FillFn = unsafe fn(plane: &Plane, src: *const f32, dst: *mut f32, band: &Range<usize>, padding: f32);

dispatch! {
    /// The copying of planes for an instruction set.
    pub fn fill(plane: &Plane, src: *const f32, dst: *mut f32, band: &Range<usize>, padding: f32) = fill_body
}

/// # Safety
/// `src` is a plane of the input, `dst` has room for the copy and was cleared.
#[inline(always)]
unsafe fn fill_body<A: Arith>(
    plane: &Plane,
    src: *const f32,
    dst: *mut f32,
    band: &Range<usize>,
    padding: f32,
) {
    let [height, width] = plane.input;
    let (start, rows) = (band.start * plane.stride, plane.rows(band.len()));
    // Rows of the copy that the plane has.
    let low = plane.pad[0].saturating_sub(start).min(rows);
    let high = (height + plane.pad[0]).saturating_sub(start).clamp(low, rows);
    // If the plane is one band, its padding stays as it was cleared.
    if plane.band < plane.output {
        for row in (0..low).chain(high..rows) {
            for i in 0..plane.row_len() {
                // SAFETY: the row is within the copy.
                unsafe { *dst.wrapping_add(row * plane.row_len() + i) = padding };
            }
        }
    }
    for row in low..high {
        let dst = dst.wrapping_add(row * plane.row_len());
        let src = src.wrapping_add((start + row - plane.pad[0]) * width);
        if plane.phases == 1 {
            // SAFETY: the row fits behind its padding.
            unsafe { copy(src, dst.wrapping_add(plane.pad[1]), width) };
            continue;
        }
        if plane.phases == 2 {
            for phase in &plane.halves {
                // SAFETY: the columns are within the row, and their places within the phase.
                unsafe { every::<2>(src.wrapping_add(phase.first), dst.wrapping_add(phase.at), phase.n, 2) };
            }
            continue;
        }
        for phase in 0..plane.phases {
            let phase = plane.phase(phase);
            let (src, dst) = (src.wrapping_add(phase.first), dst.wrapping_add(phase.at));
            // SAFETY: the columns of the phase are within the row, and their places within the phase.
            unsafe { every::<0>(src, dst, phase.n, plane.phases) };
        }
    }
}

/// Copies every `step`th element, the last ones perhaps twice; `STEP` is `step` where the compiler shall know it.
///
/// # Safety
/// `src` has `n` such elements, `dst` room for them, and they are apart.
#[inline(always)]
pub(crate) unsafe fn every<const STEP: usize>(src: *const f32, dst: *mut f32, n: usize, step: usize) {
    /// # Safety
    /// As `every`, of `N` elements from `i`.
    #[inline(always)]
    unsafe fn block<const N: usize>(src: *const f32, dst: *mut f32, step: usize, i: usize) {
        let src = src.wrapping_add(i * step);
        // Read before they are written: one block of shuffles and not `N` moves.
        // SAFETY: `src` has `N` elements from `i` on, `step` apart (# Safety).
        let values: [f32; N] = std::array::from_fn(|lane| unsafe { *src.wrapping_add(lane * step) });
        // SAFETY: `dst` has room for `N` elements from `i` on (# Safety).
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
pub(crate) unsafe fn zero(dst: *mut f32, n: usize) {
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
pub(crate) unsafe fn copy(src: *const f32, dst: *mut f32, n: usize) {
    /// # Safety
    /// As `copy_nonoverlapping` of `N` elements from `i`.
    #[inline(always)]
    unsafe fn block<const N: usize>(src: *const f32, dst: *mut f32, i: usize) {
        // SAFETY: both have `N` elements from `i` on, and are apart (# Safety).
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
