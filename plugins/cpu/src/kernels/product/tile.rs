//! The micro-kernels of convolutions whose channels come last and of recurrent layers: some rows times a panel of weights, in
//! registers.
//!
//! `Y[r][m] = sum_k X[r][k] * W[k][m]`: of a convolution, a row is a pixel of the output, a column one of its channels. Terms
//! come in *segments*, runs of k in which each row's numbers are contiguous, wherever they are: what a window sees of an image
//! lies in several places, and what it sees of the padding in a row of zeros. Sums stay in registers until all segments are
//! done. A single row is multiplied with several panels at once ([`Tiles::row`]): one has too few sums to keep the processor
//! busy.
//!
//! A term may be two: where [`Tiles::of_pairs`] gives tiles, a number of the rows and of the panels is a pair of numbers of bf16,
//! whose products are both added.
//!
//! Each sum begins with its bias and takes its terms in order, whatever tile it is a part of: results do not depend on how rows
//! and panels are divided.

use crate::isa::{Arith, Isa};
use crate::kernels::product::epilogue::{Activation, apply};
use crate::lanes::{Lanes, unrolled};
use bodies::*;

mod bodies;

/// Rows of a tile, at most.
pub const ROWS_MAX: usize = 12;

/// Vectors of a panel, at most.
pub const VECTORS_MAX: usize = 4;

/// Panels that a row is multiplied with at once, at most.
pub const PANELS_MAX: usize = 4;

/// Terms of a panel that are worked on at once: more of a panel of four vectors would not stay in the second-level cache.
pub const TERMS_MAX: usize = 2048;

/// Numbers that are asked for with each term, ahead of their use: two lines of the cache.
pub const AHEAD: usize = 32;

/// Terms of the sums of a tile that are contiguous in each of its rows.
#[derive(Clone, Copy)]
pub struct Segment {
    /// The first number of each row.
    pub rows: [*const f32; ROWS_MAX],
    /// Number of terms.
    pub len: usize,
    /// Number of the first term in the panel.
    pub k: usize,
}

impl Segment {
    /// A segment of no terms.
    pub const EMPTY: Self = Self { rows: [std::ptr::null(); ROWS_MAX], len: 0, k: 0 };
}

/// Terms as those of a [`Segment`], of any number of rows that are equally far apart.
#[derive(Clone, Copy)]
pub struct Run {
    /// The first number of the first row.
    pub from: *const f32,
    /// Numbers from one row to the next.
    pub step: usize,
    /// Number of terms.
    pub len: usize,
    /// Number of the first term in the panel.
    pub k: usize,
}

impl Run {
    /// A run of no terms.
    pub const EMPTY: Self = Self { from: std::ptr::null(), step: 0, len: 0, k: 0 };
}

/// Terms that are contiguous in each row.
trait Source: Copy {
    /// True if other weights are asked for beside the terms.
    const ASKS_AHEAD: bool;

    /// Number of terms, and of the first one in the panel.
    fn place(&self) -> (usize, usize);

    /// The first number of each of `R` rows from row `first` on.
    fn rows<const R: usize>(&self, first: usize) -> [*const f32; R];
}

impl Source for Segment {
    const ASKS_AHEAD: bool = true;

    #[inline(always)]
    fn place(&self) -> (usize, usize) {
        (self.len, self.k)
    }

    #[inline(always)]
    fn rows<const R: usize>(&self, _first: usize) -> [*const f32; R] {
        let mut rows = [std::ptr::null(); R];
        unrolled!(r below R { rows[r] = self.rows[r]; });
        rows
    }
}

impl Source for Run {
    const ASKS_AHEAD: bool = false;

    #[inline(always)]
    fn place(&self) -> (usize, usize) {
        (self.len, self.k)
    }

    #[inline(always)]
    fn rows<const R: usize>(&self, first: usize) -> [*const f32; R] {
        let mut rows = [self.from.wrapping_add(first * self.step); R];
        unrolled!(r below R {
            if r > 0 {
                rows[r] = rows[r - 1].wrapping_add(self.step);
            }
        });
        rows
    }
}

/// A tile, or several ones below each other: what they are made of, and where they go.
#[derive(Clone, Copy)]
pub struct Job<'a, T = Segment> {
    /// The terms of the sums, or a part of them.
    pub segments: &'a [T],
    /// The panel of weights: term after term, whole vectors in each.
    pub weights: *const f32,
    /// What is read after this tile: two lines of the cache are asked for with each term. Any address.
    pub ahead: *const f32,
    /// The first row of the result.
    pub y: *mut f32,
    /// Distance from one row of the result to the next.
    pub stride: usize,
    /// Columns, at least one in the last vector.
    pub columns: usize,
    /// A number for each column that its sums begin with, unless they are added to others; or NULL.
    pub bias: *const f32,
    /// True if the sums are added to what is in `y`.
    pub adds: bool,
    /// What is done with the sums; None if others follow.
    pub tail: Option<&'a Tail>,
}

/// What is done with complete sums: something is added to each, and an activation applied.
#[derive(Clone, Copy)]
pub struct Tail {
    /// A number for each element, its rows as far apart as those of the result; or NULL.
    pub z: *const f32,
    /// The activation, as far as it is done here.
    pub activation: Quick,
}

/// An activation of a few instructions, which sums get in registers. NaN and the signs of zeros stay, as
/// [`apply`] says.
#[derive(Clone, Copy)]
pub enum Quick {
    None,
    /// Between two limits.
    Clip(f32, f32),
    HardSwish,
}

impl Quick {
    /// The activation; an error if it takes more.
    pub fn of(activation: Activation) -> Result<Self, Activation> {
        match activation {
            Activation::None => Ok(Self::None),
            Activation::Relu => Ok(Self::Clip(0.0, f32::INFINITY)),
            Activation::Clip(low, high) => Ok(Self::Clip(low, high)),
            Activation::HardSwish => Ok(Self::HardSwish),
            other => Err(other),
        }
    }

    /// # Safety
    /// The processor has the instructions.
    #[inline(always)]
    pub unsafe fn apply<A: Arith, L: Lanes>(self, sum: L) -> L {
        // SAFETY: the processor has the instructions (# Safety).
        unsafe {
            match self {
                Self::None => sum,
                Self::Clip(low, high) => apply::<A, L>(Activation::Clip(low, high), sum),
                Self::HardSwish => apply::<A, L>(Activation::HardSwish, sum),
            }
        }
    }
}

/// Makes a tile.
///
/// # Safety
/// 1. The processor has the instructions of the table that the function comes from.
/// 2. Each row of each segment has its number of terms, and the panel has these terms.
/// 3. `y` has as many rows as the function makes, each with the columns, that no other thread touches; so has `z`, and
///    `bias` has the columns.
type TileFn = unsafe fn(&Job<'_>);

/// Makes so many tiles of as many rows as a tile has at most.
///
/// # Safety
/// As [`TileFn`], with the rows of all of the tiles.
type StripFn = unsafe fn(&Job<'_, Run>, usize);

/// The functions of an instruction set for strips, by vectors, counted from 1.
type StripTable = [Option<StripFn>; VECTORS_MAX];

/// The functions of an instruction set, by vectors and rows, each counted from 1.
type Table = [[Option<TileFn>; ROWS_MAX]; VECTORS_MAX];

/// The same where half of the last vector is enough, of an instruction set on which that takes half of the time.
type Halves = Option<&'static Table>;

/// One row times some panels, which follow one another.
#[derive(Clone, Copy)]
pub struct RowJob {
    /// The terms of the row.
    pub x: *const f32,
    /// Number of terms.
    pub len: usize,
    /// The first panel.
    pub weights: *const f32,
    /// The result: whole vectors, panel after panel.
    pub y: *mut f32,
    /// A number for each column that its sums begin with; or NULL.
    pub bias: *const f32,
}

/// Makes a row.
///
/// # Safety
/// 1. The processor has the instructions of the table that the function comes from.
/// 2. The row has its terms, and each panel has them.
/// 3. `y` has the columns of the panels, that no other thread touches, and `bias` has them.
type RowFn = unsafe fn(&RowJob);

/// The functions for single rows, by vectors and panels, each counted from 1.
type RowTable = [[Option<RowFn>; PANELS_MAX]; VECTORS_MAX];

/// The micro-kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct Tiles {
    /// Numbers of a vector.
    pub lanes: usize,
    /// Vectors of a panel, at most.
    pub vectors: usize,
    table: &'static Table,
    halves: Halves,
    strips: &'static StripTable,
    /// The same with half of the last vector, if there are [`Halves`].
    half_strips: &'static StripTable,
    row_table: &'static RowTable,
}

impl Tiles {
    /// Those of an instruction set.
    pub fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self {
                lanes: isa.lanes(),
                vectors: 2,
                table: &AVX2,
                halves: None,
                strips: &AVX2_STRIPS,
                half_strips: &AVX2_STRIPS,
                row_table: &AVX2_ROW,
            },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self {
                lanes: isa.lanes(),
                vectors: VECTORS_MAX,
                table: &AVX512,
                halves: Some(&AVX512_HALVES),
                strips: &AVX512_STRIPS,
                half_strips: &AVX512_HALF_STRIPS,
                row_table: &AVX512_ROW,
            },
            #[cfg(target_arch = "aarch64")]
            _ => Self {
                lanes: Isa::Baseline.lanes(),
                vectors: VECTORS_MAX,
                table: &NEON,
                halves: None,
                strips: &NEON_STRIPS,
                half_strips: &NEON_STRIPS,
                row_table: &NEON_ROW,
            },
            #[cfg(not(target_arch = "aarch64"))]
            _ => Self {
                lanes: Isa::Baseline.lanes(),
                vectors: 2,
                table: &BASELINE,
                halves: None,
                strips: &BASELINE_STRIPS,
                half_strips: &BASELINE_STRIPS,
                row_table: &BASELINE_ROW,
            },
        }
    }

    /// Those whose terms are pairs of numbers of bf16 ([`Pairs`](crate::lanes::Pairs)), if the processor multiplies them.
    #[cfg(target_arch = "x86_64")]
    pub fn of_pairs(isa: Isa) -> Option<Self> {
        isa.multiplies_pairs().then(|| Self {
            lanes: isa.lanes(),
            vectors: VECTORS_MAX,
            table: &AVX512_PAIRS,
            halves: Some(&AVX512_PAIRS_HALVES),
            strips: &AVX512_PAIRS_STRIPS,
            half_strips: &AVX512_PAIRS_HALF_STRIPS,
            row_table: &NO_ROWS,
        })
    }

    /// Rows that a tile of so many vectors has, at most.
    pub fn rows(&self, vectors: usize) -> usize {
        self.table[vectors - 1].iter().flatten().count()
    }

    /// Makes a tile of `rows` rows and so many vectors.
    ///
    /// # Safety
    /// As [`TileFn`], of the first point of which there is this value; there are such tiles ([`Tiles::rows`]).
    #[inline]
    pub unsafe fn run(&self, vectors: usize, rows: usize, job: &Job<'_>) {
        let table = match self.halves {
            Some(halves) if self.is_half(vectors, job.columns) => halves,
            _ => self.table,
        };
        let Some(tile) = table[vectors - 1][rows - 1] else { unreachable!("a tile of {rows} rows") };
        // SAFETY: as this function (# Safety).
        unsafe { tile(job) };
    }

    /// Returns whether half of the last vector is enough for so many columns.
    fn is_half(&self, vectors: usize, columns: usize) -> bool {
        columns + self.lanes / 2 <= vectors * self.lanes
    }

    /// Makes `n` tiles of as many rows as one of so many vectors has at most.
    ///
    /// # Safety
    /// As [`StripFn`], of the first point of which there is this value.
    #[inline]
    pub unsafe fn strip(&self, vectors: usize, n: usize, job: &Job<'_, Run>) {
        let table = match self.halves {
            Some(_) if self.is_half(vectors, job.columns) => self.half_strips,
            _ => self.strips,
        };
        let Some(strip) = table[vectors - 1] else { unreachable!("a strip of {vectors} vectors") };
        // SAFETY: as this function (# Safety).
        unsafe { strip(job, n) };
    }

    /// Multiplies a row with `panels` panels of so many vectors, at most [`PANELS_MAX`], by numbers: pairs have no such function.
    ///
    /// # Safety
    /// As [`RowFn`], of the first point of which there is this value.
    #[inline]
    pub unsafe fn row(&self, vectors: usize, panels: usize, job: &RowJob) {
        let Some(row) = self.row_table[vectors - 1][panels - 1] else {
            unreachable!("a row of {panels} panels")
        };
        // SAFETY: as this function (# Safety).
        unsafe { row(job) };
    }
}
