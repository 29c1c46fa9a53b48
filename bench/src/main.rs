//! devbay beside its peers: one command, one table.
//!
//! `cargo xtask bench [NAME…] [--json]` builds this and the peers, and runs it. Every row has the median, minimum and
//! maximum over passes. Compared subjects take turns within each pass, so that a slowdown of the machine affects all of
//! them. Ratios are computed per pass. `docs/benchmarks.md` explains how to read them.
#![expect(clippy::print_stdout, reason = "rows go to standard output")]

mod agree;
mod arena;
mod async_value;
#[cfg(feature = "wgpu")]
mod bare_wgpu;
mod beside;
mod cold_start;
mod compiled_start;
mod control;
mod dense;
mod devices;
mod executor;
mod from_c;
#[cfg(feature = "wgpu")]
mod gpu_launch;
mod graphs;
mod launch;
mod measure;
mod models;
mod passes;
mod peers;
mod ran;
#[cfg(test)]
mod ran_tests;
mod resnet50;
mod rows;
mod serving;
mod setup;
mod start;
mod straight;
mod streaming;
mod wake;

use anyhow::{Result, ensure};
use clap::Parser;
use peers::Peers;
use rows::Rows;
use std::ffi::OsString;

#[derive(Parser)]
#[command(about = "Measures devbay beside its peers")]
struct Arguments {
    /// Benchmarks to run; all of them by default
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Print each row as one JSON object a line
    #[arg(long)]
    json: bool,
    /// Number of times to repeat each comparison, at least three
    #[arg(long, value_name = "N", default_value_t = 15)]
    passes: usize,
    /// Run only the cases whose names contain TEXT
    #[arg(long, value_name = "TEXT")]
    case: Option<String>,
    #[command(flatten)]
    peers: Peers,
}

type Bench = fn(&mut Rows, &Peers, usize) -> Result<()>;

/// The benchmarks, by name.
const BENCHES: &[(&str, Bench)] = &[
    ("launch", launch::run),
    ("straight", straight::run),
    ("async-value", async_value::run),
    ("dense", dense::run),
    ("resnet50", resnet50::run),
    ("models", models::run),
    ("passes", passes::run),
    ("arena", arena::run),
    ("cold-start", cold_start::run),
    ("compiled-start", compiled_start::run),
    ("executor", executor::run),
    ("from-c", from_c::run),
    ("serving", serving::run),
    ("wake", wake::run),
    ("streaming", streaming::run),
    #[cfg(feature = "wgpu")]
    ("gpu-launch", gpu_launch::run),
];

const _: () = {
    let mut at = 0;
    while at < BENCHES.len() {
        assert!(BENCHES[at].0.len() <= rows::NAME_WIDTH, "the table's column of benchmarks is too narrow");
        at += 1;
    }
};

fn main() -> Result<()> {
    let mut raw: Vec<OsString> = std::env::args_os().skip(1).collect();
    // `cold-start` starts this program as its small process; the arguments after the flag are for another program.
    if raw.first().is_some_and(|first| first == start::FLAG) {
        return start::main(&raw.split_off(1));
    }
    let arguments = Arguments::parse();
    let wanted =
        |name: &str| arguments.names.is_empty() || arguments.names.iter().any(|wanted| wanted == name);
    let known: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
    for name in &arguments.names {
        ensure!(
            known.contains(&name.as_str()),
            "there is no benchmark `{name}`; there are: {}",
            known.join(", ")
        );
    }
    let mut rows = Rows::new(arguments.json, arguments.case);
    let mut failed = Vec::new();
    for (name, bench) in BENCHES.iter().filter(|(name, _)| wanted(name)) {
        // Continue with the other benchmarks, because a run of all of them takes minutes.
        if let Err(error) = bench(&mut rows, &arguments.peers, arguments.passes.max(3)) {
            eprintln!("{name}: {error:#}");
            failed.push(*name);
        }
    }
    ensure!(failed.is_empty(), "failed: {}", failed.join(", "));
    Ok(())
}
