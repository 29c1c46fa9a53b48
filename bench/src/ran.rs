//! Comparison of a row's claim about a round with what was counted.
//!
//! A pass, a fold or a plan that changes may leave a benchmark less to do than its row says, and its figures only get
//! better. So no row is printed without a count: launches that a traced run of the same model made on the same device
//! and with the same options, or what else a row claims.

use anyhow::{Result, ensure};
use devbay_core::device::Device;
use devbay_core::plan::PlanOptions;
use devbay_core::tensor::Tensor;
use devbay_core::trace::{Recorder, StepKind};
use devbay_host::{Model, Session, SessionOptions};
use std::sync::Arc;

/// A claim, and the count that it is held against.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ran {
    /// Unit of both.
    pub what: &'static str,
    /// Number that the row says.
    pub said: u64,
    /// Number that was counted.
    pub counted: u64,
}

impl Ran {
    /// A claim about launches of a run.
    pub fn launches(said: usize, counted: usize) -> Self {
        Self::of("launches", said, counted)
    }

    /// A claim about something else.
    pub fn of(what: &'static str, said: usize, counted: usize) -> Self {
        Self { what, said: said as u64, counted: counted as u64 }
    }

    /// Fails if the count is not what was said, or if nothing ran.
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

/// Events that a recorder keeps: graphs have a million nodes.
const EVENTS_MAX: usize = 1 << 22;

/// Work of one run, as its trace tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Launches of kernels.
    pub launches: usize,
    /// Programs of a device's compiler.
    pub programs: usize,
}

/// Counts what one run of a model does with these options. The session that is measured is another one, as a traced plan
/// calls functions of its own.
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
    // Constants that planning computes are no launches of a run.
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
