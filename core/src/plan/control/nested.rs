//! Control flow inside a section: If and Loop as one step each, their regions planned once.
//!
//! If a device works inline in memory that the host reads, and all types of a region are known, the region is a
//! section of its own. Its references are written into those of the section around it: its inputs and results lie
//! where the surrounding values lie, and its arena is a workspace. Nothing is looked up, allocated or copied when it
//! runs; the values that a Loop carries change places between iterations (`exec/nested.rs`).
//!
//! If several devices take part, or an asynchronous one, or running side by side is worth it, the regions are tasks of
//! the section (`regions.rs`). The rest is a stage of the plan: types that change from iteration to iteration, and
//! results that are collected an unknown number of times.

use super::extract::extract;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::cost::feedback::{Cost, CostFrom};
use crate::plan::launches;
use crate::plan::order::tasks::Policy;
use crate::plan::place::choose::{Chooser, NodeWork};
use crate::plan::section::Section;
use crate::plan::{Env, PlanOptions};
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{BOOL, DType, I64, TensorType};
use std::sync::Arc;

/// References that a section may have because of loops within loops, each of which needs three copies of its body's.
const REFS_MAX: usize = 1 << 20;

/// Number of iterations assumed for a loop with an unknown trip count.
const ITERATIONS_GUESS: f64 = 16.0;

/// A control-flow node that becomes a step.
#[derive(Clone)]
pub struct Inlined {
    /// Its op, for reports.
    pub op: String,
    /// The kind of control flow.
    pub kind: Kind,
    /// Its regions: `then` and `else`, or the body.
    pub regions: Vec<InlinedRegion>,
}

/// Kinds of control flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// One of two regions.
    If,
    /// A region, again and again.
    Loop,
}

/// A region as a section.
#[derive(Clone)]
pub struct InlinedRegion {
    /// Its plan: one straight line.
    pub section: Arc<Section>,
    /// For each input of the section, which of the region's inputs and captures it is.
    pub operands: Vec<usize>,
    /// Values of the surrounding program that follow the region's own inputs.
    pub captures: Vec<ValueId>,
}

impl InlinedRegion {
    fn cost_ns(&self) -> f64 {
        self.section.costs_ns.iter().map(|&cost| f64::from(cost)).sum()
    }
}

impl Inlined {
    /// Nanoseconds that the launches of a region would gain at best if they ran side by side.
    pub fn gain_ns(&self) -> f64 {
        let gain = |region: &InlinedRegion| region.cost_ns() - region.section.longest_path_ns;
        self.regions.iter().map(gain).fold(0.0, f64::max)
    }

    /// Operations of the largest of its regions, once.
    pub fn flops(&self) -> u64 {
        self.regions.iter().map(|region| region.section.flops.iter().sum()).max().unwrap_or(0)
    }

    /// Returns the expected cost of the step: measured where all that it runs is.
    pub fn cost(&self, program: &Program, node: &Node) -> Cost {
        let regions = self.regions.iter().map(InlinedRegion::cost_ns);
        let ns = match self.kind {
            Kind::If => regions.fold(0.0, f64::max),
            Kind::Loop => regions.sum::<f64>() * trips(program, node),
        };
        let steps = || self.regions.iter().flat_map(|region| &region.section.costs_from);
        let is_measured = steps().next().is_some() && steps().all(|&from| from == CostFrom::Measurement);
        Cost { ns, from: if is_measured { CostFrom::Measurement } else { CostFrom::Estimate } }
    }
}

/// Returns the expected number of times that a Loop or Scan runs its body.
pub(in crate::plan) fn trips(program: &Program, node: &Node) -> f64 {
    let n = match &*node.op.name {
        "Scan" => {
            let scanned =
                node.inputs.last().copied().flatten().and_then(|id| known(program, id)?.known_shape());
            scanned.and_then(|shape| Some(*shape.first()? as f64))
        }
        _ => node.input(0).and_then(|id| Some(program.constant(id)?.to_int()?.max(0) as f64)),
    };
    n.unwrap_or(ITERATIONS_GUESS)
}

/// A control-flow node as a step, and the device that it runs on; None if it has to be a stage. Its nodes are asked of
/// `first` before the others.
///
/// # Errors
/// As [`launches::plan`], for a region whose nodes no kernel takes.
pub fn inline(
    program: &Program,
    node: &Node,
    env: &Env,
    first: Option<usize>,
) -> Result<Option<(usize, Inlined)>> {
    if !env.sites_of(node).any(|site| env.works_in_host_memory(site)) {
        return Ok(None);
    }
    let Some((kind, regions)) = of_fixed_types(program, node) else {
        return Ok(None);
    };
    let mut planned = Vec::new();
    // A step has one stream: all of its launches are on one device.
    let mut home = None;
    for region in regions {
        match plan_region(program, region, env, first, &mut home)? {
            Some(region) => planned.push(region),
            None => return Ok(None),
        }
    }
    let site = home.or(first).unwrap_or(env.sites_of(node).start);
    if !env.works_in_host_memory(site) {
        return Ok(None);
    }
    // A loop's references come three times, once for each place that its carried values may be in.
    let copies = if kind == Kind::Loop { 3 } else { 1 };
    let n_refs: usize = planned.iter().map(|region| region.section.refs.len()).sum();
    Ok((n_refs <= REFS_MAX / copies)
        .then_some((site, Inlined { op: node.op.to_string(), kind, regions: planned })))
}

/// An If or a Loop of known types that stay the same, and collects nothing: its kind, and its regions, `then` first.
pub(in crate::plan) fn of_fixed_types<'a>(
    program: &Program,
    node: &'a Node,
) -> Option<(Kind, Vec<&'a Region>)> {
    let (kind, names): (_, &[&str]) = match &*node.op.name {
        "If" => (Kind::If, &["then_branch", "else_branch"]),
        "Loop" => (Kind::Loop, &["body"]),
        _ => return None,
    };
    let region = |name| node.regions.iter().find(|(known, _)| &**known == name).map(|(_, region)| region);
    let regions: Vec<&Region> = names.iter().map(|&name| region(name)).collect::<Option<_>>()?;
    let fits = match kind {
        Kind::If => {
            node.input(0).is_some_and(|condition| is_scalar(program, condition, BOOL))
                && regions.iter().all(|region| same_types(program, &region.outputs, &node.outputs))
        }
        Kind::Loop => loop_fits(program, node, regions[0]),
    };
    fits.then_some((kind, regions))
}

pub(in crate::plan) fn known(program: &Program, id: ValueId) -> Option<&TensorType> {
    program.value(id).ty.as_ref().filter(|ty| ty.known_shape().is_some())
}

/// Returns whether a region's results have the types of its node's.
fn same_types(program: &Program, inner: &[ValueId], outer: &[Option<ValueId>]) -> bool {
    inner.len() == outer.len()
        && inner.iter().zip(outer).all(|(&inner, outer)| {
            let inner = known(program, inner);
            inner.is_some() && outer.is_none_or(|outer| known(program, outer) == inner)
        })
}

/// Returns whether a value is one element of a type: the step reads and writes it as that.
pub(in crate::plan) fn is_scalar(program: &Program, id: ValueId, dtype: DType) -> bool {
    let ty = known(program, id).filter(|ty| ty.dtype == dtype);
    ty.and_then(TensorType::known_shape).is_some_and(|shape| shape.iter().all(|&extent| extent == 1))
}

/// Returns whether a loop carries values of fixed types, and nothing is collected.
fn loop_fits(program: &Program, node: &Node, body: &Region) -> bool {
    let n_carried = node.inputs.len().saturating_sub(2);
    let carried = node.inputs.get(2..).unwrap_or_default();
    let scalar = |id: Option<ValueId>, dtype| id.is_none_or(|id| is_scalar(program, id, dtype));
    body.inputs.len() == n_carried + 2
        && body.outputs.len() == n_carried + 1
        && scalar(node.input(0), I64)
        && scalar(node.input(1), BOOL)
        && is_scalar(program, body.inputs[0], I64)
        && is_scalar(program, body.inputs[1], BOOL)
        && is_scalar(program, body.outputs[0], BOOL)
        && carried.iter().all(Option::is_some)
        && same_types(program, &body.inputs[2..], carried)
        && same_types(program, &body.outputs[1..], carried)
        && same_types(program, &body.inputs[2..], &node.outputs)
}

fn plan_region(
    program: &Program,
    region: &Region,
    env: &Env,
    first: Option<usize>,
    home: &mut Option<usize>,
) -> Result<Option<InlinedRegion>> {
    let (extracted, captures) = extract(program, region);
    let mut chooser = Chooser::new(&extracted, env);
    let mut work = Vec::new();
    for node in &extracted.main.nodes {
        let chosen = chooser.work(node, first).map_err(|e| e.at_node(node.label()))?;
        match &chosen {
            NodeWork::Later => return Ok(None),
            chosen => {
                if chosen.sites().into_iter().any(|site| *home.get_or_insert(site) != site) {
                    return Ok(None);
                }
            }
        }
        work.push(chosen);
    }
    let inputs = &extracted.main.inputs;
    if inputs.iter().any(|&id| known(&extracted, id).is_none()) {
        return Ok(None);
    }
    let options = PlanOptions { tasks: Policy::One, ..env.options.clone() };
    let section =
        launches::plan(&extracted, &extracted.main.nodes, work, &extracted.main.outputs, env, &options)?;
    let operands = section
        .input_ids
        .iter()
        .map(|id| {
            inputs.iter().position(|input| input == id).ok_or_else(|| {
                Error::new(
                    ErrorKind::Internal,
                    format!("value %{} of a region is neither made nor taken", id.0),
                )
            })
        })
        .collect::<Result<_>>()?;
    Ok(Some(InlinedRegion { section: Arc::new(section), operands, captures }))
}
