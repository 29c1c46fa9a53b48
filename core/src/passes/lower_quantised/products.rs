//! Convolutions and products of dequantised bytes, as sums of integers.
//!
//! - Conv becomes QLinearConv and MatMul QLinearMatMul if QuantizeLinear follows, with or without a Relu or Clip between.
//!   What of these the range of a byte does not do already becomes a Max and a Min of bytes.
//! - Another MatMul, and Gemm, becomes MatMulIntegerToFloat, whose result is f32, with the bias as it is.
//!
//! A sum of integers is exact, where f32 rounds. So that nothing else differs, it must fit in 32 bits, and its factors
//! must be normal numbers by which no sum becomes infinite. A bias must be a whole number of the sum's steps, up to the
//! rounding of f32, as what a quantiser writes is: then it becomes that integer.

use super::super::fuse_integers::FUSED;
use super::super::search::{Search, has_kernel};
use super::super::{Around, clip_limits};
use super::linear::{Linear, Scales, byte_type, is_f32, quantised};
use super::moves::byte;
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId, catalogue};
use crate::tensor::{DType, F32, I8, I32, Tensor, TensorType};
use devbay_plugin_api::reserve;
use std::collections::HashMap;

/// Lowers products where possible, and returns their number.
///
/// # Errors
/// Out of memory for constants; cancelled, or past the deadline.
pub fn lower(program: &mut Program, region: &mut Region, around: &Around<'_>) -> Result<usize> {
    let mut found: HashMap<usize, Lowered> = HashMap::new();
    let mut gone = vec![false; region.nodes.len()];
    {
        let search = Search::of(program, region, around.stay);
        for (at, node) in region.nodes.iter().enumerate().filter(|(_, node)| !(around.stay)(node)) {
            look()?;
            if let Some((lowered, members)) = Lowered::to_bytes(&search, around.kernels, node) {
                members.into_iter().for_each(|member| gone[member] = true);
                found.insert(at, lowered);
            }
        }
        for (at, node) in region.nodes.iter().enumerate().filter(|(_, node)| !(around.stay)(node)) {
            look()?;
            if !gone[at]
                && let Some(lowered) = Lowered::to_floats(&search, around.kernels, node)
            {
                found.insert(at, lowered);
            }
        }
    }
    let n = found.len();
    let mut kept = Vec::with_capacity(region.nodes.len());
    for (at, node) in std::mem::take(&mut region.nodes).into_iter().enumerate() {
        match found.remove(&at) {
            Some(lowered) => lowered.apply(program, &node, &mut kept)?,
            None if gone[at] => {}
            None => kept.push(node),
        }
    }
    region.nodes = kept;
    Ok(n)
}

/// An operand of the node that a product becomes.
enum Operand {
    Value(ValueId),
    /// A constant matrix of bytes, with its axes exchanged.
    Transposed(ValueId),
    Scales(Vec<f32>),
    Zeros(Vec<i32>, DType),
    Bias(Vec<i32>),
}

impl Operand {
    fn ty(&self, program: &Program) -> Option<TensorType> {
        Some(match self {
            Self::Value(id) => program.value(*id).ty.clone()?,
            Self::Transposed(id) => {
                let ty = program.value(*id).ty.as_ref()?;
                let [rows, columns] = ty.known_shape()?[..] else { return None };
                TensorType::new(ty.dtype, &[columns, rows])
            }
            Self::Scales(scales) => TensorType::new(F32, &extents(scales)),
            Self::Zeros(zeros, dtype) => TensorType::new(*dtype, &extents(zeros)),
            Self::Bias(bias) => TensorType::new(I32, &[bias.len()]),
        })
    }

    fn into_value(self, program: &mut Program) -> Result<ValueId> {
        let tensor = match self {
            Self::Value(id) => return Ok(id),
            Self::Transposed(id) => {
                let Some(tensor) = program.constant(id) else { return Ok(id) };
                transposed(tensor)?
            }
            Self::Scales(scales) => Tensor::from_elements(&extents(&scales), &scales)?,
            Self::Zeros(zeros, dtype) => {
                // Two's complement: the low byte is that of u8 and of i8.
                let bytes: Vec<u8> = zeros.iter().map(|&zero| zero as u8).collect();
                Tensor::from_bytes(dtype, &extents(&zeros), &bytes)?
            }
            Self::Bias(bias) => Tensor::from_elements(&[bias.len()], &bias)?,
        };
        Ok(program.add_constant("", tensor))
    }
}

/// Extents of numbers: a scalar for one, else a vector.
fn extents<T>(numbers: &[T]) -> Vec<usize> {
    if numbers.len() == 1 { Vec::new() } else { vec![numbers.len()] }
}

/// Returns a matrix of bytes with its axes exchanged.
fn transposed(tensor: &Tensor) -> Result<Tensor> {
    let [rows, columns] = tensor.shape()[..] else { return Ok(tensor.clone()) };
    let from = tensor.bytes();
    let mut bytes = reserve::with_capacity(from.len(), "transposed weights")?;
    for column in 0..columns {
        bytes.extend((0..rows).map(|row| from[row * columns + column]));
    }
    Tensor::from_bytes(tensor.dtype(), &[columns, rows], &bytes)
}

/// An operand of a product: bytes that are dequantised.
struct Side {
    bytes: ValueId,
    scales: Scales,
}

impl Side {
    /// Of a value with one scale, or with one for each position of an axis.
    fn of(search: &Search<'_>, id: ValueId, axis: usize, rank: usize) -> Option<Self> {
        let (_, node) = search.made_by(id, "DequantizeLinear").filter(|_| is_f32(search.program, id))?;
        let bytes = node.input(0)?;
        let scales = Scales::of(search.program, node, byte_type(search.program, bytes)?, axis, rank)?;
        Some(Self { bytes, scales })
    }

    /// Of a value with one scale for all.
    fn of_one(search: &Search<'_>, id: ValueId) -> Option<Self> {
        Self::of(search, id, usize::MAX, 0).filter(|side| side.scales.scales.len() == 1)
    }

    fn value(&self) -> Operand {
        Operand::Value(self.bytes)
    }

    fn scales(&self) -> Operand {
        Operand::Scales(self.scales.scales.clone())
    }

    /// As many as scales.
    fn zeros(&self) -> Operand {
        let zeros = self.scales.zeros.iter().copied().cycle().take(self.scales.scales.len());
        Operand::Zeros(zeros.collect(), self.scales.dtype)
    }
}

/// Returns the steps of sums, one for each scale of `b` where `a` has one; None if a sum of `k` products may leave
/// 32 bits, or if steps in units of `y` are not usual numbers.
fn steps(a: &Side, b: &Side, y: f32, k: usize) -> Option<Vec<f32>> {
    let most = (a.scales.reach() * b.scales.reach()).checked_mul(k as u64)?;
    i32::try_from(most).ok()?;
    let [a] = a.scales.scales[..] else { return None };
    let is_finite = |step: f32| (step * 2f32.powi(31)).is_finite();
    let steps: Vec<f32> = b.scales.scales.iter().map(|b| a * b).collect();
    let is_usual = |step: &f32| step.is_normal() && is_finite(*step) && is_finite(step / y);
    steps.iter().all(is_usual).then_some(steps)
}

/// Returns Some if no sum and its bias may leave 32 bits, for each filter. Quantisers give filters of next to nothing biases of next
/// to 2^31, so that the weights themselves count, if they are constant.
fn fits_with(program: &Program, x: &Side, w: &Side, k: usize, bias: &[i32]) -> Option<()> {
    let zero = |filter: usize| w.scales.zeros[if w.scales.zeros.len() == 1 { 0 } else { filter }];
    let weights = program.constant(w.bytes);
    let is_signed = w.scales.dtype == I8;
    for (filter, bias) in bias.iter().enumerate() {
        let all = weights.and_then(|weights| weights.bytes().chunks_exact(k.max(1)).nth(filter));
        let weight = |byte: &u8| if is_signed { i32::from(*byte as i8) } else { i32::from(*byte) };
        let sum = match all {
            Some(all) => all.iter().map(|byte| u64::from(weight(byte).abs_diff(zero(filter)))).sum(),
            None => w.scales.reach().checked_mul(k as u64)?,
        };
        let most = x.scales.reach().checked_mul(sum)?.checked_add(bias.unsigned_abs().into())?;
        i32::try_from(most).ok()?;
    }
    Some(())
}

/// Returns a bias of `n` numbers in steps of sums; None if it is not constant, or not of whole steps.
fn bias_of(search: &Search<'_>, id: ValueId, steps: &[f32], n: usize) -> Option<Vec<i32>> {
    let program = search.program;
    let of = |list: &[f32], i: usize| list.get(if list.len() == 1 { 0 } else { i }).copied();
    let whole = |number: f32, i: usize| {
        let exact = f64::from(number) / f64::from(of(steps, i)?);
        let whole = exact.round();
        let is_whole = (exact - whole).abs() <= exact.abs() * f64::from(f32::EPSILON);
        let fits = (f64::from(i32::MIN)..=f64::from(i32::MAX)).contains(&whole);
        (is_whole && fits).then_some(whole as i32)
    };
    if let Some(numbers) = program.constant(id).filter(|numbers| numbers.shape() == [n]) {
        return numbers.elements::<f32>()?.iter().enumerate().map(|(i, &number)| whole(number, i)).collect();
    }
    let (_, node) = search.made_by(id, "DequantizeLinear").filter(|_| is_f32(program, id))?;
    let ints = program.constant(node.input(0)?).filter(|ints| ints.shape() == [n])?;
    let scales =
        Scales::of(program, node, I32, 0, 1).filter(|scales| scales.zeros.iter().all(|&zero| zero == 0))?;
    let ints = ints.elements::<i32>()?.iter().enumerate();
    let number = |(i, &int): (usize, &i32)| {
        let scale = of(&scales.scales, i)?;
        if scale == of(steps, i)? { Some(int) } else { whole(int as f32 * scale, i) }
    };
    ints.map(number).collect()
}

/// Channels that a filter of more than one pixel reads, at least. Instructions that sum four products at once have too few of them
/// beside each other in depthwise convolutions, groups of few channels and first layers, which take longer than f32.
const CHANNELS_MIN: usize = 16;

/// Returns whether a convolution takes less time in integers: `of_filter` are the channels and the window of a filter. In f32,
/// windows of 3 x 3 that move by one take a quarter of the products (Winograd), which is what integers save.
fn is_worth_integers(node: &Node, of_filter: &[usize]) -> bool {
    let Some((channels, window)) = of_filter.split_first() else { return false };
    let by_one = ["strides", "dilations"]
        .iter()
        .all(|name| node.ints(name).is_none_or(|steps| steps.iter().all(|&step| step == 1)));
    window.iter().all(|&extent| extent == 1) || *channels >= CHANNELS_MIN && !(window == [3, 3] && by_one)
}

/// What a product becomes.
struct Lowered {
    /// The node, but for its operands.
    node: Node,
    operands: Vec<Operand>,
    /// Limits of the result that the range of its type does not have.
    limits: [Option<i32>; 2],
    dtype: DType,
}

impl Lowered {
    /// A node of an op that takes the place of another one.
    fn new(op: Op, of: &Node, operands: Vec<Operand>, dtype: DType) -> Self {
        let node = Node { op, inputs: Vec::new(), attrs: Vec::new(), ..of.clone() };
        Self { node, operands, limits: [None; 2], dtype }
    }

    /// Of a QuantizeLinear with a product in front of it, with the nodes that it also takes the place of.
    fn to_bytes(search: &Search<'_>, kernels: &KernelTable, end: &Node) -> Option<(Self, Vec<usize>)> {
        let program = search.program;
        let (mut sum, y) = quantised(program, end)?;
        let mut members = Vec::new();
        let range = y.range();
        let mut limits = range;
        if let Some((at, node)) = search.made_by(sum, "Relu").or_else(|| search.made_by(sum, "Clip")) {
            let [low, high] = match &*node.op.name {
                "Relu" => [0.0, f32::INFINITY],
                _ => {
                    clip_limits(program, node).filter(|limits| !limits.iter().any(|limit| limit.is_nan()))?
                }
            };
            limits = [y.of(low), y.of(high)];
            members.push((sum, at));
            sum = node.input(0)?;
        }
        let (at, node) = search.made_by(sum, "Conv").or_else(|| search.made_by(sum, "MatMul"))?;
        members.push((sum, at));
        if members.iter().any(|(result, _)| search.uses.count(*result) != 1) {
            return None;
        }
        let mut lowered = match &*node.op.name {
            "Conv" => Self::convolution(search, node, y)?,
            _ => Self::product(search, node, y)?,
        };
        lowered.limits =
            [Some(limits[0]).filter(|low| *low > range[0]), Some(limits[1]).filter(|high| *high < range[1])];
        let ty = program.value(end.output(0)?).ty.as_ref()?;
        let number = TensorType::new(y.dtype, &[]);
        let limited = ["Max", "Min"]
            .iter()
            .zip(lowered.limits)
            .all(|(op, limit)| limit.is_none() || has_kernel(kernels, op, &[Some(ty), Some(&number)], ty));
        let members = members.into_iter().map(|(_, at)| at).collect();
        (limited && lowered.has_kernel(program, kernels, ty)).then_some((lowered, members))
    }

    fn convolution(search: &Search<'_>, node: &Node, y: Linear) -> Option<Self> {
        let x = Side::of_one(search, node.input(0)?)?;
        let shape = search.shape(node.input(1)?)?;
        let [filters, of_filter @ ..] = &shape[..] else { return None };
        let w = Side::of(search, node.input(1)?, 0, shape.len())?;
        let n_scales = w.scales.scales.len();
        // Images of one to three dimensions.
        if !(3..=5).contains(&shape.len()) || n_scales != 1 && n_scales != *filters {
            return None;
        }
        if !is_worth_integers(node, of_filter) {
            return None;
        }
        let k = of_filter.iter().try_fold(1usize, |k, &extent| k.checked_mul(extent))?;
        let all = steps(&x, &w, y.scale, k)?;
        let bias = match node.input(2) {
            Some(id) => Some(bias_of(search, id, &all, *filters)?),
            None => None,
        };
        if let Some(bias) = &bias {
            fits_with(search.program, &x, &w, k, bias)?;
        }
        let mut operands = vec![x.value(), x.scales(), x.zeros(), w.value(), w.scales(), w.zeros()];
        operands.extend(result(y));
        operands.extend(bias.map(Operand::Bias));
        let mut lowered = Self::new(Op::of(catalogue::find("", "QLinearConv")?), node, operands, y.dtype);
        lowered.node.attrs.clone_from(&node.attrs);
        Some(lowered)
    }

    fn product(search: &Search<'_>, node: &Node, y: Linear) -> Option<Self> {
        let (a, b, k) = sides(search, node, false)?;
        steps(&a, &b, y.scale, k)?;
        let mut operands = vec![a.value(), a.scales(), a.zeros(), b.value(), b.scales(), b.zeros()];
        operands.extend(result(y));
        Some(Self::new(Op::of(catalogue::find("", "QLinearMatMul")?), node, operands, y.dtype))
    }

    /// Of a product whose result is f32.
    fn to_floats(search: &Search<'_>, kernels: &KernelTable, node: &Node) -> Option<Self> {
        let program = search.program;
        let is_gemm = node.op.is("Gemm");
        if !is_gemm && !node.op.is("MatMul")
            || is_gemm && (node.int("transA", 0) != 0 || node.float("alpha", 1.0) != 1.0)
        {
            return None;
        }
        let is_turned = is_gemm && node.int("transB", 0) != 0;
        let (a, b, k) = sides(search, node, is_turned)?;
        let steps = steps(&a, &b, 1.0, k)?;
        let matrix = match is_turned {
            true => program.constant(b.bytes).map(|_| Operand::Transposed(b.bytes))?,
            false => b.value(),
        };
        let mut operands = vec![a.value(), matrix, Operand::Scales(steps), a.zeros(), b.zeros()];
        let ty = program.value(node.output(0)?).ty.as_ref()?;
        if let Some(bias) = node.input(2).filter(|_| is_gemm) {
            let (columns, of_bias) = (ty.known_shape()?.last().copied(), search.shape(bias)?);
            let of_columns = of_bias.len() == 1 && of_bias.last().copied() == columns;
            if node.float("beta", 1.0) != 1.0 || !of_columns || !is_f32(program, bias) {
                return None;
            }
            operands.push(Operand::Value(bias));
        }
        let lowered = Self::new(Op::devbay(FUSED, 1), node, operands, F32);
        lowered.has_kernel(program, kernels, ty).then_some(lowered)
    }

    /// Returns whether a kernel of the device takes the node with this result.
    fn has_kernel(&self, program: &Program, kernels: &KernelTable, result: &TensorType) -> bool {
        let Some(types) = self.operands.iter().map(|operand| operand.ty(program)).collect::<Option<Vec<_>>>()
        else {
            return false;
        };
        let inputs: Vec<Option<&TensorType>> = types.iter().map(Some).collect();
        let op = &self.node.op;
        match &*op.domain {
            DEVBAY_DOMAIN => kernels
                .find(&op.domain, &op.name)
                .any(|kernel| kernel.takes(&inputs, &[Some(result)]).is_ok()),
            _ => has_kernel(kernels, &op.name, &inputs, result),
        }
    }

    /// Adds the nodes that make what `end` made.
    fn apply(self, program: &mut Program, end: &Node, to: &mut Vec<Node>) -> Result<()> {
        let mut node = self.node;
        for operand in self.operands {
            node.inputs.push(Some(operand.into_value(program)?));
        }
        let limits: Vec<(&str, i32)> = ["Max", "Min"]
            .into_iter()
            .zip(self.limits)
            .filter_map(|(op, limit)| Some((op, limit?)))
            .collect();
        let output = end.output(0);
        let ty =
            output.and_then(|id| program.value(id).ty.clone()).unwrap_or(TensorType::unranked(self.dtype));
        let mut value = if limits.is_empty() { output } else { Some(program.add_typed("", ty.clone())) };
        node.outputs = vec![value];
        to.push(node);
        let n = limits.len();
        for (i, (op, limit)) in limits.into_iter().enumerate() {
            let limit = byte(program, limit, self.dtype)?;
            let result = if i + 1 == n { output } else { Some(program.add_typed("", ty.clone())) };
            let op = Op::of(catalogue::find("", op).expect("the catalogue has ONNX's ops"));
            to.push(Node::new(op, vec![value, Some(limit)], vec![result]));
            value = result;
        }
        Ok(())
    }
}

/// The scale and the zero point of a result.
fn result(y: Linear) -> [Operand; 2] {
    [Operand::Scales(vec![y.scale]), Operand::Zeros(vec![y.zero], y.dtype)]
}

/// The operands of a product of matrices, and the length of its sums. The right one may have a scale for each column.
fn sides(search: &Search<'_>, node: &Node, is_turned: bool) -> Option<(Side, Side, usize)> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let (left, right) = (search.shape(a)?, search.shape(b)?);
    let [.., rows, columns] = right[..] else { return None };
    if left.len() < 2 {
        return None;
    }
    let (k, n) = if is_turned { (columns, rows) } else { (rows, columns) };
    let axis = match right.len() {
        2 => usize::from(!is_turned),
        _ => usize::MAX,
    };
    let b = Side::of(search, b, axis, right.len())?;
    let n_scales = b.scales.scales.len();
    (n_scales == 1 || n_scales == n).then_some((Side::of_one(search, a)?, b, k))
}
