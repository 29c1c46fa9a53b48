//! `devbay bench`: measures a model's latency. Inputs that are not given are generated.

use crate::inputs::{InputArguments, types_of};
use crate::layers::Done;
use crate::options::{DeviceArguments, PluginArguments};
use crate::passes::{Passes, Runs, Subject};
use crate::profile::{Profile, ProfileArguments};
use crate::vary::{Vary, pick};
use crate::{cost, interrupt, roofline, say, sessions, shares, simulate, table};
use anyhow::{Context, Result, bail};
use devbay_host::internals::core::plan::section::Section;
use devbay_host::internals::core::units::count;
use devbay_host::{Checks, Error, ErrorKind, InputView, RunOptions, Session, Tensor};
use serde_json::json;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The model
    pub model: PathBuf,
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Number of measured runs; 0 for as many as fit the time
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub runs: usize,
    /// Seconds to measure for
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    pub seconds: f64,
    /// Number of runs before the measurement
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub warmup: usize,
    /// Number of runs in flight at once, each on its own thread; times are then the total divided by that number
    #[arg(long, value_name = "N", default_value_t = 1)]
    at_once: usize,
    /// Vary a named dimension of the inputs from run to run, at random from LOW to HIGH, such as seq=5..40; inputs given by
    /// --input are cropped
    #[arg(long, value_name = "NAME=LOW..HIGH", conflicts_with_all = ["at_once", "sessions"])]
    vary: Option<String>,
    /// Then open, run and close this many sessions, and report leaked memory
    #[arg(long, value_name = "N", default_value_t = 0)]
    sessions: usize,
    /// Measure each launch on one thread and compare it with the plan's estimate; with --feedback, write the times to that
    /// file
    #[arg(long, conflicts_with_all = ["profile", "at_once", "sessions", "vary"])]
    cost: bool,
    /// Measure each launch on one thread and place it beside the peaks of arithmetic and memory, which are measured too
    #[arg(long, conflicts_with_all = ["cost", "profile", "at_once", "sessions", "vary"])]
    roofline: bool,
    /// With --roofline: draw it, as one page for a browser
    #[arg(long, value_name = "FILE", requires = "roofline")]
    pub html: Option<PathBuf>,
    /// Simulate the model on such numbers of processors, as 8,32,64: run it as planned for them, but on one thread, measure
    /// every chunk of every loop, and replay them
    #[arg(
        long,
        value_name = "COUNTS",
        value_delimiter = ',',
        conflicts_with_all = ["cost", "roofline", "passes", "profile", "at_once", "sessions", "vary"]
    )]
    pub simulate: Option<Vec<usize>>,
    /// With --simulate: the bandwidth of memory for all processors together; without it, that of one thread times the number
    /// of threads, up to 8
    #[arg(long, value_name = "GB/S", requires = "simulate", value_parser = simulate::bandwidth)]
    pub bandwidth: Option<f64>,
    /// Measure the model with all passes and without each effective pass, in turn; --runs and --seconds apply to each
    #[arg(long, conflicts_with_all = ["cost", "roofline", "profile", "at_once", "sessions", "vary"])]
    passes: bool,
    #[command(flatten)]
    profile: ProfileArguments,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub plugins: PluginArguments,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Measures the model.
///
/// # Errors
/// Errors that keep the model from running, and findings of layers.
pub fn main(arguments: &Arguments) -> Result<()> {
    let bench = match () {
        () if arguments.cost => cost::main,
        () if arguments.roofline => roofline::main,
        () if arguments.passes => passes,
        () if arguments.simulate.is_some() => simulate::main,
        () => bench,
    };
    arguments.plugins.layers.conclude(bench(arguments))
}

/// Measures the time that passes save.
fn passes(arguments: &Arguments) -> Result<Done> {
    let model = arguments.device.load(&arguments.model, Checks::default())?;
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), None)?;
    let random = arguments.inputs.random.or(Some(0));
    let inputs =
        InputArguments { random, ..arguments.inputs.clone() }.read(model.program(), &chosen.device)?;
    let types = types_of(model.program(), &inputs);
    let (device, options, auto) = arguments.device.session_options(&chosen, &model, &types, None)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let plan = |session: &Session| session.plan_for(&given);
    let subject = Subject { model: &model, device: &device, options: &options, plan: &plan };
    let options_of_runs = RunOptions { cancel: Some(interrupt::cancel()), ..RunOptions::default() };
    let runs = Runs {
        options: &options_of_runs,
        given: &given,
        pairs: arguments.runs,
        seconds: arguments.seconds,
        warmup: arguments.warmup,
    };
    let passes = Passes::of(&subject, Some(runs))?;
    if arguments.json {
        let mut json = passes.json();
        json["model"] = json!(arguments.model);
        json["device"] = json!(device.name());
        json["threads"] = json!(chosen.runtime.n_threads());
        json["placement"] = shares::placement(auto.as_ref());
        return Ok(Done::json(json));
    }
    let threads = count(chosen.runtime.n_threads(), "thread");
    say!("{} on {} with {threads}", arguments.model.display(), device.name());
    passes.print();
    if let Some(auto) = &auto {
        say!("{}", auto.reason());
    }
    Ok(Done::printed())
}

fn bench(arguments: &Arguments) -> Result<Done> {
    let begin = Instant::now();
    let model = arguments.device.load(&arguments.model, Checks::default())?;
    let profile = arguments.profile.start(&arguments.model);
    let recorder = profile.as_ref().map(Profile::recorder);
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), recorder)?;
    let runtime = &chosen.runtime;
    let random = arguments.inputs.random.or(Some(0));
    let vary = arguments.vary.as_ref().map(|text| Vary::parse(text, model.program())).transpose()?;
    let mut arguments_of_inputs = InputArguments { random, ..arguments.inputs.clone() };
    // The first shape for a name wins, so explicit ones precede this.
    arguments_of_inputs.given.shape.extend(vary.iter().map(Vary::longest));
    let inputs = arguments_of_inputs.read(model.program(), &chosen.device)?;
    let varied = vary.map(|vary| vary.cut(model.program(), &inputs)).transpose()?;
    let types = types_of(model.program(), &inputs);
    let (device, options, auto) = arguments.device.session_options(&chosen, &model, &types, recorder)?;
    let session = Session::with_options(&model, &device, options.clone())?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let plan = session.plan_for(&given)?;
    let load = begin.elapsed();
    // The session has what it needs of the model, which takes memory. Further sessions share it.
    let model = (arguments.sessions > 0).then_some(model);

    let measured = match &varied {
        Some(sets) => measure_varied(&session, sets, arguments),
        None => measure(&session, &given, arguments),
    };
    let (first_run, mut times) = measured.inspect_err(|_| profile.iter().for_each(Profile::finish_failed))?;
    // After a device failed, the plan is another one, for other devices.
    let plan = if session.failures().is_empty() { plan } else { session.plan_for(&given)? };
    let device = session.current().device();
    let summary = profile.as_ref().map(Profile::finish).transpose()?;
    let summary = profile.as_ref().zip(summary.as_ref());
    let left = match arguments.sessions {
        _ if interrupt::is_pressed() => None,
        0 => None,
        n => {
            let run = RunOptions { cancel: Some(interrupt::cancel()), ..RunOptions::default() };
            Some(sessions::come_and_go(n, &arguments.model, device, &options, &given, &run)?)
        }
    };
    drop(model);
    times.sort_by(f64::total_cmp);
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    let at = |share: f64| times[((times.len() - 1) as f64 * share).round() as usize];
    let memory = plan.sections().fold((0, 0, 0), |(arena, bound, constants), line| {
        let memory = line.memory;
        (arena + memory.arena, bound + memory.lower_bound, constants + memory.constants)
    });
    let n_steps: usize = plan.sections().map(Section::n_launches).sum();
    // What was measured is printed; the exit code says that it is not all.
    let verdict = match interrupt::is_pressed() {
        true => {
            Err(Error::new(ErrorKind::Cancelled, "interrupted: the figures are of the runs until then")
                .into())
        }
        false => Ok(()),
    };
    if arguments.json {
        let json = json!({
            "model": arguments.model, "device": device.name(), "threads": runtime.n_threads(), "runs": times.len(),
            "unit": "ns", "median": at(0.5), "min": times[0], "max": times[times.len() - 1], "p90": at(0.9),
            "load": load.as_nanos() as u64, "first_run": first_run.as_nanos() as u64, "launches": n_steps,
            "arena_bytes": memory.0, "arena_lower_bound_bytes": memory.1, "constant_bytes": memory.2,
            "work": shares::json(&plan), "at_once": arguments.at_once, "sessions": left.map(|left| left.json()),
            "mean": mean, "plans": shares::plans(&session),
            "placement": shares::placement(auto.as_ref()), "failures": shares::failures(&session),
            "profile": summary.map(|(profile, summary)| profile.json(summary)),
        });
        return Ok(Done { json: Some(json), verdict });
    }
    say!(
        "{} on {} with {}, {}",
        arguments.model.display(),
        shares::headline(&plan, device).name(),
        count(runtime.n_threads(), "thread"),
        count(times.len(), "run")
    );
    table::print(
        &[">MEDIAN", ">MIN", ">P90", ">MAX", ">FIRST RUN", ">LOAD"],
        &[vec![
            table::duration(at(0.5)),
            table::duration(times[0]),
            table::duration(at(0.9)),
            table::duration(times[times.len() - 1]),
            table::duration(first_run.as_nanos() as f64),
            table::duration(load.as_nanos() as f64),
        ]],
    );
    say!(
        "{}; arena {} (lower bound {}), constants {}",
        count(n_steps, "launch"),
        table::bytes(memory.0 as u64),
        table::bytes(memory.1 as u64),
        table::bytes(memory.2 as u64)
    );
    if let Some(shares) = shares::text(&plan) {
        say!("{shares}");
    }
    if varied.is_some() {
        say!("{} on average; {}", table::duration(mean), shares::plans_text(&session));
    } else {
        tracing::info!("{}", shares::plans_text(&session));
    }
    if let Some(left) = left {
        say!("{}", left.text());
    }
    if let Some(auto) = &auto {
        say!("{}", auto.reason());
    }
    if let Some((profile, summary)) = summary {
        profile.print(summary);
    }
    Ok(Done { json: None, verdict })
}

/// Returns whether a run ended because of Ctrl-C after others were measured, so that there are figures to print.
fn is_end(error: &anyhow::Error, times: &[f64]) -> bool {
    let kind = error.downcast_ref::<Error>().map(Error::kind);
    interrupt::is_pressed() && kind == Some(ErrorKind::Cancelled) && !times.is_empty()
}

/// Returns the nanoseconds of the first run, and of each measured run.
fn measure(
    session: &Session,
    given: &[(&str, &Tensor)],
    arguments: &Arguments,
) -> Result<(Duration, Vec<f64>)> {
    let begin = Instant::now();
    let options = RunOptions { cancel: Some(interrupt::cancel()), ..RunOptions::default() };
    let first = session.run_with(given, &options)?;
    let first_run = begin.elapsed();
    let views = session.in_order(given)?;
    let memory: Vec<Vec<u8>> = first.iter().map(|tensor| vec![0u8; tensor.bytes().len()]).collect();
    let mut memories = vec![memory; arguments.at_once.max(1)];
    let mut times = Vec::new();
    let deadline = Instant::now() + Duration::from_secs_f64(arguments.seconds.clamp(0.0, 3600.0));
    let mut n = 0;
    loop {
        let time = match &mut *memories {
            [memory] => {
                let begin = Instant::now();
                once(session, &views, memory, &options).map(|()| begin.elapsed().as_nanos() as f64)
            }
            memories => together(session, &views, memories, &options),
        };
        let time = match time {
            Err(error) if is_end(&error, &times) => return Ok((first_run, times)),
            time => time?,
        };
        n += 1;
        if n > arguments.warmup {
            times.push(time);
        }
        let enough = match arguments.runs {
            0 => !times.is_empty() && Instant::now() >= deadline,
            runs => times.len() >= runs,
        };
        if enough {
            return Ok((first_run, times));
        }
    }
}

/// Measures as [`measure`], with one of several sets of inputs per run; times include planning for them.
fn measure_varied(
    session: &Session,
    sets: &[Vec<(String, Tensor)>],
    arguments: &Arguments,
) -> Result<(Duration, Vec<f64>)> {
    let options = RunOptions { cancel: Some(interrupt::cancel()), ..RunOptions::default() };
    let deadline = Instant::now() + Duration::from_secs_f64(arguments.seconds.clamp(0.0, 3600.0));
    let (mut first_run, mut times) = (None, Vec::new());
    for n in 0.. {
        let set = &sets[pick(n, sets.len())];
        let given: Vec<(&str, &Tensor)> = set.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let begin = Instant::now();
        match session.run_with(&given, &options).map_err(anyhow::Error::from) {
            Err(error) if is_end(&error, &times) => break,
            run => run?,
        };
        let time = begin.elapsed();
        first_run.get_or_insert(time);
        if n >= arguments.warmup {
            times.push(time.as_nanos() as f64);
        }
        let enough = match arguments.runs {
            0 => !times.is_empty() && Instant::now() >= deadline,
            runs => times.len() >= runs,
        };
        if enough {
            break;
        }
    }
    Ok((first_run.unwrap_or_default(), times))
}

/// Number of runs per thread between two clock readings, to make the threads' start negligible.
const RUNS_TOGETHER: usize = 4;

/// Returns the nanoseconds per run with `n` runs in flight.
fn together(
    session: &Session,
    views: &[InputView<'_>],
    memories: &mut [Vec<Vec<u8>>],
    options: &RunOptions,
) -> Result<f64> {
    let n = memories.len() * RUNS_TOGETHER;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let runs = memories.iter_mut().map(|memory| {
            let run = || (0..RUNS_TOGETHER).try_for_each(|_| once(session, views, memory, options));
            std::thread::Builder::new().spawn_scoped(scope, run)
        });
        // Start all threads before waiting for the first.
        let runs = runs.collect::<std::io::Result<Vec<_>>>().context("cannot start a thread for a run")?;
        runs.into_iter().try_for_each(|run| run.join().unwrap_or_else(|_| bail!("a run panicked")))
    })?;
    Ok(begin.elapsed().as_nanos() as f64 / n as f64)
}

/// Runs the model into existing memory.
///
/// # Errors
/// As [`Session::run_into`].
pub fn once(
    session: &Session,
    views: &[InputView<'_>],
    memory: &mut [Vec<u8>],
    options: &RunOptions,
) -> Result<()> {
    let mut outputs: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
    Ok(session.run_into(views, &mut outputs, options)?)
}
