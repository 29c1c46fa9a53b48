//! Objects of processes that fork: threads are not copied to a child, so what needs them stays behind.
//!
//! C and Python keep runtimes, sessions and values as [`Here`]: in a forked child they are an error instead of a wait for a thread that
//! is not there, and are not dropped, since a drop would wait for it, too. A runtime that is made in the child works.

use devbay_core::error::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of forks between the first process that asked and this one.
static N_FORKS: AtomicU32 = AtomicU32::new(0);

static WATCHED: Once = Once::new();

#[cfg(unix)]
extern "C" fn in_child() {
    N_FORKS.fetch_add(1, Ordering::Relaxed);
}

/// Returns a number that differs from that of the processes which this one was forked from. Counts from the first call on.
#[inline]
pub fn generation() -> u32 {
    if !WATCHED.is_completed() {
        watch();
    }
    N_FORKS.load(Ordering::Relaxed)
}

#[cold]
fn watch() {
    WATCHED.call_once(|| {
        #[cfg(unix)]
        // SAFETY: the function lives as long as the process, and only adds to a number.
        let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
        #[cfg(unix)]
        if failed != 0 {
            tracing::warn!(
                "forks of this process are not noticed: {}",
                std::io::Error::from_raw_os_error(failed)
            );
        }
    });
}

/// An object of the process that made it.
pub struct Here<T> {
    generation: u32,
    object: ManuallyDrop<T>,
}

impl<T> Here<T> {
    /// Makes an object of this process.
    pub fn new(object: T) -> Self {
        Self { generation: generation(), object: ManuallyDrop::new(object) }
    }

    /// Returns whether this process made it.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.generation == generation()
    }

    /// Returns the object.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] in a process that was forked since it was made.
    #[inline]
    pub fn get(&self) -> Result<&T> {
        if self.is_here() { Ok(&self.object) } else { Err(elsewhere()) }
    }

    /// Returns the object, for callers that [`Here::get`] has given it to before.
    #[inline]
    pub fn again(&self) -> &T {
        &self.object
    }
}

#[cold]
fn elsewhere() -> Error {
    Error::new(
        ErrorKind::Unavailable,
        "this process was forked from the one that made this object, and its threads are not here; make a runtime in this process, \
         or start processes by spawning them",
    )
}

impl<T> Drop for Here<T> {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the object is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.object) }
        }
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::{Here, generation};
    use crate::{ErrorKind, Model, Runtime, Session, Tensor};

    const IDENTITY: &str =
        "devbay-program 1\nprogram \"negate\"(%x: f32[3]) {\n    %y: f32[3] = Neg@13(%x)\n    return %y\n}\n";

    /// Runs in a child; true if all is as it should be there.
    fn child(session: Here<Session>) -> bool {
        let refused = session.get().is_err_and(|error| error.kind() == ErrorKind::Unavailable);
        // Does not wait for threads.
        drop(session);
        let runs = || -> crate::Result<bool> {
            let runtime = Runtime::builder().threads(2).link(devbay_plugin_cpu::PLUGIN).build()?;
            let model = Model::from_text(IDENTITY)?;
            let session = Session::new(&model, &runtime.device_for(&model)?)?;
            let x = Tensor::from_elements(&[3], &[1.0f32, 2.0, 3.0])?;
            let no_time = crate::RunOptions {
                deadline: Some(std::time::Duration::from_secs(60)),
                ..Default::default()
            };
            let y = session.run_with(&[("x", &x)], &no_time)?;
            Ok(y[0].elements::<f32>() == Some(&[-1.0, -2.0, -3.0][..]))
        };
        refused && generation() == 1 && runs().unwrap_or(false)
    }

    #[test]
    fn a_forked_child_has_an_error_and_can_make_a_runtime() {
        let runtime =
            Runtime::builder().threads(2).link(devbay_plugin_cpu::PLUGIN).build().expect("a runtime");
        let model = Model::from_text(IDENTITY).expect("a model");
        let device = runtime.device_for(&model).expect("a device");
        let session = Here::new(Session::new(&model, &device).expect("a session"));
        // SAFETY: the runtime's threads are at rest, so that no lock is held that the child takes; the child ends by `_exit`.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", std::io::Error::last_os_error());
        if pid == 0 {
            let code = i32::from(!child(session));
            // SAFETY: ends the child, and runs none of the test's code again.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: `status` is a place for the child's status.
        assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
        assert_eq!(status, 0, "the child found something else");
        assert!(session.get().is_ok());
    }
}
