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

/// [`Lanes::places`] and [`Lanes::pick`] of vectors of four that have no instruction for them.
macro_rules! four_places {
    () => {
        type Places = [usize; 4];

        #[inline(always)]
        unsafe fn places(places: &[i32; 16], more: i32) -> [usize; 4] {
            let mut all = [0; 4];
            for (place, from) in all.iter_mut().zip(places) {
                *place = from.wrapping_add(more) as usize % 4;
            }
            all
        }

        #[inline(always)]
        fn pick(self, places: [usize; 4]) -> Self {
            let (mut whole, mut picked) = ([0.0; 4], [0.0; 4]);
            // SAFETY: there is room for four numbers.
            unsafe { self.store(whole.as_mut_ptr()) };
            for (picked, place) in picked.iter_mut().zip(places) {
                *picked = whole[place % 4];
            }
            // SAFETY: there is a vector, so there are its instructions; there are four numbers.
            unsafe { Self::load(picked.as_ptr()) }
        }
    };
}

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

    /// Places of a vector's elements, as [`Lanes::pick`] takes them.
    type Places: Copy;

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

    /// Reads `N` bytes: the lower four bits of each, and the upper ones, as numbers from 0 to 15.
    ///
    /// # Safety
    /// As [`Lanes::load`], with bytes.
    #[inline(always)]
    unsafe fn load_nibbles(from: *const u8) -> [Self; 2] {
        let (mut low, mut high) = ([0; 16], [0; 16]);
        for i in 0..Self::N {
            // SAFETY: `i` is below `N` (# Safety, 2).
            let byte = unsafe { from.add(i).read() };
            (low[i], high[i]) = (byte & 15, byte >> 4);
        }
        // SAFETY: the processor has the instructions (# Safety, 1), and 16 bytes are enough.
        unsafe { [Self::load_u8(low.as_ptr()), Self::load_u8(high.as_ptr())] }
    }

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

    /// A place for each element, plus `more`, modulo `N`.
    ///
    /// # Safety
    /// The processor has the type's instructions.
    unsafe fn places(places: &[i32; 16], more: i32) -> Self::Places;

    /// For each element the one at its place.
    fn pick(self, places: Self::Places) -> Self;

    /// Each element is the one so many places behind it, modulo `N`.
    #[inline(always)]
    fn turned(self, by: i32) -> Self {
        const IN_PLACE: [i32; 16] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
        // SAFETY: there is a vector, so there are its instructions.
        self.pick(unsafe { Self::places(&IN_PLACE, by) })
    }

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

/// A vector whose elements may each be a pair of numbers of bf16, the first one in the lower half.
#[cfg(target_arch = "x86_64")]
pub trait Pairs: Lanes {
    /// `c` and, for each element, the products of the first numbers and of the second ones. Numbers below 2^-126 are zeros,
    /// also in `c` and as a result.
    ///
    /// # Safety
    /// The processor has AVX512-BF16.
    unsafe fn fma_pairs(self, b: Self, c: Self) -> Self;
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
    type Places = ();
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
    unsafe fn places(_places: &[i32; 16], _more: i32) {}

    #[inline(always)]
    fn pick(self, (): ()) -> Self {
        self
    }

    #[inline(always)]
    fn sums(vectors: [Self; 4]) -> [f32; 4] {
        vectors.map(|v| v.0)
    }
}

pub mod dots;

#[cfg(target_arch = "x86_64")]
pub use x86::{F32x4, F32x8, F32x16};

#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use neon::F32x4Fused;

#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(not(target_arch = "x86_64"))]
mod portable;
#[cfg(not(target_arch = "x86_64"))]
pub use portable::F32x4;

#[cfg(test)]
mod tests;
