//! Weights as panels: whole vectors of output channels, term after term.
//!
//! The first numbers are a header that says whether all weights are finite: what a window sees of the padding are zeros, which
//! are left out only if their products are zeros too.

use super::Conv;
use crate::kernels::product::tile::AHEAD;
use devbay_plugin_api::reserve::Size;
use std::ops::Range;

/// Numbers of the header: a line of the cache, so that panels are aligned.
pub const HEADER: usize = 16;

/// The panels of one group's output channels.
#[derive(Clone, Copy)]
pub struct Panels {
    /// Terms.
    pub k: usize,
    /// Columns.
    columns: usize,
    lanes: usize,
    /// Vectors, and panels that they are divided into, as evenly as they can be.
    vectors: usize,
    pub n: usize,
}

impl Panels {
    pub fn of(conv: &Conv, k: usize) -> Self {
        let (lanes, columns) = (conv.tiles.lanes, conv.c_out);
        let vectors = columns.div_ceil(lanes);
        Self { k, columns, lanes, vectors, n: vectors.div_ceil(conv.tiles.vectors) }
    }

    /// The vectors of a panel.
    pub fn vectors(&self, panel: usize) -> Range<usize> {
        let at = |panel: usize| self.vectors * panel / self.n;
        at(panel)..at(panel + 1)
    }

    /// The first column of a panel, and how many it has.
    pub fn columns(&self, panel: usize) -> (usize, usize) {
        let vectors = self.vectors(panel);
        let first = vectors.start * self.lanes;
        (first, (vectors.end * self.lanes).min(self.columns) - first)
    }

    /// Vectors of the widest panel.
    pub fn widest(&self) -> usize {
        (0..self.n).map(|panel| self.vectors(panel).len()).max().unwrap_or(0)
    }

    /// Where a panel begins.
    pub fn at(&self, panel: usize) -> usize {
        self.vectors(panel).start * self.lanes * self.k
    }

    /// Columns of all panels, whole vectors.
    pub fn padded(&self) -> usize {
        self.vectors * self.lanes
    }

    /// What the `nth` tile of a panel asks for: a part of the next panel, or what it reads itself if all parts were asked for.
    pub fn ahead(&self, weights: *const f32, panel: usize, nth: usize) -> *const f32 {
        let len = self.vectors(panel).len() * self.lanes * self.k;
        let part = nth * self.k * AHEAD;
        if part < len { weights.wrapping_add(len + part) } else { weights }
    }

    /// Numbers of all panels.
    pub fn size(&self) -> Size {
        Size::of(self.vectors) * self.lanes * self.k
    }

    /// Numbers of all panels, if they were counted before.
    pub fn len(&self) -> usize {
        self.vectors * self.lanes * self.k
    }

    /// Writes the panels of weights, of which each column has `stride`, its terms at `offset(k)` among them.
    pub fn pack(&self, src: &[f32], stride: usize, offset: impl Fn(usize) -> usize, dst: &mut [f32]) {
        for panel in 0..self.n {
            let (first, columns) = self.columns(panel);
            let width = self.vectors(panel).len() * self.lanes;
            let (begin, src) = (self.at(panel), &src[first * stride..]);
            for (k, row) in dst[begin..begin + self.k * width].chunks_exact_mut(width).enumerate() {
                let offset = offset(k);
                let (row, beyond) = row.split_at_mut(columns);
                for (column, weight) in row.iter_mut().enumerate() {
                    *weight = src[column * stride + offset];
                }
                beyond.fill(0.0);
            }
        }
    }

    /// Calls `f` for each place of the panels with its term and its column; None beyond the columns.
    pub fn places(&self, mut f: impl FnMut(usize, usize, Option<usize>)) {
        for panel in 0..self.n {
            let (first, columns) = self.columns(panel);
            let width = self.vectors(panel).len() * self.lanes;
            for k in 0..self.k {
                let begin = self.at(panel) + k * width;
                for column in 0..width {
                    f(begin + column, k, (column < columns).then_some(first + column));
                }
            }
        }
    }
}
