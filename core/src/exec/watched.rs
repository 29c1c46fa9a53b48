//! Launches that leave a note of the call that their thread is in ([`calls`]): a function of ours around the kernel's own.

use crate::calls::{self, Call};
use crate::device::Device;
use crate::plan::section::{Section, StepKind};
use devbay_plugin_api::abi::{BufferRef, LaunchFn, Status, Stream};
use std::ffi::c_void;
use std::sync::Arc;

/// A step's state.
struct WatchedStep {
    launch: LaunchFn,
    /// The state that `launch` wants.
    state: *const c_void,
    device: Arc<Device>,
    node: String,
}

// SAFETY: function and state are a prepared kernel's, which many threads launch at once (B21).
unsafe impl Send for WatchedStep {}
// SAFETY: function and state may be used by several threads at once (B21).
unsafe impl Sync for WatchedStep {}

/// Makes the launches of a section's kernels leave notes, if notes are on.
pub(super) fn watch(section: &mut Section) {
    if !calls::is_watched() {
        return;
    }
    let is_kernel = |i: usize| section.kinds[i] == StepKind::Kernel;
    let watched: Box<[WatchedStep]> = section
        .steps
        .iter()
        .enumerate()
        .filter(|(i, _)| is_kernel(*i))
        .map(|(i, step)| WatchedStep {
            launch: step.launch,
            state: step.state,
            device: Arc::clone(&section.lanes[step.lane as usize]),
            node: section.labels[i].clone(),
        })
        .collect();
    let mut next = watched.iter();
    for (step, kind) in section.steps.iter_mut().zip(&section.kinds) {
        if *kind == StepKind::Kernel
            && let Some(watched) = next.next()
        {
            step.launch = launch;
            step.state = std::ptr::from_ref(watched).cast();
        }
    }
    section.wrapped.push(Box::new(watched));
}

unsafe extern "C" fn launch(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step, which lives as long as the section.
    let step = unsafe { &*state.cast::<WatchedStep>() };
    let call = Call {
        plugin: step.device.plugin().name(),
        function: "launch",
        device: step.device.name(),
        node: &step.node,
    };
    // SAFETY: `state` and `launch` are those of the step, and stream and references are what the launch loop passed for
    // it (B21).
    let launch = || unsafe { (step.launch)(step.state, stream, refs, dims) };
    calls::noted_as(call, launch)
}
