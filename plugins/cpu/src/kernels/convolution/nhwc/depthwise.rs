//! Depthwise convolutions of images whose channels come last: vectors run along channels, several pixels together.

use super::Conv;
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::geometry::pixels::{Line, Seen};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::kernels::product::tile::Tail;
use crate::lanes::{Lanes, read, unrolled, write};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// Pixels that are made together.
const GROUP: usize = 8;

/// Lines that are made one after the other of the same columns: what one sees of a line is still in the nearest cache when the next
/// one sees it, too.
const BAND: usize = 16;

struct Depthwise {
    conv: Conv,
    /// Lines of a plane of the results, and bands that they are divided into.
    height: usize,
    n_bands: usize,
    /// Groups of columns.
    n_groups: usize,
    group: GroupFn,
    grain: usize,
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Result<Prepared> {
    let (channels, n_taps) = (conv.groups, conv.window.n_taps());
    let bytes = (Size::of(channels) * n_taps * 4).get("a convolution's packed weights")?;
    let [_, height, width] = conv.window.output;
    let flops = (Size::of(2 * n_taps) * channels * GROUP * BAND.min(height)).saturated();
    let (packed, n_slots) = (conv.packed, conv.host.n_slots());
    let kernel = Depthwise {
        height,
        n_bands: height.div_ceil(BAND),
        n_groups: width.div_ceil(GROUP),
        group: group_of(isa),
        grain: (100_000 / flops.max(1)).max(1),
        conv,
    };
    let prepared = Prepared::new(kernel);
    let addresses = room(n_taps) * n_slots;
    if !packed {
        return prepared.with_room(addresses + bytes, 64);
    }
    let id = layout_id(&[6, channels as u64, n_taps as u64]);
    Ok(prepared.with_room(addresses, 64)?.with_packed(1, id, bytes, 64, move |src, dst| {
        pack(&to_f32s(src)?, channels, n_taps, as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Bytes of the addresses of what the windows of a group see.
fn room(n_taps: usize) -> Size {
    (Size::of(n_taps) * size_of::<Seen<GROUP>>()).next_multiple_of(64)
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
        let n_taps = conv.window.n_taps();
        let room = room(n_taps).saturated();
        if !conv.packed {
            let packed = SendPtr(workspace.at(room * conv.host.n_slots()).cast::<f32>());
            let n = conv.groups * n_taps;
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (std::slice::from_raw_parts(addresses.w.0, n), std::slice::from_raw_parts_mut(packed.0, n))
            };
            pack(src, conv.groups, n_taps, dst);
            addresses.w = packed;
        }
        let channels = conv.groups;
        let [depth, _, width] = conv.window.output;
        let n_units = conv.images * depth * self.n_bands * self.n_groups;
        conv.host.parallel_for(n_units, self.grain, |units, slot| {
            let mut pace = conv.host.pace();
            // SAFETY: a slot's part of the workspace is its own, and has room for the addresses, which are written before they
            // are read.
            let seen = unsafe {
                std::slice::from_raw_parts_mut(workspace.at(slot * room).cast::<Seen<GROUP>>(), n_taps)
            };
            for unit in units {
                let (group, unit) = (unit % self.n_groups, unit / self.n_groups);
                let (band, plane) = (unit % self.n_bands, unit / self.n_bands);
                let column = |group: usize| width * group / self.n_groups;
                let columns = column(group)..column(group + 1);
                for row in self.height * band / self.n_bands..self.height * (band + 1) / self.n_bands {
                    pace.work(columns.len() * channels * n_taps)?;
                    let line = plane * self.height + row;
                    let at = (line * width + columns.start) * channels;
                    let line = Line::of(&conv.window, addresses.x.at(0), channels, line).columns(&columns);
                    let rows = Rows {
                        n: line.n,
                        seen: self.seen(&line, seen),
                        weights: addresses.w.at(0),
                        bias: Addresses::offset(addresses.bias, 0),
                        z: Addresses::offset(addresses.z, at),
                        y: addresses.y.at(at),
                    };
                    // SAFETY: the pixels are within the operands, and units write disjoint ones.
                    unsafe {
                        (self.group)(conv, &rows);
                        conv.activate(rows.y, rows.n, channels);
                    }
                }
            }
            Ok(())
        })
    }
}

impl Depthwise {
    /// What each element of the window sees.
    fn seen<'a>(&self, line: &Line<'_>, seen: &'a mut [Seen<GROUP>]) -> &'a [Seen<GROUP>] {
        let (width, zeros) = (self.conv.window.kernel[2], self.conv.zeros.as_ptr());
        for (row, seen) in seen.chunks_exact_mut(width).enumerate() {
            let of_row = line.row(row);
            for (tap, seen) in seen.iter_mut().enumerate() {
                match of_row {
                    Some(of_row) => {
                        line.seen(of_row, tap, zeros, seen);
                    }
                    None => *seen = [zeros; GROUP],
                }
            }
        }
        seen
    }
}

/// Some pixels of the result, one after the other.
struct Rows<'a> {
    n: usize,
    /// What each element of the window sees for each of them.
    seen: &'a [Seen<GROUP>],
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
    let tail = conv.tail(rows.z);
    let mut at = 0;
    // An address that was read serves two vectors, where there are registers for the sums of both.
    while lanes == 16 && at + 2 * lanes <= channels {
        // SAFETY: there are two vectors of channels from here (# Safety).
        unsafe { vectors::<A, 2>(rows, &tail, channels, at, lanes) };
        at += 2 * lanes;
    }
    while at < channels {
        // SAFETY: there are as many channels from here (# Safety).
        unsafe { vectors::<A, 1>(rows, &tail, channels, at, lanes.min(channels - at)) };
        at += lanes;
    }
}

/// `V` vectors of channels from `at`, the last of which may have fewer: `n`.
///
/// # Safety
/// As [`group_body`].
#[inline(always)]
unsafe fn vectors<A: Arith, const V: usize>(
    rows: &Rows<'_>,
    tail: &Tail,
    channels: usize,
    at: usize,
    n: usize,
) {
    let lanes = <A::Lanes as Lanes>::N;
    let count = |v: usize| if v + 1 == V { n } else { lanes };
    // SAFETY: the processor has the instructions.
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut sums = [[zero; V]; GROUP];
    for (tap, seen) in rows.seen.iter().enumerate() {
        let mut weights = [zero; V];
        unrolled!(v below V {
            let from = rows.weights.wrapping_add(tap * channels + at + v * lanes);
            // SAFETY: there are as many channels from here (# Safety).
            weights[v] = unsafe { read(from, count(v)) };
        });
        unrolled!(i below GROUP {
            unrolled!(v below V {
                // SAFETY: the same.
                let x: A::Lanes = unsafe { read(seen[i].wrapping_add(at + v * lanes), count(v)) };
                sums[i][v] = weights[v].fma(x, sums[i][v]);
            });
        });
    }
    unrolled!(v below V {
        let (at, n) = (at + v * lanes, count(v));
        // SAFETY: the processor has the instructions, and there are `n` channels from here (# Safety).
        let bias = unsafe { if rows.bias.is_null() { zero } else { read(rows.bias.wrapping_add(at), n) } };
        unrolled!(i below GROUP {
            if i < rows.n {
                let mut sum = sums[i][v].add(bias);
                // SAFETY: there are `n` channels from here (# Safety).
                unsafe {
                    if !tail.z.is_null() {
                        sum = sum.add(read(tail.z.wrapping_add(i * channels + at), n));
                    }
                    write(tail.activation.apply::<A>(sum), rows.y.wrapping_add(i * channels + at), n);
                }
            }
        });
    });
}
