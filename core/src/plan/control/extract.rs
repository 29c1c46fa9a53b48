//! Regions as programs of their own, for units that are planned when they are taken.

use crate::program::{Node, Program, Region, Value, ValueId};
use std::collections::HashMap;

/// Returns a region as a program of its own: its inputs, then its captured values that are not constant.
pub fn extract(program: &Program, region: &Region) -> (Program, Vec<ValueId>) {
    let captures: Vec<ValueId> =
        region.captures().into_iter().filter(|&id| program.constant(id).is_none()).collect();
    let mut extracted = Extracted { program, out: Program::default(), map: HashMap::new() };
    let mut main = extracted.region(region);
    main.inputs.extend(captures.iter().map(|&id| extracted.map(id)));
    extracted.out.main = main;
    extracted.out.name = program.name.clone();
    (extracted.out, captures)
}

struct Extracted<'a> {
    program: &'a Program,
    out: Program,
    map: HashMap<ValueId, ValueId>,
}

impl Extracted<'_> {
    fn map(&mut self, id: ValueId) -> ValueId {
        let (program, out) = (self.program, &mut self.out);
        *self.map.entry(id).or_insert_with(|| {
            let Value { name, ty, constant } = program.value(id).clone();
            out.add_value(Value { name, ty, constant })
        })
    }

    fn region(&mut self, region: &Region) -> Region {
        let inputs = region.inputs.iter().map(|&id| self.map(id)).collect();
        let nodes = region
            .nodes
            .iter()
            .map(|node| {
                let mut new = Node { regions: Vec::new(), ..node.clone() };
                for id in new.inputs.iter_mut().flatten() {
                    *id = self.map(*id);
                }
                new.regions =
                    node.regions.iter().map(|(name, nested)| (name.clone(), self.region(nested))).collect();
                for id in new.outputs.iter_mut().flatten() {
                    *id = self.map(*id);
                }
                new
            })
            .collect();
        let outputs = region.outputs.iter().map(|&id| self.map(id)).collect();
        Region { inputs, nodes, outputs }
    }
}
