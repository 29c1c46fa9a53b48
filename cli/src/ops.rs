//! `devbay ops`: the ops that devices have kernels for, by version and element type; or for a model, the device of each node
//! and the reasons of devices that do not take it, before the model runs.

use crate::inputs::GivenArguments;
use crate::layers::Done;
use crate::options::{DeviceArguments, PluginArguments};
use crate::{say, shares, table};
use anyhow::Result;
use devbay_host::internals::auto::Auto;
use devbay_host::internals::core::kernel::KernelDef;
use devbay_host::internals::core::plan::Placement;
use devbay_host::internals::core::program::{Program, catalogue};
use devbay_host::internals::core::tensor::dtype_name;
use devbay_host::internals::core::units::count;
use devbay_host::internals::support::{self, Answer, Asking, NodeSupport, Runs};
use devbay_host::{Checks, DType, Device, Error, ErrorKind, SessionOptions, TensorType};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Arguments of the command.
#[derive(clap::Args)]
pub struct Arguments {
    /// A model: show the device of each of its nodes, and why other devices do not take it. Without one, list the ops that
    /// devices have kernels for
    model: Option<PathBuf>,
    /// With a model: prepare each kernel, as a run does. Slower, but a kernel may refuse a node only then
    #[arg(long, requires = "model")]
    prepare: bool,
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

/// Lists ops, or the support of a model.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for a model with a node that no device takes, after the list; errors of reading the model,
/// and findings of layers.
pub fn main(arguments: &Arguments) -> Result<()> {
    let done = match &arguments.model {
        Some(model) => of_model(arguments, model),
        None => catalogue_of(arguments),
    };
    arguments.plugins.layers.conclude(done)
}

/// An op of the catalogue or of a plugin, with the kernels that devices have for it.
struct Listed<'a> {
    domain: &'a str,
    name: &'a str,
    /// The versions of the catalogue: the one that programs have, the oldest that kernels may have, and the oldest that is
    /// imported unchanged. None for an op that only a plugin knows.
    versions: Option<(u32, u32, u32)>,
    /// The part of the system that runs it.
    runs: &'static str,
    kernels: Vec<(&'a Device, Vec<&'a KernelDef>)>,
}

fn catalogue_of(arguments: &Arguments) -> Result<Done> {
    let policy = arguments.device.policy(&arguments.plugins)?;
    let runtime = arguments.plugins.runtime(policy.as_ref())?;
    let devices = match policy {
        // The list is of that device, and not of one that runs what it cannot.
        Some(_) => vec![arguments.device.choose(&arguments.plugins, &Program::default(), None)?.device],
        None => runtime.devices(),
    };
    if devices.is_empty() {
        return Err(
            Error::new(ErrorKind::NotFound, "there is no device; `devbay devices` has the reasons").into()
        );
    }
    let ops = listed(&devices);
    if arguments.json {
        return Ok(Done::json(json!({
            "devices": devices.iter().map(|device| device.name()).collect::<Vec<_>>(),
            "ops": ops.iter().map(op_json).collect::<Vec<_>>(),
        })));
    }
    let mut rows = Vec::new();
    for op in &ops {
        let title = title(op.domain, op.name);
        let version = op.versions.map_or_else(String::new, |(version, ..)| version.to_string());
        let row = |version: &str, device: &str, kernel: String, types: String| {
            vec![title.clone(), version.to_owned(), device.to_owned(), kernel, types]
        };
        let n_before = rows.len();
        for (device, kernels) in &op.kernels {
            for kernel in kernels {
                rows.push(row(&version, device.name(), kernel.since_version.to_string(), types_of(kernel)));
            }
        }
        if rows.len() == n_before {
            let why = if op.runs == "kernel" { "no kernel" } else { op.runs };
            rows.push(row(&version, "-", String::new(), why.to_owned()));
        }
    }
    table::print(&["OP", ">VERSION", "DEVICE", ">KERNEL", "TYPES"], &rows);
    say!();
    for device in &devices {
        let name = device.name();
        let has = |op: &&Listed<'_>| {
            op.kernels.iter().any(|(of, kernels)| of.name() == name && !kernels.is_empty())
        };
        let of_kernels = ops.iter().filter(|op| op.runs == "kernel");
        let (n_all, n) = (of_kernels.clone().count(), of_kernels.filter(has).count());
        say!(
            "{name}: {}, kernels for {n} of {n_all} ops that need one",
            count(device.kernels().len(), "kernel")
        );
    }
    Ok(Done::printed())
}

/// Returns the ops of the catalogue, and those of devices that it does not have, by name.
fn listed(devices: &[Arc<Device>]) -> Vec<Listed<'_>> {
    let mut ops: BTreeMap<(&str, &str), Listed<'_>> = BTreeMap::new();
    let empty = || devices.iter().map(|device| (&**device, Vec::new())).collect::<Vec<_>>();
    for row in catalogue::all() {
        let runs = match row.kind {
            catalogue::OpKind::Kernel => "kernel",
            catalogue::OpKind::View => "a view, without a kernel",
            catalogue::OpKind::Query | catalogue::OpKind::Control => "the host",
        };
        let versions = Some((row.version, row.same_since, row.lifts_since));
        let op = Listed { domain: row.domain, name: row.name, versions, runs, kernels: empty() };
        ops.insert((row.domain, row.name), op);
    }
    for (at, device) in devices.iter().enumerate() {
        for kernel in device.kernels().iter() {
            let (domain, name) = (kernel.domain.as_str(), kernel.op.as_str());
            let op = ops.entry((domain, name));
            let new = || Listed { domain, name, versions: None, runs: "kernel", kernels: empty() };
            op.or_insert_with(new).kernels[at].1.push(kernel);
        }
    }
    ops.into_values().collect()
}

fn op_json(op: &Listed<'_>) -> Value {
    let kernel = |kernel: &&KernelDef| {
        let types: Vec<Vec<String>> = kernel
            .typevars
            .iter()
            .map(|dtypes| dtypes.iter().map(|&dtype| dtype_name(dtype)).collect())
            .collect();
        json!({ "since_version": kernel.since_version, "types": types })
    };
    let devices: Map<String, Value> = op
        .kernels
        .iter()
        .map(|(device, kernels)| (device.name().to_owned(), kernels.iter().map(kernel).collect()))
        .collect();
    json!({
        "domain": op.domain, "op": op.name, "version": op.versions.map(|(version, ..)| version),
        "kernels_since": op.versions.map(|(_, kernels, _)| kernels),
        "imported_since": op.versions.map(|(.., imported)| imported),
        "needs_kernel": op.runs == "kernel", "devices": devices,
    })
}

/// Returns an op's name with its domain, unless it is ONNX's own.
fn title(domain: &str, name: &str) -> String {
    if domain.is_empty() { name.to_owned() } else { format!("{domain}.{name}") }
}

/// Returns the element types of a kernel, by type variable.
fn types_of(kernel: &KernelDef) -> String {
    let lists: Vec<String> = kernel.typevars.iter().map(|dtypes| short(dtypes)).collect();
    lists.join("; ")
}

/// Returns element types as text, with complete families in short: `i8-i64`.
fn short(dtypes: &[DType]) -> String {
    let mut names: Vec<String> = dtypes.iter().map(|&dtype| dtype_name(dtype)).collect();
    for (family, members) in [
        ("f16-f64", &["f16", "f32", "f64"][..]),
        ("i8-i64", &["i8", "i16", "i32", "i64"]),
        ("u8-u64", &["u8", "u16", "u32", "u64"]),
    ] {
        if let Some(at) = names.iter().position(|name| members.contains(&name.as_str()))
            && members.iter().all(|member| names.iter().any(|name| name == member))
        {
            names[at] = family.to_owned();
            names.retain(|name| !members.contains(&name.as_str()));
        }
    }
    names.join(" ")
}

/// The support of a model, and the devices that were asked.
struct Supported {
    nodes: Vec<NodeSupport>,
    placement: Placement,
    devices: Vec<Arc<Device>>,
    auto: Option<Auto>,
}

fn of_model(arguments: &Arguments, path: &Path) -> Result<Done> {
    let supported = supported(arguments, path)?;
    let missing = supported.nodes.iter().filter(|node| node.runs == Runs::Nowhere).count();
    let verdict = match missing {
        0 => Ok(()),
        n => {
            let text = format!("no device has a kernel for {} of {}", count(n, "node"), path.display());
            Err(Error::new(ErrorKind::UnsupportedOp, text).into())
        }
    };
    if arguments.json {
        return Ok(Done { json: Some(supported.json(path)), verdict });
    }
    supported.print(path);
    Ok(Done { json: None, verdict })
}

fn supported(arguments: &Arguments, path: &Path) -> Result<Supported> {
    let model = arguments.device.load(path, Checks::default())?;
    // No program is required: a device that lacks a kernel is what is asked about.
    let chosen = arguments.device.choose(&arguments.plugins, &Program::default(), None)?;
    let types = arguments.given.types(model.program())?;
    let types: Vec<TensorType> = types.iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect();
    // Without types, nothing is estimated and the order of devices decides.
    let by_order = || arguments.device.session_options(&chosen, &model, &[], None);
    let found = match arguments.device.session_options(&chosen, &model, &types, None) {
        Err(error) if crate::exit::kind(&error) == ErrorKind::UnsupportedOp => by_order(),
        found => found,
    };
    let (device, SessionOptions { others, pins, by, plans, .. }, auto) = found?;
    let placement = Placement { device, others, pins, by };
    let devices = chosen.runtime.devices();
    let asking = if arguments.prepare { Asking::Prepared } else { Asking::Descriptors };
    let nodes = support::of_model(&model, &types, &placement, &devices, &plans, asking)?;
    Ok(Supported { nodes, placement, devices, auto })
}

impl Supported {
    /// Returns the devices with answers, the chosen one first.
    fn asked(&self) -> Vec<&str> {
        let mut names = vec![self.placement.device.name()];
        for device in &self.devices {
            if !names.contains(&device.name()) {
                names.push(device.name());
            }
        }
        names
    }

    /// Returns the number of nodes by what runs them.
    fn counts(&self) -> Vec<(String, usize)> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        for node in &self.nodes {
            let title = runs(node);
            match counts.iter_mut().find(|(known, _)| *known == title) {
                Some((_, n)) => *n += 1,
                None => counts.push((title, 1)),
            }
        }
        counts.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        counts
    }

    fn print(&self, path: &Path) {
        let counts: Vec<String> = self.counts().iter().map(|(title, n)| format!("{n} {title}")).collect();
        say!("{}: {}: {}", path.display(), count(self.nodes.len(), "node"), counts.join(", "));
        if let Some(auto) = &self.auto {
            say!("{}", auto.reason());
        }
        say!();
        let row = |node: &NodeSupport| {
            let indent = "  ".repeat(node.within.len());
            let ty = node.ty.as_ref().map_or_else(|| "?".to_owned(), |ty| dtype_name(ty.dtype));
            let late = if node.is_late { "planned during the run" } else { "" };
            let note = if self.falls_back(node) { "falls back" } else { late };
            vec![
                format!("{indent}{}", node.node),
                ty,
                runs(node),
                kernel_of(node).to_owned(),
                note.to_owned(),
            ]
        };
        let rows: Vec<Vec<String>> = self.nodes.iter().map(row).collect();
        table::print(&["NODE", "TYPE", "RUNS", "KERNEL", ""], &rows);
        for device in self.asked() {
            let refusals = self.refusals(device);
            if refusals.is_empty() {
                continue;
            }
            let n: usize = refusals.values().map(Vec::len).sum();
            say!("\n{device} does not take {}:", count(n, "node"));
            for (reason, nodes) in refusals {
                say!("  {}: {reason}", count(nodes.len(), "node"));
                const NAMED_MAX: usize = 4;
                let more = nodes.len().saturating_sub(NAMED_MAX);
                let mut named = nodes.into_iter().take(NAMED_MAX).collect::<Vec<_>>().join(", ");
                if more > 0 {
                    named.push_str(&format!(" and {more} more"));
                }
                say!("    {named}");
            }
        }
    }

    /// Returns whether another device runs a node because the chosen one does not take it: not because of a pin or an estimate.
    fn falls_back(&self, node: &NodeSupport) -> bool {
        let own = self.placement.device.name();
        let is_refused = node.answers.iter().any(|answer| answer.device == own && answer.kernel.is_err());
        is_refused && matches!(&node.runs, Runs::Device(device) if device != own)
    }

    /// Returns a device's reasons, each with the nodes that it refuses for it.
    fn refusals(&self, device: &str) -> BTreeMap<&str, Vec<&str>> {
        let mut refusals: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for node in &self.nodes {
            let answer = node.answers.iter().find(|answer| answer.device == device);
            if let Some(Answer { kernel: Err(reason), .. }) = answer {
                refusals.entry(reason).or_default().push(&node.node);
            }
        }
        refusals
    }

    fn json(&self, path: &Path) -> Value {
        let own = self.placement.device.name();
        let node = |node: &NodeSupport| {
            let answers: Vec<Value> = node
                .answers
                .iter()
                .map(|answer| {
                    json!({
                        "device": answer.device, "kernel": answer.kernel.as_ref().ok(),
                        "reason": answer.kernel.as_ref().err(),
                    })
                })
                .collect();
            let device = match &node.runs {
                Runs::Device(device) => Some(device),
                _ => None,
            };
            json!({
                "node": node.node, "op": node.op.to_string(), "within": node.within,
                "dtype": node.ty.as_ref().map(|ty| dtype_name(ty.dtype)), "runs": kind(&node.runs), "device": device,
                "falls_back": self.falls_back(node), "planned_during_run": node.is_late,
                "answers": answers,
            })
        };
        let n = |runs: fn(&Runs) -> bool| self.nodes.iter().filter(|node| runs(&node.runs)).count();
        let mut by_device: BTreeMap<&str, usize> = BTreeMap::new();
        for node in &self.nodes {
            if let Runs::Device(device) = &node.runs {
                *by_device.entry(device).or_default() += 1;
            }
        }
        json!({
            "model": path, "device": own, "devices": self.asked(),
            "counts": {
                "nodes": self.nodes.len(), "by_device": by_device, "views": n(|runs| *runs == Runs::View),
                "host": n(|runs| *runs == Runs::Host), "fall_back": self.nodes.iter().filter(|node| self.falls_back(node)).count(),
                "no_kernel": n(|runs| *runs == Runs::Nowhere),
            },
            "nodes": self.nodes.iter().map(node).collect::<Vec<_>>(),
            "placement": shares::placement(self.auto.as_ref()),
        })
    }
}

/// Returns what runs a node, in words.
fn runs(node: &NodeSupport) -> String {
    match &node.runs {
        Runs::Device(device) => format!("on {device}"),
        Runs::View => "as a view".to_owned(),
        Runs::Host => "on the host".to_owned(),
        Runs::Nowhere => "nowhere".to_owned(),
    }
}

/// Returns what runs a node, for JSON.
fn kind(runs: &Runs) -> &'static str {
    match runs {
        Runs::Device(_) => "device",
        Runs::View => "view",
        Runs::Host => "host",
        Runs::Nowhere => "nowhere",
    }
}

/// Returns the kernel that runs a node; empty if none does.
fn kernel_of(node: &NodeSupport) -> &str {
    let Runs::Device(device) = &node.runs else { return "" };
    let answer = node.answers.iter().find(|answer| answer.device == *device);
    answer.and_then(|answer| answer.kernel.as_deref().ok()).unwrap_or_default()
}
