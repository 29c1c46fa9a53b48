//! Sums over a timeline, to see where the time went.
//!
//! A run's available time is its duration times the number of threads and devices that ran kernels for it. The part outside
//! kernels is launching, waiting, copying or idling. A device is in a kernel while any of its streams is. Control flow is
//! not a kernel; its launches are. Threads that only help with loops of another thread's kernel count once, in that kernel's
//! time.

use super::{SliceKind, StepAt, Timeline};
use devbay_core::trace::{StepInfo, StepKind};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// All kernels of one op.
#[derive(Clone, PartialEq, Debug)]
pub struct OpTime {
    /// The op.
    pub op: String,
    /// Nodes of that op that ran.
    pub n_nodes: usize,
    /// Times that they ran.
    pub n_launches: usize,
    /// Total nanoseconds in their kernels, over all threads and streams.
    pub total_ns: u64,
    /// Its share of the nanoseconds in all kernels.
    pub share: f64,
}

/// Sums over the runs of a timeline.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// Times by op, most expensive first.
    pub ops: Vec<OpTime>,
    /// Completed runs.
    pub n_runs: usize,
    /// Their total nanoseconds.
    pub wall_ns: u64,
    /// Total nanoseconds in kernels, over all threads and streams.
    pub kernel_ns: u64,
    /// Nanoseconds in which a thread or device was in a kernel: less than `kernel_ns` if streams of a device overlap.
    pub busy_ns: u64,
    /// Available nanoseconds: each run's time multiplied by the threads and devices that ran kernels for it.
    pub available_ns: u64,
    /// Maximum number of threads and devices that ran kernels for one run.
    pub n_places: usize,
    /// Enqueued launches without a mark, whose time is unknown.
    pub n_unmarked: usize,
    /// Lost events and marks.
    pub n_dropped: u64,
}

/// A place that runs kernels: a thread, by its track, or a device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Runner<'a> {
    Thread(usize),
    Device(&'a str),
}

#[derive(Default)]
struct Run<'a> {
    wall_ns: u64,
    /// Begin and end of kernels.
    kernels: BTreeMap<Runner<'a>, Vec<(u64, u64)>>,
}

impl Summary {
    /// Computes the sums of a timeline. Slices outside of completed runs are left out.
    pub fn of(timeline: &Timeline<'_>) -> Self {
        let mut summary = Self { n_dropped: timeline.recording.n_dropped(), ..Self::default() };
        let mut runs: BTreeMap<u32, Run<'_>> = BTreeMap::new();
        for slice in timeline.tracks.iter().flat_map(|track| &track.slices) {
            if slice.kind == SliceKind::Run {
                runs.entry(slice.run).or_default().wall_ns += slice.end_ns - slice.begin_ns;
            }
        }
        let mut ops: HashMap<&str, (BTreeSet<&str>, usize, u64)> = HashMap::new();
        let (mut n_enqueued, mut n_marked) = (0, 0);
        for (track, of) in timeline.tracks.iter().enumerate() {
            for slice in &of.slices {
                let Some(run) = runs.get_mut(&slice.run) else {
                    continue;
                };
                if let SliceKind::Launch(at, _) = slice.kind
                    && timeline.step(at).is_some_and(|step| step.kind == StepKind::Enqueue)
                {
                    n_enqueued += 1;
                }
                let Some(step) = kernel(timeline.executed(slice)) else {
                    continue;
                };
                n_marked += usize::from(matches!(slice.kind, SliceKind::Mark(..)));
                let time_ns = slice.end_ns - slice.begin_ns;
                summary.kernel_ns += time_ns;
                let place = of.device.as_deref().map_or(Runner::Thread(track), Runner::Device);
                run.kernels.entry(place).or_default().push((slice.begin_ns, slice.end_ns));
                let (nodes, n_launches, total_ns) = ops.entry(step.op()).or_default();
                nodes.insert(&step.label);
                *n_launches += 1;
                *total_ns += time_ns;
            }
        }
        summary.n_unmarked = n_enqueued - n_marked;
        for run in runs.into_values() {
            summary.n_runs += 1;
            summary.wall_ns += run.wall_ns;
            summary.available_ns += run.wall_ns * run.kernels.len().max(1) as u64;
            summary.n_places = summary.n_places.max(run.kernels.len());
            summary.busy_ns += run.kernels.into_values().map(covered_ns).sum::<u64>();
        }
        let share = |total_ns: u64| total_ns as f64 / (summary.kernel_ns as f64).max(1.0);
        summary.ops = ops
            .into_iter()
            .map(|(op, (nodes, n_launches, total_ns))| OpTime {
                op: op.to_owned(),
                n_nodes: nodes.len(),
                n_launches,
                total_ns,
                share: share(total_ns),
            })
            .collect();
        summary.ops.sort_by(|a, b| b.total_ns.cmp(&a.total_ns).then_with(|| a.op.cmp(&b.op)));
        summary
    }

    /// Returns the share of the runs' time that was not spent in kernels: 1 - `busy_ns` / `available_ns`. None without runs.
    pub fn not_in_kernels(&self) -> Option<f64> {
        (self.available_ns > 0).then(|| 1.0 - self.busy_ns as f64 / self.available_ns as f64)
    }

    /// Returns the sums as JSON.
    pub fn json(&self) -> Value {
        let op = |op: &OpTime| {
            let OpTime { op, n_nodes, n_launches, total_ns, share } = op;
            json!({ "op": op, "nodes": n_nodes, "launches": n_launches, "total_ns": total_ns, "share": share })
        };
        let ops: Vec<Value> = self.ops.iter().map(op).collect();
        json!({
            "runs": self.n_runs, "wall_ns": self.wall_ns, "kernel_ns": self.kernel_ns, "busy_ns": self.busy_ns,
            "available_ns": self.available_ns, "not_in_kernels": self.not_in_kernels(),
            "unmarked_launches": self.n_unmarked, "lost_events": self.n_dropped, "ops": ops,
        })
    }
}

/// Returns the nanoseconds that intervals cover, with overlaps counted once.
fn covered_ns(mut intervals: Vec<(u64, u64)>) -> u64 {
    intervals.sort_unstable();
    let (mut covered, mut until) = (0, 0);
    for (begin, end) in intervals {
        covered += end.saturating_sub(begin.max(until));
        until = until.max(end);
    }
    covered
}

/// Returns the kernel that ran; None for control flow.
fn kernel(executed: Option<(StepAt, &StepInfo)>) -> Option<&StepInfo> {
    executed.map(|(_, step)| step).filter(|step| matches!(step.kind, StepKind::Kernel | StepKind::Enqueue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_covered_twice_counts_once() {
        assert_eq!(covered_ns(vec![]), 0);
        assert_eq!(covered_ns(vec![(5, 9), (1, 3), (2, 4), (6, 7), (9, 10)]), 3 + 5);
    }
}
