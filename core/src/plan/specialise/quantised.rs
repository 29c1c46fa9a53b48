//! Weights that stay bytes while constants are folded.
//!
//! A product of two dequantised operands may become one of integers for a device that has such kernels
//! ([`lower_quantised`](crate::passes::lower_quantised)). Folded weights would be f32 by then. The pass folds those that
//! it leaves.

use crate::kernel::KernelTable;
use crate::program::{Node, Program, ValueId};
use std::collections::HashSet;

/// Products that may become products of integers.
const PRODUCTS: &[&str] = &["Conv", "Gemm", "MatMul"];

/// Returns whether a device has kernels for which weights are worth keeping.
pub fn multiplies_bytes(kernels: &KernelTable) -> bool {
    kernels.has("", "QLinearConv") || kernels.has("", "QLinearMatMul")
}

/// Returns the results of DequantizeLinear that products of two of them read: operands and biases.
pub fn operands_of_products(program: &Program) -> HashSet<ValueId> {
    let mut dequantised: HashSet<ValueId> = HashSet::new();
    let mut found = HashSet::new();
    program.main.visit(&mut |node: &Node| {
        if node.op.is("DequantizeLinear") {
            dequantised.extend(node.output(0));
        }
        let is_dequantised = |id: &ValueId| dequantised.contains(id);
        let is_operand = |i| node.input(i).is_some_and(|id| is_dequantised(&id));
        if PRODUCTS.iter().any(|op| node.op.is(op)) && is_operand(0) && is_operand(1) {
            found.extend(node.inputs.iter().flatten().copied().filter(is_dequantised));
        }
    });
    found
}
