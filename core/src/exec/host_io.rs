//! Runs whose inputs and results are the caller's memory.
//!
//! On an inline device whose references may name host memory, kernels read and write the caller's bytes
//! themselves. Everywhere else the frame owns staging memory on both sides: if a device never came to rest,
//! the frame could be leaked, the caller's borrowed memory could not.

use super::cancel::Cancel;
use super::frame::{Frame, first_cause};
use super::unit::{Unit, take_frame};
use super::value::RunTensor;
use crate::device::must_leak;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::section::{Section, Source};
use crate::plan::{Plan, SectionStage};
use crate::tensor::{AlignedBytes, Bytes, DType, Tensor, TensorType};
use crate::trace::{self, Traced, What};
use devbay_plugin_api::abi::BufferRef;
use std::marker::PhantomData;
use std::ptr::null_mut;
use std::sync::Arc;

/// An input in the caller's memory: dense, row-major.
#[derive(Clone, Copy)]
pub struct InputView<'a> {
    /// Element type.
    pub dtype: DType,
    /// Extents.
    pub shape: &'a [usize],
    /// Content, as many bytes as type and shape need.
    pub bytes: &'a [u8],
}

impl<'a> InputView<'a> {
    /// A tensor's content.
    pub fn of(tensor: &'a Tensor) -> Self {
        Self { dtype: tensor.dtype(), shape: tensor.shape(), bytes: tensor.bytes() }
    }
}

/// Memory of the caller's for a result.
pub type OutputView<'a> = &'a mut [u8];

impl Unit {
    /// Runs on the caller's memory and gives new tensors.
    ///
    /// # Errors
    /// What planning says, or the first failure of the run.
    pub fn run_host(&self, inputs: &[InputView<'_>], cancel: Option<&Cancel>) -> Result<Vec<Tensor>> {
        let plan = self.plan_for(inputs.iter().map(|input| (input.dtype, input.shape)))?;
        let _traced = self.env().begin_run();
        let Some(stage) = plan.single() else {
            let results = self.run_plan(&plan, owned(inputs)?, cancel)?;
            return results.iter().map(RunTensor::to_tensor).collect();
        };
        let results = stage.section.results.iter().zip(&plan.program.main.outputs);
        let mut storage: Vec<AlignedBytes> = results
            .map(|((ty, _), &id)| {
                AlignedBytes::zeroed(ty.size).map_err(|error| {
                    let (name, ty) = (&plan.program.value(id).name, TensorType::new(ty.dtype, &ty.shape));
                    Error::new(error.kind(), format!("result `{name}` {ty}: {}", error.text()))
                })
            })
            .collect::<Result<_>>()?;
        let mut outputs: Vec<OutputView<'_>> = storage.iter_mut().map(AlignedBytes::as_mut_slice).collect();
        run_stage(stage, inputs, &mut outputs, cancel)?;
        let results = stage.section.results.iter().zip(storage);
        results
            .map(|((ty, _), bytes)| Tensor::from_storage(ty.dtype, &ty.shape, Arc::new(bytes), 0, ty.size))
            .collect()
    }

    /// Runs on the caller's memory, results included: a steady-state run of a static program allocates
    /// nothing. Sizes of results are those of [`Plan`]s for these inputs.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a result of another size; else as [`Unit::run_host`].
    pub fn run_into(
        &self,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        self.with_plan(inputs.iter().map(|input| (input.dtype, input.shape)), |plan| {
            let _traced = self.env().begin_run();
            if let Some(stage) = plan.single() {
                return run_stage(stage, inputs, outputs, cancel);
            }
            let results = self.run_plan(plan, owned(inputs)?, cancel)?;
            check_count(results.len(), outputs.len())?;
            for (i, (result, output)) in results.iter().zip(outputs.iter_mut()).enumerate() {
                check_size(i, result.ty.size, output.len())?;
                result.read_into(output)?;
            }
            Ok(())
        })
    }

    /// Points a frame at the caller's memory once, for many runs: nothing is looked up or patched between
    /// them. None if the program is not one straight line for these inputs, or the device cannot work in
    /// the caller's memory.
    ///
    /// # Errors
    /// As [`Unit::run_into`].
    pub fn bind<'a>(
        &self,
        inputs: &[InputView<'a>],
        outputs: &mut [OutputView<'a>],
    ) -> Result<Option<Bound<'a>>> {
        let plan = self.plan_for(inputs.iter().map(|input| (input.dtype, input.shape)))?;
        let Some(stage) = plan.single() else {
            return Ok(None);
        };
        check_outputs(&stage.section, outputs)?;
        let written_only =
            stage.section.results.iter().all(|(_, source)| matches!(source, Source::Written(_)));
        if !direct(&stage.section) || !written_only || !aligned(&stage.section, stage, inputs, outputs) {
            return Ok(None);
        }
        let mut frame = take_frame(stage)?;
        patch(&mut frame, stage, inputs, outputs);
        Ok(Some(Bound { plan: Arc::clone(&plan), frame: Some(frame), lent: PhantomData }))
    }
}

/// A frame that is pointed at the caller's memory.
///
/// # Invariants
/// The plan is one line on a device that works in the caller's memory, inline, so that nothing is in flight
/// between runs; the frame's references are of memory that is lent for `'a`.
pub struct Bound<'a> {
    plan: Arc<Plan>,
    frame: Option<Box<Frame>>,
    lent: PhantomData<&'a mut [u8]>,
}

impl Bound<'_> {
    /// Runs once more on what is in the inputs now.
    ///
    /// # Errors
    /// The first failure of the run.
    #[inline]
    pub fn run(&mut self, cancel: Option<&Cancel>) -> Result<()> {
        let (Some(stage), Some(frame)) = (self.plan.single(), &mut self.frame) else {
            return Err(Error::new(ErrorKind::Internal, "a bound run without its frame"));
        };
        let _traced = stage.section.traced.as_ref().map(Traced::begin_run);
        // SAFETY: the invariant: the references are of memory that is lent, of the section's sizes, and the
        // device is inline, so that nothing is in flight when this returns.
        unsafe { frame.launch(&stage.section, cancel) }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if let (Some(stage), Some(frame)) = (self.plan.single(), self.frame.take()) {
            stage.frames.give(frame);
        }
    }
}

fn owned(inputs: &[InputView<'_>]) -> Result<Vec<RunTensor>> {
    inputs
        .iter()
        .map(|input| {
            let tensor = Tensor::from_bytes(input.dtype, input.shape, input.bytes)?;
            RunTensor::host(tensor).ok_or_else(|| Error::new(ErrorKind::Internal, "an input without a size"))
        })
        .collect()
}

fn check_count(expected: usize, found: usize) -> Result<()> {
    if expected != found {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("memory for {found} results, expected {expected}"),
        ));
    }
    Ok(())
}

fn check_size(i: usize, expected: usize, found: usize) -> Result<()> {
    if expected != found {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("memory of {found} bytes for result {i}, expected {expected}"),
        ));
    }
    Ok(())
}

fn check_outputs(section: &Section, outputs: &[OutputView<'_>]) -> Result<()> {
    check_count(section.results.len(), outputs.len())?;
    for (i, ((ty, _), output)) in section.results.iter().zip(outputs).enumerate() {
        check_size(i, ty.size, output.len())?;
    }
    Ok(())
}

/// Whether kernels work in the caller's memory.
fn direct(section: &Section) -> bool {
    let about = section.device.about();
    about.inline && about.host_refs && !section.is_placed
}

/// Whether the caller's memory is aligned to elements, as references to host memory must be (B10).
fn aligned(
    section: &Section,
    stage: &SectionStage,
    inputs: &[InputView<'_>],
    outputs: &[OutputView<'_>],
) -> bool {
    let fits = |dtype: DType, address: *const u8| {
        let align = (dtype.bits as usize).div_ceil(8).next_power_of_two();
        (address as usize).is_multiple_of(align)
    };
    stage.plan_inputs.iter().all(|&i| fits(inputs[i as usize].dtype, inputs[i as usize].bytes.as_ptr()))
        && section.results.iter().zip(outputs).all(|((ty, _), output)| fits(ty.dtype, output.as_ptr()))
}

/// A reference to the caller's memory.
fn span(start: *const u8, len: usize) -> BufferRef {
    BufferRef { buffer: null_mut(), addr: start as u64, offset: 0, length: len as u64 }
}

/// Points a frame at the caller's memory.
fn patch(frame: &mut Frame, stage: &SectionStage, inputs: &[InputView<'_>], outputs: &mut [OutputView<'_>]) {
    frame.bind(
        &stage.section,
        |operand| {
            let bytes = inputs[stage.plan_inputs[operand] as usize].bytes;
            span(bytes.as_ptr(), bytes.len())
        },
        |written| {
            let bytes = &mut outputs[stage.section.result_of_written[written] as usize];
            span(bytes.as_mut_ptr(), bytes.len())
        },
    );
}

fn run_stage(
    stage: &SectionStage,
    inputs: &[InputView<'_>],
    outputs: &mut [OutputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    let section = &stage.section;
    check_outputs(section, outputs)?;
    for (i, (input, ty)) in stage.plan_inputs.iter().zip(&section.inputs).enumerate() {
        let found = inputs[*input as usize].bytes.len();
        if found != ty.size {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                format!(
                    "input {i} is {} and has {found} bytes, expected {}",
                    TensorType::new(ty.dtype, &ty.shape),
                    ty.size
                ),
            ));
        }
    }
    if direct(section) && aligned(section, stage, inputs, outputs) {
        let mut frame = take_frame(stage)?;
        patch(&mut frame, stage, inputs, outputs);
        // SAFETY: the references are of memory that is borrowed here, of the section's sizes (checked above),
        // and the device is inline: nothing is in flight when this returns.
        let launched = unsafe { frame.launch(section, cancel) };
        stage.frames.give(frame);
        launched?;
    } else {
        run_staged(stage, inputs, outputs, cancel)?;
    }
    pass_on(stage, inputs, outputs);
    Ok(())
}

/// Runs through the frame's own memory: in, launch, out.
fn run_staged(
    stage: &SectionStage,
    inputs: &[InputView<'_>],
    outputs: &mut [OutputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    let section = &stage.section;
    let mut frame = take_frame(stage)?;
    if frame.staging.is_none() {
        frame.stage(section)?;
    }
    let enqueued = enqueue_staged(&mut frame, stage, inputs, cancel);
    match frame.rest() {
        Ok(()) => {}
        Err(error) if must_leak(&error) => {
            // Nobody can say when the device stops touching the frame (ABI-NOTES 1).
            std::mem::forget(frame);
            section.leak();
            return Err(enqueued.err().unwrap_or(error));
        }
        // A failed stream is destroyed, not recovered (ABI-NOTES 10).
        Err(error) => return Err(first_cause(enqueued, error)),
    }
    // The device could not be stopped; what it made is not wanted.
    let enqueued =
        enqueued.and_then(|()| if section.device.about().inline { Ok(()) } else { Cancel::check(cancel) });
    if enqueued.is_ok()
        && let Some(staging) = &frame.staging
    {
        for (written, &result) in section.result_of_written.iter().enumerate() {
            let _traced = trace::begin(What::CopyOut { bytes: outputs[result as usize].len() as u64 });
            outputs[result as usize].copy_from_slice(staging.outputs[written].host.bytes());
        }
    }
    if !frame.is_spent {
        stage.frames.give(frame);
    }
    enqueued
}

/// After an error nothing further is enqueued but the signal that follows (ABI-NOTES 11).
fn enqueue_staged(
    frame: &mut Frame,
    stage: &SectionStage,
    inputs: &[InputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    let section = &stage.section;
    let Some(mut staging) = frame.staging.take() else {
        return Err(Error::new(ErrorKind::Internal, "a frame without staging memory"));
    };
    let mut enqueue = || -> Result<()> {
        frame.bind(section, |i| staging.inputs[i].reference(), |i| staging.outputs[i].reference());
        for (side, &input) in staging.inputs.iter_mut().zip(&stage.plan_inputs) {
            let _traced = trace::begin(What::CopyIn { bytes: side.size as u64 });
            side.host.as_mut_slice().copy_from_slice(inputs[input as usize].bytes);
            let Some(buffer) = &side.buffer else {
                continue;
            };
            let dst = buffer.reference(0, side.size);
            // SAFETY: the staging memory belongs to the frame, which is kept until the stream is at rest,
            // or leaked.
            unsafe { frame.streams.first.copy_in(side.host.bytes().as_ptr(), dst) }?;
        }
        // SAFETY: bound to the frame's own buffers, of the section's sizes.
        unsafe { frame.launch(section, cancel) }?;
        for side in &mut staging.outputs {
            let Some(buffer) = &side.buffer else {
                continue;
            };
            let src = buffer.reference(0, side.size);
            // SAFETY: as for the inputs.
            unsafe { frame.streams.first.copy_out(src, side.host.as_mut_slice().as_mut_ptr()) }?;
        }
        Ok(())
    };
    let result = enqueue();
    frame.staging = Some(staging);
    result
}

/// Fills in results that no kernel writes: inputs, constants and repeated results.
fn pass_on(stage: &SectionStage, inputs: &[InputView<'_>], outputs: &mut [OutputView<'_>]) {
    for (i, (_, source)) in stage.section.results.iter().enumerate() {
        match source {
            Source::Written(_) => {}
            Source::Input(input) => {
                let input = stage.plan_inputs[*input as usize] as usize;
                outputs[i].copy_from_slice(inputs[input].bytes);
            }
            Source::Constant(tensor) => outputs[i].copy_from_slice(tensor.bytes()),
            Source::Same(earlier) => {
                let (before, after) = outputs.split_at_mut(i);
                after[0].copy_from_slice(before[*earlier as usize]);
            }
        }
    }
}
