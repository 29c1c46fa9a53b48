//! Replaces a node by nodes of the catalogue's ops, whatever its domain: what a lowering sees of the node, and the nodes that it
//! appends.

use super::super::{invalid, unsupported};
use super::{Lifter, held, known_type, scalar};
use devbay_core::program::onnx_types::dtype_to_onnx;
use devbay_core::program::{AttrValue, Node, Op, Program, Value, ValueId};
use devbay_core::tensor::{BF16, DType, Dim, F16, F32, F64, Tensor};
use devbay_core::{Error, Result};
use std::sync::Arc;

/// An op with a lowering.
pub(super) struct Row {
    pub(super) name: &'static str,
    /// Names of its attributes. Others are refused.
    attributes: &'static str,
    /// Maximum numbers of operands and results.
    arity: (usize, usize),
    lower: fn(&mut Lowering<'_>) -> Result<()>,
}

pub(super) const fn row(
    name: &'static str,
    arity: (usize, usize),
    attributes: &'static str,
    lower: fn(&mut Lowering<'_>) -> Result<()>,
) -> Row {
    Row { name, attributes, arity, lower }
}

/// Appends the nodes that a node of this op means.
pub(super) fn lower(
    row: &Row,
    lifter: &mut Lifter,
    program: &mut Program,
    node: Node,
    nodes: &mut Vec<Node>,
) -> Result<()> {
    let first = nodes.len();
    let mut lowering = Lowering { lifter, program, nodes, node, first };
    lowering.check(row)?;
    (row.lower)(&mut lowering)?;
    lowering.check_results()
}

/// A node that becomes others.
pub(super) struct Lowering<'a> {
    lifter: &'a mut Lifter,
    pub(super) program: &'a mut Program,
    /// The nodes before it, then those that it becomes.
    nodes: &'a mut Vec<Node>,
    pub(super) node: Node,
    /// Position of the first node that it becomes.
    first: usize,
}

impl Lowering<'_> {
    /// Checks that the row knows every attribute, operand and result of the node.
    pub(super) fn check(&self, row: &Row) -> Result<()> {
        let known = |name: &str| row.attributes.split_ascii_whitespace().any(|known| known == name);
        if let Some((name, _)) = self.node.attrs.iter().find(|(name, _)| !known(name)) {
            return Err(self.refused(&format!("the attribute {name}")));
        }
        let found = (self.node.inputs.len(), self.node.outputs.len());
        if found.0 > row.arity.0 || found.1 > row.arity.1 {
            return Err(self.refused(&format!("{} operands and {} results", found.0, found.1)));
        }
        Ok(())
    }

    /// Checks that every result was made. Results that nothing in the graph uses count too: they may be outputs.
    pub(super) fn check_results(&self) -> Result<()> {
        let is_made =
            |id: &&ValueId| self.nodes[self.first..].iter().any(|node| node.outputs.contains(&Some(**id)));
        match self.node.outputs.iter().flatten().find(|id| !is_made(id)) {
            None => Ok(()),
            Some(id) => Err(self.refused(&format!("the result {:?}", &*self.program.value(*id).name))),
        }
    }

    /// Returns an error: the node uses a part of the op that has no lowering.
    pub(super) fn refused(&self, what: &str) -> Error {
        unsupported(format!(
            "{} with {what} is not supported; export the model with ONNX's own ops in its place",
            self.node.op
        ))
    }

    // What the node has.

    /// Returns an operand that must be there.
    pub(super) fn operand(&self, i: usize) -> Result<ValueId> {
        self.optional(i)
            .ok_or_else(|| invalid(format!("expected operand {i} of {}, found none", self.node.op)))
    }

    pub(super) fn optional(&self, i: usize) -> Option<ValueId> {
        self.node.input(i)
    }

    pub(super) fn wants(&self, i: usize) -> bool {
        self.node.output(i).is_some()
    }

    pub(super) fn int(&self, name: &str, default: i64) -> i64 {
        self.node.int(name, default)
    }

    pub(super) fn float(&self, name: &str, default: f32) -> f32 {
        self.node.float(name, default)
    }

    /// Returns these attributes, as far as the node has them, to pass them on.
    pub(super) fn attributes<'n>(&self, names: &[&'n str]) -> Vec<(&'n str, AttrValue)> {
        let given = |name: &&'n str| self.node.attr(name).map(|value| (*name, value.clone()));
        names.iter().filter_map(given).collect()
    }

    // What is known of values.

    pub(super) fn dtype(&self, id: ValueId) -> Option<DType> {
        known_type(self.program, &self.lifter.types, id).map(|ty| ty.dtype)
    }

    /// Returns the element type of a value, which the lowering needs.
    pub(super) fn required_dtype(&self, id: ValueId) -> Result<DType> {
        self.dtype(id).ok_or_else(|| self.refused("an operand whose element type is unknown"))
    }

    pub(super) fn shape(&self, id: ValueId) -> Option<&[Dim]> {
        known_type(self.program, &self.lifter.types, id).and_then(|ty| ty.shape.as_deref())
    }

    pub(super) fn rank(&self, id: ValueId) -> Option<usize> {
        self.shape(id).map(<[Dim]>::len)
    }

    /// Returns the rank of a value, which the lowering needs.
    pub(super) fn required_rank(&self, id: ValueId) -> Result<usize> {
        self.rank(id).ok_or_else(|| self.refused("an operand whose rank is unknown"))
    }

    /// Returns the number of elements along an axis, if it is known before run time. Negative axes count from the end.
    pub(super) fn extent(&self, id: ValueId, axis: i64) -> Option<usize> {
        let shape = self.shape(id)?;
        let rank = i64::try_from(shape.len()).ok()?;
        let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
        shape.get(axis)?.known()
    }

    // What the node becomes.

    /// Appends a node with these results. A trailing absent operand or result means the same as a missing one.
    pub(super) fn append_to(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
        attrs: &[(&str, AttrValue)],
        results: Vec<Option<ValueId>>,
    ) -> Result<()> {
        let mut node = Node::new(op, inputs.into(), results);
        for values in [&mut node.inputs, &mut node.outputs] {
            while values.last().is_some_and(Option::is_none) {
                values.pop();
            }
        }
        node.attrs = attrs.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();
        if !self.node.name.is_empty() {
            node.name = format!("{}/{}", self.node.name, node.op.name).into();
        }
        self.lifter.lift(self.program, node, self.nodes)
    }

    /// Appends a node and returns its results, which are new values.
    pub(super) fn append(
        &mut self,
        op: Op,
        inputs: &[Option<ValueId>],
        attrs: &[(&str, AttrValue)],
        n_results: usize,
    ) -> Result<Vec<ValueId>> {
        let results: Vec<ValueId> =
            (0..n_results).map(|_| self.program.add_value(Value::default())).collect();
        self.append_to(op, inputs, attrs, results.iter().copied().map(Some).collect())?;
        Ok(results)
    }

    /// Appends an op with one result, and returns it.
    pub(super) fn op(&mut self, op: &str, inputs: &[ValueId]) -> Result<ValueId> {
        self.op_with(op, inputs, &[])
    }

    /// Appends an op with attributes and one result, and returns it.
    pub(super) fn op_with<I: Copy + Into<Option<ValueId>>>(
        &mut self,
        op: &str,
        inputs: &[I],
        attrs: &[(&str, AttrValue)],
    ) -> Result<ValueId> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().map(|&id| id.into()).collect();
        Ok(self.append(held(op), &inputs, attrs, 1)?[0])
    }

    /// Appends an op that makes these results of the node itself, by position.
    pub(super) fn finish(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        attrs: &[(&str, AttrValue)],
        results: &[Option<usize>],
    ) -> Result<()> {
        let results = results.iter().map(|i| self.node.output((*i)?)).collect();
        self.append_to(held(op), inputs, attrs, results)
    }

    /// Makes a value the result at `i`, if the node has that result, and returns the value's name from now on.
    pub(super) fn give(&mut self, i: usize, id: ValueId) -> Result<ValueId> {
        let Some(result) = self.node.output(i) else { return Ok(id) };
        let makes = |node: &Node| node.outputs.contains(&Some(id));
        let is_last = id.idx() + 1 == self.program.values.len();
        let is_result = self.node.outputs.contains(&Some(id));
        if !is_last || is_result || !self.nodes[self.first..].iter().any(makes) {
            let copy = self.op("Identity", &[id])?;
            return self.give(i, copy);
        }
        for node in &mut self.nodes[self.first..] {
            for used in node.inputs.iter_mut().chain(&mut node.outputs).filter(|used| **used == Some(id)) {
                *used = Some(result);
            }
        }
        if let Some(ty) = self.lifter.types.remove(&id) {
            self.lifter.types.insert(result, ty);
        }
        self.program.values.pop();
        Ok(result)
    }

    /// Adds a constant with integers.
    pub(super) fn ints(&mut self, values: &[i64]) -> Result<ValueId> {
        Ok(self.program.add_constant("", Tensor::from_elements(&[values.len()], values)?))
    }

    /// Adds a constant with one integer and no dimensions.
    pub(super) fn int_scalar(&mut self, value: i64) -> Result<ValueId> {
        Ok(self.program.add_constant("", Tensor::from_elements(&[], &[value])?))
    }

    /// Adds a number in another value's element type.
    pub(super) fn number(&mut self, value: f32, like: ValueId) -> Result<ValueId> {
        let dtype = self.dtype(like);
        let number = scalar(
            self.program,
            dtype.filter(|ty| [F16, BF16, F32, F64].contains(ty)).unwrap_or(F32),
            value,
        )?;
        match dtype {
            Some(F16 | BF16 | F32 | F64) => Ok(number),
            _ => self.op("CastLike", &[number, like]),
        }
    }

    /// Adds the operand at `i`, if there is one.
    pub(super) fn plus(&mut self, x: ValueId, i: usize) -> Result<ValueId> {
        match self.optional(i) {
            Some(bias) => self.op("Add", &[x, bias]),
            None => Ok(x),
        }
    }

    /// Multiplies by a number, if that changes anything.
    pub(super) fn times(&mut self, x: ValueId, factor: f32) -> Result<ValueId> {
        if factor.to_bits() == 1f32.to_bits() {
            return Ok(x);
        }
        let factor = self.number(factor, x)?;
        self.op("Mul", &[x, factor])
    }

    pub(super) fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        if self.dtype(x) == Some(to) {
            return Ok(x);
        }
        self.op_with("Cast", &[x], &[("to", AttrValue::Int(dtype_to_onnx(to)?))])
    }

    pub(super) fn transpose(&mut self, x: ValueId, perm: &[i64]) -> Result<ValueId> {
        self.op_with("Transpose", &[x], &[("perm", AttrValue::Ints(perm.into()))])
    }

    pub(super) fn reshape(&mut self, x: ValueId, shape: &[i64]) -> Result<ValueId> {
        let shape = self.ints(shape)?;
        self.op("Reshape", &[x, shape])
    }

    /// Removes all dimensions of a value with one element.
    pub(super) fn scalar_of(&mut self, x: ValueId) -> Result<ValueId> {
        if self.rank(x) == Some(0) { Ok(x) } else { self.reshape(x, &[]) }
    }

    pub(super) fn unsqueeze(&mut self, x: ValueId, axes: &[i64]) -> Result<ValueId> {
        let axes = self.ints(axes)?;
        self.op("Unsqueeze", &[x, axes])
    }

    /// Returns the extents of some axes, as integers.
    pub(super) fn extents(&mut self, x: ValueId, start: i64, end: i64) -> Result<ValueId> {
        self.op_with("Shape", &[x], &[("start", AttrValue::Int(start)), ("end", AttrValue::Int(end))])
    }

    /// Returns the extent of an axis, without dimensions.
    pub(super) fn length(&mut self, x: ValueId, axis: i64) -> Result<ValueId> {
        let extent = self.extents(x, axis, axis + 1)?;
        self.scalar_of(extent)
    }

    /// Returns 0, 1, ... below a length.
    pub(super) fn positions(&mut self, length: ValueId) -> Result<ValueId> {
        let (zero, one) = (self.int_scalar(0)?, self.int_scalar(1)?);
        self.op("Range", &[zero, length, one])
    }
}
