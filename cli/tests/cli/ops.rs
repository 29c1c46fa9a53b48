//! `devbay ops`: kernels by op, and the device of each node of a model with the reasons.

use crate::support::{Folder, command, defect, devbay, finish};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Four nodes. Every plugin runs the first, and the minimal plugin does not run the second. The third is a view. No plugin has the op
/// of the fourth.
const MIXED: &str = r#"devbay-program 1

program "mixed"(%x: f32[2,8], %n: i64[]) {
  %a: f32[2,8] = Relu@14(%x) as "relu"
  %b: f32[2,8] = Softmax@13(%a) as "softmax"
  %shape = const i64[1] [16]
  %c: f32[16] = Reshape@25(%b, %shape) as "reshape"
  return %c
}
"#;

const VENDOR: &str = "devbay-program 1\n\nprogram \"v\"(%x: f32[2]) {\n  %y: f32[2] = com.acme.Soften@1(%x) as \"soften\"\n  \
    %z: f32[2] = Relu@14(%y) as \"relu\"\n  return %z\n}\n";

/// Returns a plugin in C that has a kernel for Relu of f32 alone.
fn minimal(folder: &Folder) -> PathBuf {
    defect(folder, "MINOR_MIN=DEVBAY_ABI_MINOR")
}

#[test]
fn kernels_are_listed_by_op_and_device() {
    let list = devbay(["ops"]).expect(0).prints(&["OP", "VERSION", "DEVICE", "KERNEL", "TYPES", "cpu:0: "]);
    let row = |op: &str| {
        let of_op = |line: &&str| line.split_whitespace().next() == Some(op);
        list.out.lines().find(of_op).unwrap_or_else(|| panic!("no {op} in:\n{}", list.out)).to_owned()
    };
    let words = |op: &str| row(op).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words("And"), ["And", "7", "cpu:0", "7", "bool"]);
    assert!(row("Reshape").contains("a view") && row("If").contains("the host"));
    let value = devbay(["ops", "--json"]).expect(0).json();
    let ops = value["ops"].as_array().expect("a list");
    let relu = ops.iter().find(|op| op["op"] == "Relu" && op["domain"] == "").expect("Relu");
    assert_eq!((&relu["version"], &relu["needs_kernel"]), (&json!(14), &json!(true)));
    let types = &relu["devices"]["cpu:0"][0]["types"][0];
    assert!(types.as_array().is_some_and(|types| types.contains(&json!("f32"))), "{relu}");
    let view = ops.iter().find(|op| op["op"] == "Reshape").expect("Reshape");
    assert_eq!((&view["needs_kernel"], &view["devices"]["cpu:0"]), (&json!(false), &json!([])));
}

#[test]
fn each_device_has_its_own_kernels() {
    let folder = Folder::new();
    let library = minimal(&folder);
    let ops = |more: &[&str]| {
        finish(command().arg("ops").arg("--plugin").arg(&library).args(more)).expect(0).json()
    };
    let both = ops(&["--json"]);
    assert_eq!(both["devices"].as_array().map(Vec::len), Some(2), "{both}");
    let one = ops(&["--json", "--device", "minimal:0"]);
    assert_eq!(one["devices"], json!(["minimal:0"]));
    let with_kernel = |value: &Value| -> Vec<String> {
        let ops = value["ops"].as_array().expect("a list").iter();
        let has = ops.filter(|op| op["devices"]["minimal:0"].as_array().is_some_and(|list| !list.is_empty()));
        has.map(|op| op["op"].as_str().unwrap_or_default().to_owned()).collect()
    };
    assert_eq!(with_kernel(&one), ["Relu"]);
    assert_eq!(with_kernel(&both), ["Relu"]);
}

/// Runs `devbay ops MODEL` on the minimal plugin.
fn ops_of(model: &Path, library: &Path, more: &[&str]) -> crate::support::Finished {
    finish(
        command()
            .arg("ops")
            .arg(model)
            .arg("--plugin")
            .arg(library)
            .args(["--device", "minimal:0"])
            .args(more),
    )
}

#[test]
fn nodes_fall_back_with_a_reason() {
    let folder = Folder::new();
    let (library, model) = (minimal(&folder), folder.write("mixed.txt", MIXED));
    for more in [&[][..], &["--prepare"]] {
        let found = ops_of(&model, &library, more).expect(0).prints(&[
            "3 nodes: 1 on minimal:0, 1 on cpu:0, 1 as a view",
            "falls back",
            "minimal:0 does not take 1 node:",
            "has no kernel for op Softmax@13",
            "    softmax (Softmax@13)",
        ]);
        assert!(!found.out.contains("cpu:0 does not take"), "{}", found.out);
    }
    let value = ops_of(&model, &library, &["--json"]).expect(0).json();
    let counts = json!({
        "nodes": 3, "by_device": { "minimal:0": 1, "cpu:0": 1 }, "views": 1, "host": 0, "fall_back": 1, "no_kernel": 0,
    });
    assert_eq!(value["counts"], counts);
    let softmax = &value["nodes"][1];
    assert_eq!((&softmax["device"], &softmax["dtype"]), (&json!("cpu:0"), &json!("f32")));
    assert_eq!((&softmax["falls_back"], &softmax["runs"]), (&json!(true), &json!("device")));
    assert_eq!(softmax["answers"][0]["kernel"], Value::Null);
    assert!(softmax["answers"][0]["reason"].as_str().is_some_and(|why| why.contains("Softmax")), "{softmax}");
    assert_eq!(softmax["answers"][1]["device"], "cpu:0");
    // What is said is what then happens.
    let mut run = command();
    run.arg("run").arg(&model).arg("--plugin").arg(&library).args(["--random", "--explain"]);
    finish(run.args(["--device", "minimal:0"])).expect(0).says(&["placed  cpu:0        softmax"]);
}

#[test]
fn a_pinned_node_does_not_fall_back() {
    let folder = Folder::new();
    let (library, model) = (minimal(&folder), folder.write("mixed.txt", MIXED));
    let mut ops = command();
    ops.arg("ops").arg(&model).arg("--plugin").arg(&library).args(["--device", "cpu:0", "--json"]);
    let counts =
        &finish(ops.args(["--pin", "relu=minimal:0", "--no-pass", "all"])).expect(0).json()["counts"];
    assert_eq!(counts["by_device"], json!({ "minimal:0": 1, "cpu:0": 1 }));
    assert_eq!(counts["fall_back"], 0);
}

#[test]
fn a_model_that_nothing_runs_has_its_reasons_and_ends_with_4() {
    let folder = Folder::new();
    let model = folder.write("v.txt", VENDOR);
    let (library, words) = (minimal(&folder), "has no kernel for op com.acme.Soften@1");
    ops_of(&model, &library, &[])
        .expect(4)
        .prints(&["1 nowhere", "minimal:0 does not take 1 node:", "cpu:0 does not take 1 node:", words])
        .says(&["no device has a kernel for 1 node"]);
    let alone = ops_of(&model, &library, &["--no-fallback", "--json"]).expect(4);
    let value = alone.json();
    assert_eq!((&value["counts"]["no_kernel"], &value["nodes"][0]["runs"]), (&json!(1), &json!("nowhere")));
    // `auto` refuses such a model when it is run; it is still described.
    finish(command().arg("ops").arg(&model)).expect(4).prints(&["1 nowhere", "1 on cpu:0", words]);
}

#[test]
fn nodes_in_regions_and_of_unknown_types_are_listed() {
    let folder = Folder::new();
    let model = folder.write("until.txt", crate::support::UNTIL);
    let found = finish(command().arg("ops").arg(&model)).expect(0);
    found.prints(&["on the host", "  mul (devbay.FusedMatMul@1)", "  less (Less@13)"]);
}
