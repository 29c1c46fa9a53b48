//! Softmax, LogSoftmax and Hardmax along any axis. The largest element is subtracted first, so that no exponential
//! overflows.

use super::cost;
use super::lines::{LineStep, Lines, axis, expect_output};
use crate::step::{Build, Slot};
use crate::target::Target;
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
    Kernel::new(name, 13, prepare).types(FLOAT).operands(&[0], &[0]).in_place(&[0])
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
    let mut code = format!(
        "var top = -inf_f();\n{}top = largest(top, thread);\n",
        lines.each("top = larger_f(top, x[at]);")
    );
    if op == Op::Hardmax {
        functions += &lines.fold(&request.device.abilities, "earliest", "u32", "min(a, b)");
        code += &format!(
            "var place = p.n;\n{}place = earliest(place, thread);\n{}",
            lines.each("if (x[at] == top || isnan_f(x[at])) { place = min(place, k); }"),
            lines.each("y[at] = select(0.0, 1.0, k == place);")
        );
    } else {
        functions += &lines.fold(&request.device.abilities, "total", "f32", "a + b");
        // What a thread writes it alone reads again.
        let term = match op {
            Op::Softmax => "let e = exp_f(x[at] - top);\ny[at] = e;\nsum += e;",
            _ => "sum += exp_f(x[at] - top);",
        };
        code += &format!("var sum = 0.0;\n{}sum = total(sum, thread);\n", lines.each(term));
        code += &match op {
            Op::Softmax => lines.each("y[at] = y[at] / sum;"),
            _ => format!("let log = log_f(sum);\n{}", lines.each("y[at] = (x[at] - top) - log;")),
        };
    }
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
