//! `--passes` of `devbay inspect` and `devbay bench`: the changes and savings of passes.

use crate::support::{Finished, Folder, command, finish};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Four elementwise ops that are fused, one node on constants, and one with an unused result.
const CHAIN: &str = r#"devbay-program 1

program "chain"(%x: f32[64,64]) {
  %two: f32[] = const f32[] [2.0]
  %four: f32[] = Mul@14(%two, %two)
  %a: f32[64,64] = Mul@14(%x, %four)
  %b: f32[64,64] = Abs@13(%a)
  %c: f32[64,64] = Sqrt@13(%b)
  %d: f32[64,64] = Neg@13(%c)
  %e: f32[64,64] = Exp@13(%x)
  return %d
}
"#;

fn mnist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}

/// Runs a command on a model, on one thread of the processor.
fn passes(name: &str, model: &Path, more: &[&str]) -> Finished {
    let mut command = command();
    command.arg(name).arg(model).args(["--passes", "--device", "cpu:0", "--threads", "1"]);
    finish(command.args(more))
}

/// Returns the entry of a pass.
#[track_caller]
fn pass<'a>(found: &'a Value, name: &str) -> &'a Value {
    let all = found["passes"].as_array().expect("passes");
    all.iter().find(|pass| pass["name"] == name).unwrap_or_else(|| panic!("expected {name} in {found}"))
}

#[test]
fn each_pass_says_what_it_did() {
    let folder = Folder::new();
    let model = folder.write("chain.devbay", CHAIN);
    let found = passes("inspect", &model, &["--json"]).expect(0).json();
    assert_eq!(
        (&found["nodes_before"], &found["nodes_after"], &found["launches"]),
        (&6.into(), &1.into(), &1.into())
    );
    let names: Vec<&str> = found["passes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pass| pass["name"].as_str().expect("a name"))
        .collect();
    let known: Vec<&str> = devbay_host::internals::core::passes::Switches::names().collect();
    assert_eq!(names, known);
    for (name, changes, before, after) in
        [("dead-code", 1, 6, 5), ("fold-constants", 1, 5, 4), ("fuse-elementwise", 3, 4, 1)]
    {
        let pass = pass(&found, name);
        assert_eq!(
            (&pass["changes"], &pass["nodes_before"], &pass["nodes_after"]),
            (&changes.into(), &before.into(), &after.into()),
            "{name}: {pass}"
        );
    }
    let fused = &pass(&found, "fuse-elementwise")["without"];
    assert_eq!((&fused["launches"], &fused["measured"]), (&4.into(), &Value::Null));
    assert!(fused["predicted_saves_ns"].as_f64().unwrap() > 0.0, "{fused}");
    let nothing = pass(&found, "fold-batch-norm");
    assert_eq!((&nothing["changes"], &nothing["without"]), (&0.into(), &Value::Null));
    // The node on constants is small enough for a shape, so it is always folded.
    assert_eq!(found["without_all"]["launches"], 5);
    passes("inspect", &model, &[]).expect(0).prints(&[
        "PASS",
        "SAVES, PREDICTED",
        "fuse-elementwise",
        "all ",
    ]);
}

/// The prediction is the difference between the works in `--plan`, with and without the pass.
#[test]
fn what_is_predicted_is_the_difference_of_two_plans() {
    let found = passes("inspect", &mnist(), &["--json"]).expect(0).json();
    let work = |more: &[&str]| {
        let mut command = command();
        command.arg("inspect").arg(mnist()).args(["--plan", "--json", "--device", "cpu:0", "--threads", "1"]);
        let plan = finish(command.args(more)).expect(0).json();
        (plan["work_ns"].as_f64().unwrap(), plan["launches"].as_u64().unwrap())
    };
    let on = work(&[]);
    let mut n_compared = 0;
    let changed = found["passes"].as_array().unwrap().iter().filter(|pass| !pass["without"].is_null());
    let changed = changed.map(|pass| (pass["name"].as_str().unwrap(), &pass["without"]));
    for (name, without) in changed.chain([("all", &found["without_all"])]) {
        let off = work(&["--no-pass", name]);
        assert_eq!(without["launches"].as_u64(), Some(off.1), "{name}");
        let (expected, saves) = (off.0 - on.0, without["predicted_saves_ns"].as_f64().unwrap());
        assert!((saves - expected).abs() <= off.0 * 1e-6, "{name}: expected {expected}, found {saves}");
        n_compared += 1;
    }
    assert!(n_compared >= 2, "expected a pass that changes the model: {found}");
}

#[test]
fn a_pass_that_is_off_is_marked() {
    let folder = Folder::new();
    let model = folder.write("chain.devbay", CHAIN);
    let found = passes("inspect", &model, &["--json", "--no-pass", "fuse-elementwise"]).expect(0).json();
    let off = pass(&found, "fuse-elementwise");
    assert_eq!((&off["on"], &off["changes"], &off["without"]), (&false.into(), &Value::Null, &Value::Null));
    assert_eq!(pass(&found, "dead-code")["on"], true);
    assert_eq!(found["launches"], 4);
    let text = passes("inspect", &model, &["--no-pass", "fuse-elementwise"]).expect(0).out;
    let line = text.lines().find(|line| line.starts_with("fuse-elementwise")).expect("a line of the pass");
    assert!(line.contains("off"), "{text}");
}

#[test]
fn what_passes_save_is_measured() {
    let found = passes("bench", &mnist(), &["--json", "--runs", "3", "--warmup", "1"]).expect(0).json();
    let mut n_measured = 0;
    for without in found["passes"].as_array().unwrap().iter().map(|pass| &pass["without"]) {
        if without.is_null() {
            continue;
        }
        n_measured += 1;
        let number =
            |key: &str| without["measured"][key].as_f64().unwrap_or_else(|| panic!("{key}: {without}"));
        assert_eq!(number("pairs"), 3.0);
        assert!(number("off_ns") > 0.0 && number("on_ns") > 0.0, "{without}");
        assert!(
            number("saves_low_ns") <= number("saves_ns") && number("saves_ns") <= number("saves_high_ns")
        );
    }
    assert!(n_measured >= 1, "expected a pass that changes the model: {found}");
    assert_eq!(found["without_all"]["measured"]["pairs"], 3);
    passes("bench", &mnist(), &["--runs", "3"]).expect(0).prints(&["SAVES, MEASURED", "QUARTILES", "all "]);
}

#[test]
fn what_does_not_go_together_is_refused() {
    passes("inspect", &mnist(), &["--plan"]).expect(2);
    passes("bench", &mnist(), &["--cost"]).expect(2);
    passes("inspect", &mnist(), &["--no-pass", "fuse-tail"])
        .expect(2)
        .says(&["there is no pass `fuse-tail`"]);
}

#[test]
fn a_model_runs_in_narrower_floats_within_their_precision() {
    let folder = mnist().parent().expect("a folder").to_owned();
    let run = |more: &[&str]| {
        let mut command = command();
        command.arg("run").arg(mnist()).arg("--input").arg(folder.join("case0.inputs.npz"));
        finish(command.arg("--compare").arg(folder.join("case0.outputs.npz")).args(["--json"]).args(more))
    };
    run(&[]).expect(0);
    for (narrow, rtol) in [("f32=f16", "0.01"), ("f32=bf16", "0.05"), ("f64=f16", "0.0001")] {
        let outputs = &run(&["--narrow", narrow, "--rtol", rtol]).expect(0).json()["outputs"];
        assert_eq!(outputs[0]["type"].as_str(), run(&[]).json()["outputs"][0]["type"].as_str());
    }
    // The results differ from the model's in the last digits.
    run(&["--narrow", "f32=f16", "--rtol", "0.0000001", "--atol", "0"]).expect(3);

    let found = passes("inspect", &mnist(), &["--json", "--narrow", "f32=f16"]).expect(0).json();
    assert!(pass(&found, "narrow-dtypes")["changes"].as_u64() > Some(4), "{found}");
    assert_eq!(pass(&found, "narrow-dtypes")["without"]["launches"], 7);
}

#[test]
fn what_floats_cannot_become_is_refused() {
    for (narrow, words) in [
        ("i64=i32", "expected f64=f32, f64=f16, f64=bf16, f32=f16 or f32=bf16, found i64=i32"),
        ("f16=f32", "found f16=f32"),
        ("half", "expected two element types as in f32=f16, found half"),
    ] {
        passes("inspect", &mnist(), &["--narrow", narrow]).expect(2).says(&["--narrow", words]);
    }
    let mut compile = command();
    compile.arg("compile").arg(mnist()).args(["--narrow", "f32=f16", "-o", "model.compiled"]);
    finish(&mut compile).expect(2).says(&["--narrow is for plans"]);
}
