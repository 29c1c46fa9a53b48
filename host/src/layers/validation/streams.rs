//! Timelines: values that rise, waits for signalled values, points that are reached once and stay reached (B12, B13).

use super::books::*;
use super::threads::On;
use super::{Answer, Books, next};
use devbay_core::about::Threading;
use devbay_plugin_api::abi::*;
use std::time::{Duration, Instant};

/// Tolerance for time limits, because clocks differ.
const CLOCKS_DIFFER: Duration = Duration::from_millis(1);

impl Books {
    pub(super) unsafe fn stream_signal(&self, stream: *mut Stream, value: u64) -> Answer {
        let entered = self.enter("stream_signal", On::Owner(stream.addr()))?;
        self.refuse_recording(entered.function(), stream.addr())?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        let rises = match self.state().streams.get_mut(&stream.addr()) {
            Some(book) if value <= book.last_signalled => {
                fault("B12", format!("signal of {value} after {}, values rise strictly", book.last_signalled))
            }
            Some(book) => {
                book.tried = book.tried.max(value);
                Ok(())
            }
            None => Ok(()),
        };
        self.expect(entered.function(), rises)?;
        let failed = self.failure_told(stream.addr());
        let status = entered.call(|| next!(self, stream_signal(stream, value)));
        if let Some(book) = self.state().streams.get_mut(&stream.addr()) {
            if status == DEVBAY_STATUS_OK {
                book.signal(value);
                book.refused = None;
            } else {
                book.refused = Some(status);
            }
        }
        self.expect_refused(entered.function(), failed, status);
        Ok(status)
    }

    pub(super) unsafe fn stream_reached(&self, stream: *mut Stream, out: *mut u64) -> Answer {
        /// The highest value, which a host is unlikely to signal.
        const NOT_WRITTEN: u64 = u64::MAX;
        let entered = self.enter("stream_reached", On::Stream(stream.addr()))?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let before =
            self.state().streams.get(&stream.addr()).map(|book| (book.floor, book.told, book.failed));
        let (floor, told, failed) = before.unwrap_or_default();
        let mut value = NOT_WRITTEN;
        let status = entered.call(|| next!(self, stream_reached(stream, &mut value)));
        if value != NOT_WRITTEN || status == DEVBAY_STATUS_OK {
            // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one number.
            unsafe { *out = value };
        }
        let mut state = self.state();
        let tried = state.streams.get(&stream.addr()).map_or(u64::MAX, |book| book.tried);
        let found = match failed {
            _ if value == NOT_WRITTEN && status == DEVBAY_STATUS_OK && tried != NOT_WRITTEN => {
                fault("B12", "it succeeded and wrote no value")
            }
            Some(failure) if status == DEVBAY_STATUS_OK => {
                fault("B13", format!("the stream had failed with status {failure}, and has not any more"))
            }
            _ if value == NOT_WRITTEN => Ok(()),
            _ if value > tried => {
                fault("B12", format!("value {value} is reached, the last signal is {tried}"))
            }
            _ if value < floor => fault("B12", format!("value {value} is reached, it was {floor} before")),
            _ if value < told => {
                fault("B16", format!("value {value} is reached, a callback or wait had said {told} before"))
            }
            _ => Ok(()),
        };
        if let Some(book) = state.streams.get_mut(&stream.addr()) {
            if found.is_ok() && value != NOT_WRITTEN {
                book.floor = book.floor.max(value);
            }
            if status != DEVBAY_STATUS_OK {
                book.failed.get_or_insert(status);
            }
        }
        let value = if value == NOT_WRITTEN { 0 } else { value };
        // The state after a panic is unknown.
        let over = status != DEVBAY_STATUS_OK && status != DEVBAY_STATUS_PANICKED;
        state.reported(stream.addr(), value, over);
        drop(state);
        self.check(entered.function(), found);
        Ok(status)
    }

    pub(super) unsafe fn stream_wait(&self, stream: *mut Stream, other: *mut Stream, value: u64) -> Answer {
        let entered = self.enter("stream_wait", On::Owner(stream.addr()))?;
        self.refuse_recording(entered.function(), stream.addr())?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        self.expect(entered.function(), self.may_wait(stream.addr(), other.addr(), value))?;
        self.note_refused(entered.function(), stream.addr());
        let failed = self.failure_told(stream.addr());
        let status = entered.call(|| next!(self, stream_wait(stream, other, value)));
        self.enqueued(stream.addr(), status);
        self.expect_refused(entered.function(), failed, status);
        Ok(status)
    }

    fn may_wait(&self, stream: usize, other: usize, value: u64) -> Result<(), Fault> {
        let state = self.state();
        let (stream, other) = (state.stream(stream)?, state.stream(other)?);
        if stream.instance != other.instance {
            return fault("B10", "the streams are of two instances, whose handles never meet");
        }
        if other.inline {
            return fault("B14", "the other stream is of an inline device, which has no timeline");
        }
        if stream.device != other.device {
            return fault("B12", "the streams are of two devices, which do not wait for each other");
        }
        signalled(other, value)
    }

    pub(super) unsafe fn stream_host_wait(&self, stream: *mut Stream, value: u64, timeout_ns: u64) -> Answer {
        let entered = self.enter("stream_host_wait", On::Stream(stream.addr()))?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        if self.about.threading == Threading::Serialised {
            let words =
                "called on a plugin that wants one call at a time, which is polled instead".to_owned();
            self.host(entered.function(), Fault { rule: "B17", words })?;
        }
        let known = self.state().stream(stream.addr()).and_then(|book| signalled(book, value));
        self.expect(entered.function(), known)?;
        let begin = Instant::now();
        let status = entered.call(|| next!(self, stream_host_wait(stream, value, timeout_ns)));
        let took = begin.elapsed();
        if status == DEVBAY_STATUS_TIMEOUT && took + CLOCKS_DIFFER < Duration::from_nanos(timeout_ns) {
            let words =
                format!("TIMEOUT after {took:?}, expected it after {:?}", Duration::from_nanos(timeout_ns));
            self.plugin(entered.function(), Fault { rule: "B12", words });
        }
        self.reported(stream.addr(), value, status);
        Ok(status)
    }

    pub(super) unsafe fn stream_flush(&self, stream: *mut Stream) -> Answer {
        let entered = self.enter("stream_flush", On::Owner(stream.addr()))?;
        self.refuse_recording(entered.function(), stream.addr())?;
        self.expect(entered.function(), self.refuse_inline(stream.addr()))?;
        let failed = self.failure_told(stream.addr());
        let status = entered.call(|| next!(self, stream_flush(stream)));
        self.enqueued(stream.addr(), status);
        self.expect_refused(entered.function(), failed, status);
        Ok(status)
    }

    pub(super) unsafe fn stream_error(&self, stream: *mut Stream, error: *mut ErrorDetail) -> Answer {
        let entered = self.enter("stream_error", On::Stream(stream.addr()))?;
        let mut words = self.words(entered.function(), error)?;
        let status = entered.run(|| next!(self, stream_error(stream, words.as_ptr())));
        self.expect_known(entered.function(), status);
        self.settle(entered.function(), words, status);
        Ok(status)
    }

    /// Records the status that a callback or a wait reported for a point.
    pub(super) fn reported(&self, stream: usize, value: u64, status: Status) {
        let mut state = self.state();
        match status {
            DEVBAY_STATUS_OK => {
                if let Some(book) = state.streams.get_mut(&stream) {
                    book.told = book.told.max(value);
                }
                state.reported(stream, value, false);
            }
            DEVBAY_STATUS_TIMEOUT | DEVBAY_STATUS_INVALID | DEVBAY_STATUS_PANICKED => {}
            _ => state.reported(stream, value, true),
        }
    }

    /// Records a failed enqueue. Failures while recording are not kept: they leave the stream as it was.
    pub(super) fn enqueued(&self, stream: usize, status: Status) {
        let is_enqueued = |book: &StreamBook| !book.inline && book.records.is_none();
        if status != DEVBAY_STATUS_OK
            && let Some(book) = self.state().streams.get_mut(&stream).filter(|book| is_enqueued(book))
        {
            book.refused = Some(status);
        }
    }

    /// Returns the failure that the plugin has reported for a stream, if any.
    pub(super) fn failure_told(&self, stream: usize) -> Option<Status> {
        self.state().streams.get(&stream).and_then(|book| book.failed)
    }

    /// Reports success on a stream whose failure was reported before the call: it must accept no more work.
    pub(super) fn expect_refused(&self, function: &'static str, failed: Option<Status>, status: Status) {
        if let Some(failure) = failed
            && status == DEVBAY_STATUS_OK
        {
            let words = format!("taken on a stream that has failed with status {failure}");
            self.plugin(function, Fault { rule: "B13", words });
        }
    }

    /// Reports work that the host enqueues after a status other than 0: only a signal may follow in that run. The
    /// plugin works on (B13), so the call is not stopped.
    pub(super) fn note_refused(&self, function: &'static str, stream: usize) {
        let refused = self.state().streams.get(&stream).and_then(|book| book.refused);
        if let Some(status) = refused {
            let words = format!("enqueued after status {status}, before a signal");
            self.host_noted(function, Fault { rule: "B13", words });
        }
    }
}

/// Fails if a wait names a value above the last one whose signal returned 0.
pub(super) fn signalled(book: &StreamBook, value: u64) -> Result<(), Fault> {
    let last = book.last_signalled;
    if value <= last {
        return Ok(());
    }
    fault("B12", format!("value {value} was not signalled, the last is {last}"))
}
