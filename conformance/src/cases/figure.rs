//! Figures for a person: what a launch costs, how fast copies are. They are no gate: a slow plugin is a plugin, and a
//! busy machine is no judge. A figure that is out of all measure shows a build without optimisation, or a device that
//! is not the one that was meant.

use crate::case::Case;
use crate::node::{Request, candidates};
use crate::ops::OPS;
use crate::rig::{Device, Rig, Stream, pattern};
use crate::tensor::HostTensor;
use crate::verdict::{Outcome, Why, failed, not_run};
use devbay_plugin_api::abi::DEVBAY_STATUS_UNSUPPORTED;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "figure.launch",
        rules: &["B21"],
        requires: "a launch of a small kernel can be timed, for information only",
        needs: &["launch.bounds"],
        run: launch,
    },
    Case {
        id: "figure.copy",
        rules: &["B9"],
        requires: "copies to and from the device can be timed, for information only",
        needs: &["transfer.round_trip"],
        run: copy,
    },
];

/// Time for which something is repeated.
const TIME: Duration = Duration::from_millis(100);

/// Time of one of `batch` calls, in nanoseconds: the least of what was measured, which the machine disturbed least.
fn time(stream: &Stream<'_>, batch: u32, mut once: impl FnMut() -> Outcome) -> Outcome<f64> {
    let begin = Instant::now();
    let mut least = f64::INFINITY;
    while begin.elapsed() < TIME {
        let start = Instant::now();
        for _ in 0..batch {
            once()?;
        }
        stream.finish()?;
        least = least.min(start.elapsed().as_nanos() as f64 / f64::from(batch));
    }
    Ok(least)
}

fn launch(rig: &Rig<'_>) -> Outcome {
    let about = rig.about()?;
    let small = OPS.iter().filter(|op| matches!(op.name, "Relu" | "Add" | "Mul" | "Neg" | "Abs"));
    let first = small.into_iter().find_map(|op| Some((op, *candidates(about, op).first()?)));
    let Some((op, (kernel, dtype))) = first else {
        return not_run(Why::NotOffered, "the plugin has no small kernel of the base set");
    };
    each(rig, |device| {
        let sample = op.typical(dtype);
        let buffers: Vec<_> = sample
            .inputs
            .iter()
            .chain([&sample.expected])
            .map(|operand| device.alloc(operand.size()))
            .collect::<Outcome<_>>()?;
        let stream = device.stream()?;
        for (operand, buffer) in sample.inputs.iter().map(HostTensor::bytes).zip(&buffers) {
            let mut bytes = operand;
            bytes.resize(device.pad(bytes.len()), 0);
            stream.upload(&bytes, buffer, 0)?;
        }
        let node = match Request::new(device, kernel.idx, &sample).prepare(device)? {
            Ok(node) => node,
            Err((DEVBAY_STATUS_UNSUPPORTED, words)) => {
                return not_run(Why::Refused, format!("prepare of {}: {words}", op.name));
            }
            Err((_, words)) => return failed(format!("prepare of {}: {words}", op.name)),
        };
        let operands = sample.inputs.iter().chain([&sample.expected]);
        let refs: Vec<_> =
            operands.zip(&buffers).map(|(operand, buffer)| buffer.part(0, operand.size())).collect();
        let ns = time(&stream, 200, || node.launch(kernel, &stream, &refs))?;
        Ok(format!("{} of {} elements: {ns:.0} ns a launch", op.name, sample.expected.values.len()))
    })
}

fn copy(rig: &Rig<'_>) -> Outcome {
    each(rig, |device| {
        let size = device.pad(device.at_most(16 << 20));
        let source = pattern(size, 1);
        let mut destination = vec![0u8; size];
        let buffer = device.alloc(size)?;
        let stream = device.stream()?;
        // SAFETY: the source and the buffer were made before the stream, whose drop waits for its work.
        let to = time(&stream, 1, || unsafe { stream.enqueue_in(&source, buffer.whole()) })?;
        let pointer = destination.as_mut_ptr();
        // SAFETY: source and buffer were made before the stream, and so was the destination, which only this copy
        // touches until the stream is gone.
        let from = time(&stream, 1, || unsafe { stream.enqueue_out(buffer.whole(), pointer, size) })?;
        let rate = |ns: f64| size as f64 / ns;
        Ok(format!("{:.1} GB/s to the device, {:.1} GB/s back, of {size} bytes", rate(to), rate(from)))
    })
}

/// Notes a figure of every device.
fn each(rig: &Rig<'_>, mut measure: impl FnMut(&Device<'_>) -> Outcome<String>) -> Outcome {
    let mut notes = Vec::new();
    rig.each_device(|device| {
        device.plain_memory()?;
        notes.push(format!("device {}: {}", device.index, measure(device)?));
        Ok(())
    })?;
    // A case measures once.
    let _ = rig.note.set(notes.join("; "));
    Ok(())
}
