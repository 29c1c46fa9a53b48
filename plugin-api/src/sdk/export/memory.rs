//! Buffers: memory of a space, whose limits are checked before the plugin is called.

use super::call::{deref, free, refused, report};
use crate::abi;
use crate::abi::*;
use crate::sdk::Device;
use crate::sdk::error::{Error, Result};
use crate::sdk::memory::{AllocRequest, Allocated, BufferBox};
use crate::sdk::view::TensorView;

pub(super) unsafe extern "C" fn buffer_alloc<D: Device>(
    device: *mut abi::Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        let spaces = &device.describe().spaces;
        let space = spaces
            .get(desc.space_idx as usize)
            .ok_or_else(|| Error::invalid(format!("memory space {} of {}", desc.space_idx, spaces.len())))?;
        if !desc.align.is_power_of_two() {
            return Err(Error::invalid(format!("an alignment of {} is no power of two", desc.align)));
        }
        let limit = [space.alloc_max, space.bytes_total, isize::MAX as u64];
        let limit = limit.into_iter().filter(|&limit| limit > 0).min().unwrap_or(u64::MAX);
        if desc.size_bytes > limit {
            return Err(Error::out_of_memory(format!(
                "{} bytes, the space gives at most {limit} at once",
                desc.size_bytes
            )));
        }
        let tensor = if desc.tensor.is_null() {
            None
        } else {
            // SAFETY: B4: `desc.tensor` is NULL or the host's struct, of the size that it says and alive for the call.
            let raw = unsafe { read_struct(desc.tensor) }.map_err(refused)?;
            // SAFETY: `raw` was read from the host's struct, whose arrays live for the call.
            Some(unsafe { TensorView::new(raw) }?)
        };
        let allocated = device.alloc(&AllocRequest {
            space_idx: desc.space_idx as usize,
            size_bytes: desc.size_bytes as usize,
            align: desc.align.max(space.alloc_align) as usize,
            usage: desc.usage,
            tensor,
        })?;
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { give_buffer(allocated, out) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

/// Transfers a buffer to the host.
///
/// # Safety
/// `out` is NULL or the host's struct of the size that it says (B4).
pub(in crate::sdk) unsafe fn give_buffer<B>(allocated: Allocated<B>, out: *mut Allocation) -> Result<()> {
    let size_bytes = allocated.size_bytes as u64;
    let result = Allocation {
        buffer: Box::into_raw(Box::new(BufferBox { buffer: allocated.buffer, size_bytes })).cast(),
        base: allocated.base,
        size_bytes,
        ..Allocation::empty()
    };
    // SAFETY: `out` is NULL or the host's struct (# Safety).
    unsafe { write_struct(out, &result) }.map_err(|e| {
        // SAFETY: the handle came from `Box::into_raw` above, and the host was not given it.
        unsafe { free::<BufferBox<B>, _>(result.buffer) };
        refused(e)
    })
}

pub(super) unsafe extern "C" fn buffer_free<D: Device>(buffer: *mut abi::Buffer) {
    // SAFETY: `buffer_alloc` or `buffer_import` made the handle, and the host gives it back once (B9).
    unsafe { free::<BufferBox<D::Buffer>, _>(buffer) };
}

pub(super) unsafe extern "C" fn memory_info<D: Device>(
    device: *mut abi::Device,
    space_idx: u32,
    out: *mut MemoryInfo,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        let memory = device.memory_info(space_idx as usize)?;
        let result = MemoryInfo {
            bytes_in_use: memory.bytes_in_use,
            bytes_available: memory.bytes_available,
            ..MemoryInfo::empty()
        };
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { write_struct(out, &result) }.map_err(refused)
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}
