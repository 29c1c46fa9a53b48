//! The engine of devbay.
//!
//! It speaks the plugin ABI's types and has one vocabulary with it, so that nothing is converted on the way
//! to a launch. It loads no library, opens no file and reads no environment; that is the host's.

pub mod about;
pub mod async_value;
pub mod calls;
pub mod cancel;
pub mod device;
pub mod error;
pub mod exec;
pub mod kernel;
mod min_cut;
pub mod passes;
pub mod plan;
pub mod program;
pub mod progress;
pub mod services;
pub mod sync;
pub mod tensor;
pub mod threads;
pub mod trace;
pub mod units;

pub use error::{Error, ErrorKind, Place, Result};
pub use tensor::{DType, Dim, Tensor, TensorType};
