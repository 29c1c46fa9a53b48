//! Fuses the widening of quantised weights into the product or Gather that reads them, so that they stay small in memory.
//!
//! Weights are a constant matrix of 8 or 4 bits behind DequantizeLinear, or behind Cast, maybe Sub of a zero point, and Mul by
//! a scale; maybe transposed. `MatMul` and `Gemm` by them become `MatMulDequantized` 1 of devbay's domain
//! (docs/fused-ops.md) if their scales are for all, for columns, or for blocks of terms. A Gather of rows becomes a Gather of
//! quantised rows, and one of their scales and zero points if each row has its own, in front of DequantizeLinear.
//!
//! Specialising leaves such weights as they are for this pass ([`crate::program::weights`]). What it then cannot fuse is folded
//! here: a device that has no kernel gets the constants that it would have had.
//!
//! A product whose other factor was dequantised, and whose result is quantised, stays: it is a product of integers.

use super::made::Made;
use super::search::{Search, has_kernel};
use super::{Around, each_region, position};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::fold::{fold, worth_folding};
use crate::program::weights::{is_quantised, is_signed, widens};
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId, catalogue};
use crate::tensor::{DType, F32, Tensor, TensorType, bytes_of};
use devbay_plugin_api::reserve;
use std::collections::{HashMap, HashSet};

/// Transpositions of weights that are looked through, at most.
const TURNS_MAX: usize = 4;

/// The fused op.
pub const FUSED: &str = "MatMulDequantized";

/// The pass's name.
pub const NAME: &str = "fuse-dequantized";

/// Fuses nodes if the kernels allow it, except nodes that stay, then folds what is left. Returns the number of changes.
///
/// # Errors
/// Errors of kernels that fold; out of memory; cancelled, or past the deadline.
pub fn run(program: &mut Program, around: &Around<'_>) -> Result<usize> {
    let mut folded = HashSet::new();
    each_region(program, &mut |program, region| {
        let fused = fuse(program, region, around)?;
        Ok(fused + fold_left(program, region, around, &mut folded)?)
    })
}

fn fuse(program: &mut Program, region: &mut Region, around: &Around<'_>) -> Result<usize> {
    let mut found = HashMap::new();
    let search = Search::of(program, region, around.stay);
    for (at, node) in region.nodes.iter().enumerate() {
        look()?;
        if (around.stay)(node) {
            continue;
        }
        let fused = if node.op.is("Gather") {
            gather(&search, node, around.kernels).map(Fused::Gather)
        } else {
            product(&search, node, around.kernels).map(Fused::Product)
        };
        found.extend(fused.map(|fused| (at, fused)));
    }
    let n = found.len();
    if n == 0 {
        return Ok(0);
    }
    let mut nodes = Vec::with_capacity(region.nodes.len());
    for (at, node) in std::mem::take(&mut region.nodes).into_iter().enumerate() {
        match found.remove(&at) {
            Some(Fused::Product(product)) => nodes.push(product.apply(program, node)?),
            Some(Fused::Gather(weights)) => apply_gather(program, weights, &node, &mut nodes)?,
            None => nodes.push(node),
        }
    }
    region.nodes = nodes;
    Ok(n)
}

/// A node that becomes another one.
enum Fused {
    Product(Product),
    Gather(Weights),
}

/// What a scale and a zero point are for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Along {
    /// All elements.
    All,
    /// Those at one place of an axis of the matrix as it is stored.
    Axis(usize),
    /// Blocks along an axis: the scales are a matrix too.
    Blocks(usize, usize),
}

/// A quantised matrix.
#[derive(Clone)]
struct Weights {
    /// The constant.
    matrix: ValueId,
    shape: [usize; 2],
    along: Along,
    scale: Tensor,
    zero: Option<Tensor>,
    /// True if it is used transposed.
    transposed: bool,
}

impl Weights {
    /// What a value is made of.
    fn of(search: &Search<'_>, mut id: ValueId) -> Option<Self> {
        let mut transposed = false;
        for _ in 0..TURNS_MAX {
            let node = search.maker(id)?;
            if node.op.is("Transpose") {
                if node.ints("perm").is_some_and(|perm| perm != [1, 0]) {
                    return None;
                }
                transposed = !transposed;
                id = node.input(0)?;
                continue;
            }
            if search.ty(id)?.dtype != F32 {
                return None;
            }
            let weights = if node.op.is("DequantizeLinear") {
                Self::dequantized(search.program, node)?
            } else if node.op.is("Mul") {
                let (numbers, scale) = search.either(node, |id| Numbers::of(search, id))?;
                numbers.scaled(search.program.constant(scale)?)?
            } else {
                return None;
            };
            return Some(Self { transposed, ..weights });
        }
        None
    }

    fn dequantized(program: &Program, node: &Node) -> Option<Self> {
        let matrix = node.input(0)?;
        let (tensor, scale) = (program.constant(matrix)?, program.constant(node.input(1)?)?);
        let zero = match node.input(2) {
            Some(zero) => Some(program.constant(zero)?.clone()),
            None => None,
        };
        let &[rows, columns] = tensor.shape() else { return None };
        if !is_quantised(tensor.dtype()) || scale.dtype() != F32 {
            return None;
        }
        let axis = position(node.int("axis", 1), 2)?;
        let along = match usize::try_from(node.int("block_size", 0)).ok()? {
            0 if scale.n_elements() == 1 && scale.shape().len() < 2 => Along::All,
            0 => Along::Axis(axis),
            block => Along::Blocks(axis, block),
        };
        let (matrix, scale, shape) = (matrix, scale.clone(), [rows, columns]);
        Some(Self { matrix, shape, along, scale, zero, transposed: false })
    }
}

/// Elements of a quantised matrix as f32, less a zero point.
struct Numbers {
    matrix: ValueId,
    shape: [usize; 2],
    dtype: DType,
    zero: Option<Tensor>,
}

impl Numbers {
    fn of(search: &Search<'_>, id: ValueId) -> Option<Self> {
        let node = search.maker(id)?;
        if node.op.is("Sub") {
            let zero = search.program.constant(node.input(1)?)?.clone();
            return Some(Self { zero: Some(zero), ..Self::cast(search, node.input(0)?)? });
        }
        Self::cast(search, id)
    }

    fn cast(search: &Search<'_>, id: ValueId) -> Option<Self> {
        let node = search.maker(id).filter(|node| node.op.is("Cast"))?;
        let matrix = node.input(0).filter(|_| search.ty(id).is_some_and(|ty| ty.dtype == F32))?;
        let tensor = search.program.constant(matrix)?;
        let &[rows, columns] = tensor.shape() else { return None };
        let dtype = tensor.dtype();
        is_quantised(dtype).then_some(Self { matrix, shape: [rows, columns], dtype, zero: None })
    }

    /// The weights with a scale: for all, for columns, or for rows, as the zero point is.
    fn scaled(self, scale: &Tensor) -> Option<Weights> {
        let Self { matrix, shape, dtype, zero } = self;
        let mut along = self::along(scale, shape)?;
        let mut scales = scale.elements::<f32>()?.to_vec();
        let zero = match zero {
            None => None,
            Some(zero) => {
                let of_zero = self::along(&zero, shape)?;
                let mut zeros = zero.elements::<f32>()?.to_vec();
                match (along, of_zero) {
                    (along, of_zero) if along == of_zero => {}
                    (Along::All, _) => {
                        scales = repeated(&scales, zeros.len())?;
                        along = of_zero;
                    }
                    (_, Along::All) => zeros = repeated(&zeros, scales.len())?,
                    _ => return None,
                }
                Some(integers(&zeros, dtype)?)
            }
        };
        let extents: &[usize] = if along == Along::All { &[] } else { &[scales.len()] };
        let zero = match zero {
            Some(bytes) => Some(Tensor::from_bytes(dtype, extents, &bytes).ok()?),
            None => None,
        };
        let scale = Tensor::from_elements(extents, &scales).ok()?;
        Some(Weights { matrix, shape, along, scale, zero, transposed: false })
    }
}

/// What numbers that are broadcast to a matrix are for; None if they would make it larger, or if each element has its own.
fn along(numbers: &Tensor, [rows, columns]: [usize; 2]) -> Option<Along> {
    match *numbers.shape() {
        [] | [1] | [1, 1] => Some(Along::All),
        [n] | [1, n] if n == columns => Some(Along::Axis(1)),
        [n, 1] if n == rows => Some(Along::Axis(0)),
        _ => None,
    }
}

/// One number, `n` times.
fn repeated(numbers: &[f32], n: usize) -> Option<Vec<f32>> {
    reserve::filled(*numbers.first()?, n, "scales").ok()
}

/// Numbers as integers of a type; None if one is none of its range.
fn integers(numbers: &[f32], dtype: DType) -> Option<Vec<u8>> {
    let levels = f32::from(1u16 << dtype.bits);
    let low = if is_signed(dtype) { -levels / 2.0 } else { 0.0 };
    let mut bytes = reserve::zeroed::<u8>(bytes_of(dtype, numbers.len())?, "zero points").ok()?;
    for (i, &number) in numbers.iter().enumerate() {
        if number.fract() != 0.0 || number < low || number >= low + levels {
            return None;
        }
        let byte = number as i32 as u8;
        match dtype.bits {
            4 => bytes[i / 2] |= (byte & 15) << (i % 2 * 4),
            _ => bytes[i] = byte,
        }
    }
    Some(bytes)
}

/// A product by quantised weights.
struct Product {
    a: ValueId,
    weights: Weights,
    bias: Option<ValueId>,
    /// True if the matrix is stored as `[column][term]`.
    trans_b: bool,
    block: usize,
}

/// Returns the product that a node is, if a kernel takes it.
fn product(search: &Search<'_>, node: &Node, kernels: &KernelTable) -> Option<Product> {
    let is_gemm = node.op.is("Gemm");
    if !(is_gemm || node.op.is("MatMul")) {
        return None;
    }
    let (a, b, y) = (node.input(0)?, node.input(1)?, node.output(0)?);
    let weights = Weights::of(search, b)?;
    let mut trans_b = weights.transposed;
    let mut bias = None;
    if is_gemm {
        let is_plain = node.float("alpha", 1.0) == 1.0 && node.int("transA", 0) == 0;
        if !is_plain {
            return None;
        }
        trans_b ^= node.int("transB", 0) != 0;
        bias = node.input(2);
        let columns = weights.shape[usize::from(!trans_b)];
        let is_bias = |id: ValueId| node.float("beta", 1.0) == 1.0 && search.shape(id) == Some(vec![columns]);
        if bias.is_some_and(|id| !is_bias(id)) {
            return None;
        }
    }
    // The axis of terms, and that of columns.
    let of_terms = usize::from(trans_b);
    let block = match weights.along {
        Along::All => 0,
        Along::Axis(axis) if axis != of_terms => 0,
        Along::Blocks(axis, block) if axis == of_terms => block,
        _ => return None,
    };
    let is_between_integers = search.made_by(a, "DequantizeLinear").is_some()
        && search.users.get(&y).is_some_and(|&user| search.nodes[user].op.is("QuantizeLinear"));
    let types = [a, weights.matrix].map(|id| search.ty(id));
    let scale = TensorType::new(F32, weights.scale.shape());
    let zero = weights.zero.as_ref().map(Tensor::tensor_type);
    let inputs = [types[0], types[1], Some(&scale), zero.as_ref(), bias.and_then(|id| search.ty(id))];
    let mut of_op = kernels.find(DEVBAY_DOMAIN, FUSED);
    let takes = of_op.any(|kernel| kernel.takes(&inputs, &[search.ty(y)]).is_ok());
    (takes && !is_between_integers).then_some(Product { a, weights, bias, trans_b, block })
}

impl Product {
    fn apply(self, program: &mut Program, node: Node) -> Result<Node> {
        let Self { a, weights, bias, trans_b, block } = self;
        // Scales of columns are a matrix with one block.
        let shaped = |tensor: Tensor| match weights.along {
            Along::Axis(_) if trans_b => tensor.reshaped(&[tensor.n_elements(), 1]),
            Along::Axis(_) => tensor.reshaped(&[1, tensor.n_elements()]),
            _ => Ok(tensor),
        };
        let scale = program.add_constant("", shaped(weights.scale)?);
        let zero = weights.zero.map(shaped).transpose()?.map(|zero| program.add_constant("", zero));
        let mut inputs = vec![Some(a), Some(weights.matrix), Some(scale), zero, bias];
        while inputs.last() == Some(&None) {
            inputs.pop();
        }
        let mut fused = Node { op: Op::devbay(FUSED, 1), inputs, attrs: Vec::new(), ..node };
        if block > 0 {
            fused.set_attr("block_size", AttrValue::Int(i64::try_from(block).unwrap_or(i64::MAX)));
        }
        if trans_b {
            fused.set_attr("transB", AttrValue::Int(1));
        }
        Ok(fused)
    }
}

/// Returns the weights of which a node gathers rows, if kernels take what that becomes.
fn gather(search: &Search<'_>, node: &Node, kernels: &KernelTable) -> Option<Weights> {
    let (indices, y) = (search.ty(node.input(1)?)?, search.ty(node.output(0)?)?);
    let weights = Weights::of(search, node.input(0)?)?;
    let is_of_rows = position(node.int("axis", 0), 2)? == 0 && !weights.transposed;
    let result = y.known_shape()?;
    if !is_of_rows || matches!(weights.along, Along::Blocks(0, _)) {
        return None;
    }
    let matrix = search.ty(weights.matrix)?;
    let rows = TensorType::new(matrix.dtype, &result);
    let takes = has_kernel(kernels, "Gather", &[Some(matrix), Some(indices)], &rows);
    let (scale, zero) = (TensorType::new(F32, &[]), TensorType::new(matrix.dtype, &[]));
    let zero = weights.zero.as_ref().map(|_| &zero);
    let widens = has_kernel(kernels, "DequantizeLinear", &[Some(&rows), Some(&scale), zero], y);
    (takes && widens).then_some(weights)
}

/// Makes the nodes of a Gather of quantised rows.
fn apply_gather(program: &mut Program, weights: Weights, node: &Node, to: &mut Vec<Node>) -> Result<()> {
    let Weights { matrix, shape: [n_rows, columns], along, scale, zero, .. } = weights;
    let (Some(indices), Some(y)) = (node.input(1), node.output(0)) else { return Ok(()) };
    let result = program.value(y).ty.as_ref().and_then(TensorType::known_shape).unwrap_or_default();
    let dtype = program.constant(matrix).map_or(F32, Tensor::dtype);
    let gathered = |program: &mut Program, to: &mut Vec<Node>, of: ValueId, dtype: DType, last: usize| {
        let mut shape = result.clone();
        if let Some(extent) = shape.last_mut() {
            *extent = last;
        }
        let mut made = Made { program, to, dtype };
        let rows = made.value(&shape);
        made.push("Gather", &[of, indices], rows);
        rows
    };
    let rows = gathered(program, to, matrix, dtype, columns);
    // Scales that rows have, as columns of blocks.
    let (block, by_row) = match along {
        Along::Axis(0) => (columns.max(1), Some([n_rows, 1])),
        Along::Blocks(_, block) => (block, Some([n_rows, columns.div_ceil(block)])),
        _ => (0, None),
    };
    let mut parts = Vec::with_capacity(2);
    for tensor in [Some(scale), zero].into_iter().flatten() {
        parts.push(match by_row {
            None => program.add_constant("", tensor),
            Some(shape) => {
                let dtype = tensor.dtype();
                let of = program.add_constant("", tensor.reshaped(&shape)?);
                gathered(program, to, of, dtype, shape[1])
            }
        });
    }
    let inputs = [rows].into_iter().chain(parts).map(Some).collect();
    let def = catalogue::find("", "DequantizeLinear").expect("the catalogue has ONNX's ops");
    let mut widened = Node { op: Op::of(def), inputs, attrs: Vec::new(), ..node.clone() };
    widened.set_attr("axis", AttrValue::Int(-1));
    if block > 0 {
        widened.set_attr("block_size", AttrValue::Int(i64::try_from(block).unwrap_or(i64::MAX)));
    }
    to.push(widened);
    Ok(())
}

/// Folds weights that were left, and what is made of them, where that is worth it. Returns the number of nodes.
fn fold_left(
    program: &mut Program,
    region: &mut Region,
    around: &Around<'_>,
    folded: &mut HashSet<ValueId>,
) -> Result<usize> {
    let before = region.nodes.len();
    let mut nodes = Vec::with_capacity(before);
    for node in std::mem::take(&mut region.nodes) {
        look()?;
        if (around.stay)(&node) || !fold_one(program, &node, around, folded)? {
            nodes.push(node);
        }
    }
    region.nodes = nodes;
    Ok(before - region.nodes.len())
}

/// Folds a node, and returns whether it did.
fn fold_one(
    program: &mut Program,
    node: &Node,
    around: &Around<'_>,
    folded: &mut HashSet<ValueId>,
) -> Result<bool> {
    let is_of_weights = widens(program, node) || node.inputs.iter().flatten().any(|id| folded.contains(id));
    let is_pure = catalogue::find(&node.op.domain, &node.op.name).is_some_and(|def| def.is_pure());
    if !is_of_weights || !is_pure || !node.regions.is_empty() {
        return Ok(false);
    }
    let constants: Vec<Option<Tensor>> =
        node.inputs.iter().map(|id| id.and_then(|id| program.constant(id).cloned())).collect();
    let known = node.inputs.iter().zip(&constants).all(|(id, constant)| id.is_none() == constant.is_none());
    let types = node.outputs.iter().flatten().map(|id| program.value(*id).ty.clone());
    let Some(types) = types.collect::<Option<Vec<_>>>() else { return Ok(false) };
    if !known || !worth_folding(&types, &constants) {
        return Ok(false);
    }
    let Some(results) = fold(&mut **around.evaluator.borrow_mut(), node, &constants, &types)? else {
        return Ok(false);
    };
    for (&id, tensor) in node.outputs.iter().flatten().zip(results) {
        program.value_mut(id).constant = Some(tensor);
        folded.insert(id);
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check_on};

    const INPUTS: &str = "%x: f32[2,4], %b: f32[3], %i: i64[2]";
    const W: &str = "%w = const i8[4,3] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]";
    const T: &str = "%w = const i8[3,4] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]";

    fn check(before: &[&str], after: &[&str]) {
        check_on(INPUTS, "fuse-dequantized", &body(before), &body(after));
    }

    #[test]
    fn weights_with_scales_for_all_for_columns_and_for_blocks() {
        let product = ["%y: f32[2,3] = MatMul@13(%x, %d)", "return %y"];
        let one = "%s = const f32[] [0.5]";
        let columns = "%s = const f32[3] [0.5, 1.5, 2.5]";
        let row = "%s = const f32[1,3] [0.5, 1.5, 2.5]";
        let blocks = "%s = const f32[2,3] [0.5, 1.5, 2.5, 3.5, 4.5, 5.5]";
        let zeros = "%z = const i8[2,3] [0, 1, 2, 3, 4, 5]";
        let fused = "%y: f32[2,3] = devbay.MatMulDequantized@1(%x, %w, %s)";
        let of = |attrs| format!("%d: f32[4,3] = DequantizeLinear@28(%w, %s) {attrs}");
        check(&[W, one, &of(""), product[0], product[1]], &[W, one, fused, "return %y"]);
        check(&[W, columns, &of("{axis = 1}"), product[0], product[1]], &[W, row, fused, "return %y"]);
        check(
            &[
                W,
                blocks,
                zeros,
                "%d: f32[4,3] = DequantizeLinear@28(%w, %s, %z) {axis = 0, block_size = 2}",
                product[0],
                product[1],
            ],
            &[
                W,
                blocks,
                zeros,
                "%y: f32[2,3] = devbay.MatMulDequantized@1(%x, %w, %s, %z) {block_size = 2}",
                "return %y",
            ],
        );
    }

    #[test]
    fn transposed_weights_and_biases_of_gemm() {
        let scale = "%s = const f32[3] [0.5, 1.5, 2.5]";
        let as_column = "%s = const f32[3,1] [0.5, 1.5, 2.5]";
        let wide = "%d: f32[3,4] = DequantizeLinear@28(%w, %s) {axis = 0}";
        let turned = "%t: f32[4,3] = Transpose@25(%d) {perm = [1, 0]}";
        let fused = "%y: f32[2,3] = devbay.MatMulDequantized@1(%x, %w, %s) {transB = 1}";
        let product = "%y: f32[2,3] = MatMul@13(%x, %t)";
        check(&[T, scale, wide, turned, product, "return %y"], &[T, as_column, fused, "return %y"]);
        let gemm = "%y: f32[2,3] = Gemm@13(%x, %d, %b) {transB = 1}";
        let fused = "%y: f32[2,3] = devbay.MatMulDequantized@1(%x, %w, %s, _, %b) {transB = 1}";
        check(&[T, scale, wide, gemm, "return %y"], &[T, as_column, fused, "return %y"]);
    }

    #[test]
    fn casts_with_zero_points_of_whole_numbers() {
        let cast = "%c: f32[4,3] = Cast@28(%w) {to = 1}";
        let lines = |zero, scale| {
            let sub = "%n: f32[4,3] = Sub@14(%c, %z)";
            let mul = "%d: f32[4,3] = Mul@14(%s, %n)";
            [W, zero, scale, cast, sub, mul, "%y: f32[2,3] = MatMul@13(%x, %d)", "return %y"]
        };
        let scale = "%s = const f32[1,3] [0.5, 1.5, 2.5]";
        check(
            &lines("%z = const f32[] [3.0]", scale),
            &[
                W,
                scale,
                "%z = const i8[1,3] [3, 3, 3]",
                "%y: f32[2,3] = devbay.MatMulDequantized@1(%x, %w, %s, %z)",
                "return %y",
            ],
        );
        let between = lines("%z = const f32[] [3.5]", scale);
        check(&between, &between);
    }

    #[test]
    fn scales_of_terms_other_factors_and_activations_of_integers_stay() {
        let terms = "%s = const f32[4] [0.5, 1.5, 2.5, 3.5]";
        let wide = "%d: f32[4,3] = DequantizeLinear@28(%w, %s) {axis = 0}";
        let before = [W, terms, wide, "%y: f32[2,3] = MatMul@13(%x, %d)", "return %y"];
        check(&before, &before);
        let one = "%s = const f32[] [0.5]";
        let wide = "%d: f32[4,3] = DequantizeLinear@28(%w, %s)";
        let before = [W, one, wide, "%y: f32[2,3] = Gemm@13(%x, %d) {alpha = 2.0}", "return %y"];
        check(&before, &before);
        let before = [
            W,
            one,
            wide,
            "%q: u8[2,4] = QuantizeLinear@28(%x, %s)",
            "%a: f32[2,4] = DequantizeLinear@28(%q, %s)",
            "%m: f32[2,3] = MatMul@13(%a, %d)",
            "%y: u8[2,3] = QuantizeLinear@28(%m, %s)",
            "return %y",
        ];
        check(&before, &before);
    }

    #[test]
    fn rows_are_gathered_before_they_are_widened() {
        let scale = "%s = const f32[4] [0.5, 1.5, 2.5, 3.5]";
        let by_row = "%s = const f32[4,1] [0.5, 1.5, 2.5, 3.5]";
        let before = [
            W,
            scale,
            "%d: f32[4,3] = DequantizeLinear@28(%w, %s) {axis = 0}",
            "%y: f32[2,3] = Gather@13(%d, %i)",
            "return %y",
        ];
        let after = [
            W,
            by_row,
            "%r: i8[2,3] = Gather@13(%w, %i)",
            "%t: f32[2,1] = Gather@13(%s, %i)",
            "%y: f32[2,3] = DequantizeLinear@28(%r, %t) {axis = -1, block_size = 3}",
            "return %y",
        ];
        check(&before, &after);
    }
}
