//! Descends into If, Loop and Scan: the taken branch, or the first iteration whose results differ for equal values.

use super::Difference;
use super::measure::{self, converted};
use super::planned::{Planned, reads, run_tensors};
use super::scene::{Party, Scene};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::control::Sliced;
use devbay_core::exec::unit::Unit;
use devbay_core::exec::value::RunTensor;
use devbay_core::plan::extract::extract;
use devbay_core::plan::specialise::ScanLayout;
use devbay_core::program::{Node, Region, ValueId};
use devbay_core::tensor::{BOOL, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// One side of a control-flow node: the node, and the values that it reads.
struct Inside<'a> {
    /// Its name in the model.
    label: &'a str,
    planned: &'a Planned,
    node: &'a Node,
    values: HashMap<ValueId, Tensor>,
}

impl Inside<'_> {
    fn get(&self, id: Option<ValueId>) -> Option<Tensor> {
        let id = id?;
        self.values.get(&id).or_else(|| self.planned.program.constant(id)).cloned()
    }

    /// Returns a region as a unit, and the values that it captures, which follow its inputs.
    fn region(&self, region: &Region) -> Option<(Unit, Vec<Tensor>)> {
        let (program, captures) = extract(&self.planned.program, region);
        let captured = captures.iter().map(|&id| self.get(Some(id))).collect::<Option<_>>()?;
        Some((Unit::new(program, Arc::clone(self.planned.env())), captured))
    }
}

/// Finds the nodes that differ on their own inside the control-flow node that makes a value. Empty if the sides run
/// different control flow, or nothing inside differs.
///
/// # Errors
/// Errors of planning and running.
pub(super) fn descend(scene: &Scene<'_>, tag: ValueId) -> Result<Vec<Difference>> {
    let (Some(a), Some(b)) = (scene.planned(0), scene.planned(1)) else { return Ok(Vec::new()) };
    let node_of = |planned: &'_ Planned| planned.known(tag).and_then(|id| planned.maker(id)).cloned();
    let (Some(node_a), Some(node_b)) = (node_of(a), node_of(b)) else { return Ok(Vec::new()) };
    let source = scene.shared().source;
    let label = source.maker(tag).map_or_else(|| node_a.label(), |at| source.label(at));
    let is_control = !node_a.regions.is_empty() && node_a.op == node_b.op;
    let is_alike = node_a.regions.len() == node_b.regions.len() && node_a.inputs.len() == node_b.inputs.len();
    if !is_control || !is_alike {
        if !node_a.regions.is_empty() || !node_b.regions.is_empty() {
            scene.shared().note(format!("{label}: the sides run other control flow for it"));
        }
        return Ok(Vec::new());
    }
    let values_a = operands(scene, 0, a, &node_a, tag)?;
    let mut values_b = operands(scene, 1, b, &node_b, tag)?;
    // Where both sides have a value, use side a's.
    for (id, tensor) in &mut values_b {
        let same = b.tag(*id).and_then(|tag| values_a.get(&a.known(tag)?));
        if let Some(same) = same.and_then(|same| converted(same, tensor.dtype())) {
            *tensor = same;
        }
    }
    let sides = [
        Inside { label: &label, planned: a, node: &node_a, values: values_a },
        Inside { label: &label, planned: b, node: &node_b, values: values_b },
    ];
    for side in 0..2 {
        // The iterations run every node of it once more.
        if !scene.shared().budget[side].take(1) {
            return Ok(Vec::new());
        }
    }
    let found = match &*node_a.op.name {
        "If" => branch(scene, &sides)?,
        "Loop" => iterations(scene, &sides, Kind::Loop)?,
        _ => iterations(scene, &sides, Kind::Scan)?,
    };
    if found.is_empty() {
        scene.shared().note(format!("{label}: no node inside of it differs by itself"));
    }
    Ok(found)
}

/// Collects the operands of a control-flow node on a side, starting from side a's values.
fn operands(
    scene: &Scene<'_>,
    side: usize,
    planned: &Planned,
    node: &Node,
    tag: ValueId,
) -> Result<HashMap<ValueId, Tensor>> {
    let mut ids = reads(node);
    ids.retain(|id| planned.program.constant(*id).is_none());
    ids.sort_unstable();
    ids.dedup();
    let is_stop = |id: ValueId| planned.tag(id) != Some(tag) && scene.given(side, id).is_some();
    let made: Vec<ValueId> = ids.iter().copied().filter(|id| !is_stop(*id)).collect();
    let cone = planned.cone(&made, is_stop);
    let values = scene.alone(side, &cone, &made)?;
    let mut all: HashMap<ValueId, Tensor> = made.into_iter().zip(values).collect();
    for id in ids {
        if let (false, Some(tensor)) = (all.contains_key(&id), scene.given(side, id)) {
            all.insert(id, tensor);
        }
    }
    Ok(all)
}

fn branch(scene: &Scene<'_>, sides: &[Inside<'_>; 2]) -> Result<Vec<Difference>> {
    let condition = sides[0].get(sides[0].node.input(0)).and_then(|tensor| tensor.to_int());
    let Some(condition) = condition else { return Ok(Vec::new()) };
    let name = if condition != 0 { "then_branch" } else { "else_branch" };
    let regions = sides.each_ref().map(|side| side.node.region(name).and_then(|region| side.region(region)));
    let [Some((unit_a, a)), Some((unit_b, b))] = regions else { return Ok(Vec::new()) };
    let within = format!("{name} of {}", sides[0].label);
    inner(scene, [&unit_a, &unit_b], [a, b], within)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Loop,
    Scan,
}

/// Runs the bodies of both sides on side a's values, iteration by iteration, and descends into the first one that differs.
fn iterations(scene: &Scene<'_>, sides: &[Inside<'_>; 2], kind: Kind) -> Result<Vec<Difference>> {
    let none = || Ok(Vec::new());
    let node = sides[0].node;
    let body = &node.regions[0].1;
    let Some(other) = sides[1].node.regions.first().map(|(_, region)| region) else { return none() };
    let bodies = [sides[0].region(body), sides[1].region(other)];
    let [Some((unit_a, captured_a)), Some((unit_b, captured_b))] = bodies else { return none() };
    if body.inputs.len() != other.inputs.len() || body.outputs.len() != other.outputs.len() {
        scene.shared().note(format!("{}: the sides carry different values", sides[0].label));
        return none();
    }
    let operand = |i: usize| sides[0].get(node.input(i));
    let number = |i: usize| operand(i).and_then(|tensor| tensor.to_int());
    // Per iteration: the initial inputs, then the carried values.
    let (mut carried, scanned, n_iterations): (Vec<Tensor>, Vec<Sliced>, i64) = match kind {
        Kind::Loop => {
            let carried = (2..node.inputs.len()).map(operand).collect::<Option<_>>();
            let Some(carried) = carried else { return none() };
            (carried, Vec::new(), number(0).unwrap_or(i64::MAX))
        }
        Kind::Scan => {
            let layout = ScanLayout::of(node, body)?;
            let operands: Option<Vec<Tensor>> = (0..node.inputs.len()).map(operand).collect();
            let Some(mut states) = operands else { return none() };
            let scanned = states.split_off(layout.n_states);
            let scanned = scanned
                .into_iter()
                .enumerate()
                .map(|(i, tensor)| Sliced::new(tensor, layout.input_axes[i], layout.input_backwards[i]));
            let scanned: Vec<_> = scanned.collect::<Result<_>>()?;
            let n = scanned.iter().map(Sliced::count).min().unwrap_or(0);
            (states, scanned, n as i64)
        }
    };
    let mut goes_on = kind == Kind::Scan || number(1).is_none_or(|value| value != 0);
    let n_carried = carried.len();
    let mut iteration = 0;
    while goes_on && iteration < n_iterations {
        let mut inputs: Vec<Tensor> = match kind {
            Kind::Loop => {
                vec![Tensor::from_elements(&[], &[iteration])?, Tensor::from_bytes(BOOL, &[], &[1])?]
            }
            Kind::Scan => Vec::new(),
        };
        inputs.extend(carried.iter().cloned());
        for slices in &scanned {
            inputs.push(slices.get(iteration as usize)?.to_tensor()?);
        }
        let with = |captured: &[Tensor]| inputs.iter().chain(captured).cloned().collect::<Vec<_>>();
        let (inputs_a, inputs_b) = (with(&captured_a), with(&captured_b));
        let results_a = run(scene, &unit_a, &inputs_a)?;
        let results_b = run(scene, &unit_b, &inputs_b)?;
        let tolerance = scene.shared().tolerance;
        if results_a.iter().zip(&results_b).any(|(a, b)| measure::differ(a, b, tolerance).is_some()) {
            let within = format!("iteration {iteration} of {}", sides[0].label);
            let found = inner(scene, [&unit_a, &unit_b], [inputs_a, inputs_b], within)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        let mut results = results_a.into_iter();
        if kind == Kind::Loop {
            let condition = results.next().and_then(|tensor| tensor.to_int());
            goes_on = condition
                .ok_or_else(|| Error::new(ErrorKind::InvalidModel, "a loop whose body gives no condition"))?
                != 0;
        }
        carried = results.take(n_carried).collect();
        iteration += 1;
    }
    none()
}

fn run(scene: &Scene<'_>, unit: &Unit, inputs: &[Tensor]) -> Result<Vec<Tensor>> {
    let results = unit.run(run_tensors(inputs)?, scene.shared().options.cancel.as_ref())?;
    results.iter().map(RunTensor::to_tensor).collect()
}

/// Finds the nodes of a region that differ on their own, for given inputs of each side.
fn inner(
    scene: &Scene<'_>,
    units: [&Unit; 2],
    inputs: [Vec<Tensor>; 2],
    within: String,
) -> Result<Vec<Difference>> {
    let mut parties = Vec::with_capacity(2);
    for (unit, inputs) in units.into_iter().zip(inputs) {
        let types: Vec<_> = inputs.iter().map(Tensor::tensor_type).collect();
        let planned = Planned::of_unit(unit, &types)?;
        let given = planned.program.main.inputs.iter().copied().zip(inputs).collect();
        parties.push(Party::device(planned, given));
    }
    let parties = <[Party; 2]>::try_from(parties).unwrap_or_else(|_| unreachable!("two sides"));
    let mut path = scene.within().to_vec();
    path.push(within);
    Scene::new(scene.shared(), parties, path).run()
}
