//! Wrong allocations and copies.

use super::{ASYNC, INLINE, Negative, forward, negative};
use devbay_plugin_api::abi::*;
use std::sync::atomic::{AtomicUsize, Ordering};

pub fn all() -> Vec<Negative> {
    vec![
        negative!(INLINE, "memory.alloc", "fewer bytes than asked for", |_, table| {
            table.buffer_alloc = Some(short);
        }),
        negative!(INLINE, "memory.align", "alignments above the space's are forgotten", |_, table| {
            table.buffer_alloc = Some(misaligned);
        }),
        negative!(INLINE, "memory.zero", "no buffers of 0 bytes", |_, table| table.buffer_alloc =
            Some(no_zero)),
        negative!(INLINE, "memory.too_large", "buffers of any size", |_, table| {
            table.buffer_alloc = Some(any_size);
        }),
        negative!(INLINE, "memory.refusals", "alignments that are no power of two", |_, table| {
            table.buffer_alloc = Some(any_alignment);
        }),
        negative!(INLINE, "memory.disjoint", "buffers that share their end", |_, table| {
            table.buffer_alloc = Some(overlapping);
        }),
        negative!(INLINE, "memory.sizes", "fields that an old host does not have are read", |_, table| {
            table.buffer_alloc = Some(reads_on);
        }),
        negative!(INLINE, "memory.threads", "buffers handed out twice under threads", |_, table| {
            table.buffer_alloc = Some(racing);
            table.buffer_free = Some(forget);
        }),
        negative!(INLINE, "transfer.round_trip", "the last byte is dropped", |_, table| {
            table.copy = Some(drops_last);
        }),
        negative!(ASYNC, "transfer.round_trip", "the last byte is dropped", |_, table| {
            table.copy = Some(drops_last);
        }),
        negative!(INLINE, "transfer.offsets", "offsets in buffers are overlooked", |_, table| {
            table.copy = Some(from_start);
        }),
        negative!(INLINE, "transfer.device", "copies between buffers do nothing", |_, table| {
            table.copy = Some(not_within);
        }),
        negative!(
            INLINE,
            "transfer.order",
            "copies from the host that overtake, or are overtaken",
            |_, table| {
                table.copy = Some(late);
            }
        ),
        negative!(INLINE, "transfer.zero", "copies of 0 bytes are refused", |_, table| {
            table.copy = Some(no_zero_copy);
        }),
        negative!(INLINE, "transfer.overlap", "overlapping copies are taken", |_, table| {
            table.copy = Some(overlaps);
        }),
        negative!(INLINE, "transfer.range", "the range is not looked at", |_, table| {
            table.copy = Some(cuts_range);
        }),
        negative!(INLINE, "transfer.kind", "unknown kinds are a success", |_, table| {
            table.copy = Some(any_kind);
        }),
        negative!(INLINE, "transfer.goes_on", "a refused copy ends the stream", |_, table| {
            table.copy = Some(sulks);
            table.stream_create = Some(cheers_up);
        }),
        negative!(INLINE, "transfer.sizes", "newer descriptions are refused", |_, table| {
            table.copy = Some(one_size);
        }),
        negative!(
            INLINE,
            "transfer.host_visible",
            "copies read a cache that the host does not reach",
            |_, table| {
                table.copy = Some(cached);
            }
        ),
        negative!(
            INLINE,
            "transfer.threads",
            "copies at the same time get in each other's way",
            |_, table| {
                table.copy = Some(staged);
            }
        ),
    ]
}

type Error = *mut ErrorDetail;

/// What is asked for, as far as every version has it.
fn whole(desc: *const AllocDesc) -> AllocDesc {
    // SAFETY: the host's struct.
    let desc = unsafe { read_struct(desc) }.expect("hosts make whole structs");
    AllocDesc { struct_size: size_of::<AllocDesc>() as u32, ..desc }
}

unsafe extern "C" fn short(d: *mut Device, desc: *const AllocDesc, out: *mut Allocation, e: Error) -> Status {
    let status = forward!(buffer_alloc(d, desc, out, e));
    // SAFETY: the host's struct.
    unsafe { (*out).size_bytes = (*out).size_bytes.saturating_sub(1) };
    status
}

unsafe extern "C" fn misaligned(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    let asked = whole(desc);
    let more = AllocDesc { size_bytes: asked.size_bytes.saturating_add(64), ..asked };
    if asked.align <= 64 || !asked.align.is_power_of_two() {
        return forward!(buffer_alloc(d, desc, out, e));
    }
    let status = forward!(buffer_alloc(d, &more, out, e));
    if status == DEVBAY_STATUS_OK {
        // SAFETY: the host's struct; 64 more bytes were allocated.
        unsafe { (*out).base += 64 };
    }
    status
}

unsafe extern "C" fn no_zero(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    if whole(desc).size_bytes == 0 {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(buffer_alloc(d, desc, out, e))
}

unsafe extern "C" fn any_size(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    let asked = whole(desc);
    let less = AllocDesc { size_bytes: asked.size_bytes.min(1 << 22), ..asked };
    let status = forward!(buffer_alloc(d, &less, out, e));
    if status == DEVBAY_STATUS_OK {
        // SAFETY: the host's struct.
        unsafe { (*out).size_bytes = asked.size_bytes };
    }
    status
}

unsafe extern "C" fn any_alignment(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    let asked = whole(desc);
    let desc = AllocDesc { align: asked.align.next_power_of_two(), ..asked };
    forward!(buffer_alloc(d, &desc, out, e))
}

unsafe extern "C" fn overlapping(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    let status = forward!(buffer_alloc(d, desc, out, e));
    if status == DEVBAY_STATUS_OK {
        // SAFETY: the host's struct. What is said is more than there is; the case looks at ranges alone.
        unsafe { (*out).size_bytes += 1 << 20 };
    }
    status
}

unsafe extern "C" fn forget(_: *mut Buffer) {}

unsafe extern "C" fn reads_on(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    // SAFETY: the host's struct, and what stands behind it; hosts of the suite have memory there.
    let usage = unsafe { (*desc).usage };
    if usage > DEVBAY_USAGE_STAGING {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(buffer_alloc(d, desc, out, e))
}

unsafe extern "C" fn racing(
    d: *mut Device,
    desc: *const AllocDesc,
    out: *mut Allocation,
    e: Error,
) -> Status {
    static BUSY: AtomicUsize = AtomicUsize::new(0);
    static LAST: std::sync::Mutex<(u64, u64, usize)> = std::sync::Mutex::new((0, 0, 0));
    let asked = whole(desc);
    let others = BUSY.fetch_add(1, Ordering::SeqCst);
    // Widens the window.
    std::thread::sleep(std::time::Duration::from_micros(20));
    let mut last = LAST.lock().expect("nobody panics here");
    let status = if others > 0 && last.1 >= asked.size_bytes && asked.size_bytes > 0 {
        // SAFETY: the host's struct.
        unsafe {
            (*out).base = last.0;
            (*out).size_bytes = last.1;
            (*out).buffer = last.2 as *mut Buffer;
        }
        DEVBAY_STATUS_OK
    } else {
        let status = forward!(buffer_alloc(d, desc, out, e));
        if status == DEVBAY_STATUS_OK {
            // SAFETY: the host's struct.
            *last = unsafe { ((*out).base, (*out).size_bytes, (*out).buffer as usize) };
        }
        status
    };
    BUSY.fetch_sub(1, Ordering::SeqCst);
    status
}

/// A copy with changes.
fn changed(stream: *mut Stream, desc: *const CopyDesc, edit: impl FnOnce(&mut CopyDesc)) -> Status {
    // SAFETY: the host's struct.
    let mut desc = unsafe { read_struct(desc) }.expect("hosts make whole structs");
    desc.struct_size = size_of::<CopyDesc>() as u32;
    edit(&mut desc);
    forward!(copy(stream, &desc))
}

/// The host's description.
///
/// # Safety
/// `desc` is the host's struct.
unsafe fn asked<'a>(desc: *const CopyDesc) -> &'a CopyDesc {
    // SAFETY: the caller's promise.
    unsafe { &*desc }
}

unsafe extern "C" fn drops_last(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    changed(stream, desc, |desc| {
        if desc.kind == DEVBAY_COPY_BUFFER_TO_HOST {
            desc.size_bytes = desc.size_bytes.saturating_sub(1);
        }
    })
}

unsafe extern "C" fn from_start(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    changed(stream, desc, |desc| {
        for part in [&mut desc.src, &mut desc.dst] {
            part.addr -= if part.addr == 0 { 0 } else { part.offset };
            part.offset = 0;
        }
    })
}

unsafe extern "C" fn not_within(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    changed(stream, desc, |desc| {
        if desc.kind == DEVBAY_COPY_BUFFER_TO_BUFFER {
            desc.size_bytes = 0;
        }
    })
}

/// A copy from the host that comes right after one on the device is held back until the next copy is done.
unsafe extern "C" fn late(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    static BEFORE: AtomicUsize = AtomicUsize::new(0);
    struct Held(CopyDesc);
    // SAFETY: addresses and numbers; what they name outlives the case.
    unsafe impl Send for Held {}
    static HELD: std::sync::Mutex<Option<Held>> = std::sync::Mutex::new(None);
    // SAFETY: the host's struct.
    let desc = unsafe { asked(desc) };
    let before = BEFORE.swap(desc.kind as usize, Ordering::Relaxed);
    let mut held = HELD.lock().expect("nobody panics here");
    let after_device = before == DEVBAY_COPY_BUFFER_TO_BUFFER as usize;
    if after_device && desc.kind == DEVBAY_COPY_HOST_TO_BUFFER && held.is_none() {
        *held = Some(Held(*desc));
        return DEVBAY_STATUS_OK;
    }
    let status = forward!(copy(stream, desc));
    match held.take() {
        Some(held) => forward!(copy(stream, &held.0)),
        None => status,
    }
}

/// Remembers what was copied in, and gives it back as long as nothing else is copied.
unsafe extern "C" fn cached(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    static CACHE: std::sync::Mutex<Option<(u64, Vec<u8>)>> = std::sync::Mutex::new(None);
    // SAFETY: the host's struct.
    let asked = unsafe { asked(desc) };
    let status = forward!(copy(stream, desc));
    let mut cache = CACHE.lock().expect("nobody panics here");
    let len = asked.size_bytes as usize;
    match (asked.kind, cache.take()) {
        // Of one size alone, so that launches, which change buffers too, do not meet it.
        (DEVBAY_COPY_HOST_TO_BUFFER, _) if status == DEVBAY_STATUS_OK && len == 2000 => {
            // SAFETY: the host's memory.
            let bytes = unsafe { std::slice::from_raw_parts(asked.host_src.cast::<u8>(), len) };
            *cache = Some((asked.dst.addr, bytes.to_vec()));
        }
        (DEVBAY_COPY_BUFFER_TO_HOST, Some((addr, bytes))) if addr == asked.src.addr && len == bytes.len() => {
            // SAFETY: the host's memory, which has room for `len` bytes.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), asked.host_dst.cast(), len) };
        }
        _ => {}
    }
    status
}

unsafe extern "C" fn no_zero_copy(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    // SAFETY: the host's struct.
    if unsafe { asked(desc) }.size_bytes == 0 {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(copy(stream, desc))
}

unsafe extern "C" fn overlaps(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    // SAFETY: the host's struct.
    let asked = unsafe { asked(desc) };
    let status = forward!(copy(stream, desc));
    if status == DEVBAY_STATUS_INVALID
        && asked.kind == DEVBAY_COPY_BUFFER_TO_BUFFER
        && asked.src.buffer == asked.dst.buffer
    {
        let (src, dst) = (asked.src.addr as *const u8, asked.dst.addr as *mut u8);
        // SAFETY: both are in the buffer; `copy` takes overlapping ranges.
        unsafe { std::ptr::copy(src, dst, asked.size_bytes as usize) };
        return DEVBAY_STATUS_OK;
    }
    status
}

unsafe extern "C" fn cuts_range(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    match forward!(copy(stream, desc)) {
        // SAFETY: the host's struct.
        DEVBAY_STATUS_INVALID if unsafe { asked(desc) }.kind != DEVBAY_COPY_BUFFER_TO_BUFFER => {
            DEVBAY_STATUS_OK
        }
        status => status,
    }
}

unsafe extern "C" fn any_kind(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    // SAFETY: the host's struct.
    let known = (1..=3).contains(&unsafe { asked(desc) }.kind);
    // A kind of the fixture for errors is refused, so that this case is the one to see it.
    // SAFETY: as above.
    if known || unsafe { asked(desc) }.kind == 0x7fff {
        forward!(copy(stream, desc))
    } else {
        DEVBAY_STATUS_OK
    }
}

static SULKING: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn sulks(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    if SULKING.load(Ordering::Relaxed) == stream as usize {
        return DEVBAY_STATUS_ABORTED;
    }
    let status = forward!(copy(stream, desc));
    // SAFETY: the host's struct; a copy without a destination is what the case refuses.
    if status != DEVBAY_STATUS_OK && unsafe { asked(desc) }.host_dst.is_null() {
        // SAFETY: as above.
        let of_case = unsafe { asked(desc) }.kind == DEVBAY_COPY_BUFFER_TO_HOST;
        SULKING.store(if of_case { stream as usize } else { 0 }, Ordering::Relaxed);
    }
    status
}

unsafe extern "C" fn cheers_up(
    device: *mut Device,
    desc: *const StreamDesc,
    out: *mut *mut Stream,
    e: Error,
) -> Status {
    SULKING.store(0, Ordering::Relaxed);
    forward!(stream_create(device, desc, out, e))
}

unsafe extern "C" fn one_size(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    // SAFETY: the host's struct.
    if unsafe { asked(desc) }.struct_size as usize != size_of::<CopyDesc>() {
        return DEVBAY_STATUS_INVALID;
    }
    forward!(copy(stream, desc))
}

/// Copies through one staging buffer for all streams, with a window between filling and emptying it.
unsafe extern "C" fn staged(stream: *mut Stream, desc: *const CopyDesc) -> Status {
    static STAGE: std::sync::Mutex<Vec<u8>> = std::sync::Mutex::new(Vec::new());
    // SAFETY: the host's struct.
    let asked = unsafe { asked(desc) };
    if asked.kind != DEVBAY_COPY_HOST_TO_BUFFER || asked.size_bytes == 0 || asked.host_src.is_null() {
        return forward!(copy(stream, desc));
    }
    let len = asked.size_bytes as usize;
    // SAFETY: the host lends its memory for the copy.
    let source = unsafe { std::slice::from_raw_parts(asked.host_src.cast::<u8>(), len) };
    {
        let mut stage = STAGE.lock().expect("nobody panics here");
        let room = len.max(stage.len());
        stage.resize(room, 0);
        stage[..len].copy_from_slice(source);
    }
    std::thread::sleep(std::time::Duration::from_micros(30));
    let stage = STAGE.lock().expect("nobody panics here");
    let desc = CopyDesc { host_src: stage.as_ptr().cast(), ..*asked };
    forward!(copy(stream, &desc))
}
