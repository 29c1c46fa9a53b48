//! Tools of cases: a plugin's raw table, and handles that give themselves back.
//!
//! Core's `Device` and `Stream` hide what a plugin does wrong, so cases call the table itself. What is here
//! only spares them the arguments: every method is one call and hands its status on, or turns it into a
//! failure with the plugin's words.
//!
//! # Invariants
//! 1. Handles are used while their instance lives: the borrows say so.
//! 2. A case declares what it lends (buffers, host memory) before the stream that it lends it to, so that the
//!    stream goes first and waits for its work (B24).

mod bytes;
mod device;
mod stream;

pub(crate) use bytes::{AnySize, difference, pattern};
pub(crate) use devbay_host::internals::core::error::status_name;
pub(crate) use device::{Buffer, Device, bytes_type, is_plain};
pub(crate) use stream::{Lent, Stream, empty_copy};

use crate::cases::numerics::OpName;
use crate::desk::Desk;
use crate::subject::Subject;
use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_host::internals::core;
use devbay_host::internals::core::about::{About, Threading};
use devbay_host::internals::negotiate::{Agreement, Entry, negotiate};
use devbay_host::{Refusal, Runtime};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{self, *};
use std::marker::PhantomData;
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Barrier, OnceLock};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

/// Time that a case waits for something that has to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Slots of the host's loops, unless a case wants others.
pub(crate) const SLOTS: u32 = 4;

/// Runs `work` for each item in a thread of its own, and gives the results in the items' order. The threads begin together. All
/// are joined, also when one fails.
pub(crate) fn at_once<T: Send, R: Send>(
    items: impl ExactSizeIterator<Item = T>,
    work: impl Fn(T) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let barrier = Barrier::new(items.len());
    std::thread::scope(|scope| {
        let (barrier, work) = (&barrier, &work);
        let start = |item| {
            scope.spawn(move || {
                barrier.wait();
                work(item)
            })
        };
        let threads: Vec<_> = items.map(start).collect();
        let join = |thread: ScopedJoinHandle<'_, Outcome<R>>| {
            thread.join().unwrap_or_else(|_| failed("a thread of the suite panicked"))
        };
        let outcomes: Vec<Outcome<R>> = threads.into_iter().map(join).collect();
        outcomes.into_iter().collect()
    })
}

/// A loaded plugin, and how a case is to use it.
pub(crate) struct Rig<'a> {
    pub entry: Entry<'a>,
    pub options: &'a [(String, String)],
    /// True if this process runs nothing else, so that its threads may be counted.
    pub own_process: bool,
    /// A layer stands before the plugin, and keeps memory of its own.
    pub layered: bool,
    /// The op that the case is about, if it is one of a list.
    pub op: Option<OpName>,
    /// Measurements of a case, for a person.
    pub note: OnceLock<String>,
    agreement: Result<Agreement, Refusal>,
}

/// A place for a plugin's words.
pub(crate) struct Detail {
    pub raw: ErrorDetail,
    bytes: Vec<u8>,
}

impl Detail {
    pub(crate) fn new() -> Self {
        let mut bytes = vec![0u8; 512];
        let raw = ErrorDetail {
            text: bytes.as_mut_ptr().cast(),
            text_capacity: bytes.len() as u64,
            ..ErrorDetail::empty()
        };
        Self { raw, bytes }
    }

    pub(crate) fn text(&self) -> String {
        let len = (self.raw.text_len as usize).min(self.bytes.len());
        String::from_utf8_lossy(&self.bytes[..len]).into_owned()
    }

    /// Returns the status with the words.
    pub(crate) fn describe(&self, status: Status) -> String {
        match self.text() {
            text if text.is_empty() => status_name(status),
            text => format!("{} ({text})", status_name(status)),
        }
    }
}

impl<'a> Rig<'a> {
    pub(crate) fn new(entry: Entry<'a>, options: &'a [(String, String)], own_process: bool) -> Self {
        Self {
            agreement: negotiate(entry, MinorRange::CURRENT),
            entry,
            options,
            own_process,
            layered: false,
            op: None,
            note: OnceLock::new(),
        }
    }

    /// Asks the entry.
    pub(crate) fn query(&self) -> *const PluginInfo {
        self.entry.query()
    }

    /// Returns the plugin's description of itself and the agreed minor, or why it cannot be used.
    pub(crate) fn agreement(&self) -> Result<&Agreement, &Refusal> {
        self.agreement.as_ref()
    }

    pub(crate) fn about(&self) -> Outcome<&About> {
        match &self.agreement {
            Ok(agreement) => Ok(&agreement.about),
            Err(refusal) => failed(refusal.reason.clone()),
        }
    }

    pub(crate) fn table(&self) -> Outcome<&PluginTable> {
        Ok(&self.about()?.table)
    }

    /// Returns the function in an optional slot.
    pub(crate) fn optional<F: Copy>(&self, slot: Option<F>, name: &str) -> Outcome<F> {
        match slot {
            Some(function) => Ok(function),
            None => not_run(Why::NotOffered, format!("the plugin has no {name}")),
        }
    }

    /// Goes on only if functions may be called from several threads at once.
    pub(crate) fn allows_threads(&self) -> Outcome {
        if self.about()?.threading == Threading::Serialised {
            return not_run(Why::Threading, "the plugin supports only one call at a time");
        }
        Ok(())
    }

    /// Returns whether a stream's `reached` and its like may be called while its owner enqueues.
    pub(crate) fn is_free_threaded(&self) -> Outcome<bool> {
        Ok(self.about()?.threading == Threading::Free)
    }

    /// Returns the plugin's devices as an application opens them, for cases about results.
    pub(crate) fn devices(&self) -> Outcome<(Runtime, Vec<Arc<core::device::Device>>)> {
        let subject = match self.entry {
            Entry::Library(library) => Subject::Library(library.path().to_owned()),
            Entry::Linked(linked) => Subject::Linked(*linked),
        };
        subject.devices(self.options)
    }

    /// Opens an instance as most cases want it.
    pub(crate) fn open(&self) -> Outcome<Opened<'_>> {
        self.open_with(SLOTS)
    }

    /// Opens an instance with the options of the command line.
    pub(crate) fn open_with(&self, n_slots: u32) -> Outcome<Opened<'_>> {
        let pairs: Vec<(&str, &str)> = self.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let mut detail = Detail::new();
        match self.create(Desk::open(n_slots), None, &pairs, Some(&mut detail))? {
            Ok(opened) => Ok(opened),
            Err(status) => failed(format!("create returned {}", detail.describe(status))),
        }
    }

    /// Calls `create`: an instance, or the status.
    pub(crate) fn create(
        &self,
        desk: &'static Desk,
        minor: Option<u32>,
        options: &[(&str, &str)],
        detail: Option<&mut Detail>,
    ) -> Outcome<Result<Opened<'_>, Status>> {
        let agreed = match &self.agreement {
            Ok(agreement) => agreement.minor,
            Err(refusal) => return failed(refusal.reason.clone()),
        };
        let pairs: Vec<KeyValue> = options
            .iter()
            .map(|(key, value)| KeyValue { key: Str::new(key), value: Str::new(value) })
            .collect();
        let desc = CreateDesc {
            abi_minor: minor.unwrap_or(agreed),
            host: desk.api(),
            options: List::new(&pairs),
            ..CreateDesc::empty()
        };
        self.create_raw(&desc, desk, detail.map_or(null_mut(), |detail| &mut detail.raw))
    }

    /// Calls `create` with a description that may be of any size.
    pub(crate) fn create_raw(
        &self,
        desc: *const CreateDesc,
        desk: &'static Desk,
        error: *mut ErrorDetail,
    ) -> Outcome<Result<Opened<'_>, Status>> {
        let table = self.table()?;
        let Some(create) = table.create else {
            return failed("the plugin has no create");
        };
        let untouched = NonNull::<abi::Instance>::dangling().as_ptr();
        let mut out = untouched;
        // SAFETY: the plugin's function; the description lives for the call, the desk for good.
        let status = unsafe { create(desc, &mut out, error) };
        if status != DEVBAY_STATUS_OK {
            if out != untouched {
                return failed(format!("create returned {}, but wrote an instance", status_name(status)));
            }
            return Ok(Err(status));
        }
        match NonNull::new(out) {
            Some(handle) if out != untouched => {
                Ok(Ok(Opened { rig: PhantomData, table: *table, handle, desk }))
            }
            _ => failed("create succeeded without an instance"),
        }
    }

    /// Runs a body on every device of a fresh instance.
    pub(crate) fn each_device(&self, mut body: impl FnMut(&Device<'_>) -> Outcome) -> Outcome {
        let opened = self.open()?;
        for device in opened.devices()? {
            body(&device)?;
        }
        Ok(())
    }

    /// As [`Rig::each_device`], on those with a timeline.
    pub(crate) fn each_timeline(&self, mut body: impl FnMut(&Device<'_>) -> Outcome) -> Outcome {
        let opened = self.open()?;
        let devices: Vec<_> = opened.devices()?.into_iter().filter(|device| !device.inline()).collect();
        if devices.is_empty() {
            return not_run(Why::Inline, "every device is inline, so there is no timeline");
        }
        devices.iter().try_for_each(&mut body)
    }
}

/// An instance.
pub(crate) struct Opened<'a> {
    rig: PhantomData<&'a ()>,
    pub table: PluginTable,
    pub handle: NonNull<abi::Instance>,
    pub desk: &'static Desk,
}

// SAFETY: an instance may be used from any thread as the plugin's threading class says, and cases ask for the
// class before they do (`allows_threads`).
unsafe impl Send for Opened<'_> {}
// SAFETY: cases ask for the plugin's threading class before they use several threads at once.
unsafe impl Sync for Opened<'_> {}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.table.destroy {
            // SAFETY: `create` made the instance, and it is given back once, here; the objects made from it borrowed it
            // and are gone.
            unsafe { destroy(self.handle.as_ptr()) };
        }
        self.desk.close();
    }
}

impl<'a> Opened<'a> {
    /// Returns the plugin's list of devices, as it is, which the plugin owns as long as the instance.
    pub(crate) fn device_list(&self) -> Outcome<List> {
        let mut list = List::EMPTY;
        let mut detail = Detail::new();
        let Some(devices) = self.table.devices else {
            return failed("the plugin has no devices function");
        };
        // SAFETY: the plugin's function with its own instance; `list` is ours.
        let status = unsafe { devices(self.handle.as_ptr(), &mut list, &mut detail.raw) };
        if status != DEVBAY_STATUS_OK {
            return failed(format!("devices returned {}", detail.describe(status)));
        }
        Ok(list)
    }

    /// Returns the current content of such a list.
    pub(crate) fn read_devices(&self, list: &List) -> Outcome<Vec<DeviceInfo>> {
        // SAFETY: the plugin keeps the list as long as the instance.
        match unsafe { read_growable_list::<DeviceInfo>(list) } {
            Ok(infos) => Ok(infos),
            Err(error) => failed(format!("invalid list of devices: {error}")),
        }
    }

    /// Returns the devices that it lists now.
    pub(crate) fn device_infos(&self) -> Outcome<Vec<DeviceInfo>> {
        self.read_devices(&self.device_list()?)
    }

    /// Its devices; a plugin without any has nothing to test.
    pub(crate) fn devices(&self) -> Outcome<Vec<Device<'_>>> {
        let infos = self.device_infos()?;
        if infos.is_empty() {
            return not_run(Why::NoDevice, "the plugin has no device on this machine");
        }
        infos.into_iter().enumerate().map(|(index, info)| Device::read(self, index, info)).collect()
    }
}
