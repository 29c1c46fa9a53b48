//! Beginnings in the input of the rows of an output, for ops that take each axis from a table of its own.
//!
//! Pad and the nearest elements of Resize are such ops: the position on each axis of the input depends
//! on the position on that axis of the output alone.

use std::ops::Range;

/// In a table: this position is not in the input.
pub(crate) const OUTSIDE: usize = usize::MAX;

/// The tables of the axes outside a row.
pub(crate) struct Rows {
    /// For each axis, slowest first: the byte of the input for each position, or [`OUTSIDE`].
    tables: Vec<Vec<usize>>,
    /// The last of them: rows of one plane differ along it alone.
    plane: Vec<usize>,
    n: usize,
}

impl Rows {
    /// Rows of these axes; without any there is one row.
    pub(crate) fn new(mut tables: Vec<Vec<usize>>) -> Self {
        let n = tables.iter().map(Vec::len).product();
        let plane = tables.pop().unwrap_or_else(|| vec![0]);
        Self { tables, plane, n }
    }

    /// Returns the number of rows.
    pub(crate) fn len(&self) -> usize {
        self.n
    }

    /// Calls `body(row, byte of the input or [`OUTSIDE`])` for a range of rows.
    #[inline(always)]
    pub(crate) fn each(&self, range: Range<usize>, mut body: impl FnMut(usize, usize)) {
        self.runs(range, |rows, start| rows.for_each(|row| body(row, start)));
    }

    /// As [`Rows::each`], with neighbouring rows of a plane that are the same together.
    #[inline(always)]
    pub(crate) fn runs(&self, range: Range<usize>, mut body: impl FnMut(Range<usize>, usize)) {
        let n = self.plane.len();
        let mut row = range.start;
        while row < range.end {
            let plane = self.plane_start(row / n);
            let first = row % n;
            for same in self.plane[first..n.min(first + range.end - row)].chunk_by(|a, b| a == b) {
                let start = match (plane, same[0]) {
                    (OUTSIDE, _) | (_, OUTSIDE) => OUTSIDE,
                    (plane, at) => plane + at,
                };
                body(row..row + same.len(), start);
                row += same.len();
            }
        }
    }

    /// The byte of the input where a plane begins, or [`OUTSIDE`].
    fn plane_start(&self, plane: usize) -> usize {
        let (mut rest, mut start) = (plane, 0);
        for table in self.tables.iter().rev() {
            match table[rest % table.len()] {
                OUTSIDE => return OUTSIDE,
                at => start += at,
            }
            rest /= table.len();
        }
        start
    }
}
