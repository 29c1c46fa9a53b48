//! `cargo xtask matrix [DEVICE...]`: runs every trained model on several devices, and prints one Markdown table.
//!
//! A cell says whether the results match the expected ones, and which share of the operations ran on the device; the rest
//! ran on the processor. Each process loads the devices of all built plugins.

use crate::trained::{Trained, name};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::path::Path;

#[derive(clap::Args)]
pub struct Arguments {
    /// Devices such as wgpu:0; by default one per plugin and per PJRT library
    #[arg(value_name = "DEVICE")]
    devices: Vec<String>,
    /// Use programs and plugins of target/release instead of target/debug
    #[arg(long)]
    release: bool,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let trained = Trained::new(arguments.release)?;
    let devices = match arguments.devices.as_slice() {
        [] => listed(&trained)?,
        named => named.to_vec(),
    };
    println!("| model | {} |", devices.join(" | "));
    println!("| --- |{}", " --- |".repeat(devices.len()));
    for model in &trained.models {
        let cells: Vec<String> =
            devices.iter().map(|device| cell(&trained, model, device)).collect::<Result<_>>()?;
        println!("| {} | {} |", name(model), cells.join(" | "));
    }
    Ok(())
}

/// Returns the first device of each plugin, and of each PJRT library.
fn listed(trained: &Trained) -> Result<Vec<String>> {
    let output = trained.devbay("devices").output().context("cannot start devbay; `cargo build` makes it")?;
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

/// Runs a model's first case on a device, and returns its cell.
fn cell(trained: &Trained, model: &Path, device: &str) -> Result<String> {
    let mut command = trained.on_case("run", model);
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
