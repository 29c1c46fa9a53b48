//! The op catalogue: which ops a program may hold, in which version, and what the host needs to know of
//! them.
//!
//! A program knows one version per op, [`OpDef::version`]. Import lifts older definitions to it, those from
//! [`OpDef::lifts_since`] on by leaving the node as it is. Versions from [`OpDef::same_since`] on differ from
//! it only in the element types that they allow, so a kernel that declares any of them implements the node
//! if it takes its types. What only concerns types that came with it counts as types: `saturate` and
//! `round_mode` of Cast and QuantizeLinear are about floats of 8 bits, Range's `stash_type` about those of 16,
//! and Mod 28 allows floats with `fmod` 0, where older kernels must refuse them.
//!
//! The version is ONNX's newest, unless that says more than the kernels that we know can do: then it is the
//! newest that they can, and [`lower`] refuses what goes beyond it.

use super::infer::{InferFn, functions::*};
use super::onnx_versions::versions;
use super::{AttrValue, DEVBAY_DOMAIN, Node, Op};
use crate::error::{Error, ErrorKind, Result};
use devbay_ops::AttributeType;

/// Who runs an op.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpKind {
    /// A kernel of a device.
    Kernel,
    /// Nobody: the result is the first input's bytes with another shape.
    View,
    /// The host, from the input's type alone: Shape and Size.
    Query,
    /// The host: If, Loop, Scan.
    Control,
}

/// One op.
pub struct OpDef {
    /// Domain; empty for ONNX's own.
    pub domain: &'static str,
    /// Name.
    pub name: &'static str,
    /// The version that programs hold.
    pub version: u32,
    /// Oldest version that differs from it in element types alone.
    pub same_since: u32,
    /// Oldest version whose nodes are nodes of `version` as they stand: what came in between was added, with
    /// defaults that keep the old meaning, or made clear.
    pub lifts_since: u32,
    /// Who runs it.
    pub kind: OpKind,
    /// Whether the same inputs always give the same result, so that it may be folded. False for control
    /// flow, whose results depend on its regions and what they capture.
    pub pure: bool,
    /// Types of the results.
    pub infer: InferFn,
}

impl OpDef {
    /// The op, as nodes have it.
    pub fn op(&self) -> Op {
        Op { domain: self.domain.into(), name: self.name.into(), version: self.version }
    }
}

/// The definition of an op; None if programs do not hold it.
pub fn find(domain: &str, name: &str) -> Option<&'static OpDef> {
    let ops = match domain {
        "" => ONNX,
        DEVBAY_DOMAIN => DEVBAY,
        _ => return None,
    };
    let i = ops.binary_search_by_key(&name, |def| def.name).ok()?;
    Some(&ops[i])
}

/// Checks that a node has the operands and attributes of its op: those that are required, no more operands than there are, and
/// each attribute of the op's type. Attributes that the op has not may be anything, and nodes of other ops than the
/// catalogue's may have any operands.
///
/// # Errors
/// [`ErrorKind::InvalidModel`].
pub fn check_signature(node: &Node) -> Result<()> {
    let Some(row) = devbay_ops::find(&node.op.domain, &node.op.name) else {
        return Ok(());
    };
    let invalid = |fault: String| Error::new(ErrorKind::InvalidModel, fault);
    row.check(&node.inputs, &node.outputs).map_err(|fault| invalid(fault.to_string()))?;
    let attributes = node.attrs.iter().map(|(name, value)| (&**name, value.ty()));
    let graphs = node.regions.iter().map(|(name, _)| (&**name, AttributeType::Graph));
    row.attributes.check(attributes.chain(graphs)).map_err(|fault| invalid(fault.to_string()))
}

/// Whether a kernel that declares the version `kernel_since` of an op implements its nodes, if it takes their
/// types. Kernels of later versions do, as far as those are known: they only add to the catalogue's.
pub fn accepts(def: &OpDef, kernel_since: u32) -> bool {
    let exists = match def.domain {
        "" => versions(def.name).is_some_and(|known| known.contains(&kernel_since)),
        _ => kernel_since <= def.version,
    };
    exists && def.same_since <= kernel_since
}

/// What versions after the oldest that kernels may have added: op, attribute, the version that it came with, and
/// the value that changes nothing. Of an attribute that is not in the catalogue's version, nothing else can be said.
const ADDED: &[(&str, &str, u32, Added)] = &[
    ("DequantizeLinear", "block_size", 21, Added::Zero),
    ("DequantizeLinear", "output_dtype", 23, Added::Zero),
    ("QuantizeLinear", "block_size", 21, Added::Zero),
    ("QuantizeLinear", "output_dtype", 21, Added::ZeroOrInput(2)),
    ("QuantizeLinear", "precision", 23, Added::Zero),
    ("SpaceToDepth", "mode", 28, Added::Text("DCR")),
];

/// The value of an attribute that changes nothing.
enum Added {
    Zero,
    /// Zero, or anything if this input is there: it says the same.
    ZeroOrInput(usize),
    /// This word.
    Text(&'static str),
}

impl Added {
    /// Whether a node says no more than it would without the attribute.
    fn changes_nothing(&self, node: &Node, name: &str) -> bool {
        match (node.attr(name), self) {
            (None | Some(AttrValue::Int(0)), Self::Zero | Self::ZeroOrInput(_)) => true,
            (Some(AttrValue::Int(_)), Self::ZeroOrInput(i)) => node.input(*i).is_some(),
            (Some(AttrValue::String(text)), Self::Text(default)) => text == default,
            (found, _) => found.is_none(),
        }
    }
}

/// The oldest version of a kernel that can know what the node says, as far as its attributes are concerned.
pub fn oldest_kernel(node: &Node) -> u32 {
    let says = |(op, name, _, added): &&(&str, &str, u32, Added)| {
        node.op.is(op) && !added.changes_nothing(node, name)
    };
    ADDED.iter().filter(says).map(|(_, _, since, _)| *since).max().unwrap_or(0)
}

/// Makes a node of a later version than the catalogue's one of the catalogue's, and one that older kernels take if
/// they can, by dropping attributes that came later and change nothing. Leaves nodes of other versions as they are.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`] if the node says what the catalogue's version cannot say.
pub fn lower(node: &mut Node) -> Result<()> {
    for (op, name, since, added) in ADDED {
        if !node.op.is(op) {
            continue;
        }
        if added.changes_nothing(node, name) {
            node.take_attr(name);
        } else if find("", op).is_some_and(|def| def.version < *since) {
            return Err(Error::new(
                ErrorKind::UnsupportedModel,
                format!("expected {} without the attribute {name}, which came later, found one", node.op),
            ));
        }
    }
    Ok(())
}

/// An op of ONNX's that a kernel runs, with `[version, same_since, lifts_since]`.
const fn kernel(name: &'static str, versions: [u32; 3], infer: InferFn) -> OpDef {
    let [version, same_since, lifts_since] = versions;
    OpDef { domain: "", name, version, same_since, lifts_since, kind: OpKind::Kernel, pure: true, infer }
}

const fn view(name: &'static str, versions: [u32; 3], infer: InferFn) -> OpDef {
    OpDef { kind: OpKind::View, ..kernel(name, versions, infer) }
}

const fn query(name: &'static str, versions: [u32; 3], infer: InferFn) -> OpDef {
    OpDef { kind: OpKind::Query, ..kernel(name, versions, infer) }
}

const fn control(name: &'static str, versions: [u32; 3], infer: InferFn) -> OpDef {
    OpDef { kind: OpKind::Control, pure: false, ..kernel(name, versions, infer) }
}

/// An op of devbay's own, in its only version.
const fn fused(name: &'static str, infer: InferFn) -> OpDef {
    OpDef { domain: DEVBAY_DOMAIN, ..kernel(name, [1, 1, 1], infer) }
}

/// devbay's own ops, sorted by name: what passes make of several nodes (docs/fused-ops.md). Convolutions and products
/// take the attributes `activation` (a name: empty, Relu, LeakyRelu, Clip, HardSigmoid, HardSwish, Sigmoid, Tanh, Silu)
/// and `activation_params` (its numbers).
const DEVBAY: &[OpDef] = &[
    // Conv with X, W, B?, Z?: Z has the result's shape and is added before the activation.
    fused("FusedConv", fused_conv),
    // Elementwise ops one after the other.
    fused("FusedElementwise", fused_elementwise),
    // Gemm with A, B, C?.
    fused("FusedGemm", fused_gemm),
    // MatMul with A, B and a bias of the last dimension?.
    fused("FusedMatMul", fused_matmul),
];

/// ONNX's ops, sorted by name.
const ONNX: &[OpDef] = &[
    kernel("Abs", [13, 6, 6], same),
    kernel("Acos", [22, 7, 7], same),
    kernel("Acosh", [22, 9, 9], same),
    kernel("Add", [14, 7, 7], arithmetic),
    kernel("AffineGrid", [20, 20, 20], affine_grid),
    kernel("And", [7, 7, 7], logical),
    kernel("ArgMax", [13, 12, 1], arg),
    kernel("ArgMin", [13, 12, 1], arg),
    kernel("Asin", [22, 7, 7], same),
    kernel("Asinh", [22, 9, 9], same),
    kernel("Atan", [22, 7, 7], same),
    kernel("Atanh", [22, 9, 9], same),
    kernel("Attention", [25, 25, 23], attention),
    kernel("AveragePool", [22, 19, 7], pool),
    kernel("BatchNormalization", [15, 14, 9], batch_normalization),
    view("BitCast", [26, 26, 26], bit_cast),
    kernel("BitShift", [28, 28, 11], arithmetic),
    kernel("BitwiseAnd", [18, 18, 18], arithmetic),
    kernel("BitwiseNot", [18, 18, 18], same),
    kernel("BitwiseOr", [18, 18, 18], arithmetic),
    kernel("BitwiseXor", [18, 18, 18], arithmetic),
    kernel("BlackmanWindow", [17, 17, 17], window),
    kernel("Cast", [28, 13, 6], cast),
    kernel("CastLike", [25, 15, 15], cast_like),
    kernel("CausalConvWithState", [27, 27, 27], causal_conv),
    kernel("Ceil", [13, 6, 6], same),
    kernel("Celu", [28, 12, 12], same),
    kernel("CenterCropPad", [18, 18, 18], center_crop_pad),
    kernel("Clip", [13, 13, 11], clip),
    kernel("Col2Im", [18, 18, 18], col2im),
    kernel("Compress", [28, 11, 9], compress),
    kernel("Concat", [13, 11, 4], concat),
    kernel("ConstantOfShape", [25, 9, 9], constant_of_shape),
    kernel("Conv", [22, 11, 1], conv),
    kernel("ConvInteger", [10, 10, 10], conv_integer),
    kernel("ConvTranspose", [22, 11, 1], conv_transpose),
    kernel("Cos", [22, 7, 7], same),
    kernel("Cosh", [22, 9, 9], same),
    kernel("CumProd", [26, 26, 26], cumulative),
    kernel("CumSum", [14, 11, 11], cumulative),
    kernel("DFT", [20, 20, 20], dft),
    kernel("DeformConv", [22, 19, 19], deform_conv),
    kernel("DepthToSpace", [28, 11, 1], depth_to_space),
    kernel("DequantizeLinear", [28, 13, 10], dequantize),
    kernel("Det", [22, 11, 11], det),
    kernel("Div", [14, 7, 7], arithmetic),
    kernel("Dropout", [22, 12, 12], dropout),
    kernel("DynamicQuantizeLinear", [11, 11, 11], dynamic_quantize),
    kernel("Einsum", [28, 12, 12], einsum),
    kernel("Elu", [22, 6, 6], same),
    kernel("Equal", [19, 7, 7], compare),
    kernel("Erf", [13, 9, 9], same),
    kernel("Exp", [13, 6, 6], same),
    kernel("Expand", [13, 8, 8], expand),
    kernel("EyeLike", [22, 9, 9], eye_like),
    view("Flatten", [25, 11, 1], flatten),
    kernel("Floor", [13, 6, 6], same),
    kernel("GRU", [22, 14, 7], gru),
    kernel("Gather", [13, 11, 1], gather),
    kernel("GatherElements", [13, 11, 11], gather_elements),
    kernel("GatherND", [13, 12, 11], gather_nd),
    kernel("Gelu", [20, 20, 20], same),
    kernel("Gemm", [13, 11, 7], gemm),
    kernel("GlobalAveragePool", [22, 1, 1], global_pool),
    kernel("GlobalLpPool", [22, 2, 2], global_pool),
    kernel("GlobalMaxPool", [22, 1, 1], global_pool),
    kernel("Greater", [13, 7, 7], compare),
    kernel("GreaterOrEqual", [16, 12, 12], compare),
    kernel("GridSample", [22, 20, 20], grid_sample),
    kernel("GroupNormalization", [21, 21, 21], group_normalization),
    kernel("HammingWindow", [17, 17, 17], window),
    kernel("HannWindow", [17, 17, 17], window),
    kernel("HardSigmoid", [22, 6, 6], same),
    kernel("HardSwish", [22, 14, 14], same),
    kernel("Hardmax", [13, 13, 13], along_axis),
    view("Identity", [25, 1, 1], same),
    control("If", [25, 11, 1], needs_regions),
    kernel("InstanceNormalization", [22, 6, 6], instance_normalization),
    kernel("IsInf", [20, 10, 10], bool_of),
    kernel("IsNaN", [20, 9, 9], bool_of),
    kernel("LRN", [13, 1, 1], same),
    kernel("LSTM", [22, 14, 7], lstm),
    kernel("LayerNormalization", [17, 17, 17], layer_normalization),
    kernel("LeakyRelu", [16, 6, 6], same),
    kernel("Less", [13, 7, 7], compare),
    kernel("LessOrEqual", [16, 12, 12], compare),
    kernel("LinearAttention", [27, 27, 27], linear_attention),
    kernel("Log", [13, 6, 6], same),
    kernel("LogSoftmax", [13, 13, 13], along_axis),
    control("Loop", [25, 11, 1], needs_regions),
    kernel("LpNormalization", [22, 1, 1], along_axis),
    kernel("LpPool", [22, 18, 2], pool),
    kernel("MatMul", [13, 1, 1], matmul),
    kernel("MatMulInteger", [10, 10, 10], matmul_integer),
    kernel("Max", [13, 8, 8], variadic),
    kernel("MaxPool", [22, 10, 1], max_pool),
    kernel("MaxUnpool", [22, 9, 9], max_unpool),
    kernel("Mean", [13, 8, 8], variadic),
    kernel("MeanVarianceNormalization", [13, 9, 9], mean_variance),
    kernel("MelWeightMatrix", [17, 17, 17], mel_weight_matrix),
    kernel("Min", [13, 8, 8], variadic),
    kernel("Mish", [22, 18, 18], same),
    kernel("Mod", [28, 10, 10], arithmetic),
    kernel("Mul", [14, 7, 7], arithmetic),
    kernel("Neg", [13, 6, 6], same),
    kernel("NegativeLogLikelihoodLoss", [22, 12, 12], negative_log_likelihood_loss),
    kernel("NonMaxSuppression", [11, 11, 10], non_max_suppression),
    kernel("NonZero", [13, 9, 9], non_zero),
    kernel("Not", [1, 1, 1], not),
    kernel("OneHot", [28, 11, 11], one_hot),
    kernel("Or", [7, 7, 7], logical),
    kernel("PRelu", [16, 7, 7], prelu),
    kernel("Pad", [25, 19, 11], pad),
    kernel("Pow", [15, 7, 7], binary_of_first),
    kernel("QLinearConv", [10, 10, 10], qlinear_conv),
    kernel("QLinearMatMul", [21, 10, 10], qlinear_matmul),
    kernel("QuantizeLinear", [28, 13, 10], quantize),
    kernel("RMSNormalization", [23, 23, 23], rms_normalization),
    kernel("RNN", [22, 14, 7], rnn),
    kernel("Range", [27, 11, 11], range),
    kernel("Reciprocal", [13, 6, 6], same),
    kernel("ReduceL1", [18, 18, 18], reduce),
    kernel("ReduceL2", [18, 18, 18], reduce),
    kernel("ReduceLogSum", [28, 18, 18], reduce),
    kernel("ReduceLogSumExp", [28, 18, 18], reduce),
    kernel("ReduceMax", [20, 18, 18], reduce),
    kernel("ReduceMean", [18, 18, 18], reduce),
    kernel("ReduceMin", [20, 18, 18], reduce),
    kernel("ReduceProd", [18, 18, 18], reduce),
    kernel("ReduceSum", [13, 13, 13], reduce),
    kernel("ReduceSumSquare", [18, 18, 18], reduce),
    kernel("Relu", [14, 6, 6], same),
    view("Reshape", [25, 14, 5], reshape),
    kernel("Resize", [19, 19, 11], resize),
    kernel("ReverseSequence", [28, 10, 10], same),
    kernel("RoiAlign", [22, 16, 16], roi_align),
    kernel("RotaryEmbedding", [23, 23, 23], same),
    kernel("Round", [22, 11, 11], same),
    kernel("STFT", [17, 17, 17], stft),
    control("Scan", [25, 11, 9], needs_regions),
    kernel("ScatterElements", [18, 18, 11], scatter_elements),
    kernel("ScatterND", [18, 18, 11], scatter_nd),
    kernel("Selu", [22, 6, 6], same),
    query("Shape", [25, 15, 1], shape),
    kernel("Shrink", [9, 9, 9], same),
    kernel("Sigmoid", [13, 6, 6], same),
    kernel("Sign", [13, 9, 9], same),
    kernel("Sin", [22, 7, 7], same),
    kernel("Sinh", [22, 9, 9], same),
    query("Size", [25, 1, 1], size),
    kernel("Slice", [13, 11, 10], slice),
    kernel("Softmax", [13, 13, 13], along_axis),
    kernel("SoftmaxCrossEntropyLoss", [13, 12, 12], softmax_cross_entropy_loss),
    kernel("Softplus", [22, 1, 1], same),
    kernel("Softsign", [22, 1, 1], same),
    kernel("SpaceToDepth", [28, 1, 1], space_to_depth),
    kernel("Split", [18, 18, 18], split),
    kernel("Sqrt", [13, 6, 6], same),
    view("Squeeze", [25, 13, 13], squeeze),
    kernel("Sub", [14, 7, 7], arithmetic),
    kernel("Sum", [13, 8, 8], variadic),
    kernel("SwiGLU", [28, 28, 28], same),
    kernel("Swish", [24, 24, 24], same),
    kernel("Tan", [22, 7, 7], same),
    kernel("Tanh", [13, 6, 6], same),
    kernel("TensorScatter", [24, 24, 24], tensor_scatter),
    kernel("TfIdfVectorizer", [9, 9, 9], tf_idf_vectorizer),
    kernel("ThresholdedRelu", [22, 10, 10], same),
    kernel("Tile", [13, 6, 6], tile),
    kernel("TopK", [24, 11, 10], top_k),
    kernel("Transpose", [25, 1, 1], transpose),
    kernel("Trilu", [14, 14, 14], trilu),
    kernel("Unique", [28, 11, 11], unique),
    view("Unsqueeze", [25, 13, 13], unsqueeze),
    kernel("Where", [16, 9, 9], where_),
    kernel("Xor", [7, 7, 7], logical),
];

/// All ops that programs may hold.
pub fn all() -> impl Iterator<Item = &'static OpDef> {
    ONNX.iter().chain(DEVBAY)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::ValueId;

    #[test]
    fn tables_are_sorted_for_binary_search() {
        for ops in [ONNX, DEVBAY] {
            assert!(ops.is_sorted_by(|a, b| a.name < b.name));
        }
        for def in all() {
            let found = find(def.domain, def.name).map(|def| def.name);
            assert_eq!(found, Some(def.name));
        }
        assert!(find("", "FusedConv").is_none());
        assert!(find("devbay", "Conv").is_none());
        assert!(find("ai.onnx.ml", "Normalizer").is_none());
    }

    /// The rows of `devbay-ops` are those of the catalogue, in its versions.
    #[test]
    fn operands_are_known_of_all_ops() {
        let rows: Vec<_> = devbay_ops::all().map(|row| (row.domain, row.name, row.version)).collect();
        let defs: Vec<_> = all().map(|def| (def.domain, def.name, def.version)).collect();
        assert_eq!(rows, defs);
    }

    /// Nodes are lifted as they stand from so early a version that their attributes must be those of the row by then.
    #[test]
    fn attributes_of_former_versions_are_those_of_the_rows() {
        let lines = include_str!("../../../ops/tests/onnx_attributes.txt").lines();
        let mut n_compared = 0;
        for line in lines.filter(|line| !line.starts_with('#')) {
            let (head, former) = line.split_once(':').expect("an op and its attributes");
            let (name, since) = head.split_once(' ').expect("a name and a version");
            let Some(def) = find("", name) else { continue };
            let since: u32 = since.parse().expect("a version");
            if since < def.lifts_since || since > def.version {
                continue;
            }
            let former: Vec<_> =
                former.split_ascii_whitespace().filter_map(|word| word.split_once(':')).collect();
            let row = devbay_ops::find("", name).expect("a row");
            for attribute in row.attributes.iter() {
                let found = former.iter().find(|(name, _)| *name == attribute.name);
                if let Some((_, ty)) = found {
                    let ty = ty.trim_end_matches('?');
                    assert_eq!(ty, attribute.ty.name(), "{name} {since} {}", attribute.name);
                    n_compared += 1;
                }
                let was_required = found.is_some_and(|(_, ty)| !ty.ends_with('?'));
                assert!(!attribute.is_required || was_required, "{name} {since} {}", attribute.name);
            }
        }
        assert!(n_compared > 300, "{n_compared}");
    }

    #[test]
    fn versions_are_onnx_versions() {
        for def in ONNX {
            let known = versions(def.name).unwrap_or_default();
            for version in [def.version, def.same_since, def.lifts_since] {
                assert!(known.contains(&version), "{} {version}", def.name);
            }
            assert!(def.lifts_since <= def.same_since, "{}", def.name);
            assert!(def.same_since <= def.version, "{}", def.name);
        }
    }

    /// When the table of versions is made anew, each op that has a new one fails here until somebody has read
    /// what changed.
    #[test]
    fn later_versions_have_been_read() {
        for def in ONNX {
            let newest = versions(def.name).and_then(<[u32]>::last);
            if newest != Some(&def.version) {
                let read = ADDED.iter().any(|(op, ..)| *op == def.name);
                assert!(read && newest == Some(&28), "{} {newest:?}", def.name);
            }
        }
    }

    #[test]
    fn nodes_of_later_versions() {
        // The version of the oldest kernel that knows what is said; 0 if it is dropped, None if it cannot be said.
        let check = |op: &str, n_inputs: u32, name: &str, value: AttrValue, oldest: Option<u32>| {
            let def = find("", op).expect("it is in the catalogue");
            let inputs = (0..n_inputs).map(|i| Some(ValueId(i))).collect();
            let mut node = Node::new(def.op(), inputs, Vec::new());
            node.set_attr("axis", AttrValue::Int(1));
            node.set_attr(name, value.clone());
            let lowered = lower(&mut node).is_ok().then(|| oldest_kernel(&node));
            assert_eq!(lowered, oldest, "{op} {name} {value:?}");
            assert!(node.attr("axis").is_some(), "{op} {name}");
            assert_eq!(node.attr(name).is_none(), oldest == Some(0), "{op} {name}");
        };
        check("QuantizeLinear", 3, "block_size", AttrValue::Int(0), Some(0));
        check("QuantizeLinear", 3, "block_size", AttrValue::Int(2), Some(21));
        check("QuantizeLinear", 3, "block_size", AttrValue::Float(2.0), Some(21));
        check("QuantizeLinear", 3, "output_dtype", AttrValue::Int(3), Some(0));
        check("QuantizeLinear", 2, "output_dtype", AttrValue::Int(3), Some(21));
        check("QuantizeLinear", 2, "output_dtype", AttrValue::Int(0), Some(0));
        check("QuantizeLinear", 3, "precision", AttrValue::Int(1), Some(23));
        check("DequantizeLinear", 3, "output_dtype", AttrValue::Int(10), Some(23));
        check("SpaceToDepth", 1, "mode", AttrValue::String("DCR".to_owned()), Some(0));
        check("SpaceToDepth", 1, "mode", AttrValue::String("CRD".to_owned()), Some(28));
        let mut other = Node::new(Op::onnx("DepthToSpace", 28), Vec::new(), Vec::new());
        other.set_attr("mode", AttrValue::String("CRD".to_owned()));
        assert!(lower(&mut other).is_ok() && other.attr("mode").is_some());
    }

    #[test]
    fn kernels_of_other_versions() {
        let check = |name, kernel_since, expected| {
            let def = find("", name).expect("it is in the catalogue");
            assert_eq!(accepts(def, kernel_since), expected, "{name} {kernel_since}");
        };
        check("Relu", 14, true);
        check("Relu", 13, true);
        check("Relu", 6, true);
        check("Relu", 1, false);
        // No version of Relu, or not yet.
        check("Relu", 12, false);
        check("Relu", 99, false);
        check("Relu", 0, false);
        check("Softmax", 11, false);
        check("Cast", 28, true);
        check("Cast", 9, false);
        // Later than the catalogue's: it does more.
        check("QuantizeLinear", 28, true);
        check("GroupNormalization", 18, false);
        let fused = find(DEVBAY_DOMAIN, "FusedConv").expect("it is in the catalogue");
        assert!(accepts(fused, 1) && !accepts(fused, 0) && !accepts(fused, 2));
    }

    /// The versions that devbay's own plugins declare.
    #[test]
    fn kernels_of_our_plugins() {
        let kernels = "
            Relu 14, LeakyRelu 16, Clip 13, Sigmoid 13, HardSigmoid 6, HardSwish 14, Tanh 13, Exp 13, Log 13,
            Sqrt 13, Reciprocal 13, Neg 13, Abs 13, Erf 13, Not 1, Gelu 20, Floor 13, Ceil 13, Round 11,
            Cast 19, Add 14, Sub 14, Mul 14, Div 14, Pow 15, Min 13, Max 13, Mod 13, And 7, Or 7, Xor 7,
            Equal 19, Less 13, Greater 13, LessOrEqual 16, GreaterOrEqual 16, Where 16, Sum 13, ReduceMean 18,
            ReduceSum 13, ReduceMax 20, ReduceMin 20, ReduceSumSquare 18, ReduceL1 18, ReduceL2 18,
            ReduceProd 18, ReduceLogSum 18, ReduceLogSumExp 18, ArgMax 13, ArgMin 13, Softmax 13,
            LogSoftmax 13, LayerNormalization 17, BatchNormalization 15, InstanceNormalization 6,
            GroupNormalization 21, Concat 13, Split 18, Slice 13, Transpose 21, Gather 13, GatherElements 13,
            ScatterElements 18, GatherND 13, ScatterND 18, Expand 13, Tile 13, Pad 21, ConstantOfShape 21,
            Range 11, OneHot 11, NonZero 13, CumSum 14, Trilu 14, DepthToSpace 13, SpaceToDepth 28, Resize 19,
            LSTM 14, GRU 14, RNN 14, STFT 17, DFT 20, DynamicQuantizeLinear 11, QuantizeLinear 13,
            DequantizeLinear 13, MatMulInteger 10, ConvInteger 10, Conv 11, ConvTranspose 11, MatMul 13,
            Gemm 13, MaxPool 12, AveragePool 19, GlobalAveragePool 1, GlobalMaxPool 1, TopK 11, Compress 11,
            ReverseSequence 10, NonMaxSuppression 11, GridSample 20, RoiAlign 16, Attention 25,
            RotaryEmbedding 23, LinearAttention 27, CausalConvWithState 27, SwiGLU 28, TensorScatter 24,
            NegativeLogLikelihoodLoss 12, SoftmaxCrossEntropyLoss 12, Einsum 12, Unique 11, TfIdfVectorizer 9,
            CenterCropPad 18, Col2Im 18, AffineGrid 20, DeformConv 19, Det 11, MaxUnpool 9, MelWeightMatrix 17, Dropout 12,
            EyeLike 9,
Acos 22, Acosh 22, Asin 22,
            Asinh 22, Atan 22, Atanh 22, Cos 22, Cosh 22, Sin 22, Sinh 22, Tan 22, Celu 28, Elu 22, Mish 22, Selu 22,
            Shrink 9, Sign 13, Softplus 22, Softsign 22, Swish 24, ThresholdedRelu 22, IsNaN 20, IsInf 20, Cast 25,
            CastLike 25, PRelu 16, BitwiseAnd 18, BitwiseOr 18, BitwiseXor 18, BitwiseNot 18, BitShift 28,
            Mean 13, CumProd 26, BlackmanWindow 17, HammingWindow 17, HannWindow 17, RMSNormalization 23,
            LpNormalization 22, LRN 13, MeanVarianceNormalization 13, Hardmax 13, LpPool 18, GlobalLpPool 2,
            QLinearMatMul 21, QLinearConv 10, QuantizeLinear 28, DequantizeLinear 28";
        for kernel in kernels.split(',') {
            let (name, since) = kernel.trim().split_once(' ').expect("a name and a version");
            let def = find("", name).unwrap_or_else(|| panic!("{name} is not in the catalogue"));
            let since = since.parse().expect("a version");
            assert!(accepts(def, since), "{name} {since}");
            assert_eq!(def.kind, OpKind::Kernel, "{name}");
        }
    }
}
