//! The first stage: lists plugins, refused ones with their reasons, and the devices of the others.
//!
//! `cargo run -p devbay-host --example 01_list [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

#[expect(dead_code, reason = "this example has no model")]
mod setup;

use devbay_host::{Outcome, Result, SearchPaths};

fn main() -> Result<()> {
    // In addition, the plugins of the user and the system, and those in DEVBAY_PLUGIN_PATH.
    let runtime = setup::runtime().search(SearchPaths::from_environment()).build()?;
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
