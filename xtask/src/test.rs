//! `cargo xtask test`: every rule that a program can hold, in the order of what fails fastest.
//!
//! One profile throughout, so that nothing is compiled twice but for clippy, which keeps its own artefacts, and
//! the model checker, whose atomics are not the real ones.

use anyhow::{Context, Result, bail};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Runs all of it; stops at the first step that fails.
///
/// # Errors
/// If a step fails, or cannot be started.
pub fn run() -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for (name, body) in STEPS {
        eprintln!("xtask test: {name}");
        let begin = Instant::now();
        body().with_context(|| format!("step {name}"))?;
        times.push((name, begin.elapsed()));
    }
    for (name, time) in times {
        println!("{:>8.1} s  {name}", time.as_secs_f64());
    }
    if std::env::var_os("DEVBAY_MODELS").is_none() {
        println!(
            "Of the trained models only the repository's were tested: DEVBAY_MODELS is not set (docs/models.md)."
        );
    }
    Ok(())
}

/// What is off by default and has tests. The lints see the defaults.
const FEATURES: &str = "devbay-host/abi-stable";

type Step = (&'static str, fn() -> Result<()>);

const STEPS: &[Step] = &[
    ("format", || cargo(&["fmt", "--all", "--check"])),
    ("header, abi.lock and tables are what v0.rs says", || crate::abi::run(true)),
    ("lints", || cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])),
    ("fuzz targets", crate::fuzz::check),
    // The plugin libraries too, which tests load by path.
    ("build", || cargo(&["build", "--workspace", "--all-targets", "--features", FEATURES])),
    ("the plugin in C", crate::opencl::build_if_possible),
    ("tests", tests),
    ("documentation tests", || cargo(&["test", "--workspace", "--doc", "--quiet", "--features", FEATURES])),
    ("documentation", || {
        let mut command = cargo_command(&["doc", "--workspace", "--no-deps", "--quiet"]);
        command.env("RUSTDOCFLAGS", "--deny warnings");
        succeed(command)
    }),
    ("model checking", || {
        let mut command = cargo_command(&["test", "--package", "devbay-core", "--lib", "--quiet", "loom"]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
        succeed(command)
    }),
];

/// All tests: with nextest, which gives each a process, or where it is not installed by cargo's own runner.
fn tests() -> Result<()> {
    let nextest =
        cargo_command(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if nextest.is_ok_and(|status| status.success()) {
        return cargo(&["nextest", "run", "--workspace", "--no-fail-fast", "--features", FEATURES]);
    }
    eprintln!("xtask test: cargo-nextest is not installed; running the tests with cargo's own runner");
    cargo(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast", "--features", FEATURES])
}

fn cargo(arguments: &[&str]) -> Result<()> {
    succeed(cargo_command(arguments))
}

/// Builds targets of the workspace with what the tests' build has, so that nothing is compiled twice.
pub fn build(targets: &[&str]) -> Result<()> {
    let mut command = cargo_command(&["build", "--quiet", "--workspace", "--features", FEATURES]);
    command.args(targets);
    succeed(command)
}

/// cargo, to be run in the repository.
pub fn cargo_command(arguments: &[&str]) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args(arguments).current_dir(crate::abi::repository_root());
    command
}

/// Runs a command.
///
/// # Errors
/// If it cannot be started, or fails.
pub fn succeed(mut command: Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start {command:?}"))?;
    if !status.success() {
        bail!("{command:?} failed: {status}");
    }
    Ok(())
}
