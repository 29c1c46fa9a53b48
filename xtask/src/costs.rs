//! `cargo xtask costs [DEVICE]`: predicted and measured times of launches, for every trained model, as Markdown tables.
//!
//! Each model runs its first case with `devbay bench --cost`; predictions use the rates stored by
//! `devbay devices --calibrate`. All launches of an op, over all models, are a row of the second table.

use crate::trained::{Trained, name};
use anyhow::{Context, Result};
use std::collections::BTreeMap;

#[derive(clap::Args)]
pub struct Arguments {
    /// The device
    #[arg(value_name = "DEVICE", default_value = "cpu:0")]
    device: String,
    /// Seconds to measure each model for
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// Number of ops in the second table, slowest first
    #[arg(long, value_name = "N", default_value_t = 20)]
    ops: usize,
    /// Use programs and plugins of target/release instead of target/debug
    #[arg(long)]
    release: bool,
}

/// A launch's predicted and measured time in nanoseconds, and its number of executions per run.
#[derive(Clone, Copy)]
struct Launch {
    predicted: f64,
    measured: f64,
    per_run: f64,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let trained = Trained::new(arguments.release)?;
    let seconds = arguments.seconds.to_string();
    let mut ops: BTreeMap<String, Vec<Launch>> = BTreeMap::new();
    let mut rows = Vec::new();
    for model in &trained.models {
        let name = name(model);
        let options = ["--cost", "--device", &arguments.device, "--seconds", &seconds];
        let report = trained.bench(model, &options)?;
        if report["rates_measured"] != true {
            eprintln!("{name}: rates are guesses; `devbay devices --calibrate --threads 1` measures them");
        }
        let mut own = Vec::new();
        for launch in report["launches"].as_array().into_iter().flatten() {
            let number = |key: &str| launch[key].as_f64().with_context(|| format!("{key} of {launch}"));
            let times = Launch {
                predicted: number("predicted_ns")?,
                measured: number("measured_ns")?,
                per_run: number("per_run")?,
            };
            own.push(times);
            ops.entry(launch["op"].as_str().unwrap_or_default().to_owned()).or_default().push(times);
        }
        let correlation = report["fit"]["rank_correlation"].as_f64();
        rows.push((name, correlation, own));
    }
    println!(
        "| model | launches | predicted | measured | ratio | rank correlation | factor | 90th percentile |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    for (name, correlation, launches) in &rows {
        let correlation = correlation.map_or("none".to_owned(), |value| format!("{value:.3}"));
        println!("| {name} | {} |", cells(launches, Some(&correlation)));
    }
    let all: Vec<Launch> = rows.iter().flat_map(|(.., launches)| launches).copied().collect();
    println!("| all | {} |", cells(&all, Some("")));
    println!("\n| op | launches | predicted | measured | ratio | factor | 90th percentile |");
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut ops: Vec<_> = ops.into_iter().collect();
    let measured = |launches: &[Launch]| total(launches, |launch| launch.measured);
    ops.sort_by(|(_, a), (_, b)| measured(b).total_cmp(&measured(a)));
    for (op, launches) in ops.iter().take(arguments.ops) {
        println!("| {op} | {} |", cells(launches, None));
    }
    Ok(())
}

/// Returns the nanoseconds of a run.
fn total(launches: &[Launch], time: fn(&Launch) -> f64) -> f64 {
    launches.iter().map(|launch| time(launch) * launch.per_run).sum()
}

/// Returns a row's cells; with the rank correlation, if wanted.
fn cells(launches: &[Launch], correlation: Option<&str>) -> String {
    let mut off: Vec<f64> =
        launches.iter().map(|launch| (launch.predicted / launch.measured).ln().abs()).collect();
    off.sort_by(f64::total_cmp);
    let factor = |share: f64| {
        off.get((off.len().saturating_sub(1) as f64 * share).round() as usize).map_or(1.0, |off| off.exp())
    };
    let (predicted, measured) =
        (total(launches, |launch| launch.predicted), total(launches, |launch| launch.measured));
    let mut cells = vec![
        launches.len().to_string(),
        format!("{:.1} µs", predicted / 1e3),
        format!("{:.1} µs", measured / 1e3),
        format!("{:.2}", predicted / measured),
    ];
    cells.extend(correlation.map(str::to_owned));
    cells.extend([format!("{:.2}", factor(0.5)), format!("{:.2}", factor(0.9))]);
    cells.join(" | ")
}
