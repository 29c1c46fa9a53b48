//! Tensors that stay on a device between runs, and sharing with applications: memory by DLPack or by its native name,
//! and native streams.
//!
//! A tensor is in a device's memory or in the host's; [`Session::run_on_device`](crate::session::Session::run_on_device)
//! takes and returns such tensors and copies only those that are elsewhere. Devices whose plugin has the extension for
//! native memory ([`InteropTable`](devbay_plugin_api::abi::InteropTable)) share theirs with other libraries without a copy;
//! host memory can be shared for every device.

use devbay_core::device::{Device, Stream};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::unit::Point;
use devbay_core::exec::value::RunTensor;
use devbay_core::plan::section::Shaped;
use devbay_core::tensor::{Bytes, DType, Tensor, TensorType};
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensorVersioned};
use dlpark::metadata::Dynamic;
use dlpark::{DlpackFlags, Managed, ManagedTensorBase, versioned};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// DLPack's structs and their owners.
pub use dlpark;

/// A tensor on a device, or in host memory. Shared by reference; its content does not change.
#[derive(Clone)]
pub struct DeviceTensor(RunTensor);

/// Memory of another owner that the host can read.
struct Lent {
    start: *const u8,
    len: usize,
    #[expect(dead_code, reason = "its drop gives the memory back")]
    owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: the memory is only read, and the lender keeps it alive until `owner` is dropped.
unsafe impl Send for Lent {}
// SAFETY: shared access only reads the memory, which the lender keeps alive and unwritten until `owner` is dropped.
unsafe impl Sync for Lent {}

impl Bytes for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes at `start` that the lender keeps alive and unwritten until `owner`, which `self` holds, is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidArgument, text)
}

/// Returns a type and its size in bytes.
fn shaped(dtype: DType, shape: &[usize]) -> Result<Shaped> {
    let too_large = || invalid(format!("a tensor {} is larger than memory", TensorType::new(dtype, shape)));
    Shaped::new(dtype, shape).ok_or_else(too_large)
}

impl DeviceTensor {
    /// Copies a tensor to a device; a device that works in host memory shares the tensor.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub fn new(tensor: &Tensor, device: &Arc<Device>) -> Result<Self> {
        let mut value = Self::on_host(tensor)?.0;
        value.reference(device)?;
        Ok(Self(value))
    }

    /// Makes a tensor that shares host memory.
    ///
    /// # Errors
    /// None for a valid tensor.
    pub fn on_host(tensor: &Tensor) -> Result<Self> {
        Self::of_host(tensor.clone())
    }

    /// Makes a tensor of host memory. If nothing else shares the memory, [`DeviceTensor::into_dlpack`] gives it away writable.
    ///
    /// # Errors
    /// As [`DeviceTensor::on_host`].
    pub fn of_host(tensor: Tensor) -> Result<Self> {
        let ty = tensor.tensor_type();
        RunTensor::host(tensor)
            .map(Self)
            .ok_or_else(|| invalid(format!("a tensor {ty} is larger than memory")))
    }

    pub(crate) fn of(value: RunTensor) -> Self {
        Self(value)
    }

    pub(crate) fn value(&self) -> &RunTensor {
        &self.0
    }

    /// Returns the element type.
    pub fn dtype(&self) -> DType {
        self.0.ty.dtype
    }

    /// Returns the extents, outermost first.
    pub fn shape(&self) -> &[usize] {
        &self.0.ty.shape
    }

    /// Returns the device whose memory holds it; None for host memory.
    pub fn device(&self) -> Option<&Arc<Device>> {
        self.0.buffer().map(|buffer| buffer.device())
    }

    /// Returns the tensor itself if it is in host memory; None if it is on a device.
    pub fn as_host(&self) -> Option<&Tensor> {
        self.0.as_host()
    }

    /// Returns the content in host memory, copied if it is on a device.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub fn to_tensor(&self) -> Result<Tensor> {
        self.0.to_tensor()
    }

    /// Returns the native name of its first byte in the device's API: the address for CUDA and host memory.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin does not hand out native memory.
    pub fn native(&self) -> Result<u64> {
        match (self.0.buffer(), self.0.as_host()) {
            (Some(buffer), _) => buffer.native(),
            (None, Some(tensor)) => Ok(tensor.bytes().as_ptr().expose_provenance() as u64),
            (None, None) => Err(Error::new(ErrorKind::Internal, "a tensor that is nowhere")),
        }
    }

    /// Wraps a dense, row-major tensor in a device's memory that another owner allocated, by its native name. Drops `owner`
    /// after the last use of the memory.
    ///
    /// # Safety
    /// At `native` is a tensor of this type in the memory of `device`. It stays allocated and unwritten until `owner` is
    /// dropped. Earlier writes are complete, or precede the point that runs are told to wait for.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin does not wrap native memory, [`ErrorKind::InvalidArgument`] if it can
    /// tell that the memory is not the device's, or not aligned as its kernels need it.
    pub unsafe fn from_native(
        device: &Arc<Device>,
        dtype: DType,
        shape: &[usize],
        native: u64,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self> {
        let ty = shaped(dtype, shape)?;
        if ty.size == 0 {
            return Self::on_host(&Tensor::zeros(dtype, shape)?);
        }
        // SAFETY: `native` names `ty.size` bytes of `device` that stay allocated and unwritten until `owner` is dropped
        // (`# Safety`).
        let buffer = unsafe { device.import(native, ty.size, owner) }?;
        Ok(Self(RunTensor::device(ty, buffer)))
    }

    /// Takes a DLPack tensor, versioned or not, and shares its memory: host memory with any device, other memory with the
    /// device that DLPack names. Calls its deleter after the last use, also on an error.
    ///
    /// # Safety
    /// The tensor describes its memory truly. The memory stays unwritten until the deleter is called. Earlier writes are
    /// complete, or precede the point that runs are told to wait for.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a tensor that is not dense and row-major, is on another device, or breaks
    /// DLPack's rules; as [`DeviceTensor::from_native`].
    pub unsafe fn from_dlpack<M>(tensor: Managed<M>, device: &Arc<Device>) -> Result<Self>
    where
        M: ManagedTensorBase + 'static,
    {
        let view = tensor.validate().map_err(|e| invalid(format!("the DLPack tensor is broken: {e}")))?;
        let shape: Vec<usize> = view.shape().iter().map(|&extent| extent as usize).collect();
        let DLDataType { code, bits, lanes } = view.dtype();
        let dtype = DType { code: code.0, bits, lanes };
        let words = TensorType::new(dtype, &shape);
        if lanes != 1 || tensor.flags().contains(DlpackFlags::IS_SUBBYTE_TYPE_PADDED) {
            return Err(invalid(format!("the DLPack tensor {words} has vectors or padded elements")));
        }
        if !view.is_compact().unwrap_or(false) {
            return Err(invalid(format!("the DLPack tensor {words} is not dense and row-major")));
        }
        let DLDevice { device_type, device_id } = view.device();
        let native = (view.data_ptr().expose_provenance() as u64).wrapping_add(view.byte_offset());
        let size = shaped(dtype, &shape)?.size;
        if size == 0 {
            return Self::on_host(&Tensor::zeros(dtype, &shape)?);
        }
        if view.data_ptr().is_null() {
            return Err(invalid(format!("the DLPack tensor is broken: {words} at no address")));
        }
        if matches!(device_type, DLDeviceType::CPU | DLDeviceType::CUDAHOST) {
            let start = std::ptr::with_exposed_provenance(native as usize);
            let lent = Lent { start, len: size, owner: Box::new(tensor) };
            return Self::on_host(&Tensor::from_storage(dtype, &shape, Arc::new(lent), 0, size)?);
        }
        let own = device.dlpack_device()?;
        if own != (device_type.0 as i32, device_id) {
            let text = format!(
                "the DLPack tensor is on device {device_id} of type {}, {} is device {} of type {}",
                device_type.0,
                device.name(),
                own.1,
                own.0
            );
            return Err(invalid(text));
        }
        // SAFETY: the caller vouches for the tensor's description and unwritten memory (`# Safety`); `tensor` frees it when
        // dropped.
        unsafe { Self::from_native(device, dtype, &shape, native, Box::new(tensor)) }
    }

    /// Returns the device as DLPack names it.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if DLPack has no name for it.
    pub fn dlpack_device(&self) -> Result<DLDevice> {
        let (device_type, device_id) = match self.device() {
            Some(device) => device.dlpack_device()?,
            None => (DLDeviceType::CPU.0 as i32, 0),
        };
        Ok(DLDevice { device_type: DLDeviceType(device_type as u32), device_id })
    }

    /// Converts it to a DLPack tensor without a copy. The memory stays until that tensor is dropped or its deleter called.
    /// The tensor is read-only if anything else uses the memory.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin does not hand out native memory, or DLPack has no name for the device.
    pub fn into_dlpack(self) -> Result<versioned::Dlpack> {
        let native = self.native()?;
        let device = self.dlpack_device()?;
        // The memory is exclusive if its buffer or storage has one owner and devbay allocated it.
        let own_host = self.0.as_host().and_then(Tensor::start_mut);
        let is_own = own_host.is_some()
            || self.0.buffer().is_some_and(|buffer| Arc::strong_count(buffer) == 1 && !buffer.is_imported());
        let DType { code, bits, lanes } = self.dtype();
        let size = self.0.ty.size;
        let shape: Vec<i64> = self.shape().iter().map(|&extent| extent as i64).collect();
        let layout = Dynamic::compact(shape);
        let mut tensor = layout
            .initialize_as::<DLManagedTensorVersioned>(Box::new(self))
            .map_err(|e| invalid(format!("DLPack cannot have this tensor: {e}")))?;
        // DLPack's data of an empty tensor is NULL.
        let data: *mut c_void = match (size, own_host) {
            (0, _) => std::ptr::null_mut(),
            (_, Some(start)) => start.as_ptr().cast(),
            _ => std::ptr::with_exposed_provenance_mut(native as usize),
        };
        tensor.set_data(data).set_device(device);
        tensor.set_dtype(DLDataType { code: DLDataTypeCode(code), bits, lanes });
        if !is_own {
            let set = tensor.set_flags(DlpackFlags::READ_ONLY);
            set.map_err(|e| invalid(format!("DLPack's flags: {e}")))?;
        }
        // SAFETY: the memory is the tensor's, which the context keeps; shape and strides are its own; the flags say that
        // others read the memory if they do.
        Ok(unsafe { tensor.finish() })
    }
}

/// A stream of an application in the device's native API, such as CUDA's `cudaStream_t`: runs wait for work enqueued there.
pub struct AppStream(Stream);

impl AppStream {
    /// Wraps a native stream; NULL is CUDA's default one.
    ///
    /// # Safety
    /// `native` is a stream of the device's native API, and outlives the result.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the device has no native streams; other errors of the plugin.
    pub unsafe fn wrap(device: &Arc<Device>, native: *mut c_void) -> Result<Self> {
        // SAFETY: `native` is a stream of the device's native API and outlives the result (`# Safety`).
        unsafe { device.import_stream(native) }.map(Self)
    }

    /// Returns a point after all work enqueued on the native stream so far.
    ///
    /// # Errors
    /// The stream's failure.
    pub fn point(&mut self) -> Result<Point<'_>> {
        let value = self.0.signal()?;
        Ok(Point { stream: &self.0, value })
    }
}
