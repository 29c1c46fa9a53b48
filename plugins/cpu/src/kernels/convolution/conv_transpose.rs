//! Transposed convolutions: a product of the input with all taps, whose columns are then added up in place.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::window::{SPATIAL_MAX, Window, image, in_and_out};
use crate::kernels::numbers::widen;
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::epilogue::{Activation, FinishFn, Tile, finish};
use crate::kernels::product::micro::{
    Dst, KC, Left, Micro, NR, Right, as_f32s_mut, layout_id, pack_right, packed_right_len, packed_right_size,
    to_weights,
};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] =
    &[descriptor("ConvTranspose", 11, prepare).types(SINGLE).adapted(widen::floats).cost(transposed_cost)];

struct ConvTranspose {
    host: Host,
    images: usize,
    groups: usize,
    c_in: usize,
    c_out: usize,
    /// The window seen from the output: its input is this op's output.
    window: Window,
    finish: FinishFn,
    micro: Micro,
    packed: bool,
    per_slot: usize,
}

impl ConvTranspose {
    /// Rows of the product of a group: output channels and taps.
    fn rows(&self) -> usize {
        self.c_out * self.window.n_taps()
    }
}

fn transposed_cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let weights = extents(request.required_input(1)?)?;
    let per_input: usize = weights[1..].iter().product();
    let flops = Size::of(2 * per_input) * request.required_input(0)?.n_elements();
    Ok(cost::of(request, flops.saturated() as u64))
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (input, output) = in_and_out(request)?;
    let weights = extents(request.required_input(1)?)?;
    let (images, channels, spatial) = image(&input)?;
    let (_, c_out, out_spatial) = image(&output)?;
    let groups = usize::try_from(request.attrs.int("group", 1)?).ok().filter(|&groups| groups > 0);
    let groups = groups.ok_or_else(|| Error::invalid("attribute group is not above 0"))?;
    let (rows, per_group, kernel) = image(&weights)?;
    if rows != channels || per_group.checked_mul(groups) != Some(c_out) || channels % groups != 0 {
        return Err(Error::invalid(format!(
            "weights {weights:?} do not fit {groups} groups of an input {input:?} and an output {output:?}"
        )));
    }
    let mut window = Window::of(&request.attrs, kernel, out_spatial, spatial)?;
    if request.attrs.ints("output_shape")?.is_some()
        || request.attrs.string("auto_pad", "NOTSET")?.starts_with("SAME")
    {
        window.pad = implied_padding(request, &window)?;
    }
    let k = channels / groups;
    let micro = Micro::of(request.device.isa);
    let packed = request.abi_minor >= 2 && request.required_input(1)?.constant().is_some();
    let mut kernel = ConvTranspose {
        host: request.host,
        images,
        groups,
        c_in: k,
        c_out: per_group,
        window,
        finish: finish(request.device.isa),
        micro,
        packed,
        per_slot: 0,
    };
    let rows = kernel.rows();
    // A panel of the input, and the product for it.
    let per_slot = Size::of(rows).next_multiple_of(NR) * micro.mr + KC.min(k) * micro.mr;
    kernel.per_slot = per_slot.get("a transposed convolution's panels")?;
    let packed_size = packed_right_size(rows, k) * groups;
    // Planes are added up by one thread each, so a launch has as many units as planes of the batch.
    let per_launch = if packed { Size::of(0) } else { packed_size };
    let workspace = per_slot * kernel.host.n_slots() + per_launch;
    let prepared = Prepared::new(kernel).with_room(workspace * 4, 64)?;
    if !packed {
        return Ok(prepared);
    }
    let id = layout_id(&[5, NR as u64, groups as u64, rows as u64, k as u64]);
    let packed_bytes = (packed_size * 4).get("a transposed convolution's packed weights")?;
    Ok(prepared.with_packed(1, id, packed_bytes, 64, move |src, dst| {
        pack(&to_weights(src)?, groups, rows, k, as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Padding that follows from the extents (ONNX ConvTranspose-11): what is too much is divided between the ends.
fn implied_padding(request: &PrepareRequest<'_, CpuDevice>, window: &Window) -> Result<[usize; SPATIAL_MAX]> {
    let extra = request.attrs.ints("output_padding")?.unwrap_or_default();
    let upper = request.attrs.string("auto_pad", "NOTSET")? == "SAME_UPPER";
    let mut pad = [0; SPATIAL_MAX];
    for i in 0..SPATIAL_MAX {
        let at = (i + extra.len()).checked_sub(SPATIAL_MAX);
        let extra = at.and_then(|at| usize::try_from(extra[at]).ok()).unwrap_or(0);
        let full = Size::of(window.stride[i]) * (window.output[i].max(1) - 1)
            + extra
            + Size::of(window.kernel[i].max(1) - 1) * window.dilation[i]
            + 1;
        let total = full.get("a transposed convolution's padding")?.saturating_sub(window.input[i]);
        pad[i] = if upper { total / 2 } else { total.div_ceil(2) };
    }
    Ok(pad)
}

/// Packs weights `[k][rows]` of each group as rows.
fn pack(src: &[f32], groups: usize, rows: usize, k: usize, dst: &mut [f32]) {
    for (g, dst) in dst.chunks_exact_mut(packed_right_len(rows, k)).enumerate().take(groups) {
        pack_right(rows, k, dst, |row, i| src[(g * k + i) * rows + row]);
    }
}

impl Launch<CpuDevice> for ConvTranspose {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let mut addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        if !self.packed {
            let packed = workspace.at(self.per_slot * self.host.n_slots());
            let (rows, k) = (self.rows(), self.c_in);
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (
                    std::slice::from_raw_parts(addresses.w.0, self.groups * rows * k),
                    std::slice::from_raw_parts_mut(packed, self.groups * packed_right_len(rows, k)),
                )
            };
            pack(src, self.groups, rows, k, dst);
            addresses.w = SendPtr(packed);
        }
        self.host.parallel_for(self.images * self.groups, 1, |planes, slot| {
            for plane in planes {
                // SAFETY: planes write disjoint channels of the output, and a slot's scratch is its own.
                unsafe { self.plane(plane, &addresses, workspace.at(slot * self.per_slot)) }?;
            }
            Ok(())
        })
    }
}

impl ConvTranspose {
    /// One image and group.
    ///
    /// # Safety
    /// The addresses are the launch's operands, packed weights included; no other thread works on this plane or in
    /// this scratch memory.
    ///
    /// # Errors
    /// That the run is to end.
    unsafe fn plane(&self, plane: usize, addresses: &Addresses, scratch: *mut f32) -> Result<()> {
        let window = &self.window;
        let (mr, k, rows) = (self.micro.mr, self.c_in, self.rows());
        let (n_in, n_out) = (window.n_output(), window.n_input());
        let group = plane % self.groups;
        let x = addresses.x.at(plane * k * n_in);
        let w = addresses.w.at(group * packed_right_len(rows, k));
        let y = addresses.y.at(plane * self.c_out * n_out);
        let product = scratch.wrapping_add(KC.min(k) * mr);
        for i in 0..self.c_out * n_out {
            // SAFETY: within the plane's channels.
            unsafe { *y.wrapping_add(i) = 0.0 };
        }
        let mut pace = self.host.pace();
        for first in (0..n_in).step_by(mr) {
            let pixels = mr.min(n_in - first);
            let m = self.micro.padded(pixels);
            for k0 in (0..k).step_by(KC) {
                let kc = KC.min(k - k0);
                for i in 0..kc {
                    let row = scratch.wrapping_add(i * m);
                    for p in 0..m {
                        // SAFETY: the pixel is within the channel, or zero is written; the row is within the
                        // scratch memory.
                        unsafe {
                            *row.wrapping_add(p) =
                                if p < pixels { *x.wrapping_add((k0 + i) * n_in + first + p) } else { 0.0 };
                        }
                    }
                }
                for row in (0..rows).step_by(NR) {
                    pace.work(2 * NR * kc * m)?;
                    // SAFETY: `m` is whole vectors; both sides have `kc` values of k from here, and the product
                    // has room for all rows.
                    unsafe {
                        self.micro.tile(
                            m,
                            NR.min(rows - row),
                            kc,
                            Left { start: scratch, stride: m },
                            Right {
                                start: w.wrapping_add((row / NR * k + k0) * NR),
                                k_stride: NR as isize,
                                row_stride: 1,
                            },
                            Dst {
                                start: product.wrapping_add(row * m),
                                stride: m,
                                scale: 1.0,
                                accumulate: k0 > 0,
                            },
                        );
                    }
                }
            }
            // SAFETY: the product has a value for each row and pixel, and the plane is this call's.
            unsafe { self.add_up(product, m, first, pixels, y) };
        }
        let tile = Tile {
            x: y,
            x_stride: n_out,
            y,
            y_stride: n_out,
            rows: self.c_out,
            columns: n_out,
            row_bias: Addresses::offset(addresses.bias, group * self.c_out),
            column_bias: std::ptr::null(),
            z: std::ptr::null(),
            beta: 1.0,
        };
        if !tile.row_bias.is_null() {
            // SAFETY: the channels are this call's, within the bias and the result.
            unsafe { (self.finish)(tile, Activation::None) };
        }
        Ok(())
    }

    /// Adds each product to the output element that its pixel and tap meet at.
    ///
    /// # Safety
    /// `product` has rows of `m` for each channel and tap, `y` is the plane's output.
    unsafe fn add_up(&self, product: *const f32, m: usize, first: usize, pixels: usize, y: *mut f32) {
        let window = &self.window;
        let [_, in_height, in_width] = window.output;
        let [depth, height, width] = window.input;
        let n_out = window.n_input();
        for row in 0..self.rows() {
            let (channel, tap) = (row / window.n_taps(), row % window.n_taps());
            let [_, kernel_height, kernel_width] = window.kernel;
            let tap =
                [tap / kernel_width / kernel_height, tap / kernel_width % kernel_height, tap % kernel_width];
            let mut p = 0;
            // Pixels of one row of the image at a time.
            while p < pixels {
                let pixel = first + p;
                let position = [pixel / in_width / in_height, pixel / in_width % in_height, pixel % in_width];
                let n = (in_width - position[2]).min(pixels - p);
                let met = |i: usize| position[i] * window.stride[i] + tap[i] * window.dilation[i];
                let at = |i: usize| met(i).wrapping_sub(window.pad[i]);
                let (d, h) = (at(0), at(1));
                if d < depth && h < height {
                    // Those that meet an element of the output's row: `pad <= met + j * stride < pad + width`.
                    let (step, pad) = (window.stride[2], window.pad[2]);
                    let below = |limit: usize| limit.saturating_sub(met(2)).div_ceil(step).min(n);
                    let (begin, end) = (below(pad), below(pad + width));
                    let sums = y.wrapping_add(channel * n_out + (d * height + h) * width);
                    let sums = sums.wrapping_add((met(2) + begin * step).wrapping_sub(pad));
                    let values = product.wrapping_add(row * m + p + begin);
                    // SAFETY: the positions are within the output's row, the product within its own.
                    unsafe { add_apart(values, sums, end - begin, step) };
                }
                p += n;
            }
        }
    }
}

/// Adds values to sums that are so many elements apart.
///
/// # Safety
/// There are `n` of both, which do not overlap.
unsafe fn add_apart(values: *const f32, sums: *mut f32, n: usize, step: usize) {
    // The strides that networks have, for the compiler to know.
    let add = |step: usize| {
        for j in 0..n {
            // SAFETY: `j` is below `n`, and both have `n` elements (# Safety).
            unsafe { *sums.wrapping_add(j * step) += *values.wrapping_add(j) };
        }
    };
    match step {
        1 => add(1),
        2 => add(2),
        step => add(step),
    }
}
