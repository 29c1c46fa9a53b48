//! From nodes to launches: the work of each, its values, and copies between memories.
//!
//! `assemble.rs` makes tasks, memory and references of them.

mod assemble;
pub(crate) mod references;

use crate::cancel::look;
use crate::device::Device;
use crate::device::rates::Rates;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::control::nested::{Inlined, Kind};
use crate::plan::control::regions::{Phi, Phis};
use crate::plan::cost::feedback::{self, Cost};
use crate::plan::cost::work::WorkKind;
use crate::plan::memory::storage::ALIGN_MAX;
use crate::plan::memory::streaming;
use crate::plan::order::borders::Regions;
use crate::plan::order::lanes::Lanes;
use crate::plan::place::choose::NodeWork;
use crate::plan::place::kernel::Chosen;
use crate::plan::section::{Section, Shaped};
use crate::plan::steps::CopyKind;
use crate::plan::{Env, PlanOptions};
use crate::program::{Node, Program, ValueId};
use crate::tensor::Tensor;
use std::collections::HashMap;
use std::sync::Arc;

/// The origin of a value, views seen through.
#[derive(Clone, Debug)]
pub(super) enum Root {
    /// An input from an offset on, possibly with another shape.
    Input(u32, usize),
    /// A constant.
    Constant(Tensor),
    /// A result of a launch, from an offset on: a position among the made values.
    Made(usize, usize),
}

/// A value that a launch makes.
pub(super) struct Made {
    pub(super) size: usize,
    pub(super) maker: u32,
    /// Launches that read it, in order; one that reads it twice comes twice.
    pub(super) users: Vec<u32>,
    pub(super) wanted: bool,
    /// The section's memory that it lives in.
    pub(super) memory: u32,
    /// The value that it is a part of, and from which offset on.
    pub(super) part_of: Option<(usize, usize)>,
    /// The launches that make its parts, if it has parts; then `maker` is none.
    pub(super) part_makers: Vec<u32>,
    /// Number of the phi, if it is one: then `maker` is its entry or exit.
    pub(super) phi: Option<u32>,
    /// Where it lives, and from which offset on; set when all launches are known.
    pub(super) storage: usize,
    pub(super) offset: usize,
}

impl Made {
    pub(super) fn new(size: usize, maker: u32, memory: u32) -> Self {
        Self {
            size,
            maker,
            users: Vec::new(),
            wanted: false,
            memory,
            part_of: None,
            part_makers: Vec::new(),
            phi: None,
            storage: usize::MAX,
            offset: 0,
        }
    }

    /// Returns whether it has memory of its own, made by one launch: it may become a part of another.
    pub(super) fn is_whole(&self) -> bool {
        self.part_of.is_none() && self.part_makers.is_empty() && self.phi.is_none()
    }
}

/// Memory that one or more values share in place, or a workspace.
pub(super) struct Storage {
    pub(super) size: usize,
    /// Launches that touch it, but for those that come before another of them in any case.
    pub(super) touches: Vec<u32>,
    /// Those that touch it first: several for a value that is made in parts.
    pub(super) makers: Vec<u32>,
    /// Position among the written results, if the caller gives the memory.
    pub(super) written: Option<u32>,
    pub(super) wanted: bool,
    /// The section's memory that it is in.
    pub(super) memory: u32,
    /// Number of the phi, if it is no memory but one of several.
    pub(super) phi: Option<u32>,
}

impl Storage {
    pub(super) fn of(made: &Made) -> Self {
        Self {
            size: made.size,
            touches: Vec::new(),
            makers: Vec::new(),
            written: None,
            wanted: made.wanted,
            memory: made.memory,
            phi: made.phi,
        }
    }
}

/// The work of a launch.
pub(super) enum Work {
    /// A copy between the host's memory and a device's, or within one.
    Copy(CopyKind),
    /// A copy of a constant from the host's memory, for an input of a kernel.
    Weight(Arc<Chosen>, usize),
    /// A kernel.
    Kernel(Arc<Chosen>),
    /// A region, as often as its node says, and the number of operands before its captured values.
    Nested(Inlined, usize),
    /// Entry of control flow, before its regions: its number, and its op.
    Entry(usize, String),
    /// Exit of control flow, behind them.
    Exit(usize, String),
}

/// One launch: its work, its inputs and results.
pub(super) struct Launch {
    /// The node, or the purpose of a copy.
    pub(super) label: String,
    /// The node's name, as plugins are told it.
    pub(super) name: Arc<str>,
    /// Name of the node's first result; empty if it has none.
    pub(super) output: Arc<str>,
    pub(super) lane: u32,
    /// The region of control flow that it is in, set when it is added; 0 for none.
    pub(super) region: u32,
    pub(super) work: Work,
    /// Operands of the node, then the captured values of its regions.
    pub(super) inputs: Vec<Option<(Root, usize)>>,
    /// Positions among the made values.
    pub(super) outputs: Vec<Option<usize>>,
    /// Launches that come before this one whatever the data says.
    pub(super) after: Vec<u32>,
    /// Its expected cost.
    pub(super) cost: Cost,
    /// Its key in measurements, if there are any or are to be.
    pub(super) signature: Option<Arc<str>>,
    /// The stage that it is in, where constants are streamed (`streaming.rs`); else 0.
    pub(super) stage: u32,
}

/// The values of a program, or of a region whose launches are repeated.
pub(super) struct Scope<'a> {
    pub(super) program: &'a Program,
    pub(super) roots: HashMap<ValueId, Root>,
    /// True if values that no launch makes are the section's inputs.
    takes_inputs: bool,
}

impl<'a> Scope<'a> {
    /// Returns the values of a region.
    pub(super) fn of_region(program: &'a Program) -> Self {
        Self { program, roots: HashMap::new(), takes_inputs: false }
    }

    /// Returns whether they are the values of a section, and not of a region whose launches are among a section's.
    pub(super) fn is_section(&self) -> bool {
        self.takes_inputs
    }
}

/// The source of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Copied {
    Input(u32),
    Made(usize),
}

/// Plans nodes of known types. `work` is the work of each node; `wanted` are the values that are needed
/// afterwards, in the order of the results.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`] for sizes beyond the device's, or beyond the budget of the options.
pub fn plan(
    program: &Program,
    nodes: &[Node],
    work: Vec<NodeWork>,
    wanted: &[ValueId],
    env: &Env,
    options: &PlanOptions,
) -> Result<Section> {
    let planner = |streams_weights: bool| {
        let sites = work.iter().flat_map(NodeWork::sites).collect();
        let lanes = Lanes::new(env, sites, streams_weights);
        launched(program, nodes, &work, wanted, (env, options, lanes))
    };
    match options.memory_budget {
        None => planner(false)?.assembled(),
        Some(budget) => streaming::within(budget, planner),
    }
}

/// Launches, and the source of each wanted value.
pub(super) struct Launched<'a> {
    pub(super) planner: Planner<'a>,
    pub(super) wanted: Vec<(ValueId, Root)>,
}

impl Launched<'_> {
    /// Returns the section that they become.
    ///
    /// # Errors
    /// As [`plan`].
    pub(super) fn assembled(mut self) -> Result<Section> {
        let layout = self.planner.lay_out(&self.wanted)?;
        self.planner.assemble(layout)
    }
}

fn launched<'a>(
    program: &'a Program,
    nodes: &[Node],
    work: &[NodeWork],
    wanted: &[ValueId],
    (env, options, lanes): (&'a Env, &'a PlanOptions, Lanes),
) -> Result<Launched<'a>> {
    let mut scope = Scope { program, roots: HashMap::new(), takes_inputs: true };
    let mut planner = Planner {
        program,
        env,
        device: env.site(lanes.home()).0,
        lanes,
        options,
        rates: env.rates(),
        copies: HashMap::new(),
        inputs: Vec::new(),
        made: Vec::new(),
        launches: Vec::new(),
        region: 0,
        regions: Regions::default(),
        last_exit: HashMap::new(),
        flows: Vec::new(),
        phis: Vec::new(),
    };
    for (node, work) in nodes.iter().zip(work) {
        planner.node(&mut scope, node, work.clone()).map_err(|e| e.at_node(node.label()))?;
    }
    let wanted = wanted
        .iter()
        .map(|&id| {
            let size = planner.shaped(program, id)?.size;
            let root = planner.root(&mut scope, id)?;
            Ok((id, planner.as_result(root, size)?))
        })
        .collect::<Result<Vec<_>>>()?;
    Ok(Launched { planner, wanted })
}

pub(super) struct Planner<'a> {
    pub(super) program: &'a Program,
    pub(super) env: &'a Env,
    pub(super) lanes: Lanes,
    /// The device of the first lane, whose memory inputs and results live in.
    pub(super) device: &'a Arc<Device>,
    pub(super) options: &'a PlanOptions,
    pub(super) rates: Rates,
    /// Copied values, by their source and the memory that they were copied to.
    pub(super) copies: HashMap<(Copied, u32), usize>,
    pub(super) inputs: Vec<ValueId>,
    pub(super) made: Vec<Made>,
    pub(super) launches: Vec<Launch>,
    /// The region that launches are in from now on.
    pub(super) region: u32,
    pub(super) regions: Regions,
    /// The last exit in each region.
    pub(super) last_exit: HashMap<u32, u32>,
    /// Phis of each control flow.
    pub(super) flows: Vec<Phis>,
    pub(super) phis: Vec<Phi>,
}

impl Planner<'_> {
    pub(super) fn shaped(&self, program: &Program, id: ValueId) -> Result<Shaped> {
        let value = program.value(id);
        let ty = value.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?)));
        let (dtype, shape) = ty.ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("value %{} of unknown type in a section", id.0))
        })?;
        Shaped::new(dtype, &shape).ok_or_else(|| too_large(program, id, self.device))
    }

    pub(super) fn root(&mut self, scope: &mut Scope<'_>, id: ValueId) -> Result<Root> {
        if let Some(root) = scope.roots.get(&id) {
            return Ok(root.clone());
        }
        let root = match scope.program.constant(id) {
            Some(tensor) => Root::Constant(tensor.clone()),
            None if scope.takes_inputs => {
                self.inputs.push(id);
                Root::Input(self.inputs.len() as u32 - 1, 0)
            }
            None => {
                let text = format!("value %{} of a region is neither made nor taken", id.0);
                return Err(Error::new(ErrorKind::Internal, text));
            }
        };
        scope.roots.insert(id, root.clone());
        Ok(root)
    }

    /// Adds the launches of a node.
    pub(super) fn node(&mut self, scope: &mut Scope<'_>, node: &Node, work: NodeWork) -> Result<()> {
        look()?;
        if let NodeWork::View(offsets) = work {
            let Some(input) = node.input(0) else {
                return Err(Error::new(ErrorKind::InvalidModel, "a view without an input"));
            };
            let whole = self.root(scope, input)?;
            for (output, &offset) in node.outputs.iter().zip(&*offsets) {
                let Some(output) = *output else {
                    continue;
                };
                let part = self.part(&whole, offset, &self.shaped(scope.program, output)?)?;
                scope.roots.insert(output, part);
            }
            return Ok(());
        }
        if let NodeWork::Unrolled(unrolled) = work {
            return self.unrolled(scope, node, &unrolled);
        }
        if let NodeWork::Flow(flow) = work {
            return self.flow(scope, node, &flow);
        }
        let sizes: Vec<Option<usize>> = node
            .outputs
            .iter()
            .map(|id| id.map(|id| Ok(self.shaped(scope.program, id)?.size)).transpose())
            .collect::<Result<_>>()?;
        let (site, work) = match work {
            NodeWork::Kernel(site, chosen) => (site, Work::Kernel(chosen)),
            NodeWork::Nested(site, nested) => (site, Work::Nested(nested, node.inputs.len())),
            NodeWork::View(_)
            | NodeWork::Claimed(_)
            | NodeWork::Unrolled(_)
            | NodeWork::Flow(_)
            | NodeWork::Later => {
                return Err(Error::new(ErrorKind::Internal, "a node in a section has no device"));
            }
        };
        let lane = self.lanes.for_kernels(site);
        let memory = self.lanes.get(lane).memory;
        if self.join(scope, node, memory)? {
            return Ok(());
        }
        let device = self.env.site(site).0;
        for (id, size) in node.outputs.iter().zip(&sizes) {
            if let (Some(id), Some(size)) = (*id, *size)
                && !takes(device, size)
            {
                return Err(too_large(scope.program, id, device));
            }
        }
        let captures = match &work {
            Work::Nested(nested, _) => {
                nested.regions.iter().flat_map(|region| region.captures.clone()).collect()
            }
            _ => Vec::new(),
        };
        let mut inputs = Vec::with_capacity(node.inputs.len() + captures.len());
        for input in node.inputs.iter().copied().chain(captures.into_iter().map(Some)) {
            inputs.push(match input {
                Some(id) => {
                    let (root, size) = (self.root(scope, id)?, self.shaped(scope.program, id)?.size);
                    if !takes(device, size) {
                        return Err(too_large(scope.program, id, device));
                    }
                    let root = self.in_memory(root, memory, &|| node.label())?;
                    Some((self.aligned(root, size, memory, node), size))
                }
                None => None,
            });
        }
        // A node whose outputs are all empty has nothing to write, so it is not launched.
        let empty = sizes.iter().flatten().all(|&size| size == 0);
        let launch = self.launches.len() as u32;
        let mut outputs = Vec::with_capacity(sizes.len());
        for (id, size) in node.outputs.iter().zip(&sizes) {
            // A region gives all its results, wanted or not.
            let Some(size) = size.or_else(|| work.result_size(outputs.len())) else {
                outputs.push(None);
                continue;
            };
            self.made.push(Made::new(size, launch, memory));
            if let Some(id) = *id {
                scope.roots.insert(id, Root::Made(self.made.len() - 1, 0));
            }
            outputs.push(Some(self.made.len() - 1));
        }
        if empty {
            return Ok(());
        }
        let operand_bytes = inputs.iter().flatten().map(|(_, size)| size).chain(sizes.iter().flatten()).sum();
        let signature = match &work {
            Work::Kernel(chosen) => self.env.signature(scope.program, node, &chosen.name),
            _ => None,
        };
        let cost = match &work {
            Work::Kernel(chosen) => {
                let kind = WorkKind::of(scope.program, node);
                let counted = chosen.cost.as_ref();
                self.env.launch_cost((site, kind), signature.as_deref(), counted, operand_bytes)
            }
            Work::Nested(nested, _) => nested.cost(scope.program, node),
            _ => Cost::default(),
        };
        let (label, name) = (node.label(), Arc::clone(&node.name));
        let first = node.outputs.iter().flatten().next();
        let output = first.map_or_else(|| Arc::from(""), |&id| Arc::clone(&scope.program.value(id).name));
        let after = Vec::new();
        self.launch(Launch {
            label,
            name,
            output,
            lane,
            region: 0,
            work,
            inputs,
            outputs,
            after,
            stage: 0,
            cost,
            signature,
        });
        Ok(())
    }

    /// Adds a launch to the region that is open.
    pub(super) fn launch(&mut self, launch: Launch) {
        for (root, _) in launch.inputs.iter().flatten() {
            if let Root::Made(made, _) = root {
                self.made[*made].users.push(self.launches.len() as u32);
            }
        }
        self.launches.push(Launch { region: self.region, ..launch });
    }

    /// A value in one of the section's memories: itself, or a copy of the whole that every launch there shares.
    pub(super) fn in_memory(
        &mut self,
        root: Root,
        memory: u32,
        for_whom: &dyn Fn() -> String,
    ) -> Result<Root> {
        let (copied, from, offset) = match root {
            Root::Constant(_) => return Ok(root),
            Root::Input(input, offset) => (Copied::Input(input), 0, offset),
            Root::Made(made, offset) => (Copied::Made(made), self.made[made].memory, offset),
        };
        if from == memory {
            return Ok(root);
        }
        if let Some(&copy) = self.copies.get(&(copied, memory)) {
            return Ok(Root::Made(copy, offset));
        }
        let (whole, size) = match copied {
            Copied::Input(input) => {
                (Root::Input(input, 0), self.shaped(self.program, self.inputs[input as usize])?.size)
            }
            Copied::Made(made) => (Root::Made(made, 0), self.made[made].size),
        };
        let copy = if from != 0 && memory != 0 {
            // Handles never leave their plugin (B10): copy through the host.
            let on_host = self.in_memory(whole, 0, for_whom)?;
            match self.in_memory(on_host, memory, for_whom)? {
                Root::Made(copy, _) => copy,
                _ => return Err(Error::new(ErrorKind::Internal, "a copy has no device")),
            }
        } else {
            let kind = if memory == 0 { CopyKind::FromDevice } else { CopyKind::ToDevice };
            let lane = self.lanes.for_copies(kind, memory.max(from));
            self.copy(whole, size, (kind, lane, memory), &for_whom())
        };
        self.copies.insert((copied, memory), copy);
        Ok(Root::Made(copy, offset))
    }

    /// Adds a copy and returns its result. An empty value needs none.
    fn copy(
        &mut self,
        of: Root,
        size: usize,
        (kind, lane, memory): (CopyKind, u32, u32),
        label: &str,
    ) -> usize {
        self.made.push(Made::new(size, self.launches.len() as u32, memory));
        let copy = self.made.len() - 1;
        if size > 0 {
            let site = self.lanes.get(lane).site;
            let (device, cost) = (self.env.site(site).0.name(), self.env.copy_cost(site, kind, size));
            let label = match kind {
                CopyKind::ToDevice => format!("copy to {device} for {label}"),
                CopyKind::FromDevice => format!("copy from {device} for {label}"),
                CopyKind::Within => format!("copy on {device} for {label}"),
            };
            self.launch(Launch {
                label,
                name: Arc::from(""),
                output: Arc::from(""),
                lane,
                region: 0,
                work: Work::Copy(kind),
                inputs: vec![Some((of, size))],
                outputs: vec![Some(copy)],
                after: Vec::new(),
                stage: 0,
                cost,
                signature: self.env.asks_signatures().then(|| feedback::signature_of_copy(kind, size).into()),
            });
        }
        copy
    }

    /// A copy of a value, or of a part of one, in the memory that it is in.
    pub(super) fn moved(&mut self, root: Root, size: usize, label: &str) -> usize {
        let memory = match root {
            Root::Made(made, _) => self.made[made].memory,
            _ => 0,
        };
        self.moved_to(memory, root, size, label)
    }

    /// As [`Planner::moved`], in a memory that the value is in; constants are in every one.
    pub(super) fn moved_to(&mut self, memory: u32, root: Root, size: usize, label: &str) -> usize {
        let lane = self.lanes.for_moves(memory);
        self.copy(root, size, (CopyKind::Within, lane, memory), label)
    }

    /// Returns whether an operand of kernels may begin at an offset of a memory. In the host's its address alone may
    /// name it.
    pub(super) fn may_begin_at(&self, offset: usize, memory: u32) -> bool {
        let site = self.lanes.site_of(memory);
        let align = self.env.site(site).0.space().bind_align.max(1) as usize;
        offset.is_multiple_of(align) || self.env.reads_host_memory(site)
    }

    /// A value as an operand: a copy of it, if it is a part that begins where operands may not.
    pub(super) fn aligned(&mut self, root: Root, size: usize, memory: u32, node: &Node) -> Root {
        match root {
            Root::Made(_, offset) | Root::Input(_, offset) if !self.may_begin_at(offset, memory) => {
                Root::Made(self.moved(root, size, &node.label()), 0)
            }
            root => root,
        }
    }

    /// A value as a result: in the section's first memory, and a whole one.
    fn as_result(&mut self, root: Root, size: usize) -> Result<Root> {
        let root = self.in_memory(root, 0, &|| "a result".to_owned())?;
        let is_whole = match root {
            Root::Constant(_) => return Ok(root),
            Root::Input(input, offset) => {
                offset == 0 && self.shaped(self.program, self.inputs[input as usize])?.size == size
            }
            Root::Made(made, offset) => {
                let made = &self.made[made];
                offset == 0 && made.part_of.is_none() && made.phi.is_none() && made.size == size
            }
        };
        let root = if is_whole { root } else { Root::Made(self.moved(root, size, "a result"), 0) };
        if let Root::Made(made, _) = root {
            self.made[made].wanted = true;
        }
        Ok(root)
    }

    /// Returns the launches that make a value; none for a value without elements.
    pub(super) fn makers(&self, made: usize) -> &[u32] {
        let made = &self.made[made];
        match (made.size, made.part_makers.is_empty()) {
            (0, _) => &[],
            (_, true) => std::slice::from_ref(&made.maker),
            (_, false) => &made.part_makers,
        }
    }
}

/// Returns whether an operand of a size is not too large for a device.
pub(crate) fn takes(device: &Device, size: usize) -> bool {
    let limit = device.space().bind_max;
    limit == 0 || size as u64 <= limit
}

fn too_large(program: &Program, id: ValueId, device: &Device) -> Error {
    let value = program.value(id);
    let ty = value.ty.as_ref().map(ToString::to_string).unwrap_or_default();
    let text = format!("value `{}`, {ty}, is larger than the device takes", value.name);
    Error::new(ErrorKind::OutOfMemory, text).in_plugin(device.plugin().name()).on_device(device.name())
}

impl Work {
    /// Returns the input whose memory output `i` may take over.
    pub(super) fn in_place(&self, i: usize) -> Option<usize> {
        match self {
            Self::Kernel(chosen) => chosen.in_place.get(i).copied().flatten(),
            _ => None,
        }
    }

    /// Bytes of result `i` of control flow.
    fn result_size(&self, i: usize) -> Option<usize> {
        let Self::Nested(nested, _) = self else {
            return None;
        };
        // The first result of a loop's body is the condition.
        let skipped = usize::from(nested.kind == Kind::Loop);
        nested.regions[0].section.results.get(i + skipped).map(|(ty, _)| ty.size)
    }

    /// Bytes of each memory that it needs beside its operands, and does not keep.
    pub(super) fn workspaces(&self) -> Vec<usize> {
        match self {
            Self::Copy(_) | Self::Weight(..) | Self::Entry(..) | Self::Exit(..) => Vec::new(),
            Self::Kernel(chosen) => {
                let (bytes, align) = chosen.kernel.workspace();
                if bytes > 0 { vec![bytes.next_multiple_of(align)] } else { Vec::new() }
            }
            // The arena of the regions, of which one runs at a time; for a loop then the iteration number, two
            // truth values, and the odd places of carried values.
            Self::Nested(nested, _) => {
                let arena = nested.regions.iter().map(|region| region.section.memory.arena).max();
                let mut sizes = vec![arena.unwrap_or(0).next_multiple_of(ALIGN_MAX)];
                if nested.kind == Kind::Loop {
                    sizes.extend([8, 1, 1]);
                    let results = &nested.regions[0].section.results;
                    sizes.extend(results.iter().skip(1).map(|(ty, _)| ty.size));
                }
                sizes
            }
        }
    }
}
