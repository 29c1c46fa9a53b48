//! The caller of a run, asleep until somebody has something for it.

use crate::sync::{AtomicBool, Ordering, fence};
use std::sync::{Mutex, PoisonError};
use std::thread::Thread;
use std::time::Duration;

/// How long a caller sleeps before it looks by itself: at parallel loops that opened meanwhile.
const NAP: Duration = Duration::from_millis(1);

/// Where the one caller of a run sleeps.
///
/// Who has something puts it where the caller looks, then calls [`Sleeper::wake`]; the caller says that it sleeps, then
/// looks once more. With a fence on both sides one of the two sees the other.
#[derive(Default)]
pub(crate) struct Sleeper {
    asleep: AtomicBool,
    caller: Mutex<Option<Thread>>,
}

impl Sleeper {
    /// Sleeps for a moment, unless `has_work` says that there is something to do after all.
    pub fn sleep(&self, has_work: impl FnOnce() -> bool) {
        *self.caller.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            std::thread::park_timeout(NAP);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Whether the caller sleeps, as far as this thread knows.
    #[inline]
    pub fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }

    /// Wakes the caller if it sleeps; tells whether it did.
    pub fn wake(&self) -> bool {
        fence(Ordering::SeqCst);
        if !self.is_asleep() {
            return false;
        }
        if let Some(caller) = &*self.caller.lock().unwrap_or_else(PoisonError::into_inner) {
            caller.unpark();
        }
        true
    }
}
