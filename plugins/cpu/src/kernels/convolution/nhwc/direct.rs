//! Convolutions as products of tiles of pixels and panels of weights, straight from the image.
//!
//! Pixels of a tile are neighbours in a line. A window's row is contiguous where no part of it lies in the padding, so that its
//! terms are one segment. Where panels stay in the nearest cache, all tiles within a line are a strip: the next tile's windows are
//! as far from each other, so that nothing is looked up for it.

use super::Conv;
use super::header::{HEADER, is_finite, mark_finite};
use crate::device::CpuDevice;
use crate::kernels::geometry::pixels::{Groups, Line};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::{Job, ROWS_MAX, Run, Segment, TERMS_MAX};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Bytes of an image that are worked on for all panels in turn: a part of the second-level cache.
const BLOCK_BYTES: usize = 192 << 10;
/// Bytes of panels that stay in the second-level cache while tiles of pixels pass.
const PANELS_BYTES: usize = 384 << 10;
/// Operations of a chunk: fewer are not worth another thread.
const FLOPS_MIN: usize = 200_000;
/// Bytes of a panel that is read for all tiles of a strip, mostly from the nearest cache.
const STRIP_BYTES: usize = 40 << 10;
/// Segments that are collected before a tile is made of them: a window of 3 x 3 has as many at the edge of an image.
const SEGMENTS_MAX: usize = 9;

pub(super) struct Direct {
    pub conv: Conv,
    pub panels: Panels,
    /// Tiles of pixels.
    pub tiles: Groups,
    /// Columns whose tiles may be made in strips: none if panels are too large.
    strips: Range<usize>,
    /// Blocks of tiles, and parts of the panels.
    pub n_blocks: usize,
    pub n_parts: usize,
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
        pack(&to_weights(src)?, &panels, groups, [c_out, c_in, n_taps], as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// Writes the header and the panels of each group; weights come as `[group, output channel, input channel, tap]`.
pub(super) fn pack(src: &[f32], panels: &Panels, groups: usize, extents: [usize; 3], dst: &mut [f32]) {
    let [c_out, c_in, n_taps] = extents;
    let dst = mark_finite(src, f32::INFINITY, dst);
    for (group, dst) in dst.chunks_exact_mut(panels.len().max(1)).enumerate().take(groups) {
        let src = &src[group * c_out * c_in * n_taps..];
        panels.pack(src, n_taps, dst);
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
        self.run(addresses)
    }
}

/// Runs of contiguous numbers that a row of a window sees within a line: one if its elements follow each other with all of their
/// channels.
fn runs_of_row(conv: &Conv) -> usize {
    let is_whole = conv.window.dilation[2] == 1 && conv.groups == 1;
    if is_whole { 1 } else { conv.window.kernel[2] }
}

/// What a tile gets at once: some rows of the window for each of some panels.
struct Share {
    panels: Range<usize>,
    rows: Range<usize>,
}

/// The operands of a launch.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// Their addresses.
    pub of: Addresses,
    /// The group that is worked on.
    group: usize,
    /// The first group's first panel.
    panels: SendPtr<f32>,
    /// True if all weights are finite.
    is_finite: bool,
}

impl Place {
    /// # Safety
    /// The addresses are the launch's, and the weights are packed: a header, then panels.
    pub unsafe fn of(addresses: Addresses, group: usize) -> Self {
        // SAFETY: packed weights begin with the header (# Safety).
        let is_finite = unsafe { is_finite(addresses.w.at(0)) };
        Self { of: addresses, group, panels: SendPtr(addresses.w.at(HEADER)), is_finite }
    }
}

impl Direct {
    /// Divides the work: by blocks of pixels that stay in the cache for all panels, and by panels where there are few of those.
    pub(super) fn of(conv: Conv) -> Self {
        let panels = Panels::of(conv.c_out, conv.k(), &conv.tiles);
        let n_pixels = conv.n_pixels();
        let tiles = Groups::of(&conv.window, conv.images, conv.tiles.rows(panels.widest().max(1)));
        let bytes = Size::of(conv.c_in * 4) * conv.window.stride.iter().product::<usize>();
        let block = (BLOCK_BYTES / bytes.saturated().max(1)).max(4 * ROWS_MAX);
        let mut n_blocks = n_pixels.div_ceil(block).max(1);
        // As many units as keep threads busy, by dividing what there is more of: pixels, or weights.
        let flops = Size::of(2 * conv.k()) * conv.c_out * conv.groups * n_pixels;
        let n_units = (flops.saturated() / FLOPS_MIN).min(4 * conv.host.n_slots());
        if conv.host.n_slots() > 1 && panels.len() < n_pixels.saturating_mul(conv.c_in) {
            n_blocks = n_blocks.max(n_units.div_ceil(conv.groups.max(1)).min(tiles.n));
        }
        let n_parts = n_units.max(8).div_ceil((conv.groups * n_blocks).max(1)).clamp(1, panels.n.max(1));
        let flops = (Size::of(2 * conv.k()) * conv.c_out * n_pixels.div_ceil(n_blocks)).saturated() / n_parts;
        let of_panel = (Size::of(panels.widest() * conv.tiles.lanes) * conv.k() * 4).saturated();
        let n_runs = Size::of(conv.window.n_rows()) * runs_of_row(&conv);
        let takes_strips = of_panel <= STRIP_BYTES && n_runs.saturated() <= SEGMENTS_MAX && panels.n > 0;
        let strips = if takes_strips { conv.window.inside(2) } else { 0..0 };
        Self { conv, panels, tiles, strips, n_blocks, n_parts, grain: (FLOPS_MIN / flops.max(1)).max(1) }
    }

    /// Makes all results; the weights are packed.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    pub(super) fn run(&self, addresses: Addresses) -> Result<()> {
        self.run_by_block(addresses, |_, _| addresses.x)
    }

    /// As [`Direct::run`], with an image that a function gives for each block of tiles and each slot, which may have no more
    /// than what the block sees.
    ///
    /// # Errors
    /// As [`Direct::run`].
    pub(super) fn run_by_block(
        &self,
        addresses: Addresses,
        image: impl Fn(&Range<usize>, usize) -> SendPtr<f32> + Sync,
    ) -> Result<()> {
        let conv = &self.conv;
        conv.host.parallel_for(conv.groups * self.n_blocks * self.n_parts, self.grain, |units, slot| {
            for unit in units {
                let (part, unit) = (unit % self.n_parts, unit / self.n_parts);
                let (block, group) = (unit % self.n_blocks, unit / self.n_blocks);
                let tile = |block: usize| self.tiles.n * block / self.n_blocks;
                let panel = |part: usize| self.panels.n * part / self.n_parts;
                let tiles = tile(block)..tile(block + 1);
                let addresses = Addresses { x: image(&tiles, slot), ..addresses };
                // SAFETY: units write disjoint parts of the result, and the weights are packed.
                unsafe {
                    let place = Place::of(addresses, group);
                    self.block(&place, panel(part)..panel(part + 1), tiles)?;
                }
            }
            Ok(())
        })
    }

    /// Makes some tiles of some panels.
    ///
    /// # Safety
    /// `place` is the launch's, and no other thread works on these tiles of these panels.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    unsafe fn block(&self, place: &Place, panels: Range<usize>, tiles: Range<usize>) -> Result<()> {
        let (conv, group) = (&self.conv, place.group);
        if panels.is_empty() {
            return Ok(());
        }
        let [depth, height, width] = conv.window.kernel;
        let rows = depth * height;
        let of_row = width * conv.c_in;
        let chunk = (TERMS_MAX / of_row.max(1)).clamp(1, rows);
        let bytes = self.panels.len() / self.panels.n * panels.len() * 4;
        let x = place.of.x.at(group * conv.c_in);
        let mut pace = conv.host.pace();
        let mut segments = [Segment::EMPTY; SEGMENTS_MAX];
        if !self.strips.is_empty() {
            let terms = rows * of_row * panels.len() * self.panels.widest() * conv.tiles.lanes;
            let share = Share { panels, rows: 0..rows };
            return self.tiles.lines(tiles, |line, columns| {
                pace.work(columns.len() * terms)?;
                // SAFETY: the tiles and the panels are this thread's (# Safety).
                unsafe { self.line(place, &share, line, columns, &mut segments) };
                Ok(())
            });
        }
        let mut each = |panels: Range<usize>, rows: Range<usize>| {
            let mut n = 0;
            let terms = rows.len() * of_row * panels.len() * self.panels.widest() * conv.tiles.lanes;
            let share = Share { panels, rows };
            self.tiles.each(tiles.clone(), &conv.window, x, conv.strides().0, |pixel, line| {
                pace.work(line.n * terms)?;
                // SAFETY: the tiles and the panels are this thread's (# Safety).
                unsafe { self.tile(place, &share, pixel, line, n, &mut segments) };
                n += 1;
                Ok(())
            })
        };
        if rows <= chunk && bytes <= PANELS_BYTES {
            return each(panels, 0..rows);
        }
        for panel in panels {
            for begin in (0..rows).step_by(chunk) {
                each(panel..panel + 1, begin..(begin + chunk).min(rows))?;
            }
        }
        Ok(())
    }

    /// Makes some columns of a line: what lies within the image as a strip, the rest tile by tile.
    ///
    /// # Safety
    /// As [`Direct::block`].
    unsafe fn line(
        &self,
        place: &Place,
        share: &Share,
        line: usize,
        columns: Range<usize>,
        segments: &mut [Segment; SEGMENTS_MAX],
    ) {
        let conv = &self.conv;
        let x = place.of.x.at(place.group * conv.c_in);
        let sees = Line::of(&conv.window, x, conv.strides().0, line);
        let first = line * conv.window.output[2];
        for panel in share.panels.clone() {
            let share = Share { panels: panel..panel + 1, rows: share.rows.clone() };
            let n_rows = conv.tiles.rows(self.panels.vectors(panel).len());
            let mut tiles = |columns: Range<usize>| {
                let n = columns.len().div_ceil(n_rows);
                let column = |tile: usize| columns.start + columns.len() * tile / n;
                for tile in 0..n {
                    let columns = column(tile)..column(tile + 1);
                    let sees = sees.columns(&columns);
                    // SAFETY: the pixels are this thread's (# Safety).
                    unsafe { self.tile(place, &share, first + columns.start, &sees, 0, segments) };
                }
            };
            // The first tile has what lies before the image, the last one what is behind it.
            let before = self.strips.start.saturating_sub(columns.start).next_multiple_of(n_rows);
            let begin = columns.start + before;
            let n = self.strips.end.min(columns.end).saturating_sub(begin) / n_rows;
            if n == 0 {
                tiles(columns.clone());
                continue;
            }
            tiles(columns.start..begin);
            let sees = sees.columns(&(begin..begin + 1));
            // SAFETY: the pixels are this thread's (# Safety), and their windows lie within the lines.
            unsafe { self.strip(place, &share, first + begin, &sees, n) };
            tiles(begin + n * n_rows..columns.end);
        }
    }

    /// Makes `n` tiles of the most rows in a line, whose first window sees `line`.
    ///
    /// # Safety
    /// As [`Direct::block`]; the windows lie within the lines of the image.
    unsafe fn strip(&self, place: &Place, share: &Share, pixel: usize, line: &Line<'_>, n: usize) {
        let (conv, window) = (&self.conv, &self.conv.window);
        let (of_image, of_result) = conv.strides();
        let of_row = runs_of_row(conv);
        let len = window.kernel[2] / of_row.max(1) * conv.c_in;
        let mut runs = [Run::EMPTY; SEGMENTS_MAX];
        let mut n_runs = 0;
        for row in share.rows.clone() {
            let seen = line.row(row);
            if seen.is_none() && place.is_finite {
                continue;
            }
            for i in 0..of_row {
                let (from, step) = match seen {
                    Some(from) => {
                        let tap = i * window.dilation[2] * of_image;
                        (line.first(from).wrapping_add(tap), window.stride[2] * of_image)
                    }
                    None => (conv.zeros.as_ptr(), 0),
                };
                runs[n_runs] = Run { from, step, len, k: (row * of_row + i) * len };
                n_runs += 1;
            }
        }
        for panel in share.panels.clone() {
            let (column, columns) = self.panels.columns(panel);
            let column = place.group * conv.c_out + column;
            let at = pixel * of_result + column;
            let tail = conv.tail(Addresses::offset(place.of.z, at));
            let weights = place.panels.at(place.group * self.panels.len() + self.panels.at(panel));
            let job = Job {
                segments: &runs[..n_runs],
                weights,
                ahead: weights,
                y: place.of.y.at(at),
                stride: of_result,
                columns,
                bias: Addresses::offset(place.of.bias, column),
                adds: false,
                tail: Some(&tail),
            };
            let vectors = self.panels.vectors(panel).len();
            let n_rows = conv.tiles.rows(vectors);
            // SAFETY: the runs lie within the image, or in the zeros; the panel has their terms, and the pixels are this
            // thread's (# Safety).
            unsafe {
                conv.tiles.strip(vectors, n, &job);
                conv.activate(job.y, n * n_rows, columns);
            }
        }
    }

    /// Makes all channels of some pixels of a line, at most four.
    ///
    /// # Safety
    /// As [`Direct::block`]; there is one group.
    pub(super) unsafe fn pixels(&self, place: &Place, line: usize, columns: &Range<usize>) {
        let window = &self.conv.window;
        let pixel = line * window.output[2] + columns.start;
        let line = Line::of(window, place.of.x.at(0), self.conv.c_in, line).columns(columns);
        let share = Share { panels: 0..self.panels.n, rows: 0..window.n_rows() };
        let mut segments = [Segment::EMPTY; SEGMENTS_MAX];
        // SAFETY: the pixels are this thread's (# Safety).
        unsafe { self.tile(place, &share, pixel, &line, 0, &mut segments) };
    }

    /// Adds rows of the window to a tile of each of the panels: the first starts it, and the last ends it. The first tiles of a
    /// panel ask for parts of the next one. `segments` have room for those of any tile.
    ///
    /// # Safety
    /// As [`Direct::block`]; there are tiles of as many pixels.
    unsafe fn tile(
        &self,
        place: &Place,
        share: &Share,
        pixel: usize,
        line: &Line<'_>,
        nth: usize,
        segments: &mut [Segment; SEGMENTS_MAX],
    ) {
        let (conv, group) = (&self.conv, place.group);
        let window = &conv.window;
        let of_channel = conv.strides().1;
        let is_last = share.rows.end == window.n_rows();
        let mut adds = share.rows.start > 0;
        let mut make = |segments: &[Segment], ends: bool| {
            for panel in share.panels.clone() {
                let (column, columns) = self.panels.columns(panel);
                let at = pixel * of_channel + group * conv.c_out + column;
                let tail = conv.tail(Addresses::offset(place.of.z, at));
                let weights = place.panels.at(group * self.panels.len() + self.panels.at(panel));
                let job = Job {
                    segments,
                    weights,
                    ahead: self.panels.ahead(weights, panel, nth),
                    y: place.of.y.at(at),
                    stride: of_channel,
                    columns,
                    bias: Addresses::offset(place.of.bias, group * conv.c_out + column),
                    adds,
                    tail: ends.then_some(&tail),
                };
                // SAFETY: the segments lie within the image, or in the zeros; the panel has their terms, and the tile is
                // this thread's (# Safety).
                unsafe {
                    conv.tiles.run(self.panels.vectors(panel).len(), line.n, &job);
                    if ends {
                        conv.activate(job.y, line.n, columns);
                    }
                }
            }
            adds = true;
        };
        // A row of the window is contiguous if no part of it lies in the padding.
        let is_whole = runs_of_row(conv) == 1 && line.is_inside();
        let (taps, len) =
            if is_whole { (1, window.kernel[2] * conv.c_in) } else { (window.kernel[2], conv.c_in) };
        let zeros = conv.zeros.as_ptr();
        let mut n = 0;
        for row in share.rows.clone() {
            let seen = line.row(row);
            if seen.is_none() && place.is_finite {
                continue;
            }
            for tap in 0..taps {
                if n == SEGMENTS_MAX {
                    make(&segments[..], false);
                    n = 0;
                }
                let segment = &mut segments[n];
                let sees = line.seen(seen, tap, zeros, &mut segment.rows);
                if sees || !place.is_finite {
                    (segment.len, segment.k) = (len, (row * window.kernel[2] + tap) * conv.c_in);
                    n += 1;
                }
            }
        }
        make(&segments[..n], is_last);
    }
}
