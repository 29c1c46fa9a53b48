//! Allocations.

use super::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::TensorType;
use devbay_plugin_api::abi::{self, BufferRef};
use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An allocation; freed when dropped.
pub struct Buffer {
    pub(super) device: Arc<Device>,
    pub(super) handle: NonNull<abi::Buffer>,
    pub(super) base: u64,
    pub(super) size: usize,
    /// The type of its content, if the space is typed.
    pub(super) tensor: Option<TensorType>,
    /// Owner of an imported buffer's memory; dropped after the buffer.
    pub(super) owner: Option<Box<dyn Any + Send + Sync>>,
}

// SAFETY: the handle is used as the plugin's threading class says; streams order the accesses to the memory.
unsafe impl Send for Buffer {}
// SAFETY: no method changes the handle, and streams order the accesses to the memory.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Returns the one type of tensor that it holds, where the space is typed.
    pub fn tensor(&self) -> Option<&TensorType> {
        self.tensor.as_ref()
    }

    /// Returns true if the memory is imported: its owner is not the plugin.
    pub fn is_imported(&self) -> bool {
        self.owner.is_some()
    }

    /// Writes host memory that the host allocated and that is not in use yet.
    ///
    /// # Errors
    /// [`ErrorKind::PluginBroken`] if the plugin gave it no address, though it says that the host sees it.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<()> {
        if self.base == 0 || bytes.len() > self.size {
            let text = "memory that the host sees has no address, or not enough bytes";
            return Err(Error::new(ErrorKind::PluginBroken, text).on_device(self.device.name()));
        }
        let to = std::ptr::with_exposed_provenance_mut::<u8>(self.base as usize);
        // SAFETY: the host sees the memory (a space that is host-visible has addresses of the host's), it has as many
        // bytes, and no work was enqueued that uses it.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    /// A reference to a range of it.
    ///
    /// # Panics
    /// If the range is not within the buffer: a bug in the planner.
    pub fn reference(&self, offset: usize, length: usize) -> BufferRef {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.size), "a range of a buffer");
        BufferRef {
            buffer: self.handle.as_ptr(),
            addr: if self.base == 0 { 0 } else { self.base + offset as u64 },
            offset: offset as u64,
            length: length as u64,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if self.owner.is_none() {
            self.device.bytes_in_use.fetch_sub(self.size as u64, Ordering::Relaxed);
        }
        self.device.plugin.release(|table| {
            if let Some(free) = table.buffer_free {
                // SAFETY: the plugin made the buffer, which is freed once, here; its users have waited for their points
                // (B9).
                unsafe { free(self.handle.as_ptr()) };
            }
        });
    }
}
