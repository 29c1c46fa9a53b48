//! `devbay completions SHELL`: prints a script that completes devbay's commands, options and their values in a shell.
//!
//! Hidden, because packages run it once and users never: the script is made from the same definitions as the help.

use crate::command_line;
use anyhow::{Context, Result};
use clap_complete::Shell;
use std::io::Write;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// If standard output cannot be written.
pub fn main(arguments: &Arguments) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(arguments.shell, &mut shown(command_line()), "devbay", &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script).and_then(|()| out.flush()).context("cannot write to standard output")
}

/// Returns a command line without its hidden commands.
pub fn shown(command: clap::Command) -> clap::Command {
    let name = command.get_name().to_owned();
    let about = command.get_about().cloned().unwrap_or_default();
    let version = command.get_version().unwrap_or_default().to_owned();
    let arguments: Vec<_> = command.get_arguments().cloned().collect();
    let commands: Vec<_> = command.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned().collect();
    clap::Command::new(name).about(about).version(version).args(arguments).subcommands(commands)
}
