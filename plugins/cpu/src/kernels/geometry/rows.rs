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
        let n = self.plane.len();
        let mut row = range.start;
        while row < range.end {
            let plane = self.plane_start(row / n);
            let first = row % n;
            for &at in &self.plane[first..n.min(first + range.end - row)] {
                let start = match (plane, at) {
                    (OUTSIDE, _) | (_, OUTSIDE) => OUTSIDE,
                    (plane, at) => plane + at,
                };
                body(row, start);
                row += 1;
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
