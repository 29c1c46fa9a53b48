//! `devbay._devbay`: the part of the Python package that is written in Rust.
//!
//! Each class wraps one type of `devbay-host`. Calls that may take long release the interpreter's lock. Errors become the
//! exceptions of `devbay._errors`.

mod arrays;
mod cancel;
mod eager;
mod errors;
mod progress;
mod reports;
mod runtime;
mod session;
mod tensor;
mod values;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Refuses interpreters other than the process's first one: PyO3 and NumPy keep objects that belong to one interpreter, and a
/// program that used them from another one would hang.
fn check_interpreter(_attached: Python<'_>) -> PyResult<()> {
    // SAFETY: the thread is attached to an interpreter, as `_attached` proves.
    let interpreter = unsafe { pyo3::ffi::PyInterpreterState_Get() };
    // SAFETY: the interpreter came from the call above, and lives while the thread is attached to it.
    match unsafe { pyo3::ffi::PyInterpreterState_GetID(interpreter) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err(
            "devbay does not support subinterpreters: import it in the main interpreter",
        )),
    }
}

/// The module.
#[pymodule(gil_used = false)]
mod _devbay {
    #[pymodule_export]
    use super::cancel::Cancel;
    #[pymodule_export]
    use super::eager::op;
    #[pymodule_export]
    use super::runtime::{Device, Runtime, devices};
    #[pymodule_export]
    use super::session::{Port, Session};
    #[pymodule_export]
    use super::tensor::Tensor;
    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::check_interpreter(module.py())?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
