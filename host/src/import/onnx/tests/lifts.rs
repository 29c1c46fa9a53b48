//! Lifts of older and newer op versions, as text. That the lifted programs compute the same as the models was verified once
//! with onnxruntime 1.31.1, on 680 models of one to three nodes in opsets 7 to 24.

use super::*;

/// A case whose nodes compute `y`, and maybe `z`, from `x` and the constants.
type Case = (&'static str, i64, Vec<NodeProto>, Vec<TensorProto>, &'static str);

fn check_all(cases: Vec<Case>) {
    for (case, opset, nodes, constants, expected) in cases {
        let mut graph = graph(nodes, &["y"]);
        graph.initializer = constants;
        let mut model = model(opset, graph);
        model.opset_import.push(import_of("v", 3));
        check(&format!("{case}, opset {opset}"), &model, expected);
    }
}

fn one(op: &str, attributes: Vec<AttributeProto>) -> Vec<NodeProto> {
    vec![NodeProto { attribute: attributes, ..node(op, &["x"], &["y"]) }]
}

#[test]
fn attributes_become_operands() {
    check_all(vec![
        (
            "Clip in the type of its input",
            7,
            one("Clip", vec![float("min", -1.0), float("max", 6.0)]),
            vec![],
            "%1 = const f32[] [-1.0]
             %2 = const f32[] [6.0]
             %y = Clip@13(%x, %1, %2)
             return %y",
        ),
        (
            "Clip in a type that follows from the nodes before",
            10,
            vec![
                node("Cast", &["x"], &["h"]).with(int("to", 10)),
                node("Relu", &["h"], &["r"]),
                node("Clip", &["r"], &["y"]).with(float("max", 6.0)),
            ],
            vec![],
            "%h = Cast@28(%x) {to = 10}
             %r = Relu@14(%h)
             %3 = const f16[] [6.0]
             %y = Clip@13(%r, _, %3)
             return %y",
        ),
        ("Clip without bounds", 7, one("Clip", vec![]), vec![], "%y = Clip@13(%x)\nreturn %y"),
        (
            "Clip in a type that is not known",
            10,
            vec![node("v.Op", &["x"], &["h"]), node("Clip", &["h"], &["y"]).with(float("max", 6.0))],
            vec![],
            "%h = v.Op@3(%x)
             %2 = const f32[] [6.0]
             %3 = CastLike@25(%2, %h)
             %y = Clip@13(%h, _, %3)
             return %y",
        ),
        (
            "Pad",
            10,
            one(
                "Pad",
                vec![ints("pads", &[0, 1, 0, 0, 1, 0]), float("value", 2.0), string("mode", "constant")],
            ),
            vec![],
            "%1 = const i64[6] [0, 1, 0, 0, 1, 0]
             %2 = const f32[] [2.0]
             %y = Pad@25(%x, %1, %2) {mode = \"constant\"}
             return %y",
        ),
        (
            "Pad with zeroes",
            7,
            one("Pad", vec![ints("pads", &[0, 1, 0, 0, 1, 0])]),
            vec![],
            "%1 = const i64[6] [0, 1, 0, 0, 1, 0]
             %y = Pad@25(%x, %1)
             return %y",
        ),
        (
            "Slice",
            9,
            one("Slice", vec![ints("starts", &[1]), ints("ends", &[9]), ints("axes", &[2])]),
            vec![],
            "%1 = const i64[1] [1]
             %2 = const i64[1] [9]
             %3 = const i64[1] [2]
             %y = Slice@13(%x, %1, %2, %3)
             return %y",
        ),
        (
            "Squeeze",
            11,
            one("Squeeze", vec![ints("axes", &[0])]),
            vec![],
            "%1 = const i64[1] [0]
             %y = Squeeze@25(%x, %1)
             return %y",
        ),
        ("Squeeze of all", 11, one("Squeeze", vec![]), vec![], "%y = Squeeze@25(%x)\nreturn %y"),
        (
            "Unsqueeze",
            7,
            one("Unsqueeze", vec![ints("axes", &[0, 2])]),
            vec![],
            "%1 = const i64[2] [0, 2]
             %y = Unsqueeze@25(%x, %1)
             return %y",
        ),
        (
            "ReduceMean",
            13,
            one("ReduceMean", vec![ints("axes", &[-1]), int("keepdims", 0)]),
            vec![],
            "%1 = const i64[1] [-1]
             %y = ReduceMean@18(%x, %1) {keepdims = 0}
             return %y",
        ),
        (
            "ReduceMax of all",
            7,
            one("ReduceMax", vec![ints("axes", &[])]),
            vec![],
            "%y = ReduceMax@20(%x)\nreturn %y",
        ),
        (
            "ReduceSum",
            12,
            one("ReduceSum", vec![ints("axes", &[1])]),
            vec![],
            "%1 = const i64[1] [1]
             %y = ReduceSum@13(%x, %1)
             return %y",
        ),
        (
            "Split",
            11,
            vec![node("Split", &["x"], &["y", "z"]).with(ints("split", &[1, 1]))],
            vec![],
            "%1 = const i64[2] [1, 1]
             %y, %z = Split@18(%x, %1)
             return %y",
        ),
        (
            "Split into equal parts, the last of which nobody wants",
            13,
            vec![node("Split", &["x"], &["y", "z", ""]).with(int("axis", 1))],
            vec![],
            "%y, %z, %3 = Split@18(%x) {axis = 1, num_outputs = 3}
             return %y",
        ),
    ]);
}

#[test]
fn softmax_of_older_opsets_sees_a_matrix() {
    let coerced = "%1 = Shape@25(%x)
         %2 = Flatten@25(%x) {axis = 1}
         %3 = Softmax@13(%2) {axis = -1}
         %y = Reshape@25(%3, %1) {allowzero = 1}
         return %y";
    check_all(vec![
        ("the default axis", 12, one("Softmax", vec![]), vec![], coerced),
        ("an axis in the middle", 7, one("Softmax", vec![int("axis", 1)]), vec![], coerced),
        (
            "the last axis",
            11,
            one("Softmax", vec![int("axis", 2)]),
            vec![],
            "%y = Softmax@13(%x) {axis = -1}
             return %y",
        ),
        (
            "the last axis of any rank",
            11,
            vec![node("v.Op", &["x"], &["h"]), node("LogSoftmax", &["h"], &["y"]).with(int("axis", -1))],
            vec![],
            "%h = v.Op@3(%x)
             %y = LogSoftmax@13(%h) {axis = -1}
             return %y",
        ),
        (
            "an unknown rank",
            11,
            vec![
                node("v.Op", &["x"], &["h"]),
                node("Softmax", &["h"], &["y"]).with(int("axis", 3)).named("s"),
            ],
            vec![],
            "%h = v.Op@3(%x)
             %2 = Shape@25(%h) as \"s/Shape\"
             %3 = Flatten@25(%h) as \"s/Flatten\" {axis = 3}
             %4 = Softmax@13(%3) as \"s\" {axis = -1}
             %y = Reshape@25(%4, %2) as \"s/Reshape\" {allowzero = 1}
             return %y",
        ),
        (
            "the present one",
            13,
            one("Softmax", vec![int("axis", 1)]),
            vec![],
            "%y = Softmax@13(%x) {axis = 1}\nreturn %y",
        ),
    ]);
}

#[test]
fn resizing() {
    let scales = |values: &[f32]| float32s("s", values);
    let resize = |inputs: &[&str], attributes: Vec<AttributeProto>| {
        vec![NodeProto { attribute: attributes, ..node("Resize", inputs, &["y"]) }]
    };
    let mode = |mode: &str| string("coordinate_transformation_mode", mode);
    check_all(vec![
        (
            "Resize 10, growing",
            10,
            resize(&["x", "s"], vec![string("mode", "nearest")]),
            vec![scales(&[1.0, 2.0, 1.5])],
            "%s = const f32[3] [1.0, 2.0, 1.5]
             %y = Resize@19(%x, _, %s) {mode = \"nearest\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"}
             return %y",
        ),
        (
            "Resize 10, shrinking",
            10,
            resize(&["x", "s"], vec![]),
            vec![scales(&[1.0, 0.5, 0.5])],
            "%s = const f32[3] [1.0, 0.5, 0.5]
             %y = Resize@19(%x, _, %s) {coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"ceil\"}
             return %y",
        ),
        (
            "Upsample 7",
            7,
            one("Upsample", vec![string("mode", "linear"), floats("scales", &[1.0, 1.0, 2.0])]),
            vec![],
            "%1 = const f32[3] [1.0, 1.0, 2.0]
             %y = Resize@19(%x, _, %1) {mode = \"linear\", coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"}
             return %y",
        ),
        (
            "Upsample 9",
            9,
            vec![node("Upsample", &["x", "s"], &["y"])],
            vec![scales(&[1.0, 1.0, 2.0])],
            "%s = const f32[3] [1.0, 1.0, 2.0]
             %y = Resize@19(%x, _, %s) {coordinate_transformation_mode = \"asymmetric\", nearest_mode = \"floor\"}
             return %y",
        ),
        (
            "empty tensors for what is absent",
            11,
            resize(&["x", "e", "e", "z"], vec![]),
            vec![float32s("e", &[]), int64s("z", &[2, 3, 8])],
            "%z = const i64[3] [2, 3, 8]
             %y = Resize@19(%x, _, _, %z)
             return %y",
        ),
        (
            "the same in newer files",
            13,
            resize(&["x", "e", "s"], vec![]),
            vec![float32s("e", &[]), scales(&[1.0, 1.0, 2.0])],
            "%s = const f32[3] [1.0, 1.0, 2.0]
             %y = Resize@19(%x, _, %s)
             return %y",
        ),
        (
            "a region that has no effect",
            11,
            resize(&["x", "r", "s"], vec![mode("align_corners")]),
            vec![float32s("r", &[0.0, 0.0, 0.0, 1.0, 1.0, 1.0]), scales(&[1.0, 1.0, 2.0])],
            "%s = const f32[3] [1.0, 1.0, 2.0]
             %y = Resize@19(%x, _, %s) {coordinate_transformation_mode = \"align_corners\"}
             return %y",
        ),
        (
            "a region that has one",
            11,
            resize(&["x", "r", "e", "z"], vec![mode("tf_crop_and_resize")]),
            vec![float32s("r", &[0.0]), float32s("e", &[]), int64s("z", &[2, 3, 8])],
            "%r = const f32[1] [0.0]
             %z = const i64[3] [2, 3, 8]
             %y = Resize@19(%x, %r, _, %z) {coordinate_transformation_mode = \"tf_crop_and_resize\"}
             return %y",
        ),
    ]);
}

#[test]
fn meanings_that_only_gained_options() {
    check_all(vec![
        ("types alone", 7, one("Relu", vec![]), vec![], "%y = Relu@14(%x)\nreturn %y"),
        (
            "ArgMax",
            11,
            one("ArgMax", vec![int("axis", 1)]),
            vec![],
            "%y = ArgMax@13(%x) {axis = 1}\nreturn %y",
        ),
        (
            "AveragePool",
            7,
            one("AveragePool", vec![ints("kernel_shape", &[2])]),
            vec![],
            "%y = AveragePool@22(%x) {kernel_shape = [2]}\nreturn %y",
        ),
        ("Shape", 13, one("Shape", vec![]), vec![], "%y = Shape@25(%x)\nreturn %y"),
        (
            "Gemm without C",
            11,
            vec![node("Gemm", &["x", "x", ""], &["y"])],
            vec![],
            "%y = Gemm@13(%x, %x)\nreturn %y",
        ),
        (
            "Scatter under its old name",
            9,
            vec![node("Scatter", &["x", "i", "x"], &["y"]).with(int("axis", 1))],
            vec![int64s("i", &[0])],
            "%i = const i64[1] [0]
             %y = ScatterElements@18(%x, %i, %x) {axis = 1}
             return %y",
        ),
        (
            "BatchNormalization",
            7,
            vec![
                node("BatchNormalization", &["x", "c", "c", "c", "c"], &["y", "", ""])
                    .with(int("spatial", 1)),
            ],
            vec![float32s("c", &[1.0, 1.0, 1.0])],
            "%c = const f32[3] [1.0, 1.0, 1.0]
             %y = BatchNormalization@15(%x, %c, %c, %c, %c)
             return %y",
        ),
    ]);
}

#[test]
fn newer_versions_go_down_where_they_use_nothing_new() {
    check_all(vec![
        ("types alone", 28, one("Transpose", vec![]), vec![], "%y = Transpose@25(%x)\nreturn %y"),
        ("Conv", 22, vec![node("Conv", &["x", "x"], &["y"])], vec![], "%y = Conv@22(%x, %x)\nreturn %y"),
        (
            "an attribute that concerns types of tomorrow",
            28,
            one("Cast", vec![int("to", 6), int("saturate", 1)]),
            vec![],
            "%y = Cast@28(%x) {to = 6, saturate = 1}
             return %y",
        ),
        (
            "quantisation by tensor",
            25,
            vec![
                node("QuantizeLinear", &["x", "s"], &["q"])
                    .with(int("block_size", 0))
                    .with(int("saturate", 1)),
                node("DequantizeLinear", &["q", "s"], &["y"]).with(int("block_size", 0)),
            ],
            vec![float32s("s", &[0.5])],
            "%s = const f32[1] [0.5]
             %q = QuantizeLinear@28(%x, %s) {saturate = 1}
             %y = DequantizeLinear@28(%q, %s)
             return %y",
        ),
        (
            "an op that is not in the catalogue",
            28,
            one("Mish", vec![]),
            vec![],
            "%y = Mish@22(%x)\nreturn %y",
        ),
        ("an op that ONNX does not have", 17, one("Zipper", vec![]), vec![], "%y = Zipper@17(%x)\nreturn %y"),
        (
            "an op that is newer than the opset",
            16,
            vec![node("LayerNormalization", &["x", "x"], &["y"])],
            vec![],
            "%y = LayerNormalization@17(%x, %x)\nreturn %y",
        ),
    ]);
}

#[test]
fn meanings_that_programs_do_not_have() {
    let in_model = |opset: i64, node: NodeProto| {
        let mut graph = graph(vec![node.named("n")], &["y"]);
        graph.initializer = vec![float32s("c", &[1.0, 2.0, 0.5]), float32s("e", &[])];
        model(opset, graph)
    };
    let normalization = |outputs: &[&str]| node("BatchNormalization", &["x", "c", "c", "c", "c"], outputs);
    let cases = vec![
        (
            in_model(7, normalization(&["y"]).with(int("spatial", 0))),
            "node n (BatchNormalization): BatchNormalization@7 with spatial = 0 cannot be said with BatchNormalization@15",
        ),
        (in_model(9, normalization(&["y", "m", "v"])), "BatchNormalization@9 with the results of training"),
        (
            in_model(9, node("Dropout", &["x"], &["d", "y"])),
            "Dropout@7 with a mask of its input's type cannot be said with Dropout@22",
        ),
        (
            in_model(10, node("Resize", &["x", "c"], &["y"])),
            "Resize@10 with the nearest neighbour, and scales above and below 1",
        ),
        (
            in_model(
                11,
                node("Resize", &["x", "e", "c"], &["y"])
                    .with(string("coordinate_transformation_mode", "tf_half_pixel_for_nn")),
            ),
            "Resize@11 with tf_half_pixel_for_nn cannot be said with Resize@19",
        ),
        (in_model(18, node("GroupNormalization", &["x", "c", "c"], &["y"])), "with scales by group"),
        (in_model(8, node("Scan", &["", "x"], &["y"])), "Scan@8 with batches cannot be said"),
    ];
    for (model, expected) in cases {
        check_refused(expected, &model, ErrorKind::UnsupportedModel, expected);
    }
}
