//! Convolutions, and what is fused to them.

pub(super) mod causal_conv;
pub(super) mod col2im;
pub(super) mod conv;
pub(super) mod conv_integer;
pub(super) mod conv_transpose;
pub(super) mod deform_conv;
pub(super) mod depthwise;
mod depthwise_integer;
pub(super) mod nhwc;
mod phases;
