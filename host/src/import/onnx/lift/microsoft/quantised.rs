//! Ops on quantised numbers: their operands become real numbers, and their results are quantised again.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, Op, ValueId};
use devbay_core::tensor::{F32, Tensor};

/// QuantizeLinear and DequantizeLinear: ONNX's, for more element types.
pub(super) fn renamed(l: &mut Lowering<'_>) -> Result<()> {
    let operands = [Some(l.operand(0)?), Some(l.operand(1)?), l.optional(2)];
    let attrs = l.attributes(&["axis"]);
    let op = l.node.op.name.clone();
    let y = l.op_with(&op, &operands, &attrs)?;
    l.give(0, y).map(drop)
}

/// Returns operand `i` as real numbers. Its scale and its zero point are the operands behind it.
fn real(l: &mut Lowering<'_>, i: usize) -> Result<ValueId> {
    let operands = [Some(l.operand(i)?), Some(l.operand(i + 1)?), l.optional(i + 2)];
    l.op_with("DequantizeLinear", &operands, &[])
}

/// Makes real numbers the quantised result, with the scale at `scale` and the zero point behind it. Without a zero point, the
/// result has the type of operand `like`.
fn give_quantised(l: &mut Lowering<'_>, y: ValueId, scale: usize, like: usize) -> Result<()> {
    let zero = match l.optional(scale + 1) {
        Some(zero) => zero,
        None => {
            let dtype = l.required_dtype(l.operand(like)?)?;
            l.program.add_constant("", Tensor::zeros(dtype, &[])?)
        }
    };
    let scale = l.operand(scale)?;
    let y = l.op("QuantizeLinear", &[y, scale, zero])?;
    l.give(0, y).map(drop)
}

/// QLinearAdd and QLinearMul.
pub(super) fn elementwise(l: &mut Lowering<'_>, op: &str) -> Result<()> {
    let (a, b) = (real(l, 0)?, real(l, 3)?);
    let y = l.op(op, &[a, b])?;
    give_quantised(l, y, 6, 0)
}

/// QLinearWhere.
pub(super) fn where_(l: &mut Lowering<'_>) -> Result<()> {
    let (condition, x, y) = (l.operand(0)?, real(l, 1)?, real(l, 4)?);
    let z = l.op("Where", &[condition, x, y])?;
    give_quantised(l, z, 7, 1)
}

/// QLinearSigmoid.
pub(super) fn sigmoid(l: &mut Lowering<'_>) -> Result<()> {
    let x = real(l, 0)?;
    let y = l.op("Sigmoid", &[x])?;
    give_quantised(l, y, 3, 0)
}

/// QLinearLeakyRelu.
pub(super) fn leaky_relu(l: &mut Lowering<'_>) -> Result<()> {
    let x = real(l, 0)?;
    let alpha = AttrValue::Float(l.float("alpha", 0.01));
    let y = l.op_with("LeakyRelu", &[x], &[("alpha", alpha)])?;
    give_quantised(l, y, 3, 0)
}

/// QLinearSoftmax: along one axis, or as before opset 13 of all axes from one on.
pub(super) fn softmax(l: &mut Lowering<'_>) -> Result<()> {
    let x = real(l, 0)?;
    let opset = l.int("opset", 0);
    let version = if opset >= 13 { 13 } else { 11 };
    let axis = AttrValue::Int(l.int("axis", -1));
    let y = l.append(Op::onnx("Softmax", version), &[Some(x)], &[("axis", axis)], 1)?[0];
    give_quantised(l, y, 3, 0)
}

/// QLinearConcat: the result's scale and zero point, then the parts with theirs.
pub(super) fn concat(l: &mut Lowering<'_>) -> Result<()> {
    let n = l.node.inputs.len();
    if n < 5 || n % 3 != 2 {
        return Err(l.refused(&format!("{n} operands")));
    }
    let parts = (2..n).step_by(3).map(|i| real(l, i)).collect::<Result<Vec<_>>>()?;
    let attrs = l.attributes(&["axis"]);
    let y = l.op_with("Concat", &parts, &attrs)?;
    give_quantised(l, y, 0, 2)
}

/// QLinearAveragePool, with the channels second or last.
pub(super) fn average_pool(l: &mut Lowering<'_>) -> Result<()> {
    // onnxruntime divides by other numbers than ONNX's AveragePool there.
    let pads_itself = !["NOTSET", "VALID"].contains(&l.node.string("auto_pad", "NOTSET"));
    if l.int("count_include_pad", 0) != 0 && (pads_itself || l.int("ceil_mode", 0) != 0) {
        return Err(l.refused("count_include_pad, and auto_pad or ceil_mode"));
    }
    let x = real(l, 0)?;
    let attrs =
        l.attributes(&["auto_pad", "ceil_mode", "count_include_pad", "kernel_shape", "pads", "strides"]);
    let y = match l.int("channels_last", 0) {
        0 => l.op_with("AveragePool", &[x], &attrs)?,
        _ => l.nhwc_pool("AveragePool", x, &attrs)?,
    };
    give_quantised(l, y, 3, 0)
}

/// QLinearGlobalAveragePool, with the channels second or last.
pub(super) fn global_average_pool(l: &mut Lowering<'_>) -> Result<()> {
    let x = real(l, 0)?;
    let y = match l.int("channels_last", 0) {
        0 => l.op("GlobalAveragePool", &[x])?,
        _ => {
            let rank = i64::try_from(l.required_rank(x)?).unwrap_or(i64::MAX);
            let axes: Vec<i64> = (1..rank - 1).collect();
            let axes = l.ints(&axes)?;
            l.op("ReduceMean", &[x, axes])?
        }
    };
    give_quantised(l, y, 3, 0)
}

/// Operands of a product of integers, by position.
struct Product {
    a: ValueId,
    b: ValueId,
    a_scale: ValueId,
    b_scale: ValueId,
    a_zero: Option<ValueId>,
    b_zero: Option<ValueId>,
}

impl Product {
    /// Returns `(A - a_zero) (B - b_zero) + addend` times both scales, in f32. Scales and zero points of B may be by column.
    fn append(&self, l: &mut Lowering<'_>, addend: Option<ValueId>) -> Result<ValueId> {
        let operands = [Some(self.a), Some(self.b), self.a_zero, self.b_zero];
        let mut sum = l.op_with("MatMulInteger", &operands, &[])?;
        if let Some(addend) = addend {
            sum = l.op("Add", &[sum, addend])?;
        }
        let sum = l.cast(sum, F32)?;
        let scale = l.op("Mul", &[self.a_scale, self.b_scale])?;
        l.op("Mul", &[sum, scale])
    }
}

/// Returns an operand that must have one element, as far as that is known.
fn of_one(l: &Lowering<'_>, i: usize, what: &str) -> Result<ValueId> {
    let id = l.operand(i)?;
    check_one(l, id, what)?;
    Ok(id)
}

fn check_one(l: &Lowering<'_>, id: ValueId, what: &str) -> Result<()> {
    let is_many = |shape: &[devbay_core::Dim]| shape.iter().any(|dim| dim.known().is_some_and(|n| n != 1));
    if l.shape(id).is_some_and(is_many) {
        return Err(l.refused(&format!("{what} of more than one element")));
    }
    Ok(())
}

/// MatMulIntegerToFloat: a product of integers, scaled, plus a bias.
pub(super) fn matmul_integer_to_float(l: &mut Lowering<'_>) -> Result<()> {
    let product = Product {
        a: l.operand(0)?,
        b: l.operand(1)?,
        a_scale: of_one(l, 2, "scales of A")?,
        b_scale: l.operand(3)?,
        a_zero: l.optional(4),
        b_zero: l.optional(5),
    };
    if let Some(zero) = product.a_zero {
        check_one(l, zero, "zero points of A")?;
    }
    let y = product.append(l, None)?;
    let y = l.plus(y, 6)?;
    l.give(0, y).map(drop)
}

/// Integers that stand for real numbers `(values - zero) * scale`, of weights: the scale and the zero point may be by column.
pub(super) struct Weights {
    pub(super) values: ValueId,
    pub(super) scale: ValueId,
    pub(super) zero: Option<ValueId>,
}

/// Real numbers that were quantised by their own range.
pub(super) struct Quantised {
    values: ValueId,
    scale: ValueId,
    zero: ValueId,
}

impl Quantised {
    pub(super) fn of(l: &mut Lowering<'_>, x: ValueId) -> Result<Self> {
        let results = l.append(super::held("DynamicQuantizeLinear"), &[Some(x)], &[], 3)?;
        Ok(Self { values: results[0], scale: results[1], zero: results[2] })
    }

    /// Returns the product with weights, in f32.
    pub(super) fn times(&self, l: &mut Lowering<'_>, weights: &Weights) -> Result<ValueId> {
        let product = Product {
            a: self.values,
            b: weights.values,
            a_scale: self.scale,
            b_scale: weights.scale,
            a_zero: Some(self.zero),
            b_zero: weights.zero,
        };
        product.append(l, None)
    }
}

/// DynamicQuantizeMatMul: quantises A by its own range, then multiplies as MatMulIntegerToFloat.
pub(super) fn dynamic_quantize_matmul(l: &mut Lowering<'_>) -> Result<()> {
    let a = l.operand(0)?;
    let weights = Weights { values: l.operand(1)?, scale: l.operand(2)?, zero: l.optional(3) };
    let y = Quantised::of(l, a)?.times(l, &weights)?;
    let y = l.plus(y, 4)?;
    l.give(0, y).map(drop)
}

/// Returns QAttention's queries, keys and values side by side: its first operand times the weights, plus the bias.
pub(super) fn projection(l: &mut Lowering<'_>) -> Result<ValueId> {
    let product = Product {
        a: l.operand(0)?,
        b: l.operand(1)?,
        a_scale: of_one(l, 3, "scales of the input")?,
        b_scale: l.operand(4)?,
        a_zero: l.optional(6),
        b_zero: l.optional(7),
    };
    if let Some(zero) = product.a_zero {
        check_one(l, zero, "zero points of the input")?;
    }
    let y = product.append(l, None)?;
    l.plus(y, 2)
}

/// QGemm: `alpha * a_scale * b_scale * ((A' - a_zero) (B' - b_zero) + C)`, quantised if there is a scale for that.
pub(super) fn q_gemm(l: &mut Lowering<'_>) -> Result<()> {
    let side = |l: &mut Lowering<'_>, i: usize, name: &str| {
        let x = l.operand(i)?;
        if l.int(name, 0) == 0 { Ok(x) } else { l.transpose(x, &[1, 0]) }
    };
    let product = Product {
        a: side(l, 0, "transA")?,
        b: side(l, 3, "transB")?,
        a_scale: of_one(l, 1, "scales of A")?,
        b_scale: l.operand(4)?,
        a_zero: Some(of_one(l, 2, "zero points of A")?),
        b_zero: Some(l.operand(5)?),
    };
    let addend = l.optional(6);
    let y = product.append(l, addend)?;
    let y = l.times(y, l.float("alpha", 1.0))?;
    match (l.optional(7), l.optional(8)) {
        (None, None) => l.give(0, y).map(drop),
        (Some(_), Some(_)) => give_quantised(l, y, 7, 0),
        _ => Err(l.refused("a scale of the result without its zero point, or the other way round")),
    }
}
