//! Out of memory: exit code 7 and a message, even where an allocation cannot fail gracefully.
//!
//! Memory whose size a model, an input or a file decides is requested in a way that reports a shortage as an error
//! (`devbay_plugin_api::reserve`). The rest are small requests, and those of third-party code. Rust ends the process when
//! one of them fails: it calls `abort`. This module handles that with three measures.
//!
//! - **A reserve.** The first small request that fails is served from a reserve, so that errors can still be formatted and
//!   open resources closed.
//! - **A handler.** The allocator notes a failed request of its thread unless it came through `reserve`. When SIGABRT
//!   arrives on such a thread, the process prints a message and ends with exit code 7; any other abort stays one. Between
//!   the request and the abort Rust's runtime allocates too: with `RUST_BACKTRACE` it reads debug information. So the note
//!   is cleared not by any later request, but by the first successful one through `reserve`, which the runtime does not use.
//!   An abort also counts if the system cannot provide one mebibyte: the C library and Rust's thread starts bypass the
//!   allocator. Until the note is cleared, an unrelated abort after a failed request that third-party code recovered from is
//!   reported wrongly.
//! - **A panic hook.** A thread that finds no memory for its signal stack panics before it aborts. The hook ends the process
//!   where the handler would have, so that no other message appears.
//!
//! `crate::crash` handles SIGABRT too, and checks here first: a failed request of a linked-in plugin is not the plugin's
//! fault.
//!
//! Ending here runs no destructor: a partially written file keeps its temporary name.

use devbay_plugin_api::reserve;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes reserved for the first small request that fails and must not.
const RESERVE_BYTES: usize = 512 << 10;
/// Maximum size of a small request, which may use the reserve.
const SMALL_MAX: usize = 64 << 10;
/// Minimum memory of a process that is not out of memory: the size that the C library requests when it runs out.
#[cfg(unix)]
const LITTLE_BYTES: usize = 1 << 20;
/// Bytes of the main thread's stack to touch at the start: the system allocates them on first use, and kills the process if
/// there are none.
const STACK_BYTES: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// The reserve; NULL once it was spent.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

thread_local! {
    /// Size of this thread's failed request outside `reserve`; 0 after a successful one through it. No destructor, because
    /// it is read at any time.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, which notes failed requests.
struct Guarded;

impl Guarded {
    /// Notes the result of a request. A small one that failed outside `reserve` is repeated after freeing the reserve.
    #[inline(always)]
    fn noted(bytes: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        let found = request();
        if found.is_null() { Self::failed(bytes, request) } else { Self::succeeded(found) }
    }

    #[inline(always)]
    fn succeeded(found: *mut u8) -> *mut u8 {
        if FAILED.get() != 0 && reserve::is_reserving() {
            FAILED.set(0);
        }
        found
    }

    #[cold]
    fn failed(bytes: usize, request: impl Fn() -> *mut u8) -> *mut u8 {
        if reserve::is_reserving() {
            return null_mut();
        }
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

/// Frees the reserve; returns false if it was spent before.
fn spend_reserve() -> bool {
    let reserve = RESERVE.swap(null_mut(), Ordering::AcqRel);
    if reserve.is_null() {
        return false;
    }
    // SAFETY: allocated in `guard` with this layout; the swap above took it, so it is freed once.
    unsafe { System.dealloc(reserve, reserve_layout()) };
    true
}

// SAFETY: every request goes to the system allocator with the caller's own layout, and is repeated only after it returned
// NULL.
unsafe impl GlobalAlloc for Guarded {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `layout` has a size above 0, as `GlobalAlloc::alloc` requires of its caller.
        Self::noted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `layout` has a size above 0, as `GlobalAlloc::alloc_zeroed` requires of its caller.
        Self::noted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: `ptr` came from this allocator with `layout`, as `GlobalAlloc::realloc` requires of its caller; a failed
        // attempt leaves the block valid.
        Self::noted(new_size, || unsafe { System.realloc(ptr, layout, new_size) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `ptr` came from this allocator with `layout`, as `GlobalAlloc::dealloc` requires of its caller.
        unsafe { System.dealloc(ptr, layout) };
    }
}

/// Prepares for running out of memory: called once, at the start of the main thread.
pub fn guard() {
    take_stack();
    // SAFETY: the layout has a size above 0.
    let reserve = unsafe { System.alloc(reserve_layout()) };
    RESERVE.store(reserve, Ordering::Release);
    #[cfg(unix)]
    handler::install();
}

#[cfg(unix)]
pub use handler::end_if_a_request_failed;

/// Touches a part of the stack, so that its memory is allocated.
#[inline(never)]
fn take_stack() {
    let mut room = [0u8; STACK_BYTES];
    std::hint::black_box(&mut room);
}

#[cfg(unix)]
mod handler {
    use super::{EXIT_CODE, FAILED, LITTLE_BYTES};
    use crate::failure::Raw;
    use devbay_host::ErrorKind;

    /// Handles SIGABRT before it ends the process.
    pub(super) fn install() {
        // SAFETY: all zero is a valid `sigaction`: no flags, no blocked signals.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_abort as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler calls only async-signal-safe functions, and the struct lives through the call.
        unsafe { libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) };
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            end_if_there_is_none();
            before(info);
        }));
    }

    /// Calls [`end_if_a_request_failed`], and otherwise returns, so that `abort` continues.
    extern "C" fn on_abort(_signal: libc::c_int) {
        end_if_a_request_failed();
    }

    /// Ends the process with exit code 7 if a request of this thread failed outside `reserve`, or if there is almost no
    /// memory. For handlers of SIGABRT.
    pub fn end_if_a_request_failed() {
        // This has a constant initialiser and no destructor, so it is a plain load, which a handler may do.
        let bytes = FAILED.get();
        if bytes == 0 {
            end_if_there_is_none();
            return;
        }
        let mut buffer = [0; _];
        let mut raw = Raw::new(&mut buffer, ErrorKind::OutOfMemory, EXIT_CODE, &[]);
        raw.add("out of memory: a request of ");
        raw.add_number(bytes as u64, 10);
        raw.add(" bytes that cannot be refused failed");
        raw.print_and_end(EXIT_CODE)
    }

    /// Ends the process with exit code 7 if the system cannot provide [`LITTLE_BYTES`]. The abort then most likely comes
    /// from code that asks the system directly: the C library for a thread's destructors, or Rust's for a thread's stack.
    fn end_if_there_is_none() {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: this maps new memory at an address of the system's choice, and takes no lock of the process.
        let found = unsafe { libc::mmap(std::ptr::null_mut(), LITTLE_BYTES, read_write, private, -1, 0) };
        if found != libc::MAP_FAILED {
            // SAFETY: mapped above with this length, and no pointer to it leaves this function.
            unsafe { libc::munmap(found, LITTLE_BYTES) };
            return;
        }
        let mut buffer = [0; _];
        let mut raw = Raw::new(&mut buffer, ErrorKind::OutOfMemory, EXIT_CODE, &[]);
        raw.add("out of memory: a request of the system's libraries that cannot be refused failed");
        raw.print_and_end(EXIT_CODE)
    }
}

/// The code of [`crate::exit`] for too little memory.
#[cfg(unix)]
const EXIT_CODE: u8 = 7;

#[cfg(all(test, unix))]
mod tests {
    use devbay_host::internals::core::calls::{Call, during};
    use devbay_plugin_api::reserve;
    use std::hint::black_box;
    use std::process::Command;

    /// Variable with the action for a child of [`aborts`].
    const DOES: &str = "MEMORY_TEST_DOES";
    /// More memory than a process can address, so that no system provides it.
    const TOO_MUCH: usize = 1 << 50;

    fn want_too_much() {
        black_box(Vec::<u8>::with_capacity(black_box(TOO_MUCH)));
    }

    fn is_refused_too_much() {
        assert!(reserve::with_capacity::<u8>(black_box(TOO_MUCH), "a test").is_err());
    }

    /// Ends the process in the given way, in a child that [`aborts`] starts; does nothing otherwise.
    #[test]
    fn child() {
        let Ok(does) = std::env::var(DOES) else { return };
        super::guard();
        crate::crash::install();
        let _own_end = crate::crash::OwnEnd;
        let call = Call { plugin: "p", function: "launch", device: "p:0", node: "n" };
        let panic = || panic!("something went wrong");
        match does.as_str() {
            "want" => want_too_much(),
            "want in a call" => during(call, want_too_much),
            "abort" => std::process::abort(),
            "abort after a refusal" => {
                is_refused_too_much();
                std::process::abort();
            }
            "abort after coping" => {
                black_box(black_box(Vec::<u8>::new()).try_reserve(TOO_MUCH))
                    .expect_err("there is not so much");
                reserve::with_capacity::<u8>(1, "a test").expect("there is so much");
                std::process::abort();
            }
            "abort in a call" => during(call, || std::process::abort()),
            "panic" => panic(),
            "panic without memory" => {
                take_all_memory();
                panic();
            }
            other => panic!("{other}"),
        }
    }

    /// Stops the system from providing this process any more memory.
    fn take_all_memory() {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the struct lives through the call.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const none) }, 0);
    }

    #[test]
    fn aborts() {
        let own = std::env::current_exe().expect("the test's own path");
        for (does, code, words) in [
            ("want", Some(7), "a request of 1125899906842624 bytes that cannot be refused failed"),
            ("want in a call", Some(7), "bytes that cannot be refused failed"),
            ("abort", None, ""),
            ("abort after a refusal", None, ""),
            ("abort after coping", None, ""),
            ("abort in a call", Some(8), "plugin p crashed in its function `launch`"),
            ("panic", Some(101), "something went wrong"),
            ("panic without memory", Some(7), "of the system's libraries that cannot be refused failed"),
        ] {
            // With a backtrace Rust's runtime allocates in between.
            for backtrace in ["0", "1"] {
                let mut child = Command::new(&own);
                child.args(["--exact", "memory::tests::child", "--nocapture", "--test-threads=1"]);
                let ended = child.env(DOES, does).env("RUST_BACKTRACE", backtrace).output();
                let ended = ended.expect("it starts");
                let said = String::from_utf8_lossy(&ended.stderr);
                assert_eq!(ended.status.code(), code, "{does}, RUST_BACKTRACE={backtrace}: {said}");
                assert!(said.contains(words), "{does}, RUST_BACKTRACE={backtrace}: {said}");
                let has_panicked = said.contains("panicked at");
                assert_eq!(has_panicked, does == "panic", "{does}, RUST_BACKTRACE={backtrace}: {said}");
            }
        }
    }
}
