//! Numbers rounded to bf16 and paired: what products may be made of where the host permits it and the processor multiplies such
//! pairs (AVX512-BF16), twice as many numbers at once as of f32. Sums are of f32.
//!
//! A pair takes the 32 bits of a number, so that rows of pairs and panels of pairs are what [`Tiles`] work on. Each number of a
//! row is paired with the next one; an odd one at the end has a zero beside it.
//!
//! The instructions round to the nearest number, of two to the one whose last bit is 0. NaN stays NaN and infinities stay; a
//! number from [`INFINITE`] on becomes infinite. Numbers below 2^-126 count as zeros of their sign, sums too.

use crate::device::CpuDevice;
use crate::isa::Isa;
use crate::kernels::product::panels::Panels;
use crate::kernels::product::tile::Tiles;
use core::arch::x86_64::*;
use devbay_plugin_api::abi::DEVBAY_NUMERICS_BF16;
use devbay_plugin_api::reserve::{self, Size};
use devbay_plugin_api::sdk::{Host, PrepareRequest, Result, SendPtr};

/// The least number that becomes infinite: in the middle between bf16's largest one and the next power of two.
pub const INFINITE: f32 = f32::from_bits(0x7f7f_8000);

/// Numbers of a vector.
const LANES: usize = 16;

/// Numbers that one chunk rounds, at least.
const CHUNK: usize = 1 << 14;

const WHAT: &str = "a panel of weights";

/// The products of pairs.
///
/// # Invariants
/// Values exist only where the processor has AVX512-BF16 and [`Isa::Avx512`].
#[derive(Clone, Copy)]
pub struct Pairs {
    /// The micro-kernels, whose terms are pairs.
    pub tiles: Tiles,
}

impl Pairs {
    /// Pairs, if the processor multiplies them.
    pub fn of(isa: Isa) -> Option<Self> {
        // INVARIANT: there are tiles only with the instructions.
        Tiles::of_pairs(isa).map(|tiles| Self { tiles })
    }

    /// Pairs, if the host permits a product to be made of them, too.
    pub fn permitted(request: &PrepareRequest<'_, CpuDevice>) -> Option<Self> {
        Self::of(request.device.isa).filter(|_| request.numerics & DEVBAY_NUMERICS_BF16 != 0)
    }

    /// Pairs of a row of so many numbers.
    pub fn of_row(len: usize) -> usize {
        len.div_ceil(2)
    }

    /// Rounds the rows of a matrix, each of `len` numbers.
    ///
    /// # Safety
    /// `from` has the rows, and `to` room for the pairs of each ([`Pairs::of_row`]), which no other thread touches.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    pub unsafe fn round(
        &self,
        host: &Host,
        from: *const f32,
        [rows, len]: [usize; 2],
        to: *mut f32,
    ) -> Result<()> {
        let (from, to) = (SendPtr(from.cast_mut()), SendPtr(to));
        // Rows of an even length are paired as one row is, which is divided anywhere.
        let n = rows * len;
        let each = if len.is_multiple_of(2) { CHUNK } else { len };
        host.parallel_for(n.div_ceil(each), (CHUNK / each).max(1), |units, _| {
            let mut pace = host.pace();
            for unit in units {
                let (begin, of_unit) = (unit * each, each.min(n - unit * each));
                pace.work(of_unit)?;
                // SAFETY: the numbers are there, and the pairs are this unit's (# Safety).
                unsafe {
                    self.round_here(from.at(begin), [1, of_unit], to.at(unit * Self::of_row(each)));
                }
            }
            Ok(())
        })
    }

    /// As [`Pairs::round`], on this thread, of rows that fit a cache.
    ///
    /// # Safety
    /// As [`Pairs::round`].
    pub unsafe fn round_here(&self, from: *const f32, [rows, len]: [usize; 2], to: *mut f32) {
        let (rows, len) = if len.is_multiple_of(2) { (1, rows * len) } else { (rows, len) };
        for row in 0..rows {
            let to = to.wrapping_add(row * Self::of_row(len));
            // SAFETY: the numbers are there, and room for their pairs (# Safety); the processor has the instructions
            // (# Invariants).
            unsafe { round(from.wrapping_add(row * len), len, to) };
        }
    }

    /// Packs weights that come as `[column, channel, tap]` into panels of pairs of channels.
    ///
    /// # Errors
    /// Without memory for a panel.
    pub fn pack(&self, src: &[f32], [columns, channels, n_taps]: [usize; 3], dst: &mut [f32]) -> Result<()> {
        let numbers = Panels::of(columns, channels * n_taps, &self.tiles);
        self.pack_by(columns, channels, n_taps, dst, |panel, to| numbers.pack_one(panel, src, n_taps, to))
    }

    /// Packs a matrix of `k` by `columns` into panels of pairs of its rows.
    ///
    /// # Errors
    /// Without memory for a panel.
    pub fn pack_matrix(&self, src: &[f32], k: usize, columns: usize, dst: &mut [f32]) -> Result<()> {
        let numbers = Panels::of(columns, k, &self.tiles);
        self.pack_by(columns, k, 1, dst, |panel, to| numbers.pack_matrix_one(panel, src, to))
    }

    /// Packs panels whose numbers a function gives: whole vectors for each tap and channel.
    fn pack_by(
        &self,
        columns: usize,
        channels: usize,
        n_taps: usize,
        dst: &mut [f32],
        numbers: impl Fn(usize, &mut [f32]),
    ) -> Result<()> {
        let panels = Panels::of(columns, Self::of_row(channels) * n_taps, &self.tiles);
        if panels.len() == 0 {
            return Ok(());
        }
        let len = Size::of(channels * n_taps) * panels.widest() * LANES;
        let mut scratch: Vec<f32> = reserve::zeroed(len.get(WHAT)?, WHAT)?;
        for panel in 0..panels.n {
            let width = panels.width(panel);
            let scratch = &mut scratch[..channels * n_taps * width];
            numbers(panel, scratch);
            let dst = &mut dst[panels.at(panel)..][..panels.k * width];
            let taps = dst.chunks_exact_mut(Self::of_row(channels) * width);
            for (from, to) in scratch.chunks_exact(channels * width).zip(taps) {
                for (rows, to) in from.chunks(2 * width).zip(to.chunks_exact_mut(width)) {
                    let (first, second) = rows.split_at(width);
                    for (i, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                        let at =
                            |row: &[f32]| row.as_chunks::<LANES>().0.get(i).copied().unwrap_or([0.0; LANES]);
                        // SAFETY: the processor has the instructions (# Invariants).
                        unsafe { join(&at(first), &at(second), to) };
                    }
                }
            }
        }
        Ok(())
    }
}

/// Rounds numbers that follow each other. A zero is put beside an odd one.
///
/// # Safety
/// The processor has the instructions; `from` has `n` numbers, and `to` room for their pairs.
#[target_feature(enable = "avx512bf16,avx512f,avx512vl,avx512bw")]
unsafe fn round(from: *const f32, n: usize, to: *mut f32) {
    let to = to.cast::<u16>();
    let whole = n / LANES * LANES;
    for at in (0..whole).step_by(LANES) {
        // SAFETY: there are a vector's numbers from here, and room for them (# Safety).
        let rounded = _mm512_cvtneps_pbh(unsafe { _mm512_loadu_ps(from.wrapping_add(at)) });
        // SAFETY: the same; both types are of 256 bits.
        unsafe {
            _mm256_storeu_si256(
                to.wrapping_add(at).cast(),
                core::mem::transmute::<__m256bh, __m256i>(rounded),
            )
        };
    }
    if whole < n {
        let first = |n: usize| ((1u32 << n) - 1) as __mmask16;
        // SAFETY: there are these numbers (# Safety); the others are not read, and are zeros.
        let numbers = unsafe { _mm512_maskz_loadu_ps(first(n - whole), from.wrapping_add(whole)) };
        let rounded = _mm512_cvtneps_pbh(numbers);
        // SAFETY: there is room for whole pairs (# Safety); both types are of 256 bits.
        unsafe {
            let rounded = core::mem::transmute::<__m256bh, __m256i>(rounded);
            let mask = first((n - whole).next_multiple_of(2));
            _mm256_mask_storeu_epi16(to.wrapping_add(whole).cast(), mask, rounded);
        }
    }
}

/// Rounds two vectors and pairs each number of the first one with that of the second one.
///
/// # Safety
/// The processor has the instructions.
#[target_feature(enable = "avx512bf16,avx512f,avx512vl,avx512bw")]
unsafe fn join(first: &[f32; LANES], second: &[f32; LANES], to: &mut [f32; LANES]) {
    let rounded = |row: &[f32; LANES]| {
        // SAFETY: the row is a vector's numbers; both types are of 256 bits.
        let bits = unsafe {
            core::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(_mm512_loadu_ps(row.as_ptr())))
        };
        _mm512_cvtepu16_epi32(bits)
    };
    let pairs = _mm512_or_si512(rounded(first), _mm512_slli_epi32::<16>(rounded(second)));
    // SAFETY: there is room for a vector.
    unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), pairs) };
}
