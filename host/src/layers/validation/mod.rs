//! The validation layer: checks host and plugin against the ABI's rules on every call, and names the rule.
//!
//! The layer records live objects, lent memory, and the threads inside each call. It reports a broken rule as a
//! [`Violation`] in a [`Report`]. A host's call that would be undefined behaviour in the plugin is stopped: the layer
//! answers INVALID, or repeats DEVICE_LOST or PANICKED if the plugin had reported that. Objects that can no longer be
//! freed are leaked. A plugin's errors are passed on unchanged, except for a callback that comes twice.
//! `docs/layers.md` has the table of checks, and the faults that no layer can detect.
//!
//! The modules: `books` records a plugin's state, `threads` the calls in progress, and `guarded` watches results.
//! `objects`, `streams`, `callbacks`, `copies`, `prepare`, `launches`, `services`, `extensions`, `recordings` and
//! `programs` check the rules, one topic each. `table` turns them into functions of the ABI.
//!
//! # Invariants
//! 1. Opaque handles of host and plugin are never followed. Prepared kernels, callbacks, loops and services are numbers
//!    of the layer's own, which are never reused.
//! 2. The layer holds no lock while it calls the host, the plugin or the application's log.
//!
//! Core and host have no branch for a disabled layer on purpose: a layer that is off is not in the stack.

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

/// Result of a function: the plugin's status, or the layer's own if the call was stopped.
type Answer = Result<Status, Status>;

/// Calls a function of the next table. UNSUPPORTED if the table lacks it; the host then has no such function either.
macro_rules! next {
    ($books:expr, void $slot:ident($($argument:expr),* $(,)?)) => {
        if let Some(function) = $books.next.$slot {
            // SAFETY: B7: `function` is from the plugin's table. Its arguments are the host's, which guarantees the
            // ABI's conditions on them, or places of the layer that live for the call.
            unsafe { function($($argument),*) }
        }
    };
    ($books:expr, $slot:ident($($argument:expr),* $(,)?)) => {
        match $books.next.$slot {
            // SAFETY: B7: `function` is from the plugin's table. Its arguments are the host's, which guarantees the
            // ABI's conditions on them, or places of the layer that live for the call.
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
    /// Also receives each kind of violation, once.
    pub log: Option<LogSink>,
    /// Passes on the host's faulty calls too, if possible: for test suites whose calls the plugin must refuse.
    pub only_watch: bool,
}

/// A plugin behind the layer. No call and no instance of the plugin may outlive this value.
pub struct Wrapped {
    info: &'static PluginInfo,
    plugin: LinkedPlugin,
    report: Report,
    _slot: Slot<Books>,
}

impl Wrapped {
    /// Returns the data that the layer presents in place of the plugin's own. Texts and lists are the plugin's, so it
    /// is readable only as long as the plugin's data.
    pub fn info(&self) -> &'static PluginInfo {
        self.info
    }

    /// Returns the same data as an entry, for code that takes a linked plugin.
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
/// The plugin's library stays loaded as long as the result, and as long as anything uses the result's data.
///
/// # Errors
/// A refusal, if the data cannot be read, as without the layer; if the plugin speaks no minor of this build; or if no
/// slot is free because too many plugins are wrapped.
pub unsafe fn wrap(entry: Entry<'_>, settings: &Settings) -> Result<Wrapped, Refusal> {
    // SAFETY: `info` comes from an entry, and the caller keeps its library loaded as long as the result (# Safety).
    unsafe { wrap_info(entry.query(), settings) }
}

/// Puts the layer in front of a plugin, as [`wrap`] does, given the plugin's data.
///
/// # Safety
/// `info` is NULL or comes from an entry, and stays readable as long as the result.
pub unsafe fn wrap_info(info: *const PluginInfo, settings: &Settings) -> Result<Wrapped, Refusal> {
    // SAFETY: `info` is NULL or comes from an entry, and the caller keeps it readable (# Safety).
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
    // SAFETY: `read_head` refused NULL, so `info` comes from an entry (# Safety); the plugin speaks a minor of this
    // build.
    let about = unsafe { about::read(info) }?;
    // SAFETY: `info` comes from an entry (# Safety), and `about::read` accepted its version and size.
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
    // SAFETY: the functions in `QUERY` are this crate's. They return `shown`, which has this build's types and was
    // leaked above, or NULL once the slot is free.
    let plugin = unsafe { LinkedPlugin::new(name, table::QUERY[slot.idx()]) };
    Ok(Wrapped { info: shown, plugin, report: settings.report.clone(), _slot: slot })
}

/// Returns a number that is unique in this process and never 0.
fn next_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The plugin's own data.
struct Original(*const PluginInfo);

// SAFETY: B1: the plugin never writes its static data; the layer only reads it, to verify that.
unsafe impl Send for Original {}
// SAFETY: the layer only reads the data, and B1 forbids the plugin to write it.
unsafe impl Sync for Original {}

/// The parts of the plugin's description that the checks need.
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
    /// Hash of the plugin's static data at the time of wrapping.
    hash: u64,
    next: PluginTable,
    minors: MinorRange,
    about: About,
    /// True if faulty calls of the host are stopped.
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

    /// Reports that the plugin broke a rule.
    fn plugin(&self, function: &'static str, found: Fault) {
        self.found(Side::Plugin, function, found);
    }

    /// Reports that the plugin broke a rule, as [`Books::plugin`] does.
    fn plugin_broke(&self, function: &'static str, rule: &'static str, words: &str) {
        self.plugin(function, Fault { rule, words: words.to_owned() });
    }

    /// Reports the plugin's fault, if there is one.
    fn check(&self, function: &'static str, found: Result<(), Fault>) {
        if let Err(found) = found {
            self.plugin(function, found);
        }
    }

    /// Reports that the host broke a rule. Returns `answer` as the error if the call is stopped.
    fn stopped(&self, function: &'static str, found: Fault, answer: Status) -> Result<(), Status> {
        self.found(Side::Host, function, found);
        if self.stop { Err(answer) } else { Ok(()) }
    }

    /// Reports that the host broke a rule, in a call that is stopped with INVALID.
    fn host(&self, function: &'static str, found: Fault) -> Result<(), Status> {
        self.stopped(function, found, DEVBAY_STATUS_INVALID)
    }

    /// Reports that the host broke a rule, in a call that goes on.
    fn host_noted(&self, function: &'static str, found: Fault) {
        self.found(Side::Host, function, found);
    }

    /// Returns the checked value if the call goes on. A fault is reported as the host's.
    fn expect<T: Default>(&self, function: &'static str, found: Result<T, Fault>) -> Result<T, Status> {
        found.or_else(|found| self.host(function, found).map(|()| T::default()))
    }

    /// Reads a struct of the host's (B4).
    fn read<T: Growable>(&self, function: &'static str, src: *const T) -> Result<Option<T>, Status> {
        // SAFETY: B4: `src` is an argument of an ABI function: NULL, or the host's struct, which the host keeps for the
        // call.
        let read = unsafe { read_struct(src) };
        self.expect(function, read.map(Some).map_err(|error| Fault { rule: "B4", words: error.to_string() }))
    }

    /// Fails if the host gave no place for a result.
    fn refuse_null<T>(&self, function: &'static str, place: *mut T) -> Result<(), Status> {
        if !place.is_null() {
            return Ok(());
        }
        let words = "expected a pointer, found NULL".to_owned();
        // Stopped in any case, because the layer itself would write to the place.
        let _ = self.host(function, Fault { rule: "B4", words });
        Err(DEVBAY_STATUS_INVALID)
    }

    /// Prepares a place for the plugin's words, checking the host's.
    fn words(&self, function: &'static str, error: *mut ErrorDetail) -> Result<Words, Status> {
        // SAFETY: B4: `error` is an argument of an ABI function: NULL, or the host's struct, which the host keeps for
        // the call.
        match unsafe { Words::of(error) } {
            Ok(words) => Ok(words),
            Err(found) => {
                self.host(function, found)?;
                Err(DEVBAY_STATUS_INVALID)
            }
        }
    }

    /// Copies the plugin's words to the host, and reports faults in them.
    fn settle(&self, function: &'static str, words: Words, status: Status) {
        self.check(function, words.settle(status));
    }

    /// Calls a function that writes a struct and an error's words. Checks both, then copies them to the host.
    fn watched<T: Growable>(
        &self,
        function: &'static str,
        out: *mut T,
        error: *mut ErrorDetail,
        call: impl FnOnce(*mut T, *mut ErrorDetail) -> Status,
    ) -> Result<(Status, T), Status> {
        // SAFETY: B4: `out` is NULL or the host's struct with its size; the host keeps it for the call.
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
            // SAFETY: `Out::of` read this struct and checked its size; the host lends it for writing until the call
            // returns.
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
            self.plugin_broke("query", "B1", "the plugin's static data has changed since it was loaded");
        }
    }

    fn hash_data(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let mut add = |start: *const u8, n: usize| {
            // SAFETY: static data of the plugin's, as long as it says; it was read and checked when it was wrapped.
            hasher.write(unsafe { std::slice::from_raw_parts(start, n) });
        };
        // Hashes only the elements: padding between them and bytes after the last one do not belong to the list.
        let elements = |list: &List| {
            let (start, stride) = (list.ptr.cast::<u8>(), list.stride as usize);
            let n = if start.is_null() { 0 } else { list.len as usize };
            (0..n).map(move |i| (start.wrapping_add(i * stride), stride))
        };
        let info = self.original.0;
        // SAFETY: B1: `info` is static data of the plugin, which `wrap_info` read; its library is loaded while a slot
        // is used.
        let Ok(known) = (unsafe { read_struct(info) }) else {
            return 0;
        };
        add(info.cast(), known.struct_size as usize);
        // SAFETY: B1: the table is static data of the plugin, which `wrap_info` read; its library is loaded meanwhile.
        if let Ok(table) = unsafe { read_struct(known.table) } {
            add(known.table.cast(), table.struct_size as usize);
        }
        for (profile, _) in elements(&known.profiles) {
            add(profile, size_of::<Str>());
        }
        for (element, stride) in elements(&known.kernels).chain(elements(&known.options)) {
            // SAFETY: B1, B4: the element lies in a static list of the plugin that `wrap_info` read, and every element
            // begins with its size.
            let size = unsafe { element.cast::<u32>().read() } as usize;
            // A changed size changes the hash; reading stays within the stride.
            add(element, size.min(stride));
        }
        hasher.finish()
    }
}
