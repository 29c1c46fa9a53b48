//! Waiting for an async value where a waiter will not do: a thread outside the engine, and a task of Rust's `async`.
//!
//! A waiter cannot be taken back. If a thread stops waiting, or a task is dropped, a small allocation stays until the
//! value is set.

use super::{AsyncValueAny, AsyncValueRef, Payload};
use crate::error::Error;
use crate::sync::thread;
use arc_swap::ArcSwapOption;
use std::fmt;
use std::future::{Future, IntoFuture};
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
#[cfg(not(loom))]
use std::time::{Duration, Instant};

impl AsyncValueAny {
    /// Waits until it is concrete.
    ///
    /// **Threads**: blocks, parked. Not for workers and not within a waiter: the awaited work may be queued behind it.
    ///
    /// # Errors
    /// The value's.
    pub fn wait(&self) -> Result<(), &Error> {
        if !self.is_concrete() {
            self.unpark_when_concrete();
            // A thread may be unparked for other reasons.
            while !self.is_concrete() {
                thread::park();
            }
        }
        self.error().map_or(Ok(()), Err)
    }

    /// As [`AsyncValueAny::wait`]; None if the value is not concrete after that time.
    #[cfg(not(loom))]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<(), &Error>> {
        if !self.is_concrete() {
            // None: later than any clock tells.
            let deadline = Instant::now().checked_add(timeout);
            self.unpark_when_concrete();
            while !self.is_concrete() {
                match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                    Some(Duration::ZERO) => return None,
                    Some(left) => thread::park_timeout(left),
                    None => thread::park(),
                }
            }
        }
        Some(self.error().map_or(Ok(()), Err))
    }

    fn unpark_when_concrete(&self) {
        let waiting = thread::current();
        self.and_then(move |_| waiting.unpark());
    }
}

impl<T: Payload> AsyncValueRef<T> {
    /// As [`AsyncValueAny::wait`], with the value.
    ///
    /// # Errors
    /// The value's.
    pub fn wait(&self) -> Result<&T, &Error> {
        (**self).wait()?;
        Ok(self.get().expect("what is concrete and no error is available"))
    }

    /// As [`AsyncValueAny::wait_timeout`], with the value.
    #[cfg(not(loom))]
    pub fn wait_timeout(&self, timeout: Duration) -> Option<Result<&T, &Error>> {
        match (**self).wait_timeout(timeout) {
            Some(_) => self.outcome(),
            None => None,
        }
    }
}

/// A reference to a value that is available.
pub struct Available<T: Payload>(AsyncValueRef<T>);

impl<T: Payload> Available<T> {
    /// Returns the reference.
    pub fn into_ref(self) -> AsyncValueRef<T> {
        self.0
    }
}

impl<T: Payload> Deref for Available<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get().expect("it was available when this was made, and stays so")
    }
}

impl<T: Payload + fmt::Debug> fmt::Debug for Available<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

/// An async value as a [`Future`], which gives the value's error as its own.
///
/// **Threads**: any; wakes from the thread that sets the value.
pub struct AwaitedValue<T: Payload> {
    value: AsyncValueRef<T>,
    /// The task to wake; set by the first poll that found no value.
    waker: Option<Arc<ArcSwapOption<Waker>>>,
}

impl<T: Payload> Future for AwaitedValue<T> {
    type Output = Result<Available<T>, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if !self.value.is_concrete() {
            let waker = Some(Arc::new(context.waker().clone()));
            if let Some(slot) = &self.waker {
                // The waiter takes all it finds after the value is set: it finds this one, or the code below sees the
                // value.
                slot.store(waker);
            } else {
                let slot = Arc::new(ArcSwapOption::new(waker));
                self.waker = Some(Arc::clone(&slot));
                self.value.and_then(move |_| {
                    if let Some(waker) = slot.swap(None) {
                        waker.wake_by_ref();
                    }
                });
            }
            if !self.value.is_concrete() {
                return Poll::Pending;
            }
        }
        Poll::Ready(match self.value.error() {
            Some(error) => Err(error.clone()),
            None => Ok(Available(self.value.clone())),
        })
    }
}

impl<T: Payload> IntoFuture for AsyncValueRef<T> {
    type Output = Result<Available<T>, Error>;
    type IntoFuture = AwaitedValue<T>;

    fn into_future(self) -> AwaitedValue<T> {
        AwaitedValue { value: self, waker: None }
    }
}
