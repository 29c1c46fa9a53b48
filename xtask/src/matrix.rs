//! `cargo xtask matrix [DEVICE...]`: every trained model on several devices, as one table in Markdown.
//!
//! A cell says whether the results are those that are expected, and which part of the operations ran on the device; the rest
//! ran on the processor. Devices of all plugins that were built are there at once, in each process.

use crate::target_folder;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Devices such as wgpu:0; one of each plugin, and of each PJRT library, if none is named
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// Programs and plugins of target/release, not of target/debug
    #[arg(long)]
    release: bool,
}

/// Plugins beside the command's own, if they were built.
const PLUGINS: [&str; 3] = ["wgpu", "opencl", "pjrt"];

pub fn run(arguments: &Arguments) -> Result<()> {
    let target = target_folder()?;
    let folder = target.join(if arguments.release { "release" } else { "debug" });
    let models = std::env::var_os("DEVBAY_MODELS").map_or_else(|| target.join("models"), PathBuf::from);
    let devices = match arguments.devices.as_slice() {
        [] => listed(&folder)?,
        named => named.to_vec(),
    };
    println!("| model | {} |", devices.join(" | "));
    println!("| --- |{}", " --- |".repeat(devices.len()));
    for model in folders(&models)? {
        let cells: Vec<String> =
            devices.iter().map(|device| cell(&folder, &model, device)).collect::<Result<_>>()?;
        let name = model.file_name().unwrap_or_default().to_string_lossy();
        println!("| {name} | {} |", cells.join(" | "));
    }
    Ok(())
}

/// The command with every plugin that was built.
pub fn devbay(folder: &Path, command: &str) -> Command {
    let mut devbay = Command::new(folder.join("devbay"));
    devbay.arg(command).arg("--json");
    let library = |name: &str| folder.join(format!("libdevbay_plugin_{name}.so"));
    for library in PLUGINS.iter().map(|name| library(name)).filter(|library| library.exists()) {
        devbay.arg("--plugin").arg(library);
    }
    devbay
}

/// The first device of each plugin, and of each PJRT library.
fn listed(folder: &Path) -> Result<Vec<String>> {
    let output = devbay(folder, "devices").output().context("cannot start devbay; `cargo build` makes it")?;
    let report: Value = serde_json::from_slice(&output.stdout).context("devbay devices --json")?;
    let mut known: Vec<String> = Vec::new();
    let mut first = Vec::new();
    for device in report["devices"].as_array().into_iter().flatten() {
        let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
        let (name, product) = (text("device"), text("name"));
        let plugin = name.split(':').next().unwrap_or_default().to_owned();
        // A PJRT device's product ends with its library's name.
        let kind = if plugin == "pjrt" { product } else { plugin };
        if !known.contains(&kind) {
            known.push(kind);
            first.push(name);
        }
    }
    ensure!(!first.is_empty(), "devbay lists no device: {}", String::from_utf8_lossy(&output.stderr));
    Ok(first)
}

/// Folders of models, by name.
///
/// # Errors
/// Without a folder of models.
pub fn folders(models: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(models)
        .with_context(|| format!("no models in {}; `cargo xtask models` fetches them", models.display()))?;
    let mut folders = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if path.join("model.onnx").exists() && path.join("case0.inputs.npz").exists() {
            folders.push(path);
        }
    }
    folders.sort();
    Ok(folders)
}

/// A model's first case on a device.
fn cell(folder: &Path, model: &Path, device: &str) -> Result<String> {
    let mut command = devbay(folder, "run");
    command.arg(model.join("model.onnx")).arg("--input").arg(model.join("case0.inputs.npz"));
    command.arg("--compare").arg(model.join("case0.outputs.npz")).args(["--device", device]);
    let output = command.output().context("cannot start devbay")?;
    let Ok(report) = serde_json::from_slice::<Value>(&output.stdout) else {
        return Ok("does not run".to_owned());
    };
    let flops = report["work"]["flops"].as_object();
    let all: f64 = flops.into_iter().flatten().filter_map(|(_, flops)| flops.as_f64()).sum();
    let own = flops.and_then(|flops| flops.get(device)).and_then(Value::as_f64).unwrap_or(0.0);
    let verdicts = report["compare"].as_array();
    let is_right = verdicts
        .is_some_and(|list| !list.is_empty() && list.iter().all(|verdict| verdict["matches"] == true));
    let share = if all > 0.0 { own * 100.0 / all } else { 0.0 };
    Ok(format!("{}, {share:.1} %", if is_right { "match" } else { "differs" }))
}
