//! Streams as batched command encoders.
//!
//! Launches and copies are recorded; the first signal or flush behind them submits all of it at once. wgpu has one queue
//! per device, in which submissions run in order, and orders accesses of one buffer within it: so a wait for another
//! stream's point, which was submitted when it was signalled, needs nothing on the device, and only passes on failure.

use crate::device::Shared;
use crate::dispatch::Groups;
use crate::marks::{Marks, now_ns};
use crate::memory::{Purpose, Raw, WgpuBuffer};
use crate::worker::{Entry, HostSpan, Readback, Report, Trace};
use devbay_plugin_api::abi::DEVBAY_STATUS_DEVICE_LOST;
use devbay_plugin_api::locks::{lock, unpoisoned};
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::REPORT_BYTES;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A queue of work.
pub struct WgpuStream {
    shared: Arc<Shared>,
    timeline: Arc<Timeline>,
    label: String,
    recording: Mutex<Recording>,
}

/// Work that was enqueued and not yet submitted.
#[derive(Default)]
pub struct Recording {
    encoder: Option<wgpu::CommandEncoder>,
    /// The pass that launches go into; it is ended before anything else is recorded.
    pass: Option<wgpu::ComputePass<'static>>,
    uploads: Vec<Raw>,
    /// Buffers that copies within one buffer go through.
    scraps: Vec<Raw>,
    readbacks: Vec<Readback>,
    after: Vec<(Arc<Timeline>, u64)>,
    failure: Option<Error>,
    /// Times of launches, while the host listens.
    marks: Option<Marks>,
    n_launches: u32,
    /// Where launches that check their data report ([`devbay_shaders::check`]), once there was one.
    report: Option<Arc<Raw>>,
    /// True if there was such a launch since the last submission.
    has_checks: bool,
    /// Bind groups of earlier launches.
    pub groups: Groups,
}

impl Recording {
    fn is_empty(&self) -> bool {
        self.encoder.is_none() && self.after.is_empty() && self.failure.is_none()
    }

    /// The encoder, outside of a pass.
    fn encoder(&mut self, shared: &Shared, label: &str) -> &mut wgpu::CommandEncoder {
        self.pass = None;
        self.encoder.get_or_insert_with(|| {
            shared.device.create_command_encoder(&wgpu::CommandEncoderDescriptor { label: Some(label) })
        })
    }

    /// Where a launch reports that is recorded next; what it reports is read behind the next submission.
    ///
    /// # Errors
    /// Out of memory.
    pub fn report(&mut self, shared: &Shared, label: &str) -> Result<Arc<Raw>> {
        self.has_checks = true;
        if let Some(report) = &self.report {
            return Ok(Arc::clone(report));
        }
        let raw = Arc::new(shared.pool.take(shared, Purpose::Operands, REPORT_BYTES as u64)?);
        // Once is enough: behind the first report the stream has failed.
        self.encoder(shared, label).clear_buffer(&raw.buffer, 0, Some(REPORT_BYTES as u64));
        Ok(Arc::clone(self.report.insert(raw)))
    }

    /// Records that the report is brought to the host, if a launch since the last submission may have written it.
    ///
    /// # Errors
    /// Out of memory.
    fn take_report(&mut self, shared: &Shared, label: &str) -> Result<Option<Report>> {
        let Some(raw) = self.report.clone().filter(|_| self.has_checks) else {
            return Ok(None);
        };
        let staging = shared.pool.take(shared, Purpose::Readback, REPORT_BYTES as u64)?;
        let encoder = self.encoder(shared, label);
        encoder.copy_buffer_to_buffer(&raw.buffer, 0, &staging.buffer, 0, REPORT_BYTES as u64);
        self.has_checks = false;
        Ok(Some(Report::new(staging)))
    }

    /// The pass that a launch goes into, and the bind groups. A marked launch has a pass of its own.
    pub fn pass(
        &mut self,
        shared: &Shared,
        label: &str,
        name: &str,
    ) -> (&mut wgpu::ComputePass<'static>, &mut Groups) {
        let is_marked = shared.host.traces();
        self.n_launches += 1;
        if self.pass.is_none() || is_marked {
            self.encoder(shared, label);
            if is_marked && self.marks.is_none() {
                self.marks = Marks::of(shared);
            }
            let timestamp_writes = self.marks.as_mut().and_then(|marks| marks.next(name));
            let desc = wgpu::ComputePassDescriptor { label: None, timestamp_writes };
            let encoder = self.encoder.as_mut().expect("made above");
            self.pass = Some(encoder.begin_compute_pass(&desc).forget_lifetime());
        }
        (self.pass.as_mut().expect("made above"), &mut self.groups)
    }
}

impl WgpuStream {
    /// A stream of a device.
    pub fn new(shared: &Arc<Shared>, request: &StreamRequest<'_>) -> Self {
        Self {
            shared: Arc::clone(shared),
            timeline: Arc::default(),
            label: if request.label.is_empty() { "stream".to_owned() } else { request.label.to_owned() },
            recording: Mutex::default(),
        }
    }

    /// Its device.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Records something.
    ///
    /// # Errors
    /// Device lost, and what `body` says.
    pub fn record(&self, body: impl FnOnce(&mut Recording, &str) -> Result<()>) -> Result<()> {
        self.shared.check()?;
        body(&mut lock(&self.recording), &self.label)
    }

    /// Submits what was recorded, and a point behind it.
    fn submit(&self, value: Option<u64>) -> Result<()> {
        let recording = &mut *lock(&self.recording);
        if value.is_none() && recording.is_empty() {
            return Ok(());
        }
        let report = recording.take_report(&self.shared, &self.label)?;
        recording.pass = None;
        let mut encoder = recording.encoder.take();
        let has_work = encoder.is_some();
        let marks = recording.marks.take().zip(encoder.as_mut());
        let times = marks.and_then(|(marks, encoder)| marks.resolve(&self.shared, encoder));
        let entry = Entry {
            index: None,
            timeline: Arc::clone(&self.timeline),
            value,
            after: std::mem::take(&mut recording.after),
            readbacks: std::mem::take(&mut recording.readbacks),
            uploads: std::mem::take(&mut recording.uploads),
            scraps: std::mem::take(&mut recording.scraps),
            failure: recording.failure.take(),
            report,
            trace: (has_work && self.shared.host.traces()).then(|| Trace {
                track: self.label.clone(),
                begin_ns: now_ns(),
                n_launches: std::mem::take(&mut recording.n_launches),
                times,
            }),
        };
        entry.uploads.iter().for_each(|upload| upload.buffer.unmap());
        let shared = &self.shared;
        shared.worker.push(entry, || match encoder {
            Some(encoder) => shared.guarded(|| Some(shared.queue.submit([encoder.finish()]))),
            None => shared.check().map(|()| None),
        })
    }

    /// Submits, and waits until the device touches nothing of what was enqueued.
    fn drain(&self) {
        // Work that cannot be submitted touches nothing.
        let _ = self.submit(None);
        let drained = Arc::new(Timeline::default());
        let signalled = drained.signal(1);
        if signalled.and_then(|()| self.shared.worker.push(Entry::point(&drained, 1), || Ok(None))).is_ok() {
            // On a device that is lost the wait ends with its failure.
            let _ = drained.wait(1);
        }
    }

    /// Waits for readbacks that write to the host memory that is to be read now. This is the one case in which a copy
    /// blocks: the host sends data that was read back, without having waited for it.
    fn settle(&self, start: *const u8, len: usize) {
        let span = start.addr()..start.addr() + len;
        let recorded = lock(&self.recording).readbacks.iter().any(|readback| readback.writes(&span));
        if recorded || self.shared.worker.writes(&span) {
            self.drain();
        }
    }
}

/// Bytes as copies count them.
fn padded(size_bytes: usize) -> u64 {
    (size_bytes as u64).next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT)
}

fn buffer<'a>(region: &Region<'a, WgpuBuffer>) -> Result<&'a wgpu::Buffer> {
    if !(region.offset as u64).is_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT) {
        return Err(Error::invalid(format!("a copy at offset {}, which is no multiple of 4", region.offset)));
    }
    let buffer = region.buffer.ok_or_else(|| Error::invalid("a copy of memory that is not this device's"))?;
    Ok(&buffer.raw().buffer)
}

impl Stream for WgpuStream {
    type Buffer = WgpuBuffer;
    const TIMELINE: bool = true;
    const WAIT: bool = true;
    const ON_REACHED: bool = true;
    const HOST_WAIT: bool = true;
    const FLUSH: bool = true;
    const FAIL: bool = true;

    fn copy(&self, copy: &CopyRequest<'_, WgpuBuffer>) -> Result<()> {
        let shared = &self.shared;
        let size = padded(copy.size_bytes);
        match &copy.kind {
            CopyKind::HostToBuffer(src, dst) => {
                let to = buffer(dst)?;
                self.settle(*src, copy.size_bytes);
                let staging = shared.pool.take(shared, Purpose::Upload, size)?;
                {
                    let mapped = staging.buffer.get_mapped_range_mut(..size);
                    let mut mapped = mapped.map_err(|e| Error::internal(format!("staging memory: {e}")))?;
                    // SAFETY: the host lends the bytes until a later point is reported (B9).
                    let bytes = unsafe { std::slice::from_raw_parts(*src, copy.size_bytes) };
                    mapped.slice(..copy.size_bytes).copy_from_slice(bytes);
                }
                self.record(|recording, label| {
                    let encoder = recording.encoder(shared, label);
                    encoder.copy_buffer_to_buffer(&staging.buffer, 0, to, dst.offset as u64, size);
                    recording.uploads.push(staging);
                    Ok(())
                })
            }
            CopyKind::BufferToHost(src, dst) => {
                let from = buffer(src)?;
                let staging = shared.pool.take(shared, Purpose::Readback, size)?;
                self.record(|recording, label| {
                    let encoder = recording.encoder(shared, label);
                    encoder.copy_buffer_to_buffer(from, src.offset as u64, &staging.buffer, 0, size);
                    let dst = HostSpan { start: *dst, len: copy.size_bytes };
                    recording.readbacks.push(Readback::new(staging, dst));
                    Ok(())
                })
            }
            CopyKind::BufferToBuffer(src, dst) => {
                let (from, to) = (buffer(src)?, buffer(dst)?);
                self.record(|recording, label| {
                    if from != to {
                        let encoder = recording.encoder(shared, label);
                        encoder.copy_buffer_to_buffer(from, src.offset as u64, to, dst.offset as u64, size);
                        return Ok(());
                    }
                    // No copy within one buffer: by way of another.
                    let between = shared.pool.take(shared, Purpose::Operands, size)?;
                    let encoder = recording.encoder(shared, label);
                    encoder.copy_buffer_to_buffer(from, src.offset as u64, &between.buffer, 0, size);
                    encoder.copy_buffer_to_buffer(&between.buffer, 0, to, dst.offset as u64, size);
                    recording.scraps.push(between);
                    Ok(())
                })
            }
        }
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.timeline.signal(value)?;
        self.submit(Some(value))
    }

    fn reached(&self) -> (u64, Result<()>) {
        self.timeline.reached()
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        if !Arc::ptr_eq(&self.shared, &other.shared) {
            return Err(Error::invalid("a wait for a stream of another device"));
        }
        other.timeline.check_signalled(value)?;
        self.record(|recording, _| {
            recording.after.push((Arc::clone(&other.timeline), value));
            Ok(())
        })
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.timeline.on_reached(value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.timeline.host_wait(value, timeout)
    }

    fn flush(&self) -> Result<()> {
        self.submit(None)
    }

    fn has_failed(&self) -> bool {
        self.timeline.has_failed()
    }

    fn failure(&self) -> Option<Error> {
        self.timeline.failure()
    }

    fn fail(&self, failure: Error) -> Result<()> {
        // Earlier work succeeds.
        self.submit(None)?;
        if failure.status() == DEVBAY_STATUS_DEVICE_LOST {
            self.shared.lose(failure.text());
            return Ok(());
        }
        self.record(|recording, _| {
            recording.failure.get_or_insert(failure);
            Ok(())
        })
    }
}

impl Drop for WgpuStream {
    fn drop(&mut self) {
        self.drain();
        self.timeline.abandon();
        let recording = unpoisoned(self.recording.get_mut());
        // Nothing that was enqueued is under way any more, and bind groups that name it go with the stream.
        if let Some(raw) = recording.report.take().and_then(Arc::into_inner) {
            self.shared.pool.give(raw);
        }
    }
}
