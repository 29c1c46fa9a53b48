//! What things take: rates of devices, kinds of work, measured times, and whole programs on each device.

pub mod estimate;
pub mod feedback;
pub mod work;

pub use crate::device::rates::{Link, Rates, WorkRates};
