//! Runtimes and their devices.

use crate::errors::{detached, exception};
use crate::reports::report;
use crate::session::options_of;
use devbay_host::internals::forks::Here;
use devbay_host::trace::Recorder;
use devbay_host::{PluginReport, PythonPackage, SearchPaths};
use devbay_plugin_api::locks::lock;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

/// Plugins, their devices, and the threads that run kernels.
///
/// The processor's plugin is always there. `plugins` are paths of further libraries or manifests. With `search`, plugins are
/// also found as the `devbay` command finds them: in installed packages, in the user's and the system's folders, and in
/// DEVBAY_PLUGIN_PATH. Without `packages` those of installed packages are left out. `options` are the runtime's options by the
/// names of the command's flags, and those of plugins as `PLUGIN.KEY`.
#[pyclass(frozen, module = "devbay")]
pub struct Runtime(Here<devbay_host::Runtime>);

/// One device of a plugin.
#[pyclass(frozen, module = "devbay")]
pub struct Device(Here<Arc<devbay_host::Device>>);

/// A thread takes the lock only while it does not hold the interpreter's.
static SHARED: Mutex<Option<Here<devbay_host::Runtime>>> = Mutex::new(None);

/// Begins a runtime with the processor's plugin.
fn builder() -> devbay_host::RuntimeBuilder {
    devbay_host::Runtime::builder().link(devbay_plugin_cpu::PLUGIN)
}

/// Returns the places to search for plugins: those of the environment, and with `packages` the installed packages.
fn places(py: Python<'_>, packages: bool) -> PyResult<SearchPaths> {
    let mut paths = SearchPaths::from_environment();
    if packages {
        let found = py.import("devbay._plugins")?.call_method0("packages")?;
        for (title, entry_points, folders) in found.extract::<Vec<(String, String, Vec<PathBuf>)>>()? {
            paths.packages.push(PythonPackage { title, entry_points, folders });
        }
    }
    Ok(paths)
}

/// Returns the runtime that sessions use if none is given: made at first use, and kept until the process ends. A forked child makes
/// its own.
pub fn shared(py: Python<'_>) -> PyResult<devbay_host::Runtime> {
    let made = || lock(&SHARED).as_ref().and_then(|shared| shared.get().ok().cloned());
    if let Some(runtime) = py.detach(made) {
        return Ok(runtime);
    }
    let paths = places(py, true)?;
    detached(py, || {
        let mut shared = lock(&SHARED);
        // Another thread may have been faster.
        if let Some(Ok(runtime)) = shared.as_ref().map(Here::get) {
            return Ok(runtime.clone());
        }
        let made = builder().search(paths).build()?;
        *shared = Some(Here::new(made.clone()));
        Ok(made)
    })
}

impl Runtime {
    /// Makes a runtime that also has the plugins at these paths, and gives their marks to a recorder.
    pub fn with_plugins(
        py: Python<'_>,
        plugins: Vec<PathBuf>,
        recorder: Option<&Recorder>,
    ) -> PyResult<devbay_host::Runtime> {
        let builder =
            builder().search(places(py, true)?).plugins(plugins).trace(recorder.map(Recorder::sink));
        detached(py, || builder.build())
    }

    /// Returns the library's own runtime; fails in a forked child.
    pub fn inner(&self, py: Python<'_>) -> PyResult<&devbay_host::Runtime> {
        self.0.get().map_err(|error| exception(py, &error))
    }
}

#[pymethods]
impl Runtime {
    #[new]
    #[pyo3(signature = (*, plugins = Vec::new(), threads = 0, options = None, search = true, packages = true))]
    fn new(
        py: Python<'_>,
        plugins: Vec<PathBuf>,
        threads: usize,
        options: Option<&Bound<'_, PyDict>>,
        search: bool,
        packages: bool,
    ) -> PyResult<Self> {
        let builder = builder().plugins(plugins).threads(threads);
        let options = options_of(options)?;
        let (mut builder, _) = options.runtime(builder).map_err(|error| exception(py, &error))?;
        if search {
            builder = builder.search(places(py, packages)?);
        }
        detached(py, || builder.build()).map(|runtime| Self(Here::new(runtime)))
    }

    /// The devices, in order of precedence of their plugins.
    #[getter]
    fn devices<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        list(py, self.inner(py)?)
    }

    /// The plugins that were refused, each with its origin and the reason.
    #[getter]
    fn refused(&self) -> Vec<(String, String)> {
        let refused = self.0.again().report().refused();
        let title = |plugin: &PluginReport| format!("{} ({})", plugin.title(), plugin.origin);
        refused.map(|(plugin, refusal)| (title(plugin), refusal.to_string())).collect()
    }

    /// The number of threads for kernels, including the calling thread.
    #[getter]
    fn threads(&self) -> usize {
        self.0.again().n_threads()
    }

    fn __repr__(&self) -> String {
        let names: Vec<String> =
            self.0.again().devices().iter().map(|device| device.name().to_owned()).collect();
        format!("<devbay.Runtime with {}>", names.join(", "))
    }

    /// Returns a table of the devices, for notebooks.
    fn _repr_html_<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        list(py, self.inner(py)?)?.call_method0("_repr_html_")
    }
}

/// Lists the devices of the runtime that sessions use if none is given.
#[pyfunction]
pub fn devices(py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    list(py, &shared(py)?)
}

/// Returns a runtime's devices as a list that prints as a table.
fn list<'py>(py: Python<'py>, runtime: &devbay_host::Runtime) -> PyResult<Bound<'py, PyAny>> {
    let devices: Vec<Device> =
        runtime.devices().into_iter().map(|device| Device(Here::new(device))).collect();
    report(py, "Devices", (devices,))
}

#[pymethods]
impl Device {
    /// The name: `PLUGIN:INDEX`.
    #[getter]
    fn name(&self) -> &str {
        self.0.again().name()
    }

    /// The kind: cpu, gpu, npu, tpu, dsp, fpga or other.
    #[getter]
    fn kind(&self) -> &str {
        self.0.again().about().kind_name()
    }

    /// The product's name.
    #[getter]
    fn product(&self) -> &str {
        &self.0.again().about().product
    }

    /// Bytes of memory that the runtime has allocated on the device.
    #[getter]
    fn bytes_in_use(&self) -> u64 {
        self.0.again().bytes_in_use().0
    }

    fn __repr__(&self) -> String {
        format!("<devbay.Device {}: {}>", self.name(), self.product())
    }
}
