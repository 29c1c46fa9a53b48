//! Constants that a memory budget keeps off the device are streamed: the results stay, the budget holds, and what cannot
//! be done is refused.

use crate::library::library;
use devbay_host::internals::core::plan::cost::{Link, Rates};
use devbay_host::internals::core::program::{Node, Op, Program, Value, ValueId};
use devbay_host::internals::core::tensor::F32;
use devbay_host::{
    Error, ErrorKind, Model, PlanOptions, Runtime, Session, SessionOptions, Tensor, TensorType,
};

const N: usize = 64;
const WEIGHT_BYTES: u64 = (N * N * 4) as u64;
const LAYERS: usize = 24;

/// The processor as two devices: inline, and with streams and a memory that the host does not see.
fn runtime() -> Runtime {
    let option = |key: &str, value: &str| ("cpu".to_owned(), key.to_owned(), value.to_owned());
    Runtime::builder()
        .plugin(library("cpu"))
        .options([option("streams", "inline,async")])
        .options([option("copy_mb_per_s", "500")])
        .build()
        .expect("a runtime")
}

/// Rates with which a copy of a weight and the product with it take about as long.
fn balanced() -> Rates {
    let link = Link { latency_ns: 100.0, bytes_per_ns: 1.0 };
    Rates {
        flops_per_ns: (2 * N * N) as f64 / WEIGHT_BYTES as f64,
        bytes_per_ns: 1e9,
        launch_ns: 10.0,
        hand_over_ns: 1000.0,
        to_device: link,
        from_device: link,
        ..Rates::default()
    }
}

/// Kind of a model's layers.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// Each layer multiplies what the one before gives with a weight of its own.
    Chain,
    /// As a chain, but every fourth layer multiplies with the same weight.
    Shared,
    /// Each layer adds the products of what the two before give.
    Ladder,
}

fn model(shape: Shape) -> Model {
    let mut program = Program { name: "layers".to_owned(), ..Program::default() };
    let x = program.add_typed("x", TensorType::new(F32, &[1, N]));
    program.main.inputs = vec![x];
    let add = |program: &mut Program, name: &str, version, inputs: [ValueId; 2]| {
        let result = program.add_value(Value::default());
        let inputs = inputs.map(Some).to_vec();
        program.main.nodes.push(Node::new(Op::onnx(name, version), inputs, vec![Some(result)]));
        result
    };
    let (mut before, mut value) = (x, x);
    let mut first = None;
    for layer in 0..LAYERS {
        // Small whole numbers, of which no sum is rounded, from another place in each layer.
        let elements: Vec<f32> =
            (0..N * N).map(|i| if (i * 7 + layer * 13) % 61 == 0 { 1.0 } else { 0.0 }).collect();
        let tensor = Tensor::from_elements(&[N, N], &elements).expect("a weight");
        let weight = match (shape, first) {
            (Shape::Shared, Some(first)) if layer % 4 == 0 => first,
            _ => program.add_constant("w", tensor),
        };
        first = first.or(Some(weight));
        let product = add(&mut program, "MatMul", 13, [value, weight]);
        let next = match shape {
            Shape::Ladder if layer > 0 => add(&mut program, "Add", 14, [product, before]),
            _ => product,
        };
        (before, value) = (value, next);
    }
    program.value_mut(value).name = "y".into();
    program.main.outputs = vec![value];
    Model::from_program(program)
}

fn session(runtime: &Runtime, model: &Model, budget: Option<u64>) -> Result<Session, Error> {
    let device = |name: &str| {
        let found = runtime.devices().into_iter().find(|device| device.name() == name);
        found.unwrap_or_else(|| panic!("expected a device {name}"))
    };
    let options = SessionOptions {
        others: vec![device("cpu:0")],
        plans: PlanOptions { memory_budget: budget, rates: Some(balanced()), ..PlanOptions::default() },
        ..SessionOptions::default()
    };
    Session::with_options(model, &device("cpu:1"), options)
}

fn x() -> Tensor {
    let elements: Vec<f32> = (0..N).map(|i| (i % 3) as f32).collect();
    Tensor::from_elements(&[1, N], &elements).expect("an input")
}

fn run(session: &Session) -> Vec<f32> {
    let outputs = session.run(&[("x", &x())]).expect("a run");
    outputs[0].elements::<f32>().expect("floats").to_vec()
}

/// Bytes that a run streams, and those of constants that stay with the device's arena.
fn memory(session: &Session) -> (u64, u64) {
    let plan = session.plan_for(&[("x", &x())]).expect("a plan");
    let mut found = (0, 0);
    for section in plan.sections() {
        let own = section.memories.iter().filter(|memory| memory.device.name() == "cpu:1");
        found.0 += section.memory.streamed as u64;
        found.1 += section.memory.constants as u64 + own.map(|memory| memory.arena as u64).sum::<u64>();
    }
    found
}

#[test]
fn what_exceeds_the_budget_is_streamed_and_results_stay() {
    let runtime = runtime();
    for shape in [Shape::Chain, Shape::Shared, Shape::Ladder] {
        let model = model(shape);
        let whole = session(&runtime, &model, None).expect("a session without a budget");
        let expected = run(&whole);
        assert!(expected.iter().any(|&value| value != 0.0), "{shape:?}: expected something to compare");
        let (streamed, all) = memory(&whole);
        assert_eq!(streamed, 0);
        for budget in [all + 64 * WEIGHT_BYTES, all * 3 / 4, all / 2, all / 4, 4 * WEIGHT_BYTES] {
            let session =
                session(&runtime, &model, Some(budget)).unwrap_or_else(|e| panic!("{shape:?}: {e}"));
            let (streamed, taken) = memory(&session);
            assert!(taken <= budget, "{shape:?}: {taken} bytes are taken of {budget}");
            assert_eq!(
                streamed > 0,
                budget < all,
                "{shape:?}: {streamed} bytes are streamed within {budget}"
            );
            for _ in 0..3 {
                assert_eq!(run(&session), expected, "{shape:?} within {budget}");
            }
        }
    }
}

#[test]
fn a_budget_for_less_than_one_stage_is_refused_with_the_least_that_would_do() {
    let runtime = runtime();
    let model = model(Shape::Chain);
    let plan = |budget| session(&runtime, &model, Some(budget)).map(|session| run(&session));
    let error = plan(WEIGHT_BYTES / 2).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let text = error.to_string();
    let least = text.split("would do is ").nth(1).and_then(|rest| rest.split(' ').next());
    let least: u64 = least.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    assert!(least > WEIGHT_BYTES && least < 3 * WEIGHT_BYTES, "{text}");
    // The terms that make it up, and the limit that was set.
    let of = |what: &str| {
        let number = text.split(what).next().and_then(|before| before.trim_end().rsplit(' ').next());
        number.and_then(|number| number.parse::<u64>().ok()).unwrap_or_else(|| panic!("{what} in {text}"))
    };
    assert_eq!(of("of constants that stay") + of("of the arena"), least, "{text}");
    assert!(text.contains(&format!("the budget is {}", WEIGHT_BYTES / 2)), "{text}");
    plan(least).expect("a run within the budget that was named");
    assert_eq!(plan(least - 1).expect_err("a refusal").kind(), ErrorKind::OutOfMemory);
}

#[test]
fn a_device_in_the_hosts_memory_streams_nothing_and_says_so() {
    let runtime = runtime();
    let device =
        &runtime.devices().into_iter().find(|device| device.name() == "cpu:0").expect("the processor");
    let plans = PlanOptions { memory_budget: Some(WEIGHT_BYTES), ..PlanOptions::default() };
    let session = Session::with_options(&model(Shape::Chain), device, plans);
    let error = session.and_then(|session| session.run(&[("x", &x())])).map(drop);
    let error = error.expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
    let text = error.to_string();
    assert!(text.contains("host's memory"), "{text}");
    let constants = format!("{} of constants that stay", LAYERS as u64 * WEIGHT_BYTES);
    assert!(text.contains(&constants), "expected `{constants}` in {text}");
}
