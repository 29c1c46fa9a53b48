//! The threads that work is done on: one queue for parallel loops, tasks and jobs, whoever brings them.
//!
//! It knows neither plans nor devices: what it runs is functions.

mod blocking;
pub mod board;
pub mod jobs;
mod parking;
mod processor;
pub mod queue;
pub(crate) mod sleeper;
