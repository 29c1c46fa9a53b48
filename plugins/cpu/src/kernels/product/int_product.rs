//! Exact products of matrices of 8-bit integers, in f32.
//!
//! An 8-bit number less its zero point is at most 255 from 0, so that a product is at most 65,025 and a
//! sum of 256 products less than 2^24: f32 holds all of it exactly, however it is rounded, and every
//! instruction set gives the same bits. Deeper products are cut into blocks of that depth, which are
//! summed as i32. Floating-point multiply-add is as fast as multiplying pairs of i16 where there are
//! vectors of the same width, and needs no other loops than other matrix products.
//!
//! The left matrix is made f32 before; the right one a panel at a time, beside the block it is used for.

use crate::dispatch;
use crate::isa::{Arith, Isa};
use crate::lanes::Lanes;
use devbay_plugin_api::sdk::{DType, Element, Error, I8, PrepareRequest, Result, U8};

/// Depth of a block: 256 times 65,025 is below 2^24.
pub(crate) const DEPTH: usize = 256;

/// Most columns of a panel.
pub(crate) const COLS_MAX: usize = 32;

/// Bytes of a panel.
pub(crate) const PANEL_BYTES: usize = DEPTH * COLS_MAX * size_of::<f32>();

/// Rows of a product that one chunk makes from a panel: enough that filling the panel costs little.
pub(crate) const ROWS: usize = 128;

/// An 8-bit integer.
pub(crate) trait Small: Element + Into<f32> + Sync {
    /// Reads a vector of them.
    ///
    /// # Safety
    /// As [`Lanes::load`], with bytes.
    unsafe fn load<L: Lanes>(from: *const Self) -> L;
}

impl Small for u8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: `from` holds a vector of bytes, and the processor has the instructions (# Safety).
        unsafe { L::load_u8(from) }
    }
}

impl Small for i8 {
    #[inline(always)]
    unsafe fn load<L: Lanes>(from: *const Self) -> L {
        // SAFETY: `from` holds a vector of bytes, and the processor has the instructions (# Safety).
        unsafe { L::load_i8(from) }
    }
}

/// The dtypes of quantised numbers.
pub(crate) const SMALL: &[DType] = &[U8, I8];

/// The zero points of an operand: none, one, or one for each of its rows or columns.
#[derive(Clone, Copy)]
pub(crate) struct Zeros {
    signed: bool,
    /// Number of them; 0 if they are absent.
    n: usize,
}

impl Zeros {
    /// Input `i`, of which there may be one or one of the numbers in `counts`.
    ///
    /// # Errors
    /// Invalid for another number.
    pub(crate) fn new<D>(request: &PrepareRequest<'_, D>, i: usize, counts: &[usize]) -> Result<Self> {
        let Some(tensor) = request.input(i) else {
            return Ok(Self { signed: false, n: 0 });
        };
        let n = tensor.n_elements();
        if n != 1 && !counts.contains(&n) {
            return Err(Error::invalid(format!(
                "input {i} has {n} zero points, expected 1 or one of {counts:?}"
            )));
        }
        Ok(Self { signed: tensor.dtype() == I8, n })
    }

    /// The zero point of row or column `i`.
    ///
    /// # Safety
    /// `zeros` is the operand that `new` was told.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, zeros: *const u8, i: usize) -> f32 {
        if self.n == 0 {
            return 0.0;
        }
        // SAFETY: the remainder is below the number of zero points.
        let byte = unsafe { zeros.add(i % self.n).read() };
        match self.signed {
            true => f32::from(byte as i8),
            false => f32::from(byte),
        }
    }
}

/// Columns of a panel: two vectors.
pub(crate) fn panel_cols(isa: Isa) -> usize {
    2 * isa.lanes()
}

/// Writes `n` small integers less their zero point as f32.
///
/// # Safety
/// `from` and `to` hold `n` elements, and the processor has the instructions.
#[inline(always)]
pub(crate) unsafe fn widen_body<A: Arith, T: Small>(from: *const u8, zero: f32, to: *mut f32, n: usize) {
    let (from, width) = (from.cast::<T>(), A::Lanes::N);
    if n < width {
        for i in 0..n {
            // SAFETY: `i` is below `n`.
            let x: f32 = unsafe { from.add(i).read() }.into();
            // SAFETY: `i` is below `n`, which `to` holds.
            unsafe { to.add(i).write(x - zero) };
        }
        return;
    }
    // SAFETY: the processor has the instructions (# Safety).
    let zeros = unsafe { A::Lanes::splat(zero) };
    for i in (0..n / width).chain([n.div_ceil(width) - 1]) {
        // The last vector may overlap the one before: it writes the same there.
        let i = (i * width).min(n - width);
        // SAFETY: a whole vector from `i` lies within `n`.
        let x: A::Lanes = unsafe { T::load(from.add(i)) };
        // SAFETY: a whole vector from `i` lies within `n`, which `to` holds.
        unsafe { x.sub(zeros).store(to.add(i)) };
    }
}

dispatch! {
    /// Makes a row of small integers f32.
    pub(crate) fn widen<T: Small>(from: *const u8, zero: f32, to: *mut f32, n: usize) = widen_body
}

/// Fills a panel of `depth` rows of the right matrix; columns beyond `cols` are 0.
///
/// # Safety
/// `from` holds `depth` rows of `cols` elements that lie `stride` apart, `zeros` as many zero points as
/// a panel has columns, `panel` a whole panel, and the processor has the instructions.
#[inline(always)]
unsafe fn fill_panel_body<A: Arith, T: Small>(
    from: *const u8,
    stride: usize,
    depth: usize,
    cols: usize,
    zeros: *const f32,
    panel: *mut f32,
) {
    let (from, width) = (from.cast::<T>(), A::Lanes::N);
    let row = |k: usize| (from.wrapping_add(k * stride), panel.wrapping_add(k * 2 * width));
    if cols == 2 * width {
        // SAFETY: there are as many zero points as columns.
        let (low, high) = unsafe { (A::Lanes::load(zeros), A::Lanes::load(zeros.add(width))) };
        for k in 0..depth {
            let (from, to) = row(k);
            // SAFETY: the row of the matrix has two vectors of elements.
            let x: [A::Lanes; 2] = unsafe { [T::load(from), T::load(from.add(width))] };
            // SAFETY: the row of the panel has two vectors.
            unsafe { x[0].sub(low).store(to) };
            // SAFETY: the row of the panel has two vectors, and this is the second.
            unsafe { x[1].sub(high).store(to.add(width)) };
        }
        return;
    }
    for k in 0..depth {
        let (from, to) = row(k);
        for i in 0..cols {
            // SAFETY: the row of the matrix has `cols` elements, and `i` is below that.
            let x: f32 = unsafe { from.add(i).read() }.into();
            // SAFETY: there are as many zero points as columns.
            let zero = unsafe { zeros.add(i).read() };
            // SAFETY: `cols` is at most the panel's width.
            unsafe { to.add(i).write(x - zero) };
        }
        for i in cols..2 * width {
            // SAFETY: the row of the panel has two vectors.
            unsafe { to.add(i).write(0.0) };
        }
    }
}

dispatch! {
    /// Fills a panel from a row-major matrix.
    pub(crate) fn fill_panel<T: Small>(
        from: *const u8,
        stride: usize,
        depth: usize,
        cols: usize,
        zeros: *const f32,
        panel: *mut f32,
    ) = fill_panel_body
}

/// The product of rows of the left matrix with a panel of the right one.
pub(crate) struct Block {
    /// Rows of the left matrix that begin `left_stride` apart.
    pub(crate) left: *const f32,
    pub(crate) left_stride: usize,
    pub(crate) rows: usize,
    /// At most [`DEPTH`].
    pub(crate) depth: usize,
    pub(crate) panel: *const f32,
    /// Where rows of `cols` sums go, `out_stride` apart.
    pub(crate) out: *mut i32,
    pub(crate) out_stride: usize,
    pub(crate) cols: usize,
    /// True if the sums are added to what is there.
    pub(crate) adds: bool,
}

/// # Safety
/// Everything that the block names lies within its operands, no other code uses the output, and the processor has the
/// instructions.
#[inline(always)]
unsafe fn multiply_body<A: Arith>(block: &Block) {
    let whole = block.rows / 4 * 4;
    for row in (0..whole).step_by(4) {
        // SAFETY: the block's operands and its output are the caller's (# Safety), and `row + 4` is at most `rows`.
        unsafe { rows::<A, 4>(block, row) };
    }
    for row in whole..block.rows {
        // SAFETY: the block's operands and its output are the caller's (# Safety), and `row` is below `rows`.
        unsafe { rows::<A, 1>(block, row) };
    }
}

dispatch! {
    /// Multiplies a block.
    pub(crate) fn multiply(block: &Block) = multiply_body
}

/// `R` rows of a block: two vectors of sums for each stay in registers.
///
/// # Safety
/// As [`multiply_body`], and `row + R` is at most the block's rows.
#[inline(always)]
unsafe fn rows<A: Arith, const R: usize>(block: &Block, row: usize) {
    let width = A::Lanes::N;
    let left = block.left.wrapping_add(row * block.left_stride);
    // SAFETY: the processor has the instructions (# Safety).
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut sums = [[zero; 2]; R];
    for k in 0..block.depth {
        let right = block.panel.wrapping_add(k * 2 * width);
        // SAFETY: the panel has `depth` rows of two vectors.
        let right = unsafe { [A::Lanes::load(right), A::Lanes::load(right.add(width))] };
        for (i, sums) in sums.iter_mut().enumerate() {
            let x = left.wrapping_add(i * block.left_stride + k);
            // SAFETY: the row has `depth` elements.
            let x = unsafe { A::Lanes::splat(x.read()) };
            sums[0] = x.fma(right[0], sums[0]);
            sums[1] = x.fma(right[1], sums[1]);
        }
    }
    for (i, [low, high]) in sums.into_iter().enumerate() {
        let mut exact = [0.0; COLS_MAX];
        // SAFETY: two vectors are at most `COLS_MAX` numbers.
        unsafe { low.store(exact.as_mut_ptr()) };
        // SAFETY: two vectors are at most `COLS_MAX` numbers.
        unsafe { high.store(exact.as_mut_ptr().add(width)) };
        let out = block.out.wrapping_add((row + i) * block.out_stride);
        for (k, &sum) in exact[..block.cols].iter().enumerate() {
            // SAFETY: a sum of a block is an integer below 2^24.
            let sum = unsafe { sum.to_int_unchecked::<i32>() };
            // SAFETY: the row of the output has `cols` elements.
            let before = if block.adds { unsafe { out.add(k).read() } } else { 0 };
            // SAFETY: the row of the output has `cols` elements, and is no other thread's.
            unsafe { out.add(k).write(before.wrapping_add(sum)) };
        }
    }
}
