//! The table of the extension that imports and exports native memory and streams, built from a device's
//! functions.

use super::export::{StreamBox, deref, give_buffer, give_stream, refused, report};
use super::memory::{BufferBox, ImportRequest, Native};
use super::{Device, Error, Result};
use crate::abi::{
    self, Allocation, DEVBAY_NATIVE_ADDRESS, ErrorDetail, Growable, ImportDesc, InteropTable, NativeHandle,
    Status, read_struct, write_struct,
};
use std::marker::PhantomData;

/// A device's table.
pub(super) struct Interop<D>(PhantomData<D>);

impl<D: Device> Interop<D> {
    pub(super) const TABLE: &'static InteropTable = &InteropTable {
        struct_size: size_of::<InteropTable>() as u32,
        reserved: 0,
        dlpack_device: Some(dlpack_device::<D>),
        buffer_import: Some(buffer_import::<D>),
        buffer_export: Some(buffer_export::<D>),
        stream_import: Some(stream_import::<D>),
        stream_export: Some(stream_export::<D>),
    };
}

/// Writes a result to the host's `out`.
///
/// # Safety
/// `out` is NULL or a place for one `T`.
unsafe fn put<T>(out: *mut T, value: T) -> Result<()> {
    if out.is_null() {
        return Err(Error::invalid("the place for the result is NULL"));
    }
    // SAFETY: `out` is not NULL (checked), so it is a place for one `T` (# Safety).
    unsafe { out.write(value) };
    Ok(())
}

/// Reads a handle from the host.
///
/// # Safety
/// `native` is NULL or the host's struct, alive for the call.
unsafe fn handle(native: *const NativeHandle) -> Result<Native> {
    // SAFETY: `native` is NULL or the host's struct (# Safety).
    let native = unsafe { read_struct(native) }.map_err(refused)?;
    Ok(Native { kind: native.kind, value: native.value, aux: native.aux })
}

/// Writes a handle to the host's struct.
///
/// # Safety
/// `out` is NULL or the host's struct, alive for the call.
unsafe fn put_handle(out: *mut NativeHandle, native: Native) -> Result<()> {
    let Native { kind, value, aux } = native;
    // SAFETY: `out` is NULL or the host's struct (# Safety).
    unsafe { write_struct(out, &NativeHandle { kind, value, aux, ..NativeHandle::empty() }) }.map_err(refused)
}

/// Returns the space's position, if the device has it.
fn space<D: Device>(device: &D, space_idx: u32) -> Result<usize> {
    let n_spaces = device.describe().spaces.len();
    match space_idx as usize {
        idx if idx < n_spaces => Ok(idx),
        idx => Err(Error::invalid(format!("memory space {idx} of {n_spaces}"))),
    }
}

unsafe extern "C" fn dlpack_device<D: Device>(
    device: *mut abi::Device,
    space_idx: u32,
    out_type: *mut i32,
    out_id: *mut i32,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        let (device_type, device_id) = device.dlpack_device(space(device, space_idx)?)?;
        // SAFETY: `out_type` and `out_id` are NULL or the host's places for one number each.
        unsafe { put(out_type, device_type).and_then(|()| put(out_id, device_id)) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn buffer_import<D: Device>(
    device: *mut abi::Device,
    desc: *const ImportDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        let space_idx = space(device, desc.space_idx)?;
        let align = device.describe().spaces[space_idx].bind_align.max(1);
        // SAFETY: B4: `desc.native` is NULL or the host's struct, of the size that it says and alive for the call.
        let native = unsafe { handle(desc.native) }?;
        let is_address = native.kind == DEVBAY_NATIVE_ADDRESS;
        if is_address && native.value == 0 || desc.size_bytes > isize::MAX as u64 {
            return Err(Error::invalid(format!(
                "memory of {} bytes at {:#x}",
                desc.size_bytes, native.value
            )));
        }
        if is_address && !native.value.is_multiple_of(align) {
            let text = format!("memory at {:#x}, which is no multiple of {align}", native.value);
            return Err(Error::invalid(text));
        }
        let request = ImportRequest { space_idx, native, size_bytes: desc.size_bytes as usize };
        let imported = device.import(&request)?;
        // SAFETY: B4: `out` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { give_buffer(imported, out) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn buffer_export<D: Device>(
    buffer: *mut abi::Buffer,
    out_native: *mut NativeHandle,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let buffer: &BufferBox<D::Buffer> = unsafe { deref(buffer, "the buffer") }?;
        let native = D::export(&buffer.buffer)?;
        // SAFETY: B4: `out_native` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { put_handle(out_native, native) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn stream_import<D: Device>(
    device: *mut abi::Device,
    native: *const NativeHandle,
    out: *mut *mut abi::Stream,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `native` is NULL or the host's struct, of the size that it says and alive for the call.
        let stream = device.import_stream(unsafe { handle(native) }?)?;
        // SAFETY: `out` is NULL or the host's place for one handle, as the header says of `stream_import`.
        unsafe { give_stream(stream, out) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

unsafe extern "C" fn stream_export<D: Device>(
    stream: *mut abi::Stream,
    out_native: *mut NativeHandle,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let stream: &StreamBox<D::Stream> = unsafe { deref(stream, "the stream") }?;
        let native = D::export_stream(stream.inner())?;
        // SAFETY: B4: `out_native` is NULL or the host's struct, of the size that it says and alive for the call.
        unsafe { put_handle(out_native, native) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}
