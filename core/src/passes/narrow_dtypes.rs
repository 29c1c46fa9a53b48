//! Computes in a narrower type of floats, where that was asked for.
//!
//! Each node whose operands have the wider type takes and makes the narrower one instead, if shape inference and a kernel
//! of the device allow it; casts stand at the borders: at inputs and results, which keep their types, around nodes that
//! cannot, that are pinned, or that have regions. Constants are converted once for all plans. A constant that would be
//! another number, infinite where it was not, or as a scalar zero where it was not, stays, and so do the nodes that read
//! it: masks of -1e9 and epsilons of 1e-12 are no numbers of 16 bits.
//!
//! Runs behind [`super::fuse_norms`]: a layer normalisation as one op adds up in the wider type, as many ops it would not.

use super::uses::reads;
use super::{Around, each_region};
use crate::cancel::look;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::implements;
use crate::program::catalogue::{self, OpKind};
use crate::program::infer::infer;
use crate::program::onnx_types::dtype_to_onnx;
use crate::program::{AttrValue, Node, Op, Program, Region, Value, ValueId};
use crate::tensor::{BF16, DType, F16, F32, F64, Tensor, TensorType, dtype_from_name, dtype_name};
use devbay_plugin_api::locks::lock;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

/// A type of floats, and a narrower one that takes its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Narrowing {
    from: DType,
    to: DType,
}

impl Narrowing {
    /// From f64 or f32 to a type of fewer bits: f32, f16 or bf16.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for other types. Integers are left out: one that no longer fits would be another
    /// number, not a less exact one.
    pub fn new(from: DType, to: DType) -> Result<Self> {
        if [F64, F32].contains(&from) && [F32, F16, BF16].contains(&to) && from.bits > to.bits {
            return Ok(Self { from, to });
        }
        let text = format!(
            "expected f64=f32, f64=f16, f64=bf16, f32=f16 or f32=bf16, found {}={}",
            dtype_name(from),
            dtype_name(to)
        );
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Returns the narrower type.
    pub fn to(self) -> DType {
        self.to
    }
}

impl FromStr for Narrowing {
    type Err = Error;

    /// As `f32=f16`.
    fn from_str(text: &str) -> Result<Self> {
        let types = text.split_once('=').map(|(from, to)| (dtype_from_name(from), dtype_from_name(to)));
        let Some((Some(from), Some(to))) = types else {
            let text = format!("expected two element types as in f32=f16, found {text}");
            return Err(Error::new(ErrorKind::InvalidArgument, text));
        };
        Self::new(from, to)
    }
}

impl fmt::Display for Narrowing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", dtype_name(self.from), dtype_name(self.to))
    }
}

/// A constant and its narrowed form; None for one that would be another number.
type Kept = (Tensor, Option<Tensor>);

/// Constants that were converted, by their identity: plans for other shapes have the same ones.
#[derive(Default)]
pub(crate) struct Narrowed(Mutex<HashMap<(usize, usize), Kept>>);

impl Narrowed {
    fn get(&self, tensor: &Tensor) -> Option<Option<Tensor>> {
        let kept = lock(&self.0);
        let (_, narrow) = kept.get(&tensor.identity())?;
        // Tensors of other shapes may share the bytes.
        Some(narrow.as_ref().and_then(|narrow| narrow.reshaped(tensor.shape()).ok()))
    }

    fn keep(&self, tensor: &Tensor, narrow: Option<Tensor>) {
        let mut kept = lock(&self.0);
        // Constants that only this list has were folded for a plan that is gone.
        kept.retain(|_, (original, _)| !original.is_last());
        kept.insert(tensor.identity(), (tensor.clone(), narrow));
    }
}

/// Narrows nodes where possible. Returns the number of nodes that compute in the narrower type now.
///
/// # Errors
/// Errors that a kernel reports for constants.
pub fn run(program: &mut Program, around: &Around<'_>) -> Result<usize> {
    let Some((narrowing, narrowed)) = around.narrow else { return Ok(0) };
    let mut pass = Pass { narrowing, narrowed, around, constants: HashMap::new() };
    each_region(program, &mut |program, region| pass.region(program, region))
}

struct Pass<'p, 'a> {
    narrowing: Narrowing,
    narrowed: &'p Narrowed,
    around: &'p Around<'a>,
    /// New values of constants; None for those that stay.
    constants: HashMap<ValueId, Option<ValueId>>,
}

/// A node in the narrower type.
struct Choice {
    node: Node,
    /// Inputs that are narrow.
    inputs: Vec<usize>,
    /// Outputs that are narrow, and their types.
    outputs: Vec<(usize, TensorType)>,
}

impl Pass<'_, '_> {
    fn region(&mut self, program: &mut Program, region: &mut Region) -> Result<usize> {
        let mut choices: Vec<Option<Choice>> = Vec::with_capacity(region.nodes.len());
        for node in &region.nodes {
            look()?;
            choices.push(self.choice(program, node)?);
        }
        let n = choices.iter().flatten().count();
        if n == 0 {
            return Ok(0);
        }
        // Values that are read in the wider type.
        let mut wide: HashSet<ValueId> = region.outputs.iter().copied().collect();
        for (node, choice) in region.nodes.iter().zip(&choices) {
            match choice {
                None => reads(node, &mut wide),
                Some(choice) => {
                    let inputs = node.inputs.iter().enumerate();
                    wide.extend(inputs.filter(|(i, _)| !choice.inputs.contains(i)).filter_map(|(_, id)| *id));
                }
            }
        }
        let mut twins: HashMap<ValueId, ValueId> = HashMap::new();
        let mut nodes = Vec::with_capacity(region.nodes.len());
        for (node, choice) in std::mem::take(&mut region.nodes).into_iter().zip(choices) {
            let Some(mut choice) = choice else {
                if let Some((source, made)) = self.widening(program, &node) {
                    twins.insert(made, source);
                }
                nodes.push(node);
                continue;
            };
            for &i in &choice.inputs {
                let Some(id) = node.input(i) else { continue };
                let twin = match (self.constants.get(&id), twins.get(&id)) {
                    (Some(&Some(constant)), _) => constant,
                    (_, Some(&twin)) => twin,
                    _ => {
                        let twin = self.twin(program, id);
                        nodes.push(cast(id, twin, self.narrowing.to)?);
                        twins.insert(id, twin);
                        twin
                    }
                };
                choice.node.inputs[i] = Some(twin);
            }
            let mut casts = Vec::new();
            for (i, ty) in choice.outputs {
                let Some(id) = node.output(i) else { continue };
                let name = program.value(id).name.clone();
                let twin = program.add_value(Value { name, ty: Some(ty), constant: None });
                choice.node.outputs[i] = Some(twin);
                twins.insert(id, twin);
                if wide.contains(&id) {
                    casts.push(cast(twin, id, self.narrowing.from)?);
                }
            }
            nodes.push(choice.node);
            nodes.extend(casts);
        }
        region.nodes = nodes;
        Ok(n)
    }

    /// Returns the narrow counterpart of a value of the wider type.
    fn twin(&self, program: &mut Program, id: ValueId) -> ValueId {
        let Value { name, ty, .. } = program.value(id).clone();
        let ty = ty.map(|ty| TensorType { dtype: self.narrowing.to, ..ty });
        program.add_value(Value { name, ty, constant: None })
    }

    /// Returns the operand and the result of a Cast from the narrower type to the wider one.
    fn widening(&self, program: &Program, node: &Node) -> Option<(ValueId, ValueId)> {
        let (source, made) = node.input(0).zip(node.output(0)).filter(|_| node.op.is("Cast"))?;
        let is = |id: ValueId, dtype| program.value(id).ty.as_ref().is_some_and(|ty| ty.dtype == dtype);
        (is(source, self.narrowing.to) && is(made, self.narrowing.from)).then_some((source, made))
    }

    /// The node in the narrower type; None if it stays as it is.
    fn choice(&mut self, program: &mut Program, node: &Node) -> Result<Option<Choice>> {
        let Narrowing { from, to } = self.narrowing;
        let Some(def) = catalogue::find(&node.op.domain, &node.op.name) else { return Ok(None) };
        if (self.around.stay)(node) || !matches!(def.kind, OpKind::Kernel | OpKind::View) {
            return Ok(None);
        }
        let ty = |id: ValueId| program.value(id).ty.clone().filter(|ty| ty.known_shape().is_some());
        let types = |ids: &[Option<ValueId>]| -> Option<Vec<Option<TensorType>>> {
            ids.iter().map(|id| id.map_or(Some(None), |id| ty(id).map(Some))).collect()
        };
        let (Some(inputs), Some(outputs)) = (types(&node.inputs), types(&node.outputs)) else {
            return Ok(None);
        };
        let is_wide = |ty: &Option<TensorType>| ty.as_ref().is_some_and(|ty| ty.dtype == from);
        if !inputs.iter().chain(&outputs).any(is_wide) {
            return Ok(None);
        }
        let mut narrow = node.clone();
        if node.op.is("Cast") {
            // This pass puts those between the two types at borders.
            if inputs.iter().chain(&outputs).flatten().all(|ty| [from, to].contains(&ty.dtype)) {
                return Ok(None);
            }
            if outputs.first().is_some_and(is_wide) {
                narrow.set_attr("to", AttrValue::Int(dtype_to_onnx(to)?));
            }
        }
        let wide: Vec<usize> = (0..inputs.len()).filter(|&i| is_wide(&inputs[i])).collect();
        let is_constant = |i: &usize| node.input(*i).is_some_and(|id| program.constant(id).is_some());
        let (constants, values): (Vec<usize>, Vec<usize>) = wide.iter().partition(|i| is_constant(i));
        // Some operands have a type of their own, as the scales of a Resize.
        let sets = if constants.is_empty() { vec![wide] } else { vec![wide, values] };
        for set in sets {
            let found = self.outputs_of(program, &narrow, (&inputs, &outputs), &set);
            let Some(outputs) = found.filter(|outputs| set.len() + outputs.len() > 0) else { continue };
            let ids: Vec<ValueId> =
                set.iter().filter(|i| constants.contains(i)).filter_map(|&i| node.input(i)).collect();
            let mut fit = true;
            for id in ids {
                fit &= self.constant(program, id)?.is_some();
            }
            if fit {
                return Ok(Some(Choice { node: narrow, inputs: set, outputs }));
            }
        }
        Ok(None)
    }

    /// Returns the results that are narrow if these inputs are; None if the op is not defined so, or no kernel takes
    /// it.
    fn outputs_of(
        &self,
        program: &Program,
        node: &Node,
        (inputs, outputs): (&[Option<TensorType>], &[Option<TensorType>]),
        set: &[usize],
    ) -> Option<Vec<(usize, TensorType)>> {
        let Narrowing { from, to } = self.narrowing;
        let mut inputs = inputs.to_vec();
        for &i in set {
            inputs[i].as_mut()?.dtype = to;
        }
        let constant = |(i, id): (usize, &Option<ValueId>)| {
            let tensor = id.and_then(|id| program.constant(id));
            tensor.filter(|_| !set.contains(&i)).cloned()
        };
        let constants: Vec<Option<Tensor>> = node.inputs.iter().enumerate().map(constant).collect();
        let found = infer(node, &inputs, &constants).ok()?;
        let mut narrow = Vec::new();
        for (i, (old, new)) in outputs.iter().zip(&found).enumerate() {
            let Some(old) = old else { continue };
            if old.dtype == from && new.dtype == to && old.shape == new.shape {
                narrow.push((i, new.clone()));
            } else if old != new {
                return None;
            }
        }
        let made: Vec<Option<&TensorType>> =
            outputs.iter().zip(&found).map(|(old, new)| old.as_ref().map(|_| new)).collect();
        let given: Vec<Option<&TensorType>> = inputs.iter().map(Option::as_ref).collect();
        let kernels = self.around.kernels;
        let is_view = catalogue::find(&node.op.domain, &node.op.name)?.kind == OpKind::View;
        let mut of_op = kernels.find(&node.op.domain, &node.op.name);
        // A compiler has no list.
        let runs = is_view
            || kernels.is_empty()
            || of_op.any(|kernel| implements(kernel, node) && kernel.takes(&given, &made).is_ok());
        runs.then_some(narrow)
    }

    /// Returns the new value of a constant; None if it stays.
    fn constant(&mut self, program: &mut Program, id: ValueId) -> Result<Option<ValueId>> {
        if let Some(known) = self.constants.get(&id) {
            return Ok(*known);
        }
        let Some(tensor) = program.constant(id).cloned() else { return Ok(None) };
        let narrow = match self.narrowed.get(&tensor) {
            Some(known) => known,
            None => {
                let made = self.converted(program, id, &tensor)?;
                self.narrowed.keep(&tensor, made.clone());
                made
            }
        };
        let name = program.value(id).name.clone();
        let made = narrow.map(|narrow| program.add_constant(&name, narrow));
        self.constants.insert(id, made);
        Ok(made)
    }

    fn converted(&self, program: &mut Program, id: ValueId, tensor: &Tensor) -> Result<Option<Tensor>> {
        let Narrowing { from, to } = self.narrowing;
        let node = cast(id, self.twin(program, id), to)?;
        let made = self.around.evaluate(&node, &[Some(tensor.clone())])?;
        let Some(made) = made.and_then(|results| results.into_iter().next()) else { return Ok(None) };
        let (old, new) = (tensor.bytes(), made.bytes());
        let keeps_zero = made.n_elements() != 1 || is_zero(from, old) == is_zero(to, new);
        Ok((n_infinite(from, old) == n_infinite(to, new) && keeps_zero).then_some(made))
    }
}

fn cast(from: ValueId, to: ValueId, dtype: DType) -> Result<Node> {
    let def = catalogue::find("", "Cast")
        .ok_or_else(|| Error::new(ErrorKind::Internal, "the catalogue has no Cast"))?;
    let mut node = Node::new(Op::of(def), vec![Some(from)], vec![Some(to)]);
    node.set_attr("to", AttrValue::Int(dtype_to_onnx(dtype)?));
    Ok(node)
}

/// Returns the number of infinite elements.
fn n_infinite(dtype: DType, bytes: &[u8]) -> usize {
    let infinity: u64 = match dtype {
        F64 => f64::INFINITY.to_bits(),
        F16 => half::f16::INFINITY.to_bits().into(),
        BF16 => half::bf16::INFINITY.to_bits().into(),
        _ => f32::INFINITY.to_bits().into(),
    };
    magnitudes(dtype, bytes).filter(|&magnitude| magnitude == infinity).count()
}

/// Returns whether all elements are zero.
fn is_zero(dtype: DType, bytes: &[u8]) -> bool {
    magnitudes(dtype, bytes).all(|magnitude| magnitude == 0)
}

/// Returns the bits of each element but its sign.
fn magnitudes(dtype: DType, bytes: &[u8]) -> impl Iterator<Item = u64> {
    let sign = 1u64 << (dtype.bits - 1);
    bytes.chunks_exact(usize::from(dtype.bits / 8)).map(move |element| {
        let mut bits = [0; 8];
        bits[..element.len()].copy_from_slice(element);
        u64::from_le_bytes(bits) & !sign
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::check_narrowed;
    use super::*;

    fn expect(before: &str, after: &str) {
        check_narrowed("narrow-dtypes", Some(Narrowing::new(F32, F16).unwrap()), before, after);
    }

    #[test]
    fn casts_stand_where_types_change() {
        expect(
            "  %a: f32[2,3] = Relu@14(%x)\n\
             \u{20} %b: f32[2,3] = Add@14(%a, %row)\n\
             \u{20} %c: f32[2,3] = Exp@13(%b)\n\
             \u{20} %d: f32[2,3] = Add@14(%c, %b)\n\
             \u{20} return %d\n",
            "  %x2: f16[2,3] = Cast@28(%x) {to = 10}\n\
             \u{20} %a: f16[2,3] = Relu@14(%x2)\n\
             \u{20} %row2: f16[3] = Cast@28(%row) {to = 10}\n\
             \u{20} %b: f16[2,3] = Add@14(%a, %row2)\n\
             \u{20} %b2: f32[2,3] = Cast@28(%b) {to = 1}\n\
             \u{20} %c: f32[2,3] = Exp@13(%b2)\n\
             \u{20} %c2: f16[2,3] = Cast@28(%c) {to = 10}\n\
             \u{20} %d: f16[2,3] = Add@14(%c2, %b)\n\
             \u{20} %d2: f32[2,3] = Cast@28(%d) {to = 1}\n\
             \u{20} return %d2\n",
        );
    }

    #[test]
    fn constants_are_converted_but_for_those_that_would_be_others() {
        expect(
            "  %one = const f32[1] [1.0]\n\
             \u{20} %mask = const f32[1] [-1000000000.0]\n\
             \u{20} %small = const f32[] [0.000000000001]\n\
             \u{20} %a: f32[2,3] = Add@14(%x, %one)\n\
             \u{20} %b: f32[2,3] = Add@14(%x, %mask)\n\
             \u{20} %c: f32[2,3] = Add@14(%x, %small)\n\
             \u{20} return %a, %b, %c\n",
            "  %mask = const f32[1] [-1000000000.0]\n\
             \u{20} %small = const f32[] [0.000000000001]\n\
             \u{20} %one = const f16[1] [1.0]\n\
             \u{20} %x2: f16[2,3] = Cast@28(%x) {to = 10}\n\
             \u{20} %a: f16[2,3] = Add@14(%x2, %one)\n\
             \u{20} %a2: f32[2,3] = Cast@28(%a) {to = 1}\n\
             \u{20} %b: f32[2,3] = Add@14(%x, %mask)\n\
             \u{20} %c: f32[2,3] = Add@14(%x, %small)\n\
             \u{20} return %a2, %b, %c\n",
        );
    }

    #[test]
    fn casts_of_the_model_become_narrow_and_operands_of_a_fixed_type_stay() {
        expect(
            "  %shape: i64[2] = Shape@25(%x)\n\
             \u{20} %sizes: f32[2] = Cast@28(%shape) {to = 1}\n\
             \u{20} %scales = const f32[2] [1.0, 2.0]\n\
             \u{20} %a: f32[2,6] = Resize@19(%x, _, %scales)\n\
             \u{20} %extents = const i64[1] [12]\n\
             \u{20} %b: f32[12] = Reshape@25(%a, %extents)\n\
             \u{20} %pinned: f32[12] = Relu@14(%b) as \"pinned\"\n\
             \u{20} return %pinned, %sizes\n",
            "  %shape: i64[2] = Shape@25(%x)\n\
             \u{20} %sizes: f16[2] = Cast@28(%shape) {to = 10}\n\
             \u{20} %sizes2: f32[2] = Cast@28(%sizes) {to = 1}\n\
             \u{20} %scales = const f32[2] [1.0, 2.0]\n\
             \u{20} %x2: f16[2,3] = Cast@28(%x) {to = 10}\n\
             \u{20} %a: f16[2,6] = Resize@19(%x2, _, %scales)\n\
             \u{20} %extents = const i64[1] [12]\n\
             \u{20} %b: f16[12] = Reshape@25(%a, %extents)\n\
             \u{20} %b2: f32[12] = Cast@28(%b) {to = 1}\n\
             \u{20} %pinned: f32[12] = Relu@14(%b2) as \"pinned\"\n\
             \u{20} return %pinned, %sizes2\n",
        );
    }

    #[test]
    fn only_floats_become_narrower() {
        let said = |text: &str| text.parse::<Narrowing>().map(|to| to.to_string()).map_err(|e| e.to_string());
        assert_eq!(said("f32=bf16").as_deref(), Ok("f32=bf16"));
        for text in ["i64=i32", "f16=f32", "f32=f32", "f32", "f32=wide"] {
            let error = said(text).unwrap_err();
            assert!(error.contains("expected") && error.contains(text), "{error}");
        }
    }
}
