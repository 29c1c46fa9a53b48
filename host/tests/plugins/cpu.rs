//! The CPU plugin in an application: lines of launches that its threads as streams take down once and run again with one
//! call (B22), and sessions that come and go.

use crate::library::library;
use devbay_host::internals::core::kernel::Numerics;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::services::TraceSink;
use devbay_host::internals::layers::validation::Report;
use devbay_host::{
    DeviceTensor, Model, PlanOptions, Policy, Requirements, RunOptions, Runtime, RuntimeBuilder, Session,
    Tensor,
};
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// A runtime whose device has such streams, and the names of what they run.
fn runtime(streams: &str) -> (Runtime, Arc<Mutex<Vec<String>>>) {
    runtime_with(streams, Runtime::builder())
}

/// As [`runtime`], with options of its own.
fn runtime_with(streams: &str, options: RuntimeBuilder) -> (Runtime, Arc<Mutex<Vec<String>>>) {
    let names = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&names);
    let sink: TraceSink = Arc::new(move |_, mark| noted.lock().unwrap().push(mark.name));
    let options =
        options.threads(1).plugin(library("cpu")).option("cpu", "streams", streams).trace(Some(sink));
    (options.build().expect("a runtime"), names)
}

/// A trained model on the runtime's device.
fn session(runtime: &Runtime) -> Session {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx");
    let model = Model::load(&path).expect("a model of the repository's");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    Session::new(&model, &device).expect("a session")
}

/// One of its inputs.
fn image(i: usize) -> Tensor {
    let pixels: Vec<f32> = (0..28 * 28).map(|at| ((at * 7 + i * 131) % 256) as f32 / 255.0).collect();
    Tensor::from_elements(&[1, 1, 28, 28], &pixels).expect("a tensor")
}

/// Results of runs on different inputs.
fn results(session: &Session, inputs: Range<usize>) -> Vec<Tensor> {
    let name = session.inputs()[0].name.clone();
    let run = |i| session.run(&[(&name, &image(i))]).expect("a run").remove(0);
    inputs.map(run).collect()
}

fn expect_same(found: &[Tensor], expected: &[Tensor]) {
    assert!(found.iter().map(Tensor::bytes).eq(expected.iter().map(Tensor::bytes)), "results differ");
}

fn n_replays(names: &Mutex<Vec<String>>) -> usize {
    names.lock().unwrap().iter().filter(|name| *name == "replay").count()
}

#[test]
fn b22_a_line_is_recorded_and_replayed() {
    let n = 6;
    let (inline, _) = runtime("inline");
    let expected = results(&session(&inline), 0..n);
    let (queued, names) = runtime("async");
    expect_same(&results(&session(&queued), 0..n), &expected);
    drop(queued);
    // The first run launches, the second one records.
    assert_eq!(n_replays(&names), n - 1, "{names:?}");
    let names = names.lock().unwrap();
    let is_launch = |name: &&String| !["replay", "copy", "signal", "wait"].contains(&name.as_str());
    let n_launches = names.iter().filter(is_launch).count();
    assert!((3..20).contains(&n_launches), "{n_launches} launches, expected those of one run: {names:?}");
}

/// Their memory is another one each time, in which what was recorded is replayed; and it is as it was for the others afterwards.
#[test]
fn b22_runs_whose_results_stay_on_the_device_bind_their_memory() {
    let (inline, _) = runtime("inline");
    let expected = results(&session(&inline), 0..8);
    let (queued, names) = runtime("async");
    let session = session(&queued);
    expect_same(&results(&session, 0..3), &expected[..3]);
    let name = session.inputs()[0].name.clone();
    for (i, expected) in expected.iter().enumerate() {
        let x = DeviceTensor::new(&image(i), session.device()).expect("a tensor");
        let y = session.run_on_device(&[(&name, &x)], None, &RunOptions::default()).expect("a run").remove(0);
        expect_same(&[y.to_tensor().expect("the content")], std::slice::from_ref(expected));
    }
    expect_same(&results(&session, 3..8), &expected[3..]);
    drop((session, queued));
    assert_eq!(n_replays(&names), 2 + 8 + 5, "{names:?}");
}

/// Recordings go before the kernels and the memory that they name, which the layer sees.
#[test]
fn b22_recordings_are_right_behind_the_validation_layer() {
    let violations = Report::default();
    let layers = vec!["validation".to_owned()];
    let (queued, names) =
        runtime_with("async", Runtime::builder().layers(layers).violations(violations.clone()));
    let session = session(&queued);
    results(&session, 0..4);
    let name = session.inputs()[0].name.clone();
    let x = DeviceTensor::new(&image(0), session.device()).expect("a tensor");
    session.run_on_device(&[(&name, &x)], None, &RunOptions::default()).expect("a run");
    drop((x, session, queued));
    assert_eq!(n_replays(&names), 4);
    assert!(violations.is_clean(), "{:#?}", violations.violations());
}

/// Bytes that this process has in memory.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("the system says");
    let pages: u64 =
        status.split_whitespace().nth(1).and_then(|n| n.parse().ok()).expect("a number of pages");
    pages * 4096
}

#[cfg(target_os = "linux")]
#[test]
fn ten_thousand_sessions_leave_nothing_behind() {
    let source = "devbay-program 1\n\n\
                  program \"small\"(%x: f32[64]) {\n\
                  \u{20} %w = const f32[64] hex{WEIGHTS}\n\
                  \u{20} %a = Mul@14(%x, %w)\n\
                  \u{20} %y = Relu@14(%a)\n\
                  \u{20} return %y\n}\n";
    let source = source.replace("WEIGHTS", &"0000803f".repeat(64));
    let (runtime, _) = runtime("inline");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    let x = Tensor::from_elements(&[64], &[1.0f32; 64]).expect("a tensor");
    let rounds = |n: usize| {
        for _ in 0..n {
            let model = Model::from_program(text::parse(&source).expect("a program"));
            let session = Session::new(&model, &device).expect("a session");
            session.run(&[("x", &x)]).expect("a run");
        }
    };
    rounds(500);
    let (before, in_use) = (resident(), device.bytes_in_use().0);
    rounds(10_000);
    let grown = resident().saturating_sub(before);
    assert_eq!(device.bytes_in_use().0, in_use, "bytes of the device");
    // A session that stayed would have its weights, plan and frame: more than 2 kB each.
    assert!(grown < 4 << 20, "{grown} bytes more after 10,000 sessions");
}

#[test]
fn sessions_that_may_round_share_a_model_with_those_that_may_not() {
    let n = 96;
    let weights: Vec<String> = (0..n * n).map(|i| format!("{:?}", (i % 101) as f32 / 303.0)).collect();
    let text = format!(
        "devbay-program 1\n\nprogram \"product\"(%x: f32[5,{n}]) {{\n\
         \u{20} %w = const f32[{n},{n}] [{}]\n\
         \u{20} %y = MatMul@13(%x, %w)\n\
         \u{20} return %y\n}}\n",
        weights.join(", ")
    );
    let model = Model::from_program(text::parse(&text).unwrap_or_else(|e| panic!("{e}")));
    let runtime = Runtime::builder().threads(1).plugin(library("cpu")).build().expect("a runtime");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    let elements: Vec<f32> = (0..5 * n).map(|i| (i % 7) as f32 / 7.0).collect();
    let x = Tensor::from_elements(&[5, n], &elements).expect("an input");
    let open = |numerics: Numerics| {
        let options = PlanOptions { numerics, ..PlanOptions::default() };
        Session::with_options(&model, &device, options).expect("a session")
    };
    let run = |session: &Session| session.run(&[("x", &x)]).expect("a run").remove(0);
    // All stay open, so that the device keeps the weights of each.
    let sessions = [Numerics::Strict, Numerics::Bf16, Numerics::Strict, Numerics::F16].map(open);
    let results = sessions.each_ref().map(run);
    let [strict, rounded, again, ignored] = results.each_ref().map(|y| y.elements::<f32>().expect("numbers"));
    assert!(strict == again && strict == ignored, "results without rounding differ");
    let largest = strict.iter().fold(0.0f32, |largest, y| largest.max(y.abs()));
    let off = strict.iter().zip(rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= largest / 64.0, "off by {off} of {largest}");
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512bf16") && std::env::var_os("DEVBAY_CPU_ISA").is_none() {
        assert!(off > 0.0, "nothing is rounded");
    }
}
