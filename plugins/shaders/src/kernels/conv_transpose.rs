//! ConvTranspose: seen from its output a convolution whose windows skip what lies between the input's elements.
//!
//! Per image and group all taps are multiplied with all elements, `P[c][t][q] = sum_k W[k][c][t] * X[k][q]`, a plain
//! product; then each element of the output adds those that fall on it.

use super::cost;
use super::epilogue::Epilogue;
use super::matmul::{FLOATS, float_type};
use super::product::{Product, Types, matrix, u32_param, vector_of};
use super::walk::Walk;
use super::window::{AXES, SPATIAL_MAX, Window, image};
use crate::step::{Body, Build, Param, ShaderStep, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] =
    &[descriptor("ConvTranspose", 11, prepare).types(FLOATS).cost(transposed_cost)];

fn transposed_cost(request: &Request<'_>) -> Result<Cost> {
    let weights = request.required_input(1)?.shape();
    cost::per_input(request, cost::volume(weights.get(1..).unwrap_or_default()).saturating_mul(2))
}

/// Positions of the padded output that shaders divide with a multiplication.
const POSITIONS_MAX: i64 = 1 << 21;

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let (x, w, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let (images, channels, input) = image(x.shape())?;
    let (to_images, channels_out, output) = image(y.shape())?;
    let (rows, c_out, kernel) = image(w.shape())?;
    let groups = request.attrs.int("group", 1)?;
    if groups < 1
        || rows != channels
        || c_out.checked_mul(groups) != Some(channels_out)
        || channels % groups != 0
        || images != to_images
    {
        return Err(Error::invalid(format!(
            "weights {:?} do not fit {groups} groups of an input {:?} and an output {:?}",
            w.shape(),
            x.shape(),
            y.shape()
        )));
    }
    if let Some(bias) = request.input(2)
        && bias.shape() != [channels_out]
    {
        return Err(Error::invalid(format!("a bias of {:?} for {channels_out} channels", bias.shape())));
    }
    // The window's input is this op's output.
    let mut window = Window::of(&request.attrs, kernel, output, input)?;
    place(request, &mut window)?;
    let c_in = channels / groups;
    let element = float_type(request)?;
    let mut build = Build::new(request);
    if y.n_elements() == 0 {
        return build.finish();
    }
    let (taps, plane) = (window.n_taps(), window.n_output());
    for i in 0..SPATIAL_MAX {
        if window.input[i] + window.pad[i] >= POSITIONS_MAX {
            return Err(Error::unsupported(format!("an output of {:?}, extents below 2^21 are", y.shape())));
        }
    }
    u32_param("input", x.n_elements() as u64)?;
    let rows = (c_out as u64).saturating_mul(taps);
    let n_batch = (images * groups) as u64;
    // All taps of all elements, then those of each place added.
    let n_products = n_batch.saturating_mul(rows).saturating_mul(plane);
    u32_param("products", n_products)?;
    let products = build.scratch(n_products * 4);
    let (n, own) = (plane as i64, rows as i64);
    let vectors = plane.is_multiple_of(4);
    let w_vectors = rows.is_multiple_of(4);
    let bound = |is_vectors| if is_vectors { vector_of(element) } else { element };
    let product = Product {
        name: "ConvTranspose",
        types: Types { sum: "f32", element: "f32" },
        batch: Walk::over(&[images, groups])
            .operand(0, &[0, c_in * own])
            .operand(0, &[groups * c_in * n, c_in * n])
            .operand(0, &[0, 0])
            .merged(),
        n_batch,
        rows,
        cols: plane,
        k: c_in as u64,
        buffers: vec![("w", bound(w_vectors), Slot::Input(1)), ("x", bound(vectors), Slot::Input(0))],
        params: Vec::new(),
        functions: String::new(),
        left: matrix("w", "rows", false, w_vectors),
        right: matrix("x", "cols", false, vectors),
        vectors,
        turned: None,
        convolution: None,
        epilogue: Epilogue::NONE,
        output: products.clone(),
    };
    product.add(&mut build, request)?;
    let epilogue = Epilogue { addend: request.input(2).map(|_| (Slot::Input(2), 1, 0)), ..Epilogue::NONE };
    let mut params = window.params();
    for i in window.axes() {
        params.push((format!("per_stride_{}", AXES[i]), Param::F32(1.0 / window.stride[i] as f32)));
    }
    params.extend([
        u32_param("plane", plane)?,
        u32_param("taps", taps)?,
        u32_param("channels", (c_out * groups) as u64)?,
    ]);
    params.extend(epilogue.params());
    let mut buffers = vec![("y", element, Slot::Output(0))];
    if x.n_elements() > 0 {
        buffers.push(("products", "f32", products));
    }
    buffers.extend(epilogue.buffers(element));
    build.add(ShaderStep {
        name: "ConvTranspose",
        buffers,
        params,
        turns: window.turns(0),
        body: Body::Items {
            n: y.n_elements() as u64,
            functions: &(wgsl!("conv_transpose/element_at.wgsl") + &epilogue.functions("f32")),
            each: &wgsl!(
                "conv_transpose/gather.wgsl",
                is_deep = window.is_deep(),
                has_terms = x.n_elements() > 0,
                element,
            ),
        },
    })?;
    build.finish()
}

/// Checks the output's extents, or finds the padding that follows from them (ONNX ConvTranspose-11): what is too much
/// is divided between the ends.
fn place(request: &Request<'_>, window: &mut Window) -> Result<()> {
    let extra = request.attrs.ints("output_padding")?.unwrap_or_else(|| vec![0; window.rank]);
    if extra.len() != window.rank || extra.iter().any(|&extra| extra < 0) {
        return Err(Error::invalid(format!("an output_padding of {extra:?}")));
    }
    if extra.iter().any(|&extra| extra >= 1 << 30) {
        return Err(Error::unsupported(format!("an output_padding of {extra:?}, below 2^30 are")));
    }
    let auto_pad = request.attrs.string("auto_pad", "NOTSET")?;
    let is_implied = request.attrs.ints("output_shape")?.is_some() || auto_pad.starts_with("SAME");
    for i in 0..SPATIAL_MAX {
        let extra = (i + window.rank).checked_sub(SPATIAL_MAX).map_or(0, |i| extra[i]);
        let full = window.stride[i] * (window.output[i].max(1) - 1)
            + extra
            + (window.kernel[i] - 1) * window.dilation[i]
            + 1;
        if is_implied {
            let total = (full - window.input[i]).max(0);
            window.pad[i] = if auto_pad == "SAME_UPPER" { total / 2 } else { total - total / 2 };
        } else if window.output[i] > 0 && window.input[i] != full - window.pad[i] - window.pad_after[i] {
            let text = format!("an output of {:?} from one of {:?}", window.input, window.output);
            return Err(Error::invalid(text));
        }
    }
    Ok(())
}
