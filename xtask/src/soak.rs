//! `cargo xtask soak`: runs small plans very many times, and checks that no memory is kept (`host/tests/soak.rs`).

use crate::test::{cargo_command, succeed};
use anyhow::Result;

#[derive(clap::Args)]
pub struct Arguments {
    /// Number of runs
    #[arg(long, value_name = "N", default_value_t = 10_000_000)]
    runs: u64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let mut command = cargo_command(&["test", "--release", "--workspace", "--test", "soak"]);
    command.args(["--", "--nocapture"]).env("DEVBAY_SOAK", arguments.runs.to_string());
    succeed(command)
}
