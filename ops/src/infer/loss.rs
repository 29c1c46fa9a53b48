//! Losses of classifications: the distance of scores from the labels.

use super::extent::{agree_shape, show};
use super::{Node, invalid};
use crate::types::TensorType;
use devbay_plugin_api::sdk::Result;

/// Infers NegativeLogLikelihoodLoss.
pub fn negative_log_likelihood_loss(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let loss = loss(node)?;
    node.results(vec![loss])
}

/// Infers SoftmaxCrossEntropyLoss, which may also return the logarithms of the probabilities.
pub fn softmax_cross_entropy_loss(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let loss = loss(node)?;
    node.results(vec![loss, node.required(0)?.clone()])
}

/// Returns the type of one number, or one per label: scores are `[batch, classes, places..]`, labels `[batch, places..]`.
fn loss(node: &Node<'_>) -> Result<TensorType> {
    let (scores, labels) = (node.required(0)?, node.required(1)?);
    node.shared_dtype(&[0, 2])?;
    node.expect_rank(2, 1)?;
    let places = match scores.shape.as_deref() {
        None => None,
        Some([batch, _, places @ ..]) => Some([std::slice::from_ref(batch), places].concat()),
        Some(found) => return Err(invalid(format!("expected scores of classes, found {}", show(found)))),
    };
    let places = agree_shape("labels", places, labels.shape.clone())?;
    let shape = match node.string("reduction", "mean") {
        "none" => places,
        "mean" | "sum" => Some(Vec::new()),
        other => return Err(invalid(format!("expected a reduction mean, sum or none, found {other}"))),
    };
    Ok(TensorType { dtype: scores.dtype, shape })
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn losses() {
        check("NegativeLogLikelihoodLoss", "f32[n,5,2] i64[n,2]", "f32[]");
        check("NegativeLogLikelihoodLoss reduction=none", "f32[n,5,2] i64[3,2] f32[5]", "f32[3,2]");
        check("NegativeLogLikelihoodLoss reduction=none", "f32[..] i64[3,2]", "f32[3,2]");
        check("NegativeLogLikelihoodLoss reduction=most", "f32[3,5] i64[3]", "error: a reduction mean");
        check("SoftmaxCrossEntropyLoss", "f32[3,5] i64[3]", "f32[] f32[3,5]");
        check("SoftmaxCrossEntropyLoss", "f32[3,5] i64[4]", "error: expected labels of shape [3], found [4]");
        check("SoftmaxCrossEntropyLoss", "f32[3] i64[3]", "error: scores of classes");
    }
}
