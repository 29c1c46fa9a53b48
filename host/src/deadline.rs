//! Deadlines: one thread sets flags when their time comes.
//!
//! The launch loop reads a flag, never a clock. The thread starts with the first deadline and sleeps until the nearest one.

use crate::forks;
use devbay_core::exec::cancel::Cancel;
use devbay_plugin_api::locks::{lock, unpoisoned, wait};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock};
use std::time::{Duration, Instant};

#[derive(Default)]
struct Watch {
    /// The process that has the thread, by its generation and one more; 0 for none.
    started_in: AtomicU32,
    armed: Mutex<Deadlines>,
    changed: Condvar,
}

#[derive(Default)]
struct Deadlines {
    /// Flags by deadline; the number distinguishes equal instants.
    flags: BTreeMap<(Instant, u64), Cancel>,
    n_armed: u64,
}

static WATCH: OnceLock<Watch> = OnceLock::new();

/// A pending deadline; dropping it cancels it.
pub struct Armed {
    key: (Instant, u64),
}

/// Sets `cancel` after `limit`, unless the result is dropped first; at once if `limit` is zero, whatever the thread does.
pub fn arm(cancel: &Cancel, limit: Duration) -> Armed {
    if limit.is_zero() {
        cancel.expire();
    }
    let watch = WATCH.get_or_init(Watch::default);
    // The first deadline of a process starts its thread; a forked child has none yet.
    let process = forks::generation().wrapping_add(1);
    if watch.started_in.swap(process, Ordering::AcqRel) != process {
        let spawned = std::thread::Builder::new().name("devbay-deadline".to_owned()).spawn(|| {
            if let Some(watch) = WATCH.get() {
                watch.run();
            }
        });
        if let Err(error) = spawned {
            tracing::warn!("deadlines are not kept: {error}");
        }
    }
    let mut armed = lock(&watch.armed);
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
            lock(&watch.armed).flags.remove(&self.key);
        }
    }
}

impl Watch {
    fn run(&self) {
        let mut armed = lock(&self.armed);
        loop {
            let now = Instant::now();
            while let Some(entry) = armed.flags.first_entry() {
                if entry.key().0 > now {
                    break;
                }
                entry.remove().expire();
            }
            armed = match armed.flags.keys().next() {
                None => wait(&self.changed, armed),
                Some((at, _)) => {
                    let wait = at.saturating_duration_since(now);
                    unpoisoned(self.changed.wait_timeout(armed, wait)).0
                }
            };
        }
    }
}
