//! One op, one call: `devbay.op`.

use crate::errors::{detached, exception};
use crate::runtime::shared;
use crate::tensor::{from_python, to_python};
use devbay_host::internals::core::program::catalogue::{self, AttributeType, OpRow};
use devbay_host::internals::core::program::{AttrValue, Node, Op, ValueId};
use devbay_host::internals::eager;
use devbay_host::{Device, Error, ErrorKind, Policy, Requirements, Tensor};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyString, PyTuple};
use std::sync::Arc;

/// Runs one op of ONNX, in the version that devbay holds, on arrays.
///
/// `name` is the op's name, with its domain before a dot for ops of other domains: `com.microsoft.QuickGelu`. None stands for an
/// optional operand that is absent. Other keywords are the op's attributes: numbers, texts, lists of them, or arrays. Returns one
/// array, or a tuple if `outputs` is more than 1.
#[pyfunction]
#[pyo3(signature = (name, /, *inputs, device = "auto", outputs = 1, **attributes))]
pub fn op<'py>(
    py: Python<'py>,
    name: &str,
    inputs: &Bound<'py, PyTuple>,
    device: &str,
    outputs: usize,
    attributes: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let (domain, short) = name.rsplit_once('.').unwrap_or(("", name));
    let row = catalogue::find(domain, short).ok_or_else(|| {
        let text = format!("there is no op {name} in the catalogue");
        exception(py, &Error::new(ErrorKind::UnsupportedOp, text))
    })?;
    if !(1..=OUTPUTS_MAX).contains(&outputs) {
        return Err(invalid(py, format!("an op has 1 to {OUTPUTS_MAX} outputs, found {outputs}")));
    }
    let device = device_for(py, device, row)?;
    let mut operands = Vec::with_capacity(inputs.len());
    for (i, input) in inputs.iter().enumerate() {
        if input.is_none() {
            operands.push(None);
            continue;
        }
        let tensor = from_python(&input, &format!("operand {i} of {name}"), None, &device)?;
        operands.push(Some(detached(py, || tensor.to_tensor())?));
    }
    // The numbers only distinguish operands; there is no program.
    let id = |i: usize| ValueId(i as u32);
    let present = operands.iter().enumerate().map(|(i, operand)| operand.as_ref().map(|_| id(i))).collect();
    let results = (0..outputs).map(|i| Some(id(operands.len() + i))).collect();
    let mut node = Node::new(Op::of(row), present, results);
    for (key, value) in attributes.into_iter().flatten() {
        let key: String = key.extract()?;
        let value = attribute(row, &key, &value, &device)?;
        node.attrs.push((Arc::from(&*key), value));
    }
    let given: Vec<Option<&Tensor>> = operands.iter().map(Option::as_ref).collect();
    let results =
        detached(py, || eager::run_node(&device, &node, &given).map_err(|error| error.at_node(name)))?;
    let arrays = results.into_iter().map(|result| to_python(py, result)).collect::<PyResult<Vec<_>>>()?;
    match &*arrays {
        [only] => Ok(only.clone()),
        _ => Ok(PyTuple::new(py, arrays)?.into_any()),
    }
}

/// No op has more results, except those with a repeated one.
const OUTPUTS_MAX: usize = 1024;

fn invalid(py: Python<'_>, text: String) -> PyErr {
    exception(py, &Error::new(ErrorKind::InvalidArgument, text))
}

/// Returns the named device; for `auto`, the first in the order that has a kernel for the op.
fn device_for(py: Python<'_>, device: &str, row: &OpRow) -> PyResult<Arc<Device>> {
    let runtime = shared(py)?;
    let policy = Policy::parse(device).map_err(|error| exception(py, &error))?;
    let choice = runtime.choose(&policy, &Requirements::default()).map_err(|error| exception(py, &error))?;
    if policy != Policy::Auto || choice.device.kernels().has(row.domain, row.name) {
        return Ok(choice.device);
    }
    let devices = runtime.devices();
    let able = devices.iter().find(|device| device.kernels().has(row.domain, row.name));
    Ok(able.cloned().unwrap_or(choice.device))
}

/// Converts an attribute to the type that the op's definition gives it.
fn attribute(row: &OpRow, key: &str, value: &Bound<'_, PyAny>, device: &Arc<Device>) -> PyResult<AttrValue> {
    let py = value.py();
    let Some(known) = row.attributes.iter().find(|known| known.name == key) else {
        let known: Vec<&str> = row.attributes.iter().map(|known| known.name).collect();
        let list = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(invalid(py, format!("{} has no attribute `{key}`; it has {list}", row.name)));
    };
    let wrong = |expected: &str| {
        let found = value.repr().map(|repr| repr.to_string()).unwrap_or_default();
        invalid(py, format!("attribute `{key}` of {} is {expected}, found {found}", row.name))
    };
    Ok(match known.ty {
        AttributeType::Int => AttrValue::Int(integer(value).ok_or_else(|| wrong("an integer"))?),
        AttributeType::Float => AttrValue::Float(float(value).ok_or_else(|| wrong("a number"))?),
        AttributeType::String => AttrValue::String(text(value).ok_or_else(|| wrong("a text"))?),
        AttributeType::Ints => {
            let list = list(&unpacked(value)?).ok_or_else(|| wrong("a list of integers"))?;
            let ints = list.iter().map(integer).collect::<Option<_>>();
            AttrValue::Ints(ints.ok_or_else(|| wrong("a list of integers"))?)
        }
        AttributeType::Floats => {
            let list = list(&unpacked(value)?).ok_or_else(|| wrong("a list of numbers"))?;
            let floats = list.iter().map(float).collect::<Option<_>>();
            AttrValue::Floats(floats.ok_or_else(|| wrong("a list of numbers"))?)
        }
        AttributeType::Strings => {
            let list = list(value).ok_or_else(|| wrong("a list of texts"))?;
            let texts = list.iter().map(text).collect::<Option<_>>();
            AttrValue::Strings(texts.ok_or_else(|| wrong("a list of texts"))?)
        }
        AttributeType::Tensor => {
            let what = format!("attribute `{key}` of {}", row.name);
            let tensor = from_python(value, &what, None, device)?;
            AttrValue::Tensor(detached(py, || tensor.to_tensor())?)
        }
        AttributeType::Graph => {
            let text = format!("attribute `{key}` of {} is a graph, which one call does not run", row.name);
            return Err(exception(py, &Error::new(ErrorKind::UnsupportedOp, text)));
        }
    })
}

/// Returns an array as a list, and everything else as it is.
fn unpacked<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match value.hasattr("tolist")? {
        true => value.call_method0("tolist"),
        false => Ok(value.clone()),
    }
}

/// Reads an integer or a truth value; None for a number with a fraction, which `int` would round.
fn integer(value: &Bound<'_, PyAny>) -> Option<i64> {
    if value.cast::<PyBool>().is_ok() || value.cast::<PyInt>().is_ok() {
        return value.extract::<bool>().map(i64::from).or_else(|_| value.extract()).ok();
    }
    value.call_method0("__index__").ok()?.extract().ok()
}

fn float(value: &Bound<'_, PyAny>) -> Option<f32> {
    let is_number = value.cast::<PyFloat>().is_ok()
        || value.cast::<PyInt>().is_ok()
        || (value.hasattr("__float__").ok()? && !value.hasattr("__len__").ok()?);
    is_number.then(|| value.extract::<f64>().ok()).flatten().map(|number| number as f32)
}

fn text(value: &Bound<'_, PyAny>) -> Option<String> {
    value.cast::<PyString>().ok()?.extract().ok()
}

fn list<'py>(value: &Bound<'py, PyAny>) -> Option<Vec<Bound<'py, PyAny>>> {
    if value.cast::<PyString>().is_ok() {
        return None;
    }
    value.try_iter().ok()?.collect::<PyResult<_>>().ok()
}
