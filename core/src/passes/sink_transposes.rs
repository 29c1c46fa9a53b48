//! Moves transpositions behind ops that do not care in which order the axes are, where less is left to transpose.
//!
//! `op(transpose(a), transpose(b)) = transpose(op(a, b))` for an elementwise op and one order of axes. Of two
//! transpositions that meet in an op one is left, and one that meets its inverse is undone by [`super::simplify`]. So
//! they move where two meet, or where another one lies behind with nothing but such ops in between. Operands that vary
//! along one axis at most follow, unless that makes short rows. Concat takes its axis along; a reduction, its axes, if those are the last ones then.
//! Should no less be left to transpose in the end, the region stays as it was.
//!
//! Models from frameworks that keep channels last have transpositions around each convolution.

use super::uses::reads;
use super::{each_region, is_elementwise, position, reshape};
use crate::cancel::look;
use crate::error::Result;
use crate::program::{AttrValue, Node, Op, Program, Region, Value, ValueId, catalogue};
use crate::tensor::{Tensor, TensorType, n_elements};
use std::collections::{HashMap, HashSet};

/// Ops that reduce the axes of their second operand, all of them if it is absent.
const REDUCTIONS: &[&str] = &["ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"];

/// Rows that are as fast as longer ones. Kernels walk over rows along which each operand either varies or does not; where
/// they become shorter than this, more is lost than a transposition takes.
const ROW_MIN: usize = 16;

/// Moves transpositions where possible, except nodes that `stay`. Returns the number of ops that they moved behind.
///
/// # Errors
/// Out of memory for constants.
pub fn run(program: &mut Program, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    each_region(program, &mut |program, region| {
        if !region.nodes.iter().any(|node| node.op.is("Transpose")) {
            return Ok(0);
        }
        let before = region.nodes.clone();
        let left_before = left(program, region);
        let moved = sink(program, region, stay)?;
        if left(program, region) < left_before {
            return Ok(moved);
        }
        region.nodes = before;
        Ok(0)
    })
}

fn sink(program: &mut Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let ahead = Ahead::of(region, stay);
    let mut transposed: HashMap<ValueId, Transposed> = HashMap::new();
    let mut kept: Vec<Node> = Vec::with_capacity(region.nodes.len());
    let mut moved = 0;
    for mut node in std::mem::take(&mut region.nodes) {
        look()?;
        let kind = if stay(&node) { Kind::Other } else { Kind::of(&node) };
        if kind == Kind::Transpose {
            transposed.extend(node.output(0).zip(Transposed::by(program, &node)));
        }
        let change = Change::of(program, &node, kind, &transposed)
            .filter(|change| change.pays(program, &node, kind, &transposed, &ahead));
        let Some(change) = change else {
            kept.push(node);
            continue;
        };
        moved += 1;
        kept.extend(change.views(program, &mut node)?);
        let behind = change.apply(program, &mut node)?;
        kept.push(node);
        if let Some(behind) = behind {
            transposed.extend(behind.output(0).zip(Transposed::by(program, &behind)));
            kept.push(behind);
        }
    }
    region.nodes = kept;
    Ok(moved)
}

/// A node, as it minds the order of axes.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Elementwise,
    Concat,
    Reduction,
    Transpose,
    Other,
}

impl Kind {
    fn of(node: &Node) -> Self {
        let name = &*node.op.name;
        match node.outputs.as_slice() {
            [Some(_)] if is_elementwise(&node.op) => Self::Elementwise,
            [Some(_)] if !node.op.domain.is_empty() => Self::Other,
            [Some(_)] if REDUCTIONS.contains(&name) => Self::Reduction,
            [Some(_)] if name == "Concat" => Self::Concat,
            [Some(_)] if name == "Transpose" => Self::Transpose,
            _ => Self::Other,
        }
    }
}

/// The uses that lie behind values.
struct Ahead {
    /// Values that a node needs as they are, or that are results.
    needed: HashSet<ValueId>,
    /// Values from which a transposition or a reduction is reached.
    leads: HashSet<ValueId>,
}

impl Ahead {
    fn of(region: &Region, stay: &dyn Fn(&Node) -> bool) -> Self {
        let mut ahead = Self { needed: region.outputs.iter().copied().collect(), leads: HashSet::new() };
        for node in region.nodes.iter().rev() {
            let kind = if stay(node) { Kind::Other } else { Kind::of(node) };
            let leads = match kind {
                Kind::Transpose | Kind::Reduction => true,
                Kind::Elementwise | Kind::Concat => {
                    node.output(0).is_some_and(|output| ahead.leads.contains(&output))
                }
                Kind::Other => {
                    reads(node, &mut ahead.needed);
                    false
                }
            };
            if leads {
                ahead.leads.extend(node.inputs.iter().flatten());
            }
        }
        ahead
    }
}

/// A value that is another one with its axes in another order.
#[derive(Clone)]
struct Transposed {
    source: ValueId,
    /// For each axis, the axis of the source that it is.
    perm: Vec<usize>,
}

impl Transposed {
    /// Returns the transposed value that a Transpose makes.
    fn by(program: &Program, node: &Node) -> Option<Self> {
        let source = node.input(0)?;
        let rank = program.value(source).ty.as_ref()?.known_shape()?.len();
        let perm = match node.ints("perm") {
            Some(perm) => perm.iter().map(|&axis| usize::try_from(axis).ok()).collect::<Option<_>>()?,
            None => (0..rank).rev().collect(),
        };
        Some(Self { source, perm })
    }
}

/// The replacement for an operand of a node.
enum Operand {
    /// Nothing, or the operand itself.
    Same,
    /// The operand before its transposition.
    Source(ValueId),
    /// The operand, its one axis where the sources have it.
    View(Vec<usize>),
    /// A constant.
    Constant(Tensor),
}

/// The form of a node on values that are not transposed.
struct Change {
    operands: Vec<Operand>,
    /// Transpositions among the operands, each once.
    from: Vec<ValueId>,
    /// The axis of a Concat.
    axis: Option<usize>,
    /// The shape of the result, and which of its axes each axis of the node's own result is.
    shape: Vec<usize>,
    behind: Vec<usize>,
}

impl Change {
    fn of(
        program: &Program,
        node: &Node,
        kind: Kind,
        transposed: &HashMap<ValueId, Transposed>,
    ) -> Option<Self> {
        let shape_of = |id: ValueId| program.value(id).ty.as_ref()?.known_shape();
        let perm = node.inputs.iter().flatten().find_map(|id| transposed.get(id))?.perm.clone();
        let result = shape_of(node.output(0)?)?;
        let mut from: Vec<ValueId> =
            node.inputs.iter().flatten().copied().filter(|id| transposed.contains_key(id)).collect();
        from.sort_unstable();
        from.dedup();
        if kind == Kind::Reduction {
            return Self::of_reduction(program, node, transposed.get(&node.input(0)?)?, from, &result);
        }
        if !matches!(kind, Kind::Elementwise | Kind::Concat) || result.len() != perm.len() {
            return None;
        }
        let mut source_shape = vec![0; perm.len()];
        perm.iter().zip(&result).for_each(|(&axis, &extent)| source_shape[axis] = extent);
        let follows = |id: &Option<ValueId>| -> Option<Operand> {
            let Some(id) = *id else { return Some(Operand::Same) };
            if let Some(operand) = transposed.get(&id) {
                return (operand.perm == perm).then_some(Operand::Source(operand.source));
            }
            let shape = shape_of(id)?;
            let n = n_elements(&shape)?;
            if kind == Kind::Concat || shape.len() > perm.len() {
                return None;
            }
            let Some(varies) = shape.iter().position(|&extent| extent != 1) else {
                return Some(Operand::Same);
            };
            if shape[varies] != n {
                return None;
            }
            let axis = perm.len() - shape.len() + varies;
            if row(&source_shape, perm[axis]) < row(&result, axis).min(ROW_MIN) {
                return None;
            }
            let mut moved = vec![1; perm.len()];
            moved[perm[axis]] = n;
            match program.constant(id) {
                Some(constant) => constant.reshaped(&moved).ok().map(Operand::Constant),
                None => Some(Operand::View(moved)),
            }
        };
        let operands = node.inputs.iter().map(follows).collect::<Option<_>>()?;
        let axis = match kind {
            Kind::Concat => Some(perm[position(node.int("axis", 0), perm.len())?]),
            _ => None,
        };
        Some(Self { operands, from, axis, shape: source_shape, behind: perm })
    }

    /// Of a reduction; None where its axes would not be the last ones, which takes longer.
    fn of_reduction(
        program: &Program,
        node: &Node,
        operand: &Transposed,
        from: Vec<ValueId>,
        result: &[usize],
    ) -> Option<Self> {
        let (perm, rank) = (&operand.perm, operand.perm.len());
        let listed = match node.input(1) {
            Some(axes) => Some(program.constant(axes)?.to_ints().ok()??).filter(|axes| !axes.is_empty()),
            None => None,
        };
        let here: Vec<usize> = match &listed {
            Some(axes) => axes.iter().map(|&axis| position(axis, rank)).collect::<Option<_>>()?,
            None if node.int("noop_with_empty_axes", 0) == 0 => (0..rank).collect(),
            None => return None,
        };
        let mut there: Vec<usize> = here.iter().map(|&axis| perm[axis]).collect();
        there.sort_unstable();
        if !there.iter().copied().eq(rank - there.len()..rank) {
            return None;
        }
        let mut operands = vec![Operand::Source(operand.source)];
        if listed.is_some() {
            let axes: Vec<i64> = there.iter().map(|&axis| axis as i64).collect();
            operands.push(Operand::Constant(Tensor::from_elements(&[axes.len()], &axes).ok()?));
        }
        // The axes that stay are the first ones of the source, so that they have the same numbers in its result.
        let stays = || (0..rank).filter(|axis| !here.contains(axis)).map(|axis| perm[axis]).collect();
        let behind = if node.int("keepdims", 1) != 0 { perm.clone() } else { stays() };
        let mut shape = vec![0; behind.len()];
        behind.iter().zip(result).for_each(|(&axis, &extent)| shape[axis] = extent);
        Some(Self { operands, from, axis: None, shape, behind })
    }

    /// Returns whether less is left to transpose, or may be.
    fn pays(
        &self,
        program: &Program,
        node: &Node,
        kind: Kind,
        transposed: &HashMap<ValueId, Transposed>,
        ahead: &Ahead,
    ) -> bool {
        let n =
            |id: ValueId| program.value(id).ty.as_ref()?.known_shape().and_then(|shape| n_elements(&shape));
        let goes: Vec<usize> = self
            .from
            .iter()
            .filter(|id| transposed.contains_key(id) && !ahead.needed.contains(id))
            .filter_map(|id| n(*id))
            .collect();
        let leads = node.output(0).is_some_and(|output| ahead.leads.contains(&output));
        let is_smaller = goes.iter().sum::<usize>() >= n_elements(&self.shape).unwrap_or(usize::MAX);
        match kind {
            Kind::Reduction => !goes.is_empty(),
            // A Concat of transpositions may have them written into its place.
            Kind::Concat => leads && !goes.is_empty(),
            _ => is_smaller && (goes.len() > 1 || leads && !goes.is_empty()),
        }
    }

    /// Operands that are views of others: the nodes that make them.
    fn views(&self, program: &mut Program, node: &mut Node) -> Result<Vec<Node>> {
        let mut views = Vec::new();
        for (operand, input) in self.operands.iter().zip(&mut node.inputs) {
            let (Operand::View(shape), Some(id)) = (operand, *input) else { continue };
            let ty = program.value(id).ty.as_ref().map(|ty| TensorType::new(ty.dtype, shape));
            let view = program.add_value(Value { ty, ..Value::default() });
            views.push(reshape(program, id, shape, view)?);
            *input = Some(view);
        }
        Ok(views)
    }

    /// Changes the node, and gives the transposition of its result, if that has another order.
    fn apply(self, program: &mut Program, node: &mut Node) -> Result<Option<Node>> {
        for (operand, input) in self.operands.into_iter().zip(&mut node.inputs) {
            match operand {
                Operand::Source(source) => *input = Some(source),
                Operand::Constant(tensor) => *input = Some(program.add_constant("", tensor)),
                Operand::Same | Operand::View(_) => {}
            }
        }
        if let Some(axis) = self.axis {
            node.set_attr("axis", AttrValue::Int(axis as i64));
        }
        let Some(def) = catalogue::find("", "Transpose").filter(|_| !self.behind.is_sorted()) else {
            return Ok(None);
        };
        let dtype = node.output(0).and_then(|id| Some(program.value(id).ty.as_ref()?.dtype));
        let ty = dtype.map(|dtype| TensorType::new(dtype, &self.shape));
        let inner = program.add_value(Value { ty, ..Value::default() });
        let mut behind = Node::new(Op::of(def), vec![Some(inner)], std::mem::take(&mut node.outputs));
        behind.set_attr("perm", AttrValue::Ints(self.behind.iter().map(|&axis| axis as i64).collect()));
        node.outputs = vec![Some(inner)];
        Ok(Some(behind))
    }
}

/// Returns the elements that an op does in one go where one of its operands varies along an axis only.
fn row(shape: &[usize], axis: usize) -> usize {
    match n_elements(&shape[axis + 1..]).unwrap_or(usize::MAX) {
        1 => shape[axis],
        inner => inner,
    }
}

/// Returns the number of elements transposed in a region, and of nodes that do so, once successive ones are merged.
fn left(program: &Program, region: &Region) -> (usize, usize) {
    let mut needed: HashSet<ValueId> = region.outputs.iter().copied().collect();
    for node in region.nodes.iter().filter(|node| Kind::of(node) != Kind::Transpose) {
        reads(node, &mut needed);
    }
    let mut whole: HashMap<ValueId, Transposed> = HashMap::new();
    let (mut n, mut nodes) = (0, 0);
    for node in region.nodes.iter().filter(|node| Kind::of(node) == Kind::Transpose) {
        let (Some(mut made), Some(output)) = (Transposed::by(program, node), node.output(0)) else {
            continue;
        };
        if let Some(inner) = whole.get(&made.source) {
            let perm = made.perm.iter().filter_map(|&axis| inner.perm.get(axis).copied()).collect();
            made = Transposed { source: inner.source, perm };
        }
        let shape = program.value(output).ty.as_ref().and_then(|ty| ty.known_shape()).unwrap_or_default();
        // Where only extents of 1 move, it is a view.
        let order = made.perm.iter().zip(&shape).filter(|(_, extent)| **extent != 1).map(|(axis, _)| *axis);
        if needed.contains(&output) && !order.is_sorted() {
            n += n_elements(&shape).unwrap_or(usize::MAX / 2);
            nodes += 1;
        }
        whole.insert(output, made);
    }
    (n, nodes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::check;

    const ORDERS: &str = "  %shape = const i64[3] [1, 2, 3]\n\
                         \u{20} %a: f32[1,2,3] = Reshape@25(%x, %shape)\n";
    const OTHER: &str = "  %b: f32[1,2,3] = Exp@13(%a)\n";

    fn expect(before: &str, after: &str) {
        check("sink-transposes", &format!("{ORDERS}{before}"), &format!("{ORDERS}{after}"));
    }

    #[test]
    fn of_two_that_meet_one_is_left() {
        expect(
            &format!(
                "{OTHER}  %c: f32[1,3,2] = Transpose@25(%a) {{perm = [0, 2, 1]}}\n\
                 \u{20} %d: f32[1,3,2] = Transpose@25(%b) {{perm = [0, 2, 1]}}\n\
                 \u{20} %e: f32[1,3,2] = Add@14(%c, %d)\n\
                 \u{20} return %e\n"
            ),
            &format!(
                "{OTHER}  %sum: f32[1,2,3] = Add@14(%a, %b)\n\
                 \u{20} %e: f32[1,3,2] = Transpose@25(%sum) {{perm = [0, 2, 1]}}\n\
                 \u{20} return %e\n"
            ),
        );
    }

    #[test]
    fn one_moves_towards_its_inverse_and_takes_constants_and_scalars_along() {
        expect(
            "  %c: f32[1,3,2] = Transpose@25(%a) {perm = [0, 2, 1]}\n\
             \u{20} %bias = const f32[2] [1.0, 2.0]\n\
             \u{20} %d: f32[1,3,2] = Add@14(%c, %bias)\n\
             \u{20} %e: f32[1,3,2] = Sigmoid@13(%d)\n\
             \u{20} %f: f32[1,3,2] = Mul@14(%d, %e)\n\
             \u{20} %two = const f32[] [2.0]\n\
             \u{20} %g: f32[1,3,2] = Div@14(%two, %f)\n\
             \u{20} %h: f32[1,2,3] = Transpose@25(%g) {perm = [0, 2, 1]}\n\
             \u{20} return %h\n",
            "  %bias = const f32[1,2,1] [1.0, 2.0]\n\
             \u{20} %d: f32[1,2,3] = Add@14(%a, %bias)\n\
             \u{20} %e: f32[1,2,3] = Sigmoid@13(%d)\n\
             \u{20} %f: f32[1,2,3] = Mul@14(%d, %e)\n\
             \u{20} %two = const f32[] [2.0]\n\
             \u{20} %g: f32[1,2,3] = Div@14(%two, %f)\n\
             \u{20} %g2: f32[1,3,2] = Transpose@25(%g) {perm = [0, 2, 1]}\n\
             \u{20} %h: f32[1,2,3] = Transpose@25(%g2) {perm = [0, 2, 1]}\n\
             \u{20} return %h\n",
        );
    }

    #[test]
    fn a_reduction_over_what_are_the_last_axes_needs_none() {
        expect(
            "  %c: f32[1,3,2] = Transpose@25(%a) {perm = [0, 2, 1]}\n\
             \u{20} %axes = const i64[1] [1]\n\
             \u{20} %d: f32[1,2] = ReduceMean@18(%c, %axes) {keepdims = 0}\n\
             \u{20} return %d\n",
            "  %axes = const i64[1] [2]\n\
             \u{20} %d: f32[1,2] = ReduceMean@18(%a, %axes) {keepdims = 0}\n\
             \u{20} return %d\n",
        );
    }

    #[test]
    fn what_varies_along_one_axis_is_a_view_and_a_concat_takes_its_axis_along() {
        let ahead = "  %shape2 = const i64[3] [1, 4, 2]\n\
                     \u{20} %b: f32[1,4,2] = Reshape@25(%r, %shape2)\n\
                     \u{20} %c: f32[1,4,2] = Exp@13(%b)\n\
                     \u{20} %extents = const i64[3] [1, 1, 4]\n\
                     \u{20} %f: f32[1,1,4] = Reshape@25(%p, %extents)\n";
        expect(
            &format!(
                "{ahead}  %d: f32[1,2,4] = Transpose@25(%b) {{perm = [0, 2, 1]}}\n\
                 \u{20} %e: f32[1,2,4] = Transpose@25(%c) {{perm = [0, 2, 1]}}\n\
                 \u{20} %g: f32[1,4,4] = Concat@13(%d, %e) {{axis = -2}}\n\
                 \u{20} %h: f32[1,4,4] = Mul@14(%g, %f)\n\
                 \u{20} %i: f32[1,4,4] = Transpose@25(%h) {{perm = [0, 2, 1]}}\n\
                 \u{20} return %a, %i\n"
            ),
            &format!(
                "{ahead}  %g: f32[1,4,4] = Concat@13(%b, %c) {{axis = 2}}\n\
                 \u{20} %extents2 = const i64[3] [1, 4, 1]\n\
                 \u{20} %f2: f32[1,4,1] = Reshape@25(%f, %extents2)\n\
                 \u{20} %h: f32[1,4,4] = Mul@14(%g, %f2)\n\
                 \u{20} %h2: f32[1,4,4] = Transpose@25(%h) {{perm = [0, 2, 1]}}\n\
                 \u{20} %i: f32[1,4,4] = Transpose@25(%h2) {{perm = [0, 2, 1]}}\n\
                 \u{20} return %a, %i\n"
            ),
        );
    }

    #[test]
    fn rows_do_not_become_short() {
        let body = "  %shape2 = const i64[3] [1, 3, 2]\n\
                    \u{20} %b: f32[1,3,2] = Reshape@25(%a, %shape2)\n\
                    \u{20} %c: f32[1,2,3] = Transpose@25(%b) {perm = [0, 2, 1]}\n\
                    \u{20} %d: f32[1,2,3] = Add@14(%c, %row)\n\
                    \u{20} %e: f32[1,3,2] = Transpose@25(%d) {perm = [0, 2, 1]}\n\
                    \u{20} return %e\n";
        expect(body, body);
    }

    #[test]
    fn what_would_leave_as_much_stays() {
        let body = "  %b: f32[1,2,3] = Exp@13(%a)\n\
                    \u{20} %c: f32[1,3,2] = Transpose@25(%a) {perm = [0, 2, 1]}\n\
                    \u{20} %d: f32[1,3,2] = Relu@14(%c)\n\
                    \u{20} %e: f32[2,3,1] = Transpose@25(%a) {perm = [1, 2, 0]}\n\
                    \u{20} %f: f32[2,3,1] = Transpose@25(%b) {perm = [1, 2, 0]}\n\
                    \u{20} %g: f32[2,3,1] = Add@14(%e, %f)\n\
                    \u{20} %h: f32[3,2,1] = Transpose@25(%a) {perm = [2, 1, 0]}\n\
                    \u{20} %i: f32[3,2,3] = Add@14(%h, %c)\n\
                    \u{20} return %d, %e, %f, %g, %i\n";
        expect(body, body);
    }
}
