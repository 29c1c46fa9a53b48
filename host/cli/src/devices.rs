//! `devbay devices`: what there is to run on, and what was refused.

use crate::options::PluginArguments;
use crate::{say, table};
use anyhow::Result;
use devbay_host::report::Outcome;
use serde_json::json;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(flatten)]
    plugins: PluginArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Lists devices and refusals. Without any device it still succeeds: an empty list is an answer.
///
/// # Errors
/// For options that cannot be read.
pub fn main(arguments: &Arguments) -> Result<()> {
    let runtime = arguments.plugins.runtime(None)?;
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
                    "kernels": device.plugin().about().kernels.len(),
                    "abi_minor": device.plugin().minor(),
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
        say!("{}", serde_json::to_string_pretty(&json!({ "devices": devices, "plugins": plugins }))?);
        return Ok(());
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
                device.plugin().about().kernels.len().to_string(),
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
    Ok(())
}
