//! `devbay devices`: lists devices, refused plugins and measured rates.

use crate::layers::Done;
use crate::options::PluginArguments;
use crate::{say, table};
use anyhow::{Result, bail};
use devbay_host::internals::calibrate::{Calibration, Figure, Quantity, calibrate};
use devbay_host::internals::rates_file::{self, KnownRates};
use devbay_host::{Device, Outcome, Runtime};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    plugins: PluginArguments,
    /// Measure how fast devices are, and save the rates for the planner
    #[arg(long)]
    calibrate: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists devices and refusals. Succeeds even without devices, because an empty list is an answer.
///
/// # Errors
/// For invalid options, and findings of layers.
pub fn main(arguments: &Arguments) -> Result<()> {
    arguments.plugins.layers.conclude(list(arguments))
}

fn list(arguments: &Arguments) -> Result<Done> {
    let runtime = arguments.plugins.runtime(None)?;
    if arguments.calibrate {
        return measure(arguments, &runtime);
    }
    if arguments.json {
        let devices: Vec<_> = runtime
            .devices()
            .iter()
            .map(|device| {
                let about = device.about();
                json!({
                    "device": device.name(),
                    "id": device.stable_id(),
                    "kind": about.kind_name(),
                    "name": about.product,
                    "driver": about.driver,
                    "inline": about.inline,
                    "memory_bytes": device.space().bytes_total,
                    "kernels": device.kernels().len(),
                    "abi_minor": device.plugin().minor(),
                    "rates": rates(device),
                })
            })
            .collect();
        let plugins: Vec<_> = runtime
            .report()
            .plugins
            .iter()
            .map(|plugin| {
                let (outcome, kind, reason, details) = match &plugin.outcome {
                    Outcome::Loaded { .. } => ("loaded", None, None, Vec::new()),
                    Outcome::NotAsked => ("not-asked", None, None, Vec::new()),
                    Outcome::Replaced => ("replaced", None, None, Vec::new()),
                    Outcome::Refused(refusal) => {
                        ("refused", Some(refusal.kind.name()), Some(&refusal.reason), refusal.details.clone())
                    }
                };
                json!({
                    "name": plugin.name,
                    "origin": plugin.origin,
                    "library": plugin.library,
                    "outcome": outcome,
                    "kind": kind,
                    "reason": reason,
                    "details": details,
                    "notes": plugin.notes,
                })
            })
            .collect();
        return Ok(Done::json(json!({
            "devices": devices, "plugins": plugins, "notes": runtime.report().notes,
        })));
    }

    let rows: Vec<Vec<String>> = runtime
        .devices()
        .iter()
        .map(|device| {
            let about = device.about();
            let memory = device.space().bytes_total;
            vec![
                device.name().to_owned(),
                about.kind_name().to_owned(),
                about.product.clone(),
                if memory == 0 { "?".to_owned() } else { table::bytes(memory) },
                device.kernels().len().to_string(),
                about.driver.clone(),
            ]
        })
        .collect();
    if rows.is_empty() {
        say!("no devices");
    } else {
        table::print(&["DEVICE", "KIND", "NAME", ">MEMORY", ">KERNELS", "DRIVER"], &rows);
    }
    let mut refused = runtime.report().refused().peekable();
    if refused.peek().is_some() {
        say!("\nrefused plugins");
    }
    for (plugin, refusal) in refused {
        say!("  {} ({})", plugin.title(), plugin.origin);
        say!("    {refusal}");
        for detail in &refusal.details {
            say!("    {detail}");
        }
    }
    for plugin in &runtime.report().plugins {
        for note in &plugin.notes {
            say!("note: plugin {} ({}): {note}", plugin.name.as_deref().unwrap_or("?"), plugin.origin);
        }
    }
    Ok(Done::printed())
}

/// Returns a device's rates as planning uses them.
fn rates(device: &Device) -> Value {
    let mut rates = device.expected_rates();
    let mut value = json!({ "measured": device.rates().is_some() });
    for quantity in Quantity::all() {
        value[quantity.name()] = json!(*quantity.of(&mut rates));
    }
    value
}

/// Measures all devices, prints the rates, then stores them.
fn measure(arguments: &Arguments, runtime: &Runtime) -> Result<Done> {
    // Kernels divide their loops among the queue's threads, so per-thread rates need a queue of one thread.
    let alone = PluginArguments { threads: Some(1), ..arguments.plugins.clone() }.runtime(None)?;
    let mut measured: Vec<(Arc<Device>, Calibration)> = Vec::new();
    for device in runtime.devices() {
        let of_one = alone.devices().into_iter().find(|single| single.stable_id() == device.stable_id());
        let Some(single) = of_one else {
            bail!("{} is gone when it is asked for a second time", device.stable_id());
        };
        let calibration = calibrate(&device, &single)?;
        measured.push((device, calibration));
    }
    // Print the rates even if storing them fails.
    let kept = keep(runtime, &measured);
    let json = print_measured(arguments, runtime, &measured, kept.as_deref().ok());
    Ok(Done { json, verdict: kept.map(|_| ()) })
}

/// Writes the rates to the user's file, and returns its path.
fn keep(runtime: &Runtime, measured: &[(Arc<Device>, Calibration)]) -> Result<PathBuf> {
    let Some(path) = rates_file::path_from_environment() else {
        bail!("there is no folder to keep the rates in: set DEVBAY_CACHE_DIR to one");
    };
    // The runtime already warned about faults of the old file; it is replaced.
    let (mut known, _) = KnownRates::read(&path);
    for (device, calibration) in measured {
        known.put(runtime.rates_key(device), calibration);
    }
    known.write(&path)?;
    Ok(path)
}

/// Prints the rates, or returns them as JSON.
fn print_measured(
    arguments: &Arguments,
    runtime: &Runtime,
    measured: &[(Arc<Device>, Calibration)],
    path: Option<&Path>,
) -> Option<Value> {
    if arguments.json {
        let figure = |figure: &Figure| {
            json!({
                "name": figure.quantity.name(), "value": figure.value, "unit": figure.quantity.unit(),
                "measured": figure.default_because.is_none(), "reason": figure.default_because,
            })
        };
        let devices: Vec<Value> = measured
            .iter()
            .map(|(device, calibration)| {
                let figures: Vec<Value> = calibration.figures.iter().map(figure).collect();
                json!({
                    "device": device.name(), "id": device.stable_id(), "took_ns": calibration.took.as_nanos() as u64,
                    "figures": figures,
                })
            })
            .collect();
        return Some(json!({ "devices": devices, "threads": runtime.n_threads(), "file": path }));
    }
    if measured.is_empty() {
        say!("no devices");
        return None;
    }
    let rows: Vec<Vec<String>> = measured
        .iter()
        .flat_map(|(device, calibration)| {
            calibration.figures.iter().map(|figure| {
                let mut defaults = calibration.defaults;
                vec![
                    device.name().to_owned(),
                    figure.quantity.title(),
                    format!("{:.2}", figure.value),
                    figure.quantity.unit().to_owned(),
                    format!("{}", figure.quantity.of(&mut defaults)),
                    figure
                        .default_because
                        .as_ref()
                        .map_or_else(|| "measured".to_owned(), |reason| format!("the default: {reason}")),
                ]
            })
        })
        .collect();
    table::print(&["DEVICE", "RATE", ">VALUE", "UNIT", ">DEFAULT", "FROM"], &rows);
    for (device, calibration) in measured {
        let took = table::duration(calibration.took.as_nanos() as f64);
        say!("\n{} took {took}, with {} threads", device.name(), runtime.n_threads());
    }
    if let Some(path) = path {
        say!("kept in {}", path.display());
    }
    None
}
