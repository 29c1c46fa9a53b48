//! Moves nodes that are the same in all iterations of a Loop or Scan in front of it, where they are calculated once.
//!
//! A node moves that has no regions, is pure, whose results have known types, and whose operands are all made outside of
//! the body: captures, constants, and results of nodes that have moved. Bodies of nested loops come first, so that a
//! node may leave several. Branches of an If are left alone, since they may not be taken.
//!
//! A body may run no iteration at all, and then nothing of it may fail. Unless the first iteration is certain, only ops
//! move whose kernels do not look at values to refuse them.

use super::{each_region, has_constant_shape};
use crate::cancel::look;
use crate::error::Result;
use crate::program::catalogue;
use crate::program::scan::{ScanLayout, resolve_axis};
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{BF16, DType, F16, F32, F64, Tensor};
use devbay_ops::Failure;
use std::collections::HashSet;

/// Moves nodes where possible, except nodes that `stay`. Returns the number of nodes that left a body, once for each
/// body.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| hoist(program, region, stay))
}

/// Moves nodes out of the bodies of a region's loops, to the places in front of these.
fn hoist(program: &Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut hoisted = 0;
    let mut nodes = Vec::with_capacity(region.nodes.len());
    for mut node in std::mem::take(&mut region.nodes) {
        look()?;
        if node.op.is("Loop") || node.op.is("Scan") {
            let certain = runs_once(program, &node);
            let may_move = |inner: &Node| {
                !stay(inner) && is_settled(program, inner) && (certain || cannot_fail(program, inner))
            };
            for (_, body) in &mut node.regions {
                let moved = take_invariants(body, &may_move)?;
                hoisted += moved.len();
                nodes.extend(moved);
            }
        }
        nodes.push(node);
    }
    region.nodes = nodes;
    Ok(hoisted)
}

/// Takes the nodes out of a body that may move and need nothing that is made in it.
fn take_invariants(body: &mut Region, may_move: &dyn Fn(&Node) -> bool) -> Result<Vec<Node>> {
    let mut inside: HashSet<ValueId> = body.inputs.iter().copied().collect();
    let (mut moved, mut kept) = (Vec::new(), Vec::with_capacity(body.nodes.len()));
    for node in std::mem::take(&mut body.nodes) {
        look()?;
        if may_move(&node) && !node.inputs.iter().flatten().any(|id| inside.contains(id)) {
            moved.push(node);
        } else {
            inside.extend(node.outputs.iter().flatten());
            kept.push(node);
        }
    }
    body.nodes = kept;
    Ok(moved)
}

/// Returns whether a node gives the same for the same operands, and all its results have known types.
fn is_settled(program: &Program, node: &Node) -> bool {
    let is_pure = catalogue::find(&node.op.domain, &node.op.name).is_some_and(|def| def.is_pure());
    let known = |id: &ValueId| program.value(*id).ty.as_ref().is_some_and(|ty| ty.known_shape().is_some());
    is_pure && node.regions.is_empty() && node.outputs.iter().flatten().all(known)
}

/// Returns whether a loop has a first iteration, whatever its inputs hold.
fn runs_once(program: &Program, node: &Node) -> bool {
    let number = |id: ValueId| program.constant(id).and_then(Tensor::to_int);
    if node.op.is("Loop") {
        let at_least_one = |i: usize| node.input(i).is_none_or(|id| number(id).is_some_and(|n| n > 0));
        return at_least_one(0) && at_least_one(1);
    }
    let Some(layout) = node.region("body").and_then(|body| ScanLayout::of(node, body).ok()) else {
        return false;
    };
    let extent = |i: usize| {
        let shape = program.value(node.input(i)?).ty.as_ref()?.shape.as_ref()?;
        shape[resolve_axis(*layout.input_axes.get(i - layout.n_states)?, shape.len())?].known()
    };
    (layout.n_states..node.inputs.len()).next().and_then(extent).is_some_and(|extent| extent > 0)
}

/// Returns whether a node gives a result for every value of its operands.
fn cannot_fail(program: &Program, node: &Node) -> bool {
    let Some(def) = catalogue::find(&node.op.domain, &node.op.name) else { return false };
    if !has_constant_shape(program, node) {
        return false;
    }
    let is_float = |dtype: DType| [F32, F64, F16, BF16].contains(&dtype);
    let floats = || {
        let mut ids = node.inputs.iter().chain(&node.outputs).flatten();
        ids.all(|id| program.value(*id).ty.as_ref().is_some_and(|ty| is_float(ty.dtype)))
    };
    match def.failure {
        Failure::Never => true,
        Failure::OnIntegers => floats(),
        Failure::Possible => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text::{parse, print};
    use crate::program::verify::verify;

    /// Expects the body of a program to become another.
    fn check(before: &str, after: &str) {
        let program = |body: &str| {
            let inputs = "%n: i64[], %x: f32[2,2], %w: f32[2,2], %rows: f32[3,2], %at: i64[2], %div: i64[2]";
            let text = format!("devbay-program 1\n\nprogram \"\"({inputs}) {{\n{body}}}\n");
            parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
        };
        let mut found = program(before);
        run(&mut found, &|node| &*node.name == "pinned").unwrap();
        verify(&found).unwrap();
        assert_eq!(print(&found), print(&program(after)));
    }

    #[test]
    fn what_needs_no_iteration_leaves_a_loop() {
        check(
            "  %y: f32[2,2] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {\n\
             \u{20}   %t: f32[2,2] = Transpose@25(%w) {perm = [1, 0]}\n\
             \u{20}   %p: f32[2,2] = MatMul@13(%v, %t)\n\
             \u{20}   %e: f32[2,2] = Exp@13(%t)\n\
             \u{20}   %s: f32[2,2] = Add@14(%p, %e)\n\
             \u{20}   return %go, %s\n  }\n  return %y\n",
            "  %t: f32[2,2] = Transpose@25(%w) {perm = [1, 0]}\n\
             \u{20} %e: f32[2,2] = Exp@13(%t)\n\
             \u{20} %y: f32[2,2] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {\n\
             \u{20}   %p: f32[2,2] = MatMul@13(%v, %t)\n\
             \u{20}   %s: f32[2,2] = Add@14(%p, %e)\n\
             \u{20}   return %go, %s\n  }\n  return %y\n",
        );
    }

    #[test]
    fn nodes_leave_as_many_loops_as_do_not_change_them() {
        check(
            "  %y: f32[2,2] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {\n\
             \u{20}   %z: f32[2,2] = Loop@25(%n, _, %v) body(%j: i64[], %on: bool[], %u: f32[2,2]) {\n\
             \u{20}     %a: f32[2,2] = Neg@13(%w)\n\
             \u{20}     %b: f32[2,2] = Add@14(%a, %v)\n\
             \u{20}     %c: f32[2,2] = Add@14(%b, %u)\n\
             \u{20}     return %on, %c\n    }\n\
             \u{20}   return %go, %z\n  }\n  return %y\n",
            "  %a: f32[2,2] = Neg@13(%w)\n\
             \u{20} %y: f32[2,2] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {\n\
             \u{20}   %b: f32[2,2] = Add@14(%a, %v)\n\
             \u{20}   %z: f32[2,2] = Loop@25(%n, _, %v) body(%j: i64[], %on: bool[], %u: f32[2,2]) {\n\
             \u{20}     %c: f32[2,2] = Add@14(%b, %u)\n\
             \u{20}     return %on, %c\n    }\n\
             \u{20}   return %go, %z\n  }\n  return %y\n",
        );
    }

    #[test]
    fn what_may_fail_leaves_only_where_the_first_iteration_is_certain() {
        let looped = |trips: &str, outside: &str, inside: &str| {
            format!(
                "  %three = const i64[] [3]\n{outside}\
                 \u{20} %y: f32[2,2] = Loop@25({trips}, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {{\n\
                 {inside}    %s: f32[2,2] = Add@14(%v, %g)\n    return %go, %s\n  }}\n  return %three, %y\n"
            )
        };
        let gather = "  %q: i64[2] = Div@14(%at, %div)\n  %g: f32[2,2] = Gather@13(%rows, %q)\n";
        let before = looped("%n", "", gather);
        check(&before, &before);
        check(&looped("%three", "", gather), &looped("%three", gather, ""));
    }

    #[test]
    fn nodes_of_a_scan_leave_and_those_of_branches_and_pinned_ones_stay() {
        let scan = |outside: &str, inside: &str| {
            format!(
                "{outside}  %y: f32[3,2] = Scan@25(%rows) {{num_scan_inputs = 1}} body(%r: f32[2]) {{\n\
                 {inside}    %s: f32[2] = Add@14(%r, %g)\n    return %s\n  }}\n  return %y\n"
            )
        };
        let gather = "  %g: f32[2] = ReduceSum@13(%w, %at)\n";
        let pinned = "  %g: f32[2] = ReduceSum@13(%w, %at) as \"pinned\"\n";
        check(&scan("", gather), &scan(gather, ""));
        check(&scan("", pinned), &scan("", pinned));
        let branches = "  %y: f32[2,2] = Loop@25(%n, %go, %x) body(%i: i64[], %on: bool[], %v: f32[2,2]) {\n\
             \u{20}   %z: f32[2,2] = If@25(%on) then_branch() {\n      %a: f32[2,2] = Neg@13(%w)\n      return %a\n    } \
             else_branch() {\n      return %v\n    }\n    return %on, %z\n  }\n  return %y\n";
        let branches = format!("  %go = const bool[] [true]\n{branches}");
        check(&branches, &branches);
    }

    #[test]
    fn what_a_shape_of_the_run_may_make_fail_stays() {
        let body = "  %y: f32[2,2] = Loop@25(%n, _, %x) body(%i: i64[], %go: bool[], %v: f32[2,2]) {\n\
                    \u{20}   %r: f32[4,1] = Reshape@25(%w, %at)\n\
                    \u{20}   %s: f32[1] = ReduceSum@13(%r, %div) {keepdims = 0}\n\
                    \u{20}   %t: f32[2,2] = Add@14(%v, %s)\n\
                    \u{20}   return %go, %t\n  }\n  return %y\n";
        check(body, body);
    }
}
