//! The optimisers of ONNX's preview of training: Momentum, Adagrad and Adam.
//!
//! All have the same form: a rate, a count of updates, then for any number of tensors their values, gradients and what
//! is remembered of before; the results are new values and what is to be remembered. They are not in the host's
//! catalogue, so the types of their results are said here.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::kernels::numbers::real::Real;
use crate::stream::CpuStream;
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::*;

/// The type of a result.
type Type = (DType, Vec<i64>);

const TYPES: &[TypeVar] = &[TypeVar::of(&[F32, F64]), TypeVar::of(&[I64]), TypeVar::of(&[F32, F64])];

const fn kernel(
    op: &'static str,
    attributes: &'static [&'static str],
    prepare: fn(&PrepareRequest<'_, CpuDevice>) -> Result<Prepared>,
    shape: fn(&PrepareRequest<'_, CpuDevice>, usize) -> Result<Type>,
) -> Kernel<CpuDevice> {
    Kernel::new(op, 1, prepare)
        .domain("ai.onnx.preview.training")
        .attributes(attributes)
        .types(TYPES)
        .operands(&[0, 1, 2], &[2])
        .inputs(5, DEVBAY_VARIADIC)
        .outputs(2, DEVBAY_VARIADIC)
        .shape(shape)
        .cost(cost)
}

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    kernel(
        "Adagrad",
        &["decay_factor", "epsilon", "norm_coefficient"],
        |request| optimiser(request, 1, adagrad(&request.attrs)?),
        |request, i| ty(request, i, 1),
    ),
    kernel(
        "Adam",
        &["alpha", "beta", "epsilon", "norm_coefficient", "norm_coefficient_post"],
        |request| optimiser(request, 2, adam(&request.attrs)?),
        |request, i| ty(request, i, 2),
    ),
    kernel(
        "Momentum",
        &["alpha", "beta", "mode", "norm_coefficient"],
        |request| optimiser(request, 1, momentum(&request.attrs)?),
        |request, i| ty(request, i, 1),
    ),
];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    let n: usize = request.outputs.iter().map(|output| output.n_elements()).sum();
    Ok(cost::of(request, 16 * n as u64))
}

/// Update of one element.
#[derive(Clone, Copy)]
enum Rule {
    Momentum { alpha: f64, beta: f64, norm: f64, nesterov: bool },
    Adagrad { decay: f64, epsilon: f64, norm: f64 },
    Adam { alpha: f64, beta: f64, epsilon: f64, norm: f64, norm_after: f64 },
}

fn momentum(attrs: &Attrs<'_>) -> Result<Rule> {
    let nesterov = match attrs.string("mode", "standard")? {
        "standard" => false,
        "nesterov" => true,
        mode => return Err(Error::invalid(format!("mode is standard or nesterov, found {mode}"))),
    };
    let number = |name: &str| attrs.float(name, 0.0).map(f64::from);
    Ok(Rule::Momentum {
        alpha: number("alpha")?,
        beta: number("beta")?,
        norm: number("norm_coefficient")?,
        nesterov,
    })
}

fn adagrad(attrs: &Attrs<'_>) -> Result<Rule> {
    Ok(Rule::Adagrad {
        decay: attrs.float("decay_factor", 0.0)?.into(),
        epsilon: attrs.float("epsilon", 1e-6)?.into(),
        norm: attrs.float("norm_coefficient", 0.0)?.into(),
    })
}

fn adam(attrs: &Attrs<'_>) -> Result<Rule> {
    Ok(Rule::Adam {
        alpha: attrs.float("alpha", 0.9)?.into(),
        beta: attrs.float("beta", 0.999)?.into(),
        epsilon: attrs.float("epsilon", 1e-6)?.into(),
        norm: attrs.float("norm_coefficient", 0.0)?.into(),
        norm_after: attrs.float("norm_coefficient_post", 0.0)?.into(),
    })
}

impl Rule {
    /// The new value and what is remembered, of a value, its gradient, and what was remembered.
    fn step(self, rate: f64, count: f64, x: f64, gradient: f64, [v, h]: [f64; 2]) -> (f64, [f64; 2]) {
        match self {
            Self::Momentum { alpha, beta, norm, nesterov } => {
                let gradient = norm * x + gradient;
                let v = alpha * v + if count > 0.0 { beta } else { 1.0 } * gradient;
                let step = if nesterov { gradient + alpha * v } else { v };
                (x - rate * step, [v, 0.0])
            }
            Self::Adagrad { decay, epsilon, norm } => {
                let gradient = norm * x + gradient;
                let squares = v + gradient * gradient;
                let rate = rate / (1.0 + count * decay);
                (x - rate * gradient / (squares.sqrt() + epsilon), [squares, 0.0])
            }
            Self::Adam { alpha, beta, epsilon, norm, norm_after } => {
                let gradient = norm * x + gradient;
                let v = alpha * v + (1.0 - alpha) * gradient;
                let h = beta * h + (1.0 - beta) * gradient * gradient;
                let corrected = match count > 0.0 {
                    true => rate * (1.0 - beta.powf(count)).sqrt() / (1.0 - alpha.powf(count)),
                    false => rate,
                };
                let x = x - corrected * v / (h.sqrt() + epsilon);
                ((1.0 - norm_after) * x, [v, h])
            }
        }
    }
}

/// Returns the number of tensors, of each of which so much is remembered.
fn count(request: &PrepareRequest<'_, CpuDevice>, remembered: usize) -> Result<usize> {
    let n = request.inputs.len().saturating_sub(2);
    if n == 0 || !n.is_multiple_of(2 + remembered) {
        return Err(Error::invalid(format!("{n} tensors, expected {} for each", 2 + remembered)));
    }
    Ok(n / (2 + remembered))
}

/// The type of a result: the values come first, then what is remembered; of the operands the gradients lie between.
fn ty(
    request: &PrepareRequest<'_, CpuDevice>,
    output: usize,
    remembered: usize,
) -> Result<(DType, Vec<i64>)> {
    let n = count(request, remembered)?;
    let input = request.required_input(2 + output + if output < n { 0 } else { n })?;
    Ok((input.dtype(), input.shape().to_vec()))
}

struct Optimiser {
    host: Host,
    rate: Real,
    real: Real,
    /// Elements of each tensor.
    sizes: Vec<usize>,
    remembered: usize,
    rule: Rule,
}

fn optimiser(request: &PrepareRequest<'_, CpuDevice>, remembered: usize, rule: Rule) -> Result<Prepared> {
    let n = count(request, remembered)?;
    if request.outputs.len() != n * (1 + remembered) {
        return Err(Error::invalid(format!("{} results for {n} tensors", request.outputs.len())));
    }
    let mut sizes = Vec::with_capacity(n);
    for i in 0..n {
        let of_x = extents(request.required_input(2 + i)?)?;
        for k in 0..2 + remembered {
            let found = extents(request.required_input(2 + k * n + i)?)?;
            if found != of_x {
                return Err(Error::invalid(format!("tensor {i} of {of_x:?} with {found:?} beside it")));
            }
        }
        for k in 0..1 + remembered {
            expect_output(request, k * n + i, &of_x)?;
        }
        sizes.push(of_x.iter().product());
    }
    for i in 0..2 {
        match request.required_input(i)?.n_elements() {
            1 => {}
            found => return Err(Error::invalid(format!("input {i} has {found} elements, expected 1"))),
        }
    }
    Ok(Prepared::new(Optimiser {
        host: request.host,
        rate: Real::of(request.required_input(0)?.dtype())?,
        real: Real::of(request.required_input(2)?.dtype())?,
        sizes,
        remembered,
        rule,
    }))
}

impl Launch<CpuDevice> for Optimiser {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let rate = self.rate.source(operands.input_ref(0)).get(0);
        let times = operands.input::<i64>(1)[0] as f64;
        let n = self.sizes.len();
        for (i, &size) in self.sizes.iter().enumerate() {
            let source = |k: usize| self.real.source(operands.input_ref(2 + k * n + i));
            let sink = |k: usize| self.real.sink(operands.output_ref(k * n + i));
            let (x, gradient) = (source(0), source(1));
            let memory: [_; 2] =
                core::array::from_fn(|k| (k < self.remembered).then(|| (source(2 + k), sink(1 + k))));
            let y = sink(0);
            self.host.parallel_for(size, 4096, |range, _| {
                for at in range {
                    let before = memory.map(|memory| memory.map_or(0.0, |(source, _)| source.get(at)));
                    let (value, after) = self.rule.step(rate, times, x.get(at), gradient.get(at), before);
                    // SAFETY: chunks do not overlap.
                    unsafe { y.set(at, value) };
                    for (memory, after) in memory.iter().zip(after) {
                        if let Some((_, sink)) = memory {
                            // SAFETY: chunks do not overlap in the optimiser's memory, either.
                            unsafe { sink.set(at, after) };
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Rule;
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, Value, run};

    #[test]
    fn steps() {
        let rule = Rule::Momentum { alpha: 0.5, beta: 0.25, norm: 1.0, nesterov: false };
        // The gradient is 1 + 3 = 4: v = 0.5 * 2 + 0.25 * 4, or 1 * 4 at first.
        assert_eq!(rule.step(0.5, 1.0, 1.0, 3.0, [2.0, 0.0]), (0.0, [2.0, 0.0]));
        assert_eq!(rule.step(0.5, 0.0, 1.0, 3.0, [2.0, 0.0]), (-1.5, [5.0, 0.0]));
        let rule = Rule::Momentum { alpha: 0.5, beta: 0.25, norm: 1.0, nesterov: true };
        assert_eq!(rule.step(0.5, 1.0, 1.0, 3.0, [2.0, 0.0]), (-1.5, [2.0, 0.0]));
        let rule = Rule::Adagrad { decay: 1.0, epsilon: 1.0, norm: 0.0 };
        assert_eq!(rule.step(1.0, 1.0, 1.0, 4.0, [9.0, 0.0]), (1.0 - 0.5 * 4.0 / 6.0, [25.0, 0.0]));
        let rule = Rule::Adam { alpha: 0.5, beta: 0.75, epsilon: 1.0, norm: 0.0, norm_after: 0.5 };
        // v = 2, h = 1: 3 - 1 * 2 / 2, halved; later the rate is 1 * 0.5 / 0.5.
        assert_eq!(rule.step(1.0, 0.0, 3.0, 2.0, [2.0, 0.0]), (1.0, [2.0, 1.0]));
        assert_eq!(rule.step(1.0, 1.0, 3.0, 2.0, [2.0, 0.0]), (1.0, [2.0, 1.0]));
    }

    #[test]
    fn several_tensors() {
        let one = |x: f32| Some(Array::of(&[1], &[x]));
        let many = |x: [f32; 2]| Some(Array::of(&[2], &x));
        let inputs = [
            Some(Array::of(&[], &[1.0f32])),
            Some(Array::of(&[], &[0i64])),
            one(1.0),
            many([2.0, 3.0]),
            one(10.0),
            many([20.0, 30.0]),
            one(0.0),
            many([0.0; 2]),
        ];
        let empty = |n: usize| Some(Array::empty::<f32>(&[n]));
        let outputs = [empty(1), empty(2), empty(1), empty(2)];
        let attrs = [("alpha", Value::Int(0)), ("mode", Value::Text("standard"))];
        let found = run(Isa::Baseline, "Momentum", &attrs[1..], &inputs, &outputs).expect("steps");
        assert_eq!(found, [one(-9.0), many([-18.0, -27.0]), one(10.0), many([20.0, 30.0])]);
        let error = run(Isa::Baseline, "Momentum", &attrs, &inputs, &outputs);
        assert!(error.expect_err("no number").contains("alpha is no number"));
        let error = run(Isa::Baseline, "Momentum", &attrs[1..], &inputs[..7], &outputs);
        assert!(error.expect_err("a tensor is missing").contains("expected 3 for each"));
    }
}
