//! Streams over a library that has none: what was enqueued since the last point, by its events.
//!
//! PJRT orders work by the arrays that it uses: a copy waits for its array, an execution for its inputs. So what a stream
//! enqueues runs in an order that its program asks for, and a point is reached when every event of what came before is
//! done. Points are reported in their order, whatever the order of the library's callbacks.

use crate::buffer::Buffer;
use crate::device::{PjrtBuffer, own};
use crate::event::Event;
use devbay_plugin_api::locks::{lock, wait};
use devbay_plugin_api::sdk::{CopyKind, CopyRequest, Done, Error, Result, Stream, Timeline};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// A stream; the default has nothing enqueued.
#[derive(Default)]
pub struct PjrtStream(Arc<Shared>);

/// State that the library's callbacks share with the stream.
#[derive(Default)]
struct Shared {
    timeline: Timeline,
    work: Mutex<Work>,
    /// Work was done.
    moved: Condvar,
}

#[derive(Default)]
struct Work {
    /// Events that are not done, of what was enqueued since the last point.
    open: usize,
    /// Points that are not reached, oldest first: the value, and the events before it that are not done.
    points: VecDeque<(u64, usize)>,
    /// The number of the point that events belong to which come now.
    n_signalled: usize,
    /// Points that are gone from the front of `points`.
    n_reached: usize,
    failure: Option<Error>,
    /// Reports of programs on their data, and where they are copied to: freed when nothing is under way.
    reports: Vec<(Buffer, Arc<AtomicU32>)>,
}

impl Shared {
    /// Notes that an event of the point with a number is done, and reports what is reached by that.
    fn done(&self, number: usize, outcome: Result<()>) {
        let mut work = lock(&self.work);
        if let Err(error) = outcome {
            work.failure.get_or_insert(error);
        }
        match number.checked_sub(work.n_reached).filter(|&at| at < work.points.len()) {
            Some(at) => work.points[at].1 -= 1,
            None => work.open -= 1,
        }
        let (reached, failure) = work.advance();
        drop(work);
        self.report(reached, failure);
    }

    fn report(&self, reached: Option<u64>, failure: Option<Error>) {
        if let Some(value) = reached {
            self.timeline.reach(value);
        }
        if let Some(error) = failure {
            self.timeline.fail(error);
        }
        self.moved.notify_all();
    }
}

impl Work {
    /// Takes points from the front whose work is done: the last value reached, and the failure if there is one. What is
    /// done behind a failure is not reached.
    fn advance(&mut self) -> (Option<u64>, Option<Error>) {
        let mut reached = None;
        while let Some(&(value, 0)) = self.points.front() {
            if self.failure.is_none() {
                reached = Some(value);
            }
            self.points.pop_front();
            self.n_reached += 1;
        }
        (reached, self.failure.clone())
    }
}

impl PjrtStream {
    /// Takes up what was enqueued, by its event. What is done already, as short work on a processor is, needs no callback.
    ///
    /// # Errors
    /// The library refuses to say when it is done.
    pub fn add(&self, event: Event) -> Result<()> {
        if let Ok(Some(Ok(()))) = event.outcome() {
            return Ok(());
        }
        let number = {
            let mut work = lock(&self.0.work);
            work.open += 1;
            work.n_signalled
        };
        let shared = Arc::clone(&self.0);
        event.on_ready(move |outcome| shared.done(number, outcome.map_err(own))).map_err(|error| {
            lock(&self.0.work).open -= 1;
            own(error)
        })
    }

    /// Takes up what a program says of its data: an int32, 0 or the place in `checks`, from 1 on, of what the data is not.
    /// The stream fails then.
    ///
    /// # Errors
    /// The library's words.
    pub fn add_report(&self, report: Buffer, checks: &Arc<[String]>) -> Result<()> {
        let said = Arc::new(AtomicU32::new(0));
        // SAFETY: `said` is kept with the buffer until every event is done, or leaked, and read when this one is.
        let event = unsafe { report.download_to(said.as_ptr().cast(), size_of::<u32>()) }.map_err(own)?;
        let (number, rest) = {
            let mut work = lock(&self.0.work);
            // Buffers are not freed in a library's callback.
            let is_at_rest = work.open == 0 && work.points.is_empty();
            let rest = if is_at_rest { std::mem::take(&mut work.reports) } else { Vec::new() };
            work.open += 1;
            work.reports.push((report, Arc::clone(&said)));
            (work.n_signalled, rest)
        };
        drop(rest);
        let (shared, checks, kept) = (Arc::clone(&self.0), Arc::clone(checks), Arc::clone(&said));
        let done = move |outcome: crate::error::Result<()>| {
            let outcome = outcome.map_err(own).and_then(|()| {
                let place = (said.load(Ordering::Relaxed) as usize).checked_sub(1);
                let broken = place.and_then(|place| checks.get(place));
                broken.map_or(Ok(()), |words| Err(Error::invalid(words.clone())))
            });
            shared.done(number, outcome);
        };
        event.on_ready(done).map_err(|error| {
            // No event is left that tells when it is written.
            std::mem::forget(kept);
            lock(&self.0.work).open -= 1;
            own(error)
        })
    }
}

impl Drop for PjrtStream {
    fn drop(&mut self) {
        let mut work = lock(&self.0.work);
        while work.open > 0 || !work.points.is_empty() {
            work = wait(&self.0.moved, work);
        }
        drop(work);
        self.0.timeline.abandon();
    }
}

impl Stream for PjrtStream {
    type Buffer = PjrtBuffer;
    const TIMELINE: bool = true;
    const ON_REACHED: bool = true;
    const HOST_WAIT: bool = true;

    fn copy(&self, copy: &CopyRequest<'_, PjrtBuffer>) -> Result<()> {
        match &copy.kind {
            CopyKind::HostToBuffer(src, region) => {
                let buffer = region.buffer.ok_or_else(|| Error::invalid("a copy to no buffer"))?;
                // SAFETY: the host lends so many bytes until a later point is reached, and the event is before it.
                match unsafe { buffer.fill(*src, region.offset, copy.size_bytes) }? {
                    Some(event) => self.add(event),
                    None => Ok(()),
                }
            }
            CopyKind::BufferToHost(region, dst) => {
                let buffer = region.buffer.ok_or_else(|| Error::invalid("a copy from no buffer"))?;
                // SAFETY: the host lends room for so many bytes until a later point is reached, and the event is before
                // it.
                match unsafe { buffer.read(*dst, region.offset, copy.size_bytes) }? {
                    Some(event) => self.add(event),
                    None => Ok(()),
                }
            }
            CopyKind::BufferToBuffer(..) => {
                Err(Error::unsupported("a copy within the device: arrays are written once"))
            }
        }
    }

    fn signal(&self, value: u64) -> Result<()> {
        let shared = &self.0;
        shared.timeline.signal(value)?;
        let mut work = lock(&shared.work);
        let open = std::mem::take(&mut work.open);
        work.points.push_back((value, open));
        work.n_signalled += 1;
        let (reached, failure) = work.advance();
        drop(work);
        shared.report(reached, failure);
        Ok(())
    }

    fn reached(&self) -> (u64, Result<()>) {
        self.0.timeline.reached()
    }

    fn on_reached(&self, value: u64, done: Done) -> Result<()> {
        self.0.timeline.on_reached(value, done)
    }

    fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
        self.0.timeline.host_wait(value, timeout)
    }

    fn has_failed(&self) -> bool {
        self.0.timeline.has_failed()
    }

    fn failure(&self) -> Option<Error> {
        self.0.timeline.failure()
    }
}
