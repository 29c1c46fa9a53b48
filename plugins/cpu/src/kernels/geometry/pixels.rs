//! What windows see of images whose channels come last: the addresses of pixels, some windows together.

use crate::kernels::geometry::window::Window;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::Result;
use std::ops::Range;

/// Windows that are looked at together.
pub const GROUP: usize = 8;

/// The first channel of the pixel that one element of the window sees, for each window.
pub type Seen = [*const f32; GROUP];

/// Bytes of the addresses of a group of windows.
///
/// # Errors
/// Out of memory for a window of which they cannot be counted.
pub fn room(window: &Window) -> Result<usize> {
    Ok((Size::of(window.n_taps()) * size_of::<Seen>()).next_multiple_of(64).get("addresses of pixels")?)
}

/// Where a pixel's window begins: its image, and the position there, which may lie in the padding.
#[derive(Clone, Copy)]
pub struct Origin {
    /// The image's first number.
    pub image: *const f32,
    /// Depth, row and column.
    pub at: [isize; 3],
}

impl Origin {
    /// A place for an origin.
    pub const NONE: Self = Self { image: std::ptr::null(), at: [0; 3] };

    /// The first channel of what an element of the window sees, by its depth, row and column; None for the padding.
    #[inline]
    pub fn sees(&self, window: &Window, tap: [usize; 3], channels: usize) -> Option<*const f32> {
        let at = |i: usize| {
            let at = self.at[i] + (tap[i] * window.dilation[i]) as isize;
            usize::try_from(at).ok().filter(|&at| at < window.input[i])
        };
        let (slice, row, column) = (at(0)?, at(1)?, at(2)?);
        let pixel = (slice * window.input[1] + row) * window.input[2] + column;
        Some(self.image.wrapping_add(pixel * channels))
    }
}

/// Where the windows of some pixels of the results begin; `pixels` counts those of all images, of which the first begins at `x`
/// and each pixel has so many channels.
#[inline]
pub fn origins(
    window: &Window,
    x: *const f32,
    channels: usize,
    pixels: Range<usize>,
    origins: &mut [Origin],
) {
    let [depth, height, width] = window.output;
    let image_len = window.n_input() * channels;
    let (line, mut column) = (pixels.start / width, pixels.start % width);
    let (plane, mut row) = (line / height, line % height);
    let (mut image, mut slice) = (plane / depth, plane % depth);
    let origin = |i: usize, at: usize| (at * window.stride[i]) as isize - window.pad[i] as isize;
    for own in &mut origins[..pixels.len()] {
        let at = [origin(0, slice), origin(1, row), origin(2, column)];
        *own = Origin { image: x.wrapping_add(image * image_len), at };
        column += 1;
        if column == width {
            (column, row) = (0, row + 1);
            if row == height {
                (row, slice) = (0, slice + 1);
                if slice == depth {
                    (slice, image) = (0, image + 1);
                }
            }
        }
    }
}

/// What each element of the window sees for a group of windows; those that are missing in the last group, and the padding, see
/// `padding`.
///
/// # Safety
/// `to` has [`room`] for the addresses of one group, aligned to them, for as long as the result is used.
pub unsafe fn seen<'a>(
    window: &Window,
    x: *const f32,
    channels: usize,
    pixels: Range<usize>,
    padding: *const f32,
    to: *mut Seen,
) -> &'a [Seen] {
    let mut places = [Origin::NONE; GROUP];
    let n = pixels.len();
    origins(window, x, channels, pixels, &mut places);
    let [depth, height, width] = window.kernel;
    // SAFETY: there is room for the addresses (# Safety), each of which is written below before it is read.
    let all = unsafe { std::slice::from_raw_parts_mut(to, window.n_taps()) };
    let mut taps = all.iter_mut();
    for slice in 0..depth {
        for row in 0..height {
            for column in 0..width {
                let Some(seen) = taps.next() else { break };
                for (from, origin) in seen.iter_mut().zip(&places[..n]) {
                    *from = origin.sees(window, [slice, row, column], channels).unwrap_or(padding);
                }
                seen[n..].fill(padding);
            }
        }
    }
    all
}
