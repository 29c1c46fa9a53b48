//! Weights of recurrent layers as panels: a vector's columns are neighbouring units of one gate.
//!
//! Units come in blocks of [`UNITS`], and the columns of a block are those of its gates, one after the other. A product of a
//! few panels so has all gates of some units, of which the cell is worked out while they are in the first-level cache. A GRU
//! whose reset gate acts before the product needs two products a step: its columns come in two *parts*, each with blocks of its
//! own.
//!
//! Units beyond the last one have weights of 0.

use crate::kernels::geometry::strided;
use crate::kernels::product::tile::{PANELS_MAX, Tiles};
use crate::kernels::recurrent::cell::UNITS;
use devbay_ops::read::Cell;
use devbay_plugin_api::reserve::{NoMemory, Size};
use std::ops::Range;

/// Parts of the columns, at most.
pub(crate) const PARTS: usize = 2;

const WHAT: &str = "a recurrent layer's weights";

/// Returns the gates of each part. The second part may be empty.
pub(crate) fn parts(cell: Cell, linear_before_reset: bool) -> [Range<usize>; PARTS] {
    let gates = cell.gates() as usize;
    let first = if cell == Cell::Gru && !linear_before_reset { 2 } else { gates };
    [0..first, first..gates]
}

/// The panels of one part.
#[derive(Clone, Debug)]
pub(crate) struct Panels {
    /// Terms of each sum.
    pub(crate) k: usize,
    pub(crate) gates: Range<usize>,
    hidden: usize,
    lanes: usize,
    /// Vectors of a panel. The last panel may have fewer.
    vectors: usize,
    /// Rows of a tile, at most.
    pub(crate) rows: usize,
}

impl Panels {
    fn of(tiles: &Tiles, hidden: usize, k: usize, gates: Range<usize>) -> Self {
        // Three gates make panels of whole blocks too.
        let vectors = if gates.len() == 3 { 3 } else { 4 };
        let (lanes, vectors) = (tiles.lanes, tiles.vectors.min(vectors));
        let widest = (hidden.div_ceil(UNITS) * gates.len() * UNITS / lanes).clamp(1, vectors);
        Self { k, gates, hidden, lanes, vectors, rows: tiles.rows(widest) }
    }

    /// Returns the columns of a block.
    pub(crate) fn of_block(&self) -> usize {
        self.gates.len() * UNITS
    }

    /// Returns the columns of all blocks.
    pub(crate) fn columns(&self) -> usize {
        self.hidden.div_ceil(UNITS) * self.of_block()
    }

    /// Returns the columns of a panel.
    pub(crate) fn width(&self) -> usize {
        self.vectors * self.lanes
    }

    /// Returns the columns of a few panels that are whole blocks too.
    pub(crate) fn span(&self) -> usize {
        PANELS_MAX * self.width().max(self.of_block())
    }

    /// Returns the number of panels.
    pub(crate) fn n(&self) -> usize {
        self.columns().div_ceil(self.width())
    }

    /// Returns the vectors of a panel.
    pub(crate) fn vectors(&self, panel: usize) -> usize {
        (self.columns() / self.lanes - panel * self.vectors).min(self.vectors)
    }

    /// Returns where a panel starts.
    pub(crate) fn at(&self, panel: usize) -> usize {
        panel * self.width() * self.k
    }

    /// Packs a direction's weights, `[gate, unit, k]`.
    fn pack(&self, src: &[f32], dst: &mut [f32]) {
        if self.k == 0 {
            return;
        }
        for (panel, dst) in dst.chunks_mut(self.width() * self.k).enumerate() {
            let width = dst.len() / self.k;
            for vector in 0..width / self.lanes {
                let column = panel * self.width() + vector * self.lanes;
                let (block, within) = (column / self.of_block(), column % self.of_block());
                let gate = self.gates.start + within / UNITS;
                let unit = block * UNITS + within % UNITS;
                let n = self.hidden.saturating_sub(unit).min(self.lanes);
                if n > 0 {
                    let from = src[(gate * self.hidden + unit) * self.k..][..n * self.k].as_ptr();
                    let to = dst[vector * self.lanes..].as_mut_ptr();
                    // SAFETY: there are `n` units of `k` weights, and the panel has `k` rows of at least `n`.
                    unsafe { strided::transpose(from, self.k, to, width, [self.k, n]) };
                }
                if n < self.lanes {
                    for row in dst.chunks_exact_mut(width) {
                        row[vector * self.lanes + n..(vector + 1) * self.lanes].fill(0.0);
                    }
                }
            }
        }
    }
}

/// The weights of a direction.
#[derive(Clone, Debug)]
pub(crate) struct Weights {
    pub(crate) parts: [Panels; PARTS],
    /// Numbers of a direction as the model has them.
    len: usize,
}

impl Weights {
    /// Returns the panels for rows of `k` weights.
    ///
    /// # Errors
    /// Too little memory if their sizes overflow.
    pub(crate) fn of(
        tiles: &Tiles,
        hidden: usize,
        k: usize,
        gates: [Range<usize>; PARTS],
    ) -> Result<Self, NoMemory> {
        let len = (Size::of(gates[1].end) * hidden.next_multiple_of(UNITS) * k).get(WHAT)?;
        let len = len / hidden.next_multiple_of(UNITS).max(1) * hidden;
        Ok(Self { parts: gates.map(|gates| Panels::of(tiles, hidden, k, gates)), len })
    }

    /// Returns the columns of all parts.
    pub(crate) fn columns(&self) -> usize {
        self.parts.iter().map(Panels::columns).sum()
    }

    /// Returns the numbers of a direction's panels.
    pub(crate) fn size(&self) -> Size {
        Size::of(self.columns()) * self.parts[0].k
    }

    /// Returns the first column of a part.
    pub(crate) fn column(&self, part: usize) -> usize {
        self.parts[..part].iter().map(Panels::columns).sum()
    }

    /// Packs the weights of all directions, `[direction, gate, unit, k]`.
    pub(crate) fn pack(&self, src: &[f32], dst: &mut [f32]) {
        let k = self.parts[0].k;
        let each = (self.columns() * k).max(1);
        for (src, dst) in src.chunks_exact(self.len.max(1)).zip(dst.chunks_exact_mut(each)) {
            let (first, second) = dst.split_at_mut(self.parts[0].columns() * k);
            self.parts[0].pack(src, first);
            self.parts[1].pack(src, second);
        }
    }

    /// Returns the numbers of a direction's biases.
    pub(crate) fn biases(&self) -> Size {
        Size::of(self.columns()) * 2
    }

    /// Lays out the biases of all directions, `[direction, of the input or the state, gate, unit]`: in each, one for each column
    /// of the inputs' products, then of the state's. Both are in the first but for the new state's gate of a GRU whose reset gate
    /// acts after the product, and so on the state's bias too.
    pub(crate) fn pack_biases(&self, src: &[f32], dst: &mut [f32], resets_after: bool) {
        let (hidden, columns) = (self.parts[0].hidden, self.columns());
        let each = self.parts[PARTS - 1].gates.end * hidden;
        if each == 0 {
            return;
        }
        dst.fill(0.0);
        for (src, dst) in src.chunks_exact(2 * each).zip(dst.chunks_exact_mut(2 * columns)) {
            let ((of_x, of_h), (for_x, for_h)) = (src.split_at(each), dst.split_at_mut(columns));
            for (part, panels) in self.parts.iter().enumerate() {
                for (nth, gate) in panels.gates.clone().enumerate() {
                    let of_gate = gate * hidden..(gate + 1) * hidden;
                    let blocks = of_x[of_gate.clone()].chunks(UNITS).zip(of_h[of_gate].chunks(UNITS));
                    for (block, (of_x, of_h)) in blocks.enumerate() {
                        let at = self.column(part) + block * panels.of_block() + nth * UNITS;
                        let for_x = &mut for_x[at..at + of_x.len()];
                        for_x.copy_from_slice(of_x);
                        if resets_after && gate == 2 {
                            for_h[at..at + of_h.len()].copy_from_slice(of_h);
                            continue;
                        }
                        for (sum, h) in for_x.iter_mut().zip(of_h) {
                            *sum += h;
                        }
                    }
                }
            }
        }
    }
}
