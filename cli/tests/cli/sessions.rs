//! The trained models in one process: two sessions at once, and any number of threads, give the same bits as a lone run.

use crate::support::{Case, cases, distinct_cases, first_cases};
use devbay_host::{Model, Runtime, Session, Tensor, arrays};
use std::sync::Barrier;

fn runtime(threads: usize, streams: &str) -> Runtime {
    let runtime = Runtime::builder()
        .threads(threads)
        .link(devbay_plugin_cpu::PLUGIN)
        .option("cpu", "streams", streams)
        .build();
    let runtime = runtime.unwrap();
    assert_eq!(runtime.devices().len(), 1, "{:?}", runtime.report());
    runtime
}

type Named = Vec<(String, Tensor)>;

fn run(session: &Session, inputs: &Named) -> Vec<Vec<u8>> {
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let outputs = session.run(&given).unwrap_or_else(|error| panic!("{error:?}"));
    // The shape is part of the result.
    let bytes = |tensor: &Tensor| [tensor.tensor_type().to_string().as_bytes(), tensor.bytes()].concat();
    outputs.iter().map(bytes).collect()
}

fn load(case: &Case) -> (Model, Named) {
    let model = Model::load(&case.model).unwrap_or_else(|error| panic!("{error:?}"));
    (model, arrays::read_npz(&case.inputs).unwrap())
}

#[test]
fn results_do_not_depend_on_the_number_of_threads() {
    let cases = first_cases();
    let runtimes = [1, 2, 3].map(|threads| runtime(threads, "inline"));
    for case in &cases {
        let (model, inputs) = load(case);
        let [one, two, three] = runtimes.each_ref().map(|runtime| {
            let session = Session::new(&model, &runtime.devices()[0]).unwrap();
            run(&session, &inputs)
        });
        assert!(one == two, "{}: two threads give other bits than one", case.name);
        assert!(one == three, "{}: three threads give other bits than one", case.name);
    }
}

/// Runs cases on two sessions at once, each model beside itself and then beside another one.
fn two_at_once(threads: usize, streams: &str, cases: &[Case]) {
    let lone = runtime(1, "inline");
    let shared = runtime(threads, streams);
    let loaded: Vec<(Model, Named, Vec<Vec<u8>>)> = cases
        .iter()
        .map(|case| {
            let (model, inputs) = load(case);
            let expected = run(&Session::new(&model, &lone.devices()[0]).unwrap(), &inputs);
            (model, inputs, expected)
        })
        .collect();
    let n = cases.len();
    let barrier = Barrier::new(2);
    std::thread::scope(|scope| {
        for caller in 0..2 {
            let (loaded, shared, barrier) = (&loaded, &shared, &barrier);
            scope.spawn(move || {
                let mut wrong = Vec::new();
                // First beside itself, then beside the model at the other end of the list.
                for (at, beside) in (0..n).map(|i| (i, i)).chain((0..n).map(|i| (i, n - 1 - i))) {
                    let at = if caller == 0 { at } else { beside };
                    let (model, inputs, expected) = &loaded[at];
                    barrier.wait();
                    let session = Session::new(model, &shared.devices()[0]).unwrap();
                    if run(&session, inputs) != *expected {
                        wrong.push(&cases[at].name);
                    }
                }
                // Only at the end: a panic would leave the other thread waiting at the barrier.
                assert!(wrong.is_empty(), "other bits than a lone run: {wrong:?}");
            });
        }
    });
}

#[test]
fn two_sessions_at_once_inline() {
    two_at_once(2, "inline", &first_cases());
}

#[test]
fn two_sessions_at_once_async() {
    two_at_once(1, "async", &distinct_cases());
}

#[test]
#[ignore = "full: the other cases of each model"]
fn two_sessions_at_once_with_every_case() {
    two_at_once(2, "inline", &cases());
    two_at_once(1, "async", &cases());
}
