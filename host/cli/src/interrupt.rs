//! What ends a command early: Ctrl-C and the deadline.
//!
//! The first Ctrl-C, and the deadline, set the flag that the command works under; where there is no flag yet the first Ctrl-C
//! ends the process. A second Ctrl-C ends it at once, and so does this file when the deadline is past by [`GRACE`]: a
//! plugin's function cannot be stopped from outside. Files that were being written are removed before.

use crate::tell;
use devbay_host::core::exec::cancel::{Cancel, Launching};
use devbay_host::file::remove_unfinished;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// How long work may go on behind the deadline before the process ends. Our own code looks more often than that.
const GRACE: Duration = Duration::from_millis(200);

/// Exit codes of what ends at once.
const DEADLINE: i32 = 9;
pub const CANCELLED: u8 = 130;

/// What Ctrl-C does next.
enum Next {
    /// Ends the process, and says so: nothing runs yet that could say it.
    EndEarly,
    /// Ends the process.
    End,
    /// Sets a flag.
    Cancel(Cancel),
}

/// Whether Ctrl-C was pressed.
static IS_PRESSED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C was pressed: then whatever fails has been cancelled. Compilers in drivers give up on the signal by
/// themselves, with errors of their own.
pub fn is_pressed() -> bool {
    IS_PRESSED.load(Ordering::Relaxed)
}

static NEXT: Mutex<Next> = Mutex::new(Next::EndEarly);

/// Takes Ctrl-C from now on.
pub fn install() {
    let handler = || {
        IS_PRESSED.store(true, Ordering::Relaxed);
        let next = std::mem::replace(&mut *NEXT.lock().unwrap_or_else(PoisonError::into_inner), Next::End);
        match next {
            Next::Cancel(cancel) => cancel.cancel(),
            Next::EndEarly => {
                tell!("error: the command was cancelled");
                end(CANCELLED.into())
            }
            Next::End => end(CANCELLED.into()),
        }
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C ends the command without tidying up: {error}");
        // Without the thread that it wakes, a handler that is set already would swallow the signal.
        #[cfg(unix)]
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: the default action is a valid one.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
    }
}

/// The flag that the first Ctrl-C sets from now on.
pub fn cancel() -> Cancel {
    on_signal(Cancel::new())
}

fn on_signal(cancel: Cancel) -> Cancel {
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Next::Cancel(cancel.clone());
    cancel
}

/// Does a command's work under a flag that Ctrl-C and the deadline set, which counts from now. The process ends by itself if
/// the work goes on behind the deadline.
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
    /// None if there is no thread to be had: the deadline is then passed at once.
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
    let text = match cancel.launching().pop() {
        Some(Launching { plugin, device, node }) => format!(
            "plugin {plugin}, device {device}, node {node}: the deadline passed before the run ended, and the launch has \
             not returned {GRACE:?} later"
        ),
        None => {
            format!("the deadline passed before the run ended, and its work has not stopped {GRACE:?} later")
        }
    };
    tell!("error: {text}");
    end(DEADLINE);
}

/// Ends the process. Devices are left as they are: one may hang.
fn end(code: i32) -> ! {
    remove_unfinished();
    #[cfg(unix)]
    // SAFETY: it does not return, and runs no code of ours or of a plugin's.
    unsafe {
        libc::_exit(code)
    }
    #[cfg(not(unix))]
    std::process::exit(code)
}
