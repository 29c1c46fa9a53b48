//! Predicted against measured: the time of launches beside the plan's prediction.
//!
//! The time of a launch is its median over all runs, minus the time of one clock reading, which each measurement includes.
//! Kernels and copies are compared; control flow is not, since its own launches are. On a device that works asynchronously,
//! the plugin's marks time the launches, and launches without a mark are left out.

use super::{SliceKind, StepAt, Timeline};
use devbay_core::kernel::Counts;
use devbay_core::trace::StepKind;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A launch of a plan, predicted and measured.
#[derive(Clone, PartialEq, Debug)]
pub struct LaunchTime {
    /// The node, with its op.
    pub node: String,
    /// The node's name in the model; empty if it has none.
    pub name: String,
    /// Name of the node's first result in the model.
    pub output: String,
    /// The op.
    pub op: String,
    /// The device.
    pub device: String,
    /// Its name in measurements ([`devbay_core::plan::feedback`]).
    pub signature: Option<Arc<str>>,
    /// Its work as the kernel states it; None if the kernel does not, and for copies.
    pub counts: Option<Counts>,
    /// Nanoseconds that the plan predicted.
    pub predicted_ns: f64,
    /// Measured nanoseconds: the median.
    pub measured_ns: f64,
    /// Mean number of times that it runs per run; above one for a launch in a loop.
    pub per_run: f64,
}

/// Times of the launches of a timeline.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Costs {
    /// Launches with a prediction, in the order in which they first began.
    pub launches: Vec<LaunchTime>,
    /// Number of launches that were planned at run time, and their total nanoseconds per run.
    pub unpredicted: (usize, f64),
    /// Completed runs.
    pub n_runs: usize,
    /// Nanoseconds subtracted from each time, for reading the clock.
    pub clock_ns: f64,
}

/// Quality of the prediction for a set of launches.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Fit {
    /// Number of launches.
    pub n: usize,
    /// Spearman's rank correlation of predicted and measured times, from -1 to 1; None if either is the same for all
    /// launches.
    pub rank_correlation: Option<f64>,
    /// Median error of a prediction as a factor: 2 for both twice and half the time; 1 is exact.
    pub factor_median: f64,
    /// 90th percentile of the same factor.
    pub factor_p90: f64,
    /// Predicted nanoseconds of a run.
    pub predicted_ns: f64,
    /// Measured nanoseconds of a run.
    pub measured_ns: f64,
}

impl Costs {
    /// Computes the costs of a timeline; `clock_ns` is the time of one clock reading
    /// ([`devbay_core::trace::clock_ns`]).
    pub fn of(timeline: &Timeline<'_>, clock_ns: f64) -> Self {
        // By section and step: when the first one began, and the time of each.
        let mut times: BTreeMap<(u32, u32), (u64, Vec<f64>)> = BTreeMap::new();
        let mut n_runs = 0;
        for slice in timeline.tracks.iter().flat_map(|track| &track.slices) {
            n_runs += usize::from(slice.kind == SliceKind::Run);
            let Some((at, step)) = timeline.executed(slice) else { continue };
            if matches!(step.kind, StepKind::Kernel | StepKind::Enqueue | StepKind::Copy) {
                // A mark's time comes from the device.
                let clock_ns = if matches!(slice.kind, SliceKind::Mark(..)) { 0.0 } else { clock_ns };
                let time_ns = ((slice.end_ns - slice.begin_ns) as f64 - clock_ns).max(TIME_MIN_NS);
                let (first_ns, all) =
                    times.entry((at.section, at.step)).or_insert_with(|| (u64::MAX, Vec::new()));
                *first_ns = slice.begin_ns.min(*first_ns);
                all.push(time_ns);
            }
        }
        let mut costs = Self { n_runs, clock_ns, ..Self::default() };
        let mut times: Vec<_> = times.into_iter().collect();
        times.sort_by_key(|(_, (first_ns, _))| *first_ns);
        for ((section, step), (_, mut times)) in times {
            let Some(info) = timeline.step(StepAt { section, step }) else { continue };
            times.sort_by(f64::total_cmp);
            let measured_ns = quantile(&times, 0.5);
            let per_run = times.len() as f64 / n_runs.max(1) as f64;
            if info.cost_ns <= 0.0 {
                let (n, ns) = costs.unpredicted;
                costs.unpredicted = (n + 1, ns + measured_ns * per_run);
                continue;
            }
            let devices = &timeline.recording.sections[section as usize].devices;
            costs.launches.push(LaunchTime {
                node: info.label.clone(),
                name: info.name.clone(),
                output: info.output.clone(),
                op: info.op().to_owned(),
                device: devices.get(info.lane as usize).cloned().unwrap_or_default(),
                signature: info.signature.clone(),
                counts: info.counts,
                predicted_ns: f64::from(info.cost_ns),
                measured_ns,
                per_run,
            });
        }
        costs
    }

    /// Returns the quality of prediction for each op, the longest op first.
    pub fn by_op(&self) -> Vec<(String, Fit)> {
        let mut ops: BTreeMap<&str, Vec<&LaunchTime>> = BTreeMap::new();
        for launch in &self.launches {
            ops.entry(&launch.op).or_default().push(launch);
        }
        let fit = |(op, launches): (&str, Vec<&LaunchTime>)| (op.to_owned(), Fit::of(launches));
        let mut fits: Vec<_> = ops.into_iter().map(fit).collect();
        fits.sort_by(|(_, a), (_, b)| b.measured_ns.total_cmp(&a.measured_ns));
        fits
    }

    /// Returns the launches' times by device and signature: the median if several launches share a signature.
    pub fn measured(&self) -> BTreeMap<(String, Arc<str>), f64> {
        let mut times: HashMap<(String, Arc<str>), Vec<f64>> = HashMap::new();
        for launch in &self.launches {
            if let Some(signature) = &launch.signature {
                let key = (launch.device.clone(), Arc::clone(signature));
                times.entry(key).or_default().push(launch.measured_ns);
            }
        }
        let median = |mut times: Vec<f64>| {
            times.sort_by(f64::total_cmp);
            quantile(&times, 0.5)
        };
        times.into_iter().map(|(key, times)| (key, median(times))).collect()
    }
}

/// Lower bound of a launch's time, for times that hardly exceed reading the clock.
const TIME_MIN_NS: f64 = 1.0;

impl Fit {
    /// Computes the quality of prediction for these launches.
    pub fn of<'a>(launches: impl IntoIterator<Item = &'a LaunchTime>) -> Self {
        let launches: Vec<&LaunchTime> = launches.into_iter().collect();
        let predicted: Vec<f64> = launches.iter().map(|launch| launch.predicted_ns).collect();
        let measured: Vec<f64> = launches.iter().map(|launch| launch.measured_ns).collect();
        let pairs = predicted.iter().zip(&measured);
        let mut off: Vec<f64> =
            pairs.map(|(predicted, measured)| (predicted / measured).ln().abs()).collect();
        off.sort_by(f64::total_cmp);
        let in_a_run = |time: fn(&LaunchTime) -> f64| -> f64 {
            launches.iter().map(|launch| time(launch) * launch.per_run).sum()
        };
        Self {
            n: launches.len(),
            rank_correlation: rank_correlation(&predicted, &measured),
            factor_median: quantile(&off, 0.5).exp(),
            factor_p90: quantile(&off, 0.9).exp(),
            predicted_ns: in_a_run(|launch| launch.predicted_ns),
            measured_ns: in_a_run(|launch| launch.measured_ns),
        }
    }

    /// Returns the ratio of a run's predicted to its measured time.
    pub fn ratio(&self) -> f64 {
        self.predicted_ns / self.measured_ns
    }
}

/// Computes Spearman's rank correlation: that of the ranks, where equal values share the mean rank. None if all values of
/// one side are equal.
///
/// Source: Spearman, "The Proof and Measurement of Association between Two Things", 1904.
fn rank_correlation(a: &[f64], b: &[f64]) -> Option<f64> {
    let (a, b) = (ranks(a), ranks(b));
    let mean = (a.len() as f64 + 1.0) / 2.0;
    let (mut both, mut of_a, mut of_b) = (0.0, 0.0, 0.0);
    for (a, b) in a.iter().zip(&b) {
        both += (a - mean) * (b - mean);
        of_a += (a - mean) * (a - mean);
        of_b += (b - mean) * (b - mean);
    }
    (of_a > 0.0 && of_b > 0.0).then(|| both / (of_a * of_b).sqrt())
}

/// Computes the rank of each value from 1; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[a].total_cmp(&values[b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    for same in order.chunk_by(|&a, &b| values[a] == values[b]) {
        // Positions from `first` on, counted from 1.
        let mean = first as f64 + (same.len() as f64 + 1.0) / 2.0;
        same.iter().for_each(|&at| ranks[at] = mean);
        first += same.len();
    }
    ranks
}

/// Computes a quantile of sorted values by linear interpolation; 0 if there are none.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return 0.0 };
    let at = last as f64 * share;
    let (below, part) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(last);
    sorted[below] + (sorted[above] - sorted[below]) * part
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_core::trace::{Event, Recording, SectionInfo, StepInfo, ThreadEvents, What};

    fn close(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-9, "expected {expected}, found {found}");
    }

    fn launch(op: &str, predicted_ns: f64, measured_ns: f64) -> LaunchTime {
        LaunchTime {
            node: format!("a node ({op})"),
            name: "a node".to_owned(),
            output: "y".to_owned(),
            op: op.to_owned(),
            device: "cpu:0".to_owned(),
            signature: None,
            counts: None,
            predicted_ns,
            measured_ns,
            per_run: 1.0,
        }
    }

    #[test]
    fn ranks_by_hand() {
        assert_eq!(ranks(&[30.0, 10.0, 20.0]), [3.0, 1.0, 2.0]);
        assert_eq!(ranks(&[5.0, 1.0, 5.0, 5.0]), [3.0, 1.0, 3.0, 3.0]);
        assert!(ranks(&[]).is_empty());
    }

    #[test]
    fn rank_correlations_by_hand() {
        let correlation = |a: &[f64], b: &[f64]| rank_correlation(a, b).expect("values that differ");
        // The order is the same, whatever the distances; then reversed.
        close(correlation(&[1.0, 2.0, 3.0], &[10.0, 11.0, 999.0]), 1.0);
        close(correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        // Without ties 1 - 6 sum(d^2) / (n (n^2 - 1)): here d = 0, 1, 1, 1, 1, so 1 - 24 / 120.
        close(correlation(&[1.0, 2.0, 3.0, 4.0, 5.0], &[1.0, 3.0, 2.0, 5.0, 4.0]), 0.8);
        // Ranks 1.5, 1.5, 3 and 1, 2, 3: 1.5 / sqrt(1.5 * 2).
        close(correlation(&[1.0, 1.0, 2.0], &[1.0, 2.0, 3.0]), 0.75f64.sqrt());
        assert_eq!(rank_correlation(&[1.0, 1.0], &[1.0, 2.0]), None);
        assert_eq!(rank_correlation(&[], &[]), None);
    }

    #[test]
    fn quantiles_by_hand() {
        let sorted = [0.0, 10.0, 20.0, 40.0];
        close(quantile(&sorted, 0.5), 15.0);
        // At 2.7: between 20 and 40.
        close(quantile(&sorted, 0.9), 34.0);
        close(quantile(&sorted, 1.0), 40.0);
        close(quantile(&[7.0], 0.9), 7.0);
        close(quantile(&[], 0.5), 0.0);
    }

    #[test]
    fn a_fit_by_hand() {
        // Half, exactly and eight times the measured time: factors 2, 1 and 8.
        let launches = [launch("A", 1.0, 2.0), launch("A", 4.0, 4.0), launch("B", 8.0, 1.0)];
        let fit = Fit::of(&launches);
        assert_eq!(fit.n, 3);
        close(fit.factor_median, 2.0);
        // Logarithms 0, 1 and 3 to the base 2; at 1.8: 1 + 0.8 * 2.
        close(fit.factor_p90, 2f64.powf(2.6));
        close(fit.predicted_ns, 13.0);
        close(fit.measured_ns, 7.0);
        close(fit.ratio(), 13.0 / 7.0);
        // Ranks 1, 2, 3 and 2, 3, 1.
        close(fit.rank_correlation.expect("times differ"), -0.5);
        // A launch that runs three times per run has three times the weight in the sums.
        let repeated = [LaunchTime { per_run: 3.0, ..launch("A", 1.0, 2.0) }];
        close(Fit::of(&repeated).measured_ns, 6.0);
    }

    #[test]
    fn ops_come_in_the_order_of_their_times() {
        let costs = Costs {
            launches: vec![launch("A", 1.0, 2.0), launch("B", 1.0, 5.0), launch("A", 1.0, 2.0)],
            ..Costs::default()
        };
        let ops: Vec<(String, usize)> = costs.by_op().into_iter().map(|(op, fit)| (op, fit.n)).collect();
        assert_eq!(ops, [("B".to_owned(), 1), ("A".to_owned(), 2)]);
    }

    /// Returns a recording of one section's steps with their predicted times, and events with their durations in
    /// nanoseconds.
    fn recording(steps: &[(StepKind, f32)], events: &[(u32, u64)]) -> Recording {
        let step = |&(kind, cost_ns): &(StepKind, f32)| StepInfo {
            label: "a node (Op)".to_owned(),
            name: "a node".to_owned(),
            output: "y".to_owned(),
            kernel: "Op@1".to_owned(),
            kind,
            cost_ns,
            counts: Some(Counts { flops: 200, bytes: 48 }),
            signature: Some("Op@1() f32[]".into()),
            task: 0,
            lane: 0,
            preds: Box::default(),
        };
        let section = SectionInfo {
            devices: vec!["cpu:0".to_owned()],
            is_shared: false,
            steps: steps.iter().map(step).collect(),
        };
        let mut now = 0;
        let mut told: Vec<Event> = Vec::new();
        for &(step, ns) in events {
            let what = What::Launch { section: 0, step, stream: 0 };
            told.push(Event { what, run: 1, begin_ns: now, end_ns: now + ns });
            now += ns + 1;
        }
        told.push(Event { what: What::Run, run: 1, begin_ns: 0, end_ns: now });
        let thread = ThreadEvents { name: String::new(), events: told, n_dropped: 0 };
        Recording { threads: vec![thread], sections: vec![Arc::new(section)], ..Recording::default() }
    }

    #[test]
    fn of_a_launch_the_median_counts_less_the_clock() {
        let steps = [(StepKind::Kernel, 50.0), (StepKind::Kernel, 0.0), (StepKind::Order, 1.0)];
        let recording = recording(&steps, &[(0, 100), (0, 130), (0, 900), (1, 40), (2, 70)]);
        let costs = Costs::of(&Timeline::of(&recording), 20.0);
        assert_eq!((costs.launches.len(), costs.n_runs, costs.unpredicted), (1, 1, (1, 20.0)));
        let launch = &costs.launches[0];
        assert_eq!((launch.predicted_ns, launch.measured_ns, launch.per_run), (50.0, 110.0, 3.0));
        assert_eq!((launch.op.as_str(), launch.device.as_str()), ("Op", "cpu:0"));
        assert_eq!((launch.name.as_str(), launch.output.as_str()), ("a node", "y"));
        assert_eq!(launch.counts, Some(Counts { flops: 200, bytes: 48 }));
    }

    #[test]
    fn launches_come_in_the_order_in_which_they_first_began() {
        let steps = [(StepKind::Kernel, 3.0), (StepKind::Kernel, 1.0), (StepKind::Kernel, 2.0)];
        let recording = recording(&steps, &[(1, 5), (2, 5), (0, 5), (1, 5)]);
        let costs = Costs::of(&Timeline::of(&recording), 0.0);
        let predicted: Vec<f64> = costs.launches.iter().map(|launch| launch.predicted_ns).collect();
        assert_eq!(predicted, [1.0, 2.0, 3.0]);
    }

    #[test]
    fn launches_of_one_signature_are_one_measurement() {
        let steps = [(StepKind::Kernel, 1.0); 3];
        let recording = recording(&steps, &[(0, 10), (1, 40), (2, 50)]);
        let measured = Costs::of(&Timeline::of(&recording), 0.0).measured();
        assert_eq!(measured.into_values().collect::<Vec<_>>(), [40.0]);
    }
}
