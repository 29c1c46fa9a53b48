//! Facts that files state about themselves.

use super::*;
use crate::{Model, ModelFormat, ModelInfo};

#[test]
fn the_facts_of_a_model_are_kept() {
    let note = |key: Option<&str>, value: Option<&str>| StringStringEntryProto {
        key: key.map(str::to_owned),
        value: value.map(str::to_owned),
    };
    let proto = ModelProto {
        producer_name: Some("pytorch".to_owned()),
        producer_version: Some("2.9.1".to_owned()),
        domain: Some("org.example".to_owned()),
        model_version: Some(3),
        doc_string: Some("a model".to_owned()),
        opset_import: vec![import_of("ai.onnx", 17), import_of("com.vendor", 1)],
        metadata_props: vec![note(Some("labels"), Some("cat,dog")), note(Some("empty"), None)],
        ..model(17, graph(vec![node("Relu", &["x"], &["y"])], &["y"]))
    };
    let read = Model::from_bytes(proto.encode_to_vec()).unwrap();
    let texts = |pairs: &[(&str, &str)]| -> Vec<_> {
        pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    };
    let expected = ModelInfo {
        format: ModelFormat::Onnx,
        ir_version: Some(8),
        opsets: vec![(String::new(), 17), ("com.vendor".to_owned(), 1)],
        producer_name: "pytorch".to_owned(),
        producer_version: "2.9.1".to_owned(),
        domain: "org.example".to_owned(),
        model_version: Some(3),
        description: "a model".to_owned(),
        graph_name: "g".to_owned(),
        graph_description: String::new(),
        metadata: texts(&[("labels", "cat,dog"), ("empty", "")]),
    };
    assert_eq!(*read.info(), expected);
}

#[test]
fn other_formats_state_less() {
    let text =
        "devbay-program 1\n\nprogram \"p\"(%x: f32[2]) {\n  %y: f32[2] = Relu@14(%x)\n  return %y\n}\n";
    let expected = ModelInfo { format: ModelFormat::Text, ..ModelInfo::default() };
    let models = [Model::from_text(text).unwrap(), Model::from_bytes(text.as_bytes().to_vec()).unwrap()];
    for model in &models {
        assert_eq!(*model.info(), expected);
    }
    let made = Model::from_program(models[0].program().clone());
    assert_eq!(*made.info(), ModelInfo::default());
}
