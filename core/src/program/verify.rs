//! The verifier: invariants of every program, whatever its source.
//!
//! It runs after import, on parsed text, and after each pass in tests, so that the stages behind it index
//! values without asking. It knows nothing of op semantics but the regions that If, Loop and Scan need.
//!
//! Invariants of a verified program:
//! 1. Each number of a value is less than [`Program::values`] is long.
//! 2. A value that is used has one definition: it is an input of a region, a result of a node, or constant.
//!    Values that nothing refers to are allowed, because passes leave them behind.
//! 3. A definition stands before its uses, in the same region or in one around it. Constants belong to the
//!    program and are seen everywhere.
//! 4. A constant's type is the type of its tensor.
//! 5. Regions nest at most [`REGION_DEPTH_MAX`] deep, so that code may recurse into them.
//! 6. If has `then_branch` and `else_branch`, Loop and Scan have `body`; their inputs and outputs match the
//!    node's. A name occurs once among the attributes and regions of a node.
//! 7. A node whose op is in the catalogue has the catalogue's version of it: the stages behind know such ops
//!    by name, and an older version would be taken for the newer one.
//! 8. Such a node has the operands of its op: all required ones, and no more than the op has.
//! 9. Such a node has the attributes that its op requires, and each attribute of the op has the op's type. The stages
//!    behind take the default for an absent attribute, and would for an unreadable one. Attributes that the op does not
//!    have mean nothing: those of former versions, and additions of exporters.

use super::{AttrValue, Node, Program, Region, ValueId, catalogue};
use crate::cancel::look;
use crate::error::{Error, ErrorKind, Result};
use std::collections::HashSet;

/// Greatest depth to which regions may nest.
pub const REGION_DEPTH_MAX: usize = 64;

/// Checks a program.
///
/// # Errors
/// [`ErrorKind::InvalidModel`] with the first rule that is broken, and the node that breaks it; cancelled, or past the
/// deadline.
pub fn verify(program: &Program) -> Result<()> {
    let mut verifier = Verifier { program, states: vec![State::Undefined; program.values.len()] };
    for (i, value) in program.values.iter().enumerate() {
        let Some(tensor) = &value.constant else {
            continue;
        };
        let found = tensor.tensor_type();
        if value.ty.as_ref() != Some(&found) {
            let declared = value.ty.as_ref().map_or_else(|| "no type".to_owned(), ToString::to_string);
            return Err(invalid(format!(
                "the constant {} has type {declared}, expected its tensor's {found}",
                label(program, ValueId(u32::try_from(i).unwrap_or(u32::MAX)))
            )));
        }
        verifier.states[i] = State::Constant;
    }
    verifier.region(&program.main, 0)
}

/// Where a value stands while the regions are walked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing has defined it yet.
    Undefined,
    /// Constant, seen everywhere.
    Constant,
    /// Defined in a region that is being walked.
    Visible,
    /// Defined in a region that has ended.
    Ended,
}

struct Verifier<'a> {
    program: &'a Program,
    states: Vec<State>,
}

impl Verifier<'_> {
    fn region(&mut self, region: &Region, depth: usize) -> Result<()> {
        if depth > REGION_DEPTH_MAX {
            return Err(invalid(format!("regions nest deeper than {REGION_DEPTH_MAX}")));
        }
        let mut defined = Vec::new();
        for &id in &region.inputs {
            self.define(id).map_err(|text| invalid(format!("an input of a region: {text}")))?;
            defined.push(id);
        }
        for node in &region.nodes {
            self.node(node, depth, &mut defined)?;
        }
        for &id in &region.outputs {
            self.used(id).map_err(|text| invalid(format!("an output of a region: {text}")))?;
        }
        for id in defined {
            self.states[id.idx()] = State::Ended;
        }
        Ok(())
    }

    fn node(&mut self, node: &Node, depth: usize, defined: &mut Vec<ValueId>) -> Result<()> {
        look()?;
        let at = |text: String| invalid(text).at_node(node.label());
        for &id in node.inputs.iter().flatten() {
            self.used(id).map_err(at)?;
        }
        check_names("attribute", node.attrs.iter().map(|(name, _)| &**name)).map_err(at)?;
        check_names("region", node.regions.iter().map(|(name, _)| &**name)).map_err(at)?;
        check_version(node).map_err(at)?;
        catalogue::check_signature(node).map_err(|error| error.at_node(node.label()))?;
        check_control(node).map_err(at)?;
        for (_, region) in &node.regions {
            self.region(region, depth + 1).map_err(|error| error.at_node(node.label()))?;
        }
        for &id in node.outputs.iter().flatten() {
            self.define(id).map_err(at)?;
            defined.push(id);
        }
        Ok(())
    }

    fn define(&mut self, id: ValueId) -> std::result::Result<(), String> {
        let label = || label(self.program, id);
        match self.states.get(id.idx()) {
            None => Err(self.out_of_range(id)),
            Some(State::Undefined) => {
                self.states[id.idx()] = State::Visible;
                Ok(())
            }
            Some(State::Constant) => Err(format!("{} is constant and defined again", label())),
            Some(State::Visible | State::Ended) => Err(format!("{} is defined twice", label())),
        }
    }

    fn used(&self, id: ValueId) -> std::result::Result<(), String> {
        let label = || label(self.program, id);
        match self.states.get(id.idx()) {
            None => Err(self.out_of_range(id)),
            Some(State::Undefined) => Err(format!("{} is used before it is defined", label())),
            Some(State::Ended) => Err(format!("{} is used outside of the region that defines it", label())),
            Some(State::Constant | State::Visible) => Ok(()),
        }
    }

    fn out_of_range(&self, id: ValueId) -> String {
        format!("there is no value %{}, expected less than {}", id.0, self.program.values.len())
    }
}

fn check_version(node: &Node) -> std::result::Result<(), String> {
    match catalogue::find(&node.op.domain, &node.op.name) {
        Some(def) if def.version != node.op.version => {
            Err(format!("expected version {} of the op, found {}", def.version, node.op.version))
        }
        _ => Ok(()),
    }
}

/// Checks the regions of ONNX's control flow ops, after their specification.
fn check_control(node: &Node) -> std::result::Result<(), String> {
    if !node.op.domain.is_empty() {
        return Ok(());
    }
    let n_outputs = node.outputs.len();
    match &*node.op.name {
        "If" => {
            check_region(node, "then_branch", 0, n_outputs)?;
            check_region(node, "else_branch", 0, n_outputs)
        }
        // Trip count and condition come before the carried values; the body also takes the iteration
        // number and gives the next condition.
        "Loop" => {
            let n_carried = node.inputs.len().saturating_sub(2);
            if n_outputs < n_carried {
                return Err(format!(
                    "expected a result for each of {n_carried} carried values, found {n_outputs}"
                ));
            }
            check_region(node, "body", 2 + n_carried, 1 + n_outputs)
        }
        "Scan" => {
            let n_inputs = node.inputs.len();
            let n_scanned = match node.attr("num_scan_inputs") {
                Some(AttrValue::Int(n)) => usize::try_from(*n).ok(),
                _ => None,
            };
            let n_carried = n_scanned.filter(|&n| n >= 1).and_then(|n| n_inputs.checked_sub(n));
            if n_carried.is_none_or(|n| n > n_outputs) {
                return Err(format!(
                    "expected num_scan_inputs from 1 to {n_inputs}, and a result for each state"
                ));
            }
            check_region(node, "body", n_inputs, n_outputs)
        }
        _ => Ok(()),
    }
}

fn check_region(
    node: &Node,
    name: &str,
    n_inputs: usize,
    n_outputs: usize,
) -> std::result::Result<(), String> {
    let region = node.region(name).ok_or_else(|| format!("expected a region {name}, found none"))?;
    let found = (region.inputs.len(), region.outputs.len());
    if found != (n_inputs, n_outputs) {
        return Err(format!(
            "expected a {name} with {n_inputs} inputs and {n_outputs} outputs, found {} and {}",
            found.0, found.1
        ));
    }
    Ok(())
}

fn check_names<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> std::result::Result<(), String> {
    let mut known = HashSet::new();
    for name in names {
        if !known.insert(name) {
            return Err(format!("the {what} {name:?} is there twice"));
        }
    }
    Ok(())
}

/// Returns a value's name for messages.
fn label(program: &Program, id: ValueId) -> String {
    match program.values.get(id.idx()) {
        Some(value) if !value.name.is_empty() => format!("%{} ({:?})", id.0, &*value.name),
        _ => format!("%{}", id.0),
    }
}

fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{DEVBAY_DOMAIN, Op, Value};
    use crate::tensor::{F32, I64, Tensor, TensorType};
    use std::sync::Arc;

    /// A program with `n` values without names.
    fn with_values(n: usize) -> Program {
        Program { values: vec![Value::default(); n], ..Program::default() }
    }

    fn ids(numbers: &[u32]) -> Vec<ValueId> {
        numbers.iter().map(|&n| ValueId(n)).collect()
    }

    fn node(name: &str, inputs: &[u32], outputs: &[u32]) -> Node {
        let some = |numbers: &[u32]| numbers.iter().map(|&n| Some(ValueId(n))).collect();
        let op = catalogue::find("", name).map_or_else(|| Op::onnx(name, 1), Op::of);
        Node::new(op, some(inputs), some(outputs))
    }

    fn region(inputs: &[u32], nodes: Vec<Node>, outputs: &[u32]) -> Region {
        Region { inputs: ids(inputs), nodes, outputs: ids(outputs) }
    }

    fn with_regions(mut node: Node, regions: Vec<(&str, Region)>) -> Node {
        node.regions = regions.into_iter().map(|(name, region)| (Arc::from(name), region)).collect();
        node
    }

    /// Expects an error with these words, or none if they are empty.
    fn check(case: &str, program: &Program, expected: &str) {
        match verify(program) {
            Ok(()) => assert_eq!(expected, "", "{case}: expected an error, found none"),
            Err(error) => {
                assert!(!expected.is_empty(), "{case}: {error}");
                assert!(error.to_string().contains(expected), "{case}: {error}");
                assert_eq!(error.kind(), ErrorKind::InvalidModel, "{case}");
            }
        }
    }

    #[test]
    fn definitions_and_uses() {
        let cases: Vec<(&str, usize, Region, &str)> = vec![
            ("empty", 0, Region::default(), ""),
            ("pass through", 1, region(&[0], vec![], &[0]), ""),
            ("chain", 3, region(&[0], vec![node("Relu", &[0], &[1]), node("Relu", &[1], &[2])], &[2]), ""),
            ("dead value", 2, region(&[0], vec![], &[0]), ""),
            (
                "out of range",
                1,
                region(&[0], vec![node("Relu", &[7], &[0])], &[]),
                "there is no value %7, expected less than 1",
            ),
            ("output out of range", 1, region(&[0], vec![], &[9]), "there is no value %9"),
            (
                "output without definition",
                1,
                region(&[], vec![], &[0]),
                "an output of a region: %0 is used before it is defined",
            ),
            (
                "wrong order",
                3,
                region(&[0], vec![node("Relu", &[2], &[1]), node("Relu", &[0], &[2])], &[1]),
                "%2 is used before it is defined",
            ),
            (
                "made twice",
                2,
                region(&[0], vec![node("Relu", &[0], &[1]), node("Relu", &[0], &[1])], &[1]),
                "%1 is defined twice",
            ),
            ("input twice", 1, region(&[0, 0], vec![], &[0]), "an input of a region: %0 is defined twice"),
        ];
        for (case, n_values, main, expected) in cases {
            let mut program = with_values(n_values);
            program.main = main;
            check(case, &program, expected);
        }
    }

    #[test]
    fn constants_have_their_tensors_type_and_one_definition() {
        let mut program = Program::default();
        let tensor = Tensor::from_elements::<i64>(&[2], &[1, 2]).unwrap();
        let id = program.add_constant("axes", tensor);
        program.main = region(&[], vec![], &[0]);
        check("constant as output", &program, "");

        let mut other = program.clone();
        other.value_mut(id).ty = Some(TensorType::unranked(I64));
        check("vague type", &other, "has type i64[..], expected its tensor's i64[2]");
        other.value_mut(id).ty = Some(TensorType::new(F32, &[2]));
        check("other type", &other, "has type f32[2]");

        program.values.push(Value::default());
        program.main = region(&[1], vec![node("Relu", &[1], &[0])], &[]);
        check("made by a node as well", &program, "is constant and defined again");
    }

    #[test]
    fn captures_go_inwards_only() {
        let branch = |made: u32| region(&[], vec![node("Relu", &[1], &[made])], &[made]);
        let condition = |outputs: &[u32]| {
            with_regions(
                node("If", &[0], outputs),
                vec![("then_branch", branch(2)), ("else_branch", branch(3))],
            )
        };
        let cases = [
            ("capture", region(&[0, 1], vec![condition(&[4])], &[4]), ""),
            (
                "inner value outside",
                region(&[0, 1], vec![condition(&[4])], &[2]),
                "%2 is used outside of the region that defines it",
            ),
            (
                "sibling's value",
                region(
                    &[0, 1],
                    vec![with_regions(
                        node("If", &[0], &[4]),
                        vec![("then_branch", branch(2)), ("else_branch", region(&[], vec![], &[2]))],
                    )],
                    &[4],
                ),
                "%2 is used outside",
            ),
            (
                "the node's own result",
                region(
                    &[0, 1],
                    vec![with_regions(
                        node("If", &[0], &[4]),
                        vec![("then_branch", region(&[], vec![], &[4])), ("else_branch", branch(3))],
                    )],
                    &[4],
                ),
                "%4 is used before it is defined",
            ),
        ];
        for (case, main, expected) in cases {
            let mut program = with_values(5);
            program.main = main;
            check(case, &program, expected);
        }
    }

    #[test]
    fn control_flow_has_its_regions() {
        let give = |n_inputs: u32, n_outputs: usize| {
            let inputs: Vec<u32> = (10..10 + n_inputs).collect();
            region(&inputs, vec![], &vec![0; n_outputs])
        };
        let cases: Vec<(&str, Node, &str)> = vec![
            (
                "If without regions",
                node("If", &[0], &[1]),
                "the attribute else_branch of type graph, found none",
            ),
            (
                "If without else",
                with_regions(node("If", &[0], &[1]), vec![("then_branch", give(0, 1))]),
                "expected the attribute else_branch of type graph, found none",
            ),
            (
                "If with unequal branches",
                with_regions(
                    node("If", &[0], &[1]),
                    vec![("then_branch", give(0, 1)), ("else_branch", give(0, 2))],
                ),
                "expected a else_branch with 0 inputs and 1 outputs, found 0 and 2",
            ),
            ("Loop", with_regions(node("Loop", &[0, 0, 0], &[1, 2]), vec![("body", give(3, 3))]), ""),
            (
                "Loop whose body takes too few",
                with_regions(node("Loop", &[0, 0, 0], &[1, 2]), vec![("body", give(2, 3))]),
                "expected a body with 3 inputs and 3 outputs, found 2 and 3",
            ),
            (
                "Loop with fewer results than carried values",
                with_regions(node("Loop", &[0, 0, 0, 0], &[1]), vec![("body", give(4, 2))]),
                "expected a result for each of 2 carried values, found 1",
            ),
            (
                "Scan without count",
                with_regions(node("Scan", &[0], &[1]), vec![("body", give(1, 1))]),
                "the attribute num_scan_inputs of type int, found none",
            ),
            (
                "same region twice",
                with_regions(
                    node("If", &[0], &[]),
                    vec![("then_branch", give(0, 0)), ("then_branch", give(0, 0))],
                ),
                "the region \"then_branch\" is there twice",
            ),
        ];
        for (case, node, expected) in cases {
            let mut program = with_values(20);
            program.main = region(&[0], vec![node], &[]);
            check(case, &program, expected);
        }

        let mut scan = with_regions(node("Scan", &[0, 0, 0], &[1, 2]), vec![("body", give(3, 2))]);
        scan.set_attr("num_scan_inputs", AttrValue::Int(2));
        let mut program = with_values(20);
        program.main = region(&[0], vec![scan.clone()], &[]);
        check("Scan", &program, "");
        for wrong in [0, -1, 4, i64::MAX] {
            scan.set_attr("num_scan_inputs", AttrValue::Int(wrong));
            program.main = region(&[0], vec![scan.clone()], &[]);
            check("Scan with a wrong count", &program, "num_scan_inputs");
        }
    }

    #[test]
    fn ops_have_the_catalogues_version() {
        let cases = [
            (Op::onnx("Softmax", 11), "expected version 13 of the op, found 11"),
            (Op::onnx("Softmax", 14), "expected version 13 of the op, found 14"),
            (Op::devbay("FusedConv", 2), "expected version 1 of the op, found 2"),
            (Op::onnx("Zipper", 7), ""),
            (Op { domain: Arc::from("com.acme"), ..Op::onnx("Softmax", 1) }, ""),
        ];
        for (op, expected) in cases {
            let mut program = with_values(0);
            program.main = region(&[], vec![Node::new(op.clone(), vec![], vec![])], &[]);
            check(&op.to_string(), &program, expected);
        }
    }

    #[test]
    fn nodes_have_the_operands_of_their_ops() {
        let check_node = |op: &str, inputs: &[u32], outputs: &[u32], expected: &str| {
            let mut program = with_values(9);
            program.main = region(&[0, 1, 2, 3], vec![node(op, inputs, outputs)], &[]);
            check(&format!("{op} {inputs:?} {outputs:?}"), &program, expected);
            // In a region as well.
            let inner = region(&[], vec![node(op, inputs, outputs)], &[]);
            let branches = vec![("then_branch", inner), ("else_branch", region(&[], vec![], &[]))];
            program.main = region(&[0, 1, 2, 3], vec![with_regions(node("If", &[0], &[]), branches)], &[]);
            check(&format!("{op} in a region"), &program, expected);
        };
        check_node("TopK", &[0, 1], &[4, 5], "");
        check_node("TopK", &[0, 1], &[4], "expected the output 1 (Indices), found none");
        check_node("TopK", &[0], &[4, 5], "expected the input 1 (K), found none");
        check_node("DynamicQuantizeLinear", &[0], &[4], "expected the output 1 (y_scale), found none");
        check_node("LayerNormalization", &[0, 1], &[4], "");
        check_node("LayerNormalization", &[0, 1], &[], "expected the output 0 (Y), found none");
        check_node("Conv", &[0, 1, 2, 3], &[4], "expected at most 3 inputs, found 4");
        check_node("Relu", &[0], &[4, 5], "expected at most 1 output, found 2");
        check_node("Concat", &[], &[4], "expected the input 0 (inputs), found none");
        // The operands of these are unknown.
        check_node("Zipper", &[], &[4, 5], "");

        let mut holes = node("Concat", &[0, 1], &[4]);
        holes.inputs[0] = None;
        let mut program = with_values(9);
        program.main = region(&[0, 1], vec![holes], &[]);
        check("a hole", &program, "expected the input 0 (inputs), found none");
    }

    #[test]
    fn nodes_have_the_attributes_of_their_ops() {
        let check_node = |op: &str, inputs: &[u32], attrs: &[(&str, AttrValue)], expected: &str| {
            let mut made = node(op, inputs, &[4]);
            if let Some(fused) = catalogue::find(DEVBAY_DOMAIN, op) {
                made.op = Op::of(fused);
            }
            made.attrs = attrs.iter().map(|(name, value)| (Arc::from(*name), value.clone())).collect();
            let mut program = with_values(9);
            program.main = region(&[0, 1, 2, 3], vec![made.clone()], &[]);
            check(&format!("{op} {attrs:?}"), &program, expected);
            // In a region as well.
            let inner = region(&[], vec![made], &[]);
            let branches = vec![("then_branch", inner), ("else_branch", region(&[], vec![], &[]))];
            program.main = region(&[0, 1, 2, 3], vec![with_regions(node("If", &[0], &[]), branches)], &[]);
            check(&format!("{op} in a region"), &program, expected);
        };
        let ints = || AttrValue::Ints(vec![1]);
        check_node("Concat", &[0], &[("axis", AttrValue::Int(0))], "");
        check_node("Concat", &[0], &[], "(Concat@13): expected the attribute axis of type int, found none");
        check_node("Concat", &[0], &[("axis", ints())], "axis of type int, found one of type ints");
        check_node("Elu", &[0], &[("alpha", AttrValue::Float(1.0))], "");
        check_node(
            "Elu",
            &[0],
            &[("alpha", AttrValue::Int(1))],
            "alpha of type float, found one of type int",
        );
        check_node(
            "Conv",
            &[0, 1],
            &[("auto_pad", ints())],
            "auto_pad of type string, found one of type ints",
        );
        let activation = |value| [("activation", value)];
        check_node("FusedConv", &[0, 1], &activation(AttrValue::String("Relu".to_owned())), "");
        check_node("FusedConv", &[0, 1], &activation(AttrValue::Int(1)), "activation of type string");
        // Attributes that a former version had, an exporter added, or another op has.
        check_node("Relu", &[0], &[("consumed_inputs", ints())], "");
        check_node("Relu", &[0], &[("alpha", ints())], "");
        check_node("Zipper", &[0], &[("axis", ints())], "");

        let mut condition = node("If", &[0], &[]);
        condition.set_attr("then_branch", AttrValue::Int(1));
        let else_branch = region(&[], vec![], &[]);
        let mut program = with_values(1);
        program.main = region(&[0], vec![with_regions(condition, vec![("else_branch", else_branch)])], &[]);
        check("a branch that is a number", &program, "then_branch of type graph, found one of type int");
    }

    #[test]
    fn depth_is_limited() {
        let nested = |depth: usize| {
            let mut inner = region(&[], vec![], &[]);
            for _ in 0..depth {
                let custom = Node::new(Op { domain: Arc::from("x"), ..Op::onnx("Nest", 1) }, vec![], vec![]);
                inner = region(&[], vec![with_regions(custom, vec![("body", inner)])], &[]);
            }
            Program { main: inner, ..Program::default() }
        };
        check("deepest", &nested(REGION_DEPTH_MAX), "");
        check("too deep", &nested(REGION_DEPTH_MAX + 1), "regions nest deeper than 64");
    }
}
