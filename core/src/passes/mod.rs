//! Passes over programs: one pass, one file.
//!
//! Two moments: [`optimise`] runs once per model and device, before shapes are known, and is where constants
//! change, so that all shapes share them; [`fuse_all`] runs on each specialised program, where types are known.

pub mod dead_code;
pub mod fold_batch_norm;
pub mod fuse;
pub mod fuse_elementwise;
mod uses;

use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{Node, Program};

/// What is worth doing whatever the shapes are: normalisations and biases are folded into convolutions.
///
/// # Errors
/// Out of memory.
pub fn optimise(mut program: Program) -> Result<Program> {
    fold_batch_norm::run(&mut program)?;
    dead_code::remove(&mut program);
    Ok(program)
}

/// Fuses what the kernels allow, but for nodes that `stay`; gives the number of nodes that are gone.
pub fn fuse_all(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> usize {
    fuse::run(program, kernels, stay) + fuse_elementwise::run(program, kernels, stay)
}
