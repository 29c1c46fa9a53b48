//! A pool of frames: taken and given back without a lock.

use super::frame::Frame;
use crossbeam_queue::ArrayQueue;

/// Frames that a pool keeps; more may run at once, and are dropped afterwards.
const FRAMES_MAX: usize = 64;

/// Frames of one line.
pub struct FramePool {
    frames: ArrayQueue<Frame>,
}

impl FramePool {
    /// An empty pool.
    pub fn new() -> Self {
        Self { frames: ArrayQueue::new(FRAMES_MAX) }
    }

    /// A frame that was used before, if one is there.
    pub fn take(&self) -> Option<Frame> {
        self.frames.pop()
    }

    /// Keeps a frame whose work is at rest.
    pub fn give(&self, frame: Frame) {
        // A full pool drops the frame.
        let _ = self.frames.push(frame);
    }
}

impl Default for FramePool {
    fn default() -> Self {
        Self::new()
    }
}
