//! StableHLO text from a graph of ONNX ops.
//!
//! The host shows a graph and asks which nodes can be expressed: [`claim`]. It then shows the part that it gives to the
//! device: [`emit`]. Both use one table of ops (`table`). A claim is an emission whose text is discarded, so that they
//! cannot disagree.
//!
//! - `builder`: the text of a module, with types, literals and names;
//! - `primitive`: StableHLO's own ops;
//! - `node`: a node with its operands and attributes;
//! - one file for each family of ONNX's ops.
//!
//! The text is that of StableHLO 1.13 and newer. Ops are in MLIR's generic form, which changes less between versions than
//! the pretty one. A few functions (erf, the inverse trigonometric and the hyperbolic ones) are ops of CHLO, which compilers
//! of StableHLO expand. The same graph gives the same bytes.
//!
//! # What is not exact
//!
//! - XLA's CPU drops what is no number in a reduction to the largest or smallest (ReduceMax, MaxPool), unless its option
//!   `xla_cpu_enable_fast_min_max` is off.
//! - Places that are out of bounds are moved to the nearest one by Gather, and left out by Scatter, where ONNX has an error.

mod builder;
mod conv;
mod einsum;
mod elementwise;
mod formula;
mod index;
mod layout;
mod linear;
mod node;
mod normalize;
mod pool;
mod primitive;
mod quantised;
mod random;
mod recurrent;
mod reduce;
mod resize;
mod table;

use builder::{Builder, Module, Type};
use devbay_plugin_api::abi::{
    DEVBAY_NUMERICS_BF16, DEVBAY_NUMERICS_F16, DEVBAY_NUMERICS_STRICT, DEVBAY_NUMERICS_TF32,
};
use devbay_plugin_api::sdk::{Claim, Error, GraphView, NodeView, Result};
use node::Node;
use table::Emission;

/// Options of writing a graph.
#[derive(Clone, Copy, Debug)]
pub struct EmitOptions<'a> {
    /// Constants of more bytes become arguments of `main`: the host uploads them once and passes their buffers. Smaller
    /// ones are literals.
    pub max_inline_bytes: u64,
    /// Numerics that are permitted, `DEVBAY_NUMERICS_*`. Strict asks for the highest precision of products.
    pub numerics: u64,
    /// Inputs of the graph that are given up at each run, as positions in its values.
    pub donors: &'a [u32],
}

/// A graph as a module.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Emitted {
    /// StableHLO; its function `main` gives the graph's outputs in order.
    pub text: String,
    /// The arguments of `main` in order, as positions in the graph's values: the inputs that are not constant, then large
    /// constants and what comes from the graph around, as they are first used.
    pub inputs: Vec<u32>,
    /// Requirements on the data. If there are any, `main` has one more result, an int32: 0 where the data meets them,
    /// else the place here, from 1 on, of the first that it does not.
    pub checks: Vec<String>,
}

/// For each node of the graph whether it can be expressed, and what it costs.
pub fn claim(graph: &GraphView<'_>) -> Vec<Option<Claim>> {
    graph.nodes.iter().map(|node| claim_node(graph, node).ok()).collect()
}

fn claim_node<'g>(graph: &'g GraphView<'g>, node: &'g NodeView<'g>) -> Result<Claim> {
    let mut builder = Builder::trial(graph);
    emit_node(graph, node, &mut builder)?;
    let mut operands: Vec<u32> = node.inputs.iter().chain(&node.outputs).copied().flatten().collect();
    operands.sort_unstable();
    operands.dedup();
    let size = |&value: &u32| {
        let value = graph.values.get(value as usize)?;
        Type::of(&value.tensor).ok().map(|ty| ty.size_bytes())
    };
    Ok(Claim { flops: builder.flops, bytes: operands.iter().filter_map(size).sum(), group: 0 })
}

fn emit_node<'g>(graph: &'g GraphView<'g>, view: &'g NodeView<'g>, builder: &mut Builder<'g>) -> Result<()> {
    let node = Node::new(graph, view);
    let emission = table::emission(node.domain(), view.op)
        .ok_or_else(|| Error::unsupported(format!("op {} {}", view.domain, view.op)))?;
    if let Some(attr) = view.attrs.iter().find(|attr| !reads_attribute(node.domain(), view.op, attr.name)) {
        return Err(Error::unsupported(format!("the attribute {} of {}", attr.name, view.op)));
    }
    let results = match emission {
        Emission::One(emit) => vec![emit(&node, builder)?],
        Emission::Many(emit) => emit(&node, builder)?,
    };
    builder.bind(&node, results)
}

/// Attributes of former versions of ops, which are emitted too: most are operands by now. The ops without a row are here whole.
const FORMER: &[(&str, &[&str])] = &[
    ("Add", &["axis", "broadcast"]),
    ("BatchNormalization", &["is_test", "spatial"]),
    ("Clip", &["max", "min"]),
    ("Constant", &["value", "value_float", "value_floats", "value_int", "value_ints"]),
    ("Div", &["axis", "broadcast"]),
    ("Dropout", &["is_test", "ratio"]),
    ("Gemm", &["broadcast"]),
    ("Mul", &["axis", "broadcast"]),
    ("Pad", &["paddings", "pads", "value"]),
    ("Pow", &["axis", "broadcast"]),
    ("Slice", &["axes", "ends", "starts"]),
    ("Split", &["split"]),
    ("Squeeze", &["axes"]),
    ("Sub", &["axis", "broadcast"]),
    ("TopK", &["k"]),
    ("Unsqueeze", &["axes"]),
    ("Upsample", &["mode", "scales"]),
];

/// Returns whether an op's emission reads an attribute, or need not since it says nothing of what is emitted.
fn reads_attribute(domain: &str, op: &str, name: &str) -> bool {
    let former = || FORMER.iter().any(|(of, names)| *of == op && names.contains(&name));
    devbay_ops::has_attribute(domain, op, name) || former() || (op.starts_with("Reduce") && name == "axes")
}

/// The whole graph as a module.
///
/// # Errors
/// Unsupported, with the node's name, for a node that [`claim`] does not claim; invalid for a graph that is broken.
pub fn emit(graph: &GraphView<'_>, options: &EmitOptions<'_>) -> Result<Emitted> {
    // The lower half is the precision, the upper half has flags. XLA has two precisions of products: the highest, and
    // the one that is fastest on its device.
    let allowed = DEVBAY_NUMERICS_TF32 | DEVBAY_NUMERICS_F16 | DEVBAY_NUMERICS_BF16;
    let is_strict = options.numerics & allowed == DEVBAY_NUMERICS_STRICT;
    let mut builder = Builder::new(graph, options.max_inline_bytes, is_strict)?;
    for node in &graph.nodes {
        emit_node(graph, node, &mut builder)
            .map_err(|error| Error::new(error.status(), format!("node {}: {}", node.name, error.text())))?;
    }
    let Module { text, arguments, checks } = builder.finish(options.donors)?;
    Ok(Emitted { text, inputs: arguments, checks })
}
