//! Concat and Split: the same copy, in one direction and the other.
//!
//! The joined tensor is a list of rows, and a row is one piece of each part after the other.

use super::cost;
use super::moved::*;
use crate::step::{Body, Build, ShaderStep, Slot};
use crate::target::Target;
use devbay_ops::descriptor;
use devbay_ops::read::Join;
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

fn concat(request: &Request<'_>) -> Result<Prepared> {
    let join = Join::of_concat(request)?;
    for i in 0..request.inputs.len() {
        extents(request.required_input(i)?)?;
    }
    extents(request.required_output(0)?)?;
    let mut build = Build::new(request);
    let row = join.row();
    if join.n_rows * row == 0 {
        return build.finish();
    }
    // In a single row pieces may end anywhere, as long as they begin at a unit.
    let dtype = request.required_input(0)?.dtype();
    let (unit, ratio) = Unit::of(dtype)?.widened(&join.runs);
    let filled: Vec<usize> = (0..join.runs.len()).filter(|&i| join.runs[i] > 0).collect();
    let mut offset = 0;
    for group in filled.chunks(PARTS_MAX) {
        let runs: Vec<i64> = group.iter().map(|&i| join.runs[i] / ratio).collect();
        let span = Span { unit, n_rows: join.n_rows, row: row / ratio, offset, runs };
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
    let join = Join::of_split(request)?;
    let input = request.required_input(0)?;
    extents(input)?;
    let mut build = Build::new(request);
    let (row, mut start) = (join.row(), 0);
    for (i, &run) in join.runs.iter().enumerate() {
        let part = Strided::new(&[join.n_rows, run], &[row, 1], start);
        part.copy(&mut build, input.dtype(), Slot::Input(0), Slot::Output(i))?;
        start += run;
    }
    build.finish()
}
