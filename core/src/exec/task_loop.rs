//! The loop in which a participant runs tasks: launch, count down, next.
//!
//! Its guarantees stand in [`super::tasks`]. It is in a file of its own because it is written for the machine. A launch
//! is a call that could change anything behind a reference, so the loop first copies the run's fields that it needs
//! into local variables. Rare work is a function of [`TaskRun`].

use super::offers::Range;
use super::ready::Ready;
use super::section::launch_steps;
use super::tasks::{Local, Participant, TaskRun};
use crate::plan::order::tasks::{Links, NO_TASK, Task, Then};
use crate::plan::section::Step;
use crate::sync::{AtomicU32, Ordering};
use devbay_plugin_api::abi::{BufferRef, Stream};
use std::ops::ControlFlow;

/// Tasks of which so many are worth a hand-over are shown one by one; cheaper ones only in ranges.
pub(super) const SINGLES_WORTH: u32 = 4;

/// References of a task's first step that are fetched ahead.
const REFS_AHEAD: usize = 6;

/// The parts of a run that a participant's loop needs.
///
/// Functions with `SHARED` false are for the caller while it is alone. They break with a task that is to be gone on
/// with as one of several; those with `SHARED` never do.
///
/// # Invariants
/// All of it is one run's, whose invariants keep every index in range; the participant is this thread's.
#[derive(Clone, Copy)]
pub(super) struct TaskLoop<'a> {
    pub run: &'a TaskRun<'a>,
    pub links: Links<'a>,
    pub steps: &'a [Step],
    /// For each task how many it still waits for.
    pub counts: &'a [AtomicU32],
    pub refs: *const BufferRef,
    pub participant: &'a Participant,
    pub streams: *const *mut Stream,
    /// Tasks that are worth a hand-over.
    pub n_worth: u32,
}

impl<'a> TaskLoop<'a> {
    /// Runs a given task, the participant's tasks, and those that become ready with them, until it has none.
    #[inline(always)]
    pub fn work<const SHARED: bool, const CHECKED: bool>(
        self,
        local: &mut Local,
        mut task: u32,
    ) -> ControlFlow<u32> {
        loop {
            if task == NO_TASK {
                task = self.take_if(local, |_| true);
                if task == NO_TASK {
                    if self.run.refill::<SHARED>(self.participant, local) {
                        continue;
                    }
                    return ControlFlow::Continue(());
                }
            }
            let (last, after) = self.run_line::<SHARED, CHECKED>(local, task)?;
            task = match last.then() {
                Then::Join(join) => self.run_joining::<SHARED, CHECKED>(local, join)?,
                Then::Chosen { control, is_exit } => match self.run.choose(control, is_exit, local) {
                    Some(next) => next,
                    None => self.count_successors::<SHARED>(local, last, after)?,
                },
                _ => self.count_successors::<SHARED>(local, last, after)?,
            };
        }
    }

    /// Runs a task, and one after the other those that follow only it. Returns the last one, and the entry behind it,
    /// where its lists end.
    #[inline(always)]
    fn run_line<const SHARED: bool, const CHECKED: bool>(
        self,
        local: &mut Local,
        mut task: u32,
    ) -> ControlFlow<u32, (&'a Task, &'a Task)> {
        loop {
            self.run_task::<SHARED, CHECKED>(local, task)?;
            let (begin, after) = self.links.task(task);
            match begin.then() {
                Then::Next(next) => task = next,
                _ => return ControlFlow::Continue((begin, after)),
            }
        }
    }

    /// Counts the successor of a task that ended down, together with those of the next tasks that lead to it too, and
    /// are run before; gives it if it is ready.
    #[inline(always)]
    fn run_joining<const SHARED: bool, const CHECKED: bool>(
        self,
        local: &mut Local,
        join: u32,
    ) -> ControlFlow<u32, u32> {
        let mut n = 1;
        loop {
            let task = self.take_if(local, |task| task.joins(join));
            if task == NO_TASK {
                let ready = self.count_down::<SHARED>(join, n);
                return ControlFlow::Continue(if ready { join } else { NO_TASK });
            }
            if let ControlFlow::Break(task) = self.run_task::<SHARED, CHECKED>(local, task) {
                // The join cannot be ready yet: this task is not counted.
                self.count_down::<SHARED>(join, n);
                return ControlFlow::Break(task);
            }
            n += 1;
        }
    }

    /// Counts down the successors of a task that ended. Returns one that is ready to run now, and queues the others.
    #[inline(always)]
    fn count_successors<const SHARED: bool>(
        self,
        local: &mut Local,
        task: &Task,
        after: &Task,
    ) -> ControlFlow<u32, u32> {
        let next = match task.then() {
            Then::Many(Some(next)) => next,
            Then::Chosen { .. } if task.end_sole > task.first_succ => self.links.successor(task.first_succ),
            _ => NO_TASK,
        };
        for place in task.end_sole..after.first_succ {
            let ready = self.count_down::<SHARED>(self.links.successor(place), 1);
            local.ready.enqueue_if(ready, place);
        }
        if task.end_sole > task.first_succ + 1 {
            local.ready.push(Range { begin: task.first_succ + 1, end: task.end_sole });
            if !SHARED && local.ready.n_ranged() >= self.n_worth {
                return ControlFlow::Break(next);
            }
        }
        ControlFlow::Continue(next)
    }

    /// Launches a task's steps. If the task fails, or must not run because an earlier one failed, its dependents are
    /// kept from running.
    ///
    /// A participant that runs alone does not look for failures before it has one itself. Then it marks the task as one
    /// that must not run, and leaves it to [`TaskRun::work_shared`], which looks.
    #[inline(always)]
    fn run_task<const SHARED: bool, const CHECKED: bool>(
        self,
        local: &mut Local,
        task: u32,
    ) -> ControlFlow<u32> {
        let run = self.run;
        if SHARED {
            self.offer(local);
            if run.failed.load(Ordering::Relaxed) && run.must_not_run(task) {
                run.poison_successors(task, local);
                local.n_ended += 1;
                return ControlFlow::Continue(());
            }
        }
        let (begin, end) = self.links.task(task);
        let range = begin.first_step as usize..end.first_step as usize;
        debug_assert!(range.start <= range.end && range.end <= self.steps.len());
        // SAFETY: the invariant of `TaskRun`: a task's steps are the section's.
        let steps = unsafe { self.steps.get_unchecked(range) };
        // SAFETY: `refs` are bound (# Safety of `tasks::run`), and the streams are this participant's own.
        let launched =
            unsafe { launch_steps::<CHECKED>(run.section, steps, self.refs, self.streams, run.cancel) };
        if let Err(ended) = launched {
            run.fail(ended, self.participant);
            if !SHARED {
                run.poison(task);
                return ControlFlow::Break(task);
            }
            run.poison_successors(task, local);
        }
        local.n_ended += 1;
        ControlFlow::Continue(())
    }

    /// Shows the oldest of the waiting tasks to others, if they are worth it.
    #[inline(always)]
    fn offer(self, local: &mut Local) {
        let n_single = if self.n_worth > SINGLES_WORTH { 0 } else { local.ready.n_single() };
        if local.ready.n_ranged() + n_single >= self.n_worth {
            self.run.show(self.participant, local);
        }
    }

    /// Counts a task's predecessors down; tells whether it is ready.
    #[inline(always)]
    fn count_down<const SHARED: bool>(self, task: u32, n: u32) -> bool {
        debug_assert!((task as usize) < self.counts.len());
        // SAFETY: the invariant of `TaskRun`: there is a place for each task.
        count_down::<SHARED>(unsafe { self.counts.get_unchecked(task as usize) }, n)
    }

    /// The next of the participant's tasks if it is wanted, else `NO_TASK`.
    #[inline(always)]
    fn take_if(self, local: &mut Local, wanted: impl Fn(&Task) -> bool) -> u32 {
        let wanted = |task| wanted(self.links.task(task).0);
        local.ready.take_if(self.links, wanted, |ready| self.fetch_ahead(ready))
    }

    /// Fetches data of the next tasks in the ring: the references of the nearest ones, and the entries of farther ones.
    ///
    /// If the ring has no task there, the place names an older one. A useless fetch costs less than a check.
    #[inline(always)]
    fn fetch_ahead(self, ready: &Ready) {
        let task = |number| self.links.task(self.links.successor(ready.single(number))).0;
        prefetch(task(5));
        prefetch(self.steps.as_ptr().wrapping_add(task(3).first_step as usize));
        if let Some(step) = self.steps.get(task(1).first_step as usize) {
            let refs = self.refs.wrapping_add(step.first_ref as usize);
            (0..REFS_AHEAD).step_by(2).for_each(|i| prefetch(refs.wrapping_add(i)));
        }
    }
}

/// Counts down, and tells whether that was the last of it: then all that others did before theirs is seen.
#[inline(always)]
pub(super) fn count_down<const SHARED: bool>(ready: &AtomicU32, n: u32) -> bool {
    if SHARED {
        return ready.fetch_sub(n, Ordering::AcqRel) == n;
    }
    let left = ready.load(Ordering::Relaxed) - n;
    ready.store(left, Ordering::Relaxed);
    left == 0
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
