//! A recording as plain data: the events of each thread, the plans, and the marks of plugins.

use crate::kernel::Counts;
use std::sync::Arc;

/// One mark on a plugin's timeline.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// Name of the work that ran.
    pub name: String,
    /// Where it ran.
    pub track: String,
    /// The device whose stream the track is named after; empty if it is none of them.
    pub device: String,
    /// That stream's handle; 0 if it is none.
    pub stream: u64,
    /// Begin, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// End on the same clock.
    pub end_ns: u64,
}

/// Takes plugins' marks: plugin, mark.
pub type TraceSink = Arc<dyn Fn(&str, Mark) + Send + Sync>;

/// An activity of a thread for some time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// A run of a session, on the thread that it was started for.
    Run,
    /// A step of a section.
    Launch {
        /// Position in [`Recording::sections`].
        section: u32,
        /// Position of the step in the section.
        step: u32,
        /// The stream's handle, as in [`Mark::stream`].
        stream: u64,
    },
    /// A parallel loop of a kernel on a simulated queue; its chunks are inside.
    Loop,
    /// A chunk of such a loop.
    Chunk,
    /// Bytes went from the host to a device, staging included.
    CopyIn {
        /// Number of bytes.
        bytes: u64,
    },
    /// Bytes came from a device to the host, staging included.
    CopyOut {
        /// Number of bytes.
        bytes: u64,
    },
    /// Values were joined on a device.
    CopyWithin {
        /// Number of bytes.
        bytes: u64,
    },
    /// The thread waited for a stream to come to rest.
    WaitForStream,
    /// The run's thread had no task: it looked for one, slept, or ran those that it found, which are inside.
    WaitForTasks,
}

/// One thing on a thread's timeline. Events of a thread are apart or one is inside the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Event {
    /// The activity.
    pub what: What,
    /// The run that it was for, counted from 1 by recorder.
    pub run: u32,
    /// Begin, in nanoseconds of the monotonic clock.
    pub begin_ns: u64,
    /// End on the same clock.
    pub end_ns: u64,
}

/// The events of one thread, in the order in which they ended.
#[derive(Clone, Debug)]
pub struct ThreadEvents {
    /// The thread's name; a number where it has none.
    pub name: String,
    /// Its events.
    pub events: Vec<Event>,
    /// Events that found no room and were lost, the latest ones.
    pub n_dropped: u64,
}

/// The kind of a step, as seen by its thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StepKind {
    /// A kernel runs, and has ended when the step has.
    Kernel,
    /// A kernel is put on the stream of an asynchronous device; the device's marks say when it ran.
    Enqueue,
    /// A copy is put on the stream of an asynchronous device.
    Copy,
    /// A wait of one stream for another, or a signal.
    Order,
    /// Control flow as a step. It runs steps of its regions' sections, inside this one in time.
    Control,
    /// Control flow that is a stage of its own. It runs whole sections, inside this one in time.
    Stage,
}

/// A step of a section that was traced.
#[derive(Clone, Debug)]
pub struct StepInfo {
    /// The node's name in the model, and its op.
    pub label: String,
    /// The node's name as the plugin was told it; empty where the node has none.
    pub name: String,
    /// Name of the node's first result in the model; empty unless it is a launch of a section.
    pub output: String,
    /// Op and version of the kernel, or of the control flow.
    pub kernel: String,
    /// Its kind.
    pub kind: StepKind,
    /// Estimated nanoseconds; 0 without an estimate.
    pub cost_ns: f32,
    /// Its work as the kernel states it; None if the kernel does not, and for other steps.
    pub counts: Option<Counts>,
    /// Its key in measurements (`plan/cost/feedback.rs`); None unless it is a launch of a section.
    pub signature: Option<Arc<str>>,
    /// The section's task that it is of.
    pub task: u32,
    /// Position of its device among the section's.
    pub lane: u32,
    /// Steps of the same section whose results it reads.
    pub preds: Box<[u32]>,
}

impl StepInfo {
    /// Returns the op, without the kernel's version.
    pub fn op(&self) -> &str {
        self.kernel.split('@').next().unwrap_or_default()
    }
}

/// A section that was traced: of a plan, of a region in it, or a single node that is planned while it runs.
#[derive(Clone, Debug)]
pub struct SectionInfo {
    /// Names of its devices.
    pub devices: Vec<String>,
    /// True if threads may share its tasks.
    pub is_shared: bool,
    /// Its steps, in the order of their tasks.
    pub steps: Vec<StepInfo>,
}

/// The data that a recorder collected.
#[derive(Clone, Debug, Default)]
pub struct Recording {
    /// By thread, in the order in which they first did something.
    pub threads: Vec<ThreadEvents>,
    /// Sections, by number.
    pub sections: Vec<Arc<SectionInfo>>,
    /// Plugins' marks, with the plugin's name, in the order in which they came.
    pub marks: Vec<(String, Mark)>,
    /// Marks that found no room and were lost.
    pub n_marks_dropped: u64,
}

impl Recording {
    /// Events and marks that were lost.
    pub fn n_dropped(&self) -> u64 {
        self.n_marks_dropped + self.threads.iter().map(|thread| thread.n_dropped).sum::<u64>()
    }

    /// Returns the step that an event is of, if it is a launch.
    pub fn step(&self, what: What) -> Option<&StepInfo> {
        match what {
            What::Launch { section, step, .. } => {
                self.sections.get(section as usize)?.steps.get(step as usize)
            }
            _ => None,
        }
    }
}
