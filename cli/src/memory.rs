//! Too little memory: exit code 7 and a sentence, also where an allocation cannot be refused.
//!
//! Memory whose size a model, an input or a file decides is asked for so that a lack of it is an error
//! (`devbay_plugin_api::reserve`). What is left are small requests, and those of other people's code. Rust ends the
//! process when one of them fails: it calls `abort`. Two things are done about that here.
//!
//! - **A reserve.** The first small request that fails is given what was kept for it, so that errors can still be put
//!   into words and what is open can be closed.
//! - **A handler.** The allocator notes when a request of its thread failed that did not come through `reserve`. When
//!   SIGABRT arrives on such a thread, the process says so and ends with exit code 7; any other abort stays one. Between
//!   the request and the abort Rust's runtime takes memory too: with `RUST_BACKTRACE` it reads debug information. So not
//!   any later request takes the note back, but the first through `reserve` that succeeds, which the runtime's are not.
//!   What aborts when the system has no mebibyte to give counts as well: the C library and Rust's own thread starts ask
//!   past the allocator. An abort for another reason, behind a request that failed and was coped with by other people's code, would be told
//!   wrongly until then.
//! - **A panic hook.** A thread that finds no memory for its signal stack panics before it aborts. The hook ends the process
//!   where the handler would have, so that the sentence stands alone.
//!
//! `crate::crash` handles SIGABRT too, and asks here first: a request that fails in a plugin which is linked in is not the
//! plugin's fault.
//!
//! What ends here runs no destructor: a file that was being written stays as its temporary name.

use devbay_plugin_api::reserve;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes that are kept for the first small request that fails and cannot be refused.
const RESERVE_BYTES: usize = 512 << 10;
/// A request up to here is small: the reserve is spent on it.
const SMALL_MAX: usize = 64 << 10;
/// What a process has that does not end for want of memory: as much as the C library asks for when it has none left.
#[cfg(unix)]
const LITTLE_BYTES: usize = 1 << 20;
/// Bytes of the main thread's stack that are taken at the start: the system takes them as they are used, and kills the
/// process where there are none.
const STACK_BYTES: usize = 1 << 20;

#[global_allocator]
static ALLOCATOR: Guarded = Guarded;

/// The memory that is kept; NULL once it was spent.
static RESERVE: AtomicPtr<u8> = AtomicPtr::new(null_mut());

thread_local! {
    /// Bytes of this thread's request that failed and could not be refused; 0 once one that could be has succeeded. No
    /// destructor: it is asked at any time.
    static FAILED: Cell<usize> = const { Cell::new(0) };
}

/// The system's allocator, and a note of what failed.
struct Guarded;

impl Guarded {
    /// Notes the result of a request; a small one that failed and cannot be refused is repeated without the reserve.
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
        // SAFETY: the caller keeps to `GlobalAlloc::alloc`, which asks the same of `layout`.
        Self::noted(layout.size(), || unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps to `GlobalAlloc::alloc_zeroed`, which asks the same of `layout`.
        Self::noted(layout.size(), || unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the caller keeps to `GlobalAlloc::realloc`: `ptr` came from `System` with this layout. After a
        // failure the block is as it was.
        Self::noted(new_size, || unsafe { System.realloc(ptr, layout, new_size) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to `GlobalAlloc::dealloc`: `ptr` came from `System` with this layout, and is given
        // back once.
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

#[cfg(unix)]
pub use handler::end_if_a_request_failed;

/// Uses a part of the stack, so that it is there from now on.
#[inline(never)]
fn take_stack() {
    let mut room = [0u8; STACK_BYTES];
    std::hint::black_box(&mut room);
}

#[cfg(unix)]
mod handler {
    use super::{FAILED, LITTLE_BYTES};

    /// Has SIGABRT looked at before it ends the process.
    pub(super) fn install() {
        // SAFETY: all zero is a valid `sigaction`: no flags, no blocked signals.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_abort as extern "C" fn(libc::c_int) as usize;
        // SAFETY: the handler calls async-signal-safe functions alone, and the struct lives through the call.
        unsafe { libc::sigaction(libc::SIGABRT, &raw const action, std::ptr::null_mut()) };
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            end_if_there_is_none();
            before(info);
        }));
    }

    /// Has [`end_if_a_request_failed`] look, and returns otherwise, so that `abort` goes on.
    extern "C" fn on_abort(_signal: libc::c_int) {
        end_if_a_request_failed();
    }

    /// Ends the process with exit code 7 if a request of this thread failed that could not be refused, or if there is next to
    /// no memory. For handlers of SIGABRT.
    pub fn end_if_a_request_failed() {
        // A constant initialiser and no destructor: this is a load, which a handler may do.
        let bytes = FAILED.get();
        if bytes == 0 {
            end_if_there_is_none();
            return;
        }
        let mut text = [0u8; 96];
        let text = sentence(bytes, &mut text);
        // SAFETY: `write` may be called in a handler; the bytes are this function's.
        unsafe { libc::write(libc::STDERR_FILENO, text.as_ptr().cast(), text.len()) };
        // SAFETY: `_exit` may be called in a handler and does not return.
        unsafe { libc::_exit(super::EXIT_CODE) }
    }

    /// Ends the process with exit code 7 if the system has no [`LITTLE_BYTES`] to give: then what aborts is most likely code
    /// that asks the system by itself, such as the C library for a thread's destructors, or Rust's for a thread's stack.
    fn end_if_there_is_none() {
        let (read_write, private) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory at no address in particular, a system call that takes no lock of the process.
        let found = unsafe { libc::mmap(std::ptr::null_mut(), LITTLE_BYTES, read_write, private, -1, 0) };
        if found != libc::MAP_FAILED {
            // SAFETY: mapped above with this length, and no pointer to it leaves this function.
            unsafe { libc::munmap(found, LITTLE_BYTES) };
            return;
        }
        let text =
            b"error: out of memory: a request of the system's libraries that cannot be refused failed\n";
        // SAFETY: `write` may be called in a handler; the bytes are static.
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

#[cfg(all(test, unix))]
mod tests {
    use devbay_host::internals::core::calls::{Call, during};
    use devbay_plugin_api::reserve;
    use std::hint::black_box;
    use std::process::Command;

    /// What a child of [`aborts`] is to do.
    const DOES: &str = "MEMORY_TEST_DOES";
    /// More than a process can address, so that no system gives it.
    const TOO_MUCH: usize = 1 << 50;

    fn want_too_much() {
        black_box(Vec::<u8>::with_capacity(black_box(TOO_MUCH)));
    }

    fn is_refused_too_much() {
        assert!(reserve::with_capacity::<u8>(black_box(TOO_MUCH), "a test").is_err());
    }

    /// Ends the process in one way or another, in a child that [`aborts`] starts; nothing otherwise.
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

    /// Lets the system give this process nothing more.
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
            // With a backtrace Rust's runtime asks for memory in between.
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
