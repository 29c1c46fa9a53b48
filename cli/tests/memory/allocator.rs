//! The allocator of these tests.

use devbay_plugin_api::reserve;
use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI64, AtomicU64, AtomicUsize, Ordering};

/// The system's allocator with failures and counters.
pub struct Watched;

/// Number of fallible requests so far; the number of the one to fail; live bytes.
static N_RESERVED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(u64::MAX);
static LIVE: AtomicI64 = AtomicI64::new(0);
/// Maximum of live bytes.
static PEAK: AtomicI64 = AtomicI64::new(0);
/// Requests of at least this size are refused, like impossible ones, even if the system overcommits.
static BYTES_MAX: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Infallible requests of at least this size are recorded.
static LARGE: AtomicUsize = AtomicUsize::new(usize::MAX);
/// Origins of the recorded requests.
static FOUND: Mutex<Vec<String>> = Mutex::new(Vec::new());

thread_local! {
    /// True while this thread records a request.
    static NOTING: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether a request is refused.
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

// SAFETY: every request that is not refused goes to the system allocator with the caller's own layout.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: `layout` has a size above 0, as `GlobalAlloc::alloc` requires of its caller.
        counted(unsafe { System.alloc(layout) }, layout.size())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if refuses(layout.size()) {
            return null_mut();
        }
        // SAFETY: `layout` has a size above 0, as `GlobalAlloc::alloc_zeroed` requires of its caller.
        counted(unsafe { System.alloc_zeroed(layout) }, layout.size())
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if refuses(new_size) {
            return null_mut();
        }
        // SAFETY: `ptr` came from this allocator with `layout`, as `GlobalAlloc::realloc` requires of its caller.
        let found = counted(unsafe { System.realloc(ptr, layout, new_size) }, new_size);
        if !found.is_null() {
            LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        }
        found
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: `ptr` came from this allocator with `layout`, as `GlobalAlloc::dealloc` requires of its caller.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// Runs code and fails its fallible request number `n`; also returns the number of such requests.
pub fn refusing<R>(n: u64, code: impl FnOnce() -> R) -> (R, u64) {
    N_RESERVED.store(0, Ordering::Relaxed);
    REFUSED.store(n, Ordering::Relaxed);
    let result = code();
    REFUSED.store(u64::MAX, Ordering::Relaxed);
    (result, N_RESERVED.load(Ordering::Relaxed))
}

/// Runs code and refuses its fallible requests of at least `bytes`.
pub fn limited<R>(bytes: usize, code: impl FnOnce() -> R) -> R {
    BYTES_MAX.store(bytes, Ordering::Relaxed);
    let result = code();
    BYTES_MAX.store(usize::MAX, Ordering::Relaxed);
    result
}

/// Returns the live bytes.
pub fn live() -> i64 {
    LIVE.load(Ordering::Relaxed)
}

/// Runs code, and returns its peak of live bytes above those before it.
pub fn peak<R>(code: impl FnOnce() -> R) -> (R, i64) {
    let before = live();
    PEAK.store(before, Ordering::Relaxed);
    let result = code();
    (result, PEAK.load(Ordering::Relaxed) - before)
}

/// Runs code, and returns the origins of its infallible requests of at least `bytes`.
pub fn unreserved<R>(bytes: usize, code: impl FnOnce() -> R) -> (R, Vec<String>) {
    LARGE.store(bytes, Ordering::Relaxed);
    let result = code();
    LARGE.store(usize::MAX, Ordering::Relaxed);
    (result, std::mem::take(&mut *FOUND.lock().expect("no test panics here")))
}
