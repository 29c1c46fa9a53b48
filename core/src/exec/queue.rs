//! The work queue: one pool of threads for the tasks of all runs and the parallel loops of all kernels.
//!
//! Workers look for open work on the [`super::board`], spin a little when there is none, and then park, so
//! that an idle runtime uses no processor time. The calling thread is one of the threads: a queue of `n`
//! has `n - 1` workers. Nothing here allocates or locks while work is done.
//!
//! # How a worker goes to sleep and none is missed
//!
//! | who | does |
//! | --- | --- |
//! | worker | counts itself in `n_parked`, fence, reads `epoch`, looks for work once more |
//! | worker | `parked` = true, fence, reads `epoch`: sleeps only if it is as before |
//! | offerer | puts work where workers look, fence, reads `n_parked`: done if it is 0 |
//! | offerer | `epoch` + 1, fence, reads `parked`: wakes who sleeps |
//!
//! By the first pair of fences either the offerer sees the worker counted, or the worker's look sees the work. By the
//! second either the offerer sees it parked, or it sees the epoch.

use super::board::{self, Board, Body, Shared as SharedWork};
use super::processor::Seat;
use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicBool, AtomicU32, Ordering, fence};
use std::cell::Cell;
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
    /// Counts what may be reason to wake up.
    epoch: AtomicU32,
    /// How many workers sleep or are about to: a hint for those who offer often.
    n_parked: AtomicU32,
    stop: AtomicBool,
}

thread_local! {
    /// The queue that this thread works for, by address, and its slot there.
    static WORKS_FOR: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
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
            epoch: AtomicU32::new(0),
            n_parked: AtomicU32::new(0),
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
        self.shared.board.run(n, grain, self.shared.slot(), body, |wanted| self.shared.wake(wanted))
    }

    /// Opens work to the workers for as long as `body` runs, which takes part as slot 0. None if it cannot be shared:
    /// there is no worker, or too much is open.
    pub(crate) fn share<R>(&self, work: &dyn SharedWork, body: impl FnOnce() -> R) -> Option<R> {
        if self.handles.is_empty() {
            return None;
        }
        self.shared.board.share(work, body)
    }

    /// Wakes a worker that sleeps, if one does: something was put on offer.
    #[inline]
    pub(crate) fn offered(&self) {
        self.shared.wake(1);
    }

    /// Works on the parallel loops of others, as slot `slot` of a run; tells whether there was one.
    pub(crate) fn help_loops(&self, slot: u32) -> bool {
        self.shared.board.has_work() && self.shared.board.help_loops(slot)
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
    /// This thread's slot if it is one of the workers, else 0.
    fn slot(&self) -> u32 {
        let (queue, slot) = WORKS_FOR.get();
        if queue == std::ptr::from_ref(self).addr() { slot } else { 0 }
    }

    /// Wakes up to `wanted` parked workers. Work was put where they look before.
    #[inline]
    fn wake(&self, wanted: u32) {
        fence(Ordering::SeqCst);
        if self.n_parked.load(Ordering::Relaxed) > 0 {
            self.wake_parked(wanted);
        }
    }

    #[cold]
    fn wake_parked(&self, mut wanted: u32) {
        self.epoch.fetch_add(1, Ordering::Relaxed);
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

    fn help(&self, slot: u32, seat: &Seat) -> bool {
        self.board.has_work() && self.board.help(slot, seat)
    }

    /// Looks for work until there was some: first spinning, then letting others run too. False if there was none for
    /// a while.
    fn look(&self, slot: u32, seat: &Seat) -> bool {
        for _ in 0..SPINS {
            if self.help(slot, seat) {
                return true;
            }
            crate::sync::spin();
        }
        let begin = Instant::now();
        while begin.elapsed() < LINGER && !self.stop.load(Ordering::Relaxed) {
            if self.help(slot, seat) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// Sleeps until somebody has work, unless somebody has.
    fn park(&self, worker: &Worker, slot: u32, seat: &Seat) {
        self.n_parked.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let epoch = self.epoch.load(Ordering::Relaxed);
        if !self.help(slot, seat) {
            worker.parked.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            while worker.parked.load(Ordering::Acquire)
                && self.epoch.load(Ordering::Relaxed) == epoch
                && !self.stop.load(Ordering::SeqCst)
            {
                std::thread::park();
            }
            worker.parked.store(false, Ordering::Relaxed);
        }
        self.n_parked.fetch_sub(1, Ordering::Relaxed);
    }

    fn work(&self, slot: usize) {
        WORKS_FOR.set((std::ptr::from_ref(self).addr(), slot as u32));
        let worker = &self.workers[slot - 1];
        let (_, seat) = worker.thread.get_or_init(|| (std::thread::current(), Seat::of_this_thread()));
        while !self.stop.load(Ordering::Relaxed) {
            if !self.look(slot as u32, seat) {
                self.park(worker, slot as u32, seat);
            }
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
