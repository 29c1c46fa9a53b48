//! Keeps the calculations of quantised models in integers.
//!
//! A quantiser writes each op of a model as f32 between conversions: DequantizeLinear of its operands, the op,
//! QuantizeLinear of its result. Three things become of them, if the device has kernels for bytes:
//!
//! - An op that only moves or chooses elements does so with bytes (`moves.rs`), and a QuantizeLinear of what was just
//!   dequantised with the same scale and zero point goes.
//! - A convolution or product becomes QLinearConv or QLinearMatMul, or a sum of integers that is scaled
//!   (`products.rs`).
//! - Weights that are dequantised all the same become constants of f32. Until here they were bytes, since specialising
//!   leaves them alone (`core/src/plan/specialise/quantised.rs`).
//!
//! Runs first of the passes with a device: the others know ops of f32.

pub(super) mod linear;
mod moves;
mod products;
#[cfg(test)]
mod tests;

use super::{Around, dead_code, each_region};
use crate::cancel::look;
use crate::error::Result;
use crate::program::fold::worth_folding;
use crate::program::{Node, Program, Region, ValueId, weights};
use crate::tensor::Tensor;
use std::collections::HashSet;

/// The pass's name: specialising asks whether it runs.
pub const NAME: &str = "lower-quantised";

/// Rewrites what the kernels allow, except nodes that stay. Returns the number of changes.
///
/// # Errors
/// Errors that a kernel reports for constants; out of memory; cancelled, or past the deadline.
pub fn run(program: &mut Program, around: &Around<'_>) -> Result<usize> {
    let mut changes = each_region(program, &mut |program, region| {
        Ok(moves::lower(program, region, around)? + products::lower(program, region, around)?)
    })?;
    if changes > 0 {
        // What is dequantised for nobody would count as a reader.
        dead_code::remove_of(program, "DequantizeLinear", around.stay)?;
    }
    changes += each_region(program, &mut |program, region| fold(program, region, around))?;
    Ok(changes)
}

/// Dequantises the constants that are left, if specialising would have and no later pass wants them, and returns their number.
fn fold(program: &mut Program, region: &mut Region, around: &Around<'_>) -> Result<usize> {
    let kept = if around.fuses_weights { weights::kept(program) } else { HashSet::new() };
    let is_kept = |node: &Node| node.output(0).is_some_and(|id| kept.contains(&id));
    let mut folded = 0;
    let mut kept = Vec::with_capacity(region.nodes.len());
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        match constants(program, &node).filter(|_| !(around.stay)(&node) && !is_kept(&node)) {
            Some(constants) if node.op.is("DequantizeLinear") => {
                let results = around.evaluate(&node, &constants).map_err(|e| e.at_node(node.label()))?;
                if let (Some([result]), Some(output)) = (results.as_deref(), node.output(0)) {
                    program.value_mut(output).constant = Some(result.clone());
                    folded += 1;
                    continue;
                }
            }
            _ => {}
        }
        kept.push(node);
    }
    region.nodes = kept;
    Ok(folded)
}

/// Returns the operands of a node, if all are constant and its result is worth keeping in their place.
fn constants(program: &Program, node: &Node) -> Option<Vec<Option<Tensor>>> {
    let constant = |id: &Option<ValueId>| match *id {
        Some(id) => program.constant(id).cloned().map(Some),
        None => Some(None),
    };
    let constants: Vec<Option<Tensor>> = node.inputs.iter().map(constant).collect::<Option<_>>()?;
    let ty = program.value(node.output(0)?).ty.clone()?;
    worth_folding(&[ty], &constants).then_some(constants)
}
