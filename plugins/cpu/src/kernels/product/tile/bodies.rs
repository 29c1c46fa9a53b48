//! The bodies of the micro-kernels, compiled for each instruction set.

use super::{
    AHEAD, Job, PANELS_MAX, Quick, ROWS_MAX, RowFn, RowJob, RowTable, Run, Segment, Source, StripFn,
    StripTable, Table, TileFn, VECTORS_MAX,
};
use crate::isa::Arith;
#[cfg(target_arch = "x86_64")]
use crate::lanes::Pairs;
use crate::lanes::{Lanes, read, unrolled, write};

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
pub(super) static BASELINE: Table =
    table!(crate::isa::Separate, Number, half false: [1: 1 2 3 4 5 6] [2: 1 2 3 4 5 6]);
#[cfg(target_arch = "aarch64")]
pub(super) static NEON: Table = table!(
    crate::isa::Baseline, Number, half false:
    [1: 1 2 3 4 5 6 7 8 9 10 11 12] [2: 1 2 3 4 5 6 7 8] [3: 1 2 3 4 5 6 7] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX2: Table =
    table!(crate::isa::Fused, Number, half false, "avx2,fma": [1: 1 2 3 4 5 6] [2: 1 2 3 4 5 6]);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512: Table = table!(
    crate::isa::FusedWide, Number, half false, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_HALVES: Table = table!(
    crate::isa::FusedWide, Number, half true, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);

/// Pairs of terms, with the instructions of AVX512-BF16.
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_PAIRS: Table = table!(
    crate::isa::FusedWide, Pair, half false, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_PAIRS_HALVES: Table = table!(
    crate::isa::FusedWide, Pair, half true, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 1 2 3 4 5 6 7 8] [2: 1 2 3 4 5 6 7 8 9 10 11 12] [3: 1 2 3 4 5 6 7 8] [4: 1 2 3 4 5 6]
);

#[cfg(not(target_arch = "aarch64"))]
pub(super) static BASELINE_STRIPS: StripTable =
    strip_table!(crate::isa::Separate, Number, half false: [1: 6] [2: 6]);
#[cfg(target_arch = "aarch64")]
pub(super) static NEON_STRIPS: StripTable =
    strip_table!(crate::isa::Baseline, Number, half false: [1: 12] [2: 8] [3: 7] [4: 6]);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX2_STRIPS: StripTable =
    strip_table!(crate::isa::Fused, Number, half false, "avx2,fma": [1: 6] [2: 6]);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Number, half false, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": [1: 8] [2: 12] [3: 8] [4: 6]
);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_HALF_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Number, half true, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": [1: 8] [2: 12] [3: 8] [4: 6]
);

#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_PAIRS_STRIPS: StripTable = strip_table!(
    crate::isa::FusedWide, Pair, half false, "avx512bf16,avx512f,avx512vl,avx512bw,avx512dq,avx2,fma":
    [1: 8] [2: 12] [3: 8] [4: 6]
);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_PAIRS_HALF_STRIPS: StripTable = strip_table!(
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
pub(super) static BASELINE_ROW: RowTable = row_table!(crate::isa::Separate: 1 2);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX2_ROW: RowTable = row_table!(crate::isa::Fused, "avx2,fma": 1 2);
#[cfg(target_arch = "x86_64")]
pub(super) static AVX512_ROW: RowTable =
    row_table!(crate::isa::FusedWide, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": 1 2 3 4);
#[cfg(target_arch = "aarch64")]
pub(super) static NEON_ROW: RowTable = row_table!(crate::isa::Baseline: 1 2 3 4);
/// Pairs have none: a row is read once, and its tile waits for the weights.
#[cfg(target_arch = "x86_64")]
pub(super) static NO_ROWS: RowTable = [[None; PANELS_MAX]; VECTORS_MAX];
