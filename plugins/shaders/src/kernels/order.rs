//! The order of elements of any type, as keys that compare alike, and what goes by it: ArgMax, ArgMin and TopK.
//!
//! Zeros are equal, whatever their sign. Of equal elements the first comes first, or the last where a node asks for it.

use super::cost;
use super::moved::*;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const ORDERED: &[DType] = &[F32, I64, I32, F16, BF16, F64, I8, I16, U8, U16, U32, U64];
const TYPES: &[TypeVar] = &[TypeVar::of(ORDERED), TypeVar::of(&[I64])];

/// Threads that share one line.
const SHARED: u32 = 64;
/// A line is shared if it is at least as long.
const SHARED_MIN: i64 = 256;
/// Threads that select from one line.
const SELECTING: u32 = 256;
/// Comparisons of a TopK, at most: more take seconds.
const WORK_MAX: i64 = 1 << 32;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("ArgMax", 13, |request| arg(request, true))
        .types(TYPES)
        .cost(|request| cost::per_input(request, 2)),
    descriptor("ArgMin", 13, |request| arg(request, false))
        .types(TYPES)
        .cost(|request| cost::per_input(request, 2)),
    descriptor("TopK", 11, top_k)
        .types(TYPES)
        .operands(&[0, 1], &[0, 1])
        .cost(|request| cost::per_input(request, 8)),
];

/// Treatment of NaN.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Nans {
    /// Is above all numbers.
    Last,
    /// Is what is looked for, the largest or the smallest.
    Extreme,
}

/// WGSL type of keys, and functions for them: `key(at)` of an element of `x`, and `above(a, b)`. Keys are turned round
/// where the smallest element is wanted, so that what is wanted is above.
fn keys(dtype: DType, is_largest: bool, nans: Nans) -> Result<(&'static str, String)> {
    let unit = Unit::of(dtype)?;
    let load = unit.load("x", "at");
    let is_float = matches!(dtype, F32 | F16 | BF16 | F64);
    let is_signed = !is_float && !matches!(dtype, U8 | U16 | U32 | U64);
    let turned = if is_largest { "" } else { "~" };
    let nan_turned = if nans == Nans::Extreme { "" } else { turned };
    if unit.bytes() == 8 {
        let text = wgsl!("order/key_pair.wgsl", load, is_float, is_signed, nan_turned, turned);
        return Ok(("vec2<u32>", text));
    }
    let top = 1u32 << (dtype.bits - 1);
    let rest = top - 1;
    let infinity = match dtype {
        F32 => 0x7f80_0000u32,
        F16 => 0x7c00,
        _ => 0x7f80,
    };
    let text = wgsl!(
        "order/key_word.wgsl",
        load,
        is_float,
        is_signed,
        top,
        rest,
        all = top | rest,
        infinity,
        nan_turned,
        turned,
    );
    Ok(("u32", text))
}

fn arg(request: &Request<'_>, is_largest: bool) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let from = extents(x)?;
    let axis_attr = request.attrs.int("axis", 0)?;
    let last = request.attrs.int("select_last_index", 0)? != 0;
    let [outer, n, inner] = match from.len() {
        // A scalar counts as one element.
        0 => [1, 1, 1],
        rank => around(from, axis(axis_attr, rank)?),
    };
    let n_out = request.required_output(0)?.n_elements() as i64;
    if n_out != outer * inner {
        return Err(Error::invalid(format!("an output of {n_out} elements, expected {}", outer * inner)));
    }
    let mut build = Build::new(request);
    if n_out == 0 {
        return build.finish();
    }
    if n == 0 {
        return Err(Error::invalid("the extreme of no elements"));
    }
    let (key_type, functions) = keys(x.dtype(), is_largest, Nans::Extreme)?;
    let takes = if last { "!above(best, found)" } else { "above(found, best)" };
    let unit = Unit::of(x.dtype())?;
    let buffers = vec![("x", unit.storage(), Slot::Input(0)), ("y", "vec2<u32>", Slot::Output(0))];
    let params = vec![param("extent", n)?, param("inner", inner)?, param("n_lines", n_out)?];
    if n < SHARED_MIN || n_out > 4096 {
        let each = wgsl!("order/arg_items.wgsl", takes);
        let body = Body::Items { n: n_out as u64, functions: &functions, each: &each };
        build.add(ShaderStep { name: "ArgMax", buffers, params, turns: turns(n as u64, 0), body })?;
        return build.finish();
    }
    let nearer = if last { ">" } else { "<" };
    let module = wgsl!("order/arg_shared.wgsl", functions, key = key_type, threads = SHARED, takes, nearer);
    let body = Body::Groups { groups: [n_out as u32, 1, 1], module: &module };
    let shared = u64::from(SHARED);
    let turns = turns((n as u64).div_ceil(shared), 0) + turns(shared, 0);
    build.add(ShaderStep { name: "ArgMax shared", buffers, params, turns, body })?;
    build.finish()
}

fn top_k(request: &Request<'_>) -> Result<Prepared> {
    let x = request.required_input(0)?;
    let from = extents(x)?;
    let axis = axis(request.attrs.int("axis", -1)?, from.len())?;
    let k = host_int(request, 1, 1)?;
    if !(0..=from[axis]).contains(&k) {
        return Err(Error::invalid(format!("k is {k}, expected 0 to {}", from[axis])));
    }
    let mut to = from.to_vec();
    to[axis] = k;
    for i in (0..2).filter(|&i| request.output(i).is_some()) {
        expect_output(request, i, &to)?;
    }
    let is_largest = request.attrs.int("largest", 1)? != 0;
    let [outer, n, inner] = around(from, axis);
    let n_out: i64 = to.iter().product();
    let mut build = Build::new(request);
    if n_out == 0 {
        return build.finish();
    }
    if n_out.saturating_mul(k) > WORK_MAX {
        let text = format!("{} lines of {k} results, each compared with the others", outer * inner);
        return Err(Error::unsupported(text));
    }
    let unit = Unit::of(x.dtype())?;
    let (key_type, functions) = keys(x.dtype(), is_largest, Nans::Last)?;
    let order = build.scratch(4 * n_out as u64);
    let top = Top { unit, functions, n, inner, k, n_lines: outer * inner };
    match n > SHARED_MIN {
        true => top.select(&mut build, key_type, &order)?,
        false => top.compare(&mut build, &order)?,
    }
    if request.output(0).is_some() {
        let code = format!(
            "let at = (e / p.inner / p.k * p.extent + order[e]) * p.inner + e % p.inner;\nv = {};",
            unit.load("x", "at")
        );
        let made = Made {
            name: "TopK values",
            buffers: vec![("x", unit.storage(), Slot::Input(0)), ("order", "u32", order.clone())],
            params: vec![param("extent", n)?, param("inner", inner)?, param("k", k)?],
            functions: "",
            code: &code,
            turns: 0,
        };
        unit.make(&mut build, Slot::Output(0), n_out, made)?;
    }
    if request.output(1).is_some() {
        build.add(ShaderStep {
            name: "TopK places",
            buffers: vec![("order", "u32", order), ("y", "vec2<u32>", Slot::Output(1))],
            params: vec![],
            turns: 0,
            body: Body::Items { n: n_out as u64, functions: "", each: "y[i] = vec2<u32>(order[i], 0u);" },
        })?;
    }
    build.finish()
}

/// The first `k` of lines of `n` elements, whose positions go to a buffer as they lie in the output.
struct Top {
    unit: Unit,
    functions: String,
    n: i64,
    inner: i64,
    k: i64,
    n_lines: i64,
}

impl Top {
    fn params(&self) -> Result<Vec<(String, Param)>> {
        Ok(vec![
            param("extent", self.n)?,
            param("inner", self.inner)?,
            param("k", self.k)?,
            param("n_lines", self.n_lines)?,
        ])
    }

    /// Adds the step that compares each element with the others.
    fn compare(&self, build: &mut Build, order: &Slot) -> Result<()> {
        let each = wgsl!("order/top_compare.wgsl");
        let n = (self.n_lines * self.n) as u64;
        build.add(ShaderStep {
            name: "TopK order",
            buffers: vec![("x", self.unit.storage(), Slot::Input(0)), ("order", "u32", order.clone())],
            params: self.params()?,
            turns: turns(self.n as u64, 0),
            body: Body::Items { n, functions: &self.functions, each: &each },
        })
    }

    /// Adds the steps that find the elements that have a place first, and compare those.
    fn select(&self, build: &mut Build, key_type: &str, order: &Slot) -> Result<()> {
        let list = build.scratch(4 * (self.n_lines * self.k) as u64);
        let counts = build.scratch(4 * self.n_lines as u64);
        let is_pair = key_type != "u32";
        let bits = if is_pair { 64 } else { 32 };
        let (functions, threads) = (&self.functions, SELECTING);
        let module = wgsl!("order/top_select.wgsl", functions, key = key_type, threads, bits, is_pair);
        let groups = self.n_lines.clamp(1, 65535) as u64;
        let of_pass = turns((self.n as u64).div_ceil(u64::from(SELECTING)), 0);
        let of_line = turns(bits, of_pass) + 2 * of_pass + turns(u64::from(SELECTING), 0);
        build.add(ShaderStep {
            name: "TopK select",
            buffers: vec![
                ("x", self.unit.storage(), Slot::Input(0)),
                ("order", "u32", order.clone()),
                ("list", "u32", list.clone()),
                ("counts", "u32", counts.clone()),
            ],
            params: self.params()?,
            turns: turns((self.n_lines as u64).div_ceil(groups), of_line),
            body: Body::Groups { groups: [groups as u32, 1, 1], module: &module },
        })?;
        let each = wgsl!("order/top_order.wgsl");
        build.add(ShaderStep {
            name: "TopK order of those",
            buffers: vec![
                ("x", self.unit.storage(), Slot::Input(0)),
                ("order", "u32", order.clone()),
                ("list", "u32", list),
                ("counts", "u32", counts),
            ],
            params: self.params()?,
            turns: turns(self.k as u64, 0),
            body: Body::Items { n: (self.n_lines * self.k) as u64, functions: &self.functions, each: &each },
        })
    }
}
