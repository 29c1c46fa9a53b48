//! `devbay bench --simulate`: the model on more processors than this machine has.
//!
//! For each count the model is planned for so many threads, and runs on one, which measures every chunk of every loop. The
//! chunks are then replayed on a model of the processors (`host/src/simulate/`). What can be measured here, one thread and two,
//! stands beside what the model says.

use crate::bench::Arguments;
use crate::exit::usage;
use crate::inputs::{InputArguments, types_of};
use crate::launches::run_many;
use crate::layers::Done;
use crate::options::{Chosen, PluginArguments};
use crate::roofline::{Ceilings, end_of, number};
use crate::{say, table};
use anyhow::Result;
use devbay_host::internals::core::exec::queue::THREADS_MAX;
use devbay_host::internals::core::units::{count, percent};
use devbay_host::internals::simulate::{
    HandOver, Limit, Limits, Machine, Replay, Work, limits, replay, saturation,
};
use devbay_host::trace::{Recorder, Recording, clock_ns};
use devbay_host::{Checks, Error, ErrorKind, Model, Session, Tensor};
use serde_json::{Value, json};
use std::time::Instant;

/// Threads that have all of the memory's bandwidth, each of them as much of it as one alone has. Processors of many cores have it with
/// fewer threads than cores.
const BANDWIDTH_THREADS: usize = 8;
/// Numbers of threads that are always simulated: the one that others are compared with, and what can be measured beside it.
const MEASURED: [usize; 2] = [1, 2];
/// Launches that are listed for each count.
const LISTED: usize = 5;
/// Measured runs of each count, at least and at most, unless `--runs` says otherwise.
const RUNS: (usize, usize) = (3, 50);

/// A count of processors, and what the model says of it.
struct Simulated {
    machine: Machine,
    work: Work,
    replay: Replay,
    /// Of each launch, and of all.
    limits: (Vec<Limits>, Limits),
}

/// What the costs of a machine come from.
struct Costs {
    hand_over: HandOver,
    /// True if hand-overs were measured.
    is_measured: bool,
    /// Bytes per nanosecond of one thread; None if they are unknown.
    thread_bytes_per_ns: Option<f64>,
    /// Those of all threads, where the user says so.
    bytes_per_ns: Option<f64>,
}

/// Parses `--bandwidth`.
///
/// # Errors
/// For anything but a number above 0.
pub fn bandwidth(text: &str) -> std::result::Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| *value > 0.0 && value.is_finite());
    value.ok_or_else(|| "expected GB/s, a number above 0".to_owned())
}

/// Simulates the model.
///
/// # Errors
/// Errors that keep the model from running; counts that cannot be simulated; devices whose kernels do not run on the calling
/// thread.
pub fn main(arguments: &Arguments) -> Result<Done> {
    if arguments.plugins.threads.is_some() {
        return Err(usage("--simulate has its own numbers of threads: leave --threads out".to_owned()));
    }
    let mut counts = arguments.simulate.clone().unwrap_or_default();
    if let Some(count) = counts.iter().find(|count| !(1..=THREADS_MAX).contains(*count)) {
        return Err(usage(format!("--simulate takes 1 to {THREADS_MAX} threads, found {count}")));
    }
    counts.extend(MEASURED);
    counts.sort_unstable();
    counts.dedup();
    let model = arguments.device.load(&arguments.model, Checks::default())?;
    let costs = Costs::of(arguments)?;
    let seconds = arguments.seconds.clamp(0.0, 3600.0) / (counts.len() + MEASURED.len()) as f64;
    let mut device = String::new();
    let mut simulated = Vec::new();
    for n in counts {
        let work = measure_chunks(arguments, &model, n, seconds, &mut device)?;
        let machine = costs.machine(n);
        let (replay, limits) = (replay(&work, &machine), limits(&work, &machine));
        simulated.push(Simulated { machine, work, replay, limits });
    }
    let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
    let mut measured = Vec::new();
    for n in MEASURED.into_iter().filter(|n| *n <= n_processors) {
        measured.push((n, measure(arguments, &model, n, seconds)?));
    }
    let report = Report { device, costs, simulated, measured };
    if arguments.json {
        let mut json = report.json();
        json["model"] = json!(arguments.model);
        return Ok(Done::json(json));
    }
    say!("{} on {}, simulated from one thread", arguments.model.display(), report.device);
    report.print();
    Ok(Done::printed())
}

impl Costs {
    fn of(arguments: &Arguments) -> Result<Self> {
        let hand_over = HandOver::measure()?;
        let thread_bytes_per_ns = match arguments.bandwidth {
            Some(_) => None,
            None => Ceilings::measure().map(|ceilings| ceilings.bytes_per_ns),
        };
        Ok(Self {
            hand_over: hand_over.unwrap_or(HandOver::TYPICAL),
            is_measured: hand_over.is_some(),
            thread_bytes_per_ns,
            bytes_per_ns: arguments.bandwidth,
        })
    }

    fn machine(&self, n: usize) -> Machine {
        let of_threads = self.thread_bytes_per_ns.map(|bytes| bytes * n.min(BANDWIDTH_THREADS) as f64);
        let bytes_per_ns = self.bytes_per_ns.or(of_threads).unwrap_or(f64::INFINITY);
        Machine { n, hand_over: self.hand_over, bytes_per_ns }
    }

    fn text(&self) -> String {
        let HandOver { join_ns, transfer_ns } = self.hand_over;
        let from = if self.is_measured { "measured" } else { "assumed: there is one processor" };
        let memory = match (self.bytes_per_ns, self.thread_bytes_per_ns) {
            (Some(all), _) => format!("{} GB/s for all threads", number(all)),
            (None, Some(one)) => format!("{} GB/s a thread, up to {BANDWIDTH_THREADS} threads", number(one)),
            (None, None) => "without limit, because its bandwidth is unknown here (--bandwidth)".to_owned(),
        };
        format!(
            "another thread joins after {}, a cache line after {} ({from}); memory {memory}",
            table::duration(join_ns),
            table::duration(transfer_ns)
        )
    }
}

/// A session, its inputs by name, and the runtime that it lives in.
type Live = (Chosen, Session, Vec<(String, Tensor)>);

/// Returns a session for a number of threads.
fn session(
    arguments: &Arguments,
    model: &Model,
    plugins: &PluginArguments,
    recorder: Option<&Recorder>,
) -> Result<Live> {
    let chosen = arguments.device.choose(plugins, model.program(), recorder)?;
    let random = arguments.inputs.random.or(Some(0));
    let inputs =
        InputArguments { random, ..arguments.inputs.clone() }.read(model.program(), &chosen.device)?;
    let types = types_of(model.program(), &inputs);
    let (session, _) = arguments.device.session(&chosen, model, &types, recorder)?;
    Ok((chosen, session, inputs))
}

/// Runs the model as planned for `n` threads on this one, and returns the chunks of its loops.
fn measure_chunks(
    arguments: &Arguments,
    model: &Model,
    n: usize,
    seconds: f64,
    device: &mut String,
) -> Result<Work> {
    let recorder = Recorder::default();
    let plugins = PluginArguments { threads: Some(n), simulated: true, ..arguments.plugins.clone() };
    let (_chosen, session, inputs) = session(arguments, model, &plugins, Some(&recorder))?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let plan = session.plan_for(&given)?;
    let mut lanes = plan.sections().flat_map(|section| &section.lanes).chain([session.device()]);
    if let Some(other) = lanes.find(|device| !device.about().inline) {
        let text = format!(
            "{} runs kernels behind the calling thread, which therefore cannot measure their loops: --simulate is for \
             devices that run kernels inline, as the processor does",
            other.name()
        );
        return Err(Error::new(ErrorKind::Unavailable, text).into());
    }
    session.device().name().clone_into(device);
    let mut recordings: Vec<Recording> = Vec::new();
    run_many(&session, &given, arguments, (seconds, RUNS), || recordings.push(recorder.take()))?;
    // The first has the runs that are not measured.
    Ok(Work::of(recordings.get(1..).unwrap_or_default(), clock_ns()))
}

/// Returns the nanoseconds of a run on `n` threads: the median.
fn measure(arguments: &Arguments, model: &Model, n: usize, seconds: f64) -> Result<f64> {
    let plugins = PluginArguments { threads: Some(n), ..arguments.plugins.clone() };
    let (_chosen, session, inputs) = session(arguments, model, &plugins, None)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let (mut times, mut begin) = (Vec::new(), None);
    run_many(&session, &given, arguments, (seconds, RUNS), || {
        let now = Instant::now();
        times.extend(begin.replace(now).map(|begin: Instant| (now - begin).as_nanos() as f64));
    })?;
    times.sort_by(f64::total_cmp);
    Ok(times.get(times.len() / 2).copied().unwrap_or(f64::NAN))
}

/// What was simulated and measured.
struct Report {
    device: String,
    costs: Costs,
    /// By rising number of processors; the first has one.
    simulated: Vec<Simulated>,
    /// Numbers of threads, and the nanoseconds of a run.
    measured: Vec<(usize, f64)>,
}

impl Report {
    fn speedup(&self, simulated: &Simulated) -> f64 {
        self.simulated[0].replay.ns / simulated.replay.ns
    }

    /// Returns what was predicted for a number of threads.
    fn predicted_ns(&self, n: usize) -> f64 {
        let simulated = self.simulated.iter().find(|simulated| simulated.machine.n == n);
        simulated.map_or(f64::NAN, |simulated| simulated.replay.ns)
    }

    /// Returns the number of threads from which on more help little, by the plan for the most.
    fn saturation(&self) -> Option<usize> {
        let most = self.simulated.last()?;
        Some(saturation(&most.work, |n| self.costs.machine(n)))
    }

    fn print(&self) {
        say!("{}", self.costs.text());
        let row = |simulated: &Simulated| {
            vec![
                simulated.machine.n.to_string(),
                table::duration(simulated.replay.ns),
                format!("{:.2}", self.speedup(simulated)),
                percent(simulated.replay.idle),
                simulated.replay.n_chunks.to_string(),
                lost(&simulated.limits.1),
            ]
        };
        let rows: Vec<_> = self.simulated.iter().map(row).collect();
        table::print(&[">THREADS", ">TIME", ">SPEEDUP", ">IDLE", ">CHUNKS", "LIMITED BY"], &rows);
        for &(n, ns) in &self.measured {
            let predicted_ns = self.predicted_ns(n);
            say!(
                "with {}: predicted {}, measured {}, ratio {:.2}",
                count(n, "thread"),
                table::duration(predicted_ns),
                table::duration(ns),
                predicted_ns / ns
            );
        }
        if let Some(n) = self.saturation() {
            say!("doubling the threads saves less than a tenth of the time from {} on", count(n, "thread"));
        }
        for simulated in self.simulated.iter().filter(|simulated| !MEASURED.contains(&simulated.machine.n)) {
            say!("");
            say!("slowest launches with {}:", count(simulated.machine.n, "thread"));
            let rows: Vec<_> = simulated.slowest().iter().map(|launch| launch.row(simulated)).collect();
            table::print(
                &["NODE", "OP", ">TIME", ">SHARE", ">SPEEDUP", ">CHUNKS", ">LONGEST", "LIMITED BY"],
                &rows,
            );
        }
    }

    fn json(&self) -> Value {
        let check = |&(n, measured_ns): &(usize, f64)| {
            let predicted_ns = self.predicted_ns(n);
            json!({
                "threads": n, "predicted_ns": predicted_ns, "measured_ns": measured_ns, "ratio": predicted_ns / measured_ns,
            })
        };
        let of_count = |simulated: &Simulated| {
            let Machine { n, bytes_per_ns, .. } = simulated.machine;
            let launches: Vec<Value> = simulated.slowest().iter().map(Launch::json).collect();
            json!({
                "threads": n, "ns": simulated.replay.ns, "work_ns": simulated.work.ns(), "speedup": self.speedup(simulated),
                "idle": simulated.replay.idle, "chunks": simulated.replay.n_chunks, "runs": simulated.work.n_runs,
                "tasks": simulated.work.stages.iter().map(|stage| stage.tasks.len()).sum::<usize>(),
                "gbyte_per_s": bytes_per_ns.is_finite().then_some(bytes_per_ns), "limit": limit(&simulated.limits.1),
                "lost_ns": lost_json(&simulated.limits.1), "slowest": launches,
            })
        };
        json!({
            "device": self.device, "join_ns": self.costs.hand_over.join_ns, "transfer_ns": self.costs.hand_over.transfer_ns,
            "hand_over_measured": self.costs.is_measured, "saturates_at": self.saturation(),
            "simulated": self.simulated.iter().map(of_count).collect::<Vec<_>>(),
            "check": self.measured.iter().map(check).collect::<Vec<_>>(),
        })
    }
}

/// One launch on a number of processors.
struct Launch<'a> {
    name: &'a str,
    op: &'a str,
    ns: f64,
    /// Nanoseconds on one thread.
    work_ns: f64,
    n_chunks: usize,
    longest_ns: f64,
    limits: Limits,
}

impl Simulated {
    /// Returns the launches that take longest, the slowest first.
    fn slowest(&self) -> Vec<Launch<'_>> {
        let mut order: Vec<usize> = (0..self.work.launches.len()).collect();
        order.sort_by(|&a, &b| self.replay.launches_ns[b].total_cmp(&self.replay.launches_ns[a]));
        order.truncate(LISTED);
        order.into_iter().map(|at| self.launch(at)).collect()
    }

    fn launch(&self, at: usize) -> Launch<'_> {
        let info = &self.work.launches[at];
        let steps = self.work.stages.iter().flat_map(|stage| &stage.steps);
        let (mut work_ns, mut n_chunks, mut longest_ns) = (0.0, 0, 0f64);
        for step in steps.filter(|step| step.launch == at) {
            work_ns += step.ns();
            n_chunks += step.chunks().count();
            longest_ns = step.chunks().fold(longest_ns, f64::max);
        }
        let (ns, limits) = (self.replay.launches_ns[at], self.limits.0[at]);
        Launch { name: &info.name, op: &info.op, ns, work_ns, n_chunks, longest_ns, limits }
    }
}

impl Launch<'_> {
    fn row(&self, simulated: &Simulated) -> Vec<String> {
        vec![
            end_of(self.name),
            self.op.to_owned(),
            table::duration(self.ns),
            percent(self.ns / simulated.replay.ns.max(f64::MIN_POSITIVE)),
            format!("{:.2}", self.work_ns / self.ns.max(f64::MIN_POSITIVE)),
            self.n_chunks.to_string(),
            if self.n_chunks == 0 { "-".to_owned() } else { table::duration(self.longest_ns) },
            lost(&self.limits),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "node": self.name, "op": self.op, "ns": self.ns, "work_ns": self.work_ns, "chunks": self.n_chunks,
            "longest_chunk_ns": self.longest_ns, "limit": limit(&self.limits), "lost_ns": lost_json(&self.limits),
        })
    }
}

/// Returns the name of the main limit.
fn limit(limits: &Limits) -> Option<&'static str> {
    limits.main().map(Limit::name)
}

/// Returns the limits that cost at least a tenth of what is lost, as text.
fn lost(limits: &Limits) -> String {
    let sum_ns = limits.sum_ns();
    let mut parts: Vec<(f64, &str)> =
        Limit::ALL.iter().map(|limit| (limits.lost_ns(*limit) / sum_ns, limit.name())).collect();
    parts.retain(|(share, _)| *share >= 0.1);
    parts.sort_by(|a, b| b.0.total_cmp(&a.0));
    let parts: Vec<String> =
        parts.iter().map(|(share, name)| format!("{name} {:.0} %", share * 100.0)).collect();
    if parts.is_empty() { "-".to_owned() } else { parts.join(", ") }
}

fn lost_json(limits: &Limits) -> Value {
    Limit::ALL
        .iter()
        .map(|limit| (limit.name().replace([' ', '-'], "_"), json!(limits.lost_ns(*limit))))
        .collect()
}
