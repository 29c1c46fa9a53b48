//! Merging of launches into tasks.
//!
//! Rules of merging, cheapest decision first:
//! 1. The possible gain is the difference between all work and the longest path. If that is not worth
//!    some hand-overs, everything is one task.
//! 2. Chains become clusters: a launch joins the one before it if they are each other's only neighbours.
//! 3. Clusters are taken level by level, a level being the length of the longest path that leads to it. Clusters of
//!    one level do not depend on each other, so they may be merged without making a cycle: each level is cut into
//!    parts that are worth a hand-over.
//! 4. Levels that are not worth dividing are taken together, as long as they follow each other; the connected parts
//!    of such a stretch become a task each. (Connected parts of a stretch of levels cannot depend on each other
//!    through other tasks either: levels only rise along edges.)
//!
//! A task that joins others may be worth less than a hand-over. It never needs one: the thread that ends the last
//! predecessor runs it.

use super::tasks::{Edges, OneTask, Policy};

/// The terms on which launches are divided.
#[derive(Clone, Copy)]
pub(crate) struct Terms {
    pub policy: Policy,
    pub n_threads: usize,
    /// Cost of handing a task to another thread, in nanoseconds.
    pub hand_over_ns: f64,
}

/// For each launch its task, and why all are one if they are; tasks are numbered in an order in which they could run,
/// and the launches of a task follow each other in their own order.
pub(crate) fn divide(edges: &Edges, costs_ns: &[f64], terms: Terms) -> (Vec<u32>, Option<OneTask>) {
    let one = |why: OneTask| (vec![0; edges.len()], Some(why));
    if edges.len() < 2 {
        return one(OneTask::OneLaunch);
    }
    let Terms { policy, n_threads, hand_over_ns } = terms;
    match policy {
        Policy::Each => ((0..edges.len() as u32).collect(), None),
        Policy::One => one(OneTask::Asked),
        Policy::Auto if n_threads < 2 => one(OneTask::OneThread),
        Policy::Auto => {
            // The gain of running side by side on many threads: all work less the longest path.
            let gain_ns = costs_ns.iter().sum::<f64>() - longest_path_ns(edges, costs_ns);
            let worth_ns = GAIN_HAND_OVERS * hand_over_ns;
            if gain_ns < worth_ns {
                return one(OneTask::Cheap { gain_ns, worth_ns });
            }
            let task_of = by_cost(edges, costs_ns, n_threads, hand_over_ns);
            let is_one = task_of.iter().all(|&task| task == 0);
            (task_of, is_one.then_some(OneTask::Narrow))
        }
    }
}

/// Hand-overs that running side by side must be worth before a program is divided at all.
pub(crate) const GAIN_HAND_OVERS: f64 = 40.0;

/// Parts of one level for each thread, so that one that has less to do than expected finds more.
const PARTS_PER_THREAD: usize = 4;

/// Returns the nanoseconds of the launches that must follow each other and take longest.
pub(crate) fn longest_path_ns(edges: &Edges, costs_ns: &[f64]) -> f64 {
    let mut ends = vec![0f64; edges.len()];
    let mut longest = 0f64;
    for launch in 0..edges.len() {
        let begin = edges.preds(launch).iter().map(|&pred| ends[pred as usize]).fold(0.0, f64::max);
        ends[launch] = begin + costs_ns[launch];
        longest = longest.max(ends[launch]);
    }
    longest
}

fn by_cost(edges: &Edges, costs_ns: &[f64], n_threads: usize, hand_over_ns: f64) -> Vec<u32> {
    let n = edges.len();
    let clusters = chains(edges);
    let n_clusters = clusters.iter().max().map_or(0, |&last| last as usize + 1);
    let mut cost = vec![0f64; n_clusters];
    let mut level = vec![0u32; n_clusters];
    for launch in 0..n {
        let cluster = clusters[launch] as usize;
        cost[cluster] += costs_ns[launch];
        for &pred in edges.preds(launch) {
            let before = clusters[pred as usize] as usize;
            if before != cluster {
                level[cluster] = level[cluster].max(level[before] + 1);
            }
        }
    }
    let n_levels = level.iter().max().map_or(0, |&last| last as usize + 1);
    let mut by_level: Vec<Vec<u32>> = vec![Vec::new(); n_levels];
    for cluster in 0..n_clusters {
        by_level[level[cluster] as usize].push(cluster as u32);
    }

    // A stretch is a wide level, or levels that follow each other and are not worth dividing.
    let mut task_of = vec![u32::MAX; n_clusters];
    let mut n_tasks = 0u32;
    let mut narrow: Vec<u32> = Vec::new();
    let mut neighbours = Neighbours::new(edges, &clusters, n_clusters);
    for members in &by_level {
        let total: f64 = members.iter().map(|&cluster| cost[cluster as usize]).sum();
        if members.len() > 1 && total >= 2.0 * hand_over_ns {
            neighbours.connected_parts(&mut narrow, &mut task_of, &mut n_tasks);
            let part = (total / (n_threads * PARTS_PER_THREAD) as f64).max(hand_over_ns);
            let mut sum = f64::INFINITY;
            for &cluster in members {
                if sum >= part {
                    (n_tasks, sum) = (n_tasks + 1, 0.0);
                }
                sum += cost[cluster as usize];
                task_of[cluster as usize] = n_tasks - 1;
            }
        } else {
            narrow.extend(members);
        }
    }
    neighbours.connected_parts(&mut narrow, &mut task_of, &mut n_tasks);
    clusters.iter().map(|&cluster| task_of[cluster as usize]).collect()
}

/// For each launch its chain; a chain has a higher number than every chain that it waits for.
fn chains(edges: &Edges) -> Vec<u32> {
    let n = edges.len();
    let mut n_succs = vec![0u32; n];
    for launch in 0..n {
        for &pred in edges.preds(launch) {
            n_succs[pred as usize] += 1;
        }
    }
    let mut chain = vec![0u32; n];
    let mut next = 0;
    for launch in 0..n {
        chain[launch] = match edges.preds(launch) {
            &[pred] if n_succs[pred as usize] == 1 => chain[pred as usize],
            _ => {
                next += 1;
                next - 1
            }
        };
    }
    chain
}

/// Clusters and their neighbours, to find connected parts.
struct Neighbours {
    starts: Vec<u32>,
    others: Vec<u32>,
    inside: Vec<bool>,
    queue: Vec<u32>,
}

impl Neighbours {
    fn new(edges: &Edges, clusters: &[u32], n_clusters: usize) -> Self {
        let pairs = || {
            (0..edges.len()).flat_map(|launch| {
                edges.preds(launch).iter().map(move |&pred| (clusters[pred as usize], clusters[launch]))
            })
        };
        let mut starts = vec![0u32; n_clusters + 1];
        for (a, b) in pairs().filter(|(a, b)| a != b) {
            starts[a as usize + 1] += 1;
            starts[b as usize + 1] += 1;
        }
        for i in 0..n_clusters {
            starts[i + 1] += starts[i];
        }
        let mut at = starts.clone();
        let mut others = vec![0u32; starts[n_clusters] as usize];
        for (a, b) in pairs().filter(|(a, b)| a != b) {
            for (from, to) in [(a, b), (b, a)] {
                others[at[from as usize] as usize] = to;
                at[from as usize] += 1;
            }
        }
        Self { starts, others, inside: vec![false; n_clusters], queue: Vec::new() }
    }

    /// Makes each connected part of `members` a task, in the order of their first members; empties `members`.
    fn connected_parts(&mut self, members: &mut Vec<u32>, task_of: &mut [u32], n_tasks: &mut u32) {
        for &member in &*members {
            self.inside[member as usize] = true;
        }
        for &member in &*members {
            if task_of[member as usize] != u32::MAX {
                continue;
            }
            task_of[member as usize] = *n_tasks;
            self.queue.push(member);
            while let Some(cluster) = self.queue.pop() {
                let range =
                    self.starts[cluster as usize] as usize..self.starts[cluster as usize + 1] as usize;
                for &other in &self.others[range] {
                    if self.inside[other as usize] && task_of[other as usize] == u32::MAX {
                        task_of[other as usize] = *n_tasks;
                        self.queue.push(other);
                    }
                }
            }
            *n_tasks += 1;
        }
        for member in members.drain(..) {
            self.inside[member as usize] = false;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::plan::order::tasks::TaskGraph;
    use proptest::prelude::*;

    fn edges(preds: &[&[u32]]) -> Edges {
        let mut edges = Edges::new();
        for preds in preds {
            edges.push(preds.iter().copied());
        }
        edges
    }

    fn terms(policy: Policy, n_threads: usize) -> Terms {
        Terms { policy, n_threads, hand_over_ns: 1000.0 }
    }

    #[test]
    fn a_cheap_program_is_one_task() {
        let wide = edges(&[&[], &[0], &[0], &[0], &[1, 2, 3]]);
        let (tasks, why) = divide(&wide, &[2.0; 5], terms(Policy::Auto, 2));
        assert_eq!(tasks, [0; 5]);
        assert_eq!(why, Some(OneTask::Cheap { gain_ns: 4.0, worth_ns: 40000.0 }));
    }

    #[test]
    fn a_chain_is_one_task_whatever_it_costs() {
        let chain = edges(&[&[], &[0], &[1], &[2]]);
        assert_eq!(divide(&chain, &[1e6; 4], terms(Policy::Auto, 8)).0, [0; 4]);
    }

    #[test]
    fn branches_that_are_worth_it_are_tasks() {
        let fork = edges(&[&[], &[0], &[1], &[0], &[3], &[2, 4]]);
        let divided = |cost, policy, n_threads| divide(&fork, &[cost; 6], terms(policy, n_threads));
        assert_eq!(divided(1e5, Policy::Auto, 2), (vec![0, 1, 1, 2, 2, 3], None));
        assert_eq!(divided(1e5, Policy::Auto, 1), (vec![0; 6], Some(OneTask::OneThread)));
        assert_eq!(divided(1e5, Policy::One, 2), (vec![0; 6], Some(OneTask::Asked)));
        assert_eq!(divided(1.0, Policy::Each, 2), ((0..6).collect(), None));
    }

    #[test]
    fn cheap_neighbours_of_one_level_share_a_task() {
        let mut wide = Edges::new();
        wide.push([]);
        (0..1000).for_each(|_| wide.push([0]));
        wide.push(1..=1000);
        let (tasks, _) = divide(&wide, &[100.0; 1002], terms(Policy::Auto, 2));
        let (graph, _) = TaskGraph::build(&wide, &tasks);
        assert_eq!(graph.len(), 2 + 8, "eight parts between the first and the last");
    }

    proptest! {
        /// Every division is an order in which tasks could run, and keeps each launch after its predecessors.
        #[test]
        fn divisions_have_no_cycle(
            nodes in prop::collection::vec((prop::collection::vec(any::<prop::sample::Index>(), 0..4), 0f64..4000.0), 1..80)
        ) {
            let mut edges = Edges::new();
            for (i, (preds, _)) in nodes.iter().enumerate() {
                edges.push(preds.iter().filter(|_| i > 0).map(|pred| pred.index(i.max(1)) as u32));
            }
            let costs: Vec<f64> = nodes.iter().map(|(_, cost)| *cost).collect();
            let tasks = by_cost(&edges, &costs, 2, 1000.0);
            let (graph, order) = TaskGraph::build(&edges, &tasks);
            for launch in 0..edges.len() {
                for &pred in edges.preds(launch) {
                    prop_assert!(tasks[pred as usize] <= tasks[launch], "an edge leads back");
                }
            }
            let mut sorted = order.clone();
            sorted.sort_unstable();
            prop_assert_eq!(sorted, (0..edges.len() as u32).collect::<Vec<_>>());
            for task in 0..graph.len() {
                prop_assert!(graph.succs_of(task).iter().all(|&succ| succ as usize > task));
            }
        }
    }
}
