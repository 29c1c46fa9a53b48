//! Tensors made of a value, a progression, or of ones in a field of zeros: ConstantOfShape, Range and EyeLike.

use super::cost;
use super::elementwise::Number;
use super::moved::*;
use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("ConstantOfShape", 21, constant_of_shape)
        .types(&[TypeVar::of(&[I64]), MOVED])
        .cost(cost::written),
    descriptor("Range", 11, range)
        .types(&[TypeVar::of(&[F32, I64, I32, I16, F16, BF16])])
        .cost(cost::written),
    descriptor("EyeLike", 9, eye_like).types(&[MOVED, MOVED]).cost(cost::written),
];

/// A number of at most 64 bits as two words.
fn words(bytes: &[u8]) -> [u32; 2] {
    let mut words = [0; 2];
    bytemuck::bytes_of_mut(&mut words).iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    words
}

fn constant_of_shape(request: &Request<'_>) -> Result<Prepared> {
    let to = host_ints(request, 0)?.ok_or_else(|| Error::invalid("the shape is missing"))?;
    let output = request.required_output(0)?;
    expect_output(request, 0, &to)?;
    let bytes = match request.attrs.get("value") {
        // Zero has the same bits in all dtypes.
        None => &[0; 8],
        Some(AttrContent::Tensor(value)) if value.dtype() == output.dtype() => {
            value.constant().ok_or_else(|| Error::invalid("the attribute value has no content"))?
        }
        Some(_) => {
            return Err(Error::invalid("the attribute value is no tensor of the output's dtype"));
        }
    };
    let size = Unit::of(output.dtype())?.bytes() as usize;
    if bytes.len() < size {
        let text = format!("a value of {} bytes for elements of {size}", bytes.len());
        return Err(Error::invalid(text));
    }
    // Every word is the same, or every second one.
    let pattern: Vec<u8> = bytes[..size].iter().copied().cycle().take(8).collect();
    let [even, odd] = words(&pattern);
    let mut build = Build::new(request);
    let n_bytes = (output.n_elements() * size) as u64;
    build.add(ShaderStep {
        name: "fill",
        buffers: vec![("y", "u32", Slot::Output(0))],
        turns: 0,
        params: vec![("even".to_owned(), Param::U32(even)), ("odd".to_owned(), Param::U32(odd))],
        body: Body::Items {
            n: n_bytes.div_ceil(4),
            functions: "",
            each: "y[i] = select(p.even, p.odd, (i & 1u) == 1u);",
        },
    })?;
    build.finish()
}

/// WGSL for `wide(a, b)`: the product of two words as a pair of them.
pub fn wide() -> String {
    wgsl!("fill/wide.wgsl")
}

fn range(request: &Request<'_>) -> Result<Prepared> {
    let output = request.required_output(0)?;
    let dtype = output.dtype();
    let unit = Unit::of(dtype)?;
    if output.shape().len() != 1 {
        return Err(Error::invalid(format!("an output of {:?}, expected one axis", output.shape())));
    }
    let scalar = |i: usize| match request.required_input(i)?.constant() {
        Some(bytes) if bytes.len() == unit.bytes() as usize => Ok(words(bytes)),
        _ => Err(Error::invalid(format!("input {i} has to be a constant of one element"))),
    };
    let (start, delta) = (scalar(0)?, scalar(2)?);
    let pairs = wide();
    let (functions, code) = match dtype {
        F32 => ("", "v = bitcast<u32>(fma(f32(e), bitcast<f32>(p.delta), bitcast<f32>(p.start)));"),
        I64 => (
            pairs.as_str(),
            "let product = wide(e, p.delta);\nlet low = p.start + product.x;\n\
             let carry = select(0u, 1u, low < product.x);\n\
             v = vec2<u32>(low, p.start_high + product.y + e * p.delta_high + carry);",
        ),
        F16 => (
            "",
            "let r = fma(f32(e), unpack2x16float(p.delta).x, unpack2x16float(p.start).x);\n\
             v = pack2x16float(vec2<f32>(r, 0.0));",
        ),
        BF16 => (
            Number::of(BF16, request.device)?.functions(),
            "v = bfloat_(fma(f32(e), bitcast<f32>(p.delta << 16u), bitcast<f32>(p.start << 16u)));",
        ),
        _ => ("", "v = p.start + e * p.delta;"),
    };
    let names = ["start", "start_high", "delta", "delta_high"];
    let values = [start, delta].concat();
    let params = names.iter().zip(values).map(|(name, value)| ((*name).to_owned(), Param::U32(value)));
    let made = Made { name: "Range", buffers: vec![], params: params.collect(), functions, code, turns: 0 };
    let mut build = Build::new(request);
    unit.make(&mut build, Slot::Output(0), output.n_elements() as i64, made)?;
    build.finish()
}

fn eye_like(request: &Request<'_>) -> Result<Prepared> {
    let from = extents(request.required_input(0)?)?;
    let &[rows, cols] = from else {
        return Err(Error::invalid(format!("extents of {from:?}, expected a matrix")));
    };
    expect_output(request, 0, from)?;
    let dtype = request.required_output(0)?.dtype();
    let unit = Unit::of(dtype)?;
    let one = match dtype {
        F32 => "v = 0x3f800000u;",
        F16 => "v = 0x3c00u;",
        BF16 => "v = 0x3f80u;",
        F64 => "v = vec2<u32>(0u, 0x3ff00000u);",
        _ if unit.bytes() == 8 => "v = vec2<u32>(1u, 0u);",
        _ => "v = 1u;",
    };
    let code = format!("if (i32(e % p.cols) - i32(e / p.cols) == p.k) {{ {one} }}");
    // Beyond the corners all diagonals are alike.
    let k = request.attrs.int("k", 0)?.clamp(-rows - 1, cols + 1);
    let params = vec![param("cols", cols)?, param_i32("k", k)?];
    let made = Made { name: "EyeLike", buffers: vec![], params, functions: "", code: &code, turns: 0 };
    let mut build = Build::new(request);
    unit.make(&mut build, Slot::Output(0), rows * cols, made)?;
    build.finish()
}
