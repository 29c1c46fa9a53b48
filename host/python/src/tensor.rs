//! Tensors between Python and the library, by DLPack.

use crate::errors::exception;
use devbay_host::internals::core::tensor::dtype_name;
use devbay_host::{Device, DeviceTensor, Error, ErrorKind, Port};
use devbay_plugin_api::locks::lock;
use dlpark::ffi::{DLDevice, DLManagedTensor, DLManagedTensorVersioned};
use dlpark::python::{DlpackExporter, ExportRequest, ImportedDlpack, export_dlpack, from_dlpack};
use dlpark::{DlpackFlags, Managed};
use pyo3::exceptions::PyBufferError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyTuple;
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
        let tensor = crate::errors::detached(py, || DeviceTensor::on_host(&self.0.to_tensor()?))?;
        from_dlpack_of(py)?.call1((Self(tensor),))
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
static AS_DENSE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

fn from_dlpack_of(py: Python<'_>) -> PyResult<&Bound<'_, PyAny>> {
    let import = || Ok::<_, PyErr>(py.import("numpy")?.getattr("from_dlpack")?.unbind());
    Ok(FROM_DLPACK.get_or_try_init(py, import)?.bind(py))
}

/// Converts a result to a NumPy array that owns its memory; to a [`Tensor`] if NumPy does not have its element type.
pub fn to_python<'py>(py: Python<'py>, tensor: devbay_host::Tensor) -> PyResult<Bound<'py, PyAny>> {
    let dtype = tensor.dtype();
    // The last reference to its memory, so that NumPy may write it.
    let device_tensor = DeviceTensor::of_host(tensor).map_err(|error| exception(py, &error))?;
    // Signed, unsigned, float, complex and bool of whole, usual sizes: DLPack's codes 0, 1, 2, 5 and 6.
    let is_numpys = matches!(dtype.code, 0 | 1 | 2 | 5 | 6) && matches!(dtype.bits, 8 | 16 | 32 | 64 | 128);
    if !is_numpys {
        return Ok(Bound::new(py, Tensor(device_tensor))?.into_any());
    }
    from_dlpack_of(py)?.call1((Given(Mutex::new(Some(device_tensor))),))
}

/// Takes an input from Python: a [`Tensor`], an object with `__dlpack__`, or whatever NumPy makes an array of the input's type.
///
/// Memory is shared if it is dense, and kept until the run is over. A view with gaps is copied.
pub fn from_python(object: &Bound<'_, PyAny>, port: &Port, device: &Arc<Device>) -> PyResult<DeviceTensor> {
    if let Ok(tensor) = object.cast::<Tensor>() {
        return Ok(tensor.get().0.clone());
    }
    let py = object.py();
    let refused = |reason: &dyn std::fmt::Display| {
        let text = format!("input `{}` cannot be taken: {reason}", port.name);
        exception(py, &Error::new(ErrorKind::InvalidInput, text))
    };
    let has_dlpack = object.hasattr("__dlpack__")?;
    if has_dlpack && let Ok(tensor) = import(object, device) {
        return Ok(tensor);
    }
    // With gaps, in another byte order, or a list.
    let numpy = || Ok::<_, PyErr>(py.import("devbay._arrays")?.getattr("dense")?.unbind());
    let dense = AS_DENSE.get_or_try_init(py, numpy)?.bind(py);
    let dtype = port.ty.as_ref().map(|ty| dtype_name(ty.dtype)).filter(|_| !has_dlpack);
    let array = dense.call1((object, dtype)).map_err(|error| refused(&error.value(py)))?;
    import(&array, device).map_err(|error| refused(&error.value(py)))
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
