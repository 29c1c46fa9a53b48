//! Random programs over devices of every kind, against an interpreter: inline ones, asynchronous ones in the host's
//! memory and in their own, with and without stream waits, calling back or polled; with If and Loop, with kernels that
//! fail, commands that fail, and cancellations from another thread.
//!
//! The devices' queues run freely, in random order with random pauses. `DEVBAY_GRAPHS` says how many programs there
//! are in all, `DEVBAY_SEED` where they begin (docs/proofs.md).

use crate::queued::program::{Graph, INPUT, Op};
use crate::queued::{FORMS, Fault, INLINE, Mode, N_DEVICES, OWN, SHARED, When, World};
use devbay_host::internals::core::plan::cost::Rates;
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::random::Random;
use devbay_host::{
    Cancel, Error, ErrorKind, PlanOptions, Result, RunOptions, Runtime, Session, SessionOptions, Tensor,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Programs of an ordinary test run, over all tests here.
const GRAPHS: u64 = 300;

/// Threads that execute commands.
const STEPPERS: usize = 2;

struct Bench {
    world: Arc<World>,
    runtime: Runtime,
}

impl Bench {
    /// All forms in one runtime.
    fn new(threads: usize) -> Self {
        let world = World::new();
        let plugin_options = FORMS.iter().map(|form| (form.0.to_owned(), "world".to_owned(), world.option()));
        let options = Runtime::builder()
            .threads(threads)
            .link_all(FORMS.iter().map(|form| form.3))
            .options(plugin_options);
        let runtime = options.build().unwrap();
        assert_eq!(runtime.devices().len(), FORMS.len() * N_DEVICES, "{:?}", runtime.report());
        Self { world, runtime }
    }

    /// Up to four devices by position, the first of them inline or, sometimes, any.
    fn devices(&self, random: &mut Random) -> Vec<usize> {
        let kinds = [INLINE, SHARED, OWN, OWN];
        let of_kind = |random: &mut Random, kind: [usize; 2]| {
            random.below(FORMS.len()) * N_DEVICES + kind[random.below(2)]
        };
        let first = if random.chance(8) { kinds[random.below(4)] } else { INLINE };
        let mut devices = vec![of_kind(random, first)];
        for _ in 0..1 + random.below(3) {
            let kind = kinds[random.below(4)];
            devices.push(of_kind(random, kind));
        }
        devices
    }

    fn session(&self, graph: &Graph, first: usize, tasks: Policy) -> Result<Session> {
        let devices = self.runtime.devices();
        let pins = graph.pins().into_iter().map(|(node, device)| (node, Arc::clone(&devices[device])));
        let options = SessionOptions {
            // Handing over costs next to nothing where each launch is a task, so that workers take part.
            plans: PlanOptions {
                tasks,
                rates: (tasks == Policy::Each).then(|| Rates { hand_over_ns: 1.0, ..Rates::default() }),
                ..PlanOptions::default()
            },
            pins: pins.collect(),
            ..SessionOptions::default()
        };
        Session::with_options(&graph.model(), &devices[first], options)
    }

    /// One run with free-running queues.
    fn run(&self, session: &Session, fault: Option<Fault>, cancel: Option<&Cancel>, at: &str) -> Outcome {
        self.world.begin(Mode::Free, fault);
        let outcome = run(session, cancel);
        let complaints = self.world.end();
        assert!(complaints.is_empty(), "{at}: {complaints:#?}");
        self.world.between();
        outcome
    }
}

type Outcome = Result<Vec<Vec<i64>>>;

fn run(session: &Session, cancel: Option<&Cancel>) -> Outcome {
    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
    let options = RunOptions { cancel: cancel.cloned(), ..RunOptions::default() };
    let results = session.run_with(&[("v0", &x)], &options)?;
    Ok(results.iter().map(|tensor| tensor.elements::<i64>().unwrap().to_vec()).collect())
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text}")))
}

/// Returns two flags for a session's plan: a section has several devices, some of them asynchronous; a section has
/// control flow whose regions are tasks.
fn kinds(session: &Session) -> (bool, bool) {
    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
    let plan = session.plan_for(&[("v0", &x)]).unwrap();
    let is_placed = plan.sections().any(|section| section.is_placed);
    (is_placed, plan.sections().any(|section| !section.graph.controls.is_empty()))
}

/// Results of a program in an undisturbed run.
struct Expected {
    /// None if a node fails.
    results: Option<Vec<Vec<i64>>>,
    failing: Vec<String>,
}

impl Expected {
    fn check(&self, outcome: &Outcome, at: &str) {
        match (outcome, &self.results) {
            (Ok(found), Some(expected)) => assert_eq!(found, expected, "{at}"),
            (Ok(_), None) => panic!("{at}: a node that fails did not end the run"),
            (Err(error), None) => {
                assert!(error.text().contains("told to fail"), "{at}: {error}");
                let node = &error.place().node;
                // A launch that fails later is attributed to its device alone.
                let is_blamed = self.failing.iter().any(|name| node.contains(name.as_str()));
                assert!(is_blamed || !error.place().device.is_empty(), "{at}: blames {node:?}");
            }
            (Err(error), Some(_)) => panic!("{at}: {error}"),
        }
    }
}

/// A session is cancelled at a random time; gives whether that came in time.
fn run_cancelled(
    bench: &Bench,
    session: &Session,
    expected: &Expected,
    random: &mut Random,
    at: &str,
) -> bool {
    let cancel = Cancel::new();
    let pause = Duration::from_micros(random.below(300) as u64);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let begin = Instant::now();
            while begin.elapsed() < pause {
                std::hint::spin_loop();
            }
            cancel.cancel();
        });
        bench.run(session, None, Some(&cancel), at)
    });
    match &outcome {
        Err(error) if error.kind() == ErrorKind::Cancelled => true,
        outcome => {
            expected.check(outcome, at);
            false
        }
    }
}

/// A command at random fails; gives whether there was one.
fn run_with_fault(
    bench: &Bench,
    session: &Session,
    expected: &Expected,
    random: &mut Random,
    at: &str,
) -> bool {
    let when = if random.chance(2) { When::Enqueued } else { When::Executed };
    let fault = Fault { nth: random.below(20), when, lost: false };
    let at = format!("{at}, {fault:?}");
    let outcome = bench.run(session, Some(fault), None, &at);
    if bench.world.met().is_none() {
        expected.check(&outcome, &at);
        return false;
    }
    // If a kernel of the same stream fails meanwhile, its words may stand for the command's, which then has none.
    let told = |error: &Error| expected.results.is_none() || error.text().contains("told to fail");
    assert!(outcome.as_ref().err().is_some_and(told), "{at}: {:?} gives {outcome:?}", bench.world.met());
    true
}

/// Random programs by seed, in every division.
fn check(threads: usize, share: u64) {
    let begin = Instant::now();
    let n_graphs = (number("DEVBAY_GRAPHS", GRAPHS) * share).div_ceil(4);
    let first = number("DEVBAY_SEED", 0) + threads as u64 * 1_000_000_000;
    let [mut n_runs, mut n_placed, mut n_flows, mut n_cancelled, mut n_faults, mut n_failing] = [0u64; 6];
    let mut bench = Bench::new(threads);
    for seed in first..first + n_graphs {
        if seed % 512 == 511 {
            // Queues of other numbers of threads' fresh workers, and memory that grows with a world, begin anew.
            bench = Bench::new(threads);
        }
        let mut random = Random(seed);
        let devices = bench.devices(&mut random);
        let graph = Graph::random(&mut random, &devices, seed % 3 == 0);
        let expected = Expected { results: graph.interpret(), failing: graph.failing() };
        n_failing += u64::from(expected.results.is_none());
        bench.world.free_running(STEPPERS, seed, || {
            for tasks in [Policy::One, Policy::Each, Policy::Auto] {
                let at = format!("seed {seed}, {tasks:?}, {threads} threads, devices {devices:?}");
                let session =
                    bench.session(&graph, devices[0], tasks).unwrap_or_else(|error| panic!("{at}: {error}"));
                let (is_placed, has_flow) = kinds(&session);
                n_placed += u64::from(is_placed);
                n_flows += u64::from(has_flow);
                for _ in 0..2 {
                    expected.check(&bench.run(&session, None, None, &at), &at);
                }
                n_cancelled += u64::from(run_cancelled(&bench, &session, &expected, &mut random, &at));
                n_faults += u64::from(run_with_fault(&bench, &session, &expected, &mut random, &at));
                expected.check(&bench.run(&session, None, None, &at), &format!("{at}, at last"));
                n_runs += 5;
            }
        });
    }
    eprintln!(
        "{n_graphs} programs on {threads} threads, {n_failing} of which fail; {n_placed} of {} plans have asynchronous \
         devices beside others, {n_flows} regions that are tasks; {n_runs} runs, {n_cancelled} cancelled, {n_faults} with a command that failed, {:.1} s",
        3 * n_graphs,
        begin.elapsed().as_secs_f64()
    );
    assert!(n_graphs < 50 || n_placed > n_graphs, "few plans are what this test is about");
    assert!(n_graphs < 50 || 2 * n_flows > n_graphs, "few plans have regions that are tasks");
}

#[test]
fn random_programs_over_devices_on_one_thread() {
    check(1, 1);
}

#[test]
fn random_programs_over_devices_on_two_threads() {
    check(2, 2);
}

#[test]
fn random_programs_over_devices_on_five_threads() {
    check(5, 1);
}

/// An If or a Loop on devices of a form, so deep, that begins with a value of four numbers.
fn nest(graph: &mut Graph, depth: usize, x: usize, form: usize) -> usize {
    let device = |position: usize| form * N_DEVICES + position;
    match depth {
        0 => graph.node(&[x], 4, device(OWN[0])),
        1 | 3 => {
            let trips = graph.ask(Op::Trips, x, device(OWN[1]));
            let carried = graph.looped(trips, None, &[(x, 4)], |graph, params| {
                let y = nest(graph, depth - 1, params[1], form);
                vec![params[0], graph.node(&[y, params[1]], 4, device(SHARED[0]))]
            });
            carried[0]
        }
        _ => {
            let odd = graph.ask(Op::Odd, x, device(OWN[0]));
            graph.conditional(odd, 4, |graph, then| match then {
                true => nest(graph, depth - 1, x, form),
                false => graph.node(&[x], 4, device(INLINE[0])),
            })
        }
    }
}

#[test]
fn control_flow_is_nested_four_deep_over_devices() {
    let bench = Bench::new(2);
    bench.world.free_running(STEPPERS, 4, || {
        for form in 0..FORMS.len() {
            // The branches taken, and the trips of loops, depend on the number of the first node.
            for n in 1..=12 {
                let mut graph = Graph::new();
                let mut x = graph.node(&[0], n, form * N_DEVICES + INLINE[0]);
                x = graph.node(&[x], 4, form * N_DEVICES + OWN[0]);
                let y = nest(&mut graph, 4, x, form);
                let graph = graph.returns(&[y]);
                let expected = Expected { results: graph.interpret(), failing: Vec::new() };
                for tasks in [Policy::One, Policy::Each, Policy::Auto] {
                    let at = format!("form {form}, {n}, {tasks:?}");
                    let session = bench.session(&graph, form * N_DEVICES + INLINE[0], tasks).unwrap();
                    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
                    let plan = session.plan_for(&[("v0", &x)]).unwrap();
                    let section = &plan.single().expect("one section").section;
                    assert_eq!(section.graph.controls.len(), 4, "{at}");
                    for _ in 0..3 {
                        expected.check(&bench.run(&session, None, None, &at), &at);
                    }
                }
            }
        }
    });
}

#[test]
fn sessions_on_many_threads_share_devices() {
    let bench = Bench::new(3);
    let mut random = Random(77);
    let sessions: Vec<(Session, Expected)> = (0..6)
        .map(|_| {
            let devices = bench.devices(&mut random);
            let graph = Graph::random(&mut random, &devices, false);
            let expected = Expected { results: graph.interpret(), failing: Vec::new() };
            (bench.session(&graph, devices[0], Policy::Each).unwrap(), expected)
        })
        .collect();
    bench.world.free_running(STEPPERS, 77, || {
        bench.world.begin(Mode::Free, None);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        for (session, expected) in &sessions {
                            expected.check(&run(session, None), "many threads");
                        }
                    }
                });
            }
        });
        let complaints = bench.world.end();
        assert!(complaints.is_empty(), "{complaints:#?}");
        bench.world.between();
    });
}
