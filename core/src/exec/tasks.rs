//! Running tasks: ready counts, and who runs what.
//!
//! A task is ready when the last task before it ends. A successor that waits for that task alone runs next on the
//! same thread, its siblings go to a stack of ranges; one that was counted down to ready goes to a queue, so that tasks
//! run about in the order of the plan, which is how they lie in memory, and what the next ones need can be fetched
//! while others run. Ranges are shown to other threads ([`super::offers`]) as far as they are worth a hand-over.
//! Nothing here allocates, locks or counts references while all goes well; on one thread the same code runs without an
//! atomic operation.
//!
//! # Protocol
//!
//! | what | who | order |
//! | --- | --- | --- |
//! | `ready[task]` | each task before it counts down once; who makes it 0 owns the task | AcqRel |
//! | `remaining` | each participant subtracts what it ran when it runs out of tasks; at 0 the run has ended | AcqRel |
//! | `failed`, `poisoned[task]` | set before the count down of the same task, read by who owns it | Relaxed |
//! | `Participant::local` and its streams | the thread that takes part with that slot, in this run | - |
//!
//! A count down may be put off (`Local::pending`) as long as the thread goes on with another task before the same
//! successor, which could not be ready earlier in any case: so a join of thousands of tasks is a few atomic
//! operations, not thousands on one word.

use super::board::Shared;
use super::cancel::Cancel;
use super::frame::{Streams, ThreadStreams};
use super::nested::Context;
use super::offers::{Offers, Range};
use super::queue::WorkQueue;
use super::section::{Ended, REST_LIMIT, launch_steps};
use super::sleeper::Sleeper;
use super::timeline::{Inbox, Timelines};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::section::Section;
use crate::plan::tasks::{Arrival, NO_TASK, Task, TaskGraph, Then};
use crate::sync::{self, AtomicBool, AtomicU32, Ordering};
use crossbeam_utils::CachePadded;
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status};
use std::cell::UnsafeCell;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often a participant without tasks looks for some before it leaves, or lets others run: some microseconds.
const LOOKS: u32 = 256;

/// How often the caller of a run looks before it sleeps, where only other threads can have something for it.
const LOOKS_MAX: u32 = 8192;

/// The same where a device can.
const DEVICE_LOOKS_MAX: u32 = 1024;

/// How long a device that is lost, or whose plugin panicked, has to call back. What has not come by then may come with
/// the end of its streams, or never.
const LOST_LIMIT: Duration = Duration::from_millis(100);

/// Tasks of which so many are worth a hand-over are shown one by one; cheaper ones only in ranges.
const SINGLES_WORTH: u32 = 4;

/// References of a task's first step that are fetched ahead.
const REFS_AHEAD: usize = 6;

/// What a run of several tasks changes beside a frame's references; part of the frame.
pub(crate) struct TaskState {
    /// For each task how many it still waits for.
    ready: Box<[AtomicU32]>,
    /// Tasks that must not run, because one before them failed.
    poisoned: Box<[AtomicBool]>,
    participants: Box<[CachePadded<Participant>]>,
    /// Where the caller sleeps. Shared with what a device calls back.
    sleeper: Arc<Sleeper>,
}

/// A thread's part in a run, by slot.
struct Participant {
    offers: Offers,
    local: UnsafeCell<Local>,
    /// Launches of one stream come one at a time (B17): each participant has its own, one for each lane.
    streams: ThreadStreams,
}

// SAFETY: `offers` is made for many threads; `local` and `streams` are used by the one thread that takes part with this
// slot: the caller of the run, or the worker of that number.
unsafe impl Sync for Participant {}

/// What a participant keeps to itself.
struct Local {
    /// Ready tasks; the latest last.
    stack: Vec<Range>,
    /// Ready tasks by their places, first come first served: a ring with room for all tasks.
    ring: Box<[u32]>,
    /// Where the ring's first is, and one past its last; both only grow.
    first: u32,
    last: u32,
    /// Tasks on the stack and in the ring.
    n_stacked: u32,
    /// A successor, and how many counts down it is owed.
    pending: (u32, u32),
    /// Tasks that were run and not yet subtracted from `remaining`.
    n_ended: u32,
}

impl TaskState {
    /// State for the tasks of a section and so many threads.
    ///
    /// # Errors
    /// What the plugin says of another stream.
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
/// `ready` and `poisoned` have a place for each task. What [`TaskGraph`] promises of its numbers (`tasks` and `succs`
/// are only followed through each other) and [`Section`] of its steps makes every index below one that is there.
struct TaskRun<'a> {
    section: &'a Section,
    graph: &'a TaskGraph,
    state: &'a TaskState,
    context: &'a Context,
    /// The frame's streams, which asynchronous lanes use.
    streams: &'a Streams,
    /// What comes back from devices, if the section is placed.
    inbox: Option<&'a Inbox>,
    refs: *const BufferRef,
    queue: &'a WorkQueue,
    cancel: Option<&'a Cancel>,
    /// Tasks that have not ended.
    remaining: CachePadded<AtomicU32>,
    /// Whether a task failed.
    failed: AtomicBool,
    /// Whether tasks were lost, so that what remains will not end.
    abandoned: AtomicBool,
    /// The first failure.
    failure: Mutex<Option<Error>>,
}

// SAFETY: `refs` are the frame's references, which nobody changes while it runs.
unsafe impl Sync for TaskRun<'_> {}

/// Runs the tasks of a section. All threads of the queue may take part; the calling one does until the end.
///
/// # Safety
/// `refs` are the section's references, bound to memory of its sizes that stays until this returns, and if it fails
/// until the asynchronous lanes' streams are at rest; `state` and `streams` belong to this run alone.
///
/// # Errors
/// The first failure, or cancelled. Tasks that do not depend on what failed have run.
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
        remaining: CachePadded::new(AtomicU32::new(graph.len() as u32)),
        failed: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        failure: Mutex::new(None),
    };
    let shared = match section.n_worth < NO_TASK {
        true => queue.share(&run, || run.lead::<true>()),
        false => None,
    };
    if shared.is_none() && section.is_placed {
        // What arrives is counted by whoever takes it.
        run.lead::<true>();
    } else if shared.is_none() {
        run.lead::<false>();
    }
    if !run.failed.load(Ordering::Relaxed) {
        return Ok(());
    }
    let abandoned = run.abandoned.load(Ordering::Relaxed);
    let failure = run.failure.into_inner().unwrap_or_else(PoisonError::into_inner);
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
        // SAFETY: the worker of this number takes part with this slot, and is here once.
        let local = unsafe { &mut *self.state.participants[slot as usize].local.get() };
        let mut helped = false;
        let mut looks = 0;
        while self.remaining.load(Ordering::Acquire) != 0 && looks < LOOKS {
            if self.steal(slot, local) {
                helped = true;
                looks = 0;
                self.work_shared(slot, local);
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

    fn abandon(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
        self.abandoned.store(true, Ordering::Release);
        self.state.sleeper.wake();
    }
}

impl TaskRun<'_> {
    /// A task and the one after it, where what belongs to it ends.
    #[inline(always)]
    fn task(&self, task: u32) -> (&Task, &Task) {
        // SAFETY: the invariant: a task's number comes from `succs`.
        unsafe { self.graph.task(task) }
    }

    #[inline(always)]
    fn successor(&self, place: u32) -> u32 {
        debug_assert!((place as usize) < self.graph.succs.len());
        // SAFETY: the invariant: a place comes from a task, or is one of the sources'.
        unsafe { *self.graph.succs.get_unchecked(place as usize) }
    }

    /// The caller's part: from the first task to the end of the run.
    fn lead<const SHARED: bool>(&self) {
        // SAFETY: slot 0 is the caller's, and no other thread's.
        let local = unsafe { &mut *self.state.participants[0].local.get() };
        local.push(Range { begin: 0, end: self.graph.n_sources });
        match (SHARED, self.cancel) {
            (true, _) => self.work_shared(0, local),
            (false, None) => self.work::<false, false>(0, local),
            (false, Some(_)) => self.work::<false, true>(0, local),
        }
        if !SHARED {
            local.n_ended = 0;
            return;
        }
        self.subtract(local);
        let mut looks = 0u32;
        let mut asleep_since = None;
        while self.remaining.load(Ordering::Acquire) != 0 && !self.abandoned.load(Ordering::Acquire) {
            if self.steal(0, local) {
                self.work_shared(0, local);
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
                    // Where devices work meanwhile, that may take long.
                    _ if looks < if self.inbox.is_none() { LOOKS_MAX } else { DEVICE_LOOKS_MAX } => {
                        std::thread::yield_now();
                    }
                    _ => {
                        let since = *asleep_since.get_or_insert_with(Instant::now);
                        if self.inbox.is_some() && since.elapsed() > REST_LIMIT {
                            let text = format!("work on a stream did not end within {REST_LIMIT:?}");
                            self.abandon(Error::new(ErrorKind::PluginBroken, text));
                        } else if self.inbox.is_some() && since.elapsed() > LOST_LIMIT {
                            let mut unusable = self.section.lanes.iter().map(|device| device.check_usable());
                            unusable.find_map(Result::err).into_iter().for_each(|error| self.abandon(error));
                        }
                        self.state.sleeper.sleep(|| self.has_work());
                    }
                }
            }
        }
    }

    /// Whether the caller has something to do.
    fn has_work(&self) -> bool {
        self.state.participants.iter().any(|other| other.offers.is_showing())
            || self.inbox.is_some_and(Inbox::has_mail)
            || self.remaining.load(Ordering::Acquire) == 0
    }

    /// Takes what arrived from a device, or tasks that another participant shows.
    fn steal(&self, slot: u32, local: &mut Local) -> bool {
        if let Some((arrival, status)) = self.inbox.and_then(Inbox::take) {
            self.arrive(arrival as usize, status, local);
            return true;
        }
        let n = self.state.participants.len();
        for step in 1..n {
            let other = &self.state.participants[(slot as usize + step) % n];
            if let Some(range) = other.offers.steal() {
                local.push(range);
                return true;
            }
        }
        false
    }

    /// Makes the task behind a point ready.
    fn arrive(&self, arrival: usize, status: Status, local: &mut Local) {
        let Arrival { task, place, lane } = self.graph.arrivals[arrival];
        if status != DEVBAY_STATUS_OK {
            let outcome = self.streams.of_lane(lane).check(status, "work on a stream");
            self.set_failure(outcome.err().unwrap_or_else(Cancel::unknown));
            self.state.poisoned[task as usize + 1].store(true, Ordering::Relaxed);
        }
        local.push(Range { begin: place, end: place + 1 });
    }

    /// Subtracts what was run from what remains; tells whether that was the last.
    fn subtract(&self, local: &mut Local) -> bool {
        let n = std::mem::take(&mut local.n_ended);
        n > 0 && self.remaining.fetch_sub(n, Ordering::AcqRel) == n
    }

    fn work_shared(&self, slot: u32, local: &mut Local) {
        match self.cancel {
            None => self.work::<true, false>(slot, local),
            Some(_) => self.work::<true, true>(slot, local),
        }
    }

    /// Runs the participant's tasks, and what becomes ready with them, until it has none.
    fn work<const SHARED: bool, const CHECKED: bool>(&self, slot: u32, local: &mut Local) {
        let participant = &self.state.participants[slot as usize];
        let mut next = NO_TASK;
        loop {
            if next == NO_TASK {
                next = self.next::<SHARED>(participant, local);
                if next == NO_TASK {
                    return;
                }
            }
            let task = next;
            if !self.launch::<CHECKED>(task, participant) {
                self.poison(task, local);
            }
            next = self.end::<SHARED>(task, local);
            if SHARED && local.n_stacked >= self.section.n_worth {
                self.offer(participant, local);
            }
        }
    }

    /// The task to run when none became ready with the last one.
    #[inline]
    fn next<const SHARED: bool>(&self, participant: &Participant, local: &mut Local) -> u32 {
        loop {
            let place = match local.stack.last() {
                Some(top) => top.begin,
                None if local.first != local.last => local.ring_at(local.first),
                None => NO_TASK,
            };
            if place == NO_TASK {
                if local.pending.1 > 0 {
                    let ready = self.pay::<SHARED>(local);
                    if ready != NO_TASK {
                        return ready;
                    }
                } else if !SHARED {
                    return NO_TASK;
                } else if let Some(range) = participant.offers.take_back() {
                    local.push(range);
                } else {
                    return NO_TASK;
                }
                continue;
            }
            let task = self.successor(place);
            // What is owed is paid before a task that does not lead to the same successor.
            if local.pending.1 > 0 && !self.task(task).0.joins(local.pending.0) {
                let ready = self.pay::<SHARED>(local);
                if ready != NO_TASK {
                    return ready;
                }
                continue;
            }
            match local.stack.last_mut() {
                Some(top) => {
                    top.begin += 1;
                    if top.begin == top.end {
                        local.stack.pop();
                    }
                }
                None => {
                    local.first = local.first.wrapping_add(1);
                    self.fetch_ahead(local);
                }
            }
            local.n_stacked -= 1;
            return task;
        }
    }

    /// Fetches what the ring's next tasks need: of the nearer one references, of the farther one its step.
    #[inline]
    fn fetch_ahead(&self, local: &Local) {
        let n = local.last.wrapping_sub(local.first);
        if n > 2 {
            let (task, _) = self.task(self.successor(local.ring_at(local.first.wrapping_add(2))));
            prefetch(self.section.steps.as_ptr().wrapping_add(task.first_step as usize));
        }
        if n > 1 {
            let (task, _) = self.task(self.successor(local.ring_at(local.first.wrapping_add(1))));
            if let Some(step) = self.section.steps.get(task.first_step as usize) {
                let refs = self.refs.wrapping_add(step.first_ref as usize);
                (0..REFS_AHEAD).step_by(2).for_each(|i| prefetch(refs.wrapping_add(i)));
            }
        }
    }

    /// Counts a task's predecessors down; tells whether it is ready.
    #[inline]
    fn count_down<const SHARED: bool>(&self, task: u32, n: u32) -> bool {
        debug_assert!((task as usize) < self.state.ready.len());
        // SAFETY: the invariant: there is a place for each task.
        count_down::<SHARED>(unsafe { self.state.ready.get_unchecked(task as usize) }, n)
    }

    /// Pays the pending counts down; gives the successor if that makes it ready.
    #[inline]
    fn pay<const SHARED: bool>(&self, local: &mut Local) -> u32 {
        let (task, n) = std::mem::replace(&mut local.pending, (NO_TASK, 0));
        if self.count_down::<SHARED>(task, n) { task } else { NO_TASK }
    }

    /// Counts down what waits for a task that ended; gives one that is ready to run now, the others are stacked.
    #[inline]
    fn end<const SHARED: bool>(&self, task: u32, local: &mut Local) -> u32 {
        local.n_ended += 1;
        let (task, after) = self.task(task);
        let mut next = match task.then() {
            Then::Join(join) => {
                debug_assert!(local.pending.1 == 0 || local.pending.0 == join);
                local.pending = (join, local.pending.1 + 1);
                return NO_TASK;
            }
            Then::Next(next) => return next,
            Then::Many(next) => next.unwrap_or(NO_TASK),
        };
        if task.end_sole > task.first_succ + 1 {
            local.push(Range { begin: task.first_succ + 1, end: task.end_sole });
        }
        for place in task.end_sole..after.first_succ {
            let successor = self.successor(place);
            if self.count_down::<SHARED>(successor, 1) {
                if next == NO_TASK && local.n_stacked == 0 {
                    next = successor;
                } else {
                    prefetch(self.task(successor).0);
                    local.enqueue(place);
                }
            }
        }
        next
    }

    /// Shows the oldest of the waiting tasks to others, if there is room.
    #[inline(never)]
    fn offer(&self, participant: &Participant, local: &mut Local) {
        if !participant.offers.has_room() {
            return;
        }
        let range = if local.stack.is_empty() {
            if self.section.n_worth > SINGLES_WORTH {
                return;
            }
            let place = local.ring_at(local.first);
            local.first = local.first.wrapping_add(1);
            Range { begin: place, end: place + 1 }
        } else if let [only] = &mut *local.stack {
            // The thread goes on with the front half itself.
            let middle = only.begin + only.len() / 2;
            let back = Range { begin: middle, end: only.end };
            only.end = middle;
            if only.len() == 0 {
                local.stack.pop();
            }
            back
        } else {
            local.stack.remove(0)
        };
        local.n_stacked -= range.len();
        // There is room, and nobody else fills it.
        participant.offers.show(range);
        self.queue.offered();
        if self.state.sleeper.is_asleep() {
            self.state.sleeper.wake();
        }
    }

    /// Launches a task's steps; false if it failed, or must not run because one before it did.
    #[inline]
    fn launch<const CHECKED: bool>(&self, task: u32, participant: &Participant) -> bool {
        if self.failed.load(Ordering::Relaxed) && self.state.poisoned[task as usize].load(Ordering::Relaxed) {
            return false;
        }
        let (begin, end) = self.task(task);
        let range = begin.first_step as usize..end.first_step as usize;
        debug_assert!(range.start <= range.end && range.end <= self.section.steps.len());
        // SAFETY: the invariant: a task's steps are the section's.
        let steps = unsafe { self.section.steps.get_unchecked(range) };
        let streams = participant.streams.handles();
        // SAFETY: the promise of `run`; the stream is this participant's.
        let ended = unsafe { launch_steps::<CHECKED>(steps, self.refs, streams, self.cancel) };
        match ended {
            Ok(()) => true,
            Err(ended) => {
                self.fail(begin, ended, participant);
                false
            }
        }
    }

    #[cold]
    fn fail(&self, task: &Task, ended: Ended, participant: &Participant) {
        let error = match ended {
            Ended::Cancelled => self.cancel.map_or_else(Cancel::unknown, Cancel::error),
            Ended::Failed(step, status) => {
                let step = task.first_step as usize + step;
                let lane = self.section.steps[step].lane;
                let stream = participant.streams.of_lane(lane).unwrap_or_else(|| self.streams.of_lane(lane));
                self.section.launch_failed(stream, self.context, self.cancel, step, status)
            }
        };
        self.set_failure(error);
    }

    fn set_failure(&self, error: Error) {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    /// Keeps what depends on a task from running.
    #[cold]
    fn poison(&self, task: u32, local: &mut Local) {
        if let Some(arrival) = self.graph.arrival_of(task) {
            // Its signal was not given: no device will call back for it.
            self.state.poisoned[task as usize + 1].store(true, Ordering::Relaxed);
            let place = self.graph.arrivals[arrival].place;
            local.push(Range { begin: place, end: place + 1 });
        }
        for &successor in self.graph.succs_of(task as usize) {
            self.state.poisoned[successor as usize].store(true, Ordering::Relaxed);
        }
    }
}

/// Counts down, and tells whether that was the last of it: then all that others did before theirs is seen.
#[inline(always)]
fn count_down<const SHARED: bool>(ready: &AtomicU32, n: u32) -> bool {
    if SHARED {
        return ready.fetch_sub(n, Ordering::AcqRel) == n;
    }
    let left = ready.load(Ordering::Relaxed) - n;
    ready.store(left, Ordering::Relaxed);
    left == 0
}

impl Local {
    fn new(n_tasks: usize) -> Self {
        Self {
            stack: Vec::with_capacity(n_tasks),
            ring: vec![0; n_tasks.next_power_of_two()].into(),
            first: 0,
            last: 0,
            n_stacked: 0,
            pending: (NO_TASK, 0),
            n_ended: 0,
        }
    }

    #[inline]
    fn ring_at(&self, position: u32) -> u32 {
        // The length is a power of two, at least 1.
        self.ring[position as usize & (self.ring.len() - 1)]
    }

    /// Puts a task at the end of the ring, which has room: it is as long as there are tasks.
    #[inline]
    fn enqueue(&mut self, place: u32) {
        let at = self.last as usize & (self.ring.len() - 1);
        self.ring[at] = place;
        self.last = self.last.wrapping_add(1);
        self.n_stacked += 1;
    }

    #[inline]
    fn push(&mut self, range: Range) {
        self.n_stacked += range.len();
        self.stack.push(range);
    }
}

/// Asks the processor to fetch what is at an address; any address will do.
#[inline(always)]
fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: fetching ahead has no effect that a program could see, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// Two threads end the three tasks before a join, one of them two at once: one of the threads owns the join, and
    /// sees what both wrote.
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
