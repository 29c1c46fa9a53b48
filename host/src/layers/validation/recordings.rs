//! Recordings: begun and ended once, with recordable work only. They are replayed on streams of their device with
//! memory that fits, and kept with all objects they name until their replays are over (B22).

use super::books::*;
use super::copies::overlap;
use super::extensions::call;
use super::threads::On;
use super::{Answer, Books};
use devbay_plugin_api::abi::*;
use std::collections::HashSet;
use std::ptr::null_mut;

/// Recorded launches and copies.
pub(super) struct RecordingBook {
    pub instance: usize,
    pub device: usize,
    bindings: Vec<BufferRef>,
    /// Objects that the recorded work uses. They stay as long as the recording.
    uses: HashSet<Lent>,
}

/// A recording in progress.
#[derive(Default)]
pub(super) struct RecordBook {
    bindings: Vec<BufferRef>,
    pub uses: HashSet<Lent>,
}

impl Books {
    /// Fails for calls that are not allowed on a stream that records.
    pub(super) fn refuse_recording(&self, function: &'static str, stream: usize) -> Result<(), Status> {
        let records = self.state().streams.get(&stream).is_some_and(|book| book.records.is_some());
        if !records {
            return Ok(());
        }
        let words = "on a stream that records, which takes launches and copies between buffers".to_owned();
        self.host(function, Fault { rule: "B22", words })
    }

    pub(super) unsafe fn record_begin(&self, stream: *mut Stream, desc: *const RecordDesc) -> Answer {
        let entered = self.enter("record_begin", On::Owner(stream.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.refuse_recording(entered.function(), stream.addr())?;
        let bindings = self.bindings(&wanted.bindings, entered.device.unwrap_or(0));
        let bindings = self.expect(entered.function(), bindings)?;
        let overlaps = |(i, a): (usize, &BufferRef)| bindings[..i].iter().any(|b| overlap(a, b));
        if bindings.iter().enumerate().any(overlaps) {
            let words = "bindings that overlap".to_owned();
            self.host(entered.function(), Fault { rule: "B22", words })?;
        }
        let next = self.replay(entered.instance());
        let status = entered.call(|| call!(next, record_begin(stream, desc)));
        if status == DEVBAY_STATUS_OK
            && let Some(book) = self.state().streams.get_mut(&stream.addr())
        {
            book.records = Some(RecordBook { bindings, uses: HashSet::new() });
        }
        Ok(status)
    }

    pub(super) unsafe fn record_end(&self, stream: *mut Stream, out: *mut *mut Recording) -> Answer {
        let entered = self.enter("record_end", On::Owner(stream.addr()))?;
        self.refuse_null(entered.function(), out)?;
        let records = self.state().streams.get_mut(&stream.addr()).and_then(|book| book.records.take());
        if records.is_none() {
            let words = "on a stream that does not record".to_owned();
            self.host(entered.function(), Fault { rule: "B22", words })?;
        }
        // Starts as NULL instead of the host's value, which a host in C may leave uninitialised.
        let mut made = null_mut();
        let next = self.replay(entered.instance());
        let status = entered.call(|| call!(next, record_end(stream, &mut made)));
        if status != DEVBAY_STATUS_OK {
            return Ok(status);
        }
        // SAFETY: `out` is not NULL (`refuse_null`), so it is the host's place for one handle.
        unsafe { *out = made };
        if made.is_null() {
            self.plugin_broke(entered.function(), "B9", "it succeeded without a recording");
            return Ok(status);
        }
        let RecordBook { bindings, uses } = records.unwrap_or_default();
        let (instance, device) = (entered.instance().unwrap_or(0), entered.device.unwrap_or(0));
        let known = self.enter_book(Kind::Recording, made.addr(), |state| {
            uses.iter().for_each(|&what| state.lend(what));
            state.recordings.insert(made.addr(), RecordingBook { instance, device, bindings, uses });
        });
        self.check(entered.function(), known);
        Ok(status)
    }

    pub(super) unsafe fn replay_recording(&self, stream: *mut Stream, desc: *const ReplayDesc) -> Answer {
        let entered = self.enter("replay", On::Owner(stream.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        self.refuse_recording(entered.function(), stream.addr())?;
        let device = entered.device.unwrap_or(0);
        let bound = self.bindings(&wanted.bindings, device);
        let bound = self.expect(entered.function(), bound)?;
        let fits = fits(&self.state(), wanted.recording.addr(), device, &bound);
        self.expect(entered.function(), fits)?;
        let buffers = bound.iter().filter(|reference| !reference.buffer.is_null());
        let mut lent: Vec<Lent> = buffers.map(|reference| Lent::Buffer(reference.buffer.addr())).collect();
        lent.push(Lent::Recording(wanted.recording.addr()));
        let next = self.replay(entered.instance());
        Ok(self.enqueue(&entered, stream, &lent, || call!(next, replay(stream, desc))))
    }

    pub(super) unsafe fn recording_free(&self, recording: *mut Recording) -> Result<(), Status> {
        let entered = self.enter("recording_free", On::Recording(recording.addr()))?;
        let mut state = self.state();
        let lent = state.not_lent(Lent::Recording(recording.addr()));
        let book = state.recordings.remove(&recording.addr());
        state.ended(Kind::Recording, recording.addr());
        for what in book.into_iter().flat_map(|book| book.uses) {
            state.give_back(what);
        }
        drop(state);
        self.expect(entered.function(), lent)
            .inspect_err(|_| entered.instance().into_iter().for_each(|of| self.leak(of)))?;
        let next = self.replay(entered.instance());
        if let Some(free) = next.recording_free {
            // SAFETY: B9: the host guarantees that the plugin made `recording` and that it is freed once.
            entered.run(|| unsafe { free(recording) });
        }
        Ok(())
    }

    /// Reads a list of bindings, and checks that the device may use each one's memory.
    fn bindings(&self, list: &List, device: usize) -> Result<Vec<BufferRef>, Fault> {
        // SAFETY: B5: the list was read from the host's struct, and the host keeps it for the call.
        let bindings = unsafe { read_list::<BufferRef>(list, "BufferRef") };
        let bindings = bindings.map_err(|error| Fault { rule: "B5", words: error.to_string() })?;
        let state = self.state();
        for (i, reference) in bindings.iter().enumerate() {
            state.range(device, reference, &format!("binding {i}"))?;
        }
        Ok(bindings)
    }
}

/// Checks that a recording may be replayed on a device with these bindings.
fn fits(state: &Register, recording: usize, device: usize, bound: &[BufferRef]) -> Result<(), Fault> {
    let book = state.recording(recording)?;
    if book.device != device {
        return fault("B22", "a recording of another device than the stream's");
    }
    if bound.is_empty() {
        return Ok(());
    }
    if bound.len() != book.bindings.len() {
        let (found, expected) = (bound.len(), book.bindings.len());
        return fault("B22", format!("{found} bindings, the recording has {expected}"));
    }
    let space =
        |reference: &BufferRef| state.buffers.get(&reference.buffer.addr()).map(|book| book.space.kind);
    for (i, (now, then)) in bound.iter().zip(&book.bindings).enumerate() {
        if now.length != then.length {
            let (found, expected) = (now.length, then.length);
            return fault("B22", format!("binding {i} has {found} bytes, it was recorded with {expected}"));
        }
        if space(now) != space(then) && state.buffers.contains_key(&then.buffer.addr()) {
            return fault("B22", format!("binding {i} is in another space than it was recorded in"));
        }
    }
    Ok(())
}
