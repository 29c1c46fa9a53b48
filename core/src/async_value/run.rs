//! The order in which waiters run: each thread has a queue of those that are due, so that a waiter that sets a value
//! does not run that value's waiters on top of its own stack. The same for cells: one that is freed while another is
//! being freed waits for that.
//!
//! Here user code meets the protocol: its panics stop in [`caught`](crate::error::caught).

use super::cell::{Grave, Graves};
use super::waiter::Waiters;
use crate::error::caught;
use crate::sync::thread_static;
use std::cell::Cell;

struct Queue {
    /// True if this thread is in `fire`.
    running: Cell<bool>,
    due: Cell<Waiters>,
    /// True if this thread is in `bury`.
    burying: Cell<bool>,
    graves: Cell<Graves>,
}

impl Queue {
    const fn new() -> Self {
        Self {
            running: Cell::new(false),
            due: Cell::new(Waiters::NONE),
            burying: Cell::new(false),
            graves: Cell::new(Graves::NONE),
        }
    }
}

// Nothing in it has a destructor, so that it can be used as long as the thread runs, at no cost.
thread_static!(static QUEUE: Queue = Queue::new());

/// Runs waiters that are due and all that become due by that; within a waiter, they come after it.
pub(super) fn fire(waiters: Waiters) {
    QUEUE.with(|queue| {
        let mut due = queue.due.take();
        due.append(waiters);
        if queue.running.replace(true) {
            return queue.due.set(due);
        }
        while let Some(waiter) = due.pop() {
            queue.due.set(due);
            waiter.run();
            due = queue.due.take();
        }
        queue.running.set(false);
    });
}

/// Frees a cell whose value runs code when it is dropped, and all cells of that kind whose last references go by that.
pub(super) fn bury(grave: Grave) {
    QUEUE.with(|queue| {
        let mut graves = queue.graves.take();
        graves.push(grave);
        if queue.burying.replace(true) {
            return queue.graves.set(graves);
        }
        while let Some(grave) = graves.pop() {
            queue.graves.set(graves);
            if let Err(error) = caught("a value's destructor", || grave.free()) {
                tracing::error!("{error}");
            }
            graves = queue.graves.take();
        }
        queue.burying.set(false);
    });
}
