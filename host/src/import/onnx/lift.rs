//! Lifts ops from the version that a model uses to the catalogue's version, which programs hold.
//!
//! Lifting keeps a node's meaning: nodes around it compute unknown facts such as a rank, instead of guessing them. A node
//! whose meaning the catalogue's version cannot express is refused, because later stages know ops by name. Nodes whose op is
//! not in the catalogue keep the version in force, and placement reports the devices that could run them. Ops of onnxruntime,
//! random ops and some of ai.onnx.ml become ops of the catalogue.

mod changes;
mod lowering;
mod microsoft;
mod ml;
mod random;
mod rewrites;

use super::tensors::RANK_MAX;
use super::{invalid, unsupported};
use changes::{CHANGES, Change};
use devbay_core::program::catalogue::{self, OpKind};
use devbay_core::program::infer::infer;
use devbay_core::program::{AttrValue, Node, Op, Program, ValueId};
use devbay_core::tensor::{BF16, DType, F16, F64, Tensor, TensorType};
use devbay_core::{Error, Result};
use half::{bf16, f16};
pub(super) use random::Seed;
use std::collections::HashMap;

/// Returns an op of ONNX's own domain in the version that programs hold.
pub(super) fn held(op: &str) -> Op {
    catalogue::find("", op).map_or_else(|| Op::onnx(op, 1), Op::of)
}

/// Lifts the nodes of one program, in their order.
#[derive(Default)]
pub(super) struct Lifter {
    /// Types inferred from the nodes before. Models declare few, and some are wrong.
    types: HashMap<ValueId, TensorType>,
    /// The seed that random nodes use.
    pub(super) seed: Seed,
}

impl Lifter {
    /// Appends a node in the version that programs hold, with the nodes that it needs around it.
    pub(super) fn lift(&mut self, program: &mut Program, node: Node, nodes: &mut Vec<Node>) -> Result<()> {
        ml::refuse_texts(&node)?;
        let row = microsoft::find(&node.op).or_else(|| ml::find(&node.op)).or_else(|| random::find(&node));
        if let Some(row) = row {
            return lowering::lower(row, self, program, node, nodes);
        }
        let mut rewriting =
            Rewriting { program, types: &self.types, node, before: Vec::new(), after: Vec::new() };
        if rewriting.node.op.domain.is_empty() {
            rewriting.run()?;
        }
        let Rewriting { node, before, after, .. } = rewriting;
        let first_new = nodes.len();
        nodes.extend(before);
        nodes.push(node);
        nodes.extend(after);
        for node in &nodes[first_new..] {
            self.infer(program, node);
        }
        Ok(())
    }

    /// Records the inferred types of a node's results. Planning for real shapes reports nodes that cannot be right.
    fn infer(&mut self, program: &Program, node: &Node) {
        let Some(def) = catalogue::find(&node.op.domain, &node.op.name) else {
            return;
        };
        if def.kind == OpKind::Control {
            return self.infer_control(program, node);
        }
        let ty = |id: &Option<ValueId>| match id {
            None => Some(None),
            Some(id) => known_type(program, &self.types, *id).map(|ty| Some(ty.clone())),
        };
        let Some(types) = node.inputs.iter().map(ty).collect::<Option<Vec<_>>>() else {
            return;
        };
        // Inference reads shapes, axes and amounts. Reading weights would repeat for each node that takes them.
        let is_short = |tensor: &&Tensor| tensor.n_elements() <= 2 * RANK_MAX;
        let constant =
            |id: &Option<ValueId>| id.and_then(|id| program.constant(id).filter(is_short).cloned());
        let constants: Vec<_> = node.inputs.iter().map(constant).collect();
        for (id, ty) in node.outputs.iter().zip(infer(node, &types, &constants).unwrap_or_default()) {
            if let Some(id) = id
                && ty.rank().is_none_or(|rank| rank <= RANK_MAX)
            {
                self.types.insert(*id, ty);
            }
        }
    }

    /// Records only the element types of control flow's results.
    fn infer_control(&mut self, program: &Program, node: &Node) {
        let (region, skipped) = match &*node.op.name {
            "If" => (node.region("then_branch"), 0),
            // A loop's body gives its condition first.
            "Loop" => (node.region("body"), 1),
            _ => (node.region("body"), 0),
        };
        let given = region.iter().flat_map(|region| region.outputs.iter().skip(skipped));
        for (id, given) in node.outputs.iter().zip(given) {
            let ty = known_type(program, &self.types, *given).map(|ty| TensorType::unranked(ty.dtype));
            if let (Some(id), Some(ty)) = (id, ty) {
                self.types.insert(*id, ty);
            }
        }
    }
}

/// Returns a value's type: the inferred one, else the declared one.
fn known_type<'a>(
    program: &'a Program,
    types: &'a HashMap<ValueId, TensorType>,
    id: ValueId,
) -> Option<&'a TensorType> {
    types.get(&id).or(program.value(id).ty.as_ref())
}

/// A node being rewritten for another version.
struct Rewriting<'a> {
    program: &'a mut Program,
    types: &'a HashMap<ValueId, TensorType>,
    node: Node,
    before: Vec<Node>,
    after: Vec<Node>,
}

impl Rewriting<'_> {
    fn run(&mut self) -> Result<()> {
        self.replace_old_ops()?;
        let Some(def) = catalogue::find("", &self.node.op.name) else {
            return Ok(());
        };
        let from = self.node.op.version;
        catalogue::lower(&mut self.node)?;
        let crossed = |change: &&Change| {
            change.op == def.name && from < change.version && change.version <= def.version
        };
        for change in CHANGES.iter().filter(crossed) {
            (change.rewrite)(self)?;
        }
        if def.name == "Resize" {
            // Newer files, too, have empty tensors for absent operands.
            rewrites::resize_operands(self)?;
        }
        self.node.op.version = def.version;
        Ok(())
    }

    /// Renames an op that ONNX has replaced.
    fn replace_old_ops(&mut self) -> Result<()> {
        match &*self.node.op.name {
            // Resize 10 is Upsample 9 under its new name; before, the scales were an attribute.
            "Upsample" => {
                match self.node.take_attr("scales") {
                    Some(AttrValue::Floats(scales)) => {
                        let scales = Tensor::from_elements(&[scales.len()], &scales)?;
                        let scales = self.program.add_constant("", scales);
                        self.set_input(1, scales);
                    }
                    None => {}
                    Some(_) => return Err(wrong_type("scales", "numbers")),
                }
                self.node.op = Op::onnx("Resize", 10);
            }
            "Scatter" => self.node.op = Op::onnx("ScatterElements", 11),
            _ => {}
        }
        Ok(())
    }

    fn set_input(&mut self, i: usize, id: ValueId) {
        if self.node.inputs.len() <= i {
            self.node.inputs.resize(i + 1, None);
        }
        self.node.inputs[i] = Some(id);
    }

    /// Adds integers as the operand at `i`.
    fn set_ints(&mut self, i: usize, values: &[i64]) -> Result<()> {
        let tensor = Tensor::from_elements(&[values.len()], values)?;
        let id = self.program.add_constant("", tensor);
        self.set_input(i, id);
        Ok(())
    }

    /// Turns an attribute's integers into the operand at `i`.
    fn ints_to_input(&mut self, name: &str, i: usize) -> Result<()> {
        match self.node.take_attr(name) {
            Some(AttrValue::Ints(values)) => self.set_ints(i, &values),
            None => Ok(()),
            Some(_) => Err(wrong_type(name, "integers")),
        }
    }

    /// Returns the element type of an operand.
    fn dtype(&self, i: usize) -> Option<DType> {
        known_type(self.program, self.types, self.node.input(i)?).map(|ty| ty.dtype)
    }

    /// Returns the rank of a value, or of another value known to have the same rank.
    fn rank(&self, id: ValueId, same: ValueId) -> Option<usize> {
        let rank = |id| known_type(self.program, self.types, id).and_then(TensorType::rank);
        rank(id).or_else(|| rank(same))
    }

    /// Returns an error: the catalogue's version cannot express the node.
    fn refused(&self, what: &str) -> Error {
        let held = held(&self.node.op.name);
        unsupported(format!("{} with {what} cannot be said with {held}", self.node.op))
    }

    /// Adds a constant with one number, in f32 unless `dtype` is another floating-point type.
    fn scalar(&mut self, dtype: DType, value: f32) -> Result<ValueId> {
        scalar(self.program, dtype, value)
    }

    /// Returns a node of an op in the version that programs hold.
    fn helper(&self, op: &str, inputs: &[ValueId], output: ValueId) -> Node {
        let inputs = inputs.iter().copied().map(Some).collect();
        let mut node = Node::new(held(op), inputs, vec![Some(output)]);
        if !self.node.name.is_empty() {
            node.name = format!("{}/{op}", self.node.name).into();
        }
        node
    }
}

fn wrong_type(name: &str, expected: &str) -> Error {
    invalid(format!("expected {expected} as the attribute {name:?}"))
}

/// Adds a constant with one number, in f32 unless `dtype` is another floating-point type.
fn scalar(program: &mut Program, dtype: DType, value: f32) -> Result<ValueId> {
    let tensor = match dtype {
        F64 => Tensor::from_elements(&[], &[f64::from(value)])?,
        F16 => Tensor::from_bytes(F16, &[], bytemuck::bytes_of(&f16::from_f32(value)))?,
        BF16 => Tensor::from_bytes(BF16, &[], bytemuck::bytes_of(&bf16::from_f32(value)))?,
        _ => Tensor::from_elements(&[], &[value])?,
    };
    Ok(program.add_constant("", tensor))
}
