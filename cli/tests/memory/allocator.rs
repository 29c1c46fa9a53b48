//! The allocator of these tests.

use devbay_plugin_api::reserve;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The system's allocator, watched.
pub struct Watched;

/// Requests that may fail, so far; which of them fails; bytes that live.
static N_RESERVED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);
static LIVE: AtomicI64 = AtomicI64::new(0);
/// The most that lived at once.
static PEAK: AtomicI64 = AtomicI64::new(0);
/// Requests from so many bytes are refused: what a process cannot have, whatever a system that overcommits says.
static BYTES_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Requests that cannot fail are taken down from so many bytes.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Where they came from.
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// Whether this thread is taking one down.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

/// Whether a request is refused.
fn refuses(bytes: usize) -> bool {
    if !reserve::is_reserving() {
        if bytes >= LARGE.load(Ordering::Relaxed) && !NOTING.replace(true) {
            let text = format!("{bytes} bytes\n{}", Backtrace::force_capture());
            FOUND.lock().expect("no test panics here").push(text);
            NOTING.set(false);
        }
        return false;
    }
    N_RESERVED.fetch_add(1, Ordering::Relaxed) == REFUSED.load(Ordering::Relaxed)
        || bytes >= BYTES_MAX.load(Ordering::Relaxed)
}

fn counted(found: *mut u8, bytes: usize) -> *mut u8 {
    if !found.is_null() {
        let live = LIVE.fetch_add(bytes as i64, Ordering::Relaxed) + bytes as i64;
        PEAK.fetch_max(live, Ordering::Relaxed);
    }
    found
}

// SAFETY: every request that is not refused is the system allocator's, with the caller's own layout.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller keeps to `GlobalAlloc::alloc`, which asks the same of `layout`.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: the caller keeps to `GlobalAlloc::alloc_zeroed`, which asks the same of `layout`.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if refuses(new_size) {
            return null_mut();
        }
        // SAFETY: the caller keeps to `GlobalAlloc::realloc`: `ptr` came from `System` with this layout.
        let found = counted(unsafe { System.realloc(ptr, layout, new_size) }, new_size);
        if !found.is_null() {
            LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        found
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller keeps to `GlobalAlloc::dealloc`: `ptr` came from `System` with this layout, and is given
        // back once.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// Runs code whose request number `n` fails, of those that may; also gives how many there were.
pub fn refusing<R>(n: u64, code: impl FnOnce() -> R) -> (R, u64) {
    N_RESERVED.store(0, Ordering::Relaxed);
    REFUSED.store(n, Ordering::Relaxed);
    let result = code();
    REFUSED.store(u64::MAX, Ordering::Relaxed);
    (result, N_RESERVED.load(Ordering::Relaxed))
}

/// Runs code in which no request that may fail is given so many bytes.
pub fn limited<R>(bytes: usize, code: impl FnOnce() -> R) -> R {
    BYTES_MAX.store(bytes, Ordering::Relaxed);
    let result = code();
    BYTES_MAX.store(usize::MAX, Ordering::Relaxed);
    result
}

/// Bytes that live now.
pub fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// Bytes that lived at most while code ran, beyond those that lived before.
pub fn peak<R>(code: impl FnOnce() -> R) -> (R, i64) {
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    let result = code();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

/// Where requests of so many bytes came from that cannot fail, while code ran.
pub fn unreserved<R>(bytes: usize, code: impl FnOnce() -> R) -> (R, Vec<String>) {
    LARGE.store(bytes, Ordering::Relaxed);
    let result = code();
    LARGE.store(usize::MAX, Ordering::Relaxed);
    (result, std::mem::take(&mut *FOUND.lock().expect("no test panics here")))
}
