//! Weights of eight or four bits as panels: a byte for each term and column, or for each two terms.
//!
//! Columns stand as in [`Panels`]. Scales and zero points of a block are rows beside them, a number or a byte for each column.

use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::Tiles;
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::{Error, Result};

/// What a byte of packed weights holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stored {
    /// A number from -128 to 127, whose zero point is 0.
    Signed,
    /// A number from 0 to 255.
    Unsigned,
    /// Two numbers from 0 to 15: the lower half is the first term.
    Nibbles,
}

/// A matrix of quantised weights, and where its parts are when they are packed.
#[derive(Clone, Copy)]
pub struct SmallPanels {
    pub stored: Stored,
    /// Terms, columns, and terms of a block, at least 1.
    pub k: usize,
    pub columns: usize,
    pub block: usize,
    /// Bits of an element before it is packed.
    bits: usize,
    /// True if the matrix comes as `[column][term]`.
    transposed: bool,
    /// Bits that are flipped in each element and zero point.
    flip: u8,
    /// The panels; their terms are rows of bytes.
    pub panels: Panels,
}

/// What is known of weights before they are packed.
pub struct Weights {
    pub k: usize,
    pub columns: usize,
    pub block: usize,
    pub bits: usize,
    pub is_signed: bool,
    pub transposed: bool,
    /// True if zero points are all in the middle of the type's range: those of signed bytes are then 0.
    pub is_centred: bool,
}

impl SmallPanels {
    /// The panels of some weights.
    pub fn of(weights: &Weights, tiles: &Tiles) -> Self {
        let &Weights { k, columns, block, bits, is_signed, transposed, is_centred } = weights;
        let stored = match bits {
            // A byte has two terms of one block.
            4 if block >= k || block.is_multiple_of(2) => Stored::Nibbles,
            8 if is_centred => Stored::Signed,
            _ => Stored::Unsigned,
        };
        // Signed numbers that have zero points become unsigned, and so do these.
        let flip = match (bits, is_signed == is_centred) {
            (4, _) if is_signed => 8,
            (8, false) => 0x80,
            _ => 0,
        };
        let rows = if stored == Stored::Nibbles { k.div_ceil(2) } else { k };
        let panels = Panels::of(columns, rows, tiles);
        Self { stored, k, columns, block, bits, transposed, flip, panels }
    }

    /// The zero point of weights that have none, as they are stored.
    pub fn zero(&self) -> f32 {
        if self.stored == Stored::Signed { 0.0 } else { f32::from(self.flip) }
    }

    /// Bits of an element before it is packed.
    pub fn bits(&self) -> usize {
        self.bits
    }

    /// Blocks of a column.
    pub fn n_blocks(&self) -> usize {
        self.k.div_ceil(self.block)
    }

    /// Numbers that name the layout of all parts.
    pub fn id(&self, lanes: usize, vectors: usize) -> [u64; 9] {
        [
            lanes as u64,
            vectors as u64,
            self.k as u64,
            self.columns as u64,
            self.block as u64,
            self.bits as u64,
            u64::from(self.transposed),
            u64::from(self.flip),
            self.stored as u64,
        ]
    }

    /// Numbers of the rows of all blocks: scales, or bytes of zero points.
    pub fn n_of_blocks(&self) -> Size {
        Size::of(self.n_blocks()) * self.panels.padded()
    }

    /// An element of a matrix that is not packed.
    fn element(&self, src: &[u8], i: usize) -> u8 {
        match self.bits {
            4 => (src[i / 2] >> (i % 2 * 4)) & 15 ^ self.flip,
            _ => src[i] ^ self.flip,
        }
    }

    /// Packs the matrix.
    ///
    /// # Errors
    /// Invalid for another number of bytes.
    pub fn pack(&self, src: &[u8], dst: &mut [u8]) -> Result<()> {
        let (k, n) = (self.k, self.columns);
        let size = (k * n * self.bits).div_ceil(8);
        if src.len() != size {
            return Err(Error::invalid(format!("{} bytes of {k} by {n}, expected {size}", src.len())));
        }
        let is_bytes =
            self.bits == 8 || self.stored == Stored::Nibbles && self.transposed && k.is_multiple_of(2);
        let flip = if self.bits == 8 { self.flip } else { self.flip * 0x11 };
        let rows = self.panels.k;
        for panel in 0..self.panels.n {
            let (first, columns) = self.panels.columns(panel);
            let width = self.panels.width(panel);
            let dst = &mut dst[self.panels.at(panel)..][..rows * width];
            dst.fill(0);
            if is_bytes && self.transposed {
                // Bytes are terms of a column, as they will be: in square parts that stay in the cache.
                for begin in (0..rows).step_by(64) {
                    for column in 0..columns {
                        let from = &src[(first + column) * rows..][..rows];
                        for row in begin..(begin + 64).min(rows) {
                            dst[row * width + column] = from[row] ^ flip;
                        }
                    }
                }
                continue;
            }
            for (row, dst) in dst.chunks_exact_mut(width).enumerate() {
                for (column, byte) in dst.iter_mut().enumerate().take(columns) {
                    let of = |term: usize| {
                        let column = first + column;
                        self.element(src, if self.transposed { column * k + term } else { term * n + column })
                    };
                    *byte = match self.stored {
                        Stored::Nibbles if 2 * row + 1 < k => of(2 * row) | of(2 * row + 1) << 4,
                        Stored::Nibbles => of(2 * row),
                        _ => of(row),
                    };
                }
            }
        }
        Ok(())
    }

    /// Packs the scales, or one for all. Columns that are not there have 0.
    ///
    /// # Errors
    /// Invalid for another number of them.
    pub fn pack_scales(&self, src: &[f32], dst: &mut [f32]) -> Result<()> {
        self.by_block(src.len(), 0.0, dst, |i| src[i])
    }

    /// Packs the zero points, or one for all. Columns that are not there have 0.
    ///
    /// # Errors
    /// Invalid for another number of them.
    pub fn pack_zeros(&self, src: &[u8], n: usize, dst: &mut [u8]) -> Result<()> {
        if src.len() != (n * self.bits).div_ceil(8) {
            return Err(Error::invalid(format!("{} bytes of {n} zero points", src.len())));
        }
        self.by_block(n, 0, dst, |i| self.element(src, i))
    }

    fn by_block<T: Copy>(&self, n: usize, none: T, dst: &mut [T], of: impl Fn(usize) -> T) -> Result<()> {
        let n_blocks = self.n_blocks();
        if n != 1 && n != n_blocks * self.columns {
            let text = format!("{n} numbers for {n_blocks} blocks of {} columns", self.columns);
            return Err(Error::invalid(text));
        }
        for (block, row) in dst.chunks_exact_mut(self.panels.padded().max(1)).enumerate() {
            for (column, number) in row.iter_mut().enumerate() {
                *number = match (n, self.transposed) {
                    _ if column >= self.columns => none,
                    (1, _) => of(0),
                    (_, true) => of(column * n_blocks + block),
                    (_, false) => of(block * self.columns + column),
                };
            }
        }
        Ok(())
    }
}
