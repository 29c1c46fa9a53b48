//! Several devices in one section: lanes, which tasks they run, and where one waits for another.
//!
//! A lane is a sequence of launches of one kind: the inline calls of a device that works in the host's
//! memory, or a stream of an asynchronous device. A device with a memory of its own has up to three streams, for
//! kernels, for copies to it and for copies from it, so that transfers overlap with kernels.
//!
//! Tasks of a stream are enqueued in their order, each after the one before it: no two threads touch a stream at once
//! (B17), without a lock. The meaning of an edge between tasks depends on its ends:
//!
//! | from | to | the edge |
//! | --- | --- | --- |
//! | inline | anything | when the task has ended |
//! | a stream | the same stream | none but the order of the stream |
//! | a stream | another stream that can wait for it | when the task is enqueued; a wait in front of it does the rest |
//! | a stream | anything else | when the device has reached the point behind the task: an *arrival* |
//!
//! An arrival is a task without launches. Nothing counts it down: it is ready when the device calls back, so no thread
//! blocks on a device. The last task of each stream has one in any case, so that the devices are idle when a run has
//! ended.
//!
//! Every edge orders the work too: a task's work is over when a task that follows it begins to work, on any device. So
//! memory is reused along the same edges as within one device. Waits of streams stand in front of tasks, not in front
//! of the single launches that need them.
//!
//! Regions of control flow are divided one by one (`regions.rs`). Their tasks are numbered behind the entry's, and in
//! each of them the last task of each stream has an arrival, for which the exit waits.

use super::borders::Regions;
use super::merge::{self, Terms};
use super::tasks::{self, Arrival, Control, Edges, Policy, RegionTasks, TaskGraph};
use std::collections::BTreeMap;

/// The order of work on a lane.
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

/// A wait in front of a task: for the `nth` signal of another lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct WaitFor {
    /// The lane that signals.
    pub lane: u32,
    /// Number of the signal among that lane's in a run, from 1 on.
    pub nth: u32,
}

/// The signal behind a task of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SignalAt {
    /// Number of the signal among the lane's in a run, from 1 on.
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
    /// The waits in front of each task; empty if there are no streams.
    pub waits: Vec<Vec<WaitFor>>,
    /// For each task the signal behind it; empty if there are no streams.
    pub signals: Vec<Option<SignalAt>>,
    /// For each lane how often it signals in a run, regions left out.
    pub n_signals: Vec<u32>,
}

/// Launches on lanes.
pub(crate) struct Lined<'a> {
    pub edges: &'a Edges,
    /// The lane of each launch.
    pub lane_of: &'a [u32],
    /// The order of work on each lane.
    pub orders: &'a [Order],
    pub costs_ns: &'a [f64],
    /// The stage of each launch where constants are streamed, in whose order its lane's launches are; else 0.
    pub stages: &'a [u32],
    pub regions: &'a Regions,
}

impl Division {
    /// Returns a division without streams.
    pub fn inline(edges: &Edges, task_of: Vec<u32>, n_lanes: usize) -> Self {
        let (graph, order) = TaskGraph::build(edges, &task_of);
        Self { graph, order, task_of, waits: Vec::new(), signals: Vec::new(), n_signals: vec![0; n_lanes] }
    }
}

impl Lined<'_> {
    /// Their tasks.
    pub fn divide(&self, terms: Terms) -> Division {
        let mut numbered = Numbered {
            members: vec![Vec::new(); self.regions.len()],
            task_of: vec![0; self.edges.len()],
            ranges: vec![(0, 0); self.regions.len()],
            n_tasks: 0,
        };
        for launch in 0..self.edges.len() as u32 {
            numbered.members[self.regions.of(launch) as usize].push(launch);
        }
        self.number(0, terms, &mut numbered);
        Joined::new(self, &numbered.task_of).division(numbered.task_of, &numbered.ranges)
    }

    /// Numbers the tasks of a region in an order in which they could run, those of regions within it behind their
    /// entries.
    fn number(&self, region: u32, terms: Terms, numbered: &mut Numbered) {
        let first = numbered.n_tasks;
        let members = std::mem::take(&mut numbered.members[region as usize]);
        let (order, starts) = tasks::by_task(&self.tasks_of(&members, terms));
        for task in starts.windows(2) {
            let launches = &order[task[0] as usize..task[1] as usize];
            for &at in launches {
                numbered.task_of[members[at as usize] as usize] = numbered.n_tasks;
            }
            numbered.n_tasks += 1;
            let entered = self.regions.entered_at(members[launches[0] as usize]);
            for &inner in entered.into_iter().flat_map(|control| &control.regions) {
                self.number(inner, terms, numbered);
            }
        }
        numbered.ranges[region as usize] = (first, numbered.n_tasks);
    }

    /// Tasks of a region's launches: one lane's or inline ones, numbered in an order in which they could run. Entries and
    /// exits are tasks of their own.
    ///
    /// Launches are taken by how often the longest path to them changes lanes. That number rises along every edge between
    /// lanes and never falls, so that launches of one lane and one number may be merged without making a cycle.
    fn tasks_of(&self, members: &[u32], terms: Terms) -> Vec<u32> {
        let n = members.len();
        if terms.policy == Policy::Each {
            return (0..n as u32).collect();
        }
        let n_lanes = self.orders.len() as u32;
        let lane = |at: u32| self.lane_of[members[at as usize] as usize];
        // Inline launches of any device are one kind.
        let kind_of = |at: u32| match self.orders[lane(at) as usize] {
            _ if self.regions.is_control(members[at as usize]) => 1 + n_lanes + at,
            Order::Inline => 0,
            Order::Stream { .. } => 1 + lane(at),
        };
        // Edges are within regions, except for those of entries and exits.
        let own_preds = |at: u32| {
            let preds = self.edges.preds(members[at as usize] as usize).iter();
            preds.filter_map(|pred| Some(members.binary_search(pred).ok()? as u32))
        };
        let mut changes = vec![0u32; n];
        for at in 0..n as u32 {
            for pred in own_preds(at) {
                let crosses = u32::from(kind_of(pred) != kind_of(at));
                changes[at as usize] = changes[at as usize].max(changes[pred as usize] + crosses);
            }
        }
        // A stage's copies and launches are tasks of their own: others wait for them alone.
        let stage = |at: u32| self.stages[members[at as usize] as usize];
        let key = |at: u32| (changes[at as usize], kind_of(at), stage(at));
        let mut by_group: Vec<u32> = (0..n as u32).collect();
        by_group.sort_by_key(|&at| (key(at), at));
        let mut task_of = vec![0u32; n];
        let mut place_of = vec![u32::MAX; n];
        let mut n_tasks = 0;
        for group in by_group.chunk_by(|&a, &b| key(a) == key(b)) {
            for (place, &at) in group.iter().enumerate() {
                place_of[at as usize] = place as u32;
            }
            let mut within = Edges::new();
            for &at in group {
                let own = own_preds(at).filter(|&pred| key(pred) == key(at));
                within.push(own.map(|pred| place_of[pred as usize]));
            }
            let tasks = match self.orders[lane(group[0]) as usize] {
                Order::Stream { .. } => vec![0; group.len()],
                Order::Inline => {
                    let cost = |&at: &u32| self.costs_ns[members[at as usize] as usize];
                    let costs: Vec<f64> = group.iter().map(cost).collect();
                    merge::divide(&within, &costs, terms).0
                }
            };
            for (&at, &task) in group.iter().zip(&tasks) {
                task_of[at as usize] = n_tasks + task;
            }
            n_tasks += tasks.iter().max().map_or(0, |&last| last + 1);
        }
        task_of
    }
}

/// Tasks as they are numbered.
struct Numbered {
    /// The launches of each region, until it is numbered.
    members: Vec<Vec<u32>>,
    task_of: Vec<u32>,
    /// The tasks of each region, those of regions within it included.
    ranges: Vec<(u32, u32)>,
    n_tasks: u32,
}

/// Tasks as they are joined over lanes.
struct Joined<'a> {
    of: &'a Lined<'a>,
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
    /// For each task those that are waited for in front of it.
    waits: Vec<Vec<u32>>,
}

impl<'a> Joined<'a> {
    fn new(of: &'a Lined<'a>, task_of: &[u32]) -> Self {
        let (order, starts) = tasks::by_task(task_of);
        let n_tasks = starts.len() - 1;
        let lanes: Vec<u32> =
            (0..n_tasks).map(|task| of.lane_of[order[starts[task] as usize] as usize]).collect();
        let mut joined = Self {
            of,
            order,
            starts,
            lanes,
            pairs: Vec::new(),
            late: Vec::new(),
            signals: vec![false; n_tasks],
            arrivals: vec![false; n_tasks],
            waits: vec![Vec::new(); n_tasks],
        };
        joined.join(task_of);
        joined.follow_streams(task_of);
        joined
    }

    /// Returns the region of a task.
    fn region(&self, task: u32) -> u32 {
        self.of.regions.of(self.order[self.starts[task as usize] as usize])
    }

    fn stream(&self, lane: u32) -> Option<u32> {
        match self.of.orders[lane as usize] {
            Order::Inline => None,
            Order::Stream { group } => Some(group),
        }
    }

    /// Edges along data.
    fn join(&mut self, task_of: &[u32]) {
        let (n_lanes, regions) = (self.of.orders.len(), self.of.regions);
        // For each lane the latest task of each other lane that it has waited for.
        let mut waited = vec![None::<u32>; n_lanes * n_lanes];
        for task in 0..self.lanes.len() {
            // Of tasks on one stream the latest counts, because it is reached last.
            let mut latest: Vec<Option<u32>> = vec![None; n_lanes];
            for at in self.starts[task]..self.starts[task + 1] {
                let launch = self.order[at as usize] as usize;
                let to = self.of.lane_of[launch];
                let mut preds: Vec<u32> = Vec::new();
                for &pred in self.of.edges.preds(launch) {
                    let before = task_of[pred as usize];
                    let from = self.of.lane_of[pred as usize];
                    // A region that an entry chose is made ready, not counted down.
                    let is_chosen = regions.entered_at(pred).is_some();
                    if before as usize == task || is_chosen || (from == to && self.stream(from).is_some()) {
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
                        self.waits[task].push(before);
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

    /// The order of each stream in each region, and the arrival behind its last task.
    fn follow_streams(&mut self, task_of: &[u32]) {
        let mut last: BTreeMap<(u32, u32), u32> = BTreeMap::new();
        for task in 0..self.lanes.len() as u32 {
            let lane = self.lanes[task as usize];
            if self.stream(lane).is_some()
                && let Some(before) = last.insert((self.region(task), lane), task)
            {
                self.pairs.push((before, task));
            }
        }
        for ((region, _), task) in last {
            self.signals[task as usize] = true;
            self.arrivals[task as usize] = true;
            if let Some(control) = self.of.regions.control(region) {
                self.late.push((task, task_of[control.exit as usize]));
            }
        }
    }

    /// Returns the tasks with their arrivals, each right behind its own; `ranges` has the tasks of each region.
    fn division(mut self, mut task_of: Vec<u32>, ranges: &[(u32, u32)]) -> Division {
        let n_tasks = self.lanes.len();
        let mut number = Vec::with_capacity(n_tasks);
        let mut first_steps = Vec::new();
        let mut arrivals: Vec<Arrival> = Vec::new();
        let mut n_signals = vec![vec![0u32; self.of.orders.len()]; ranges.len()];
        let mut signals = Vec::new();
        // Each task before the arrivals was numbered; arrivals have none.
        let mut own_of = Vec::new();
        let mut nth_of = vec![0u32; n_tasks];
        for (task, nth) in nth_of.iter_mut().enumerate() {
            let lane = self.lanes[task];
            let own = first_steps.len() as u32;
            number.push(own);
            first_steps.push(self.starts[task]);
            let mut signal = None;
            if self.signals[task] {
                let n = &mut n_signals[self.region(task as u32) as usize][lane as usize];
                *n += 1;
                *nth = *n;
                let arrival = self.arrivals[task].then_some(arrivals.len() as u32);
                signal = Some(SignalAt { nth: *nth, arrival });
            }
            signals.push(signal);
            own_of.push(Some(task));
            if self.arrivals[task] {
                first_steps.push(self.starts[task + 1]);
                signals.push(None);
                own_of.push(None);
                arrivals.push(Arrival { task: own, place: 0, lane });
            }
        }
        number.push(first_steps.len() as u32);
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
        let wait = |&task: &u32| WaitFor { lane: self.lanes[task as usize], nth: nth_of[task as usize] };
        let waits = own_of.iter().map(|own| {
            let tasks = own.iter().flat_map(|&task| &self.waits[task]);
            tasks.map(wait).collect()
        });
        let region_tasks = |&region: &u32| {
            let (first, end) = ranges[region as usize];
            let n_signals = n_signals[region as usize].iter().zip(0..).filter(|&(&n, _)| n > 0);
            RegionTasks {
                first: renumbered(first),
                end: renumbered(end),
                n_signals: n_signals.map(|(&n, lane)| (lane, n)).collect(),
                ..RegionTasks::default()
            }
        };
        let controls = self.of.regions.controls.iter().map(|control| Control {
            entry: task_of[control.entry as usize],
            exit: task_of[control.exit as usize],
            regions: control.regions.iter().map(region_tasks).collect(),
        });
        Division {
            waits: waits.collect(),
            graph: TaskGraph::join(&first_steps, self.pairs, arrivals, controls.collect()),
            order: self.order,
            task_of,
            signals,
            n_signals: n_signals.swap_remove(0),
        }
    }
}
