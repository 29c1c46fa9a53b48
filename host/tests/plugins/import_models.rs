//! Trained models, imported: how many nodes they become, and what damage does to them.

use crate::models::models;
use devbay_core::ErrorKind;
use devbay_core::program::{text, verify::verify};
use devbay_host::Reading;
use devbay_host::internals::import::{from_bytes, open};
use std::fs;

/// Each model with the nodes that the onnx package 1.23.2 counts in it, those of subgraphs included, less its
/// Constant nodes. Lifting adds none: all ranks that Softmax of older opsets depends on are found.
const MODELS: &[(&str, usize)] = &[
    ("aecmos_gru_b", 41 - 4),
    ("basic_pitch", 248),
    ("bert_rxnfp", 1196 - 337),
    ("blaze_face", 95),
    ("dnsmos", 48),
    ("efficientnet_lite0", 456 - 222),
    ("khmercut_int8", 106),
    ("magika_v3_3", 95),
    ("melspectrogram", 29 - 9),
    ("mlp_hey_livekit", 14),
    ("mnist_cnn", 13 - 2),
    ("mnist_external", 13 - 2),
    ("ocr_cls_ppv2", 566 - 308),
    ("ocr_det_ppv4", 672 - 342),
    ("ocr_rec_ppv4", 860 - 420),
    ("picodet_layout", 1493 - 878),
    ("pplcnet_orientation", 115),
    ("rivagan_decoder", 21 - 1),
    ("silero_vad_op18_ifless", 90),
    ("silero_vad_v6", 689 - 341),
    ("slanet_1m", 1070 - 559),
    ("speech_embedding", 65),
    ("whisper80_stft", 20),
];

#[test]
fn trained_models_import() {
    for (name, folder) in models(MODELS.iter().map(|(name, _)| *name)) {
        let n_nodes = MODELS.iter().find(|(known, _)| *known == name).map(|(_, n_nodes)| *n_nodes).unwrap();
        let path = folder.join("model.onnx");
        let program = open(&path, Reading::Mapped).unwrap_or_else(|error| panic!("{error:?}"));
        assert_eq!(program.n_nodes(), n_nodes, "{name}");
        assert!(!program.main.outputs.is_empty(), "{name}");
        for &id in program.main.inputs.iter().chain(&program.main.outputs) {
            assert!(!program.value(id).name.is_empty(), "{name}");
        }
        let printed = text::print(&program);
        let parsed = text::parse(&printed).unwrap_or_else(|error| panic!("{name}: {error}"));
        verify(&parsed).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(text::print(&parsed) == printed, "{name}: the text does not round-trip");
    }
}

#[test]
fn data_in_another_file_stays_in_one_mapping() {
    let [(_, folder)] = &models(["mnist_external"].into_iter())[..] else {
        unreachable!("one was asked for")
    };
    let program = open(folder.join("model.onnx"), Reading::Mapped).unwrap();
    let address = |name: &str| {
        let value = program.values.iter().find(|value| &*value.name == name).unwrap();
        value.constant.as_ref().unwrap().bytes().as_ptr() as usize
    };
    // Offsets in the model: conv1.weight 288, conv2.weight 22432, fc.weight 1440.
    assert_eq!(address("conv2.weight") - address("conv1.weight"), 22432 - 288);
    assert_eq!(address("fc.weight") - address("conv1.weight"), 1440 - 288);
}

#[test]
fn damaged_models_give_errors() {
    let names = ["mnist_cnn", "mnist_external", "whisper80_stft", "silero_vad_v6"];
    // A generator of its own, so that each run tries the same: Knuth's constants.
    let mut seed = 7u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    for (name, folder) in models(names.into_iter()) {
        let model = fs::read(folder.join("model.onnx")).unwrap();
        let try_one = |bytes: Vec<u8>| {
            if let Err(error) = from_bytes(bytes, Some(&folder)) {
                let typed = [ErrorKind::InvalidModel, ErrorKind::UnsupportedModel, ErrorKind::Io];
                assert!(typed.contains(&error.kind()), "{name}: {error:?}");
            }
        };
        for _ in 0..300 {
            try_one(model[..random(model.len())].to_vec());
        }
        // Weights fill most of a file and damage to them shows little: half of the damage goes to its first part.
        for i in 0..1000 {
            let mut damaged = model.clone();
            let reach = if i % 2 == 0 { damaged.len() } else { damaged.len().min(4096) };
            for _ in 0..=random(4) {
                damaged[random(reach)] ^= 1 << random(8);
            }
            try_one(damaged);
        }
    }
}
