//! Depthwise convolutions of images whose channels come last: vectors run along channels, several pixels together.

use super::Conv;
use super::tile::Tail;
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::geometry::pixels::{self, GROUP, Seen};
use crate::kernels::product::epilogue::{Addresses, read, write};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::lanes::Lanes;
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

struct Depthwise {
    conv: Conv,
    group: GroupFn,
    grain: usize,
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Result<Prepared> {
    let (channels, n_taps) = (conv.groups, conv.window.n_taps());
    let bytes = (Size::of(channels) * n_taps * 4).get("a convolution's packed weights")?;
    let flops = (Size::of(2 * n_taps) * channels * GROUP).saturated();
    let group = group_of(isa);
    let packed = conv.packed;
    let grain = (100_000 / flops.max(1)).max(1);
    let taps = Size::of(pixels::room(&conv.window)?) * conv.host.n_slots();
    let kernel = Depthwise { group, grain, conv };
    let prepared = Prepared::new(kernel);
    if !packed {
        return prepared.with_room(taps + bytes, 64);
    }
    let id = layout_id(&[6, channels as u64, n_taps as u64]);
    Ok(prepared.with_room(taps, 64)?.with_packed(1, id, bytes, 64, move |src, dst| {
        pack(&to_f32s(src)?, channels, n_taps, as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Weights come as `[channel, tap]`, and leave as `[tap, channel]`.
fn pack(src: &[f32], channels: usize, n_taps: usize, dst: &mut [f32]) {
    for (tap, row) in dst.chunks_exact_mut(channels.max(1)).enumerate().take(n_taps) {
        for (channel, value) in row.iter_mut().enumerate() {
            *value = src[channel * n_taps + tap];
        }
    }
}

impl Launch<CpuDevice> for Depthwise {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let mut addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<u8>());
        let room = pixels::room(&conv.window)?;
        if !conv.packed {
            let packed = SendPtr(workspace.at(room * conv.host.n_slots()).cast::<f32>());
            let n = conv.groups * conv.window.n_taps();
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (std::slice::from_raw_parts(addresses.w.0, n), std::slice::from_raw_parts_mut(packed.0, n))
            };
            pack(src, conv.groups, conv.window.n_taps(), dst);
            addresses.w = packed;
        }
        let (n_pixels, channels) = (conv.n_pixels(), conv.groups);
        let n_groups = n_pixels.div_ceil(GROUP);
        conv.host.parallel_for(n_groups, self.grain, |groups, slot| {
            let mut pace = conv.host.pace();
            for group in groups {
                let pixels = group * GROUP..(group * GROUP + GROUP).min(n_pixels);
                pace.work(pixels.len() * channels * conv.window.n_taps())?;
                // SAFETY: a slot's part of the workspace is its own and has room; the image is the operand.
                let seen = unsafe {
                    let to = workspace.at(slot * room).cast();
                    pixels::seen(
                        &conv.window,
                        addresses.x.at(0),
                        channels,
                        pixels.clone(),
                        conv.zeros.as_ptr(),
                        to,
                    )
                };
                let at = pixels.start * channels;
                let rows = Rows {
                    n: pixels.len(),
                    seen,
                    weights: addresses.w.at(0),
                    bias: Addresses::offset(addresses.bias, 0),
                    z: Addresses::offset(addresses.z, at),
                    y: addresses.y.at(at),
                };
                // SAFETY: the pixels are within the operands, and chunks write disjoint ones.
                unsafe {
                    (self.group)(conv, &rows);
                    conv.activate(rows.y, rows.n, channels);
                }
            }
            Ok(())
        })
    }
}

/// Some pixels of the result, one after the other.
struct Rows<'a> {
    n: usize,
    /// What each element of the window sees for each of them.
    seen: &'a [Seen],
    /// For each element of the window a number for each channel.
    weights: *const f32,
    bias: *const f32,
    z: *const f32,
    y: *mut f32,
}

type GroupFn = unsafe fn(&Conv, &Rows<'_>);

dispatch! { fn group_of(conv: &Conv, rows: &Rows<'_>) = group_body }

/// # Safety
/// What is seen, weights, bias, `z` and `y` have the channels, or are NULL where that is allowed.
#[inline(always)]
unsafe fn group_body<A: Arith>(conv: &Conv, rows: &Rows<'_>) {
    let (channels, lanes) = (conv.groups, <A::Lanes as Lanes>::N);
    let tail = conv.tail(rows.bias, rows.z);
    let whole = channels / lanes * lanes;
    for at in (0..whole).step_by(lanes) {
        // SAFETY: there is a vector of channels from here (# Safety).
        unsafe { vector::<A>(rows, &tail, channels, at, lanes) };
    }
    if whole < channels {
        // SAFETY: there are as many channels from here (# Safety).
        unsafe { vector::<A>(rows, &tail, channels, whole, channels - whole) };
    }
}

/// `n` channels from `at`, at most a vector.
///
/// # Safety
/// As [`group_body`].
#[inline(always)]
unsafe fn vector<A: Arith>(rows: &Rows<'_>, tail: &Tail, channels: usize, at: usize, n: usize) {
    // SAFETY: the processor has the instructions.
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut sums = [zero; GROUP];
    for (tap, seen) in rows.seen.iter().enumerate() {
        // SAFETY: there are `n` channels from here (# Safety).
        let weights: A::Lanes = unsafe { read(rows.weights.wrapping_add(tap * channels + at), n) };
        for (sum, from) in sums.iter_mut().zip(seen) {
            // SAFETY: the same.
            *sum = weights.fma(unsafe { read(from.wrapping_add(at), n) }, *sum);
        }
    }
    // SAFETY: the processor has the instructions, and there are `n` channels from here (# Safety).
    unsafe {
        let bias = if tail.bias.is_null() { zero } else { read(tail.bias.wrapping_add(at), n) };
        let (low, high) = (A::Lanes::splat(tail.limits.0), A::Lanes::splat(tail.limits.1));
        for (i, &sum) in sums.iter().enumerate().take(rows.n) {
            let mut sum = sum.add(bias);
            if !tail.z.is_null() {
                sum = sum.add(read(tail.z.wrapping_add(i * channels + at), n));
            }
            write(sum.at_least(low).at_most(high), rows.y.wrapping_add(i * channels + at), n);
        }
    }
}
