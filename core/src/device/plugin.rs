//! One instance of a plugin: the door through which every call goes.

use super::Device;
use super::describe::DeviceAbout;
use super::replay::ReplayFns;
use crate::about::{About, Refusal, RefusalKind, Threading, must_understand, read_kernel};
use crate::calls::{self, Call};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::kernel::KernelTable;
use crate::services::Services;
use devbay_plugin_api::abi::version::Needed;
use devbay_plugin_api::abi::{self, *};
use devbay_plugin_api::locks::lock;
use std::any::Any;
use std::collections::BTreeSet;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};

/// Bytes that a plugin's error message may have.
const ERROR_TEXT_MAX: usize = 1024;

/// One instance of a plugin.
pub struct Plugin {
    pub(super) about: About,
    pub(super) minor: u32,
    pub(super) instance: NonNull<Instance>,
    poisoned: AtomicBool,
    /// True if its code is not the host's own.
    foreign: AtomicBool,
    /// The extension that records launches, looked up at first use.
    replays: OnceLock<Option<ReplayFns>>,
    /// The extension that wraps native memory and streams, likewise.
    interop: OnceLock<Option<InteropTable>>,
    compiler: OnceLock<Option<CompileTable>>,
    /// Kernels, memory spaces and devices that are not used, a line each with the reason.
    left_out: Mutex<Vec<String>>,
    /// All that it ever listed. Held while a list is asked for.
    seen: Mutex<Seen>,
    pub(super) serial: Option<Mutex<()>>,
    /// Dropped when the instance is destroyed; a poisoned one's threads may still use it.
    services: ManuallyDrop<Box<Services>>,
    /// Keeps the library loaded as long as the instance; likewise.
    library: ManuallyDrop<Option<Arc<dyn Any + Send + Sync>>>,
}

// SAFETY: the instance may be used from any thread as its threading class says, which `call` keeps to
// (invariant 2).
unsafe impl Send for Plugin {}
// SAFETY: the threading class tells whether several threads may call at once, which `call` keeps to (invariant 2).
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Makes an instance that speaks `minor`, with `options` as key and value. `library` is kept until the
    /// instance is gone.
    ///
    /// # Errors
    /// A refusal for an unknown option, or with the words of `create`.
    pub fn create(
        about: About,
        minor: u32,
        services: Box<Services>,
        options: &[(String, String)],
        library: Option<Arc<dyn Any + Send + Sync>>,
    ) -> std::result::Result<Arc<Self>, Refusal> {
        // A plugin that lists its options is not asked about others; one that lists none decides itself.
        for (key, _) in options {
            let is_known =
                key.starts_with(HOST_OPTIONS) || about.options.iter().any(|option| option.key == *key);
            if !about.options.is_empty() && !is_known {
                let known: Vec<_> = about.options.iter().map(|option| option.key.as_str()).collect();
                return Err(Refusal::new(
                    RefusalKind::UnknownOption,
                    format!("plugin {} has no option {key}, known are: {}", about.name, known.join(", ")),
                ));
            }
        }
        let pairs: Vec<KeyValue> = options
            .iter()
            .map(|(key, value)| KeyValue { key: Str::new(key), value: Str::new(value) })
            .collect();
        let desc = CreateDesc {
            abi_minor: minor,
            host: services.api(),
            options: List::new(&pairs),
            ..CreateDesc::empty()
        };
        let create = about.table.create.ok_or_else(|| {
            Refusal::new(RefusalKind::MissingFunction, "required functions are missing: create")
        })?;
        let mut detail = Detail::new();
        let mut instance = null_mut();
        // SAFETY: the plugin's function; all arguments live for the call, and the services until `destroy`.
        let create = || unsafe { create(&desc, &mut instance, detail.as_ptr()) };
        let call = Call { plugin: &about.name, function: "create", device: "", node: "" };
        let status = calls::during(call, create);
        let failed = |text: String| Err(Refusal::new(RefusalKind::CreateFailed, text));
        if status == DEVBAY_STATUS_PANICKED {
            // Threads that it began may still run: services and library stay (B19).
            std::mem::forget((services, library));
            return failed(Error::from_status(status, Phase::Create, &detail.text()).text().to_owned());
        }
        if status != DEVBAY_STATUS_OK {
            return failed(Error::from_status(status, Phase::Create, &detail.text()).text().to_owned());
        }
        let Some(instance) = NonNull::new(instance) else {
            return failed("create succeeded without an instance".to_owned());
        };
        Ok(Arc::new(Self {
            serial: (about.threading == Threading::Serialised).then(|| Mutex::new(())),
            about,
            minor,
            instance,
            poisoned: AtomicBool::new(false),
            foreign: AtomicBool::new(false),
            replays: OnceLock::new(),
            interop: OnceLock::new(),
            compiler: OnceLock::new(),
            left_out: Mutex::default(),
            seen: Mutex::default(),
            services: ManuallyDrop::new(services),
            library: ManuallyDrop::new(library),
        }))
    }

    /// Notes that it came from a library: whether its functions return is not in the program's hand.
    pub fn set_foreign(&self) {
        self.foreign.store(true, Ordering::Relaxed);
    }

    /// Returns whether it came from a library, rather than being linked in.
    pub fn is_foreign(&self) -> bool {
        self.foreign.load(Ordering::Relaxed)
    }

    /// Returns its description of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// Returns the minor that was agreed on.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// Returns the services it was given.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Returns whether it panicked, and is no longer called.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Returns the devices that it lists now, in its order. One that `known` has is that one; one that has come back
    /// after it was lost or taken out is a new one with its old name. A known one that is not listed counts as lost
    /// from now on.
    ///
    /// # Errors
    /// A refusal with the words of `devices`, or for a list that is broken; then known ones stay as they are.
    pub fn devices(
        self: &Arc<Self>,
        known: &[Arc<Device>],
    ) -> std::result::Result<Vec<Arc<Device>>, Refusal> {
        let failed = |e: &Error| Refusal::new(RefusalKind::DevicesFailed, e.text());
        let mut seen = lock(&self.seen);
        // A device may be lost while the plugin answers, and the list then be older than the loss.
        seen.gone
            .extend(known.iter().filter(|device| device.is_lost()).map(|device| device.handle.addr().get()));
        let mut list = List::EMPTY;
        self.call(Phase::ListDevices, |table, error| {
            let devices = table.devices?;
            // SAFETY: the plugin's function with its own instance (invariant 1); `list` is ours.
            Some(unsafe { devices(self.instance.as_ptr(), &mut list, error) })
        })
        .map_err(|e| failed(&e))?;
        // SAFETY: the plugin keeps the list as long as the instance (B9).
        let infos = unsafe { read_growable_list::<DeviceInfo>(&list) }?;
        let mut devices = Vec::new();
        let mut left_out = self.about.left_out.clone();
        let mut taken = BTreeSet::new();
        for (position, raw) in infos.iter().enumerate() {
            let handle = NonNull::new(raw.handle).ok_or_else(|| {
                Refusal::new(RefusalKind::BrokenLayout, format!("device {position} has no handle"))
            })?;
            let was_lost = seen.gone.contains(&handle.addr().get());
            if let Some(device) = known.iter().find(|device| device.handle == handle)
                && !was_lost
            {
                taken.insert(device.index);
                devices.push(Arc::clone(device));
                continue;
            }
            // SAFETY: `raw` was read from that list, which is kept.
            let info = unsafe { DeviceAbout::read(raw) }?;
            let index = number_of(&mut seen.ids, &info.id, &mut taken);
            let name = format!("{}:{index}", self.about.name);
            if was_lost {
                left_out.push(format!("{name} is listed with the handle that it was lost with (B13)"));
                continue;
            }
            if let Some(reason) = info.left_out(raw) {
                left_out.push(format!("{name} {reason}"));
                continue;
            }
            for (i, space) in info.spaces.iter().enumerate().filter(|(_, space)| space.not_understood != 0) {
                let reason = must_understand(space.not_understood);
                left_out.push(format!("memory space {i} of {name} {reason}"));
            }
            if !info.inline {
                crate::about::refuse_missing(&self.about.table, &[Needed::WithTimelines])?;
            }
            let kernels = match self.kernels_of(handle, &mut left_out) {
                Ok(kernels) => kernels,
                Err(reason) => {
                    left_out.push(format!("{name} does not say which kernels it has: {reason}"));
                    continue;
                }
            };
            devices.push(Arc::new(Device {
                name,
                index,
                info,
                handle,
                kernels,
                lost: AtomicBool::new(false),
                bytes_in_use: AtomicU64::new(0),
                bytes_peak: AtomicU64::new(0),
                rates: OnceLock::new(),
                plugin: Arc::clone(self),
            }));
        }
        for gone in known.iter().filter(|device| !devices.iter().any(|listed| Arc::ptr_eq(listed, device))) {
            gone.lost.store(true, Ordering::Relaxed);
            seen.gone.insert(gone.handle.addr().get());
        }
        *lock(&self.left_out) = left_out;
        Ok(devices)
    }

    /// Lists its parts that are not used, a line each: kernels, memory spaces and devices with flags that must be
    /// understood and are not known here, and devices that do not say which kernels they have.
    pub fn left_out(&self) -> Vec<String> {
        lock(&self.left_out).clone()
    }

    /// Returns the kernels that a device lists in the place of the plugin's; None if it has those.
    fn kernels_of(
        &self,
        device: NonNull<abi::Device>,
        left_out: &mut Vec<String>,
    ) -> std::result::Result<Option<KernelTable>, String> {
        if self.about.table.device_kernels.is_none() {
            return Ok(None);
        }
        let mut list = List::EMPTY;
        self.call(Phase::ListKernels, |table, error| {
            let device_kernels = table.device_kernels?;
            // SAFETY: the plugin's function with its own instance and device (invariant 1); `list` is ours.
            Some(unsafe { device_kernels(self.instance.as_ptr(), device.as_ptr(), &mut list, error) })
        })
        .map_err(|e| e.text().to_owned())?;
        // SAFETY: the plugin keeps the list as long as the instance (B9).
        let listed = unsafe { read_growable_list::<DeviceKernel>(&list) }.map_err(|e| e.to_string())?;
        let mut kernels = Vec::with_capacity(listed.len());
        for DeviceKernel { kernel_idx, info, .. } in listed {
            if info.is_null() {
                // A kernel that this host leaves out has had its line.
                kernels.extend(self.about.kernels.get(kernel_idx).cloned());
                continue;
            }
            // SAFETY: NULL was handled; the list's kernels are kept as long as it.
            let info = unsafe { read_struct(info) }.map_err(|e| format!("kernel {kernel_idx}: {e}"))?;
            // SAFETY: `info` was read from the plugin's data, which is kept as long as the instance.
            match unsafe { read_kernel(kernel_idx, &info) }.map_err(|e| e.reason)? {
                Ok(kernel) => kernels.push(kernel),
                Err(line) => left_out.push(line),
            }
        }
        Ok(Some(KernelTable::new(kernels)))
    }

    /// Returns the plugin's table of an extension, or None (B6).
    pub fn extension(&self, id: u32, min_revision: u32) -> Option<NonNull<c_void>> {
        let get = self.about.table.get_extension?;
        if self.is_poisoned() {
            return None;
        }
        let _serial = self.serialise();
        // SAFETY: the plugin's function with its own instance (invariant 1).
        let get = || unsafe { get(self.instance.as_ptr(), id, min_revision) };
        let table = calls::during(self.calling("get_extension"), get);
        NonNull::new(table.cast_mut())
    }

    /// Returns the functions that record and replay launches, if it has them. Not of a serialised plugin, whose lock is
    /// held around launches.
    pub(super) fn replays(&self) -> Option<ReplayFns> {
        if self.is_serialised() {
            return None;
        }
        *self.replays.get_or_init(|| ReplayFns::of(self))
    }

    /// Returns the functions that wrap and hand out native memory and streams; empty slots if it has none.
    pub(super) fn interop(&self) -> InteropTable {
        let table = self.interop.get_or_init(|| {
            let table = self.extension(extension::INTEROP, 1)?;
            // SAFETY: the extension's table, which lives as long as the instance (B6).
            unsafe { read_struct(table.as_ptr().cast_const().cast::<InteropTable>()) }.ok()
        });
        table.unwrap_or_else(InteropTable::empty)
    }

    /// Returns the functions that compile whole programs, if it has them.
    pub(super) fn compiler(&self) -> Option<CompileTable> {
        *self.compiler.get_or_init(|| {
            let table = self.extension(extension::COMPILE, 1)?;
            // SAFETY: the extension's table, which lives as long as the instance (B6).
            unsafe { read_struct(table.as_ptr().cast_const().cast::<CompileTable>()) }.ok()
        })
    }

    /// Returns whether calls of it come one at a time.
    pub fn is_serialised(&self) -> bool {
        self.serial.is_some()
    }

    /// Returns the lock of a serialised plugin; nothing for others.
    pub(crate) fn serialise(&self) -> Option<MutexGuard<'_, ()>> {
        self.serial.as_ref().map(lock)
    }

    /// Calls a function that gives a status; None from `body` means that the slot is empty.
    pub(super) fn call(
        &self,
        phase: Phase,
        body: impl FnOnce(&PluginTable, *mut ErrorDetail) -> Option<Status>,
    ) -> Result<()> {
        self.refuse_poisoned()?;
        let mut detail = Detail::new();
        let status = {
            let _serial = self.serialise();
            calls::during(self.calling(phase.name()), || body(&self.about.table, detail.as_ptr()))
        };
        match status {
            None => {
                Err(Error::new(ErrorKind::UnsupportedOp, format!("plugin {} has no {phase}", self.name())))
            }
            Some(DEVBAY_STATUS_OK) => Ok(()),
            Some(status) => Err(self.failure(status, phase, &detail.text())),
        }
    }

    /// Returns the note of a call.
    pub(super) fn calling<'a>(&'a self, function: &'a str) -> Call<'a> {
        Call { plugin: self.name(), function, device: "", node: "" }
    }

    /// Calls a function that cannot fail: free and destroy. Not on a poisoned plugin.
    pub(super) fn release(&self, body: impl FnOnce(&PluginTable)) {
        if !self.is_poisoned() {
            let _serial = self.serialise();
            calls::during(self.calling("free or destroy"), || body(&self.about.table));
        }
    }

    pub(super) fn refuse_poisoned(&self) -> Result<()> {
        if self.is_poisoned() {
            return Err(Error::new(
                ErrorKind::PluginPoisoned,
                "the plugin panicked before and is not called any more",
            )
            .in_plugin(self.name()));
        }
        Ok(())
    }

    /// An error for a status of this plugin's; remembers a panic.
    pub(crate) fn failure(&self, status: Status, phase: Phase, detail: &str) -> Error {
        if status == DEVBAY_STATUS_PANICKED {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        Error::from_status(status, phase, detail).in_plugin(self.name())
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        let instance = self.instance.as_ptr();
        self.release(|table| {
            if let Some(destroy) = table.destroy {
                // SAFETY: the plugin's function with its own instance, once; everything made from it held
                // this value by reference count and is gone.
                unsafe { destroy(instance) };
            }
        });
        if !self.is_poisoned() {
            // SAFETY: dropped once, here; the instance, which used the services, is destroyed.
            unsafe { ManuallyDrop::drop(&mut self.services) };
            // SAFETY: dropped once, here; no function of the library runs any more, because the instance is destroyed.
            unsafe { ManuallyDrop::drop(&mut self.library) };
        }
    }
}

/// Returns whether lent memory must be leaked after this error: the end of the stream cannot be waited for, so the
/// device may touch the memory at any later time (B24).
pub(crate) fn must_leak(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PluginBroken | ErrorKind::PluginPoisoned)
}

/// The devices that a plugin has ever listed.
#[derive(Default)]
struct Seen {
    /// Their ids; a device's number is its id's place.
    ids: Vec<String>,
    /// Handles of those that were lost or taken out, which no other device ever has.
    gone: BTreeSet<usize>,
}

/// Returns the number of a listed device: its id's place among those ever seen; a new one where another device of the
/// same list has it.
fn number_of(ids: &mut Vec<String>, id: &str, taken: &mut BTreeSet<usize>) -> usize {
    let known = ids.iter().enumerate().position(|(i, known)| known == id && !taken.contains(&i));
    let number = known.unwrap_or_else(|| {
        ids.push(id.to_owned());
        ids.len() - 1
    });
    taken.insert(number);
    number
}

/// A buffer for a plugin's words.
pub struct Detail {
    pub(super) raw: ErrorDetail,
    text: [u8; ERROR_TEXT_MAX],
}

impl Default for Detail {
    fn default() -> Self {
        Self::new()
    }
}

impl Detail {
    /// Creates an empty place.
    pub fn new() -> Self {
        Self { raw: ErrorDetail::empty(), text: [0; ERROR_TEXT_MAX] }
    }

    /// The struct to pass; valid while `self` stays where it is.
    pub fn as_ptr(&mut self) -> *mut ErrorDetail {
        self.raw.text = self.text.as_mut_ptr().cast();
        self.raw.text_capacity = ERROR_TEXT_MAX as u64;
        &mut self.raw
    }

    /// Returns the words that were written.
    pub fn text(&self) -> String {
        let len = (self.raw.text_len as usize).min(ERROR_TEXT_MAX);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}
