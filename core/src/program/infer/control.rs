//! Inference of whole programs, and of the ops that hold regions: If, Loop and Scan.
//!
//! Nodes stand in execution order, so one pass in order suffices; a loop's body is inferred again until the
//! types that it carries no longer change, and each time they say less.
//!
//! A region may be one that is never entered with these shapes, such as the branch for inputs of another rank. So a
//! contradiction inside a region is no error here. Its results become unknown, and planning the region with real shapes
//! finds the error.

use super::{infer, query};
use crate::error::{Error, ErrorKind, Result};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program, Region, Value, ValueId, of_model};
use crate::tensor::{BOOL, DType, Dim, I64, Tensor, TensorType, dtype_name};
use devbay_ops::infer::{agree, either, fits_memory};
use std::collections::HashMap;

/// Fills [`Value::ty`] for all values that nodes make, those of nested regions included, from the types of
/// the program's inputs and constants. Earlier types are replaced, except for results of ops that
/// are not in the catalogue. A type stays None where an operand's is not known.
///
/// # Errors
/// As [`infer`](super::infer()), from the first node of the main graph that cannot be right.
pub fn infer_program(program: &mut Program) -> Result<()> {
    infer_region(&mut program.values, &program.main)
}

/// As [`infer_program`], for one region: the types of its inputs and captures must be there already.
///
/// # Errors
/// As [`infer_program`].
pub fn infer_region(values: &mut [Value], region: &Region) -> Result<()> {
    let mut inference = Inference { values, answers: HashMap::new(), depth: 0 };
    inference.region(region, true)
}

struct Inference<'a> {
    values: &'a mut [Value],
    /// Results of Shape and Size that are known, though they are no constants of the program.
    answers: HashMap<ValueId, Tensor>,
    /// Number of loops around the region.
    depth: usize,
}

/// Maximum number of inferences of a loop's body; after that, carried values keep only their element types. Loops
/// nested deeper than `DEPTH_MAX` are inferred once, because nested loops multiply.
const ROUNDS_MAX: usize = 4;
const DEPTH_MAX: usize = 3;

impl Inference<'_> {
    /// Infers nodes in order. A contradiction is an error only if `strict`.
    fn region(&mut self, region: &Region, strict: bool) -> Result<()> {
        for node in &region.nodes {
            let Some(def) = catalogue::find(&node.op.domain, &node.op.name) else {
                continue;
            };
            let types = match def.kind {
                OpKind::Control => self.control(node),
                OpKind::Kernel | OpKind::View => self.plain(node),
                OpKind::Query => {
                    // In a loop's body an answer may no longer hold when the body is inferred again.
                    for id in node.outputs.iter().flatten() {
                        self.answers.remove(id);
                    }
                    self.plain(node)
                }
            };
            let types = match types {
                Err(error) if strict => return Err(error.at_node(node.label())),
                Err(_) => vec![None; node.outputs.len()],
                Ok(types) => types,
            };
            for (id, ty) in node.outputs.iter().zip(types) {
                if let Some(id) = *id {
                    self.set(id, ty);
                }
            }
        }
        Ok(())
    }

    /// A node without regions. Nothing is known of its results if the type of an operand is unknown.
    fn plain(&mut self, node: &Node) -> Result<Vec<Option<TensorType>>> {
        let unknown = Ok(vec![None; node.outputs.len()]);
        let mut types = Vec::with_capacity(node.inputs.len());
        let mut constants = Vec::with_capacity(node.inputs.len());
        for id in &node.inputs {
            let (ty, constant) = match *id {
                None => (None, None),
                Some(id) => match self.ty(id) {
                    None => return unknown,
                    ty => (ty, self.constant(id)),
                },
            };
            types.push(ty);
            constants.push(constant);
        }
        let results = infer(node, &types, &constants)?;
        if let ([Some(operand)], Some(id)) = (types.as_slice(), node.output(0))
            && let Some(answer) = query(node, operand)?
        {
            self.answers.insert(id, answer);
        }
        Ok(results.into_iter().map(Some).collect())
    }

    fn control(&mut self, node: &Node) -> Result<Vec<Option<TensorType>>> {
        let results = match &*node.op.name {
            "If" => self.branches(node),
            "Loop" => self.repeated(node),
            _ => self.scanned(node),
        }?;
        if results.len() != node.outputs.len() {
            return Err(invalid(format!("expected {} results, found {}", results.len(), node.outputs.len())));
        }
        for ty in results.iter().flatten() {
            fits_memory(ty).map_err(of_model)?;
        }
        Ok(results)
    }

    /// Infers an If: the common type of both branches' results.
    fn branches(&mut self, node: &Node) -> Result<Vec<Option<TensorType>>> {
        let yes = self.branch(node, "then_branch")?;
        let no = self.branch(node, "else_branch")?;
        let condition = node.input(0).and_then(|id| self.constant(id));
        match condition.and_then(|condition| condition.to_int()) {
            Some(0) => return Ok(no),
            Some(_) => return Ok(yes),
            None => {}
        }
        if yes.len() != no.len() {
            return Err(invalid(format!(
                "expected branches with as many results, found {} and {}",
                yes.len(),
                no.len()
            )));
        }
        yes.into_iter().zip(no).map(|(yes, no)| either_type(yes, no)).collect()
    }

    fn branch(&mut self, node: &Node, name: &str) -> Result<Vec<Option<TensorType>>> {
        let region = region_of(node, name)?;
        self.region(region, false)?;
        Ok(self.types(&region.outputs))
    }

    /// Infers a Loop: its carried values, then the stacked results of its turns.
    fn repeated(&mut self, node: &Node) -> Result<Vec<Option<TensorType>>> {
        let body = region_of(node, "body")?;
        let initial = node.inputs.get(2..).unwrap_or_default();
        if body.inputs.len() != 2 + initial.len() || body.outputs.len() <= initial.len() {
            return Err(invalid(format!(
                "expected a body that takes a count, a condition and {} values and gives a condition and \
                 those values, found one that takes {} and gives {}",
                initial.len(),
                body.inputs.len(),
                body.outputs.len()
            )));
        }
        self.set(body.inputs[0], Some(TensorType::new(I64, &[])));
        self.set(body.inputs[1], Some(TensorType::new(BOOL, &[])));
        let carried = self.carried(initial, &body.inputs[2..], body, &body.outputs[1..=initial.len()])?;
        let stacked = self.types(&body.outputs[1 + initial.len()..]);
        stacked.iter().flatten().try_for_each(|ty| whole_bytes(ty.dtype))?;
        let stacked = stacked.into_iter().map(|ty| ty.map(|ty| with_dim(ty, 0, Dim::unknown())));
        Ok(carried.into_iter().chain(stacked).collect())
    }

    /// Infers a Scan: states, then the results of its turns, stacked along their axis; each turn takes a slice of the
    /// operands that are scanned.
    fn scanned(&mut self, node: &Node) -> Result<Vec<Option<TensorType>>> {
        let body = region_of(node, "body")?;
        let n_scanned = usize::try_from(node.int("num_scan_inputs", 0)).unwrap_or(usize::MAX);
        let n_states = node.inputs.len().checked_sub(n_scanned);
        let Some(n_states) = n_states
            .filter(|&n| n_scanned > 0 && body.inputs.len() == node.inputs.len() && body.outputs.len() >= n)
        else {
            return Err(invalid(format!(
                "expected a body for {} operands of which {n_scanned} are scanned, found one that takes {} \
                 and gives {}",
                node.inputs.len(),
                body.inputs.len(),
                body.outputs.len()
            )));
        };
        let in_axes = axes_of(node, "scan_input_axes", n_scanned)?;
        let out_axes = axes_of(node, "scan_output_axes", body.outputs.len() - n_states)?;
        let mut length = Dim::unknown();
        for (i, at) in in_axes.into_iter().enumerate() {
            let whole = node.input(n_states + i).and_then(|id| self.ty(id));
            let slice = match whole {
                Some(whole) => {
                    whole_bytes(whole.dtype)?;
                    let (dim, slice) = without_dim(whole, at)?;
                    length = agree(&length, &dim).ok_or_else(|| {
                        invalid(format!("expected sequences of {length}, found one of {dim}"))
                    })?;
                    Some(slice)
                }
                None => None,
            };
            self.set(body.inputs[n_states + i], slice);
        }
        let states = self.carried(
            &node.inputs[..n_states],
            &body.inputs[..n_states],
            body,
            &body.outputs[..n_states],
        )?;
        let mut results = states;
        let slices = self.types(&body.outputs[n_states..]);
        for (slice, at) in slices.into_iter().zip(out_axes) {
            results.push(match slice {
                Some(slice) => {
                    whole_bytes(slice.dtype)?;
                    let at = match slice.rank() {
                        Some(rank) => axis(at, rank + 1)?,
                        None => 0,
                    };
                    Some(with_dim(slice, at, length.clone()))
                }
                None => None,
            });
        }
        Ok(results)
    }

    /// Types that hold of carried values before each turn and after the last one; the body is inferred
    /// with them.
    fn carried(
        &mut self,
        initial: &[Option<ValueId>],
        inputs: &[ValueId],
        body: &Region,
        outputs: &[ValueId],
    ) -> Result<Vec<Option<TensorType>>> {
        let mut carried: Vec<_> = initial.iter().map(|id| id.and_then(|id| self.ty(id))).collect();
        for round in 0.. {
            if round == ROUNDS_MAX || self.depth >= DEPTH_MAX {
                for ty in carried.iter_mut().flatten() {
                    ty.shape = None;
                }
            }
            for (&id, ty) in inputs.iter().zip(&carried) {
                self.set(id, ty.clone());
            }
            self.depth += 1;
            let inferred = self.region(body, false);
            self.depth -= 1;
            inferred?;
            let after = self.types(outputs);
            let weaker = carried
                .iter()
                .zip(after)
                .map(|(before, after)| match before {
                    Some(_) => either_type(before.clone(), after),
                    None => Ok(None),
                })
                .collect::<Result<Vec<_>>>()?;
            if weaker == carried {
                break;
            }
            carried = weaker;
        }
        Ok(carried)
    }

    fn ty(&self, id: ValueId) -> Option<TensorType> {
        let value = self.values.get(id.idx())?;
        match &value.constant {
            Some(constant) => Some(constant.tensor_type()),
            None => value.ty.clone(),
        }
    }

    fn types(&self, ids: &[ValueId]) -> Vec<Option<TensorType>> {
        ids.iter().map(|&id| self.ty(id)).collect()
    }

    fn constant(&self, id: ValueId) -> Option<Tensor> {
        let value = self.values.get(id.idx())?;
        value.constant.as_ref().or_else(|| self.answers.get(&id)).cloned()
    }

    fn set(&mut self, id: ValueId, ty: Option<TensorType>) {
        if let Some(value) = self.values.get_mut(id.idx()) {
            value.ty = ty;
        }
    }
}

/// A model that cannot be right.
fn invalid(text: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidModel, text)
}

/// Returns the position of an axis, which counts from the back if it is negative.
fn axis(axis: i64, rank: usize) -> Result<usize> {
    devbay_ops::read::axis(axis, rank).map_err(of_model)
}

fn region_of<'a>(node: &'a Node, name: &str) -> Result<&'a Region> {
    node.region(name).ok_or_else(|| invalid(format!("expected a region {name}, found none")))
}

/// Returns the type that holds for either of two values. Only the element type is known if one of them is
/// not.
fn either_type(a: Option<TensorType>, b: Option<TensorType>) -> Result<Option<TensorType>> {
    let (a, b) = match (a, b) {
        (Some(a), Some(b)) => (a, b),
        (known, other) => {
            return Ok(known.or(other).map(|ty| TensorType::unranked(ty.dtype)));
        }
    };
    if a.dtype != b.dtype {
        return Err(invalid(format!("expected one element type whichever way is taken, found {a} and {b}")));
    }
    Ok(Some(TensorType { dtype: a.dtype, shape: either_shape(a.shape, b.shape) }))
}

/// Returns the shape that holds for either of two.
fn either_shape(a: Option<Vec<Dim>>, b: Option<Vec<Dim>>) -> Option<Vec<Dim>> {
    let (a, b) = (a?, b?);
    (a.len() == b.len()).then(|| a.iter().zip(&b).map(|(a, b)| either(a, b)).collect())
}

/// An attribute with an axis for each of `n` values, 0 if it is absent.
fn axes_of(node: &Node, name: &str, n: usize) -> Result<Vec<i64>> {
    match node.ints(name) {
        None | Some([]) => Ok(vec![0; n]),
        Some(list) if list.len() == n => Ok(list.to_vec()),
        Some(list) => Err(invalid(format!("expected {n} numbers as {name}, found {list:?}"))),
    }
}

/// Refuses to take slices of tensors whose elements share bytes, or to stack them: a slice may begin within a byte.
///
/// # Errors
/// [`ErrorKind::UnsupportedModel`] for elements of fewer than 8 bits.
pub fn whole_bytes(dtype: DType) -> Result<()> {
    if dtype.bits >= 8 {
        return Ok(());
    }
    let text = format!("expected slices of elements of whole bytes, found {}", dtype_name(dtype));
    Err(Error::new(ErrorKind::UnsupportedModel, text))
}

fn with_dim(ty: TensorType, at: usize, dim: Dim) -> TensorType {
    let insert = |mut dims: Vec<Dim>| {
        dims.insert(at, dim);
        dims
    };
    TensorType { dtype: ty.dtype, shape: ty.shape.map(insert) }
}

fn without_dim(ty: TensorType, at: i64) -> Result<(Dim, TensorType)> {
    let dtype = ty.dtype;
    let (dim, shape): (Dim, Option<Vec<Dim>>) = match ty.shape {
        None => (Dim::unknown(), None),
        Some(mut dims) => {
            let at = axis(at, dims.len())?;
            (dims.remove(at), Some(dims))
        }
    };
    Ok((dim, TensorType { dtype, shape }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::{AttrValue, Op, text};

    /// A program under construction.
    #[derive(Default)]
    struct Builder {
        program: Program,
    }

    impl Builder {
        /// A value of a type, perhaps with its content, as the text form has them; `-` for one without a type.
        fn value(&mut self, said: &str) -> ValueId {
            if said == "-" {
                return self.made();
            }
            let region = match said.contains("] [") {
                true => format!("() {{ %x = const {said} return %x }}"),
                false => format!("(%x: {said}) {{ return %x }}"),
            };
            let parsed = text::parse(&format!("devbay-program 1\nprogram \"\" {region}")).expect("a value");
            self.program.add_value(parsed.values[0].clone())
        }

        /// A value that some node makes.
        fn made(&mut self) -> ValueId {
            self.program.add_value(Value::default())
        }

        /// A node with one result.
        fn node(&mut self, op: &str, inputs: &[ValueId]) -> (Node, ValueId) {
            let result = self.made();
            (node(op, inputs, &[result]), result)
        }
    }

    fn node(op: &str, inputs: &[ValueId], outputs: &[ValueId]) -> Node {
        let version = catalogue::find("", op).map_or(1, |def| def.version);
        let list = |ids: &[ValueId]| ids.iter().copied().map(Some).collect();
        Node::new(Op::onnx(op, version), list(inputs), list(outputs))
    }

    fn region(inputs: &[ValueId], nodes: Vec<Node>, outputs: &[ValueId]) -> Region {
        Region { inputs: inputs.to_vec(), nodes, outputs: outputs.to_vec() }
    }

    /// Infers the program of these nodes, and compares the types of some values.
    #[track_caller]
    fn check(builder: Builder, nodes: Vec<Node>, expected: &[(ValueId, &str)]) {
        let mut program = builder.program;
        program.main.nodes = nodes;
        infer_program(&mut program).expect("the program is right");
        for &(id, expected) in expected {
            let ty = &program.value(id).ty;
            let found = ty.as_ref().map_or_else(|| "-".to_owned(), TensorType::to_string);
            assert_eq!(found, expected, "%{}", id.0);
        }
    }

    #[test]
    fn shapes_are_answered_on_the_way() {
        let mut b = Builder::default();
        let x = b.value("f32[n,3,4]");
        let (mut shape, extents) = b.node("Shape", &[x]);
        shape.set_attr("start", AttrValue::Int(1));
        let (fill, filled) = b.node("ConstantOfShape", &[extents]);
        let (add, sum) = b.node("Add", &[x, filled]);
        check(b, vec![shape, fill, add], &[(extents, "i64[2]"), (filled, "f32[3,4]"), (sum, "f32[n,3,4]")]);
    }

    #[test]
    fn what_nobody_knows_stays_unknown() {
        let mut b = Builder::default();
        let x = b.value("f32[n]");
        // The model states this result's type, and inference does not know better.
        let stated = b.value("f32[7]");
        let foreign = node("FromElsewhere", &[x], &[stated]);
        let unstated = b.made();
        let other = node("FromElsewhere", &[x], &[unstated]);
        let (relu, known) = b.node("Relu", &[stated]);
        let stale = b.value("f32[9]");
        let after = node("Relu", &[unstated], &[stale]);
        check(b, vec![foreign, other, relu, after], &[(known, "f32[7]"), (unstated, "-"), (stale, "-")]);
    }

    #[test]
    fn errors_name_the_node() {
        let mut b = Builder::default();
        let (x, y) = (b.value("f32[2]"), b.value("f32[3]"));
        let (mut add, _) = b.node("Add", &[x, y]);
        add.name = "total".into();
        b.program.main.nodes = vec![add];
        let error = infer_program(&mut b.program).expect_err("the shapes differ");
        assert_eq!(error.kind(), ErrorKind::InvalidModel);
        assert_eq!(error.place().node, "total (Add@14)");
    }

    /// Checks an If with one result: `then` and `other` are the results of the branches.
    fn branches(condition: &str, then: &str, other: &str, expected: &str) {
        let mut b = Builder::default();
        let condition = b.value(condition);
        let mut branch = |text| {
            let x = b.value(text);
            let (identity, y) = b.node("Identity", &[x]);
            region(&[], vec![identity], &[y])
        };
        let (then, other) = (branch(then), branch(other));
        let (mut node, result) = b.node("If", &[condition]);
        node.regions = vec![("then_branch".into(), then), ("else_branch".into(), other)];
        check(b, vec![node], &[(result, expected)]);
    }

    #[test]
    fn either_branch() {
        branches("bool[]", "f32[2,n,4]", "f32[2,n,5]", "f32[2,n,?]");
        branches("bool[]", "f32[2]", "f32[2,1]", "f32[..]");
        branches("bool[]", "f32[2]", "-", "f32[..]");
        branches("bool[]", "-", "-", "-");
        branches("bool[] [true]", "f32[2]", "f32[3]", "f32[2]");
        branches("bool[1] [false]", "f32[2]", "i64[3]", "i64[3]");
    }

    #[test]
    fn branches_of_two_element_types() {
        let mut b = Builder::default();
        let (condition, x, y) = (b.value("bool[]"), b.value("f32[2]"), b.value("i64[2]"));
        let (mut node, _) = b.node("If", &[condition]);
        node.regions = vec![
            ("then_branch".into(), region(&[], vec![], &[x])),
            ("else_branch".into(), region(&[], vec![], &[y])),
        ];
        b.program.main.nodes = vec![node];
        let error = infer_program(&mut b.program).expect_err("the types differ");
        assert!(error.text().contains("found f32[2] and i64[2]"), "{error}");
    }

    #[test]
    fn a_branch_that_these_shapes_never_take() {
        let mut b = Builder::default();
        let (condition, x, axis) = (b.value("bool[]"), b.value("f32[2,3]"), b.value("i64[1] [2]"));
        let (squeeze, squeezed) = b.node("Squeeze", &[x, axis]);
        let (mut node, result) = b.node("If", &[condition]);
        node.regions = vec![
            ("then_branch".into(), region(&[], vec![squeeze], &[squeezed])),
            ("else_branch".into(), region(&[], vec![], &[x])),
        ];
        check(b, vec![node], &[(squeezed, "-"), (result, "f32[..]")]);
    }

    #[test]
    fn loops_forget_what_changes() {
        let mut b = Builder::default();
        let (trips, go) = (b.value("i64[]"), b.value("bool[]"));
        let (same, grown) = (b.value("f32[2,3]"), b.value("f32[0,3]"));
        let [i, go_in, same_in, grown_in] = [b.made(), b.made(), b.made(), b.made()];
        let (relu, same_out) = b.node("Relu", &[same_in]);
        let (mut concat, grown_out) = b.node("Concat", &[grown_in, same_in]);
        concat.set_attr("axis", AttrValue::Int(0));
        let body = region(
            &[i, go_in, same_in, grown_in],
            vec![relu, concat],
            &[go_in, same_out, grown_out, same_out],
        );
        let results = [b.made(), b.made(), b.made()];
        let mut node = node("Loop", &[trips, go, same, grown], &results);
        node.regions = vec![("body".into(), body)];
        check(
            b,
            vec![node],
            &[
                (results[0], "f32[2,3]"),
                (results[1], "f32[?,3]"),
                (results[2], "f32[?,2,3]"),
                (grown_in, "f32[?,3]"),
                (i, "i64[]"),
                (go_in, "bool[]"),
            ],
        );
    }

    #[test]
    fn scans_give_as_many_as_they_take() {
        let mut b = Builder::default();
        let (state, x) = (b.value("f32[4]"), b.value("f32[2,n,4]"));
        let [state_in, slice] = [b.made(), b.made()];
        let (add, sum) = b.node("Add", &[state_in, slice]);
        let body = region(&[state_in, slice], vec![add], &[state_in, sum]);
        let results = [b.made(), b.made()];
        let mut node = node("Scan", &[state, x], &results);
        node.regions = vec![("body".into(), body)];
        node.set_attr("num_scan_inputs", AttrValue::Int(1));
        node.set_attr("scan_input_axes", AttrValue::Ints(vec![-2]));
        node.set_attr("scan_output_axes", AttrValue::Ints(vec![-1]));
        check(b, vec![node], &[(slice, "f32[2,4]"), (results[0], "f32[4]"), (results[1], "f32[2,4,n]")]);
    }

    #[test]
    fn elements_that_share_bytes_are_not_sliced() {
        let mut b = Builder::default();
        let x = b.value("i4[3,2]");
        let slice = b.made();
        let body = region(&[slice], Vec::new(), &[slice]);
        let result = b.made();
        let mut node = node("Scan", &[x], &[result]);
        node.regions = vec![("body".into(), body)];
        node.set_attr("num_scan_inputs", AttrValue::Int(1));
        b.program.main.nodes = vec![node];
        let error = infer_program(&mut b.program).expect_err("slices begin within bytes");
        assert!(error.text().contains("expected slices of elements of whole bytes, found i4"), "{error}");
    }

    #[test]
    fn a_body_of_another_form() {
        for (op, n_scanned) in [("Loop", 0), ("Scan", 0), ("Scan", i64::MAX), ("Scan", -1)] {
            let mut b = Builder::default();
            let x = b.value("f32[2]");
            let (mut node, _) = b.node(op, &[x, x, x]);
            node.set_attr("num_scan_inputs", AttrValue::Int(n_scanned));
            b.program.main.nodes = vec![node.clone()];
            let error = infer_program(&mut b.program).expect_err("there is no body");
            assert!(error.text().contains("expected a region body"), "{error}");
            node.regions = vec![("body".into(), Region::default())];
            b.program.main.nodes = vec![node];
            let error = infer_program(&mut b.program).expect_err("the body takes nothing");
            assert!(error.text().contains("expected a body"), "{error}");
        }
    }

    /// Each loop infers its body until nothing changes; within another that multiplies.
    #[test]
    fn loops_in_loops_end() {
        let mut b = Builder::default();
        let (trips, go, x) = (b.value("i64[]"), b.value("bool[]"), b.value("f32[1,1,1]"));
        let mut inputs = Vec::new();
        for _ in 0..50 {
            inputs.push([b.made(), b.made(), b.made()]);
        }
        let (mut concat, grown) = b.node("Concat", &[inputs[49][2], inputs[49][2]]);
        concat.set_attr("axis", AttrValue::Int(0));
        let (mut nodes, mut out) = (vec![concat], grown);
        for (depth, &[i, go_in, x_in]) in inputs.iter().enumerate().rev() {
            let body = region(&[i, go_in, x_in], nodes, &[go_in, out]);
            let initial = if depth == 0 { x } else { inputs[depth - 1][2] };
            let result = b.made();
            let mut outer = node("Loop", &[trips, go, initial], &[result]);
            outer.regions = vec![("body".into(), body)];
            (nodes, out) = (vec![outer], result);
        }
        check(b, nodes, &[(out, "f32[..]")]);
    }
}
