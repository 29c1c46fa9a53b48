//! Running tasks: ready counts, and how threads share the tasks.
//!
//! A task is ready when the last task before it ends. A successor that waits only for that task runs next on the
//! same thread. The participant keeps other ready tasks ([`super::ready`]) and shows them to other threads
//! ([`super::offers`]) if they are worth a hand-over. Nothing here allocates, locks or counts references while all
//! goes well.
//!
//! The caller begins *alone*: without an atomic operation, and without asking for failures, as there is none. When it
//! has something that is worth showing, or when a task fails, it goes on as one of several participants; a run that
//! never has enough to show stays with it to the end.
//!
//! # Protocol
//!
//! | data | actor | order |
//! | --- | --- | --- |
//! | `ready[task]` | each task before it counts down once; the thread that makes it 0 owns the task | AcqRel; load and store while the caller is alone |
//! | `remaining` | each participant that runs out of tasks subtracts the number it ran; at 0 the run has ended | AcqRel |
//! | `failed`, `poisoned[task]` | set before the count down of the same task, read by the task's owner | Relaxed |
//! | `Participant::local` and its streams | the thread that takes part with that slot, in this run | - |
//!
//! A thread that takes an offered task sees all that the caller counted down alone (Release and Acquire of the offers).
//!
//! Tasks that lead to the same successor and follow each other on one thread are counted down together, when the last
//! of them has ended; the successor could not be ready earlier in any case. So a join of thousands of tasks is a few
//! atomic operations, not thousands on one word.
//!
//! Control flow whose regions are tasks has an entry and an exit. The thread that runs one of them sets the counts of
//! the chosen region, adds its tasks to `remaining`, and makes its first tasks ready. All tasks of a region lead to the
//! exit, so that no two iterations, and no two participants, use those counts at once.

use super::cancel::{Cancel, Under};
use super::frame::{Streams, ThreadStreams};
use super::nested::Context;
use super::offers::{Offers, Range};
use super::ready::Ready;
use super::section::Ended;
use super::task_loop::{SINGLES_WORTH, TaskLoop};
use super::timeline::{Inbox, Timelines};
use crate::device::REST_LIMIT;
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::plan::order::tasks::{Arrival, Control, NO_TASK, TaskGraph};
use crate::plan::section::Section;
use crate::sync::{self, AtomicBool, AtomicU32, Ordering};
use crate::threads::board::Shared;
use crate::threads::queue::WorkQueue;
use crate::threads::sleeper::Sleeper;
use crate::trace::{self, What};
use crossbeam_utils::CachePadded;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status};
use devbay_plugin_api::locks::{lock, unpoisoned};
use std::cell::UnsafeCell;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Number of times that a participant without tasks looks for some before it leaves, or lets others run: some
/// microseconds.
const LOOKS: u32 = 256;

/// Number of times that the caller of a run looks before it sleeps, where only other threads can have something for it.
const LOOKS_MAX: u32 = 8192;

/// The same where a device can, which may take long.
const DEVICE_LOOKS_MAX: u32 = 1024;

/// Time in which a lost device, or one whose plugin panicked, must call back. Later calls may come with the end of its
/// streams, or never.
const LOST_LIMIT: Duration = Duration::from_millis(100);

/// The state that a run of several tasks changes beside a frame's references; part of the frame.
pub(crate) struct TaskState {
    /// For each task how many it still waits for.
    ready: Box<[AtomicU32]>,
    /// Tasks that must not run, because one before them failed.
    poisoned: Box<[AtomicBool]>,
    participants: Box<[CachePadded<Participant>]>,
    /// Place where the caller sleeps. Shared with the callbacks of devices.
    sleeper: Arc<Sleeper>,
}

/// A thread's part in a run, by slot.
pub(super) struct Participant {
    offers: Offers,
    local: UnsafeCell<Local>,
    /// Launches of one stream come one at a time (B17): each participant has its own, one for each lane.
    streams: ThreadStreams,
}

// SAFETY: `offers` is made for many threads; `local` and `streams` are used by the one thread that takes part with this
// slot: the caller of the run, or the worker of that number.
unsafe impl Sync for Participant {}

/// The state that a participant keeps to itself.
pub(super) struct Local {
    pub ready: Ready,
    /// Tasks that were run and not yet subtracted from `remaining`.
    pub n_ended: u32,
}

impl TaskState {
    /// State for the tasks of a section and so many threads.
    ///
    /// # Errors
    /// Errors that the plugin reports for another stream.
    pub fn new(section: &Section, frame: &Streams, n_threads: usize) -> Result<Self> {
        let n_tasks = section.graph.len();
        let participant = |_| {
            let local = Local::new(n_tasks);
            Ok(CachePadded::new(Participant {
                offers: Offers::default(),
                local: UnsafeCell::new(local),
                streams: ThreadStreams::new(section, frame)?,
            }))
        };
        Ok(Self {
            ready: (0..n_tasks).map(|_| AtomicU32::new(0)).collect(),
            poisoned: (0..n_tasks).map(|_| AtomicBool::new(false)).collect(),
            participants: (0..n_threads.max(1)).map(participant).collect::<Result<_>>()?,
            sleeper: Arc::default(),
        })
    }

    /// Where the caller of a run sleeps.
    pub fn sleeper(&self) -> &Arc<Sleeper> {
        &self.sleeper
    }
}

/// One run of a section's tasks.
///
/// # Invariants
/// `ready` and `poisoned` have a place for each task. The invariants of [`TaskGraph`] on its numbers (`tasks` and
/// `succs` are only followed through each other) and of [`Section`] on its steps keep every index below in range.
pub(super) struct TaskRun<'a> {
    pub section: &'a Section,
    graph: &'a TaskGraph,
    state: &'a TaskState,
    context: &'a Context,
    /// The frame's streams, which asynchronous lanes use.
    streams: &'a Streams,
    /// Arrivals from devices, if the section is placed.
    inbox: Option<&'a Inbox>,
    refs: *const BufferRef,
    queue: &'a WorkQueue,
    pub cancel: Option<&'a Cancel>,
    /// Tasks that have not ended.
    remaining: CachePadded<AtomicU32>,
    /// True if a task failed.
    pub failed: AtomicBool,
    /// True if tasks were lost, so that the remaining ones will not end.
    abandoned: AtomicBool,
    /// The first failure.
    failure: Mutex<Option<Error>>,
}

// SAFETY: `refs` are the frame's references. While it runs only entries and exits of control flow write them, at places
// that no other running task reads (`regions.rs`).
unsafe impl Sync for TaskRun<'_> {}

/// Runs the tasks of a section. All threads of the queue may take part; the calling one does until the end.
///
/// # Safety
/// `refs` are the section's references, bound to memory of its sizes that stays until this returns, and if it fails
/// until the asynchronous lanes' streams are at rest; `state` and `streams` belong to this run alone.
///
/// # Errors
/// The first failure, or cancelled. Tasks that do not depend on the failed one have run.
pub(crate) unsafe fn run(
    section: &Section,
    state: &mut TaskState,
    context: &Context,
    streams: &Streams,
    refs: *const BufferRef,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let graph = &section.graph;
    let queue = section.device.plugin().services().queue();
    sync::set_all(&mut state.ready, &graph.n_preds);
    let run = TaskRun {
        section,
        graph,
        state,
        context,
        streams,
        inbox: context.timelines().map(Timelines::inbox),
        refs,
        queue,
        cancel,
        remaining: CachePadded::new(AtomicU32::new(graph.n_own)),
        failed: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let shared = match section.is_shared() {
        true => queue.share(&run, || run.lead::<true>()),
        false => None,
    };
    if shared.is_none() {
        run.lead::<false>();
    }
    if !run.failed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let abandoned = run.abandoned.load(Ordering::Relaxed);
    let failure = unpoisoned(run.failure.into_inner());
    if abandoned {
        for participant in &mut state.participants {
            participant.offers = Offers::default();
            participant.local = UnsafeCell::new(Local::new(graph.len()));
        }
    }
    for poisoned in &state.poisoned {
        poisoned.store(false, Ordering::Relaxed);
    }
    Err(failure.unwrap_or_else(Cancel::unknown))
}

impl Shared for TaskRun<'_> {
    fn help(&self, slot: u32) -> bool {
        if slot as usize >= self.state.participants.len() {
            return false;
        }
        Under::of(self.cancel).run(|| self.take_part(slot))
    }

    fn abandon(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
        self.abandoned.store(true, Ordering::Release);
        self.state.sleeper.wake();
    }
}

impl TaskRun<'_> {
    /// Runs tasks as the participant of a worker, as long as there are any.
    fn take_part(&self, slot: u32) -> bool {
        // SAFETY: the worker of this number takes part with this slot, and is here once.
        let local = unsafe { &mut *self.state.participants[slot as usize].local.get() };
        let mut helped = false;
        let mut looks = 0;
        while self.remaining.load(Ordering::Acquire) != 0 && looks < LOOKS {
            if self.steal(slot, local) {
                helped = true;
                looks = 0;
                self.work_shared(slot, local, self.section.n_worth, NO_TASK);
                if self.subtract(local) {
                    self.state.sleeper.wake();
                }
            } else {
                looks += 1;
                sync::spin();
            }
        }
        helped
    }

    /// The caller's part: from the first task to the end of the run.
    fn lead<const SHARED: bool>(&self) {
        // SAFETY: slot 0 is the caller's, and no other thread's.
        let local = unsafe { &mut *self.state.participants[0].local.get() };
        let n_sources = self.graph.n_sources;
        local.ready.push(Range { begin: 0, end: n_sources });
        let n_worth = if SHARED { self.section.n_worth } else { NO_TASK };
        // Any participant may take arrivals from a device, and then counts down beside the caller.
        let is_alone = !(SHARED && self.inbox.is_some());
        self.go_on(local, n_worth, is_alone && n_sources < n_worth && SINGLES_WORTH < n_worth);
        if !SHARED && self.inbox.is_none() {
            local.n_ended = 0;
            return;
        }
        self.subtract(local);
        let _traced = trace::begin(What::WaitForTasks);
        let mut looks = 0u32;
        let mut asleep_since = None;
        while self.remaining.load(Ordering::Acquire) != 0 && !self.abandoned.load(Ordering::Acquire) {
            if self.steal(0, local) {
                self.go_on(local, n_worth, !SHARED);
                self.subtract(local);
                looks = 0;
            } else if self.queue.help_loops(0) {
                looks = 0;
            } else {
                looks = looks.saturating_add(1);
                match looks {
                    0..LOOKS => {
                        asleep_since = None;
                        sync::spin();
                    }
                    _ if looks < if self.inbox.is_none() { LOOKS_MAX } else { DEVICE_LOOKS_MAX } => {
                        std::thread::yield_now();
                    }
                    _ => self.sleep(*asleep_since.get_or_insert_with(Instant::now)),
                }
            }
        }
    }

    /// Runs the caller's tasks: alone as long as it may, and while nothing has failed.
    fn go_on(&self, local: &mut Local, n_worth: u32, alone: bool) {
        let left = match alone && !self.failed.load(Ordering::Relaxed) {
            true => self.work_alone(local, n_worth),
            false => ControlFlow::Break(NO_TASK),
        };
        if let ControlFlow::Break(task) = left {
            self.work_shared(0, local, n_worth, task);
        }
    }

    /// Sleeps for a moment, unless there is something to do; gives a device up that has done nothing for too long.
    fn sleep(&self, since: Instant) {
        if self.inbox.is_some() && since.elapsed() > REST_LIMIT {
            let text = format!("work on a stream did not end within {REST_LIMIT:?}");
            self.abandon(Error::new(ErrorKind::PluginBroken, text));
        } else if self.inbox.is_some() && since.elapsed() > LOST_LIMIT {
            let mut unusable = self.section.lanes.iter().map(|device| device.check_usable());
            unusable.find_map(Result::err).into_iter().for_each(|error| self.abandon(error));
        }
        self.state.sleeper.sleep(|| {
            self.state.participants.iter().any(|other| other.offers.is_showing())
                || self.inbox.is_some_and(Inbox::has_mail)
                || self.remaining.load(Ordering::Acquire) == 0
        });
    }

    /// Takes arrivals of devices, or tasks that another participant shows.
    fn steal(&self, slot: u32, local: &mut Local) -> bool {
        if let Some((arrival, status)) = self.inbox.and_then(Inbox::take) {
            self.arrive(arrival as usize, status, local);
            return true;
        }
        let n = self.state.participants.len();
        for step in 1..n {
            let other = &self.state.participants[(slot as usize + step) % n];
            if let Some(range) = other.offers.steal() {
                local.ready.push(range);
                return true;
            }
        }
        false
    }

    /// Makes the task behind a point ready.
    fn arrive(&self, arrival: usize, status: Status, local: &mut Local) {
        let Arrival { task, place, lane } = self.graph.arrivals[arrival];
        if status != DEVBAY_STATUS_OK {
            let outcome = self.streams.of_lane(lane).check(status, Phase::Work);
            self.set_failure(outcome.err().unwrap_or_else(Cancel::unknown));
            self.poison(task + 1);
        }
        local.ready.push(Range { begin: place, end: place + 1 });
    }

    /// Subtracts the tasks that ran from the remaining ones. Returns whether those were the last.
    fn subtract(&self, local: &mut Local) -> bool {
        let n = std::mem::take(&mut local.n_ended);
        n > 0 && self.remaining.fetch_sub(n, Ordering::AcqRel) == n
    }

    /// Returns the loop of a participant. Never a call of its own, so that the result stays in registers.
    #[inline(always)]
    fn task_loop(&self, slot: u32, n_worth: u32) -> TaskLoop<'_> {
        let participant = &self.state.participants[slot as usize];
        TaskLoop {
            run: self,
            // SAFETY: places come from the sources and from tasks, tasks from `links`.
            links: unsafe { self.graph.links() },
            steps: &self.section.steps,
            counts: &self.state.ready,
            refs: self.refs,
            participant,
            streams: participant.streams.handles(),
            n_worth,
        }
    }

    /// Runs tasks while no other thread takes part: until none is left, one can be offered, or one failed. Then breaks
    /// with the task to go on with.
    fn work_alone(&self, local: &mut Local, n_worth: u32) -> ControlFlow<u32> {
        match self.cancel {
            None => self.work::<false, false>(0, local, n_worth, NO_TASK),
            Some(_) => self.work::<false, true>(0, local, n_worth, NO_TASK),
        }
    }

    /// Runs a task, if one is given, and all that the participant has or gets, as one of several.
    fn work_shared(&self, slot: u32, local: &mut Local, n_worth: u32, task: u32) {
        // With several participants it does not break.
        let _ = match self.cancel {
            None => self.work::<true, false>(slot, local, n_worth, task),
            Some(_) => self.work::<true, true>(slot, local, n_worth, task),
        };
    }

    #[inline(never)]
    fn work<const SHARED: bool, const CHECKED: bool>(
        &self,
        slot: u32,
        local: &mut Local,
        n_worth: u32,
        task: u32,
    ) -> ControlFlow<u32> {
        self.task_loop(slot, n_worth).work::<SHARED, CHECKED>(local, task)
    }

    /// Gets more tasks when a participant has none left; false if there are none.
    #[cold]
    pub(super) fn refill<const SHARED: bool>(&self, participant: &Participant, local: &mut Local) -> bool {
        match participant.offers.take_back() {
            Some(range) if SHARED => {
                local.ready.push(range);
                true
            }
            _ => false,
        }
    }

    /// Shows the oldest of the waiting tasks to others, if there is room.
    #[inline(never)]
    pub(super) fn show(&self, participant: &Participant, local: &mut Local) {
        if !participant.offers.has_room() {
            return;
        }
        // The thread goes on with the front half of the only range itself.
        if let Some(range) = local.ready.split_ranges().or_else(|| local.ready.split_singles()) {
            // There is room, and no other thread fills it.
            participant.offers.show(range);
            self.queue.offered();
            if self.state.sleeper.is_asleep() {
                self.state.sleeper.wake();
            }
        }
    }

    #[cold]
    pub(super) fn fail(&self, ended: Ended<'_>, participant: &Participant) {
        let error = match ended {
            Ended::Cancelled => self.cancel.map_or_else(Cancel::unknown, Cancel::error),
            Ended::Failed(step, status) => {
                let own = participant.streams.of_lane(step.lane);
                let stream = own.unwrap_or_else(|| self.streams.of_lane(step.lane));
                self.section.launch_failed(stream, self.context, self.cancel, step, status)
            }
        };
        self.set_failure(error);
    }

    fn set_failure(&self, error: Error) {
        lock(&self.failure).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_poisoned(&self, task: u32) -> bool {
        self.state.poisoned[task as usize].load(Ordering::Relaxed)
    }

    /// Returns whether a task depends on one that failed, or works on a device that must no longer be called: a lost
    /// device is only freed (B13).
    #[cold]
    pub(super) fn must_not_run(&self, task: u32) -> bool {
        let steps = &self.section.steps[self.graph.steps_of(task as usize)];
        self.is_poisoned(task)
            || steps.iter().any(|step| self.section.lanes[step.lane as usize].check_usable().is_err())
    }

    /// Keeps a task from running.
    pub(super) fn poison(&self, task: u32) {
        self.state.poisoned[task as usize].store(true, Ordering::Relaxed);
    }

    /// Returns the task after the entry or exit of control flow that this participant has run. `NO_TASK` if a region's
    /// first tasks are among the ready ones; None if the control flow has ended.
    #[inline(never)]
    pub(super) fn choose(&self, control: u32, is_exit: bool, local: &mut Local) -> Option<u32> {
        let Control { entry, exit, ref regions } = self.graph.controls[control as usize];
        let own = if is_exit { exit } else { entry };
        let failed = self.failed.load(Ordering::Relaxed) && self.is_poisoned(own);
        let chosen = self.context.progress()[control as usize].chosen();
        let Some(region) = chosen.filter(|_| !failed).map(|region| &regions[region]) else {
            return (!is_exit).then_some(exit);
        };
        // No other thread touches these counts: the tasks have ended, or not begun.
        for task in region.first..region.end {
            let n_preds = self.graph.n_preds[task as usize];
            self.state.ready[task as usize].store(n_preds, Ordering::Relaxed);
        }
        self.state.ready[exit as usize].store(region.n_last, Ordering::Relaxed);
        // Before any of them can be subtracted. The steps that this participant has run are subtracted, too, so that
        // counts stay small however long a loop runs; the count does not become 0, because the exit is to come.
        let n = (region.n_own + u32::from(is_exit)).wrapping_sub(std::mem::take(&mut local.n_ended));
        self.remaining.fetch_add(n, Ordering::AcqRel);
        if region.n_last == 0 {
            return Some(exit);
        }
        local.ready.push(Range { begin: region.first_source, end: region.end_source });
        Some(NO_TASK)
    }

    /// Keeps the dependents of a task from running.
    #[cold]
    pub(super) fn poison_successors(&self, task: u32, local: &mut Local) {
        if let Some(control) = self.graph.control_of(task) {
            // It did not choose: the exit is next, and must not run either.
            self.poison(task);
            self.poison(control.exit);
        }
        if let Some(arrival) = self.graph.arrival_of(task) {
            // Its signal was not given: no device will call back for it.
            self.poison(task + 1);
            let place = self.graph.arrivals[arrival].place;
            local.ready.push(Range { begin: place, end: place + 1 });
        }
        self.graph.succs_of(task as usize).iter().for_each(|&successor| self.poison(successor));
    }
}

impl Local {
    fn new(n_tasks: usize) -> Self {
        Self { ready: Ready::new(n_tasks), n_ended: 0 }
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::exec::task_loop::count_down;
    use crate::sync::UnsafeCell;
    use loom::sync::Arc;

    /// A caller counts down alone, then offers a task. The thread that takes it owns the join, and sees the earlier
    /// writes.
    #[test]
    fn what_was_counted_alone_is_seen_by_who_takes_an_offer() {
        loom::model(|| {
            let shared = Arc::new((AtomicU32::new(2), AtomicU32::new(0), Offers::default()));
            let other = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || {
                    let (ready, written, offers) = &*shared;
                    if offers.steal().is_some() {
                        assert!(count_down::<true>(ready, 1));
                        assert_eq!(written.load(Ordering::Relaxed), 7);
                    }
                })
            };
            let (ready, written, offers) = &*shared;
            written.store(7, Ordering::Relaxed);
            assert!(!count_down::<false>(ready, 1));
            offers.show(Range { begin: 0, end: 1 });
            if offers.take_back().is_some() {
                assert!(count_down::<true>(ready, 1));
            }
            other.join().unwrap();
        });
    }

    /// The thread that ends the last of a region's two tasks owns the exit, and sets its count for the next iteration.
    /// No other thread is in the region meanwhile, and each iteration is counted once.
    #[test]
    fn two_threads_run_the_iterations_of_a_region() {
        struct Region {
            exit: AtomicU32,
            offers: [Offers; 2],
            iteration: UnsafeCell<u32>,
        }
        // SAFETY: the model checks that one thread at a time uses `iteration`.
        unsafe impl Sync for Region {}
        // SAFETY: the model checks that one thread at a time uses `iteration`, and the rest is atomic.
        unsafe impl Send for Region {}
        fn end_task(region: &Region, me: usize) {
            if !count_down::<true>(&region.exit, 1) {
                return;
            }
            // SAFETY: this thread owns the exit.
            let iteration = region.iteration.with_mut(|at| unsafe {
                *at += 1;
                *at
            });
            if iteration < 2 {
                region.exit.store(2, Ordering::Relaxed);
                region.offers[me].show(Range { begin: 0, end: 2 });
            }
        }
        fn run(region: &Region, me: usize) {
            let take = || region.offers[me].take_back().or_else(|| region.offers[1 - me].steal());
            while let Some(range) = take() {
                (range.begin..range.end).for_each(|_| end_task(region, me));
            }
        }
        loom::model(|| {
            let region = Arc::new(Region {
                exit: AtomicU32::new(2),
                offers: Default::default(),
                iteration: UnsafeCell::new(0),
            });
            region.offers[0].show(Range { begin: 0, end: 2 });
            let other = {
                let region = Arc::clone(&region);
                loom::thread::spawn(move || run(&region, 1))
            };
            run(&region, 0);
            other.join().unwrap();
            run(&region, 0);
            // SAFETY: the other thread has ended.
            assert_eq!(region.iteration.with(|at| unsafe { *at }), 2);
        });
    }

    /// Two threads end the three tasks before a join, one of them two at once: one of the threads owns the join, and
    /// sees the writes of both.
    #[test]
    fn two_threads_count_a_join_down() {
        loom::model(|| {
            let ready = Arc::new(AtomicU32::new(3));
            let written = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let ends = |n: u32| {
                let (ready, written) = (Arc::clone(&ready), Arc::clone(&written));
                move || {
                    written[n as usize - 1].store(n, Ordering::Relaxed);
                    let owns = count_down::<true>(&ready, n);
                    if owns {
                        let seen = written.iter().map(|written| written.load(Ordering::Relaxed));
                        assert_eq!(seen.sum::<u32>(), 3);
                    }
                    owns
                }
            };
            let other = loom::thread::spawn(ends(1));
            let owns = ends(2)();
            assert!(owns ^ other.join().unwrap());
        });
    }
}
