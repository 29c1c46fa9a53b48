//! Times of a model's launches, which `devbay bench --cost` and `--roofline` compare with something.
//!
//! The model runs on one thread, so that no launch waits for another or shares its loops.

use crate::bench::{Arguments, once};
use crate::exit::usage;
use crate::inputs::{InputArguments, types_of};
use crate::options::{Chosen, DeviceArguments, PluginArguments};
use crate::{interrupt, say, table};
use anyhow::Result;
use devbay_host::trace::{Costs, Recorder, Timeline, clock_ns};
use devbay_host::{Checks, RunOptions, Session, Tensor};
use std::time::{Duration, Instant};

/// Maximum number of measured runs unless `--runs` is given: enough for medians, and the memory for events is limited.
const RUNS_MAX: usize = 300;

/// Measured launches.
pub struct Measured {
    pub chosen: Chosen,
    pub session: Session,
    pub costs: Costs,
    /// Number of events that found no room.
    pub n_lost: u64,
}

/// Runs the model on one thread, and returns the times of its launches; `option` is the one that asks for them.
///
/// # Errors
/// Errors that keep the model from running; for more than one thread.
pub fn measure(arguments: &Arguments, device: &DeviceArguments, option: &str) -> Result<Measured> {
    if arguments.plugins.threads.is_some_and(|n_threads| n_threads > 1) {
        return Err(usage(format!(
            "{option} measures on one thread, which rates are about: leave --threads out"
        )));
    }
    let model = device.load(&arguments.model, Checks::default())?;
    let recorder = Recorder::default();
    let plugins = PluginArguments { threads: Some(1), ..arguments.plugins.clone() };
    let chosen = device.choose(&plugins, model.program(), Some(&recorder))?;
    let random = arguments.inputs.random.or(Some(0));
    let inputs =
        InputArguments { random, ..arguments.inputs.clone() }.read(model.program(), &chosen.device)?;
    let types = types_of(model.program(), &inputs);
    let (session, _) = device.session(&chosen, &model, &types, Some(&recorder))?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut is_first = true;
    let seconds = arguments.seconds.clamp(0.0, 3600.0);
    run_many(&session, &given, arguments, (seconds, (1, RUNS_MAX)), || {
        // Earlier runs are not measured.
        if std::mem::take(&mut is_first) {
            let _ = recorder.take();
        }
    })?;
    let recording = recorder.take();
    let costs = Costs::of(&Timeline::of(&recording), clock_ns());
    Ok(Measured { chosen, session, costs, n_lost: recording.n_dropped() })
}

/// Runs a session as often as the arguments say, or within `usual` numbers of runs until the seconds are over. `ran` is called after each
/// run, also after the last of those that are not measured.
pub fn run_many(
    session: &Session,
    given: &[(&str, &Tensor)],
    arguments: &Arguments,
    (seconds, usual): (f64, (usize, usize)),
    mut ran: impl FnMut(),
) -> Result<()> {
    let options = RunOptions { cancel: Some(interrupt::cancel()), ..RunOptions::default() };
    let first = session.run_with(given, &options)?;
    let views = session.in_order(given)?;
    let mut memory: Vec<Vec<u8>> = first.iter().map(|tensor| vec![0u8; tensor.bytes().len()]).collect();
    for _ in 0..arguments.warmup {
        once(session, &views, &mut memory, &options)?;
    }
    ran();
    let deadline = Instant::now() + Duration::from_secs_f64(seconds);
    let (least, most) = match arguments.runs {
        0 => usual,
        runs => (runs, runs),
    };
    for n in 0..most {
        if n >= least && Instant::now() >= deadline {
            break;
        }
        once(session, &views, &mut memory, &options)?;
        ran();
    }
    Ok(())
}

/// Prints what is missing from the times, and what was subtracted.
pub fn print_remarks(costs: &Costs, n_lost: u64) {
    say!("of each launch {:.0} ns were subtracted, for reading the clock", costs.clock_ns);
    if costs.unpredicted.0 > 0 {
        say!(
            "{} launches were planned when they ran and not predicted: {} a run",
            costs.unpredicted.0,
            table::duration(costs.unpredicted.1)
        );
    }
    if n_lost > 0 {
        say!("{n_lost} events were lost, because there was no room for more");
    }
}
