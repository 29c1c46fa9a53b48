//! Running plans: the work queue, frames, and the loops that launch.

pub mod board;
pub mod cancel;
pub mod control;
pub mod eager;
pub mod frame;
pub mod host_io;
pub(crate) mod nested;
mod offers;
pub mod pool;
mod processor;
pub mod queue;
pub mod section;
mod tasks;
pub mod unit;
pub mod value;
