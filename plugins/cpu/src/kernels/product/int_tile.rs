//! The micro-kernel of products of bytes: some rows times a panel of columns, summed in i32, in registers.
//!
//! `sum[r][c] = sum_k x[r][k] * w[k][c]`, modulo 2^32, of unsigned `x` and signed `w`: the operands of the instructions that
//! processors have for it. Numbers of the other sign are moved by 128, and so are their zero points. A panel is
//! `[k / 4][columns][4]`, with zeros beyond the last term and the last column.
//!
//! Zero points cost no work within the sum:
//! `sum (x - p)(w - q) = sum x w - p sum w - q (sum x - k p)`. The sums of a column come with its panel, those of a row are
//! made before. What follows a sum is done while it is in a register ([`Tail`]).

use crate::isa::{Arith, Isa};
use crate::kernels::product::tile::Quick;
use crate::lanes::dots::Dots;
#[cfg(not(target_arch = "x86_64"))]
use crate::lanes::dots::I32x4;
#[cfg(target_arch = "x86_64")]
use crate::lanes::dots::{I32x4, I32x8, I32x8Vnni, I32x16, I32x16Vnni};
use crate::lanes::{Lanes, read, unrolled, write};
use std::ptr;

/// Rows of a tile, at most.
pub const ROWS_MAX: usize = 12;

/// Vectors of a panel, at most.
pub const VECTORS_MAX: usize = 4;

/// Columns of a panel, at most.
pub const COLUMNS_MAX: usize = VECTORS_MAX * 16;

/// A number of each row times a number of each column, which is subtracted from the sums. Columns are whole vectors.
#[derive(Clone, Copy)]
pub struct Outer {
    /// NULL if nothing is subtracted.
    pub rows: *const i32,
    pub columns: *const i32,
}

impl Outer {
    /// Nothing.
    pub const NONE: Self = Self { rows: ptr::null(), columns: ptr::null() };
}

/// A factor for each sum.
#[derive(Clone, Copy)]
pub struct Factors {
    pub first: *const f32,
    /// True if each row has one of its own, or each column; false for both if there is one for all.
    pub by_row: bool,
    pub by_column: bool,
}

/// What becomes of sums.
#[derive(Clone, Copy)]
pub enum Tail {
    /// They are written as i32.
    Ints,
    /// They become f32, and are scaled; a number for each column is added, unless `bias` is NULL; an activation is applied. Each
    /// of these rounds, as the ops of their names do.
    Floats { factors: Factors, bias: *const f32, activation: Quick },
    /// They are scaled, rounded half to even, moved by a zero point and cut off at both ends. NaN becomes the lowest.
    Bytes { factors: Factors, zero: f32, low: f32, high: f32 },
}

/// A tile: what it is made of, and where it goes.
#[derive(Clone, Copy)]
pub struct Job {
    /// The first row, and the distance to the next.
    pub x: *const u8,
    pub x_stride: usize,
    /// Number of terms.
    pub k: usize,
    pub panel: *const i8,
    /// Columns, at least one in the last vector.
    pub columns: usize,
    /// Numbers that the sums of each column begin with, whole vectors; or NULL.
    pub start_columns: *const i32,
    /// Numbers that the sums of each row begin with; or NULL.
    pub start_rows: *const i32,
    pub outer: [Outer; 2],
    pub tail: Tail,
    /// The first row of the result, and the distance to the next, in elements.
    pub y: *mut u8,
    pub y_stride: usize,
}

/// Makes a tile.
///
/// # Safety
/// 1. The processor has the instructions of the table that the function comes from.
/// 2. Each row has its terms, and so has the panel.
/// 3. The numbers of rows and columns that the job names are as many as rows, columns or whole vectors of them.
/// 4. `y` has as many rows as the function makes, each with the columns, of the tail's type, that no other thread touches.
type TileFn = unsafe fn(&Job);

/// The functions of an instruction set, by vectors and rows, each counted from 1.
type Table = [[Option<TileFn>; ROWS_MAX]; VECTORS_MAX];

/// The micro-kernels of an instruction set.
#[derive(Clone, Copy)]
pub struct IntTiles {
    /// Columns of a vector.
    pub lanes: usize,
    /// Vectors of a panel, at most.
    pub vectors: usize,
    table: &'static Table,
}

impl IntTiles {
    /// The best of an instruction set: this processor may have instructions beside it.
    pub fn of(isa: Isa) -> Self {
        Self::all(isa)[0]
    }

    /// All that this processor has of an instruction set, the best one first.
    pub fn all(isa: Isa) -> Vec<Self> {
        let set = |vectors, table| Self { lanes: isa.lanes(), vectors, table };
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                let vnni = is_x86_feature_detected!("avx512vnni").then(|| set(VECTORS_MAX, &AVX512_VNNI));
                vnni.into_iter().chain([set(2, &AVX512)]).collect()
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                let vnni = is_x86_feature_detected!("avxvnni").then(|| set(2, &AVX2_VNNI));
                vnni.into_iter().chain([set(2, &AVX2)]).collect()
            }
            _ => vec![set(2, &BASELINE)],
        }
    }

    /// Rows that a tile of so many vectors has, at most.
    pub fn rows(&self, vectors: usize) -> usize {
        self.table[vectors - 1].iter().flatten().count()
    }

    /// Makes a tile of `rows` rows and so many vectors.
    ///
    /// # Safety
    /// As [`TileFn`], of the first point of which there is this value; there are such tiles ([`IntTiles::rows`]).
    #[inline]
    pub unsafe fn run(&self, vectors: usize, rows: usize, job: &Job) {
        let Some(tile) = self.table[vectors - 1][rows - 1] else { unreachable!("a tile of {rows} rows") };
        // SAFETY: as this function (# Safety).
        unsafe { tile(job) };
    }
}

/// Adds 1.5 * 2^23 and takes it away: no bits are left for a fraction, and the processor rounds it half to even.
pub const SHIFT: f32 = 12_582_912.0;

/// Beyond every number that does not saturate, and within those that [`SHIFT`] rounds.
pub const FAR: f32 = 65_536.0;

/// # Safety
/// As [`TileFn`], of `R` rows and `V` vectors.
#[inline(always)]
unsafe fn tile_body<D: Dots, const V: usize, const R: usize>(job: &Job) {
    let n = D::N;
    // SAFETY: the processor has the instructions (# Safety, 1).
    let zero = unsafe { D::splat(0) };
    let mut sums = [[zero; V]; R];
    if !job.start_columns.is_null() {
        unrolled!(v below V {
            // SAFETY: there are whole vectors (# Safety, 3).
            let start = unsafe { D::load(job.start_columns.wrapping_add(v * n)) };
            unrolled!(r below R { sums[r][v] = start; });
        });
    }
    if !job.start_rows.is_null() {
        unrolled!(r below R {
            // SAFETY: there is a number for each row (# Safety, 3).
            let start = unsafe { D::splat(*job.start_rows.wrapping_add(r)) };
            unrolled!(v below V { sums[r][v] = sums[r][v].add(start); });
        });
    }
    let mut rows = [job.x; R];
    unrolled!(r below R { rows[r] = job.x.wrapping_add(r * job.x_stride); });
    let mut panel = job.panel;
    macro_rules! terms {
        (|$row:ident| $quad:expr) => {
            // SAFETY: the panel has four terms of each column from here (# Safety, 2).
            let first = unsafe { D::bytes(panel) };
            let mut four = [first; V];
            unrolled!(v below V {
                if v > 0 {
                    // SAFETY: the same, of another vector.
                    four[v] = unsafe { D::bytes(panel.wrapping_add(4 * v * n)) };
                }
            });
            panel = panel.wrapping_add(4 * V * n);
            unrolled!(r below R {
                let $row = rows[r];
                // SAFETY: the processor has the instructions (# Safety, 1), and the row its terms (2).
                let quad = unsafe { D::quad($quad) };
                unrolled!(v below V { sums[r][v] = sums[r][v].dot(quad, four[v]); });
            });
        };
    }
    for k in 0..job.k / 4 {
        terms!(|row| row.wrapping_add(4 * k).cast::<[u8; 4]>().read());
    }
    let rest = job.k % 4;
    if rest > 0 {
        let from = job.k - rest;
        terms!(|row| {
            let mut quad = [0; 4];
            ptr::copy_nonoverlapping(row.wrapping_add(from), quad.as_mut_ptr(), rest);
            quad
        });
        let _ = panel;
    }
    for outer in &job.outer {
        if !outer.rows.is_null() {
            unrolled!(v below V {
                // SAFETY: there are whole vectors (# Safety, 3).
                let column = unsafe { D::load(outer.columns.wrapping_add(v * n)) };
                unrolled!(r below R {
                    // SAFETY: there is a number for each row (# Safety, 3), and the processor has the instructions (1).
                    let row = unsafe { D::splat(*outer.rows.wrapping_add(r)) };
                    sums[r][v] = sums[r][v].sub(row.mul(column));
                });
            });
        }
    }
    // Columns of a vector: the last one may have fewer.
    let columns = |v: usize| if v + 1 == V { job.columns - v * n } else { n };
    match job.tail {
        Tail::Ints => {
            unrolled!(r below R {
                let y = job.y.cast::<i32>().wrapping_add(r * job.y_stride);
                // SAFETY: the columns of each vector are this tile's (# Safety, 4).
                unrolled!(v below V { unsafe { sums[r][v].store_first(y.wrapping_add(v * n), columns(v)) }; });
            });
        }
        Tail::Floats { factors, bias, activation } => {
            unrolled!(v below V {
                // SAFETY: there is a number for each column (# Safety, 3).
                let by_column = unsafe { column_factors::<D>(&factors, v * n, columns(v)) };
                let mut addend = by_column;
                if !bias.is_null() {
                    // SAFETY: there is a number for each column (# Safety, 3).
                    addend = unsafe { read(bias.wrapping_add(v * n), columns(v)) };
                }
                unrolled!(r below R {
                    // SAFETY: there is a number for each row (# Safety, 3).
                    let factor = unsafe { row_factor::<D>(&factors, r, by_column) };
                    let mut value = sums[r][v].to_floats().mul(factor);
                    if !bias.is_null() {
                        value = value.add(addend);
                    }
                    // SAFETY: the processor has the instructions (# Safety, 1).
                    value = unsafe { activation.apply::<D::Arith, _>(value) };
                    let y = job.y.cast::<f32>().wrapping_add(r * job.y_stride + v * n);
                    // SAFETY: the columns of each vector are this tile's (# Safety, 4).
                    unsafe { write(value, y, columns(v)) };
                });
            });
        }
        Tail::Bytes { factors, zero, low, high } => {
            // SAFETY: the processor has the instructions (# Safety, 1).
            let (low, high, zero): (FloatsOf<D>, FloatsOf<D>, FloatsOf<D>) =
                unsafe { (Lanes::splat(low), Lanes::splat(high), Lanes::splat(zero)) };
            // SAFETY: the same.
            let (shift, far, near): (FloatsOf<D>, FloatsOf<D>, FloatsOf<D>) =
                unsafe { (Lanes::splat(SHIFT), Lanes::splat(FAR), Lanes::splat(-FAR)) };
            unrolled!(v below V {
                // SAFETY: there is a number for each column (# Safety, 3).
                let by_column = unsafe { column_factors::<D>(&factors, v * n, columns(v)) };
                unrolled!(r below R {
                    // SAFETY: there is a number for each row (# Safety, 3).
                    let factor = unsafe { row_factor::<D>(&factors, r, by_column) };
                    let value = sums[r][v].to_floats().mul(factor);
                    // What is no number becomes the lowest.
                    let value = near.at_least(value).at_most(far);
                    let value = value.add(shift).sub(shift).add(zero).at_least(low).at_most(high);
                    let y = job.y.wrapping_add(r * job.y_stride + v * n);
                    // SAFETY: the columns of each vector are this tile's (# Safety, 4).
                    unsafe { D::of_floats(value).store_low_bytes(y, columns(v)) };
                });
            });
        }
    }
}

/// The vectors of f32 that go with sums.
type FloatsOf<D> = <<D as Dots>::Arith as Arith>::Lanes;

/// The factors of `n` columns from `at`, or the one of all.
///
/// # Safety
/// There are such factors, unless rows have them, and the processor has the instructions.
#[inline(always)]
unsafe fn column_factors<D: Dots>(factors: &Factors, at: usize, n: usize) -> FloatsOf<D> {
    match (factors.by_row, factors.by_column) {
        // SAFETY: the processor has the instructions (# Safety).
        (true, _) => unsafe { Lanes::splat(0.0) },
        // SAFETY: there are as many factors (# Safety).
        (_, true) => unsafe { read(factors.first.wrapping_add(at), n) },
        // SAFETY: there is one (# Safety).
        (_, false) => unsafe { Lanes::splat(*factors.first) },
    }
}

/// The factor of row `r` if rows have one, else those of the columns.
///
/// # Safety
/// There are such factors, and the processor has the instructions.
#[inline(always)]
unsafe fn row_factor<D: Dots>(factors: &Factors, r: usize, by_column: FloatsOf<D>) -> FloatsOf<D> {
    match factors.by_row {
        // SAFETY: there is a factor for each row (# Safety).
        true => unsafe { Lanes::splat(*factors.first.wrapping_add(r)) },
        false => by_column,
    }
}

/// A table: the body compiled for an instruction set, each number of vectors and each number of rows. Sums, the panel's vectors
/// and a row's bytes fit the registers: 32 of AVX-512 and NEON, else 16. Where bytes become i16, they take two vectors each.
macro_rules! table {
    ($dots:ty $(, $features:literal)?: $([$vectors:literal: $($rows:literal)*])*) => {{
        $(#[target_feature(enable = $features)])?
        unsafe fn tile<const V: usize, const R: usize>(job: &Job) {
            // SAFETY: as `TileFn`.
            unsafe { tile_body::<$dots, V, R>(job) }
        }
        let mut table: Table = [[None; ROWS_MAX]; VECTORS_MAX];
        $($(table[$vectors - 1][$rows - 1] = Some(tile::<$vectors, $rows> as TileFn);)*)*
        table
    }};
}

static BASELINE: Table = table!(I32x4: [1: 1 2 3 4] [2: 1 2 3 4]);
#[cfg(target_arch = "x86_64")]
static AVX2: Table = table!(I32x8, "avx2,fma": [1: 1 2 3 4] [2: 1 2 3 4]);
#[cfg(target_arch = "x86_64")]
static AVX2_VNNI: Table = table!(I32x8Vnni, "avx2,fma,avxvnni": [1: 1 2 3 4 5 6] [2: 1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
static AVX512: Table = table!(
    I32x16, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8]
);
#[cfg(target_arch = "x86_64")]
static AVX512_VNNI: Table = table!(
    I32x16Vnni, "avx512f,avx512vl,avx512bw,avx512dq,avx512vnni,avx2,fma":
    [1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);
