//! Vectors of i32 that sum products of bytes: four unsigned bytes of a row with four signed ones for each sum.
//!
//! Every sum is exact modulo 2^32, whatever the instructions: products of pairs are added without saturation, and so all
//! instruction sets give the same bits. As with [`Lanes`](super::Lanes), making a vector asks for the instructions and having
//! one shows that they are there.

#[cfg(target_arch = "aarch64")]
use super::Lanes;
use crate::isa::Arith;
#[cfg(target_arch = "x86_64")]
use core::arch::x86_64::*;

/// A vector of sums.
///
/// # Invariants
/// Values exist only where the instructions of their type do: [`Dots::splat`], [`Dots::load`], [`Dots::bytes`] and
/// [`Dots::quad`] ask for them.
pub trait Dots: Copy {
    /// Number of sums, that of the numbers in a vector of [`Dots::Arith`].
    const N: usize;

    /// Arithmetic of f32 on the same instructions.
    type Arith: Arith;

    /// Four signed bytes for each sum.
    type Bytes: Copy;

    /// Four unsigned bytes, the same for each sum.
    type Quad: Copy;

    /// The same number everywhere.
    ///
    /// # Safety
    /// The processor has the type's instructions.
    unsafe fn splat(x: i32) -> Self;

    /// Reads `N` numbers; they need not be aligned.
    ///
    /// # Safety
    /// 1. The processor has the type's instructions.
    /// 2. `from` holds `N` numbers.
    unsafe fn load(from: *const i32) -> Self;

    /// Reads four bytes for each sum.
    ///
    /// # Safety
    /// 1. The processor has the type's instructions.
    /// 2. `from` holds `4 N` bytes.
    unsafe fn bytes(from: *const i8) -> Self::Bytes;

    /// Four bytes, in the order of memory.
    ///
    /// # Safety
    /// The processor has the type's instructions.
    unsafe fn quad(x: [u8; 4]) -> Self::Quad;

    /// Adds four products to each sum.
    fn dot(self, x: Self::Quad, bytes: Self::Bytes) -> Self;

    /// `self + b`, modulo 2^32.
    fn add(self, b: Self) -> Self;
    /// `self - b`, modulo 2^32.
    fn sub(self, b: Self) -> Self;
    /// `self * b`, modulo 2^32.
    fn mul(self, b: Self) -> Self;

    /// The nearest numbers, the even one of two.
    fn to_floats(self) -> <Self::Arith as Arith>::Lanes;

    /// Whole numbers between -2^31 and 2^31 as integers.
    fn of_floats(x: <Self::Arith as Arith>::Lanes) -> Self;

    /// Writes `N` numbers; they need not be aligned.
    ///
    /// # Safety
    /// `to` holds `N` numbers.
    unsafe fn store(self, to: *mut i32);

    /// Writes the first `n` numbers, at most `N`.
    ///
    /// # Safety
    /// `to` holds `n` numbers.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut i32, n: usize) {
        if n == Self::N {
            // SAFETY: `to` holds `N` numbers (# Safety).
            return unsafe { self.store(to) };
        }
        let mut whole = [0; 16];
        // SAFETY: 16 numbers are enough.
        unsafe { self.store(whole.as_mut_ptr()) };
        for (i, &x) in whole.iter().enumerate().take(n) {
            // SAFETY: `i` is below `n`.
            unsafe { to.add(i).write(x) };
        }
    }

    /// Writes the low bytes of the first `n` numbers, at most `N`.
    ///
    /// # Safety
    /// `to` holds `n` bytes.
    #[inline(always)]
    unsafe fn store_low_bytes(self, to: *mut u8, n: usize) {
        let mut whole = [0; 16];
        // SAFETY: 16 numbers are enough.
        unsafe { self.store(whole.as_mut_ptr()) };
        let bytes = whole.map(|x| x as u8);
        // SAFETY: `to` holds `n` bytes (# Safety), and `n` is at most 16.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), to, n) };
    }
}

/// A vector of x86-64. Four bytes become two vectors of i16, the even ones and the odd ones, whose products are summed in
/// pairs, unless there is one instruction for all.
#[cfg(target_arch = "x86_64")]
macro_rules! dots {
    ($(#[$meta:meta])* $name:ident($raw:ty) x $n:literal of $arith:ty:
     $splat:ident $load:ident $store:ident $add:ident $sub:ident $to:ident $of:ident,
     |$a:ident, $b:ident| $mul:expr, $bytes:ty: |$from:ident| $load_bytes:expr, $quad:ty: |$x:ident| $make_quad:expr,
     |$sum:ident, $factor:ident, $four:ident| $dot:expr; {$($more:tt)*}) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        pub struct $name($raw);

        impl Dots for $name {
            const N: usize = $n;
            type Arith = $arith;
            type Bytes = $bytes;
            type Quad = $quad;

            #[inline(always)]
            unsafe fn splat(x: i32) -> Self {
                // SAFETY: the processor has the instructions (# Safety of `Dots::splat`).
                Self(unsafe { $splat(x) })
            }

            #[inline(always)]
            unsafe fn load(from: *const i32) -> Self {
                // SAFETY: the processor has the instructions, and `from` holds a vector (# Safety of `Dots::load`).
                Self(unsafe { $load(from.cast()) })
            }

            #[inline(always)]
            unsafe fn bytes(from: *const i8) -> $bytes {
                // SAFETY: the processor has the instructions, and `from` holds a vector (# Safety of `Dots::bytes`).
                unsafe {
                    let $from = $load(from.cast());
                    $load_bytes
                }
            }

            #[inline(always)]
            unsafe fn quad(x: [u8; 4]) -> $quad {
                // SAFETY: the processor has the instructions (# Safety of `Dots::quad`).
                unsafe {
                    let $x = $splat(i32::from_ne_bytes(x));
                    $make_quad
                }
            }

            #[inline(always)]
            fn dot(self, $factor: $quad, $four: $bytes) -> Self {
                let $sum = self.0;
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $dot })
            }

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
                let ($a, $b) = (self.0, b.0);
                // SAFETY: there is a vector, so there are its instructions.
                Self(unsafe { $mul })
            }

            #[inline(always)]
            fn to_floats(self) -> <$arith as Arith>::Lanes {
                // SAFETY: there is a vector, so there are its instructions.
                <$arith as Arith>::Lanes::from_raw(unsafe { $to(self.0) })
            }

            #[inline(always)]
            fn of_floats(x: <$arith as Arith>::Lanes) -> Self {
                // SAFETY: there is a vector of the same instructions.
                Self(unsafe { $of(x.raw()) })
            }

            #[inline(always)]
            unsafe fn store(self, to: *mut i32) {
                // SAFETY: there is a vector, so there are its instructions; `to` holds one (# Safety of `Dots::store`).
                unsafe { $store(to.cast(), self.0) }
            }

            $($more)*
        }
    };
}

#[cfg(target_arch = "x86_64")]
dots! {
    /// SSE2.
    I32x4(__m128i) x 4 of crate::isa::Separate:
    _mm_set1_epi32 _mm_loadu_si128 _mm_storeu_si128 _mm_add_epi32 _mm_sub_epi32 _mm_cvtepi32_ps _mm_cvttps_epi32,
    |a, b| {
        // Products of the even numbers and of the odd ones; their low halves are those of signed numbers too.
        let even = _mm_shuffle_epi32::<0b00_00_10_00>(_mm_mul_epu32(a, b));
        let odd = _mm_mul_epu32(_mm_srli_epi64::<32>(a), _mm_srli_epi64::<32>(b));
        _mm_unpacklo_epi32(even, _mm_shuffle_epi32::<0b00_00_10_00>(odd))
    },
    [__m128i; 2]: |four| [_mm_srai_epi16::<8>(_mm_slli_epi16::<8>(four)), _mm_srai_epi16::<8>(four)],
    [__m128i; 2]: |x| [_mm_and_si128(x, _mm_set1_epi16(0xff)), _mm_srli_epi16::<8>(x)],
    |sum, x, four| {
        _mm_add_epi32(sum, _mm_add_epi32(_mm_madd_epi16(x[0], four[0]), _mm_madd_epi16(x[1], four[1])))
    }; {}
}

#[cfg(target_arch = "x86_64")]
dots! {
    /// AVX2.
    I32x8(__m256i) x 8 of crate::isa::Fused:
    _mm256_set1_epi32 _mm256_loadu_si256 _mm256_storeu_si256 _mm256_add_epi32 _mm256_sub_epi32 _mm256_cvtepi32_ps
    _mm256_cvttps_epi32,
    |a, b| _mm256_mullo_epi32(a, b),
    [__m256i; 2]: |four| [_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(four)), _mm256_srai_epi16::<8>(four)],
    [__m256i; 2]: |x| [_mm256_and_si256(x, _mm256_set1_epi16(0xff)), _mm256_srli_epi16::<8>(x)],
    |sum, x, four| {
        let pairs = [_mm256_madd_epi16(x[0], four[0]), _mm256_madd_epi16(x[1], four[1])];
        _mm256_add_epi32(sum, _mm256_add_epi32(pairs[0], pairs[1]))
    }; {}
}

#[cfg(target_arch = "x86_64")]
dots! {
    /// AVX2 with AVX-VNNI.
    I32x8Vnni(__m256i) x 8 of crate::isa::Fused:
    _mm256_set1_epi32 _mm256_loadu_si256 _mm256_storeu_si256 _mm256_add_epi32 _mm256_sub_epi32 _mm256_cvtepi32_ps
    _mm256_cvttps_epi32,
    |a, b| _mm256_mullo_epi32(a, b), __m256i: |four| four, __m256i: |x| x,
    |sum, x, four| _mm256_dpbusd_avx_epi32(sum, x, four); {}
}

#[cfg(target_arch = "x86_64")]
dots! {
    /// AVX-512 without VNNI.
    I32x16(__m512i) x 16 of crate::isa::FusedWide:
    _mm512_set1_epi32 _mm512_loadu_si512 _mm512_storeu_si512 _mm512_add_epi32 _mm512_sub_epi32 _mm512_cvtepi32_ps
    _mm512_cvttps_epi32,
    |a, b| _mm512_mullo_epi32(a, b),
    [__m512i; 2]: |four| [_mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(four)), _mm512_srai_epi16::<8>(four)],
    [__m512i; 2]: |x| [_mm512_and_si512(x, _mm512_set1_epi16(0xff)), _mm512_srli_epi16::<8>(x)],
    |sum, x, four| {
        let pairs = [_mm512_madd_epi16(x[0], four[0]), _mm512_madd_epi16(x[1], four[1])];
        _mm512_add_epi32(sum, _mm512_add_epi32(pairs[0], pairs[1]))
    }; {}
}

#[cfg(target_arch = "x86_64")]
dots! {
    /// AVX-512 with VNNI.
    I32x16Vnni(__m512i) x 16 of crate::isa::FusedWide:
    _mm512_set1_epi32 _mm512_loadu_si512 _mm512_storeu_si512 _mm512_add_epi32 _mm512_sub_epi32 _mm512_cvtepi32_ps
    _mm512_cvttps_epi32,
    |a, b| _mm512_mullo_epi32(a, b), __m512i: |four| four, __m512i: |x| x,
    |sum, x, four| _mm512_dpbusd_epi32(sum, x, four); {
        #[inline(always)]
        unsafe fn store_first(self, to: *mut i32, n: usize) {
            // SAFETY: there is a vector, so there are its instructions; numbers from `n` on are not touched.
            unsafe { _mm512_mask_storeu_epi32(to, ((1u32 << n) - 1) as __mmask16, self.0) }
        }

        #[inline(always)]
        unsafe fn store_low_bytes(self, to: *mut u8, n: usize) {
            // SAFETY: there is a vector, so there are its instructions; bytes from `n` on are not touched.
            unsafe { _mm512_mask_cvtepi32_storeu_epi8(to.cast(), ((1u32 << n) - 1) as __mmask16, self.0) }
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub use neon::I32x4;

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::{Arith, Dots, Lanes};
    use core::arch::aarch64::*;

    /// NEON: a byte of each of four columns, times one of the row, in i16.
    #[derive(Clone, Copy)]
    pub struct I32x4(int32x4_t);

    impl Dots for I32x4 {
        const N: usize = 4;
        type Arith = crate::isa::Baseline;
        /// The first and second byte of each sum, and the third and fourth.
        type Bytes = [int16x8_t; 2];
        type Quad = int16x4_t;

        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vdupq_n_s32(x) })
        }

        #[inline(always)]
        unsafe fn load(from: *const i32) -> Self {
            // SAFETY: NEON belongs to the target, and `from` holds a vector (# Safety of `Dots::load`).
            Self(unsafe { vld1q_s32(from) })
        }

        #[inline(always)]
        unsafe fn bytes(from: *const i8) -> [int16x8_t; 2] {
            const ORDER: [u8; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];
            // SAFETY: NEON belongs to the target, and `from` holds 16 bytes (# Safety of `Dots::bytes`).
            unsafe {
                let bytes = vqtbl1q_s8(vld1q_s8(from), vld1q_u8(ORDER.as_ptr()));
                [vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes)]
            }
        }

        #[inline(always)]
        unsafe fn quad(x: [u8; 4]) -> int16x4_t {
            // SAFETY: NEON belongs to the target.
            unsafe {
                let bytes = vreinterpret_u8_u32(vdup_n_u32(u32::from_ne_bytes(x)));
                vget_low_s16(vreinterpretq_s16_u16(vmovl_u8(bytes)))
            }
        }

        #[inline(always)]
        fn dot(self, x: int16x4_t, bytes: [int16x8_t; 2]) -> Self {
            // SAFETY: NEON belongs to the target.
            unsafe {
                let sum = vmlal_lane_s16::<0>(self.0, vget_low_s16(bytes[0]), x);
                let sum = vmlal_high_lane_s16::<1>(sum, bytes[0], x);
                let sum = vmlal_lane_s16::<2>(sum, vget_low_s16(bytes[1]), x);
                Self(vmlal_high_lane_s16::<3>(sum, bytes[1], x))
            }
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vaddq_s32(self.0, b.0) })
        }

        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vsubq_s32(self.0, b.0) })
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vmulq_s32(self.0, b.0) })
        }

        #[inline(always)]
        fn to_floats(self) -> <Self::Arith as Arith>::Lanes {
            let mut floats = [0.0; 4];
            // SAFETY: NEON belongs to the target, and there is room for four numbers.
            unsafe { vst1q_f32(floats.as_mut_ptr(), vcvtq_f32_s32(self.0)) };
            // SAFETY: NEON belongs to the target, and there are four numbers.
            unsafe { Lanes::load(floats.as_ptr()) }
        }

        #[inline(always)]
        fn of_floats(x: <Self::Arith as Arith>::Lanes) -> Self {
            let mut floats = [0.0; 4];
            // SAFETY: there is room for four numbers.
            unsafe { x.store(floats.as_mut_ptr()) };
            // SAFETY: NEON belongs to the target, and there are four numbers.
            Self(unsafe { vcvtq_s32_f32(vld1q_f32(floats.as_ptr())) })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            // SAFETY: NEON belongs to the target, and `to` holds a vector (# Safety of `Dots::store`).
            unsafe { vst1q_s32(to, self.0) }
        }
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub use portable::I32x4;

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
mod portable {
    use super::{Arith, Dots, Lanes};
    use core::array::from_fn;

    /// Four sums without instructions of their own, for other processors.
    #[derive(Clone, Copy)]
    pub struct I32x4([i32; 4]);

    impl Dots for I32x4 {
        const N: usize = 4;
        type Arith = crate::isa::Baseline;
        type Bytes = [[i8; 4]; 4];
        type Quad = [u8; 4];

        #[inline(always)]
        unsafe fn splat(x: i32) -> Self {
            Self([x; 4])
        }

        #[inline(always)]
        unsafe fn load(from: *const i32) -> Self {
            // SAFETY: `from` holds four numbers (# Safety of `Dots::load`, 2).
            Self(unsafe { from.cast::<[i32; 4]>().read_unaligned() })
        }

        #[inline(always)]
        unsafe fn bytes(from: *const i8) -> [[i8; 4]; 4] {
            // SAFETY: `from` holds 16 bytes (# Safety of `Dots::bytes`, 2).
            unsafe { from.cast::<[[i8; 4]; 4]>().read() }
        }

        #[inline(always)]
        unsafe fn quad(x: [u8; 4]) -> [u8; 4] {
            x
        }

        #[inline(always)]
        fn dot(self, x: [u8; 4], bytes: [[i8; 4]; 4]) -> Self {
            let four = |i: usize| (0..4).map(|k| i32::from(x[k]) * i32::from(bytes[i][k])).sum::<i32>();
            Self(from_fn(|i| self.0[i].wrapping_add(four(i))))
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            Self(from_fn(|i| self.0[i].wrapping_add(b.0[i])))
        }

        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            Self(from_fn(|i| self.0[i].wrapping_sub(b.0[i])))
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            Self(from_fn(|i| self.0[i].wrapping_mul(b.0[i])))
        }

        #[inline(always)]
        fn to_floats(self) -> <Self::Arith as Arith>::Lanes {
            let floats = self.0.map(|x| x as f32);
            // SAFETY: these vectors need no instructions, and there are four numbers.
            unsafe { Lanes::load(floats.as_ptr()) }
        }

        #[inline(always)]
        fn of_floats(x: <Self::Arith as Arith>::Lanes) -> Self {
            let mut floats = [0.0; 4];
            // SAFETY: there is room for four numbers.
            unsafe { x.store(floats.as_mut_ptr()) };
            Self(floats.map(|x| x as i32))
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut i32) {
            // SAFETY: `to` holds four numbers (# Safety of `Dots::store`).
            unsafe { to.cast::<[i32; 4]>().write_unaligned(self.0) }
        }
    }
}
