//! A plugin's table behind safe methods, one per function.
//!
//! [`Plugin`] is one instance, [`Device`] one of its units; [`Buffer`], [`Stream`] and [`PreparedKernel`]
//! are what a device made, and give themselves back when dropped. Whatever the plugin answers becomes a
//! [`Result`] with the plugin's own words. A plugin that panicked is poisoned: it is called no more, and what
//! it made leaks, with what it was given for its lifetime (B19). On a device that is lost only free and
//! destroy are called (B13). In both cases `stream_error` is asked once more, for the words.
//!
//! # Invariants
//! 1. Handles are used with the table of the plugin that made them, while its instance lives: everything
//!    here holds the instance by reference count.
//! 2. With [`Threading::Serialised`] every call holds the plugin's lock. `stream_host_wait` would hold it for
//!    as long as the work takes, so such a plugin is polled instead.
//! 3. A [`Stream`] is used by one thread at a time: it is not `Sync`. That is the lock of
//!    [`Threading::PerStream`].

use crate::about::{About, Refusal, RefusalKind, Threading};
use crate::error::{Error, ErrorKind, Result};
use crate::services::Services;
use crate::tensor::{AlignedBytes, DType, Dim, Tensor, TensorType};
use devbay_plugin_api::abi::version::Needed;
use devbay_plugin_api::abi::{self, *};
use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// From this size on an allocation is compared with what is available first.
const ASKED_BYTES_MIN: u64 = 64 << 20;

/// Bytes that a plugin's error message may have.
const ERROR_TEXT_MAX: usize = 1024;

/// One instance of a plugin.
pub struct Plugin {
    about: About,
    minor: u32,
    instance: NonNull<Instance>,
    poisoned: AtomicBool,
    serial: Option<Mutex<()>>,
    /// Dropped when the instance is destroyed; a poisoned one's threads may still use it.
    services: ManuallyDrop<Box<Services>>,
    /// Keeps the library loaded as long as the instance; likewise.
    library: ManuallyDrop<Option<Arc<dyn Any + Send + Sync>>>,
}

// SAFETY: the instance may be used from any thread as its threading class says, which `call` keeps to
// (invariant 2).
unsafe impl Send for Plugin {}
// SAFETY: as for Send.
unsafe impl Sync for Plugin {}

impl Plugin {
    /// Makes an instance that speaks `minor`, with `options` as key and value. `library` is kept until the
    /// instance is gone.
    ///
    /// # Errors
    /// A refusal for an unknown option, or with what `create` says.
    pub fn create(
        about: About,
        minor: u32,
        services: Box<Services>,
        options: &[(String, String)],
        library: Option<Arc<dyn Any + Send + Sync>>,
    ) -> std::result::Result<Arc<Self>, Refusal> {
        // A plugin that lists its options is not asked about others; one that lists none decides itself.
        for (key, _) in options {
            if !about.options.is_empty() && !about.options.iter().any(|option| option.key == *key) {
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
        let status = unsafe { create(&desc, &mut instance, detail.as_ptr()) };
        let failed = |text: String| Err(Refusal::new(RefusalKind::CreateFailed, text));
        if status == DEVBAY_STATUS_PANICKED {
            // What it had begun may still run: services and library stay (B19).
            std::mem::forget((services, library));
            return failed(Error::from_status(status, "create", &detail.text()).text().to_owned());
        }
        if status != DEVBAY_STATUS_OK {
            return failed(Error::from_status(status, "create", &detail.text()).text().to_owned());
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
            services: ManuallyDrop::new(services),
            library: ManuallyDrop::new(library),
        }))
    }

    /// What it says of itself.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.about.name
    }

    /// The minor that was agreed on.
    pub fn minor(&self) -> u32 {
        self.minor
    }

    /// The services it was given.
    pub fn services(&self) -> &Services {
        &self.services
    }

    /// Whether it panicked, and is called no more.
    pub fn is_poisoned(&self) -> bool {
        self.poisoned.load(Ordering::Relaxed)
    }

    /// Its devices, in its order.
    ///
    /// # Errors
    /// A refusal with what `devices` says, or for a list that is broken.
    pub fn devices(self: &Arc<Self>) -> std::result::Result<Vec<Arc<Device>>, Refusal> {
        let failed = |e: &Error| Refusal::new(RefusalKind::DevicesFailed, e.text());
        let mut list = List::EMPTY;
        self.call("devices", |table, error| {
            let devices = table.devices?;
            // SAFETY: the plugin's function with its own instance (invariant 1); `list` is ours.
            Some(unsafe { devices(self.instance.as_ptr(), &mut list, error) })
        })
        .map_err(|e| failed(&e))?;
        // SAFETY: the plugin's list, which lives as long as the instance.
        let infos = unsafe { read_growable_list::<DeviceInfo>(&list) }?;
        let mut devices = Vec::new();
        for (index, raw) in infos.iter().enumerate() {
            // SAFETY: as above.
            let info = unsafe { DeviceAbout::read(raw) }?;
            let handle = NonNull::new(raw.handle).ok_or_else(|| {
                Refusal::new(RefusalKind::BrokenLayout, format!("device {index} has no handle"))
            })?;
            if !info.inline {
                crate::about::refuse_missing(&self.about.table, &[Needed::WithTimelines])?;
            }
            devices.push(Arc::new(Device {
                name: format!("{}:{index}", self.about.name),
                index,
                info,
                handle,
                lost: AtomicBool::new(false),
                bytes_in_use: AtomicU64::new(0),
                bytes_peak: AtomicU64::new(0),
                plugin: Arc::clone(self),
            }));
        }
        Ok(devices)
    }

    /// The plugin's table of an extension, or None (B6).
    pub fn extension(&self, id: u32, min_revision: u32) -> Option<NonNull<c_void>> {
        let get = self.about.table.get_extension?;
        if self.is_poisoned() {
            return None;
        }
        let _serial = self.serialise();
        // SAFETY: the plugin's function with its own instance (invariant 1).
        let table = unsafe { get(self.instance.as_ptr(), id, min_revision) };
        NonNull::new(table.cast_mut())
    }

    /// The lock of a serialised plugin; nothing for others.
    pub(crate) fn serialise(&self) -> Option<MutexGuard<'_, ()>> {
        let lock = self.serial.as_ref()?;
        Some(lock.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Calls a function that gives a status; None from `body` means that the slot is empty.
    fn call(
        &self,
        what: &str,
        body: impl FnOnce(&PluginTable, *mut ErrorDetail) -> Option<Status>,
    ) -> Result<()> {
        self.refuse_poisoned()?;
        let mut detail = Detail::new();
        let status = {
            let _serial = self.serialise();
            body(&self.about.table, detail.as_ptr())
        };
        match status {
            None => {
                Err(Error::new(ErrorKind::UnsupportedOp, format!("plugin {} has no {what}", self.name())))
            }
            Some(DEVBAY_STATUS_OK) => Ok(()),
            Some(status) => Err(self.failure(status, what, &detail.text())),
        }
    }

    /// Calls a function that cannot fail: free and destroy. Not on a poisoned plugin.
    fn release(&self, body: impl FnOnce(&PluginTable)) {
        if !self.is_poisoned() {
            let _serial = self.serialise();
            body(&self.about.table);
        }
    }

    fn refuse_poisoned(&self) -> Result<()> {
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
    pub(crate) fn failure(&self, status: Status, what: &str, detail: &str) -> Error {
        if status == DEVBAY_STATUS_PANICKED {
            self.poisoned.store(true, Ordering::Relaxed);
        }
        Error::from_status(status, what, detail).in_plugin(self.name())
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
            // SAFETY: dropped once, here, and used by nobody: the instance is destroyed.
            unsafe { ManuallyDrop::drop(&mut self.services) };
            // SAFETY: as above.
            unsafe { ManuallyDrop::drop(&mut self.library) };
        }
    }
}

/// Whether, after this error, nobody can say when the device stops touching what it was lent, so that it must be
/// leaked (ABI-NOTES 1): the end of the stream cannot be waited for.
pub(crate) fn must_leak(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::PluginBroken | ErrorKind::PluginPoisoned)
}

/// A buffer for a plugin's words.
struct Detail {
    raw: ErrorDetail,
    text: [u8; ERROR_TEXT_MAX],
}

impl Detail {
    fn new() -> Self {
        Self { raw: ErrorDetail::empty(), text: [0; ERROR_TEXT_MAX] }
    }

    /// The struct to pass; valid while `self` stays where it is.
    fn as_ptr(&mut self) -> *mut ErrorDetail {
        self.raw.text = self.text.as_mut_ptr().cast();
        self.raw.text_capacity = ERROR_TEXT_MAX as u64;
        &mut self.raw
    }

    fn text(&self) -> String {
        let len = (self.raw.text_len as usize).min(ERROR_TEXT_MAX);
        String::from_utf8_lossy(&self.text[..len]).into_owned()
    }
}

/// A memory space of a device, as the plugin describes it.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// `DEVBAY_SPACE_DEVICE`, `_PINNED_HOST`, `_UNIFIED` or an unknown code.
    pub kind: u32,
    /// The host may read and write at a buffer's base.
    pub host_visible: bool,
    /// A buffer cannot be divided.
    pub no_suballoc: bool,
    /// A buffer is written once and is never a kernel's output.
    pub write_once: bool,
    /// `buffer_alloc` needs the tensor's type.
    pub typed: bool,
    /// Memory in all; 0 if unknown.
    pub bytes_total: u64,
    /// Largest allocation; 0 for no limit.
    pub alloc_max: u64,
    /// Alignment of allocations.
    pub alloc_align: u64,
    /// Alignment of operands.
    pub bind_align: u64,
    /// Largest operand; 0 for no limit.
    pub bind_max: u64,
    /// Alignment of copies.
    pub copy_align: u64,
    /// Copies are multiples of this.
    pub copy_granule: u64,
}

/// A device, as the plugin describes it.
#[derive(Clone, Debug)]
pub struct DeviceAbout {
    /// `DEVBAY_DEVICE_KIND_*`.
    pub kind: u32,
    /// Name that stays the same from run to run.
    pub id: String,
    /// The product's name.
    pub product: String,
    /// Driver underneath.
    pub driver: String,
    /// Work is complete when the call that enqueues it returns.
    pub inline: bool,
    /// Enqueuing may block.
    pub may_block: bool,
    /// References may name host memory.
    pub host_refs: bool,
    /// Streams that may exist at once; 0 for no limit.
    pub streams_max: u32,
    /// References of one launch; 0 for no limit.
    pub refs_max: u32,
    /// Memory spaces; operands live in the first.
    pub spaces: Vec<Space>,
    /// The same for one chip under two plugins; zero if unknown.
    pub physical_id: [u8; 16],
}

impl DeviceAbout {
    /// # Safety
    /// `raw` was read from a plugin's list of devices.
    unsafe fn read(raw: &DeviceInfo) -> std::result::Result<Self, Refusal> {
        // SAFETY: the caller's promise, as for the texts below.
        let spaces = unsafe { read_growable_list::<MemorySpace>(&raw.spaces) }?;
        if spaces.is_empty() {
            return Err(Refusal::new(RefusalKind::DevicesFailed, "a device has no memory space"));
        }
        Ok(Self {
            kind: raw.kind,
            // SAFETY: as above.
            id: unsafe { crate::about::text(&raw.id) }?,
            // SAFETY: as above.
            product: unsafe { crate::about::text(&raw.name) }?,
            // SAFETY: as above.
            driver: unsafe { crate::about::text(&raw.driver) }?,
            inline: raw.flags & DEVBAY_DEVICE_INLINE != 0,
            may_block: raw.flags & DEVBAY_DEVICE_ENQUEUE_MAY_BLOCK != 0,
            host_refs: raw.flags & DEVBAY_DEVICE_HOST_REFS != 0,
            streams_max: raw.streams_max,
            refs_max: raw.refs_max,
            spaces: spaces.iter().map(Space::read).collect::<std::result::Result<_, _>>()?,
            physical_id: raw.physical_id,
        })
    }

    /// The kind's name.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            DEVBAY_DEVICE_KIND_CPU => "cpu",
            DEVBAY_DEVICE_KIND_GPU => "gpu",
            DEVBAY_DEVICE_KIND_NPU => "npu",
            DEVBAY_DEVICE_KIND_TPU => "tpu",
            DEVBAY_DEVICE_KIND_DSP => "dsp",
            DEVBAY_DEVICE_KIND_FPGA => "fpga",
            _ => "other",
        }
    }
}

impl Space {
    fn read(raw: &MemorySpace) -> std::result::Result<Self, Refusal> {
        let power = |what: &str, value: u64| match value {
            0 => Ok(1),
            value if value.is_power_of_two() => Ok(value),
            value => Err(Refusal::new(
                RefusalKind::DevicesFailed,
                format!("a memory space says {what} {value}, expected a power of two"),
            )),
        };
        Ok(Self {
            kind: raw.kind,
            host_visible: raw.flags & DEVBAY_SPACE_HOST_VISIBLE != 0,
            no_suballoc: raw.flags & DEVBAY_SPACE_NO_SUBALLOC != 0,
            write_once: raw.flags & DEVBAY_SPACE_WRITE_ONCE != 0,
            typed: raw.flags & DEVBAY_SPACE_TYPED != 0,
            bytes_total: raw.bytes_total,
            alloc_max: raw.alloc_max,
            alloc_align: power("alloc_align", raw.alloc_align)?,
            bind_align: power("bind_align", raw.bind_align)?,
            bind_max: raw.bind_max,
            copy_align: power("copy_align", raw.copy_align)?,
            copy_granule: raw.copy_granule.max(1),
        })
    }
}

/// One device.
pub struct Device {
    name: String,
    index: usize,
    info: DeviceAbout,
    handle: NonNull<abi::Device>,
    lost: AtomicBool,
    bytes_in_use: AtomicU64,
    bytes_peak: AtomicU64,
    plugin: Arc<Plugin>,
}

// SAFETY: the handle is used as the plugin's threading class says (`Plugin::call`).
unsafe impl Send for Device {}
// SAFETY: as for Send.
unsafe impl Sync for Device {}

/// What a plugin finds invalid about a node is the model's fault, not the application's.
fn of_node(error: Error) -> Error {
    error.with_kind_instead(ErrorKind::InvalidArgument, ErrorKind::InvalidModel)
}

impl Device {
    /// `PLUGIN:INDEX`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its position in the plugin's list.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Name that stays the same from run to run: `PLUGIN/ID`.
    pub fn stable_id(&self) -> String {
        format!("{}/{}", self.plugin.name(), self.info.id)
    }

    /// What the plugin says of it.
    pub fn about(&self) -> &DeviceAbout {
        &self.info
    }

    /// The plugin instance.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }

    /// Where operands of kernels live.
    pub fn space(&self) -> &Space {
        &self.info.spaces[0]
    }

    /// Whether the device was lost.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Bytes allocated through the host now, and at most.
    pub fn bytes_in_use(&self) -> (u64, u64) {
        (self.bytes_in_use.load(Ordering::Relaxed), self.bytes_peak.load(Ordering::Relaxed))
    }

    /// Refuses calls on a device that is lost or whose plugin is poisoned.
    ///
    /// # Errors
    /// [`ErrorKind::DeviceLost`], [`ErrorKind::PluginPoisoned`].
    #[inline]
    pub(crate) fn check_usable(&self) -> Result<()> {
        if self.is_lost() || self.plugin.is_poisoned() {
            return Err(self.unusable());
        }
        Ok(())
    }

    #[cold]
    fn unusable(&self) -> Error {
        let poisoned = self.plugin.refuse_poisoned().err();
        let error = poisoned.unwrap_or_else(|| Error::new(ErrorKind::DeviceLost, "the device is lost"));
        error.in_plugin(self.plugin.name()).on_device(&self.name)
    }

    /// Adds the device to an error of its plugin's, and remembers a loss.
    pub(crate) fn failed(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::DeviceLost {
            self.lost.store(true, Ordering::Relaxed);
        }
        error.on_device(&self.name)
    }

    fn call(
        &self,
        what: &str,
        body: impl FnOnce(&PluginTable, *mut ErrorDetail) -> Option<Status>,
    ) -> Result<()> {
        self.check_usable()?;
        self.plugin.call(what, body).map_err(|e| self.failed(e))
    }

    /// The most bytes that can be wanted at once; None if the device does not say.
    pub fn bytes_max(&self) -> Option<u64> {
        let space = self.space();
        [space.alloc_max, space.bytes_total].into_iter().filter(|&limit| limit > 0).min()
    }

    /// Allocates memory in the space of operands, content undefined.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] beyond the space's limits or when the plugin says so; what else it says.
    pub fn alloc(self: &Arc<Self>, size: usize, usage: u32) -> Result<Buffer> {
        let space = self.space();
        let granule = space.copy_granule;
        let padded = (size as u64).checked_next_multiple_of(granule).unwrap_or(u64::MAX);
        if let Some(limit) = self.bytes_max().filter(|&limit| padded > limit) {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("{padded} bytes are wanted at once, the device has {limit}"),
            )
            .on_device(&self.name));
        }
        // Systems that overcommit give memory that they do not have, and end the process later.
        if padded >= ASKED_BYTES_MIN
            && let Some(available) = self.bytes_available().filter(|&available| padded > available)
        {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("{padded} bytes are wanted at once, the device has {available} available"),
            )
            .on_device(&self.name));
        }
        let desc = AllocDesc {
            space_idx: 0,
            size_bytes: padded,
            align: space.alloc_align.max(space.bind_align),
            usage,
            ..AllocDesc::empty()
        };
        let mut out = Allocation::empty();
        self.call("buffer_alloc", |table, error| {
            let alloc = table.buffer_alloc?;
            // SAFETY: the plugin's function with its own device; the structs are ours for the call.
            Some(unsafe { alloc(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let Some(handle) = NonNull::new(out.buffer) else {
            return Err(self.broken("buffer_alloc succeeded without a buffer (B9)"));
        };
        let in_use = self.bytes_in_use.fetch_add(padded, Ordering::Relaxed) + padded;
        self.bytes_peak.fetch_max(in_use, Ordering::Relaxed);
        let buffer = Buffer { device: Arc::clone(self), handle, base: out.base, size: padded as usize };
        if out.size_bytes < padded {
            return Err(self.broken("buffer_alloc gave fewer bytes than were asked for"));
        }
        Ok(buffer)
    }

    fn broken(&self, text: &str) -> Error {
        Error::new(ErrorKind::PluginBroken, text).in_plugin(self.plugin.name()).on_device(&self.name)
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn create_stream(self: &Arc<Self>, label: &str) -> Result<Stream> {
        let desc = StreamDesc { label: Str::new(label), ..StreamDesc::empty() };
        let mut out = null_mut();
        self.call("stream_create", |table, error| {
            let create = table.stream_create?;
            // SAFETY: the plugin's function with its own device; the structs are ours for the call.
            Some(unsafe { create(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let Some(handle) = NonNull::new(out) else {
            return Err(self.broken("stream_create succeeded without a stream (B9)"));
        };
        Ok(Stream { device: Arc::clone(self), handle, signalled: 0 })
    }

    /// Prepares a kernel for a node's attributes, types and constants (B21).
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the kernel does not do this; what else the plugin says.
    pub fn prepare(self: &Arc<Self>, request: &PrepareRequest<'_>) -> Result<PreparedKernel> {
        let mut out = abi::Prepared::empty();
        request
            .with_abi(self.handle.as_ptr(), |desc| {
                self.call("prepare", |table, error| {
                    let prepare = table.prepare?;
                    // SAFETY: the plugin's function with its own instance; the structs are ours for the call.
                    Some(unsafe { prepare(self.plugin.instance.as_ptr(), desc, &mut out, error) })
                })
            })
            .map_err(of_node)?;
        let Some(launch) = out.launch else {
            return Err(self.broken("prepare succeeded without a launch function (B21)"));
        };
        // Given back from here on, whatever else is wrong with it.
        let mut kernel = PreparedKernel { device: Arc::clone(self), raw: out, launch, packs: Vec::new() };
        kernel.packs = self.read_packs(&out, request)?;
        if !(out.workspace_align == 0 || out.workspace_align.is_power_of_two()) {
            return Err(self.broken("prepare asked for a workspace whose alignment is no power of two"));
        }
        Ok(kernel)
    }

    /// The constants that a kernel wants packed (since 0.2), checked against what it was given.
    fn read_packs(&self, prepared: &abi::Prepared, request: &PrepareRequest<'_>) -> Result<Vec<Pack>> {
        if self.plugin.minor < 2 {
            return Ok(Vec::new());
        }
        // SAFETY: the plugin's list, alive until `unprepare`.
        let raw = unsafe { read_growable_list::<ConstantPack>(&prepared.packs) }
            .map_err(|e| self.broken(&format!("prepare gave a broken list of packed constants: {e}")))?;
        raw.iter()
            .map(|pack| {
                let constant = request.inputs.get(pack.input_idx as usize);
                if !matches!(constant, Some(Some((_, Some(_))))) {
                    return Err(self.broken(&format!(
                        "prepare wants input {} packed, which is no constant",
                        pack.input_idx
                    )));
                }
                if !pack.align.is_power_of_two() || pack.size_bytes > isize::MAX as u64 {
                    return Err(
                        self.broken("prepare wants a constant packed to an impossible size or alignment")
                    );
                }
                Ok(Pack {
                    input_idx: pack.input_idx as usize,
                    layout_id: pack.layout_id,
                    size: pack.size_bytes as usize,
                    align: pack.align as usize,
                })
            })
            .collect()
    }

    /// Bytes that an allocation could still get, if the plugin says.
    pub fn bytes_available(&self) -> Option<u64> {
        if self.plugin.minor < 2 {
            return None;
        }
        let mut out = MemoryInfo::empty();
        let known = self.call("memory_info", |table, error| {
            let memory_info = table.memory_info?;
            // SAFETY: the plugin's function with its own device; the struct is ours for the call.
            Some(unsafe { memory_info(self.handle.as_ptr(), 0, &mut out, error) })
        });
        known.ok().map(|()| out.bytes_available)
    }

    /// Type of one output of an op that ONNX does not define (since 0.2).
    ///
    /// # Errors
    /// What the plugin says, also that it has no such function.
    pub fn output_type(
        self: &Arc<Self>,
        request: &PrepareRequest<'_>,
        output_idx: usize,
    ) -> Result<TensorType> {
        const RANK_MAX: usize = 64;
        let mut dtype = DType { code: 0, bits: 0, lanes: 0 };
        let mut shape = [0i64; RANK_MAX];
        let mut rank = 0u32;
        request
            .with_abi(self.handle.as_ptr(), |desc| {
                self.call("kernel_shape", |table, error| {
                    let kernel_shape = table.kernel_shape.filter(|_| self.plugin.minor >= 2)?;
                    // SAFETY: the plugin's function with its own instance; the places are ours for the call, and
                    // `shape` has room for `RANK_MAX` extents.
                    Some(unsafe {
                        kernel_shape(
                            self.plugin.instance.as_ptr(),
                            desc,
                            output_idx as u32,
                            &mut dtype,
                            shape.as_mut_ptr(),
                            RANK_MAX as u32,
                            &mut rank,
                            error,
                        )
                    })
                })
            })
            .map_err(of_node)?;
        let dims = shape
            .get(..rank as usize)
            .ok_or_else(|| self.broken("kernel_shape gave a rank above the most"))?;
        let dims =
            dims.iter().map(|&extent| usize::try_from(extent).map_or_else(|_| Dim::unknown(), Dim::Known));
        Ok(TensorType { dtype, shape: Some(dims.collect()) })
    }

    /// What one launch would cost; None if the plugin cannot say.
    pub fn cost(self: &Arc<Self>, request: &PrepareRequest<'_>) -> Option<KernelCost> {
        let mut out = KernelCost::empty();
        let result = request.with_abi(self.handle.as_ptr(), |desc| {
            self.call("kernel_cost", |table, error| {
                let cost = table.kernel_cost?;
                // SAFETY: the plugin's function with its own instance; the structs are ours for the call.
                Some(unsafe { cost(self.plugin.instance.as_ptr(), desc, &mut out, error) })
            })
        });
        result.ok().map(|()| out)
    }
}

/// What a kernel is asked to do.
pub struct PrepareRequest<'a> {
    /// Position in the plugin's list of kernels.
    pub kernel_idx: u32,
    /// Attributes.
    pub attrs: &'a [(Arc<str>, crate::program::AttrValue)],
    /// Operands: type, and content if it is constant; None where an optional one is absent.
    pub inputs: &'a [Option<(TensorType, Option<Tensor>)>],
    /// Types of the results.
    pub outputs: &'a [Option<TensorType>],
    /// Name of the node.
    pub label: &'a str,
}

impl PrepareRequest<'_> {
    /// Builds the ABI's form of the request and passes it on; it is gone afterwards.
    fn with_abi<R>(&self, device: *mut abi::Device, body: impl FnOnce(&PrepareDesc) -> R) -> R {
        use crate::program::AttrValue;
        let shapes: Vec<Vec<i64>> = self
            .inputs
            .iter()
            .map(|input| input.as_ref().map(|(ty, _)| ty))
            .chain(self.outputs.iter().map(Option::as_ref))
            .map(|ty| ty.map_or_else(Vec::new, abi_shape))
            .collect();
        let mut tensors: Vec<abi::Tensor> = Vec::with_capacity(shapes.len());
        let operands =
            self.inputs.iter().map(|input| input.as_ref().map(|(ty, constant)| (ty, constant.as_ref())));
        let results = self.outputs.iter().map(|output| output.as_ref().map(|ty| (ty, None)));
        for (operand, shape) in operands.chain(results).zip(&shapes) {
            tensors.push(match operand {
                Some((ty, constant)) => abi_tensor(ty, shape, constant),
                None => abi::Tensor { flags: DEVBAY_TENSOR_ABSENT, ..abi::Tensor::empty() },
            });
        }
        let (inputs, outputs) = tensors.split_at(self.inputs.len());

        // What attributes point to, made first so that nothing moves afterwards.
        let floats: Vec<Vec<f64>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Floats(values) => values.iter().map(|&v| f64::from(v)).collect(),
                _ => Vec::new(),
            })
            .collect();
        let strings: Vec<Vec<Str>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Strings(values) => values.iter().map(|v| Str::new(v)).collect(),
                _ => Vec::new(),
            })
            .collect();
        let attr_types: Vec<Option<(TensorType, Vec<i64>)>> = self
            .attrs
            .iter()
            .map(|(_, value)| match value {
                AttrValue::Tensor(tensor) => {
                    let ty = tensor.tensor_type();
                    let shape = abi_shape(&ty);
                    Some((ty, shape))
                }
                _ => None,
            })
            .collect();
        let attr_tensors: Vec<abi::Tensor> = self
            .attrs
            .iter()
            .zip(&attr_types)
            .map(|((_, value), ty)| match (value, ty) {
                (AttrValue::Tensor(tensor), Some((ty, shape))) => abi_tensor(ty, shape, Some(tensor)),
                _ => abi::Tensor::empty(),
            })
            .collect();
        let attrs: Vec<Attr> = self
            .attrs
            .iter()
            .enumerate()
            .map(|(i, (name, value))| {
                let mut attr = Attr { name: Str::new(name), ..Attr::empty() };
                match value {
                    AttrValue::Int(value) => (attr.kind, attr.i) = (DEVBAY_ATTR_INT, *value),
                    AttrValue::Float(value) => (attr.kind, attr.f) = (DEVBAY_ATTR_FLOAT, f64::from(*value)),
                    AttrValue::String(value) => (attr.kind, attr.s) = (DEVBAY_ATTR_STRING, Str::new(value)),
                    AttrValue::Ints(values) => (attr.kind, attr.list) = (DEVBAY_ATTR_INTS, List::new(values)),
                    AttrValue::Floats(_) => {
                        (attr.kind, attr.list) = (DEVBAY_ATTR_FLOATS, List::new(&floats[i]))
                    }
                    AttrValue::Strings(_) => {
                        (attr.kind, attr.list) = (DEVBAY_ATTR_STRINGS, List::new(&strings[i]));
                    }
                    AttrValue::Tensor(_) => {
                        (attr.kind, attr.tensor) = (DEVBAY_ATTR_TENSOR, &raw const attr_tensors[i]);
                    }
                }
                attr
            })
            .collect();
        body(&PrepareDesc {
            kernel_idx: self.kernel_idx,
            device,
            attrs: List::new(&attrs),
            inputs: List::new(inputs),
            outputs: List::new(outputs),
            numerics: DEVBAY_NUMERICS_STRICT,
            label: Str::new(self.label),
            ..PrepareDesc::empty()
        })
    }
}

fn abi_shape(ty: &TensorType) -> Vec<i64> {
    let dims = ty.shape.iter().flatten();
    dims.map(|dim| dim.known().map_or(-1, |extent| extent as i64)).collect()
}

fn abi_tensor(ty: &TensorType, shape: &[i64], constant: Option<&Tensor>) -> abi::Tensor {
    debug_assert!(ty.shape.iter().flatten().all(|dim| matches!(dim, Dim::Known(_))));
    let mut raw = abi::Tensor {
        rank: shape.len() as u32,
        dtype: ty.dtype,
        shape: shape.as_ptr(),
        ..abi::Tensor::empty()
    };
    if let Some(tensor) = constant {
        raw.flags = DEVBAY_TENSOR_CONSTANT;
        raw.constant = tensor.bytes().as_ptr().cast();
        raw.constant_bytes = tensor.bytes().len() as u64;
    }
    raw
}

/// An allocation; freed when dropped.
pub struct Buffer {
    device: Arc<Device>,
    handle: NonNull<abi::Buffer>,
    base: u64,
    size: usize,
}

// SAFETY: the handle is used as the plugin's threading class says; who works in the memory is ordered by
// streams.
unsafe impl Send for Buffer {}
// SAFETY: as for Send.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// A reference to a range of it.
    ///
    /// # Panics
    /// If the range is not within the buffer: a bug in the planner.
    pub fn reference(&self, offset: usize, length: usize) -> BufferRef {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.size), "a range of a buffer");
        BufferRef {
            buffer: self.handle.as_ptr(),
            addr: if self.base == 0 { 0 } else { self.base + offset as u64 },
            offset: offset as u64,
            length: length as u64,
        }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.device.bytes_in_use.fetch_sub(self.size as u64, Ordering::Relaxed);
        self.device.plugin.release(|table| {
            if let Some(free) = table.buffer_free {
                // SAFETY: the plugin's function with its own buffer, once; whoever used it has waited for
                // its point (B9).
                unsafe { free(self.handle.as_ptr()) };
            }
        });
    }
}

/// A constant input that a kernel wants in a layout of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pack {
    /// Which input.
    pub input_idx: usize,
    /// Names the layout in full.
    pub layout_id: u64,
    /// Bytes of the packed constant.
    pub size: usize,
    /// Its alignment.
    pub align: usize,
}

/// A prepared kernel; given back when dropped.
pub struct PreparedKernel {
    device: Arc<Device>,
    raw: abi::Prepared,
    launch: LaunchFn,
    packs: Vec<Pack>,
}

// SAFETY: what `prepare` returns is immutable and launched by many threads at once (B21).
unsafe impl Send for PreparedKernel {}
// SAFETY: as for Send.
unsafe impl Sync for PreparedKernel {}

impl PreparedKernel {
    /// The function to launch it with.
    pub fn launch_fn(&self) -> LaunchFn {
        self.launch
    }

    /// The first argument of the function.
    pub fn state(&self) -> *const c_void {
        self.raw.state
    }

    /// Constant inputs that come packed.
    pub fn packs(&self) -> &[Pack] {
        &self.packs
    }

    /// Packs a constant as this kernel asked for it.
    ///
    /// # Errors
    /// Out of memory, or what the plugin says.
    pub fn pack(&self, pack: &Pack, tensor: &Tensor) -> Result<AlignedBytes> {
        let mut packed = AlignedBytes::zeroed_aligned(pack.size, pack.align)?;
        let ty = tensor.tensor_type();
        let shape = abi_shape(&ty);
        let src = abi_tensor(&ty, &shape, Some(tensor));
        let plugin = &self.device.plugin;
        self.device.call("pack", |table, error| {
            let pack_fn = table.pack?;
            let dst = packed.as_mut_slice().as_mut_ptr().cast();
            // SAFETY: the plugin's function with what its `prepare` made; `dst` is zeroed memory of the size and
            // alignment that it asked for.
            Some(unsafe {
                pack_fn(plugin.instance.as_ptr(), &self.raw, pack.input_idx as u32, &src, dst, error)
            })
        })?;
        Ok(packed)
    }

    /// Scratch memory that each launch needs: bytes and alignment.
    pub fn workspace(&self) -> (usize, usize) {
        (self.raw.workspace_bytes as usize, (self.raw.workspace_align as usize).max(1))
    }
}

impl Drop for PreparedKernel {
    fn drop(&mut self) {
        let plugin = &self.device.plugin;
        plugin.release(|table| {
            if let Some(unprepare) = table.unprepare {
                // SAFETY: the plugin's function with what its `prepare` made, once; no launch is in flight,
                // because who launched has waited for its point (B9).
                unsafe { unprepare(plugin.instance.as_ptr(), &mut self.raw) };
            }
        });
    }
}

/// A stream; destroyed when dropped, which waits for its work. One run at a time owns it.
pub struct Stream {
    device: Arc<Device>,
    handle: NonNull<abi::Stream>,
    /// Last value that was signalled with success.
    signalled: u64,
}

// SAFETY: functions of a stream that need one caller at a time take `&mut self`.
unsafe impl Send for Stream {}

impl Stream {
    /// The handle, for the launch loop.
    pub fn handle(&self) -> *mut abi::Stream {
        self.handle.as_ptr()
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Enqueues a copy of host memory into a buffer.
    ///
    /// # Safety
    /// `src` points to `dst.length` bytes that stay readable until a point signalled after this is reported.
    ///
    /// # Errors
    /// What the plugin says; then nothing was enqueued.
    pub unsafe fn copy_in(&mut self, src: *const u8, dst: BufferRef) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst,
            host_src: src.cast(),
            size_bytes: dst.length,
            ..CopyDesc::empty()
        })
    }

    /// Enqueues a copy of a buffer into host memory.
    ///
    /// # Safety
    /// `dst` points to `src.length` bytes that stay writable, and are not read, until a point signalled after
    /// this is reported.
    ///
    /// # Errors
    /// What the plugin says; then nothing was enqueued.
    pub unsafe fn copy_out(&mut self, src: BufferRef, dst: *mut u8) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src,
            host_dst: dst.cast(),
            size_bytes: src.length,
            ..CopyDesc::empty()
        })
    }

    /// Enqueues a copy within the device.
    ///
    /// # Errors
    /// What the plugin says; then nothing was enqueued.
    pub fn copy_within(&mut self, src: BufferRef, dst: BufferRef) -> Result<()> {
        self.copy(&CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src,
            dst,
            size_bytes: src.length.min(dst.length),
            ..CopyDesc::empty()
        })
    }

    fn copy(&mut self, desc: &CopyDesc) -> Result<()> {
        if desc.size_bytes == 0 {
            return Ok(());
        }
        self.device.check_usable()?;
        let Some(copy) = self.device.plugin.about.table.copy else {
            return Err(self.device.broken("the plugin has no copy"));
        };
        let status = {
            let _serial = self.device.plugin.serialise();
            // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`); what it names
            // is lent as the callers promise.
            unsafe { copy(self.handle.as_ptr(), desc) }
        };
        self.check(status, "copy")
    }

    /// An error for a status that a function of this stream returned.
    ///
    /// # Errors
    /// If the status is not 0.
    pub fn check(&self, status: Status, what: &str) -> Result<()> {
        if status == DEVBAY_STATUS_OK {
            return Ok(());
        }
        Err(self.failure(status, what))
    }

    #[cold]
    fn failure(&self, status: Status, what: &str) -> Error {
        let plugin = &self.device.plugin;
        let mut detail = Detail::new();
        if let Some(stream_error) = plugin.about.table.stream_error {
            let _serial = plugin.serialise();
            // SAFETY: the plugin's function with its own stream; the struct is ours for the call.
            unsafe { stream_error(self.handle.as_ptr(), detail.as_ptr()) };
        }
        // The detail may be that of an older failure.
        let text = if detail.raw.status == status { detail.text() } else { String::new() };
        let error = self.device.failed(plugin.failure(status, what, &text));
        // What a launch finds invalid came with the run's data: an index out of range, a length below 0.
        error.with_kind_instead(ErrorKind::InvalidArgument, ErrorKind::InvalidInput)
    }

    /// Waits until everything enqueued is done, or fails. A no-op on inline devices.
    ///
    /// # Errors
    /// The stream's failure, in the plugin's words. [`ErrorKind::PluginBroken`] if it never comes to rest
    /// (see `limit`) and [`ErrorKind::PluginPoisoned`] if it cannot be asked, after which what was lent must
    /// be leaked; after any other error the stream's end waits for the device.
    pub fn finish(&mut self, limit: Duration) -> Result<()> {
        if self.device.info.inline {
            return Ok(());
        }
        let value = self.signal()?;
        self.wait_reached(value, limit)
    }

    /// Enqueues the next point and gives its value (B12).
    ///
    /// # Errors
    /// What the plugin says.
    pub fn signal(&mut self) -> Result<u64> {
        self.device.check_usable()?;
        let Some(signal) = self.device.plugin.about.table.stream_signal else {
            return Err(self.device.broken("a device with timelines has no stream_signal"));
        };
        let value = self.signalled + 1;
        let status = {
            let _serial = self.device.plugin.serialise();
            // SAFETY: the plugin's function with its own stream, one at a time (`&mut self`).
            unsafe { signal(self.handle.as_ptr(), value) }
        };
        self.check(status, "stream_signal")?;
        self.signalled = value;
        Ok(value)
    }

    /// Blocks until a value that was signalled is reached.
    ///
    /// # Errors
    /// As [`Stream::finish`].
    pub fn wait_reached(&self, value: u64, limit: Duration) -> Result<()> {
        self.device.check_usable()?;
        let deadline = Instant::now() + limit;
        let plugin = &self.device.plugin;
        // Not of a serialised plugin, which would do nothing else meanwhile (invariant 2).
        if let Some(host_wait) = plugin.about.table.stream_host_wait.filter(|_| plugin.serial.is_none()) {
            // SAFETY: the plugin's function with its own stream, from any thread.
            let status = unsafe { host_wait(self.handle.as_ptr(), value, limit.as_nanos() as u64) };
            return match status {
                DEVBAY_STATUS_TIMEOUT => Err(self.stuck(value, limit)),
                status => self.check(status, "work on a stream"),
            };
        }
        // No blocking wait: poll, first spinning, then sleeping (ABI-NOTES 9).
        let mut polls = 0u32;
        loop {
            let (reached, status) = self.reached()?;
            if reached >= value {
                return Ok(());
            }
            self.check(status, "work on a stream")?;
            polls = polls.saturating_add(1);
            match polls {
                0..1000 => std::hint::spin_loop(),
                1000..2000 => std::thread::yield_now(),
                _ => std::thread::sleep(Duration::from_micros(50)),
            }
            if polls.is_multiple_of(256) && Instant::now() >= deadline {
                return Err(self.stuck(value, limit));
            }
        }
    }

    /// The last value reached, and the stream's status.
    ///
    /// # Errors
    /// If the plugin has no such function.
    pub fn reached(&self) -> Result<(u64, Status)> {
        self.device.check_usable()?;
        let Some(stream_reached) = self.device.plugin.about.table.stream_reached else {
            return Err(self.device.broken("a device with timelines has no stream_reached"));
        };
        let mut reached = 0;
        let _serial = self.device.plugin.serialise();
        // SAFETY: the plugin's function with its own stream, from any thread; `reached` is ours.
        let status = unsafe { stream_reached(self.handle.as_ptr(), &mut reached) };
        Ok((reached, status))
    }

    fn stuck(&self, value: u64, limit: Duration) -> Error {
        self.device.broken(&format!(
            "work on a stream did not end within {limit:?}: point {value} is neither reached nor failed"
        ))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.device.plugin.release(|table| {
            if let Some(destroy) = table.stream_destroy {
                // SAFETY: the plugin's function with its own stream, once.
                unsafe { destroy(self.handle.as_ptr()) };
            }
        });
    }
}
