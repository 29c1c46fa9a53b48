//! Vectors of f32, for the loops that the compiler's autovectoriser cannot be trusted with: matrix
//! products and Fourier transforms, whose accumulators have to stay in registers.
//!
//! A body that is generic over [`Arith`] finds the widest vector of its instruction
//! set as `A::Lanes`. Making a vector is unsafe, because it needs the instructions; having one shows
//! that they are there, so that arithmetic is safe.
//!
//! All of it is inlined into the function that has the instructions, or it is slow: a vector is handed on
//! by value only to what is always inlined, which closures, `array::map` and `array::from_fn` are not.

use crate::isa::Arith;
use core::marker::PhantomData;

/// Does something for each number below a constant of at most twelve, written out: sums that a loop counts do not stay in
/// registers.
macro_rules! unrolled {
    ($i:ident below $n:ident $body:block) => {
        unrolled!(@ $i $n $body 0 1 2 3 4 5 6 7 8 9 10 11)
    };
    (@ $i:ident $n:ident $body:block $($number:literal)*) => {
        $({
            let $i: usize = $number;
            if $i < $n $body
        })*
    };
}

pub(crate) use unrolled;

/// A vector of f32.
///
/// # Invariants
/// Values exist only where the instructions of their type do: [`Lanes::splat`], [`Lanes::load`] and
/// [`Lanes::load_first`] ask for them, and nothing else makes a vector from anything but vectors.
pub trait Lanes: Copy {
    /// Number of elements: 1, 4, 8 or 16.
    const N: usize;

    /// True if a multiply-add takes one element of a vector as a factor. Numbers that follow each other in memory are then
    /// best read together, instead of each being spread over a vector. Such a vector has four.
    const TAKES_ELEMENTS: bool = false;

    /// A vector of half as many, at least 4 where it has that many; its instructions come with this type's.
    type Half: Lanes;

    /// The same number everywhere.
    ///
    /// # Safety
    /// The processor has the type's instructions.
    unsafe fn splat(x: f32) -> Self;

    /// Reads `N` numbers; they need not be aligned.
    ///
    /// # Safety
    /// 1. The processor has the type's instructions.
    /// 2. `from` holds `N` numbers.
    unsafe fn load(from: *const f32) -> Self;

    /// Reads `N` unsigned bytes.
    ///
    /// # Safety
    /// As [`Lanes::load`], with bytes.
    unsafe fn load_u8(from: *const u8) -> Self;

    /// Reads `N` signed bytes.
    ///
    /// # Safety
    /// As [`Lanes::load`], with bytes.
    unsafe fn load_i8(from: *const i8) -> Self;

    /// Writes `N` numbers; they need not be aligned.
    ///
    /// # Safety
    /// `to` holds `N` numbers.
    unsafe fn store(self, to: *mut f32);

    /// `self + b`.
    fn add(self, b: Self) -> Self;
    /// `self - b`.
    fn sub(self, b: Self) -> Self;
    /// `self * b`.
    fn mul(self, b: Self) -> Self;
    /// `self * b + c`, rounded once where there is an instruction for it.
    fn fma(self, b: Self, c: Self) -> Self;
    /// `self[I] * b + c`, rounded as by [`Lanes::fma`].
    #[inline(always)]
    fn fma_element<const I: i32>(self, b: Self, c: Self) -> Self {
        let mut whole = [0.0; 16];
        // SAFETY: 16 numbers are enough.
        unsafe { self.store(whole.as_mut_ptr()) };
        // SAFETY: there is a vector, so there are its instructions.
        unsafe { Self::splat(whole[I as usize]) }.fma(b, c)
    }
    /// `low` where it is larger, else `self`, which also stays if it is no number or a zero of either sign. Not called
    /// `max`, of which every processor has another idea.
    fn at_least(self, low: Self) -> Self;
    /// `high` where it is smaller, else `self`, as in [`Lanes::at_least`].
    fn at_most(self, high: Self) -> Self;
    /// `b` where that is no number, else `self`.
    fn or_nan(self, b: Self) -> Self;
    /// The sum of each of four vectors.
    fn sums(vectors: [Self; 4]) -> [f32; 4];

    /// `self / b`.
    #[inline(always)]
    fn div(self, b: Self) -> Self {
        self.each(b, |a, b| a / b)
    }

    /// Without its sign.
    #[inline(always)]
    fn abs(self) -> Self {
        self.each(self, |a, _| a.abs())
    }

    /// With the sign of `b`.
    #[inline(always)]
    fn copysign(self, b: Self) -> Self {
        self.each(b, f32::copysign)
    }

    /// `yes` where `self` is below `b`, else `no`, also where one is no number.
    #[inline(always)]
    fn if_below(self, b: Self, yes: Self, no: Self) -> Self {
        let is_below = self.each(b, |a, b| f32::from(u8::from(a < b)));
        let yes = is_below.each(yes, |is_below, yes| if is_below == 1.0 { yes } else { 0.0 });
        let no = is_below.each(no, |is_below, no| if is_below == 1.0 { 0.0 } else { no });
        yes.each(no, |yes, no| f32::from_bits(yes.to_bits() | no.to_bits()))
    }

    /// `self * 2^n`, rounded once, for whole numbers `n` from -160 to 160 and `self` about 1. NaN if `self` or `n` is.
    #[inline(always)]
    fn scaled(self, n: Self) -> Self {
        self.each(n, |a, n| {
            // Twice, because 2^n alone leaves the range of normal numbers at both ends.
            let n = n as i32;
            let power = |n: i32| f32::from_bits((n.wrapping_add(127) as u32) << 23);
            a * power(n >> 1) * power(n.wrapping_sub(n >> 1))
        })
    }

    /// A function of each two numbers, without vectors.
    #[inline(always)]
    fn each(self, b: Self, f: impl Fn(f32, f32) -> f32) -> Self {
        let mut numbers = [[0.0; 16]; 2];
        // SAFETY: 16 numbers are enough.
        unsafe { self.store(numbers[0].as_mut_ptr()) };
        // SAFETY: 16 numbers are enough.
        unsafe { b.store(numbers[1].as_mut_ptr()) };
        let [mut a, b] = numbers;
        for i in 0..Self::N {
            a[i] = f(a[i], b[i]);
        }
        // SAFETY: there is a vector, so there are its instructions; 16 numbers are enough.
        unsafe { Self::load(a.as_ptr()) }
    }

    /// Asks for the line of the second-level cache that an address lies in. The address may be any.
    #[inline(always)]
    fn prefetch(from: *const f32) {
        let _ = from;
    }

    /// Writes the first `n` numbers, at most `N`.
    ///
    /// # Safety
    /// `to` holds `n` numbers.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut f32, n: usize) {
        let mut whole = [0.0; 16];
        // SAFETY: 16 numbers are enough.
        unsafe { self.store(whole.as_mut_ptr()) };
        for (i, &x) in whole.iter().enumerate().take(n) {
            // SAFETY: `i` is below `n`.
            unsafe { to.add(i).write(x) };
        }
    }

    /// Reads `n` numbers, at most `N`, and fills up with 0.
    ///
    /// # Safety
    /// 1. The processor has the type's instructions.
    /// 2. `from` holds `n` numbers.
    #[inline(always)]
    unsafe fn load_first(from: *const f32, n: usize) -> Self {
        let mut padded = [0.0; 16];
        for (i, slot) in padded.iter_mut().enumerate().take(n) {
            // SAFETY: `i` is below `n` (2).
            *slot = unsafe { from.add(i).read() };
        }
        // SAFETY: the processor has the instructions (# Safety, 1), and 16 numbers are enough.
        unsafe { Self::load(padded.as_ptr()) }
    }
}

/// Reads `n` numbers, at most a vector, and fills up with 0.
///
/// # Safety
/// There are `n` elements to read, at most a vector, and the processor has the instructions.
#[inline(always)]
pub unsafe fn read<L: Lanes>(from: *const f32, n: usize) -> L {
    // SAFETY: there are `n` elements to read, at most a vector, and the processor has the instructions (# Safety).
    unsafe { if n == L::N { L::load(from) } else { L::load_first(from, n) } }
}

/// Writes the first `n` numbers, at most a vector.
///
/// # Safety
/// There is room for `n` elements, at most a vector.
#[inline(always)]
pub unsafe fn write<L: Lanes>(values: L, to: *mut f32, n: usize) {
    // SAFETY: there is room for `n` elements, at most a vector (# Safety).
    unsafe { if n == L::N { values.store(to) } else { values.store_first(to, n) } }
}

/// One number, with the arithmetic of an instruction set.
#[derive(Clone, Copy)]
pub struct F32x1<A>(f32, PhantomData<A>);

impl<A: Arith> Lanes for F32x1<A> {
    const N: usize = 1;
    type Half = Self;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self(x, PhantomData)
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: `from` holds a number (# Safety of `Lanes::load`, 2).
        Self(unsafe { from.read() }, PhantomData)
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: `from` holds a byte (# Safety of `Lanes::load_u8`).
        Self(f32::from(unsafe { from.read() }), PhantomData)
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: `from` holds a byte (# Safety of `Lanes::load_i8`).
        Self(f32::from(unsafe { from.read() }), PhantomData)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` holds a number (# Safety of `Lanes::store`).
        unsafe { to.write(self.0) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Self(self.0 + b.0, PhantomData)
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Self(self.0 - b.0, PhantomData)
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Self(self.0 * b.0, PhantomData)
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(A::fma(self.0, b.0, c.0), PhantomData)
    }

    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        if low.0 > self.0 { low } else { self }
    }

    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        if high.0 < self.0 { high } else { self }
    }

    #[inline(always)]
    fn or_nan(self, b: Self) -> Self {
        if b.0.is_nan() { b } else { self }
    }

    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|v| v.0)
    }
}

#[cfg(target_arch = "x86_64")]
pub use x86::{F32x4, F32x8, F32x16};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Lanes;
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
}

#[cfg(target_arch = "aarch64")]
pub use neon::F32x4Fused;

#[cfg(target_arch = "aarch64")]
mod neon {
    use super::Lanes;
    use core::arch::aarch64::*;

    /// Four numbers: NEON, which every aarch64 has. Its `fma` rounds once.
    #[derive(Clone, Copy)]
    pub struct F32x4Fused(float32x4_t);

    impl Lanes for F32x4Fused {
        const N: usize = 4;
        const TAKES_ELEMENTS: bool = true;
        type Half = Self;

        #[inline(always)]
        unsafe fn splat(x: f32) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vdupq_n_f32(x) })
        }

        #[inline(always)]
        unsafe fn load(from: *const f32) -> Self {
            // SAFETY: NEON belongs to the target, and `from` holds a vector (# Safety of `Lanes::load`).
            Self(unsafe { vld1q_f32(from) })
        }

        #[inline(always)]
        unsafe fn load_u8(from: *const u8) -> Self {
            // SAFETY: NEON belongs to the target, and `from` holds four bytes (# Safety of `Lanes::load_u8`).
            Self(unsafe {
                let bytes = vreinterpret_u8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
                vcvtq_f32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
            })
        }

        #[inline(always)]
        unsafe fn load_i8(from: *const i8) -> Self {
            // SAFETY: NEON belongs to the target, and `from` holds four bytes (# Safety of `Lanes::load_i8`).
            Self(unsafe {
                let bytes = vreinterpret_s8_u32(vdup_n_u32(from.cast::<u32>().read_unaligned()));
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
            })
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut f32) {
            // SAFETY: NEON belongs to the target, and `to` holds a vector (# Safety of `Lanes::store`).
            unsafe { vst1q_f32(to, self.0) }
        }

        #[inline(always)]
        unsafe fn load_first(from: *const f32, n: usize) -> Self {
            // SAFETY: NEON belongs to the target, and what is behind the first numbers is not touched
            // (# Safety of `Lanes::load_first`).
            Self(unsafe {
                let none = vdup_n_f32(0.0);
                match n {
                    0 => vcombine_f32(none, none),
                    1 => vcombine_f32(vld1_lane_f32::<0>(from, none), none),
                    2 => vcombine_f32(vld1_f32(from), none),
                    3 => vcombine_f32(vld1_f32(from), vld1_lane_f32::<0>(from.add(2), none)),
                    _ => vld1q_f32(from),
                }
            })
        }

        #[inline(always)]
        unsafe fn store_first(self, to: *mut f32, n: usize) {
            // SAFETY: NEON belongs to the target, and what is behind the first numbers is not touched
            // (# Safety of `Lanes::store_first`).
            unsafe {
                match n {
                    0 => {}
                    1 => vst1q_lane_f32::<0>(to, self.0),
                    2 => vst1_f32(to, vget_low_f32(self.0)),
                    3 => {
                        vst1_f32(to, vget_low_f32(self.0));
                        vst1q_lane_f32::<2>(to.add(2), self.0);
                    }
                    _ => vst1q_f32(to, self.0),
                }
            }
        }

        #[inline(always)]
        fn add(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vaddq_f32(self.0, b.0) })
        }

        #[inline(always)]
        fn sub(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vsubq_f32(self.0, b.0) })
        }

        #[inline(always)]
        fn mul(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vmulq_f32(self.0, b.0) })
        }

        #[inline(always)]
        fn fma(self, b: Self, c: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vfmaq_f32(c.0, self.0, b.0) })
        }

        #[inline(always)]
        fn fma_element<const I: i32>(self, b: Self, c: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vfmaq_laneq_f32::<I>(c.0, b.0, self.0) })
        }

        #[inline(always)]
        fn at_least(self, low: Self) -> Self {
            // The instruction for a maximum gives NaN for a NaN on either side, and 0 of two zeros.
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vbslq_f32(vcgtq_f32(low.0, self.0), low.0, self.0) })
        }

        #[inline(always)]
        fn at_most(self, high: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vbslq_f32(vcltq_f32(high.0, self.0), high.0, self.0) })
        }

        #[inline(always)]
        fn or_nan(self, b: Self) -> Self {
            // SAFETY: NEON belongs to the target.
            Self(unsafe { vbslq_f32(vceqq_f32(b.0, b.0), self.0, b.0) })
        }

        #[inline(always)]
        fn prefetch(from: *const f32) {
            // SAFETY: the instruction gives a hint, changes nothing that the compiler knows of, and does not fail.
            unsafe {
                core::arch::asm!(
                    "prfm pldl2keep, [{}]",
                    in(reg) from,
                    options(nomem, nostack, preserves_flags)
                );
            }
        }

        #[inline(always)]
        fn sums([a, b, c, d]: [Self; 4]) -> [f32; 4] {
            let mut sums = [0.0; 4];
            // SAFETY: NEON belongs to the target, and there is room for four sums.
            unsafe {
                let all = vpaddq_f32(vpaddq_f32(a.0, b.0), vpaddq_f32(c.0, d.0));
                vst1q_f32(sums.as_mut_ptr(), all);
            }
            sums
        }
    }
}

/// Four numbers without instructions of their own, for other processors; its `fma` rounds twice.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy)]
pub struct F32x4([f32; 4]);

#[cfg(not(target_arch = "x86_64"))]
impl Lanes for F32x4 {
    const N: usize = 4;
    type Half = Self;

    #[inline(always)]
    unsafe fn splat(x: f32) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: `from` holds four numbers (# Safety of `Lanes::load`, 2).
        Self(unsafe { from.cast::<[f32; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> Self {
        // SAFETY: `from` holds four bytes (# Safety of `Lanes::load_u8`).
        Self(unsafe { from.cast::<[u8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> Self {
        // SAFETY: `from` holds four bytes (# Safety of `Lanes::load_i8`).
        Self(unsafe { from.cast::<[i8; 4]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: `to` holds four numbers (# Safety of `Lanes::store`).
        unsafe { to.cast::<[f32; 4]>().write_unaligned(self.0) }
    }

    #[inline(always)]
    fn add(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] + b.0[i]))
    }

    #[inline(always)]
    fn sub(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] - b.0[i]))
    }

    #[inline(always)]
    fn mul(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] * b.0[i]))
    }

    #[inline(always)]
    fn fma(self, b: Self, c: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i] * b.0[i] + c.0[i]))
    }

    #[inline(always)]
    fn at_least(self, low: Self) -> Self {
        Self(core::array::from_fn(|i| if self.0[i] < low.0[i] { low.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn at_most(self, high: Self) -> Self {
        Self(core::array::from_fn(|i| if self.0[i] > high.0[i] { high.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn or_nan(self, b: Self) -> Self {
        Self(core::array::from_fn(|i| if b.0[i].is_nan() { b.0[i] } else { self.0[i] }))
    }

    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|v| (v.0[0] + v.0[2]) + (v.0[1] + v.0[3]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dispatch;
    use crate::kernels::testing::isas;

    dispatch! { fn check(bytes: &[u8; 256]) = check_body }

    /// Compares each function with what its description says of single numbers.
    #[inline(always)]
    unsafe fn check_body<A: Arith>(bytes: &[u8; 256]) {
        let n = A::Lanes::N;
        let numbers = [f32::NAN, 0.0, -0.0, 1.5, -2.5, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE];
        let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        let stored = |vector: A::Lanes| {
            let mut values = [7.0; 16];
            // SAFETY: sixteen numbers are enough for every vector.
            unsafe { vector.store(values.as_mut_ptr()) };
            values[..n].to_vec()
        };
        let all = |vector: A::Lanes, expected: f32| {
            let found = stored(vector);
            assert!(
                found.iter().all(|x| x.to_bits() == expected.to_bits()),
                "{found:?}, expected {expected}"
            );
        };
        for a in numbers {
            for b in numbers {
                // SAFETY: the caller has the instructions.
                let (x, y) = unsafe { (A::Lanes::splat(a), A::Lanes::splat(b)) };
                all(x.at_least(y), if b > a { b } else { a });
                all(x.at_most(y), if b < a { b } else { a });
                all(x.or_nan(y), if b.is_nan() { b } else { a });
            }
        }
        for first in (0..256).step_by(n) {
            let from = bytes[first..].as_ptr();
            // SAFETY: there is a vector of bytes from `first`, since its length divides 256.
            let (unsigned, signed) = unsafe { (A::Lanes::load_u8(from), A::Lanes::load_i8(from.cast())) };
            let expected =
                |f: fn(u8) -> f32| bytes[first..first + n].iter().map(|&byte| f(byte)).collect::<Vec<_>>();
            assert_eq!(stored(unsigned), expected(f32::from));
            assert_eq!(stored(signed), expected(|byte| f32::from(byte as i8)));
        }
        let some: Vec<f32> = (0..n).map(|i| i as f32 + 0.5).collect();
        for count in 0..=n {
            // Exactly as many as may be read.
            let few = some[..count].to_vec();
            // SAFETY: there are `count` numbers, and the caller has the instructions.
            let vector: A::Lanes = unsafe { A::Lanes::load_first(few.as_ptr(), count) };
            let mut expected = vec![0.0; n];
            expected[..count].copy_from_slice(&few);
            assert_eq!(stored(vector), expected);
            let mut written = vec![9.0; n];
            // SAFETY: there is room for a vector, and it has its numbers.
            unsafe { A::Lanes::load(some.as_ptr()).store_first(written.as_mut_ptr(), count) };
            expected[..count].copy_from_slice(&some[..count]);
            expected[count..].fill(9.0);
            assert_eq!(bits(&written), bits(&expected));
        }
        // SAFETY: there is a vector of numbers, and the caller has the instructions.
        let (vector, one) = unsafe { (A::Lanes::load(some.as_ptr()), A::Lanes::splat(1.0)) };
        all(vector.fma_element::<2>(one, one), 3.5);
        all(one.fma(one, one), 2.0);
        let sum: f32 = some.iter().sum();
        assert_eq!(A::Lanes::sums([vector, one, vector, one.sub(one)]), [sum, n as f32, sum, 0.0]);
    }

    #[test]
    fn vectors_do_what_single_numbers_do() {
        let bytes = core::array::from_fn(|i| i as u8);
        for isa in isas() {
            // SAFETY: the processor has the instructions.
            unsafe { check(isa)(&bytes) };
        }
    }
}
