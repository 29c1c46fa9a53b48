//! Matrix products inside other kernels: tiles of 32 x 32 numbers, of which each of 64 threads has 4 x 4, from pieces of
//! 16 numbers' depth in the workgroup's memory.

use super::lines::div_up;
use crate::step;
use crate::template::wgsl;

/// Rows and columns of a tile.
const TILE: i64 = 32;

/// A product of `p.n_rows` x `depth` with `depth` x `p.n_cols`, in WGSL.
pub struct Product<'a> {
    /// Statements that the others are behind, over the workgroup's `id`.
    pub begin: &'a str,
    /// An element of the first operand, over `row` and `k`.
    pub a: &'a str,
    /// An element of the second operand, over `k` and `col`.
    pub b: &'a str,
    /// True if that operand's columns lie beside each other, and not its rows' elements.
    pub b_by_columns: bool,
    /// The number of terms.
    pub depth: &'a str,
    /// True if a product with a number below 0 of the first operand counts for nothing, even if it is no number.
    pub skips_negative: bool,
    /// Statements that write `sum` for `row` and `col`.
    pub write: &'a str,
}

/// Workgroups along rows or columns.
pub fn along(n: i64) -> u32 {
    u32::try_from(div_up(n, TILE)).unwrap_or(u32::MAX)
}

/// Turns of a thread's loops for a product of that depth.
pub fn turns(depth: i64) -> u64 {
    let of_piece = step::turns(8, 0) + step::turns(16, 0);
    step::turns(div_up(depth, 16) as u64, of_piece).saturating_add(4 * step::turns(4, 0))
}

/// A module for workgroups of 64: columns along x, rows along y.
pub fn module(product: &Product<'_>) -> String {
    let &Product { begin, a, b, b_by_columns: by_columns, depth, skips_negative, write } = product;
    wgsl!("tiles.wgsl", begin, depth, a, b, by_columns, skips_negative, write)
}
