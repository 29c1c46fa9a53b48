//! Straight lines: nodes of known types, planned into launches on one device.
//!
//! A [`Line`] is arrays, not objects: steps, references, patches. It is immutable and shared by all runs; what
//! a run changes is in a [`crate::exec::frame::Frame`]. References to constants are ready-made, those into
//! the arena need the arena's address once per frame, and those to inputs and results are patched per run.

use super::constants::{ConstantPool, Placed};
use super::memory::{self, Interval};
use super::place::{Chosen, choose};
use crate::device::{Device, PreparedKernel};
use crate::error::{Error, ErrorKind, Result};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program, ValueId};
use crate::tensor::{DType, Tensor, bytes_of, n_elements};
use devbay_plugin_api::abi::{BufferRef, LaunchFn};
use std::collections::HashMap;
use std::ffi::c_void;
use std::sync::Arc;

/// One launch.
#[derive(Clone, Copy)]
pub struct Step {
    /// The kernel's function.
    pub launch: LaunchFn,
    /// Its state, kept alive by the line's kernels.
    pub state: *const c_void,
    /// Position of its first reference.
    pub first_ref: u32,
    /// Position of its label.
    pub label: u32,
}

// SAFETY: the function and state are a prepared kernel's, which many threads launch at once (B21).
unsafe impl Send for Step {}
// SAFETY: as for Send.
unsafe impl Sync for Step {}

/// A reference that is made when the operand is known.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Position of the reference.
    pub ref_idx: u32,
    /// Position of the input or result.
    pub operand: u32,
}

/// Where a result of a line comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// Kernels write it where the caller says; its position among written ones.
    Written(u32),
    /// It is an input, possibly with another shape.
    Input(u32),
    /// It is a constant.
    Constant(Tensor),
    /// It is the same as an earlier result, possibly with another shape.
    Same(u32),
}

/// Type of an operand, in full.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Shaped {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: Arc<[usize]>,
    /// Bytes.
    pub size: usize,
}

impl Shaped {
    /// A type in full; None if its size overflows.
    pub fn new(dtype: DType, shape: &[usize]) -> Option<Self> {
        let size = n_elements(shape).and_then(|n| bytes_of(dtype, n))?;
        Some(Self { dtype, shape: shape.into(), size })
    }
}

/// Memory of a line, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// Bytes of the arena.
    pub arena: usize,
    /// Most bytes that live at one step.
    pub lower_bound: usize,
    /// Bytes of constants that kernels read.
    pub constants: usize,
}

/// A planned line of launches.
pub struct Line {
    /// The device.
    pub device: Arc<Device>,
    /// Launches in order.
    pub steps: Box<[Step]>,
    /// References, a run of them for each step.
    pub refs: Box<[BufferRef]>,
    /// Which references are offsets into the arena.
    pub arena_refs: Box<[u32]>,
    /// Which references are inputs.
    pub input_patches: Box<[Patch]>,
    /// Which references are written results.
    pub output_patches: Box<[Patch]>,
    /// Types of the inputs.
    pub inputs: Box<[Shaped]>,
    /// Values of the program that the inputs are.
    pub input_ids: Box<[ValueId]>,
    /// Types of the results, and where they come from.
    pub results: Box<[(Shaped, Source)]>,
    /// Types of the written results.
    pub written: Box<[Shaped]>,
    /// Which result each written one is.
    pub result_of_written: Box<[u32]>,
    /// Memory.
    pub memory: MemoryReport,
    /// Names of nodes, for errors.
    pub labels: Box<[String]>,
    /// What each step runs, for reports: op and kernel.
    pub kernels: Box<[String]>,
    /// Keeps the steps' states alive.
    prepared: Box<[Arc<PreparedKernel>]>,
    /// Keeps the constants' memory alive.
    constants: Box<[Arc<Placed>]>,
}

impl Line {
    /// Keeps what launches use for good: nobody can say when the device stops touching it (ABI-NOTES 1).
    pub(crate) fn leak(&self) {
        std::mem::forget((self.prepared.clone(), self.constants.clone()));
    }

    /// The node with the largest operand in the arena, for the error when there is no memory for it.
    pub(crate) fn largest_in_arena(&self) -> Option<&str> {
        let largest = *self.arena_refs.iter().max_by_key(|&&i| self.refs[i as usize].length)?;
        let step = self.steps.iter().rfind(|step| step.first_ref <= largest)?;
        Some(&self.labels[step.label as usize])
    }
}

/// Where a value lives.
#[derive(Clone, Debug)]
enum Home {
    /// The value of an input, possibly with another shape.
    Input(u32),
    /// A constant.
    Constant(Tensor),
    /// Memory of its own: a storage number.
    Storage(usize),
}

/// Memory that one or more values share: views, and results in place.
struct Storage {
    size: usize,
    first: u32,
    last: u32,
    /// Position among the written results, if the caller gives the memory.
    written: Option<u32>,
}

/// Plans nodes of known types. `wanted` are the values that are needed afterwards, in the order in which
/// results are given; `pool` has the device's constants.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for a node without a kernel, with what each kernel said;
/// [`ErrorKind::OutOfMemory`] for sizes beyond the device's.
pub fn plan(
    program: &Program,
    nodes: &[Node],
    wanted: &[ValueId],
    pool: &ConstantPool,
    device: &Arc<Device>,
) -> Result<Line> {
    let mut planner = Planner {
        program,
        device,
        pool,
        homes: HashMap::new(),
        storages: Vec::new(),
        inputs: Vec::new(),
        launches: Vec::new(),
        last_uses: last_uses(nodes, wanted),
    };
    for (at, node) in nodes.iter().enumerate() {
        planner.node(node, at as u32).map_err(|e| e.at_node(node.label()))?;
    }
    planner.finish(wanted, nodes.len() as u32)
}

/// The position of the node that uses a value last; wanted ones are used after the end.
fn last_uses(nodes: &[Node], wanted: &[ValueId]) -> HashMap<ValueId, u32> {
    let mut last = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        for &id in node.inputs.iter().flatten() {
            last.insert(id, at as u32);
        }
    }
    for &id in wanted {
        last.insert(id, u32::MAX);
    }
    last
}

struct Launch {
    kernel: Arc<PreparedKernel>,
    operands: Vec<Option<(Home, usize)>>,
    workspace: Option<usize>,
    label: String,
    op: String,
}

struct Planner<'a> {
    program: &'a Program,
    device: &'a Arc<Device>,
    pool: &'a ConstantPool,
    homes: HashMap<ValueId, Home>,
    storages: Vec<Storage>,
    inputs: Vec<ValueId>,
    launches: Vec<Launch>,
    last_uses: HashMap<ValueId, u32>,
}

impl Planner<'_> {
    fn shaped(&self, id: ValueId) -> Result<Shaped> {
        let value = self.program.value(id);
        let ty = value.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?)));
        let (dtype, shape) = ty.ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("value %{} of unknown type in a straight line", id.0))
        })?;
        let shaped = Shaped::new(dtype, &shape);
        let limit = self.device.space().bind_max;
        shaped.filter(|shaped| limit == 0 || shaped.size as u64 <= limit).ok_or_else(|| {
            let ty = value.ty.as_ref().map(ToString::to_string).unwrap_or_default();
            Error::new(
                ErrorKind::OutOfMemory,
                format!("value `{}`, {ty}, is larger than the device takes", value.name),
            )
            .on_device(self.device.name())
        })
    }

    fn home(&mut self, id: ValueId) -> Home {
        if let Some(home) = self.homes.get(&id) {
            return home.clone();
        }
        let home = match self.program.constant(id) {
            Some(tensor) => Home::Constant(tensor.clone()),
            None => {
                self.inputs.push(id);
                Home::Input(self.inputs.len() as u32 - 1)
            }
        };
        self.homes.insert(id, home.clone());
        home
    }

    fn node(&mut self, node: &Node, at: u32) -> Result<()> {
        let def = catalogue::find(&node.op.domain, &node.op.name);
        if def.is_some_and(|def| def.kind == OpKind::View) {
            let (Some(input), Some(output)) = (node.input(0), node.output(0)) else {
                return Err(Error::new(ErrorKind::InvalidModel, "a view without input or output"));
            };
            let home = match self.home(input) {
                Home::Constant(tensor) => Home::Constant(tensor.reshaped(&self.shaped(output)?.shape)?),
                home => home,
            };
            self.extend_life(&home, output);
            self.homes.insert(output, home);
            return Ok(());
        }

        let mut operands = Vec::with_capacity(node.inputs.len() + node.outputs.len());
        for input in &node.inputs {
            operands.push(match input {
                Some(id) => {
                    let home = self.home(*id);
                    Some((home, self.shaped(*id)?.size))
                }
                None => None,
            });
        }
        let outputs: Vec<Option<Shaped>> =
            node.outputs.iter().map(|id| id.map(|id| self.shaped(id)).transpose()).collect::<Result<_>>()?;
        let Chosen { kernel, in_place, name } = choose(self.program, node, self.device)?;
        for (i, (id, shaped)) in node.outputs.iter().zip(&outputs).enumerate() {
            let (Some(id), Some(shaped)) = (id, shaped) else {
                operands.push(None);
                continue;
            };
            // A result has memory of its own, the caller's: in place it would drag what came before it there, and
            // every run would have to patch all of that.
            let wanted = self.last_uses.get(id) == Some(&u32::MAX);
            let shared = in_place.get(i).copied().flatten().filter(|_| !wanted);
            let shared = shared.and_then(|input| self.reusable(node, input, &operands, shaped.size, at));
            let storage = shared.unwrap_or_else(|| {
                self.storages.push(Storage { size: shaped.size, first: at, last: at, written: None });
                self.storages.len() - 1
            });
            let home = Home::Storage(storage);
            self.extend_life(&home, *id);
            self.homes.insert(*id, home.clone());
            operands.push(Some((home, shaped.size)));
        }
        // Nothing is launched that has nothing to write (ABI-NOTES: empty tensors).
        if outputs.iter().flatten().all(|shaped| shaped.size == 0) {
            return Ok(());
        }
        let (bytes, align) = kernel.workspace();
        let workspace = (bytes > 0).then(|| {
            let size = bytes.next_multiple_of(align);
            self.storages.push(Storage { size, first: at, last: at, written: None });
            self.storages.len() - 1
        });
        self.launches.push(Launch { kernel, operands, workspace, label: node.label(), op: name });
        Ok(())
    }

    /// Keeps the memory of a value until the value's last use.
    fn extend_life(&mut self, home: &Home, id: ValueId) {
        if let Home::Storage(storage) = home {
            let last = self.last_uses.get(&id).copied().unwrap_or(0);
            let storage = &mut self.storages[*storage];
            storage.last = storage.last.max(last);
        }
    }

    /// The memory of an input that an output may take over: it dies here, is as large, and is read by this
    /// node through that input alone.
    fn reusable(
        &self,
        node: &Node,
        input: usize,
        operands: &[Option<(Home, usize)>],
        size: usize,
        at: u32,
    ) -> Option<usize> {
        let (Home::Storage(storage), _) = operands.get(input)?.as_ref()? else {
            return None;
        };
        let dies = self.storages[*storage].last == at && self.storages[*storage].size == size;
        let others = operands[..node.inputs.len()].iter().enumerate().filter(|(i, operand)| {
            *i != input && matches!(operand, Some((Home::Storage(other), _)) if other == storage)
        });
        (dies && others.count() == 0).then_some(*storage)
    }

    fn finish(mut self, wanted: &[ValueId], end: u32) -> Result<Line> {
        // Results first: a storage that is a result lives in the caller's memory, not in the arena.
        let mut results: Vec<(Shaped, Source)> = Vec::new();
        let mut written: Vec<Shaped> = Vec::new();
        let mut result_of_written: Vec<u32> = Vec::new();
        let mut result_of_storage: HashMap<usize, u32> = HashMap::new();
        for (i, &id) in wanted.iter().enumerate() {
            let shaped = self.shaped(id)?;
            let source = match self.home(id) {
                Home::Input(input) => Source::Input(input),
                Home::Constant(tensor) => Source::Constant(tensor),
                Home::Storage(storage) => match result_of_storage.get(&storage) {
                    Some(&earlier) => Source::Same(earlier),
                    None => {
                        result_of_storage.insert(storage, i as u32);
                        self.storages[storage].written = Some(written.len() as u32);
                        written.push(shaped.clone());
                        result_of_written.push(i as u32);
                        Source::Written(written.len() as u32 - 1)
                    }
                },
            };
            results.push((shaped, source));
        }

        let space = self.device.space();
        let align = (space.bind_align.max(64)) as usize;
        let intervals: Vec<(usize, Interval)> = self
            .storages
            .iter()
            .enumerate()
            .filter(|(_, storage)| storage.written.is_none() && storage.size > 0)
            .map(|(i, storage)| {
                (i, Interval { size: storage.size, align, first: storage.first, last: storage.last.min(end) })
            })
            .collect();
        let too_large = || {
            Error::new(ErrorKind::OutOfMemory, "the values of the program are larger than memory")
                .on_device(self.device.name())
        };
        let arena = memory::assign(&intervals.iter().map(|(_, interval)| *interval).collect::<Vec<_>>())
            .ok_or_else(too_large)?;
        let mut offsets = vec![0usize; self.storages.len()];
        for ((storage, _), offset) in intervals.iter().zip(&arena.offsets) {
            offsets[*storage] = *offset;
        }

        let mut line = LineParts::default();
        for launch in &self.launches {
            let first_ref = line.refs.len() as u32;
            for (i, operand) in launch.operands.iter().enumerate() {
                let pack = launch.kernel.packs().iter().find(|pack| pack.input_idx == i);
                match (operand, pack) {
                    (None, _) => line.refs.push(BufferRef::ABSENT),
                    (Some((Home::Constant(tensor), _)), Some(pack)) => {
                        let placed = self.pool.place_packed(tensor, &launch.kernel, pack)?;
                        line.refs.push(placed.reference());
                        line.constants.push(placed);
                    }
                    (Some((home, size)), _) => {
                        line.operand(home, *size, &self.storages, &offsets, self.pool)?
                    }
                }
            }
            if let Some(workspace) = launch.workspace {
                let size = self.storages[workspace].size;
                line.operand(&Home::Storage(workspace), size, &self.storages, &offsets, self.pool)?;
            }
            line.steps.push(Step {
                launch: launch.kernel.launch_fn(),
                state: launch.kernel.state(),
                first_ref,
                label: line.labels.len() as u32,
            });
            line.labels.push(launch.label.clone());
            line.kernels.push(launch.op.clone());
        }
        let inputs = self.inputs.clone();
        let constants = line.constants.iter().map(|placed| placed.reference().length as usize).sum();
        Ok(Line {
            device: Arc::clone(self.device),
            inputs: inputs.iter().map(|&id| self.shaped(id)).collect::<Result<_>>()?,
            input_ids: inputs.into(),
            steps: line.steps.into(),
            refs: line.refs.into(),
            arena_refs: line.arena_refs.into(),
            input_patches: line.input_patches.into(),
            output_patches: line.output_patches.into(),
            results: results.into(),
            written: written.into(),
            result_of_written: result_of_written.into(),
            memory: MemoryReport { arena: arena.size, lower_bound: arena.lower_bound, constants },
            labels: line.labels.into(),
            kernels: line.kernels.into(),
            prepared: self.launches.into_iter().map(|launch| launch.kernel).collect(),
            constants: line.constants.into(),
        })
    }
}

/// The arrays of a line as they grow.
#[derive(Default)]
struct LineParts {
    steps: Vec<Step>,
    refs: Vec<BufferRef>,
    arena_refs: Vec<u32>,
    input_patches: Vec<Patch>,
    output_patches: Vec<Patch>,
    labels: Vec<String>,
    kernels: Vec<String>,
    constants: Vec<Arc<Placed>>,
    placed: HashMap<(usize, usize), usize>,
}

impl LineParts {
    fn operand(
        &mut self,
        home: &Home,
        size: usize,
        storages: &[Storage],
        offsets: &[usize],
        pool: &ConstantPool,
    ) -> Result<()> {
        let ref_idx = self.refs.len() as u32;
        let blank = BufferRef { length: size as u64, ..BufferRef::ABSENT };
        self.refs.push(match home {
            Home::Input(operand) => {
                self.input_patches.push(Patch { ref_idx, operand: *operand });
                blank
            }
            Home::Constant(tensor) => {
                let constants = &mut self.constants;
                let at = match self.placed.get(&tensor.identity()) {
                    Some(&at) => at,
                    None => {
                        constants.push(pool.place(tensor)?);
                        self.placed.insert(tensor.identity(), constants.len() - 1);
                        constants.len() - 1
                    }
                };
                BufferRef { length: size as u64, ..constants[at].reference() }
            }
            Home::Storage(storage) => match storages[*storage].written {
                Some(operand) => {
                    self.output_patches.push(Patch { ref_idx, operand });
                    blank
                }
                None => {
                    self.arena_refs.push(ref_idx);
                    BufferRef { offset: offsets[*storage] as u64, ..blank }
                }
            },
        });
        Ok(())
    }
}
