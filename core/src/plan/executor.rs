//! The executor as planning sees it: a trait that folds constants and supplies the functions of our own steps.
//!
//! Plans are data, and know nothing of how they run. But constants are folded by running kernels, and a step is a function
//! and its state, whether it is a kernel or not. So planning is handed an executor through its [`Env`], as it is handed
//! plugins' kernels.

use super::Env;
use super::order::tasks::Edges;
use super::section::Section;
use super::steps::OwnStep;
use crate::kernel::Counts;
use crate::program::fold::Evaluator;
use devbay_plugin_api::abi::LaunchFn;
use std::sync::Arc;

/// The executor that will run a plan.
pub(crate) trait Executor: Sync {
    /// Returns an evaluator that runs nodes on constants, on the kernels of the environment's devices.
    fn evaluator<'a>(&self, env: &'a Env) -> Box<dyn Evaluator + 'a>;

    /// Returns the function that the launch loop calls for a step of ours, with the step's state.
    fn launch_fn(&self, own: OwnStep) -> LaunchFn;

    /// Wraps the functions of a section's steps where they are to be traced or to leave notes.
    fn wrap(&self, section: &mut Section, told: Told<'_>);
}

/// Facts about steps that their section does not keep.
pub(crate) struct Told<'a> {
    /// The nodes' names, if the section is traced.
    pub names: &'a [String],
    /// Names of the nodes' first results, if the section is traced.
    pub outputs: &'a [String],
    /// Work of launches as their kernels state it, if the section is traced.
    pub counts: &'a [Option<Counts>],
    /// Keys of launches in measurements, if the section is traced.
    pub signatures: &'a [Option<Arc<str>>],
    /// Launches that each launch waits for.
    pub edges: &'a Edges,
    /// The launch of each step, if it is one.
    pub launch_of: &'a [Option<u32>],
}
