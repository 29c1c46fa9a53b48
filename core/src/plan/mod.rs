//! Plans: a program for given input types, divided into stages.
//!
//! Nodes of known types form sections ([`mod@section`]), planned into tasks of launches; so does control flow of known
//! types ([`nested`], [`unroll`], [`regions`]). Other control flow is a stage of its own, whose regions are nested
//! [`Unit`]s, planned when they are first taken. A node whose types depend on
//! data is an eager stage: it is planned when its operands are there, on the same kernels.
//!
//! Where the nodes of a plan run is its [`Placement`]'s to say: in the order of the devices, or where it costs least
//! ([`placement`]).
//!
//! Most programs are one section, and a cheap section is one task; that is the synchronous path, without any of the
//! rest.

pub mod ahead;
mod alike;
mod antichain;
mod assemble;
mod assign;
pub(crate) mod borders;
mod choose;
pub(crate) mod claims;
pub mod compiled;
pub mod constants;
pub mod cost;
mod cut;
pub mod estimate;
pub mod feedback;
pub(crate) mod fold_cache;
mod join;
pub mod kernel_cache;
mod lanes;
pub mod launches;
pub mod memory;
pub(crate) mod merge;
pub mod nested;
pub mod place;
pub mod placement;
mod program_store;
mod programs;
pub(crate) mod references;
pub mod regions;
pub mod report;
pub mod section;
pub mod specialise;
mod storage;
mod streaming;
pub(crate) mod streams;
pub mod tasks;
mod text;
pub mod unroll;
mod views;
pub mod whole;
pub mod work;

use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::exec::eager::{EagerCache, Evaluate};
use crate::exec::lent::Lent;
use crate::exec::pool::FramePool;
use crate::exec::unit::Unit;
use crate::kernel::{KernelDef, Numerics};
use crate::passes::{self, Applied, Around, FOLD_CONSTANTS, Moment, Switches};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program, Region, Value, ValueId};
use crate::tensor::TensorType;
use crate::trace::Recorder;
use ahead::{PackedConstant, Specialised};
use choose::{NodeWork, works};
use claims::Claims;
use compiled::{CompiledStage, Part};
use constants::{ConstantPool, PackCounts};
use fold_cache::FoldCache;
use kernel_cache::KernelCache;
use section::{Section, Shaped, StepKind};
use specialise::specialise;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// What plans are made with: devices and their constants.
pub struct Env {
    /// The device that runs whatever it can, and is not pinned elsewhere.
    pub device: Arc<Device>,
    /// Its constants.
    pub constants: ConstantPool,
    /// Devices for the rest, first choice first.
    others: Vec<(Arc<Device>, ConstantPool)>,
    /// Nodes by name that run on a device of their own, by position.
    pins: HashMap<String, usize>,
    /// What all of this was made from.
    pub placement: Placement,
    /// How plans are made.
    pub options: PlanOptions,
    /// Kernels of the plans that are there.
    pub(crate) kernels: KernelCache,
    /// Constants that were folded.
    pub(crate) folds: FoldCache,
}

/// Where the nodes of a program may run.
#[derive(Clone)]
pub struct Placement {
    /// The device that runs whatever it can.
    pub device: Arc<Device>,
    /// Devices for what it cannot, first choice first.
    pub others: Vec<Arc<Device>>,
    /// Nodes by name, and the device that each must run on.
    pub pins: Vec<(String, Arc<Device>)>,
    /// What decides among the devices for nodes that are not pinned.
    pub by: PlaceBy,
}

/// What decides which device runs a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum PlaceBy {
    /// The order of the devices: the first one runs whatever it has a kernel for, the others the rest.
    #[default]
    Order,
    /// What launches and copies should take together ([`placement`]).
    Cost,
}

impl Placement {
    /// Everything on one device.
    pub fn on(device: &Arc<Device>) -> Self {
        Self { device: Arc::clone(device), others: Vec::new(), pins: Vec::new(), by: PlaceBy::Order }
    }

    /// All devices, each once: the first, the others, and those that nodes are pinned to.
    pub fn devices(&self) -> Vec<&Arc<Device>> {
        let mut devices: Vec<&Arc<Device>> = vec![&self.device];
        for device in self.others.iter().chain(self.pins.iter().map(|(_, device)| device)) {
            if !devices.iter().any(|known| Arc::ptr_eq(known, device)) {
                devices.push(device);
            }
        }
        devices
    }
}

impl PartialEq for Placement {
    fn eq(&self, other: &Self) -> bool {
        let same = |a: &[&Arc<Device>], b: &[&Arc<Device>]| {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
        };
        same(&self.devices(), &other.devices())
            && self.by == other.by
            && self.others.len() == other.others.len()
            && self.pins.len() == other.pins.len()
            && self.pins.iter().zip(&other.pins).all(|(a, b)| a.0 == b.0 && Arc::ptr_eq(&a.1, &b.1))
    }
}

/// How plans are made.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanOptions {
    /// Plans that a unit keeps, by input types; the least recently used goes first.
    pub plans_max: usize,
    /// How launches are divided into tasks.
    pub tasks: tasks::Policy,
    /// Which passes run over programs before they are planned.
    pub passes: Switches,
    /// What matrix products may round their inputs to. Ops that run one by one, since their types depend on data, are
    /// strict.
    pub numerics: Numerics,
    /// Bytes of the device's memory that a section may take: constants that stay there, arena and workspaces of one run. Of
    /// what needs more, constants are streamed ([decisions/0018](../../../docs/decisions/0018-weight-streaming.md)). None
    /// for no limit.
    pub memory_budget: Option<u64>,
    /// How fast devices work; None for each one's own rates.
    pub rates: Option<cost::Rates>,
    /// What launches took when they were measured: it counts in the place of estimates.
    pub feedback: Option<Arc<feedback::Feedback>>,
    /// Who takes down what runs of these plans do and when; None, at no cost, for nobody.
    pub trace: Option<Recorder>,
}

impl Default for PlanOptions {
    fn default() -> Self {
        Self {
            plans_max: 16,
            tasks: tasks::Policy::Auto,
            passes: Switches::default(),
            numerics: Numerics::Strict,
            memory_budget: None,
            rates: None,
            feedback: None,
            trace: None,
        }
    }
}

impl Env {
    /// An environment of one device, with a pool of its own.
    pub fn new(device: &Arc<Device>, options: PlanOptions) -> Arc<Self> {
        Self::placed(&Placement::on(device), options)
    }

    /// An environment of several devices, with pools of its own.
    pub fn placed(placement: &Placement, options: PlanOptions) -> Arc<Self> {
        Self::with_packed(placement, options, &[])
    }

    /// As [`Env::placed`], with constants that were packed ahead of time.
    pub fn with_packed(placement: &Placement, options: PlanOptions, packed: &[PackedConstant]) -> Arc<Self> {
        let devices = placement.devices();
        let position = |device| devices.iter().position(|known| Arc::ptr_eq(known, device)).unwrap_or(0);
        Arc::new(Self {
            device: Arc::clone(devices[0]),
            constants: ConstantPool::new(devices[0], packed),
            others: devices[1..]
                .iter()
                .map(|&device| (Arc::clone(device), ConstantPool::new(device, packed)))
                .collect(),
            pins: placement.pins.iter().map(|(name, device)| (name.clone(), position(device))).collect(),
            placement: placement.clone(),
            options,
            kernels: KernelCache::default(),
            folds: FoldCache::default(),
        })
    }

    /// Devices, by position.
    pub fn n_sites(&self) -> usize {
        1 + self.others.len()
    }

    /// A device and its constants.
    pub fn site(&self, site: usize) -> (&Arc<Device>, &ConstantPool) {
        match site.checked_sub(1) {
            None => (&self.device, &self.constants),
            Some(other) => (&self.others[other].0, &self.others[other].1),
        }
    }

    /// The devices that a node may run on, first choice first.
    pub fn sites_of(&self, node: &Node) -> std::ops::Range<usize> {
        match self.pins.get(&*node.name) {
            Some(&site) => site..site + 1,
            None => 0..self.n_sites(),
        }
    }

    /// The first of a node's devices that lists a kernel for it; the very first if none does.
    pub fn listed_site(&self, node: &Node) -> usize {
        self.listed_sites(node).next().unwrap_or(self.sites_of(node).start)
    }

    /// A node's devices that list a kernel for it, first choice first; the very first alone if none does.
    pub fn listed_sites<'a>(&'a self, node: &'a Node) -> impl Iterator<Item = usize> + 'a {
        let sites = self.sites_of(node);
        let is_listed = move |site: &usize| self.listed(*site, node).next().is_some();
        let first = sites.start;
        let unlisted = (!sites.clone().any(|site| is_listed(&site))).then_some(first);
        sites.filter(is_listed).chain(unlisted)
    }

    fn listed<'a>(&'a self, site: usize, node: &'a Node) -> impl Iterator<Item = &'a KernelDef> {
        self.site(site).0.plugin().about().kernels.find(&node.op.domain, &node.op.name)
    }

    /// Runs the passes of a moment that are on, and gives what each did. Nodes that are pinned stay.
    ///
    /// # Errors
    /// As [`passes::run`].
    pub fn run_passes(&self, program: &mut Program, moment: Moment) -> Result<Vec<Applied>> {
        let mut evaluator = Evaluate::new(self);
        let around = Around {
            kernels: &self.device.plugin().about().kernels,
            stay: &|node: &Node| self.is_pinned(node),
            evaluator: RefCell::new(&mut evaluator),
        };
        passes::run(program, moment, &self.options.passes, &around)
    }

    /// A program for inputs of given types, one for each, after the passes that go by them; with what each did.
    ///
    /// # Errors
    /// As [`specialise()`] and [`passes::run`].
    pub fn specialised(&self, program: &Program, types: &[TensorType]) -> Result<(Program, Vec<Applied>)> {
        let folds = self.options.passes.runs(FOLD_CONSTANTS);
        let mut specialised = specialise(program, types, folds, &mut Evaluate::new(self))?;
        let (before, after) = (program.n_nodes(), specialised.n_nodes());
        let folded = Applied { name: FOLD_CONSTANTS, changes: before.saturating_sub(after), before, after };
        let mut applied = if folds { vec![folded] } else { Vec::new() };
        applied.extend(self.run_passes(&mut specialised, Moment::Shapes)?);
        Ok((specialised, applied))
    }

    /// A program that was specialised ahead of time, its types found again: whoever wrote it may have been wrong.
    ///
    /// # Errors
    /// As [`specialise()`].
    pub(crate) fn typed_again(&self, ahead: &Specialised, types: &[TensorType]) -> Result<Program> {
        specialise(&ahead.program, types, false, &mut Evaluate::new(self))
    }

    /// The constants that kernels of the plans that are there have in layouts of their own.
    ///
    /// # Errors
    /// As [`ConstantPool::packed`].
    pub fn packed(&self) -> Result<Vec<PackedConstant>> {
        let all = (0..self.n_sites()).map(|site| self.site(site).1.packed());
        Ok(all.collect::<Result<Vec<_>>>()?.concat())
    }

    /// How many constants were packed for kernels so far, on all devices.
    pub fn pack_counts(&self) -> PackCounts {
        let counts = (0..self.n_sites()).map(|site| self.site(site).1.pack_counts());
        counts.fold(PackCounts::default(), |sum, counts| PackCounts {
            ahead: sum.ahead + counts.ahead,
            now: sum.now + counts.now,
        })
    }

    /// Whether a node is pinned.
    pub fn is_pinned(&self, node: &Node) -> bool {
        self.pins.contains_key(&*node.name)
    }

    /// Whether a device's kernels work, inline, in memory that the host reads and writes at the references'
    /// addresses: such devices share a section, and need no copies between them.
    pub(crate) fn works_in_host_memory(&self, site: usize) -> bool {
        let device = self.site(site).0;
        let (about, space) = (device.about(), device.space());
        about.inline && about.host_refs && space.host_visible && !device.plugin().is_serialised()
    }

    /// Whether a device's kernels work in the host's memory, at once or later.
    pub(crate) fn reads_host_memory(&self, site: usize) -> bool {
        let device = self.site(site).0;
        device.about().host_refs && device.space().host_visible
    }

    /// Whether a device's launches may be in one section with those of other devices.
    fn shares_sections(&self, site: usize) -> bool {
        let device = self.site(site).0;
        let (about, space) = (device.about(), device.space());
        let is_plain = !space.no_suballoc && !space.write_once && !space.typed;
        !device.plugin().is_serialised() && !about.may_block && is_plain
    }

    /// Whether operands of a device's kernels may be parts of values, and these be moved: in the host's memory by the
    /// host, else by the device.
    pub(crate) fn divides_operands(&self, site: usize) -> bool {
        self.shares_sections(site) && (self.works_in_host_memory(site) || !self.reads_host_memory(site))
    }

    /// The device whose memory, the host's, the inputs and results of a section of several devices live in.
    pub(crate) fn home_site(&self) -> Option<usize> {
        let is_home = |site: &usize| self.reads_host_memory(*site) && self.shares_sections(*site);
        let inline = (0..self.n_sites()).find(|&site| self.works_in_host_memory(site));
        inline.or_else(|| (0..self.n_sites()).find(is_home))
    }

    /// What costs of the first device are estimated with: what the options say, else what was measured, else what is
    /// usual for its kind.
    pub fn rates(&self) -> cost::Rates {
        self.rates_of(0)
    }

    /// As [`Env::rates`], of any of the devices.
    pub fn rates_of(&self, site: usize) -> cost::Rates {
        self.options.rates.unwrap_or_else(|| self.site(site).0.expected_rates())
    }
}

/// A program for given input types.
pub struct Plan {
    /// The specialised program.
    pub program: Program,
    /// What the passes over it did, those over the model not counted.
    pub passes: Box<[Applied]>,
    /// Types of the inputs.
    pub inputs: Box<[Shaped]>,
    /// Whether these are types that the program takes, not only such as it can be planned for.
    pub(crate) is_declared: bool,
    /// What is done, in order.
    pub stages: Box<[Stage]>,
    /// Set by runs, cleared when plans are thrown out: second chance.
    pub(crate) used: AtomicBool,
    /// Runs, where no one frame is that of a run: of several stages, or none.
    pub(crate) staged_runs: AtomicU64,
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
    /// Pooled frames.
    pub frames: FramePool,
    /// The values that its results are.
    pub results: Box<[ValueId]>,
    /// For a plan of one line: which of the plan's inputs each of the line's is.
    pub plan_inputs: Box<[u32]>,
    /// For a plan of one line: its references to the caller's memory, if kernels work there.
    pub(crate) lent: Option<Lent>,
}

/// A control-flow node, its regions as units.
pub struct ControlStage {
    /// The node.
    pub node: Node,
    /// Regions in the node's order, with the values that each captures.
    pub regions: Vec<Nested>,
}

/// A region as a unit: its inputs, then what it captures.
pub struct Nested {
    /// The region as a program of its own.
    pub unit: Unit,
    /// The surrounding values that follow the region's own inputs.
    pub captures: Vec<ValueId>,
}

/// A node that is planned when its operands are there.
pub struct EagerStage {
    /// The node.
    pub node: Node,
    /// Kernels prepared for earlier operands.
    pub cache: EagerCache,
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
        let mut work = works(&program, env, &claims)?;
        if work.iter().any(|work| matches!(work, NodeWork::Claimed(_))) {
            compiled::claim_views(&program, &mut work, &claims);
            work = compiled::gather(&mut program, work, &mut claims);
        }
        let groups = divide(&work, env);
        let stages = if groups.iter().all(|group| matches!(group, Group::Section(..))) && groups.len() <= 1 {
            vec![single_section(&program, work, env)?]
        } else {
            staged(&program, &groups, work, &claims, env)?
        };
        let (stages, used) = (stages.into(), AtomicBool::new(true));
        let (passes, staged_runs) = (Box::default(), AtomicU64::new(0));
        Ok(Self { program, passes, inputs, is_declared: false, stages, used, staged_runs })
    }

    /// How many runs there were of it. One that was bound counts once, however often it ran.
    pub fn n_runs(&self) -> u64 {
        let framed = self.single().map_or(0, |stage| stage.frames.n_runs());
        framed + self.staged_runs.load(Ordering::Relaxed)
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

    /// Copies between memories, in bytes, with what each is for.
    pub fn copies(&self) -> impl Iterator<Item = (&str, u64)> {
        self.sections().flat_map(|section| {
            let steps = section.steps.iter().zip(&section.labels).zip(&section.kinds);
            let copies = steps.filter(|(_, kind)| matches!(kind, StepKind::Copy));
            let length =
                |step: &section::Step| section.refs.get(step.first_ref as usize).map_or(0, |r| r.length);
            copies.map(move |((step, label), _)| (label.as_str(), length(step)))
        })
    }

    /// Nanoseconds that each launch of a section should take, with what it is and who says so.
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

    /// The section, if that is all there is.
    pub fn single(&self) -> Option<&SectionStage> {
        match &*self.stages {
            [Stage::Section(section)] => Some(section),
            _ => None,
        }
    }

    /// All programs of compilers.
    pub fn compiled(&self) -> impl Iterator<Item = &CompiledStage> {
        self.stages.iter().filter_map(|stage| match stage {
            Stage::Compiled(stage) => Some(stage),
            _ => None,
        })
    }

    /// All sections, those of nested regions that were not planned yet left out.
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

/// Whether all extents of a node's operands and results are known.
fn is_typed(program: &Program, node: &Node) -> bool {
    let known = |id: &ValueId| program.value(*id).ty.as_ref().is_some_and(|ty| ty.known_shape().is_some());
    node.inputs.iter().chain(&node.outputs).flatten().all(known)
}

/// Whether a node can be planned now: all types known, and whatever its kernels must know beforehand.
fn is_static(program: &Program, node: &Node, env: &Env) -> bool {
    let kind = catalogue::find(&node.op.domain, &node.op.name).map(|def| def.kind);
    if kind == Some(OpKind::Control) {
        return false;
    }
    if !is_typed(program, node) {
        return false;
    }
    if kind == Some(OpKind::View) {
        return true;
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
    Ok(Stage::Section(SectionStage {
        frames: FramePool::new(),
        results: outputs.clone().into(),
        lent: Lent::of(&section, &plan_inputs),
        plan_inputs,
        section,
    }))
}

fn staged(
    program: &Program,
    groups: &[Group],
    mut work: Vec<NodeWork>,
    claims: &Claims,
    env: &Arc<Env>,
) -> Result<Vec<Stage>> {
    let nodes = &program.main.nodes;
    // Values used by each group from elsewhere, regions' captures included.
    let uses: Vec<HashSet<ValueId>> = groups.iter().map(|group| used_by(nodes, group)).collect();
    let mut stages = Vec::with_capacity(groups.len());
    for (at, group) in groups.iter().enumerate() {
        let later = |id: &ValueId| {
            program.main.outputs.contains(id) || uses[at + 1..].iter().any(|uses| uses.contains(id))
        };
        stages.push(match group {
            Group::Compiled(range, site) => {
                let claims = range.clone().filter_map(|at| claims.get(*site, at).copied()).collect();
                let part = Part { program, range: range.clone(), later: &later, site: *site, claims };
                let label = || nodes[range.start].label();
                Stage::Compiled(compiled::compile(&part, env).map_err(|e| e.at_node(label()))?)
            }
            Group::Section(range, _) => {
                let nodes = &nodes[range.clone()];
                let made = nodes.iter().flat_map(|node| node.outputs.iter().flatten());
                let results: Vec<ValueId> = made.copied().filter(later).collect();
                let work = work[range.clone()].iter_mut().map(std::mem::take).collect();
                let section = launches::plan(program, nodes, work, &results, env, &env.options)?;
                Stage::Section(SectionStage {
                    frames: FramePool::new(),
                    results: results.into(),
                    plan_inputs: Box::default(),
                    lent: None,
                    section,
                })
            }
            Group::Other(i) => {
                let node = &nodes[*i];
                if node.regions.is_empty() {
                    Stage::Eager(EagerStage { node: node.clone(), cache: EagerCache::default() })
                } else {
                    let regions = node.regions.iter().map(|(_, region)| {
                        let (program, captures) = extract(program, region);
                        Nested { unit: Unit::new(program, Arc::clone(env)), captures }
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

/// A region as a program of its own: its inputs, then what it captures and is not constant.
fn extract(program: &Program, region: &Region) -> (Program, Vec<ValueId>) {
    let captures: Vec<ValueId> =
        region.captures().into_iter().filter(|&id| program.constant(id).is_none()).collect();
    let mut extracted = Extracted { program, out: Program::default(), map: HashMap::new() };
    let mut main = extracted.region(region);
    main.inputs.extend(captures.iter().map(|&id| extracted.map(id)));
    extracted.out.main = main;
    extracted.out.name = program.name.clone();
    (extracted.out, captures)
}

struct Extracted<'a> {
    program: &'a Program,
    out: Program,
    map: HashMap<ValueId, ValueId>,
}

impl Extracted<'_> {
    fn map(&mut self, id: ValueId) -> ValueId {
        let (program, out) = (self.program, &mut self.out);
        *self.map.entry(id).or_insert_with(|| {
            let Value { name, ty, constant } = program.value(id).clone();
            out.add_value(Value { name, ty, constant })
        })
    }

    fn region(&mut self, region: &Region) -> Region {
        let inputs = region.inputs.iter().map(|&id| self.map(id)).collect();
        let nodes = region
            .nodes
            .iter()
            .map(|node| {
                let mut new = Node { regions: Vec::new(), ..node.clone() };
                for id in new.inputs.iter_mut().flatten() {
                    *id = self.map(*id);
                }
                new.regions =
                    node.regions.iter().map(|(name, nested)| (name.clone(), self.region(nested))).collect();
                for id in new.outputs.iter_mut().flatten() {
                    *id = self.map(*id);
                }
                new
            })
            .collect();
        let outputs = region.outputs.iter().map(|&id| self.map(id)).collect();
        Region { inputs, nodes, outputs }
    }
}
