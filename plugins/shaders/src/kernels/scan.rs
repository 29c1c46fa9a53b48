//! CumSum and CumProd: what comes out at one place depends on all that came before it.
//!
//! A thread walks along a line. Where lines are few and long, a workgroup shares one: each thread takes a stretch, once
//! to see what it adds and once to write it.

use super::cost;
use super::fill::wide;
use super::moved::*;
use crate::step::{Body, Build, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const SUMMED: &[TypeVar] = &[TypeVar::of(&[F32, I64, I32, U32, U64]), TypeVar::of(&[I64, I32])];

/// Threads that share one line.
const SHARED: i64 = 64;
/// A line is shared if it is at least as long, and there are at most so many.
const SHARED_MIN: i64 = 512;
const LINES_MAX: i64 = 1024;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("CumSum", 14, |request| cumulative(request, true))
        .types(SUMMED)
        .cost(|request| cost::per_input(request, 1)),
    descriptor("CumProd", 26, |request| cumulative(request, false))
        .types(SUMMED)
        .cost(|request| cost::per_input(request, 1)),
];

/// The WGSL type of elements, where a line starts, and `join(a, b)`.
fn rule(dtype: DType, is_sum: bool) -> (&'static str, &'static str, String) {
    let plain = |word: &str| {
        let op = if is_sum { "+" } else { "*" };
        format!("fn join(a: {word}, b: {word}) -> {word} {{ return a {op} b; }}\n")
    };
    match (dtype, is_sum) {
        (F32, true) => ("f32", "0.0", plain("f32")),
        (F32, false) => ("f32", "1.0", plain("f32")),
        (I64 | U64, true) => (
            "vec2<u32>",
            "vec2<u32>(0u, 0u)",
            "fn join(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {\nlet low = a.x + b.x;\n\
             return vec2<u32>(low, a.y + b.y + select(0u, 1u, low < a.x));\n}\n"
                .to_owned(),
        ),
        (I64 | U64, false) => (
            "vec2<u32>",
            "vec2<u32>(1u, 0u)",
            format!(
                "{}fn join(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {{\nlet low = wide(a.x, b.x);\n\
                 return vec2<u32>(low.x, low.y + a.x * b.y + a.y * b.x);\n}}\n",
                wide()
            ),
        ),
        // The low bits of a sum or product do not depend on signs.
        (_, true) => ("u32", "0u", plain("u32")),
        (_, false) => ("u32", "1u", plain("u32")),
    }
}

fn cumulative(request: &Request<'_>, is_sum: bool) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let from = extents(x)?;
    expect_output(request, 0, from)?;
    let axis = match host_ints(request, 1)?.as_deref() {
        Some([i]) => axis(*i, from.len())?,
        found => {
            return Err(Error::invalid(format!("axes of {found:?}, expected one constant axis")));
        }
    };
    let is_exclusive = request.attrs.int("exclusive", 0)? != 0;
    let is_reverse = request.attrs.int("reverse", 0)? != 0;
    let [outer, n, inner] = around(from, axis);
    let mut build = Build::new(request);
    if x.n_elements() == 0 {
        return build.finish();
    }
    let (word, start, join) = rule(x.dtype(), is_sum);
    let n_lines = outer * inner;
    let buffers = vec![("x", word, Slot::Input(0)), ("y", word, Slot::Output(0))];
    let params = vec![
        param("extent", n)?,
        param("inner", inner)?,
        param("stretch", (n as u64).div_ceil(SHARED as u64) as i64)?,
    ];
    let write = wgsl!("scan/write.wgsl", is_reverse, is_exclusive);
    if n < SHARED_MIN || n_lines > LINES_MAX {
        let each = wgsl!("scan/line.wgsl", start, write);
        let body = Body::Items { n: n_lines as u64, functions: &join, each: &each };
        build.add(ShaderStep { name: "scan", buffers, params, turns: turns(n as u64, 0), body })?;
        return build.finish();
    }
    let threads = SHARED;
    let module = wgsl!("scan/shared.wgsl", join, type = word, start, threads, is_reverse, write);
    let body = Body::Groups { groups: [n_lines as u32, 1, 1], module: &module };
    let stretch = (n as u64).div_ceil(SHARED as u64);
    let turns = turns(2 * stretch, 0) + turns(SHARED as u64, 0) + 1;
    build.add(ShaderStep { name: "scan shared", buffers, params, turns, body })?;
    build.finish()
}
