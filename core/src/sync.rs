//! The one door to atomics: the standard library's, or the model checker's under `--cfg loom`.
//!
//! Protocols of our own (the loop board of `exec::board`, frame pools, the state word of `async_value::cell`) use
//! these names alone, so that loom can run them in every order.

#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};
#[cfg(not(loom))]
pub use std::{
    sync::Mutex,
    sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    thread,
};

/// A static of each thread, made from a constant. The model checker's threads share one of the system's, so a static
/// of the standard library's would be common to them.
macro_rules! thread_static {
    (static $name:ident: $type:ty = $init:expr) => {
        #[cfg(not(loom))]
        std::thread_local! { static $name: $type = const { $init } }
        #[cfg(loom)]
        loom::thread_local! { static $name: $type = $init }
    };
}
pub(crate) use thread_static;

/// The standard library's cell with the interface of the model checker's, which sees where an access begins and ends.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    /// Creates a cell with a value.
    pub const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    /// Gives a pointer to read through.
    #[inline]
    pub fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    /// Gives a pointer to write through.
    #[inline]
    pub fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Tells the processor that this thread waits; under loom, lets others run.
#[inline]
pub fn spin() {
    #[cfg(not(loom))]
    std::hint::spin_loop();
    #[cfg(loom)]
    loom::thread::yield_now();
}

/// Sleeps for up to `limit` unless woken. Under loom it sleeps until woken, so that a model without a wake fails.
pub fn park_timeout(limit: std::time::Duration) {
    #[cfg(not(loom))]
    std::thread::park_timeout(limit);
    #[cfg(loom)]
    {
        let _ = limit;
        loom::thread::park();
    }
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
