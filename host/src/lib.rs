//! devbay runs models on whatever accelerator is plugged in.
//!
//! A [`Runtime`] loads plugins, each of which offers [`Device`]s. A [`Model`] is read from a file. A [`Session`] is a model on a
//! device; it takes [`Tensor`]s and returns [`Tensor`]s, from any number of threads at once.
//!
//! ```
//! use devbay_host::{Model, Runtime, Session, Tensor};
//!
//! # fn main() -> devbay_host::Result<()> {
//! // The processor's plugin is part of this program; `.plugin(PATH)` loads one from a file.
//! let runtime = Runtime::builder().link(devbay_plugin_cpu::PLUGIN).build()?;
//! let model = Model::load("../models/mnist_cnn/model.onnx")?;
//! let device = runtime.device_for(&model)?;
//! let session = Session::new(&model, &device)?;
//!
//! let image = Tensor::from_elements(&[1, 1, 28, 28], &[0.5f32; 28 * 28])?;
//! let outputs = session.run(&[("input", &image)])?;
//! assert_eq!(outputs[0].shape(), [1, 10]);
//! # Ok(()) }
//! ```
//!
//! # Linking the processor's plugin
//!
//! `devbay-plugin-cpu = { version = "0.1", default-features = false }` in the manifest and
//! `.link(devbay_plugin_cpu::PLUGIN)`, as above, make it part of the program, so that no file has to be found at run time.
//! The same works for every plugin in Rust. Without its default feature `entry`, a plugin exports no symbol, so that several
//! fit into one program.
//!
//! # Overview
//!
//! | to | use |
//! | --- | --- |
//! | load plugins, list devices | [`Runtime::builder`], [`Runtime::devices`], [`Runtime::report`] |
//! | choose a device | [`Runtime::device_for`], or [`Runtime::choose`] with a [`Policy`] and [`Requirements`] |
//! | read a model | [`Model::load`], [`Model::from_bytes`]; [`Model::info`] for its origin |
//! | run it | [`Session::run`]; [`Session::run_async`] in the background; [`Session::run_into`] without allocating |
//! | stop a run | [`RunOptions`]: a deadline, a [`Cancel`] |
//! | use several devices | [`SessionOptions`]: other devices, pinned nodes, failover |
//! | keep results on the device | [`Session::run_on_device`], [`DeviceTensor`] |
//! | start at once next time | [`Session::compile_to`] |
//! | see where time goes | [`trace`] |
//! | show the progress of a long load | [`progress`] |
//! | read and write `.npy` and `.npz` | [`arrays`](https://docs.rs/devbay-host), feature `arrays` |
//!
//! Everything that fails returns an [`Error`], with an [`ErrorKind`] to match on and the place: plugin, device and node.

#[cfg(feature = "arrays")]
pub mod arrays;
pub mod internals;
pub mod progress;
pub mod trace;

mod abi_report;
mod auto;
mod buckets;
mod calibrate;
mod compare;
mod compiled;
mod dbx;
mod deadline;
mod device_tensor;
mod devices;
mod diff;
mod discover;
mod eager;
mod failover;
mod feedback_file;
mod file;
mod forks;
mod group;
mod import;
mod layers;
mod load;
mod manifest;
mod model;
mod negotiate;
mod options;
mod packages;
mod plan_json;
mod probe;
mod probes;
mod random;
mod rates_file;
mod report;
mod run;
mod runtime;
mod seed;
mod session;
mod simulate;
mod support;
mod values;

pub use buckets::{BucketOptions, Sizes};
pub use dbx::Checks;
pub use devbay_core::about::{Refusal, RefusalKind};
pub use devbay_core::device::Device;
pub use devbay_core::exec::cancel::Cancel;
pub use devbay_core::exec::host_io::InputView;
pub use devbay_core::exec::jobs::Priority;
pub use devbay_core::plan::{PlaceBy, PlanOptions};
pub use devbay_core::{DType, Dim, Error, ErrorKind, Result, Tensor, TensorType};
pub use device_tensor::{AppStream, DeviceTensor};
pub use devices::{Choice, Policy, Requirements};
pub use discover::SearchPaths;
pub use failover::Failure;
pub use import::{ModelFormat, ModelInfo, Reading};
pub use model::{LoadOptions, Model};
pub use packages::PythonPackage;
pub use probe::{ProbeOptions, Probing};
pub use report::{DeviceMemory, DeviceVerdict, LoadReport, Outcome, PluginReport};
pub use run::{OnFull, Run};
pub use runtime::{Rescan, Runtime, RuntimeBuilder};
pub use session::{Port, RunOptions, Session, SessionOptions};
pub use values::{Element, Map, Optional, Sequence, Strings, Value, ValueType};

/// The README's example, compiled with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
