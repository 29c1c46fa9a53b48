//! The validation layer: checks host and plugin against the ABI's rules on every call, and names the rule.
//!
//! It stands between the two and keeps books of live objects, lent memory and the threads in each call. A broken rule is
//! a [`Violation`] in a [`Report`]. A host's call that would be undefined behaviour in the plugin is stopped: the layer
//! answers INVALID (DEVICE_LOST and PANICKED where that was the news), and objects that cannot be freed any more are
//! leaked. Errors of a plugin are passed on unchanged, except a callback that comes twice. `docs/layers.md` has the table
//! of checks, and of faults that no layer can see.
//!
//! The parts: `books` is the memory, `threads` who is inside, `guarded` results under observation; `objects`,
//! `streams`, `callbacks`, `copies`, `prepare`, `launches`, `services`, `extensions`, `recordings` and `programs` are the
//! rules, a topic each; `table` makes functions of the ABI of them.
//!
//! # Invariants
//! 1. Nothing that the host or the plugin gives as an opaque handle is followed. Prepared kernels, callbacks, loops and
//!    services are numbers of the layer's own, which are never used twice.
//! 2. No lock of the layer is held while host, plugin or the application's log is called.
//!
//! Left out on purpose: a branch in core or host for when it is off. Then it is not in the stack, and that is all.

mod books;
mod callbacks;
mod copies;
mod extensions;
mod guarded;
mod launches;
mod objects;
mod prepare;
mod programs;
mod recordings;
mod report;
mod services;
mod streams;
mod table;
mod threads;

pub use report::{Report, Side, Violation};

use super::slots::{Slot, Slots};
use crate::negotiate::Entry;
use books::{Fault, Register};
use devbay_core::about::{self, Refusal, RefusalKind, Threading};
use devbay_core::kernel::KernelTable;
use devbay_core::services::LogSink;
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::*;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use guarded::{Out, Words, hand_on};
use std::hash::{DefaultHasher, Hasher};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

static SLOTS: Slots<Books> = Slots::new();

/// Result of a function: the plugin's status, or the layer's where the call was stopped.
type Answer = Result<Status, Status>;

/// A function of the next table; UNSUPPORTED where there is none, which the host is not offered either.
macro_rules! next {
    ($books:expr, void $slot:ident($($argument:expr),* $(,)?)) => {
        if let Some(function) = $books.next.$slot {
            // SAFETY: the plugin's function, on what the host gave the layer's, or places of the layer's that live for the
            // call; the host promises what the ABI says of them.
            unsafe { function($($argument),*) }
        }
    };
    ($books:expr, $slot:ident($($argument:expr),* $(,)?)) => {
        match $books.next.$slot {
            // SAFETY: the plugin's function, on what the host gave the layer's, or places of the layer's that live for the
            // call; the host promises what the ABI says of them.
            Some(function) => unsafe { function($($argument),*) },
            None => DEVBAY_STATUS_UNSUPPORTED,
        }
    };
}
use next;

/// Settings for watching a plugin.
#[derive(Clone, Default)]
pub struct Settings {
    /// Receiver of violations.
    pub report: Report,
    /// Who is told of each kind once, besides.
    pub log: Option<LogSink>,
    /// Passes on what the host does wrong too, as far as there is anything to pass it to: for suites that try a plugin out
    /// with calls that it must refuse.
    pub only_watch: bool,
}

/// A plugin behind the layer, until this is dropped: nobody may call it any more then, nor hold an instance of it.
pub struct Wrapped {
    info: &'static PluginInfo,
    plugin: LinkedPlugin,
    report: Report,
    _slot: Slot<Books>,
}

impl Wrapped {
    /// Returns the data that the layer shows in place of the plugin's own. It is readable as long as the plugin's: texts and
    /// lists are the plugin's own.
    pub fn info(&self) -> &'static PluginInfo {
        self.info
    }

    /// The same as an entry, for whoever takes a linked plugin.
    pub fn plugin(&self) -> LinkedPlugin {
        self.plugin
    }

    /// Returns the violations found.
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Puts the layer in front of a plugin.
///
/// # Safety
/// A library stays loaded as long as the result, and as long as anybody uses what it shows.
///
/// # Errors
/// A refusal for data that cannot be read, as without the layer; for a plugin that speaks no minor of this build's; and
/// where so many plugins are wrapped that no slot is left.
pub unsafe fn wrap(entry: Entry<'_>, settings: &Settings) -> Result<Wrapped, Refusal> {
    // SAFETY: what a plugin's entry returned; the library stays loaded as the caller promises.
    unsafe { wrap_info(entry.query(), settings) }
}

/// As [`wrap`], of the data itself.
///
/// # Safety
/// `info` is NULL or what an entry returned, and stays as long as the result.
pub unsafe fn wrap_info(info: *const PluginInfo, settings: &Settings) -> Result<Wrapped, Refusal> {
    // SAFETY: the caller's promise, here and below.
    let head = unsafe { about::read_head(info) }?;
    let minors = MinorRange {
        min: head.minors.min.max(MinorRange::CURRENT.min),
        max: head.minors.max.min(MinorRange::CURRENT.max),
    };
    if minors.min > minors.max {
        return Err(Refusal::new(
            RefusalKind::NoCommonVersion,
            format!("the plugin speaks ABI {}, the validation layer {}", head.minors, MinorRange::CURRENT),
        ));
    }
    // SAFETY: as above; the plugin speaks a minor of this build's.
    let about = unsafe { about::read(info) }?;
    // SAFETY: as above.
    let mut own = unsafe { read_struct(info) }?;
    own.struct_size = own.struct_size.min(size_of::<PluginInfo>() as u32);
    own.abi_minor_min = minors.min;
    own.abi_minor_max = minors.max;
    let name: &'static str = Box::leak(about.name.clone().into_boxed_str());
    let make = |slot: usize| {
        let table: &'static PluginTable = Box::leak(Box::new(table::in_place_of(slot, &about.table)));
        own.table = table;
        let shown: &'static PluginInfo = Box::leak(Box::new(own));
        Books {
            slot,
            shown,
            original: Original(info),
            hash: 0,
            next: about.table,
            minors,
            about: About {
                name: name.to_owned(),
                threading: about.threading,
                kernels: about.kernels.clone(),
            },
            stop: !settings.only_watch,
            log: settings.log.clone(),
            report: settings.report.clone(),
            state: Mutex::default(),
            services: Mutex::default(),
        }
        .with_hash()
    };
    let Some(slot) = SLOTS.take(make) else {
        return Err(Refusal::new(
            RefusalKind::NoLayerSlot,
            format!("the validation layer is in front of {} plugins already", super::slots::N_SLOTS),
        ));
    };
    let shown = SLOTS.get(slot.idx()).map(|books| books.shown);
    let Some(shown) = shown else {
        return Err(Refusal::new(RefusalKind::NoLayerSlot, "the slot of the validation layer is gone"));
    };
    // SAFETY: the entry gives data that is never freed, made from this header's types.
    let plugin = unsafe { LinkedPlugin::new(name, table::QUERY[slot.idx()]) };
    Ok(Wrapped { info: shown, plugin, report: settings.report.clone(), _slot: slot })
}

/// Returns a number that nothing else in the process ever has; never 0.
fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The plugin's own data.
struct Original(*const PluginInfo);

// SAFETY: static data of the plugin's, which nobody writes (B1); whether that is so is what it is read for.
unsafe impl Send for Original {}
// SAFETY: as for Send.
unsafe impl Sync for Original {}

/// The plugin's description of itself, as far as checks need it.
struct About {
    name: String,
    threading: Threading,
    kernels: KernelTable,
}

/// One plugin behind the layer.
struct Books {
    slot: usize,
    shown: &'static PluginInfo,
    original: Original,
    /// Of the plugin's static data, when it was wrapped.
    hash: u64,
    next: PluginTable,
    minors: MinorRange,
    about: About,
    /// True if wrong calls of the host are stopped.
    stop: bool,
    log: Option<LogSink>,
    report: Report,
    state: Mutex<Register>,
    services: Mutex<services::Services>,
}

impl Books {
    fn with_hash(mut self) -> Self {
        self.hash = self.hash_data();
        self
    }

    fn info(&self) -> *const PluginInfo {
        self.shown
    }

    fn state(&self) -> MutexGuard<'_, Register> {
        lock(&self.state)
    }

    fn found(&self, by: Side, function: &'static str, found: Fault) {
        let Fault { rule, words } = found;
        let plugin = self.about.name.clone();
        self.report.add(Violation { rule, by, plugin, function, words, count: 1 }, self.log.as_ref());
    }

    /// The plugin broke a rule.
    fn plugin(&self, function: &'static str, found: Fault) {
        self.found(Side::Plugin, function, found);
    }

    /// As [`Books::plugin`].
    fn plugin_broke(&self, function: &'static str, rule: &'static str, words: &str) {
        self.plugin(function, Fault { rule, words: words.to_owned() });
    }

    /// Reports a fault of the plugin's, if there is one.
    fn check(&self, function: &'static str, found: Result<(), Fault>) {
        if let Err(found) = found {
            self.plugin(function, found);
        }
    }

    /// The host broke a rule, and is told `answer` if it is stopped.
    fn stopped(&self, function: &'static str, found: Fault, answer: Status) -> Result<(), Status> {
        self.found(Side::Host, function, found);
        if self.stop { Err(answer) } else { Ok(()) }
    }

    /// The host broke a rule in a call that is stopped.
    fn host(&self, function: &'static str, found: Fault) -> Result<(), Status> {
        self.stopped(function, found, DEVBAY_STATUS_INVALID)
    }

    /// The host broke a rule in a call that goes on.
    fn host_noted(&self, function: &'static str, found: Fault) {
        self.found(Side::Host, function, found);
    }

    /// Returns the result of checking the host's arguments, if the call goes on.
    fn expect<T: Default>(&self, function: &'static str, found: Result<T, Fault>) -> Result<T, Status> {
        found.or_else(|found| self.host(function, found).map(|()| T::default()))
    }

    /// Reads a struct of the host's (B4).
    fn read<T: Growable>(&self, function: &'static str, src: *const T) -> Result<Option<T>, Status> {
        // SAFETY: an argument of a function of the ABI: NULL, or a struct that lives for the call.
        let read = unsafe { read_struct(src) };
        self.expect(function, read.map(Some).map_err(|error| Fault { rule: "B4", words: error.to_string() }))
    }

    /// The host's place for a result, which there must be.
    fn refuse_null<T>(&self, function: &'static str, place: *mut T) -> Result<(), Status> {
        if !place.is_null() {
            return Ok(());
        }
        let words = "expected a pointer, found NULL".to_owned();
        // Stopped in any case: the layer itself would follow it.
        let _ = self.host(function, Fault { rule: "B4", words });
        Err(DEVBAY_STATUS_INVALID)
    }

    /// The host's place for a plugin's words.
    fn words(&self, function: &'static str, error: *mut ErrorDetail) -> Result<Words, Status> {
        // SAFETY: an argument of a function of the ABI: NULL, or a struct that lives for the call.
        match unsafe { Words::of(error) } {
            Ok(words) => Ok(words),
            Err(found) => {
                self.host(function, found)?;
                Err(DEVBAY_STATUS_INVALID)
            }
        }
    }

    /// Hands the plugin's words on.
    fn settle(&self, function: &'static str, words: Words, status: Status) {
        self.check(function, words.settle(status));
    }

    /// Calls what writes a struct and an error's words, watches both, and hands them on.
    fn watched<T: Growable>(
        &self,
        function: &'static str,
        out: *mut T,
        error: *mut ErrorDetail,
        call: impl FnOnce(*mut T, *mut ErrorDetail) -> Status,
    ) -> Result<(Status, T), Status> {
        // SAFETY: the host's struct, alive for the call.
        let guarded = unsafe { Out::of(out.cast_const()) };
        let Some(mut guarded) = self.expect(function, guarded.map(Some))? else {
            return Err(DEVBAY_STATUS_INVALID);
        };
        let mut words = self.words(function, error)?;
        let status = call(guarded.as_ptr(), words.as_ptr());
        self.settle(function, words, status);
        let (made, found) = guarded.read();
        self.check(function, found);
        if guarded.is_written() {
            // SAFETY: the host's struct, whose size was read.
            unsafe { hand_on(out, &made) };
        }
        if status != DEVBAY_STATUS_OK && !guarded.is_untouched_or_zero() {
            self.plugin_broke(function, "B9", "it failed and wrote a result");
        }
        Ok((status, made))
    }

    /// Checks that the data that a plugin's entry returned was not written (B1).
    fn expect_same_data(&self) {
        if self.hash_data() != self.hash {
            self.plugin_broke(
                "query",
                "B1",
                "the plugin's static data has changed since it was loaded",
            );
        }
    }

    fn hash_data(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut add = |start: *const u8, n: usize| {
            // SAFETY: static data of the plugin's, as long as it says; it was read and checked when it was wrapped.
            hasher.write(unsafe { std::slice::from_raw_parts(start, n) });
        };
        // Elements alone: what is between them, and behind the last, is not the list's.
        let elements = |list: &List| {
            let (start, stride) = (list.ptr.cast::<u8>(), list.stride as usize);
            let n = if start.is_null() { 0 } else { list.len as usize };
            (0..n).map(move |i| (start.wrapping_add(i * stride), stride))
        };
        let info = self.original.0;
        // SAFETY: as above.
        let Ok(known) = (unsafe { read_struct(info) }) else {
            return 0;
        };
        add(info.cast(), known.struct_size as usize);
        // SAFETY: as above.
        if let Ok(table) = unsafe { read_struct(known.table) } {
            add(known.table.cast(), table.struct_size as usize);
        }
        for (profile, _) in elements(&known.profiles) {
            add(profile, size_of::<Str>());
        }
        for (element, stride) in elements(&known.kernels).chain(elements(&known.options)) {
            // SAFETY: as above; elements that grow begin with their size.
            let size = unsafe { element.cast::<u32>().read() } as usize;
            // A size that was changed is seen, and is not followed.
            add(element, size.min(stride));
        }
        hasher.finish()
    }
}
