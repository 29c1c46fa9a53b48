//! Entry and exit of control flow whose regions are tasks: their references, choices and pointer updates.
//!
//! To the launch loop they are steps like any other, a function, a state and references. Their functions note in the
//! run's context which region comes next; the participant that ran the task asks for it and makes the region's tasks
//! ready ([`super::tasks`]). No other part of the control flow runs meanwhile, so these functions may change the
//! references of its launches: later tasks are counted down, or offered to other threads, only afterwards.
//!
//! # References
//!
//! | | entry | exit |
//! | --- | --- | --- |
//! | 0 | the run's [`Context`] | the run's [`Context`] |
//! | If | condition | for each wanted result what `else` gives, what `then` gives |
//! | Loop | trip count and condition, or absent; first of each carried value; iteration number; two places for each carried value | the condition that the body gives |

use super::nested::{Context, TOO_MANY_TRIPS};
use crate::plan::section::Patch;
use crate::plan::steps::{Carried, Control, Flow};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status, Stream};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI64, AtomicU32, Ordering};

/// No region: control flow has come to its end, or to its exit.
const NO_REGION: u32 = u32::MAX;

/// The progress of control flow in a run; part of the frame's context.
pub(crate) struct Progress {
    /// The region that comes next.
    chosen: AtomicU32,
    /// Of an If the branch, 1 for `then`; of a Loop the iteration that runs.
    at: AtomicI64,
    /// Of a Loop how often it runs at most.
    trips: AtomicI64,
}

impl Progress {
    pub fn new() -> Self {
        Self { chosen: AtomicU32::new(NO_REGION), at: AtomicI64::new(0), trips: AtomicI64::new(0) }
    }

    /// Returns the region that comes next, as the entry or exit says that this thread ran last.
    pub fn chosen(&self) -> Option<usize> {
        let chosen = self.chosen.load(Ordering::Relaxed);
        (chosen != NO_REGION).then_some(chosen as usize)
    }

    fn choose(&self, region: Option<u32>) {
        self.chosen.store(region.unwrap_or(NO_REGION), Ordering::Relaxed);
    }
}

/// One entry or exit as it runs.
struct Choice<'a> {
    control: &'a Control,
    context: &'a Context,
    progress: &'a Progress,
    /// The section's references.
    refs: *mut BufferRef,
}

impl Choice<'_> {
    /// # Safety
    /// `refs` are those of the entry or exit that `state` is of, from position `first` on, in a run that is under way.
    unsafe fn new<'a>(control: &'a Control, refs: *const BufferRef, first: u32) -> Choice<'a> {
        // SAFETY: the first reference of every such step is that of the frame's context.
        let context = unsafe { &*((*refs).addr as *const Context) };
        // SAFETY: the references before the step's own are in the same array, the frame's, which may be written.
        let refs = unsafe { refs.sub(first as usize) }.cast_mut();
        Choice { control, context, progress: &context.progress()[control.number as usize], refs }
    }

    /// A reference of the section.
    fn get(&self, at: u32) -> BufferRef {
        // SAFETY: positions are the section's, as planned; no other task writes this reference meanwhile.
        unsafe { *self.refs.add(at as usize) }
    }

    /// Points references at a value.
    fn point(&self, uses: &[Patch], at: u32) {
        let value = self.get(at);
        for patch in uses {
            // SAFETY: the reference is of a launch of this control flow or behind it, none of which runs now (see
            // above), and all of which are seen by this thread.
            unsafe { *self.refs.add(patch.ref_idx as usize) = patch.reference(value) };
        }
    }

    /// Returns whether the truth value that a reference names is set, or there is none.
    fn is_set(&self, at: u32) -> bool {
        let truth = self.get(at).addr as *const u8;
        // SAFETY: NULL, or one truth value that the host may read.
        unsafe { truth.as_ref() }.is_none_or(|truth| *truth != 0)
    }

    /// Lets a region run next.
    fn enter(&self, region: u32) {
        if let Some(timelines) = self.context.timelines() {
            for &(lane, n) in &self.control.n_signals[region as usize] {
                timelines.begin_region(lane, n);
            }
        }
        self.progress.choose(Some(region));
    }

    /// Starts the next iteration of a loop if the condition holds, else points later readers at the last one's results.
    fn iterate(&self, number: u32, carried: &[Carried], iteration: i64, condition: bool) -> Status {
        // Iteration `i` makes the place that the next one takes.
        let place = |iteration: i64| if iteration == 0 { 0 } else { 2 - (iteration & 1) as usize };
        self.progress.at.store(iteration, Ordering::Relaxed);
        if !condition || iteration >= self.progress.trips.load(Ordering::Relaxed) {
            carried.iter().for_each(|value| self.point(&value.result, value.places[place(iteration)]));
            self.progress.choose(None);
            return DEVBAY_STATUS_OK;
        }
        if iteration as u64 >= self.context.trips_max() {
            return TOO_MANY_TRIPS;
        }
        for value in carried {
            self.point(&value.taken, value.places[place(iteration)]);
            self.point(&value.given, value.places[place(iteration + 1)]);
        }
        // SAFETY: the number is in the section's arena, and no task reads it between iterations.
        unsafe { (self.get(number).addr as *mut i64).write(iteration) };
        self.enter(0);
        DEVBAY_STATUS_OK
    }
}

/// Chooses the region to begin with.
///
/// # Safety
/// As [`LaunchFn`](devbay_plugin_api::abi::LaunchFn), with the state and references of an entry.
pub(super) unsafe extern "C" fn launch_entry(
    state: *const c_void,
    _stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let control = unsafe { &*state.cast::<Control>() };
    // SAFETY: the launch loop passes the entry's references, which begin at `entry_ref` of the frame's, in a run that
    // is under way.
    let choice = unsafe { Choice::new(control, refs, control.entry_ref) };
    match &control.flow {
        Flow::If { .. } => {
            let then = choice.is_set(control.entry_ref + 1);
            choice.progress.at.store(i64::from(then), Ordering::Relaxed);
            choice.enter(u32::from(!then));
        }
        Flow::Loop { number, carried } => {
            let trips = choice.get(control.entry_ref + 1).addr as *const i64;
            // SAFETY: NULL, or one number that the host may read.
            let trips = unsafe { trips.as_ref() }.map_or(i64::MAX, |trips| *trips);
            choice.progress.trips.store(trips, Ordering::Relaxed);
            return choice.iterate(*number, carried, 0, choice.is_set(control.entry_ref + 2));
        }
    }
    DEVBAY_STATUS_OK
}

/// Chooses whether a body runs again, and sets the results of control flow.
///
/// # Safety
/// As [`LaunchFn`](devbay_plugin_api::abi::LaunchFn), with the state and references of an exit.
pub(super) unsafe extern "C" fn launch_exit(
    state: *const c_void,
    _stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let control = unsafe { &*state.cast::<Control>() };
    // SAFETY: the launch loop passes the exit's references, which begin at `exit_ref` of the frame's, in a run that is
    // under way.
    let choice = unsafe { Choice::new(control, refs, control.exit_ref) };
    let at = choice.progress.at.load(Ordering::Relaxed);
    match &control.flow {
        Flow::If { results } => {
            results.iter().for_each(|result| choice.point(&result.uses, result.first_candidate + at as u32));
            choice.progress.choose(None);
        }
        // The entry let none run.
        Flow::Loop { .. } if choice.progress.chosen().is_none() => {}
        Flow::Loop { number, carried } => {
            return choice.iterate(*number, carried, at + 1, choice.is_set(control.exit_ref + 1));
        }
    }
    DEVBAY_STATUS_OK
}
