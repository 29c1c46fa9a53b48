//! Depthwise convolutions: each channel by a window of its own, from a padded copy of its plane.

use super::conv::{Addresses, Conv};
use super::epilogue::Tile;
use super::plane::Plane;
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

/// Taps of a window, at most; larger windows go the way of other convolutions.
const TAPS_MAX: usize = 49;

/// Whether a convolution is one per channel, over planes.
pub(super) fn takes(conv: &Conv) -> bool {
    conv.c_in == 1
        && conv.c_out == 1
        && conv.groups > 1
        && conv.window.n_taps() <= TAPS_MAX
        && Plane::of(&conv.window).is_some()
}

/// One row: `y[i] = sum_t w[t] * taps[t][i]`.
type RowFn = unsafe fn(*const f32, &[*const f32; TAPS_MAX], *mut f32, usize, usize);

struct Depthwise {
    conv: Conv,
    plane: Plane,
    row: RowFn,
    grain: usize,
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Prepared {
    let Some(plane) = Plane::of(&conv.window) else {
        unreachable!("`takes` found a plane");
    };
    let row = match conv.window.n_taps() {
        9 => row_of::<Nine>(isa),
        25 => row_of::<TwentyFive>(isa),
        _ => row_of::<Any>(isa),
    };
    let workspace = plane.len() * 4 * conv.host.n_slots();
    let flops = 2 * conv.window.n_taps() * conv.window.n_output();
    Prepared::new(Depthwise { plane, row, grain: (100_000 / flops.max(1)).max(1), conv })
        .with_workspace(workspace, 64)
}

impl Launch<CpuDevice> for Depthwise {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        conv.host.parallel_for(conv.images * conv.groups, self.grain, |channels, slot| {
            let scratch = workspace.at(slot * self.plane.len());
            // SAFETY: a slot's scratch is its own and has room for the copy.
            unsafe { self.plane.clear(scratch, 0.0) };
            for channel in channels {
                // SAFETY: channels write disjoint planes.
                unsafe { self.channel(channel, &addresses, scratch) };
            }
            Ok(())
        })
    }
}

impl Depthwise {
    /// # Safety
    /// The addresses are the launch's operands; nobody else works on this channel or in this scratch memory.
    unsafe fn channel(&self, channel: usize, addresses: &Addresses, scratch: *mut f32) {
        let conv = &self.conv;
        let window = &conv.window;
        let (n_in, n_out, n_taps) = (window.n_input(), window.n_output(), window.n_taps());
        let [_, height, width] = window.output;
        // SAFETY: the channel is within the input, the copy within the scratch memory.
        unsafe { self.plane.fill(addresses.x.at(channel * n_in), scratch) };
        let group = channel % conv.groups;
        let weights = addresses.w.at(group * n_taps);
        let mut taps = [std::ptr::null::<f32>(); TAPS_MAX];
        for row in 0..height {
            for (t, tap) in taps.iter_mut().enumerate().take(n_taps) {
                let (tap_row, tap_column) = (t / window.kernel[2], t % window.kernel[2]);
                let line = row * window.stride[1] + tap_row * window.dilation[1];
                *tap = scratch.wrapping_add(
                    line * self.plane.row_len() + self.plane.tap(tap_column * window.dilation[2]),
                );
            }
            // SAFETY: each tap begins a run of `width` elements of the copy; the row is within the result.
            unsafe {
                (self.row)(weights, &taps, addresses.y.at(channel * n_out + row * width), width, n_taps)
            };
        }
        let tile = Tile {
            x: addresses.y.at(channel * n_out),
            x_stride: n_out,
            y: addresses.y.at(channel * n_out),
            y_stride: n_out,
            rows: 1,
            columns: n_out,
            row_bias: Addresses::offset(addresses.bias, group),
            column_bias: std::ptr::null(),
            z: Addresses::offset(addresses.z, channel * n_out),
        };
        // SAFETY: the plane is this channel's, within bias, residual and result.
        unsafe { (conv.finish)(tile, conv.activation) };
    }
}

/// A number of taps that the compiler knows, or none.
trait Taps: Copy + Send + Sync + 'static {
    const N: Option<usize>;
}

#[derive(Clone, Copy)]
struct Nine;
#[derive(Clone, Copy)]
struct TwentyFive;
#[derive(Clone, Copy)]
struct Any;

impl Taps for Nine {
    const N: Option<usize> = Some(9);
}
impl Taps for TwentyFive {
    const N: Option<usize> = Some(25);
}
impl Taps for Any {
    const N: Option<usize> = None;
}

dispatch! { fn row_of<T: Taps>(w: *const f32, taps: &[*const f32; TAPS_MAX], y: *mut f32, n: usize, n_taps: usize) = row_body }

/// # Safety
/// Each of the first `n_taps` taps begins `n` elements, `w` has a weight for each, `y` has room for `n`.
#[inline(always)]
unsafe fn row_body<A: Arith, T: Taps>(
    w: *const f32,
    taps: &[*const f32; TAPS_MAX],
    y: *mut f32,
    n: usize,
    n_taps: usize,
) {
    // Vectors of 16, their sums in registers; the copy has slack behind it, the result has none.
    const LANES: usize = 16;
    let n_taps = T::N.unwrap_or(n_taps);
    let mut i = 0;
    while i < n {
        let mut sums = [0.0f32; LANES];
        for (t, tap) in taps.iter().enumerate().take(n_taps) {
            // SAFETY: there is a weight for each tap.
            let weight = unsafe { *w.wrapping_add(t) };
            // SAFETY: the copy has slack for a whole vector behind the last element.
            let row = unsafe { tap.wrapping_add(i).cast::<[f32; LANES]>().read_unaligned() };
            for lane in 0..LANES {
                sums[lane] = A::fma(weight, row[lane], sums[lane]);
            }
        }
        if i + LANES <= n {
            // SAFETY: a whole vector is within the row.
            unsafe { y.wrapping_add(i).cast::<[f32; LANES]>().write_unaligned(sums) };
        } else {
            for (lane, sum) in sums.iter().enumerate().take(n - i) {
                // SAFETY: the element is within the row.
                unsafe { *y.wrapping_add(i + lane) = *sum };
            }
        }
        i += LANES;
    }
}
