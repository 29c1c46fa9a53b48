//! `devbay diff` names the node with a planted fault: alone, after fusion, in control flow, against a file, and 40 times out
//! of 40 in trained models.
//!
//! The fixture has the CPU plugin's kernels, with a fault in one node's (`DEVBAY_DEFECT=one-node`).

use crate::support::{Finished, Folder, UNTIL, command, devbay, finish};
use devbay_host::Model;
use serde_json::Value;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Products and sums with two paths, and a name for each node. No two nodes are equal, because equal nodes share a kernel.
const PLAIN: &str = r#"devbay-program 1

program "plain"(%x: f32[4,6]) {
  %w = const f32[6,3] [0.5, 0.25, 0.0, 1.0, 0.5, 0.5, 0.5, 0.5, 1.0, 0.0, 0.0, 0.25, 0.125, 0.5, 0.75, 1.0, 0.5, 0.25]
  %v = const f32[3,2] [0.5, 0.25, 1.0, 0.125, 0.5, 0.75]
  %bias = const f32[3] [0.1, 0.2, 0.3]
  %a: f32[4,3] = MatMul@13(%x, %w) as "first"
  %b: f32[4,3] = Add@14(%a, %bias) as "bias"
  %c: f32[4,3] = Relu@14(%b) as "relu"
  %d: f32[4,2] = MatMul@13(%c, %v) as "second"
  %e: f32[4,2] = Softmax@13(%d) as "softmax"
  %f: f32[4,2] = Gemm@13(%a, %v) as "aside"
  %g: f32[4,2] = Add@14(%e, %f) as "sum"
  return %g
}
"#;

/// An If with one taken branch.
const BRANCH: &str = r#"devbay-program 1

program "branch"(%x: f32[4,4], %sure: bool[]) {
  %y: f32[4,4] = If@25(%sure) as "choice" then_branch() {
    %a: f32[4,4] = Exp@13(%x) as "exp"
    %b: f32[4,4] = MatMul@13(%a, %a) as "square"
    return %b
  } else_branch() {
    %c: f32[4,4] = Mul@14(%x, %x) as "other"
    return %c
  }
  %z: f32[4,4] = Tanh@13(%y) as "tanh"
  return %z
}
"#;

const SCAN: &str = r#"devbay-program 1

program "sums"(%x: f32[5,4], %w: f32[4], %s0: f32[4]) {
  %last: f32[4], %rows: f32[5,4], %scaled: f32[5,4] = Scan@25(%s0, %x) as "scan" {num_scan_inputs = 1, scan_output_directions = [0, 1]}
    body(%s: f32[4], %row: f32[4]) {
      %t: f32[4] = Add@14(%s, %row) as "add"
      %u: f32[4] = Mul@14(%t, %w) as "scaled"
      %v: f32[4] = Softmax@13(%u) as "softmax"
      return %t, %t, %v
    }
  return %last, %rows, %scaled
}
"#;

/// Results with data-dependent extents.
const DATA: &str = r#"devbay-program 1

program "data"(%x: f32[4,4]) {
  %a: f32[4,4] = Relu@14(%x) as "relu"
  %at = NonZero@13(%a) as "where"
  %t = Transpose@25(%at) as "transpose" {perm = [1, 0]}
  %g = GatherND@13(%a, %t) as "gather"
  %e = Exp@13(%g) as "exp"
  %s = Softmax@13(%e) as "softmax"
  return %s
}
"#;

/// Returns the library of the CPU plugin with a fault.
fn faulty() -> PathBuf {
    let library = Path::new(env!("CARGO_BIN_EXE_devbay")).with_file_name("libdevbay_plugin_defect.so");
    assert!(
        library.exists(),
        "expected the fixture at {}; run `cargo build -p devbay-plugin-defect`",
        library.display()
    );
    library
}

/// Compares side a with side b, the fixture with a fault in one node and these options.
#[track_caller]
fn against_fault(model: &Path, node: &str, a: &str, b: &str, more: &[&OsStr]) -> Finished {
    let side = format!("cpu,plugin={}{b}", faulty().display());
    let mut command = command();
    command.env("DEVBAY_DEFECT", "one-node").env("DEVBAY_DEFECT_NODE", node);
    command.arg("diff").arg(model).args(["--a", a, "--b", &side, "--json"]).args(more);
    finish(&mut command)
}

fn random() -> [&'static OsStr; 1] {
    ["--random".as_ref()]
}

/// Returns the first reported node, and the nodes fused with it.
fn first(report: &Value) -> (String, Vec<String>) {
    let difference = &report["differences"][0];
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let nodes = difference["nodes"].as_array().map(|nodes| nodes.iter().map(text).collect());
    (text(&difference["node"]), nodes.unwrap_or_default())
}

fn is(label: &str, node: &str) -> bool {
    label.strip_prefix(node).is_some_and(|rest| rest.starts_with(" ("))
}

#[test]
fn equal_sides_do_not_differ() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    for b in ["cpu", "cpu,no-pass=all", "cpu,isa=baseline", "cpu,threads=1,numerics=strict"] {
        let finished = devbay([
            "diff".as_ref(),
            model.as_os_str(),
            "--a".as_ref(),
            "cpu".as_ref(),
            "--b".as_ref(),
            b.as_ref(),
            "--random".as_ref(),
        ]);
        finished.expect(0).prints(&["0 differ", "runs of a: 2 + 0.00"]);
    }
}

#[test]
fn a_fault_in_any_node_is_named() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    for node in ["first", "bias", "relu", "second", "softmax", "aside", "sum"] {
        let report =
            against_fault(&model, node, "cpu,no-pass=all", ",no-pass=all", &random()).expect(3).json();
        let (named, nodes) = first(&report);
        assert!(is(&named, node) && nodes == [named.clone()], "expected {node}, found {report:#}");
        let alone = &report["differences"][0]["alone"];
        assert!(
            alone["n_differ"].as_u64().is_some_and(|n| (1..=8).contains(&n)),
            "half of the elements at most: {report:#}"
        );
    }
}

#[test]
fn behind_fusions_the_border_that_both_sides_have_is_named() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    // `second` is a lone Softmax, not fused, with no node between it and its borders. The first product is fused with the
    // nodes after it on side b, or on both sides.
    for (a, b) in [("cpu", ""), ("cpu,no-pass=all", ""), ("cpu", ",no-pass=all")] {
        let report = against_fault(&model, "second", a, b, &random()).expect(3).json();
        assert!(is(&first(&report).0, "second"), "{report:#}");
    }
    let report = against_fault(&model, "bias", "cpu", ",no-pass=all", &random()).expect(3).json();
    let (named, nodes) = first(&report);
    assert!(is(&named, "relu") && nodes.iter().any(|node| is(node, "bias")), "{report:#}");
    let ran = &report["differences"][0]["ran"];
    assert!(ran[0].to_string().contains("Fused"), "what side a runs is fused: {ran}");
}

#[test]
fn values_are_compared_in_parts_where_memory_is_short() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    let options: [&OsStr; 3] = ["--random".as_ref(), "--kept-mb".as_ref(), "0".as_ref()];
    for node in ["first", "aside", "sum"] {
        let report = against_fault(&model, node, "cpu", ",no-pass=all", &options).expect(3).json();
        assert!(first(&report).1.iter().any(|label| is(label, node)), "expected {node}, found {report:#}");
        let again = report["share_again"][1].as_f64().unwrap();
        assert!(report["whole_runs"][1] == 2 && again <= 1.0, "{report:#}");
    }
}

#[test]
fn control_flow_is_entered() {
    let folder = Folder::new();
    let sure = folder.write("sure.npy", npy_true());
    let sure = format!("sure={}", sure.display());
    let cases: [(&str, &[&str], &str, &str, &str); 4] = [
        ("branch", &["--random", "--input", &sure], BRANCH, "square", "then_branch of choice (If@25)"),
        ("until", &["--random"], UNTIL, "mul", "iteration 0 of"),
        ("scan", &["--random"], SCAN, "scaled", "iteration 0 of scan (Scan@25)"),
        ("scan2", &["--random"], SCAN, "softmax", "iteration 0 of scan (Scan@25)"),
    ];
    for (name, inputs, text, node, within) in cases {
        let model = folder.write(&format!("{name}.txt"), text);
        let inputs: Vec<&OsStr> = inputs.iter().map(AsRef::as_ref).collect();
        for (a, b) in [("cpu,no-pass=all", ",no-pass=all"), ("cpu", "")] {
            let report = against_fault(&model, node, a, b, &inputs).expect(3).json();
            let nodes = first(&report).1;
            assert!(nodes.iter().any(|label| is(label, node)), "{name}: expected {node}, found {report:#}");
            let found = report["differences"][0]["within"][0].as_str().unwrap_or_default();
            assert!(found.starts_with(within), "{name}: expected it in {within}, found {report:#}");
        }
    }
}

/// Returns one truth value as an array.
fn npy_true() -> Vec<u8> {
    let mut header = "{'descr': '|b1', 'fortran_order': False, 'shape': (), }".to_owned();
    header.push_str(&" ".repeat(128 - 10 - header.len() - 1));
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.push(1);
    bytes
}

#[test]
fn values_whose_extents_depend_on_data_are_compared() {
    let folder = Folder::new();
    let model = folder.write("model.txt", DATA);
    for node in ["exp", "softmax"] {
        let report = against_fault(&model, node, "cpu", ",no-pass=all", &random()).expect(3).json();
        assert!(is(&first(&report).0, node), "expected {node}, found {report:#}");
    }
}

#[test]
fn a_file_is_a_side() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    let outputs = folder.path("outputs.npz");
    let run = |node: &str| {
        let mut run = command();
        run.env("DEVBAY_DEFECT", "one-node").env("DEVBAY_DEFECT_NODE", node);
        run.arg("run").arg(&model).args(["--random", "--plugin"]).arg(faulty()).arg("--output").arg(&outputs);
        finish(&mut run).expect(0);
    };
    let sides: [&OsStr; 7] = [
        "diff".as_ref(),
        model.as_os_str(),
        "--a".as_ref(),
        "cpu".as_ref(),
        "--b".as_ref(),
        outputs.as_os_str(),
        "--random".as_ref(),
    ];
    run("none of them");
    devbay(sides).expect(0);
    run("sum");
    devbay(sides)
        .expect(3)
        .prints(&["sum (Add@14)", "runs of a: 2 +"])
        .says(&["the first node that differs"]);
}

#[test]
fn narrower_floats_are_within_their_tolerance_and_beyond_a_smaller_one() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    let arguments = |rtol: &'static str| {
        let narrow = "cpu,narrow=f32=f16";
        let model = model.to_str().unwrap().to_owned();
        let mut all = vec![
            "diff".to_owned(),
            model,
            "--a=cpu".to_owned(),
            format!("--b={narrow}"),
            "--random".to_owned(),
        ];
        if !rtol.is_empty() {
            all.extend([format!("--rtol={rtol}"), "--atol=0".to_owned()]);
        }
        all
    };
    devbay(arguments("")).expect(0);
    devbay(arguments("1e-6")).expect(3).prints(&["first (MatMul@13)"]);
}

#[test]
fn the_node_is_written_as_a_model_that_differs_too() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    let alone = folder.path("alone");
    let options: [&OsStr; 3] = ["--random".as_ref(), "--output".as_ref(), alone.as_os_str()];
    against_fault(&model, "second", "cpu", "", &options).expect(3);
    let run = |node: &str| {
        let mut run = command();
        run.env("DEVBAY_DEFECT", "one-node").env("DEVBAY_DEFECT_NODE", node);
        run.arg("run").arg(alone.join("program.txt")).arg("--input").arg(alone.join("inputs.npz"));
        run.arg("--compare").arg(alone.join("outputs.npz")).arg("--plugin").arg(faulty());
        finish(&mut run)
    };
    run("none of them").expect(0);
    run("second").expect(3);
    let text = std::fs::read_to_string(alone.join("program.txt")).unwrap();
    assert!(text.contains("\"second\"") && !text.contains("\"first\""), "{text}");
    against_fault(
        &alone.join("program.txt"),
        "second",
        "cpu",
        "",
        &["--input".as_ref(), alone.join("inputs.npz").as_os_str()],
    )
    .expect(3);
}

#[test]
fn several_nodes_are_named_where_that_is_asked_for() {
    let folder = Folder::new();
    // Two nodes of the same name have the fault.
    let model = folder.write("model.txt", PLAIN.replace("\"aside\"", "\"first\""));
    let options: [&OsStr; 3] = ["--random".as_ref(), "--nodes".as_ref(), "5".as_ref()];
    let report = against_fault(&model, "first", "cpu,no-pass=all", ",no-pass=all", &options).expect(3).json();
    let values: Vec<_> =
        report["differences"].as_array().unwrap().iter().map(|found| found["value"].clone()).collect();
    assert_eq!(values, ["a", "f"], "{report:#}");
    assert!(report["n_explained"].as_u64().unwrap() >= 2, "{report:#}");
}

#[test]
fn sides_that_cannot_be_say_what_there_is() {
    let folder = Folder::new();
    let model = folder.write("model.txt", PLAIN);
    let cases: [(&str, i32, &[&str]); 9] = [
        ("cpu,speed=9", 2, &["no option `speed`", "no-pass=", "isa="]),
        ("cpu,fast", 2, &["no option `fast`", "no-fallback"]),
        ("cpu,no-pass=fuse-tail", 2, &["there is no pass `fuse-tail`; there are"]),
        ("cpu,narrow=f32=i8", 2, &["expected f64=f32", "found f32=i8"]),
        ("cpu,isa=mmx", 6, &["mmx"]),
        ("speed=9", 2, &["no option `speed`"]),
        ("", 2, &["expected a device"]),
        ("nothing.npz", 2, &["no such file"]),
        ("tpu:0", 6, &["no plugin tpu"]),
    ];
    for (side, code, words) in cases {
        let arguments = ["diff", model.to_str().unwrap(), "--a", "cpu", "--b", side, "--random"];
        devbay(arguments).expect(code).says(words);
    }
    let missing = ["diff", model.to_str().unwrap(), "--a", "cpu", "--b", "cpu"];
    devbay(missing).expect(5).says(&["input `x`"]);
}

/// Models with named nodes, run on their first case's inputs: small ones of several kinds.
const MODELS: &[&str] = &[
    "mnist_cnn",
    "magika_v3_3",
    "speech_embedding",
    "silero_vad_v6",
    "mlp_hey_livekit",
    "blaze_face",
    "dnsmos",
];

/// Total number of faults.
const FAULTS: usize = 40;

/// Maximum faults per model, with or without passes on the faulty side.
const FAULTS_MAX: usize = 4;

/// Returns a command that runs the fixture alone, with a fault in a node.
fn run_faulty(model: &Path, inputs: &Path, node: &str, passes: &str) -> Command {
    let mut run = command();
    run.env("DEVBAY_DEFECT", "one-node").env("DEVBAY_DEFECT_NODE", node);
    run.arg("run").arg(model).arg("--input").arg(inputs).arg("--plugin").arg(faulty());
    if !passes.is_empty() {
        run.args(["--no-pass", "all"]);
    }
    run
}

/// Returns whether a fault in a node shows in the model's outputs, and the model still runs.
fn shows(model: &Path, inputs: &Path, node: &str, passes: &str, right: &Folder) -> bool {
    let mut run = run_faulty(model, inputs, node, passes);
    finish(run.arg("--compare").arg(right.path("right.npz"))).code == 3
}

/// Returns the unique names of a model's nodes, including those in regions.
fn node_names(model: &Path) -> Vec<String> {
    let model = Model::load(model).expect("a trained model");
    let mut names = Vec::new();
    model.program().main.visit(&mut |node| names.push(node.name.to_string()));
    let is_unique =
        |name: &&String| !name.is_empty() && names.iter().filter(|other| other == name).count() == 1;
    names.iter().filter(is_unique).cloned().collect()
}

/// Faults in nodes of trained models, half of them with passes on the faulty side: each is found.
#[test]
fn of_40_faults_in_trained_models_40_are_named() {
    let Some(folder) = std::env::var_os("DEVBAY_MODELS").map(PathBuf::from) else {
        let required = std::env::var("DEVBAY_REQUIRE").unwrap_or_default();
        assert!(!required.contains("models"), "expected the models, which DEVBAY_REQUIRE asks for");
        eprintln!("not run: DEVBAY_MODELS names no folder with trained models");
        return;
    };
    let mut wrong = Vec::new();
    let mut n_faults = 0;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    for name in MODELS {
        let model = folder.join(name).join("model.onnx");
        let inputs = folder.join(name).join("case0.inputs.npz");
        let given: [&OsStr; 2] = ["--input".as_ref(), inputs.as_os_str()];
        for (passes, a) in [(",no-pass=all", "cpu"), ("", "cpu,no-pass=all")] {
            let mut names = node_names(&model);
            let mut n_planted = 0;
            let right_outputs = Folder::new();
            let mut right = run_faulty(&model, &inputs, "none of them", passes);
            finish(right.arg("--output").arg(right_outputs.path("right.npz"))).expect(0);
            // In a small model fewer faults show, and a later model makes up for them.
            while n_planted < FAULTS_MAX && n_faults + n_planted < FAULTS && !names.is_empty() {
                // Any reproducible order will do: a generator with Knuth's constants.
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let node = names.swap_remove((seed >> 33) as usize % names.len());
                // A fault may not show: the node is folded, a view, fused or in the branch not taken, shares an equal node's
                // kernel, or a later node hides the fault.
                if !shows(&model, &inputs, &node, passes, &right_outputs) {
                    continue;
                }
                let finished = against_fault(&model, &node, a, passes, &given);
                n_planted += 1;
                let report: Value = serde_json::from_str(&finished.out).unwrap_or_default();
                let (_, nodes) = first(&report);
                if finished.code != 3 || !nodes.iter().any(|label| is(label, &node)) {
                    let err = finished.err.trim();
                    wrong.push(format!(
                        "{name}{passes}: {node}: exit code {}, {nodes:?} {err}",
                        finished.code
                    ));
                }
            }
            n_faults += n_planted;
        }
    }
    assert!(wrong.is_empty(), "{} of {n_faults} faults were not named:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(n_faults, FAULTS);
}
