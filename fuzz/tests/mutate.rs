//! Mutations of protobuf's form keep it.

use devbay_fuzz::mutate::protobuf::{cross, mutate};
use devbay_host::internals::import::from_bytes;
use std::collections::BTreeSet;
use std::path::Path;

fn model() -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx");
    std::fs::read(path).expect("a model of the repository")
}

/// Text within that no mutation of bytes is tried on: the form is what is judged.
fn leave(_: &mut Vec<u8>) {}

#[test]
fn changed_models_are_well_formed_and_refused_for_many_reasons() {
    let model = model();
    let mut reasons = BTreeSet::new();
    for seed in 0..500 {
        let changed = mutate(&model, seed, &mut leave).expect("a model is a message");
        if let Err(error) = from_bytes(changed, None) {
            reasons.insert(error.to_string());
        }
    }
    let malformed = reasons.iter().filter(|reason| reason.contains("protobuf")).count();
    assert_eq!(malformed, 0, "{reasons:#?}");
    assert!(reasons.len() >= 20, "{} reasons: {reasons:#?}", reasons.len());
}

#[test]
fn a_model_takes_over_fields_of_another() {
    let donor = mutate(&model(), 1, &mut leave).expect("a model is a message");
    let crossed: BTreeSet<Vec<u8>> = (0..20).filter_map(|seed| cross(&model(), &donor, seed)).collect();
    assert!(crossed.len() > 10, "{} of 20 differ", crossed.len());
}

#[test]
fn what_is_no_message_is_left_to_others() {
    assert!(mutate(b"\x0f", 0, &mut leave).is_none());
    assert!(mutate(b"", 0, &mut leave).is_none());
    assert!(cross(&model(), b"\x0f", 0).is_none());
}
