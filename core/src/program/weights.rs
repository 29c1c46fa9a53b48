//! Quantised weights of a program: constants that are widened to floats for products and Gathers alone.
//!
//! Specialising leaves them as they are, and [`fuse_dequantized`](crate::passes::fuse_dequantized) fuses them or folds them.

use super::{Node, Program, Region, ValueId};
use crate::tensor::{DType, I4, I8, Tensor, U4, U8};
use std::collections::{HashMap, HashSet};

/// Weights stay quantised if all of them would take more than this as f32. Less stays in a processor's second-level cache, where
/// reading floats takes less time than widening bytes.
const KEPT_BYTES_MIN: usize = 1 << 20;

/// Nodes between weights and the product that reads them, at most.
const DEPTH_MAX: usize = 4;

/// Returns whether elements of a type are quantised weights.
pub fn is_quantised(dtype: DType) -> bool {
    matches!(dtype, I8 | U8 | I4 | U4)
}

/// Returns whether such elements have a sign.
pub fn is_signed(dtype: DType) -> bool {
    matches!(dtype, I8 | I4)
}

/// Returns whether a node makes floats of a constant matrix of quantised elements.
pub fn widens(program: &Program, node: &Node) -> bool {
    matrix(program, node).is_some()
}

fn matrix<'a>(program: &'a Program, node: &Node) -> Option<&'a Tensor> {
    let makes_floats = node.op.is("DequantizeLinear") || node.op.is("Cast") && node.int("to", 0) == ONNX_F32;
    let tensor = program.constant(node.input(0).filter(|_| makes_floats)?)?;
    (is_quantised(tensor.dtype()) && tensor.shape().len() == 2).then_some(tensor)
}

/// ONNX's number of f32.
const ONNX_F32: i64 = 1;

/// The results of nodes that widen weights, all of which stay as they are; none if that would save too little.
pub fn kept(program: &Program) -> HashSet<ValueId> {
    let mut readers = Readers { program, of: HashMap::new(), results: HashSet::new() };
    readers.region(&program.main);
    let (mut kept, mut bytes) = (HashSet::new(), 0usize);
    program.main.visit(&mut |node| {
        if let (Some(tensor), Some(result)) = (matrix(program, node), node.output(0))
            && readers.are_products(result, DEPTH_MAX)
        {
            bytes = bytes.saturating_add(tensor.n_elements().saturating_mul(size_of::<f32>()));
            kept.insert(result);
        }
    });
    if bytes < KEPT_BYTES_MIN {
        kept.clear();
    }
    kept
}

/// By value, the nodes that read it and as which operand.
struct Readers<'a> {
    program: &'a Program,
    of: HashMap<ValueId, Vec<(&'a Node, usize)>>,
    /// Results of regions.
    results: HashSet<ValueId>,
}

impl<'a> Readers<'a> {
    fn region(&mut self, region: &'a Region) {
        for node in &region.nodes {
            for (i, id) in node.inputs.iter().enumerate() {
                if let Some(id) = id {
                    self.of.entry(*id).or_default().push((node, i));
                }
            }
            node.regions.iter().for_each(|(_, nested)| self.region(nested));
        }
        self.results.extend(&region.outputs);
    }

    /// Returns whether only products and Gathers read a value, as what they multiply by or gather from.
    fn are_products(&self, id: ValueId, depth: usize) -> bool {
        let Some(all) = self.of.get(&id).filter(|_| depth > 0 && !self.results.contains(&id)) else {
            return false;
        };
        all.iter().all(|&(node, i)| match (&*node.op.domain, &*node.op.name, i) {
            ("", "MatMul" | "Gemm", 1) | ("", "Gather", 0) => true,
            ("", "Transpose", 0) => node.output(0).is_some_and(|id| self.are_products(id, depth - 1)),
            ("", "Sub", 0) | ("", "Mul", _) => {
                let other = node.input(1 - i.min(1));
                other.is_some_and(|id| self.program.constant(id).is_some())
                    && node.output(0).is_some_and(|id| self.are_products(id, depth - 1))
            }
            _ => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text::parse;

    /// A matrix of 512 x 512 and what reads it.
    fn n_kept(extent: usize, body: &str, results: &str) -> usize {
        let text = format!(
            "devbay-program 1\n\nprogram \"\"(%x: f32[2,{extent}], %i: i64[3], %w: i8[{extent},{extent}]) {{\n\
             \u{20} %s = const f32[] [0.5]\n{body}  return {results}\n}}\n"
        );
        let mut program = parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let matrix = program.main.inputs.pop().expect("an input");
        program.value_mut(matrix).constant = Some(Tensor::zeros(I8, &[extent, extent]).expect("a tensor"));
        kept(&program).len()
    }

    #[test]
    fn weights_of_products_and_gathers_stay() {
        let product = "  %d = DequantizeLinear@28(%w, %s)\n  %y = MatMul@13(%x, %d)\n";
        assert_eq!(n_kept(512, product, "%y"), 1);
        let tied = "  %d = DequantizeLinear@28(%w, %s)\n  %t = Transpose@25(%d) {perm = [1, 0]}\n\
                    \u{20} %y = MatMul@13(%x, %t)\n  %z = Gather@13(%d, %i)\n";
        assert_eq!(n_kept(512, tied, "%y, %z"), 1);
        let cast = "  %c = Cast@28(%w) {to = 1}\n  %b = Sub@14(%c, %s)\n  %d = Mul@14(%s, %b)\n\
                    \u{20} %y = MatMul@13(%x, %d)\n";
        assert_eq!(n_kept(512, cast, "%y"), 1);
    }

    #[test]
    fn small_ones_and_those_that_are_read_otherwise_do_not() {
        let product = "  %d = DequantizeLinear@28(%w, %s)\n  %y = MatMul@13(%x, %d)\n";
        assert_eq!(n_kept(511, product, "%y"), 0);
        assert_eq!(n_kept(512, product, "%y, %d"), 0);
        let left = "  %d = DequantizeLinear@28(%w, %s)\n  %y = MatMul@13(%d, %d)\n";
        assert_eq!(n_kept(512, left, "%y"), 0);
    }
}
