//! A great many runs on the same sessions, from several threads, after which nothing may have been kept.
//!
//! Every kind of end is among them: results, failures, cancellations before and during, handles that are dropped.
//! Results are checked in each. Memory is compared between a warm-up, a twentieth of the runs, and the end: the
//! process's, which may grow by what allocators and page tables do, and the devices', which is that of as many frames as
//! ran at once and ends with the sessions. `DEVBAY_SOAK` says how many runs there are; `cargo xtask soak` has ten million
//! (docs/proofs.md).

mod adder;
mod queued;

use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::{AlignedBytes, I64};
use devbay_host::internals::random::Random;
use devbay_host::{
    Cancel, Device, Error, ErrorKind, InputView, Model, OnFull, PlanOptions, Priority, Result, RunOptions,
    Runtime, Session, SessionOptions, Tensor,
};
use queued::program::{Graph, INPUT, Item, Op};
use queued::{FORMS, INLINE, Mode, N_DEVICES, OWN, SHARED, World};
use std::fmt::Write;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Runs of an ordinary test run.
const RUNS: u64 = 20_000;

/// Threads that call; those of the runtime are two.
const CALLERS: u64 = 3;

/// Of the runs, the part after which memory is looked at first.
const WARM_UP: u64 = 20;

/// Maximum growth of the process from then on, in bytes.
const GROWTH_MAX: u64 = 4 << 20;

/// Runs in the background that may be in flight: those whose handles are dropped would pile up.
const BACKGROUND_MAX: usize = 32;

/// Middle nodes of the plan with several tasks.
const WIDTH: i64 = 6;

/// One run of a kind; says whether it was cancelled in time.
type RunOne = fn(&Bench, &mut Caller) -> bool;

/// Kinds of runs, and how many of a thousand are of each.
const KINDS: [(&str, usize, RunOne); 9] = [
    ("straight line, run_into", 800, Bench::straight),
    ("several tasks", 80, Bench::tasks),
    ("in the background, waited for", 40, Bench::background),
    ("in the background, dropped", 30, Bench::dropped),
    ("cancelled before", 20, Bench::cancelled_before),
    ("cancelled during", 15, Bench::cancelled_during),
    ("a node fails", 10, Bench::failing),
    ("inline and asynchronous devices", 4, Bench::devices),
    ("the same, and a node fails", 1, Bench::devices_failing),
];

/// Sessions, each shared by all callers.
struct Bench {
    world: Arc<World>,
    straight: Session,
    tasks: Session,
    background: Session,
    /// As `tasks`, and long enough to be cancelled.
    slow: Session,
    failing: Session,
    /// For each form of the plugin, with what it gives.
    devices: Vec<(Session, Vec<Vec<i64>>)>,
    devices_failing: Vec<Session>,
}

/// A thread that calls.
struct Caller {
    random: Random,
    input: AlignedBytes,
    output: AlignedBytes,
    /// Thread that soon cancels each value it is sent.
    cancels: SyncSender<Cancel>,
}

/// Runs, time and cancellations in time of each kind.
type Tally = [(u64, Duration, u64); KINDS.len()];

fn model(source: &str) -> Model {
    Model::from_program(text::parse(source).unwrap_or_else(|error| panic!("{error}\n{source}")))
}

/// Nodes that are worth a hand-over each, and one that adds them up: for `x` it gives [`of_tasks`].
fn tasks_model(spins: u32, fails: Option<i64>) -> Model {
    let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%x: i64[4]) {\n");
    for k in 1..=WIDTH {
        let fails = u8::from(fails == Some(k));
        writeln!(
            source,
            "%v{k} = test.Node@1(%x) as \"node {k}\" {{fails = {fails}, flops = 200000, n = 4, plus = {k}, spins = {spins}}}"
        )
        .unwrap();
    }
    let all: Vec<String> = (1..=WIDTH).map(|k| format!("%v{k}")).collect();
    writeln!(source, "%y = test.Node@1({}) {{n = 4, plus = 100}}\nreturn %y\n}}", all.join(", ")).unwrap();
    model(&source)
}

fn of_tasks(x: i64) -> i64 {
    WIDTH * x + WIDTH * (WIDTH + 1) / 2 + 100
}

/// There and back, twice: an inline device, one with a memory of its own, one in the host's.
fn devices_graph(form: usize, fails: bool) -> Graph {
    let at = |device: usize| form * N_DEVICES + device;
    let mut graph = Graph::new();
    let first = graph.node(&[0], 4, at(INLINE[0]));
    let own = graph.node(&[first, 0], 4, at(OWN[0]));
    if let Some(Item::Node { op: Op::Node { fails: told, .. }, .. }) = graph.main.items.last_mut() {
        *told = fails;
    }
    let shared = graph.node(&[own, first], 4, at(SHARED[0]));
    let beside = graph.node(&[first], 4, at(INLINE[0]));
    let last = graph.node(&[shared, own, beside], 4, at(INLINE[0]));
    graph.returns(&[last])
}

/// The one result is four times this number, or there is none because the run was cancelled, which it says.
#[track_caller]
fn right_or_cancelled(outcome: Result<Vec<Tensor>>, expected: i64) -> bool {
    match outcome {
        Ok(results) => {
            assert_eq!(results[0].elements::<i64>(), Some(&[expected; 4][..]));
            false
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
            true
        }
    }
}

#[track_caller]
fn told_to_fail(error: &Error) {
    assert!(error.text().contains("told to fail"), "{error}");
}

impl Bench {
    fn new(runtime: &Runtime, world: Arc<World>) -> Result<Self> {
        let devices = runtime.devices();
        let device = devices.iter().find(|device| device.name() == "adder:0").unwrap();
        let each = || PlanOptions { tasks: Policy::Each, ..PlanOptions::default() };
        let of_tasks = |model: &Model| Session::with_options(model, device, each());
        let runs_max = NonZeroUsize::new(BACKGROUND_MAX);
        let bounded = SessionOptions { plans: each(), runs_max, ..SessionOptions::default() };
        let placed = |form: usize, fails: bool| {
            let graph = devices_graph(form, fails);
            // Those of the plugin come first.
            let pins = graph.pins().into_iter().map(|(node, device)| (node, Arc::clone(&devices[device])));
            let options = SessionOptions { plans: each(), pins: pins.collect(), ..SessionOptions::default() };
            Session::with_options(&graph.model(), &devices[form * N_DEVICES], options)
        };
        let results = |form: usize| devices_graph(form, false).interpret().unwrap();
        Ok(Self {
            straight: Session::new(
                &model(
                    "devbay-program 1\n\nprogram \"p\"(%x: i64[4]) {\n%y = test.Node@1(%x) {n = 4, plus = 7}\nreturn %y\n}\n",
                ),
                device,
            )?,
            tasks: of_tasks(&tasks_model(20, None))?,
            background: Session::with_options(&tasks_model(20, None), device, bounded)?,
            slow: of_tasks(&tasks_model(300, None))?,
            failing: of_tasks(&tasks_model(20, Some(3)))?,
            devices: (0..FORMS.len())
                .map(|form| Ok((placed(form, false)?, results(form))))
                .collect::<Result<_>>()?,
            devices_failing: (0..FORMS.len()).map(|form| placed(form, true)).collect::<Result<_>>()?,
            world,
        })
    }

    /// Runs each session once, and gives the memory that devices then hold: a frame for each that is kept.
    fn frames(&self, devices: &[Arc<Device>]) -> u64 {
        let (four, three) = (input(1), Tensor::from_elements(&[3], &INPUT).unwrap());
        // The failing ones are checked where they are many.
        for session in [&self.straight, &self.tasks, &self.background, &self.slow, &self.failing] {
            let _ = session.run(&[("x", &four)]);
        }
        for session in self.devices.iter().map(|(session, _)| session).chain(&self.devices_failing) {
            let _ = session.run(&[("v0", &three)]);
        }
        in_use(devices)
    }

    /// So many runs from all callers, in a mixture that the seed decides. Nothing is in flight afterwards.
    fn run(&self, n_runs: u64, seed: u64) -> Tally {
        self.world.begin(Mode::Free, None);
        let (cancels, inbox) = sync_channel(1);
        let mut tally = Tally::default();
        std::thread::scope(|scope| {
            scope.spawn(move || cancel_soon(&inbox));
            let spawn = |i: u64| {
                let caller = Caller {
                    random: Random(seed + i),
                    input: AlignedBytes::zeroed(32).unwrap(),
                    output: AlignedBytes::zeroed(32).unwrap(),
                    cancels: cancels.clone(),
                };
                scope.spawn(move || caller.run(self, n_runs / CALLERS))
            };
            let callers: Vec<_> = (0..CALLERS).map(spawn).collect();
            drop(cancels);
            for caller in callers {
                let one = caller.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                for (sum, (n_runs, time, in_time)) in tally.iter_mut().zip(one) {
                    *sum = (sum.0 + n_runs, sum.1 + time, sum.2 + in_time);
                }
            }
        });
        // It starts after all whose handles were dropped, on the one thread that runs them.
        let last = RunOptions { priority: Priority::Low, on_full: OnFull::Wait, ..RunOptions::default() };
        assert!(!right_or_cancelled(self.start(1, &last).wait(), of_tasks(1)));
        let complaints = self.world.end();
        assert!(complaints.is_empty(), "{complaints:#?}");
        self.world.between();
        tally
    }

    fn start(&self, x: i64, options: &RunOptions) -> devbay_host::Run {
        self.background.run_async(&[("x", &input(x))], options).unwrap()
    }

    fn straight(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        assert_eq!(caller.run_into(&self.straight, x, &RunOptions::default()).ok(), Some([x + 7; 4]));
        false
    }

    fn tasks(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        assert_eq!(caller.run_into(&self.tasks, x, &RunOptions::default()).ok(), Some([of_tasks(x); 4]));
        false
    }

    fn background(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        let waits = RunOptions { on_full: OnFull::Wait, ..RunOptions::default() };
        assert!(!right_or_cancelled(self.start(x, &waits).wait(), of_tasks(x)));
        false
    }

    fn dropped(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        let waits = RunOptions { on_full: OnFull::Wait, ..RunOptions::default() };
        let run = self.start(x, &waits);
        // Some are cancelled as well.
        if caller.random.chance(4) {
            run.cancel();
        }
        false
    }

    fn cancelled_before(&self, caller: &mut Caller) -> bool {
        let cancel = Cancel::new();
        cancel.cancel();
        let x = caller.number();
        let options = RunOptions { cancel: Some(cancel), on_full: OnFull::Wait, ..RunOptions::default() };
        let outcome = match caller.random.below(3) {
            0 => caller.run_into(&self.straight, x, &options).err(),
            1 => caller.run_into(&self.tasks, x, &options).err(),
            _ => self.tasks.run_async(&[("x", &input(x))], &options).unwrap().wait().err(),
        };
        assert_eq!(outcome.map(|error| error.kind()), Some(ErrorKind::Cancelled));
        true
    }

    fn cancelled_during(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        if caller.random.chance(2) {
            let cancel = Cancel::new();
            caller.cancels.send(cancel.clone()).unwrap();
            let options = RunOptions { cancel: Some(cancel), ..RunOptions::default() };
            return right_or_cancelled(self.slow.run_with(&[("x", &input(x))], &options), of_tasks(x));
        }
        let run = self.slow.run_async(&[("x", &input(x))], &RunOptions::default()).unwrap();
        spin_for(caller.random.below(60));
        run.cancel();
        right_or_cancelled(run.wait(), of_tasks(x))
    }

    fn failing(&self, caller: &mut Caller) -> bool {
        let x = caller.number();
        let error = if caller.random.chance(2) {
            caller.run_into(&self.failing, x, &RunOptions::default()).unwrap_err()
        } else {
            self.failing.run_async(&[("x", &input(x))], &RunOptions::default()).unwrap().wait().unwrap_err()
        };
        told_to_fail(&error);
        assert_eq!(error.place().node, "node 3 (test.Node@1)");
        false
    }

    fn devices(&self, caller: &mut Caller) -> bool {
        let (session, expected) = &self.devices[caller.random.below(self.devices.len())];
        let x = Tensor::from_elements(&[3], &INPUT).unwrap();
        let results = if caller.random.chance(2) {
            session.run(&[("v0", &x)])
        } else {
            session.run_async(&[("v0", &x)], &RunOptions::default()).unwrap().wait()
        };
        let results = results.unwrap();
        assert!(results.iter().map(|result| result.elements::<i64>().unwrap()).eq(expected));
        false
    }

    fn devices_failing(&self, caller: &mut Caller) -> bool {
        let session = &self.devices_failing[caller.random.below(self.devices_failing.len())];
        let x = Tensor::from_elements(&[3], &INPUT).unwrap();
        told_to_fail(&session.run(&[("v0", &x)]).unwrap_err());
        false
    }
}

impl Caller {
    fn run(mut self, bench: &Bench, n_runs: u64) -> Tally {
        let mut tally = Tally::default();
        for _ in 0..n_runs {
            let mut draw = self.random.below(1000);
            let mut kind = 0;
            while draw >= KINDS[kind].1 {
                draw -= KINDS[kind].1;
                kind += 1;
            }
            let begin = Instant::now();
            let in_time = KINDS[kind].2(bench, &mut self);
            let sum = &mut tally[kind];
            *sum = (sum.0 + 1, sum.1 + begin.elapsed(), sum.2 + u64::from(in_time));
        }
        tally
    }

    fn number(&mut self) -> i64 {
        self.random.below(1_000_000) as i64
    }

    /// A run on four times this number, into memory of the caller's.
    fn run_into(&mut self, session: &Session, x: i64, options: &RunOptions) -> Result<[i64; 4]> {
        bytemuck::cast_slice_mut(self.input.as_mut_slice()).fill(x);
        let input = InputView::new(I64, &[4], self.input.as_mut_slice())?;
        // The output of an earlier run is not this one's result.
        self.output.as_mut_slice().fill(0xA7);
        session.run_into(&[input], &mut [self.output.as_mut_slice()], options)?;
        Ok(*bytemuck::from_bytes(self.output.as_mut_slice()))
    }
}

fn input(x: i64) -> Tensor {
    Tensor::from_elements(&[4], &[x; 4]).unwrap()
}

fn spin_for(micros: usize) {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_micros(micros as u64) {
        std::hint::spin_loop();
    }
}

/// Cancels what it is given after a random time, most of them while they run.
fn cancel_soon(inbox: &Receiver<Cancel>) {
    let mut random = Random(1);
    for cancel in inbox {
        spin_for(random.below(60));
        cancel.cancel();
    }
}

/// The resident set, in bytes; None where the system does not say.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

fn in_use(devices: &[Arc<Device>]) -> u64 {
    devices.iter().map(|device| device.bytes_in_use().0).sum()
}

fn report(tally: &Tally) {
    for ((name, _, _), (n_runs, time, in_time)) in KINDS.iter().zip(tally) {
        let micros = time.as_secs_f64() * 1e6 / (*n_runs).max(1) as f64;
        let cancelled = if *in_time > 0 { format!(", {in_time} cancelled in time") } else { String::new() };
        eprintln!("{n_runs:>10} runs, {micros:>8.1} us each  {name}{cancelled}");
    }
}

#[test]
fn runs_leave_nothing_behind() {
    assert_eq!(KINDS.iter().map(|kind| kind.1).sum::<usize>(), 1000);
    let n_runs =
        std::env::var("DEVBAY_SOAK").map_or(RUNS, |text| text.parse().expect("DEVBAY_SOAK is a number"));
    let world = World::new();
    let linked = FORMS.iter().map(|form| form.3).chain([adder::devbay_entry::PLUGIN]);
    let plugin_options = FORMS.iter().map(|form| (form.0.to_owned(), "world".to_owned(), world.option()));
    let runtime = Runtime::builder().threads(2).link_all(linked).options(plugin_options).build();
    let runtime = runtime.unwrap();
    let devices = runtime.devices();
    let bench = Bench::new(&runtime, Arc::clone(&world)).unwrap();
    let frames = bench.frames(&devices);
    assert!(frames > 0, "devices hold nothing that could be lost");
    world.free_running(2, 1, || {
        let begin = Instant::now();
        bench.run(n_runs / WARM_UP, 1000);
        let (resident_first, in_use_first) = (resident(), in_use(&devices));
        let tally = bench.run(n_runs - n_runs / WARM_UP, 2000);
        let (resident_last, in_use_last) = (resident(), in_use(&devices));
        report(&tally);
        eprintln!("{n_runs} runs, the warm-up's included, in {:.1} s", begin.elapsed().as_secs_f64());
        eprintln!(
            "in use on devices: {frames} bytes after one run of each session, {in_use_first} after the warm-up, \
             {in_use_last} at the end"
        );
        match resident_first.zip(resident_last) {
            None => eprintln!("the system does not say how much memory the process has: not compared"),
            Some((first, last)) => {
                eprintln!("resident: {} KiB after the warm-up, {} KiB at the end", first >> 10, last >> 10);
                assert!(last <= first + GROWTH_MAX, "it grew by {} KiB", (last - first) >> 10);
            }
        }
        // A session keeps as many frames as its runs had at once, which is luck up to the number of callers; those of
        // runs that failed on an asynchronous device are not kept.
        assert!(in_use_first.max(in_use_last) <= CALLERS * frames, "devices hold more than could run at once");
    });
    drop(bench);
    assert_eq!(in_use(&devices), 0, "held for sessions that are gone");
}
