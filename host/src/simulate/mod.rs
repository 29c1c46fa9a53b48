//! How a model would scale on more processors than this machine has.
//!
//! A model is planned as a host of so many threads would plan it, and runs on one thread, which times every chunk of every
//! parallel loop ([`RuntimeBuilder::simulated`](crate::RuntimeBuilder::simulated)). [`Work::of`] makes the median of some runs of it (`work.rs`),
//! [`Machine`] has the costs of a number of processors (`machine.rs`), [`replay()`] lets them take tasks and chunks as the
//! executor and the board do (`replay.rs`), and [`limits()`] says what keeps each launch from being faster (`limits.rs`).
//! `docs/profiling.md` states the model and what it leaves out.

mod limits;
mod machine;
mod replay;
mod work;

pub use limits::{Limit, Limits, limits};
pub use machine::{HandOver, Machine};
pub use replay::{Replay, replay, saturation};
pub use work::{LaunchInfo, Part, Stage, StepWork, TaskWork, Work};
