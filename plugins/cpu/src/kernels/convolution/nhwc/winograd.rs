//! Windows of 3 x 3 that move by one, as Winograd's F(4 x 4, 3 x 3): 36 multiplications for 16 results in place of 144
//! (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015, whose matrices these are).
//!
//! Tiles of 4 x 4 results are made of 6 x 6 pixels. Each of 36 numbers of a tile, by input channel, is a sum of its pixels
//! (`B' d B`); a product of matrices for each of the 36 makes as many numbers by output channel; sums of those are the results
//! (`A' m A`).
//!
//! Rounding: an error is in proportion to the largest number of a tile's pixels, not to those that one result sees. What is not
//! finite in a tile would spread to results that do not see it, or overflow where no result does: such tiles are made once
//! more, directly.

use super::direct::{self, Direct, Place};
use super::header::HEADER;
use super::{Conv, UNCACHED};
use crate::device::CpuDevice;
use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::kernels::product::epilogue::Addresses;
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_weights};
use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::{Job, Segment, Tail};
use crate::lanes::{Lanes, read, write};
use crate::stream::CpuStream;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

/// Results of a tile along an axis, and pixels that it is made of.
const OUT: usize = 4;
const IN: usize = 6;
/// Products of matrices.
const N: usize = IN * IN;

/// Bytes of the numbers of some tiles, before and behind the products: a part of the second-level cache.
const BLOCK_BYTES: usize = 640 << 10;

/// Returns whether fewer multiplications take less time than the direct way does ([`Conv::directly`]), for all that has to be
/// moved for them.
pub(super) fn pays(conv: &Conv, directly: f64) -> bool {
    let window = &conv.window;
    let is_plane =
        window.kernel[0] == 1 && window.input[0] == 1 && window.output[0] == 1 && window.pad[0] == 0;
    let takes = conv.packed
        && is_plane
        && conv.groups == 1
        && window.kernel[1..] == [3, 3]
        && window.stride[1..] == [1, 1]
        && window.dilation[1..] == [1, 1];
    if !takes {
        return false;
    }
    let lanes = conv.tiles.lanes as f64;
    let vectors = |n: usize| n.next_multiple_of(conv.tiles.lanes) as f64 / lanes;
    let (c_in, c_out) = (conv.c_in as f64, vectors(conv.c_out));
    let weights = c_in * c_out;
    let tiles = (conv.images * tiles_of(window.output[1]) * tiles_of(window.output[2])) as f64;
    let moved = tiles * (200.0 * vectors(conv.c_in) + 170.0 * c_out);
    N as f64 * (tiles + UNCACHED) * weights + moved < 0.9 * directly
}

fn tiles_of(extent: usize) -> usize {
    extent.div_ceil(OUT)
}

struct Winograd {
    direct: Direct,
    /// Panels of each of the products.
    panels: Panels,
    rows: usize,
    columns: usize,
    n_tiles: usize,
    /// Blocks that are worked on from pixels to results; one if all are, step by step.
    n_blocks: usize,
    before: BeforeFn,
    behind: BehindFn,
}

pub(super) fn prepare(conv: Conv, isa: Isa) -> Result<Prepared> {
    let (c_in, c_out) = (conv.c_in, conv.c_out);
    let panels = Panels::of(c_out, c_in, &conv.tiles);
    let [_, height, width] = conv.window.output;
    let (rows, columns) = (tiles_of(height), tiles_of(width));
    let n_tiles = conv.images * rows * columns;
    let of_tile = Size::of(c_in + panels.padded()) * (4 * N);
    let block = (BLOCK_BYTES / of_tile.saturated().max(1)).clamp(12, 64);
    let n_blocks = n_tiles.div_ceil(block);
    // With few blocks, each step is divided instead.
    let n_blocks = if n_blocks < 4 { 1 } else { n_blocks };
    let (lanes, n_slots) = (conv.tiles.lanes as u64, if n_blocks == 1 { 1 } else { conv.host.n_slots() });
    let workspace = of_tile * n_tiles.div_ceil(n_blocks) * n_slots;
    let direct = Direct::of(conv);
    let of_direct = direct.panels;
    let len = (of_direct.size() + panels.size() * N + HEADER).get("a convolution's packed weights")?;
    let bytes = (Size::of(len) * 4).get("a convolution's packed weights")?;
    let (before, behind, transform) = (before_of(isa), behind_of(isa), transform_of(isa));
    let kernel = Winograd { direct, panels, rows, columns, n_tiles, n_blocks, before, behind };
    let id = layout_id(&[7, lanes, c_out as u64, c_in as u64]);
    Ok(Prepared::new(kernel).with_room(workspace, 64)?.with_packed(1, id, bytes, 64, move |src, dst| {
        let (src, dst) = (to_weights(src)?, as_f32s_mut(dst)?);
        let (directly, transformed) = dst.split_at_mut(HEADER + of_direct.len());
        direct::pack(&src, &of_direct, 1, [c_out, c_in, 9], directly);
        pack(&src, &panels, c_in, transform, transformed);
        Ok(())
    }))
}

/// Windows that are transformed at once: vectors of f64 run along them.
const CHUNK: usize = 16;

/// Writes `G g G'` of each window, in panels for each of the products.
fn pack(src: &[f32], panels: &Panels, c_in: usize, transform: TransformFn, dst: &mut [f32]) {
    let mut windows = [[0.0; CHUNK]; 9];
    let mut products = [[0.0; CHUNK]; N];
    for panel in 0..panels.n {
        let (first, columns) = panels.columns(panel);
        let width = panels.width(panel);
        for begin in (0..width).step_by(CHUNK) {
            let n = CHUNK.min(width - begin);
            let n_columns = columns.saturating_sub(begin).min(n);
            for k in 0..c_in {
                for column in 0..n_columns {
                    let window = &src[((first + begin + column) * c_in + k) * 9..][..9];
                    windows.iter_mut().zip(window).for_each(|(to, &weight)| to[column] = weight);
                }
                // SAFETY: the processor has the instructions that the function was chosen for.
                unsafe { transform(&windows, &mut products) };
                for (i, product) in products.iter().enumerate() {
                    let to = &mut dst[i * panels.len() + panels.at(panel) + k * width + begin..][..n];
                    let (to, beyond) = to.split_at_mut(n_columns);
                    to.copy_from_slice(&product[..n_columns]);
                    beyond.fill(0.0);
                }
            }
        }
    }
}

type TransformFn = unsafe fn(&[[f32; CHUNK]; 9], &mut [[f32; CHUNK]; N]);

dispatch! { fn transform_of(windows: &[[f32; CHUNK]; 9], products: &mut [[f32; CHUNK]; N]) = transform_body }

/// `G g G'` of some windows, in f64.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn transform_body<A: Arith>(windows: &[[f32; CHUNK]; 9], products: &mut [[f32; CHUNK]; N]) {
    const G: [[f64; 3]; IN] = [
        [1.0 / 4.0, 0.0, 0.0],
        [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
        [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
        [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
        [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
        [0.0, 0.0, 1.0],
    ];
    let sum = |g: &[f64; 3], of: [f64; 3]| g[0] * of[0] + g[1] * of[1] + g[2] * of[2];
    let mut half = [[[0.0; CHUNK]; 3]; IN];
    for (row, g) in half.iter_mut().zip(&G) {
        for (j, values) in row.iter_mut().enumerate() {
            for (c, value) in values.iter_mut().enumerate() {
                *value = sum(g, [0, 1, 2].map(|i| f64::from(windows[i * 3 + j][c])));
            }
        }
    }
    for (row, products) in half.iter().zip(products.chunks_exact_mut(IN)) {
        for (g, product) in G.iter().zip(products) {
            for (c, value) in product.iter_mut().enumerate() {
                *value = sum(g, [row[0][c], row[1][c], row[2][c]]) as f32;
            }
        }
    }
}

/// Numbers of some tiles: of each product the tiles, one after the other.
#[derive(Clone, Copy)]
struct Numbers {
    before: SendPtr<f32>,
    behind: SendPtr<f32>,
    /// Tiles.
    n: usize,
}

impl Launch<CpuDevice> for Winograd {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let conv = &self.direct.conv;
        let addresses = Addresses::of(operands);
        // SAFETY: the addresses are the launch's, and the weights packed.
        let place = unsafe { Place::of(addresses, 0) };
        let transformed = SendPtr(addresses.w.at(HEADER + self.direct.panels.len()));
        let workspace = SendPtr(operands.workspace_ptr::<f32>());
        let most = self.n_tiles.div_ceil(self.n_blocks);
        let numbers = |slot: usize, n: usize| {
            let begin = workspace.at(slot * N * most * (conv.c_in + self.panels.padded()));
            Numbers { before: SendPtr(begin), behind: SendPtr(begin.wrapping_add(N * n * conv.c_in)), n }
        };
        if self.n_blocks > 1 {
            return conv.host.parallel_for(self.n_blocks, 1, |blocks, slot| {
                let mut pace = conv.host.pace();
                for block in blocks {
                    let tile = |block: usize| self.n_tiles * block / self.n_blocks;
                    let tiles = tile(block)..tile(block + 1);
                    let numbers = numbers(slot, tiles.len());
                    // SAFETY: a slot's numbers are its own, and blocks make disjoint tiles.
                    unsafe {
                        self.before(&place, tiles.clone(), 0, numbers);
                        for product in 0..N {
                            pace.work(numbers.n * conv.c_in * self.panels.padded())?;
                            self.multiply(transformed.at(0), product, 0..self.panels.n, numbers);
                        }
                        self.behind(&place, tiles, 0, numbers);
                    }
                }
                Ok(())
            });
        }
        let all = numbers(0, self.n_tiles);
        let grain = |work: usize| (200_000 / work.max(1)).max(1);
        let of_tile = 8 * N * (conv.c_in + conv.c_out);
        conv.host.parallel_for(self.n_tiles, grain(of_tile), |tiles, _| {
            // SAFETY: chunks are of disjoint tiles.
            unsafe { self.before(&place, tiles.clone(), tiles.start, all) };
            Ok(())
        })?;
        let of_panel = 2 * self.n_tiles * conv.c_in * conv.c_out / self.panels.n.max(1);
        conv.host.parallel_for(N * self.panels.n, grain(of_panel), |units, _| {
            for unit in units {
                let (product, panel) = (unit / self.panels.n, unit % self.panels.n);
                // SAFETY: units are of disjoint columns of disjoint products.
                unsafe { self.multiply(transformed.at(0), product, panel..panel + 1, all) };
            }
            Ok(())
        })?;
        conv.host.parallel_for(self.n_tiles, grain(of_tile), |tiles, _| {
            // SAFETY: chunks are of disjoint tiles.
            unsafe { self.behind(&place, tiles.clone(), tiles.start, all) };
            Ok(())
        })
    }
}

impl Winograd {
    /// The image of a tile, and the row and column of its first result.
    fn at(&self, tile: usize) -> (usize, usize, usize) {
        let (line, column) = (tile / self.columns, tile % self.columns);
        (line / self.rows, line % self.rows * OUT, column * OUT)
    }

    /// Makes the numbers of some tiles, of which the first has place `first` among them.
    ///
    /// # Safety
    /// `place` is the launch's, and no other thread works on these tiles' numbers.
    unsafe fn before(&self, place: &Place, tiles: Range<usize>, first: usize, numbers: Numbers) {
        let conv = &self.direct.conv;
        let window = &conv.window;
        for (i, tile) in tiles.enumerate() {
            let (image, row, column) = self.at(tile);
            let inside = |origin: usize, pad: usize, tap: usize, extent: usize| {
                (origin + tap).checked_sub(pad).filter(|&at| at < extent)
            };
            let x = place.of.x.at(image * window.n_input() * conv.c_in);
            let mut seen = [conv.zeros.as_ptr(); N];
            for (line, seen) in seen.chunks_exact_mut(IN).enumerate() {
                let Some(row) = inside(row, window.pad[1], line, window.input[1]) else { continue };
                for (tap, pixel) in seen.iter_mut().enumerate() {
                    if let Some(column) = inside(column, window.pad[2], tap, window.input[2]) {
                        *pixel = x.wrapping_add((row * window.input[2] + column) * conv.c_in);
                    }
                }
            }
            let to = numbers.before.at((first + i) * conv.c_in);
            // SAFETY: pixels and zeros have the channels, and the numbers are this thread's (# Safety).
            unsafe { (self.before)(&seen, conv.c_in, to, numbers.n * conv.c_in) };
        }
    }

    /// Multiplies the numbers of all tiles by some panels of one of the products.
    ///
    /// # Safety
    /// The weights are the transformed ones; no other thread works on these columns.
    unsafe fn multiply(&self, weights: *const f32, product: usize, panels: Range<usize>, numbers: Numbers) {
        let conv = &self.direct.conv;
        let (c_in, stride, n) = (conv.c_in, self.panels.padded(), numbers.n);
        let n_parts = n.div_ceil(conv.tiles.rows(self.panels.widest().max(1)));
        let row = |part: usize| n * part / n_parts;
        for panel in panels {
            let vectors = self.panels.vectors(panel);
            let column = vectors.start * conv.tiles.lanes;
            for part in 0..n_parts {
                let rows = row(part)..row(part + 1);
                let mut segment = Segment { len: c_in, ..Segment::EMPTY };
                for (i, from) in segment.rows.iter_mut().enumerate().take(rows.len()) {
                    *from = numbers.before.at((product * n + rows.start + i) * c_in);
                }
                let weights = weights.wrapping_add(product * self.panels.len() + self.panels.at(panel));
                let job = Job {
                    segments: std::slice::from_ref(&segment),
                    weights,
                    ahead: self.panels.ahead(weights, panel, part),
                    y: numbers.behind.at((product * n + rows.start) * stride + column),
                    stride,
                    columns: vectors.len() * conv.tiles.lanes,
                    bias: std::ptr::null(),
                    adds: false,
                    tail: None,
                };
                // SAFETY: the numbers have the rows, and their columns are this thread's (# Safety).
                unsafe { conv.tiles.run(vectors.len(), rows.len(), &job) };
            }
        }
    }

    /// Makes the results of some tiles, of which the first has place `first` among the numbers.
    ///
    /// # Safety
    /// As [`Winograd::before`], with the tiles' results.
    unsafe fn behind(&self, place: &Place, tiles: Range<usize>, first: usize, numbers: Numbers) {
        let conv = &self.direct.conv;
        let [_, height, width] = conv.window.output;
        let stride = self.panels.padded();
        for (i, tile) in tiles.enumerate() {
            let (image, row, column) = self.at(tile);
            let pixel = (image * height + row) * width + column;
            let at = pixel * conv.c_out;
            let to = Results {
                y: place.of.y.at(at),
                row: width * conv.c_out,
                channels: conv.c_out,
                extents: [OUT.min(height - row), OUT.min(width - column)],
                bias: Addresses::offset(place.of.bias, 0),
                tail: conv.tail(Addresses::offset(place.of.z, at)),
            };
            let from = numbers.behind.at((first + i) * stride);
            // SAFETY: the numbers are there, and the results are this thread's (# Safety).
            let is_finite = unsafe { (self.behind)(from, numbers.n * stride, &to) };
            for i in 0..to.extents[0] {
                // SAFETY: the results are this thread's (# Safety).
                unsafe {
                    if is_finite {
                        conv.activate(to.y.wrapping_add(i * to.row), to.extents[1], conv.c_out);
                    } else {
                        let columns = column..column + to.extents[1];
                        self.direct.pixels(place, image * height + row + i, &columns);
                    }
                }
            }
        }
    }
}

type BeforeFn = unsafe fn(&[*const f32; N], usize, *mut f32, usize);

dispatch! { fn before_of(seen: &[*const f32; N], channels: usize, to: *mut f32, stride: usize) = before_body }

/// `B' d B` of a tile; the numbers of one product are `stride` from those of the next.
///
/// # Safety
/// All that is seen has the channels, and `to` has room for them in each product.
#[inline(always)]
unsafe fn before_body<A: Arith>(seen: &[*const f32; N], channels: usize, to: *mut f32, stride: usize) {
    let lanes = <A::Lanes as Lanes>::N;
    let whole = channels / lanes * lanes;
    for at in (0..whole).step_by(lanes) {
        // SAFETY: there is a vector of channels from here (# Safety).
        unsafe { before_vector::<A::Lanes>(seen, at, lanes, to, stride) };
    }
    if whole < channels {
        // SAFETY: there are as many channels from here (# Safety).
        unsafe { before_vector::<A::Lanes>(seen, whole, channels - whole, to, stride) };
    }
}

/// # Safety
/// As [`before_body`], of `n` channels from `at`, at most a vector.
#[inline(always)]
unsafe fn before_vector<L: Lanes>(seen: &[*const f32; N], at: usize, n: usize, to: *mut f32, stride: usize) {
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { L::splat(0.0) };
    let mut half = [[zero; IN]; IN];
    for column in 0..IN {
        let mut pixels = [zero; IN];
        for (row, pixel) in pixels.iter_mut().enumerate() {
            // SAFETY: there are `n` channels from here (# Safety).
            *pixel = unsafe { read(seen[row * IN + column].wrapping_add(at), n) };
        }
        // SAFETY: the processor has the instructions (# Safety).
        let made = unsafe { before_line(pixels) };
        for (row, &value) in made.iter().enumerate() {
            half[row][column] = value;
        }
    }
    for (row, &line) in half.iter().enumerate() {
        // SAFETY: the processor has the instructions (# Safety).
        let made = unsafe { before_line(line) };
        for (column, &value) in made.iter().enumerate() {
            // SAFETY: there is room for `n` channels in each product (# Safety).
            unsafe { write(value, to.wrapping_add((row * IN + column) * stride + at), n) };
        }
    }
}

/// `B' d` of a column.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn before_line<L: Lanes>(d: [L; IN]) -> [L; IN] {
    // SAFETY: the processor has the instructions (# Safety).
    let (two, four) = unsafe { ([L::splat(-2.0), L::splat(2.0)], [L::splat(-4.0), L::splat(4.0)]) };
    // SAFETY: the same.
    let five = unsafe { L::splat(-5.0) };
    let (a, b) = (d[2].fma(four[0], d[4]), d[1].fma(four[0], d[3]));
    let (c, e) = (d[4].sub(d[2]), d[3].sub(d[1]));
    [
        d[0].fma(four[1], d[2].fma(five, d[4])),
        a.add(b),
        a.sub(b),
        e.fma(two[1], c),
        e.fma(two[0], c),
        d[1].fma(four[1], d[3].fma(five, d[5])),
    ]
}

/// Where a tile's results go.
struct Results {
    /// The first one's first channel.
    y: *mut f32,
    /// Distance from one row of pixels to the next.
    row: usize,
    channels: usize,
    /// Rows and columns that lie within the result.
    extents: [usize; 2],
    /// A number for each channel, or NULL.
    bias: *const f32,
    tail: Tail,
}

type BehindFn = unsafe fn(*const f32, usize, &Results) -> bool;

dispatch! { fn behind_of(from: *const f32, stride: usize, to: &Results) -> bool = behind_body }

/// `A' m A` of a tile, and its tail; false if not all of it is finite.
///
/// # Safety
/// Each product has the channels, whole vectors, `stride` from those of the next; the results are this thread's.
#[inline(always)]
unsafe fn behind_body<A: Arith>(from: *const f32, stride: usize, to: &Results) -> bool {
    let lanes = <A::Lanes as Lanes>::N;
    // SAFETY: the processor has the instructions (# Safety).
    let mut seen = unsafe { A::Lanes::splat(0.0) };
    for at in (0..to.channels).step_by(lanes) {
        let n = lanes.min(to.channels - at);
        // SAFETY: the products have a vector from here, and the results `n` channels (# Safety).
        seen = unsafe { behind_vector::<A>(from.wrapping_add(at), stride, to, at, n, seen) };
    }
    let mut zeros = [0.0; 16];
    // SAFETY: sixteen numbers are enough for every vector.
    unsafe { seen.store(zeros.as_mut_ptr()) };
    zeros.iter().all(|&zero| zero == 0.0)
}

/// Gives `seen` plus zeros, or what is no number where a result is not finite.
///
/// # Safety
/// As [`behind_body`], of `n` channels from `at`.
#[inline(always)]
unsafe fn behind_vector<A: Arith>(
    from: *const f32,
    stride: usize,
    to: &Results,
    at: usize,
    n: usize,
    mut seen: A::Lanes,
) -> A::Lanes {
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut half = [[zero; IN]; OUT];
    for column in 0..IN {
        let mut line = [zero; IN];
        for (row, value) in line.iter_mut().enumerate() {
            // SAFETY: the products have a vector from here (# Safety).
            *value = unsafe { A::Lanes::load(from.wrapping_add((row * IN + column) * stride)) };
        }
        // SAFETY: the processor has the instructions (# Safety).
        let made = unsafe { behind_line(line) };
        for (row, &value) in made.iter().enumerate() {
            half[row][column] = value;
        }
    }
    let tail = &to.tail;
    // SAFETY: the processor has the instructions, and a bias has `n` channels from here (# Safety).
    let bias = unsafe { if to.bias.is_null() { zero } else { read(to.bias.wrapping_add(at), n) } };
    for (row, &line) in half.iter().enumerate().take(to.extents[0]) {
        // SAFETY: the processor has the instructions (# Safety).
        let made = unsafe { behind_line(line) };
        for (column, &value) in made.iter().enumerate() {
            seen = value.fma(zero, seen);
            if column < to.extents[1] {
                let place = row * to.row + column * to.channels + at;
                let mut value = value.add(bias);
                // SAFETY: the result, and what is added to it, have `n` channels from here (# Safety).
                unsafe {
                    if !tail.z.is_null() {
                        value = value.add(read(tail.z.wrapping_add(place), n));
                    }
                    write(tail.activation.apply::<A, A::Lanes>(value), to.y.wrapping_add(place), n);
                }
            }
        }
    }
    seen
}

/// `A' m` of a column.
///
/// # Safety
/// The processor has the instructions.
#[inline(always)]
unsafe fn behind_line<L: Lanes>(m: [L; IN]) -> [L; OUT] {
    // SAFETY: the processor has the instructions (# Safety).
    let (two, four, eight) = unsafe { (L::splat(2.0), L::splat(4.0), L::splat(8.0)) };
    let (a, b) = (m[1].add(m[2]), m[1].sub(m[2]));
    let (c, d) = (m[3].add(m[4]), m[3].sub(m[4]));
    [m[0].add(a).add(c), d.fma(two, b), c.fma(four, a), d.fma(eight, b).add(m[5])]
}
