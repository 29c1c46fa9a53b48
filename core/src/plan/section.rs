//! Sections: nodes of known types, planned into tasks of launches on one device.
//!
//! A [`Section`] is arrays, not objects: steps, tasks, references, patches. It is immutable and shared by all runs; the
//! mutable state of a run is in a frame (`exec/frame.rs`). References to constants are ready-made, those into
//! the arena need the arena's address once per frame, and those to inputs and results are patched per run.

use super::cost::feedback::CostFrom;
use super::memory::constants::Placed;
use super::order::tasks::{NO_TASK, OneTask, TaskGraph};
use super::steps::{Control, ControlState, Internal};
use crate::device::{Device, PreparedKernel};
use crate::program::ValueId;
use crate::tensor::{DType, Tensor, TensorType, bytes_of, n_elements};
use crate::trace::Recorder;
use devbay_plugin_api::abi::{BufferRef, LaunchFn};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// One launch.
#[derive(Clone, Copy)]
pub struct Step {
    /// The kernel's function.
    pub launch: LaunchFn,
    /// Its state, kept alive by the section's kernels.
    pub state: *const c_void,
    /// Position of its first reference.
    pub first_ref: u32,
    /// Position among the section's devices of the one that it is for.
    pub lane: u32,
}

// SAFETY: the function and state are a prepared kernel's, which many threads launch at once (B21).
unsafe impl Send for Step {}
// SAFETY: function and state may be used by several threads at once (B21).
unsafe impl Sync for Step {}

/// A reference that is made when the operand is known.
#[derive(Clone, Copy, Debug)]
pub struct Patch {
    /// Position of the reference.
    pub ref_idx: u32,
    /// Position of the input or result.
    pub operand: u32,
    /// True if another device than the first reads it, which knows memory by its address alone.
    pub foreign: bool,
    /// Where in the operand it begins.
    pub offset: u64,
    /// Its bytes.
    pub length: u64,
}

/// A reference into an arena, which is made when the arena is there: until then its offset is its place in it.
#[derive(Clone, Copy, Debug)]
pub struct ArenaRef {
    /// Position of the reference.
    pub ref_idx: u32,
    /// The section's memory that the arena is in.
    pub memory: u32,
    /// True if another device than that memory's reads it.
    pub foreign: bool,
}

/// A memory of a section.
pub struct Memory {
    /// The device that allocates it.
    pub device: Arc<Device>,
    /// Bytes of its arena.
    pub arena: usize,
}

/// The kind of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A kernel.
    Kernel,
    /// Control flow with all that it runs.
    Nested,
    /// The entry or exit of control flow whose regions are tasks.
    Control,
    /// A copy between the host's memory and a device's.
    Copy,
    /// A wait of one stream for another, a signal, or a flush.
    Order,
}

impl StepKind {
    /// Returns whether it does the work of a node, or copies for it.
    pub fn is_launch(self) -> bool {
        !matches!(self, Self::Order | Self::Control)
    }
}

/// Where a result of a section comes from.
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
    /// Creates a type in full; None if its size overflows.
    pub fn new(dtype: DType, shape: &[usize]) -> Option<Self> {
        let size = n_elements(shape).and_then(|n| bytes_of(dtype, n))?;
        Some(Self { dtype, shape: shape.into(), size })
    }

    /// Returns the alignment of its elements, in bytes: a power of two.
    pub(crate) fn align(&self) -> usize {
        (self.dtype.bits as usize).div_ceil(8).next_power_of_two()
    }

    /// Returns whether it is that type.
    pub(crate) fn is_type(&self, ty: &TensorType) -> bool {
        self.dtype == ty.dtype && ty.known_shape().is_some_and(|shape| *self.shape == *shape)
    }

    /// Returns whether it is the type of these elements and extents.
    #[inline]
    pub(crate) fn is(&self, dtype: DType, shape: &[usize]) -> bool {
        // Shapes are short: a call of `memcmp` takes longer than this loop.
        self.dtype == dtype
            && self.shape.len() == shape.len()
            && self.shape.iter().zip(shape).all(|(own, other)| own == other)
    }
}

/// Bytes of constants by how they lie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ConstantBytes {
    /// In the model's file, which is mapped where it was opened so: all sessions of all processes share them. Those of a compiled
    /// model may be in a kernel's own layout there.
    pub in_file: usize,
    /// In host memory, made when the model was loaded or planned: folded, or not aligned in the file.
    pub made: usize,
    /// In host memory in a kernel's own layout.
    pub packed: usize,
    /// In memory that a device allocated.
    pub uploaded: usize,
}

impl ConstantBytes {
    /// Counts a constant.
    pub(super) fn add(&mut self, placed: &Placed) {
        let size = placed.reference().length as usize;
        let place = match placed {
            Placed::Host(tensor) | Placed::Packed(tensor) if tensor.is_of_file() => &mut self.in_file,
            Placed::Host(_) => &mut self.made,
            Placed::Packed(_) => &mut self.packed,
            Placed::Device(_) | Placed::Pinned(..) => &mut self.uploaded,
        };
        *place += size;
    }

    /// Returns all of them.
    pub fn total(&self) -> usize {
        self.in_file + self.made + self.packed + self.uploaded
    }
}

/// Memory of a section, for reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryReport {
    /// Bytes of the arena.
    pub arena: usize,
    /// Most bytes that live at one step.
    pub lower_bound: usize,
    /// Bytes of constants that kernels read where they stay.
    pub constants: usize,
    /// Bytes of these by place.
    pub constants_by_place: ConstantBytes,
    /// Bytes of constants that every run copies to the device.
    pub streamed: usize,
}

/// A planned stretch of a program.
pub struct Section {
    /// The device whose memory inputs and results live in: that of the first lane.
    pub device: Arc<Device>,
    /// The device of each lane. If several devices take part, the first lane's works in the host's memory.
    pub lanes: Box<[Arc<Device>]>,
    /// Priority of the work on its streams ([`PlanOptions::stream_priority`](super::PlanOptions::stream_priority)).
    pub stream_priority: i32,
    /// True if asynchronous devices take part beside others: then tasks signal and arrive (`plan/order/streams.rs`).
    pub is_placed: bool,
    /// For each lane how often a run signals on it.
    pub n_signals: Box<[u32]>,
    /// Memories that values live in, the first of which is where inputs and results do.
    pub memories: Box<[Memory]>,
    /// Launches, task by task; in this order they could run one after the other.
    pub steps: Box<[Step]>,
    /// Tasks that steps are divided into, and the waits between them.
    pub graph: TaskGraph,
    /// Kind of each step.
    pub kinds: Box<[StepKind]>,
    /// Nanoseconds that each step should take.
    pub costs_ns: Box<[f32]>,
    /// Source of each cost.
    pub costs_from: Box<[CostFrom]>,
    /// Arithmetic operations of each step, as far as kernels say; of both branches of control flow the greater.
    pub flops: Box<[u64]>,
    /// Why it is one task, if it is.
    pub one_task: Option<OneTask>,
    /// Nanoseconds of the longest path of launches.
    pub longest_path_ns: f64,
    /// Tasks that together are worth a hand-over to another thread; `u32::MAX` if all together are not.
    pub n_worth: u32,
    /// References, a run of them for each step.
    pub refs: Box<[BufferRef]>,
    /// References that are offsets into an arena.
    pub arena_refs: Box<[ArenaRef]>,
    /// References to the frame's context.
    pub context_refs: Box<[u32]>,
    /// Number of times that a loop may run its body.
    pub trips_max: u64,
    /// References that are inputs.
    pub input_patches: Box<[Patch]>,
    /// References that are written results.
    pub output_patches: Box<[Patch]>,
    /// Types of the inputs.
    pub inputs: Box<[Shaped]>,
    /// Values of the program that the inputs are.
    pub input_ids: Box<[ValueId]>,
    /// Types of the results, and where they come from.
    pub results: Box<[(Shaped, Source)]>,
    /// Types of the written results.
    pub written: Box<[Shaped]>,
    /// Position among the results of each written one.
    pub result_of_written: Box<[u32]>,
    /// Memory.
    pub memory: MemoryReport,
    /// Name of each step's node, for errors.
    pub labels: Box<[String]>,
    /// Op and kernel of each step, for reports.
    pub kernels: Box<[String]>,
    /// Recorder of the steps and their times, if the section is traced.
    pub(crate) traced: Option<Recorder>,
    /// Keeps the states of wrapped steps alive.
    pub(crate) wrapped: Vec<Box<dyn Any + Send + Sync>>,
    /// Keeps the states of control-flow steps alive.
    pub(crate) nested: Box<[ControlState]>,
    /// The same of entries and exits.
    pub(crate) controls: Box<[Box<Control>]>,
    /// Keeps the states of copies, waits and signals alive.
    #[expect(dead_code, reason = "the steps point into it")]
    pub(crate) internal: Box<[Internal]>,
    /// Keeps the steps' states alive.
    pub(super) prepared: Box<[Arc<PreparedKernel>]>,
    /// Keeps the constants' memory alive.
    pub(super) constants: Box<[Arc<Placed>]>,
}

impl Section {
    /// Returns whether it is one straight line: run by one thread, without a question.
    #[inline]
    pub fn is_line(&self) -> bool {
        self.graph.len() <= 1
    }

    /// Returns whether kernels write all of its results.
    #[inline]
    pub(crate) fn writes_all(&self) -> bool {
        self.written.len() == self.results.len()
    }

    /// Returns whether workers take part in its runs, if there are any.
    pub(crate) fn is_shared(&self) -> bool {
        self.n_worth < NO_TASK
    }

    /// Launches; waits and signals of streams do not count, nor do entries and exits.
    pub fn n_launches(&self) -> usize {
        self.kinds.iter().filter(|kind| kind.is_launch()).count()
    }

    /// Returns whether its launches are taken down ([`PlanOptions::trace`](super::PlanOptions)).
    pub fn is_traced(&self) -> bool {
        self.traced.is_some()
    }

    /// Leaks the memory that launches use, because the device may touch it at any later time (B24).
    pub(crate) fn leak(&self) {
        std::mem::forget((self.prepared.clone(), self.constants.clone()));
    }

    /// Returns the node with the largest operand in the arena, for the error when there is no memory for it.
    pub(crate) fn largest_in_arena(&self) -> Option<&str> {
        let in_arena = self.arena_refs.iter().map(|reference| reference.ref_idx);
        let largest = in_arena.max_by_key(|&i| self.refs[i as usize].length)?;
        let step = self.steps.iter().rposition(|step| step.first_ref <= largest)?;
        Some(&self.labels[step])
    }
}
