//! Repeated copies of the same bytes between the host and a device, to measure copy times.

use super::{Buffer, Device, Stream, must_leak};
use crate::error::Result;
use crate::tensor::{AlignedBytes, Bytes};
use devbay_plugin_api::abi::DEVBAY_USAGE_STAGING;
use std::sync::Arc;
use std::time::Duration;

/// Time after which a device whose copies have not ended counts as broken.
const LIMIT: Duration = Duration::from_secs(600);

/// Memory of the host's, as much of a device's, and a stream of its own.
pub struct Ferry {
    /// A stream, and the host memory that its copies read or write; none after a failure. The stream is dropped
    /// first, which waits for its copies.
    lent: Option<(Stream, AlignedBytes)>,
    buffer: Buffer,
    size: usize,
}

impl Ferry {
    /// Creates a ferry for `size` bytes, or as many more as the device copies at once.
    ///
    /// # Errors
    /// Out of memory, or the plugin's error.
    pub fn new(device: &Arc<Device>, size: usize) -> Result<Self> {
        let size = size.next_multiple_of(device.space().copy_granule.max(1) as usize);
        let buffer = device.alloc(size, DEVBAY_USAGE_STAGING)?;
        let lent = (device.create_stream("calibration")?, AlignedBytes::zeroed(size)?);
        Ok(Self { lent: Some(lent), buffer, size })
    }

    /// Bytes of a copy.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Copies to the device so many times, then waits.
    ///
    /// # Errors
    /// Errors that the plugin reports, after which the ferry is of no more use.
    pub fn copy_in(&mut self, n: usize) -> Result<()> {
        let dst = self.buffer.reference(0, self.size);
        self.copy(n, |stream, host| {
            // SAFETY: `host` is as large as `dst`; `copy` keeps it until the copies are over, or leaks it.
            unsafe { stream.copy_in(host.bytes().as_ptr(), dst) }
        })
    }

    /// Copies to the host so many times, then waits.
    ///
    /// # Errors
    /// As [`Ferry::copy_in`].
    pub fn copy_out(&mut self, n: usize) -> Result<()> {
        let src = self.buffer.reference(0, self.size);
        self.copy(n, |stream, host| {
            // SAFETY: `host` is as large as `src`, and only this copy uses it; `copy` keeps it until the copies are
            // over, or leaks it.
            unsafe { stream.copy_out(src, host.as_mut_slice().as_mut_ptr()) }
        })
    }

    fn copy(
        &mut self,
        n: usize,
        enqueue: impl Fn(&mut Stream, &mut AlignedBytes) -> Result<()>,
    ) -> Result<()> {
        let Some((stream, host)) = &mut self.lent else {
            return Err(self.buffer.device().broken("copies after one that failed"));
        };
        let copied = (0..n).try_for_each(|_| enqueue(stream, host)).and_then(|()| stream.finish(LIMIT));
        copied.inspect_err(|error| {
            let lent = self.lent.take();
            if must_leak(error) {
                // The device may touch it at any later time, so it is leaked (B24).
                std::mem::forget(lent);
            }
        })
    }
}
