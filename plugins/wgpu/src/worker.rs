//! The thread that waits for submissions, in the order in which they were made, and reports their points.
//!
//! One thread per device, asleep while nothing is under way. It blocks in the driver until a submission is done, copies
//! what was read back to the host's memory, and then reports the point: so a point is reported only when the device
//! touches nothing that was enqueued before it (B9). Points without work go the same way, and stay in order.

use crate::device::Shared;
use crate::marks::{Times, now_ns};
use crate::memory::Raw;
use devbay_plugin_api::locks::{lock, unpoisoned, wait};
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::REPORT_WORDS;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Something that was submitted, and what follows when it is done.
pub struct Entry {
    /// Submission to wait for; None if there was nothing to submit.
    pub index: Option<wgpu::SubmissionIndex>,
    /// The stream's points.
    pub timeline: Arc<Timeline>,
    /// The point that is reached then.
    pub value: Option<u64>,
    /// Points of other streams that came before, and whose failure is this one's.
    pub after: Vec<(Arc<Timeline>, u64)>,
    /// Copies to the host.
    pub readbacks: Vec<Readback>,
    /// Staging memory that is free again.
    pub uploads: Vec<Raw>,
    /// Memory of the device's that is free again.
    pub scraps: Vec<Raw>,
    /// Work that fails.
    pub failure: Option<Error>,
    /// Report of launches on their data, if one of them checks it.
    pub report: Option<Report>,
    /// Data for the host's timeline, while it listens.
    pub trace: Option<Trace>,
}

/// A submission as the host's timeline has it.
pub struct Trace {
    /// The stream's name.
    pub track: String,
    /// Time of its submission, by the monotonic clock.
    pub begin_ns: u64,
    /// Launches in it.
    pub n_launches: u32,
    /// Times of the launches.
    pub times: Option<Times>,
}

impl Entry {
    /// A point without work.
    pub fn point(timeline: &Arc<Timeline>, value: u64) -> Self {
        Self {
            index: None,
            timeline: Arc::clone(timeline),
            value: Some(value),
            after: Vec::new(),
            readbacks: Vec::new(),
            uploads: Vec::new(),
            scraps: Vec::new(),
            failure: None,
            report: None,
            trace: None,
        }
    }
}

/// A copy to the host: from staging memory, when the device has filled it.
pub struct Readback {
    /// The staging memory.
    pub raw: Raw,
    /// Its destination.
    pub dst: HostSpan,
    mapped: Arc<Mapped>,
}

/// Success of mapping staging memory, once it is known.
///
/// wgpu calls back from whichever thread finds that the device is done, also one that submits: when a wait for the
/// submission has returned, the callback may still be under way.
#[derive(Default)]
pub struct Mapped {
    outcome: Mutex<Option<bool>>,
    known: Condvar,
}

impl Mapped {
    /// Has staging memory mapped for reading as soon as the device is done with it.
    pub fn request(this: &Arc<Self>, raw: &Raw) {
        let this = Arc::clone(this);
        raw.buffer.map_async(wgpu::MapMode::Read, .., move |result| {
            *lock(&this.outcome) = Some(result.is_ok());
            this.known.notify_all();
        });
    }

    /// Waits until the outcome is known. Returns false on a lost device, which may never call back.
    pub fn wait(&self, shared: &Shared) -> bool {
        let mut outcome = lock(&self.outcome);
        while outcome.is_none() && shared.check().is_ok() {
            outcome = unpoisoned(self.known.wait_timeout(outcome, Duration::from_millis(50))).0;
        }
        outcome.unwrap_or(false)
    }
}

/// Report of a submission's launches on their data, in staging memory that the device will fill.
pub struct Report {
    raw: Raw,
    mapped: Arc<Mapped>,
}

impl Report {
    /// A report that the device copies to staging memory.
    pub fn new(raw: Raw) -> Self {
        Self { raw, mapped: Arc::default() }
    }

    /// Fails if data was at fault; the submission is done.
    fn check(&self, shared: &Shared) -> Result<()> {
        let unread = || Error::internal("what launches report of their data could not be read");
        if !self.mapped.wait(shared) {
            return Err(unread());
        }
        let bytes = self.raw.buffer.get_mapped_range(..).map_err(|_| unread())?;
        let mut words = [0; REPORT_WORDS];
        bytemuck::bytes_of_mut(&mut words).iter_mut().zip(&bytes[..]).for_each(|(to, from)| *to = *from);
        shared.checks.failure(words).map_or(Ok(()), Err)
    }
}

/// Memory of the host's that a copy is lent.
pub struct HostSpan {
    /// Its first byte.
    pub start: *mut u8,
    /// Bytes.
    pub len: usize,
}

// SAFETY: the host lends the memory until a point signalled after the copy is reported (B9).
unsafe impl Send for HostSpan {}

impl HostSpan {
    fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.len
    }
}

impl Readback {
    /// A copy from staging memory that the device will fill.
    pub fn new(raw: Raw, dst: HostSpan) -> Self {
        Self { raw, dst, mapped: Arc::default() }
    }

    /// Returns whether it writes to a part of the host's memory.
    pub fn writes(&self, span: &Range<usize>) -> bool {
        let own = self.dst.addresses();
        own.start < span.end && span.start < own.end
    }

    /// Has the staging memory mapped as soon as the device is done with it.
    fn map(&self) {
        Mapped::request(&self.mapped, &self.raw);
    }

    /// Copies to the host.
    fn finish(&self, shared: &Shared) -> Result<()> {
        let broken = |text: &str| Error::internal(format!("staging memory could not be read: {text}"));
        if !self.mapped.wait(shared) {
            return Err(broken("it was not mapped"));
        }
        let bytes = self.raw.buffer.get_mapped_range(..).map_err(|e| broken(&e.to_string()))?;
        let bytes = bytes.get(..self.dst.len).ok_or_else(|| broken("it is too short"))?;
        // SAFETY: the host lends `len` bytes for writing until a later point is reported (B9); they are not
        // staging memory.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.dst.start, self.dst.len) };
        Ok(())
    }
}

/// Work under way on a device.
#[derive(Default)]
pub struct Worker {
    queue: Mutex<Queue>,
    /// Something was submitted, or the device is closed.
    submitted: Condvar,
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    entries: VecDeque<Entry>,
    /// Memory of the host's that the entry in hand writes to.
    in_hand: Vec<Range<usize>>,
    closed: bool,
}

impl Worker {
    /// Starts the device's thread.
    ///
    /// # Errors
    /// Unavailable if the system gives no thread.
    pub fn start(shared: &Arc<Shared>) -> Result<()> {
        let weak = Arc::downgrade(shared);
        let worker = std::thread::Builder::new()
            .name("devbay-wgpu".to_owned())
            .spawn(move || work(&weak))
            .map_err(|e| Error::unavailable(format!("cannot start the device's thread: {e}")))?;
        *lock(&shared.worker.thread) = Some(worker);
        Ok(())
    }

    /// Ends the thread when all is done that was submitted.
    pub fn stop(&self) {
        lock(&self.queue).closed = true;
        self.submitted.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // A panic in it has been printed; there is nothing left to wait for.
            let _ = thread.join();
        }
    }

    /// Submits, and notes what follows: both in one order for all streams.
    ///
    /// # Errors
    /// Errors of `submit`; then nothing follows.
    pub fn push(
        &self,
        mut entry: Entry,
        submit: impl FnOnce() -> Result<Option<wgpu::SubmissionIndex>>,
    ) -> Result<()> {
        let mut queue = lock(&self.queue);
        entry.index = submit()?;
        entry.readbacks.iter().for_each(Readback::map);
        entry.report.iter().for_each(|report| Mapped::request(&report.mapped, &report.raw));
        entry.trace.iter().flat_map(|trace| &trace.times).for_each(Times::map);
        queue.entries.push_back(entry);
        drop(queue);
        self.submitted.notify_one();
        Ok(())
    }

    /// Returns whether something that was submitted writes to a part of the host's memory.
    pub fn writes(&self, span: &Range<usize>) -> bool {
        let queue = lock(&self.queue);
        queue.in_hand.iter().any(|own| own.start < span.end && span.start < own.end)
            || queue.entries.iter().flat_map(|entry| &entry.readbacks).any(|readback| readback.writes(span))
    }
}

/// The thread.
fn work(weak: &Weak<Shared>) {
    // The device is closed before it is dropped, so this holds nothing alive for longer.
    let Some(shared) = weak.upgrade() else { return };
    let worker = &shared.worker;
    loop {
        let mut queue = lock(&worker.queue);
        queue.in_hand.clear();
        let entry = loop {
            if let Some(entry) = queue.entries.pop_front() {
                break entry;
            }
            if queue.closed {
                return;
            }
            queue = wait(&worker.submitted, queue);
        };
        queue.in_hand.extend(entry.readbacks.iter().map(|readback| readback.dst.addresses()));
        drop(queue);
        finish(&shared, entry);
    }
}

/// Waits for a submission and reports its point.
fn finish(shared: &Arc<Shared>, mut entry: Entry) {
    let outcome = outcome(shared, &mut entry);
    if let Some(trace) = entry.trace.take().filter(|_| outcome.is_ok()) {
        let end_ns = now_ns();
        let name = match trace.n_launches {
            0 => "submission of copies".to_owned(),
            n => format!("submission of {n} launches"),
        };
        shared.host.trace(&name, &format!("{} submissions", trace.track), trace.begin_ns..end_ns);
        if let Some(times) = trace.times {
            times.report(shared, &trace.track, end_ns);
        }
    }
    shared.count_submission();
    // Freed before the point is reported: a thread that waits for it may want the memory.
    for readback in entry.readbacks.drain(..) {
        readback.raw.buffer.unmap();
        shared.pool.give(readback.raw);
    }
    if let Some(report) = entry.report.take() {
        report.raw.buffer.unmap();
        shared.pool.give(report.raw);
    }
    entry.scraps.into_iter().for_each(|raw| shared.pool.give(raw));
    recycle(shared, entry.uploads);
    match (outcome, entry.value) {
        (Err(failure), _) => entry.timeline.fail(failure),
        (Ok(()), Some(value)) => entry.timeline.reach(value),
        (Ok(()), None) => {}
    }
}

fn outcome(shared: &Shared, entry: &mut Entry) -> Result<()> {
    if let Some(index) = entry.index.take() {
        let wait = wgpu::PollType::Wait { submission_index: Some(index), timeout: None };
        let polled = shared.device.poll(wait);
        shared.check()?;
        polled.map_err(|e| Error::internal(format!("waiting for the device failed: {e}")))?;
    }
    shared.check()?;
    for (timeline, value) in &entry.after {
        let (reached, status) = timeline.reached();
        if let Err(failure) = status
            && reached < *value
        {
            return Err(failed_dependency(&failure));
        }
    }
    if let Some(report) = &entry.report {
        report.check(shared)?;
    }
    // Behind a failure nothing is given out.
    if entry.timeline.failure().is_none() {
        entry.readbacks.iter().try_for_each(|readback| readback.finish(shared))?;
    }
    entry.failure.take().map_or(Ok(()), Err)
}

/// Maps staging memory again, for the next upload; it is free when it is mapped.
fn recycle(shared: &Arc<Shared>, uploads: Vec<Raw>) {
    if uploads.is_empty() || shared.check().is_err() {
        return;
    }
    for raw in uploads {
        let (buffer, weak) = (raw.buffer.clone(), Arc::downgrade(shared));
        buffer.map_async(wgpu::MapMode::Write, .., move |result| {
            if let Some(shared) = weak.upgrade().filter(|_| result.is_ok()) {
                shared.pool.give(raw);
            }
        });
    }
    // No work uses them any more, so that this does not wait.
    let _ = shared.device.poll(wgpu::PollType::Poll);
}
