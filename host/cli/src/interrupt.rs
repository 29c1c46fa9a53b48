//! Ctrl-C: the first cancels the run, a second one ends the process at once.

use devbay_host::core::exec::cancel::Cancel;
use std::sync::atomic::{AtomicBool, Ordering};

/// The flag that Ctrl-C sets from now on; before, it ends the process the usual way.
pub fn cancel() -> Cancel {
    let cancel = Cancel::new();
    let (on_signal, again) = (cancel.clone(), AtomicBool::new(false));
    let handler = move || {
        if again.swap(true, Ordering::Relaxed) {
            end();
        }
        on_signal.cancel();
    };
    if let Err(error) = ctrlc::set_handler(handler) {
        tracing::warn!("Ctrl-C ends the command without ending its run first: {error}");
    }
    cancel
}

/// Ends the process with the exit code of what was cancelled. Nothing is tidied up: a device may hang.
fn end() -> ! {
    const CANCELLED: i32 = 130;
    #[cfg(unix)]
    // SAFETY: it does not return, and runs no code of ours or of a plugin's.
    unsafe {
        libc::_exit(CANCELLED)
    }
    #[cfg(not(unix))]
    std::process::exit(CANCELLED)
}
