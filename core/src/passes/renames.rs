//! Renamed values: a pass that removes a node replaces its results by other values.

use crate::program::{Region, ValueId};
use std::collections::HashMap;

/// For values that went, those that stand for them.
#[derive(Default)]
pub struct Renames {
    now: HashMap<ValueId, ValueId>,
}

impl Renames {
    /// Replaces `old` by `new` from now on.
    pub fn add(&mut self, old: ValueId, new: ValueId) {
        let new = self.of(new);
        self.now.insert(old, new);
    }

    /// Returns the value that now stands for a value.
    pub fn of(&self, id: ValueId) -> ValueId {
        self.now.get(&id).copied().unwrap_or(id)
    }

    /// Puts the new values in place of the old ones in a list of operands.
    pub fn operands(&self, inputs: &mut [Option<ValueId>]) {
        inputs.iter_mut().flatten().for_each(|id| *id = self.of(*id));
    }

    /// The same in a region, those inside it included.
    pub fn region(&self, region: &mut Region) {
        if self.now.is_empty() {
            return;
        }
        for node in &mut region.nodes {
            self.operands(&mut node.inputs);
            node.regions.iter_mut().for_each(|(_, nested)| self.region(nested));
        }
        region.outputs.iter_mut().for_each(|id| *id = self.of(*id));
    }
}
