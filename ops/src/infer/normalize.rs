//! Ops that keep the operand's shape, with an axis or one number per channel.

use super::extent::{agree, axes, axis, broadcasts_to, extent, show};
use super::{Node, invalid};
use crate::onnx_types::dtype_from_onnx;
use crate::types::{Dim, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers Softmax and its kin: the attribute `axis`, by default -1, is one of the operand's.
pub fn along_axis(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    if let Some(dims) = &x.shape {
        axis(node.int("axis", -1), dims.len())?;
    }
    node.result(x.dtype, x.shape.clone())
}

/// Infers MeanVarianceNormalization: the attribute `axes`, by default all of an image but its channels.
pub fn mean_variance(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    if let Some(dims) = &x.shape {
        axes(node.ints("axes").unwrap_or(&[0, 2, 3]), dims.len())?;
    }
    node.result(x.dtype, x.shape.clone())
}

/// Infers CumSum and CumProd: the axis is the second operand.
pub fn cumulative(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.required(1)?;
    if let (Some(dims), Some(at)) = (&x.shape, node.constant_int(1)?) {
        axis(at, dims.len())?;
    }
    node.result(x.dtype, x.shape.clone())
}

/// Infers BatchNormalization; in training mode also the running mean and variance.
pub fn batch_normalization(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let mut channels = channels_of(node)?;
    for i in 1..5 {
        node.required(i)?;
        channels = one_for_each(node, i, &channels)?;
    }
    let mut shape = x.shape.clone();
    if let Some(c) = shape.as_mut().and_then(|dims| dims.get_mut(1)) {
        *c = channels.clone();
    }
    let mut types = vec![TensorType { dtype: x.dtype, shape }];
    if node.flag("training_mode", false)? {
        for i in 3..5 {
            types.push(TensorType { dtype: node.required(i)?.dtype, shape: Some(vec![channels.clone()]) });
        }
    }
    node.results(types)
}

/// Infers InstanceNormalization.
pub fn instance_normalization(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let channels = channels_of(node)?;
    for i in 1..3 {
        node.required(i)?;
        one_for_each(node, i, &channels)?;
    }
    node.result(x.dtype, x.shape.clone())
}

/// Infers GroupNormalization.
pub fn group_normalization(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let groups = extent(node.int("num_groups", 0).into())?;
    let channels = channels_of(node)?;
    let divides = channels.known().is_none_or(|c| c.checked_rem(groups) == Some(0));
    if groups == 0 || !divides {
        return Err(invalid(format!("expected num_groups to divide {channels} channels, found {groups}")));
    }
    instance_normalization(node)
}

/// Returns the second extent of the first operand, which an input of one dimension may lack.
fn channels_of(node: &Node<'_>) -> Result<Dim> {
    match node.shape(0) {
        None => Ok(Dim::unknown()),
        Some([_, channels, ..]) => Ok(channels.clone()),
        // In ONNX, a one-dimensional input has one channel.
        Some([_]) => Ok(Dim::Known(1)),
        Some([]) => Err(invalid("expected at least 1 dimension, found a scalar")),
    }
}

/// Checks that an operand has one number per channel, and returns their number if known.
fn one_for_each(node: &Node<'_>, i: usize, channels: &Dim) -> Result<Dim> {
    node.expect_rank(i, 1)?;
    let Some([n]) = node.shape(i) else {
        return Ok(channels.clone());
    };
    agree(channels, n).ok_or_else(|| invalid(format!("expected {channels} numbers as input {i}, found {n}")))
}

/// Infers LayerNormalization: also the mean and inverse deviation, with extents of 1 from the axis on.
pub fn layer_normalization(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let scale = node.required(1)?;
    let statistics = match &x.shape {
        Some(dims) => {
            let axis = axis(node.int("axis", -1), dims.len())?;
            let mut dims = dims.clone();
            dims[axis..].fill(Dim::Known(1));
            Some(dims)
        }
        None => None,
    };
    for i in 1..3 {
        broadcasts_to("a scale or bias", node.shape(i), x.shape.as_deref())?;
    }
    let statistics = TensorType { dtype: dtype_from_onnx(node.int("stash_type", 1))?, shape: statistics };
    let y = TensorType { dtype: scale.dtype, shape: x.shape.clone() };
    node.results(vec![y, statistics.clone(), statistics])
}

/// Infers RMSNormalization: the result has the scale's element type.
pub fn rms_normalization(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let scale = node.required(1)?;
    if let Some(dims) = &x.shape {
        let axis = axis(node.int("axis", -1), dims.len())?;
        if let Some(scale) = scale.shape.as_deref().filter(|scale| scale.len() > dims.len() - axis) {
            return Err(invalid(format!(
                "expected a scale of the dimensions from axis {axis} on, found {}",
                show(scale)
            )));
        }
    }
    broadcasts_to("a scale", node.shape(1), node.shape(0))?;
    node.result(scale.dtype, x.shape.clone())
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn along_an_axis() {
        check("Softmax", "f32[2,n]", "f32[2,n]");
        check("Softmax axis=0", "f32[..]", "f32[..]");
        check("LogSoftmax axis=2", "f32[2,n]", "error: found axis 2");
        check("Softmax", "f32[]", "error: found axis -1");
        check("CumSum", "f32[2,n] i64[]{1}", "f32[2,n]");
        check("CumSum", "f32[2,n] i64[]", "f32[2,n]");
        check("CumSum", "f32[2,n] i64[]{2}", "error: found axis 2");
        check("CumSum", "f32[2,n] i64[2]{0,1}", "error: expected one number");
    }

    #[test]
    fn one_number_for_each_channel() {
        let batch = "BatchNormalization";
        check(batch, "f32[n,3,4] f32[3] f32[3] f32[3] f32[3]", "f32[n,3,4]");
        check(batch, "f32[n,?,4] f32[3] f32[?] f32[3] f32[3]", "f32[n,3,4]");
        check(
            "BatchNormalization training_mode=1",
            "f16[n,3] f16[3] f16[3] f32[3] f32[3]",
            "f16[n,3] f32[3] f32[3]",
        );
        check(
            "BatchNormalization #3",
            "f32[n,3] f32[3] f32[3] f32[3] f32[3]",
            "error: expected at most 1 results, found 3",
        );
        check(batch, "f32[n,3] f32[3] f32[3] f32[3] f32[4]", "error: expected 3 numbers as input 4, found 4");
        check("InstanceNormalization", "f32[n,3,5] f32[3] f32[3]", "f32[n,3,5]");
        check(
            "InstanceNormalization",
            "f32[n,3,5] f32[3,1] f32[3]",
            "error: expected 1 dimensions as input 1",
        );
        check("GroupNormalization num_groups=2", "f32[n,4,5] f32[4] f32[4]", "f32[n,4,5]");
        check(
            "GroupNormalization num_groups=3",
            "f32[n,4,5] f32[4] f32[4]",
            "error: expected num_groups to divide 4 channels, found 3",
        );
        check("GroupNormalization", "f32[n,4,5] f32[4] f32[4]", "error: found 0");
    }

    #[test]
    fn statistics() {
        check("LayerNormalization", "f32[2,n,4] f32[4] f32[4]", "f32[2,n,4]");
        check("LayerNormalization axis=1", "f16[2,n,4] f16[n,4] -", "f16[2,n,4] f32[2,1,1] f32[2,1,1]");
        check("LayerNormalization", "f32[..] f32[4]", "f32[..] f32[..]");
        check(
            "LayerNormalization",
            "f32[2,4] f32[5]",
            "error: expected a scale or bias that broadcasts to [2,4], found [5]",
        );
        check("LayerNormalization", "f32[] f32[]", "error: found axis -1");
        check("RMSNormalization", "f16[2,4] f32[4]", "f32[2,4]");
        check(
            "RMSNormalization",
            "f32[2,4] f32[2,4]",
            "error: expected a scale of the dimensions from axis 1 on, found [2,4]",
        );
    }
}
