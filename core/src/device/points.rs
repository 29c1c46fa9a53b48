//! Points of timelines as calls: a plugin calls back when one is reached, or is polled where it cannot.
//!
//! One thread of the process polls for all plugins that have no `stream_on_reached`: it spins a little while points are
//! outstanding, then sleeps between polls, and sleeps until woken while there are none (B7).

use super::{Device, Stream};
use crate::async_value::{AsyncValueRef, AsyncValueSetter, Chain};
use crate::error::{Error, ErrorKind, Phase, Result};
use devbay_plugin_api::abi::{
    self, CopyDesc, DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_OK, DEVBAY_STATUS_UNSUPPORTED, DoneFn, Status,
};
use devbay_plugin_api::locks::{lock, wait};
use std::ffi::c_void;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// Rounds in which nothing came, after which the thread sleeps between rounds.
const ROUNDS_AWAKE: u32 = 2000;

/// Time that it sleeps between rounds.
const NAP: Duration = Duration::from_micros(50);

impl Device {
    /// Returns whether streams of the device can wait for each other.
    pub fn can_wait(&self) -> bool {
        self.plugin.about.table.stream_wait.is_some()
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// As the ABI's `copy`:
    /// 1. `stream` is the device's, and no other thread uses it now.
    /// 2. The memory that `desc` names stays until a point behind the copy is reached.
    pub(crate) unsafe fn copy_on(&self, stream: *mut abi::Stream, desc: &CopyDesc) -> Status {
        let Some(copy) = self.plugin.about.table.copy else {
            return DEVBAY_STATUS_UNSUPPORTED;
        };
        let _serial = self.plugin.serialise();
        // SAFETY: the stream is the device's and this thread's (# Safety, 1), and the memory stays (2).
        unsafe { copy(stream, desc) }
    }

    /// Enqueues a wait for a value of another stream.
    ///
    /// # Safety
    /// As the ABI's `stream_wait`:
    /// 1. Both streams are the device's, and no other thread uses the first one now.
    /// 2. `value` was signalled on the other.
    pub(crate) unsafe fn wait_on(
        &self,
        stream: *mut abi::Stream,
        other: *mut abi::Stream,
        value: u64,
    ) -> Status {
        let Some(wait) = self.plugin.about.table.stream_wait else {
            return DEVBAY_STATUS_UNSUPPORTED;
        };
        let _serial = self.plugin.serialise();
        // SAFETY: both streams are the device's, `stream` is this thread's (# Safety, 1), and `value` was signalled
        // (2).
        unsafe { wait(stream, other, value) }
    }

    /// Signals a value.
    ///
    /// # Safety
    /// As the ABI's `stream_signal`:
    /// 1. The stream is the device's, and no other thread uses it now.
    /// 2. Values rise.
    pub(crate) unsafe fn signal_on(&self, stream: *mut abi::Stream, value: u64) -> Status {
        let Some(signal) = self.plugin.about.table.stream_signal else {
            return DEVBAY_STATUS_UNSUPPORTED;
        };
        let _serial = self.plugin.serialise();
        // SAFETY: the stream is the device's and this thread's (# Safety, 1), and values rise (2).
        unsafe { signal(stream, value) }
    }

    /// Returns whether work enqueued on its streams may wait for a flush or a signal, and may be flushed within a
    /// line of launches. A line that is recorded has no flush, and that of a serialised plugin holds its lock.
    pub(crate) fn gathers(&self) -> bool {
        self.plugin.about.table.stream_flush.is_some() && !self.plugin.is_serialised() && !self.replays()
    }

    /// Makes the device begin with the enqueued work, if [`Device::gathers`].
    ///
    /// # Safety
    /// As the ABI's `stream_flush`: the stream is the device's, and no other thread uses it during the call.
    pub(crate) unsafe fn flush_on(&self, stream: *mut abi::Stream) -> Status {
        match self.plugin.about.table.stream_flush {
            // SAFETY: the stream is the device's, and no other thread uses it during the call (# Safety).
            Some(flush) => unsafe { flush(stream) },
            None => DEVBAY_STATUS_OK,
        }
    }

    /// Has `done(arg, status)` called once when a value is reached or can be no more; if this fails, never.
    ///
    /// # Safety
    /// As the ABI's `stream_on_reached`:
    /// 1. The stream is the device's, and lives until the call.
    /// 2. `value` was signalled.
    /// 3. The object behind `arg` lives until the call, and may be used from any thread.
    pub(crate) unsafe fn call_when_reached(
        self: &Arc<Self>,
        stream: *mut abi::Stream,
        value: u64,
        done: DoneFn,
        arg: *mut c_void,
    ) -> Status {
        let Some(on_reached) = self.plugin.about.table.stream_on_reached else {
            poller().add(Point { device: Arc::clone(self), stream, value, done, arg });
            return DEVBAY_STATUS_OK;
        };
        let _serial = self.plugin.serialise();
        // SAFETY: the stream is alive (# Safety, 1), `value` was signalled (2), and `arg` may be handed back on any
        // thread (3).
        unsafe { on_reached(stream, value, Some(done), arg) }
    }
}

impl Stream {
    /// Returns the point of a value that was signalled, as an async value: available when the device has reached it, an
    /// error when it can do so no more, or it was not signalled. Waiters run on the thread that the plugin calls back
    /// on.
    pub fn point(&self, value: u64) -> Chain {
        let (mut setter, point) = AsyncValueRef::<()>::unconstructed();
        if let Err(error) = self.device.check_usable() {
            let _ = setter.set_error(error);
            return point;
        }
        if value > self.signalled {
            // It may never be signalled, so polling for it might never stop.
            let text = format!("point {value} of a stream that has signalled {}", self.signalled);
            let _ =
                setter.set_error(Error::new(ErrorKind::InvalidArgument, text).on_device(self.device.name()));
            return point;
        }
        let waiting = Box::into_raw(Box::new(Waiting { device: Arc::clone(&self.device), value, setter }));
        // SAFETY: the stream is this one, whose drop makes the call if nothing did before (B16, `forget`); the argument
        // is a box that the call takes over.
        let status =
            unsafe { self.device.call_when_reached(self.handle.as_ptr(), value, reached, waiting.cast()) };
        if status != DEVBAY_STATUS_OK {
            // SAFETY: made above, and no call comes for it.
            let mut waiting = unsafe { Box::from_raw(waiting) };
            let error = self.check(status, Phase::CallBack).err();
            let _ = waiting.setter.set_error(error.unwrap_or_else(|| waiting.failure(status)));
        }
        point
    }
}

/// A waiter for a point.
struct Waiting {
    device: Arc<Device>,
    value: u64,
    setter: AsyncValueSetter<()>,
}

impl Waiting {
    fn failure(&self, status: Status) -> Error {
        let error = Error::from_status(status, Phase::Reach(self.value), "");
        self.device.failed(error.in_plugin(self.device.plugin.name()))
    }
}

unsafe extern "C" fn reached(arg: *mut c_void, status: Status) {
    // SAFETY: `arg` came from `Box::into_raw` in `Stream::point`, and a call comes once (B16).
    let mut waiting = unsafe { Box::from_raw(arg.cast::<Waiting>()) };
    if status == DEVBAY_STATUS_OK {
        let _ = waiting.setter.emplace(());
    } else {
        let error = waiting.failure(status);
        let _ = waiting.setter.set_error(error);
    }
}

/// A point that is polled for.
struct Point {
    device: Arc<Device>,
    stream: *mut abi::Stream,
    value: u64,
    done: DoneFn,
    arg: *mut c_void,
}

// SAFETY: `stream_reached` is for any thread, and the argument of a call may be used from any.
unsafe impl Send for Point {}

impl Point {
    /// Returns the outcome, if it is known.
    fn outcome(&self) -> Option<Status> {
        if self.device.check_usable().is_err() {
            return Some(DEVBAY_STATUS_ABORTED);
        }
        let stream_reached = self.device.plugin.about.table.stream_reached?;
        let mut reached = 0;
        let status = {
            let _serial = self.device.plugin.serialise();
            // SAFETY: the stream is alive, because `forget` takes its points out before it goes; `reached` is ours.
            unsafe { stream_reached(self.stream, &mut reached) }
        };
        if status != DEVBAY_STATUS_OK {
            // Before another point of it is asked for: of a lost device nothing more is asked.
            let _ = self.device.failed(Error::from_status(status, Phase::AskReached, ""));
        }
        match status {
            _ if reached >= self.value => Some(DEVBAY_STATUS_OK),
            DEVBAY_STATUS_OK => None,
            status => Some(status),
        }
    }

    fn call(self, status: Status) {
        // SAFETY: `arg` is alive until this call (# Safety of `call_when_reached`, 3), which is the only one: `self` is
        // taken.
        unsafe { (self.done)(self.arg, status) };
    }
}

#[derive(Default)]
struct Poller {
    points: Mutex<Vec<Point>>,
    added: Condvar,
}

static POLLER: OnceLock<Result<&'static Poller>> = OnceLock::new();

/// Returns the process's poller; its thread is started with the first point. Without a thread, points are aborted at
/// once.
fn poller() -> &'static Poller {
    static WITHOUT_THREAD: OnceLock<Poller> = OnceLock::new();
    let started = POLLER.get_or_init(|| {
        let poller: &'static Poller = Box::leak(Box::default());
        std::thread::Builder::new()
            .name("devbay-points".to_owned())
            .spawn(move || poller.work())
            .map_err(|e| Error::new(ErrorKind::Unavailable, "cannot start the polling thread").because(e))?;
        Ok(poller)
    });
    match started {
        Ok(poller) => poller,
        Err(_) => WITHOUT_THREAD.get_or_init(Poller::default),
    }
}

impl Poller {
    fn lock(&self) -> MutexGuard<'_, Vec<Point>> {
        lock(&self.points)
    }

    fn add(&self, point: Point) {
        if POLLER.get().is_some_and(Result::is_err) {
            // Without a poller the point would never be looked at.
            point.call(DEVBAY_STATUS_ABORTED);
            return;
        }
        self.lock().push(point);
        self.added.notify_one();
    }

    fn work(&self) {
        let mut idle = 0;
        loop {
            let mut points = self.lock();
            while points.is_empty() {
                idle = 0;
                points = wait(&self.added, points);
            }
            let mut known = Vec::new();
            let mut i = 0;
            while i < points.len() {
                match points[i].outcome() {
                    Some(status) => known.push((points.swap_remove(i), status)),
                    None => i += 1,
                }
            }
            drop(points);
            idle = if known.is_empty() { idle + 1 } else { 0 };
            for (point, status) in known {
                point.call(status);
            }
            match idle {
                0..ROUNDS_AWAKE => std::thread::yield_now(),
                _ => std::thread::sleep(NAP),
            }
        }
    }

    /// Ends the points of a stream that goes: they can be reached no more.
    fn forget(&self, stream: *mut abi::Stream) {
        let gone: Vec<Point> = self.lock().extract_if(.., |point| point.stream == stream).collect();
        for point in gone {
            point.call(DEVBAY_STATUS_ABORTED);
        }
    }
}

/// Ends the points of a stream that goes, if it is one that is polled.
pub(super) fn forget(device: &Device, stream: *mut abi::Stream) {
    if device.info.inline || device.plugin.about.table.stream_on_reached.is_some() {
        return;
    }
    if let Some(Ok(poller)) = POLLER.get() {
        poller.forget(stream);
    }
}
