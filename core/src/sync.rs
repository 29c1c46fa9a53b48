//! The one door to atomics: the standard library's, or the model checker's under `--cfg loom`.
//!
//! Protocols of our own (the loop board of `exec::board`, frame pools) use these names alone, so that loom
//! can run them in every order.

#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};
#[cfg(not(loom))]
pub use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence};

/// Tells the processor that this thread waits; under loom, lets others run.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Sets counters that no other thread sees.
pub fn set_all(counters: &mut [AtomicU32], values: &[u32]) {
    for (counter, &value) in counters.iter_mut().zip(values) {
        #[cfg(not(loom))]
        {
            *counter.get_mut() = value;
        }
        #[cfg(loom)]
        counter.with_mut(|counter| *counter = value);
    }
}
