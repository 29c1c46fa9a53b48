//! One op at a time: for shapes that depend on data, for folding constants, and for applications.
//!
//! The operands are there, so their types are known; inputs that decide shapes or that a kernel must know are
//! read back, the results' types follow, and the same kernels run as in planned sections. Kernels are kept by
//! types and known values, so that a loop prepares once.

use super::unit::Values;
use super::value::{RunTensor, constant};
use crate::calls::{self, Call};
use crate::cancel::{self, Launching, Under};
use crate::device::{Device, REST_LIMIT, must_leak};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::kernel::{Numerics, implements};
use crate::plan::launches::takes;
use crate::plan::memory::constants::Placed;
use crate::plan::place::kernel::{self, Chosen, NodeTypes, choose_for};
use crate::plan::section::Shaped;
use crate::plan::{EagerStage, Env};
use crate::program::Node;
use crate::program::catalogue::{self, OpKind};
use crate::program::fold::Evaluator;
use crate::program::infer;
use crate::tensor::{I64, Tensor, TensorType};
use crate::trace::{self, StepInfo};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_TRANSIENT};
use devbay_plugin_api::locks::lock;
use std::ptr::null;
use std::sync::{Arc, Mutex};

/// Inputs of at most so many bytes are read back to find a result's shape.
const SHAPE_BYTES_MAX: usize = 4096;

/// Kernels that a node keeps.
const KEPT_MAX: usize = 8;

/// Kernels of one node, prepared for operands that came before; the latest last.
#[derive(Default)]
pub struct EagerCache {
    kept: Mutex<Vec<Arc<Kept>>>,
}

struct Kept {
    /// The device that it is prepared for, by its position.
    site: usize,
    inputs: Vec<Option<Shaped>>,
    values: Vec<Option<Tensor>>,
    outputs: Vec<Option<Shaped>>,
    chosen: Option<Chosen>,
    /// True if the results have no elements, so that the kernel has nothing to do. One that finds the extents has to say them in
    /// any case.
    is_empty: bool,
    /// Constant inputs that come packed, by position.
    packed: Vec<(usize, Arc<Placed>)>,
    data_shape: bool,
}

impl EagerCache {
    fn find(&self, inputs: &[Option<Shaped>], values: &[Option<Tensor>]) -> Option<Arc<Kept>> {
        let kept = lock(&self.kept);
        let same = |a: &Option<Tensor>, b: &Option<Tensor>| match (a, b) {
            (Some(a), Some(b)) => a.identity() == b.identity() || a.bytes() == b.bytes(),
            (None, _) => true,
            _ => false,
        };
        let found = kept
            .iter()
            .rev()
            .find(|kept| kept.inputs == inputs && kept.values.iter().zip(values).all(|(a, b)| same(a, b)));
        found.map(Arc::clone)
    }

    fn keep(&self, entry: &Arc<Kept>) {
        let mut kept = lock(&self.kept);
        if kept.len() >= KEPT_MAX {
            kept.remove(0);
        }
        kept.push(Arc::clone(entry));
    }
}

/// Runs a node of a staged plan.
pub(crate) fn run_stage(
    stage: &EagerStage,
    cache: &EagerCache,
    values: &mut Values<'_>,
) -> Result<Vec<RunTensor>> {
    let mut inputs = Vec::with_capacity(stage.node.inputs.len());
    let mut constants = Vec::with_capacity(stage.node.inputs.len());
    for id in &stage.node.inputs {
        inputs.push(id.map(|id| values.get(id)).transpose()?);
        constants.push(id.and_then(|id| values.constant(id).cloned()));
    }
    run(&stage.node, inputs, constants, values.env, Some(cache))
}

/// Runs a node on operands; `constants` are the contents of those that are constants of the program.
///
/// # Errors
/// Errors of inference, the kernels and the device.
pub fn run(
    node: &Node,
    mut inputs: Vec<Option<RunTensor>>,
    constants: Vec<Option<Tensor>>,
    env: &Env,
    cache: Option<&EagerCache>,
) -> Result<Vec<RunTensor>> {
    let def = catalogue::find(&node.op.domain, &node.op.name);
    let types: Vec<Option<TensorType>> = inputs
        .iter()
        .map(|input| input.as_ref().map(|input| TensorType::new(input.ty.dtype, &input.ty.shape)))
        .collect();
    if def.is_some_and(|def| def.kind == OpKind::Query) {
        let ty = types.first().cloned().flatten();
        let result = ty
            .and_then(|ty| infer::query(node, &ty).transpose())
            .transpose()?
            .ok_or_else(|| Error::new(ErrorKind::InvalidModel, "the shape of an operand of unknown type"))?;
        return Ok(vec![constant(&result, &env.constants)?]);
    }

    // Values that kernels must know are read back in any case; values that shapes need, if they turn out to need them.
    let mut values = constants;
    // A view has no kernel that would look at its shape or axes.
    let wanted = match def.is_some_and(|def| def.kind == OpKind::View) {
        true => !1,
        false => env
            .listed_sites(node)
            .map(|site| kernel_values(node, env.site(site).0))
            .fold(0, |all, own| all | own),
    };
    for (i, input) in inputs.iter().enumerate() {
        if values[i].is_none() && wanted & 1 << i.min(63) != 0 {
            values[i] = input.as_ref().map(RunTensor::to_tensor).transpose()?;
        }
    }
    let shapes: Vec<Option<Shaped>> =
        inputs.iter().map(|input| input.as_ref().map(|i| i.ty.clone())).collect();
    let entry = match cache.and_then(|cache| cache.find(&shapes, &values)) {
        Some(entry) => entry,
        None => {
            let entry = Arc::new(prepare_somewhere(node, &inputs, &types, &values, &shapes, env)?);
            if let Some(cache) = cache.filter(|_| entry.chosen.is_some()) {
                cache.keep(&entry);
            }
            entry
        }
    };
    let (device, _) = env.site(entry.site);
    let Some(chosen) = entry.chosen.as_ref().filter(|_| !entry.is_empty) else {
        return without_launch(&inputs, &entry, device);
    };
    launch(node, &mut inputs, &entry, chosen, device)
}

/// Returns the inputs that every kernel of this op must know beforehand, a bit each.
fn kernel_values(node: &Node, device: &Device) -> u64 {
    let kernels = device.kernels().find(&node.op.domain, &node.op.name);
    kernels
        .filter(|kernel| implements(kernel, node))
        .map(|kernel| kernel.host_value_inputs)
        .reduce(|a, b| a & b)
        .unwrap_or(0)
}

/// Prepares a node on the first of the devices that list a kernel for it, and do not refuse it.
///
/// # Errors
/// The refusals of all of them.
fn prepare_somewhere(
    node: &Node,
    inputs: &[Option<RunTensor>],
    types: &[Option<TensorType>],
    values: &[Option<Tensor>],
    shapes: &[Option<Shaped>],
    env: &Env,
) -> Result<Kept> {
    let mut refusals = Vec::new();
    for site in env.listed_sites(node) {
        match prepare(node, inputs, types, values.to_vec(), shapes.to_vec(), env, site) {
            Err(error) if error.kind() == ErrorKind::UnsupportedOp => refusals.push(error),
            result => return result,
        }
    }
    Err(kernel::all_refused(node, refusals))
}

fn prepare(
    node: &Node,
    inputs: &[Option<RunTensor>],
    types: &[Option<TensorType>],
    mut values: Vec<Option<Tensor>>,
    shapes: Vec<Option<Shaped>>,
    env: &Env,
    site: usize,
) -> Result<Kept> {
    let (device, pool) = env.site(site);
    let def = catalogue::find(&node.op.domain, &node.op.name);
    let infer = |values: &[Option<Tensor>]| match def {
        Some(def) => infer::infer_row(def, node, types, values),
        None => {
            kernel::output_types(node, &node_types(types, values, Vec::new()), device)?.ok_or_else(|| {
                Error::new(
                    ErrorKind::UnsupportedOp,
                    format!("the results of op {} are of unknown type", node.op),
                )
            })
        }
    };
    let known = |types: &[TensorType]| types.iter().all(|ty| ty.known_shape().is_some());
    let mut results = infer(&values)?;
    if !known(&results) {
        for (i, input) in inputs.iter().enumerate() {
            if let Some(input) = input
                && values[i].is_none()
                && input.ty.size <= SHAPE_BYTES_MAX
            {
                values[i] = Some(input.to_tensor()?);
            }
        }
        results = infer(&values)?;
    }
    let mut data_shape = false;
    if !known(&results) {
        results = upper_bounds(node, types).ok_or_else(|| {
            Error::new(
                ErrorKind::UnsupportedOp,
                format!(
                    "the extents of the results of {} depend on data in a way that is not known",
                    node.op
                ),
            )
        })?;
        data_shape = true;
    }
    let too_large = || Error::new(ErrorKind::OutOfMemory, "a result is larger than memory");
    let outputs: Vec<Option<Shaped>> = node
        .outputs
        .iter()
        .zip(results.iter().map(Some).chain(std::iter::repeat(None)))
        .map(|(id, ty)| match (id, ty) {
            (Some(_), Some(ty)) => {
                let shape = ty.known_shape().unwrap_or_default();
                Shaped::new(ty.dtype, &shape).map(Some).ok_or_else(too_large)
            }
            _ => Ok(None),
        })
        .collect::<Result<_>>()?;
    let is_view = def.is_some_and(|def| def.kind == OpKind::View);
    let chosen = if is_view {
        None
    } else {
        let types_of_outputs = outputs
            .iter()
            .map(|output| output.as_ref().map(|ty| TensorType::new(ty.dtype, &ty.shape)))
            .collect();
        // Ops that run by themselves are few, and constants are folded for every plan.
        let types = node_types(types, &values, types_of_outputs);
        // Checked as where a node is planned: a driver would call the size a mistake.
        let mut sizes = shapes.iter().chain(&outputs).flatten().map(|ty| ty.size);
        if let Some(size) = sizes.find(|&size| !takes(device, size)) {
            let text = format!("an operand of {size} bytes is larger than the device takes");
            let error = Error::new(ErrorKind::OutOfMemory, text).at_node(node.label());
            return Err(error.in_plugin(device.plugin().name()).on_device(device.name()));
        }
        // As where a node is planned, also for results without elements: a kernel may refuse their types.
        Some(choose_for(node, &types, device, Numerics::Strict)?)
    };
    let is_empty = !data_shape && outputs.iter().flatten().all(|ty| ty.size == 0);
    let mut packed = Vec::new();
    if let Some(chosen) = &chosen {
        for pack in chosen.kernel.packs() {
            if let Some(Some(tensor)) = values.get(pack.input_idx) {
                packed.push((pack.input_idx, pool.place_packed(tensor, &chosen.kernel, pack)?));
            }
        }
    }
    Ok(Kept { site, inputs: shapes, values, outputs, chosen, is_empty, packed, data_shape })
}

fn node_types(
    types: &[Option<TensorType>],
    values: &[Option<Tensor>],
    outputs: Vec<Option<TensorType>>,
) -> NodeTypes {
    let operands = types.iter().zip(values);
    let inputs = operands.map(|(ty, value)| ty.clone().map(|ty| (ty, value.clone()))).collect();
    NodeTypes { inputs, outputs }
}

/// Upper bounds for the results of ops whose extents depend on data (B21), as many as the op has.
fn upper_bounds(node: &Node, types: &[Option<TensorType>]) -> Option<Vec<TensorType>> {
    let first = types.first()?.as_ref()?;
    let shape = first.known_shape()?;
    let n = crate::tensor::n_elements(&shape)?;
    let second = || types.get(1)?.as_ref()?.known_shape();
    // The extent of the axis that an attribute names, or of all elements, and the shape around it.
    let axis = || match node.attr("axis") {
        None => Some((0, vec![n])),
        Some(_) => {
            let axis = node.int("axis", 0);
            let axis = if axis < 0 { axis.checked_add(shape.len() as i64)? } else { axis };
            let axis = usize::try_from(axis).ok().filter(|&axis| axis < shape.len())?;
            Some((axis, shape.clone()))
        }
    };
    match (&*node.op.domain, &*node.op.name) {
        // One column for each element that is not zero.
        ("", "NonZero") => Some(vec![TensorType::new(I64, &[shape.len(), n])]),
        // A slice for each condition.
        ("", "Compress") => {
            let (axis, mut bound) = axis()?;
            bound[axis] = *second()?.first()?;
            Some(vec![TensorType::new(first.dtype, &bound)])
        }
        // A row for each box of each class.
        ("", "NonMaxSuppression") => {
            let scores = second()?;
            let boxes = crate::tensor::n_elements(&scores)?;
            Some(vec![TensorType::new(I64, &[boxes, 3])])
        }
        // Each slice is another one.
        ("", "Unique") => {
            let (axis, bound) = axis()?;
            let positions = TensorType::new(I64, &[bound[axis]]);
            let mut all = vec![TensorType::new(first.dtype, &bound)];
            all.resize(4, positions);
            Some(all)
        }
        _ => None,
    }
}

/// Returns the results that need no launch: those without elements, and the operand with the shape of a view.
fn without_launch(
    inputs: &[Option<RunTensor>],
    entry: &Kept,
    device: &Arc<Device>,
) -> Result<Vec<RunTensor>> {
    let result = |ty: &Shaped| match inputs.first() {
        _ if ty.size == 0 => RunTensor::allocate(ty.clone(), device),
        Some(Some(input)) if input.ty.size == ty.size => Ok(input.with_type(ty.clone())),
        Some(Some(input)) => Err(Error::new(
            ErrorKind::InvalidModel,
            format!("{:?} cannot be reshaped to {:?}", input.ty.shape, ty.shape),
        )),
        _ => Err(Error::new(ErrorKind::InvalidModel, "a view of an operand that is absent")),
    };
    entry.outputs.iter().flatten().map(result).collect()
}

fn launch(
    node: &Node,
    inputs: &mut [Option<RunTensor>],
    entry: &Kept,
    chosen: &Chosen,
    device: &Arc<Device>,
) -> Result<Vec<RunTensor>> {
    let mut refs = Vec::with_capacity(inputs.len() + entry.outputs.len() + 2);
    for (i, input) in inputs.iter_mut().enumerate() {
        let packed = entry.packed.iter().find(|(at, _)| *at == i);
        refs.push(match (input, packed) {
            (Some(_), Some((_, placed))) => placed.reference(),
            (Some(input), None) => input.reference(device)?,
            (None, _) => BufferRef::ABSENT,
        });
    }
    let mut results = Vec::new();
    for output in &entry.outputs {
        refs.push(match output {
            Some(ty) => {
                let mut result = RunTensor::allocate(ty.clone(), device)?;
                let reference = result.reference(device)?;
                results.push(result);
                reference
            }
            None => BufferRef::ABSENT,
        });
    }
    let mut extents = None;
    if entry.data_shape {
        let rank: usize = entry.outputs.iter().flatten().map(|ty| ty.shape.len()).sum();
        let ty = Shaped::new(I64, &[rank]);
        let ty = ty.ok_or_else(|| Error::new(ErrorKind::Internal, "extents without a size"))?;
        let mut tensor = RunTensor::allocate(ty, device)?;
        refs.push(tensor.reference(device)?);
        extents = Some(tensor);
    }
    let (bytes, _) = chosen.kernel.workspace();
    let workspace = (bytes > 0).then(|| device.alloc(bytes, DEVBAY_USAGE_TRANSIENT)).transpose()?;
    if let Some(workspace) = &workspace {
        refs.push(workspace.reference(0, bytes));
    }
    let mut stream = device.create_stream("eager")?;
    device.check_usable()?;
    let status = {
        let _serial = device.plugin().serialise();
        let _traced = trace::begin_lone(device.name(), stream.handle().addr() as u64, || {
            StepInfo::of_lone(node, chosen, device)
        });
        let call = Call {
            plugin: device.plugin().name(),
            function: "launch",
            device: device.name(),
            node: &node.name,
        };
        let launching = || Launching {
            plugin: device.plugin().name().to_owned(),
            device: device.name().to_owned(),
            node: node.label(),
        };
        Under::here(|under| {
            let _told = under.tell(launching);
            // SAFETY: the references are of memory that lives until `finish` below has waited, of the sizes that
            // the kernel was prepared for, in the order of B21.
            calls::during(call, || unsafe {
                (chosen.kernel.launch_fn())(chosen.kernel.state(), stream.handle(), refs.as_ptr(), null())
            })
        })
    };
    let launched = stream.check(status, Phase::Launch);
    let finished = stream.finish(REST_LIMIT);
    if finished.as_ref().is_err_and(must_leak) {
        // The device may touch them at any later time, so they are leaked (B24).
        std::mem::forget((stream, workspace, extents, results));
        std::mem::forget(inputs.iter_mut().map(Option::take).collect::<Vec<_>>());
        std::mem::forget((entry.packed.clone(), Arc::clone(&chosen.kernel)));
        let error = launched.err().or(finished.err());
        return Err(error.unwrap_or_else(super::cancel::Cancel::unknown));
    }
    launched?;
    finished?;
    // A kernel whose loops ended early may not have reported it.
    cancel::look()?;
    match extents {
        Some(extents) => trimmed(results, &extents.to_tensor()?),
        None => Ok(results),
    }
}

/// Cuts results down to the extents that the kernel wrote: they are dense for those.
fn trimmed(results: Vec<RunTensor>, extents: &Tensor) -> Result<Vec<RunTensor>> {
    let broken =
        || Error::new(ErrorKind::PluginBroken, "a kernel wrote extents beyond those it was given (B21)");
    let extents = extents.to_ints()?.ok_or_else(broken)?;
    let mut extents = extents.iter();
    let mut trimmed = Vec::with_capacity(results.len());
    for result in results {
        let mut shape = Vec::with_capacity(result.ty.shape.len());
        for &bound in &*result.ty.shape {
            let extent = extents.next().and_then(|&extent| usize::try_from(extent).ok());
            shape.push(extent.filter(|&extent| extent <= bound).ok_or_else(broken)?);
        }
        let ty = Shaped::new(result.ty.dtype, &shape).ok_or_else(broken)?;
        trimmed.push(result.beginning(ty)?);
    }
    Ok(trimmed)
}

/// Folds constants on a device's kernels.
pub struct Evaluate<'a> {
    env: &'a Env,
}

impl<'a> Evaluate<'a> {
    /// Creates an evaluator on a device.
    pub fn new(env: &'a Env) -> Self {
        Self { env }
    }
}

impl Evaluator for Evaluate<'_> {
    fn evaluate(&mut self, node: &Node, inputs: &[Option<Tensor>]) -> Result<Option<Vec<Tensor>>> {
        if let Some(results) = self.env.folds.find(node, inputs) {
            return Ok(Some(results));
        }
        let operands = inputs
            .iter()
            .map(|input| input.as_ref().map(|tensor| constant(tensor, &self.env.constants)).transpose())
            .collect::<Result<_>>()?;
        match run(node, operands, inputs.to_vec(), self.env, None) {
            Ok(results) => {
                let results: Vec<Tensor> = results.iter().map(RunTensor::to_tensor).collect::<Result<_>>()?;
                self.env.folds.keep(node, inputs, &results);
                Ok(Some(results))
            }
            // A device without this kernel cannot fold it; placement will report the lack.
            Err(error) if error.kind() == ErrorKind::UnsupportedOp => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn output_types(
        &mut self,
        node: &Node,
        inputs: &[Option<(TensorType, Option<Tensor>)>],
    ) -> Result<Option<Vec<TensorType>>> {
        let types = NodeTypes { inputs: inputs.to_vec(), outputs: Vec::new() };
        kernel::output_types(node, &types, self.env.site(self.env.listed_site(node)).0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AttrValue, Op};
    use crate::tensor::{BOOL, F32};

    /// The bounds that an op's results have, as text; empty if there are none.
    fn bounds(op: &str, axis: Option<i64>, types: &[TensorType]) -> String {
        let mut node = Node::new(Op::onnx(op, 11), Vec::new(), Vec::new());
        if let Some(axis) = axis {
            node.set_attr("axis", AttrValue::Int(axis));
        }
        let types: Vec<_> = types.iter().cloned().map(Some).collect();
        let found = upper_bounds(&node, &types).unwrap_or_default();
        found.iter().map(TensorType::to_string).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn extents_that_data_decides_have_bounds() {
        let x = || TensorType::new(F32, &[2, 3]);
        let condition = || TensorType::new(BOOL, &[2]);
        assert_eq!(bounds("NonZero", None, &[x()]), "i64[2,6]");
        assert_eq!(bounds("Compress", None, &[x(), condition()]), "f32[2]");
        assert_eq!(bounds("Compress", Some(-1), &[x(), condition()]), "f32[2,2]");
        assert_eq!(bounds("Unique", None, &[x()]), "f32[6] i64[6] i64[6] i64[6]");
        assert_eq!(bounds("Unique", Some(1), &[x()]), "f32[2,3] i64[3] i64[3] i64[3]");
        let (boxes, scores) = (TensorType::new(F32, &[2, 7, 4]), TensorType::new(F32, &[2, 5, 7]));
        assert_eq!(bounds("NonMaxSuppression", None, &[boxes, scores]), "i64[70,3]");
        // No such axis, no second operand, an op whose extents data does not decide, extents that overflow.
        assert_eq!(bounds("Compress", Some(2), &[x(), condition()]), "");
        assert_eq!(bounds("Unique", Some(i64::MIN), &[x()]), "");
        assert_eq!(bounds("Compress", None, &[x()]), "");
        assert_eq!(bounds("Relu", None, &[x()]), "");
        assert_eq!(bounds("NonZero", None, &[TensorType::new(F32, &[usize::MAX, 2])]), "");
    }
}
