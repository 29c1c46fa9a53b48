//! The memory of plans: of every trained model an arena that is close to what cannot be avoided.

use crate::library::library;
use crate::models::models;
use devbay_host::{Model, Policy, Requirements, Runtime, Session, arrays};

/// Maximum ratio of an arena's size to its lower bound.
const RATIO_MAX: f64 = 1.05;

/// Each model with the stages of its plan that are sections. The others depend on data: their launches are planned when
/// they are reached.
const MODELS: &[(&str, usize)] = &[
    ("aecmos_gru_b", 1),
    ("basic_pitch", 1),
    ("bert_rxnfp", 1),
    ("blaze_face", 1),
    ("dnsmos", 1),
    ("efficientnet_lite0", 1),
    ("khmercut_int8", 1),
    ("magika_v3_3", 1),
    ("melspectrogram", 1),
    ("mlp_hey_livekit", 1),
    ("mnist_cnn", 1),
    ("mnist_external", 1),
    ("ocr_cls_ppv2", 1),
    ("ocr_det_ppv4", 1),
    ("ocr_rec_ppv4", 1),
    ("picodet_layout", 1),
    ("pplcnet_orientation", 1),
    ("rivagan_decoder", 1),
    ("silero_vad_op18_ifless", 1),
    ("silero_vad_v6", 1),
    ("slanet_1m", 2),
    ("speech_embedding", 1),
    ("tashkeel_rawi_v3", 1),
    ("whisper80_stft", 1),
];

/// Plans every model for its first case, on so many threads.
fn expect_close_to_bound(threads: usize) {
    let options = Runtime::builder().threads(threads).plugin(library("cpu"));
    let runtime = options.build().expect("a runtime");
    let device = runtime.choose(&Policy::Auto, &Requirements::default()).expect("a device").device;
    for (name, folder) in models(MODELS.iter().map(|(name, _)| *name)) {
        let n_sections = MODELS.iter().find(|(known, _)| *known == name).expect("it was asked for").1;
        let model = Model::load(folder.join("model.onnx")).unwrap_or_else(|error| panic!("{name}: {error}"));
        let inputs = folder.join("case0.inputs.npz");
        if std::env::var_os("DEVBAY_MODELS").is_none() && !inputs.exists() {
            eprintln!("not run, as the repository has a photo for it and no arrays: {name}");
            continue;
        }
        let given = arrays::read_npz(&inputs);
        let given = given.unwrap_or_else(|error| panic!("{name}: {error}"));
        let session = Session::new(&model, &device).unwrap_or_else(|error| panic!("{name}: {error}"));
        let types: Vec<_> = session
            .inputs()
            .iter()
            .map(|port| {
                let (_, tensor) = given.iter().find(|(given, _)| **given == *port.name).expect("an input");
                (tensor.dtype(), tensor.shape())
            })
            .collect();
        let plan = session.plan_for_types(&types).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(plan.sections().count(), n_sections, "{name}");
        for memory in plan.sections().map(|section| section.memory) {
            let (arena, bound) = (memory.arena as f64, memory.lower_bound as f64);
            assert!(arena >= bound, "{name}: an arena of {arena} bytes below its lower bound of {bound}");
            assert!(
                arena <= RATIO_MAX * bound,
                "{name}: an arena of {arena} bytes, {:.3} times its lower bound of {bound}",
                arena / bound
            );
        }
    }
}

#[test]
fn arenas_of_lines_are_close_to_their_lower_bound() {
    expect_close_to_bound(1);
}

#[test]
fn arenas_of_tasks_are_close_to_their_lower_bound() {
    expect_close_to_bound(4);
}
