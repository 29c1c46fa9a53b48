//! Pools: windows of which one number is left.

pub(super) mod max_roi_pool;
pub(super) mod max_unpool;
pub(super) mod nhwc_pool;
pub(super) mod pool;
pub(super) mod pool_any;
pub(super) mod pool_norms;
pub(super) mod roi_align;
