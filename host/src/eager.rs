//! One op, one call, on a chosen device: the op-by-op path as an interface of its own.
//!
//! ```
//! use devbay_host::internals::eager;
//! use devbay_host::{Runtime, Tensor};
//!
//! # fn main() -> devbay_host::Result<()> {
//! let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
//! let x = Tensor::from_elements(&[3], &[1.0f32, -2.0, 3.0])?;
//! let y = eager::run(&runtime.devices()[0], "Relu", &[], &[&x], 1)?;
//! assert_eq!(y[0].elements::<f32>(), Some(&[1.0, 0.0, 3.0][..]));
//! # Ok(()) }
//! ```

use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::eager;
use devbay_core::exec::value::RunTensor;
use devbay_core::plan::{Env, PlanOptions};
use devbay_core::program::{AttrValue, Node, Op, ValueId, catalogue};
use devbay_core::tensor::Tensor;
use std::sync::Arc;

/// Runs an op of ONNX's domain, in the version that programs hold, on host tensors.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for an unknown op, or one that the device has no kernel for;
/// [`ErrorKind::InvalidArgument`] for an attribute that the op does not have; errors of shape inference and of the device.
pub fn run(
    device: &Arc<Device>,
    op: &str,
    attrs: &[(&str, AttrValue)],
    inputs: &[&Tensor],
    n_outputs: usize,
) -> Result<Vec<Tensor>> {
    let def = catalogue::find("", op).ok_or_else(|| {
        Error::new(ErrorKind::UnsupportedOp, format!("there is no op {op} in the catalogue"))
    })?;
    if let Some((name, _)) =
        attrs.iter().find(|(name, _)| def.attributes.iter().all(|known| known.name != *name))
    {
        let known: Vec<&str> = def.attributes.iter().map(|known| known.name).collect();
        let text = format!("op {op} has no attribute `{name}`; it has [{}]", known.join(", "));
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    // The numbers only distinguish operands; there is no program.
    let ids = |from: usize, n: usize| (from..from + n).map(|i| Some(ValueId(i as u32))).collect();
    let mut node = Node::new(Op::onnx(op, def.version), ids(0, inputs.len()), ids(inputs.len(), n_outputs));
    node.attrs = attrs.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();
    let operands: Vec<Option<RunTensor>> =
        inputs.iter().map(|&input| RunTensor::host(input.clone())).collect();
    // All inputs are known, so a kernel that needs a value beforehand gets it.
    let known = inputs.iter().map(|&input| Some(input.clone())).collect();
    run_on(device, &node, operands, known)
}

/// Runs a node of a program on host tensors, in the order of its operands; returns the used results. It folds, expands and
/// moves nothing: the host answers views and shape queries, and the device's own kernels do the rest. A kernel receives the
/// values that its op needs beforehand.
///
/// # Errors
/// As [`run`]; [`ErrorKind::UnsupportedOp`] also for control flow.
pub fn run_node(device: &Arc<Device>, node: &Node, inputs: &[Option<&Tensor>]) -> Result<Vec<Tensor>> {
    if !node.regions.is_empty() {
        let text = format!("{} has regions, which one call does not run", node.label());
        return Err(Error::new(ErrorKind::UnsupportedOp, text));
    }
    let operands =
        inputs.iter().map(|input| input.and_then(|input| RunTensor::host(input.clone()))).collect();
    run_on(device, node, operands, vec![None; inputs.len()])
}

fn run_on(
    device: &Arc<Device>,
    node: &Node,
    operands: Vec<Option<RunTensor>>,
    known: Vec<Option<Tensor>>,
) -> Result<Vec<Tensor>> {
    catalogue::check_signature(node).map_err(|error| error.at_node(node.label()))?;
    let env = Env::new(device, PlanOptions { plans_max: 1, ..PlanOptions::default() });
    eager::run(node, operands, known, &env, None)?.iter().map(RunTensor::to_tensor).collect()
}
