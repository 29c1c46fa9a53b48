//! `async-value`: the cost of async values, beside an allocation.
//!
//! The yardstick is one allocation of 24 bytes with the system's allocator and its release, roughly the minimum cost of a
//! value. `make` makes an available value and releases it; `continue` makes an unavailable one, adds a waiter, sets and
//! releases it; `indirect` does that with an indirect value that is forwarded to another; `link` is one of 1,000 values,
//! each computed from the one before, from setting the first to the last becoming available. For `link`, building the chain
//! is not measured, but freeing it is.

use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::ran::Ran;
use crate::rows::Rows;
use anyhow::{Context, Result, ensure};
use devbay_core::async_value::AsyncValueRef;
use std::alloc::{GlobalAlloc, Layout, System, handle_alloc_error};
use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Number of operations in a round, or of links in a chain.
const N: usize = 1000;

/// Number of available values seen, and of rounds, since the case began. Only one thread writes them, so additions need not
/// be atomic, which would take longer than the measured work.
static SEEN: AtomicUsize = AtomicUsize::new(0);
static ROUNDS: AtomicUsize = AtomicUsize::new(0);

fn add(count: &AtomicUsize, more: usize) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    for (name, subject) in
        [("make", make()), ("continue", continuation()), ("link", link()), ("indirect", indirect())]
    {
        SEEN.store(0, Ordering::Relaxed);
        ROUNDS.store(0, Ordering::Relaxed);
        let figures = passes(&mut [allocation(), subject], n_passes, Duration::from_millis(30))?;
        let [seen, rounds] = [&SEEN, &ROUNDS].map(|count| count.load(Ordering::Relaxed));
        rows.case("async-value", name, 1, "ns", &figures, Ran::of("values", rounds * N, seen))?;
    }
    Ok(())
}

/// Returns the yardstick.
fn allocation() -> Subject<'static> {
    let layout = const { Layout::new::<[u64; 3]>() };
    Subject::new("malloc", N as f64, move || {
        for _ in 0..N {
            // SAFETY: the layout has a size above 0.
            let memory = black_box(unsafe { System.alloc(layout) });
            if memory.is_null() {
                handle_alloc_error(layout);
            }
            // SAFETY: it is not null, and was allocated by this allocator with this layout.
            unsafe { System.dealloc(memory, layout) };
        }
    })
}

fn make() -> Subject<'static> {
    Subject::new("devbay", N as f64, || {
        for at in 0..N as u64 {
            let value = black_box(AsyncValueRef::available(at));
            add(&SEEN, usize::from(value.get().is_some()));
        }
        add(&ROUNDS, 1);
    })
}

fn continuation() -> Subject<'static> {
    Subject::fallible("devbay", N as f64, || {
        for at in 0..N as u64 {
            let (mut setter, value) = AsyncValueRef::unconstructed();
            black_box(&value).and_then(|seen| add(&SEEN, usize::from(seen.is_ok())));
            setter.emplace(at)?;
        }
        add(&ROUNDS, 1);
        Ok(())
    })
}

fn indirect() -> Subject<'static> {
    Subject::fallible("devbay", N as f64, || {
        for at in 0..N as u64 {
            let (mut forwarder, indirect) = AsyncValueRef::indirect();
            let (mut setter, value) = AsyncValueRef::unconstructed();
            forwarder.forward_to(value).context("it was not forwarded")?;
            black_box(&indirect).and_then(|seen| add(&SEEN, usize::from(seen.is_ok())));
            setter.emplace(at)?;
        }
        add(&ROUNDS, 1);
        Ok(())
    })
}

/// Measures a chain's links, without building the chain.
fn link() -> Subject<'static> {
    Subject::timed("devbay", N as f64, || {
        let (mut setter, first) = AsyncValueRef::unconstructed();
        let last = (0..N).fold(first, |value, _| value.map(|x| x + 1));
        let begin = Instant::now();
        setter.emplace(0u64)?;
        let took = begin.elapsed();
        add(&SEEN, last.get().map_or(0, |&n| n as usize));
        add(&ROUNDS, 1);
        ensure!(last.get() == Some(&(N as u64)), "the chain gave {last:?}");
        Ok(took)
    })
}
