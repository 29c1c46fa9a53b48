//! Reductions over any set of axes.
//!
//! Few long lines are cut into pieces, whose totals a second step folds. The order of all sums depends on the shape
//! alone. Results of 8 bits are packed in a last step, for a thread has one line.

use super::cost;
use super::element::Width;
use super::lines::{LineStep, Lines, bound_input, count, expect_output};
use crate::step::{Build, ShaderStep, Slot};
use crate::target::{Abilities, Target};
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::reduced_axes;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const AXES: TypeVar = TypeVar::of(&[I64]);
const FLOAT: &[TypeVar] = &[TypeVar::of(&[F32]), AXES];
const NUMBERS: &[TypeVar] = &[TypeVar::of(&[F32, I32, I64]), AXES];
const ORDERED: &[TypeVar] = &[TypeVar::of(&[F32, I32, I64, U8, I8, BOOL]), AXES];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    kernel("ReduceSum", 13, NUMBERS, |request| prepare(request, Op::Sum)),
    kernel("ReduceMean", 18, NUMBERS, |request| prepare(request, Op::Mean))
        .doc("the mean of integers is without its fraction"),
    kernel("ReduceMax", 20, ORDERED, |request| prepare(request, Op::Max)),
    kernel("ReduceMin", 20, ORDERED, |request| prepare(request, Op::Min)),
    kernel("ReduceProd", 18, NUMBERS, |request| prepare(request, Op::Product)),
    kernel("ReduceSumSquare", 18, NUMBERS, |request| prepare(request, Op::SumSquare)),
    kernel("ReduceL1", 18, NUMBERS, |request| prepare(request, Op::L1)),
    kernel("ReduceL2", 18, FLOAT, |request| prepare(request, Op::L2)),
    kernel("ReduceLogSum", 18, FLOAT, |request| prepare(request, Op::LogSum)),
    kernel("ReduceLogSumExp", 18, FLOAT, |request| prepare(request, Op::LogSumExp))
        .cost(|request| cost::per_input(request, 22)),
];

const fn kernel(
    name: &'static str,
    since_version: u32,
    types: &'static [TypeVar],
    prepare: fn(&Request<'_>) -> Result<Prepared>,
) -> Kernel<Target> {
    descriptor(name, since_version, prepare).types(types).cost(|request| cost::per_input(request, 1))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Sum,
    Mean,
    Max,
    Min,
    Product,
    SumSquare,
    L1,
    L2,
    LogSum,
    LogSumExp,
}

/// Fold of elements into a result, in WGSL.
struct Fold {
    /// Type of the totals.
    total: &'static str,
    /// The total of nothing.
    start: String,
    /// Value that an element `v` counts as.
    map: String,
    /// Of two totals `a` and `b`.
    fold: &'static str,
    /// The result of a total `v`.
    finish: String,
}

impl Fold {
    fn of(op: Op, dtype: DType) -> Self {
        let is_float = dtype == F32;
        let element = element(dtype);
        let total = if op == Op::Mean && dtype == I32 { "i64" } else { element };
        let least = match dtype {
            F32 => "-inf_f()",
            I32 => "-2147483647i - 1i",
            I64 => "-9223372036854775807li - 1li",
            I8 => "-128i",
            _ => "0i",
        };
        let most = match dtype {
            F32 => "inf_f()",
            I32 => "2147483647i",
            I64 => "9223372036854775807li",
            I8 => "127i",
            U8 => "255i",
            // The smallest of no truth values is true.
            _ => "1i",
        };
        let start = match op {
            Op::Max => least.to_owned(),
            Op::Min => most.to_owned(),
            Op::Product => format!("{element}(1)"),
            _ => format!("{total}(0)"),
        };
        let map = match op {
            Op::SumSquare | Op::L2 => "v * v".to_owned(),
            Op::L1 => "abs(v)".to_owned(),
            Op::LogSumExp => "exp_f(v - shift(largest[line]))".to_owned(),
            _ => format!("{total}(v)"),
        };
        let fold = match op {
            Op::Max if is_float => "larger_f(a, b)",
            Op::Min if is_float => "smaller_f(a, b)",
            Op::Max => "max(a, b)",
            Op::Min => "min(a, b)",
            Op::Product => "a * b",
            _ => "a + b",
        };
        let finish = match op {
            Op::Mean if is_float => "v / f32(p.count)".to_owned(),
            // Nothing has no mean, and a quotient of integers by 0 could be anything.
            Op::Mean => format!("{element}(v / {total}(max(p.count, 1u)))"),
            Op::L2 => "sqrt_f(v)".to_owned(),
            Op::LogSum => "log_f(v)".to_owned(),
            Op::LogSumExp => "log_f(v) + shift(largest[line])".to_owned(),
            _ => "v".to_owned(),
        };
        Self { total, start, map, fold, finish }
    }

    fn functions(&self, abilities: &Abilities, lines: &Lines) -> String {
        let folding = format!("fn fold(a: {0}, b: {0}) -> {0} {{ return {1}; }}\n", self.total, self.fold);
        let mut text = folding + &lines.fold(abilities, "whole", self.total, "fold(a, b)");
        if self.map.contains("shift") || self.finish.contains("shift") {
            // The difference of two infinities would be NaN.
            text.push_str("fn shift(v: f32) -> f32 { return select(v, 0.0, isinf_f(v)); }\n");
        }
        text
    }
}

/// The WGSL type of elements.
fn element(dtype: DType) -> &'static str {
    match dtype {
        F32 => "f32",
        I64 => "i64",
        _ => "i32",
    }
}

/// The WGSL type of a buffer's elements, and the element at `at` of `x`.
fn loaded(dtype: DType) -> (&'static str, String) {
    match dtype {
        I8 => ("u32", format!("bitcast<i32>({} << 24u) >> 24u", Width::B1.load("x", "at"))),
        U8 => ("u32", format!("i32({})", Width::B1.load("x", "at"))),
        BOOL => ("u32", format!("min(i32({}), 1)", Width::B1.load("x", "at"))),
        _ => (element(dtype), "x[at]".to_owned()),
    }
}

fn prepare(request: &Request<'_>, op: Op) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let (shape, dtype) = (x.shape(), x.dtype());
    let is_reduced = reduced_axes(request, shape.len())?;
    let keeps = request.attrs.int("keepdims", 1)? != 0;
    let kept: Vec<i64> = shape
        .iter()
        .zip(&is_reduced)
        .filter_map(|(&extent, &is_reduced)| match is_reduced {
            true => keeps.then_some(1),
            false => Some(extent),
        })
        .collect();
    expect_output(request, 0, &kept)?;
    let fold = Fold::of(op, dtype);
    if (dtype == I64 || fold.total == "i64") && !request.device.abilities.i64 {
        return Err(Error::unsupported("64-bit integers, which the device's shaders do not have"));
    }
    let lines = Lines::new(shape, &is_reduced).in_pieces();
    let mut build = Build::new(request);
    let (x, y) = (bound_input(request, 0, 0)?, Slot::Output(0));
    if op == Op::LogSumExp {
        let largest = build.scratch(lines.n_lines() as u64 * 4);
        reduce(&mut build, &lines, &Fold::of(Op::Max, dtype), dtype, x.clone(), None, largest.clone())?;
        reduce(&mut build, &lines, &fold, dtype, x, Some(largest), y)?;
    } else if dtype.bits == 8 {
        let n = lines.n_lines() as u64;
        let results = build.scratch(n * 4);
        reduce(&mut build, &lines, &fold, dtype, x, None, results.clone())?;
        let each = Width::B1.each("y", "v = bitcast<u32>(x[e]);");
        build.add(ShaderStep {
            name: "pack",
            buffers: vec![("x", "i32", results), ("y", "u32", y)],
            params: vec![("n".to_owned(), count(lines.n_lines())?)],
            turns: Width::B1.turns(0),
            body: Width::B1.body(n, "", &each),
        })?;
    } else {
        reduce(&mut build, &lines, &fold, dtype, x, None, y)?;
    }
    build.finish()
}

/// Adds the steps of a reduction from `x` to `y`.
fn reduce(
    build: &mut Build,
    lines: &Lines,
    fold: &Fold,
    dtype: DType,
    x: Slot,
    largest: Option<Slot>,
    y: Slot,
) -> Result<()> {
    let (element, (stored, load)) = (element(dtype), loaded(dtype));
    let params =
        vec![("count".to_owned(), count(lines.n())?), ("n_pieces".to_owned(), count(lines.n_pieces())?)];
    let line = |lines: &Lines, load: &str, map: &str, is_piece| {
        let (step, at) = lines.walk();
        let (start, finish) = (&fold.start, &fold.finish);
        wgsl!("reduce/line.wgsl", step, at, type = fold.total, start, load, map, finish, is_piece)
    };
    let with_largest = |mut buffers: Vec<(&'static str, &'static str, Slot)>| {
        buffers.extend(largest.clone().map(|slot| ("largest", "f32", slot)));
        buffers
    };
    if lines.n_pieces() == 1 {
        return lines.add(
            build,
            LineStep {
                name: "reduce",
                buffers: with_largest(vec![("x", stored, x), ("y", element, y)]),
                params: params.clone(),
                functions: &fold.functions(build.abilities(), lines),
                code: &line(lines, &load, &fold.map, false),
            },
        );
    }
    let n_pieces = lines.n_pieces();
    let bytes = if fold.total == "i64" { 8 } else { 4 };
    let totals = build.scratch((lines.n_lines() * n_pieces * bytes) as u64);
    lines.add(
        build,
        LineStep {
            name: "reduce pieces",
            buffers: with_largest(vec![("x", stored, x), ("totals", fold.total, totals.clone())]),
            params: params.clone(),
            functions: &fold.functions(build.abilities(), lines),
            code: &line(lines, &load, &fold.map, true),
        },
    )?;
    let rest = Lines::rows(lines.n_lines(), n_pieces);
    rest.add(
        build,
        LineStep {
            name: "reduce totals",
            buffers: with_largest(vec![("x", fold.total, totals), ("y", element, y)]),
            params: params.clone(),
            functions: &fold.functions(build.abilities(), &rest),
            code: &line(&rest, "x[at]", "v", false),
        },
    )
}
