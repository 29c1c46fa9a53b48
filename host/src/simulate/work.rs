//! The work of a run: tasks and their order, the launches in them, and the chunks of each loop with their times.

use devbay_core::kernel::Counts;
use devbay_core::trace::{Event, Recording, SectionInfo, StepInfo, What};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

/// The work of one run.
#[derive(Clone, Debug, Default)]
pub struct Work {
    /// What follows each other: executions of sections, and of nodes that are planned while they run.
    pub stages: Vec<Stage>,
    /// Launches, which steps name by position.
    pub launches: Vec<LaunchInfo>,
    /// Measured runs whose launches and chunks were the same; times are the medians over them.
    pub n_runs: usize,
}

/// A launch: a kernel, or control flow with all that it runs.
#[derive(Clone, Debug)]
pub struct LaunchInfo {
    /// The node, with its op.
    pub node: String,
    /// The node's name in the model, or else that of its first result.
    pub name: String,
    /// The op.
    pub op: String,
    /// Its work as the kernel states it; None if the kernel does not.
    pub counts: Option<Counts>,
}

/// Tasks that are over before the next stage begins.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stage {
    /// Tasks in an order in which they could run.
    pub tasks: Vec<TaskWork>,
    /// Steps, task by task.
    pub steps: Vec<StepWork>,
    /// True if threads share its tasks.
    pub is_shared: bool,
}

/// A task.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskWork {
    /// Its steps.
    pub steps: Range<usize>,
    /// Tasks that wait for it: those that wait for it alone first.
    pub succs: Vec<usize>,
    /// Number of tasks that it waits for.
    pub n_preds: usize,
}

/// A step.
#[derive(Clone, PartialEq, Debug)]
pub struct StepWork {
    /// The launch.
    pub launch: usize,
    /// What it does, one after the other.
    pub parts: Vec<Part>,
}

/// A part of a step.
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// Nanoseconds on one thread.
    Serial(f64),
    /// The nanoseconds of each chunk of a loop, two at least.
    Loop(Vec<f64>),
}

impl Part {
    /// Returns its nanoseconds on one thread.
    pub fn ns(&self) -> f64 {
        match self {
            Self::Serial(ns) => *ns,
            Self::Loop(chunks) => chunks.iter().sum(),
        }
    }
}

impl StepWork {
    /// Returns its nanoseconds on one thread.
    pub fn ns(&self) -> f64 {
        self.parts.iter().map(Part::ns).sum()
    }

    /// Returns the chunks of all of its loops.
    pub fn chunks(&self) -> impl Iterator<Item = f64> {
        let chunks = self.parts.iter().filter_map(|part| match part {
            Part::Loop(chunks) => Some(chunks),
            Part::Serial(_) => None,
        });
        chunks.flatten().copied()
    }
}

impl Work {
    /// Returns its nanoseconds on one thread.
    pub fn ns(&self) -> f64 {
        self.stages.iter().flat_map(|stage| &stage.steps).map(StepWork::ns).sum()
    }

    /// Returns the medians of several runs on a simulated queue, of which each recording has some; `clock_ns` is the time of
    /// one clock reading, which each measured time includes. Runs that did other launches or chunks than the first are
    /// left out: the model's values decide about those.
    pub fn of(recordings: &[Recording], clock_ns: f64) -> Self {
        let runs: Vec<Vec<Measured>> =
            recordings.iter().flat_map(|recording| runs(recording, clock_ns)).collect();
        let (Some(recording), Some(first)) = (recordings.last(), runs.first()) else {
            return Self::default();
        };
        let alike: Vec<&Vec<Measured>> = runs.iter().filter(|run| is_alike(first, run)).collect();
        let medians: Vec<Measured> = (0..first.len())
            .map(|at| Measured {
                parts: median_parts(&alike.iter().map(|run| &*run[at].parts).collect::<Vec<_>>()),
                ..first[at].clone()
            })
            .collect();
        let mut work = Self { n_runs: alike.len(), ..Self::default() };
        let mut launch_of = HashMap::new();
        for stage in medians.chunk_by(|a, b| a.section == b.section) {
            let Some(section) = recording.sections.get(stage[0].section as usize) else { continue };
            work.add_stage(section, stage, &mut launch_of);
        }
        work
    }

    /// Adds an execution of a section.
    fn add_stage(
        &mut self,
        section: &SectionInfo,
        run: &[Measured],
        launch_of: &mut HashMap<(u32, u32), usize>,
    ) {
        let mut step_work = |measured: &Measured| {
            let launch = *launch_of.entry((measured.section, measured.step)).or_insert_with(|| {
                self.launches.push(LaunchInfo::of(&section.steps[measured.step as usize]));
                self.launches.len() - 1
            });
            StepWork { launch, parts: measured.parts.clone() }
        };
        let mut by_step: Vec<&Measured> = run.iter().collect();
        by_step.sort_by_key(|measured| measured.step);
        let is_whole = by_step.len() == section.steps.len()
            && by_step.iter().zip(0..).all(|(measured, step)| measured.step == step);
        if !is_whole {
            // Regions that are tasks of the section: some run several times, others not. What ran is taken as a line.
            let steps: Vec<StepWork> = run.iter().map(step_work).collect();
            let task = TaskWork { steps: 0..steps.len(), ..TaskWork::default() };
            self.stages.push(Stage { tasks: vec![task], steps, is_shared: false });
            return;
        }
        let steps = by_step.into_iter().map(&mut step_work).collect();
        self.stages.push(Stage { tasks: tasks(&section.steps), steps, is_shared: section.is_shared });
    }
}

impl LaunchInfo {
    fn of(step: &StepInfo) -> Self {
        let name = [&step.name, &step.output, &step.label].into_iter().find(|name| !name.is_empty());
        Self {
            node: step.label.clone(),
            name: name.cloned().unwrap_or_default(),
            op: step.op().to_owned(),
            counts: step.counts,
        }
    }
}

/// Returns the tasks of a section's steps.
fn tasks(steps: &[StepInfo]) -> Vec<TaskWork> {
    let n_tasks = steps.last().map_or(0, |step| step.task as usize + 1);
    let mut tasks = vec![TaskWork::default(); n_tasks];
    let mut preds: Vec<Vec<usize>> = vec![Vec::new(); n_tasks];
    for (at, step) in steps.iter().enumerate() {
        let task = step.task as usize;
        let range = &mut tasks[task].steps;
        *range = if range.end == 0 { at..at + 1 } else { range.start..at + 1 };
        preds[task].extend(
            step.preds.iter().map(|&pred| steps[pred as usize].task as usize).filter(|&pred| pred != task),
        );
    }
    for (task, preds) in preds.iter_mut().enumerate() {
        preds.sort_unstable();
        preds.dedup();
        tasks[task].n_preds = preds.len();
        preds.iter().for_each(|&pred| tasks[pred].succs.push(task));
    }
    for at in 0..n_tasks {
        let mut succs = std::mem::take(&mut tasks[at].succs);
        succs.sort_by_key(|&succ| tasks[succ].n_preds > 1);
        tasks[at].succs = succs;
    }
    tasks
}

/// A step as one run did it.
#[derive(Clone, Debug)]
struct Measured {
    section: u32,
    step: u32,
    parts: Vec<Part>,
}

/// Returns the steps of each run of a recording, in the order in which they ran.
fn runs(recording: &Recording, clock_ns: f64) -> Vec<Vec<Measured>> {
    let mut runs: Vec<Vec<Measured>> = Vec::new();
    for thread in &recording.threads {
        let mut events = thread.events.clone();
        let depth = |what: What| match what {
            What::Run => 0,
            What::Launch { .. } => 1,
            What::Loop => 2,
            _ => 3,
        };
        // Outer ones first.
        events.sort_by_key(|event| (event.begin_ns, Reverse(event.end_ns), depth(event.what)));
        let mut rest = &*events;
        while let Some((event, after)) = rest.split_first() {
            rest = after;
            if event.what == What::Run {
                let n = after.iter().position(|next| next.begin_ns >= event.end_ns).unwrap_or(after.len());
                runs.push(steps(&after[..n], clock_ns));
                rest = &after[n..];
            }
        }
    }
    runs
}

/// Returns the steps among the events of a run.
fn steps(events: &[Event], clock_ns: f64) -> Vec<Measured> {
    let mut steps = Vec::new();
    let mut rest = events;
    while let Some((event, after)) = rest.split_first() {
        rest = after;
        if let What::Launch { section, step, .. } = event.what {
            // Launches of the regions of control flow are inside, and their loops are its own.
            let n = after.iter().position(|next| next.begin_ns >= event.end_ns).unwrap_or(after.len());
            steps.push(Measured { section, step, parts: parts(event, &after[..n], clock_ns) });
            rest = &after[n..];
        }
    }
    steps
}

/// Returns the parts of a launch, given the events in it. A loop inside a chunk of another is a part of that chunk.
fn parts(launch: &Event, inside: &[Event], clock_ns: f64) -> Vec<Part> {
    let mut parts = Vec::new();
    // The launch's time is one reading of the clock too long, wherever that is counted.
    let mut left_ns = clock_ns;
    let mut serial = |parts: &mut Vec<Part>, ns: u64| {
        let own_ns = (ns as f64 - left_ns).max(0.0);
        left_ns = (left_ns - ns as f64).max(0.0);
        if own_ns > 0.0 {
            parts.push(Part::Serial(own_ns));
        }
    };
    let mut at_ns = launch.begin_ns;
    let loops = inside.iter().enumerate().filter(|(_, event)| event.what == What::Loop);
    for (at, whole) in loops {
        if whole.begin_ns < at_ns {
            continue;
        }
        let mut chunk_end_ns = whole.begin_ns;
        let mut chunks = Vec::new();
        for chunk in inside[at + 1..].iter().take_while(|event| event.begin_ns < whole.end_ns) {
            if chunk.what == What::Chunk && chunk.begin_ns >= chunk_end_ns {
                chunks.push(((chunk.end_ns - chunk.begin_ns) as f64 - clock_ns).max(0.0));
                chunk_end_ns = chunk.end_ns;
            }
        }
        if chunks.len() > 1 {
            serial(&mut parts, whole.begin_ns - at_ns);
            parts.push(Part::Loop(chunks));
            at_ns = whole.end_ns;
        }
    }
    serial(&mut parts, launch.end_ns.saturating_sub(at_ns));
    parts
}

/// Returns whether two runs did the same launches with the same loops.
fn is_alike(a: &[Measured], b: &[Measured]) -> bool {
    let is_alike = |(a, b): (&Measured, &Measured)| {
        let loops = |measured: &Measured| -> Vec<usize> { measured.loops().map(<[f64]>::len).collect() };
        (a.section, a.step) == (b.section, b.step) && loops(a) == loops(b)
    };
    a.len() == b.len() && a.iter().zip(b).all(is_alike)
}

impl Measured {
    fn loops(&self) -> impl Iterator<Item = &[f64]> {
        self.parts.iter().filter_map(|part| match part {
            Part::Loop(chunks) => Some(&**chunks),
            Part::Serial(_) => None,
        })
    }
}

/// Returns the medians of a step's parts over runs that did the same loops. A serial part that took no time in a run has
/// none there, so that parts are told apart by the loops around them.
fn median_parts(runs: &[&[Part]]) -> Vec<Part> {
    let n_loops = runs[0].iter().filter(|part| matches!(part, Part::Loop(_))).count();
    // For each run: the serial time before each loop and behind the last, and the loops.
    let split = runs.iter().map(|parts| {
        let (mut serial, mut loops) = (vec![0.0; n_loops + 1], Vec::new());
        for part in *parts {
            match part {
                Part::Serial(ns) => serial[loops.len()] += ns,
                Part::Loop(chunks) => loops.push(&**chunks),
            }
        }
        (serial, loops)
    });
    let split: Vec<(Vec<f64>, Vec<&[f64]>)> = split.collect();
    let mut parts = Vec::new();
    for at in 0..=n_loops {
        let serial_ns = median(split.iter().map(|(serial, _)| serial[at]).collect());
        if serial_ns > 0.0 {
            parts.push(Part::Serial(serial_ns));
        }
        if at < n_loops {
            let n_chunks = split[0].1[at].len();
            let chunk = |chunk: usize| median(split.iter().map(|(_, loops)| loops[at][chunk]).collect());
            parts.push(Part::Loop((0..n_chunks).map(chunk).collect()));
        }
    }
    parts
}

/// Returns the median; 0 of none.
pub(super) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::trace::{StepKind, ThreadEvents};
    use std::sync::Arc;

    fn step(task: u32, preds: &[u32]) -> StepInfo {
        StepInfo {
            label: format!("n{task} (Op)"),
            name: String::new(),
            output: "y".to_owned(),
            kernel: "Op@1".to_owned(),
            kind: StepKind::Kernel,
            cost_ns: 1.0,
            counts: None,
            signature: None,
            task,
            lane: 0,
            preds: preds.into(),
        }
    }

    fn recording(steps: Vec<StepInfo>, events: &[(What, u64, u64)]) -> Recording {
        let event = |&(what, begin_ns, end_ns): &(What, u64, u64)| Event { what, run: 1, begin_ns, end_ns };
        let events = events.iter().map(event).collect();
        let section = SectionInfo { devices: vec!["cpu:0".to_owned()], is_shared: true, steps };
        Recording {
            threads: vec![ThreadEvents { name: String::new(), events, n_dropped: 0 }],
            sections: vec![Arc::new(section)],
            ..Recording::default()
        }
    }

    fn launch(step: u32) -> What {
        What::Launch { section: 0, step, stream: 0 }
    }

    #[test]
    fn a_launch_is_its_loops_and_what_is_between_them() {
        // In the order in which they end. The second loop has another inside its first chunk.
        let events = [
            (What::Chunk, 12, 15),
            (What::Chunk, 16, 26),
            (What::Loop, 12, 27),
            (What::Chunk, 31, 32),
            (What::Chunk, 33, 34),
            (What::Loop, 31, 34),
            (What::Chunk, 30, 40),
            (What::Chunk, 41, 44),
            (What::Loop, 30, 45),
            (launch(0), 10, 50),
            (What::Run, 5, 60),
        ];
        let work = Work::of(&[recording(vec![step(0, &[])], &events)], 1.0);
        let expected = [
            Part::Serial(1.0),
            Part::Loop(vec![2.0, 9.0]),
            Part::Serial(3.0),
            Part::Loop(vec![9.0, 2.0]),
            Part::Serial(5.0),
        ];
        assert_eq!((work.n_runs, &*work.stages[0].steps[0].parts), (1, &expected[..]));
        assert_eq!((work.ns(), work.launches[0].name.as_str()), (31.0, "y"));
        assert_eq!(work.stages[0].steps[0].chunks().count(), 4);
    }

    #[test]
    fn medians_are_of_runs_that_did_the_same() {
        let run = |chunk: u64, n: u64| {
            let mut events: Vec<(What, u64, u64)> =
                (0..n).map(|i| (What::Chunk, i * chunk, (i + 1) * chunk)).collect();
            events.extend([(What::Loop, 0, n * chunk), (launch(0), 0, n * chunk), (What::Run, 0, n * chunk)]);
            recording(vec![step(0, &[])], &events)
        };
        let work = Work::of(&[run(10, 3), run(30, 3), run(5, 9), run(20, 3)], 0.0);
        assert_eq!(work.n_runs, 3);
        assert_eq!(work.stages[0].steps[0].parts, [Part::Loop(vec![20.0; 3])]);
        assert_eq!(Work::of(&[], 0.0).stages.len(), 0);
    }

    #[test]
    fn tasks_wait_for_those_whose_results_they_read() {
        let steps = vec![step(0, &[]), step(0, &[0]), step(1, &[1]), step(2, &[0, 1]), step(3, &[2, 3])];
        let events: Vec<(What, u64, u64)> =
            (0..5u32).map(|i| (launch(i), u64::from(i), u64::from(i) + 1)).collect();
        let whole = [&events[..], &[(What::Run, 0, 5)]].concat();
        let work = Work::of(&[recording(steps.clone(), &whole)], 0.0);
        let [stage] = &*work.stages else { panic!("{} stages", work.stages.len()) };
        let task = |steps, succs: &[usize], n_preds| TaskWork { steps, succs: succs.to_vec(), n_preds };
        let expected = [task(0..2, &[1, 2], 0), task(2..3, &[3], 1), task(3..4, &[3], 1), task(4..5, &[], 2)];
        assert_eq!((&*stage.tasks, stage.is_shared), (&expected[..], true));

        // A step that ran twice, as in a loop whose body is tasks: a line.
        let twice = [&events[..], &[(launch(4), 5, 6), (What::Run, 0, 6)]].concat();
        let work = Work::of(&[recording(steps, &twice)], 0.0);
        assert_eq!((work.stages[0].tasks.len(), work.stages[0].steps.len(), work.launches.len()), (1, 6, 5));
    }
}
