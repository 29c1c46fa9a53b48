//! The rows, one per op, with operands and attributes as in ONNX's specification.
//!
//! A test compares them with the schemas of the onnx package, for every version whose nodes are lifted unchanged.

use crate::infer::functions::*;
use crate::infer::{InferFn, of_formula};
use crate::row::Takes::{
    Anything as ANYTHING, Floats as FLOATS, Integers as INTEGERS, Numbers as NUMBERS, Signed as SIGNED,
    Truths as TRUTHS,
};
use crate::row::{DEVBAY_DOMAIN, MICROSOFT_DOMAIN, ML_DOMAIN, OpKind, OpRow, Work};

const fn onnx(name: &'static str, version: u32, inputs: &'static str, outputs: &'static str) -> OpRow {
    OpRow::new(name, version, inputs, outputs)
}

const fn view(name: &'static str, version: u32, inputs: &'static str, outputs: &'static str) -> OpRow {
    OpRow { kind: OpKind::View, ..OpRow::new(name, version, inputs, outputs) }
}

const fn query(name: &'static str, version: u32, inputs: &'static str, outputs: &'static str) -> OpRow {
    OpRow { kind: OpKind::Query, ..OpRow::new(name, version, inputs, outputs) }
}

const fn control(name: &'static str, version: u32, inputs: &'static str, outputs: &'static str) -> OpRow {
    OpRow { kind: OpKind::Control, ..OpRow::new(name, version, inputs, outputs) }
}

const fn fused(name: &'static str, inputs: &'static str, outputs: &'static str) -> OpRow {
    of_domain(DEVBAY_DOMAIN, name, inputs, outputs)
}

/// devbay's own ops, sorted by name: fused ops that passes create (docs/fused-ops.md), and Philox, which import creates.
/// Convolutions and products take the attributes `activation` (a name: empty, Relu, LeakyRelu, Clip, HardSigmoid, HardSwish,
/// Sigmoid, Tanh, Silu) and `activation_params` (its numbers). FusedConv's Z has the result's shape and is added before the
/// activation; FusedMatMul's bias has the last dimension. MatMulDequantized is FusedMatMul of a quantised B, whose blocks of
/// `block_size` terms have a scale for each column; 0 is one block of all terms. MatMulIntegerToFloat is MatMulInteger, cast to f32, times the
/// scale, plus the bias, each rounded. Nhwc ops are the ops without that word, on images whose channels come
/// last. QuantisedElementwise is FusedElementwise between conversions from and to bytes. [`read::Philox`](crate::read::Philox)
/// defines Philox.
#[rustfmt::skip]
const DEVBAY: &[OpRow] = &[
    fused("FusedConv", "X W B? Z?", "Y").with("activation:string? activation_params:floats? auto_pad:string? dilations:ints? group:int? kernel_shape:ints? pads:ints? strides:ints?").work(Work::Convolution).infer(fused_conv),
    fused("FusedElementwise", "inputs+~", "Y").with("constants:floats? operands:ints ops:strings params:floats").work(Work::Chain).infer(fused_elementwise),
    fused("FusedGemm", "A B C?", "Y").with("activation:string? activation_params:floats? alpha:float? beta:float? transA:int? transB:int?").work(Work::Product).infer(fused_gemm),
    fused("FusedMatMul", "A B bias?", "Y").with("activation:string? activation_params:floats?").work(Work::Product).infer(fused_matmul),
    fused("MatMulDequantized", "A B:1 scale zero_point:1? bias?", "Y").with("activation:string? activation_params:floats? block_size:int=0 transB:int=0").work(Work::Product).infer(matmul_dequantized),
    fused("MatMulIntegerToFloat", "A B:1 scale:2 a_zero_point? b_zero_point:1? bias:2?", "Y:2").with("activation:string? activation_params:floats?").work(Work::Product).infer(matmul_integer_to_float),
    fused("NhwcAveragePool", "X", "Y").with("auto_pad:string=NOTSET ceil_mode:int=0 count_include_pad:int=0 dilations:ints? kernel_shape:ints pads:ints? strides:ints?").cannot_fail().work(Work::Pooling).infer(nhwc_pool),
    fused("NhwcFusedConv", "X W B? Z?", "Y").with("activation:string? activation_params:floats? auto_pad:string? dilations:ints? group:int? kernel_shape:ints? pads:ints? strides:ints?").work(Work::Convolution).infer(nhwc_fused_conv),
    fused("NhwcMaxPool", "X", "Y").with("auto_pad:string=NOTSET ceil_mode:int=0 dilations:ints? kernel_shape:ints pads:ints? strides:ints?").cannot_fail().work(Work::Pooling).infer(nhwc_pool),
    fused("Philox", "seed shape:1!", "values:2").with("dtype:int=1 key:ints? stream:int").cannot_fail().shaped_by(1).infer(philox),
    fused("QuantisedElementwise", "a b:1? c:2? d:3? e:4? f:5? g:6?", "Y:7").with("constants:floats? operands:ints ops:strings params:floats scales:floats to:int zero_points:ints").work(Work::Chain).infer(quantised_elementwise),
];

/// Returns an op of another domain, in its only version.
const fn of_domain(
    domain: &'static str,
    name: &'static str,
    inputs: &'static str,
    outputs: &'static str,
) -> OpRow {
    OpRow { domain, ..OpRow::new(name, 1, inputs, outputs) }
}

/// Returns an op of ai.onnx.ml in its oldest version. Later ones only add attributes and element types, so its nodes in any
/// version are nodes of this one.
const fn ml(name: &'static str, inputs: &'static str, outputs: &'static str) -> OpRow {
    of_domain(ML_DOMAIN, name, inputs, outputs)
}

/// Returns an op of ai.onnx.ml that came with version 5 of the domain.
const fn ml5(name: &'static str, inputs: &'static str, outputs: &'static str) -> OpRow {
    OpRow { version: 5, same_since: 5, lifts_since: 5, ..ml(name, inputs, outputs) }
}

const fn microsoft(name: &'static str, inputs: &'static str, outputs: &'static str) -> OpRow {
    of_domain(MICROSOFT_DOMAIN, name, inputs, outputs)
}

/// Ops of ONNX's domain for classical machine learning, sorted by name.
#[rustfmt::skip]
const ML: &[OpRow] = &[
    ml("Binarizer", "X", "Y").with("threshold:float=0.0").formula(FLOATS, 1, "X > threshold ? 1 : 0"),
    ml("LabelEncoder", "X", "Y:1").with("default_float:float=-0.0 default_int64:int=-1 default_string:string=_Unused default_tensor:tensor? keys_floats:floats? keys_int64s:ints? keys_strings:strings? keys_tensor:tensor? values_floats:floats? values_int64s:ints? values_strings:strings? values_tensor:tensor?").infer(label_encoder),
    ml("OneHotEncoder", "X", "Y:1").with("cats_int64s:ints? cats_strings:strings? zeros:int=1").infer(one_hot_encoder),
    ml("SVMClassifier", "X", "Y:1 Z:2").with("classlabels_ints:ints? classlabels_strings:strings? coefficients:floats? kernel_params:floats? kernel_type:string=LINEAR post_transform:string=NONE prob_a:floats? prob_b:floats? rho:floats? support_vectors:floats? vectors_per_class:ints?").work(Work::Product).infer(svm_classifier),
    ml("SVMRegressor", "X", "Y:1").with("coefficients:floats? kernel_params:floats? kernel_type:string=LINEAR n_supports:int=0 one_class:int=0 post_transform:string=NONE rho:floats? support_vectors:floats?").work(Work::Product).infer(svm_regressor),
    ml5("TreeEnsemble", "X", "Y").with("aggregate_function:int=1 leaf_targetids:ints leaf_weights:tensor membership_values:tensor? n_targets:int? nodes_falseleafs:ints nodes_falsenodeids:ints nodes_featureids:ints nodes_hitrates:tensor? nodes_missing_value_tracks_true:ints? nodes_modes:tensor nodes_splits:tensor nodes_trueleafs:ints nodes_truenodeids:ints post_transform:int=0 tree_roots:ints").infer(tree_ensemble),
    ml("TreeEnsembleClassifier", "X", "Y:1 Z:2").with("base_values:floats? base_values_as_tensor:tensor? class_ids:ints? class_nodeids:ints? class_treeids:ints? class_weights:floats? class_weights_as_tensor:tensor? classlabels_int64s:ints? classlabels_strings:strings? nodes_falsenodeids:ints? nodes_featureids:ints? nodes_hitrates:floats? nodes_hitrates_as_tensor:tensor? nodes_missing_value_tracks_true:ints? nodes_modes:strings? nodes_nodeids:ints? nodes_treeids:ints? nodes_truenodeids:ints? nodes_values:floats? nodes_values_as_tensor:tensor? post_transform:string=NONE").infer(tree_ensemble_classifier),
    ml("TreeEnsembleRegressor", "X", "Y:1").with("aggregate_function:string=SUM base_values:floats? base_values_as_tensor:tensor? n_targets:int? nodes_falsenodeids:ints? nodes_featureids:ints? nodes_hitrates:floats? nodes_hitrates_as_tensor:tensor? nodes_missing_value_tracks_true:ints? nodes_modes:strings? nodes_nodeids:ints? nodes_treeids:ints? nodes_truenodeids:ints? nodes_values:floats? nodes_values_as_tensor:tensor? post_transform:string=NONE target_ids:ints? target_nodeids:ints? target_treeids:ints? target_weights:floats? target_weights_as_tensor:tensor?").infer(tree_ensemble_regressor),
];

/// onnxruntime's additional ops, sorted by name.
#[rustfmt::skip]
const MICROSOFT: &[OpRow] = &[
    microsoft("Inverse", "X", "Y").cannot_fail().work(Work::Product).infer(inverse),
    microsoft("QuickGelu", "X", "Y").with("alpha:float=1.702").formula(FLOATS, 30, "X * sigmoid(alpha * X)"),
];

/// ONNX's ops, sorted by name.
#[rustfmt::skip]
const ONNX: &[OpRow] = &[
    onnx("Abs", 13, "X", "Y").since(6, 6).formula(NUMBERS, 1, "abs(X)").fused(),
    onnx("Acos", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "acos(input)"),
    onnx("Acosh", 22, "input", "output").since(9, 9).formula(FLOATS, 40, "acosh(input)"),
    onnx("Add", 14, "A B", "C").since(7, 7).formula(NUMBERS, 1, "A + B").fused(),
    onnx("AffineGrid", 20, "theta size:1!", "grid").with("align_corners:int=0").infer(affine_grid),
    onnx("And", 7, "A B", "C:1").formula(TRUTHS, 1, "A && B"),
    onnx("ArgMax", 13, "data", "reduced:1").since(12, 1).with("axis:int=0 keepdims:int=1 select_last_index:int=0").work(Work::Reduction).infer(arg),
    onnx("ArgMin", 13, "data", "reduced:1").since(12, 1).with("axis:int=0 keepdims:int=1 select_last_index:int=0").work(Work::Reduction).infer(arg),
    onnx("Asin", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "asin(input)"),
    onnx("Asinh", 22, "input", "output").since(9, 9).formula(FLOATS, 40, "asinh(input)"),
    onnx("Atan", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "atan(input)"),
    onnx("Atanh", 22, "input", "output").since(9, 9).formula(FLOATS, 40, "atanh(input)"),
    onnx("Attention", 25, "Q K V:1 attn_mask:2? past_key? past_value:1? nonpad_kv_seqlen:3?", "Y present_key? present_value:1? qk_matmul_output?").since(25, 23).with("is_causal:int=0 kv_num_heads:int? left_window_size:int=-1 q_num_heads:int? qk_matmul_output_mode:int=0 right_window_size:int=-1 scale:float? softcap:float=0.0 softmax_precision:int?").work(Work::Product).infer(attention),
    onnx("AveragePool", 22, "X", "Y").since(19, 7).with("auto_pad:string=NOTSET ceil_mode:int=0 count_include_pad:int=0 dilations:ints? kernel_shape:ints pads:ints? strides:ints?").cannot_fail().work(Work::Pooling).infer(pool),
    onnx("BatchNormalization", 15, "X scale:1 B:1 input_mean:2 input_var:2", "Y running_mean:2? running_var:2?").since(14, 9).with("epsilon:float=1e-05 momentum:float=0.9 training_mode:int=0").cannot_fail().infer(batch_normalization),
    view("BitCast", 26, "input", "output:1").with("to:int").cannot_fail().infer(bit_cast),
    onnx("BitShift", 28, "X Y", "Z").since(28, 11).with("direction:string").infer(arithmetic),
    onnx("BitwiseAnd", 18, "A B", "C").formula(INTEGERS, 1, "A & B"),
    onnx("BitwiseNot", 18, "X", "Y").formula(INTEGERS, 1, "~X"),
    onnx("BitwiseOr", 18, "A B", "C").formula(INTEGERS, 1, "A | B"),
    onnx("BitwiseXor", 18, "A B", "C").formula(INTEGERS, 1, "A ^ B"),
    onnx("BlackmanWindow", 17, "size!", "output:1").with("output_datatype:int=1 periodic:int=1").infer(window),
    onnx("Cast", 28, "input", "output:1").since(13, 6).with("round_mode:string=up saturate:int=1 to:int").elementwise().cannot_fail().infer(cast),
    onnx("CastLike", 25, "input target_type:1", "output:1").since(15, 15).with("round_mode:string=up saturate:int=1").cannot_fail().infer(cast_like),
    onnx("CausalConvWithState", 27, "input weight bias? past_state?", "output present_state").with("activation:string=none").work(Work::Convolution).infer(causal_conv),
    onnx("Ceil", 13, "X", "Y").since(6, 6).formula(FLOATS, 1, "ceil(X)").fused(),
    onnx("Celu", 28, "X", "Y").since(12, 12).with("alpha:float=1.0").formula(FLOATS, 25, "X > 0 ? X : alpha * expm1(X / alpha)").fused(),
    onnx("CenterCropPad", 18, "input_data shape:1!", "output_data").with("axes:ints?").shaped_by(1).infer(center_crop_pad),
    onnx("Clip", 13, "input min? max?", "output").since(13, 11).formula(NUMBERS, 2, "clip(input, min, max)").absent(&[("min", f32::NEG_INFINITY), ("max", f32::INFINITY)]).fused().infer(clip),
    onnx("Col2Im", 18, "input image_shape:1! block_shape:1!", "output").with("dilations:ints? pads:ints? strides:ints?").work(Work::Permutation).infer(col2im),
    onnx("Compress", 28, "input condition:1", "output").since(11, 9).with("axis:int?").data_shape().work(Work::Copying).infer(compress),
    onnx("Concat", 13, "inputs+", "concat_result").since(11, 4).with("axis:int").cannot_fail().work(Work::Movement).infer(concat),
    onnx("ConstantOfShape", 25, "input!", "output:1").since(9, 9).with("value:tensor?").cannot_fail().shaped_by(0).work(Work::Copying).infer(constant_of_shape),
    onnx("Conv", 22, "X W B?", "Y").since(11, 1).with("auto_pad:string=NOTSET dilations:ints? group:int=1 kernel_shape:ints? pads:ints? strides:ints?").cannot_fail().work(Work::Convolution).infer(conv),
    onnx("ConvInteger", 10, "x w:1 x_zero_point? w_zero_point:1?", "y:2").with("auto_pad:string=NOTSET dilations:ints? group:int=1 kernel_shape:ints? pads:ints? strides:ints?").work(Work::Product).infer(conv_integer),
    onnx("ConvTranspose", 22, "X W B?", "Y").since(11, 1).with("auto_pad:string=NOTSET dilations:ints? group:int=1 kernel_shape:ints? output_padding:ints? output_shape:ints? pads:ints? strides:ints?").cannot_fail().work(Work::Convolution).infer(conv_transpose),
    onnx("Cos", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "cos(input)"),
    onnx("Cosh", 22, "input", "output").since(9, 9).formula(FLOATS, 40, "cosh(input)"),
    onnx("CumProd", 26, "x axis:1!", "y").with("exclusive:int=0 reverse:int=0").infer(cumulative),
    onnx("CumSum", 14, "x axis:1!", "y").since(11, 11).with("exclusive:int=0 reverse:int=0").infer(cumulative),
    onnx("DFT", 20, "input dft_length:1!? axis:2!?", "output").with("inverse:int=0 onesided:int=0").work(Work::Product).infer(dft),
    onnx("DeformConv", 22, "X W offset B? mask?", "Y").since(19, 19).with("dilations:ints? group:int=1 kernel_shape:ints? offset_group:int=1 pads:ints? strides:ints?").work(Work::Convolution).infer(deform_conv),
    onnx("DepthToSpace", 28, "input", "output").since(11, 1).with("blocksize:int mode:string=DCR").cannot_fail().work(Work::Permutation).infer(depth_to_space),
    onnx("DequantizeLinear", 28, "x x_scale:1 x_zero_point?", "y:2").since(13, 10).with("axis:int=1 block_size:int=0 output_dtype:int=0").infer(dequantize),
    onnx("Det", 22, "X", "Y").since(11, 11).work(Work::Product).infer(det),
    onnx("Div", 14, "A B", "C").since(7, 7).formula(NUMBERS, 1, "A / B").fused().may_fail_on_integers(),
    onnx("Dropout", 22, "data ratio:1? training_mode:2?", "output mask:2?").since(12, 12).with("seed:int?").infer(dropout),
    onnx("DynamicQuantizeLinear", 11, "x", "y:1 y_scale:2 y_zero_point:1").work(Work::Reduction).infer(dynamic_quantize),
    onnx("Einsum", 28, "Inputs+", "Output").since(12, 12).with("equation:string").cannot_fail().work(Work::Product).infer(einsum),
    onnx("Elu", 22, "X", "Y").since(6, 6).with("alpha:float=1.0").formula(FLOATS, 25, "X > 0 ? X : alpha * expm1(X)").fused(),
    onnx("Equal", 19, "A B", "C:1").since(7, 7).relation(ANYTHING, "A == B"),
    onnx("Erf", 13, "input", "output").since(9, 9).formula(FLOATS, 40, "erf(input)").fused(),
    onnx("Exp", 13, "input", "output").since(6, 6).formula(FLOATS, 20, "exp(input)").fused(),
    onnx("Expand", 13, "input shape:1!", "output").since(8, 8).cannot_fail().shaped_by(1).work(Work::Movement).infer(expand),
    onnx("EyeLike", 22, "input", "output:1").since(9, 9).with("dtype:int? k:int=0").infer(eye_like),
    view("Flatten", 25, "input", "output").since(11, 1).with("axis:int=1").cannot_fail().infer(flatten),
    onnx("Floor", 13, "X", "Y").since(6, 6).formula(FLOATS, 1, "floor(X)").fused(),
    onnx("GRU", 22, "X W R B? sequence_lens:1? initial_h?", "Y? Y_h?").since(14, 7).with("activation_alpha:floats? activation_beta:floats? activations:strings? clip:float? direction:string=forward hidden_size:int? layout:int=0 linear_before_reset:int=0").work(Work::Product).infer(gru),
    onnx("Gather", 13, "data indices:1", "output").since(11, 1).with("axis:int=0").work(Work::Copying).infer(gather),
    onnx("GatherElements", 13, "data indices:1", "output").since(11, 11).with("axis:int=0").work(Work::Permutation).infer(gather_elements),
    onnx("GatherND", 13, "data indices:1", "output").since(12, 11).with("batch_dims:int=0").work(Work::Permutation).infer(gather_nd),
    onnx("Gelu", 20, "X", "Y").with("approximate:string=none").formula(FLOATS, 45, "0.5 * X * (1 + erf(X * 0.7071067811865476))").or_if("approximate", "tanh", "GeluTanh", FLOATS, "0.5 * X * (1 + tanh(0.7978845608028654 * (X + 0.044715 * X * X * X)))").fused(),
    onnx("Gemm", 13, "A B C?", "Y").since(11, 7).with("alpha:float=1.0 beta:float=1.0 transA:int=0 transB:int=0").cannot_fail().work(Work::Product).infer(gemm),
    onnx("GlobalAveragePool", 22, "X", "Y").since(1, 1).cannot_fail().work(Work::Reduction).infer(global_pool),
    onnx("GlobalLpPool", 22, "X", "Y").since(2, 2).with("p:int=2").work(Work::Reduction).infer(global_pool),
    onnx("GlobalMaxPool", 22, "X", "Y").since(1, 1).cannot_fail().work(Work::Reduction).infer(global_pool),
    onnx("Greater", 13, "A B", "C:1").since(7, 7).relation(NUMBERS, "A > B"),
    onnx("GreaterOrEqual", 16, "A B", "C:1").since(12, 12).relation(NUMBERS, "A >= B"),
    onnx("GridSample", 22, "X grid:1", "Y").since(20, 20).with("align_corners:int=0 mode:string=linear padding_mode:string=zeros").work(Work::Permutation).infer(grid_sample),
    onnx("GroupNormalization", 21, "X scale bias", "Y").with("epsilon:float=1e-05 num_groups:int stash_type:int=1").cannot_fail().work(Work::Reduction).infer(group_normalization),
    onnx("HammingWindow", 17, "size!", "output:1").with("output_datatype:int=1 periodic:int=1").infer(window),
    onnx("HannWindow", 17, "size!", "output:1").with("output_datatype:int=1 periodic:int=1").infer(window),
    onnx("HardSigmoid", 22, "X", "Y").since(6, 6).with("alpha:float=0.2 beta:float=0.5").formula(FLOATS, 4, "clip(alpha * X + beta, 0, 1)").fused(),
    onnx("HardSwish", 22, "X", "Y").since(14, 14).formula(FLOATS, 5, "X * clip(X * 0.16666666666666666 + 0.5, 0, 1)").fused(),
    onnx("Hardmax", 13, "input", "output").with("axis:int=-1").cannot_fail().infer(along_axis),
    view("Identity", 25, "input", "output").since(1, 1).cannot_fail().infer(same),
    control("If", 25, "cond", "outputs:1+~").since(11, 1).with("else_branch:graph then_branch:graph"),
    onnx("InstanceNormalization", 22, "input scale B", "output").since(6, 6).with("epsilon:float=1e-05").cannot_fail().work(Work::Reduction).infer(instance_normalization),
    onnx("IsInf", 20, "X", "Y:1").since(10, 10).with("detect_negative:int=1 detect_positive:int=1").relation(FLOATS, "isinf(X) && (X < 0 ? detect_negative : detect_positive) != 0"),
    onnx("IsNaN", 20, "X", "Y:1").since(9, 9).relation(FLOATS, "isnan(X)"),
    onnx("LRN", 13, "X", "Y").since(1, 1).with("alpha:float=1e-04 beta:float=0.75 bias:float=1.0 size:int").cannot_fail().infer(same),
    onnx("LSTM", 22, "X W R B? sequence_lens:1? initial_h? initial_c? P?", "Y? Y_h? Y_c?").since(14, 7).with("activation_alpha:floats? activation_beta:floats? activations:strings? clip:float? direction:string=forward hidden_size:int? input_forget:int=0 layout:int=0").work(Work::Product).infer(lstm),
    onnx("LayerNormalization", 17, "X Scale B?", "Y Mean:1? InvStdDev:1?").with("axis:int=-1 epsilon:float=1e-05 stash_type:int=1").cannot_fail().work(Work::Reduction).infer(layer_normalization),
    onnx("LeakyRelu", 16, "X", "Y").since(6, 6).with("alpha:float=0.01").formula(FLOATS, 2, "X < 0 ? alpha * X : X").fused(),
    onnx("Less", 13, "A B", "C:1").since(7, 7).relation(NUMBERS, "A < B"),
    onnx("LessOrEqual", 16, "A B", "C:1").since(12, 12).relation(NUMBERS, "A <= B"),
    onnx("LinearAttention", 27, "query key value past_state:1? decay? beta?", "output present_state:1").with("chunk_size:int=64 kv_num_heads:int q_num_heads:int scale:float=0.0 update_rule:string=gated_delta").work(Work::Product).infer(linear_attention),
    onnx("Log", 13, "input", "output").since(6, 6).formula(FLOATS, 30, "log(input)").fused(),
    onnx("LogSoftmax", 13, "input", "output").with("axis:int=-1").cannot_fail().work(Work::Reduction).infer(along_axis),
    control("Loop", 25, "M? cond:1? v_initial:2*~", "v_final_and_scan_outputs:2+~").since(11, 1).with("body:graph"),
    onnx("LpNormalization", 22, "input", "output").since(1, 1).with("axis:int=-1 p:int=2").cannot_fail().work(Work::Reduction).infer(along_axis),
    onnx("LpPool", 22, "X", "Y").since(18, 2).with("auto_pad:string=NOTSET ceil_mode:int=0 dilations:ints? kernel_shape:ints p:int=2 pads:ints? strides:ints?").work(Work::Pooling).infer(pool),
    onnx("MatMul", 13, "A B", "Y").since(1, 1).cannot_fail().work(Work::Product).infer(matmul),
    onnx("MatMulInteger", 10, "A B:1 a_zero_point? b_zero_point:1?", "Y:2").work(Work::Product).infer(matmul_integer),
    onnx("Max", 13, "data_0+", "max").since(8, 8).fold(NUMBERS, "larger(acc, data_0)").fused(),
    onnx("MaxPool", 22, "X", "Y Indices:1?").since(10, 1).with("auto_pad:string=NOTSET ceil_mode:int=0 dilations:ints? kernel_shape:ints pads:ints? storage_order:int=0 strides:ints?").cannot_fail().work(Work::Pooling).infer(max_pool),
    onnx("MaxRoiPool", 22, "X rois", "Y").since(1, 1).with("pooled_shape:ints spatial_scale:float=1.0").work(Work::Pooling).infer(max_roi_pool),
    onnx("MaxUnpool", 22, "X I:1 output_shape:1!?", "output").since(9, 9).with("kernel_shape:ints pads:ints? strides:ints?").infer(max_unpool),
    onnx("Mean", 13, "data_0+", "mean").since(8, 8).elementwise().cannot_fail().infer(variadic),
    onnx("MeanVarianceNormalization", 13, "X", "Y").since(9, 9).with("axes:ints?").work(Work::Reduction).infer(mean_variance),
    onnx("MelWeightMatrix", 17, "num_mel_bins! dft_length! sample_rate! lower_edge_hertz:1! upper_edge_hertz:1!", "output:2").with("output_datatype:int=1").infer(mel_weight_matrix),
    onnx("Min", 13, "data_0+", "min").since(8, 8).fold(NUMBERS, "smaller(acc, data_0)").fused(),
    onnx("Mish", 22, "X", "Y").since(18, 18).formula(FLOATS, 90, "X * tanh(softplus(X))").fused(),
    onnx("Mod", 28, "A B", "C").since(10, 10).with("fmod:int=0").formula(INTEGERS, 1, "mod(A, B)").or_if("fmod", "1", "Fmod", NUMBERS, "rem(A, B)").may_fail_on_integers(),
    onnx("Mul", 14, "A B", "C").since(7, 7).formula(NUMBERS, 1, "A * B").fused(),
    onnx("Neg", 13, "X", "Y").since(6, 6).formula(SIGNED, 1, "-X").fused(),
    onnx("NegativeLogLikelihoodLoss", 22, "input target:1 weight?", "loss").since(12, 12).with("ignore_index:int? reduction:string=mean").infer(negative_log_likelihood_loss),
    onnx("NonMaxSuppression", 11, "boxes scores max_output_boxes_per_class:1? iou_threshold? score_threshold?", "selected_indices:1").since(11, 10).with("center_point_box:int=0").data_shape().infer(non_max_suppression),
    onnx("NonZero", 13, "X", "Y:1").since(9, 9).data_shape().infer(non_zero),
    onnx("Not", 1, "X", "Y").formula(TRUTHS, 1, "!X"),
    onnx("OneHot", 28, "indices depth:1! values:2", "output:2").since(11, 11).with("axis:int=-1").infer(one_hot),
    onnx("Or", 7, "A B", "C:1").formula(TRUTHS, 1, "A || B"),
    onnx("PRelu", 16, "X slope", "Y").since(7, 7).formula(NUMBERS, 2, "X < 0 ? X * slope : X").keeps_first_shape().infer(prelu),
    onnx("Pad", 25, "data pads:1! constant_value? axes:2!?", "output").since(19, 11).with("mode:string=constant").shaped_by(1).work(Work::Movement).infer(pad),
    onnx("Pow", 15, "X Y:1", "Z").since(7, 7).formula(FLOATS, 60, "pow(X, Y)").may_fail_on_integers().infer(binary_of_first),
    onnx("QLinearConv", 10, "x x_scale:1 x_zero_point w:2 w_scale:1 w_zero_point:2 y_scale:1 y_zero_point:3 B:4?", "y:3").with("auto_pad:string=NOTSET dilations:ints? group:int=1 kernel_shape:ints? pads:ints? strides:ints?").work(Work::Product).infer(qlinear_conv),
    onnx("QLinearMatMul", 21, "a a_scale:1 a_zero_point b:2 b_scale:1 b_zero_point:2 y_scale:1 y_zero_point:3", "y:3").since(10, 10).work(Work::Product).infer(qlinear_matmul),
    onnx("QuantizeLinear", 28, "x y_scale:1 y_zero_point:2?", "y:2").since(13, 10).with("axis:int=1 block_size:int=0 output_dtype:int=0 precision:int=0 saturate:int=1").infer(quantize),
    onnx("RMSNormalization", 23, "X scale:1", "Y:1").with("axis:int=-1 epsilon:float=1e-05 stash_type:int=1").cannot_fail().work(Work::Reduction).infer(rms_normalization),
    onnx("RNN", 22, "X W R B? sequence_lens:1? initial_h?", "Y? Y_h?").since(14, 7).with("activation_alpha:floats? activation_beta:floats? activations:strings? clip:float? direction:string=forward hidden_size:int? layout:int=0").work(Work::Product).infer(rnn),
    onnx("Range", 27, "start! limit! delta!", "output").since(11, 11).with("stash_type:int=1").shaped_by(0).infer(range),
    onnx("Reciprocal", 13, "X", "Y").since(6, 6).formula(FLOATS, 1, "1 / X").fused(),
    onnx("ReduceL1", 18, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceL2", 18, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceLogSum", 28, "data axes:1!?", "reduced").since(18, 18).with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceLogSumExp", 28, "data axes:1!?", "reduced").since(18, 18).with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceMax", 20, "data axes:1!?", "reduced").since(18, 18).with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceMean", 18, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceMin", 20, "data axes:1!?", "reduced").since(18, 18).with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceProd", 18, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceSum", 13, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("ReduceSumSquare", 18, "data axes:1!?", "reduced").with("keepdims:int=1 noop_with_empty_axes:int=0").cannot_fail().shaped_by(1).work(Work::Reduction).infer(reduce),
    onnx("Relu", 14, "X", "Y").since(6, 6).formula(SIGNED, 1, "at_least(X, 0)").fused(),
    view("Reshape", 25, "data shape:1", "reshaped").since(14, 5).with("allowzero:int=0").cannot_fail().shaped_by(1).infer(reshape),
    onnx("Resize", 19, "X roi:1!? scales:2!? sizes:3!?", "Y").since(19, 11).with("antialias:int=0 axes:ints? coordinate_transformation_mode:string=half_pixel cubic_coeff_a:float=-0.75 exclude_outside:int=0 extrapolation_value:float=0.0 keep_aspect_ratio_policy:string=stretch mode:string=nearest nearest_mode:string=round_prefer_floor").shaped_by(1).work(Work::Permutation).infer(resize),
    onnx("ReverseSequence", 28, "input sequence_lens:1", "Y").since(10, 10).with("batch_axis:int=1 time_axis:int=0").work(Work::Permutation).infer(same),
    onnx("RoiAlign", 22, "X rois batch_indices:1", "Y").since(16, 16).with("coordinate_transformation_mode:string=half_pixel mode:string=avg output_height:int=1 output_width:int=1 sampling_ratio:int=0 spatial_scale:float=1.0").work(Work::Pooling).infer(roi_align),
    onnx("RotaryEmbedding", 23, "X cos_cache sin_cache position_ids:1?", "Y").with("interleaved:int=0 num_heads:int? rotary_embedding_dim:int=0").infer(same),
    onnx("Round", 22, "X", "Y").since(11, 11).formula(FLOATS, 1, "round(X)").fused(),
    onnx("STFT", 17, "signal frame_step:1! window? frame_length:1!?", "output").with("onesided:int=1").work(Work::Product).infer(stft),
    control("Scan", 25, "initial_state_and_scan_inputs+~", "final_state_and_scan_outputs+~").since(11, 9).with("body:graph num_scan_inputs:int scan_input_axes:ints? scan_input_directions:ints? scan_output_axes:ints? scan_output_directions:ints?"),
    onnx("ScatterElements", 18, "data indices:1 updates", "output").since(18, 11).with("axis:int=0 reduction:string=none").work(Work::Permutation).infer(scatter_elements),
    onnx("ScatterND", 18, "data indices:1 updates", "output").since(18, 11).with("reduction:string=none").work(Work::Permutation).infer(scatter_nd),
    onnx("Selu", 22, "X", "Y").since(6, 6).with("alpha:float=1.6732632 gamma:float=1.050701").formula(FLOATS, 25, "gamma * (X > 0 ? X : alpha * expm1(X))").fused(),
    query("Shape", 25, "data", "shape:1").since(15, 1).with("end:int? start:int=0").cannot_fail().infer(shape),
    onnx("Shrink", 9, "input", "output").with("bias:float=0.0 lambd:float=0.5").formula(FLOATS, 3, "input > lambd ? input - bias : (input < -lambd ? input + bias : 0)"),
    onnx("Sigmoid", 13, "X", "Y").since(6, 6).formula(FLOATS, 25, "sigmoid(X)").fused(),
    onnx("Sign", 13, "input", "output").since(9, 9).formula(NUMBERS, 2, "sign(input)"),
    onnx("Sin", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "sin(input)"),
    onnx("Sinh", 22, "input", "output").since(9, 9).formula(FLOATS, 40, "sinh(input)"),
    query("Size", 25, "data", "size:1").since(1, 1).cannot_fail().infer(size),
    onnx("Slice", 13, "data starts:1! ends:1! axes:1!? steps:1!?", "output").since(11, 10).cannot_fail().shaped_by(1).work(Work::Movement).infer(slice),
    onnx("Softmax", 13, "input", "output").with("axis:int=-1").cannot_fail().work(Work::Reduction).infer(along_axis),
    onnx("SoftmaxCrossEntropyLoss", 13, "scores labels:1 weights?", "output log_prob?").since(12, 12).with("ignore_index:int? reduction:string=mean").infer(softmax_cross_entropy_loss),
    onnx("Softplus", 22, "X", "Y").since(1, 1).formula(FLOATS, 50, "softplus(X)").fused(),
    onnx("Softsign", 22, "input", "output").since(1, 1).formula(FLOATS, 3, "input / (1 + abs(input))").fused(),
    onnx("SpaceToDepth", 28, "input", "output").since(1, 1).with("blocksize:int mode:string=DCR").cannot_fail().work(Work::Permutation).infer(space_to_depth),
    onnx("Split", 18, "input split:1!?", "outputs+").with("axis:int=0 num_outputs:int?").cannot_fail().shaped_by(1).work(Work::Movement).infer(split),
    onnx("Sqrt", 13, "X", "Y").since(6, 6).formula(FLOATS, 1, "sqrt(X)").fused(),
    view("Squeeze", 25, "data axes:1?", "squeezed").since(13, 13).cannot_fail().shaped_by(1).infer(squeeze),
    onnx("Sub", 14, "A B", "C").since(7, 7).formula(NUMBERS, 1, "A - B").fused(),
    onnx("Sum", 13, "data_0+", "sum").since(8, 8).fold(FLOATS, "acc + data_0"),
    onnx("SwiGLU", 28, "A B", "Y").with("alpha:float=1.0").cannot_fail().infer(same),
    onnx("Swish", 24, "X", "Y").with("alpha:float=1.0").formula(FLOATS, 30, "X * sigmoid(alpha * X)").fused(),
    onnx("Tan", 22, "input", "output").since(7, 7).formula(FLOATS, 40, "tan(input)"),
    onnx("Tanh", 13, "input", "output").since(6, 6).formula(FLOATS, 35, "tanh(input)").fused(),
    onnx("TensorScatter", 24, "past_cache update write_indices:1?", "present_cache").with("axis:int=-2 mode:string=linear").infer(tensor_scatter),
    onnx("TfIdfVectorizer", 9, "X", "Y:1").with("max_gram_length:int max_skip_count:int min_gram_length:int mode:string ngram_counts:ints ngram_indexes:ints pool_int64s:ints? pool_strings:strings? weights:floats?").infer(tf_idf_vectorizer),
    onnx("ThresholdedRelu", 22, "X", "Y").since(10, 10).with("alpha:float=1.0").formula(FLOATS, 1, "X > alpha ? X : 0").fused(),
    onnx("Tile", 13, "input repeats:1!", "output").since(6, 6).cannot_fail().shaped_by(1).work(Work::Movement).infer(tile),
    onnx("TopK", 24, "X K:1!", "Values Indices:2").since(11, 10).with("axis:int=-1 largest:int=1 sorted:int=1").shaped_by(1).work(Work::Reduction).infer(top_k),
    onnx("Transpose", 25, "data", "transposed").since(1, 1).with("perm:ints?").cannot_fail().work(Work::Movement).infer(transpose),
    onnx("Trilu", 14, "input k:1!?", "output").with("upper:int=1").cannot_fail().infer(trilu),
    onnx("Unique", 28, "X", "Y indices:1? inverse_indices:1? counts:1?").since(11, 11).with("axis:int? sorted:int=1").data_shape().infer(unique),
    view("Unsqueeze", 25, "data axes:1", "expanded").since(13, 13).cannot_fail().shaped_by(1).infer(unsqueeze),
    onnx("Where", 16, "condition X:1 Y:1", "output:1").since(9, 9).elementwise().cannot_fail().infer(where_),
    onnx("Xor", 7, "A B", "C:1").formula(TRUTHS, 1, "A != B"),
];

/// The lists, sorted by domain.
const LISTS: &[&[OpRow]] = &[ONNX, ML, MICROSOFT, DEVBAY];

const N_ROWS: usize = {
    let (mut n, mut list) = (0, 0);
    while list < LISTS.len() {
        n += LISTS[list].len();
        list += 1;
    }
    n
};

/// The rows of all lists, in their order.
const LINES: &[OpRow; N_ROWS] = &{
    let mut lines = [LISTS[0][0]; N_ROWS];
    let (mut at, mut list) = (0, 0);
    while list < LISTS.len() {
        let mut i = 0;
        while i < LISTS[list].len() {
            lines[at] = LISTS[list][i];
            at += 1;
            i += 1;
        }
        list += 1;
    }
    lines
};

/// All rows, sorted by domain, then by name: a constant, so that plugins build kernels from them at compile time.
pub const ROWS: &[OpRow; N_ROWS] = &{
    let mut rows = *LINES;
    let mut at = 0;
    while at < N_ROWS {
        rows[at] = OpRow { at, infer: None, ..rows[at] };
        at += 1;
    }
    rows
};

/// Inference by row, kept apart because a plugin's rows would otherwise link every inference function into the plugin.
pub(crate) static INFERENCE: [Option<InferFn>; N_ROWS] = {
    let mut inference = [None; N_ROWS];
    let mut at = 0;
    while at < N_ROWS {
        let line = &LINES[at];
        inference[at] = if line.infer.is_some() { line.infer } else { of_formula(line) };
        let is_control = matches!(line.kind, OpKind::Control);
        assert!(
            inference[at].is_some() != is_control,
            "each op but control flow says the types of its results"
        );
        at += 1;
    }
    inference
};
