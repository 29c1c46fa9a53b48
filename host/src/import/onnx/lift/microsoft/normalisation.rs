//! Normalisations along the last axis, with the sums that are fused before them.

use super::Lowering;
use devbay_core::Result;
use devbay_core::program::{AttrValue, ValueId};
use devbay_core::tensor::{F32, I32, Tensor};

/// Maximum number of axes that a node lists.
const RANK_MAX: i64 = super::super::RANK_MAX as i64;

/// Default of `epsilon` in the fused ops.
const EPSILON: f32 = 1e-12;

/// SimplifiedLayerNormalization: `X / sqrt(mean(X²) + epsilon) * scale`.
pub(super) fn simplified_layer_normalization(l: &mut Lowering<'_>) -> Result<()> {
    let (x, scale) = (l.operand(0)?, l.operand(1)?);
    let attrs = l.attributes(&["axis", "epsilon", "stash_type"]);
    let y = l.op_with("RMSNormalization", &[x, scale], &attrs)?;
    l.give(0, y)?;
    if !l.wants(1) {
        return Ok(());
    }
    if l.int("stash_type", 1) != 1 {
        return Err(l.refused("its second result in another type than f32"));
    }
    let mut axis = l.int("axis", -1);
    if axis >= 0 {
        axis -= i64::try_from(l.required_rank(x)?).unwrap_or(i64::MAX);
    }
    let epsilon = l.float("epsilon", 1e-5);
    let inverse = inverse_deviation(l, x, axis, epsilon)?;
    l.give(1, inverse).map(drop)
}

/// Returns `1 / sqrt(mean(x²) + epsilon)` in f32, over the axes from a negative one on.
fn inverse_deviation(l: &mut Lowering<'_>, x: ValueId, axis: i64, epsilon: f32) -> Result<ValueId> {
    let x = l.cast(x, F32)?;
    let square = l.op("Mul", &[x, x])?;
    if axis < -RANK_MAX {
        return Err(l.refused(&format!("axis = {axis}")));
    }
    let axes: Vec<i64> = (axis..0).collect();
    let axes = l.ints(&axes)?;
    let mean = l.op("ReduceMean", &[square, axes])?;
    let epsilon = l.number(epsilon, mean)?;
    let sum = l.op("Add", &[mean, epsilon])?;
    let root = l.op("Sqrt", &[sum])?;
    l.op("Reciprocal", &[root])
}

/// SkipLayerNormalization: LayerNormalization of `input + skip + bias`, and that sum.
pub(super) fn skip_layer_normalization(l: &mut Lowering<'_>) -> Result<()> {
    let sum = skip_sum(l, 4)?;
    let operands = [Some(sum), Some(l.operand(2)?), l.optional(3)];
    let attrs = normalization(l);
    l.finish("LayerNormalization", &operands, &attrs, &[Some(0), Some(1), Some(2)])
}

/// Returns the attributes of a normalisation of the last axis.
fn normalization(l: &Lowering<'_>) -> [(&'static str, AttrValue); 2] {
    [("axis", AttrValue::Int(-1)), ("epsilon", AttrValue::Float(l.float("epsilon", EPSILON)))]
}

/// SkipSimplifiedLayerNormalization: SimplifiedLayerNormalization of `input + skip + bias`, and that sum.
pub(super) fn skip_simplified_layer_normalization(l: &mut Lowering<'_>) -> Result<()> {
    let sum = skip_sum(l, 3)?;
    let gamma = l.operand(2)?;
    let attrs = normalization(l);
    let y = l.op_with("RMSNormalization", &[sum, gamma], &attrs)?;
    l.give(0, y)?;
    if l.wants(2) {
        let epsilon = l.float("epsilon", EPSILON);
        let inverse = inverse_deviation(l, sum, -1, epsilon)?;
        l.give(2, inverse)?;
    }
    Ok(())
}

/// Returns `input + skip + bias`, also as the fourth result.
fn skip_sum(l: &mut Lowering<'_>, bias: usize) -> Result<ValueId> {
    let (input, skip) = (l.operand(0)?, l.operand(1)?);
    let sum = l.op("Add", &[input, skip])?;
    let sum = l.plus(sum, bias)?;
    l.give(3, sum)
}

/// EmbedLayerNormalization: LayerNormalization of the sum of the embeddings of words, positions and segments.
pub(super) fn embed_layer_normalization(l: &mut Lowering<'_>) -> Result<()> {
    let (ids, words, places) = (l.operand(0)?, l.operand(2)?, l.operand(3)?);
    let positions = match l.optional(8) {
        Some(positions) => positions,
        None => {
            let n = l.length(ids, 1)?;
            l.positions(n)?
        }
    };
    let word = l.op("Gather", &[words, ids])?;
    let place = l.op("Gather", &[places, positions])?;
    let mut sum = l.op("Add", &[word, place])?;
    match (l.optional(1), l.optional(4)) {
        (Some(ids), Some(segments)) => {
            let segment = l.op("Gather", &[segments, ids])?;
            sum = l.op("Add", &[sum, segment])?;
        }
        (None, None) => {}
        _ => return Err(l.refused("segments without their embedding, or the other way round")),
    }
    let sum = l.give(2, sum)?;
    let operands = [Some(sum), Some(l.operand(5)?), Some(l.operand(6)?)];
    let attrs = normalization(l);
    let y = l.op_with("LayerNormalization", &operands, &attrs)?;
    l.give(0, y)?;
    if l.wants(1) {
        let counts = match l.optional(7) {
            Some(mask) => n_words(l, mask)?,
            None => {
                let batch = l.extents(ids, 0, 1)?;
                let zero = AttrValue::Tensor(Tensor::from_elements(&[1], &[0i32])?);
                l.op_with("ConstantOfShape", &[batch], &[("value", zero)])?
            }
        };
        l.give(1, counts)?;
    }
    Ok(())
}

/// Returns the number of ones in each row of a mask.
fn n_words(l: &mut Lowering<'_>, mask: ValueId) -> Result<ValueId> {
    let one = l.program.add_constant("", Tensor::from_elements(&[], &[1i32])?);
    let is_word = l.op("Equal", &[mask, one])?;
    let is_word = l.cast(is_word, I32)?;
    let axes = l.ints(&[1])?;
    l.op_with("ReduceSum", &[is_word, axes], &[("keepdims", AttrValue::Int(0))])
}
