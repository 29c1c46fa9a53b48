//! Running tasks: ready counts, and who runs what.
//!
//! A task is ready when the last task before it ends. A successor that waits for that task alone runs next on the
//! same thread; what else became ready is kept by the participant ([`super::ready`]) and shown to other threads
//! ([`super::offers`]) as far as it is worth a hand-over. Nothing here allocates, locks or counts references while all
//! goes well.
//!
//! The caller begins *alone*: without an atomic operation, and without asking for failures, as there is none. When it
//! has something that is worth showing, or when a task fails, it goes on as one of several participants; a run that
//! never has enough to show stays with it to the end.
//!
//! # Protocol
//!
//! | what | who | order |
//! | --- | --- | --- |
//! | `ready[task]` | each task before it counts down once; who makes it 0 owns the task | AcqRel; load and store while the caller is alone |
//! | `remaining` | each participant subtracts what it ran when it runs out of tasks; at 0 the run has ended | AcqRel |
//! | `failed`, `poisoned[task]` | set before the count down of the same task, read by who owns it | Relaxed |
//! | `Participant::local` and its streams | the thread that takes part with that slot, in this run | - |
//!
//! What the caller counted down alone is seen by whoever takes what it shows (Release and Acquire of the offers).
//!
//! Tasks that lead to the same successor and follow each other on one thread are counted down together, when the last
//! of them has ended; the successor could not be ready earlier in any case. So a join of thousands of tasks is a few
//! atomic operations, not thousands on one word.

use super::board::Shared;
use super::cancel::Cancel;
use super::frame::Streams;
use super::nested::Context;
use super::offers::{Offers, Range};
use super::queue::WorkQueue;
use super::ready::Ready;
use super::section::Ended;
use super::task_loop::{SINGLES_WORTH, TaskLoop};
use crate::error::{Error, Result};
use crate::plan::section::Section;
use crate::plan::tasks::{NO_TASK, TaskGraph};
use crate::sync::{self, AtomicBool, AtomicU32, Ordering, fence};
use crossbeam_utils::CachePadded;
use devbay_plugin_api::abi::BufferRef;
use std::cell::UnsafeCell;
use std::ops::ControlFlow;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread::Thread;

/// How often a participant without tasks looks for some before it leaves, or lets others run: some microseconds.
const LOOKS: u32 = 256;

/// What a run of several tasks changes beside a frame's references; part of the frame.
pub(crate) struct TaskState {
    /// For each task how many it still waits for.
    ready: Box<[AtomicU32]>,
    /// Tasks that must not run, because one before them failed.
    poisoned: Box<[AtomicBool]>,
    participants: Box<[CachePadded<Participant>]>,
}

/// A thread's part in a run, by slot.
pub(super) struct Participant {
    offers: Offers,
    local: UnsafeCell<Local>,
    /// Launches of one stream come one at a time (B17): each participant has its own, one for each lane.
    streams: Streams,
}

// SAFETY: `offers` is made for many threads; `local` and `streams` are used by the one thread that takes part with this
// slot: the caller of the run, or the worker of that number.
unsafe impl Sync for Participant {}

/// What a participant keeps to itself.
pub(super) struct Local {
    pub ready: Ready,
    /// Tasks that were run and not yet subtracted from `remaining`.
    pub n_ended: u32,
}

impl TaskState {
    /// State for the tasks of a section and so many threads.
    ///
    /// # Errors
    /// What the plugin says of another stream.
    pub fn new(section: &Section, n_threads: usize) -> Result<Self> {
        let n_tasks = section.graph.len();
        let participant = |_| {
            let local = Local::new(n_tasks);
            Ok(CachePadded::new(Participant {
                offers: Offers::default(),
                local: UnsafeCell::new(local),
                streams: Streams::new(section)?,
            }))
        };
        Ok(Self {
            ready: (0..n_tasks).map(|_| AtomicU32::new(0)).collect(),
            poisoned: (0..n_tasks).map(|_| AtomicBool::new(false)).collect(),
            participants: (0..n_threads.max(1)).map(participant).collect::<Result<_>>()?,
        })
    }
}

/// One run of a section's tasks.
///
/// # Invariants
/// `ready` and `poisoned` have a place for each task. What [`TaskGraph`] promises of its numbers (`tasks` and `succs`
/// are only followed through each other) and [`Section`] of its steps makes every index below one that is there.
pub(super) struct TaskRun<'a> {
    section: &'a Section,
    graph: &'a TaskGraph,
    state: &'a TaskState,
    context: &'a Context,
    refs: *const BufferRef,
    queue: &'a WorkQueue,
    pub cancel: Option<&'a Cancel>,
    /// Tasks that have not ended.
    remaining: CachePadded<AtomicU32>,
    /// Whether a task failed.
    pub failed: AtomicBool,
    /// Whether tasks were lost, so that what remains will not end.
    abandoned: AtomicBool,
    /// The first failure.
    failure: Mutex<Option<Error>>,
    /// Set while the caller sleeps.
    asleep: AtomicBool,
    caller: OnceLock<Thread>,
}

// SAFETY: `refs` are the frame's references, which nobody changes while it runs.
unsafe impl Sync for TaskRun<'_> {}

/// Runs the tasks of a section. All threads of the queue may take part; the calling one does until the end.
///
/// # Safety
/// `refs` are the section's references, bound to memory of its sizes that stays until this returns; the device is
/// inline; `state` belongs to this run alone.
///
/// # Errors
/// The first failure, or cancelled. Tasks that do not depend on what failed have run.
pub(crate) unsafe fn run(
    section: &Section,
    state: &mut TaskState,
    context: &Context,
    refs: *const BufferRef,
    queue: &WorkQueue,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let graph = &section.graph;
    sync::set_all(&mut state.ready, &graph.n_preds);
    let run = TaskRun {
        section,
        graph,
        state,
        context,
        refs,
        queue,
        cancel,
        remaining: CachePadded::new(AtomicU32::new(graph.len() as u32)),
        failed: AtomicBool::new(false),
        abandoned: AtomicBool::new(false),
        failure: Mutex::new(None),
        asleep: AtomicBool::new(false),
        caller: OnceLock::new(),
    };
    let shared = match section.n_worth < NO_TASK {
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
                self.work_shared(slot, local, self.section.n_worth, NO_TASK);
                if self.subtract(local) {
                    self.wake_caller();
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
        self.wake_caller();
    }
}

impl TaskRun<'_> {
    /// The caller's part: from the first task to the end of the run.
    fn lead<const SHARED: bool>(&self) {
        // SAFETY: slot 0 is the caller's, and no other thread's.
        let local = unsafe { &mut *self.state.participants[0].local.get() };
        let n_sources = self.graph.n_sources;
        local.ready.push(Range { begin: 0, end: n_sources });
        let n_worth = if SHARED { self.section.n_worth } else { NO_TASK };
        let left = match n_sources < n_worth && SINGLES_WORTH < n_worth {
            true => self.work_alone(local, n_worth),
            false => ControlFlow::Break(NO_TASK),
        };
        if let ControlFlow::Break(task) = left {
            self.work_shared(0, local, n_worth, task);
        }
        if !SHARED {
            local.n_ended = 0;
            return;
        }
        self.subtract(local);
        let mut looks = 0u32;
        while self.remaining.load(Ordering::Acquire) != 0 && !self.abandoned.load(Ordering::Acquire) {
            if self.steal(0, local) {
                self.work_shared(0, local, n_worth, NO_TASK);
                self.subtract(local);
                looks = 0;
            } else if self.queue.help_loops(0) {
                looks = 0;
            } else {
                looks = looks.saturating_add(1);
                match looks {
                    0..LOOKS => sync::spin(),
                    LOOKS..8192 => std::thread::yield_now(),
                    _ => self.sleep(),
                }
            }
        }
    }

    /// Sleeps until somebody offers tasks or the run ends.
    fn sleep(&self) {
        self.caller.get_or_init(std::thread::current);
        self.asleep.store(true, Ordering::Relaxed);
        // With the fence of `wake_caller`: either this sees what was offered, or that sees the caller asleep.
        fence(Ordering::SeqCst);
        let offered = self.state.participants.iter().any(|other| other.offers.is_showing());
        if !offered && self.remaining.load(Ordering::Acquire) != 0 {
            // Loops that open while it sleeps do without it; a while later it looks again.
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    fn wake_caller(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed)
            && let Some(caller) = self.caller.get()
        {
            caller.unpark();
        }
    }

    /// Takes tasks that another participant shows.
    fn steal(&self, slot: u32, local: &mut Local) -> bool {
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

    /// Subtracts what was run from what remains; tells whether that was the last.
    fn subtract(&self, local: &mut Local) -> bool {
        let n = std::mem::take(&mut local.n_ended);
        n > 0 && self.remaining.fetch_sub(n, Ordering::AcqRel) == n
    }

    /// The loop of a participant. Never a call of its own: then what it gives stays in registers.
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

    /// Runs tasks while nobody else does, until there are none, or there is something to show, or one failed: then
    /// breaks with what to go on with.
    fn work_alone(&self, local: &mut Local, n_worth: u32) -> ControlFlow<u32> {
        match self.cancel {
            None => self.work::<false, false>(0, local, n_worth, NO_TASK),
            Some(_) => self.work::<false, true>(0, local, n_worth, NO_TASK),
        }
    }

    /// Runs a task, if one is given, and all that the participant has or gets, as one of several.
    fn work_shared(&self, slot: u32, local: &mut Local, n_worth: u32, task: u32) {
        // As one of several it does not break.
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
            // There is room, and nobody else fills it.
            participant.offers.show(range);
            self.queue.offered();
            if self.asleep.load(Ordering::Relaxed) {
                self.wake_caller();
            }
        }
    }

    #[cold]
    pub(super) fn fail(&self, ended: Ended<'_>, participant: &Participant) {
        let error = match ended {
            Ended::Cancelled => self.cancel.map_or_else(Cancel::unknown, Cancel::error),
            Ended::Failed(step, status) => {
                self.section.launch_failed(&participant.streams, self.context, self.cancel, step, status)
            }
        };
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        self.failed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_poisoned(&self, task: u32) -> bool {
        self.state.poisoned[task as usize].load(Ordering::Relaxed)
    }

    /// Keeps a task from running.
    pub(super) fn poison(&self, task: u32) {
        self.state.poisoned[task as usize].store(true, Ordering::Relaxed);
    }

    /// Keeps what depends on a task from running.
    #[cold]
    pub(super) fn poison_successors(&self, task: u32) {
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
    use loom::sync::Arc;

    /// A caller counts down alone, and then shows a task: who takes it owns the join, and sees what was written before.
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
