//! The call of a plugin that a thread is in, used to explain why the process dies.
//!
//! A plugin's function that crashes, or that ends the process, never comes back to say which it was. So calls leave a note
//! in the thread that makes them, where a signal handler finds it. Off until [`watch`] asks for it: then a
//! call costs one look at a flag, and a launch nothing at all, because it is asked when a plan is made. On, launches go
//! through a function of ours, as those do that are traced.
//!
//! A plugin's own threads have no note: the host does not know their work.

use std::cell::Cell;
use std::ptr::null;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

/// A call of a plugin's function; fields that do not apply are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The plugin's name, or the path of its library before it has told a name.
    pub plugin: &'a str,
    /// The function that is called.
    pub function: &'a str,
    /// The device that the call is about.
    pub device: &'a str,
    /// The node that it is about.
    pub node: &'a str,
}

/// The call that a thread is in, for other threads that work on it too while it waits for them.
#[derive(Clone, Copy)]
pub(crate) struct Here(*const Call<'static>);

// SAFETY: only used by `within`, whose caller keeps the call alive.
unsafe impl Send for Here {}
// SAFETY: `within` only reads the call, whose strings are shared references; its caller keeps it alive.
unsafe impl Sync for Here {}

static WATCHED: AtomicBool = AtomicBool::new(false);

thread_local! {
    /// # Invariants
    /// Null, or a call on the stack of a function that has not returned: this thread's, or one that waits for this thread.
    static CURRENT: Cell<*const Call<'static>> = const { Cell::new(null()) };
}

/// Makes calls leave notes from now on, and launches of plans that are made from now on. Applies to the whole process,
/// because a crash ends the whole process.
pub fn watch() {
    WATCHED.store(true, Ordering::Relaxed);
}

/// Returns whether calls leave notes.
pub(crate) fn is_watched() -> bool {
    WATCHED.load(Ordering::Relaxed)
}

/// Makes a call with a note of it. A device and node that it does not know are those of the call around it.
pub fn during<R>(call: Call<'_>, body: impl FnOnce() -> R) -> R {
    if !is_watched() {
        return body();
    }
    // SAFETY: the invariant of `CURRENT`: the call that it points at is alive at least until this function returns.
    let outer = unsafe { CURRENT.get().as_ref() }.filter(|outer| outer.plugin == call.plugin);
    let call = match outer {
        Some(outer) => Call {
            device: if call.device.is_empty() { outer.device } else { call.device },
            node: if call.node.is_empty() { outer.node } else { call.node },
            ..call
        },
        None => call,
    };
    noted(Here((&raw const call).cast()), body)
}

/// Makes a call with a note of it, and knows all that it is about.
pub(crate) fn noted_as<R>(call: Call<'_>, body: impl FnOnce() -> R) -> R {
    noted(Here((&raw const call).cast()), body)
}

/// Runs `body` with this thread's note set; the call is alive until it returns.
fn noted<R>(here: Here, body: impl FnOnce() -> R) -> R {
    /// Sets the note back, also when `body` panics.
    struct Back(*const Call<'static>);
    impl Drop for Back {
        fn drop(&mut self) {
            CURRENT.set(self.0);
        }
    }
    let _back = Back(CURRENT.replace(here.0));
    // A handler runs in this thread: the note only has to be written before the call that it is about.
    compiler_fence(Ordering::SeqCst);
    body()
}

/// Returns the call that this thread is in; None if there is none, or notes are off. For signal handlers too: it takes
/// no lock and no memory.
pub fn current<R>(read: impl FnOnce(&Call<'_>) -> R) -> Option<R> {
    let call = CURRENT.try_with(Cell::get).ok().filter(|call| !call.is_null())?;
    // SAFETY: the invariant of `CURRENT`; the reference does not leave `read`.
    Some(read(unsafe { &*call }))
}

/// Returns the call that this thread is in, for threads that help with it.
pub(crate) fn here() -> Here {
    Here(CURRENT.get())
}

/// Runs a part of a call that another thread is in, and waits in until this has returned.
#[inline]
pub(crate) fn within<R>(here: Here, body: impl FnOnce() -> R) -> R {
    if here.0.is_null() { body() } else { noted(here, body) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(function: &'a str, device: &'a str, node: &'a str) -> Call<'a> {
        Call { plugin: "p", function, device, node }
    }

    fn now() -> Option<(String, String, String)> {
        current(|call| (call.function.to_owned(), call.device.to_owned(), call.node.to_owned()))
    }

    #[test]
    fn notes_are_of_the_innermost_call_and_go_with_it() {
        assert_eq!(during(call("prepare", "p:0", "n"), now), None, "notes are off");
        watch();
        let known = |function: &str| Some((function.to_owned(), "p:0".to_owned(), "n".to_owned()));
        during(call("outer", "p:0", "n"), || {
            // Fields that the inner call does not know are the outer one's.
            assert_eq!(during(call("prepare", "", ""), now), known("prepare"));
            assert_eq!(now(), known("outer"));
            let other = Call { plugin: "q", ..call("pack", "", "") };
            assert_eq!(during(other, now), Some(("pack".to_owned(), String::new(), String::new())));
            // A thread that helps has the note as long as it does.
            let here = here();
            std::thread::scope(|scope| {
                let helper = scope.spawn(|| (now(), within(here, now), now()));
                assert_eq!(helper.join().expect("no panic"), (None, known("outer"), None));
            });
            let panicked = std::panic::catch_unwind(|| during(call("bad", "", ""), || panic!("on purpose")));
            assert!(panicked.is_err());
            assert_eq!(now(), known("outer"));
        });
        assert_eq!(now(), None);
    }
}
