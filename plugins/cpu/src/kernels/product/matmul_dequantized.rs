//! Products of f32 and a matrix of weights of eight or four bits, which stay small: MatMulDequantized.
//!
//! The weights are packed once by the host if they are constant, else in each launch. A few rows are multiplied with weights
//! that are widened in registers, since reading them is what takes the time. For more rows a part of a panel is widened in
//! the slot's memory, and the micro-kernel of numbers uses it for all of them.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::product::epilogue::{Activation, FinishFn, Tile, finish};
use crate::kernels::product::micro::{as_f32s_mut, layout_id, to_f32s};
use crate::kernels::product::small_panels::{SmallPanels, Weights};
use crate::kernels::product::small_tile::{self, Panel, SmallTiles};
use crate::kernels::product::tile::{Job, Quick, Segment, Tail, Tiles};
use crate::stream::CpuStream;
use devbay_ops::descriptor_of;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor_of("devbay", "MatMulDequantized", 1, prepare)
    .types(&[TypeVar::of(&[F32]), TypeVar::of(&[I8, U8, I4, U4])])
    .cost(cost)
    .doc("MatMul by weights of 8 or 4 bits with a scale for each block, with a bias and an activation")];

/// Operands.
const A: usize = 0;
const B: usize = 1;
const SCALE: usize = 2;
const ZERO: usize = 3;
const BIAS: usize = 4;

/// Rows that are made from weights in registers, at most: for more, widening a panel once takes less time.
const FEW: usize = 8;

/// Rows of a unit, at most: each unit widens the panel anew.
const ROWS: usize = 128;

/// Terms of a panel that are widened at once: of four vectors of 16 numbers, 128 KB. Even, because a byte may have two.
const TERMS: usize = 512;

/// Operations of a chunk.
const GRAIN: usize = 200_000;

/// The extents of a product.
struct Shape {
    rows: usize,
    k: usize,
    columns: usize,
    block: usize,
    transposed: bool,
}

impl Shape {
    fn of(request: &PrepareRequest<'_, CpuDevice>) -> Result<Self> {
        let (a, b) = (extents(request.required_input(A)?)?, extents(request.required_input(B)?)?);
        let transposed = request.attrs.int("transB", 0)? != 0;
        let (&[b0, b1], [batch @ .., k]) = (&b[..], &a[..]) else {
            return Err(Error::invalid(format!("a product of {a:?} and {b:?}")));
        };
        let (of_b, columns) = if transposed { (b1, b0) } else { (b0, b1) };
        if *k != of_b {
            return Err(Error::invalid(format!("a product of {a:?} and {b:?}")));
        }
        let block = request.attrs.int("block_size", 0)?;
        let block = usize::try_from(block).map_err(|_| Error::invalid(format!("blocks of {block} terms")))?;
        let block = if block == 0 { *k } else { block.min(*k) }.max(1);
        let rows = Size::of_extents(batch).get("rows")?;
        expect_output(request, 0, &[batch, &[columns]].concat())?;
        Ok(Self { rows, k: *k, columns, block, transposed })
    }
}

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let shape = Shape::of(request)?;
    let flops = Size::of(2 * shape.k.max(1)) * shape.rows * shape.columns;
    Ok(cost::of(request, flops.saturated() as u64))
}

/// An operand of the weights: where it is when it is launched.
#[derive(Clone, Copy)]
enum Part {
    /// The host passes it packed.
    Packed,
    /// It is packed to this place of the workspace, in so many bytes.
    Packs { at: usize, size: usize },
    /// There is none.
    Absent,
}

/// A product that is ready to be launched.
struct Small {
    host: Host,
    weights: SmallPanels,
    tiles: Tiles,
    small: SmallTiles,
    rows: usize,
    /// The matrix, its scales and its zero points.
    parts: [Part; 3],
    /// Elements of these operands.
    counts: [usize; 3],
    has_bias: bool,
    activation: Quick,
    /// The activation if it is not done in registers.
    rest: Option<(FinishFn, Activation)>,
    /// Numbers of the workspace that a slot has.
    scratch: usize,
    /// True if there is a workspace.
    has_room: bool,
}

fn prepare(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    const WHAT: &str = "quantised weights";
    let Shape { rows, k, columns, block, transposed } = Shape::of(request)?;
    let (b, scale, zero) = (request.required_input(B)?, request.required_input(SCALE)?, request.input(ZERO));
    let bits = usize::from(b.dtype().bits);
    let is_signed = b.dtype() == I8 || b.dtype() == I4;
    // Bytes whose zero points are known to be in the middle have none once they are signed.
    let middle = if is_signed { 0 } else { 0x80 };
    let is_centred = bits == 8
        && zero.map_or(is_signed, |zero| {
            zero.constant().is_some_and(|all| all.iter().all(|&byte| byte == middle))
        });
    // The host's sizes are those of tensors; those of what is packed are larger.
    (Size::of(k) * columns * 8).get(WHAT)?;
    let tiles = Tiles::of(request.device.isa);
    let weights =
        SmallPanels::of(&Weights { k, columns, block, bits, is_signed, transposed, is_centred }, &tiles);
    let zero = zero.filter(|_| !is_centred);
    let counts = [b.n_elements(), scale.n_elements(), zero.map_or(0, TensorView::n_elements)];
    let n_scales = (Size::of(weights.n_blocks()) * columns).get(WHAT)?;
    for (count, what) in [(Some(counts[1]), "scales"), (zero.map(|_| counts[2]), "zero points")] {
        if let Some(count) = count.filter(|&count| k > 0 && count != 1 && count != n_scales) {
            let blocks = weights.n_blocks();
            return Err(Error::invalid(format!("{count} {what} for {blocks} blocks of {columns} columns")));
        }
    }
    let bias = request.input(BIAS).map(TensorView::n_elements);
    if let Some(n) = bias.filter(|&n| n != columns) {
        return Err(Error::invalid(format!("a bias of {n} for {columns} columns")));
    }
    let (activation, rest) = match Quick::of(Activation::of(&request.attrs)?) {
        Ok(quick) => (quick, None),
        Err(other) => (Quick::None, Some((finish(request.device.isa), other))),
    };
    let by_block = weights.n_of_blocks();
    let sizes = [weights.panels.size(), by_block * 4, by_block];
    let scratch = if rows <= FEW { 0 } else { TERMS.min(k) * weights.panels.widest() * tiles.lanes };
    let mut room = Size::of(scratch * 4) * request.host.n_slots();
    let mut parts = [Part::Absent; 3];
    // A sum of nothing has no weights.
    let operands = if k == 0 { [None; 3] } else { [Some(b), Some(scale), zero] };
    for (part, (operand, size)) in parts.iter_mut().zip(operands.into_iter().zip(sizes)) {
        let Some(operand) = operand else { continue };
        let size = size.get(WHAT)?;
        *part = if request.abi_minor >= 2 && operand.constant().is_some() && size > 0 {
            Part::Packed
        } else {
            let at = room.get(WHAT)?.next_multiple_of(64);
            room = Size::of(at) + size;
            Part::Packs { at, size }
        };
    }
    let small = SmallTiles::of(request.device.isa, weights.stored);
    let (host, has_bias, has_room) = (request.host, bias.is_some(), room.get(WHAT)? > 0);
    let kernel = Small {
        host,
        weights,
        tiles,
        small,
        rows,
        parts,
        counts,
        has_bias,
        activation,
        rest,
        scratch,
        has_room,
    };
    let mut prepared = Prepared::new(kernel).with_room(room, 64)?;
    for (i, part) in parts.into_iter().enumerate() {
        if let Part::Packed = part {
            let name = weights.id(tiles.lanes, tiles.vectors);
            let id = layout_id(&[&[16, i as u64][..], &name].concat());
            let pack = move |src: &[u8], dst: &mut [u8]| pack(&weights, i, src, counts[i], dst);
            prepared = prepared.with_packed(B + i, id, sizes[i].get(WHAT)?, 64, pack);
        }
    }
    Ok(prepared)
}

/// Packs the `i`-th operand of the weights, of `n` elements.
fn pack(weights: &SmallPanels, i: usize, src: &[u8], n: usize, dst: &mut [u8]) -> Result<()> {
    match i {
        0 => weights.pack(src, dst),
        1 => weights.pack_scales(&to_f32s(src)?, as_f32s_mut(dst)?),
        _ => weights.pack_zeros(src, n, dst),
    }
}

/// Addresses of a launch.
struct Addresses {
    x: SendPtr<f32>,
    y: SendPtr<f32>,
    bias: SendPtr<f32>,
    bytes: SendPtr<u8>,
    scales: SendPtr<f32>,
    zeros: SendPtr<u8>,
    scratch: SendPtr<f32>,
}

impl Launch<CpuDevice> for Small {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let input =
            |i: usize| operands.input_refs().get(i).map_or(std::ptr::null_mut(), |x| x.addr as *mut u8);
        let mut weights = [B, SCALE, ZERO].map(input);
        let x = input(A);
        let bias = if self.has_bias { input(BIAS) } else { std::ptr::null_mut() };
        let y = operands.output_ptr::<f32>(0);
        let workspace = if self.has_room { operands.workspace_ptr::<u8>() } else { std::ptr::null_mut() };
        for (i, part) in self.parts.into_iter().enumerate() {
            weights[i] = match part {
                Part::Packed => weights[i],
                Part::Absent => std::ptr::null_mut(),
                Part::Packs { at, size } => {
                    let bits = [self.weights.bits(), 32, self.weights.bits()][i];
                    let to = workspace.wrapping_add(at);
                    // SAFETY: the operand has so many elements, and the workspace, which is this launch's, room for what is
                    // packed of them.
                    let (src, dst) = unsafe {
                        (slice(weights[i], (self.counts[i] * bits).div_ceil(8)), slice_mut(to, size))
                    };
                    pack(&self.weights, i, src, self.counts[i], dst)?;
                    to
                }
            };
        }
        let addresses = Addresses {
            x: SendPtr(x.cast()),
            y: SendPtr(y),
            bias: SendPtr(bias.cast()),
            bytes: SendPtr(weights[0]),
            scales: SendPtr(weights[1].cast()),
            zeros: SendPtr(weights[2]),
            scratch: SendPtr(workspace.cast()),
        };
        let blocks = if self.is_few() { 1 } else { self.rows.div_ceil(ROWS) };
        let panels = self.weights.panels.n;
        let width = self.weights.panels.widest() * self.tiles.lanes;
        let flops = Size::of(2 * self.rows.div_ceil(blocks.max(1))) * width * self.weights.k;
        let grain = (GRAIN / flops.saturated().max(1)).max(1);
        self.host.parallel_for(blocks * panels, grain, |units, slot| {
            let mut pace = self.host.pace();
            for unit in units {
                let (panel, block) = (unit % panels, unit / panels);
                let rows = [block, block + 1].map(|block| self.rows * block / blocks);
                // SAFETY: units write disjoint parts of the result, a slot works on one unit at a time, and the weights are
                // packed.
                unsafe { self.unit(rows, panel, slot, &addresses, &mut pace)? };
            }
            Ok(())
        })
    }
}

/// Bytes of an operand; nothing may have no address.
///
/// # Safety
/// There are so many bytes, which nobody writes.
unsafe fn slice<'a>(from: *const u8, len: usize) -> &'a [u8] {
    // SAFETY: there are so many bytes (# Safety).
    if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(from, len) } }
}

/// Bytes of the workspace; nothing may have no address.
///
/// # Safety
/// There are so many bytes, which nobody else touches.
unsafe fn slice_mut<'a>(from: *mut u8, len: usize) -> &'a mut [u8] {
    // SAFETY: there are so many bytes (# Safety).
    if len == 0 { &mut [] } else { unsafe { std::slice::from_raw_parts_mut(from, len) } }
}

impl Small {
    /// Returns whether all rows are made from weights in registers.
    fn is_few(&self) -> bool {
        self.rows <= FEW || self.weights.k == 0
    }

    /// One panel of columns, some rows.
    ///
    /// # Safety
    /// The addresses are the launch's, of packed weights; no other thread works on these rows of these columns, or in this slot.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    unsafe fn unit(
        &self,
        [begin, end]: [usize; 2],
        at: usize,
        slot: usize,
        addresses: &Addresses,
        pace: &mut Pace<'_>,
    ) -> Result<()> {
        let weights = &self.weights;
        let (k, vectors) = (weights.k, weights.panels.vectors(at).len());
        let (column, columns) = weights.panels.columns(at);
        let panel = Panel {
            bytes: addresses.bytes.at(weights.panels.at(at)),
            scales: addresses.scales.at(column),
            zeros: if addresses.zeros.0.is_null() { std::ptr::null() } else { addresses.zeros.at(column) },
            zero: weights.zero(),
            stride: weights.panels.padded(),
            block: weights.block,
        };
        let bias = if addresses.bias.0.is_null() { std::ptr::null() } else { addresses.bias.at(column) };
        let y_of = |row: usize| addresses.y.at(row * weights.columns + column);
        if self.is_few() {
            // As many groups as there must be, and as even as they can be.
            let n = (end - begin).div_ceil(small_tile::ROWS_MAX);
            for group in 0..n {
                let [row, end] = [group, group + 1].map(|group| begin + (end - begin) * group / n);
                pace.work((end - row) * k * vectors * self.tiles.lanes)?;
                let job = small_tile::Job {
                    panel,
                    k,
                    x: addresses.x.at(row * k),
                    x_stride: k,
                    y: y_of(row),
                    y_stride: weights.columns,
                    columns,
                    bias,
                    activation: self.activation,
                };
                // SAFETY: the rows and the panel have these terms, and the rows are this thread's (# Safety).
                unsafe { self.small.rows(vectors, end - row, &job) };
            }
        } else {
            let wide = addresses.scratch.at(slot * self.scratch);
            let n = (end - begin).div_ceil(self.tiles.rows(vectors));
            for k0 in (0..k).step_by(TERMS) {
                let len = TERMS.min(k - k0);
                pace.work(len * vectors * self.tiles.lanes)?;
                // SAFETY: the panel has these terms, of which the first one is even, and the slot has room for them.
                unsafe { self.small.widen(vectors, &panel, [k0, k0 + len], wide) };
                for tile in 0..n {
                    let [row, end] = [tile, tile + 1].map(|tile| begin + (end - begin) * tile / n);
                    pace.work((end - row) * len * vectors * self.tiles.lanes)?;
                    let mut segment = Segment { len, k: 0, ..Segment::EMPTY };
                    for (row, from) in (row..end).zip(&mut segment.rows) {
                        *from = addresses.x.at(row * k + k0);
                    }
                    let tail = Tail { z: std::ptr::null(), activation: self.activation };
                    let job = Job {
                        segments: std::slice::from_ref(&segment),
                        weights: wide,
                        ahead: wide,
                        y: y_of(row),
                        stride: weights.columns,
                        columns,
                        bias,
                        adds: k0 > 0,
                        tail: Some(&tail).filter(|_| k0 + len == k),
                    };
                    // SAFETY: the rows and what was widened have these terms, and the tile is this thread's (# Safety).
                    unsafe { self.tiles.run(vectors, end - row, &job) };
                }
            }
        }
        let Some((finish, activation)) = self.rest else { return Ok(()) };
        let tile = Tile {
            x: y_of(begin),
            x_stride: weights.columns,
            y: y_of(begin),
            y_stride: weights.columns,
            rows: end - begin,
            columns,
            row_bias: std::ptr::null(),
            column_bias: std::ptr::null(),
            z: std::ptr::null(),
            beta: 1.0,
        };
        // SAFETY: the rows and columns are this unit's.
        unsafe { finish(tile, activation) };
        Ok(())
    }
}
