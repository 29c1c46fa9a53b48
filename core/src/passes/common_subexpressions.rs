//! Makes one node of those that calculate the same from the same operands.
//!
//! Nodes are the same whose op, attributes and operands are; constants of few elements are compared by their content. Ops
//! whose results are not given by their operands, and nodes with regions, are left alone.

use super::each_region;
use super::renames::Renames;
use crate::error::Result;
use crate::program::{AttrValue, Node, Program, Region, ValueId, catalogue};
use crate::tensor::Tensor;
use std::collections::HashMap;

/// Constants of at most so many bytes are compared by their content, others by where they are.
const CONTENT_BYTES_MAX: usize = 256;

/// Removes what is calculated a second time, but for nodes that `stay`; gives the number of nodes that are gone.
///
/// # Errors
/// None of its own.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| Ok(share(program, region, stay)))
}

/// An operand of a node, so that equal constants are equal operands.
#[derive(PartialEq, Eq, Hash)]
enum Operand {
    Absent,
    Value(ValueId),
    Content(String, Vec<u8>),
    Place(String, (usize, usize)),
}

/// What a node calculates: op, attributes and operands.
type Key = (String, Vec<Operand>);

fn share(program: &Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> usize {
    let mut renames = Renames::default();
    let mut known: HashMap<Key, usize> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    let mut gone = 0;
    for mut node in std::mem::take(&mut region.nodes) {
        renames.operands(&mut node.inputs);
        node.regions.iter_mut().for_each(|(_, nested)| renames.region(nested));
        let key = if stay(&node) { None } else { key_of(program, &node) };
        let Some(key) = key else {
            kept.push(node);
            continue;
        };
        match known.get(&key) {
            Some(&first) if kept[first].outputs.len() == node.outputs.len() => {
                for (i, output) in node.outputs.iter().enumerate() {
                    match (kept[first].outputs[i], *output) {
                        (Some(first), Some(second)) => renames.add(second, first),
                        // Nobody wanted it until now.
                        (None, Some(second)) => kept[first].outputs[i] = Some(second),
                        (_, None) => {}
                    }
                }
                gone += 1;
            }
            _ => {
                known.insert(key, kept.len());
                kept.push(node);
            }
        }
    }
    region.nodes = kept;
    region.outputs.iter_mut().for_each(|id| *id = renames.of(*id));
    gone
}

/// What a node calculates; None if that is not given by its op, attributes and operands.
fn key_of(program: &Program, node: &Node) -> Option<Key> {
    let def = catalogue::find(&node.op.domain, &node.op.name)?;
    let has_tensors = node.attrs.iter().any(|(_, value)| matches!(value, AttrValue::Tensor(_)));
    if !def.pure || !node.regions.is_empty() || has_tensors {
        return None;
    }
    let mut attrs: Vec<_> = node.attrs.iter().collect();
    attrs.sort_by(|(a, _), (b, _)| a.cmp(b));
    let operand = |id: &Option<ValueId>| match id.map(|id| (id, program.constant(id))) {
        None => Operand::Absent,
        Some((id, None)) => Operand::Value(id),
        Some((_, Some(tensor))) => constant(tensor),
    };
    Some((format!("{} {attrs:?}", node.op), node.inputs.iter().map(operand).collect()))
}

fn constant(tensor: &Tensor) -> Operand {
    let ty = tensor.tensor_type().to_string();
    match tensor.bytes().len() <= CONTENT_BYTES_MAX {
        true => Operand::Content(ty, tensor.bytes().to_vec()),
        false => Operand::Place(ty, tensor.identity()),
    }
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
