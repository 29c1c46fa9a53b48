//! Elementwise ops, with NumPy's broadcasting for several operands.

use super::extent::{broadcast, broadcasts_to};
use super::{InferFn, Node, invalid};
use crate::onnx_types::dtype_from_onnx;
use crate::types::{BOOL, DType, F32, I8, TensorType, U8, dtype_name};
use crate::{AttrRef, OpRow, Takes};
use devbay_plugin_api::sdk::Result;

/// Returns the inference of an op that has a formula.
pub(crate) const fn of_formula(row: &OpRow) -> Option<InferFn> {
    let Some(form) = row.forms[0] else { return None };
    let infer: InferFn = match (row.inputs.n_single(), matches!(form.takes, Takes::Truths), form.gives_truth)
    {
        _ if form.is_fold => variadic,
        (1, true, _) => not,
        (1, false, true) => bool_of,
        (1, false, false) => same,
        (_, true, _) => logical,
        (_, false, true) => compare,
        (_, false, false) => arithmetic,
    };
    Some(infer)
}

/// Infers one result like the first operand.
pub fn same(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.result(x.dtype, x.shape.clone())
}

/// Infers truth values of the first operand's shape: IsNaN, IsInf.
pub fn bool_of(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    node.result(BOOL, x.shape.clone())
}

/// Infers Not.
pub fn not(node: &Node<'_>) -> Result<Vec<TensorType>> {
    expect_bool(node, 0)?;
    same(node)
}

/// Infers a result of the element type that both operands share.
pub fn arithmetic(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.shared_dtype(&[0, 1])?;
    binary_of_first(node)
}

/// Infers a result of the first of two operands' element type: Pow.
pub fn binary_of_first(node: &Node<'_>) -> Result<Vec<TensorType>> {
    binary(node, node.required(0)?.dtype)
}

/// Infers the comparison of two operands of one element type.
pub fn compare(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.shared_dtype(&[0, 1])?;
    binary(node, BOOL)
}

/// Infers a result of two boolean operands.
pub fn logical(node: &Node<'_>) -> Result<Vec<TensorType>> {
    expect_bool(node, 0)?;
    expect_bool(node, 1)?;
    binary(node, BOOL)
}

fn binary(node: &Node<'_>, dtype: DType) -> Result<Vec<TensorType>> {
    node.required(0)?;
    node.required(1)?;
    node.result(dtype, broadcast(&[node.shape(0), node.shape(1)])?)
}

/// Infers a result of any number of operands of one element type: Sum, Mean, Min, Max.
pub fn variadic(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let inputs: Vec<usize> = (0..node.types.len().max(1)).collect();
    let mut shapes = Vec::with_capacity(inputs.len());
    for &i in &inputs {
        shapes.push(node.required(i)?.shape.as_deref());
    }
    node.result(node.shared_dtype(&inputs)?, broadcast(&shapes)?)
}

/// Infers devbay's FusedElementwise: a list of ops, each with two operands and two numbers.
pub fn fused_elementwise(node: &Node<'_>) -> Result<Vec<TensorType>> {
    check_steps(node)?;
    variadic(node)
}

/// Infers devbay's QuantisedElementwise: the same with a scale and a zero point for each operand, and for the result.
pub fn quantised_elementwise(node: &Node<'_>) -> Result<Vec<TensorType>> {
    check_steps(node)?;
    let n = node.types.len() + 1;
    let n_zeros = node.ints("zero_points").unwrap_or_default().len();
    if node.attr("scales") != Some(AttrRef::Floats(n)) || n_zeros != n {
        return Err(invalid(format!(
            "expected {n} scales and zero points, of the operands and of the result"
        )));
    }
    let dtype = dtype_from_onnx(node.int("to", 0))?;
    let types = (0..node.types.len()).map(|i| node.required(i)).collect::<Result<Vec<_>>>()?;
    if let Some(wrong) =
        types.iter().map(|ty| ty.dtype).chain([dtype]).find(|dtype| ![F32, I8, U8].contains(dtype))
    {
        return Err(invalid(format!(
            "expected operands and a result of f32, i8 or u8, found {}",
            dtype_name(wrong)
        )));
    }
    let shapes: Vec<_> = types.iter().map(|ty| ty.shape.as_deref()).collect();
    node.result(dtype, broadcast(&shapes)?)
}

/// Checks a list of ops, each with two operands and two numbers.
fn check_steps(node: &Node<'_>) -> Result<()> {
    let wrong = |name: &str, what: &str| invalid(format!("expected {what} as attribute {name}"));
    let Some(AttrRef::Strings(n)) = node.attr("ops").filter(|_| !node.types.is_empty()) else {
        return Err(wrong("ops", "names of ops"));
    };
    let n_constants = match node.attr("constants") {
        None => 0,
        Some(AttrRef::Floats(n)) => n as i64,
        Some(_) => return Err(wrong("constants", "numbers")),
    };
    let operands = node.ints("operands").unwrap_or_default();
    // A step reads inputs, constants, and results of earlier steps.
    let is_known = |(i, &at): (usize, &i64)| at >= -n_constants && at < (node.types.len() + i / 2) as i64;
    if n == 0 || operands.len() != 2 * n || !operands.iter().enumerate().all(is_known) {
        return Err(wrong("operands", "two places for each op"));
    }
    if node.attr("params") != Some(AttrRef::Floats(2 * n)) {
        return Err(wrong("params", "two numbers for each op"));
    }
    Ok(())
}

/// Infers Where: a condition and two operands.
pub fn where_(node: &Node<'_>) -> Result<Vec<TensorType>> {
    expect_bool(node, 0)?;
    node.required(1)?;
    node.required(2)?;
    let shape = broadcast(&[node.shape(0), node.shape(1), node.shape(2)])?;
    node.result(node.shared_dtype(&[1, 2])?, shape)
}

/// Infers Clip: limits are single numbers of the operand's type.
pub fn clip(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.shared_dtype(&[0, 1, 2])?;
    same(node)
}

/// Infers PRelu: the slope broadcasts to the operand.
pub fn prelu(node: &Node<'_>) -> Result<Vec<TensorType>> {
    node.required(1)?;
    node.shared_dtype(&[0, 1])?;
    broadcasts_to("a slope", node.shape(1), node.shape(0))?;
    same(node)
}

/// Infers Cast.
pub fn cast(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = dtype_from_onnx(node.int("to", 0))?;
    node.result(dtype, node.required(0)?.shape.clone())
}

/// Infers CastLike.
pub fn cast_like(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let dtype = node.required(1)?.dtype;
    node.result(dtype, node.required(0)?.shape.clone())
}

fn expect_bool(node: &Node<'_>, i: usize) -> Result<()> {
    match node.required(i)?.dtype {
        BOOL => Ok(()),
        other => Err(invalid(format!("expected bool as input {i}, found {}", dtype_name(other)))),
    }
}

/// Infers Dropout: the operand, and the mask of kept elements.
pub fn dropout(node: &Node<'_>) -> Result<Vec<TensorType>> {
    let x = node.required(0)?;
    let mask = TensorType { dtype: BOOL, shape: x.shape.clone() };
    node.results(vec![x.clone(), mask])
}

#[cfg(test)]
mod tests {
    use crate::infer::testing::check;

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
    fn quantised_chains() {
        let op = |scales: &str, zeros: &str, to: i64| {
            let steps = "ops=[Add] operands=[0,1] params=[0.0,0.0]";
            format!("QuantisedElementwise {steps} scales=[{scales}] zero_points=[{zeros}] to={to}")
        };
        check(&op("0.5,1.0,2.0", "3,0,-7", 3), "u8[2,1] f32[3]", "i8[2,3]");
        check(&op("0.5,1.0,2.0", "3,0,0", 1), "u8[2,1] i8[3]", "f32[2,3]");
        let wrong = "error: expected 3 scales and zero points, of the operands and of the result";
        check(&op("0.5,1.0", "3,0,-7", 3), "u8[2,1] f32[3]", wrong);
        check(&op("0.5,1.0,2.0", "3,0", 3), "u8[2,1] f32[3]", wrong);
        let wrong = "error: expected operands and a result of f32, i8 or u8, found i32";
        check(&op("0.5,1.0,2.0", "3,0,-7", 6), "u8[2,1] f32[3]", wrong);
        check(&op("0.5,1.0,2.0", "3,0,-7", 3), "u8[2,1] i32[3]", wrong);
    }

    #[test]
    fn broadcasting() {
        check("Add", "f32[2,3] f32[3]", "f32[2,3]");
        check("Add", "f32[2,1,4] f32[3,1]", "f32[2,3,4]");
        check("Add", "f32[] f32[]", "f32[]");
        check("Add", "f32[0] f32[1]", "f32[0]");
        // A known 1 against an unknown extent gives the unknown one; a known extent above 1 gives itself.
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
