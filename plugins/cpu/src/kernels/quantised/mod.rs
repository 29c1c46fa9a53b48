//! Ops of quantised numbers.

pub(super) mod elementwise;
pub(super) mod qlinear;
pub(super) mod quantised_any;
pub(super) mod scales;
