//! A pool of frames: taken and given back without a lock.
//!
//! A run that has the pool to itself takes and gives with one atomic operation each: the first place. Further frames
//! go to a bounded queue.
//!
//! Each frame counts its own runs, and only the frame's holder writes the counter. The pool adds the counters up on
//! demand.

use super::frame::Frame;
use crossbeam_queue::ArrayQueue;
use devbay_plugin_api::locks::lock;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Frames that a pool keeps beside the first; more may run at once, and are dropped afterwards.
const FRAMES_MAX: usize = 64;

/// Frames of one line.
///
/// # Invariants
/// `first` is NULL or came from `Box::into_raw`. The thread that swaps a pointer out owns it.
pub struct FramePool {
    first: AtomicPtr<Frame>,
    rest: ArrayQueue<Box<Frame>>,
    runs: Mutex<Runs>,
}

/// Runs of a pool's frames.
#[derive(Default)]
struct Runs {
    /// Those of frames that are gone.
    past: u64,
    counters: Vec<RunCounter>,
}

/// Number of runs of one frame. The frame's holder writes it; any thread may read it.
#[derive(Clone, Default)]
pub(crate) struct RunCounter(Arc<AtomicU64>);

impl RunCounter {
    /// Counts a run. No other thread does so at the same time: the caller holds the frame.
    #[inline]
    pub fn count(&self) {
        // Not one atomic operation, which would cost a locked instruction.
        self.0.store(self.0.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl FramePool {
    /// Creates an empty pool.
    pub fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()), rest: ArrayQueue::new(FRAMES_MAX), runs: Mutex::default() }
    }

    /// A counter for a new frame of this pool.
    #[cold]
    pub(crate) fn new_counter(&self) -> RunCounter {
        let mut runs = lock(&self.runs);
        // If the pool alone has a counter, its frame was dropped.
        let (counters, gone): (Vec<_>, Vec<_>) =
            std::mem::take(&mut runs.counters).into_iter().partition(|it| Arc::strong_count(&it.0) > 1);
        runs.counters = counters;
        runs.past += gone.iter().map(RunCounter::get).sum::<u64>();
        let counter = RunCounter::default();
        runs.counters.push(counter.clone());
        counter
    }

    /// Returns the number of runs that took a frame of this pool so far.
    pub fn n_runs(&self) -> u64 {
        let runs = lock(&self.runs);
        runs.past + runs.counters.iter().map(RunCounter::get).sum::<u64>()
    }

    /// A frame that was used before, if one is there.
    #[inline]
    pub fn take(&self) -> Option<Box<Frame>> {
        let first = self.first.swap(null_mut(), Ordering::Acquire);
        if first.is_null() {
            return self.take_from_rest();
        }
        // SAFETY: the pointer came from `Box::into_raw`, and the swap made it this caller's.
        Some(unsafe { Box::from_raw(first) })
    }

    /// Keeps a frame whose work is at rest.
    #[inline]
    pub fn give(&self, frame: Box<Frame>) {
        let frame = Box::into_raw(frame);
        // Release: the next thread that takes the frame sees the run's writes to it.
        if self.first.compare_exchange(null_mut(), frame, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: the pointer came from `Box::into_raw` above, and the failed exchange has shown it to no other
            // thread.
            self.give_to_rest(unsafe { Box::from_raw(frame) });
        }
    }

    #[cold]
    fn give_to_rest(&self, frame: Box<Frame>) {
        // A full queue drops the frame.
        let _ = self.rest.push(frame);
    }

    #[cold]
    fn take_from_rest(&self) -> Option<Box<Frame>> {
        self.rest.pop()
    }
}

impl Default for FramePool {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for FramePool {
    fn drop(&mut self) {
        // Dropped with the frame.
        let _ = self.take();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_frames_that_are_gone_still_count() {
        let pool = FramePool::new();
        let (first, second) = (pool.new_counter(), pool.new_counter());
        (0..3).for_each(|_| first.count());
        second.count();
        assert_eq!(pool.n_runs(), 4);
        drop(first);
        // A new frame's counter takes the place of the one that is gone.
        let third = pool.new_counter();
        third.count();
        assert_eq!(pool.runs.lock().unwrap().counters.len(), 2);
        assert_eq!(pool.n_runs(), 5);
    }
}
