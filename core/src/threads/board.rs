//! The board on which work is open to others: how threads find it, share it and leave it.
//!
//! There are two kinds of work: the chunks of a parallel loop, which the board hands out itself, and the tasks of a
//! run ([`Shared`]), which has its own way of doing so.
//!
//! # Protocol
//!
//! A board has a fixed number of places. A caller claims a free place, writes its work there, opens it, works on it,
//! and closes it. Then it waits until no helper is inside, because its work lives on its stack. A helper enters a place
//! only while it is open, and counts itself in and out.
//!
//! The word of a place, `state`, is `open` (bit 31) and the number of helpers inside (bits 0 to 30):
//!
//! | actor | transition | when |
//! | --- | --- | --- |
//! | caller | 0 to open | after writing the work (Release) |
//! | helper | open+k to open+k+1 | by compare-exchange (Acquire), so never on a closed place |
//! | helper | k+1 to k | when it touches the work no more (Release) |
//! | caller | open+k to k | when no chunk is left to take |
//! | caller | sees 0 | (Acquire) the work may go, the place is free |
//!
//! `claimed` has a bit for each place that has a caller. `open` is a hint for helpers: a bit that is set
//! late or cleared late costs time, never correctness, because entering is decided by `state`.
//!
//! Chunks: each participant has a range of chunk numbers of its own, packed as (begin, end) in one word. It
//! takes from the front of its own and, when that is empty, the back half of another's. Which thread runs
//! a chunk is luck; the chunks are not: their borders depend on `n` and `grain` alone.
//!
//! In a loop the caller has slot 0, helpers have their own. So the slot that a worker helps with elsewhere is free in
//! the loops that it calls itself; a thread without a slot may use it as a *guest*, one at a time (`guest`).
//!
//! Before each chunk its thread looks whether the work that the loop is a part of goes on (`cancel.rs`); if not, no chunk
//! begins any more, and the loop gives CANCELLED.
//!
//! A body that panics ends its loop, on whichever thread; the loop's caller goes on unwinding when everybody has left.

use super::processor::{self, Seat};
use crate::cancel::Under;
use crate::error::{Error, caught};
use crate::sync::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use crossbeam_utils::CachePadded;
use devbay_plugin_api::abi::{DEVBAY_STATUS_CANCELLED, DEVBAY_STATUS_PANICKED};
use devbay_plugin_api::locks::lock;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Mutex;

/// Number of loops and shared runs that may be open at once; a caller that finds no place works alone.
pub const PLACES: usize = 32;

const OPEN: u32 = 1 << 31;

/// The body of a loop: `chunk(begin, end, slot)` gives 0, or a status that ends the loop.
///
/// `Sync`, because many threads run it at once.
pub type Body<'a> = dyn Fn(u64, u64, u32) -> i32 + Sync + 'a;

/// Work that hands itself out to the threads that join it.
pub trait Shared: Sync {
    /// Works as participant `slot` until nothing is on offer; tells whether there was something.
    fn help(&self, slot: u32) -> bool;

    /// Reports that a helper panicked, which is a bug of ours; the work that it had taken will not be done.
    fn abandon(&self, error: Error);
}

/// The work that is open at a place.
#[derive(Clone, Copy)]
enum Work {
    Nothing,
    Loop(Loop),
    /// Its lifetime erased: it lives until the caller has seen everybody leave.
    Shared(*const (dyn Shared + 'static)),
}

/// A loop as helpers see it.
#[derive(Clone, Copy)]
struct Loop {
    /// The body, its lifetime erased: it lives until the caller has seen everybody leave.
    body: *const Body<'static>,
    n: u64,
    grain: u64,
    /// The flag that the loop is run under, its lifetime erased as the body's is.
    under: Under<'static>,
}

/// A place for one piece of open work.
struct BoardPlace {
    state: AtomicU32,
    /// The caller's processor: a hint.
    processor: AtomicU32,
    /// The caller's slot in other work; 0 if it has none.
    caller: AtomicU32,
    /// True while another thread uses that slot in this work.
    guest: AtomicBool,
    /// First status that was not 0.
    failed: AtomicI32,
    /// The panic of the body, if it panicked.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// Written by the place's caller while it is closed and empty, read by those inside.
    work: UnsafeCell<Work>,
    /// Chunks left, by participant: begin in the high half, end in the low half.
    ranges: Box<[CachePadded<AtomicU64>]>,
}

// SAFETY: `work` is written only by the caller that claimed the place, while it is closed and empty, and
// read only by threads that are inside; `state` orders the two (see the protocol).
unsafe impl Sync for BoardPlace {}
// SAFETY: `work` changes hands as for Sync, and the body behind its pointer is `Sync`.
unsafe impl Send for BoardPlace {}

/// Places for open loops, shared by all threads of a queue.
pub struct Board {
    places: Box<[CachePadded<BoardPlace>]>,
    claimed: AtomicU64,
    open: CachePadded<AtomicU64>,
    n_slots: u32,
}

fn pack(begin: u32, end: u32) -> u64 {
    u64::from(begin) << 32 | u64::from(end)
}

fn unpack(range: u64) -> (u32, u32) {
    ((range >> 32) as u32, range as u32)
}

impl Board {
    /// Creates a board for `n_slots` participants: slot 0 is a loop's caller, the others are helpers.
    pub fn new(n_slots: u32) -> Self {
        Self::with_places(n_slots, PLACES)
    }

    fn with_places(n_slots: u32, n_places: usize) -> Self {
        let place = || {
            CachePadded::new(BoardPlace {
                state: AtomicU32::new(0),
                processor: AtomicU32::new(processor::NONE),
                caller: AtomicU32::new(0),
                guest: AtomicBool::new(false),
                failed: AtomicI32::new(0),
                panic: Mutex::new(None),
                work: UnsafeCell::new(Work::Nothing),
                ranges: (0..n_slots).map(|_| CachePadded::new(AtomicU64::new(0))).collect(),
            })
        };
        Self {
            places: (0..n_places).map(|_| place()).collect(),
            claimed: AtomicU64::new(0),
            open: CachePadded::new(AtomicU64::new(0)),
            n_slots,
        }
    }

    /// Returns whether a helper may find work.
    #[inline]
    pub fn has_work(&self) -> bool {
        self.open.load(Ordering::Relaxed) != 0
    }

    /// Runs a loop together with any helpers. `caller` is this thread's slot in other work. `wake(n)` is called once
    /// with the number of helpers that would have work. Returns the first status that was not 0.
    ///
    /// # Panics
    /// If the body does.
    pub fn run(&self, n: u64, grain: u64, caller: u32, body: &Body<'_>, wake: impl FnOnce(u32)) -> i32 {
        let (grain, n_chunks) = whole_chunks(n, grain);
        let Some(claimed) = self.claim() else {
            return alone(n, grain, body);
        };
        let place = claimed.place();
        // SAFETY: only the lifetime is erased. The pointer is used by threads inside the place, and `opened` waits
        // until everybody has left, also when this unwinds.
        let erased: *const Body<'static> =
            unsafe { std::mem::transmute::<*const Body<'_>, *const Body<'static>>(std::ptr::from_ref(body)) };
        place.failed.store(0, Ordering::Relaxed);
        let n_slots = u64::from(self.n_slots);
        for (slot, range) in place.ranges.iter().enumerate() {
            // Equal shares, in order, so that a thread meets the same part of the data in each loop.
            let share = |slot: u64| (u64::from(n_chunks) * slot / n_slots) as u32;
            range.store(pack(share(slot as u64), share(slot as u64 + 1)), Ordering::Relaxed);
        }
        Under::here(|under| {
            // SAFETY: only the lifetime is erased. It is used by threads inside the place, and `opened` waits until
            // everybody has left, also when this unwinds.
            let under = unsafe { std::mem::transmute::<Under<'_>, Under<'static>>(under) };
            let opened = claimed.open(Work::Loop(Loop { body: erased, n, grain, under }), caller);
            wake((n_chunks - 1).min(self.n_slots - 1));
            work(place, 0);
            drop(opened);
        });
        let failed = place.failed.load(Ordering::Relaxed);
        if failed == DEVBAY_STATUS_PANICKED {
            let panic = lock(&place.panic).take();
            drop(claimed);
            if let Some(panic) = panic {
                resume_unwind(panic);
            }
        }
        failed
    }

    /// Opens work to helpers for as long as `body` runs, which takes part as slot 0. None if no place is free.
    pub fn share<R>(&self, work: &dyn Shared, body: impl FnOnce() -> R) -> Option<R> {
        let claimed = self.claim()?;
        // SAFETY: only the lifetime is erased. The pointer is used by threads inside the place, and `_opened` waits
        // until everybody has left, also when `body` unwinds.
        let erased = unsafe {
            std::mem::transmute::<*const (dyn Shared + '_), *const (dyn Shared + 'static)>(
                std::ptr::from_ref(work),
            )
        };
        let _opened = claimed.open(Work::Shared(erased), 0);
        Some(body())
    }

    /// Helps with open work as helper `slot` until there is none. Returns whether there was any.
    pub fn help(&self, slot: u32, seat: &Seat) -> bool {
        self.each_open(|place| {
            // Before it counts itself in: the caller waits for those inside.
            seat.leave(place.processor.load(Ordering::Relaxed));
            inside(place, |open| match open {
                Work::Nothing => false,
                Work::Loop(_) => work(place, slot),
                Work::Shared(shared) => {
                    // SAFETY: the caller keeps the work alive until every thread has left the place, and this one is
                    // inside.
                    let shared = unsafe { &**shared };
                    caught("a helper", || shared.help(slot)).unwrap_or_else(|error| {
                        shared.abandon(error);
                        true
                    })
                }
            })
        })
    }

    /// Works on open loops as helper `slot`, or as a guest if that is 0; tells whether there was one. For threads
    /// that wait inside other work.
    pub fn help_loops(&self, slot: u32) -> bool {
        self.each_open(|place| {
            inside(place, |open| match open {
                Work::Loop(_) if slot != 0 => work(place, slot),
                Work::Loop(_) => as_guest(place),
                _ => false,
            })
        })
    }

    fn each_open(&self, mut visit: impl FnMut(&BoardPlace) -> bool) -> bool {
        let mut helped = false;
        let mut open = self.open.load(Ordering::Acquire);
        while open != 0 {
            let place_idx = open.trailing_zeros() as usize;
            open &= open - 1;
            helped |= visit(&self.places[place_idx]);
        }
        helped
    }

    /// A place of one's own, or None if all are taken.
    fn claim(&self) -> Option<Claimed<'_>> {
        let mut claimed = self.claimed.load(Ordering::Relaxed);
        loop {
            let free = (!claimed).trailing_zeros() as usize;
            if free >= self.places.len() {
                return None;
            }
            // Acquire: the work of the place's last caller and helpers is done.
            match self.claimed.compare_exchange_weak(
                claimed,
                claimed | 1 << free,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(Claimed { board: self, place_idx: free }),
                Err(now) => claimed = now,
            }
        }
    }
}

/// A place of one caller's; given back at the end of a scope.
struct Claimed<'a> {
    board: &'a Board,
    place_idx: usize,
}

impl<'a> Claimed<'a> {
    fn place(&self) -> &'a BoardPlace {
        &self.board.places[self.place_idx]
    }

    /// Lets helpers in until the result is dropped.
    fn open(&self, work: Work, caller: u32) -> Opened<'_> {
        let place = self.place();
        // SAFETY: this caller has claimed the place, and no thread is inside: state is 0.
        unsafe { *place.work.get() = work };
        place.processor.store(processor::current(), Ordering::Relaxed);
        place.caller.store(caller, Ordering::Relaxed);
        place.state.store(OPEN, Ordering::Release);
        self.board.open.fetch_or(1 << self.place_idx, Ordering::SeqCst);
        Opened(self)
    }
}

impl Drop for Claimed<'_> {
    fn drop(&mut self) {
        self.board.claimed.fetch_and(!(1 << self.place_idx), Ordering::Release);
    }
}

/// A place that is open; closed at the end of a scope, which waits until everybody has left.
struct Opened<'a>(&'a Claimed<'a>);

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        let place = self.0.place();
        self.0.board.open.fetch_and(!(1 << self.0.place_idx), Ordering::Relaxed);
        place.state.fetch_and(!OPEN, Ordering::AcqRel);
        let mut waited = 0u32;
        while place.state.load(Ordering::Acquire) != 0 {
            // Those inside are at their last chunk or task.
            waited = waited.saturating_add(1);
            back_off(waited);
        }
    }
}

/// Enters a place, unless it is closed, and leaves it when `body` returns.
fn inside(place: &BoardPlace, body: impl FnOnce(&Work) -> bool) -> bool {
    if !enter(place) {
        return false;
    }
    // SAFETY: this thread is inside, so no thread writes `work`.
    let helped = body(unsafe { &*place.work.get() });
    // No access to the work after this.
    place.state.fetch_sub(1, Ordering::Release);
    helped
}

/// Works on a loop with the slot that its caller does not use here, if there is one and it is free.
fn as_guest(place: &BoardPlace) -> bool {
    let slot = place.caller.load(Ordering::Relaxed);
    if slot == 0 || place.guest.swap(true, Ordering::Acquire) {
        return false;
    }
    let worked = work(place, slot);
    // Release: the next thread that has the slot sees what was done with it.
    place.guest.store(false, Ordering::Release);
    worked
}

/// Counts a helper in, unless the place is closed.
fn enter(place: &BoardPlace) -> bool {
    let mut state = place.state.load(Ordering::Relaxed);
    while state & OPEN != 0 {
        match place.state.compare_exchange_weak(state, state + 1, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(now) => state = now,
        }
    }
    false
}

/// Takes chunks until none is left; tells whether it took one. The caller or a helper inside.
fn work(place: &BoardPlace, slot: u32) -> bool {
    // SAFETY: this thread is the place's caller, or inside, so no thread writes `work`.
    let Work::Loop(work) = (unsafe { *place.work.get() }) else {
        return false;
    };
    let mut worked = false;
    let chunks = AssertUnwindSafe(|| {
        while let Some(chunk) = take(place, slot) {
            worked = true;
            if work.under.is_over() {
                fail(place, DEVBAY_STATUS_CANCELLED);
                break;
            }
            let begin = u64::from(chunk) * work.grain;
            let end = (begin + work.grain).min(work.n);
            // SAFETY: the caller keeps the body alive until every thread has left the place, and this one is inside.
            let body = unsafe { &*work.body };
            let status = body(begin, end, slot);
            if status != 0 {
                fail(place, status);
            }
        }
    });
    // A helper comes from other work.
    let ended = work.under.run(|| catch_unwind(chunks));
    if let Err(panic) = ended {
        lock(&place.panic).get_or_insert(panic);
        // Also where a chunk has failed before, since otherwise the panic would not be looked for.
        place.failed.store(DEVBAY_STATUS_PANICKED, Ordering::Relaxed);
        fail(place, DEVBAY_STATUS_PANICKED);
    }
    worked
}

/// Ends a loop: no thread starts another chunk.
#[cold]
fn fail(place: &BoardPlace, status: i32) {
    let _ = place.failed.compare_exchange(0, status, Ordering::Relaxed, Ordering::Relaxed);
    for range in &place.ranges {
        range.store(0, Ordering::Relaxed);
    }
}

/// Takes a chunk from this thread's share, or from another's.
fn take(place: &BoardPlace, slot: u32) -> Option<u32> {
    let own = &place.ranges[slot as usize];
    let mut range = own.load(Ordering::Relaxed);
    loop {
        let (begin, end) = unpack(range);
        if begin >= end {
            break;
        }
        match own.compare_exchange_weak(range, pack(begin + 1, end), Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return Some(begin),
            Err(now) => range = now,
        }
    }
    let n = place.ranges.len();
    for step in 1..n {
        let victim = &place.ranges[(slot as usize + step) % n];
        let mut range = victim.load(Ordering::Relaxed);
        loop {
            let (begin, end) = unpack(range);
            if begin >= end {
                break;
            }
            let middle = begin + (end - begin) / 2;
            match victim.compare_exchange_weak(
                range,
                pack(begin, middle),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // One to run now; the rest becomes this slot's own, which is empty: only its owner
                    // fills it, and others only take away.
                    own.store(pack(middle + 1, end), Ordering::Relaxed);
                    return Some(middle);
                }
                Err(now) => range = now,
            }
        }
    }
    None
}

/// Returns the loop's chunks: a grain that gives fewer than 2^32 of them, and their number.
fn whole_chunks(n: u64, grain: u64) -> (u64, u32) {
    /// Chunks that can be counted.
    const CHUNKS_MAX: u64 = u32::MAX as u64 / 2;
    let mut grain = grain.max(1);
    if n > CHUNKS_MAX {
        // A multiple of it, as chunks begin at multiples.
        grain *= n.div_ceil(CHUNKS_MAX).div_ceil(grain);
    }
    (grain, n.div_ceil(grain) as u32)
}

/// Runs a loop's chunks in order on this thread. One without chunks says whether its work goes on.
pub fn alone(n: u64, grain: u64, body: &Body<'_>) -> i32 {
    let (grain, n_chunks) = whole_chunks(n, grain);
    Under::here(|under| {
        if n == 0 && under.is_over() {
            return DEVBAY_STATUS_CANCELLED;
        }
        for chunk in 0..u64::from(n_chunks) {
            if under.is_over() {
                return DEVBAY_STATUS_CANCELLED;
            }
            let begin = chunk * grain;
            let status = body(begin, (begin + grain).min(n), 0);
            if status != 0 {
                return status;
            }
        }
        0
    })
}

/// Waits a little: first spinning, then giving the processor away.
fn back_off(waited: u32) {
    if waited < 256 {
        crate::sync::spin();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Runs a loop with helper threads and gives the chunks that ran, in order of their begin.
    fn chunks(n_slots: u32, n: u64, grain: u64) -> Vec<(u64, u64)> {
        let board = Board::new(n_slots);
        let seen = Mutex::new(Vec::new());
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            for slot in 1..n_slots {
                let (board, stop) = (&board, &stop);
                scope.spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        board.help(slot, &Seat::of_this_thread());
                        std::thread::yield_now();
                    }
                });
            }
            let status = board.run(
                n,
                grain,
                0,
                &|begin, end, slot| {
                    assert!(slot < n_slots);
                    seen.lock().unwrap().push((begin, end));
                    0
                },
                |_| {},
            );
            assert_eq!(status, 0);
            stop.store(true, Ordering::Relaxed);
        });
        let mut seen = seen.into_inner().unwrap();
        seen.sort_unstable();
        seen
    }

    #[test]
    fn no_chunk_begins_when_the_work_is_to_end() {
        use crate::cancel::Cancel;
        let ran = Mutex::new(0);
        let body = |_: u64, _: u64, _: u32| {
            *ran.lock().unwrap() += 1;
            0
        };
        let board = Board::new(2);
        // A look before each chunk; so far as the flag lets them.
        for (looks, n_ran, status) in
            [(0, 0, DEVBAY_STATUS_CANCELLED), (3, 3, DEVBAY_STATUS_CANCELLED), (10, 10, 0)]
        {
            let under = |run: &dyn Fn() -> i32| Cancel::over(Some(&Cancel::after_looks(looks)), run);
            for run in [&(|| alone(10, 1, &body)) as &dyn Fn() -> i32, &|| board.run(10, 1, 0, &body, |_| {})]
            {
                *ran.lock().unwrap() = 0;
                assert_eq!((under(run), *ran.lock().unwrap()), (status, n_ran), "{looks} looks");
            }
        }
        // A loop without chunks asks, and helpers work under the flag of the loop.
        let over = |looks| Cancel::over(Some(&Cancel::after_looks(looks)), || alone(0, 1, &body));
        assert_eq!([over(0), over(1)], [DEVBAY_STATUS_CANCELLED, 0]);
        assert_eq!(alone(0, 1, &body), 0);
    }

    #[test]
    fn chunks_can_be_counted_and_begin_at_multiples_of_the_grain() {
        assert_eq!([whole_chunks(10, 4), whole_chunks(0, 4), whole_chunks(3, 0)], [(4, 3), (4, 0), (1, 3)]);
        for (n, asked) in [(u64::MAX, 4), (1 << 40, 1), (1 << 40, 7), (u64::MAX, 1 << 40), (5, u64::MAX)] {
            let (grain, n_chunks) = whole_chunks(n, asked);
            assert!(grain.is_multiple_of(asked) && u64::from(n_chunks) == n.div_ceil(grain), "{n} {asked}");
        }
    }

    #[test]
    fn chunk_borders_depend_on_size_and_grain_alone() {
        for (n, grain) in [(1, 1), (10, 3), (1000, 7), (64, 64), (65, 64)] {
            let expected: Vec<_> =
                (0..n).step_by(grain as usize).map(|begin| (begin, (begin + grain).min(n))).collect();
            for n_slots in [1, 2, 3, 8] {
                assert_eq!(chunks(n_slots, n, grain), expected, "{n} by {grain} on {n_slots}");
            }
        }
    }

    #[test]
    fn the_first_failure_ends_the_loop() {
        let board = Board::new(1);
        let ran = AtomicU64::new(0);
        let status = board.run(
            100,
            1,
            0,
            &|begin, _, _| {
                ran.fetch_add(1, Ordering::Relaxed);
                if begin == 3 { 13 } else { 0 }
            },
            |_| {},
        );
        assert_eq!((status, ran.load(Ordering::Relaxed)), (13, 4));
    }

    #[test]
    fn a_body_that_panics_ends_its_loop_and_nothing_else() {
        let board = Board::with_places(2, 1);
        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    board.help(1, &Seat::of_this_thread());
                    std::thread::yield_now();
                }
            });
            // On the caller's thread, on the helper's, and on either.
            for panics_on in [&[0][..], &[1], &[0, 1]] {
                let run = || {
                    board.run(
                        u64::MAX,
                        1 << 34,
                        0,
                        &|_, _, slot| {
                            assert!(!panics_on.contains(&slot), "told to panic");
                            0
                        },
                        |_| {},
                    )
                };
                let panic = catch_unwind(AssertUnwindSafe(run)).unwrap_err();
                assert_eq!(panic.downcast_ref(), Some(&"told to panic"));
                assert_eq!(board.claimed.load(Ordering::Relaxed), 0, "the place is free");
            }
            assert_eq!(board.run(8, 1, 0, &|_, _, _| 0, |_| {}), 0);
            stop.store(true, Ordering::Relaxed);
        });
    }

    /// Work whose helpers panic.
    #[derive(Default)]
    struct Trap {
        heard: Mutex<Option<Error>>,
    }

    impl Shared for Trap {
        fn help(&self, _slot: u32) -> bool {
            panic!("a bug of ours");
        }

        fn abandon(&self, error: Error) {
            *self.heard.lock().unwrap() = Some(error);
        }
    }

    #[test]
    fn who_shares_work_hears_of_a_helper_that_panics() {
        let board = Board::with_places(2, 1);
        let trap = Trap::default();
        board.share(&trap, || {
            std::thread::scope(|scope| {
                assert!(scope.spawn(|| board.help(1, &Seat::of_this_thread())).join().unwrap());
            });
        });
        let heard = trap.heard.lock().unwrap().take().map(|error| error.text().to_owned());
        assert_eq!(heard.as_deref(), Some("a helper panicked: a bug of ours"));
        assert_eq!(board.claimed.load(Ordering::Relaxed), 0, "the place is free");
    }

    #[test]
    fn a_loop_without_a_place_runs_alone() {
        let board = Board::with_places(2, 1);
        let inner = AtomicU64::new(0);
        let status = board.run(
            4,
            1,
            0,
            &|_, _, _| {
                board.run(
                    8,
                    2,
                    0,
                    &|begin, end, _| {
                        inner.fetch_add(end - begin, Ordering::Relaxed);
                        0
                    },
                    |_| {},
                )
            },
            |_| {},
        );
        assert_eq!((status, inner.load(Ordering::Relaxed)), (0, 32));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use loom::sync::Arc;

    /// A caller and a helper: every chunk runs once, and the body is not touched after `run` returns.
    #[test]
    fn caller_and_helper_share_chunks_and_part() {
        loom::model(|| {
            let board = Arc::new(Board::with_places(2, 1));
            let helper = {
                let board = Arc::clone(&board);
                loom::thread::spawn(move || {
                    board.help(1, &Seat::of_this_thread());
                })
            };
            let counts = [AtomicU32::new(0), AtomicU32::new(0)];
            let alive = AtomicU32::new(1);
            board.run(
                2,
                1,
                0,
                &|begin, _, _| {
                    assert_eq!(alive.load(Ordering::Relaxed), 1);
                    counts[begin as usize].fetch_add(1, Ordering::Relaxed);
                    0
                },
                |_| {},
            );
            alive.store(0, Ordering::Relaxed);
            for count in &counts {
                assert_eq!(count.load(Ordering::Relaxed), 1);
            }
            helper.join().unwrap();
        });
    }
}
