//! If, Loop and Scan: conditions are host values, regions are units.

use super::cancel::Cancel;
use super::unit::{Unit, Values};
use super::value::RunTensor;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::limits::Limits;
use crate::plan::section::Shaped;
use crate::plan::{ControlStage, Nested};
use crate::program::infer::whole_bytes;
use crate::program::scan::{ScanLayout, resolve_axis};
use crate::program::{Region, ValueId};
use crate::tensor::{AlignedBytes, Tensor, TensorType, n_elements};
use devbay_plugin_api::reserve;
use std::sync::Arc;

/// Runs a stage, its regions as these units.
pub(crate) fn run(
    stage: &ControlStage,
    units: &[Unit],
    values: &mut Values<'_>,
    cancel: Option<&Cancel>,
) -> Result<()> {
    match &*stage.node.op.name {
        "If" => conditional(stage, units, values, cancel),
        "Loop" => looped(stage, &units[0], values, cancel),
        _ => scan(stage, &units[0], values, cancel),
    }
}

fn host_value(values: &Values<'_>, id: ValueId) -> Result<Tensor> {
    values.get(id)?.to_tensor()
}

fn int_of(tensor: &Tensor, what: &str) -> Result<i64> {
    tensor.to_int().ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidModel,
            format!("{what} is {}, expected one integer or truth value", tensor.tensor_type()),
        )
    })
}

fn captured(nested: &Nested, values: &Values<'_>) -> Result<Vec<RunTensor>> {
    nested.captures.iter().map(|&id| values.get(id)).collect()
}

fn conditional(
    stage: &ControlStage,
    units: &[Unit],
    values: &mut Values<'_>,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let condition = stage
        .node
        .input(0)
        .ok_or_else(|| Error::new(ErrorKind::InvalidModel, "an If without a condition"))?;
    let taken = int_of(&host_value(values, condition)?, "the condition")? != 0;
    let name = if taken { "then_branch" } else { "else_branch" };
    let at = stage.node.regions.iter().position(|(known, _)| &**known == name);
    let (nested, unit) = at
        .and_then(|at| stage.regions.get(at).zip(units.get(at)))
        .ok_or_else(|| Error::new(ErrorKind::InvalidModel, format!("an If without its region {name}")))?;
    let results = unit.run(captured(nested, values)?, cancel)?;
    values.set_results(&stage.node.outputs, results);
    Ok(())
}

fn scalar<T: crate::tensor::Element>(value: T) -> Result<RunTensor> {
    let tensor = Tensor::from_elements(&[], &[value])?;
    RunTensor::host(tensor).ok_or_else(|| Error::new(ErrorKind::Internal, "a scalar without a size"))
}

fn truth(value: bool) -> Result<RunTensor> {
    let tensor = Tensor::from_bytes(crate::tensor::BOOL, &[], &[u8::from(value)])?;
    RunTensor::host(tensor).ok_or_else(|| Error::new(ErrorKind::Internal, "a scalar without a size"))
}

fn looped(stage: &ControlStage, unit: &Unit, values: &mut Values<'_>, cancel: Option<&Cancel>) -> Result<()> {
    let node = &stage.node;
    let nested = &stage.regions[0];
    let trips = match node.input(0) {
        Some(id) => int_of(&host_value(values, id)?, "the trip count")?,
        None => i64::MAX,
    };
    let mut go_on = match node.input(1) {
        Some(id) => int_of(&host_value(values, id)?, "the loop's condition")? != 0,
        None => true,
    };
    let mut carried = Vec::with_capacity(node.inputs.len().saturating_sub(2));
    for id in node.inputs.iter().skip(2) {
        let id =
            id.ok_or_else(|| Error::new(ErrorKind::InvalidModel, "a loop with an absent carried value"))?;
        carried.push(values.get(id)?);
    }
    let captures = captured(nested, values)?;
    let n_carried = carried.len();
    let n_collected = unit.program().main.outputs.len().saturating_sub(n_carried + 1);
    let mut collected: Vec<Collected> = (0..n_collected).map(|_| Collected::new(false)).collect();
    let mut iteration = 0;
    let limits = &values.env.options.limits;
    while go_on && iteration < trips {
        Cancel::check(cancel)?;
        if iteration as u64 >= limits.trips {
            return Err(Limits::too_many_trips(limits.trips));
        }
        let mut inputs = Vec::with_capacity(2 + n_carried + captures.len());
        inputs.push(scalar(iteration)?);
        inputs.push(truth(go_on)?);
        inputs.append(&mut carried);
        inputs.extend(captures.iter().cloned());
        let mut results = unit.run(inputs, cancel)?.into_iter();
        let condition = results
            .next()
            .ok_or_else(|| Error::new(ErrorKind::InvalidModel, "a loop whose body gives no condition"))?;
        go_on = int_of(&condition.to_tensor()?, "the loop's condition")? != 0;
        carried.extend(results.by_ref().take(n_carried));
        for (all, result) in collected.iter_mut().zip(results) {
            all.push(result, values)?;
        }
        iteration += 1;
    }
    let body = &node.regions[0].1;
    let mut results = carried;
    for (i, all) in collected.into_iter().enumerate() {
        let element = body.outputs.get(1 + n_carried + i).copied();
        results.push(all.stacked(element_type(values, element), values)?);
    }
    values.set_results(&node.outputs, results);
    Ok(())
}

/// The purpose of the memory that results of iterations take besides themselves.
const COLLECTED: &str = "the results of a loop's iterations";

fn element_type(values: &Values<'_>, id: Option<ValueId>) -> Option<TensorType> {
    values.plan.program.value(id?).ty.clone()
}

/// Parts that are kept apart before they become one: the handle of a small one is larger than itself.
const APART_MAX: usize = 4096;

/// The values that a loop's iterations give for one result.
struct Collected {
    /// True if the last one comes first.
    backwards: bool,
    n: usize,
    /// The type of all of them.
    of: Option<Shaped>,
    parts: Vec<RunTensor>,
    /// The earlier ones, so many together.
    joined: Vec<RunTensor>,
}

impl Collected {
    fn new(backwards: bool) -> Self {
        Self { backwards, n: 0, of: None, parts: Vec::new(), joined: Vec::new() }
    }

    /// Adds the result of the next iteration, which must be of the same type.
    fn push(&mut self, part: RunTensor, values: &Values<'_>) -> Result<()> {
        let of = self.of.get_or_insert_with(|| part.ty.clone());
        if part.ty.dtype != of.dtype || part.ty.shape != of.shape {
            let (first, other) = (of.dtype, part.ty.dtype);
            return Err(Error::new(
                ErrorKind::InvalidModel,
                format!(
                    "iterations give {} and {}, which cannot be collected",
                    TensorType::new(first, &of.shape),
                    TensorType::new(other, &part.ty.shape)
                ),
            ));
        }
        self.n += 1;
        values.env.options.limits.check_bytes((self.n as u64).saturating_mul(of.size as u64))?;
        // A value without elements is only counted.
        if of.size > 0 {
            reserve::push(&mut self.parts, part, COLLECTED)?;
        }
        if self.parts.len() == APART_MAX { self.join(values) } else { Ok(()) }
    }

    fn join(&mut self, values: &Values<'_>) -> Result<()> {
        let Some(of) = self.of.as_ref().filter(|_| !self.parts.is_empty()) else { return Ok(()) };
        let ty = extended(of.dtype, self.parts.len(), &of.shape)?;
        if self.backwards {
            self.parts.reverse();
        }
        let joined = RunTensor::stack(ty, &mut self.parts, &values.env.device)?;
        reserve::push(&mut self.joined, joined, COLLECTED)?;
        self.parts.clear();
        Ok(())
    }

    /// One tensor of them all; `element` is the type of each as far as it is known.
    fn stacked(mut self, element: Option<TensorType>, values: &Values<'_>) -> Result<RunTensor> {
        let (dtype, shape) = match (&self.of, element) {
            (Some(of), _) => (of.dtype, of.shape.to_vec()),
            // No iteration: unknown extents are 0.
            (None, Some(ty)) => {
                let dims = ty.shape.unwrap_or_default();
                (ty.dtype, dims.iter().map(|dim| dim.known().unwrap_or(0)).collect())
            }
            (None, None) => {
                return Err(Error::new(
                    ErrorKind::UnsupportedModel,
                    "a loop that ran no iteration has a collected result of unknown type",
                ));
            }
        };
        whole_bytes(dtype)?;
        let ty = extended(dtype, self.n, &shape)?;
        if self.joined.is_empty() {
            if self.backwards {
                self.parts.reverse();
            }
            return RunTensor::stack(ty, &mut self.parts, &values.env.device);
        }
        self.join(values)?;
        if self.backwards {
            self.joined.reverse();
        }
        RunTensor::stack(ty, &mut self.joined, &values.env.device)
    }
}

/// Returns the type of so many tensors of one type.
fn extended(dtype: crate::tensor::DType, n: usize, shape: &[usize]) -> Result<Shaped> {
    let extents: Vec<usize> = std::iter::once(n).chain(shape.iter().copied()).collect();
    shaped(dtype, &extents)
}

fn shaped(dtype: crate::tensor::DType, shape: &[usize]) -> Result<Shaped> {
    Shaped::new(dtype, shape)
        .ok_or_else(|| Error::new(ErrorKind::OutOfMemory, "a collected result is larger than memory"))
}

fn scan(stage: &ControlStage, unit: &Unit, values: &mut Values<'_>, cancel: Option<&Cancel>) -> Result<()> {
    let node = &stage.node;
    let nested = &stage.regions[0];
    let body: &Region = &node.regions[0].1;
    let layout = ScanLayout::of(node, body)?;
    let mut states = Vec::new();
    let mut sliced: Vec<Sliced> = Vec::new();
    for (i, id) in node.inputs.iter().enumerate() {
        let id = id.ok_or_else(|| Error::new(ErrorKind::InvalidModel, "a scan with an absent input"))?;
        if i < layout.n_states {
            states.push(values.get(id)?);
            continue;
        }
        // Scanned inputs are cut on the host; the slices are uploaded as they are used.
        let (axis, backwards) =
            (layout.input_axes[i - layout.n_states], layout.input_backwards[i - layout.n_states]);
        sliced.push(Sliced::new(host_value(values, id)?, axis, backwards)?);
    }
    let n_iterations = sliced.first().map_or(0, Sliced::count);
    if let Some(other) = sliced.iter().find(|slices| slices.n != n_iterations) {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("scanned inputs of {n_iterations} and {} elements", other.n),
        ));
    }
    let limits = &values.env.options.limits;
    if n_iterations as u64 > limits.trips {
        return Err(Limits::too_many_trips(limits.trips));
    }
    let captures = captured(nested, values)?;
    let n_collected = body.outputs.len() - layout.n_states;
    let mut collected: Vec<Collected> =
        (0..n_collected).map(|i| Collected::new(layout.output_backwards[i])).collect();
    for iteration in 0..n_iterations {
        Cancel::check(cancel)?;
        let mut inputs = std::mem::take(&mut states);
        for slices in &sliced {
            inputs.push(slices.get(iteration)?);
        }
        inputs.extend(captures.iter().cloned());
        let mut results = unit.run(inputs, cancel)?.into_iter();
        states.extend(results.by_ref().take(layout.n_states));
        for (all, result) in collected.iter_mut().zip(results) {
            all.push(result, values)?;
        }
    }
    let mut results = states;
    for (i, all) in collected.into_iter().enumerate() {
        let element = element_type(values, body.outputs.get(layout.n_states + i).copied());
        let result = all.stacked(element, values)?;
        results.push(moved_axis(result, layout.output_axes[i])?);
    }
    values.set_results(&node.outputs, results);
    Ok(())
}

/// A tensor by its slices along an axis, each without it. They are made when they are wanted: there may be more of them
/// than the tensor has bytes.
pub struct Sliced {
    tensor: Tensor,
    backwards: bool,
    n: usize,
    /// The extents of each.
    shape: Vec<usize>,
    /// Number of runs of bytes in each, and their length.
    outer: usize,
    inner: usize,
}

impl Sliced {
    /// # Errors
    /// [`ErrorKind::InvalidModel`] for an axis that the tensor does not have, [`ErrorKind::OutOfMemory`] for sizes that
    /// overflow.
    pub fn new(tensor: Tensor, axis: i64, backwards: bool) -> Result<Self> {
        let mut shape = tensor.shape().to_vec();
        whole_bytes(tensor.dtype())?;
        let axis = resolve_axis(axis, shape.len()).ok_or_else(|| {
            Error::new(ErrorKind::InvalidModel, format!("axis {axis} of a tensor of rank {}", shape.len()))
        })?;
        let element = (tensor.dtype().bits as usize).div_ceil(8);
        let inner = n_elements(&shape[axis + 1..]).and_then(|n| n.checked_mul(element));
        let (inner, outer) =
            (inner.ok_or_else(too_large)?, n_elements(&shape[..axis]).ok_or_else(too_large)?);
        let n = shape.remove(axis);
        Ok(Self { tensor, backwards, n, shape, outer, inner })
    }

    /// Returns the number of slices.
    pub fn count(&self) -> usize {
        self.n
    }

    /// Returns the slice of an iteration.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`].
    ///
    /// # Panics
    /// If there are not so many.
    pub fn get(&self, iteration: usize) -> Result<RunTensor> {
        let i = if self.backwards { self.n - 1 - iteration } else { iteration };
        let size = self.outer.checked_mul(self.inner).ok_or_else(too_large)?;
        let mut part = AlignedBytes::zeroed(size)?;
        for (o, to) in part.as_mut_slice().chunks_exact_mut(self.inner.max(1)).enumerate() {
            to.copy_from_slice(&self.tensor.bytes()[(o * self.n + i) * self.inner..][..self.inner]);
        }
        let slice = Tensor::from_storage(self.tensor.dtype(), &self.shape, Arc::new(part), 0, size)?;
        RunTensor::host(slice).ok_or_else(too_large)
    }
}

fn too_large() -> Error {
    Error::new(ErrorKind::OutOfMemory, "a scanned input is larger than memory")
}

/// Moves the leading axis of a result to where the scan wants it, on the host.
fn moved_axis(result: RunTensor, axis: i64) -> Result<RunTensor> {
    let rank = result.ty.shape.len();
    let axis = resolve_axis(axis, rank).ok_or_else(|| {
        Error::new(ErrorKind::InvalidModel, format!("axis {axis} of a result of rank {rank}"))
    })?;
    if axis == 0 {
        return Ok(result);
    }
    let tensor = result.to_tensor()?;
    let shape = tensor.shape();
    let too_large = || Error::new(ErrorKind::OutOfMemory, "a scan's result is larger than memory");
    let n = shape[0];
    let outer = n_elements(&shape[1..=axis]).ok_or_else(too_large)?;
    let inner =
        n_elements(&shape[axis + 1..]).ok_or_else(too_large)? * (tensor.dtype().bits as usize).div_ceil(8);
    let size = tensor.bytes().len();
    let mut moved = AlignedBytes::zeroed(size)?;
    let bytes = moved.as_mut_slice();
    for i in 0..n {
        for o in 0..outer {
            let (src, dst) = ((i * outer + o) * inner, (o * n + i) * inner);
            bytes[dst..dst + inner].copy_from_slice(&tensor.bytes()[src..src + inner]);
        }
    }
    let mut extents = shape[1..].to_vec();
    extents.insert(axis, n);
    let moved = Tensor::from_storage(tensor.dtype(), &extents, Arc::new(moved), 0, size)?;
    RunTensor::host(moved).ok_or_else(too_large)
}
