//! `devbay bench --cost`: measured times of launches beside the plan's predictions.
//!
//! The model runs on one thread, so that no launch waits for another or shares its loops, as rates assume. `--feedback`
//! stores the measured times for later plans.

use crate::bench::Arguments;
use crate::launches::{self, Measured};
use crate::layers::Done;
use crate::options::{Chosen, DeviceArguments};
use crate::{say, table};
use anyhow::Result;
use devbay_host::Session;
use devbay_host::internals::feedback_file::MeasuredTimes;
use devbay_host::trace::{Costs, Fit};
use serde_json::{Value, json};
use std::path::Path;

/// Measures the model's launches.
///
/// # Errors
/// Errors that keep the model from running; a damaged or unwritable feedback file.
pub fn main(arguments: &Arguments) -> Result<Done> {
    // The file is extended, so report a damaged one before measuring.
    let known = match &arguments.device.feedback {
        Some(path) if path.exists() => MeasuredTimes::read(path)?,
        _ => MeasuredTimes::default(),
    };
    // Predictions must come from the plan, not from earlier measurements.
    let device = DeviceArguments { feedback: None, ..arguments.device.clone() };
    let Measured { chosen, session, costs, n_lost } = launches::measure(arguments, &device, "--cost")?;
    if let Some(path) = &arguments.device.feedback {
        write(path, known, &costs, &chosen)?;
    }
    if arguments.json {
        return Ok(Done::json(json(arguments, &session, &costs, n_lost)));
    }
    print(arguments, &session, &costs, n_lost);
    Ok(Done::printed())
}

/// Adds the launches' times to the file's content, and writes it.
fn write(path: &Path, mut known: MeasuredTimes, costs: &Costs, chosen: &Chosen) -> Result<()> {
    let measured = costs.measured();
    for device in chosen.runtime.devices() {
        let own = measured.iter().filter(|((name, _), _)| name == device.name());
        let times: Vec<_> = own.map(|((_, signature), ns)| (signature.to_string(), *ns)).collect();
        if !times.is_empty() {
            known.put(chosen.runtime.rates_key(&device), times);
        }
    }
    Ok(known.write(path)?)
}

fn json(arguments: &Arguments, session: &Session, costs: &Costs, n_lost: u64) -> Value {
    let fit = |fit: &Fit| {
        json!({
            "launches": fit.n, "rank_correlation": fit.rank_correlation, "factor_median": fit.factor_median,
            "factor_p90": fit.factor_p90, "predicted_ns": fit.predicted_ns, "measured_ns": fit.measured_ns,
        })
    };
    let op = |(op, of): &(String, Fit)| {
        let mut value = fit(of);
        value["op"] = json!(op);
        value
    };
    let launches: Vec<Value> = costs
        .launches
        .iter()
        .map(|launch| {
            json!({
                "node": launch.node, "op": launch.op, "device": launch.device, "signature": launch.signature.as_deref(),
                "predicted_ns": launch.predicted_ns, "measured_ns": launch.measured_ns, "per_run": launch.per_run,
            })
        })
        .collect();
    json!({
        "model": arguments.model, "device": session.device().name(), "threads": 1, "runs": costs.n_runs,
        "rates_measured": session.device().rates().is_some(), "clock_ns": costs.clock_ns, "fit": fit(&Fit::of(&costs.launches)),
        "ops": costs.by_op().iter().map(op).collect::<Vec<_>>(), "launches": launches,
        "unpredicted_launches": costs.unpredicted.0, "unpredicted_ns": costs.unpredicted.1, "lost_events": n_lost,
        "feedback": arguments.device.feedback,
    })
}

fn print(arguments: &Arguments, session: &Session, costs: &Costs, n_lost: u64) {
    let device = session.device();
    let rates = if device.rates().is_some() { "measured" } else { "guessed by kind" };
    say!(
        "{} on {} with one thread, {} runs; rates {rates}",
        arguments.model.display(),
        device.name(),
        costs.n_runs
    );
    let row = |name: &str, fit: &Fit| {
        vec![
            name.to_owned(),
            fit.n.to_string(),
            table::duration(fit.predicted_ns),
            table::duration(fit.measured_ns),
            format!("{:.2}", fit.ratio()),
            format!("{:.2}", fit.factor_median),
            format!("{:.2}", fit.factor_p90),
        ]
    };
    let all = Fit::of(&costs.launches);
    let ops = costs.by_op();
    let rows = ops.iter().map(|(op, fit)| row(op, fit)).chain([row("all", &all)]);
    table::print(
        &["OP", ">LAUNCHES", ">PREDICTED", ">MEASURED", ">RATIO", ">FACTOR", ">P90"],
        &rows.collect::<Vec<_>>(),
    );
    let correlation = all.rank_correlation.map_or("none".to_owned(), |value| format!("{value:.3}"));
    say!("rank correlation of launches {correlation} (Spearman)");
    say!(
        "a launch is off by a factor of {:.2} (median), {:.2} (90th percentile)",
        all.factor_median,
        all.factor_p90
    );
    launches::print_remarks(costs, n_lost);
    if let Some(path) = &arguments.device.feedback {
        say!("measured times written to {}", path.display());
    }
}
