//! Pad: a tensor with a border around it, constant or made of its own elements; and CenterCropPad, which pads with zeros
//! or cuts off on both sides.
//!
//! A negative pad removes elements; they are removed first, and the border is made of what is left. Each axis that has
//! a border calculates its own positions; neighbouring axes without one are walked as one.

use super::cost;
use super::moved::*;
use super::walk::dense_strides;
use crate::step::{Build, Slot};
use crate::target::Target;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("Pad", 21, pad)
        .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64]), TypeVar::of(&[I64, I32])])
        .cost(cost::moved)
        .doc("modes constant, reflect, edge and wrap"),
    descriptor("CenterCropPad", 18, center_crop_pad)
        .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[I64, I32])])
        .cost(cost::moved),
];

/// An axis, or several that are walked as one.
#[derive(Clone, Copy, Debug)]
struct Axis {
    /// Extent of the output, and stride of the input.
    to: i64,
    stride: i64,
    border: Option<Border>,
}

/// Rule by which an axis with a border finds its elements.
#[derive(Clone, Copy, Debug)]
struct Border {
    /// Positions before the input's.
    before: i64,
    /// First element of the input that negative pads leave, and their number.
    first: i64,
    kept: i64,
}

fn pad(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let mode = request.attrs.string("mode", "constant")?;
    if !["constant", "reflect", "edge", "wrap"].contains(&mode) {
        return Err(Error::invalid(format!("unknown mode {mode}")));
    }
    let pads = host_ints(request, 1)?.ok_or_else(|| Error::invalid("pads are missing"))?;
    let named = match host_ints(request, 3)? {
        Some(named) => named.iter().map(|&i| axis(i, from.len())).collect::<Result<_>>()?,
        None => (0..from.len()).collect::<Vec<_>>(),
    };
    if pads.len() != 2 * named.len() {
        let text = format!("{} pads for {} axes, expected two for each", pads.len(), named.len());
        return Err(Error::invalid(text));
    }
    let mut amounts = vec![(0, 0); from.len()];
    for (i, &axis) in named.iter().enumerate() {
        amounts[axis] = (pads[i], pads[named.len() + i]);
    }
    let has_value = mode == "constant" && request.input(2).is_some_and(|value| value.n_elements() > 0);
    padded(request, mode, &amounts, has_value)
}

fn center_crop_pad(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let wanted = host_ints(request, 1)?.ok_or_else(|| Error::invalid("the extents are missing"))?;
    let axes = match request.attrs.ints("axes")? {
        Some(axes) => axes.iter().map(|&i| axis(i, from.len())).collect::<Result<Vec<_>>>()?,
        None => (0..from.len()).collect(),
    };
    if axes.len() != wanted.len() || wanted.iter().any(|&extent| extent < 0) {
        return Err(Error::invalid(format!("extents of {wanted:?} for {} axes", axes.len())));
    }
    let mut amounts = vec![(0, 0); from.len()];
    for (&axis, &wanted) in axes.iter().zip(&wanted) {
        // The smaller half is at the front, of the cut part as of the added part.
        let more = wanted - from[axis];
        amounts[axis] = (more / 2, more - more / 2);
    }
    padded(request, "constant", &amounts, false)
}

/// Adds so many elements before and after each axis, with input 2 as their value if there is one.
fn padded(request: &Request<'_>, mode: &str, amounts: &[(i64, i64)], has_value: bool) -> Result<Prepared> {
    let data = request.required_input(0)?;
    let (mut axes, to) = axes(mode, extents(data)?, amounts)?;
    expect_output(request, 0, &to)?;
    let n = count(&to);
    let mut build = Build::new(request);
    if n == 0 {
        return build.finish();
    }
    let has_data = data.n_elements() > 0;
    let (mut unit, mut ratio) = (Unit::of(data.dtype())?, 1);
    if let Some(Axis { to, border: None, .. }) = axes.last()
        && !has_value
    {
        (unit, ratio) = unit.widened(&[*to]);
    }
    if let Some((last, outer)) = axes.split_last_mut()
        && ratio > 1
    {
        last.to /= ratio;
        outer.iter_mut().for_each(|axis| axis.stride /= ratio);
    }

    let (code, mut params) = positions(&axes, mode)?;
    let (mut buffers, mut outside) = (Vec::new(), "");
    let value = format!("v = {};\n", unit.load("value", "0u"));
    if has_value {
        buffers.push(("value", unit.storage(), Slot::Input(2)));
        outside = &value;
    }
    let code = match has_data {
        true => {
            buffers.push(("x", unit.storage(), Slot::Input(0)));
            format!("{outside}{code}if (inside) {{ v = {}; }}", unit.load("x", "at"))
        }
        false => {
            params.clear();
            outside.to_owned()
        }
    };
    let made = Made { name: "Pad", buffers, params, functions: "", code: &code, turns: 0 };
    unit.make(&mut build, Slot::Output(0), n / ratio, made)?;
    build.finish()
}

/// WGSL statements that declare the position `at` in the input, and whether it is `inside` of it; and their parameters.
fn positions(axes: &[Axis], mode: &str) -> Result<(String, Vec<(String, crate::step::Param)>)> {
    let mut params = Vec::new();
    let mut code = "var rest = e;\nvar at = 0u;\nvar inside = true;\n".to_owned();
    for (k, axis) in axes.iter().enumerate().rev() {
        match k {
            0 => code.push_str("let c0 = rest;\n"),
            _ => {
                params.push(param(format!("t{k}"), axis.to)?);
                code.push_str(&format!("let c{k} = rest % p.t{k};\nrest = rest / p.t{k};\n"));
            }
        }
        params.push(param(format!("s{k}"), axis.stride)?);
        let Some(border) = axis.border else {
            code.push_str(&format!("at += c{k} * p.s{k};\n"));
            continue;
        };
        params.push(param_i32(format!("before{k}"), border.before)?);
        params.push(param_i32(format!("first{k}"), border.first)?);
        params.push(param_i32(format!("kept{k}"), border.kept)?);
        let found = match mode {
            "constant" => "inside = inside && a >= 0 && a < p.keptK;\n",
            "edge" => "a = clamp(a, 0, p.keptK - 1);\n",
            "wrap" => "a = a % p.keptK;\nif (a < 0) { a += p.keptK; }\n",
            // Longer pads go forth and back as often as it takes; one element is its own mirror.
            _ => {
                "let period = max(2 * (p.keptK - 1), 1);\na = a % period;\nif (a < 0) { a += period; }\n\
                 a = min(a, period - a);\na = min(a, p.keptK - 1);\n"
            }
        };
        code.push_str(&format!(
            "{{\nvar a = i32(c{k}) - p.before{k};\n{}at += u32(a + p.first{k}) * p.s{k};\n}}\n",
            found.replace("keptK", &format!("kept{k}"))
        ));
    }
    Ok((code, params))
}

/// The axes, and the extents of the output.
fn axes(mode: &str, from: &[i64], amounts: &[(i64, i64)]) -> Result<(Vec<Axis>, Vec<i64>)> {
    let strides = dense_strides(from);
    let (mut axes, mut shape): (Vec<Axis>, Vec<i64>) = (Vec::new(), Vec::new());
    for (k, &(before, after)) in amounts.iter().enumerate() {
        let (n, stride) = (from[k], strides[k]);
        let (to, border) = border(mode, n, before, after)?;
        shape.push(to);
        match (axes.last_mut(), border) {
            (Some(Axis { to: extent, stride: own, border: None }), None) => {
                *extent = extent.saturating_mul(to);
                *own = stride;
            }
            _ => axes.push(Axis { to, stride, border }),
        }
    }
    Ok((axes, shape))
}

/// The extent of an axis of `n` elements with its border, and the border if it has one.
fn border(mode: &str, n: i64, before: i64, after: i64) -> Result<(i64, Option<Border>)> {
    let to = n.saturating_add(before).saturating_add(after);
    let (first, end) = (before.saturating_neg().clamp(0, n), n - after.saturating_neg().clamp(0, n));
    let kept = end - first;
    if to < 0 || kept < 0 || (kept == 0 && to > 0 && mode != "constant") {
        let text = format!("pads of {before} and {after} in mode {mode} for {n} elements");
        return Err(Error::invalid(text));
    }
    let border = Border { before: before.max(0), first, kept };
    Ok((to, ((before, after) != (0, 0)).then_some(border)))
}
