//! Windows that slide over images: the geometry that convolutions and poolings share (ONNX Conv-11, MaxPool-12).

use super::cost;
use crate::step::{Param, turns};
use crate::template::wgsl;
use devbay_ops::read;
use devbay_plugin_api::sdk::{Attrs, Error, Result};

pub use devbay_ops::read::SPATIAL_MAX;

/// Extents, steps and paddings stay below this, so that shaders count positions in i32.
const REACH_MAX: i64 = 1 << 30;

/// Geometry of a sliding window: depth, height and width, those that an image lacks of extent 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Extents of the input.
    pub input: [i64; SPATIAL_MAX],
    /// Extents of the output.
    pub output: [i64; SPATIAL_MAX],
    /// Extents of the window.
    pub kernel: [i64; SPATIAL_MAX],
    /// Steps of the window.
    pub stride: [i64; SPATIAL_MAX],
    /// Distance between the window's elements.
    pub dilation: [i64; SPATIAL_MAX],
    /// Padding before the first element.
    pub pad: [i64; SPATIAL_MAX],
    /// Padding behind the last one; what automatic padding needs there.
    pub pad_after: [i64; SPATIAL_MAX],
    /// Dimensions that the image has.
    pub rank: usize,
}

/// The letters of depth, height and width in shaders.
pub const AXES: [&str; SPATIAL_MAX] = ["d", "h", "w"];

impl Window {
    /// Reads the attributes of a node whose input and output have the given spatial extents.
    ///
    /// # Errors
    /// Invalid for attributes that break the specification, unsupported for more than three dimensions.
    pub fn of(attrs: &Attrs<'_>, kernel: &[i64], input: &[i64], output: &[i64]) -> Result<Self> {
        let rank = input.len();
        if rank == 0 || rank > SPATIAL_MAX {
            let text = format!("a window over {rank} dimensions, 1 to {SPATIAL_MAX} are");
            return Err(Error::unsupported(text));
        }
        let read = read::Window::of(attrs, kernel, input, output, REACH_MAX)?;
        if kernel.iter().any(|&extent| extent < 1) {
            return Err(Error::invalid(format!("a window of {kernel:?}, expected extents above 0")));
        }
        let is_counted = |list: &[i64]| list.iter().all(|extent| (0..REACH_MAX).contains(extent));
        let reaches = |i: usize| read.span(i) >= REACH_MAX || output[i] * read.strides[i] >= REACH_MAX;
        if !is_counted(input) || !is_counted(output) || (0..rank).any(reaches) {
            return Err(Error::unsupported("a window that reaches beyond 2^30"));
        }
        let mut window = Self {
            input: [1; SPATIAL_MAX],
            output: [1; SPATIAL_MAX],
            kernel: [1; SPATIAL_MAX],
            stride: [1; SPATIAL_MAX],
            dilation: [1; SPATIAL_MAX],
            pad: [0; SPATIAL_MAX],
            pad_after: [0; SPATIAL_MAX],
            rank,
        };
        for i in 0..rank {
            let at = SPATIAL_MAX - rank + i;
            window.input[at] = input[i];
            window.output[at] = output[i];
            window.kernel[at] = kernel[i];
            window.stride[at] = read.strides[i];
            window.dilation[at] = read.dilations[i];
            (window.pad[at], window.pad_after[at]) = read.pads[i];
        }
        Ok(window)
    }

    /// Checks that the output has the extents that follow from the others, with nothing rounded up.
    ///
    /// # Errors
    /// Invalid if not.
    pub fn expect_output(&self) -> Result<()> {
        for i in 0..SPATIAL_MAX {
            let span = (self.kernel[i] - 1) * self.dilation[i] + 1;
            let room = self.input[i] + self.pad[i] + self.pad_after[i] - span;
            let expected = if room < 0 { 0 } else { room / self.stride[i] + 1 };
            if self.output[i] != expected {
                let text = format!("an output of {:?} for windows with {expected} places", self.output);
                return Err(Error::invalid(text));
            }
        }
        Ok(())
    }

    /// Elements of one channel of the input.
    pub fn n_input(&self) -> u64 {
        cost::volume(&self.input)
    }

    /// Elements of one channel of the output.
    pub fn n_output(&self) -> u64 {
        cost::volume(&self.output)
    }

    /// Elements of the window.
    pub fn n_taps(&self) -> u64 {
        cost::volume(&self.kernel)
    }

    /// Turns of [`Window::taps`], whose body has so many itself.
    pub fn turns(&self, of_tap: u64) -> u64 {
        self.axes().rev().fold(of_tap, |inner, i| turns(self.kernel[i] as u64, inner))
    }

    /// Returns whether each output element is made of the input element at its own place.
    pub fn is_pointwise(&self) -> bool {
        self.n_taps() == 1
            && self.stride == [1; SPATIAL_MAX]
            && self.pad == [0; SPATIAL_MAX]
            && self.input == self.output
    }

    /// Returns whether shaders know three dimensions, and not two.
    pub fn is_deep(&self) -> bool {
        self.rank == SPATIAL_MAX
    }

    /// The dimensions that shaders know: two, or all three.
    pub fn axes(&self) -> std::ops::Range<usize> {
        if self.is_deep() { 0..SPATIAL_MAX } else { 1..SPATIAL_MAX }
    }

    /// Parameters for each axis of [`Window::axes`], i32: `in_h`, `out_h`, `kernel_h`, `stride_h`, `dilation_h`,
    /// `pad_h`.
    pub fn params(&self) -> Vec<(String, Param)> {
        let mut params = Vec::new();
        for i in self.axes() {
            let lists = [
                ("in", self.input),
                ("out", self.output),
                ("kernel", self.kernel),
                ("stride", self.stride),
                ("dilation", self.dilation),
                ("pad", self.pad),
            ];
            for (name, list) in lists {
                // All are below 2^30.
                params.push((format!("{name}_{}", AXES[i]), Param::I32(list[i] as i32)));
            }
        }
        params
    }

    /// WGSL that takes `rest`, a u32 variable, apart into `out_w`, `out_h`.. (i32) and leaves the plane's number.
    pub fn split_output(&self) -> String {
        let mut text = String::new();
        for i in self.axes().rev() {
            let axis = AXES[i];
            text.push_str(&format!(
                "let out_{axis} = i32(rest % u32(p.out_{axis}));\nrest /= u32(p.out_{axis});\n"
            ));
        }
        text
    }

    /// WGSL that runs `body` for each element of the window at `out_h`.. that lies within the image: `at` is its place in
    /// the plane and `tap` its number in the window, both u32.
    pub fn taps(&self, body: &str) -> String {
        wgsl!("window/taps.wgsl", is_deep = self.is_deep(), code = body)
    }
}

/// The extents of an image batch: images, channels, and the rest.
///
/// # Errors
/// Invalid for fewer than three dimensions.
pub fn image(shape: &[i64]) -> Result<(i64, i64, &[i64])> {
    match shape {
        [images, channels, spatial @ ..] if !spatial.is_empty() => Ok((*images, *channels, spatial)),
        _ => Err(Error::invalid(format!("an image batch of rank {}", shape.len()))),
    }
}
