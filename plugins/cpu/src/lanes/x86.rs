//! Vectors of x86-64: SSE2, AVX2 and AVX-512.

use super::{Lanes, Pairs};
use core::arch::x86_64::*;

macro_rules! lanes {
    ($(#[$meta:meta])* $name:ident($raw:ty) x $n:literal, $half:ident: $splat:ident $load:ident $store:ident
     $add:ident $sub:ident $mul:ident $max:ident $min:ident, |$a:ident, $b:ident, $c:ident| $fma:expr,
     |$u:ident| $load_u8:expr, |$i:ident| $load_i8:expr, |$x:ident| $quarter:expr, |$p:ident, $q:ident| $or_nan:expr
     $(, |$first_from:ident, $of:ident| $load_first:expr, |$first_to:ident, $ot:ident, $what:ident| $store_first:expr)?; {$($more:tt)*}) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name($raw);

        impl $name {
            /// A vector of what the same instructions made.
            #[inline(always)]
            pub(super) fn from_raw(raw: $raw) -> Self {
                Self(raw)
            }

            /// The registers' own type.
            #[inline(always)]
            pub(super) fn raw(self) -> $raw {
                self.0
            }

            /// Four numbers with the same sum.
            #[inline(always)]
            fn quarter(self) -> __m128 {
                let $x = self.0;
                $quarter
            }
        }

        impl Lanes for $name {
            const N: usize = $n;
            type Half = $half;

            #[inline(always)]
            unsafe fn splat(x: f32) -> Self {
                // SAFETY: the processor has the instructions (# Safety of `Lanes::splat`).
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            unsafe fn load(from: *const f32) -> Self {
                // SAFETY: the processor has the instructions, and `from` holds a vector
                // (# Safety of `Lanes::load`).
                Self(unsafe { $load(from) })
            }

            #[inline(always)]
            unsafe fn load_u8($u: *const u8) -> Self {
                // SAFETY: the processor has the instructions, and the address holds a vector of bytes
                // (# Safety of `Lanes::load_u8`).
                Self(unsafe { $load_u8 })
            }

            #[inline(always)]
            unsafe fn load_i8($i: *const i8) -> Self {
                // SAFETY: the processor has the instructions, and the address holds a vector of bytes
                // (# Safety of `Lanes::load_i8`).
                Self(unsafe { $load_i8 })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut f32) {
                // SAFETY: there is a vector, so there are its instructions; `to` holds a vector
                // (# Safety of `Lanes::store`).
                unsafe { $store(to, self.0) }
            }

            $(
                #[inline(always)]
                unsafe fn load_first($first_from: *const f32, $of: usize) -> Self {
                    // SAFETY: the processor has the instructions, and the numbers behind the first ones are not
                    // touched (# Safety of `Lanes::load_first`).
                    Self(unsafe { $load_first })
                }

                #[inline(always)]
                unsafe fn store_first(self, $first_to: *mut f32, $ot: usize) {
                    let $what = self.0;
                    // SAFETY: there is a vector, so there are its instructions; what is behind the first numbers is
                    // not touched (# Safety of `Lanes::store_first`).
                    unsafe { $store_first }
                }
            )?

            #[inline(always)]
            fn add(self, b: Self) -> Self {
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $add(self.0, b.0) })
            }

            #[inline(always)]
            fn sub(self, b: Self) -> Self {
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $sub(self.0, b.0) })
            }

            #[inline(always)]
            fn mul(self, b: Self) -> Self {
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $mul(self.0, b.0) })
            }

            #[inline(always)]
            fn fma(self, b: Self, c: Self) -> Self {
                let ($a, $b, $c) = (self.0, b.0, c.0);
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $fma })
            }

            #[inline(always)]
            fn at_least(self, low: Self) -> Self {
                // The instruction gives its second operand unless the first is larger: where one is NaN, and of
                // two zeros.
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $max(low.0, self.0) })
            }

            #[inline(always)]
            fn at_most(self, high: Self) -> Self {
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $min(high.0, self.0) })
            }

            #[inline(always)]
            fn or_nan(self, b: Self) -> Self {
                let ($p, $q) = (self.0, b.0);
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $or_nan })
            }

            #[inline(always)]
            fn prefetch(from: *const f32) {
                // SAFETY: SSE belongs to the target, and nothing is read.
                unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
            }

            #[inline(always)]
            fn sums(vectors: [Self; 4]) -> [f32; 4] {
                let [a, b, c, d] = vectors;
                sums([a.quarter(), b.quarter(), c.quarter(), d.quarter()])
            }

            $($more)*
        }
    };
}

lanes! {
    /// Four numbers: SSE2, which every x86-64 has. Its `fma` rounds twice.
    F32x4(__m128) x 4, F32x4: _mm_set1_ps _mm_loadu_ps _mm_storeu_ps _mm_add_ps _mm_sub_ps _mm_mul_ps
    _mm_max_ps _mm_min_ps,
    |a, b, c| _mm_add_ps(_mm_mul_ps(a, b), c),
    |from| {
        let (bytes, zero) = (_mm_cvtsi32_si128(from.cast::<i32>().read_unaligned()), _mm_setzero_si128());
        _mm_cvtepi32_ps(_mm_unpacklo_epi16(_mm_unpacklo_epi8(bytes, zero), zero))
    },
    |from| {
        // Each byte becomes the highest of its number, which is then shifted down with its sign.
        let bytes = _mm_cvtsi32_si128(from.cast::<i32>().read_unaligned());
        let twice = _mm_unpacklo_epi8(bytes, bytes);
        _mm_cvtepi32_ps(_mm_srai_epi32::<24>(_mm_unpacklo_epi16(twice, twice)))
    },
    |x| x,
    |a, b| {
        let is_nan = _mm_cmpunord_ps(b, b);
        _mm_or_ps(_mm_and_ps(is_nan, b), _mm_andnot_ps(is_nan, a))
    }; {

    four_places!();

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm_andnot_ps(_mm_set1_ps(-0.0), self.0) })
    }

    #[inline(always)]
    fn copysign(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            let sign = _mm_set1_ps(-0.0);
            _mm_or_ps(_mm_andnot_ps(sign, self.0), _mm_and_ps(sign, b.0))
         })
    }

    #[inline(always)]
    fn if_below(self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            let is_below = _mm_cmplt_ps(self.0, b.0);
            _mm_or_ps(_mm_and_ps(is_below, yes.0), _mm_andnot_ps(is_below, no.0))
         })
    }

    #[inline(always)]
    fn scaled(self, n: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            // Twice, because 2^n alone leaves the range of normal numbers at both ends.
            let n = _mm_cvtps_epi32(n.0);
            let half = _mm_srai_epi32::<1>(n);
            let bias = _mm_set1_epi32(127);
            let first = _mm_castsi128_ps(_mm_slli_epi32::<23>(_mm_add_epi32(half, bias)));
            let rest = _mm_add_epi32(_mm_sub_epi32(n, half), bias);
            _mm_mul_ps(_mm_mul_ps(self.0, first), _mm_castsi128_ps(_mm_slli_epi32::<23>(rest)))
         })
    }
    }
}
lanes! {
    /// Eight numbers: AVX2 and FMA.
    F32x8(__m256) x 8, F32x4: _mm256_set1_ps _mm256_loadu_ps _mm256_storeu_ps _mm256_add_ps _mm256_sub_ps
    _mm256_mul_ps _mm256_max_ps _mm256_min_ps,
    |a, b, c| _mm256_fmadd_ps(a, b, c),
    |from| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))),
    |from| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))),
    // SAFETY: there is a vector, so there are its instructions.
    |x| unsafe {
        _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps::<1>(x))
    },
    |a, b| _mm256_blendv_ps(a, b, _mm256_cmp_ps::<_CMP_UNORD_Q>(b, b)),
    |from, n| _mm256_maskload_ps(from, first_of_eight(n)),
    |to, n, x| _mm256_maskstore_ps(to, first_of_eight(n), x); {

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [Self; 2] {
        // SAFETY: the processor has the instructions, and `from` holds eight bytes (# Safety).
        unsafe {
            let bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()));
            let low = _mm256_and_si256(bytes, _mm256_set1_epi32(15));
            [Self(_mm256_cvtepi32_ps(low)), Self(_mm256_cvtepi32_ps(_mm256_srli_epi32::<4>(bytes)))]
        }
    }

    type Places = __m256i;

    #[inline(always)]
    unsafe fn places(places: &[i32; 16], more: i32) -> __m256i {
        // SAFETY: the processor has the instructions (# Safety); there are eight places.
        unsafe { _mm256_add_epi32(_mm256_loadu_si256(places.as_ptr().cast()), _mm256_set1_epi32(more)) }
    }

    #[inline(always)]
    fn pick(self, places: __m256i) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm256_permutevar8x32_ps(self.0, places) })
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm256_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm256_andnot_ps(_mm256_set1_ps(-0.0), self.0) })
    }

    #[inline(always)]
    fn copysign(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            let sign = _mm256_set1_ps(-0.0);
            _mm256_or_ps(_mm256_andnot_ps(sign, self.0), _mm256_and_ps(sign, b.0))
         })
    }

    #[inline(always)]
    fn if_below(self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_LT_OQ>(self.0, b.0))
         })
    }

    #[inline(always)]
    fn scaled(self, n: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            // Twice, because 2^n alone leaves the range of normal numbers at both ends.
            let n = _mm256_cvtps_epi32(n.0);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias)));
            let rest = _mm256_add_epi32(_mm256_sub_epi32(n, half), bias);
            let rest = _mm256_castsi256_ps(_mm256_slli_epi32::<23>(rest));
            _mm256_mul_ps(_mm256_mul_ps(self.0, first), rest)
         })
    }
    }
}
lanes! {
    /// Sixteen numbers: AVX-512.
    F32x16(__m512) x 16, F32x8: _mm512_set1_ps _mm512_loadu_ps _mm512_storeu_ps _mm512_add_ps _mm512_sub_ps
    _mm512_mul_ps _mm512_max_ps _mm512_min_ps,
    |a, b, c| _mm512_fmadd_ps(a, b, c),
    |from| _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))),
    |from| _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))),
    // SAFETY: there is a vector, so there are its instructions.
    |x| F32x8(unsafe {
        _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps::<1>(x))
    })
    .quarter(),
    |a, b| _mm512_mask_mov_ps(a, _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(b, b), b),
    |from, n| _mm512_maskz_loadu_ps(first_of_sixteen(n), from),
    |to, n, x| _mm512_mask_storeu_ps(to, first_of_sixteen(n), x); {

    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [Self; 2] {
        const NUMBERS: [f32; 16] =
            [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
        // SAFETY: the processor has the instructions, and `from` holds sixteen bytes (# Safety).
        unsafe {
            let bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()));
            // A permutation looks at four bits alone, so that it also masks.
            let numbers = _mm512_loadu_ps(NUMBERS.as_ptr());
            let upper = _mm512_srli_epi32::<4>(bytes);
            [Self(_mm512_permutexvar_ps(bytes, numbers)), Self(_mm512_permutexvar_ps(upper, numbers))]
        }
    }

    type Places = __m512i;

    #[inline(always)]
    unsafe fn places(places: &[i32; 16], more: i32) -> __m512i {
        // SAFETY: the processor has the instructions (# Safety); there are sixteen places.
        unsafe { _mm512_add_epi32(_mm512_loadu_si512(places.as_ptr().cast()), _mm512_set1_epi32(more)) }
    }

    #[inline(always)]
    fn pick(self, places: __m512i) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm512_permutexvar_ps(places, self.0) })
    }

    #[inline(always)]
    fn div(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm512_div_ps(self.0, b.0) })
    }

    #[inline(always)]
    fn abs(self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm512_abs_ps(self.0) })
    }

    #[inline(always)]
    fn copysign(self, b: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe {
            let sign = _mm512_set1_ps(-0.0);
            _mm512_or_ps(_mm512_andnot_ps(sign, self.0), _mm512_and_ps(sign, b.0))
         })
    }

    #[inline(always)]
    fn if_below(self, b: Self, yes: Self, no: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm512_mask_mov_ps(no.0, _mm512_cmp_ps_mask::<_CMP_LT_OQ>(self.0, b.0), yes.0) })
    }

    #[inline(always)]
    fn scaled(self, n: Self) -> Self {
        // SAFETY: there is a vector, so there are its instructions.
        Self(unsafe { _mm512_scalef_ps(self.0, n.0) })
    }
    }
}

impl Pairs for F32x8 {
    #[inline(always)]
    unsafe fn fma_pairs(self, b: Self, c: Self) -> Self {
        // SAFETY: the processor has AVX512-BF16 (# Safety of `Pairs::fma_pairs`), and with it AVX-512 VL.
        Self(unsafe {
            _mm256_dpbf16_ps(
                c.0,
                core::mem::transmute::<__m256, __m256bh>(self.0),
                core::mem::transmute::<__m256, __m256bh>(b.0),
            )
        })
    }
}

impl Pairs for F32x16 {
    #[inline(always)]
    unsafe fn fma_pairs(self, b: Self, c: Self) -> Self {
        // SAFETY: the processor has AVX512-BF16 (# Safety of `Pairs::fma_pairs`).
        Self(unsafe {
            _mm512_dpbf16_ps(
                c.0,
                core::mem::transmute::<__m512, __m512bh>(self.0),
                core::mem::transmute::<__m512, __m512bh>(b.0),
            )
        })
    }
}

/// The first `n` of eight, at most eight, as a mask of sign bits.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn first_of_eight(n: usize) -> __m256i {
    // SAFETY: the processor has AVX2 (# Safety).
    unsafe { _mm256_cmpgt_epi32(_mm256_set1_epi32(n as i32), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)) }
}

/// The first `n` of sixteen, at most sixteen, as a mask.
#[inline(always)]
fn first_of_sixteen(n: usize) -> __mmask16 {
    ((1u32 << n) - 1) as __mmask16
}

/// The sum of each of four vectors of four: a transposition on the way, which is cheaper than four
/// sums.
#[inline(always)]
fn sums([a, b, c, d]: [__m128; 4]) -> [f32; 4] {
    let mut sums = [0.0; 4];
    // SAFETY: SSE2 belongs to the target.
    unsafe {
        let ab = _mm_add_ps(_mm_unpacklo_ps(a, b), _mm_unpackhi_ps(a, b));
        let cd = _mm_add_ps(_mm_unpacklo_ps(c, d), _mm_unpackhi_ps(c, d));
        let abcd = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
        _mm_storeu_ps(sums.as_mut_ptr(), abcd);
    }
    sums
}
