//! Replaying work on a machine: processors take tasks and chunks as the executor and the board do.
//!
//! Events are in the order of their time; at each, one processor has ended something and takes the next.
//!
//! - **Tasks** ([decisions/0006](../../../docs/decisions/0006-tasks-and-private-stacks.md)): a processor goes on with a
//!   successor of the task that it ended, one that waits for that task alone if there is one. Others that became ready go
//!   to processors that have nothing to do. A stage whose tasks are not shared runs on one processor.
//! - **Loops** (`core/src/threads/board.rs`): a loop's chunks are shared out in equal ranges. A processor takes from the front of its own range, and
//!   then the back half of another's. The loop's caller takes part, closes the loop when no chunk is left, and waits for
//!   those inside without doing anything else.
//! - **Costs**: a processor begins with a task or a loop of another's `join_ns` later, and those that enter a loop follow
//!   each other in the distance of `transfer_ns`. A caller goes on `transfer_ns` after the last has left.
//! - **Memory**: the bytes of launches pass one after the other. A loop ends no earlier than its bytes have passed.

use super::machine::{HandOver, Machine};
use super::work::{Part, Stage, Work};
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};

/// A run on a machine.
#[derive(Clone, PartialEq, Debug)]
pub struct Replay {
    /// Nanoseconds of the run.
    pub ns: f64,
    /// Nanoseconds of each launch, from its begin to its end.
    pub launches_ns: Vec<f64>,
    /// Part of the processors' time in which they had nothing to do.
    pub idle: f64,
    /// Chunks that ran.
    pub n_chunks: usize,
}

/// Replays work.
pub fn replay(work: &Work, machine: &Machine) -> Replay {
    let mut replay = Replay { ns: 0.0, launches_ns: vec![0.0; work.launches.len()], idle: 0.0, n_chunks: 0 };
    for stage in &work.stages {
        let rates = traffic(work, stage);
        let mut run = Run::new(stage, machine, &rates, &mut replay);
        let ns = run.run();
        replay.ns += ns;
    }
    replay.idle = (1.0 - work.ns() / (machine.n as f64 * replay.ns)).clamp(0.0, 1.0);
    replay
}

/// Returns the nanoseconds of one loop that has the machine to itself.
pub(super) fn of_loop(chunks: &[f64], machine: &Machine) -> f64 {
    let parts = vec![Part::Loop(chunks.to_vec())];
    let task = super::TaskWork { steps: 0..1, ..super::TaskWork::default() };
    let steps = vec![super::StepWork { launch: 0, parts }];
    let stage = Stage { tasks: vec![task], steps, is_shared: false };
    let mut replay = Replay { ns: 0.0, launches_ns: vec![0.0], idle: 0.0, n_chunks: 0 };
    Run::new(&stage, machine, &[0.0], &mut replay).run()
}

/// Returns the number of threads, a power of two, from which on doubling them saves less than a tenth of the time.
pub fn saturation(work: &Work, machine: impl Fn(usize) -> Machine) -> usize {
    const THREADS_MAX: usize = 512;
    let mut n = 1;
    let mut ns = replay(work, &machine(n)).ns;
    while n < THREADS_MAX {
        let next_ns = replay(work, &machine(2 * n)).ns;
        if next_ns > 0.9 * ns {
            break;
        }
        (n, ns) = (2 * n, next_ns);
    }
    n
}

/// Returns for each step the bytes that it moves in a nanosecond of its work.
fn traffic(work: &Work, stage: &Stage) -> Vec<f64> {
    let rate = |step: &super::StepWork| match work.launches[step.launch].counts {
        Some(counts) if step.ns() > 0.0 => counts.bytes as f64 / step.ns(),
        _ => 0.0,
    };
    stage.steps.iter().map(rate).collect()
}

/// What a processor does until its next event.
#[derive(Clone, Copy)]
enum Doing {
    Nothing,
    /// It comes for a task.
    Coming(usize),
    /// A serial part of its task, or a loop alone.
    Part,
    /// It comes to help with a loop.
    Entering(usize),
    /// A chunk of a loop.
    Chunk(usize),
    /// It waits for those inside its loop.
    Waiting,
}

/// A processor.
#[derive(Clone)]
struct Processor {
    doing: Doing,
    /// Its task, the step and the part, and when the step began.
    task: usize,
    step: usize,
    part: usize,
    step_begin_ns: f64,
}

/// An open loop.
struct Open<'w> {
    caller: usize,
    chunks: &'w [f64],
    /// Chunks left, by slot.
    ranges: Vec<(u32, u32)>,
    n_inside: usize,
    is_closed: bool,
    /// True if another processor took part.
    is_helped: bool,
    /// When its bytes have passed.
    floor_ns: f64,
}

/// A processor's event; the earliest is the greatest, and of several those that were made first.
#[derive(PartialEq)]
struct Due {
    at_ns: f64,
    number: usize,
    processor: usize,
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at_ns.total_cmp(&self.at_ns).then_with(|| other.number.cmp(&self.number))
    }
}

/// One stage on the machine.
struct Run<'w> {
    stage: &'w Stage,
    machine: &'w Machine,
    /// Bytes per nanosecond of work, by step.
    traffic: &'w [f64],
    replay: &'w mut Replay,
    due: BinaryHeap<Due>,
    n_due: usize,
    processors: Vec<Processor>,
    loops: Vec<Open<'w>>,
    /// For each task how many it still waits for.
    waits: Vec<usize>,
    ready: VecDeque<usize>,
    n_left: usize,
    /// When the bytes so far have passed.
    memory_ns: f64,
    end_ns: f64,
}

impl<'w> Run<'w> {
    fn new(stage: &'w Stage, machine: &'w Machine, traffic: &'w [f64], replay: &'w mut Replay) -> Self {
        let processor = Processor { doing: Doing::Nothing, task: 0, step: 0, part: 0, step_begin_ns: 0.0 };
        let waits: Vec<usize> = stage.tasks.iter().map(|task| task.n_preds).collect();
        Self {
            stage,
            machine,
            traffic,
            replay,
            due: BinaryHeap::new(),
            n_due: 0,
            processors: vec![processor; machine.n.max(1)],
            loops: Vec::new(),
            ready: (0..waits.len()).filter(|&task| waits[task] == 0).collect(),
            n_left: waits.len(),
            waits,
            memory_ns: 0.0,
            end_ns: 0.0,
        }
    }

    /// Returns the nanoseconds of the stage.
    fn run(&mut self) -> f64 {
        self.next_task(0, 0.0);
        while self.n_left > 0 {
            // There is an event while tasks are left: their edges have no cycle.
            let Some(Due { at_ns, processor, .. }) = self.due.pop() else { break };
            self.event(processor, at_ns);
        }
        self.end_ns
    }

    fn after(&mut self, p: usize, at_ns: f64, doing: Doing) {
        self.processors[p].doing = doing;
        self.due.push(Due { at_ns, number: self.n_due, processor: p });
        self.n_due += 1;
    }

    fn event(&mut self, p: usize, at_ns: f64) {
        match self.processors[p].doing {
            Doing::Nothing => {}
            Doing::Coming(task) => self.begin(p, task, at_ns),
            Doing::Part | Doing::Waiting => {
                self.processors[p].part += 1;
                self.go_on(p, at_ns);
            }
            Doing::Entering(at) if self.loops[at].is_closed => self.look(p, at_ns),
            Doing::Entering(at) => {
                self.loops[at].n_inside += 1;
                self.loops[at].is_helped = true;
                self.next_chunk(p, at, at_ns);
            }
            Doing::Chunk(at) => self.next_chunk(p, at, at_ns),
        }
    }

    fn begin(&mut self, p: usize, task: usize, at_ns: f64) {
        let step = self.stage.tasks[task].steps.start;
        self.processors[p] = Processor { doing: Doing::Part, task, step, part: 0, step_begin_ns: at_ns };
        self.go_on(p, at_ns);
    }

    /// Goes on with a processor's task at its next part.
    fn go_on(&mut self, p: usize, at_ns: f64) {
        let stage = self.stage;
        loop {
            let Processor { task, step, part, step_begin_ns, .. } = self.processors[p];
            if step == stage.tasks[task].steps.end {
                return self.end_task(p, task, at_ns);
            }
            match stage.steps[step].parts.get(part) {
                None => {
                    self.replay.launches_ns[stage.steps[step].launch] += at_ns - step_begin_ns;
                    let processor = &mut self.processors[p];
                    (processor.step, processor.part, processor.step_begin_ns) = (step + 1, 0, at_ns);
                }
                Some(part) => {
                    let bytes = part.ns() * self.traffic[step];
                    self.memory_ns = self.memory_ns.max(at_ns) + bytes / self.machine.bytes_per_ns;
                    match part {
                        Part::Loop(chunks) if self.processors.len() > 1 => {
                            return self.open(p, chunks, at_ns);
                        }
                        Part::Loop(chunks) => self.replay.n_chunks += chunks.len(),
                        Part::Serial(_) => {}
                    }
                    return self.after(p, at_ns + part.ns(), Doing::Part);
                }
            }
        }
    }

    fn end_task(&mut self, p: usize, task: usize, at_ns: f64) {
        self.n_left -= 1;
        self.end_ns = self.end_ns.max(at_ns);
        let mut own = None;
        for &succ in &self.stage.tasks[task].succs {
            self.waits[succ] -= 1;
            if self.waits[succ] > 0 {
                continue;
            }
            match own {
                None => own = Some(succ),
                Some(_) => self.ready.push_back(succ),
            }
        }
        match own {
            Some(own) => {
                self.offer(at_ns);
                self.begin(p, own, at_ns);
            }
            None => self.next_task(p, at_ns),
        }
    }

    /// Takes a ready task, or looks for something else.
    fn next_task(&mut self, p: usize, at_ns: f64) {
        match self.ready.pop_front() {
            Some(task) => {
                // Not one of those that have nothing to do.
                self.processors[p].doing = Doing::Part;
                self.offer(at_ns);
                self.begin(p, task, at_ns);
            }
            None => self.look(p, at_ns),
        }
    }

    /// Offers ready tasks to processors that have nothing to do.
    fn offer(&mut self, at_ns: f64) {
        if !self.stage.is_shared {
            return;
        }
        for p in 0..self.processors.len() {
            if matches!(self.processors[p].doing, Doing::Nothing) {
                let Some(task) = self.ready.pop_front() else { return };
                self.after(p, at_ns + self.machine.hand_over.join_ns, Doing::Coming(task));
            }
        }
    }

    /// A processor without a task looks for one, then for a loop to help with.
    fn look(&mut self, p: usize, at_ns: f64) {
        self.processors[p].doing = Doing::Nothing;
        let HandOver { join_ns, .. } = self.machine.hand_over;
        if (self.stage.is_shared || p == 0)
            && let Some(task) = self.ready.pop_front()
        {
            return self.after(p, at_ns + join_ns, Doing::Coming(task));
        }
        let has_chunks =
            |open: &Open<'_>| !open.is_closed && open.ranges.iter().any(|(begin, end)| begin < end);
        if let Some(at) = self.loops.iter().position(has_chunks) {
            self.after(p, at_ns + join_ns, Doing::Entering(at));
        }
    }

    fn open(&mut self, caller: usize, chunks: &'w [f64], at_ns: f64) {
        let (n, n_chunks) = (self.processors.len() as u64, chunks.len() as u64);
        let share = |slot: u64| (n_chunks * slot / n) as u32;
        let ranges = (0..n).map(|slot| (share(slot), share(slot + 1))).collect();
        let floor_ns = self.memory_ns;
        self.loops.push(Open {
            caller,
            chunks,
            ranges,
            n_inside: 0,
            is_closed: false,
            is_helped: false,
            floor_ns,
        });
        let at = self.loops.len() - 1;
        let HandOver { join_ns, transfer_ns } = self.machine.hand_over;
        let free = |p: &usize| matches!(self.processors[*p].doing, Doing::Nothing);
        let helpers: Vec<usize> = (0..self.processors.len()).filter(free).filter(|&p| p != caller).collect();
        for (&p, before) in helpers.iter().take(chunks.len() - 1).zip(0..) {
            self.after(p, at_ns + join_ns + f64::from(before) * transfer_ns, Doing::Entering(at));
        }
        self.next_chunk(caller, at, at_ns);
    }

    /// Takes a chunk of a loop, or leaves it.
    fn next_chunk(&mut self, p: usize, at: usize, at_ns: f64) {
        let open = &mut self.loops[at];
        if let Some(chunk) = open.take(p) {
            self.replay.n_chunks += 1;
            let end_ns = at_ns + open.chunks[chunk as usize];
            return self.after(p, end_ns, Doing::Chunk(at));
        }
        let is_caller = p == open.caller;
        if is_caller {
            open.is_closed = true;
        } else {
            open.n_inside -= 1;
        }
        if open.is_closed && open.n_inside == 0 {
            let transfer_ns = if open.is_helped { self.machine.hand_over.transfer_ns } else { 0.0 };
            let (caller, end_ns) = (open.caller, (at_ns + transfer_ns).max(open.floor_ns));
            self.after(caller, end_ns, Doing::Waiting);
        } else if is_caller {
            self.processors[p].doing = Doing::Waiting;
        }
        if !is_caller {
            self.look(p, at_ns);
        }
    }
}

impl Open<'_> {
    /// Returns the slot of a processor: the caller has 0, and the first processor that of the caller.
    fn slot(&self, p: usize) -> usize {
        match p {
            _ if p == self.caller => 0,
            0 => self.caller,
            p => p,
        }
    }

    /// Takes a chunk as the board does: of a range's own front, else of the back half of another's.
    fn take(&mut self, p: usize) -> Option<u32> {
        let (slot, n) = (self.slot(p), self.ranges.len());
        let (begin, end) = self.ranges[slot];
        if begin < end {
            self.ranges[slot].0 = begin + 1;
            return Some(begin);
        }
        for step in 1..n {
            let victim = (slot + step) % n;
            let (begin, end) = self.ranges[victim];
            if begin < end {
                let middle = begin + (end - begin) / 2;
                self.ranges[victim] = (begin, middle);
                self.ranges[slot] = (middle + 1, end);
                return Some(middle);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::work::{LaunchInfo, StepWork, TaskWork};
    use super::*;
    use devbay_core::kernel::Counts;
    use proptest::prelude::*;

    fn machine(n: usize) -> Machine {
        Machine { n, hand_over: HandOver::FREE, bytes_per_ns: f64::INFINITY }
    }

    /// Returns the work of tasks: the parts of the one step of each, and those that it waits for.
    fn work(tasks: &[(&[Part], &[usize])], bytes: u64) -> Work {
        let info = LaunchInfo {
            node: String::new(),
            name: String::new(),
            op: String::new(),
            counts: Some(Counts { flops: 0, bytes }),
        };
        let mut stage = Stage { is_shared: true, ..Stage::default() };
        for (at, (parts, preds)) in tasks.iter().enumerate() {
            stage.steps.push(StepWork { launch: at, parts: parts.to_vec() });
            stage.tasks.push(TaskWork { steps: at..at + 1, succs: Vec::new(), n_preds: preds.len() });
            preds.iter().for_each(|&pred| stage.tasks[pred].succs.push(at));
        }
        Work { launches: vec![info; tasks.len()], stages: vec![stage], n_runs: 1 }
    }

    fn ns(work: &Work, machine: &Machine) -> f64 {
        replay(work, machine).ns
    }

    #[test]
    fn loops_are_divided_and_serial_parts_are_not() {
        let parts = [Part::Serial(10.0), Part::Loop(vec![5.0; 8])];
        let work = work(&[(&parts, &[])], 0);
        let times: Vec<f64> = [1, 2, 4, 8, 64].map(|n| ns(&work, &machine(n))).into();
        assert_eq!(times, [50.0, 30.0, 20.0, 15.0, 15.0]);
        let four = replay(&work, &machine(4));
        assert_eq!((four.n_chunks, four.idle, &*four.launches_ns), (8, 1.0 - 50.0 / 80.0, &[20.0][..]));
    }

    #[test]
    fn a_long_chunk_is_waited_for() {
        // The first of two processors takes the long one, the other the rest.
        let work = work(&[(&[Part::Loop(vec![30.0, 1.0, 1.0, 1.0])], &[])], 0);
        assert_eq!(ns(&work, &machine(2)), 30.0);
    }

    #[test]
    fn branches_run_beside_each_other_if_tasks_are_shared() {
        let part = |ns| vec![Part::Serial(ns)];
        let (a, b, c, d) = (part(10.0), part(20.0), part(30.0), part(5.0));
        let mut fork = work(&[(&a, &[]), (&b, &[0]), (&c, &[0]), (&d, &[1, 2])], 0);
        assert_eq!([1, 2, 3].map(|n| ns(&fork, &machine(n))), [65.0, 45.0, 45.0]);
        let costs = HandOver { join_ns: 1.0, transfer_ns: 0.0 };
        assert_eq!(ns(&fork, &Machine { hand_over: costs, ..machine(2) }), 46.0);
        fork.stages[0].is_shared = false;
        assert_eq!(ns(&fork, &machine(2)), 65.0);
    }

    #[test]
    fn a_processor_without_tasks_helps_with_a_loop() {
        let (serial, divided) = ([Part::Serial(10.0)], [Part::Loop(vec![10.0; 4])]);
        let work = work(&[(&serial, &[]), (&divided, &[])], 0);
        // One does the serial task, then its half of what is left of the loop.
        assert_eq!(ns(&work, &machine(2)), 30.0);
    }

    #[test]
    fn those_who_enter_a_loop_follow_each_other() {
        let work = work(&[(&[Part::Loop(vec![100.0; 3])], &[])], 0);
        let costs = HandOver { join_ns: 10.0, transfer_ns: 3.0 };
        // The last enters at 13, ends its chunk at 113, and the caller sees it at 116.
        assert_eq!(ns(&work, &Machine { hand_over: costs, ..machine(3) }), 116.0);
        assert_eq!(ns(&work, &Machine { hand_over: costs, ..machine(1) }), 300.0);
    }

    #[test]
    fn memory_bounds_loops() {
        let work = work(&[(&[Part::Loop(vec![10.0; 8])], &[])], 400);
        assert_eq!(ns(&work, &Machine { bytes_per_ns: 10.0, ..machine(8) }), 40.0);
        assert_eq!(ns(&work, &Machine { bytes_per_ns: 10.0, ..machine(1) }), 80.0);
    }

    #[test]
    fn saturation_is_where_doubling_saves_little() {
        let work = work(&[(&[Part::Loop(vec![1.0; 16])], &[])], 0);
        assert_eq!(saturation(&work, machine), 16);
    }

    proptest! {
        /// One processor takes the sum, all chunks run once, no machine beats its processors or the longest chunk, and
        /// more processors are never slower where chunks of a loop are equal and loops follow each other.
        #[test]
        fn replays_keep_to_the_work(
            loops in prop::collection::vec((2usize..40, 1u32..50, 0u32..20), 1..12), n in 2usize..70
        ) {
            let tasks: Vec<(Vec<Part>, Vec<usize>)> = loops.iter().enumerate().map(|(at, &(n_chunks, ns, serial))| {
                let parts = vec![Part::Serial(f64::from(serial)), Part::Loop(vec![f64::from(ns); n_chunks])];
                (parts, at.checked_sub(1).into_iter().collect())
            }).collect();
            let tasks: Vec<(&[Part], &[usize])> = tasks.iter().map(|(parts, preds)| (&**parts, &**preds)).collect();
            let work = work(&tasks, 0);
            let sum = work.ns();
            let n_chunks: usize = loops.iter().map(|(n_chunks, ..)| n_chunks).sum();
            prop_assert_eq!(ns(&work, &machine(1)), sum);
            let (few, many) = (replay(&work, &machine(n)), replay(&work, &machine(n + 1)));
            prop_assert_eq!([few.n_chunks, many.n_chunks], [n_chunks; 2]);
            prop_assert!(many.ns <= few.ns);
            prop_assert!(few.ns >= sum / n as f64 - 1e-9);
        }

        /// Uneven chunks and costs: no chunk is lost, and time is between the bounds.
        #[test]
        fn uneven_chunks_are_all_counted(
            chunks in prop::collection::vec(0u32..1000, 2..100), n in 1usize..70, join in 0u32..50, transfer in 0u32..20
        ) {
            let chunks: Vec<f64> = chunks.into_iter().map(f64::from).collect();
            let (sum, longest) = (chunks.iter().sum::<f64>(), chunks.iter().copied().fold(0.0, f64::max));
            let work = work(&[(&[Part::Loop(chunks.clone())], &[])], 0);
            let hand_over = HandOver { join_ns: f64::from(join), transfer_ns: f64::from(transfer) };
            let replay = replay(&work, &Machine { hand_over, ..machine(n) });
            prop_assert_eq!(replay.n_chunks, chunks.len());
            prop_assert!(replay.ns >= (sum / n as f64).max(longest) - 1e-9);
            prop_assert!(replay.ns <= sum + hand_over.transfer_ns + 1e-9);
        }
    }
}
