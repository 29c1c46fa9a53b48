//! Locks that ignore poison: the helpers with which core, host, plugins and tests lock.
//!
//! A panic is not lost: it is caught at the boundary (B19) or at the edge of a run and becomes that call's
//! error. Our locks guard data that stays usable wherever the lock's holder can panic, so poison tells later
//! callers nothing they need. Refusing a poisoned lock would only turn one call's failure into a failure of
//! every later call, and panic in destructors.
//!
//! Hidden, because vendors are promised only the ABI and the SDK.

use std::sync::{Condvar, LockResult, Mutex, MutexGuard, PoisonError, TryLockError};

/// Locks a mutex.
#[inline]
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    unpoisoned(mutex.lock())
}

/// Locks a mutex if nobody else has it; None if somebody does.
#[inline]
pub fn try_lock<T: ?Sized>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

/// Waits until a condition is notified.
#[inline]
pub fn wait<'a, T>(condition: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    unpoisoned(condition.wait(guard))
}

/// Returns the guarded data; for results that the functions above do not cover.
#[inline]
pub fn unpoisoned<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
