//! Ops whose elements stand by themselves.

pub(super) mod activations;
pub(super) mod binary;
pub(super) mod bits;
pub(super) mod cast;
pub(super) mod dropout;
pub(super) mod formulas;
pub(super) mod functions;
pub(super) mod fused;
pub(super) mod gated;
pub(super) mod loops;
pub(super) mod power;
pub(super) mod select;
pub(super) mod unary;
pub(super) mod variadic;
