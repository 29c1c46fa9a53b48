//! Errors as exceptions of `devbay._errors`, by their kind.

use devbay_host::Error;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;

static BY_KIND: PyOnceLock<Py<PyDict>> = PyOnceLock::new();

/// Makes the exception for an error, with its kind and place as attributes.
pub fn exception(py: Python<'_>, error: &Error) -> PyErr {
    make(py, error).unwrap_or_else(|other| other)
}

fn make(py: Python<'_>, error: &Error) -> PyResult<PyErr> {
    let module = || py.import("devbay._errors");
    let by_kind = BY_KIND.get_or_try_init(py, || {
        Ok::<_, PyErr>(module()?.getattr("BY_KIND")?.cast_into::<PyDict>()?.unbind())
    })?;
    let kind = error.kind().name();
    let class = match by_kind.bind(py).get_item(kind)? {
        Some(class) => class,
        None => module()?.getattr("Error")?,
    };
    let exception = class.call1((error.to_string(),))?;
    let place = error.place();
    for (name, value) in [
        ("kind", kind),
        ("plugin", &place.plugin),
        ("device", &place.device),
        ("node", &place.node),
        ("file", &place.file),
    ] {
        exception.setattr(name, value)?;
    }
    Ok(PyErr::from_value(exception))
}

/// Runs a call of the library without the interpreter's lock.
pub fn detached<R: Send>(
    py: Python<'_>,
    call: impl FnOnce() -> devbay_host::Result<R> + Send,
) -> PyResult<R> {
    py.detach(call).map_err(|error| exception(py, &error))
}
