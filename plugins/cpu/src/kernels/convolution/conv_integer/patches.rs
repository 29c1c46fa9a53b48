//! Patches of an image of bytes as the panels of a product: four terms of each column beside each other.

use super::Spatial;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::convolution::phases::Phases;
use crate::kernels::product::int_tile::COLUMNS_MAX;
use crate::lanes::unrolled;

/// Patches that go into a panel: a range of the output's positions.
pub(super) struct Patches<'a> {
    /// The first channel of a group; of phases, if there are any.
    pub image: *const u8,
    pub phases: Option<&'a Phases>,
    /// What patches have beyond the border of an image without phases.
    pub zero: u8,
    /// What is flipped in each byte.
    pub flip: u8,
    pub spatial: &'a [Spatial; 3],
    pub depth: usize,
    pub first_col: usize,
    pub columns: usize,
    /// Columns of the panel.
    pub width: usize,
}

/// Terms that a panel has beside each other.
const LINES: usize = 4;

/// What one element of each patch takes: the columns, and what a vector copies behind them.
type Line = [u8; 2 * COLUMNS_MAX];

/// Positions of a panel that follow each other in a row of the output.
#[derive(Clone, Copy)]
struct Run {
    /// The first of them in the panel, and where what its first tap sees begins in a phase.
    column: usize,
    from: usize,
}

/// # Safety
/// The image has the group's channels, the positions are of its patches, there is a panel of `width` columns, at most
/// [`COLUMNS_MAX`], with a chunk of bytes behind it (`CHUNK`), and the processor has the instructions.
#[inline(always)]
unsafe fn fill_patches_body<A: Arith>(patches: &Patches<'_>, panel: *mut i8) {
    let mut lines: [Line; LINES] = [[0; 2 * COLUMNS_MAX]; LINES];
    let Some(phases) = patches.phases else {
        let [.., cols] = patches.spatial;
        let is_line = patches.spatial.iter().all(Spatial::is_identity);
        if is_line && patches.first_col + patches.width.next_multiple_of(16) <= cols.input {
            // What is read of a channel lies within it.
            for from in (0..patches.depth).step_by(LINES) {
                let line = |j: usize| patches.image.wrapping_add((from + j) * cols.input + patches.first_col);
                let n = (patches.depth - from).min(LINES);
                // SAFETY: the channels have these columns (# Safety), and the panel these terms.
                unsafe { interleave([line(0), line(1), line(2), line(3)], n, patches, from, panel) };
            }
            return;
        }
        for from in (0..patches.depth).step_by(LINES) {
            for (j, line) in lines.iter_mut().enumerate().take(patches.depth - from) {
                // SAFETY: the element is one of the patches' (# Safety), whose columns fit a line.
                unsafe { take_line(patches, from + j, line) };
            }
            let n = (patches.depth - from).min(LINES);
            // SAFETY: the panel has these terms (# Safety).
            unsafe { interleave(lines.each_ref().map(|line| line.as_ptr()), n, patches, from, panel) };
        }
        return;
    };
    let mut runs = [Run { column: 0, from: 0 }; COLUMNS_MAX];
    let mut n_runs = 0;
    let (mut column, per_row) = (0, phases.cols.output);
    while column < patches.columns {
        let position = patches.first_col + column;
        let from = position / per_row * phases.width + position % per_row;
        runs[n_runs] = Run { column, from };
        n_runs += 1;
        column += per_row - position % per_row;
    }
    let runs = &runs[..n_runs];
    let (n_taps, size) = (phases.taps.len(), phases.size());
    let (mut channel, mut tap) = (patches.image, 0);
    for from in (0..patches.depth).step_by(LINES) {
        let n = (patches.depth - from).min(LINES);
        let mut starts = [std::ptr::null(); LINES];
        for (start, line) in starts.iter_mut().zip(&mut lines).take(n) {
            let seen = channel.wrapping_add(phases.taps[tap]);
            if let [run] = runs {
                *start = seen.wrapping_add(run.from);
            } else {
                for run in runs {
                    let (from, to) =
                        (seen.wrapping_add(run.from), line.as_mut_ptr().wrapping_add(run.column));
                    // Whole vectors: what is behind a run is overwritten by the next.
                    // SAFETY: behind the last phase there is a chunk (# Safety), and a line has twice the columns of a panel.
                    unsafe {
                        match per_row {
                            ..=16 => to.cast::<[u8; 16]>().write(from.cast::<[u8; 16]>().read()),
                            17..=32 => to.cast::<[u8; 32]>().write(from.cast::<[u8; 32]>().read()),
                            _ => to.cast::<[u8; 64]>().write(from.cast::<[u8; 64]>().read()),
                        }
                    }
                }
                *start = line.as_ptr();
            }
            tap += 1;
            if tap == n_taps {
                (channel, tap) = (channel.wrapping_add(size), 0);
            }
        }
        // SAFETY: the panel has these terms (# Safety); behind the last phase there is a chunk.
        unsafe { interleave(starts, n, patches, from, panel) };
    }
}

dispatch! { pub(super) fn fill_patches(patches: &Patches<'_>, panel: *mut i8) = fill_patches_body }

/// Writes `n` lines as the terms of the columns from one on; terms that there are not are 0.
///
/// # Safety
/// Each line has the bytes of the patches' columns, of which there are sixteen, or some sixteens. The panel has four terms from
/// `from` on of the patches' columns, and a chunk of bytes behind its end (`CHUNK`).
#[inline(always)]
unsafe fn interleave(
    lines: [*const u8; LINES],
    n: usize,
    patches: &Patches<'_>,
    from: usize,
    panel: *mut i8,
) {
    let to = panel.wrapping_add(from * patches.width);
    // Sixteen columns at once, which may be more than a panel has: what is behind is written later, or not used.
    for first in (0..patches.width).step_by(16) {
        let mut sixteen = [[0u8; 16]; LINES];
        unrolled!(j below LINES {
            if j < n {
                // SAFETY: a line has the columns (# Safety).
                sixteen[j] = unsafe { lines[j].wrapping_add(first).cast::<[u8; 16]>().read() };
                sixteen[j].iter_mut().for_each(|x| *x ^= patches.flip);
            }
        });
        // SAFETY: there are 64 bytes from there (# Safety).
        unsafe { write_fours(&sixteen, to.wrapping_add(4 * first).cast()) };
    }
}

/// # Safety
/// `to` holds 64 bytes.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn write_fours(sixteen: &[[u8; 16]; LINES], to: *mut u8) {
    use core::arch::x86_64::*;
    // SAFETY: SSE2 belongs to the target, and `to` holds four vectors (# Safety).
    unsafe {
        let line = |i: usize| _mm_loadu_si128(sixteen[i].as_ptr().cast());
        let (a, b) = (line(0), line(1));
        let (c, d) = (line(2), line(3));
        let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
        _mm_storeu_si128(to.cast(), _mm_unpacklo_epi16(ab, cd));
        _mm_storeu_si128(to.add(16).cast(), _mm_unpackhi_epi16(ab, cd));
        let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
        _mm_storeu_si128(to.add(32).cast(), _mm_unpacklo_epi16(ab, cd));
        _mm_storeu_si128(to.add(48).cast(), _mm_unpackhi_epi16(ab, cd));
    }
}

/// # Safety
/// `to` holds 64 bytes.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
unsafe fn write_fours(sixteen: &[[u8; 16]; LINES], to: *mut u8) {
    let mut fours = [[0; 4]; 16];
    for (i, four) in fours.iter_mut().enumerate() {
        *four = [sixteen[0][i], sixteen[1][i], sixteen[2][i], sixteen[3][i]];
    }
    // SAFETY: `to` holds 64 bytes (# Safety).
    unsafe { to.cast::<[[u8; 4]; 16]>().write(fours) };
}

/// One element of each patch.
///
/// # Safety
/// The image has the group's channels, and the positions and the element are of its patches.
#[inline(always)]
unsafe fn take_line(patches: &Patches<'_>, element: usize, line: &mut Line) {
    let [planes, rows, cols] = patches.spatial;
    let (rest, in_col) = (element / cols.filter, element % cols.filter);
    let (rest, in_row) = (rest / rows.filter, rest % rows.filter);
    let (channel, in_plane) = (rest / planes.filter, rest % planes.filter);
    let position = patches.first_col;
    let (rest, mut col) = (position / cols.output, position % cols.output);
    let (mut plane, mut row) = (rest / rows.output, rest % rows.output);
    let mut n = 0;
    while n < patches.columns {
        let run = (cols.output - col).min(patches.columns - n);
        let to = &mut line[n..n + run];
        n += run;
        let in_plane = planes.at(plane, in_plane);
        let in_row = rows.at(row, in_row);
        let first = cols.at(col, in_col);
        (col, row) = (0, row + 1);
        if row == rows.output {
            (plane, row) = (plane + 1, 0);
        }
        let inside = (0..planes.input as i64).contains(&in_plane) && (0..rows.input as i64).contains(&in_row);
        if !inside {
            to.fill(patches.zero);
            continue;
        }
        // Positions of the run whose column is within the input.
        let stride = cols.stride as i64;
        let within = |n: i64| match stride {
            1 => n.max(0) as usize,
            _ => (n.max(0) as u64).div_ceil(stride as u64) as usize,
        };
        let end = within(cols.input as i64 - first).min(run);
        let begin = within(-first).min(end);
        to[..begin].fill(patches.zero);
        to[end..].fill(patches.zero);
        let image_row = (channel * planes.input + in_plane as usize) * rows.input + in_row as usize;
        let from = patches.image.wrapping_add(image_row * cols.input).wrapping_offset(first as isize);
        let to = &mut to[begin..end];
        if cols.stride == 1 {
            // SAFETY: the columns of these positions are within the input's row.
            unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(begin), to.as_mut_ptr(), to.len()) };
            continue;
        }
        for (i, x) in (begin..end).zip(to) {
            // SAFETY: the column of this position is within the input's row.
            *x = unsafe { from.wrapping_add(i * cols.stride).read() };
        }
    }
}
