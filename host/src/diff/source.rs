//! The imported model, its values named by their numbers.
//!
//! Passes keep the name of a value that keeps its meaning, and leave new values unnamed. So a unique name identifies the
//! model's value in a side's program, even after renumbering. The model's own names may be missing or ambiguous, and appear
//! only in reports.

use devbay_core::Tensor;
use devbay_core::program::{Node, Program, Region, ValueId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Prefix of a value's name.
const MARK: &str = "#";

/// The model, its values named by their numbers.
pub(super) struct Source {
    pub program: Program,
    names: Vec<Arc<str>>,
    /// All nodes in an executable order; those of regions come before the node that has the region.
    pub nodes: Vec<Node>,
    /// The node that makes each value.
    makers: HashMap<ValueId, usize>,
}

/// Returns the value of the model with this name.
pub(super) fn tag(name: &str) -> Option<ValueId> {
    name.strip_prefix(MARK)?.parse().ok().map(ValueId)
}

impl Source {
    pub fn of(model: &Program) -> Self {
        let mut program = model.clone();
        let names = program.values.iter().map(|value| Arc::clone(&value.name)).collect();
        for (i, value) in program.values.iter_mut().enumerate() {
            value.name = format!("{MARK}{i}").into();
        }
        let mut nodes = Vec::new();
        list(&program.main, &mut nodes);
        let mut makers = HashMap::new();
        for (at, node) in nodes.iter().enumerate() {
            makers.extend(node.outputs.iter().flatten().map(|&id| (id, at)));
        }
        Self { program, names, nodes, makers }
    }

    /// Returns a value's name in the model, or its number.
    pub fn name(&self, id: ValueId) -> String {
        match self.names.get(id.idx()) {
            Some(name) if !name.is_empty() => name.to_string(),
            _ => format!("%{}", id.0),
        }
    }

    /// Returns the names of the outputs.
    pub fn output_names(&self) -> Vec<String> {
        self.program.main.outputs.iter().map(|&id| self.name(id)).collect()
    }

    /// Returns values of a file by the model's values; names that the model lacks are skipped. A name that several values
    /// share means the output, else the first of them.
    pub fn known(&self, values: &[(String, Tensor)]) -> HashMap<ValueId, Tensor> {
        let outputs = self.program.main.outputs.iter().copied();
        let all = outputs.chain((0..self.names.len()).map(|i| ValueId(i as u32)));
        let mut by_name: HashMap<&str, ValueId> = HashMap::new();
        for id in all.filter(|id| self.program.constant(*id).is_none()) {
            by_name.entry(&self.names[id.idx()]).or_insert(id);
        }
        let known = values.iter().filter_map(|(name, tensor)| {
            Some((*by_name.get(name.as_str()).filter(|_| !name.is_empty())?, tensor.clone()))
        });
        known.collect()
    }

    /// Returns a value's position in the model's order: after its node; inputs come first.
    pub fn order(&self, id: ValueId) -> usize {
        self.makers.get(&id).map_or(0, |at| at + 1)
    }

    /// Returns the node that makes a value.
    pub fn maker(&self, id: ValueId) -> Option<usize> {
        self.makers.get(&id).copied()
    }

    /// Returns a node's name for reports.
    pub fn label(&self, at: usize) -> String {
        let node = &self.nodes[at];
        match (node.name.is_empty(), node.outputs.iter().flatten().next()) {
            (true, Some(&id)) => format!("making {} ({})", self.name(id), node.op),
            _ => node.label(),
        }
    }

    /// Follows an If's result to its inlined branch's value. The branch was inlined if that value is a stop.
    pub fn through(&self, id: ValueId, stops: &HashSet<ValueId>) -> ValueId {
        let mut id = id;
        while !stops.contains(&id)
            && let Some(node) = self.maker(id).map(|at| &self.nodes[at]).filter(|node| node.op.is("If"))
        {
            let at = node.outputs.iter().position(|output| *output == Some(id));
            let inner = |region: &Region| at.and_then(|at| region.outputs.get(at).copied());
            let is_known =
                |inner: &ValueId| stops.contains(inner) || stops.contains(&self.through(*inner, stops));
            match node.regions.iter().filter_map(|(_, region)| inner(region)).find(is_known) {
                Some(inner) => id = inner,
                None => break,
            }
        }
        id
    }

    /// Finds the nodes between a value and the preceding stops, in order, and the stops and inputs that they start from.
    pub fn group(&self, target: ValueId, stops: &HashSet<ValueId>) -> (Vec<usize>, Vec<ValueId>) {
        let mut nodes = HashSet::new();
        let mut begins = Vec::new();
        let mut seen = HashSet::from([target]);
        let mut open = vec![target];
        while let Some(id) = open.pop() {
            let Some(at) = self.maker(id).filter(|_| id == target || !stops.contains(&id)) else {
                if self.program.constant(id).is_none() {
                    begins.push(id);
                }
                continue;
            };
            if nodes.insert(at) {
                let made: HashSet<ValueId> =
                    self.nodes[at].regions.iter().flat_map(|(_, region)| inside(region)).collect();
                let captured = self.nodes[at].regions.iter().flat_map(|(_, region)| region.captures());
                for id in self.nodes[at].inputs.iter().flatten().copied().chain(captured) {
                    let id = self.through(id, stops);
                    if !made.contains(&id) && seen.insert(id) {
                        open.push(id);
                    }
                }
            }
        }
        let mut nodes: Vec<usize> = nodes.into_iter().collect();
        // Nodes inside regions belong to the group's control-flow nodes.
        nodes.sort_unstable();
        begins.sort_unstable();
        (nodes, begins)
    }
}

/// Lists the values that a region takes and computes.
fn inside(region: &Region) -> Vec<ValueId> {
    let mut all = region.inputs.clone();
    for node in &region.nodes {
        all.extend(node.outputs.iter().flatten());
        node.regions.iter().for_each(|(_, nested)| all.extend(inside(nested)));
    }
    all
}

fn list(region: &Region, nodes: &mut Vec<Node>) {
    for node in &region.nodes {
        node.regions.iter().for_each(|(_, nested)| list(nested, nodes));
        nodes.push(node.clone());
    }
}
