//! Ops of classical machine learning: the nodes that they become, refusals, and numbers. A comparison with onnxruntime, case by
//! case, is `host/python/tests/check_ml_ops.py`.

use super::*;
use crate::{Model, Runtime, Session, Tensor};

/// Returns a model of one node of `ai.onnx.ml`, of an input `x: f32[2,3]`.
fn of(op: &str, outputs: &[&str], attributes: Vec<AttributeProto>) -> ModelProto {
    let mut node = node(&format!("ai.onnx.ml.{op}"), &["x"], outputs).named("n");
    node.attribute = attributes;
    let mut graph = graph(vec![node], outputs);
    graph.input = vec![value("x", DataType::Float, Some(&[2, 3]))];
    let mut model = model(17, graph);
    model.opset_import.push(import_of("ai.onnx.ml", 3));
    model
}

#[test]
fn small_compositions_become_ops_of_onnx() {
    let scaler = of("Scaler", &["y"], vec![floats("offset", &[1.0]), floats("scale", &[0.5])]);
    check(
        "Scaler",
        &scaler,
        "program \"g\"(%x: f32[2,3]) {
         %1 = const f32[1] [1.0]
         %2 = Sub@14(%x, %1) as \"n/Sub\"
         %3 = const f32[1] [0.5]
         %y = Mul@14(%2, %3) as \"n/Mul\"
         return %y",
    );
}

/// Runs a model on the processor, with the rows 1 -2 3 and 0 0 0.
fn run(model: &ModelProto) -> Vec<Tensor> {
    let runtime = Runtime::builder().threads(1).link(devbay_plugin_cpu::PLUGIN).build().unwrap();
    let model = Model::from_bytes(model.encode_to_vec()).unwrap();
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    session
        .run(&[("x", &Tensor::from_elements(&[2, 3], &[1f32, -2.0, 3.0, 0.0, 0.0, 0.0]).unwrap())])
        .unwrap()
}

fn check_numbers(case: &str, found: &Tensor, expected: &[f32]) {
    let found = found.elements::<f32>().unwrap();
    let are_near = found.iter().zip(expected).all(|(a, b)| (a - b).abs() <= 1e-5 * b.abs().max(1.0));
    assert!(found.len() == expected.len() && are_near, "{case}: {found:?}, expected {expected:?}");
}

#[test]
fn numbers_follow_the_definitions() {
    let check = |op, attributes, expected: &[f32]| {
        check_numbers(op, &run(&of(op, &["y"], attributes))[0], expected);
    };
    // A row of norm 0 stays as it is.
    let sixth = 1.0 / 6.0;
    check("Normalizer", vec![string("norm", "L1")], &[sixth, -2.0 * sixth, 0.5, 0.0, 0.0, 0.0]);
    check("Normalizer", vec![], &[1.0 / 3.0, -2.0 / 3.0, 1.0, 0.0, 0.0, 0.0]);
    let imputed = vec![floats("imputed_value_floats", &[7.0, 8.0, 9.0]), float("replaced_value_float", 0.0)];
    check("Imputer", imputed, &[1.0, -2.0, 3.0, 7.0, 8.0, 9.0]);
    check(
        "FeatureVectorizer",
        vec![ints("inputdimensions", &[4])],
        &[1.0, -2.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    );
    check("FeatureVectorizer", vec![ints("inputdimensions", &[2])], &[1.0, -2.0, 0.0, 0.0]);
    let linear = vec![floats("coefficients", &[1.0, 1.0, 1.0, 0.0, 1.0, 0.0]), int("targets", 2)];
    check("LinearRegressor", linear, &[2.0, -2.0, 0.0, 0.0]);
}

#[test]
fn classifiers_give_labels_and_scores() {
    let classifier = |intercepts: &[f32], labels: &[i64]| {
        let coefficients = floats("coefficients", &[1.0, 1.0, 1.0, 0.0, 1.0, 0.0][..3 * intercepts.len()]);
        let attributes = vec![
            coefficients,
            floats("intercepts", intercepts),
            ints("classlabels_ints", labels),
            string("post_transform", "LOGISTIC"),
        ];
        let results = run(&of("LinearClassifier", &["y", "z"], attributes));
        (results[0].elements::<i64>().unwrap().to_vec(), results[1].clone())
    };
    let (labels, scores) = classifier(&[0.0, 1.0], &[50, 60]);
    assert_eq!(labels, [50, 60]);
    check_numbers("two rows", &scores, &[0.880_797, 0.268_941, 0.5, 0.731_059]);
    let (labels, scores) = classifier(&[-1.0], &[50, 60]);
    assert_eq!(labels, [60, 50]);
    check_numbers("one row", &scores, &[0.268_941, 0.731_059, 0.731_059, 0.268_941]);
}

#[test]
fn what_cannot_be_said_is_refused() {
    let unsupported = |op, attributes, words: &str| {
        check_refused(op, &of(op, &["y"], attributes), ErrorKind::UnsupportedModel, words);
    };
    unsupported("Scaler", vec![int("axis", 1)], "Scaler@3 with the attribute axis");
    let invalid = |op, attributes, words: &str| {
        check_refused(op, &of(op, &["y"], attributes), ErrorKind::InvalidModel, words);
    };
    invalid("Scaler", vec![floats("offset", &[1.0]), floats("scale", &[1.0; 2])], "as many entries in scale");
    invalid("Normalizer", vec![string("norm", "L3")], "norm is MAX, L1 or L2, found L3");
    invalid("Imputer", vec![], "one of imputed_value_floats and imputed_value_int64s");
    invalid("LinearRegressor", vec![floats("coefficients", &[1.0; 4])], "expected 4 features");
    invalid("LinearRegressor", vec![floats("coefficients", &[1.0; 3]), int("targets", 2)], "of 2 targets");
    invalid(
        "FeatureVectorizer",
        vec![ints("inputdimensions", &[1, 2])],
        "expected 1 entries in inputdimensions",
    );
}
