//! `devbay bench --cost`, and its measured times in plans.

use crate::support::{Finished, Folder, command, finish};
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::cost::Rates;
use devbay_host::internals::core::plan::feedback::{CostFrom, Feedback};
use devbay_host::internals::core::plan::tasks::OneTask;
use devbay_host::internals::core::program::text;
use devbay_host::internals::feedback_file::MeasuredTimes;
use devbay_host::trace::Recorder;
use devbay_host::{ErrorKind, Model, PlanOptions, Runtime, Session};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two branches of two launches each, with a signature per branch.
const BRANCHES: &str = r#"devbay-program 1

program "branches"(%x: f32[64,64]) {
  %a: f32[64,64] = Abs@13(%x)
  %b: f32[64,64] = Neg@13(%a)
  %c: f32[64,64] = Exp@13(%x)
  %d: f32[64,64] = Sqrt@13(%c)
  %e: f32[64,64] = Add@14(%b, %d)
  return %e
}
"#;

fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}

/// Runs the command on a model, with few runs.
fn cost(folder: &Folder, more: &[&str]) -> Finished {
    let mut command = command();
    command.env("DEVBAY_CACHE_DIR", folder.path("cache")).arg("bench").arg(mnist());
    finish(command.args(["--cost", "--runs", "3"]).args(more))
}

fn steps(plan: &Value) -> Vec<&Value> {
    let stages = plan["stages"].as_array().expect("stages").iter();
    let tasks = stages.flat_map(|stage| stage["tasks"].as_array().expect("tasks"));
    tasks.flat_map(|task| task["steps"].as_array().expect("steps")).collect()
}

#[test]
fn each_launch_is_predicted_and_measured() {
    let folder = Folder::new();
    cost(&folder, &[]).expect(0).prints(&[
        "with one thread, 3 runs; rates guessed by kind",
        "OP",
        "PREDICTED",
        "all ",
        "rank correlation of launches ",
        "(90th percentile)",
        "for reading the clock",
    ]);
    let found = cost(&folder, &["--json"]).expect(0).json();
    assert_eq!((&found["runs"], &found["threads"], &found["lost_events"]), (&3.into(), &1.into(), &0.into()));
    let launches = found["launches"].as_array().unwrap();
    let plan = finish(command().arg("inspect").arg(mnist()).args(["--plan", "--json", "--threads", "1"]));
    let plan = plan.expect(0).json();
    assert_eq!(plan["launches"].as_u64(), Some(launches.len() as u64));
    let predicted: f64 = launches.iter().map(|launch| launch["predicted_ns"].as_f64().unwrap()).sum();
    let work = plan["work_ns"].as_f64().unwrap();
    assert!((predicted - work).abs() < work * 1e-5, "expected the plan's {work}, found {predicted}");
    assert!((found["fit"]["predicted_ns"].as_f64().unwrap() - predicted).abs() < 1.0);
    let of_ops: u64 =
        found["ops"].as_array().unwrap().iter().map(|op| op["launches"].as_u64().unwrap()).sum();
    assert_eq!(of_ops, launches.len() as u64);
    for launch in launches {
        assert!(launch["measured_ns"].as_f64().unwrap() > 0.0, "{launch}");
        assert_eq!(launch["per_run"].as_f64(), Some(1.0), "{launch}");
    }
    // Rates do not describe launches on many threads.
    cost(&folder, &["--threads", "2"]).expect(2).says(&["--cost measures on one thread"]);
    cost(&folder, &["--profile", "x.json"]).expect(2);
}

#[test]
fn what_was_measured_is_planned_with() {
    let folder = Folder::new();
    let path = folder.path("times.json");
    let file = path.to_str().unwrap();
    let found = cost(&folder, &["--json", "--feedback", file]).expect(0).json();
    let inspect = |more: &[&str]| finish(command().arg("inspect").arg(mnist()).arg("--plan").args(more));
    let plan = inspect(&["--json", "--feedback", file]).expect(0).json();
    assert_eq!(plan["measured"], plan["launches"]);
    for step in steps(&plan) {
        assert_eq!(step["cost_from"], "measured", "{step}");
        let launch =
            found["launches"].as_array().unwrap().iter().find(|launch| launch["node"] == step["node"]);
        let (expected, ns) =
            (launch.unwrap()["measured_ns"].as_f64().unwrap(), step["cost_ns"].as_f64().unwrap());
        assert!((ns - expected).abs() <= expected * 1e-6, "expected {expected}, found {ns}: {step}");
    }
    let plain = inspect(&["--json"]).expect(0).json();
    assert_eq!(plain["measured"], 0);
    assert!(steps(&plain).iter().all(|step| step["cost_from"] == "estimated"));
    inspect(&["--feedback", file]).expect(0).prints(&["of them measured", "%  measured"]);

    let run =
        |more: &[&str]| finish(command().arg("run").arg(mnist()).args(["--random", "--explain"]).args(more));
    let explained = run(&["--feedback", file]).expect(0);
    assert!(!explained.err.contains("estimated"), "{}", explained.err);
    explained.says(&["measured "]);
    run(&[]).expect(0).says(&["estimated "]);

    // A second model extends the file, and a damaged file is not overwritten.
    let n_known = fs::read_to_string(&path).unwrap().matches("@").count();
    let other = folder.write("branches.devbay", BRANCHES);
    let mut bench = command();
    bench.arg("bench").arg(&other).args([
        "--cost",
        "--runs",
        "3",
        "--no-pass",
        "fuse-elementwise",
        "--feedback",
        file,
    ]);
    finish(&mut bench).expect(0).prints(&["measured times written to"]);
    assert_eq!(fs::read_to_string(&path).unwrap().matches("@").count(), n_known + 5);
    fs::write(&path, "{").unwrap();
    finish(&mut bench).expect(2).says(&["expected measured times as JSON"]);
    assert_eq!(fs::read_to_string(&path).unwrap(), "{");
}

#[test]
fn a_profile_of_another_build_is_not_used() {
    let folder = Folder::new();
    let path = folder.path("times.json");
    cost(&folder, &["--feedback", path.to_str().unwrap()]).expect(0);
    let inspect = || {
        let mut command = command();
        command.arg("inspect").arg(mnist()).args(["--plan", "--json", "--feedback"]).arg(&path);
        finish(&mut command)
    };
    let own: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (field, value, why) in [
        ("library_modified_ns", 1.into(), "expected the build of the plugin to be"),
        ("plugin_version", "0.0.1".into(), "expected the version of the plugin to be"),
        ("product", "an abacus".into(), "found an abacus"),
        ("device", "abacus/0".into(), "abacus/0 are not used: it is not here"),
    ] {
        let mut foreign = own.clone();
        foreign["devices"][0][field] = value;
        fs::write(&path, foreign.to_string()).unwrap();
        let found = inspect().expect(0).says(&[why, "are not used"]);
        assert_eq!(found.json()["measured"], 0, "{field}");
    }
    let mut negative = own.clone();
    let times = negative["devices"][0]["launches_ns"].as_object_mut().unwrap();
    times.iter_mut().next().unwrap().1.clone_from(&(-1.0).into());
    fs::write(&path, negative.to_string()).unwrap();
    inspect().expect(2).says(&["took -1 ns, which cannot be", "times.json"]);
    fs::remove_file(&path).unwrap();
    inspect().expect(1).says(&["cannot read the measured times"]);
    assert_eq!(MeasuredTimes::read(&path).unwrap_err().kind(), ErrorKind::Io);
}

/// By estimate the branches are worth two threads. Measured times close to zero merge them into one task; a long time for
/// one branch makes it the critical path.
#[test]
fn a_profile_changes_how_launches_are_divided() {
    let runtime = Runtime::builder().threads(2).link(devbay_plugin_cpu::PLUGIN).build().unwrap();
    let device = &runtime.devices()[0];
    let model = Model::from_program(text::parse(BRANCHES).unwrap());
    let rates = Rates { flops_per_ns: 8.0, bytes_per_ns: 4.0, hand_over_ns: 100.0, ..Rates::default() };
    let options = PlanOptions {
        rates: Some(rates),
        passes: Switches::without(["fuse-elementwise"]).unwrap(),
        ..PlanOptions::default()
    };
    let report = |options: PlanOptions| {
        let session = Session::with_options(&model, device, options).unwrap();
        let plan = session.plan_for_types(&[(devbay_host::internals::core::tensor::F32, &[64, 64])]).unwrap();
        session.plan_report(&plan)
    };
    let by_estimate = report(options.clone());
    assert_eq!(by_estimate.sections().next().unwrap().one_task, None);

    let recorder = Recorder::default();
    report(PlanOptions { trace: Some(recorder.clone()), ..options.clone() });
    let recording = recorder.take();
    let signatures: Vec<&str> =
        recording.sections[0].steps.iter().filter_map(|step| step.signature.as_deref()).collect();
    assert_eq!(signatures.len(), 5);
    let with = |times: &[(&str, f64)]| {
        let mut feedback = Feedback::default();
        for signature in &signatures {
            let op = signature.split('@').next().unwrap();
            if let Some((_, ns)) = times.iter().find(|(known, _)| *known == op) {
                feedback.put(device, signature, *ns);
            }
        }
        report(PlanOptions { feedback: Some(Arc::new(feedback)), ..options.clone() })
    };
    let cheap = with(&[("Abs", 1.0), ("Neg", 1.0), ("Exp", 1.0), ("Sqrt", 1.0)]);
    let section = cheap.sections().next().unwrap();
    assert!(matches!(section.one_task, Some(OneTask::Cheap { gain_ns, .. }) if gain_ns == 2.0));
    assert_eq!(cheap.n_measured(), 4);

    let dear = with(&[("Neg", 1e9)]);
    let section = dear.sections().next().unwrap();
    assert_eq!(section.one_task, None);
    let steps = || section.tasks.iter().flat_map(|task| &task.steps);
    let measured: Vec<&str> = steps()
        .filter(|step| step.cost_from == CostFrom::Measurement)
        .map(|step| step.kernel.as_str())
        .collect();
    assert_eq!(measured, ["Neg@13"]);
    let on_path = |op: &str| {
        let has_op = |task: &&devbay_host::internals::core::plan::report::TaskReport| {
            task.steps.iter().any(|step| step.kernel.starts_with(op))
        };
        section.tasks.iter().find(has_op).unwrap().on_path
    };
    assert!(on_path("Neg") && !on_path("Exp"));
}
