//! Depthwise convolutions: each channel by a window of its own, from a padded copy of its plane.

use super::conv::{Addresses, Conv};
use super::epilogue::{Activation, apply, read, write};
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

/// What a channel's loop needs besides its addresses.
struct Rows {
    /// Where each tap begins, from the first row of the window in the copy.
    taps: Vec<usize>,
    /// Elements of the copy from one output row to the next.
    step: usize,
    height: usize,
    width: usize,
    activation: Activation,
}

/// The addresses of one channel; `z` may be NULL.
#[derive(Clone, Copy)]
struct Channel {
    copy: *const f32,
    weights: *const f32,
    bias: f32,
    z: *const f32,
    y: *mut f32,
}

type ChannelFn = unsafe fn(&Rows, Channel);

struct Depthwise {
    conv: Conv,
    plane: Plane,
    rows: Rows,
    channel: ChannelFn,
    grain: usize,
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Prepared {
    let Some(plane) = Plane::of(&conv.window) else {
        unreachable!("`takes` found a plane");
    };
    let window = &conv.window;
    let channel = match window.n_taps() {
        9 => channel_of::<Nine>(isa),
        25 => channel_of::<TwentyFive>(isa),
        _ => channel_of::<Any>(isa),
    };
    let rows = Rows {
        taps: plane.taps(window),
        step: window.stride[1] * plane.row_len(),
        height: window.output[1],
        width: window.output[2],
        activation: conv.activation,
    };
    let workspace = plane.len() * 4 * conv.host.n_slots();
    let flops = 2 * window.n_taps() * window.n_output();
    Prepared::new(Depthwise { plane, rows, channel, grain: (100_000 / flops.max(1)).max(1), conv })
        .with_workspace(workspace, 64)
}

impl Launch<CpuDevice> for Depthwise {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let (n_in, n_out, n_taps) = (conv.window.n_input(), conv.window.n_output(), conv.window.n_taps());
        conv.host.parallel_for(conv.images * conv.groups, self.grain, |channels, slot| {
            let copy = workspace.at(slot * self.plane.len());
            // SAFETY: a slot's scratch is its own and has room for the copy.
            unsafe { self.plane.clear(copy, 0.0) };
            for channel in channels {
                let group = channel % conv.groups;
                let bias = Addresses::offset(addresses.bias, group);
                // SAFETY: the channel is within the input, the copy within the scratch memory.
                unsafe { self.plane.fill(addresses.x.at(channel * n_in), copy) };
                let channel = Channel {
                    copy,
                    weights: addresses.w.at(group * n_taps),
                    // SAFETY: NULL, or a bias for each channel.
                    bias: if bias.is_null() { 0.0 } else { unsafe { *bias } },
                    z: Addresses::offset(addresses.z, channel * n_out),
                    y: addresses.y.at(channel * n_out),
                };
                // SAFETY: the channel's planes are within the operands, and channels write disjoint ones.
                unsafe { (self.channel)(&self.rows, channel) };
            }
            Ok(())
        })
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

dispatch! { fn channel_of<T: Taps>(rows: &Rows, channel: Channel) = channel_body }

/// # Safety
/// Each tap of each row begins `width` elements of the copy, which has slack for a vector behind the last;
/// there is a weight for each tap; `z`, unless NULL, and `y` have the rows.
#[inline(always)]
unsafe fn channel_body<A: Arith, T: Taps>(rows: &Rows, channel: Channel) {
    const LANES: usize = 16;
    let taps = match T::N {
        // A length that is known unrolls the loop over the taps.
        Some(n) => &rows.taps[..n],
        None => &rows.taps[..],
    };
    for row in 0..rows.height {
        let line = channel.copy.wrapping_add(row * rows.step);
        for i in (0..rows.width).step_by(LANES) {
            let (at, n) = (row * rows.width + i, LANES.min(rows.width - i));
            let mut sums = [channel.bias; LANES];
            for (t, tap) in taps.iter().enumerate() {
                // SAFETY: there is a weight for each tap.
                let weight = unsafe { *channel.weights.wrapping_add(t) };
                // SAFETY: the copy has slack for a whole vector behind the last element.
                let values = unsafe { read::<LANES>(line.wrapping_add(tap + i), LANES) };
                for lane in 0..LANES {
                    sums[lane] = A::fma(weight, values[lane], sums[lane]);
                }
            }
            if !channel.z.is_null() {
                // SAFETY: the elements are within the plane.
                let z = unsafe { read::<LANES>(channel.z.wrapping_add(at), n) };
                for lane in 0..LANES {
                    sums[lane] += z[lane];
                }
            }
            apply::<A, LANES>(rows.activation, &mut sums);
            // SAFETY: as above.
            unsafe { write(&sums, channel.y.wrapping_add(at), n) };
        }
    }
}
