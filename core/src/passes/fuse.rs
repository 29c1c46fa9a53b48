//! Fuses biases, residual additions and activations into the convolution or matrix product before them.
//!
//! The results are ops of devbay's domain (docs/fused-ops.md): `FusedConv` 1 is Conv 11 with inputs X, W, B and
//! Z, where Z is added to the result, and `NhwcFusedConv` 1 the same on images whose channels come last; `FusedMatMul` 1 is
//! MatMul 13 with a bias over the last axis, as `MatMulIntegerToFloat` 1 ([`super::fuse_integers`]) and `MatMulDequantized` 1
//! ([`super::fuse_dequantized`]) have it; `FusedGemm` 1 is Gemm 13. All of them apply `activation` last. A device that has no kernel for one keeps the plain ops.
//!
//! Runs on specialised programs: types must be known to tell a residual addition from a broadcast.

use super::uses::Uses;
use super::{clip_limits, each_region, fuse_dequantized, fuse_integers};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId};
use crate::tensor::F32;
use std::collections::HashMap;

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| fuse(program, region, kernels, stay))
}

fn fuse(
    program: &mut Program,
    region: &mut Region,
    kernels: &KernelTable,
    stay: &dyn Fn(&Node) -> bool,
) -> Result<usize> {
    let mut fused = 0;
    let uses = Uses::of_region(program, region);
    let mut nodes: Vec<Option<Node>> = region.nodes.drain(..).map(Some).collect();
    let mut makers: HashMap<ValueId, usize> = HashMap::new();
    for at in 0..nodes.len() {
        look()?;
        let Some(node) = nodes[at].as_ref().filter(|node| !stay(node)) else { continue };
        let found = activation_of(program, node)
            .map(|(input, activation)| (input, Tail::Activation(activation)))
            .or_else(|| addition_of(program, node, &makers, &nodes, &uses));
        if let Some((input, tail)) = found
            && uses.count(input) == 1
            && let Some(&maker) = makers.get(&input)
            && let Some(output) = node.output(0)
            && let Some(mut head) = nodes[maker].as_ref().and_then(|head| with_tail(head, &tail, kernels))
        {
            if let Tail::Channels(constant) = tail {
                head.inputs[2] = Some(as_vector(program, constant)?);
            }
            // The head moves to where its tail was: operands of the tail may be made in between.
            nodes[maker] = None;
            head.outputs[0] = Some(output);
            nodes[at] = Some(head);
            makers.remove(&input);
            fused += 1;
        }
        if let Some(output) = nodes[at]
            .as_ref()
            .filter(|node| is_head(program, node) && !stay(node))
            .and_then(|node| node.output(0))
        {
            makers.insert(output, at);
        }
    }
    region.nodes = nodes.into_iter().flatten().collect();
    Ok(fused)
}

/// An activation, as the fused ops name it.
#[derive(Clone)]
struct Activation {
    name: &'static str,
    params: Vec<f32>,
}

/// The work that follows a convolution or matrix product.
enum Tail {
    Activation(Activation),
    /// A value of the result's shape is added.
    Residual(ValueId),
    /// A vector over the last axis is added.
    Bias(ValueId),
    /// A constant is added, one number for each channel along the last axis.
    Channels(ValueId),
}

/// Returns whether others may be fused into this node.
fn is_head(program: &Program, node: &Node) -> bool {
    fused_of(&node.op).is_some()
        && node.output(0).and_then(|id| program.value(id).ty.as_ref()).is_some_and(|ty| ty.dtype == F32)
}

/// Returns the op that a head becomes with a tail; None for ops that are no heads, as the other ones of devbay's
/// domain.
fn fused_of(op: &Op) -> Option<&'static str> {
    Some(match (&*op.domain, &*op.name) {
        ("", "Conv") | (DEVBAY_DOMAIN, "FusedConv") => "FusedConv",
        (DEVBAY_DOMAIN, "NhwcFusedConv") => "NhwcFusedConv",
        ("", "Gemm") | (DEVBAY_DOMAIN, "FusedGemm") => "FusedGemm",
        ("", "MatMul") | (DEVBAY_DOMAIN, "FusedMatMul") => "FusedMatMul",
        (DEVBAY_DOMAIN, fuse_integers::FUSED) => fuse_integers::FUSED,
        (DEVBAY_DOMAIN, fuse_dequantized::FUSED) => fuse_dequantized::FUSED,
        _ => return None,
    })
}

/// Returns the fused op of a head, if there is a kernel for it and the tail fits.
fn with_tail(head: &Node, tail: &Tail, kernels: &KernelTable) -> Option<Node> {
    let fused = fused_of(&head.op)?;
    // The activation comes last: nothing is added after one.
    let activated = head.attr("activation").is_some();
    if activated || !kernels.has(DEVBAY_DOMAIN, fused) {
        return None;
    }
    let mut node = head.clone();
    node.op = Op::devbay(fused, 1);
    match tail {
        Tail::Activation(activation) => {
            node.set_attr("activation", AttrValue::String(activation.name.to_owned()));
            if !activation.params.is_empty() {
                node.set_attr("activation_params", AttrValue::Floats(activation.params.clone()));
            }
        }
        Tail::Residual(z) => {
            if !matches!(fused, "FusedConv" | "NhwcFusedConv") || head.input(3).is_some() {
                return None;
            }
            node.inputs.resize(4, None);
            node.inputs[3] = Some(*z);
        }
        Tail::Bias(bias) => {
            let at = match fused {
                "FusedMatMul" => 2,
                fuse_integers::FUSED => 5,
                fuse_dequantized::FUSED => 4,
                _ => return None,
            };
            if head.input(at).is_some() {
                return None;
            }
            node.inputs.resize(at + 1, None);
            node.inputs[at] = Some(*bias);
        }
        Tail::Channels(_) => {
            // A sum with another image comes before it.
            if fused != "NhwcFusedConv" || head.input(2).or(head.input(3)).is_some() {
                return None;
            }
            node.inputs.resize(3, None);
        }
    }
    Some(node)
}

/// Returns the input of a node that is an activation with constant parameters.
fn activation_of(program: &Program, node: &Node) -> Option<(ValueId, Activation)> {
    if !node.op.domain.is_empty() {
        return None;
    }
    let (name, params): (&'static str, Vec<f32>) = match &*node.op.name {
        "Relu" => ("Relu", vec![]),
        "Sigmoid" => ("Sigmoid", vec![]),
        "Tanh" => ("Tanh", vec![]),
        "HardSwish" => ("HardSwish", vec![]),
        "LeakyRelu" => ("LeakyRelu", vec![node.float("alpha", 0.01)]),
        "HardSigmoid" => ("HardSigmoid", vec![node.float("alpha", 0.2), node.float("beta", 0.5)]),
        "Clip" => ("Clip", clip_limits(program, node)?.to_vec()),
        _ => return None,
    };
    Some((node.input(0)?, Activation { name, params }))
}

/// Returns the value that an Add adds to the result of a head: a vector over the last axis, or a value of its shape
/// that is made before.
fn addition_of(
    program: &Program,
    node: &Node,
    makers: &HashMap<ValueId, usize>,
    nodes: &[Option<Node>],
    uses: &Uses,
) -> Option<(ValueId, Tail)> {
    if !node.op.is("Add") {
        return None;
    }
    let (a, b) = (node.input(0)?, node.input(1)?);
    // Of two heads the later one takes the other's result: it is there by then.
    let mut sides = [(a, b), (b, a)];
    if makers.get(&a) < makers.get(&b) {
        sides.swap(0, 1);
    }
    let shape = |id: ValueId| program.value(id).ty.as_ref().and_then(|ty| ty.known_shape());
    sides.into_iter().find_map(|(input, other)| {
        let head = nodes[*makers.get(&input)?].as_ref()?;
        if uses.count(input) != 1 || input == other {
            return None;
        }
        let (result, added) = (shape(input)?, shape(other)?);
        match &*head.op.name {
            "NhwcFusedConv" if is_of_channels(program, other, &result) => {
                Some((input, Tail::Channels(other)))
            }
            "Conv" | "FusedConv" | "NhwcFusedConv"
                if result == added && program.constant(other).is_none() =>
            {
                Some((input, Tail::Residual(other)))
            }
            "MatMul" | "FusedMatMul" | fuse_integers::FUSED | fuse_dequantized::FUSED
                if added.len() == 1 && result.last() == added.last() =>
            {
                Some((input, Tail::Bias(other)))
            }
            _ => None,
        }
    })
}

/// Returns whether a value is a constant of one number for each channel of a result that has them last.
fn is_of_channels(program: &Program, id: ValueId, result: &[usize]) -> bool {
    program.constant(id).is_some_and(|constant| {
        let shape = constant.shape();
        shape.len() <= result.len()
            && shape.last() == result.last()
            && Some(&constant.n_elements()) == result.last()
    })
}

/// Returns a constant with its elements along one axis.
fn as_vector(program: &mut Program, id: ValueId) -> Result<ValueId> {
    match program.constant(id) {
        Some(constant) if constant.shape().len() != 1 => {
            let vector = constant.reshaped(&[constant.n_elements()])?;
            Ok(program.add_constant("", vector))
        }
        _ => Ok(id),
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check, check_on};

    #[test]
    fn convolutions_with_their_channels_last_take_tails_and_a_bias() {
        let inputs = "%x: f32[1,2,2,1], %z: f32[1,2,2,2]";
        let weights = "%w = const f32[2,1,1,1] [1.0, 2.0]";
        let before = [
            weights,
            "%a: f32[1,2,2,2] = devbay.NhwcFusedConv@1(%x, %w)",
            "%bias = const f32[1,1,2] [3.0, 4.0]",
            "%b: f32[1,2,2,2] = Add@14(%bias, %a)",
            "%c: f32[1,2,2,2] = Add@14(%b, %z)",
            "%d: f32[1,2,2,2] = Relu@14(%c)",
            "return %d",
        ];
        let after = [
            weights,
            "%bias = const f32[2] [3.0, 4.0]",
            "%d: f32[1,2,2,2] = devbay.NhwcFusedConv@1(%x, %w, %bias, %z) {activation = \"Relu\"}",
            "return %d",
        ];
        check_on(inputs, "fuse-tails", &body(&before), &body(&after));
        let other_axis = [
            weights,
            "%a: f32[1,2,2,2] = devbay.NhwcFusedConv@1(%x, %w)",
            "%bias = const f32[2,1] [3.0, 4.0]",
            "%b: f32[1,2,2,2] = Add@14(%bias, %a)",
            "return %b",
        ];
        check_on(inputs, "fuse-tails", &body(&other_axis), &body(&other_axis));
    }

    #[test]
    fn tails_become_part_of_products() {
        check(
            "fuse-tails",
            "  %w = const f32[3,3] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]\n\
             \u{20} %a: f32[2,3] = MatMul@13(%x, %w)\n\
             \u{20} %b: f32[2,3] = Relu@14(%a)\n\
             \u{20} return %b\n",
            "  %w = const f32[3,3] [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]\n\
             \u{20} %b: f32[2,3] = devbay.FusedMatMul@1(%x, %w) {activation = \"Relu\"}\n\
             \u{20} return %b\n",
        );
    }

    /// Passes run again where one of them changed something, so that fused elementwise ops may be there already.
    #[test]
    fn what_is_fused_otherwise_is_no_product() {
        let body = "  %a: f32[2,3] = devbay.FusedElementwise@1(%x, %x) {operands = [0, 1, 2, 2], ops = [\"Add\", \"Exp\"], params = [0.0, 0.0, 0.0, 0.0]}\n\
                    \u{20} %b: f32[2,3] = Relu@14(%a)\n\
                    \u{20} return %b\n";
        check("fuse-tails", body, body);
    }
}
