//! Tensors between Python and the library, by DLPack.

use crate::errors::{detached, exception};
use devbay_host::internals::core::tensor::{Bytes, U8, bytes_of, dtype_from_name, dtype_name};
use devbay_host::{DType, Device, DeviceTensor, Error, ErrorKind};
use devbay_plugin_api::locks::lock;
use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::{DlpackExporter, ExportRequest, ImportedDlpack, export_dlpack, from_dlpack};
use dlpark::{DlpackFlags, Managed};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

/// A tensor, in host memory or on a device. Its content does not change.
///
/// NumPy, PyTorch and others take it by `from_dlpack`, without a copy if they can use the memory.
#[pyclass(frozen, module = "devbay")]
pub struct Tensor(pub DeviceTensor);

#[pymethods]
impl Tensor {
    /// The extents, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.shape())
    }

    /// The element type: f32, i64, bool, bf16 and so on.
    #[getter]
    fn dtype(&self) -> String {
        dtype_name(self.0.dtype())
    }

    /// The name of the device whose memory it is in; None for host memory.
    #[getter]
    fn device(&self) -> Option<&str> {
        self.0.device().map(|device| device.name())
    }

    /// Returns the content as a NumPy array, copied if it is on a device. The array is read-only.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let tensor = detached(py, || self.0.to_tensor())?;
        if let Some(array) = small_array(py, &tensor)? {
            array.call_method1("setflags", (false,))?;
            return Ok(array);
        }
        let tensor = DeviceTensor::on_host(&tensor).map_err(|error| exception(py, &error))?;
        from_dlpack_of(py)?.call1((Self(tensor),))
    }

    /// Returns a tensor that shares the memory of an object with `__dlpack__`, or of an array.
    #[staticmethod]
    fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device = owner(object)?;
        from_python(object, "the tensor", None, &device).map(Self)
    }

    /// The number of bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        bytes_of(self.0.dtype(), self.0.shape().iter().product()).unwrap_or_default()
    }

    #[pyo3(signature = (*, stream = None, max_version = None, dl_device = None, copy = None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<&Bound<'py, PyAny>>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(u32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Py<PyAny>> {
        export_dlpack(self, py, ExportRequest::parse(stream, max_version, dl_device, copy)?)
    }

    fn __dlpack_device__(&self, py: Python<'_>) -> PyResult<(u32, i32)> {
        let device = self.0.dlpack_device().map_err(|error| exception(py, &error))?;
        Ok((device.device_type.0, device.device_id))
    }

    fn __repr__(&self) -> String {
        let place = self.device().unwrap_or("the host");
        format!("<devbay.Tensor {}{:?} on {place}>", self.dtype(), self.0.shape())
    }
}

impl DlpackExporter for Tensor {
    fn device(&self) -> DLDevice {
        self.0.dlpack_device().unwrap_or(DLDevice::CPU)
    }

    fn flags(&self) -> DlpackFlags {
        DlpackFlags::READ_ONLY
    }

    /// Nothing to prepare: a run's results are complete when it returns.
    fn prepare_export(&self, _py: Python<'_>, _request: &ExportRequest<'_>) -> PyResult<()> {
        Ok(())
    }

    fn export_legacy(&self, _py: Python<'_>) -> PyResult<Managed<DLManagedTensor>> {
        Err(PyBufferError::new_err("a read-only tensor needs DLPack 1.0 or newer: pass max_version=(1, 0)"))
    }

    fn export_versioned(&self, py: Python<'_>) -> PyResult<Managed<DLManagedTensorVersioned>> {
        self.0.clone().into_dlpack().map_err(|error| exception(py, &error))
    }
}

/// A result that NumPy takes over: its memory is NumPy's alone, and may be written.
#[pyclass(frozen)]
struct Given(Mutex<Option<DeviceTensor>>);

#[pymethods]
impl Given {
    #[pyo3(signature = (**_options))]
    fn __dlpack__(
        &self,
        py: Python<'_>,
        _options: Option<&Bound<'_, pyo3::types::PyDict>>,
    ) -> PyResult<Managed<DLManagedTensorVersioned>> {
        let tensor = lock(&self.0).take();
        let tensor = tensor.ok_or_else(|| PyBufferError::new_err("this result was taken before"))?;
        tensor.into_dlpack().map_err(|error| exception(py, &error))
    }

    fn __dlpack_device__(&self) -> (u32, i32) {
        (DLDevice::CPU.device_type.0, DLDevice::CPU.device_id)
    }
}

static FROM_DLPACK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
static ARRAYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Returns the module that converts arrays.
fn arrays(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    let import = || Ok::<_, PyErr>(py.import("devbay._arrays")?.unbind());
    Ok(ARRAYS.get_or_try_init(py, import)?.bind(py))
}

fn from_dlpack_of(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let import = || Ok::<_, PyErr>(py.import("numpy")?.getattr("from_dlpack")?.unbind());
    Ok(FROM_DLPACK.get_or_try_init(py, import)?.bind(py))
}

/// Returns whether NumPy itself has an element type.
fn is_numpys(dtype: DType) -> bool {
    // Signed, unsigned, float, complex and bool of whole, usual sizes: DLPack's codes 0, 1, 2, 5 and 6.
    matches!(dtype.code, 0 | 1 | 2 | 5 | 6) && matches!(dtype.bits, 8 | 16 | 32 | 64 | 128)
}

/// A tensor's bytes, as the storage of a tensor of another type.
struct As(devbay_host::Tensor);

impl Bytes for As {
    fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    fn start_mut(&self) -> Option<NonNull<u8>> {
        self.0.start_mut()
    }
}

/// Returns the same bytes as a tensor of another type and shape.
fn reread(
    tensor: devbay_host::Tensor,
    dtype: DType,
    shape: &[usize],
) -> devbay_host::Result<devbay_host::Tensor> {
    let size = tensor.bytes().len();
    devbay_host::Tensor::from_storage(dtype, shape, Arc::new(As(tensor)), 0, size)
}

/// Converts a tensor of a type that NumPy lacks to an array of ml_dtypes; None without that package, and for NumPy's own types.
fn small_array<'py>(py: Python<'py>, tensor: &devbay_host::Tensor) -> PyResult<Option<Bound<'py, PyAny>>> {
    if is_numpys(tensor.dtype()) {
        return Ok(None);
    }
    let arrays = arrays(py)?;
    let name = dtype_name(tensor.dtype());
    if arrays.call_method1("numpy_type", (&name,))?.is_none() {
        return Ok(None);
    }
    // A copy, so that the array's memory is its own.
    let bytes = devbay_host::Tensor::from_bytes(U8, &[tensor.bytes().len()], tensor.bytes());
    let bytes = bytes.and_then(DeviceTensor::of_host).map_err(|error| exception(py, &error))?;
    let bytes = from_dlpack_of(py)?.call1((Given(Mutex::new(Some(bytes))),))?;
    arrays.call_method1("of_bytes", (bytes, name, PyTuple::new(py, tensor.shape())?)).map(Some)
}

/// Converts a result to a NumPy array that owns its memory; to a [`Tensor`] if neither NumPy nor ml_dtypes has its element type.
pub fn to_python<'py>(py: Python<'py>, tensor: devbay_host::Tensor) -> PyResult<Bound<'py, PyAny>> {
    let dtype = tensor.dtype();
    if let Some(array) = small_array(py, &tensor)? {
        return Ok(array);
    }
    // The last reference to its memory, so that NumPy may write it.
    let device_tensor = DeviceTensor::of_host(tensor).map_err(|error| exception(py, &error))?;
    if !is_numpys(dtype) {
        return Ok(Bound::new(py, Tensor(device_tensor))?.into_any());
    }
    from_dlpack_of(py)?.call1((Given(Mutex::new(Some(device_tensor))),))
}

/// Takes a tensor from Python: a [`Tensor`], an object with `__dlpack__`, or whatever NumPy makes an array of the wanted type.
/// `what` names it in messages.
///
/// Memory is shared if it is dense, and kept until the run is over. A view with gaps is copied.
pub fn from_python(
    object: &Bound<'_, PyAny>,
    what: &str,
    wanted: Option<DType>,
    device: &Arc<Device>,
) -> PyResult<DeviceTensor> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(tensor.get().0.clone());
    }
    let py = object.py();
    let refused = |reason: &dyn std::fmt::Display| {
        let text = format!("{what} cannot be taken: {reason}");
        exception(py, &Error::new(ErrorKind::InvalidInput, text))
    };
    let has_dlpack = object.hasattr("__dlpack__")?;
    if has_dlpack && let Ok(tensor) = import(object, device) {
        return Ok(tensor);
    }
    // With gaps, in another byte order, of a type of ml_dtypes, or a list.
    let wanted = wanted.map(dtype_name).filter(|_| !has_dlpack);
    let found =
        arrays(py)?.call_method1("dense", (object, wanted)).map_err(|error| refused(&error.value(py)))?;
    let (array, small): (Bound<'_, PyAny>, Option<(String, Vec<usize>)>) = found.extract()?;
    let tensor = import(&array, device).map_err(|error| refused(&error.value(py)))?;
    let Some((name, shape)) = small else { return Ok(tensor) };
    let dtype = dtype_from_name(&name).ok_or_else(|| refused(&format!("there is no element type {name}")))?;
    let reread = tensor.to_tensor().and_then(|bytes| DeviceTensor::of_host(reread(bytes, dtype, &shape)?));
    reread.map_err(|error| exception(py, &error))
}

/// Returns the extents, if the object is a tuple of numbers; None for anything else.
pub fn shape_of(object: &Bound<'_, PyAny>) -> PyResult<Option<Vec<usize>>> {
    object.cast::<PyTuple>().ok().map(|tuple| tuple.extract()).transpose()
}

/// Returns the device whose memory an object with `__dlpack__` is in; the processor for host memory.
fn owner(object: &Bound<'_, PyAny>) -> PyResult<Arc<Device>> {
    let py = object.py();
    let runtime = crate::runtime::shared(py)?;
    let wanted: Option<(i32, i32)> = match object.hasattr("__dlpack_device__")? {
        true => Some(object.call_method0("__dlpack_device__")?.extract()?),
        false => None,
    };
    let devices = runtime.devices();
    let owner = devices.iter().find(|device| device.dlpack_device().ok() == wanted);
    let cpu = devices.iter().find(|device| device.plugin().name() == "cpu");
    owner
        .or(cpu)
        .cloned()
        .ok_or_else(|| exception(py, &Error::new(ErrorKind::NotFound, "there is no device for the tensor")))
}

/// Shares the memory of an object with `__dlpack__`.
fn import(object: &Bound<'_, PyAny>, device: &Arc<Device>) -> PyResult<DeviceTensor> {
    let tensor = match from_dlpack(object.as_borrowed(), None, None)? {
        // SAFETY: the producer describes its memory truly, as the protocol demands, and it stays until the deleter is
        // called. Python programs must not write an array while a run reads it, as the documentation of `run` says.
        ImportedDlpack::Legacy(tensor) => unsafe { DeviceTensor::from_dlpack(tensor, device) },
        // SAFETY: the producer keeps the protocol in both forms of a tensor: true description, memory until the deleter.
        ImportedDlpack::Versioned(tensor) => unsafe { DeviceTensor::from_dlpack(tensor, device) },
    };
    tensor.map_err(|error| exception(object.py(), &error))
}
