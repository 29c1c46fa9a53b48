//! A stream's timeline, for devices whose driver does not provide one: signalled and reached values, and
//! waiting callbacks.
//!
//! `reached` only rises, and only the code that runs the stream's work raises it. The first failure is kept
//! and final: later points fail, earlier ones stay reached (B13). Callbacks are taken out under the lock and
//! called without it, so each is called once (B16).

use super::Done;
use super::error::{Error, Result};
use crate::abi::{DEVBAY_STATUS_ABORTED, DEVBAY_STATUS_TIMEOUT};
use crate::locks::{lock, unpoisoned, wait};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The points of one stream; all methods may be called from any thread.
#[derive(Default)]
pub struct Timeline {
    signalled: AtomicU64,
    /// Last value reached successfully.
    reached: AtomicU64,
    /// True if there is a failure; set under the lock.
    has_failed: AtomicBool,
    state: Mutex<Callbacks>,
    /// Notified when a point was reached or the stream failed.
    moved: Condvar,
}

/// Callbacks that wait for a point, and the failure that ends them.
#[derive(Default)]
struct Callbacks {
    failure: Option<Error>,
    waiting: Vec<(u64, Done)>,
}

impl Timeline {
    fn lock(&self) -> MutexGuard<'_, Callbacks> {
        lock(&self.state)
    }

    /// Records that a point was enqueued. Externally synchronised, as signals of a stream are (B17).
    ///
    /// # Errors
    /// Invalid for a value that is not above every earlier one (B12); nothing has changed then.
    pub fn signal(&self, value: u64) -> Result<()> {
        let last = self.signalled.load(Ordering::Relaxed);
        if value <= last {
            return Err(Error::invalid(format!(
                "signal of value {value} after {last}, values rise strictly"
            )));
        }
        self.signalled.store(value, Ordering::Release);
        Ok(())
    }

    /// Refuses a value above the last signalled one, for which no wait is allowed (B12). All values up to
    /// that one count as signalled.
    ///
    /// # Errors
    /// Invalid.
    pub fn check_signalled(&self, value: u64) -> Result<()> {
        let last = self.signalled.load(Ordering::Acquire);
        if value > last {
            return Err(Error::invalid(format!("value {value} was not signalled, the last is {last}")));
        }
        Ok(())
    }

    /// Reports a point as reached, unless the stream has failed before. All earlier work is done, and the
    /// device no longer touches its memory.
    pub fn reach(&self, value: u64) {
        let state = self.lock();
        if state.failure.is_none() {
            self.reached.store(value, Ordering::Release);
        }
        drop(state);
        self.moved.notify_all();
        self.answer();
    }

    /// Fails every point that is not yet reached; the first failure is kept.
    pub fn fail(&self, failure: Error) {
        let mut state = self.lock();
        state.failure.get_or_insert(failure);
        self.has_failed.store(true, Ordering::Release);
        drop(state);
        self.moved.notify_all();
        self.answer();
    }

    /// Implements [`super::Stream::has_failed`].
    #[inline]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Returns the failure, if the stream has failed.
    pub fn failure(&self) -> Option<Error> {
        self.lock().failure.clone()
    }

    /// Implements [`super::Stream::reached`].
    pub fn reached(&self) -> (u64, Result<()>) {
        // The failure first: points reached before it are then seen.
        let failure = self.failure();
        let reached = self.reached.load(Ordering::Acquire);
        (reached, failure.map_or(Ok(()), Err))
    }

    /// Implements [`super::Stream::on_reached`].
    ///
    /// # Errors
    /// Invalid for a value that was not signalled; `done` was not called.
    pub fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.check_signalled(value)?;
        self.lock().waiting.push((value, done));
        self.answer();
        Ok(())
    }

    /// Implements [`super::Stream::host_wait`].
    ///
    /// # Errors
    /// Timeout, the stream's failure, invalid for a value that was not signalled.
    pub fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.check_signalled(value)?;
        // A deadline beyond the clock's range counts as none.
        self.wait_until(value, Instant::now().checked_add(timeout))
    }

    /// Blocks until a value is reached; forever if it was not signalled.
    ///
    /// # Errors
    /// The stream's failure.
    pub fn wait(&self, value: u64) -> Result<()> {
        self.wait_until(value, None)
    }

    fn wait_until(&self, value: u64, deadline: Option<Instant>) -> Result<()> {
        let mut state = self.lock();
        loop {
            let reached = self.reached.load(Ordering::Acquire);
            if reached >= value || state.failure.is_some() {
                return outcome(value, reached, state.failure.as_ref());
            }
            state = match deadline {
                None => wait(&self.moved, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let text = format!("value {value} was not reached in time");
                        return Err(Error::new(DEVBAY_STATUS_TIMEOUT, text));
                    }
                    unpoisoned(self.moved.wait_timeout(state, left)).0
                }
            };
        }
    }

    /// Calls the callbacks of points that are reached or can no longer be reached.
    fn answer(&self) {
        let mut state = self.lock();
        let reached = self.reached.load(Ordering::Acquire);
        let failure = state.failure.clone();
        let due = |value: u64| value <= reached || failure.is_some();
        let (ready, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut state.waiting).into_iter().partition(|(value, _)| due(*value));
        state.waiting = waiting;
        drop(state);
        for (value, done) in ready {
            done.call(&outcome(value, reached, failure.as_ref()));
        }
    }

    /// Calls the remaining callbacks with ABORTED, when the stream is destroyed.
    pub fn abandon(&self) {
        let waiting = std::mem::take(&mut self.lock().waiting);
        for (_, done) in waiting {
            done.call(&Err(Error::new(DEVBAY_STATUS_ABORTED, "the stream was destroyed")));
        }
    }
}

/// Returns the error of a stream that waits for a failed point of another stream.
pub fn failed_dependency(failure: &Error) -> Error {
    let text = format!("a stream that this one waits for failed: {}", failure.text());
    Error::new(DEVBAY_STATUS_ABORTED, text)
}

fn outcome(value: u64, reached: u64, failure: Option<&Error>) -> Result<()> {
    match failure {
        Some(error) if value > reached => Err(error.clone()),
        _ => Ok(()),
    }
}
