//! Streams: enqueuing, signalling, and waiting for points.

use super::Device;
use super::plugin::Detail;
use super::points;
use crate::calls;
use crate::error::{Error, Phase, Result};
use crate::trace::{self, What};
use devbay_plugin_api::abi::{self, *};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time after which a device whose work has not ended counts as broken: an hour, longer than any launch.
pub(crate) const REST_LIMIT: Duration = Duration::from_secs(3600);

/// A stream; destroyed when dropped, which waits for its work. One run at a time owns it.
pub struct Stream {
    pub(super) device: Arc<Device>,
    pub(super) handle: NonNull<abi::Stream>,
    /// Last value that was signalled with success.
    pub(super) signalled: u64,
    /// Its name on a timeline, where marks are taken.
    pub(super) own_label: Option<String>,
}

// SAFETY: functions of a stream that need one caller at a time take `&mut self`.
unsafe impl Send for Stream {}

impl Stream {
    /// Returns the handle, for the launch loop.
    pub fn handle(&self) -> *mut abi::Stream {
        self.handle.as_ptr()
    }

    /// Returns the last value that was signalled.
    pub(crate) fn signalled(&self) -> u64 {
        self.signalled
    }

    /// Notes the last value that was signalled by the handle.
    pub(crate) fn have_signalled(&mut self, value: u64) {
        self.signalled = value;
    }

    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Enqueues a copy of host memory into a buffer.
    ///
    /// # Safety
    /// `src` points to `dst.length` bytes that stay readable until a point signalled after this is reported.
    ///
    /// # Errors
    /// Errors that the plugin reports; then nothing was enqueued.
    pub unsafe fn copy_in(&mut self, src: *const u8, dst: BufferRef) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst,
            host_src: src.cast(),
            size_bytes: dst.length,
            ..CopyDesc::empty()
        })
    }

    /// Enqueues a copy of a buffer into host memory.
    ///
    /// # Safety
    /// `dst` points to `src.length` bytes that stay writable, and are not read, until a point signalled after
    /// this is reported.
    ///
    /// # Errors
    /// Errors that the plugin reports; then nothing was enqueued.
    pub unsafe fn copy_out(&mut self, src: BufferRef, dst: *mut u8) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src,
            host_dst: dst.cast(),
            size_bytes: src.length,
            ..CopyDesc::empty()
        })
    }

    /// Enqueues a copy within the device.
    ///
    /// # Errors
    /// Errors that the plugin reports; then nothing was enqueued.
    pub fn copy_within(&mut self, src: BufferRef, dst: BufferRef) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src,
            dst,
            size_bytes: src.length.min(dst.length),
            ..CopyDesc::empty()
        })
    }

    fn copy(&mut self, desc: &CopyDesc) -> Result<()> {
        if desc.size_bytes == 0 {
            return Ok(());
        }
        self.device.check_usable()?;
        let Some(copy) = self.device.plugin.about.table.copy else {
            return Err(self.device.broken("the plugin has no copy"));
        };
        let status = {
            let _serial = self.device.plugin.serialise();
            // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`); the memory that `desc`
            // names is lent as the callers promise.
            let copy = || unsafe { copy(self.handle.as_ptr(), desc) };
            calls::during(self.device.calling(Phase::Copy.name()), copy)
        };
        self.check(status, Phase::Copy)
    }

    /// Returns the error of a status that a function of this stream gave.
    ///
    /// # Errors
    /// If the status is not 0.
    pub fn check(&self, status: Status, phase: Phase) -> Result<()> {
        if status == DEVBAY_STATUS_OK {
            return Ok(());
        }
        Err(self.failure(status, if self.has_failed_with(status) { Phase::Work } else { phase }))
    }

    /// Returns whether the stream has failed with this status, so that a function that returned it has only passed it
    /// on (B13): the failed work was enqueued before.
    #[cold]
    pub(crate) fn has_failed_with(&self, status: Status) -> bool {
        // These are failures of the device or the plugin, about which a stream is not asked any more.
        let is_streams = status != DEVBAY_STATUS_DEVICE_LOST && status != DEVBAY_STATUS_PANICKED;
        is_streams && !self.device.info.inline && self.reached().is_ok_and(|(_, failure)| failure == status)
    }

    #[cold]
    fn failure(&self, status: Status, phase: Phase) -> Error {
        let plugin = &self.device.plugin;
        let mut detail = Detail::new();
        if let Some(stream_error) = plugin.about.table.stream_error {
            let _serial = plugin.serialise();
            // SAFETY: the plugin's function with its own stream; the struct is ours for the call.
            unsafe { stream_error(self.handle.as_ptr(), detail.as_ptr()) };
        }
        // The detail may be that of an older failure.
        let text = if detail.raw.status == status { detail.text() } else { String::new() };
        self.device.failed(plugin.failure(status, phase, &text))
    }

    /// Returns the failure that began on this stream, once it has failed; None if it only waited for one that did.
    pub(crate) fn own_failure(&self) -> Option<Error> {
        if self.device.info.inline {
            return None;
        }
        let (_, status) = self.reached().ok()?;
        let is_own = status != DEVBAY_STATUS_OK && status != DEVBAY_STATUS_ABORTED;
        is_own.then(|| self.failure(status, Phase::Work))
    }

    /// Waits until everything enqueued is done, or fails. A no-op on inline devices.
    ///
    /// # Errors
    /// The stream's failure, in the plugin's words. [`PluginBroken`](crate::error::ErrorKind::PluginBroken) if it never
    /// comes to rest (see `limit`), and [`PluginPoisoned`](crate::error::ErrorKind::PluginPoisoned) if it cannot be
    /// asked; lent memory must then be leaked. After any other error the stream's end waits for the device.
    pub fn finish(&mut self, limit: Duration) -> Result<()> {
        if self.device.info.inline {
            return Ok(());
        }
        let _traced = trace::begin(What::WaitForStream);
        let value = self.signal()?;
        self.wait_reached(value, limit)
    }

    /// Enqueues the next point and gives its value (B12).
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn signal(&mut self) -> Result<u64> {
        self.device.check_usable()?;
        let Some(signal) = self.device.plugin.about.table.stream_signal else {
            return Err(self.device.broken("a device with timelines has no stream_signal"));
        };
        let value = self.signalled + 1;
        let status = {
            let _serial = self.device.plugin.serialise();
            // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`).
            let signal = || unsafe { signal(self.handle.as_ptr(), value) };
            calls::during(self.device.calling(Phase::Signal.name()), signal)
        };
        self.check(status, Phase::Signal)?;
        self.signalled = value;
        Ok(value)
    }

    /// Blocks until a value that was signalled is reached.
    ///
    /// # Errors
    /// As [`Stream::finish`].
    pub fn wait_reached(&self, value: u64, limit: Duration) -> Result<()> {
        self.device.check_usable()?;
        let deadline = Instant::now() + limit;
        let plugin = &self.device.plugin;
        // Not of a serialised plugin, which would do nothing else meanwhile (invariant 2).
        if let Some(host_wait) = plugin.about.table.stream_host_wait.filter(|_| plugin.serial.is_none()) {
            // SAFETY: the plugin's function with its own stream, from any thread.
            let host_wait = || unsafe { host_wait(self.handle.as_ptr(), value, limit.as_nanos() as u64) };
            let status = calls::during(self.device.calling("stream_host_wait"), host_wait);
            return match status {
                DEVBAY_STATUS_TIMEOUT => Err(self.stuck(value, limit)),
                status => self.check(status, Phase::Work),
            };
        }
        // The plugin has no blocking wait: poll, first spinning, then sleeping (B7).
        let mut polls = 0u32;
        loop {
            let (reached, status) = self.reached()?;
            if reached >= value {
                return Ok(());
            }
            self.check(status, Phase::Work)?;
            polls = polls.saturating_add(1);
            match polls {
                0..1000 => std::hint::spin_loop(),
                1000..2000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            if polls.is_multiple_of(256) && Instant::now() >= deadline {
                return Err(self.stuck(value, limit));
            }
        }
    }

    /// Returns the last value reached, and the stream's status.
    ///
    /// # Errors
    /// If the plugin has no such function.
    pub fn reached(&self) -> Result<(u64, Status)> {
        self.device.check_usable()?;
        let Some(stream_reached) = self.device.plugin.about.table.stream_reached else {
            return Err(self.device.broken("a device with timelines has no stream_reached"));
        };
        let mut reached = 0;
        let _serial = self.device.plugin.serialise();
        // SAFETY: the plugin's function with its own stream, from any thread; `reached` is ours.
        let ask = || unsafe { stream_reached(self.handle.as_ptr(), &mut reached) };
        let status = calls::during(self.device.calling("stream_reached"), ask);
        Ok((reached, status))
    }

    fn stuck(&self, value: u64, limit: Duration) -> Error {
        self.device.broken(&format!(
            "work on a stream did not end within {limit:?}: point {value} is neither reached nor failed"
        ))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        points::forget(&self.device, self.handle.as_ptr());
        self.device.plugin.release(|table| {
            if let Some(destroy) = table.stream_destroy {
                // SAFETY: the plugin made the stream, which is destroyed once, here; no other thread uses it
                // (`&mut self`).
                unsafe { destroy(self.handle.as_ptr()) };
            }
        });
        if let Some(label) = &self.own_label {
            self.device.plugin.services().stream_ended(label);
        }
    }
}
