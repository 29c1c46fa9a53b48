//! Recordings: launches that a stream took down once, and that are enqueued again with one call (B22).

use super::{Plugin, Stream};
use crate::error::{ErrorKind, Phase, Result};
use devbay_plugin_api::abi::{self, *};
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// The functions of the extension.
#[derive(Clone, Copy)]
pub(super) struct ReplayFns {
    begin: unsafe extern "C" fn(*mut abi::Stream, *const RecordDesc) -> Status,
    end: unsafe extern "C" fn(*mut abi::Stream, *mut *mut abi::Recording) -> Status,
    replay: unsafe extern "C" fn(*mut abi::Stream, *const ReplayDesc) -> Status,
    free: unsafe extern "C" fn(*mut abi::Recording),
}

impl ReplayFns {
    /// Those of a plugin; None if it has not all of them.
    pub(super) fn of(plugin: &Plugin) -> Option<Self> {
        let table = plugin.extension(extension::REPLAY, 1)?;
        // SAFETY: the extension's table, which lives as long as the instance (B6).
        let table = unsafe { read_struct(table.as_ptr().cast_const().cast::<ReplayTable>()) }.ok()?;
        Some(Self {
            begin: table.record_begin?,
            end: table.record_end?,
            replay: table.replay?,
            free: table.recording_free?,
        })
    }
}

/// The launches that a stream recorded. To be dropped after the stream, whose end waits for replays, and before the
/// objects that it names.
pub(crate) struct Recording {
    handle: NonNull<abi::Recording>,
    fns: ReplayFns,
    plugin: Arc<Plugin>,
}

// SAFETY: a recording is used by the thread that has its stream, and freed from any thread.
unsafe impl Send for Recording {}

impl Drop for Recording {
    fn drop(&mut self) {
        self.plugin.release(|_| {
            // SAFETY: `record_end` made the handle, and it is given back once, here, after its replays.
            unsafe { (self.fns.free)(self.handle.as_ptr()) };
        });
    }
}

impl Stream {
    /// Records the launches of `launches` on the stream instead of running them. None if the plugin cannot record them,
    /// or not with bindings: nothing was then enqueued, and they are to be launched.
    ///
    /// # Errors
    /// Errors that the plugin reports; nothing was enqueued.
    ///
    /// # Safety
    /// The memory and kernels that the launches name stay until the recording is dropped.
    pub(crate) unsafe fn record<E>(
        &mut self,
        bindings: &[BufferRef],
        launches: impl FnOnce() -> std::result::Result<(), E>,
    ) -> Result<std::result::Result<Option<Recording>, E>> {
        let plugin = Arc::clone(&self.device.plugin);
        let Some(fns) = plugin.replays() else { return Ok(Ok(None)) };
        self.device.check_usable()?;
        let stream = self.handle.as_ptr();
        let desc = RecordDesc { bindings: List::new(bindings), ..RecordDesc::empty() };
        // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`), and a struct that lives for the call.
        let status = unsafe { (fns.begin)(stream, &desc) };
        if status == DEVBAY_STATUS_UNSUPPORTED {
            return Ok(Ok(None));
        }
        self.check(status, Phase::BeginRecording)?;
        let launched = launches();
        let mut recording = null_mut();
        // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`); the place for the recording
        // lives for the call.
        let status = unsafe { (fns.end)(stream, &mut recording) };
        let handle = NonNull::new(recording).filter(|_| status == DEVBAY_STATUS_OK);
        let recording = handle.map(|handle| Recording { handle, fns, plugin });
        if let Err(error) = launched {
            return Ok(Err(error));
        }
        match self.check(status, Phase::EndRecording) {
            Ok(()) => Ok(Ok(recording)),
            Err(error) if error.kind() == ErrorKind::UnsupportedOp => Ok(Ok(None)),
            Err(error) => Err(error),
        }
    }

    /// Enqueues a recording, with memory in the place of its bindings, or with those that it was made with (none).
    ///
    /// # Safety
    /// The memory that the recording names, and that is bound, stays until the stream has come to rest.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    #[inline]
    pub(crate) unsafe fn replay(&mut self, recording: &Recording, bindings: &[BufferRef]) -> Result<()> {
        let desc = ReplayDesc {
            recording: recording.handle.as_ptr(),
            bindings: List::new(bindings),
            ..ReplayDesc::empty()
        };
        // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`), and a recording of its device's.
        let status = unsafe { (recording.fns.replay)(self.handle.as_ptr(), &desc) };
        self.check(status, Phase::Replay)
    }
}
