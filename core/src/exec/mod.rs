//! x
pub mod board;
pub mod queue;
