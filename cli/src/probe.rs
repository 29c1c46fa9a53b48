//! `devbay probe`: loads one library, makes an instance, lists its devices, and prints one marked line.
//!
//! A process runs this as a child to try an untrusted library; see `devbay_host::internals::probe`.

use crate::exit::usage;
use anyhow::Result;
use devbay_host::internals::probe;
use std::path::PathBuf;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The library
    path: PathBuf,
    /// Token behind the mark in the result's line, to recognise the output of this probe
    #[arg(long, value_name = "TOKEN", default_value = "")]
    token: String,
    /// An option for its plugin
    #[arg(long, value_name = "KEY=VALUE")]
    option: Vec<String>,
}

/// Tries the library and prints the result. Every finding is a result, even a refusal; the exit code is 0.
///
/// # Errors
/// For invalid options.
pub fn main(arguments: &Arguments) -> Result<()> {
    let mut options = Vec::new();
    for text in &arguments.option {
        let (key, value) =
            text.split_once('=').ok_or_else(|| usage(format!("--option is KEY=VALUE, found {text}")))?;
        options.push((key.to_owned(), value.to_owned()));
    }
    let line = probe::answer(&arguments.path, &options, &arguments.token)?;
    probe::print_and_end(&line)
}
