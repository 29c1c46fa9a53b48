//! This executor as planning sees it, and the environments whose plans it runs.

use super::eager::Evaluate;
use super::{nested, regions, timeline, traced, watched};
use crate::device::Device;
use crate::plan::executor::{Executor, Told};
use crate::plan::section::Section;
use crate::plan::specialise::ahead::PackedConstant;
use crate::plan::steps::OwnStep;
use crate::plan::{Env, Placement, PlanOptions};
use crate::program::fold::Evaluator;
use devbay_plugin_api::abi::LaunchFn;
use std::sync::Arc;

/// This executor.
struct Here;

impl Executor for Here {
    fn evaluator<'a>(&self, env: &'a Env) -> Box<dyn Evaluator + 'a> {
        Box::new(Evaluate::new(env))
    }

    fn launch_fn(&self, own: OwnStep) -> LaunchFn {
        match own {
            OwnStep::Copy => timeline::launch_copy,
            OwnStep::Wait => timeline::launch_wait,
            OwnStep::Signal => timeline::launch_signal,
            OwnStep::Flush => timeline::launch_flush,
            OwnStep::If => nested::launch_if,
            OwnStep::Loop => nested::launch_loop,
            OwnStep::Entry => regions::launch_entry,
            OwnStep::Exit => regions::launch_exit,
        }
    }

    fn wrap(&self, section: &mut Section, told: Told<'_>) {
        // The trace covers the whole of a step, its note included.
        watched::watch(section);
        traced::trace(section, told);
    }
}

impl Env {
    /// Creates an environment of one device, with a pool of its own.
    pub fn new(device: &Arc<Device>, options: PlanOptions) -> Arc<Self> {
        Self::placed(&Placement::on(device), options)
    }

    /// Returns an environment of several devices, with pools of its own.
    pub fn placed(placement: &Placement, options: PlanOptions) -> Arc<Self> {
        Self::with_packed(placement, options, &[])
    }

    /// As [`Env::placed`], with constants that were packed ahead of time.
    pub fn with_packed(placement: &Placement, options: PlanOptions, packed: &[PackedConstant]) -> Arc<Self> {
        Self::of(placement, options, packed, &Here)
    }
}
