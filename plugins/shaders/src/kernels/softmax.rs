//! Softmax, LogSoftmax and Hardmax along any axis. The largest element is subtracted first, so that no exponential
//! overflows.

use super::cost;
use super::lines::{LineStep, Lines, axis, expect_output};
use crate::step::{Build, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const FLOAT: &[TypeVar] = &[TypeVar::of(&[F32])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    kernel("Softmax", |request| prepare(request, Op::Softmax)).cost(|request| cost::per_output(request, 25)),
    kernel("LogSoftmax", |request| prepare(request, Op::LogSoftmax))
        .cost(|request| cost::per_output(request, 25)),
    kernel("Hardmax", |request| prepare(request, Op::Hardmax)).cost(|request| cost::per_output(request, 8)),
];

const fn kernel(name: &'static str, prepare: fn(&Request<'_>) -> Result<Prepared>) -> Kernel<Target> {
    descriptor(name, 13, prepare).types(FLOAT).in_place(&[0])
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Softmax,
    LogSoftmax,
    Hardmax,
}

fn prepare(request: &Request<'_>, op: Op) -> Result<Prepared> {
    let shape = request.required_input(0)?.shape();
    expect_output(request, 0, shape)?;
    let given = request.attrs.int("axis", -1)?;
    let mut is_along = vec![false; shape.len()];
    // A scalar counts as one element.
    if !shape.is_empty() {
        is_along[axis(given, shape.len())?] = true;
    }
    let lines = Lines::new(shape, &is_along);
    let mut functions = lines.fold(&request.device.abilities, "largest", "f32", "larger_f(a, b)");
    let (step, at) = lines.walk();
    let code = if op == Op::Hardmax {
        functions += &lines.fold(&request.device.abilities, "earliest", "u32", "min(a, b)");
        wgsl!("softmax/hardmax.wgsl", step, at)
    } else {
        functions += &lines.fold(&request.device.abilities, "total", "f32", "a + b");
        wgsl!("softmax/softmax.wgsl", step, at, is_log = op == Op::LogSoftmax)
    };
    let mut build = Build::new(request);
    lines.add(
        &mut build,
        LineStep {
            name: "softmax",
            buffers: vec![("x", "f32", Slot::Input(0)), ("y", "f32", Slot::Output(0))],
            params: vec![],
            functions: &functions,
            code: &code,
        },
    )?;
    build.finish()
}
