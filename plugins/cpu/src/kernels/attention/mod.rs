//! Attention, and what stands around it.

pub(super) mod attend;
pub(super) mod attend_panels;
pub(super) mod linear_attention;
pub(super) mod op;
pub(super) mod rotary;
pub(super) mod scores;
