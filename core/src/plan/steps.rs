//! Steps of a section that are no kernels, as data: copies, waits, signals, flushes and control flow.
//!
//! To the launch loop they are steps like any other: a function, a state and references. This file has the states. The
//! functions are the executor's ([`Executor::launch_fn`](super::executor::Executor::launch_fn)); the order of the
//! references is documented with them, in `exec/nested.rs` and `exec/regions.rs`.

use super::order::streams::{SignalAt, WaitFor};
use super::section::{Patch, Section};
use crate::device::Device;
use std::ffi::c_void;
use std::sync::Arc;

/// A step that is no kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OwnStep {
    /// State: [`CopyState`].
    Copy,
    /// State: [`WaitState`].
    Wait,
    /// State: [`SignalState`].
    Signal,
    /// State: the [`Device`].
    Flush,
    /// State: [`IfState`].
    If,
    /// State: [`LoopState`].
    Loop,
    /// State: [`Control`].
    Entry,
    /// State: [`Control`].
    Exit,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum CopyKind {
    /// From the host's memory to the device's.
    ToDevice,
    /// From the device's to the host's.
    FromDevice,
    /// Within one memory.
    Within,
}

/// A copy: source, then destination.
pub(crate) struct CopyState {
    pub device: Arc<Device>,
    pub kind: CopyKind,
}

/// A wait for another lane of the device's: the run's context.
pub(crate) struct WaitState {
    pub device: Arc<Device>,
    pub wait: WaitFor,
}

/// A signal on a lane: the run's context.
pub(crate) struct SignalState {
    pub device: Arc<Device>,
    pub lane: u32,
    pub at: SignalAt,
}

/// The owner of the state of a copy, or of a step that orders streams.
pub(crate) enum Internal {
    Copy(Box<CopyState>),
    Wait(Box<WaitState>),
    Signal(Box<SignalState>),
    /// A flush of a stream whose plugin gathers enqueued work.
    Flush(Arc<Device>),
}

impl Internal {
    pub fn copy(device: &Arc<Device>, kind: CopyKind) -> Self {
        Self::Copy(Box::new(CopyState { device: Arc::clone(device), kind }))
    }

    pub fn wait(device: &Arc<Device>, wait: WaitFor) -> Self {
        Self::Wait(Box::new(WaitState { device: Arc::clone(device), wait }))
    }

    pub fn signal(device: &Arc<Device>, lane: u32, at: SignalAt) -> Self {
        Self::Signal(Box::new(SignalState { device: Arc::clone(device), lane, at }))
    }

    pub fn flush(device: &Arc<Device>) -> Self {
        Self::Flush(Arc::clone(device))
    }

    /// Returns whether the run's context is the step's one reference.
    pub fn wants_context(&self) -> bool {
        matches!(self, Self::Wait(_) | Self::Signal(_))
    }

    /// Returns the kind of the step, and its state.
    pub fn step(&self) -> (OwnStep, *const c_void) {
        match self {
            Self::Copy(state) => (OwnStep::Copy, std::ptr::from_ref(&**state).cast()),
            Self::Wait(state) => (OwnStep::Wait, std::ptr::from_ref(&**state).cast()),
            Self::Signal(state) => (OwnStep::Signal, std::ptr::from_ref(&**state).cast()),
            Self::Flush(device) => (OwnStep::Flush, Arc::as_ptr(device).cast()),
        }
    }
}

/// Where a region's references are, from the step's first.
#[derive(Default)]
pub(crate) struct Block {
    /// The first of them.
    pub first_ref: usize,
    /// The first pair of a copy.
    pub first_copy: usize,
    /// Copies.
    pub n_copies: usize,
}

/// State of an If: branches `else` and `then`.
pub(crate) struct IfState {
    pub branches: [(Arc<Section>, Block); 2],
}

/// State of a Loop.
pub(crate) struct LoopState {
    pub body: Arc<Section>,
    pub blocks: [Block; 3],
    pub n_carried: usize,
}

/// The owner of the state of a control-flow step.
pub(crate) enum ControlState {
    If(Box<IfState>),
    Loop(Box<LoopState>),
}

impl ControlState {
    /// Returns the kind of the step, and its state.
    pub fn step(&self) -> (OwnStep, *const c_void) {
        match self {
            Self::If(state) => (OwnStep::If, std::ptr::from_ref(&**state).cast()),
            Self::Loop(state) => (OwnStep::Loop, std::ptr::from_ref(&**state).cast()),
        }
    }
}

/// Positions of a loop's references.
pub(crate) mod of_loop {
    pub const TRIPS: usize = 1;
    pub const CONDITION: usize = 2;
    pub const ITERATION: usize = 3;
    pub const CONDITION_TAKEN: usize = 4;
    pub const CONDITION_GIVEN: usize = 5;
    pub const CARRIED: usize = 6;
}

/// Control flow whose regions are tasks, for its entry and its exit.
pub(crate) struct Control {
    /// Its number among the section's.
    pub number: u32,
    /// The first reference of its entry, and of its exit.
    pub entry_ref: u32,
    pub exit_ref: u32,
    pub flow: Flow,
    /// For each region how often its tasks signal, by lane.
    pub n_signals: Box<[SignalsOfRegion]>,
}

/// Lanes, and how often a region's tasks signal on each.
pub(crate) type SignalsOfRegion = Box<[(u32, u32)]>;

/// The references that control flow redirects, by their positions among the section's.
pub(crate) enum Flow {
    /// Regions are `then` and `else`.
    If { results: Box<[Merge]> },
    /// The one region is the body.
    Loop {
        /// The iteration's number.
        number: u32,
        carried: Box<[Carried]>,
    },
}

/// A result of an If.
pub(crate) struct Merge {
    /// The candidate that `else` gives; the one that `then` gives is next.
    pub first_candidate: u32,
    /// References of its readers.
    pub uses: Box<[Patch]>,
}

/// A carried value.
pub(crate) struct Carried {
    /// Where it is at first, behind iterations of even number, and behind those of odd number.
    pub places: [u32; 3],
    /// References of its readers and its producer in the body, and of its readers behind the loop.
    pub taken: Box<[Patch]>,
    pub given: Box<[Patch]>,
    pub result: Box<[Patch]>,
}
