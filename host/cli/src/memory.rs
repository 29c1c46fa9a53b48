//! Too little memory: exit code 7 and a sentence, also where an allocation cannot be refused.
//!
//! Memory whose size a model, an input or a file decides is asked for so that a lack of it is an error
//! (`devbay_plugin_api::reserve`). What is left are small requests, and those of other people's code. Rust ends the
//! process when one of them fails: it calls `abort`. Two things are done about that here.
//!
//! - **A reserve.** The first small request that fails is given what was kept for it, so that errors can still be put
//!   into words and what is open can be closed.
//! - **A handler.** The allocator notes what its thread's last request came to. When SIGABRT arrives on a thread whose
//!   last request failed, the process says so and ends with exit code 7; any other abort stays one. The note is of one
//!   request only: a later one that succeeds takes it back. An abort for another reason, directly after a request that
//!   failed and was coped with, would be told wrongly; between the two, such an error has been put into words by then,
//!   which is a request that succeeded.
//!
//! What ends here runs no destructor: a file that was being written stays as its temporary name.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes that are kept for the first small request that fails.
const RESERVE_BYTES: usize = 512 << 10;
/// A request up to here is small: the reserve is spent on it.
const SMALL_MAX: usize = 64 << 10;
/// Bytes of the main thread's stack that are taken at the start: the system takes them as they are used, and kills the
/// process where there are none.
const STACK_BYTES: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// The memory that is kept; NULL once it was spent.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

thread_local! {
    /// Bytes of this thread's last request if it failed, else 0. No destructor: it is asked at any time.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, and a note of what failed.
struct Guarded;

impl Guarded {
    /// Notes the result of a request; a small one that failed is repeated without the reserve.
    #[inline(always)]
    fn noted(bytes: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        let found = request();
        if found.is_null() { Self::failed(bytes, request) } else { Self::succeeded(found) }
    }

    #[inline(always)]
    fn succeeded(found: *mut u8) -> *mut u8 {
        FAILED.set(0);
        found
    }

    #[cold]
    fn failed(bytes: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        if bytes <= SMALL_MAX && spend_reserve() {
            let found = request();
            if !found.is_null() {
                return Self::succeeded(found);
            }
        }
        FAILED.set(bytes.max(1));
        null_mut()
    }
}

fn reserve_layout() -> Layout {
    Layout::new::<[u8; RESERVE_BYTES]>()
}

/// Frees the reserve; false if it was spent before.
fn spend_reserve() -> bool {
    let reserve = RESERVE.swap(null_mut(), Ordering::AcqRel);
    if reserve.is_null() {
        return false;
    }
    // SAFETY: allocated in `guard` with this layout; the swap above took it, so it is freed once.
    unsafe { System.dealloc(reserve, reserve_layout()) };
    true
}

// SAFETY: every request is the system allocator's, with the caller's own layout; a repeated one comes after one that
// gave nothing.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        Self::noted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promise.
        Self::noted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller's promise; after a failure the block is as it was.
        Self::noted(new_size, || unsafe { System.realloc(ptr, layout, new_size) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// Prepares for a lack of memory: once, at the start of the main thread.
pub fn guard() {
    take_stack();
    // SAFETY: the layout has a size above 0.
    let reserve = unsafe { System.alloc(reserve_layout()) };
    RESERVE.store(reserve, Ordering::Release);
    #[cfg(unix)]
    handler::install();
}

/// Uses a part of the stack, so that it is there from now on.
#[inline(never)]
fn take_stack() {
    let mut room = [0u8; STACK_BYTES];
    std::hint::black_box(&mut room);
}

#[cfg(unix)]
mod handler {
    use super::FAILED;

    /// Has SIGABRT looked at before it ends the process.
    pub(super) fn install() {
        // SAFETY: all zero is a valid `sigaction`: no flags, no blocked signals.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_abort as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler calls async-signal-safe functions alone, and the struct lives through the call.
        unsafe { libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) };
    }

    /// Ends the process with exit code 7 if the thread aborts for want of memory. Otherwise it returns, and `abort` goes on.
    extern "C" fn on_abort(_signal: libc::c_int) {
        // A constant initialiser and no destructor: this is a load, which a handler may do.
        let bytes = FAILED.get();
        if bytes == 0 {
            return;
        }
        let mut text = [0u8; 96];
        let text = sentence(bytes, &mut text);
        // SAFETY: `write` may be called in a handler; the bytes are this function's.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        // SAFETY: `_exit` may be called in a handler and does not return.
        unsafe { libc::_exit(super::EXIT_CODE) }
    }

    /// The sentence, without an allocation.
    fn sentence(bytes: usize, text: &mut [u8; 96]) -> &[u8] {
        let mut digits = [0u8; 20];
        let (mut rest, mut first) = (bytes, digits.len());
        loop {
            first -= 1;
            digits[first] = b'0' + (rest % 10) as u8;
            rest /= 10;
            if rest == 0 {
                break;
            }
        }
        let parts: [&[u8]; 3] = [
            b"error: out of memory: a request of ",
            &digits[first..],
            b" bytes that cannot be refused failed\n",
        ];
        let mut len = 0;
        for part in parts {
            text[len..len + part.len()].copy_from_slice(part);
            len += part.len();
        }
        &text[..len]
    }

    #[cfg(test)]
    mod tests {
        use super::sentence;

        #[test]
        fn the_sentence_has_the_number() {
            let words = |bytes| String::from_utf8(sentence(bytes, &mut [0; 96]).to_vec()).unwrap();
            assert_eq!(
                words(40),
                "error: out of memory: a request of 40 bytes that cannot be refused failed\n"
            );
            assert!(words(usize::MAX).contains(&usize::MAX.to_string()));
        }
    }
}

/// As [`crate::exit`] has it for too little memory.
#[cfg(unix)]
const EXIT_CODE: i32 = 7;
