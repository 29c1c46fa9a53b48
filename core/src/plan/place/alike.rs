//! A request to a kernel as a key: tells whether two nodes, of one program or of several, ask the same.
//!
//! Constants are compared as [`same`](crate::program::same) does, small ones by their content, larger ones by where they are,
//! which the key keeps from being used for anything else.

use crate::program::same::{hash_attrs, hash_content, same_attr, same_content};
use crate::program::{AttrValue, Node, Op, Program};
use crate::tensor::{Tensor, TensorType};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// An operand: its type as far as it is known, and its content if it is constant; None where an optional one is absent.
pub(in crate::plan) type Operand<'a> = Option<(Option<&'a TensorType>, Option<&'a Tensor>)>;

/// A node's request, borrowed from its program.
pub(in crate::plan) struct Asked<'a> {
    /// The node, for its op and its attributes.
    node: &'a Node,
    /// Inputs, then results.
    operands: Vec<Operand<'a>>,
    /// A hash of it.
    pub hash: u64,
}

/// A node's request, kept.
pub(in crate::plan) struct Kept {
    op: Op,
    attrs: Vec<(Arc<str>, AttrValue)>,
    n_inputs: usize,
    operands: Vec<Option<(Option<TensorType>, Option<Tensor>)>>,
}

impl<'a> Asked<'a> {
    /// As the program has the node.
    pub fn of(program: &'a Program, node: &'a Node) -> Self {
        let operand = |id| {
            let value = program.value(id);
            (value.ty.as_ref(), value.constant.as_ref())
        };
        Self::new(node, node.inputs.iter().chain(&node.outputs).map(|id| id.map(operand)).collect())
    }

    /// With operands from elsewhere: inputs, then results.
    pub fn new(node: &'a Node, operands: Vec<Operand<'a>>) -> Self {
        let mut hasher = DefaultHasher::new();
        node.op.hash(&mut hasher);
        hash_attrs(node, &mut hasher);
        for operand in &operands {
            let Some((ty, constant)) = operand else {
                hasher.write_u8(0);
                continue;
            };
            ty.hash(&mut hasher);
            match constant {
                None => hasher.write_u8(1),
                Some(tensor) => hash_content(tensor, &mut hasher),
            }
        }
        let hash = hasher.finish();
        Self { node, operands, hash }
    }

    /// Returns whether it equals an earlier request.
    pub fn is(&self, kept: &Kept) -> bool {
        self.node.op == kept.op
            && self.node.inputs.len() == kept.n_inputs
            && self.operands.len() == kept.operands.len()
            && self.operands.iter().zip(&kept.operands).all(|(a, b)| same_operand(*a, b.as_ref()))
            && self.node.attrs.len() == kept.attrs.len()
            && self.node.attrs.iter().zip(&kept.attrs).all(|(a, b)| a.0 == b.0 && same_attr(&a.1, &b.1))
    }

    /// It, to keep.
    pub fn to_kept(&self) -> Kept {
        let operands = self.operands.iter();
        Kept {
            op: self.node.op.clone(),
            attrs: self.node.attrs.clone(),
            n_inputs: self.node.inputs.len(),
            operands: operands
                .map(|operand| operand.map(|(ty, tensor)| (ty.cloned(), tensor.cloned())))
                .collect(),
        }
    }
}

fn same_operand(a: Operand<'_>, b: Option<&(Option<TensorType>, Option<Tensor>)>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some((a_ty, a)), Some((b_ty, b))) => {
            let is_same = match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => same_content(a, b),
                _ => false,
            };
            a_ty == b_ty.as_ref() && is_same
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::ValueId;
    use crate::tensor::F32;

    /// A node whose operands are a variable and a constant.
    fn program(content: &[f32], n: usize, axis: i64) -> Program {
        let mut program = Program::default();
        let x = program.add_typed("x", TensorType::new(F32, &[n]));
        let k = program.add_constant("k", Tensor::from_elements(&[content.len()], content).unwrap());
        let y = program.add_typed("y", TensorType::new(F32, &[n]));
        let mut node = Node::new(Op::onnx("Add", 14), vec![Some(x), Some(k)], vec![Some(y)]);
        node.set_attr("axis", AttrValue::Int(axis));
        program.main.nodes.push(node);
        program
    }

    /// Returns whether two programs' nodes ask the same, by their hashes too.
    fn same(a: &Program, b: &Program) -> bool {
        let (a, b) = (Asked::of(a, &a.main.nodes[0]), Asked::of(b, &b.main.nodes[0]));
        let same = a.is(&b.to_kept());
        assert!(!same || a.hash == b.hash);
        same
    }

    #[test]
    fn small_constants_are_the_same_by_content_and_large_ones_by_place() {
        let small = || program(&[1.0, 2.0], 2, 0);
        assert!(same(&small(), &small()));
        assert!(!same(&small(), &program(&[1.0, 3.0], 2, 0)), "another content");
        assert!(!same(&small(), &program(&[1.0, 2.0], 3, 0)), "another type");
        assert!(!same(&small(), &program(&[1.0, 2.0], 2, 1)), "another attribute");
        let large = || program(&[0.0; 1000], 2, 0);
        assert!(!same(&large(), &large()), "equal, but elsewhere");
        let mut again = large();
        let other = large();
        again.values[1].constant = other.values[1].constant.clone();
        assert!(same(&again, &other));
    }

    #[test]
    fn an_absent_operand_is_not_one_of_unknown_type() {
        let mut a = program(&[1.0], 1, 0);
        let mut b = program(&[1.0], 1, 0);
        a.main.nodes[0].inputs[0] = None;
        b.values[ValueId(0).idx()].ty = None;
        assert!(!same(&a, &b) && !same(&b, &a));
        assert!(same(&a, &a) && same(&b, &b));
    }
}
