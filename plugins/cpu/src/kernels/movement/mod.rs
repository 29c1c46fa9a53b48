//! Ops that move elements: in another order, by indices, into a margin.

pub(super) mod center;
pub(super) mod compress;
pub(super) mod eye_like;
pub(super) mod fill;
pub(super) mod index;
pub(super) mod join;
pub(super) mod pad;
pub(super) mod random;
pub(super) mod scatter;
pub(super) mod tensor_scatter;
pub(super) mod views;
