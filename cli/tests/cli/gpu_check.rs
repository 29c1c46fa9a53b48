//! `bench/gpu-check`, the script for machines with a GPU, in a small form on any Vulkan driver of this machine, so that it
//! keeps working where there is no GPU.

use crate::support::{Folder, wgpu_library};
use serde_json::Value;
use std::path::Path;
use std::process::Command;

#[test]
fn gpu_check_judges_the_wgpu_plugin() {
    let Some(library) = wgpu_library() else { return };
    let folder = Folder::new();
    let out = folder.path("result.json");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut check = Command::new(root.join("bench/gpu-check"));
    check.arg("--devbay").arg(env!("CARGO_BIN_EXE_devbay")).arg("--plugin").arg(library);
    check.arg("--models").arg(root.join("models")).args(["--only-model", "mnist_cnn", "--quick", "--out"]);
    let finished = check.arg(&out).env("DEVBAY_CACHE_DIR", folder.path("cache")).output().expect("bash");
    let said = format!(
        "{}\n{}",
        String::from_utf8_lossy(&finished.stdout),
        String::from_utf8_lossy(&finished.stderr)
    );
    assert!(finished.status.success(), "{said}");

    let result: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
    assert_eq!((&result["version"], &result["device"]), (&Value::from(1), &Value::from("wgpu:0")));
    assert_eq!(result["failed"], Value::Array(Vec::new()));
    let rows = result["rows"].as_array().expect("rows");
    for row in rows {
        let status = row["status"].as_str().expect("a status");
        assert!(["measured", "failed", "not measured"].contains(&status), "{row}");
        assert!(
            row["name"].is_string() && row["subject"].is_string() && row["required"].is_boolean(),
            "{row}"
        );
        // Nothing fails, and skipped measurements give a reason.
        assert_ne!(status, "failed", "{row}");
        assert_eq!(status == "not measured", row["reason"].is_string(), "{row}");
        assert!(said.contains(row["name"].as_str().expect("a name")), "{row} is not in the table: {said}");
    }
    let row = |name: &str, subject: &str| {
        let found = rows.iter().find(|row| row["name"] == name && row["subject"] == subject);
        found.unwrap_or_else(|| panic!("no row {name} of {subject}: {said}"))
    };
    for name in [
        "device",
        "conformance base",
        "conformance kernels",
        "model mnist_cnn/case0",
        "model mnist_cnn/case1",
        "launches, a run of 400",
        "launches, each one more",
        "host to device",
        "device to host",
        "copies and launches, 2 at once",
        "sessions, 300",
    ] {
        assert_eq!(row(name, "devbay")["status"], "measured", "{name}");
    }
    assert_eq!(row("model mnist_cnn/case0", "devbay")["detail"]["share_of_flops"], 1.0);
    assert!(row("launches, a run of 400", "devbay")["median"].as_f64().is_some_and(|median| median > 0.0));
    assert!(out.with_extension("overlap.json").exists(), "the timeline of copies and launches");
    // Missing parts are rows too.
    for name in ["replayed launches", "ResNet-50, batch 64", "BERT, 512 tokens"] {
        assert_eq!(row(name, "devbay")["status"], "not measured", "{name}");
    }
    for peer in ["torch", "torch-compile", "jax"] {
        assert_eq!(row("ResNet-50, batch 1", peer)["status"], "not measured");
    }
}

/// Without a device for the plugin, the check fails, and gives the reason for each missing requirement.
#[test]
fn gpu_check_fails_without_a_device() {
    let folder = Folder::new();
    let out = folder.path("result.json");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut check = Command::new(root.join("bench/gpu-check"));
    check.arg("--devbay").arg(env!("CARGO_BIN_EXE_devbay")).arg("--plugin").arg("/nowhere/libplugin.so");
    let finished = check.args(["--quick", "--out"]).arg(&out).output().expect("bash");
    assert_eq!(finished.status.code(), Some(1));
    let result: Value = serde_json::from_slice(&std::fs::read(&out).expect("a file")).expect("JSON");
    assert_eq!(result["failed"], serde_json::json!(["device"]));
    assert_eq!(result["rows"][0]["status"], "failed");
    assert!(result["rows"][0]["reason"].as_str().is_some_and(|reason| reason.contains("no device here")));
}
