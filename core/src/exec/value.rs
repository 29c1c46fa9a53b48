//! Values between the stages of a run: tensors in host memory or in a device's.

use crate::device::{Buffer, Device, REST_LIMIT, Stream, StreamUse, must_leak};
use crate::error::Result;
use crate::plan::memory::constants::{ConstantPool, host_reference};
use crate::plan::section::Shaped;
use crate::tensor::{AlignedBytes, Bytes, Tensor, TensorType};
use crate::trace::{self, What};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_USAGE_TRANSIENT};
use std::ptr::null_mut;
use std::sync::Arc;

/// A tensor of a run, shared by the stages that use it.
#[derive(Clone)]
pub struct RunTensor {
    /// Its type.
    pub ty: Shaped,
    content: Content,
}

/// Where its bytes are.
#[derive(Clone)]
enum Content {
    Host(Tensor),
    Device(Arc<Buffer>),
}

impl RunTensor {
    /// Returns a tensor in host memory; None if its size overflows, which a [`Tensor`]'s does not.
    pub fn host(tensor: Tensor) -> Option<Self> {
        let ty = Shaped::new(tensor.dtype(), tensor.shape())?;
        Some(Self { ty, content: Content::Host(tensor) })
    }

    /// Returns a tensor in a buffer of its own.
    pub fn device(ty: Shaped, buffer: Buffer) -> Self {
        Self { ty, content: Content::Device(Arc::new(buffer)) }
    }

    /// Memory for a tensor, content undefined.
    ///
    /// # Errors
    /// Out of memory.
    pub fn allocate(ty: Shaped, device: &Arc<Device>) -> Result<Self> {
        let buffer = allocate(&ty, device)?;
        Ok(Self::device(ty, buffer))
    }

    /// Returns the buffer that it is in, if it is in a device's.
    pub fn buffer(&self) -> Option<&Arc<Buffer>> {
        match &self.content {
            Content::Host(_) => None,
            Content::Device(buffer) => Some(buffer),
        }
    }

    /// Returns the tensor that it is, if it is in host memory.
    pub fn as_host(&self) -> Option<&Tensor> {
        match &self.content {
            Content::Host(tensor) => Some(tensor),
            Content::Device(_) => None,
        }
    }

    /// Returns the same bytes with another shape of as many.
    pub fn with_type(&self, ty: Shaped) -> Self {
        debug_assert_eq!(self.ty.size, ty.size);
        let content = match &self.content {
            // The extents of a tensor in host memory are its own; equal sizes make this succeed.
            Content::Host(tensor) => {
                Content::Host(tensor.reshaped(&ty.shape).unwrap_or_else(|_| tensor.clone()))
            }
            Content::Device(buffer) => Content::Device(Arc::clone(buffer)),
        };
        Self { ty, content }
    }

    /// Returns the first bytes, as many as a type needs; the type is no larger.
    ///
    /// # Errors
    /// For host memory, if its size does not fit after all.
    pub fn beginning(&self, ty: Shaped) -> Result<Self> {
        let content = match &self.content {
            Content::Host(tensor) => {
                Content::Host(Tensor::from_bytes(ty.dtype, &ty.shape, &tensor.bytes()[..ty.size])?)
            }
            Content::Device(buffer) => Content::Device(Arc::clone(buffer)),
        };
        Ok(Self { ty, content })
    }

    /// The reference that a launch on `device` is given; host memory is uploaded first where references
    /// cannot name it, and then kept in `self`.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub fn reference(&mut self, device: &Arc<Device>) -> Result<BufferRef> {
        if let Content::Device(buffer) = &self.content
            && !Arc::ptr_eq(buffer.device(), device)
        {
            // Handles never leave their plugin (B10): passed by address if both know it, else through the host.
            if buffer.is_visible() && device.about().host_refs {
                let own = buffer.reference(0, self.ty.size);
                return Ok(BufferRef { buffer: null_mut(), offset: 0, ..own });
            }
            self.content = Content::Host(self.to_tensor()?);
        }
        if let Content::Host(tensor) = &self.content {
            if device.about().host_refs {
                return Ok(host_reference(tensor.bytes()));
            }
            let _traced = trace::begin(What::CopyIn { bytes: self.ty.size as u64 });
            let buffer = allocate(&self.ty, device)?;
            let mut stream = device.create_stream_for("upload", StreamUse::COPIES)?;
            let dst = buffer.reference(0, self.ty.size);
            // SAFETY: the tensor is kept until `finish` has waited for the copy, or is leaked; dropping the
            // stream on another error waits too.
            let copied = unsafe { stream.copy_in(tensor.bytes().as_ptr(), dst) };
            if let Err(error) = copied.and_then(|()| stream.finish(REST_LIMIT)) {
                if must_leak(&error) {
                    std::mem::forget((stream, tensor.clone()));
                }
                return Err(error);
            }
            self.content = Content::Device(Arc::new(buffer));
        }
        match &self.content {
            Content::Host(tensor) => Ok(host_reference(tensor.bytes())),
            Content::Device(buffer) => Ok(buffer.reference(0, self.ty.size)),
        }
    }

    /// Returns the buffer on a device that a program takes, whole and of the tensor's type. A value elsewhere, for
    /// example in the host's memory, is copied on the stream; the second result must then stay until the stream is at
    /// rest.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copies.
    ///
    /// # Safety
    /// 1. The caller keeps the second, if there is one, until the stream is at rest or destroyed, or leaks it.
    pub unsafe fn enqueue_upload(
        self,
        device: &Arc<Device>,
        stream: &mut Stream,
    ) -> Result<(Arc<Buffer>, Option<Self>)> {
        if let Content::Device(buffer) = &self.content
            && Arc::ptr_eq(buffer.device(), device)
            && buffer.tensor().is_none_or(|ty| self.ty.is_type(ty))
        {
            return Ok((Arc::clone(buffer), None));
        }
        let tensor = self.to_tensor()?;
        let _traced = trace::begin(What::CopyIn { bytes: self.ty.size as u64 });
        let buffer = device.alloc_tensor(&tensor.tensor_type(), DEVBAY_USAGE_TRANSIENT)?;
        let dst = buffer.reference(0, self.ty.size);
        // SAFETY: the caller keeps the tensor, which is given back with the buffer, until the stream is at rest (# Safety,
        // 1); after an error nothing was enqueued that reads it.
        unsafe { stream.copy_in(tensor.bytes().as_ptr(), dst) }?;
        let source = Self { ty: self.ty, content: Content::Host(tensor) };
        Ok((Arc::new(buffer), Some(source)))
    }

    /// Returns the content in host memory. No work that writes it is in flight.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub fn to_tensor(&self) -> Result<Tensor> {
        match &self.content {
            Content::Host(tensor) => Ok(tensor.clone()),
            Content::Device(buffer) => {
                let bytes = buffer.read(self.ty.size)?;
                Tensor::from_storage(self.ty.dtype, &self.ty.shape, Arc::new(bytes), 0, self.ty.size)
            }
        }
    }

    /// Copies the content into host memory of its size. No work that writes it is in flight.
    ///
    /// # Errors
    /// Errors that the plugin reports for the copy.
    pub fn read_into(&self, dst: &mut [u8]) -> Result<()> {
        match &self.content {
            Content::Host(tensor) => {
                dst.copy_from_slice(tensor.bytes());
                Ok(())
            }
            Content::Device(buffer) if buffer.is_visible() => {
                let _traced = trace::begin(What::CopyOut { bytes: dst.len() as u64 });
                // SAFETY: no work that writes the buffer is in flight, as this function says.
                unsafe { buffer.read_visible(dst) };
                Ok(())
            }
            Content::Device(buffer) => {
                dst.copy_from_slice(buffer.read(dst.len())?.bytes());
                Ok(())
            }
        }
    }

    /// Joins tensors of one type to one with a leading extent of their number.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copies.
    pub fn stack(ty: Shaped, parts: &mut [Self], device: &Arc<Device>) -> Result<Self> {
        if device.space().write_once {
            // One copy fills such a buffer: the tensors are joined before.
            let mut bytes = AlignedBytes::zeroed(ty.size)?;
            let mut rest = bytes.as_mut_slice();
            for part in parts {
                let (own, others) = rest.split_at_mut(part.ty.size);
                part.read_into(own)?;
                rest = others;
            }
            let tensor = Tensor::from_storage(ty.dtype, &ty.shape, Arc::new(bytes), 0, ty.size)?;
            return Ok(Self { ty, content: Content::Host(tensor) });
        }
        let stacked = Self::allocate(ty, device)?;
        let Content::Device(buffer) = &stacked.content else {
            return Ok(stacked);
        };
        let _traced = trace::begin(What::CopyWithin { bytes: stacked.ty.size as u64 });
        let mut stream = device.create_stream_for("stack", StreamUse::COPIES)?;
        let mut enqueue = |parts: &mut [Self]| {
            let mut offset = 0;
            for part in parts {
                let dst = buffer.reference(offset, part.ty.size);
                let src = part.reference(device)?;
                stream.copy_within(src, dst)?;
                offset += part.ty.size;
            }
            stream.finish(REST_LIMIT)
        };
        if let Err(error) = enqueue(parts) {
            if must_leak(&error) {
                std::mem::forget((stream, stacked, parts.to_vec()));
            }
            return Err(error);
        }
        Ok(stacked)
    }
}

/// Memory for a tensor, of its type where the space is typed.
fn allocate(ty: &Shaped, device: &Arc<Device>) -> Result<Buffer> {
    match device.space().typed {
        true => device.alloc_tensor(&TensorType::new(ty.dtype, &ty.shape), DEVBAY_USAGE_TRANSIENT),
        false => device.alloc(ty.size, DEVBAY_USAGE_TRANSIENT),
    }
}

/// A constant as a tensor of a run.
///
/// # Errors
/// As [`ConstantPool::place`].
pub(crate) fn constant(tensor: &Tensor, _pool: &ConstantPool) -> Result<RunTensor> {
    RunTensor::host(tensor.clone()).ok_or_else(|| {
        crate::error::Error::new(crate::error::ErrorKind::Internal, "a tensor whose size overflows")
    })
}
