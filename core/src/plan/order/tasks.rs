//! Tasks: groups of launches, and the waits between them.
//!
//! A task is a straight line of launches that one thread runs without asking anybody; between tasks there are edges.
//! Handing a task to another thread costs about a microsecond, so that launches are merged until a task is worth
//! that ([`Policy::Auto`]); a program that is cheap, or has nothing to run side by side, is one task, and that is the
//! synchronous path.
//!
//! `merge.rs` merges launches.

/// The policy that divides launches into tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// By cost: every task is worth at least a hand-over, and a cheap section is one task.
    #[default]
    Auto,
    /// One task, whatever it costs.
    One,
    /// Each launch is a task, to measure the cost of scheduling.
    Each,
}

/// Why launches are one task.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum OneTask {
    /// It was asked for ([`Policy::One`]).
    Asked,
    /// The device works asynchronously: its stream orders launches.
    Asynchronous,
    /// The plugin is called by one thread at a time.
    Serialised,
    /// The queue has one thread.
    OneThread,
    /// There is one launch, or none.
    OneLaunch,
    /// Running side by side would gain less than it must.
    Cheap {
        /// Gain at best.
        gain_ns: f64,
        /// Gain that it must reach.
        worth_ns: f64,
    },
    /// Nowhere is enough side by side to be worth two hand-overs.
    Narrow,
}

/// No task.
pub const NO_TASK: u32 = u32::MAX;

/// A task of a section: a quarter of a cache line. Its steps and successors end where those of the next task begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(16))]
pub struct Task {
    /// Its first step.
    pub first_step: u32,
    /// Its first place among the successors.
    pub first_succ: u32,
    /// One past the last successor that waits for this task alone.
    pub end_sole: u32,
    then: u32,
}

/// The successors of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// One successor, which waits for this task alone: it runs next.
    Next(u32),
    /// One successor, which waits for other tasks too.
    Join(u32),
    /// Several or none. The first that waits for this task alone, if there is one, runs next.
    Many(Option<u32>),
    /// Tasks that the task has chosen: it is the entry or the exit of control flow.
    Chosen {
        /// Position among the graph's control flow.
        control: u32,
        /// True if it is the exit. Its successors follow it unless it chooses a region again.
        is_exit: bool,
    },
}

/// The two highest bits of [`Task::then`] tell the variants of [`Then`] apart, the others are a task or `NOBODY`, or
/// twice a position among control flow, and one more for its exit.
const JOIN: u32 = 1 << 30;
const MANY: u32 = 2 << 30;
const CHOSEN: u32 = 3 << 30;
const NOBODY: u32 = JOIN - 1;

impl Task {
    /// Returns its successors.
    #[inline(always)]
    pub fn then(&self) -> Then {
        let task = self.then & NOBODY;
        match self.then & !NOBODY {
            0 => Then::Next(task),
            JOIN => Then::Join(task),
            MANY => Then::Many((task != NOBODY).then_some(task)),
            _ => Then::Chosen { control: task / 2, is_exit: task & 1 == 1 },
        }
    }

    /// Returns whether [`Task::then`] is a join with this task.
    #[inline(always)]
    pub fn joins(&self, task: u32) -> bool {
        self.then == JOIN | task
    }
}

/// Tasks and their edges.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TaskGraph {
    /// Tasks in an order in which they could run, and one more where the last one's steps and successors end.
    ends: Box<[Task]>,
    /// For each task how many others it waits for.
    pub n_preds: Box<[u32]>,
    /// First the tasks without predecessors, then the successors of each task: those with this one predecessor, then
    /// the others. Behind them arrivals, and for each region the tasks without predecessors in it.
    pub succs: Box<[u32]>,
    /// Number of tasks that wait for none, those of regions left out.
    pub n_sources: u32,
    /// Number of tasks without those of regions.
    pub n_own: u32,
    /// Tasks that wait for a device, by the task that they belong to.
    pub arrivals: Box<[Arrival]>,
    /// Control flow whose regions are tasks.
    pub controls: Box<[Control]>,
}

/// Control flow in a graph: a task that chooses the region to begin with, regions, and a task behind them that chooses
/// whether one runs again.
///
/// Tasks of a region wait only for each other. Those without predecessors are ready when the region is chosen; the exit
/// is ready when the last tasks have ended. Its count is set when a region is chosen.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Control {
    /// The task that chooses first.
    pub entry: u32,
    /// The task behind the regions.
    pub exit: u32,
    /// The regions.
    pub regions: Box<[RegionTasks]>,
}

/// The tasks of a region.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RegionTasks {
    /// All of them, those of regions within it included.
    pub first: u32,
    /// One past the last.
    pub end: u32,
    /// Number of them that run when it is chosen: those of regions within it left out.
    pub n_own: u32,
    /// Position of the region's tasks without predecessors among the successors.
    pub first_source: u32,
    /// One past the last of them.
    pub end_source: u32,
    /// Number of tasks that the exit waits for.
    pub n_last: u32,
    /// Number of signals of its tasks, by lane; lanes without any are left out.
    pub n_signals: Box<[(u32, u32)]>,
}

/// A task without steps, which is ready when a device has reached the point behind the task before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrival {
    /// The task that signals the point; the arrival is the next.
    pub task: u32,
    /// Where the arrival is among the successors.
    pub place: u32,
    /// The lane of the task.
    pub lane: u32,
}

/// Dependences between launches, by number in an order in which they could run.
pub(crate) struct Edges {
    starts: Vec<u32>,
    preds: Vec<u32>,
}

impl Edges {
    /// No launch yet.
    pub fn new() -> Self {
        Self { starts: vec![0], preds: Vec::new() }
    }

    /// Adds the next launch with its predecessors; numbers may come twice.
    pub fn push(&mut self, preds: impl IntoIterator<Item = u32>) {
        let first = self.preds.len();
        self.preds.extend(preds);
        let added = &mut self.preds[first..];
        added.sort_unstable();
        let mut kept = first;
        for i in first..self.preds.len() {
            if i == first || self.preds[i] != self.preds[i - 1] {
                self.preds[kept] = self.preds[i];
                kept += 1;
            }
        }
        self.preds.truncate(kept);
        self.starts.push(kept as u32);
    }

    /// Launches.
    pub fn len(&self) -> usize {
        self.starts.len() - 1
    }

    /// Returns the launches that a launch waits for.
    pub fn preds(&self, launch: usize) -> &[u32] {
        &self.preds[self.starts[launch] as usize..self.starts[launch + 1] as usize]
    }
}

/// Launches task by task, each task's in their own order, and where each task's begin and the last one's end.
pub(crate) fn by_task(task_of: &[u32]) -> (Vec<u32>, Vec<u32>) {
    let n_tasks = task_of.iter().max().map_or(0, |&last| last as usize + 1);
    let mut starts = vec![0u32; n_tasks + 1];
    for &task in task_of {
        starts[task as usize + 1] += 1;
    }
    for i in 0..n_tasks {
        starts[i + 1] += starts[i];
    }
    let mut order = vec![0u32; task_of.len()];
    let mut at = starts.clone();
    for (launch, &task) in task_of.iter().enumerate() {
        order[at[task as usize] as usize] = launch as u32;
        at[task as usize] += 1;
    }
    (order, starts)
}

impl TaskGraph {
    /// Returns the tasks of a division, and for each position in the new order the launch that is there.
    pub(crate) fn build(edges: &Edges, task_of: &[u32]) -> (Self, Vec<u32>) {
        let (order, starts) = by_task(task_of);
        let n_tasks = starts.len() - 1;
        // Each pair of tasks once: `seen` has the last task that counted another.
        let mut seen = vec![u32::MAX; n_tasks];
        let mut pairs: Vec<(u32, u32)> = Vec::new();
        for i in 0..n_tasks {
            for &launch in &order[starts[i] as usize..starts[i + 1] as usize] {
                for &pred in edges.preds(launch as usize) {
                    let before = task_of[pred as usize];
                    if before as usize != i && seen[before as usize] != i as u32 {
                        seen[before as usize] = i as u32;
                        pairs.push((before, i as u32));
                    }
                }
            }
        }
        (Self::join(&starts, pairs, Vec::new(), Vec::new()), order)
    }

    /// Tasks whose steps begin at `first_steps`, the last of which is where all end, and the edges between them; a
    /// pair may come twice. Arrivals follow the tasks that they belong to. Of control flow entry, exit, the regions'
    /// tasks and signals are given.
    pub(crate) fn join(
        first_steps: &[u32],
        mut pairs: Vec<(u32, u32)>,
        mut arrivals: Vec<Arrival>,
        mut controls: Vec<Control>,
    ) -> Self {
        let n_tasks = first_steps.len() - 1;
        let mut tasks: Vec<Task> = first_steps
            .iter()
            .map(|&first_step| Task { first_step, first_succ: 0, end_sole: 0, then: MANY | NOBODY })
            .collect();
        pairs.sort_unstable();
        pairs.dedup();
        let mut n_preds = vec![0u32; n_tasks];
        for &(_, after) in &pairs {
            n_preds[after as usize] += 1;
        }
        for arrival in &arrivals {
            // Its one predecessor is the device.
            n_preds[arrival.task as usize + 1] = 1;
        }
        // By task; a task that waits for it alone comes first.
        pairs.sort_unstable_by_key(|&(before, after)| (before, n_preds[after as usize] > 1, after));
        // The innermost region of each task: those within others come after them.
        let mut region_of = vec![None; if controls.is_empty() { 0 } else { n_tasks }];
        for (c, control) in controls.iter().enumerate() {
            for (r, region) in control.regions.iter().enumerate() {
                region_of[region.first as usize..region.end as usize].fill(Some((c, r)));
            }
        }
        for &(c, r) in region_of.iter().flatten() {
            controls[c].regions[r].n_own += 1;
        }
        let region_of = |task: u32| region_of.get(task as usize).copied().flatten();
        for &(before, after) in &pairs {
            if let Some((c, r)) = region_of(before)
                && controls[c].exit == after
            {
                controls[c].regions[r].n_last += 1;
            }
        }
        // An exit waits for regions even if none of them has a task.
        controls
            .iter()
            .for_each(|control| n_preds[control.exit as usize] = n_preds[control.exit as usize].max(1));
        let is_source = |task: &u32| n_preds[*task as usize] == 0;
        let mut succs: Vec<u32> =
            (0..n_tasks as u32).filter(|task| is_source(task) && region_of(*task).is_none()).collect();
        let n_sources = succs.len() as u32;
        let n_own = (0..n_tasks as u32).filter(|&task| region_of(task).is_none()).count() as u32;
        let mut pairs = pairs.into_iter().peekable();
        for (i, task) in tasks.iter_mut().enumerate() {
            task.first_succ = succs.len() as u32;
            task.end_sole = task.first_succ;
            while let Some((_, after)) = pairs.next_if(|&(before, _)| before as usize == i) {
                succs.push(after);
                if n_preds[after as usize] == 1 {
                    task.end_sole = succs.len() as u32;
                }
            }
            let own = &succs[task.first_succ as usize..];
            let has_sole = task.end_sole > task.first_succ;
            task.then = match *own {
                [next] if has_sole => next,
                [join] => JOIN | join,
                [next, ..] if has_sole => MANY | next,
                _ => MANY | NOBODY,
            };
        }
        for arrival in &mut arrivals {
            arrival.place = succs.len() as u32;
            succs.push(arrival.task + 1);
        }
        for (c, control) in controls.iter_mut().enumerate() {
            tasks[control.entry as usize].then = CHOSEN | (2 * c as u32);
            tasks[control.exit as usize].then = CHOSEN | (2 * c as u32 + 1);
            for (r, region) in control.regions.iter_mut().enumerate() {
                region.first_source = succs.len() as u32;
                let own = |task: &u32| is_source(task) && region_of(*task) == Some((c, r));
                succs.extend((region.first..region.end).filter(own));
                region.end_source = succs.len() as u32;
            }
        }
        Self {
            ends: tasks.into(),
            succs: succs.into(),
            n_sources,
            n_own,
            arrivals: arrivals.into(),
            controls: controls.into(),
            n_preds: n_preds.into(),
        }
    }

    /// Sets the first step of each task, once the tasks' other steps are known.
    pub(crate) fn set_first_steps(&mut self, first_steps: &[u32]) {
        for (task, &first_step) in self.ends.iter_mut().zip(first_steps) {
            task.first_step = first_step;
        }
    }

    /// Returns the arrival behind a task, by its position among the arrivals.
    pub fn arrival_of(&self, task: u32) -> Option<usize> {
        self.arrivals.binary_search_by_key(&task, |arrival| arrival.task).ok()
    }

    /// Returns the control flow that a task is the entry or the exit of.
    pub fn control_of(&self, task: u32) -> Option<&Control> {
        match self.ends[task as usize].then() {
            Then::Chosen { control, .. } => Some(&self.controls[control as usize]),
            _ => None,
        }
    }

    /// Returns the tasks after a task: its successors, its arrival, and for an entry the first tasks of its regions and
    /// the exit.
    pub fn following(&self, task: usize) -> impl Iterator<Item = u32> {
        let arrival = self.arrival_of(task as u32).map(|_| task as u32 + 1);
        let entered = self.control_of(task as u32).filter(|control| control.entry == task as u32);
        let begin =
            |region: &RegionTasks| &self.succs[region.first_source as usize..region.end_source as usize];
        let sources = entered.into_iter().flat_map(move |control| {
            let sources = control.regions.iter().flat_map(begin).copied();
            sources.chain([control.exit])
        });
        self.succs_of(task).iter().copied().chain(arrival).chain(sources)
    }

    /// Returns the number of tasks.
    pub fn len(&self) -> usize {
        self.ends.len().saturating_sub(1)
    }

    /// Returns whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Tasks and successors without checks.
    ///
    /// # Safety
    /// The numbers that [`Links`] is asked for are in range: tasks come from it alone, places from its tasks and this
    /// graph's sources.
    pub(crate) unsafe fn links(&self) -> Links<'_> {
        Links { ends: &self.ends, succs: &self.succs }
    }

    /// Steps of a task.
    pub fn steps_of(&self, task: usize) -> std::ops::Range<usize> {
        self.ends[task].first_step as usize..self.ends[task + 1].first_step as usize
    }

    /// Successors of a task.
    pub fn succs_of(&self, task: usize) -> &[u32] {
        &self.succs[self.ends[task].first_succ as usize..self.ends[task + 1].first_succ as usize]
    }
}

/// Tasks and their successors for a loop that holds them in registers.
///
/// # Invariants
/// The creator guarantees that only numbers in range are looked up.
#[derive(Clone, Copy)]
pub(crate) struct Links<'a> {
    ends: &'a [Task],
    succs: &'a [u32],
}

impl<'a> Links<'a> {
    /// Returns a task and the one after it, where its lists end.
    #[inline(always)]
    pub fn task(self, task: u32) -> (&'a Task, &'a Task) {
        debug_assert!((task as usize) + 1 < self.ends.len());
        // SAFETY: the task is in range (invariant).
        let begin = unsafe { self.ends.get_unchecked(task as usize) };
        // SAFETY: the task is in range (invariant), and there is one more end than tasks.
        (begin, unsafe { self.ends.get_unchecked(task as usize + 1) })
    }

    /// Returns the task at a place.
    #[inline(always)]
    pub fn successor(self, place: u32) -> u32 {
        debug_assert!((place as usize) < self.succs.len());
        // SAFETY: the place is in range (invariant).
        unsafe { *self.succs.get_unchecked(place as usize) }
    }
}

/// Paths between tasks: memory is reused along such paths alone.
pub struct Reach {
    words: usize,
    /// For each task, a bit for each task before it.
    before: Vec<u64>,
}

impl Reach {
    /// Tasks of which paths are kept; that takes a bit for each pair.
    pub const TASKS_MAX: usize = 4096;

    /// Returns the paths of a graph; None if it has too many tasks.
    pub fn of(graph: &TaskGraph) -> Option<Self> {
        let n = graph.len();
        if n > Self::TASKS_MAX {
            return None;
        }
        let words = n.div_ceil(64);
        let mut before = vec![0u64; n * words];
        // Tasks are in an order in which they could run: all paths to a task are complete when its turn comes.
        for task in 0..n {
            for succ in graph.following(task) {
                let (front, back) = before.split_at_mut(succ as usize * words);
                for (to, from) in back[..words].iter_mut().zip(&front[task * words..]) {
                    *to |= from;
                }
                back[task / 64] |= 1 << (task % 64);
            }
        }
        Some(Self { words, before })
    }

    /// Returns whether task `a` always ends before task `b` begins.
    pub fn precedes(&self, a: u32, b: u32) -> bool {
        self.before[b as usize * self.words + a as usize / 64] >> (a % 64) & 1 == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_that_wait_for_one_task_alone_come_first() {
        let mut fork = Edges::new();
        for preds in [&[][..], &[], &[0, 1], &[0], &[1], &[2, 3, 4]] {
            fork.push(preds.iter().copied());
        }
        let (graph, order) = TaskGraph::build(&fork, &[0, 1, 2, 3, 4, 5]);
        assert_eq!(order, [0, 1, 2, 3, 4, 5]);
        assert_eq!((graph.n_sources, &graph.succs[..2]), (2, &[0, 1][..]));
        assert_eq!(graph.succs_of(0), [3, 2]);
        assert_eq!(graph.ends[0].end_sole - graph.ends[0].first_succ, 1);
        assert_eq!(*graph.n_preds, [0, 0, 2, 1, 1, 3]);
        let reach = Reach::of(&graph).unwrap();
        assert!(
            reach.precedes(0, 5) && reach.precedes(1, 2) && !reach.precedes(0, 1) && !reach.precedes(5, 0)
        );
    }
}
