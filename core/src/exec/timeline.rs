//! Devices' timelines in a run: the steps that copy, wait and signal, and the arrivals that come back.
//!
//! To the launch loop these are steps like any other, a function, a state and references, so that it needs no question
//! for them. A signal's state says which of its lane's signals in a run it is; the value is that of the stream when the
//! run began and so many more. Behind a task that others wait for on the host the signal asks the device to call back,
//! with the address of an [`ArrivalCall`] of the frame's: the callback puts the arrival into the run's [`Inbox`] and
//! wakes a thread that waits for one.
//!
//! # Protocol of the inbox
//!
//! | data | actor | order |
//! | --- | --- | --- |
//! | `calls` | the signal adds one before it asks for a call back; the call subtracts it as the last thing it does | Release, Acquire |
//! | `ready` | the call pushes, any thread of the run pops | the queue's |
//! | `sleeper` | the run's caller says that it sleeps, then looks once more; a call pushes, then wakes a sleeping caller | SeqCst fences |
//!
//! A frame is reused or freed only when `calls` is 0: until then a call may still be in progress. After a failure some
//! calls may come as late as the end of their streams (B16), so no thread waits for them before that.

use super::nested::Context;
use crate::device::Device;
use crate::error::caught;
use crate::plan::steps::{CopyKind, CopyState, SignalState, WaitState};
use crate::sync::{AtomicU32, AtomicU64, Ordering, thread};
use crate::threads::queue::WorkQueue;
use crate::threads::sleeper::Sleeper;
use crossbeam_queue::ArrayQueue;
use devbay_plugin_api::abi::{
    BufferRef, CopyDesc, DEVBAY_COPY_BUFFER_TO_BUFFER, DEVBAY_COPY_BUFFER_TO_HOST,
    DEVBAY_COPY_HOST_TO_BUFFER, DEVBAY_STATUS_INVALID, DEVBAY_STATUS_OK, Growable, Status, Stream,
};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

/// Arrivals that a run has to take.
pub(crate) struct Inbox {
    /// Positions of arrivals among the graph's, and how the device says that it went.
    ready: ArrayQueue<(u32, Status)>,
    calls: Calls,
    sleeper: Arc<Sleeper>,
    /// The queue whose workers take part in the run, if they do.
    queue: Option<Arc<WorkQueue>>,
}

impl Inbox {
    /// Returns the next arrival.
    pub fn take(&self) -> Option<(u32, Status)> {
        self.ready.pop()
    }

    /// Returns whether one has come.
    pub fn has_mail(&self) -> bool {
        !self.ready.is_empty()
    }
}

/// Calls back that were asked for and have not returned.
#[derive(Default)]
struct Calls(AtomicU32);

impl Calls {
    /// Before one is asked for.
    fn ask(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a call, as its last action, or replaces a call that will not come. Release: a thread that finds 0 sees all
    /// that was done before.
    fn end(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// Waits until none is on its way; all that were asked for have come or are about to.
    fn settle(&self) {
        while self.0.load(Ordering::Acquire) != 0 {
            thread::yield_now();
        }
    }
}

/// A lane in a run.
struct Clock {
    stream: *mut Stream,
    /// The stream's last signal when the run began, or the region of control flow that uses it now.
    base: AtomicU64,
    /// The stream's last signal when that has ended.
    end: AtomicU64,
}

impl Default for Clock {
    fn default() -> Self {
        Self { stream: null_mut(), base: AtomicU64::new(0), end: AtomicU64::new(0) }
    }
}

/// The argument with which a device calls back.
struct ArrivalCall {
    inbox: *const Inbox,
    arrival: u32,
}

/// The timelines of a run; part of the frame, behind its context.
pub(crate) struct Timelines {
    clocks: Box<[Clock]>,
    calls: Box<[ArrivalCall]>,
    /// Boxed: the calls name its address.
    inbox: Box<Inbox>,
}

// SAFETY: the streams are the frame's, the calls point into `inbox` beside them; both are used as the protocol says.
unsafe impl Send for Timelines {}
// SAFETY: the clocks are atomic, and the calls are read-only while a run is under way.
unsafe impl Sync for Timelines {}

impl Timelines {
    /// Timelines of streams, NULL for inline lanes, and of so many arrivals.
    pub fn new(
        streams: &[*mut Stream],
        n_arrivals: usize,
        sleeper: &Arc<Sleeper>,
        queue: Option<&Arc<WorkQueue>>,
    ) -> Self {
        let inbox = Box::new(Inbox {
            ready: ArrayQueue::new(n_arrivals.max(1)),
            calls: Calls::default(),
            sleeper: Arc::clone(sleeper),
            queue: queue.cloned(),
        });
        let address = std::ptr::from_ref(&*inbox);
        Self {
            clocks: streams.iter().map(|&stream| Clock { stream, ..Clock::default() }).collect(),
            calls: (0..n_arrivals as u32).map(|arrival| ArrivalCall { inbox: address, arrival }).collect(),
            inbox,
        }
    }

    /// Begins a run. For each lane, `signals` has the last signalled value of its stream, and the number of signals by
    /// tasks outside regions.
    pub fn begin<'n>(&self, signals: impl Iterator<Item = (u64, &'n u32)>) {
        debug_assert!(!self.inbox.has_mail());
        for (clock, (signalled, &n)) in self.clocks.iter().zip(signals) {
            clock.base.store(signalled, Ordering::Relaxed);
            clock.end.store(signalled + u64::from(n), Ordering::Relaxed);
        }
    }

    /// Begins a region, or another iteration of it, whose tasks signal on a lane so often.
    pub fn begin_region(&self, lane: u32, n: u32) {
        let clock = &self.clocks[lane as usize];
        let end = clock.end.load(Ordering::Relaxed);
        clock.base.store(end, Ordering::Relaxed);
        clock.end.store(end + u64::from(n), Ordering::Relaxed);
    }

    /// Returns the last value that each lane's stream has signalled in a run that has ended, or was to.
    pub fn signalled(&self) -> impl Iterator<Item = u64> {
        self.clocks.iter().map(|clock| clock.end.load(Ordering::Relaxed))
    }

    pub fn inbox(&self) -> &Inbox {
        &self.inbox
    }

    /// Ends a run whose points were all reached, or can no longer be. Drops arrivals that were not taken.
    pub fn end(&self) {
        self.inbox.calls.settle();
        while self.inbox.take().is_some() {}
    }
}

impl Drop for Timelines {
    /// Waits for calls that streams' ends have made; a frame's streams end first.
    fn drop(&mut self) {
        self.inbox.calls.settle();
    }
}

/// Returns the timelines of the run that a step belongs to.
///
/// # Safety
/// `refs` are those of a step whose first reference is the context of a frame with timelines, which runs now.
unsafe fn timelines<'a>(refs: *const BufferRef) -> Option<&'a Timelines> {
    // SAFETY: the first reference names the context of a frame that runs now (# Safety).
    let context: &'a Context = unsafe { &*((*refs).addr as *const Context) };
    // Frames of sections with such steps have them: `Frame::new`.
    context.timelines()
}

pub(super) unsafe extern "C" fn launch_copy(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let CopyState { device, kind } = unsafe { &*state.cast::<CopyState>() };
    // SAFETY: a copy step has two references, the source and the destination.
    let (src, dst) = unsafe { (*refs, *refs.add(1)) };
    if device.about().inline {
        // SAFETY: an inline device of a section works in the host's memory; both ranges are lent for the run, and the
        // second is only this step's. An arena's value is not copied onto itself.
        unsafe {
            std::ptr::copy_nonoverlapping(src.addr as *const u8, dst.addr as *mut u8, dst.length as usize);
        }
        return DEVBAY_STATUS_OK;
    }
    let desc = match kind {
        CopyKind::Within => CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src,
            dst,
            size_bytes: dst.length,
            ..CopyDesc::empty()
        },
        CopyKind::ToDevice => CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst,
            host_src: src.addr as *const c_void,
            size_bytes: dst.length,
            ..CopyDesc::empty()
        },
        CopyKind::FromDevice => CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src,
            host_dst: dst.addr as *mut c_void,
            size_bytes: src.length,
            ..CopyDesc::empty()
        },
    };
    // SAFETY: the stream is the device's and this thread's; both ranges are lent until the run's devices are at rest.
    unsafe { device.copy_on(stream, &desc) }
}

pub(super) unsafe extern "C" fn launch_wait(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let WaitState { device, wait } = unsafe { &*state.cast::<WaitState>() };
    // SAFETY: a wait's first reference is its frame's context, which has timelines (`Frame::new`), and the frame runs
    // now.
    let Some(timelines) = (unsafe { timelines(refs) }) else {
        return DEVBAY_STATUS_INVALID;
    };
    let clock = &timelines.clocks[wait.lane as usize];
    let value = clock.base.load(Ordering::Relaxed) + u64::from(wait.nth);
    // SAFETY: both streams are of this device and of this run; the task that signals the value comes before this one.
    unsafe { device.wait_on(stream, clock.stream, value) }
}

pub(super) unsafe extern "C" fn launch_signal(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let SignalState { device, lane, at } = unsafe { &*state.cast::<SignalState>() };
    // SAFETY: a signal's first reference is its frame's context, which has timelines (`Frame::new`), and the frame runs
    // now.
    let Some(timelines) = (unsafe { timelines(refs) }) else {
        return DEVBAY_STATUS_INVALID;
    };
    let value = timelines.clocks[*lane as usize].base.load(Ordering::Relaxed) + u64::from(at.nth);
    // SAFETY: the stream is the device's and this thread's; values rise with the lane's signals.
    let status = unsafe { device.signal_on(stream, value) };
    let Some(arrival) = at.arrival.filter(|_| status == DEVBAY_STATUS_OK) else {
        return status;
    };
    timelines.inbox.calls.ask();
    let arg = std::ptr::from_ref(&timelines.calls[arrival as usize]).cast_mut().cast();
    // SAFETY: the value was signalled; the frame keeps the object behind `arg` until every call has come (`calls`).
    let status = unsafe { device.call_when_reached(stream, value, arrived, arg) };
    if status != DEVBAY_STATUS_OK {
        // It will not be called.
        timelines.inbox.calls.end();
    }
    status
}

pub(super) unsafe extern "C" fn launch_flush(
    state: *const c_void,
    stream: *mut Stream,
    _refs: *const BufferRef,
    _dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step.
    let device = unsafe { &*state.cast::<Device>() };
    // SAFETY: the stream is the device's and this thread's.
    unsafe { device.flush_on(stream) }
}

/// Called by a device, or by the thread that polls it, when the point behind a task is reached or can be no more.
unsafe extern "C" fn arrived(arg: *mut c_void, status: Status) {
    // SAFETY: the argument is that of `launch_signal`, lent until `calls` is counted down below.
    let call = unsafe { &*arg.cast::<ArrivalCall>() };
    // SAFETY: the call points to the inbox beside it in the timelines, which are kept until `calls` is counted down.
    let inbox = unsafe { &*call.inbox };
    // There is room for every arrival once.
    let _ = inbox.ready.push((call.arrival, status));
    if !inbox.sleeper.wake()
        && let Some(queue) = &inbox.queue
    {
        // The application's threads may be asked, which runs its code: a panic of it ends here.
        let _ = caught("waking a thread", || queue.offered());
    }
    // Nothing may touch the frame behind this.
    inbox.calls.end();
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::UnsafeCell;
    use loom::sync::Arc as LoomArc;

    /// A frame is changed for its next run only when the call of the one before has left it.
    #[test]
    fn a_frame_is_used_again_while_a_call_is_on_its_way_out() {
        struct Frame {
            calls: Calls,
            memory: UnsafeCell<u32>,
        }
        // SAFETY: the model checks that no thread reads `memory` while another writes it.
        unsafe impl Sync for Frame {}
        // SAFETY: `memory` may be written on any thread, one at a time, which the model checks.
        unsafe impl Send for Frame {}
        loom::model(|| {
            let frame = LoomArc::new(Frame { calls: Calls::default(), memory: UnsafeCell::new(1) });
            frame.calls.ask();
            let device = {
                let frame = LoomArc::clone(&frame);
                loom::thread::spawn(move || {
                    // SAFETY: `memory` is not written before `end`.
                    assert_eq!(frame.memory.with(|memory| unsafe { *memory }), 1);
                    frame.calls.end();
                })
            };
            frame.calls.settle();
            // SAFETY: the one call has ended.
            frame.memory.with_mut(|memory| unsafe { *memory = 2 });
            device.join().unwrap();
        });
    }
}
