//! What changed in ONNX's ops, and the versions of them that programs hold.
//!
//! Source: the schemas of onnx 1.23.2, version by version.

use super::Rewriting;
use super::rewrites::*;
use devbay_core::Result;
use devbay_core::program::Node;

/// The versions that programs hold, sorted by name. To be replaced by the catalogue's.
#[rustfmt::skip]
const TARGETS: &[(&str, u32)] = &[
    ("Abs", 13), ("Add", 14), ("And", 7), ("ArgMax", 13), ("ArgMin", 13), ("AveragePool", 19),
    ("BatchNormalization", 15), ("Cast", 19), ("Ceil", 13), ("Clip", 13), ("Concat", 13),
    ("ConstantOfShape", 21), ("Conv", 11), ("ConvInteger", 10), ("ConvTranspose", 11),
    ("DequantizeLinear", 13), ("Div", 14), ("Dropout", 13), ("DynamicQuantizeLinear", 11), ("Equal", 19),
    ("Erf", 13), ("Exp", 13), ("Expand", 13), ("Flatten", 13), ("Floor", 13), ("GRU", 14), ("Gather", 13),
    ("GatherElements", 13), ("Gemm", 13), ("GlobalAveragePool", 1), ("GlobalMaxPool", 1), ("Greater", 13),
    ("GreaterOrEqual", 16), ("HardSigmoid", 6), ("HardSwish", 14), ("Identity", 13), ("If", 13),
    ("LSTM", 14), ("LayerNormalization", 17), ("LeakyRelu", 16), ("Less", 13), ("LessOrEqual", 16),
    ("Log", 13), ("LogSoftmax", 13), ("Loop", 13), ("MatMul", 13), ("MatMulInteger", 10), ("Max", 13),
    ("MaxPool", 12), ("Mean", 13), ("Min", 13), ("Mul", 14), ("Neg", 13), ("NonZero", 13), ("Not", 1),
    ("OneHot", 11), ("Or", 7), ("Pad", 21), ("Pow", 15), ("QLinearConv", 10), ("QLinearMatMul", 10),
    ("QuantizeLinear", 13), ("RNN", 14), ("Range", 11), ("Reciprocal", 13), ("ReduceL1", 18),
    ("ReduceL2", 18), ("ReduceLogSum", 18), ("ReduceLogSumExp", 18), ("ReduceMax", 20), ("ReduceMean", 18),
    ("ReduceMin", 20), ("ReduceProd", 18), ("ReduceSum", 13), ("ReduceSumSquare", 18), ("Relu", 14),
    ("Reshape", 14), ("Resize", 19), ("STFT", 17), ("Scan", 11), ("ScatterElements", 18), ("Shape", 15),
    ("Sigmoid", 13), ("Size", 13), ("Slice", 13), ("Softmax", 13), ("Split", 18), ("Sqrt", 13),
    ("Squeeze", 13), ("Sub", 14), ("Sum", 13), ("Tanh", 13), ("Tile", 13), ("Transpose", 21),
    ("Unsqueeze", 13), ("Where", 16), ("Xor", 7),
];

/// The version of an op that programs hold; None if it is not in the catalogue.
pub(super) fn target(op: &str) -> Option<u32> {
    let i = TARGETS.binary_search_by_key(&op, |(name, _)| name).ok()?;
    Some(TARGETS[i].1)
}

/// Something that changed in an op's meaning.
pub(super) struct Change {
    /// The op.
    pub(super) op: &'static str,
    /// The version with which it came.
    pub(super) version: u32,
    /// How a node of an older version becomes one of this version.
    pub(super) up: Up,
    /// Which nodes of this version may become ones of an older version.
    pub(super) down: Down,
}

/// How a node goes up over a change.
pub(super) enum Up {
    /// It stays as it is: what is new is optional.
    Same,
    /// It is rewritten, or stays below if the function cannot.
    Rewrite(fn(&mut Rewriting<'_>) -> Result<Step>),
    /// There is no way.
    Never,
}

/// Which nodes go down over a change.
pub(super) enum Down {
    /// None.
    Never,
    /// Those whose new attributes are absent or have these values, which go.
    Attrs(&'static [(&'static str, Old)]),
    /// Those without the new operand.
    NoInput(usize),
    /// Those that use nothing new.
    If(fn(&Node) -> bool),
    /// Those that the function rewrites.
    Rewrite(fn(&mut Node)),
}

/// The value of a new attribute that means what was before.
pub(super) enum Old {
    Int(i64),
    Text(&'static str),
    /// None: only its absence does.
    Absent,
    /// Any: it matters to nothing that devbay has.
    Any,
}

/// What a rewriting function did.
#[derive(PartialEq, Eq)]
pub(super) enum Step {
    /// The node has the new meaning.
    Done,
    /// Nothing: the node cannot have it.
    Stay,
}

const fn change(op: &'static str, version: u32, up: Up, down: Down) -> Change {
    Change { op, version, up, down }
}

/// By op, oldest first.
pub(super) const CHANGES: &[Change] = &[
    change("ArgMax", 12, Up::Same, Down::Attrs(&[("select_last_index", Old::Int(0))])),
    change("ArgMin", 12, Up::Same, Down::Attrs(&[("select_last_index", Old::Int(0))])),
    change("Attention", 24, Up::Same, Down::NoInput(6)),
    change("Attention", 25, Up::Same, Down::Attrs(WINDOW_ATTRS)),
    change("AveragePool", 10, Up::Same, Down::Attrs(&[("ceil_mode", Old::Int(0))])),
    change("AveragePool", 19, Up::Same, Down::Attrs(&[("dilations", Old::Absent)])),
    change("BatchNormalization", 9, Up::Rewrite(batch_normalization_spatial), Down::Never),
    change("BatchNormalization", 14, Up::Rewrite(batch_normalization_results), Down::Never),
    change("Cast", 19, Up::Same, Down::Attrs(&[("saturate", Old::Any)])),
    change("Cast", 24, Up::Same, Down::Attrs(&[("round_mode", Old::Any)])),
    change("CastLike", 19, Up::Same, Down::Attrs(&[("saturate", Old::Any)])),
    change("CastLike", 24, Up::Same, Down::Attrs(&[("round_mode", Old::Any)])),
    change("Clip", 11, Up::Rewrite(clip_bounds), Down::Never),
    change("DFT", 20, Up::Rewrite(dft_axis), Down::Never),
    change("DepthToSpace", 11, Up::Same, Down::Attrs(&[("mode", Old::Text("DCR"))])),
    change("DequantizeLinear", 13, Up::Same, Down::Never),
    change("DequantizeLinear", 21, Up::Same, Down::Attrs(&[("block_size", Old::Int(0))])),
    change("DequantizeLinear", 23, Up::Same, Down::Attrs(&[("output_dtype", Old::Int(0))])),
    change("Dropout", 10, Up::Rewrite(dropout_mask), Down::Never),
    change("Dropout", 12, Up::Rewrite(dropout_ratio), Down::Never),
    change("GRU", 14, Up::Same, Down::Attrs(&[("layout", Old::Int(0))])),
    change("GatherND", 12, Up::Same, Down::Attrs(&[("batch_dims", Old::Int(0))])),
    change("Gemm", 11, Up::Same, Down::If(|node| node.input(2).is_some())),
    change("GridSample", 20, Up::Rewrite(grid_sample_mode), Down::Rewrite(grid_sample_old_mode)),
    change("GroupNormalization", 21, Up::Never, Down::Never),
    change("Hardmax", 13, Up::Rewrite(coerced_to_matrix), Down::Never),
    change("LSTM", 14, Up::Same, Down::Attrs(&[("layout", Old::Int(0))])),
    change("LogSoftmax", 13, Up::Rewrite(coerced_to_matrix), Down::Never),
    change("LpPool", 18, Up::Same, Down::Attrs(POOL_ATTRS)),
    change("MaxPool", 10, Up::Same, Down::Attrs(POOL_ATTRS)),
    change("Mod", 28, Up::Same, Down::If(|node| node.int("fmod", 0) == 1)),
    change("Pad", 11, Up::Rewrite(pad_operands), Down::Never),
    change("Pad", 18, Up::Same, Down::NoInput(3)),
    change("Pad", 19, Up::Same, Down::If(|node| node.string("mode", "") != "wrap")),
    change("QuantizeLinear", 13, Up::Same, Down::Never),
    change("QuantizeLinear", 19, Up::Same, Down::Attrs(&[("saturate", Old::Any)])),
    change("QuantizeLinear", 21, Up::Same, Down::Attrs(BLOCK_ATTRS)),
    change("QuantizeLinear", 23, Up::Same, Down::Attrs(&[("precision", Old::Int(0))])),
    change("RNN", 14, Up::Same, Down::Attrs(&[("layout", Old::Int(0))])),
    // Kernels add up half-precision ranges in f32 in any case.
    change("Range", 27, Up::Same, Down::Attrs(&[("stash_type", Old::Any)])),
    change("ReduceL1", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceL2", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceLogSum", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceLogSumExp", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceMax", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceMean", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceMin", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceProd", 18, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceSum", 13, Up::Rewrite(axes_operand), Down::Never),
    change("ReduceSumSquare", 18, Up::Rewrite(axes_operand), Down::Never),
    change("Reshape", 14, Up::Same, Down::Attrs(&[("allowzero", Old::Int(0))])),
    change("Resize", 11, Up::Rewrite(resize_modes), Down::Never),
    change("Resize", 13, Up::Rewrite(resize_operands), Down::Never),
    change("Resize", 18, Up::Same, Down::Attrs(RESIZE_ATTRS)),
    change("Resize", 19, Up::Same, Down::If(|node| coordinate_mode(node) != "half_pixel_symmetric")),
    change("RoiAlign", 16, Up::Rewrite(roi_align_mode), Down::Attrs(ROI_ALIGN_ATTRS)),
    // Version 8 scans batches, along another axis.
    change("Scan", 9, Up::Never, Down::Never),
    change("ScatterElements", 16, Up::Same, Down::Attrs(&[("reduction", Old::Text("none"))])),
    change("ScatterElements", 18, Up::Same, Down::If(is_old_reduction)),
    change("ScatterND", 16, Up::Same, Down::Attrs(&[("reduction", Old::Text("none"))])),
    change("ScatterND", 18, Up::Same, Down::If(is_old_reduction)),
    change("Shape", 15, Up::Same, Down::Attrs(&[("start", Old::Int(0)), ("end", Old::Absent)])),
    change("Slice", 10, Up::Rewrite(slice_operands), Down::Never),
    change("Softmax", 13, Up::Rewrite(coerced_to_matrix), Down::Never),
    change("SpaceToDepth", 28, Up::Same, Down::Attrs(&[("mode", Old::Text("DCR"))])),
    change("Split", 13, Up::Rewrite(split_operand), Down::Never),
    change("Split", 18, Up::Rewrite(split_count), Down::Never),
    change("Squeeze", 13, Up::Rewrite(axes_operand), Down::Never),
    change("TopK", 10, Up::Rewrite(top_k_operand), Down::Never),
    change("TopK", 11, Up::Same, Down::Attrs(&[("largest", Old::Int(1)), ("sorted", Old::Int(1))])),
    change("Unsqueeze", 13, Up::Rewrite(axes_operand), Down::Never),
];

const POOL_ATTRS: &[(&str, Old)] = &[("ceil_mode", Old::Int(0)), ("dilations", Old::Absent)];
const BLOCK_ATTRS: &[(&str, Old)] = &[("block_size", Old::Int(0)), ("output_dtype", Old::Int(0))];
const WINDOW_ATTRS: &[(&str, Old)] =
    &[("left_window_size", Old::Int(-1)), ("right_window_size", Old::Int(-1))];
const ROI_ALIGN_ATTRS: &[(&str, Old)] = &[("coordinate_transformation_mode", Old::Text("output_half_pixel"))];
const RESIZE_ATTRS: &[(&str, Old)] =
    &[("antialias", Old::Int(0)), ("axes", Old::Absent), ("keep_aspect_ratio_policy", Old::Text("stretch"))];

#[cfg(test)]
mod tests {
    use super::super::since_version;
    use super::*;

    /// Whether a definition of the op appeared in this version.
    fn is_version(op: &str, version: u32) -> bool {
        since_version(op, version) == Some(version)
    }

    #[test]
    fn tables_name_versions_that_there_are() {
        assert!(TARGETS.is_sorted_by_key(|(name, _)| name));
        for (op, version) in TARGETS {
            assert!(is_version(op, *version), "{op} has no version {version}");
        }
        assert!(CHANGES.is_sorted_by_key(|change| (change.op, change.version)));
        for change in CHANGES {
            assert!(is_version(change.op, change.version), "{} has no version {}", change.op, change.version);
        }
    }
}
