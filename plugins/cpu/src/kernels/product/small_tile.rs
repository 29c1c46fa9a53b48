//! The micro-kernels of quantised weights: a few rows times a panel that is widened in registers, and a panel that is widened
//! in memory for [`tile`](super::tile), where many rows use it.
//!
//! A weight is `(q - zero) * scale`, rounded as DequantizeLinear rounds it. Each sum begins with its bias and takes its terms in
//! order, as the sums of [`tile`](super::tile) do: the number of rows does not change a bit of them.

use crate::isa::{Arith, Isa};
use crate::kernels::product::small_panels::Stored;
use crate::kernels::product::tile::{Quick, VECTORS_MAX};
use crate::lanes::{Lanes, read, unrolled, write};

/// Rows that are made at once, at most.
pub const ROWS_MAX: usize = 4;

/// A panel of packed weights.
#[derive(Clone, Copy)]
pub struct Panel {
    /// Its bytes.
    pub bytes: *const u8,
    /// The scale of each column in the first block.
    pub scales: *const f32,
    /// Their zero points; NULL if all have the same, `zero`.
    pub zeros: *const u8,
    pub zero: f32,
    /// Distance from the numbers of a block to those of the next one.
    pub stride: usize,
    /// Terms of a block, at least 1; even if a byte has two terms and there are more blocks.
    pub block: usize,
}

/// Some rows times a panel.
#[derive(Clone, Copy)]
pub struct Job {
    pub panel: Panel,
    /// Terms.
    pub k: usize,
    /// The first row, and the distance to the next.
    pub x: *const f32,
    pub x_stride: usize,
    /// The first row of the result, and the distance to the next.
    pub y: *mut f32,
    pub y_stride: usize,
    /// Columns, at least one in the last vector.
    pub columns: usize,
    /// A number for each column that its sums begin with; or NULL.
    pub bias: *const f32,
    pub activation: Quick,
}

/// Makes rows.
///
/// # Safety
/// 1. The processor has the instructions of the table that the function comes from.
/// 2. The panel has the terms, and each row has them.
/// 3. `y` has the columns of each row, that no other thread touches, and `bias` has them.
type RowsFn = unsafe fn(&Job);

/// Writes the weights of terms from the first number to the second one, whole vectors of each.
///
/// # Safety
/// 1. The processor has the instructions of the table that the function comes from.
/// 2. The panel has these terms, and there is room for their weights.
/// 3. The first number is even if a byte has two terms.
type WidenFn = unsafe fn(&Panel, [usize; 2], *mut f32);

/// Ways to read a weight.
const KINDS: usize = 3;
/// A signed byte without a zero point; an unsigned byte; half a byte.
const SIGNED: usize = 0;
const UNSIGNED: usize = 1;
const NIBBLES: usize = 2;

/// Functions by kind, by vectors and by rows, the last two counted from 1.
type RowsTable = [[[Option<RowsFn>; ROWS_MAX]; VECTORS_MAX]; KINDS];
type WidenTable = [[Option<WidenFn>; VECTORS_MAX]; KINDS];

/// The micro-kernels of an instruction set for one kind of weights.
#[derive(Clone, Copy)]
pub struct SmallTiles {
    kind: usize,
    rows: &'static RowsTable,
    widen: &'static WidenTable,
}

impl SmallTiles {
    /// Those of an instruction set.
    pub fn of(isa: Isa, stored: Stored) -> Self {
        let kind = match stored {
            Stored::Signed => SIGNED,
            Stored::Unsigned => UNSIGNED,
            Stored::Nibbles => NIBBLES,
        };
        let (rows, widen) = match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => (&AVX2_ROWS, &AVX2_WIDEN),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => (&AVX512_ROWS, &AVX512_WIDEN),
            _ => (&BASELINE_ROWS, &BASELINE_WIDEN),
        };
        Self { kind, rows, widen }
    }

    /// Makes `rows` rows of so many vectors.
    ///
    /// # Safety
    /// As [`RowsFn`], of the first point of which there is this value.
    #[inline]
    pub unsafe fn rows(&self, vectors: usize, rows: usize, job: &Job) {
        let Some(make) = self.rows[self.kind][vectors - 1][rows - 1] else {
            unreachable!("{rows} rows of {vectors} vectors")
        };
        // SAFETY: as this function (# Safety).
        unsafe { make(job) };
    }

    /// Widens terms of so many vectors.
    ///
    /// # Safety
    /// As [`WidenFn`], of the first point of which there is this value.
    #[inline]
    pub unsafe fn widen(&self, vectors: usize, panel: &Panel, terms: [usize; 2], to: *mut f32) {
        let Some(widen) = self.widen[self.kind][vectors - 1] else { unreachable!("{vectors} vectors") };
        // SAFETY: as this function (# Safety).
        unsafe { widen(panel, terms, to) };
    }
}

/// Does something with the weights of each term from `begin` to `end`. What it is used in asks for the instructions, for the
/// panel's terms, and that `begin` is even if a byte has two terms.
macro_rules! each_term {
    ($arith:ty, $kind:ident, $vectors:ident, $panel:ident, $begin:expr, $end:expr, |$k:ident, $weights:ident| $body:block) => {{
        let (begin, end): (usize, usize) = ($begin, $end);
        let n = <$arith as Arith>::Lanes::N;
        // SAFETY: the processor has the instructions.
        let (none, zero) = unsafe { (<$arith as Arith>::Lanes::splat(0.0), <$arith as Arith>::Lanes::splat($panel.zero)) };
        let (mut scales, mut zeros) = ([none; $vectors], [zero; $vectors]);
        let terms_of_byte = if $kind == NIBBLES { 2 } else { 1 };
        let mut bytes = $panel.bytes.wrapping_add(begin / terms_of_byte * $vectors * n);
        let mut at = begin;
        while at < end {
            let block = at / $panel.block;
            let stop = end.min((block + 1) * $panel.block);
            let first = block * $panel.stride;
            unrolled!(v below $vectors {
                // SAFETY: there is a scale for each column of the block.
                scales[v] = unsafe { <$arith as Arith>::Lanes::load($panel.scales.wrapping_add(first + v * n)) };
            });
            if $kind != SIGNED && !$panel.zeros.is_null() {
                unrolled!(v below $vectors {
                    let from = $panel.zeros.wrapping_add(first + v * n);
                    // SAFETY: there is a zero point for each column of the block.
                    zeros[v] = unsafe { <$arith as Arith>::Lanes::load_u8(from) };
                });
            }
            while at < stop {
                let mut both = [[none; $vectors]; 2];
                unrolled!(v below $vectors {
                    let from = bytes.wrapping_add(v * n);
                    // SAFETY: the panel has the byte of these terms for each column.
                    let numbers = unsafe {
                        match $kind {
                            SIGNED => [<$arith as Arith>::Lanes::load_i8(from.cast()), none],
                            UNSIGNED => [<$arith as Arith>::Lanes::load_u8(from), none],
                            _ => <$arith as Arith>::Lanes::load_nibbles(from),
                        }
                    };
                    if $kind == SIGNED {
                        both[0][v] = numbers[0].mul(scales[v]);
                    } else {
                        both[0][v] = numbers[0].sub(zeros[v]).mul(scales[v]);
                    }
                    if $kind == NIBBLES {
                        both[1][v] = numbers[1].sub(zeros[v]).mul(scales[v]);
                    }
                });
                let $k = at;
                let $weights = both[0];
                $body
                if $kind == NIBBLES && at + 1 < stop {
                    let $k = at + 1;
                    let $weights = both[1];
                    $body
                }
                bytes = bytes.wrapping_add($vectors * n);
                at += terms_of_byte;
            }
        }
    }};
}

/// # Safety
/// As [`RowsFn`], of `R` rows and `V` vectors.
#[inline(always)]
unsafe fn rows_body<A: Arith, const KIND: usize, const V: usize, const R: usize>(job: &Job) {
    let n = <A::Lanes as Lanes>::N;
    let panel = &job.panel;
    // SAFETY: the processor has the instructions (# Safety, 1).
    let mut sums = [[unsafe { A::Lanes::splat(0.0) }; V]; R];
    // The last vector may have fewer columns.
    let columns = |v: usize| if v + 1 == V { job.columns - v * n } else { n };
    if !job.bias.is_null() {
        unrolled!(v below V {
            // SAFETY: there is a number for each column (# Safety, 3).
            let bias = unsafe { read(job.bias.wrapping_add(v * n), columns(v)) };
            unrolled!(r below R { sums[r][v] = bias; });
        });
    }
    each_term!(A, KIND, V, panel, 0, job.k, |k, weights| {
        unrolled!(r below R {
            // SAFETY: the row has the term (# Safety, 2).
            let x = unsafe { A::Lanes::splat(*job.x.wrapping_add(r * job.x_stride + k)) };
            unrolled!(v below V { sums[r][v] = x.fma(weights[v], sums[r][v]); });
        });
    });
    unrolled!(r below R {
        let y = job.y.wrapping_add(r * job.y_stride);
        unrolled!(v below V {
            // SAFETY: the processor has the instructions (# Safety, 1).
            let sum = unsafe { job.activation.apply::<A, A::Lanes>(sums[r][v]) };
            // SAFETY: the columns of each vector are these rows' (# Safety, 3).
            unsafe { write(sum, y.wrapping_add(v * n), columns(v)) };
        });
    });
}

/// # Safety
/// As [`WidenFn`], of `V` vectors.
#[inline(always)]
unsafe fn widen_body<A: Arith, const KIND: usize, const V: usize>(
    panel: &Panel,
    [begin, end]: [usize; 2],
    to: *mut f32,
) {
    let n = <A::Lanes as Lanes>::N;
    each_term!(A, KIND, V, panel, begin, end, |k, weights| {
        unrolled!(v below V {
            // SAFETY: there is room for the weights of each term (# Safety, 2).
            unsafe { weights[v].store(to.wrapping_add(((k - begin) * V + v) * n)) };
        });
    });
}

/// The tables of an instruction set: rows, and widening, for each number of vectors.
macro_rules! tables {
    ($rows:ident, $widen:ident: $arith:ty $(, $features:literal)?: $($vectors:literal)*) => {
        static $rows: RowsTable = {
            $(#[target_feature(enable = $features)])?
            unsafe fn rows<const KIND: usize, const V: usize, const R: usize>(job: &Job) {
                // SAFETY: as `RowsFn`.
                unsafe { rows_body::<$arith, KIND, V, R>(job) }
            }
            let mut table: RowsTable = [[[None; ROWS_MAX]; VECTORS_MAX]; KINDS];
            $(
                table[SIGNED][$vectors - 1] = tables!(@ rows SIGNED $vectors);
                table[UNSIGNED][$vectors - 1] = tables!(@ rows UNSIGNED $vectors);
                table[NIBBLES][$vectors - 1] = tables!(@ rows NIBBLES $vectors);
            )*
            table
        };
        static $widen: WidenTable = {
            $(#[target_feature(enable = $features)])?
            unsafe fn widen<const KIND: usize, const V: usize>(panel: &Panel, terms: [usize; 2], to: *mut f32) {
                // SAFETY: as `WidenFn`.
                unsafe { widen_body::<$arith, KIND, V>(panel, terms, to) }
            }
            let mut table: WidenTable = [[None; VECTORS_MAX]; KINDS];
            $(
                table[SIGNED][$vectors - 1] = Some(widen::<SIGNED, $vectors> as WidenFn);
                table[UNSIGNED][$vectors - 1] = Some(widen::<UNSIGNED, $vectors> as WidenFn);
                table[NIBBLES][$vectors - 1] = Some(widen::<NIBBLES, $vectors> as WidenFn);
            )*
            table
        };
    };
    (@ $rows:ident $kind:ident $vectors:literal) => {
        [
            Some($rows::<$kind, $vectors, 1> as RowsFn),
            Some($rows::<$kind, $vectors, 2> as RowsFn),
            Some($rows::<$kind, $vectors, 3> as RowsFn),
            Some($rows::<$kind, $vectors, 4> as RowsFn),
        ]
    };
}

#[cfg(not(target_arch = "aarch64"))]
tables!(BASELINE_ROWS, BASELINE_WIDEN: crate::isa::Baseline: 1 2);
#[cfg(target_arch = "aarch64")]
tables!(BASELINE_ROWS, BASELINE_WIDEN: crate::isa::Baseline: 1 2 3 4);
#[cfg(target_arch = "x86_64")]
tables!(AVX2_ROWS, AVX2_WIDEN: crate::isa::Fused, "avx2,fma": 1 2);
#[cfg(target_arch = "x86_64")]
tables!(AVX512_ROWS, AVX512_WIDEN: crate::isa::FusedWide, "avx512f,avx512vl,avx512bw,avx512dq,avx2,fma": 1 2 3 4);
