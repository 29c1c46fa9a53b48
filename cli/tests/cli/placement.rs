//! Placement by cost on a processor and a GPU, with made-up rates, so that the answer is known.
//!
//! The GPU is any Vulkan driver of the machine; in the gate it is Mesa's lavapipe.

use crate::support::{Folder, cases, command, finish, wgpu_library};
use devbay_host::internals::auto::{self, Allowed};
use devbay_host::internals::core::plan::cost::{Link, Rates};
use devbay_host::internals::core::plan::work::WorkKind;
use devbay_host::internals::core::program::text;
use devbay_host::{
    Device, ErrorKind, Model, PlaceBy, PlanOptions, Runtime, Session, SessionOptions, Tensor, TensorType,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An expensive product, something small between it and another product, and a small separate branch.
const PROGRAM: &str = r#"devbay-program 1

program "mixed"(%x: f32[64,64], %s: f32[8]) {
  %p: f32[64,64] = MatMul@13(%x, %x) as "first product"
  %t: f32[64,64] = Neg@13(%p) as "between"
  %q: f32[64,64] = MatMul@13(%t, %x) as "second product"
  %n: f32[8] = Neg@13(%s) as "small"
  %e: f32[8] = Sin@22(%n) as "smaller"
  return %q, %e
}
"#;

/// A processor with slow arithmetic, and a GPU with expensive launches.
const PROCESSOR: Rates = Rates {
    flops_per_ns: 0.1,
    bytes_per_ns: 10.0,
    launch_ns: 10.0,
    hand_over_ns: 1e9,
    by_work: [None; WorkKind::ALL.len()],
    to_device: Link { latency_ns: 1.0, bytes_per_ns: 10.0 },
    from_device: Link { latency_ns: 1.0, bytes_per_ns: 10.0 },
};
const GPU: Rates = Rates {
    flops_per_ns: 1000.0,
    bytes_per_ns: 100.0,
    launch_ns: 50_000.0,
    hand_over_ns: 1e9,
    by_work: [None; WorkKind::ALL.len()],
    to_device: Link { latency_ns: 200_000.0, bytes_per_ns: 1.0 },
    from_device: Link { latency_ns: 200_000.0, bytes_per_ns: 1.0 },
};

struct World {
    _runtime: Runtime,
    cpu: Arc<Device>,
    gpu: Arc<Device>,
}

/// Returns the processor and the GPU with rates; None if the machine has no driver.
fn world(processor: Rates, gpu: Rates) -> Option<World> {
    let library = wgpu_library()?;
    let runtime = Runtime::builder()
        .threads(1)
        .link(devbay_plugin_cpu::PLUGIN)
        .plugin(library)
        .build()
        .expect("a runtime");
    let device = |name: &str| {
        let found = runtime.devices().into_iter().find(|device| device.name() == name);
        found.unwrap_or_else(|| panic!("expected a device {name}"))
    };
    let (cpu, own) = (device("cpu:0"), device("wgpu:0"));
    cpu.set_rates(processor);
    own.set_rates(gpu);
    Some(World { cpu, gpu: own, _runtime: runtime })
}

fn model() -> Model {
    Model::from_program(text::parse(PROGRAM).expect("a program"))
}

fn inputs() -> [Tensor; 2] {
    let x: Vec<f32> = (0..64 * 64).map(|i| (i % 13) as f32 / 13.0 - 0.4).collect();
    let s: Vec<f32> = (0..8).map(|i| i as f32 / 4.0).collect();
    [Tensor::from_elements(&[64, 64], &x).expect("x"), Tensor::from_elements(&[8], &s).expect("s")]
}

fn types() -> Vec<TensorType> {
    inputs().iter().map(Tensor::tensor_type).collect()
}

/// Returns the device of each node, and the session's results.
fn placed(world: &World, options: SessionOptions) -> (BTreeMap<String, String>, Vec<Tensor>) {
    let session = Session::with_options(&model(), &world.gpu, options).expect("a session");
    let [x, s] = inputs();
    let given = [("x", &x), ("s", &s)];
    let plan = session.plan_for(&given).expect("a plan");
    let of = |name: &str| {
        let found = plan.sections().find_map(|section| {
            let at =
                section.labels.iter().position(|label| label.contains(name) && !label.contains("copy"))?;
            Some(section.lanes[section.steps[at].lane as usize].name().to_owned())
        });
        found.unwrap_or_else(|| panic!("expected a launch of `{name}`"))
    };
    let names = ["first product", "between", "second product", "small", "smaller"];
    let devices = names.iter().map(|&name| (name.to_owned(), of(name))).collect();
    (devices, session.run(&given).expect("a run"))
}

fn on(devices: &BTreeMap<String, String>) -> Vec<&str> {
    ["first product", "between", "second product", "small", "smaller"].map(|name| &*devices[name]).to_vec()
}

fn expect_same(found: &[Tensor], expected: &[Tensor]) {
    for (found, expected) in found.iter().zip(expected) {
        let pair = found.elements::<f32>().unwrap().iter().zip(expected.elements::<f32>().unwrap());
        assert!(pair.into_iter().all(|(a, b)| (a - b).abs() <= 1e-4), "{found:?} and {expected:?}");
    }
}

#[test]
fn each_node_runs_where_it_and_its_copies_cost_least() {
    let Some(world) = world(PROCESSOR, GPU) else { return };
    let by_cost =
        || SessionOptions { others: vec![world.cpu.clone()], by: PlaceBy::Cost, ..SessionOptions::default() };
    let session = Session::new(&model(), &world.cpu).expect("a session");
    let [x, s] = inputs();
    let expected = session.run(&[("x", &x), ("s", &s)]).expect("a run");

    // The processor would be faster for the middle part, but not by two copies.
    let (devices, results) = placed(&world, by_cost());
    assert_eq!(on(&devices), ["wgpu:0", "wgpu:0", "wgpu:0", "cpu:0", "cpu:0"]);
    expect_same(&results, &expected);

    // By the order of devices the GPU runs everything.
    let in_order = SessionOptions { by: PlaceBy::Order, ..by_cost() };
    let (devices, results) = placed(&world, in_order);
    assert_eq!(on(&devices), ["wgpu:0"; 5]);
    expect_same(&results, &expected);

    // A pin wins, and placement takes it into account: one value is copied back in any case, so that the following nodes are
    // better off on the processor.
    let pin = |node: &str, device: &Arc<Device>| vec![(node.to_owned(), device.clone())];
    let (devices, results) = placed(&world, SessionOptions { pins: pin("small", &world.gpu), ..by_cost() });
    assert_eq!(on(&devices)[3..], ["wgpu:0", "cpu:0"]);
    expect_same(&results, &expected);
    let pins = pin("second product", &world.cpu);
    let (devices, results) = placed(&world, SessionOptions { pins, ..by_cost() });
    assert_eq!(devices["second product"], "cpu:0");
    expect_same(&results, &expected);
}

#[test]
fn what_copies_cost_decides_what_is_between() {
    let free = Link { latency_ns: 1.0, bytes_per_ns: 1e6 };
    let Some(world) = world(PROCESSOR, Rates { launch_ns: 1e6, to_device: free, from_device: free, ..GPU })
    else {
        return;
    };
    let options =
        SessionOptions { others: vec![world.cpu.clone()], by: PlaceBy::Cost, ..SessionOptions::default() };
    let (devices, _) = placed(&world, options);
    assert_eq!(on(&devices), ["wgpu:0", "cpu:0", "wgpu:0", "cpu:0", "cpu:0"]);
}

#[test]
fn auto_takes_the_cheapest_and_says_why() {
    let Some(world) = world(PROCESSOR, GPU) else { return };
    let devices = [world.gpu.clone(), world.cpu.clone()];
    let choose = |allowed| auto::choose(&model(), &devices, &types(), allowed, &PlanOptions::default());
    let found = choose(Allowed::default()).expect("a choice");
    assert_eq!((found.candidates.len(), found.placement().by), (3, PlaceBy::Cost));
    let estimates: Vec<f64> = found.candidates.iter().filter_map(|found| found.ns.clone().ok()).collect();
    assert!(estimates[2] < estimates[0] && estimates[0] < estimates[1], "{estimates:?}");
    let reason = found.reason();
    let words =
        ["cheapest by estimate: together (3 nodes on wgpu:0, 2 nodes on cpu:0)", "; wgpu:0: ", "; cpu:0: "];
    assert!(words.iter().all(|word| reason.contains(word)) && reason.lines().count() == 1, "{reason}");

    // The resulting plan has the same estimate.
    let session = Session::with_options(
        &model(),
        &found.placement().device,
        SessionOptions {
            others: found.placement().others.clone(),
            by: PlaceBy::Cost,
            ..SessionOptions::default()
        },
    )
    .expect("a session");
    let [x, s] = inputs();
    let plan = session.plan_for(&[("x", &x), ("s", &s)]).expect("a plan");
    let work_ns = session.plan_report(&plan).work_ns();
    assert!((work_ns / estimates[2] - 1.0).abs() < 1e-3, "{work_ns} and {estimates:?}");

    let whole = choose(Allowed { whole: true, ..Allowed::default() }).expect("a choice");
    assert_eq!((whole.candidates.len(), whole.placement().device.name()), (2, "wgpu:0"));
}

#[test]
fn a_pin_to_a_device_without_a_kernel_is_an_error() {
    let Some(world) = world(PROCESSOR, GPU) else { return };
    let program = r#"devbay-program 1

program "pinned"(%x: f32[4]) {
  %w: i64[1,?] = NonZero@13(%x) as "where"
  return %w
}
"#;
    let model = Model::from_program(text::parse(program).expect("a program"));
    for by in [PlaceBy::Order, PlaceBy::Cost] {
        let options = SessionOptions {
            others: vec![world.cpu.clone()],
            pins: vec![("where".to_owned(), world.gpu.clone())],
            by,
            ..SessionOptions::default()
        };
        let found = Session::with_options(&model, &world.gpu, options).and_then(|session| {
            let x = Tensor::from_elements(&[4], &[1f32; 4])?;
            session.run(&[("x", &x)])
        });
        let error = found.expect_err("the GPU has no kernel for it");
        assert_eq!(error.kind(), ErrorKind::UnsupportedOp, "{error}");
        assert!(error.to_string().contains("wgpu:0"), "{error}");
    }
}

#[test]
fn the_command_says_why_in_words_and_in_json() {
    let Some(library) = wgpu_library() else { return };
    let folder = Folder::new();
    let case = &cases()[0];
    let run = |more: &[&str]| {
        let mut command = command();
        command
            .arg("run")
            .arg(&case.model)
            .arg("--input")
            .arg(&case.inputs)
            .arg("--compare")
            .arg(&case.outputs);
        command.arg("--plugin").arg(&library).args(["--device", "auto"]).args(more);
        finish(command.env("DEVBAY_CACHE_DIR", folder.path("cache"))).expect(0)
    };
    run(&["--explain"])
        .prints(&["chosen as the cheapest by estimate: ", "; wgpu:0", "are guesses by kind"])
        .says(&["chosen  ", "not     wgpu:0"]);
    let placement = run(&["--json"]).json()["placement"].clone();
    let candidates = placement["candidates"].as_array().expect("candidates");
    assert_eq!(candidates.len(), 3, "{placement}");
    let cheapest =
        candidates.iter().filter_map(|found| found["estimate_ns"].as_f64()).fold(f64::MAX, f64::min);
    let chosen: Vec<_> = candidates.iter().filter(|found| found["chosen"] == true).collect();
    assert_eq!(chosen.len(), 1, "{placement}");
    assert_eq!(chosen[0]["estimate_ns"].as_f64(), Some(cheapest), "{placement}");
}

/// With one device there is nothing to estimate.
#[test]
fn one_device_alone_is_taken_without_a_word() {
    let case = &cases()[0];
    let mut command = command();
    command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).args(["--device", "auto", "--json"]);
    assert!(finish(&mut command).expect(0).json()["placement"].is_null());
}
