//! Convolutions as matrix products over panels, without an im2col matrix of the image.
//!
//! Per image and group a convolution is `Y[c][p] = sum_k W[c][k] * X[k][p]`, with `c` an output channel, `p` a pixel
//! and `k` an input channel and tap. Two ways, by the number of pixels:
//!
//! - **by pixels**: vectors run along pixels. For a tile of pixels, [`KC`] rows of X at a time are gathered into a
//!   panel that fits the cache, and all channels are worked through; weights are packed as rows.
//! - **by channels**: few pixels would leave vectors empty, so vectors run along output channels; weights are
//!   packed as columns, X is gathered once, and the result is turned around at the end.
//!
//! Depthwise convolutions are in [`crate::kernels::convolution::depthwise`].

use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::convolution::depthwise;
use crate::kernels::cost;
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::plane::{copy, every, zero};
use crate::kernels::geometry::strided;
use crate::kernels::geometry::window::{Window, image, in_and_out};
use crate::kernels::numbers::widen;
use crate::kernels::product::epilogue::{Activation, Addresses, FinishFn, Tile, finish};
use crate::kernels::product::micro::{
    Dst, KC, Left, Micro, NR, Right, as_f32s_mut, layout_id, pack_left, pack_right, packed_left_len,
    packed_left_size, packed_right_len, packed_right_size, to_weights,
};
use crate::stream::CpuStream;
use devbay_ops::{descriptor, descriptor_of};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

const SINGLE: &[TypeVar] = &[TypeVar::of(crate::kernels::types::SINGLES)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("Conv", 11, prepare).types(SINGLE).adapted(widen::floats).cost(conv_cost),
    descriptor_of("devbay", "FusedConv", 1, prepare)
        .types(SINGLE)
        .adapted(widen::floats)
        .cost(conv_cost)
        .doc("Conv with a residual that is added, and an activation"),
];

/// Name of a convolution's memory.
const WORKSPACE: &str = "a convolution's panels";
const PACKED: &str = "a convolution's packed weights";

/// Below so many pixels vectors run along channels.
const PIXELS_MIN: usize = 96;

/// A convolution: what both ways need.
#[derive(Clone)]
pub(crate) struct Conv {
    pub host: Host,
    pub images: usize,
    pub groups: usize,
    /// Input channels of a group.
    pub c_in: usize,
    /// Output channels of a group.
    pub c_out: usize,
    pub window: Window,
    pub activation: Activation,
    pub finish: FinishFn,
    gather: GatherFn,
    pub micro: Micro,
    /// True if the host passes packed weights.
    pub packed: bool,
}

impl Conv {
    fn k(&self) -> usize {
        self.c_in * self.window.n_taps()
    }
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (input, output) = in_and_out(request)?;
    let weights = extents(request.required_input(1)?)?;
    let (images, channels, spatial) = image(&input)?;
    let (_, c_out, out_spatial) = image(&output)?;
    let (_, c_in, kernel) = image(&weights)?;
    let groups = groups_of(request, channels, c_out)?;
    let conv = Conv {
        host: request.host,
        images,
        groups,
        c_in,
        c_out: c_out / groups,
        window: Window::of(&request.attrs, kernel, spatial, out_spatial)?,
        activation: Activation::of(&request.attrs)?,
        finish: finish(request.device.isa),
        gather: gather_of(request.device.isa),
        micro: Micro::of(request.device.isa),
        packed: request.abi_minor >= 2 && request.required_input(1)?.constant().is_some(),
    };
    if conv.k() == 0 {
        return Ok(Prepared::new(NoTerms { conv }));
    }
    if depthwise::takes(&conv) {
        return depthwise::prepare(conv, request.device.isa);
    }
    if conv.window.n_output() >= PIXELS_MIN { by_pixels(conv) } else { by_channels(conv) }
}

/// The groups of a convolution, whose weights, bias and residual fit so many channels of its input and output.
///
/// # Errors
/// Invalid if they do not.
pub(crate) fn groups_of(
    request: &PrepareRequest<'_, CpuDevice>,
    channels: usize,
    c_out: usize,
) -> Result<usize> {
    let (input, output) = in_and_out(request)?;
    let weights = extents(request.required_input(1)?)?;
    let (rows, c_in, _) = image(&weights)?;
    let groups = usize::try_from(request.attrs.int("group", 1)?).ok().filter(|&groups| groups > 0);
    let groups = groups.ok_or_else(|| Error::invalid("attribute group is not above 0"))?;
    if rows != c_out || c_in.checked_mul(groups) != Some(channels) || !c_out.is_multiple_of(groups) {
        return Err(Error::invalid(format!(
            "weights {weights:?} do not fit {groups} groups of an input {input:?} and an output {output:?}"
        )));
    }
    if let Some(bias) = request.input(2)
        && bias.n_elements() != c_out
    {
        return Err(Error::invalid(format!("a bias of {} for {c_out} channels", bias.n_elements())));
    }
    if let Some(z) = request.input(3)
        && extents(z)? != output
    {
        return Err(Error::invalid("a residual of another shape than the result"));
    }
    Ok(groups)
}

pub(crate) fn conv_cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let weights = extents(request.required_input(1)?)?;
    let per_output: usize = weights[1..].iter().product();
    let outputs = request.required_output(0)?.n_elements();
    Ok(cost::of(request, (Size::of(2 * per_output) * outputs).saturated() as u64))
}

/// Pixels of one row of the output that follow each other.
#[derive(Clone, Copy, Default)]
struct Run {
    depth: usize,
    row: usize,
    column: usize,
    /// Position within the tile.
    at: usize,
    len: usize,
}

/// Rows of output pixels that a tile touches, at most.
const RUNS_MAX: usize = 128;

/// Splits the pixels of a tile into runs; `runs` has room for one per pixel.
fn runs_of(window: &Window, pixels: Range<usize>, runs: &mut [Run; RUNS_MAX]) -> usize {
    let [_, height, width] = window.output;
    let (mut n, mut p) = (0, pixels.start);
    while p < pixels.end {
        let (line, column) = (p / width, p % width);
        let len = (width - column).min(pixels.end - p);
        runs[n] = Run { depth: line / height, row: line % height, column, at: p - pixels.start, len };
        n += 1;
        p += len;
    }
    n
}

/// One tap of one run: where its elements are in a channel, and where in the tile they go.
#[derive(Clone, Copy, Default)]
struct Piece {
    /// Position in the channel of the first element that exists.
    src: usize,
    /// Position in the tile's row.
    dst: u32,
    /// Zeros outside the image, elements, zeros again.
    before: u32,
    len: u32,
    after: u32,
}

/// Pieces that are kept for all channels, at most.
const PIECES_MAX: usize = 512;

dispatch! {
    /// Gathers rows `k` of X for the pixels of a tile: row after row, `stride` apart, zero beyond the tile.
    fn gather_of(
        conv: &Conv,
        x: *const f32,
        k: Range<usize>,
        pixels: Range<usize>,
        dst: *mut f32,
        stride: usize,
    ) = gather_body
}

type GatherFn = unsafe fn(&Conv, *const f32, Range<usize>, Range<usize>, *mut f32, usize);

/// # Safety
/// `x` is a group of an image; `dst` has room for the rows.
#[inline(always)]
unsafe fn gather_body<A: Arith>(
    conv: &Conv,
    x: *const f32,
    k: Range<usize>,
    pixels: Range<usize>,
    dst: *mut f32,
    stride: usize,
) {
    let window = &conv.window;
    let n = pixels.len();
    let channel = window.n_input();
    if window.is_pointwise() {
        for (i, k) in k.enumerate() {
            let row = dst.wrapping_add(i * stride);
            // SAFETY: the pixels are within the channel, the row is within `dst`.
            unsafe {
                copy(x.wrapping_add(k * channel + pixels.start), row, n);
                zero(row.wrapping_add(n), stride - n);
            }
        }
        return;
    }
    let mut runs = [Run::default(); RUNS_MAX];
    let n_runs = runs_of(window, pixels, &mut runs);
    let runs = &runs[..n_runs];
    let n_taps = window.n_taps();
    // The pieces are the same in every channel.
    let mut pieces = [Piece::default(); PIECES_MAX];
    let is_kept = n_taps * n_runs <= PIECES_MAX;
    if is_kept {
        for (tap, pieces) in pieces.chunks_exact_mut(n_runs).enumerate().take(n_taps) {
            for (piece, run) in pieces.iter_mut().zip(runs) {
                *piece = piece_of(window, tap, run);
            }
        }
    }
    let step = window.stride[2];
    let (mut c, mut tap) = (k.start / n_taps, k.start % n_taps);
    for i in 0..k.len() {
        let (src, row) = (x.wrapping_add(c * channel), dst.wrapping_add(i * stride));
        // SAFETY: the pieces lie within the channel and the tile, whose rows are within `dst`.
        unsafe {
            if is_kept {
                for piece in &pieces[tap * n_runs..(tap + 1) * n_runs] {
                    gather_piece(src, row, piece, step);
                }
            } else {
                for run in runs {
                    gather_piece(src, row, &piece_of(window, tap, run), step);
                }
            }
            zero(row.wrapping_add(n), stride - n);
        }
        tap += 1;
        if tap == n_taps {
            (c, tap) = (c + 1, 0);
        }
    }
}

fn piece_of(window: &Window, tap: usize, run: &Run) -> Piece {
    let [_, kernel_height, kernel_width] = window.kernel;
    let tap = [tap / kernel_width / kernel_height, tap / kernel_width % kernel_height, tap % kernel_width];
    let [_, height, width] = window.input;
    // Positions in the padded image; wrapped below zero they are beyond any extent.
    let at = |i: usize, out: usize| {
        (out * window.stride[i] + tap[i] * window.dilation[i]).wrapping_sub(window.pad[i])
    };
    let (depth, row) = (at(0, run.depth), at(1, run.row));
    let nothing = Piece { dst: run.at as u32, before: run.len as u32, ..Piece::default() };
    if depth >= window.input[0] || row >= height {
        return nothing;
    }
    let first =
        (run.column * window.stride[2] + tap[2] * window.dilation[2]) as isize - window.pad[2] as isize;
    let step = window.stride[2];
    // Outputs whose element lies within the row.
    let low = if first >= 0 { 0 } else { (first.unsigned_abs()).div_ceil(step).min(run.len) };
    let beyond = width as isize - first;
    let high = if beyond <= 0 { 0 } else { (beyond as usize).div_ceil(step).min(run.len) };
    if high <= low {
        return nothing;
    }
    Piece {
        src: (depth * height + row) * width + (first + (low * step) as isize) as usize,
        dst: run.at as u32,
        before: low as u32,
        len: (high - low) as u32,
        after: (run.len - high) as u32,
    }
}

/// # Safety
/// The piece's elements are within the channel, and its place is within the row.
#[inline(always)]
unsafe fn gather_piece(channel: *const f32, row: *mut f32, piece: &Piece, step: usize) {
    let (before, n, after) = (piece.before as usize, piece.len as usize, piece.after as usize);
    let mut dst = row.wrapping_add(piece.dst as usize);
    let src = channel.wrapping_add(piece.src);
    // SAFETY: the piece's elements are within the channel, and its place is within the row (# Safety).
    unsafe {
        if before > 0 {
            zero(dst, before);
            dst = dst.wrapping_add(before);
        }
        match step {
            1 => copy(src, dst, n),
            2 => every::<2>(src, dst, n, 2),
            _ => every::<0>(src, dst, n, step),
        }
        if after > 0 {
            zero(dst.wrapping_add(n), after);
        }
    }
}

// --- of no channels --------------------------------------------------------------------------------

/// Sums of no terms: what is added to them, and the activation, are left.
struct NoTerms {
    conv: Conv,
}

impl Launch<CpuDevice> for NoTerms {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let addresses = Addresses::of(operands);
        let pixels = conv.window.n_output();
        let plane = conv.c_out * pixels;
        conv.host.parallel_for(conv.images * conv.groups, 1, |planes, _| {
            for at in planes {
                let start = addresses.y.at(at * plane);
                let tile = Tile {
                    x: start,
                    x_stride: pixels,
                    y: start,
                    y_stride: pixels,
                    rows: conv.c_out,
                    columns: pixels,
                    row_bias: Addresses::offset(addresses.bias, at % conv.groups * conv.c_out),
                    column_bias: std::ptr::null(),
                    z: Addresses::offset(addresses.z, at * plane),
                    beta: 1.0,
                };
                // SAFETY: the plane is within the result, and no other unit's.
                unsafe { zero(start, plane) };
                // SAFETY: the plane is this unit's own; bias and residual are as `prepare` was told.
                unsafe { (conv.finish)(tile, conv.activation) };
            }
            Ok(())
        })
    }
}

// --- by pixels ------------------------------------------------------------------------------------

struct ByPixels {
    conv: Conv,
    /// Tiles of pixels per image and group.
    n_tiles: usize,
    /// Parts that the channels of a group are divided into.
    n_parts: usize,
    /// Floats of workspace per slot: a panel of X, then the last tile's rows.
    per_slot: usize,
    /// Units that one chunk takes.
    grain: usize,
}

fn by_pixels(conv: Conv) -> Result<Prepared> {
    let (k, mr) = (conv.k(), conv.micro.mr);
    let pixels = conv.window.n_output();
    let n_tiles = pixels.div_ceil(mr);
    // With few tiles the channels are divided too, at the price of gathering X again.
    let n_units = Size::of(conv.images * conv.groups) * n_tiles;
    let n_parts = if n_units.saturated() >= 4 || conv.c_out < 8 * NR { 1 } else { 2 };
    let ragged = conv.micro.padded(tile_of(&conv, n_tiles, n_tiles - 1).len());
    let per_slot = Size::of(conv.c_out).next_multiple_of(NR) * ragged + KC.min(k) * mr;
    let per_slot = per_slot.get(WORKSPACE)?;
    let flops = (Size::of(2 * mr) * k * conv.c_out).saturated() / n_parts;
    let workspace = Size::of(per_slot) * (4 * conv.host.n_slots());
    let packed_len = (packed_right_size(conv.c_out, k) * conv.groups).get(PACKED)?;
    let (groups, c_out, packed) = (conv.groups, conv.c_out, conv.packed);
    let per_launch = Size::of(if packed { 0 } else { packed_len }) * 4;
    let kernel = ByPixels { n_tiles, n_parts, per_slot, grain: (200_000 / flops.max(1)).max(1), conv };
    let prepared = Prepared::new(kernel).with_room(workspace + per_launch, 64)?;
    if !packed {
        return Ok(prepared);
    }
    let packed_bytes = (Size::of(packed_len) * 4).get(PACKED)?;
    let id = layout_id(&[1, NR as u64, groups as u64, c_out as u64, k as u64]);
    Ok(prepared.with_packed(1, id, packed_bytes, 64, move |src, dst| {
        pack_rows(&to_weights(src)?, groups, c_out, k, as_f32s_mut(dst)?);
        Ok(())
    }))
}

/// The pixels of one of `n` tiles. Each has as many vectors as the others, or one more: a last tile of one vector would take as
/// long as one of two.
fn tile_of(conv: &Conv, n: usize, tile: usize) -> Range<usize> {
    let (pixels, lanes) = (conv.window.n_output(), conv.micro.lanes);
    let vectors = pixels.div_ceil(lanes);
    let at = |tile: usize| (tile * vectors / n * lanes).min(pixels);
    at(tile)..at(tile + 1)
}

fn pack_rows(src: &[f32], groups: usize, c_out: usize, k: usize, dst: &mut [f32]) {
    for (g, dst) in dst.chunks_exact_mut(packed_right_len(c_out, k).max(1)).enumerate().take(groups) {
        pack_right(c_out, k, dst, |row, i| src[(g * c_out + row) * k + i]);
    }
}

impl Launch<CpuDevice> for ByPixels {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let mut addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        if !conv.packed {
            let packed = workspace.at(self.per_slot * conv.host.n_slots());
            let (k, rows) = (conv.k(), conv.groups * conv.c_out);
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (
                    std::slice::from_raw_parts(addresses.w.0, rows * k),
                    std::slice::from_raw_parts_mut(packed, conv.groups * packed_right_len(conv.c_out, k)),
                )
            };
            pack_rows(src, conv.groups, conv.c_out, k, dst);
            addresses.w = SendPtr(packed);
        }
        let units = conv.images * conv.groups * self.n_tiles * self.n_parts;
        conv.host.parallel_for(units, self.grain, |units, slot| {
            let scratch = workspace.at(slot * self.per_slot);
            for unit in units {
                // SAFETY: units write disjoint parts of the output, and a slot's scratch is its own.
                unsafe { self.unit(unit, &addresses, scratch) };
            }
            Ok(())
        })
    }
}

impl ByPixels {
    /// One tile of pixels, one part of the channels.
    ///
    /// # Safety
    /// The addresses are the launch's operands, packed weights included; no other thread works on this unit or
    /// in this scratch memory.
    unsafe fn unit(&self, unit: usize, addresses: &Addresses, scratch: *mut f32) {
        let conv = &self.conv;
        let (part, unit) = (unit % self.n_parts, unit / self.n_parts);
        let (tile, unit) = (unit % self.n_tiles, unit / self.n_tiles);
        let (group, image) = (unit % conv.groups, unit / conv.groups);
        let (mr, k, pixels) = (conv.micro.mr, conv.k(), conv.window.n_output());
        let tile = tile_of(conv, self.n_tiles, tile);
        let (first, m) = (tile.start, tile.len());
        let padded = conv.micro.padded(m);
        let whole = m == padded;

        let panels = conv.c_out.div_ceil(NR);
        let (begin, end) = (panels * part / self.n_parts, panels * (part + 1) / self.n_parts);
        let x = addresses.x.at((image * conv.groups + group) * conv.c_in * conv.window.n_input());
        let w = addresses.w.at(group * packed_right_len(conv.c_out, k));
        let channel0 = group * conv.c_out;
        let y0 = (image * conv.groups * conv.c_out + channel0) * pixels + first;
        let ragged_rows = scratch.wrapping_add(KC.min(k) * mr);

        for k0 in (0..k).step_by(KC) {
            let kc = KC.min(k - k0);
            let left = if whole && conv.window.is_pointwise() {
                // The rows of X are where the micro-kernel wants them.
                Left { start: x.wrapping_add(k0 * pixels + first), stride: pixels }
            } else {
                // SAFETY: the group is within the image, and the panel within the scratch memory.
                unsafe { (conv.gather)(conv, x, k0..k0 + kc, first..first + m, scratch, padded) };
                Left { start: scratch, stride: padded }
            };
            for panel in begin..end {
                let c = panel * NR;
                let rows = NR.min(conv.c_out - c);
                let (start, stride) = if whole {
                    (addresses.y.at(y0 + c * pixels), pixels)
                } else {
                    (ragged_rows.wrapping_add(c * padded), padded)
                };
                // SAFETY: `padded` is whole vectors; the panel of X and the packed rows have `kc` values of k
                // from here, and the rows of the result are this unit's.
                unsafe {
                    conv.micro.tile(
                        padded,
                        rows,
                        kc,
                        left,
                        Right {
                            start: w.wrapping_add((panel * k + k0) * NR),
                            k_stride: NR as isize,
                            row_stride: 1,
                        },
                        Dst { start, stride, scale: 1.0, accumulate: k0 > 0 },
                    );
                }
                if k0 + kc == k {
                    let tile = Tile {
                        x: start,
                        x_stride: stride,
                        y: addresses.y.at(y0 + c * pixels),
                        y_stride: pixels,
                        rows,
                        columns: m,
                        row_bias: Addresses::offset(addresses.bias, channel0 + c),
                        column_bias: std::ptr::null(),
                        z: Addresses::offset(addresses.z, y0 + c * pixels),
                        beta: 1.0,
                    };
                    if !whole
                        || conv.activation != Activation::None
                        || !tile.row_bias.is_null()
                        || !tile.z.is_null()
                    {
                        // SAFETY: rows and columns are this unit's, within bias, residual and result.
                        unsafe { (conv.finish)(tile, conv.activation) };
                    }
                }
            }
        }
    }
}

// --- by channels ----------------------------------------------------------------------------------

struct ByChannels {
    conv: Conv,
    /// Pixels, rounded up so that rows of X keep their alignment.
    padded: usize,
    /// Floats of workspace for X.
    gathered: usize,
    /// Floats of workspace per slot: a panel of the result.
    per_slot: usize,
    grain: usize,
}

fn by_channels(conv: Conv) -> Result<Prepared> {
    let (k, mr) = (conv.k(), conv.micro.mr);
    let pixels = conv.window.n_output();
    let padded = if conv.window.is_pointwise() { pixels } else { pixels.next_multiple_of(4) };
    // A pointwise convolution reads X where it is.
    let gathered = match conv.window.is_pointwise() {
        true => 0,
        false => (Size::of(conv.images) * conv.groups * k * padded).get(WORKSPACE)?,
    };
    let per_slot = mr * pixels;
    let packed_len = (packed_left_size(mr, conv.c_out, k) * conv.groups).get(PACKED)?;
    let workspace = (Size::of(per_slot) * conv.host.n_slots() + gathered) * 4;
    let per_launch = Size::of(if conv.packed { 0 } else { packed_len }) * 4;
    let flops = (Size::of(2 * mr) * k * pixels).saturated();
    let (groups, c_out, packed) = (conv.groups, conv.c_out, conv.packed);
    let kernel = ByChannels { padded, gathered, per_slot, grain: (200_000 / flops.max(1)).max(1), conv };
    let prepared = Prepared::new(kernel).with_room(workspace + per_launch, 64)?;
    if !packed {
        return Ok(prepared);
    }
    let packed_bytes = (Size::of(packed_len) * 4).get(PACKED)?;
    let id = layout_id(&[2, mr as u64, groups as u64, c_out as u64, k as u64]);
    Ok(prepared.with_packed(1, id, packed_bytes, 64, move |src, dst| {
        pack_columns(&to_weights(src)?, groups, c_out, k, mr, as_f32s_mut(dst)?);
        Ok(())
    }))
}

fn pack_columns(src: &[f32], groups: usize, c_out: usize, k: usize, mr: usize, dst: &mut [f32]) {
    for (g, dst) in dst.chunks_exact_mut(packed_left_len(mr, c_out, k).max(1)).enumerate().take(groups) {
        pack_left(mr, c_out, k, dst, |i, column| src[(g * c_out + column) * k + i]);
    }
}

impl Launch<CpuDevice> for ByChannels {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.conv;
        let (k, mr) = (conv.k(), conv.micro.mr);
        let mut addresses = Addresses::of(operands);
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let scratch = SendPtr(workspace.at(self.gathered));
        if !conv.packed {
            let packed = scratch.at(self.per_slot * conv.host.n_slots());
            // SAFETY: the operand has the weights' elements, and the workspace has room for them packed.
            let (src, dst) = unsafe {
                (
                    std::slice::from_raw_parts(addresses.w.0, conv.groups * conv.c_out * k),
                    std::slice::from_raw_parts_mut(packed, conv.groups * packed_left_len(mr, conv.c_out, k)),
                )
            };
            pack_columns(src, conv.groups, conv.c_out, k, mr, dst);
            addresses.w = SendPtr(packed);
        }
        let planes = conv.images * conv.groups;
        let pixels = conv.window.n_output();
        if self.gathered > 0 {
            let blocks = k.div_ceil(64);
            conv.host.parallel_for(planes * blocks, (20_000 / (64 * pixels)).max(1), |units, _| {
                for unit in units {
                    let (plane, block) = (unit / blocks, unit % blocks);
                    let rows = block * 64..(block * 64 + 64).min(k);
                    let x = addresses.x.at(plane * conv.c_in * conv.window.n_input());
                    let dst = workspace.at((plane * k + rows.start) * self.padded);
                    // SAFETY: units write disjoint rows of the workspace.
                    unsafe { (conv.gather)(conv, x, rows, 0..pixels, dst, self.padded) };
                }
                Ok(())
            })?;
        }
        let panels = conv.c_out.div_ceil(mr);
        conv.host.parallel_for(planes * panels, self.grain, |units, slot| {
            for unit in units {
                let (plane, panel) = (unit / panels, unit % panels);
                let x = if self.gathered > 0 {
                    workspace.at(plane * k * self.padded)
                } else {
                    addresses.x.at(plane * conv.c_in * pixels)
                };
                // SAFETY: units write disjoint channels of the output, and a slot's scratch is its own.
                unsafe { self.unit(plane, panel, x, &addresses, scratch.at(slot * self.per_slot)) };
            }
            Ok(())
        })
    }
}

impl ByChannels {
    /// One panel of channels, all pixels.
    ///
    /// # Safety
    /// As [`ByPixels::unit`]; `x` is the plane's rows.
    unsafe fn unit(
        &self,
        plane: usize,
        panel: usize,
        x: *const f32,
        addresses: &Addresses,
        scratch: *mut f32,
    ) {
        let conv = &self.conv;
        let (mr, k, pixels) = (conv.micro.mr, conv.k(), conv.window.n_output());
        let group = plane % conv.groups;
        let c = panel * mr;
        let channels = mr.min(conv.c_out - c);
        let m = conv.micro.padded(channels);
        let w = addresses.w.at(group * packed_left_len(mr, conv.c_out, k) + panel * mr * k);
        for k0 in (0..k).step_by(KC) {
            let kc = KC.min(k - k0);
            for p in (0..pixels).step_by(NR) {
                // SAFETY: `m` is whole vectors; weights and rows of X have `kc` values of k from here, and the
                // scratch memory has a row for each pixel.
                unsafe {
                    conv.micro.tile(
                        m,
                        NR.min(pixels - p),
                        kc,
                        Left { start: w.wrapping_add(k0 * mr), stride: mr },
                        Right {
                            start: x.wrapping_add(k0 * self.padded + p),
                            k_stride: self.padded as isize,
                            row_stride: 1,
                        },
                        Dst {
                            start: scratch.wrapping_add(p * mr),
                            stride: mr,
                            scale: 1.0,
                            accumulate: k0 > 0,
                        },
                    );
                }
            }
        }
        let y0 = (plane * conv.c_out + c) * pixels;
        // SAFETY: the scratch memory has a row of channels for each pixel, and the result has them turned around.
        unsafe { strided::transpose(scratch, mr, addresses.y.at(y0), pixels, [channels, pixels]) };
        let tile = Tile {
            x: addresses.y.at(y0),
            x_stride: pixels,
            y: addresses.y.at(y0),
            y_stride: pixels,
            rows: channels,
            columns: pixels,
            row_bias: Addresses::offset(addresses.bias, group * conv.c_out + c),
            column_bias: std::ptr::null(),
            z: Addresses::offset(addresses.z, y0),
            beta: 1.0,
        };
        // SAFETY: rows and columns are this unit's, within bias, residual and result.
        unsafe { (conv.finish)(tile, conv.activation) };
    }
}
