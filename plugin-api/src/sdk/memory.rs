//! Memory spaces, allocations and copies, from the plugin's side.

use super::error::{Error, Result};
use super::view::TensorView;
use crate::abi::*;
use crate::reserve;
use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A memory space; see [`MemorySpace`].
#[derive(Clone, Copy, Debug)]
pub struct SpaceDesc {
    /// `DEVBAY_SPACE_DEVICE`, `_PINNED_HOST` or `_UNIFIED`.
    pub kind: u32,
    /// `DEVBAY_SPACE_*` flags.
    pub flags: u64,
    /// Total memory; 0 if unknown.
    pub bytes_total: u64,
    /// Largest allocation; 0 for no limit except the total.
    pub alloc_max: u64,
    /// Alignment of allocations, a power of two.
    pub alloc_align: u64,
    /// Alignment of operands' offsets, a power of two.
    pub bind_align: u64,
    /// Largest operand; 0 for no limit.
    pub bind_max: u64,
    /// Alignment of copies' offsets, a power of two.
    pub copy_align: u64,
    /// Granularity of copies in bytes.
    pub copy_granule: u64,
}

impl Default for SpaceDesc {
    /// Describes host memory that the device uses directly, without limits.
    fn default() -> Self {
        Self {
            kind: DEVBAY_SPACE_UNIFIED,
            flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
            bytes_total: 0,
            alloc_max: 0,
            alloc_align: 64,
            bind_align: 64,
            bind_max: 0,
            copy_align: 1,
            copy_granule: 1,
        }
    }
}

/// Request to [`super::Device::alloc`].
pub struct AllocRequest<'a> {
    /// Position in the device's spaces.
    pub space_idx: usize,
    /// Size in bytes; may be 0.
    pub size_bytes: usize,
    /// Alignment in bytes, a power of two.
    pub align: usize,
    /// A hint, `DEVBAY_USAGE_*`.
    pub usage: u32,
    /// The tensor that the buffer will hold, in typed spaces.
    pub tensor: Option<TensorView<'a>>,
}

/// A handle of the device's native API; see [`crate::abi::NativeHandle`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Native {
    /// Type of the handle: `DEVBAY_NATIVE_*`.
    pub kind: u32,
    /// The handle.
    pub value: u64,
    /// Additional data that the kind needs; else 0.
    pub aux: u64,
}

impl Native {
    /// Creates a handle from a memory address.
    pub fn address(value: u64) -> Self {
        Self { kind: DEVBAY_NATIVE_ADDRESS, value, aux: 0 }
    }

    /// Returns the value if the handle is of this kind.
    ///
    /// # Errors
    /// Unsupported for a handle of another kind.
    pub fn of_kind(self, kind: u32) -> Result<u64> {
        if self.kind == kind {
            Ok(self.value)
        } else {
            Err(Error::unsupported(format!("a native handle of kind {}, expected {kind}", self.kind)))
        }
    }
}

/// Request to [`super::Device::import`].
#[derive(Clone, Copy, Debug)]
pub struct ImportRequest {
    /// Position in the device's spaces.
    pub space_idx: usize,
    /// Native handle of the first byte. An address is not 0, and is aligned as the space's operands are.
    pub native: Native,
    /// Usable bytes.
    pub size_bytes: usize,
}

/// Current memory use of a space; see [`MemoryInfo`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MemoryUse {
    /// Bytes that the instance has allocated.
    pub bytes_in_use: u64,
    /// Bytes still available to an allocation.
    pub bytes_available: u64,
}

/// Result of [`super::Device::alloc`].
pub struct Allocated<B> {
    /// The allocation.
    pub buffer: B,
    /// Its address, 0 if it has none.
    pub base: u64,
    /// Usable bytes.
    pub size_bytes: usize,
}

/// Request to [`super::Device::create_stream`].
pub struct StreamRequest<'a> {
    /// A hint, `DEVBAY_STREAM_*`.
    pub kind: u32,
    /// A hint: above 0 is more urgent.
    pub priority: i32,
    /// A name for traces.
    pub label: &'a str,
}

/// A buffer as its handle points to it. The plugin's buffer comes first, so that the address is also that of
/// a `B`.
#[repr(C)]
pub(crate) struct BufferBox<B> {
    pub(crate) buffer: B,
    /// Bytes that the host may use.
    pub(crate) size_bytes: u64,
}

/// A range of a buffer in a copy.
pub struct Region<'a, B> {
    /// The allocation; None for host memory on devices with HOST_REFS.
    pub buffer: Option<&'a B>,
    /// Address of the first byte, 0 if the allocation has none.
    pub addr: u64,
    /// First byte within the allocation.
    pub offset: usize,
}

/// Source and destination of a copy.
pub enum CopyKind<'a, B> {
    /// From host memory into a buffer.
    HostToBuffer(*const u8, Region<'a, B>),
    /// From a buffer into host memory.
    BufferToHost(Region<'a, B>, *mut u8),
    /// Within the device.
    BufferToBuffer(Region<'a, B>, Region<'a, B>),
}

/// A copy; its memory is lent until a point signalled after the copy is reported.
pub struct CopyRequest<'a, B> {
    /// Ends of the copy.
    pub kind: CopyKind<'a, B>,
    /// Bytes, not 0.
    pub size_bytes: usize,
}

impl<'a, B> CopyRequest<'a, B> {
    /// Reads and checks a description; returns None if there is nothing to copy.
    ///
    /// # Safety
    /// `desc` is as [`CopyDesc`] says, and its handles are [`BufferBox`]es of `B`.
    pub(crate) unsafe fn read(desc: *const CopyDesc) -> Result<Option<Self>> {
        // SAFETY: `desc` is NULL or a struct as `CopyDesc` says (# Safety).
        let desc = unsafe { read_struct(desc) }.map_err(|e| Error::invalid(e.to_string()))?;
        let size = desc.size_bytes;
        let region = |side: &str, r: &BufferRef| -> Result<Region<'a, B>> {
            if size > r.length {
                return Err(Error::invalid(format!("copy of {size} bytes, but the {side} has {}", r.length)));
            }
            if r.buffer.is_null() && r.addr == 0 && size > 0 {
                return Err(Error::invalid(format!("copy without a {side}")));
            }
            // SAFETY: NULL, or a `BufferBox` of `B` (# Safety), which the host has not freed (B9).
            let buffer = unsafe { r.buffer.cast::<BufferBox<B>>().as_ref() };
            if let Some(buffer) = buffer
                && r.offset.checked_add(r.length).is_none_or(|end| end > buffer.size_bytes)
            {
                return Err(Error::invalid(format!(
                    "a {side} of {} bytes from {} on, but its buffer has {}",
                    r.length, r.offset, buffer.size_bytes
                )));
            }
            Ok(Region {
                buffer: buffer.map(|buffer| &buffer.buffer),
                addr: r.addr,
                offset: r.offset as usize,
            })
        };
        let host = |side: &str, pointer: *const core::ffi::c_void| -> Result<*mut u8> {
            if pointer.is_null() && size > 0 {
                return Err(Error::invalid(format!("copy without a host {side}")));
            }
            Ok(pointer.cast_mut().cast())
        };
        let kind = match desc.kind {
            DEVBAY_COPY_HOST_TO_BUFFER => {
                CopyKind::HostToBuffer(host("source", desc.host_src)?, region("destination", &desc.dst)?)
            }
            DEVBAY_COPY_BUFFER_TO_HOST => {
                CopyKind::BufferToHost(region("source", &desc.src)?, host("destination", desc.host_dst)?)
            }
            DEVBAY_COPY_BUFFER_TO_BUFFER => {
                let (src, dst) = (&desc.src, &desc.dst);
                let end = |r: &BufferRef| r.offset.saturating_add(size);
                let apart = end(src) <= dst.offset || end(dst) <= src.offset;
                if src.buffer == dst.buffer && !src.buffer.is_null() && !apart {
                    return Err(Error::invalid("copy between overlapping ranges of one buffer"));
                }
                CopyKind::BufferToBuffer(region("source", src)?, region("destination", dst)?)
            }
            kind => return Err(Error::unsupported(format!("copy of kind {kind}"))),
        };
        Ok((size > 0).then_some(Self { kind, size_bytes: size as usize }))
    }

    /// Returns the source and destination addresses, for memory that the processor can access.
    pub fn host_addresses(&self) -> (*const u8, *mut u8) {
        match &self.kind {
            CopyKind::HostToBuffer(src, dst) => (*src, dst.addr as *mut u8),
            CopyKind::BufferToHost(src, dst) => (src.addr as *const u8, *dst),
            CopyKind::BufferToBuffer(src, dst) => (src.addr as *const u8, dst.addr as *mut u8),
        }
    }

    /// Copies immediately, between memory that the processor can access.
    pub fn run_on_host(&self) {
        let (src, dst) = self.host_addresses();
        // SAFETY: the host lends both ranges for the copy (B9), and they were checked against their
        // sizes; `copy` also takes ranges that overlap.
        unsafe { core::ptr::copy(src, dst, self.size_bytes) };
    }
}

/// Limit on the total size of a memory space's buffers, and their current total
/// ([`super::Options::memory_limit`]).
pub struct Budget {
    limit: u64,
    used: AtomicU64,
}

impl Budget {
    /// Creates a budget, with a limit in bytes if there is one.
    pub fn new(limit: Option<u64>) -> Arc<Self> {
        Arc::new(Self { limit: limit.unwrap_or(u64::MAX), used: AtomicU64::new(0) })
    }

    /// Returns the number of bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes left; without a limit, u64::MAX minus the bytes in use.
    pub fn left(&self) -> u64 {
        self.limit.saturating_sub(self.used())
    }

    /// Reserves bytes until the result is dropped.
    ///
    /// # Errors
    /// Out of memory beyond the limit.
    pub fn take(self: &Arc<Self>, bytes: u64) -> Result<Share> {
        let add = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= self.limit);
        match self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Share { budget: Arc::clone(self), bytes }),
            Err(used) => Err(Error::out_of_memory(format!(
                "{bytes} bytes beside {used}, devbay.memory_limit is {}",
                self.limit
            ))),
        }
    }
}

/// Bytes reserved from a [`Budget`].
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Host memory as a device's buffer.
pub struct HostBuffer {
    start: NonNull<u8>,
    /// Layout of the allocation; None for external memory.
    layout: Option<Layout>,
    /// Returned to the budget when the memory is freed.
    share: Option<Share>,
}

// SAFETY: the buffer only owns the memory, and streams order the accesses to it (B12).
unsafe impl Send for HostBuffer {}
// SAFETY: no method reads or writes the memory.
unsafe impl Sync for HostBuffer {}

impl HostBuffer {
    /// Allocates as [`HostBuffer::alloc`] does, within a budget.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc_within(request: &AllocRequest<'_>, budget: &Arc<Budget>) -> Result<Allocated<Self>> {
        let share = budget.take(request.size_bytes as u64)?;
        let mut allocated = Self::alloc(request)?;
        allocated.buffer.share = Some(share);
        Ok(allocated)
    }

    /// Allocates the requested memory.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(request: &AllocRequest<'_>) -> Result<Allocated<Self>> {
        let size_bytes = request.size_bytes.max(1);
        let layout = Layout::from_size_align(size_bytes, request.align)
            .map_err(|_| Error::out_of_memory(format!("{size_bytes} bytes cannot be addressed")))?;
        // SAFETY: the layout has a size of at least 1.
        let start = reserve::asking(|| unsafe { std::alloc::alloc(layout) });
        let start = NonNull::new(start).ok_or_else(|| Error::out_of_memory(format!("{size_bytes} bytes")))?;
        Ok(Allocated {
            base: start.as_ptr() as u64,
            size_bytes: request.size_bytes,
            buffer: Self { start, layout: Some(layout), share: None },
        })
    }

    /// Wraps external memory, which is not freed.
    ///
    /// # Errors
    /// Invalid for an address of 0; unsupported for a handle that is not an address.
    pub fn import(request: &ImportRequest) -> Result<Allocated<Self>> {
        let base = request.native.of_kind(DEVBAY_NATIVE_ADDRESS)?;
        let start = NonNull::new(core::ptr::with_exposed_provenance_mut::<u8>(base as usize))
            .ok_or_else(|| Error::invalid("memory at address 0"))?;
        let buffer = Self { start, layout: None, share: None };
        Ok(Allocated { base, size_bytes: request.size_bytes, buffer })
    }

    /// Returns its first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }
}

impl Drop for HostBuffer {
    fn drop(&mut self) {
        if let Some(layout) = self.layout {
            // SAFETY: allocated with this layout, and freed once, here.
            unsafe { std::alloc::dealloc(self.start.as_ptr(), layout) };
        }
        self.share = None;
    }
}
