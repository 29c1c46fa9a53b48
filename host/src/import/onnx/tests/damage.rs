//! Damaged models: each gives a program or an error quickly, and never panics.
//!
//! `tests/import_models.rs` does the same with trained models.

use super::*;

/// Returns a small model that uses every feature.
fn sample() -> Vec<u8> {
    let body = GraphProto {
        input: vec![untyped("i"), untyped("go"), untyped("state")],
        initializer: vec![float32s("w", &[0.5])],
        ..graph(vec![node("Mul", &["state", "w"], &["next"])], &["go", "next"])
    };
    let nodes = vec![
        node("Clip", &["x"], &["c"]).with(float("min", 0.0)).named("clip"),
        node("f.Half", &["c"], &["h"]).with(float("by", 0.5)),
        node("Constant", &[], &["n"]).with(tensor_attribute("value", int64s("", &[3]))),
        node("Loop", &["n", "", "h"], &["l"]).with(graph_attribute("body", body)),
        node("Softmax", &["l"], &["s"]),
        node("Split", &["s"], &["y", "z"]).with(ints("split", &[1, 1])),
        node("v.Custom", &["y", "", "z"], &["out"]).with(string("how", "so")).with(floats("f", &[1.0, 2.0])),
    ];
    let mut graph = graph(nodes, &["out", "z"]);
    graph.initializer =
        vec![TensorProto { raw_data: Some(vec![0; 24].into()), ..tensor("w", DataType::Float16, &[3, 4]) }];
    graph.value_info = vec![value("s", DataType::Float, Some(&[2, -1, 4]))];
    let mut model = model(10, graph);
    model.opset_import.push(import_of("v", 1));
    let half = node("Constant", &[], &["k"]).with(tensor_attribute("value", float32s("", &[0.5])));
    model.functions = vec![function("Half", &["a"], &["b"], vec![half, node("Mul", &["a", "k"], &["b"])])];
    model.encode_to_vec()
}

#[test]
fn damaged_models_give_errors() {
    let model = sample();
    let mut n_read = 0;
    let mut try_one = |bytes: &[u8]| {
        if let Ok(program) = from_bytes(bytes.to_vec(), None) {
            n_read += 1;
            let text = text::print(&program);
            assert_eq!(text::print(&text::parse(&text).unwrap()), text);
        }
    };
    try_one(&model);
    for len in 0..model.len() {
        try_one(&model[..len]);
    }
    for i in 0..model.len() {
        for bit in 0..8 {
            let mut damaged = model.clone();
            damaged[i] ^= 1 << bit;
            try_one(&damaged);
        }
    }
    // A fixed generator, so that each run tries the same damage: Knuth's constants.
    let mut seed = 1u64;
    let mut random = |n: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % n
    };
    for _ in 0..5000 {
        let mut damaged = model.clone();
        for _ in 0..=random(6) {
            let i = random(damaged.len());
            match random(4) {
                0 => damaged[i] = [0, 1, 0x7f, 0x80, 0xff][random(5)],
                1 => damaged[i] ^= 1 << random(8),
                2 => drop(damaged.remove(i)),
                _ => {
                    // Overwrite with a piece from elsewhere.
                    let (from, len) = (random(model.len()), random(16));
                    let piece = model[from..(from + len).min(model.len())].to_vec();
                    damaged.splice(i..i, piece);
                }
            }
        }
        try_one(&damaged);
    }
    assert!(n_read > 0, "expected the undamaged model to be read");
}
