//! Failures with `--json`: one line of JSON on standard error, for every command and every kind.

use crate::support::{Finished, Folder, command, defect, finish};
use serde_json::Value;

/// Returns the error on the last line of standard error; expects nothing on standard output.
#[track_caller]
fn error(found: &Finished) -> Value {
    let line = found.err.lines().last().unwrap_or_default();
    let value: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e} in:\n{}", found.err));
    let error = value["error"].clone();
    assert_eq!(error["exit_code"], found.code, "{}", found.err);
    assert!(
        error["message"].as_str().is_some_and(|text| !text.is_empty() && !text.starts_with("error")),
        "{error}"
    );
    assert!(!found.err.contains("error: "), "{}", found.err);
    error
}

fn json(arguments: &[&str]) -> Finished {
    finish(command().args(arguments).arg("--json"))
}

/// The commands that have `--json`, and arguments with which each of them fails.
const COMMANDS: &[(&[&str], i32, &str)] = &[
    (&["devices", "--device", "x"], 2, "invalid-argument"),
    (&["doctor", "--plugin-option", "x"], 2, "invalid-argument"),
    (&["run", "/nonexistent"], 1, "io"),
    (&["bench", "/nonexistent"], 1, "io"),
    (&["diff", "/nonexistent", "--a", "cpu", "--b", "cpu"], 1, "io"),
    (&["compile", "/nonexistent", "-o", "x.dbx"], 1, "io"),
    (&["inspect", "/nonexistent"], 1, "io"),
    (&["ops", "/nonexistent"], 1, "io"),
    (&["conformance", "/nonexistent"], 6, "not-found"),
    (&["lint", "/nonexistent"], 6, "refused"),
    (&["new-plugin", "Not A Name", "--lang", "c"], 2, "invalid-argument"),
];

#[test]
fn every_command_reports_its_failure_as_json() {
    for (arguments, code, kind) in COMMANDS {
        let found = json(arguments).expect(*code);
        assert_eq!(found.out, "", "{arguments:?}");
        assert_eq!(error(&found)["kind"], *kind, "{arguments:?}");
        // Without `--json` it is a line of text.
        let plain = finish(command().args(*arguments)).expect(*code);
        assert!(plain.err.lines().any(|line| line.starts_with("error: ")), "{}", plain.err);
    }
    // Every command that has the option is among them.
    let help = finish(command().arg("--help")).expect(0).out;
    let names = help.lines().skip_while(|line| !line.starts_with("Commands:")).skip(1);
    let names = names
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 10, "{help}");
    for name in names.into_iter().filter(|name| *name != "help") {
        let has_json = finish(command().args([name, "--help"])).expect(0).out.contains("--json");
        assert_eq!(has_json, COMMANDS.iter().any(|(arguments, ..)| arguments[0] == name), "{name}");
    }
}

#[test]
fn errors_of_the_command_line_are_json_too() {
    let missing = error(&json(&["run"]).expect(2));
    assert_eq!(missing["kind"], "invalid-argument");
    let said = missing["message"].as_str().unwrap_or_default();
    assert!(said.contains("<MODEL>") && !said.contains("Usage") && !said.contains('\n'), "{said}");
    error(&finish(command().args(["--json", "run"])).expect(2));
    // Behind `--`, it is a file's name.
    let plain = finish(command().args(["run", "--", "--json"])).expect(1);
    assert!(plain.err.starts_with("error: --json: "), "{}", plain.err);
}

#[test]
fn an_option_of_another_command_is_said_to_be() {
    let words =
        ["unexpected argument '--random' found", "--random is an option of `run`, `bench` and `diff`"];
    let plain = finish(command().args(["compile", "m.onnx", "--random"])).expect(2).says(&words);
    assert!(!plain.err.contains("as a value"), "{}", plain.err);
    let unknown = finish(command().args(["compile", "m.onnx", "--sideways"])).expect(2);
    assert!(!unknown.err.contains("tip"), "{}", unknown.err);
}

#[test]
fn the_place_is_the_file_the_node_the_device_and_the_plugin() {
    let folder = Folder::new();
    let damaged = folder.write("damaged.onnx", "no model");
    let path = damaged.to_str().expect("a path");
    let found = error(&json(&["inspect", path]).expect(4));
    assert_eq!((&found["kind"], &found["place"]["file"]), (&"invalid-model".into(), &path.into()));
    assert_eq!(found["place"]["plugin"], Value::Null);
    let text = "devbay-program 1\n\nprogram \"v\"(%x: f32[2]) {\n  %y: f32[2] = com.acme.Soften@1(%x) as \"soften\"\n  return %y\n}\n";
    let vendor = folder.write("v.txt", text);
    let found =
        error(&json(&["run", vendor.to_str().expect("a path"), "--random", "--device", "cpu:0"]).expect(4));
    let place = &found["place"];
    assert_eq!(found["kind"], "unsupported-op");
    assert_eq!(place["device"], "cpu:0");
    assert!(place["node"].as_str().is_some_and(|node| node.starts_with("soften")), "{found}");
}

#[test]
fn a_result_that_fails_is_printed_before_its_error() {
    let folder = Folder::new();
    let model = folder.write("relu.txt", RELU);
    let expected = folder.path("expected.npz");
    let ones = devbay_host::Tensor::from_elements(&[16], &[7.0f32; 16]).expect("a tensor");
    devbay_host::arrays::write_npz(&expected, &[("y", &ones)]).expect("a file");
    let mut run = command();
    run.arg("run").arg(&model).args(["--random", "--json", "--compare"]).arg(&expected);
    let found = finish(&mut run).expect(3);
    assert_eq!(found.json()["compare"][0]["matches"], false);
    assert_eq!(error(&found)["kind"], "mismatch");
}

const RELU: &str = r#"devbay-program 1

program "p"(%x: f32[16]) {
  %y: f32[16] = Relu@14(%x) as "first"
  return %y
}
"#;

#[cfg(unix)]
#[test]
fn a_plugin_that_ends_the_process_is_reported_as_json() {
    for (definition, function, node) in [
        ("DEFECT_CRASH_IN_LAUNCH", "crashed in its function `launch`", "first (Relu@14)"),
        ("DEFECT_EXIT_IN_LAUNCH", "called exit() in its function `launch`", "first (Relu@14)"),
        ("DEFECT_CRASH_IN_CREATE", "crashed in its function `create`", ""),
    ] {
        let folder = Folder::new();
        let (library, model) = (defect(&folder, definition), folder.write("relu.txt", RELU));
        let mut run = command();
        run.arg("run").arg(model).arg("--plugin").arg(library).args([
            "--random",
            "1",
            "--no-probe",
            "--json",
        ]);
        let found = error(&finish(&mut run).expect(8));
        assert_eq!((&found["kind"], &found["place"]["plugin"]), (&"plugin-failed".into(), &"minimal".into()));
        assert!(found["message"].as_str().is_some_and(|text| text.contains(function)), "{found}");
        assert_eq!(found["place"]["node"].as_str().unwrap_or_default(), node, "{found}");
    }
}

#[test]
fn a_photo_that_cannot_be_read_is_a_files_error() {
    let folder = Folder::new();
    let model = folder.write("model.txt", RELU);
    folder.write(
        "preprocessing.json",
        r#"{ "input": "x", "output": "y", "width": 2, "height": 2, "channels": "RGB", "layout": "NCHW", "scale": 1,
             "mean": [0, 0, 0], "std": [1, 1, 1] }"#,
    );
    let photo = folder.path("missing.jpg");
    let arguments = ["run", model.to_str().expect("a path"), "--image", photo.to_str().expect("a path")];
    let found = error(&json(&arguments).expect(1));
    assert_eq!((&found["kind"], &found["place"]["file"]), (&"io".into(), &photo.to_str().into()));
    let text = folder.write("text.jpg", "no photo");
    let found = error(&json(&["run", arguments[1], "--image", text.to_str().expect("a path")]).expect(1));
    assert_eq!(found["kind"], "io");
}
