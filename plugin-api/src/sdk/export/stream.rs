//! Streams of the plugin, each with its last failure (B18) and the calls that it refuses while it records or
//! has failed (B13).

use super::call::{deref, free, refuse_null, refused, report};
use crate::abi;
use crate::abi::*;
use crate::locks::lock;
use crate::sdk::error::{Error, Result, guard};
use crate::sdk::memory::{CopyKind, CopyRequest, StreamRequest};
use crate::sdk::{Device, Done, Stream};
use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A stream, with the detail of its last failure (B18).
pub struct StreamBox<S> {
    stream: S,
    failure: Mutex<Option<Error>>,
    /// True while work is recorded and does not run.
    pub(in crate::sdk) records: AtomicBool,
    /// The bindings of the recording in progress.
    bindings: Mutex<Arc<[BufferRef]>>,
}

impl<S: Stream> StreamBox<S> {
    /// Refuses work that a recording cannot hold.
    fn refuse_while_it_records(&self) -> Result<()> {
        if S::REPLAY && self.records.load(Ordering::Relaxed) {
            return Err(Error::invalid(
                "the stream records, which takes launches and copies between buffers",
            ));
        }
        Ok(())
    }
}

impl<S> StreamBox<S> {
    /// Returns the plugin's stream.
    #[inline]
    pub fn inner(&self) -> &S {
        &self.stream
    }

    /// Begins a recording.
    pub(in crate::sdk) fn begin_record(&self, bindings: Arc<[BufferRef]>) {
        *lock(&self.bindings) = bindings;
        self.records.store(true, Ordering::Relaxed);
    }

    /// Ends the recording and returns its bindings; None if none was begun.
    pub(in crate::sdk) fn end_record(&self) -> Option<Arc<[BufferRef]>> {
        let records = self.records.swap(false, Ordering::Relaxed);
        records.then(|| std::mem::take(&mut *lock(&self.bindings)))
    }

    /// Returns the last kept error.
    pub(crate) fn kept(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Keeps an error for `stream_error` and returns its status.
    #[cold]
    pub(crate) fn keep(&self, error: Error) -> Status {
        let status = error.status();
        *lock(&self.failure) = Some(error);
        status
    }
}

/// Refuses to enqueue work on a failed stream, with the stream's failure (B13).
///
/// # Errors
/// The failure.
pub(in crate::sdk) fn refuse_failed<S: Stream>(stream: &S) -> Result<()> {
    if !S::TIMELINE || !stream.has_failed() {
        return Ok(());
    }
    Err(stream.failure().unwrap_or_else(|| Error::internal("the stream has failed")))
}

pub(super) unsafe extern "C" fn stream_create<D: Device>(
    device: *mut abi::Device,
    desc: *const StreamDesc,
    out: *mut *mut abi::Stream,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        let stream = device.create_stream(&StreamRequest {
            kind: desc.kind,
            priority: desc.priority,
            // SAFETY: B5: the text's bytes are the host's, and unchanged for the call.
            label: unsafe { desc.label.get() }.map_err(refused)?,
        })?;
        // SAFETY: `out` is NULL or the host's place for one handle, as the header says of `stream_create`.
        unsafe { give_stream(stream, out) }
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

/// Transfers a stream to the host. NULL is refused, and the stream dropped.
///
/// # Safety
/// `out` is NULL or the host's destination for one handle.
pub(in crate::sdk) unsafe fn give_stream<S>(stream: S, out: *mut *mut abi::Stream) -> Result<()> {
    refuse_null(out, "the place for the stream")?;
    let stream = Box::new(StreamBox {
        stream,
        failure: Mutex::new(None),
        records: AtomicBool::new(false),
        bindings: Mutex::default(),
    });
    // SAFETY: `out` is not NULL (checked above), so it is the host's place for one handle (# Safety).
    unsafe { out.write(Box::into_raw(stream).cast()) };
    Ok(())
}

pub(super) unsafe extern "C" fn stream_destroy<D: Device>(stream: *mut abi::Stream) {
    // SAFETY: `stream_create` or `stream_import` made the handle, and the host gives it back once (B9).
    unsafe { free::<StreamBox<D::Stream>, _>(stream) };
}

/// Runs a function of a stream and keeps its error there.
///
/// # Safety
/// `stream` is NULL or a stream of this device's.
unsafe fn on_stream<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&D::Stream) -> Result<()>,
) -> Status {
    // SAFETY: `stream` is NULL or a stream of this device's (# Safety).
    unsafe { on_box::<D>(stream, |stream| body(&stream.stream)) }
}

/// Runs as [`on_stream`], and passes the SDK's state of the stream.
///
/// # Safety
/// As [`on_stream`].
pub(in crate::sdk) unsafe fn on_box<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&StreamBox<D::Stream>) -> Result<()>,
) -> Status {
    // SAFETY: `stream` is NULL or a stream of this device's (# Safety).
    let Ok(stream) = (unsafe { deref::<StreamBox<D::Stream>, _>(stream, "the stream") }) else {
        return DEVBAY_STATUS_INVALID;
    };
    match guard(|| body(stream)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}

/// Runs as [`on_stream`], for work that a recording or a failed stream refuses.
///
/// # Safety
/// As [`on_stream`].
pub(in crate::sdk) unsafe fn enqueue_on<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&D::Stream) -> Result<()>,
) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        stream.refuse_while_it_records()?;
        refuse_failed(&stream.stream)?;
        body(&stream.stream)
    };
    // SAFETY: `stream` is NULL or a stream of this device's (# Safety of `on_stream`).
    unsafe { on_box::<D>(stream, body) }
}

pub(super) unsafe extern "C" fn copy<D: Device>(stream: *mut abi::Stream, desc: *const CopyDesc) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        // SAFETY: `desc` is NULL or the host's struct (B4), whose buffers are NULL or boxes of this device's that were
        // not freed (B9).
        let copy = unsafe { CopyRequest::<D::Buffer>::read(desc) }?;
        let is_of_host = |copy: &CopyRequest<'_, _>| !matches!(copy.kind, CopyKind::BufferToBuffer(..));
        if copy.as_ref().is_some_and(is_of_host) {
            stream.refuse_while_it_records()?;
        }
        refuse_failed(&stream.stream)?;
        copy.map_or(Ok(()), |copy| stream.stream.copy(&copy))
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_box::<D>(stream, body) }
}

pub(super) unsafe extern "C" fn stream_signal<D: Device>(stream: *mut abi::Stream, value: u64) -> Status {
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, |stream| stream.signal(value)) }
}

pub(super) unsafe extern "C" fn stream_reached<D: Device>(
    stream: *mut abi::Stream,
    out_value: *mut u64,
) -> Status {
    let body = |stream: &D::Stream| {
        let (value, status) = stream.reached();
        // SAFETY: `out_value` is NULL or the host's place for one number.
        if let Some(out_value) = unsafe { out_value.as_mut() } {
            *out_value = value;
        }
        status
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_stream::<D>(stream, body) }
}

pub(super) unsafe extern "C" fn stream_wait<D: Device>(
    stream: *mut abi::Stream,
    other: *mut abi::Stream,
    value: u64,
) -> Status {
    let body = |stream: &D::Stream| {
        // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
        let other: &StreamBox<D::Stream> = unsafe { deref(other, "the other stream") }?;
        stream.wait(&other.stream, value)
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, body) }
}

pub(super) unsafe extern "C" fn stream_on_reached<D: Device>(
    stream: *mut abi::Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    let body = |stream: &D::Stream| {
        let function = done.ok_or_else(|| Error::invalid("the callback is NULL"))?;
        stream.on_reached(value, Done { function, arg })
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_stream::<D>(stream, body) }
}

pub(super) unsafe extern "C" fn stream_host_wait<D: Device>(
    stream: *mut abi::Stream,
    value: u64,
    timeout_ns: u64,
) -> Status {
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_stream::<D>(stream, |stream| stream.host_wait(value, Duration::from_nanos(timeout_ns))) }
}

pub(super) unsafe extern "C" fn stream_flush<D: Device>(stream: *mut abi::Stream) -> Status {
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, Stream::flush) }
}

pub(super) unsafe extern "C" fn stream_error<D: Device>(
    stream: *mut abi::Stream,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    let Ok(stream) = (unsafe { deref::<StreamBox<D::Stream>, _>(stream, "the stream") }) else {
        return DEVBAY_STATUS_INVALID;
    };
    let found = guard(|| Ok(stream.stream.failure())).unwrap_or_else(Some);
    let kept = lock(&stream.failure);
    match found.as_ref().or(kept.as_ref()) {
        None => DEVBAY_STATUS_OK,
        Some(failure) => {
            // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
            unsafe { failure.store(error) };
            failure.status()
        }
    }
}
