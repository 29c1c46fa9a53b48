//! Threads and their queue, which has parallel loops, tasks and jobs.
//!
//! They know neither plans nor devices: they run functions.

mod blocking;
pub mod board;
pub mod jobs;
mod parking;
mod processor;
pub mod queue;
pub(crate) mod sleeper;
