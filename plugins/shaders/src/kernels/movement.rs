//! Ops that put elements in another order, repeat some or leave some out: most are one strided copy.

use super::cost;
use super::moved::*;
use crate::check::Integers;
use crate::step::{Build, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::{self, View};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);
const INDEX: TypeVar = TypeVar::of(&[I64, I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("Transpose", 21, |request| movement(request, &read::transpose(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
    descriptor("Slice", 13, |request| movement(request, &read::slice(request)?))
        .types(&[MOVED, INDEX])
        .cost(cost::moved),
    descriptor("Expand", 13, |request| movement(request, &read::expand(request)?))
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("broadcasts to a shape"),
    descriptor("Tile", 13, |request| movement(request, &read::tile(request)?))
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("repeats the whole tensor along each axis"),
    descriptor("DepthToSpace", 13, |request| movement(request, &read::depth_to_space(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
    descriptor("SpaceToDepth", 28, |request| movement(request, &read::space_to_depth(request)?))
        .types(&[MOVED])
        .cost(cost::moved),
    descriptor("ReverseSequence", 10, reverse_sequence)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved),
    descriptor("Trilu", 14, trilu)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .cost(cost::moved)
        .doc("the upper or lower triangle of matrices"),
];

/// A copy of a view of input 0 to output 0.
fn movement(request: &Request<'_>, view: &View) -> Result<Prepared> {
    for tensor in [request.required_input(0)?, request.required_output(0)?] {
        extents(tensor)?;
    }
    let dtype = request.required_input(0)?.dtype();
    let mut build = Build::new(request);
    if !view.is_empty() {
        let copy = Strided::new(&view.shape, &view.strides, view.start);
        copy.copy(&mut build, dtype, Slot::Input(0), Slot::Output(0))?;
    }
    build.finish()
}

fn reverse_sequence(request: &Request<'_>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, from)?;
    let axes = [request.attrs.int("time_axis", 0)?, request.attrs.int("batch_axis", 1)?];
    let time_is_first = match axes {
        [0, 1] => true,
        [1, 0] => false,
        _ => return Err(Error::invalid(format!("time and batch are the axes {axes:?}, expected 0 and 1"))),
    };
    let [first, second, inner @ ..] = from else {
        return Err(Error::invalid(format!("extents of {from:?}, expected time and batch")));
    };
    let (times, batches) = if time_is_first { (*first, *second) } else { (*second, *first) };
    let lengths = request.required_input(1)?.shape();
    if lengths != [batches] {
        return Err(Error::invalid(format!("lengths of {lengths:?} for {batches} sequences")));
    }
    let mut build = Build::new(request);
    let n = input.n_elements() as i64;
    let tensor = request.required_input(1)?;
    let bounds = &[(0, times)];
    let lengths = Integers { op: "ReverseSequence", what: "length", tensor, slot: Slot::Input(1), bounds };
    build.expect(&lengths)?;
    if n > 0 {
        let run: i64 = inner.iter().product();
        let (unit, ratio) = Unit::of(input.dtype())?.widened(&[run]);
        let code = wgsl!("movement/reverse.wgsl", time_is_first, load = unit.load("x", "at"));
        let made = Made {
            name: "ReverseSequence",
            buffers: vec![("x", unit.storage(), Slot::Input(0)), ("lengths", "vec2<u32>", Slot::Input(1))],
            params: vec![param("run", run / ratio)?, param("times", times)?, param("batches", batches)?],
            functions: "",
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    }
    build.finish()
}

fn trilu(request: &Request<'_>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let from = extents(input)?;
    expect_output(request, 0, from)?;
    let &[.., rows, cols] = from else {
        return Err(Error::invalid(format!("{from:?} has no matrices")));
    };
    // Beyond the corners all diagonals are alike.
    let k = host_int(request, 1, 0)?.clamp(-rows - 1, cols + 1);
    let unit = Unit::of(input.dtype())?;
    let keeps = if request.attrs.int("upper", 1)? != 0 { ">=" } else { "<=" };
    let code = format!(
        "let col = i32(e % p.cols);\nlet row = i32((e / p.cols) % p.rows);\n\
         if (col - row {keeps} p.k) {{ v = {}; }}",
        unit.load("x", "e")
    );
    let mut build = Build::new(request);
    let made = Made {
        name: "Trilu",
        buffers: vec![("x", unit.storage(), Slot::Input(0))],
        params: vec![param("rows", rows)?, param("cols", cols)?, param_i32("k", k)?],
        functions: "",
        code: &code,
        turns: 0,
    };
    unit.make(&mut build, Slot::Output(0), input.n_elements() as i64, made)?;
    build.finish()
}
