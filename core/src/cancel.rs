//! Ending work early, by hand or by a deadline.
//!
//! A run, and the reading and planning before it, is done *under* a flag ([`Cancel::over`]). Each piece of work looks
//! at the flag of its thread ([`look`]): import, passes and planning between nodes, the launch loop between launches,
//! the host's parallel loops between chunks. Threads that help take the flag along with the work (`Under`). So a
//! kernel, which comes back to the host through C, need not hand it on.

use crate::error::{Error, ErrorKind, Phase, Result};
use crate::sync::{AtomicU32, Ordering, thread_static};
use devbay_plugin_api::abi::{DEVBAY_STATUS_CANCELLED, Status};
use devbay_plugin_api::locks;
use std::cell::Cell;
use std::ptr::null;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

const RUNNING: u32 = 0;
const CANCELLED: u32 = 1;
const EXPIRED: u32 = 2;
/// Set while the flag counts looks: the other bits say how many are left.
const COUNTS: u32 = 1 << 31;

/// The time that a thread sleeps while it waits for another one's lock and may have to give up.
const NAP: Duration = Duration::from_micros(500);

thread_static! { static WORKS_UNDER: Cell<*const Flag> = Cell::new(null()) }
thread_static! { static PLANS_UNTIL: Cell<Option<Instant>> = Cell::new(None) }

/// A flag that ends work. Clones share it; once set it stays set.
#[derive(Clone, Default)]
pub struct Cancel(Arc<Flag>);

#[derive(Default)]
struct Flag {
    state: AtomicU32,
    /// Launches that are under way, the latest last; None for a flag that keeps no list.
    launching: Option<Mutex<Vec<(ThreadId, Launching)>>>,
}

/// A launch that is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launching {
    /// The plugin's name.
    pub plugin: String,
    /// The device's name.
    pub device: String,
    /// The node's label.
    pub node: String,
}

/// Tells of a launch until it is dropped.
pub(crate) struct Told<'a>(&'a Mutex<Vec<(ThreadId, Launching)>>);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        let (mut all, own) = (locks::lock(self.0), thread::current().id());
        if let Some(at) = all.iter().rposition(|(thread, _)| *thread == own) {
            all.remove(at);
        }
    }
}

impl Flag {
    #[inline(always)]
    fn is_set(&self) -> bool {
        let state = self.state.load(Ordering::Relaxed);
        state != RUNNING && self.counts_down(state)
    }

    /// Counts this look, if the flag counts looks, and returns whether it is set.
    #[cold]
    fn counts_down(&self, state: u32) -> bool {
        if state & COUNTS == 0 {
            return true;
        }
        let next = |state: u32| match state {
            COUNTS => Some(CANCELLED),
            state if state & COUNTS != 0 => Some(state - 1),
            _ => None,
        };
        self.state
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, next)
            .is_ok_and(|before| before == COUNTS)
    }

    fn set(&self, to: u32) {
        let runs = |state: u32| (state == RUNNING || state & COUNTS != 0).then_some(to);
        // The first to set it gives the reason.
        let _ = self.state.fetch_update(Ordering::Relaxed, Ordering::Relaxed, runs);
    }

    #[inline(always)]
    fn tell(&self, launching: impl FnOnce() -> Launching) -> Option<Told<'_>> {
        let all = self.launching.as_ref()?;
        let entry = (thread::current().id(), launching());
        locks::lock(all).push(entry);
        Some(Told(all))
    }

    fn error(&self) -> Error {
        if self.state.load(Ordering::Relaxed) == EXPIRED {
            return Error::new(ErrorKind::DeadlineExceeded, "the deadline passed before the run ended");
        }
        Cancel::unknown()
    }
}

impl Cancel {
    /// Creates a flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a flag that sets itself after so many looks, to test the places and the frequency of looks.
    pub fn after_looks(n: u32) -> Self {
        let cancel = Self::default();
        cancel.0.state.store(COUNTS | n.min(COUNTS - 1), Ordering::Relaxed);
        cancel
    }

    /// Returns the number of looks left of [`Cancel::after_looks`]; None once it is set, and for other flags.
    pub fn looks_left(&self) -> Option<u32> {
        let state = self.0.state.load(Ordering::Relaxed);
        (state & COUNTS != 0).then_some(state & !COUNTS)
    }

    /// Returns a flag that knows the launches in progress under it ([`Cancel::launching`]), to report one that does not
    /// end. Launches take some tens of nanoseconds longer.
    pub fn watched() -> Self {
        Self(Arc::new(Flag { launching: Some(Mutex::default()), ..Flag::default() }))
    }

    /// Returns the launches in progress under it, the latest last; none if it is not watched.
    pub fn launching(&self) -> Vec<Launching> {
        let Some(all) = &self.0.launching else { return Vec::new() };
        let all = locks::lock(all);
        all.iter().map(|(_, launching)| launching.clone()).collect()
    }

    /// Tells of a launch, if the flag is watched, until the result is dropped.
    #[inline(always)]
    pub(crate) fn tell(&self, launching: impl FnOnce() -> Launching) -> Option<Told<'_>> {
        self.0.tell(launching)
    }

    /// Ends the work under this flag.
    pub fn cancel(&self) {
        self.0.set(CANCELLED);
    }

    /// Ends it because its deadline passed.
    pub fn expire(&self) {
        self.0.set(EXPIRED);
    }

    /// Returns whether it is set.
    #[inline(always)]
    pub fn is_cancelled(&self) -> bool {
        self.0.is_set()
    }

    /// Returns the error of work that looked and stopped.
    pub fn error(&self) -> Error {
        self.0.error()
    }

    pub(crate) fn unknown() -> Error {
        Error::new(ErrorKind::Cancelled, "the run was cancelled")
    }

    /// Nothing if the flag is not set.
    ///
    /// # Errors
    /// [`Cancel::error`].
    pub fn check(cancel: Option<&Self>) -> Result<()> {
        match cancel {
            Some(cancel) if cancel.is_cancelled() => Err(cancel.error()),
            _ => Ok(()),
        }
    }

    /// Runs `body` under this flag, on this thread and on those that help it. Without a flag, the thread's current one
    /// stays in force.
    #[inline]
    pub fn over<R>(cancel: Option<&Self>, body: impl FnOnce() -> R) -> R {
        match cancel {
            None => body(),
            cancel => Under::of(cancel).run(body),
        }
    }
}

/// The flag that a piece of work is done under, or none.
#[derive(Clone, Copy)]
pub(crate) struct Under<'a>(Option<&'a Flag>);

/// A guard that restores a thread's earlier flag.
struct Restored(*const Flag);

impl Drop for Restored {
    fn drop(&mut self) {
        WORKS_UNDER.with(|under| under.set(self.0));
    }
}

impl<'a> Under<'a> {
    /// Under a flag, or none.
    pub fn of(cancel: Option<&'a Cancel>) -> Self {
        Self(cancel.map(|cancel| &*cancel.0))
    }

    /// Returns whether no more of the work should begin.
    #[inline(always)]
    pub fn is_over(self) -> bool {
        self.0.is_some_and(Flag::is_set)
    }

    /// Does something under it, on this thread.
    #[inline]
    pub fn run<R>(self, body: impl FnOnce() -> R) -> R {
        let flag = self.0.map_or(null(), std::ptr::from_ref);
        let _restored = Restored(WORKS_UNDER.with(|under| under.replace(flag)));
        body()
    }

    /// As [`Cancel::tell`].
    pub fn tell(self, launching: impl FnOnce() -> Launching) -> Option<Told<'a>> {
        self.0.and_then(|flag| flag.tell(launching))
    }

    /// Calls `body` with this thread's flag.
    #[inline]
    pub fn here<R>(body: impl FnOnce(Under<'_>) -> R) -> R {
        let flag = WORKS_UNDER.with(Cell::get);
        // SAFETY: NULL, or a flag that `run` borrows for longer than this call, which its body made; `Restored` takes it
        // away when `run` returns or unwinds.
        body(Under(unsafe { flag.as_ref() }))
    }
}

/// Fails if the work of this thread is to end. Long work calls it again and again.
///
/// # Errors
/// Cancelled, or past the deadline.
#[inline]
pub fn look() -> Result<()> {
    Under::here(|under| match under {
        Under(Some(flag)) if flag.is_set() => Err(flag.error()),
        _ => PLANS_UNTIL.with(Cell::get).map_or(Ok(()), in_time),
    })
}

#[cold]
fn in_time(until: Instant) -> Result<()> {
    if Instant::now() < until {
        return Ok(());
    }
    let text = "planning takes longer than it may (limit planning-time)";
    Err(Error::new(ErrorKind::DeadlineExceeded, text))
}

/// Plans, for so long at most: [`look`] gives an error after that.
pub(crate) fn planning<R>(limit: Duration, body: impl FnOnce() -> R) -> R {
    struct Restored(Option<Instant>);
    impl Drop for Restored {
        fn drop(&mut self) {
            PLANS_UNTIL.with(|until| until.set(self.0));
        }
    }
    let own = Instant::now().checked_add(limit);
    let outer = PLANS_UNTIL.with(Cell::get);
    // The plan's deadline bounds the planning of regions, too.
    let _restored = Restored(PLANS_UNTIL.with(|until| until.replace(outer.or(own))));
    body()
}

/// Returns the error of this thread's work, if it is to end.
pub(crate) fn ended() -> Option<Error> {
    Under::here(|under| under.0.filter(|flag| flag.is_set()).map(Flag::error))
}

impl Error {
    /// Makes an error of a status that a plugin gave in a phase, with the detail it wrote.
    pub fn from_status(status: Status, phase: Phase, detail: &str) -> Self {
        // If it ended early because its run did, the reason is the run's.
        if status == DEVBAY_STATUS_CANCELLED
            && let Some(error) = ended()
        {
            return error;
        }
        Self::of_status(status, phase, detail)
    }
}

/// Locks a mutex that another thread may hold for long, and gives up when this thread's work is to end.
///
/// # Errors
/// As [`look`].
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    if Under::here(|under| under.0.is_none()) {
        return Ok(locks::lock(mutex));
    }
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Ok(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => look()?,
        }
        thread::sleep(NAP);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn work_is_under_the_innermost_flag_and_none_is_left_behind() {
        let (outer, inner) = (Cancel::new(), Cancel::new());
        inner.expire();
        Cancel::over(Some(&outer), || {
            assert!(look().is_ok());
            let kind = Cancel::over(Some(&inner), || look().unwrap_err().kind());
            assert_eq!(kind, ErrorKind::DeadlineExceeded);
            // Without a flag of its own, work is under the flag around it; a helper's is not.
            Cancel::over(None, || assert!(look().is_ok()));
            outer.cancel();
            Cancel::over(None, || assert_eq!(look().unwrap_err().kind(), ErrorKind::Cancelled));
            Under::of(None).run(|| assert!(look().is_ok()));
        });
        let thrown = std::panic::catch_unwind(|| Cancel::over(Some(&outer), || panic!("thrown")));
        assert!(thrown.is_err() && look().is_ok());
    }

    #[test]
    fn a_flag_that_counts_is_set_at_the_look_after() {
        let cancel = Cancel::after_looks(2);
        let looks: Vec<bool> = (0..4).map(|_| cancel.is_cancelled()).collect();
        assert_eq!(looks, [false, false, true, true]);
        assert_eq!((cancel.looks_left(), cancel.error().kind()), (None, ErrorKind::Cancelled));
        let cancel = Cancel::after_looks(9);
        assert!(!cancel.is_cancelled());
        assert_eq!(cancel.looks_left(), Some(8));
        cancel.expire();
        assert_eq!(cancel.error().kind(), ErrorKind::DeadlineExceeded);
    }

    #[test]
    fn a_watched_flag_knows_what_is_launched() {
        let launching = |node: &str| Launching {
            plugin: "toy".to_owned(),
            device: "toy:0".to_owned(),
            node: node.to_owned(),
        };
        let nodes = |cancel: &Cancel| -> Vec<String> {
            cancel.launching().into_iter().map(|launching| launching.node).collect()
        };
        let cancel = Cancel::watched();
        let outer = cancel.tell(|| launching("outer"));
        Under::of(Some(&cancel)).run(|| {
            Under::here(|under| {
                let _inner = under.tell(|| launching("inner"));
                assert_eq!(nodes(&cancel), ["outer", "inner"]);
            });
        });
        assert_eq!(nodes(&cancel), ["outer"]);
        drop(outer);
        assert!(nodes(&cancel).is_empty() && Cancel::new().tell(|| launching("none")).is_none());
    }

    #[test]
    fn planning_has_a_time_and_gives_it_to_what_is_planned_within() {
        planning(Duration::from_secs(3600), || assert!(look().is_ok()));
        planning(Duration::ZERO, || {
            assert_eq!(look().unwrap_err().kind(), ErrorKind::DeadlineExceeded);
            planning(Duration::from_secs(3600), || assert!(look().is_err()));
        });
        assert!(look().is_ok());
    }

    #[test]
    fn who_waits_for_a_lock_gives_up_when_its_work_ends() {
        let mutex = Mutex::new(());
        let _held = mutex.lock().unwrap();
        let error = Cancel::over(Some(&Cancel::after_looks(3)), || lock(&mutex).err().map(|e| e.kind()));
        assert_eq!(error, Some(ErrorKind::Cancelled));
    }
}
