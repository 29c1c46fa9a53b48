//! ConvTranspose: seen from its output a convolution whose windows skip what lies between the input's elements.
//!
//! Per image and group `Y[c][q] = sum_k W(c, k) * X(k, q)`, with `k` an input channel and tap, and X 0 where the tap of
//! `q` falls between elements: a product as [`super::conv`] has it.

use super::conv::{CHANNELS_MIN, TERMS_MAX, patch_functions};
use super::cost;
use super::epilogue::Epilogue;
use super::matmul::{FLOATS, float_type};
use super::product::{Product, Side, Types, u32_param};
use super::walk::Walk;
use super::window::{AXES, SPATIAL_MAX, Window, image};
use crate::device::WgpuDevice;
use crate::dispatch::{Body, Build, Param, Slot, Step};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, WgpuDevice>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<WgpuDevice>] = &[Kernel::new("ConvTranspose", 11, prepare)
    .types(FLOATS)
    .operands(&[0, 0, 0], &[0])
    .inputs(2, 3)
    .cost(transposed_cost)];

fn transposed_cost(request: &Request<'_>) -> Result<Cost> {
    let per_input: i64 = request.required_input(1)?.shape().iter().skip(1).product();
    cost::per_input(request, 2 * per_input.max(0) as u64)
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
        || c_out * groups != channels_out
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
        return Ok(build.finish());
    }
    let (taps, plane) = (window.n_taps(), window.n_output());
    let k = c_in as u64 * taps;
    if k >= TERMS_MAX {
        return Err(Error::unsupported(format!("sums of {k} terms, below {TERMS_MAX} are")));
    }
    for i in 0..SPATIAL_MAX {
        if window.input[i] + window.pad[i] >= POSITIONS_MAX {
            return Err(Error::unsupported(format!("an output of {:?}, extents below 2^21 are", y.shape())));
        }
    }
    u32_param("input", x.n_elements() as u64)?;
    let mut params = window.params();
    for i in window.axes() {
        params.push((format!("per_stride_{}", AXES[i]), Param::F32(1.0 / window.stride[i] as f32)));
    }
    params.extend([u32_param("plane", plane)?, u32_param("taps", taps)?, u32_param("c_out", c_out as u64)?]);
    let epilogue = Epilogue { addend: request.input(2).map(|_| (Slot::Input(2), 1, 0)), ..Epilogue::NONE };
    let is_empty = x.n_elements() == 0 || k == 0;
    if c_out < CHANNELS_MIN && !is_empty {
        params.extend([u32_param("groups", groups as u64)?, u32_param("c_in", c_in as u64)?]);
        params.extend(epilogue.params());
        let mut buffers = vec![
            ("x", element, Slot::Input(0)),
            ("weights", element, Slot::Input(1)),
            ("y", element, Slot::Output(0)),
        ];
        buffers.extend(epilogue.buffers(element));
        build.add(Step {
            name: "ConvTranspose",
            buffers,
            params,
            body: Body::Items {
                n: y.n_elements() as u64,
                functions: &format!("{DIVIDE}{}", epilogue.functions("f32")),
                each: &direct(&window, element),
            },
        })?;
        return Ok(build.finish());
    }
    params.push(u32_param("taps_hw", (window.kernel[1] * window.kernel[2]) as u64)?);
    params.push(("per_taps".into(), Param::F32(1.0 / taps as f32)));
    params.push(("per_taps_hw".into(), Param::F32(1.0 / (window.kernel[1] * window.kernel[2]) as f32)));
    params.push(("per_kernel_w".into(), Param::F32(1.0 / window.kernel[2] as f32)));
    let cols = window.n_input();
    let (n, weights) = (plane as i64, c_in * c_out * taps as i64);
    let batch = Walk::over(&[images, groups])
        .operand(0, &[0, weights])
        .operand(0, &[groups * c_in * n, c_in * n])
        .operand(0, &[0, c_out])
        .merged();
    let product = Product {
        name: "ConvTranspose",
        types: Types { sum: "f32", element },
        batch,
        n_batch: (images * groups) as u64,
        rows: c_out as u64,
        cols,
        k: if is_empty { 0 } else { k },
        buffers: vec![("w", element, Slot::Input(1)), ("x", element, Slot::Input(0))],
        params,
        functions: format!("{}{DIVIDE}", patch_functions("f32", "f32(x[at])")),
        left: weights_side(),
        right: spread(&window),
        // What follows the loop is the same for all.
        vectors: cols.is_multiple_of(4),
        epilogue,
        output: Slot::Output(0),
    };
    product.add(&mut build, request)?;
    Ok(build.finish())
}

/// Checks the output's extents, or finds the padding that follows from them (ONNX ConvTranspose-11): what is too much
/// is divided between the ends.
fn place(request: &Request<'_>, window: &mut Window) -> Result<()> {
    let extra = request.attrs.ints("output_padding")?.unwrap_or_else(|| vec![0; window.rank]);
    if extra.len() != window.rank || extra.iter().any(|extra| !(0..1 << 30).contains(extra)) {
        return Err(Error::invalid(format!("an output_padding of {extra:?}")));
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

/// Which element of the input a position of the padded output is on; -1 for none.
const DIVIDE: &str = "fn element_at(position: i32, stride: i32, per: f32, n: i32) -> i32 {\n\
    let q = i32((f32(position) + 0.5) * per);\n\
    return select(-1, q, position >= 0 && q * stride == position && q < n);\n}\n\
    fn elements_at(position: vec4<i32>, stride: i32, per: f32, n: i32) -> vec4<i32> {\n\
    let q = vec4<i32>((vec4<f32>(position) + 0.5) * per);\n\
    let is_on = (position >= vec4<i32>()) & (q * stride == position) & (q < vec4<i32>(n));\n\
    return select(vec4<i32>(-1), q, is_on);\n}\n";

/// Weights `[c_in][c_out][taps]` as the left side of a product over channels and taps.
fn weights_side() -> Side {
    Side {
        k_fast: true,
        hoisted: "let w_at# = min(vec4<u32>(FIRST, FIRST + 1u, FIRST + 2u, FIRST + 3u), vec4<u32>(p.rows - 1u)) * p.taps + BASE;\n"
            .into(),
        load: "let tap = k - divide(k, p.per_taps) * p.taps;\nlet at = w_at# + ((k - tap) * p.c_out + tap);\n\
               v = vec4<f32>(f32(w[at.x]), f32(w[at.y]), f32(w[at.z]), f32(w[at.w]));\n"
            .into(),
    }
}

/// The input spread over the output as the right side.
fn spread(window: &Window) -> Side {
    let mut hoisted = String::from(
        "var pixels# = min(vec4<u32>(FIRST, FIRST + 1u, FIRST + 2u, FIRST + 3u), vec4<u32>(p.cols - 1u));\n",
    );
    for i in window.axes().rev() {
        let axis = AXES[i];
        hoisted.push_str(&format!(
            "let first_{axis}# = vec4<i32>(pixels# % vec4<u32>(u32(p.in_{axis}))) + p.pad_{axis};\n\
             pixels# /= vec4<u32>(u32(p.in_{axis}));\n"
        ));
    }
    let mut load = String::from("let channel = divide(k, p.per_taps);\nlet tap = k - channel * p.taps;\n");
    if window.axes().start == 0 {
        load.push_str("let tap_d = divide(tap, p.per_taps_hw);\nlet tap_hw = tap - tap_d * p.taps_hw;\n");
    } else {
        load.push_str("let tap_hw = tap;\n");
    }
    load.push_str(
        "let tap_h = divide(tap_hw, p.per_kernel_w);\nlet tap_w = tap_hw - tap_h * u32(p.kernel_w);\n",
    );
    let mut within = Vec::new();
    let mut place = String::new();
    for i in window.axes() {
        let axis = AXES[i];
        load.push_str(&format!(
            "let at_{axis} = elements_at(first_{axis}# - i32(tap_{axis}) * p.dilation_{axis}, p.stride_{axis}, \
             p.per_stride_{axis}, p.out_{axis});\n"
        ));
        within.push(format!("(at_{axis} >= vec4<i32>())"));
        place = match place.is_empty() {
            true => format!("at_{axis}"),
            false => format!("({place} * p.out_{axis} + at_{axis})"),
        };
    }
    load.push_str(&format!(
        "let within = {};\nlet at = select(vec4<u32>(BASE), \
         bitcast<vec4<u32>>({place}) + (BASE + channel * p.plane), within);\n\
         v = select(vec4<f32>(), vec4<f32>(pixel(at.x), pixel(at.y), pixel(at.z), pixel(at.w)), within);\n",
        within.join(" & ")
    ));
    Side { k_fast: false, hoisted, load }
}

/// A thread for each element.
fn direct(window: &Window, element: &str) -> String {
    let mut text = String::from("var rest = i;\n");
    for i in window.axes().rev() {
        let axis = AXES[i];
        text.push_str(&format!(
            "let own_{axis} = i32(rest % u32(p.in_{axis})) + p.pad_{axis};\nrest /= u32(p.in_{axis});\n"
        ));
    }
    text.push_str(
        "let channel = rest % (p.groups * p.c_out);\nlet image = rest / (p.groups * p.c_out);\n\
         let group = channel / p.c_out;\nlet row = channel % p.c_out;\n\
         let x_base = (image * p.groups + group) * p.c_in * p.plane;\n\
         let w_base = (group * p.c_in * p.c_out + row) * p.taps;\nvar sum = 0.0;\n",
    );
    let (mut number, mut place) = (String::new(), String::new());
    for i in window.axes() {
        let axis = AXES[i];
        text.push_str(&format!(
            "for (var tap_{axis} = 0; tap_{axis} < p.kernel_{axis}; tap_{axis}++) {{\n\
             let at_{axis} = element_at(own_{axis} - tap_{axis} * p.dilation_{axis}, p.stride_{axis}, \
             p.per_stride_{axis}, p.out_{axis});\nif (at_{axis} < 0) {{ continue; }}\n"
        ));
        let is_first = number.is_empty();
        number = if is_first {
            format!("tap_{axis}")
        } else {
            format!("({number} * p.kernel_{axis} + tap_{axis})")
        };
        place = if is_first { format!("at_{axis}") } else { format!("({place} * p.out_{axis} + at_{axis})") };
    }
    text.push_str(&format!(
        "let tap = w_base + u32({number});\nlet at = x_base + u32({place});\n\
         for (var c = 0u; c < p.c_in; c++) {{\n\
         sum += f32(x[at + c * p.plane]) * f32(weights[tap + c * p.c_out * p.taps]);\n}}\n"
    ));
    window.axes().for_each(|_| text.push_str("}\n"));
    text.push_str(&format!("y[i] = {element}(finish(sum, 0u, channel, 0u, i));\n"));
    text
}
