//! Conv and FusedConv.
//!
//! Per image and group a convolution is `Y[c][q] = sum_k W[c][k] * X(k, q)`, with `c` an output channel, `q` a pixel and
//! `k` an input channel and tap: a product ([`super::product`]) whose right side is read from the image as it is
//! needed. Groups of few output channels, as depthwise convolutions have, leave nothing to share; there a thread makes
//! four elements of a row. One- and two-dimensional images are three-dimensional ones with extents of 1.

use super::cost;
use super::epilogue::{Activation, Epilogue};
use super::matmul::{self, FLOATS, Matrices, float_type};
use super::product::{BASE, FIRST, L, Product, Side, Types, matrix, u32_param, vector_of};
use super::walk::Walk;
use super::window::{SPATIAL_MAX, Window, image};
use crate::step::{Body, Build, Convolution, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::{descriptor, descriptor_of};
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("Conv", 11, prepare).types(FLOATS).cost(conv_cost),
    descriptor_of("devbay", "FusedConv", 1, prepare)
        .types(FLOATS)
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

    /// Returns whether a thread should make one element, from its own reads alone.
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
    wgsl!("conv/patch_functions.wgsl", number, element)
}

/// The patches of an image as the right side of a product: four neighbouring pixels of the output, one channel and tap.
pub fn patches(window: &Window, number: &str) -> Side {
    let (l, first, base, is_deep) = (L, FIRST, BASE, window.is_deep());
    let hoisted = wgsl!("conv/patch_place.wgsl", l, first, base, is_deep);
    let load = wgsl!("conv/patch_load.wgsl", l, base, number, is_deep);
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
    let functions = wgsl!("conv/direct_x.wgsl", functions = epilogue.functions("f32"));
    let value = |lane: usize| format!("{element}(finish(sum[{lane}], 0u, row, 0u, at + {lane}u))");
    let write = match vectors {
        true => format!("y[at >> 2u] = {y_type}({});", [0, 1, 2, 3].map(value).join(", ")),
        false => {
            let one =
                |lane| format!("if (out_w + {lane} < p.out_w) {{ y[at + {lane}u] = {}; }}\n", value(lane));
            [0, 1, 2, 3].map(one).concat()
        }
    };
    let slides = window.stride[2] == 1 && window.dilation[2] == 1;
    let each = wgsl!("conv/direct.wgsl", is_deep = window.is_deep(), slides, write);
    let lines = y / out_w.max(1);
    build.add(ShaderStep {
        name: "Conv",
        buffers,
        params,
        turns: conv.direct_turns(),
        body: Body::Items { n: lines * fours, functions: &functions, each: &each },
    })
}
