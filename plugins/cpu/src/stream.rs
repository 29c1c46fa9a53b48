//! Streams: inline ones, and those with a thread, a queue and a timeline of their own.
//!
//! An asynchronous stream is what an accelerator is to the host: work returns before it has run, points are reached
//! later and from another thread, copies take their time. It exists so that the host's asynchronous half is
//! exercised wherever the processor is.

use crate::device::{CpuDevice, Mode};
use devbay_plugin_api::locks::{lock, wait};
use devbay_plugin_api::sdk::*;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A queue of work.
pub enum CpuStream {
    /// Work is done in the call.
    Inline,
    /// Work is done by a thread.
    Async(AsyncStream),
}

/// A stream with a thread.
pub struct AsyncStream {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// State that the stream's owner, its thread and waiting threads share.
struct Shared {
    host: Host,
    label: String,
    bytes_per_s: u64,
    queue: Mutex<Queue>,
    /// Work that is taken down and not run, while a recording is made.
    recorded: Mutex<Option<Vec<Taken>>>,
    /// Something was enqueued, or the stream ends.
    enqueued: Condvar,
    timeline: Timeline,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    closed: bool,
}

#[expect(clippy::large_enum_variant, reason = "launches are the rule, and a box would allocate for each")]
enum Command {
    Launch(DeferredLaunch),
    Replay(Arc<Vec<Taken>>, Replay),
    Copy(Span),
    Signal(u64),
    Wait(Arc<Shared>, u64),
    Fail(Error),
}

/// Content of a recording.
#[expect(clippy::large_enum_variant, reason = "as for commands")]
enum Taken {
    Launch(DeferredLaunch),
    Copy(Span),
}

/// A copy between addresses.
struct Span {
    src: *const u8,
    dst: *mut u8,
    size_bytes: usize,
}

// SAFETY: the host lends both ranges until a point signalled after the copy is reported (B9), or its recording freed.
unsafe impl Send for Span {}
// SAFETY: the addresses are only read.
unsafe impl Sync for Span {}

impl Span {
    /// Returns its place in a replay.
    fn bound(&self, replay: &Replay) -> Self {
        let place = |at: *const u8| replay.address(at.addr() as u64, self.size_bytes as u64) as usize;
        Self {
            src: place(self.src) as *const u8,
            dst: place(self.dst) as *mut u8,
            size_bytes: self.size_bytes,
        }
    }
}

impl CpuStream {
    /// A stream of the device's kind.
    ///
    /// # Errors
    /// Unavailable if no thread can be started.
    pub fn new(device: &CpuDevice, request: &StreamRequest<'_>) -> Result<Self> {
        let Mode::Async { bytes_per_s } = device.mode else {
            return Ok(Self::Inline);
        };
        let shared = Arc::new(Shared {
            host: device.host,
            label: if request.label.is_empty() { "stream".to_owned() } else { request.label.to_owned() },
            bytes_per_s,
            queue: Mutex::default(),
            recorded: Mutex::default(),
            enqueued: Condvar::new(),
            timeline: Timeline::default(),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("devbay-cpu-stream".to_owned())
            .spawn(move || worker.work())
            .map_err(|e| Error::unavailable(format!("cannot start a stream's thread: {e}")))?;
        Ok(Self::Async(AsyncStream { shared, thread: Some(thread) }))
    }

    fn shared(&self) -> Result<&Arc<Shared>> {
        match self {
            Self::Inline => Err(Error::unsupported("an inline stream has no timeline")),
            Self::Async(stream) => Ok(&stream.shared),
        }
    }
}

impl Drop for AsyncStream {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.enqueued.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread runs everything under the SDK's guard; if it is lost, it has nothing left to touch.
            let _ = thread.join();
        }
        // Points that can be reached no more: those behind a failure were called when it came.
        self.shared.timeline.abandon();
    }
}

impl Shared {
    fn push(&self, command: Command) -> Result<()> {
        if let Command::Signal(value) = command {
            self.timeline.signal(value)?;
        }
        lock(&self.queue).commands.push_back(command);
        self.enqueued.notify_one();
        Ok(())
    }

    /// The stream's thread.
    fn work(&self) {
        // The time at which the last copy was done, if the stream has had more to do since.
        let mut copied = None;
        loop {
            let mut queue = lock(&self.queue);
            let command = loop {
                if let Some(command) = queue.commands.pop_front() {
                    break command;
                }
                if queue.closed {
                    return;
                }
                copied = None;
                queue = wait(&self.enqueued, queue);
            };
            drop(queue);
            if self.timeline.failure().is_some() {
                // Behind a failure nothing runs; signals were answered when it came or are when they are asked.
                continue;
            }
            let begin = now_ns(self.host.traces());
            // The command is used up when it has run.
            let name = self.host.traces().then(|| command.name().to_owned());
            if let Err(error) = self.execute(command, &mut copied) {
                self.timeline.fail(error);
            }
            if let Some(name) = &name {
                self.host.trace(name, &self.label, begin..now_ns(true));
            }
        }
    }

    /// Runs a command. `copied` is when the last copy was done, if the next one may begin then: an accelerator's copy engine
    /// goes on while others are told that a point was reached.
    fn execute(&self, command: Command, copied: &mut Option<Instant>) -> Result<()> {
        match command {
            Command::Launch(launch) => {
                *copied = None;
                launch.run()
            }
            Command::Replay(taken, replay) => taken.iter().try_for_each(|taken| match taken {
                Taken::Launch(launch) => {
                    *copied = None;
                    launch.run_again(&replay)
                }
                Taken::Copy(span) => {
                    self.copy_span(&span.bound(&replay), copied);
                    Ok(())
                }
            }),
            Command::Copy(span) => {
                self.copy_span(&span, copied);
                Ok(())
            }
            Command::Signal(value) => {
                self.timeline.reach(value);
                Ok(())
            }
            Command::Fail(failure) => Err(failure),
            Command::Wait(other, value) => {
                if other.timeline.reached().0 < value {
                    *copied = None;
                }
                other.timeline.wait(value).map_err(|failure| failed_dependency(&failure))
            }
        }
    }
}

impl Shared {
    /// Copies, and takes its time.
    fn copy_span(&self, span: &Span, copied: &mut Option<Instant>) {
        let begin = copied.unwrap_or_else(Instant::now);
        // SAFETY: the host lends both ranges until a later point is reported, and `copy` allows overlap.
        unsafe { std::ptr::copy(span.src, span.dst, span.size_bytes) };
        let nanos = span.size_bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
        let due = begin + Duration::from_nanos(nanos as u64);
        *copied = Some(due.max(Instant::now()));
        sleep_until(due);
    }
}

impl Command {
    /// Returns its name in marks: for a launch its node's, if that has one.
    fn name(&self) -> &str {
        match self {
            Self::Launch(launch) if launch.label().is_empty() => "launch",
            Self::Launch(launch) => launch.label(),
            Self::Replay(..) => "replay",
            Self::Copy(_) => "copy",
            Self::Signal(_) => "signal",
            Self::Wait(..) => "wait",
            Self::Fail(_) => "fail",
        }
    }
}

/// Returns the system's monotonic clock in nanoseconds, or 0 if the time is not wanted.
#[cfg(unix)]
fn now_ns(wanted: bool) -> u64 {
    if !wanted {
        return 0;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Returns 0: the clock of the host's timeline is known on Unix alone.
#[cfg(not(unix))]
fn now_ns(_wanted: bool) -> u64 {
    0
}

/// Sleeps, or spins where the system's sleep is coarser than the time.
fn sleep_until(deadline: Instant) {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        if left > Duration::from_micros(200) {
            std::thread::sleep(left - Duration::from_micros(100));
        } else {
            std::hint::spin_loop();
        }
    }
}

impl Stream for CpuStream {
    type Buffer = HostBuffer;
    const TIMELINE: bool = true;
    const WAIT: bool = true;
    const ON_REACHED: bool = true;
    const HOST_WAIT: bool = true;
    const FLUSH: bool = true;
    const FAIL: bool = true;
    const REPLAY: bool = true;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        match self {
            Self::Inline => {
                copy.run_on_host();
                Ok(())
            }
            Self::Async(stream) => {
                let (src, dst) = copy.host_addresses();
                let span = Span { src, dst, size_bytes: copy.size_bytes };
                if let Some(recorded) = &mut *lock(&stream.shared.recorded) {
                    recorded.push(Taken::Copy(span));
                    return Ok(());
                }
                stream.shared.push(Command::Copy(span))
            }
        }
    }

    fn defer(&self, launch: DeferredLaunch) -> Result<()> {
        let shared = self.shared()?;
        if let Some(recorded) = &mut *lock(&shared.recorded) {
            recorded.push(Taken::Launch(launch));
            return Ok(());
        }
        shared.push(Command::Launch(launch))
    }

    fn record_begin(&self, _bindings: &[devbay_plugin_api::abi::BufferRef]) -> Result<()> {
        *lock(&self.shared()?.recorded) = Some(Vec::new());
        Ok(())
    }

    fn record_end(&self) -> Result<Recorded> {
        let taken = lock(&self.shared()?.recorded).take().unwrap_or_default();
        Ok(Box::new(Arc::new(taken)))
    }

    fn replay(&self, recorded: &Recorded, replay: Replay) -> Result<()> {
        let taken = recorded.downcast_ref::<Arc<Vec<Taken>>>();
        let taken = taken.ok_or_else(|| Error::internal("a recording of another kind"))?;
        self.shared()?.push(Command::Replay(Arc::clone(taken), replay))
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.shared()?.push(Command::Signal(value))
    }

    fn reached(&self) -> (u64, Result<()>) {
        match self {
            Self::Inline => (0, Err(Error::unsupported("an inline stream has no timeline"))),
            Self::Async(stream) => stream.shared.timeline.reached(),
        }
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        let other = other.shared()?;
        other.timeline.check_signalled(value)?;
        self.shared()?.push(Command::Wait(Arc::clone(other), value))
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.shared()?.timeline.on_reached(value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.shared()?.timeline.host_wait(value, timeout)
    }

    fn fail(&self, failure: Error) -> Result<()> {
        self.shared()?.push(Command::Fail(failure))
    }

    fn has_failed(&self) -> bool {
        match self {
            Self::Inline => false,
            Self::Async(stream) => stream.shared.timeline.has_failed(),
        }
    }

    fn failure(&self) -> Option<Error> {
        match self {
            Self::Inline => None,
            Self::Async(stream) => stream.shared.timeline.failure(),
        }
    }
}
