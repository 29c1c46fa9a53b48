//! The nodes that a pass makes in place of one.

use crate::error::Result;
use crate::program::{AttrValue, Node, Op, Program, ValueId, catalogue};
use crate::tensor::{DType, Tensor, TensorType};

/// Nodes as they are made, of values of one dtype.
pub struct Made<'a> {
    pub program: &'a mut Program,
    /// Where they go.
    pub to: &'a mut Vec<Node>,
    pub dtype: DType,
}

impl Made<'_> {
    /// A value of this shape.
    pub fn value(&mut self, shape: &[usize]) -> ValueId {
        self.program.add_typed("", TensorType::new(self.dtype, shape))
    }

    /// A node of one of ONNX's ops.
    pub fn push(&mut self, op: &str, inputs: &[ValueId], result: ValueId) -> &mut Node {
        let def = catalogue::find("", op).expect("the catalogue has ONNX's ops");
        let inputs = inputs.iter().map(|id| Some(*id)).collect();
        self.to.push(Node::new(Op::of(def), inputs, vec![Some(result)]));
        self.to.last_mut().expect("it was pushed")
    }

    /// The Reshape of a value to these extents.
    ///
    /// # Errors
    /// Out of memory.
    pub fn reshape(&mut self, of: ValueId, to: &[usize], result: ValueId) -> Result<()> {
        let node = super::reshape(self.program, of, to, result)?;
        self.to.push(node);
        Ok(())
    }

    /// The Transpose of a value: each axis of the result is that axis of the value.
    pub fn transpose(&mut self, of: ValueId, perm: &[usize], result: ValueId) {
        let perm = perm.iter().map(|&axis| axis as i64).collect();
        self.push("Transpose", &[of], result).set_attr("perm", AttrValue::Ints(perm));
    }

    /// A constant list of integers.
    ///
    /// # Errors
    /// Out of memory.
    pub fn list(&mut self, numbers: &[i64]) -> Result<ValueId> {
        let tensor = Tensor::from_elements(&[numbers.len()], numbers)?;
        Ok(self.program.add_constant("", tensor))
    }
}
