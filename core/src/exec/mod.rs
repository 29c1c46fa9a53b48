//! Running plans: the work queue, frames, and the loops that launch.

mod blocking;
pub mod board;
pub(crate) mod compiled;
pub mod control;
pub mod eager;
mod executor;
pub mod frame;
pub mod host_io;
pub mod jobs;
pub(crate) mod lent;
pub(crate) mod nested;
mod offers;
mod parking;
pub mod pool;
pub mod prepared;
mod processor;
pub mod queue;
mod ready;
pub(crate) mod regions;
pub(crate) mod replay;
pub mod section;
mod sleeper;
pub mod statistics;
mod task_loop;
mod tasks;
pub(crate) mod timeline;
mod traced;
pub mod unit;
pub mod value;
mod watched;

pub use crate::cancel;
