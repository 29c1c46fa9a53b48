//! ONNX's own node tests, 1,884 cases that neither we nor a vendor wrote.
//!
//! [`Path::Kernels`] judges a plugin: each node goes to the plugin's own `prepare` and `launch`, one after the
//! other, and nothing is folded, expanded or run elsewhere. Values that an op's specification needs beforehand go to
//! `prepare` as constants; what only the host runs (views, questions about shapes, control flow, strings,
//! sequences, optionals) is told apart. [`Path::Session`] runs the same tests as `devbay run` does, with all that a session
//! has, which says how much of ONNX the whole runs.

pub(crate) mod compare;
pub(crate) mod corpus;
#[cfg(test)]
mod mutants;
mod values;

pub use corpus::{About, index};

use crate::verdict::{Failure, Verdict, Why};
use compare::{Tolerance, difference};
use corpus::{DataSet, NodeTest};
use devbay_host::internals::core::plan::place::implements;
use devbay_host::internals::core::program::catalogue::{self, OpKind};
use devbay_host::internals::core::program::{Node, Program, ValueId};
use devbay_host::internals::eager::run_node;
use devbay_host::internals::import::{from_bytes, read_tensor};
use devbay_host::{Device, Error, ErrorKind, Model, Session, Tensor, TensorType};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Begins the ids of these tests; the rest is the test's name in the onnx package.
pub const PREFIX: &str = "onnx/";

/// Tests whose expected output is itself further from the exact result than the tolerance that comes with it, and the
/// tolerance that holds for them instead, `(relative, absolute)`: the reason is beside each.
const WIDER: &[(&str, Tolerance)] = &[
    // NumPy 2 transforms f32 in f32: 1.9e-7 of its result is rounding where the formula gives 0.
    ("test_dft_inverse", Tolerance { relative: 1e-3, absolute: 1e-6 }),
    ("test_dft_inverse_opset19", Tolerance { relative: 1e-3, absolute: 1e-6 }),
    // The reference rounds a sum of bf16 to bf16 after each term: the last two bits of 8 are noise.
    ("test_attention_3d_causal_bf16_expanded", BF16_SUMS),
    ("test_attention_4d_attn_mask_causal_bf16_expanded", BF16_SUMS),
    ("test_attention_4d_causal_bf16_expanded", BF16_SUMS),
    ("test_attention_4d_causal_padded_kv_bf16_expanded", BF16_SUMS),
    ("test_attention_4d_padded_kv_bf16_expanded", BF16_SUMS),
    // Two elements are off by one in the last place of f16, which is 1.04e-3 of them.
    ("test_attention_4d_causal_fp16_expanded", Tolerance { relative: 2e-3, absolute: 1e-7 }),
];

const BF16_SUMS: Tolerance = Tolerance { relative: 1.0 / 64.0, absolute: 1e-7 };

/// The rules that these tests check.
pub(crate) const RULES: &[&str] = &["B20", "B21"];

/// Path on which a test is run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Path {
    /// Node by node on the plugin's own kernels.
    #[default]
    Kernels,
    /// As a session runs a model.
    Session,
}

/// The data of some tests, by name.
pub(crate) struct Loaded(BTreeMap<String, NodeTest>);

impl Loaded {
    /// Unpacks these tests; the names may have the prefix.
    pub(crate) fn of<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let names: BTreeSet<&str> = names.map(|name| name.strip_prefix(PREFIX).unwrap_or(name)).collect();
        Self(corpus::load(&names))
    }

    /// Judges a test.
    pub(crate) fn judge(&self, id: &str, device: &Arc<Device>, path: Path) -> Verdict {
        let name = id.strip_prefix(PREFIX).unwrap_or(id);
        let (Some(test), Some(about)) = (self.0.get(name), index().get(name)) else {
            let reason = format!("the suite has no test {name}");
            return Verdict::Failed { failure: Failure::Suite, reason };
        };
        let wider = WIDER.iter().find(|(wider, _)| *wider == name).map(|(_, tolerance)| *tolerance);
        let tolerance = wider.unwrap_or(Tolerance { relative: about.rtol, absolute: about.atol });
        let program = match from_bytes(test.model.clone(), None) {
            Ok(program) => program,
            Err(error) if path == Path::Kernels => {
                return host_only(format!("cannot import the model: {}", one_line(&error)));
            }
            // A model with strings, sequences, optionals or maps is no program, but a session runs it.
            Err(_) => {
                let verdicts = test
                    .sets
                    .values()
                    .map(|set| values::in_session(name, &test.model, set, device, tolerance));
                return verdicts
                    .into_iter()
                    .find(|verdict| *verdict != Verdict::Passed)
                    .unwrap_or(Verdict::Passed);
            }
        };
        let verdicts = test.sets.values().map(|set| match path {
            Path::Kernels => on_kernels(&program, set, device, tolerance),
            Path::Session => in_session(&program, set, device, tolerance),
        });
        verdicts.into_iter().find(|verdict| *verdict != Verdict::Passed).unwrap_or(Verdict::Passed)
    }
}

/// Returns the verdict on a test that no plugin is asked.
fn host_only(reason: String) -> Verdict {
    Verdict::Skipped { why: Why::Host, reason }
}

fn one_line(error: &Error) -> String {
    error.to_string().replace('\n', " ")
}

/// Reads inputs and expected outputs as tensors. Tests with other values than tensors do not concern plugins.
fn tensors(program: &Program, set: &DataSet) -> Result<(Vec<Tensor>, Vec<Tensor>), Verdict> {
    let read = |bytes: &Vec<u8>| {
        read_tensor(bytes.clone()).map_err(|error| host_only(format!("no tensor: {}", one_line(&error))))
    };
    let inputs: Vec<Tensor> = set.inputs.values().map(read).collect::<Result<_, _>>()?;
    let outputs: Vec<Tensor> = set.outputs.values().map(read).collect::<Result<_, _>>()?;
    if inputs.len() != program.main.inputs.len() || outputs.len() != program.main.outputs.len() {
        let reason = format!(
            "the test has {} inputs and {} outputs, expected {} and {}",
            inputs.len(),
            outputs.len(),
            program.main.inputs.len(),
            program.main.outputs.len()
        );
        return Err(Verdict::Failed { failure: Failure::Suite, reason });
    }
    Ok((inputs, outputs))
}

fn judged(found: &[Tensor], expected: &[Tensor], tolerance: Tolerance) -> Verdict {
    let pairs = found.iter().zip(expected).enumerate();
    let mut wrong = pairs.filter_map(|(i, (found, expected))| {
        difference(found, expected, tolerance).map(|text| format!("output {i}: {text}"))
    });
    match wrong.next() {
        Some(reason) => Verdict::Failed { failure: Failure::Wrong, reason },
        None => Verdict::Passed,
    }
}

/// Returns the verdict on the plugin for an error of a run.
fn from_error(error: &Error) -> Verdict {
    match error.kind() {
        ErrorKind::UnsupportedOp => Verdict::Unsupported { reason: one_line(error) },
        ErrorKind::UnsupportedModel | ErrorKind::InvalidModel => host_only(one_line(error)),
        _ => Verdict::Failed { failure: Failure::Wrong, reason: one_line(error) },
    }
}

fn in_session(program: &Program, set: &DataSet, device: &Arc<Device>, tolerance: Tolerance) -> Verdict {
    let (inputs, expected) = match tensors(program, set) {
        Ok(tensors) => tensors,
        Err(verdict) => return verdict,
    };
    let model = Model::from_program(program.clone());
    let run = || {
        let session = Session::new(&model, device)?;
        let names = session.inputs().iter().map(|port| port.name.to_string()).collect::<Vec<_>>();
        let given: Vec<(&str, &Tensor)> = names.iter().map(String::as_str).zip(&inputs).collect();
        session.run(&given)
    };
    match run() {
        Ok(found) => judged(&found, &expected, tolerance),
        Err(error) => from_error(&error),
    }
}

fn on_kernels(program: &Program, set: &DataSet, device: &Arc<Device>, tolerance: Tolerance) -> Verdict {
    if let Some(verdict) = unclaimed(program, device) {
        return verdict;
    }
    let (inputs, expected) = match tensors(program, set) {
        Ok(tensors) => tensors,
        Err(verdict) => return verdict,
    };
    let mut values: HashMap<ValueId, Tensor> = program.main.inputs.iter().copied().zip(inputs).collect();
    let constants = program.values.iter().enumerate();
    values.extend(constants.filter_map(|(i, value)| Some((ValueId(i as u32), value.constant.clone()?))));
    let ends = program.main.outputs.iter().copied().zip(expected.iter().map(Tensor::tensor_type));
    let said = program.values.iter().enumerate();
    let said = said.filter_map(|(i, value)| Some((ValueId(i as u32), value.ty.clone()?)));
    let results: HashMap<ValueId, TensorType> = said.chain(ends).collect();
    for node in &program.main.nodes {
        let operands: Vec<Option<&Tensor>> =
            node.inputs.iter().map(|id| id.and_then(|id| values.get(&id))).collect();
        if let Some(verdict) = types_unclaimed(node, &operands, &results, device) {
            return verdict;
        }
        match run_node(device, node, &operands) {
            Ok(results) => values.extend(node.outputs.iter().copied().flatten().zip(results)),
            Err(error) => return from_error(&error.at_node(node.label())),
        }
    }
    let found: Option<Vec<Tensor>> = program.main.outputs.iter().map(|id| values.get(id).cloned()).collect();
    match found {
        Some(found) => judged(&found, &expected, tolerance),
        None => Verdict::Failed {
            failure: Failure::Suite,
            reason: "no node computes an output of the model".to_owned(),
        },
    }
}

/// Returns whether the host runs a node.
fn is_host_op(node: &Node) -> bool {
    let def = catalogue::find(&node.op.domain, &node.op.name);
    def.is_some_and(|def| def.kind != OpKind::Kernel)
}

/// Returns why the plugin is not asked, if an op is none of its own.
fn unclaimed(program: &Program, device: &Device) -> Option<Verdict> {
    let nodes = &program.main.nodes;
    if let Some(node) = nodes.iter().find(|node| !node.regions.is_empty()) {
        return Some(host_only(format!("the host runs {}, control flow", node.op)));
    }
    if nodes.iter().all(is_host_op) {
        let ops: BTreeSet<String> = nodes.iter().map(|node| node.op.to_string()).collect();
        let ops: Vec<String> = ops.into_iter().collect();
        let what = if ops.is_empty() { "constants".to_owned() } else { ops.join(", ") };
        return Some(host_only(format!("the host runs {what} without a kernel")));
    }
    let kernels = &device.plugin().about().kernels;
    let missing = nodes.iter().find(|node| {
        !is_host_op(node)
            && !kernels.find(&node.op.domain, &node.op.name).any(|kernel| implements(kernel, node))
    })?;
    let reason = format!("the plugin has no kernel for {}", missing.op);
    Some(Verdict::NotClaimed { why: Why::NotOffered, reason })
}

/// Returns why the plugin is not asked, if no kernel of the op takes operands of these types.
pub(crate) fn types_unclaimed(
    node: &Node,
    operands: &[Option<&Tensor>],
    results: &HashMap<ValueId, TensorType>,
    device: &Device,
) -> Option<Verdict> {
    if is_host_op(node) {
        return None;
    }
    let inputs: Vec<Option<TensorType>> =
        operands.iter().map(|operand| operand.map(Tensor::tensor_type)).collect();
    let inputs: Vec<Option<&TensorType>> = inputs.iter().map(Option::as_ref).collect();
    // A result within the graph has a type only where the model says it; then `prepare` has the last word.
    let known: Option<Vec<Option<&TensorType>>> =
        node.outputs.iter().map(|id| id.map_or(Some(None), |id| results.get(&id).map(Some))).collect();
    let outputs = known?;
    let kernels = device.plugin().about().kernels.find(&node.op.domain, &node.op.name);
    let mut refusals = Vec::new();
    for kernel in kernels.filter(|kernel| implements(kernel, node)) {
        refusals.push(kernel.takes(&inputs, &outputs).err()?);
    }
    let reason = format!("no kernel for {} accepts these operands: {}", node.op, refusals.join("; "));
    Some(Verdict::NotClaimed { why: Why::NotOffered, reason })
}
