//! Passes over programs: one pass, one file.
//!
//! Two moments: [`optimise`] runs once per model and device, before shapes are known, and is where constants
//! change, so that all shapes share them; [`fuse::run`] and [`fuse_elementwise::run`] run on each specialised program, where types are known.

pub mod dead_code;
pub mod fold_batch_norm;
pub mod fuse;
pub mod fuse_elementwise;
mod uses;

use crate::error::Result;
use crate::program::Program;

/// What is worth doing whatever the shapes are: normalisations and biases are folded into convolutions.
///
/// # Errors
/// Out of memory.
pub fn optimise(mut program: Program) -> Result<Program> {
    fold_batch_norm::run(&mut program)?;
    dead_code::remove(&mut program);
    Ok(program)
}
