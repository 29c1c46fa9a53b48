//! Vector bodies of activation functions beyond those of [`crate::kernels::elementwise::unary`], in f32; Sign, Shrink of integers, and what tells NaN and
//! infinities from numbers.
//!
//! Exponentials are taken of negative numbers alone, so that none overflows.

use crate::device::CpuDevice;
use crate::isa::Arith;
use crate::kernels::cost;
use crate::kernels::elementwise::functions;
use crate::kernels::elementwise::loops::GRAIN;
use crate::kernels::elementwise::unary::{Unary, kernel, ops, prepare_with, zeroed};
use crate::kernels::numbers::convert::Kind;
use crate::kernels::numbers::math;
use crate::kernels::numbers::number::{Bool, Number, plain};
use crate::kernels::types::INTEGERS;
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const NUMBER: &[TypeVar] = &[TypeVar::of(NUMBERS)];
/// Floats in which there is something to find.
const SPECIAL: TypeVar = TypeVar::of(&[F32, F16, BF16, F64, F8E4M3FN, F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    // Of floats, it is a formula.
    descriptor("Shrink", 9, prepare_shrink)
        .types(&[TypeVar::of(INTEGERS)])
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 3)),
    kernel::<Sign<f32>>("Sign", 13, NUMBER, |request| {
        let dtype = request.required_input(0)?.dtype();
        match dtype {
            I64 => zeroed::<Sign<i64>>(request),
            I32 => zeroed::<Sign<i32>>(request),
            _ => plain!(dtype, zeroed::<Sign>(request), prepare_with::<Sign<f32>>(request, [0.0; 2])),
        }
    }),
    descriptor("IsNaN", 20, |request| special(request, |x, _| x.is_nan(), [0.0; 2]))
        .types(&[SPECIAL, TypeVar::of(&[BOOL])])
        .cost(|request| cost::per_output(request, 1)),
    descriptor("IsInf", 20, prepare_is_inf)
        .types(&[SPECIAL, TypeVar::of(&[BOOL])])
        .cost(|request| cost::per_output(request, 1)),
];

ops! {
    Celu(x: f32, [alpha, _]) -> f32 = if x > 0.0 { x } else { alpha * exp_m1::<A>(x / alpha) };
    Elu(x: f32, [alpha, _]) -> f32 = if x > 0.0 { x } else { alpha * exp_m1::<A>(x) };
    Mish(x: f32, _) -> f32 = x * math::tanh::<A>(softplus::<A>(x));
    Selu(x: f32, [alpha, gamma]) -> f32 = gamma * if x > 0.0 { x } else { alpha * exp_m1::<A>(x) };
    /// NaN passes.
    Sign<T>(x: T, _) -> T = {
        let below = if x < T::ZERO { T::ONE.neg() } else { x.mul(T::ZERO) };
        if x > T::ZERO { T::ONE } else { below }
    };
    Softplus(x: f32, _) -> f32 = softplus::<A>(x);
    Softsign(x: f32, _) -> f32 = x / (1.0 + x.abs());
    Swish(x: f32, [alpha, _]) -> f32 = x * math::sigmoid::<A>(alpha * x);
    ThresholdedRelu(x: f32, [alpha, _]) -> f32 = if x > alpha { x } else { 0.0 };
}

/// log(1 + e^x).
#[inline(always)]
fn softplus<A: Arith>(x: f32) -> f32 {
    let e = math::exp::<A>(-x.abs());
    let positive = if x < 0.0 { 0.0 } else { x };
    // The rounding error of 1 + e is a small part of e.
    let sum = 1.0 + e;
    let lost = e - (sum - 1.0);
    positive + (math::log::<A>(sum) + lost / sum)
}

/// e^x - 1.
#[inline(always)]
fn exp_m1<A: Arith>(x: f32) -> f32 {
    // The first terms of the series, below 2^-24 of x where the difference begins to lose digits. NaN is in neither
    // part, and comes through the second.
    let c = A::fma(x, 1.0 / 720.0, 1.0 / 120.0);
    let c = A::fma(c, x, 1.0 / 24.0);
    let c = A::fma(c, x, 1.0 / 6.0);
    let c = A::fma(c, x, 0.5);
    // The sum of -0 and a square is 0.
    let small = A::fma(c * x, x, x).copysign(x);
    if x.abs() < 0.25 { small } else { math::exp::<A>(x) - 1.0 }
}

/// Shrink of integers: limit and bias need not be some.
fn prepare_shrink(request: &Request<'_>) -> Result<Prepared> {
    let params = [request.attrs.float("lambd", 0.5)?, request.attrs.float("bias", 0.0)?];
    functions::prepare(request, params.map(f64::from), |x, [limit, bias]| {
        let below = if x < -limit { x + bias } else { 0.0 };
        if x > limit { x - bias } else { below }
    })
}

fn prepare_is_inf(request: &Request<'_>) -> Result<Prepared> {
    let wanted = |name: &str| request.attrs.int(name, 1).map(|wanted| if wanted != 0 { 1.0 } else { 0.0 });
    let params = [wanted("detect_negative")?, wanted("detect_positive")?];
    special(
        request,
        |x, [negative, positive]| x.is_infinite() && if x < 0.0 { negative } else { positive } != 0.0,
        params,
    )
}

/// A question about each element.
struct Question {
    host: Host,
    n: usize,
    kind: Kind,
    ask: fn(f64, [f64; 2]) -> bool,
    params: [f64; 2],
}

fn special(request: &Request<'_>, ask: fn(f64, [f64; 2]) -> bool, params: [f64; 2]) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let (n, n_out) = (x.n_elements(), request.required_output(0)?.n_elements());
    if n != n_out {
        return Err(Error::invalid(format!("an output of {n_out} elements for {n} of the input")));
    }
    Ok(Prepared::new(Question { host: request.host, n, kind: Kind::of(x.dtype())?, ask, params }))
}

impl Launch<CpuDevice> for Question {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<Bool>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            for i in range {
                // SAFETY: the range lies within both operands, whose sizes `prepare` was told.
                let value = unsafe { self.kind.read(x.at(0), i) };
                // SAFETY: the range lies within the output, and chunks are apart.
                unsafe { y.at(i).write(Bool::new((self.ask)(value.to_f64(), self.params))) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::kernels::test_host::{Array, Value, run};
    use devbay_plugin_api::sdk::Element;

    fn same<T: Element, Y: Element + PartialEq + std::fmt::Debug>(
        op: &str,
        attrs: &[(&'static str, Value)],
        x: &[T],
        y: &[Y],
    ) {
        let output = [Some(Array::empty::<Y>(&[y.len()]))];
        let inputs = [Some(Array::of(&[x.len()], x))];
        let found = run(crate::isa::Isa::Baseline, op, attrs, &inputs, &output).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<Y>(), y, "{op}");
    }

    #[test]
    fn signs_and_special_numbers() {
        same("Sign", &[], &[-3.0f32, 0.0, 5.0, f32::NEG_INFINITY], &[-1.0f32, 0.0, 1.0, -1.0]);
        same("Sign", &[], &[-3i8, 0, 5], &[-1i8, 0, 1]);
        same("Sign", &[], &[0u64, u64::MAX], &[0u64, 1]);
        same(
            "Shrink",
            &[("lambd", Value::Float(1.5)), ("bias", Value::Float(1.0))],
            &[-2i32, 1, 4],
            &[-1i32, 0, 3],
        );
        let x = [f64::INFINITY, f64::NEG_INFINITY, f64::NAN, 1.0];
        let truth =
            |x: Vec<crate::kernels::numbers::number::Bool>| x.iter().map(|x| x.get()).collect::<Vec<_>>();
        let ask = |op: &str, attrs: &[(&'static str, Value)]| {
            let output = [Some(Array::empty::<crate::kernels::numbers::number::Bool>(&[4]))];
            let found =
                run(crate::isa::Isa::Baseline, op, attrs, &[Some(Array::of(&[4], &x))], &output).expect(op);
            truth(found[0].as_ref().expect("truths").elements())
        };
        assert_eq!(ask("IsInf", &[]), [true, true, false, false]);
        assert_eq!(ask("IsInf", &[("detect_negative", Value::Int(0))]), [true, false, false, false]);
        assert_eq!(ask("IsInf", &[("detect_positive", Value::Int(0))]), [false, true, false, false]);
        assert_eq!(ask("IsNaN", &[]), [false, false, true, false]);
    }
}
