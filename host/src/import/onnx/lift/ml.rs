//! Lowers ops of classical machine learning (`ai.onnx.ml`) to ops of the catalogue, where they are small compositions of them, so
//! that every device runs them. Trees, support vectors and encoders have rows of their own.
//!
//! Source: ONNX's Operators-ml.md, and onnxruntime's kernels where the text is silent (docs/ml-ops.md). Numbers are f32, except
//! that f64 operands are scaled and normalised in f64 and rounded once.

use super::super::{invalid, unsupported};
use super::lowering::{Lowering, Row, row};
use devbay_core::program::{AttrValue, Node, Op, ValueId};
use devbay_core::tensor::{F32, F64, Tensor};
use devbay_core::{Error, Result};
use devbay_ops::ML_DOMAIN;

/// Ops of `ai.onnx.ml`, sorted by name.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("ArrayFeatureExtractor", (2, 1), "", array_feature_extractor),
    row("FeatureVectorizer", (usize::MAX, 1), "inputdimensions", feature_vectorizer),
    row("Imputer", (1, 1), "imputed_value_floats imputed_value_int64s replaced_value_float replaced_value_int64", imputer),
    row("LinearClassifier", (1, 2), "classlabels_ints classlabels_strings coefficients intercepts multi_class post_transform", linear_classifier),
    row("LinearRegressor", (1, 1), "coefficients intercepts post_transform targets", linear_regressor),
    row("Normalizer", (1, 1), "norm", normalizer),
    row("Scaler", (1, 1), "offset scale", scaler),
];

/// Returns the lowering of an op, if it has one.
pub(super) fn find(op: &Op) -> Option<&'static Row> {
    let row = |op: &Op| ROWS.binary_search_by(|row| row.name.cmp(&op.name)).ok();
    (*op.domain == *ML_DOMAIN).then(|| row(op)).flatten().map(|i| &ROWS[i])
}

/// Attributes whose texts are labels, keys, values or categories.
const TEXTS: &[&str] =
    &["cats_strings", "classes_strings", "classlabels_strings", "keys_strings", "values_strings"];

/// Refuses a node of `ai.onnx.ml` with texts that no step of the host has taken (`hosted/rewrite.rs`).
///
/// # Errors
/// Unsupported, with the attribute.
pub(super) fn refuse_texts(node: &Node) -> Result<()> {
    if *node.op.domain != *ML_DOMAIN {
        return Ok(());
    }
    let has = |name: &&&str| matches!(node.attr(name), Some(AttrValue::Strings(list)) if !list.is_empty());
    match TEXTS.iter().find(has) {
        None => Ok(()),
        Some(name) => Err(unsupported(format!(
            "{} with the attribute {name} is not supported, as tensors hold no texts; export the model with integers in their \
             place, and map them to texts afterwards",
            node.op
        ))),
    }
}

// Attributes.

fn floats(l: &Lowering<'_>, name: &str) -> Result<Vec<f32>> {
    match l.node.attr(name) {
        None => Ok(Vec::new()),
        Some(AttrValue::Floats(list)) => Ok(list.clone()),
        Some(_) => Err(invalid(format!("expected numbers as the attribute {name:?}"))),
    }
}

fn ints(l: &Lowering<'_>, name: &str) -> Result<Vec<i64>> {
    match l.node.attr(name) {
        None => Ok(Vec::new()),
        Some(AttrValue::Ints(list)) => Ok(list.clone()),
        Some(_) => Err(invalid(format!("expected integers as the attribute {name:?}"))),
    }
}

fn word(l: &Lowering<'_>, name: &str, default: &str) -> String {
    l.node.string(name, default).to_owned()
}

// Values.

/// Adds a constant list of f32.
fn list(l: &mut Lowering<'_>, values: &[f32]) -> Result<ValueId> {
    Ok(l.program.add_constant("", Tensor::from_elements(&[values.len()], values)?))
}

/// Adds a constant list in the type of another value: f64 or f32.
fn list_like(l: &mut Lowering<'_>, values: &[f32], like: ValueId) -> Result<ValueId> {
    if l.dtype(like) != Some(F64) {
        return list(l, values);
    }
    let values: Vec<f64> = values.iter().map(|&value| value.into()).collect();
    Ok(l.program.add_constant("", Tensor::from_elements(&[values.len()], &values)?))
}

/// Returns an operand as floats: f64 as it is, others in f32.
fn real(l: &mut Lowering<'_>, i: usize) -> Result<ValueId> {
    let x = l.operand(i)?;
    if l.required_dtype(x)? == F64 { Ok(x) } else { l.cast(x, F32) }
}

/// Makes a value the result at `i`, in f32.
fn give_single(l: &mut Lowering<'_>, i: usize, y: ValueId) -> Result<()> {
    let y = l.cast(y, F32)?;
    l.give(i, y).map(drop)
}

/// Returns an operand as rows of f32.
fn rows(l: &mut Lowering<'_>, i: usize) -> Result<ValueId> {
    let x = l.operand(i)?;
    let x = l.cast(x, F32)?;
    matrix(l, x)
}

/// Returns a row, or rows, as rows.
fn matrix(l: &mut Lowering<'_>, x: ValueId) -> Result<ValueId> {
    match l.rank(x) {
        Some(1) => l.unsqueeze(x, &[0]),
        Some(2) => Ok(x),
        Some(rank) => Err(invalid(format!("expected rows of features, 1 or 2 dimensions, found {rank}"))),
        // As many rows as there are of the last extent.
        None => {
            let (n_rows, width) =
                (l.ints(&[-1])?, l.op_with("Shape", &[x], &[("start", AttrValue::Int(-1))])?);
            let shape = l.op_with("Concat", &[n_rows, width], &[("axis", AttrValue::Int(0))])?;
            l.op("Reshape", &[x, shape])
        }
    }
}

// Ops.

fn array_feature_extractor(l: &mut Lowering<'_>) -> Result<()> {
    let (mut x, indices) = (l.operand(0)?, l.operand(1)?);
    let indices = l.reshape(indices, &[-1])?;
    match l.required_rank(x)? {
        0 => return Err(invalid("expected at least 1 dimension as input 0, found none")),
        1 => x = l.unsqueeze(x, &[0])?,
        _ => {}
    }
    let y = l.op_with("Gather", &[x, indices], &[("axis", AttrValue::Int(-1))])?;
    l.give(0, y).map(drop)
}

fn feature_vectorizer(l: &mut Lowering<'_>) -> Result<()> {
    let sizes = ints(l, "inputdimensions")?;
    let n = l.node.inputs.len();
    if sizes.len() != n {
        let found = sizes.len();
        return Err(invalid(format!(
            "expected {n} entries in inputdimensions, one for each input, found {found}"
        )));
    }
    let mut parts = Vec::with_capacity(n);
    for (i, size) in sizes.into_iter().enumerate() {
        if size < 0 {
            return Err(invalid(format!("expected lengths in inputdimensions, found {size}")));
        }
        let x = l.operand(i)?;
        let x = l.cast(x, F32)?;
        let x = match l.required_rank(x)? {
            0 => return Err(invalid(format!("expected at least 1 dimension as input {i}, found none"))),
            1 => l.unsqueeze(x, &[0])?,
            2 => x,
            _ => l.op_with("Flatten", &[x], &[("axis", AttrValue::Int(1))])?,
        };
        parts.push(Some(resized(l, x, size)?));
    }
    l.finish("Concat", &parts, &[("axis", AttrValue::Int(1))], &[Some(0)])
}

/// Cuts rows to a length, or fills them up with zeros.
fn resized(l: &mut Lowering<'_>, mut x: ValueId, size: i64) -> Result<ValueId> {
    let known = l.extent(x, 1).map(|n| n as i64);
    if known == Some(size) {
        return Ok(x);
    }
    if known.is_none_or(|n| n < size) {
        let amounts = l.ints(&[0, 0, 0, size - known.unwrap_or(0)])?;
        x = l.op("Pad", &[x, amounts])?;
    }
    if known.is_none_or(|n| n > size) {
        let (start, end, axis) = (l.ints(&[0])?, l.ints(&[size])?, l.ints(&[1])?);
        x = l.op("Slice", &[x, start, end, axis])?;
    }
    Ok(x)
}

fn imputer(l: &mut Lowering<'_>) -> Result<()> {
    let x = l.operand(0)?;
    let (of_floats, of_ints) = (floats(l, "imputed_value_floats")?, ints(l, "imputed_value_int64s")?);
    let n_features = l.extent(x, -1);
    // As in onnxruntime: a list of another length than the features has one value for all.
    let kept = |n: usize| if n_features.is_some_and(|features| features != n) { 1 } else { n };
    let (imputed, replaced, replaces_nan) = match (of_floats.len(), of_ints.len()) {
        (n @ 1.., 0) => {
            let value = l.float("replaced_value_float", 0.0);
            (list(l, &of_floats[..kept(n)])?, list(l, &[value])?, value.is_nan())
        }
        (0, n @ 1..) => {
            let value = l.int("replaced_value_int64", 0);
            (l.ints(&of_ints[..kept(n)])?, l.ints(&[value])?, false)
        }
        _ => return Err(invalid("expected one of imputed_value_floats and imputed_value_int64s")),
    };
    let mut like_x = |id| l.op("CastLike", &[id, x]);
    let (imputed, replaced) = (like_x(imputed)?, like_x(replaced)?);
    let is_replaced = if replaces_nan { l.op("IsNaN", &[x])? } else { l.op("Equal", &[x, replaced])? };
    let y = l.op("Where", &[is_replaced, imputed, x])?;
    l.give(0, y).map(drop)
}

fn normalizer(l: &mut Lowering<'_>) -> Result<()> {
    let reduction = match &*word(l, "norm", "MAX") {
        "MAX" => "ReduceMax",
        "L1" => "ReduceL1",
        "L2" => "ReduceL2",
        other => return Err(invalid(format!("norm is MAX, L1 or L2, found {other}"))),
    };
    let x = real(l, 0)?;
    let axes = l.ints(&[-1])?;
    let norm = l.op(reduction, &[x, axes])?;
    // A row of norm 0 stays as it is.
    let (zero, one) = (l.number(0.0, x)?, l.number(1.0, x)?);
    let is_zero = l.op("Equal", &[norm, zero])?;
    let norm = l.op("Where", &[is_zero, one, norm])?;
    let y = l.op("Div", &[x, norm])?;
    give_single(l, 0, y)
}

fn scaler(l: &mut Lowering<'_>) -> Result<()> {
    let (offset, scale) = (floats(l, "offset")?, floats(l, "scale")?);
    if !offset.is_empty() && !scale.is_empty() && offset.len() != scale.len() {
        let (offset, scale) = (offset.len(), scale.len());
        return Err(invalid(format!(
            "expected as many entries in scale as in offset, {offset}, found {scale}"
        )));
    }
    let mut y = real(l, 0)?;
    for (op, list) in [("Sub", offset), ("Mul", scale)] {
        if !list.is_empty() {
            let list = list_like(l, &list, y)?;
            y = l.op(op, &[y, list])?;
        }
    }
    give_single(l, 0, y)
}

/// Multiplies rows of features by rows of coefficients, and adds intercepts: a column for each row of coefficients.
fn linear(l: &mut Lowering<'_>, coefficients: &[f32], n: usize, intercepts: &[f32]) -> Result<ValueId> {
    if n == 0 || !coefficients.len().is_multiple_of(n) {
        let found = coefficients.len();
        return Err(invalid(format!("expected coefficients of {n} targets, found {found} numbers")));
    }
    let x = rows(l, 0)?;
    let width = coefficients.len() / n;
    if let Some(found) = l.extent(x, 1).filter(|&found| found != width) {
        return Err(invalid(format!(
            "expected {width} features, as many as coefficients of a target, found {found}"
        )));
    }
    let weights = l.program.add_constant("", Tensor::from_elements(&[n, width], coefficients)?);
    let mut operands = vec![x, weights];
    if !intercepts.is_empty() {
        operands.push(list(l, intercepts)?);
    }
    l.op_with("Gemm", &operands, &[("transB", AttrValue::Int(1))])
}

fn linear_regressor(l: &mut Lowering<'_>) -> Result<()> {
    let (coefficients, intercepts) = (floats(l, "coefficients")?, floats(l, "intercepts")?);
    let n = usize::try_from(l.int("targets", 1)).unwrap_or(0);
    if !intercepts.is_empty() && intercepts.len() != n {
        let found = intercepts.len();
        return Err(invalid(format!("expected {n} intercepts, one for each target, found {found}")));
    }
    let scores = linear(l, &coefficients, n, &intercepts)?;
    let y = transformed(l, scores, n)?;
    l.give(0, y).map(drop)
}

fn linear_classifier(l: &mut Lowering<'_>) -> Result<()> {
    let (coefficients, intercepts) = (floats(l, "coefficients")?, floats(l, "intercepts")?);
    let labels = ints(l, "classlabels_ints")?;
    let n = if intercepts.is_empty() { labels.len() } else { intercepts.len() };
    if n > 1 && labels.len() != n {
        let found = labels.len();
        return Err(invalid(format!(
            "expected {n} labels in classlabels_ints, one for each class, found {found}"
        )));
    }
    let scores = linear(l, &coefficients, n, &intercepts)?;
    if l.wants(0) {
        let y = if n == 1 { sign_label(l, scores, &labels)? } else { best_label(l, scores, &labels)? };
        l.give(0, y)?;
    }
    if !l.wants(1) {
        return Ok(());
    }
    let z = if n == 1 && labels.len() == 2 { complemented(l, scores)? } else { transformed(l, scores, n)? };
    l.give(1, z).map(drop)
}

/// Returns one of two labels by the sign of the only score.
fn sign_label(l: &mut Lowering<'_>, scores: ValueId, labels: &[i64]) -> Result<ValueId> {
    // As in onnxruntime: other numbers of labels do not count.
    let [negative, positive] = if let [a, b] = *labels { [a, b] } else { [0, 1] };
    let scores = l.reshape(scores, &[-1])?;
    let zero = l.number(0.0, scores)?;
    let is_positive = l.op("Greater", &[scores, zero])?;
    let (positive, negative) = (l.int_scalar(positive)?, l.int_scalar(negative)?);
    l.op("Where", &[is_positive, positive, negative])
}

/// Returns the label of the largest score, the first one of equals.
fn best_label(l: &mut Lowering<'_>, scores: ValueId, labels: &[i64]) -> Result<ValueId> {
    let attrs = [("axis", AttrValue::Int(1)), ("keepdims", AttrValue::Int(0))];
    let best = l.op_with("ArgMax", &[scores], &attrs)?;
    let labels = l.ints(labels)?;
    l.op("Gather", &[labels, best])
}

/// Returns two scores of one, as onnxruntime does: sigmoids with LOGISTIC, else it takes the score for a probability.
fn complemented(l: &mut Lowering<'_>, mut score: ValueId) -> Result<ValueId> {
    let other = match &*word(l, "post_transform", "NONE") {
        "PROBIT" => return Err(l.refused("PROBIT, one row of coefficients and two classes")),
        "LOGISTIC" => {
            let opposite = l.op("Neg", &[score])?;
            score = l.op("Sigmoid", &[score])?;
            l.op("Sigmoid", &[opposite])?
        }
        "NONE" | "SOFTMAX" | "SOFTMAX_ZERO" => {
            let one = l.number(1.0, score)?;
            l.op("Sub", &[one, score])?
        }
        other => return Err(unknown_transform(other)),
    };
    l.op_with("Concat", &[other, score], &[("axis", AttrValue::Int(1))])
}

// Transforms.

/// Applies `post_transform` to rows of `n` scores. One score is no distribution, and only PROBIT changes it.
fn transformed(l: &mut Lowering<'_>, scores: ValueId, n: usize) -> Result<ValueId> {
    match &*word(l, "post_transform", "NONE") {
        "NONE" => Ok(scores),
        "PROBIT" => probit(l, scores),
        "LOGISTIC" | "SOFTMAX" | "SOFTMAX_ZERO" if n == 1 => Ok(scores),
        "LOGISTIC" => l.op("Sigmoid", &[scores]),
        "SOFTMAX" => l.op_with("Softmax", &[scores], &[("axis", AttrValue::Int(-1))]),
        "SOFTMAX_ZERO" => softmax_zero(l, scores),
        other => Err(unknown_transform(other)),
    }
}

fn unknown_transform(found: &str) -> Error {
    invalid(format!("post_transform is NONE, SOFTMAX, LOGISTIC, SOFTMAX_ZERO or PROBIT, found {found}"))
}

/// Softmax of the scores that are not 0; the others stay 0.
fn softmax_zero(l: &mut Lowering<'_>, x: ValueId) -> Result<ValueId> {
    let axes = l.ints(&[-1])?;
    let most = l.op("ReduceMax", &[x, axes])?;
    let (least, zero) = (l.number(1e-7, x)?, l.number(0.0, x)?);
    let size = l.op("Abs", &[x])?;
    let counts = l.op("Greater", &[size, least])?;
    let below = l.op("Sub", &[x, most])?;
    let exponential = l.op("Exp", &[below])?;
    let terms = l.op("Where", &[counts, exponential, zero])?;
    let sum = l.op("ReduceSum", &[terms, axes])?;
    let negative = l.op("Neg", &[most])?;
    let factor = l.op("Exp", &[negative])?;
    let rest = l.op("Mul", &[x, factor])?;
    let scores = l.op("Where", &[counts, exponential, rest])?;
    l.op("Div", &[scores, sum])
}

/// The normal distribution's quantile by Winitzki's approximation, with onnxruntime's digits of pi.
fn probit(l: &mut Lowering<'_>, p: ValueId) -> Result<ValueId> {
    const A: f32 = 0.147;
    /// A times pi, which is 3.14159 there.
    const PI_A: f32 = 0.461_813_7;
    let one = l.number(1.0, p)?;
    let twice = l.times(p, 2.0)?;
    let x = l.op("Sub", &[twice, one])?;
    let (above, below) = (l.op("Add", &[one, x])?, l.op("Sub", &[one, x])?);
    let product = l.op("Mul", &[below, above])?;
    let log = l.op("Log", &[product])?;
    let (half, shift) = (l.times(log, 0.5)?, l.number(2.0 / PI_A, p)?);
    let v = l.op("Add", &[half, shift])?;
    let (square, part) = (l.op("Mul", &[v, v])?, l.times(log, 1.0 / A)?);
    let inner = l.op("Sub", &[square, part])?;
    let root = l.op("Sqrt", &[inner])?;
    let difference = l.op("Sub", &[root, v])?;
    let root = l.op("Sqrt", &[difference])?;
    let root = l.times(root, std::f32::consts::SQRT_2)?;
    let zero = l.number(0.0, p)?;
    let is_negative = l.op("Less", &[x, zero])?;
    let opposite = l.op("Neg", &[root])?;
    l.op("Where", &[is_negative, opposite, root])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_not_in_the_catalogue() {
        assert!(ROWS.is_sorted_by_key(|row| row.name));
        for row in ROWS {
            assert!(devbay_ops::find(ML_DOMAIN, row.name).is_none(), "{}", row.name);
        }
    }
}
