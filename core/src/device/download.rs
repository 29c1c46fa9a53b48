//! Copies from buffers to the host.

use super::{Buffer, REST_LIMIT, StreamUse, must_leak};
use crate::error::Result;
use crate::tensor::AlignedBytes;
use crate::trace::{self, What};
use std::time::Duration;

impl Buffer {
    /// Returns whether the host may read the buffer at its base.
    pub(crate) fn is_visible(&self) -> bool {
        self.device().space().host_visible && self.reference(0, 0).addr != 0
    }

    /// Copies the beginning of a buffer that is visible ([`Buffer::is_visible`]).
    ///
    /// # Safety
    /// No work that writes the buffer is in flight.
    pub(crate) unsafe fn read_visible(&self, dst: &mut [u8]) {
        let src = self.reference(0, dst.len());
        // SAFETY: the space says that the host may read at the buffer's base, the range is within the buffer, and no
        // work that writes it is in flight (# Safety).
        unsafe { std::ptr::copy_nonoverlapping(src.addr as *const u8, dst.as_mut_ptr(), dst.len()) };
    }

    /// Returns the beginning of the buffer in host memory of its own, which is leaked if the device cannot be shown to
    /// have stopped writing it; no other work that writes the buffer is in flight.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error for the copy.
    pub(crate) fn read(&self, size: usize) -> Result<AlignedBytes> {
        self.read_within(size, REST_LIMIT)
    }

    /// Reads as [`Buffer::read`] does, and waits for at most `limit`.
    ///
    /// # Errors
    /// As [`Buffer::read`]; deadline exceeded.
    pub(crate) fn read_within(&self, size: usize, limit: Duration) -> Result<AlignedBytes> {
        let mut bytes = AlignedBytes::zeroed(size)?;
        if size == 0 {
            return Ok(bytes);
        }
        let _traced = trace::begin(What::CopyOut { bytes: size as u64 });
        if self.is_visible() {
            // SAFETY: no other work that writes the buffer is in flight, as this function says.
            unsafe { self.read_visible(bytes.as_mut_slice()) };
            return Ok(bytes);
        }
        let mut stream = self.device().create_stream_for("download", StreamUse::COPIES)?;
        // SAFETY: `bytes` is kept until `finish` has waited for the copy, or is leaked; dropping the stream on another
        // error waits too.
        let copied = unsafe { stream.copy_out(self.reference(0, size), bytes.as_mut_slice().as_mut_ptr()) };
        match copied.and_then(|()| stream.finish(limit)) {
            Ok(()) => Ok(bytes),
            Err(error) => {
                if must_leak(&error) {
                    std::mem::forget((stream, bytes));
                } else {
                    // Before `bytes`.
                    drop(stream);
                }
                Err(error)
            }
        }
    }
}
