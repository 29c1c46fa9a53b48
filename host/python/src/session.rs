//! Sessions: a model on a device.

use crate::arrays::Dense;
use crate::cancel::Cancel;
use crate::errors::{detached, exception};
use crate::progress::Watched;
use crate::reports;
use crate::runtime::{Runtime, shared};
use crate::tensor::{Tensor, from_python, to_python};
use crate::values::{value_from, value_to};
use devbay_host::internals::devices::missing_ops;
use devbay_host::internals::forks::Here;
use devbay_host::internals::options::Options;
use devbay_host::trace::Recorder;
use devbay_host::{
    DeviceTensor, DeviceVerdict, Element, Error, ErrorKind, Model, ModelInfo, RunOptions, Value, ValueType,
};
use devbay_plugin_api::locks::{lock, unpoisoned};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyBytes, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A model on a device. Any number of threads may run it at once.
///
/// `model` is the path of a model file, or its content as bytes: ONNX, a compiled model, or a program in text form. `device` is
/// `auto`, the name of a device such as `wgpu:0`, or `prefer:KIND`. Nodes that the device has no kernel for run on the
/// processor. `plugins` are paths of libraries to load besides; they make a runtime of the session's own. `runtime` shares one.
/// `profile` records when each part of a run happened, for `Session.profile`. `options` are the session's options by the names
/// of the command's flags, such as `{"numerics": "bf16", "no-pass": ["fuse-norms"]}`.
/// Initializers that are also inputs are constants, or with `overridable` inputs that may be left out.
/// `progress` shows a bar if the model takes long to load, or is a function of phase, steps that are done, and steps in all.
#[pyclass(frozen, module = "devbay")]
pub struct Session {
    opened: Here<Opened>,
    info: ModelInfo,
    /// Why this device was chosen, and no other.
    verdicts: Vec<DeviceVerdict>,
    /// Nanoseconds that the last run took; `u64::MAX` before the first one.
    last_ns: AtomicU64,
}

/// The parts of a session that need the process's threads.
struct Opened {
    session: devbay_host::Session,
    device: Arc<devbay_host::Device>,
    /// Values of initializers that are also inputs.
    defaults: Vec<(String, DeviceTensor)>,
    /// Names of inputs and outputs, as keys of dictionaries.
    input_names: Vec<Py<PyString>>,
    output_names: Vec<Py<PyString>>,
    recorder: Option<Recorder>,
}

/// The place of a model.
enum Source {
    Content(Vec<u8>),
    File(PathBuf),
}

impl Source {
    fn load(self, overridable: bool) -> devbay_host::Result<Model> {
        match (self, overridable) {
            (Self::Content(bytes), true) => Model::from_bytes_overridable(bytes),
            (Self::Content(bytes), false) => Model::from_bytes(bytes),
            (Self::File(path), true) => Model::load_overridable(path),
            (Self::File(path), false) => Model::load(path),
        }
    }
}

/// Runs that took longer are started in the background when Python's main thread makes them: only that thread handles signals,
/// and it can do so only while it does not run kernels. A shorter run may delay Ctrl-C, but not noticeably.
const SHORT: Duration = Duration::from_millis(20);

/// Interval at which the main thread looks for signals while it waits for a run.
const LOOK: Duration = Duration::from_millis(50);

/// An input or output of a model: its name, element type and shape. Extents that the model leaves open are their names, or None.
#[pyclass(frozen, module = "devbay")]
pub struct Port(devbay_host::Port);

#[pymethods]
impl Port {
    #[getter]
    fn name(&self) -> &str {
        &self.0.name
    }

    /// The element type, `string` for texts; None if the model does not say, and for sequences, optionals and maps.
    #[getter]
    fn dtype(&self) -> Option<String> {
        match self.0.value.element()? {
            Element::Number(dtype) => Some(devbay_host::internals::core::tensor::dtype_name(dtype)),
            Element::String => Some("string".to_owned()),
        }
    }

    /// The type in ONNX's words, such as `tensor(float)`, `tensor(string)` or `seq(map(int64,tensor(float)))`.
    #[getter]
    fn r#type(&self) -> String {
        self.0.value.to_string()
    }

    /// The shape; None if the model does not say how many extents there are.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let ValueType::Tensor { shape: Some(shape), .. } = &self.0.value else { return Ok(None) };
        let extent = |dim: &devbay_host::Dim| match dim {
            devbay_host::Dim::Known(extent) => Ok(extent.into_pyobject(py)?.into_any()),
            devbay_host::Dim::Unknown(name) if name.is_empty() => Ok(py.None().into_bound(py)),
            devbay_host::Dim::Unknown(name) => Ok(name.into_pyobject(py)?.into_any()),
        };
        let extents = shape.iter().map(extent).collect::<PyResult<Vec<_>>>()?;
        PyTuple::new(py, extents).map(Some)
    }

    fn __repr__(&self) -> String {
        let ty = self.0.ty.as_ref().map_or_else(|| self.0.value.to_string(), ToString::to_string);
        format!("<devbay.Port {} {ty}>", self.0.name)
    }
}

#[pymethods]
impl Session {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "they are Python's keywords")]
    #[pyo3(signature = (model, *, device = "auto", plugins = Vec::new(), runtime = None, profile = false, options = None, overridable = false, progress = None, seed = None))]
    fn new(
        model: &Bound<'_, PyAny>,
        device: &str,
        plugins: Vec<PathBuf>,
        runtime: Option<&Runtime>,
        profile: bool,
        options: Option<&Bound<'_, PyDict>>,
        overridable: bool,
        progress: Option<&Bound<'_, PyAny>>,
        seed: Option<u64>,
    ) -> PyResult<Self> {
        let py = model.py();
        let recorder = profile.then(Recorder::default);
        let invalid = |text: &str| exception(py, &Error::new(ErrorKind::InvalidArgument, text));
        let runtime = match runtime {
            Some(_) if !plugins.is_empty() => {
                return Err(invalid("plugins belong to a runtime: give them to `devbay.Runtime`"));
            }
            Some(runtime) => runtime.inner(py)?.clone(),
            None if plugins.is_empty() && recorder.is_none() => shared(py)?,
            // Devices that work asynchronously tell the runtime when, so a profile needs one of its own.
            None => Runtime::with_plugins(py, plugins, recorder.as_ref())?,
        };
        let names_device = options.map(|options| options.contains("device")).transpose()?.unwrap_or_default();
        let mut options = options_of(options)?;
        match (device, names_device) {
            ("auto", true) => {}
            (_, true) => {
                return Err(invalid("the device is given twice: as `device`, and among the options"));
            }
            (_, false) => options.set("device", device).map_err(|error| exception(py, &error))?,
        }
        if let Some(seed) = seed {
            options.set("seed", seed.to_string()).map_err(|error| exception(py, &error))?;
        }
        let source = match model.cast::<PyBytes>() {
            Ok(bytes) => Source::Content(bytes.as_bytes().to_vec()),
            Err(_) => Source::File(model.extract()?),
        };
        let watched = Watched::new(py, progress)?;
        let made = watched.run(py, || {
            let model = source.load(overridable)?;
            let (session, choice) = options.session(&runtime, &model, recorder.as_ref())?;
            check_ops(&model, &session, &runtime)?;
            let defaults = model
                .defaults()
                .iter()
                .map(|(name, tensor)| Ok((name.clone(), DeviceTensor::on_host(tensor)?)));
            let defaults = defaults.collect::<devbay_host::Result<_>>()?;
            Ok((model.info().clone(), session, choice, defaults))
        });
        watched.close(py)?;
        let (info, session, choice, defaults) = made?;
        let names = |ports: &[devbay_host::Port]| {
            ports.iter().map(|port| PyString::intern(py, &port.name).unbind()).collect()
        };
        let (input_names, output_names) = (names(session.inputs()), names(session.outputs()));
        let (device, verdicts) = (choice.device, choice.verdicts);
        let opened = Opened { session, device, defaults, input_names, output_names, recorder };
        let last_ns = AtomicU64::new(u64::MAX);
        Ok(Self { opened: Here::new(opened), info, verdicts, last_ns })
    }

    /// The model's inputs.
    #[getter]
    fn inputs(&self) -> Vec<Port> {
        self.opened.again().session.inputs().iter().cloned().map(Port).collect()
    }

    /// The model's outputs.
    #[getter]
    fn outputs(&self) -> Vec<Port> {
        self.opened.again().session.outputs().iter().cloned().map(Port).collect()
    }

    /// The values of initializers that the model also lists as inputs, by name. They are constants, or defaults of inputs if the
    /// session was made with `overridable=True`.
    #[getter]
    fn defaults<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let defaults = PyDict::new(py);
        for (name, tensor) in &self.opened(py)?.defaults {
            defaults.set_item(name, Tensor::from(tensor.clone()))?;
        }
        Ok(defaults)
    }

    /// The name of the device.
    #[getter]
    fn device(&self) -> &str {
        self.opened.again().device.name()
    }

    /// Returns what the model's file says about itself, by name: `producer_name`, `producer_version`, `domain`, `version`,
    /// `description`, `graph_name`, `graph_description`, `ir_version`, `opsets` by domain, and `properties`, the pairs that
    /// its producer added. A text that the file does not have is empty, and a version None.
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let ModelInfo {
            producer_name,
            producer_version,
            domain,
            model_version,
            description,
            graph_name,
            graph_description,
            ir_version,
            opsets,
            metadata: properties,
            ..
        } = &self.info;
        let metadata = PyDict::new(py);
        for (name, text) in [
            ("producer_name", producer_name),
            ("producer_version", producer_version),
            ("domain", domain),
            ("description", description),
            ("graph_name", graph_name),
            ("graph_description", graph_description),
        ] {
            metadata.set_item(name, text)?;
        }
        metadata.set_item("version", model_version)?;
        metadata.set_item("ir_version", ir_version)?;
        let by_domain = PyDict::new(py);
        for (domain, version) in opsets {
            by_domain.set_item(domain, version)?;
        }
        metadata.set_item("opsets", by_domain)?;
        let pairs = PyDict::new(py);
        for (key, value) in properties {
            pairs.set_item(key, value)?;
        }
        metadata.set_item("properties", pairs)?;
        Ok(metadata)
    }

    /// Returns the plan for inputs: how the model is divided into tasks, with estimated costs and memory.
    ///
    /// `inputs` has an array, or a tuple of extents, by name. Inputs whose extents the model knows can be left out. `print` shows
    /// the plan as text, `json()` returns it as data, and notebooks draw a table.
    #[pyo3(signature = (inputs = None))]
    fn plan<'py>(&self, py: Python<'py>, inputs: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        reports::plan(py, self, inputs)
    }

    /// Returns why the model runs on this device, and what passes changed in it. `inputs` are as those of `plan`.
    #[pyo3(signature = (inputs = None))]
    fn explain<'py>(
        &self,
        py: Python<'py>,
        inputs: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        reports::explain(py, self, &self.verdicts, inputs)
    }

    /// Returns the times of the runs since the last call, of a session that was made with `profile=True`.
    fn profile<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let recorder = self.opened(py)?.recorder.as_ref().ok_or_else(|| {
            let text = "the session records no times: make it with profile=True";
            exception(py, &Error::new(ErrorKind::InvalidArgument, text))
        })?;
        reports::profile(py, recorder)
    }

    /// Runs the model on inputs by name, and returns NumPy arrays by output name.
    ///
    /// Strings are arrays of `str`, also of NumPy's `<U` and `S`; sequences are lists, maps dictionaries, and an optional is None
    /// or its value.
    ///
    /// Inputs are NumPy arrays, objects with `__dlpack__`, `devbay.Tensor`s, or lists of numbers. They are not copied if they
    /// are dense, and must not be written until the call returns. `deadline` is in seconds. `cancel` ends the run when it is
    /// set; so does Ctrl-C, which sets it. `seed` gives the random numbers of the first run of a session with that seed. A result of a type that NumPy does not have is an array of ml_dtypes if that package
    /// is installed, else a `devbay.Tensor`.
    #[pyo3(signature = (inputs, *, deadline = None, cancel = None, seed = None))]
    fn run<'py>(
        &self,
        inputs: &Bound<'py, PyDict>,
        deadline: Option<f64>,
        cancel: Option<&Cancel>,
        seed: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = inputs.py();
        let options = options(py, deadline, cancel, seed)?;
        let opened = self.opened(py)?;
        if opened.session.has_values() {
            return opened.run_on_values(inputs, &options);
        }
        let begin = Instant::now();
        let is_long = self.last_ns.load(Ordering::Relaxed) > SHORT.as_nanos() as u64;
        let is_watched = is_long && is_main_thread(py)?;
        let done = if is_watched { None } else { opened.run_on_arrays(inputs, &options)? };
        let outputs = match done {
            Some(outputs) => outputs,
            None => opened.run_on_tensors(inputs, &options, is_watched)?,
        };
        self.last_ns.store(begin.elapsed().as_nanos() as u64, Ordering::Relaxed);
        let results = PyDict::new(py);
        for (name, output) in opened.output_names.iter().zip(outputs) {
            results.set_item(name, to_python(py, output)?)?;
        }
        Ok(results)
    }

    /// Runs the model as `run` does, in a thread of the event loop's: `await session.run_async(inputs)`.
    #[pyo3(signature = (inputs, *, deadline = None, cancel = None, seed = None))]
    fn run_async<'py>(
        slf: &Bound<'py, Self>,
        inputs: &Bound<'py, PyDict>,
        deadline: Option<f64>,
        cancel: Option<Bound<'py, Cancel>>,
        seed: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let options = PyDict::new(py);
        options.set_item("deadline", deadline)?;
        options.set_item("cancel", cancel)?;
        options.set_item("seed", seed)?;
        let to_thread = py.import("asyncio")?.getattr("to_thread")?;
        to_thread.call((slf.getattr("run")?, inputs), Some(&options))
    }

    /// Runs the model as `run` does, and leaves the results on the device: `devbay.Tensor`s by output name.
    #[pyo3(signature = (inputs, *, deadline = None, cancel = None, seed = None))]
    fn run_on_device<'py>(
        &self,
        inputs: &Bound<'py, PyDict>,
        deadline: Option<f64>,
        cancel: Option<&Cancel>,
        seed: Option<u64>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = inputs.py();
        let options = options(py, deadline, cancel, seed)?;
        let opened = self.opened(py)?;
        let given = opened.given(inputs)?;
        let outputs = detached(py, || {
            let named: Vec<_> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
            opened.session.run_on_device(&named, None, &options)
        })?;
        let results = PyDict::new(py);
        for (port, output) in opened.session.outputs().iter().zip(outputs) {
            results.set_item(&*port.name, Tensor::from(output))?;
        }
        Ok(results)
    }

    fn __repr__(&self) -> String {
        format!("<devbay.Session on {}>", self.opened.again().device.name())
    }

    /// Returns a table for notebooks: the plan, if all extents are known, else inputs and outputs.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        py.import("devbay._reports")?.getattr("session_html")?.call1((slf,))
    }
}

impl Session {
    fn opened(&self, py: Python<'_>) -> PyResult<&Opened> {
        self.opened.get().map_err(|error| exception(py, &error))
    }

    /// Returns the library's own session; fails in a forked child.
    pub fn inner(&self, py: Python<'_>) -> PyResult<&devbay_host::Session> {
        Ok(&self.opened(py)?.session)
    }
}

impl Opened {
    /// Runs on dense arrays of NumPy, in the thread of the call. None, and no run, if an input is something else, or they are not the
    /// model's.
    fn run_on_arrays(
        &self,
        inputs: &Bound<'_, PyDict>,
        options: &RunOptions,
    ) -> PyResult<Option<Vec<devbay_host::Tensor>>> {
        let py = inputs.py();
        if inputs.len() != self.input_names.len() {
            return Ok(None);
        }
        let mut arrays: SmallVec<[Dense<'_>; 4]> = SmallVec::new();
        for name in &self.input_names {
            let Some(array) = inputs.get_item(name)?.as_ref().and_then(Dense::of) else { return Ok(None) };
            arrays.push(array);
        }
        let views: devbay_host::Result<SmallVec<[_; 4]>> = arrays.iter().map(Dense::view).collect();
        let views = views.map_err(|error| exception(py, &error))?;
        detached(py, || self.session.run_in_order(&views, options)).map(Some)
    }

    /// Runs on tensors of every kind.
    fn run_on_tensors(
        &self,
        inputs: &Bound<'_, PyDict>,
        options: &RunOptions,
        is_watched: bool,
    ) -> PyResult<Vec<devbay_host::Tensor>> {
        let py = inputs.py();
        let given = self.given(inputs)?;
        let tensors = given.iter().map(|(name, tensor)| Ok((name.as_str(), tensor.to_tensor()?)));
        let tensors = detached(py, || tensors.collect::<devbay_host::Result<Vec<_>>>())?;
        let named: Vec<_> = tensors.iter().map(|(name, tensor)| (*name, tensor)).collect();
        match is_watched {
            true => self.run_interruptibly(py, &named, options),
            false => detached(py, || self.session.run_with(&named, options)),
        }
    }

    /// Runs a model with strings, sequences, optionals or maps. The main thread looks for signals meanwhile.
    fn run_on_values<'py>(
        &self,
        inputs: &Bound<'py, PyDict>,
        options: &RunOptions,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = inputs.py();
        let mut given: Vec<(String, Value)> = Vec::new();
        for (name, object) in &inputs.copy()? {
            let name: String = name.extract()?;
            let port = self.port(py, &name)?;
            given.push((
                name.clone(),
                value_from(&object, &format!("input `{name}`"), &port.value, &self.device)?,
            ));
        }
        for (name, tensor) in &self.defaults {
            let is_input = self.session.inputs().iter().any(|port| *port.name == **name);
            if is_input && !given.iter().any(|(known, _)| known == name) {
                given.push((name.clone(), detached(py, || tensor.to_tensor())?.into()));
            }
        }
        let named: Vec<(&str, &Value)> = given.iter().map(|(name, value)| (name.as_str(), value)).collect();
        let cancel = options.cancel.clone().unwrap_or_default();
        let options = RunOptions { cancel: Some(cancel.clone()), ..options.clone() };
        let run = || self.session.run_values(&named, &options);
        let outputs = match is_main_thread(py)? {
            true => watched(py, &cancel, run)?,
            false => detached(py, run)?,
        };
        let results = PyDict::new(py);
        for (name, output) in self.output_names.iter().zip(outputs) {
            results.set_item(name, value_to(py, output)?)?;
        }
        Ok(results)
    }

    /// Returns an input by its name.
    fn port(&self, py: Python<'_>, name: &str) -> PyResult<&devbay_host::Port> {
        self.session.inputs().iter().find(|port| *port.name == *name).ok_or_else(|| {
            let known: Vec<&str> = self.session.inputs().iter().map(|port| &*port.name).collect();
            let text = format!("the model has no input `{name}`; it takes {}", known.join(", "));
            exception(py, &Error::new(ErrorKind::InvalidInput, text))
        })
    }

    /// Runs in the background, and looks for signals until the run has ended. A signal whose handler raises, as that of Ctrl-C
    /// does, ends the run.
    fn run_interruptibly(
        &self,
        py: Python<'_>,
        named: &[(&str, &devbay_host::Tensor)],
        options: &RunOptions,
    ) -> PyResult<Vec<devbay_host::Tensor>> {
        let run = detached(py, || self.session.run_async(named, options))?;
        loop {
            if let Some(outcome) = py.detach(|| run.wait_timeout(LOOK)) {
                return outcome.map_err(|error| exception(py, &error));
            }
            if let Err(raised) = py.check_signals() {
                run.cancel();
                // Its inputs are Python's memory, which must not change before it has ended.
                let _ = py.detach(|| run.wait());
                return Err(raised);
            }
        }
    }

    /// Takes inputs from Python. An unknown name is refused here, a missing one by the run.
    fn given(&self, inputs: &Bound<'_, PyDict>) -> PyResult<Vec<(String, DeviceTensor)>> {
        let mut given = Vec::with_capacity(inputs.len());
        // A copy: an object's `__dlpack__`, or another thread, may change the dictionary meanwhile.
        for (name, value) in &inputs.copy()? {
            let name: String = name.extract()?;
            let port = self.port(inputs.py(), &name)?;
            let wanted = port.ty.as_ref().map(|ty| ty.dtype);
            let tensor = from_python(&value, &format!("input `{name}`"), wanted, &self.device)?;
            given.push((name, tensor));
        }
        for (name, tensor) in &self.defaults {
            let is_input = self.session.inputs().iter().any(|port| *port.name == **name);
            if is_input && !given.iter().any(|(known, _)| known == name) {
                given.push((name.clone(), tensor.clone()));
            }
        }
        Ok(given)
    }
}

/// Runs in another thread, and looks for signals until the run has ended. A signal whose handler raises ends the run.
fn watched(
    py: Python<'_>,
    cancel: &devbay_host::Cancel,
    run: impl FnOnce() -> devbay_host::Result<Vec<Value>> + Send,
) -> PyResult<Vec<Value>> {
    let done = (Mutex::new(None), Condvar::new());
    let (slot, changed) = (&done.0, &done.1);
    std::thread::scope(|scope| {
        let work = move || {
            let outcome = run();
            *lock(slot) = Some(outcome);
            changed.notify_all();
        };
        let spawned = std::thread::Builder::new().name("devbay-run".to_owned()).spawn_scoped(scope, work);
        spawned.map_err(|error| {
            pyo3::exceptions::PyRuntimeError::new_err(format!("no thread for the run: {error}"))
        })?;
        let wait = || {
            let waited = changed.wait_timeout_while(lock(slot), LOOK, |outcome| outcome.is_none());
            unpoisoned(waited).0.take()
        };
        loop {
            if let Some(outcome) = py.detach(wait) {
                return outcome.map_err(|error| exception(py, &error));
            }
            if let Err(raised) = py.check_signals() {
                cancel.cancel();
                while py.detach(wait).is_none() {}
                return Err(raised);
            }
        }
    })
}

/// Refuses a model with an op that no device of the session has a kernel for: its first run would fail.
fn check_ops(
    model: &Model,
    session: &devbay_host::Session,
    runtime: &devbay_host::Runtime,
) -> devbay_host::Result<()> {
    let mut missing = missing_ops(session.device(), model.program());
    // Nodes may run on any device of the runtime, by fallback or by pins.
    for other in runtime.devices() {
        let there = missing_ops(&other, model.program());
        missing.retain(|op, _| there.contains_key(op));
    }
    let Some((_, missing)) = missing.into_iter().next() else { return Ok(()) };
    let names: Vec<String> = runtime.devices().iter().map(|device| device.name().to_owned()).collect();
    let (op, names) = (missing.op, names.join(" or "));
    let text = format!("there is no kernel for op {op} on {names}; {}", op.remedy());
    Err(Error::new(ErrorKind::UnsupportedOp, text).at_node(missing.node))
}

/// Reads options: texts, numbers, truth values, or lists of them, by key.
pub fn options_of(given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
    let mut options = Options::default();
    let Some(given) = given else { return Ok(options) };
    // A copy: a value's `__str__` may change the dictionary.
    for (key, value) in &given.copy()? {
        let key: String = key.extract()?;
        let is_list = value.cast::<PyList>().is_ok() || value.cast::<PyTuple>().is_ok();
        let values = match is_list {
            true => value.try_iter()?.collect::<PyResult<Vec<_>>>()?,
            false => vec![value],
        };
        for value in values {
            let text = match value.cast::<PyBool>() {
                Ok(truth) => truth.is_true().to_string(),
                Err(_) => value.str()?.to_string(),
            };
            options.set(&*key, text).map_err(|error| exception(value.py(), &error))?;
        }
    }
    Ok(options)
}

/// Returns whether this is Python's main thread, which handles signals.
fn is_main_thread(py: Python<'_>) -> PyResult<bool> {
    static MAIN: PyOnceLock<(Py<PyAny>, u64)> = PyOnceLock::new();
    let find = || {
        let threading = py.import("threading")?;
        let main = threading.call_method0("main_thread")?.getattr("ident")?.extract()?;
        Ok::<_, PyErr>((threading.getattr("get_ident")?.unbind(), main))
    };
    let (get_ident, main) = MAIN.get_or_try_init(py, find)?;
    Ok(get_ident.bind(py).call0()?.extract::<u64>()? == *main)
}

/// Reads the options of a run.
fn options(
    py: Python<'_>,
    deadline: Option<f64>,
    cancel: Option<&Cancel>,
    seed: Option<u64>,
) -> PyResult<RunOptions> {
    let deadline = deadline.map(Duration::try_from_secs_f64).transpose().map_err(|error| {
        let text = format!("a deadline is a number of seconds: {error}");
        exception(py, &Error::new(ErrorKind::InvalidArgument, text))
    })?;
    Ok(RunOptions { deadline, cancel: cancel.map(Cancel::inner), seed, ..RunOptions::default() })
}
