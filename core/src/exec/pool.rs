//! A pool of frames: taken and given back without a lock.
//!
//! A run that has the pool to itself takes and gives with one atomic operation each: the first place. What does
//! not fit there goes to a bounded queue.

use super::frame::Frame;
use crossbeam_queue::ArrayQueue;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Frames that a pool keeps beside the first; more may run at once, and are dropped afterwards.
const FRAMES_MAX: usize = 64;

/// Frames of one line.
///
/// # Invariants
/// `first` is NULL or came from `Box::into_raw`; who swaps a pointer out owns it.
pub struct FramePool {
    first: AtomicPtr<Frame>,
    rest: ArrayQueue<Box<Frame>>,
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self { first: AtomicPtr::new(null_mut()), rest: ArrayQueue::new(FRAMES_MAX) }
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
        // Release: what the run wrote into the frame is there for who takes it.
        if self.first.compare_exchange(null_mut(), frame, Ordering::Release, Ordering::Relaxed).is_err() {
            // SAFETY: made above, and nobody else has seen it.
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
