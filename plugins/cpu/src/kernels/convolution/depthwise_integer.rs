//! Convolutions of bytes whose groups have one channel each: a filter's taps, one after the other, over a whole plane.
//!
//! A plane is copied with its padding, and divided by the strides into *phases*: what one tap of a filter sees of it is then a
//! run of one phase, whose rows are as long as the others'. So the plane of results is one run, too, of which a few
//! columns at the end of each row belong to no element, and no tap meets a border.

use super::conv_integer::Spatial;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::product::int_tile::{FAR, SHIFT, Tail};
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::Result;

/// Elements of the result that are made at once.
const CHUNK: usize = 64;

/// How planes are divided.
pub(super) struct IntDepthwise {
    rows: Spatial,
    cols: Spatial,
    /// Extents of a phase.
    height: usize,
    width: usize,
    /// Where the taps of a filter begin in the phases.
    taps: Vec<usize>,
    plane: PlaneFn,
}

/// One filter over one plane.
pub(super) struct Plane<'a> {
    /// The phases.
    pub phases: *const i8,
    /// The taps' weights as unsigned bytes, and their zero point.
    pub weights: *const u8,
    pub zero: i32,
    /// What sums begin with.
    pub start: i32,
    pub how: &'a IntDepthwise,
    /// Of [`Tail::Bytes`] the factor is the first; others are [`Tail::Ints`].
    pub tail: Tail,
    pub y: *mut u8,
}

type PlaneFn = unsafe fn(&Plane<'_>);

impl IntDepthwise {
    /// None if there are three dimensions.
    pub(super) fn new(isa: crate::isa::Isa, spatial: &[Spatial; 3]) -> Result<Option<Self>> {
        let [planes, rows, cols] = *spatial;
        if [planes.input, planes.output, planes.filter] != [1; 3] || planes.pad != 0 {
            return Ok(None);
        }
        let reach = |s: &Spatial| (s.filter - 1) * s.dilation / s.stride;
        let (height, width) = (rows.output + reach(&rows), cols.output + reach(&cols));
        let n_taps = (Size::of(rows.filter) * cols.filter).get("taps")?;
        let each = |i: usize| {
            let (y, x) = (i / cols.filter * rows.dilation, i % cols.filter * cols.dilation);
            let phase = y % rows.stride * cols.stride + x % cols.stride;
            (phase * height + y / rows.stride) * width + x / cols.stride
        };
        let phases = Size::of(rows.stride) * cols.stride * height * width;
        phases.get("a plane")?;
        let taps = reserve::collected((0..n_taps).map(each), "taps")?;
        Ok(Some(Self { rows, cols, height, width, taps, plane: plane(isa) }))
    }

    /// Bytes that the phases of a plane take.
    pub(super) fn size(&self) -> Size {
        // The last chunk ends behind the last phase.
        Size::of(self.rows.stride) * self.cols.stride * self.height * self.width + (CHUNK + self.width)
    }

    /// Divides a plane; around it and in its gaps there is `zero`.
    ///
    /// # Safety
    /// `image` is a plane of the input, and `phases` has the bytes of [`IntDepthwise::size`].
    pub(super) unsafe fn divide(&self, image: *const u8, flip: u8, zero: i8, phases: *mut i8) {
        let Self { rows, cols, height, width, .. } = *self;
        let n = rows.stride * cols.stride * height * width + CHUNK + width;
        // SAFETY: there are as many bytes (# Safety).
        unsafe { phases.write_bytes(zero as u8, n) };
        for row in 0..rows.input {
            let Ok(at) = usize::try_from(row as i64 + rows.pad) else { continue };
            let (phase, y) = (at % rows.stride, at / rows.stride);
            if y >= height {
                continue;
            }
            let from = image.wrapping_add(row * cols.input);
            for x_phase in 0..cols.stride {
                let to = phases.wrapping_add(((phase * cols.stride + x_phase) * height + y) * width);
                // The column of the image at `x` of the phase is `x * stride + first`.
                let first = x_phase as i64 - cols.pad;
                let stride = cols.stride as i64;
                let within = |n: i64| (n.max(0) as u64).div_ceil(stride as u64) as usize;
                let (begin, end) = (within(-first), within(cols.input as i64 - first).min(width));
                let from = from.wrapping_offset(first as isize);
                if cols.stride == 1 {
                    for x in begin..end {
                        // SAFETY: the column lies within the image's row (# Safety).
                        let byte = unsafe { from.wrapping_add(x).read() } ^ flip;
                        // SAFETY: `x` is below the phase's width (# Safety).
                        unsafe { to.add(x).write(byte as i8) };
                    }
                    continue;
                }
                for x in begin..end {
                    // SAFETY: the column lies within the image's row (# Safety).
                    let byte = unsafe { from.wrapping_add(x * cols.stride).read() } ^ flip;
                    // SAFETY: `x` is below the phase's width (# Safety).
                    unsafe { to.add(x).write(byte as i8) };
                }
            }
        }
    }

    /// Makes a plane of the result.
    ///
    /// # Safety
    /// 1. The processor has the instructions that this value was made for.
    /// 2. There are phases, and a weight for each tap.
    /// 3. The plane of the result is of the tail's type, and no other thread's.
    pub(super) unsafe fn run(&self, plane: &Plane<'_>) {
        // SAFETY: as this function (# Safety).
        unsafe { (self.plane)(plane) }
    }
}

/// # Safety
/// As [`IntDepthwise::run`].
#[inline(always)]
unsafe fn plane_body<A: Arith>(plane: &Plane<'_>) {
    let how = plane.how;
    let (rows, columns) = (how.rows.output, how.cols.output);
    let mut at = 0;
    while at < rows * how.width {
        let mut sums = [plane.start; CHUNK];
        for (i, &offset) in how.taps.iter().enumerate() {
            // SAFETY: there is a weight for each tap (# Safety, 2).
            let weight = i32::from(unsafe { plane.weights.add(i).read() }) - plane.zero;
            let from = plane.phases.wrapping_add(offset + at).cast::<[i8; CHUNK]>();
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
        let (mut row, mut col, mut i) = (at / how.width, at % how.width, 0);
        while i < CHUNK && row < rows {
            let n = (columns.saturating_sub(col)).min(CHUNK - i);
            let to = row * columns + col;
            match plane.tail {
                // SAFETY: the elements are within the plane of the result (# Safety, 3), and no more than a chunk's.
                Tail::Bytes { .. } if n > 0 => unsafe {
                    std::ptr::copy_nonoverlapping(bytes.as_ptr().add(i), plane.y.add(to), n);
                },
                // SAFETY: the same.
                _ if n > 0 => unsafe {
                    std::ptr::copy_nonoverlapping(sums.as_ptr().add(i), plane.y.cast::<i32>().add(to), n);
                },
                _ => {}
            }
            i += how.width - col;
            (row, col) = (row + 1, 0);
        }
        at += CHUNK;
    }
}

dispatch! { fn plane(plane: &Plane<'_>) = plane_body }
