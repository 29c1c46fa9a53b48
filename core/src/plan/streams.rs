//! Several devices in one section: lanes, which tasks they run, and where one waits for another.
//!
//! A lane is what launches of one kind follow each other on: the inline calls of a device that works in the host's
//! memory, or a stream of an asynchronous device. A device with a memory of its own has up to three streams, for
//! kernels, for copies to it and for copies from it, so that transfers overlap with kernels.
//!
//! Tasks of a stream are enqueued in their order, each after the one before it: no two threads touch a stream at once
//! (B17), without a lock. What an edge between tasks means depends on its ends:
//!
//! | from | to | the edge |
//! | --- | --- | --- |
//! | inline | anything | when the task has ended |
//! | a stream | the same stream | none but the order of the stream |
//! | a stream | another stream that can wait for it | when the task is enqueued; a wait in front of the launch does the rest |
//! | a stream | anything else | when the device has reached the point behind the task: an *arrival* |
//!
//! An arrival is a task without launches. Nothing counts it down: it is ready when the device calls back, so nobody
//! waits for a device with a thread. The last task of each stream has one in any case, so that a run that has ended
//! has left its devices at rest.
//!
//! Every edge is one of the order of work, too: what is done by a task is over when a task that follows it begins to
//! work, on whatever device. So memory is reused along the same edges as within one device. Waits of streams stand in
//! front of single launches, and not of their tasks: what a task launches before a wait reuses nothing of what that is
//! for, because a lane writes one memory, and whoever else of the lane has used that memory has waited before.

use super::tasks::{self, Arrival, Edges, Policy, TaskGraph};

/// What a lane is, as far as the order of its work goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Order {
    /// Launches are calls, and over when they return; any thread makes them.
    Inline,
    /// A stream of a device.
    Stream {
        /// Streams of one group can wait for each other.
        group: u32,
    },
}

/// What has to be waited for in front of a launch: the `nth` signal of another lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitFor {
    /// The lane that signals.
    pub lane: u32,
    /// Which of its signals in a run, from 1 on.
    pub nth: u32,
}

/// The signal behind a task of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalAt {
    /// Which of the lane's signals in a run, from 1 on.
    pub nth: u32,
    /// The arrival that it leads to, by its position among the graph's.
    pub arrival: Option<u32>,
}

/// A section's launches in tasks.
pub(crate) struct Division {
    /// The tasks; their steps are still counted in launches.
    pub graph: TaskGraph,
    /// Launches, task by task.
    pub order: Vec<u32>,
    /// The task of each launch.
    pub task_of: Vec<u32>,
    /// For each launch what is waited for in front of it; empty if there are no streams.
    pub waits: Vec<Vec<WaitFor>>,
    /// For each task the signal behind it; empty if there are no streams.
    pub signals: Vec<Option<SignalAt>>,
    /// For each lane how often it signals in a run.
    pub n_signals: Vec<u32>,
}

impl Division {
    /// A division without streams.
    pub fn inline(edges: &Edges, task_of: Vec<u32>, n_lanes: usize) -> Self {
        let (graph, order) = TaskGraph::build(edges, &task_of);
        Self { graph, order, task_of, waits: Vec::new(), signals: Vec::new(), n_signals: vec![0; n_lanes] }
    }

    /// A division over lanes; `lane_of` has the lane of each launch.
    pub fn over_lanes(
        edges: &Edges,
        lane_of: &[u32],
        orders: &[Order],
        costs_ns: &[f64],
        policy: Policy,
        n_threads: usize,
        hand_over_ns: f64,
    ) -> Self {
        let task_of = tasks_of_lanes(edges, lane_of, orders, costs_ns, policy, n_threads, hand_over_ns);
        Joined::new(edges, lane_of, orders, &task_of).division(task_of)
    }
}

/// Tasks of launches: one lane's or inline ones, numbered in an order in which they could run.
///
/// Launches are taken by how often the longest path to them changes lanes. That number rises along every edge between
/// lanes and never falls, so that launches of one lane and one number may be merged without making a cycle.
fn tasks_of_lanes(
    edges: &Edges,
    lane_of: &[u32],
    orders: &[Order],
    costs_ns: &[f64],
    policy: Policy,
    n_threads: usize,
    hand_over_ns: f64,
) -> Vec<u32> {
    let n = edges.len();
    if policy == Policy::Each {
        return (0..n as u32).collect();
    }
    // Inline launches of any device are one kind.
    let kind_of = |launch: usize| match orders[lane_of[launch] as usize] {
        Order::Inline => 0,
        Order::Stream { .. } => 1 + lane_of[launch],
    };
    let mut changes = vec![0u32; n];
    for launch in 0..n {
        for &pred in edges.preds(launch) {
            let crosses = u32::from(kind_of(pred as usize) != kind_of(launch));
            changes[launch] = changes[launch].max(changes[pred as usize] + crosses);
        }
    }
    let mut by_group: Vec<u32> = (0..n as u32).collect();
    by_group.sort_by_key(|&launch| (changes[launch as usize], kind_of(launch as usize), launch));
    let mut task_of = vec![0u32; n];
    let mut place_of = vec![u32::MAX; n];
    let mut n_tasks = 0;
    let key = |launch: u32| (changes[launch as usize], kind_of(launch as usize));
    for group in by_group.chunk_by(|&a, &b| key(a) == key(b)) {
        for (place, &launch) in group.iter().enumerate() {
            place_of[launch as usize] = place as u32;
        }
        let mut within = Edges::new();
        for &launch in group {
            let own = edges.preds(launch as usize).iter().filter(|&&pred| key(pred) == key(launch));
            within.push(own.map(|&pred| place_of[pred as usize]));
        }
        let tasks = match orders[lane_of[group[0] as usize] as usize] {
            Order::Stream { .. } => vec![0; group.len()],
            Order::Inline => {
                let costs: Vec<f64> = group.iter().map(|&launch| costs_ns[launch as usize]).collect();
                tasks::divide(&within, &costs, policy, n_threads, hand_over_ns).0
            }
        };
        for (&launch, &task) in group.iter().zip(&tasks) {
            task_of[launch as usize] = n_tasks + task;
        }
        n_tasks += tasks.iter().max().map_or(0, |&last| last + 1);
    }
    task_of
}

/// Tasks as they are joined over lanes.
struct Joined<'a> {
    edges: &'a Edges,
    lane_of: &'a [u32],
    orders: &'a [Order],
    /// Launches, task by task, and where each task's begin.
    order: Vec<u32>,
    starts: Vec<u32>,
    /// The lane of each task; inline tasks may be of several.
    lanes: Vec<u32>,
    /// Edges between tasks, arrivals left out.
    pairs: Vec<(u32, u32)>,
    /// Edges from the arrivals of tasks.
    late: Vec<(u32, u32)>,
    signals: Vec<bool>,
    arrivals: Vec<bool>,
    /// For each launch the tasks that are waited for in front of it.
    waits: Vec<Vec<u32>>,
}

impl<'a> Joined<'a> {
    fn new(edges: &'a Edges, lane_of: &'a [u32], orders: &'a [Order], task_of: &[u32]) -> Self {
        let (order, starts) = tasks::by_task(task_of);
        let n_tasks = starts.len() - 1;
        let lanes: Vec<u32> =
            (0..n_tasks).map(|task| lane_of[order[starts[task] as usize] as usize]).collect();
        let mut joined = Self {
            edges,
            lane_of,
            orders,
            order,
            starts,
            lanes,
            pairs: Vec::new(),
            late: Vec::new(),
            signals: vec![false; n_tasks],
            arrivals: vec![false; n_tasks],
            waits: vec![Vec::new(); task_of.len()],
        };
        joined.join(task_of);
        joined.follow_streams();
        joined
    }

    fn stream(&self, lane: u32) -> Option<u32> {
        match self.orders[lane as usize] {
            Order::Inline => None,
            Order::Stream { group } => Some(group),
        }
    }

    /// Edges along data.
    fn join(&mut self, task_of: &[u32]) {
        let n_lanes = self.orders.len();
        // For each lane the latest task of each other lane that it has waited for.
        let mut waited = vec![None::<u32>; n_lanes * n_lanes];
        for task in 0..self.lanes.len() {
            // Of tasks on one stream the latest counts, because it is reached last.
            let mut latest: Vec<Option<u32>> = vec![None; n_lanes];
            for at in self.starts[task]..self.starts[task + 1] {
                let launch = self.order[at as usize] as usize;
                let to = self.lane_of[launch];
                let mut preds: Vec<u32> = Vec::new();
                for &pred in self.edges.preds(launch) {
                    let before = task_of[pred as usize];
                    let from = self.lane_of[pred as usize];
                    if before as usize == task || (from == to && self.stream(from).is_some()) {
                        continue;
                    }
                    match (self.stream(from), self.stream(to)) {
                        (None, _) => self.pairs.push((before, task as u32)),
                        (Some(group), Some(own)) if group == own => preds.push(before),
                        (Some(_), _) => {
                            let known = &mut latest[from as usize];
                            *known = Some(known.map_or(before, |known| known.max(before)));
                        }
                    }
                }
                preds.sort_unstable_by(|a, b| b.cmp(a));
                for before in preds {
                    let from = self.lanes[before as usize];
                    let known = &mut waited[to as usize * n_lanes + from as usize];
                    if known.is_none_or(|known| known < before) {
                        *known = Some(before);
                        self.pairs.push((before, task as u32));
                        self.signals[before as usize] = true;
                        self.waits[launch].push(before);
                    }
                }
            }
            for before in latest.into_iter().flatten() {
                self.signals[before as usize] = true;
                self.arrivals[before as usize] = true;
                self.late.push((before, task as u32));
            }
        }
    }

    /// The order of each stream, and the arrival behind its last task.
    fn follow_streams(&mut self) {
        let mut last = vec![None::<u32>; self.orders.len()];
        for task in 0..self.lanes.len() {
            let lane = self.lanes[task];
            if self.stream(lane).is_some()
                && let Some(before) = last[lane as usize].replace(task as u32)
            {
                self.pairs.push((before, task as u32));
            }
        }
        for task in last.into_iter().flatten() {
            self.signals[task as usize] = true;
            self.arrivals[task as usize] = true;
        }
    }

    /// The tasks with their arrivals, each right behind its own.
    fn division(mut self, mut task_of: Vec<u32>) -> Division {
        let n_tasks = self.lanes.len();
        let mut number = Vec::with_capacity(n_tasks);
        let mut first_steps = Vec::new();
        let mut arrivals: Vec<Arrival> = Vec::new();
        let mut n_signals = vec![0u32; self.orders.len()];
        let mut signals = Vec::new();
        let mut nth_of = vec![0u32; n_tasks];
        for (task, nth) in nth_of.iter_mut().enumerate() {
            let lane = self.lanes[task];
            let own = first_steps.len() as u32;
            number.push(own);
            first_steps.push(self.starts[task]);
            let mut signal = None;
            if self.signals[task] {
                n_signals[lane as usize] += 1;
                *nth = n_signals[lane as usize];
                let arrival = self.arrivals[task].then_some(arrivals.len() as u32);
                signal = Some(SignalAt { nth: *nth, arrival });
            }
            signals.push(signal);
            if self.arrivals[task] {
                first_steps.push(self.starts[task + 1]);
                signals.push(None);
                arrivals.push(Arrival { task: own, place: 0, lane });
            }
        }
        first_steps.push(self.order.len() as u32);
        let renumbered = |task: u32| number[task as usize];
        for pair in &mut self.pairs {
            *pair = (renumbered(pair.0), renumbered(pair.1));
        }
        self.pairs
            .extend(self.late.iter().map(|&(before, after)| (renumbered(before) + 1, renumbered(after))));
        for task in &mut task_of {
            *task = renumbered(*task);
        }
        let waits = self.waits.iter().map(|tasks| {
            let wait = |&task: &u32| WaitFor { lane: self.lanes[task as usize], nth: nth_of[task as usize] };
            tasks.iter().map(wait).collect()
        });
        Division {
            waits: waits.collect(),
            graph: TaskGraph::join(&first_steps, self.pairs, arrivals),
            order: self.order,
            task_of,
            signals,
            n_signals,
        }
    }
}
