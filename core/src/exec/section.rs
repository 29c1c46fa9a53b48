//! Running a section: patch, launch, wait.
//!
//! The launch loop of a straight line is the synchronous path: one indirect call a step, no check but of the status, no atomic,
//! no lock, no allocation. On an asynchronous device the same loop enqueues, and one signal and one wait
//! follow.

use super::cancel::{Cancel, Launching};
use super::frame::Frame;
use super::nested::{self, Context};
use super::tasks;
use crate::device::{Stream, StreamUse};
use crate::error::{Error, ErrorKind, Phase, Result};
use crate::plan::launches::references::part_of;
use crate::plan::limits::Limits;
use crate::plan::section::{Patch, Section, Step};
use devbay_plugin_api::abi::{BufferRef, DEVBAY_STATUS_OK, Status};
use std::ptr::{null, null_mut};
use std::sync::Arc;

/// Why the launch loop ended early.
pub(crate) enum Ended<'a> {
    /// The launch of this step gave a status.
    Failed(&'a Step, Status),
    /// The caller wants no more.
    Cancelled,
}

impl Frame {
    /// Points the frame at inputs and written results; they stay until it is pointed elsewhere.
    pub(crate) fn bind(
        &mut self,
        section: &Section,
        input: impl Fn(usize) -> BufferRef,
        mut output: impl FnMut(usize) -> BufferRef,
    ) {
        for patch in &section.input_patches {
            self.refs[patch.ref_idx as usize] = patch.reference(input(patch.operand as usize));
        }
        for patch in &section.output_patches {
            self.refs[patch.ref_idx as usize] = patch.reference(output(patch.operand as usize));
        }
    }

    /// Launches the section's steps. On an asynchronous device the work is enqueued when this returns.
    ///
    /// # Safety
    /// 1. The frame is bound to memory of the section's sizes.
    /// 2. That memory stays until the stream has come to rest.
    ///
    /// # Errors
    /// The first status that was not 0, with node and plugin's words; cancelled or past the deadline. On an
    /// asynchronous device, work enqueued before it still runs.
    #[inline(always)]
    pub(crate) unsafe fn launch(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        if cancel.is_none() {
            // SAFETY: the frame is bound, and its memory stays (# Safety).
            return unsafe { self.launch_all(section, None) };
        }
        // SAFETY: bound memory that stays, as without a flag.
        Cancel::over(cancel, || unsafe { self.launch_all(section, cancel) })?;
        // A kernel whose loops ended early may not have reported it.
        Cancel::check(cancel)
    }

    /// [`Frame::launch`] under the run's flag.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    #[inline(always)]
    unsafe fn launch_all(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        for device in &section.lanes {
            device.check_usable()?;
        }
        if !section.context_refs.is_empty() {
            self.context.begin(cancel);
        }
        if self.tasks.is_some() {
            // SAFETY: the frame is bound, and its memory stays (# Safety).
            return unsafe { self.launch_tasks(section, cancel) };
        }
        if self.replay.is_on() {
            // SAFETY: bound memory that stays (# Safety).
            return unsafe { self.launch_or_replay(section, cancel) };
        }
        // SAFETY: bound memory that stays (# Safety).
        unsafe { self.launch_line(section, cancel) }
    }

    /// [`Frame::launch`] for a straight line.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    #[inline(always)]
    pub(super) unsafe fn launch_line(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        let serial = section.device.plugin().serialise();
        let streams = self.streams.handles();
        let refs = self.refs.as_ptr();
        let ended = match cancel {
            // SAFETY: references and streams are the frame's, made for this section, and bound (# Safety of `launch`).
            None => unsafe { launch_steps::<false>(section, &section.steps, refs, streams, None) },
            // SAFETY: the same references and streams, bound.
            cancel => unsafe { launch_steps::<true>(section, &section.steps, refs, streams, cancel) },
        };
        drop(serial);
        ended.map_err(|ended| self.why(section, cancel, ended))
    }

    /// [`Frame::launch`] for a section that is no straight line.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    #[inline(never)]
    unsafe fn launch_tasks(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        let Some(tasks) = &mut self.tasks else {
            return Err(Error::new(ErrorKind::Internal, "a frame without the state of its tasks"));
        };
        if let Some(timelines) = self.context.timelines() {
            timelines.begin(self.streams.iter().map(Stream::signalled).zip(&section.n_signals));
        }
        // Entries and exits of control flow write references.
        let (context, streams, refs) = (&self.context, &self.streams, self.refs.as_mut_ptr());
        // SAFETY: the frame is bound, and its memory stays (# Safety); asynchronous lanes are those of a placed
        // section, whose run has left them at rest when it ends well.
        let ran = unsafe { tasks::run(section, tasks, context, streams, refs, cancel) };
        if let Some(timelines) = self.context.timelines() {
            self.streams.have_signalled(timelines.signalled());
        }
        self.is_spent = section.is_placed && ran.is_err();
        ran.map_err(|error| self.streams.cause_of(error))
    }

    #[cold]
    fn why(&self, section: &Section, cancel: Option<&Cancel>, ended: Ended<'_>) -> Error {
        match ended {
            Ended::Cancelled => cancel.map_or_else(Cancel::unknown, Cancel::error),
            Ended::Failed(step, status) => {
                let stream = self.streams.of_lane(step.lane);
                section.launch_failed(stream, &self.context, cancel, step, status)
            }
        }
    }
}

impl Section {
    /// Returns the purpose of its streams.
    pub(crate) fn stream_use(&self) -> StreamUse {
        StreamUse { copies: false, priority: self.stream_priority }
    }

    /// Returns whether its one stream can wait for this one.
    pub(crate) fn waits_for(&self, other: &Stream) -> bool {
        !self.is_placed && !self.device.about().inline && Arc::ptr_eq(&self.device, other.device())
    }

    /// Returns the name of the node of one of the section's steps.
    pub(crate) fn label(&self, step: &Step) -> &str {
        self.steps.element_offset(step).map_or("", |step| &self.labels[step])
    }

    /// Describes the launch of one of the section's steps.
    #[cold]
    fn launching(&self, step: &Step) -> Launching {
        let device = &self.lanes[step.lane as usize];
        Launching {
            plugin: device.plugin().name().to_owned(),
            device: device.name().to_owned(),
            node: self.label(step).to_owned(),
        }
    }

    /// Makes an error of the status of a launch of one of the section's steps, in the words of the stream that it was
    /// for.
    #[cold]
    pub(crate) fn launch_failed(
        &self,
        stream: &Stream,
        context: &Context,
        cancel: Option<&Cancel>,
        step: &Step,
        status: Status,
    ) -> Error {
        if status == nested::CANCELLED {
            return cancel.map_or_else(Cancel::unknown, Cancel::error);
        }
        if status == nested::TOO_MANY_TRIPS {
            return Limits::too_many_trips(context.trips_max()).at_node(self.label(step));
        }
        let mut label = self.label(step).to_owned();
        if let Some(inner) = context.take_blame() {
            label = format!("{label} / {inner}");
        }
        match stream.check(status, Phase::Launch) {
            // The stream's words name the node, if anything does.
            Err(error) if stream.has_failed_with(status) => error,
            Err(error) => error.at_node(label),
            Ok(()) => Error::from_status(status, Phase::Launch, "").at_node(label),
        }
    }
}

/// The launch loop.
///
/// # Safety
/// 1. The steps are the section's.
/// 2. `refs` has the references of these steps, bound to memory that their kernels may use.
/// 3. `streams` has for each of their lanes a stream of its device that no other thread uses now.
#[inline(always)]
pub(crate) unsafe fn launch_steps<'a, const CHECKED: bool>(
    section: &Section,
    steps: &'a [Step],
    refs: *const BufferRef,
    streams: *const *mut devbay_plugin_api::abi::Stream,
    cancel: Option<&Cancel>,
) -> std::result::Result<(), Ended<'a>> {
    for step in steps {
        if CHECKED && cancel.is_some_and(Cancel::is_cancelled) {
            return Err(Ended::Cancelled);
        }
        let _told =
            if CHECKED { cancel.and_then(|cancel| cancel.tell(|| section.launching(step))) } else { None };
        // SAFETY: the step's references begin at `first_ref` of `refs` (# Safety, 2).
        let refs = unsafe { refs.add(step.first_ref as usize) };
        // SAFETY: `streams` has one for each lane (# Safety, 3).
        let stream = unsafe { *streams.add(step.lane as usize) };
        // SAFETY: function, state and number of references belong together (B21); the references are bound (# Safety,
        // 2), and no other thread uses the stream (3).
        let status = unsafe { (step.launch)(step.state, stream, refs, null()) };
        if status != DEVBAY_STATUS_OK {
            return Err(Ended::Failed(step, status));
        }
    }
    Ok(())
}

impl Patch {
    /// Returns the reference to memory as the patched launch's device knows it.
    #[inline]
    pub(crate) fn reference(&self, memory: BufferRef) -> BufferRef {
        let own = part_of(memory, self.offset, self.length);
        match self.foreign {
            false => own,
            true => BufferRef { buffer: null_mut(), offset: 0, ..own },
        }
    }
}
