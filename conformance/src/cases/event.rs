//! Points on timelines: when they are reported, to whom, and how often (B12, B16, B24).
//!
//! Whether a point is early is asked of the destination of a long chain of copies: what its end holds when the
//! point is reported, and whether that changes before the stream is gone. So a wrong copy is not taken for an
//! early point, nor the other way round.

use crate::case::Case;
use crate::rig::{Buffer, Device, Lent, PATIENCE, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use devbay_plugin_api::locks::{lock, unpoisoned};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[Case {
    id: "event.not_early",
    rules: &["B9", "B12", "B14"],
    requires: "a point is reached only when all before it is done; on an inline device, when the call returns",
    needs: &["memory.alloc", "stream.create", "stream.signal"],
    run: not_early,
}];

pub(crate) const ORDER_CASES: &[Case] = &[
    Case {
        id: "event.host_wait",
        rules: &["B12"],
        requires: "`stream_host_wait` returns OK only when the value is reached, and TIMEOUT changes nothing",
        needs: &["transfer.round_trip"],
        run: host_wait,
    },
    Case {
        id: "event.host_wait.limits",
        rules: &["B12"],
        requires: "a `stream_host_wait` of 0 ns asks and does not block, one of UINT64_MAX ns has no limit",
        needs: &["event.host_wait"],
        run: host_wait_limits,
    },
    Case {
        id: "event.wait",
        rules: &["B12"],
        requires: "what follows `stream_wait` on one stream runs after the point of the other",
        needs: &["transfer.device"],
        run: wait,
    },
    Case {
        id: "event.unsignalled",
        rules: &["B12", "B16"],
        requires: "waits and callbacks for a value that was not signalled are refused with INVALID",
        needs: &["stream.signal"],
        run: unsignalled,
    },
    Case {
        id: "event.wait.self",
        rules: &["B12"],
        requires: "a stream may wait for a point of its own, and goes on",
        needs: &["event.wait", "event.unsignalled"],
        run: wait_self,
    },
    Case {
        id: "event.wait.destroyed",
        rules: &["B12", "B24"],
        requires: "a stream may be destroyed once another one waits for it, which goes on when its work is done",
        needs: &["event.not_early", "event.wait"],
        run: wait_destroyed,
    },
    Case {
        id: "event.callback.once",
        rules: &["B16"],
        requires: "each callback comes exactly once, with OK, also for a value reached before",
        needs: &["stream.signal"],
        run: callback_once,
    },
    Case {
        id: "event.between",
        rules: &["B12", "B16"],
        requires: "0 and values between two signals count as signalled, and are reached with the next signal",
        needs: &["event.host_wait", "event.wait", "event.callback.once"],
        run: between,
    },
    Case {
        id: "event.callback.not_early",
        rules: &["B12", "B16"],
        requires: "a callback comes only when all before its point is done",
        needs: &["event.callback.once"],
        run: callback_not_early,
    },
    Case {
        id: "event.callback.unlocked",
        rules: &["B16"],
        requires: "the plugin holds no lock while it calls back: its other functions can be called meanwhile",
        needs: &["event.callback.once"],
        run: callback_unlocked,
    },
    Case {
        id: "event.destroy",
        rules: &["B24"],
        requires: "when `stream_destroy` returns, the device touches nothing of what was enqueued",
        needs: &["transfer.round_trip"],
        run: destroy,
    },
    Case {
        id: "event.destroy.finishes",
        rules: &["B24"],
        requires: "`stream_destroy` does what was enqueued, signalled or not, before it returns",
        needs: &["event.destroy"],
        run: destroy_finishes,
    },
    Case {
        id: "event.callback.destroy",
        rules: &["B16", "B24"],
        requires: "callbacks of a stream that is destroyed come before `stream_destroy` returns, and none after",
        needs: &["event.callback.once", "event.destroy"],
        run: callback_destroy,
    },
];

/// Bytes of a long copy.
const LONG: usize = 4 << 20;
/// Bytes at the end of the destination that are looked at.
const TAIL: usize = 4096;
/// Copies between the first and the last.
const HOPS: usize = 4;

/// A chain of copies whose last byte in the host's memory is the last thing to be written. Where memory is written once,
/// it is one copy there and one back, and is enqueued once.
struct Chain<'a> {
    source: Vec<u8>,
    a: Buffer<'a>,
    b: Option<Buffer<'a>>,
    destination: Lent,
}

impl<'a> Chain<'a> {
    fn new(device: &'a Device<'a>, seed: u64) -> Outcome<Self> {
        let size = device.pad(device.at_most(LONG) / 2);
        let source = pattern(size, seed);
        Ok(Self {
            a: device.alloc(size)?,
            b: if device.writes_once() { None } else { Some(device.alloc(size)?) },
            destination: Lent::new(vec![0; size]),
            source,
        })
    }

    fn size(&self) -> usize {
        self.source.len()
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// The chain outlives the stream's work.
    unsafe fn enqueue(&mut self, stream: &Stream<'_>) -> Outcome {
        let size = self.size();
        // SAFETY: the caller's promise.
        unsafe { stream.enqueue_in(&self.source, self.a.whole()) }?;
        for b in self.b.iter().cycle().take(HOPS / 2) {
            // SAFETY: the caller's promise.
            unsafe { stream.enqueue_within(self.a.whole(), b.whole(), size) }?;
            // SAFETY: the caller's promise.
            unsafe { stream.enqueue_within(b.whole(), self.a.whole(), size) }?;
        }
        // SAFETY: the caller's promise.
        unsafe { stream.enqueue_out(self.a.whole(), self.destination.0.as_mut_ptr(), size) }
    }

    /// The end of the destination as it is now.
    fn tail(&self) -> Vec<u8> {
        let from = self.size().saturating_sub(TAIL);
        // A device that was early still writes here, which is what is asked; so every byte is read as it is.
        let byte = |byte: &u8| {
            // SAFETY: within the destination.
            unsafe { std::ptr::from_ref(byte).read_volatile() }
        };
        self.destination.0[from..].iter().map(byte).collect()
    }
}

/// Rounds of a case that looks for an early point; a plugin may be lucky once.
const ROUNDS: u64 = 6;

/// Fails if the destination's end changes after `learn` has reported the point.
fn refuse_early(
    device: &Device<'_>,
    how: &str,
    mut learn: impl FnMut(&Stream<'_>, u64) -> Outcome,
) -> Outcome {
    for round in 0..ROUNDS {
        let mut chain = Chain::new(device, 100 + round)?;
        let stream = device.stream()?;
        // SAFETY: the chain was made before the stream, which waits for its work when it goes.
        unsafe { chain.enqueue(&stream) }?;
        if !device.inline() {
            let value = stream.signal()?;
            learn(&stream, value)?;
        }
        let reported = chain.tail();
        // Nothing is left to be done now; a stream waits for its work, and a little longer for those that do not.
        drop(stream);
        std::thread::sleep(Duration::from_millis(2));
        let settled = chain.tail();
        if let Some(found) = difference(&reported, &settled) {
            return failed(format!("the work was not done when {how}: of the last bytes, {found}"));
        }
    }
    Ok(())
}

fn not_early(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let how = if device.inline() { "the call returned" } else { "`stream_reached` said so" };
        refuse_early(device, how, |stream, value| stream.poll(value))
    })
}

fn host_wait(rig: &Rig<'_>) -> Outcome {
    let host_wait = rig.optional(rig.table()?.stream_host_wait, "stream_host_wait")?;
    rig.each_timeline(|device| {
        // In short waits, so that some end by TIMEOUT: those change nothing, and the next goes on.
        refuse_early(device, "`stream_host_wait` returned OK", |stream, value| {
            let deadline = Instant::now() + PATIENCE;
            loop {
                let begin = Instant::now();
                let limit = Duration::from_micros(100);
                // SAFETY: the plugin's function with its own stream.
                let status = unsafe { host_wait(stream.handle.as_ptr(), value, limit.as_nanos() as u64) };
                match status {
                    DEVBAY_STATUS_OK => return Ok(()),
                    DEVBAY_STATUS_TIMEOUT => {}
                    status => {
                        return failed(format!("stream_host_wait gave {}", stream.error_words(status)));
                    }
                }
                // Generous: the machine may be busy. One that ignores its limit blocks until the work is done.
                ensure!(
                    begin.elapsed() < Duration::from_secs(2),
                    "a wait of {limit:?} ended with TIMEOUT after {:?}",
                    begin.elapsed()
                );
                ensure!(Instant::now() < deadline, "value {value} was not reached within {PATIENCE:?}");
            }
        })?;
        // A value that was reached is no reason to wait.
        let stream = device.stream()?;
        let value = stream.signal()?;
        stream.poll(value)?;
        // SAFETY: as above.
        let status = unsafe { host_wait(stream.handle.as_ptr(), value, 0) };
        ensure!(
            status == DEVBAY_STATUS_OK,
            "a wait for a value that is reached gave {}",
            status_name(status)
        );
        Ok(())
    })
}

fn host_wait_limits(rig: &Rig<'_>) -> Outcome {
    let host_wait = rig.optional(rig.table()?.stream_host_wait, "stream_host_wait")?;
    rig.each_timeline(|device| {
        // None is late: a wait for ever that ends at once has not waited for the work.
        refuse_early(device, "`stream_host_wait` without a limit returned", |stream, value| {
            // SAFETY: the plugin's function with its own stream.
            let asked = unsafe { host_wait(stream.handle.as_ptr(), value, 0) };
            ensure!(
                matches!(asked, DEVBAY_STATUS_OK | DEVBAY_STATUS_TIMEOUT),
                "a wait of 0 ns gave {}, expected OK or TIMEOUT",
                stream.error_words(asked)
            );
            // SAFETY: as above.
            let status = unsafe { host_wait(stream.handle.as_ptr(), value, u64::MAX) };
            ensure!(status == DEVBAY_STATUS_OK, "a wait without a limit gave {}", stream.error_words(status));
            Ok(())
        })
    })
}

/// Enqueues a wait.
fn wait_for(stream: &Stream<'_>, other: &Stream<'_>, value: u64) -> Outcome {
    let Some(wait) = stream.device.opened.table.stream_wait else {
        return not_run(Why::NotOffered, "the plugin has no stream_wait");
    };
    // SAFETY: the plugin's function with its own streams.
    let status = unsafe { wait(stream.handle.as_ptr(), other.handle.as_ptr(), value) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_wait({value}) gave {}", stream.error_words(status));
    Ok(())
}

fn wait_self(rig: &Rig<'_>) -> Outcome {
    let wait = rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        let mut chain = Chain::new(device, 900)?;
        let stream = device.stream()?;
        // SAFETY: the chain was made before the stream.
        unsafe { chain.enqueue(&stream) }?;
        let value = stream.signal()?;
        wait_for(&stream, &stream, value)?;
        // SAFETY: the plugin's function with its own stream.
        let status = unsafe { wait(stream.handle.as_ptr(), stream.handle.as_ptr(), value + 1) };
        ensure!(
            status == DEVBAY_STATUS_INVALID,
            "a wait for a point of its own that was not signalled: expected INVALID, found {}",
            status_name(status)
        );
        stream.finish()?;
        wait_for(&stream, &stream, value)?;
        stream.finish()
    })
}

fn wait_destroyed(rig: &Rig<'_>) -> Outcome {
    rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        device.plain_memory()?;
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 950 + round)?;
            let mut found = Lent::new(vec![0; chain.size()]);
            let (first, second) = (device.stream()?, device.stream()?);
            // SAFETY: the chain was made before the streams.
            unsafe { chain.enqueue(&first) }?;
            let value = first.signal()?;
            wait_for(&second, &first, value)?;
            drop(first);
            // Whatever is made now may lie where the first stream lay.
            let other = device.stream()?;
            let last = chain.b.as_ref().unwrap_or(&chain.a);
            // SAFETY: as above.
            unsafe { second.enqueue_out(last.whole(), found.0.as_mut_ptr(), chain.size()) }?;
            second.finish()?;
            other.finish()?;
            if let Some(difference) = difference(&found.done(), &chain.source) {
                return failed(format!("behind a wait for a stream that was destroyed: {difference}"));
            }
        }
        Ok(())
    })
}

fn wait(rig: &Rig<'_>) -> Outcome {
    let wait = rig.optional(rig.table()?.stream_wait, "stream_wait")?;
    rig.each_timeline(|device| {
        device.plain_memory()?;
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 200 + round)?;
            let stale = vec![0u8; chain.size()];
            let mut found = Lent::new(vec![0; chain.size()]);
            let (first, second) = (device.stream()?, device.stream()?);
            first.upload(&stale, &chain.a, 0)?;
            // SAFETY: the chain was made before the streams.
            unsafe { chain.enqueue(&first) }?;
            let value = first.signal()?;
            // SAFETY: the plugin's function with its own streams.
            let status = unsafe { wait(second.handle.as_ptr(), first.handle.as_ptr(), value) };
            ensure!(status == DEVBAY_STATUS_OK, "stream_wait gave {}", second.error_words(status));
            let size = chain.size();
            let last = chain.b.as_ref().unwrap_or(&chain.a);
            // SAFETY: as above. Read from the buffer that only the chain's last copies fill.
            unsafe { second.enqueue_out(last.whole(), found.0.as_mut_ptr(), size) }?;
            second.finish()?;
            let (reached, _) = first.reached()?;
            ensure!(
                reached >= value,
                "the second stream is done, the first has reached {reached} of {value}"
            );
            if let Some(difference) = difference(&found.0, &chain.source) {
                return failed(format!("the second stream did not wait for the first: {difference}"));
            }
            // The stream waited for stays usable, and so does the one that waited.
            // SAFETY: as above.
            let again = unsafe { wait(second.handle.as_ptr(), first.handle.as_ptr(), value) };
            ensure!(
                again == DEVBAY_STATUS_OK,
                "a wait for a value that is reached gave {}",
                status_name(again)
            );
            second.finish()?;
            first.finish()?;
            found.done();
        }
        Ok(())
    })
}

fn unsignalled(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    let mut n_functions = 0;
    rig.each_timeline(|device| {
        let (stream, other) = (device.stream()?, device.stream()?);
        let value = stream.signal()?;
        stream.poll(value)?;
        let asked = value + 1;
        let invalid = |status: Status, what: &str| {
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "{what} for value {asked}, the last signal was {value}: expected INVALID, found {}",
                status_name(status)
            );
            Ok(())
        };
        if let Some(wait) = table.stream_wait {
            n_functions += 1;
            // SAFETY: the plugin's function with its own streams.
            invalid(unsafe { wait(other.handle.as_ptr(), stream.handle.as_ptr(), asked) }, "stream_wait")?;
        }
        if let Some(host_wait) = table.stream_host_wait {
            n_functions += 1;
            // SAFETY: as above.
            invalid(unsafe { host_wait(stream.handle.as_ptr(), asked, 1_000_000) }, "stream_host_wait")?;
        }
        if let Some(on_reached) = table.stream_on_reached {
            n_functions += 1;
            let calls = Calls::new(1);
            // SAFETY: as above; the callback's place is leaked.
            let status = unsafe { on_reached(stream.handle.as_ptr(), asked, Some(count), calls.arg(0)) };
            invalid(status, "stream_on_reached")?;
            stream.finish()?;
            std::thread::sleep(Duration::from_millis(2));
            ensure!(calls.of(0) == 0, "a callback that was refused came all the same");
        }
        // Both go on.
        other.finish()
    })?;
    if n_functions == 0 {
        return not_run(Why::NotOffered, "the plugin has no function that waits");
    }
    Ok(())
}

fn between(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    if table.stream_wait.is_none() && table.stream_host_wait.is_none() && table.stream_on_reached.is_none() {
        return not_run(Why::NotOffered, "the plugin has no function that waits");
    }
    rig.each_timeline(|device| {
        let fresh = device.stream()?;
        let waiting = device.stream()?;
        // How a point is waited for, for each function that the plugin has: the first value that has to do for it.
        let learn = |stream: &Stream<'_>, value: u64| -> Outcome {
            if let Some(host_wait) = table.stream_host_wait {
                let limit = PATIENCE.as_nanos() as u64;
                // SAFETY: the plugin's function with its own stream.
                let status = unsafe { host_wait(stream.handle.as_ptr(), value, limit) };
                ensure!(
                    status == DEVBAY_STATUS_OK,
                    "stream_host_wait({value}), the last signal was {}: {}",
                    stream.signalled(),
                    stream.error_words(status)
                );
                return Ok(());
            }
            if table.stream_on_reached.is_some() {
                let calls = Calls::new(1);
                call_back(stream, value, count, calls.arg(0))?;
                calls.wait();
                return calls.check("for a value that counts as signalled");
            }
            wait_for(&waiting, stream, value)?;
            waiting.finish()
        };
        learn(&fresh, 0)?;
        if table.stream_wait.is_some() {
            wait_for(&waiting, &fresh, 0)?;
            waiting.finish()?;
        }
        if table.stream_on_reached.is_some() {
            let calls = Calls::new(1);
            call_back(&fresh, 0, count, calls.arg(0))?;
            calls.wait();
            calls.check("for the value 0")?;
        }
        drop(fresh);
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 1000 + round)?;
            let stream = device.stream()?;
            stream.signal_value(10)?;
            // SAFETY: the chain was made before the stream.
            unsafe { chain.enqueue(&stream) }?;
            stream.signal_value(20)?;
            if table.stream_wait.is_some() {
                wait_for(&waiting, &stream, 15)?;
            }
            let calls = Calls::new(1);
            if table.stream_on_reached.is_some() {
                call_back(&stream, 15, count, calls.arg(0))?;
            }
            learn(&stream, 11)?;
            let reported = chain.tail();
            stream.poll(20)?;
            if table.stream_on_reached.is_some() {
                calls.wait();
                calls.check("for a value between two signals")?;
            }
            waiting.finish()?;
            drop(stream);
            if let Some(found) = difference(&reported, &chain.tail()) {
                return failed(format!(
                    "11 was reached before 20, though the last signal before it was 10: of the last bytes, {found}"
                ));
            }
        }
        Ok(())
    })
}

/// How often callbacks came, and with what. Leaked: a plugin that calls twice does so at any time.
#[derive(Clone, Copy)]
pub(super) struct Calls {
    places: &'static [CallCount],
}

#[derive(Default)]
struct CallCount {
    n: AtomicU32,
    status: AtomicI32,
}

impl Calls {
    pub(super) fn new(n: usize) -> Self {
        Self { places: (0..n).map(|_| CallCount::default()).collect::<Vec<_>>().leak() }
    }

    pub(super) fn arg(&self, i: usize) -> *mut c_void {
        std::ptr::from_ref(&self.places[i]).cast_mut().cast()
    }

    pub(super) fn of(&self, i: usize) -> u32 {
        self.places[i].n.load(Ordering::Acquire)
    }

    pub(super) fn status(&self, i: usize) -> Status {
        self.places[i].status.load(Ordering::Acquire)
    }

    /// Waits until all have come, or patience ends.
    pub(super) fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while (0..self.places.len()).any(|i| self.of(i) == 0) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Refuses any that did not come exactly once.
    pub(super) fn check(&self, when: &str) -> Outcome {
        for i in 0..self.places.len() {
            ensure!(self.of(i) == 1, "{when}: callback {i} came {} times", self.of(i));
        }
        Ok(())
    }
}

pub(super) unsafe extern "C" fn count(arg: *mut c_void, status: Status) {
    // SAFETY: a place that was leaked.
    let place = unsafe { &*arg.cast::<CallCount>() };
    place.status.store(status, Ordering::Release);
    place.n.fetch_add(1, Ordering::AcqRel);
}

/// Asks for a callback.
pub(super) fn call_back(stream: &Stream<'_>, value: u64, done: DoneFn, arg: *mut c_void) -> Outcome {
    let Some(on_reached) = stream.device.opened.table.stream_on_reached else {
        return not_run(Why::NotOffered, "the plugin has no stream_on_reached");
    };
    // SAFETY: the plugin's function with its own stream; what callbacks get is leaked.
    let status = unsafe { on_reached(stream.handle.as_ptr(), value, Some(done), arg) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_on_reached gave {}", stream.error_words(status));
    Ok(())
}

fn callback_once(rig: &Rig<'_>) -> Outcome {
    rig.optional(rig.table()?.stream_on_reached, "stream_on_reached")?;
    rig.each_timeline(|device| {
        const N: usize = 60;
        let source = pattern(device.pad(20_000), 300);
        let buffers = device.targets(N, source.len())?;
        let stream = device.stream()?;
        let calls = Calls::new(N + 2);
        for i in 0..N {
            // SAFETY: the source and the buffers were made before the stream.
            unsafe { stream.enqueue_in(&source, buffers[i % buffers.len()].whole()) }?;
            let value = stream.signal()?;
            call_back(&stream, value, count, calls.arg(i))?;
        }
        stream.poll(stream.signalled())?;
        // Reached before: at once, for the last and for one in the middle.
        call_back(&stream, stream.signalled(), count, calls.arg(N))?;
        call_back(&stream, stream.signalled() / 2, count, calls.arg(N + 1))?;
        calls.wait();
        calls.check("after all values were reached")?;
        for i in 0..N + 2 {
            let status = calls.status(i);
            ensure!(status == DEVBAY_STATUS_OK, "callback {i} came with {}", status_name(status));
        }
        drop(stream);
        std::thread::sleep(Duration::from_millis(5));
        calls.check("after the stream was destroyed")
    })
}

/// Where a callback leaves what it saw.
struct Witness {
    tail: (usize, usize),
    seen: Mutex<Option<Vec<u8>>>,
    came: Condvar,
}

unsafe extern "C" fn look(arg: *mut c_void, _status: Status) {
    // SAFETY: a witness that was leaked.
    let witness = unsafe { &*arg.cast::<Witness>() };
    let byte = |i: usize| {
        // SAFETY: within the destination, which lives until the callback came.
        unsafe { ((witness.tail.0 + i) as *const u8).read_volatile() }
    };
    let bytes: Vec<u8> = (0..witness.tail.1).map(byte).collect();
    *lock(&witness.seen) = Some(bytes);
    witness.came.notify_all();
}

fn callback_not_early(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 400 + round)?;
            let stream = device.stream()?;
            // SAFETY: the chain was made before the stream.
            unsafe { chain.enqueue(&stream) }?;
            let value = stream.signal()?;
            let size = chain.size();
            let from = size.saturating_sub(TAIL);
            let witness: &'static Witness = Box::leak(Box::new(Witness {
                tail: (chain.destination.0.as_ptr() as usize + from, size - from),
                seen: Mutex::new(None),
                came: Condvar::new(),
            }));
            call_back(&stream, value, look, std::ptr::from_ref(witness).cast_mut().cast())?;
            let seen = lock(&witness.seen);
            let (seen, _) =
                unpoisoned(witness.came.wait_timeout_while(seen, PATIENCE, |seen| seen.is_none()));
            let Some(seen) = seen.clone() else {
                return failed(format!("the callback did not come within {PATIENCE:?}"));
            };
            drop(stream);
            let settled = chain.tail();
            if let Some(found) = difference(&seen, &settled) {
                return failed(format!("the work was not done at the callback: of the last bytes, {found}"));
            }
        }
        Ok(())
    })
}

/// What a callback waits for while it is running: bounded, so that a plugin that holds a lock is found out and
/// not hung.
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    /// The callback is running.
    inside: mpsc::SyncSender<()>,
    /// 1: the gate was opened while the callback waited; 2: it was not.
    outcome: AtomicUsize,
}

const GATE_LIMIT: Duration = Duration::from_secs(2);

unsafe extern "C" fn linger(arg: *mut c_void, _status: Status) {
    // SAFETY: a gate that was leaked.
    let gate = unsafe { &*arg.cast::<Gate>() };
    let _ = gate.inside.try_send(());
    let open = lock(&gate.open);
    let (open, _) = unpoisoned(gate.opened.wait_timeout_while(open, GATE_LIMIT, |open| !*open));
    let _ = gate.outcome.compare_exchange(0, if *open { 1 } else { 2 }, Ordering::SeqCst, Ordering::SeqCst);
}

fn callback_unlocked(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    let free = rig.is_free_threaded()?;
    rig.each_timeline(|device| {
        let source = pattern(device.pad(device.at_most(LONG) / 2), 500);
        let buffer = device.alloc(source.len())?;
        let stream = device.stream()?;
        let (inside, entered) = mpsc::sync_channel(1);
        let gate: &'static Gate = Box::leak(Box::new(Gate {
            open: Mutex::new(false),
            opened: Condvar::new(),
            inside,
            outcome: AtomicUsize::new(0),
        }));
        // SAFETY: the source and the buffer were made before the stream.
        unsafe { stream.enqueue_in(&source, buffer.whole()) }?;
        let value = stream.signal()?;
        let calls = Calls::new(1);
        std::thread::scope(|scope| -> Outcome {
            // Another thread than the callback's, whichever that is, calls everything that may be called.
            let (stream, calls) = (&stream, &calls);
            let visitor = scope.spawn(move || -> Outcome {
                if entered.recv_timeout(PATIENCE).is_err() {
                    return failed("the callback did not come");
                }
                drop(device.alloc(64)?);
                if free {
                    stream.reached()?;
                    call_back(stream, value, count, calls.arg(0))?;
                }
                *lock(&gate.open) = true;
                gate.opened.notify_all();
                Ok(())
            });
            let asked = call_back(stream, value, linger, std::ptr::from_ref(gate).cast_mut().cast());
            let visited = visitor.join().unwrap_or_else(|_| failed("a thread of the suite panicked"));
            asked.and(visited)
        })?;
        let deadline = Instant::now() + PATIENCE;
        while gate.outcome.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
        ensure!(
            gate.outcome.load(Ordering::SeqCst) == 1,
            "while a callback ran, another thread's calls did not return within {GATE_LIMIT:?}"
        );
        Ok(())
    })
}

fn callback_destroy(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            const N: usize = 4;
            let mut chain = Chain::new(device, 600 + round)?;
            let stream = device.stream()?;
            let calls = Calls::new(N);
            // SAFETY: the chain was made before the stream.
            unsafe { chain.enqueue(&stream) }?;
            for i in 0..N {
                let value = stream.signal()?;
                call_back(&stream, value, count, calls.arg(i))?;
            }
            drop(stream);
            calls.check("when stream_destroy had returned")?;
            std::thread::sleep(Duration::from_millis(3));
            calls.check("some time after stream_destroy")?;
        }
        Ok(())
    })
}

fn destroy(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 700 + round)?;
            // How long the work takes, so that a device that goes on is still seen to.
            let stream = device.stream()?;
            let begin = Instant::now();
            // SAFETY: the chain was made before the stream.
            unsafe { chain.enqueue(&stream) }?;
            stream.finish()?;
            let needed = begin.elapsed();
            drop(stream);

            if device.writes_once() {
                chain = Chain::new(device, 800 + round)?;
            }
            let stream = device.stream()?;
            // SAFETY: as above.
            unsafe { chain.enqueue(&stream) }?;
            stream.signal()?;
            drop(stream);
            let size = chain.size();
            chain.destination.0.fill(0xee);
            std::thread::sleep(2 * needed + Duration::from_millis(2));
            if chain.destination.0.iter().any(|&byte| byte != 0xee) {
                // The device may not be done yet, with the buffers neither.
                std::mem::forget(chain);
                return failed(format!(
                    "the device wrote into a destination of {size} bytes after stream_destroy had returned"
                ));
            }
        }
        Ok(())
    })
}

fn destroy_finishes(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 1100 + round)?;
            let stream = device.stream()?;
            // SAFETY: the chain was made before the stream.
            unsafe { chain.enqueue(&stream) }?;
            if round % 2 == 0 {
                stream.signal()?;
                // SAFETY: as above.
                unsafe {
                    stream.enqueue_out(chain.a.whole(), chain.destination.0.as_mut_ptr(), chain.size())
                }?;
            }
            drop(stream);
            if let Some(found) = difference(&chain.destination.0, &chain.source) {
                return failed(format!(
                    "what was enqueued was not done when stream_destroy returned: {found}"
                ));
            }
        }
        Ok(())
    })
}
