//! ScatterElements, ScatterND and TensorScatter: a copy of the data in which indices name what is replaced or reduced.
//!
//! Indices may name one element twice; updates are then applied in their order, so that results do not depend on which
//! thread came first. Where updates only replace and are many, the last one that names an element is found with
//! atomics; else each element of the result looks through the updates that may be its own.

use super::cost;
use super::index::{Tuples, expect_within};
use super::moved::*;
use super::walk::dense_strides;
use crate::device::WgpuDevice;
use crate::dispatch::{Body, Build, Slot, Step};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, WgpuDevice>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// Updates that each element looks through where none of them is reduced.
const LOOKED_MAX: i64 = 8;
/// Updates that all elements together may look through: more take seconds.
const WORK_MAX: i64 = 1 << 31;

/// The kernels of this file.
pub const KERNELS: &[Kernel<WgpuDevice>] = &[
    Kernel::new("ScatterElements", 18, scatter_elements)
        .types(&[MOVED, TypeVar::of(&[I64, I32])])
        .operands(&[0, 1, 0], &[0])
        .in_place(&[0])
        .cost(cost_scattered)
        .doc("any dtype; reductions of f32 and integers"),
    Kernel::new("ScatterND", 18, scatter_nd)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 1, 0], &[0])
        .in_place(&[0])
        .cost(cost_scattered)
        .doc("any dtype; reductions of f32 and integers"),
    Kernel::new("TensorScatter", 24, tensor_scatter)
        .types(&[MOVED, TypeVar::of(&[I64])])
        .operands(&[0, 0, 1], &[0])
        .inputs(2, 3)
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
    let unsupported =
        || Err(Error::unsupported(format!("reduction {name} of dtype {dtype:?}, expected f32 or integers")));
    let is_signed = matches!(dtype, I8 | I16 | I32 | I64);
    let is_unsigned = matches!(dtype, U8 | U16 | U32 | U64);
    if dtype != F32 && !is_signed && !is_unsigned {
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
        let wide = if name == "mul" { super::fill::PAIRS } else { "" };
        let text = format!("{wide}fn combine(old: vec2<u32>, put: vec2<u32>) -> vec2<u32> {{\n{body}\n}}\n");
        return Ok(Some(text));
    }
    let shift = 32 - u32::from(dtype.bits);
    let value = |word: &str| match dtype {
        F32 => format!("bitcast<f32>({word})"),
        _ if is_signed => format!("(bitcast<i32>({word} << {shift}u) >> {shift}u)"),
        _ => word.to_owned(),
    };
    // A value that is not a number stays, whichever side it is on.
    let nan = match dtype {
        F32 => "if ((old & 0x7fffffffu) > 0x7f800000u) { return old; }\n",
        _ => "",
    };
    let (a, b) = (value("old"), value("put"));
    let body = match name {
        "add" => format!("return bitcast<u32>({a} + {b});"),
        "mul" => format!("return bitcast<u32>({a} * {b});"),
        "max" => format!("{nan}if ({a} >= {b}) {{ return old; }}\nreturn put;"),
        "min" => format!("{nan}if ({a} <= {b}) {{ return old; }}\nreturn put;"),
        _ => return unsupported(),
    };
    Ok(Some(format!("fn combine(old: u32, put: u32) -> u32 {{\n{body}\n}}\n")))
}

/// Adds the steps that find the last update of each of `n` places, and gives the buffer: 1 above the update's number,
/// or 0. `code` declares `target` for the update `i` of `n_updates`.
fn last_updates(build: &mut Build, n: i64, n_updates: i64, marks: Made<'_>) -> Result<Slot> {
    let last = build.scratch(n as u64 * 4);
    build.add(Step {
        name: "fill",
        buffers: vec![("y", "u32", last.clone())],
        params: vec![],
        body: Body::Items { n: n as u64, functions: "", each: "y[i] = 0u;" },
    })?;
    let mut buffers = marks.buffers;
    buffers.push(("last", "atomic<u32>", last.clone()));
    let each = format!("{}atomicMax(&last[place_of], i + 1u);", marks.code);
    let body = Body::Items { n: n_updates as u64, functions: marks.functions, each: &each };
    build.add(Step { name: marks.name, buffers, params: marks.params, body })?;
    Ok(last)
}

/// Refuses what would take too long.
fn expect_work(n: i64, n_looked: i64) -> Result<()> {
    match n.saturating_mul(n_looked) <= WORK_MAX {
        true => Ok(()),
        false => Err(Error::unsupported(format!("{n} elements that look through {n_looked} updates each"))),
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
        return Ok(build.finish());
    }
    if to[axis] == 0 || to[axis] >= i64::from(i32::MAX) {
        return Err(Error::invalid(format!("indices of an axis of {} elements", to[axis])));
    }
    let unit = Unit::of(data.dtype())?;
    let ids = ("ids", index_storage(indices.dtype()), Slot::Input(1));
    let strides = dense_strides(to);
    let own = dense_strides(from);
    let mut params = vec![param("n_places", to[axis])?];
    if combine.is_none() && from[axis] > LOOKED_MAX {
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
        let functions = place(indices.dtype());
        let marks =
            Made { name: "ScatterElements marks", buffers: vec![ids], params, functions, code: &code };
        let last = last_updates(&mut build, n, n_updates, marks)?;
        let code = format!(
            "let k = last[e];\nif (k > 0u) {{ v = {}; }} else {{ v = {}; }}",
            unit.load("updates", "(k - 1u)"),
            unit.load("x", "e")
        );
        let buffers = vec![
            ("last", "u32", last),
            ("updates", unit.storage(), Slot::Input(2)),
            ("x", unit.storage(), Slot::Input(0)),
        ];
        let made = Made { name: "ScatterElements", buffers, params: vec![], functions: "", code: &code };
        unit.make(&mut build, Slot::Output(0), n, made)?;
        return Ok(build.finish());
    }

    expect_work(n, from[axis])?;
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
    let made = Made { name: "ScatterElements", buffers, params, functions: &functions, code: &code };
    unit.make(&mut build, Slot::Output(0), n, made)?;
    Ok(build.finish())
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
    if tuples.n == 0 || n == 0 {
        let all = Strided::new(&[n], &[1], 0);
        all.copy(&mut build, data.dtype(), Slot::Input(0), Slot::Output(0))?;
        return Ok(build.finish());
    }
    if tuples.names_all() {
        return Err(Error::unsupported("tuples without indices"));
    }
    let element = Unit::of(data.dtype())?;
    let (unit, ratio) = match combine {
        None => element.widened(&[tuples.slice]),
        Some(_) => (element, 1),
    };
    let ids = ("ids", "vec2<u32>", Slot::Input(1));
    let mut params = tuples.params()?;
    let mut functions = place(I64).to_owned();
    let mut buffers =
        vec![("updates", unit.storage(), Slot::Input(2)), ("x", unit.storage(), Slot::Input(0))];
    let code = if combine.is_none() && tuples.n > LOOKED_MAX {
        let code = format!("let tuple = i;\n{}let place_of = slice;\n", tuples.code());
        let marks = Made {
            name: "ScatterND marks",
            buffers: vec![ids],
            params: std::mem::take(&mut params),
            functions: &functions,
            code: &code,
        };
        let last = last_updates(&mut build, n / tuples.slice, tuples.n, marks)?;
        buffers.push(("last", "u32", last));
        functions.clear();
        format!(
            "let k = last[e / p.size];\nif (k > 0u) {{ v = {}; }} else {{ v = {}; }}",
            unit.load("updates", "(k - 1u) * p.size + e % p.size"),
            unit.load("x", "e")
        )
    } else {
        expect_work(n / ratio, tuples.n)?;
        params.push(param("count", tuples.n)?);
        buffers.push(ids);
        let update = unit.load("updates", "tuple * p.size + e % p.size");
        let change = if combine.is_some() { format!("combine(v, {update})") } else { update };
        functions.push_str(combine.as_deref().unwrap_or_default());
        format!(
            "v = {};\nlet own = e / p.size;\nfor (var tuple = 0u; tuple < p.count; tuple++) {{\n\
             {}if (slice == own) {{ v = {change}; }}\n}}",
            unit.load("x", "e"),
            tuples.code()
        )
    };
    params.push(param("size", tuples.slice / ratio)?);
    let made = Made { name: "ScatterND", buffers, params, functions: &functions, code: &code };
    unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    Ok(build.finish())
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
    // A place that is none is moved to the nearest that is one.
    let first = match (is_placed, request.attrs.string("mode", "linear")?) {
        (false, "linear" | "circular") => "0",
        (true, "linear") => "clamp(bitcast<i32>(places[batch].x), 0, i32(p.rows - p.updated))",
        (true, "circular") => "max(bitcast<i32>(places[batch].x), 0) % i32(p.rows)",
        (_, mode) => return Err(Error::invalid(format!("mode is linear or circular, found {mode}"))),
    };
    let (n, [_, rows, inner]) = (cache.n_elements() as i64, around(to, axis));
    let mut build = Build::new(request);
    if n == 0 || from[axis] == 0 {
        let all = Strided::new(&[n], &[1], 0);
        all.copy(&mut build, cache.dtype(), Slot::Input(0), Slot::Output(0))?;
        return Ok(build.finish());
    }
    let (unit, ratio) = Unit::of(cache.dtype())?.widened(&[inner]);
    let code = format!(
        "let block = e / p.inner / p.rows;\nlet batch = block / p.per_batch;\n\
         var row = i32((e / p.inner) % p.rows) - ({first});\nif (row < 0) {{ row += i32(p.rows); }}\n\
         if (u32(row) < p.updated) {{\nlet at = (block * p.updated + u32(row)) * p.inner + e % p.inner;\n\
         v = {};\n}} else {{ v = {}; }}",
        unit.load("updates", "at"),
        unit.load("x", "e")
    );
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
    let made = Made { name: "TensorScatter", buffers, params, functions: "", code: &code };
    unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    Ok(build.finish())
}
