//! ScatterElements, ScatterND and TensorScatter: a copy of the data in which indices name what is replaced or reduced.
//!
//! An index that names nothing fails the stream ([`crate::check`]). Indices may name one element twice; updates are then applied in their order, so that results do not depend on which
//! thread came first. Few updates are looked through by each element of the result. Of many that replace, the last one
//! of each place is found with atomics; of many that reduce, each place has a list, which is sorted.

use super::cost;
use super::elementwise::Number;
use super::index::{Tuples, expect_indices, expect_within};
use super::moved::*;
use super::walk::dense_strides;
use crate::check::Integers;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// Updates that each element looks through.
const LOOKED_MAX: i64 = 16;
/// Threads that count where lists begin.
const COUNTING: u32 = 256;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("ScatterElements", 18, scatter_elements)
        .types(&[MOVED, TypeVar::of(&[I64, I32])])
        .in_place(&[0])
        .cost(cost_scattered)
        .doc("any dtype; reductions of integers, f32, f16 and bf16"),
    descriptor("ScatterND", 18, scatter_nd)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .in_place(&[0])
        .cost(cost_scattered)
        .doc("any dtype; reductions of integers, f32, f16 and bf16"),
    descriptor("TensorScatter", 24, tensor_scatter)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .in_place(&[0])
        .cost(cost::moved),
];

fn cost_scattered(request: &Request<'_>) -> Result<Cost> {
    let updates = request.required_input(2)?.n_elements() as u64;
    Ok(cost::of(request, updates))
}

/// WGSL for `combine(old, put)` of elements as they are loaded; None where what is put replaces the old.
fn reduction(request: &Request<'_>, dtype: DType) -> Result<Option<String>> {
    let name = request.attrs.string("reduction", "none")?;
    if name == "none" {
        return Ok(None);
    }
    let unsupported = || {
        Err(Error::unsupported(format!(
            "reduction {name} of dtype {dtype:?}, expected integers, f32, f16 or bf16"
        )))
    };
    let is_signed = matches!(dtype, I8 | I16 | I32 | I64);
    let is_unsigned = matches!(dtype, U8 | U16 | U32 | U64);
    let is_float = matches!(dtype, F32 | F16 | BF16);
    if !is_float && !is_signed && !is_unsigned {
        return unsupported();
    }
    if dtype.bits == 64 {
        let high = |pair: &str| match is_signed {
            true => format!("bitcast<i32>({pair}.y)"),
            false => format!("{pair}.y"),
        };
        let (old, put) = (high("old"), high("put"));
        let body = match name {
            "add" => "let low = old.x + put.x;\n\
                 return vec2<u32>(low, old.y + put.y + select(0u, 1u, low < old.x));"
                .to_owned(),
            "mul" => "let low = wide(old.x, put.x);\n\
                      return vec2<u32>(low.x, low.y + old.x * put.y + old.y * put.x);"
                .to_owned(),
            "max" | "min" => {
                let (first, second) = if name == "max" { ("put", "old") } else { ("old", "put") };
                format!(
                    "let is_less = {old} < {put} || (old.y == put.y && old.x < put.x);\n\
                     if (is_less) {{ return {first}; }}\nreturn {second};"
                )
            }
            _ => return unsupported(),
        };
        let wide = if name == "mul" { super::fill::wide() } else { String::new() };
        let text = format!("{wide}fn combine(old: vec2<u32>, put: vec2<u32>) -> vec2<u32> {{\n{body}\n}}\n");
        return Ok(Some(text));
    }
    let shift = 32 - u32::from(dtype.bits);
    let value = |word: &str| match dtype {
        F32 => format!("bitcast<f32>({word})"),
        F16 => format!("unpack2x16float({word}).x"),
        BF16 => format!("bitcast<f32>({word} << 16u)"),
        _ if is_signed => format!("(bitcast<i32>({word} << {shift}u) >> {shift}u)"),
        _ => word.to_owned(),
    };
    let bits = |value: &str| match dtype {
        F16 => format!("pack2x16float(vec2<f32>({value}, 0.0))"),
        BF16 => format!("bfloat_({value})"),
        _ => format!("bitcast<u32>({value})"),
    };
    // NaN stays, on either side.
    let nan = match dtype {
        F32 => "if ((old & 0x7fffffffu) > 0x7f800000u) { return old; }\n",
        F16 => "if ((old & 0x7fffu) > 0x7c00u) { return old; }\n",
        BF16 => "if ((old & 0x7fffu) > 0x7f80u) { return old; }\n",
        _ => "",
    };
    let (a, b) = (value("old"), value("put"));
    let body = match name {
        "add" => format!("return {};", bits(&format!("{a} + {b}"))),
        "mul" => format!("return {};", bits(&format!("{a} * {b}"))),
        "max" => format!("{nan}if ({a} >= {b}) {{ return old; }}\nreturn put;"),
        "min" => format!("{nan}if ({a} <= {b}) {{ return old; }}\nreturn put;"),
        _ => return unsupported(),
    };
    let functions = match dtype {
        BF16 => Number::of(BF16, request.device)?.functions(),
        _ => "",
    };
    Ok(Some(format!("{functions}fn combine(old: u32, put: u32) -> u32 {{\n{body}\n}}\n")))
}

/// Many updates of many places.
struct Many<'a> {
    name: &'a str,
    /// Buffer, parameters and code that declare `place_of` for the update `i`.
    ids: (&'a str, &'a str, Slot),
    params: Vec<(String, Param)>,
    functions: &'a str,
    code: &'a str,
    n_places: i64,
    n_updates: i64,
    /// Units of a place.
    unit: Unit,
    size: i64,
}

impl Many<'_> {
    /// Adds the steps that make the output.
    fn apply(&self, build: &mut Build, combine: Option<&str>) -> Result<()> {
        let unit = self.unit;
        let mut buffers =
            vec![("updates", unit.storage(), Slot::Input(2)), ("x", unit.storage(), Slot::Input(0))];
        let (code, turns) = match combine {
            None => {
                // 1 above the number of the last update, or 0.
                let last = self.zeros(build)?;
                let atomic = ("last", "atomic<u32>", last.clone());
                self.mark(build, vec![atomic], "atomicMax(&last[place_of], i + 1u);")?;
                buffers.push(("last", "u32", last));
                let code = format!(
                    "let k = last[e / p.size];\nif (k > 0u) {{ v = {}; }} else {{ v = {}; }}",
                    unit.load("updates", "(k - 1u) * p.size + e % p.size"),
                    unit.load("x", "e")
                );
                (code, 0)
            }
            Some(_) => {
                let [counts, ends, list] = self.lists(build)?;
                buffers.extend([("counts", "u32", counts), ("ends", "u32", ends), ("list", "u32", list)]);
                let code = format!(
                    "v = {};\nlet own = e / p.size;\nlet end = ends[own];\n\
                     for (var j = end - counts[own]; j < end; j++) {{\nv = combine(v, {});\n}}",
                    unit.load("x", "e"),
                    unit.load("updates", "list[j] * p.size + e % p.size")
                );
                // All of them may be of one place.
                (code, turns(self.n_updates as u64, 0))
            }
        };
        let params = vec![param("size", self.size)?];
        let functions = combine.unwrap_or_default();
        let made = Made { name: self.name, buffers, params, functions, code: &code, turns };
        unit.make(build, Slot::Output(0), self.n_places * self.size, made)
    }

    /// A number for each place, 0 at first.
    fn zeros(&self, build: &mut Build) -> Result<Slot> {
        let zeros = build.scratch(self.n_places as u64 * 4);
        build.add(ShaderStep {
            name: "zeros",
            buffers: vec![("y", "u32", zeros.clone())],
            params: vec![],
            turns: 0,
            body: Body::Items { n: self.n_places as u64, functions: "", each: "y[i] = 0u;" },
        })?;
        Ok(zeros)
    }

    /// Adds a step that does something for each update and its place.
    fn mark(&self, build: &mut Build, with: Vec<(&str, &str, Slot)>, each: &str) -> Result<()> {
        let buffers = [vec![self.ids.clone()], with].concat();
        let each = format!("{}{each}", self.code);
        let body = Body::Items { n: self.n_updates as u64, functions: self.functions, each: &each };
        build.add(ShaderStep { name: self.name, buffers, params: self.params.clone(), turns: 0, body })
    }

    /// Adds the steps that list the updates of each place in their order: how many they are, where they end in the
    /// list, and the list.
    fn lists(&self, build: &mut Build) -> Result<[Slot; 3]> {
        let counts = self.zeros(build)?;
        let atomic = ("counts", "atomic<u32>", counts.clone());
        self.mark(build, vec![atomic], "atomicAdd(&counts[place_of], 1u);")?;
        let ends = build.scratch(self.n_places as u64 * 4);
        let counting = wgsl!("scatter/ends.wgsl", threads = COUNTING);
        let stretch = (self.n_places as u64).div_ceil(u64::from(COUNTING));
        build.add(ShaderStep {
            name: "begins of lists",
            buffers: vec![("counts", "u32", counts.clone()), ("ends", "u32", ends.clone())],
            params: vec![param("n_places", self.n_places)?],
            turns: 2 * turns(stretch, 0) + turns(u64::from(COUNTING), 0),
            body: Body::Groups { groups: [1, 1, 1], module: &counting },
        })?;
        // Each begin rises to the end while the list is filled.
        let list = build.scratch(self.n_updates as u64 * 4);
        let atomic = ("ends", "atomic<u32>", ends.clone());
        let with = vec![atomic, ("list", "u32", list.clone())];
        self.mark(build, with, "list[atomicAdd(&ends[place_of], 1u)] = i;")?;
        let (sink, each) = (wgsl!("scatter/sink.wgsl"), wgsl!("scatter/sort.wgsl"));
        // All updates may be of one place; an element sinks down the levels of the heap.
        let n = self.n_updates as u64;
        let of_sink = turns(u64::from(n.max(1).ilog2()), 0);
        build.add(ShaderStep {
            name: "order of lists",
            buffers: vec![
                ("counts", "u32", counts.clone()),
                ("ends", "u32", ends.clone()),
                ("list", "u32", list.clone()),
            ],
            params: vec![],
            turns: turns(n, of_sink).saturating_add(turns(n / 2, of_sink)),
            body: Body::Items { n: self.n_places as u64, functions: &sink, each: &each },
        })?;
        Ok([counts, ends, list])
    }
}

fn scatter_elements(request: &Request<'_>) -> Result<Prepared> {
    let (data, indices) = (request.required_input(0)?, request.required_input(1)?);
    let (to, from) = (extents(data)?, extents(indices)?);
    let axis = axis(request.attrs.int("axis", 0)?, to.len())?;
    expect_output(request, 0, to)?;
    expect_within(from, to, axis)?;
    let updates = request.required_input(2)?.shape();
    if updates != from {
        let text = format!("updates of {updates:?} for indices of {from:?}, expected the same");
        return Err(Error::invalid(text));
    }
    let (n, n_updates) = (data.n_elements() as i64, indices.n_elements() as i64);
    let combine = reduction(request, data.dtype())?;
    let mut build = Build::new(request);
    if n_updates == 0 {
        let all = Strided::new(&[n], &[1], 0);
        all.copy(&mut build, data.dtype(), Slot::Input(0), Slot::Output(0))?;
        return build.finish();
    }
    if to[axis] >= i64::from(i32::MAX) {
        return Err(Error::unsupported(format!("indices of an axis of {} elements", to[axis])));
    }
    expect_indices(&mut build, request, "ScatterElements", [to[axis]])?;
    if n == 0 {
        // Every index fails, and there is nothing to write.
        return build.finish();
    }
    let unit = Unit::of(data.dtype())?;
    let ids = ("ids", index_storage(indices.dtype()), Slot::Input(1));
    let strides = dense_strides(to);
    let own = dense_strides(from);
    let mut params = vec![param("n_places", to[axis])?];
    if from[axis] > LOOKED_MAX {
        let mut code = "var rest = i;\nvar place_of = place(i, p.n_places) * p.along;\n".to_owned();
        params.push(param("along", strides[axis])?);
        for k in (0..to.len()).rev() {
            params.push(param(format!("d{k}"), from[k])?);
            if k != axis {
                params.push(param(format!("s{k}"), strides[k])?);
                code.push_str(&format!("place_of += (rest % p.d{k}) * p.s{k};\n"));
            }
            code.push_str(&format!("rest = rest / p.d{k};\n"));
        }
        let many = Many {
            name: "ScatterElements",
            ids,
            params,
            functions: &place(indices.dtype()),
            code: &code,
            n_places: n,
            n_updates,
            unit,
            size: 1,
        };
        many.apply(&mut build, combine.as_deref())?;
        return build.finish();
    }

    let mut code = "var rest = e;\nvar k = 0u;\nvar is_named = true;\nvar own = 0u;\n".to_owned();
    for axis_at in (0..to.len()).rev() {
        params.push(param(format!("d{axis_at}"), to[axis_at])?);
        if axis_at == axis {
            code.push_str(&format!("own = rest % p.d{axis_at};\n"));
        } else {
            params.push(param(format!("i{axis_at}"), from[axis_at])?);
            params.push(param(format!("s{axis_at}"), own[axis_at])?);
            code.push_str(&format!(
                "{{\nlet c = rest % p.d{axis_at};\nis_named = is_named && c < p.i{axis_at};\n\
                 k += c * p.s{axis_at};\n}}\n"
            ));
        }
        code.push_str(&format!("rest = rest / p.d{axis_at};\n"));
    }
    params.extend([param("count", from[axis])?, param("along", own[axis])?]);
    let update = unit.load("updates", "k");
    let change = if combine.is_some() { format!("combine(v, {update})") } else { update };
    code.push_str(&format!(
        "v = {};\nif (is_named) {{\nfor (var j = 0u; j < p.count; j++) {{\n\
         if (place(k, p.n_places) == own) {{ v = {change}; }}\nk += p.along;\n}}\n}}",
        unit.load("x", "e")
    ));
    let functions = format!("{}{}", place(indices.dtype()), combine.unwrap_or_default());
    let buffers =
        vec![ids, ("updates", unit.storage(), Slot::Input(2)), ("x", unit.storage(), Slot::Input(0))];
    let turns = turns(from[axis] as u64, 0);
    let made = Made { name: "ScatterElements", buffers, params, functions: &functions, code: &code, turns };
    unit.make(&mut build, Slot::Output(0), n, made)?;
    build.finish()
}

fn scatter_nd(request: &Request<'_>) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let to = extents(data)?;
    expect_output(request, 0, to)?;
    let (tuples, slices) = Tuples::new(to, extents(request.required_input(1)?)?, 0)?;
    let updates = request.required_input(2)?.shape();
    if updates != slices {
        return Err(Error::invalid(format!("updates of {updates:?}, expected {slices:?}")));
    }
    let n = data.n_elements() as i64;
    let combine = reduction(request, data.dtype())?;
    let mut build = Build::new(request);
    if n == 0 {
        // Tuples may be named even if there is nothing to write.
        if !tuples.names_all() {
            tuples.expect(&mut build, request, "ScatterND")?;
        }
        return build.finish();
    }
    if tuples.n == 0 {
        let all = Strided::new(&[n], &[1], 0);
        all.copy(&mut build, data.dtype(), Slot::Input(0), Slot::Output(0))?;
        return build.finish();
    }
    if tuples.names_all() {
        return Err(Error::unsupported("tuples without indices"));
    }
    tuples.expect(&mut build, request, "ScatterND")?;
    let element = Unit::of(data.dtype())?;
    let (unit, ratio) = match combine {
        None => element.widened(&[tuples.slice]),
        Some(_) => (element, 1),
    };
    let ids = ("ids", "vec2<u32>", Slot::Input(1));
    let size = tuples.slice / ratio;
    let mut params = tuples.params()?;
    if tuples.n > LOOKED_MAX {
        let code = format!("let tuple = i;\n{}let place_of = slice;\n", tuples.code());
        let many = Many {
            name: "ScatterND",
            ids,
            params,
            functions: &place(I64),
            code: &code,
            n_places: n / tuples.slice,
            n_updates: tuples.n,
            unit,
            size,
        };
        many.apply(&mut build, combine.as_deref())?;
        return build.finish();
    }

    let update = unit.load("updates", "tuple * p.size + e % p.size");
    let change = if combine.is_some() { format!("combine(v, {update})") } else { update };
    let code = format!(
        "v = {};\nlet own = e / p.size;\nfor (var tuple = 0u; tuple < p.count; tuple++) {{\n\
         {}if (slice == own) {{ v = {change}; }}\n}}",
        unit.load("x", "e"),
        tuples.code()
    );
    params.extend([param("count", tuples.n)?, param("size", size)?]);
    let functions = format!("{}{}", place(I64), combine.unwrap_or_default());
    let buffers =
        vec![ids, ("updates", unit.storage(), Slot::Input(2)), ("x", unit.storage(), Slot::Input(0))];
    let turns = turns(tuples.n as u64, 0);
    let made = Made { name: "ScatterND", buffers, params, functions: &functions, code: &code, turns };
    unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    build.finish()
}

fn tensor_scatter(request: &Request<'_>) -> Result<Prepared> {
    let cache = request.required_input(0)?;
    let (to, from) = (extents(cache)?, extents(request.required_input(1)?)?);
    let axis = axis(request.attrs.int("axis", -2)?, to.len())?;
    expect_output(request, 0, to)?;
    let fits = |i: usize| if i == axis { from[i] <= to[i] } else { from[i] == to[i] };
    if axis == 0 || from.len() != to.len() || !(0..to.len()).all(fits) {
        return Err(Error::invalid(format!("an update of {from:?} along axis {axis} of {to:?}")));
    }
    let is_placed = match request.input(2).map(TensorView::shape) {
        None => false,
        Some(found) if found == &to[..1] => true,
        Some(found) => return Err(Error::invalid(format!("places of {found:?} for {} batches", to[0]))),
    };
    // A place out of range fails the stream, and is moved to one in range: its remainder fits an i32 with either sign.
    let is_circular = match request.attrs.string("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        mode => return Err(Error::invalid(format!("mode is linear or circular, found {mode}"))),
    };
    let first = match (is_placed, is_circular) {
        (false, _) => "0",
        (true, false) => "clamp(bitcast<i32>(places[batch].x), 0, i32(p.rows - p.updated))",
        (true, true) => "i32(remainder(places[batch], p.rows))",
    };
    let (n, [_, rows, inner]) = (cache.n_elements() as i64, around(to, axis));
    let mut build = Build::new(request);
    if let Some(tensor) = request.input(2).filter(|_| from[axis] > 0 && !to[..axis].contains(&0)) {
        let places = Integers {
            op: "TensorScatter",
            what: "place",
            tensor,
            slot: Slot::Input(2),
            bounds: &[(0, if is_circular { i64::MAX } else { rows - from[axis] })],
        };
        build.expect(&places)?;
    }
    if n == 0 || from[axis] == 0 {
        let all = Strided::new(&[n], &[1], 0);
        all.copy(&mut build, cache.dtype(), Slot::Input(0), Slot::Output(0))?;
        return build.finish();
    }
    let (unit, ratio) = Unit::of(cache.dtype())?.widened(&[inner]);
    let (update, old) = (unit.load("updates", "at"), unit.load("x", "e"));
    let code = wgsl!("scatter/tensor.wgsl", first, update, old);
    let mut buffers =
        vec![("updates", unit.storage(), Slot::Input(1)), ("x", unit.storage(), Slot::Input(0))];
    if is_placed {
        buffers.push(("places", "vec2<u32>", Slot::Input(2)));
    }
    let params = vec![
        param("inner", inner / ratio)?,
        param("rows", rows)?,
        param("updated", from[axis])?,
        param("per_batch", to[1..axis].iter().product())?,
    ];
    let (functions, turns) = match is_placed && is_circular {
        false => (String::new(), 0),
        true => (wgsl!("scatter/remainder.wgsl"), turns(32, 0)),
    };
    let made = Made { name: "TensorScatter", buffers, params, functions: &functions, code: &code, turns };
    unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    build.finish()
}
