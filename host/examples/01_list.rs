//! The first stage: which plugins there are, which were refused and why, and the devices of the others.
//!
//! `cargo run -p devbay-host --example 01_list [PLUGIN]`, after `cargo build -p devbay-plugin-cpu`.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use devbay_host::{Outcome, Result, Runtime, SearchPaths};
use std::path::PathBuf;

fn main() -> Result<()> {
    let runtime = Runtime::builder().plugin(plugin()).search(SearchPaths::from_environment()).build()?;
    // A bad plugin is a line in the report. It never stops the others.
    for plugin in &runtime.report().plugins {
        match &plugin.outcome {
            Outcome::Loaded { minor, n_devices } => {
                println!("{}: ABI 0.{minor}, {n_devices} devices", plugin.title());
            }
            Outcome::Refused(refusal) => println!("{}: refused: {refusal}", plugin.title()),
            Outcome::NotAsked | Outcome::Replaced => println!("{}: left alone", plugin.title()),
        }
    }
    for device in runtime.devices() {
        let about = device.about();
        println!("{} is a {}: {}", device.name(), about.kind_name(), about.product);
    }
    Ok(())
}

/// The plugin that is named, or the CPU plugin where cargo puts it.
fn plugin() -> PathBuf {
    std::env::args_os().nth(1).map_or_else(
        || {
            let example = std::env::current_exe().unwrap_or_default();
            example.with_file_name("..").join("libdevbay_plugin_cpu.so")
        },
        PathBuf::from,
    )
}
