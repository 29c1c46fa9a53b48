//! Devices and their buffers.

use super::{Detail, Opened, Stream};
use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_plugin_api::abi::{self, *};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Returns whether a space gives buffers without a type.
pub(crate) fn is_plain(space: &MemorySpace) -> bool {
    space.flags & DEVBAY_SPACE_TYPED == 0
}

/// Returns the type of a tensor of as many bytes as its one extent says.
pub(crate) fn bytes_type(shape: &[i64; 1]) -> Tensor {
    let dtype = DType { code: DEVBAY_DTYPE_UINT, bits: 8, lanes: 1 };
    Tensor { dtype, rank: 1, shape: shape.as_ptr(), ..Tensor::empty() }
}

/// A device.
pub(crate) struct Device<'a> {
    pub opened: &'a Opened<'a>,
    pub index: usize,
    pub info: DeviceInfo,
    pub spaces: Vec<MemorySpace>,
    /// True if a stream did not end. The device may touch the memory lent to it at any later time, so that memory
    /// is leaked (B24).
    pub(super) stuck: AtomicBool,
}

// SAFETY: a device may be used from any thread as the plugin's threading class says.
unsafe impl Send for Device<'_> {}
// SAFETY: cases ask for the plugin's threading class before they use several threads at once; `stuck` is atomic.
unsafe impl Sync for Device<'_> {}

impl<'a> Device<'a> {
    pub(crate) fn read(opened: &'a Opened<'a>, index: usize, info: DeviceInfo) -> Outcome<Self> {
        if info.handle.is_null() {
            return failed(format!("device {index} has no handle"));
        }
        // SAFETY: the plugin keeps the list as long as the instance.
        let spaces = match unsafe { read_growable_list::<MemorySpace>(&info.spaces) } {
            Ok(spaces) => spaces,
            Err(error) => return failed(format!("device {index} has an invalid list of spaces: {error}")),
        };
        if spaces.is_empty() {
            return failed(format!("device {index} has no memory space"));
        }
        Ok(Self { opened, index, info, spaces, stuck: AtomicBool::new(false) })
    }

    pub(crate) fn inline(&self) -> bool {
        self.info.flags & DEVBAY_DEVICE_INLINE != 0
    }

    /// Returns the space of operands, which cases use unless they ask for others.
    pub(crate) fn space(&self) -> &MemorySpace {
        &self.spaces[0]
    }

    /// Goes on only if buffers of the first space can be had without a type, and written in parts and twice.
    pub(crate) fn plain_memory(&self) -> Outcome {
        if self.space().flags & (DEVBAY_SPACE_TYPED | DEVBAY_SPACE_WRITE_ONCE) != 0 {
            let text =
                "the test writes parts of operands, or twice, and they are in a TYPED or WRITE_ONCE space";
            return not_run(Why::Memory, text);
        }
        Ok(())
    }

    /// Returns whether a buffer of the first space is written once, whole, by one copy from the host.
    pub(crate) fn writes_once(&self) -> bool {
        self.space().flags & DEVBAY_SPACE_WRITE_ONCE != 0
    }

    /// Returns the buffers of so many writes of one size, in turn: one, if it may be written again.
    pub(crate) fn targets(&self, n_writes: usize, size: usize) -> Outcome<Vec<Buffer<'_>>> {
        let n = if self.writes_once() { n_writes } else { 1 };
        (0..n).map(|_| self.alloc(size)).collect()
    }

    /// Returns a size as copies take it.
    pub(crate) fn pad(&self, size: usize) -> usize {
        size.next_multiple_of(self.space().copy_granule.max(1) as usize)
    }

    /// Returns the step of which offsets of copies and operands are multiples.
    pub(crate) fn step(&self) -> usize {
        let space = self.space();
        let granule = space.copy_granule.max(1);
        // Alignments are powers of two, so the largest is a multiple of the others.
        let align = space.bind_align.max(space.copy_align).max(1) as usize;
        align.next_multiple_of(granule as usize)
    }

    /// Returns a size, or less if the device allows no such allocation.
    pub(crate) fn at_most(&self, size: usize) -> usize {
        match self.space().alloc_max {
            0 => size,
            max => size.min(max as usize),
        }
    }

    /// Calls `buffer_alloc` and gives all that it said. Where memory is TYPED it is for a tensor of bytes.
    pub(crate) fn try_alloc(
        &self,
        space_idx: u32,
        size_bytes: u64,
        align: u64,
        detail: &mut Detail,
    ) -> Outcome<(Status, Allocation)> {
        let shape = [size_bytes as i64];
        let tensor = bytes_type(&shape);
        let is_typed = self.spaces.get(space_idx as usize).is_some_and(|space| !is_plain(space));
        let desc = AllocDesc {
            space_idx,
            size_bytes,
            align,
            tensor: if is_typed { &tensor } else { null() },
            ..AllocDesc::empty()
        };
        let mut out = Allocation::empty();
        // SAFETY: both structs are ours and whole, and so is the tensor.
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
        // SAFETY: the device is the plugin's own; the pointers are as `PluginTable::buffer_alloc` says (# Safety).
        Ok(unsafe { alloc(self.info.handle, desc, out, error) })
    }

    /// Returns the table of one of the plugin's extensions; `what` says what it does.
    pub(crate) fn extension<T: Growable>(&self, id: u32, what: &str) -> Outcome<T> {
        let nothing = || not_run(Why::NotOffered, format!("the plugin has no extension that {what}"));
        let Some(get_extension) = self.opened.table.get_extension else { return nothing() };
        // SAFETY: the instance is the plugin's own, and alive until it is dropped.
        let table = unsafe { get_extension(self.opened.handle.as_ptr(), id, 1) };
        if table.is_null() {
            return nothing();
        }
        // SAFETY: the plugin keeps the extension's table as long as the instance.
        match unsafe { read_struct(table.cast::<T>()) } {
            Ok(table) => Ok(table),
            Err(error) => failed(format!("the extension that {what} has an invalid table: {error}")),
        }
    }

    /// Allocates a buffer in the first space.
    pub(crate) fn alloc(&self, size: usize) -> Outcome<Buffer<'_>> {
        self.alloc_in(0, size)
    }

    pub(crate) fn alloc_in(&self, space_idx: u32, size: usize) -> Outcome<Buffer<'_>> {
        let space = &self.spaces[space_idx as usize];
        let size = size.next_multiple_of(space.copy_granule.max(1) as usize);
        let mut detail = Detail::new();
        let (status, out) = self.try_alloc(space_idx, size as u64, space.alloc_align.max(1), &mut detail)?;
        if status != DEVBAY_STATUS_OK {
            return failed(format!("buffer_alloc of {size} bytes returned {}", detail.describe(status)));
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

    /// Creates a stream.
    pub(crate) fn stream(&self) -> Outcome<Stream<'_>> {
        let mut detail = Detail::new();
        let (status, stream) = self.try_stream(&StreamDesc::empty(), &mut detail)?;
        match stream {
            Some(stream) => Ok(stream),
            None => failed(format!("stream_create returned {}", detail.describe(status))),
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
        self.own_stream(out).map(|stream| (status, Some(stream)))
    }

    /// Takes a stream that was made.
    pub(crate) fn own_stream(&self, stream: *mut abi::Stream) -> Outcome<Stream<'_>> {
        match NonNull::new(stream) {
            Some(handle) => Ok(Stream { device: self, handle, signalled: AtomicU64::new(0) }),
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

// SAFETY: a buffer may be used from any thread as the plugin's threading class says.
unsafe impl Send for Buffer<'_> {}
// SAFETY: no method changes the buffer, and cases ask for the threading class before they use several threads at once.
unsafe impl Sync for Buffer<'_> {}

impl Drop for Buffer<'_> {
    fn drop(&mut self) {
        if self.device.stuck.load(Ordering::Relaxed) {
            return;
        }
        if let Some(free) = self.device.opened.table.buffer_free {
            // SAFETY: `buffer_alloc` made the buffer, and it is given back once, here; its work is done (`stuck`), or
            // its streams are gone (invariant 2).
            unsafe { free(self.handle.as_ptr()) };
        }
    }
}

impl Buffer<'_> {
    /// Returns a part of it.
    pub(crate) fn part(&self, offset: usize, length: usize) -> BufferRef {
        BufferRef {
            buffer: self.handle.as_ptr(),
            addr: if self.base == 0 { 0 } else { self.base + offset as u64 },
            offset: offset as u64,
            length: length as u64,
        }
    }

    /// Returns all of it.
    pub(crate) fn whole(&self) -> BufferRef {
        self.part(0, self.size)
    }
}
