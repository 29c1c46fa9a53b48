//! Ops that work element by element, with NumPy's broadcasting where there are several operands.

use super::extent::{broadcast, broadcasts_to};
use super::{Operands, invalid};
use crate::error::Result;
use crate::program::AttrValue;
use crate::program::onnx_types::dtype_from_onnx;
use crate::tensor::{BOOL, DType, TensorType, dtype_name};

/// One result like the first operand.
pub fn same(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    ops.result(x.dtype, x.shape.clone())
}

/// Truth values of the first operand's shape: IsNaN, IsInf.
pub fn bool_of(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    ops.result(BOOL, x.shape.clone())
}

/// Not.
pub fn not(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    expect_bool(ops, 0)?;
    same(ops)
}

/// Two operands of one element type, which the result has too.
pub fn arithmetic(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    ops.shared_dtype(&[0, 1])?;
    binary_of_first(ops)
}

/// Two operands; the result has the first one's element type: Pow.
pub fn binary_of_first(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    binary(ops, ops.required(0)?.dtype)
}

/// Two operands of one element type, compared.
pub fn compare(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    ops.shared_dtype(&[0, 1])?;
    binary(ops, BOOL)
}

/// Two operands of truth values.
pub fn logical(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    expect_bool(ops, 0)?;
    expect_bool(ops, 1)?;
    binary(ops, BOOL)
}

fn binary(ops: &Operands<'_>, dtype: DType) -> Result<Vec<TensorType>> {
    ops.required(0)?;
    ops.required(1)?;
    ops.result(dtype, broadcast(&[ops.shape(0), ops.shape(1)])?)
}

/// Any number of operands of one element type: Sum, Mean, Min, Max.
pub fn variadic(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let inputs: Vec<usize> = (0..ops.types.len().max(1)).collect();
    let mut shapes = Vec::with_capacity(inputs.len());
    for &i in &inputs {
        shapes.push(ops.required(i)?.shape.as_deref());
    }
    ops.result(ops.shared_dtype(&inputs)?, broadcast(&shapes)?)
}

/// devbay's FusedElementwise: a list of ops, each with two operands and two numbers.
pub fn fused_elementwise(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let wrong = |name: &str, what: &str| invalid(format!("expected {what} as attribute {name}"));
    let Some(AttrValue::Strings(names)) = ops.node.attr("ops").filter(|_| !ops.types.is_empty()) else {
        return Err(wrong("ops", "names of ops"));
    };
    let n_constants = match ops.node.attr("constants") {
        None => 0,
        Some(AttrValue::Floats(constants)) => constants.len() as i64,
        Some(_) => return Err(wrong("constants", "numbers")),
    };
    let operands = ops.node.ints("operands").unwrap_or_default();
    // A step reads inputs, constants, and what the steps before it made.
    let is_known = |(i, &at): (usize, &i64)| at >= -n_constants && at < (ops.types.len() + i / 2) as i64;
    if names.is_empty() || operands.len() != 2 * names.len() || !operands.iter().enumerate().all(is_known) {
        return Err(wrong("operands", "two places for each op"));
    }
    if !matches!(ops.node.attr("params"), Some(AttrValue::Floats(params)) if params.len() == 2 * names.len())
    {
        return Err(wrong("params", "two numbers for each op"));
    }
    variadic(ops)
}

/// Where: a condition and two operands.
pub fn where_(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    expect_bool(ops, 0)?;
    ops.required(1)?;
    ops.required(2)?;
    let shape = broadcast(&[ops.shape(0), ops.shape(1), ops.shape(2)])?;
    ops.result(ops.shared_dtype(&[1, 2])?, shape)
}

/// Clip: limits are single numbers of the operand's type.
pub fn clip(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    ops.shared_dtype(&[0, 1, 2])?;
    same(ops)
}

/// PRelu: the slope broadcasts to the operand.
pub fn prelu(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    ops.required(1)?;
    ops.shared_dtype(&[0, 1])?;
    broadcasts_to("a slope", ops.shape(1), ops.shape(0))?;
    same(ops)
}

/// Cast.
pub fn cast(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let dtype = dtype_from_onnx(ops.node.int("to", 0))?;
    ops.result(dtype, ops.required(0)?.shape.clone())
}

/// CastLike.
pub fn cast_like(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let dtype = ops.required(1)?.dtype;
    ops.result(dtype, ops.required(0)?.shape.clone())
}

fn expect_bool(ops: &Operands<'_>, i: usize) -> Result<()> {
    match ops.required(i)?.dtype {
        BOOL => Ok(()),
        other => Err(invalid(format!("expected bool as input {i}, found {}", dtype_name(other)))),
    }
}

/// Dropout: the operand, and which elements are kept.
pub fn dropout(ops: &Operands<'_>) -> Result<Vec<TensorType>> {
    let x = ops.required(0)?;
    let mask = TensorType { dtype: BOOL, shape: x.shape.clone() };
    ops.results(vec![x.clone(), mask])
}

#[cfg(test)]
mod tests {
    use crate::program::infer::testing::check;

    #[test]
    fn unary() {
        check("Relu", "f32[2,n,?]", "f32[2,n,?]");
        check("Relu", "f16[..]", "f16[..]");
        check("Relu", "-", "error: expected an input 0, found 0 inputs");
        check("Not", "bool[2]", "bool[2]");
        check("Not", "f32[2]", "error: expected bool as input 0, found f32");
        check("IsNaN", "f32[2,n]", "bool[2,n]");
        check("Clip", "f32[2] f32[] -", "f32[2]");
        check(
            "Clip",
            "f32[2] - f64[]",
            "error: expected one element type, found f32 as input 0 and f64 as input 2",
        );
    }

    #[test]
    fn fused() {
        let op = |operands: &str| {
            format!(
                "FusedElementwise ops=[Add,Relu] operands=[{operands}] params=[0.0,0.0,0.0,0.0] constants=[1.5]"
            )
        };
        check(&op("0,1,2,2"), "f32[2,1] f32[3]", "f32[2,3]");
        check(&op("0,-1,1,1"), "f32[2]", "f32[2]");
        check(&op("0,3,2,2"), "f32[2,1] f32[3]", "error: expected two places for each op");
        check(&op("0,-2,1,1"), "f32[2]", "error: expected two places for each op");
        check(&op("0,1"), "f32[2] f32[2]", "error: expected two places for each op");
        check("FusedElementwise", "f32[2]", "error: expected names of ops as attribute ops");
    }

    #[test]
    fn broadcasting() {
        check("Add", "f32[2,3] f32[3]", "f32[2,3]");
        check("Add", "f32[2,1,4] f32[3,1]", "f32[2,3,4]");
        check("Add", "f32[] f32[]", "f32[]");
        check("Add", "f32[0] f32[1]", "f32[0]");
        // A known 1 against an unknown extent gives the unknown one, a known extent above 1 itself.
        check("Add", "f32[1,5] f32[n,m]", "f32[n,5]");
        check("Add", "f32[n,?] f32[n,?]", "f32[n,?]");
        check("Add", "f32[n] f32[m]", "f32[?]");
        check("Add", "f32[n] f32[2,1]", "f32[2,n]");
        check("Add", "f32[..] f32[2]", "f32[..]");
        check("Add", "f32[2,3] f32[2]", "error: expected shapes that broadcast, found [2,3] and [2]");
        check(
            "Add",
            "f32[2] i32[2]",
            "error: expected one element type, found f32 as input 0 and i32 as input 1",
        );
        check("Add", "f32[2]", "error: expected an input 1, found 1 inputs");
        check("Pow", "f32[2] i64[]", "f32[2]");
        check("Less", "i64[n] i64[]", "bool[n]");
        check("And", "bool[n] bool[2,1]", "bool[2,n]");
        check("Where", "bool[2,1] f32[3] f32[]", "f32[2,3]");
        check("Max", "f32[2] f32[1] f32[3,1]", "f32[3,2]");
        check("Sum", "f32[4]", "f32[4]");
        check("Sum", "", "error: expected an input 0, found 0 inputs");
        check("PRelu", "f32[2,3] f32[3]", "f32[2,3]");
        check("PRelu", "f32[3] f32[2,3]", "error: expected a slope that broadcasts to [3], found [2,3]");
    }

    #[test]
    fn casts() {
        check("Cast to=7", "f32[2,n]", "i64[2,n]");
        check("Cast to=8", "f32[2]", "error: expected an element type that devbay has, found ONNX's STRING");
        check("Cast", "f32[2]", "error: expected ONNX's number of an element type, found 0");
        check("CastLike", "f32[2,n] i8[..]", "i8[2,n]");
        check("Cast to=22", "f32[2,n]", "i4[2,n]");
    }

    #[test]
    fn dropping() {
        check("Dropout", "f32[2,n] f32[] bool[]", "f32[2,n] bool[2,n]");
    }
}
