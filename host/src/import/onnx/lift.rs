//! From the version of an op that a model uses to the one that programs hold.
//!
//! `changes.rs` lists what changed in ONNX's ops since opset 7 besides their element types, one line a
//! change: how a node gets over it, and whether one that does not use what is new may go back. A node goes
//! up or down to the version of its op that programs hold. Where it cannot, it keeps a version with its
//! present meaning, and placement says who could run it; ops that programs do not know keep the version in
//! force.
//!
//! A node means the same before and after: what is not known, such as a rank, is computed by nodes around
//! it and not guessed.

mod changes;
mod rewrites;

use super::versions::since_version;
use changes::{CHANGES, Change, Down, Old, Step, Up, target};
use devbay_core::program::{AttrValue, Node, Op, Program, ValueId};
use devbay_core::tensor::{BF16, BOOL, DType, F16, F32, F64, I32, I64, Tensor, U8};
use devbay_core::{Error, ErrorKind, Result};
use half::{bf16, f16};
use std::collections::HashMap;

/// An op of ONNX's own domain in the version that programs hold.
pub(super) fn held(op: &str) -> Op {
    Op::onnx(op, target(op).unwrap_or(1))
}

/// Lifts the nodes of one program, in their order.
#[derive(Default)]
pub(super) struct Lifter {
    /// Element types of values whose type the model does not declare.
    dtypes: HashMap<ValueId, DType>,
}

impl Lifter {
    /// Appends a node in the version that programs hold, with the nodes that it needs around it.
    pub(super) fn lift(&mut self, program: &mut Program, node: Node, nodes: &mut Vec<Node>) -> Result<()> {
        let mut rewriting =
            Rewriting { program, dtypes: &self.dtypes, node, before: Vec::new(), after: Vec::new() };
        if rewriting.node.op.domain.is_empty() {
            rewriting.run()?;
        }
        let Rewriting { node, before, after, .. } = rewriting;
        let first_new = nodes.len();
        nodes.extend(before);
        nodes.push(node);
        nodes.extend(after);
        for node in &nodes[first_new..] {
            for (i, id) in node.outputs.iter().enumerate() {
                let known = |id: ValueId| {
                    let declared = program.value(id).ty.as_ref().map(|ty| ty.dtype);
                    declared.or_else(|| self.dtypes.get(&id).copied())
                };
                if let Some((id, dtype)) = id.and_then(|id| Some((id, result_dtype(node, i, &known)?))) {
                    self.dtypes.insert(id, dtype);
                }
            }
        }
        Ok(())
    }
}

/// A node on its way to another version.
struct Rewriting<'a> {
    program: &'a mut Program,
    dtypes: &'a HashMap<ValueId, DType>,
    node: Node,
    before: Vec<Node>,
    after: Vec<Node>,
}

impl Rewriting<'_> {
    fn run(&mut self) -> Result<()> {
        self.replace_old_ops()?;
        let Some(target) = target(&self.node.op.name) else {
            return Ok(());
        };
        let from = self.node.op.version;
        if from > target {
            self.go_down(target);
        } else {
            self.go_up(target)?;
        }
        if self.node.op.is("Resize") && self.node.op.version == target {
            // Newer files, too, have empty tensors where an operand is meant to be absent.
            rewrites::resize_operands(self)?;
        }
        Ok(())
    }

    fn go_up(&mut self, target: u32) -> Result<()> {
        let from = self.node.op.version;
        let name = self.node.op.name.clone();
        let crossed =
            |change: &&Change| change.op == &*name && from < change.version && change.version <= target;
        for change in CHANGES.iter().filter(crossed) {
            let step = match change.up {
                Up::Same => Step::Done,
                Up::Rewrite(rewrite) => rewrite(self)?,
                Up::Never => Step::Stay,
            };
            if step == Step::Stay {
                self.node.op.version = since_version(&name, change.version - 1).unwrap_or(from);
                return Ok(());
            }
        }
        self.node.op.version = target;
        Ok(())
    }

    fn go_down(&mut self, target: u32) {
        let from = self.node.op.version;
        let name = self.node.op.name.clone();
        let crossed =
            |change: &&Change| change.op == &*name && target < change.version && change.version <= from;
        let mut lowered = self.node.clone();
        for change in CHANGES.iter().filter(crossed).rev() {
            let may = match change.down {
                Down::Never => false,
                Down::Attrs(attrs) => drop_attrs(&mut lowered, attrs),
                Down::NoInput(i) => lowered.input(i).is_none(),
                Down::If(may) => may(&lowered),
                Down::Rewrite(rewrite) => {
                    rewrite(&mut lowered);
                    true
                }
            };
            if !may {
                return;
            }
        }
        lowered.op.version = target;
        self.node = lowered;
    }

    /// Gives a node of an op that ONNX has replaced the op that replaced it.
    fn replace_old_ops(&mut self) -> Result<()> {
        match &*self.node.op.name {
            // Resize 10 is Upsample 9 under its new name; before, the scales were an attribute.
            "Upsample" if target("Resize").is_some() => {
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
            "Scatter" if target("ScatterElements").is_some() => {
                self.node.op = Op::onnx("ScatterElements", 11);
            }
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

    /// Makes integers the operand at `i`.
    fn set_ints(&mut self, i: usize, values: &[i64]) -> Result<()> {
        let tensor = Tensor::from_elements(&[values.len()], values)?;
        let id = self.program.add_constant("", tensor);
        self.set_input(i, id);
        Ok(())
    }

    /// Makes an attribute's integers the operand at `i`.
    fn ints_to_input(&mut self, name: &str, i: usize) -> Result<()> {
        match self.node.take_attr(name) {
            Some(AttrValue::Ints(values)) => self.set_ints(i, &values),
            None => Ok(()),
            Some(_) => Err(wrong_type(name, "integers")),
        }
    }

    fn dtype(&self, id: Option<ValueId>) -> Option<DType> {
        let id = id?;
        let declared = self.program.value(id).ty.as_ref().map(|ty| ty.dtype);
        declared.or_else(|| self.dtypes.get(&id).copied())
    }

    /// The rank of a value, or of another one that has the same.
    fn rank(&self, id: Option<ValueId>, same: Option<ValueId>) -> Option<usize> {
        let rank = |id: ValueId| self.program.value(id).ty.as_ref().and_then(|ty| ty.rank());
        id.and_then(rank).or_else(|| same.and_then(rank))
    }

    fn is_empty_constant(&self, id: ValueId) -> bool {
        self.program.constant(id).is_some_and(|tensor| tensor.n_elements() == 0)
    }

    /// A constant with one number in a floating-point type; None for other types.
    fn scalar(&mut self, dtype: DType, value: f32) -> Result<Option<ValueId>> {
        let bytes = match dtype {
            F32 => value.to_le_bytes().to_vec(),
            F64 => f64::from(value).to_le_bytes().to_vec(),
            F16 => f16::from_f32(value).to_le_bytes().to_vec(),
            BF16 => bf16::from_f32(value).to_le_bytes().to_vec(),
            _ => return Ok(None),
        };
        let tensor = Tensor::from_bytes(dtype, &[], &bytes)?;
        Ok(Some(self.program.add_constant("", tensor)))
    }

    /// A node of an op in the version that programs hold.
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
    Error::new(ErrorKind::InvalidModel, format!("expected {expected} as the attribute {name:?}"))
}

/// Removes new attributes if their values mean what was before; else changes nothing that matters, because
/// the caller drops the node.
fn drop_attrs(node: &mut Node, attrs: &[(&str, Old)]) -> bool {
    attrs.iter().all(|(name, old)| match (node.take_attr(name), old) {
        (None, _) | (Some(_), Old::Any) => true,
        (Some(AttrValue::Int(found)), Old::Int(old)) => found == *old,
        (Some(AttrValue::String(found)), Old::Text(old)) => found == *old,
        _ => false,
    })
}

/// The element type of a node's `i`-th result, for operands that a rewriting has to make in the type of
/// another one. None if it does not follow from the node.
fn result_dtype(node: &Node, i: usize, known: &dyn Fn(ValueId) -> Option<DType>) -> Option<DType> {
    let operand = |i: usize| node.input(i).and_then(known);
    let given = |region: &str, i: usize| node.region(region)?.outputs.get(i).copied().and_then(known);
    if !node.op.domain.is_empty() {
        return None;
    }
    match (&*node.op.name, i) {
        ("Cast", _) => super::tensors::dtype(i32::try_from(node.int("to", 0)).ok()?).ok(),
        ("Shape" | "Size" | "NonZero" | "ArgMax" | "ArgMin" | "NonMaxSuppression", _) => Some(I64),
        ("TopK" | "MaxPool", 1) => Some(I64),
        ("Dropout", 1) => Some(BOOL),
        ("Equal" | "Less" | "LessOrEqual" | "Greater" | "GreaterOrEqual", _) => Some(BOOL),
        ("And" | "Or" | "Xor" | "Not" | "IsNaN" | "IsInf", _) => Some(BOOL),
        ("Where" | "CastLike" | "DequantizeLinear", _) => operand(1),
        ("OneHot", _) => operand(2),
        ("QuantizeLinear", _) => operand(2).or(Some(U8)),
        ("QLinearConv" | "QLinearMatMul", _) => operand(7),
        ("DynamicQuantizeLinear", _) => Some(if i == 1 { F32 } else { U8 }),
        ("ConvInteger" | "MatMulInteger", _) => Some(I32),
        ("ConstantOfShape", _) => match node.attr("value") {
            Some(AttrValue::Tensor(tensor)) => Some(tensor.dtype()),
            _ => Some(F32),
        },
        ("If", i) => given("then_branch", i),
        ("Loop", i) => given("body", i + 1),
        ("Scan", i) => given("body", i),
        // Most ops give what they take.
        _ => operand(0),
    }
}
