//! Functions of one number that are calculated in f64, an element at a time: trigonometry for every float, and in
//! f64 what [`super::unary`] and [`super::activations`] have vectorised in f32.
//!
//! A function is a plain pointer, so that one loop serves them all. Results are rounded once, to the element type.

use super::FLOATS;
use super::convert::{Kind, Limits, Value};
use super::cost;
use crate::device::CpuDevice;
use crate::stream::CpuStream;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const FLOAT: &[TypeVar] = &[TypeVar::of(FLOATS)];

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel("Acos", 22, |request| prepare(request, [0.0; 2], |x, _| x.acos())),
    kernel("Acosh", 22, |request| prepare(request, [0.0; 2], |x, _| x.acosh())),
    kernel("Asin", 22, |request| prepare(request, [0.0; 2], |x, _| x.asin())),
    kernel("Asinh", 22, |request| prepare(request, [0.0; 2], |x, _| libm::asinh(x))),
    kernel("Atan", 22, |request| prepare(request, [0.0; 2], |x, _| x.atan())),
    kernel("Atanh", 22, |request| prepare(request, [0.0; 2], |x, _| x.atanh())),
    kernel("Cos", 22, |request| prepare(request, [0.0; 2], |x, _| x.cos())),
    kernel("Cosh", 22, |request| prepare(request, [0.0; 2], |x, _| x.cosh())),
    kernel("Sin", 22, |request| prepare(request, [0.0; 2], |x, _| x.sin())),
    kernel("Sinh", 22, |request| prepare(request, [0.0; 2], |x, _| x.sinh())),
    kernel("Tan", 22, |request| prepare(request, [0.0; 2], |x, _| x.tan())),
];

const fn kernel(
    name: &'static str,
    since_version: u32,
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    Kernel::new(name, since_version, prepare)
        .types(FLOAT)
        .operands(&[0], &[0])
        .in_place(&[0])
        .cost(|request| cost::per_output(request, 40))
}

/// Elements of a chunk of a parallel loop.
const GRAIN: usize = 2 * 1024;

/// A function of one number and two parameters.
pub(crate) type Function = fn(f64, [f64; 2]) -> f64;

struct Map {
    host: Host,
    n: usize,
    kind: Kind,
    function: Function,
    params: [f64; 2],
}

/// Prepares a function for the element type of input 0.
///
/// # Errors
/// Invalid for a result of another size; unsupported for elements that are not numbers.
pub(crate) fn prepare(request: &Request<'_>, params: [f64; 2], function: Function) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let n = x.n_elements();
    if y.n_elements() != n {
        return Err(Error::invalid(format!("an output of {} elements for {n} of the input", y.n_elements())));
    }
    Ok(Prepared::new(Map { host: request.host, n, kind: Kind::of(x.dtype())?, function, params }))
}

impl Launch<CpuDevice> for Map {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let x = SendPtr(operands.input_ptr::<u8>(0).cast_mut());
        let y = SendPtr(operands.output_ptr::<u8>(0));
        self.host.parallel_for(self.n, GRAIN, |range, _| {
            for i in range {
                // SAFETY: the range lies within both operands, whose sizes `prepare` was told.
                let value = unsafe { self.kind.read(x.at(0), i) };
                let result = (self.function)(value.to_f64(), self.params);
                // SAFETY: as above; chunks are apart, and the element was read before.
                unsafe { self.kind.write(y.at(0), i, Value::Float(result), Limits::DEFAULT) };
            }
            Ok(())
        })
    }
}

/// 1 / (1 + e^-x), without an exponential that overflows.
pub(crate) fn sigmoid(x: f64, _: [f64; 2]) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    fn check<T: Element + PartialEq + std::fmt::Debug>(op: &str, x: &[T], expected: &[T]) {
        let inputs = [Some(Array::of(&[x.len()], x))];
        let found = run(Isa::Baseline, op, &[], &inputs, &[Some(Array::empty::<T>(&[x.len()]))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), expected, "{op}");
    }

    #[test]
    fn values_that_are_known() {
        use std::f64::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, PI};
        check("Acos", &[1.0, 0.0, -1.0], &[0.0, FRAC_PI_2, PI]);
        check("Asin", &[1.0f32, -0.0], &[FRAC_PI_2 as f32, -0.0]);
        check("Atan", &[1.0, f64::INFINITY], &[FRAC_PI_4, FRAC_PI_2]);
        check("Sin", &[0.0, FRAC_PI_2], &[0.0, 1.0]);
        check("Cos", &[0.0f32, PI as f32], &[1.0, -1.0]);
        check("Tan", &[0.0f32], &[0.0]);
        check("Cosh", &[0.0f32, LN_2 as f32], &[1.0, 1.25]);
        check("Sinh", &[LN_2 as f32], &[0.75]);
        check("Acosh", &[1.0f32, 1.25], &[0.0, LN_2 as f32]);
        check("Asinh", &[0.75f32], &[LN_2 as f32]);
        check("Atanh", &[-0.0f32, 1.0], &[-0.0, f32::INFINITY]);
        // What f32 has vectorised, in f64.
        check("Exp", &[0.0, f64::NEG_INFINITY], &[1.0, 0.0]);
        check("Sqrt", &[2.0f64], &[std::f64::consts::SQRT_2]);
        check("Round", &[2.5f64, -0.5], &[2.0, -0.0]);
    }

    #[test]
    fn sigmoids_do_not_overflow() {
        assert_eq!(sigmoid(0.0, [0.0; 2]), 0.5);
        assert_eq!(sigmoid(-1000.0, [0.0; 2]), 0.0);
        assert_eq!(sigmoid(1000.0, [0.0; 2]), 1.0);
    }
}
