//! Allocations and staging memory, both pooled.
//!
//! A driver takes microseconds to milliseconds for an allocation, and wgpu clears what it has not seen before. What
//! is freed is kept for the next one of its size class, up to `KEPT_BYTES_MAX` in all.

use crate::device::Shared;
use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bytes of free memory that a device keeps, of each kind.
const KEPT_BYTES_MAX: u64 = 64 << 20;

/// Purpose of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Operands of kernels.
    Operands,
    /// The host writes it, the device copies from it.
    Upload,
    /// The device copies to it, the host reads it.
    Readback,
}

impl Purpose {
    fn usages(self) -> wgpu::BufferUsages {
        match self {
            Self::Operands => {
                wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST
            }
            Self::Upload => wgpu::BufferUsages::MAP_WRITE | wgpu::BufferUsages::COPY_SRC,
            Self::Readback => wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
        }
    }

    fn label(self) -> &'static str {
        match self {
            Self::Operands => "operands",
            Self::Upload => "upload",
            Self::Readback => "readback",
        }
    }
}

/// One of wgpu's buffers, with a number that no other has.
pub struct Raw {
    /// The buffer; an upload buffer is mapped while it is free.
    pub buffer: wgpu::Buffer,
    /// Its number.
    pub id: u64,
    purpose: Purpose,
}

/// Free buffers by purpose and size.
#[derive(Default)]
pub struct Pool {
    free: [Mutex<Free>; 3],
    next_id: AtomicU64,
    /// Rises when a buffer that kernels were bound to is destroyed.
    epoch: AtomicU64,
}

#[derive(Default)]
struct Free {
    by_size: BTreeMap<u64, Vec<Raw>>,
    bytes: u64,
}

/// Sizes are rounded up to eighths of a power of two, so that at most an eighth is lost.
fn size_class(size: u64) -> u64 {
    let size = size.max(256);
    let step = (size.next_power_of_two() / 16).max(256);
    size.next_multiple_of(step)
}

impl Pool {
    /// A buffer of at least `size` bytes.
    ///
    /// # Errors
    /// Out of memory.
    pub fn take(&self, shared: &Shared, purpose: Purpose, size: u64) -> Result<Raw> {
        let exact = size.max(wgpu::COPY_BUFFER_ALIGNMENT).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT);
        let class = size_class(size).min(shared.device.limits().max_buffer_size).max(exact);
        {
            let mut free = lock(&self.free[purpose as usize]);
            if let Some(list) = free.by_size.get_mut(&class)
                && let Some(raw) = list.pop()
            {
                if list.is_empty() {
                    free.by_size.remove(&class);
                }
                free.bytes -= class;
                return Ok(raw);
            }
        }
        match self.create(shared, purpose, class) {
            Err(error) if error.status() == devbay_plugin_api::abi::DEVBAY_STATUS_OUT_OF_MEMORY => {
                self.trim();
                self.create(shared, purpose, class)
            }
            result => result,
        }
    }

    fn create(&self, shared: &Shared, purpose: Purpose, size: u64) -> Result<Raw> {
        let buffer = shared.guarded(|| {
            shared.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(purpose.label()),
                size,
                usage: purpose.usages(),
                mapped_at_creation: purpose == Purpose::Upload,
            })
        })?;
        Ok(Raw { buffer, id: self.next_id.fetch_add(1, Ordering::Relaxed), purpose })
    }

    /// Takes a buffer back that no work uses; an upload buffer is mapped.
    pub fn give(&self, raw: Raw) {
        let size = raw.buffer.size();
        let mut free = lock(&self.free[raw.purpose as usize]);
        if free.bytes + size > KEPT_BYTES_MAX {
            drop(free);
            self.destroy(&raw);
            return;
        }
        free.bytes += size;
        free.by_size.entry(size).or_default().push(raw);
    }

    fn destroy(&self, raw: &Raw) {
        raw.buffer.destroy();
        if raw.purpose == Purpose::Operands {
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Gives all free memory back to the driver.
    pub fn trim(&self) {
        for free in &self.free {
            let all = std::mem::take(&mut *lock(free));
            all.by_size.values().flatten().for_each(|raw| self.destroy(raw));
        }
    }

    /// Returns a number that rises when what is remembered of buffers and kernels becomes stale.
    pub fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    /// Makes what is remembered of buffers and kernels stale.
    pub fn forget(&self) {
        self.epoch.fetch_add(1, Ordering::Release);
    }
}

/// Memory of the host's.
pub struct WgpuBuffer {
    shared: Arc<Shared>,
    raw: Option<Raw>,
}

impl WgpuBuffer {
    /// Memory of at least a size.
    ///
    /// # Errors
    /// Out of memory.
    pub fn alloc(shared: &Arc<Shared>, size_bytes: usize) -> Result<Allocated<Self>> {
        let raw = shared.pool.take(shared, Purpose::Operands, size_bytes as u64)?;
        let buffer = Self { shared: Arc::clone(shared), raw: Some(raw) };
        Ok(Allocated { buffer, base: 0, size_bytes })
    }

    /// wgpu's buffer.
    pub fn raw(&self) -> &Raw {
        self.raw.as_ref().expect("taken in drop alone")
    }
}

impl Drop for WgpuBuffer {
    fn drop(&mut self) {
        if let Some(raw) = self.raw.take() {
            self.shared.pool.give(raw);
        }
    }
}
