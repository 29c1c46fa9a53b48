//! `devbay inspect`: shows the content of a model or a plugin file, and how a model would run.

use crate::describe::Described;
use crate::exit::usage;
use crate::inputs::GivenArguments;
use crate::layers::Done;
use crate::options::{DeviceArguments, PluginArguments};
use crate::passes::{Passes, Subject};
use crate::{draw, say, shares, table, tell};
use anyhow::{Context, Result};
use devbay_host::internals::abi_report::{AbiReport, SizeSeen, Slot};
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::dtype_name;
use devbay_host::internals::file::{open_regular, write_bytes};
use devbay_host::internals::load::Library;
use devbay_host::internals::negotiate::{Entry, negotiate};
use devbay_host::internals::plan_json;
use devbay_host::{Checks, Session, TensorType};
use devbay_plugin_api::abi::FUNCTIONS;
use devbay_plugin_api::abi::version::{MinorRange, REQUIRED_FUNCTIONS, has_function};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A model, or a plugin library
    file: PathBuf,
    /// Print the program in text form, without large constants
    #[arg(long)]
    text: bool,
    /// List each node of a model, with its arithmetic operations and bytes
    #[arg(long, conflicts_with_all = ["text", "plan", "passes"])]
    nodes: bool,
    /// Show the plan: tasks, their launches and estimated times
    #[arg(long, conflicts_with = "text")]
    plan: bool,
    /// Show the changes made by each pass, and the estimated savings
    #[arg(long, conflicts_with_all = ["text", "plan"])]
    passes: bool,
    /// Show differences between a plugin's view of the ABI and this host's, by slot and field
    #[arg(long, conflicts_with_all = ["text", "plan", "passes", "nodes"])]
    abi: bool,
    /// With --plan: draw the tasks, for Graphviz
    #[arg(long, value_name = "FILE", requires = "plan")]
    dot: Option<PathBuf>,
    /// With --plan: draw the tasks, as one page for a browser
    #[arg(long, value_name = "FILE", requires = "plan")]
    html: Option<PathBuf>,
    /// Types that operations are counted for, and that --plan and --passes plan for
    #[command(flatten)]
    given: GivenArguments,
    #[command(flatten)]
    device: DeviceArguments,
    #[command(flatten)]
    plugins: PluginArguments,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Shows the file.
///
/// # Errors
/// If the file is neither a model nor a plugin, or is damaged.
pub fn main(arguments: &Arguments) -> Result<()> {
    let is_given = !(arguments.given.input.is_empty() && arguments.given.shape.is_empty());
    let is_planned = arguments.plan || arguments.passes;
    if is_given && arguments.text {
        return Err(usage("--input and --shape do not change the text"));
    }
    if !is_library(&arguments.file)? {
        if arguments.abi {
            return Err(usage("--abi is for plugins, and the file is no library"));
        }
        return match (arguments.plan, arguments.passes) {
            (true, _) => arguments.plugins.layers.conclude(planned(arguments)),
            (_, true) => arguments.plugins.layers.conclude(passes(arguments)),
            _ => model(arguments),
        };
    }
    if is_planned || arguments.nodes || is_given {
        return Err(usage(
            "--plan, --passes, --nodes, --input and --shape are for models, and the file is a library",
        ));
    }
    if arguments.abi {
        return abi(arguments);
    }
    plugin(arguments)
}

/// Shows how a plugin's view of the ABI differs from this host's, also for refused plugins.
fn abi(arguments: &Arguments) -> Result<()> {
    let report = AbiReport::of(&Library::open(&arguments.file)?)?;
    let (empty, beyond) = (report.slots_that_are(Slot::Empty), report.slots_that_are(Slot::Beyond));
    if arguments.json {
        let size = |size: &SizeSeen| json!({ "struct": size.name, "found": size.found, "expected": size.expected, "lacks": size.lacks });
        let value = json!({
            "file": arguments.file, "abi": { "min": report.minors.min, "max": report.minors.max },
            "agreed": report.verdict.as_ref().ok(),
            "refusal": report.verdict.as_ref().err().map(|refusal| &refusal.reason),
            "sizes": report.sizes.iter().map(size).collect::<Vec<_>>(),
            "slots": { "filled": report.slots_that_are(Slot::Filled), "empty": empty, "beyond": beyond },
            "layout": { "shown": report.n_shown, "differs": report.differs,
                        "only_there": report.only_there, "only_here": report.only_here },
        });
        say!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    say!("the plugin speaks {}, this host {}", report.minors, MinorRange::CURRENT);
    match &report.verdict {
        Ok(minor) => say!("  served as 0.{minor}"),
        Err(refusal) => say!("  refused: {refusal}"),
    }
    for size in &report.sizes {
        let lacks = match size.lacks.as_slice() {
            [] if size.found > size.expected => format!("{} bytes beyond", size.found - size.expected),
            [] => "whole".to_owned(),
            lacks => format!("without {}", lacks.join(", ")),
        };
        say!("  {:<20} {} bytes, here {}: {lacks}", size.name, size.found, size.expected);
    }
    for (what, names) in [("NULL", empty), ("not in its table", beyond)] {
        if !names.is_empty() {
            say!("  {what}: {}", names.join(", "));
        }
    }
    match report.n_shown {
        0 => say!("  it does not show its layouts, as plugins in C"),
        n => say!("  it shows {n} fields, of which {} lie elsewhere", report.differs.len()),
    }
    let sides =
        [("", &report.differs), ("only there: ", &report.only_there), ("only here: ", &report.only_here)];
    for (side, lines) in sides {
        for line in lines {
            say!("    {side}{line}");
        }
    }
    Ok(())
}

/// Shows a model.
fn model(arguments: &Arguments) -> Result<()> {
    let model = arguments.device.load_any(&arguments.file, Checks::default())?;
    if model.has_values() {
        tell!(
            "the model has strings, sequences, optionals or maps: shown are the segments that devices run between the host's nodes"
        );
    }
    if arguments.text {
        say!("{}", text::print_elided(model.program()).trim_end());
        return Ok(());
    }
    let runtime = arguments.plugins.runtime(arguments.device.policy(&arguments.plugins)?.as_ref())?;
    let described = Described::of(&arguments.file, &model, &arguments.given, &runtime)?;
    match arguments.json {
        true => say!("{}", serde_json::to_string_pretty(&described.json())?),
        false => described.print(arguments.nodes),
    }
    Ok(())
}

/// Shows a model's plan.
fn planned(arguments: &Arguments) -> Result<Done> {
    let model = arguments.device.load(&arguments.file, Checks::default())?;
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), None)?;
    let types = arguments.given.types(model.program())?;
    let wanted: Vec<_> = types.iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect();
    let (session, auto) = arguments.device.session(&chosen, &model, &wanted, None)?;
    let types: Vec<_> = types.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
    let report = session.plan_report(&*session.plan_for_types(&types)?);
    let write = |path: &PathBuf, drawing: String| {
        write_bytes(path, drawing.as_bytes()).with_context(|| format!("cannot write {}", path.display()))
    };
    if let Some(path) = &arguments.dot {
        write(path, draw::dot(&report))?;
    }
    if let Some(path) = &arguments.html {
        write(path, draw::html(&report, &arguments.file))?;
    }
    if arguments.json {
        let mut json = plan_json::json(&report);
        json["placement"] = shares::placement(auto.as_ref());
        return Ok(Done::json(json));
    }
    say!("{}", report.to_string().trim_end());
    if let Some(auto) = &auto {
        say!("{}", auto.reason());
    }
    Ok(Done::printed())
}

/// Shows the changes made by passes.
fn passes(arguments: &Arguments) -> Result<Done> {
    let model = arguments.device.load(&arguments.file, Checks::default())?;
    let chosen = arguments.device.choose(&arguments.plugins, model.program(), None)?;
    let types = arguments.given.types(model.program())?;
    let wanted: Vec<_> = types.iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect();
    let (device, options, auto) = arguments.device.session_options(&chosen, &model, &wanted, None)?;
    let types: Vec<_> = types.iter().map(|(dtype, shape)| (*dtype, shape.as_slice())).collect();
    let plan = |session: &Session| session.plan_for_types(&types);
    let subject = Subject { model: &model, device: &device, options: &options, plan: &plan };
    let passes = Passes::of(&subject, None)?;
    if arguments.json {
        let mut json = passes.json();
        json["model"] = json!(arguments.file);
        json["device"] = json!(device.name());
        json["placement"] = shares::placement(auto.as_ref());
        return Ok(Done::json(json));
    }
    passes.print();
    if let Some(auto) = &auto {
        say!("{}", auto.reason());
    }
    Ok(Done::printed())
}

/// Returns whether a file begins like a shared library.
fn is_library(path: &Path) -> Result<bool> {
    use std::io::Read;
    let mut head = [0u8; 4];
    let mut file = match open_regular(path) {
        Ok((file, _)) => file,
        Err(e) => return Err(anyhow::Error::new(e).context(format!("cannot read {}", path.display()))),
    };
    let n = file.read(&mut head)?;
    // ELF, Mach-O and PE.
    let starts = |magic: &[u8]| head[..n].starts_with(magic);
    Ok(starts(b"\x7fELF") || starts(&[0xcf, 0xfa, 0xed, 0xfe]) || starts(b"MZ"))
}

fn plugin(arguments: &Arguments) -> Result<()> {
    let library = Library::open(&arguments.file)?;
    let agreement = negotiate(Entry::Library(&library), MinorRange::CURRENT)?;
    let about = &agreement.about;
    if arguments.json {
        let kernels: Vec<_> = about
            .kernels
            .iter()
            .map(|kernel| {
                let types: Vec<Vec<String>> = kernel
                    .typevars
                    .iter()
                    .map(|dtypes| dtypes.iter().map(|&dtype| dtype_name(dtype)).collect())
                    .collect();
                json!({ "domain": kernel.domain, "op": kernel.op, "since_version": kernel.since_version, "types": types,
                        "priority": kernel.priority, "doc": kernel.doc })
            })
            .collect();
        let options: Vec<_> = about
            .options
            .iter()
            .map(|o| json!({ "key": o.key, "default": o.default, "doc": o.doc }))
            .collect();
        let functions: BTreeMap<_, _> =
            FUNCTIONS.iter().map(|f| (f.name, has_function(&about.table, f.name))).collect();
        let value = json!({
            "file": arguments.file, "name": about.name, "vendor": about.vendor, "version": about.version,
            "abi": { "min": about.minors.min, "max": about.minors.max, "agreed": agreement.minor },
            "threading": about.threading.name(), "profiles": about.profiles, "unloadable": about.unloadable,
            "options": options, "functions": functions, "kernels": kernels, "layout_differences": agreement.differences,
        });
        say!("{}", serde_json::to_string_pretty(&value)?);
        return Ok(());
    }
    say!("plugin {} {} by {}", about.name, about.version, about.vendor);
    say!("  ABI        {}, agreed on 0.{}", about.minors, agreement.minor);
    say!("  threading  {}", about.threading.name());
    say!("  profiles   {}", about.profiles.join(", "));
    let lacks: Vec<&str> =
        FUNCTIONS.iter().filter(|f| !has_function(&about.table, f.name)).map(|f| f.name).collect();
    // A plugin without a required function is refused: the others are what plugins differ in.
    say!(
        "  functions  the {} required ones, and {} of {} optional ones{}",
        REQUIRED_FUNCTIONS.len(),
        FUNCTIONS.len() - REQUIRED_FUNCTIONS.len() - lacks.len(),
        FUNCTIONS.len() - REQUIRED_FUNCTIONS.len(),
        if lacks.is_empty() { String::new() } else { format!("; without {}", lacks.join(", ")) }
    );
    for option in &about.options {
        say!("  option     {}={}: {}", option.key, option.default, option.doc);
    }
    for difference in &agreement.differences {
        say!("  layout     {difference}");
    }
    let rows: Vec<Vec<String>> = about
        .kernels
        .iter()
        .map(|kernel| {
            let types: Vec<String> = kernel
                .typevars
                .iter()
                .map(|dtypes| dtypes.iter().map(|&dtype| dtype_name(dtype)).collect::<Vec<_>>().join("|"))
                .collect();
            let domain = if kernel.domain.is_empty() { "onnx" } else { &kernel.domain };
            vec![
                format!("{domain}.{}", kernel.op),
                kernel.since_version.to_string(),
                types.join(" "),
                kernel.doc.clone(),
            ]
        })
        .collect();
    say!();
    table::print(&["KERNEL", ">VERSION", "TYPES", ""], &rows);
    Ok(())
}
