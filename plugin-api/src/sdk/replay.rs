//! The table of the extension that records and replays work, built from a stream's functions, and the
//! arguments of a replay.

use super::export::{StreamBox, deref, enqueue_on, free, on_box};
use super::{Device, Error, Recorded, Result, Stream};
use crate::abi::{
    self, BufferRef, List, RecordDesc, ReplayDesc, ReplayTable, Status, read_list, read_struct,
};
use std::marker::PhantomData;
use std::sync::Arc;
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

/// Object behind the host's handle.
struct RecordingBox {
    recorded: Recorded,
    /// Memory that a replay may replace.
    bindings: Arc<[BufferRef]>,
}

/// One replay: its stream, and the memory that replaces the recorded memory.
#[derive(Clone)]
pub struct Replay {
    stream: *mut abi::Stream,
    recorded: Arc<[BufferRef]>,
    /// Replacements, one per binding; empty if they are the recorded ones.
    bound: Box<[BufferRef]>,
}

// SAFETY: the stream's handle is only handed back to kernels, in the order of that stream, which outlives its work;
// bound memory is lent until a point signalled behind the replay is reported (B9, B22).
unsafe impl Send for Replay {}

impl Replay {
    /// Returns the stream's handle, for launches.
    pub(super) fn stream(&self) -> *mut abi::Stream {
        self.stream
    }

    /// Returns the reference that replaces a recorded one in this replay.
    pub fn place(&self, recorded: &BufferRef) -> BufferRef {
        for (from, to) in self.recorded.iter().zip(&self.bound) {
            if let Some(within) = offset_within(recorded, from) {
                return BufferRef {
                    buffer: to.buffer,
                    addr: to.addr + within,
                    offset: to.offset + within,
                    length: recorded.length,
                };
            }
        }
        *recorded
    }

    /// Returns the address that replaces a recorded one in this replay, for `len` bytes of memory that the
    /// processor can access.
    pub fn address(&self, recorded: u64, len: u64) -> u64 {
        for (from, to) in self.recorded.iter().zip(&self.bound) {
            let within = recorded.checked_sub(from.addr);
            if let Some(within) = within.filter(|within| fits(*within, len, from.length)) {
                return to.addr + within;
            }
        }
        recorded
    }
}

fn fits(within: u64, len: u64, length: u64) -> bool {
    within.checked_add(len).is_some_and(|end| end <= length)
}

/// Returns the offset of a reference from a binding's first byte, if the binding contains all of it.
fn offset_within(reference: &BufferRef, binding: &BufferRef) -> Option<u64> {
    if reference.buffer != binding.buffer {
        return None;
    }
    // The host's own memory has no buffer: the address tells which memory it is.
    let within = match reference.buffer.is_null() {
        true => reference.addr.checked_sub(binding.addr),
        false => reference.offset.checked_sub(binding.offset),
    };
    within.filter(|within| fits(*within, reference.length, binding.length))
}

/// Reads a list of bindings.
///
/// # Safety
/// The list is the host's, alive for the call.
unsafe fn bindings(list: &List) -> Result<Vec<BufferRef>> {
    // SAFETY: the list is the host's, and holds references (B5); it is alive for the call (# Safety).
    unsafe { read_list::<BufferRef>(list, "BufferRef") }.map_err(|e| Error::invalid(e.to_string()))
}

/// Refuses overlapping bindings, because the bytes in common would be bound to both.
fn refuse_overlaps(bindings: &[BufferRef]) -> Result<()> {
    for (i, a) in bindings.iter().enumerate() {
        for (j, b) in bindings.iter().enumerate().skip(i + 1) {
            let first = |r: &BufferRef| if r.buffer.is_null() { r.addr } else { r.offset };
            let apart = |a: &BufferRef, b: &BufferRef| first(a).saturating_add(a.length) <= first(b);
            if a.buffer == b.buffer && !apart(a, b) && !apart(b, a) {
                return Err(Error::invalid(format!("bindings {i} and {j} overlap")));
            }
        }
    }
    Ok(())
}

unsafe extern "C" fn record_begin<D: Device>(stream: *mut abi::Stream, desc: *const RecordDesc) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        if stream.records.load(Ordering::Relaxed) {
            return Err(Error::invalid("the stream records already"));
        }
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(|e| Error::invalid(e.to_string()))?;
        // SAFETY: B5: the list was read from the host's struct, and lives for the call.
        let bindings = unsafe { bindings(&desc.bindings) }?;
        refuse_overlaps(&bindings)?;
        stream.inner().record_begin(&bindings)?;
        stream.begin_record(bindings.into());
        Ok(())
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn record_end<D: Device>(
    stream: *mut abi::Stream,
    out_recording: *mut *mut abi::Recording,
) -> Status {
    let body = |stream: &StreamBox<D::Stream>| {
        let bindings = stream.end_record().ok_or_else(|| Error::invalid("the stream does not record"))?;
        let recorded = stream.inner().record_end()?;
        if out_recording.is_null() {
            return Err(Error::invalid("the place for the recording is NULL"));
        }
        let made = Box::new(RecordingBox { recorded, bindings });
        // SAFETY: `out_recording` is not NULL (checked), so it is the host's place for one handle.
        unsafe { out_recording.write(Box::into_raw(made).cast()) };
        Ok(())
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { on_box::<D>(stream, body) }
}

unsafe extern "C" fn replay<D: Device>(stream: *mut abi::Stream, desc: *const ReplayDesc) -> Status {
    let handle = stream;
    let body = |stream: &D::Stream| {
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(|e| Error::invalid(e.to_string()))?;
        // SAFETY: B9: NULL, or a handle that `record_end` made and that was not freed.
        let made: &RecordingBox = unsafe { deref(desc.recording, "the recording") }?;
        // SAFETY: B5: the list was read from the host's struct, and lives for the call.
        let bound = unsafe { bindings(&desc.bindings) }?;
        if !bound.is_empty() {
            let lengths = |list: &[BufferRef]| list.iter().map(|r| r.length).collect::<Vec<_>>();
            if lengths(&bound) != lengths(&made.bindings) {
                return Err(Error::invalid(format!(
                    "bindings of {:?} bytes, of a recording with {:?}",
                    lengths(&bound),
                    lengths(&made.bindings)
                )));
            }
        }
        let replay = Replay { stream: handle, recorded: Arc::clone(&made.bindings), bound: bound.into() };
        stream.replay(&made.recorded, replay)
    };
    // SAFETY: B9: NULL, or a handle that this plugin gave the host and that was not freed.
    unsafe { enqueue_on::<D>(stream, body) }
}

unsafe extern "C" fn recording_free(recording: *mut abi::Recording) {
    // SAFETY: `record_end` made the handle, and the host gives it back once (B9).
    unsafe { free::<RecordingBox, _>(recording) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(buffer: usize, offset: u64, length: u64) -> BufferRef {
        BufferRef { buffer: buffer as *mut abi::Buffer, addr: 1000 * buffer as u64 + offset, offset, length }
    }

    fn parts(r: &BufferRef) -> (usize, u64, u64, u64) {
        (r.buffer as usize, r.addr, r.offset, r.length)
    }

    #[test]
    fn references_within_a_binding_move_with_it_and_others_stay() {
        let replay = Replay {
            stream: std::ptr::null_mut(),
            recorded: [at(1, 64, 128), at(2, 0, 16)].into(),
            bound: [at(3, 0, 128), at(1, 512, 16)].into(),
        };
        assert_eq!(parts(&replay.place(&at(1, 96, 32))), parts(&at(3, 32, 32)));
        assert_eq!(parts(&replay.place(&at(2, 0, 16))), parts(&at(1, 512, 16)));
        // Before, behind and over the end of a binding, and in another buffer.
        for other in [at(1, 0, 64), at(1, 192, 8), at(1, 128, 128), at(4, 64, 8)] {
            assert_eq!(parts(&replay.place(&other)), parts(&other));
        }
        assert_eq!(replay.address(1000 + 64 + 5, 3), 3005);
        assert_eq!(replay.address(1000 + 64 + 127, 2), 1191);
    }

    #[test]
    fn bindings_that_overlap_are_refused() {
        assert!(refuse_overlaps(&[at(1, 0, 64), at(1, 64, 64), at(2, 0, 64)]).is_ok());
        assert!(refuse_overlaps(&[at(1, 0, 64), at(2, 0, 1), at(1, 63, 64)]).is_err());
        assert!(refuse_overlaps(&[at(1, 0, 64), at(1, 16, 8)]).is_err());
    }
}
