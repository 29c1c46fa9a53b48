//! The costs of a number of processors: what it takes to hand work over, as measured here, and what memory delivers.

use super::work::median;
use devbay_core::error::Result;
use devbay_core::exec::queue::WorkQueue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// A machine to replay work on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Machine {
    /// Number of processors, each with a thread that waits for work.
    pub n: usize,
    /// Costs of handing work over.
    pub hand_over: HandOver,
    /// Bytes per nanosecond, which are GB/s, that memory delivers to all processors together; infinite for no limit.
    pub bytes_per_ns: f64,
}

/// Costs of handing work from one processor to another, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct HandOver {
    /// From opening a loop, or offering a task, until another processor begins with it.
    pub join_ns: f64,
    /// Until a cache line that one processor wrote is with another. Processors that enter a loop write the same line, one
    /// after the other, and the caller waits for the last to leave.
    pub transfer_ns: f64,
}

/// Measurements of each cost, of which the median counts.
const MEASUREMENTS: usize = 101;
/// Times that a line goes there and back in a measurement.
const TRIPS: u64 = 200;

impl HandOver {
    /// Nothing costs anything.
    pub const FREE: Self = Self { join_ns: 0.0, transfer_ns: 0.0 };

    /// Typical costs between processors of one package, where they cannot be measured.
    pub const TYPICAL: Self = Self { join_ns: 500.0, transfer_ns: 100.0 };

    /// Measures them between two threads; None if this process may use only one processor.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](devbay_core::ErrorKind::Unavailable) if the system gives no thread.
    pub fn measure() -> Result<Option<Self>> {
        if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
            return Ok(None);
        }
        let queue = WorkQueue::new(2)?;
        // The first loops find the worker asleep.
        let joins: Vec<f64> = (0..2 * MEASUREMENTS).map(|_| join_ns(&queue)).collect();
        let transfers = (0..MEASUREMENTS).map(|_| transfer_ns(&queue)).collect();
        Ok(Some(Self { join_ns: median(joins[MEASUREMENTS..].to_vec()), transfer_ns: median(transfers) }))
    }
}

/// Returns the nanoseconds until the other thread has begun with a chunk.
fn join_ns(queue: &WorkQueue) -> f64 {
    let joined = AtomicU64::new(0);
    let caller = std::thread::current().id();
    let begin = Instant::now();
    queue.parallel_for(2, 1, &|_, _, _| {
        if std::thread::current().id() == caller {
            wait_while(begin, || joined.load(Ordering::Relaxed) == 0);
        } else {
            joined.store((begin.elapsed().as_nanos() as u64).max(1), Ordering::Relaxed);
        }
        0
    });
    // The caller alone did both chunks if the other thread had no processor.
    match joined.into_inner() {
        0 => begin.elapsed().as_nanos() as f64,
        ns => ns as f64,
    }
}

/// Returns the nanoseconds of one way of a line that goes to and fro between two threads.
fn transfer_ns(queue: &WorkQueue) -> f64 {
    let line = AtomicU64::new(0);
    let begin = Instant::now();
    queue.parallel_for(2, 1, &|chunk, _, _| {
        // One thread writes even numbers over odd ones, the other odd ones over even ones.
        for trip in 0..TRIPS {
            let mine = 2 * trip + chunk;
            wait_while(begin, || line.load(Ordering::Acquire) != mine);
            line.store(mine + 1, Ordering::Release);
        }
        0
    });
    begin.elapsed().as_nanos() as f64 / (2 * TRIPS) as f64
}

/// Spins while a condition holds, and no longer than other threads may be kept from the processor.
fn wait_while(begin: Instant, condition: impl Fn() -> bool) {
    const LIMIT_NS: u128 = 2_000_000;
    let mut looks = 0u32;
    while condition() {
        looks = looks.wrapping_add(1);
        // The clock takes longer than a look.
        if looks.is_multiple_of(64) && begin.elapsed().as_nanos() > LIMIT_NS {
            return;
        }
        std::hint::spin_loop();
    }
}
