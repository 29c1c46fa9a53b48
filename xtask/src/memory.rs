//! Every trained model under limits of address space, from where the command starts to where it runs.
//!
//! A run either works or ends with exit code 7. Those that ended with an error are counted apart from those that the
//! command's handler ended, for a request that cannot be refused (`cli/src/memory.rs`).

use crate::trained::{Trained, name};
use anyhow::{Context, Result, bail};
use std::path::Path;
use std::process::Command;

#[derive(clap::Args)]
pub struct Arguments {
    /// KiB from one limit to the next
    #[arg(long, default_value_t = 2048)]
    step: u64,
    /// Runs that work, one limit after the other, until a model counts as run
    #[arg(long, default_value_t = 4)]
    enough: u32,
    /// Threads of a run; each has a stack and memory of its own
    #[arg(long, default_value_t = 1)]
    threads: usize,
    /// Only models whose names contain this
    #[arg(long)]
    only: Option<String>,
    /// The command in target/release, not in target/debug
    #[arg(long)]
    release: bool,
}

/// The most that a model is given, in KiB.
const LIMIT_MAX: u64 = 16 << 20;

/// Numbers of a model's runs by how they ended.
#[derive(Default)]
struct Ends {
    worked: u32,
    /// Exit code 7 with an error, and by the handler.
    errors: u32,
    handled: u32,
    /// Everything else, in words.
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

/// KiB in words.
fn mib(kib: u64) -> String {
    if kib.is_multiple_of(1024) {
        format!("{} MiB", kib / 1024)
    } else {
        format!("{:.1} MiB", kib as f64 / 1024.0)
    }
}

/// A program with so much address space, in KiB.
fn limited(limit: u64, program: &std::ffi::OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -v $0 && exec \"$@\"", &limit.to_string()]).arg(program);
    shell
}

/// Runs a model with more and more, until it works several times on end. Gives the least with which it did.
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
            // Rust's runtime panics where a new thread has no room for a stack of its signal handlers.
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
