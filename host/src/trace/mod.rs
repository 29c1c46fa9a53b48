//! Timelines: when each part of a run happened, to find where the time goes.
//!
//! A [`Recorder`] is given to a session, whose plans are then traced, and to the runtime, for the marks of plugins whose
//! devices work asynchronously. A [`Timeline`] presents its recording (`slices.rs`, `marks.rs`): tasks, launches, copies and
//! waits by thread, marks by stream, arrows along data. [`write_chrome`] writes it for Perfetto and chrome://tracing, and
//! [`Summary`] adds it up. `docs/profiling.md` explains the tracks.
//!
//! ```
//! use devbay_host::trace::{Recorder, Summary, Timeline, write_chrome};
//! use devbay_host::{Model, PlanOptions, Runtime, Session, Tensor};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let recorder = Recorder::default();
//! let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).trace(recorder.sink()).build()?;
//! let model = Model::load("../models/mnist_cnn/model.onnx")?;
//! let plans = PlanOptions { trace: Some(recorder.clone()), ..Default::default() };
//! let session = Session::with_options(&model, &runtime.devices()[0], plans)?;
//! let image = Tensor::from_elements(&[1, 1, 28, 28], &[0.5f32; 28 * 28])?;
//! session.run(&[("input", &image)])?;
//!
//! let recording = recorder.take();
//! let timeline = Timeline::of(&recording);
//! // A file for ui.perfetto.dev; `write_file` writes it atomically.
//! let mut json = Vec::new();
//! write_chrome(&mut json, &timeline)?;
//! for op in Summary::of(&timeline).ops.iter().take(10) {
//!     println!("{} {} ns", op.op, op.total_ns);
//! }
//! # Ok(()) }
//! ```

mod chrome;
mod costs;
mod marks;
mod slices;
mod summary;

pub use chrome::{write_chrome, write_file};
pub use costs::{Costs, Fit, LaunchTime};
pub use devbay_core::trace::{Recorder, Recording, clock_ns};
pub use summary::{OpTime, Summary};

use devbay_core::trace::{StepInfo, StepKind, What};
use std::collections::HashMap;

/// A recording as tracks of slices.
pub struct Timeline<'a> {
    /// The recording that it presents.
    pub recording: &'a Recording,
    /// Threads of the host, then streams and engines of devices.
    pub tracks: Vec<Track>,
    /// Arrows from slice to slice.
    pub flows: Vec<Flow>,
}

/// A line of the timeline: slices that are disjoint or nested.
pub struct Track {
    /// The track's device, or else its plugin; None for a thread of the host.
    pub device: Option<String>,
    /// The thread's or the stream's name.
    pub name: String,
    /// Slices in order of their begin, outer ones first.
    pub slices: Vec<Slice>,
}

/// A span of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slice {
    /// Its kind.
    pub kind: SliceKind,
    /// The run that it belongs to; 0 if unknown.
    pub run: u32,
    /// Begin, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// End on the same clock.
    pub end_ns: u64,
}

/// Kind of a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SliceKind {
    /// A run, on the run's own thread.
    Run,
    /// Uninterrupted work of another thread for a run.
    Part,
    /// A task of a section, or a contiguous part of one.
    Task {
        /// The section.
        section: u32,
        /// Its task.
        task: u32,
    },
    /// A step: a kernel that ran, an enqueued launch, or control flow; with the stream's handle.
    Launch(StepAt, u64),
    /// A copy, or a wait.
    Other(What),
    /// A plugin's mark, by position in the recording; the step whose launch it is, if known.
    Mark(usize, Option<StepAt>),
}

/// A step of a recording.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StepAt {
    /// Position of the section.
    pub section: u32,
    /// Position of the step in it.
    pub step: u32,
}

/// An arrow from a producer to a consumer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flow {
    /// The producer.
    pub from: SliceAt,
    /// The consumer.
    pub to: SliceAt,
    /// Its kind.
    pub kind: FlowKind,
}

/// Reason for an arrow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FlowKind {
    /// The consumer reads data that the producer wrote.
    Data,
    /// The consumer is the launch that the producer enqueued on a stream.
    Enqueue,
}

/// A slice of a timeline, by position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SliceAt {
    /// Position of the track.
    pub track: usize,
    /// Position of the slice in it.
    pub slice: usize,
}

impl<'a> Timeline<'a> {
    /// Builds the timeline of a recording.
    pub fn of(recording: &'a Recording) -> Self {
        let mut tracks: Vec<Track> = recording
            .threads
            .iter()
            .map(|thread| Track {
                device: None,
                name: thread.name.clone(),
                slices: slices::of_thread(thread, recording),
            })
            .collect();
        let flows = marks::add(&mut tracks, recording);
        let mut timeline = Self { recording, tracks, flows };
        timeline.add_data_flows();
        timeline
    }

    /// Returns a slice.
    pub fn slice(&self, at: SliceAt) -> Slice {
        self.tracks[at.track].slices[at.slice]
    }

    /// Returns a step.
    pub fn step(&self, at: StepAt) -> Option<&'a StepInfo> {
        self.recording.sections.get(at.section as usize)?.steps.get(at.step as usize)
    }

    /// Returns the step that ran in a slice; None for one that was only enqueued.
    pub fn executed(&self, slice: &Slice) -> Option<(StepAt, &'a StepInfo)> {
        match slice.kind {
            SliceKind::Launch(at, _) => {
                let later = |kind| matches!(kind, StepKind::Enqueue | StepKind::Copy | StepKind::Order);
                self.step(at).map(|step| (at, step)).filter(|(_, step)| !later(step.kind))
            }
            SliceKind::Mark(_, Some(at)) => self.step(at).map(|step| (at, step)),
            _ => None,
        }
    }

    /// Adds arrows from each step to the readers of its results, in each run.
    fn add_data_flows(&mut self) {
        let mut ran: Vec<(SliceAt, StepAt, &StepInfo)> = Vec::new();
        for (track, of) in self.tracks.iter().enumerate() {
            for (slice, of) in of.slices.iter().enumerate() {
                ran.extend(self.executed(of).map(|(at, step)| (SliceAt { track, slice }, at, step)));
            }
        }
        ran.sort_by_key(|(at, ..)| self.slice(*at).begin_ns);
        // In a loop a step runs repeatedly; its operands come from the latest preceding runs of their steps.
        let mut latest: HashMap<(u32, StepAt), SliceAt> = HashMap::new();
        for (to, at, step) in ran {
            let run = self.slice(to).run;
            for &pred in &*step.preds {
                let Some(&from) = latest.get(&(run, StepAt { step: pred, ..at })) else {
                    continue;
                };
                if self.slice(from).end_ns <= self.slice(to).begin_ns {
                    self.flows.push(Flow { from, to, kind: FlowKind::Data });
                }
            }
            latest.insert((run, at), to);
        }
    }
}
