//! The caller of a run, asleep until there is something for it to do.

use crate::sync::{self, AtomicBool, Mutex, Ordering, fence, thread};
use devbay_plugin_api::locks::unpoisoned;
use std::time::Duration;

/// Time that a caller sleeps before it looks by itself: at parallel loops that opened meanwhile.
const NAP: Duration = Duration::from_millis(1);

/// Where the one caller of a run sleeps.
///
/// A thread with news puts it where the caller looks, then calls [`Sleeper::wake`]. The caller says that it sleeps,
/// then looks once more. With a fence on both sides, one of the two sees the other.
#[derive(Default)]
pub(crate) struct Sleeper {
    asleep: AtomicBool,
    caller: Mutex<Option<thread::Thread>>,
}

impl Sleeper {
    /// Sleeps for a moment, unless `has_work` says that there is something to do after all.
    pub fn sleep(&self, has_work: impl FnOnce() -> bool) {
        *unpoisoned(self.caller.lock()) = Some(thread::current());
        self.asleep.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !has_work() {
            sync::park_timeout(NAP);
        }
        self.asleep.store(false, Ordering::Relaxed);
    }

    /// Returns whether the caller sleeps, as far as this thread knows.
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
        if let Some(caller) = &*unpoisoned(self.caller.lock()) {
            caller.unpark();
        }
        true
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::AtomicU32;
    use loom::sync::Arc;

    /// Models a caller that takes `n_posts` messages, and sleeps while there is none. The model's naps do not end by
    /// themselves. The caller joins no thread: loom takes a wake for the end of a joined thread.
    fn model(n_posts: u32) {
        let sleeper = Arc::new(Sleeper::default());
        let mail = Arc::new(AtomicU32::new(0));
        let post = {
            let (sleeper, mail) = (Arc::clone(&sleeper), Arc::clone(&mail));
            move || {
                mail.fetch_add(1, Ordering::Relaxed);
                sleeper.wake();
            }
        };
        let caller = loom::thread::spawn(move || {
            let mut n_taken = 0;
            while n_taken < n_posts {
                let n = mail.swap(0, Ordering::Relaxed);
                n_taken += n;
                if n == 0 {
                    sleeper.sleep(|| mail.load(Ordering::Relaxed) != 0);
                }
            }
        });
        let others: Vec<_> = (1..n_posts).map(|_| loom::thread::spawn(post.clone())).collect();
        post();
        caller.join().unwrap();
        for other in others {
            other.join().unwrap();
        }
    }

    /// The model ends only if the caller was woken, or saw the mail before it slept.
    #[test]
    fn mail_comes_while_the_caller_falls_asleep() {
        loom::model(|| model(1));
    }

    /// The same with a second post, which may come before, while or after the first one wakes the caller.
    #[test]
    fn two_devices_post_while_the_caller_falls_asleep() {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(|| model(2));
    }
}
