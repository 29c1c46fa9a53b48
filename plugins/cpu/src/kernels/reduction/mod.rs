//! Reductions along axes, and running sums.

pub(super) mod argmax;
pub(super) mod fold;
pub(super) mod reduce;
pub(super) mod reduce_any;
pub(super) mod scan;
