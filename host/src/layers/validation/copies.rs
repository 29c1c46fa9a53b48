//! Memory ranges: inside their buffers, at their stated addresses, aligned as their space requires (B10, B11). Also
//! copies, and memory that work borrows until a later point is reported (B9).

use super::books::*;
use super::threads::{Entered, On};
use super::{Answer, Books, next};
use devbay_plugin_api::abi::*;

/// Objects that a call borrowed and that its stream had not borrowed before.
struct Borrowed {
    stream: usize,
    fresh: Vec<Lent>,
    inline: bool,
}

impl Register {
    /// Returns the buffer of a reference, if the device may use it; None for host memory and absent references.
    pub fn range(
        &self,
        device: usize,
        reference: &BufferRef,
        what: &str,
    ) -> Result<Option<&BufferBook>, Fault> {
        let &BufferRef { buffer, addr, offset, length } = reference;
        if buffer.is_null() {
            let takes_host = self.device(device)?.seen.flags & DEVBAY_DEVICE_HOST_REFS != 0;
            return if (length == 0 && offset == 0) || takes_host && addr != 0 {
                Ok(None)
            } else if takes_host {
                fault("B10", format!("{what} is host memory at address 0"))
            } else {
                fault("B10", format!("{what} is host memory, which this device does not take"))
            };
        }
        let book = self.buffer(buffer.addr())?;
        if book.device != device {
            return fault("B10", format!("{what} is a buffer of another device"));
        }
        if offset.checked_add(length).is_none_or(|end| end > book.size) {
            return fault(
                "B10",
                format!("{what} is {length} bytes from {offset} on, the buffer has {}", book.size),
            );
        }
        let expected = if book.base == 0 { 0 } else { book.base.wrapping_add(offset) };
        if addr != expected && !book.unsaid {
            return fault("B10", format!("{what} says the address {addr:#x}, expected {expected:#x}"));
        }
        if book.space.flags & DEVBAY_SPACE_NO_SUBALLOC != 0 && offset != 0 {
            return fault("B11", format!("{what} begins at {offset} of a buffer that cannot be divided"));
        }
        Ok(Some(book))
    }
}

/// Returns whether two references overlap.
pub(super) fn overlap(a: &BufferRef, b: &BufferRef) -> bool {
    let start = |r: &BufferRef| if r.buffer.is_null() { r.addr } else { r.offset };
    let ends = |r: &BufferRef| start(r).saturating_add(r.length);
    a.buffer == b.buffer && a.length > 0 && b.length > 0 && start(a) < ends(b) && start(b) < ends(a)
}

impl Books {
    pub(super) unsafe fn copy(&self, stream: *mut Stream, desc: *const CopyDesc) -> Answer {
        let entered = self.enter("copy", On::Owner(stream.addr()))?;
        let Some(wanted) = self.read(entered.function(), desc)? else {
            return Ok(DEVBAY_STATUS_INVALID);
        };
        if wanted.kind != DEVBAY_COPY_BUFFER_TO_BUFFER {
            self.refuse_recording(entered.function(), stream.addr())?;
        }
        let device = entered.device.unwrap_or(0);
        let checked = check(&self.state(), device, &wanted);
        let lent = self.expect(entered.function(), checked)?;
        let status = self.enqueue(&entered, stream, &lent, || next!(self, copy(stream, desc)));
        if status == DEVBAY_STATUS_OK
            && wanted.kind != DEVBAY_COPY_BUFFER_TO_HOST
            && let Some(book) = self.state().buffers.get_mut(&wanted.dst.buffer.addr())
        {
            book.written |= wanted.size_bytes > 0;
        }
        Ok(status)
    }

    /// Enqueues work that uses objects until a later point is reported.
    pub(super) fn enqueue(
        &self,
        entered: &Entered<'_>,
        stream: *mut Stream,
        lent: &[Lent],
        call: impl FnOnce() -> Status,
    ) -> Status {
        let stream = stream.addr();
        self.note_refused(entered.function(), stream);
        let failed = self.failure_told(stream);
        let borrowed = self.borrow(stream, lent);
        let status = entered.call(call);
        self.settle_borrowed(borrowed, status);
        self.enqueued(stream, status);
        self.expect_refused(entered.function(), failed, status);
        status
    }

    /// Lends objects to a stream until a point signalled later is reported, or to the recording while the stream
    /// records.
    fn borrow(&self, stream: usize, lent: &[Lent]) -> Borrowed {
        let mut state = self.state();
        let mut fresh = Vec::new();
        let mut inline = true;
        if let Some(book) = state.streams.get_mut(&stream) {
            if let Some(records) = &mut book.records {
                // The finished recording borrows them.
                records.uses.extend(lent);
                return Borrowed { stream, fresh, inline: false };
            }
            inline = book.inline;
            fresh = lent.to_vec();
            if !inline {
                fresh.retain(|&what| book.unsignalled.insert(what));
            }
        }
        fresh.iter().for_each(|&what| state.lend(what));
        Borrowed { stream, fresh, inline }
    }

    /// Ends the loans of a call on an inline stream, or of a failed call.
    fn settle_borrowed(&self, borrowed: Borrowed, status: Status) {
        // The state after a panic is unknown.
        let over = borrowed.inline || status != DEVBAY_STATUS_OK && status != DEVBAY_STATUS_PANICKED;
        if !over {
            return;
        }
        let mut state = self.state();
        for what in borrowed.fresh {
            let known = borrowed.inline
                || state.streams.get_mut(&borrowed.stream).is_some_and(|book| book.unsignalled.remove(&what));
            if known {
                state.give_back(what);
            }
        }
    }
}

/// Checks a copy. Returns the objects that it uses.
fn check(state: &Register, device: usize, copy: &CopyDesc) -> Result<Vec<Lent>, Fault> {
    let (from_buffer, to_buffer) = match copy.kind {
        DEVBAY_COPY_HOST_TO_BUFFER => (false, true),
        DEVBAY_COPY_BUFFER_TO_HOST => (true, false),
        DEVBAY_COPY_BUFFER_TO_BUFFER => (true, true),
        kind => return fault("B5", format!("a copy of kind {kind}, which the header does not have")),
    };
    if copy.size_bytes == 0 {
        return Ok(Vec::new());
    }
    let mut lent = Vec::new();
    let ends = [(from_buffer, &copy.src, "the source"), (to_buffer, &copy.dst, "the destination")];
    for (is_buffer, reference, what) in ends {
        if !is_buffer {
            continue;
        }
        let Some(book) = state.range(device, reference, what)? else {
            if reference.buffer.is_null() && reference.addr == 0 {
                return fault("B9", format!("{what}: expected a buffer, found NULL"));
            }
            continue;
        };
        if copy.size_bytes > reference.length {
            let (size, length) = (copy.size_bytes, reference.length);
            return fault("B10", format!("a copy of {size} bytes, {what} has {length}"));
        }
        let (align, granule) = (book.space.copy_align.max(1), book.space.copy_granule.max(1));
        if !reference.offset.is_multiple_of(align) {
            return fault(
                "B11",
                format!("{what} begins at {}, expected a multiple of {align}", reference.offset),
            );
        }
        let end =
            copy.size_bytes.checked_next_multiple_of(granule).and_then(|n| n.checked_add(reference.offset));
        if end.is_none_or(|end| end > book.size) {
            let (size, offset) = (copy.size_bytes, reference.offset);
            let text = format!(
                "a copy of {size} bytes at {offset} in granules of {granule}, {what} has {}",
                book.size
            );
            return fault("B11", text);
        }
        let write_once =
            book.space.flags & DEVBAY_SPACE_WRITE_ONCE != 0 && std::ptr::eq(reference, &copy.dst);
        if write_once && (book.written || reference.offset != 0) {
            return fault("B11", "the destination is written once, by one copy from its beginning");
        }
        lent.push(Lent::Buffer(reference.buffer.addr()));
    }
    let host = [(from_buffer, copy.host_src, "from"), (to_buffer, copy.host_dst.cast_const(), "to")];
    if let Some((.., word)) = host.iter().find(|(is_buffer, at, _)| !is_buffer && at.is_null()) {
        return fault("B24", format!("a copy {word} the host's memory at NULL"));
    }
    let cut = |reference: &BufferRef| BufferRef { length: copy.size_bytes, ..*reference };
    if from_buffer && to_buffer && overlap(&cut(&copy.src), &cut(&copy.dst)) {
        return fault("B10", "source and destination overlap");
    }
    Ok(lent)
}
