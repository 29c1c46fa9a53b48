//! Values between Python and the library: arrays, texts, lists, dictionaries and None.

use crate::errors::exception;
use crate::tensor::{arrays, from_python, to_python};
use devbay_host::internals::core::tensor::{F32, F64, I64};
use devbay_host::{
    Device, Element, Error, ErrorKind, Map, Optional, Sequence, Strings, Tensor, Value, ValueType,
};
use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use std::sync::Arc;

fn refused(py: Python<'_>, text: String) -> PyErr {
    exception(py, &Error::new(ErrorKind::InvalidInput, text))
}

/// Takes a value of a type from Python: what [`from_python`] takes for numbers; a text, or an array or list of texts; a list
/// for a sequence, a dictionary for a map, None or the value for an optional. `what` names it in messages.
pub fn value_from(
    object: &Bound<'_, PyAny>,
    what: &str,
    wanted: &ValueType,
    device: &Arc<Device>,
) -> PyResult<Value> {
    let py = object.py();
    let failed = |error: Error| exception(py, &error);
    match wanted {
        ValueType::Tensor { element: Some(Element::String), .. } => Ok(strings_from(object, what)?.into()),
        ValueType::Tensor { element, .. } => {
            let dtype = match element {
                Some(Element::Number(dtype)) => Some(*dtype),
                // The model does not say: texts are texts.
                _ if arrays(py)?.call_method1("is_text", (object,))?.extract()? => {
                    return Ok(strings_from(object, what)?.into());
                }
                _ => None,
            };
            let tensor = from_python(object, what, dtype, device)?;
            Ok(crate::errors::detached(py, || tensor.to_tensor())?.into())
        }
        ValueType::Sequence(of) => {
            if object.cast::<PyString>().is_ok() || object.cast::<PyDict>().is_ok() {
                return Err(refused(py, format!("{what} is {wanted}: give a list")));
            }
            let items =
                object.try_iter().map_err(|_| refused(py, format!("{what} is {wanted}: give a list")))?;
            let item = |(i, item): (usize, PyResult<Bound<'_, PyAny>>)| {
                value_from(&item?, &format!("element {i} of {what}"), of, device)
            };
            let values = items.enumerate().map(item).collect::<PyResult<Vec<_>>>()?;
            Sequence::new(of.without_shape(), values).map(Value::from).map_err(failed)
        }
        ValueType::Optional(of) if object.is_none() => Ok(Optional::none(of.without_shape()).into()),
        ValueType::Optional(of) => Ok(Optional::some(value_from(object, what, of, device)?).into()),
        ValueType::Map { keys, values } => {
            let dictionary = object.cast::<PyDict>();
            let dictionary =
                dictionary.map_err(|_| refused(py, format!("{what} is {wanted}: give a dictionary")))?;
            let (mut all_keys, mut all_values) = (Vec::new(), Vec::new());
            for (key, value) in &dictionary.copy()? {
                all_keys.push(key);
                all_values.push(value);
            }
            let keys = list(&all_keys, *keys)?;
            Map::new(keys, list(&all_values, *values)?).map(Value::from).map_err(failed)
        }
    }
}

/// Takes strings: what `devbay._arrays.texts` makes texts and a shape of.
fn strings_from(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Strings> {
    let py = object.py();
    let found = arrays(py)?.call_method1("texts", (object,));
    let found = found.map_err(|error| refused(py, format!("{what} cannot be taken: {}", error.value(py))))?;
    let (texts, shape): (Vec<String>, Vec<usize>) = found.extract()?;
    Strings::from_texts(&shape, &texts).map_err(|error| exception(py, &error))
}

/// Takes the keys or elements of a map, `[n]`.
fn list(items: &[Bound<'_, PyAny>], element: Element) -> PyResult<Value> {
    let n = items.len();
    let made = match element {
        Element::String => {
            let texts = items.iter().map(|item| item.extract::<String>()).collect::<PyResult<Vec<_>>>()?;
            Strings::from_texts(&[n], &texts).map(Value::from)
        }
        Element::Number(F32) => {
            let numbers = items.iter().map(|item| item.extract::<f32>()).collect::<PyResult<Vec<_>>>()?;
            Tensor::from_elements(&[n], &numbers).map(Value::from)
        }
        Element::Number(F64) => {
            let numbers = items.iter().map(|item| item.extract::<f64>()).collect::<PyResult<Vec<_>>>()?;
            Tensor::from_elements(&[n], &numbers).map(Value::from)
        }
        Element::Number(_) => {
            let numbers = items.iter().map(|item| item.extract::<i64>()).collect::<PyResult<Vec<_>>>()?;
            Tensor::from_elements(&[n], &numbers).map(Value::from)
        }
    };
    match (made, items.first()) {
        (Err(error), Some(item)) => Err(exception(item.py(), &error)),
        (made, _) => made.map_err(|error| pyo3::exceptions::PyValueError::new_err(error.to_string())),
    }
}

/// Returns a value as Python has it: an array, of objects for texts; a list, a dictionary, None.
pub fn value_to<'py>(py: Python<'py>, value: Value) -> PyResult<Bound<'py, PyAny>> {
    match value {
        Value::Tensor(tensor) => to_python(py, tensor),
        Value::Strings(strings) => {
            let texts = PyList::new(py, strings.elements().iter().map(|text| &**text))?;
            arrays(py)?.call_method1("of_texts", (texts, strings.shape().to_vec()))
        }
        Value::Sequence(sequence) => {
            let values = sequence.values().iter().map(|value| value_to(py, value.clone()));
            Ok(PyList::new(py, values.collect::<PyResult<Vec<_>>>()?)?.into_any())
        }
        Value::Optional(optional) => match optional.value() {
            Some(value) => value_to(py, value.clone()),
            None => Ok(py.None().into_bound(py)),
        },
        Value::Map(map) => {
            let dictionary = PyDict::new(py);
            for (key, value) in plain(py, map.keys())?.iter().zip(plain(py, map.values())?) {
                dictionary.set_item(key, value)?;
            }
            Ok(dictionary.into_any())
        }
    }
}

/// Returns the keys or elements of a map as Python's own numbers and texts.
fn plain<'py>(py: Python<'py>, list: &Value) -> PyResult<Vec<Bound<'py, PyAny>>> {
    match list {
        Value::Strings(strings) => {
            Ok(strings.elements().iter().map(|text| PyString::new(py, text).into_any()).collect())
        }
        Value::Tensor(tensor) => match tensor.dtype() {
            I64 => objects(py, tensor.elements::<i64>()),
            F64 => objects(py, tensor.elements::<f64>()),
            _ => objects(py, tensor.elements::<f32>()),
        },
        _ => Ok(Vec::new()),
    }
}

fn objects<'py, T: Copy + IntoPyObjectExt<'py>>(
    py: Python<'py>,
    numbers: Option<&[T]>,
) -> PyResult<Vec<Bound<'py, PyAny>>> {
    numbers.unwrap_or_default().iter().map(|&number| number.into_bound_py_any(py)).collect()
}
