//! Moves an elementwise op that is done to every operand of a Concat behind it, so that it is done once.
//!
//! The example of TFRT's authors: 18 scalars are normalised, each by its own mean and deviation, and put together. Put
//! together first, they are one vector, and its normalisation is one op with a constant of 18 numbers. The pass moves
//! ops of one operand, and those of two if one is a constant with one value for all or one along the axis. The nodes
//! that made the operands of the Concat are removed. Ops stay that would become part of the convolution or product
//! before them.

use super::uses::Uses;
use super::{each_region, is_elementwise};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{Node, Op, Program, Region, Value, ValueId, catalogue};
use crate::tensor::{DType, F32, F64, I32, I64, Tensor, TensorType};
use devbay_plugin_api::reserve::{self, Size};
use std::collections::{HashMap, HashSet};

/// Ops that take over operations on their result.
const TAKES_TAILS: &[&str] = &["Conv", "ConvTranspose", "Gemm", "MatMul"];

/// Moves nodes where possible, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Out of memory for constants.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| hoist(program, region, stay))
}

fn hoist(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let uses = Uses::of_region(program, region);
    let mut makers: HashMap<ValueId, Node> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    let mut replaced: HashSet<ValueId> = HashSet::new();
    let mut gone = 0;
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        let mut concat = node;
        // Changes to the whole, in the order in which they are found: the last comes first.
        let mut behind = Vec::new();
        while let Some(done) =
            (!stay(&concat)).then(|| same_on_all(program, &concat, &makers, &uses, stay)).flatten()
        {
            gone += done.parts.len() - 1;
            replaced.extend(concat.inputs.iter().flatten());
            let (before, after) = done.apart(program, &concat)?;
            (concat, _) = (before, behind.push(after));
        }
        for node in std::iter::once(concat).chain(behind.into_iter().rev()) {
            if let (Some(output), [Some(_)]) = (node.output(0), node.outputs.as_slice()) {
                makers.insert(output, node.clone());
            }
            kept.push(node);
        }
    }
    // Their results had no other use.
    kept.retain(|node| !node.outputs.iter().flatten().any(|output| replaced.contains(output)));
    region.nodes = kept;
    Ok(gone)
}

/// The operation done to every operand of a Concat.
struct Done {
    /// The first of the nodes: its op and attributes are those of all.
    like: Node,
    /// Operands before it is done, in order.
    parts: Vec<ValueId>,
    /// Position of these operands in the nodes.
    side: usize,
    /// The other operands, if there are any.
    constants: Vec<ValueId>,
    /// The axis along which the parts are put together.
    axis: usize,
}

/// Returns the operation done alike to all operands of a node, if it is a Concat of several.
fn same_on_all(
    program: &Program,
    concat: &Node,
    makers: &HashMap<ValueId, Node>,
    uses: &Uses,
    stay: &dyn Fn(&Node) -> bool,
) -> Option<Done> {
    if !concat.op.is("Concat") || concat.inputs.len() < 2 {
        return None;
    }
    let shape = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
    let rank = shape(concat.output(0)?)?.len() as i64;
    let axis = concat.int("axis", 0);
    let axis = usize::try_from(if axis < 0 { axis + rank } else { axis }).ok()?;
    let mut done: Option<Done> = None;
    for input in &concat.inputs {
        let input = (*input)?;
        let node = makers.get(&input).filter(|node| uses.count(input) == 1 && !stay(node))?;
        let (side, constant) = match node.inputs.as_slice() {
            [Some(_)] if is_elementwise(&node.op) => (0, None),
            [Some(a), Some(b)] => match (program.constant(*a).is_some(), program.constant(*b).is_some()) {
                (false, true) if is_broadcast(&node.op, 1) => (0, Some(*b)),
                (true, false) if is_broadcast(&node.op, 0) => (1, Some(*a)),
                _ => return None,
            },
            _ => return None,
        };
        let part = node.input(side)?;
        // An operand that is broadcast has another shape than the result, and cannot be put together in its place.
        if shape(part)? != shape(input)? || makers.get(&part).is_some_and(takes_tails) {
            return None;
        }
        let new = || Done { like: node.clone(), parts: Vec::new(), side, constants: Vec::new(), axis };
        let all = done.get_or_insert_with(new);
        let attrs = |node: &Node| format!("{:?}", node.attrs);
        if all.like.op != node.op || all.side != side || attrs(&all.like) != attrs(node) {
            return None;
        }
        all.parts.push(part);
        all.constants.extend(constant);
        along_axis(program, constant, axis, &shape(part)?).ok()??;
    }
    done.filter(|done| {
        let dtype = |id: &ValueId| program.value(*id).ty.as_ref().map(|ty| ty.dtype);
        let alike = |ids: &[ValueId]| ids.iter().all(|id| dtype(id) == ids.first().and_then(dtype));
        dtype(&done.parts[0]).is_some() && alike(&done.parts) && alike(&done.constants)
    })
}

/// Returns whether an op of two operands is elementwise, and takes the one at `side` in any shape that can be
/// broadcast.
fn is_broadcast(op: &Op, side: usize) -> bool {
    catalogue::find(&op.domain, &op.name).is_some_and(|def| {
        let is_pair = def.inputs.n_min() == 2 || def.forms[0].is_some_and(|form| form.is_fold);
        is_pair && def.is_elementwise && !(side == 0 && def.keeps_first_shape)
    })
}

fn takes_tails(node: &Node) -> bool {
    TAKES_TAILS.contains(&&*node.op.name) || !node.op.domain.is_empty()
}

/// The purpose of the memory that the pass takes.
const OPERANDS: &str = "the operands of joined parts";

/// Returns the bytes that an operand is along an axis of a part, an element after the other: one value for all, or one
/// for each. Some(empty) if there is no such operand; None if it varies along another axis.
///
/// # Errors
/// Out of memory: leaving a constant out of only some parts would be wrong.
fn along_axis(
    program: &Program,
    constant: Option<ValueId>,
    axis: usize,
    part: &[usize],
) -> Result<Option<Vec<u8>>> {
    let Some(constant) = constant else { return Ok(Some(Vec::new())) };
    let (Some(tensor), Some(&extent)) = (program.constant(constant), part.get(axis)) else {
        return Ok(None);
    };
    let shape = tensor.shape();
    if !matches!(tensor.dtype(), F32 | F64 | I32 | I64) || shape.len() > part.len() {
        return Ok(None);
    }
    let size = usize::from(tensor.dtype().bits) / 8;
    let before = part.len() - shape.len();
    let varies = shape.iter().enumerate().find(|(_, extent)| **extent != 1).map(|(i, _)| i + before);
    match varies {
        None => {
            let size = Size::of(tensor.bytes().len()) * extent;
            let mut bytes = reserve::with_capacity(size.get(OPERANDS)?, OPERANDS)?;
            (0..extent).for_each(|_| bytes.extend_from_slice(tensor.bytes()));
            Ok(Some(bytes))
        }
        Some(at) if at == axis && tensor.bytes().len() == extent * size => {
            Ok(Some(reserve::copied(tensor.bytes(), OPERANDS)?))
        }
        Some(_) => Ok(None),
    }
}

impl Done {
    /// Returns the Concat of the original operands, and then the operation on its parts as one node.
    fn apart(&self, program: &mut Program, concat: &Node) -> Result<(Node, Node)> {
        let output = concat.output(0);
        let whole = output.and_then(|id| program.value(id).ty.as_ref()?.known_shape()).unwrap_or_default();
        let ty = |program: &Program, id: ValueId| program.value(id).ty.clone();
        let dtype = ty(program, self.parts[0]).map(|ty| ty.dtype);
        let joined = program
            .add_value(Value { ty: dtype.map(|dtype| TensorType::new(dtype, &whole)), ..Value::default() });
        let mut before = concat.clone();
        before.inputs = self.parts.iter().copied().map(Some).collect();
        before.outputs = vec![Some(joined)];
        let mut after = self.like.clone();
        after.outputs = vec![output];
        after.inputs[self.side] = Some(joined);
        if let Some(&first) = self.constants.first() {
            after.inputs[1 - self.side] = Some(self.joined_constants(program, first, whole.len())?);
        }
        Ok((before, after))
    }

    /// Returns the other operands of all parts as one constant along the axis.
    fn joined_constants(&self, program: &mut Program, first: ValueId, rank: usize) -> Result<ValueId> {
        let dtype: DType = program.value(first).constant.as_ref().map_or(F32, Tensor::dtype);
        let mut bytes = Vec::new();
        for (part, &constant) in self.parts.iter().zip(&self.constants) {
            let shape =
                program.value(*part).ty.as_ref().and_then(TensorType::known_shape).unwrap_or_default();
            let part = along_axis(program, Some(constant), self.axis, &shape)?.unwrap_or_default();
            reserve::extend(&mut bytes, part, OPERANDS)?;
        }
        let size = usize::from(dtype.bits) / 8;
        if bytes.chunks_exact(size).all(|value| value == &bytes[..size]) {
            let shape = vec![1; rank.min(1)];
            return Ok(program.add_constant("", Tensor::from_bytes(dtype, &shape, &bytes[..size])?));
        }
        let mut shape = vec![1; rank];
        shape[self.axis] = bytes.len() / size;
        Ok(program.add_constant("", Tensor::from_bytes(dtype, &shape, &bytes)?))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;

    #[test]
    fn scalars_that_are_normalised_are_a_vector_that_is() {
        check(
            "hoist-concat",
            "  %m1 = const f32[1] [1.0]\n\
             \u{20} %m2 = const f32[1] [2.0]\n\
             \u{20} %d = const f32[] [4.0]\n\
             \u{20} %a: f32[4,1] = Sub@14(%p, %m1)\n\
             \u{20} %b: f32[4,1] = Sub@14(%q, %m2)\n\
             \u{20} %c: f32[4,2] = Sub@14(%r, %m1)\n\
             \u{20} %e: f32[4,1] = Div@14(%a, %d)\n\
             \u{20} %f: f32[4,1] = Div@14(%b, %d)\n\
             \u{20} %g: f32[4,2] = Div@14(%c, %d)\n\
             \u{20} %h: f32[4,4] = Concat@13(%e, %f, %g) {axis = -1}\n\
             \u{20} return %h\n",
            "  %joined: f32[4,4] = Concat@13(%p, %q, %r) {axis = -1}\n\
             \u{20} %means = const f32[1,4] [1.0, 2.0, 1.0, 1.0]\n\
             \u{20} %moved: f32[4,4] = Sub@14(%joined, %means)\n\
             \u{20} %factor = const f32[1] [4.0]\n\
             \u{20} %h: f32[4,4] = Div@14(%moved, %factor)\n\
             \u{20} return %h\n",
        );
    }

    #[test]
    fn what_others_read_what_differs_and_what_is_fused_stays() {
        let others = "  %a: f32[4,1] = Exp@13(%p)\n\
                      \u{20} %b: f32[4,1] = Exp@13(%q)\n\
                      \u{20} %c: f32[4,2] = Concat@13(%a, %b) {axis = 1}\n\
                      \u{20} return %c, %a\n";
        check("hoist-concat", others, others);
        let differs = "  %a: f32[4,1] = Exp@13(%p)\n\
                       \u{20} %b: f32[4,1] = Neg@13(%q)\n\
                       \u{20} %c: f32[4,2] = Concat@13(%a, %b) {axis = 1}\n\
                       \u{20} return %c\n";
        check("hoist-concat", differs, differs);
        let fused = "  %m: f32[4,3] = MatMul@13(%p, %line)\n\
                     \u{20} %n: f32[4,3] = MatMul@13(%q, %line)\n\
                     \u{20} %a: f32[4,3] = Relu@14(%m)\n\
                     \u{20} %b: f32[4,3] = Relu@14(%n)\n\
                     \u{20} %c: f32[4,6] = Concat@13(%a, %b) {axis = 1}\n\
                     \u{20} return %c\n";
        check("hoist-concat", fused, fused);
    }

    #[test]
    fn constants_that_vary_along_another_axis_stay() {
        let body = "  %m = const f32[4,1] [1.0, 2.0, 3.0, 4.0]\n\
                    \u{20} %a: f32[4,1] = Sub@14(%p, %m)\n\
                    \u{20} %b: f32[4,1] = Sub@14(%q, %m)\n\
                    \u{20} %c: f32[4,2] = Concat@13(%a, %b) {axis = 1}\n\
                    \u{20} return %c\n";
        check("hoist-concat", body, body);
    }
}
