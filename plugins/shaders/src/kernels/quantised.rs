//! QuantizeLinear, DequantizeLinear and DynamicQuantizeLinear: between floats and integers of 8 and 16 bits.
//!
//! Quotients are made in f32, rounded half to even, and saturate.

use super::cost;
use super::elementwise::Number;
use super::math;
use super::product::u32_param;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::axis;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const WHOLE: TypeVar = TypeVar::of(&[F32, F16, BF16, I32]);
const FLOAT: TypeVar = TypeVar::of(&[F32, F16, BF16]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("QuantizeLinear", 28, quantize)
        .types(&[WHOLE, FLOAT, TypeVar::of(&[U8, I8, U16, I16])])
        .cost(linear_cost)
        .doc("8 and 16 bits; per tensor, per axis or in blocks"),
    descriptor("DequantizeLinear", 28, dequantize)
        .types(&[TypeVar::of(&[U8, I8, U16, I16, I32]), FLOAT, FLOAT])
        .cost(linear_cost)
        .doc("8 to 32 bits; per tensor, per axis or in blocks"),
    Kernel::new("DynamicQuantizeLinear", 11, dynamic)
        .types(&[TypeVar::of(&[F32]), TypeVar::of(&[U8])])
        .operands(&[0], &[1, 0, 1])
        .cost(linear_cost)
        .doc("to u8, with scale and zero point from the extremes"),
];

fn linear_cost(request: &Request<'_>) -> Result<Cost> {
    cost::per_input(request, 4)
}

/// Least and greatest number of an integer dtype.
pub fn limits(dtype: DType) -> (i32, i32) {
    match dtype {
        U8 => (0, 255),
        I8 => (-128, 127),
        U16 => (0, 65535),
        _ => (-32768, 32767),
    }
}

/// WGSL of `quantised`, and of the quotients that go into it: they are as IEEE 754 rounds them, for a unit in the last place
/// is a whole step of the result where it lies between two.
pub fn functions() -> String {
    math::functions(&["div_f"]) + "\n" + &wgsl!("quantised/quantised.wgsl")
}

/// WGSL that declares `at`: which scale the element `e` has; and its parameters.
fn scale_at(request: &Request<'_>) -> Result<(String, Vec<(String, Param)>)> {
    let (x, scale) = (request.required_input(0)?, request.required_input(1)?);
    super::same_shape(x, request.required_output(0)?)?;
    let is_one = |shape: &[i64]| shape.len() < 2 && shape.iter().product::<i64>() == 1;
    // One number may be a scalar here and a vector there.
    if let Some(zeros) = request.input(2)
        && zeros.shape() != scale.shape()
        && !(is_one(zeros.shape()) && is_one(scale.shape()))
    {
        let text = format!("zero points of {:?} for scales of {:?}", zeros.shape(), scale.shape());
        return Err(Error::invalid(text));
    }
    let block = request.attrs.int("block_size", 0)?;
    if block < 0 {
        return Err(Error::invalid(format!("blocks of {block} elements")));
    }
    if block == 0 && is_one(scale.shape()) {
        return Ok(("let at = 0u;\n".into(), Vec::new()));
    }
    let rank = x.shape().len();
    let axis = axis(request.attrs.int("axis", 1)?, rank)?;
    let (n, inner) = (x.shape()[axis] as u64, cost::volume(&x.shape()[axis + 1..]));
    let mut params = vec![u32_param("extent", n)?, u32_param("inner", inner)?];
    let expected = match block {
        0 => vec![n as i64],
        _ => {
            let mut shape = x.shape().to_vec();
            shape[axis] = n.div_ceil(block as u64) as i64;
            shape
        }
    };
    if scale.shape() != expected {
        let text = format!(
            "scales of {:?} for axis {axis} of {:?}, expected {expected:?}",
            scale.shape(),
            x.shape()
        );
        return Err(Error::invalid(text));
    }
    if block == 0 {
        return Ok(("let at = e / p.inner % p.extent;\n".into(), params));
    }
    params.extend([u32_param("block", block as u64)?, u32_param("blocks", expected[axis] as u64)?]);
    let code = "let line = e / p.inner;\n\
                let at = (line / p.extent * p.blocks + line % p.extent / p.block) * p.inner + e % p.inner;\n";
    Ok((code.into(), params))
}

/// Both directions: `code` is given the loads of an element, a scale and a zero point (i32).
fn linear(
    request: &Request<'_>,
    name: &'static str,
    functions: &str,
    code: impl Fn(&str, &str, &str) -> String,
) -> Result<Prepared> {
    let (x, scale, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let (at, mut params) = scale_at(request)?;
    let [of_x, of_scale, of_y] = [x, scale, y].map(|tensor| Number::of(tensor.dtype(), request.device));
    let (of_x, of_scale, of_y) = (of_x?, of_scale?, of_y?);
    let mut build = Build::new(request);
    let n = y.n_elements() as u64;
    if n == 0 {
        return build.finish();
    }
    params.push(u32_param("n", n)?);
    let mut buffers = vec![
        ("x", of_x.storage(), Slot::Input(0)),
        ("scales", of_scale.storage(), Slot::Input(1)),
        ("y", of_y.storage(), Slot::Output(0)),
    ];
    let mut zero = "0".to_owned();
    if let Some(zeros) = request.input(2) {
        let number = Number::of(zeros.dtype(), request.device)?;
        zero = format!("i32({})", number.load("zeros", "at"));
        buffers.push(("zeros", number.storage(), Slot::Input(2)));
    }
    let code = code(&of_x.load("x", "e"), &of_scale.load("scales", "at"), &zero);
    build.add(ShaderStep {
        name,
        buffers,
        params,
        turns: of_y.width().turns(0),
        body: of_y.width().body(
            n,
            &format!("{functions}{}", of_y.functions()),
            &of_y.each("y", &format!("{at}{code}")),
        ),
    })?;
    build.finish()
}

/// WGSL that turns an i32 into what an integer dtype is calculated in.
pub fn as_class(dtype: DType, value: &str) -> String {
    if matches!(dtype, U8 | U16) { format!("u32({value})") } else { value.to_owned() }
}

fn quantize(request: &Request<'_>) -> Result<Prepared> {
    // Quotients in f32 are at least as near as those of a narrower precision.
    let precision = request.attrs.int("precision", 0)?;
    if ![0, 1, 10, 16].contains(&precision) {
        return Err(Error::unsupported(format!("a precision of ONNX's number {precision}")));
    }
    let dtype = request.required_output(0)?.dtype();
    let (low, high) = limits(dtype);
    linear(request, "QuantizeLinear", &functions(), |x, scale, zero| {
        let value = format!("quantised(div_f(f32({x}), {scale}), {zero}, {low}, {high})");
        format!("let r = {};", as_class(dtype, &value))
    })
}

fn dequantize(request: &Request<'_>) -> Result<Prepared> {
    linear(request, "DequantizeLinear", "", |x, scale, zero| {
        format!("let r = f32(i32({x}) - {zero}) * {scale};")
    })
}

/// Threads of a workgroup that looks for extremes, and workgroups, at most.
const THREADS: u64 = 256;

fn dynamic(request: &Request<'_>) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    super::same_shape(x, y)?;
    if request.required_output(1)?.n_elements() != 1 || request.required_output(2)?.n_elements() != 1 {
        return Err(Error::invalid("a scale and a zero point of several elements"));
    }
    let n = x.n_elements() as u64;
    let mut build = Build::new(request);
    let groups = n.div_ceil(THREADS * 8).min(THREADS);
    let parts = build.scratch(THREADS * 8);
    let scale = build.scratch(8);
    let fold_turns = |n: u64, groups: u64| turns(n.div_ceil(groups * THREADS), 0) + turns(8, 0);
    let fold = |is_last: bool| {
        let ends = wgsl!("quantised/ends.wgsl", threads = THREADS, is_last);
        math::functions(&["div_f"]) + "\n" + &ends
    };
    if n > 0 {
        build.add(ShaderStep {
            name: "DynamicQuantizeLinear",
            buffers: vec![("x", "f32", Slot::Input(0)), ("parts", "vec2<f32>", parts.clone())],
            params: vec![u32_param("n", n)?],
            turns: fold_turns(n, groups),
            body: Body::Groups { groups: [groups as u32, 1, 1], module: &fold(false) },
        })?;
    }
    build.add(ShaderStep {
        name: "DynamicQuantizeLinear",
        buffers: vec![
            ("parts", "vec2<f32>", parts),
            ("linear", "vec2<f32>", scale.clone()),
            ("out_scale", "f32", Slot::Output(1)),
            ("out_zero", "u32", Slot::Output(2)),
        ],
        params: vec![u32_param("n", groups)?],
        turns: fold_turns(groups, 1),
        body: Body::Groups { groups: [1, 1, 1], module: &fold(true) },
    })?;
    if n > 0 {
        let number = Number::of(U8, request.device)?;
        build.add(ShaderStep {
            name: "DynamicQuantizeLinear",
            buffers: vec![
                ("x", "f32", Slot::Input(0)),
                ("linear", "vec2<f32>", scale),
                ("y", number.storage(), Slot::Output(0)),
            ],
            params: vec![u32_param("n", n)?],
            turns: number.width().turns(0),
            body: number.width().body(
                n,
                &functions(),
                &number
                    .each("y", "let r = u32(quantised(div_f(x[e], linear[0].x), i32(linear[0].y), 0, 255));"),
            ),
        })?;
    }
    build.finish()
}
