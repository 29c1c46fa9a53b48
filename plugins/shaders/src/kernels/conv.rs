//! Conv and FusedConv.
//!
//! Per image and group a convolution is `Y[c][q] = sum_k W[c][k] * X(k, q)`, with `c` an output channel, `q` a pixel and
//! `k` an input channel and tap: a product ([`super::product`]) whose right side is read from the image as it is
//! needed. Groups of few output channels, as depthwise convolutions have, leave nothing to share; there a thread makes
//! four elements of a row. One- and two-dimensional images are three-dimensional ones with extents of 1.

use super::cost;
use super::epilogue::{Activation, Epilogue};
use super::matmul::{self, FLOATS, Matrices, float_type};
use super::product::{Product, Side, Types, matrix, u32_param, vector_of};
use super::walk::Walk;
use super::window::{AXES, SPATIAL_MAX, Window, image};
use crate::step::{Body, Build, Convolution, Param, Slot, Step, turns};
use crate::target::Target;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    Kernel::new("Conv", 11, prepare).types(FLOATS).operands(&[0, 0, 0], &[0]).inputs(2, 3).cost(conv_cost),
    Kernel::new("FusedConv", 1, prepare)
        .domain("devbay")
        .types(FLOATS)
        .operands(&[0, 0, 0, 0], &[0])
        .inputs(2, 4)
        .cost(conv_cost)
        .doc("Conv with a residual that is added, and an activation"),
];

/// Output channels of a group below which threads make elements one by one.
const CHANNELS_MIN: i64 = 5;

/// Terms of a sum whose taps shaders find with a multiplication.
const TERMS_MAX: u64 = 1 << 21;

pub fn conv_cost(request: &Request<'_>) -> Result<Cost> {
    let weights = request.required_input(1)?.shape();
    cost::per_output(request, cost::volume(weights.get(1..).unwrap_or_default()).saturating_mul(2))
}

/// A convolution.
pub struct Conv {
    pub images: i64,
    pub groups: i64,
    /// Input and output channels of a group.
    pub c_in: i64,
    pub c_out: i64,
    pub window: Window,
}

impl Conv {
    /// Of the operands `x`, `w` and an output.
    ///
    /// # Errors
    /// Invalid for shapes that do not fit.
    pub fn of(attrs: &Attrs<'_>, x: &TensorView<'_>, w: &TensorView<'_>, y: &TensorView<'_>) -> Result<Self> {
        let (images, channels, input) = image(x.shape())?;
        let (to_images, c_out, output) = image(y.shape())?;
        let (rows, c_in, kernel) = image(w.shape())?;
        let groups = attrs.int("group", 1)?;
        if groups < 1
            || rows != c_out
            || c_in.checked_mul(groups) != Some(channels)
            || c_out % groups != 0
            || images != to_images
        {
            return Err(Error::invalid(format!(
                "weights {:?} do not fit {groups} groups of an input {:?} and an output {:?}",
                w.shape(),
                x.shape(),
                y.shape()
            )));
        }
        if attrs.ints("kernel_shape")?.is_some_and(|said| said != kernel) {
            return Err(Error::invalid(format!("weights {:?} for another kernel_shape", w.shape())));
        }
        let window = Window::of(attrs, kernel, input, output)?;
        window.expect_output()?;
        Ok(Self { images, groups, c_in, c_out: c_out / groups, window })
    }

    /// Terms of a sum.
    pub fn k(&self) -> u64 {
        (self.c_in as u64).saturating_mul(self.window.n_taps())
    }

    /// Over images and groups: where weights, image and biases begin.
    pub fn walk(&self) -> Walk {
        let (n, k) = (self.window.n_input() as i64, self.k() as i64);
        Walk::over(&[self.images, self.groups])
            .operand(0, &[0, self.c_out * k])
            .operand(0, &[self.groups * self.c_in * n, self.c_in * n])
            .operand(0, &[0, self.c_out])
            .merged()
    }

    /// As libraries have it, of the first two operands; None over three dimensions.
    fn by_library(&self, numerics: u64, element: &'static str) -> Option<Convolution> {
        let Window { input, output, kernel, stride, dilation, pad, .. } = self.window;
        // They have as many zeros behind the last element as before the first.
        let room = |i: usize| input[i] + 2 * pad[i] - ((kernel[i] - 1) * dilation[i] + 1);
        let is_alike = (0..SPATIAL_MAX).all(|i| room(i) >= 0 && room(i) / stride[i] + 1 == output[i]);
        if self.window.rank > 2 || !is_alike {
            return None;
        }
        let plane = |extents: [i64; SPATIAL_MAX]| [extents[1] as u64, extents[2] as u64];
        Some(Convolution {
            element,
            images: self.images as u64,
            groups: self.groups as u64,
            c_in: self.c_in as u64,
            c_out: self.c_out as u64,
            input: plane(input),
            kernel: plane(kernel),
            output: plane(output),
            stride: plane(stride),
            dilation: plane(dilation),
            pad: plane(pad),
            x: Slot::Input(0),
            w: Slot::Input(1),
            y: Slot::Output(0),
            rest: None,
            numerics,
        })
    }

    /// Whether a thread should make one element, from its own reads alone.
    pub fn is_direct(&self, build: &Build) -> bool {
        self.c_out < CHANNELS_MIN && self.direct_turns() <= build.turns_max()
    }

    /// Turns of loops of a thread that makes one element.
    pub fn direct_turns(&self) -> u64 {
        turns(self.c_in as u64, self.window.turns(0))
    }

    /// Parameters of [`Conv::direct_place`], besides the window's.
    ///
    /// # Errors
    /// Unsupported for what has no room in 32 bits.
    pub fn direct_params(&self) -> Result<Vec<(String, Param)>> {
        Ok(vec![
            u32_param("channels", (self.c_out * self.groups) as u64)?,
            u32_param("groups", self.groups as u64)?,
            u32_param("c_in", self.c_in as u64)?,
            u32_param("c_out", self.c_out as u64)?,
            u32_param("plane", self.window.n_input())?,
            u32_param("taps", self.window.n_taps())?,
        ])
    }

    /// WGSL that takes the element `i` apart: its window, its channel `row`, and the first plane of its group.
    pub fn direct_place(&self) -> String {
        format!(
            "var rest = i;\n{}let row = rest % p.channels;\n\
             let first = (rest / p.channels * p.groups + row / p.c_out) * p.c_in;\n",
            self.window.split_output()
        )
    }
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    let (x, w, y) = (request.required_input(0)?, request.required_input(1)?, request.required_output(0)?);
    let conv = Conv::of(&request.attrs, x, w, y)?;
    let channels = conv.c_out * conv.groups;
    if let Some(bias) = request.input(2)
        && bias.shape() != [channels]
    {
        return Err(Error::invalid(format!("a bias of {:?} for {channels} channels", bias.shape())));
    }
    if let Some(z) = request.input(3)
        && z.shape() != y.shape()
    {
        return Err(Error::invalid("a residual of another shape than the result"));
    }
    let epilogue = Epilogue {
        addend: request.input(2).map(|_| (Slot::Input(2), 1, 0)),
        residual: request.input(3).map(|_| Slot::Input(3)),
        activation: Activation::of(&request.attrs)?,
        ..Epilogue::NONE
    };
    let element = float_type(request)?;
    let mut build = Build::new(request);
    if y.n_elements() == 0 {
        return build.finish();
    }
    let (window, k) = (conv.window, conv.k());
    let is_whole = window.kernel == window.input && window.pad == [0; 3] && window.n_output() == 1;
    if is_whole && conv.groups == 1 && k > 0 {
        // One pixel of all of an image: images are rows of a matrix, filters of another.
        let empty = Vec::new;
        let (rows, k, cols) = (conv.images, k as i64, conv.c_out);
        let matrices = Matrices { batch: empty(), a_strides: empty(), b_strides: empty(), rows, k, cols };
        let addend = epilogue.addend.map(|(slot, ..)| (slot, 0, 1));
        return matmul::multiply(request, "Conv", &matrices, [false, true], Epilogue { addend, ..epilogue });
    }
    let is_empty = x.n_elements() == 0;
    if conv.is_direct(&build) && !is_empty {
        add_direct(&mut build, request, &conv, element, &epilogue)?;
        return build.finish();
    }
    u32_param("input", x.n_elements() as u64)?;
    let cols = window.n_output();
    let vectors = cols.is_multiple_of(4);
    let (mut params, mut functions) = (Vec::new(), String::new());
    let (right, x_type) = if window.is_pointwise() {
        (matrix("x", "cols", false, vectors), if vectors { vector_of(element) } else { element })
    } else {
        params.extend(patch_params(&conv)?);
        functions = patch_functions("f32", "f32(x[at])");
        (patches(&window, "f32"), element)
    };
    let product = Product {
        name: "Conv",
        types: Types { sum: "f32", element },
        batch: conv.walk(),
        n_batch: (conv.images * conv.groups) as u64,
        rows: conv.c_out as u64,
        cols,
        k: if is_empty { 0 } else { k },
        buffers: vec![("w", element, Slot::Input(1)), ("x", x_type, Slot::Input(0))],
        params,
        functions,
        left: matrix("w", "rows", true, false),
        right,
        vectors,
        turned: window.is_pointwise().then_some([false, false]),
        convolution: conv.by_library(request.numerics, element).filter(|_| !is_empty),
        epilogue,
        output: Slot::Output(0),
    };
    product.add(&mut build, request)?;
    build.finish()
}

/// Parameters of [`patches`].
///
/// # Errors
/// Unsupported for sums that are too long.
pub fn patch_params(conv: &Conv) -> Result<Vec<(String, Param)>> {
    let window = &conv.window;
    if conv.k() >= TERMS_MAX {
        return Err(Error::unsupported(format!("sums of {} terms, below {TERMS_MAX} are", conv.k())));
    }
    let mut params = window.params();
    params.push(u32_param("plane", window.n_input())?);
    params.push(u32_param("taps", window.n_taps())?);
    params.push(u32_param("taps_hw", (window.kernel[1] * window.kernel[2]) as u64)?);
    params.push(("per_taps".into(), Param::F32(1.0 / window.n_taps() as f32)));
    params.push(("per_taps_hw".into(), Param::F32(1.0 / (window.kernel[1] * window.kernel[2]) as f32)));
    params.push(("per_kernel_w".into(), Param::F32(1.0 / window.kernel[2] as f32)));
    Ok(params)
}

/// Functions of [`patches`]: `element` is WGSL for the number at `at`.
pub fn patch_functions(number: &str, element: &str) -> String {
    // With less than 2^21 terms the product is off by less than the half that is added.
    format!(
        "fn divide(n: u32, per: f32) -> u32 {{ return u32((f32(n) + 0.5) * per); }}\n\
         fn pixel(at: u32) -> {number} {{ return {number}({element}); }}\n"
    )
}

/// The patches of an image as the right side of a product: four neighbouring pixels of the output, one channel and tap.
pub fn patches(window: &Window, number: &str) -> Side {
    let mut hoisted = String::from(
        "var pixels# = min(vec4<u32>(FIRST, FIRST + 1u, FIRST + 2u, FIRST + 3u), vec4<u32>(p.cols - 1u));\n",
    );
    for i in window.axes().rev() {
        let axis = AXES[i];
        hoisted.push_str(&format!(
            "let first_{axis}# = vec4<i32>(pixels# % vec4<u32>(u32(p.out_{axis}))) * p.stride_{axis} - p.pad_{axis};\n\
             pixels# /= vec4<u32>(u32(p.out_{axis}));\n"
        ));
    }
    let is_deep = window.axes().start == 0;
    let near = if is_deep { "(first_d# * p.in_h + first_h#)" } else { "first_h#" };
    hoisted.push_str(&format!("let near# = {near} * p.in_w + first_w# + i32(BASE);\n"));
    let mut load = String::from("let channel = divide(k, p.per_taps);\nlet tap = k - channel * p.taps;\n");
    if is_deep {
        load.push_str("let tap_d = divide(tap, p.per_taps_hw);\nlet tap_hw = tap - tap_d * p.taps_hw;\n");
    } else {
        load.push_str("let tap_hw = tap;\n");
    }
    load.push_str(
        "let tap_h = divide(tap_hw, p.per_kernel_w);\nlet tap_w = tap_hw - tap_h * u32(p.kernel_w);\n",
    );
    let mut within = Vec::new();
    for i in window.axes() {
        let axis = AXES[i];
        load.push_str(&format!("let by_{axis} = i32(tap_{axis}) * p.dilation_{axis};\n"));
        // Below 0 is beyond any extent.
        within.push(format!("(bitcast<vec4<u32>>(first_{axis}# + by_{axis}) < vec4<u32>(u32(p.in_{axis})))"));
    }
    let by = if is_deep { "(by_d * p.in_h + by_h)" } else { "by_h" };
    load.push_str(&format!(
        "let within = {};\nlet at = select(vec4<u32>(BASE), \
         bitcast<vec4<u32>>(near# + ({by} * p.in_w + by_w + i32(channel * p.plane))), within);\n\
         v = select(vec4<{number}>(), vec4<{number}>(pixel(at.x), pixel(at.y), pixel(at.z), pixel(at.w)), within);\n",
        within.join(" & ")
    ));
    Side { k_fast: false, hoisted, load }
}

/// A thread for four neighbouring elements of a row.
fn add_direct(
    build: &mut Build,
    request: &Request<'_>,
    conv: &Conv,
    element: &'static str,
    epilogue: &Epilogue,
) -> Result<()> {
    let window = &conv.window;
    let mut params = window.params();
    params.extend(conv.direct_params()?);
    let y = request.required_output(0)?.n_elements() as u64;
    u32_param("elements", y.max(request.required_input(0)?.n_elements() as u64))?;
    let out_w = window.output[2] as u64;
    let fours = out_w.div_ceil(4);
    params.push(u32_param("fours", fours)?);
    params.extend(epilogue.params());
    let vectors = out_w.is_multiple_of(4);
    let y_type = if vectors { vector_of(element) } else { element };
    let mut buffers = vec![
        ("x", element, Slot::Input(0)),
        ("weights", element, Slot::Input(1)),
        ("y", y_type, Slot::Output(0)),
    ];
    buffers.extend(epilogue.buffers(element));
    let functions = format!(
        "{}fn x_at(line: u32, at: i32, is_line: bool) -> f32 {{\n\
         let is_in = is_line && at >= 0 && at < p.in_w;\n\
         return select(0.0, f32(x[line + u32(clamp(at, 0, p.in_w - 1))]), is_in);\n}}\n",
        epilogue.functions("f32")
    );
    // Along the row the four windows overlap where they move by one.
    let slides = window.stride[2] == 1 && window.dilation[2] == 1;
    let along = if slides {
        "var near = vec4<f32>(0.0, x_at(line, left, is_in_h), x_at(line, left + 1, is_in_h), x_at(line, left + 2, is_in_h));\n\
         for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {\n\
         near = vec4<f32>(near.yzw, x_at(line, left + tap_w + 3, is_in_h));\n\
         sum += near * f32(weights[w_line + u32(tap_w)]);\n}\n"
    } else {
        "for (var tap_w = 0; tap_w < p.kernel_w; tap_w++) {\n\
         let at = left + tap_w * p.dilation_w;\n\
         sum += vec4<f32>(x_at(line, at, is_in_h), x_at(line, at + p.stride_w, is_in_h), \
         x_at(line, at + 2 * p.stride_w, is_in_h), x_at(line, at + 3 * p.stride_w, is_in_h)) * f32(weights[w_line + u32(tap_w)]);\n}\n"
    };
    let mut each = String::from("var rest = i / p.fours;\nlet out_w = i32(i % p.fours) * 4;\n");
    let outer = window.axes().start..2;
    for i in outer.clone().rev() {
        let axis = AXES[i];
        each.push_str(&format!(
            "let out_{axis} = i32(rest % u32(p.out_{axis}));\nrest /= u32(p.out_{axis});\n"
        ));
    }
    each.push_str(
        "let row = rest % p.channels;\nlet first = (rest / p.channels * p.groups + row / p.c_out) * p.c_in;\n\
         let left = out_w * p.stride_w - p.pad_w;\nvar sum = vec4<f32>();\n\
         for (var c = 0u; c < p.c_in; c++) {\n\
         let x_base = (first + c) * p.plane;\nlet w_base = (row * p.c_in + c) * p.taps;\n",
    );
    // Padding is zeros that are multiplied: an infinite weight on it gives NaN.
    let (mut tap, mut place) = (String::new(), String::new());
    for i in outer.clone() {
        let axis = AXES[i];
        let is_first = tap.is_empty();
        let outside = if is_first { String::new() } else { format!("is_in_{} && ", AXES[i - 1]) };
        each.push_str(&format!(
            "for (var tap_{axis} = 0; tap_{axis} < p.kernel_{axis}; tap_{axis}++) {{\n\
             let at_{axis} = out_{axis} * p.stride_{axis} - p.pad_{axis} + tap_{axis} * p.dilation_{axis};\n\
             let is_in_{axis} = {outside}at_{axis} >= 0 && at_{axis} < p.in_{axis};\n"
        ));
        tap =
            if is_first { format!("tap_{axis}") } else { format!("({tap} * p.kernel_{axis} + tap_{axis})") };
        place = if is_first { format!("at_{axis}") } else { format!("({place} * p.in_{axis} + at_{axis})") };
    }
    each.push_str(&format!(
        "let line = select(0u, x_base + u32({place} * p.in_w), is_in_h);\nlet w_line = w_base + u32({tap} * p.kernel_w);\n{along}"
    ));
    outer.for_each(|_| each.push_str("}\n"));
    each.push_str("}\nlet at = i / p.fours * u32(p.out_w) + u32(out_w);\n");
    let value = |lane: usize| format!("{element}(finish(sum[{lane}], 0u, row, 0u, at + {lane}u))");
    if vectors {
        let values: Vec<_> = (0..4).map(value).collect();
        each.push_str(&format!("y[at >> 2u] = {y_type}({});\n", values.join(", ")));
    } else {
        for lane in 0..4 {
            each.push_str(&format!(
                "if (out_w + {lane} < p.out_w) {{ y[at + {lane}u] = {}; }}\n",
                value(lane)
            ));
        }
    }
    let lines = y / out_w.max(1);
    build.add(Step {
        name: "Conv",
        buffers,
        params,
        turns: conv.direct_turns(),
        body: Body::Items { n: lines * fours, functions: &functions, each: &each },
    })
}
