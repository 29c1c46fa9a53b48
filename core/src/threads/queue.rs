//! The work queue: one pool of threads for the tasks of all runs, the parallel loops of all kernels, and jobs.
//!
//! Workers look for open work on the [`super::board`], then for jobs ([`super::jobs`]); they spin a little when there
//! is none, and then park (`parking.rs`), so that an idle runtime uses no processor time. The calling thread is
//! one of the threads: a queue of `n` has `n - 1` workers. Nothing here allocates or locks while loops and tasks run.
//!
//! | queue | loops and tasks | jobs |
//! | --- | --- | --- |
//! | of several threads | the caller and the workers | the workers |
//! | of one thread | the caller | at once, on the thread that spawns them; one that a job spawns, after that job |
//! | of the application's threads ([`Threads`]) | the caller, and helpers that run there for a moment | there |
//! | that is simulated ([`WorkQueue::simulated`]) | the caller | as on a queue of one thread |
//!
//! Jobs that wait for a device or a file go to threads of their own (`blocking.rs`), in every case.

use super::blocking::BlockingPool;
use super::board::{self, Board, Body, Shared as SharedWork};
use super::jobs::{self, Job, Lanes, Priority};
use super::parking::Parking;
use super::processor::{self, Seat};
use crate::error::{Error, ErrorKind, Result};
use crossbeam_queue::ArrayQueue;
use std::cell::Cell;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Most threads of a queue.
pub const THREADS_MAX: usize = 512;

/// The system gives one reason for both.
const NO_THREAD: &str = "cannot start a worker thread: too little memory for its stack, or too many threads";

/// Number of times that an idle worker looks for work before it lets others run too: about 50 microseconds.
const SPINS: u32 = 4000;

/// Time that a worker looks on before it parks. A model's loops come some 10 or 100 microseconds apart, and waking a
/// halted processor of a virtual machine takes as long.
const LINGER: Duration = Duration::from_millis(1);

/// Threads of an application's, which it lends to a queue.
///
/// **Threads**: called from any, also from those that it lends. It does not wait for the work that it is given.
pub trait Threads: Send + Sync {
    /// Returns the number of jobs that may run at once.
    fn n_threads(&self) -> usize;

    /// Runs a job on one of the threads, soon. A job that is dropped instead is a run that was cancelled.
    fn run(&self, job: Job);
}

/// The options of a queue of its own threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueueOptions {
    /// Threads, the calling one counted.
    pub threads: usize,
    /// Processors for the workers, which take one each, from the first on and again when all are taken. The calling
    /// thread stays where it is. None: the system chooses.
    pub affinity: Option<Vec<usize>>,
}

struct Shared {
    board: Board,
    lanes: Lanes,
    parking: Parking,
    lent: Option<Lent>,
}

/// The application's threads, and the slots of those that are not helping now.
struct Lent {
    threads: Arc<dyn Threads>,
    slots: ArrayQueue<u32>,
}

thread_local! {
    /// The queue that this thread works for, by address, and its slot there.
    static WORKS_FOR: Cell<(usize, u32)> = const { Cell::new((0, 0)) };
    /// The queue without workers whose jobs this thread is running, by address.
    static RUNS_JOBS_OF: Cell<usize> = const { Cell::new(0) };
}

/// A pool of threads; dropping it ends them, and drops jobs that have not started.
pub struct WorkQueue {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    blocking: BlockingPool,
    /// Threads that plans and kernels are told of; more than there are if they are simulated.
    n_threads: usize,
    is_simulated: bool,
}

impl WorkQueue {
    /// Creates a queue of `n_threads`, the calling thread counted.
    ///
    /// # Errors
    /// As [`WorkQueue::with_options`].
    pub fn new(n_threads: usize) -> Result<Self> {
        Self::with_options(&QueueOptions { threads: n_threads, affinity: None })
    }

    /// Returns a queue of threads of its own.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 or more than [`THREADS_MAX`] threads, and for processors that this process
    /// may not use or that workers cannot be pinned to here; [`ErrorKind::Unavailable`] if the system gives no thread.
    pub fn with_options(options: &QueueOptions) -> Result<Self> {
        check_count(options.threads, "the number of threads")?;
        if let Some(affinity) = &options.affinity {
            processor::check(affinity)?;
        }
        let mut queue = Self::without_threads(options.threads, options.threads - 1, None);
        for worker in 0..options.threads - 1 {
            let shared = Arc::clone(&queue.shared);
            let pinned = options.affinity.as_ref().map(|list| list[worker % list.len()]);
            let handle = std::thread::Builder::new()
                .name(format!("devbay-{}", worker + 1))
                .spawn(move || shared.work(worker, pinned))
                .map_err(|e| Error::new(ErrorKind::OutOfMemory, NO_THREAD).because(e))?;
            queue.handles.push(handle);
        }
        Ok(queue)
    }

    /// Returns a queue on the application's threads. The calling thread takes part beside them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] if it has none, or [`THREADS_MAX`] or more.
    pub fn on(threads: Arc<dyn Threads>) -> Result<Self> {
        let n_threads = threads.n_threads();
        check_count(n_threads, "the number of the application's threads")?;
        let slots = ArrayQueue::new(n_threads);
        for slot in 1..=n_threads {
            // As many as there is room for.
            let _ = slots.push(slot as u32);
        }
        Ok(Self::without_threads(n_threads + 1, 0, Some(Lent { threads, slots })))
    }

    /// Returns a queue that has no worker and says that it has `n_threads`. Plans and kernels are then those of a larger
    /// machine, and the caller runs all of their chunks and tasks, one after the other.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for 0 or more than [`THREADS_MAX`] threads.
    pub fn simulated(n_threads: usize) -> Result<Self> {
        check_count(n_threads, "the number of simulated threads")?;
        let mut queue = Self::without_threads(n_threads, 0, None);
        queue.is_simulated = true;
        Ok(queue)
    }

    fn without_threads(n_slots: usize, n_workers: usize, lent: Option<Lent>) -> Self {
        let shared = Shared {
            board: Board::new(n_slots as u32),
            lanes: Lanes::default(),
            parking: Parking::new(n_workers),
            lent,
        };
        Self {
            shared: Arc::new(shared),
            handles: Vec::new(),
            blocking: BlockingPool::new(),
            n_threads: n_slots,
            is_simulated: false,
        }
    }

    /// Threads that may work at once, the caller's counted; of a simulated queue those that it stands for.
    pub fn n_threads(&self) -> usize {
        self.n_threads
    }

    /// Returns whether its threads are simulated.
    pub fn is_simulated(&self) -> bool {
        self.is_simulated
    }

    /// Runs `body(begin, end, slot)` over `0..n` in chunks of `grain`; returns when all are done, with the
    /// first status that was not 0. May be nested, and called from any thread.
    ///
    /// # Panics
    /// If the body does, after everybody has left the loop.
    pub fn parallel_for(&self, n: u64, grain: u64, body: &Body<'_>) -> i32 {
        if self.shared.n_helpers() == 0 || n <= grain.max(1) {
            return board::alone(n, grain, body);
        }
        self.shared.board.run(n, grain, self.shared.slot(), body, |wanted| Shared::wake(&self.shared, wanted))
    }

    /// Opens work to the workers for as long as `body` runs, which takes part as slot 0. None if it cannot be shared:
    /// there is no worker, or too much is open.
    pub(crate) fn share<R>(&self, work: &dyn SharedWork, body: impl FnOnce() -> R) -> Option<R> {
        if self.shared.n_helpers() == 0 {
            return None;
        }
        self.shared.board.share(work, body)
    }

    /// Wakes a worker that sleeps, if one does: something was put on offer.
    #[inline]
    pub(crate) fn offered(&self) {
        Shared::wake(&self.shared, 1);
    }

    /// Works on the parallel loops of others, as slot `slot` of a run; tells whether there was one.
    pub(crate) fn help_loops(&self, slot: u32) -> bool {
        self.shared.board.has_work() && self.shared.board.help_loops(slot)
    }

    /// Starts a job when a thread is free, those of the highest priority first. The table above says where it runs: on
    /// a queue of one thread it has run when this returns, unless a job spawns it.
    pub fn spawn(&self, priority: Priority, job: impl FnOnce() + Send + 'static) {
        self.shared.lanes.push(priority, Box::new(job));
        if let Some(lent) = &self.shared.lent {
            let ticket = Ticket(Some(Arc::clone(&self.shared)));
            lent.threads.run(Box::new(move || ticket.redeem()));
        } else if self.handles.is_empty() {
            self.shared.run_all_here();
        } else {
            Shared::wake(&self.shared, 1);
        }
    }

    /// Starts a job that may wait for a device or a file, on a thread that delays no other work. At most
    /// `BLOCKING_THREADS_MAX`, 64, run at once; further jobs start when one of them ends.
    pub fn spawn_blocking(&self, priority: Priority, job: impl FnOnce() + Send + 'static) {
        self.blocking.spawn(priority, Box::new(job));
    }
}

fn check_count(n: usize, what: &str) -> Result<()> {
    if (1..=THREADS_MAX).contains(&n) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidArgument, format!("{what} is 1 to {THREADS_MAX}, found {n}")))
}

impl Drop for WorkQueue {
    fn drop(&mut self) {
        self.shared.parking.stop();
        for handle in &self.handles {
            handle.thread().unpark();
        }
        for handle in self.handles.drain(..) {
            // The last run of a runtime that is already gone ends on a worker, which cannot wait for itself.
            if handle.thread().id() != std::thread::current().id() {
                // A worker catches its jobs' panics; nothing is lost if it did not.
                let _ = handle.join();
            }
        }
        // Jobs that have not started. Their waiters learn that they were cancelled.
        while let Some(job) = self.shared.lanes.pop() {
            drop(job);
        }
    }
}

impl Shared {
    /// Threads that may help a caller.
    fn n_helpers(&self) -> usize {
        match &self.lent {
            Some(lent) => lent.slots.capacity(),
            None => self.parking.n_workers(),
        }
    }

    /// This thread's slot if it is one of the workers, else 0.
    fn slot(&self) -> u32 {
        let (queue, slot) = WORKS_FOR.get();
        if queue == std::ptr::from_ref(self).addr() { slot } else { 0 }
    }

    /// Wakes up to `wanted` workers that sleep, or asks for helpers. Work was put where they look before.
    #[inline]
    fn wake(this: &Arc<Self>, wanted: u32) {
        match &this.lent {
            None => this.parking.wake(wanted),
            Some(lent) => Self::borrow(this, lent, wanted),
        }
    }

    /// Asks for up to `wanted` of the application's threads that are not helping already. One that comes too late, or
    /// leaves too early, only costs time: the thread that opened the work does it too.
    fn borrow(this: &Arc<Self>, lent: &Lent, wanted: u32) {
        for _ in 0..wanted {
            let Some(slot) = lent.slots.pop() else {
                return;
            };
            let hand = Hand { shared: Arc::clone(this), slot };
            lent.threads.run(Box::new(move || hand.help()));
        }
    }

    /// Starts the next job, if one waits; tells whether there was one.
    fn run_next(&self) -> bool {
        self.lanes.pop().map(jobs::run).is_some()
    }

    /// Runs all jobs on this thread, unless it is in one: then they follow that.
    fn run_all_here(&self) {
        let queue = std::ptr::from_ref(self).addr();
        let outer = RUNS_JOBS_OF.replace(queue);
        if outer != queue {
            while self.run_next() {}
            RUNS_JOBS_OF.set(outer);
        }
    }

    fn help(&self, slot: u32, seat: &Seat) -> bool {
        self.board.has_work() && self.board.help(slot, seat)
    }

    fn help_or_start(&self, slot: u32, seat: &Seat) -> bool {
        self.help(slot, seat) || (!self.lanes.is_empty() && self.run_next())
    }

    /// Looks for work until there was some: first spinning, then letting others run too. False if there was none for
    /// a while.
    fn look(&self, slot: u32, seat: &Seat) -> bool {
        for _ in 0..SPINS {
            if self.help_or_start(slot, seat) {
                return true;
            }
            crate::sync::spin();
        }
        let begin = Instant::now();
        while begin.elapsed() < LINGER && !self.parking.is_stopped() {
            if self.help_or_start(slot, seat) {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    fn work(&self, worker: usize, pinned: Option<usize>) {
        let slot = worker as u32 + 1;
        WORKS_FOR.set((std::ptr::from_ref(self).addr(), slot));
        let seat = match pinned {
            None => Seat::of_this_thread(),
            Some(processor) => {
                processor::pin_this_thread(processor);
                Seat::fixed()
            }
        };
        let seat = self.parking.enter(worker, seat);
        while !self.parking.is_stopped() {
            if !self.look(slot, seat) {
                self.parking.park(worker, || self.help_or_start(slot, seat));
            }
        }
    }
}

/// Stands for a job that the application's threads will run: whichever is to start next when it comes to that.
struct Ticket(Option<Arc<Shared>>);

impl Ticket {
    fn redeem(mut self) {
        if let Some(shared) = self.0.take() {
            shared.run_next();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            // The application will not run it.
            drop(shared.lanes.pop());
        }
    }
}

/// One of the application's threads that helps, or will, with a slot of its own.
struct Hand {
    shared: Arc<Shared>,
    slot: u32,
}

impl Hand {
    /// Helps until there was nothing to do for some microseconds.
    fn help(self) {
        let address = Arc::as_ptr(&self.shared).addr();
        // It may be a thread that waits in other work of this queue.
        let before = WORKS_FOR.replace((address, self.slot));
        let seat = Seat::fixed();
        let mut looks = 0;
        while looks < SPINS && !self.shared.parking.is_stopped() {
            if self.shared.help(self.slot, &seat) {
                looks = 0;
            } else {
                looks += 1;
                crate::sync::spin();
            }
        }
        WORKS_FOR.set(before);
    }
}

impl Drop for Hand {
    fn drop(&mut self) {
        if let Some(lent) = &self.shared.lent {
            // There is room: it came from there.
            let _ = lent.slots.push(self.slot);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{Mutex, mpsc};

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
            let begin = std::time::Instant::now();
            queue.parallel_for(64, 1, &|_, _, slot| {
                slots.fetch_or(1 << slot, Ordering::Relaxed);
                // The first thread to arrive waits for the other.
                while slots.load(Ordering::Relaxed) != 3 && begin.elapsed() < SOON {
                    std::thread::sleep(std::time::Duration::from_millis(1));
                }
                0
            });
            assert_eq!(slots.load(Ordering::Relaxed), 3, "both threads worked");
        }
    }

    const SOON: Duration = Duration::from_secs(20);

    /// Threads as an application may have them: a channel of jobs, and a few that take from it.
    struct Crew {
        jobs: Option<mpsc::Sender<Job>>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Crew {
        fn new(n: usize) -> Arc<Self> {
            let (jobs, inbox) = mpsc::channel::<Job>();
            let inbox = Arc::new(Mutex::new(inbox));
            let thread = |_| {
                let inbox = Arc::clone(&inbox);
                std::thread::spawn(move || {
                    loop {
                        let job = inbox.lock().unwrap().recv();
                        let Ok(job) = job else { return };
                        job();
                    }
                })
            };
            Arc::new(Self { threads: (0..n).map(thread).collect(), jobs: Some(jobs) })
        }
    }

    impl Threads for Crew {
        fn n_threads(&self) -> usize {
            self.threads.len()
        }

        fn run(&self, job: Job) {
            self.jobs.as_ref().unwrap().send(job).unwrap();
        }
    }

    impl Drop for Crew {
        fn drop(&mut self) {
            drop(self.jobs.take());
            for thread in self.threads.drain(..) {
                thread.join().unwrap();
            }
        }
    }

    /// A queue of each kind.
    fn queues() -> Vec<(&'static str, WorkQueue)> {
        vec![
            ("one thread", WorkQueue::new(1).unwrap()),
            ("three threads", WorkQueue::new(3).unwrap()),
            ("the application's", WorkQueue::on(Crew::new(2)).unwrap()),
        ]
    }

    #[test]
    fn every_job_runs_once_and_may_run_loops_and_spawn_jobs() {
        for (name, queue) in queues() {
            let queue = Arc::new(queue);
            let (done, all) = mpsc::channel();
            for i in 0..200u64 {
                let (shared, done) = (Arc::clone(&queue), done.clone());
                queue.spawn(Priority::Normal, move || {
                    let sum = AtomicU64::new(0);
                    shared.parallel_for(100, 1, &|begin, _, _| {
                        sum.fetch_add(begin, Ordering::Relaxed);
                        0
                    });
                    assert_eq!(sum.into_inner(), 4950);
                    shared.spawn(Priority::High, move || done.send(i).unwrap());
                });
            }
            drop(done);
            let mut seen: Vec<u64> = (0..200).map(|_| all.recv_timeout(SOON).unwrap()).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..200).collect::<Vec<_>>(), "{name}");
        }
    }

    #[test]
    fn jobs_wake_workers_that_are_parked() {
        let queue = WorkQueue::new(2).unwrap();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(5));
            let (done, all) = mpsc::channel();
            queue.spawn(Priority::Low, move || done.send(()).unwrap());
            assert_eq!(all.recv_timeout(SOON), Ok(()));
        }
    }

    #[test]
    fn jobs_that_panic_leave_all_threads() {
        for (name, queue) in queues() {
            let n_threads = queue.n_threads() - usize::from(name != "one thread");
            for _ in 0..3 * n_threads {
                queue.spawn(Priority::Normal, || panic!("a job was told to"));
            }
            // As many jobs as there are threads meet: none of them is lost.
            let barrier = Arc::new(std::sync::Barrier::new(n_threads));
            let (done, all) = mpsc::channel();
            for _ in 0..n_threads {
                let (barrier, done) = (Arc::clone(&barrier), done.clone());
                queue.spawn(Priority::Normal, move || {
                    barrier.wait();
                    done.send(()).unwrap();
                });
            }
            for _ in 0..n_threads {
                assert_eq!(all.recv_timeout(SOON), Ok(()), "{name}");
            }
        }
    }

    #[test]
    fn a_loop_that_panics_in_a_job_ends_that_job_alone() {
        for (name, queue) in queues() {
            let queue = Arc::new(queue);
            for round in 0..50 {
                let (done, outcome) = mpsc::channel();
                let shared = Arc::clone(&queue);
                queue.spawn(Priority::Normal, move || {
                    let run = || {
                        shared.parallel_for(64, 1, &|begin, _, _| {
                            assert_ne!(begin, 40, "told to panic at 40");
                            0
                        })
                    };
                    done.send(crate::error::caught("a loop", run)).unwrap();
                });
                let error = outcome.recv_timeout(SOON).unwrap().unwrap_err();
                assert!(error.text().contains("told to panic at 40"), "{name}, round {round}: {error}");
            }
        }
    }

    #[test]
    fn nested_loops_run_on_the_applications_threads() {
        let queue = WorkQueue::on(Crew::new(3)).unwrap();
        assert_eq!(queue.n_threads(), 4);
        for _ in 0..100 {
            let count = AtomicU64::new(0);
            let status = queue.parallel_for(16, 1, &|_, _, slot| {
                assert!(slot < 4);
                queue.parallel_for(100, 10, &|begin, end, _| {
                    count.fetch_add(end - begin, Ordering::Relaxed);
                    0
                })
            });
            assert_eq!((status, count.load(Ordering::Relaxed)), (0, 1600));
        }
    }

    #[test]
    fn an_application_that_drops_jobs_or_runs_them_at_once_harms_nobody() {
        /// Threads that run work within the call, or not at all.
        struct Hasty {
            runs: bool,
        }
        impl Threads for Hasty {
            fn n_threads(&self) -> usize {
                2
            }
            fn run(&self, job: Job) {
                if self.runs {
                    job();
                }
            }
        }
        for runs in [true, false] {
            let queue = WorkQueue::on(Arc::new(Hasty { runs })).unwrap();
            for _ in 0..10 {
                let count = AtomicU64::new(0);
                queue.parallel_for(100, 1, &|_, _, _| {
                    count.fetch_add(1, Ordering::Relaxed);
                    0
                });
                assert_eq!(count.into_inner(), 100);
            }
            let (done, outcome) = mpsc::channel();
            queue.spawn(Priority::Normal, move || done.send(()).unwrap());
            assert_eq!(outcome.recv_timeout(SOON).is_ok(), runs, "it runs, or is dropped");
        }
    }

    #[test]
    fn the_last_job_of_a_queue_may_end_it() {
        let (done, all) = mpsc::channel();
        let queue = Arc::new(WorkQueue::new(3).unwrap());
        let last = Arc::clone(&queue);
        let (go, wait) = mpsc::channel::<()>();
        queue.spawn(Priority::Normal, move || {
            wait.recv_timeout(SOON).unwrap();
            drop(last);
            done.send(()).unwrap();
        });
        drop(queue);
        go.send(()).unwrap();
        assert_eq!(all.recv_timeout(SOON), Ok(()));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn workers_stay_on_the_processors_that_they_were_given() {
        let mine = processor::current();
        let affinity = Some(vec![mine as usize]);
        let queue = WorkQueue::with_options(&QueueOptions { threads: 3, affinity }).unwrap();
        let (says, said) = mpsc::channel();
        for _ in 0..20 {
            let says = says.clone();
            queue.spawn(Priority::Normal, move || says.send(processor::current()).unwrap());
            // Loops move workers that are not pinned.
            queue.parallel_for(64, 1, &|_, _, _| 0);
            assert_eq!(said.recv_timeout(SOON), Ok(mine));
        }
    }

    #[test]
    fn processors_that_cannot_be_are_refused() {
        let refused = |affinity: Vec<usize>| {
            let options = QueueOptions { threads: 2, affinity: Some(affinity) };
            let error = WorkQueue::with_options(&options).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::InvalidArgument);
            error.text().to_owned()
        };
        assert!(refused(Vec::new()).contains("the list of processors for workers is empty"));
        #[cfg(target_os = "linux")]
        for processor in [1000, usize::MAX] {
            let text = refused(vec![0, processor]);
            assert!(
                text.contains(&format!("processor {processor} is none that this process may use: ")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_queue_has_at_least_one_thread() {
        for n in [0, THREADS_MAX + 1] {
            for queue in [WorkQueue::new(n), WorkQueue::simulated(n)] {
                assert_eq!(queue.err().map(|e| e.kind()), Some(ErrorKind::InvalidArgument));
            }
        }
    }

    #[test]
    fn a_simulated_queue_runs_all_chunks_in_order_on_the_caller() {
        let queue = WorkQueue::simulated(64).unwrap();
        assert_eq!((queue.n_threads(), queue.is_simulated()), (64, true));
        let (seen, caller) = (Mutex::new(Vec::new()), std::thread::current().id());
        let status = queue.parallel_for(10, 3, &|begin, end, slot| {
            assert_eq!((std::thread::current().id(), slot), (caller, 0));
            seen.lock().unwrap().push((begin, end));
            0
        });
        assert_eq!((status, &**seen.lock().unwrap()), (0, &[(0, 3), (3, 6), (6, 9), (9, 10)][..]));
    }
}
