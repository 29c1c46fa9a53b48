//! The face of devbay: it finds plugins and models and introduces them to each other.
//!
//! Candidates are discovered, libraries loaded, versions negotiated and devices chosen. A model file becomes a program, and a
//! [`session::Session`] runs it on a device.
//!
//! ```no_run
//! use devbay_host::core::{Result, Tensor};
//! use devbay_host::devices::{Policy, Requirements};
//! use devbay_host::model::Model;
//! use devbay_host::runtime::{Runtime, RuntimeOptions};
//! use devbay_host::session::{RunOptions, Session};
//!
//! # fn main() -> Result<()> {
//! let runtime = Runtime::new(RuntimeOptions { plugins: vec!["libdevbay_plugin_cpu.so".into()], ..Default::default() })?;
//! let model = Model::load("model.onnx".as_ref())?;
//! let requirements = Requirements { program: Some(model.program()), ..Default::default() };
//! let device = runtime.choose(&Policy::Auto, &requirements)?.device;
//! let session = Session::new(&model, &device)?;
//! let image = Tensor::from_elements(&[1, 3, 2, 2], &[0.0f32; 12])?;
//! let outputs = session.run(&[("image", &image)], &RunOptions::default())?;
//! # Ok(()) }
//! ```

pub mod abi_report;
#[cfg(feature = "arrays")]
pub mod arrays;
pub mod auto;
pub mod buckets;
pub mod calibrate;
pub mod compare;
pub mod compiled;
pub mod dbx;
mod deadline;
pub mod device_tensor;
pub mod devices;
pub mod diff;
pub mod discover;
pub mod eager;
pub mod failover;
pub mod feedback_file;
pub mod file;
pub mod group;
pub mod import;
pub mod layers;
pub mod load;
pub mod manifest;
pub mod model;
pub mod negotiate;
pub mod probe;
mod probes;
#[doc(hidden)]
pub mod random;
pub mod rates_file;
pub mod report;
pub mod run;
pub mod runtime;
pub mod session;
pub mod trace;

/// The engine, for who needs more than a session.
pub use devbay_core as core;
