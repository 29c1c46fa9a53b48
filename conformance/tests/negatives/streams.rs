//! Wrong streams, timelines, points and callbacks.

use super::{ASYNC, INLINE, Negative, forward, negative};
use devbay_plugin_api::abi::*;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

pub fn all() -> Vec<Negative> {
    vec![
        negative!(INLINE, "stream.create", "one stream at a time", |_, table| {
            table.stream_create = Some(one_stream);
            table.stream_destroy = Some(one_less);
        }),
        negative!(INLINE, "stream.sizes", "labels that old hosts do not have", |_, table| {
            table.stream_create = Some(wants_label);
        }),
        negative!(INLINE, "stream.max", "more streams than it says", |_, table| {
            table.devices = Some(three_streams);
        }),
        negative!(ASYNC, "stream.fresh", "a timeline that begins at 1", |_, table| {
            table.stream_reached = Some(begins_at_one);
        }),
        negative!(ASYNC, "stream.signal", "values of 32 bits", |_, table| {
            table.stream_reached = Some(narrow);
        }),
        negative!(ASYNC, "stream.timeline.monotonic", "a timeline that falls now and then", |_, table| {
            table.stream_reached = Some(falls);
        }),
        negative!(ASYNC, "stream.flush", "flushes that fail", |_, table| {
            table.stream_flush = Some(no_flush);
        }),
        negative!(ASYNC, "event.not_early", "a point is reached when it is signalled", |_, table| {
            table.stream_signal = Some(notes_signal);
            table.stream_reached = Some(early);
            table.stream_destroy = Some(forgets_signal);
        }),
        negative!(INLINE, "event.not_early", "an inline device whose copies go on", |_, table| {
            table.copy = Some(goes_on);
            table.buffer_free = Some(keeps);
        }),
        negative!(ASYNC, "event.host_wait", "waits that do not wait", |_, table| {
            table.stream_host_wait = Some(does_not_wait);
        }),
        negative!(ASYNC, "event.wait", "waits for other streams that are forgotten", |_, table| {
            table.stream_wait = Some(no_wait);
        }),
        negative!(ASYNC, "event.unsignalled", "waits for what was never signalled", |_, table| {
            table.stream_wait = Some(waits_for_anything);
        }),
        negative!(ASYNC, "event.callback.once", "callbacks that come twice", |_, table| {
            table.stream_on_reached = Some(twice);
        }),
        negative!(ASYNC, "event.callback.once", "callbacks that never come", |_, table| {
            table.stream_on_reached = Some(never);
        }),
        negative!(ASYNC, "event.callback.once", "callbacks with a failure", |_, table| {
            table.stream_on_reached = Some(with_failure);
        }),
        negative!(ASYNC, "event.callback.not_early", "callbacks at once", |_, table| {
            table.stream_on_reached = Some(at_once);
        }),
        negative!(ASYNC, "event.callback.unlocked", "callbacks under a lock", |_, table| {
            table.stream_on_reached = Some(under_lock);
            table.buffer_alloc = Some(takes_lock);
        }),
        negative!(ASYNC, "event.callback.destroy", "callbacks after the stream is gone", |_, table| {
            table.stream_on_reached = Some(lingers);
        }),
        negative!(ASYNC, "event.destroy", "a stream that does not wait for its work", |_, table| {
            table.stream_destroy = Some(abandons);
        }),
    ]
}

static STREAMS: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn one_stream(
    device: *mut Device,
    desc: *const StreamDesc,
    out: *mut *mut Stream,
    error: *mut ErrorDetail,
) -> Status {
    if STREAMS.load(Ordering::Relaxed) > 0 {
        return DEVBAY_STATUS_FAILED_PRECONDITION;
    }
    STREAMS.fetch_add(1, Ordering::Relaxed);
    forward!(stream_create(device, desc, out, error))
}

unsafe extern "C" fn one_less(stream: *mut Stream) {
    STREAMS.fetch_sub(1, Ordering::Relaxed);
    forward!(stream_destroy(stream));
}

unsafe extern "C" fn wants_label(
    device: *mut Device,
    desc: *const StreamDesc,
    out: *mut *mut Stream,
    error: *mut ErrorDetail,
) -> Status {
    // SAFETY: the host's struct, and what stands behind it; hosts of the suite have memory there.
    if unsafe { (*desc).label.len } > 1 << 20 {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(stream_create(device, desc, out, error))
}

unsafe extern "C" fn three_streams(
    instance: *mut Instance,
    out: *mut List,
    error: *mut ErrorDetail,
) -> Status {
    let status = forward!(devices(instance, out, error));
    // SAFETY: the list that the CPU plugin just wrote.
    let infos = unsafe { read_growable_list::<DeviceInfo>(&*out) }.expect("the CPU plugin's list is whole");
    let infos: Vec<_> = infos.into_iter().map(|info| DeviceInfo { streams_max: 3, ..info }).collect();
    // SAFETY: the host's place; the list is leaked.
    unsafe { *out = List::new(infos.leak()) };
    status
}

/// What the CPU plugin says, with a change to the value.
fn reached(stream: *mut Stream, out: *mut u64, change: impl FnOnce(u64) -> u64) -> Status {
    let status = forward!(stream_reached(stream, out));
    // SAFETY: NULL, or the host's place.
    if let Some(value) = unsafe { out.as_mut() } {
        *value = change(*value);
    }
    status
}

unsafe extern "C" fn begins_at_one(stream: *mut Stream, out: *mut u64) -> Status {
    reached(stream, out, |value| value.max(1))
}

unsafe extern "C" fn narrow(stream: *mut Stream, out: *mut u64) -> Status {
    reached(stream, out, |value| u64::from(value as u32))
}

unsafe extern "C" fn falls(stream: *mut Stream, out: *mut u64) -> Status {
    static N: AtomicUsize = AtomicUsize::new(0);
    let odd = N.fetch_add(1, Ordering::Relaxed) % 7 == 6;
    reached(stream, out, |value| if odd && (100..1000).contains(&value) { value - 1 } else { value })
}

unsafe extern "C" fn no_flush(_: *mut Stream) -> Status {
    DEVBAY_STATUS_UNAVAILABLE
}

static SIGNALLED: Mutex<BTreeMap<usize, u64>> = Mutex::new(BTreeMap::new());

unsafe extern "C" fn notes_signal(stream: *mut Stream, value: u64) -> Status {
    let status = forward!(stream_signal(stream, value));
    SIGNALLED.lock().expect("nobody panics here").insert(stream as usize, value);
    status
}

unsafe extern "C" fn early(stream: *mut Stream, out: *mut u64) -> Status {
    let value = SIGNALLED.lock().expect("nobody panics here").get(&(stream as usize)).copied();
    reached(stream, out, |reached| value.unwrap_or(reached))
}

unsafe extern "C" fn forgets_signal(stream: *mut Stream) {
    SIGNALLED.lock().expect("nobody panics here").remove(&(stream as usize));
    forward!(stream_destroy(stream));
}

unsafe extern "C" fn goes_on(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    // SAFETY: the host's struct.
    let asked = unsafe { *desc };
    if asked.kind != DEVBAY_COPY_BUFFER_TO_HOST || asked.size_bytes < 1 << 20 {
        return forward!(copy(stream, desc));
    }
    let (src, dst, len) = (asked.src.addr as usize, asked.host_dst as usize, asked.size_bytes as usize);
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_micros(500));
        // SAFETY: lent until the call returns, which is what is broken; the case keeps both a while.
        unsafe { std::ptr::copy_nonoverlapping(src as *const u8, dst as *mut u8, len) };
    });
    DEVBAY_STATUS_OK
}

/// What a copy that goes on may still read.
unsafe extern "C" fn keeps(_: *mut Buffer) {}

unsafe extern "C" fn does_not_wait(stream: *mut Stream, value: u64, _: u64) -> Status {
    match forward!(stream_host_wait(stream, value, 0)) {
        DEVBAY_STATUS_TIMEOUT => DEVBAY_STATUS_OK,
        status => status,
    }
}

unsafe extern "C" fn no_wait(_: *mut Stream, other: *mut Stream, value: u64) -> Status {
    // Still refuses what was not signalled.
    match forward!(stream_host_wait(other, value, 0)) {
        DEVBAY_STATUS_TIMEOUT => DEVBAY_STATUS_OK,
        status => status,
    }
}

unsafe extern "C" fn waits_for_anything(stream: *mut Stream, other: *mut Stream, value: u64) -> Status {
    match forward!(stream_wait(stream, other, value)) {
        DEVBAY_STATUS_INVALID => DEVBAY_STATUS_OK,
        status => status,
    }
}

/// A callback and its argument, to be called another way.
struct Held {
    done: DoneFn,
    arg: *mut c_void,
}

impl Held {
    fn boxed(done: Option<DoneFn>, arg: *mut c_void) -> *mut c_void {
        Box::into_raw(Box::new(Self { done: done.expect("the suite gives one"), arg })).cast()
    }
}

/// Asks the CPU plugin to call `through` with the host's callback.
fn held(stream: *mut Stream, value: u64, through: DoneFn, done: Option<DoneFn>, arg: *mut c_void) -> Status {
    forward!(stream_on_reached(stream, value, Some(through), Held::boxed(done, arg)))
}

unsafe extern "C" fn call_twice(arg: *mut c_void, status: Status) {
    // SAFETY: made by `Held::boxed`, never freed.
    let held = unsafe { &*arg.cast::<Held>() };
    // SAFETY: the host's callback.
    unsafe { (held.done)(held.arg, status) };
    // SAFETY: the second time is what is broken; the suite leaks what it lends.
    unsafe { (held.done)(held.arg, status) };
}

unsafe extern "C" fn twice(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    held(stream, value, call_twice, done, arg)
}

unsafe extern "C" fn swallow(_: *mut c_void, _: Status) {}

unsafe extern "C" fn never(stream: *mut Stream, value: u64, _: Option<DoneFn>, arg: *mut c_void) -> Status {
    forward!(stream_on_reached(stream, value, Some(swallow), arg))
}

unsafe extern "C" fn call_aborted(arg: *mut c_void, _: Status) {
    // SAFETY: made by `Held::boxed`, never freed.
    let held = unsafe { &*arg.cast::<Held>() };
    // SAFETY: the host's callback, once.
    unsafe { (held.done)(held.arg, DEVBAY_STATUS_ABORTED) };
}

unsafe extern "C" fn with_failure(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    held(stream, value, call_aborted, done, arg)
}

unsafe extern "C" fn at_once(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    // Refuses what was not signalled, as before.
    let status = forward!(stream_on_reached(stream, value, Some(swallow), arg));
    if status == DEVBAY_STATUS_OK {
        let done = done.expect("the suite gives one");
        // SAFETY: the host's callback, once.
        unsafe { done(arg, DEVBAY_STATUS_OK) };
    }
    status
}

static LOCK: Mutex<()> = Mutex::new(());

unsafe extern "C" fn call_locked(arg: *mut c_void, status: Status) {
    let _lock = LOCK.lock();
    // SAFETY: made by `Held::boxed`, never freed.
    let held = unsafe { &*arg.cast::<Held>() };
    // SAFETY: the host's callback, once.
    unsafe { (held.done)(held.arg, status) };
}

unsafe extern "C" fn under_lock(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    held(stream, value, call_locked, done, arg)
}

unsafe extern "C" fn takes_lock(
    device: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    let _lock = LOCK.lock();
    forward!(buffer_alloc(device, desc, out, error))
}

unsafe extern "C" fn call_later(arg: *mut c_void, status: Status) {
    let arg = arg as usize;
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(2));
        // SAFETY: made by `Held::boxed`, never freed.
        let held = unsafe { &*(arg as *const Held) };
        // SAFETY: the host's callback, once; the suite leaks what it lends.
        unsafe { (held.done)(held.arg, status) };
    });
}

unsafe extern "C" fn lingers(
    stream: *mut Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    held(stream, value, call_later, done, arg)
}

/// Destroys in the background, whereas the host is told that it is done.
unsafe extern "C" fn abandons(stream: *mut Stream) {
    let stream = stream as usize;
    std::thread::spawn(move || {
        forward!(stream_destroy(stream as *mut Stream));
    });
}
