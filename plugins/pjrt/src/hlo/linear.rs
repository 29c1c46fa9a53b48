//! Products: MatMul and Gemm.

use super::builder::{Builder, Value};
use super::elementwise::joint_dims;
use super::node::Node;
use super::primitive::DotDims;
use devbay_plugin_api::sdk::{Error, Result};

/// Products of matrices over broadcast batch axes; a vector is a row on the left and a column on the right.
pub(super) fn matmul<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let (x, y) = (node.input(b, 0)?, node.input(b, 1)?);
    let result = node.result(0)?;
    let product = product(b, &x, &y)?;
    Ok(b.reshape(&product, &result.dims))
}

/// The product with axes of extent 1 where an operand was a vector.
///
/// # Errors
/// Invalid if the operands do not go together.
pub(super) fn product(b: &mut Builder<'_>, x: &Value, y: &Value) -> Result<Value> {
    if x.rank() == 0 || y.rank() == 0 {
        return Err(Error::invalid("a product of a scalar"));
    }
    let x = if x.rank() == 1 { b.reshape(x, &[1, x.dims()[0]]) } else { x.clone() };
    let y = if y.rank() == 1 { b.reshape(y, &[y.dims()[0], 1]) } else { y.clone() };
    if x.dims()[x.rank() - 1] != y.dims()[y.rank() - 2] {
        return Err(Error::invalid(format!("a product of {} and {}", x.ty, y.ty)));
    }
    // One matrix for all batches: the batches are rows like others.
    if y.rank() == 2 {
        let last = [x.rank() - 1];
        let axes = DotDims { lhs_batch: &[], rhs_batch: &[], lhs_contract: &last, rhs_contract: &[0] };
        return Ok(b.dot_general(&x, &y, &axes));
    }
    let batch = joint_dims(&x.dims()[..x.rank() - 2], &y.dims()[..y.rank() - 2])?;
    let full = |b: &mut Builder<'_>, value: &Value| {
        let matrix = &value.dims()[value.rank() - 2..];
        b.broadcast(value, &[batch.as_slice(), matrix].concat())
    };
    let (x, y) = (full(b, &x)?, full(b, &y)?);
    let n = batch.len();
    let axes: Vec<usize> = (0..n).collect();
    let axes = DotDims { lhs_batch: &axes, rhs_batch: &axes, lhs_contract: &[n + 1], rhs_contract: &[n] };
    Ok(b.dot_general(&x, &y, &axes))
}

/// `alpha * A' * B' + beta * C`.
pub(super) fn gemm<'g>(node: &Node<'g>, b: &mut Builder<'g>) -> Result<Value> {
    let attrs = node.attrs();
    let (x, y) = (node.input(b, 0)?, node.input(b, 1)?);
    let lhs = [if attrs.int("transA", 0)? != 0 { 0 } else { 1 }];
    let rhs = [if attrs.int("transB", 0)? != 0 { 1 } else { 0 }];
    if x.rank() != 2 || y.rank() != 2 || x.dims()[lhs[0]] != y.dims()[rhs[0]] {
        return Err(Error::invalid(format!("a product of {} and {}", x.ty, y.ty)));
    }
    let axes = DotDims { lhs_batch: &[], rhs_batch: &[], lhs_contract: &lhs, rhs_contract: &rhs };
    let mut result = b.dot_general(&x, &y, &axes);
    let (alpha, beta) = (attrs.float("alpha", 1.0)?, attrs.float("beta", 1.0)?);
    if alpha != 1.0 {
        result = b.with_number("stablehlo.multiply", &result, alpha.into())?;
    }
    let Some(mut more) = node.optional_input(b, 2)?.filter(|_| beta != 0.0) else {
        return Ok(result);
    };
    if beta != 1.0 {
        more = b.with_number("stablehlo.multiply", &more, beta.into())?;
    }
    let more = b.broadcast(&more, result.dims())?;
    Ok(b.add(&result, &more))
}
