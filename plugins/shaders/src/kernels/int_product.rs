//! MatMulInteger, ConvInteger, QLinearMatMul and QLinearConv: products of 8-bit integers, exact in i32.
//!
//! Operands are read less their zero points. What is to be quantised again is made in the workspace first, and scaled,
//! rounded and saturated by a step of its own.

use super::conv::{Conv, patch_functions, patch_params, patches};
use super::cost;
use super::elementwise::Number;
use super::epilogue::Epilogue;
use super::matmul::Matrices;
use super::product::{BASE, FIRST, L, Product, Side, Types, u32_param};
use super::quantised::{self, as_class, limits};
use super::walk::Walk;
use crate::step::{Body, Build, ShaderStep, Slot};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const FEW: TypeVar = TypeVar::of(&[U8, I8]);
const FACTOR: TypeVar = TypeVar::of(&[F32, F16, BF16]);
const SUM: TypeVar = TypeVar::of(&[I32]);

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("MatMulInteger", 10, |request| matmul(request, &PLAIN))
        .types(&[FEW, FEW, SUM])
        .cost(matmul_cost)
        .doc("exact; zero points of the whole, of rows of the left and of columns of the right"),
    descriptor("ConvInteger", 10, |request| conv(request, &PLAIN))
        .types(&[FEW, FEW, SUM])
        .cost(conv_cost)
        .doc("exact; one to three dimensions, groups; zero points of the filters whole or each"),
    descriptor("QLinearMatMul", 21, |request| matmul(request, &SCALED))
        .types(&[FEW, FACTOR, FEW, FEW])
        .cost(matmul_cost),
    descriptor("QLinearConv", 10, |request| conv(request, &SCALED))
        .types(&[FEW, FACTOR, FEW, FEW, SUM])
        .cost(conv_cost),
];

/// Places of an op's operands.
struct Places {
    b: usize,
    a_zero: usize,
    b_zero: usize,
    /// Scales of A, of B and of the result, and the result's zero point.
    scales: Option<[usize; 4]>,
}

const PLAIN: Places = Places { b: 1, a_zero: 2, b_zero: 3, scales: None };
const SCALED: Places = Places { b: 3, a_zero: 2, b_zero: 5, scales: Some([1, 4, 6, 7]) };
/// QLinearConv's biases.
const BIAS: usize = 8;

fn places(request: &Request<'_>) -> &'static Places {
    if request.inputs.len() > 4 { &SCALED } else { &PLAIN }
}

fn matmul_cost(request: &Request<'_>) -> Result<Cost> {
    let k = request.required_input(0)?.shape().last().copied().unwrap_or(1);
    cost::per_output(request, (k.max(0) as u64).saturating_mul(2))
}

fn conv_cost(request: &Request<'_>) -> Result<Cost> {
    let weights = request.required_input(places(request).b)?.shape();
    cost::per_output(request, cost::volume(weights.get(1..).unwrap_or_default()).saturating_mul(2))
}

/// WGSL for the byte at `at` as i32.
fn byte(buffer: &str, dtype: DType, at: &str) -> String {
    if dtype == I8 {
        return format!("(i32({buffer}[({at}) >> 2u] << ((3u - (({at}) & 3u)) * 8u)) >> 24u)");
    }
    format!("i32(({buffer}[({at}) >> 2u] >> ((({at}) & 3u) * 8u)) & 0xffu)")
}

/// The zero points of the rows of A, or of the columns of B.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Zeros {
    None,
    One,
    /// One for each line of a matrix, of every matrix alike.
    Lines,
    /// One for each line of all matrices.
    AllLines,
}

impl Zeros {
    fn of(request: &Request<'_>, i: usize, lines: i64, all_lines: i64) -> Result<Self> {
        let Some(zeros) = request.input(i) else { return Ok(Self::None) };
        match zeros.n_elements() as i64 {
            1 => Ok(Self::One),
            n if n == lines => Ok(Self::Lines),
            n if n == all_lines => Ok(Self::AllLines),
            n => Err(Error::invalid(format!(
                "input {i} has {n} zero points, expected 1, {lines} or {all_lines}"
            ))),
        }
    }

    /// WGSL for the zero point of a line, of the four that `of` has, by its lane.
    fn load(self, buffer: &str, dtype: DType, of: &str, lane: &str) -> String {
        let lines = |lane: &str| format!("{of}_lines{L}.{lane}");
        match self {
            Self::None => "0".into(),
            Self::One => byte(buffer, dtype, "0u"),
            Self::Lines => byte(buffer, dtype, &lines(lane)),
            Self::AllLines => byte(buffer, dtype, &format!("{BASE} / p.k + {}", lines(lane))),
        }
    }
}

const LANES: [&str; 4] = ["x", "y", "z", "w"];

/// A matrix of bytes as a side; `extent` names the parameter of its lines.
fn bytes(buffer: &str, extent: &str, k_fast: bool, dtype: DType, zeros: (Zeros, &str, DType)) -> Side {
    let (zeros, zero_buffer, zero_dtype) = zeros;
    let [x, y, z, w] = LANES.map(|lane| zeros.load(zero_buffer, zero_dtype, buffer, lane));
    let step = if k_fast { "* p.k" } else { "" };
    let (l, first, base) = (L, FIRST, BASE);
    let hoisted = wgsl!("int_product/bytes_place.wgsl", buffer, extent, l, first, base, step, x, y, z, w);
    let along = if k_fast { "k".to_owned() } else { format!("k * p.{extent}") };
    let load = format!(
        "let at = {buffer}_at{l} + {along};\nv = vec4<i32>({}) - {buffer}_zero{l};\n",
        LANES.map(|lane| byte(buffer, dtype, &format!("at.{lane}"))).join(", ")
    );
    Side { k_fast, hoisted, load }
}

/// Adds the buffers of zero points that are given.
fn zero_buffers(
    request: &Request<'_>,
    buffers: &mut Vec<(&'static str, &'static str, Slot)>,
    places: &Places,
) -> [DType; 2] {
    [("a_zeros", places.a_zero), ("b_zeros", places.b_zero)].map(|(name, i)| match request.input(i) {
        Some(zeros) => {
            buffers.push((name, "u32", Slot::Input(i)));
            zeros.dtype()
        }
        None => U8,
    })
}

const INTEGERS: Types = Types { sum: "i32", element: "i32" };

fn matmul(request: &Request<'_>, places: &Places) -> Result<Prepared> {
    let (a, b, y) =
        (request.required_input(0)?, request.required_input(places.b)?, request.required_output(0)?);
    let matrices = Matrices::of(a, b, y)?;
    let [rows, k, cols] = [matrices.rows, matrices.k, matrices.cols];
    let all = |tensor: &TensorView<'_>, lines: i64| match k {
        0 => lines,
        k => tensor.n_elements() as i64 / k,
    };
    let (all_rows, all_cols) = (all(a, rows), all(b, cols));
    let a_zeros = Zeros::of(request, places.a_zero, rows, all_rows)?;
    let b_zeros = Zeros::of(request, places.b_zero, cols, all_cols)?;
    let mut build = Build::new(request);
    if y.n_elements() == 0 {
        return build.finish();
    }
    let mut buffers = vec![("a", "u32", Slot::Input(0)), ("b", "u32", Slot::Input(places.b))];
    let [a_zero, b_zero] = zero_buffers(request, &mut buffers, places);
    u32_param("elements", a.n_elements().max(b.n_elements()) as u64)?;
    let sums = match places.scales {
        Some(_) => build.scratch(y.n_elements() as u64 * 4),
        None => Slot::Output(0),
    };
    let product = Product {
        name: "MatMulInteger",
        types: INTEGERS,
        batch: matrices.walk(),
        n_batch: matrices.batch.iter().product::<i64>() as u64,
        rows: rows as u64,
        cols: cols as u64,
        k: k as u64,
        buffers,
        params: Vec::new(),
        functions: String::new(),
        left: bytes("a", "rows", true, a.dtype(), (a_zeros, "a_zeros", a_zero)),
        right: bytes("b", "cols", false, b.dtype(), (b_zeros, "b_zeros", b_zero)),
        vectors: cols % 4 == 0,
        turned: None,
        convolution: None,
        epilogue: Epilogue::NONE,
        output: sums.clone(),
    };
    product.add(&mut build, request)?;
    if let Some(scales) = places.scales {
        // Rows of the left and columns of the right may have scales of their own, in each matrix of a batch.
        let extents = [matrices.batch.as_slice(), &[rows, cols]].concat();
        let along = |i: usize, lines: i64, all_lines: i64, strides: &[i64], size: i64, own: [i64; 2]| {
            let n = request.required_input(i)?.n_elements() as i64;
            let batch: Vec<i64> = match n {
                1 => vec![0; extents.len()],
                n if n == lines => [vec![0; strides.len()].as_slice(), &own].concat(),
                n if n == all_lines => {
                    let batch: Vec<i64> = strides.iter().map(|stride| stride / size.max(1)).collect();
                    [batch.as_slice(), &own].concat()
                }
                n => return Err(Error::invalid(format!("{n} scales as input {i}, expected 1 or {lines}"))),
            };
            Ok(batch)
        };
        let walk = Walk::over(&extents)
            .operand(0, &along(scales[0], rows, all_rows, &matrices.a_strides, k, [1, 0])?)
            .operand(0, &along(scales[1], cols, all_cols, &matrices.b_strides, k, [0, 1])?)
            .operand(0, &vec![0; extents.len()]);
        requantise(&mut build, request, scales, &walk.merged(), sums, false)?;
    }
    build.finish()
}

fn conv(request: &Request<'_>, places: &Places) -> Result<Prepared> {
    let (x, w, y) =
        (request.required_input(0)?, request.required_input(places.b)?, request.required_output(0)?);
    let conv = Conv::of(&request.attrs, x, w, y)?;
    let filters = conv.c_out * conv.groups;
    let x_zeros = Zeros::of(request, places.a_zero, 1, 1)?;
    let w_zeros = match Zeros::of(request, places.b_zero, filters, filters)? {
        // Filters count through all groups.
        Zeros::Lines => Zeros::AllLines,
        other => other,
    };
    let has_bias = places.scales.is_some() && request.input(BIAS).is_some();
    if has_bias && request.required_input(BIAS)?.shape() != [filters] {
        return Err(Error::invalid(format!("not a bias for each of {filters} filters")));
    }
    let mut build = Build::new(request);
    if y.n_elements() == 0 {
        return build.finish();
    }
    let is_empty = x.n_elements() == 0 || conv.k() == 0;
    let sums = match places.scales {
        Some(_) => build.scratch(y.n_elements() as u64 * 4),
        None => Slot::Output(0),
    };
    u32_param("elements", x.n_elements().max(w.n_elements()) as u64)?;
    let mut buffers = vec![("x", "u32", Slot::Input(0)), ("w", "u32", Slot::Input(places.b))];
    let [x_zero, w_zero] = zero_buffers(request, &mut buffers, places);
    let zero = x_zeros.load("a_zeros", x_zero, "x", "x");
    if conv.is_direct(&build) && !is_empty {
        add_direct(
            &mut build,
            &conv,
            buffers,
            sums.clone(),
            y,
            &Direct {
                x: byte("x", x.dtype(), "x_base + at"),
                x_zero: zero,
                w: byte("w", w.dtype(), "w_base + tap"),
                w_zero: match w_zeros {
                    Zeros::AllLines => byte("b_zeros", w_zero, "row"),
                    other => other.load("b_zeros", w_zero, "w", "x"),
                },
            },
        )?;
    } else {
        let mut right = patches(&conv.window, "i32");
        right.hoisted.push_str(&format!("x_zero = {zero};\n"));
        let element = format!("{} - x_zero", byte("x", x.dtype(), "at"));
        let product = Product {
            name: "ConvInteger",
            types: INTEGERS,
            batch: conv.walk(),
            n_batch: (conv.images * conv.groups) as u64,
            rows: conv.c_out as u64,
            cols: conv.window.n_output(),
            k: if is_empty { 0 } else { conv.k() },
            buffers,
            params: patch_params(&conv)?,
            functions: format!("var<private> x_zero: i32;\n{}", patch_functions("i32", &element)),
            left: bytes("w", "rows", true, w.dtype(), (w_zeros, "b_zeros", w_zero)),
            right,
            vectors: conv.window.n_output().is_multiple_of(4),
            turned: None,
            convolution: None,
            epilogue: Epilogue::NONE,
            output: sums.clone(),
        };
        product.add(&mut build, request)?;
    }
    if let Some(scales) = places.scales {
        let n = conv.window.n_output() as i64;
        let n_scales = request.required_input(scales[1])?.n_elements() as i64;
        if request.required_input(scales[0])?.n_elements() != 1 || ![1, filters].contains(&n_scales) {
            let text = format!("{n_scales} scales of filters, expected 1 or {filters}, and one of the input");
            return Err(Error::invalid(text));
        }
        let extents = [conv.images, filters, n];
        let of_filters = [0, i64::from(n_scales > 1), 0];
        let walk = Walk::over(&extents).operand(0, &[0; 3]).operand(0, &of_filters).operand(0, &[0, 1, 0]);
        requantise(&mut build, request, scales, &walk.merged(), sums, has_bias)?;
    }
    build.finish()
}

/// WGSL of what a direct convolution multiplies.
struct Direct {
    x: String,
    x_zero: String,
    w: String,
    w_zero: String,
}

/// A thread for each element, where filters share nothing.
fn add_direct(
    build: &mut Build,
    conv: &Conv,
    mut buffers: Vec<(&'static str, &'static str, Slot)>,
    sums: Slot,
    y: &TensorView<'_>,
    code: &Direct,
) -> Result<()> {
    let window = &conv.window;
    buffers.push(("y", "i32", sums));
    let mut params = window.params();
    params.extend(conv.direct_params()?);
    let Direct { x, x_zero, w, w_zero } = code;
    let taps = window.taps(&format!("sum += ({x} - x_zero) * ({w} - w_zero);"));
    let each = wgsl!("int_product/direct.wgsl", place = conv.direct_place(), x_zero, w_zero, taps);
    build.add(ShaderStep {
        name: "ConvInteger",
        buffers,
        params,
        turns: conv.direct_turns(),
        body: Body::Items { n: y.n_elements() as u64, functions: "", each: &each },
    })
}

/// Sums times the scales of both operands, by the result's, rounded. The walk has where the scales and the bias are.
fn requantise(
    build: &mut Build,
    request: &Request<'_>,
    scales: [usize; 4],
    walk: &Walk,
    sums: Slot,
    has_bias: bool,
) -> Result<()> {
    let y = request.required_output(0)?;
    let [of_y_scale, of_y_zero] = [scales[2], scales[3]].map(|i| request.required_input(i));
    if of_y_scale?.n_elements() != 1 || of_y_zero?.n_elements() != 1 {
        return Err(Error::unsupported("several scales of the result, expected one"));
    }
    let scale = Number::of(request.required_input(scales[0])?.dtype(), request.device)?;
    let number = Number::of(y.dtype(), request.device)?;
    let mut buffers = vec![
        ("sums", "i32", sums),
        ("a_scales", scale.storage(), Slot::Input(scales[0])),
        ("b_scales", scale.storage(), Slot::Input(scales[1])),
        ("y_scale", scale.storage(), Slot::Input(scales[2])),
        ("y_zero", "u32", Slot::Input(scales[3])),
        ("y", number.storage(), Slot::Output(0)),
    ];
    let mut sum = "sums[e]".to_owned();
    if has_bias {
        buffers.push(("bias", "i32", Slot::Input(BIAS)));
        sum.push_str(" + bias[at2]");
    }
    let n = y.n_elements() as u64;
    let mut params = walk.params()?;
    params.push(u32_param("n", n)?);
    let (low, high) = limits(y.dtype());
    let value = format!(
        "quantised(f32({sum}) * div_f({} * {}, {}), {}, {low}, {high})",
        scale.load("a_scales", "at0"),
        scale.load("b_scales", "at1"),
        scale.load("y_scale", "0u"),
        byte("y_zero", y.dtype(), "0u")
    );
    let code = format!("{}let r = {};", walk.code(), as_class(y.dtype(), &value));
    build.add(ShaderStep {
        name: "QLinear",
        buffers,
        params,
        turns: number.width().turns(0),
        body: number.width().body(n, &quantised::functions(), &number.each("y", &code)),
    })
}
