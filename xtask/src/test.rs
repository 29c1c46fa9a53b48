//! `cargo xtask test`: runs every check of the repository, those that fail fastest first.
//!
//! All steps use one profile and one set of features, so that nothing is compiled twice. The exceptions are clippy, which
//! keeps its own artefacts, and the model checker, whose atomics are not the real ones.

use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[derive(clap::Args)]
pub struct Arguments {
    /// Also run the tests that the gate leaves out (ignored ones, whose reasons begin with `full`); they take a quarter of
    /// an hour
    #[arg(long)]
    full: bool,
    /// Number of threads that compute without pause during the tests, to find failures on a busy machine
    #[arg(long, value_name = "N", default_value_t = 0)]
    busy: usize,
}

/// Number of slowest tests to print.
const SLOWEST: usize = 30;

/// Runs all steps; stops at the first one that fails.
///
/// # Errors
/// If a step fails, or cannot be started.
pub fn run(arguments: &Arguments) -> Result<()> {
    let mut times: Vec<(&str, Duration)> = Vec::new();
    for _ in 0..arguments.busy {
        // Runs until the process ends.
        std::thread::spawn(|| {
            loop {
                std::hint::spin_loop();
            }
        });
    }
    for (name, body) in STEPS {
        eprintln!("xtask test: {name}");
        let begin = Instant::now();
        body(arguments).with_context(|| format!("step {name}"))?;
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

/// Checks that the build with tests has made the command just as the README's first line builds it.
fn command_is_compiled() -> Result<()> {
    let built =
        cargo_command(&["build", "--bin", "devbay", "--message-format", "json", "--quiet"]).output()?;
    ensure!(built.status.success(), "the command does not build: {}", String::from_utf8_lossy(&built.stderr));
    let mut anew = Vec::new();
    for line in built.stdout.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let message: serde_json::Value = serde_json::from_slice(line)?;
        if message["fresh"] == false {
            anew.push(message["target"]["name"].as_str().unwrap_or("?").to_owned());
        }
    }
    let names = anew.join(", ");
    ensure!(
        anew.is_empty(),
        "compiled twice, with and without tests: {names}; docs/testing.md gives the cause"
    );
    Ok(())
}

type TestStep = (&'static str, fn(&Arguments) -> Result<()>);

const STEPS: &[TestStep] = &[
    ("format", |_| cargo(&["fmt", "--all", "--check"])),
    ("header, abi.lock and tables match v0.rs", |_| crate::abi::run(true)),
    ("lints", |_| cargo(&["clippy", "--workspace", "--all-targets", "--", "--deny", "warnings"])),
    // The plugin libraries too, since tests load them by path.
    ("build", |_| cargo(&["build", "--workspace", "--all-targets"])),
    ("nothing is compiled twice", |_| command_is_compiled()),
    ("the plugin in C", |_| crate::opencl::build_if_possible()),
    ("tests", tests),
    ("the Python package", |_| crate::python_package::test_if_possible()),
    ("documentation tests", |_| cargo(&["test", "--workspace", "--doc", "--quiet"])),
    ("documentation", |_| {
        let mut command = cargo_command(&["doc", "--workspace", "--no-deps", "--quiet"]);
        command.env("RUSTDOCFLAGS", "--deny warnings");
        succeed(command)
    }),
    ("model checking", |_| {
        let mut command = cargo_command(&["test", "--package", "devbay-core", "--lib", "--quiet", "loom"]);
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", "target/loom");
        succeed(command)
    }),
];

/// Runs all tests: with nextest, which gives each a process, or with cargo's own runner if it is not installed.
fn tests(arguments: &Arguments) -> Result<()> {
    let nextest =
        cargo_command(&["nextest", "--version"]).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if nextest.is_ok_and(|status| status.success()) {
        // Two more than the number of processors: with one more, they are busy for four fifths of the time, because tests wait for
        // children, drivers and deadlines.
        let threads = std::thread::available_parallelism().map_or(2, |n| n.get() + 2).to_string();
        let mut command = cargo_command(&["nextest", "run", "--workspace", "--no-fail-fast"]);
        command.args(["--test-threads", &threads]);
        if arguments.full {
            command.args(["--run-ignored", "all"]);
        }
        let report = crate::target_folder()?.join("nextest/default/junit.xml");
        let _ = fs::remove_file(&report);
        let end = succeed(command);
        // Also after failed tests.
        for (seconds, name) in slowest(&fs::read_to_string(&report).unwrap_or_default()) {
            println!("{seconds:>8.1} s  {name}");
        }
        return end;
    }
    eprintln!("xtask test: cargo-nextest is not installed; running the tests with cargo's own runner");
    let mut command = cargo_command(&["test", "--workspace", "--lib", "--bins", "--tests", "--no-fail-fast"]);
    if arguments.full {
        command.args(["--", "--include-ignored"]);
    }
    succeed(command)
}

/// Returns the slowest tests of nextest's report in JUnit's format.
fn slowest(report: &str) -> Vec<(f64, String)> {
    let attribute = |element: &str, name: &str| {
        let (_, rest) = element.split_once(&format!(" {name}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let mut tests: Vec<(f64, String)> = report
        .split("<testcase")
        .skip(1)
        .filter_map(|rest| {
            let element = rest.split_once('>')?.0;
            let name = [attribute(element, "classname")?, attribute(element, "name")?].join(" ");
            Some((attribute(element, "time")?.parse().ok()?, name))
        })
        .collect();
    tests.sort_by(|(a, _), (b, _)| b.total_cmp(a));
    tests.truncate(SLOWEST);
    tests
}

fn cargo(arguments: &[&str]) -> Result<()> {
    succeed(cargo_command(arguments))
}

/// Builds targets of the workspace with the features of the tests' build, so that nothing is compiled twice.
pub fn build(targets: &[&str]) -> Result<()> {
    // A build without tests lacks the features that tests enable.
    let mut command =
        cargo_command(&["build", "--quiet", "--workspace", "--features", "devbay-host/abi-stable"]);
    command.args(targets);
    succeed(command)
}

/// Returns a cargo command that runs in the repository.
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

#[cfg(test)]
mod tests {
    #[test]
    fn the_slowest_tests_are_found() {
        let report = r#"<testsuite name="host"><testcase name="a" classname="host::x" timestamp="t" time="1.5"/>
            <testcase name="b" classname="host" time="20.000"><failure message="x > y"/></testcase></testsuite>"#;
        let expected = [(20.0, "host b".to_owned()), (1.5, "host::x a".to_owned())];
        assert_eq!(super::slowest(report), expected);
        assert!(super::slowest("").is_empty());
    }
}
