//! Fuses successive elementwise ops on f32 into one, so that intermediate values are not written to memory.
//!
//! The result is devbay's `FusedElementwise` 1 (docs/fused-ops.md). A group grows from its last op towards those before
//! it: an op joins whose result has the group's shape and is used inside the group alone, so that nothing is calculated
//! twice. A device that has no kernel for it keeps the plain ops.
//!
//! Runs on specialised programs, after [`super::fuse`], which takes the ops that belong to a convolution or a product.

use super::uses::Uses;
use super::{clip_limits, each_region, scalar};
use crate::cancel::look;
use crate::error::Result;
use crate::kernel::KernelTable;
use crate::program::{AttrValue, DEVBAY_DOMAIN, Node, Op, Program, Region, ValueId};
use crate::tensor::{F32, n_elements};
use devbay_ops::Form;
use devbay_ops::formula::{self, Formula};
use std::collections::{BTreeSet, BinaryHeap, HashMap};

/// Ops of a group, at most.
const OPS_MAX: usize = 24;
/// Tensors that a group reads, at most: with the result, as many buffers as every GPU binds at once.
const INPUTS_MAX: usize = 7;
/// Numbers that a group has built in, at most.
const CONSTANTS_MAX: usize = 16;

/// Fuses nodes if the kernels allow it, except nodes that `stay`. Returns the number of removed nodes.
///
/// # Errors
/// Cancelled, or past the deadline.
pub fn run(program: &mut Program, kernels: &KernelTable, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    if !kernels.has(DEVBAY_DOMAIN, "FusedElementwise") {
        return Ok(0);
    }
    each_region(program, &mut |program, region| fuse(program, region, stay))
}

fn fuse(program: &Program, region: &mut Region, stay: &dyn Fn(&Node) -> bool) -> Result<usize> {
    let mut fused = 0;
    let uses = Uses::of_region(program, region);
    let steps: Vec<Option<Fusible>> =
        region.nodes.iter().map(|node| step_of(program, node).filter(|_| !stay(node))).collect();
    let makers: HashMap<ValueId, usize> =
        steps.iter().enumerate().filter_map(|(at, step)| Some((step.as_ref()?.output, at))).collect();
    let search = Search { program, uses: &uses, steps: &steps, makers: &makers };
    let mut gone = vec![false; steps.len()];
    let mut made: HashMap<usize, Node> = HashMap::new();
    for last in (0..steps.len()).rev().filter(|&at| steps[at].is_some()) {
        look()?;
        if gone[last] {
            continue;
        }
        let members = search.group(last, &gone);
        let several = members.len() > 1;
        let Some(node) = search.node(&members, &region.nodes[last]).filter(|_| several) else { continue };
        members.iter().for_each(|&at| gone[at] = true);
        fused += members.len() - 1;
        made.insert(last, node);
    }
    let nodes = std::mem::take(&mut region.nodes).into_iter().enumerate();
    // A group stands where its last op was: operands of it may be made in between.
    let kept = nodes.filter_map(|(at, node)| made.remove(&at).or_else(|| (!gone[at]).then_some(node)));
    region.nodes = kept.collect();
    Ok(fused)
}

/// Returns a node as a fused one, which has one op if it is none yet; None for a node that cannot be fused.
pub(super) fn as_fused(program: &Program, uses: &Uses, node: &Node) -> Option<Node> {
    if node.op == Op::devbay("FusedElementwise", 1) {
        return Some(node.clone());
    }
    let step = step_of(program, node)?;
    let makers = HashMap::from([(step.output, 0)]);
    let steps = [Some(step)];
    Search { program, uses, steps: &steps, makers: &makers }.node(&BTreeSet::from([0]), node)
}

/// An op that may be fused.
struct Fusible {
    op: &'static str,
    /// Values that the node reads.
    reads: Vec<ValueId>,
    /// Operands of the calculation.
    operands: Vec<ValueId>,
    params: [f32; 2],
    output: ValueId,
    shape: Vec<usize>,
}

/// Returns the formula of a node that may be a step: that of its op, or of the form that its attributes say.
fn formula_of(node: &Node) -> Option<&'static Formula> {
    let mut forms = formula::of_op(&node.op.domain, &node.op.name).filter(|formula| formula.row.is_fused);
    let usual = forms.next()?;
    let is_said = |form: &Form| form.when.is_some_and(|(name, value)| node.string(name, "") == value);
    Some(forms.find(|formula| is_said(formula.form)).unwrap_or(usual))
}

/// A node as a step of a group; None if it cannot be one.
fn step_of(program: &Program, node: &Node) -> Option<Fusible> {
    if node.outputs.len() != 1 {
        return None;
    }
    let shape_of = |id: ValueId| {
        let ty = program.value(id).ty.as_ref().filter(|ty| ty.dtype == F32)?;
        ty.known_shape()
    };
    let output = node.output(0)?;
    let shape = shape_of(output)?;
    let formula = formula_of(node);
    let mut params = [0.0; 2];
    let reads: Vec<ValueId> = match &*node.op.name {
        // Its limits are numbers of the step.
        "Clip" => {
            params = clip_limits(program, node)?;
            vec![node.input(0)?]
        }
        _ => {
            for (param, of) in params.iter_mut().zip(formula.iter().flat_map(|formula| &formula.params)) {
                *param = node.float(of.name, of.default);
            }
            node.inputs.iter().copied().collect::<Option<_>>()?
        }
    };
    let mut operands = reads.clone();
    let op = match formula {
        Some(formula) if formula.n_operands == operands.len() => formula.name(),
        // A square is a product, exactly.
        None if node.op.is("Pow") && scalar(program, *operands.get(1)?)? == 2.0 => {
            operands[1] = operands[0];
            "Mul"
        }
        _ => return None,
    };
    if operands.iter().any(|&id| shape_of(id).is_none()) {
        return None;
    }
    Some(Fusible { op, reads, operands, params, output, shape })
}

struct Search<'a> {
    program: &'a Program,
    uses: &'a Uses,
    /// By node.
    steps: &'a [Option<Fusible>],
    makers: &'a HashMap<ValueId, usize>,
}

impl Search<'_> {
    fn step(&self, at: usize) -> &Fusible {
        self.steps[at].as_ref().expect("only steps are members")
    }

    /// Returns the nodes of the group that ends with `last`, in order.
    fn group(&self, last: usize, gone: &[bool]) -> BTreeSet<usize> {
        let mut members = BTreeSet::from([last]);
        let mut within: HashMap<ValueId, u32> = HashMap::new();
        // Makers of members' operands, the last node first: nodes are in order, so that all members that use a value
        // were looked at before its maker.
        let mut makers: BinaryHeap<usize> = BinaryHeap::new();
        let mut count = |makers: &mut BinaryHeap<usize>, at: usize| {
            for &id in &self.step(at).reads {
                let used = within.entry(id).or_default();
                *used += 1;
                makers.extend(self.makers.get(&id).filter(|_| *used == self.uses.count(id)));
            }
        };
        count(&mut makers, last);
        while let Some(at) = makers.pop() {
            if gone[at] || self.step(at).shape != self.step(last).shape {
                continue;
            }
            members.insert(at);
            if members.len() > OPS_MAX || !self.fits(&members) {
                members.remove(&at);
                continue;
            }
            count(&mut makers, at);
        }
        members
    }

    /// Tensors and numbers that a group reads.
    fn leaves(&self, members: &BTreeSet<usize>) -> (Vec<ValueId>, Vec<f32>) {
        let (mut inputs, mut constants): (Vec<ValueId>, Vec<f32>) = (Vec::new(), Vec::new());
        for id in members.iter().flat_map(|&at| &self.step(at).operands) {
            if self.makers.get(id).is_some_and(|at| members.contains(at)) {
                continue;
            }
            match scalar(self.program, *id) {
                Some(number) if !constants.iter().any(|known| known.to_bits() == number.to_bits()) => {
                    constants.push(number);
                }
                Some(_) => {}
                None if !inputs.contains(id) => inputs.push(*id),
                None => {}
            }
        }
        // A result may share its memory with the first one.
        let last = members.last().expect("a group has a node");
        let size = |id: &ValueId| {
            let ty = self.program.value(*id).ty.as_ref();
            ty.and_then(|ty| ty.known_shape()).and_then(|shape| n_elements(&shape))
        };
        let whole = n_elements(&self.step(*last).shape);
        inputs.sort_by_key(|id| size(id) != whole);
        (inputs, constants)
    }

    fn fits(&self, members: &BTreeSet<usize>) -> bool {
        let (inputs, constants) = self.leaves(members);
        inputs.len() <= INPUTS_MAX && constants.len() <= CONSTANTS_MAX
    }

    /// Returns the fused node in place of the group's last one; None if it would have another shape.
    fn node(&self, members: &BTreeSet<usize>, last: &Node) -> Option<Node> {
        let (inputs, constants) = self.leaves(members);
        if inputs.is_empty() || !self.gives_shape(&inputs, last) {
            return None;
        }
        let order: Vec<usize> = members.iter().copied().collect();
        // Inputs, then results of the ops, then, below zero, constants.
        let place = |id: &ValueId| -> Option<i64> {
            if let Some(i) = inputs.iter().position(|input| input == id) {
                return Some(i as i64);
            }
            let made = self.makers.get(id).and_then(|at| order.binary_search(at).ok());
            if let Some(i) = made {
                return Some((inputs.len() + i) as i64);
            }
            let number = scalar(self.program, *id)?;
            let i = constants.iter().position(|known| known.to_bits() == number.to_bits())?;
            Some(-1 - i as i64)
        };
        let (mut ops, mut operands, mut params) = (Vec::new(), Vec::new(), Vec::new());
        for &at in &order {
            let step = self.step(at);
            ops.push(step.op.to_owned());
            // An op of one operand has it twice.
            let [a, b] = [step.operands.first()?, step.operands.last()?];
            operands.extend([place(a)?, place(b)?]);
            params.extend(step.params);
        }
        let mut node = Node::new(
            Op::devbay("FusedElementwise", 1),
            inputs.into_iter().map(Some).collect(),
            last.outputs.clone(),
        );
        node.name = last.name.clone();
        node.set_attr("ops", AttrValue::Strings(ops));
        node.set_attr("operands", AttrValue::Ints(operands));
        node.set_attr("params", AttrValue::Floats(params));
        node.set_attr("constants", AttrValue::Floats(constants));
        Some(node)
    }

    /// Returns whether the tensors that are read give the result's shape: a number of a high rank, which is built in,
    /// may have given it more dimensions.
    fn gives_shape(&self, inputs: &[ValueId], last: &Node) -> bool {
        let shape = |id: ValueId| self.program.value(id).ty.as_ref().and_then(|ty| ty.known_shape());
        let Some(wanted) = last.output(0).and_then(shape) else { return false };
        let mut found = vec![1; wanted.len()];
        for &input in inputs {
            let Some(own) = shape(input) else { return false };
            let Some(before) = wanted.len().checked_sub(own.len()) else { return false };
            for (found, own) in found[before..].iter_mut().zip(own) {
                *found = if *found == 1 { own } else { *found };
            }
        }
        let longest = inputs.iter().filter_map(|&id| shape(id)).map(|shape| shape.len()).max();
        found == wanted && longest == Some(wanted.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::text::{parse, print};

    /// Expects the body of a program with input x: f32[2,3] to become another.
    fn check(before: &str, after: &str) {
        let program = |body: &str| {
            format!(
                "devbay-program 1\n\nprogram \"\"(%x: f32[2,3], %row: f32[3], %wide: f32[4,2,3]) {{\n{body}}}\n"
            )
        };
        let mut found = parse(&program(before)).unwrap_or_else(|e| panic!("{e}"));
        let mut main = std::mem::take(&mut found.main);
        fuse(&found, &mut main, &|node| &*node.name == "pinned").unwrap_or_else(|e| panic!("{e}"));
        found.main = main;
        let expected = parse(&program(after)).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(print(&found), print(&expected));
    }

    #[test]
    fn a_line_of_ops_becomes_one() {
        check(
            "  %half = const f32[1] [0.5]\n\
             \u{20} %a: f32[2,3] = Add@14(%x, %row)\n\
             \u{20} %b: f32[2,3] = LeakyRelu@16(%a) {alpha = 0.25}\n\
             \u{20} %c: f32[2,3] = Mul@14(%half, %b)\n\
             \u{20} return %c\n",
            "  %c: f32[2,3] = devbay.FusedElementwise@1(%x, %row) {ops = [\"Add\", \"LeakyRelu\", \"Mul\"], \
             operands = [0, 1, 2, 2, -1, 3], params = [0.0, 0.0, 0.25, 0.0, 0.0, 0.0], constants = [0.5]}\n\
             \u{20} return %c\n",
        );
    }

    #[test]
    fn limits_are_numbers_of_the_step() {
        check(
            "  %most = const f32[] [6.0]\n\
             \u{20} %a: f32[2,3] = Clip@13(%x, _, %most)\n\
             \u{20} %b: f32[2,3] = Max@13(%a, %row)\n\
             \u{20} return %b\n",
            "  %b: f32[2,3] = devbay.FusedElementwise@1(%x, %row) {ops = [\"Clip\", \"Max\"], \
             operands = [0, 0, 2, 1], params = [-inf, 6.0, 0.0, 0.0], constants = floats []}\n\
             \u{20} return %b\n",
        );
        // One of three operands, and one whose limit comes with the run, stay.
        let stays = "  %a: f32[2,3] = Max@13(%x, %row, %x)\n\
                     \u{20} %most: f32[] = ReduceMax@18(%x) {keepdims = 0}\n\
                     \u{20} %b: f32[2,3] = Clip@13(%a, _, %most)\n\
                     \u{20} return %b\n";
        check(stays, stays);
    }

    #[test]
    fn a_value_that_the_group_alone_uses_twice_is_inside() {
        check(
            "  %two = const f32[] [2.0]\n\
             \u{20} %a: f32[2,3] = Neg@13(%x)\n\
             \u{20} %b: f32[2,3] = Sigmoid@13(%a)\n\
             \u{20} %c: f32[2,3] = Mul@14(%a, %b)\n\
             \u{20} %d: f32[2,3] = Pow@15(%c, %two)\n\
             \u{20} return %d\n",
            "  %d: f32[2,3] = devbay.FusedElementwise@1(%x) {ops = [\"Neg\", \"Sigmoid\", \"Mul\", \"Mul\"], \
             operands = [0, 0, 1, 1, 1, 2, 3, 3], params = [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], \
             constants = floats []}\n\
             \u{20} return %d\n",
        );
    }

    #[test]
    fn what_others_need_what_is_smaller_and_what_is_pinned_stays() {
        let others = "  %a: f32[2,3] = Neg@13(%x)\n\
                      \u{20} %b: f32[2,3] = Sigmoid@13(%a)\n\
                      \u{20} return %a, %b\n";
        check(others, others);
        let smaller = "  %a: f32[2,3] = Neg@13(%x)\n\
                       \u{20} %b: f32[4,2,3] = Add@14(%a, %wide)\n\
                       \u{20} return %b\n";
        check(smaller, smaller);
        let pinned = "  %a: f32[2,3] = Neg@13(%x) as \"pinned\"\n\
                      \u{20} %b: f32[2,3] = Sigmoid@13(%a)\n\
                      \u{20} return %b\n";
        check(pinned, pinned);
    }

    #[test]
    fn a_number_that_gives_the_result_its_rank_is_no_number() {
        let body = "  %one = const f32[1,1,1] [1.0]\n\
                    \u{20} %a: f32[1,2,3] = Add@14(%x, %one)\n\
                    \u{20} %b: f32[1,2,3] = Exp@13(%a)\n\
                    \u{20} return %b\n";
        check(body, body);
    }

    #[test]
    fn groups_are_of_what_devices_bind() {
        // Sums of nine tensors: the last group has seven of them.
        let (mut body, mut before) = (String::new(), "%x".to_owned());
        for i in 0..8 {
            body.push_str(&format!("  %n{i}: f32[2,3] = MatMul@13(%x, %row)\n"));
        }
        for i in 0..8 {
            body.push_str(&format!("  %s{i}: f32[2,3] = Add@14({before}, %n{i})\n"));
            before = format!("%s{i}");
        }
        let text = format!(
            "devbay-program 1\n\nprogram \"\"(%x: f32[2,3], %row: f32[3]) {{\n{body}  return {before}\n}}\n"
        );
        let mut program = parse(&text).unwrap_or_else(|e| panic!("{e}"));
        let mut main = std::mem::take(&mut program.main);
        assert_eq!(fuse(&program, &mut main, &|_| false).unwrap(), 6);
        let fused: Vec<usize> = main
            .nodes
            .iter()
            .filter(|node| &*node.op.name == "FusedElementwise")
            .map(|node| node.inputs.len())
            .collect();
        assert_eq!(fused, [3, 7]);
    }
}
