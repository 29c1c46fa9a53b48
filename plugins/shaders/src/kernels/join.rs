//! Concat and Split: the same copy, in one direction and the other.
//!
//! The joined tensor is a list of rows, and a row is one piece of each part after the other.

use super::cost;
use super::moved::*;
use crate::step::{Body, Build, ShaderStep, Slot};
use crate::target::Target;
use devbay_ops::descriptor;
use devbay_plugin_api::sdk::*;

type Request<'a> = PrepareRequest<'a, Target>;

const MOVED: TypeVar = TypeVar::of(MOVABLE);

/// Parts of a step: with the whole as many buffers as every device can bind.
const PARTS_MAX: usize = 7;

/// The kernels of this file.
pub const KERNELS: &[Kernel<Target>] = &[
    descriptor("Concat", 13, concat).types(&[MOVED]).cost(cost::moved),
    descriptor("Split", 18, split).types(&[MOVED, TypeVar::of(&[I64])]).cost(cost::moved),
];

/// How parts lie in the joined tensor.
struct Layout {
    n_rows: i64,
    /// Elements of each part's piece of a row.
    runs: Vec<i64>,
    /// Extents of the whole.
    whole: Vec<i64>,
}

impl Layout {
    fn of(parts: &[&[i64]], axis: usize) -> Result<Self> {
        let mut whole = parts[0].to_vec();
        let inner: i64 = whole[axis + 1..].iter().product();
        let mut joined = 0;
        for part in parts {
            let mut alike = part.to_vec();
            if let Some(extent) = alike.get_mut(axis) {
                *extent = whole[axis];
            }
            if alike != whole {
                return Err(Error::invalid(format!(
                    "parts of {part:?} and {whole:?} joined along axis {axis}"
                )));
            }
            joined += part[axis];
        }
        let runs = parts.iter().map(|part| part[axis] * inner).collect();
        let n_rows = whole[..axis].iter().product();
        whole[axis] = joined;
        Ok(Self { n_rows, runs, whole })
    }

    fn row(&self) -> i64 {
        self.runs.iter().sum()
    }
}

fn concat(request: &Request<'_>) -> Result<Prepared> {
    let first = request.required_input(0)?;
    let axis = match request.attrs.get("axis") {
        Some(AttrValue::Int(i)) => axis(*i, first.shape().len())?,
        _ => return Err(Error::invalid("the attribute axis is missing")),
    };
    let parts =
        (0..request.inputs.len()).map(|i| extents(request.required_input(i)?)).collect::<Result<Vec<_>>>()?;
    let layout = Layout::of(&parts, axis)?;
    expect_output(request, 0, &layout.whole)?;
    let mut build = Build::new(request);
    let row = layout.row();
    if layout.n_rows * row == 0 {
        return build.finish();
    }
    // Of one row it does not matter where its pieces end, as long as they begin at a unit.
    let (unit, ratio) = Unit::of(first.dtype())?.widened(&layout.runs);
    let filled: Vec<usize> = (0..parts.len()).filter(|&i| layout.runs[i] > 0).collect();
    let mut offset = 0;
    for group in filled.chunks(PARTS_MAX) {
        let runs: Vec<i64> = group.iter().map(|&i| layout.runs[i] / ratio).collect();
        let span = Span { unit, n_rows: layout.n_rows, row: row / ratio, offset, runs };
        span.join(&mut build, group, filled.len() > PARTS_MAX)?;
        offset += span.runs.iter().sum::<i64>();
    }
    build.finish()
}

/// Parts that one step joins, in units.
struct Span {
    unit: Unit,
    n_rows: i64,
    row: i64,
    /// Where the first begins in a row.
    offset: i64,
    runs: Vec<i64>,
}

impl Span {
    fn join(&self, build: &mut Build, inputs: &[usize], is_partial: bool) -> Result<()> {
        let (unit, n) = (self.unit, self.runs.len());
        let names: Vec<String> = (0..n).map(|k| format!("x{k}")).collect();
        let buffers = names.iter().zip(inputs);
        let mut buffers: Vec<_> =
            buffers.map(|(name, &i)| (name.as_str(), unit.storage(), Slot::Input(i))).collect();
        let mut params = Vec::new();
        let mut choice = String::new();
        let mut border = 0;
        for (k, &run) in self.runs.iter().enumerate() {
            let at = format!("row * p.run{k} + col - p.border{k}");
            params.push(param(format!("run{k}"), run)?);
            params.push(param(format!("border{k}"), border)?);
            border += run;
            let load = unit.load(&names[k], &at);
            choice.push_str(&match k + 1 < n {
                true => format!("if (col < p.border{}) {{ v = {load}; }} else ", k + 1),
                false => format!("{{ v = {load}; }}\n"),
            });
        }
        params.push(param("width", border)?);
        if !unit.is_packed() {
            params.extend([param("row", self.row)?, param("offset", self.offset)?]);
            buffers.push(("y", unit.storage(), Slot::Output(0)));
            let each = format!(
                "let row = i / p.width;\nlet col = i % p.width;\nvar v = {}();\n{choice}\
                 y[row * p.row + p.offset + col] = v;",
                unit.storage()
            );
            let body = Body::Items { n: (self.n_rows * border) as u64, functions: "", each: &each };
            return build.add(ShaderStep { name: "Concat", buffers, params, turns: 0, body });
        }
        // A word may hold elements of parts that other steps write.
        params.extend([param("row", self.row)?, param("offset", self.offset)?]);
        let before = if is_partial { format!("v = {};\n", unit.load("y", "e")) } else { String::new() };
        let code = format!(
            "{before}let row = e / p.row;\nlet col = e % p.row - p.offset;\nif (col < p.width) {{\n{choice}}}"
        );
        let made = Made { name: "Concat", buffers, params, functions: "", code: &code, turns: 0 };
        unit.make(build, Slot::Output(0), self.n_rows * self.row, made)
    }
}

fn split(request: &Request<'_>) -> Result<Prepared> {
    let input = request.required_input(0)?;
    let whole = extents(input)?;
    let axis = axis(request.attrs.int("axis", 0)?, whole.len())?;
    // Whether `split` or `num_outputs` says so: the host has worked the lengths out.
    let parts = (0..request.outputs.len())
        .map(|i| extents(request.required_output(i)?))
        .collect::<Result<Vec<_>>>()?;
    if parts.is_empty() {
        return Err(Error::invalid("no outputs"));
    }
    let layout = Layout::of(&parts, axis)?;
    if layout.whole != whole {
        return Err(Error::invalid(format!("outputs of {parts:?} from {whole:?} along axis {axis}")));
    }
    let mut build = Build::new(request);
    let (row, mut start) = (layout.row(), 0);
    for (i, &run) in layout.runs.iter().enumerate() {
        let part = Strided::new(&[layout.n_rows, run], &[row, 1], start);
        part.copy(&mut build, input.dtype(), Slot::Input(0), Slot::Output(i))?;
        start += run;
    }
    build.finish()
}
