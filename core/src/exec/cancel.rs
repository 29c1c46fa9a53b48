//! Cancelling a run, by hand or by a deadline.

use crate::error::{Error, ErrorKind};
use crate::sync::{AtomicU32, Ordering};
use std::sync::Arc;

const RUNNING: u32 = 0;
const CANCELLED: u32 = 1;
const EXPIRED: u32 = 2;

/// A flag that ends runs between launches. Clones share it; once set it stays set.
#[derive(Clone, Default)]
pub struct Cancel(Arc<AtomicU32>);

impl Cancel {
    /// A flag that is not set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends the runs that look at this flag.
    pub fn cancel(&self) {
        let _ = self.0.compare_exchange(RUNNING, CANCELLED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Ends them because their deadline passed.
    pub fn expire(&self) {
        let _ = self.0.compare_exchange(RUNNING, EXPIRED, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it is set.
    #[inline(always)]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed) != RUNNING
    }

    /// The error of a run that looked and stopped.
    pub fn error(&self) -> Error {
        if self.0.load(Ordering::Relaxed) == EXPIRED {
            return Error::new(ErrorKind::DeadlineExceeded, "the deadline passed before the run ended");
        }
        Self::unknown()
    }

    pub(crate) fn unknown() -> Error {
        Error::new(ErrorKind::Cancelled, "the run was cancelled")
    }

    /// Nothing if the flag is not set.
    ///
    /// # Errors
    /// [`Cancel::error`].
    pub fn check(cancel: Option<&Self>) -> Result<(), Error> {
        match cancel {
            Some(cancel) if cancel.is_cancelled() => Err(cancel.error()),
            _ => Ok(()),
        }
    }
}
