//! Progress of reading a model, making a session and compiling, for bars.
//!
//! ```
//! use devbay_host::progress::{self, Progress};
//! use devbay_host::{Model, Runtime, Session};
//!
//! # fn main() -> devbay_host::Result<()> {
//! # let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
//! let show = |Progress { phase, done, total }| eprintln!("{} {done}/{total}", phase.name());
//! let session = progress::watch(show, || {
//!     let model = Model::load("../models/mnist_cnn/model.onnx")?;
//!     Session::new(&model, &runtime.device_for(&model)?)
//! })?;
//! # Ok(()) }
//! ```
//!
//! The same covers a first run on new shapes, and [`Session::compile_to`](crate::Session::compile_to). To end the work early, do it
//! under a flag, with [`Cancel::over`](crate::Cancel::over), and set the flag in the watcher.

pub use devbay_core::progress::{Phase, Progress, watch};
