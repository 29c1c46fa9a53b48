//! Progress of reading, planning and compiling a model, for bars.
//!
//! Work that may take long counts its steps with a [`Counter`]. The watcher of the thread ([`watch`]) is told on that thread,
//! within the work. A counter within another one is silent, so that a count never goes back. Without a watcher, a counter moves an
//! empty pointer, and a step compares one.
//!
//! A watcher ends the work by setting a flag that the work is done under ([`Cancel::over`](crate::cancel::Cancel::over)).

use crate::sync::thread_static;
use std::cell::Cell;
use std::rc::Rc;

/// A kind of work.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// Reading nodes of a model's file.
    Read,
    /// Passes over the program.
    Optimise,
    /// Finding types, and folding constants, node by node.
    Specialise,
    /// Choosing a device and a kernel, node by node.
    Place,
    /// Preparing launches: kernels are compiled, constants packed and uploaded.
    Prepare,
    /// Compiling parts of the program, by compilers of devices.
    Compile,
    /// Writing a compiled model, byte by byte.
    Write,
}

impl Phase {
    /// Returns its name, in lower case.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Optimise => "optimise",
            Self::Specialise => "specialise",
            Self::Place => "place",
            Self::Prepare => "prepare",
            Self::Compile => "compile",
            Self::Write => "write",
        }
    }
}

/// A moment of some work. `done` rises from 0 to `total`, unless the work fails. A phase may come several times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The kind of work.
    pub phase: Phase,
    /// Steps that are done.
    pub done: u64,
    /// Steps in all.
    pub total: u64,
}

type Watcher = Rc<dyn Fn(Progress)>;

thread_static! { static WATCHER: Cell<Option<Watcher>> = Cell::new(None) }

/// Puts a watcher into its thread's place when it is dropped.
struct Placed(Option<Watcher>);

impl Drop for Placed {
    fn drop(&mut self) {
        WATCHER.with(|place| place.set(self.0.take()));
    }
}

/// Runs `body`, and calls `watcher` on this thread whenever reading, planning or compiling within it gets further.
///
/// The watcher should return soon: the work waits for it. Work that other threads do is not told of.
pub fn watch<R>(watcher: impl Fn(Progress) + 'static, body: impl FnOnce() -> R) -> R {
    let _outer = Placed(WATCHER.with(|place| place.replace(Some(Rc::new(watcher)))));
    body()
}

/// A count of steps, as long as it lives.
pub struct Counter {
    phase: Phase,
    total: u64,
    watcher: Placed,
}

impl Counter {
    /// Begins to count `total` steps, none of them done.
    pub fn begin(phase: Phase, total: usize) -> Self {
        Self::resume(phase, 0, total)
    }

    /// Counts on, when `done` of `total` steps are done.
    pub fn resume(phase: Phase, done: usize, total: usize) -> Self {
        // The place is empty until this one ends, which silences counters within.
        let watcher = Placed(WATCHER.with(Cell::take));
        let counter = Self { phase, total: total as u64, watcher };
        if total > 0 {
            counter.done(done);
        }
        counter
    }

    /// Tells that `done` steps are done.
    #[inline]
    pub fn done(&self, done: usize) {
        if let Some(watcher) = &self.watcher.0 {
            let (phase, total) = (self.phase, self.total);
            watcher(Progress { phase, done: (done as u64).min(total), total });
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn work() {
        let outer = Counter::begin(Phase::Specialise, 2);
        let inner = Counter::begin(Phase::Optimise, 5);
        inner.done(3);
        drop(inner);
        outer.done(1);
        outer.done(2);
    }

    #[test]
    fn a_watcher_is_told_of_the_outer_counts_of_its_thread() {
        let seen = Rc::new(RefCell::new(Vec::new()));
        let own = Rc::clone(&seen);
        let watcher = move |at: Progress| own.borrow_mut().push((at.phase.name(), at.done, at.total));
        watch(watcher, || {
            work();
            drop(Counter::begin(Phase::Read, 0));
            std::thread::spawn(work).join().expect("the other thread works in silence");
            assert!(catch_unwind(AssertUnwindSafe(|| watch(|_| panic!("thrown"), work))).is_err());
            Counter::begin(Phase::Write, 7).done(9);
        });
        work();
        let specialise = [0, 1, 2].map(|done| ("specialise", done, 2));
        assert_eq!(*seen.borrow(), [&specialise[..], &[("write", 0, 7), ("write", 7, 7)]].concat());
    }
}
