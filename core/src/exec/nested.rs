//! If and Loop as steps: planned by [`crate::plan::control::nested`], run with the launch loop itself.
//!
//! To the section around it such a step looks like any launch: a function, a state and references. The function is
//! ours, and launches the steps of a region with references that follow the step's own.
//!
//! # References of a step
//!
//! | | If | Loop |
//! | --- | --- | --- |
//! | 0 | the run's [`Context`] | the run's [`Context`] |
//! | 1 | the condition | the trip count, or absent |
//! | 2 | | the condition, or absent |
//! | 3, 4, 5 | | iteration number and condition that the body takes, condition that it gives |
//! | 6 + 3 c | | carried value `c` at first, in its odd and in its even place |
//!
//! Then come blocks: all references of a region, and pairs of them for results that no kernel writes, which are
//! copied. An If has a block for each branch. A Loop has three of its body: from the first place to the odd one, from
//! the odd to the even one, from the even to the odd one. The even place is the node's result.

use super::cancel::Cancel;
use super::regions::Progress;
use super::section::{Ended, launch_steps};
use super::timeline::Timelines;
use crate::plan::section::Section;
use crate::plan::steps::{Block, IfState, LoopState, of_loop};
use crate::trace;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status, Stream};
use devbay_plugin_api::locks::lock;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// The status of a step when the caller wants no more; no plugin's status is negative.
pub(crate) const CANCELLED: Status = -1;
/// The status of a loop that goes on for longer than it may.
pub(crate) const TOO_MANY_TRIPS: Status = -2;

/// The context that nested and traced steps have of their run; part of the frame.
#[derive(Default)]
pub(crate) struct Context {
    /// The run's flag, or NULL. Set before the run's threads begin.
    cancel: AtomicPtr<Cancel>,
    /// The run's number on its recorder, if it is traced. Set with `cancel`.
    run: AtomicU32,
    /// The node within a region whose launch failed first.
    blame: Mutex<Option<String>>,
    /// Those of a placed section.
    timelines: Option<Timelines>,
    /// Progress of control flow whose regions are tasks.
    progress: Box<[Progress]>,
    /// Number of times that a loop may run its body.
    trips_max: u64,
}

impl Context {
    /// Of a frame whose loops may run their bodies so often.
    pub fn new(trips_max: u64) -> Self {
        Self { trips_max, ..Self::default() }
    }

    /// Returns the number of times that a loop may run its body.
    pub fn trips_max(&self) -> u64 {
        self.trips_max
    }

    /// Begins a run, which ends before `cancel` goes.
    pub fn begin(&self, cancel: Option<&Cancel>) {
        let cancel = cancel.map_or(null_mut(), |cancel| std::ptr::from_ref(cancel).cast_mut());
        self.cancel.store(cancel, Ordering::Relaxed);
        self.run.store(trace::run_number(), Ordering::Relaxed);
    }

    /// Returns the number of the run that goes on, for traces; 0 if it is not traced.
    pub fn run(&self) -> u32 {
        self.run.load(Ordering::Relaxed)
    }

    /// Returns the run's timelines, where asynchronous devices take part beside others.
    pub fn timelines(&self) -> Option<&Timelines> {
        self.timelines.as_ref()
    }

    /// Returns the progress of control flow, by number.
    pub fn progress(&self) -> &[Progress] {
        &self.progress
    }

    /// Makes room for so many.
    pub fn set_controls(&mut self, n_controls: usize) {
        self.progress = (0..n_controls).map(|_| Progress::new()).collect();
    }

    pub fn set_timelines(&mut self, timelines: Timelines) {
        self.timelines = Some(timelines);
    }

    /// Returns the node within a region that failed, once.
    pub fn take_blame(&self) -> Option<String> {
        lock(&self.blame).take()
    }
}

/// A step's references.
#[derive(Clone, Copy)]
struct Refs(*const BufferRef);

impl Refs {
    /// # Safety
    /// The step has a reference `i`.
    #[inline(always)]
    unsafe fn get(self, i: usize) -> *const BufferRef {
        // SAFETY: the step has a reference `i` (# Safety).
        unsafe { self.0.add(i) }
    }

    /// Returns the address that reference `i` names.
    ///
    /// # Safety
    /// The step has a reference `i`.
    #[inline(always)]
    unsafe fn addr(self, i: usize) -> u64 {
        // SAFETY: the step has a reference `i` (# Safety).
        unsafe { (*self.get(i)).addr }
    }

    /// # Safety
    /// Reference 0 is the frame's context, which does not change during the run.
    #[inline(always)]
    unsafe fn context<'a>(self) -> &'a Context {
        // SAFETY: reference 0 is the frame's context, which does not change during the run (# Safety).
        unsafe { &*(self.addr(0) as *const Context) }
    }
}

/// Runs a region with the references of a block.
///
/// # Safety
/// The block is the region's, among the references of a step that is launched now.
#[inline(always)]
unsafe fn run(region: &Section, block: &Block, refs: Refs, stream: *mut Stream, context: &Context) -> Status {
    // SAFETY: the flag is NULL, or outlives the run.
    let cancel = unsafe { context.cancel.load(Ordering::Relaxed).as_ref() };
    // SAFETY: the block's references are among the step's (# Safety).
    let own = unsafe { refs.get(block.first_ref) };
    let ended = match cancel {
        // SAFETY: the block has the references of these steps, bound as the section around them is.
        None => unsafe { launch_steps::<false>(region, &region.steps, own, &stream, None) },
        // SAFETY: the same references, bound.
        cancel => unsafe { launch_steps::<true>(region, &region.steps, own, &stream, cancel) },
    };
    if let Err(ended) = ended {
        return failed(region, &ended, context);
    }
    for i in 0..block.n_copies {
        let pair = block.first_copy + 2 * i;
        // SAFETY: the block's copies are pairs of references among the step's (# Safety).
        let (src, dst) = unsafe { (&*refs.get(pair), &*refs.get(pair + 1)) };
        // SAFETY: both are memory of the host's that is lent for the run, of one size, and apart.
        unsafe {
            std::ptr::copy_nonoverlapping(src.addr as *const u8, dst.addr as *mut u8, dst.length as usize);
        }
    }
    DEVBAY_STATUS_OK
}

#[cold]
fn failed(region: &Section, ended: &Ended<'_>, context: &Context) -> Status {
    match *ended {
        Ended::Cancelled => CANCELLED,
        Ended::Failed(step, status) => {
            if status != CANCELLED {
                let label = region.label(step);
                let mut blame = lock(&context.blame);
                // The innermost comes first; the outer ones add where it is.
                *blame =
                    Some(blame.take().map_or_else(|| label.to_owned(), |inner| format!("{label} / {inner}")));
            }
            status
        }
    }
}

pub(super) unsafe extern "C" fn launch_if(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let state = unsafe { &*state.cast::<IfState>() };
    let refs = Refs(refs);
    // SAFETY: the first reference of every nested step is the frame's context.
    let context = unsafe { refs.context() };
    // SAFETY: the condition is one truth value that the host may read.
    let taken = unsafe { *(refs.addr(1) as *const u8) } != 0;
    let (region, block) = &state.branches[usize::from(taken)];
    // SAFETY: the block is the branch's, as planned.
    unsafe { run(region, block, refs, stream, context) }
}

pub(super) unsafe extern "C" fn launch_loop(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    use of_loop::*;
    // SAFETY: the launch loop passes the state of this step.
    let state = unsafe { &*state.cast::<LoopState>() };
    let refs = Refs(refs);
    // SAFETY: the first reference of every nested step is the frame's context.
    let context = unsafe { refs.context() };
    // SAFETY: a loop has references at these places, as planned; those of absent operands have address 0.
    let (trips, condition) = unsafe { (refs.addr(TRIPS) as *const i64, refs.addr(CONDITION) as *const u8) };
    // SAFETY: NULL, or one number that the host may read.
    let trips = unsafe { trips.as_ref() }.map_or(i64::MAX, |trips| *trips);
    // SAFETY: NULL, or one truth value that the host may read.
    let mut go_on = unsafe { condition.as_ref() }.is_none_or(|condition| *condition != 0);
    // SAFETY: a loop has references at these places, which are in the step's workspace, as planned.
    let (number, taken) =
        unsafe { (refs.addr(ITERATION) as *mut i64, refs.addr(CONDITION_TAKEN) as *mut u8) };
    // SAFETY: a loop has a reference to the condition that its body gives, as planned.
    let given = unsafe { refs.addr(CONDITION_GIVEN) as *const u8 };
    let mut iteration = 0i64;
    // SAFETY: the flag is NULL, or outlives the run.
    let cancel = unsafe { context.cancel.load(Ordering::Relaxed).as_ref() };
    while go_on && iteration < trips {
        // A body without launches would not look.
        if cancel.is_some_and(Cancel::is_cancelled) {
            return CANCELLED;
        }
        if iteration as u64 >= context.trips_max {
            return TOO_MANY_TRIPS;
        }
        // SAFETY: the number is in the step's own workspace, as planned, and no iteration runs now.
        unsafe { number.write(iteration) };
        // SAFETY: the truth value is there, too.
        unsafe { taken.write(1) };
        let block = &state.blocks[if iteration == 0 { 0 } else { 2 - (iteration & 1) as usize }];
        // SAFETY: the block is the body's, as planned.
        let status = unsafe { run(&state.body, block, refs, stream, context) };
        if status != DEVBAY_STATUS_OK {
            return status;
        }
        iteration += 1;
        // SAFETY: one truth value that the body has written.
        go_on = unsafe { given.read() } != 0;
    }
    // An even number of iterations ends in the even place, except for none.
    if iteration == 0 || iteration & 1 == 1 {
        for c in 0..state.n_carried {
            let from = CARRIED + 3 * c + usize::from(iteration != 0);
            // SAFETY: a loop has three references for each carried value, as planned.
            let (src, dst) = unsafe { (&*refs.get(from), &*refs.get(CARRIED + 3 * c + 2)) };
            // SAFETY: both are memory of the host's that is lent for the run, of one size, and apart.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    src.addr as *const u8,
                    dst.addr as *mut u8,
                    dst.length as usize,
                );
            }
        }
    }
    DEVBAY_STATUS_OK
}
