//! The choice of a device and a kernel for each node.
//!
//! | file | question |
//! | --- | --- |
//! | `choose.rs` | what runs each node: a view, a kernel, a step or a stage |
//! | `kernel.rs` | which kernel of a device takes a node |
//! | `kernel_cache.rs`, `alike.rs` | whether one was prepared for the same before |
//! | `by_cost.rs` | which devices, where launches and copies together are to take least |
//! | `assign.rs` | which place each part gets then: a minimum cut |
//! | `support.rs` | what runs each node, and the answer of every device, before anything is planned |
//! | `indices.rs` | whether constant indices name what is there |

pub(super) mod alike;
mod assign;
pub mod by_cost;
pub(super) mod choose;
pub(super) mod indices;
pub mod kernel;
pub mod kernel_cache;
pub mod support;

pub use kernel::{Chosen, NodeTypes, implements};
