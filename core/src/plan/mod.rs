//! Plans: a program for given input types, divided into stages.
//!
//! Nodes of known types form sections ([`mod@section`]), planned into tasks of launches; so does control flow of known
//! types ([`control`]). Other control flow is a stage of its own, whose regions are programs of their own, planned when
//! they are first taken. A node whose types depend on data is an eager stage: it is planned when its operands are there,
//! on the same kernels.
//!
//! Most programs are one section, and a cheap section is one task; that is the synchronous path, without any of the
//! rest.
//!
//! A plan is data. The state that its runs share (frames, streams, caches and counts) is in the executor
//! (`exec/prepared.rs`).
//!
//! # How a plan is made
//!
//! | step | folder |
//! | --- | --- |
//! | the program for given input types | [`specialise`] |
//! | the device and the kernel of each node, by cost | [`place`], [`cost`] |
//! | the parts that compilers take whole | [`mod@compiled`] |
//! | regions | [`control`] |
//! | from nodes to launches, and from launches to a section | [`launches`] |
//! | order: tasks, lanes, waits | [`order`] |
//! | where values live | [`memory`] |
//!
//! It is made with [`Env`], within [`limits`]. The result is [`mod@section`], with the steps that are
//! ours in `steps.rs`; [`report`] shows it.

pub mod compiled;
pub mod control;
pub mod cost;
mod env;
pub(crate) mod executor;
pub mod launches;
pub mod limits;
pub mod memory;
pub mod order;
pub mod place;
pub mod report;
pub mod section;
pub mod specialise;
pub(crate) mod steps;
mod text;

// Names for applications, by the shorter path.
pub use compiled::whole;
pub use control::{extract, unroll};
pub use cost::{estimate, feedback, work};
pub use memory::constants;
pub use order::tasks;
pub use specialise::ahead;

use crate::cancel::look;
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::passes::Applied;
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program, ValueId};
use crate::progress::{Counter, Phase};
use compiled::claims::Claims;
use compiled::{CompiledStage, Part};
use control::extract::extract;
pub use env::{Env, PlaceBy, Placement, PlanOptions};
use place::choose::{NodeWork, works};
use section::{Section, Shaped, StepKind};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A program for given input types.
pub struct Plan {
    /// The specialised program.
    pub program: Program,
    /// Effects of the passes over it, those over the model not counted.
    pub passes: Box<[Applied]>,
    /// Types of the inputs.
    pub inputs: Box<[Shaped]>,
    /// True if these are types that the program takes, not only such as it can be planned for.
    pub(crate) is_declared: bool,
    /// Stages, in order.
    pub stages: Box<[Stage]>,
}

/// One thing that a run does.
#[expect(clippy::large_enum_variant, reason = "a plan has few stages, and most have one line")]
pub enum Stage {
    /// Launches without a question in between.
    Section(SectionStage),
    /// A program of a device's compiler.
    Compiled(CompiledStage),
    /// If, Loop or Scan whose types are not known.
    Control(ControlStage),
    /// One node whose types are known when it is its turn.
    Eager(EagerStage),
}

/// A section, and the values that it takes and gives.
pub struct SectionStage {
    /// The launches.
    pub section: Section,
    /// The values that its results are.
    pub results: Box<[ValueId]>,
    /// For a plan of one line: which of the plan's inputs each of the line's is.
    pub plan_inputs: Box<[u32]>,
}

/// A control-flow node, its regions as programs of their own.
pub struct ControlStage {
    /// The node.
    pub node: Node,
    /// Regions in the node's order, with the values that each captures.
    pub regions: Vec<Nested>,
}

/// A region as a program, planned when it is first taken: its inputs, then its captured values.
pub struct Nested {
    /// The program.
    pub program: Arc<Program>,
    /// The surrounding values that follow the region's own inputs.
    pub captures: Vec<ValueId>,
}

/// A node that is planned when its operands are there.
pub struct EagerStage {
    /// The node.
    pub node: Node,
}

impl Plan {
    /// Plans a specialised program.
    ///
    /// # Errors
    /// As [`launches::plan`].
    pub fn build(program: Program, env: &Arc<Env>) -> Result<Self> {
        let inputs = input_types(&program)?;
        let mut program = program;
        let mut claims = Claims::of(&program, env)?;
        // In each turn at least one more group turns out not to come to its compiler whole.
        let (work, groups) = loop {
            let mut work = works(&program, env, &claims)?;
            if work.iter().any(|work| matches!(work, NodeWork::Claimed(_))) {
                compiled::claim_views(&program, &mut work, &claims);
                work = compiled::gather(&mut program, work, &mut claims);
            }
            let groups = divide(&work, env);
            let parts = groups.iter().filter_map(|group| match group {
                Group::Compiled(range, site) => Some((*site, range.clone())),
                _ => None,
            });
            if !claims.drop_torn(parts) {
                break (work, groups);
            }
        };
        let stages = if groups.iter().all(|group| matches!(group, Group::Section(..))) && groups.len() <= 1 {
            vec![single_section(&program, work, env)?]
        } else {
            staged(&program, &groups, work, &claims, env)?
        };
        Ok(Self { program, passes: Box::default(), inputs, is_declared: false, stages: stages.into() })
    }

    /// Nodes of sections and compiled programs that another device than `device` runs, with it.
    pub fn elsewhere<'a>(&'a self, device: &'a Device) -> impl Iterator<Item = (&'a str, &'a Device)> {
        let compiled = self.compiled().filter(move |stage| !std::ptr::eq(&**stage.device(), device));
        let compiled =
            compiled.flat_map(|stage| stage.labels.iter().map(|label| (label.as_str(), &**stage.device())));
        let launched = self.sections().flat_map(move |section| {
            let steps = section.steps.iter().zip(&section.labels).zip(&section.kinds);
            let nodes = steps.filter(|(_, kind)| matches!(kind, StepKind::Kernel | StepKind::Nested));
            let placed =
                nodes.map(|((step, label), _)| (label.as_str(), &*section.lanes[step.lane as usize]));
            placed.filter(move |(_, other)| !std::ptr::eq(*other, device))
        });
        launched.chain(compiled)
    }

    /// Returns the copies between memories: their purpose, and their size in bytes.
    pub fn copies(&self) -> impl Iterator<Item = (&str, u64)> {
        self.sections().flat_map(|section| {
            let steps = section.steps.iter().zip(&section.labels).zip(&section.kinds);
            let copies = steps.filter(|(_, kind)| matches!(kind, StepKind::Copy));
            let length =
                |step: &section::Step| section.refs.get(step.first_ref as usize).map_or(0, |r| r.length);
            copies.map(move |((step, label), _)| (label.as_str(), length(step)))
        })
    }

    /// Returns the launches of all sections: name, estimated nanoseconds, and source of the estimate.
    pub fn costs(&self) -> impl Iterator<Item = (&str, f64, feedback::CostFrom)> {
        self.sections().flat_map(|section| {
            let launches =
                section.labels.iter().zip(&section.kinds).zip(&section.costs_ns).zip(&section.costs_from);
            let launches = launches.filter(|(((_, kind), _), _)| kind.is_launch());
            launches.map(|(((label, _), &ns), &from)| (label.as_str(), f64::from(ns), from))
        })
    }

    /// Arithmetic operations of sections and compiled programs on each device, as kernels and compilers say; most first.
    pub fn flops(&self) -> Vec<(&Device, u64)> {
        let mut all: Vec<(&Device, u64)> = Vec::new();
        let launches = self.sections().flat_map(|section| {
            let steps = section.steps.iter().zip(&section.flops).filter(|(_, flops)| **flops > 0);
            steps.map(|(step, &flops)| (&*section.lanes[step.lane as usize], flops))
        });
        for (device, flops) in launches.chain(self.compiled().map(|stage| (&**stage.device(), stage.flops))) {
            match all.iter_mut().find(|(known, _)| std::ptr::eq(*known, device)) {
                Some((_, sum)) => *sum = sum.saturating_add(flops),
                None => all.push((device, flops)),
            }
        }
        all.sort_by_key(|(_, flops)| std::cmp::Reverse(*flops));
        all
    }

    /// Returns whether a part of it is planned when its types are known, as it runs: no count of this plan's has that.
    pub fn is_open(&self) -> bool {
        self.stages.iter().any(|stage| matches!(stage, Stage::Control(_) | Stage::Eager(_)))
    }

    /// Bytes that a run takes: constants, arenas, and results that are written, of all sections.
    pub(crate) fn bytes(&self) -> u64 {
        let of = |section: &Section| {
            let written: usize = section.written.iter().map(|ty| ty.size).fold(0, usize::saturating_add);
            let arenas = section.memories.iter().map(|memory| memory.arena).fold(0, usize::saturating_add);
            written.saturating_add(arenas).saturating_add(section.memory.constants) as u64
        };
        self.sections().map(of).fold(0, u64::saturating_add)
    }

    /// Returns the section, if that is all there is.
    pub fn single(&self) -> Option<&SectionStage> {
        match &*self.stages {
            [Stage::Section(section)] => Some(section),
            _ => None,
        }
    }

    /// Returns all programs of compilers.
    pub fn compiled(&self) -> impl Iterator<Item = &CompiledStage> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Compiled(stage) => Some(stage),
            _ => None,
        })
    }

    /// Returns all sections, those of nested regions that were not planned yet left out.
    pub fn sections(&self) -> impl Iterator<Item = &Section> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Section(stage) => Some(&stage.section),
            _ => None,
        })
    }
}

fn input_types(program: &Program) -> Result<Box<[Shaped]>> {
    let shaped = |id: &ValueId| {
        let value = program.value(*id);
        let ty = value.ty.as_ref().and_then(|ty| Shaped::new(ty.dtype, &ty.known_shape()?));
        ty.ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                format!("input `{}` is larger than memory, or not of a known shape", value.name),
            )
        })
    };
    program.main.inputs.iter().map(shaped).collect()
}

/// A run of nodes that become one stage, by position.
enum Group {
    /// A program of the compiler of the device at a position.
    Compiled(std::ops::Range<usize>, usize),
    /// A section, and the kind of its devices once one is known.
    Section(std::ops::Range<usize>, Option<Family>),
    Other(usize),
}

/// Devices whose launches may be in one section.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Family {
    /// Those that take part in one order of work, with copies in between.
    Shared,
    /// One that does not.
    Site(usize),
}

fn divide(work: &[NodeWork], env: &Env) -> Vec<Group> {
    let mut groups = Vec::new();
    let has_home = env.home_site().is_some();
    let family_of = |site: usize| match has_home && env.shares_sections(site) {
        true => Family::Shared,
        false => Family::Site(site),
    };
    for (i, work) in work.iter().enumerate() {
        match work {
            NodeWork::Later => {
                groups.push(Group::Other(i));
                continue;
            }
            NodeWork::Claimed(site) => {
                match groups.last_mut() {
                    Some(Group::Compiled(range, of)) if of == site => range.end = i + 1,
                    _ => groups.push(Group::Compiled(i..i + 1, *site)),
                }
                continue;
            }
            _ => {}
        }
        // Iterations on devices that do not go together are a stage: `unroll` sees to it.
        let family = work.sites().first().map(|&site| family_of(site));
        match groups.last_mut() {
            Some(Group::Section(range, of)) if of.is_none() || family.is_none() || *of == family => {
                range.end = i + 1;
                *of = of.or(family);
            }
            _ => groups.push(Group::Section(i..i + 1, family)),
        }
    }
    groups
}

/// Returns whether all extents of a node's operands and results are known.
fn is_typed(program: &Program, node: &Node) -> bool {
    let known = |id: &ValueId| program.value(*id).ty.as_ref().is_some_and(|ty| ty.known_shape().is_some());
    node.inputs.iter().chain(&node.outputs).flatten().all(known)
}

/// Returns whether a node can be planned now: all types known, and whatever its kernels must know beforehand.
fn is_static(program: &Program, node: &Node, env: &Env) -> bool {
    let kind = catalogue::find(&node.op.domain, &node.op.name).map(|def| def.kind);
    if kind == Some(OpKind::Control) {
        return false;
    }
    if !is_typed(program, node) {
        return false;
    }
    if kind == Some(OpKind::View) {
        // A shape or axes that come with a run are looked at in the run, even if only one value is possible: Squeeze of
        // [0] by an axis to a scalar is an error, and no view.
        return node.inputs.iter().skip(1).flatten().all(|id| program.constant(*id).is_some());
    }
    // An op without kernels is planned, so that its error comes when the model is loaded.
    let mut kernels = env.sites_of(node).flat_map(|site| env.listed(site, node)).peekable();
    kernels.peek().is_none()
        || kernels.any(|kernel| {
            !kernel.data_shape
                && node.inputs.iter().enumerate().all(|(i, id)| {
                    !kernel.needs_value(i) || id.is_none_or(|id| program.constant(id).is_some())
                })
        })
}

fn single_section(program: &Program, work: Vec<NodeWork>, env: &Arc<Env>) -> Result<Stage> {
    let outputs = &program.main.outputs;
    let section = launches::plan(program, &program.main.nodes, work, outputs, env, &env.options)?;
    let positions: HashMap<ValueId, u32> =
        program.main.inputs.iter().enumerate().map(|(i, &id)| (id, i as u32)).collect();
    let plan_inputs = section
        .input_ids
        .iter()
        .map(|id| {
            positions.get(id).copied().ok_or_else(|| {
                Error::new(ErrorKind::Internal, format!("value %{} is neither made nor an input", id.0))
            })
        })
        .collect::<Result<Box<[u32]>>>()?;
    Ok(Stage::Section(SectionStage { results: outputs.clone().into(), plan_inputs, section }))
}

fn staged(
    program: &Program,
    groups: &[Group],
    mut work: Vec<NodeWork>,
    claims: &Claims,
    env: &Arc<Env>,
) -> Result<Vec<Stage>> {
    let nodes = &program.main.nodes;
    // The last group that uses each value, regions' captures included; behind all for results.
    let mut last_use: HashMap<ValueId, usize> = HashMap::new();
    for (at, group) in groups.iter().enumerate() {
        last_use.extend(used_by(nodes, group).into_iter().map(|id| (id, at)));
    }
    last_use.extend(program.main.outputs.iter().map(|&id| (id, usize::MAX)));
    let mut stages = Vec::with_capacity(groups.len());
    let is_compiled = |group: &&Group| matches!(group, Group::Compiled(..));
    let n_compiled = groups.iter().filter(is_compiled).count();
    let mut n_done = 0;
    for (at, group) in groups.iter().enumerate() {
        look()?;
        let later = |id: &ValueId| last_use.get(id).is_some_and(|&last| last > at);
        stages.push(match group {
            Group::Compiled(range, site) => {
                let claims = range.clone().filter_map(|at| claims.get(*site, at).copied()).collect();
                let part = Part { program, range: range.clone(), later: &later, site: *site, claims };
                let label = || nodes[range.start].label();
                let counter = Counter::resume(Phase::Compile, n_done, n_compiled);
                let stage = compiled::compile(&part, env).map_err(|e| e.at_node(label()))?;
                n_done += 1;
                counter.done(n_done);
                Stage::Compiled(stage)
            }
            Group::Section(range, _) => {
                let nodes = &nodes[range.clone()];
                let made = nodes.iter().flat_map(|node| node.outputs.iter().flatten());
                let results: Vec<ValueId> = made.copied().filter(later).collect();
                let work = work[range.clone()].iter_mut().map(std::mem::take).collect();
                let section = launches::plan(program, nodes, work, &results, env, &env.options)?;
                Stage::Section(SectionStage { results: results.into(), plan_inputs: Box::default(), section })
            }
            Group::Other(i) => {
                let node = &nodes[*i];
                if node.regions.is_empty() {
                    Stage::Eager(EagerStage { node: node.clone() })
                } else {
                    let regions = node.regions.iter().map(|(_, region)| {
                        let (program, captures) = extract(program, region);
                        Nested { program: Arc::new(program), captures }
                    });
                    Stage::Control(ControlStage { node: node.clone(), regions: regions.collect() })
                }
            }
        });
    }
    Ok(stages)
}

fn used_by(nodes: &[Node], group: &Group) -> HashSet<ValueId> {
    let mut used = HashSet::new();
    let mut node = |node: &Node| {
        used.extend(node.inputs.iter().flatten());
        for (_, region) in &node.regions {
            used.extend(region.captures());
        }
    };
    match group {
        Group::Section(range, _) | Group::Compiled(range, _) => nodes[range.clone()].iter().for_each(node),
        Group::Other(i) => node(&nodes[*i]),
    }
    used
}
