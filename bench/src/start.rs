//! Starts a program, and measures the time to its first line and its peak memory.
//!
//! The kernel includes the parent's memory at the start in a process's peak. To keep that small, a small process starts the
//! program: this program again, with `--start`.

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;
use wait4::Wait4;

/// The argument that makes this program the small process.
pub const FLAG: &str = "--start";

/// Cost of a start.
#[derive(Serialize, Deserialize)]
pub struct Started {
    /// Milliseconds until the first line on its standard output.
    pub ms: f64,
    /// Peak memory in MiB.
    pub peak_mib: f64,
    /// The first line.
    pub line: String,
}

/// Starts a program through a small process.
///
/// # Errors
/// For a program that cannot be started, or fails.
pub fn start(command: &Command) -> Result<Started> {
    let output = Command::new(std::env::current_exe()?)
        .arg(FLAG)
        .arg(command.get_program())
        .args(command.get_args())
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "{} failed: {}", command.get_program().display(), output.status);
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// Runs the small process: starts the program and prints its cost.
///
/// # Errors
/// As [`start`].
pub fn main(command: &[OsString]) -> Result<()> {
    let (program, arguments) = command.split_first().context("--start takes a command")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
    let begin = Instant::now();
    let mut child = command.spawn().with_context(|| format!("cannot start {}", program.display()))?;
    let mut output = BufReader::new(child.stdout.take().context("its output is a pipe")?);
    let mut line = String::new();
    output.read_line(&mut line)?;
    let ms = begin.elapsed().as_nanos() as f64 / 1e6;
    // A program whose output is not read might never end.
    output.read_to_end(&mut Vec::new())?;
    let usage = child.wait4()?;
    ensure!(usage.status.success(), "{} failed: {}", program.display(), usage.status);
    let peak_mib = usage.rusage.maxrss as f64 / f64::from(1 << 20);
    println!("{}", serde_json::to_string(&Started { ms, peak_mib, line: line.trim_end().to_owned() })?);
    Ok(())
}
