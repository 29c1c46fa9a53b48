//! A callback comes once, not early, without a lock of the plugin's, and not behind its stream's end (B16).

use super::chain::{Chain, LONG, ROUNDS, TAIL};
use crate::rig::{PATIENCE, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use devbay_plugin_api::locks::{lock, unpoisoned};
use std::ffi::c_void;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Number of each callback's calls, and its status. Leaked: a plugin that calls twice does so at any time.
#[derive(Clone, Copy)]
pub(in crate::cases) struct Calls {
    places: &'static [CallCount],
}

#[derive(Default)]
struct CallCount {
    n: AtomicU32,
    status: AtomicI32,
}

impl Calls {
    pub(in crate::cases) fn new(n: usize) -> Self {
        Self { places: (0..n).map(|_| CallCount::default()).collect::<Vec<_>>().leak() }
    }

    pub(in crate::cases) fn arg(&self, i: usize) -> *mut c_void {
        std::ptr::from_ref(&self.places[i]).cast_mut().cast()
    }

    pub(in crate::cases) fn of(&self, i: usize) -> u32 {
        self.places[i].n.load(Ordering::Acquire)
    }

    pub(in crate::cases) fn status(&self, i: usize) -> Status {
        self.places[i].status.load(Ordering::Acquire)
    }

    /// Waits until all have come, or patience ends.
    pub(in crate::cases) fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(2);
        while (0..self.places.len()).any(|i| self.of(i) == 0) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Refuses any that did not come exactly once.
    pub(in crate::cases) fn check(&self, when: &str) -> Outcome {
        for i in 0..self.places.len() {
            ensure!(self.of(i) == 1, "{when}: callback {i} ran {} times", self.of(i));
        }
        Ok(())
    }
}

pub(in crate::cases) unsafe extern "C" fn count(arg: *mut c_void, status: Status) {
    // SAFETY: `arg` is a place of `Calls`, which are leaked.
    let place = unsafe { &*arg.cast::<CallCount>() };
    place.status.store(status, Ordering::Release);
    place.n.fetch_add(1, Ordering::AcqRel);
}

/// Asks for a callback.
pub(in crate::cases) fn call_back(
    stream: &Stream<'_>,
    value: u64,
    done: DoneFn,
    arg: *mut c_void,
) -> Outcome {
    let Some(on_reached) = stream.device.opened.table.stream_on_reached else {
        return not_run(Why::NotOffered, "the plugin has no stream_on_reached");
    };
    // SAFETY: the stream is the plugin's own and alive; the arguments of callbacks are leaked.
    let status = unsafe { on_reached(stream.handle.as_ptr(), value, Some(done), arg) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_on_reached returned {}", stream.error_words(status));
    Ok(())
}

pub(super) fn callback_once(rig: &Rig<'_>) -> Outcome {
    rig.optional(rig.table()?.stream_on_reached, "stream_on_reached")?;
    rig.each_timeline(|device| {
        const N: usize = 60;
        let source = pattern(device.pad(20_000), 300);
        let buffers = device.targets(N, source.len())?;
        let stream = device.stream()?;
        let calls = Calls::new(N + 2);
        for i in 0..N {
            // SAFETY: the source and the buffers were made before the stream, whose drop waits for its work.
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
            ensure!(status == DEVBAY_STATUS_OK, "callback {i} received {}", status_name(status));
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
    // SAFETY: `arg` is a witness that was leaked.
    let witness = unsafe { &*arg.cast::<Witness>() };
    let byte = |i: usize| {
        // SAFETY: `i` is below the length of the destination's end, which lives until the callback came.
        unsafe { ((witness.tail.0 + i) as *const u8).read_volatile() }
    };
    let bytes: Vec<u8> = (0..witness.tail.1).map(byte).collect();
    *lock(&witness.seen) = Some(bytes);
    witness.came.notify_all();
}

pub(super) fn callback_not_early(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            let mut chain = Chain::new(device, 400 + round)?;
            let stream = device.stream()?;
            // SAFETY: the chain was made before the stream, whose drop waits for its work.
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
                return failed(format!("the callback did not run within {PATIENCE:?}"));
            };
            drop(stream);
            let settled = chain.tail();
            if let Some(found) = difference(&seen, &settled) {
                return failed(format!(
                    "the callback ran before the work was done: in the last bytes, {found}"
                ));
            }
        }
        Ok(())
    })
}

/// Gate for which a running callback waits: bounded, so that a plugin that holds a lock is found out and
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
    // SAFETY: `arg` is a gate that was leaked.
    let gate = unsafe { &*arg.cast::<Gate>() };
    let _ = gate.inside.try_send(());
    let open = lock(&gate.open);
    let (open, _) = unpoisoned(gate.opened.wait_timeout_while(open, GATE_LIMIT, |open| !*open));
    let _ = gate.outcome.compare_exchange(0, if *open { 1 } else { 2 }, Ordering::SeqCst, Ordering::SeqCst);
}

pub(super) fn callback_unlocked(rig: &Rig<'_>) -> Outcome {
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
        // SAFETY: the source and the buffer were made before the stream, whose drop waits for its work.
        unsafe { stream.enqueue_in(&source, buffer.whole()) }?;
        let value = stream.signal()?;
        let calls = Calls::new(1);
        std::thread::scope(|scope| -> Outcome {
            // Another thread than the callback's calls everything that may be called.
            let (stream, calls) = (&stream, &calls);
            let visitor = scope.spawn(move || -> Outcome {
                if entered.recv_timeout(PATIENCE).is_err() {
                    return failed("the callback did not run");
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
            "another thread's calls did not return within {GATE_LIMIT:?} during a callback"
        );
        Ok(())
    })
}

pub(super) fn callback_destroy(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        for round in 0..ROUNDS {
            const N: usize = 4;
            let mut chain = Chain::new(device, 600 + round)?;
            let stream = device.stream()?;
            let calls = Calls::new(N);
            // SAFETY: the chain was made before the stream, whose drop waits for its work.
            unsafe { chain.enqueue(&stream) }?;
            for i in 0..N {
                let value = stream.signal()?;
                call_back(&stream, value, count, calls.arg(i))?;
            }
            drop(stream);
            calls.check("after stream_destroy returned")?;
            std::thread::sleep(Duration::from_millis(3));
            calls.check("some time after stream_destroy")?;
        }
        Ok(())
    })
}
