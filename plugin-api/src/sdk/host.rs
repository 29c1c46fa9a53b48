//! The host's services behind safe methods (B2).

use super::error::{Error, Result, guard};
use crate::abi::*;
use core::ffi::c_void;
use std::ops::Range;
use std::sync::OnceLock;

/// Importance of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LogLevel {
    /// Message for debugging.
    Debug,
    /// Of general interest.
    Info,
    /// Something works less well than it could.
    Warn,
    /// Something failed.
    Error,
}

/// The host's services. Valid until their instance is dropped.
#[derive(Clone, Copy)]
pub struct Host {
    api: HostApi,
}

impl Host {
    /// Creates a substitute for a host, for a plugin's own tests: loops run on the calling thread, messages
    /// are discarded.
    pub fn none() -> Self {
        Self { api: HostApi::empty() }
    }

    pub(crate) fn new(api: HostApi) -> Self {
        Self { api }
    }

    /// Counts the slots that [`Host::parallel_for`] may assign, at least 1.
    pub fn n_slots(&self) -> usize {
        (self.api.n_slots as usize).max(1)
    }

    /// Passes a message to the application.
    pub fn log(&self, level: LogLevel, text: &str) {
        let level = match level {
            LogLevel::Debug => DEVBAY_LOG_DEBUG,
            LogLevel::Info => DEVBAY_LOG_INFO,
            LogLevel::Warn => DEVBAY_LOG_WARN,
            LogLevel::Error => DEVBAY_LOG_ERROR,
        };
        if let Some(log) = self.api.log {
            // SAFETY: B2: the host's function takes its own context until `destroy`; the text is borrowed for the call.
            unsafe { log(self.api.ctx, level, Str::new(text)) };
        }
    }

    /// Returns a setting of the host, such as `cache_dir`.
    pub fn config(&self, key: &str) -> Option<&str> {
        let config = self.api.config?;
        let mut out = Str::EMPTY;
        // SAFETY: B2: the host's function takes its own context until `destroy`; `out` is ours for the call.
        let status = unsafe { config(self.api.ctx, Str::new(key), &mut out) };
        if status != DEVBAY_STATUS_OK {
            return None;
        }
        // SAFETY: B2: the host keeps the text until the instance is destroyed.
        unsafe { out.get() }.ok()
    }

    /// Returns whether the host records [`Host::trace`].
    pub fn traces(&self) -> bool {
        self.api.trace.is_some()
    }

    /// Returns the time on the clock of the host's timeline, in nanoseconds; 0 without a host.
    pub fn now_ns(&self) -> u64 {
        // SAFETY: B2: the host's function takes its own context until `destroy`.
        self.api.now_ns.map_or(0, |now| unsafe { now(self.api.ctx) })
    }

    /// Adds a span to the host's timeline; times are nanoseconds of its clock ([`Host::now_ns`]).
    pub fn trace(&self, name: &str, track: &str, time_ns: Range<u64>) {
        if let Some(trace) = self.api.trace {
            let event = TraceEvent {
                name: Str::new(name),
                track: Str::new(track),
                begin_ns: time_ns.start,
                end_ns: time_ns.end,
                ..TraceEvent::empty()
            };
            // SAFETY: B2: the host's function takes its own context until `destroy`; the event is borrowed for the
            // call.
            unsafe { trace(self.api.ctx, &event) };
        }
    }

    /// Returns the host's side of an extension, or None (B6).
    pub fn extension(&self, id: u32, min_revision: u32) -> Option<*const c_void> {
        let get = self.api.get_extension?;
        // SAFETY: B2: the host's function takes its own context until `destroy`.
        let table = unsafe { get(self.api.ctx, id, min_revision) };
        (!table.is_null()).then_some(table)
    }

    /// Runs `body` over `0..n` in chunks of at most `grain`, on the host's threads and this one.
    ///
    /// Chunk boundaries depend only on `n` and `grain`. The second argument is the chunk's slot, below
    /// [`Host::n_slots`], which belongs to the chunk while it runs.
    ///
    /// # Errors
    /// The first error of a body; a panic in one becomes an error. CANCELLED if the run that this loop
    /// belongs to is to end and chunks were left out: the kernel returns it.
    pub fn parallel_for<F>(&self, n: usize, grain: usize, body: F) -> Result<()>
    where
        F: Fn(Range<usize>, usize) -> Result<()> + Sync,
    {
        let grain = grain.max(1);
        // Also where there is one thread: the host knows when the run is to end.
        if n > grain
            && let Some(parallel_for) = self.api.parallel_for
        {
            return self.chunks(parallel_for, n, grain, &body);
        }
        let mut begin = 0;
        while begin < n {
            let end = (begin + grain).min(n);
            body(begin..end, 0)?;
            begin = end;
        }
        Ok(())
    }

    /// Runs the host's loop. Compiled once for all bodies, because a chunk takes long compared with a call.
    fn chunks(&self, parallel_for: ParallelFor, n: usize, grain: usize, body: &Body<'_>) -> Result<()> {
        let call = Call { body, error: OnceLock::new() };
        // SAFETY: B2: the host's function takes its own context until `destroy`; `call` outlives it, because the host
        // returns only when all chunks are done, and the body is `Sync`.
        let status = unsafe {
            parallel_for(
                self.api.ctx,
                n as u64,
                grain as u64,
                Some(chunk),
                (&raw const call).cast_mut().cast(),
            )
        };
        match (status, call.error.into_inner()) {
            (DEVBAY_STATUS_OK, None) => Ok(()),
            (_, Some(error)) => Err(error.of_loop()),
            (DEVBAY_STATUS_CANCELLED, None) => Err(Self::over()),
            (status, None) => Err(Error::new(status, "the host's parallel_for failed")),
        }
    }

    fn over() -> Error {
        Error::new(DEVBAY_STATUS_CANCELLED, "the run is to end")
    }

    /// Returns a [`Pace`] for loops that may be long.
    pub fn pace(&self) -> Pace<'_> {
        Pace { host: self, left: Pace::WORK }
    }

    /// Checks whether the run that this thread works for continues. Work that takes long without a parallel
    /// loop, or within one of its chunks, calls this every few hundred microseconds and returns the error.
    ///
    /// # Errors
    /// CANCELLED if the run is to end.
    pub fn check(&self) -> Result<()> {
        let Some(parallel_for) = self.api.parallel_for else { return Ok(()) };
        // SAFETY: B2: the host's function takes its own context until `destroy`; the body needs no argument.
        match unsafe { parallel_for(self.api.ctx, 0, 1, Some(nothing), std::ptr::null_mut()) } {
            DEVBAY_STATUS_CANCELLED => Err(Self::over()),
            // Older hosts have nothing to say of a loop without chunks.
            _ => Ok(()),
        }
    }
}

/// A throttle for [`Host::check`]: calls it after a given amount of work.
pub struct Pace<'h> {
    host: &'h Host,
    left: usize,
}

impl Pace<'_> {
    /// Operations between two checks: about a millisecond.
    const WORK: usize = 1 << 20;

    /// Counts operations on numbers that are done, or will be before the next call.
    ///
    /// # Errors
    /// As [`Host::check`].
    #[inline]
    pub fn work(&mut self, n: usize) -> Result<()> {
        if n < self.left {
            self.left -= n;
            return Ok(());
        }
        self.left = Self::WORK;
        self.host.check()
    }
}

/// Empty body, for a loop without chunks.
unsafe extern "C" fn nothing(_: *mut c_void, _: u64, _: u64, _: u32) -> Status {
    DEVBAY_STATUS_OK
}

/// The host's function.
type ParallelFor = unsafe extern "C" fn(*mut c_void, u64, u64, Option<ChunkFn>, *mut c_void) -> Status;

type Body<'a> = dyn Fn(Range<usize>, usize) -> Result<()> + Sync + 'a;

struct Call<'a> {
    body: &'a Body<'a>,
    error: OnceLock<Error>,
}

unsafe extern "C" fn chunk(arg: *mut c_void, begin: u64, end: u64, slot: u32) -> Status {
    // SAFETY: `arg` is the `Call` that `chunks` above passed, alive until it returns.
    let call = unsafe { &*arg.cast::<Call<'_>>() };
    match guard(|| (call.body)(begin as usize..end as usize, slot as usize)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => {
            let status = error.status();
            let _ = call.error.set(error);
            status
        }
    }
}
