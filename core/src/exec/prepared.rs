//! Prepared plans: a plan beside the state that its runs share, which is frames, streams, caches, units and counts.
//!
//! A plan is data, made once and never changed. State that one run keeps for the next is here, in the order of the
//! plan's stages: a `StageRuns` for each.

use super::compiled::IdleStreams;
use super::eager::EagerCache;
use super::frame::Frame;
use super::lent::Lent;
use super::pool::FramePool;
use super::unit::Unit;
use crate::error::Result;
use crate::plan::report::PlanReport;
use crate::plan::section::Section;
use crate::plan::{Env, Plan, SectionStage, Stage};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// A plan with the state that its runs share. Clones share the same state.
#[derive(Clone)]
pub struct Prepared {
    /// Dropped first: frames' recordings end before the kernels and the memory that they name (B22).
    runs: Arc<Runs>,
    plan: Arc<Plan>,
}

/// State that all runs of a plan share.
struct Runs {
    /// Of the section, if that is all there is: in place, since a run of it is short.
    single: Option<SectionRuns>,
    /// Of each stage, if there is not one section alone.
    stages: Box<[StageRuns]>,
    /// Set by runs, cleared when plans are thrown out: second chance.
    used: AtomicBool,
    /// Runs, where no one frame is that of a run: of several stages, or none.
    n_staged: AtomicU64,
}

/// State that all runs of a stage share.
#[expect(clippy::large_enum_variant, reason = "a plan has few stages, and most have one line")]
pub(super) enum StageRuns {
    Section(SectionRuns),
    Compiled(IdleStreams),
    /// The regions, in the node's order.
    Control(Box<[Unit]>),
    /// Kernels prepared for earlier operands.
    Eager(EagerCache),
}

/// State that all runs of a section share.
pub(super) struct SectionRuns {
    /// Frames at rest.
    pub frames: FramePool,
    /// For a plan of one line: its references to the caller's memory, if kernels work there.
    pub lent: Option<Lent>,
}

/// A plan that is one section, with the state of its runs.
#[derive(Clone, Copy)]
pub(super) struct Single<'a> {
    pub stage: &'a SectionStage,
    pub runs: &'a SectionRuns,
}

impl Prepared {
    /// Prepares a plan for its first run; `env` is the environment it was planned with.
    pub fn new(plan: Arc<Plan>, env: &Arc<Env>) -> Self {
        let single = plan.single().map(|stage| SectionRuns {
            frames: FramePool::new(),
            lent: Lent::of(&stage.section, &stage.plan_inputs),
        });
        let stages = if single.is_some() { &[][..] } else { &plan.stages };
        let stages = stages.iter().map(|stage| match stage {
            Stage::Section(_) => StageRuns::Section(SectionRuns { frames: FramePool::new(), lent: None }),
            Stage::Compiled(_) => StageRuns::Compiled(IdleStreams::new()),
            Stage::Control(stage) => {
                let unit = |program| Unit::new(Arc::clone(program), Arc::clone(env));
                StageRuns::Control(stage.regions.iter().map(|nested| unit(&nested.program)).collect())
            }
            Stage::Eager(_) => StageRuns::Eager(EagerCache::default()),
        });
        let stages = stages.collect();
        let runs = Runs { single, stages, used: AtomicBool::new(true), n_staged: AtomicU64::new(0) };
        Self { runs: Arc::new(runs), plan }
    }

    /// Returns the plan.
    #[inline]
    pub fn plan(&self) -> &Arc<Plan> {
        &self.plan
    }

    /// Returns the section, if that is all there is.
    #[inline]
    pub(super) fn single(&self) -> Option<Single<'_>> {
        Some(Single { stage: self.plan.single()?, runs: self.runs.single.as_ref()? })
    }

    /// Returns the stages, in order; none of a plan that is one section.
    pub(super) fn stages(&self) -> impl Iterator<Item = (&Stage, &StageRuns)> {
        self.plan.stages.iter().zip(&self.runs.stages)
    }

    /// Returns how many runs there were. A run that was bound counts once, however often it ran.
    pub(super) fn n_runs(&self) -> u64 {
        let framed = self.single().map_or(0, |single| single.runs.frames.n_runs());
        framed + self.runs.n_staged.load(Ordering::Relaxed)
    }

    /// Counts a run of its stages one by one.
    pub(super) fn count_staged(&self) {
        self.runs.n_staged.fetch_add(1, Ordering::Relaxed);
    }

    /// Gives it a second chance. Threads that run it all the time only read.
    #[inline]
    pub(super) fn mark_used(&self) {
        if !self.runs.used.load(Ordering::Relaxed) {
            self.runs.used.store(true, Ordering::Relaxed);
        }
    }

    /// Returns whether the plan was used since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.runs.used.swap(false, Ordering::Relaxed)
    }

    /// Makes a report, including the existing plans of regions; `env` is the environment it was planned with.
    pub(super) fn report(&self, env: &Env) -> PlanReport {
        PlanReport::of(&self.plan, env, &|stage, region| match &self.runs.stages[stage] {
            StageRuns::Control(units) => units[region].reports(),
            _ => Vec::new(),
        })
    }
}

impl SectionRuns {
    /// A frame for a run of a stage, its stream at rest.
    ///
    /// # Errors
    /// As [`Frame::new`].
    #[inline]
    pub fn take_frame(&self, section: &Section) -> Result<Box<Frame>> {
        let frame = match self.frames.take() {
            Some(frame) => frame,
            None => self.new_frame(section)?,
        };
        frame.runs.count();
        Ok(frame)
    }

    #[cold]
    fn new_frame(&self, section: &Section) -> Result<Box<Frame>> {
        let mut frame = Frame::new(section).map(Box::new)?;
        frame.runs = self.frames.new_counter();
        Ok(frame)
    }
}
