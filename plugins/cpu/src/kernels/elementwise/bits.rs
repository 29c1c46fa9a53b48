//! Ops on the bits of integers: BitwiseAnd, BitwiseOr, BitwiseXor, BitwiseNot and BitShift.
//!
//! All but shifts see bits alone, so elements of one width share a loop.

use crate::device::CpuDevice;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::binary::{self, Binary};
use crate::kernels::elementwise::unary::{Unary, prepare_plain};
use crate::kernels::types::INTEGERS;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;
use std::marker::PhantomData;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const INTEGER: &[TypeVar] = &[TypeVar::of(INTEGERS)];

/// Prepares an op for the width of input 0's elements.
macro_rules! by_width {
    ($prepare:ident, $op:ident $(, $argument:expr)?) => {
        |request| match request.required_input(0)?.dtype().bits {
            64 => $prepare::<$op<u64>>(request $(, $argument)?),
            32 => $prepare::<$op<u32>>(request $(, $argument)?),
            16 => $prepare::<$op<u16>>(request $(, $argument)?),
            _ => $prepare::<$op<u8>>(request $(, $argument)?),
        }
    };
}

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    pair("BitwiseAnd", 18, by_width!(plain, And)),
    pair("BitwiseOr", 18, by_width!(plain, Or)),
    pair("BitwiseXor", 18, by_width!(plain, Xor)),
    pair("BitShift", 28, prepare_shift)
        .doc("a shift by all bits or more leaves what the sign is extended to"),
    descriptor("BitwiseNot", 18, by_width!(prepare_plain, Not, [0; 2]))
        .types(INTEGER)
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 1)),
];

const fn pair(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    descriptor(name, since_version, prepare)
        .types(INTEGER)
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 1))
}

fn plain<Op: Binary>(request: &Request<'_>) -> Result<Prepared> {
    binary::prepare_plain::<Op>(request)
}

/// Integers as the ops see them.
trait Word: Element {
    fn and(self, other: Self) -> Self;
    fn or(self, other: Self) -> Self;
    fn xor(self, other: Self) -> Self;
    fn not(self) -> Self;
    fn left(self, n: Self) -> Self;
    fn right(self, n: Self) -> Self;
}

macro_rules! words {
    ($($type:ty)*) => {$(
        impl Word for $type {
            #[inline(always)]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline(always)]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline(always)]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline(always)]
            fn not(self) -> Self {
                !self
            }
            #[inline(always)]
            fn left(self, n: Self) -> Self {
                u32::try_from(n).ok().and_then(|n| self.checked_shl(n)).unwrap_or(0)
            }
            #[inline(always)]
            fn right(self, n: Self) -> Self {
                // Shifting by all bits but one leaves the sign's extension; unsigned numbers have one bit more to lose.
                let extension = if self < (0 as $type) { !(0 as $type) } else { 0 };
                u32::try_from(n).ok().and_then(|n| self.checked_shr(n)).unwrap_or(extension)
            }
        }
    )*};
}
words! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! ops {
    ($($name:ident: $method:ident;)*) => {$(
        struct $name<T>(PhantomData<T>);

        impl<T: Word> Binary for $name<T> {
            type Left = T;
            type Right = T;
            type Out = T;

            #[inline(always)]
            fn apply(a: T, b: T) -> T {
                a.$method(b)
            }
        }
    )*};
}
ops! {
    And: and;
    Or: or;
    Xor: xor;
    Left: left;
    Right: right;
}

struct Not<T>(PhantomData<T>);

impl<T: Word> Unary for Not<T> {
    type In = T;
    type Out = T;

    #[inline(always)]
    fn apply<A: Arith>(x: T, _: [T; 2]) -> T {
        x.not()
    }
}

fn prepare_shift(request: &Request<'_>) -> Result<Prepared> {
    match request.attrs.string("direction", "")? {
        // A left shift sees bits alone, but how far is signed.
        "LEFT" => shift::<Lefts>(request),
        "RIGHT" => shift::<Rights>(request),
        other => Err(Error::invalid(format!("expected a direction LEFT or RIGHT, found \"{other}\""))),
    }
}

/// A direction of shifts, for every type.
trait Direction {
    type Of<T: Word>: Binary;
}

struct Lefts;

impl Direction for Lefts {
    type Of<T: Word> = Left<T>;
}

struct Rights;

impl Direction for Rights {
    type Of<T: Word> = Right<T>;
}

fn shift<D: Direction>(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        I64 => plain::<D::Of<i64>>(request),
        I32 => plain::<D::Of<i32>>(request),
        I16 => plain::<D::Of<i16>>(request),
        I8 => plain::<D::Of<i8>>(request),
        U64 => plain::<D::Of<u64>>(request),
        U32 => plain::<D::Of<u32>>(request),
        U16 => plain::<D::Of<u16>>(request),
        _ => plain::<D::Of<u8>>(request),
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    fn check<T: Element + PartialEq + std::fmt::Debug>(
        op: &str,
        direction: &'static str,
        a: &[T],
        b: &[T],
        y: &[T],
    ) {
        let attrs = if direction.is_empty() { vec![] } else { vec![("direction", Value::Text(direction))] };
        let inputs = [Some(Array::of(&[a.len()], a)), Some(Array::of(&[b.len()], b))];
        let found =
            run(Isa::Baseline, op, &attrs, &inputs, &[Some(Array::empty::<T>(&[y.len()]))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), y, "{op} {direction}");
    }

    #[test]
    fn bits_are_combined() {
        check("BitwiseAnd", "", &[0b1100u8, 0xff], &[0b1010, 0x0f], &[0b1000, 0x0f]);
        check("BitwiseOr", "", &[-2i32, 5], &[1], &[-1, 5]);
        check("BitwiseXor", "", &[u64::MAX], &[1], &[u64::MAX - 1]);
        let inputs = [Some(Array::of(&[2], &[0i16, -1]))];
        let found = run(Isa::Baseline, "BitwiseNot", &[], &inputs, &[Some(Array::empty::<i16>(&[2]))]);
        assert_eq!(found.expect("Not")[0].as_ref().expect("a result").elements::<i16>(), [-1, 0]);
    }

    #[test]
    fn shifts_by_any_number() {
        check("BitShift", "RIGHT", &[16u8, 4, 1, 255], &[1, 2, 8, 200], &[8, 1, 0, 0]);
        check("BitShift", "LEFT", &[16u16, 1, 3], &[1, 15, 16], &[32, 0x8000, 0]);
        check("BitShift", "RIGHT", &[-8i32, -8, 8, -8], &[1, 40, 31, -1], &[-4, -1, 0, -1]);
        check("BitShift", "LEFT", &[-1i8, 1, 1, 1], &[4, 7, 8, -3], &[-16, -128, 0, 0]);
    }

    #[test]
    fn a_shift_has_a_direction() {
        let operand = || Some(Array::of(&[1], &[1u8]));
        let found = run(Isa::Baseline, "BitShift", &[], &[operand(), operand()], &[operand()]);
        assert!(found.is_err_and(|error| error.contains("expected a direction LEFT or RIGHT")));
    }
}
