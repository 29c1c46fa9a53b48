//! Copies: byte for byte, where they were told to, in their order, and refused when they make no sense (B9, B24).

use crate::case::Case;
use crate::rig::{AnySize, Device, Rig, Stream, at_once, difference, empty_copy, pattern, status_name};
use crate::verdict::{Outcome, ensure, failed};
use devbay_plugin_api::abi::*;
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "transfer.round_trip",
        rules: &["B9", "B24"],
        requires: "bytes copied to a buffer and back are unchanged, and so are the bytes around them",
        needs: &["memory.alloc", "stream.create", "stream.signal", "event.not_early"],
        run: round_trip,
    },
    Case {
        id: "transfer.offsets",
        rules: &["B10"],
        requires: "a copy begins at its offset, and leaves the rest of the buffer unchanged",
        needs: &["transfer.round_trip"],
        run: offsets,
    },
    Case {
        id: "transfer.device",
        rules: &["B10"],
        requires: "copies between buffers, and between disjoint parts of one, are exact",
        needs: &["transfer.offsets"],
        run: within_device,
    },
    Case {
        id: "transfer.order",
        rules: &["B12"],
        requires: "copies on one stream run in the order they were enqueued",
        needs: &["transfer.device"],
        run: order,
    },
    Case {
        id: "transfer.zero",
        rules: &["B9"],
        requires: "a copy of 0 bytes is accepted, and changes nothing",
        needs: &["transfer.round_trip"],
        run: zero,
    },
    Case {
        id: "transfer.overlap",
        rules: &["B18"],
        requires: "a copy between overlapping ranges of one buffer is refused with INVALID, and changes nothing",
        needs: &["transfer.device"],
        run: overlap,
    },
    Case {
        id: "transfer.range",
        rules: &["B18"],
        requires: "a copy beyond the end of a reference or a buffer is refused with INVALID, and changes nothing",
        needs: &["transfer.offsets"],
        run: range,
    },
    Case {
        id: "transfer.kind",
        rules: &["B5"],
        requires: "an unknown kind of copy is refused, and changes nothing",
        needs: &["transfer.round_trip"],
        run: kind,
    },
    Case {
        id: "transfer.goes_on",
        rules: &["B13"],
        requires: "a stream continues to work after a refused copy",
        needs: &["transfer.range"],
        run: goes_on,
    },
    Case {
        id: "transfer.sizes",
        rules: &["B4"],
        requires: "`copy` accepts descriptions of newer hosts",
        needs: &["transfer.round_trip"],
        run: sizes,
    },
    Case {
        id: "transfer.host_visible",
        rules: &["B11"],
        requires: "copies read what the host wrote at a HOST_VISIBLE base, and the host reads what copies wrote",
        needs: &["transfer.round_trip", "memory.host_visible"],
        run: host_visible,
    },
    Case {
        id: "transfer.threads",
        rules: &["B17"],
        requires: "several threads can copy at once, each on its own stream of one device",
        needs: &["transfer.round_trip", "memory.threads"],
        run: threads,
    },
];

/// Runs a body on every device whose memory takes plain copies, with a stream.
fn each_plain(rig: &Rig<'_>, mut body: impl FnMut(&Device<'_>) -> Outcome) -> Outcome {
    rig.each_device(|device| {
        device.plain_memory()?;
        body(device)
    })
}

/// Refuses bytes other than expected.
fn expect(found: &[u8], expected: &[u8], what: &str) -> Outcome {
    match difference(found, expected) {
        None => Ok(()),
        Some(found) => failed(format!("{what}: {found}")),
    }
}

fn round_trip(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for (i, size) in
            [1, 2, 3, 7, 8, 31, 63, 64, 65, 255, 1000, 4095, 4096, 4097, 100_003].iter().enumerate()
        {
            // Of any size: the last granule of a buffer may be touched whole, the host's memory may not.
            let size = device.at_most(*size);
            let sent = pattern(size, i as u64 + 1);
            let padded = device.pad(size);
            // Memory that is written once is written and read whole; other memory has something behind the copied part.
            let is_whole = device.plain_memory().is_err();
            let behind = if is_whole { Vec::new() } else { pattern(padded + device.pad(1), i as u64 + 101) };
            let buffer = device.alloc(if is_whole { size } else { behind.len() })?;
            // Received between two guards.
            const GUARD: usize = 64;
            let mut room = vec![0xa5u8; size + 2 * GUARD];
            let stream = device.stream()?;
            if !is_whole {
                stream.upload(&behind, &buffer, 0)?;
            }
            stream.upload(&sent, &buffer, 0)?;
            // SAFETY: the room, declared before the stream, is there until the stream is destroyed, which waits for its
            // work.
            unsafe { stream.enqueue_out(buffer.whole(), room.as_mut_ptr().add(GUARD), size) }?;
            stream.finish()?;
            if !is_whole {
                let all = stream.download(&buffer, 0, behind.len())?;
                expect(
                    &all[padded..],
                    &behind[padded..],
                    &format!("the bytes after a copy of {size} bytes"),
                )?;
            }
            drop(stream);
            expect(&room[GUARD..GUARD + size], &sent, &format!("{size} bytes to the device and back"))?;
            let guards = room[..GUARD].iter().chain(&room[GUARD + size..]);
            ensure!(
                guards.into_iter().all(|&byte| byte == 0xa5),
                "a copy of {size} bytes to the host wrote outside them"
            );
        }
        Ok(())
    })
}

/// A buffer of eight pieces, its content, and the size of a piece.
struct Pieces {
    content: Vec<u8>,
    piece: usize,
}

impl Pieces {
    fn new(device: &Device<'_>, seed: u64) -> Self {
        let piece = device.pad(device.step() * 3);
        Self { content: pattern(piece * 8, seed), piece }
    }
}

fn offsets(rig: &Rig<'_>) -> Outcome {
    each_plain(rig, |device| {
        let mut model = Pieces::new(device, 11);
        let buffer = device.alloc(model.content.len())?;
        let stream = device.stream()?;
        stream.upload(&model.content, &buffer, 0)?;
        for (round, at) in [3usize, 0, 7, 5].into_iter().enumerate() {
            let sent = pattern(model.piece, 20 + round as u64);
            stream.upload(&sent, &buffer, at * model.piece)?;
            model.content[at * model.piece..][..model.piece].copy_from_slice(&sent);
            let whole = stream.download(&buffer, 0, model.content.len())?;
            expect(&whole, &model.content, "the buffer after a copy into its middle")?;
            let part = stream.download(&buffer, at * model.piece, model.piece)?;
            expect(&part, &sent, "a copy from the buffer's middle")?;
        }
        Ok(())
    })
}

fn within_device(rig: &Rig<'_>) -> Outcome {
    each_plain(rig, |device| {
        let a = Pieces::new(device, 31);
        let mut b = Pieces::new(device, 32);
        let piece = a.piece;
        let first = device.alloc(a.content.len())?;
        let second = device.alloc(b.content.len())?;
        let stream = device.stream()?;
        stream.upload(&a.content, &first, 0)?;
        stream.upload(&b.content, &second, 0)?;
        // SAFETY: the buffers were made before the stream, whose drop waits for its work.
        unsafe { stream.enqueue_within(first.part(2 * piece, piece), second.part(5 * piece, piece), piece) }?;
        b.content[5 * piece..6 * piece].copy_from_slice(&a.content[2 * piece..3 * piece]);
        stream.finish()?;
        expect(&stream.download(&second, 0, b.content.len())?, &b.content, "a copy between two buffers")?;
        expect(&stream.download(&first, 0, a.content.len())?, &a.content, "the source after a copy")?;
        // Neighbours in one buffer are disjoint.
        // SAFETY: the buffer was made before the stream, whose drop waits for its work; both parts are in it.
        unsafe {
            stream.enqueue_within(second.part(5 * piece, piece), second.part(6 * piece, piece), piece)
        }?;
        let moved = b.content[5 * piece..6 * piece].to_vec();
        b.content[6 * piece..7 * piece].copy_from_slice(&moved);
        stream.finish()?;
        expect(&stream.download(&second, 0, b.content.len())?, &b.content, "a copy within one buffer")
    })
}

fn order(rig: &Rig<'_>) -> Outcome {
    each_plain(rig, |device| {
        let mut model = Pieces::new(device, 41);
        let piece = model.piece;
        // Sources stay as they are until the end.
        let sources: Vec<Vec<u8>> = (0..16).map(|i| pattern(piece, 50 + i)).collect();
        let buffer = device.alloc(model.content.len())?;
        let stream = device.stream()?;
        stream.upload(&model.content, &buffer, 0)?;
        let mut state = 7usize;
        for i in 0..200 {
            state = (state * 1_103_515_245 + 12_345) % (1 << 31);
            let (to, from) = (state / 8 % 8, state / 64 % 8);
            if i % 2 == 0 || to == from {
                let source = &sources[state / 512 % 16];
                // SAFETY: the sources and the buffer were made before the stream, whose drop waits for its work.
                unsafe { stream.enqueue_in(source, buffer.part(to * piece, piece)) }?;
                model.content[to * piece..][..piece].copy_from_slice(source);
            } else {
                let (src, dst) = (buffer.part(from * piece, piece), buffer.part(to * piece, piece));
                // SAFETY: the buffer was made before the stream, whose drop waits for its work.
                unsafe { stream.enqueue_within(src, dst, piece) }?;
                let moved = model.content[from * piece..][..piece].to_vec();
                model.content[to * piece..][..piece].copy_from_slice(&moved);
            }
        }
        stream.finish()?;
        let found = stream.download(&buffer, 0, model.content.len())?;
        expect(&found, &model.content, "the buffer after 200 copies whose order matters")
    })
}

/// Enqueues something that must be refused (or, with `status` OK, taken) and leave a buffer's content alone.
fn leaves_alone(
    device: &Device<'_>,
    expected: Option<Status>,
    what: &str,
    mut desc_of: impl FnMut(&crate::rig::Buffer<'_>, &mut [u8]) -> CopyDesc,
) -> Outcome {
    let content = pattern(device.pad(device.step() * 8), 61);
    // Room for the reads and writes of a plugin that does not look: this process is not under test.
    let mut host = vec![0xa5u8; content.len() * 4];
    let buffer = device.alloc(content.len())?;
    let stream = device.stream()?;
    stream.upload(&content, &buffer, 0)?;
    let desc = desc_of(&buffer, &mut host);
    // SAFETY: the buffer and the host's room were made before the stream.
    let status = unsafe { stream.copy(&desc) }?;
    match expected {
        Some(expected) => ensure!(
            status == expected,
            "{what}: expected {}, found {}",
            status_name(expected),
            status_name(status)
        ),
        None => ensure!(status != DEVBAY_STATUS_OK, "{what} was accepted"),
    }
    let found = stream.download(&buffer, 0, content.len())?;
    drop(stream);
    expect(&found, &content, &format!("{what}: the buffer changed"))?;
    ensure!(host.iter().all(|&byte| byte == 0xa5), "{what}: the host's memory changed");
    Ok(())
}

fn zero(rig: &Rig<'_>) -> Outcome {
    each_plain(rig, |device| {
        let ok = Some(DEVBAY_STATUS_OK);
        leaves_alone(device, ok, "a copy of 0 bytes from the host", |buffer, _| CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst: buffer.part(0, 0),
            ..empty_copy()
        })?;
        leaves_alone(device, ok, "a copy of 0 bytes to the host", |buffer, host| CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src: buffer.whole(),
            host_dst: host.as_mut_ptr().cast(),
            ..empty_copy()
        })?;
        leaves_alone(device, ok, "a copy of 0 bytes on the device", |buffer, _| CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
            src: buffer.part(0, device.step()),
            dst: buffer.part(device.step(), device.step()),
            ..empty_copy()
        })
    })
}

fn overlap(rig: &Rig<'_>) -> Outcome {
    each_plain(rig, |device| {
        let step = device.step();
        for (from, to) in [(0, 1), (1, 0), (2, 2)] {
            let what = format!("a copy of {} bytes from {} to {}", 3 * step, from * step, to * step);
            leaves_alone(device, Some(DEVBAY_STATUS_INVALID), &what, |buffer, _| CopyDesc {
                kind: DEVBAY_COPY_BUFFER_TO_BUFFER,
                src: buffer.part(from * step, 3 * step),
                dst: buffer.part(to * step, 3 * step),
                size_bytes: 3 * step as u64,
                ..empty_copy()
            })?;
        }
        Ok(())
    })
}

fn range(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let step = device.step();
        let invalid = Some(DEVBAY_STATUS_INVALID);
        // More than the reference has, though the buffer has it.
        leaves_alone(device, invalid, "a copy larger than its source", |buffer, host| CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src: buffer.part(0, step),
            host_dst: host.as_mut_ptr().cast(),
            size_bytes: 2 * step as u64,
            ..empty_copy()
        })?;
        leaves_alone(device, invalid, "a copy larger than its destination", |buffer, host| CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst: buffer.part(step, step),
            host_src: host.as_ptr().cast(),
            size_bytes: 2 * step as u64,
            ..empty_copy()
        })?;
        // More than the buffer has: the reference itself goes beyond it.
        leaves_alone(device, invalid, "a copy from beyond its buffer's end", |buffer, host| CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src: buffer.part(buffer.usable as usize - step, 2 * step),
            host_dst: host.as_mut_ptr().cast(),
            size_bytes: 2 * step as u64,
            ..empty_copy()
        })?;
        // Sums that overflow are beyond every buffer.
        leaves_alone(device, invalid, "a copy whose end overflows", |buffer, host| CopyDesc {
            kind: DEVBAY_COPY_BUFFER_TO_HOST,
            src: BufferRef { offset: u64::MAX - 7, ..buffer.part(0, 64 * step) },
            host_dst: host.as_mut_ptr().cast(),
            size_bytes: 8,
            ..empty_copy()
        })
    })
}

fn kind(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for kind in [0, 4, 77, u32::MAX] {
            leaves_alone(device, None, &format!("a copy of kind {kind}"), |buffer, host| CopyDesc {
                kind,
                src: buffer.part(0, device.step()),
                dst: buffer.part(device.step(), device.step()),
                host_src: host.as_ptr().cast(),
                host_dst: host.as_mut_ptr().cast(),
                size_bytes: device.step() as u64,
                ..empty_copy()
            })?;
        }
        Ok(())
    })
}

fn goes_on(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        const N: usize = 3;
        let sent = pattern(device.pad(500), 71);
        let buffers = device.targets(N, sent.len())?;
        let stream = device.stream()?;
        for i in 0..N {
            let buffer = &buffers[i % buffers.len()];
            let nonsense = CopyDesc {
                kind: DEVBAY_COPY_BUFFER_TO_HOST,
                src: buffer.part(0, 0),
                host_dst: null_mut(),
                size_bytes: 64,
                ..empty_copy()
            };
            // SAFETY: a copy without a destination, which is refused.
            let status = unsafe { stream.copy(&nonsense) }?;
            ensure!(status != DEVBAY_STATUS_OK, "a copy without a destination was accepted");
            stream.upload(&sent, buffer, 0)?;
            let found = stream.download(buffer, 0, sent.len())?;
            expect(&found, &sent, "a copy after a refused one")?;
        }
        Ok(())
    })
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let sent = pattern(device.pad(300), 81);
        for size in [CopyDesc::REQUIRED_SIZE, size_of::<CopyDesc>() + 8, size_of::<CopyDesc>() + 64] {
            let buffer = device.alloc(sent.len())?;
            let stream = device.stream()?;
            let desc = CopyDesc {
                kind: DEVBAY_COPY_HOST_TO_BUFFER,
                dst: buffer.whole(),
                host_src: sent.as_ptr().cast(),
                size_bytes: sent.len() as u64,
                ..empty_copy()
            };
            let mut desc = AnySize::new(&desc, size);
            // SAFETY: the source and the buffer were made before the stream, whose drop waits for its work.
            let status = unsafe { stream.copy(desc.as_ptr()) }?;
            ensure!(
                status == DEVBAY_STATUS_OK,
                "a description of {size} bytes returned {}",
                stream.error_words(status)
            );
            stream.finish()?;
            let found = stream.download(&buffer, 0, sent.len())?;
            expect(&found, &sent, &format!("with a description of {size} bytes"))?;
        }
        Ok(())
    })
}

fn host_visible(rig: &Rig<'_>) -> Outcome {
    let mut n_visible = 0;
    each_plain(rig, |device| {
        if device.space().flags & DEVBAY_SPACE_HOST_VISIBLE == 0 {
            return Ok(());
        }
        n_visible += 1;
        let first = pattern(device.pad(2000), 91);
        let second = pattern(device.pad(2000), 92);
        let buffer = device.alloc(first.len())?;
        let stream = device.stream()?;
        let base = buffer.base as *mut u8;
        // SAFETY: the space says that the host may write there, and no work uses the buffer.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), base, first.len()) };
        expect(&stream.download(&buffer, 0, first.len())?, &first, "a copy of bytes that the host wrote")?;
        stream.upload(&second, &buffer, 0)?;
        // SAFETY: the space says that the host may read there, and the copy is done.
        let found = unsafe { std::slice::from_raw_parts(base, second.len()) };
        expect(found, &second, "a host read of copied bytes")?;
        // SAFETY: the space says that the host may write there, and no work uses the buffer.
        unsafe { std::ptr::copy_nonoverlapping(first.as_ptr(), base, first.len()) };
        expect(
            &stream.download(&buffer, 0, first.len())?,
            &first,
            "a copy of bytes that the host wrote after a copy",
        )
    })?;
    if n_visible == 0 {
        let why = crate::verdict::Why::NotOffered;
        return crate::verdict::not_run(why, "the operands' space is not HOST_VISIBLE");
    }
    Ok(())
}

/// Copies back and forth on one stream.
fn shuttle(device: &Device<'_>, stream: &Stream<'_>, seed: u64) -> Outcome {
    for round in 0..25 {
        let sent = pattern(device.pad(3000), seed * 100 + round);
        let buffer = device.alloc(sent.len())?;
        stream.upload(&sent, &buffer, 0)?;
        let found = stream.download(&buffer, 0, sent.len())?;
        expect(&found, &sent, &format!("stream {seed}, round {round}"))?;
    }
    Ok(())
}

fn threads(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    rig.each_device(|device| {
        let streams = device.streams(4)?;
        at_once(streams.iter().enumerate(), |(i, stream)| shuttle(device, stream, i as u64)).map(drop)
    })
}
