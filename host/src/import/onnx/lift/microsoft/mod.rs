//! Lowers onnxruntime's own ops (the domain `com.microsoft`) to ops of the catalogue, where that is exact up to rounding.
//!
//! Exporters and onnxruntime's optimiser write these ops. A node becomes the nodes of its formula, named under it; its
//! results keep their values. A row refuses whatever it cannot express, so that no attribute or operand is ignored. Ops
//! without a row stay as they are, and placement reports them. Source: onnxruntime's ContribOperators.md, its CPU kernels
//! where the text is vague, and a comparison with onnxruntime (docs/contrib-ops.md).

mod activations;
mod attention;
mod blocks;
mod group_query;
mod movement;
mod normalisation;
mod products;
mod quantised;

use super::held;
use super::lowering::{Lowering, Row, row};
use devbay_core::program::Op;
use devbay_ops::MICROSOFT_DOMAIN;

/// Attributes of pooling and convolution windows.
const POOL: &str = "auto_pad ceil_mode count_include_pad kernel_shape pads strides channels_last";

/// Ops of `com.microsoft`, sorted by name.
#[rustfmt::skip]
const ROWS: &[Row] = &[
    row("Attention", (7, 2), "do_rotary mask_filter_value num_heads past_present_share_buffer qkv_hidden_sizes rotary_embedding_dim scale unidirectional", attention::attention),
    row("BiasAdd", (3, 1), "", activations::bias_add),
    row("BiasGelu", (2, 1), "", activations::bias_gelu),
    row("BiasSplitGelu", (2, 1), "", activations::bias_split_gelu),
    row("DequantizeLinear", (3, 1), "axis", quantised::renamed),
    row("DynamicQuantizeMatMul", (5, 1), "", quantised::dynamic_quantize_matmul),
    row("EmbedLayerNormalization", (9, 3), "epsilon mask_index_type", normalisation::embed_layer_normalization),
    row("ExpandDims", (2, 1), "", movement::expand_dims),
    row("FastGelu", (2, 1), "", activations::fast_gelu),
    row("FusedConv", (4, 1), "activation activation_params auto_pad dilations group kernel_shape pads strides", products::fused_conv),
    row("FusedGemm", (3, 1), "activation activation_alpha activation_beta activation_gamma alpha beta transA transB", products::fused_gemm),
    row("FusedMatMul", (2, 1), "alpha transA transB transBatchA transBatchB", products::fused_matmul),
    row("GatherBlockQuantized", (4, 1), "bits block_size gather_axis quantize_axis", blocks::gather_block_quantized),
    row("Gelu", (1, 1), "", activations::gelu),
    row("GroupQueryAttention", (17, 4), "causal do_rotary k_norm_epsilon k_quant_type kv_cache_bit_width kv_num_heads local_window_size num_heads q_norm_epsilon qk_norm_epsilon qk_output rotary_interleaved scale sliding_window_cache smooth_softmax softcap v_quant_type", group_query::group_query_attention),
    row("MatMulIntegerToFloat", (7, 1), "", quantised::matmul_integer_to_float),
    row("MatMulNBits", (6, 1), "K N accuracy_level bits block_size weight_prepacked", blocks::matmul_n_bits),
    row("MultiHeadAttention", (10, 4), "mask_filter_value num_heads scale unidirectional", attention::multi_head_attention),
    row("NhwcMaxPool", (1, 1), "auto_pad ceil_mode dilations kernel_shape pads strides", movement::nhwc_max_pool),
    row("Pad", (3, 1), "mode", movement::pad),
    row("QGemm", (9, 1), "alpha transA transB", quantised::q_gemm),
    row("QLinearAdd", (8, 1), "", |l| quantised::elementwise(l, "Add")),
    row("QLinearAveragePool", (5, 1), POOL, quantised::average_pool),
    row("QLinearConcat", (usize::MAX, 1), "axis", quantised::concat),
    row("QLinearGlobalAveragePool", (5, 1), "channels_last", quantised::global_average_pool),
    row("QLinearLeakyRelu", (5, 1), "alpha", quantised::leaky_relu),
    row("QLinearMul", (8, 1), "", |l| quantised::elementwise(l, "Mul")),
    row("QLinearSigmoid", (5, 1), "", quantised::sigmoid),
    row("QLinearSoftmax", (5, 1), "axis opset", quantised::softmax),
    row("QLinearWhere", (9, 1), "", quantised::where_),
    row("QuantizeLinear", (3, 1), "axis", quantised::renamed),
    row("Range", (3, 1), "", movement::range),
    row("RotaryEmbedding", (4, 1), "interleaved is_packed_batching num_heads rotary_embedding_dim scale", attention::rotary_embedding),
    row("SkipLayerNormalization", (5, 4), "epsilon", normalisation::skip_layer_normalization),
    row("SkipSimplifiedLayerNormalization", (4, 4), "epsilon", normalisation::skip_simplified_layer_normalization),
    row("TransposeMatMul", (2, 1), "alpha transA transB", products::fused_matmul),
    row("Trilu", (2, 1), "upper", movement::trilu),
    row("Unique", (1, 3), "", movement::unique),
];

/// An op that onnxruntime registers in ONNX's own domain.
const SIMPLIFIED: Row = row(
    "SimplifiedLayerNormalization",
    (2, 2),
    "axis epsilon stash_type",
    normalisation::simplified_layer_normalization,
);

/// Returns the lowering of an op, if it has one.
pub(super) fn find(op: &Op) -> Option<&'static Row> {
    match &*op.domain {
        "" => Some(&SIMPLIFIED).filter(|row| *op.name == *row.name),
        MICROSOFT_DOMAIN => {
            let i = ROWS.binary_search_by(|row| row.name.cmp(&op.name)).ok()?;
            Some(&ROWS[i])
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_not_in_the_catalogue() {
        assert!(ROWS.is_sorted_by_key(|row| row.name));
        for row in ROWS {
            assert!(devbay_ops::find(MICROSOFT_DOMAIN, row.name).is_none(), "{}", row.name);
        }
    }
}
