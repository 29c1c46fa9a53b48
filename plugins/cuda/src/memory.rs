//! Memory: the device's from a pool of the driver's, the host's page-locked from a pool of our own.
//!
//! The host frees a buffer only when no work uses it any more (B9), so freed memory can be reused at once. The driver's pool
//! allocates and frees in the order of a stream. Ours uses one stream on which nothing else runs, and so never waits for
//! kernels, as `cuMemFree` does. Locking pages is slow, so page-locked memory is kept.

use crate::device::{SPACE_DEVICE, SPACE_PINNED, Shared, address};
use crate::driver::{Address, Driver, memory_of};
use crate::library::call;
use cudarc::driver::sys::{
    self, CUmemPool_attribute, CUmemoryPool, CUmemorytype, CUpointer_attribute, CUstream, CUstream_flags,
};
use devbay_plugin_api::abi::{DEVBAY_NATIVE_ADDRESS, DEVBAY_STATUS_OUT_OF_MEMORY};
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes of free page-locked memory that a device keeps.
const PINNED_KEPT_MAX: usize = 256 << 20;
/// Allocations begin and end at multiples of this: kernels write whole words, and read vectors. The driver's own
/// allocations begin at such multiples.
const GRANULE: usize = 256;

const _: () = assert!(size_of::<sys::CUmemPoolProps>() == 88);

/// The device's memory.
#[derive(Default)]
pub struct DevicePool {
    /// None where the driver has no pools.
    pool: OnceLock<Pool>,
    in_use: AtomicU64,
}

/// The driver's pool, and the stream that orders it.
struct Pool {
    pool: CUmemoryPool,
    stream: CUstream,
}

impl DevicePool {
    /// Makes the pool.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn open(&self, shared: &Shared) -> Result<()> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let props = sys::CUmemPoolProps {
            allocType: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
            // Of this process alone.
            handleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
            location: memory_of(shared.device),
            win32SecurityAttributes: null_mut(),
            // Newer headers have the pool's maximum size among these bytes; 0 is no limit.
            reserved: [0; 64],
        };
        let (mut pool, mut stream) = (null_mut(), null_mut());
        // SAFETY: the call writes `pool` and reads `props`; both outlive it.
        let code = unsafe { call!(functions, sys::cuMemPoolCreate(&mut pool, &props)) };
        shared.done("cuMemPoolCreate", code)?;
        // The pool keeps free memory until the driver needs it elsewhere.
        let mut threshold = u64::MAX;
        let value = (&raw mut threshold).cast();
        // SAFETY: the pool was just made; the attribute is a u64, as `threshold` is.
        let code = unsafe {
            call!(
                functions,
                sys::cuMemPoolSetAttribute(
                    pool,
                    CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
                    value
                )
            )
        };
        shared.done("cuMemPoolSetAttribute", code)?;
        // Such a stream does not wait for the default one.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the call writes `stream`, which outlives it.
        let code = unsafe { call!(functions, sys::cuStreamCreateWithPriority(&mut stream, flags, 0)) };
        shared.done("cuStreamCreate", code)?;
        let _ = self.pool.set(Pool { pool, stream });
        Ok(())
    }

    /// Lets another device reach the pool.
    ///
    /// # Errors
    /// Errors of the driver; unsupported without a pool.
    pub fn share(&self, shared: &Shared, desc: &sys::CUmemAccessDesc) -> Result<()> {
        let pool = self.pool.get().ok_or_else(|| Error::unsupported("a device without pools of memory"))?;
        let _current = shared.current()?;
        // SAFETY: `destroy` has not run, since `shared` is borrowed; the call reads one `desc`.
        let code = unsafe { call!(shared.driver.functions, sys::cuMemPoolSetAccess(pool.pool, desc, 1)) };
        shared.done("cuMemPoolSetAccess", code)
    }

    fn take(&self, shared: &Shared, size: usize) -> Result<Address> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let mut at = 0;
        let Some(pool) = self.pool.get() else {
            // SAFETY: the call writes `at`, which outlives it.
            let code = unsafe { call!(functions, sys::cuMemAlloc_v2(&mut at, size)) };
            shared.done("cuMemAlloc", code)?;
            self.in_use.fetch_add(size as u64, Ordering::Relaxed);
            return Ok(at);
        };
        let get = |at: &mut Address| {
            // SAFETY: the call writes `at`; pool and stream live as long as `shared`.
            let code =
                unsafe { call!(functions, sys::cuMemAllocFromPoolAsync(at, size, pool.pool, pool.stream)) };
            shared.done("cuMemAllocFromPoolAsync", code)
        };
        if let Err(error) = get(&mut at) {
            if error.status() != DEVBAY_STATUS_OUT_OF_MEMORY {
                return Err(error);
            }
            // Free memory may be fragmented: return it to the driver, and try once more.
            // SAFETY: the stream lives as long as `shared`.
            let code = unsafe { call!(functions, sys::cuStreamSynchronize(pool.stream)) };
            shared.done("cuStreamSynchronize", code)?;
            // SAFETY: the pool lives as long as `shared`.
            let code = unsafe { call!(functions, sys::cuMemPoolTrimTo(pool.pool, 0)) };
            shared.done("cuMemPoolTrimTo", code)?;
            get(&mut at)?;
        }
        // Other streams may use it from now on. Nothing runs on this one, so that this does not wait for kernels.
        // SAFETY: the stream lives as long as `shared`.
        let code = unsafe { call!(functions, sys::cuStreamSynchronize(pool.stream)) };
        shared.done("cuStreamSynchronize", code)?;
        self.in_use.fetch_add(size as u64, Ordering::Relaxed);
        Ok(at)
    }

    fn give(&self, shared: &Shared, at: Address, size: usize) {
        self.in_use.fetch_sub(size as u64, Ordering::Relaxed);
        let Ok(_current) = shared.current_even_lost() else { return };
        let functions = &shared.driver.functions;
        let code = match self.pool.get() {
            // SAFETY: allocated by `take`, freed once; no work uses it (B9).
            Some(pool) => unsafe { call!(functions, sys::cuMemFreeAsync(at, pool.stream)) },
            // SAFETY: allocated by `take`, freed once; no work uses it (B9).
            None => unsafe { call!(functions, sys::cuMemFree_v2(at)) },
        };
        if let Err(error) = shared.done("freeing memory", code) {
            shared.host.log(LogLevel::Warn, error.text());
        }
    }

    /// Returns the memory in use, and the memory that is available.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn usage(&self, shared: &Shared) -> Result<MemoryUse> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes `free` and `total`, which outlive it.
        let code = unsafe { call!(functions, sys::cuMemGetInfo_v2(&mut free, &mut total)) };
        shared.done("cuMemGetInfo", code)?;
        let mut available = free as u64;
        if let Some(pool) = self.pool.get() {
            let number = |attribute: CUmemPool_attribute| -> Result<u64> {
                let mut value = 0u64;
                let to = (&raw mut value).cast();
                // SAFETY: the pool lives as long as `shared`; both attributes are u64, as `value` is.
                let code = unsafe { call!(functions, sys::cuMemPoolGetAttribute(pool.pool, attribute, to)) };
                shared.done("cuMemPoolGetAttribute", code)?;
                Ok(value)
            };
            let reserved = number(CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT)?;
            available +=
                reserved.saturating_sub(number(CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT)?);
        }
        Ok(MemoryUse { bytes_in_use: self.in_use.load(Ordering::Relaxed), bytes_available: available })
    }

    /// Destroys pool and stream. The context has to be current, and no buffer may be left.
    pub fn destroy(&self, driver: &Driver) {
        let Some(pool) = self.pool.get() else { return };
        // SAFETY: made by `open`, destroyed once, by `Shared` when it is dropped; every buffer keeps `Shared` alive.
        unsafe { call!(driver.functions, sys::cuStreamSynchronize(pool.stream)) };
        // SAFETY: made by `open`; `Shared` calls `destroy` once, in drop, when no buffer is left to use the stream.
        unsafe { call!(driver.functions, sys::cuStreamDestroy_v2(pool.stream)) };
        // SAFETY: made by `open`; `Shared` calls `destroy` once, in drop, when no buffer is left to use the pool.
        unsafe { call!(driver.functions, sys::cuMemPoolDestroy(pool.pool)) };
    }
}

/// Device memory that is written once, and freed when dropped.
pub struct Table {
    shared: Arc<Shared>,
    at: Address,
    size: usize,
}

impl Table {
    /// Makes a table of these numbers, and returns when the device has them.
    ///
    /// # Errors
    /// Out of memory, and errors of the driver.
    pub fn new(shared: &Arc<Shared>, words: &[u32]) -> Result<Self> {
        let size = size_of_val(words).max(1).next_multiple_of(GRANULE);
        let table = Self { shared: Arc::clone(shared), at: shared.memory.take(shared, size)?, size };
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let stream = shared.memory.pool.get().map_or(null_mut(), |pool| pool.stream);
        // SAFETY: both ranges have this size, and live until the stream is done, for which this waits.
        let code = unsafe {
            call!(
                functions,
                sys::cuMemcpyAsync(table.at, address(words.as_ptr()), size_of_val(words), stream)
            )
        };
        shared.done("cuMemcpyAsync", code)?;
        // SAFETY: the pool's stream lives as long as `shared`, and the default one as long as the context.
        shared.done("cuStreamSynchronize", unsafe { call!(functions, sys::cuStreamSynchronize(stream)) })?;
        Ok(table)
    }

    /// Its first address.
    pub fn address(&self) -> Address {
        self.at
    }

    /// Its bytes, as a kernel counts them.
    pub fn size(&self) -> u64 {
        self.size as u64
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        self.shared.memory.give(&self.shared, self.at, self.size);
    }
}

/// Page-locked host memory.
pub struct Pinned {
    start: *mut u8,
    size: usize,
}

// SAFETY: the value owns the memory, and streams order all accesses to it (B12).
unsafe impl Send for Pinned {}
// SAFETY: streams order all accesses to the memory (B12), which the value owns.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Its first byte.
    pub fn start(&self) -> *mut u8 {
        self.start
    }
}

/// Free page-locked memory by size.
#[derive(Default)]
pub struct PinnedPool {
    free: Mutex<FreePinned>,
    in_use: AtomicU64,
}

#[derive(Default)]
struct FreePinned {
    by_size: BTreeMap<usize, Vec<Pinned>>,
    bytes: usize,
}

/// Bytes that one thread copies at a time. A single thread reaches about a fifth of the device's rate.
const COPY_GRAIN: usize = 256 << 10;

/// Copies between the host's memory and staging memory, on several of the host's threads if it is large.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
pub unsafe fn copy_on_host(host: &Host, from: *const u8, to: *mut u8, len: usize) {
    let (source, target) = (SendPtr(from.cast_mut()), SendPtr(to));
    let copied = host.parallel_for(len, COPY_GRAIN, |range, _| {
        // SAFETY: the caller vouches for both ranges, and each chunk has its own part of them.
        unsafe { std::ptr::copy_nonoverlapping(source.at(range.start), target.at(range.start), range.len()) };
        Ok(())
    });
    if copied.is_err() {
        // The run was cancelled, and chunks were left out. A requested copy is made nevertheless.
        // SAFETY: the caller guarantees both ranges (# Safety), and `parallel_for` has returned, so no chunk runs any
        // more.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

/// Rounds a size up to eighths of a power of two, so that at most an eighth is lost.
fn size_class(size: usize) -> usize {
    let size = size.max(4096);
    size.next_multiple_of((size.next_power_of_two() / 16).max(4096))
}

impl PinnedPool {
    /// Returns memory of at least `size` bytes, aligned to pages.
    ///
    /// # Errors
    /// Out of memory.
    pub fn take(&self, shared: &Shared, size: usize) -> Result<Pinned> {
        let class = size_class(size);
        {
            let mut free = lock(&self.free);
            if let Some(pinned) = free.by_size.get_mut(&class).and_then(Vec::pop) {
                free.bytes -= class;
                self.in_use.fetch_add(class as u64, Ordering::Relaxed);
                return Ok(pinned);
            }
        }
        let _current = shared.current()?;
        let mut start = null_mut::<c_void>();
        // Every context of the process may use it.
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE;
        // SAFETY: the call writes `start`, which outlives it.
        let code = unsafe { call!(shared.driver.functions, sys::cuMemHostAlloc(&mut start, class, flags)) };
        shared.done("cuMemHostAlloc", code)?;
        self.in_use.fetch_add(class as u64, Ordering::Relaxed);
        Ok(Pinned { start: start.cast(), size: class })
    }

    /// Takes memory back that no work uses.
    pub fn give(&self, shared: &Shared, pinned: Pinned) {
        self.in_use.fetch_sub(pinned.size as u64, Ordering::Relaxed);
        let mut free = lock(&self.free);
        if free.bytes + pinned.size <= PINNED_KEPT_MAX {
            free.bytes += pinned.size;
            free.by_size.entry(pinned.size).or_default().push(pinned);
            return;
        }
        drop(free);
        if let Ok(_current) = shared.current_even_lost() {
            release(shared.driver, &pinned);
        }
    }

    /// Returns the memory in use, including staging memory, and the system's available memory; 0 where that is unknown.
    pub fn usage(&self) -> MemoryUse {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        MemoryUse {
            bytes_in_use: self.in_use.load(Ordering::Relaxed),
            bytes_available: kibibytes.unwrap_or(0) << 10,
        }
    }

    /// Frees all memory. The context has to be current.
    pub fn free_all(&self, driver: &Driver) {
        let free = std::mem::take(&mut *lock(&self.free));
        free.by_size.values().flatten().for_each(|pinned| release(driver, pinned));
    }
}

fn release(driver: &Driver, pinned: &Pinned) {
    // SAFETY: allocated by `take`, and taken out of the pool by the caller; no work uses it (B9).
    unsafe { call!(driver.functions, sys::cuMemFreeHost(pinned.start.cast())) };
}

/// A buffer in one of the device's memory spaces.
pub struct CudaBuffer {
    shared: Arc<Shared>,
    memory: Memory,
    base: Address,
}

enum Memory {
    Device {
        at: Address,
        size: usize,
    },
    /// None once it is returned to the pool.
    Pinned(Option<Pinned>),
    /// Memory that the caller owns.
    Imported(Address),
}

impl CudaBuffer {
    /// Allocates a buffer.
    ///
    /// # Errors
    /// Out of memory; invalid for a space that the device does not have.
    pub fn alloc(shared: &Arc<Shared>, request: &AllocRequest<'_>) -> Result<Allocated<Self>> {
        // Room to begin at a multiple of more than the driver's own alignment.
        let size = request.size_bytes.max(1).checked_next_multiple_of(GRANULE);
        let size = size.and_then(|size| size.checked_add(request.align.saturating_sub(GRANULE)));
        let size = size.ok_or_else(|| Error::out_of_memory(format!("{} bytes", request.size_bytes)))?;
        let memory = match request.space_idx {
            SPACE_DEVICE => Memory::Device { at: shared.memory.take(shared, size)?, size },
            SPACE_PINNED => Memory::Pinned(Some(shared.pinned.take(shared, size)?)),
            other => return Err(Error::invalid(format!("memory space {other}, there are 2"))),
        };
        let mut buffer = Self { shared: Arc::clone(shared), memory, base: 0 };
        buffer.base = buffer.start().next_multiple_of(request.align as u64);
        Ok(Allocated { base: buffer.address(), size_bytes: request.size_bytes, buffer })
    }

    /// Wraps memory that the caller owns and frees.
    ///
    /// # Errors
    /// Invalid for memory that the driver does not know, or knows as another device's or smaller.
    pub fn import(shared: &Arc<Shared>, request: &ImportRequest) -> Result<Allocated<Self>> {
        let at = request.native.of_kind(DEVBAY_NATIVE_ADDRESS)?;
        let _current = shared.current()?;
        let number = |attribute: CUpointer_attribute| -> Result<u64> {
            // Some attributes are 32 bits wide, and written to the lower half.
            let mut value = 0u64;
            let to = (&raw mut value).cast();
            // SAFETY: `value` has room for every one of these attributes, 8 bytes at most; the driver looks the address up
            // without reading there.
            let code =
                unsafe { call!(shared.driver.functions, sys::cuPointerGetAttribute(to, attribute, at)) };
            let known = shared.driver.check("cuPointerGetAttribute", code);
            known.map_err(|error| Error::invalid(format!("memory at {at:#x}: {}", error.text())))?;
            Ok(value)
        };
        let kind = number(CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE)?;
        let host = CUmemorytype::CU_MEMORYTYPE_HOST as u64;
        let device = CUmemorytype::CU_MEMORYTYPE_DEVICE as u64;
        let expected = if request.space_idx == SPACE_PINNED { host } else { device };
        if kind != expected {
            let text = format!("memory at {at:#x} is of CUDA's type {kind}, the space's is {expected}");
            return Err(Error::invalid(text));
        }
        let owner = number(CUpointer_attribute::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL)?;
        if expected == device && owner != shared.device as u64 {
            let text = format!("memory at {at:#x} is device {owner}'s, not device {}'s", shared.device);
            return Err(Error::invalid(text));
        }
        let end = number(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR)?
            .saturating_add(number(CUpointer_attribute::CU_POINTER_ATTRIBUTE_RANGE_SIZE)?);
        if at.checked_add(request.size_bytes as u64).is_none_or(|wanted| wanted > end) {
            let text = format!("{} bytes at {at:#x}, its allocation ends at {end:#x}", request.size_bytes);
            return Err(Error::invalid(text));
        }
        let buffer = Self { shared: Arc::clone(shared), memory: Memory::Imported(at), base: at };
        Ok(Allocated { base: at, size_bytes: request.size_bytes, buffer })
    }

    /// Its first address, for the device, and for the host too if it is page-locked: addressing is unified.
    pub fn address(&self) -> Address {
        self.base
    }

    /// Returns the beginning of the allocation.
    fn start(&self) -> Address {
        match &self.memory {
            Memory::Device { at, .. } => *at,
            Memory::Pinned(pinned) => pinned.as_ref().map_or(0, |pinned| address(pinned.start)),
            Memory::Imported(at) => *at,
        }
    }
}

impl Drop for CudaBuffer {
    fn drop(&mut self) {
        match &mut self.memory {
            Memory::Device { at, size } => self.shared.memory.give(&self.shared, *at, *size),
            Memory::Pinned(pinned) => {
                if let Some(pinned) = pinned.take() {
                    self.shared.pinned.give(&self.shared, pinned);
                }
            }
            Memory::Imported(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_class_loses_an_eighth_at_most() {
        for size in [1, 4096, 4097, 100_000, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let class = size_class(size);
            assert!(class >= size && (class <= 8192 || class - size <= size / 8), "{size} in {class}");
            assert_eq!(size_class(class), class);
        }
    }
}
