//! Fuses the scaling of a product of 8-bit integers into it, as quantisers write it for weights that are quantised and
//! activations that are quantised in each run.
//!
//! `Cast(MatMulInteger(A, B, a_zero_point, b_zero_point), f32) * scale` becomes `MatMulIntegerToFloat` 1 of devbay's domain
//! (docs/fused-ops.md), if the scale is one number or one for each column. The product of two scales, and the
//! DynamicQuantizeLinear that A comes from, stay ops of their own: several products may share them.
//! [`super::fuse`] then adds a bias and an activation.
//!
//! Runs on specialised programs: shapes must be known to tell scales of columns from others.

use super::each_region;
use super::uses::Uses;
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId};
use crate::tensor::F32;
use std::collections::HashMap;

/// The fused op.
pub(super) const FUSED: &str = "MatMulIntegerToFloat";

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    if !kernels.has(DEVBAY_DOMAIN, FUSED) {
        return Ok(0);
    }
    each_region(program, &mut |program, region| fuse(program, region, stay))
}

fn fuse(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut gone = 0;
    let uses = Uses::of_region(program, region);
    let mut nodes: Vec<Option<Node>> = region.nodes.drain(..).map(Some).collect();
    // Sums of products, and the same as f32: the nodes that make them.
    let mut sums: HashMap<ValueId, usize> = HashMap::new();
    let mut casts: HashMap<ValueId, (usize, usize)> = HashMap::new();
    for at in 0..nodes.len() {
        look()?;
        let Some(node) = nodes[at].as_ref().filter(|node| !stay(node)) else { continue };
        let Some(output) = node.output(0) else { continue };
        if node.op.is("MatMulInteger") {
            sums.insert(output, at);
        } else if node.op.is("Cast") && program.value(output).ty.as_ref().is_some_and(|ty| ty.dtype == F32) {
            if let Some(sum) = node.input(0).filter(|&sum| uses.count(sum) == 1)
                && let Some(&sum) = sums.get(&sum)
            {
                casts.insert(output, (sum, at));
            }
        } else if node.op.is("Mul")
            && let Some((sum, cast, scale)) = scaled(program, node, &casts, &nodes, &uses)
        {
            let product = nodes[sum].take();
            nodes[cast] = None;
            // The product moves to where it was scaled: the scale may be made in between.
            nodes[at] = product.map(|product| {
                let [a, b, a_zero, b_zero] = [0, 1, 2, 3].map(|i| product.input(i));
                let mut inputs = vec![a, b, Some(scale), a_zero, b_zero];
                while inputs.last() == Some(&None) {
                    inputs.pop();
                }
                Node { op: Op::devbay(FUSED, 1), inputs, outputs: vec![Some(output)], ..product }
            });
            gone += 2;
        }
    }
    region.nodes = nodes.into_iter().flatten().collect();
    Ok(gone)
}

/// Returns the nodes that make a sum and cast it, and the scale that a Mul gives it.
fn scaled(
    program: &Program,
    node: &Node,
    casts: &HashMap<ValueId, (usize, usize)>,
    nodes: &[Option<Node>],
    uses: &Uses,
) -> Option<(usize, usize, ValueId)> {
    let (a, b) = (node.input(0)?, node.input(1)?);
    let shape = |id: ValueId| program.value(id).ty.as_ref().and_then(|ty| ty.known_shape());
    [(a, b), (b, a)].into_iter().find_map(|(sum, scale)| {
        let &(product, cast) = casts.get(&sum).filter(|_| uses.count(sum) == 1)?;
        // A vector on the right has no columns in the result.
        let columns = match shape(nodes[product].as_ref()?.input(1)?)?[..] {
            [.., _, columns] => columns,
            _ => return None,
        };
        let (result, factors) = (shape(sum)?, shape(scale)?);
        let [leading @ .., last] = &factors[..] else { return Some((product, cast, scale)) };
        let fits = factors.len() <= result.len()
            && leading.iter().all(|&extent| extent == 1)
            && (*last == 1 || *last == columns && result.last() == Some(last));
        fits.then_some((product, cast, scale))
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{body, check_on};

    const INPUTS: &str = "%a: u8[2,3], %z: u8[], %s: f32[], %row: f32[4]";
    const WEIGHTS: &str = "%w = const i8[3,4] [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]";
    const SUM: &str = "%sum: i32[2,4] = MatMulInteger@10(%a, %w, %z)";
    const CAST: &str = "%cast: f32[2,4] = Cast@28(%sum) {to = 1}";

    #[test]
    fn scales_of_all_and_of_columns_become_part_of_the_product() {
        for (scale, factors) in [("%s", "%cast, %s"), ("%row", "%row, %cast")] {
            let before = [WEIGHTS, SUM, CAST, &format!("%y: f32[2,4] = Mul@14({factors})"), "return %y"];
            let fused = format!("%y: f32[2,4] = devbay.MatMulIntegerToFloat@1(%a, %w, {scale}, %z)");
            check_on(INPUTS, "fuse-integers", &body(&before), &body(&[WEIGHTS, &fused, "return %y"]));
        }
    }

    #[test]
    fn other_factors_and_sums_that_are_used_otherwise_stay() {
        let rows = "%rows = const f32[2,1] [1.0, 2.0]";
        let before = [WEIGHTS, rows, SUM, CAST, "%y: f32[2,4] = Mul@14(%cast, %rows)", "return %y"];
        check_on(INPUTS, "fuse-integers", &body(&before), &body(&before));
        let before = [WEIGHTS, SUM, CAST, "%y: f32[2,4] = Mul@14(%cast, %s)", "return %y, %sum"];
        check_on(INPUTS, "fuse-integers", &body(&before), &body(&before));
    }

    #[test]
    fn biases_and_activations_follow() {
        let product = "%x: f32[2,4] = devbay.MatMulIntegerToFloat@1(%a, %w, %s)";
        let before =
            [WEIGHTS, product, "%b: f32[2,4] = Add@14(%x, %row)", "%y: f32[2,4] = Relu@14(%b)", "return %y"];
        let fused =
            "%y: f32[2,4] = devbay.MatMulIntegerToFloat@1(%a, %w, %s, _, _, %row) {activation = \"Relu\"}";
        check_on(INPUTS, "fuse-tails", &body(&before), &body(&[WEIGHTS, fused, "return %y"]));
    }
}
