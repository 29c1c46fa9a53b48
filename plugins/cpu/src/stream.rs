//! Streams: inline ones, and those with a thread and a timeline.

use crate::device::CpuDevice;
use devbay_plugin_api::sdk::*;

/// A queue of work.
pub enum CpuStream {
    /// Work is done in the call.
    Inline,
}

impl CpuStream {
    /// A stream of the device's kind.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn new(_device: &CpuDevice, _request: &StreamRequest<'_>) -> Result<Self> {
        Ok(Self::Inline)
    }
}

impl Stream for CpuStream {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &Copy<'_, HostBuffer>) -> Result<()> {
        copy.run_on_host();
        Ok(())
    }
}
