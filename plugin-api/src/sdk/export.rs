//! From a [`Plugin`] to the ABI's table: one `extern "C"` function per slot.
//!
//! Each function does three things: it refuses NULL handles and broken structs, calls the plugin under the
//! guard, and writes the result by the receiver's size. Handles are the addresses of Rust values: an
//! instance is a box of `InstanceBox`, a device a reference into it, a buffer a box of `BufferBox`, a
//! stream a box of `StreamBox`.

use super::error::{Error, Result, guard, guard_kernel, remember_panics};
use super::extensions::get_extension;
use super::listing::{Lists, device_kernels, devices};
use super::memory::{AllocRequest, Allocated, BufferBox, CopyKind, CopyRequest, StreamRequest};
use super::view::{PrepareRequest, TensorView};
use super::{Device, Done, Host, Kernel, Options, Plugin, Prepared, Stream};
use crate::abi;
use crate::abi::*;
use crate::locks::lock;
use core::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One use of the plugin.
pub(super) struct InstanceBox<P> {
    pub(super) plugin: P,
    host: Host,
    abi_minor: u32,
    pub(super) lists: Lists,
}

/// A stream, with the detail of its last failure (B18).
pub struct StreamBox<S> {
    stream: S,
    failure: Mutex<Option<Error>>,
    /// Work is taken down and does not run.
    pub(super) records: AtomicBool,
    /// The bindings of the recording that is being made.
    bindings: Mutex<Arc<[BufferRef]>>,
}

impl<S: Stream> StreamBox<S> {
    /// Refuses what a recording cannot have.
    fn refuse_while_it_records(&self) -> Result<()> {
        if S::REPLAY && self.records.load(Ordering::Relaxed) {
            return Err(Error::invalid(
                "the stream records, which takes launches and copies between buffers",
            ));
        }
        Ok(())
    }
}

impl<S> StreamBox<S> {
    /// The plugin's stream.
    #[inline]
    pub fn inner(&self) -> &S {
        &self.stream
    }

    /// Begins to record.
    pub(super) fn begin_record(&self, bindings: Arc<[BufferRef]>) {
        *lock(&self.bindings) = bindings;
        self.records.store(true, Ordering::Relaxed);
    }

    /// Ends it, and gives the bindings; None if nothing was begun.
    pub(super) fn end_record(&self) -> Option<Arc<[BufferRef]>> {
        let records = self.records.swap(false, Ordering::Relaxed);
        records.then(|| std::mem::take(&mut *lock(&self.bindings)))
    }

    /// The error that was kept last.
    pub(crate) fn kept(&self) -> Option<Error> {
        lock(&self.failure).clone()
    }

    /// Keeps an error for `stream_error` and gives its status.
    #[cold]
    pub(crate) fn keep(&self, error: Error) -> Status {
        let status = error.status();
        *lock(&self.failure) = Some(error);
        status
    }
}

/// Refuses to enqueue on a stream that has failed, with its failure (B13).
///
/// # Errors
/// The failure.
pub(super) fn refuse_failed<S: Stream>(stream: &S) -> Result<()> {
    if !S::TIMELINE || !stream.has_failed() {
        return Ok(());
    }
    Err(stream.failure().unwrap_or_else(|| Error::internal("the stream has failed")))
}

/// The table of a plugin.
pub const fn table<P: Plugin>() -> PluginTable {
    // A trait's constant decides which slots are filled, so that an absent function is NULL and the host
    // emulates it.
    PluginTable {
        struct_size: size_of::<PluginTable>() as u32,
        reserved: 0,
        create: Some(create::<P>),
        destroy: Some(destroy::<P>),
        devices: Some(devices::<P>),
        buffer_alloc: Some(buffer_alloc::<P::Device>),
        buffer_free: Some(buffer_free::<P::Device>),
        stream_create: Some(stream_create::<P::Device>),
        stream_destroy: Some(stream_destroy::<P::Device>),
        copy: Some(copy::<P::Device>),
        stream_signal: if StreamOf::<P>::TIMELINE { Some(stream_signal::<P::Device>) } else { None },
        stream_reached: if StreamOf::<P>::TIMELINE { Some(stream_reached::<P::Device>) } else { None },
        prepare: if P::KERNELS.is_empty() { None } else { Some(prepare::<P>) },
        unprepare: if P::KERNELS.is_empty() { None } else { Some(unprepare) },
        get_extension: Some(get_extension::<P>),
        stream_wait: if StreamOf::<P>::WAIT { Some(stream_wait::<P::Device>) } else { None },
        stream_on_reached: if StreamOf::<P>::ON_REACHED {
            Some(stream_on_reached::<P::Device>)
        } else {
            None
        },
        stream_host_wait: if StreamOf::<P>::HOST_WAIT { Some(stream_host_wait::<P::Device>) } else { None },
        stream_flush: if StreamOf::<P>::FLUSH { Some(stream_flush::<P::Device>) } else { None },
        stream_error: Some(stream_error::<P::Device>),
        kernel_cost: if P::KERNELS.is_empty() { None } else { Some(kernel_cost::<P>) },
        pack: if P::KERNELS.is_empty() { None } else { Some(pack) },
        memory_info: if P::Device::MEMORY_INFO { Some(memory_info::<P::Device>) } else { None },
        kernel_shape: if P::KERNELS.is_empty() { None } else { Some(kernel_shape::<P>) },
        device_kernels: if P::NARROWS { Some(device_kernels::<P>) } else { None },
    }
}

trait Streams {
    const TIMELINE: bool;
    const WAIT: bool;
    const ON_REACHED: bool;
    const HOST_WAIT: bool;
    const FLUSH: bool;
}

/// The constants of a plugin's streams.
struct StreamOf<P>(core::marker::PhantomData<P>);

impl<P: Plugin> Streams for StreamOf<P> {
    const TIMELINE: bool = <<P::Device as Device>::Stream as Stream>::TIMELINE;
    const WAIT: bool = <<P::Device as Device>::Stream as Stream>::WAIT;
    const ON_REACHED: bool = <<P::Device as Device>::Stream as Stream>::ON_REACHED;
    const HOST_WAIT: bool = <<P::Device as Device>::Stream as Stream>::HOST_WAIT;
    const FLUSH: bool = <<P::Device as Device>::Stream as Stream>::FLUSH;
}

/// Texts of a plugin in the ABI's form; `N` is at least their number.
pub const fn texts<const N: usize>(texts: &[&'static str]) -> [Str; N] {
    let mut list = [Str::EMPTY; N];
    let mut i = 0;
    while i < texts.len() {
        list[i] = Str::new(texts[i]);
        i += 1;
    }
    list
}

/// Options of a plugin in the ABI's form; `N` is at least their number.
pub const fn options<const N: usize>(options: &[super::PluginOption]) -> [OptionInfo; N] {
    let mut list = [OptionInfo {
        struct_size: size_of::<OptionInfo>() as u32,
        reserved: 0,
        key: Str::EMPTY,
        default_value: Str::EMPTY,
        doc: Str::EMPTY,
    }; N];
    let mut i = 0;
    while i < options.len() {
        list[i].key = Str::new(options[i].key);
        list[i].default_value = Str::new(options[i].default);
        list[i].doc = Str::new(options[i].doc);
        i += 1;
    }
    list
}

/// What the entry returns, from the plugin's static lists.
pub const fn info<P: Plugin>(
    table: &'static PluginTable,
    profiles: &'static [Str],
    options: &'static [OptionInfo],
) -> PluginInfo {
    PluginInfo {
        struct_size: size_of::<PluginInfo>() as u32,
        abi_minor_min: P::ABOUT.abi_minor_min,
        abi_minor_max: DEVBAY_ABI_MINOR,
        threading: P::ABOUT.threading,
        flags: if P::ABOUT.unloadable { DEVBAY_PLUGIN_UNLOADABLE } else { 0 },
        name: Str::new(P::ABOUT.name),
        vendor: Str::new(P::ABOUT.vendor),
        version: Str::new(P::ABOUT.version),
        table,
        profiles: List::new(profiles),
        kernels: List::new::<Kernel<P::Device>>(P::KERNELS),
        options: List::new(options),
        layout: List::new(&LAYOUT_FIELDS),
        layer: None,
    }
}

/// A plugin that is part of the program: its name, and its entry.
#[derive(Clone, Copy)]
pub struct LinkedPlugin {
    name: &'static str,
    query: QueryFn,
}

impl LinkedPlugin {
    /// Names an entry. [`static_plugin!`](crate::static_plugin) does this for plugins made with the SDK.
    ///
    /// # Safety
    /// `query` is a plugin's entry as [`QueryFn`] has it: what it returns is static and a version of `PluginInfo`.
    pub const unsafe fn new(name: &'static str, query: QueryFn) -> Self {
        Self { name, query }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Asks the entry who the plugin is.
    pub fn query(&self) -> *const PluginInfo {
        // SAFETY: the promise of `new`; the entry may be called at any time (B1).
        unsafe { (self.query)() }
    }
}

/// Makes the entry of a plugin for those who link it statically: a module `devbay_entry` with a [`LinkedPlugin`].
/// [`export_plugin!`](crate::export_plugin) also exports the symbol.
#[macro_export]
macro_rules! static_plugin {
    ($plugin:ty) => {
        #[cfg(panic = "abort")]
        compile_error!("a devbay plugin is built with panic=unwind: a panic becomes a status (B19)");

        /// The plugin's entry, for hosts that link it.
        pub mod devbay_entry {
            #[allow(unused_imports, reason = "the plugin's type may be named by any path")]
            use super::*;
            use $crate::abi::{OptionInfo, PluginInfo, PluginTable, Str};
            use $crate::sdk::{Plugin, export};

            type Exported = $plugin;
            static TABLE: PluginTable = export::table::<Exported>();
            static PROFILES: [Str; Exported::ABOUT.profiles.len()] = export::texts(Exported::ABOUT.profiles);
            static OPTIONS: [OptionInfo; Exported::ABOUT.options.len()] =
                export::options(Exported::ABOUT.options);
            static INFO: PluginInfo = export::info::<Exported>(&TABLE, &PROFILES, &OPTIONS);

            /// Who the plugin is; see `QueryFn`.
            pub(super) unsafe extern "C" fn query() -> *const PluginInfo {
                &INFO
            }

            /// The plugin, for a host that links it.
            // SAFETY: the entry above returns static data, made from this header's types.
            pub const PLUGIN: export::LinkedPlugin =
                unsafe { export::LinkedPlugin::new(Exported::ABOUT.name, query) };
        }
    };
}

/// Exports the one symbol of a plugin (B1).
#[macro_export]
macro_rules! export_plugin {
    ($plugin:ty) => {
        $crate::static_plugin!($plugin);
        $crate::export_symbol!();
    };
}

/// Exports the entry that [`static_plugin!`](crate::static_plugin) made.
#[macro_export]
macro_rules! export_symbol {
    () => {
        /// The plugin's entry; see `devbay_plugin.h`.
        ///
        /// # Safety
        /// None is needed; the type is the ABI's.
        // SAFETY: the name is the ABI's, and a library has one plugin.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn devbay_plugin_query_v0() -> *const $crate::abi::PluginInfo {
            // SAFETY: the entry asks for nothing.
            unsafe { devbay_entry::query() }
        }
        $crate::__export_abi_stable_layout!();
    };
}

pub(super) use super::view::broken as refused;

/// Runs a function of the plugin and gives its status; the detail goes where the host asked.
///
/// # Safety
/// `detail` is NULL or as [`ErrorDetail`] says.
pub(super) unsafe fn report(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<()>) -> Status {
    // SAFETY: the caller's promise.
    unsafe { reported(detail, guard(body)) }
}

/// As [`report`], for a function that looks at a node and changes nothing: a panic in it is its own failure alone.
///
/// # Safety
/// As [`report`].
unsafe fn report_kernel(detail: *mut ErrorDetail, body: impl FnOnce() -> Result<()>) -> Status {
    // SAFETY: the caller's promise.
    unsafe { reported(detail, guard_kernel(body)) }
}

/// # Safety
/// As [`report`].
unsafe fn reported(detail: *mut ErrorDetail, result: Result<()>) -> Status {
    match result {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => {
            // SAFETY: the caller's promise.
            unsafe { error.store(detail) };
            error.status()
        }
    }
}

/// The value behind a handle, or an error for NULL.
///
/// # Safety
/// `handle` is NULL or a handle of this plugin's whose value is a `T`, alive for `'a`.
pub(super) unsafe fn deref<'a, T, H>(handle: *mut H, what: &str) -> Result<&'a T> {
    // SAFETY: the caller's promise.
    unsafe { handle.cast::<T>().cast_const().as_ref() }
        .ok_or_else(|| Error::invalid(format!("{what} is NULL")))
}

/// Drops what a handle owns; a panic in a destructor stays here.
///
/// # Safety
/// `handle` is NULL or came from `Box::into_raw` of a `T`, and is given back once.
pub(super) unsafe fn free<T, H>(handle: *mut H) {
    if !handle.is_null() {
        // The message went to standard error; a function without a status has no other way.
        let _ = guard(|| {
            // SAFETY: the caller's promise.
            drop(unsafe { Box::from_raw(handle.cast::<T>()) });
            Ok(())
        });
    }
}

unsafe extern "C" fn create<P: Plugin>(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        remember_panics();
        // SAFETY: the host's struct, alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        // SAFETY: the host's services, alive until `destroy`.
        let host = Host::new(unsafe { read_struct(desc.host) }.map_err(refused)?);
        let newest = DEVBAY_ABI_MINOR;
        if !(P::ABOUT.abi_minor_min..=newest).contains(&desc.abi_minor) {
            return Err(Error::unsupported(format!(
                "the host asks for ABI minor {}, this plugin speaks {} to {newest}",
                desc.abi_minor,
                P::ABOUT.abi_minor_min
            )));
        }
        // SAFETY: the field's rule: a list of KeyValue, alive for the call.
        let pairs: Vec<KeyValue> = unsafe { read_list(&desc.options, "KeyValue") }.map_err(refused)?;
        let mut given = Vec::with_capacity(pairs.len());
        let mut memory_limit = None;
        for pair in pairs {
            // SAFETY: the host's text, alive for the call.
            let key = unsafe { pair.key.get() }.map_err(refused)?;
            // SAFETY: as above.
            let value = unsafe { pair.value.get() }.map_err(refused)?;
            if key == MEMORY_LIMIT {
                let limit = value.parse().map_err(|_| {
                    Error::invalid(format!("option {key}: expected a number of bytes, found `{value}`"))
                })?;
                memory_limit = Some(limit);
            }
            // The host's, for plugins of every vendor.
            if key.starts_with(HOST_OPTIONS) {
                continue;
            }
            if !P::ABOUT.options.iter().any(|option| option.key == key) {
                let known: Vec<_> = P::ABOUT.options.iter().map(|option| option.key).collect();
                return Err(Error::invalid(format!("unknown option {key}, known are: {}", known.join(", "))));
            }
            given.push((key, value));
        }
        let options = Options { declared: P::ABOUT.options, given, abi_minor: desc.abi_minor, memory_limit };
        let plugin = P::create(host, &options)?;
        let instance =
            Box::new(InstanceBox { plugin, host, abi_minor: desc.abi_minor, lists: Lists::default() });
        // SAFETY: the host's place for one handle.
        unsafe { out.write(Box::into_raw(instance).cast()) };
        Ok(())
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

unsafe extern "C" fn destroy<P: Plugin>(instance: *mut Instance) {
    // SAFETY: made by `create`, given back once (B9).
    unsafe { free::<InstanceBox<P>, _>(instance) };
}

unsafe extern "C" fn buffer_alloc<D: Device>(
    device: *mut abi::Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: the host's struct, alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        let spaces = &device.describe().spaces;
        let space = spaces
            .get(desc.space_idx as usize)
            .ok_or_else(|| Error::invalid(format!("memory space {} of {}", desc.space_idx, spaces.len())))?;
        if !desc.align.is_power_of_two() {
            return Err(Error::invalid(format!("an alignment of {} is no power of two", desc.align)));
        }
        let limit = [space.alloc_max, space.bytes_total, isize::MAX as u64];
        let limit = limit.into_iter().filter(|&limit| limit > 0).min().unwrap_or(u64::MAX);
        if desc.size_bytes > limit {
            return Err(Error::out_of_memory(format!(
                "{} bytes, the space gives at most {limit} at once",
                desc.size_bytes
            )));
        }
        let tensor = if desc.tensor.is_null() {
            None
        } else {
            // SAFETY: the host's struct, alive for the call.
            let raw = unsafe { read_struct(desc.tensor) }.map_err(refused)?;
            // SAFETY: as above.
            Some(unsafe { TensorView::new(raw) }?)
        };
        let allocated = device.alloc(&AllocRequest {
            space_idx: desc.space_idx as usize,
            size_bytes: desc.size_bytes as usize,
            align: desc.align.max(space.alloc_align) as usize,
            usage: desc.usage,
            tensor,
        })?;
        // SAFETY: the host's struct.
        unsafe { give_buffer(allocated, out) }
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

/// Hands a buffer to the host.
///
/// # Safety
/// `out` is the host's struct.
pub(super) unsafe fn give_buffer<B>(allocated: Allocated<B>, out: *mut Allocation) -> Result<()> {
    let size_bytes = allocated.size_bytes as u64;
    let result = Allocation {
        buffer: Box::into_raw(Box::new(BufferBox { buffer: allocated.buffer, size_bytes })).cast(),
        base: allocated.base,
        size_bytes,
        ..Allocation::empty()
    };
    // SAFETY: the caller's promise.
    unsafe { write_struct(out, &result) }.map_err(|e| {
        // SAFETY: the box made above, which nobody else has seen.
        unsafe { free::<BufferBox<B>, _>(result.buffer) };
        refused(e)
    })
}

unsafe extern "C" fn buffer_free<D: Device>(buffer: *mut abi::Buffer) {
    // SAFETY: made by `buffer_alloc`, given back once (B9).
    unsafe { free::<BufferBox<D::Buffer>, _>(buffer) };
}

unsafe extern "C" fn stream_create<D: Device>(
    device: *mut abi::Device,
    desc: *const StreamDesc,
    out: *mut *mut abi::Stream,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let device: &D = unsafe { deref(device, "the device") }?;
        // SAFETY: the host's struct, alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        let stream = device.create_stream(&StreamRequest {
            kind: desc.kind,
            priority: desc.priority,
            // SAFETY: the host's text, alive for the call.
            label: unsafe { desc.label.get() }.map_err(refused)?,
        })?;
        // SAFETY: the host's place for one handle.
        unsafe { give_stream(stream, out) };
        Ok(())
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

/// Hands a stream to the host.
///
/// # Safety
/// `out` is the host's place for one handle.
pub(super) unsafe fn give_stream<S>(stream: S, out: *mut *mut abi::Stream) {
    let stream = Box::new(StreamBox {
        stream,
        failure: Mutex::new(None),
        records: AtomicBool::new(false),
        bindings: Mutex::default(),
    });
    // SAFETY: the caller's promise.
    unsafe { out.write(Box::into_raw(stream).cast()) };
}

unsafe extern "C" fn stream_destroy<D: Device>(stream: *mut abi::Stream) {
    // SAFETY: made by `stream_create`, given back once (B9).
    unsafe { free::<StreamBox<D::Stream>, _>(stream) };
}

/// Runs a function of a stream; its error is kept there.
///
/// # Safety
/// `stream` is NULL or a stream of this device's.
unsafe fn on_stream<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&D::Stream) -> Result<()>,
) -> Status {
    // SAFETY: the caller's promise.
    unsafe { on_box::<D>(stream, |stream| body(&stream.stream)) }
}

/// As [`on_stream`], with what the SDK knows of the stream.
///
/// # Safety
/// As [`on_stream`].
pub(super) unsafe fn on_box<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&StreamBox<D::Stream>) -> Result<()>,
) -> Status {
    // SAFETY: the caller's promise.
    let Ok(stream) = (unsafe { deref::<StreamBox<D::Stream>, _>(stream, "the stream") }) else {
        return DEVBAY_STATUS_INVALID;
    };
    match guard(|| body(stream)) {
        Ok(()) => DEVBAY_STATUS_OK,
        Err(error) => stream.keep(error),
    }
}

/// As [`on_stream`], for what a recording cannot have, nor a stream that has failed.
///
/// # Safety
/// As [`on_stream`].
pub(super) unsafe fn enqueue_on<D: Device>(
    stream: *mut abi::Stream,
    body: impl FnOnce(&D::Stream) -> Result<()>,
) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        stream.refuse_while_it_records()?;
        refuse_failed(&stream.stream)?;
        body(&stream.stream)
    };
    // SAFETY: the caller's promise.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn copy<D: Device>(stream: *mut abi::Stream, desc: *const CopyDesc) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        // SAFETY: the host's struct, whose handles are boxes of this device's buffers.
        let copy = unsafe { CopyRequest::<D::Buffer>::read(desc) }?;
        let is_of_host = |copy: &CopyRequest<'_, _>| !matches!(copy.kind, CopyKind::BufferToBuffer(..));
        if copy.as_ref().is_some_and(is_of_host) {
            stream.refuse_while_it_records()?;
        }
        refuse_failed(&stream.stream)?;
        copy.map_or(Ok(()), |copy| stream.stream.copy(&copy))
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn stream_signal<D: Device>(stream: *mut abi::Stream, value: u64) -> Status {
    // SAFETY: the host's handle of this plugin's.
    unsafe { enqueue_on::<D>(stream, |stream| stream.signal(value)) }
}

unsafe extern "C" fn stream_reached<D: Device>(stream: *mut abi::Stream, out_value: *mut u64) -> Status {
    let body = |stream: &D::Stream| {
        let (value, status) = stream.reached();
        // SAFETY: the host's place for a number.
        if let Some(out_value) = unsafe { out_value.as_mut() } {
            *out_value = value;
        }
        status
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_stream::<D>(stream, body) }
}

unsafe extern "C" fn stream_wait<D: Device>(
    stream: *mut abi::Stream,
    other: *mut abi::Stream,
    value: u64,
) -> Status {
    let body = |stream: &D::Stream| {
        // SAFETY: the host's handle of this plugin's.
        let other: &StreamBox<D::Stream> = unsafe { deref(other, "the other stream") }?;
        stream.wait(&other.stream, value)
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { enqueue_on::<D>(stream, body) }
}

unsafe extern "C" fn stream_on_reached<D: Device>(
    stream: *mut abi::Stream,
    value: u64,
    done: Option<DoneFn>,
    arg: *mut c_void,
) -> Status {
    let body = |stream: &D::Stream| {
        let function = done.ok_or_else(|| Error::invalid("the callback is NULL"))?;
        stream.on_reached(value, Done { function, arg })
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_stream::<D>(stream, body) }
}

unsafe extern "C" fn stream_host_wait<D: Device>(
    stream: *mut abi::Stream,
    value: u64,
    timeout_ns: u64,
) -> Status {
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_stream::<D>(stream, |stream| stream.host_wait(value, Duration::from_nanos(timeout_ns))) }
}

unsafe extern "C" fn stream_flush<D: Device>(stream: *mut abi::Stream) -> Status {
    // SAFETY: the host's handle of this plugin's.
    unsafe { enqueue_on::<D>(stream, Stream::flush) }
}

unsafe extern "C" fn stream_error<D: Device>(stream: *mut abi::Stream, error: *mut ErrorDetail) -> Status {
    // SAFETY: the host's handle of this plugin's.
    let Ok(stream) = (unsafe { deref::<StreamBox<D::Stream>, _>(stream, "the stream") }) else {
        return DEVBAY_STATUS_INVALID;
    };
    let found = guard(|| Ok(stream.stream.failure())).unwrap_or_else(Some);
    let kept = lock(&stream.failure);
    match found.as_ref().or(kept.as_ref()) {
        None => DEVBAY_STATUS_OK,
        Some(failure) => {
            // SAFETY: the host's error struct.
            unsafe { failure.store(error) };
            failure.status()
        }
    }
}

/// A kernel, and what it is asked for.
type Request<'a, D> = (&'static Kernel<D>, PrepareRequest<'a, D>);

/// Reads a request and finds its kernel.
///
/// # Safety
/// `desc` is a host's struct that lives for `'a`, with a device of this plugin's.
unsafe fn request<'a, P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
) -> Result<Request<'a, P::Device>> {
    // SAFETY: the caller's promise.
    let instance: &InstanceBox<P> = unsafe { deref(instance, "the instance") }?;
    // SAFETY: the caller's promise.
    let desc = unsafe { read_struct(desc) }.map_err(refused)?;
    let kernel = P::KERNELS
        .get(desc.kernel_idx as usize)
        .ok_or_else(|| Error::invalid(format!("kernel {} of {}", desc.kernel_idx, P::KERNELS.len())))?;
    // SAFETY: the caller's promise.
    Ok((kernel, unsafe { PrepareRequest::new(&desc, kernel.op(), instance.host, instance.abi_minor) }?))
}

unsafe extern "C" fn prepare<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    out: *mut abi::Prepared,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's struct, alive for the call.
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        kernel.refuse_operands(&request)?;
        kernel.refuse_attributes(&request, P::reads_attribute)?;
        let mut prepared = kernel.prepare(&request)?;
        prepared.set_operands(request.inputs.len(), request.outputs.len());
        if kernel.info().flags & DEVBAY_KERNEL_DATA_SHAPE != 0 {
            prepared.set_extents();
        }
        if request.device.defers() {
            prepared.defer::<P::Device>(request.label);
        } else if !request.device.describe().inline {
            prepared.refuse_failed::<P::Device>();
        }
        let result = prepared.into_abi();
        // SAFETY: the host's struct.
        unsafe { write_struct(out, &result) }.map_err(|e| {
            // SAFETY: the state made above, which nobody else has seen.
            unsafe { Prepared::free(result.state) };
            refused(e)
        })
    };
    // SAFETY: the host's error struct.
    unsafe { report_kernel(error, body) }
}

unsafe extern "C" fn unprepare(_instance: *mut Instance, prepared: *mut abi::Prepared) {
    // SAFETY: the host's struct, as `prepare` wrote it.
    if let Ok(prepared) = unsafe { read_struct(prepared.cast_const()) }
        && !prepared.state.is_null()
    {
        let _ = guard(|| {
            // SAFETY: made by `prepare`, given back once (B9).
            unsafe { Prepared::free(prepared.state) };
            Ok(())
        });
    }
}

unsafe extern "C" fn kernel_cost<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    out: *mut KernelCost,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's struct, alive for the call.
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        let cost = kernel.estimate(&request)?;
        let result = KernelCost {
            flops: cost.flops,
            bytes_read: cost.bytes_read,
            bytes_written: cost.bytes_written,
            ..KernelCost::empty()
        };
        // SAFETY: the host's struct.
        unsafe { write_struct(out, &result) }.map_err(refused)
    };
    // SAFETY: the host's error struct.
    unsafe { report_kernel(error, body) }
}

unsafe extern "C" fn pack(
    _instance: *mut Instance,
    prepared: *const abi::Prepared,
    input_idx: u32,
    src: *const Tensor,
    dst: *mut c_void,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's struct, as `prepare` wrote it.
        let prepared = unsafe { read_struct(prepared) }.map_err(refused)?;
        if prepared.state.is_null() {
            return Err(Error::invalid("pack without a prepared kernel"));
        }
        // SAFETY: the host's struct, alive for the call.
        let src = unsafe { read_struct(src) }.map_err(refused)?;
        // SAFETY: as above.
        let src = unsafe { TensorView::new(src) }?;
        let bytes = src.constant().ok_or_else(|| Error::invalid("pack of a tensor without content"))?;
        // SAFETY: the state is `prepare`'s, and `dst` as the header says.
        unsafe { Prepared::pack(prepared.state, input_idx, bytes, dst.cast()) }
    };
    // SAFETY: the host's error struct.
    unsafe { report_kernel(error, body) }
}

unsafe extern "C" fn memory_info<D: Device>(
    device: *mut abi::Device,
    space_idx: u32,
    out: *mut MemoryInfo,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's handle of this plugin's.
        let device: &D = unsafe { deref(device, "the device") }?;
        let memory = device.memory_info(space_idx as usize)?;
        let result = MemoryInfo {
            bytes_in_use: memory.bytes_in_use,
            bytes_available: memory.bytes_available,
            ..MemoryInfo::empty()
        };
        // SAFETY: the host's struct.
        unsafe { write_struct(out, &result) }.map_err(refused)
    };
    // SAFETY: the host's error struct.
    unsafe { report(error, body) }
}

unsafe extern "C" fn kernel_shape<P: Plugin>(
    instance: *mut Instance,
    desc: *const PrepareDesc,
    output_idx: u32,
    out_dtype: *mut DType,
    out_shape: *mut i64,
    rank_max: u32,
    out_rank: *mut u32,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        // SAFETY: the host's struct, alive for the call.
        let (kernel, request) = unsafe { request::<P>(instance, desc) }?;
        if output_idx >= kernel.n_outputs_max() {
            return Err(Error::unsupported(format!("there is no output {output_idx}")));
        }
        let (dtype, shape) = kernel.output_type(&request, output_idx as usize)?;
        if shape.len() > rank_max as usize {
            return Err(Error::invalid(format!("a rank of {}, at most {rank_max} fits", shape.len())));
        }
        if out_dtype.is_null() || out_shape.is_null() || out_rank.is_null() {
            return Err(Error::invalid("a place for the result is NULL"));
        }
        // SAFETY: the host's places: one dtype, one number, and `rank_max` extents.
        unsafe {
            out_dtype.write(dtype);
            out_rank.write(shape.len() as u32);
            core::ptr::copy_nonoverlapping(shape.as_ptr(), out_shape, shape.len());
        }
        Ok(())
    };
    // SAFETY: the host's error struct.
    unsafe { report_kernel(error, body) }
}
