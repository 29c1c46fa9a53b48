//! Fuses DequantizeLinear and QuantizeLinear into the elementwise ops between them, so that no f32 is written to memory.
//!
//! The result is devbay's `QuantisedElementwise` 1 (docs/fused-ops.md). An op, or several that [`super::fuse_elementwise`]
//! fused, reads bytes in place of what was dequantised of them, and makes bytes if a QuantizeLinear alone reads its result.
//! Bytes that only get another scale are multiplied by 1. Elements are the same bits as before.
//!
//! Runs last: what is a product or moves elements is [`super::lower_quantised`]'s.

use super::fuse_elementwise::as_fused;
use super::lower_quantised::linear::{Linear, dequantised, quantised};
use super::uses::Uses;
use super::{dead_code, each_region};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::onnx_types::dtype_to_onnx;
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId};
use crate::tensor::TensorType;
use std::collections::HashMap;

/// The fused op.
const FUSED: &str = "QuantisedElementwise";

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of nodes that it made.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    if !kernels.has(DEVBAY_DOMAIN, FUSED) {
        return Ok(0);
    }
    let made = each_region(program, &mut |program, region| fuse(program, region, kernels, stay))?;
    if made > 0 {
        dead_code::remove_of(program, "DequantizeLinear", stay)?;
    }
    Ok(made)
}

fn fuse(
    program: &Program,
    region: &mut Region,
    kernels: &KernelTable,
    stay: &dyn Fn(&Node) -> bool,
) -> Result<usize> {
    let uses = Uses::of_region(program, region);
    let mut sources: HashMap<ValueId, (ValueId, Linear)> = HashMap::new();
    // By value, the QuantizeLinear that reads it.
    let mut ends: HashMap<ValueId, usize> = HashMap::new();
    for (at, node) in region.nodes.iter().enumerate().filter(|(_, node)| !stay(node)) {
        look()?;
        if let (Some(source), Some(output)) = (dequantised(program, node), node.output(0)) {
            sources.insert(output, source);
        } else if let Some((number, _)) = quantised(program, node) {
            ends.insert(number, at);
        }
    }
    let mut made: HashMap<usize, Node> = HashMap::new();
    let mut gone = vec![false; region.nodes.len()];
    for (at, node) in region.nodes.iter().enumerate().filter(|(_, node)| !stay(node)) {
        look()?;
        let found = match quantised(program, node) {
            Some((number, _)) if sources.contains_key(&number) => Some((as_factor(number), at)),
            Some(_) => None,
            None => as_fused(program, &uses, node).map(|chain| {
                let result = chain.output(0).filter(|result| uses.count(*result) == 1);
                (chain, result.and_then(|result| ends.get(&result)).copied().unwrap_or(at))
            }),
        };
        let Some((chain, end)) = found else { continue };
        let fused = with_bytes(program, chain, &region.nodes[end], &sources);
        if let Some(fused) = fused.filter(|fused| has_kernel(program, kernels, fused)) {
            gone[at] = true;
            made.insert(end, fused);
        }
    }
    let n = made.len();
    let nodes = std::mem::take(&mut region.nodes).into_iter().enumerate();
    region.nodes =
        nodes.filter_map(|(at, node)| made.remove(&at).or_else(|| (!gone[at]).then_some(node))).collect();
    Ok(n)
}

/// A value times 1, as a chain without a result.
fn as_factor(value: ValueId) -> Node {
    let mut node = Node::new(Op::devbay("FusedElementwise", 1), vec![Some(value)], vec![None]);
    node.set_attr("ops", AttrValue::Strings(vec!["Mul".to_owned()]));
    node.set_attr("operands", AttrValue::Ints(vec![0, -1]));
    node.set_attr("params", AttrValue::Floats(vec![0.0; 2]));
    node.set_attr("constants", AttrValue::Floats(vec![1.0]));
    node
}

/// Returns a chain with bytes for what was dequantised, which makes what `end` made; None if nothing of it is bytes.
fn with_bytes(
    program: &Program,
    mut chain: Node,
    end: &Node,
    sources: &HashMap<ValueId, (ValueId, Linear)>,
) -> Option<Node> {
    let (mut scales, mut zeros) = (Vec::new(), Vec::new());
    let mut add = |linear: Option<Linear>| {
        scales.push(linear.map_or(1.0, |linear| linear.scale));
        zeros.push(linear.map_or(0, |linear| i64::from(linear.zero)));
    };
    let end_linear = quantised(program, end).map(|(_, linear)| linear);
    let mut n_bytes = usize::from(end_linear.is_some());
    for id in chain.inputs.iter_mut().flatten() {
        let source = sources.get(id).copied();
        if let Some((bytes, _)) = source {
            *id = bytes;
            n_bytes += 1;
        }
        add(source.map(|(_, linear)| linear));
    }
    add(end_linear);
    let result = end.output(0)?;
    let to = dtype_to_onnx(program.value(result).ty.as_ref()?.dtype).ok()?;
    chain.op = Op::devbay(FUSED, 1);
    chain.outputs = vec![Some(result)];
    chain.name = end.name.clone();
    chain.set_attr("scales", AttrValue::Floats(scales));
    chain.set_attr("zero_points", AttrValue::Ints(zeros));
    chain.set_attr("to", AttrValue::Int(to));
    (n_bytes > 0).then_some(chain)
}

fn has_kernel(program: &Program, kernels: &KernelTable, node: &Node) -> bool {
    let ty = |id: &Option<ValueId>| id.and_then(|id| program.value(id).ty.as_ref());
    let inputs: Vec<Option<&TensorType>> = node.inputs.iter().map(ty).collect();
    let outputs: Vec<Option<&TensorType>> = node.outputs.iter().map(ty).collect();
    kernels.find(DEVBAY_DOMAIN, FUSED).any(|kernel| kernel.takes(&inputs, &outputs).is_ok())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check_on};

    const INPUTS: &str = "%x: u8[2,3], %y: i8[3], %f: f32[2,3]";
    const NUMBERS: [&str; 5] = [
        "%s = const f32[] [0.5]",
        "%t = const f32[] [0.25]",
        "%z = const u8[] [3]",
        "%dx: f32[2,3] = DequantizeLinear@28(%x, %s, %z)",
        "%dy: f32[3] = DequantizeLinear@28(%y, %t)",
    ];

    fn check(before: &[&str], after: &[&str]) {
        check_on(INPUTS, "fuse-quantised", &body(&[&NUMBERS, before].concat()), &body(after));
    }

    #[test]
    fn ops_read_and_make_bytes() {
        check(
            &["%a: f32[2,3] = Add@14(%dx, %dy)", "%q: u8[2,3] = QuantizeLinear@28(%a, %t, %z)", "return %q"],
            &[
                "%q: u8[2,3] = devbay.QuantisedElementwise@1(%x, %y) {ops = [\"Add\"], operands = [0, 1], \
                 params = [0.0, 0.0], constants = floats [], scales = [0.5, 0.25, 0.25], zero_points = [3, 0, 3], to = 2}",
                "return %q",
            ],
        );
        // Several that were fused, and an operand and a result of f32.
        check(
            &[
                "%a: f32[2,3] = devbay.FusedElementwise@1(%f, %dy) {operands = [0, 1, 2, 2], ops = [\"Mul\", \"Exp\"], \
                 params = [0.0, 0.0, 0.0, 0.0]}",
                "return %a",
            ],
            &[
                "%a: f32[2,3] = devbay.QuantisedElementwise@1(%f, %y) {operands = [0, 1, 2, 2], ops = [\"Mul\", \"Exp\"], \
                 params = [0.0, 0.0, 0.0, 0.0], scales = [1.0, 0.25, 1.0], zero_points = [0, 0, 0], to = 1}",
                "return %a",
            ],
        );
    }

    #[test]
    fn bytes_that_get_another_scale_are_multiplied_by_one() {
        check(
            &["%q: u8[2,3] = QuantizeLinear@28(%dx, %t, %z)", "return %q"],
            &[
                "%q: u8[2,3] = devbay.QuantisedElementwise@1(%x) {ops = [\"Mul\"], operands = [0, -1], \
                 params = [0.0, 0.0], constants = [1.0], scales = [0.5, 0.25], zero_points = [3, 3], to = 2}",
                "return %q",
            ],
        );
    }

    #[test]
    fn results_with_other_readers_are_made_as_they_are() {
        check(
            &["%a: f32[2,3] = Relu@14(%dx)", "%q: u8[2,3] = QuantizeLinear@28(%a, %t, %z)", "return %q, %a"],
            &[
                "%a: f32[2,3] = devbay.QuantisedElementwise@1(%x) {ops = [\"Relu\"], operands = [0, 0], \
                 params = [0.0, 0.0], constants = floats [], scales = [0.5, 1.0], zero_points = [3, 0], to = 1}",
                "%t = const f32[] [0.25]",
                "%z = const u8[] [3]",
                "%q: u8[2,3] = QuantizeLinear@28(%a, %t, %z)",
                "return %q, %a",
            ],
        );
        let pinned = ["%a: f32[2,3] = Relu@14(%dx) as \"pinned\"", "return %a"];
        check(&pinned, &[&[NUMBERS[0], NUMBERS[2], NUMBERS[3]], &pinned[..]].concat());
    }
}
