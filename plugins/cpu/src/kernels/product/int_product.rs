//! What products of 8-bit integers are made of: their zero points, rows of unsigned bytes, and panels of signed ones.
//!
//! The micro-kernel ([`int_tile`](super::int_tile)) multiplies unsigned bytes of rows with signed bytes of panels. A number of
//! the other sign is moved by 128, which flips its highest bit, and its zero point moves along.

use crate::dispatch;
use crate::isa::Arith;
use crate::kernels::numbers::convert::Kind;
use crate::kernels::product::int_tile::IntTiles;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::{DType, Error, I8, PrepareRequest, Result, U8};
use std::ops::Range;

/// The dtypes of quantised numbers.
pub(crate) const SMALL: &[DType] = &[U8, I8];

/// Distance between a signed byte and the unsigned one of the same bits but the highest.
pub(crate) const HALF: i32 = 128;

/// Flips what differs between numbers that are [`HALF`] apart; nothing if they need not be moved.
pub(crate) fn flip(moves: bool) -> u8 {
    if moves { 0x80 } else { 0 }
}

/// One of an operand's scales, as f32.
///
/// # Safety
/// There are more than `i` scales of that kind.
pub(crate) unsafe fn scale_at(kind: Kind, scales: *const u8, i: usize) -> f32 {
    // SAFETY: there are more than `i` (# Safety).
    unsafe { kind.read(scales, i) }.to_f64() as f32
}

/// The zero points of an operand: none, one, or one for each of its rows or columns.
#[derive(Clone, Copy)]
pub(crate) struct Zeros {
    signed: bool,
    /// Number of them; 0 if they are absent.
    n: usize,
    /// Added to each.
    moved: i32,
}

impl Zeros {
    /// Input `i`, of which there may be one or one of the numbers in `counts`; `moved` is added to each.
    ///
    /// # Errors
    /// Invalid for another number.
    pub(crate) fn new<D>(
        request: &PrepareRequest<'_, D>,
        i: usize,
        counts: &[usize],
        moved: i32,
    ) -> Result<Self> {
        let Some(tensor) = request.input(i) else {
            return Ok(Self { signed: false, n: 0, moved });
        };
        let n = tensor.n_elements();
        if n != 1 && !counts.contains(&n) {
            return Err(Error::invalid(format!(
                "input {i} has {n} zero points, expected 1 or one of {counts:?}"
            )));
        }
        Ok(Self { signed: tensor.dtype() == I8, n, moved })
    }

    /// Returns whether rows or columns have their own.
    pub(crate) fn are_many(&self) -> bool {
        self.n > 1
    }

    /// Returns whether all are 0 whatever the operand is.
    pub(crate) fn are_none(&self) -> bool {
        self.n == 0 && self.moved == 0
    }

    /// Returns whether one of them is not 0.
    ///
    /// # Safety
    /// `zeros` is the operand that `new` was told.
    pub(crate) unsafe fn are_used(&self, zeros: *const u8) -> bool {
        // SAFETY: as this function (# Safety).
        (0..self.n.max(1)).any(|i| unsafe { self.get(zeros, i) } != 0)
    }

    /// The zero point of row or column `i`.
    ///
    /// # Safety
    /// `zeros` is the operand that `new` was told.
    #[inline(always)]
    pub(crate) unsafe fn get(&self, zeros: *const u8, i: usize) -> i32 {
        if self.n == 0 {
            return self.moved;
        }
        let i = if self.n == 1 { 0 } else { i % self.n };
        // SAFETY: the remainder is below the number of zero points.
        let byte = unsafe { zeros.add(i).read() };
        self.moved
            + match self.signed {
                true => i32::from(byte as i8),
                false => i32::from(byte),
            }
    }
}

/// The panels of a matrix's columns: whole vectors, divided as evenly as they can be.
#[derive(Clone, Copy)]
pub(crate) struct IntPanels {
    /// Terms of a column.
    k: usize,
    columns: usize,
    lanes: usize,
    vectors: usize,
    /// Number of panels.
    pub n: usize,
}

impl IntPanels {
    pub(crate) fn of(tiles: &IntTiles, k: usize, columns: usize) -> Self {
        let vectors = columns.div_ceil(tiles.lanes);
        Self { k, columns, lanes: tiles.lanes, vectors, n: vectors.div_ceil(tiles.vectors) }
    }

    /// The vectors of a panel.
    pub(crate) fn vectors(&self, panel: usize) -> Range<usize> {
        let at = |panel: usize| self.vectors * panel / self.n;
        at(panel)..at(panel + 1)
    }

    /// The first column of a panel, and how many it has.
    pub(crate) fn columns(&self, panel: usize) -> (usize, usize) {
        let vectors = self.vectors(panel);
        let first = vectors.start * self.lanes;
        (first, (vectors.end * self.lanes).min(self.columns) - first)
    }

    /// The sums of all columns, whole vectors: they come before the panels.
    fn n_sums(&self) -> usize {
        self.vectors * self.lanes
    }

    /// Where a panel begins, in bytes.
    pub(crate) fn at(&self, panel: usize) -> usize {
        4 * self.n_sums() + 4 * self.vectors(panel).start * self.lanes * self.k.div_ceil(4)
    }

    /// Bytes of all panels and of their sums.
    pub(crate) fn size(&self) -> Size {
        Size::of(self.n_sums()) * self.k.div_ceil(4) * 4 + 4 * self.n_sums()
    }

    /// Writes the panels of a row-major matrix, and the sums of its columns before them. `fill` is
    /// [`fill_panel`] of an instruction set.
    pub(crate) fn pack(&self, matrix: &[u8], flip: u8, fill: FillPanel, dst: &mut [u8]) {
        debug_assert!(matrix.len() >= self.k * self.columns);
        let sums = dst.as_mut_ptr().cast::<i32>();
        for panel in 0..self.n {
            let (first, columns) = self.columns(panel);
            let source = Columns {
                first: matrix.as_ptr().wrapping_add(first),
                stride: self.columns,
                k: self.k,
                columns,
                width: self.vectors(panel).len() * self.lanes,
                flip,
            };
            let to = dst[self.at(panel)..].as_mut_ptr().cast();
            // SAFETY: the matrix has these columns; `dst` has a sum for each, and from there the panel (`size`). The function is
            // one of this processor.
            unsafe { fill(&source, to, sums.wrapping_add(first)) };
        }
    }
}

/// Columns of a row-major matrix of bytes.
pub(crate) struct Columns {
    /// The first term of the first column.
    pub first: *const u8,
    /// Distance between terms.
    pub stride: usize,
    /// Number of terms.
    pub k: usize,
    /// Number of columns, and of those of the panel.
    pub columns: usize,
    pub width: usize,
    /// What is flipped in each byte.
    pub flip: u8,
}

/// Fills a panel, and writes the sums of its columns.
pub(crate) type FillPanel = unsafe fn(&Columns, *mut i8, *mut i32);

/// # Safety
/// The columns have their terms, the panel four bytes for each four terms of `width` columns, and there are as many sums, which
/// may be unaligned; the processor has the instructions.
#[inline(always)]
unsafe fn fill_panel_body<A: Arith>(source: &Columns, panel: *mut i8, sums: *mut i32) {
    let Columns { first, stride, k, columns, width, flip } = *source;
    let flipped = |x: u8| x ^ flip;
    let sum_of = |four: [u8; 4]| four.iter().map(|&x| i32::from(x as i8)).sum::<i32>();
    for i in 0..width {
        // SAFETY: there are `width` sums (# Safety).
        unsafe { sums.add(i).write_unaligned(0) };
    }
    for from in (0..k).step_by(4) {
        let row = first.wrapping_add(from * stride);
        let to = panel.wrapping_add(from * width).cast::<[u8; 4]>();
        let n = (k - from).min(4);
        for i in 0..columns {
            let mut four = [0; 4];
            if n == 4 {
                for (j, slot) in four.iter_mut().enumerate() {
                    // SAFETY: the column has this term (# Safety).
                    *slot = flipped(unsafe { row.add(j * stride + i).read() });
                }
            } else {
                for (j, slot) in four.iter_mut().enumerate().take(n) {
                    // SAFETY: the column has this term (# Safety).
                    *slot = flipped(unsafe { row.add(j * stride + i).read() });
                }
            }
            // SAFETY: the panel has four bytes of `width` columns (# Safety).
            unsafe { to.add(i).write(four) };
            // SAFETY: there are `width` sums (# Safety).
            let sum = unsafe { sums.add(i).read_unaligned() };
            // SAFETY: the same.
            unsafe { sums.add(i).write_unaligned(sum.wrapping_add(sum_of(four))) };
        }
        for i in columns..width {
            // SAFETY: the panel has four bytes of `width` columns (# Safety).
            unsafe { to.add(i).write([0; 4]) };
        }
    }
}

dispatch! {
    /// Fills a panel from columns of a row-major matrix.
    pub(crate) fn fill_panel(source: &Columns, panel: *mut i8, sums: *mut i32) = fill_panel_body
}

/// The sum of a row of unsigned bytes, flipped; they are written to `to` unless it is NULL.
pub(crate) type TakeRow = unsafe fn(*const u8, usize, u8, *mut u8) -> i32;

/// # Safety
/// `from` holds `n` bytes, and so does `to` unless it is NULL; the processor has the instructions.
#[inline(always)]
unsafe fn take_row_body<A: Arith>(from: *const u8, n: usize, flip: u8, to: *mut u8) -> i32 {
    let mut sum = 0u32;
    if to.is_null() {
        for i in 0..n {
            // SAFETY: `i` is below `n`.
            sum = sum.wrapping_add(u32::from(unsafe { from.add(i).read() } ^ flip));
        }
        return sum as i32;
    }
    for i in 0..n {
        // SAFETY: `i` is below `n`.
        let x = unsafe { from.add(i).read() } ^ flip;
        // SAFETY: `i` is below `n`.
        unsafe { to.add(i).write(x) };
        sum = sum.wrapping_add(u32::from(x));
    }
    sum as i32
}

dispatch! {
    /// Sums up a row, and copies it.
    pub(crate) fn take_row(from: *const u8, n: usize, flip: u8, to: *mut u8) -> i32 = take_row_body
}
