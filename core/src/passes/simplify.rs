//! Removes ops that change nothing, and makes views of those that only change the shape.
//!
//! Readers of a result read the operand instead for a sum with zero, a product with one, a cast to the same type, a
//! transposition that is undone, and a slice of the whole. A transposition that moves only extents of 1, and a
//! reduction over extents of 1, become a Reshape, which costs nothing. No bit changes: for floats, the added zero is
//! -0, since -0 + 0 is 0. For the same reason a sum or mean of one float stays.

use super::renames::Renames;
use super::{each_region, has_constant_shape, reshape};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{AttrValue, Node, Program, Region, ValueId};
use crate::tensor::{BF16, F16, F32, F64, Tensor, n_elements};
use std::collections::HashMap;

/// Simplifies nodes where possible, except nodes that `stay`. Returns the number of changes.
///
/// # Errors
/// Out of memory for a shape.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| simplify(program, region, stay))
}

fn simplify(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut renames = Renames::default();
    // Transpositions and negations by their results: the next one may undo them.
    let mut makers: HashMap<ValueId, Node> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    let mut changes = 0;
    for mut node in std::mem::take(&mut region.nodes) {
        look()?;
        renames.operands(&mut node.inputs);
        node.regions.iter_mut().for_each(|(_, nested)| renames.region(nested));
        if stay(&node) || !node.op.domain.is_empty() || !node.regions.is_empty() {
            kept.push(node);
            continue;
        }
        if merge_transposes(&mut node, &makers) {
            changes += 1;
        }
        if let (Some(same), Some(output)) = (same_as(program, &node, &makers), node.output(0)) {
            renames.add(output, same);
            changes += 1;
            continue;
        }
        if is_reshape(program, &node)
            && let Some(view) = as_reshape(program, &node)?
        {
            node = view;
            changes += 1;
        }
        if let Some(output) = node.output(0).filter(|_| node.op.is("Transpose") || node.op.is("Neg")) {
            makers.insert(output, node.clone());
        }
        kept.push(node);
    }
    region.nodes = kept;
    region.outputs.iter_mut().for_each(|id| *id = renames.of(*id));
    Ok(changes)
}

/// Returns the operand that a node's only result is, if it is one, to the last bit of its type.
fn same_as(program: &Program, node: &Node, makers: &HashMap<ValueId, Node>) -> Option<ValueId> {
    if node.outputs.iter().skip(1).any(Option::is_some) || !has_constant_shape(program, node) {
        return None;
    }
    let only = node.inputs.len() == 1;
    let (a, b) = (node.input(0)?, node.input(1));
    let number = |id: Option<ValueId>| id.and_then(|id| all_of(program, id));
    let same = match &*node.op.name {
        "Add" if b.is_some_and(|id| is_neutral(program, id, -0.0)) => a,
        "Add" if is_neutral(program, a, -0.0) => b?,
        "Sub" if b.is_some_and(|id| is_neutral(program, id, 0.0)) => a,
        "Mul" if number(b) == Some(1.0) => a,
        "Mul" if number(Some(a)) == Some(1.0) => b?,
        "Div" | "Pow" if number(b) == Some(1.0) => a,
        "Cast" | "Expand" => a,
        "Sum" | "Max" | "Min" | "Mean" if only => a,
        "Concat" if only => a,
        "Tile" | "Dropout" if program.constant(a).is_none() && is_inference(program, node) => a,
        "Slice" if steps_forward(program, node) => a,
        "Pad" if node.input(1).and_then(|id| all_of(program, id)) == Some(0.0) => a,
        "Transpose" if is_in_order(node) => a,
        "Neg" => makers.get(&a).filter(|inner| inner.op.is("Neg"))?.input(0)?,
        _ => return None,
    };
    // The other operand may have given the result its shape.
    let ty = |id: ValueId| program.value(id).ty.as_ref().filter(|ty| ty.known_shape().is_some());
    (ty(same)? == ty(node.output(0)?)?).then_some(same)
}

/// Returns the number that all elements of a constant are; None if they differ or it has none.
fn all_of(program: &Program, id: ValueId) -> Option<f64> {
    let tensor = program.constant(id)?;
    fn only(mut values: impl Iterator<Item = f64>) -> Option<f64> {
        let first = values.next()?;
        values.all(|value| value == first).then_some(first)
    }
    match tensor.dtype() {
        F32 => only(tensor.elements::<f32>()?.iter().map(|&value| f64::from(value))),
        F64 => only(tensor.elements::<f64>()?.iter().copied()),
        F16 | BF16 => None,
        _ => tensor.only_int().map(|value| value as f64),
    }
}

/// Returns whether all elements of a constant are a zero: of floats, one of the sign of `zero`.
fn is_neutral(program: &Program, id: ValueId, zero: f64) -> bool {
    let is_like = |is_negative: bool| is_negative == zero.is_sign_negative();
    let has_sign = |tensor: &Tensor| match tensor.dtype() {
        F32 => tensor.elements::<f32>().is_some_and(|all| all.iter().all(|x| is_like(x.is_sign_negative()))),
        F64 => tensor.elements::<f64>().is_some_and(|all| all.iter().all(|x| is_like(x.is_sign_negative()))),
        _ => true,
    };
    all_of(program, id) == Some(0.0) && program.constant(id).is_some_and(has_sign)
}

/// Returns whether a Dropout drops nothing; true for other ops.
fn is_inference(program: &Program, node: &Node) -> bool {
    node.input(2).is_none_or(|id| program.constant(id).and_then(Tensor::to_int) == Some(0))
}

/// Returns whether a slice takes elements in their order: one as large as the whole is then the whole.
fn steps_forward(program: &Program, node: &Node) -> bool {
    node.input(4).is_none_or(|id| all_of(program, id) == Some(1.0))
}

fn is_in_order(node: &Node) -> bool {
    node.ints("perm").is_some_and(|perm| perm.iter().enumerate().all(|(i, &axis)| axis == i as i64))
}

/// Makes one transposition of two that follow each other.
fn merge_transposes(node: &mut Node, makers: &HashMap<ValueId, Node>) -> bool {
    let inner = node.input(0).and_then(|id| makers.get(&id)).filter(|inner| inner.op.is("Transpose"));
    let (Some(inner), Some(outer), true) = (inner, node.ints("perm"), node.op.is("Transpose")) else {
        return false;
    };
    let axes = inner.ints("perm").and_then(|inner| {
        let at = |&axis: &i64| usize::try_from(axis).ok().and_then(|axis| inner.get(axis).copied());
        outer.iter().map(at).collect::<Option<Vec<i64>>>()
    });
    let Some(axes) = axes else { return false };
    node.inputs[0] = inner.inputs[0];
    node.set_attr("perm", AttrValue::Ints(axes));
    true
}

/// Returns whether a node's result has the elements of its first operand in their order.
fn is_reshape(program: &Program, node: &Node) -> bool {
    let shape = |id: Option<ValueId>| program.value(id?).ty.as_ref()?.known_shape();
    let (Some(from), Some(to)) = (shape(node.input(0)), shape(node.output(0))) else { return false };
    if !has_constant_shape(program, node) {
        return false;
    }
    match &*node.op.name {
        "Transpose" => {
            let reversed = || (0..from.len() as i64).rev().collect();
            let perm: Vec<i64> = node.ints("perm").map_or_else(reversed, <[i64]>::to_vec);
            let moved: Vec<i64> =
                perm.into_iter().filter(|&axis| from.get(axis as usize).is_some_and(|&n| n != 1)).collect();
            moved.is_sorted()
        }
        "ReduceSum" | "ReduceMean" if is_float(program, node.input(0)) => false,
        "ReduceSum" | "ReduceMean" | "ReduceMax" | "ReduceMin" | "ReduceProd" => {
            let (before, after) = (n_elements(&from), n_elements(&to));
            before.is_some_and(|n| n > 0) && before == after
        }
        _ => false,
    }
}

fn is_float(program: &Program, id: Option<ValueId>) -> bool {
    let ty = id.and_then(|id| program.value(id).ty.as_ref());
    ty.is_some_and(|ty| [F16, BF16, F32, F64].contains(&ty.dtype))
}

/// Returns the Reshape that a node is; None if the types of its operands are not known.
fn as_reshape(program: &mut Program, node: &Node) -> Result<Option<Node>> {
    let shape = |id: Option<ValueId>| program.value(id?).ty.as_ref()?.known_shape();
    let (Some(of), Some(result), Some(to)) = (node.input(0), node.output(0), shape(node.output(0))) else {
        return Ok(None);
    };
    let mut view = reshape(program, of, &to, result)?;
    view.name = node.name.clone();
    Ok(Some(view))
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;

    #[test]
    fn what_changes_nothing_goes() {
        check(
            "simplify",
            "  %zero = const f32[] [-0.0]\n\
             \u{20} %ones = const f32[1,3] [1.0, 1.0, 1.0]\n\
             \u{20} %a: f32[2,3] = Add@14(%x, %zero)\n\
             \u{20} %b: f32[2,3] = Mul@14(%ones, %a)\n\
             \u{20} %c: f32[2,3] = Cast@28(%b) {to = 1}\n\
             \u{20} %d: f32[2,3] = Neg@13(%c)\n\
             \u{20} %e: f32[2,3] = Neg@13(%d)\n\
             \u{20} %f: f32[2,3] = Exp@13(%e)\n\
             \u{20} return %f, %d\n",
            "  %d: f32[2,3] = Neg@13(%x)\n\
             \u{20} %f: f32[2,3] = Exp@13(%x)\n\
             \u{20} return %f, %d\n",
        );
    }

    #[test]
    fn what_changes_the_shape_or_the_order_stays() {
        let body = "  %zero = const f32[1,2,3] [0.0, 0.0, 0.0, 0.0, 0.0, 0.0]\n\
                    \u{20} %a: f32[1,2,3] = Add@14(%x, %zero)\n\
                    \u{20} %starts = const i64[1] [-1]\n\
                    \u{20} %ends = const i64[1] [-9]\n\
                    \u{20} %axes = const i64[1] [0]\n\
                    \u{20} %steps = const i64[1] [-1]\n\
                    \u{20} %b: f32[2,3] = Slice@13(%x, %starts, %ends, %axes, %steps)\n\
                    \u{20} %c: f32[3,2] = Transpose@25(%x) {perm = [1, 0]}\n\
                    \u{20} return %a, %b, %c\n";
        check("simplify", body, body);
    }

    #[test]
    fn what_changes_the_sign_of_a_zero_stays() {
        let body = "  %plus = const f32[] [0.0]\n\
                    \u{20} %minus = const f32[] [-0.0]\n\
                    \u{20} %a: f32[2,3] = Add@14(%x, %plus)\n\
                    \u{20} %b: f32[2,3] = Add@14(%plus, %x)\n\
                    \u{20} %c: f32[2,3] = Sub@14(%x, %minus)\n\
                    \u{20} %d: f32[2,3] = Mul@14(%x, %plus)\n\
                    \u{20} %e: f32[2,3] = Sub@14(%x, %x)\n\
                    \u{20} %axes = const i64[1] [0]\n\
                    \u{20} %f: f32[3] = ReduceSum@13(%line, %axes) {keepdims = 0}\n\
                    \u{20} return %a, %b, %c, %d, %e, %f\n";
        check("simplify", body, body);
        check(
            "simplify",
            "  %plus = const f32[] [0.0]\n\
             \u{20} %minus = const f32[1,3] [-0.0, -0.0, -0.0]\n\
             \u{20} %a: f32[2,3] = Add@14(%minus, %x)\n\
             \u{20} %b: f32[2,3] = Sub@14(%a, %plus)\n\
             \u{20} %c: f32[2,3] = Exp@13(%b)\n\
             \u{20} return %c\n",
            "  %c: f32[2,3] = Exp@13(%x)\n\
             \u{20} return %c\n",
        );
    }

    #[test]
    fn transpositions_cancel_and_those_of_ones_are_views() {
        check(
            "simplify",
            "  %a: f32[3,2] = Transpose@25(%x) {perm = [1, 0]}\n\
             \u{20} %b: f32[2,3] = Transpose@25(%a) {perm = [1, 0]}\n\
             \u{20} %c: f32[2,3] = Exp@13(%b)\n\
             \u{20} %d: f32[3,1] = Transpose@25(%line) {perm = [1, 0]}\n\
             \u{20} return %c, %d\n",
            "  %c: f32[2,3] = Exp@13(%x)\n\
             \u{20} %shape = const i64[2] [3, 1]\n\
             \u{20} %d: f32[3,1] = Reshape@25(%line, %shape)\n\
             \u{20} return %c, %d\n",
        );
    }
}
