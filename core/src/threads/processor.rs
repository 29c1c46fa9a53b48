//! The processor that a thread runs on: chosen by the application, or so that a woken worker does not get its waker's.
//!
//! Linux on a virtual machine takes halted processors for busy ones, and then puts a thread that wakes on its waker's.
//! The two take turns, and with one of them inside a loop the other waits for the scheduler's tick: 4 ms for a loop
//! of some microseconds (Linux 6.18, two processors, the first run after a pause). A worker is therefore kept off
//! the processor of the thread that wakes it, and leaves that of a caller that came there later.
//!
//! Elsewhere than on Linux nothing is known, and nothing is done.

use crate::error::{Error, ErrorKind, Result};
#[cfg(all(target_os = "linux", not(loom)))]
use rustix::{process::getpid, thread as system};
use std::sync::atomic::{AtomicU32, Ordering};

/// No processor, or an unknown one.
pub const NONE: u32 = u32::MAX;

/// A thread's place among the processors.
pub struct Seat {
    #[cfg(all(target_os = "linux", not(loom)))]
    thread: system::Pid,
    /// The processor that it is kept off.
    taken: AtomicU32,
    /// True if the application chooses the thread's processor.
    fixed: bool,
}

impl Seat {
    /// Returns the seat of this thread.
    pub fn of_this_thread() -> Self {
        Self {
            #[cfg(all(target_os = "linux", not(loom)))]
            thread: system::gettid(),
            taken: AtomicU32::new(NONE),
            fixed: false,
        }
    }

    /// Returns the seat of this thread, which is never moved.
    pub fn fixed() -> Self {
        Self { fixed: true, ..Self::of_this_thread() }
    }

    /// Keeps the seat's thread off the processor of this one, if the process may use others. For a thread that
    /// sleeps: one call of the system, and none if it is kept off already.
    #[inline]
    pub fn keep_off_mine(&self) {
        if self.fixed {
            return;
        }
        let mine = current();
        if mine != NONE && self.taken.load(Ordering::Relaxed) != mine {
            self.keep_off(mine);
        }
    }

    /// Leaves the processor `taken` if this thread, whose seat it is, runs there and the process may use others.
    #[inline]
    pub fn leave(&self, taken: u32) {
        if !self.fixed && taken != NONE && self.taken.load(Ordering::Relaxed) != taken && current() == taken {
            self.keep_off(taken);
        }
    }

    #[cold]
    fn keep_off(&self, taken: u32) {
        // Also where it fails, as on the process's only processor: it would fail again.
        self.taken.store(taken, Ordering::Relaxed);
        #[cfg(all(target_os = "linux", not(loom)))]
        if (taken as usize) < system::CpuSet::MAX_CPU
            // The processors that the process may use, as its main thread has them.
            && let Ok(mut others) = system::sched_getaffinity(Some(getpid()))
        {
            others.unset(taken as usize);
            if others.count() > 0 {
                // A worker on a processor that it shares is slow, not wrong.
                let _ = system::sched_setaffinity(Some(self.thread), &others);
            }
        }
    }
}

/// Returns the processor that this thread runs on.
#[inline]
pub fn current() -> u32 {
    #[cfg(all(target_os = "linux", not(loom)))]
    return system::sched_getcpu() as u32;
    #[cfg(not(all(target_os = "linux", not(loom))))]
    NONE
}

/// Refuses processors that this process may not use.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] that names the processor, also where threads cannot be pinned.
pub fn check(processors: &[usize]) -> Result<()> {
    let invalid = |text: String| Err(Error::new(ErrorKind::InvalidArgument, text));
    if processors.is_empty() {
        return invalid("the list of processors for workers is empty".to_owned());
    }
    #[cfg(all(target_os = "linux", not(loom)))]
    {
        let Ok(usable) = system::sched_getaffinity(Some(getpid())) else {
            return invalid("the system does not say which processors may be used".to_owned());
        };
        let usable = |&processor: &usize| processor < system::CpuSet::MAX_CPU && usable.is_set(processor);
        if let Some(other) = processors.iter().find(|processor| !usable(processor)) {
            let all: Vec<String> =
                (0..system::CpuSet::MAX_CPU).filter(usable).map(|processor| processor.to_string()).collect();
            return invalid(format!(
                "processor {other} is none that this process may use: {}",
                all.join(", ")
            ));
        }
        Ok(())
    }
    #[cfg(not(all(target_os = "linux", not(loom))))]
    invalid("workers are pinned to processors on Linux only".to_owned())
}

/// Keeps this thread on a processor that [`check`] let pass.
pub fn pin_this_thread(processor: usize) {
    #[cfg(all(target_os = "linux", not(loom)))]
    {
        let mut only = system::CpuSet::new();
        only.set(processor);
        if let Err(error) = system::sched_setaffinity(None, &only) {
            tracing::warn!("a worker is not pinned to processor {processor}: {error}");
        }
    }
    #[cfg(not(all(target_os = "linux", not(loom))))]
    let _ = processor;
}

#[cfg(all(test, target_os = "linux", not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_is_kept_off_its_wakers_processor() {
        let (seats, seat) = mpsc::channel();
        let (wakes, woken) = mpsc::channel();
        let (answers, answer) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            seats.send(Seat::of_this_thread()).unwrap();
            for () in woken {
                answers.send(current()).unwrap();
            }
        });
        let seat = seat.recv().unwrap();
        let n_processors = std::thread::available_parallelism().unwrap().get();
        for _ in 0..100 {
            seat.keep_off_mine();
            // Not `current()`: this thread may have moved since.
            let taken = seat.taken.load(Ordering::Relaxed);
            wakes.send(()).unwrap();
            let found = answer.recv().unwrap();
            assert!(n_processors == 1 || found != taken, "on {found}, which is taken");
        }
        drop(wakes);
        thread.join().unwrap();
    }
}
