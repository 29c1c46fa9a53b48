//! Ops that order elements, or choose among them.

pub(super) mod lists;
pub(super) mod suppress;
pub(super) mod top_k;
pub(super) mod unique;
