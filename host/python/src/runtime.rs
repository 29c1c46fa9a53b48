//! Runtimes and their devices.

use crate::errors::{detached, exception};
use crate::reports::report;
use crate::session::options_of;
use devbay_host::trace::Recorder;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::Arc;

/// Plugins, their devices, and the threads that run kernels.
///
/// The processor's plugin is always there. `plugins` are paths of further libraries or manifests. With `search`, plugins are
/// also found as the `devbay` command finds them: in the user's and the system's folders, and in DEVBAY_PLUGIN_PATH. `options` are
/// the runtime's options by the names of the command's flags, and those of plugins as `PLUGIN.KEY`.
#[pyclass(frozen, module = "devbay")]
pub struct Runtime(devbay_host::Runtime);

/// One device of a plugin.
#[pyclass(frozen, module = "devbay")]
pub struct Device(Arc<devbay_host::Device>);

static SHARED: PyOnceLock<devbay_host::Runtime> = PyOnceLock::new();

/// Begins a runtime with the processor's plugin.
fn builder(search: bool) -> devbay_host::RuntimeBuilder {
    let builder = devbay_host::Runtime::builder().link(devbay_plugin_cpu::PLUGIN);
    match search {
        true => builder.search(devbay_host::SearchPaths::from_environment()),
        false => builder,
    }
}

/// Returns the runtime that sessions use if none is given: made at first use, and kept until the process ends.
pub fn shared(py: Python<'_>) -> PyResult<devbay_host::Runtime> {
    SHARED.get_or_try_init(py, || detached(py, || builder(true).build())).cloned()
}

impl Runtime {
    /// Makes a runtime that also has the plugins at these paths, and gives their marks to a recorder.
    pub fn with_plugins(
        py: Python<'_>,
        plugins: Vec<PathBuf>,
        recorder: Option<&Recorder>,
    ) -> PyResult<devbay_host::Runtime> {
        let builder = builder(true).plugins(plugins).trace(recorder.map(Recorder::sink));
        detached(py, || builder.build())
    }

    /// Returns the library's own runtime.
    pub fn inner(&self) -> &devbay_host::Runtime {
        &self.0
    }
}

#[pymethods]
impl Runtime {
    #[new]
    #[pyo3(signature = (*, plugins = Vec::new(), threads = 0, options = None, search = true))]
    fn new(
        py: Python<'_>,
        plugins: Vec<PathBuf>,
        threads: usize,
        options: Option<&Bound<'_, PyDict>>,
        search: bool,
    ) -> PyResult<Self> {
        let builder = builder(search).plugins(plugins).threads(threads);
        let options = options_of(options)?;
        let (builder, _) = options.runtime(builder).map_err(|error| exception(py, &error))?;
        detached(py, || builder.build()).map(Self)
    }

    /// The devices, in order of precedence of their plugins.
    #[getter]
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        list(py, &self.0)
    }

    /// The plugins that were refused, each with the reason.
    #[getter]
    fn refused(&self) -> Vec<(String, String)> {
        let refused = self.0.report().refused();
        refused.map(|(plugin, refusal)| (plugin.title(), refusal.to_string())).collect()
    }

    /// The number of threads for kernels, including the calling thread.
    #[getter]
    fn threads(&self) -> usize {
        self.0.n_threads()
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> = self.0.devices().iter().map(|device| device.name().to_owned()).collect();
        format!("<devbay.Runtime with {}>", names.join(", "))
    }

    /// Returns a table of the devices, for notebooks.
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        list(py, &self.0)?.call_method0("_repr_html_")
    }
}

/// Lists the devices of the runtime that sessions use if none is given.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    list(py, &shared(py)?)
}

/// Returns a runtime's devices as a list that prints as a table.
fn list<'py>(py: Python<'py>, runtime: &devbay_host::Runtime) -> PyResult<Bound<'py, PyAny>> {
    let devices: Vec<Device> = runtime.devices().into_iter().map(Device).collect();
    report(py, "Devices", (devices,))
}

#[pymethods]
impl Device {
    /// The name: `PLUGIN:INDEX`.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// The kind: cpu, gpu, npu, tpu, dsp, fpga or other.
    #[getter]
    fn kind(&self) -> &str {
        self.0.about().kind_name()
    }

    /// The product's name.
    #[getter]
    fn product(&self) -> &str {
        &self.0.about().product
    }

    /// Bytes of memory that the runtime has allocated on the device.
    #[getter]
    fn bytes_in_use(&self) -> u64 {
        self.0.bytes_in_use().0
    }

    fn __repr__(&self) -> String {
        format!("<devbay.Device {}: {}>", self.name(), self.product())
    }
}
