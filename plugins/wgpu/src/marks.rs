//! Marks of launches in the host's timeline, by the device's own clock.
//!
//! While the host listens, each launch has a pass of its own with a time at its begin and end. Times are ticks of the
//! device's clock, which starts anywhere: the last one of a submission is taken for the moment at which the wait for it
//! returned. So marks are as long as the work was, and as a whole late by what waking a thread takes.

use crate::device::Shared;
use crate::memory::{Purpose, Raw};
use crate::worker::Mapped;
use std::sync::Arc;

/// Launches of a submission that are marked; the others are not.
const MARKED_MAX: u32 = 2048;

/// Times of the launches that were recorded since the last submission.
pub struct Marks {
    set: wgpu::QuerySet,
    names: Vec<Box<str>>,
}

impl Marks {
    /// None if the host does not listen, or the device has no clock.
    pub fn of(shared: &Shared) -> Option<Self> {
        if !cfg!(unix) || !shared.host.traces() || !shared.timestamps {
            return None;
        }
        let set = shared.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: None,
            ty: wgpu::QueryType::Timestamp,
            count: 2 * MARKED_MAX,
        });
        Some(Self { set, names: Vec::new() })
    }

    /// Where the pass of the next launch writes its times; None when there are no more.
    pub fn next(&mut self, name: &str) -> Option<wgpu::ComputePassTimestampWrites<'_>> {
        let at = self.names.len() as u32;
        if at >= MARKED_MAX {
            return None;
        }
        self.names.push(name.into());
        Some(wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(2 * at),
            end_of_pass_write_index: Some(2 * at + 1),
        })
    }

    /// Records that the times are brought to the host; None if nothing was marked, or memory is short.
    pub fn resolve(self, shared: &Shared, encoder: &mut wgpu::CommandEncoder) -> Option<Times> {
        let n = self.names.len() as u32;
        let size = 16 * u64::from(n);
        let ticks = (n > 0).then(|| shared.pool.take(shared, Purpose::Readback, size).ok()).flatten()?;
        let resolved = shared.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("times"),
            size,
            usage: wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        encoder.resolve_query_set(&self.set, 0..2 * n, &resolved, 0);
        encoder.copy_buffer_to_buffer(&resolved, 0, &ticks.buffer, 0, size);
        Some(Times { ticks, names: self.names, mapped: Arc::default() })
    }
}

/// Times of a submission that is under way.
pub struct Times {
    ticks: Raw,
    names: Vec<Box<str>>,
    mapped: Arc<Mapped>,
}

impl Times {
    /// Has them mapped as soon as the device is done with them.
    pub fn map(&self) {
        Mapped::request(&self.mapped, &self.ticks);
    }

    /// Hands them to the host, when the submission is done: `end_ns` is now.
    pub fn report(self, shared: &Shared, track: &str, end_ns: u64) {
        if self.mapped.wait(shared) {
            if let Ok(bytes) = self.ticks.buffer.get_mapped_range(..16 * self.names.len() as u64) {
                let tick =
                    |i: usize| bytes.get(8 * i..8 * i + 8).map_or(0, bytemuck::pod_read_unaligned::<u64>);
                let last = (0..2 * self.names.len()).map(tick).max().unwrap_or(0);
                let period = f64::from(shared.queue.get_timestamp_period());
                let at = |i: usize| end_ns.saturating_sub(((last - tick(i)) as f64 * period) as u64);
                for (i, name) in self.names.iter().enumerate() {
                    let name = if name.is_empty() { "launch" } else { name };
                    shared.host.trace(name, track, at(2 * i)..at(2 * i + 1));
                }
            }
            self.ticks.buffer.unmap();
            shared.pool.give(self.ticks);
        }
    }
}

/// Nanoseconds of the system's monotonic clock.
#[cfg(unix)]
pub fn now_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Of a system whose clock is not known: nothing is marked there.
#[cfg(not(unix))]
pub fn now_ns() -> u64 {
    0
}
