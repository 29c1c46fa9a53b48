//! Functions that express the ops.

use super::builder::{Builder, Value};
use super::node::Node;
use super::{
    conv, einsum, elementwise, formula, index, layout, linear, normalize, pool, quantised, random, recurrent,
    reduce, resize,
};
use devbay_plugin_api::sdk::Result;

/// The function of an op: it writes what the node says and gives the results, whose types are compared with the graph's.
pub(super) enum Emission {
    /// One result.
    One(for<'g> fn(&Node<'g>, &mut Builder<'g>) -> Result<Value>),
    /// A result for each output that is asked for, up to the last of them.
    Many(for<'g> fn(&Node<'g>, &mut Builder<'g>) -> Result<Vec<Value>>),
}

/// The function of an op, in any of its versions.
pub(super) fn emission(domain: &str, op: &str) -> Option<Emission> {
    use Emission::{Many, One};
    if domain == "devbay" && op == "Philox" {
        return Some(One(random::philox));
    }
    if !domain.is_empty() {
        return formula::is_formula(domain, op).then_some(One(formula::by_formula));
    }
    Some(match op {
        "BitCast" => One(elementwise::bit_cast),
        "BitShift" => One(elementwise::bit_shift),
        "Mod" => One(elementwise::modulo),
        "Pow" => One(elementwise::pow),
        "Max" | "Min" | "Sum" | "Mean" => One(elementwise::variadic),
        "Where" => One(elementwise::select),
        "Cast" | "CastLike" => One(elementwise::cast),
        "Clip" => One(elementwise::clip),
        "PRelu" => One(elementwise::prelu),
        "Identity" => One(elementwise::identity),
        "Dropout" => Many(elementwise::dropout),

        "MatMul" => One(linear::matmul),
        "Gemm" => One(linear::gemm),
        "Einsum" => One(einsum::einsum),

        "Conv" => One(conv::conv),
        "ConvTranspose" => One(conv::conv_transpose),

        "MaxPool" => One(pool::max_pool),
        "AveragePool" => One(pool::average_pool),
        "LpPool" | "GlobalLpPool" => One(pool::lp_pool),
        "GlobalAveragePool" | "GlobalMaxPool" => One(pool::global_pool),

        "Flatten" | "Reshape" | "Squeeze" | "Unsqueeze" => One(layout::reshape),
        "Transpose" => One(layout::transpose),
        "Expand" => One(layout::expand),
        "Tile" => One(layout::tile),
        "Concat" => One(layout::concat),
        "Split" => Many(layout::split),
        "Slice" => One(layout::slice),
        "Pad" => One(layout::pad),
        "DepthToSpace" | "SpaceToDepth" => One(layout::depth_and_space),
        "Trilu" => One(layout::trilu),
        "Shape" => One(layout::shape),
        "Size" => One(layout::size),
        "Constant" => One(layout::constant),
        "ConstantOfShape" => One(layout::constant_of_shape),
        "Range" => One(layout::range),
        "EyeLike" => One(layout::eye_like),

        "ReduceL1" | "ReduceL2" | "ReduceLogSum" | "ReduceLogSumExp" | "ReduceMax" | "ReduceMean"
        | "ReduceMin" | "ReduceProd" | "ReduceSum" | "ReduceSumSquare" => One(reduce::reduce),
        "ArgMax" | "ArgMin" => One(reduce::arg),
        "CumSum" => One(reduce::cumulative_sum),
        "TopK" => Many(reduce::top_k),

        "Softmax" | "LogSoftmax" | "Hardmax" => One(normalize::softmax),
        "BatchNormalization" => One(normalize::batch),
        "InstanceNormalization" => One(normalize::instance),
        "GroupNormalization" => One(normalize::group),
        "LayerNormalization" => Many(normalize::layer),
        "RMSNormalization" => One(normalize::root_mean_square),
        "MeanVarianceNormalization" => One(normalize::mean_variance),
        "LpNormalization" => One(normalize::lp),
        "LRN" => One(normalize::local_response),

        "Gather" => One(index::gather_axis),
        "GatherElements" => One(index::gather_elements),
        "GatherND" => One(index::gather_nd),
        "Scatter" | "ScatterElements" => One(index::scatter_elements),
        "ScatterND" => One(index::scatter_nd),
        "OneHot" => One(index::one_hot),
        "ReverseSequence" => One(index::reverse_sequence),

        "Resize" | "Upsample" => One(resize::resize),

        "GRU" | "LSTM" | "RNN" => Many(recurrent::recurrent),

        "QuantizeLinear" => One(quantised::quantize),
        "DequantizeLinear" => One(quantised::dequantize),
        "DynamicQuantizeLinear" => Many(quantised::quantize_by_range),
        "MatMulInteger" => One(quantised::matmul_integer),
        "ConvInteger" => One(quantised::conv_integer),
        op if formula::is_formula(domain, op) => One(formula::by_formula),
        _ => return None,
    })
}
