//! The table of the extension that records launches and replays them, made of a stream's functions.

use super::export::{StreamBox, deref, free, on_box, refuse_failed};
use super::{Device, Error, Recorded, Stream};
use crate::abi::{self, ReplayTable, Status};
use std::marker::PhantomData;
use std::sync::atomic::Ordering;

/// A device's table.
pub(super) struct Replays<D>(PhantomData<D>);

impl<D: Device> Replays<D> {
    pub(super) const TABLE: &'static ReplayTable = &ReplayTable {
        struct_size: size_of::<ReplayTable>() as u32,
        reserved: 0,
        record_begin: Some(record_begin::<D>),
        record_end: Some(record_end::<D>),
        replay: Some(replay::<D>),
        recording_free: Some(recording_free),
    };
}

unsafe extern "C" fn record_begin<D: Device>(stream: *mut abi::Stream) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        if stream.records.load(Ordering::Relaxed) {
            return Err(Error::invalid("the stream records already"));
        }
        stream.inner().record_begin()?;
        stream.records.store(true, Ordering::Relaxed);
        Ok(())
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn record_end<D: Device>(
    stream: *mut abi::Stream,
    out_recording: *mut *mut abi::Recording,
) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        if !stream.records.swap(false, Ordering::Relaxed) {
            return Err(Error::invalid("the stream does not record"));
        }
        let recorded = stream.inner().record_end()?;
        if out_recording.is_null() {
            return Err(Error::invalid("the place for the recording is NULL"));
        }
        // SAFETY: the host's place for one handle.
        unsafe { out_recording.write(Box::into_raw(Box::new(recorded)).cast()) };
        Ok(())
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn replay<D: Device>(stream: *mut abi::Stream, recording: *mut abi::Recording) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        if stream.records.load(Ordering::Relaxed) {
            return Err(Error::invalid("a replay on a stream that records"));
        }
        refuse_failed(stream.inner())?;
        // SAFETY: made by `record_end`, and not freed (B9).
        let recorded: &Recorded = unsafe { deref(recording, "the recording") }?;
        stream.inner().replay(recorded)
    };
    // SAFETY: the host's handle of this plugin's.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn recording_free(recording: *mut abi::Recording) {
    // SAFETY: made by `record_end`, given back once (B9).
    unsafe { free::<Recorded, _>(recording) };
}
