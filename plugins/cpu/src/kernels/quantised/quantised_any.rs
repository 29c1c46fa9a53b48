//! QuantizeLinear and DequantizeLinear of every element type: for a tensor, along an axis, and in blocks.
//!
//! [`crate::kernels::quantised::scales`] has vectorised loops for f32 and 8-bit integers; everything else is calculated here, an element
//! at a time, in the precision that the specification names: quotients and products are exact in f64, or so nearly
//! that rounding them again to a type of half the bits gives what one rounding would.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{axis, expect_output, extents};
use crate::kernels::numbers::convert::{Kind, Limits, Value};
use crate::kernels::numbers::small_float::Overflow;
use crate::kernels::quantised::scales::{is_one, zeros_for};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const WHOLE: TypeVar = TypeVar::of(&[F32, F16, BF16, I32]);
const SCALE: TypeVar = TypeVar::of(&[F32, F16, BF16, I32, F8E8M0]);
const FEW_BITS: TypeVar =
    TypeVar::of(&[U8, I8, U16, I16, I32, U4, I4, U2, I2, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, F4E2M1]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("QuantizeLinear", 28, quantize)
        .types(&[WHOLE, SCALE, FEW_BITS])
        .cost(cost)
        .doc("every element type; per tensor, per axis or in blocks"),
    descriptor("DequantizeLinear", 28, dequantize)
        .types(&[FEW_BITS, SCALE, TypeVar::of(&[F32, F16, BF16])])
        .cost(cost)
        .doc("every element type; per tensor, per axis or in blocks"),
];

fn cost(request: &Request<'_>) -> Result<Cost> {
    cost::per_output(request, 20)
}

/// Elements of a chunk: whole bytes also where an element has fewer bits.
const GRAIN: usize = 8 * 1024;

/// Scales of the elements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scales {
    One,
    /// One for each position of an axis, which `inner` elements share.
    Axis {
        n: usize,
        inner: usize,
    },
    /// One for each block of positions of an axis, for each element before and after it.
    Blocks {
        n: usize,
        inner: usize,
        block: usize,
        n_blocks: usize,
    },
}

impl Scales {
    fn of(request: &Request<'_>) -> Result<Self> {
        let x = extents(request.required_input(0)?)?;
        expect_output(request, 0, &x)?;
        let scale = extents(request.required_input(1)?)?;
        if let Some(zeros) = request.input(2) {
            zeros_for(&extents(zeros)?, &scale)?;
        }
        let block = request.attrs.int("block_size", 0)?;
        let block =
            usize::try_from(block).map_err(|_| Error::invalid(format!("blocks of {block} elements")))?;
        if block == 0 && is_one(&scale) {
            return Ok(Self::One);
        }
        let axis = axis(request.attrs.int("axis", 1)?, x.len())?;
        let (n, inner) = (x[axis], x[axis + 1..].iter().product());
        if block == 0 {
            return match scale[..] {
                [n_scales] if n_scales == n => Ok(Self::Axis { n, inner }),
                _ => Err(Error::invalid(format!("scales of {scale:?} for axis {axis} of {x:?}"))),
            };
        }
        let mut expected = x.clone();
        expected[axis] = n.div_ceil(block);
        if scale != expected {
            let text = format!("scales of {scale:?} for blocks of {block} along axis {axis} of {x:?}");
            return Err(Error::invalid(text));
        }
        Ok(Self::Blocks { n, inner, block, n_blocks: expected[axis] })
    }

    /// The scale of element `i`.
    fn at(self, i: usize) -> usize {
        match self {
            Self::One => 0,
            Self::Axis { n, inner } => i / inner % n,
            Self::Blocks { n, inner, block, n_blocks } => {
                let (outer, position) = (i / inner / n, i / inner % n);
                (outer * n_blocks + position / block) * inner + i % inner
            }
        }
    }
}

/// Parameters of both directions.
struct Linear {
    host: Host,
    n: usize,
    scales: Scales,
    from: Kind,
    scale: Kind,
    to: Kind,
    /// The type that quotients or products have before they become the result's.
    precision: Kind,
    /// The type of zero points: that of what is quantised.
    zero: Kind,
    has_zeros: bool,
    limits: Limits,
    calculate: fn(&Linear, Value, f64, Value) -> Value,
}

fn quantize(request: &Request<'_>) -> Result<Prepared> {
    let scale = request.required_input(1)?.dtype();
    // If a node names no precision, it is the scale's type, or f32 for scales that cannot be divided in, such as powers
    // of two.
    let precision = match request.attrs.int("precision", 0)? {
        0 if scale == F8E8M0 || scale == I32 => F32,
        0 => scale,
        1 => F32,
        10 => F16,
        16 => BF16,
        other => return Err(Error::unsupported(format!("a precision of ONNX's number {other}"))),
    };
    let to = request.required_output(0)?.dtype();
    linear(
        request,
        Kind::of(precision)?,
        Kind::of(to)?,
        if Kind::of(to)?.integers().is_some() { to_integer } else { to_float },
    )
}

fn dequantize(request: &Request<'_>) -> Result<Prepared> {
    // Differences are scaled before they are rounded to the result's type: a large one need not be in its range.
    linear(request, Kind::of(F32)?, Kind::of(request.required_input(0)?.dtype())?, to_whole)
}

fn linear(
    request: &Request<'_>,
    precision: Kind,
    zero: Kind,
    calculate: fn(&Linear, Value, f64, Value) -> Value,
) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let overflow = match request.attrs.int("saturate", 1)? {
        0 => Overflow::Infinite,
        _ => Overflow::Saturate,
    };
    Ok(Prepared::new(Linear {
        host: request.host,
        n: x.n_elements(),
        scales: Scales::of(request)?,
        from: Kind::of(x.dtype())?,
        scale: Kind::of(request.required_input(1)?.dtype())?,
        to: Kind::of(request.required_output(0)?.dtype())?,
        precision,
        zero,
        has_zeros: request.input(2).is_some(),
        limits: Limits { overflow, ..Limits::DEFAULT },
        calculate,
    }))
}

/// The quotient in the node's precision.
fn quotient(op: &Linear, x: Value, scale: f64) -> f64 {
    op.precision.rounded(op.precision.rounded(x.to_f64()) / scale)
}

/// Rounded half to even, then saturated; what is no number becomes the lowest.
fn to_integer(op: &Linear, x: Value, scale: f64, zero: Value) -> Value {
    let (low, high) = op.to.integers().unwrap_or_default();
    let quotient = quotient(op, x, scale).round_ties_even();
    if quotient.is_nan() {
        return Value::Int(low);
    }
    let Value::Int(zero) = zero else {
        return Value::Int(low);
    };
    // A cast saturates, far from overflowing with a zero point.
    Value::Int((quotient.clamp(-1e18, 1e18) as i128 + zero).clamp(low, high))
}

fn to_float(op: &Linear, x: Value, scale: f64, zero: Value) -> Value {
    Value::Float(op.precision.rounded(quotient(op, x, scale) + zero.to_f64()))
}

fn to_whole(op: &Linear, x: Value, scale: f64, zero: Value) -> Value {
    let difference = match (x, zero) {
        (Value::Int(x), Value::Int(zero)) => (x - zero) as f64,
        _ => x.to_f64() - zero.to_f64(),
    };
    Value::Float(op.precision.rounded(difference) * scale)
}

impl Launch<CpuDevice> for Linear {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let scales = SendPtr(operands.input_ptr::<u8>(1).cast_mut());
        let zeros = SendPtr(match self.has_zeros {
            true => operands.input_ptr::<u8>(2).cast_mut(),
            false => core::ptr::null_mut(),
        });
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            for i in range {
                let at = self.scales.at(i);
                // SAFETY: the operands have the shapes that `prepare` was told.
                let value = unsafe { self.from.read(x.at(0), i) };
                // SAFETY: there is a scale for each element's place.
                let scale = unsafe { self.scale.read(scales.at(0), at) }.to_f64();
                let zero = match self.has_zeros {
                    // SAFETY: there are as many zero points as scales.
                    true => unsafe { self.zero.read(zeros.at(0), at) },
                    false => Value::Int(0),
                };
                let result = (self.calculate)(self, value, scale, zero);
                // SAFETY: the output has the shape that `prepare` was told; chunks are apart, and begin at whole bytes.
                unsafe { self.to.write(y.at(0), i, result, self.limits) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::F16;

    #[test]
    fn blocks_along_an_axis() {
        // Two rows of three, in blocks of two columns.
        let x = [
            Some(Array::of(&[2, 3], &[2i16, 4, 6, 8, 10, 12])),
            Some(Array::of(&[2, 2], &[1.0f32, 0.5, 2.0, 3.0])),
            Some(Array::of(&[2, 2], &[0i16, 1, -1, 2])),
        ];
        let attrs = || vec![("block_size", Value::Int(2)), ("axis", Value::Int(1))];
        let found =
            run(Isa::Baseline, "DequantizeLinear", &attrs(), &x, &[Some(Array::empty::<f32>(&[2, 3]))]);
        let y = found.expect("DequantizeLinear")[0].clone();
        assert_eq!(y.as_ref().expect("a result").elements::<f32>(), [2.0, 4.0, 2.5, 18.0, 22.0, 30.0]);
        // Scales that are not one for a block.
        let wrong = [x[0].clone(), Some(Array::of(&[2, 3], &[1.0f32; 6]))];
        let found =
            run(Isa::Baseline, "DequantizeLinear", &attrs(), &wrong, &[Some(Array::empty::<f32>(&[2, 3]))]);
        assert!(found.is_err_and(|error| error.contains("for blocks of 2 along axis 1")));
    }

    #[test]
    fn zero_points_have_the_type_of_what_is_quantised() {
        let inputs = [
            Some(Array::of(&[2], &[7u16, 65_535])),
            Some(Array::of(&[], &[0.5f32])),
            Some(Array::of(&[], &[5u16])),
        ];
        let empty = Array::raw(F16, &[2], &[0; 4]);
        let found = run(Isa::Baseline, "DequantizeLinear", &[], &inputs, &[Some(empty)]);
        let y = found.expect("DequantizeLinear")[0].clone();
        // 65,530 is beyond the result's range, half of it is not.
        // 1 and 32,768 in halves.
        assert_eq!(y.as_ref().expect("a result").bytes(), [0x00, 0x3c, 0x00, 0x78]);
    }

    #[test]
    fn integers_round_to_even_and_saturate() {
        let quantize = |x: &[i32], scale: f32, zero: u16| {
            let n = x.len();
            let inputs =
                [Some(Array::of(&[n], x)), Some(Array::of(&[], &[scale])), Some(Array::of(&[], &[zero]))];
            let found =
                run(Isa::Baseline, "QuantizeLinear", &[], &inputs, &[Some(Array::empty::<u16>(&[n]))]);
            found.expect("QuantizeLinear")[0].as_ref().expect("a result").elements::<u16>()
        };
        assert_eq!(quantize(&[1, 3, 5, -7, 1_000_000], 2.0, 3), [3, 5, 5, 0, 65535]);
        assert_eq!(quantize(&[i32::MAX, i32::MIN], 1e-30, 0), [65535, 0]);
        assert_eq!(quantize(&[0], 0.0, 9), [0]);
    }

    #[test]
    fn zero_points_are_shaped_as_scales() {
        let inputs = [
            Some(Array::of(&[2], &[1i16, 2])),
            Some(Array::of(&[], &[1.0f32])),
            Some(Array::of(&[2], &[0i16; 2])),
        ];
        let found = run(Isa::Baseline, "DequantizeLinear", &[], &inputs, &[Some(Array::empty::<f32>(&[2]))]);
        assert!(found.is_err_and(|error| error.contains("zero points of")));
    }
}
