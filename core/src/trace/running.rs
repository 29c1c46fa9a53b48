//! The traced run that the calling thread is in, if it is in one.
//!
//! A run stays on one thread from beginning to end: the caller's, or a job's. Work there that is not a step (copies,
//! waits, nodes that are planned during the run) finds the run's recorder here. Steps do not look it up: other threads
//! run them too, and they know their recorder.

use super::clock::now_ns;
use super::events::{Event, SectionInfo, StepInfo, What};
use super::recorder::Recorder;
use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    /// Number of the run; 0 outside of any. Apart from its recorder, so that asking is one load.
    static RUN: Cell<u32> = const { Cell::new(0) };
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
}

/// Returns the traced run that this thread is in; 0 if it is in none.
#[inline]
pub(crate) fn run_number() -> u32 {
    RUN.get()
}

/// A time that goes on until it is dropped.
#[must_use]
pub(crate) struct Span {
    recorder: Recorder,
    what: What,
    run: u32,
    begin_ns: u64,
}

impl Drop for Span {
    fn drop(&mut self) {
        let (what, run, begin_ns) = (self.what, self.run, self.begin_ns);
        self.recorder.add(Event { what, run, begin_ns, end_ns: now_ns() });
    }
}

/// Begins something that the thread does for its run; None, at the price of one load, if no traced run is on it.
#[inline]
pub(crate) fn begin(what: What) -> Option<Span> {
    if run_number() == 0 {
        return None;
    }
    begin_with(|_| what)
}

#[cold]
fn begin_with(what: impl FnOnce(&Recorder) -> What) -> Option<Span> {
    let recorder = RECORDER.try_with(|recorder| recorder.borrow().clone()).ok().flatten()?;
    let what = what(&recorder);
    Some(Span { recorder, what, run: run_number(), begin_ns: now_ns() })
}

/// As [`begin`], for a node that runs by itself; `step` is asked only in a traced run.
#[inline]
pub(crate) fn begin_lone(device: &str, stream: u64, step: impl FnOnce() -> StepInfo) -> Option<Span> {
    if run_number() == 0 {
        return None;
    }
    begin_with(|recorder| {
        let section = SectionInfo { devices: vec![device.to_owned()], is_shared: false, steps: vec![step()] };
        What::Launch { section: recorder.lone_section(section), step: 0, stream }
    })
}

/// A parallel loop that goes on until this is dropped, and whose chunks follow each other on the thread.
#[must_use]
pub(crate) struct Laps {
    span: Span,
    /// When the chunk that runs began. Atomic because bodies of loops are shared, though only this thread is there.
    begin_ns: AtomicU64,
}

impl Laps {
    /// Takes down that a chunk has ended. The next one begins when this returns, so that its time has none of this.
    pub fn lap(&self) {
        let end_ns = now_ns();
        let (what, run, begin_ns) = (What::Chunk, self.span.run, self.begin_ns.load(Ordering::Relaxed));
        self.span.recorder.add(Event { what, run, begin_ns, end_ns });
        self.begin_ns.store(now_ns(), Ordering::Relaxed);
    }
}

/// Begins a loop; None outside of traced runs.
pub(crate) fn begin_laps() -> Option<Laps> {
    let span = begin(What::Loop)?;
    Some(Laps { begin_ns: AtomicU64::new(span.begin_ns), span })
}

/// A run that is on the thread until this is dropped.
#[must_use]
pub(crate) struct Running {
    /// The thread's state before: a job may begin inside a run that waits.
    before: (u32, Option<Recorder>),
    span: Option<Span>,
}

impl Recorder {
    /// Begins a run on the calling thread.
    #[cold]
    pub(crate) fn begin_run(&self) -> Running {
        let run = self.count_run();
        let recorder = RECORDER.try_with(|recorder| recorder.replace(Some(self.clone()))).ok().flatten();
        let before = (RUN.replace(run), recorder);
        Running { before, span: begin(What::Run) }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.span.take());
        RUN.set(self.before.0);
        let before = self.before.1.take();
        // The previous recorder is dropped outside of the cell.
        let _ = RECORDER.try_with(|recorder| recorder.replace(before));
    }
}
