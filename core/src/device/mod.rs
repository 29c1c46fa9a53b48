//! A plugin's table behind safe methods, one per function.
//!
//! [`Plugin`] is one instance, [`Device`] one of its units; [`Buffer`], [`Stream`] and [`PreparedKernel`]
//! are objects of a device, and free themselves when dropped. Every answer of the plugin becomes a
//! [`Result`] with the plugin's own words. A plugin that panicked is poisoned: it is not called again, and its
//! objects leak, with all memory that was lent to it for their lifetime (B19). On a device that is lost only free and
//! destroy are called (B13). In both cases `stream_error` is asked once more, for the words.
//!
//! # Invariants
//! 1. Handles are used with the table of the plugin that made them, while its instance lives: everything
//!    here holds the instance by reference count.
//! 2. With [`Threading::Serialised`](crate::about::Threading::Serialised) every call holds the plugin's lock.
//!    `stream_host_wait` would hold it for as long as the work takes, so such a plugin is polled instead.
//! 3. A [`Stream`] is used by one thread at a time: it is not `Sync`. That is the lock of
//!    [`Threading::PerStream`](crate::about::Threading::PerStream).

mod buffer;
mod compile;
mod describe;
mod download;
mod ferry;
mod interop;
mod kernel;
mod plugin;
mod points;
pub mod rates;
mod replay;
mod stream;
mod views;

pub use buffer::Buffer;
pub use compile::{BlobUse, Compiled, Executable};
pub use describe::{DeviceAbout, Space, kind_names};
pub use ferry::Ferry;
pub use kernel::{Pack, PrepareRequest, PreparedKernel};
pub(crate) use plugin::must_leak;
pub use plugin::{Detail, Plugin};
pub(crate) use replay::Recording;
pub(crate) use stream::REST_LIMIT;
pub use stream::Stream;
pub use views::Graph;

use crate::calls::{self, Call};
use crate::error::{Error, ErrorKind, Phase, Result, of_list};
use crate::kernel::KernelTable;
use crate::tensor::{DType, Dim, TensorType, bytes_of, n_elements};
use devbay_plugin_api::abi::{self, *};
use rates::Rates;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Least size of an allocation that is first compared with the available memory.
const ASKED_BYTES_MIN: u64 = 64 << 20;

/// The purpose of a stream: hints, which a device may follow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StreamUse {
    /// Nothing is enqueued on it but copies, waits and signals.
    pub copies: bool,
    /// Above 0 its work is more urgent than that of other streams, below 0 less.
    pub priority: i32,
}

impl StreamUse {
    /// Copies alone.
    pub const COPIES: Self = Self { copies: true, priority: 0 };
}

/// One device.
pub struct Device {
    name: String,
    index: usize,
    info: DeviceAbout,
    handle: NonNull<abi::Device>,
    /// Its own kernels, if it does not have those of the plugin's list.
    kernels: Option<KernelTable>,
    lost: AtomicBool,
    bytes_in_use: AtomicU64,
    bytes_peak: AtomicU64,
    rates: OnceLock<Rates>,
    plugin: Arc<Plugin>,
}

// SAFETY: the handle is used as the plugin's threading class says (`Plugin::call`).
unsafe impl Send for Device {}
// SAFETY: the plugin's threading class tells whether several threads may call at once, which `Plugin::call` keeps to;
// the rest is atomic.
unsafe impl Sync for Device {}

impl Device {
    /// `PLUGIN:INDEX`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether its streams record launches and replay them.
    pub(crate) fn replays(&self) -> bool {
        self.plugin.replays().is_some()
    }

    /// Returns its kernels.
    pub fn kernels(&self) -> &KernelTable {
        self.kernels.as_ref().unwrap_or(&self.plugin.about().kernels)
    }

    /// Returns its number in the plugin: its position in the first list; one that came later has the next.
    pub fn index(&self) -> usize {
        self.index
    }

    /// Name that stays the same from run to run: `PLUGIN/ID`.
    pub fn stable_id(&self) -> String {
        format!("{}/{}", self.plugin.name(), self.info.id)
    }

    /// Returns the plugin's description of it.
    pub fn about(&self) -> &DeviceAbout {
        &self.info
    }

    /// Returns the plugin instance.
    pub fn plugin(&self) -> &Arc<Plugin> {
        &self.plugin
    }

    /// Where operands of kernels live.
    pub fn space(&self) -> &Space {
        &self.info.spaces[0]
    }

    /// Returns whether the device was lost or removed. It stays so: a device that comes back is a new one.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Relaxed)
    }

    /// Bytes allocated through the host now, and at most.
    pub fn bytes_in_use(&self) -> (u64, u64) {
        (self.bytes_in_use.load(Ordering::Relaxed), self.bytes_peak.load(Ordering::Relaxed))
    }

    /// Returns its measured speed, if there is one.
    pub fn rates(&self) -> Option<Rates> {
        self.rates.get().copied()
    }

    /// Returns its expected speed: as measured, else as usual for devices of its kind.
    pub fn expected_rates(&self) -> Rates {
        self.rates().unwrap_or_else(|| self.default_rates())
    }

    /// Returns the usual speed of devices of its kind.
    pub fn default_rates(&self) -> Rates {
        Rates::of_kind(self.info.kind, !(self.info.host_refs && self.space().host_visible))
    }

    /// Tells how fast it works, before anything is planned for it; the first one to tell is believed.
    pub fn set_rates(&self, rates: Rates) {
        let _ = self.rates.set(rates);
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

    /// Returns the note of a call.
    fn calling<'a>(&'a self, function: &'a str) -> Call<'a> {
        Call { device: &self.name, ..self.plugin.calling(function) }
    }

    fn call(
        &self,
        phase: Phase,
        body: impl FnOnce(&PluginTable, *mut ErrorDetail) -> Option<Status>,
    ) -> Result<()> {
        self.check_usable()?;
        calls::during(self.calling(phase.name()), || self.plugin.call(phase, body))
            .map_err(|e| self.failed(e))
    }

    /// Returns the most bytes that can be wanted at once; None if the device does not say.
    pub fn bytes_max(&self) -> Option<u64> {
        self.space().bytes_max()
    }

    /// Allocates memory in the space of operands, content undefined.
    ///
    /// # Errors
    /// [`ErrorKind::OutOfMemory`] beyond the space's limits or when the plugin says so; else the plugin's error.
    pub fn alloc(self: &Arc<Self>, size: usize, usage: u32) -> Result<Buffer> {
        self.alloc_for(size, usage, null())
    }

    /// Allocates host memory that the device reaches by itself, content undefined. None if it has no such space.
    ///
    /// # Errors
    /// As [`Device::alloc`].
    pub fn alloc_pinned(self: &Arc<Self>, size: usize) -> Option<Result<Buffer>> {
        let is_pinned = |space: &Space| {
            space.kind == DEVBAY_SPACE_PINNED_HOST && space.host_visible && space.not_understood == 0
        };
        let idx = self.about().spaces.iter().position(is_pinned)?;
        Some(self.alloc_in(idx, size, DEVBAY_USAGE_WEIGHT, null()))
    }

    /// As [`Device::alloc`], for a tensor of a type: where the space is typed, one whole buffer for each.
    ///
    /// # Errors
    /// As [`Device::alloc`]; out of memory for a type that is larger than memory.
    pub fn alloc_tensor(self: &Arc<Self>, ty: &TensorType, usage: u32) -> Result<Buffer> {
        let shape = ty.known_shape().unwrap_or_default();
        let extents: Vec<i64> = shape.iter().map(|&extent| extent as i64).collect();
        let size = n_elements(&shape).and_then(|n| bytes_of(ty.dtype, n)).ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, format!("{ty} is larger than memory")).on_device(&self.name)
        })?;
        let tensor = abi::Tensor {
            dtype: ty.dtype,
            rank: extents.len() as u32,
            shape: extents.as_ptr(),
            ..abi::Tensor::empty()
        };
        let mut buffer = self.alloc_for(size, usage, &tensor)?;
        buffer.tensor = self.space().typed.then(|| ty.clone());
        Ok(buffer)
    }

    /// `tensor` is NULL or a description that is alive for the call.
    fn alloc_for(self: &Arc<Self>, size: usize, usage: u32, tensor: *const abi::Tensor) -> Result<Buffer> {
        self.alloc_in(0, size, usage, tensor)
    }

    /// As [`Device::alloc_for`], in one of the device's spaces.
    fn alloc_in(
        self: &Arc<Self>,
        space_idx: usize,
        size: usize,
        usage: u32,
        tensor: *const abi::Tensor,
    ) -> Result<Buffer> {
        let space = &self.about().spaces[space_idx];
        let granule = space.copy_granule;
        let padded = (size as u64).checked_next_multiple_of(granule).unwrap_or(u64::MAX);
        if let Some(limit) = space.bytes_max().filter(|&limit| padded > limit) {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("{padded} bytes are wanted at once, the device has {limit}"),
            )
            .in_plugin(self.plugin.name())
            .on_device(&self.name));
        }
        // Systems that overcommit give memory that they do not have, and end the process later.
        if space_idx == 0
            && padded >= ASKED_BYTES_MIN
            && let Some(available) = self.bytes_available().filter(|&available| padded > available)
        {
            return Err(Error::new(
                ErrorKind::OutOfMemory,
                format!("{padded} bytes are wanted at once, the device has {available} available"),
            )
            .in_plugin(self.plugin.name())
            .on_device(&self.name));
        }
        let desc = AllocDesc {
            space_idx: space_idx as u32,
            size_bytes: padded,
            align: space.alloc_align.max(space.bind_align),
            usage,
            tensor,
            ..AllocDesc::empty()
        };
        let mut out = Allocation::empty();
        self.call(Phase::Allocate, |table, error| {
            let alloc = table.buffer_alloc?;
            // SAFETY: the plugin's function with its own device; the structs are ours for the call.
            Some(unsafe { alloc(self.handle.as_ptr(), &desc, &mut out, error) })
        })?;
        let Some(handle) = NonNull::new(out.buffer) else {
            return Err(self.broken("buffer_alloc succeeded without a buffer (B9)"));
        };
        let in_use = self.bytes_in_use.fetch_add(padded, Ordering::Relaxed) + padded;
        self.bytes_peak.fetch_max(in_use, Ordering::Relaxed);
        let (device, size) = (Arc::clone(self), padded as usize);
        let buffer = Buffer { device, handle, base: out.base, size, tensor: None, owner: None };
        if out.size_bytes < padded {
            return Err(self.broken("buffer_alloc gave fewer bytes than were asked for"));
        }
        Ok(buffer)
    }

    fn broken(&self, text: &str) -> Error {
        Error::new(ErrorKind::PluginBroken, text).in_plugin(self.plugin.name()).on_device(&self.name)
    }

    /// Makes a stream for kernels and copies.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn create_stream(self: &Arc<Self>, label: &str) -> Result<Stream> {
        self.create_stream_for(label, StreamUse::default())
    }

    /// Makes a stream.
    ///
    /// # Errors
    /// Errors that the plugin reports.
    pub fn create_stream_for(self: &Arc<Self>, label: &str, purpose: StreamUse) -> Result<Stream> {
        let services = self.plugin.services();
        let own_label = services.stream_label(label);
        let desc = StreamDesc {
            kind: if purpose.copies { DEVBAY_STREAM_COPY } else { DEVBAY_STREAM_COMPUTE },
            priority: purpose.priority,
            label: Str::new(own_label.as_deref().unwrap_or(label)),
            ..StreamDesc::empty()
        };
        let mut out = null_mut();
        let created = self.call(Phase::OpenStream, |table, error| {
            let create = table.stream_create?;
            // SAFETY: the plugin's function with its own device; the structs are ours for the call.
            Some(unsafe { create(self.handle.as_ptr(), &desc, &mut out, error) })
        });
        let handle = created.and_then(|()| {
            NonNull::new(out).ok_or_else(|| self.broken("stream_create succeeded without a stream (B9)"))
        });
        let handle = handle.inspect_err(|_| {
            if let Some(label) = &own_label {
                services.stream_ended(label);
            }
        })?;
        if let Some(label) = &own_label {
            services.stream_begins(label, self.name(), handle.addr().get() as u64);
        }
        Ok(Stream { device: Arc::clone(self), handle, signalled: 0, own_label })
    }

    /// Prepares a kernel for a node's attributes, types and constants (B21).
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] if the kernel does not do this; else the plugin's error.
    pub fn prepare(self: &Arc<Self>, request: &PrepareRequest<'_>) -> Result<PreparedKernel> {
        let mut out = abi::Prepared::empty();
        request.with_abi(self.handle.as_ptr(), |desc| {
            let prepare = |table: &PluginTable, error: *mut ErrorDetail| {
                let prepare = table.prepare?;
                // SAFETY: the plugin's function with its own instance; the structs are ours for the call.
                Some(unsafe { prepare(self.plugin.instance.as_ptr(), desc, &mut out, error) })
            };
            let call = Call { node: request.label, ..self.calling(Phase::Prepare.name()) };
            calls::during(call, || self.call(Phase::Prepare, prepare))
        })?;
        let Some(launch) = out.launch else {
            return Err(self.broken("prepare succeeded without a launch function (B21)"));
        };
        // Given back from here on, even after an error.
        let mut kernel = PreparedKernel { device: Arc::clone(self), raw: out, launch, packs: Vec::new() };
        kernel.packs = self.read_packs(&out, request)?;
        if !(out.workspace_align == 0 || out.workspace_align.is_power_of_two()) {
            return Err(self.broken("prepare asked for a workspace whose alignment is no power of two"));
        }
        Ok(kernel)
    }

    /// Returns the constants that a kernel wants packed (since 0.2), checked against the request.
    fn read_packs(&self, prepared: &abi::Prepared, request: &PrepareRequest<'_>) -> Result<Vec<Pack>> {
        if self.plugin.minor < 2 {
            return Ok(Vec::new());
        }
        // SAFETY: the plugin keeps the list until `unprepare`, and the kernel was just prepared.
        let raw = unsafe { read_growable_list::<ConstantPack>(&prepared.packs) }.map_err(|error| {
            let text = |e| format!("prepare gave a broken list of packed constants: {e}");
            of_list(error, |e| self.broken(&text(e)))
        })?;
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
        let mut out = MemoryInfo::empty();
        let known = self.call(Phase::AskMemory, |table, error| {
            let memory_info = table.memory_info?;
            // SAFETY: the plugin's function with its own device; the struct is ours for the call.
            Some(unsafe { memory_info(self.handle.as_ptr(), 0, &mut out, error) })
        });
        known.ok().map(|()| out.bytes_available)
    }

    /// Type of one output of an op that ONNX does not define (since 0.2).
    ///
    /// # Errors
    /// Errors that the plugin reports, also that it has no such function.
    pub fn output_type(
        self: &Arc<Self>,
        request: &PrepareRequest<'_>,
        output_idx: usize,
    ) -> Result<TensorType> {
        const RANK_MAX: usize = 64;
        let mut dtype = DType { code: 0, bits: 0, lanes: 0 };
        let mut shape = [0i64; RANK_MAX];
        let mut rank = 0u32;
        request.with_abi(self.handle.as_ptr(), |desc| {
            self.call(Phase::InferShape, |table, error| {
                let kernel_shape = table.kernel_shape?;
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
        })?;
        let dims = shape
            .get(..rank as usize)
            .ok_or_else(|| self.broken("kernel_shape gave a rank above the most"))?;
        let dims =
            dims.iter().map(|&extent| usize::try_from(extent).map_or_else(|_| Dim::unknown(), Dim::Known));
        Ok(TensorType { dtype, shape: Some(dims.collect()) })
    }

    /// Returns the cost of one launch; None if the plugin cannot say.
    pub fn cost(self: &Arc<Self>, request: &PrepareRequest<'_>) -> Option<KernelCost> {
        let mut out = KernelCost::empty();
        let result = request.with_abi(self.handle.as_ptr(), |desc| {
            self.call(Phase::EstimateCost, |table, error| {
                let cost = table.kernel_cost?;
                // SAFETY: the plugin's function with its own instance; the structs are ours for the call.
                Some(unsafe { cost(self.plugin.instance.as_ptr(), desc, &mut out, error) })
            })
        });
        result.ok().map(|()| out)
    }
}
