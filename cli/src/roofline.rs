//! `devbay bench --roofline`: measured launches beside the limits of the processor.
//!
//! A launch does at most as many operations as the thread can compute, and as many as the memory can feed: its arithmetic
//! intensity, operations per byte, tells which limit is the lower one. The work is what kernels state, the times are
//! medians, and the limits are measured when the command runs. They are one thread's, so launches of other devices have
//! rates and no shares of a peak.
//! Source: Williams, Waterman and Patterson, "Roofline", 2009.

use crate::bench::Arguments;
use crate::launches::{self, Measured};
use crate::layers::Done;
use crate::{draw, say, table};
use anyhow::{Context, Result};
use devbay_host::internals::core::plan::feedback::types_in;
use devbay_host::internals::core::units::{count, percent};
use devbay_host::internals::file::write_bytes;
use devbay_host::internals::support::Counts;
use devbay_host::trace::LaunchTime;
use devbay_host::{Device, Session};
use devbay_plugin_api::abi::DEVBAY_DEVICE_KIND_CPU;
use serde_json::{Value, json};

/// Maximum characters of a node's name in the table, of which the last ones are kept.
const NAME_MAX: usize = 28;

/// A model's launches and the limits of the device that ran them.
pub struct Roofline {
    /// The limits; None if no launch ran on the processor's thread, or if this command has no kernels for it.
    pub ceilings: Option<Ceilings>,
    /// The launches, in the order in which they first began.
    pub points: Vec<Point>,
}

/// The limits of one thread.
#[derive(Clone, Copy)]
pub struct Ceilings {
    /// Operations per nanosecond, which are GFLOP/s.
    pub flops_per_ns: f64,
    /// The instructions that reached them.
    pub instructions: &'static str,
    /// Bytes per nanosecond, which are GB/s.
    pub bytes_per_ns: f64,
    /// Bytes of each of the three arrays that were read and written.
    pub array_bytes: usize,
}

/// One launch.
pub struct Point {
    /// Its time and counts.
    pub launch: LaunchTime,
    /// Part of the time of all launches.
    pub share: f64,
    /// The lower of its two limits; None without counts, or if the limits of its device are unknown.
    pub limit: Option<Limit>,
}

/// A limit of launches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Arithmetic.
    Arithmetic,
    /// Memory traffic.
    Memory,
}

/// Measures the model's launches and the limits.
///
/// # Errors
/// Errors that keep the model from running; a drawing that cannot be written.
pub fn main(arguments: &Arguments) -> Result<Done> {
    let Measured { chosen, session, costs, n_lost } =
        launches::measure(arguments, &arguments.device, "--roofline")?;
    let on_thread: Vec<String> = chosen
        .runtime
        .devices()
        .iter()
        .filter(|device| runs_on_its_thread(device))
        .map(|device| device.name().to_owned())
        .collect();
    let roofline = Roofline::of(&costs.launches, &on_thread);
    if let Some(path) = &arguments.html {
        let page = draw::roofline(&arguments.model.display().to_string(), session.device().name(), &roofline);
        write_bytes(path, page.as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.json {
        let mut json = roofline.json();
        json["model"] = json!(arguments.model);
        json["device"] = json!(session.device().name());
        json["threads"] = json!(1);
        json["runs"] = json!(costs.n_runs);
        json["clock_ns"] = json!(costs.clock_ns);
        json["unpredicted_launches"] = json!(costs.unpredicted.0);
        json["unpredicted_ns"] = json!(costs.unpredicted.1);
        json["lost_events"] = json!(n_lost);
        json["html"] = json!(arguments.html);
        return Ok(Done::json(json));
    }
    roofline.print(arguments, &session, costs.n_runs);
    launches::print_remarks(&costs, n_lost);
    if let Some(path) = &arguments.html {
        say!("drawing written to {}: open it in a browser", path.display());
    }
    Ok(Done::printed())
}

/// Returns whether a device's kernels run on the thread that launches them, whose limits are measured.
fn runs_on_its_thread(device: &Device) -> bool {
    device.about().inline && device.about().kind == DEVBAY_DEVICE_KIND_CPU
}

impl Ceilings {
    /// Measures them, which takes half a second; None in a command without the processor's kernels.
    #[cfg(feature = "cpu")]
    pub fn measure() -> Option<Self> {
        let peaks = devbay_plugin_cpu::peaks::Peaks::measure();
        Some(Self {
            flops_per_ns: peaks.flops_per_ns,
            instructions: peaks.instructions(),
            bytes_per_ns: peaks.bytes_per_ns,
            array_bytes: peaks.array_bytes,
        })
    }

    #[cfg(not(feature = "cpu"))]
    pub fn measure() -> Option<Self> {
        None
    }

    /// Returns the operations per byte from which on arithmetic is the limit.
    pub fn ridge(&self) -> f64 {
        self.flops_per_ns / self.bytes_per_ns
    }

    fn limit(&self, counts: Counts) -> Limit {
        match counts.flops as f64 > self.ridge() * counts.bytes as f64 {
            true => Limit::Arithmetic,
            false => Limit::Memory,
        }
    }

    /// Describes the limit of arithmetic.
    pub fn arithmetic(&self) -> String {
        format!("{} GFLOP/s ({})", number(self.flops_per_ns), self.instructions)
    }

    /// Describes the limit of memory traffic.
    pub fn memory(&self) -> String {
        let array = table::bytes(self.array_bytes as u64);
        format!("{} GB/s (STREAM's triad over three arrays of {array})", number(self.bytes_per_ns))
    }
}

impl Limit {
    /// Returns its name in text and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Arithmetic => "arithmetic",
            Self::Memory => "memory",
        }
    }
}

impl Point {
    /// Nanoseconds in a run, of all its repetitions.
    pub fn run_ns(&self) -> f64 {
        self.launch.measured_ns * self.launch.per_run
    }

    /// Operations per nanosecond, which are GFLOP/s.
    pub fn flops_per_ns(&self) -> Option<f64> {
        self.launch.counts.map(|counts| counts.flops as f64 / self.launch.measured_ns)
    }

    /// Bytes per nanosecond, which are GB/s.
    pub fn bytes_per_ns(&self) -> Option<f64> {
        self.launch.counts.map(|counts| counts.bytes as f64 / self.launch.measured_ns)
    }

    /// Operations per byte.
    pub fn intensity(&self) -> Option<f64> {
        let counts = self.launch.counts.filter(|counts| counts.bytes > 0)?;
        Some(counts.flops as f64 / counts.bytes as f64)
    }

    /// Returns the node's name, or else that of its result, which models always have.
    pub fn name(&self) -> &str {
        [&self.launch.name, &self.launch.output]
            .into_iter()
            .find(|name| !name.is_empty())
            .map_or(&self.launch.node, |name| name)
    }

    /// Returns the shapes of its weights, or else of its first operand, and of its first result. The type is left out if it
    /// is f32.
    pub fn shapes(&self) -> String {
        let (inputs, outputs) = types_in(self.launch.signature.as_deref().unwrap_or_default());
        // A tensor of several axes: biases and scalars say little.
        let weights = inputs.iter().find(|ty| ty.starts_with("const ") && ty.contains(','));
        let plain = |ty: &&str| ty.trim_start_matches("const ").trim_start_matches("f32").to_owned();
        match (weights.or(inputs.first()), outputs.first()) {
            (Some(input), Some(output)) => format!("{} -> {}", plain(input), plain(output)),
            (None, Some(output)) => plain(output),
            _ => "-".to_owned(),
        }
    }
}

/// Sums of several launches.
#[derive(Default)]
struct Sum {
    n: usize,
    /// Nanoseconds in a run.
    ns: f64,
    share: f64,
    flops: f64,
    bytes: f64,
    /// Nanoseconds of those with counts.
    counted_ns: f64,
}

impl Sum {
    fn of<'a>(points: impl Iterator<Item = &'a Point>) -> Self {
        points.fold(Self::default(), |mut sum, point| {
            sum.n += 1;
            sum.ns += point.run_ns();
            sum.share += point.share;
            if let Some(counts) = point.launch.counts {
                sum.flops += counts.flops as f64 * point.launch.per_run;
                sum.bytes += counts.bytes as f64 * point.launch.per_run;
                sum.counted_ns += point.run_ns();
            }
            sum
        })
    }

    /// Returns a rate of those with counts, if there are any.
    fn rate(&self, work: f64) -> Option<f64> {
        (self.counted_ns > 0.0).then(|| work / self.counted_ns)
    }
}

impl Roofline {
    /// Places launches, and measures the limits if one of them ran on the thread: `on_thread` names such devices.
    fn of(launches: &[LaunchTime], on_thread: &[String]) -> Self {
        let is_limited = |launch: &LaunchTime| on_thread.contains(&launch.device);
        let ceilings = launches.iter().any(is_limited).then(Ceilings::measure).flatten();
        Self::beside(launches, ceilings, is_limited)
    }

    /// Places launches beside limits, which hold for some of them.
    fn beside(
        launches: &[LaunchTime],
        ceilings: Option<Ceilings>,
        is_limited: impl Fn(&LaunchTime) -> bool,
    ) -> Self {
        let all_ns: f64 = launches.iter().map(|launch| launch.measured_ns * launch.per_run).sum();
        let point = |launch: &LaunchTime| {
            let counts = launch.counts.filter(|_| is_limited(launch));
            // Without either, nothing limits it.
            let counts = counts.filter(|counts| counts.flops > 0 || counts.bytes > 0);
            Point {
                share: launch.measured_ns * launch.per_run / all_ns.max(f64::MIN_POSITIVE),
                limit: ceilings.zip(counts).map(|(ceilings, counts)| ceilings.limit(counts)),
                launch: launch.clone(),
            }
        };
        Self { ceilings, points: launches.iter().map(point).collect() }
    }

    /// Returns the sums by limit, of those without one last.
    fn by_limit(&self) -> [(Option<Limit>, Sum); 3] {
        [Some(Limit::Arithmetic), Some(Limit::Memory), None]
            .map(|limit| (limit, Sum::of(self.points.iter().filter(|point| point.limit == limit))))
    }

    /// Returns a rate's part of a limit, for what has a limit.
    fn part(&self, limit: Option<Limit>, rate: Option<f64>, of: fn(&Ceilings) -> f64) -> Option<f64> {
        let ceilings = self.ceilings.as_ref().filter(|_| limit.is_some())?;
        rate.map(|rate| rate / of(ceilings))
    }

    /// Returns a launch's part of the limit that holds for it.
    pub fn of_limit(&self, point: &Point) -> Option<f64> {
        match point.limit? {
            Limit::Arithmetic => {
                self.part(point.limit, point.flops_per_ns(), |ceilings| ceilings.flops_per_ns)
            }
            Limit::Memory => self.part(point.limit, point.bytes_per_ns(), |ceilings| ceilings.bytes_per_ns),
        }
    }

    /// Returns why there are no limits.
    pub fn why_without(&self) -> &'static str {
        match cfg!(feature = "cpu") {
            true => "the peaks of this device are unknown: only those of a processor's thread are measured",
            false => "this command was built without the processor's kernels, which measure its peaks",
        }
    }

    fn print(&self, arguments: &Arguments, session: &Session, n_runs: usize) {
        let (model, device) = (arguments.model.display(), session.device().name());
        say!("{model} on {device} with one thread, {}", count(n_runs, "run"));
        match &self.ceilings {
            Some(ceilings) => say!(
                "one thread: {}; {}; ridge at {} flop/byte",
                ceilings.arithmetic(),
                ceilings.memory(),
                number(ceilings.ridge())
            ),
            None => say!("{}", self.why_without()),
        }
        let cells = |names: [String; 3], ns: f64, share: f64, rates: [Option<f64>; 5], limit: &str| {
            let [flops, of_peak, bytes, of_bandwidth, intensity] = rates;
            let [name, op, shapes] = names;
            let shown = |value: Option<f64>, text: fn(f64) -> String| value.map_or("-".to_owned(), text);
            vec![
                name,
                op,
                shapes,
                table::duration(ns),
                percent(share),
                shown(flops, number),
                shown(of_peak, percent),
                shown(bytes, number),
                shown(of_bandwidth, percent),
                shown(intensity, number),
                limit.to_owned(),
            ]
        };
        let row = |point: &Point| {
            let (flops, bytes) = (point.flops_per_ns(), point.bytes_per_ns());
            let rates = [
                flops,
                self.part(point.limit, flops, |ceilings| ceilings.flops_per_ns),
                bytes,
                self.part(point.limit, bytes, |ceilings| ceilings.bytes_per_ns),
                point.intensity(),
            ];
            let names = [end_of(point.name()), point.launch.op.clone(), point.shapes()];
            cells(names, point.run_ns(), point.share, rates, point.limit.map_or("-", Limit::name))
        };
        let all = Sum::of(self.points.iter());
        let (flops, bytes) = (all.rate(all.flops), all.rate(all.bytes));
        // Work on several devices has no common peak.
        let mut counted = self.points.iter().filter(|point| point.intensity().is_some());
        let limit = counted
            .clone()
            .find_map(|point| point.limit)
            .filter(|_| counted.all(|point| point.limit.is_some()));
        let rates = [
            flops,
            self.part(limit, flops, |ceilings| ceilings.flops_per_ns),
            bytes,
            self.part(limit, bytes, |ceilings| ceilings.bytes_per_ns),
            (all.bytes > 0.0).then(|| all.flops / all.bytes),
        ];
        let names = ["all".to_owned(), count(all.n, "launch"), String::new()];
        let total = cells(names, all.ns, all.share, rates, "");
        table::print(
            &[
                "NODE",
                "OP",
                "SHAPES",
                ">TIME",
                ">SHARE",
                ">GFLOP/S",
                ">OF PEAK",
                ">GB/S",
                ">OF BANDWIDTH",
                ">FLOP/BYTE",
                "LIMIT",
            ],
            &self.points.iter().map(row).chain([total]).collect::<Vec<_>>(),
        );
        self.print_limits();
    }

    /// Prints the sums by limit.
    fn print_limits(&self) {
        for (limit, sum) in self.by_limit().iter().filter(|(_, sum)| sum.n > 0) {
            let (launches, share) = (count(sum.n, "launch"), percent(sum.share));
            let Some(ceilings) = self.ceilings.as_ref().filter(|_| limit.is_some()) else {
                if self.ceilings.is_some() {
                    say!("no known limit: {launches}, {share} of the time");
                }
                continue;
            };
            let (rate, of) = match limit {
                Some(Limit::Arithmetic) => (sum.rate(sum.flops), (ceilings.flops_per_ns, "the peak")),
                _ => (sum.rate(sum.bytes), (ceilings.bytes_per_ns, "the bandwidth")),
            };
            let name = limit.map_or("", Limit::name);
            let reached = percent(rate.unwrap_or(0.0) / of.0);
            say!("limited by {name}: {launches}, {share} of the time, at {reached} of {}", of.1);
        }
    }

    fn json(&self) -> Value {
        let ceilings = self.ceilings.map(|ceilings| {
            json!({
                "gflop_per_s": ceilings.flops_per_ns, "instructions": ceilings.instructions,
                "gbyte_per_s": ceilings.bytes_per_ns, "traffic": "triad", "array_bytes": ceilings.array_bytes,
                "ridge_flop_per_byte": ceilings.ridge(),
            })
        });
        let point = |point: &Point| {
            let launch = &point.launch;
            let (inputs, outputs) = types_in(launch.signature.as_deref().unwrap_or_default());
            let (flops, bytes) = (point.flops_per_ns(), point.bytes_per_ns());
            json!({
                "node": launch.node, "name": launch.name, "output": launch.output, "op": launch.op, "device": launch.device,
                "inputs": inputs, "outputs": outputs, "measured_ns": launch.measured_ns, "per_run": launch.per_run,
                "share": point.share, "flops": launch.counts.map(|counts| counts.flops),
                "bytes": launch.counts.map(|counts| counts.bytes), "gflop_per_s": flops, "gbyte_per_s": bytes,
                "of_peak": self.part(point.limit, flops, |ceilings| ceilings.flops_per_ns),
                "of_bandwidth": self.part(point.limit, bytes, |ceilings| ceilings.bytes_per_ns),
                "flop_per_byte": point.intensity(), "limit": point.limit.map(Limit::name),
            })
        };
        let sum = |sum: &Sum| {
            json!({
                "launches": sum.n, "measured_ns": sum.ns, "share": sum.share, "flops": sum.flops, "bytes": sum.bytes,
                "gflop_per_s": sum.rate(sum.flops), "gbyte_per_s": sum.rate(sum.bytes),
            })
        };
        let [arithmetic, memory, unknown] = self.by_limit().map(|(_, of)| sum(&of));
        json!({
            "peaks": ceilings, "peaks_missing": self.ceilings.is_none().then(|| self.why_without()),
            "launches": self.points.iter().map(point).collect::<Vec<_>>(), "all": sum(&Sum::of(self.points.iter())),
            "by_limit": { "arithmetic": arithmetic, "memory": memory, "unknown": unknown },
        })
    }
}

/// Returns a number with three significant digits, or with all digits before the point; small ones have two behind it.
pub fn number(value: f64) -> String {
    match value {
        v if v >= 99.95 => format!("{v:.0}"),
        v if v >= 9.995 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Returns the end of a name, which tells nodes of exported models apart.
pub fn end_of(name: &str) -> String {
    match name.chars().count().checked_sub(NAME_MAX) {
        None | Some(0) => name.to_owned(),
        Some(n) => std::iter::once('…').chain(name.chars().skip(n + 1)).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CEILINGS: Ceilings =
        Ceilings { flops_per_ns: 100.0, instructions: "test", bytes_per_ns: 10.0, array_bytes: 0 };

    fn launch(name: &str, counts: Option<(u64, u64)>, measured_ns: f64) -> LaunchTime {
        LaunchTime {
            node: format!("{name} (Conv)"),
            name: name.to_owned(),
            output: "y".to_owned(),
            op: "Conv".to_owned(),
            device: "cpu:0".to_owned(),
            signature: Some(
                "Conv@11(f32[1,3,8,8], const f32[4,3,3,3], const f32[4]) f32[1,4,8,8] 0123".into(),
            ),
            counts: counts.map(|(flops, bytes)| Counts { flops, bytes }),
            predicted_ns: 1.0,
            measured_ns,
            per_run: 1.0,
        }
    }

    #[test]
    fn launches_are_limited_by_the_lower_roof() {
        let launches = [
            launch("a", Some((5000, 100)), 100.0),
            launch("b", Some((100, 100)), 50.0),
            launch("c", Some((0, 300)), 30.0),
            launch("d", None, 20.0),
        ];
        let roofline = Roofline::beside(&launches, Some(CEILINGS), |launch| launch.device == "cpu:0");
        let limits: Vec<&str> =
            roofline.points.iter().map(|point| point.limit.map_or("-", Limit::name)).collect();
        assert_eq!(limits, ["arithmetic", "memory", "memory", "-"]);
        let json = roofline.json();
        let first = &json["launches"][0];
        assert_eq!((first["gflop_per_s"].as_f64(), first["of_peak"].as_f64()), (Some(50.0), Some(0.5)));
        assert_eq!((first["gbyte_per_s"].as_f64(), first["of_bandwidth"].as_f64()), (Some(1.0), Some(0.1)));
        assert_eq!((first["share"].as_f64(), first["flop_per_byte"].as_f64()), (Some(0.5), Some(50.0)));
        assert_eq!(json["launches"][3]["limit"], Value::Null);
        assert_eq!(json["by_limit"]["memory"]["launches"], 2);
        assert_eq!(json["by_limit"]["memory"]["gbyte_per_s"].as_f64(), Some(5.0));
        assert_eq!(json["by_limit"]["unknown"]["share"].as_f64(), Some(0.1));
        // Time without counts is no part of a rate.
        assert_eq!(json["all"]["gflop_per_s"].as_f64(), Some(5100.0 / 180.0));
    }

    #[test]
    fn other_devices_have_rates_and_no_limits() {
        let roofline = Roofline::beside(&[launch("a", Some((5000, 100)), 100.0)], None, |_| false);
        let json = roofline.json();
        assert_eq!(json["launches"][0]["gflop_per_s"].as_f64(), Some(50.0));
        assert_eq!((&json["launches"][0]["of_peak"], &json["peaks"]), (&Value::Null, &Value::Null));
        assert!(json["peaks_missing"].is_string());
    }

    #[test]
    fn names_and_shapes_are_short() {
        let roofline = Roofline::beside(&[launch("a", None, 1.0)], None, |_| false);
        assert_eq!(roofline.points[0].shapes(), "[4,3,3,3] -> [1,4,8,8]");
        assert_eq!(end_of(&format!("{}end", "ä".repeat(40))), format!("…{}end", "ä".repeat(24)));
        assert_eq!([number(123.4), number(12.34), number(1.234)], ["123", "12.3", "1.23"]);
    }
}
