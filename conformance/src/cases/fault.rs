//! When things go wrong: no memory, work in flight that nobody wants any more, callers that are not patient (B13, B18,
//! B24).

use crate::case::Case;
use crate::measure::limit_mapped;
use crate::rig::{Detail, Rig, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "fault.memory",
        rules: &["B18"],
        requires: "when memory is used up, allocations give OUT_OF_MEMORY, and what is given back can be had again",
        needs: &["memory.too_large", "transfer.round_trip"],
        run: memory,
    },
    Case {
        id: "fault.in_flight",
        rules: &["B24"],
        requires: "streams with work in flight, some waiting for others, can be destroyed in any order",
        needs: &["event.destroy", "event.wait"],
        run: in_flight,
    },
];

/// What a case of memory asks for at once.
const CHUNK: usize = 64 << 20;
/// More than any device has, in chunks.
const CHUNKS_MAX: usize = 1 << 15;
/// What the process may map beyond what it has: memory of the host ends there.
const MORE: u64 = 1 << 30;

fn memory(rig: &Rig<'_>) -> Outcome {
    if !rig.own_process || limit_mapped(MORE).is_none() {
        return not_run(Why::OwnProcess, "memory is limited in a process of the test's own, on Linux");
    }
    rig.each_device(|device| {
        device.plain_memory()?;
        let size = device.pad(device.at_most(CHUNK));
        let sent = pattern(device.pad(10_000), 1);
        let stream = device.stream()?;
        let mut kept = Vec::new();
        let refusal = loop {
            if kept.len() == CHUNKS_MAX {
                return not_run(
                    Why::NotOffered,
                    format!("the device has more than {CHUNKS_MAX} times {size} bytes"),
                );
            }
            let mut detail = Detail::new();
            let align = device.space().alloc_align.max(1);
            let (status, out) = device.try_alloc(0, size as u64, align, &mut detail)?;
            match status {
                DEVBAY_STATUS_OK => kept.push(device.own(out, size)?),
                status => break status,
            }
        };
        ensure!(
            refusal == DEVBAY_STATUS_OUT_OF_MEMORY,
            "after {} buffers of {size} bytes the next gave {}, expected OUT_OF_MEMORY",
            kept.len(),
            status_name(refusal)
        );
        ensure!(!kept.is_empty(), "not even one buffer of {size} bytes can be had");
        // What was there before is whole, also now.
        stream.upload(&sent, &kept[0], 0)?;
        let found = stream.download(&kept[0], 0, sent.len())?;
        if let Some(found) = difference(&found, &sent) {
            return failed(format!("with no memory left, a copy to a buffer and back: {found}"));
        }
        let n = kept.len();
        kept.clear();
        for _ in 0..n {
            kept.push(device.alloc(size)?);
        }
        Ok(())
    })
}

fn in_flight(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        device.plain_memory()?;
        const N: usize = 6;
        for order in 0..4 {
            let source = pattern(device.pad(device.at_most(1 << 20)), order);
            let buffers: Vec<_> = (0..N).map(|_| device.alloc(source.len())).collect::<Outcome<_>>()?;
            let mut streams = device.streams(N)?;
            let mut before: Option<(usize, u64)> = None;
            for (i, stream) in streams.iter().enumerate() {
                if let (Some((other, value)), Some(wait)) = (before, device.opened.table.stream_wait) {
                    // SAFETY: two streams of one device, and a value that was signalled.
                    let status =
                        unsafe { wait(stream.handle.as_ptr(), streams[other].handle.as_ptr(), value) };
                    ensure!(status == DEVBAY_STATUS_OK, "stream_wait gave {}", stream.error_words(status));
                }
                // SAFETY: source and buffers were made before the streams.
                unsafe { stream.enqueue_in(&source, buffers[i].whole()) }?;
                before = Some((i, stream.signal()?));
            }
            // First to last, last to first, and two that are neither: who is waited for may go before who waits.
            match order {
                0 => streams.drain(..).for_each(drop),
                1 => streams.drain(..).rev().for_each(drop),
                _ => {
                    while !streams.is_empty() {
                        let at = (order as usize * 5 + streams.len()) % streams.len();
                        drop(streams.swap_remove(at));
                    }
                }
            }
            // The device goes on.
            let stream = device.stream()?;
            stream.upload(&source, &buffers[0], 0)?;
            let found = stream.download(&buffers[0], 0, source.len())?;
            if let Some(found) = difference(&found, &source) {
                return failed(format!("a copy after the streams were destroyed: {found}"));
            }
        }
        Ok(())
    })
}
