//! Values: what models take and return. The only kind so far is a tensor.

use crate::arguments::{devbay_dtype, dtype, dtype_to_c, extents, invalid};
use crate::errors::{attempt, devbay_error};
use crate::handles::{self, give, give_new, object};
use crate::runtime::{Named, devbay_device};
use devbay_host::internals::core::tensor::{Bytes, bytes_of, n_elements};
use devbay_host::internals::device_tensor::dlpark::Managed;
use devbay_host::internals::device_tensor::dlpark::ffi::DLManagedTensorVersioned;
use devbay_host::{DType, DeviceTensor, Error, ErrorKind, Result, Tensor, TensorType};
use std::ffi::{CString, c_char, c_void};
use std::mem::MaybeUninit;
use std::ptr::{NonNull, null};
use std::sync::Arc;

/// A value that a model takes or returns.
///
/// So far every value is a tensor. Later versions may have other kinds: ask devbay_value_kind before anything else about a value
/// that the program did not make.
pub struct devbay_value;

/// Kind of a value: one of DEVBAY_VALUE_*.
pub type devbay_value_kind_t = u32;

/// A tensor: dense, row-major, in host memory or in a device's.
pub const DEVBAY_VALUE_TENSOR: devbay_value_kind_t = 1;

/// With devbay_value_wrap: runs may write the memory.
pub const DEVBAY_WRITABLE: u32 = 1;

/// Called once when devbay does not use memory of the caller's any more.
///
/// Threads: any. It must not call devbay.
pub type devbay_release_fn = Option<extern "C" fn(user_data: *mut c_void)>;

/// A value.
pub struct Value {
    tensor: DeviceTensor,
    extents: Box<[i64]>,
    device: Option<CString>,
}

object!(Value, devbay_value, "value");

/// Memory of the caller's.
struct Lent {
    start: *mut u8,
    len: usize,
    is_writable: bool,
    release: devbay_release_fn,
    user_data: *mut c_void,
}

// SAFETY: the header says that the memory lives until the release, and is written by nothing else while a run uses it.
unsafe impl Send for Lent {}
// SAFETY: runs of several threads read it at once; none that writes it runs beside them (the header).
unsafe impl Sync for Lent {}

impl Bytes for Lent {
    fn bytes(&self) -> &[u8] {
        // SAFETY: `len` bytes live at `start` until the release, which is at the drop (the header's devbay_value_wrap).
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }

    fn start_mut(&self) -> Option<NonNull<u8>> {
        NonNull::new(self.start).filter(|_| self.is_writable)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(release) = self.release {
            release(self.user_data);
        }
    }
}

impl Value {
    pub fn new(tensor: DeviceTensor) -> Self {
        let extents = tensor.shape().iter().map(|&extent| extent as i64).collect();
        let device = tensor.device().map(|device| crate::arguments::c_text(device.name()));
        Self { tensor, extents, device }
    }

    pub fn of_host(tensor: Tensor) -> Result<Self> {
        DeviceTensor::of_host(tensor).map(Self::new)
    }

    /// Returns the tensor.
    pub fn tensor(&self) -> &DeviceTensor {
        &self.tensor
    }

    /// Returns the tensor if it is in host memory.
    pub fn host(&self) -> Option<&Tensor> {
        self.tensor.as_host()
    }

    /// Returns the memory of the value, for writing.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it is on a device, read-only, or shared by something else, such as a run that was started.
    #[inline]
    pub fn memory_mut(&self) -> Result<(NonNull<u8>, usize)> {
        let tensor = self.host().ok_or_else(|| self.not_writable("is on a device"))?;
        let start = tensor.start_mut().ok_or_else(|| self.not_writable("is read-only, or shared"))?;
        Ok((start, tensor.bytes().len()))
    }

    #[cold]
    fn not_writable(&self, reason: &str) -> Error {
        invalid(format!("the memory of the value {} {reason}", self.words()))
    }

    fn words(&self) -> TensorType {
        TensorType::new(self.tensor.dtype(), self.tensor.shape())
    }
}

/// Returns the size of a tensor in bytes.
fn size(dtype: DType, shape: &[usize]) -> Result<usize> {
    n_elements(shape).and_then(|n| bytes_of(dtype, n)).filter(|&size| size <= isize::MAX as usize).ok_or_else(
        || {
            let text = format!("a tensor {} is larger than memory", TensorType::new(dtype, shape));
            Error::new(ErrorKind::OutOfMemory, text)
        },
    )
}

/// Makes a tensor in memory of devbay's, filled with zeros. The caller destroys it.
///
/// `type` is one of DEVBAY_DTYPE_*, or any other type of devbay's; `extents` are outermost first.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for a type or extent that cannot be; DEVBAY_ERROR_OUT_OF_MEMORY.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_value_create(
    r#type: devbay_dtype,
    extents: *const i64,
    rank: usize,
    value: Option<&mut MaybeUninit<*mut devbay_value>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Value>(value, || {
            // SAFETY: `rank` extents live there until the call returns (the header's preamble).
            let shape = unsafe { self::extents(extents, rank) }?;
            Value::of_host(Tensor::zeros(dtype(r#type)?, &shape)?)
        })
    })
}

/// Makes a tensor of the caller's memory, without a copy. The caller destroys it.
///
/// `size` bytes at `data` are the tensor's elements, dense and row-major, aligned to the element. With the flag DEVBAY_WRITABLE the
/// value may be an output of runs. `release` may be NULL; else it is called with `user_data` when devbay does not use the memory any
/// more, also if this call fails. Without it, the memory must live until the value is destroyed and the runs that use it have
/// ended.
///
/// Threads: the caller does not write the memory while a run reads it, and neither reads nor writes it while a run writes it.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for a size that is not the tensor's, and for memory that is not aligned.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_value_wrap(
    r#type: devbay_dtype,
    extents: *const i64,
    rank: usize,
    data: *mut c_void,
    size: usize,
    flags: u32,
    release: devbay_release_fn,
    user_data: *mut c_void,
    value: Option<&mut MaybeUninit<*mut devbay_value>>,
) -> *mut devbay_error {
    attempt(|| {
        let (start, is_writable) = (data.cast::<u8>(), flags & DEVBAY_WRITABLE != 0);
        // From here on it is released, whatever happens.
        let mut lent = Lent { start, len: 0, is_writable, release, user_data };
        give_new::<Value>(value, || {
            let dtype = dtype(r#type)?;
            // SAFETY: `rank` extents live there until the call returns (the header's preamble).
            let shape = unsafe { self::extents(extents, rank) }?;
            if flags & !DEVBAY_WRITABLE != 0 {
                return Err(invalid(format!("there are no flags {flags:#x}")));
            }
            let (needed, ty) = (self::size(dtype, &shape)?, TensorType::new(dtype, &shape));
            if size != needed {
                return Err(invalid(format!("a tensor {ty} has {needed} bytes, found {size}")));
            }
            if size == 0 {
                return Value::of_host(Tensor::zeros(dtype, &shape)?);
            }
            let align = usize::from(dtype.bits).div_ceil(8).next_power_of_two().min(16);
            if start.is_null() || !start.addr().is_multiple_of(align) {
                return Err(invalid(format!("a tensor {ty} is aligned to {align} bytes, found {start:?}")));
            }
            lent.len = size;
            Value::of_host(Tensor::from_storage(dtype, &shape, Arc::new(lent), 0, size)?)
        })
    })
}

/// Returns the kind of a value, one of DEVBAY_VALUE_*; 0 for a value that is gone.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_kind(value: *const devbay_value) -> devbay_value_kind_t {
    handles::get::<Value>(value).map_or(0, |_| DEVBAY_VALUE_TENSOR)
}

/// Gives a tensor's type, extents and rank. Places may be NULL. The extents live as long as the value.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_type(
    value: *const devbay_value,
    r#type: Option<&mut MaybeUninit<devbay_dtype>>,
    extents: Option<&mut MaybeUninit<*const i64>>,
    rank: Option<&mut MaybeUninit<usize>>,
) -> *mut devbay_error {
    attempt(|| {
        let value = handles::get::<Value>(value)?;
        r#type.map(|out: &mut MaybeUninit<_>| out.write(dtype_to_c(value.tensor.dtype())));
        extents.map(|out: &mut MaybeUninit<_>| out.write(value.extents.as_ptr()));
        rank.map(|out: &mut MaybeUninit<_>| out.write(value.extents.len()));
        Ok(())
    })
}

/// Returns the name of the device whose memory has the value; NULL for host memory. It lives as long as the value.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_device(value: *const devbay_value) -> *const c_char {
    let found = handles::get::<Value>(value).ok();
    found.and_then(|value| value.device.as_ref().map(|name| name.as_ptr())).unwrap_or(null())
}

/// Gives a tensor's content in host memory, and its size in bytes, for reading. `size` may be NULL. The memory lives as long as the
/// value.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for a value on a device; devbay_value_to_host copies it.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_data(
    value: *const devbay_value,
    data: Option<&mut MaybeUninit<*const c_void>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> *mut devbay_error {
    attempt(|| {
        let value = handles::get::<Value>(value)?;
        let tensor = value.host().ok_or_else(|| {
            invalid(format!("the value {} is on a device; copy it with devbay_value_to_host", value.words()))
        })?;
        size.map(|out: &mut MaybeUninit<_>| out.write(tensor.bytes().len()));
        give(data, tensor.bytes().as_ptr().cast())
    })
}

/// Gives a tensor's content as devbay_value_data does, for writing. The same rules about threads hold as for devbay_value_wrap.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT also for memory that is read-only, or that something else uses, such as another value or a
/// run that was started.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_data_mut(
    value: *mut devbay_value,
    data: Option<&mut MaybeUninit<*mut c_void>>,
    size: Option<&mut MaybeUninit<usize>>,
) -> *mut devbay_error {
    attempt(|| {
        let (start, len) = handles::get::<Value>(value)?.memory_mut()?;
        size.map(|out: &mut MaybeUninit<_>| out.write(len));
        give(data, start.as_ptr().cast())
    })
}

/// Makes a value in host memory with the content of another: a copy if that is on a device, else one that shares its memory.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_to_host(
    value: *const devbay_value,
    copy: Option<&mut MaybeUninit<*mut devbay_value>>,
) -> *mut devbay_error {
    attempt(|| give_new::<Value>(copy, || Value::of_host(handles::get::<Value>(value)?.tensor.to_tensor()?)))
}

/// Makes a value on a device with the content of another: a copy, unless the device works in the memory that the other is in.
///
/// Errors: DEVBAY_ERROR_OUT_OF_MEMORY; the plugin's error for the copy.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_to_device(
    value: *const devbay_value,
    device: *const devbay_device,
    copy: Option<&mut MaybeUninit<*mut devbay_value>>,
) -> *mut devbay_error {
    attempt(|| {
        give_new::<Value>(copy, || {
            let (value, named) = (handles::get::<Value>(value)?, handles::get::<Named>(device)?);
            DeviceTensor::new(&value.tensor.to_tensor()?, &named.device).map(Value::new)
        })
    })
}

/// Makes a value of a DLPack tensor, without a copy: host memory for any device, other memory for the device that DLPack names.
/// The tensor's deleter is called after the last use, also if this call fails.
///
/// `device` is the device that the value is for. The tensor's earlier writes are complete.
///
/// Errors: DEVBAY_ERROR_INVALID_ARGUMENT for a tensor that is not dense and row-major, is on another device, or breaks DLPack's
/// rules; DEVBAY_ERROR_UNSUPPORTED_OP if the device's plugin does not take memory of others.
///
/// Since 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn devbay_value_from_dlpack(
    device: *const devbay_device,
    tensor: *mut DLManagedTensorVersioned,
    value: Option<&mut MaybeUninit<*mut devbay_value>>,
) -> *mut devbay_error {
    attempt(|| {
        // SAFETY: the header says that the caller gives the tensor away, and that it keeps DLPack's rules.
        let tensor = unsafe { Managed::<DLManagedTensorVersioned>::from_raw(tensor) }
            .map_err(|e| invalid(format!("the DLPack tensor cannot be taken: {e}")))?;
        give_new::<Value>(value, || {
            let named = handles::get::<Named>(device)?;
            // SAFETY: as the header says: described truly, with earlier writes complete, and unwritten while devbay uses it.
            unsafe { DeviceTensor::from_dlpack(tensor, &named.device) }.map(Value::new)
        })
    })
}

/// Makes a DLPack tensor that shares a value's memory, to be freed by its deleter. The value may be destroyed before. The tensor is
/// read-only, since the value shares it.
///
/// Errors: DEVBAY_ERROR_UNSUPPORTED_OP if the device's plugin does not give its memory to others, or DLPack has no name for the
/// device.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_to_dlpack(
    value: *const devbay_value,
    tensor: Option<&mut MaybeUninit<*mut DLManagedTensorVersioned>>,
) -> *mut devbay_error {
    attempt(|| {
        let value = handles::get::<Value>(value)?;
        let out = tensor.ok_or_else(|| invalid("the place for the DLPack tensor is NULL"))?;
        out.write(value.tensor.clone().into_dlpack()?.into_raw());
        Ok(())
    })
}

/// Destroys a value. Runs that use its memory still end well. NULL is ignored.
///
/// Since 1.
#[unsafe(no_mangle)]
pub extern "C" fn devbay_value_destroy(value: *mut devbay_value) {
    handles::destroy::<Value>(value);
}
