//! Ends a command early: on Ctrl-C and at the deadline.
//!
//! The first Ctrl-C, and the deadline, set the flag that the command works under; before there is a flag, the first Ctrl-C
//! ends the process. A second Ctrl-C ends it at once, and so does this module once the deadline is exceeded by [`GRACE`]: a
//! plugin's function cannot be stopped from outside. Partially written files are removed before that.

use crate::failure;
use devbay_host::internals::core::error::Place;
use devbay_host::internals::core::exec::cancel::Launching;
use devbay_host::internals::file::remove_unfinished;
use devbay_host::{Cancel, ErrorKind};
use devbay_plugin_api::locks::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

/// Grace period after the deadline before the process ends. Our own code checks more often than that.
const GRACE: Duration = Duration::from_millis(200);

/// Exit codes of immediate ends.
const DEADLINE: u8 = 9;
pub const CANCELLED: u8 = 130;

/// The effect of the next Ctrl-C.
enum Next {
    /// Ends the process with a message, because nothing else runs yet that could print it.
    EndEarly,
    /// Ends the process.
    End,
    /// Sets a flag.
    Cancel(Cancel),
}

/// True once Ctrl-C was pressed.
static IS_PRESSED: AtomicBool = AtomicBool::new(false);

/// Returns whether Ctrl-C was pressed: any later failure then counts as cancelled.
pub fn is_pressed() -> bool {
    IS_PRESSED.load(Ordering::Relaxed)
}

static NEXT: Mutex<Next> = Mutex::new(Next::EndEarly);

/// Handles Ctrl-C from now on.
pub fn install() {
    let handler = || {
        IS_PRESSED.store(true, Ordering::Relaxed);
        let next = std::mem::replace(&mut *lock(&NEXT), Next::End);
        match next {
            Next::Cancel(cancel) => cancel.cancel(),
            Next::EndEarly => {
                failure::report_as(ErrorKind::Cancelled, CANCELLED, None, "the command was cancelled");
                end(CANCELLED.into())
            }
            Next::End => end(CANCELLED.into()),
        }
    };
    #[cfg(unix)]
    let taken = take(handler);
    #[cfg(not(unix))]
    let taken = ctrlc::set_handler(handler);
    if let Err(error) = taken {
        tracing::warn!("Ctrl-C ends the command without tidying up: {error}");
    }
}

/// Starts a thread that receives the signals that end a command; all other threads block them, including those of plugins.
/// Otherwise compilers in drivers (LLVM's in PoCL and Mesa) install handlers ahead of ours, which remove their temporary
/// files. The compilation then fails, and the process may end with that failure before it notices the signal.
///
/// # Errors
/// The system's error if no thread can be started; signals then keep their default effect.
#[cfg(unix)]
fn take(handler: impl Fn() + Send + 'static) -> std::io::Result<()> {
    use std::mem::MaybeUninit;
    use std::ptr::null;

    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    let mut blocked = MaybeUninit::<libc::sigset_t>::uninit();
    let mut before = MaybeUninit::<libc::sigset_t>::uninit();
    for set in [&mut signals, &mut blocked] {
        // SAFETY: `set` is room for a set, which this call initialises as empty.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    }
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        let mut action = MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: the signal is valid, and the action is only read if the call wrote it.
        let is_ignored = unsafe {
            libc::sigaction(signal, null(), action.as_mut_ptr()) == 0
                && action.assume_init_ref().sa_sigaction == libc::SIG_IGN
        };
        // The parent had a reason to ignore the signal, as `nohup` has. So it is blocked and not received, because a library
        // would set its handler all the same.
        let sets =
            if is_ignored { [None, Some(&mut blocked)] } else { [Some(&mut signals), Some(&mut blocked)] };
        for set in sets.into_iter().flatten() {
            // SAFETY: the signal is valid, and the set was initialised above.
            unsafe { libc::sigaddset(set.as_mut_ptr(), signal) };
        }
    }
    // SAFETY: both sets were initialised above.
    let (signals, blocked) = unsafe { (signals.assume_init(), blocked.assume_init()) };
    // SAFETY: `blocked` was initialised above, and `before` is room for the old set. Threads that start later inherit this
    // mask; processes that std starts have an empty one.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, before.as_mut_ptr()) };
    let wait = move || {
        let mut signal = 0;
        loop {
            // SAFETY: `signals` was initialised above, all of its signals are blocked, and `signal` is room for a number.
            if unsafe { libc::sigwait(&signals, &mut signal) } == 0 {
                handler();
            }
        }
    };
    let thread = std::thread::Builder::new().name("devbay-signals".to_owned()).spawn(wait);
    thread.map(drop).inspect_err(|_| {
        // SAFETY: the call above wrote `before`.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before.as_ptr(), std::ptr::null_mut()) };
    })
}

/// Returns the flag that the first Ctrl-C sets from now on.
pub fn cancel() -> Cancel {
    on_signal(Cancel::new())
}

fn on_signal(cancel: Cancel) -> Cancel {
    *lock(&NEXT) = Next::Cancel(cancel.clone());
    cancel
}

/// Does a command's work under a flag that Ctrl-C and the deadline set; the deadline counts from now. Ends the process if
/// the work continues past the deadline.
pub fn under<R>(deadline: Option<Duration>, work: impl FnOnce(&Cancel) -> R) -> R {
    let cancel = on_signal(if deadline.is_some() { Cancel::watched() } else { Cancel::new() });
    let _watch = deadline.and_then(|deadline| Watch::start(&cancel, deadline));
    Cancel::over(Some(&cancel), || work(&cancel))
}

/// A thread that waits for the deadline; dropped when the work is done.
struct Watch {
    #[expect(dead_code, reason = "its end wakes the thread")]
    done: Sender<()>,
}

impl Watch {
    /// Starts the thread. None if none can be started: the deadline then counts as passed at once.
    fn start(cancel: &Cancel, deadline: Duration) -> Option<Self> {
        let (done, ended) = channel();
        let watched = cancel.clone();
        let thread = std::thread::Builder::new().name("devbay-deadline".to_owned());
        match thread.spawn(move || watch(&watched, deadline, &ended)) {
            Ok(_) => Some(Self { done }),
            Err(error) => {
                tracing::warn!("the deadline cannot be kept, so that it counts as past: {error}");
                cancel.expire();
                None
            }
        }
    }
}

fn watch(cancel: &Cancel, deadline: Duration, ended: &Receiver<()>) {
    if ended.recv_timeout(deadline) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    cancel.expire();
    if ended.recv_timeout(GRACE) != Err(RecvTimeoutError::Timeout) {
        return;
    }
    let (place, text) = match cancel.launching().pop() {
        Some(Launching { plugin, device, node }) => {
            let text = format!(
                "plugin {plugin}, device {device}, node {node}: the deadline passed before the run ended, and the launch \
                 has not returned {GRACE:?} later"
            );
            (Some(Place { plugin, device, node, ..Place::default() }), text)
        }
        None => {
            let text = "the deadline passed before the run ended, and its work has not stopped";
            (None, format!("{text} {GRACE:?} later"))
        }
    };
    failure::report_as(ErrorKind::DeadlineExceeded, DEADLINE, place.as_ref(), &text);
    end(DEADLINE.into());
}

/// Ends the process. Devices are left as they are, since one may hang.
fn end(code: i32) -> ! {
    remove_unfinished();
    #[cfg(unix)]
    // SAFETY: `_exit` does not return, and runs no code of ours or of a plugin's.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}
