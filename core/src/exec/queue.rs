//! The work queue: one pool of threads for the parallel loops of all kernels.
//!
//! Workers look for open loops on the [`super::board`], spin a little when there is none, and then park, so
//! that an idle runtime uses no processor time. The calling thread is one of the threads: a queue of `n`
//! has `n - 1` workers. Nothing here allocates or locks while loops run.

use super::board::{self, Board, Body};
use super::processor::Seat;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, Ordering, fence};
use std::sync::{Arc, OnceLock};
use std::thread::{JoinHandle, Thread};
use std::time::{Duration, Instant};

/// Most threads of a queue.
pub const THREADS_MAX: usize = 512;

/// How often an idle worker looks for work before it lets others run too: about 50 microseconds.
const SPINS: u32 = 4000;

/// How long a worker looks on before it parks. A model's loops come some 10 or 100 microseconds apart, and waking a
/// halted processor of a virtual machine takes as long.
const LINGER: Duration = Duration::from_millis(1);

struct Worker {
    thread: OnceLock<(Thread, Seat)>,
    parked: AtomicBool,
}

struct Shared {
    board: Board,
    workers: Box<[Worker]>,
    stop: AtomicBool,
}

/// A pool of threads; dropping it ends them.
pub struct WorkQueue {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
}

impl WorkQueue {
    /// A queue of `n_threads`, the calling thread counted.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 or more than [`THREADS_MAX`]; [`ErrorKind::Unavailable`] if
    /// the system gives no thread.
    pub fn new(n_threads: usize) -> Result<Self> {
        if !(1..=THREADS_MAX).contains(&n_threads) {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!("the number of threads is 1 to {THREADS_MAX}, found {n_threads}"),
            ));
        }
        let worker = |_| Worker { thread: OnceLock::new(), parked: AtomicBool::new(false) };
        let shared = Arc::new(Shared {
            board: Board::new(n_threads as u32),
            workers: (1..n_threads).map(worker).collect(),
            stop: AtomicBool::new(false),
        });
        let mut queue = Self { shared, handles: Vec::new() };
        for slot in 1..n_threads {
            let shared = Arc::clone(&queue.shared);
            let handle = std::thread::Builder::new()
                .name(format!("devbay-{slot}"))
                .spawn(move || shared.work(slot))
                .map_err(|e| Error::new(ErrorKind::Unavailable, "cannot start a worker thread").because(e))?;
            queue.handles.push(handle);
        }
        Ok(queue)
    }

    /// Threads, the caller's counted.
    pub fn n_threads(&self) -> usize {
        self.shared.workers.len() + 1
    }

    /// Runs `body(begin, end, slot)` over `0..n` in chunks of `grain`; returns when all are done, with the
    /// first status that was not 0. May be nested, and called from any thread.
    pub fn parallel_for(&self, n: u64, grain: u64, body: &Body<'_>) -> i32 {
        if self.handles.is_empty() || n <= grain.max(1) {
            return board::alone(n, grain, body);
        }
        self.shared.board.run(n, grain, body, |wanted| self.shared.wake(wanted))
    }
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for handle in &self.handles {
            handle.thread().unpark();
        }
        for handle in self.handles.drain(..) {
            // A worker runs bodies that do not unwind; nothing is lost if one did.
            let _ = handle.join();
        }
    }
}

impl Shared {
    /// Wakes up to `wanted` parked workers. A loop was opened before (SeqCst on the board's word).
    fn wake(&self, mut wanted: u32) {
        // With the fence in `work`: either this sees a worker parked, or that worker sees the loop.
        fence(Ordering::SeqCst);
        for worker in &self.workers {
            if wanted == 0 {
                return;
            }
            if worker.parked.load(Ordering::Relaxed) {
                if worker.parked.swap(false, Ordering::AcqRel)
                    && let Some((thread, seat)) = worker.thread.get()
                {
                    seat.keep_off_mine();
                    thread.unpark();
                }
                wanted -= 1;
            }
        }
    }

    /// Looks for work while others may run; tells whether there is some.
    fn linger(&self) -> bool {
        let begin = Instant::now();
        while begin.elapsed() < LINGER && !self.stop.load(Ordering::Relaxed) {
            if self.board.has_work() {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn work(&self, slot: usize) {
        let worker = &self.workers[slot - 1];
        let (_, seat) = worker.thread.get_or_init(|| (std::thread::current(), Seat::of_this_thread()));
        let mut idle = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if self.board.has_work() && self.board.help(slot as u32, seat) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < SPINS {
                crate::sync::spin();
                continue;
            }
            if self.linger() {
                idle = 0;
                continue;
            }
            worker.parked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while worker.parked.load(Ordering::Acquire)
                && !self.board.has_work()
                && !self.stop.load(Ordering::SeqCst)
            {
                std::thread::park();
            }
            worker.parked.store(false, Ordering::Relaxed);
            idle = 0;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn nested_loops_end_and_run_every_element_once() {
        let queue = WorkQueue::new(4).unwrap();
        for _ in 0..200 {
            let count = AtomicU64::new(0);
            let status = queue.parallel_for(16, 1, &|_, _, _| {
                queue.parallel_for(100, 10, &|begin, end, _| {
                    count.fetch_add(end - begin, Ordering::Relaxed);
                    0
                })
            });
            assert_eq!((status, count.load(Ordering::Relaxed)), (0, 1600));
        }
    }

    #[test]
    fn callers_from_outside_share_the_workers() {
        let queue = WorkQueue::new(3).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..100 {
                        let count = AtomicU64::new(0);
                        queue.parallel_for(1000, 10, &|begin, end, _| {
                            count.fetch_add(end - begin, Ordering::Relaxed);
                            0
                        });
                        assert_eq!(count.load(Ordering::Relaxed), 1000);
                    }
                });
            }
        });
    }

    #[test]
    fn workers_wake_from_parking() {
        let queue = WorkQueue::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(std::time::Duration::from_millis(5));
            let slots = AtomicU64::new(0);
            queue.parallel_for(64, 1, &|_, _, slot| {
                slots.fetch_or(1 << slot, Ordering::Relaxed);
                std::thread::sleep(std::time::Duration::from_millis(1));
                0
            });
            assert_eq!(slots.load(Ordering::Relaxed), 3, "both threads worked");
        }
    }

    #[test]
    fn a_queue_has_at_least_one_thread() {
        for n in [0, THREADS_MAX + 1] {
            let error = WorkQueue::new(n).err().map(|e| e.kind());
            assert_eq!(error, Some(ErrorKind::InvalidArgument));
        }
    }
}
