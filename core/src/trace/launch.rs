//! Steps that are traced: a function of ours around the kernel's own.
//!
//! To the launch loop such a step looks like any other. In front of its references stands one more, of the frame's
//! [`Context`], which knows the number of the run: the launch function finds it one place before what it is handed.

use super::clock::now_ns;
use super::events::{Event, SectionInfo, StepInfo, StepKind, What};
use super::recorder::Recorder;
use super::running::Running;
use crate::exec::nested::Context;
use crate::plan::section::{Section, StepKind as Planned};
use crate::plan::tasks::Edges;
use devbay_plugin_api::abi::{BufferRef, LaunchFn, Status, Stream};
use std::ffi::c_void;
use std::sync::Arc;

/// What the traced steps of a section call. Their states point into it.
pub(crate) struct Traced {
    recorder: Recorder,
    #[expect(dead_code, reason = "the steps' states point into it")]
    steps: Box<[TracedStep]>,
}

impl Traced {
    /// Begins a run of the section alone.
    pub fn begin_run(&self) -> Running {
        self.recorder.begin_run()
    }
}

/// What is told of each step beside what its section says of it.
pub(crate) struct Told<'a> {
    /// The nodes' names.
    pub names: &'a [String],
    /// What launches are known as to measurements.
    pub signatures: &'a [Option<Arc<str>>],
}

/// A step's state.
struct TracedStep {
    launch: LaunchFn,
    /// What `launch` wants.
    state: *const c_void,
    recorder: Recorder,
    section: u32,
    step: u32,
}

// SAFETY: function and state are a prepared kernel's or a control-flow step's, which many threads launch at once (B21).
unsafe impl Send for TracedStep {}
// SAFETY: as for Send.
unsafe impl Sync for TracedStep {}

/// Has a section's steps traced, each of which has the reference of the frame's context in front of its own.
///
/// `edges` are what each launch waits for, `launch_of` the launch of each step, if it is one.
pub(crate) fn trace(
    section: &mut Section,
    recorder: &Recorder,
    told: Told<'_>,
    edges: &Edges,
    launch_of: &[Option<u32>],
) {
    let mut step_of = vec![0u32; edges.len()];
    for (step, &launch) in launch_of.iter().enumerate() {
        if let Some(launch) = launch {
            step_of[launch as usize] = step as u32;
        }
    }
    let mut task_of = vec![0u32; launch_of.len()];
    for task in 0..section.graph.len() {
        task_of[section.graph.steps_of(task)].fill(task as u32);
    }
    let info = launch_of.iter().enumerate().map(|(i, &launch)| {
        let step = &section.steps[i];
        let inline = section.lanes[step.lane as usize].about().inline;
        StepInfo {
            label: section.labels[i].clone(),
            name: told.names[i].clone(),
            kernel: section.kernels[i].clone(),
            kind: match (section.kinds[i], inline) {
                (Planned::Nested | Planned::Control, _) => StepKind::Control,
                (Planned::Order, _) => StepKind::Order,
                (_, true) => StepKind::Kernel,
                (Planned::Copy, false) => StepKind::Copy,
                (Planned::Kernel, false) => StepKind::Enqueue,
            },
            cost_ns: section.costs_ns[i],
            signature: told.signatures[i].clone(),
            task: task_of[i],
            lane: step.lane,
            preds: launch.map_or_else(Box::default, |launch| {
                edges.preds(launch as usize).iter().map(|&pred| step_of[pred as usize]).collect()
            }),
        }
    });
    let steps = info.collect();
    let devices = section.lanes.iter().map(|device| device.name().to_owned()).collect();
    let number = recorder.add_section(SectionInfo { devices, steps });
    let traced: Box<[TracedStep]> = section
        .steps
        .iter()
        .zip(0..)
        .map(|(step, i)| TracedStep {
            launch: step.launch,
            state: step.state,
            recorder: recorder.clone(),
            section: number,
            step: i,
        })
        .collect();
    for (step, traced) in section.steps.iter_mut().zip(&traced) {
        step.launch = launch;
        step.state = std::ptr::from_ref(traced).cast();
    }
    section.traced = Some(Traced { recorder: recorder.clone(), steps: traced });
}

unsafe extern "C" fn launch(
    state: *const c_void,
    stream: *mut Stream,
    refs: *const BufferRef,
    dims: *const i64,
) -> Status {
    // SAFETY: the launch loop passes the state of this step, which lives as long as the section.
    let step = unsafe { &*state.cast::<TracedStep>() };
    // SAFETY: the context's reference is in front of the step's own, in the same array (see above).
    let context = unsafe { (*refs.sub(1)).addr } as *const Context;
    // SAFETY: the frame has filled in its context, which it owns.
    let run = unsafe { (*context).run() };
    let begin_ns = now_ns();
    // SAFETY: what the launch loop promised for the step holds for the function that was there first.
    let status = unsafe { (step.launch)(step.state, stream, refs, dims) };
    let end_ns = now_ns();
    let what = What::Launch { section: step.section, step: step.step, stream: stream.addr() as u64 };
    step.recorder.add(Event { what, run, begin_ns, end_ns });
    status
}
