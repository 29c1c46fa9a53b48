//! QLinearMatMul and QLinearConv: a product of 8-bit integers, exact in i32, then scaled, rounded and saturated.
//!
//! The products are those of MatMulInteger and ConvInteger, whose sums are quantised in registers. Scales come with the launch;
//! their quotient is made in f32, as the specification's formula and its peers have it, and applied once.

use crate::device::CpuDevice;
use crate::kernels::convolution::conv_integer;
use crate::kernels::cost;
use crate::kernels::geometry::extents::extents;
use crate::kernels::numbers::convert::Kind;
use crate::kernels::product::int_product::SMALL;
use crate::kernels::product::matmul_integer;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FACTOR: TypeVar = TypeVar::of(&[F32, F16, BF16]);
const FEW: TypeVar = TypeVar::of(SMALL);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    descriptor("QLinearMatMul", 21, prepare_matmul)
        .types(&[FEW, FACTOR, FEW, FEW])
        .cost(|request| cost::per_output(request, 100)),
    descriptor("QLinearConv", 10, prepare_conv)
        .types(&[FEW, FACTOR, FEW, FEW, TypeVar::of(&[I32])])
        .cost(|request| cost::per_output(request, 100)),
];

// Where the operands are.
const A: usize = 0;
const A_SCALE: usize = 1;
const A_ZERO: usize = 2;
const B: usize = 3;
const B_SCALE: usize = 4;
const B_ZERO: usize = 5;
const Y_SCALE: usize = 6;
const Y_ZERO: usize = 7;
const BIAS: usize = 8;

/// Rows of the left and columns of the right may have scales of their own.
fn prepare_matmul(request: &Request<'_>) -> Result<Prepared> {
    let a = extents(request.required_input(A)?)?;
    let rows = if a.len() < 2 { 1 } else { a[a.len() - 2] };
    let places = matmul_integer::Places { a: A, b: B, a_zero: A_ZERO, b_zero: B_ZERO };
    matmul_integer::prepare(request, places, |columns| {
        Ok(matmul_integer::End::Bytes(matmul_integer::Requantise {
            a_scale: A_SCALE,
            b_scale: B_SCALE,
            y_scale: Y_SCALE,
            y_zero: Y_ZERO,
            n_a: n_scales(request, A_SCALE, rows)?,
            n_b: n_scales(request, B_SCALE, columns)?,
            scale: Kind::of(request.required_input(A_SCALE)?.dtype())?,
            signed: is_signed(request)?,
        }))
    })
}

/// Filters may have scales of their own, and have a bias each.
fn prepare_conv(request: &Request<'_>) -> Result<Prepared> {
    let filters = extents(request.required_input(B)?)?.first().copied().unwrap_or(1);
    if let Some(bias) = request.input(BIAS)
        && bias.n_elements() != filters
    {
        return Err(Error::invalid(format!("a bias of {} for {filters} filters", bias.n_elements())));
    }
    n_scales(request, A_SCALE, 1)?;
    let places = conv_integer::Places { x: A, w: B, x_zero: A_ZERO, w_zero: B_ZERO };
    let end = conv_integer::Requantise {
        x_scale: A_SCALE,
        w_scale: B_SCALE,
        y_scale: Y_SCALE,
        y_zero: Y_ZERO,
        bias: request.input(BIAS).map(|_| BIAS),
        n_w: n_scales(request, B_SCALE, filters)?,
        scale: Kind::of(request.required_input(A_SCALE)?.dtype())?,
        signed: is_signed(request)?,
    };
    conv_integer::prepare(request, places, Some(end))
}

/// The number of scales that an input is: one or `several`.
fn n_scales(request: &Request<'_>, i: usize, several: usize) -> Result<usize> {
    match request.required_input(i)?.n_elements() {
        n if n == 1 || n == several => Ok(n),
        n => Err(Error::unsupported(format!("{n} scales as input {i}, expected 1 or {several}"))),
    }
}

/// Returns whether results are signed, of which all have one scale and one zero point.
fn is_signed(request: &Request<'_>) -> Result<bool> {
    let of_result = |i: usize| request.required_input(i).map(TensorView::n_elements);
    if of_result(Y_SCALE)? != 1 || of_result(Y_ZERO)? != 1 {
        return Err(Error::unsupported("several scales of the result, expected one"));
    }
    Ok(request.required_output(0)?.dtype() == I8)
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};
    use devbay_plugin_api::sdk::Element;

    fn scalar<T: Element>(x: T) -> Option<Array> {
        Some(Array::of(&[], &[x]))
    }

    /// `(a - 1) b`: rows (1, 2) and (-1, 0), columns (3, 5) and (-4, 2): sums 13, 0, -3, 4.
    #[test]
    fn products_are_scaled_and_saturate() {
        let inputs = |y_scale: f32| {
            [
                Some(Array::of(&[2, 2], &[2u8, 3, 0, 1])),
                scalar(0.5f32),
                scalar(1u8),
                Some(Array::of(&[2, 2], &[3i8, -4, 5, 2])),
                Some(Array::of(&[2], &[1.0f32, 2.0])),
                Some(Array::of(&[2], &[0i8, 0])),
                scalar(y_scale),
                scalar(10u8),
            ]
        };
        let output = [Some(Array::empty::<u8>(&[2, 2]))];
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &inputs(1.0), &output).expect("QLinearMatMul");
        // 6.5 and -1.5 go to the even number.
        assert_eq!(found[0].as_ref().expect("a result").elements::<u8>(), [16, 10, 8, 14]);
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &inputs(0.01), &output).expect("QLinearMatMul");
        assert_eq!(found[0].as_ref().expect("a result").elements::<u8>(), [255, 10, 0, 255]);
        let mut wrong = inputs(1.0);
        wrong[4] = Some(Array::of(&[3], &[1.0f32; 3]));
        let found = run(Isa::Baseline, "QLinearMatMul", &[], &wrong, &output);
        assert!(found.is_err_and(|error| error.contains("3 scales as input 4, expected 1 or 2")));
    }

    /// Two filters of one element over two pixels, with scales and a bias of their own.
    #[test]
    fn filters_have_scales_and_biases() {
        let inputs = [
            Some(Array::of(&[1, 1, 2], &[5u8, 9])),
            scalar(1.0f32),
            scalar(4u8),
            Some(Array::of(&[2, 1, 1], &[2i8, -3])),
            Some(Array::of(&[2], &[1.0f32, 0.5])),
            Some(Array::of(&[2], &[0i8, 1])),
            scalar(2.0f32),
            scalar(-1i8),
            Some(Array::of(&[2], &[10i32, 0])),
        ];
        let output = [Some(Array::empty::<i8>(&[1, 2, 2]))];
        let found = run(Isa::Baseline, "QLinearConv", &[], &inputs, &output).expect("QLinearConv");
        // (1, 5) times 2 and 10: 12, 20; times -4: -4, -20.
        assert_eq!(found[0].as_ref().expect("a result").elements::<i8>(), [5, 9, -2, -6]);
    }
}
