//! Costs: rates of devices, kinds of work, measured times, and estimates of whole programs.

pub mod estimate;
pub mod feedback;
pub mod work;

pub use crate::device::rates::{Link, Rates, WorkRates};
