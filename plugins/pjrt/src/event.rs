//! Work that is done later: wait for it, ask whether it is done, or be called.

use crate::api::{self, RawError, RawEvent};
use crate::client::Client;
use crate::error::{Error, Result};
use devbay_plugin_api::locks::lock;
use std::cell::Cell;
use std::ffi::c_void;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

/// Something of the library's that ends once, well or with an error.
///
/// Dropping it waits for nothing and cancels nothing.
///
/// # Invariants
/// `raw` is an event of the client's library, destroyed in `drop` alone.
pub struct Event {
    client: Client,
    raw: *mut RawEvent,
}

// SAFETY: an event may be used and destroyed on any thread (the crate's page on threads).
unsafe impl Send for Event {}
// SAFETY: waiting and asking change nothing that the library does not lock.
unsafe impl Sync for Event {}

thread_local! {
    /// True if this thread is in a callback of a library, where a client must not be destroyed.
    static IN_CALLBACK: Cell<bool> = const { Cell::new(false) };
}

/// Returns whether the caller is in a callback of a library.
pub(crate) fn in_callback() -> bool {
    IN_CALLBACK.get()
}

impl Event {
    /// Takes an event that `function` returned.
    ///
    /// # Safety
    /// `raw` is NULL or an event of the client's library that nothing else destroys.
    pub(crate) unsafe fn new(client: &Client, raw: *mut RawEvent, function: &'static str) -> Result<Self> {
        if raw.is_null() {
            return Err(Error::Broken { function, text: "no event" });
        }
        Ok(Self { client: client.clone(), raw })
    }

    /// Waits until it is done.
    ///
    /// **Threads**: any; blocks.
    ///
    /// # Errors
    /// The failure, in the library's words.
    pub fn wait(&self) -> Result<()> {
        let mut args = api::EventAwait { event: self.raw, ..api::EventAwait::ZERO };
        // SAFETY: the event is alive (invariant).
        unsafe { self.client.library().call(&mut args) }
    }

    /// Returns whether it is done, well or not. Never blocks.
    ///
    /// # Errors
    /// The library cannot say.
    pub fn is_ready(&self) -> Result<bool> {
        let mut args = api::EventIsReady { event: self.raw, ..api::EventIsReady::ZERO };
        // SAFETY: the event is alive (invariant).
        unsafe { self.client.library().call(&mut args) }?;
        Ok(args.is_ready != 0)
    }

    /// Returns its outcome: `None` while it is not done. Never blocks.
    ///
    /// # Errors
    /// The library cannot say whether it is done.
    pub fn outcome(&self) -> Result<Option<Result<()>>> {
        if !self.is_ready()? {
            return Ok(None);
        }
        let mut args = api::EventError { event: self.raw, ..api::EventError::ZERO };
        // SAFETY: the event is alive (invariant), and ready as the function asks.
        Ok(Some(unsafe { self.client.library().call(&mut args) }))
    }

    /// Has `callback` called once with how it ended; the event is destroyed after that.
    ///
    /// **Threads**: the callback runs on a thread of the library's, or within this call where the event is done already.
    /// It only notes and wakes: it does not wait for another event. A panic in it ends there. The last reference to a
    /// client may be dropped in it; the client is then destroyed on a thread of its own.
    ///
    /// # Errors
    /// The library refuses; the callback is then dropped and not called.
    pub fn on_ready(self, callback: impl FnOnce(Result<()>) + Send + 'static) -> Result<()> {
        let library = self.client.library();
        let raw = self.raw;
        let waiting = Arc::new(Waiting(Mutex::new(Some((self, Box::new(callback) as Callback)))));
        let argument = Arc::into_raw(Arc::clone(&waiting));
        let mut args = api::EventOnReady {
            event: raw,
            callback: Some(on_ready),
            user_arg: argument.cast_mut().cast(),
            ..api::EventOnReady::ZERO
        };
        // SAFETY: `waiting` owns the event until the callback runs, and the callback owns one count of `waiting`.
        let result = unsafe { library.call(&mut args) };
        if matches!(result, Err(Error::Missing { .. })) {
            // SAFETY: no callback came, so the count given above is still ours.
            drop(unsafe { Arc::from_raw(argument) });
        }
        // After another error a library could still call, which the header does not exclude: that count stays, a few
        // bytes, and its content goes now.
        if result.is_err() {
            drop(waiting.take());
        }
        result
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let mut args = api::EventDestroy { event: self.raw, ..api::EventDestroy::ZERO };
        // SAFETY: the event is alive (invariant) and ends here. An error leaves nothing to do.
        let _ = unsafe { self.client.library().call(&mut args) };
    }
}

type Callback = Box<dyn FnOnce(Result<()>) + Send>;

/// An event and what is called when it is done, until then.
struct Waiting(Mutex<Option<(Event, Callback)>>);

impl Waiting {
    fn take(&self) -> Option<(Event, Callback)> {
        lock(&self.0).take()
    }
}

/// Receives the library's call.
///
/// # Safety
/// `argument` is a counted [`Waiting`], given to the library once; `error` is NULL or an error that is ours to destroy.
unsafe extern "C" fn on_ready(error: *mut RawError, argument: *mut c_void) {
    // SAFETY: the count that `Event::on_ready` gave; the library calls once.
    let waiting = unsafe { Arc::from_raw(argument.cast_const().cast::<Waiting>()) };
    let nested = IN_CALLBACK.replace(true);
    // A panic must not go through the library's frames, and there is no caller to give it to: the hook has printed it.
    let _ = std::panic::catch_unwind(AssertUnwindSafe(|| {
        // An empty cell is one whose registration failed; the caller knows, and the error of a late call stays.
        let Some((event, callback)) = waiting.take() else { return };
        let result = if error.is_null() {
            Ok(())
        } else {
            // SAFETY: the library gave the error to this call.
            Err(unsafe { event.client.library().take_error("PJRT_Event_OnReady", error) })
        };
        // JAX too destroys events in their own callbacks.
        drop(event);
        callback(result);
    }));
    IN_CALLBACK.set(nested);
}
