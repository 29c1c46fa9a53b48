//! Parking: how workers without work go to sleep, and none that is needed is missed.
//!
//! # Protocol
//!
//! | actor | action |
//! | --- | --- |
//! | worker | counts itself in `n_parked`, fence, reads `epoch` (Acquire), looks for work once more |
//! | worker | `parked` = true, fence, reads `epoch`: sleeps only if it is as before |
//! | offerer | puts work where workers look, fence, reads `n_parked`: done if it is 0 |
//! | offerer | `epoch` + 1 (Release), fence, reads `parked`: wakes a sleeping worker |
//!
//! By the first pair of fences either the offerer sees the worker counted, or the worker's look sees the work. By the
//! second either the offerer sees it parked, or it sees the epoch. A worker that reads the offerer's epoch before it looks
//! would see nothing change any more: its look must see the work, hence Release and Acquire (loom found that).

use super::processor::Seat;
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence, thread};
use std::sync::OnceLock;

struct Sleeper {
    thread: OnceLock<(thread::Thread, Seat)>,
    parked: AtomicBool,
}

/// The workers of a queue, as far as they sleep.
pub struct Parking {
    workers: Box<[Sleeper]>,
    /// Number of events that may be reason to wake up.
    epoch: AtomicU32,
    /// Number of workers that sleep or are about to: a hint for threads that offer often.
    n_parked: AtomicU32,
    stopped: AtomicBool,
}

impl Parking {
    /// Creates a place for each of so many workers.
    pub fn new(n_workers: usize) -> Self {
        let sleeper = |_| Sleeper { thread: OnceLock::new(), parked: AtomicBool::new(false) };
        Self {
            workers: (0..n_workers).map(sleeper).collect(),
            epoch: AtomicU32::new(0),
            n_parked: AtomicU32::new(0),
            stopped: AtomicBool::new(false),
        }
    }

    /// Returns the number of workers.
    pub fn n_workers(&self) -> usize {
        self.workers.len()
    }

    /// Makes this thread a worker. Before it parks, and once.
    pub fn enter(&self, worker: usize, seat: Seat) -> &Seat {
        &self.workers[worker].thread.get_or_init(|| (thread::current(), seat)).1
    }

    /// Keeps workers from parking. Those that are parked are to be unparked afterwards.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// Returns whether workers are to end.
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Wakes up to `wanted` parked workers. Work was put where they look before.
    #[inline]
    pub fn wake(&self, wanted: u32) {
        fence(Ordering::SeqCst);
        if self.n_parked.load(Ordering::Relaxed) > 0 {
            self.wake_parked(wanted);
        }
    }

    #[cold]
    fn wake_parked(&self, mut wanted: u32) {
        self.epoch.fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            if wanted == 0 {
                return;
            }
            if worker.parked.load(Ordering::Relaxed) && worker.parked.swap(false, Ordering::AcqRel) {
                if let Some((thread, seat)) = worker.thread.get() {
                    seat.keep_off_mine();
                    thread.unpark();
                }
                wanted -= 1;
            }
        }
    }

    /// Sleeps until there is work, unless `look` finds and does some now. Only the worker itself may call it.
    pub fn park(&self, worker: usize, look: impl FnOnce() -> bool) {
        let worker = &self.workers[worker];
        self.n_parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::Acquire);
        if !look() {
            worker.parked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while worker.parked.load(Ordering::Acquire)
                && self.epoch.load(Ordering::Relaxed) == epoch
                && !self.stopped.load(Ordering::SeqCst)
            {
                thread::park();
            }
            worker.parked.store(false, Ordering::Relaxed);
        }
        self.n_parked.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::threads::processor::Seat;
    use loom::sync::Arc;

    struct Queue {
        parking: Parking,
        work: AtomicU32,
    }

    impl Queue {
        fn new(n_workers: usize) -> Arc<Self> {
            Arc::new(Self { parking: Parking::new(n_workers), work: AtomicU32::new(0) })
        }

        fn take(&self) -> bool {
            self.work.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1)).is_ok()
        }

        fn offer(&self) {
            self.work.fetch_add(1, Ordering::Relaxed);
            self.parking.wake(1);
        }

        /// A worker that ends when it has done one piece of work, or the queue has stopped.
        fn work(&self, worker: usize) {
            self.parking.enter(worker, Seat::of_this_thread());
            let mut done = self.take();
            while !done && !self.parking.is_stopped() {
                self.parking.park(worker, || {
                    done = self.take();
                    done
                });
                done = done || self.take();
            }
        }
    }

    /// The model ends only if the worker was woken, or saw the work before it slept.
    #[test]
    fn an_offer_comes_while_a_worker_parks() {
        loom::model(|| {
            let queue = Queue::new(1);
            let worker = {
                let queue = Arc::clone(&queue);
                loom::thread::spawn(move || queue.work(0))
            };
            queue.offer();
            worker.join().unwrap();
            assert_eq!(queue.work.load(Ordering::Relaxed), 0);
        });
    }

    /// Two offers, one after the other, reach two workers, though each offer wakes one.
    #[test]
    fn two_offers_come_while_two_workers_park() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(|| {
            let queue = Queue::new(2);
            let workers: Vec<_> = (0..2)
                .map(|worker| {
                    let queue = Arc::clone(&queue);
                    loom::thread::spawn(move || queue.work(worker))
                })
                .collect();
            queue.offer();
            queue.offer();
            for worker in workers {
                worker.join().unwrap();
            }
            assert_eq!(queue.work.load(Ordering::Relaxed), 0);
        });
    }

    /// A queue that ends reaches a worker that is about to sleep.
    #[test]
    fn the_queue_stops_while_a_worker_parks() {
        loom::model(|| {
            let queue = Queue::new(1);
            let worker = {
                let queue = Arc::clone(&queue);
                loom::thread::spawn(move || queue.work(0))
            };
            queue.parking.stop();
            worker.thread().unpark();
            worker.join().unwrap();
        });
    }
}
