//! Windows that slide over images: the geometry that convolutions and poolings share (ONNX Conv-11, MaxPool-12).

use crate::device::CpuDevice;
use crate::kernels::geometry::extents::extents;
use devbay_ops::read;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::{Attrs, Error, PrepareRequest, Result};
use std::ops::Range;

pub use devbay_ops::read::SPATIAL_MAX;

/// Extents, steps and paddings stay below this, so that products of two of them are counted.
const REACH_MAX: i64 = 1 << 31;

/// Geometry of a sliding window: depth, height and width, those that an image lacks of extent 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Extents of the input.
    pub input: [usize; SPATIAL_MAX],
    /// Extents of the output.
    pub output: [usize; SPATIAL_MAX],
    /// Extents of the window.
    pub kernel: [usize; SPATIAL_MAX],
    /// Steps of the window.
    pub stride: [usize; SPATIAL_MAX],
    /// Distance between the window's elements.
    pub dilation: [usize; SPATIAL_MAX],
    /// Padding before the first element.
    pub pad: [usize; SPATIAL_MAX],
}

impl Window {
    /// Reads the attributes of a node whose input and output have the given spatial extents.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification, unsupported for more than three dimensions.
    pub fn of(attrs: &Attrs<'_>, kernel: &[usize], input: &[usize], output: &[usize]) -> Result<Self> {
        let rank = input.len();
        if rank == 0 || rank > SPATIAL_MAX {
            return Err(Error::unsupported(format!(
                "a window over {rank} dimensions, 1 to {SPATIAL_MAX} are"
            )));
        }
        let [of_kernel, of_input, of_output] = [kernel, input, output]
            .map(|extents| extents.iter().map(|&extent| extent as i64).collect::<Vec<_>>());
        let read = read::Window::of(attrs, &of_kernel, &of_input, &of_output, REACH_MAX)?;
        let mut window = Self {
            input: [1; SPATIAL_MAX],
            output: [1; SPATIAL_MAX],
            kernel: [1; SPATIAL_MAX],
            stride: [1; SPATIAL_MAX],
            dilation: [1; SPATIAL_MAX],
            pad: [0; SPATIAL_MAX],
        };
        for i in 0..rank {
            let at = SPATIAL_MAX - rank + i;
            window.input[at] = input[i];
            window.output[at] = output[i];
            window.kernel[at] = kernel[i];
            window.stride[at] = read.strides[i] as usize;
            window.dilation[at] = read.dilations[i] as usize;
            window.pad[at] = read.pads[i].0 as usize;
        }
        window.check_sizes()?;
        Ok(window)
    }

    /// Checks that every position of a window, and the number of its elements, can be counted with room to spare:
    /// kernels multiply them without asking again.
    fn check_sizes(&self) -> Result<()> {
        const POSITION_MAX: usize = 1 << 50;
        let end = |i: usize| {
            let begin = Size::of(self.output[i].max(1) - 1) * self.stride[i];
            begin + Size::of(self.kernel[i].max(1) - 1) * self.dilation[i] + 1
        };
        let ends = (0..SPATIAL_MAX).map(end);
        let n_taps = Size::of_extents(&self.kernel.map(|extent| extent.max(1)));
        let rows = Size::of_extents(&[0, 1].map(end).map(Size::saturated));
        if ends.chain([n_taps, rows]).all(|size| size.saturated() <= POSITION_MAX) {
            return Ok(());
        }
        Err(Error::unsupported(format!("a window that goes on as far as {self:?}")))
    }

    /// Elements of one channel of the input.
    pub fn n_input(&self) -> usize {
        self.input.iter().product()
    }

    /// Elements of one channel of the output.
    pub fn n_output(&self) -> usize {
        self.output.iter().product()
    }

    /// Elements of the window.
    pub fn n_taps(&self) -> usize {
        self.kernel.iter().product()
    }

    /// Rows of the window.
    pub fn n_rows(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// The places along a dimension at which the window lies within the input.
    pub fn inside(&self, i: usize) -> Range<usize> {
        let begin = self.pad[i].div_ceil(self.stride[i]).min(self.output[i]);
        let reach = self.kernel[i].saturating_sub(1) * self.dilation[i];
        // The last place is where the window's last element is the input's.
        let n =
            (self.input[i] + self.pad[i]).checked_sub(reach + 1).map_or(0, |last| last / self.stride[i] + 1);
        begin..n.clamp(begin, self.output[i])
    }

    /// Returns whether each output element is made of the input element at its own place.
    pub fn is_pointwise(&self) -> bool {
        self.n_taps() == 1
            && self.stride == [1; SPATIAL_MAX]
            && self.pad == [0; SPATIAL_MAX]
            && self.input == self.output
    }
}

/// The extents of an image batch: images, channels, and the rest.
///
/// # Errors
/// Invalid for fewer than three dimensions.
pub fn image(extents: &[usize]) -> Result<(usize, usize, &[usize])> {
    match extents {
        [images, channels, spatial @ ..] if !spatial.is_empty() => Ok((*images, *channels, spatial)),
        _ => Err(Error::invalid(format!("an image batch of rank {}", extents.len()))),
    }
}

/// The extents of an input and an output of a request.
///
/// # Errors
/// Invalid if one is missing.
pub fn in_and_out(request: &PrepareRequest<'_, CpuDevice>) -> Result<(Vec<usize>, Vec<usize>)> {
    Ok((extents(request.required_input(0)?)?, extents(request.required_output(0)?)?))
}
