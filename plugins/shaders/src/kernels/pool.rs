//! Poolings: the largest, the mean or the norm of each window, and of whole planes.
//!
//! Of a window a thread makes an element; of a plane, a workgroup.

use super::cost;
use super::elementwise::Number;
use super::math;
use super::product::u32_param;
use super::window::{AXES, Window, image};
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const FLOATS: &[TypeVar] = &[TypeVar::of(&[F32, F16, BF16])];

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("MaxPool", 12, prepare_max)
        .types(&[TypeVar::of(&[F32, F16, BF16, I8, U8]), TypeVar::of(&[I64])])
        .cost(pool_cost)
        .doc("up to three dimensions, with indices"),
    descriptor("AveragePool", 19, |request| prepare_fold(request, Fold::Mean)).types(FLOATS).cost(pool_cost),
    descriptor("LpPool", 18, |request| prepare_fold(request, Fold::norm(request)?))
        .types(FLOATS)
        .cost(pool_cost),
    descriptor("GlobalAveragePool", 1, |request| prepare_global(request, Fold::Mean))
        .types(FLOATS)
        .cost(|request| cost::per_input(request, 1)),
    descriptor("GlobalMaxPool", 1, |request| prepare_global(request, Fold::Largest))
        .types(FLOATS)
        .cost(|request| cost::per_input(request, 1)),
    descriptor("GlobalLpPool", 2, |request| prepare_global(request, Fold::norm(request)?))
        .types(FLOATS)
        .cost(|request| cost::per_input(request, 4)),
];

fn pool_cost(request: &Request<'_>) -> Result<Cost> {
    let kernel = request.attrs.ints("kernel_shape")?.unwrap_or_default();
    cost::per_output(request, cost::volume(&kernel).max(1))
}

/// Fold of the elements of a window.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fold {
    Largest,
    Mean,
    /// The p-th root of the sum of p-th powers.
    Norm(i64),
}

/// Orders of norms whose powers are multiplied out.
const ORDER_MAX: i64 = 8;

impl Fold {
    fn norm(request: &Request<'_>) -> Result<Self> {
        match request.attrs.int("p", 2)? {
            p if p < 1 => Err(Error::invalid(format!("expected a norm of order above 0, found {p}"))),
            p if p > ORDER_MAX => {
                Err(Error::unsupported(format!("a norm of order {p}, at most {ORDER_MAX}")))
            }
            p => Ok(Self::Norm(p)),
        }
    }

    /// Functions: `join` of two results, `term` of an element, `result` of all and their number.
    fn functions(self) -> String {
        let (join, term, result) = match self {
            // NaN is larger than all.
            Self::Largest => ("return larger_f(a, b);", "return x;".to_owned(), "return all;"),
            Self::Mean => ("return a + b;", "return x;".to_owned(), "return all / max(n, 1.0);"),
            Self::Norm(1) => ("return a + b;", "return abs(x);".to_owned(), "return all;"),
            Self::Norm(2) => ("return a + b;", "return x * x;".to_owned(), "return sqrt(all);"),
            Self::Norm(order) => (
                "return a + b;",
                format!("let a = abs(x);\nreturn {};", vec!["a"; order as usize].join(" * ")),
                "return exp_f(log_f(all) * p.per_order);",
            ),
        };
        let calls: &[&str] = match self {
            Self::Largest => &["larger_f"],
            Self::Norm(3..) => &["exp_f", "log_f"],
            _ => &[],
        };
        format!(
            "{}\nfn join(a: f32, b: f32) -> f32 {{\n{join}\n}}\nfn term(x: f32) -> f32 {{\n{term}\n}}\n\
             fn result(all: f32, n: f32) -> f32 {{\n{result}\n}}\n",
            math::functions(calls)
        )
    }

    fn params(self) -> Vec<(String, Param)> {
        match self {
            Self::Largest => vec![("start".into(), Param::F32(f32::NEG_INFINITY))],
            Self::Norm(order) => {
                vec![("start".into(), Param::F32(0.0)), ("per_order".into(), Param::F32(1.0 / order as f32))]
            }
            Self::Mean => vec![("start".into(), Param::F32(0.0))],
        }
    }
}

/// The window of a node, whose outputs have the extents that it gives them.
fn window(request: &Request<'_>) -> Result<Window> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let (images, channels, input) = image(x.shape())?;
    let (to_images, to_channels, output) = image(y.shape())?;
    if images != to_images || channels != to_channels {
        return Err(Error::invalid(format!("a pooling of {:?} to {:?}", x.shape(), y.shape())));
    }
    let kernel = request.attrs.ints("kernel_shape")?;
    let kernel = kernel.ok_or_else(|| Error::invalid("a pooling without kernel_shape"))?;
    u32_param("elements", x.n_elements().max(y.n_elements()) as u64)?;
    let window = Window::of(&request.attrs, &kernel, input, output)?;
    if request.attrs.int("ceil_mode", 0)? == 0 {
        window.expect_output()?;
    }
    Ok(window)
}

fn params_of(window: &Window, y: &TensorView<'_>) -> Result<Vec<(String, Param)>> {
    let mut params = vec![u32_param("n", y.n_elements() as u64)?, u32_param("plane", window.n_input())?];
    params.extend(window.params());
    Ok(params)
}

fn prepare_max(request: &Request<'_>) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let window = window(request)?;
    let is_turned = match request.attrs.int("storage_order", 0)? {
        0 => false,
        1 => true,
        found => return Err(Error::invalid(format!("storage_order is {found}, expected 0 or 1"))),
    };
    if let Some(indices) = request.output(1) {
        super::same_shape(y, indices)?;
    }
    let mut build = Build::new(request);
    if x.n_elements() == 0 {
        return if y.n_elements() == 0 {
            build.finish()
        } else {
            Err(Error::unsupported("maxima of nothing"))
        };
    }
    let number = Number::of(x.dtype(), request.device)?;
    let class = number.class().name();
    let (low, is_nan) = match x.dtype() {
        I8 => (Param::I32(-128), "false"),
        U8 => (Param::U32(0), "false"),
        _ => (Param::F32(f32::NEG_INFINITY), "isnan_f(value) && !isnan_f(best)"),
    };
    let mut params = params_of(&window, y)?;
    params.push(("low".into(), low));
    let tap = wgsl!("pool/tap.wgsl", type = class, load = number.load("x", "(base + at)"), is_nan);
    let (split, taps) = (window.split_output(), window.taps(&tap));
    let code = wgsl!("pool/max.wgsl", split, type = class, taps);
    let n = y.n_elements() as u64;
    let functions = format!("{}\n{}", math::functions(&["isnan_f"]), number.functions());
    build.add(ShaderStep {
        name: "MaxPool",
        buffers: vec![("x", number.storage(), Slot::Input(0)), ("y", number.storage(), Slot::Output(0))],
        params: params.clone(),
        turns: number.width().turns(window.turns(0)),
        body: number.width().body(n, &functions, &number.each("y", &format!("{code}let r = best;"))),
    })?;
    if request.output(1).is_none() {
        return build.finish();
    }
    // Where the largest elements were, of all elements of the input.
    let mut each = format!("let e = i;\n{code}");
    let mut place = "best_at".to_owned();
    if is_turned {
        // The first axis is the fastest.
        each.push_str("var left = best_at;\n");
        place.clear();
        for i in window.axes().rev() {
            let axis = AXES[i];
            each.push_str(&format!("let own_{axis} = left % u32(p.in_{axis});\nleft /= u32(p.in_{axis});\n"));
            place = match place.is_empty() {
                true => format!("own_{axis}"),
                false => format!("own_{axis} + u32(p.in_{axis}) * ({place})"),
            };
        }
    }
    each.push_str(&format!("places[e] = vec2<u32>(base + {place}, 0u);\n"));
    build.add(ShaderStep {
        name: "MaxPool",
        buffers: vec![("x", number.storage(), Slot::Input(0)), ("places", "vec2<u32>", Slot::Output(1))],
        params,
        turns: window.turns(0),
        body: Body::Items { n, functions: &functions, each: &each },
    })?;
    build.finish()
}

fn prepare_fold(request: &Request<'_>, fold: Fold) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let window = window(request)?;
    let number = Number::of(x.dtype(), request.device)?;
    let mut build = Build::new(request);
    if x.n_elements() == 0 {
        return if y.n_elements() == 0 {
            build.finish()
        } else {
            Err(Error::unsupported("a pool of nothing"))
        };
    }
    let mut params = params_of(&window, y)?;
    params.extend(fold.params());
    let includes_pads = fold == Fold::Mean && request.attrs.int("count_include_pad", 0)? != 0;
    let mut code = format!(
        "var rest = e;\n{}let base = rest * p.plane;\nvar all = p.start;\nvar n = 0.0;\n{}",
        window.split_output(),
        window.taps(&format!("all = join(all, term({}));\nn += 1.0;\n", number.load("x", "(base + at)")))
    );
    if includes_pads {
        // Places within the padding count; places that rounding up adds beyond it never do.
        code.push_str("n = 1.0;\n");
        for i in window.axes() {
            let axis = AXES[i];
            let end = window.pad[i] + window.input[i] + window.pad_after[i];
            let end =
                i32::try_from(end).map_err(|_| Error::unsupported(format!("a padded extent of {end}")))?;
            params.push((format!("end_{axis}"), Param::I32(end)));
            code.push_str(&format!(
                "n *= f32(clamp((p.end_{axis} - out_{axis} * p.stride_{axis} + p.dilation_{axis} - 1) / \
                 p.dilation_{axis}, 0, p.kernel_{axis}));\n"
            ));
        }
    }
    code.push_str("let r = result(all, n);");
    let functions = format!("{}{}", fold.functions(), number.functions());
    build.add(ShaderStep {
        name: "Pool",
        buffers: vec![("x", number.storage(), Slot::Input(0)), ("y", number.storage(), Slot::Output(0))],
        params,
        turns: number.width().turns(window.turns(0)),
        body: number.width().body(y.n_elements() as u64, &functions, &number.each("y", &code)),
    })?;
    build.finish()
}

/// Threads that fold a plane.
const THREADS: u32 = 128;

fn prepare_global(request: &Request<'_>, fold: Fold) -> Result<Prepared> {
    let (x, y) = (request.required_input(0)?, request.required_output(0)?);
    let (images, channels, spatial) = image(x.shape())?;
    let expected = [&[images, channels], vec![1; spatial.len()].as_slice()].concat();
    if y.shape() != expected {
        return Err(Error::invalid(format!("a pool of {:?} to {:?}", x.shape(), y.shape())));
    }
    let number = Number::of(x.dtype(), request.device)?;
    let mut build = Build::new(request);
    let planes = y.n_elements() as u64;
    if planes == 0 {
        return build.finish();
    }
    if x.n_elements() == 0 {
        return Err(Error::unsupported("a pool of nothing"));
    }
    u32_param("elements", x.n_elements() as u64)?;
    let words = number.width().items(planes);
    let mut params =
        vec![u32_param("n", planes)?, u32_param("words", words)?, u32_param("plane", cost::volume(spatial))?];
    params.extend(fold.params());
    let load = number.load("x", "(e * p.plane + k)");
    let plane = wgsl!("pool/plane.wgsl", threads = THREADS, load);
    let module = wgsl!(
        "pool/global.wgsl",
        functions = fold.functions() + number.functions(),
        threads = THREADS,
        each = number.each("y", &plane),
    );
    let of_plane = turns(cost::volume(spatial).div_ceil(u64::from(THREADS)), 0) + turns(7, 0);
    let groups = words.min(u64::from(request.device.abilities.groups_max)) as u32;
    build.add(ShaderStep {
        name: "GlobalPool",
        buffers: vec![("x", number.storage(), Slot::Input(0)), ("y", number.storage(), Slot::Output(0))],
        params,
        turns: turns(words.div_ceil(u64::from(groups)), number.width().turns(of_plane)),
        body: Body::Groups { groups: [groups, 1, 1], module: &module },
    })?;
    build.finish()
}
