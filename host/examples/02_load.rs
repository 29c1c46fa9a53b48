//! The second stage: a plugin by its path. What it says of itself, its kernels, and what a wrong file gives.
//!
//! `cargo run -p devbay-host --example 02_load [PLUGIN]`, after `cargo build -p devbay-plugin-cpu`.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

use devbay_host::{Result, Runtime};
use std::path::PathBuf;

fn main() -> Result<()> {
    let path = plugin();
    let load = |path: PathBuf| Runtime::builder().plugin(path).build();
    let runtime = load(path)?;
    for plugin in runtime.plugins() {
        let about = plugin.about();
        println!("{} {} by {}, ABI 0.{}", about.name, about.version, about.vendor, plugin.minor());
        for option in &about.options {
            println!("  option {} = {}: {}", option.key, option.default, option.doc);
        }
    }
    // A file that is no plugin is refused with its reason, and the runtime goes on without it.
    let runtime = load(std::env::current_exe().unwrap_or_default())?;
    for (plugin, refusal) in runtime.report().refused() {
        println!("{}: refused: {refusal}", plugin.title());
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
