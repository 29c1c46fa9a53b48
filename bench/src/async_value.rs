//! `async-value`: what async values cost, beside an allocation.
//!
//! The yardstick is one allocation of 24 bytes with the system's allocator and its release, about what a value without
//! anything around it would need. `make` makes a value that is available and releases it; `continue` makes one that is
//! not, gives it a waiter, sets and releases it; `indirect` does that with an indirect value that is forwarded to
//! another; `link` is one of 1,000 values, each computed from the one before, from setting the first to the last
//! being there. There building the chain is not measured, and freeing it is.

use crate::measure::{Subject, passes};
use crate::peers::Peers;
use crate::rows::Rows;
use anyhow::{Result, ensure};
use devbay_core::async_value::AsyncValueRef;
use nix::unistd::Pid;
use std::alloc::{GlobalAlloc, Layout, System};
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What is done in a round, or links of a chain.
const N: usize = 1000;

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    let seen = Arc::new(AtomicU64::new(0));
    type Case<'a> = (&'a str, fn() -> Subject<'static>);
    let cases: [Case<'_>; 4] =
        [("make", make), ("continue", continuation), ("link", link), ("indirect", indirect)];
    for (name, subject) in cases {
        let figures = passes(&mut [allocation(), subject()], n_passes, Duration::from_millis(30))?;
        rows.case("async-value", name, 1, "ns", &figures);
    }
    Ok(())
}

/// A round of one thing `N` times.
fn times(name: &str, mut one: impl FnMut() + 'static) -> Subject<'static> {
    Subject::new(name, N as f64, move || {
        for _ in 0..N {
            one();
        }
    })
}

fn allocation() -> Subject<'static> {
    let layout = Layout::new::<[u64; 3]>();
    times("malloc", move || {
        // SAFETY: the layout is not empty, and what is freed was allocated with it; free takes null.
        unsafe { System.dealloc(black_box(System.alloc(black_box(layout))), layout) };
    })
}

fn make() -> Subject<'static> {
    times("devbay", || drop(black_box(AsyncValueRef::available(black_box(1u64)))))
}
