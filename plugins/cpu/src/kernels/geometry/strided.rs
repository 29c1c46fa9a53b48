//! Copies from a strided view to dense memory: what Transpose, Slice, Expand, Tile, DepthToSpace and
//! SpaceToDepth are.
//!
//! [`StridedCopy::new`] drops extents of 1, merges neighbours that move together, and works in bytes
//! from then on, so that elements of one size share one loop and a short contiguous run is one larger
//! element. There remains a grid of two-dimensional blocks, and one of four loops runs on each:
//! contiguous runs, repeated elements, tiles that are transposed in registers, and plain strides. The
//! source may be read with any stride, 0 and negative ones included; the destination is written once,
//! in row-major order.

use crate::kernels::geometry::walk::{Position, Walk};
use devbay_plugin_api::sdk::{Error, Host, Result, SendPtr};

/// Bytes of a chunk: handing one over costs little beside copying it.
pub(crate) const GRAIN_BYTES: usize = 128 * 1024;
/// Bytes of a chunk that is copied element by element, which takes about four times as long.
const SCATTERED_GRAIN_BYTES: usize = GRAIN_BYTES / 4;

/// Bytes of a block, so that a block whose rows are not contiguous stays in the first cache level.
const BLOCK_BYTES: usize = 16 * 1024;

/// Bytes of a line of the cache.
const LINE: usize = 64;
/// Elements on a side of a transposed block: at least a cache line of any element size.
const TILE: usize = 64;

/// One dimension: its extent, and the distance in bytes between neighbours in source and destination.
#[derive(Clone, Copy, Default, Debug)]
struct Dim {
    n: usize,
    from: isize,
    to: isize,
}

/// A block in two dimensions; the columns are contiguous in the destination.
struct Block {
    rows: usize,
    cols: usize,
    from_row: isize,
    from_col: isize,
    to_row: isize,
}

type BlockFn = unsafe fn(from: *const u8, to: *mut u8, block: &Block);

/// A prepared copy.
pub(crate) struct StridedCopy {
    host: Host,
    /// Byte of the source where the first element is.
    start: isize,
    /// Dimensions outside the blocks, with bytes in source and destination.
    outer: Walk<2>,
    rows: Dim,
    cols: Dim,
    rows_per_block: usize,
    cols_per_block: usize,
    n_blocks: usize,
    /// Blocks of a chunk.
    grain: usize,
    body: BlockFn,
}

/// A block's place in the grid.
struct Cursor {
    outer: Position<2>,
    row: usize,
    col: usize,
}

impl StridedCopy {
    /// A copy of `shape` elements of `size` bytes. `strides` and `start` are in elements of the source;
    /// the destination is dense.
    ///
    /// # Errors
    /// Unsupported if too many dimensions are left after merging, or for elements of another size.
    pub(crate) fn new(
        host: Host,
        size: usize,
        shape: &[usize],
        strides: &[isize],
        start: isize,
    ) -> Result<Self> {
        let n: usize = shape.iter().product();
        let mut dims = merged(size, shape, strides);
        // The unit that moves as one: an element, or a short run of them.
        let mut unit = size;
        if let [_, .., last] = dims[..] {
            let run = last.n * size;
            if last.from == size as isize && run <= 16 && run.is_power_of_two() {
                unit = run;
                dims.pop();
            }
        }
        let (kind, rows, cols) = take_block(&mut dims, unit);
        let [rows_per_block, cols_per_block] = block_extents(kind, rows, cols, unit);
        let outer = Walk::new(dims.iter().map(|dim| (dim.n, [dim.from, dim.to])))?;
        let n_blocks = match n {
            0 => 0,
            _ => outer.len() * rows.n.div_ceil(rows_per_block) * cols.n.div_ceil(cols_per_block),
        };
        let block_bytes = rows_per_block * cols_per_block * cols.to as usize;
        let grain_bytes = match kind {
            Kind::Runs | Kind::Repeats => GRAIN_BYTES,
            Kind::Tiles | Kind::Strides => SCATTERED_GRAIN_BYTES,
        };
        Ok(Self {
            host,
            start: start * size as isize,
            outer,
            rows,
            cols,
            rows_per_block,
            cols_per_block,
            n_blocks,
            grain: (grain_bytes / block_bytes.max(1)).max(1),
            body: body(kind, unit)?,
        })
    }

    /// Copies.
    ///
    /// # Errors
    /// Errors of the host's loop.
    ///
    /// # Safety
    /// 1. Every element of the view that `new` was told lies within the memory at `from`.
    /// 2. The memory at `to` holds as many elements, is not shared with `from`, and nothing else uses it.
    pub(crate) unsafe fn run(&self, from: *const u8, to: *mut u8) -> Result<()> {
        let from = SendPtr(from.cast_mut());
        let to = SendPtr(to);
        self.host.parallel_for(self.n_blocks, self.grain, |range, _| {
            let mut cursor = self.cursor(range.start);
            for _ in range {
                let block = Block {
                    rows: (self.rows.n - cursor.row).min(self.rows_per_block),
                    cols: (self.cols.n - cursor.col).min(self.cols_per_block),
                    from_row: self.rows.from,
                    from_col: self.cols.from,
                    to_row: self.rows.to,
                };
                let (from_at, to_at) = self.address(&cursor);
                let source = from.at(0).wrapping_offset(from_at);
                let target = to.at(0).wrapping_offset(to_at);
                // SAFETY: the block lies within the view and the destination (1, 2), and blocks do
                // not overlap.
                unsafe { (self.body)(source, target, &block) };
                self.advance(&mut cursor);
            }
            Ok(())
        })
    }

    /// The position of block `index`.
    fn cursor(&self, index: usize) -> Cursor {
        let mut rest = index;
        let mut take = |n: usize| {
            let position = rest % n;
            rest /= n;
            position
        };
        let col = take(self.cols.n.div_ceil(self.cols_per_block)) * self.cols_per_block;
        let row = take(self.rows.n.div_ceil(self.rows_per_block)) * self.rows_per_block;
        Cursor { outer: self.outer.position(rest), row, col }
    }

    /// The next block.
    fn advance(&self, cursor: &mut Cursor) {
        cursor.col += self.cols_per_block;
        if cursor.col < self.cols.n {
            return;
        }
        cursor.col = 0;
        cursor.row += self.rows_per_block;
        if cursor.row < self.rows.n {
            return;
        }
        cursor.row = 0;
        self.outer.advance(&mut cursor.outer);
    }

    /// Bytes from the operands' beginnings to a block.
    fn address(&self, cursor: &Cursor) -> (isize, isize) {
        let (row, col) = (cursor.row as isize, cursor.col as isize);
        let [from, to] = cursor.outer.offsets;
        (
            self.start + from + row * self.rows.from + col * self.cols.from,
            to + row * self.rows.to + col * self.cols.to,
        )
    }
}

/// The dimensions of a copy in bytes: without extents of 1, and with neighbours that move together as one.
fn merged(size: usize, shape: &[usize], strides: &[isize]) -> Vec<Dim> {
    let mut dims: Vec<Dim> = Vec::with_capacity(shape.len());
    let mut to = size as isize;
    for (&n, &stride) in shape.iter().zip(strides).rev() {
        let dim = Dim { n, from: stride * size as isize, to };
        to *= n as isize;
        match dims.last_mut() {
            _ if n == 1 => {}
            Some(inner) if dim.from == inner.from * inner.n as isize => inner.n *= n,
            _ => dims.push(dim),
        }
    }
    dims.reverse();
    dims
}

/// Takes the two dimensions of the blocks out of `dims`, and says what is done with them.
fn take_block(dims: &mut Vec<Dim>, unit: usize) -> (Kind, Dim, Dim) {
    let signed = unit as isize;
    let one = Dim { n: 1, from: 0, to: 0 };
    let cols = dims.pop().unwrap_or(Dim { n: 1, from: signed, to: signed });
    // Columns of the source, if they are not those of the destination.
    let source_cols = dims.iter().rposition(|dim| dim.from == signed);
    let kind = match (cols.from, source_cols) {
        (from, _) if from == signed => Kind::Runs,
        (0, _) => Kind::Repeats,
        (_, Some(_)) => Kind::Tiles,
        (_, None) => Kind::Strides,
    };
    let rows = match source_cols {
        Some(i) if kind == Kind::Tiles => dims.remove(i),
        // Short rows are worth a long second dimension, wherever it is.
        _ if dims.last().is_some_and(|dim| dim.n * cols.n < 32) => {
            let longest = (0..dims.len()).max_by_key(|&i| dims[i].n).unwrap_or(0);
            dims.remove(longest)
        }
        _ => dims.pop().unwrap_or(one),
    };
    let cols = match kind {
        // Runs are counted in bytes.
        Kind::Runs => Dim { n: cols.n * unit, from: 1, to: 1 },
        _ => cols,
    };
    (kind, rows, cols)
}

/// Rows and columns of a block.
fn block_extents(kind: Kind, rows: Dim, cols: Dim, unit: usize) -> [usize; 2] {
    let cols_max = match kind {
        Kind::Runs => GRAIN_BYTES,
        Kind::Tiles => TILE,
        Kind::Repeats | Kind::Strides => BLOCK_BYTES / unit,
    };
    let cols_per_block = cols.n.min(cols_max);
    let rows_max = match kind {
        Kind::Tiles => TILE,
        _ => BLOCK_BYTES / (cols_per_block * cols.to as usize).max(1),
    };
    [rows.n.min(rows_max.max(1)), cols_per_block]
}

/// Operation on a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Rows are contiguous on both sides.
    Runs,
    /// Each row is one element, repeated.
    Repeats,
    /// Columns of the source are contiguous: a transposition.
    Tiles,
    /// Neither.
    Strides,
}

fn body(kind: Kind, unit: usize) -> Result<BlockFn> {
    Ok(match (kind, unit) {
        (Kind::Runs, _) => runs,
        (Kind::Repeats, 1) => repeats::<u8>,
        (Kind::Repeats, 2) => repeats::<u16>,
        (Kind::Repeats, 4) => repeats::<u32>,
        (Kind::Repeats, 8) => repeats::<u64>,
        (Kind::Repeats, 16) => repeats::<u128>,
        (Kind::Tiles, 1) => tiles::<u8, 16>,
        (Kind::Tiles, 2) => tiles::<u16, 8>,
        (Kind::Tiles, 4) => tiles::<u32, 4>,
        (Kind::Tiles, 8) => tiles::<u64, 2>,
        // Elements as large as a vector have no use for one.
        (Kind::Tiles | Kind::Strides, 16) => strides::<u128>,
        (Kind::Strides, 1) => strides::<u8>,
        (Kind::Strides, 2) => strides::<u16>,
        (Kind::Strides, 4) => strides::<u32>,
        (Kind::Strides, 8) => strides::<u64>,
        _ => {
            return Err(Error::unsupported(format!("elements of {unit} bytes, expected 1, 2, 4, 8 or 16")));
        }
    })
}

/// Copies contiguous rows; columns are bytes.
///
/// # Safety
/// Source and destination hold the block, and are apart.
unsafe fn runs(from: *const u8, to: *mut u8, block: &Block) {
    for row in 0..block.rows as isize {
        // SAFETY: the row lies within the block.
        unsafe {
            copy_run(
                from.wrapping_offset(row * block.from_row),
                to.wrapping_offset(row * block.to_row),
                block.cols,
            );
        }
    }
}

/// Copies `n` bytes; a short run is two loads and stores that overlap, for which a call costs too much.
///
/// # Safety
/// `from` and `to` hold `n` bytes each, and are apart.
#[inline(always)]
pub(crate) unsafe fn copy_run(from: *const u8, to: *mut u8, n: usize) {
    macro_rules! ends {
        ($unit:ty) => {{
            let last = n - size_of::<$unit>();
            // SAFETY: `n` is at least the size of the unit.
            let head = unsafe { from.cast::<$unit>().read_unaligned() };
            // SAFETY: `n` is at least the size of the unit, so these are the last bytes.
            let tail = unsafe { from.add(last).cast::<$unit>().read_unaligned() };
            // SAFETY: `to` holds as many bytes.
            unsafe { to.cast::<$unit>().write_unaligned(head) };
            // SAFETY: `to` holds as many bytes, of which these are the last.
            unsafe { to.add(last).cast::<$unit>().write_unaligned(tail) };
        }};
    }
    match n {
        // SAFETY: `from` and `to` hold `n` bytes each, and are apart (# Safety).
        257.. => unsafe { core::ptr::copy_nonoverlapping(from, to, n) },
        // A call takes longer than some vectors, of which the last may overlap.
        33.. => {
            for at in (0..n - 32).step_by(32).chain([n - 32]) {
                // SAFETY: there are 32 bytes from here, on both sides.
                unsafe {
                    let bytes = from.add(at).cast::<[u64; 4]>().read_unaligned();
                    to.add(at).cast::<[u64; 4]>().write_unaligned(bytes);
                }
            }
        }
        16.. => ends!(u128),
        8.. => ends!(u64),
        4.. => ends!(u32),
        2.. => ends!(u16),
        1 => ends!(u8),
        0 => {}
    }
}

/// Repeats one element for each row.
///
/// # Safety
/// As [`runs`]; `U` has the unit's size.
unsafe fn repeats<U: Copy>(from: *const u8, to: *mut u8, block: &Block) {
    for row in 0..block.rows as isize {
        let source = from.wrapping_offset(row * block.from_row).cast::<U>();
        // SAFETY: the row's element lies within the block.
        let value = unsafe { source.read_unaligned() };
        let target = to.wrapping_offset(row * block.to_row).cast::<U>();
        // SAFETY: the row lies within the block.
        unsafe { fill(target, block.cols, value) };
    }
}

/// Writes `value` to `n` elements.
///
/// # Safety
/// `to` holds `n` elements; it need not be aligned.
#[inline(always)]
pub(crate) unsafe fn fill<U: Copy>(to: *mut U, n: usize, value: U) {
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        unsafe { to.add(i).write_unaligned(value) };
    }
}

/// Copies elements that lie apart in the source.
///
/// # Safety
/// As [`repeats`].
unsafe fn strides<U: Copy>(from: *const u8, to: *mut u8, block: &Block) {
    let size = size_of::<U>() as isize;
    for row in 0..block.rows as isize {
        let source = from.wrapping_offset(row * block.from_row);
        let target = to.wrapping_offset(row * block.to_row);
        // The compiler makes vectors of a reversal only if it knows that it is one.
        if block.from_col == -size {
            // SAFETY: the row lies within the block.
            unsafe { strided_row::<U>(source, -size, target, block.cols) };
        } else {
            // SAFETY: the row lies within the block.
            unsafe { strided_row::<U>(source, block.from_col, target, block.cols) };
        }
    }
}

#[inline(always)]
unsafe fn strided_row<U: Copy>(from: *const u8, stride: isize, to: *mut u8, n: usize) {
    for col in 0..n {
        let source = from.wrapping_offset(col as isize * stride).cast::<U>();
        // SAFETY: the caller lends `n` elements.
        let value = unsafe { source.read_unaligned() };
        // SAFETY: `col` is below `n`, and `to` has room for `n` elements.
        unsafe { to.cast::<U>().add(col).write_unaligned(value) };
    }
}

/// Transposes a matrix of 32-bit elements that has `to` columns of contiguous `from`: `to[row * to_stride + column] =
/// from[column * from_stride + row]`.
///
/// # Safety
/// `from` and `to` hold these elements, and are apart.
pub(crate) unsafe fn transpose(
    from: *const f32,
    from_stride: usize,
    to: *mut f32,
    to_stride: usize,
    [rows, cols]: [usize; 2],
) {
    let bytes = |stride: usize| (stride * size_of::<f32>()) as isize;
    let block =
        Block { rows, cols, from_row: bytes(1), from_col: bytes(from_stride), to_row: bytes(to_stride) };
    // SAFETY: `from` and `to` hold the matrix's elements, and are apart (# Safety).
    unsafe { tiles::<u32, 4>(from.cast(), to.cast(), &block) };
}

/// Transposes: rows of the block are neighbours in the source, columns in the destination. `T` elements
/// make a vector of 16 bytes, which every x86-64 and aarch64 has; wider ones gain nothing, because memory is slower.
///
/// # Safety
/// As [`repeats`].
unsafe fn tiles<U: Copy, const T: usize>(from: *const u8, to: *mut u8, block: &Block) {
    let (rows, cols) = (block.rows / T * T, block.cols / T * T);
    let source = |row: usize, col: usize| {
        from.wrapping_offset(row as isize * block.from_row + col as isize * block.from_col)
    };
    let target = |row: usize, col: usize| {
        to.wrapping_offset(row as isize * block.to_row).wrapping_add(col * size_of::<U>())
    };
    // Lines of a cache that are far apart push each other out of it. So those of the side with the larger steps are finished one
    // after the other: the source's as they come, the target's by going through as many columns as fill a line.
    let width =
        if block.to_row.unsigned_abs() > block.from_col.unsigned_abs() { LINE / size_of::<U>() } else { T };
    for first in (0..cols).step_by(width) {
        for row in (0..rows).step_by(T) {
            for col in (first..cols.min(first + width)).step_by(T) {
                let (source, target) = (source(row, col), target(row, col));
                // SAFETY: the square lies within the block.
                unsafe { square::<U, T>(source, block.from_col, target, block.to_row) };
            }
        }
    }
    for row in rows..block.rows {
        // SAFETY: the row lies within the block.
        unsafe { strided_row::<U>(source(row, 0), block.from_col, target(row, 0), cols) };
    }
    let rest = block.cols - cols;
    for row in 0..block.rows {
        let (source, target) = (source(row, cols), target(row, cols));
        // SAFETY: the end of the row lies within the block.
        unsafe { strided_row::<U>(source, block.from_col, target, rest) };
    }
}

/// Transposes `T` by `T` elements: interleaving the halves of a list of vectors log2(T) times does it.
///
/// # Safety
/// `T` elements can be read at each of `T` strides from `from`, and written likewise at `to`.
#[inline(always)]
unsafe fn square<U: Copy, const T: usize>(from: *const u8, from_col: isize, to: *mut u8, to_row: isize) {
    // SAFETY: the caller lends `T` elements there, 16 bytes.
    let mut vectors = [unsafe { vector::load(from) }; T];
    for (i, vector) in vectors.iter_mut().enumerate().skip(1) {
        // SAFETY: the caller lends `T` elements there, 16 bytes.
        *vector = unsafe { vector::load(from.wrapping_offset(i as isize * from_col)) };
    }
    let mut distance = 1;
    while distance < T {
        let before = vectors;
        for i in 0..T / 2 {
            (vectors[2 * i], vectors[2 * i + 1]) =
                vector::interleave(size_of::<U>(), before[i], before[i + T / 2]);
        }
        distance *= 2;
    }
    for (i, vector) in vectors.iter().enumerate() {
        let target = to.wrapping_offset(i as isize * to_row);
        // SAFETY: the caller lends `T` elements there, 16 bytes.
        unsafe { vector::store(target, *vector) };
    }
}

/// Vectors of 16 bytes: SSE2, which belongs to the target.
#[cfg(target_arch = "x86_64")]
mod vector {
    use core::arch::x86_64::*;

    pub type Vector = __m128i;

    /// # Safety
    /// There are 16 bytes.
    #[inline(always)]
    pub unsafe fn load(from: *const u8) -> Vector {
        // SAFETY: there are 16 bytes (# Safety).
        unsafe { _mm_loadu_si128(from.cast()) }
    }

    /// # Safety
    /// There is room for 16 bytes.
    #[inline(always)]
    pub unsafe fn store(to: *mut u8, vector: Vector) {
        // SAFETY: there is room for 16 bytes (# Safety).
        unsafe { _mm_storeu_si128(to.cast(), vector) }
    }

    /// Elements of both in turn: the lower halves', and the upper halves'.
    #[inline(always)]
    pub fn interleave(element_bytes: usize, a: Vector, b: Vector) -> (Vector, Vector) {
        // SAFETY: SSE2 belongs to the target.
        unsafe {
            match element_bytes {
                1 => (_mm_unpacklo_epi8(a, b), _mm_unpackhi_epi8(a, b)),
                2 => (_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)),
                4 => (_mm_unpacklo_epi32(a, b), _mm_unpackhi_epi32(a, b)),
                _ => (_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b)),
            }
        }
    }
}

/// Vectors of 16 bytes: NEON, which belongs to the target.
#[cfg(target_arch = "aarch64")]
mod vector {
    use core::arch::aarch64::*;

    pub type Vector = uint8x16_t;

    /// # Safety
    /// There are 16 bytes.
    #[inline(always)]
    pub unsafe fn load(from: *const u8) -> Vector {
        // SAFETY: there are 16 bytes (# Safety).
        unsafe { vld1q_u8(from) }
    }

    /// # Safety
    /// There is room for 16 bytes.
    #[inline(always)]
    pub unsafe fn store(to: *mut u8, vector: Vector) {
        // SAFETY: there is room for 16 bytes (# Safety).
        unsafe { vst1q_u8(to, vector) }
    }

    /// Elements of both in turn: the lower halves', and the upper halves'.
    #[inline(always)]
    pub fn interleave(element_bytes: usize, a: Vector, b: Vector) -> (Vector, Vector) {
        macro_rules! zipped {
            ($to:ident, $low:ident, $high:ident, $back:ident) => {{
                let (a, b) = ($to(a), $to(b));
                ($back($low(a, b)), $back($high(a, b)))
            }};
        }
        // SAFETY: NEON belongs to the target.
        unsafe {
            match element_bytes {
                1 => (vzip1q_u8(a, b), vzip2q_u8(a, b)),
                2 => zipped!(vreinterpretq_u16_u8, vzip1q_u16, vzip2q_u16, vreinterpretq_u8_u16),
                4 => zipped!(vreinterpretq_u32_u8, vzip1q_u32, vzip2q_u32, vreinterpretq_u8_u32),
                _ => zipped!(vreinterpretq_u64_u8, vzip1q_u64, vzip2q_u64, vreinterpretq_u8_u64),
            }
        }
    }
}

/// Vectors of 16 bytes, for other processors.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod vector {
    pub type Vector = [u8; 16];

    /// # Safety
    /// There are 16 bytes.
    #[inline(always)]
    pub unsafe fn load(from: *const u8) -> Vector {
        // SAFETY: there are 16 bytes (# Safety).
        unsafe { from.cast::<Vector>().read() }
    }

    /// # Safety
    /// There is room for 16 bytes.
    #[inline(always)]
    pub unsafe fn store(to: *mut u8, vector: Vector) {
        // SAFETY: there is room for 16 bytes (# Safety).
        unsafe { to.cast::<Vector>().write(vector) }
    }

    /// Elements of both in turn: the lower halves', and the upper halves'.
    #[inline(always)]
    pub fn interleave(element_bytes: usize, a: Vector, b: Vector) -> (Vector, Vector) {
        let half = |first: usize| {
            core::array::from_fn(|i| {
                let (element, byte) = (i / element_bytes, i % element_bytes);
                let source = if element % 2 == 0 { &a } else { &b };
                source[first + element / 2 * element_bytes + byte]
            })
        };
        (half(0), half(8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::testing::Chance;

    fn check(size: usize, shape: &[usize], strides: &[isize], start: isize, source_len: usize) {
        let source: Vec<u8> = (0..source_len * size).map(|i| (i * 7 + i / 251) as u8).collect();
        let n: usize = shape.iter().product();
        let mut found = vec![0xa5u8; n * size];
        let copy = StridedCopy::new(Host::none(), size, shape, strides, start).expect("prepare");
        // SAFETY: the callers keep the view within `source_len` elements.
        unsafe { copy.run(source.as_ptr(), found.as_mut_ptr()) }.expect("run");
        let mut expected = Vec::with_capacity(n * size);
        for i in 0..n {
            let (mut rest, mut at) = (i, start);
            for (&extent, &stride) in shape.iter().zip(strides).rev() {
                at += (rest % extent) as isize * stride;
                rest /= extent;
            }
            let at = at as usize * size;
            expected.extend_from_slice(&source[at..at + size]);
        }
        assert!(found == expected, "size {size}, shape {shape:?}, strides {strides:?}, start {start}");
    }

    /// Permuted, reversed, skipped and repeated dimensions of random extents.
    #[test]
    fn random_views_are_copied_like_a_naive_loop_does() {
        let mut random = Chance::new(1);
        for round in 0..1500 {
            let size = 1 << random.below(4);
            let rank = random.below(6);
            let max = [200, 200, 60, 14, 8, 6][rank];
            let full: Vec<usize> = (0..rank).map(|_| 1 + random.below(max)).collect();
            let mut strides = vec![1isize; rank];
            for i in (1..rank).rev() {
                strides[i - 1] = strides[i] * full[i] as isize;
            }
            let len = full.iter().product::<usize>();
            let (mut shape, mut start) = (full.clone(), 0);
            for i in 0..rank {
                match random.below(8) {
                    0 => {
                        start += strides[i] * (full[i] as isize - 1);
                        strides[i] = -strides[i];
                    }
                    1 => {
                        shape[i] = full[i].div_ceil(2);
                        strides[i] *= 2;
                    }
                    2 => strides[i] = 0,
                    3 if round % 50 == 0 => shape[i] = 0,
                    _ => {}
                }
            }
            for i in (1..rank).rev() {
                let k = random.below(i + 1);
                shape.swap(i, k);
                strides.swap(i, k);
            }
            check(size, &shape, &strides, start, len);
        }
    }

    #[test]
    fn large_transpositions_and_runs_are_cut_into_blocks() {
        check(4, &[300, 517], &[1, 300], 0, 300 * 517);
        check(1, &[130, 3, 131], &[1, 130, 390], 0, 130 * 3 * 131);
        check(4, &[2, 100_003], &[100_010, 1], 5, 2 * 100_010);
        check(8, &[3, 40_000], &[40_000, -1], 39_999, 3 * 40_000);
        check(2, &[70_001], &[0], 1, 2);
    }
}
