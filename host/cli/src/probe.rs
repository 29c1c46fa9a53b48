//! `devbay probe`: loads one library, makes an instance, lists its devices, and says so on one marked line.
//!
//! Run as a child by whoever does not trust the library yet; see `devbay_host::probe`.

use crate::exit::usage;
use anyhow::Result;
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
    let line = devbay_host::probe::answer(&arguments.path, &options)?;
    // On a line of its own, whatever the library has printed before.
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{line}")?;
    stdout.flush()?;
    // What a library does at exit or unload is not part of the question.
    std::process::exit(0);
}
