//! Recordings of launches that are replayed, where the plugin has the extension (B6, B22).

use crate::case::Case;
use crate::node::{How, Node, Request, each_node_of};
use crate::ops::{Op, Sample};
use crate::rig::{Device, Lent, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_host::internals::core::kernel::KernelDef;
use devbay_plugin_api::abi::{self, *};
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "replay.launches",
        rules: &["B9", "B12", "B22"],
        requires: "recorded launches run only when replayed, in stream order and on the memory's current contents",
        needs: &["launch.order"],
        run: launches,
    },
    Case {
        id: "replay.nothing_else",
        rules: &["B22"],
        requires: "a recording stream refuses everything but launches and copies between buffers, and works \
                   normally after the recording ends",
        needs: &["replay.launches"],
        run: nothing_else,
    },
    Case {
        id: "replay.copies",
        rules: &["B9", "B12", "B22"],
        requires: "recorded copies between buffers run only when replayed, in order with the recorded launches",
        needs: &["replay.launches"],
        run: copies,
    },
    Case {
        id: "replay.elsewhere",
        rules: &["B12", "B22"],
        requires: "any stream of the device can replay a recording, in its own order, even after the recording \
                   stream was destroyed",
        needs: &["replay.launches"],
        run: elsewhere,
    },
    Case {
        id: "replay.bindings",
        rules: &["B9", "B22"],
        requires: "a replay uses the memory that it is given for a binding, and refuses bindings that do not \
                   fit; the recording does not change",
        needs: &["replay.launches"],
        run: bindings,
    },
];

/// The extension's functions.
#[derive(Clone, Copy)]
struct Replays {
    begin: unsafe extern "C" fn(*mut abi::Stream, *const RecordDesc) -> Status,
    end: unsafe extern "C" fn(*mut abi::Stream, *mut *mut Recording) -> Status,
    replay: unsafe extern "C" fn(*mut abi::Stream, *const ReplayDesc) -> Status,
    free: unsafe extern "C" fn(*mut Recording),
}

impl Replays {
    /// Those of the plugin, if it has the extension.
    fn of(device: &Device<'_>) -> Outcome<Self> {
        let ReplayTable {
            record_begin: Some(begin),
            record_end: Some(end),
            replay: Some(replay),
            recording_free: Some(free),
            ..
        } = device.extension(extension::REPLAY, "records launches")?
        else {
            return failed("the replay extension lacks functions");
        };
        Ok(Self { begin, end, replay, free })
    }

    fn begin(self, stream: &Stream<'_>) -> Status {
        self.begin_bound(stream, &[])
    }

    fn begin_bound(self, stream: &Stream<'_>, bindings: &[BufferRef]) -> Status {
        let desc = RecordDesc { bindings: List::new(bindings), ..RecordDesc::empty() };
        // SAFETY: the plugin's function with its own stream, and a struct that lives for the call.
        unsafe { (self.begin)(stream.handle.as_ptr(), &desc) }
    }

    fn end(self, stream: &Stream<'_>) -> Result<Recorded, Status> {
        let mut recording = null_mut();
        // SAFETY: the stream is the plugin's own and alive; the place for the recording lives for the call.
        let status = unsafe { (self.end)(stream.handle.as_ptr(), &mut recording) };
        if status == DEVBAY_STATUS_OK { Ok(Recorded { recording, replays: self }) } else { Err(status) }
    }
}

/// A recording, freed when it goes: behind what its replays enqueued.
struct Recorded {
    recording: *mut Recording,
    replays: Replays,
}

impl Recorded {
    fn replay(&self, stream: &Stream<'_>) -> Outcome {
        self.replay_bound(stream, &[])
    }

    fn replay_bound(&self, stream: &Stream<'_>, bindings: &[BufferRef]) -> Outcome {
        let status = self.try_replay(stream, bindings);
        ensure!(status == DEVBAY_STATUS_OK, "replay returned {}", stream.error_words(status));
        Ok(())
    }

    fn try_replay(&self, stream: &Stream<'_>, bindings: &[BufferRef]) -> Status {
        let desc =
            ReplayDesc { recording: self.recording, bindings: List::new(bindings), ..ReplayDesc::empty() };
        // SAFETY: the plugin's function with its own stream, and a recording of the device's.
        unsafe { (self.replays.replay)(stream.handle.as_ptr(), &desc) }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: `record_end` made the recording, and it is given back once, here.
        unsafe { (self.replays.free)(self.recording) };
    }
}

/// Prepares a node of one input, whose result has the input's size.
fn prepared<'a>(
    device: &'a Device<'a>,
    request: &Request,
    size: usize,
    sample: &Sample,
) -> Outcome<Option<Node<'a>>> {
    let node = match request.prepare(device)? {
        Ok(node) => node,
        Err((_, words)) => return failed(format!("prepare refused a node that it accepted before: {words}")),
    };
    let fits = node.raw.workspace_bytes == 0 && sample.inputs[0].size() == size;
    Ok(fits.then_some(node))
}

fn each(
    rig: &Rig<'_>,
    body: impl Fn(&Device<'_>, Replays, &KernelDef, &Node<'_>, &Sample) -> Outcome,
) -> Outcome {
    rig.each_timeline(|device| Replays::of(device).map(drop))?;
    let one_input = |op: &Op| op.n_inputs() == 1 && op.name != "Transpose";
    each_node_of(rig, one_input, Op::typical, |device, kernel, request, sample| {
        if device.inline() {
            return Ok(());
        }
        let replays = Replays::of(device)?;
        match prepared(device, request, sample.expected.size(), &sample)? {
            Some(node) => body(device, replays, kernel, &node, &sample),
            None => Ok(()),
        }
    })
}

fn launches(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let size = sample.expected.size();
        let padded = device.pad(size);
        let before = pattern(padded, 3);
        // The same elements in another order.
        let mut other = sample.clone();
        other.inputs[0].values.reverse();
        let images: Vec<Vec<u8>> = [sample, &other]
            .iter()
            .map(|sample| {
                let mut image = sample.inputs[0].bytes();
                image.resize(padded, 0);
                image
            })
            .collect();
        let mut late = [Lent::new(vec![0u8; padded]), Lent::new(vec![0u8; padded])];
        let (x, y) = (device.alloc(padded)?, device.alloc(padded)?);
        let stream = device.stream()?;
        let expected = [
            node.run(kernel, &stream, sample, How::default())?.output,
            node.run(kernel, &stream, &other, How::default())?.output,
        ];
        stream.upload(&images[0], &x, 0)?;
        stream.upload(&before, &y, 0)?;
        let status = replays.begin(&stream);
        ensure!(status == DEVBAY_STATUS_OK, "record_begin returned {}", stream.error_words(status));
        let refs = [x.part(0, size), y.part(0, size)];
        let launched = node.launch(kernel, &stream, &refs);
        let recorded = match replays.end(&stream) {
            Ok(recorded) => recorded,
            // The plugin may say that of any kernel; the stream is then as it was.
            Err(DEVBAY_STATUS_UNSUPPORTED) => return launched,
            Err(status) => return failed(format!("record_end returned {}", stream.error_words(status))),
        };
        launched?;
        let found = stream.download(&y, 0, padded)?;
        if let Some(found) = difference(&found, &before) {
            return failed(format!("{} ran during its recording: {found}", kernel.op));
        }
        // Nothing waits in between.
        for (image, late) in images.iter().zip(&mut late) {
            // SAFETY: images, buffers and `late` were made before the stream, whose drop waits for its work.
            unsafe { stream.enqueue_in(image, x.whole()) }?;
            recorded.replay(&stream)?;
            // SAFETY: `before` and the buffer were made before the stream.
            unsafe { stream.enqueue_in(&before, x.whole()) }?;
            // SAFETY: the buffer and `late` were made before the stream.
            unsafe { stream.enqueue_out(y.whole(), late.0.as_mut_ptr(), padded) }?;
            // SAFETY: `before` and the buffer were made before the stream.
            unsafe { stream.enqueue_in(&before, y.whole()) }?;
        }
        stream.finish()?;
        for (late, expected) in late.into_iter().zip(&expected) {
            if let Some(found) = difference(&late.done()[..size], expected) {
                return failed(format!("{} replayed: {found}", kernel.op));
            }
        }
        Ok(())
    })
}

/// Launches a node between `begin` and `end`. None if the plugin says that it cannot be recorded.
fn record(
    replays: Replays,
    stream: &Stream<'_>,
    bindings: &[BufferRef],
    work: impl FnOnce() -> Outcome,
) -> Outcome<Option<Recorded>> {
    let status = replays.begin_bound(stream, bindings);
    if status == DEVBAY_STATUS_UNSUPPORTED && !bindings.is_empty() {
        return not_run(Why::NotOffered, "the plugin does not support bindings");
    }
    ensure!(status == DEVBAY_STATUS_OK, "record_begin returned {}", stream.error_words(status));
    let worked = work();
    let recorded = match replays.end(stream) {
        Ok(recorded) => Some(recorded),
        Err(DEVBAY_STATUS_UNSUPPORTED) => None,
        Err(status) => return failed(format!("record_end returned {}", stream.error_words(status))),
    };
    worked.map(|()| recorded)
}

/// Returns the inputs of a sample, as many bytes as the device copies.
fn image(sample: &Sample, padded: usize) -> Vec<u8> {
    let mut image = sample.inputs[0].bytes();
    image.resize(padded, 0);
    image
}

fn refuse_difference(what: &str, found: &[u8], expected: &[u8]) -> Outcome {
    match difference(found, expected) {
        None => Ok(()),
        Some(found) => failed(format!("{what}: {found}")),
    }
}

fn copies(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let size = sample.expected.size();
        let padded = device.pad(size);
        let (content, before) = (image(sample, padded), pattern(padded, 5));
        let (x, y, z) = (device.alloc(padded)?, device.alloc(padded)?, device.alloc(padded)?);
        let from = device.alloc(padded)?;
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, sample, How::default())?.output;
        stream.upload(&content, &from, 0)?;
        for buffer in [&x, &y, &z] {
            stream.upload(&before, buffer, 0)?;
        }
        let recorded = record(replays, &stream, &[], || {
            // SAFETY: the buffers were made before the stream, whose drop waits for its work.
            unsafe { stream.enqueue_within(from.whole(), x.whole(), padded) }?;
            node.launch(kernel, &stream, &[x.part(0, size), y.part(0, size)])?;
            // SAFETY: the buffers were made before the stream, whose drop waits for its work.
            unsafe { stream.enqueue_within(y.whole(), z.whole(), padded) }
        })?;
        let Some(recorded) = recorded else { return Ok(()) };
        for (buffer, name) in [(&x, "before"), (&z, "after")] {
            let found = stream.download(buffer, 0, padded)?;
            refuse_difference(
                &format!("a copy {name} {} ran during its recording", kernel.op),
                &found,
                &before,
            )?;
        }
        for round in 0..2 {
            for buffer in [&x, &y, &z] {
                stream.upload(&before, buffer, 0)?;
            }
            recorded.replay(&stream)?;
            let found = stream.download(&z, 0, padded)?;
            let what = format!("{} between copies, replay {round}", kernel.op);
            refuse_difference(&what, &found[..size], &expected)?;
        }
        Ok(())
    })
}

fn elsewhere(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let size = sample.expected.size();
        let padded = device.pad(size);
        let (content, before) = (image(sample, padded), pattern(padded, 6));
        let (x, y) = (device.alloc(padded)?, device.alloc(padded)?);
        let mut late = Lent::new(vec![0u8; padded]);
        let mut streams = device.streams(2)?;
        let (Some(other), Some(own)) = (streams.pop(), streams.pop()) else {
            return not_run(Why::NotOffered, "the device supports only one stream");
        };
        let expected = node.run(kernel, &own, sample, How::default())?.output;
        own.upload(&content, &x, 0)?;
        own.upload(&before, &y, 0)?;
        let recorded =
            record(replays, &own, &[], || node.launch(kernel, &own, &[x.part(0, size), y.part(0, size)]))?;
        let Some(recorded) = recorded else { return Ok(()) };
        for round in 0..4 {
            // In the order of this stream: behind the first of these copies, in front of the others.
            // SAFETY: images, buffers and `late` were made before the streams, whose drop waits for their work.
            unsafe { other.enqueue_in(&before, x.whole()) }?;
            // SAFETY: `content` and the buffer were made before the streams.
            unsafe { other.enqueue_in(&content, x.whole()) }?;
            recorded.replay(&other)?;
            // SAFETY: `before` and the buffer were made before the streams.
            unsafe { other.enqueue_in(&before, x.whole()) }?;
            // SAFETY: the buffer and `late` were made before the streams.
            unsafe { other.enqueue_out(y.whole(), late.0.as_mut_ptr(), padded) }?;
            // SAFETY: `before` and the buffer were made before the streams.
            unsafe { other.enqueue_in(&before, y.whole()) }?;
            other.finish()?;
            let what = format!("{} on a different stream, replay {round}", kernel.op);
            refuse_difference(&what, &late.0[..size], &expected)?;
        }
        drop(own);
        other.upload(&content, &x, 0)?;
        recorded.replay(&other)?;
        let found = other.download(&y, 0, padded)?;
        late.done();
        let what = format!("{} after the recording stream was destroyed", kernel.op);
        refuse_difference(&what, &found[..size], &expected)
    })
}

fn bindings(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let size = sample.expected.size();
        let padded = device.pad(size);
        let (content, before) = (image(sample, padded), pattern(padded, 7));
        let mut other = sample.clone();
        other.inputs[0].values.reverse();
        // Two operands in one binding, and another pair elsewhere in memory that is larger.
        let (both, elsewhere) = (device.alloc(2 * padded)?, device.alloc(3 * padded)?);
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, sample, How::default())?.output;
        let expected_other = node.run(kernel, &stream, &other, How::default())?.output;
        let (recorded_at, bound_at) = (both.part(0, 2 * padded), elsewhere.part(padded, 2 * padded));
        let recorded = record(replays, &stream, &[recorded_at], || {
            node.launch(kernel, &stream, &[both.part(0, size), both.part(padded, size)])
        })?;
        let Some(recorded) = recorded else { return Ok(()) };
        stream.upload(&content, &both, 0)?;
        stream.upload(&before, &both, padded)?;
        stream.upload(&image(&other, padded), &elsewhere, padded)?;
        stream.upload(&before, &elsewhere, 2 * padded)?;
        // A binding of another size is refused, and enqueues nothing.
        let short = elsewhere.part(padded, padded);
        for (wrong, what) in
            [(&[short][..], "a binding of too few bytes"), (&[bound_at, bound_at], "one binding too many")]
        {
            let status = recorded.try_replay(&stream, wrong);
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "a replay with {what} returned {}, expected INVALID",
                stream.error_words(status)
            );
        }
        recorded.replay_bound(&stream, &[bound_at])?;
        let found = stream.download(&elsewhere, 2 * padded, padded)?;
        refuse_difference(&format!("{} on bound memory", kernel.op), &found[..size], &expected_other)?;
        let found = stream.download(&both, padded, padded)?;
        let what = format!("{} on bound memory wrote to the recorded memory", kernel.op);
        refuse_difference(&what, &found, &before)?;
        // And as it was recorded, in both ways to ask for it.
        for bindings in [&[][..], &[recorded_at]] {
            stream.upload(&before, &both, padded)?;
            recorded.replay_bound(&stream, bindings)?;
            let found = stream.download(&both, padded, padded)?;
            let what = format!("{} on the recorded memory, after a replay on bound memory", kernel.op);
            refuse_difference(&what, &found[..size], &expected)?;
        }
        Ok(())
    })
}

fn nothing_else(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let padded = device.pad(sample.expected.size());
        let source = pattern(padded, 1);
        let buffer = device.alloc(padded)?;
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, sample, How::default())?.output;
        let refused = |status: Status, what: &str| {
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "{what} returned {}, expected INVALID",
                status_name(status)
            );
            Ok(())
        };
        match replays.end(&stream) {
            Ok(_) => return failed("record_end without record_begin returned a recording"),
            Err(status) => refused(status, "record_end without record_begin")?,
        }
        let status = replays.begin(&stream);
        ensure!(status == DEVBAY_STATUS_OK, "record_begin returned {}", stream.error_words(status));
        refused(replays.begin(&stream), "record_begin on a recording stream")?;
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst: buffer.whole(),
            host_src: source.as_ptr().cast(),
            size_bytes: padded as u64,
            ..CopyDesc::empty()
        };
        // SAFETY: source and buffer were made before the stream, whose drop waits for its work.
        let status = unsafe { stream.copy(&desc) }?;
        let copied = refused(status, "copy from the host on a recording stream");
        let signalled = match device.opened.table.stream_signal {
            Some(signal) => {
                // SAFETY: the stream is the plugin's own, and alive until `Stream` is dropped.
                let status = unsafe { signal(stream.handle.as_ptr(), stream.signalled() + 1) };
                refused(status, "stream_signal on a recording stream")
            }
            None => Ok(()),
        };
        // An empty recording may be none.
        match replays.end(&stream) {
            Ok(_) | Err(DEVBAY_STATUS_UNSUPPORTED) => {}
            Err(status) => return failed(format!("record_end returned {}", stream.error_words(status))),
        }
        copied?;
        signalled?;
        let found = node.run(kernel, &stream, sample, How::default())?.output;
        match difference(&found, &expected) {
            None => Ok(()),
            Some(found) => failed(format!("{} after a recording: {found}", kernel.op)),
        }
    })
}
