//! `--layers` and `DEVBAY_LAYERS`: a trained model is right through the validation layer, and a faulty plugin is named.

use crate::support::{Folder, command, defect, devbay, finish, root};
use std::process::Command;

/// Runs the small trained model on one of its cases, compared with the expected results.
fn mnist(arguments: &[&str]) -> Command {
    let folder = root().join("models/mnist_cnn");
    let mut run = command();
    run.arg("run").arg(folder.join("model.onnx"));
    run.arg("--input").arg(folder.join("case0.inputs.npz"));
    run.arg("--compare").arg(folder.join("case0.outputs.npz"));
    run.args(arguments);
    run
}

#[test]
fn a_trained_model_breaks_no_rule() {
    for streams in ["inline", "async", "inline,async"] {
        let streams = format!("cpu.streams={streams}");
        for layers in ["validation", "validation,validation"] {
            let arguments = ["--plugin-option", &streams, "--threads", "2", "--layers", layers, "--json"];
            let json = finish(&mut mnist(&arguments)).expect(0).json();
            assert_eq!(json["violations"], serde_json::json!([]), "{streams} {layers}");
            assert_eq!(json["compare"][0]["matches"], true);
        }
    }
    let json = finish(&mut mnist(&["--json"])).expect(0).json();
    assert!(json["violations"].is_null(), "without a layer nobody has looked");
}

#[test]
fn two_devices_break_no_rule() {
    let text = finish(command().arg("inspect").arg(root().join("models/mnist_cnn/model.onnx")).args([
        "--plan",
        "--plugin-option",
        "cpu.streams=inline,async",
        "--layers",
        "validation",
        "--json",
    ]))
    .expect(0)
    .json();
    assert_eq!(text["violations"], serde_json::json!([]));
    let model = "devbay-program 1\n\nprogram \"p\"(%x: f32[4]) {\n  %h: f32[4] = Relu@14(%x) as \"first\"\n  \
                 %y: f32[4] = Mul@14(%h, %x) as \"second\"\n  return %y\n}\n";
    let folder = Folder::new();
    let path = folder.write("two.txt", model);
    let mut run = command();
    run.arg("run").arg(path).args(["--random", "1", "--plugin-option", "cpu.streams=inline,async"]);
    run.args(["--layers", "validation", "--device", "cpu:0", "--pin", "second=cpu:1", "--json"]);
    let found = finish(&mut run).expect(0).json();
    assert_eq!(found["violations"], serde_json::json!([]));
}

#[test]
fn a_bench_breaks_no_rule() {
    let model = root().join("models/mnist_cnn/model.onnx");
    let arguments =
        ["--runs", "5", "--plugin-option", "cpu.streams=async", "--layers", "validation", "--json"];
    let json = finish(command().arg("bench").arg(model).args(arguments)).expect(0).json();
    assert_eq!(json["violations"], serde_json::json!([]));
}

#[test]
fn a_layer_that_is_not_there_is_refused() {
    let expected = ["there is no layer valdation", "known are: validation"];
    devbay(["devices", "--layers", "valdation"]).expect(2).says(&expected);
    finish(command().arg("devices").env("DEVBAY_LAYERS", "validation,valdation")).expect(2).says(&expected);
    // The option overrides the environment.
    finish(command().args(["devices", "--layers", "validation"]).env("DEVBAY_LAYERS", "valdation")).expect(0);
}

#[test]
fn a_wrong_plugin_is_named_and_ends_with_8() {
    let folder = Folder::new();
    let library = defect(&folder, "DEFECT_SPACE_ALIGN");
    let devices = |arguments: &[&str]| {
        finish(command().args(["devices", "--no-probe", "--plugin"]).arg(&library).args(arguments))
    };
    devices(&[]).expect(0);
    let words = "violation: B11 broken by the plugin, plugin minimal, devices: space 0 of device 0 has an alignment of 48";
    let end = "rules of the plugin ABI were broken: 0 by the host, 1 by plugins";
    devices(&["--layers", "validation"]).expect(8).says(&[words, end]).prints(&["cpu:0"]);
    let json = devices(&["--layers", "validation", "--json"]).expect(8).json();
    let found = &json["violations"][0];
    assert_eq!((&found["rule"], &found["by"]), (&"B11".into(), &"plugin".into()), "{json}");
    assert_eq!((&found["function"], &found["count"]), (&"devices".into(), &1.into()), "{json}");
    // Both of two layers report it, but as one kind.
    let json = devices(&["--layers", "validation,validation", "--json"]).expect(8).json();
    assert_eq!(
        (json["violations"].as_array().unwrap().len(), &json["violations"][0]["count"]),
        (1, &2.into())
    );
}

#[test]
fn the_commands_own_error_is_said_too() {
    let folder = Folder::new();
    let library = defect(&folder, "DEFECT_PREPARE_ALIGN");
    let model = "devbay-program 1\n\nprogram \"p\"(%x: f32[64]) {\n  %y: f32[64] = Relu@14(%x) as \"relu\"\n  return %y\n}\n";
    let path = folder.write("relu.txt", model);
    let mut run = command();
    run.arg("run").arg(path).args(["--random", "1", "--no-probe", "--layers", "validation", "--plugin"]);
    let found = finish(run.arg(library)).expect(8);
    found.says(&[
        "B21 broken by the plugin, plugin minimal, prepare",
        "error: rules of the plugin ABI",
        "error: node relu (Relu@14), device minimal:0",
    ]);
}
