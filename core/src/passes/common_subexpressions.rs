//! Makes one node of those that calculate the same from the same operands.
//!
//! Nodes are the same whose op, attributes and operands are; constants of few elements are compared by their content. Ops
//! whose results are not given by their operands, and nodes with regions, are left alone.

use super::each_region;
use super::renames::Renames;
use crate::cancel::look;
use crate::error::Result;
use crate::program::same::{hash_attrs, hash_content, same_attrs, same_content};
use crate::program::{Node, Program, Region, ValueId, catalogue};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Removes repeated calculations, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| share(program, region, stay))
}

fn share(program: &Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut renames = Renames::default();
    // By hash, the places of nodes that are kept.
    let mut known: HashMap<u64, Vec<usize>> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    let mut gone = 0;
    for mut node in std::mem::take(&mut region.nodes) {
        look()?;
        renames.operands(&mut node.inputs);
        node.regions.iter_mut().for_each(|(_, nested)| renames.region(nested));
        if stay(&node) || !is_given_by_operands(&node) {
            kept.push(node);
            continue;
        }
        let alike = known.entry(hash(program, &node)).or_default();
        match alike.iter().find(|&&first| is_same(program, &kept[first], &node)) {
            Some(&first) => {
                for (i, output) in node.outputs.iter().enumerate() {
                    match (kept[first].outputs[i], *output) {
                        (Some(first), Some(second)) => renames.add(second, first),
                        // It was not used until now.
                        (None, Some(second)) => kept[first].outputs[i] = Some(second),
                        (_, None) => {}
                    }
                }
                gone += 1;
            }
            None => {
                alike.push(kept.len());
                kept.push(node);
            }
        }
    }
    region.nodes = kept;
    region.outputs.iter_mut().for_each(|id| *id = renames.of(*id));
    Ok(gone)
}

/// Returns whether a node's op, attributes and operands determine its results.
fn is_given_by_operands(node: &Node) -> bool {
    let is_pure = catalogue::find(&node.op.domain, &node.op.name).is_some_and(|def| def.is_pure());
    is_pure && node.regions.is_empty()
}

/// Returns a hash of a node's calculation.
fn hash(program: &Program, node: &Node) -> u64 {
    let mut hasher = DefaultHasher::new();
    node.op.hash(&mut hasher);
    hash_attrs(node, &mut hasher);
    for input in &node.inputs {
        match input.map(|id| (id, program.constant(id))) {
            Some((_, Some(tensor))) => hash_content(tensor, &mut hasher),
            other => other.map(|(id, _)| id).hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// Returns whether two nodes calculate the same, and have as many results.
fn is_same(program: &Program, a: &Node, b: &Node) -> bool {
    let is_operand = |(a, b): (&Option<ValueId>, &Option<ValueId>)| {
        let constants = || Some((program.constant((*a)?)?, program.constant((*b)?)?));
        let same = constants().is_some_and(|(a, b)| a.tensor_type() == b.tensor_type() && same_content(a, b));
        a == b || same
    };
    a.op == b.op
        && a.outputs.len() == b.outputs.len()
        && a.inputs.len() == b.inputs.len()
        && a.inputs.iter().zip(&b.inputs).all(is_operand)
        && same_attrs(a, b)
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;

    #[test]
    fn what_is_calculated_twice_is_calculated_once() {
        check(
            "common-subexpressions",
            "  %one = const f32[] [1.0]\n\
             \u{20} %uno = const f32[] [1.0]\n\
             \u{20} %a: f32[2,3] = Add@14(%x, %one)\n\
             \u{20} %b: f32[2,3] = Add@14(%x, %uno)\n\
             \u{20} %c: f32[2,3] = Exp@13(%a)\n\
             \u{20} %d: f32[2,3] = Exp@13(%b)\n\
             \u{20} %e: f32[2,3] = Mul@14(%c, %d)\n\
             \u{20} return %e, %d\n",
            "  %one = const f32[] [1.0]\n\
             \u{20} %a: f32[2,3] = Add@14(%x, %one)\n\
             \u{20} %c: f32[2,3] = Exp@13(%a)\n\
             \u{20} %e: f32[2,3] = Mul@14(%c, %c)\n\
             \u{20} return %e, %c\n",
        );
    }

    #[test]
    fn other_attributes_other_types_and_other_constants_are_other_nodes() {
        let body = "  %one = const f32[] [1.0]\n\
                    \u{20} %two = const f32[] [2.0]\n\
                    \u{20} %a: f32[2,3] = Add@14(%x, %one)\n\
                    \u{20} %b: f32[2,3] = Add@14(%x, %two)\n\
                    \u{20} %c: f32[2,3] = Softmax@13(%x) {axis = 0}\n\
                    \u{20} %d: f32[2,3] = Softmax@13(%x) {axis = 1}\n\
                    \u{20} return %a, %b, %c, %d\n";
        check("common-subexpressions", body, body);
    }

    #[test]
    fn random_numbers_and_pinned_nodes_are_not_shared() {
        let body = "  %a: f32[2,3] = RandomNormalLike@22(%x)\n\
                    \u{20} %b: f32[2,3] = RandomNormalLike@22(%x)\n\
                    \u{20} %c: f32[2,3] = Exp@13(%x)\n\
                    \u{20} %d: f32[2,3] = Exp@13(%x) as \"pinned\"\n\
                    \u{20} return %a, %b, %c, %d\n";
        check("common-subexpressions", body, body);
    }
}
