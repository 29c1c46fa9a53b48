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
#[cfg(target_arch = "x86_64")]
use crate::lanes::Pairs;
use crate::lanes::{Lanes, read, unrolled, write};

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

/// A term of a sum: a number of a row times the numbers of a panel.
trait Term<L> {
    /// True if numbers of a row may be read together ([`Lanes::TAKES_ELEMENTS`]).
    const IS_NUMBER: bool;

    /// `sum` and the term.
    ///
    /// # Safety
    /// The processor has the instructions of the table that the term is a part of.
    unsafe fn add(x: L, weights: L, sum: L) -> L;
}

/// A product.
struct Number;

impl<L: Lanes> Term<L> for Number {
    const IS_NUMBER: bool = true;

    #[inline(always)]
    unsafe fn add(x: L, weights: L, sum: L) -> L {
        x.fma(weights, sum)
    }
}

/// Two products of bf16.
#[cfg(target_arch = "x86_64")]
struct Pair;

#[cfg(target_arch = "x86_64")]
impl<L: Pairs> Term<L> for Pair {
    const IS_NUMBER: bool = false;

    #[inline(always)]
    unsafe fn add(x: L, weights: L, sum: L) -> L {
        // SAFETY: the processor has the instructions (# Safety).
        unsafe { x.fma_pairs(weights, sum) }
    }
}

/// The tile from row `first` on.
///
/// # Safety
/// As [`TileFn`], of `R` rows and `V` vectors, the last of which is half a vector if `HALF`.
#[inline(always)]
unsafe fn tile_body<A: Arith, S: Source, T, const V: usize, const R: usize, const HALF: bool>(
    job: &Job<'_, S>,
    first: usize,
) where
    T: Term<A::Lanes> + Term<Half<A>>,
{
    let of_rows = |r: usize| (first + r) * job.stride;
    let n = <A::Lanes as Lanes>::N;
    let whole = if HALF { V - 1 } else { V };
    // SAFETY: the processor has the instructions (# Safety, 1).
    let (zero, half_zero) = unsafe { (A::Lanes::splat(0.0), Half::<A>::splat(0.0)) };
    let mut sums = [[zero; V]; R];
    let mut halves = [half_zero; R];
    // Columns of a vector: the last one may have fewer.
    let columns = |v: usize| if v + 1 == V { job.columns - v * n } else { n };
    let rest = job.columns - (V - 1) * n;
    if job.adds {
        unrolled!(r below R {
            let y = job.y.wrapping_add(of_rows(r));
            // SAFETY: the columns of each vector are this tile's (# Safety, 3).
            unrolled!(v below whole { sums[r][v] = unsafe { read(y.wrapping_add(v * n), columns(v)) }; });
            if HALF {
                // SAFETY: the same.
                halves[r] = unsafe { read(y.wrapping_add(whole * n), rest) };
            }
        });
    } else if !job.bias.is_null() {
        unrolled!(v below whole {
            // SAFETY: there is a number for each column (# Safety, 3).
            let bias = unsafe { read(job.bias.wrapping_add(v * n), columns(v)) };
            unrolled!(r below R { sums[r][v] = bias; });
        });
        if HALF {
            // SAFETY: there is a number for each column (# Safety, 3).
            let bias = unsafe { read(job.bias.wrapping_add(whole * n), rest) };
            unrolled!(r below R { halves[r] = bias; });
        }
    }
    for segment in job.segments {
        let (len, k_first) = segment.place();
        let mut weights = job.weights.wrapping_add(k_first * V * n);
        let rows = segment.rows::<R>(first);
        let ahead = job.ahead.wrapping_add(k_first * AHEAD);
        let mut k = 0;
        macro_rules! terms {
            ($($i:literal)*) => {
                while k + n <= len {
                    if S::ASKS_AHEAD {
                        unrolled!(line below n {
                            A::Lanes::prefetch(ahead.wrapping_add(k * AHEAD + 2 * line * (AHEAD / 2)));
                            A::Lanes::prefetch(ahead.wrapping_add(k * AHEAD + (2 * line + 1) * (AHEAD / 2)));
                        });
                    }
                    let mut factors = [zero; R];
                    // SAFETY: the row has the segment's terms (# Safety, 2).
                    unrolled!(r below R { factors[r] = unsafe { A::Lanes::load(rows[r].wrapping_add(k)) }; });
                    $(unrolled!(v below V {
                        // SAFETY: the panel has the segment's terms (# Safety, 2).
                        let panel = unsafe { A::Lanes::load(weights.wrapping_add(($i * V + v) * n)) };
                        unrolled!(r below R {
                            sums[r][v] = factors[r].fma_element::<$i>(panel, sums[r][v]);
                        });
                    });)*
                    weights = weights.wrapping_add(n * V * n);
                    k += n;
                }
            };
        }
        if A::Lanes::TAKES_ELEMENTS && <T as Term<A::Lanes>>::IS_NUMBER && !HALF {
            terms!(0 1 2 3);
        }
        for k in k..len {
            if S::ASKS_AHEAD {
                A::Lanes::prefetch(ahead.wrapping_add(k * AHEAD));
                A::Lanes::prefetch(ahead.wrapping_add(k * AHEAD + AHEAD / 2));
            }
            let mut panel = [zero; V];
            // SAFETY: the panel has the segment's terms (# Safety, 2).
            unrolled!(v below whole { panel[v] = unsafe { A::Lanes::load(weights.wrapping_add(v * n)) }; });
            let mut half = half_zero;
            if HALF {
                // SAFETY: the panel has the segment's terms, whole vectors (# Safety, 2).
                half = unsafe { Half::<A>::load(weights.wrapping_add(whole * n)) };
            }
            weights = weights.wrapping_add(V * n);
            unrolled!(r below R {
                let at = rows[r].wrapping_add(k);
                if whole > 0 {
                    // SAFETY: the row has the segment's terms (# Safety, 2).
                    let x = unsafe { A::Lanes::splat(*at) };
                    // SAFETY: the processor has the instructions (# Safety, 1).
                    unrolled!(v below whole { sums[r][v] = unsafe { T::add(x, panel[v], sums[r][v]) }; });
                }
                if HALF {
                    // SAFETY: the row has the segment's terms (# Safety, 2).
                    let x = unsafe { Half::<A>::splat(*at) };
                    // SAFETY: the processor has the instructions (# Safety, 1).
                    halves[r] = unsafe { T::add(x, half, halves[r]) };
                }
            });
        }
    }
    let (z, activation) = job.tail.map_or((std::ptr::null(), Quick::None), |tail| (tail.z, tail.activation));
    if !z.is_null() {
        unrolled!(r below R {
            let z = z.wrapping_add(of_rows(r));
            unrolled!(v below whole {
                // SAFETY: there is a number for each element (# Safety, 3).
                sums[r][v] = sums[r][v].add(unsafe { read(z.wrapping_add(v * n), columns(v)) });
            });
            if HALF {
                // SAFETY: there is a number for each element (# Safety, 3).
                halves[r] = halves[r].add(unsafe { read(z.wrapping_add(whole * n), rest) });
            }
        });
    }
    if !matches!(activation, Quick::None) {
        unrolled!(r below R {
            // SAFETY: the processor has the instructions (# Safety, 1).
            unrolled!(v below whole { sums[r][v] = unsafe { activation.apply::<A, A::Lanes>(sums[r][v]) }; });
            if HALF {
                // SAFETY: the processor has the instructions (# Safety, 1).
                halves[r] = unsafe { activation.apply::<A, Half<A>>(halves[r]) };
            }
        });
    }
    unrolled!(r below R {
        let y = job.y.wrapping_add(of_rows(r));
        // SAFETY: the columns of each vector are this tile's (# Safety, 3).
        unrolled!(v below whole { unsafe { write(sums[r][v], y.wrapping_add(v * n), columns(v)) }; });
        if HALF {
            // SAFETY: the same.
            unsafe { write(halves[r], y.wrapping_add(whole * n), rest) };
        }
    });
}

/// # Safety
/// As [`RowFn`], of `P` panels of `V` vectors.
#[inline(always)]
unsafe fn row_body<A: Arith, const V: usize, const P: usize>(job: &RowJob) {
    let n = <A::Lanes as Lanes>::N;
    // SAFETY: the processor has the instructions (# Safety, 1).
    let zero = unsafe { A::Lanes::splat(0.0) };
    let mut sums = [[zero; V]; P];
    if !job.bias.is_null() {
        unrolled!(p below P {
            unrolled!(v below V {
                // SAFETY: there is a number for each column (# Safety, 3).
                sums[p][v] = unsafe { A::Lanes::load(job.bias.wrapping_add((p * V + v) * n)) };
            });
        });
    }
    let panel = job.len * V * n;
    let mut weights = job.weights;
    for k in 0..job.len {
        // SAFETY: the row has the terms (# Safety, 2).
        let x = unsafe { A::Lanes::splat(*job.x.wrapping_add(k)) };
        unrolled!(p below P {
            unrolled!(v below V {
                // SAFETY: each panel has the terms (# Safety, 2).
                let weights = unsafe { A::Lanes::load(weights.wrapping_add(p * panel + v * n)) };
                sums[p][v] = x.fma(weights, sums[p][v]);
            });
        });
        weights = weights.wrapping_add(V * n);
    }
    unrolled!(p below P {
        unrolled!(v below V {
            // SAFETY: the columns are this row's (# Safety, 3).
            unsafe { sums[p][v].store(job.y.wrapping_add((p * V + v) * n)) };
        });
    });
}

/// Half of an instruction set's vector.
type Half<A> = <<A as Arith>::Lanes as Lanes>::Half;

/// A table: the body compiled for an instruction set, each number of vectors and each number of rows, of whole vectors or with half a
/// vector at the end. The sums, a panel's
/// vectors and a factor fit the registers: 32 of AVX-512, else 16. More rows than these would have more addresses than fit.
/// NEON has 32, too, and a vector of factors for each row; two of them are left for the panel's vectors, which are read one
/// after the other.
macro_rules! table {
    ($arith:ty, $term:ty, half $half:literal $(, $features:literal)?: $([$vectors:literal: $($rows:literal)*])*) => {{
        $(#[target_feature(enable = $features)])?
        unsafe fn tile<const V: usize, const R: usize>(job: &Job<'_>) {
            // SAFETY: as `TileFn`.
            unsafe { tile_body::<$arith, Segment, $term, V, R, $half>(job, 0) }
        }
        let mut table: Table = [[None; ROWS_MAX]; VECTORS_MAX];
        $($(table[$vectors - 1][$rows - 1] = Some(tile::<$vectors, $rows> as TileFn);)*)*
        table
    }};
}

/// A table of strips: the body compiled for an instruction set, each number of vectors, and the most rows of a tile of these.
macro_rules! strip_table {
    ($arith:ty, $term:ty, half $half:literal $(, $features:literal)?: $([$vectors:literal: $rows:literal])*) => {{
        $(#[target_feature(enable = $features)])?
        unsafe fn strip<const V: usize, const R: usize>(job: &Job<'_, Run>, n: usize) {
            for tile in 0..n {
                // SAFETY: as `StripFn`.
                unsafe { tile_body::<$arith, Run, $term, V, R, $half>(job, tile * R) }
            }
        }
        let mut table: StripTable = [None; VECTORS_MAX];
        $(table[$vectors - 1] = Some(strip::<$vectors, $rows> as StripFn);)*
        table
    }};
}

#[cfg(not(target_arch = "aarch64"))]
static BASELINE: Table = table!(crate::isa::Separate, Number, half false: [1: 1 2 3 4 5 6] [2: 1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
static NEON: Table = table!(
    crate::isa::Baseline, Number, half false:
    [1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6 7 8] [3: 1 2 3 4 5 6 7] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
static AVX2: Table =
    table!(crate::isa::Fused, Number, half false, "avx2,fma": [1: 1 2 3 4 5 6] [2: 1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
static AVX512: Table = table!(
    crate::isa::FusedWide, Number, half false, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
static AVX512_HALVES: Table = table!(
    crate::isa::FusedWide, Number, half true, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);

/// Pairs of terms, with the instructions of AVX512-BF16.
#[cfg(target_arch = "x86_64")]
static AVX512_PAIRS: Table = table!(
    crate::isa::FusedWide, Pair, half false, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
static AVX512_PAIRS_HALVES: Table = table!(
    crate::isa::FusedWide, Pair, half true, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);

#[cfg(not(target_arch = "aarch64"))]
static BASELINE_STRIPS: StripTable = strip_table!(crate::isa::Separate, Number, half false: [1: 6] [2: 6]);
#[cfg(target_arch = "aarch64")]
static NEON_STRIPS: StripTable =
    strip_table!(crate::isa::Baseline, Number, half false: [1: 12] [2: 8] [3: 7] [4: 6]);
#[cfg(target_arch = "x86_64")]
static AVX2_STRIPS: StripTable =
    strip_table!(crate::isa::Fused, Number, half false, "avx2,fma": [1: 6] [2: 6]);
#[cfg(target_arch = "x86_64")]
static AVX512_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Number, half false, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": [1: 8] [2: 12] [3: 8] [4: 6]
);
#[cfg(target_arch = "x86_64")]
static AVX512_HALF_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Number, half true, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": [1: 8] [2: 12] [3: 8] [4: 6]
);

#[cfg(target_arch = "x86_64")]
static AVX512_PAIRS_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Pair, half false, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 8] [2: 12] [3: 8] [4: 6]
);
#[cfg(target_arch = "x86_64")]
static AVX512_PAIRS_HALF_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Pair, half true, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 8] [2: 12] [3: 8] [4: 6]
);

/// A table of rows: the body compiled for an instruction set, each number of vectors and of panels.
macro_rules! row_table {
    ($arith:ty $(, $features:literal)?: $($vectors:literal)*) => {{
        $(#[target_feature(enable = $features)])?
        unsafe fn row<const V: usize, const P: usize>(job: &RowJob) {
            // SAFETY: as `RowFn`.
            unsafe { row_body::<$arith, V, P>(job) }
        }
        let mut table: RowTable = [[None; PANELS_MAX]; VECTORS_MAX];
        $(table[$vectors - 1] = [
            Some(row::<$vectors, 1> as RowFn),
            Some(row::<$vectors, 2> as RowFn),
            Some(row::<$vectors, 3> as RowFn),
            Some(row::<$vectors, 4> as RowFn),
        ];)*
        table
    }};
}

#[cfg(not(target_arch = "aarch64"))]
static BASELINE_ROW: RowTable = row_table!(crate::isa::Separate: 1 2);
#[cfg(target_arch = "x86_64")]
static AVX2_ROW: RowTable = row_table!(crate::isa::Fused, "avx2,fma": 1 2);
#[cfg(target_arch = "x86_64")]
static AVX512_ROW: RowTable =
    row_table!(crate::isa::FusedWide, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": 1 2 3 4);
#[cfg(target_arch = "aarch64")]
static NEON_ROW: RowTable = row_table!(crate::isa::Baseline: 1 2 3 4);
/// Pairs have none: a row is read once, and its tile waits for the weights.
#[cfg(target_arch = "x86_64")]
static NO_ROWS: RowTable = [[None; PANELS_MAX]; VECTORS_MAX];
