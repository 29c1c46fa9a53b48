//! Straight lines of launches that an asynchronous device runs with one call, because it has recorded them.
//!
//! A frame's references stay where they are from run to run, but for those to inputs and results, which are the frame's
//! own staging memory where one device has the section to itself. So the first run of a frame launches, the second one
//! records what it launches, and all others replay that. Where a reference has moved, the line is launched again.

use super::cancel::Cancel;
use super::frame::Frame;
use super::section::launch_steps;
use crate::device::Recording;
use crate::error::Result;
use crate::plan::section::{Section, StepKind};
use devbay_plugin_api::abi::BufferRef;

/// How often a frame's references may have moved until nothing is recorded any more.
const MOVES_MAX: u32 = 3;

/// Whether, and what, a frame has recorded.
pub(crate) enum Replay {
    /// Launches are launches.
    Off,
    /// Nothing yet: whether the line was launched before, and how often references have moved.
    Launched { before: bool, n_moves: u32 },
    /// A recording, the references to inputs and results that it was made with, and how often they have moved.
    Recorded { recording: Recording, bound: Box<[BufferRef]>, n_moves: u32 },
}

impl Replay {
    /// For a new frame.
    pub fn of(section: &Section) -> Self {
        let is_alone = section.lanes.len() == 1 && !section.device.about().inline;
        // Copies and control flow are not launches of the device's.
        let is_all_kernels = section.kinds.iter().all(|kind| *kind == StepKind::Kernel);
        let is_worth_it = section.is_line() && section.steps.len() > 1 && !section.is_traced();
        match is_alone && is_all_kernels && is_worth_it && section.device.replays() {
            true => Self::Launched { before: false, n_moves: 0 },
            false => Self::Off,
        }
    }

    /// Whether there is something to record or to replay.
    #[inline]
    pub fn is_on(&self) -> bool {
        !matches!(self, Self::Off)
    }
}

impl Frame {
    /// As [`Frame::launch`], with references that will not come again: nothing is recorded, and what was recorded stays.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    pub(crate) unsafe fn launch_once(&mut self, section: &Section, cancel: Option<&Cancel>) -> Result<()> {
        let replay = std::mem::replace(&mut self.replay, Replay::Off);
        // SAFETY: the caller's promise.
        let launched = unsafe { self.launch(section, cancel) };
        self.replay = replay;
        launched
    }

    /// Launches a line, records it, or replays what was recorded.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    #[inline(never)]
    pub(super) unsafe fn launch_or_replay(
        &mut self,
        section: &Section,
        cancel: Option<&Cancel>,
    ) -> Result<()> {
        Cancel::check(cancel)?;
        let n_moves = match &self.replay {
            Replay::Recorded { recording, bound, n_moves } => {
                if bound_refs(section, &self.refs).zip(bound).all(|(now, then)| same(&now, then)) {
                    // SAFETY: all that the recording names is where it was; the rest is the caller's promise.
                    return unsafe { self.streams.first.replay(recording) };
                }
                n_moves + 1
            }
            Replay::Launched { before: true, n_moves } => {
                let n_moves = *n_moves;
                // SAFETY: the caller's promise.
                return unsafe { self.record(section, cancel, n_moves) };
            }
            Replay::Launched { n_moves, .. } => *n_moves,
            Replay::Off => MOVES_MAX,
        };
        // What was recorded is at rest: the frame is.
        self.replay = match n_moves < MOVES_MAX {
            true => Replay::Launched { before: true, n_moves },
            false => Replay::Off,
        };
        // SAFETY: the caller's promise.
        unsafe { self.launch_line(section, cancel) }
    }

    /// Records the line, and enqueues it.
    ///
    /// # Safety
    /// As [`Frame::launch`].
    ///
    /// # Errors
    /// As [`Frame::launch`].
    unsafe fn record(&mut self, section: &Section, cancel: Option<&Cancel>, n_moves: u32) -> Result<()> {
        let (streams, refs) = (self.streams.handles(), self.refs.as_ptr());
        // SAFETY: the caller's promise; the frame's references are the section's.
        let launches = || unsafe { launch_steps::<false>(section, &section.steps, refs, streams, None) };
        // SAFETY: memory and kernels stay as long as the frame, which drops the recording before them.
        let recorded = unsafe { self.streams.first.record(launches) }?;
        match recorded {
            Ok(Some(recording)) => {
                let bound = bound_refs(section, &self.refs).collect();
                // SAFETY: as above, and the caller's promise.
                let replayed = unsafe { self.streams.first.replay(&recording) };
                self.replay = Replay::Recorded { recording, bound, n_moves };
                replayed
            }
            // It cannot be recorded; what a launch had to say against it is said again if it was no matter of that.
            Ok(None) | Err(_) => {
                self.replay = Replay::Off;
                // SAFETY: the caller's promise.
                unsafe { self.launch_line(section, cancel) }
            }
        }
    }
}

/// References to inputs and results.
fn bound_refs<'a>(section: &'a Section, refs: &'a [BufferRef]) -> impl Iterator<Item = BufferRef> + 'a {
    let patches = section.input_patches.iter().chain(&section.output_patches);
    patches.map(|patch| refs[patch.ref_idx as usize])
}

fn same(a: &BufferRef, b: &BufferRef) -> bool {
    let parts = |at: &BufferRef| (at.buffer, at.addr, at.offset, at.length);
    parts(a) == parts(b)
}
