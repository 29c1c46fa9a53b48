//! `wake`: time from the start of a parallel loop until the other thread begins its part.
//!
//! The loop has one chunk for each of two threads, and the caller waits in its own chunk until the other has begun. Case
//! `spinning` starts it right after another loop, while the worker still looks for work; case `idle` after 20 ms, when it
//! sleeps. The baselines are bare threads that are unparked, or that spin on a flag. The kernel often places a woken thread
//! on its waker's processor, where it waits for the waker to stop. So case `idle` also has a thread that may not run there
//! (`bare thread elsewhere`), which is how a worker that helps its waker must behave. A figure is the median of about twenty
//! starts.

use crate::measure::Figures;
use crate::ran::Ran;
use crate::rows::{OURS, Rows, median};
use crate::{peers::Peers, setup};
use anyhow::{Result, ensure};
use devbay_core::exec::queue::WorkQueue;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::hint::spin_loop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of starts per figure.
const STARTS: usize = 21;

/// Longer than a worker looks for work before it sleeps.
const PAUSE: Duration = Duration::from_millis(20);

/// Time after which the other thread counts as absent.
const GIVE_UP: Duration = Duration::from_millis(200);

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    if setup::thread_counts().max() < Some(2) {
        eprintln!("wake: skipped, there is one processor");
        return Ok(());
    }
    let queue = WorkQueue::new(2)?;
    let bare = Bare::new(None);
    // Two processors that this process may use.
    let processors = processors()?;
    let elsewhere = Bare::new(Some(processors[1]));
    for (case, pause) in [("idle", Some(PAUSE)), ("spinning", None)] {
        if !rows.want(case) {
            continue;
        }
        let mut names = vec!["bare thread", OURS];
        names.extend(pause.is_some().then_some("bare thread elsewhere"));
        let mut figures: Figures = names.into_iter().map(|name| (name.to_owned(), Vec::new())).collect();
        for pass in 0..n_passes {
            for turn in 0..figures.len() {
                let at = (turn + pass) % figures.len();
                let start = |begin| match at {
                    0 => bare.start(begin, pause.is_some()),
                    1 => loop_of(&queue, begin),
                    _ => elsewhere.start(begin, true),
                };
                let median = match at {
                    2 => staying_on(processors[0], || median_of_starts(start, pause))?,
                    _ => median_of_starts(start, pause)?,
                };
                figures[at].1.push(median);
                // Neither subject may find the other's thread at work.
                bare.rest();
                std::thread::sleep(PAUSE);
            }
        }
        // There is a figure only if the other thread came.
        let n_figures = figures.iter().flat_map(|(_, figures)| figures).filter(|nanos| **nanos > 0.0).count();
        let ran = Ran::of("wakes", figures.len() * n_passes, n_figures);
        rows.case("wake", case, 2, "ns", &figures, ran)?;
    }
    bare.end();
    elsewhere.end();
    Ok(())
}

/// Returns the first two processors that this thread may use.
fn processors() -> Result<[usize; 2]> {
    let set = sched_getaffinity(Pid::from_raw(0))?;
    let mut allowed = (0..CpuSet::count()).filter(|&processor| set.is_set(processor).unwrap_or(false));
    match (allowed.next(), allowed.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => anyhow::bail!("this thread may use one processor only"),
    }
}

/// Keeps the calling thread on one processor during `body`.
fn staying_on<R>(processor: usize, body: impl FnOnce() -> Result<R>) -> Result<R> {
    let before = sched_getaffinity(Pid::from_raw(0))?;
    stay_on(processor)?;
    let result = body();
    sched_setaffinity(Pid::from_raw(0), &before)?;
    result
}

fn stay_on(processor: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(processor)?;
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}

/// Returns the median nanoseconds of starts.
fn median_of_starts(start: impl Fn(Instant) -> Option<u64>, pause: Option<Duration>) -> Result<f64> {
    let mut nanos = Vec::with_capacity(STARTS);
    // The first start wakes the thread for those that need it awake.
    for _ in 0..=STARTS {
        if let Some(pause) = pause {
            std::thread::sleep(pause);
        }
        nanos.extend(start(Instant::now()).map(|nanos| nanos as f64));
    }
    ensure!(nanos.len() > STARTS / 2, "the other thread did not come within {GIVE_UP:?}");
    let mut counted = nanos.split_off(1);
    counted.sort_by(f64::total_cmp);
    Ok(median(&counted))
}

/// Runs a loop of two chunks; returns the nanoseconds until the other thread has begun one.
fn loop_of(queue: &WorkQueue, begin: Instant) -> Option<u64> {
    let caller = std::thread::current().id();
    let begun = AtomicU64::new(0);
    queue.parallel_for(2, 1, &|_, _, _| {
        if std::thread::current().id() == caller {
            while begun.load(Ordering::Acquire) == 0 && begin.elapsed() < GIVE_UP {
                spin_loop();
            }
        } else {
            begun.store(begin.elapsed().as_nanos() as u64, Ordering::Release);
        }
        0
    });
    Some(begun.into_inner()).filter(|&nanos| nanos > 0)
}

/// A thread that waits to be woken: the baseline.
struct Bare {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    origin: Instant,
    /// Set by the caller, cleared by the thread.
    wanted: AtomicBool,
    /// Time of the thread's last begin, in nanoseconds from the origin. The thread writes it; the caller reads it once
    /// `wanted` is cleared.
    begun: AtomicU64,
    /// True if the thread parks while nothing is wanted.
    parks: AtomicBool,
    ends: AtomicBool,
}

impl Bare {
    /// Starts a thread, on a given processor if there is one.
    fn new(processor: Option<usize>) -> Self {
        let shared = Arc::new(Shared {
            origin: Instant::now(),
            wanted: AtomicBool::new(false),
            begun: AtomicU64::new(0),
            parks: AtomicBool::new(true),
            ends: AtomicBool::new(false),
        });
        let its = Arc::clone(&shared);
        Self {
            shared,
            thread: std::thread::spawn(move || {
                // The caller may use this processor; if pinning still fails, the figures are those of an unpinned thread.
                let _ = processor.map(stay_on);
                its.wait_for_starts();
            }),
        }
    }

    /// Returns the nanoseconds until the thread has begun.
    fn start(&self, begin: Instant, parks: bool) -> Option<u64> {
        self.shared.parks.store(parks, Ordering::Release);
        self.shared.wanted.store(true, Ordering::Release);
        self.thread.thread().unpark();
        while self.shared.wanted.load(Ordering::Acquire) {
            if begin.elapsed() > GIVE_UP {
                return None;
            }
            spin_loop();
        }
        let begun = self.shared.begun.load(Ordering::Relaxed);
        begun.checked_sub(begin.duration_since(self.shared.origin).as_nanos() as u64)
    }

    /// Lets the thread sleep.
    fn rest(&self) {
        self.shared.parks.store(true, Ordering::Release);
    }

    fn end(self) {
        self.shared.ends.store(true, Ordering::Release);
        self.thread.thread().unpark();
        // The thread does not panic, and a panic would lose nothing.
        let _ = self.thread.join();
    }
}

impl Shared {
    fn wait_for_starts(&self) {
        while !self.ends.load(Ordering::Acquire) {
            if self.wanted.load(Ordering::Acquire) {
                self.begun.store(self.origin.elapsed().as_nanos() as u64, Ordering::Relaxed);
                self.wanted.store(false, Ordering::Release);
            } else if self.parks.load(Ordering::Acquire) {
                std::thread::park();
            } else {
                spin_loop();
            }
        }
    }
}
