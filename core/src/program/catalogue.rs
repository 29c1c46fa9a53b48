//! The op catalogue: the ops that a program may hold, their versions, and the host's knowledge of them.
//!
//! A program knows one version per op, [`OpRow::version`]. Import lifts older definitions to it, those from
//! [`OpRow::lifts_since`] on by leaving the node as it is. Versions from [`OpRow::same_since`] on differ from
//! it only in the element types that they allow, so a kernel that declares any of them implements the node
//! if it takes its types. Attributes that only concern such new types count as types: `saturate` and
//! `round_mode` of Cast and QuantizeLinear are about floats of 8 bits, Range's `stash_type` about those of 16,
//! and Mod 28 allows floats with `fmod` 0, where older kernels must refuse them.
//!
//! The version is ONNX's newest, unless that can express more than the known kernels can do. Then it is the
//! newest that they can, and [`lower`] refuses nodes beyond it.

use super::onnx_versions::versions;
use super::{AttrValue, Node};
use crate::error::{Error, ErrorKind, Result};
pub use devbay_ops::{AttributeType, OpKind, OpRow, all, find};

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

/// Returns whether a kernel that declares the version `kernel_since` of an op implements its nodes, if it takes their
/// types. Kernels of later versions do, as far as those are known: they only add to the catalogue's.
pub fn accepts(def: &OpRow, kernel_since: u32) -> bool {
    let exists = match def.domain {
        "" => versions(def.name).is_some_and(|known| known.contains(&kernel_since)),
        _ => kernel_since <= def.version,
    };
    exists && def.same_since <= kernel_since
}

/// Attributes added by versions after the oldest that kernels may have: op, attribute, the version that it came with,
/// and the value that changes nothing. Of an attribute that is not in the catalogue's version, nothing else can be said.
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
    /// Returns whether a node says no more than it would without the attribute.
    fn changes_nothing(&self, node: &Node, name: &str) -> bool {
        match (node.attr(name), self) {
            (None | Some(AttrValue::Int(0)), Self::Zero | Self::ZeroOrInput(_)) => true,
            (Some(AttrValue::Int(_)), Self::ZeroOrInput(i)) => node.input(*i).is_some(),
            (Some(AttrValue::String(text)), Self::Text(default)) => text == default,
            (found, _) => found.is_none(),
        }
    }
}

/// Returns the oldest version of a kernel that may support the node, judged by its attributes.
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
/// [`ErrorKind::UnsupportedModel`] if the catalogue's version cannot express the node.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{DEVBAY_DOMAIN, Op, ValueId};

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
                    let ty = ty.trim_end_matches('?').split('=').next().unwrap_or_default();
                    assert_eq!(ty, attribute.ty.name(), "{name} {since} {}", attribute.name);
                    n_compared += 1;
                }
                let was_required = found.is_some_and(|(_, ty)| !ty.contains(['?', '=']));
                assert!(!attribute.is_required || was_required, "{name} {since} {}", attribute.name);
            }
        }
        assert!(n_compared > 300, "{n_compared}");
    }

    #[test]
    fn versions_are_onnx_versions() {
        for def in all().filter(|def| def.domain.is_empty()) {
            let known = versions(def.name).unwrap_or_default();
            for version in [def.version, def.same_since, def.lifts_since] {
                assert!(known.contains(&version), "{} {version}", def.name);
            }
            assert!(def.lifts_since <= def.same_since, "{}", def.name);
            assert!(def.same_since <= def.version, "{}", def.name);
        }
    }

    /// When the table of versions is regenerated, each op with a new version fails here until its changes have been
    /// reviewed.
    #[test]
    fn later_versions_have_been_read() {
        for def in all().filter(|def| def.domain.is_empty()) {
            let newest = versions(def.name).and_then(<[u32]>::last);
            if newest != Some(&def.version) {
                let read = ADDED.iter().any(|(op, ..)| *op == def.name);
                assert!(read && newest == Some(&28), "{} {newest:?}", def.name);
            }
        }
    }

    #[test]
    fn nodes_of_later_versions() {
        // The version of the oldest kernel that can express the attribute; 0 if it is dropped, None if none can.
        let check = |op: &str, n_inputs: u32, name: &str, value: AttrValue, oldest: Option<u32>| {
            let def = find("", op).expect("it is in the catalogue");
            let inputs = (0..n_inputs).map(|i| Some(ValueId(i))).collect();
            let mut node = Node::new(Op::of(def), inputs, Vec::new());
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

    /// The versions that devbay's own plugins declare, of ops without formulas: of the others they have the row's.
    #[test]
    fn kernels_of_our_plugins() {
        let kernels = "
            Cast 19, Where 16, ReduceMean 18, ReduceSum 13, ReduceMax 20, ReduceMin 20,
            ReduceSumSquare 18, ReduceL1 18, ReduceL2 18, ReduceProd 18, ReduceLogSum 18,
            ReduceLogSumExp 18, ArgMax 13, ArgMin 13, Softmax 13, LogSoftmax 13, LayerNormalization
            17, BatchNormalization 15, InstanceNormalization 6, GroupNormalization 21, Concat 13,
            Split 18, Slice 13, Transpose 21, Gather 13, GatherElements 13, ScatterElements 18,
            GatherND 13, ScatterND 18, Expand 13, Tile 13, Pad 21, ConstantOfShape 21, Range 11,
            OneHot 11, NonZero 13, CumSum 14, Trilu 14, DepthToSpace 13, SpaceToDepth 28, Resize 19,
            LSTM 14, GRU 14, RNN 14, STFT 17, DFT 20, DynamicQuantizeLinear 11, QuantizeLinear 13,
            DequantizeLinear 13, MatMulInteger 10, ConvInteger 10, Conv 11, ConvTranspose 11, MatMul
            13, Gemm 13, MaxPool 12, AveragePool 19, GlobalAveragePool 1, GlobalMaxPool 1, TopK 11,
            Compress 11, ReverseSequence 10, NonMaxSuppression 11, GridSample 20, RoiAlign 16,
            Attention 25, RotaryEmbedding 23, LinearAttention 27, CausalConvWithState 27, SwiGLU 28,
            TensorScatter 24, NegativeLogLikelihoodLoss 12, SoftmaxCrossEntropyLoss 12, Einsum 12,
            Unique 11, TfIdfVectorizer 9, CenterCropPad 18, Col2Im 18, AffineGrid 20, DeformConv 19,
            Det 11, MaxUnpool 9, MelWeightMatrix 17, Dropout 12, EyeLike 9, Cast 25, CastLike 25,
            BitShift 28, CumProd 26, BlackmanWindow 17, HammingWindow 17, HannWindow 17,
            RMSNormalization 23, LpNormalization 22, LRN 13, MeanVarianceNormalization 13, Hardmax
            13, LpPool 18, GlobalLpPool 2, QLinearMatMul 21, QLinearConv 10, QuantizeLinear 28,
            DequantizeLinear 28";
        for kernel in kernels.split(',') {
            let [name, since] = kernel.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("{kernel} is no name and version")
            };
            let def = find("", name).unwrap_or_else(|| panic!("{name} is not in the catalogue"));
            let since = since.parse().expect("a version");
            assert!(accepts(def, since), "{name} {since}");
            assert_eq!(def.kind, OpKind::Kernel, "{name}");
        }
    }
}
