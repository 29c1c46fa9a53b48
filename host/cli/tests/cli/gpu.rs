//! Models on a GPU's plugin, the share of their work that it does, and what is said where there is none.
//!
//! The device is whatever Vulkan driver the machine has; in the gate it is Mesa's lavapipe.

use crate::support::{cases, command, finish, library_of, wgpu_library};
use serde_json::Value;

/// Operations of a model that the device has to do itself.
const SHARE_MIN: f64 = 0.99;

#[test]
fn models_match_on_wgpu_and_run_there() {
    let Some(library) = wgpu_library() else { return };
    let mut failures = Vec::new();
    for case in cases() {
        let mut command = command();
        command
            .arg("run")
            .arg(&case.model)
            .arg("--input")
            .arg(&case.inputs)
            .arg("--compare")
            .arg(&case.outputs);
        command.arg("--plugin").arg(&library).args(["--device", "wgpu:0", "--json", "--explain"]);
        let finished = finish(&mut command);
        if finished.code != 0 {
            failures.push(format!("{}: exit code {}, {}", case.name, finished.code, finished.err.trim()));
            continue;
        }
        let report: Value = serde_json::from_str(&finished.out).expect("a report in JSON");
        let flops = report["work"]["flops"].as_object().expect("operations by device");
        let all: f64 = flops.values().filter_map(Value::as_f64).sum();
        let own = flops.get("wgpu:0").and_then(Value::as_f64).unwrap_or(0.0);
        if own < SHARE_MIN * all {
            failures.push(format!(
                "{}: {own} of {all} operations; elsewhere:\n{}",
                case.name,
                finished.err.trim()
            ));
        }
    }
    assert!(failures.is_empty(), "{} cases:\n{}", failures.len(), failures.join("\n"));
}

/// A device that is lost in the middle: an error of its own kind that names device and plugin, and the end is clean.
#[test]
fn a_lost_device_is_an_error_with_its_name() {
    let Some(library) = wgpu_library() else { return };
    let case = &cases()[0];
    for after in [1, 5, 20] {
        let mut command = command();
        command.arg("run").arg(&case.model).arg("--input").arg(&case.inputs).arg("--plugin").arg(&library);
        command.args(["--device", "wgpu:0", "--plugin-option", &format!("wgpu.lose_after={after}")]);
        let finished = finish(&mut command);
        finished.expect(6).says(&["DEVICE_LOST", "wgpu:0", "plugin wgpu", "a test gave it up"]);
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
