//! What windows see of images whose channels come last: the addresses of pixels, for some windows of a line of the result
//! together.

use crate::kernels::geometry::window::Window;
use devbay_plugin_api::sdk::Result;
use std::ops::Range;

/// Windows that are looked at together, at most.
pub const GROUP_MAX: usize = 12;

/// Addresses of the first channel of one pixel for each window.
pub type Seen<const N: usize> = [*const f32; N];

/// Neighbouring windows in a line of the result: their number, and where the first one begins in its image. What begins before
/// the image lies in the padding.
#[derive(Clone, Copy)]
pub struct Line<'a> {
    window: &'a Window,
    /// The image's first number.
    image: *const f32,
    channels: usize,
    /// Depth, row and column.
    at: [isize; 3],
    /// Windows.
    pub n: usize,
    /// Numbers from what the first window sees to what the others see; those that there are not see what the last one does.
    steps: [usize; GROUP_MAX],
}

impl<'a> Line<'a> {
    /// No windows of a line yet. Lines of the results of all images are counted together; `x` is the first image's first
    /// number, and each pixel has so many channels.
    #[inline]
    pub fn of(window: &'a Window, x: *const f32, channels: usize, line: usize) -> Self {
        let [depth, height, _] = window.output;
        let (plane, row) = (line / height, line % height);
        let (image, slice) = (plane / depth, plane % depth);
        let begin = |i: usize, at: usize| (at * window.stride[i]) as isize - window.pad[i] as isize;
        let image = x.wrapping_add(image * window.n_input() * channels);
        Self { window, image, channels, at: [begin(0, slice), begin(1, row), 0], n: 0, steps: [0; GROUP_MAX] }
    }

    /// The windows of some columns of the line.
    #[inline]
    pub fn columns(&self, columns: &Range<usize>) -> Self {
        let window = self.window;
        let column = (columns.start * window.stride[2]) as isize - window.pad[2] as isize;
        let (n, step) = (columns.len(), window.stride[2] * self.channels);
        let mut steps = [0; GROUP_MAX];
        if n > 1 {
            for (i, offset) in steps.iter_mut().enumerate() {
                *offset = i.min(n - 1) * step;
            }
        }
        Self { at: [self.at[0], self.at[1], column], n, steps, ..*self }
    }

    /// The line of pixels that a row of the windows sees, by the row's number among all of them; None for the padding.
    #[inline]
    pub fn row(&self, row: usize) -> Option<*const f32> {
        let window = self.window;
        // Most windows are flat, and a division takes as long as many sums.
        let tap = match window.kernel[0] {
            1 => [0, row],
            _ => [row / window.kernel[1], row % window.kernel[1]],
        };
        let at = |i: usize| {
            let at = self.at[i] + (tap[i] * window.dilation[i]) as isize;
            usize::try_from(at).ok().filter(|&at| at < window.input[i])
        };
        let line = at(0)? * window.input[1] + at(1)?;
        Some(self.image.wrapping_add(line * window.input[2] * self.channels))
    }

    /// What the first element of a row sees for the first window, for which [`Line::row`] gave `line`. Within the image.
    #[inline]
    pub fn first(&self, line: *const f32) -> *const f32 {
        line.wrapping_offset(self.at[2] * self.channels as isize)
    }

    /// Returns whether each element of a row lies within the image, for all windows.
    #[inline]
    pub fn is_inside(&self) -> bool {
        let window = self.window;
        let reach = (self.n - 1) * window.stride[2] + (window.kernel[2] - 1) * window.dilation[2];
        self.at[2] >= 0 && self.at[2] as usize + reach < window.input[2]
    }

    /// The addresses of what an element of a row sees, for which [`Line::row`] gave `line`, and whether that is not the padding
    /// alone.
    #[inline]
    pub fn seen<const N: usize>(
        &self,
        line: Option<*const f32>,
        tap: usize,
        padding: *const f32,
        seen: &mut Seen<N>,
    ) -> bool {
        let Some(line) = line else {
            *seen = [padding; N];
            return false;
        };
        let window = self.window;
        let first = self.at[2] + (tap * window.dilation[2]) as isize;
        let (step, n) = (window.stride[2], self.n.min(N));
        if first >= 0 && first as usize + (self.n - 1) * step < window.input[2] {
            let from = line.wrapping_add(first as usize * self.channels);
            for (seen, offset) in seen.iter_mut().zip(&self.steps) {
                *seen = from.wrapping_add(*offset);
            }
            return true;
        }
        let mut sees = false;
        for (i, seen) in seen.iter_mut().enumerate() {
            let column = usize::try_from(first + (i.min(n - 1) * step) as isize).ok();
            let column = column.filter(|&column| column < window.input[2]);
            sees |= column.is_some();
            *seen = column.map_or(padding, |column| line.wrapping_add(column * self.channels));
        }
        sees
    }
}

/// The lines of the results of all images, each divided into groups of at most `most` neighbouring pixels, as evenly as can be.
#[derive(Clone, Copy)]
pub struct Groups {
    width: usize,
    /// Groups of a line.
    of_line: usize,
    /// Groups.
    pub n: usize,
}

impl Groups {
    /// The groups of so many images.
    pub fn of(window: &Window, images: usize, most: usize) -> Self {
        let [depth, height, width] = window.output;
        let of_line = width.div_ceil(most);
        Self { width, of_line, n: images * depth * height * of_line }
    }

    /// Calls `f` for the lines of some groups, with each one's number and the columns of those groups.
    ///
    /// # Errors
    /// The first one of `f`, which ends the calls.
    #[inline(always)]
    pub fn lines(
        &self,
        groups: Range<usize>,
        mut f: impl FnMut(usize, Range<usize>) -> Result<()>,
    ) -> Result<()> {
        let column = |part: usize| self.width * part / self.of_line;
        let mut next = groups.start;
        while next < groups.end {
            let (line, part) = (next / self.of_line, next % self.of_line);
            let n = (self.of_line - part).min(groups.end - next);
            f(line, column(part)..column(part + n))?;
            next += n;
        }
        Ok(())
    }

    /// The pixels of some groups, if there is one line.
    #[cfg(target_arch = "x86_64")]
    pub fn pixels(&self, groups: &Range<usize>) -> Range<usize> {
        let at = |group: usize| self.width * group / self.of_line.max(1);
        at(groups.start)..at(groups.end)
    }

    /// Calls `f` for some groups, with the number of each one's first pixel among those of all images.
    ///
    /// # Errors
    /// The first one of `f`, which ends the calls.
    #[inline(always)]
    pub fn each(
        &self,
        groups: Range<usize>,
        window: &Window,
        x: *const f32,
        channels: usize,
        mut f: impl FnMut(usize, &Line<'_>) -> Result<()>,
    ) -> Result<()> {
        if groups.is_empty() {
            return Ok(());
        }
        let (mut line, mut part) = (groups.start / self.of_line, groups.start % self.of_line);
        let mut of_line = Line::of(window, x, channels, line);
        for _ in groups {
            let column = |part: usize| self.width * part / self.of_line;
            let columns = column(part)..column(part + 1);
            f(line * self.width + columns.start, &of_line.columns(&columns))?;
            part += 1;
            if part == self.of_line {
                (part, line) = (0, line + 1);
                of_line = Line::of(window, x, channels, line);
            }
        }
        Ok(())
    }
}
