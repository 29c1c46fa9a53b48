//! `cargo xtask passes [DEVICE]`: changes and savings of passes on every trained model, as Markdown tables.
//!
//! Each model runs its first case with `devbay bench --passes`. The first table has all passes together, the second one each
//! pass over all models that it changed. Predictions use the rates of `devbay devices --calibrate`, or default rates.

use crate::trained::{Trained, name};
use anyhow::{Context, Result};
use serde_json::Value;

#[derive(clap::Args)]
pub struct Arguments {
    /// The device
    #[arg(value_name = "DEVICE", default_value = "cpu:0")]
    device: String,
    /// Seconds per comparison: one for each pass that changed a model, and one for all of them
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
    /// Threads for kernels; 0 for one per processor
    #[arg(long, value_name = "N", default_value_t = 0)]
    threads: usize,
    /// Use programs and plugins of target/release instead of target/debug
    #[arg(long)]
    release: bool,
}

/// A pass over all models.
struct Pass {
    name: String,
    models: usize,
    changes: u64,
    /// Its saving as a share of the time without it, for each model that runs without it.
    saves: Vec<f64>,
}

pub fn run(arguments: &Arguments) -> Result<()> {
    let trained = Trained::new(arguments.release)?;
    let (seconds, threads) = (arguments.seconds.to_string(), arguments.threads.to_string());
    let mut passes: Vec<Pass> = Vec::new();
    println!(
        "| model | nodes | after | launches without | with | predicted | without | with | saves | quartiles |"
    );
    println!("| --- |{}", " ---: |".repeat(9));
    for model in &trained.models {
        let options =
            ["--passes", "--device", &arguments.device, "--seconds", &seconds, "--threads", &threads];
        let report = trained.bench(model, &options)?;
        println!("| {} | {} |", name(model), all(&report)?.join(" | "));
        for pass in report["passes"].as_array().context("passes")? {
            let name = pass["name"].as_str().context("the name of a pass")?;
            let at = passes.iter().position(|known| known.name == name).unwrap_or_else(|| {
                passes.push(Pass { name: name.to_owned(), models: 0, changes: 0, saves: Vec::new() });
                passes.len() - 1
            });
            // A pass that did not run changed nothing.
            let changes = pass["changes"].as_u64().unwrap_or(0);
            passes[at].models += usize::from(changes > 0);
            passes[at].changes += changes;
            let measured = &pass["without"]["measured"];
            if let (Some(saves), Some(off)) = (measured["saves_ns"].as_f64(), measured["off_ns"].as_f64()) {
                passes[at].saves.push(saves / off);
            }
        }
    }
    println!("\n| pass | models changed | changes | saves, median | least | most |");
    println!("| --- |{}", " ---: |".repeat(5));
    for pass in &mut passes {
        pass.saves.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let idx = (pass.saves.len().saturating_sub(1) as f64 * share).round() as usize;
            pass.saves.get(idx).map_or_else(String::new, |saves| format!("{:.1} %", saves * 100.0))
        };
        println!(
            "| {} | {} | {} | {} | {} | {} |",
            pass.name,
            pass.models,
            pass.changes,
            at(0.5),
            at(0.0),
            at(1.0)
        );
    }
    Ok(())
}

/// Returns the cells of all passes together.
fn all(report: &Value) -> Result<Vec<String>> {
    let count = |value: &Value| value.as_u64().map(|n| n.to_string()).context("a count");
    let without = &report["without_all"];
    let mut cells = vec![count(&report["nodes_before"])?, count(&report["nodes_after"])?];
    if let Some(why) = without["error"].as_str() {
        cells.extend([String::new(), count(&report["launches"])?, format!("does not run without: {why}")]);
        return Ok(cells);
    }
    let percent = |saves: f64, of: f64| format!("{:.1} %", saves / of * 100.0);
    let number = |key: &str| without["measured"][key].as_f64().with_context(|| format!("{key} of {without}"));
    let (off, on) = (number("off_ns")?, number("on_ns")?);
    let predicted = without["predicted_saves_ns"].as_f64().zip(without["work_ns"].as_f64());
    cells.extend([
        count(&without["launches"])?,
        count(&report["launches"])?,
        predicted.map_or("unknown".to_owned(), |(saves, of)| percent(saves, of)),
        format!("{:.1} µs", off / 1e3),
        format!("{:.1} µs", on / 1e3),
        percent(number("saves_ns")?, off),
        format!("{} to {}", percent(number("saves_low_ns")?, off), percent(number("saves_high_ns")?, off)),
    ]);
    Ok(cells)
}
