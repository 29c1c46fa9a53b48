//! Tensors between Python and the library, by DLPack.

use crate::arrays::{Dense, array_of, is_numpys};
use crate::errors::{detached, exception};
use devbay_host::internals::core::tensor::{Bytes, U8, bytes_of, dtype_from_name, dtype_name};
use devbay_host::internals::forks::Here;
use devbay_host::{DType, Device, DeviceTensor, Error, ErrorKind};
use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::{DlpackExporter, ExportRequest, ImportedDlpack, export_dlpack, from_dlpack};
use dlpark::{DlpackFlags, Managed};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
use std::ptr::NonNull;
use std::sync::Arc;

/// A tensor, in host memory or on a device. Its content does not change.
///
/// NumPy, PyTorch and others take it by `from_dlpack`, without a copy if they can use the memory.
#[pyclass(frozen, module = "devbay")]
pub struct Tensor(Here<DeviceTensor>);

impl From<DeviceTensor> for Tensor {
    fn from(tensor: DeviceTensor) -> Self {
        Self(Here::new(tensor))
    }
}

impl Tensor {
    /// Returns the library's own tensor; fails in a forked child.
    fn inner(&self, py: Python<'_>) -> PyResult<&DeviceTensor> {
        self.0.get().map_err(|error| exception(py, &error))
    }
}

#[pymethods]
impl Tensor {
    /// The extents, outermost first.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, self.0.again().shape())
    }

    /// The element type: f32, i64, bool, bf16 and so on.
    #[getter]
    fn dtype(&self) -> String {
        dtype_name(self.0.again().dtype())
    }

    /// The name of the device whose memory it is in; None for host memory.
    #[getter]
    fn device(&self) -> Option<&str> {
        self.0.again().device().map(|device| device.name())
    }

    /// Returns the content as a NumPy array, copied if it is on a device. The array is read-only.
    fn numpy<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let own = self.inner(py)?;
        let tensor = detached(py, || own.to_tensor())?;
        if let Some(array) = small_array(py, &tensor)? {
            array.call_method1("setflags", (false,))?;
            return Ok(array);
        }
        array_of(py, tensor, false)
    }

    /// Returns a tensor that shares the memory of an object with `__dlpack__`, or of an array.
    #[staticmethod]
    fn from_dlpack(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let device = owner(object)?;
        from_python(object, "the tensor", None, &device).map(Self::from)
    }

    /// The number of bytes of its elements.
    #[getter]
    fn nbytes(&self) -> usize {
        bytes_of(self.0.again().dtype(), self.0.again().shape().iter().product()).unwrap_or_default()
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
        let device = self.0.again().dlpack_device().map_err(|error| exception(py, &error))?;
        Ok((device.device_type.0, device.device_id))
    }

    fn __repr__(&self) -> String {
        let place = self.device().unwrap_or("the host");
        format!("<devbay.Tensor {}{:?} on {place}>", self.dtype(), self.0.again().shape())
    }
}

impl DlpackExporter for Tensor {
    fn device(&self) -> DLDevice {
        self.0.again().dlpack_device().unwrap_or(DLDevice::CPU)
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
        self.inner(py)?.clone().into_dlpack().map_err(|error| exception(py, &error))
    }
}

static ARRAYS: PyOnceLock<Py<PyModule>> = PyOnceLock::new();

/// Returns the module that converts arrays.
pub fn arrays(py: Python<'_>) -> PyResult<&Bound<'_, PyModule>> {
    let import = || Ok::<_, PyErr>(py.import("devbay._arrays")?.unbind());
    Ok(ARRAYS.get_or_try_init(py, import)?.bind(py))
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
    let bytes = array_of(py, bytes.map_err(|error| exception(py, &error))?, true)?;
    arrays.call_method1("of_bytes", (bytes, name, PyTuple::new(py, tensor.shape())?)).map(Some)
}

/// Converts a result to a NumPy array; to a [`Tensor`] if neither NumPy nor ml_dtypes has its element type.
pub fn to_python<'py>(py: Python<'py>, tensor: devbay_host::Tensor) -> PyResult<Bound<'py, PyAny>> {
    if let Some(array) = small_array(py, &tensor)? {
        return Ok(array);
    }
    if is_numpys(tensor.dtype()) {
        // The last reference to its memory, so that programs may write it.
        return array_of(py, tensor, true);
    }
    let tensor = DeviceTensor::of_host(tensor).map_err(|error| exception(py, &error))?;
    Ok(Bound::new(py, Tensor::from(tensor))?.into_any())
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
        return tensor.get().inner(object.py()).cloned();
    }
    let py = object.py();
    let refused = |reason: &dyn std::fmt::Display| {
        let text = format!("{what} cannot be taken: {reason}");
        exception(py, &Error::new(ErrorKind::InvalidInput, text))
    };
    if let Some(array) = Dense::of(object) {
        let tensor = array.into_tensor().and_then(DeviceTensor::of_host);
        return tensor.map_err(|error| exception(py, &error));
    }
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
