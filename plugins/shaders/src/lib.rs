//! ONNX's ops as WGSL, for every plugin whose device runs WGSL or what is made from it.
//!
//! A kernel is written once: its descriptor, what it is prepared from, and its text. What compiles and launches it is the
//! plugin's ([`target::Backend`]), which has all of them by one line,
//! [`Kernel::shared_all`](devbay_plugin_api::sdk::Kernel::shared_all).
//!
//! - [`target`]: the target of kernels: a device's abilities, and its compiler;
//! - [`step`]: what a kernel describes: dispatches, their parameters, and what they are bound to;
//! - [`check`]: what a kernel's data has to be, and how a launch says that it is not;
//! - `template`: how the files in `src/wgsl/` become their text;
//! - [`formulas`]: the elementwise ops as expressions;
//! - [`kernels`]: the ops.

pub mod check;
pub mod formulas;
pub mod kernels;
pub mod step;
pub mod target;
mod template;
