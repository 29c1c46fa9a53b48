//! Pow: a base and an exponent that may be of another type.
//!
//! Floats with constant exponents that are common have loops of their own. Integers are powers by squaring, which wrap;
//! of the rarer integers bases and exponents are widened to 64 bits, of which the low bits stay.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::elementwise::binary::{Binary, prepare};
use crate::kernels::elementwise::unary;
use crate::kernels::geometry::extents::extents;
use crate::kernels::geometry::shape::{Broadcast, Rows};
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::numbers::widen;
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;
use std::marker::PhantomData;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const POWERS: &[TypeVar] = &[TypeVar::of(NUMBERS), TypeVar::of(NUMBERS)];

/// The kernel of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("Pow", 15, prepare_pow)
    .types(POWERS)
    .in_place(&[0])
    .adapted(widen::floats)
    .cost(|request| cost::per_output(request, Pow::<f32, f32>::FLOPS))
    .doc("constant exponents 2, 3, 1, 0.5 and -1 have loops of their own")];

/// A base with an exponent of type `E`.
pub(crate) trait Power<E> {
    fn power(self, exponent: E) -> Self;
}

impl Power<f32> for f32 {
    #[inline(always)]
    fn power(self, exponent: f32) -> f32 {
        self.powf(exponent)
    }
}

/// An f64 holds the integers that matter exactly; an f32 would lose whether a large one is odd.
macro_rules! powers_in_f64 {
    ($($base:ty, $exponent:ty;)*) => {$(
        impl Power<$exponent> for $base {
            #[inline(always)]
            fn power(self, exponent: $exponent) -> $base {
                (self as f64).powf(exponent as f64) as $base
            }
        }
    )*};
}
powers_in_f64! {
    f32, i64;
    f32, i32;
    i64, f32;
    i32, f32;
}

macro_rules! integer_powers {
    ($($base:ty, $exponent:ty;)*) => {$(
        impl Power<$exponent> for $base {
            /// Wraps; a negative exponent gives the reciprocal without its fraction.
            #[inline(always)]
            fn power(self, exponent: $exponent) -> $base {
                let odd = exponent & 1 == 1;
                if exponent < 0 {
                    return match self {
                        1 => 1,
                        -1 => if odd { -1 } else { 1 },
                        _ => 0,
                    };
                }
                let (mut power, mut square, mut left) = (1 as $base, self, exponent);
                while left > 0 {
                    if left & 1 == 1 {
                        power = power.wrapping_mul(square);
                    }
                    square = square.wrapping_mul(square);
                    left >>= 1;
                }
                power
            }
        }
    )*};
}
integer_powers! {
    i64, i64;
    i64, i32;
    i32, i64;
    i32, i32;
}

struct Pow<B, E>(PhantomData<(B, E)>);

impl<B: Element + Power<E>, E: Element> Binary for Pow<B, E> {
    type Left = B;
    type Right = E;
    type Out = B;
    const FLOPS: u64 = 40;

    #[inline(always)]
    fn apply(a: B, b: E) -> B {
        a.power(b)
    }
}

fn prepare_pow(request: &Request<'_>) -> Result<Prepared> {
    let [base, exponent] = [request.required_input(0)?, request.required_input(1)?];
    if base.dtype() == F32 && exponent.n_elements() == 1 {
        let constant = match exponent.dtype() {
            F32 => exponent.constant_f32s()?.and_then(|values| values.first().copied()),
            _ => exponent.constant_ints()?.and_then(|values| Some(*values.first()? as f32)),
        };
        match constant {
            Some(2.0) => return unary::prepare::<unary::Square>(request),
            Some(3.0) => return unary::prepare::<unary::Cube>(request),
            Some(1.0) => return unary::prepare::<unary::Identity<f32>>(request),
            Some(0.5) => return unary::prepare::<unary::SquareRootPower>(request),
            Some(-1.0) => return unary::prepare::<unary::Reciprocal>(request),
            _ => {}
        }
    }
    let common = |tensor: &TensorView<'_>| [F32, I64, I32].contains(&tensor.dtype());
    match base.dtype() {
        _ if !common(base) || !common(exponent) => prepare_any(request),
        I64 => pow_of::<i64>(request),
        I32 => pow_of::<i32>(request),
        _ => pow_of::<f32>(request),
    }
}

fn pow_of<B: Element + Power<f32> + Power<i64> + Power<i32>>(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(1)?.dtype() {
        I64 => prepare::<Pow<B, i64>>(request),
        I32 => prepare::<Pow<B, i32>>(request),
        _ => prepare::<Pow<B, f32>>(request),
    }
}

/// Any base with any exponent, an element at a time.
struct Any {
    host: Host,
    plan: Broadcast<2>,
    base: Kind,
    exponent: Kind,
}

fn prepare_any(request: &Request<'_>) -> Result<Prepared> {
    let [base, exponent] = [request.required_input(0)?, request.required_input(1)?];
    let out = extents(request.required_output(0)?)?;
    Ok(Prepared::new(Any {
        host: request.host,
        plan: Broadcast::new(&out, [&extents(base)?, &extents(exponent)?])?,
        base: Kind::of(base.dtype())?,
        exponent: Kind::of(exponent.dtype())?,
    }))
}

impl Launch<CpuDevice> for Any {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let a = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let b = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.plan.len(), GRAIN, |range, _| {
            self.plan.walk(range, |first, at, rows: &Rows<2>| {
                for i in 0..rows.n_rows * rows.n_cols {
                    let (row, col) = (i / rows.n_cols, i % rows.n_cols);
                    let place = |k: usize| first[k] + row * rows.steps[k] + col * rows.inner[k];
                    // SAFETY: the rows lie within the operands, whose shapes `prepare` was told.
                    let base = unsafe { self.base.read(a.at(0), place(0)) };
                    // SAFETY: the exponents' rows lie within their operand, too.
                    let exponent = unsafe { self.exponent.read(b.at(0), place(1)) };
                    // SAFETY: the rows lie within the output; chunks are apart, and the element was read before.
                    unsafe { self.base.write(y.at(0), at + i, of(base, exponent), Limits::DEFAULT) };
                }
            });
            Ok(())
        })
    }
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 4 * 1024;

/// A power in f64, or of integers, of which the lowest 64 bits count.
fn of(base: Value, exponent: Value) -> Value {
    let (Value::Int(base), Value::Int(exponent)) = (base, exponent) else {
        return Value::Float(base.to_f64().powf(exponent.to_f64()));
    };
    if exponent < 0 {
        return Value::Int(match base {
            1 => 1,
            -1 => {
                if exponent & 1 == 1 {
                    -1
                } else {
                    1
                }
            }
            _ => 0,
        });
    }
    let (mut power, mut square, mut left) = (1i64, base as i64, exponent);
    while left > 0 {
        if left & 1 == 1 {
            power = power.wrapping_mul(square);
        }
        square = square.wrapping_mul(square);
        left >>= 1;
    }
    Value::Int(i128::from(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    fn check<B: Element + PartialEq + std::fmt::Debug, E: Element>(
        base: &[B],
        exponent: &[E],
        expected: &[B],
    ) {
        let inputs = [Some(Array::of(&[base.len()], base)), Some(Array::of(&[exponent.len()], exponent))];
        let found = run(Isa::Baseline, "Pow", &[], &inputs, &[Some(Array::empty::<B>(&[expected.len()]))]);
        assert_eq!(found.expect("Pow")[0].as_ref().expect("a result").elements::<B>(), expected);
    }

    #[test]
    fn integers_wrap_and_never_trap() {
        assert_eq!([2i64.power(-1i64), (-1i64).power(-3i64), 3i64.power(4i64)], [0, -1, 81]);
        check(&[2i8, -1, 3, 0], &[7u64, 3, 2, 0], &[-128, -1, 9, 1]);
        check(&[3u64], &[40u32], &[12_157_665_459_056_928_801]);
        check(&[2u8], &[8i64, 3, -1], &[0, 8, 0]);
        check(&[3u64], &[u64::MAX], &[12_297_829_382_473_034_411]);
    }

    #[test]
    fn floats_of_every_pair() {
        check(&[2.0f64, 2.0], &[0.5f32, -1.0], &[std::f64::consts::SQRT_2, 0.5]);
        check(&[2.0f32], &[10u8, 0], &[1024.0, 1.0]);
        check(&[9i32], &[0.5f64], &[3]);
    }
}
