//! Every order in which devices can complete: small programs on devices that the test steps by hand.
//!
//! A schedule is a list of choices: the stream that executes its next command. All of them are tried, depth first: a
//! session is run once for each, and gives the interpreter's results. Launches, copies and signals are choices. Waits
//! are not, because the end of one shows only in later commands. In programs with many streams a signal goes with the
//! command before it: that leaves out orders in which signals overtake each other, but no order of the work.
//!
//! Where the host stands is known without asking it: it enqueues what it can, then sleeps. After the same steps it has
//! always enqueued the same commands, so how many they are is found out once, by waiting until no more come, and
//! waited for from then on.

use crate::queued::program::{Graph, INPUT, Op};
use crate::queued::{FORMS, Fault, INLINE, Mode, N_DEVICES, OWN, SHARED, When, World};
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::layers::validation::Report;
use devbay_host::internals::random::Random;
use devbay_host::{
    Cancel, Error, ErrorKind, PlanOptions, Result, RunOptions, Runtime, Session, SessionOptions, Tensor,
};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time without a command after which the host counts as asleep.
const QUIET: Duration = Duration::from_millis(3);

/// A run that does nothing for so long hangs.
const HANG: Duration = Duration::from_secs(20);

/// More schedules of one program are not tried; that it would take more fails the test.
const SCHEDULES_MAX: usize = 4000;

/// A form's runtime: one thread, its devices, a world.
struct Bench {
    world: Arc<World>,
    runtime: Runtime,
    form: &'static str,
    /// Findings of the layer, if there is one.
    violations: Report,
}

impl Bench {
    fn new(form: usize) -> Self {
        Self::behind(form, &[])
    }

    /// A bench whose plugin stands behind layers.
    fn behind(form: usize, layers: &[&str]) -> Self {
        let (name, _, _, entry) = FORMS[form];
        let world = World::new();
        let violations = Report::default();
        let options = Runtime::builder()
            .threads(1)
            .link(entry)
            .option(name, "world", world.option())
            .layers(layers.iter().copied())
            .violations(violations.clone());
        let runtime = options.build().unwrap();
        assert_eq!(runtime.devices().len(), N_DEVICES, "{name}: {:?}", runtime.report());
        Self { world, runtime, form: name, violations }
    }

    fn session(&self, graph: &Graph, tasks: Policy) -> Session {
        let devices = self.runtime.devices();
        let pins = graph.pins().into_iter().map(|(node, device)| (node, Arc::clone(&devices[device])));
        let options = SessionOptions {
            plans: PlanOptions { tasks, ..PlanOptions::default() },
            pins: pins.collect(),
            ..SessionOptions::default()
        };
        Session::with_options(&graph.model(), &devices[0], options).unwrap()
    }

    /// Runs a session on a thread of its own while `drive` steps the world, until the run has ended.
    fn run(
        &self,
        session: &Session,
        fault: Option<Fault>,
        cancel: Option<&Cancel>,
        drive: impl FnOnce(&dyn Fn() -> bool),
    ) -> Result<Vec<Vec<i64>>> {
        let ended = AtomicBool::new(false);
        self.world.begin(Mode::Stepped, fault);
        let outcome = std::thread::scope(|scope| {
            let running = scope.spawn(|| {
                let outcome = run(session, cancel);
                ended.store(true, Ordering::Release);
                outcome
            });
            drive(&|| ended.load(Ordering::Acquire));
            running.join().unwrap()
        });
        let complaints = self.world.end();
        assert!(complaints.is_empty(), "{}: {complaints:#?}", self.form);
        self.world.between();
        outcome
    }

    /// Runs with steps in any order until the end; `before_step` is told how many there were.
    fn run_somehow(
        &self,
        session: &Session,
        fault: Option<Fault>,
        cancel: Option<&Cancel>,
        random: &mut Random,
        mut before_step: impl FnMut(usize),
    ) -> Result<Vec<Vec<i64>>> {
        self.run(session, fault, cancel, |ended| {
            let mut n_steps = 0;
            let mut last = Instant::now();
            while !ended() {
                let ready = self.world.ready();
                if ready.is_empty() {
                    let n = self.world.n_enqueued() + 1;
                    self.world.wait_enqueued(n, Duration::from_millis(1), ended);
                    give_up_after(last, self, "no command comes");
                    continue;
                }
                last = Instant::now();
                before_step(n_steps);
                self.world.step(ready[random.below(ready.len())], random.chance(2));
                n_steps += 1;
            }
        })
    }
}

fn run(session: &Session, cancel: Option<&Cancel>) -> Result<Vec<Vec<i64>>> {
    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
    let options = RunOptions { cancel: cancel.cloned(), ..RunOptions::default() };
    let results = session.run_with(&[("v0", &x)], &options)?;
    Ok(results.iter().map(|tensor| tensor.elements::<i64>().unwrap().to_vec()).collect())
}

/// Ends the process if a run hangs: its thread could not be joined.
fn give_up_after(last: Instant, bench: &Bench, what: &str) {
    if last.elapsed() > HANG {
        eprintln!("{}: the run hangs: {what}; {:#?}", bench.form, bench.world.end());
        std::process::abort();
    }
}

/// One choice of a schedule: the streams that could step, and which of them does.
struct Choice {
    ready: Vec<usize>,
    taken: usize,
}

/// Number of enqueued commands, by the number of steps that each stream has executed.
type Enqueued = HashMap<Vec<usize>, usize>;

/// Time that a stream that could step before may go without a step while others have one.
const OTHER_STREAM: Duration = Duration::from_secs(5);

/// Tries all schedules of a program; gives how many there are. None if the host had been so slow when a choice was first
/// seen that its commands went to another stream since: then there is no such schedule.
fn explore(
    bench: &Bench,
    graph: &Graph,
    policy: Policy,
    signals: bool,
    enqueued: &mut Enqueued,
) -> Option<usize> {
    let session = bench.session(graph, policy);
    let expected = graph.interpret();
    let mut schedule: Vec<Choice> = Vec::new();
    for n in 1..=SCHEDULES_MAX {
        let mut at = 0;
        let mut is_other = false;
        let found = bench.run(&session, None, None, |ended| {
            let mut steps = Vec::new();
            let mut last = Instant::now();
            loop {
                if is_other {
                    // To the end, in any order: results are looked at all the same.
                    match bench.world.ready().first() {
                        Some(&place) => {
                            bench.world.step(place, signals);
                            last = Instant::now();
                        }
                        None if ended() => return,
                        None => {
                            bench.world.wait_enqueued(bench.world.n_enqueued() + 1, QUIET, ended);
                            give_up_after(last, bench, "no stream can step");
                        }
                    }
                    continue;
                }
                match enqueued.get(&steps) {
                    Some(&known) => bench.world.wait_enqueued(known, HANG, ended),
                    None => wait_until_quiet(bench, ended),
                }
                let so_many = bench.world.n_enqueued();
                let known = enqueued.entry(steps.clone()).or_default();
                *known = so_many.max(*known);
                let ready = bench.world.ready();
                if ready.is_empty() {
                    if ended() {
                        return;
                    }
                    bench.world.wait_enqueued(so_many + 1, QUIET, ended);
                    give_up_after(last, bench, "no stream can step");
                    continue;
                }
                last = Instant::now();
                if at == schedule.len() {
                    schedule.push(Choice { ready: ready.clone(), taken: 0 });
                }
                // The host may have been slow when this place was first seen.
                let choice = &mut schedule[at];
                let more = ready.iter().filter(|place| !choice.ready.contains(place)).copied();
                let more: Vec<usize> = more.collect();
                choice.ready.extend(more);
                let place = choice.ready[choice.taken];
                while !is_other && !bench.world.step(place, signals) {
                    std::thread::yield_now();
                    is_other = last.elapsed() > OTHER_STREAM && !bench.world.ready().is_empty();
                    give_up_after(last, bench, "a stream that could step before cannot");
                }
                if is_other {
                    continue;
                }
                steps.resize(steps.len().max(place + 1), 0);
                steps[place] += 1;
                at += 1;
            }
        });
        let taken: Vec<usize> = schedule.iter().map(|choice| choice.ready[choice.taken]).collect();
        assert!(
            is_other || at == schedule.len(),
            "{}, {policy:?}: a schedule ends early: {taken:?}",
            bench.form
        );
        match found {
            Ok(found) => assert_eq!(Some(found), expected, "{}, {policy:?}: {taken:?}", bench.form),
            Err(error) => panic!("{}, {policy:?}, {taken:?}: {error}", bench.form),
        }
        if is_other {
            return None;
        }
        while schedule.last().is_some_and(|choice| choice.taken + 1 == choice.ready.len()) {
            schedule.pop();
        }
        match schedule.last_mut() {
            Some(choice) => choice.taken += 1,
            None => return Some(n),
        }
    }
    panic!("{}, {policy:?}: more than {SCHEDULES_MAX} schedules", bench.form);
}

fn wait_until_quiet(bench: &Bench, ended: &dyn Fn() -> bool) {
    loop {
        let n = bench.world.n_enqueued();
        bench.world.wait_enqueued(n + 1, QUIET, ended);
        if bench.world.n_enqueued() == n {
            return;
        }
    }
}

/// Tries all schedules of a program in every form.
fn explore_all(name: &str, graph: &Graph, policies: &[Policy], signals: bool) {
    for &policy in policies {
        for waits in [true, false] {
            let begin = Instant::now();
            let forms = (0..FORMS.len()).filter(|&form| FORMS[form].1 == waits);
            let forms: Vec<usize> = forms.collect();
            // A poll enqueues the same as a callback. If a host was slower than it was believed to be, there were more
            // orders than were seen: the next try knows them and is exact.
            let mut enqueued = Enqueued::new();
            let mut explore_forms = || {
                let counts: Vec<usize> = forms
                    .iter()
                    .map(|&form| explore(&Bench::new(form), graph, policy, signals, &mut enqueued))
                    .collect::<Option<_>>()?;
                let is_sure = counts.iter().all(|&n| n == counts[0]);
                is_sure.then_some(counts[0])
            };
            let n =
                (0..5).find_map(|_| explore_forms()).expect("the forms agree on the orders that there are");
            let seconds = begin.elapsed().as_secs_f64();
            eprintln!(
                "{name}, {policy:?}, waits {waits}: {n} schedules in each of two forms, {seconds:.1} s"
            );
        }
    }
}

const BOTH: &[Policy] = &[Policy::Auto, Policy::Each];

/// Two devices work side by side, a third joins.
fn fork_and_join() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, OWN[0]);
    let b = graph.node(&[0], 4, OWN[1]);
    let c = graph.node(&[a, b], 4, INLINE[0]);
    graph.returns(&[c])
}

/// A value goes back and forth.
fn ping_pong() -> Graph {
    let mut graph = Graph::new();
    let mut value = 0;
    for device in [OWN[0], OWN[1], OWN[0], SHARED[0], OWN[1]] {
        value = graph.node(&[value, 0], 4, device);
    }
    graph.returns(&[value])
}

/// A copy to a device goes on while the device computes.
fn upload_beside_compute() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, OWN[0]);
    let h = graph.node(&[0], 4, INLINE[0]);
    let b = graph.node(&[a], 4, OWN[0]);
    let c = graph.node(&[b, h], 4, OWN[0]);
    graph.returns(&[c])
}

/// A value is used on three devices.
fn one_value_for_three() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, INLINE[0]);
    let b = graph.node(&[a], 4, OWN[0]);
    let c = graph.node(&[a], 4, OWN[1]);
    let d = graph.node(&[a], 4, SHARED[0]);
    let e = graph.node(&[b, c, d], 4, INLINE[1]);
    graph.returns(&[e])
}

/// A value is a result, and goes on on its device and on another.
fn result_that_goes_on() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, OWN[0]);
    let b = graph.node(&[a], 4, SHARED[0]);
    let c = graph.node(&[a], 4, OWN[0]);
    graph.returns(&[a, b, c])
}

/// An input is a result, and empty values take part.
fn passed_on_and_empty() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 0, OWN[0]);
    let b = graph.node(&[a, 0], 4, SHARED[0]);
    let c = graph.node(&[a, b], 0, OWN[1]);
    let d = graph.node(&[c, b], 2, OWN[0]);
    graph.returns(&[0, a, d, c])
}

/// Values of one size on a line, which work in place, while others still read them.
fn in_place() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, SHARED[0]);
    let b = graph.node(&[a], 4, SHARED[0]);
    let c = graph.node(&[a], 4, SHARED[1]);
    let d = graph.node(&[b], 4, SHARED[0]);
    let e = graph.node(&[d, c], 4, SHARED[1]);
    graph.returns(&[e])
}

/// The same in a device's own memory, of which copies are made.
fn in_place_beside_a_copy() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, OWN[0]);
    let b = graph.node(&[a], 4, OWN[0]);
    let c = graph.node(&[a], 4, INLINE[0]);
    let d = graph.node(&[b], 4, OWN[0]);
    let e = graph.node(&[d, c], 4, OWN[0]);
    graph.returns(&[e])
}

/// Two chains cross from stream to stream, so that memory is used again by another stream than before.
fn memory_across_streams() -> Graph {
    let mut graph = Graph::new();
    let (mut p, mut q) = (0, 0);
    for i in 0..4 {
        (p, q) = (graph.node(&[p], 4, SHARED[i % 2]), graph.node(&[q], 5, SHARED[(i + 1) % 2]));
    }
    let joined = graph.node(&[p, q], 4, INLINE[0]);
    graph.returns(&[joined])
}

/// A device's memory is used again by what is copied there later.
fn memory_across_copies() -> Graph {
    let mut graph = Graph::new();
    let other = graph.node(&[0], 4, SHARED[0]);
    let mut value = 0;
    for device in [OWN[0], INLINE[0], OWN[0], INLINE[1], OWN[0], SHARED[0]] {
        value = graph.node(&[value], 4, device);
    }
    let joined = graph.node(&[value, other], 4, INLINE[0]);
    graph.returns(&[joined])
}

/// A branch on two devices, while another goes on: a device says which is taken, and both use what is outside.
fn branch(taken: bool) -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], if taken { 2 } else { 4 }, OWN[0]);
    let beside = graph.node(&[0], 4, OWN[1]);
    let condition = graph.ask(Op::Odd, a, OWN[0]);
    let c = graph.conditional(condition, 4, |graph, then| match then {
        true => graph.node(&[a, 0], 4, OWN[1]),
        false => {
            let x = graph.node(&[a], 4, SHARED[0]);
            graph.node(&[x, beside], 4, OWN[0])
        }
    });
    let d = graph.node(&[c], 4, OWN[0]);
    let e = graph.node(&[d, beside], 4, INLINE[0]);
    graph.returns(&[e])
}

/// A loop on two devices, whose values decide how often it runs.
fn looped() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, OWN[0]);
    let trips = graph.ask(Op::Trips, a, INLINE[0]);
    let carried = graph.looped(trips, None, &[(a, 4), (0, 3)], |graph, params| {
        let &[go_on, x, y] = params else {
            panic!("a condition and two values");
        };
        let p = graph.node(&[x, a], 4, OWN[0]);
        let q = graph.node(&[y], 3, OWN[1]);
        vec![go_on, p, q]
    });
    let joined = graph.node(&carried, 4, INLINE[0]);
    graph.returns(&[joined])
}

/// A branch in a loop: what it carries comes through unchanged, or from a device.
fn branch_in_a_loop() -> Graph {
    let mut graph = Graph::new();
    let a = graph.node(&[0], 4, INLINE[0]);
    let trips = graph.ask(Op::Trips, a, INLINE[0]);
    let carried = graph.looped(trips, None, &[(a, 4)], |graph, params| {
        let &[go_on, x] = params else {
            panic!("a condition and a value");
        };
        let odd = graph.ask(Op::Odd, x, OWN[0]);
        let next = graph.conditional(odd, 4, |graph, then| match then {
            true => graph.node(&[x], 4, OWN[0]),
            false => x,
        });
        let next = graph.node(&[next], 4, OWN[0]);
        vec![go_on, next]
    });
    graph.returns(&carried)
}

#[test]
fn fork_and_join_in_every_order() {
    explore_all("fork and join", &fork_and_join(), &[Policy::Auto], false);
}

#[test]
fn ping_pong_in_every_order() {
    explore_all("ping-pong", &ping_pong(), BOTH, false);
}

#[test]
fn uploads_beside_compute_in_every_order() {
    explore_all("upload beside compute", &upload_beside_compute(), BOTH, false);
}

#[test]
fn one_value_for_three_devices_in_every_order() {
    explore_all("one value for three", &one_value_for_three(), &[Policy::Auto], true);
}

#[test]
fn results_that_go_on_in_every_order() {
    explore_all("a result that goes on", &result_that_goes_on(), BOTH, false);
}

#[test]
fn inputs_that_are_results_and_empty_values_in_every_order() {
    explore_all("passed on and empty", &passed_on_and_empty(), BOTH, false);
}

#[test]
fn work_in_place_in_every_order() {
    explore_all("in place", &in_place(), BOTH, false);
    explore_all("in place beside a copy", &in_place_beside_a_copy(), BOTH, false);
}

#[test]
fn memory_that_is_used_again_in_every_order() {
    explore_all("memory across streams", &memory_across_streams(), &[Policy::Each], false);
    explore_all("memory across streams", &memory_across_streams(), &[Policy::Auto], true);
    explore_all("memory across copies", &memory_across_copies(), BOTH, false);
}

/// Checks that the regions of a program's control flow are tasks.
fn check_flow(graph: &Graph) {
    let bench = Bench::new(0);
    let session = bench.session(graph, Policy::Auto);
    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
    let plan = session.plan_for(&[("v0", &x)]).unwrap();
    let section = &plan.single().expect("one section").section;
    assert!(!section.graph.controls.is_empty(), "control flow is not in the graph");
}

#[test]
fn branches_in_every_order() {
    for taken in [true, false] {
        check_flow(&branch(taken));
        explore_all(&format!("a branch, {taken}"), &branch(taken), BOTH, true);
    }
}

#[test]
fn loops_in_every_order() {
    check_flow(&looped());
    explore_all("a loop", &looped(), BOTH, true);
    check_flow(&branch_in_a_loop());
    explore_all("a branch in a loop", &branch_in_a_loop(), BOTH, true);
}

fn programs() -> Vec<(&'static str, Graph)> {
    vec![
        ("a branch", branch(true)),
        ("a loop", looped()),
        ("a branch in a loop", branch_in_a_loop()),
        ("fork and join", fork_and_join()),
        ("ping-pong", ping_pong()),
        ("upload beside compute", upload_beside_compute()),
        ("one value for three", one_value_for_three()),
        ("a result that goes on", result_that_goes_on()),
        ("in place", in_place()),
        ("memory across copies", memory_across_copies()),
    ]
}

/// Checks that an error leads to its fault.
fn check_blame(error: &Error, bench: &Bench, fault: Fault, at: &str) {
    let (device, command) = bench.world.met().unwrap_or_default();
    let place = error.place();
    if fault.lost {
        assert_eq!(error.kind(), ErrorKind::DeviceLost, "{at}: {error}");
        assert_eq!(place.device, device, "{at}: {error}");
        return;
    }
    // A stream that waits for the one that failed may be heard first; it says why it ended.
    let words = if fault.when == When::Enqueued { "told to fail at once" } else { "told to fail later" };
    assert!(error.text().contains(words), "{at}: {error}");
    assert_eq!(place.device, device, "{at}: {error}");
    if fault.when == When::Enqueued {
        assert!(!place.node.is_empty(), "{at}: no node for a {command}: {error}");
    }
}

/// A fault at each command of each program, in each form.
fn check_faults(when: When, lost: bool, is_quiet: bool) {
    let (mut n_faults, begin) = (0, Instant::now());
    let mut random = Random(1);
    // Of a device that is lost nothing is asked but its end (B13): the layer sees every call.
    let layers: &[&str] = if lost { &["validation"] } else { &[] };
    for form in 0..FORMS.len() {
        let mut bench = Bench::behind(form, layers);
        for (name, graph) in programs() {
            for policy in [Policy::Auto, Policy::Each] {
                let expected = graph.interpret();
                let mut session = bench.session(&graph, policy);
                for nth in 0.. {
                    if lost && nth > 0 {
                        // A lost device stays lost.
                        drop(session);
                        bench = Bench::behind(form, layers);
                        session = bench.session(&graph, policy);
                    }
                    bench.world.be_quiet(is_quiet);
                    let fault = Fault { nth, when, lost };
                    let at = format!("{}, {name}, {policy:?}, {fault:?}", bench.form);
                    let outcome = bench.run_somehow(&session, Some(fault), None, &mut random, |_| {});
                    if bench.world.met().is_none() {
                        assert_eq!(outcome.ok(), expected, "{at}: no command was met");
                        break;
                    }
                    n_faults += 1;
                    match outcome {
                        Ok(_) => panic!("{at}: the run ended well, though {:?} failed", bench.world.met()),
                        Err(error) => check_blame(&error, &bench, fault, &at),
                    }
                    let again = bench.run_somehow(&session, None, None, &mut random, |_| {});
                    match again {
                        Ok(found) if !lost => assert_eq!(Some(found), expected, "{at}: the next run"),
                        Err(error) if lost => {
                            assert_eq!(error.kind(), ErrorKind::DeviceLost, "{at}: the next run: {error}");
                        }
                        other => panic!("{at}: the next run: {other:?}"),
                    }
                    assert!(bench.violations.is_clean(), "{at}: {:#?}", bench.violations.violations());
                }
            }
        }
    }
    eprintln!("{when:?}, lost {lost}: {n_faults} faults, {:.1} s", begin.elapsed().as_secs_f64());
    assert!(n_faults > 0);
}

#[test]
fn a_call_that_fails_at_any_command_ends_the_run() {
    check_faults(When::Enqueued, false, false);
}

#[test]
fn a_command_that_fails_later_ends_the_run() {
    check_faults(When::Executed, false, false);
}

#[test]
fn a_device_lost_in_any_call_ends_the_run() {
    check_faults(When::Enqueued, true, false);
}

#[test]
fn a_device_lost_at_any_command_ends_the_run() {
    check_faults(When::Executed, true, false);
}

#[test]
fn a_lost_device_whose_other_streams_stand_still_ends_the_run() {
    check_faults(When::Executed, true, true);
}

#[test]
fn a_run_is_cancelled_before_any_step() {
    let (mut n_cancelled, mut n_late) = (0, 0);
    let mut random = Random(2);
    for form in 0..FORMS.len() {
        let bench = Bench::new(form);
        for (name, graph) in programs() {
            for policy in [Policy::Auto, Policy::Each] {
                let expected = graph.interpret();
                let session = bench.session(&graph, policy);
                for nth in 0.. {
                    let at = format!("{}, {name}, {policy:?}, before step {nth}", bench.form);
                    let cancel = Cancel::new();
                    let mut is_met = false;
                    let outcome = bench.run_somehow(&session, None, Some(&cancel), &mut random, |n_steps| {
                        if n_steps == nth {
                            cancel.cancel();
                            is_met = true;
                        }
                    });
                    match outcome {
                        Ok(found) => {
                            assert_eq!(Some(found), expected, "{at}");
                            n_late += 1;
                        }
                        Err(error) => {
                            assert!(is_met, "{at}: {error}");
                            assert_eq!(error.kind(), ErrorKind::Cancelled, "{at}: {error}");
                            n_cancelled += 1;
                        }
                    }
                    let again = bench.run_somehow(&session, None, None, &mut random, |_| {});
                    assert_eq!(again.ok(), expected, "{at}: the next run");
                    if !is_met {
                        break;
                    }
                }
            }
        }
    }
    eprintln!("{n_cancelled} runs cancelled, {n_late} had all they needed");
    assert!(n_cancelled > 0);
}
