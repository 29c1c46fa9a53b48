//! What cases work with: a plugin's raw table, and handles that give themselves back.
//!
//! Core's `Device` and `Stream` hide what a plugin does wrong, so cases call the table itself. What is here
//! only spares them the arguments: every method is one call and hands its status on, or turns it into a
//! failure with the plugin's words.
//!
//! # Invariants
//! 1. Handles are used while their instance lives: the borrows say so.
//! 2. A case declares what it lends (buffers, host memory) before the stream that it lends it to, so that the
//!    stream goes first and waits for its work (B24).

use crate::desk::Desk;
use crate::verdict::{Outcome, Why, failed, not_applicable};
use devbay_host::core::about::{About, Refusal, Threading};
use devbay_host::negotiate::{Agreement, Entry, negotiate};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::{self, *};
use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long a case waits for something that has to come.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Slots of the host's loops, unless a case wants others.
pub(crate) const SLOTS: u32 = 4;

/// A loaded plugin, and how a case is to use it.
pub(crate) struct Rig<'a> {
    pub entry: Entry<'a>,
    pub options: &'a [(String, String)],
    /// Nobody else uses this process, so that its threads may be counted.
    pub own_process: bool,
    agreement: Result<Agreement, Refusal>,
}

/// A status as the header calls it.
pub(crate) fn status_name(status: Status) -> String {
    let name = match status {
        DEVBAY_STATUS_OK => "OK",
        DEVBAY_STATUS_CANCELLED => "CANCELLED",
        DEVBAY_STATUS_UNKNOWN => "UNKNOWN",
        DEVBAY_STATUS_INVALID => "INVALID",
        DEVBAY_STATUS_TIMEOUT => "TIMEOUT",
        DEVBAY_STATUS_NOT_FOUND => "NOT_FOUND",
        DEVBAY_STATUS_OUT_OF_MEMORY => "OUT_OF_MEMORY",
        DEVBAY_STATUS_FAILED_PRECONDITION => "FAILED_PRECONDITION",
        DEVBAY_STATUS_ABORTED => "ABORTED",
        DEVBAY_STATUS_UNSUPPORTED => "UNSUPPORTED",
        DEVBAY_STATUS_INTERNAL => "INTERNAL",
        DEVBAY_STATUS_UNAVAILABLE => "UNAVAILABLE",
        DEVBAY_STATUS_DATA_LOSS => "DATA_LOSS",
        DEVBAY_STATUS_DEVICE_LOST => "DEVICE_LOST",
        DEVBAY_STATUS_PANICKED => "PANICKED",
        other => return format!("status {other}"),
    };
    name.to_owned()
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

    /// The status with the words.
    pub(crate) fn describe(&self, status: Status) -> String {
        match self.text() {
            text if text.is_empty() => status_name(status),
            text => format!("{} ({text})", status_name(status)),
        }
    }
}

impl<'a> Rig<'a> {
    pub(crate) fn new(entry: Entry<'a>, options: &'a [(String, String)], own_process: bool) -> Self {
        Self { agreement: negotiate(entry, MinorRange::CURRENT), entry, options, own_process }
    }

    /// Asks the entry.
    pub(crate) fn query(&self) -> *const PluginInfo {
        match self.entry {
            Entry::Library(library) => library.query(),
            Entry::Linked(linked) => linked.query(),
        }
    }

    /// What the plugin says of itself and the minor agreed on, or why it cannot be used.
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

    /// The function in an optional slot.
    pub(crate) fn optional<F: Copy>(&self, slot: Option<F>, name: &str) -> Outcome<F> {
        match slot {
            Some(function) => Ok(function),
            None => not_applicable(Why::NotOffered, format!("the plugin has no {name}")),
        }
    }

    /// Goes on only if functions may be called from several threads at once.
    pub(crate) fn allows_threads(&self) -> Outcome {
        if self.about()?.threading == Threading::Serialised {
            return not_applicable(Why::Threading, "the plugin wants one call at a time");
        }
        Ok(())
    }

    /// Whether a stream's `reached` and its like may be called while its owner enqueues.
    pub(crate) fn is_free_threaded(&self) -> Outcome<bool> {
        Ok(self.about()?.threading == Threading::Free)
    }

    /// An instance as most cases want it.
    pub(crate) fn open(&self) -> Outcome<Opened<'_>> {
        self.open_with(SLOTS)
    }

    /// An instance with the options of the command line.
    pub(crate) fn open_with(&self, n_slots: u32) -> Outcome<Opened<'_>> {
        let pairs: Vec<(&str, &str)> = self.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let mut detail = Detail::new();
        match self.create(Desk::open(n_slots), None, &pairs, Some(&mut detail))? {
            Ok(opened) => Ok(opened),
            Err(status) => failed(format!("create gave {}", detail.describe(status))),
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
                return failed(format!("create gave {} and wrote an instance", status_name(status)));
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
            return not_applicable(Why::Inline, "every device is inline, so there is no timeline");
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
// SAFETY: as for Send.
unsafe impl Sync for Opened<'_> {}

impl Drop for Opened<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.table.destroy {
            // SAFETY: made by `create`, given back once; what was made from it borrowed it and is gone.
            unsafe { destroy(self.handle.as_ptr()) };
        }
        self.desk.close();
    }
}

impl<'a> Opened<'a> {
    /// The plugin's list of devices, as it is.
    pub(crate) fn device_infos(&self) -> Outcome<Vec<DeviceInfo>> {
        let mut list = List::EMPTY;
        let mut detail = Detail::new();
        let Some(devices) = self.table.devices else {
            return failed("the plugin has no devices function");
        };
        // SAFETY: the plugin's function with its own instance; `list` is ours.
        let status = unsafe { devices(self.handle.as_ptr(), &mut list, &mut detail.raw) };
        if status != DEVBAY_STATUS_OK {
            return failed(format!("devices gave {}", detail.describe(status)));
        }
        // SAFETY: the plugin's list, which lives as long as the instance.
        match unsafe { read_growable_list::<DeviceInfo>(&list) } {
            Ok(infos) => Ok(infos),
            Err(error) => failed(format!("the list of devices is broken: {error}")),
        }
    }

    /// Its devices; a plugin without any has nothing to test.
    pub(crate) fn devices(&self) -> Outcome<Vec<Device<'_>>> {
        let infos = self.device_infos()?;
        if infos.is_empty() {
            return not_applicable(Why::NoDevice, "the plugin has no device on this machine");
        }
        infos.into_iter().enumerate().map(|(index, info)| Device::read(self, index, info)).collect()
    }
}

/// A device.
pub(crate) struct Device<'a> {
    pub opened: &'a Opened<'a>,
    pub index: usize,
    pub info: DeviceInfo,
    pub spaces: Vec<MemorySpace>,
    /// A stream did not come to its end: nobody knows when the device is done with what it was lent, so that
    /// it is leaked (ABI-NOTES 1).
    stuck: AtomicBool,
}

// SAFETY: as for `Opened`.
unsafe impl Send for Device<'_> {}
// SAFETY: as for `Opened`.
unsafe impl Sync for Device<'_> {}

impl<'a> Device<'a> {
    fn read(opened: &'a Opened<'a>, index: usize, info: DeviceInfo) -> Outcome<Self> {
        if info.handle.is_null() {
            return failed(format!("device {index} has no handle"));
        }
        // SAFETY: the plugin's list, which lives as long as the instance.
        let spaces = match unsafe { read_growable_list::<MemorySpace>(&info.spaces) } {
            Ok(spaces) => spaces,
            Err(error) => return failed(format!("the spaces of device {index} are broken: {error}")),
        };
        if spaces.is_empty() {
            return failed(format!("device {index} has no memory space"));
        }
        Ok(Self { opened, index, info, spaces, stuck: AtomicBool::new(false) })
    }

    pub(crate) fn inline(&self) -> bool {
        self.info.flags & DEVBAY_DEVICE_INLINE != 0
    }

    /// The space of operands, which cases use unless they ask for others.
    pub(crate) fn space(&self) -> &MemorySpace {
        &self.spaces[0]
    }

    /// Goes on only if buffers of the first space can be had without a type and written twice.
    pub(crate) fn plain_memory(&self) -> Outcome {
        if self.space().flags & (DEVBAY_SPACE_TYPED | DEVBAY_SPACE_WRITE_ONCE) != 0 {
            return not_applicable(Why::Memory, "operands live in a TYPED or WRITE_ONCE space");
        }
        Ok(())
    }

    /// A size as copies take it.
    pub(crate) fn pad(&self, size: usize) -> usize {
        size.next_multiple_of(self.space().copy_granule.max(1) as usize)
    }

    /// What offsets of copies and operands are multiples of.
    pub(crate) fn step(&self) -> usize {
        let space = self.space();
        let granule = space.copy_granule.max(1);
        // Alignments are powers of two, so the largest is a multiple of the others.
        let align = space.bind_align.max(space.copy_align).max(1) as usize;
        align.next_multiple_of(granule as usize)
    }

    /// A size, or less if the device allows no such allocation.
    pub(crate) fn at_most(&self, size: usize) -> usize {
        match self.space().alloc_max {
            0 => size,
            max => size.min(max as usize),
        }
    }

    /// Calls `buffer_alloc` and gives all that it said.
    pub(crate) fn try_alloc(
        &self,
        space_idx: u32,
        size_bytes: u64,
        align: u64,
        detail: &mut Detail,
    ) -> Outcome<(Status, Allocation)> {
        let desc = AllocDesc { space_idx, size_bytes, align, ..AllocDesc::empty() };
        let mut out = Allocation::empty();
        // SAFETY: both structs are ours and whole.
        let status = unsafe { self.alloc_raw(&desc, &mut out, &mut detail.raw) }?;
        Ok((status, out))
    }

    /// # Safety
    /// `desc`, `out` and `error` are as `PluginTable::buffer_alloc` says.
    pub(crate) unsafe fn alloc_raw(
        &self,
        desc: *const AllocDesc,
        out: *mut Allocation,
        error: *mut ErrorDetail,
    ) -> Outcome<Status> {
        let Some(alloc) = self.opened.table.buffer_alloc else {
            return failed("the plugin has no buffer_alloc");
        };
        // SAFETY: the plugin's function with its own device; the rest is the caller's promise.
        Ok(unsafe { alloc(self.info.handle, desc, out, error) })
    }

    /// A buffer in the first space.
    pub(crate) fn alloc(&self, size: usize) -> Outcome<Buffer<'_>> {
        self.alloc_in(0, size)
    }

    pub(crate) fn alloc_in(&self, space_idx: u32, size: usize) -> Outcome<Buffer<'_>> {
        let space = &self.spaces[space_idx as usize];
        let size = size.next_multiple_of(space.copy_granule.max(1) as usize);
        let mut detail = Detail::new();
        let (status, out) = self.try_alloc(space_idx, size as u64, space.alloc_align.max(1), &mut detail)?;
        if status != DEVBAY_STATUS_OK {
            return failed(format!("buffer_alloc of {size} bytes gave {}", detail.describe(status)));
        }
        self.own(out, size)
    }

    /// Takes a result of `buffer_alloc`.
    pub(crate) fn own(&self, out: Allocation, size: usize) -> Outcome<Buffer<'_>> {
        match NonNull::new(out.buffer) {
            Some(handle) => Ok(Buffer { device: self, handle, base: out.base, size, usable: out.size_bytes }),
            None => failed(format!("buffer_alloc of {size} bytes succeeded without a buffer")),
        }
    }

    /// A stream.
    pub(crate) fn stream(&self) -> Outcome<Stream<'_>> {
        let mut detail = Detail::new();
        let (status, stream) = self.try_stream(&StreamDesc::empty(), &mut detail)?;
        match stream {
            Some(stream) => Ok(stream),
            None => failed(format!("stream_create gave {}", detail.describe(status))),
        }
    }

    /// Calls `stream_create` with a description of any size.
    pub(crate) fn try_stream(
        &self,
        desc: *const StreamDesc,
        detail: &mut Detail,
    ) -> Outcome<(Status, Option<Stream<'_>>)> {
        let Some(create) = self.opened.table.stream_create else {
            return failed("the plugin has no stream_create");
        };
        let mut out = null_mut();
        // SAFETY: the plugin's function with its own device; the rest is ours.
        let status = unsafe { create(self.info.handle, desc, &mut out, &mut detail.raw) };
        if status != DEVBAY_STATUS_OK {
            return Ok((status, None));
        }
        match NonNull::new(out) {
            Some(handle) => Ok((status, Some(Stream { device: self, handle, signalled: AtomicU64::new(0) }))),
            None => failed("stream_create succeeded without a stream"),
        }
    }

    /// As many streams as a case wants, or as the device has.
    pub(crate) fn streams(&self, wanted: usize) -> Outcome<Vec<Stream<'_>>> {
        let n = match self.info.streams_max {
            0 => wanted,
            max => wanted.min(max as usize),
        };
        (0..n).map(|_| self.stream()).collect()
    }
}

/// A buffer.
pub(crate) struct Buffer<'a> {
    pub device: &'a Device<'a>,
    pub handle: NonNull<abi::Buffer>,
    pub base: u64,
    /// Bytes asked for.
    pub size: usize,
    /// Bytes that the plugin gave.
    pub usable: u64,
}

// SAFETY: as for `Opened`.
unsafe impl Send for Buffer<'_> {}
// SAFETY: as for `Opened`.
unsafe impl Sync for Buffer<'_> {}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if self.device.stuck.load(Ordering::Relaxed) {
            return;
        }
        if let Some(free) = self.device.opened.table.buffer_free {
            // SAFETY: made by `buffer_alloc`, given back once; its work is done (`stuck`), or its streams are
            // gone (invariant 2).
            unsafe { free(self.handle.as_ptr()) };
        }
    }
}

impl Buffer<'_> {
    /// A part of it.
    pub(crate) fn part(&self, offset: usize, length: usize) -> BufferRef {
        BufferRef {
            buffer: self.handle.as_ptr(),
            addr: if self.base == 0 { 0 } else { self.base + offset as u64 },
            offset: offset as u64,
            length: length as u64,
        }
    }

    /// All of it.
    pub(crate) fn whole(&self) -> BufferRef {
        self.part(0, self.size)
    }
}

/// A stream.
pub(crate) struct Stream<'a> {
    pub device: &'a Device<'a>,
    pub handle: NonNull<abi::Stream>,
    /// Last value that was signalled with success.
    signalled: AtomicU64,
}

// SAFETY: as for `Opened`; cases enqueue on a stream from one thread at a time.
unsafe impl Send for Stream<'_> {}
// SAFETY: as for Send.
unsafe impl Sync for Stream<'_> {}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if let Some(destroy) = self.device.opened.table.stream_destroy {
            // SAFETY: made by `stream_create`, given back once.
            unsafe { destroy(self.handle.as_ptr()) };
        }
    }
}

impl Stream<'_> {
    fn table(&self) -> &PluginTable {
        &self.device.opened.table
    }

    /// Enqueues a copy.
    ///
    /// # Safety
    /// What the description names stays alive until the stream has done it or is destroyed.
    pub(crate) unsafe fn copy(&self, desc: *const CopyDesc) -> Outcome<Status> {
        let Some(copy) = self.table().copy else {
            return failed("the plugin has no copy");
        };
        // SAFETY: the plugin's function with its own stream; the rest is the caller's promise.
        Ok(unsafe { copy(self.handle.as_ptr(), desc) })
    }

    /// A copy that has to be accepted.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    unsafe fn copy_or_fail(&self, desc: &CopyDesc, what: &str) -> Outcome {
        // SAFETY: the caller's promise.
        match unsafe { self.copy(desc) }? {
            DEVBAY_STATUS_OK => Ok(()),
            status => {
                let words = self.error_words(status);
                failed(format!("a copy of {} bytes {what} gave {words}", desc.size_bytes))
            }
        }
    }

    /// Enqueues a copy from host memory.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(crate) unsafe fn enqueue_in(&self, src: &[u8], dst: BufferRef) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst,
            host_src: src.as_ptr().cast(),
            size_bytes: src.len() as u64,
            ..empty_copy()
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_or_fail(&desc, "from the host") }
    }

    /// Enqueues a copy to host memory.
    ///
    /// # Safety
    /// As [`Stream::copy`]; nobody else touches `dst` meanwhile.
    pub(crate) unsafe fn enqueue_out(&self, src: BufferRef, dst: *mut u8, size: usize) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src,
            host_dst: dst.cast(),
            size_bytes: size as u64,
            ..empty_copy()
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_or_fail(&desc, "to the host") }
    }

    /// Enqueues a copy on the device.
    ///
    /// # Safety
    /// As [`Stream::copy`].
    pub(crate) unsafe fn enqueue_within(&self, src: BufferRef, dst: BufferRef, size: usize) -> Outcome {
        let desc = CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src,
            dst,
            size_bytes: size as u64,
            ..empty_copy()
        };
        // SAFETY: the caller's promise.
        unsafe { self.copy_or_fail(&desc, "on the device") }
    }

    /// Writes bytes into a buffer and waits.
    pub(crate) fn upload(&self, bytes: &[u8], buffer: &Buffer<'_>, offset: usize) -> Outcome {
        // SAFETY: both live until `finish` returns, or until the stream is destroyed if that fails: the buffer
        // by invariant 2, and the bytes are leaked then.
        let bytes = Lent::new(bytes.to_vec());
        // SAFETY: as above.
        unsafe { self.enqueue_in(&bytes.0, buffer.part(offset, bytes.0.len())) }?;
        self.finish()?;
        bytes.done();
        Ok(())
    }

    /// Reads bytes of a buffer and waits.
    pub(crate) fn download(&self, buffer: &Buffer<'_>, offset: usize, size: usize) -> Outcome<Vec<u8>> {
        let mut bytes = Lent::new(vec![0u8; size]);
        // SAFETY: as in `upload`.
        unsafe { self.enqueue_out(buffer.part(offset, size), bytes.0.as_mut_ptr(), size) }?;
        self.finish()?;
        Ok(bytes.done())
    }

    /// Enqueues the next point and gives its value.
    pub(crate) fn signal(&self) -> Outcome<u64> {
        self.signal_value(self.signalled.load(Ordering::Relaxed) + 1)
    }

    /// Enqueues a point.
    pub(crate) fn signal_value(&self, value: u64) -> Outcome<u64> {
        let Some(signal) = self.table().stream_signal else {
            return failed("a device with a timeline, and no stream_signal");
        };
        // SAFETY: the plugin's function with its own stream.
        match unsafe { signal(self.handle.as_ptr(), value) } {
            DEVBAY_STATUS_OK => {
                self.signalled.store(value, Ordering::Relaxed);
                Ok(value)
            }
            status => failed(format!("stream_signal({value}) gave {}", self.error_words(status))),
        }
    }

    /// The last value that was signalled.
    pub(crate) fn signalled(&self) -> u64 {
        self.signalled.load(Ordering::Relaxed)
    }

    /// Asks what was reached.
    pub(crate) fn reached(&self) -> Outcome<(u64, Status)> {
        let Some(reached) = self.table().stream_reached else {
            return failed("a device with a timeline, and no stream_reached");
        };
        let mut value = 0;
        // SAFETY: the plugin's function with its own stream; `value` is ours.
        let status = unsafe { reached(self.handle.as_ptr(), &mut value) };
        Ok((value, status))
    }

    /// Polls until a value is reached.
    pub(crate) fn poll(&self, value: u64) -> Outcome {
        let polled = self.poll_until(value);
        if polled.is_err() {
            self.device.stuck.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn poll_until(&self, value: u64) -> Outcome {
        let deadline = Instant::now() + PATIENCE;
        let mut n_polls = 0u32;
        loop {
            let (reached, status) = self.reached()?;
            if status != DEVBAY_STATUS_OK {
                return failed(format!("the stream failed with {}", self.error_words(status)));
            }
            if reached >= value {
                return Ok(());
            }
            if Instant::now() > deadline {
                return failed(format!("value {value} was not reached within {PATIENCE:?}, but {reached}"));
            }
            n_polls += 1;
            if n_polls > 100 {
                std::thread::sleep(Duration::from_micros(50));
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Waits until everything that was enqueued is done.
    pub(crate) fn finish(&self) -> Outcome {
        if self.device.inline() {
            return Ok(());
        }
        let value = self.signal()?;
        self.poll(value)
    }

    /// A status with the stream's words for it.
    pub(crate) fn error_words(&self, status: Status) -> String {
        let mut detail = Detail::new();
        if let Some(stream_error) = self.table().stream_error {
            // SAFETY: the plugin's function with its own stream; the struct is ours.
            unsafe { stream_error(self.handle.as_ptr(), &mut detail.raw) };
        }
        detail.describe(status)
    }
}

/// Host memory that a stream may still use: leaked, unless somebody says that it is done.
pub(crate) struct Lent(pub std::mem::ManuallyDrop<Vec<u8>>);

impl Lent {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self(std::mem::ManuallyDrop::new(bytes))
    }

    /// The work that used it is done.
    pub(crate) fn done(self) -> Vec<u8> {
        std::mem::ManuallyDrop::into_inner(self.0)
    }
}

/// A copy of nothing.
pub(crate) fn empty_copy() -> CopyDesc {
    CopyDesc {
        src: BufferRef::ABSENT,
        dst: BufferRef::ABSENT,
        host_src: null::<c_void>(),
        host_dst: null_mut(),
        ..CopyDesc::empty()
    }
}

/// Bytes that differ from place to place and from seed to seed.
pub(crate) fn pattern(size: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(size + 8);
    while bytes.len() < size {
        // xorshift64: quick, and no two words are alike.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Where two byte strings differ first.
pub(crate) fn difference(found: &[u8], expected: &[u8]) -> Option<String> {
    let at = found.iter().zip(expected).position(|(a, b)| a != b)?;
    let n = found.iter().zip(expected).filter(|(a, b)| a != b).count();
    Some(format!(
        "{n} of {} bytes differ, the first at {at}: expected {:#04x}, found {:#04x}",
        expected.len(),
        expected[at],
        found[at]
    ))
}

/// A struct of any size in zeroed memory of its own: as an older or newer host would have it.
///
/// Beyond the whole struct, or beyond what an older one has, stands a poison that looks like garbage when it
/// is followed and that must still stand there when the call is over.
pub(crate) struct AnySize<T> {
    bytes: Vec<u64>,
    size: usize,
    marker: PhantomData<T>,
}

const POISON: u8 = 0xd7;

impl<T: Growable> AnySize<T> {
    /// The struct `value` with `size` bytes.
    pub(crate) fn new(value: &T, size: usize) -> Self {
        // Fields are aligned to at most 8; 64 bytes behind it are watched.
        let len = size.max(size_of::<T>()) + 64;
        let mut bytes = vec![u64::from_ne_bytes([POISON; 8]); len.div_ceil(8)];
        let known = size.min(size_of::<T>());
        // SAFETY: `known` bytes of a plain struct, into memory that is longer.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                bytes.as_mut_ptr().cast(),
                known,
            );
        };
        let start: *mut u32 = bytes.as_mut_ptr().cast();
        // SAFETY: the struct's size is its first field (`Growable`).
        unsafe { start.write(size as u32) };
        if size > size_of::<T>() {
            // A newer host's fields: zero is what it would have there.
            let start: *mut u8 = bytes.as_mut_ptr().cast();
            // SAFETY: within the memory above.
            unsafe { start.add(size_of::<T>()).write_bytes(0, size - size_of::<T>()) };
        }
        Self { bytes, size, marker: PhantomData }
    }

    pub(crate) fn as_ptr(&mut self) -> *mut T {
        self.bytes.as_mut_ptr().cast()
    }

    /// The fields that lie within its size.
    pub(crate) fn value(&self) -> T {
        let mut value = T::empty();
        // SAFETY: a plain struct's bytes, as far as both have them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.bytes.as_ptr().cast::<u8>(),
                (&raw mut value).cast::<u8>(),
                self.size.min(size_of::<T>()),
            );
        };
        value
    }

    /// Whether nobody wrote behind its size.
    pub(crate) fn is_intact(&self) -> bool {
        let bytes: Vec<u8> = self.bytes.iter().flat_map(|word| word.to_ne_bytes()).collect();
        bytes[self.size..].iter().all(|&byte| byte == POISON)
    }
}
