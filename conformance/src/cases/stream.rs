//! Streams and their timelines (B12 to B14, B17, B24).

use crate::case::Case;
use crate::rig::{AnySize, Buffer, Detail, Lent, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::sync::atomic::{AtomicBool, Ordering};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "stream.create",
        rules: &["B9", "B12"],
        requires: "streams can be created and destroyed, and several can exist at once",
        needs: &["devices.list"],
        run: create,
    },
    Case {
        id: "stream.sizes",
        rules: &["B4"],
        requires: "`stream_create` accepts descriptions of older and newer hosts",
        needs: &["stream.create"],
        run: sizes,
    },
    Case {
        id: "stream.max",
        rules: &["B11"],
        requires: "a stream beyond `streams_max` is refused with FAILED_PRECONDITION, and destroying one makes room",
        needs: &["stream.create"],
        run: max,
    },
    Case {
        id: "stream.fresh",
        rules: &["B12"],
        requires: "a new stream has reached 0, and has not failed",
        needs: &["stream.create", "devices.timeline"],
        run: fresh,
    },
    Case {
        id: "stream.signal",
        rules: &["B12"],
        requires: "every signalled value is reached, however far apart the values are",
        needs: &["stream.fresh"],
        run: signal,
    },
    Case {
        id: "stream.timeline.monotonic",
        rules: &["B12"],
        requires: "the reached value never falls, and never exceeds the last signalled one",
        needs: &["stream.signal"],
        run: monotonic,
    },
    Case {
        id: "stream.signal.refused",
        rules: &["B12"],
        requires: "a signal whose value does not rise is refused with INVALID, and changes nothing",
        needs: &["stream.signal"],
        run: signal_refused,
    },
    Case {
        id: "stream.flush",
        rules: &["B22"],
        requires: "a flush is legal at any time, and affects only when work begins",
        needs: &["stream.signal"],
        run: flush,
    },
];

fn create(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for _ in 0..3 {
            let mut streams = device.streams(8)?;
            ensure!(!streams.is_empty(), "device {} creates no stream", device.index);
            let mut handles: Vec<_> = streams.iter().map(|stream| stream.handle).collect();
            handles.sort_unstable();
            handles.dedup();
            ensure!(handles.len() == streams.len(), "two live streams have the same handle");
            // Not in the order in which they were made.
            streams.swap_remove(0);
        }
        Ok(())
    })
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for size in [StreamDesc::REQUIRED_SIZE, 8, 16, size_of::<StreamDesc>(), size_of::<StreamDesc>() + 8] {
            let desc = StreamDesc { label: Str::new("conformance"), ..StreamDesc::empty() };
            let mut desc = AnySize::new(&desc, size);
            let mut detail = Detail::new();
            let (status, stream) = device.try_stream(desc.as_ptr(), &mut detail)?;
            ensure!(stream.is_some(), "a description of {size} bytes: {}", detail.describe(status));
        }
        Ok(())
    })
}

fn max(rig: &Rig<'_>) -> Outcome {
    let mut n_limited = 0;
    rig.each_device(|device| {
        let max = device.info.streams_max as usize;
        if max == 0 {
            return Ok(());
        }
        n_limited += 1;
        let mut streams: Vec<Stream<'_>> = (0..max).map(|_| device.stream()).collect::<Outcome<_>>()?;
        let mut detail = Detail::new();
        let (status, extra) = device.try_stream(&StreamDesc::empty(), &mut detail)?;
        ensure!(
            extra.is_none(),
            "device {} declares at most {max} streams, but created one more",
            device.index
        );
        ensure!(
            status == DEVBAY_STATUS_FAILED_PRECONDITION,
            "stream {} of {max}: expected FAILED_PRECONDITION, found {}",
            max + 1,
            status_name(status)
        );
        streams.pop();
        drop(device.stream()?);
        Ok(())
    })?;
    if n_limited == 0 {
        return not_run(Why::NotOffered, "no device has a limit");
    }
    Ok(())
}

fn fresh(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        let stream = device.stream()?;
        let (value, status) = stream.reached()?;
        ensure!(
            status == DEVBAY_STATUS_OK && value == 0,
            "a new stream has reached {value} with {}, expected 0 with OK",
            status_name(status)
        );
        Ok(())
    })
}

fn signal(rig: &Rig<'_>) -> Outcome {
    rig.each_timeline(|device| {
        let stream = device.stream()?;
        for value in [1, 2, 7, 1000, u64::from(u32::MAX) + 5, 1 << 62] {
            stream.signal_value(value)?;
            stream.poll(value)?;
            let (reached, _) = stream.reached()?;
            ensure!(reached == value, "{value} was signalled, but {reached} was reached");
        }
        Ok(())
    })
}

fn signal_refused(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    rig.each_timeline(|device| {
        let source = pattern(device.pad(4096), 4);
        let buffers = device.targets(2, source.len())?;
        let mut found = Lent::new(vec![0; source.len()]);
        let stream = device.stream()?;
        // SAFETY: source and buffers were made before the stream, and the destination is leaked until it is done.
        unsafe { stream.enqueue_in(&source, buffers[0].whole()) }?;
        stream.signal_value(5)?;
        // SAFETY: source and buffers were made before the stream, and the destination is leaked until it is done.
        unsafe { stream.enqueue_out(buffers[0].whole(), found.0.as_mut_ptr(), source.len()) }?;
        for value in [5, 4, 1, 0] {
            let signal = rig.optional(table.stream_signal, "stream_signal")?;
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            let status = unsafe { signal(stream.handle.as_ptr(), value) };
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "a signal of {value} after 5: expected INVALID, found {}",
                status_name(status)
            );
        }
        // Work that was enqueued before belongs to the next signal.
        // SAFETY: source and buffers were made before the stream, whose drop waits for its work.
        unsafe { stream.enqueue_in(&source, buffers[1 % buffers.len()].whole()) }?;
        stream.signal_value(6)?;
        stream.poll(6)?;
        let (reached, _) = stream.reached()?;
        ensure!(reached == 6, "6 was signalled last, but {reached} was reached");
        if let Some(difference) = difference(&found.done(), &source) {
            return failed(format!("a copy before a refused signal: {difference}"));
        }
        Ok(())
    })
}

/// Watches a timeline; gives what is wrong.
fn watch(stream: &Stream<'_>, stop: &AtomicBool) -> Outcome {
    let mut last = 0;
    while !stop.load(Ordering::Acquire) {
        step(stream, &mut last)?;
    }
    Ok(())
}

/// One look at a timeline.
fn step(stream: &Stream<'_>, last: &mut u64) -> Outcome {
    let (value, status) = stream.reached()?;
    ensure!(status == DEVBAY_STATUS_OK, "the stream failed with {}", stream.error_words(status));
    ensure!(value >= *last, "the timeline fell from {last} to {value}");
    *last = value;
    Ok(())
}

fn monotonic(rig: &Rig<'_>) -> Outcome {
    let free = rig.is_free_threaded()?;
    rig.each_timeline(|device| {
        let source = pattern(device.pad(4096), 3);
        let buffers = device.targets(DRIVEN, source.len())?;
        let stream = device.stream()?;
        if !free {
            // The watcher has to be the owner.
            return drive(&stream, &source, &buffers);
        }
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let watchers: Vec<_> = (0..2).map(|_| scope.spawn(|| watch(&stream, &stop))).collect();
            let driven = drive(&stream, &source, &buffers);
            stop.store(true, Ordering::Release);
            for watcher in watchers {
                watcher.join().unwrap_or_else(|_| failed("a thread of the suite panicked"))?;
            }
            driven
        })
    })
}

/// Copies whose timeline is watched.
const DRIVEN: usize = 300;

/// Enqueues work and points, and looks between them.
fn drive(stream: &Stream<'_>, source: &[u8], buffers: &[Buffer<'_>]) -> Outcome {
    let mut last = 0;
    for i in 0..DRIVEN {
        // SAFETY: the source and the buffers outlive the stream, which the caller made after them.
        unsafe { stream.enqueue_in(source, buffers[i % buffers.len()].whole()) }?;
        stream.signal_value(1 + i as u64 * 3)?;
        step(stream, &mut last)?;
        ensure!(
            last <= stream.signalled(),
            "the timeline reached {last}, beyond the last signal, {}",
            stream.signalled()
        );
    }
    stream.poll(stream.signalled())?;
    let (value, _) = stream.reached()?;
    ensure!(
        value == stream.signalled(),
        "{value} was reached at the end, expected the last signal, {}",
        stream.signalled()
    );
    // Nothing moves a timeline that is at its end.
    for _ in 0..100 {
        step(stream, &mut last)?;
    }
    Ok(())
}

fn flush(rig: &Rig<'_>) -> Outcome {
    let flush = rig.optional(rig.table()?.stream_flush, "stream_flush")?;
    rig.each_timeline(|device| {
        const N: usize = 10;
        let source = pattern(device.pad(1000), 5);
        let buffers = device.targets(N, source.len())?;
        let stream = device.stream()?;
        let flush = || {
            // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
            let status = unsafe { flush(stream.handle.as_ptr()) };
            ensure!(status == DEVBAY_STATUS_OK, "stream_flush returned {}", stream.error_words(status));
            Ok(())
        };
        flush()?;
        for i in 0..N {
            // SAFETY: the source and the buffers were made before the stream, whose drop waits for its work.
            unsafe { stream.enqueue_in(&source, buffers[i % buffers.len()].whole()) }?;
            flush()?;
            let value = stream.signal()?;
            flush()?;
            stream.poll(value)?;
        }
        Ok(())
    })
}
