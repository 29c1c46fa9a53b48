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
use crate::program::{Node, Program, ValueId};

/// What is worth doing whatever the shapes are: normalisations and biases are folded into convolutions.
///
/// # Errors
/// Out of memory.
pub fn optimise(mut program: Program) -> Result<Program> {
    fold_batch_norm::run(&mut program)?;
    dead_code::remove(&mut program);
    Ok(program)
}

/// The number of a constant of one f32.
fn scalar(program: &Program, id: ValueId) -> Option<f32> {
    match program.constant(id)?.elements::<f32>()? {
        [value] => Some(*value),
        _ => None,
    }
}

/// The limits of a Clip on f32, infinite where there is none; None if they come with a run.
fn clip_limits(program: &Program, node: &Node) -> Option<[f32; 2]> {
    let limit = |i: usize, absent: f32| node.input(i).map_or(Some(absent), |id| scalar(program, id));
    Some([limit(1, f32::NEG_INFINITY)?, limit(2, f32::INFINITY)?])
}
