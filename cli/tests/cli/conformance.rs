//! `devbay conformance`: its formats, its filters, and errors of the command line.

use crate::support::{Folder, command, devbay};
use serde_json::Value;
use std::process::Stdio;
use std::time::Duration;

/// Fast cases.
const FEW: [&str; 6] =
    ["--only", "transfer", "--only", "onnx/test_add", "--only", "onnx/test_reshape_reordered*"];

fn few(more: &[&str]) -> Vec<String> {
    ["conformance", "cpu"].iter().chain(&FEW).chain(more).map(|&text| text.to_owned()).collect()
}

/// The whole suite takes minutes; each running test is a child process of the command.
#[cfg(target_os = "linux")]
#[test]
fn an_interrupt_leaves_a_report_of_what_was_judged() {
    let folder = Folder::new();
    let report = folder.path("r.json");
    let mut command = command();
    command.args(["conformance", "cpu", "-o"]).arg(&report);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let parent = format!(" {} ", child.id());
    let is_child =
        |stat: String| stat.rsplit_once(')').is_some_and(|(_, rest)| rest[2..].starts_with(&parent));
    let has_one = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let mut stats = processes.filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok());
        stats.any(is_child)
    };
    while !has_one() {
        assert!(child.try_wait().unwrap().is_none(), "it ended before a test ran");
        std::thread::sleep(Duration::from_millis(5));
    }
    // SAFETY: the child was not waited for, so its id was not reused.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(130), "{err}");
    assert!(err.contains("was cancelled") && out.contains("cancelled: "), "{out}{err}");
    let report: Value = serde_json::from_str(&std::fs::read_to_string(report).unwrap()).unwrap();
    let listed: Value =
        serde_json::from_str(&devbay(["conformance", "--list", "--json"]).expect(0).out).unwrap();
    let n_run = report["tests"].as_array().unwrap().len() as u64;
    assert_eq!(n_run + report["not_run"].as_u64().unwrap(), listed.as_array().unwrap().len() as u64);
    assert_eq!((&report["summary"]["failed"], &report["level"]), (&0.into(), &Value::Null));
}

#[test]
fn a_report_has_every_form() {
    let folder = Folder::new();
    let [json, xml, html] = ["r.json", "r.xml", "r.html"].map(|name| folder.path(name).display().to_string());
    let finished = devbay(few(&["-o", &json, "-o", &xml, "-o", &html])).expect(0);
    assert!(finished.out.contains("ONNX's node tests: 1 passed") && finished.out.contains("run by the host"));

    let report: Value = serde_json::from_str(&std::fs::read_to_string(&json).unwrap()).unwrap();
    let tests = report["tests"].as_array().unwrap();
    let test = |id: &str| tests.iter().find(|test| test["id"] == id).unwrap();
    let order = test("transfer.order");
    assert_eq!(
        (&order["outcome"], &order["rules"][0], &order["profile"]),
        (&"passed".into(), &"B12".into(), &"base".into())
    );
    assert!(
        order["duration_ms"].is_number()
            && order["reproduce"].as_str().unwrap().ends_with("--only transfer.order")
    );
    assert_eq!((&order["rule"], &order["reason"]), (&"B12".into(), &Value::Null));
    assert!(order["duration"].as_f64().unwrap() > 0.0);
    assert_eq!(test("onnx/test_add")["outcome"], "passed");
    let reshape = test("onnx/test_reshape_reordered_all_dims");
    assert_eq!((&reshape["outcome"], &reshape["why"]), (&"skipped".into(), &"host".into()));
    assert!(reshape["reason"].as_str().unwrap().contains("Reshape"));
    // A part of the tests gives no level.
    assert_eq!((&report["report_version"], &report["level"]), (&1.into(), &Value::Null));
    assert_eq!(report["summary"]["failed"], 0);

    let xml = std::fs::read_to_string(&xml).unwrap();
    assert!(
        xml.starts_with("<?xml") && xml.contains("<testsuite name=\"transfer\"") && xml.contains("<skipped")
    );
    let html = std::fs::read_to_string(&html).unwrap();
    assert!(
        html.contains("<!doctype html>")
            && html.contains("transfer.order")
            && html.contains("abi-rules.md#b12")
    );
    for word in ["<script", "src=", "@import", "url("] {
        assert!(!html.contains(word), "the page needs something else: {word}");
    }

    let index = folder.path("index.html").display().to_string();
    devbay(["conformance", "--index", &json, &json, "-o", &index]).expect(0);
    let page = std::fs::read_to_string(&index).unwrap();
    assert!(page.contains("<a href=\"r.html\">cpu</a>") && page.contains("<tr><th>transfer"));
}

#[test]
fn a_form_is_asked_for_by_name_too() {
    let junit = devbay(few(&["--format", "junit"])).expect(0);
    assert!(junit.out.starts_with("<?xml"));
    let json = devbay(few(&["--json"])).expect(0);
    assert!(serde_json::from_str::<Value>(&json.out).unwrap()["tests"].is_array());
    let text = devbay(few(&[])).expect(0);
    // Passing node tests are counted but not listed.
    assert!(text.out.contains("transfer.order") && !text.out.contains("onnx/test_add "));
}

#[test]
fn a_run_is_narrowed() {
    let ids = |arguments: &[&str]| -> Vec<String> {
        let arguments = ["conformance", "--list", "--json"].iter().chain(arguments);
        let list: Value = serde_json::from_str(&devbay(arguments).expect(0).out).unwrap();
        list.as_array().unwrap().iter().map(|test| test["id"].as_str().unwrap().to_owned()).collect()
    };
    let all = ids(&[]);
    assert!(all.len() > 1884 + 100);
    let base = ids(&["--profile", "base"]);
    assert!(base.iter().all(|id| !id.starts_with("onnx/")) && base.iter().any(|id| id == "stress.threads"));
    assert_eq!(
        ids(&["--only", "transfer", "--except", "transfer.order"]).len() + 1,
        ids(&["--only", "transfer"]).len()
    );
    assert_eq!(ids(&["--profile", "kernels,interop,compiler"]).len() + base.len(), all.len());
}

#[test]
fn cases_run_behind_the_validation_layer() {
    let arguments = few(&["--layers", "validation", "--json"]);
    let report: Value = serde_json::from_str(&devbay(arguments).expect(0).out).unwrap();
    assert!(report["tests"][0]["reproduce"].as_str().unwrap().contains("--layers validation"));
}

#[test]
fn wrong_command_lines_are_refused() {
    devbay(["conformance", "cpu", "--only", "transfr"]).expect(2).says(&["transfr fits no test"]);
    devbay(["conformance", "cpu", "--except", "onnx/test_nothing"]).expect(2).says(&["fits no test"]);
    // An option that the plugin does not list fails no test.
    let with =
        |option| devbay(["conformance", "cpu", "--only", "transfer", "--plugin-option", option]).expect(2);
    with("stream=async").says(&["no option stream, known are", "streams"]);
    with("cpu.streams=async").says(&["no option cpu.streams", "without the plugin's name"]);
    devbay(["conformance", "cpu", "--profile", "graph"])
        .expect(2)
        .says(&["no tests of a profile graph", "base, kernels"]);
    devbay(["conformance", "no_such.so"]).expect(6).says(&["no plugin library no_such.so"]);
    devbay(["conformance"]).expect(2);
    devbay(["conformance", "cpu", "--layers", "no_such"]).expect(2).says(&["no_such", "validation"]);
    let folder = Folder::new();
    let text = folder.path("text.json");
    std::fs::write(&text, "{}").unwrap();
    devbay(["conformance", "--index", &text.display().to_string()])
        .expect(2)
        .says(&["text.json", "not a report"]);
    let nowhere = folder.path("no/such/folder.json").display().to_string();
    devbay(few(&["-o", &nowhere])).expect(1).says(&["cannot write"]);
}
