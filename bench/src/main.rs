//! devbay beside its peers: one command, one table.
//!
//! `cargo xtask bench [NAME] [--json]` builds this and the peers, and runs it. Every row is a median over passes
//! with its least and greatest; subjects that are compared take turns within each pass, so that a machine that
//! slows down slows both. Ratios are taken pass by pass.
#![expect(clippy::print_stdout, reason = "rows go to standard output")]

mod cold_start;
mod dense;
mod launch;
mod measure;
mod models;
mod peers;
mod resnet50;
mod rows;
mod setup;
mod straight;

use anyhow::{Result, bail};
use clap::Parser;
use peers::Peers;
use rows::Rows;
use std::path::PathBuf;

#[derive(Parser)]
#[command(about = "Measures devbay beside its peers")]
struct Arguments {
    /// Which benchmark; all of them if none is named
    name: Option<String>,
    /// Print each row as one JSON object a line
    #[arg(long)]
    json: bool,
    /// Where xtask has put the peers
    #[arg(long, value_name = "DIR")]
    peers: Option<PathBuf>,
    /// How often each comparison is repeated
    #[arg(long, default_value_t = 15)]
    passes: usize,
}

type Bench = fn(&mut Rows, &Peers, usize) -> Result<()>;

/// The benchmarks, by name.
const BENCHES: &[(&str, Bench)] = &[
    ("launch", launch::run),
    ("straight", straight::run),
    ("dense", dense::run),
    ("resnet50", resnet50::run),
    ("models", models::run),
    ("cold-start", cold_start::run),
];

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let peers = Peers::find(arguments.peers.as_deref());
    let mut rows = Rows::new(arguments.json);
    let mut found = false;
    for (name, bench) in BENCHES {
        if arguments.name.as_deref().is_none_or(|wanted| wanted == *name) {
            found = true;
            bench(&mut rows, &peers, arguments.passes.max(3))?;
        }
    }
    if !found {
        let names: Vec<&str> = BENCHES.iter().map(|(name, _)| *name).collect();
        bail!("there is no such benchmark; there are: {}", names.join(", "));
    }
    Ok(())
}
