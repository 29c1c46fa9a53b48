//! Tasks against a plain interpreter: random programs, divided in every way, on one and several threads and devices.
//!
//! The plugin is `adder`, whose one kernel takes as long as it is told to, so that threads meet in many orders.

use devbay_host::internals::calibrate::calibrate;
use devbay_host::internals::core::plan::cost::Rates;
use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::BOOL;
use devbay_host::internals::random::Random;
use devbay_host::{
    Cancel, ErrorKind, Model, PlanOptions, Result, RunOptions, Runtime, Session, SessionOptions, Tensor,
};
use std::fmt::Write;
use std::sync::Arc;

struct Node {
    inputs: Vec<usize>,
    n: usize,
    plus: i64,
    spins: usize,
    flops: usize,
    fails: bool,
}

/// A program: value 0 is the input, value `i` the result of node `i - 1`.
struct Graph {
    nodes: Vec<Node>,
    outputs: Vec<usize>,
}

const INPUT: [i64; 3] = [1, 20, 300];

impl Graph {
    fn random(random: &mut Random, may_fail: bool) -> Self {
        let n_nodes = 1 + random.below(60);
        let reach = [2, 8, 64][random.below(3)];
        // Sizes that are alike let values share memory in place.
        let sizes: &[usize] = [&[4][..], &[1, 4, 50]][random.below(2)];
        let mut nodes: Vec<Node> = Vec::new();
        for i in 1..=n_nodes {
            let n_inputs = 1 + random.below(4);
            let nearest = i.saturating_sub(reach);
            nodes.push(Node {
                inputs: (0..n_inputs).map(|_| nearest + random.below(i - nearest)).collect(),
                n: sizes[random.below(sizes.len())],
                plus: random.below(100) as i64,
                spins: if random.chance(4) { random.below(2000) } else { 0 },
                flops: if random.chance(2) { random.below(2_000_000) } else { 1 },
                fails: may_fail && random.chance(12),
            });
        }
        let mut outputs: Vec<usize> = (1..n_nodes).filter(|_| random.chance(5)).collect();
        outputs.push(n_nodes);
        Self { nodes, outputs }
    }

    fn model(&self) -> Model {
        let name = |i: usize| if i == 0 { "x".to_owned() } else { format!("v{i}") };
        let mut source = String::from("devbay-program 1\n\nprogram \"p\"(%x: i64[3]) {\n");
        for (i, node) in self.nodes.iter().enumerate() {
            let inputs: Vec<String> = node.inputs.iter().map(|&input| format!("%{}", name(input))).collect();
            writeln!(
                source,
                "%v{} = test.Node@1({}) as \"node {}\" {{fails = {}, flops = {}, n = {}, plus = {}, spins = {}}}",
                i + 1,
                inputs.join(", "),
                i + 1,
                u8::from(node.fails),
                node.flops,
                node.n,
                node.plus,
                node.spins
            )
            .unwrap();
        }
        let outputs: Vec<String> = self.outputs.iter().map(|&output| format!("%v{output}")).collect();
        writeln!(source, "return {}\n}}", outputs.join(", ")).unwrap();
        Model::from_program(text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}")))
    }

    /// Nodes that an output needs.
    fn needed(&self) -> Vec<usize> {
        let mut needed = vec![false; self.nodes.len() + 1];
        for &output in &self.outputs {
            needed[output] = true;
        }
        for i in (1..needed.len()).rev() {
            if needed[i] {
                for &input in &self.nodes[i - 1].inputs {
                    needed[input] = true;
                }
            }
        }
        (1..needed.len()).filter(|&i| needed[i]).collect()
    }

    /// Every value, None where it or what it depends on fails.
    fn interpret(&self) -> Vec<Option<Vec<i64>>> {
        let mut values: Vec<Option<Vec<i64>>> = vec![Some(INPUT.to_vec())];
        for node in &self.nodes {
            let inputs: Option<Vec<&Vec<i64>>> = node.inputs.iter().map(|&i| values[i].as_ref()).collect();
            let value = inputs.filter(|_| !node.fails).map(|inputs| {
                let at = |i: usize| {
                    inputs.iter().fold(node.plus, |sum, input| sum.wrapping_add(input[i % input.len()]))
                };
                (0..node.n).map(at).collect()
            });
            values.push(value);
        }
        values
    }
}

fn runtime(threads: usize) -> Runtime {
    let linked = vec![crate::adder::devbay_entry::PLUGIN];
    Runtime::builder().threads(threads).link_all(linked).build().unwrap()
}

fn run(session: &Session, cancel: Option<Cancel>) -> Result<Vec<Vec<i64>>> {
    let x = Tensor::from_elements(&[3], &INPUT).unwrap();
    let results = session.run_with(&[("x", &x)], &RunOptions { cancel, ..RunOptions::default() })?;
    Ok(results.iter().map(|tensor| tensor.elements::<i64>().unwrap().to_vec()).collect())
}

/// Random graphs by seed, run a few times each in every division.
fn check(threads: usize, seeds: std::ops::Range<u64>, may_fail: bool) {
    let runtime = runtime(threads);
    for seed in seeds {
        let mut random = Random(seed);
        let graph = Graph::random(&mut random, may_fail);
        let expected = graph.interpret();
        let wanted: Option<Vec<Vec<i64>>> = graph.outputs.iter().map(|&i| expected[i].clone()).collect();
        // A node that no output needs does not run.
        let any_fails = wanted.is_none();
        let model = graph.model();
        // In some, part of the nodes run on the second device.
        let pinned = graph.needed().into_iter().filter(|_| seed % 3 == 0 && random.chance(3));
        let pins: Vec<_> = pinned.map(|i| (format!("node {i}"), Arc::clone(&runtime.devices()[1]))).collect();
        for tasks in [Policy::One, Policy::Each, Policy::Auto] {
            let plans = PlanOptions { tasks, ..PlanOptions::default() };
            let options = SessionOptions { plans, pins: pins.clone(), ..SessionOptions::default() };
            let session = Session::with_options(&model, &runtime.devices()[0], options).unwrap();
            for round in 0..3 {
                let at = format!("seed {seed}, {tasks:?}, {threads} threads, round {round}");
                match run(&session, None) {
                    Ok(found) => {
                        assert!(!any_fails, "{at}: a node that fails did not end the run");
                        assert_eq!(Some(found), wanted, "{at}");
                    }
                    Err(error) => {
                        assert!(any_fails, "{at}: {error}");
                        let node = &error.place().node;
                        let failing = graph.nodes.iter().enumerate().any(|(i, failing)| {
                            failing.fails && *node == format!("node {} (test.Node@1)", i + 1)
                        });
                        assert!(failing, "{at}: blames {node:?}");
                        assert!(error.text().contains("told to fail"), "{at}: {error}");
                    }
                }
            }
            // A cancelled run leaves the next one clean.
            let cancel = Cancel::new();
            cancel.cancel();
            let error = run(&session, Some(cancel)).err();
            assert_eq!(error.map(|e| e.kind()), Some(ErrorKind::Cancelled));
            assert_eq!(run(&session, None).ok(), wanted, "seed {seed}, {tasks:?}");
        }
    }
}

#[test]
fn random_graphs_on_one_thread() {
    check(1, 0..150, false);
}

#[test]
fn random_graphs_on_two_threads() {
    check(2, 1000..1300, false);
}

#[test]
fn random_graphs_on_five_threads() {
    check(5, 2000..2150, false);
}

#[test]
fn random_graphs_with_failures() {
    check(1, 3000..3050, true);
    check(3, 4000..4150, true);
}

#[test]
fn sessions_on_many_threads_share_one_plan() {
    let runtime = runtime(3);
    let mut random = Random(77);
    let graphs: Vec<Graph> = (0..4).map(|_| Graph::random(&mut random, false)).collect();
    let options = PlanOptions { tasks: Policy::Each, ..PlanOptions::default() };
    let sessions: Vec<(Session, Vec<Vec<i64>>)> = graphs
        .iter()
        .map(|graph| {
            let session =
                Session::with_options(&graph.model(), &runtime.devices()[0], options.clone()).unwrap();
            let values = graph.interpret();
            (session, graph.outputs.iter().map(|&i| values[i].clone().unwrap()).collect())
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                for _ in 0..100 {
                    for (session, expected) in &sessions {
                        assert_eq!(run(session, None).as_ref().ok(), Some(expected));
                    }
                }
            });
        }
    });
}

#[test]
fn what_cannot_be_measured_keeps_its_default_with_the_reason() {
    let (two, one) = (runtime(2), runtime(1));
    let (device, alone) = (&two.devices()[0], &one.devices()[0]);
    let calibration = calibrate(device, alone).unwrap();
    // The device has neither a product nor a sum; its queue has a second thread.
    let reasons: Vec<Option<&str>> =
        calibration.figures.iter().map(|figure| figure.default_because.as_deref()).collect();
    let lacks = |reason: Option<&str>, op: &str| reason.is_some_and(|reason| reason.contains(op));
    assert!(lacks(reasons[0], "MatMul@13") && lacks(reasons[1], "Add@14"), "{reasons:?}");
    assert!(lacks(reasons[2], "Add@14"), "{reasons:?}");
    let rates = calibration.rates();
    assert_eq!(Rates { hand_over_ns: 1000.0, ..rates }, device.default_rates());

    let error = calibrate(device, device).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
}

/// Loops in loops, `depth` deep, each of `%n` iterations, around one node that adds 1; and a condition in each.
/// A loop as often as its input says, with two launches in its body that need nothing of each other.
const TWO_IN_A_BODY: &str = r#"devbay-program 1

program "p"(%n: i64[], %x: i64[4]) {
  %y: i64[4] = Loop@25(%n, _, %x) body(%i: i64[], %go_on: bool[], %v: i64[4]) {
    %a = test.Node@1(%v) {fails = 0, flops = 4000000, n = 4, plus = 1, spins = 1000}
    %b = test.Node@1(%v) {fails = 0, flops = 4000000, n = 4, plus = 2, spins = 1000}
    %c = test.Node@1(%a, %b) {fails = 0, flops = 1, n = 4, plus = 3, spins = 0}
    return %go_on, %c
  }
  return %y
}
"#;

#[test]
fn launches_of_a_body_are_tasks_where_that_is_worth_it() {
    let model = Model::from_program(text::parse(TWO_IN_A_BODY).unwrap());
    for threads in [1, 2] {
        let runtime = runtime(threads);
        let session = Session::new(&model, &runtime.devices()[0]).unwrap();
        for n in [0i64, 1, 2, 7, 50] {
            let x = Tensor::from_elements(&[4], &[5i64, 6, 7, 8]).unwrap();
            let trips = Tensor::from_elements(&[], &[n]).unwrap();
            let inputs = [("n", &trips), ("x", &x)];
            let plan = session.plan_for(&inputs).unwrap();
            let controls = &plan.single().expect("one section").section.graph.controls;
            assert_eq!(controls.len(), threads - 1, "on {threads} threads");
            let mut expected = [5i64, 6, 7, 8];
            for value in &mut expected {
                for _ in 0..n {
                    // One more and two more, and three for their sum.
                    *value = value.wrapping_mul(2).wrapping_add(6);
                }
            }
            for _ in 0..20 {
                let results = session.run(&inputs).unwrap();
                assert_eq!(results[0].elements::<i64>(), Some(&expected[..]), "{n} on {threads} threads");
            }
        }
    }
}

fn nested_loops(depth: usize) -> Model {
    let mut source =
        String::from("devbay-program 1\n\nprogram \"p\"(%n: i64[], %odd: bool[], %x0: i64[1]) {\n");
    for level in 0..depth {
        writeln!(
            source,
            "%y{level}: i64[1] = Loop@25(%n, _, %x{level}) \
             body(%i{level}: i64[], %go{level}: bool[], %x{}: i64[1]) {{",
            level + 1
        )
        .unwrap();
    }
    writeln!(
        source,
        "%z: i64[1] = If@25(%odd) then_branch() {{\n%a: i64[1] = test.Node@1(%x{depth}) {{n = 1, plus = 1}}\n\
         return %a\n}} else_branch() {{\n%b: i64[1] = test.Node@1(%x{depth}) {{n = 1, plus = 10}}\nreturn %b\n}}"
    )
    .unwrap();
    for level in (0..depth).rev() {
        let inner = if level + 1 == depth { "z".to_owned() } else { format!("y{}", level + 1) };
        writeln!(source, "return %go{level}, %{inner}\n}}").unwrap();
    }
    source.push_str("return %y0\n}\n");
    Model::from_program(text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}")))
}

#[test]
fn loops_nest_four_deep_and_carry_values_without_copies() {
    let runtime = runtime(2);
    for depth in 1..=4 {
        let session = Session::new(&nested_loops(depth), &runtime.devices()[0]).unwrap();
        for n in 0..=4i64 {
            for odd in [true, false] {
                let n_tensor = Tensor::from_elements(&[], &[n]).unwrap();
                let odd_tensor = Tensor::from_bytes(BOOL, &[], &[u8::from(odd)]).unwrap();
                let x = Tensor::from_elements(&[1], &[5i64]).unwrap();
                let inputs = [("n", &n_tensor), ("odd", &odd_tensor), ("x0", &x)];
                let plan = session.plan_for(&inputs).unwrap();
                let steps = plan.single().map(|stage| stage.section.steps.len());
                assert_eq!(steps, Some(1), "depth {depth}: one step for all");
                let found = session.run(&inputs).unwrap();
                let expected = 5 + n.pow(depth as u32) * if odd { 1 } else { 10 };
                assert_eq!(found[0].elements::<i64>(), Some(&[expected][..]), "depth {depth}, n {n}, {odd}");
            }
        }
    }
}
