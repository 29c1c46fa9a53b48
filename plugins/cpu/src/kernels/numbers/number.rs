//! Element types and their arithmetic as ONNX has it: integers wrap, dividing an integer by zero gives 0,
//! and the smaller or larger of two numbers is NaN when one of them is.

use bytemuck::{Pod, Zeroable};
use devbay_plugin_api::sdk::{BOOL, DType, Element};

/// A truth value in memory. Any byte may be read: what is not 0 is true. Only 0 and 1 are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Pod, Zeroable)]
#[repr(transparent)]
pub(crate) struct Bool(u8);

impl Element for Bool {
    const DTYPE: DType = BOOL;
}

impl Bool {
    #[inline(always)]
    pub(crate) fn new(value: bool) -> Self {
        Self(u8::from(value))
    }

    #[inline(always)]
    pub(crate) fn get(self) -> bool {
        self.0 != 0
    }
}

/// Numbers that the kernels calculate with.
pub(crate) trait Number: Element + PartialOrd + Send + Sync {
    /// Bound that no number is below.
    const LOWEST: Self;
    /// Bound that no number is above.
    const HIGHEST: Self;
    const ZERO: Self;
    const ONE: Self;
    /// Sums and products are the same in any order.
    const ANY_ORDER: bool;

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// The quotient, without its fraction for integers.
    fn div(self, other: Self) -> Self;
    /// Returns the remainder of a division, with the sign of `self` (C's `fmod`).
    fn remainder(self, other: Self) -> Self;
    /// Returns the remainder of a division, with the sign of `other` (Python's `%`).
    fn modulo(self, other: Self) -> Self;
    fn neg(self) -> Self;
    fn abs(self) -> Self;
    fn is_nan(self) -> bool;

    /// The larger one; NaN if one is.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        let larger = if self > other { self } else { other };
        self.or_nan(other, larger)
    }

    /// The smaller one; NaN if one is.
    #[inline(always)]
    fn smaller(self, other: Self) -> Self {
        let smaller = if self < other { self } else { other };
        self.or_nan(other, smaller)
    }

    /// NaN if one of the two is, else `value`.
    #[inline(always)]
    fn or_nan(self, other: Self, value: Self) -> Self {
        // The sum is NaN then. Choosing between the two themselves would be more direct, but compilers
        // turn `*x = choose(*x, y)` into a masked store, which costs several plain ones.
        if self.is_nan() | other.is_nan() { self.add(other) } else { value }
    }
}

/// Calls a function for the type that an element type is, of those that have a plain loop and no vectorised one.
macro_rules! plain {
    ($dtype:expr, $function:ident::<$($op:ident)::+>($($argument:expr),*), $otherwise:expr) => {
        match $dtype {
            F64 => $function::<$($op)::+<f64>>($($argument),*),
            I16 => $function::<$($op)::+<i16>>($($argument),*),
            I8 => $function::<$($op)::+<i8>>($($argument),*),
            U64 => $function::<$($op)::+<u64>>($($argument),*),
            U32 => $function::<$($op)::+<u32>>($($argument),*),
            U16 => $function::<$($op)::+<u16>>($($argument),*),
            U8 => $function::<$($op)::+<u8>>($($argument),*),
            _ => $otherwise,
        }
    };
}
pub(crate) use plain;

macro_rules! floats {
    ($($type:ty)*) => {$(
        impl Number for $type {
            const LOWEST: Self = <$type>::NEG_INFINITY;
            const HIGHEST: Self = <$type>::INFINITY;
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const ANY_ORDER: bool = false;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self - other
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                self / other
            }
            #[inline(always)]
            fn remainder(self, other: Self) -> Self {
                self % other
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let rest = self % other;
                if rest == 0.0 {
                    // Python gives a zero the divisor's sign too.
                    rest.copysign(other)
                } else if (rest < 0.0) != (other < 0.0) {
                    rest + other
                } else {
                    rest
                }
            }
            #[inline(always)]
            fn neg(self) -> Self {
                -self
            }
            #[inline(always)]
            fn abs(self) -> Self {
                <$type>::abs(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }
        }
    )*};
}
floats! { f32 f64 }

macro_rules! integers {
    ($($type:ty, $abs:expr, $is_negative:expr;)*) => {$(
        impl Number for $type {
            const LOWEST: Self = <$type>::MIN;
            const HIGHEST: Self = <$type>::MAX;
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const ANY_ORDER: bool = true;

            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn sub(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline(always)]
            fn mul(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn div(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn remainder(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_rem(other) }
            }
            #[inline(always)]
            fn modulo(self, other: Self) -> Self {
                let is_negative: fn(Self) -> bool = $is_negative;
                let rest = self.remainder(other);
                if rest != 0 && is_negative(rest) != is_negative(other) { rest.wrapping_add(other) } else { rest }
            }
            #[inline(always)]
            fn neg(self) -> Self {
                self.wrapping_neg()
            }
            #[inline(always)]
            fn abs(self) -> Self {
                let abs: fn(Self) -> Self = $abs;
                abs(self)
            }
            #[inline(always)]
            fn is_nan(self) -> bool {
                false
            }
        }
    )*};
}
integers! {
    i64, i64::wrapping_abs, i64::is_negative;
    i32, i32::wrapping_abs, i32::is_negative;
    i16, i16::wrapping_abs, i16::is_negative;
    i8, i8::wrapping_abs, i8::is_negative;
    u64, |x| x, |_| false;
    u32, |x| x, |_| false;
    u16, |x| x, |_| false;
    u8, |x| x, |_| false;
}
