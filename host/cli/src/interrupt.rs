//! Ctrl-C: the first cancels the run, a second one ends the process at once. Where nothing can be cancelled yet the first
//! ends it. Files that were being written are removed before.

use crate::tell;
use devbay_host::core::exec::cancel::Cancel;
use devbay_host::file::remove_unfinished;
use std::sync::{Mutex, PoisonError};

/// What Ctrl-C does next.
enum Next {
    /// Ends the process, and says so: nothing runs yet that could say it.
    EndEarly,
    /// Ends the process.
    End,
    /// Sets a flag.
    Cancel(Cancel),
}

static NEXT: Mutex<Next> = Mutex::new(Next::EndEarly);

/// Takes Ctrl-C from now on.
pub fn install() {
    let handler = || {
        let next = std::mem::replace(&mut *NEXT.lock().unwrap_or_else(PoisonError::into_inner), Next::End);
        match next {
            Next::Cancel(cancel) => cancel.cancel(),
            Next::EndEarly => {
                tell!("error: the command was cancelled");
                end()
            }
            Next::End => end(),
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
    let cancel = Cancel::new();
    *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Next::Cancel(cancel.clone());
    cancel
}

/// Ends the process with the exit code of what was cancelled. Devices are left as they are: one may hang.
fn end() -> ! {
    const CANCELLED: i32 = 130;
    remove_unfinished();
    #[cfg(unix)]
    // SAFETY: it does not return, and runs no code of ours or of a plugin's.
    unsafe {
        libc::_exit(CANCELLED)
    }
    #[cfg(not(unix))]
    std::process::exit(CANCELLED)
}
