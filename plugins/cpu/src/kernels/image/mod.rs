//! Images that are sampled elsewhere.

pub(super) mod affine_grid;
pub(super) mod grid_sample;
pub(super) mod resize;
