//! Locks whose poison is ignored: the helpers that core, host, plugins and tests take their locks with.
//!
//! A panic does not pass unseen: it is caught at the boundary (B19) or at the edge of a run and is that call's error. What a
//! lock of ours guards is usable wherever its holder can panic, so that poison tells later callers nothing they need. Refusing
//! a poisoned lock would only make the failure of one call that of every later one, and panic in destructors.
//!
//! Hidden, because vendors are promised the ABI and the SDK, not this.

use std::sync::{Condvar, LockResult, Mutex, MutexGuard, PoisonError};

/// Locks a mutex.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Waits until a condition is notified.
#[inline]
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    unpoisoned(condition.wait(guard))
}

/// Returns what a lock guards: for what is neither locked nor waited for by the functions above.
#[inline]
pub fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
