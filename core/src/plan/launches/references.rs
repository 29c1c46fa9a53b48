//! References: the arguments of each launch of a section, in the order of B21.
//!
//! Memory is assigned when this runs. Constants are placed on their device. Fields that only a frame or a run knows
//! (its arena, its inputs, results and context) are left blank and listed. A control-flow step gets the references of
//! its regions behind its own ([`Emitter::nested`]).

use super::{Made, Root, Storage};
use crate::device::PreparedKernel;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::Counts;
use crate::plan::Env;
use crate::plan::control::nested::{Inlined, InlinedRegion, Kind};
use crate::plan::cost::feedback::CostFrom;
use crate::plan::memory::constants::{ConstantPool, Placed};
use crate::plan::place::kernel::Chosen;
use crate::plan::section::{ArenaRef, Patch, Source, Step, StepKind};
use crate::plan::steps::{Block, ControlState, IfState, Internal, LoopState, of_loop};
use crate::tensor::Tensor;
use devbay_plugin_api::abi::BufferRef;
use std::collections::HashMap;
use std::sync::Arc;

/// The arrays of a section as they grow.
#[derive(Default)]
pub(in crate::plan) struct Parts {
    pub(in crate::plan) steps: Vec<Step>,
    pub(in crate::plan) costs_ns: Vec<f32>,
    pub(in crate::plan) costs_from: Vec<CostFrom>,
    pub(in crate::plan) flops: Vec<u64>,
    pub(in crate::plan) refs: Vec<BufferRef>,
    pub(in crate::plan) arena_refs: Vec<ArenaRef>,
    pub(in crate::plan) context_refs: Vec<u32>,
    pub(in crate::plan) input_patches: Vec<Patch>,
    pub(in crate::plan) output_patches: Vec<Patch>,
    pub(in crate::plan) labels: Vec<String>,
    pub(in crate::plan) kernels: Vec<String>,
    pub(in crate::plan) constants: Vec<Arc<Placed>>,
    /// Constants in the host's memory that runs copy to a device.
    pub(in crate::plan) streamed: Vec<Arc<Placed>>,
    /// By device and content.
    pub(in crate::plan) placed: HashMap<(usize, (usize, usize)), usize>,
    pub(in crate::plan) nested: Vec<ControlState>,
    pub(in crate::plan) kinds: Vec<StepKind>,
    pub(in crate::plan) internals: Vec<Internal>,
    /// The name of each step's node, if they are traced.
    pub(in crate::plan) names: Vec<String>,
    /// The name of each step's first result, if they are traced.
    pub(in crate::plan) outputs: Vec<String>,
    /// Work of launches, if they are traced and their kernels say.
    pub(in crate::plan) counts: Vec<Option<Counts>>,
    /// Keys of launches in measurements, if they are traced.
    pub(in crate::plan) signatures: Vec<Option<Arc<str>>>,
    /// The launch of each step, if it is one.
    pub(in crate::plan) launch_of: Vec<Option<u32>>,
    /// True if each step has the run's context in front of its references.
    pub(in crate::plan) traced: bool,
    /// References to phis, which entries and exits point somewhere.
    pub(in crate::plan) phi_uses: Vec<(u32, Patch)>,
    /// Control flow, and the step that its entry is.
    pub(in crate::plan) entries: Vec<(usize, usize)>,
    /// The same of exits.
    pub(in crate::plan) exits: Vec<(usize, usize)>,
}

impl Parts {
    /// Adds a reference to the run's context, which the frame fills in.
    fn add_context(&mut self) {
        self.context_refs.push(self.refs.len() as u32);
        self.refs.push(BufferRef::ABSENT);
    }

    /// A wait, a signal or a flush on a lane: a step whose one reference, if it has one, is the run's context.
    pub(in crate::plan) fn internal(&mut self, env: &Env, internal: Internal, lane: u32, label: String) {
        let (own, state) = internal.step();
        let launch = env.launch_fn(own);
        if self.traced {
            self.add_context();
        }
        self.steps.push(Step { launch, state, first_ref: self.refs.len() as u32, lane });
        if internal.wants_context() {
            self.add_context();
        }
        self.launch_of.push(None);
        if self.traced {
            self.names.push(String::new());
            self.outputs.push(String::new());
            self.counts.push(None);
            self.signatures.push(None);
        }
        self.labels.push(label);
        self.kernels.push(String::new());
        self.kinds.push(StepKind::Order);
        self.costs_ns.push(0.0);
        self.costs_from.push(CostFrom::Estimate);
        self.flops.push(0);
        self.internals.push(internal);
    }
}

/// Where an operand lies.
#[derive(Clone, Copy)]
pub(in crate::plan) enum Home<'a> {
    /// An input, from an offset on.
    Input(u32, usize),
    /// A constant, from an offset on.
    Constant(&'a Tensor, usize),
    /// A storage, from an offset on.
    Storage(usize, usize),
}

impl Home<'_> {
    /// Returns the reference so many bytes further on.
    fn from(self, bytes: usize) -> Self {
        match self {
            Self::Input(input, offset) => Self::Input(input, offset + bytes),
            Self::Constant(tensor, offset) => Self::Constant(tensor, offset + bytes),
            Self::Storage(storage, offset) => Self::Storage(storage, offset + bytes),
        }
    }
}

/// A part of the memory that a reference names.
pub(crate) fn part_of(whole: BufferRef, offset: u64, length: u64) -> BufferRef {
    BufferRef {
        // 0 stays unknown.
        addr: if whole.addr == 0 { 0 } else { whole.addr + offset },
        offset: whole.offset + offset,
        length,
        ..whole
    }
}

/// Writes references of launches whose memory is assigned.
pub(in crate::plan) struct Emitter<'a> {
    pub(in crate::plan) parts: &'a mut Parts,
    pub(in crate::plan) pool: &'a ConstantPool,
    /// The device that will read them, and the one that allocates the first memory, by position.
    pub(in crate::plan) site: usize,
    pub(in crate::plan) home: usize,
    /// Alignment of operands in buffers of the first memory, if that is the host's.
    pub(in crate::plan) host_align: Option<usize>,
    pub(in crate::plan) made: &'a [Made],
    pub(in crate::plan) storages: &'a [Storage],
    pub(in crate::plan) offsets: &'a [usize],
}

impl Emitter<'_> {
    fn home<'r>(&self, root: &'r Root) -> Home<'r> {
        match root {
            Root::Input(input, offset) => Home::Input(*input, *offset),
            Root::Constant(tensor) => Home::Constant(tensor, 0),
            Root::Made(made, offset) => {
                let made = &self.made[*made];
                Home::Storage(made.storage, made.offset + offset)
            }
        }
    }

    /// Returns whether a part of a value in the host's memory begins where a buffer's operand may not: then its address
    /// alone names it (B10).
    fn is_between(&self, offset: usize) -> bool {
        self.host_align.is_some_and(|align| !offset.is_multiple_of(align))
    }

    /// Adds the reference to an operand.
    fn add(&mut self, home: Home<'_>, size: usize) -> Result<()> {
        let ref_idx = self.parts.refs.len() as u32;
        let blank = BufferRef { length: size as u64, ..BufferRef::ABSENT };
        let reference = match home {
            Home::Input(operand, offset) => {
                let foreign = self.site != self.home || self.is_between(offset);
                let (offset, length) = (offset as u64, size as u64);
                self.parts.input_patches.push(Patch { ref_idx, operand, foreign, offset, length });
                blank
            }
            Home::Constant(tensor, offset) => {
                let constants = &mut self.parts.constants;
                let at = match self.parts.placed.get(&(self.site, tensor.identity())) {
                    Some(&at) => at,
                    None => {
                        constants.push(self.pool.place(tensor)?);
                        self.parts.placed.insert((self.site, tensor.identity()), constants.len() - 1);
                        constants.len() - 1
                    }
                };
                part_of(constants[at].reference(), offset as u64, size as u64)
            }
            Home::Storage(storage, offset) => match self.storages[storage].written {
                Some(operand) => {
                    let foreign = self.site != self.home || self.is_between(offset);
                    let (offset, length) = (offset as u64, size as u64);
                    self.parts.output_patches.push(Patch { ref_idx, operand, foreign, offset, length });
                    blank
                }
                None if self.storages[storage].phi.is_some() => {
                    let phi = self.storages[storage].phi.unwrap_or_default();
                    let memory = self.storages[storage].memory;
                    let foreign = memory == 0 && (self.site != self.home || self.is_between(offset));
                    let (offset, length) = (offset as u64, size as u64);
                    self.parts.phi_uses.push((phi, Patch { ref_idx, operand: 0, foreign, offset, length }));
                    blank
                }
                None => {
                    // Memory that another device allocated is named by its address alone: all but the first memory are
                    // touched by the device that allocates them.
                    let memory = self.storages[storage].memory;
                    let foreign = memory == 0 && (self.site != self.home || self.is_between(offset));
                    self.parts.arena_refs.push(ArenaRef { ref_idx, memory, foreign });
                    BufferRef { offset: (self.offsets[storage] + offset) as u64, ..blank }
                }
            },
        };
        self.parts.refs.push(reference);
        Ok(())
    }

    fn add_storage(&mut self, storage: usize) -> Result<()> {
        self.add(Home::Storage(storage, 0), self.storages[storage].size)
    }

    fn add_result(&mut self, made: Option<usize>) -> Result<()> {
        match made {
            None => {
                self.parts.refs.push(BufferRef::ABSENT);
                Ok(())
            }
            Some(made) => {
                let made = &self.made[made];
                self.add(Home::Storage(made.storage, made.offset), made.size)
            }
        }
    }

    pub(in crate::plan) fn add_operand(&mut self, operand: Option<&Option<(Root, usize)>>) -> Result<()> {
        match operand {
            Some(Some((root, size))) => self.add(self.home(root), *size),
            _ => {
                self.parts.refs.push(BufferRef::ABSENT);
                Ok(())
            }
        }
    }

    /// Adds the reference to the run's context, which the frame fills in.
    pub(in crate::plan) fn add_context(&mut self) {
        self.parts.add_context();
    }

    /// References of a copy: source, destination.
    pub(in crate::plan) fn copy(
        &mut self,
        inputs: &[Option<(Root, usize)>],
        outputs: &[Option<usize>],
    ) -> Result<()> {
        self.add_operand(inputs.first())?;
        self.add_result(outputs.first().copied().flatten())
    }

    /// References of a copy of a constant for an input of a kernel, in the layout that it asks for: source, destination.
    pub(in crate::plan) fn weight(
        &mut self,
        kernel: &PreparedKernel,
        input: usize,
        inputs: &[Option<(Root, usize)>],
        outputs: &[Option<usize>],
    ) -> Result<()> {
        let Some(Some((Root::Constant(tensor), _))) = inputs.first() else {
            return Err(Error::new(ErrorKind::Internal, "a streamed constant without its source"));
        };
        let pack = kernel.packs().iter().find(|pack| pack.input_idx == input);
        let kept = self.pool.keep_on_host(tensor, kernel, pack)?;
        self.parts.refs.push(kept.reference());
        self.parts.streamed.push(kept);
        self.add_result(outputs.first().copied().flatten())
    }

    /// References of a kernel, in the order of B21.
    pub(in crate::plan) fn operands(
        &mut self,
        chosen: &Chosen,
        inputs: &[Option<(Root, usize)>],
        outputs: &[Option<usize>],
        workspace: &[usize],
    ) -> Result<()> {
        let kernel = &chosen.kernel;
        for (i, operand) in inputs.iter().enumerate() {
            let pack = kernel.packs().iter().find(|pack| pack.input_idx == i);
            match (operand, pack) {
                (Some((Root::Constant(tensor), _)), Some(pack)) => {
                    let placed = self.pool.place_packed(tensor, kernel, pack)?;
                    self.parts.refs.push(placed.reference());
                    self.parts.constants.push(placed);
                }
                _ => self.add_operand(Some(operand))?,
            }
        }
        for &output in outputs {
            self.add_result(output)?;
        }
        for &storage in workspace {
            self.add_storage(storage)?;
        }
        Ok(())
    }

    /// References of a control-flow step (their order is in `exec/nested.rs`), and its state.
    pub(in crate::plan) fn nested(
        &mut self,
        nested: Inlined,
        inputs: &[Option<(Root, usize)>],
        n_operands: usize,
        outputs: &[Option<usize>],
        workspaces: &[usize],
    ) -> Result<ControlState> {
        let first = self.parts.refs.len();
        self.add_context();
        let captured: Vec<Home<'_>> =
            inputs[n_operands..].iter().flatten().map(|(root, _)| self.home(root)).collect();
        let mut regions = nested.regions.into_iter();
        let broken = || Error::new(ErrorKind::Internal, "control flow without its regions");
        match nested.kind {
            Kind::If => {
                self.add_operand(inputs.first())?;
                let results: Vec<Option<Home<'_>>> = outputs.iter().map(|&made| self.result(made)).collect();
                let (Some(then), Some(otherwise)) = (regions.next(), regions.next()) else {
                    return Err(broken());
                };
                let (of_then, of_else) = captured.split_at(then.captures.len());
                let then_block = self.block(&then, of_then, &results, workspaces[0], first)?;
                let else_block = self.block(&otherwise, of_else, &results, workspaces[0], first)?;
                let branches = [(otherwise.section, else_block), (then.section, then_block)];
                Ok(ControlState::If(Box::new(IfState { branches })))
            }
            Kind::Loop => {
                let body = regions.next().ok_or_else(broken)?;
                self.add_operand(inputs.first())?;
                self.add_operand(inputs.get(1))?;
                let &[arena, iteration, taken, given, ref odd @ ..] = workspaces else {
                    return Err(broken());
                };
                for storage in [iteration, taken, given] {
                    self.add_storage(storage)?;
                }
                debug_assert_eq!(self.parts.refs.len() - first, of_loop::CARRIED);
                let mut places: [Vec<Home<'_>>; 3] = Default::default();
                for (c, &odd) in odd.iter().enumerate() {
                    let operand = inputs.get(2 + c).and_then(Option::as_ref).ok_or_else(broken)?;
                    self.add_operand(inputs.get(2 + c))?;
                    self.add_storage(odd)?;
                    self.add_result(outputs.get(c).copied().flatten())?;
                    places[0].push(self.home(&operand.0));
                    places[1].push(Home::Storage(odd, 0));
                    places[2].push(self.result(outputs.get(c).copied().flatten()).ok_or_else(broken)?);
                }
                let mut blocks: [Block; 3] = Default::default();
                for (block, (from, to)) in blocks.iter_mut().zip([(0, 1), (1, 2), (2, 1)]) {
                    let mut operands = vec![Home::Storage(iteration, 0), Home::Storage(taken, 0)];
                    operands.extend(&places[from]);
                    operands.extend(&captured);
                    let mut results = vec![Some(Home::Storage(given, 0))];
                    results.extend(places[to].iter().copied().map(Some));
                    *block = self.block(&body, &operands, &results, arena, first)?;
                }
                let n_carried = odd.len();
                Ok(ControlState::Loop(Box::new(LoopState { body: body.section, blocks, n_carried })))
            }
        }
    }

    fn result(&self, made: Option<usize>) -> Option<Home<'static>> {
        made.map(|made| Home::Storage(self.made[made].storage, self.made[made].offset))
    }

    /// A region's references, pointed at the surrounding values that it takes and gives.
    fn block(
        &mut self,
        region: &InlinedRegion,
        operands: &[Home<'_>],
        results: &[Option<Home<'_>>],
        arena: usize,
        first: usize,
    ) -> Result<Block> {
        let section = &region.section;
        let start = self.parts.refs.len();
        let mut homes: HashMap<u32, Home<'_>> = HashMap::new();
        let missing = || Error::new(ErrorKind::Internal, "a region's operand is missing");
        for patch in &section.input_patches {
            let operand = region.operands[patch.operand as usize];
            let home = operands.get(operand).ok_or_else(missing)?;
            homes.insert(patch.ref_idx, home.from(patch.offset as usize));
        }
        for patch in &section.output_patches {
            let result = section.result_of_written[patch.operand as usize] as usize;
            let home = results.get(result).copied().flatten().ok_or_else(missing)?;
            homes.insert(patch.ref_idx, home.from(patch.offset as usize));
        }
        for at in section.arena_refs.iter().map(|reference| reference.ref_idx) {
            homes.insert(at, Home::Storage(arena, section.refs[at as usize].offset as usize));
        }
        for (i, reference) in section.refs.iter().enumerate() {
            match homes.get(&(i as u32)) {
                Some(&home) => self.add(home, reference.length as usize)?,
                None => self.parts.refs.push(*reference),
            }
        }
        self.parts.context_refs.extend(section.context_refs.iter().map(|&at| start as u32 + at));
        let mut block =
            Block { first_ref: start - first, first_copy: self.parts.refs.len() - first, n_copies: 0 };
        for (i, (ty, source)) in section.results.iter().enumerate() {
            let Some(to) = results.get(i).copied().flatten() else {
                continue;
            };
            let from = match source {
                Source::Written(_) => continue,
                Source::Input(input) => {
                    *operands.get(region.operands[*input as usize]).ok_or_else(missing)?
                }
                Source::Constant(tensor) => Home::Constant(tensor, 0),
                Source::Same(earlier) => results[*earlier as usize].ok_or_else(missing)?,
            };
            self.add(from, ty.size)?;
            self.add(to, ty.size)?;
            block.n_copies += 1;
        }
        Ok(block)
    }
}
