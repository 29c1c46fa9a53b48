//! The blocking pool: threads for jobs that wait, for devices and files, so that no worker does.
//!
//! A thread is started when a job comes and no thread is idle, up to a bound; at the bound jobs wait, the highest
//! priority first. A thread that was idle for some seconds ends. The crate `blocking` has one pool for the process,
//! with a bound from the environment and threads that outlive their work; this one ends with its queue.
//!
//! One lock guards everything, because each operation takes far longer than taking a lock.

use super::jobs::{self, Job, N_PRIORITIES, Priority};
use devbay_plugin_api::locks::{lock, unpoisoned};
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

/// Threads of a pool at most.
pub const BLOCKING_THREADS_MAX: usize = 64;

/// Time that a thread stays without a job.
const IDLE: Duration = Duration::from_secs(5);

/// A pool of threads that comes and goes; dropping it drops the jobs that wait, and lets those that run end.
pub struct BlockingPool {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<PoolState>,
    /// A job came, or the pool ends.
    changed: Condvar,
    threads_max: usize,
    idle: Duration,
}

#[derive(Default)]
struct PoolState {
    jobs: [VecDeque<Job>; N_PRIORITIES],
    n_threads: usize,
    n_idle: usize,
    stopped: bool,
}

impl PoolState {
    fn pop(&mut self) -> Option<Job> {
        self.jobs.iter_mut().rev().find_map(VecDeque::pop_front)
    }

    fn n_waiting(&self) -> usize {
        self.jobs.iter().map(VecDeque::len).sum()
    }
}

impl BlockingPool {
    /// Creates a pool without threads yet.
    pub fn new() -> Self {
        Self::with_limits(BLOCKING_THREADS_MAX, IDLE)
    }

    fn with_limits(threads_max: usize, idle: Duration) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            threads_max: threads_max.max(1),
            idle,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Starts a job on a thread of the pool, or when one of them is free. If the system gives not even one thread, it
    /// runs on this one.
    pub fn spawn(&self, priority: Priority, job: Job) {
        let mut state = self.shared.lock();
        state.jobs[priority as usize].push_back(job);
        if state.n_waiting() <= state.n_idle {
            self.shared.changed.notify_one();
            return;
        }
        if state.n_threads == self.shared.threads_max {
            return;
        }
        state.n_threads += 1;
        drop(state);
        let shared = Arc::clone(&self.shared);
        let spawned =
            std::thread::Builder::new().name("devbay-blocking".to_owned()).spawn(move || shared.work());
        if let Err(error) = spawned {
            tracing::warn!("cannot start another thread for blocking work: {error}");
            let mut state = self.shared.lock();
            state.n_threads -= 1;
            let alone = state.n_threads == 0;
            let job = if alone { state.pop() } else { None };
            drop(state);
            if let Some(job) = job {
                jobs::run(job);
            }
        }
    }
}

impl Drop for BlockingPool {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.stopped = true;
        let left = std::mem::take(&mut state.jobs);
        drop(state);
        self.shared.changed.notify_all();
        // Without the lock: dropping a job may run any code.
        drop(left);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, PoolState> {
        lock(&self.state)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.pop() {
                drop(state);
                jobs::run(job);
                state = self.lock();
                continue;
            }
            if state.stopped {
                break;
            }
            state.n_idle += 1;
            let (woken, waited) = unpoisoned(self.changed.wait_timeout(state, self.idle));
            state = woken;
            state.n_idle -= 1;
            if waited.timed_out() && state.n_waiting() == 0 {
                break;
            }
        }
        state.n_threads -= 1;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Instant;

    const SOON: Duration = Duration::from_secs(20);

    /// Starts a job that says its name and then waits to be released.
    fn start(
        pool: &BlockingPool,
        priority: Priority,
        name: &'static str,
        says: &Sender<&'static str>,
    ) -> Sender<()> {
        let says = says.clone();
        let (release, released): (Sender<()>, Receiver<()>) = channel();
        pool.spawn(
            priority,
            Box::new(move || {
                says.send(name).unwrap();
                let _ = released.recv();
            }),
        );
        release
    }

    fn wait_for(what: &str, condition: impl Fn() -> bool) {
        let begin = Instant::now();
        while !condition() {
            assert!(begin.elapsed() < SOON, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn jobs_beyond_the_bound_wait_and_the_highest_priority_goes_on() {
        let pool = BlockingPool::with_limits(2, IDLE);
        let (says, said) = channel();
        let first = start(&pool, Priority::Low, "first", &says);
        let second = start(&pool, Priority::Low, "second", &says);
        let mut running = [said.recv_timeout(SOON).unwrap(), said.recv_timeout(SOON).unwrap()];
        running.sort_unstable();
        assert_eq!(running, ["first", "second"]);
        let _low = start(&pool, Priority::Low, "low", &says);
        let _high = start(&pool, Priority::High, "high", &says);
        assert_eq!(pool.shared.lock().n_threads, 2);
        assert!(said.try_recv().is_err(), "the bound is two");
        drop(first);
        assert_eq!(said.recv_timeout(SOON), Ok("high"));
        drop(second);
        assert_eq!(said.recv_timeout(SOON), Ok("low"));
    }

    #[test]
    fn idle_threads_take_the_next_job_or_end() {
        let pool = BlockingPool::with_limits(4, Duration::from_millis(30));
        let (says, said) = channel();
        drop(start(&pool, Priority::Normal, "a", &says));
        assert_eq!(said.recv_timeout(SOON), Ok("a"));
        wait_for("its thread ends", || pool.shared.lock().n_threads == 0);
        drop(start(&pool, Priority::Normal, "b", &says));
        assert_eq!(said.recv_timeout(SOON), Ok("b"));
    }

    #[test]
    fn a_job_that_panics_leaves_its_thread() {
        let pool = BlockingPool::with_limits(1, IDLE);
        let (says, said) = channel();
        pool.spawn(Priority::Normal, Box::new(|| panic!("it was told to")));
        drop(start(&pool, Priority::Normal, "next", &says));
        assert_eq!(said.recv_timeout(SOON), Ok("next"));
        assert_eq!(pool.shared.lock().n_threads, 1);
    }

    #[test]
    fn a_pool_that_ends_drops_what_waits() {
        let pool = BlockingPool::with_limits(1, IDLE);
        let shared = Arc::clone(&pool.shared);
        let (says, said) = channel();
        let running = start(&pool, Priority::Normal, "running", &says);
        assert_eq!(said.recv_timeout(SOON), Ok("running"));
        let _waiting = start(&pool, Priority::Normal, "waiting", &says);
        drop((pool, says));
        drop(running);
        // No message can come any more: the job that waited was dropped.
        assert!(said.recv_timeout(SOON).is_err());
        wait_for("the thread ends", || shared.lock().n_threads == 0);
    }
}
