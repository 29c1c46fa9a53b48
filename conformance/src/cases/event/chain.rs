//! A long chain of copies, which shows a point that is reported early: its last bytes still change.
//!
//! The destination of the chain is looked at when the point is reported, and again when the stream is gone. So a wrong
//! copy is not taken for an early point, nor the other way round.

use crate::rig::{Buffer, Device, Lent, Stream, difference, pattern};
use crate::verdict::{Outcome, failed};
use std::time::Duration;

/// Bytes of a long copy.
pub(super) const LONG: usize = 4 << 20;
/// Bytes at the end of the destination that are looked at.
pub(super) const TAIL: usize = 4096;
/// Copies between the first and the last.
const HOPS: usize = 4;

/// A chain of copies whose last byte in the host's memory is the last thing to be written. Where memory is written once,
/// it is one copy there and one back, and is enqueued once.
pub(super) struct Chain<'a> {
    pub(super) source: Vec<u8>,
    pub(super) a: Buffer<'a>,
    pub(super) b: Option<Buffer<'a>>,
    pub(super) destination: Lent,
}

impl<'a> Chain<'a> {
    pub(super) fn new(device: &'a Device<'a>, seed: u64) -> Outcome<Self> {
        let size = device.pad(device.at_most(LONG) / 2);
        let source = pattern(size, seed);
        Ok(Self {
            a: device.alloc(size)?,
            b: if device.writes_once() { None } else { Some(device.alloc(size)?) },
            destination: Lent::new(vec![0; size]),
            source,
        })
    }

    pub(super) fn size(&self) -> usize {
        self.source.len()
    }

    /// Enqueues it.
    ///
    /// # Safety
    /// The chain lives until the stream has done its work, or is destroyed.
    pub(super) unsafe fn enqueue(&mut self, stream: &Stream<'_>) -> Outcome {
        let size = self.size();
        // SAFETY: source and buffer outlive the stream's work (# Safety).
        unsafe { stream.enqueue_in(&self.source, self.a.whole()) }?;
        for b in self.b.iter().cycle().take(HOPS / 2) {
            // SAFETY: the buffers outlive the stream's work (# Safety).
            unsafe { stream.enqueue_within(self.a.whole(), b.whole(), size) }?;
            // SAFETY: the buffers outlive the stream's work (# Safety).
            unsafe { stream.enqueue_within(b.whole(), self.a.whole(), size) }?;
        }
        // SAFETY: buffer and destination outlive the stream's work (# Safety).
        unsafe { stream.enqueue_out(self.a.whole(), self.destination.0.as_mut_ptr(), size) }
    }

    /// Returns the end of the destination as it is now.
    pub(super) fn tail(&self) -> Vec<u8> {
        let from = self.size().saturating_sub(TAIL);
        // A device that was early still writes here, as the case is to find out; so every byte is read as it is.
        let byte = |byte: &u8| {
            // SAFETY: within the destination.
            unsafe { std::ptr::from_ref(byte).read_volatile() }
        };
        self.destination.0[from..].iter().map(byte).collect()
    }
}

/// Rounds of a case that looks for an early point; a plugin may be lucky once.
pub(super) const ROUNDS: u64 = 6;

/// Fails if the destination's end changes after `learn` has reported the point.
pub(super) fn refuse_early(
    device: &Device<'_>,
    how: &str,
    mut learn: impl FnMut(&Stream<'_>, u64) -> Outcome,
) -> Outcome {
    for round in 0..ROUNDS {
        let mut chain = Chain::new(device, 100 + round)?;
        let stream = device.stream()?;
        // SAFETY: the chain was made before the stream, which waits for its work when it goes.
        unsafe { chain.enqueue(&stream) }?;
        if !device.inline() {
            let value = stream.signal()?;
            learn(&stream, value)?;
        }
        let reported = chain.tail();
        // The work should be over now. A correct stream is waited for, and one that does not wait is given a little
        // longer.
        drop(stream);
        std::thread::sleep(Duration::from_millis(2));
        let settled = chain.tail();
        if let Some(found) = difference(&reported, &settled) {
            return failed(format!("the work was not done when {how}: in the last bytes, {found}"));
        }
    }
    Ok(())
}
