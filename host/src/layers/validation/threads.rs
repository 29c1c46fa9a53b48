//! Calls in progress: their threads, re-entry, bad news, and thread state that a call must preserve.
//!
//! Each call begins with [`Books::enter`] and ends when its [`Entered`] is dropped. Meanwhile it is recorded in its
//! instance and stream, so that a second call that is not allowed there is detected (B17).

use super::Books;
use super::books::{Fault, Told, fault};
use devbay_core::about::Threading;
use devbay_core::error::status_name;
use devbay_plugin_api::abi::*;
use std::cell::RefCell;

/// The object of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum On {
    /// The plugin as a whole: `create`.
    Plugin,
    /// An instance with all its objects: `destroy`.
    WholeInstance(usize),
    Instance(usize),
    Device(usize),
    /// A buffer being freed.
    Buffer(usize),
    /// A stream, called by its owner; one thread at a time may be that.
    Owner(usize),
    /// A stream, called by any thread.
    Stream(usize),
    /// A kernel on a stream.
    Launch(usize),
    /// A recording being freed.
    Recording(usize),
    /// A compiled program.
    Program(usize),
}

/// A call's function and object.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub function: &'static str,
    pub on: On,
}

/// A call in progress. Dropping it ends the call.
pub(super) struct Entered<'a> {
    books: &'a Books,
    at: At,
    /// Objects that count this call.
    instance: Option<usize>,
    pub device: Option<usize>,
    stream: Option<(usize, usize)>,
    owner: bool,
}

/// Reason why a thread may not call the plugin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Inside {
    /// It is inside a callback of this plugin (B16).
    Callback,
    /// It waits in a parallel loop of this plugin (B2).
    Loop,
    /// It runs a chunk of such a loop.
    Chunk,
}

thread_local! {
    static INSIDE: RefCell<Vec<(usize, Inside)>> = const { RefCell::new(Vec::new()) };
}

/// Marks the thread as inside a callback, loop or chunk until this value is dropped.
pub(super) struct Marked;

/// Marks this thread for the plugin in a slot.
pub(super) fn mark(slot: usize, inside: Inside) -> Marked {
    INSIDE.with_borrow_mut(|list| list.push((slot, inside)));
    Marked
}

/// Returns the innermost mark of this thread for the plugin in a slot.
pub(super) fn inside(slot: usize) -> Option<Inside> {
    INSIDE.with_borrow(|list| list.iter().rev().find(|(of, _)| *of == slot).map(|&(_, inside)| inside))
}

impl Drop for Marked {
    fn drop(&mut self) {
        INSIDE.with_borrow_mut(|list| list.pop());
    }
}

/// Returns whether a function may also be called on a lost device (B13).
fn survives_loss(function: &str) -> bool {
    matches!(
        function,
        "buffer_free"
            | "stream_destroy"
            | "unprepare"
            | "recording_free"
            | "executable_free"
            | "destroy"
            | "devices"
            | "device_lose"
            | "stream_error"
    )
}

/// Objects that count a call.
struct CountedIn {
    instance: Option<usize>,
    device: Option<usize>,
    stream: Option<usize>,
}

impl Books {
    /// Begins a call of the host.
    ///
    /// # Errors
    /// The status to return, if the host may not make the call and is stopped.
    pub fn enter(&self, function: &'static str, on: On) -> Result<Entered<'_>, Status> {
        let at = At { function, on };
        let nothing =
            || Entered { books: self, at, instance: None, device: None, stream: None, owner: false };
        let reentry = match inside(self.slot) {
            None => None,
            Some(Inside::Callback) => Some(("B16", "called from within a callback, which only enqueues")),
            Some(Inside::Loop | Inside::Chunk) => {
                Some(("B2", "called by a thread that waits in parallel_for, which runs chunks alone"))
            }
        };
        if let Some((rule, words)) = reentry {
            self.stopped(function, Fault { rule, words: words.to_owned() }, DEVBAY_STATUS_INVALID)?;
            return Ok(nothing());
        }
        match self.admit(at) {
            Ok(entered) => Ok(entered),
            Err((found, answer)) => {
                self.stopped(function, found, answer)?;
                Ok(nothing())
            }
        }
    }

    /// Finds the objects of a call, and counts it in them.
    fn admit(&self, at: At) -> Result<Entered<'_>, (Fault, Status)> {
        let invalid = |found: Fault| (found, DEVBAY_STATUS_INVALID);
        let mut state = self.state();
        let place = match at.on {
            On::Plugin => CountedIn { instance: None, device: None, stream: None },
            On::Instance(handle) | On::WholeInstance(handle) => {
                state.instance(handle).map_err(invalid)?;
                CountedIn { instance: Some(handle), device: None, stream: None }
            }
            On::Device(handle) => {
                let instance = state.device(handle).map_err(invalid)?.instance;
                CountedIn { instance: Some(instance), device: Some(handle), stream: None }
            }
            On::Buffer(handle) => {
                let device = state.buffer(handle).map_err(invalid)?.device;
                let instance = state.device(device).map(|device| device.instance).ok();
                CountedIn { instance, device: Some(device), stream: None }
            }
            On::Recording(handle) => {
                let recording = state.recording(handle).map_err(invalid)?;
                CountedIn { instance: Some(recording.instance), device: Some(recording.device), stream: None }
            }
            On::Program(handle) => {
                let program = state.program(handle).map_err(invalid)?;
                CountedIn { instance: Some(program.instance), device: program.device, stream: None }
            }
            On::Owner(handle) | On::Stream(handle) | On::Launch(handle) => {
                let stream = state.stream(handle).map_err(invalid)?;
                CountedIn {
                    instance: Some(stream.instance),
                    device: Some(stream.device),
                    stream: Some(handle),
                }
            }
        };
        if let Some(instance) = place.instance.and_then(|handle| state.instances.get(&handle)) {
            if at.function != "stream_error" && instance.panicked.is_some_and(|told| told.binds()) {
                let words = "called after the plugin has panicked, which leaves stream_error alone";
                return Err((Fault { rule: "B19", words: words.to_owned() }, DEVBAY_STATUS_PANICKED));
            }
            let alone = matches!(at.on, On::WholeInstance(_));
            if instance.n_calls > 0 && (alone || self.about.threading == Threading::Serialised) {
                let words = if alone {
                    "called while another call is in the instance"
                } else {
                    "called while another call is in the plugin, which wants one at a time"
                };
                return Err(invalid(Fault { rule: "B17", words: words.to_owned() }));
            }
        }
        if let Some(device) = place.device.and_then(|handle| state.devices.get(&handle))
            && !survives_loss(at.function)
            && device.lost.is_some_and(|told| told.binds())
        {
            let words = "called after the device was lost, which leaves free, destroy and stream_error";
            return Err((Fault { rule: "B13", words: words.to_owned() }, DEVBAY_STATUS_DEVICE_LOST));
        }
        let owner = matches!(at.on, On::Owner(_) | On::Launch(_));
        let mut serial = None;
        if let Some(stream) = place.stream.and_then(|handle| state.streams.get_mut(&handle)) {
            let alone = owner && stream.owned;
            if alone || stream.n_calls > 0 && self.about.threading != Threading::Free {
                let words = if alone {
                    "called while another call of the stream's owner is in it"
                } else {
                    "called while another call is in the stream, of which this plugin wants one at a time"
                };
                return Err(invalid(Fault { rule: "B17", words: words.to_owned() }));
            }
            stream.n_calls += 1;
            stream.owned |= owner;
            serial = Some(stream.serial);
        }
        if let Some(instance) = place.instance.and_then(|handle| state.instances.get_mut(&handle)) {
            instance.n_calls += 1;
        }
        Ok(Entered {
            books: self,
            at,
            instance: place.instance,
            device: place.device,
            stream: place.stream.zip(serial),
            owner,
        })
    }
}

impl Entered<'_> {
    /// Returns the name of the called function.
    pub fn function(&self) -> &'static str {
        self.at.function
    }

    /// Returns the instance of the call.
    pub fn instance(&self) -> Option<usize> {
        self.instance
    }

    /// Calls the plugin, and checks the thread's state afterwards.
    pub fn run<R>(&self, call: impl FnOnce() -> R) -> R {
        let before = float_control();
        let result = call();
        let after = float_control();
        if before != after {
            let words = format!("the floating-point control was {before:#x} and is {after:#x} afterwards");
            self.books.plugin(self.at.function, Fault { rule: "B17", words });
        }
        result
    }

    /// Calls a function that returns a status, as [`Entered::run`] does, and remembers bad news.
    pub fn call(&self, call: impl FnOnce() -> Status) -> Status {
        let status = self.run(call);
        self.books.expect_known(self.at.function, status);
        let mut state = self.books.state();
        match status {
            DEVBAY_STATUS_PANICKED => {
                if let Some(instance) = self.instance.and_then(|handle| state.instances.get_mut(&handle)) {
                    instance.panicked.get_or_insert_with(Told::now);
                }
            }
            DEVBAY_STATUS_DEVICE_LOST => {
                if let Some(device) = self.device.and_then(|handle| state.devices.get_mut(&handle)) {
                    device.lost.get_or_insert_with(Told::now);
                }
            }
            _ => {}
        }
        status
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        let mut state = self.books.state();
        if let Some((handle, serial)) = self.stream
            && let Some(stream) = state.streams.get_mut(&handle).filter(|stream| stream.serial == serial)
        {
            stream.n_calls -= 1;
            stream.owned &= !self.owner;
        }
        if let Some(instance) = self.instance.and_then(|handle| state.instances.get_mut(&handle)) {
            instance.n_calls = instance.n_calls.saturating_sub(1);
        }
    }
}

impl Books {
    /// Reports a status that the header does not define; that is the plugin's fault (B18).
    pub fn expect_known(&self, function: &'static str, status: Status) {
        if status_name(status).starts_with("UNKNOWN, code") {
            let words = format!("expected a status of the header, found {status}");
            self.plugin(function, Fault { rule: "B18", words });
        }
    }

    /// Fails if the stream has no timeline (B14).
    pub fn refuse_inline(&self, stream: usize) -> Result<(), Fault> {
        match self.state().streams.get(&stream) {
            Some(book) if book.inline => {
                fault("B14", "called on a stream of an inline device, which has no timeline")
            }
            _ => Ok(()),
        }
    }
}

/// Returns this thread's mode for rounding and subnormal numbers; 0 if it is unknown.
#[cfg(target_arch = "x86_64")]
pub(super) fn float_control() -> u32 {
    /// All bits of MXCSR except the six flags that arithmetic sets.
    const CONTROL: u32 = 0xffc0;
    let mut register = 0u32;
    // SAFETY: `stmxcsr` stores four bytes, and `register` is a local variable of four bytes.
    unsafe {
        std::arch::asm!("stmxcsr [{}]", in(reg) &raw mut register, options(nostack, preserves_flags));
    }
    register & CONTROL
}

/// Returns this thread's mode for rounding and subnormal numbers; 0 if it is unknown.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn float_control() -> u32 {
    0
}
