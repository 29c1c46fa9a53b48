//! `devbay run`: runs a model on its inputs and shows the results.

use crate::exit::usage;
use crate::image;
use crate::inputs::{InputArguments, types_of};
use crate::layers::Done;
use crate::options::{Chosen, DeviceArguments, PluginArguments};
use crate::profile::{Profile, ProfileArguments};
use crate::{compile, interrupt, program, say, shares, table, tell, values};
use anyhow::{Context, Result};
use devbay_host::internals::auto::Auto;
use devbay_host::internals::compare::{Tolerance, Verdict, compare};
use devbay_host::internals::core::plan::Plan;
use devbay_host::internals::core::plan::constants::PackCounts;
use devbay_host::internals::dbx;
use devbay_host::{
    Cancel, Checks, Device, DeviceMemory, Error, ErrorKind, RunOptions, Session, Tensor, arrays,
};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The model: an ONNX file, a program in text form, a compiled model (`devbay compile`), or StableHLO (.mlir, .mlirbc)
    /// for a device with a compiler
    pub model: PathBuf,
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Classify a photo; preprocessing.json beside the model describes how to turn it into an input
    #[arg(long, value_name = "FILE")]
    pub image: Option<PathBuf>,
    /// File with one class name a line; defaults to the one named in preprocessing.json
    #[arg(long, value_name = "FILE")]
    labels: Option<PathBuf>,
    /// Number of classes to show
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Write the outputs to an archive, or to a folder with one .npy file each
    #[arg(long, value_name = "FILE.npz|DIR")]
    pub output: Option<PathBuf>,
    /// Compare the outputs with this archive; exits with 3 if they differ
    #[arg(long, value_name = "FILE.npz")]
    pub compare: Option<PathBuf>,
    /// Tolerance: |a - b| <= rtol * max|expected| + atol
    #[arg(long, default_value_t = 1e-4)]
    pub rtol: f64,
    /// See --rtol
    #[arg(long, default_value_t = 1e-5)]
    pub atol: f64,
    /// Verify the checksums of a .dbx file's weights before running it
    #[arg(long)]
    pub verify: bool,
    /// Fail if there are no results after this many milliseconds, including reading the model and planning
    #[arg(long, value_name = "MS")]
    pub deadline_ms: Option<u64>,
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

/// Runs the model once.
///
/// # Errors
/// Errors that keep the model from running, a mismatch with `--compare`, and findings of layers.
pub fn main(arguments: &Arguments) -> Result<()> {
    arguments.plugins.layers.conclude(run(arguments))
}

/// Writes, compares and shows the results of a program that ran without a session: its kind, and the times of its steps.
///
/// # Errors
/// For files that cannot be read or written; the verdict holds a mismatch with `--compare`.
pub fn report_program(
    arguments: &Arguments,
    kind: &str,
    device: &Device,
    named: &[(&str, &Tensor)],
    times: &[(&str, Duration)],
) -> Result<Done> {
    if let Some(path) = &arguments.output {
        write_outputs(path, named)?;
    }
    let verdicts = arguments.compare.as_ref().map(|path| compare_all(path, named, arguments)).transpose()?;
    let verdict = verdict(verdicts.as_deref());
    if arguments.json {
        let outputs: Vec<_> = named.iter().map(|(name, tensor)| output_json(name, tensor)).collect();
        let times: serde_json::Map<String, serde_json::Value> =
            times.iter().map(|(what, time)| ((*what).to_owned(), json!(time.as_nanos() as u64))).collect();
        let json = json!({
            "model": arguments.model, "format": kind, "device": device.name(), "outputs": outputs,
            "times_ns": times, "compare": verdicts,
        });
        return Ok(Done { json: Some(json), verdict });
    }
    print_outputs(named);
    if let Some(verdicts) = &verdicts {
        print_verdicts(verdicts);
    }
    let times =
        times.iter().map(|(what, time)| format!("{what} {}", table::duration(time.as_nanos() as f64)));
    say!(
        "\n{} on {} ({}): {}",
        arguments.model.display(),
        device.name(),
        device.about().product,
        times.collect::<Vec<_>>().join(", ")
    );
    Ok(Done { json: None, verdict })
}

fn run(arguments: &Arguments) -> Result<Done> {
    // Before the model runs, not after it.
    arguments.output.as_deref().map(is_archive).transpose()?;
    if arguments.labels.is_some() && arguments.image.is_none() {
        return Err(usage("--labels goes with --image"));
    }
    if let Some(format) = program::format_of(&arguments.model) {
        return program::main(arguments, format);
    }
    if compile::is_compiled(&arguments.model) {
        return compile::run(arguments);
    }
    if arguments.verify && !dbx::is_compiled(&arguments.model) {
        return Err(usage("--verify is for .dbx files: other models have no checksums"));
    }
    let deadline = arguments.deadline_ms.map(Duration::from_millis);
    // Finished results are written even after the deadline.
    let Ran { profile, chosen, preprocessing, inputs, session, auto, plan, outputs, import, prepare, run } =
        match interrupt::under(deadline, |cancel| ran(arguments, cancel))? {
            Outcome::Tensors(ran) => *ran,
            Outcome::Values(ran) => return ran.report(arguments),
        };
    // After a device failed, the plan is another one, for other devices.
    let plan = if session.failures().is_empty() { plan } else { session.plan_for(&given(&inputs))? };
    let device = session.current().device();
    let memory: Vec<DeviceMemory> =
        chosen.runtime.memory().into_iter().filter(|memory| memory.bytes_peak > 0).collect();
    for DeviceMemory { device, bytes_in_use, bytes_peak } in &memory {
        let (in_use, peak) = (table::bytes(*bytes_in_use), table::bytes(*bytes_peak));
        tracing::info!("memory of {device}: {in_use} in use, {peak} at most");
    }

    let names: Vec<&str> = session.outputs().iter().map(|port| &*port.name).collect();
    let named: Vec<(&str, &Tensor)> = names.iter().copied().zip(&outputs).collect();
    if let Some(path) = &arguments.output {
        write_outputs(path, &named).inspect_err(|_| profile.iter().for_each(Profile::finish_failed))?;
    }
    let summary = profile.as_ref().map(Profile::finish).transpose()?;
    let summary = profile.as_ref().zip(summary.as_ref());
    let verdicts = match &arguments.compare {
        Some(path) => Some(compare_all(path, &named, arguments)?),
        None => None,
    };
    let classes =
        preprocessing.map(|p| p.classes(&named, arguments.labels.as_deref(), arguments.top)).transpose()?;

    let json = if arguments.json {
        let times = json!({ "import": import.as_nanos() as u64, "prepare": prepare.as_nanos() as u64, "run": run.as_nanos() as u64 });
        let outputs: Vec<_> = named.iter().map(|(name, tensor)| output_json(name, tensor)).collect();
        Some(json!({
            "model": arguments.model, "device": device.name(), "times_ns": times, "outputs": outputs,
            "compare": verdicts, "classes": classes, "memory": memory, "work": shares::json(&plan),
            "placement": shares::placement(auto.as_ref()), "failures": shares::failures(&session),
            "profile": summary.map(|(profile, summary)| profile.json(summary)),
        }))
    } else {
        match &classes {
            Some(classes) => print_classes(classes),
            None => print_outputs(&named),
        }
        if let Some(verdicts) = &verdicts {
            print_verdicts(verdicts);
        }
        let worker = shares::headline(&plan, device);
        say!(
            "\n{} on {} ({}): run {}, import {}, prepare {}",
            arguments.model.display(),
            worker.name(),
            worker.about().product,
            table::duration(run.as_nanos() as f64),
            table::duration(import.as_nanos() as f64),
            table::duration(prepare.as_nanos() as f64)
        );
        if let Some(shares) = shares::text(&plan) {
            say!("{shares}");
        }
        if let Some(auto) = &auto {
            say!("{}", auto.reason());
        }
        if let Some((profile, summary)) = summary {
            profile.print(summary);
        }
        None
    };
    Ok(Done { json, verdict: verdict(verdicts.as_deref()) })
}

/// A run, by the kind of the model.
enum Outcome {
    /// A program.
    Tensors(Box<Ran>),
    /// A graph with strings, sequences, optionals or maps.
    Values(Box<values::Ran>),
}

/// The parts of a run, and its results.
struct Ran {
    profile: Option<Profile>,
    chosen: Chosen,
    preprocessing: Option<image::Preprocessing>,
    inputs: Vec<(String, Tensor)>,
    session: Session,
    auto: Option<Auto>,
    plan: Arc<Plan>,
    outputs: Vec<Tensor>,
    import: Duration,
    prepare: Duration,
    run: Duration,
}

fn given(inputs: &[(String, Tensor)]) -> Vec<(&str, &Tensor)> {
    inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect()
}

/// Reads the model, plans it and runs it, until `cancel` is set.
fn ran(arguments: &Arguments, cancel: &Cancel) -> Result<Outcome> {
    let progress = spinner(&format!("loading {}", arguments.model.display()));
    let begin = Instant::now();
    let checks = if arguments.verify { Checks::Weights } else { Checks::Head };
    let model = arguments.device.load_any(&arguments.model, checks)?;
    let import = begin.elapsed();
    if model.has_values() {
        progress.finish_and_clear();
        return Ok(Outcome::Values(Box::new(values::ran(arguments, &model, import, cancel)?)));
    }
    let begin = Instant::now();
    let profile = arguments.profile.start(&arguments.model);
    let recorder = profile.as_ref().map(Profile::recorder);
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), recorder)?;
    progress.set_message("planning");
    let preprocessing =
        arguments.image.as_ref().map(|_| image::Preprocessing::beside(&arguments.model)).transpose()?;
    let inputs = match (&arguments.image, &preprocessing) {
        (Some(photo), Some(preprocessing)) => vec![preprocessing.apply(photo)?],
        _ => arguments.inputs.read(model.program(), &chosen.device)?,
    };
    let types = types_of(model.program(), &inputs);
    let (session, auto) = arguments.device.session(&chosen, &model, &types, recorder)?;
    let given = given(&inputs);
    let plan = session.plan_for(&given)?;
    if arguments.device.explain {
        if let Some(compiled_for) = model.compiled_for() {
            let is_planned = compiled_for.contains(&types);
            let (PackCounts { ahead, now }, plan) =
                (session.pack_counts(), if is_planned { "the file's" } else { "new" });
            let checked = if arguments.verify { "checked" } else { "not checked (--verify does)" };
            tell!(
                "compiled  plan: {plan}; packed constants: {ahead} of the file's, {now} new; weights: {checked}"
            );
        }
        for (node, other) in plan.elsewhere(session.current().device()) {
            tell!("placed  {:<12} {node}", other.name());
        }
        for (what, size) in plan.copies() {
            tell!("copied  {:<12} {what}", table::bytes(size));
        }
        for (what, ns, from) in plan.costs() {
            tell!("{:<9} {:>10} {what}", from.name(), table::duration(ns));
        }
    }
    // The session has what it needs of the model, which takes memory.
    drop(model);
    let prepare = begin.elapsed();
    progress.finish_and_clear();

    let begin = Instant::now();
    let options = RunOptions { cancel: Some(cancel.clone()), ..RunOptions::default() };
    let failed = |_: &_| profile.iter().for_each(Profile::finish_failed);
    let outputs = session.run_with(&given, &options).inspect_err(failed)?;
    let run = begin.elapsed();
    let ran =
        Ran { profile, chosen, preprocessing, inputs, session, auto, plan, outputs, import, prepare, run };
    Ok(Outcome::Tensors(Box::new(ran)))
}

/// Returns the first output that differs, as an error.
pub fn verdict(verdicts: Option<&[Verdict]>) -> Result<()> {
    match verdicts.into_iter().flatten().find(|verdict| !verdict.matches) {
        None => Ok(()),
        Some(verdict) => Err(Error::new(
            ErrorKind::Mismatch,
            match &verdict.reason {
                Some(reason) => format!("output `{}` differs: {reason}", verdict.name),
                None => format!(
                    "output `{}` differs by {:.3e}, allowed is {:.3e}",
                    verdict.name, verdict.max_difference, verdict.allowed
                ),
            },
        )
        .into()),
    }
}

/// Returns an output as JSON: its name, its type and its first values.
pub fn output_json(name: &str, tensor: &Tensor) -> serde_json::Value {
    json!({
        "name": name, "type": tensor.tensor_type().to_string(), "shape": tensor.shape(),
        "first": first_values(tensor, 8),
    })
}

/// Shows a spinner on a terminal if something takes longer than a moment.
fn spinner(message: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} {msg} {elapsed}") {
        bar.set_style(style);
    }
    bar.set_message(say::plain(message).into_owned());
    // indicatif's own thread panics if no thread can be started.
    let turning = bar.downgrade();
    let turn = move || {
        while let Some(bar) = turning.upgrade().filter(|bar| !bar.is_finished()) {
            bar.tick();
            drop(bar);
            std::thread::sleep(Duration::from_millis(200));
        }
    };
    let is_shown = std::io::stderr().is_terminal();
    if is_shown && let Err(error) = std::thread::Builder::new().name("spinner".to_owned()).spawn(turn) {
        tracing::debug!("nothing turns while the model is loaded: {error}");
    }
    bar
}

/// Returns whether outputs go to an archive, and not to a folder.
///
/// # Errors
/// For a file of another kind, by its extension.
pub fn is_archive(path: &Path) -> Result<bool> {
    let is_folder = || path.is_dir() || path.to_string_lossy().ends_with(std::path::is_separator);
    match path.extension() {
        Some(extension) if extension == "npz" => Ok(true),
        Some(_) if !is_folder() => {
            let text = format!("--output is FILE.npz or a folder, found {}", path.display());
            Err(usage(format!("{text}; a new folder with a dot in its name ends in `/`")))
        }
        _ => Ok(false),
    }
}

/// Writes outputs to an archive, or to a folder.
///
/// # Errors
/// For files that cannot be written.
pub fn write_outputs(path: &Path, outputs: &[(&str, &Tensor)]) -> Result<()> {
    if is_archive(path)? {
        return Ok(arrays::write_npz(path, outputs)?);
    }
    std::fs::create_dir_all(path).with_context(|| format!("cannot make the folder {}", path.display()))?;
    for (i, (name, tensor)) in outputs.iter().enumerate() {
        arrays::write_npy(&path.join(format!("{}.npy", file_stem(name, i))), tensor)?;
    }
    Ok(())
}

/// Returns the name of an output's file without its extension. Names of outputs may contain any character; a name that is not a
/// valid file name becomes a number.
pub fn file_stem(name: &str, i: usize) -> String {
    let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c));
    if plain && !name.starts_with('.') { name.to_owned() } else { format!("output_{i}") }
}

/// Compares outputs with those of an archive; skips its arrays `in0`, `in1`, ... of a program.
///
/// # Errors
/// For an archive without outputs, or with unknown ones.
pub fn compare_all(path: &Path, outputs: &[(&str, &Tensor)], arguments: &Arguments) -> Result<Vec<Verdict>> {
    let tolerance = Tolerance { relative: arguments.rtol, absolute: arguments.atol };
    let mut expected = arrays::read_npz(path)?;
    if program::format_of(&arguments.model).is_some() {
        expected.retain(|(name, _)| !name.starts_with("in"));
    }
    if expected.is_empty() {
        return Err(usage(format!("{} has no arrays to compare with", path.display())));
    }
    expected
        .iter()
        .map(|(name, expected)| match outputs.iter().find(|(known, _)| known == name) {
            Some((_, found)) => Ok(compare(name, found, expected, tolerance)),
            None => {
                let known: Vec<&str> = outputs.iter().map(|(name, _)| *name).collect();
                Err(usage(format!("the model has no output `{name}`; it has {}", known.join(", "))))
            }
        })
        .collect()
}

/// Returns the first elements as JSON.
pub fn first_values(tensor: &Tensor, n: usize) -> Vec<serde_json::Value> {
    if let Some(values) = tensor.elements::<f32>() {
        return values.iter().take(n).map(|&v| json!(v)).collect();
    }
    if let Some(values) = tensor.elements::<f64>() {
        return values.iter().take(n).map(|&v| json!(v)).collect();
    }
    tensor.to_ints().ok().flatten().unwrap_or_default().iter().take(n).map(|&v| json!(v)).collect()
}

/// Prints a table of outputs.
pub fn print_outputs(outputs: &[(&str, &Tensor)]) {
    let rows: Vec<Vec<String>> = outputs
        .iter()
        .map(|(name, tensor)| {
            let values: Vec<String> = first_values(tensor, 6)
                .iter()
                .map(|value| match value.as_f64() {
                    Some(number) if !value.is_i64() && !value.is_u64() => format!("{number:.5}"),
                    _ => value.to_string(),
                })
                .collect();
            let more = if tensor.n_elements() > 6 { ", ..." } else { "" };
            vec![(*name).to_owned(), tensor.tensor_type().to_string(), format!("{}{more}", values.join(", "))]
        })
        .collect();
    table::print(&["OUTPUT", "TYPE", "VALUES"], &rows);
}

/// Prints a table of comparisons.
pub fn print_verdicts(verdicts: &[Verdict]) {
    say!();
    let rows: Vec<Vec<String>> = verdicts
        .iter()
        .map(|verdict| {
            vec![
                verdict.name.clone(),
                if verdict.matches { "match".to_owned() } else { "DIFFERS".to_owned() },
                format!("{:.3e}", verdict.max_difference),
                format!("{:.3e}", verdict.allowed),
                verdict.reason.clone().unwrap_or_default(),
            ]
        })
        .collect();
    table::print(&["OUTPUT", "VERDICT", ">DIFFERENCE", ">ALLOWED", "REASON"], &rows);
}

/// Prints classes with a bar each.
fn print_classes(classes: &[image::Class]) {
    let width = classes.iter().map(|class| class.label.chars().count()).max().unwrap_or(0);
    for class in classes {
        let pad = " ".repeat(width - class.label.chars().count());
        say!("{}{pad}  {:>5.1} %  {}", class.label, 100.0 * class.share, table::bar(class.share, 40));
    }
}
