//! Recordings of launches that are replayed, where the plugin has the extension (B6, B22).

use crate::case::Case;
use crate::node::{How, Node, Request, each_node_of};
use crate::ops::{Op, Sample};
use crate::rig::{Device, Lent, Rig, Stream, difference, pattern, status_name};
use crate::verdict::{Outcome, ensure, failed};
use devbay_host::core::kernel::KernelDef;
use devbay_plugin_api::abi::{self, *};
use std::ptr::null_mut;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "replay.launches",
        rules: &["B9", "B12", "B22"],
        requires: "what is recorded does not run, and runs with each replay, in the stream's order, on what its memory then holds",
        needs: &["launch.order"],
        run: launches,
    },
    Case {
        id: "replay.nothing_else",
        rules: &["B22"],
        requires: "a stream that records refuses all but launches, and works as before when it has ended",
        needs: &["replay.launches"],
        run: nothing_else,
    },
];

/// The extension's functions.
#[derive(Clone, Copy)]
struct Replays {
    begin: unsafe extern "C" fn(*mut abi::Stream) -> Status,
    end: unsafe extern "C" fn(*mut abi::Stream, *mut *mut Recording) -> Status,
    replay: unsafe extern "C" fn(*mut abi::Stream, *mut Recording) -> Status,
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
            return failed("the extension that records launches lacks functions");
        };
        Ok(Self { begin, end, replay, free })
    }

    fn begin(self, stream: &Stream<'_>) -> Status {
        // SAFETY: the plugin's function with its own stream.
        unsafe { (self.begin)(stream.handle.as_ptr()) }
    }

    fn end(self, stream: &Stream<'_>) -> Result<Recorded, Status> {
        let mut recording = null_mut();
        // SAFETY: as above, and a place for the recording.
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
        // SAFETY: the plugin's function with its own stream and what that has recorded.
        let status = unsafe { (self.replays.replay)(stream.handle.as_ptr(), self.recording) };
        ensure!(status == DEVBAY_STATUS_OK, "replay gave {}", stream.error_words(status));
        Ok(())
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // SAFETY: made by `record_end`, given back once.
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
        Err((_, words)) => return failed(format!("prepare refused what it took before: {words}")),
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
        ensure!(status == DEVBAY_STATUS_OK, "record_begin gave {}", stream.error_words(status));
        let refs = [x.part(0, size), y.part(0, size)];
        let launched = node.launch(kernel, &stream, &refs);
        let recorded = match replays.end(&stream) {
            Ok(recorded) => recorded,
            // The plugin may say that of any kernel; the stream is then as it was.
            Err(DEVBAY_STATUS_UNSUPPORTED) => return launched,
            Err(status) => return failed(format!("record_end gave {}", stream.error_words(status))),
        };
        launched?;
        let found = stream.download(&y, 0, padded)?;
        if let Some(found) = difference(&found, &before) {
            return failed(format!("{} ran while it was recorded: {found}", kernel.op));
        }
        // Nothing waits in between.
        for (image, late) in images.iter().zip(&mut late) {
            // SAFETY: all of it was made before the stream, here and below.
            unsafe { stream.enqueue_in(image, x.whole()) }?;
            recorded.replay(&stream)?;
            // SAFETY: as above.
            unsafe { stream.enqueue_in(&before, x.whole()) }?;
            // SAFETY: as above.
            unsafe { stream.enqueue_out(y.whole(), late.0.as_mut_ptr(), padded) }?;
            // SAFETY: as above.
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

fn nothing_else(rig: &Rig<'_>) -> Outcome {
    each(rig, |device, replays, kernel, node, sample| {
        let padded = device.pad(sample.expected.size());
        let source = pattern(padded, 1);
        let buffer = device.alloc(padded)?;
        let stream = device.stream()?;
        let expected = node.run(kernel, &stream, sample, How::default())?.output;
        let refused = |status: Status, what: &str| {
            ensure!(status == DEVBAY_STATUS_INVALID, "{what} gave {}, expected INVALID", status_name(status));
            Ok(())
        };
        match replays.end(&stream) {
            Ok(_) => return failed("record_end without record_begin gave a recording"),
            Err(status) => refused(status, "record_end without record_begin")?,
        }
        let status = replays.begin(&stream);
        ensure!(status == DEVBAY_STATUS_OK, "record_begin gave {}", stream.error_words(status));
        refused(replays.begin(&stream), "record_begin on a stream that records")?;
        let desc = CopyDesc {
            kind: DEVBAY_COPY_HOST_TO_BUFFER,
            dst: buffer.whole(),
            host_src: source.as_ptr().cast(),
            size_bytes: padded as u64,
            ..CopyDesc::empty()
        };
        // SAFETY: source and buffer were made before the stream.
        let status = unsafe { stream.copy(&desc) }?;
        let copied = refused(status, "copy on a stream that records");
        let signalled = match device.opened.table.stream_signal {
            Some(signal) => {
                // SAFETY: the plugin's function with its own stream.
                let status = unsafe { signal(stream.handle.as_ptr(), stream.signalled() + 1) };
                refused(status, "stream_signal on a stream that records")
            }
            None => Ok(()),
        };
        // An empty recording may be none.
        match replays.end(&stream) {
            Ok(_) | Err(DEVBAY_STATUS_UNSUPPORTED) => {}
            Err(status) => return failed(format!("record_end gave {}", stream.error_words(status))),
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
