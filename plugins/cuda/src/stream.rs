//! Streams: the driver's own, with points that need no object of the host.
//!
//! At a signal the stream writes the point's value to a word of host memory, so that `reached` is a load, and records an
//! event. Other streams wait for the event, and it wakes the stream's thread, which copies data that was read back from
//! staging memory to the host's, and then reports the point.
//!
//! Copies from and to the host go through page-locked staging memory, since the driver may block on any other. Those of
//! more than `STAGED_MAX` bytes do not: they block until the driver has taken or given the bytes.
//!
//! Recorded launches become one of the driver's graphs.
//!
//! Launches that check their data write a report into page-locked memory of the stream, but only when they find a fault
//! ([`devbay_shaders::check`]). The thread reads it at the next point.
//!
//! Failures are found in one of two ways. A code of the driver from which no call recovers loses the device for all streams. A
//! failure that was enqueued ([`Stream::fail`]), or that came with a wait for a failed stream, is known when later points are
//! signalled; they do not write the word, and the thread fails them in their turn.

use crate::device::{Event, Shared, address};
use crate::dnn::DnnHandle;
use crate::driver::Address;
use crate::library::call;
use crate::memory::{CudaBuffer, Pinned, copy_on_host};
use cudarc::driver::sys::{self, CUgraphExec, CUstream, CUstream_flags, CUstreamCaptureMode};
use devbay_plugin_api::abi::DEVBAY_STATUS_DEVICE_LOST;
use devbay_plugin_api::locks::{lock, wait};
use devbay_plugin_api::sdk::*;
use devbay_shaders::check::{REPORT_BYTES, REPORT_WORDS};
use std::collections::VecDeque;
use std::ffi::c_uint;
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a copy that goes through staging memory.
const STAGED_MAX: usize = 64 << 20;

/// Bytes of an upload that the device fetches while the next ones are copied to staging memory.
const UPLOAD_PART: usize = 2 << 20;

/// A queue of work.
pub struct CudaStream {
    points: Arc<Points>,
    recording: Mutex<Recording>,
    /// cuDNN's handle for this stream, made on first use.
    dnn: OnceLock<Result<DnnHandle>>,
    /// None once it has ended.
    waiter: Option<JoinHandle<()>>,
}

/// State that the stream and its thread share.
struct Points {
    shared: Arc<Shared>,
    raw: CUstream,
    /// True if the application owns the driver's stream.
    is_wrapped: bool,
    timeline: Timeline,
    /// Where the stream writes its last point; None where it cannot.
    word: Option<Pinned>,
    /// Where launches report of their data.
    report: Option<Pinned>,
    /// The last point that is reached only when the thread says so: something was read back or checked before it, or it
    /// waits for another stream's.
    staged: AtomicU64,
    /// The last point that [`Stream::reached`] gave, which never goes back, even where the thread reports later.
    shown: AtomicU64,
    /// From which point on they fail: all above, with this.
    broken: OnceLock<(u64, Error)>,
    queue: Mutex<Queue>,
    /// Something was enqueued, or the stream is closed.
    pushed: Condvar,
}

// SAFETY: any thread may use the stream's handle while its context is current (CUDA's driver API); calls that enqueue
// come one at a time (B17).
unsafe impl Send for Points {}
// SAFETY: any thread may use the stream's handle while its context is current (CUDA's driver API); calls that enqueue
// come one at a time (B17).
unsafe impl Sync for Points {}

#[derive(Default)]
struct Queue {
    /// In the order of the stream; the first stays until it is done.
    entries: VecDeque<Entry>,
    closed: bool,
}

/// A place on the stream, and what follows when it is reached.
struct Entry {
    event: Event,
    /// The point that it is.
    value: Option<u64>,
    /// Points of other streams that came before: reported first, and whose failure is this one's.
    after: Vec<(Arc<Points>, u64)>,
    readbacks: Vec<Readback>,
    /// Staging memory that is free again.
    uploads: Vec<Pinned>,
    /// Reports of launches before it that check their data.
    reports: Vec<Pinned>,
    /// Work that fails.
    failure: Option<Error>,
}

/// Work that was enqueued since the last entry.
#[derive(Default)]
struct Recording {
    after: Vec<(Arc<Points>, u64)>,
    readbacks: Vec<Readback>,
    uploads: Vec<Pinned>,
    /// Launches since the last entry may report of their data.
    has_checks: bool,
    /// Reports of the launches of replays since then.
    reports: Vec<Pinned>,
    /// Since the last point something was read back, checked or waited for: the next one is the thread's to report.
    is_staged: bool,
    /// Launches are captured, not enqueued.
    capture: Option<Capture>,
    /// The last point that was signalled.
    last: u64,
}

/// A graph that is being made.
struct Capture {
    /// Where its launches report of their data, on whichever stream they are replayed.
    report: Pinned,
    /// True if one of them may report.
    reports: bool,
}

/// A copy to the host's memory, from staging memory that the device has filled.
struct Readback {
    pinned: Pinned,
    start: *mut u8,
    len: usize,
}

// SAFETY: the host lends the memory until a point signalled after the copy is reported (B9).
unsafe impl Send for Readback {}

impl Readback {
    fn span(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.len
    }

    fn finish(&self, host: &Host) {
        // SAFETY: the host lends `len` bytes for writing until a later point is reported (B9); they are not staging
        // memory, which has as many.
        unsafe { copy_on_host(host, self.pinned.start(), self.start, self.len) };
    }
}

/// Memory of the host's that a device's streams will write to, in entries that will be done.
#[derive(Default)]
pub struct HostSpans {
    spans: Mutex<Vec<Range<usize>>>,
    /// One is written.
    written: Condvar,
}

fn meet(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

impl HostSpans {
    fn add(&self, readbacks: &[Readback]) {
        if !readbacks.is_empty() {
            lock(&self.spans).extend(readbacks.iter().map(Readback::span));
        }
    }

    fn remove(&self, readbacks: &[Readback]) {
        if readbacks.is_empty() {
            return;
        }
        let mut spans = lock(&self.spans);
        for readback in readbacks {
            if let Some(at) = spans.iter().position(|span| *span == readback.span()) {
                spans.swap_remove(at);
            }
        }
        drop(spans);
        self.written.notify_all();
    }

    /// Blocks while something is to be written to a part of the host's memory.
    fn wait(&self, span: &Range<usize>) {
        let mut spans = lock(&self.spans);
        while spans.iter().any(|other| meet(other, span)) {
            spans = wait(&self.written, spans);
        }
    }
}

/// The word for a stream's points; None where streams cannot write one.
fn own_word(shared: &Shared) -> Result<Option<Pinned>> {
    if !shared.writes_words {
        return Ok(None);
    }
    let word = shared.pinned.take(shared, size_of::<u64>())?;
    // SAFETY: page-locked memory of at least a page, which this stream alone has.
    unsafe { word.start().cast::<u64>().write(0) };
    Ok(Some(word))
}

/// Where launches of a stream report of their data: nothing yet.
fn own_report(shared: &Shared) -> Result<Pinned> {
    let report = shared.pinned.take(shared, REPORT_BYTES)?;
    // SAFETY: page-locked memory of at least a page, which this stream alone has.
    unsafe { report.start().write_bytes(0, REPORT_BYTES) };
    Ok(report)
}

/// The words of a report that the stream has copied.
fn words_of(report: &Pinned) -> [u32; REPORT_WORDS] {
    // SAFETY: page-locked memory of at least a page, which the stream is done with, and which it alone has.
    std::array::from_fn(|i| unsafe { report.start().cast::<u32>().add(i).read() })
}

impl CudaStream {
    /// A stream of a device.
    ///
    /// # Errors
    /// Errors of the driver; unavailable if the system gives no thread.
    pub fn new(shared: &Arc<Shared>, request: &StreamRequest<'_>) -> Result<Self> {
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let (mut least, mut most) = (0, 0);
        // SAFETY: the call writes `least` and `most`, which outlive it.
        let code = unsafe { call!(functions, sys::cuCtxGetStreamPriorityRange(&mut least, &mut most)) };
        shared.done("cuCtxGetStreamPriorityRange", code)?;
        // The driver's numbers fall as urgency rises.
        let priority = request.priority.saturating_neg().clamp(most.min(least), least.max(most));
        let word = own_word(shared)?;
        let mut raw = null_mut();
        // Such a stream does not wait for the default one.
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the call writes `raw`, which outlives it.
        let code = unsafe { call!(functions, sys::cuStreamCreateWithPriority(&mut raw, flags, priority)) };
        shared.done("cuStreamCreateWithPriority", code)?;
        Self::over(shared, raw, false, word)
    }

    /// Wraps a stream that the application owns; NULL is the context's default one. It has to belong to the device's primary
    /// context.
    ///
    /// # Errors
    /// As [`CudaStream::new`].
    pub fn wrap(shared: &Arc<Shared>, raw: CUstream) -> Result<Self> {
        let _current = shared.current()?;
        Self::over(shared, raw, true, own_word(shared)?)
    }

    /// Makes a timeline over a stream of the driver, which is destroyed with it unless it is wrapped.
    fn over(shared: &Arc<Shared>, raw: CUstream, is_wrapped: bool, word: Option<Pinned>) -> Result<Self> {
        let points = Arc::new(Points {
            shared: Arc::clone(shared),
            raw,
            is_wrapped,
            timeline: Timeline::default(),
            word,
            report: Some(own_report(shared)?),
            staged: AtomicU64::new(0),
            shown: AtomicU64::new(0),
            broken: OnceLock::new(),
            queue: Mutex::default(),
            pushed: Condvar::new(),
        });
        let mut stream = Self {
            points: Arc::clone(&points),
            recording: Mutex::default(),
            dnn: OnceLock::new(),
            waiter: None,
        };
        let waiter = std::thread::Builder::new().name("devbay-cuda".to_owned()).spawn(move || points.work());
        let waiter =
            waiter.map_err(|e| Error::unavailable(format!("cannot start the stream's thread: {e}")))?;
        stream.waiter = Some(waiter);
        Ok(stream)
    }

    /// Its device.
    pub fn shared(&self) -> &Arc<Shared> {
        &self.points.shared
    }

    /// The driver's stream.
    pub fn raw(&self) -> CUstream {
        self.points.raw
    }

    /// The address at which launches report of their data.
    pub fn report_address(&self) -> u64 {
        if let Some(capture) = &lock(&self.recording).capture {
            return address(capture.report.start());
        }
        self.points.report.as_ref().map_or(0, |report| address(report.start()))
    }

    /// Notes that the next launch may report.
    pub fn will_report(&self) {
        let mut recording = lock(&self.recording);
        match &mut recording.capture {
            Some(capture) => capture.reports = true,
            None => recording.has_checks = true,
        }
    }

    /// Returns cuDNN's handle for this stream. The context has to be current.
    ///
    /// # Errors
    /// The reason why there is none.
    pub fn dnn_handle(&self) -> Result<&DnnHandle> {
        let made = self.dnn.get_or_init(|| DnnHandle::on(self));
        made.as_ref().map_err(Clone::clone)
    }

    /// Enqueues a place behind all before, a point or none, and what follows when it is reached.
    fn submit(&self, value: Option<u64>, failure: Option<Error>) -> Result<()> {
        let (points, shared) = (&self.points, self.shared());
        let _current = shared.current_even_lost()?;
        let functions = &shared.driver.functions;
        let recording = &mut *lock(&self.recording);
        // Copied in its turn: what later launches report is theirs.
        let mut reports = std::mem::take(&mut recording.reports);
        if std::mem::take(&mut recording.has_checks)
            && let Some(own) = &points.report
        {
            reports.push(self.enqueue_report(own)?);
        }
        recording.is_staged |=
            !reports.is_empty() || !recording.readbacks.is_empty() || !recording.after.is_empty();
        if let Some(value) = value {
            recording.last = value;
            if std::mem::take(&mut recording.is_staged) {
                points.staged.store(value, Ordering::SeqCst);
            }
            if let (Some(word), None) = (&points.word, points.broken.get()) {
                // With flags 0 all that was enqueued before is visible to the host first.
                // SAFETY: `points` owns the word, and frees it only behind the stream's last point.
                let code = unsafe {
                    call!(
                        functions,
                        sys::cuStreamWriteValue64_v2(points.raw, address(word.start()), value, 0)
                    )
                };
                shared.done("cuStreamWriteValue64", code)?;
            }
        }
        let event = shared.take_event()?;
        // SAFETY: `points` owns the stream, or its owner keeps it alive; `take_event` has given the event to this call alone.
        let code = unsafe { call!(functions, sys::cuEventRecord(event.0, points.raw)) };
        shared.done("cuEventRecord", code)?;
        let entry = Entry {
            event,
            value,
            after: std::mem::take(&mut recording.after),
            readbacks: std::mem::take(&mut recording.readbacks),
            uploads: std::mem::take(&mut recording.uploads),
            reports,
            failure,
        };
        shared.spans.add(&entry.readbacks);
        lock(&points.queue).entries.push_back(entry);
        points.pushed.notify_one();
        Ok(())
    }

    /// Fails all points from here on.
    fn fail_with(&self, failure: Error) -> Result<()> {
        let last = lock(&self.recording).last;
        self.submit(None, Some(failure.clone()))?;
        // The first failure is kept.
        let _ = self.points.broken.set((last, failure));
        Ok(())
    }

    /// Enqueues a copy of what launches have reported so far.
    fn enqueue_report(&self, report: &Pinned) -> Result<Pinned> {
        let shared = self.shared();
        let copy = shared.pinned.take(shared, REPORT_BYTES)?;
        match self.enqueue_copy(address(copy.start()), address(report.start()), REPORT_BYTES) {
            Ok(()) => Ok(copy),
            Err(error) => {
                shared.pinned.give(shared, copy);
                Err(error)
            }
        }
    }

    /// Empties the report of a graph that another stream has replayed last. Reports of a graph's launches stay in it
    /// until then, since streams behind it have failed because of them.
    fn forget_others_report(&self, graph: &Graph, report: &Pinned) -> Result<()> {
        let mut replayed_by = lock(&graph.replayed_by);
        if std::ptr::eq(replayed_by.as_ptr(), Arc::as_ptr(&self.points)) {
            return Ok(());
        }
        if !replayed_by.ptr_eq(&Weak::new()) {
            let shared = self.shared();
            let zeroes = own_report(shared)?;
            match self.enqueue_copy(address(report.start()), address(zeroes.start()), REPORT_BYTES) {
                Ok(()) => lock(&self.recording).uploads.push(zeroes),
                Err(error) => {
                    shared.pinned.give(shared, zeroes);
                    return Err(error);
                }
            }
        }
        *replayed_by = Arc::downgrade(&self.points);
        Ok(())
    }

    fn enqueue_copy(&self, to: Address, from: Address, size: usize) -> Result<()> {
        let shared = self.shared();
        let _current = shared.current()?;
        // SAFETY: both ranges are lent until a later point is reported (B9), or staging memory that lives as long; the SDK
        // has checked them against their buffers.
        let code =
            unsafe { call!(shared.driver.functions, sys::cuMemcpyAsync(to, from, size, self.points.raw)) };
        shared.done("cuMemcpyAsync", code)
    }

    /// Waits for readbacks that write to the host's memory that is to be read now: the one case in which a copy
    /// blocks on the device, where the host sends on data that is being read back, without having waited for it.
    fn settle(&self, start: *const u8, len: usize) -> Result<()> {
        let span = start.addr()..start.addr() + len;
        let is_recorded = lock(&self.recording).readbacks.iter().any(|own| meet(&own.span(), &span));
        if is_recorded {
            self.submit(None, None)?;
        }
        self.shared().spans.wait(&span);
        Ok(())
    }
}

impl Points {
    /// The value that the stream has written last.
    fn word(&self) -> u64 {
        let Some(word) = &self.word else { return 0 };
        // SAFETY: page-locked memory, aligned to pages, that lives as long as `self`; only the device writes it, and whole.
        unsafe { AtomicU64::from_ptr(word.start().cast()) }.load(Ordering::SeqCst)
    }

    /// The stream's thread.
    fn work(&self) {
        // If this fails, so does every wait below.
        let _current = self.shared.current_even_lost();
        loop {
            let mut queue = lock(&self.queue);
            let event = loop {
                match queue.entries.front() {
                    Some(entry) => break entry.event,
                    None if queue.closed => return,
                    None => queue = wait(&self.pushed, queue),
                }
            };
            drop(queue);
            // Also on a lost device, which may still access lent memory.
            // SAFETY: the event is this entry's until the entry is taken out.
            let code = unsafe { call!(self.shared.driver.functions, sys::cuEventSynchronize(event.0)) };
            let outcome = self.shared.done("cuEventSynchronize", code).and_then(|()| self.shared.check());
            let entry = lock(&self.queue).entries.pop_front();
            if let Some(entry) = entry {
                self.finish(entry, outcome);
            }
        }
    }

    fn finish(&self, mut entry: Entry, outcome: Result<()>) {
        let shared = &self.shared;
        let outcome = outcome.and_then(|()| {
            // The device has passed them, so that this waits for their threads at most.
            for (other, value) in &entry.after {
                other.timeline.wait(*value).map_err(|failure| failed_dependency(&failure))?;
            }
            if let Some(failure) =
                entry.reports.iter().find_map(|report| shared.checks.failure(words_of(report)))
            {
                return Err(failure);
            }
            // Behind a failure nothing is given out.
            if self.timeline.failure().is_none() {
                entry.readbacks.iter().for_each(|readback| readback.finish(&shared.host));
            }
            entry.failure.take().map_or(Ok(()), Err)
        });
        shared.spans.remove(&entry.readbacks);
        // Freed before the point is reported, because a thread that waits for it may need the memory.
        let freed = entry.readbacks.into_iter().map(|readback| readback.pinned);
        for pinned in freed.chain(entry.uploads).chain(entry.reports) {
            shared.pinned.give(shared, pinned);
        }
        shared.give_event(entry.event);
        match (outcome, entry.value) {
            (Err(failure), _) => self.timeline.fail(failure),
            (Ok(()), Some(value)) => self.timeline.reach(value),
            (Ok(()), None) => {}
        }
    }
}

/// The first address of a range.
fn of(region: &Region<'_, CudaBuffer>) -> Result<Address> {
    let buffer = region.buffer.ok_or_else(|| Error::invalid("a copy of memory that is not this plugin's"))?;
    Ok(buffer.address() + region.offset as u64)
}

impl Stream for CudaStream {
    type Buffer = CudaBuffer;
    const TIMELINE: bool = true;
    const WAIT: bool = true;
    const ON_REACHED: bool = true;
    const HOST_WAIT: bool = true;
    const FAIL: bool = true;
    const REPLAY: bool = true;

    fn copy(&self, copy: &CopyRequest<'_, CudaBuffer>) -> Result<()> {
        let (shared, size) = (self.shared(), copy.size_bytes);
        shared.check()?;
        match &copy.kind {
            CopyKind::BufferToBuffer(src, dst) => self.enqueue_copy(of(dst)?, of(src)?, size),
            CopyKind::HostToBuffer(src, dst) => {
                let to = of(dst)?;
                self.settle(*src, size)?;
                if size > STAGED_MAX {
                    return self.enqueue_copy(to, address(*src), size);
                }
                let staging = shared.pinned.take(shared, size)?;
                let start = staging.start();
                // Free again behind the next point, also where a part cannot be enqueued: those before it may be on their way.
                lock(&self.recording).uploads.push(staging);
                for first in (0..size).step_by(UPLOAD_PART) {
                    let len = UPLOAD_PART.min(size - first);
                    // SAFETY: the host lends `size` bytes until a later point is reported (B9); staging memory has as many.
                    let (from, part) = unsafe { (src.add(first), start.add(first)) };
                    // SAFETY: the host lends `from` until a later point is reported (B9); `part` is within staging
                    // memory that was taken for this copy only, so the ranges do not overlap.
                    unsafe { copy_on_host(&shared.host, from, part, len) };
                    self.enqueue_copy(to + first as u64, address(part), len)?;
                }
                Ok(())
            }
            CopyKind::BufferToHost(src, dst) => {
                let from = of(src)?;
                if size > STAGED_MAX {
                    return self.enqueue_copy(address(*dst), from, size);
                }
                let staging = shared.pinned.take(shared, size)?;
                match self.enqueue_copy(address(staging.start()), from, size) {
                    Ok(()) => {
                        let readback = Readback { pinned: staging, start: *dst, len: size };
                        lock(&self.recording).readbacks.push(readback);
                    }
                    Err(error) => {
                        shared.pinned.give(shared, staging);
                        return Err(error);
                    }
                }
                Ok(())
            }
        }
    }

    fn signal(&self, value: u64) -> Result<()> {
        self.shared().check()?;
        self.points.timeline.signal(value)?;
        // A point that cannot be enqueued is never reached, so its waiters must fail.
        self.submit(Some(value), None).inspect_err(|error| self.points.timeline.fail(error.clone()))
    }

    fn reached(&self) -> (u64, Result<()>) {
        // The word first: what has to be copied to the host before a point that it shows is then seen too.
        let word = self.points.word();
        let staged = self.points.staged.load(Ordering::SeqCst);
        let (reached, status) = self.points.timeline.reached();
        let reached = if reached >= staged { reached.max(word) } else { reached };
        let reached = self.points.shown.fetch_max(reached, Ordering::SeqCst).max(reached);
        (reached, status.and_then(|()| self.shared().check()))
    }

    fn wait(&self, other: &Self, value: u64) -> Result<()> {
        other.points.timeline.check_signalled(value)?;
        if Arc::ptr_eq(&self.points, &other.points) {
            return Ok(());
        }
        if let Some((last, failure)) = other.points.broken.get()
            && value > *last
        {
            return self.fail_with(failed_dependency(failure));
        }
        let (reached, status) = other.points.timeline.reached();
        if reached >= value {
            return Ok(());
        }
        if let Err(failure) = status {
            return self.fail_with(failed_dependency(&failure));
        }
        let shared = self.shared();
        let _current = shared.current()?;
        let queue = lock(&other.points.queue);
        // None if the device has passed it and only its thread has not said so.
        if let Some(entry) = queue.entries.iter().find(|entry| entry.value.is_some_and(|own| own >= value)) {
            // SAFETY: the event was recorded, and stays the entry's while the queue is locked. The wait is for the recorded
            // work, so that the event may be reused afterwards.
            let code = unsafe {
                call!(shared.driver.functions, sys::cuStreamWaitEvent(self.points.raw, entry.event.0, 0))
            };
            shared.done("cuStreamWaitEvent", code)?;
        }
        drop(queue);
        lock(&self.recording).after.push((Arc::clone(&other.points), value));
        Ok(())
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.points.timeline.on_reached(value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        // The word may show a point that the thread has not reported yet.
        if let (reached, Ok(())) = self.reached()
            && reached >= value
        {
            return Ok(());
        }
        self.points.timeline.host_wait(value, timeout)
    }

    fn record_begin(&self, bindings: &[devbay_plugin_api::abi::BufferRef]) -> Result<()> {
        let shared = self.shared();
        if !shared.graphs {
            return Err(Error::unsupported("graphs, which the option graphs=no leaves out"));
        }
        if self.points.is_wrapped {
            return Err(Error::unsupported("a graph of a stream that others enqueue on too"));
        }
        // Libraries' launches are in the graph too, and only they know where their operands stand in it.
        if !bindings.is_empty() {
            return Err(Error::unsupported("a graph whose memory is other memory in a replay"));
        }
        let _current = shared.current()?;
        let report = own_report(shared)?;
        // Calls of this thread that cannot be captured fail; those of other threads go on.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: `points` owns the stream, since one that is wrapped was refused above.
        let code =
            unsafe { call!(shared.driver.functions, sys::cuStreamBeginCapture_v2(self.points.raw, mode)) };
        if let Err(error) = shared.done("cuStreamBeginCapture", code) {
            shared.pinned.give(shared, report);
            return Err(error);
        }
        lock(&self.recording).capture = Some(Capture { report, reports: false });
        Ok(())
    }

    fn record_end(&self) -> Result<Recorded> {
        let shared = self.shared();
        let _current = shared.current()?;
        let functions = &shared.driver.functions;
        let capture = lock(&self.recording).capture.take();
        let Some(Capture { report, reports }) = capture else {
            return Err(Error::internal("a graph that was not begun"));
        };
        let mut made = Graph {
            shared: Arc::clone(shared),
            exec: null_mut(),
            report: Some(report),
            reports,
            replayed_by: Mutex::default(),
        };
        let mut graph = null_mut();
        // SAFETY: `points` owns the stream, on which `record_begin` started the capture; `graph` is a local variable.
        let code = unsafe { call!(functions, sys::cuStreamEndCapture(self.points.raw, &mut graph)) };
        if code != 0 || graph.is_null() {
            // The stream goes on as it was, and takes the launches themselves.
            let words = shared.driver.check("cuStreamEndCapture", code).err();
            let words = words.as_ref().map_or("nothing was captured", Error::text);
            return Err(Error::unsupported(format!("a graph of these launches: {words}")));
        }
        // SAFETY: the call writes `made.exec`; the graph was just captured.
        let code = unsafe { call!(functions, sys::cuGraphInstantiateWithFlags(&mut made.exec, graph, 0)) };
        // SAFETY: captured above, destroyed once; the instance is a copy.
        unsafe { call!(functions, sys::cuGraphDestroy(graph)) };
        shared.done("cuGraphInstantiate", code)?;
        Ok(Box::new(made))
    }

    fn replay(&self, recorded: &Recorded, _: Replay) -> Result<()> {
        let shared = self.shared();
        let graph = recorded.downcast_ref::<Graph>();
        let graph = graph.ok_or_else(|| Error::internal("a recording of another kind"))?;
        let _current = shared.current()?;
        let report = graph.report.as_ref().filter(|_| graph.reports);
        if let Some(report) = report {
            self.forget_others_report(graph, report)?;
        }
        // SAFETY: the graph is of this device, and is not freed before its replays are done (B22).
        let code = unsafe { call!(shared.driver.functions, sys::cuGraphLaunch(graph.exec, self.points.raw)) };
        shared.done("cuGraphLaunch", code)?;
        if let Some(report) = report {
            let copy = self.enqueue_report(report)?;
            lock(&self.recording).reports.push(copy);
        }
        Ok(())
    }

    fn has_failed(&self) -> bool {
        self.points.timeline.has_failed() || self.shared().check().is_err()
    }

    fn failure(&self) -> Option<Error> {
        self.points.timeline.failure().or_else(|| self.shared().check().err())
    }

    fn fail(&self, failure: Error) -> Result<()> {
        self.shared().check()?;
        if failure.status() != DEVBAY_STATUS_DEVICE_LOST {
            return self.fail_with(failure);
        }
        self.shared().lose(failure);
        Ok(())
    }
}

/// Launches that were recorded as one graph of the driver.
struct Graph {
    shared: Arc<Shared>,
    /// NULL where the driver made none.
    exec: CUgraphExec,
    /// Where its launches report of their data; there until this is dropped.
    report: Option<Pinned>,
    /// True if one of them may report.
    reports: bool,
    /// The stream that has replayed it last, of graphs that report.
    replayed_by: Mutex<Weak<Points>>,
}

// SAFETY: any thread may use the graph's handle while its context is current (CUDA's driver API); its replays, and so
// its launches, come one at a time (B22).
unsafe impl Send for Graph {}
// SAFETY: the handle is used only for replays, which come one at a time (B22), and when the graph is dropped.
unsafe impl Sync for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        if let Ok(_current) = self.shared.current_even_lost()
            && !self.exec.is_null()
        {
            // SAFETY: instantiated by `record_end`, destroyed once, behind its replays (B22).
            unsafe { call!(self.shared.driver.functions, sys::cuGraphExecDestroy(self.exec)) };
        }
        // Its launches are done, and so are the copies of their reports.
        if let Some(report) = self.report.take() {
            self.shared.pinned.give(&self.shared, report);
        }
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let points = Arc::clone(&self.points);
        let shared = &points.shared;
        // Copies since the last point are finished too, unless the device is lost.
        let _ = self.submit(None, None);
        let current = shared.current_even_lost();
        let functions = &shared.driver.functions;
        let is_own = current.is_ok() && !points.is_wrapped;
        // On an application's stream the thread waits only for the work of this one, up to the point above.
        if is_own {
            // SAFETY: the stream is destroyed below, not before. Whether it fails or not, nothing uses the stream afterwards.
            unsafe { call!(functions, sys::cuStreamSynchronize(points.raw)) };
        }
        lock(&points.queue).closed = true;
        points.pushed.notify_all();
        if let Some(waiter) = self.waiter.take() {
            // A panic in it has been printed; there is nothing left to wait for.
            let _ = waiter.join();
        }
        points.timeline.abandon();
        drop(self.dnn.take());
        if is_own {
            // SAFETY: made by `new`, destroyed once, here; the thread has ended, and no call uses a stream that is destroyed.
            unsafe { call!(functions, sys::cuStreamDestroy_v2(points.raw)) };
        }
    }
}

impl Drop for Points {
    fn drop(&mut self) {
        // The stream is gone, and no longer writes the word.
        for pinned in [self.word.take(), self.report.take()].into_iter().flatten() {
            self.shared.pinned.give(&self.shared, pinned);
        }
    }
}
