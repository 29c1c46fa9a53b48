//! Looks for patterns of nodes in a region.

use super::uses::Uses;
use crate::kernel::KernelTable;
use crate::program::{Node, Program, Region, ValueId, catalogue};
use crate::tensor::TensorType;
use std::collections::{BTreeSet, HashMap};

/// A region, with the makers and readers of its values.
pub struct Search<'a> {
    /// The program.
    pub program: &'a Program,
    /// The region's nodes.
    pub nodes: &'a [Node],
    /// Number of times that each value is used in the region.
    pub uses: Uses,
    /// By value, the node that makes it; none that stays.
    makers: HashMap<ValueId, usize>,
    /// By value, the last node of the region that reads it; none that stays.
    pub users: HashMap<ValueId, usize>,
}

impl<'a> Search<'a> {
    /// Of a region, but for nodes that `stay`.
    pub fn of(program: &'a Program, region: &'a Region, stay: &dyn Fn(&Node) -> bool) -> Self {
        let (mut makers, mut users) = (HashMap::new(), HashMap::new());
        for (at, node) in region.nodes.iter().enumerate().filter(|(_, node)| !stay(node)) {
            makers.extend(node.outputs.iter().flatten().map(|id| (*id, at)));
            users.extend(node.inputs.iter().flatten().map(|id| (*id, at)));
        }
        Self { program, nodes: &region.nodes, uses: Uses::of_region(program, region), makers, users }
    }

    /// Returns the type of a value.
    pub fn ty(&self, id: ValueId) -> Option<&TensorType> {
        self.program.value(id).ty.as_ref()
    }

    /// Returns the extents of a value, if all are known.
    pub fn shape(&self, id: ValueId) -> Option<Vec<usize>> {
        self.ty(id)?.known_shape()
    }

    /// Returns the node that makes a value, if it is of this op and has one result.
    pub fn made_by(&self, id: ValueId, op: &str) -> Option<(usize, &'a Node)> {
        let at = *self.makers.get(&id)?;
        let node = &self.nodes[at];
        (node.op.is(op) && node.outputs.len() == 1).then_some((at, node))
    }

    /// Returns the node that makes a value.
    pub fn maker(&self, id: ValueId) -> Option<&'a Node> {
        self.makers.get(&id).map(|&at| &self.nodes[at])
    }

    /// Of a node's two operands, the one that `is` and the other one, whichever comes first.
    pub fn either<T>(&self, node: &Node, is: impl Fn(ValueId) -> Option<T>) -> Option<(T, ValueId)> {
        let (a, b) = (node.input(0)?, node.input(1)?);
        is(a).map(|found| (found, b)).or_else(|| is(b).map(|found| (found, a)))
    }

    /// Returns whether only the members use their results, except the result of the last one.
    pub fn is_closed(&self, members: &BTreeSet<usize>, last: usize) -> bool {
        let inside = |id: ValueId| {
            let reads = members.iter().flat_map(|&at| self.nodes[at].inputs.iter().flatten());
            reads.filter(|read| **read == id).count()
        };
        let between = members.iter().filter(|&&at| at != last);
        let mut values = between.flat_map(|&at| self.nodes[at].outputs.iter().flatten());
        values.all(|id| self.uses.count(*id) as usize == inside(*id))
    }
}

/// Returns whether a kernel of the device takes an ONNX op of the catalogue's version with operands and a result of
/// these types.
pub fn has_kernel(
    kernels: &KernelTable,
    op: &str,
    inputs: &[Option<&TensorType>],
    output: &TensorType,
) -> bool {
    let Some(def) = catalogue::find("", op) else { return false };
    kernels.find("", op).any(|kernel| {
        catalogue::accepts(def, kernel.since_version) && kernel.takes(inputs, &[Some(output)]).is_ok()
    })
}
