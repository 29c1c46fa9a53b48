//! The first node whose results differ between two ways to run a model.
//!
//! Each side runs the model twice: once undisturbed, and once with extra outputs for the values that both sides still have
//! after their passes, the *borders*. Values are tracked through passes by their names, which are made unique first
//! (`source.rs`). Where the sides differ at a border, the nodes between it and the preceding borders run alone on both sides
//! with one side's inputs (`scene.rs`). A node is reported only if it differs on its own, so no node is blamed for its
//! inputs. If, Loop and Scan are entered with the values of the differing iteration (`descend.rs`).
//!
//! The extra outputs are added after the passes and so change none of them. They may change how memory is reused and which
//! nodes a whole-program compiler fuses. So the outputs of the undisturbed runs are compared too, and the report says if
//! only they differ.

#![deny(unsafe_code)]

mod alone;
mod descend;
mod measure;
mod planned;
mod scene;
mod source;

pub use alone::Alone;
pub use measure::{Measured, Worst, differ};

use crate::compare::Tolerance;
use crate::model::Model;
use crate::seed::RunSeed;
use devbay_core::Tensor;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::cancel::Cancel;
use devbay_core::kernel::Numerics;
use devbay_core::plan::{Placement, PlanOptions};
use devbay_core::program::{Program, Value};
use devbay_core::tensor::{BF16, DType, F16, F32};
use planned::Planned;
use scene::{Budget, Party, Scene, Shared};
use serde::Serialize;
use source::Source;
use std::cell::RefCell;

/// One of the two sides.
#[derive(Clone)]
pub enum Side {
    /// A way to run the model.
    Device(Box<OnDevice>),
    /// Values that another program computed, by their names in the model: its outputs, and any others.
    Values(Vec<(String, Tensor)>),
}

/// A way to run the model: devices and options of plans.
#[derive(Clone)]
pub struct OnDevice {
    /// Devices that nodes may run on.
    pub placement: Placement,
    /// Options of plans.
    pub plans: PlanOptions,
}

/// Options of a comparison.
#[derive(Clone)]
pub struct Options {
    /// Allowed difference as a share of the largest value; None: 1e-4, and more if a side computes in 16-bit floats.
    pub relative: Option<f64>,
    /// Term added to that share; None: 1e-5, and more for 16-bit floats.
    pub absolute: Option<f64>,
    /// Maximum number of reported nodes.
    pub nodes_max: usize,
    /// Maximum bytes of one side's values that are kept at once. A larger model runs in parts, still running each node once.
    pub kept_bytes: usize,
    /// Ends the comparison between launches when set.
    pub cancel: Option<Cancel>,
}

impl Default for Options {
    fn default() -> Self {
        Self { relative: None, absolute: None, nodes_max: 1, kept_bytes: 1 << 30, cancel: None }
    }
}

/// Results of a comparison.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Nodes that differ by themselves, in the order of the model.
    pub differences: Vec<Difference>,
    /// Outputs of the undisturbed runs that differ.
    pub outputs: Vec<Compared>,
    /// Values that both sides have.
    pub n_compared: usize,
    /// Number of them that differ.
    pub n_differ: usize,
    /// Number of differing values that agree on equal inputs and so are not reported. Values after the last reported node
    /// are not examined.
    pub n_explained: usize,
    /// Values that only one side has, on the side with more of them: inside the other's fused ops, or missing from a file.
    pub n_within: usize,
    /// Whole runs of each side: undisturbed, and with extra outputs.
    pub whole_runs: [u32; 2],
    /// Nodes that each side ran again on their own, as shares of a run.
    pub share_again: [f64; 2],
    /// The tolerance: relative, absolute.
    pub tolerance: [f64; 2],
    /// Checks that could not be made, with reasons.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns the tolerance of the comparison.
    pub fn tolerance(&self) -> Tolerance {
        let [relative, absolute] = self.tolerance;
        Tolerance { relative, absolute }
    }
}

/// A value that differs.
#[derive(Clone, Debug, Serialize)]
pub struct Compared {
    /// Its name.
    pub name: String,
    /// Its difference.
    #[serde(flatten)]
    pub measured: Measured,
}

/// A node that differs on its own.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The enclosing control flow, outermost first: node, and iteration or branch.
    pub within: Vec<String>,
    /// Name and op of the node that makes the value.
    pub node: String,
    /// Nodes of the model between this border and the preceding ones, by name and op; `node` is the last of them.
    pub nodes: Vec<String>,
    /// The value.
    pub value: String,
    /// Difference of its results for equal inputs.
    pub alone: Measured,
    /// Difference of its results in the run.
    pub in_run: Measured,
    /// Nodes that each side runs for it, in its own program.
    pub ran: [Vec<String>; 2],
    /// The node as a model of its own, with its inputs; None if extracting it failed.
    #[serde(skip)]
    pub model: Option<Alone>,
}

/// Finds the first nodes whose results differ. `inputs` are the model's, by name.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for inputs that are missing or do not fit; [`ErrorKind::InvalidArgument`] for a file with no
/// values of the model; errors of planning and running, with the side in the message.
pub fn diff(
    model: &Model,
    sides: [&Side; 2],
    inputs: &[(String, Tensor)],
    options: &Options,
) -> Result<Report> {
    let source = Source::of(model.program());
    let inputs = in_order(model.program(), inputs)?;
    let tolerance = tolerance(sides, options);
    let named = Model::from_program(source.program.clone());
    let mut whole = [None, None];
    let mut parties = Vec::with_capacity(2);
    for (i, side) in sides.into_iter().enumerate() {
        let letter = ["a", "b"][i];
        parties.push(match side {
            Side::Values(values) => Party::values(source.known(values)),
            Side::Device(on) => {
                let (planned, outputs) =
                    whole_run(&named, on, &inputs, options).map_err(|e| of_side(e, i))?;
                whole[i] = Some(outputs);
                let given = planned.program.main.inputs.iter().copied().zip(inputs.iter().cloned()).collect();
                Party::device(planned, given)
            }
        });
        if let (Side::Values(values), Some(party)) = (side, parties.last())
            && party.is_empty()
        {
            let names: Vec<&str> = values.iter().map(|(name, _)| name.as_str()).collect();
            let text = format!(
                "side {letter}: the model has no value of these names: {}; its outputs are {}",
                names.join(", "),
                source.output_names().join(", ")
            );
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        }
    }
    let [a, b] = <[Party; 2]>::try_from(parties).unwrap_or_else(|_| unreachable!("two sides"));
    let mut report = Report {
        whole_runs: [&a, &b].map(|party| if party.planned().is_some() { 2 } else { 0 }),
        tolerance: [tolerance.relative, tolerance.absolute],
        ..Report::default()
    };
    report.outputs = outputs_that_differ(&source, &whole, [&a, &b], tolerance);
    let budget = [&a, &b].map(Budget::of);
    let shared = Shared { source: &source, tolerance, options, report: RefCell::new(report), budget };
    let found = Scene::new(&shared, [a, b], Vec::new()).run()?;
    let (mut report, budget) = (shared.report.into_inner(), shared.budget);
    report.share_again = budget.map(|budget| budget.share());
    report.differences = found;
    if report.differences.is_empty() && report.n_differ == 0 && !report.outputs.is_empty() {
        report.notes.push(
            "outputs differ only while no value is brought out: look at how memory is reused, or at what a compiler of whole \
             programs fuses"
                .to_owned(),
        );
    }
    Ok(report)
}

/// Returns one side's program after all passes, and the outputs of an undisturbed run.
fn whole_run(
    model: &Model,
    on: &OnDevice,
    inputs: &[Tensor],
    options: &Options,
) -> Result<(Planned, Vec<Tensor>)> {
    let unit = model.placed(&on.placement, on.plans.clone())?;
    let types: Vec<_> = inputs.iter().map(Tensor::tensor_type).collect();
    let planned = Planned::of_unit(&unit, &types)?.with_outputs(&model.program().main.outputs);
    let outputs = planned.run_whole(inputs, options.cancel.as_ref())?;
    Ok((planned, outputs))
}

/// Returns the outputs of the undisturbed runs that differ; of a file, only those that it has.
fn outputs_that_differ(
    source: &Source,
    whole: &[Option<Vec<Tensor>>; 2],
    parties: [&Party; 2],
    tolerance: Tolerance,
) -> Vec<Compared> {
    let mut differ = Vec::new();
    for (i, &id) in source.program.main.outputs.iter().enumerate() {
        let of = |side: usize| match &whole[side] {
            Some(outputs) => outputs.get(i),
            None => parties[side].value(id),
        };
        let (Some(a), Some(b)) = (of(0), of(1)) else { continue };
        if let Some(measured) = measure::differ(a, b, tolerance) {
            differ.push(Compared { name: source.name(id), measured });
        }
    }
    differ
}

/// Adds the side to an error.
fn of_side(error: Error, side: usize) -> Error {
    error.on_device(["of side a", "of side b"][side])
}

/// Returns the inputs in the program's order; random numbers have the same seed on both sides.
fn in_order(program: &Program, inputs: &[(String, Tensor)]) -> Result<Vec<Tensor>> {
    let find = |value: &Value| {
        let found = inputs.iter().find(|(name, _)| **name == *value.name);
        let missing = || format!("input `{}` is missing", value.name);
        let (_, tensor) = found.ok_or_else(|| Error::new(ErrorKind::InvalidInput, missing()))?;
        if let Some(ty) = value.ty.as_ref().filter(|ty| !ty.takes(tensor.dtype(), tensor.shape())) {
            let text = format!("input `{}` is {}, expected {ty}", value.name, tensor.tensor_type());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(tensor.clone())
    };
    let known = |name: &String| program.given_inputs().iter().any(|&id| *program.value(id).name == **name);
    if let Some((name, _)) = inputs.iter().find(|(name, _)| !known(name)) {
        return Err(Error::new(ErrorKind::InvalidInput, format!("the model has no input `{name}`")));
    }
    let given = program.given_inputs().iter().map(|&id| find(program.value(id)));
    let seed = program.seed_input().map(|_| RunSeed::new(0, 0).tensor());
    given.chain(seed).collect()
}

/// Returns the requested tolerance, or one for the least precise floats that a side computes in.
fn tolerance(sides: [&Side; 2], options: &Options) -> Tolerance {
    let least = |side: &Side| match side {
        Side::Values(_) => F32,
        Side::Device(on) => match (on.plans.narrow.map(|narrowing| narrowing.to()), on.plans.numerics) {
            (Some(narrow), _) => narrow,
            (None, Numerics::Strict) => F32,
            (None, Numerics::Tf32 | Numerics::F16) => F16,
            (None, Numerics::Bf16) => BF16,
        },
    };
    // Allows a few roundings of the type; each device sums f32 in a different order.
    let scale = |dtype: DType| match dtype {
        BF16 => 600.0,
        F16 => 80.0,
        _ => 1.0,
    };
    let scale = sides.map(|side| scale(least(side))).into_iter().fold(1.0, f64::max);
    Tolerance {
        relative: options.relative.unwrap_or(1e-4 * scale),
        absolute: options.absolute.unwrap_or(1e-5 * scale),
    }
}
