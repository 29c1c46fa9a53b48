//! `devbay inspect MODEL`: a model's origin, its parameters, its inputs and outputs, and its work by op or by node.

use crate::inputs::GivenArguments;
use crate::work::{Work, add};
use crate::{say, table};
use anyhow::Result;
use devbay_host::internals::core::program::{Program, ValueId};
use devbay_host::internals::core::units::{count, percent};
use devbay_host::internals::devices::missing_ops;
use devbay_host::internals::support::Counts;
use devbay_host::{Device, Model, ModelFormat, Runtime, TensorType};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The plugin whose kernels state counts, unless a device was chosen: it has kernels for every op.
const REFERENCE: &str = "cpu";

/// Maximum characters of a shown description or note.
const SHOWN_MAX: usize = 200;

/// A model, described.
pub struct Described {
    file: PathBuf,
    model: Model,
    /// Elements and bytes of all constants.
    parameters: (usize, usize),
    /// Work by node; else the reason why there is none.
    work: Result<Work, String>,
    /// Ops that a device has no kernel for, by device.
    missing: BTreeMap<String, Vec<String>>,
}

/// Work of the nodes of an op.
#[derive(Default)]
struct OfOp {
    n_nodes: usize,
    /// The sum over nodes with counts.
    counts: Option<Counts>,
    /// Nodes without counts.
    n_unknown: usize,
}

impl Described {
    /// Describes a model, with counts for the given inputs, or else for the types that the model declares.
    ///
    /// # Errors
    /// For given inputs that do not fit the model.
    pub fn of(file: &Path, model: &Model, given: &GivenArguments, runtime: &Runtime) -> Result<Self> {
        let program = model.program();
        let constants = program.values.iter().filter_map(|value| value.constant.as_ref());
        let parameters = constants
            .fold((0, 0), |(n, bytes), tensor| (n + tensor.n_elements(), bytes + tensor.bytes().len()));
        let is_given = !(given.input.is_empty() && given.shape.is_empty());
        let types: Option<Vec<TensorType>> = if is_given {
            let types = given.types(program)?;
            Some(types.iter().map(|(dtype, shape)| TensorType::new(*dtype, shape)).collect())
        } else {
            program.given_inputs().iter().map(|&id| program.value(id).ty.clone()).collect()
        };
        let devices = runtime.devices();
        let is_reference = |device: &&Arc<Device>| device.plugin().name() == REFERENCE;
        let device = devices.iter().find(is_reference).or(devices.first());
        let work = match (types, device) {
            (None, _) => Err("the model does not state the types of its inputs".to_owned()),
            (_, None) => Err("there is no device whose kernels state it".to_owned()),
            (Some(types), Some(device)) => match Work::of(model, &types, device) {
                Err(error) if is_given => return Err(error),
                found => found.map_err(|error| error.to_string()),
            },
        };
        let missing = |device: &Arc<Device>| {
            (device.name().to_owned(), missing_ops(device, program).into_keys().collect())
        };
        let missing = devices.iter().map(missing).collect();
        Ok(Self { file: file.to_owned(), model: model.clone(), parameters, work, missing })
    }

    /// Returns the nodes by op, with the sums of their work.
    fn ops(&self) -> BTreeMap<String, OfOp> {
        let mut ops: BTreeMap<String, OfOp> = BTreeMap::new();
        // Nodes that only compute shapes have no work: inference has run them.
        let counts = self.work.is_ok().then_some(Counts { flops: 0, bytes: 0 });
        self.model.program().main.visit(&mut |node| {
            let op = ops.entry(node.op.to_string()).or_insert(OfOp { counts, ..OfOp::default() });
            op.n_nodes += 1;
        });
        for node in self.work.iter().flat_map(|work| &work.nodes) {
            let of_op = ops.entry(node.support.op.to_string()).or_default();
            match node.counts {
                Some(counts) => of_op.counts = Some(of_op.counts.map_or(counts, |sum| add(sum, counts))),
                None => of_op.n_unknown += 1,
            }
        }
        ops
    }

    /// Prints the model; with `nodes` the work by node, else by op.
    pub fn print(&self, nodes: bool) {
        let program = self.model.program();
        let (n_parameters, bytes) = self.parameters;
        say!(
            "{}: {}, {} in {} of constants",
            self.file.display(),
            count(program.n_nodes(), "node"),
            count(n_parameters, "parameter"),
            table::bytes(bytes as u64)
        );
        for (what, text) in self.facts() {
            say!("  {what:<9} {text}");
        }
        let ports = [("input", program.given_inputs()), ("output", &program.main.outputs)];
        for (side, ids) in ports {
            for (name, ty) in self.ports(ids) {
                say!("  {side:<9} {name} {ty}");
            }
        }
        say!();
        match &self.work {
            Ok(work) if nodes => print_nodes(work),
            work => {
                self.print_ops();
                if let Err(reason) = work {
                    say!("operations and bytes are unknown: {reason}");
                }
            }
        }
        if let Ok(work) = &self.work {
            print_sum(work);
        }
        for (device, ops) in self.missing.iter().filter(|(_, ops)| !ops.is_empty()) {
            say!("{device} has no kernel for {}", ops.join(", "));
        }
    }

    /// Returns the facts that the file states, each with its name.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let info = self.model.info();
        let mut format = match (info.format, info.ir_version) {
            (ModelFormat::Onnx, Some(version)) => format!("ONNX, IR version {version}"),
            (ModelFormat::Onnx, None) => "ONNX".to_owned(),
            (ModelFormat::Compiled, _) => "a compiled model".to_owned(),
            _ => "a program in text form".to_owned(),
        };
        // ONNX's own first.
        let mut opsets: Vec<_> = info.opsets.iter().collect();
        opsets.sort_by_key(|(domain, _)| !domain.is_empty());
        for (domain, version) in opsets {
            let domain = if domain.is_empty() { String::new() } else { format!(" of {domain}") };
            format.push_str(&format!(", opset {version}{domain}"));
        }
        let mut facts = vec![("format", format)];
        let mut add = |what, text: String| {
            if !text.trim().is_empty() {
                facts.push((what, cut(text.trim())));
            }
        };
        add("producer", format!("{} {}", info.producer_name, info.producer_version));
        add("graph", self.model.program().name.clone());
        add("domain", info.domain.clone());
        // 0 is what exporters write that have no version.
        let version = info.model_version.filter(|version| *version != 0).map(|version| version.to_string());
        add("version", version.unwrap_or_default());
        add("about", info.description.clone());
        add("about", info.graph_description.clone());
        for (key, value) in &info.metadata {
            add("note", format!("{key}={value}"));
        }
        facts
    }

    /// Returns names and types of inputs or outputs.
    fn ports(&self, ids: &[ValueId]) -> Vec<(String, String)> {
        let program: &Program = self.model.program();
        let port = |id: &ValueId| {
            let value = program.value(*id);
            (value.name.to_string(), value.ty.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string))
        };
        ids.iter().map(port).collect()
    }

    fn print_ops(&self) {
        let row = |(op, of_op): (String, OfOp)| {
            let [flops, bytes] = cells(of_op.counts, of_op.n_unknown);
            vec![op, of_op.n_nodes.to_string(), flops, bytes]
        };
        let rows: Vec<Vec<String>> = self.ops().into_iter().map(row).collect();
        table::print(&["OP", ">NODES", ">OPERATIONS", ">BYTES"], &rows);
    }

    /// Returns the model as JSON.
    pub fn json(&self) -> Value {
        let (program, info) = (self.model.program(), self.model.info());
        let list = |ids: &[ValueId]| -> Value {
            self.ports(ids).iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect()
        };
        let opsets: Value = info
            .opsets
            .iter()
            .map(|(domain, version)| json!({ "domain": domain, "version": version }))
            .collect();
        let metadata: Value =
            info.metadata.iter().map(|(key, value)| json!({ "key": key, "value": value })).collect();
        let ops: BTreeMap<String, usize> =
            self.ops().into_iter().map(|(op, of_op)| (op, of_op.n_nodes)).collect();
        let sum = self.work.as_ref().ok().map(Work::sum);
        json!({
            "file": self.file, "name": program.name, "format": info.format.name(),
            "ir_version": info.ir_version,
            "opsets": opsets, "producer": { "name": info.producer_name, "version": info.producer_version },
            "domain": info.domain, "model_version": info.model_version, "description": info.description,
            "graph_description": info.graph_description,
            "metadata": metadata, "nodes": program.n_nodes(), "parameters": self.parameters.0,
            "constant_bytes": self.parameters.1, "inputs": list(program.given_inputs()),
            "outputs": list(&program.main.outputs), "ops": ops,
            "work": {
                "device": self.work.as_ref().ok().map(|work| &work.device),
                "unknown_because": self.work.as_ref().err(),
                "flops": sum.map(|(counts, _)| counts.flops), "bytes": sum.map(|(counts, _)| counts.bytes),
                "unknown_nodes": sum.map(|(_, n)| n), "layers": self.work.as_ref().ok().map(Work::json),
            },
            "missing_kernels": self.missing,
        })
    }
}

/// Returns operations and bytes as cells; a mark for nodes that are not in the sum.
fn cells(counts: Option<Counts>, n_unknown: usize) -> [String; 2] {
    let is_known = |counts: &Counts| n_unknown == 0 || counts.flops + counts.bytes > 0;
    let Some(counts) = counts.filter(is_known) else { return ["?", "?"].map(str::to_owned) };
    let more = if n_unknown > 0 { " + ?" } else { "" };
    [table::operations(counts.flops), table::bytes(counts.bytes)].map(|text| text + more)
}

fn print_nodes(work: &Work) {
    let (sum, _) = work.sum();
    let rows: Vec<Vec<String>> = work
        .nodes
        .iter()
        .map(|node| {
            let support = &node.support;
            let indent = "  ".repeat(support.within.len());
            let result = support.result.as_ref().map_or_else(|| "?".to_owned(), ToString::to_string);
            let [flops, bytes] = cells(node.counts, 0);
            let share = match node.counts {
                Some(counts) if support.within.is_empty() && sum.flops > 0 => {
                    percent(counts.flops as f64 / sum.flops as f64)
                }
                _ => String::new(),
            };
            vec![format!("{indent}{}", support.node), result, flops, share, bytes]
        })
        .collect();
    table::print(&["NODE", "RESULT", ">OPERATIONS", ">SHARE", ">BYTES"], &rows);
}

/// Prints the sum of all nodes, and which are not in it.
fn print_sum(work: &Work) {
    let (sum, n_unknown) = work.sum();
    let nested = work.nodes.iter().filter(|node| !node.support.within.is_empty()).count();
    say!(
        "{} {} and {} of operands in a run, as kernels of {} state",
        table::operations(sum.flops),
        if sum.flops == 1 { "operation" } else { "operations" },
        table::bytes(sum.bytes),
        work.device
    );
    if nested > 0 {
        say!("the sum leaves out {} in branches and bodies of loops", count(nested, "node"));
    }
    if n_unknown > 0 {
        say!("?: {} of unknown work; --shape NAME=DIMS fixes open extents", count(n_unknown, "node"));
    }
}

/// Truncates a text that a file may make as long as it likes.
fn cut(text: &str) -> String {
    if text.chars().count() <= SHOWN_MAX {
        return text.to_owned();
    }
    text.chars().take(SHOWN_MAX - 1).chain(['…']).collect()
}
