//! Shapes as the loops see them: extents checked, dimensions collapsed, and the walk over operands that
//! are broadcast against each other.
//!
//! All operands are dense and row-major. Dimensions are kept innermost first here, because that is where
//! loops start.

use devbay_plugin_api::sdk::{Error, Result};
use std::ops::Range;

/// Dimensions that are left after collapsing, at most. States hold arrays of this size, so that a launch
/// allocates nothing.
pub(crate) const RANK_MAX: usize = 8;

/// Rows of operands that one call of a loop covers; the result's rows follow each other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rows<const N: usize> {
    pub n_rows: usize,
    pub n_cols: usize,
    /// Elements from one row of an operand to the next; 0 where it is broadcast.
    pub steps: [usize; N],
    /// Elements from one column of an operand to the next: 1, or 0 where it is broadcast.
    pub inner: [usize; N],
}

/// `N` operands broadcast to one shape, with as few dimensions as possible.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Broadcast<const N: usize> {
    rank: usize,
    extents: [usize; RANK_MAX],
    strides: [[usize; RANK_MAX]; N],
}

impl<const N: usize> Broadcast<N> {
    /// Shapes are outermost first, as in ONNX.
    ///
    /// # Errors
    /// Invalid if an operand does not broadcast to `out`; unsupported if more than [`RANK_MAX`] dimensions
    /// are left.
    pub(crate) fn new(out: &[usize], operands: [&[usize]; N]) -> Result<Self> {
        let mismatch = |operand: &[usize]| {
            Error::invalid(format!("an operand of shape {operand:?} does not broadcast to {out:?}"))
        };
        let mut this = Self { rank: 0, extents: [1; RANK_MAX], strides: [[0; RANK_MAX]; N] };
        // Elements from one position to the next in each operand's own dense layout.
        let mut dense = [1; N];
        for (i, &extent) in out.iter().rev().enumerate() {
            let mut strides = [0; N];
            for ((operand, dense), stride) in operands.iter().zip(&mut dense).zip(&mut strides) {
                let own = match operand.len().checked_sub(1 + i) {
                    Some(position) => operand[position],
                    None => 1,
                };
                if own != 1 && own != extent {
                    return Err(mismatch(operand));
                }
                // An operand with one element here is read again and again.
                *stride = if own == 1 { 0 } else { *dense };
                *dense *= own;
            }
            if extent != 1 {
                this.push(extent, strides)?;
            }
        }
        for operand in operands {
            let extra = operand.len().saturating_sub(out.len());
            if operand[..extra].iter().any(|&extent| extent != 1) {
                return Err(mismatch(operand));
            }
        }
        if this.rank == 0 {
            this.push(1, [1; N])?;
        }
        Ok(this)
    }

    /// Adds a dimension outside the others, or to the outermost one if every operand goes on there.
    fn push(&mut self, extent: usize, strides: [usize; N]) -> Result<()> {
        if let Some(last) = self.rank.checked_sub(1)
            && (0..N).all(|k| strides[k] == self.strides[k][last] * self.extents[last])
        {
            self.extents[last] *= extent;
            return Ok(());
        }
        if self.rank == RANK_MAX {
            return Err(Error::unsupported(format!(
                "operands whose broadcast has more than {RANK_MAX} dimensions"
            )));
        }
        self.extents[self.rank] = extent;
        for (own, stride) in self.strides.iter_mut().zip(strides) {
            own[self.rank] = stride;
        }
        self.rank += 1;
        Ok(())
    }

    /// Elements of the result.
    pub(crate) fn len(&self) -> usize {
        self.extents[..self.rank].iter().product()
    }

    /// The whole as one row, if no operand starts again anywhere.
    pub(crate) fn as_row(&self) -> Option<Rows<N>> {
        (self.rank == 1).then(|| Rows {
            n_rows: 1,
            n_cols: self.extents[0],
            steps: [0; N],
            inner: self.strides.map(|strides| strides[0]),
        })
    }

    /// Calls `body` for blocks of rows that cover the elements `range` of the result, in order: with the
    /// first element of each operand and of the result.
    #[inline]
    pub(crate) fn walk(&self, range: Range<usize>, mut body: impl FnMut([usize; N], usize, &Rows<N>)) {
        if range.is_empty() {
            return;
        }
        let n_cols = self.extents[0];
        let inner = self.strides.map(|strides| strides[0]);
        let mut at = range.start;
        let mut col = at % n_cols;
        // Where the current row stands in each outer dimension, and where it begins in each operand.
        let mut position = [0; RANK_MAX];
        let mut start = [0; N];
        let mut row = at / n_cols;
        for d in 1..self.rank {
            position[d] = row % self.extents[d];
            row /= self.extents[d];
            for (start, strides) in start.iter_mut().zip(&self.strides) {
                *start += position[d] * strides[d];
            }
        }
        while at < range.end {
            let left = range.end - at;
            let rows = if col > 0 || left < n_cols || self.rank == 1 {
                Rows { n_rows: 1, n_cols: left.min(n_cols - col), steps: [0; N], inner }
            } else {
                Rows {
                    n_rows: (left / n_cols).min(self.extents[1] - position[1]),
                    n_cols,
                    steps: self.strides.map(|strides| strides[1]),
                    inner,
                }
            };
            let mut first = start;
            for (first, inner) in first.iter_mut().zip(&inner) {
                *first += col * inner;
            }
            body(first, at, &rows);
            at += rows.n_rows * rows.n_cols;
            col = 0;
            // A row that was not finished is the last of the range.
            self.advance(rows.n_rows, &mut position, &mut start);
        }
    }

    /// Goes `n` rows on, at most to the end of dimension 1.
    #[inline]
    fn advance(&self, n: usize, position: &mut [usize; RANK_MAX], start: &mut [usize; N]) {
        let mut n = n;
        for d in 1..self.rank {
            position[d] += n;
            for (start, strides) in start.iter_mut().zip(&self.strides) {
                *start += n * strides[d];
            }
            if position[d] < self.extents[d] {
                return;
            }
            for (start, strides) in start.iter_mut().zip(&self.strides) {
                *start -= position[d] * strides[d];
            }
            position[d] = 0;
            n = 1;
        }
    }
}
