//! What the repository does to itself. `cargo xtask --help` lists the commands.
//!
//! Everything here is for those who change devbay; nothing here ships.
#![expect(clippy::print_stdout, reason = "a command line tool talks on its standard output")]

mod abi;
mod test;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(about = "What the repository does to itself")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Generate the C header, the ABI's tables and abi.lock from plugin-api/src/abi/v0.rs
    Header {
        /// Change nothing; fail if what is committed is stale
        #[arg(long)]
        check: bool,
    },
    /// Run everything that the gate holds: formatting, lints, tests, documentation, model checking
    Test,
}

fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Header { check } => abi::run(check),
        Command::Test => test::run(),
    }
}
