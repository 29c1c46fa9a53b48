//! Running plans: frames, and the loops that launch.

pub(crate) mod compiled;
pub mod control;
pub mod eager;
mod executor;
pub mod frame;
pub mod host_io;
pub(crate) mod lent;
pub(crate) mod nested;
mod offers;
pub mod pool;
pub mod prepared;
mod ready;
pub(crate) mod regions;
pub(crate) mod replay;
pub mod section;
pub mod statistics;
mod task_loop;
mod tasks;
pub(crate) mod timeline;
mod traced;
pub mod unit;
pub mod value;
mod watched;

pub use crate::cancel;
pub use crate::threads::{board, jobs, queue};
