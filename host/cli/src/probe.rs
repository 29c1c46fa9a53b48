//! `devbay probe`: loads one library, makes an instance, lists its devices, and says so on one marked line.
//!
//! Run as a child by whoever does not trust the library yet; see `devbay_host::probe`.

use crate::exit::usage;
use anyhow::Result;
use devbay_host::probe::{MARK, ProbeResult};
use devbay_host::report::Outcome;
use devbay_host::runtime::{Runtime, RuntimeOptions};
use std::io::Write;
use std::path::PathBuf;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The library
    path: PathBuf,
    /// An option for its plugin
    #[arg(long, value_name = "KEY=VALUE")]
    option: Vec<String>,
}

/// Tries the library and prints the result. What it finds out is a result, also a refusal; the exit code is 0.
///
/// # Errors
/// For options that cannot be read.
pub fn main(arguments: &Arguments) -> Result<()> {
    let mut options = Vec::new();
    for text in &arguments.option {
        let (key, value) =
            text.split_once('=').ok_or_else(|| usage(format!("--option is KEY=VALUE, found {text}")))?;
        options.push((key.to_owned(), value.to_owned()));
    }
    // The plugin's name is known after loading, so the options go to whatever it is called.
    let name = devbay_host::discover::name_of_library(&arguments.path).unwrap_or_default();
    let runtime = Runtime::new(RuntimeOptions {
        threads: 1,
        plugins: vec![arguments.path.clone()],
        plugin_options: options.into_iter().map(|(key, value)| (name.clone(), key, value)).collect(),
        ..RuntimeOptions::default()
    })?;
    let plugin = &runtime.report().plugins[0];
    let result = ProbeResult {
        name: plugin.name.clone(),
        n_devices: match plugin.outcome {
            Outcome::Loaded { n_devices, .. } => Some(n_devices),
            _ => None,
        },
        refusal: match &plugin.outcome {
            Outcome::Refused(refusal) => Some((refusal.kind.name().to_owned(), refusal.reason.clone())),
            _ => None,
        },
    };
    // On a line of its own, whatever the library has printed before.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{MARK}{}", serde_json::to_string(&result)?)?;
    stdout.flush()?;
    // What a library does at exit or unload is not part of the question.
    std::process::exit(0);
}
