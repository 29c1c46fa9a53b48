//! Jobs: whole runs and other work that is started and not waited for, in lanes by priority.

use crate::error::caught;
use crossbeam_queue::SegQueue;

/// Something to do once, on whatever thread.
///
/// It may call `parallel_for` and run tasks. It does not wait for another job of its queue, which may be behind it.
pub type Job = Box<dyn FnOnce() + Send>;

/// The order in which queued jobs start. A job that has started is not interrupted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Priority {
    /// After all others.
    Low,
    /// In the order of coming.
    #[default]
    Normal,
    /// Before all others.
    High,
}

/// The priorities there are.
pub const N_PRIORITIES: usize = 3;

/// Jobs that wait, a lane for each priority.
#[derive(Default)]
pub struct Lanes {
    lanes: [SegQueue<Job>; N_PRIORITIES],
}

impl Lanes {
    /// Puts a job behind those of its priority.
    pub fn push(&self, priority: Priority, job: Job) {
        self.lanes[priority as usize].push(job);
    }

    /// Returns the job that is to start next.
    pub fn pop(&self) -> Option<Job> {
        self.lanes.iter().rev().find_map(SegQueue::pop)
    }

    /// Returns whether no job waits.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.lanes.iter().all(SegQueue::is_empty)
    }
}

/// Runs a job. A panic is reported and ends here; threads that wait for the job see that its values were dropped.
pub fn run(job: Job) {
    if let Err(error) = caught("a job", job) {
        tracing::error!("{error}");
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[test]
    fn the_highest_priority_starts_first_then_who_came_first() {
        let lanes = Lanes::default();
        let started = Arc::new(Mutex::new(Vec::new()));
        let order = [Priority::Low, Priority::Normal, Priority::High, Priority::Normal, Priority::High];
        for (i, priority) in order.into_iter().enumerate() {
            let started = Arc::clone(&started);
            lanes.push(priority, Box::new(move || started.lock().unwrap().push(i)));
        }
        while let Some(job) = lanes.pop() {
            run(job);
        }
        assert_eq!(*started.lock().unwrap(), [2, 4, 1, 3, 0]);
        assert!(lanes.is_empty());
    }
}
