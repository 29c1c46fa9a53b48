//! Streams, and what they are lent.

use super::{Buffer, Detail, Device, PATIENCE};
use crate::verdict::{Outcome, failed};
use devbay_plugin_api::abi::{self, *};
use std::ffi::c_void;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A stream.
pub(crate) struct Stream<'a> {
    pub device: &'a Device<'a>,
    pub handle: NonNull<abi::Stream>,
    /// Last value that was signalled with success.
    pub(super) signalled: AtomicU64,
}

// SAFETY: a stream may be used from any thread as the plugin's threading class says, and cases enqueue on one from one
// thread at a time.
unsafe impl Send for Stream<'_> {}
// SAFETY: cases ask for the plugin's threading class before they use several threads at once; the number is atomic.
unsafe impl Sync for Stream<'_> {}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.device.opened.table.stream_destroy {
            // SAFETY: `stream_create` made the stream, and it is given back once, here.
            unsafe { destroy(self.handle.as_ptr()) };
        }
    }
}

impl Stream<'_> {
    fn table(&self) -> &PluginTable {
        &self.device.opened.table
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// Everything that the description names stays alive until the stream has done it or is destroyed.
    pub(crate) unsafe fn copy(&self, desc: *const CopyDesc) -> Outcome<Status> {
        let Some(copy) = self.table().copy else {
            return failed("the plugin has no copy");
        };
        // SAFETY: the stream is the plugin's own and alive; the memory that the description names stays (# Safety).
        Ok(unsafe { copy(self.handle.as_ptr(), desc) })
    }

    /// A copy that has to be accepted.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    unsafe fn copy_or_fail(&self, desc: &CopyDesc, what: &str) -> Outcome {
        // SAFETY: the memory that the description names stays until the stream has done it or is destroyed (# Safety).
        match unsafe { self.copy(desc) }? {
            DEVBAY_STATUS_OK => Ok(()),
            status => {
                let words = self.error_words(status);
                failed(format!("a copy of {} bytes {what} returned {words}", desc.size_bytes))
            }
        }
    }

    /// Enqueues a copy from host memory.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(crate) unsafe fn enqueue_in(&self, src: &[u8], dst: BufferRef) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst,
            host_src: src.as_ptr().cast(),
            size_bytes: src.len() as u64,
            ..empty_copy()
        };
        // SAFETY: the source and the buffer stay alive until the stream has done it or is destroyed (# Safety).
        unsafe { self.copy_or_fail(&desc, "from the host") }
    }

    /// Enqueues a copy to host memory.
    ///
    /// # Safety
    /// As [`Stream::copy`]; nothing else touches `dst` meanwhile.
    pub(crate) unsafe fn enqueue_out(&self, src: BufferRef, dst: *mut u8, size: usize) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src,
            host_dst: dst.cast(),
            size_bytes: size as u64,
            ..empty_copy()
        };
        // SAFETY: buffer and destination stay alive, and only this copy touches the destination (# Safety).
        unsafe { self.copy_or_fail(&desc, "to the host") }
    }

    /// Enqueues a copy on the device.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(crate) unsafe fn enqueue_within(&self, src: BufferRef, dst: BufferRef, size: usize) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src,
            dst,
            size_bytes: size as u64,
            ..empty_copy()
        };
        // SAFETY: the buffers stay alive until the stream has done it or is destroyed (# Safety).
        unsafe { self.copy_or_fail(&desc, "on the device") }
    }

    /// Writes bytes into a buffer and waits.
    pub(crate) fn upload(&self, bytes: &[u8], buffer: &Buffer<'_>, offset: usize) -> Outcome {
        // The buffer lives by invariant 2, and the bytes are leaked if `finish` fails.
        let bytes = Lent::new(bytes.to_vec());
        // SAFETY: both live until `finish` returns, or until the stream is destroyed if that fails.
        unsafe { self.enqueue_in(&bytes.0, buffer.part(offset, bytes.0.len())) }?;
        self.finish()?;
        bytes.done();
        Ok(())
    }

    /// Reads bytes of a buffer and waits.
    pub(crate) fn download(&self, buffer: &Buffer<'_>, offset: usize, size: usize) -> Outcome<Vec<u8>> {
        let mut bytes = Lent::new(vec![0u8; size]);
        // SAFETY: the buffer lives by invariant 2 until the stream is destroyed, and the bytes are leaked if `finish`
        // fails.
        unsafe { self.enqueue_out(buffer.part(offset, size), bytes.0.as_mut_ptr(), size) }?;
        self.finish()?;
        Ok(bytes.done())
    }

    /// Enqueues the next point and gives its value.
    pub(crate) fn signal(&self) -> Outcome<u64> {
        self.signal_value(self.signalled.load(Ordering::Relaxed) + 1)
    }

    /// Enqueues a point.
    pub(crate) fn signal_value(&self, value: u64) -> Outcome<u64> {
        let Some(signal) = self.table().stream_signal else {
            return failed("the device is not inline, but the plugin has no stream_signal");
        };
        // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
        match unsafe { signal(self.handle.as_ptr(), value) } {
            DEVBAY_STATUS_OK => {
                self.signalled.store(value, Ordering::Relaxed);
                Ok(value)
            }
            status => failed(format!("stream_signal({value}) returned {}", self.error_words(status))),
        }
    }

    /// Returns the last value that was signalled.
    pub(crate) fn signalled(&self) -> u64 {
        self.signalled.load(Ordering::Relaxed)
    }

    /// Asks what was reached.
    pub(crate) fn reached(&self) -> Outcome<(u64, Status)> {
        let Some(reached) = self.table().stream_reached else {
            return failed("the device is not inline, but the plugin has no stream_reached");
        };
        let mut value = 0;
        // SAFETY: the plugin's function with its own stream; `value` is ours.
        let status = unsafe { reached(self.handle.as_ptr(), &mut value) };
        Ok((value, status))
    }

    /// Polls until a value is reached.
    pub(crate) fn poll(&self, value: u64) -> Outcome {
        let polled = self.poll_until(value);
        if polled.is_err() {
            self.device.stuck.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn poll_until(&self, value: u64) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let mut n_polls = 0u32;
        loop {
            let (reached, status) = self.reached()?;
            if status != DEVBAY_STATUS_OK {
                return failed(format!("the stream failed with {}", self.error_words(status)));
            }
            if reached >= value {
                return Ok(());
            }
            if Instant::now() > deadline {
                return failed(format!("value {value} was not reached within {PATIENCE:?}, only {reached}"));
            }
            n_polls += 1;
            if n_polls > 100 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until everything that was enqueued is done.
    pub(crate) fn finish(&self) -> Outcome {
        if self.device.inline() {
            return Ok(());
        }
        let value = self.signal()?;
        self.poll(value)
    }

    /// Signals, and waits until the point is reached or can be no more: the status.
    pub(crate) fn end_status(&self) -> Outcome<Status> {
        if self.device.inline() {
            return Ok(DEVBAY_STATUS_OK);
        }
        let Some(signal) = self.table().stream_signal else {
            return failed("the device is not inline, but the plugin has no stream_signal");
        };
        let value = self.signalled() + 1;
        // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
        match unsafe { signal(self.handle.as_ptr(), value) } {
            DEVBAY_STATUS_OK => self.signalled.store(value, Ordering::Relaxed),
            status => return Ok(status),
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let (reached, status) = self.reached()?;
            if status != DEVBAY_STATUS_OK || reached >= value {
                return Ok(status);
            }
            if Instant::now() > deadline {
                self.device.stuck.store(true, Ordering::Relaxed);
                return failed(format!("value {value} was neither reached nor failed within {PATIENCE:?}"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Returns the stream's words for a status; empty if it has none.
    pub(crate) fn words(&self, status: Status) -> String {
        let mut detail = Detail::new();
        if let Some(stream_error) = self.table().stream_error {
            // SAFETY: the stream is the plugin's own and alive; the struct is ours for the call.
            unsafe { stream_error(self.handle.as_ptr(), &mut detail.raw) };
        }
        if detail.raw.status == status { detail.text() } else { String::new() }
    }

    /// Returns a status with the stream's words for it.
    pub(crate) fn error_words(&self, status: Status) -> String {
        let mut detail = Detail::new();
        if let Some(stream_error) = self.table().stream_error {
            // SAFETY: the stream is the plugin's own and alive; the struct is ours for the call.
            unsafe { stream_error(self.handle.as_ptr(), &mut detail.raw) };
        }
        detail.describe(status)
    }
}

/// Host memory that a stream may still use. It is leaked unless [`Lent::done`] ends the loan.
pub(crate) struct Lent(pub std::mem::ManuallyDrop<Vec<u8>>);

impl Lent {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(std::mem::ManuallyDrop::new(bytes))
    }

    /// Ends the loan: the work that used it is done.
    pub(crate) fn done(self) -> Vec<u8> {
        std::mem::ManuallyDrop::into_inner(self.0)
    }
}

/// Returns a copy of nothing.
pub(crate) fn empty_copy() -> CopyDesc {
    CopyDesc {
        src: BufferRef::ABSENT,
        dst: BufferRef::ABSENT,
        host_src: null::<c_void>(),
        host_dst: null_mut(),
        ..CopyDesc::empty()
    }
}
