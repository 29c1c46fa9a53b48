//! Runs every trained model under limits of address space, from where the command starts to where the model runs.
//!
//! A run either works or ends with exit code 7. Runs that ended with an error are counted apart from those that the
//! command's handler ended, after a request that must not fail (`cli/src/memory.rs`).

use crate::trained::{Trained, name};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// Step between limits in KiB
    #[arg(long, default_value_t = 2048)]
    step: u64,
    /// Number of consecutive limits that must work before a model counts as running
    #[arg(long, default_value_t = 4)]
    enough: u32,
    /// Threads of a run; each has its own stack and memory
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Only models whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// Use the command in target/release instead of target/debug
    #[arg(long)]
    release: bool,
}

/// Maximum limit of a model in KiB.
const LIMIT_MAX: u64 = 16 << 20;

/// Numbers of a model's runs by outcome.
#[derive(Default)]
struct Ends {
    worked: u32,
    /// Exit code 7 with an error, and by the handler.
    errors: u32,
    handled: u32,
    /// Any other outcome, in words.
    others: Vec<String>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let trained = Trained::new(arguments.release)?;
    let devbay = trained.devbay("run").get_program().to_owned();
    let start = (1024..LIMIT_MAX)
        .step_by(1024)
        .find(|&limit| {
            limited(limit, &devbay).arg("--version").output().is_ok_and(|out| out.status.success())
        })
        .context("the command does not start; `cargo build` makes it")?;
    println!(
        "The command starts with {} of address space; limits are {} KiB apart, {} threads a run.\n",
        mib(start),
        arguments.step,
        arguments.threads
    );
    println!(
        "| model | runs with | runs | worked | exit 7: an error | exit 7: the handler | anything else |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut all = Ends::default();
    let wanted =
        |model: &&std::path::PathBuf| arguments.only.as_ref().is_none_or(|only| name(model).contains(only));
    for model in trained.models.iter().filter(wanted) {
        let (ends, needed) = ends_of(model, &devbay, start, arguments)?;
        row(&name(model), &mib(needed), &ends);
        all.worked += ends.worked;
        all.errors += ends.errors;
        all.handled += ends.handled;
        all.others.extend(ends.others.into_iter().map(|end| format!("{}: {end}", name(model))));
    }
    row("all", "", &all);
    if all.others.is_empty() {
        return Ok(());
    }
    bail!("runs that neither worked nor ended with exit code 7:\n{}", all.others.join("\n"))
}

fn row(name: &str, needed: &str, ends: &Ends) {
    let Ends { worked, errors, handled, others } = ends;
    let runs = worked + errors + handled + others.len() as u32;
    println!("| {name} | {needed} | {runs} | {worked} | {errors} | {handled} | {} |", others.len());
}

/// Formats KiB.
fn mib(kib: u64) -> String {
    if kib.is_multiple_of(1024) {
        format!("{} MiB", kib / 1024)
    } else {
        format!("{:.1} MiB", kib as f64 / 1024.0)
    }
}

/// Returns a command that runs a program with limited address space, in KiB.
fn limited(limit: u64, program: &std::ffi::OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v $0 && exec \"$@\"", &limit.to_string()]).arg(program);
    shell
}

/// Runs a model with growing limits until it works several times in a row. Returns the lowest limit that works.
fn ends_of(model: &Path, devbay: &std::ffi::OsStr, start: u64, arguments: &Arguments) -> Result<(Ends, u64)> {
    let (mut ends, mut on_end, mut needed, mut limit) = (Ends::default(), 0, start, start);
    while on_end < arguments.enough {
        if limit > LIMIT_MAX {
            bail!("{} does not run with {}", name(model), mib(LIMIT_MAX));
        }
        let mut run = limited(limit, devbay);
        run.arg("run").arg(model.join("model.onnx")).arg("--input").arg(model.join("case0.inputs.npz"));
        run.args(["--device", "cpu", "--threads", &arguments.threads.to_string()]);
        let output = run.output().context("cannot start a shell")?;
        let words = String::from_utf8_lossy(&output.stderr);
        if on_end == 0 {
            needed = limit;
        }
        on_end = if output.status.success() { on_end + 1 } else { 0 };
        match output.status.code() {
            // Rust's runtime panics if a new thread has no room for its signal stack.
            Some(7) if words.contains("cannot be refused") => ends.handled += 1,
            _ if words.contains("panicked") => ends.others.push(format!("{}: {words}", mib(limit))),
            Some(0) => ends.worked += 1,
            Some(7) => ends.errors += 1,
            _ => ends.others.push(format!("{}: {}: {words}", mib(limit), output.status)),
        }
        limit += arguments.step;
    }
    Ok((ends, needed))
}
