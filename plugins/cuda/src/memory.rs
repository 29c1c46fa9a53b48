//! Memory: the device's from a pool of the driver's, the host's page-locked from a pool of our own.
//!
//! The host frees a buffer only when no work uses it any more (B9), so that freed memory is anybody's at once. The
//! driver's pool gives and takes in the order of a stream; all of ours goes through one stream on which nothing else
//! runs, and so never waits for kernels, as `cuMemFree` does. Locking pages takes long, so they are kept.

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
/// Allocations begin and end at multiples of this: kernels write whole words, and read vectors. The driver's own begin
/// there.
const GRANULE: usize = 256;

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
            // Also where newer headers have a largest size; 0 is no limit.
            reserved: [0; 64],
        };
        let (mut pool, mut stream) = (null_mut(), null_mut());
        // SAFETY: a place for a handle, and properties that outlive the call.
        let code = unsafe { call!(functions, sys::cuMemPoolCreate(&mut pool, &props)) };
        shared.done("cuMemPoolCreate", code)?;
        // Free memory stays until somebody has none; the driver gives it up then.
        let mut threshold = u64::MAX;
        let value = (&raw mut threshold).cast();
        // SAFETY: the pool was just made; the attribute is a u64.
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
        // SAFETY: the driver writes a handle to `stream`, and has nothing else to read.
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
        // SAFETY: the pool lives; the description outlives the call.
        let code = unsafe { call!(shared.driver.functions, sys::cuMemPoolSetAccess(pool.pool, desc, 1)) };
        shared.done("cuMemPoolSetAccess", code)
    }

    fn take(&self, shared: &Shared, size: usize) -> Result<Address> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let mut at = 0;
        let Some(pool) = self.pool.get() else {
            // SAFETY: a place for an address.
            let code = unsafe { call!(functions, sys::cuMemAlloc_v2(&mut at, size)) };
            shared.done("cuMemAlloc", code)?;
            self.in_use.fetch_add(size as u64, Ordering::Relaxed);
            return Ok(at);
        };
        let get = |at: &mut Address| {
            // SAFETY: a place for an address; pool and stream live.
            let code =
                unsafe { call!(functions, sys::cuMemAllocFromPoolAsync(at, size, pool.pool, pool.stream)) };
            shared.done("cuMemAllocFromPoolAsync", code)
        };
        if let Err(error) = get(&mut at) {
            if error.status() != DEVBAY_STATUS_OUT_OF_MEMORY {
                return Err(error);
            }
            // What was freed is in pieces, or what others need: give it back, and ask once more.
            // SAFETY: the stream lives.
            let code = unsafe { call!(functions, sys::cuStreamSynchronize(pool.stream)) };
            shared.done("cuStreamSynchronize", code)?;
            // SAFETY: the pool lives.
            let code = unsafe { call!(functions, sys::cuMemPoolTrimTo(pool.pool, 0)) };
            shared.done("cuMemPoolTrimTo", code)?;
            get(&mut at)?;
        }
        // Other streams may use it from now on. Nothing runs on this one, so that this does not wait for kernels.
        // SAFETY: the stream lives.
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
            // SAFETY: as above.
            None => unsafe { call!(functions, sys::cuMemFree_v2(at)) },
        };
        if let Err(error) = shared.done("freeing memory", code) {
            shared.host.log(LogLevel::Warn, error.text());
        }
    }

    /// Returns the memory in use, and the memory that could be had.
    ///
    /// # Errors
    /// Errors of the driver.
    pub fn usage(&self, shared: &Shared) -> Result<MemoryUse> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two numbers.
        let code = unsafe { call!(functions, sys::cuMemGetInfo_v2(&mut free, &mut total)) };
        shared.done("cuMemGetInfo", code)?;
        let mut available = free as u64;
        if let Some(pool) = self.pool.get() {
            let number = |attribute: CUmemPool_attribute| -> Result<u64> {
                let mut value = 0u64;
                let to = (&raw mut value).cast();
                // SAFETY: the pool lives; both attributes are u64.
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

    /// Gives everything back; the context is current, and no buffer is left.
    pub fn destroy(&self, driver: &Driver) {
        let Some(pool) = self.pool.get() else { return };
        // SAFETY: made by `open`, destroyed once, when nobody uses it: buffers hold what owns this.
        unsafe { call!(driver.functions, sys::cuStreamSynchronize(pool.stream)) };
        // SAFETY: as above.
        unsafe { call!(driver.functions, sys::cuStreamDestroy_v2(pool.stream)) };
        // SAFETY: as above.
        unsafe { call!(driver.functions, sys::cuMemPoolDestroy(pool.pool)) };
    }
}

/// Memory of the device's that is written once, and freed when nobody has it any more.
pub struct Table {
    shared: Arc<Shared>,
    at: Address,
    size: usize,
}

impl Table {
    /// With these numbers; they are there when this returns.
    ///
    /// # Errors
    /// Out of memory, and what the driver says.
    pub fn new(shared: &Arc<Shared>, words: &[u32]) -> Result<Self> {
        let size = size_of_val(words).max(1).next_multiple_of(GRANULE);
        let table = Self { shared: Arc::clone(shared), at: shared.memory.take(shared, size)?, size };
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let stream = shared.memory.pool.get().map_or(null_mut(), |pool| pool.stream);
        // SAFETY: both ranges have the size, and live until the stream is done, which is waited for.
        let code = unsafe {
            call!(
                functions,
                sys::cuMemcpyAsync(table.at, address(words.as_ptr()), size_of_val(words), stream)
            )
        };
        shared.done("cuMemcpyAsync", code)?;
        // SAFETY: the pool's stream, or the default one.
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

/// Page-locked memory of the host's.
pub struct Pinned {
    start: *mut u8,
    size: usize,
}

// SAFETY: the value only owns the memory; who works in it is ordered by streams (B12).
unsafe impl Send for Pinned {}
// SAFETY: as for Send.
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

/// Bytes that one thread copies at a time: one alone moves about a fifth of what the device takes.
const COPY_GRAIN: usize = 256 << 10;

/// Copies between the host's memory and staging memory, on the host's threads if it is much.
///
/// # Safety
/// `from` is readable and `to` writable for `len` bytes, and they do not overlap.
pub unsafe fn copy_on_host(host: &Host, from: *const u8, to: *mut u8, len: usize) {
    let (source, target) = (SendPtr(from.cast_mut()), SendPtr(to));
    let copied = host.parallel_for(len, COPY_GRAIN, |range, _| {
        // SAFETY: the caller's ranges, of which each chunk has its own part.
        unsafe { std::ptr::copy_nonoverlapping(source.at(range.start), target.at(range.start), range.len()) };
        Ok(())
    });
    if copied.is_err() {
        // The run is to end, and chunks were left out. A copy that was asked for is made nevertheless.
        // SAFETY: as above; the loop is over.
        unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    }
}

/// Sizes are rounded up to eighths of a power of two, so that at most an eighth is lost.
fn size_class(size: usize) -> usize {
    let size = size.max(4096);
    size.next_multiple_of((size.next_power_of_two() / 16).max(4096))
}

impl PinnedPool {
    /// Memory of at least `size` bytes, aligned to pages.
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
        // SAFETY: the driver writes an address to `start`, and has nothing else to read.
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

    /// Returns the memory in use, with staging memory, and what the system says that it has; 0 where it does not say.
    pub fn usage(&self) -> MemoryUse {
        let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
        let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
        MemoryUse {
            bytes_in_use: self.in_use.load(Ordering::Relaxed),
            bytes_available: kibibytes.unwrap_or(0) << 10,
        }
    }

    /// Gives everything back; the context is current.
    pub fn free_all(&self, driver: &Driver) {
        let free = std::mem::take(&mut *lock(&self.free));
        free.by_size.values().flatten().for_each(|pinned| release(driver, pinned));
    }
}

fn release(driver: &Driver, pinned: &Pinned) {
    // SAFETY: allocated by `take`, and taken out of the pool; no work uses it.
    unsafe { call!(driver.functions, sys::cuMemFreeHost(pinned.start.cast())) };
}

/// Memory of the host's, that is: of who allocated it.
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
    /// None once it is given back.
    Pinned(Option<Pinned>),
    /// Somebody else's.
    Imported(Address),
}

impl CudaBuffer {
    /// Memory as the request says.
    ///
    /// # Errors
    /// Out of memory; invalid for a space that is not there.
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

    /// Somebody else's memory, which is left to them.
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
            // SAFETY: a place for what the attribute is, 8 bytes at most; the driver only looks the address up.
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
