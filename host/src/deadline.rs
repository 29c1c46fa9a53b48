//! Deadlines: one thread that sets flags when their time comes.
//!
//! The launch loop looks at a flag, never at a clock. The thread is started with the first deadline and sleeps
//! until the nearest one.

use devbay_core::exec::cancel::Cancel;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Watch {
    armed: Mutex<Deadlines>,
    changed: Condvar,
}

#[derive(Default)]
struct Deadlines {
    /// Flags by deadline; the number tells two of one instant apart.
    flags: BTreeMap<(Instant, u64), Cancel>,
    n_armed: u64,
}

static WATCH: OnceLock<Watch> = OnceLock::new();

/// A deadline that stands until this is dropped.
pub struct Armed {
    key: (Instant, u64),
}

/// Sets `cancel` when `limit` has passed, unless the result is dropped first.
pub fn arm(cancel: &Cancel, limit: Duration) -> Armed {
    let mut started = false;
    let watch = WATCH.get_or_init(|| {
        started = true;
        Watch::default()
    });
    if started {
        let spawned = std::thread::Builder::new().name("devbay-deadline".to_owned()).spawn(|| {
            if let Some(watch) = WATCH.get() {
                watch.run();
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("deadlines are not kept: {error}");
        }
    }
    let mut armed = watch.armed.lock().unwrap_or_else(PoisonError::into_inner);
    // A limit beyond the clock's range never comes.
    let at =
        Instant::now().checked_add(limit).unwrap_or_else(|| Instant::now() + Duration::from_secs(1 << 30));
    let key = (at, armed.n_armed);
    armed.n_armed += 1;
    armed.flags.insert(key, cancel.clone());
    watch.changed.notify_one();
    Armed { key }
}

impl Drop for Armed {
    fn drop(&mut self) {
        if let Some(watch) = WATCH.get() {
            watch.armed.lock().unwrap_or_else(PoisonError::into_inner).flags.remove(&self.key);
        }
    }
}

impl Watch {
    fn run(&self) {
        let mut armed = self.armed.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let now = Instant::now();
            while let Some(entry) = armed.flags.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                entry.remove().expire();
            }
            armed = match armed.flags.keys().next() {
                None => self.changed.wait(armed).unwrap_or_else(PoisonError::into_inner),
                Some((at, _)) => {
                    let wait = at.saturating_duration_since(now);
                    self.changed.wait_timeout(armed, wait).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }
}
