//! Names that the nodes of a graph define and use, and a topological order of the nodes.
//!
//! ONNX requires that order, but not all exporters keep it. Within a graph, its own definition of a name hides that of an
//! outer graph.

use super::proto::{AttributeProto, GraphProto, NodeProto};
use super::{invalid, label};
use devbay_core::Result;
use devbay_core::cancel::look;
use std::collections::{HashMap, HashSet};

/// Definitions of a graph's names: an input or initializer, or the node at a position.
pub(super) type Definitions<'m> = HashMap<&'m str, Option<usize>>;

/// Collects the names that a graph defines, and fails on duplicates. `given` are its inputs and initializers.
pub(super) fn definitions<'m>(
    given: impl Iterator<Item = &'m str>,
    nodes: &'m [NodeProto],
) -> Result<Definitions<'m>> {
    let mut definitions = HashMap::new();
    for name in given {
        if definitions.insert(name, None).is_some() {
            return Err(invalid(format!(
                "the value {name:?} is defined twice among inputs and initializers"
            )));
        }
    }
    for (i, node) in nodes.iter().enumerate() {
        look()?;
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if definitions.insert(name, Some(i)).is_some() {
                return Err(invalid(format!("the value {name:?} is defined twice")).at_node(label(node)));
            }
        }
    }
    Ok(definitions)
}

/// Returns the nodes' positions in topological order, keeping the given order where possible.
pub(super) fn sorted(nodes: &[NodeProto], definitions: &Definitions<'_>) -> Result<Vec<usize>> {
    let dependencies: Vec<Vec<usize>> = nodes
        .iter()
        .map(|node| uses(node).iter().filter_map(|name| definitions.get(name).copied().flatten()).collect())
        .collect();
    let in_order = dependencies.iter().enumerate().all(|(i, before)| before.iter().all(|&j| j < i));
    if in_order {
        return Ok((0..nodes.len()).collect());
    }
    let mut states = vec![Visit::New; nodes.len()];
    let mut order = Vec::with_capacity(nodes.len());
    // Depth first with an explicit stack, because chains are as long as models.
    let mut open: Vec<(usize, usize)> = Vec::new();
    for start in 0..nodes.len() {
        look()?;
        if states[start] == Visit::New {
            states[start] = Visit::Open;
            open.push((start, 0));
        }
        while let Some((i, next)) = open.pop() {
            let Some(&before) = dependencies[i].get(next) else {
                states[i] = Visit::Done;
                order.push(i);
                continue;
            };
            open.push((i, next + 1));
            match states[before] {
                Visit::New => {
                    states[before] = Visit::Open;
                    open.push((before, 0));
                }
                Visit::Open => {
                    let text = "the node depends on its own result; expected a graph without cycles";
                    return Err(invalid(text).at_node(label(&nodes[before])));
                }
                Visit::Done => {}
            }
        }
    }
    Ok(order)
}

/// Progress of the walk at a node.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Visit {
    New,
    Open,
    Done,
}

/// Returns the names that a node uses: its operands, and the names that its graphs capture.
pub(super) fn uses(node: &NodeProto) -> Vec<&str> {
    let mut used: Vec<&str> = node.input.iter().map(String::as_str).filter(|name| !name.is_empty()).collect();
    for graph in graphs(node) {
        captures(graph, &mut used);
    }
    used
}

/// Returns the graphs among a node's attributes.
fn graphs(node: &NodeProto) -> impl Iterator<Item = &GraphProto> {
    node.attribute.iter().filter_map(|attribute: &AttributeProto| attribute.g.as_deref())
}

/// Adds the names that a graph uses without defining them.
fn captures<'m>(graph: &'m GraphProto, used: &mut Vec<&'m str>) {
    let inputs = graph.input.iter().map(|input| input.name());
    let initializers = graph.initializer.iter().map(|tensor| tensor.name());
    let results = graph.node.iter().flat_map(|node| &node.output).map(String::as_str);
    let defined: HashSet<&str> = inputs.chain(initializers).chain(results).collect();
    let start = used.len();
    for node in &graph.node {
        used.extend(uses(node));
    }
    used.extend(graph.output.iter().map(|output| output.name()));
    let mut kept = start;
    for i in start..used.len() {
        if !defined.contains(used[i]) {
            used[kept] = used[i];
            kept += 1;
        }
    }
    used.truncate(kept);
}
