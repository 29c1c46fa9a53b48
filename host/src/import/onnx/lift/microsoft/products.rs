//! Products of floating-point matrices, and convolutions, with what is fused to them.

use super::Lowering;
use super::activations::activated;
use devbay_core::Result;
use devbay_core::program::{AttrValue, ValueId};

/// FusedMatMul, and TransposeMatMul, its former name: `alpha * A' B'`.
pub(super) fn fused_matmul(l: &mut Lowering<'_>) -> Result<()> {
    let (a, b) = (transposed(l, 0, "A")?, transposed(l, 1, "B")?);
    let y = l.op("MatMul", &[a, b])?;
    let y = l.times(y, l.float("alpha", 1.0))?;
    l.give(0, y).map(drop)
}

/// Returns an operand of FusedMatMul as the product takes it. Vectors stay as they are.
fn transposed(l: &mut Lowering<'_>, i: usize, side: &str) -> Result<ValueId> {
    let x = l.operand(i)?;
    let batch = l.int(&format!("transBatch{side}"), 0) != 0;
    let last = l.int(&format!("trans{side}"), 0) != 0;
    if !batch && !last {
        return Ok(x);
    }
    let rank = l.required_rank(x)?;
    if rank < 2 {
        return Ok(x);
    }
    let mut perm: Vec<i64> = (0..).take(rank).collect();
    if batch {
        // The first axis is that of the matrices' rows, behind the axes of the batch.
        perm[..rank - 1].rotate_left(1);
    }
    if last {
        perm.swap(rank - 2, rank - 1);
    }
    l.transpose(x, &perm)
}

/// Attributes of a convolution's window.
const WINDOW: [&str; 6] = ["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"];

/// FusedConv: `activation(conv(X, W, B) + Z)`.
pub(super) fn fused_conv(l: &mut Lowering<'_>) -> Result<()> {
    let operands = [Some(l.operand(0)?), Some(l.operand(1)?), l.optional(2)];
    let attrs = l.attributes(&WINDOW);
    let y = l.op_with("Conv", &operands, &attrs)?;
    finish_conv(l, y)
}

/// NhwcConv and NhwcFusedConv: Conv and FusedConv with the channels of X, Z and the result last.
pub(super) fn nhwc_conv(l: &mut Lowering<'_>) -> Result<()> {
    let rank = l.required_rank(l.operand(1)?)?;
    let attrs = l.attributes(&WINDOW);
    let x = l.channels_first(l.operand(0)?, rank)?;
    let operands = [Some(x), Some(l.operand(1)?), l.optional(2)];
    let y = l.op_with("Conv", &operands, &attrs)?;
    let y = l.channels_last(y, rank)?;
    finish_conv(l, y)
}

/// Adds Z and applies the activation, if the node has them, and makes that the result.
fn finish_conv(l: &mut Lowering<'_>, y: ValueId) -> Result<()> {
    let y = l.plus(y, 3)?;
    let params = match l.node.attr("activation_params") {
        Some(AttrValue::Floats(params)) => params.clone(),
        _ => Vec::new(),
    };
    let activation = l.node.string("activation", "").to_owned();
    let y = activated(l, y, &activation, &params)?;
    l.give(0, y).map(drop)
}

/// FusedGemm: `activation(alpha * A' B' + beta * C)`.
pub(super) fn fused_gemm(l: &mut Lowering<'_>) -> Result<()> {
    let operands = [Some(l.operand(0)?), Some(l.operand(1)?), l.optional(2)];
    let attrs = l.attributes(&["alpha", "beta", "transA", "transB"]);
    let y = l.op_with("Gemm", &operands, &attrs)?;
    let activation = l.node.string("activation", "").to_owned();
    let names: &[&str] = match &*activation {
        "LeakyRelu" | "Elu" | "ThresholdedRelu" | "Celu" => &["activation_alpha"],
        "HardSigmoid" => &["activation_alpha", "activation_beta"],
        "Selu" => &["activation_alpha", "activation_gamma"],
        _ => &[],
    };
    if let Some(absent) = names.iter().find(|name| l.node.attr(name).is_none()) {
        return Err(l.refused(&format!("the activation {activation:?} without {absent}")));
    }
    let params: Vec<f32> = names.iter().map(|name| l.float(name, 0.0)).collect();
    let y = activated(l, y, &activation, &params)?;
    l.give(0, y).map(drop)
}
