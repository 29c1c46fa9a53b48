//! The PJRT C API from Rust: our own bindings, and safe owners around them.
//!
//! - [`library`]: a PJRT library, opened once and never closed; its version and attributes;
//! - [`client`]: a client, its devices and what is known of them;
//! - [`buffer`]: arrays on a device, and the way there and back;
//! - [`executable`]: StableHLO compiled, run, stored and loaded again;
//! - [`event`]: what is done later, by waiting or by a callback;
//! - [`hlo`]: graphs of ONNX ops as StableHLO text;
//! - [`element`]: PJRT's element types;
//! - [`error`]: the library's own words, and the number that the devbay ABI has for them;
//! - [`find`], [`installed`]: which libraries there are;
//! - [`probe`], [`verdicts`], [`machine`]: trying a library in a child process before it is opened here;
//! - [`topology`]: programs for devices that are not there;
//! - [`plugin`], [`device`], [`stream`], [`program`], [`stored`]: all of it as a devbay plugin.
//!
//! No crate with these bindings was usable, and about fifty functions suffice. The structs are
//! those of OpenXLA's `xla/pjrt/c/pjrt_c_api.h` at API 0.81 with what its change log has up to 0.105, and were compared
//! with the sizes that libraries of 0.81, 0.106 and 0.115 expect.
//!
//! # Threads
//!
//! The header says nothing of threads. JAX, for which these libraries are made, calls them from many threads at once,
//! with the same client, executables, buffers and events, and XLA's classes lock for that. `Send` and `Sync` of the types
//! here rely on it.

pub(crate) mod api;
pub mod buffer;
pub mod client;
pub mod device;
pub mod element;
pub mod error;
pub mod event;
pub mod executable;
pub mod find;
pub mod hlo;
pub mod installed;
pub mod library;
pub mod machine;
pub mod plugin;
pub mod probe;
pub mod program;
pub mod stored;
pub mod stream;
pub mod topology;
pub mod verdicts;

pub use plugin::PLUGIN;
