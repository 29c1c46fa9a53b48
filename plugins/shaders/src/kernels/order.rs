//! The order of elements of any type, as keys that compare alike, and what goes by it: ArgMax, ArgMin and TopK.
//!
//! Zeros are equal, whatever their sign. Of equal elements the first comes first, or the last where a node asks for it.

use super::cost;
use super::moved::*;
use crate::step::{Body, Build, Param, Slot, Step, turns};
use crate::target::Target;
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
    Kernel::new("ArgMax", 13, |request| arg(request, true))
        .types(TYPES)
        .operands(&[0], &[1])
        .cost(|request| cost::per_input(request, 2)),
    Kernel::new("ArgMin", 13, |request| arg(request, false))
        .types(TYPES)
        .operands(&[0], &[1])
        .cost(|request| cost::per_input(request, 2)),
    Kernel::new("TopK", 11, top_k)
        .types(TYPES)
        .operands(&[0, 1], &[0, 1])
        .host_values(0b10)
        .cost(|request| cost::per_input(request, 8)),
];

/// What is not a number.
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
    let is_unsigned = matches!(dtype, U8 | U16 | U32 | U64);
    let turned = if is_largest { "" } else { "~" };
    let nan_turned = if nans == Nans::Extreme { "" } else { turned };
    if unit.bytes() == 8 {
        let sign = match (is_float, is_unsigned) {
            (_, true) => String::new(),
            (false, false) => "w.y = w.y ^ 0x80000000u;\n".to_owned(),
            (true, false) => format!(
                "let size = w.y & 0x7fffffffu;\n\
                 if (size > 0x7ff00000u || (size == 0x7ff00000u && w.x != 0u)) {{\n\
                 return vec2<u32>({nan_turned}0xffffffffu);\n}}\n\
                 if (size == 0u && w.x == 0u) {{ w = vec2<u32>(0u, 0u); }}\n\
                 if ((w.y >> 31u) == 1u) {{ w = ~w; }} else {{ w.y = w.y | 0x80000000u; }}\n"
            ),
        };
        let text = format!(
            "fn key(at: u32) -> vec2<u32> {{\nvar w = {load};\n{sign}return {turned}w;\n}}\n\
             fn above(a: vec2<u32>, b: vec2<u32>) -> bool {{\n\
             return a.y > b.y || (a.y == b.y && a.x > b.x);\n}}\n"
        );
        return Ok(("vec2<u32>", text));
    }
    let top = 1u32 << (dtype.bits - 1);
    let sign = match dtype {
        F32 | F16 | BF16 => {
            let infinity = match dtype {
                F32 => 0x7f80_0000u32,
                F16 => 0x7c00,
                _ => 0x7f80,
            };
            let rest = top - 1;
            format!(
                "if ((w & {rest}u) > {infinity}u) {{ return {nan_turned}0xffffffffu; }}\n\
                 if (w == {top}u) {{ w = 0u; }}\n\
                 if ((w & {top}u) != 0u) {{ w = w ^ {all}u; }} else {{ w = w | {top}u; }}\n",
                all = top | rest
            )
        }
        _ if is_unsigned => String::new(),
        _ => format!("w = w ^ {top}u;\n"),
    };
    let text = format!(
        "fn key(at: u32) -> u32 {{\nvar w = {load};\n{sign}return {turned}w;\n}}\n\
         fn above(a: u32, b: u32) -> bool {{\nreturn a > b;\n}}\n"
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
    let line = "let base = line / p.inner * p.extent * p.inner + line % p.inner;\n";
    if n < SHARED_MIN || n_out > 4096 {
        let each = format!(
            "let line = i;\n{line}var best = key(base);\nvar place = 0u;\n\
             for (var k = 1u; k < p.extent; k++) {{\nlet found = key(base + k * p.inner);\n\
             if ({takes}) {{ best = found; place = k; }}\n}}\n\
             y[i] = vec2<u32>(place, 0u);"
        );
        let body = Body::Items { n: n_out as u64, functions: &functions, each: &each };
        build.add(Step { name: "ArgMax", buffers, params, turns: turns(n as u64, 0), body })?;
        return build.finish();
    }
    // Of equal keys the place decides.
    let nearer = if last { ">" } else { "<" };
    let module = format!(
        "{functions}\
         var<workgroup> bests: array<{key_type}, {SHARED}>;\nvar<workgroup> places: array<u32, {SHARED}>;\n\
         @compute @workgroup_size({SHARED})\n\
         fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_id) id: vec3<u32>) {{\n\
         let line = group.x;\n{line}var best = key(base + id.x * p.inner);\nvar place = id.x;\n\
         for (var k = id.x + {SHARED}u; k < p.extent; k += {SHARED}u) {{\n\
         let found = key(base + k * p.inner);\nif ({takes}) {{ best = found; place = k; }}\n}}\n\
         bests[id.x] = best;\nplaces[id.x] = place;\nworkgroupBarrier();\n\
         if (id.x == 0u) {{\nfor (var t = 1u; t < {SHARED}u; t++) {{\n\
         let found = bests[t];\n\
         if (above(found, best) || (!above(best, found) && places[t] {nearer} place)) {{\n\
         best = found;\nplace = places[t];\n}}\n}}\n\
         y[line] = vec2<u32>(place, 0u);\n}}\n}}\n"
    );
    let body = Body::Groups { groups: [n_out as u32, 1, 1], module: &module };
    let shared = u64::from(SHARED);
    let turns = turns((n as u64).div_ceil(shared), 0) + turns(shared, 0);
    build.add(Step { name: "ArgMax shared", buffers, params, turns, body })?;
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
        build.add(Step {
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

    /// The place of an element is the number of those before it; most are known soon not to have one.
    fn compare(&self, build: &mut Build, order: &Slot) -> Result<()> {
        let each = "let at = (i / p.inner) % p.extent;\n\
            let lane = i % p.inner;\nlet outer = i / p.inner / p.extent;\n\
            let base = outer * p.extent * p.inner + lane;\nlet own = key(i);\nvar place = 0u;\n\
            for (var j = 0u; j < p.extent && place < p.k; j++) {\n\
            let found = key(base + j * p.inner);\n\
            if (above(found, own) || (j < at && !above(own, found))) { place += 1u; }\n}\n\
            if (place < p.k) { order[(outer * p.k + place) * p.inner + lane] = at; }";
        let n = (self.n_lines * self.n) as u64;
        build.add(Step {
            name: "TopK order",
            buffers: vec![("x", self.unit.storage(), Slot::Input(0)), ("order", "u32", order.clone())],
            params: self.params()?,
            turns: turns(self.n as u64, 0),
            body: Body::Items { n, functions: &self.functions, each },
        })
    }

    /// A workgroup finds the last key of a line that has a place, bit by bit. Those above it are compared with each
    /// other; those equal to it follow as they come.
    fn select(&self, build: &mut Build, key_type: &str, order: &Slot) -> Result<()> {
        let list = build.scratch(4 * (self.n_lines * self.k) as u64);
        let counts = build.scratch(4 * self.n_lines as u64);
        let (bits, guess) = match key_type {
            "u32" => (32, "let guess = bound | (0x80000000u >> bit);\n"),
            _ => (
                64,
                "let guess = bound | vec2<u32>(select(0u, 0x80000000u >> (bit & 31u), bit > 31u), \
                 select(0u, 0x80000000u >> (bit & 31u), bit < 32u));\n",
            ),
        };
        let line = "let base = line / p.inner * p.extent * p.inner + line % p.inner;\n\
                    let first_out = line / p.inner * p.k * p.inner + line % p.inner;\n";
        let module = format!(
            "{functions}var<workgroup> counter: atomic<u32>;\n\
             var<workgroup> ties: array<u32, {SELECTING}>;\nvar<workgroup> firsts: array<u32, {SELECTING}>;\n\
             @compute @workgroup_size({SELECTING})\n\
             fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>,\n\
             @builtin(local_invocation_id) id: vec3<u32>) {{\n\
             for (var line = group.x; line < p.n_lines; line += groups.x) {{\n{line}\
             var bound = {key_type}();\n\
             for (var bit = 0u; bit < {bits}u; bit++) {{\n{guess}\
             if (id.x == 0u) {{ atomicStore(&counter, 0u); }}\nworkgroupBarrier();\n\
             var own = 0u;\n\
             for (var j = id.x; j < p.extent; j += {SELECTING}u) {{\n\
             if (!above(guess, key(base + j * p.inner))) {{ own += 1u; }}\n}}\n\
             atomicAdd(&counter, own);\nworkgroupBarrier();\n\
             if (atomicLoad(&counter) >= p.k) {{ bound = guess; }}\nworkgroupBarrier();\n}}\n\
             let stretch = (p.extent + {SELECTING}u - 1u) / {SELECTING}u;\n\
             let begin = min(id.x * stretch, p.extent);\nlet end = min(begin + stretch, p.extent);\n\
             var n_ties = 0u;\nvar n_firsts = 0u;\n\
             for (var j = begin; j < end; j++) {{\nlet found = key(base + j * p.inner);\n\
             if (above(found, bound)) {{ n_firsts += 1u; }}\n\
             else if (!above(bound, found)) {{ n_ties += 1u; }}\n}}\n\
             ties[id.x] = n_ties;\nfirsts[id.x] = n_firsts;\nworkgroupBarrier();\n\
             var tie = 0u;\nvar slot = line * p.k;\nvar all = 0u;\n\
             for (var t = 0u; t < {SELECTING}u; t++) {{\n\
             if (t < id.x) {{ tie += ties[t]; slot += firsts[t]; }}\nall += firsts[t];\n}}\n\
             tie += all;\nif (id.x == 0u) {{ counts[line] = all; }}\n\
             for (var j = begin; j < end; j++) {{\nlet found = key(base + j * p.inner);\n\
             if (above(found, bound)) {{ list[slot] = j; slot += 1u; }}\n\
             else if (!above(bound, found)) {{\n\
             if (tie < p.k) {{ order[first_out + tie * p.inner] = j; }}\ntie += 1u;\n}}\n}}\n\
             workgroupBarrier();\n}}\n}}\n",
            functions = self.functions,
        );
        let groups = self.n_lines.clamp(1, 65535) as u64;
        let of_pass = turns((self.n as u64).div_ceil(u64::from(SELECTING)), 0);
        let of_line = turns(bits, of_pass) + 2 * of_pass + turns(u64::from(SELECTING), 0);
        build.add(Step {
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
        let each = format!(
            "let line = i / p.k;\nlet slot = i % p.k;\nlet n = counts[line];\n\
             if (slot < n) {{\n{line}let at = list[i];\nlet own = key(base + at * p.inner);\nvar place = 0u;\n\
             for (var j = 0u; j < n; j++) {{\nlet other = list[line * p.k + j];\n\
             let found = key(base + other * p.inner);\n\
             if (above(found, own) || (other < at && !above(own, found))) {{ place += 1u; }}\n}}\n\
             order[first_out + place * p.inner] = at;\n}}"
        );
        build.add(Step {
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
