//! Removes nodes whose results are unused, and the content of unused constants.

use super::each_region;
use super::uses::{Uses, reads};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{Node, Program, Region, ValueId};
use std::collections::HashSet;

/// Removes unused nodes, in nested regions too, and gives their number. Ops have no effects but their
/// results, so a node without a used result does nothing.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn remove(program: &mut Program) -> Result<usize> {
    let mut main = std::mem::take(&mut program.main);
    let removed = sweep(&mut main, &mut HashSet::new());
    program.main = main;
    removed
}

/// Removes the nodes of one op whose results are unused, but for those that `stay`: a pass does it with what it left unread, so that
/// nothing counts as a reader.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn remove_of(program: &mut Program, op: &str, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |_, region| {
        let mut used: HashSet<ValueId> = region.outputs.iter().copied().collect();
        let n_before = region.nodes.len();
        let mut kept = Vec::with_capacity(n_before);
        for node in std::mem::take(&mut region.nodes).into_iter().rev() {
            look()?;
            let is_used = node.outputs.iter().flatten().any(|id| used.contains(id));
            if is_used || !node.op.is(op) || stay(&node) {
                reads(&node, &mut used);
                kept.push(node);
            }
        }
        kept.reverse();
        region.nodes = kept;
        Ok(n_before - region.nodes.len())
    })
}

/// Drops the content of constants that nothing reads: passes made others of them.
pub fn drop_constants(program: &mut Program) {
    let uses = Uses::of(program);
    for (i, value) in program.values.iter_mut().enumerate() {
        if uses.count(ValueId(i as u32)) == 0 {
            value.constant = None;
        }
    }
}

/// Sweeps a region backwards. `used` holds the values used after it, and receives those that it uses itself.
fn sweep(region: &mut Region, used: &mut HashSet<ValueId>) -> Result<usize> {
    used.extend(&region.outputs);
    let mut removed = 0;
    let mut kept = Vec::with_capacity(region.nodes.len());
    for mut node in std::mem::take(&mut region.nodes).into_iter().rev() {
        look()?;
        if !node.outputs.iter().flatten().any(|id| used.contains(id)) {
            removed += 1;
            continue;
        }
        for output in &mut node.outputs {
            // An optional result that is unused need not be made. Only trailing ones of kernels could be required;
            // positions stay.
            if node.regions.is_empty() && output.is_some_and(|id| !used.contains(&id)) && optional(&node.op) {
                *output = None;
            }
        }
        for (_, nested) in &mut node.regions {
            removed += sweep(nested, used)?;
        }
        used.extend(node.inputs.iter().flatten());
        kept.push(node);
    }
    kept.reverse();
    region.nodes = kept;
    Ok(removed)
}

/// Ops whose results are each optional in ONNX's specification.
fn optional(op: &crate::program::Op) -> bool {
    matches!(&*op.name, "LSTM" | "GRU" | "RNN") && op.domain.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{Node, Op};
    use crate::tensor::{F32, TensorType};

    #[test]
    fn a_chain_that_nobody_uses_goes() {
        let mut program = Program::default();
        let ids: Vec<_> = (0..4).map(|_| program.add_typed("", TensorType::new(F32, &[1]))).collect();
        let relu =
            |a: usize, b: usize| Node::new(Op::onnx("Relu", 14), vec![Some(ids[a])], vec![Some(ids[b])]);
        program.main.inputs = vec![ids[0]];
        program.main.nodes = vec![relu(0, 1), relu(0, 2), relu(2, 3)];
        program.main.outputs = vec![ids[1]];
        assert_eq!(remove(&mut program).unwrap(), 2);
        assert_eq!(program.main.nodes.len(), 1);
    }
}
