//! Native memory and streams of a device, wrapped or handed out (B10, B15).

use super::{Buffer, Device, Stream};
use crate::error::{Error, ErrorKind, Phase, Result};
use devbay_plugin_api::abi::{
    Allocation, DEVBAY_NATIVE_ADDRESS, DEVBAY_NATIVE_CUDA_STREAM, Growable, ImportDesc, NativeHandle,
};
use std::any::Any;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::time::Duration;

impl Device {
    /// Returns DLPack's name for the device of its memory: `DLDevice`'s device_type and device_id.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin does not wrap native memory, or DLPack has no name for it.
    pub fn dlpack_device(&self) -> Result<(i32, i32)> {
        let (mut device_type, mut device_id) = (0, 0);
        let interop = self.plugin().interop();
        self.call(Phase::ExchangeMemory, |_, error| {
            let ask = interop.dlpack_device?;
            // SAFETY: the plugin's function with its own device; the places are ours for the call.
            Some(unsafe { ask(self.handle.as_ptr(), 0, &mut device_type, &mut device_id, error) })
        })?;
        Ok((device_type, device_id))
    }

    /// Makes a buffer of memory that other code allocated, from its address (DLPack's `data`). `owner` is dropped after
    /// the buffer.
    ///
    /// # Safety
    /// The memory has `size` bytes, is in the device's space of operands, stays until `owner` is dropped, and is not
    /// written by other code meanwhile.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the plugin does not wrap native memory; [`ErrorKind::InvalidArgument`] if it can tell
    /// that the memory is not its own or not aligned; else the plugin's error.
    pub unsafe fn import(
        self: &Arc<Self>,
        address: u64,
        size: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Buffer> {
        let native = NativeHandle { kind: DEVBAY_NATIVE_ADDRESS, value: address, ..NativeHandle::empty() };
        let desc =
            ImportDesc { space_idx: 0, native: &native, size_bytes: size as u64, ..ImportDesc::empty() };
        let mut out = Allocation::empty();
        let interop = self.plugin().interop();
        self.call(Phase::ExchangeMemory, |_, error| {
            let import = interop.buffer_import?;
            // SAFETY: the plugin's function with its own device; the structs are ours for the call.
            Some(unsafe { import(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let handle = NonNull::new(out.buffer)
            .ok_or_else(|| self.broken("buffer_import succeeded without a buffer (B9)"))?;
        Ok(Buffer {
            device: Arc::clone(self),
            handle,
            base: out.base,
            size,
            tensor: None,
            owner: Some(owner),
        })
    }

    /// Makes a stream that works on a native one, which NULL may be (B15).
    ///
    /// # Safety
    /// It is a stream of the device's native API, and lives as long as the result.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the device has no native streams; else the plugin's error.
    pub unsafe fn import_stream(self: &Arc<Self>, native: *mut c_void) -> Result<Stream> {
        // The native streams that applications have today; other kinds come with the plugins that need them.
        let native = NativeHandle {
            kind: DEVBAY_NATIVE_CUDA_STREAM,
            value: native.expose_provenance() as u64,
            ..NativeHandle::empty()
        };
        let mut out = null_mut();
        let interop = self.plugin().interop();
        self.call(Phase::ExchangeStream, |_, error| {
            let import = interop.stream_import?;
            // SAFETY: the plugin's function with its own device; the place is ours for the call.
            Some(unsafe { import(self.handle.as_ptr(), &native, &mut out, error) })
        })?;
        let handle =
            NonNull::new(out).ok_or_else(|| self.broken("stream_import succeeded without a stream (B9)"))?;
        Ok(Stream { device: Arc::clone(self), handle, signalled: 0, own_label: None })
    }
}

impl Buffer {
    /// Returns the address of its first byte in the device's native API (DLPack's `data`).
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if it has no address.
    pub fn native(&self) -> Result<u64> {
        let mut native = NativeHandle::empty();
        let interop = self.device().plugin().interop();
        self.device().call(Phase::ExchangeMemory, |_, error| {
            let export = interop.buffer_export?;
            // SAFETY: the plugin's function with its own buffer; the place is ours for the call.
            Some(unsafe { export(self.handle.as_ptr(), &mut native, error) })
        })?;
        if native.kind == DEVBAY_NATIVE_ADDRESS {
            return Ok(native.value);
        }
        let text = format!("its memory has no address but a native handle of kind {}", native.kind);
        Err(Error::new(ErrorKind::UnsupportedOp, text).on_device(self.device().name()))
    }
}

impl Stream {
    /// Holds later work back until another stream of the device has reached a point. If the plugin has no such
    /// function, the calling thread waits.
    ///
    /// # Errors
    /// Errors that the plugin reports; [`ErrorKind::InvalidArgument`] for a stream of another device.
    pub fn wait_for(&mut self, other: &Stream, value: u64, limit: Duration) -> Result<()> {
        if !Arc::ptr_eq(&self.device, &other.device) {
            return Err(Error::new(ErrorKind::InvalidArgument, "a wait for a stream of another device"));
        }
        let Some(wait) = self.device.plugin().about().table.stream_wait else {
            return other.wait_reached(value, limit);
        };
        self.device.check_usable()?;
        let status = {
            let _serial = self.device.plugin().serialise();
            // SAFETY: the plugin's function with its own streams, this one used by one thread at a time (`&mut self`).
            unsafe { wait(self.handle.as_ptr(), other.handle.as_ptr(), value) }
        };
        self.check(status, Phase::WaitForStream)
    }
}
