//! A flag that ends runs.

use pyo3::prelude::*;

/// A flag that ends every run that it was given to: `session.run(inputs, cancel=flag)`. Once set it stays set.
#[pyclass(frozen, module = "devbay")]
#[derive(Default)]
pub struct Cancel(devbay_host::Cancel);

impl Cancel {
    /// Returns the library's own flag.
    pub fn inner(&self) -> devbay_host::Cancel {
        self.0.clone()
    }
}

#[pymethods]
impl Cancel {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// Ends the runs, those that have not begun included. They raise `devbay.Cancelled`.
    fn cancel(&self) {
        self.0.cancel();
    }
}
