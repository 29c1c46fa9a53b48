//! `devbay diff`: finds the first node whose results differ between two sides: devices with options, or a file of outputs.

use crate::exit::usage;
use crate::inputs::{InputArguments, types_of};
use crate::layers::Done;
use crate::options::{Chosen, DeviceArguments, PluginArguments};
use crate::{interrupt, say};
use anyhow::{Context, Result};
use clap::Parser;
use devbay_host::internals::core::plan::Placement;
use devbay_host::internals::core::units::percent;
use devbay_host::internals::diff::{self, Compared, Difference, Measured, OnDevice, Options, Report, Side};
use devbay_host::internals::discover;
use devbay_host::internals::file::write_bytes;
use devbay_host::{Error, ErrorKind, Model, Policy, Tensor, arrays};
use serde_json::json;
use std::path::{Path, PathBuf};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// The model: an ONNX file, a program in text form, or a compiled model (`devbay compile`)
    model: PathBuf,
    /// First side: a device with options, such as `cpu`, `cpu,no-pass=all`, `cpu,isa=baseline`, `wgpu:0,plugin=PATH` or
    /// `narrow=f32=f16`; or a file of values, FILE.npz. Options are those of `devbay run`, or of the device's plugin
    #[arg(long, value_name = "SIDE")]
    a: String,
    /// Second side
    #[arg(long, value_name = "SIDE")]
    b: String,
    #[command(flatten)]
    inputs: InputArguments,
    /// Tolerance: |a - b| <= rtol * max|a| + atol. Defaults to 1e-4, times 80 for f16 and times 600 for bf16
    #[arg(long)]
    rtol: Option<f64>,
    /// See --rtol. Defaults to 1e-5, with the same factors
    #[arg(long)]
    atol: Option<f64>,
    /// Number of nodes to find that differ on equal inputs
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    nodes: u32,
    /// Write each of these nodes into this folder as a model, with its inputs and the first side's result
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Megabytes of intermediate values to keep at once; larger models are run in parts
    #[arg(long, value_name = "MB", default_value_t = 1024)]
    kept_mb: usize,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Options of `devbay run` that a side takes with a value.
const WITH_VALUE: &[&str] =
    &["plugin", "no-pass", "narrow", "numerics", "threads", "memory-budget", "pin", "layers", "feedback"];
/// Options of `devbay run` that a side takes without a value.
const FLAGS: &[&str] = &["channels-last", "no-fallback", "no-probe", "project"];

/// A device and its options, read as the command's own.
#[derive(Parser)]
#[command(no_binary_name = true, disable_help_flag = true)]
struct SideArguments {
    #[command(flatten)]
    device: DeviceArguments,
    #[command(flatten)]
    plugins: PluginArguments,
    /// Leaves the pass of this name on. Images in another order are values that no other side has.
    #[arg(long)]
    channels_last: bool,
}

/// One side as given on the command line.
enum Given {
    Device(Box<OfDevice>),
    File(PathBuf),
}

struct OfDevice {
    arguments: SideArguments,
    /// Options of the device's plugin: its name, and the given keys.
    own: Option<(String, Vec<String>)>,
}

/// Resources for running a side.
struct Opened {
    side: Side,
    /// The device or file, for display.
    title: String,
    /// Must outlive the side.
    _runtime: Option<Chosen>,
}

/// Compares both sides.
///
/// # Errors
/// [`ErrorKind::Mismatch`] if the sides differ; errors that keep a side from running.
pub fn main(arguments: &Arguments) -> Result<()> {
    let sides = [(&arguments.a, "--a"), (&arguments.b, "--b")];
    let mut given = Vec::with_capacity(2);
    for (text, option) in sides {
        given.push(parse(text).with_side(option, text)?);
    }
    let outcome = compare(arguments, &given);
    let layers = given.iter().filter_map(|given| match given {
        Given::Device(device) => Some(&device.arguments.plugins.layers),
        Given::File(_) => None,
    });
    let mut layers: Vec<_> = layers.collect();
    let Some(last) = layers.pop() else { return outcome.and_then(print) };
    // The first side reports the result; the others add findings of their layers.
    let mut result = last.conclude(outcome);
    for layers in layers {
        result = layers.conclude(result.map(|()| Done::printed()));
    }
    result
}

/// Prints the result of a comparison without a device.
fn print(done: Done) -> Result<()> {
    if let Some(json) = done.json {
        say!("{}", serde_json::to_string_pretty(&json)?);
    }
    done.verdict
}

/// Adds the side to an error of the command line.
trait WithSide<T> {
    fn with_side(self, option: &str, text: &str) -> Result<T>;
}

impl<T> WithSide<T> for Result<T> {
    fn with_side(self, option: &str, text: &str) -> Result<T> {
        self.map_err(|error| match error.downcast_ref::<Error>() {
            Some(inner) => {
                let words = format!("{option} {text}: {inner}");
                Error::new(inner.kind(), words).into()
            }
            None => error.context(format!("{option} {text}")),
        })
    }
}

/// Parses a side.
fn parse(text: &str) -> Result<Given> {
    if text.ends_with(".npz") && !text.contains(".npz,") {
        return match Path::new(text).exists() {
            true => Ok(Given::File(text.into())),
            false => Err(usage("there is no such file")),
        };
    }
    let (mut arguments, mut own, mut device, mut plugin) = (Vec::new(), Vec::new(), None, None);
    for (i, part) in text.split(',').enumerate() {
        match part.split_once('=') {
            None if i == 0 => device = Some(part),
            None if FLAGS.contains(&part) => arguments.push(format!("--{part}")),
            None => return Err(unknown(part)),
            Some((key, value)) if WITH_VALUE.contains(&key) => {
                if key == "plugin" {
                    plugin = Some(value);
                }
                arguments.push(format!("--{key}={value}"));
            }
            Some((key, _)) if key.contains('.') => arguments.push(format!("--plugin-option={part}")),
            Some((key, value)) => own.push((key, value)),
        }
    }
    if device == Some("") {
        return Err(usage("expected a device, or FILE.npz"));
    }
    arguments.extend(device.map(|device| format!("--device={device}")));
    let policy = device.map(Policy::parse).transpose()?;
    let owner = policy.and_then(|policy| policy.plugin().map(str::to_owned));
    let owner = owner.or_else(|| discover::name_of_library(Path::new(plugin?)));
    let owner = match (own.first(), owner) {
        (None, _) => None,
        (Some(_), Some(owner)) => Some(owner),
        (Some((key, _)), None) => return Err(unknown(key)),
    };
    if let Some(owner) = &owner {
        arguments.extend(own.iter().map(|(key, value)| format!("--plugin-option={owner}.{key}={value}")));
    }
    let arguments = SideArguments::try_parse_from(arguments).map_err(|error| {
        // The first line has the reason; the rest describes a command line that the user did not write.
        let words = error.to_string();
        usage(words.lines().next().unwrap_or_default().trim_start_matches("error: ").to_owned())
    })?;
    let own = owner.map(|owner| (owner, own.iter().map(|(key, _)| (*key).to_owned()).collect()));
    Ok(Given::Device(Box::new(OfDevice { arguments, own })))
}

/// Returns the error for an unknown option of a side.
fn unknown(key: &str) -> anyhow::Error {
    usage(format!(
        "there is no option `{key}`; a side has {}, {}, and the options of its device's plugin",
        WITH_VALUE.join("=, ") + "=",
        FLAGS.join(", ")
    ))
}

impl OfDevice {
    /// Starts its runtime and chooses its device.
    fn choose(&self, model: &Model) -> Result<Chosen> {
        let SideArguments { device, plugins, .. } = &self.arguments;
        let chosen = device.choose(plugins, model.program(), None);
        let Some((owner, keys)) = &self.own else { return chosen };
        // A plugin refuses unknown options, so load it without them to learn which ones it has.
        let Err(error) = chosen else { return chosen };
        let mut without = plugins.clone();
        without.plugin_option.clear();
        let Ok(chosen) = device.choose(&without, model.program(), None) else { return Err(error) };
        let plugin = chosen.runtime.plugins().iter().find(|plugin| plugin.name() == owner);
        let known: Vec<&str> =
            plugin.iter().flat_map(|plugin| &plugin.about().options).map(|option| &*option.key).collect();
        match keys.iter().find(|key| !known.contains(&key.as_str())) {
            None => Err(error),
            Some(key) => Err(usage(format!(
                "there is no option `{key}`; a side has {}=, {}, and {owner} has {}",
                WITH_VALUE.join("=, "),
                FLAGS.join(", "),
                known.iter().map(|key| format!("{key}=")).collect::<Vec<_>>().join(", ")
            ))),
        }
    }

    fn open(&self, chosen: Chosen, model: &Model, inputs: &[(String, Tensor)]) -> Result<Opened> {
        let types = types_of(model.program(), inputs);
        let mut arguments = self.arguments.device.clone();
        if !self.arguments.channels_last {
            arguments.no_pass.push("channels-last".to_owned());
        }
        let (device, options, auto) = arguments.session_options(&chosen, model, &types, None)?;
        let title = match auto {
            Some(auto) => auto.reason(),
            None => format!("{} ({})", device.name(), device.about().product),
        };
        let placement = Placement { device, others: options.others, pins: options.pins, by: options.by };
        let side = Side::Device(Box::new(OnDevice { placement, plans: options.plans }));
        Ok(Opened { side, title, _runtime: Some(chosen) })
    }
}

fn compare(arguments: &Arguments, given: &[Given]) -> Result<Done> {
    let model = Model::load(&arguments.model)?;
    let texts = [(&arguments.a, "--a"), (&arguments.b, "--b")];
    let mut chosen = Vec::with_capacity(2);
    for (given, (text, option)) in given.iter().zip(texts) {
        chosen.push(match given {
            Given::Device(device) => Some(device.choose(&model).with_side(option, text)?),
            Given::File(_) => None,
        });
    }
    let inputs = match chosen.iter().flatten().next() {
        Some(chosen) => arguments.inputs.read(model.program(), &chosen.device)?,
        None => return Err(usage("one of the sides must be a device: two files have no nodes to run")),
    };
    let mut opened = Vec::with_capacity(2);
    for ((given, chosen), (text, option)) in given.iter().zip(chosen).zip(texts) {
        opened.push(match (given, chosen) {
            (Given::Device(device), Some(chosen)) => {
                device.open(chosen, &model, &inputs).with_side(option, text)?
            }
            (Given::File(path), _) => {
                let side = Side::Values(arrays::read_npz(path)?);
                Opened { side, title: path.display().to_string(), _runtime: None }
            }
            (Given::Device(_), None) => unreachable!("every device was chosen"),
        });
    }
    let options = Options {
        relative: arguments.rtol,
        absolute: arguments.atol,
        nodes_max: arguments.nodes as usize,
        kept_bytes: arguments.kept_mb.saturating_mul(1 << 20),
        cancel: Some(interrupt::cancel()),
    };
    let sides = [&opened[0].side, &opened[1].side];
    let report = diff::diff(&model, sides, &inputs, &options)?;
    let mut written = Vec::new();
    if let Some(folder) = &arguments.output {
        for (i, difference) in report.differences.iter().enumerate() {
            written.push(write(folder, i, difference, sides, &report)?);
        }
    }
    let verdict = verdict(&report);
    if arguments.json {
        let mut json = serde_json::to_value(&report)?;
        json["model"] = json!(arguments.model);
        json["a"] = json!(opened[0].title);
        json["b"] = json!(opened[1].title);
        json["written"] = json!(written.iter().map(|written| &written.folder).collect::<Vec<_>>());
        return Ok(Done { json: Some(json), verdict });
    }
    show(arguments, &opened, &report, &written);
    Ok(Done { json: None, verdict })
}

fn verdict(report: &Report) -> Result<()> {
    let text = match (report.differences.first(), report.outputs.first()) {
        (Some(difference), _) => format!("the first node that differs is {}", place(difference)),
        (None, _) if report.n_differ > 0 => "values differ, and no node does by itself".to_owned(),
        (None, Some(output)) => format!("output `{}` differs", output.name),
        (None, None) => return Ok(()),
    };
    Err(Error::new(ErrorKind::Mismatch, text).into())
}

/// Describes a node and its enclosing control flow.
fn place(difference: &Difference) -> String {
    let within = difference.within.iter().rev().map(|within| format!(", in {within}"));
    difference.node.clone() + &within.collect::<String>()
}

/// A node that was written as a model.
struct Written {
    folder: PathBuf,
    /// True if the model differs too; None if one side is a file.
    reproduces: Option<bool>,
}

/// Writes a node as a model: `program.txt`, `inputs.npz`, and side a's result in `outputs.npz`.
fn write(
    folder: &Path,
    i: usize,
    difference: &Difference,
    sides: [&Side; 2],
    report: &Report,
) -> Result<Written> {
    let Some(alone) = &difference.model else {
        let text = format!(
            "{} cannot be a model of its own: a value that it begins with is not there",
            difference.node
        );
        return Err(Error::new(ErrorKind::UnsupportedModel, text).into());
    };
    let folder = if i == 0 { folder.to_owned() } else { folder.join((i + 1).to_string()) };
    std::fs::create_dir_all(&folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let program = folder.join("program.txt");
    write_bytes(&program, alone.text().as_bytes())
        .with_context(|| format!("cannot write {}", program.display()))?;
    let inputs: Vec<(&str, &Tensor)> =
        alone.inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    arrays::write_npz(&folder.join("inputs.npz"), &inputs)?;
    let mut results = Vec::new();
    for side in sides {
        match side {
            Side::Device(on) => results.push(Some(alone.run(on)?)),
            Side::Values(_) => results.push(None),
        }
    }
    if let Some(expected) = results.iter().flatten().next() {
        arrays::write_npz(&folder.join("outputs.npz"), &[(&alone.output(), expected)])?;
    }
    let reproduces = match (&results[0], &results[1]) {
        (Some(a), Some(b)) => Some(diff::differ(a, b, report.tolerance()).is_some()),
        _ => None,
    };
    Ok(Written { folder, reproduces })
}

fn show(arguments: &Arguments, opened: &[Opened], report: &Report, written: &[Written]) {
    say!("a  {}  {}", arguments.a, opened[0].title);
    say!("b  {}  {}", arguments.b, opened[1].title);
    let Report { n_compared, n_differ, n_explained, n_within, .. } = report;
    say!(
        "{n_compared} values that both sides have ({n_within} more are on one side alone): {n_differ} differ, {n_explained} were passed over as they agree on the same inputs"
    );
    for (i, difference) in report.differences.iter().enumerate() {
        say!("\n{}", place(difference));
        if difference.nodes.len() > 1 {
            let others: Vec<&str> = difference
                .nodes
                .iter()
                .filter(|node| **node != difference.node)
                .map(String::as_str)
                .collect();
            say!("  with       {}", others.join(", "));
        }
        say!("  value      {} {}", difference.value, difference.alone.ty);
        for (name, measured) in [("alone", &difference.alone), ("in the run", &difference.in_run)] {
            lines(name, measured);
        }
        for (side, ran) in ["a", "b"].iter().zip(&difference.ran) {
            if !ran.is_empty() {
                say!("  {side} runs     {}", ran.join(", "));
            }
        }
        if let Some(written) = written.get(i) {
            let folder = written.folder.display();
            say!(
                "  written    {folder}: devbay run {folder}/program.txt --input {folder}/inputs.npz --compare {folder}/outputs.npz"
            );
            if written.reproduces == Some(false) {
                say!(
                    "             as a model of its own it does not differ: the sides fuse other nodes there"
                );
            }
        }
    }
    if !report.outputs.is_empty() {
        say!("\nOutputs of runs without values brought out that differ:");
        for Compared { name, measured } in &report.outputs {
            lines(name, measured);
        }
    }
    for note in &report.notes {
        say!("note: {note}");
    }
    let runs = |side: usize| format!("{} + {:.2}", report.whole_runs[side], report.share_again[side]);
    say!("\nruns of a: {}, of b: {} (nodes alone as shares of a run)", runs(0), runs(1));
}

/// Prints a difference in one or two lines.
fn lines(name: &str, measured: &Measured) {
    if let Some(reason) = &measured.reason {
        say!("  {name:<10} {reason}");
        return;
    }
    let Some(worst) = &measured.worst else { return };
    let at: Vec<String> = worst.at.iter().map(ToString::to_string).collect();
    let ulps = worst.ulps.map(|ulps| format!(", {ulps} floats apart")).unwrap_or_default();
    say!(
        "  {name:<10} at [{}]: a {}, b {}; they differ by {:.3e} ({}{ulps}), allowed is {:.3e}",
        at.join(","),
        worst.values[0],
        worst.values[1],
        worst.difference,
        percent(worst.relative),
        measured.allowed
    );
    let [a, b] =
        [0, 1].map(|side| format!("{} NaN, {} infinite", measured.n_nan[side], measured.n_infinite[side]));
    let Measured { n_differ, n_elements, .. } = measured;
    say!("             {n_differ} of {n_elements} elements differ; a has {a}; b has {b}");
}
