//! Models on a GPU's plugin: its share of their work, and the message without a GPU.
//!
//! The device is any Vulkan driver of the machine; in the gate it is Mesa's lavapipe.

use crate::support::{
    Case, Folder, cases, command, distinct_cases, expect_models, finish, library_of, opencl_library,
    wgpu_library,
};
use serde_json::Value;
use std::path::Path;

/// Returns the arguments that name a plugin's library.
fn plugin(library: &Path) -> [String; 2] {
    ["--plugin".to_owned(), library.display().to_string()]
}

#[test]
fn models_match_on_wgpu_and_run_there() {
    let Some(library) = wgpu_library() else { return };
    expect_models(&plugin(&library), "wgpu:0", distinct_cases().into_iter());
}

#[test]
#[ignore = "full: the other cases of each model, on both GPUs' plugins"]
fn every_case_matches_and_runs_there() {
    if let Some(library) = wgpu_library() {
        expect_models(&plugin(&library), "wgpu:0", cases().into_iter());
    }
    if let Some(library) = opencl_library() {
        expect_models(&plugin(&library), "opencl:0", cases().into_iter().filter(is_for_opencl));
    }
}

/// Models that are not CNNs or MLPs: recurrent, with control flow, quantised, of transformers, of signals.
const NOT_FOR_OPENCL: &[&str] = &[
    "aecmos_gru_b",
    "bert_rxnfp",
    "khmercut_int8",
    "magika_v3_3",
    "silero_vad",
    "slanet_1m",
    "tashkeel",
    "whisper80_stft",
];

#[test]
fn cnns_and_mlps_match_on_opencl_and_run_there() {
    let Some(library) = opencl_library() else { return };
    expect_models(&plugin(&library), "opencl:0", distinct_cases().into_iter().filter(is_for_opencl));
}

fn is_for_opencl(case: &Case) -> bool {
    !NOT_FOR_OPENCL.iter().any(|name| case.name.starts_with(name))
}

/// Returns a model that is always present, with seven launches.
fn mnist() -> Case {
    let is_it = |case: &Case| case.name.starts_with("mnist_cnn");
    cases().into_iter().find(is_it).expect("it is in the repository")
}

/// OpenCL's loader without a driver: the plugin is refused with the reason, and the processor runs the model.
#[test]
fn a_machine_without_an_opencl_driver_says_so() {
    let Some(library) = opencl_library() else { return };
    let folder = Folder::new();
    let case = mnist();
    let run = |device: &str| {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).arg("--device").arg(device);
        command.arg("--plugin").arg(&library).env("OCL_ICD_VENDORS", folder.path("."));
        finish(&mut command)
    };
    run("opencl:0").expect(6).says(&["opencl", "no driver"]);
    run("cpu:0").expect(0);
}

/// Work for one stream goes to the device together: all launches of the plan in one submission. With `--flush` the device
/// begins earlier.
#[test]
fn launches_of_a_task_are_one_submission() {
    let Some(library) = wgpu_library() else { return };
    let case = mnist();
    let folder = Folder::new();
    let marks = |name: &str, options: &[&str]| -> Vec<String> {
        let trace = folder.path(name);
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).arg("--plugin").arg(&library);
        command.args(["--device", "wgpu:0"]).args(options).arg("--profile").arg(&trace);
        assert_eq!(finish(&mut command).code, 0);
        let trace: Value = serde_json::from_slice(&std::fs::read(&trace).expect("a timeline")).expect("JSON");
        let events = trace.get("traceEvents").unwrap_or(&trace).as_array().expect("events").clone();
        events.iter().filter_map(|event| event["name"].as_str().map(str::to_owned)).collect()
    };
    let launches_of = |marks: &[String]| -> Vec<usize> {
        let submission = |name: &String| -> Option<usize> {
            name.strip_prefix("submission of ")?.strip_suffix(" launches")?.parse().ok()
        };
        marks.iter().filter_map(submission).collect()
    };
    let at_once = marks("trace.json", &[]);
    assert_eq!(launches_of(&at_once), [7]);
    // Each launch has a mark with the device's clock under its node's name, and the host's enqueuing.
    assert!(at_once.iter().filter(|name| name.contains("node_Conv_3")).count() >= 2, "{at_once:?}");
    let earlier = marks("earlier.json", &["--flush"]);
    assert_eq!(launches_of(&earlier).iter().sum::<usize>(), 7, "{earlier:?}");
    let n_flushes = earlier.iter().filter(|name| *name == "flush").count();
    assert_eq!(launches_of(&earlier).len(), n_flushes + 1, "{earlier:?}");
}

/// Losing a device during a run gives an error of its own kind that names device and plugin, and a clean end.
#[test]
fn a_lost_device_is_an_error_with_its_name() {
    let Some(library) = wgpu_library() else { return };
    let case = mnist();
    for after in [1, 5, 9] {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).arg("--plugin").arg(&library);
        command.args(["--device", "wgpu:0", "--plugin-option", &format!("wgpu.lose_after={after}")]);
        let finished = finish(&mut command);
        finished.expect(8).says(&["DEVICE_LOST", "wgpu:0", "plugin wgpu", "a test gave it up"]);
    }
}

/// With failover, the processor runs the model from its inputs, with a warning.
#[test]
fn a_lost_device_is_gone_on_without_when_asked() {
    let Some(library) = wgpu_library() else { return };
    let case = mnist();
    // During the upload of constants, and during the run.
    for (after, command_of) in [(1, "run"), (5, "run"), (9, "run"), (20, "bench")] {
        let mut command = command();
        command
            .arg(command_of)
            .arg(&case.model)
            .arg("--input")
            .arg(&case.inputs)
            .arg("--plugin")
            .arg(&library);
        command.args(["--device", "wgpu:0", "--plugin-option", &format!("wgpu.lose_after={after}")]);
        command.args(["--failover", "--json"]);
        match command_of {
            "run" => command.arg("--compare").arg(&case.outputs),
            _ => command.args(["--runs", "9"]),
        };
        let finished = finish(&mut command).expect(0);
        let report = finished.json();
        finished.says(&["wgpu:0 failed, and the run is made again on cpu:0", "DEVICE_LOST", "plugin wgpu"]);
        assert_eq!(report["device"], "cpu:0");
        let failure = &report["failures"][0];
        assert_eq!((&failure["device"], &failure["plugin"]), (&"wgpu:0".into(), &"wgpu".into()));
        assert_eq!((&failure["kind"], &failure["went_on_with"][0]), (&"device-lost".into(), &"cpu:0".into()));
    }
}

/// Copies between memories are measured if there are two, and stored with the other rates.
#[test]
fn copies_are_measured_and_kept() {
    let Some(library) = wgpu_library() else { return };
    let folder = Folder::new();
    let devbay = |more: &[&str]| {
        let mut command = command();
        command.arg("devices").arg("--plugin").arg(&library).args(more).arg("--json");
        finish(command.env("DEVBAY_CACHE_DIR", folder.path("cache"))).expect(0).json()
    };
    let of = |report: &Value, name: &str| {
        let devices = report["devices"].as_array().expect("devices");
        let found = devices.iter().find(|device| device["device"] == name || device["name"] == name);
        found.unwrap_or_else(|| panic!("expected {name} in {report}")).clone()
    };
    let before = of(&devbay(&[]), "wgpu:0")["rates"].clone();
    assert_eq!(before["measured"], false, "{before}");
    let measured = devbay(&["--calibrate"]);
    let after = of(&devbay(&[]), "wgpu:0")["rates"].clone();
    for figure in &of(&measured, "wgpu:0")["figures"].as_array().expect("figures")[4..] {
        assert_eq!(figure["measured"], true, "{figure}");
        let name = figure["name"].as_str().expect("a name");
        assert_eq!(after[name], figure["value"], "{after}");
    }
    // The rates of kinds of work come after those of copies.
    for figure in &of(&measured, "cpu:0")["figures"].as_array().expect("figures")[4..8] {
        assert_eq!(figure["reason"], "its kernels work in the host's memory", "{figure}");
    }
}

#[test]
fn without_a_driver_the_reason_is_said_and_others_live_on() {
    let library = library_of("wgpu");
    let mut command = command();
    command.args(["devices", "--plugin"]).arg(&library).env("VK_DRIVER_FILES", "/nowhere.json");
    command.env("VK_ICD_FILENAMES", "/nowhere.json");
    let finished = finish(&mut command);
    assert_eq!(finished.code, 0, "{}", finished.err);
    assert!(finished.out.contains("cpu:0"), "{}", finished.out);
    let said = format!("{}{}", finished.out, finished.err);
    assert!(said.contains("no adapter with compute shaders was found"), "{said}");
}
