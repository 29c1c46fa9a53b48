//! Ops that move or choose elements do so with bytes.
//!
//! `QuantizeLinear(op(x))` is `op(QuantizeLinear(x))` for an op that gives some of its elements back as they are, so that
//! a QuantizeLinear moves in front of such ops, towards a DequantizeLinear with the same scale and zero point. The two
//! then cancel: a byte that is dequantised and quantised again is the same byte. In front of ops that keep the number of
//! elements it moves in any case, since it may be the end of a convolution there.
//!
//! Relu is such an op on what was dequantised, where no NaN is: it is then a maximum with the zero point. MaxPool would be one, too.
//! It stays f32, where kernels work on vectors: those of bytes took thirty times as long on the processor.

use super::super::renames::Renames;
use super::super::uses::Uses;
use super::super::{Around, scalar};
use super::linear::{Linear, dequantised, is_f32, quantised};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::{KernelTable, implements};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Op, Program, Region, Value, ValueId};
use crate::tensor::{DType, Tensor, TensorType};
use std::collections::HashMap;

/// An op that moves elements or chooses among them.
struct Move {
    /// Its operands that have the elements.
    data: Vec<usize>,
    /// True if it keeps the number of elements, and NaN.
    keeps_all: bool,
}

/// Moves conversions where possible, and returns the number of changes.
///
/// # Errors
/// Out of memory for constants; cancelled, or past the deadline.
pub fn lower(program: &mut Program, region: &mut Region, around: &Around<'_>) -> Result<usize> {
    let uses = Uses::of_region(program, region);
    let sources = Sources::of(program, region, around)?;
    let lowered = sources.chosen(program, region, &uses, around)?;
    let mut bytes: HashMap<ValueId, Bytes> = HashMap::new();
    let (mut same, mut made, mut changes) = (Vec::new(), Vec::new(), 0);
    let nodes = std::mem::take(&mut region.nodes);
    for (at, node) in nodes.iter().enumerate().rev() {
        look()?;
        if let (Some((number, linear)), Some(output), false) =
            (quantised(program, node), node.output(0), (around.stay)(node))
        {
            if let Some(source) = sources.dequantised(number, linear) {
                same.push((output, source));
                changes += 1;
                continue;
            }
            if sources.makers.get(&number).is_some_and(|maker| lowered.contains_key(maker)) {
                bytes.insert(number, Bytes { id: output, by: at });
                continue;
            }
        }
        let Some(&linear) = lowered.get(&at) else {
            // A conversion that moved up stands behind the node whose result it takes.
            for id in node.outputs.iter().flatten() {
                if let Some(moved) = bytes.remove(id) {
                    let mut quantise = nodes[moved.by].clone();
                    (quantise.inputs[0], quantise.outputs[0]) = (Some(*id), Some(moved.id));
                    made.push(quantise);
                }
            }
            made.push(node.clone());
            continue;
        };
        changes += 1;
        let by = node.output(0).and_then(|id| bytes.get(&id)).map_or(at, |bytes| bytes.by);
        let mut moved = node.clone();
        for id in moved.outputs.iter_mut().flatten() {
            *id = bytes[id].id;
        }
        let Some(of) = Move::of(node) else { continue };
        for &i in &of.data {
            let Some(id) = node.input(i) else { continue };
            let source = sources.dequantised(id, linear).or_else(|| bytes.get(&id).map(|bytes| bytes.id));
            let source = source.unwrap_or_else(|| {
                let ty = program.value(id).ty.clone().map(|ty| TensorType { dtype: linear.dtype, ..ty });
                let new = program.add_value(Value { ty, ..Value::default() });
                bytes.insert(id, Bytes { id: new, by });
                new
            });
            moved.inputs[i] = Some(source);
        }
        if node.op.is("Relu") && linear.zero == linear.range()[0] {
            same.extend(moved.output(0).zip(moved.input(0)));
            continue;
        }
        if node.op.is("Relu") {
            moved.op = Op::of(catalogue::find("", "Max").expect("the catalogue has ONNX's ops"));
            moved.inputs.push(Some(byte(program, linear.zero, linear.dtype)?));
        }
        if let Some(value) = pad_value(program, node) {
            moved.inputs.resize(moved.inputs.len().max(3), None);
            moved.inputs[2] = Some(byte(program, linear.of(value), linear.dtype)?);
        }
        made.push(moved);
    }
    made.reverse();
    region.nodes = made;
    // The first ones first: what a later one stands for may be gone, too.
    let mut renames = Renames::default();
    same.into_iter().rev().for_each(|(old, new)| renames.add(old, new));
    renames.region(region);
    Ok(changes)
}

/// The bytes of a value of f32 that is wanted as bytes alone.
struct Bytes {
    id: ValueId,
    /// The QuantizeLinear that makes them.
    by: usize,
}

/// Makes a constant of one byte.
pub fn byte(program: &mut Program, value: i32, dtype: DType) -> Result<ValueId> {
    // Two's complement: the low byte is that of u8 and of i8.
    Ok(program.add_constant("", Tensor::from_bytes(dtype, &[], &[value as u8])?))
}

impl Move {
    /// Returns how a node moves elements; None if it does not.
    fn of(node: &Node) -> Option<Self> {
        if !node.op.domain.is_empty() {
            return None;
        }
        let first = |keeps_all| Some(Self { data: vec![0], keeps_all });
        match &*node.op.name {
            "Flatten" | "Identity" | "Reshape" | "Squeeze" | "Transpose" | "Unsqueeze" => first(true),
            "DepthToSpace" | "SpaceToDepth" => first(true),
            "Expand" | "Gather" | "GatherElements" | "GatherND" | "Pad" | "Relu" | "Slice" | "Split"
            | "Tile" => first(false),
            // A nearest element, or a number of its own outside.
            "Resize"
                if node.string("mode", "nearest") == "nearest"
                    && node.string("coordinate_transformation_mode", "") != "tf_crop_and_resize" =>
            {
                first(false)
            }
            "Concat" => Some(Self { data: (0..node.inputs.len()).collect(), keeps_all: false }),
            _ => None,
        }
    }
}

/// Returns the number that a Pad puts around its data, if it is known.
fn pad_value(program: &Program, node: &Node) -> Option<f32> {
    if !node.op.is("Pad") || node.string("mode", "constant") != "constant" {
        return None;
    }
    node.input(2).map_or(Some(0.0), |id| scalar(program, id)).filter(|value| !value.is_nan())
}

/// Returns whether a node may move bytes in place of f32: a kernel takes them, and nothing else of it is f32.
fn takes_bytes(program: &Program, node: &Node, of: &Move, linear: Linear, kernels: &KernelTable) -> bool {
    let Some(def) = catalogue::find("", &node.op.name) else { return false };
    if node.op.is("Pad")
        && node.string("mode", "constant") == "constant"
        && pad_value(program, node).is_none()
    {
        return false;
    }
    if def.kind == OpKind::View || node.op.is("Relu") && linear.zero == linear.range()[0] {
        return true;
    }
    let as_bytes = |id: ValueId| {
        let ty = program.value(id).ty.clone()?;
        Some(TensorType { dtype: linear.dtype, ..ty })
    };
    let mut types: Vec<Option<TensorType>> = Vec::new();
    for (i, id) in node.inputs.iter().enumerate() {
        let is_data = of.data.contains(&i) || node.op.is("Pad") && i == 2;
        types.push(id.and_then(|id| if is_data { as_bytes(id) } else { program.value(id).ty.clone() }));
    }
    let outputs: Vec<Option<TensorType>> = node.outputs.iter().map(|id| id.and_then(as_bytes)).collect();
    let mut asked = node.clone();
    if node.op.is("Relu") {
        asked.op = Op::of(catalogue::find("", "Max").expect("the catalogue has ONNX's ops"));
        types.push(Some(TensorType::new(linear.dtype, &[])));
    }
    let inputs: Vec<Option<&TensorType>> = types.iter().map(Option::as_ref).collect();
    let outputs: Vec<Option<&TensorType>> = outputs.iter().map(Option::as_ref).collect();
    let mut all = kernels.find("", &asked.op.name);
    all.any(|kernel| implements(kernel, &asked) && kernel.takes(&inputs, &outputs).is_ok())
}

/// Where the values of a region come from.
struct Sources {
    /// By value, the node that makes it.
    makers: HashMap<ValueId, usize>,
    /// Bytes that a value was dequantised from.
    dequantised: HashMap<ValueId, (ValueId, Linear)>,
    /// Values that are dequantised bytes, moved or not.
    moved: HashMap<ValueId, Linear>,
}

impl Sources {
    fn of(program: &Program, region: &Region, around: &Around<'_>) -> Result<Self> {
        let mut sources = Self { makers: HashMap::new(), dequantised: HashMap::new(), moved: HashMap::new() };
        for (at, node) in region.nodes.iter().enumerate() {
            look()?;
            sources.makers.extend(node.outputs.iter().flatten().map(|id| (*id, at)));
            if (around.stay)(node) {
                continue;
            }
            if let (Some(source), Some(output)) = (dequantised(program, node), node.output(0)) {
                sources.dequantised.insert(output, source);
                sources.moved.insert(output, source.1);
            } else if let Some(linear) = sources.of_all(node) {
                sources.moved.extend(node.outputs.iter().flatten().map(|id| (*id, linear)));
            }
        }
        Ok(sources)
    }

    /// Returns the scale and the zero point of all the bytes that a node moves.
    fn of_all(&self, node: &Node) -> Option<Linear> {
        let of = Move::of(node)?;
        let linear = *self.moved.get(&node.input(*of.data.first()?)?)?;
        let is_same = |i: &usize| node.input(*i).and_then(|id| self.moved.get(&id)) == Some(&linear);
        of.data.iter().all(is_same).then_some(linear)
    }

    /// Returns the bytes that a value was dequantised from with these numbers.
    fn dequantised(&self, id: ValueId, linear: Linear) -> Option<ValueId> {
        let (source, of) = self.dequantised.get(&id)?;
        (*of == linear).then_some(*source)
    }

    /// Chooses the nodes that move bytes, with the scale and the zero point of each.
    fn chosen(
        &self,
        program: &Program,
        region: &Region,
        uses: &Uses,
        around: &Around<'_>,
    ) -> Result<HashMap<usize, Linear>> {
        let mut chosen = HashMap::new();
        // Values that are read as bytes alone.
        let mut wanted: HashMap<ValueId, Linear> = HashMap::new();
        for (at, node) in region.nodes.iter().enumerate().rev() {
            look()?;
            if (around.stay)(node) {
                continue;
            }
            if let Some((number, linear)) = quantised(program, node) {
                if uses.count(number) == 1 {
                    wanted.insert(number, linear);
                }
                continue;
            }
            let Some(of) = Move::of(node) else { continue };
            let mut outputs = node.outputs.iter().flatten();
            let Some(&linear) = outputs.next().and_then(|id| wanted.get(id)) else { continue };
            let is_wanted = outputs.all(|id| wanted.get(id) == Some(&linear));
            let from = |i: &usize| {
                let id = node.input(*i)?;
                let is_ours = uses.count(id) == 1 && self.makers.contains_key(&id);
                let is_moved = self.moved.get(&id) == Some(&linear);
                let may_be = self.dequantised(id, linear).is_some() || is_ours && (is_moved || of.keeps_all);
                (may_be && is_f32(program, id)).then_some(id)
            };
            let data: Option<Vec<ValueId>> = of.data.iter().map(from).collect();
            let Some(data) = data.filter(|_| is_wanted) else { continue };
            if takes_bytes(program, node, &of, linear, around.kernels) {
                wanted.extend(data.into_iter().map(|id| (id, linear)));
                chosen.insert(at, linear);
            }
        }
        Ok(chosen)
    }
}
