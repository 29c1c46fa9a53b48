//! Min, Max and Sum of any number of operands: the first two, then the result with each further one, chunk
//! by chunk, so that the result stays in the cache.

use super::binary::{self, Add, Binary, Larger, Smaller, Zip};
use super::cost;
use super::extents::extents;
use super::number::Number;
use super::unary;
use crate::device::CpuDevice;
use crate::stream::CpuStream;
use devbay_plugin_api::abi::DEVBAY_VARIADIC;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, CpuDevice>;

const NUMBERS: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32])];
const FLOAT: &[TypeVar] = &[TypeVar::of(&[F32])];

/// The kernels of this file. Two operands may work in place and so have a descriptor of their own; with
/// more, the result is written before the last operand is read.
pub const KERNELS: &[Kernel<CpuDevice>] = &[
    pair("Max", 13, NUMBERS, prepare_max),
    pair("Min", 13, NUMBERS, prepare_min),
    pair("Sum", 13, FLOAT, fold::<Add<f32>>),
    any("Max", 13, NUMBERS, prepare_max),
    any("Min", 13, NUMBERS, prepare_min),
    any("Sum", 13, FLOAT, fold::<Add<f32>>),
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

fn prepare_max(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        I64 => fold::<Larger<i64>>(request),
        I32 => fold::<Larger<i32>>(request),
        _ => fold::<Larger<f32>>(request),
    }
}

fn prepare_min(request: &Request<'_>) -> Result<Prepared> {
    match request.required_input(0)?.dtype() {
        I64 => fold::<Smaller<i64>>(request),
        I32 => fold::<Smaller<i32>>(request),
        _ => fold::<Smaller<f32>>(request),
    }
}

fn fold<Op>(request: &Request<'_>) -> Result<Prepared>
where
    Op: Binary<Right = <Op as Binary>::Left, Out = <Op as Binary>::Left>,
    Op::Left: Number,
{
    match request.inputs.len() {
        0 => Err(Error::invalid("no operands")),
        1 => unary::prepare::<unary::Identity<Op::Left>>(request),
        2 => binary::prepare::<Op>(request),
        _ => {
            let out = extents(request.required_output(0)?)?;
            let mut left = extents(request.required_input(0)?)?;
            let mut steps = Vec::with_capacity(request.inputs.len() - 1);
            for i in 1..request.inputs.len() {
                let right = extents(request.required_input(i)?)?;
                steps.push(Zip::new::<Op>(request, &out, &left, &right)?);
                left.clone_from(&out);
            }
            Ok(Prepared::new(Fold { steps }))
        }
    }
}

/// Three operands or more.
struct Fold {
    /// Step k takes operand k + 1; its other operand is operand 0 in the first, then the result.
    steps: Vec<Zip>,
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
            Ok(())
        })
    }
}
