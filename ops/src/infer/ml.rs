//! Ops of classical machine learning (ai.onnx.ml): a row of features gives a row of scores.

use super::{Node, extent, invalid};
use crate::AttrRef;
use crate::types::{DType, Dim, F32, I64, TensorType};
use devbay_plugin_api::sdk::Result;

/// Infers TreeEnsemble: scores of the features' element type, a column for each target.
pub fn tree_ensemble(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.required(0)?.dtype;
    let columns = n_targets(node)?;
    node.result(dtype, Some(vec![n_rows(node)?, columns]))
}

/// Infers TreeEnsembleRegressor: scores in f32, a column for each target.
pub fn tree_ensemble_regressor(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(0)?;
    let columns = n_targets(node)?;
    node.result(F32, Some(vec![n_rows(node)?, columns]))
}

/// Infers TreeEnsembleClassifier: a label of each row, and a score of each class.
pub fn tree_ensemble_classifier(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n_classes = n_labels(node, "classlabels_int64s")?;
    labels_and_scores(node, n_classes)
}

/// Infers SVMClassifier: a label of each row, and a score of each class. Without probabilities, support vectors of more than
/// two classes give a score of each pair of classes instead.
pub fn svm_classifier(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n_classes = n_labels(node, "classlabels_ints")?;
    let has_vectors = node.ints("vectors_per_class").is_some_and(|counts| counts.iter().any(|&n| n > 0));
    let has_probabilities = matches!(node.attr("prob_a"), Some(AttrRef::Floats(n)) if n > 0);
    let columns = match n_classes {
        3.. if has_vectors && !has_probabilities => {
            let pairs = n_classes as i128 * (n_classes as i128 - 1) / 2;
            extent::extent(pairs)?
        }
        _ => n_classes,
    };
    labels_and_scores(node, columns)
}

/// Infers SVMRegressor: one score of each row.
pub fn svm_regressor(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(0)?;
    node.result(F32, Some(vec![n_rows(node)?, Dim::Known(1)]))
}

/// Infers LabelEncoder: a value for each element, in the values' element type.
pub fn label_encoder(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let shape = node.required(0)?.shape.clone();
    node.result(value_dtype(node)?, shape)
}

/// Infers OneHotEncoder: one more dimension, with a place for each category.
pub fn one_hot_encoder(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let n = match (node.attr("cats_int64s"), node.attr("cats_strings")) {
        (Some(AttrRef::Ints(list)), _) if !list.is_empty() => list.len(),
        (_, Some(AttrRef::Strings(n))) if n > 0 => n,
        _ => return Err(invalid("expected categories as the attribute cats_int64s, found none")),
    };
    let shape = node.required(0)?.shape.clone();
    let shape = shape.map(|dims| dims.into_iter().chain([Dim::Known(n)]).collect());
    node.result(F32, shape)
}

/// Returns the element type of a LabelEncoder's values.
fn value_dtype(node: &Node<'_>) -> Result<DType> {
    match (node.attr("values_int64s"), node.attr("values_floats"), node.attr("values_tensor")) {
        (Some(AttrRef::Ints(list)), _, _) if !list.is_empty() => Ok(I64),
        (_, Some(AttrRef::Floats(n)), _) if n > 0 => Ok(F32),
        (_, _, Some(AttrRef::Tensor(dtype))) => Ok(dtype),
        _ => Err(invalid(
            "expected values as one of the attributes values_int64s, values_floats and values_tensor, found none",
        )),
    }
}

fn labels_and_scores(node: &Node<'_>, columns: usize) -> Result<Vec<TensorType>> {
    node.required(0)?;
    let rows = n_rows(node)?;
    let labels = TensorType { dtype: I64, shape: Some(vec![rows.clone()]) };
    let scores = TensorType { dtype: F32, shape: Some(vec![rows, Dim::Known(columns)]) };
    node.results(vec![labels, scores])
}

/// Returns the number of rows of features: one if the operand is a single row.
fn n_rows(node: &Node<'_>) -> Result<Dim> {
    match node.shape(0) {
        None => Ok(Dim::unknown()),
        Some([_]) => Ok(Dim::Known(1)),
        Some([rows, _]) => Ok(rows.clone()),
        Some(found) => Err(invalid(format!(
            "expected rows of features, 1 or 2 dimensions, as input 0, found {}",
            extent::show(found)
        ))),
    }
}

fn n_targets(node: &Node<'_>) -> Result<Dim> {
    match node.int("n_targets", 0) {
        n if n > 0 => Ok(Dim::Known(extent::extent(n.into())?)),
        n => Err(invalid(format!("expected 1 or more as attribute n_targets, found {n}"))),
    }
}

/// Returns the number of classes, by the labels of one of two kinds.
fn n_labels(node: &Node<'_>, ints: &str) -> Result<usize> {
    match (node.attr(ints), node.attr("classlabels_strings")) {
        (Some(AttrRef::Ints(list)), _) if !list.is_empty() => Ok(list.len()),
        (_, Some(AttrRef::Strings(n))) if n > 0 => Ok(n),
        _ => Err(invalid(format!("expected labels of classes as the attribute {ints}, found none"))),
    }
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

    #[test]
    fn trees() {
        check("TreeEnsemble n_targets=2", "f64[5,3]", "f64[5,2]");
        check("TreeEnsembleRegressor n_targets=1", "i64[n,3]", "f32[n,1]");
        check("TreeEnsembleRegressor n_targets=4", "f32[3]", "f32[1,4]");
        check("TreeEnsembleRegressor", "f32[3]", "error: attribute n_targets, found 0");
        check("TreeEnsembleRegressor n_targets=1", "f32[2,3,4]", "error: 1 or 2 dimensions");
        check("TreeEnsembleClassifier classlabels_int64s=[7,8,9]", "f32[..]", "i64[?] f32[?,3]");
        check("TreeEnsembleClassifier #2", "f32[4,3]", "error: the attribute classlabels_int64s");
    }

    #[test]
    fn support_vectors() {
        let vectors = "SVMClassifier classlabels_ints=[0,1,2,3] vectors_per_class=[2,1,1,1]";
        check(vectors, "f32[n,3]", "i64[n] f32[n,6]");
        check(&format!("{vectors} prob_a=[0.5]"), "f32[n,3]", "i64[n] f32[n,4]");
        check("SVMClassifier classlabels_ints=[0,1,2,3]", "f32[n,3]", "i64[n] f32[n,4]");
        check("SVMClassifier classlabels_ints=[0,1] vectors_per_class=[2,1]", "f32[3]", "i64[1] f32[1,2]");
        check("SVMRegressor", "f64[7,3]", "f32[7,1]");
    }

    #[test]
    fn encoders() {
        check("LabelEncoder keys_int64s=[1,2] values_floats=[0.5,1.5]", "i64[n,3]", "f32[n,3]");
        check("LabelEncoder values_int64s=[1,2]", "f32[]", "i64[]");
        check("LabelEncoder values_tensor=f64[2]{1,2}", "f32[3]", "f64[3]");
        check("LabelEncoder", "f32[3]", "error: expected values");
        check("OneHotEncoder cats_int64s=[4,5,6]", "i64[n,3]", "f32[n,3,3]");
        check("OneHotEncoder", "i64[3]", "error: expected categories");
    }
}
