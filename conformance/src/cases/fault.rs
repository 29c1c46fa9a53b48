//! Faults: no memory, work in flight that is no longer needed, impatient callers (B13, B18, B24).

use crate::case::Case;
use crate::cases::devices::{descriptions, handles};
use crate::cases::event::{Calls, call_back, count};
use crate::measure::limit_mapped;
use crate::node::each_node;
use crate::ops::Op;
use crate::rig::{
    Detail, Device, Opened, PATIENCE, Rig, Stream, difference, empty_copy, pattern, status_name,
};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::{self, *};
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "fault.memory",
        rules: &["B18"],
        requires: "allocations fail with OUT_OF_MEMORY when memory is exhausted, and freed memory can be \
                   allocated again",
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
    Case {
        id: "fault.poison",
        rules: &["B13", "B16"],
        requires: "a failure on the device fails the later points of its stream, their callbacks and streams \
                   that wait for them, and nothing else",
        needs: &["event.callback.once", "event.wait"],
        run: poison,
    },
    Case {
        id: "fault.refuse",
        rules: &["B13"],
        requires: "copies, waits, signals and flushes on a stream whose failure was reported return that \
                   failure, and do nothing",
        needs: &["fault.poison"],
        run: refuse,
    },
    Case {
        id: "fault.refuse.launch",
        rules: &["B13", "B21"],
        requires: "launches on a stream whose failure was reported return that failure, and write nothing",
        needs: &["fault.poison", "launch.order"],
        run: refuse_launches,
    },
    Case {
        id: "fault.lost",
        rules: &["B13", "B29"],
        requires: "a lost device returns DEVICE_LOST and is no longer listed, or is listed anew; all other \
                   devices continue",
        needs: &["devices.snapshot", "memory.alloc"],
        run: lost,
    },
];

/// Bytes that a case of memory requests at once.
const CHUNK: usize = 64 << 20;
/// More than any device has, in chunks.
const CHUNKS_MAX: usize = 1 << 15;
/// Bytes that the process may map beyond what it has: memory of the host ends there. Devices with memory of their
/// own are not limited, as their drivers reserve more of the address space than that.
const MORE: u64 = 1 << 30;

fn memory(rig: &Rig<'_>) -> Outcome {
    if !rig.own_process {
        return not_run(Why::OwnProcess, "exhausting memory needs a separate process");
    }
    rig.each_device(|device| {
        device.plain_memory()?;
        let size = device.pad(device.at_most(CHUNK));
        let sent = pattern(device.pad(10_000), 1);
        let stream = device.stream()?;
        // Objects that a driver makes when it is first used are made now.
        stream.upload(&sent, &device.alloc(sent.len())?, 0)?;
        let is_limited = device.space().kind != DEVBAY_SPACE_DEVICE;
        if is_limited && limit_mapped(MORE).is_none() {
            return not_run(Why::OwnProcess, "host memory can be limited only on Linux");
        }
        let mut kept = Vec::new();
        let refusal = loop {
            if kept.len() == CHUNKS_MAX {
                return not_run(
                    Why::NotOffered,
                    format!("the device has more memory than {CHUNKS_MAX} buffers of {size} bytes"),
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
            "after {} buffers of {size} bytes the next allocation returned {}, expected OUT_OF_MEMORY",
            kept.len(),
            status_name(refusal)
        );
        ensure!(!kept.is_empty(), "not even one buffer of {size} bytes could be allocated");
        // The earlier content is whole, also now.
        stream.upload(&sent, &kept[0], 0)?;
        let found = stream.download(&kept[0], 0, sent.len())?;
        if let Some(found) = difference(&found, &sent) {
            return failed(format!("a copy to a buffer and back with memory exhausted: {found}"));
        }
        let n = kept.len();
        kept.clear();
        // The process may map memory of its own; of a device's memory others may have taken some meanwhile.
        for _ in 0..if is_limited { n } else { n - n / 4 } {
            kept.push(device.alloc(size)?);
        }
        Ok(())
    })
}

fn in_flight(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        const N: usize = 6;
        for order in 0..4 {
            let source = pattern(device.pad(device.at_most(1 << 20)), order);
            let buffers: Vec<_> = (0..N).map(|_| device.alloc(source.len())).collect::<Outcome<_>>()?;
            let mut streams = device.streams(N)?;
            let mut before: Option<(usize, u64)> = None;
            for (i, stream) in streams.iter().enumerate() {
                if let (Some((other, value)), Some(wait)) = (before, device.opened.table.stream_wait) {
                    // SAFETY: both streams are the device's and alive, and the value was signalled.
                    let status =
                        unsafe { wait(stream.handle.as_ptr(), streams[other].handle.as_ptr(), value) };
                    ensure!(
                        status == DEVBAY_STATUS_OK,
                        "stream_wait returned {}",
                        stream.error_words(status)
                    );
                }
                // SAFETY: source and buffers were made before the streams, whose drop waits for their work.
                unsafe { stream.enqueue_in(&source, buffers[i].whole()) }?;
                before = Some((i, stream.signal()?));
            }
            // First to last, last to first, and two that are neither: a stream may go before the stream that waits for
            // it.
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
            let fresh = device.alloc(source.len())?;
            let stream = device.stream()?;
            stream.upload(&source, &fresh, 0)?;
            let found = stream.download(&fresh, 0, source.len())?;
            if let Some(found) = difference(&found, &source) {
                return failed(format!("a copy after the streams were destroyed: {found}"));
            }
        }
        Ok(())
    })
}

/// Makes a stream fail.
type FailFn = unsafe extern "C" fn(*mut abi::Stream, Status) -> Status;

/// Returns the function that makes a stream fail, if the plugin has the extension.
fn stream_fail(device: &Device<'_>) -> Outcome<FailFn> {
    let table: FaultTable = device.extension(extension::FAULT, "injects failures")?;
    match table.stream_fail {
        Some(fail) => Ok(fail),
        None => not_run(Why::NotOffered, "the fault extension has no stream_fail"),
    }
}

/// Waits until a stream says that it failed.
fn failure_of(stream: &Stream<'_>, last_good: u64) -> Outcome<Status> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let (reached, status) = stream.reached()?;
        ensure!(
            reached <= last_good,
            "value {reached} was reached despite a failure before it; the last good value is {last_good}"
        );
        if status != DEVBAY_STATUS_OK {
            ensure!(
                reached == last_good,
                "value {last_good} was signalled before the failure, but only {reached} was reached"
            );
            return Ok(status);
        }
        ensure!(Instant::now() < deadline, "the stream's failure was not reported within {PATIENCE:?}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Streams that are made to fail until one takes a signal behind the failure, as those do that do not know of it yet.
const POISONED_MAX: usize = 20;

fn poison(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        let fail = stream_fail(device)?;
        device.plain_memory()?;
        for _ in 0..POISONED_MAX {
            if poison_once(device, fail)? {
                break;
            }
        }
        Ok(())
    })
}

/// Makes a stream fail, and gives whether there was a point behind the failure.
fn poison_once(device: &Device<'_>, fail: FailFn) -> Outcome<bool> {
    let source = pattern(device.pad(device.at_most(1 << 20)), 1);
    let buffers: Vec<_> = (0..3).map(|_| device.alloc(source.len())).collect::<Outcome<_>>()?;
    let [failing, waiting, other] = device.streams(3)?.try_into().map_err(|_| {
        crate::verdict::Stop::NotRun(
            Why::NotOffered,
            "the device supports fewer than three streams".to_owned(),
        )
    })?;
    let calls = Calls::new(4);

    // SAFETY: source and buffers were made before the streams, whose drop waits for their work.
    unsafe { failing.enqueue_in(&source, buffers[0].whole()) }?;
    let good = failing.signal()?;
    // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
    let status = unsafe { fail(failing.handle.as_ptr(), DEVBAY_STATUS_INTERNAL) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_fail returned {}", failing.error_words(status));
    // The stream may know by now: then it refuses the signal, and there is no point to wait for.
    let bad = failing.signal().ok();
    call_back(&failing, good, count, calls.arg(0))?;
    if let Some(bad) = bad {
        call_back(&failing, bad, count, calls.arg(1))?;
        if let Some(wait) = device.opened.table.stream_wait {
            // SAFETY: both streams are the device's and alive, and the value was signalled.
            let status = unsafe { wait(waiting.handle.as_ptr(), failing.handle.as_ptr(), bad) };
            ensure!(
                matches!(status, DEVBAY_STATUS_OK | DEVBAY_STATUS_ABORTED),
                "stream_wait returned {}",
                waiting.error_words(status)
            );
            // This stream may know by now as well, and then refuses later work.
            // SAFETY: source and buffers were made before the streams, whose drop waits for their work.
            let _ = unsafe { waiting.enqueue_in(&source, buffers[1].whole()) };
            let value = waiting.signal().ok();
            match value {
                Some(value) => call_back(&waiting, value, count, calls.arg(2))?,
                None => {
                    let (_, status) = waiting.reached()?;
                    ensure!(
                        status == DEVBAY_STATUS_ABORTED,
                        "a signal was refused on a stream whose status is {}, expected ABORTED",
                        status_name(status)
                    );
                }
            }
            let status = failure_of(&waiting, 0)?;
            ensure!(
                status == DEVBAY_STATUS_ABORTED,
                "a stream that waits for a failed stream returned {}, expected ABORTED",
                status_name(status)
            );
            if value.is_some() {
                expect_call(&calls, 2, DEVBAY_STATUS_ABORTED, "of the waiting stream")?;
            }
        }
        expect_call(&calls, 1, DEVBAY_STATUS_INTERNAL, "of the point after the failure")?;
    }
    let status = failure_of(&failing, good)?;
    ensure!(
        status == DEVBAY_STATUS_INTERNAL,
        "the stream failed with {}, expected INTERNAL",
        status_name(status)
    );
    expect_call(&calls, 0, DEVBAY_STATUS_OK, "of the point before the failure")?;
    if let Some(stream_error) = device.opened.table.stream_error {
        let mut detail = Detail::new();
        // SAFETY: the stream is the plugin's own and alive; the struct is ours for the call.
        unsafe { stream_error(failing.handle.as_ptr(), &mut detail.raw) };
        ensure!(!detail.text().is_empty(), "stream_error has no message for the failure");
    }
    // A point that can be reached no more still calls back, at once.
    if let Some(bad) = bad {
        call_back(&failing, bad, count, calls.arg(3))?;
        expect_call(&calls, 3, DEVBAY_STATUS_INTERNAL, "of a point that had already failed")?;
    }
    // Others do not notice.
    other.upload(&source, &buffers[2], 0)?;
    let found = other.download(&buffers[2], 0, source.len())?;
    if let Some(found) = difference(&found, &source) {
        return failed(format!("a copy on a healthy stream: {found}"));
    }
    drop((failing, waiting));
    let again = device.stream()?;
    again.upload(&source, &buffers[0], 0)?;
    Ok(bad.is_some())
}

/// Waits for a callback, and looks at what it came with.
fn expect_call(calls: &Calls, i: usize, expected: Status, whose: &str) -> Outcome {
    let deadline = Instant::now() + PATIENCE;
    while calls.of(i) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_micros(200));
    }
    ensure!(calls.of(i) == 1, "the callback {whose} ran {} times", calls.of(i));
    let status = calls.status(i);
    ensure!(
        status == expected,
        "the callback {whose} received {}, expected {}",
        status_name(status),
        status_name(expected)
    );
    Ok(())
}

/// A stream that has failed with INTERNAL, and has said so.
fn failed_stream<'a>(device: &'a Device<'a>, fail: FailFn) -> Outcome<Stream<'a>> {
    let stream = device.stream()?;
    let good = stream.signal()?;
    // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
    let status = unsafe { fail(stream.handle.as_ptr(), DEVBAY_STATUS_INTERNAL) };
    ensure!(status == DEVBAY_STATUS_OK, "stream_fail returned {}", stream.error_words(status));
    // The stream may know by now, and refuse this.
    let _ = stream.signal();
    let status = failure_of(&stream, good)?;
    ensure!(
        status == DEVBAY_STATUS_INTERNAL,
        "the stream failed with {}, expected INTERNAL",
        status_name(status)
    );
    Ok(stream)
}

/// Refuses another answer than the failure of such a stream.
fn expect_refusal(what: &str, status: Status) -> Outcome {
    ensure!(
        status == DEVBAY_STATUS_INTERNAL,
        "{what} on a stream that failed with INTERNAL returned {}",
        status_name(status)
    );
    Ok(())
}

fn refuse(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        let fail = stream_fail(device)?;
        device.plain_memory()?;
        let (kept, sent) = (pattern(device.pad(10_000), 2), pattern(device.pad(10_000), 3));
        let buffer = device.alloc(kept.len())?;
        let other = device.stream()?;
        other.upload(&kept, &buffer, 0)?;
        let failing = failed_stream(device, fail)?;
        let table = &device.opened.table;
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst: buffer.whole(),
            host_src: sent.as_ptr().cast(),
            size_bytes: sent.len() as u64,
            ..empty_copy()
        };
        // SAFETY: source and buffer were made before the stream, whose drop waits for its work.
        expect_refusal("a copy", unsafe { failing.copy(&desc) }?)?;
        if let Some(wait) = table.stream_wait {
            let (stream, other) = (failing.handle.as_ptr(), other.handle.as_ptr());
            // SAFETY: the plugin's function with its own streams; 0 counts as signalled.
            expect_refusal("a wait", unsafe { wait(stream, other, 0) })?;
        }
        if let Some(flush) = table.stream_flush {
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            expect_refusal("a flush", unsafe { flush(failing.handle.as_ptr()) })?;
        }
        if let Some(signal) = table.stream_signal {
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            expect_refusal("a signal", unsafe { signal(failing.handle.as_ptr(), 1 << 20) })?;
        }
        drop(failing);
        let found = other.download(&buffer, 0, kept.len())?;
        if let Some(found) = difference(&found, &kept) {
            return failed(format!("a refused copy changed its destination: {found}"));
        }
        Ok(())
    })
}

fn refuse_launches(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| stream_fail(device).map(drop))?;
    each_node(rig, Op::typical, |device, kernel, request, sample| {
        if device.inline() {
            return Ok(());
        }
        let Ok(node) = request.prepare(device)? else {
            return failed("a kernel that was prepared once is refused a second time");
        };
        let other = device.stream()?;
        let failing = failed_stream(device, stream_fail(device)?)?;
        let (status, is_whole) = node.run_on_failed(&failing, &other, &sample)?;
        expect_refusal(&format!("a launch of {}", kernel.op), status)?;
        ensure!(is_whole, "a refused launch of {} changed memory", kernel.op);
        Ok(())
    })
}

fn lost(rig: &Rig<'_>) -> Outcome {
    let n = rig.open()?.device_infos()?.len();
    if n == 0 {
        return not_run(Why::NoDevice, "the plugin has no device on this machine");
    }
    // A lost device stays lost: each device is lost in an instance of its own.
    (0..n).try_for_each(|i| lose(&rig.open()?, i))
}

/// Loses one device of an instance, and looks at what becomes of it and of the others.
fn lose(opened: &Opened<'_>, i: usize) -> Outcome {
    let list = opened.device_list()?;
    let (words, before) = (descriptions(opened, &list)?, handles(opened, &list)?);
    let devices = opened.devices()?;
    let Some(device) = devices.get(i) else {
        return failed(format!("another instance lists {} devices, expected more than {i}", devices.len()));
    };
    let table: FaultTable = device.extension(extension::FAULT, "injects failures")?;
    let Some(lose) = table.device_lose else {
        return not_run(Why::NotOffered, "the fault extension has no device_lose");
    };
    let expect = |what: &str, status: Status| {
        ensure!(
            status == DEVBAY_STATUS_DEVICE_LOST,
            "{what} on the lost device {i} returned {}, expected DEVICE_LOST",
            status_name(status)
        );
        Ok(())
    };
    let stream = device.stream()?;
    let kept = device.alloc(device.pad(1000))?;
    stream.finish()?;
    // SAFETY: the device is the plugin's own, and listed as long as the instance.
    let status = unsafe { lose(device.info.handle) };
    ensure!(status == DEVBAY_STATUS_OK, "device_lose returned {}", status_name(status));
    // SAFETY: the device is still listed, though it is lost.
    expect("device_lose", unsafe { lose(device.info.handle) })?;
    if !device.inline() {
        expect("a signal, or its point,", stream.end_status()?)?;
    }
    let mut detail = Detail::new();
    expect("buffer_alloc", device.try_alloc(0, 1000, device.space().alloc_align.max(1), &mut detail)?.0)?;
    expect("stream_create", device.try_stream(&StreamDesc::empty(), &mut detail)?.0)?;

    let now = opened.device_list()?;
    let left = handles(opened, &now)?;
    ensure!(!left.contains(&before[i]), "the lost device {i} is still listed with its old handle");
    for (other, handle) in before.iter().enumerate().filter(|&(other, _)| other != i) {
        ensure!(
            left.contains(handle),
            "after the loss of device {i}, device {other} is no longer listed with its handle"
        );
    }
    let found = descriptions(opened, &list)?;
    ensure!(
        found == words,
        "the first list changed: it was {}, and is now {}",
        words.join("; "),
        found.join("; ")
    );
    // The remaining devices, including one that has come back, are as good as before.
    for (other, info) in opened.read_devices(&now)?.into_iter().enumerate() {
        let device = Device::read(opened, other, info)?;
        if device.plain_memory().is_err() {
            continue;
        }
        let sent = pattern(device.pad(10_000), i as u64);
        let (stream, buffer) = (device.stream()?, device.alloc(sent.len())?);
        stream.upload(&sent, &buffer, 0)?;
        if let Some(found) = difference(&stream.download(&buffer, 0, sent.len())?, &sent) {
            return failed(format!(
                "a copy to device {other} and back, after the loss of device {i}: {found}"
            ));
        }
    }
    drop((kept, stream));
    Ok(())
}
