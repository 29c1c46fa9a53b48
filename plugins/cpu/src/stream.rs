//! Streams: inline ones, and those with a thread, a queue and a timeline of their own.
//!
//! An asynchronous stream is what an accelerator is to the host: work returns before it has run, points are reached
//! later and from another thread, copies take their time. It exists so that the host's asynchronous half is
//! exercised wherever the processor is.
//!
//! # States of the timeline
//!
//! `reached` only rises, and only the stream's thread writes it. The first failure is kept and final: what is
//! enqueued behind it is dropped, later points fail, and earlier ones stay reached (B13). Callbacks are taken out
//! under the lock and called without it, so each is called once (B16).

use crate::device::{CpuDevice, Mode};
use devbay_plugin_api::abi::{DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_TIMEOUT};
use devbay_plugin_api::sdk::*;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

/// What the stream's owner, its thread and those who wait share.
struct Shared {
    host: Host,
    label: String,
    bytes_per_s: u64,
    queue: Mutex<Queue>,
    /// Something was enqueued, or the stream ends.
    enqueued: Condvar,
    /// Last value reached with success.
    reached: AtomicU64,
    timeline: Mutex<Timeline>,
    /// A point was reached, or the stream failed.
    moved: Condvar,
}

#[derive(Default)]
struct Queue {
    commands: VecDeque<Command>,
    /// Last value signalled.
    signalled: u64,
    closed: bool,
}

#[derive(Default)]
struct Timeline {
    failure: Option<Error>,
    waiting: Vec<(u64, Done)>,
}

#[expect(clippy::large_enum_variant, reason = "launches are the rule, and a box would allocate for each")]
enum Command {
    Launch(DeferredLaunch),
    Copy(Span),
    Signal(u64),
    Wait(Arc<Shared>, u64),
    Fail(Error),
}

/// A copy between addresses.
struct Span {
    src: *const u8,
    dst: *mut u8,
    size_bytes: usize,
}

// SAFETY: the host lends both ranges until a point signalled after the copy is reported (B9).
unsafe impl Send for Span {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
            enqueued: Condvar::new(),
            reached: AtomicU64::new(0),
            timeline: Mutex::default(),
            moved: Condvar::new(),
        });
        let worker = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("devbay-cpu-stream".to_owned())
            .spawn(move || worker.work())
            .map_err(|e| Error::unavailable(format!("cannot start a stream's thread: {e}")))?;
        Ok(Self::Async(AsyncStream { shared, thread: Some(thread) }))
    }

    fn timeline(&self) -> Result<&Arc<Shared>> {
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
            // The thread runs everything under the SDK's guard; a lost one has nothing left to touch.
            let _ = thread.join();
        }
        // Points that nobody will reach any more: those behind a failure were called when it came.
        let waiting = std::mem::take(&mut lock(&self.shared.timeline).waiting);
        for (_, done) in waiting {
            done.call(&Err(Error::new(DEVBAY_STATUS_ABORTED, "the stream was destroyed")));
        }
    }
}

impl Shared {
    fn push(&self, command: Command) -> Result<()> {
        let mut queue = lock(&self.queue);
        if let Command::Signal(value) = command {
            if value <= queue.signalled {
                return Err(Error::invalid(format!(
                    "signal of value {value} after {}, values rise strictly",
                    queue.signalled
                )));
            }
            queue.signalled = value;
        }
        queue.commands.push_back(command);
        drop(queue);
        self.enqueued.notify_one();
        Ok(())
    }

    /// The stream's thread.
    fn work(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let command = loop {
                if let Some(command) = queue.commands.pop_front() {
                    break command;
                }
                if queue.closed {
                    return;
                }
                queue = self.enqueued.wait(queue).unwrap_or_else(PoisonError::into_inner);
            };
            drop(queue);
            if lock(&self.timeline).failure.is_some() {
                // Behind a failure nothing runs; signals were answered when it came or are when they are asked.
                self.answer();
                continue;
            }
            let begin = now_ns(self.host.traces());
            // The command is used up when it has run.
            let name = self.host.traces().then(|| command.name().to_owned());
            if let Err(error) = self.execute(command) {
                lock(&self.timeline).failure.get_or_insert(error);
                self.moved.notify_all();
                self.answer();
            }
            if let Some(name) = &name {
                self.host.trace(name, &self.label, begin..now_ns(true));
            }
        }
    }

    fn execute(&self, command: Command) -> Result<()> {
        match command {
            Command::Launch(launch) => launch.run::<CpuStream>(),
            Command::Copy(span) => {
                let begin = Instant::now();
                // SAFETY: the host lends both ranges until a later point is reported, and `copy` allows overlap.
                unsafe { std::ptr::copy(span.src, span.dst, span.size_bytes) };
                let nanos = span.size_bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_s);
                sleep_until(begin + Duration::from_nanos(nanos as u64));
                Ok(())
            }
            Command::Signal(value) => {
                self.reached.store(value, Ordering::Release);
                // The lock orders this store with those who check and then wait.
                drop(lock(&self.timeline));
                self.moved.notify_all();
                self.answer();
                Ok(())
            }
            Command::Fail(failure) => Err(failure),
            Command::Wait(other, value) => other.wait_for(value, None).map_err(|error| {
                Error::new(
                    DEVBAY_STATUS_ABORTED,
                    format!("a stream that this one waits for failed: {}", error.text()),
                )
            }),
        }
    }

    /// Calls back who waits for a point that is reached, or can be no more.
    fn answer(&self) {
        let reached = self.reached.load(Ordering::Acquire);
        let mut timeline = lock(&self.timeline);
        let failure = timeline.failure.clone();
        let due = |value: u64| value <= reached || failure.is_some();
        let (ready, waiting) =
            std::mem::take(&mut timeline.waiting).into_iter().partition(|(value, _)| due(*value));
        timeline.waiting = waiting;
        drop(timeline);
        let ready: Vec<(u64, Done)> = ready;
        for (value, done) in ready {
            done.call(&outcome(value, reached, failure.as_ref()));
        }
    }

    /// Blocks until a value is reached.
    fn wait_for(&self, value: u64, deadline: Option<Instant>) -> Result<()> {
        let mut timeline = lock(&self.timeline);
        loop {
            let reached = self.reached.load(Ordering::Acquire);
            if reached >= value || timeline.failure.is_some() {
                return outcome(value, reached, timeline.failure.as_ref());
            }
            timeline = match deadline {
                None => self.moved.wait(timeline).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(Error::new(
                            DEVBAY_STATUS_TIMEOUT,
                            format!("value {value} was not reached in time"),
                        ));
                    }
                    self.moved.wait_timeout(timeline, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Refuses a value that was not signalled.
    fn check_signalled(&self, value: u64) -> Result<()> {
        let signalled = lock(&self.queue).signalled;
        if value > signalled {
            return Err(Error::invalid(format!("value {value} was not signalled, the last is {signalled}")));
        }
        Ok(())
    }
}

impl Command {
    /// What marks call it: a launch by its node, where that has a name.
    fn name(&self) -> &str {
        match self {
            Self::Launch(launch) if launch.label().is_empty() => "launch",
            Self::Launch(launch) => launch.label(),
            Self::Copy(_) => "copy",
            Self::Signal(_) => "signal",
            Self::Wait(..) => "wait",
            Self::Fail(_) => "fail",
        }
    }
}

fn outcome(value: u64, reached: u64, failure: Option<&Error>) -> Result<()> {
    match failure {
        Some(error) if value > reached => Err(error.clone()),
        _ => Ok(()),
    }
}

/// Nanoseconds of the system's monotonic clock, 0 if nobody asks.
fn now_ns(wanted: bool) -> u64 {
    if !wanted {
        return 0;
    }
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
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

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
        match self {
            Self::Inline => {
                copy.run_on_host();
                Ok(())
            }
            Self::Async(stream) => {
                let (src, dst) = copy.host_addresses();
                stream.shared.push(Command::Copy(Span { src, dst, size_bytes: copy.size_bytes }))
            }
        }
    }

    fn defer(&self, launch: DeferredLaunch) -> Result<()> {
        self.timeline()?.push(Command::Launch(launch))
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.timeline()?.push(Command::Signal(value))
    }

    fn reached(&self) -> (u64, Result<()>) {
        match self {
            Self::Inline => (0, Err(Error::unsupported("an inline stream has no timeline"))),
            Self::Async(stream) => {
                // The failure first: what was reached before it is then seen.
                let failure = lock(&stream.shared.timeline).failure.clone();
                let reached = stream.shared.reached.load(Ordering::Acquire);
                (reached, failure.map_or(Ok(()), Err))
            }
        }
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        let other = other.timeline()?;
        other.check_signalled(value)?;
        self.timeline()?.push(Command::Wait(Arc::clone(other), value))
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        let shared = self.timeline()?;
        shared.check_signalled(value)?;
        lock(&shared.timeline).waiting.push((value, done));
        shared.answer();
        Ok(())
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        let shared = self.timeline()?;
        shared.check_signalled(value)?;
        shared.wait_for(value, Instant::now().checked_add(timeout))
    }

    fn fail(&self, failure: Error) -> Result<()> {
        self.timeline()?.push(Command::Fail(failure))
    }

    fn failure(&self) -> Option<Error> {
        match self {
            Self::Inline => None,
            Self::Async(stream) => lock(&stream.shared.timeline).failure.clone(),
        }
    }
}
