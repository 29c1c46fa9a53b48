//! Planes of bytes with their padding, divided by the strides of a convolution.
//!
//! A *phase* has every so many rows and columns of a plane: what one tap of a filter sees is a part of one phase, in the order of
//! the results, and no tap meets a border.

use super::conv_integer::Spatial;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::Result;

/// Bytes of phases for each element of an image and a result, at most, unless they are few.
const GAPS_MAX: usize = 8;
/// Bytes that are few.
const SMALL: usize = 16 << 10;

/// How planes are divided.
pub(super) struct Phases {
    pub rows: Spatial,
    pub cols: Spatial,
    /// Extents of a phase.
    height: usize,
    pub width: usize,
    /// Where the taps of a filter begin in a plane's phases.
    pub taps: Vec<usize>,
}

impl Phases {
    /// None if there are three dimensions, or if phases would be much larger than images and results.
    ///
    /// # Errors
    /// Out of memory for taps.
    pub(super) fn new(spatial: &[Spatial; 3]) -> Result<Option<Self>> {
        let [planes, rows, cols] = *spatial;
        if [planes.input, planes.output, planes.filter] != [1; 3] || planes.pad != 0 {
            return Ok(None);
        }
        let reach = |s: &Spatial| (s.filter - 1) * s.dilation / s.stride;
        let (height, width) = (rows.output + reach(&rows), cols.output + reach(&cols));
        // Checked before products of these are made. Steps beyond the image leave gaps that nothing sees.
        let size = (Size::of(rows.stride) * cols.stride * height * width).saturated();
        let seen = (Size::of(rows.input) * cols.input + Size::of(rows.output) * cols.output).saturated();
        if size > seen.saturating_mul(GAPS_MAX).saturating_add(SMALL) {
            return Ok(None);
        }
        let n_taps = (Size::of(rows.filter) * cols.filter).get("taps")?;
        let each = |i: usize| {
            let (y, x) = (i / cols.filter * rows.dilation, i % cols.filter * cols.dilation);
            let phase = y % rows.stride * cols.stride + x % cols.stride;
            (phase * height + y / rows.stride) * width + x / cols.stride
        };
        let taps = reserve::collected((0..n_taps).map(each), "taps")?;
        Ok(Some(Self { rows, cols, height, width, taps }))
    }

    /// Bytes of the phases of a plane.
    pub(super) fn size(&self) -> usize {
        self.rows.stride * self.cols.stride * self.height * self.width
    }

    /// Divides a plane; around it and in its gaps there is `zero`, and behind the phases for so many bytes.
    ///
    /// # Safety
    /// `image` is a plane of the input, and `phases` has the bytes of [`Phases::size`] and those behind.
    pub(super) unsafe fn divide(&self, image: *const u8, flip: u8, zero: i8, phases: *mut i8, behind: usize) {
        let Self { rows, cols, height, width, .. } = *self;
        // SAFETY: there are as many bytes (# Safety).
        unsafe { phases.write_bytes(zero as u8, self.size() + behind) };
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
                let within = |n: i64| (n.max(0) as u64).div_ceil(cols.stride as u64) as usize;
                let (begin, end) = (within(-first), within(cols.input as i64 - first).min(width));
                let from = from.wrapping_offset(first as isize);
                macro_rules! copy {
                    ($stride:expr) => {
                        for x in begin..end {
                            // SAFETY: the column lies within the image's row (# Safety).
                            let byte = unsafe { from.wrapping_add(x * $stride).read() } ^ flip;
                            // SAFETY: `x` is below the phase's width (# Safety).
                            unsafe { to.add(x).write(byte as i8) };
                        }
                    };
                }
                // Loops that vectors can be made of.
                match cols.stride {
                    1 => copy!(1),
                    2 => copy!(2),
                    stride => copy!(stride),
                }
            }
        }
    }
}
