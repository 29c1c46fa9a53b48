//! Plans, explanations and profiles: text and JSON of the library, as classes of `devbay._reports`.

use crate::errors::exception;
use crate::session::Session;
use crate::tensor::{from_python, shape_of};
use devbay_host::internals::core::tensor::dtype_name;
use devbay_host::internals::plan_json;
use devbay_host::trace::{Recorder, Summary, Timeline, write_chrome};
use devbay_host::{DType, Device, DeviceVerdict, Error, ErrorKind, Port};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use std::sync::Arc;

/// Makes an object of a class of `devbay._reports`.
pub fn report<'py>(
    py: Python<'py>,
    class: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("devbay._reports")?.getattr(class)?.call1(arguments)
}

/// Types of inputs, in the model's order.
type Types = Vec<(DType, Vec<usize>)>;

/// Reads the types to plan for: by name an array, or a tuple of extents. Those that are not given must be known from the model.
fn types(
    ports: &[Port],
    given: Option<&Bound<'_, PyDict>>,
    device: &Arc<Device>,
    py: Python<'_>,
) -> PyResult<Types> {
    let invalid = |text: String| exception(py, &Error::new(ErrorKind::InvalidInput, text));
    for (name, _) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        if !ports.iter().any(|port| *port.name == *name) {
            let known: Vec<&str> = ports.iter().map(|port| &*port.name).collect();
            return Err(invalid(format!("the model has no input `{name}`; it takes {}", known.join(", "))));
        }
    }
    let of_port = |port: &Port| {
        let known = || {
            let ty = port.ty.as_ref()?;
            Some((ty.dtype, ty.known_shape()?))
        };
        let Some(value) = given.map(|given| given.get_item(&*port.name)).transpose()?.flatten() else {
            return known().ok_or_else(|| {
                let ty = port.ty.as_ref().map(|ty| format!(" {ty}")).unwrap_or_default();
                let text = format!(
                    "input `{}`{ty} has open extents: give them as a tuple, or an array, by its name",
                    port.name
                );
                invalid(text)
            });
        };
        if let Some(shape) = shape_of(&value)? {
            let dtype = port.ty.as_ref().map(|ty| ty.dtype);
            let dtype =
                dtype.ok_or_else(|| invalid(format!("input `{}` has no type: give an array", port.name)))?;
            return Ok((dtype, shape));
        }
        let tensor = from_python(
            &value,
            &format!("input `{}`", port.name),
            port.ty.as_ref().map(|ty| ty.dtype),
            device,
        )?;
        Ok((tensor.dtype(), tensor.shape().to_vec()))
    };
    ports.iter().map(of_port).collect()
}

/// Returns a session's plan, as a `Plan` of Python.
pub fn plan<'py>(
    py: Python<'py>,
    session: &Session,
    given: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let types = types(session.inner().inputs(), given, session.inner().device(), py)?;
    let (text, json) = crate::errors::detached(py, || {
        let types: Vec<(DType, &[usize])> = types.iter().map(|(dtype, shape)| (*dtype, &**shape)).collect();
        let plan = session.inner().plan_for_types(&types)?;
        let report = session.inner().plan_report(&plan);
        Ok((report.to_string(), plan_json::json(&report).to_string()))
    })?;
    report(py, "Plan", (text, json))
}

/// Returns why a session runs where it does, and what passes changed, as an `Explanation` of Python.
pub fn explain<'py>(
    py: Python<'py>,
    session: &Session,
    verdicts: &[DeviceVerdict],
    given: Option<&Bound<'py, PyDict>>,
) -> PyResult<Bound<'py, PyAny>> {
    let types = types(session.inner().inputs(), given, session.inner().device(), py)?;
    let passes = crate::errors::detached(py, || {
        let types: Vec<(DType, &[usize])> = types.iter().map(|(dtype, shape)| (*dtype, &**shape)).collect();
        let plan = session.inner().plan_for_types(&types)?;
        Ok(session.inner().passes(&plan))
    })?;
    let devices: Vec<_> =
        verdicts.iter().map(|verdict| (&verdict.device, verdict.chosen, &verdict.reason)).collect();
    let passes: Vec<_> =
        passes.iter().map(|pass| (pass.name, pass.changes, pass.before, pass.after)).collect();
    let ports = session.inner().inputs().iter().zip(&types);
    let inputs: Vec<_> = ports
        .map(|(port, (dtype, shape))| (port.name.to_string(), dtype_name(*dtype), shape.clone()))
        .collect();
    report(py, "Explanation", (devices, passes, inputs))
}

/// Takes the recording of the runs so far, as a `Profile` of Python.
pub fn profile<'py>(py: Python<'py>, recorder: &Recorder) -> PyResult<Bound<'py, PyAny>> {
    let (json, timeline) = py
        .detach(|| {
            let recording = recorder.take();
            let timeline = Timeline::of(&recording);
            let mut file = Vec::new();
            write_chrome(&mut file, &timeline)?;
            Ok::<_, std::io::Error>((Summary::of(&timeline).json().to_string(), file))
        })
        .map_err(|error| {
            let text = format!("the timeline cannot be made: {error}");
            exception(py, &Error::new(ErrorKind::of_io(&error), text))
        })?;
    report(py, "Profile", (json, PyBytes::new(py, &timeline)))
}
