//! Checks a row's claim about a round against a count.
//!
//! A change of a pass, a fold or a plan may leave a benchmark with less work than its row claims, which only improves its
//! figures. So every printed row has a count: launches in a traced run of the same model on the same device with the same
//! options, or another claimed unit.

use anyhow::{Result, ensure};
use devbay_core::device::Device;
use devbay_core::plan::PlanOptions;
use devbay_core::tensor::Tensor;
use devbay_core::trace::{Recorder, StepKind};
use devbay_host::{Model, Session, SessionOptions};
use std::sync::Arc;

/// A claim, and its count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Unit of both.
    pub what: &'static str,
    /// Claimed number.
    pub said: u64,
    /// Counted number.
    pub counted: u64,
}

impl Ran {
    /// Claims a number of launches per run.
    pub fn launches(said: usize, counted: usize) -> Self {
        Self::of("launches", said, counted)
    }

    /// Claims a number of another unit.
    pub fn of(what: &'static str, said: usize, counted: usize) -> Self {
        Self { what, said: said as u64, counted: counted as u64 }
    }

    /// Fails if the count differs from the claim, or if nothing ran.
    ///
    /// # Errors
    /// Both numbers, with the row.
    pub fn check(&self, bench: &str, case: &str) -> Result<()> {
        let Self { what, said, counted } = *self;
        ensure!(said == counted, "{bench} {case}: the row says {said} {what}, counted {counted}");
        ensure!(said > 0, "{bench} {case}: the row says that nothing runs");
        Ok(())
    }
}

/// Maximum events of a recorder: graphs have a million nodes.
const EVENTS_MAX: usize = 1 << 22;

/// Work of one run, from its trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Launches of kernels.
    pub launches: usize,
    /// Programs compiled by a device's compiler.
    pub programs: usize,
}

/// Counts the work of one run of a model with these options. The measured session is a different one, because a traced plan
/// calls other functions.
///
/// # Errors
/// If the model does not run, or events are lost.
pub fn count(
    model: &Model,
    device: &Arc<Device>,
    options: impl Into<SessionOptions>,
    inputs: &[(&str, &Tensor)],
) -> Result<Counts> {
    let recorder = Recorder::new(EVENTS_MAX);
    let options = options.into();
    let plans = PlanOptions { trace: Some(recorder.clone()), ..options.plans };
    let session = Session::with_options(model, device, SessionOptions { plans, ..options })?;
    // Plan first: constants that planning computes are not launches of a run.
    session.plan_for(inputs)?;
    recorder.take();
    session.run(inputs)?;
    let recording = recorder.take();
    ensure!(
        recording.n_dropped() == 0,
        "{} events of the run that was counted are lost",
        recording.n_dropped()
    );
    let mut counts = Counts::default();
    for event in recording.threads.iter().flat_map(|thread| &thread.events) {
        match recording.step(event.what) {
            Some(step) if matches!(step.kind, StepKind::Kernel | StepKind::Enqueue) => counts.launches += 1,
            Some(step) if step.kind == StepKind::Stage && step.kernel == "program" => counts.programs += 1,
            _ => {}
        }
    }
    Ok(counts)
}
