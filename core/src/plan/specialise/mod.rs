//! Specialisation: a program for given input types.
//!
//! With the inputs' extents known, shape inference and constant folding make nearly every graph static:
//! shape arithmetic becomes constants, conditions on shapes become the branch that is taken. The rest
//! either has known types, or depends on data; its values then have unknown extents, and the planner sends
//! it down the op-by-op path.
//!
//! Nodes whose operands are all constant are run once, here, by an [`Evaluator`]: on kernels, so that folding
//! and running cannot differ.

pub mod ahead;
pub(crate) mod fold_cache;
pub mod quantised;

use crate::cancel::look;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::control::unroll::constant_trips;
use crate::program::catalogue::{self, OpKind};
use crate::program::fold::{Evaluator, fold, worth_folding};
use crate::program::infer;
pub use crate::program::scan::ScanLayout;
use crate::program::scan::resolve_axis;
use crate::program::weights;
use crate::program::{Node, Program, Region, Value, ValueId};
use crate::progress::{Counter, Phase};
use crate::tensor::{Dim, Tensor, TensorType, bytes_of, n_elements};
use std::collections::HashSet;

/// Number of times that the types of a loop's carried values are widened before they are given up.
const WIDENINGS_MAX: usize = 4;

/// Bytes of results that are folded in any case, because types may depend on them.
const SHAPE_BYTES_MAX: usize = 1 << 10;

/// The nodes on constants that specialising runs.
#[derive(Clone, Copy)]
pub struct Folds {
    /// True for all nodes, false for those on whose results types may depend.
    pub all: bool,
    /// True if weights of products of integers stay bytes ([`quantised`]).
    pub keeps_bytes: bool,
    /// True if quantised weights of other products stay as they are where that saves enough ([`weights::kept`]).
    pub keeps_weights: bool,
}

/// Makes the program for inputs of given types, one for each input of `program`; the seed's type may be left out.
///
/// # Errors
/// For types that do not fit each other, naming the node: [`ErrorKind::InvalidInput`] if the program is right for the types that
/// it declares, which leave extents open; else [`ErrorKind::InvalidModel`].
pub fn specialise(
    program: &Program,
    inputs: &[TensorType],
    folds: Folds,
    evaluator: &mut dyn Evaluator,
) -> Result<Program> {
    let type_of = |id: ValueId| program.value(id).ty.clone();
    let seed = program.seed_input().filter(|_| inputs.len() < program.main.inputs.len());
    let inputs: &[TensorType] = &inputs.iter().cloned().chain(seed.and_then(type_of)).collect::<Vec<_>>();
    specialise_for(program, inputs, folds, evaluator).map_err(|error| {
        let declared = program.main.inputs.iter().map(|&id| type_of(id));
        match declared.collect::<Option<Vec<_>>>() {
            Some(declared)
                if error.kind() == ErrorKind::InvalidModel
                    && declared != inputs
                    && specialise_for(program, &declared, folds, evaluator).is_ok() =>
            {
                let types: Vec<String> = inputs.iter().map(ToString::to_string).collect();
                error.of_inputs(&types.join(", "))
            }
            _ => error,
        }
    })
}

fn specialise_for(
    program: &Program,
    inputs: &[TensorType],
    folds: Folds,
    evaluator: &mut dyn Evaluator,
) -> Result<Program> {
    let mut kept = if folds.keeps_bytes { quantised::operands_of_products(program) } else { HashSet::new() };
    if folds.keeps_weights {
        kept.extend(weights::kept(program));
    }
    let mut specialiser = Specialiser {
        source: program,
        out: Program { name: program.name.clone(), ..Program::default() },
        map: vec![None; program.values.len()],
        folds: folds.all,
        kept,
        evaluator,
    };
    for (&id, ty) in program.main.inputs.iter().zip(inputs) {
        let new = specialiser.new_value(id, Some(ty.clone()));
        specialiser.out.main.inputs.push(new);
    }
    let mut nodes = Vec::new();
    specialiser.nodes(&program.main, &mut nodes)?;
    let outputs = program.main.outputs.iter().map(|&id| specialiser.mapped(id)).collect::<Result<_>>()?;
    let mut out = specialiser.out;
    out.main.nodes = nodes;
    out.main.outputs = outputs;
    Ok(out)
}

struct Specialiser<'a> {
    source: &'a Program,
    out: Program,
    /// New number of each value of the source.
    map: Vec<Option<ValueId>>,
    /// True if all nodes on constants are run, not only those that types may depend on.
    folds: bool,
    /// Results of nodes on constants that are not run: quantised weights as numbers.
    kept: HashSet<ValueId>,
    evaluator: &'a mut dyn Evaluator,
}

impl Specialiser<'_> {
    fn new_value(&mut self, id: ValueId, ty: Option<TensorType>) -> ValueId {
        let name = self.source.value(id).name.clone();
        let new = self.out.add_value(Value { name, ty, constant: None });
        self.map[id.idx()] = Some(new);
        new
    }

    fn new_constant(&mut self, id: ValueId, tensor: Tensor) {
        let name = self.source.value(id).name.clone();
        self.map[id.idx()] = Some(self.out.add_constant(&name, tensor));
    }

    /// The new number of a value that was made before.
    fn mapped(&mut self, id: ValueId) -> Result<ValueId> {
        if let Some(new) = self.map[id.idx()] {
            return Ok(new);
        }
        let Some(tensor) = self.source.constant(id) else {
            let value = self.source.value(id);
            return Err(Error::new(
                ErrorKind::InvalidModel,
                format!("value %{} `{}` is used before it is made", id.0, value.name),
            ));
        };
        let tensor = tensor.clone();
        self.new_constant(id, tensor);
        self.mapped(id)
    }

    fn nodes(&mut self, region: &Region, out: &mut Vec<Node>) -> Result<()> {
        let counter = Counter::begin(Phase::Specialise, region.nodes.len());
        for (i, node) in region.nodes.iter().enumerate() {
            look()?;
            self.node(node, out).map_err(|e| e.at_node(node.label()))?;
            counter.done(i + 1);
        }
        Ok(())
    }

    fn node(&mut self, node: &Node, out: &mut Vec<Node>) -> Result<()> {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(input.map(|id| self.mapped(id)).transpose()?);
        }
        let def = catalogue::find(&node.op.domain, &node.op.name);
        match def.map(|def| def.kind) {
            Some(OpKind::Control) => return self.control(node, inputs, out),
            Some(OpKind::Query) => {
                let ty = inputs.first().copied().flatten().and_then(|id| self.out.value(id).ty.clone());
                if let Some(result) = ty.and_then(|ty| infer::query(node, &ty).transpose()).transpose()? {
                    if let Some(id) = node.output(0) {
                        self.new_constant(id, result);
                    }
                    return Ok(());
                }
            }
            _ => {}
        }
        // Only the vendor knows the rules by which their values would have to be renumbered.
        if !node.regions.is_empty() {
            return Err(Error::new(
                ErrorKind::UnsupportedOp,
                format!("op {} has regions; those of If, Loop and Scan are supported", node.op),
            ));
        }
        if node.op.is("Identity")
            && let (Some(Some(input)), Some(output)) = (inputs.first(), node.output(0))
        {
            self.map[output.idx()] = Some(*input);
            return Ok(());
        }
        let constants: Vec<Option<Tensor>> =
            inputs.iter().map(|id| id.and_then(|id| self.out.constant(id).cloned())).collect();
        let types = self.infer(node, &inputs, &constants)?;
        let known = inputs.iter().zip(&constants).all(|(id, constant)| id.is_none() == constant.is_none());
        if known
            && def.is_some_and(|def| def.is_pure())
            && worth_folding(&types, &constants)
            && (self.folds || shapes_may_depend_on(&types))
            && !node.outputs.iter().flatten().any(|id| self.kept.contains(id))
            && let Some(results) = fold(&mut *self.evaluator, node, &constants, &types)?
        {
            // Results without a reader are not made.
            for (&id, tensor) in node.outputs.iter().flatten().zip(results) {
                self.new_constant(id, tensor);
            }
            return Ok(());
        }
        let mut new = node.clone();
        new.inputs = inputs;
        for (output, ty) in
            new.outputs.iter_mut().zip(types.into_iter().map(Some).chain(std::iter::repeat(None)))
        {
            *output = output.map(|id| self.new_value(id, ty));
        }
        out.push(new);
        Ok(())
    }

    /// Types of a node's results, or none if they are not known. An op that is not in the catalogue is a
    /// vendor's: its kernel knows, or else the model may say.
    fn infer(
        &mut self,
        node: &Node,
        inputs: &[Option<ValueId>],
        constants: &[Option<Tensor>],
    ) -> Result<Vec<TensorType>> {
        let mut types = Vec::with_capacity(inputs.len());
        for id in inputs {
            match id.map(|id| self.out.value(id).ty.clone()) {
                // The type of an operand is not known at all, so neither are the results'.
                Some(None) => return Ok(Vec::new()),
                Some(Some(ty)) => types.push(Some(ty)),
                None => types.push(None),
            }
        }
        if let Some(def) = catalogue::find(&node.op.domain, &node.op.name) {
            return infer::infer_row(def, node, &types, constants);
        }
        let known = |ty: &Option<TensorType>| ty.as_ref().is_none_or(|ty| ty.known_shape().is_some());
        if types.iter().all(known) {
            let operands = types.into_iter().zip(constants);
            let operands: Vec<_> =
                operands.map(|(ty, constant)| ty.map(|ty| (ty, constant.clone()))).collect();
            if let Some(types) = self.evaluator.output_types(node, &operands)? {
                return Ok(types);
            }
        }
        let declared = node.outputs.iter().map(|id| id.and_then(|id| self.source.value(id).ty.clone()));
        Ok(declared.collect::<Option<_>>().unwrap_or_default())
    }

    fn control(&mut self, node: &Node, inputs: Vec<Option<ValueId>>, out: &mut Vec<Node>) -> Result<()> {
        match &*node.op.name {
            "If" => self.conditional(node, inputs, out),
            "Loop" => self.looped(node, inputs, out),
            _ => self.scan(node, inputs, out),
        }
    }

    fn conditional(&mut self, node: &Node, inputs: Vec<Option<ValueId>>, out: &mut Vec<Node>) -> Result<()> {
        let region = |name: &str| node.region(name).ok_or_else(|| missing_region(name));
        let (then_branch, else_branch) = (region("then_branch")?, region("else_branch")?);
        let condition = inputs.first().copied().flatten();
        if let Some(value) = condition.and_then(|id| self.out.constant(id)).and_then(Tensor::to_int) {
            let taken = if value != 0 { then_branch } else { else_branch };
            self.nodes(taken, out)?;
            for (output, &inner) in node.outputs.iter().zip(&taken.outputs) {
                if let Some(output) = output {
                    self.map[output.idx()] = Some(self.mapped(inner)?);
                }
            }
            return Ok(());
        }
        let then_region = self.nested(then_branch, &[])?;
        let else_region = self.nested(else_branch, &[])?;
        let mut new = Node { inputs, regions: Vec::new(), ..node.clone() };
        for (i, output) in new.outputs.iter_mut().enumerate() {
            let side = |region: &Region| region.outputs.get(i).and_then(|&id| self.out.value(id).ty.clone());
            let ty = match (side(&then_region), side(&else_region)) {
                (Some(a), Some(b)) => widened(&a, &b),
                _ => None,
            };
            *output = output.map(|id| self.new_value(id, ty));
        }
        new.regions = vec![("then_branch".into(), then_region), ("else_branch".into(), else_region)];
        out.push(new);
        Ok(())
    }

    /// Specialises a region in place; `types` are those of its inputs. A region that does not fit, such as
    /// the branch that these shapes never take, is copied as it is: it fails when it is run.
    fn nested(&mut self, region: &Region, types: &[Option<TensorType>]) -> Result<Region> {
        let n_values = self.out.values.len();
        let map = self.map.clone();
        match self.try_nested(region, types) {
            Ok(region) => Ok(region),
            Err(error) => {
                tracing::debug!("a region is left unspecialised: {error}");
                self.out.values.truncate(n_values);
                self.map = map;
                self.copied(region, types)
            }
        }
    }

    fn try_nested(&mut self, region: &Region, types: &[Option<TensorType>]) -> Result<Region> {
        let mut new = Region::default();
        for (i, &id) in region.inputs.iter().enumerate() {
            let ty = types.get(i).cloned().flatten();
            // An input that is already mapped is an invariant of a loop.
            if self.map[id.idx()].is_none() {
                new.inputs.push(self.new_value(id, ty));
            }
        }
        let mut nodes = Vec::new();
        self.nodes(region, &mut nodes)?;
        new.nodes = nodes;
        new.outputs = region.outputs.iter().map(|&id| self.mapped(id)).collect::<Result<_>>()?;
        Ok(new)
    }

    /// Copies a region, with new numbers and nothing else.
    fn copied(&mut self, region: &Region, types: &[Option<TensorType>]) -> Result<Region> {
        let mut new = Region::default();
        for (i, &id) in region.inputs.iter().enumerate() {
            if self.map[id.idx()].is_none() {
                new.inputs.push(self.new_value(id, types.get(i).cloned().flatten()));
            }
        }
        for node in &region.nodes {
            let mut copy = Node { regions: Vec::new(), ..node.clone() };
            for input in copy.inputs.iter_mut().flatten() {
                *input = self.mapped(*input)?;
            }
            for (name, nested) in &node.regions {
                let nested = self.copied(nested, &[])?;
                copy.regions.push((name.clone(), nested));
            }
            for output in copy.outputs.iter_mut().flatten() {
                *output = self.new_value(*output, None);
            }
            new.nodes.push(copy);
        }
        new.outputs = region.outputs.iter().map(|&id| self.mapped(id)).collect::<Result<_>>()?;
        Ok(new)
    }

    fn looped(&mut self, node: &Node, inputs: Vec<Option<ValueId>>, out: &mut Vec<Node>) -> Result<()> {
        let body = node.region("body").ok_or_else(|| missing_region("body"))?;
        let n_carried = inputs.len().saturating_sub(2);
        if body.inputs.len() != n_carried + 2 || body.outputs.len() < n_carried + 1 {
            return Err(Error::new(
                ErrorKind::InvalidModel,
                format!(
                    "a loop with {n_carried} carried values has a body of {} inputs and {} outputs",
                    body.inputs.len(),
                    body.outputs.len()
                ),
            ));
        }
        // A value that the body hands on unchanged is not carried: it is a value of the surrounding graph, and a
        // constant there is a constant inside.
        let mut kept = Vec::new();
        for i in 0..n_carried {
            let (inner, initial) = (body.inputs[i + 2], inputs[i + 2]);
            if through_identities(body, body.outputs[i + 1]) == inner
                && let Some(initial) = initial
            {
                self.map[inner.idx()] = Some(initial);
                if let Some(output) = node.output(i) {
                    self.map[output.idx()] = Some(initial);
                }
            } else {
                kept.push(i);
            }
        }
        let type_of = |this: &Self, id: Option<ValueId>| id.and_then(|id| this.out.value(id).ty.clone());
        let initial: Vec<Option<TensorType>> = kept.iter().map(|&i| type_of(self, inputs[i + 2])).collect();
        let mut carried = initial.clone();
        let mut widenings = 0;
        let (new_body, results) = loop {
            let mut types = vec![
                Some(TensorType::new(crate::tensor::I64, &[])),
                Some(TensorType::new(crate::tensor::BOOL, &[])),
            ];
            types.resize(body.inputs.len(), None);
            for (&i, ty) in kept.iter().zip(&carried) {
                types[i + 2] = ty.clone();
            }
            let n_values = self.out.values.len();
            let map = self.map.clone();
            let new_body = self.nested(body, &types)?;
            let results: Vec<_> =
                kept.iter().map(|&i| type_of(self, Some(new_body.outputs[i + 1]))).collect();
            let wider: Vec<Option<TensorType>> = carried
                .iter()
                .zip(&results)
                .map(|(a, b)| match (a, b) {
                    (Some(a), Some(b)) if widenings < WIDENINGS_MAX => widened(a, b),
                    (Some(a), Some(b)) if a.dtype == b.dtype && a != b => Some(TensorType::unranked(a.dtype)),
                    (Some(a), Some(_)) => Some(a.clone()),
                    _ => None,
                })
                .collect();
            widenings += 1;
            if wider == carried || widenings > 2 * WIDENINGS_MAX {
                break (new_body, results);
            }
            self.out.values.truncate(n_values);
            self.map = map;
            carried = wider;
        };
        let mut new = Node { regions: Vec::new(), ..node.clone() };
        new.inputs = inputs[..2.min(inputs.len())].to_vec();
        new.inputs.extend(kept.iter().map(|&i| inputs[i + 2]));
        new.outputs = Vec::new();
        for ((&i, first), last) in kept.iter().zip(&initial).zip(&results) {
            let ty = match (first, last) {
                (Some(a), Some(b)) => widened(a, b),
                _ => None,
            };
            new.outputs.push(node.output(i).map(|id| self.new_value(id, ty)));
        }
        let trips = constant_trips(&self.out, &inputs, &new_body);
        for i in n_carried..node.outputs.len() {
            let ty = new_body.outputs.get(i + 1).and_then(|&id| self.out.value(id).ty.clone());
            let ty = ty.map(|ty| TensorType {
                dtype: ty.dtype,
                shape: ty.shape.map(|shape| {
                    let leading = trips.map_or_else(Dim::unknown, Dim::Known);
                    std::iter::once(leading).chain(shape).collect()
                }),
            });
            new.outputs.push(node.output(i).map(|id| self.new_value(id, ty)));
        }
        // Body outputs in the new order: condition, carried values that are kept, scan outputs.
        let mut new_body = new_body;
        let old = std::mem::take(&mut new_body.outputs);
        new_body.outputs.push(old[0]);
        new_body.outputs.extend(kept.iter().map(|&i| old[i + 1]));
        new_body.outputs.extend(&old[n_carried + 1..]);
        new.regions = vec![("body".into(), new_body)];
        out.push(new);
        Ok(())
    }

    fn scan(&mut self, node: &Node, inputs: Vec<Option<ValueId>>, out: &mut Vec<Node>) -> Result<()> {
        let body = node.region("body").ok_or_else(|| missing_region("body"))?;
        let layout = ScanLayout::of(node, body)?;
        let mut types: Vec<Option<TensorType>> = Vec::new();
        let mut length = None;
        for (i, id) in inputs.iter().enumerate() {
            let ty = id.and_then(|id| self.out.value(id).ty.clone());
            if i < layout.n_states {
                types.push(ty);
                continue;
            }
            let axis = layout.input_axes[i - layout.n_states];
            let sliced = ty.and_then(|ty| {
                let mut shape = ty.shape?;
                let axis = resolve_axis(axis, shape.len())?;
                length = length.or(shape.remove(axis).known());
                Some(TensorType { dtype: ty.dtype, shape: Some(shape) })
            });
            types.push(sliced);
        }
        let mut new_body = self.nested(body, &types)?;
        let stable = new_body.outputs[..layout.n_states]
            .iter()
            .zip(&types)
            .all(|(&id, ty)| self.out.value(id).ty == *ty);
        if !stable {
            for ty in &mut types[..layout.n_states] {
                *ty = ty.take().map(|ty| TensorType::unranked(ty.dtype));
            }
            for &id in &body.inputs {
                self.map[id.idx()] = None;
            }
            new_body = self.nested(body, &types)?;
        }
        let mut new = Node { inputs, regions: Vec::new(), ..node.clone() };
        for (i, output) in new.outputs.iter_mut().enumerate() {
            let ty = new_body.outputs.get(i).and_then(|&id| self.out.value(id).ty.clone());
            let ty = if i < layout.n_states {
                ty
            } else {
                let axis = layout.output_axes.get(i - layout.n_states).copied().unwrap_or(0);
                ty.and_then(|ty| {
                    let mut shape = ty.shape?;
                    let axis = resolve_axis(axis, shape.len() + 1)?;
                    shape.insert(axis, length.map_or_else(Dim::unknown, Dim::Known));
                    Some(TensorType { dtype: ty.dtype, shape: Some(shape) })
                })
            };
            *output = output.map(|id| self.new_value(id, ty));
        }
        new.regions = vec![("body".into(), new_body)];
        out.push(new);
        Ok(())
    }
}

fn missing_region(name: &str) -> Error {
    Error::new(ErrorKind::InvalidModel, format!("a control-flow node without its region {name}"))
}

/// Returns the value that an output is, seen through the body's Identity nodes.
pub(super) fn through_identities(body: &Region, output: ValueId) -> ValueId {
    let mut id = output;
    for node in body.nodes.iter().rev() {
        if node.op.is("Identity")
            && node.output(0) == Some(id)
            && let Some(input) = node.input(0)
        {
            id = input;
        }
    }
    id
}

/// Returns the type that both are: extents that differ are unknown. None for different element types.
fn widened(a: &TensorType, b: &TensorType) -> Option<TensorType> {
    if a.dtype != b.dtype {
        return None;
    }
    let shape = match (&a.shape, &b.shape) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            let dims = a.iter().zip(b);
            Some(dims.map(|(a, b)| if a == b { a.clone() } else { Dim::unknown() }).collect())
        }
        _ => None,
    };
    Some(TensorType { dtype: a.dtype, shape })
}

/// Returns whether results are so small that they may be extents, axes or factors of them.
fn shapes_may_depend_on(types: &[TensorType]) -> bool {
    let bytes = |ty: &TensorType| bytes_of(ty.dtype, n_elements(&ty.known_shape()?)?);
    types.iter().all(|ty| bytes(ty).is_none_or(|bytes| bytes <= SHAPE_BYTES_MAX))
}
