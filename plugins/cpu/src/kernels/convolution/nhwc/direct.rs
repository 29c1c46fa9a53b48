//! Convolutions as products of tiles of pixels and panels of weights, straight from the image.
//!
//! A window's row is contiguous where no part of it lies in the padding, so that its terms are one segment.

use super::Conv;
use super::panels::{HEADER, Panels};
use super::tile::{Job, ROWS_MAX, Segment};
use crate::device::CpuDevice;
use crate::kernels::geometry::pixels::{self, Origin};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Bytes of an image that are worked on for all panels in turn: a part of the second-level cache.
const BLOCK_BYTES: usize = 192 << 10;
/// Bytes of panels that stay in the second-level cache while tiles of pixels pass.
const PANELS_BYTES: usize = 384 << 10;
/// Terms of a panel that are worked on at once: more of a panel of four vectors would not stay in the second-level cache.
const TERMS_MAX: usize = 2048;
/// Segments that are collected before a tile is made of them.
const SEGMENTS_MAX: usize = 32;

pub(super) struct Direct {
    pub conv: Conv,
    pub panels: Panels,
    /// Blocks of pixels, and parts of the panels.
    n_blocks: usize,
    n_parts: usize,
    grain: usize,
}

pub(super) fn prepare(conv: Conv) -> Result<Prepared> {
    let direct = Direct::of(conv);
    let (groups, c_in, c_out, n_taps) =
        (direct.conv.groups, direct.conv.c_in, direct.conv.c_out, direct.conv.window.n_taps());
    let panels = direct.panels;
    let packed_len = (panels.size() * groups + HEADER).get("a convolution's packed weights")?;
    let bytes = (Size::of(packed_len) * 4).get("a convolution's packed weights")?;
    let lanes = direct.conv.tiles.lanes as u64;
    if !direct.conv.packed {
        return Prepared::new(direct).with_room(Size::of(bytes), 64);
    }
    let id = layout_id(&[5, lanes, groups as u64, c_out as u64, c_in as u64, n_taps as u64]);
    Ok(Prepared::new(direct).with_packed(1, id, bytes, 64, move |src, dst| {
        pack(&to_f32s(src)?, &panels, groups, [c_out, c_in, n_taps], as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Writes the header and the panels of each group; weights come as `[group, output channel, input channel, tap]`.
pub(super) fn pack(src: &[f32], panels: &Panels, groups: usize, extents: [usize; 3], dst: &mut [f32]) {
    let [c_out, c_in, n_taps] = extents;
    let (header, dst) = dst.split_at_mut(HEADER);
    header.fill(0.0);
    header[0] = f32::from(u8::from(src.iter().all(|weight| weight.is_finite())));
    for (group, dst) in dst.chunks_exact_mut(panels.len().max(1)).enumerate().take(groups) {
        let src = &src[group * c_out * c_in * n_taps..];
        panels.pack(dst, |k, column| src[(column * c_in + k % c_in) * n_taps + k / c_in]);
    }
}

impl Launch<CpuDevice> for Direct {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let mut addresses = Addresses::of(operands);
        if !conv.packed {
            let packed = SendPtr(operands.workspace_ptr::<f32>());
            let n_weights = conv.groups * conv.c_out * conv.k();
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (
                    std::slice::from_raw_parts(addresses.w.0, n_weights),
                    std::slice::from_raw_parts_mut(packed.0, HEADER + conv.groups * self.panels.len()),
                )
            };
            pack(src, &self.panels, conv.groups, [conv.c_out, conv.c_in, conv.window.n_taps()], dst);
            addresses.w = packed;
        }
        let n_pixels = conv.n_pixels();
        conv.host.parallel_for(conv.groups * self.n_blocks * self.n_parts, self.grain, |units, _| {
            for unit in units {
                let (part, unit) = (unit % self.n_parts, unit / self.n_parts);
                let (block, group) = (unit % self.n_blocks, unit / self.n_blocks);
                let pixel = |block: usize| n_pixels * block / self.n_blocks;
                let panel = |part: usize| self.panels.n * part / self.n_parts;
                // SAFETY: units write disjoint parts of the result, and the weights are packed.
                unsafe {
                    let place = Place::of(addresses);
                    let panels = panel(part)..panel(part + 1);
                    self.block(&place, group, panels, pixel(block)..pixel(block + 1));
                }
            }
            Ok(())
        })
    }
}

/// The operands of a launch.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Their addresses.
    pub of: Addresses,
    /// The first group's first panel.
    panels: SendPtr<f32>,
    /// True if all weights are finite.
    is_finite: bool,
}

impl Place {
    /// # Safety
    /// The addresses are the launch's, and the weights are packed: a header, then panels.
    pub unsafe fn of(addresses: Addresses) -> Self {
        // SAFETY: packed weights begin with the header (# Safety).
        let is_finite = unsafe { *addresses.w.at(0) } != 0.0;
        Self { of: addresses, panels: SendPtr(addresses.w.at(HEADER)), is_finite }
    }
}

impl Direct {
    /// Divides the work: by blocks of pixels that stay in the cache for all panels, and by panels where there are few of those.
    pub(super) fn of(conv: Conv) -> Self {
        let panels = Panels::of(&conv, conv.k());
        let n_pixels = conv.n_pixels();
        let bytes = Size::of(conv.c_in * 4) * conv.window.stride.iter().product::<usize>();
        let block = (BLOCK_BYTES / bytes.saturated().max(1)).max(4 * ROWS_MAX);
        let n_blocks = n_pixels.div_ceil(block).max(1);
        let n_units = Size::of(conv.groups) * n_blocks;
        let n_parts = 8usize.div_ceil(n_units.saturated().max(1)).clamp(1, panels.n.max(1));
        let flops = (Size::of(2 * conv.k()) * conv.c_out * n_pixels.div_ceil(n_blocks)).saturated() / n_parts;
        Self { conv, panels, n_blocks, n_parts, grain: (200_000 / flops.max(1)).max(1) }
    }

    /// Makes some pixels of some panels.
    ///
    /// # Safety
    /// `place` is the launch's, and no other thread works on these pixels of these panels.
    pub(super) unsafe fn block(
        &self,
        place: &Place,
        group: usize,
        panels: Range<usize>,
        pixels: Range<usize>,
    ) {
        let conv = &self.conv;
        if panels.is_empty() || pixels.is_empty() {
            return;
        }
        let n_tiles = pixels.len().div_ceil(conv.tiles.rows(self.panels.widest()));
        let tile = |i: usize| {
            let at = |i: usize| pixels.start + pixels.len() * i / n_tiles;
            at(i)..at(i + 1)
        };
        let [depth, height, width] = conv.window.kernel;
        let rows = depth * height;
        let of_row = width * conv.c_in;
        let chunk = (TERMS_MAX / of_row.max(1)).clamp(1, rows);
        let bytes = self.panels.len() / self.panels.n * panels.len() * 4;
        if rows <= chunk && bytes <= PANELS_BYTES {
            for i in 0..n_tiles {
                for panel in panels.clone() {
                    // SAFETY: the pixels and the panel are this thread's (# Safety).
                    unsafe { self.tile(place, group, panel, tile(i), 0..rows) };
                }
            }
            return;
        }
        for panel in panels {
            for begin in (0..rows).step_by(chunk) {
                for i in 0..n_tiles {
                    let rows = begin..(begin + chunk).min(rows);
                    // SAFETY: the pixels and the panel are this thread's (# Safety).
                    unsafe { self.tile(place, group, panel, tile(i), rows) };
                }
            }
        }
    }

    /// Adds some rows of the window to a tile, the first of which starts it and the last of which ends it.
    ///
    /// # Safety
    /// As [`Direct::block`]; there are tiles of as many pixels.
    unsafe fn tile(
        &self,
        place: &Place,
        group: usize,
        panel: usize,
        pixels: Range<usize>,
        window_rows: Range<usize>,
    ) {
        let conv = &self.conv;
        let window = &conv.window;
        let (channels, stride) = conv.strides();
        let n = pixels.len();
        let (column, columns) = self.panels.columns(panel);
        let vectors = self.panels.vectors(panel).len();
        let at = pixels.start * stride + group * conv.c_out + column;
        let bias = Addresses::offset(place.of.bias, group * conv.c_out + column);
        let tail = conv.tail(bias, Addresses::offset(place.of.z, at));
        let y = place.of.y.at(at);
        let weights = place.panels.at(group * self.panels.len() + self.panels.at(panel));
        let is_last = window_rows.end == window.kernel[0] * window.kernel[1];
        let mut adds = window_rows.start > 0;
        let mut make = |segments: &[Segment], tail| {
            let job = Job { segments, weights, y, stride, columns, adds, tail };
            adds = true;
            // SAFETY: the segments lie within the image, or in the zeros; the panel has their terms, and the tile is this
            // thread's (# Safety).
            unsafe { conv.tiles.run(vectors, n, &job) };
        };
        let tail = is_last.then_some(&tail);
        let mut segments = [Segment::EMPTY; SEGMENTS_MAX];
        if window.is_pointwise() {
            segments[0].len = conv.c_in;
            for (r, row) in segments[0].rows.iter_mut().enumerate().take(n) {
                *row = place.of.x.at((pixels.start + r) * channels + group * conv.c_in);
            }
            make(&segments[..1], tail);
        } else {
            let mut origins = [Origin::NONE; ROWS_MAX];
            let x = place.of.x.at(group * conv.c_in);
            pixels::origins(window, x, channels, pixels, &mut origins);
            let origins = &origins[..n];
            let reach = ((window.kernel[2] - 1) * window.dilation[2]) as isize;
            let is_inside =
                |origin: &Origin| origin.at[2] >= 0 && origin.at[2] + reach < window.input[2] as isize;
            let is_contiguous = (window.dilation[2] == 1 || window.kernel[2] == 1)
                && conv.groups == 1
                && origins.iter().all(is_inside);
            let zeros = conv.zeros.as_ptr();
            let mut n_segments = 0;
            for row in window_rows {
                let taps = if is_contiguous { 1 } else { window.kernel[2] };
                let len = if is_contiguous { window.kernel[2] * conv.c_in } else { conv.c_in };
                for tap in 0..taps {
                    let k = (row * window.kernel[2] + tap) * conv.c_in;
                    let segment = &mut segments[n_segments];
                    let mut sees = false;
                    for (row_of, origin) in segment.rows.iter_mut().zip(origins) {
                        let tap = [row / window.kernel[1], row % window.kernel[1], tap];
                        let at = origin.sees(window, tap, channels);
                        sees |= at.is_some();
                        *row_of = at.unwrap_or(zeros);
                    }
                    if !sees && place.is_finite {
                        continue;
                    }
                    (segment.len, segment.k) = (len, k);
                    n_segments += 1;
                    if n_segments == SEGMENTS_MAX {
                        make(&segments, None);
                        n_segments = 0;
                    }
                }
            }
            make(&segments[..n_segments], tail);
        }
        if is_last {
            // SAFETY: the tile is this thread's (# Safety).
            unsafe { conv.activate(y, n, columns) };
        }
    }
}
