//! The micro-kernels of the gemm crate, by instruction set, and the panels that they work on.
//!
//! A micro-kernel computes a tile `C[n][m] += sum_k R[n][k] * L[k][m]`. `m` runs along vectors: L comes in
//! *panels* of [`Micro::mr`] columns, k after k. `n` is at most [`NR`]: R comes in panels of [`NR`] rows, or
//! in place with any strides. Constants are packed into panels once, by the host ([`layout_id`]); what changes
//! from run to run is packed into the workspace.

use crate::isa::Isa;
use devbay_plugin_api::reserve::{self, NoMemory, Size};
use gemm_common::microkernel::MicroKernelFn;
use std::borrow::Cow;

/// Rows of R that a tile has at most: as many as the best micro-kernels of the target.
pub const NR: usize = if cfg!(target_arch = "x86_64") { 6 } else { 4 };

/// Values of k that are worked on at once: a panel of L then fits into the second-level cache.
pub const KC: usize = 384;

/// Micro-kernels of one instruction set.
#[derive(Clone, Copy)]
pub struct Micro {
    /// Columns of a whole panel of L.
    pub mr: usize,
    /// Columns of one vector.
    pub lanes: usize,
    /// Rows that the micro-kernels have at most.
    rows: usize,
    /// By vectors and rows, each counted from 1; rows beyond what the set has are None.
    table: &'static [[MicroKernelFn<f32>; NR]],
}

/// The crate's plain micro-kernels have four rows at most; two calls make six.
#[cfg(target_arch = "x86_64")]
const fn widened<const M: usize>(table: [[MicroKernelFn<f32>; 4]; M]) -> [[MicroKernelFn<f32>; NR]; M] {
    let mut wide = [[table[0][0]; NR]; M];
    let mut i = 0;
    while i < M {
        let mut j = 0;
        while j < 4 {
            wide[i][j] = table[i][j];
            j += 1;
        }
        i += 1;
    }
    wide
}

#[cfg(target_arch = "x86_64")]
static PLAIN: [[MicroKernelFn<f32>; NR]; 2] = widened(gemm_f32::microkernel::scalar::f32::UKR);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static PLAIN: [[MicroKernelFn<f32>; NR]; 2] = gemm_f32::microkernel::scalar::f32::UKR;
#[cfg(target_arch = "aarch64")]
static NEON: [[MicroKernelFn<f32>; NR]; 4] = gemm_f32::microkernel::neon::f32::UKR;
#[cfg(target_arch = "x86_64")]
static FMA: [[MicroKernelFn<f32>; NR]; 2] = gemm_f32::microkernel::fma::f32::UKR;
#[cfg(target_arch = "x86_64")]
static AVX512: [[MicroKernelFn<f32>; NR]; 4] = gemm_f32::microkernel::avx512f::f32::UKR;

impl Micro {
    /// The micro-kernels of an instruction set.
    pub fn of(isa: Isa) -> Self {
        match isa {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self { mr: 16, lanes: 8, rows: NR, table: &FMA },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self { mr: 64, lanes: 16, rows: NR, table: &AVX512 },
            #[cfg(target_arch = "aarch64")]
            _ => Self { mr: 16, lanes: 4, rows: 4, table: &NEON },
            #[cfg(not(target_arch = "aarch64"))]
            _ => Self { mr: 2, lanes: 1, rows: 4, table: &PLAIN },
        }
    }

    /// Columns that a tile of `m` wanted ones works on: whole vectors.
    pub fn padded(&self, m: usize) -> usize {
        m.next_multiple_of(self.lanes)
    }

    /// One tile: `dst[j * dst_stride + i] (+)= scale * sum_k right(j, k) * left[k * left_stride + i]` for `i` below
    /// `m`, whole vectors, and `j` below `n`.
    ///
    /// # Safety
    /// 1. `m` is a multiple of the lanes and at most `mr`; `n` is 1 to [`NR`].
    /// 2. `left`, `right` and `dst` are valid for the ranges above, `dst` for writing.
    #[inline]
    pub unsafe fn tile(&self, m: usize, n: usize, k: usize, left: Left, right: Right, dst: Dst) {
        let mut j = 0;
        while j < n {
            let rows = (n - j).min(self.rows);
            let kernel = self.table[m / self.lanes - 1][rows - 1];
            // SAFETY: `left`, `right` and `dst` are valid for the tile (# Safety, 2); rows and vectors select a kernel
            // of exactly this tile (1), so that it stores whole vectors. `next_lhs` is not read.
            unsafe {
                kernel(
                    m,
                    rows,
                    k,
                    dst.start.wrapping_add(j * dst.stride),
                    left.start,
                    right.start.wrapping_offset(j as isize * right.row_stride),
                    dst.stride as isize,
                    1,
                    left.stride as isize,
                    right.k_stride,
                    right.row_stride,
                    1.0,
                    dst.scale,
                    u8::from(dst.accumulate),
                    false,
                    false,
                    false,
                    left.start,
                );
            }
            j += rows;
        }
    }
}

/// A panel of L.
#[derive(Clone, Copy)]
pub struct Left {
    /// First column at the first k.
    pub start: *const f32,
    /// Distance from one k to the next.
    pub stride: usize,
}

/// Rows of R.
#[derive(Clone, Copy)]
pub struct Right {
    /// First row at the first k.
    pub start: *const f32,
    /// Distance from one k to the next.
    pub k_stride: isize,
    /// Distance from one row to the next.
    pub row_stride: isize,
}

/// A tile of C.
#[derive(Clone, Copy)]
pub struct Dst {
    /// First column of the first row.
    pub start: *mut f32,
    /// Distance from one row to the next.
    pub stride: usize,
    /// Factor of the product.
    pub scale: f32,
    /// True if the product is added to what is there.
    pub accumulate: bool,
}

/// Packs a matrix of `rows` by `k` into panels of [`NR`] rows, the last padded with zeroes: panel after panel, in
/// each k after k. `at(row, k)` gives its elements.
pub fn pack_right(rows: usize, k: usize, dst: &mut [f32], at: impl Fn(usize, usize) -> f32) {
    // An axis of nothing leaves nothing to pack.
    for (panel, dst) in dst.chunks_exact_mut((k * NR).max(1)).enumerate() {
        for (i, group) in dst.chunks_exact_mut(NR).enumerate() {
            for (j, value) in group.iter_mut().enumerate() {
                let row = panel * NR + j;
                *value = if row < rows { at(row, i) } else { 0.0 };
            }
        }
    }
}

/// Elements of [`pack_right`]'s result.
pub fn packed_right_len(rows: usize, k: usize) -> usize {
    rows.div_ceil(NR) * NR * k
}

/// As [`packed_right_len`], for extents that may not fit.
pub fn packed_right_size(rows: usize, k: usize) -> Size {
    Size::of(rows).next_multiple_of(NR) * k
}

/// As [`packed_left_len`], for extents that may not fit.
pub fn packed_left_size(mr: usize, columns: usize, k: usize) -> Size {
    Size::of(columns).next_multiple_of(mr) * k
}

/// Packs a matrix of `k` by `columns` into panels of `mr` columns, the last padded with zeroes: panel after panel,
/// in each k after k. `at(k, column)` gives its elements.
pub fn pack_left(mr: usize, columns: usize, k: usize, dst: &mut [f32], at: impl Fn(usize, usize) -> f32) {
    // An axis of nothing leaves nothing to pack.
    for (panel, dst) in dst.chunks_exact_mut((k * mr).max(1)).enumerate() {
        for (i, group) in dst.chunks_exact_mut(mr).enumerate() {
            for (j, value) in group.iter_mut().enumerate() {
                let column = panel * mr + j;
                *value = if column < columns { at(i, column) } else { 0.0 };
            }
        }
    }
}

/// Elements of [`pack_left`]'s result.
pub fn packed_left_len(mr: usize, columns: usize, k: usize) -> usize {
    columns.div_ceil(mr) * mr * k
}

/// Names a packed layout: FNV-1a over what decides it.
pub fn layout_id(parts: &[u64]) -> u64 {
    parts.iter().flat_map(|part| part.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A packed constant's bytes as numbers.
///
/// # Errors
/// Invalid if the host's memory is not aligned to them, which it was asked to be.
pub fn as_f32s_mut(bytes: &mut [u8]) -> devbay_plugin_api::sdk::Result<&mut [f32]> {
    let refused = |_| devbay_plugin_api::sdk::Error::invalid("memory that is not aligned to its elements");
    bytemuck::try_cast_slice_mut(bytes).map_err(refused)
}

/// A constant's bytes as numbers; copied if they are not aligned.
///
/// # Errors
/// Without memory for the copy.
pub fn to_f32s(bytes: &[u8]) -> Result<Cow<'_, [f32]>, NoMemory> {
    if cfg!(target_endian = "little")
        && let Ok(numbers) = bytemuck::try_cast_slice(bytes)
    {
        return Ok(Cow::Borrowed(numbers));
    }
    let numbers = bytes.as_chunks().0.iter().copied().map(f32::from_le_bytes);
    reserve::collected(numbers, COPY).map(Cow::Owned)
}

/// A constant's bytes as factors of products: subnormal numbers are zeros of their sign. Trained models have them, and some
/// processors take microseconds for each product with one. Copied if there are any, or if the bytes are not aligned.
///
/// # Errors
/// Without memory for the copy.
pub fn to_weights(bytes: &[u8]) -> Result<Cow<'_, [f32]>, NoMemory> {
    let numbers = to_f32s(bytes)?;
    // Without an end in the middle of a block, so that it is a loop on vectors.
    let has_subnormal = |block: &[f32]| block.iter().fold(false, |any, x| any | x.is_subnormal());
    if !numbers.chunks(1024).any(has_subnormal) {
        return Ok(numbers);
    }
    let rounded = |&x: &f32| if x.is_subnormal() { 0f32.copysign(x) } else { x };
    reserve::collected(numbers.iter().map(rounded), COPY).map(Cow::Owned)
}

/// What memory for a constant is asked for.
const COPY: &str = "a copy of a constant";
