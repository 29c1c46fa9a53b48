//! A thread's slices: its events, and slices derived from them.
//!
//! Tasks and a worker's share of a run are not recorded. Consecutive launches of one task make a slice of the task, and
//! uninterrupted work for a run that another thread waits for makes a slice of the run. While the run's own thread has no
//! task, it waits, and the tasks that it still finds cut its wait.

use super::{Slice, SliceKind, StepAt};
use devbay_core::trace::{Event, Recording, StepKind, ThreadEvents, What};
use std::cmp::Reverse;

/// An open event, which encloses later ones.
struct Open {
    event: Option<Event>,
    /// Its run, which enclosed events inherit unless they are runs themselves; 0 for the thread itself.
    run: u32,
    /// True inside control flow that is a step: launches then belong to that step's task.
    in_step: bool,
    /// Run and task of the latest enclosed events, not yet emitted.
    run_slice: Option<Slice>,
    task_slice: Option<(Slice, u32)>,
    /// For a wait: the end of its emitted part.
    told_ns: u64,
}

impl Open {
    fn new(event: Option<Event>, run: u32, in_step: bool) -> Self {
        let told_ns = event.map_or(0, |event| event.begin_ns);
        Self { event, run, in_step, run_slice: None, task_slice: None, told_ns }
    }

    fn waits(&self) -> bool {
        self.event.is_some_and(|event| event.what == What::WaitForTasks)
    }
}

/// Returns the slices of a thread, outer ones first.
pub(super) fn of_thread(thread: &ThreadEvents, recording: &Recording) -> Vec<Slice> {
    let mut order: Vec<usize> = (0..thread.events.len()).collect();
    // Of two equally long slices, the outer one ended later.
    order.sort_by_key(|&i| {
        let event = &thread.events[i];
        (event.begin_ns, Reverse(event.end_ns), Reverse(i))
    });
    let mut slices = Slices { recording, open: vec![Open::new(None, 0, false)], told: Vec::new() };
    for i in order {
        slices.add(thread.events[i]);
    }
    while slices.open.len() > 1 {
        slices.close();
    }
    slices.end_task();
    slices.end_run();
    let mut told = slices.told;
    // The sort is stable: of two slices of one kind the outer one came first.
    told.sort_by_key(|slice| (slice.begin_ns, Reverse(slice.end_ns), rank(slice, recording)));
    told
}

/// Ranks slices of equal time by nesting, outermost first.
fn rank(slice: &Slice, recording: &Recording) -> u32 {
    match slice.kind {
        SliceKind::Run | SliceKind::Part => 0,
        SliceKind::Launch(at, _) => match kind_of(recording, at) {
            Some(StepKind::Stage) => 1,
            Some(StepKind::Control) => 3,
            _ => 4,
        },
        SliceKind::Task { .. } => 2,
        SliceKind::Other(_) | SliceKind::Mark(..) => 5,
    }
}

/// Returns the kind of a step.
pub(super) fn kind_of(recording: &Recording, at: StepAt) -> Option<StepKind> {
    let section = recording.sections.get(at.section as usize)?;
    section.steps.get(at.step as usize).map(|step| step.kind)
}

struct Slices<'a> {
    recording: &'a Recording,
    /// The thread itself, then the open events, outer ones first.
    open: Vec<Open>,
    told: Vec<Slice>,
}

impl Slices<'_> {
    fn add(&mut self, event: Event) {
        while self.open.len() > 1 && self.top().event.is_some_and(|outer| outer.end_ns < event.end_ns) {
            self.close();
        }
        let (run, in_step) = (self.top().run, self.top().in_step);
        let slice = |kind| Slice { kind, run: event.run, begin_ns: event.begin_ns, end_ns: event.end_ns };
        if run != event.run && event.what != What::Run {
            self.belongs_to_run(slice(SliceKind::Part));
        } else {
            self.end_run();
        }
        let mut inside = in_step;
        match event.what {
            What::Launch { section, step, stream } => {
                let at = StepAt { section, step };
                let kind = kind_of(self.recording, at);
                if kind == Some(StepKind::Stage) {
                    self.end_task();
                } else if !in_step {
                    let task = self.recording.step(event.what).map_or(0, |step| step.task);
                    self.belongs_to_task(slice(SliceKind::Task { section, task }), step);
                }
                inside |= kind == Some(StepKind::Control);
                self.told.push(slice(SliceKind::Launch(at, stream)));
            }
            What::Run => {
                self.end_task();
                inside = false;
                self.told.push(slice(SliceKind::Run));
            }
            // Emitted once its enclosed events are known.
            What::WaitForTasks => self.end_task(),
            what => {
                self.end_task();
                self.told.push(slice(SliceKind::Other(what)));
            }
        }
        self.open.push(Open::new(Some(event), event.run, inside));
    }

    fn top(&mut self) -> &mut Open {
        let last = self.open.len() - 1;
        &mut self.open[last]
    }

    /// Adds an event for a run of another thread to that run's slice, or to a new one.
    fn belongs_to_run(&mut self, slice: Slice) {
        match &mut self.top().run_slice {
            Some(of) if of.run == slice.run => of.end_ns = slice.end_ns,
            _ => {
                self.end_task();
                self.end_run();
                self.top().run_slice = Some(slice);
            }
        }
    }

    /// Adds a launch of a task to that task's slice, or to a new one.
    fn belongs_to_task(&mut self, slice: Slice, step: u32) {
        match &mut self.top().task_slice {
            // A task that begins again is a new slice.
            Some((of, before)) if of.kind == slice.kind && of.run == slice.run && *before < step => {
                of.end_ns = slice.end_ns;
                *before = step;
            }
            _ => {
                self.end_task();
                self.top().task_slice = Some((slice, step));
            }
        }
    }

    fn end_run(&mut self) {
        let ended = self.top().run_slice.take();
        self.told.extend(ended);
    }

    fn end_task(&mut self) {
        let Some((task, _)) = self.top().task_slice.take() else {
            return;
        };
        if self.top().waits() {
            let begin_ns = std::mem::replace(&mut self.top().told_ns, task.end_ns);
            self.tell_wait(begin_ns, task.begin_ns);
        }
        self.told.push(task);
    }

    fn tell_wait(&mut self, begin_ns: u64, end_ns: u64) {
        if let Some(event) = self.top().event
            && begin_ns < end_ns
        {
            self.told.push(Slice { kind: SliceKind::Other(event.what), run: event.run, begin_ns, end_ns });
        }
    }

    fn close(&mut self) {
        self.end_task();
        self.end_run();
        if let (true, Some(event)) = (self.top().waits(), self.top().event) {
            let begin_ns = self.top().told_ns;
            self.tell_wait(begin_ns, event.end_ns);
        }
        self.open.pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::trace::{SectionInfo, StepInfo};
    use std::sync::Arc;

    /// Returns a recording with a section of two tasks with two kernels, one of a region, and one whose only step is control
    /// flow.
    fn recording() -> Recording {
        let step = |kind, task| StepInfo {
            label: String::new(),
            name: String::new(),
            output: String::new(),
            kernel: String::new(),
            kind,
            cost_ns: 0.0,
            counts: None,
            signature: None,
            task,
            lane: 0,
            preds: Box::default(),
        };
        let section = |steps| Arc::new(SectionInfo { devices: Vec::new(), is_shared: false, steps });
        let kernel = |task| step(StepKind::Kernel, task);
        let sections = vec![
            section(vec![kernel(0), kernel(0), kernel(1), kernel(1)]),
            section(vec![kernel(0)]),
            section(vec![step(StepKind::Control, 0)]),
        ];
        Recording { sections, ..Recording::default() }
    }

    /// Returns the slices of events, which are given as kind, run, begin and end in the order in which they ended.
    fn slices(events: &[(What, u32, u64, u64)]) -> Vec<String> {
        let events = events.iter();
        let events = events.map(|&(what, run, begin_ns, end_ns)| Event { what, run, begin_ns, end_ns });
        let thread = ThreadEvents { name: String::new(), events: events.collect(), n_dropped: 0 };
        let name = |slice: &Slice| {
            let name = match slice.kind {
                SliceKind::Run => "run".to_owned(),
                SliceKind::Part => "part".to_owned(),
                SliceKind::Task { section, task } => format!("task {section}.{task}"),
                SliceKind::Launch(at, _) => format!("step {}.{}", at.section, at.step),
                SliceKind::Other(what) => format!("{what:?}"),
                SliceKind::Mark(..) => "mark".to_owned(),
            };
            format!("{name} of {}: {}-{}", slice.run, slice.begin_ns, slice.end_ns)
        };
        of_thread(&thread, &recording()).iter().map(name).collect()
    }

    fn launch(section: u32, step: u32) -> What {
        What::Launch { section, step, stream: 0 }
    }

    #[test]
    fn launches_of_a_task_that_follow_each_other_are_one() {
        let found = slices(&[
            (launch(0, 0), 1, 1, 2),
            (launch(0, 1), 1, 3, 4),
            (launch(0, 2), 1, 5, 6),
            (launch(0, 0), 1, 7, 8),
            (launch(0, 0), 1, 8, 9),
            (What::Run, 1, 0, 9),
        ]);
        let expected = [
            "run of 1: 0-9",
            "task 0.0 of 1: 1-4",
            "step 0.0 of 1: 1-2",
            "step 0.1 of 1: 3-4",
            "task 0.1 of 1: 5-6",
            "step 0.2 of 1: 5-6",
            "task 0.0 of 1: 7-8",
            "step 0.0 of 1: 7-8",
            "task 0.0 of 1: 8-9",
            "step 0.0 of 1: 8-9",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn what_a_worker_does_for_a_run_at_one_go_is_a_part_of_it() {
        let found = slices(&[
            (launch(0, 0), 1, 1, 2),
            (launch(0, 2), 1, 3, 4),
            (launch(0, 2), 2, 5, 6),
            (launch(0, 3), 1, 7, 8),
        ]);
        let parts: Vec<&String> = found.iter().filter(|name| name.starts_with("part")).collect();
        assert_eq!(parts, ["part of 1: 1-4", "part of 2: 5-6", "part of 1: 7-8"]);
    }

    #[test]
    fn a_region_is_of_the_task_of_its_step() {
        let found = slices(&[
            (launch(1, 0), 1, 1, 2),
            (launch(1, 0), 1, 2, 3),
            (launch(2, 0), 1, 1, 3),
            (What::Run, 1, 1, 3),
        ]);
        let expected = [
            "run of 1: 1-3",
            "task 2.0 of 1: 1-3",
            "step 2.0 of 1: 1-3",
            "step 1.0 of 1: 1-2",
            "step 1.0 of 1: 2-3",
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn a_wait_is_cut_at_the_tasks_that_were_found_after_all() {
        let found = slices(&[
            (launch(0, 0), 1, 4, 5),
            (launch(0, 1), 1, 6, 7),
            (launch(0, 2), 1, 7, 8),
            (What::WaitForTasks, 1, 2, 9),
            (What::Run, 1, 0, 9),
        ]);
        let waits: Vec<&String> = found.iter().filter(|name| name.starts_with("Wait")).collect();
        assert_eq!(waits, ["WaitForTasks of 1: 2-4", "WaitForTasks of 1: 8-9"]);
    }

    #[test]
    fn a_run_may_begin_in_another_that_waits() {
        let found = slices(&[
            (launch(0, 0), 2, 2, 3),
            (What::Run, 2, 2, 4),
            (What::WaitForStream, 1, 1, 5),
            (launch(0, 0), 1, 5, 6),
            (What::Run, 1, 0, 6),
        ]);
        let expected = [
            "run of 1: 0-6",
            "WaitForStream of 1: 1-5",
            "run of 2: 2-4",
            "task 0.0 of 2: 2-3",
            "step 0.0 of 2: 2-3",
            "task 0.0 of 1: 5-6",
            "step 0.0 of 1: 5-6",
        ];
        assert_eq!(found, expected);
    }
}
