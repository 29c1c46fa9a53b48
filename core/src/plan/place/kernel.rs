//! The choice of a kernel for a node.

use crate::device::{Device, PrepareRequest, PreparedKernel};
use crate::error::{Error, ErrorKind, Result};
pub use crate::kernel::implements;
use crate::kernel::{KernelDef, Numerics};
use crate::program::{Node, Program, catalogue};
use crate::tensor::{Tensor, TensorType, bytes_of, n_elements};
use devbay_plugin_api::abi::KernelCost;
use std::sync::{Arc, Weak};

/// The kernel that was chosen, prepared.
pub struct Chosen {
    /// Ready to launch.
    pub kernel: Arc<PreparedKernel>,
    /// For each output, the input that it may share its memory with.
    pub in_place: Vec<Option<usize>>,
    /// Op and version of the kernel, for reports.
    pub name: String,
    /// Cost of a launch, if it was asked and the kernel says.
    pub cost: Option<KernelCost>,
    /// Position in the plugin's list of kernels.
    kernel_idx: u32,
}

/// A kernel that was chosen, which others keep.
pub(in crate::plan) struct WeakChosen {
    kernel: Weak<PreparedKernel>,
    in_place: Vec<Option<usize>>,
    name: String,
    cost: Option<KernelCost>,
    kernel_idx: u32,
}

impl Chosen {
    /// It, without keeping it.
    pub(in crate::plan) fn downgrade(&self) -> WeakChosen {
        let Self { kernel, in_place, name, cost, kernel_idx } = self;
        WeakChosen {
            kernel: Arc::downgrade(kernel),
            in_place: in_place.clone(),
            name: name.clone(),
            cost: *cost,
            kernel_idx: *kernel_idx,
        }
    }
}

impl WeakChosen {
    /// It, if anybody still has it.
    pub fn upgrade(&self) -> Option<Chosen> {
        let Self { kernel, in_place, name, cost, kernel_idx } = self;
        Some(Chosen {
            kernel: kernel.upgrade()?,
            in_place: in_place.clone(),
            name: name.clone(),
            cost: *cost,
            kernel_idx: *kernel_idx,
        })
    }

    /// Returns whether anybody still has it.
    pub fn is_there(&self) -> bool {
        self.kernel.strong_count() > 0
    }
}

/// The known types and values of a node's operands.
pub struct NodeTypes {
    /// Inputs: type, and content if it is constant.
    pub inputs: Vec<Option<(TensorType, Option<Tensor>)>>,
    /// Outputs.
    pub outputs: Vec<Option<TensorType>>,
}

impl NodeTypes {
    /// As the program has them; None if an operand's type is unknown.
    pub fn of(program: &Program, node: &Node) -> Option<Self> {
        let operand = |id: &Option<crate::program::ValueId>| match id {
            None => Some(None),
            Some(id) => {
                let value = program.value(*id);
                Some(Some((value.ty.clone()?, value.constant.clone())))
            }
        };
        let inputs = node.inputs.iter().map(operand).collect::<Option<_>>()?;
        let outputs = node.outputs.iter().map(operand).collect::<Option<Vec<_>>>()?;
        Some(Self { inputs, outputs: outputs.into_iter().map(|o| o.map(|(ty, _)| ty)).collect() })
    }
}

/// Chooses and prepares the kernel for a node whose types are known, and asks for its cost.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] with the reason of each kernel.
pub fn choose(program: &Program, node: &Node, device: &Arc<Device>, numerics: Numerics) -> Result<Chosen> {
    let types = NodeTypes::of(program, node)
        .ok_or_else(|| Error::new(ErrorKind::Internal, "a node of unknown types in a section"))?;
    let mut chosen = choose_for(node, &types, device, numerics)?;
    chosen.cost = device.cost(&request(chosen.kernel_idx, node, &types, numerics));
    Ok(chosen)
}

/// As [`choose`], with types from elsewhere.
///
/// # Errors
/// As [`choose`]. An error of another kind ends the search: the device failed, or ran out of memory.
pub fn choose_for(
    node: &Node,
    types: &NodeTypes,
    device: &Arc<Device>,
    numerics: Numerics,
) -> Result<Chosen> {
    let inputs: Vec<_> = types.inputs.iter().map(|input| input.as_ref().map(|(ty, _)| ty)).collect();
    let outputs: Vec<_> = types.outputs.iter().map(Option::as_ref).collect();
    // Programs that are made by hand were not verified. No kernel is asked about a node without the operands that its
    // op requires, or asked to read an attribute as another type.
    catalogue::check_signature(node)?;
    // A kernel that could never be launched is not prepared: it may make tables as long as an operand's axis.
    for ty in inputs.iter().chain(&outputs).copied().flatten() {
        check_size(ty, device)?;
    }
    let mut refusals = Vec::new();
    for kernel in device.kernels().find(&node.op.domain, &node.op.name) {
        match try_kernel(kernel, node, types, (&inputs, &outputs), device, numerics)? {
            Ok(chosen) => return Ok(chosen),
            Err(refusal) => refusals.push(format!("kernel {}: {refusal}", name_of(kernel))),
        }
    }
    Err(refused(node, device, &refusals))
}

/// Returns the error for a node that no kernel of a device takes, with the reason of each kernel.
fn refused(node: &Node, device: &Device, refusals: &[String]) -> Error {
    let plugin = device.plugin().about();
    let text = if refusals.is_empty() {
        format!("plugin {} {} has no kernel for op {}", plugin.name, plugin.version, node.op)
    } else {
        format!(
            "no kernel of plugin {} {} takes {}: {}",
            plugin.name,
            plugin.version,
            node.op,
            refusals.join("; ")
        )
    };
    Error::new(ErrorKind::UnsupportedOp, text).on_device(device.name())
}

/// Joins the errors of a node's devices into one, at the place of the first, and says what can be done.
pub fn all_refused(node: &Node, refusals: Vec<Error>) -> Error {
    let mut refusals = refusals.into_iter();
    let first = refusals.next().unwrap_or_else(|| Error::new(ErrorKind::Internal, "a node without a device"));
    let mut text = first.text().to_owned();
    for other in refusals {
        text += &format!("; on {}: {}", other.place().device, other.text());
    }
    text += &format!("; {}", node.op.remedy());
    Error::new(first.kind(), text).on_device(&first.place().device)
}

/// Refuses an operand that is larger than the device's memory.
fn check_size(ty: &TensorType, device: &Device) -> Result<()> {
    let Some(shape) = ty.known_shape() else {
        return Ok(());
    };
    let size = n_elements(&shape).and_then(|n| bytes_of(ty.dtype, n));
    let limit = device.bytes_max().map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    if size.is_some_and(|size| size <= limit) {
        return Ok(());
    }
    let text = format!("an operand {ty} is larger than the device's memory of {limit} bytes");
    Err(Error::new(ErrorKind::OutOfMemory, text).on_device(device.name()))
}

/// Returns the first kernel of a device that may take a node, with its cost if it states one; None if none may. Nothing
/// is prepared: a kernel may still refuse then.
pub fn first(node: &Node, types: &NodeTypes, device: &Arc<Device>) -> Option<(String, Option<KernelCost>)> {
    ask(node, types, device, Known::Planned).ok()
}

/// The moment at which a kernel is asked for a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Known {
    /// When the node is planned: values that a kernel needs must be constants.
    Planned,
    /// When the node runs: all values are there.
    Running,
}

/// Returns what [`first`] returns, or the reason of each kernel.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] with the reason of each kernel; [`ErrorKind::OutOfMemory`] for an operand that is larger
/// than the device's memory.
pub fn ask(
    node: &Node,
    types: &NodeTypes,
    device: &Arc<Device>,
    known: Known,
) -> Result<(String, Option<KernelCost>)> {
    let inputs: Vec<_> = types.inputs.iter().map(|input| input.as_ref().map(|(ty, _)| ty)).collect();
    let outputs: Vec<_> = types.outputs.iter().map(Option::as_ref).collect();
    for ty in inputs.iter().chain(&outputs).copied().flatten() {
        check_size(ty, device)?;
    }
    let mut refusals = Vec::new();
    for kernel in device.kernels().find(&node.op.domain, &node.op.name) {
        match refusal(kernel, node, types, (&inputs, &outputs), device) {
            Some(Refusal::Operands(text)) => refusals.push(format!("kernel {}: {text}", name_of(kernel))),
            Some(Refusal::Value(text)) if known == Known::Planned => {
                refusals.push(format!("kernel {}: {text}", name_of(kernel)));
            }
            _ => {
                // A kernel counts by extents; an open one has no form in the ABI.
                let is_open = |ty: &&TensorType| ty.known_shape().is_none();
                let cost = match inputs.iter().chain(&outputs).flatten().any(is_open) {
                    true => None,
                    false => device.cost(&request(kernel.idx, node, types, Numerics::Strict)),
                };
                return Ok((name_of(kernel), cost));
            }
        }
    }
    Err(refused(node, device, &refusals))
}

/// Returns the first kernel of a device that implements a node's op, for a node whose types are not known.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] with the reason of each kernel.
pub fn listed(node: &Node, device: &Device) -> Result<String> {
    let mut refusals = Vec::new();
    for kernel in device.kernels().find(&node.op.domain, &node.op.name) {
        if implements(kernel, node) {
            return Ok(name_of(kernel));
        }
        refusals.push(format!("kernel {}: it implements version {}", name_of(kernel), kernel.since_version));
    }
    Err(refused(node, device, &refusals))
}

/// Returns the types of a node's results as a kernel of the device tells them, for ops that ONNX does not define; None
/// if no kernel takes these operands or can say.
///
/// # Errors
/// Errors that the plugin reports for these operands.
pub fn output_types(node: &Node, types: &NodeTypes, device: &Arc<Device>) -> Result<Option<Vec<TensorType>>> {
    let inputs: Vec<_> = types.inputs.iter().map(|input| input.as_ref().map(|(ty, _)| ty)).collect();
    for kernel in device.kernels().find(&node.op.domain, &node.op.name) {
        if !implements(kernel, node) || kernel.takes_inputs(&inputs).is_err() {
            continue;
        }
        let request = request(kernel.idx, node, types, Numerics::Strict);
        let outputs = (0..node.outputs.len()).map(|i| device.output_type(&request, i));
        match outputs.collect::<Result<Vec<_>>>() {
            Ok(outputs) => return Ok(Some(outputs)),
            Err(error) if error.kind() == ErrorKind::UnsupportedOp => {}
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn request<'a>(
    kernel_idx: u32,
    node: &'a Node,
    types: &'a NodeTypes,
    numerics: Numerics,
) -> PrepareRequest<'a> {
    PrepareRequest {
        kernel_idx,
        op: &node.op,
        attrs: &node.attrs,
        inputs: &types.inputs,
        outputs: &types.outputs,
        numerics,
        label: &node.name,
    }
}

/// Op and version of a kernel.
fn name_of(kernel: &KernelDef) -> String {
    format!("{}@{}", kernel.op, kernel.since_version)
}

/// The reason why a kernel is not asked for a node.
enum Refusal {
    /// The op's version, the operands' types, or their number.
    Operands(String),
    /// A value that must be known when the node is planned, and is not.
    Value(String),
}

impl Refusal {
    fn into_text(self) -> String {
        match self {
            Self::Operands(text) | Self::Value(text) => text,
        }
    }
}

/// Why a kernel is not asked for a node; None if it may take it.
fn refusal(
    kernel: &KernelDef,
    node: &Node,
    types: &NodeTypes,
    (inputs, outputs): (&[Option<&TensorType>], &[Option<&TensorType>]),
    device: &Device,
) -> Option<Refusal> {
    if !implements(kernel, node) {
        return Some(Refusal::Operands(format!("it implements version {}", kernel.since_version)));
    }
    if let Err(refusal) = kernel.takes(inputs, outputs) {
        return Some(Refusal::Operands(refusal));
    }
    let refs_max = device.about().refs_max as usize;
    let n_operands = inputs.len() + outputs.len();
    if refs_max > 0 && n_operands > refs_max {
        return Some(Refusal::Operands(format!("{n_operands} operands, the device takes {refs_max}")));
    }
    let mut operands = types.inputs.iter().enumerate();
    let unknown = operands.find(|(i, input)| kernel.needs_value(*i) && matches!(input, Some((_, None))));
    let (i, _) = unknown?;
    Some(Refusal::Value(format!("input {i} must be known when the node is planned")))
}

/// Asks one kernel: prepared, or why not.
fn try_kernel(
    kernel: &KernelDef,
    node: &Node,
    types: &NodeTypes,
    operands: (&[Option<&TensorType>], &[Option<&TensorType>]),
    device: &Arc<Device>,
    numerics: Numerics,
) -> Result<std::result::Result<Chosen, String>> {
    if let Some(refusal) = refusal(kernel, node, types, operands, device) {
        return Ok(Err(refusal.into_text()));
    }
    match device.prepare(&request(kernel.idx, node, types, numerics)) {
        Ok(prepared) => Ok(Ok(Chosen {
            kernel: Arc::new(prepared),
            in_place: kernel.in_place.clone(),
            name: name_of(kernel),
            cost: None,
            kernel_idx: kernel.idx,
        })),
        Err(error) if error.kind() == ErrorKind::UnsupportedOp => Ok(Err(error.text().to_owned())),
        Err(error) => Err(error),
    }
}
