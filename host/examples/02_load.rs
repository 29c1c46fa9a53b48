//! The second stage: loads one plugin and prints its name, version and options; then loads a wrong file.
//!
//! `cargo run -p devbay-host --example 02_load [PLUGIN]`; without a plugin, the CPU plugin is used.

#![expect(clippy::print_stdout, reason = "an example shows what it finds")]

#[expect(dead_code, reason = "this example has no model")]
mod setup;

use devbay_host::{Result, Runtime};

fn main() -> Result<()> {
    let runtime = setup::runtime().build()?;
    for plugin in runtime.plugins() {
        let about = plugin.about();
        println!("{} {} by {}, ABI 0.{}", about.name, about.version, about.vendor, plugin.minor());
        for option in &about.options {
            println!("  option {} = {}: {}", option.key, option.default, option.doc);
        }
    }
    // A file that is not a plugin is refused with its reason, and the runtime continues without it.
    let runtime = Runtime::builder().plugin(std::env::current_exe().unwrap_or_default()).build()?;
    for (plugin, refusal) in runtime.report().refused() {
        println!("{}: refused: {refusal}", plugin.title());
    }
    Ok(())
}
