//! Min, Max, Sum and Mean of any number of operands: the first two, then the result with each further one, chunk
//! by chunk, so that the result stays in the cache.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::elementwise::binary::{self, Add, Binary, Larger, Loops, Smaller, Zip};
use crate::kernels::elementwise::unary;
use crate::kernels::geometry::extents::extents;
use crate::kernels::numbers::number::{Number, plain};
use crate::kernels::numbers::widen;
use crate::kernels::types::FLOATS;
use crate::kernels::types::NUMBERS;
use crate::stream::CpuStream;
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::*;
use std::ops::Range;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const NUMBER: &[TypeVar] = &[TypeVar::of(NUMBERS)];
const FLOAT: &[TypeVar] = &[TypeVar::of(FLOATS)];

/// The kernels of this file. Two operands may work in place and so have a descriptor of their own; with
/// more, the result is written before the last operand is read.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    pair("Max", 13, NUMBER, prepare_max),
    pair("Min", 13, NUMBER, prepare_min),
    pair("Sum", 13, FLOAT, prepare_sum),
    any("Max", 13, NUMBER, prepare_max),
    any("Min", 13, NUMBER, prepare_min),
    any("Sum", 13, FLOAT, prepare_sum),
    any("Mean", 13, FLOAT, prepare_mean),
];

const fn any(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    Kernel::new(name, since_version, prepare)
        .types(types)
        .operands(&[0], &[0])
        .inputs(1, DEVBAY_VARIADIC)
        .adapted(widen::floats)
        .cost(|request| cost::per_output(request, request.inputs.len().saturating_sub(1) as u64))
}

const fn pair(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<CpuDevice> {
    any(name, since_version, types, prepare)
        .operands(&[0, 0], &[0])
        .in_place(&[0])
        .priority(1)
        .doc("two operands, in place if wanted")
}

/// Prepares an op for the element type of input 0, with the loops for the instruction set or plain ones.
macro_rules! numbers {
    ($request:expr, $op:ident) => {
        match $request.required_input(0)?.dtype() {
            I64 => fold::<$op<i64>>($request),
            I32 => fold::<$op<i32>>($request),
            dtype => plain!(dtype, fold_plain::<$op>($request), fold::<$op<f32>>($request)),
        }
    };
}

fn prepare_max(request: &Request<'_>) -> Result<Prepared> {
    numbers!(request, Larger)
}

fn prepare_min(request: &Request<'_>) -> Result<Prepared> {
    numbers!(request, Smaller)
}

fn prepare_sum(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        F64 => fold_plain::<Add<f64>>(request),
        _ => fold::<Add<f32>>(request),
    }
}

/// The sum, divided by the number of operands.
fn prepare_mean(request: &Request<'_>) -> Result<Prepared> {
    if request.inputs.len() < 2 {
        return prepare_sum(request);
    }
    let (op, divide): (_, Divide) = match request.required_input(0)?.dtype() {
        F64 => (Loops::plain::<Add<f64>>(), divide::<f64>),
        _ => (Loops::of::<Add<f32>>(request.device.isa), divide::<f32>),
    };
    Ok(Prepared::new(Fold { divide: Some(divide), ..steps(request, &op)? }))
}

/// Divides a range of the result by the number of operands.
///
/// # Safety
/// The result has the range, and nothing else uses it.
unsafe fn divide<T: Number + From<u16>>(y: *mut u8, range: Range<usize>, n: u16) {
    for i in range {
        let place = y.cast::<T>().wrapping_add(i);
        // SAFETY: the result has the range, and only this thread uses it (# Safety).
        let sum = unsafe { place.read() };
        // SAFETY: the same element of the range.
        unsafe { place.write(sum.div(T::from(n))) };
    }
}

fn fold<Op>(request: &Request<'_>) -> Result<Prepared>
where
    Op: Binary<Right = <Op as Binary>::Left, Out = <Op as Binary>::Left>,
    Op::Left: Number,
{
    match request.inputs.len() {
        1 => unary::prepare::<unary::Identity<Op::Left>>(request),
        _ => fold_any(request, &Loops::of::<Op>(request.device.isa)),
    }
}

/// For the rarer element types.
fn fold_plain<Op>(request: &Request<'_>) -> Result<Prepared>
where
    Op: Binary<Right = <Op as Binary>::Left, Out = <Op as Binary>::Left>,
    Op::Left: Number,
{
    match request.inputs.len() {
        1 => unary::prepare_plain::<unary::Identity<Op::Left>>(request, [Op::Left::ZERO; 2]),
        _ => fold_any(request, &Loops::plain::<Op>()),
    }
}

fn fold_any(request: &Request<'_>, op: &Loops) -> Result<Prepared> {
    match request.inputs.len() {
        0 => Err(Error::invalid("no operands")),
        2 => binary::prepared(request, op),
        _ => Ok(Prepared::new(steps(request, op)?)),
    }
}

/// The steps of a fold over two operands or more.
fn steps(request: &Request<'_>, op: &Loops) -> Result<Fold> {
    let out = extents(request.required_output(0)?)?;
    let mut left = extents(request.required_input(0)?)?;
    let mut steps = Vec::with_capacity(request.inputs.len());
    for i in 1..request.inputs.len() {
        let right = extents(request.required_input(i)?)?;
        steps.push(Zip::new(request, op, &out, &left, &right)?);
        left.clone_from(&out);
    }
    let n_operands = u16::try_from(request.inputs.len());
    let n_operands = n_operands.map_err(|_| Error::unsupported("more operands than 65535"))?;
    Ok(Fold { steps, n_operands, divide: None })
}

type Divide = unsafe fn(*mut u8, Range<usize>, u16);

/// Several operands.
struct Fold {
    /// Step k takes operand k + 1; its other operand is operand 0 in the first, then the result.
    steps: Vec<Zip>,
    n_operands: u16,
    /// Division that makes a mean of the sum.
    divide: Option<Divide>,
}

impl Launch<CpuDevice> for Fold {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let Zip { host, plan, grain, .. } = &self.steps[0];
        let y = SendPtr(operands.output_ptr::<u8>(0));
        let operands = &*operands;
        host.parallel_for(plan.len(), *grain, |range, _| {
            for (k, step) in self.steps.iter().enumerate() {
                let left = match k {
                    0 => operands.input_ptr::<u8>(0),
                    _ => y.at(0).cast_const(),
                };
                let right = operands.input_ptr::<u8>(k + 1);
                // SAFETY: the operands are the launch's, chunks are apart, and the result has its final
                // shape from the first step on.
                unsafe { step.run([left.cast_mut(), right.cast_mut(), y.at(0)], range.clone()) };
            }
            if let Some(divide) = self.divide {
                // SAFETY: the range is this chunk's own, of the launch's result.
                unsafe { divide(y.at(0), range, self.n_operands) };
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};
    use devbay_plugin_api::sdk::Element;

    fn check<T: Element + PartialEq + std::fmt::Debug>(op: &str, operands: &[&[T]], expected: &[T]) {
        let inputs: Vec<_> = operands.iter().map(|x| Some(Array::of(&[x.len()], x))).collect();
        let found =
            run(Isa::Baseline, op, &[], &inputs, &[Some(Array::empty::<T>(&[expected.len()]))]).expect(op);
        assert_eq!(found[0].as_ref().expect("a result").elements::<T>(), expected, "{op}");
    }

    #[test]
    fn any_number_of_operands_of_any_type() {
        check("Mean", &[&[1.0f32, 2.0], &[3.0]], &[2.0, 2.5]);
        check("Mean", &[&[1.0f64], &[2.0, 5.0], &[6.0]], &[3.0, 4.0]);
        check("Mean", &[&[7.0f32]], &[7.0]);
        check("Sum", &[&[1.0f64, 2.0], &[3.0]], &[4.0, 5.0]);
        check("Max", &[&[200u8, 3], &[4]], &[200, 4]);
        check("Min", &[&[-3i16], &[4], &[-5]], &[-5]);
        check("Max", &[&[u64::MAX], &[1], &[2]], &[u64::MAX]);
    }
}
