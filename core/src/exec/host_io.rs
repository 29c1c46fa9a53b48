//! Runs whose inputs and results are the caller's memory.
//!
//! On an inline device whose references may name host memory, kernels read and write the caller's bytes
//! themselves. Everywhere else the frame owns staging memory on both sides: if a device never came to rest,
//! the frame could be leaked, the caller's borrowed memory could not.

use super::cancel::Cancel;
use super::frame::{Frame, first_cause};
use super::prepared::{Prepared, Single};
use super::unit::{Found, Unit};
use super::value::RunTensor;
use crate::device::must_leak;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::section::{Section, Shaped, Source};
use crate::plan::{Plan, SectionStage};
use crate::tensor::{AlignedBytes, Bytes, DType, Tensor, TensorType, bytes_of, n_elements};
use crate::trace::{self, Recorder, What};
use std::marker::PhantomData;
use std::sync::Arc;

/// An input in the caller's memory: dense, row-major.
///
/// # Invariants
/// There are as many bytes as type and shape need.
#[derive(Clone, Copy)]
pub struct InputView<'a> {
    dtype: DType,
    shape: &'a [usize],
    bytes: &'a [u8],
}

impl<'a> InputView<'a> {
    /// Views the caller's memory as a tensor of this type and shape.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidInput`] for more or fewer bytes than type and shape need.
    pub fn new(dtype: DType, shape: &'a [usize], bytes: &'a [u8]) -> Result<Self> {
        let size = n_elements(shape).and_then(|n| bytes_of(dtype, n));
        if size != Some(bytes.len()) {
            let needed =
                size.map_or_else(|| "more bytes than can be addressed".to_owned(), |n| format!("{n} bytes"));
            let text = format!("{} needs {needed}, given are {}", TensorType::new(dtype, shape), bytes.len());
            return Err(Error::new(ErrorKind::InvalidInput, text));
        }
        Ok(Self { dtype, shape, bytes })
    }

    /// Returns element type and extents.
    #[inline]
    pub fn ty(&self) -> (DType, &'a [usize]) {
        (self.dtype, self.shape)
    }

    /// Returns the extents.
    #[inline]
    pub fn shape(&self) -> &'a [usize] {
        self.shape
    }

    /// Returns the content.
    #[inline]
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Returns a tensor's content.
    pub fn of(tensor: &'a Tensor) -> Self {
        Self { dtype: tensor.dtype(), shape: tensor.shape(), bytes: tensor.bytes() }
    }
}

/// Memory of the caller's for a result.
pub type OutputView<'a> = &'a mut [u8];

/// Inputs with the plan that was made for such.
///
/// # Invariants
/// The inputs are as many as the plan's, of their types and sizes.
pub struct Planned<'a> {
    unit: &'a Unit,
    plan: Held<'a>,
    inputs: &'a [InputView<'a>],
}

/// The owner that keeps a plan.
enum Held<'a> {
    /// The caller.
    Lent(&'a Prepared),
    /// The unit's plans as they were when it was found.
    Found(Found),
}

impl Planned<'_> {
    /// Runs on the caller's memory, results included.
    ///
    /// # Errors
    /// As [`Unit::run_into`], without planning's.
    pub fn run_into(&self, outputs: &mut [OutputView<'_>], cancel: Option<&Cancel>) -> Result<()> {
        let plan = match &self.plan {
            Held::Lent(plan) => plan,
            Held::Found(found) => found.prepared(),
        };
        self.unit.env().traced(|| match plan.single() {
            Some(single) => run_stage(single, self.inputs, outputs, cancel),
            None => self.unit.run_stages_into(plan, self.inputs, outputs, cancel),
        })
    }
}

impl Unit {
    /// Finds the plan for inputs that the program takes. None if there is none yet.
    #[inline]
    pub fn planned<'a>(&'a self, inputs: &'a [InputView<'a>]) -> Option<Planned<'a>> {
        // INVARIANT: `fit` compares these.
        let found = self.find(|plan| fit(inputs, plan))?;
        Some(Planned { unit: self, plan: Held::Found(found), inputs })
    }

    /// As [`Unit::planned`], where there is one plan of this unit's that it can be: nothing is looked up, or kept from
    /// being thrown out.
    #[inline]
    pub fn planned_as<'a>(&'a self, plan: &'a Prepared, inputs: &'a [InputView<'a>]) -> Option<Planned<'a>> {
        if !fit(inputs, plan.plan()) {
            return None;
        }
        plan.mark_used();
        // INVARIANT: as above.
        Some(Planned { unit: self, plan: Held::Lent(plan), inputs })
    }

    /// Runs on the caller's memory and gives new tensors.
    ///
    /// # Errors
    /// Errors of planning, or the first failure of the run.
    pub fn run_host(&self, inputs: &[InputView<'_>], cancel: Option<&Cancel>) -> Result<Vec<Tensor>> {
        let plan = self.plan_for_run(inputs.iter().map(InputView::ty))?;
        self.env().traced(|| self.run_plan_host(plan.prepared(), inputs, cancel))
    }

    /// Runs a plan of this unit's on the caller's memory and gives new tensors.
    fn run_plan_host(
        &self,
        prepared: &Prepared,
        inputs: &[InputView<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Tensor>> {
        let Some(single) = prepared.single() else {
            let results = self.run_plan(prepared, owned(inputs)?, cancel)?;
            return results.iter().map(RunTensor::to_tensor).collect();
        };
        let (stage, plan) = (single.stage, prepared.plan());
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
        check_inputs(stage, inputs)?;
        run_stage(single, inputs, &mut outputs, cancel)?;
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
        if let Some(planned) = self.planned(inputs) {
            return planned.run_into(outputs, cancel);
        }
        let plan = self.plan_for_run(inputs.iter().map(InputView::ty))?;
        let plan = plan.prepared();
        self.env().traced(|| match plan.single() {
            Some(single) => {
                check_inputs(single.stage, inputs)?;
                run_stage(single, inputs, outputs, cancel)
            }
            None => self.run_stages_into(plan, inputs, outputs, cancel),
        })
    }

    /// Runs a plan of this unit's that is not one line.
    fn run_stages_into(
        &self,
        plan: &Prepared,
        inputs: &[InputView<'_>],
        outputs: &mut [OutputView<'_>],
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        let results = self.run_plan(plan, owned(inputs)?, cancel)?;
        check_count(results.len(), outputs.len())?;
        for (i, (result, output)) in results.iter().zip(outputs.iter_mut()).enumerate() {
            check_size(i, result.ty.size, output.len())?;
            result.read_into(output)?;
        }
        Ok(())
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
        let plan = self.plan_for_run(inputs.iter().map(InputView::ty))?;
        let plan = plan.prepared();
        let Some(Single { stage, runs }) = plan.single() else {
            return Ok(None);
        };
        check_inputs(stage, inputs)?;
        check_outputs(&stage.section, outputs)?;
        let Some(lent) = runs.lent.as_ref().filter(|_| stage.section.writes_all()) else {
            return Ok(None);
        };
        let mut frame = runs.take_frame(&stage.section)?;
        if !lent.point(&mut frame, inputs, outputs) {
            runs.frames.give(frame);
            return Ok(None);
        }
        Ok(Some(Bound { plan: plan.clone(), frame: Some(frame), lent: PhantomData }))
    }
}

/// A frame that is pointed at the caller's memory.
///
/// # Invariants
/// The plan is one line on a device that works in the caller's memory, inline, so that nothing is in flight
/// between runs; the frame's references are of memory that is lent for `'a`.
pub struct Bound<'a> {
    plan: Prepared,
    frame: Option<Box<Frame>>,
    lent: PhantomData<&'a mut [u8]>,
}

impl Bound<'_> {
    /// Runs once more on the present content of the inputs.
    ///
    /// # Errors
    /// The first failure of the run.
    #[inline]
    pub fn run(&mut self, cancel: Option<&Cancel>) -> Result<()> {
        let (Some(stage), Some(frame)) = (self.plan.plan().single(), &mut self.frame) else {
            return Err(Error::new(ErrorKind::Internal, "a bound run without its frame"));
        };
        let _traced = stage.section.traced.as_ref().map(Recorder::begin_run);
        // SAFETY: the invariant: the references are of memory that is lent, of the section's sizes, and the
        // device is inline, so that nothing is in flight when this returns.
        unsafe { frame.launch(&stage.section, cancel) }
    }
}

impl Drop for Bound<'_> {
    fn drop(&mut self) {
        if let (Some(single), Some(frame)) = (self.plan.single(), self.frame.take()) {
            single.runs.frames.give(frame);
        }
    }
}

/// Returns whether inputs fit the program, and the plan is for their types.
#[inline]
fn fit(inputs: &[InputView<'_>], plan: &Plan) -> bool {
    let is = |(ty, input): (&Shaped, &InputView<'_>)| ty.is(input.dtype, input.shape);
    plan.is_declared && plan.inputs.len() == inputs.len() && plan.inputs.iter().zip(inputs).all(is)
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

#[inline]
fn check_count(expected: usize, found: usize) -> Result<()> {
    #[cold]
    fn wrong(expected: usize, found: usize) -> Error {
        let text = format!("memory for {found} results, expected {expected}");
        Error::new(ErrorKind::InvalidArgument, text)
    }
    if expected == found { Ok(()) } else { Err(wrong(expected, found)) }
}

#[inline]
fn check_size(i: usize, expected: usize, found: usize) -> Result<()> {
    #[cold]
    fn wrong(i: usize, expected: usize, found: usize) -> Error {
        let text = format!("memory of {found} bytes for result {i}, expected {expected}");
        Error::new(ErrorKind::InvalidArgument, text)
    }
    if expected == found { Ok(()) } else { Err(wrong(i, expected, found)) }
}

fn check_outputs(section: &Section, outputs: &[OutputView<'_>]) -> Result<()> {
    check_count(section.results.len(), outputs.len())?;
    for (i, ((ty, _), output)) in section.results.iter().zip(outputs).enumerate() {
        check_size(i, ty.size, output.len())?;
    }
    Ok(())
}

/// Checks that the inputs of a stage have as many bytes as their types need.
fn check_inputs(stage: &SectionStage, inputs: &[InputView<'_>]) -> Result<()> {
    for (i, (input, ty)) in stage.plan_inputs.iter().zip(&stage.section.inputs).enumerate() {
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
    Ok(())
}

/// Runs a stage on inputs of its types and sizes.
#[inline]
fn run_stage(
    single: Single<'_>,
    inputs: &[InputView<'_>],
    outputs: &mut [OutputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    let Single { stage, runs } = single;
    let section = &stage.section;
    check_outputs(section, outputs)?;
    let mut frame = runs.take_frame(section)?;
    let is_lent = runs.lent.as_ref().is_some_and(|lent| lent.point(&mut frame, inputs, outputs));
    if is_lent {
        // SAFETY: the references are of memory that is borrowed here, of the section's sizes (checked above, and
        // by the caller), and the device is inline: nothing is in flight when this returns.
        let launched = unsafe { frame.launch(section, cancel) };
        runs.frames.give(frame);
        launched?;
    } else {
        run_staged(single, frame, inputs, outputs, cancel)?;
    }
    if !section.writes_all() {
        pass_on(stage, inputs, outputs);
    }
    Ok(())
}

/// Runs through the frame's own memory: in, launch, out.
#[inline(never)]
fn run_staged(
    single: Single<'_>,
    mut frame: Box<Frame>,
    inputs: &[InputView<'_>],
    outputs: &mut [OutputView<'_>],
    cancel: Option<&Cancel>,
) -> Result<()> {
    let Single { stage, runs } = single;
    let section = &stage.section;
    if frame.staging.is_none() {
        frame.stage(section)?;
    }
    let enqueued = enqueue_staged(&mut frame, stage, inputs, cancel);
    match frame.rest() {
        Ok(()) => {}
        Err(error) if must_leak(&error) => {
            // The device may touch the frame at any later time, so it is leaked (B24).
            std::mem::forget(frame);
            section.leak();
            return Err(enqueued.err().unwrap_or(error));
        }
        // A failed stream is destroyed, not recovered (B13).
        Err(error) => return Err(first_cause(enqueued, error)),
    }
    // The device could not be stopped; its results are not wanted.
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
        runs.frames.give(frame);
    }
    enqueued
}

/// After an error, only the signal that follows is still enqueued (B13).
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
            // SAFETY: the staging memory is kept until the stream is at rest, or leaked, as for the copies in above.
            unsafe { frame.streams.first.copy_out(src, side.host.as_mut_slice().as_mut_ptr()) }?;
        }
        Ok(())
    };
    let result = enqueue();
    frame.staging = Some(staging);
    result
}

/// Fills in results that no kernel writes: inputs, constants and repeated results.
#[inline(never)]
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
