//! What is asked of a kernel, as a key: whether two nodes, of one program or of several, ask the same.
//!
//! Constants of few bytes are compared by their content, since each specialised program has its own; larger ones by where
//! they are, which the key keeps from being used for anything else.

use crate::program::{AttrValue, Node, Op, Program};
use crate::tensor::{Tensor, TensorType};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Constants of at most so many bytes are compared by their content.
pub(super) const CONTENT_BYTES_MAX: usize = 256;

/// An operand: its type as far as it is known, and its content if it is constant; None where an optional one is absent.
pub(super) type Operand<'a> = Option<(Option<&'a TensorType>, Option<&'a Tensor>)>;

/// What a node asks for, borrowed from its program.
pub(super) struct Asked<'a> {
    /// The node, for its op and its attributes.
    node: &'a Node,
    /// Inputs, then results.
    operands: Vec<Operand<'a>>,
    /// A hash of it, attributes left out.
    pub hash: u64,
}

/// What a node asked for, kept.
pub(super) struct Kept {
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
        for operand in &operands {
            let Some((ty, constant)) = operand else {
                hasher.write_u8(0);
                continue;
            };
            ty.hash(&mut hasher);
            match constant {
                None => hasher.write_u8(1),
                Some(tensor) if is_small(tensor) => hasher.write(tensor.bytes()),
                Some(tensor) => tensor.identity().hash(&mut hasher),
            }
        }
        let hash = hasher.finish();
        Self { node, operands, hash }
    }

    /// Whether it is what was asked for before.
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

/// Whether a constant is compared by its content.
pub(super) fn is_small(tensor: &Tensor) -> bool {
    tensor.bytes().len() <= CONTENT_BYTES_MAX
}

fn same_operand(a: Operand<'_>, b: Option<&(Option<TensorType>, Option<Tensor>)>) -> bool {
    match (a, b) {
        (None, None) => true,
        (Some((a_ty, a)), Some((b_ty, b))) => {
            let same_content = match (a, b) {
                (None, None) => true,
                (Some(a), Some(b)) => a.identity() == b.identity() || (is_small(a) && a.bytes() == b.bytes()),
                _ => false,
            };
            a_ty == b_ty.as_ref() && same_content
        }
        _ => false,
    }
}

fn same_attr(a: &AttrValue, b: &AttrValue) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    match (a, b) {
        (AttrValue::Int(a), AttrValue::Int(b)) => a == b,
        (AttrValue::Float(a), AttrValue::Float(b)) => a.to_bits() == b.to_bits(),
        (AttrValue::String(a), AttrValue::String(b)) => a == b,
        (AttrValue::Ints(a), AttrValue::Ints(b)) => a == b,
        (AttrValue::Floats(a), AttrValue::Floats(b)) => bits(a) == bits(b),
        (AttrValue::Strings(a), AttrValue::Strings(b)) => a == b,
        (AttrValue::Tensor(a), AttrValue::Tensor(b)) => {
            a.identity() == b.identity() && a.tensor_type() == b.tensor_type()
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

    /// Whether two programs' nodes ask the same, by their hashes too.
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
        let large = || program(&[0.0; CONTENT_BYTES_MAX / 4 + 1], 2, 0);
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
