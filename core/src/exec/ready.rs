//! Ready tasks of one participant of a run, which it keeps to itself.
//!
//! A task is named by its place in the list of successors, so that those that became ready with one task are one range,
//! whatever their number. Ranges are a stack: the newest runs first, and finds its predecessor's results in the cache.
//! Tasks that were counted down one by one are a queue: they run about in the order of the plan, which is how
//! they lie in memory. Nothing grows during a run.

use super::offers::Range;
use crate::plan::order::tasks::{Links, NO_TASK};

/// The ready tasks.
pub(super) struct Ready {
    /// The latest range; empty only if there is no other.
    top: Range,
    /// Older ranges, and how many tasks are in them.
    below: Vec<Range>,
    n_below: u32,
    /// A ring of places with room for all tasks. Its length is a power of two.
    ring: Box<[u32]>,
    /// Where the ring's first is, and one past its last; both only grow.
    first: u32,
    last: u32,
}

impl Ready {
    /// None, of so many tasks.
    pub fn new(n_tasks: usize) -> Self {
        Self {
            top: Range::EMPTY,
            below: Vec::with_capacity(n_tasks),
            n_below: 0,
            ring: vec![0; n_tasks.next_power_of_two()].into(),
            first: 0,
            last: 0,
        }
    }

    /// Tasks in ranges.
    #[inline(always)]
    pub fn n_ranged(&self) -> u32 {
        self.n_below + self.top.len()
    }

    /// Tasks that came one by one.
    #[inline(always)]
    pub fn n_single(&self) -> u32 {
        self.last.wrapping_sub(self.first)
    }

    /// Adds a range that is not empty.
    #[inline]
    pub fn push(&mut self, range: Range) {
        if self.top.len() > 0 {
            self.n_below += self.top.len();
            self.below.push(self.top);
        }
        self.top = range;
    }

    /// Adds a task if it is ready. Without a branch: whether it is cannot be foreseen.
    #[inline(always)]
    pub fn enqueue_if(&mut self, ready: bool, place: u32) {
        let at = self.ring_idx(self.last);
        // SAFETY: it is an index of the ring; its place is free, because the ring has room for all tasks, and the one
        // that ends is not among them.
        unsafe { *self.ring.get_unchecked_mut(at) = place };
        self.last = self.last.wrapping_add(u32::from(ready));
    }

    /// Takes the next task if it is wanted; `NO_TASK` if there is none, or another.
    ///
    /// `fetch_ahead` gets the ready tasks and the links when the first of the ring was taken.
    #[inline(always)]
    pub fn take_if(
        &mut self,
        links: Links<'_>,
        wanted: impl Fn(u32) -> bool,
        fetch_ahead: impl Fn(&Self),
    ) -> u32 {
        let ranged = self.top.len() > 0;
        if !ranged && self.first == self.last {
            return NO_TASK;
        }
        let task = links.successor(if ranged { self.top.begin } else { self.single(0) });
        if !wanted(task) {
            return NO_TASK;
        }
        if ranged {
            self.top.begin += 1;
            if self.top.len() == 0 {
                self.next_range();
            }
        } else {
            self.first = self.first.wrapping_add(1);
            fetch_ahead(self);
        }
        task
    }

    /// Returns the place of a task that came by itself; the first is number 0.
    #[inline(always)]
    pub fn single(&self, number: u32) -> u32 {
        // SAFETY: `ring_idx` gives an index of the ring.
        unsafe { *self.ring.get_unchecked(self.ring_idx(self.first.wrapping_add(number))) }
    }

    #[inline(always)]
    fn ring_idx(&self, position: u32) -> usize {
        position as usize & (self.ring.len() - 1)
    }

    #[inline]
    fn next_range(&mut self) {
        if let Some(range) = self.below.pop() {
            self.n_below -= range.len();
            self.top = range;
        }
    }

    /// Takes the oldest range away, or the back half of the only one.
    pub fn split_ranges(&mut self) -> Option<Range> {
        if !self.below.is_empty() {
            let oldest = self.below.remove(0);
            self.n_below -= oldest.len();
            return Some(oldest);
        }
        let back = Range { begin: self.top.begin + self.top.len() / 2, end: self.top.end };
        self.top.end = back.begin;
        (back.len() > 0).then_some(back)
    }

    /// Takes the oldest of those that came one by one.
    pub fn split_singles(&mut self) -> Option<Range> {
        let begin = (self.n_single() > 0).then(|| self.single(0))?;
        self.first = self.first.wrapping_add(1);
        Some(Range { begin, end: begin + 1 })
    }
}
