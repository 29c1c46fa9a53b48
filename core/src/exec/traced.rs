//! Steps that are traced: a function of ours around the kernel's own.
//!
//! To the launch loop such a step looks like any other. In front of its references stands one more, of the frame's
//! [`Context`], which knows the number of the run: the launch function finds it one place before its own references.

use super::nested::Context;
use crate::device::Device;
use crate::plan::Env;
use crate::plan::compiled::CompiledStage;
use crate::plan::executor::Told;
use crate::plan::place::kernel::Chosen;
use crate::plan::section::{Section, StepKind as Planned};
use crate::program::Node;
use crate::trace::{Event, Recorder, SectionInfo, StepInfo, StepKind, What, now_ns};
use devbay_plugin_api::abi::{BufferRef, LaunchFn, Status, Stream};
use std::ffi::c_void;

/// A step's state.
struct TracedStep {
    launch: LaunchFn,
    /// The state that `launch` wants.
    state: *const c_void,
    recorder: Recorder,
    section: u32,
    step: u32,
}

// SAFETY: function and state are a prepared kernel's or a control-flow step's, which many threads launch at once (B21).
unsafe impl Send for TracedStep {}
// SAFETY: function and state may be used by several threads at once (B21).
unsafe impl Sync for TracedStep {}

/// Has a section's steps traced, if they are to be; each has the reference of the frame's context in front of its own.
pub(super) fn trace(section: &mut Section, told: Told<'_>) {
    let Some(recorder) = section.traced.clone() else {
        return;
    };
    let Told { edges, launch_of, .. } = told;
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
            output: told.outputs[i].clone(),
            kernel: section.kernels[i].clone(),
            kind: match (section.kinds[i], inline) {
                (Planned::Nested | Planned::Control, _) => StepKind::Control,
                (Planned::Order, _) => StepKind::Order,
                (_, true) => StepKind::Kernel,
                (Planned::Copy, false) => StepKind::Copy,
                (Planned::Kernel, false) => StepKind::Enqueue,
            },
            cost_ns: section.costs_ns[i],
            counts: told.counts[i],
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
    let number = recorder.add_section(SectionInfo { devices, is_shared: section.is_shared(), steps });
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
    section.wrapped.push(Box::new(traced));
}

impl StepInfo {
    /// Returns a node that is planned while it runs.
    pub(super) fn of_lone(node: &Node, chosen: &Chosen, device: &Device) -> Self {
        let kind = if device.about().inline { StepKind::Kernel } else { StepKind::Enqueue };
        Self { kernel: chosen.name.clone(), kind, ..Self::of_stage(node) }
    }

    /// Control flow that is a stage of its own.
    pub(super) fn of_stage(node: &Node) -> Self {
        Self {
            label: node.label(),
            name: node.name.to_string(),
            output: String::new(),
            kernel: node.op.to_string(),
            kind: StepKind::Stage,
            cost_ns: 0.0,
            counts: None,
            signature: None,
            task: 0,
            lane: 0,
            preds: Box::default(),
        }
    }

    /// Returns a program that a device's compiler made.
    pub(super) fn of_program(stage: &CompiledStage) -> Self {
        let (first, rest) =
            (stage.labels.first().cloned().unwrap_or_default(), stage.labels.len().max(1) - 1);
        Self {
            label: format!("{first} and {rest} more, compiled"),
            name: first,
            output: String::new(),
            kernel: "program".to_owned(),
            kind: StepKind::Stage,
            cost_ns: stage.cost_ns as f32,
            counts: None,
            signature: None,
            task: 0,
            lane: 0,
            preds: Box::default(),
        }
    }
}

impl Env {
    /// Does a run on the calling thread, as a traced one if plans are traced.
    #[inline]
    pub(crate) fn traced<R>(&self, run: impl FnOnce() -> R) -> R {
        // Separate, so that an untraced run has nothing to clean up.
        let Some(recorder) = &self.options.trace else {
            return run();
        };
        let _running = recorder.begin_run();
        run()
    }
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
    // SAFETY: `state` and `launch` are those of the step, and stream and references are what the launch loop passed for
    // it (B21).
    let status = unsafe { (step.launch)(step.state, stream, refs, dims) };
    let end_ns = now_ns();
    let what = What::Launch { section: step.section, step: step.step, stream: stream.addr() as u64 };
    step.recorder.add(Event { what, run, begin_ns, end_ns });
    status
}
