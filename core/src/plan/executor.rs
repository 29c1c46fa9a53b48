//! What a plan is handed of the executor: who folds constants, and what the launch loop calls for steps that are ours.
//!
//! Plans are data, and know nothing of how they run. But constants are folded by running kernels, and a step is a function
//! and its state, whether it is a kernel or not: so who makes plans is given these ([`Env`]), as it is given plugins'
//! kernels.

use super::Env;
use super::order::tasks::Edges;
use super::section::Section;
use super::steps::OwnStep;
use crate::program::fold::Evaluator;
use devbay_plugin_api::abi::LaunchFn;
use std::sync::Arc;

/// Who runs what is planned.
pub(crate) trait Executor: Sync {
    /// Runs nodes on constants, with the kernels of these devices.
    fn evaluator<'a>(&self, env: &'a Env) -> Box<dyn Evaluator + 'a>;

    /// What the launch loop calls for such a step, with its state.
    fn launch_fn(&self, own: OwnStep) -> LaunchFn;

    /// Puts functions of its own around those of a section's steps, where these are to be traced or to leave notes.
    fn wrap(&self, section: &mut Section, told: Told<'_>);
}

/// What is told of each step beside what its section says of it.
pub(crate) struct Told<'a> {
    /// The nodes' names, if the section is traced.
    pub names: &'a [String],
    /// What launches are known as to measurements, if the section is traced.
    pub signatures: &'a [Option<Arc<str>>],
    /// What each launch waits for.
    pub edges: &'a Edges,
    /// The launch of each step, if it is one.
    pub launch_of: &'a [Option<u32>],
}
