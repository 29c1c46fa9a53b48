//! GridSample: an image seen at positions that an operand holds.
//!
//! Along each axis a position becomes a few places with weights; a sample is the sum over all their combinations.

use super::cost;
use super::elementwise::Number;
use super::moved::*;
use crate::step::{Body, Build, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// Most axes of an image.
const AXES_MAX: usize = 3;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor("GridSample", 20, grid_sample)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[F32, F16, BF16])])
    .cost(|request| cost::per_output(request, 16))
    .doc("nearest for every dtype; linear and cubic for f32, f16 and bf16")];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    Nearest,
    Linear,
    Cubic,
}

impl Mode {
    /// Elements that a sample reads along an axis.
    fn places(self) -> u64 {
        match self {
            Self::Nearest => 1,
            Self::Linear => 2,
            Self::Cubic => 4,
        }
    }
}

/// WGSL for `places(normalised, n, at, weights)`: where a sample reads along an axis of `n` elements, `NONE` for those
/// outside that count as 0, and their weights.
fn places(mode: Mode, padding: &str, align_corners: bool) -> Result<String> {
    if !["zeros", "border", "reflection"].contains(&padding) {
        let text = format!("padding_mode is zeros, border or reflection, found {padding}");
        return Err(Error::invalid(text));
    }
    Ok(wgsl!(
        "grid_sample/places.wgsl",
        corners = align_corners,
        is_nearest = mode == Mode::Nearest,
        is_cubic = mode == Mode::Cubic,
        n_places = mode.places(),
        is_moved = padding != "zeros",
        is_reflection = padding == "reflection",
    ))
}

fn grid_sample(request: &Request<'_>) -> Result<Prepared> {
    let (x, grid) = (request.required_input(0)?, request.required_input(1)?);
    let (from, grid_extents) = (extents(x)?, extents(grid)?);
    let of_grid = Number::of(grid.dtype(), request.device)?;
    let broken = || Error::invalid(format!("an image of {from:?} and a grid of {grid_extents:?}"));
    let ([n, channels, image @ ..], [batches, spots @ .., depth]) = (from, grid_extents) else {
        return Err(broken());
    };
    if n != batches || image.len() != spots.len() || *depth != image.len() as i64 {
        return Err(broken());
    }
    expect_output(request, 0, &[&[*n, *channels], spots].concat())?;
    let axes = image.len();
    if axes == 0 || axes > AXES_MAX {
        return Err(Error::unsupported(format!("an image of {axes} axes, expected 1 to {AXES_MAX}")));
    }
    let n_out = request.required_output(0)?.n_elements() as i64;
    if n_out > 0 && image.contains(&0) {
        return Err(Error::invalid(format!("samples of an image of {image:?}, which has no elements")));
    }
    let mode = match request.attrs.string("mode", "linear")? {
        "nearest" => Mode::Nearest,
        "linear" | "bilinear" => Mode::Linear,
        "cubic" | "bicubic" => Mode::Cubic,
        mode => return Err(Error::invalid(format!("mode is nearest, linear or cubic, found {mode}"))),
    };
    if mode != Mode::Nearest && !matches!(x.dtype(), F32 | F16 | BF16) {
        let text = format!("interpolation of {}, expected floats of at most 32 bits", x.dtype());
        return Err(Error::unsupported(text));
    }
    let padding = request.attrs.string("padding_mode", "zeros")?;
    let functions = places(mode, padding, request.attrs.int("align_corners", 0)? != 0)?;
    let unit = Unit::of(x.dtype())?;
    let count = mode.places();
    let mut params = vec![
        param("channels", *channels)?,
        param("n_grid", spots.iter().product())?,
        param("n_image", image.iter().product())?,
    ];
    let mut code = format!(
        "let plane = e / p.n_grid;\n\
         let spot = (plane / p.channels * p.n_grid + e % p.n_grid) * {axes}u;\nvar sum = 0.0;\n"
    );
    let (mut loops, mut row, mut weight) = (String::new(), "0u".to_owned(), String::new());
    for (k, &extent) in image.iter().enumerate() {
        params.push(param(format!("extent{k}"), extent)?);
        // The grid names the innermost axis first.
        code.push_str(&format!(
            "var at{k}: array<u32, 4>;\nvar weights{k}: array<f32, 4>;\n\
             places({}, f32(p.extent{k}), &at{k}, &weights{k});\n",
            of_grid.load("grid", &format!("(spot + {}u)", axes - 1 - k))
        ));
        loops.push_str(&format!(
            "for (var i{k} = 0u; i{k} < {count}u; i{k}++) {{\nif (at{k}[i{k}] == NONE) {{ continue; }}\n\
             let row{k} = ({row}) * p.extent{k} + at{k}[i{k}];\n"
        ));
        row = format!("row{k}");
        weight.push_str(&format!("weights{k}[i{k}] * "));
    }
    let at = format!("plane * p.n_image + {row}");
    let inmost = match mode {
        Mode::Nearest => format!("v = {};\n", unit.load("x", &format!("({at})"))),
        _ => {
            let number = Number::of(x.dtype(), request.device)?;
            format!("sum += {weight}{};\n", number.load("x", &format!("({at})")))
        }
    };
    code.push_str(&format!("{loops}{inmost}{}", "}\n".repeat(axes)));
    let of_places = axes as u64 * turns(count, 0);
    let of_element = of_places + (0..axes).fold(0, |inner, _| turns(count, inner));
    let mut build = Build::new(request);
    if n_out == 0 {
        return build.finish();
    }
    let grid = ("grid", of_grid.storage(), Slot::Input(1));
    if mode == Mode::Nearest {
        let buffers = vec![("x", unit.storage(), Slot::Input(0)), grid];
        let made = Made {
            name: "GridSample",
            buffers,
            params,
            functions: &functions,
            code: &code,
            turns: of_element,
        };
        unit.make(&mut build, Slot::Output(0), n_out, made)?;
        return build.finish();
    }
    let number = Number::of(x.dtype(), request.device)?;
    code.push_str("let r = sum;");
    params.push(param("n", n_out)?);
    build.add(ShaderStep {
        name: "GridSample",
        buffers: vec![
            ("x", number.storage(), Slot::Input(0)),
            grid,
            ("y", number.storage(), Slot::Output(0)),
        ],
        params,
        turns: number.width().turns(of_element),
        body: Body::Items {
            n: number.width().items(n_out as u64),
            functions: &format!("{functions}{}", number.functions()),
            each: &number.each("y", &code),
        },
    })?;
    build.finish()
}
