//! `devbay._devbay`: the part of the Python package that is written in Rust.
//!
//! Each class wraps one type of `devbay-host`. Calls that may take long release the interpreter's lock. Errors become the
//! exceptions of `devbay._errors`.

mod cancel;
mod eager;
mod errors;
mod reports;
mod runtime;
mod session;
mod tensor;

use pyo3::prelude::*;

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
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
