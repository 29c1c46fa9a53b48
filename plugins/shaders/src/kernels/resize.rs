//! Resize: other extents for the same picture, element by element or interpolated.
//!
//! Every resized axis has a table of positions and weights, made in f64 when the kernel is prepared: what rounding
//! decides must not depend on a device. The nearest element is copied, whatever its type. Interpolation with few
//! weights is one step; with many it goes one axis at a time, those first that shrink most.

use super::cost;
use super::element::Width;
use super::elementwise::Number;
use super::moved::*;
use super::walk::dense_strides;
use crate::step::{Body, Build, Param, ShaderStep, Slot, turns};
use crate::target::Target;
use crate::template::wgsl;
use devbay_ops::descriptor;
use devbay_ops::read::{Axis, Filter, Resize, Samples};
use devbay_plugin_api::reserve;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

/// Elements that are weighed for one of the output in one step, at most.
const TAPS_MAX: usize = 16;
/// Weights along an axis that are written out in a shader.
const UNROLLED_MAX: usize = 4;
/// Planes of a thread, where so many threads are left.
const PLANES: i64 = 8;
const THREADS_MIN: i64 = 1 << 15;
/// Positions of an axis with their weights, at most.
const TABLE_MAX: usize = 1 << 24;
/// Scales with which positions are counted exactly.
const SCALES: std::ops::Range<f64> = 1e-9..1e9;
/// In a table: this position is not in the input.
const OUTSIDE: u32 = u32::MAX;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[descriptor("Resize", 19, prepare)
    .types(&[TypeVar::of(MOVABLE), TypeVar::of(&[F32]), TypeVar::of(&[I64])])
    .operands(&[0, 1, 1, 2], &[0])
    .inputs(1, 4)
    .cost(cost_resized)
    .doc("nearest for every dtype; linear and cubic for f32, f16 and bf16")];

fn cost_resized(request: &Request<'_>) -> Result<Cost> {
    let n = request.required_output(0)?.n_elements() as u64;
    let flops = match request.attrs.string("mode", "nearest")? {
        "nearest" => 0,
        "linear" => 8 * n,
        _ => 16 * n,
    };
    Ok(cost::of(request, flops))
}

fn prepare(request: &Request<'_>) -> Result<Prepared> {
    for tensor in [request.required_input(0)?, request.required_output(0)?] {
        extents(tensor)?;
    }
    let resize = Resize::of(request)?;
    if let Some(axis) = resize.axes.iter().find(|axis| !SCALES.contains(&axis.scale)) {
        return Err(Error::unsupported(format!("a scale of {}", axis.scale)));
    }
    let samples = resize.samples(TABLE_MAX)?;
    let dim = |(axis, samples): (&Axis, Option<Samples>)| Dim {
        from: axis.from as i64,
        to: axis.to as i64,
        samples,
    };
    let dims: Vec<Dim> = resize.axes.iter().zip(samples).map(dim).collect();
    let dtype = request.required_input(0)?.dtype();
    let mut build = Build::new(request);
    if dims.iter().all(|dim| dim.to > 0) {
        match (resize.method.filter, dtype) {
            (Filter::Nearest(_), _) => nearest(&mut build, dtype, &dims, resize.outside)?,
            (_, F32 | F16 | BF16) => {
                interpolate(&mut build, Number::of(dtype, request.device)?, dtype, &dims, resize.outside)?;
            }
            (_, dtype) => {
                let text = format!("interpolation of {dtype}, expected floats of at most 32 bits");
                return Err(Error::unsupported(text));
            }
        }
    }
    build.finish()
}

/// An axis, or several that stay as they are.
struct Dim {
    from: i64,
    to: i64,
    samples: Option<Samples>,
}

/// Data by which a step finds the elements of the input.
///
/// The axes before the first that is resized are planes: a thread makes one position of several planes, so that tables
/// are read and positions taken apart once for all of them.
struct Nest {
    /// WGSL statements that declare `base`, of the axes that stay, and `c{k}` of each axis that is resized.
    code: String,
    /// WGSL expression: whether an element is outside of the input; empty if none is.
    outside: String,
    params: Vec<(String, Param)>,
    table: Vec<u32>,
    /// The axes that are resized, by their place, and the elements that each weighs.
    resized: Vec<(usize, usize)>,
    n_planes: i64,
    /// Elements of a plane of the output.
    plane: i64,
}

impl Nest {
    /// For these axes, whose innermost one that stays is counted in units of `ratio` elements.
    fn of(dims: &[&Dim], ratio: i64) -> Result<Self> {
        let strides = dense_strides(&dims.iter().map(|dim| dim.from).collect::<Vec<_>>());
        let n_outer = dims.iter().take_while(|dim| dim.samples.is_none()).count();
        let plane_from: i64 = dims[n_outer..].iter().map(|dim| dim.from).product();
        let plane = dims[n_outer..].iter().map(|dim| dim.to).product::<i64>() / ratio;
        let mut nest = Self {
            code: "var rest = i;\nvar base = 0u;\n".to_owned(),
            outside: String::new(),
            params: vec![param("plane_from", plane_from / ratio)?, param("plane", plane)?],
            table: Vec::new(),
            resized: Vec::new(),
            n_planes: dims[..n_outer].iter().map(|dim| dim.to).product(),
            plane,
        };
        // Axes that stay and are side by side are one.
        let mut end = dims.len();
        while end > n_outer {
            let is_kept = |dim: &&&Dim| dim.samples.is_none();
            let n_kept = dims[..end].iter().rev().take_while(is_kept).count().max(1);
            let k = end - n_kept;
            let mut to: i64 = dims[k..end].iter().map(|dim| dim.to).product();
            let mut stride = strides[end - 1];
            if end == dims.len() && ratio > 1 {
                to /= ratio;
            } else {
                stride /= ratio;
            }
            nest.params.push(param(format!("d{k}"), to)?);
            nest.params.push(param(format!("s{k}"), stride)?);
            nest.code.push_str(&format!("let c{k} = rest % p.d{k};\nrest = rest / p.d{k};\n"));
            match &dims[k].samples {
                None => nest.code.push_str(&format!("base += c{k} * p.s{k};\n")),
                Some(samples) => nest.resize(k, samples)?,
            }
            end = k;
        }
        nest.resized.reverse();
        Ok(nest)
    }

    /// Adds the table of an axis: its positions, then its weights.
    fn resize(&mut self, k: usize, samples: &Samples) -> Result<()> {
        self.resized.push((k, samples.taps));
        self.params.push(param(format!("at{k}"), self.table.len() as i64)?);
        let outside = samples.outside.iter().cycle();
        let positions = samples.positions.iter().zip(outside);
        let positions = positions.map(|(&at, &outside)| if outside { OUTSIDE } else { at });
        reserve::extend(&mut self.table, positions, "a table of positions")?;
        self.params.push(param(format!("weights{k}"), self.table.len() as i64)?);
        let weights = samples.weights.iter().map(|weight| weight.to_bits());
        reserve::extend(&mut self.table, weights, "a table of weights")?;
        self.params.push(param(format!("taps{k}"), samples.taps as i64)?);
        if samples.outside.contains(&true) {
            let or = if self.outside.is_empty() { "" } else { " || " };
            self.outside.push_str(&format!("{or}table[p.at{k} + c{k}] == {OUTSIDE}u"));
        }
        Ok(())
    }

    /// Adds the step: `before` is done once for all planes, `each` sets `v` from `base` in every plane, with `of_plane`
    /// turns of loops.
    fn make(
        self,
        build: &mut Build,
        unit: Unit,
        slots: [Slot; 2],
        [before, each]: [&str; 2],
        of_plane: u64,
    ) -> Result<()> {
        let [from, to] = slots;
        let table = build.table(&self.table);
        // Several planes a thread only if there are enough threads even so.
        let per_thread = match self.n_planes * self.plane / PLANES >= THREADS_MIN {
            true => PLANES.min(self.n_planes),
            false => 1,
        };
        let mut params = self.params;
        params.extend([param("n_planes", self.n_planes)?, param("per_thread", per_thread)?]);
        let (place, ty) = (self.code, unit.storage());
        let each = wgsl!("resize/planes.wgsl", place, before, type = ty, value = each);
        let n = self.plane * ((self.n_planes + per_thread - 1) / per_thread);
        build.add(ShaderStep {
            name: "Resize",
            buffers: vec![("x", unit.storage(), from), ("table", "u32", table), ("y", unit.storage(), to)],
            params,
            turns: turns(per_thread as u64, of_plane),
            body: Body::Items { n: n as u64, functions: "", each: &each },
        })
    }
}

fn nearest(build: &mut Build, dtype: DType, dims: &[Dim], outside: f32) -> Result<()> {
    let n: i64 = dims.iter().map(|dim| dim.to).product();
    let run: i64 = dims.iter().rev().take_while(|dim| dim.samples.is_none()).map(|dim| dim.to).product();
    let is_kept = dims.iter().all(|dim| dim.samples.is_none());
    let slots = [Slot::Input(0), Slot::Output(0)];
    if is_kept {
        let [from, to] = slots;
        return Strided::new(&[n], &[1], 0).copy(build, dtype, from, to);
    }
    let any_outside = dims.iter().filter_map(|dim| dim.samples.as_ref()).any(|s| s.outside.contains(&true));
    let element = Unit::of(dtype)?;
    let (unit, ratio) = if any_outside { (element, 1) } else { element.widened(&[run]) };
    let mut nest = Nest::of(&dims.iter().collect::<Vec<_>>(), ratio)?;
    let mut found = String::new();
    for (k, _) in &nest.resized {
        found.push_str(&format!("base += table[p.at{k} + c{k}] * p.s{k};\n"));
    }
    let mut code = if unit.is_packed() {
        // Neighbours in a word may be of two planes.
        format!("base += rest * p.plane_from;\nv = {};\n", unit.load("x", "base"))
    } else {
        "v = x[plane];\n".to_owned()
    };
    let mut before = found;
    if any_outside {
        let [low, high] = encoded(dtype, outside)?;
        let value = if unit.bytes() == 8 { "vec2<u32>(p.outside, p.outside_high)" } else { "p.outside" };
        nest.params.push(("outside".to_owned(), Param::U32(low)));
        nest.params.push(("outside_high".to_owned(), Param::U32(high)));
        before = format!("let is_outside = {};\nif (!is_outside) {{\n{before}}}\n", nest.outside);
        code = format!("if (is_outside) {{ v = {value}; }} else {{\n{code}}}\n");
    }
    if !unit.is_packed() {
        return nest.make(build, unit, slots, [&before, &code], 0);
    }
    let table = build.table(&nest.table);
    let code = format!("{{\nlet i = e;\n{}{before}{code}}}", nest.code);
    let buffers = vec![("x", unit.storage(), Slot::Input(0)), ("table", "u32", table)];
    let made =
        Made { name: "Resize nearest", buffers, params: nest.params, functions: "", code: &code, turns: 0 };
    unit.make(build, Slot::Output(0), n / ratio, made)
}

/// A number in a dtype, as one or two words.
fn encoded(dtype: DType, value: f32) -> Result<[u32; 2]> {
    // Casts from floats end at an integer's limits.
    Ok(match dtype {
        F32 => [value.to_bits(), 0],
        F64 => words(f64::from(value).to_bits()),
        I64 => words(value as i64 as u64),
        U64 => words(value as u64),
        I32 => [value as i32 as u32, 0],
        U32 => [value as u32, 0],
        I16 => [u32::from(value as i16 as u16), 0],
        U16 => [u32::from(value as u16), 0],
        I8 => [u32::from(value as i8 as u8), 0],
        U8 => [u32::from(value as u8), 0],
        BOOL => [u32::from(value != 0.0), 0],
        // Values that 8 bits of a fraction hold; others would have to be rounded.
        BF16 if value.to_bits() & 0xffff == 0 => [value.to_bits() >> 16, 0],
        F16 => {
            let bits = value.to_bits();
            let exponent = i64::from(bits >> 23 & 0xff) - 112;
            let is_exact = (1..31).contains(&exponent) && bits & 0x1fff == 0;
            match (value == 0.0, is_exact) {
                (true, _) => [bits >> 16, 0],
                (false, true) => [bits >> 16 & 0x8000 | (exponent as u32) << 10 | bits >> 13 & 0x3ff, 0],
                (false, false) => {
                    return Err(Error::unsupported(format!("{value} outside of an image of f16")));
                }
            }
        }
        dtype => return Err(Error::unsupported(format!("{value} outside of an image of {dtype:?}"))),
    })
}

fn words(bits: u64) -> [u32; 2] {
    [bits as u32, (bits >> 32) as u32]
}

/// One step that weighs elements along all resized axes of `dims`: few along each, or any number along one.
fn weigh(build: &mut Build, dims: &[&Dim], outside: f32, ends: [End; 2]) -> Result<()> {
    let mut nest = Nest::of(dims, 1)?;
    let [from, to] = ends;
    let load = |at: &str| match from.packed {
        None => format!("bitcast<f32>(x[{at}])"),
        Some(number) => number.load("x", at),
    };
    let (mut before, mut of_element) = (String::new(), 0);
    let mut each;
    if let [(k, taps)] = nest.resized[..]
        && taps > UNROLLED_MAX
    {
        of_element = turns(taps as u64, 0);
        each = wgsl!("resize/line.wgsl", k, load = load("at"));
    } else {
        for &(k, taps) in &nest.resized {
            for t in 0..taps {
                before.push_str(&format!(
                    "let a{k}_{t} = table[p.at{k} + {t}u * p.d{k} + c{k}] * p.s{k};\n\
                     let w{k}_{t} = bitcast<f32>(table[p.weights{k} + {t}u * p.d{k} + c{k}]);\n"
                ));
            }
        }
        each = format!("v = bitcast<u32>({});\n", weighed(&nest.resized, "plane", &load));
    }
    if !nest.outside.is_empty() {
        nest.params.push(("outside".to_owned(), Param::U32(outside.to_bits())));
        before.push_str(&format!("let is_outside = {};\n", nest.outside));
        each = format!("if (is_outside) {{ v = p.outside; }} else {{\n{each}}}\n");
    }
    let Some(number) = to.packed else {
        return nest.make(build, Unit::One(Width::B4), [from.slot, to.slot], [&before, &each], of_element);
    };
    // Neighbours in a word may be of two planes.
    let n: i64 = nest.n_planes * nest.plane;
    let table = build.table(&nest.table);
    let code = format!(
        "{{\nlet i = e;\n{}{before}let plane = base + rest * p.plane_from;\n{each}}}\n\
         let r = bitcast<f32>(v);",
        nest.code
    );
    let mut params = nest.params;
    params.push(param("n", n)?);
    build.add(ShaderStep {
        name: "Resize",
        buffers: vec![("x", "u32", from.slot), ("table", "u32", table), ("y", "u32", to.slot)],
        params,
        turns: number.width().turns(of_element),
        body: Body::Items {
            n: number.width().items(n as u64),
            functions: number.functions(),
            each: &number.each("y", &code),
        },
    })
}

/// Where a step reads or writes: f32, or narrower numbers.
#[derive(Clone)]
struct End {
    slot: Slot,
    packed: Option<Number>,
}

/// WGSL expression for the weighed sum along axes, from a position on.
fn weighed(axes: &[(usize, usize)], at: &str, load: &dyn Fn(&str) -> String) -> String {
    let Some((&(k, taps), inner)) = axes.split_first() else {
        return load(at);
    };
    let term = |t: usize| format!("w{k}_{t} * ({})", weighed(inner, &format!("{at} + a{k}_{t}"), load));
    (0..taps).map(term).collect::<Vec<_>>().join(" + ")
}

fn interpolate(build: &mut Build, number: Number, dtype: DType, dims: &[Dim], outside: f32) -> Result<()> {
    let packed = (dtype != F32).then_some(number);
    let [input, output] = [Slot::Input(0), Slot::Output(0)].map(|slot| End { slot, packed });
    let n: i64 = dims.iter().map(|dim| dim.to).product();
    let mut order: Vec<usize> = (0..dims.len()).filter(|&k| dims[k].samples.is_some()).collect();
    if order.is_empty() {
        return Strided::new(&[n], &[1], 0).copy(build, dtype, input.slot, output.slot);
    }
    let taps: Vec<usize> = dims.iter().filter_map(|dim| dim.samples.as_ref()).map(|s| s.taps).collect();
    let n_taps = taps.iter().fold(1, |n: usize, &t| n.saturating_mul(t));
    let is_small = n_taps <= TAPS_MAX && taps.iter().all(|&t| t <= UNROLLED_MAX);
    if order.len() == 1 || is_small {
        return weigh(build, &dims.iter().collect::<Vec<_>>(), outside, [input, output]);
    }
    // Those that shrink most come first, then the innermost, so that little lies between the steps.
    let growth = |k: usize| dims[k].to as f64 / dims[k].from as f64;
    order.sort_by(|&a, &b| growth(a).total_cmp(&growth(b)).then(b.cmp(&a)));
    let mut now: Vec<i64> = dims.iter().map(|dim| dim.from).collect();
    let mut from = input;
    for (step, &k) in order.iter().enumerate() {
        let kept = |extents: &[i64]| {
            let extent = count(extents);
            Dim { from: extent, to: extent, samples: None }
        };
        let (outer, inner) = (kept(&now[..k]), kept(&now[k + 1..]));
        now[k] = dims[k].to;
        let to = match step + 1 < order.len() {
            true => End { slot: build.scratch(4 * count(&now).min(COUNT_MAX) as u64), packed: None },
            false => output.clone(),
        };
        weigh(build, &[&outer, &dims[k], &inner], outside, [from, to.clone()])?;
        from = to;
    }
    Ok(())
}
