//! Convolutions of images whose channels come last (docs/fused-ops.md): vectors run along output channels, and what a window
//! sees of a pixel is contiguous.
//!
//! - [`direct`]: tiles of pixels times panels of weights, straight from the image.
//! - `rounded`: the same with factors of bf16, if the host permits it.
//! - [`winograd`]: windows of 3 x 3 that move by one, with fewer multiplications.
//! - [`depthwise`]: each channel by itself, or groups of few; [`sliding`]: its windows of usual widths.

mod depthwise;
mod direct;
mod header;
#[cfg(target_arch = "x86_64")]
mod rounded;
mod sliding;
#[cfg(test)]
mod tests;
mod winograd;

use crate::device::CpuDevice;
use crate::kernels::convolution::conv::{conv_cost, groups_of};
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::window::Window;
use crate::kernels::numbers::widen;
use crate::kernels::product::epilogue::{Activation, FinishFn, Tile, finish};
#[cfg(target_arch = "x86_64")]
use crate::kernels::product::pairs::Pairs;
use crate::kernels::product::tile::{Quick, Tail, Tiles};
use devbay_ops::descriptor_of;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::*;

/// The kernels of this module.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "NhwcFusedConv", 1, prepare)
    .types(&[TypeVar::of(crate::kernels::types::SINGLES)])
    .adapted(widen::floats)
    .cost(conv_cost)
    .doc("Conv of images whose channels come last, with a residual that is added, and an activation")];

/// Vectors that are multiplied while one of weights is read that is in no cache.
const UNCACHED: f64 = 16.0;

/// A convolution.
struct Conv {
    host: Host,
    images: usize,
    groups: usize,
    /// Input channels of a group.
    c_in: usize,
    /// Output channels of a group.
    c_out: usize,
    window: Window,
    /// What the tail does in registers, and what is left for rows that are finished.
    quick: Quick,
    activation: Option<Activation>,
    finish: FinishFn,
    tiles: Tiles,
    /// True if the host passes packed weights.
    packed: bool,
    /// What a window sees of the padding, for a row of its elements.
    zeros: Vec<f32>,
}

impl Conv {
    /// Terms of each sum.
    fn k(&self) -> usize {
        self.c_in * self.window.n_taps()
    }

    /// Pixels of the results of all images.
    fn n_pixels(&self) -> usize {
        self.images * self.window.n_output()
    }

    /// The time that the direct way takes with so many terms of a group's pixel, in vectors multiplied or moved. A processor
    /// makes about one a cycle.
    fn directly(&self, terms: usize) -> f64 {
        let columns = self.c_out.div_ceil(self.tiles.lanes) as f64;
        let weights = (self.window.n_taps() * self.groups) as f64 * terms as f64 * columns;
        (self.n_pixels() as f64 + UNCACHED) * weights
    }

    /// Numbers of a pixel of an image, and of a result.
    fn strides(&self) -> (usize, usize) {
        (self.groups * self.c_in, self.groups * self.c_out)
    }

    /// The part of the tail that sums get in registers.
    fn tail(&self, z: *const f32) -> Tail {
        Tail { z, activation: self.quick }
    }

    /// Applies to finished rows what [`Conv::tail`] leaves out.
    ///
    /// # Safety
    /// The rows are this thread's.
    unsafe fn activate(&self, y: *mut f32, rows: usize, columns: usize) {
        let Some(activation) = self.activation else { return };
        let stride = self.strides().1;
        let tile = Tile {
            x: y,
            x_stride: stride,
            y,
            y_stride: stride,
            rows,
            columns,
            row_bias: std::ptr::null(),
            column_bias: std::ptr::null(),
            z: std::ptr::null(),
            beta: 1.0,
        };
        // SAFETY: the rows are this thread's (# Safety).
        unsafe { (self.finish)(tile, activation) };
    }
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let input = extents(request.required_input(0)?)?;
    let output = extents(request.required_output(0)?)?;
    let weights = extents(request.required_input(1)?)?;
    let ([images, spatial @ .., channels], [_, out_spatial @ .., c_out], [_, c_in, kernel @ ..]) =
        (&input[..], &output[..], &weights[..])
    else {
        return Err(Error::invalid(format!("an image of rank {}", input.len())));
    };
    let (images, channels, c_out, c_in) = (*images, *channels, *c_out, *c_in);
    let groups = groups_of(request, channels, c_out)?;
    let window = Window::of(&request.attrs, kernel, spatial, out_spatial)?;
    let (images, window) = widened(images, window);
    let isa = request.device.isa;
    let (quick, activation) = match Quick::of(Activation::of(&request.attrs)?) {
        Ok(quick) => (quick, None),
        Err(activation) => (Quick::None, Some(activation)),
    };
    let n_zeros = (Size::of(window.kernel[2]) * c_in.max(channels)).get("a row of padding")?;
    let conv = Conv {
        host: request.host,
        images,
        groups,
        c_in,
        c_out: c_out / groups,
        window,
        quick,
        activation,
        finish: finish(isa),
        tiles: Tiles::of(isa),
        packed: request.abi_minor >= 2 && request.required_input(1)?.constant().is_some(),
        zeros: reserve::zeroed(n_zeros, "a row of padding")?,
    };
    if depthwise::takes(&conv) {
        return depthwise::prepare(conv, isa);
    }
    let directly = conv.directly(conv.c_in);
    #[cfg(target_arch = "x86_64")]
    let (directly, pairs) = match Pairs::permitted(request).filter(|_| conv.packed) {
        Some(pairs) if rounded::estimate(&conv) < directly => (rounded::estimate(&conv), Some(pairs)),
        _ => (directly, None),
    };
    if request.device.winograd && winograd::pays(&conv, directly) {
        return winograd::prepare(conv, isa);
    }
    #[cfg(target_arch = "x86_64")]
    if let Some(pairs) = pairs {
        return rounded::prepare(conv, pairs);
    }
    direct::prepare(conv)
}

/// The same convolution of fewer, longer lines, where its pixels follow each other: those of all images if each sees one of its
/// own place only, those of a column if lines have one pixel.
fn widened(images: usize, mut window: Window) -> (usize, Window) {
    if window.is_pointwise() {
        let n_pixels = images * window.n_output();
        (window.input, window.output) = ([1, 1, n_pixels], [1, 1, n_pixels]);
        return (1, window);
    }
    let is_one = |window: &Window| {
        window.input[2] == 1 && window.output[2] == 1 && window.kernel[2] == 1 && window.pad[2] == 0
    };
    for _ in 0..2 {
        if is_one(&window) {
            for extents in [
                &mut window.input,
                &mut window.output,
                &mut window.kernel,
                &mut window.stride,
                &mut window.dilation,
                &mut window.pad,
            ] {
                // The last extent is 1, and becomes the first: the others move to the end.
                extents.rotate_right(1);
            }
        }
    }
    (images, window)
}
