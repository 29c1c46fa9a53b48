//! Weights as panels: whole vectors of columns, term after term.

use crate::kernels::geometry::strided;
use crate::kernels::product::tile::{AHEAD, Tiles};
use devbay_plugin_api::reserve::Size;
use std::ops::Range;

/// Channels of a panel whose weights are read for one tap after the other, while they are in the cache.
const CHANNELS: usize = 64;

/// The panels of some columns: of a convolution, one group's output channels.
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
    /// The panels of so many columns of so many terms.
    pub fn of(columns: usize, k: usize, tiles: &Tiles) -> Self {
        let vectors = columns.div_ceil(tiles.lanes);
        Self { k, columns, lanes: tiles.lanes, vectors, n: vectors.div_ceil(tiles.vectors) }
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

    /// Writes the panels of weights that come as `[column, channel, tap]`. The terms of a column are its taps, each with all
    /// channels.
    pub fn pack(&self, src: &[f32], n_taps: usize, dst: &mut [f32]) {
        for panel in 0..self.n {
            let dst = &mut dst[self.at(panel)..][..self.k * self.width(panel)];
            self.pack_one(panel, src, n_taps, dst);
        }
    }

    /// Writes one of the panels that [`Panels::pack`] writes.
    pub fn pack_one(&self, panel: usize, src: &[f32], n_taps: usize, dst: &mut [f32]) {
        let channels = self.k / n_taps.max(1);
        let (first, columns) = self.columns(panel);
        let width = self.width(panel);
        let src = &src[first * self.k..][..columns * self.k];
        if columns < width {
            dst.chunks_exact_mut(width).for_each(|row| row[columns..].fill(0.0));
        }
        if n_taps == 1 {
            let dst = &mut dst[..self.k * width];
            let (from, to) = (src.as_ptr(), dst.as_mut_ptr());
            // SAFETY: `src` has the terms of these columns, and `dst` a row of at least as many for each term.
            unsafe { strided::transpose(from, self.k, to, width, [self.k, columns]) };
            return;
        }
        for begin in (0..channels).step_by(CHANNELS) {
            for tap in 0..n_taps {
                for channel in begin..(begin + CHANNELS).min(channels) {
                    let row = &mut dst[(tap * channels + channel) * width..][..columns];
                    for (weight, column) in row.iter_mut().zip(src.chunks_exact(self.k)) {
                        *weight = column[channel * n_taps + tap];
                    }
                }
            }
        }
    }

    /// Writes the panels of a matrix of the terms by the columns.
    pub fn pack_matrix(&self, src: &[f32], dst: &mut [f32]) {
        for panel in 0..self.n {
            let dst = &mut dst[self.at(panel)..][..self.k * self.width(panel)];
            self.pack_matrix_one(panel, src, dst);
        }
    }

    /// Writes one of the panels that [`Panels::pack_matrix`] writes.
    pub fn pack_matrix_one(&self, panel: usize, src: &[f32], dst: &mut [f32]) {
        let (first, columns) = self.columns(panel);
        for (row, dst) in src.chunks_exact(self.columns).zip(dst.chunks_exact_mut(self.width(panel))) {
            let (dst, beyond) = dst.split_at_mut(columns);
            dst.copy_from_slice(&row[first..first + columns]);
            beyond.fill(0.0);
        }
    }

    /// Columns of a panel, whole vectors.
    pub fn width(&self, panel: usize) -> usize {
        self.vectors(panel).len() * self.lanes
    }
}
