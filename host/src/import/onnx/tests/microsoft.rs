//! Ops of onnxruntime: the nodes that they become, refusals, and numbers. A comparison with onnxruntime itself, case by case, is
//! `host/python/tests/check_contrib_ops.py`.

use super::*;
use crate::{Model, Runtime, Session, Tensor};
use devbay_core::program::Program;

/// Returns a model of these nodes, with constants.
fn of(nodes: Vec<NodeProto>, constants: Vec<TensorProto>, outputs: &[&str]) -> ModelProto {
    let mut graph = graph(nodes, outputs);
    graph.initializer = constants;
    let mut model = model(17, graph);
    model.opset_import.push(import_of("com.microsoft", 1));
    model
}

fn ms(op: &str, inputs: &[&str], outputs: &[&str]) -> NodeProto {
    node(&format!("com.microsoft.{op}"), inputs, outputs)
}

/// Returns a matrix or tensor of numbers.
fn floats_of(name: &str, dims: &[i64], values: &[f32]) -> TensorProto {
    TensorProto { float_data: values.to_vec(), ..tensor(name, DataType::Float, dims) }
}

fn bytes_of(name: &str, dims: &[i64], values: &[u8]) -> TensorProto {
    TensorProto { raw_data: Some(values.to_vec().into()), ..tensor(name, DataType::Uint8, dims) }
}

#[test]
fn nodes_become_those_of_their_formulas() {
    let cases = [
        (
            "Gelu, with names under the node's",
            of(vec![ms("BiasGelu", &["x", "b"], &["y"]).named("g")], vec![float32s("b", &[1.0; 4])], &["y"]),
            "%b = const f32[4] [1.0, 1.0, 1.0, 1.0]
             %2 = Add@14(%x, %b) as \"g/Add\"
             %y = Gelu@20(%2) as \"g/Gelu\"
             return %y",
        ),
        (
            "FastGelu without a bias",
            of(vec![ms("FastGelu", &["x", ""], &["y"])], vec![], &["y"]),
            "%y = Gelu@20(%x) {approximate = \"tanh\"}
             return %y",
        ),
        (
            "FusedMatMul",
            of(
                vec![ms("FusedMatMul", &["x", "x"], &["y"]).with(int("transB", 1)).with(float("alpha", 0.5))],
                vec![],
                &["y"],
            ),
            "%1 = Transpose@25(%x) {perm = [0, 2, 1]}
             %2 = MatMul@13(%x, %1)
             %3 = const f32[] [0.5]
             %y = Mul@14(%2, %3)
             return %y",
        ),
        (
            "both kinds of transposition",
            of(
                vec![
                    ms("FusedMatMul", &["x", "x"], &["y"])
                        .with(int("transBatchA", 1))
                        .with(int("transA", 1))
                        .with(int("transBatchB", 1)),
                ],
                vec![],
                &["y"],
            ),
            "%1 = Transpose@25(%x) {perm = [1, 2, 0]}
             %2 = Transpose@25(%x) {perm = [1, 0, 2]}
             %y = MatMul@13(%1, %2)
             return %y",
        ),
        (
            "FusedConv with a sum and an activation",
            of(
                vec![
                    ms("FusedConv", &["x", "w", "", "z"], &["y"])
                        .with(string("activation", "LeakyRelu"))
                        .with(floats("activation_params", &[0.5]))
                        .with(ints("kernel_shape", &[1])),
                ],
                vec![floats_of("w", &[1, 3, 1], &[1.0; 3]), floats_of("z", &[1], &[2.0])],
                &["y"],
            ),
            "%w = const f32[1,3,1] [1.0, 1.0, 1.0]
             %2 = Conv@22(%x, %w) {kernel_shape = [1]}
             %z = const f32[1] [2.0]
             %4 = Add@14(%2, %z)
             %y = LeakyRelu@16(%4) {alpha = 0.5}
             return %y",
        ),
        (
            "NhwcFusedConv, with the channels last",
            of(
                vec![
                    ms("NhwcFusedConv", &["x", "w", "", "x"], &["y"])
                        .with(string("activation", "Relu"))
                        .with(ints("strides", &[1])),
                ],
                vec![floats_of("w", &[1, 4, 1], &[1.0; 4])],
                &["y"],
            ),
            "%1 = Transpose@25(%x) {perm = [0, 2, 1]}
             %w = const f32[1,4,1] [1.0, 1.0, 1.0, 1.0]
             %3 = Conv@22(%1, %w) {strides = [1]}
             %4 = Transpose@25(%3) {perm = [0, 2, 1]}
             %5 = Add@14(%4, %x)
             %y = Relu@14(%5)
             return %y",
        ),
        (
            "a normalisation in ONNX's own domain",
            of(
                vec![node("SimplifiedLayerNormalization", &["x", "g"], &["y"]).with(int("axis", -1))],
                vec![float32s("g", &[1.0; 4])],
                &["y"],
            ),
            "%g = const f32[4] [1.0, 1.0, 1.0, 1.0]
             %y = RMSNormalization@23(%x, %g) {axis = -1}
             return %y",
        ),
        (
            "a sum that is a result",
            of(
                vec![
                    ms("SkipLayerNormalization", &["x", "x", "g"], &["y", "", "", "s"])
                        .with(float("epsilon", 0.5)),
                ],
                vec![float32s("g", &[1.0; 4])],
                &["y", "s"],
            ),
            "%s = Add@14(%x, %x)
             %g = const f32[4] [1.0, 1.0, 1.0, 1.0]
             %y = LayerNormalization@17(%s, %g) {axis = -1, epsilon = 0.5}
             return %y, %s",
        ),
        (
            "Unique, whose second result is ONNX's third",
            of(vec![ms("Unique", &["v"], &["y", "i"])], vec![float32s("v", &[3.0, 1.0, 3.0])], &["y", "i"]),
            "%v = const f32[3] [3.0, 1.0, 3.0]
             %y, _, %i = Unique@28(%v) {sorted = 0}
             return %y, %i",
        ),
    ];
    for (case, model, expected) in cases {
        check(case, &model, expected);
    }
}

#[test]
fn functions_of_the_model_come_first() {
    let mut model = of(vec![ms("Gelu", &["x"], &["y"])], vec![], &["y"]);
    let own = function("Gelu", &["a"], &["b"], vec![node("Neg", &["a"], &["b"])]);
    model.functions = vec![FunctionProto { domain: Some("com.microsoft".to_owned()), ..own }];
    check("an own Gelu", &model, "%y = Neg@13(%x)\nreturn %y");
}

#[test]
fn ops_without_a_lowering_stay() {
    let model = of(vec![ms("MoE", &["x"], &["y"])], vec![], &["y"]);
    check("an op that is left to placement", &model, "%y = com.microsoft.MoE@1(%x)\nreturn %y");
}

#[test]
fn parts_that_have_no_lowering_are_refused() {
    let weight = || bytes_of("b", &[1, 1, 8], &[0; 8]);
    let scales = || floats_of("s", &[1, 1], &[1.0]);
    let n_bits = |inputs: &[&str]| {
        let node = ms("MatMulNBits", inputs, &["y"]).named("n");
        node.with(int("K", 16)).with(int("N", 1)).with(int("block_size", 16))
    };
    let gather_blocks = |block: i64| {
        let node = ms("GatherBlockQuantized", &["b", "x", "s"], &["y"]).named("n");
        node.with(int("block_size", block)).with(int("bits", 4))
    };
    let attention = |node: NodeProto| {
        let keys = floats_of("k", &[2, 5, 4], &[0.0; 40]);
        of(vec![node.named("n").with(int("num_heads", 1))], vec![keys], &["y"])
    };
    let cases = [
        (
            of(vec![ms("Gelu", &["x"], &["y"]).named("n").with(int("mode", 1))], vec![], &["y"]),
            "node n (Gelu): com.microsoft.Gelu@1 with the attribute mode is not supported; export the model with ONNX's own \
             ops in its place",
        ),
        (of(vec![ms("Gelu", &["x", "x"], &["y"])], vec![], &["y"]), "2 operands and 1 results"),
        (
            of(
                vec![
                    ms("MatMulNBits", &["x", "b", "s"], &["y"])
                        .named("n")
                        .with(int("K", 16))
                        .with(int("N", 1)),
                ],
                vec![weight(), scales()],
                &["y"],
            ),
            "node n (MatMulNBits): com.microsoft.MatMulNBits@1 with block_size = 0",
        ),
        (
            of(
                vec![gather_blocks(48)],
                vec![bytes_of("b", &[2, 16], &[0; 32]), floats_of("s", &[2, 1], &[1.0; 2])],
                &["y"],
            ),
            "node n (GatherBlockQuantized): com.microsoft.GatherBlockQuantized@1 with block_size = 48, expected a power of two",
        ),
        (
            of(
                vec![gather_blocks(16)],
                vec![bytes_of("b", &[2, 16], &[0; 32]), floats_of("s", &[2, 1], &[1.0; 2])],
                &["y"],
            ),
            "node n (GatherBlockQuantized): com.microsoft.GatherBlockQuantized@1 with scales of [2, 1], expected [2, 2]",
        ),
        (
            of(vec![ms("FusedConv", &["x", "x"], &["y"]).with(string("activation", "Mish"))], vec![], &["y"]),
            "the activation \"Mish\" and 0 parameters",
        ),
        (
            of(vec![ms("SkipSimplifiedLayerNormalization", &["x", "x", "x"], &["y", "m"])], vec![], &["y"]),
            "com.microsoft.SkipSimplifiedLayerNormalization@1 with the result \"m\"",
        ),
        (
            of(
                vec![ms("Op", &["x"], &["h"]), ms("FusedMatMul", &["h", "x"], &["y"]).with(int("transA", 1))],
                vec![],
                &["y"],
            ),
            "an operand whose rank is unknown",
        ),
        (of(vec![n_bits(&["x", "b", "s", "", "s"])], vec![weight(), scales()], &["y"]), "with g_idx"),
        (of(vec![n_bits(&["x", "x", "s"])], vec![scales()], &["y"]), "B that is not constant"),
        (
            of(vec![n_bits(&["x", "b", "s"]).with(int("bits", 3))], vec![weight(), scales()], &["y"]),
            "with 3 bits",
        ),
        (
            of(vec![n_bits(&["x", "b", "s"]).with(int("bits", 8))], vec![weight(), scales()], &["y"]),
            "u8[1,1,8] as B, expected the bytes of [1, 16]",
        ),
        (attention(ms("MultiHeadAttention", &["x"], &["y"])), "in fewer than three operands"),
        (
            attention(ms("MultiHeadAttention", &["x", "x", "x"], &["y", "", "", "qk"])),
            "the products of queries and keys as a result",
        ),
        (
            attention(ms("MultiHeadAttention", &["x", "k", "k"], &["y"]).with(int("unidirectional", 1))),
            "with unidirectional, 3 queries and 5 keys",
        ),
        (
            attention(ms("GroupQueryAttention", &["x"], &["y"]).with(float("softcap", 2.0))),
            "com.microsoft.GroupQueryAttention@1 with softcap",
        ),
        (attention(ms("Attention", &["x", "k"], &["y"]).with(int("do_rotary", 1))), "with do_rotary"),
        (
            of(vec![ms("DynamicQuantizeLSTM", &["x", "x", "x", "", "x"], &["y"])], vec![], &["y"]),
            "com.microsoft.DynamicQuantizeLSTM@1 with sequence_lens",
        ),
        (
            of(
                vec![ms("DynamicQuantizeLSTM", &["x", "x", "x"], &["y"]).with(string("direction", "up"))],
                vec![],
                &["y"],
            ),
            "with direction = \"up\"",
        ),
    ];
    for (model, expected) in cases {
        check_refused(expected, &model, ErrorKind::UnsupportedModel, expected);
    }
    let missing = of(vec![ms("BiasGelu", &["x"], &["y"])], vec![], &["y"]);
    let words = "expected operand 1 of com.microsoft.BiasGelu@1, found none";
    check_refused("a missing operand", &missing, ErrorKind::InvalidModel, words);
}

/// Runs a model on the processor, with counting numbers as its input.
fn run(model: &ModelProto) -> Vec<Tensor> {
    let runtime = Runtime::builder().threads(1).link(devbay_plugin_cpu::PLUGIN).build().unwrap();
    let model = Model::from_bytes(model.encode_to_vec()).unwrap();
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    let x: Vec<f32> = (0u8..24).map(|i| f32::from(i) * 0.25 - 3.0).collect();
    session.run(&[("x", &Tensor::from_elements(&[2, 3, 4], &x).unwrap())]).unwrap()
}

fn check_numbers(case: &str, found: &Tensor, expected: &[f32]) {
    let found = found.elements::<f32>().unwrap();
    assert_eq!(found.len(), expected.len(), "{case}: {found:?}");
    for (a, b) in found.iter().zip(expected) {
        assert!((a - b).abs() <= 1e-4 * b.abs().max(1.0), "{case}: {found:?}\nexpected {expected:?}");
    }
}

/// The input that [`run`] passes.
fn input() -> Vec<f32> {
    (0u8..24).map(|i| f32::from(i) * 0.25 - 3.0).collect()
}

#[test]
fn normalisations_calculate_their_formulas() {
    let gamma = [1.0, 2.0, 0.5, -1.0f32];
    let model = of(
        vec![
            ms("SkipSimplifiedLayerNormalization", &["x", "x", "g", "b"], &["y", "", "i", "s"])
                .with(float("epsilon", 0.5)),
        ],
        vec![float32s("g", &gamma), float32s("b", &[1.0, 0.0, 0.0, -1.0])],
        &["y", "i", "s"],
    );
    let found = run(&model);
    let (mut y, mut inverses, mut sums) = (vec![], vec![], vec![]);
    for row in input().chunks(4) {
        let sum = [row[0] * 2.0 + 1.0, row[1] * 2.0, row[2] * 2.0, row[3] * 2.0 - 1.0];
        let inverse = 1.0 / (sum.iter().map(|v| v * v).sum::<f32>() / 4.0 + 0.5).sqrt();
        y.extend(sum.iter().zip(gamma).map(|(v, g)| v * inverse * g));
        inverses.push(inverse);
        sums.extend(sum);
    }
    check_numbers("y", &found[0], &y);
    check_numbers("inverse", &found[1], &inverses);
    check_numbers("sum", &found[2], &sums);
    assert_eq!(found[1].shape(), [2, 3, 1]);
}

#[test]
fn weights_of_four_bits_calculate_their_formula() {
    // Two rows of three elements in blocks of 16, which the product reads up to the third element.
    let mut bytes = [0u8; 16];
    (bytes[0], bytes[1]) = (0x21, 0x03);
    (bytes[8], bytes[9]) = (0xfe, 0x0d);
    let node = ms("MatMulNBits", &["v", "b", "s", "z", "", "c"], &["y"]);
    let node = node.with(int("K", 3)).with(int("N", 2)).with(int("block_size", 16)).with(int("bits", 4));
    let model = |zeros: TensorProto| {
        let constants = vec![
            floats_of("v", &[1, 3], &[1.0, 10.0, 100.0]),
            bytes_of("b", &[2, 1, 8], &bytes),
            floats_of("s", &[2, 1], &[0.5, 2.0]),
            zeros,
            float32s("c", &[1000.0, 2000.0]),
        ];
        of(vec![node.clone()], constants, &["y"])
    };
    // (1 2 3 less 1) / 2 and (14 15 13 less 15) * 2.
    let found = run(&model(bytes_of("z", &[2, 1], &[0x01, 0x0f])));
    check_numbers("packed zero points", &found[0], &[105.0 + 1000.0, -402.0 + 2000.0]);
    let found = run(&model(floats_of("z", &[2, 1], &[0.5, 14.5])));
    check_numbers("real zero points", &found[0], &[132.75 + 1000.0, -291.0 + 2000.0]);
}

#[test]
fn quantised_sums_are_rounded_to_even() {
    let scale = |name: &str, value: f32| floats_of(name, &[], &[value]);
    let constants = vec![
        bytes_of("a", &[4], &[130, 131, 0, 255]),
        bytes_of("b", &[1], &[12]),
        bytes_of("za", &[], &[128]),
        bytes_of("zb", &[], &[10]),
        scale("sa", 0.5),
        scale("sb", 0.25),
        scale("sc", 1.0),
    ];
    let add = ms("QLinearAdd", &["a", "sa", "za", "b", "sb", "zb", "sc", ""], &["y"]);
    // 1.5, 2, -63.5 and 64, without a zero point.
    assert_eq!(run(&of(vec![add], constants, &["y"]))[0].bytes(), [2, 2, 0, 64]);
}

#[test]
fn masked_keys_add_their_number() {
    // One head of four numbers; the second batch has a key fewer.
    let node = ms("MultiHeadAttention", &["x", "x", "x", "", "m"], &["y"]);
    let node =
        node.with(int("num_heads", 1)).with(float("scale", 0.1)).with(float("mask_filter_value", -1.0));
    let mask = TensorProto { int32_data: vec![3, 2], ..tensor("m", DataType::Int32, &[2]) };
    let found = run(&of(vec![node], vec![mask], &["y"]));
    let x = input();
    let mut expected = vec![];
    for (batch, n) in [(0, 3), (1, 2)] {
        let rows: Vec<&[f32]> = x[batch * 12..][..12].chunks(4).collect();
        for q in &rows {
            let score = |(i, k): (usize, &&[f32])| {
                let product: f32 = q.iter().zip(*k).map(|(a, b)| a * b).sum();
                (product * 0.1 - if i < n { 0.0 } else { 1.0 }).exp()
            };
            let scores: Vec<f32> = rows.iter().enumerate().map(score).collect();
            let sum: f32 = scores.iter().sum();
            expected
                .extend((0..4).map(|i| rows.iter().zip(&scores).map(|(v, s)| v[i] * s / sum).sum::<f32>()));
        }
    }
    check_numbers("attended", &found[0], &expected);
}

#[test]
fn groups_of_queries_share_keys() {
    // The columns are two queries, a key and a value of one number each; every query sees the keys up to its own.
    let node = ms("GroupQueryAttention", &["x", "", "", "", "", "last", "total"], &["y", "k", "v"]);
    let node = node.with(int("num_heads", 2)).with(int("kv_num_heads", 1)).with(float("scale", 0.5));
    let int32s = |name: &str, dims: &[i64], values: &[i32]| TensorProto {
        int32_data: values.to_vec(),
        ..tensor(name, DataType::Int32, dims)
    };
    let constants = vec![int32s("last", &[2], &[2, 2]), int32s("total", &[], &[3])];
    let found = run(&of(vec![node], constants, &["y", "k", "v"]));
    let (x, mut expected) = (input(), vec![]);
    for rows in x.chunks(12) {
        let rows: Vec<&[f32]> = rows.chunks(4).collect();
        for (i, row) in rows.iter().enumerate() {
            for q in &row[..2] {
                let seen = &rows[..=i];
                let weights: Vec<f32> = seen.iter().map(|row| (q * row[2] * 0.5).exp()).collect();
                let sum: f32 = weights.iter().sum();
                expected.push(seen.iter().zip(&weights).map(|(row, w)| row[3] * w / sum).sum());
            }
        }
    }
    check_numbers("attended", &found[0], &expected);
    let keys: Vec<f32> = x.chunks(4).map(|row| row[2]).collect();
    check_numbers("present keys", &found[1], &keys);
    assert_eq!(found[1].shape(), [2, 1, 3, 1]);
}

#[test]
fn a_quantised_lstm_calculates_as_onnxruntimes() {
    let pattern = |n: usize, step: usize, modulus: usize, factor: usize| -> Vec<u8> {
        (0..n).map(|i| u8::try_from(i * step % modulus * factor).unwrap()).collect()
    };
    let biases: Vec<f32> = (0u8..32).map(|k| (f32::from(k * 3 % 7) - 3.0) * 0.1).collect();
    let constants = vec![
        bytes_of("w", &[2, 4, 8], &pattern(64, 7, 19, 13)),
        bytes_of("r", &[2, 2, 8], &pattern(32, 5, 17, 14)),
        floats_of("b", &[2, 16], &biases),
        float32s("w_scale", &[0.01, 0.02]),
        bytes_of("w_zero", &[2], &[120, 100]),
        float32s("r_scale", &[0.02, 0.01]),
        bytes_of("r_zero", &[2], &[110, 90]),
    ];
    let operands = ["x", "w", "r", "b", "", "", "", "", "w_scale", "w_zero", "r_scale", "r_zero"];
    let node = ms("DynamicQuantizeLSTM", &operands, &["y", "h", "c"]);
    let node = node.with(int("hidden_size", 2)).with(string("direction", "bidirectional"));
    let found = run(&of(vec![node], constants, &["y", "h", "c"]));
    // onnxruntime 1.32.0, on one thread.
    let y = [
        0.000151, -0.588048, 0.004553, -0.514650, 0.082142, -0.336654, 0.047862, 0.0, 0.107446, 0.000001,
        0.199530, 0.004229, -0.151957, -0.232850, -0.568402, -0.098525, -0.722892, -0.010610, 0.354508,
        -0.047337, 0.528844, -0.000112, 0.641531, 0.0,
    ];
    check_numbers("all states", &found[0], &y);
    assert_eq!(found[0].shape(), [2, 2, 3, 2]);
    // The last step of the one direction, the first of the other.
    check_numbers("last states", &found[1], &[&y[12..18], &y[6..12]].concat());
    let c = [
        -0.483714, -0.360671, -0.949634, -0.547084, -0.968129, -0.395874, 0.892334, 0.999982, 0.998907,
        0.999361, 0.921500, 0.916954,
    ];
    check_numbers("last cells", &found[2], &c);
}

#[test]
fn projections_of_integers_are_attended() {
    // The input is 1 and 2.
    let constants = vec![
        bytes_of("q", &[1, 2, 1], &[12, 14]),
        bytes_of("w", &[1, 3], &[3, 3, 5]),
        float32s("b", &[0.0, 0.0, 1.0]),
        float32s("q_scale", &[0.5]),
        float32s("w_scale", &[1.0]),
        bytes_of("q_zero", &[], &[10]),
        bytes_of("w_zero", &[], &[2]),
    ];
    let node = ms("QAttention", &["q", "w", "b", "q_scale", "w_scale", "", "q_zero", "w_zero"], &["y"]);
    let node = node.with(int("num_heads", 1)).with(float("scale", 1.0));
    let found = run(&of(vec![node], constants, &["y"]));
    // Queries and keys are 1 and 2, values 3 * 1 + 1 and 3 * 2 + 1.
    let of_query = |q: f32| (4.0 * q.exp() + 7.0 * (2.0 * q).exp()) / (q.exp() + (2.0 * q).exp());
    check_numbers("attended", &found[0], &[of_query(1.0), of_query(2.0)]);
}

#[test]
fn renamed_values_leave_no_gaps() {
    // Printed programs number all values.
    let model = of(vec![ms("BiasGelu", &["x", "x"], &["y"])], vec![], &["y"]);
    let program: Program = import(&model).unwrap();
    assert_eq!(program.values.len(), 3);
}
