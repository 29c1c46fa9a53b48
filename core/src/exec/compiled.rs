//! Runs of programs that a device's compiler made.
//!
//! Values in the host's memory are uploaded, on the stream that the program then runs on. Results stay on the device
//! until they are needed elsewhere. Buffers of values without a later reader are donated to the program.

use super::cancel::Cancel;
use super::unit::Values;
use super::value::RunTensor;
use crate::device::{Buffer, REST_LIMIT, Stream, must_leak};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::compiled::{CompiledStage, Taken};
use crate::plan::memory::constants::Placed;
use crate::trace::{self, StepInfo};
use crossbeam_queue::ArrayQueue;
use std::sync::Arc;

/// Streams that a stage keeps between runs.
const STREAMS_MAX: usize = 64;

/// Streams of a stage that are at rest.
pub(super) struct IdleStreams(ArrayQueue<Stream>);

impl IdleStreams {
    pub fn new() -> Self {
        Self(ArrayQueue::new(STREAMS_MAX))
    }
}

/// An input of a run: a constant's buffer, or a value's, which may have no other user.
enum Given<'a> {
    Constant(&'a Buffer),
    Value(Arc<Buffer>),
}

impl Given<'_> {
    fn buffer(&self) -> &Buffer {
        match self {
            Self::Constant(buffer) => buffer,
            Self::Value(buffer) => buffer,
        }
    }
}

/// Runs a stage on the values of a run.
///
/// # Errors
/// Out of memory, or the device's error.
pub(super) fn run(
    stage: &CompiledStage,
    idle: &IdleStreams,
    values: &mut Values<'_>,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let device = stage.device();
    let mut stream = match idle.0.pop() {
        Some(stream) => stream,
        None => device.create_stream("programs")?,
    };
    // Sources of uploads stay until the stream is at rest, or are leaked.
    let mut sources: Vec<RunTensor> = Vec::new();
    let mut given: Vec<Given<'_>> = Vec::with_capacity(stage.takes.len());
    let mut donated = Vec::with_capacity(stage.takes.len());
    let mut enqueue = |stream: &mut Stream| -> Result<Vec<Buffer>> {
        for taken in &stage.takes {
            let (own, is_donated) = match taken {
                Taken::Constant(placed) => match &**placed {
                    Placed::Device(buffer) => (Given::Constant(buffer), false),
                    _ => {
                        let text = "a program's constant that is not on its device";
                        return Err(Error::new(ErrorKind::Internal, text));
                    }
                },
                Taken::Value { id, is_last } => {
                    let value = if *is_last { values.take(*id)? } else { values.get(*id)? };
                    // SAFETY: `sources` stay until the stream is at rest or dropped, or are leaked, below.
                    let (buffer, source) = unsafe { value.enqueue_upload(device, stream) }?;
                    sources.extend(source);
                    let is_donated = *is_last && Arc::strong_count(&buffer) == 1;
                    (Given::Value(buffer), is_donated)
                }
            };
            given.push(own);
            donated.push(is_donated);
        }
        let buffers: Vec<&Buffer> = given.iter().map(Given::buffer).collect();
        stage.executable.execute(stream, &buffers, &donated)
    };
    let _traced = trace::begin_lone(device.name(), stream.handle() as u64, || StepInfo::of_program(stage));
    let results = enqueue(&mut stream);
    match stream.finish(REST_LIMIT) {
        Ok(()) => {}
        Err(error) if must_leak(&error) => {
            // The device may touch them at any later time, so they are leaked (B24).
            let inputs: Vec<Arc<Buffer>> = given
                .into_iter()
                .filter_map(|given| match given {
                    Given::Value(buffer) => Some(buffer),
                    Given::Constant(_) => None,
                })
                .collect();
            stage.leak();
            let first = results.as_ref().err().cloned();
            std::mem::forget((stream, sources, inputs, results));
            return Err(first.unwrap_or(error));
        }
        // A failed stream is destroyed, not recovered (B13).
        Err(error) => return Err(results.err().unwrap_or(error)),
    }
    // A full queue drops the stream.
    let _ = idle.0.push(stream);
    let results = results?;
    // The device could not be stopped; its results are not wanted.
    Cancel::check(cancel)?;
    for ((&id, ty), buffer) in stage.results.iter().zip(&stage.types).zip(results) {
        values.set(id, RunTensor::device(ty.clone(), buffer));
    }
    Ok(())
}
