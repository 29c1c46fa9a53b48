//! A trace of runs: events of the host's threads, and the marks of plugins, on one clock.
//!
//! A plan is traced if its options say so when it is made (`PlanOptions::trace`): then each step calls a function of
//! ours, which notes the time before and after it calls the kernel's (`exec/traced.rs`). A plan without tracing has the
//! kernels' own functions. The launch loop is the same for both, so an untraced plan costs nothing extra. Operations
//! that block or copy anyway ask whether their thread is in a traced run (`running.rs`). A [`Recorder`] keeps the
//! events; a [`Recording`] has them as plain data.
//!
//! Derived data is absent on purpose, such as tasks, arrows along data, and sums: the reader computes it.

mod clock;
mod events;
mod recorder;
mod running;

pub use clock::clock_ns;
pub use events::{Event, Mark, Recording, SectionInfo, StepInfo, StepKind, ThreadEvents, TraceSink, What};
pub use recorder::{EVENTS_MAX, Recorder};

pub(crate) use clock::now_ns;
pub(crate) use running::{Laps, begin, begin_laps, begin_lone, run_number};
