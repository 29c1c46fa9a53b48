//! Walking over the positions of a few dimensions in row-major order, with offsets that follow.

use devbay_plugin_api::sdk::{Error, Result};

/// Most dimensions of a walk.
const RANK_MAX: usize = 8;

/// Dimensions, each with an extent and `K` strides.
pub(crate) struct Walk<const K: usize> {
    dims: [(usize, [isize; K]); RANK_MAX],
    rank: usize,
}

/// One position, and the `K` offsets that belong to it.
pub(crate) struct Position<const K: usize> {
    at: [usize; RANK_MAX],
    pub(crate) offsets: [isize; K],
}

impl<const K: usize> Walk<K> {
    /// A walk over dimensions, slowest first.
    ///
    /// # Errors
    /// Unsupported for more than eight.
    pub(crate) fn new(dims: impl Iterator<Item = (usize, [isize; K])>) -> Result<Self> {
        let mut walk = Self { dims: [(1, [0; K]); RANK_MAX], rank: 0 };
        for dim in dims {
            let Some(slot) = walk.dims.get_mut(walk.rank) else {
                return Err(Error::unsupported(format!("more than {RANK_MAX} dimensions that do not merge")));
            };
            *slot = dim;
            walk.rank += 1;
        }
        Ok(walk)
    }

    /// Number of positions.
    pub(crate) fn len(&self) -> usize {
        self.dims[..self.rank].iter().map(|(n, _)| n).product()
    }

    /// The position with the given number; there is one only if no extent is 0.
    pub(crate) fn position(&self, index: usize) -> Position<K> {
        let mut position = Position { at: [0; RANK_MAX], offsets: [0; K] };
        let mut rest = index;
        for i in (0..self.rank).rev() {
            let (n, strides) = self.dims[i];
            position.at[i] = rest % n;
            rest /= n;
            for (offset, stride) in position.offsets.iter_mut().zip(strides) {
                *offset += position.at[i] as isize * stride;
            }
        }
        position
    }

    /// The next position, after the last one the first.
    #[inline]
    pub(crate) fn advance(&self, position: &mut Position<K>) {
        for i in (0..self.rank).rev() {
            let (n, strides) = self.dims[i];
            position.at[i] += 1;
            let back = if position.at[i] == n { n as isize } else { 0 };
            for (offset, stride) in position.offsets.iter_mut().zip(strides) {
                *offset += stride - back * stride;
            }
            if back == 0 {
                return;
            }
            position.at[i] = 0;
        }
    }
}
