//! Elements of every type as numbers, and elementary functions of them.

pub(super) mod convert;
pub(super) mod math;
pub(super) mod math_double;
pub(super) mod number;
pub(super) mod order;
pub(super) mod real;
pub(super) mod small_float;
pub(super) mod vectors;
pub(super) mod widen;
