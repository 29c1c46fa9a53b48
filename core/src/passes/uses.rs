//! Uses of a value: a pass must know them before it moves one.

use crate::program::{Node, Program, Region, ValueId};
use std::collections::HashSet;

/// Number of uses of each value, as an operand or as a result, nested regions included.
pub struct Uses {
    counts: Vec<u32>,
}

impl Uses {
    /// Counts the uses of a program's values.
    pub fn of(program: &Program) -> Self {
        Self::of_region(program, &program.main)
    }

    /// Counts the uses of values within one region of a program.
    pub fn of_region(program: &Program, region: &Region) -> Self {
        let mut uses = Self { counts: vec![0; program.values.len()] };
        uses.region(region);
        uses
    }

    fn region(&mut self, region: &Region) {
        for node in &region.nodes {
            for id in node.inputs.iter().flatten() {
                self.counts[id.idx()] += 1;
            }
            for (_, nested) in &node.regions {
                self.region(nested);
            }
        }
        for id in &region.outputs {
            self.counts[id.idx()] += 1;
        }
    }

    /// Returns the number of uses of a value.
    pub fn count(&self, id: ValueId) -> u32 {
        // Values that a pass adds are used where it puts them.
        self.counts.get(id.idx()).copied().unwrap_or(1)
    }
}

/// Adds the values that a node and its nested regions read.
pub fn reads(node: &Node, all: &mut HashSet<ValueId>) {
    all.extend(node.inputs.iter().flatten());
    for (_, nested) in &node.regions {
        all.extend(&nested.outputs);
        nested.nodes.iter().for_each(|node| reads(node, all));
    }
}
