//! Normalisations, and Softmax.

pub(super) mod batch_norm_any;
pub(super) mod lp_norm;
pub(super) mod normalise;
pub(super) mod norms;
pub(super) mod norms_single;
pub(super) mod softmax;
