//! A program as one side runs it, after all passes, and runs of it in whole or in part.
//!
//! Parts are planned without passes: fused nodes stay fused, and run on the same kernels as in a whole run.

use super::source::tag;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::exec::cancel::Cancel;
use devbay_core::exec::eager::Evaluate;
use devbay_core::exec::prepared::Prepared;
use devbay_core::exec::unit::Unit;
use devbay_core::exec::value::RunTensor;
use devbay_core::passes::Moment;
use devbay_core::plan::ahead::Specialised;
use devbay_core::plan::extract::extract;
use devbay_core::plan::section::StepKind;
use devbay_core::plan::specialise::{Folds, specialise};
use devbay_core::plan::{Env, Plan};
use devbay_core::program::{Node, Program, Region, ValueId};
use devbay_core::tensor::{Tensor, TensorType};
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// A program as one side runs it.
pub(super) struct Planned {
    pub program: Program,
    /// Its own values by the model's.
    known: HashMap<ValueId, ValueId>,
    /// The model's values by its own.
    tags: HashMap<ValueId, ValueId>,
    makers: HashMap<ValueId, usize>,
    env: Arc<Env>,
    /// Runs plans; it has no plans of its own.
    runner: Unit,
    /// Launches of the whole program's plan, recorded after its run.
    launched: RefCell<Vec<String>>,
    /// Launches that appeared or disappeared when extra outputs were added.
    changed: RefCell<Vec<String>>,
}

/// Nodes of a program by position, and the values that they start from.
#[derive(Clone, Default)]
pub(super) struct Cone {
    pub nodes: Vec<usize>,
    pub begins: Vec<ValueId>,
}

impl Planned {
    /// Plans a unit's program for inputs of these types.
    ///
    /// # Errors
    /// Errors of specialising and passes.
    pub fn of_unit(unit: &Unit, types: &[TensorType]) -> Result<Self> {
        let env = Arc::clone(unit.env());
        let Specialised { mut program, .. } = unit.specialised(types)?;
        env.run_passes(&mut program, Moment::Device)?;
        let mut planned = Self {
            known: HashMap::new(),
            tags: HashMap::new(),
            makers: HashMap::new(),
            runner: Unit::new(Program::default(), Arc::clone(&env)),
            launched: RefCell::default(),
            changed: RefCell::default(),
            env,
            program,
        };
        let program = &planned.program;
        for (at, node) in program.main.nodes.iter().enumerate() {
            planned.makers.extend(node.outputs.iter().flatten().map(|&id| (id, at)));
        }
        let made = planned.makers.keys().chain(&program.main.inputs).copied();
        let constants = (0..program.values.len() as u32).map(ValueId);
        let constants = constants.filter(|id| program.constant(*id).is_some());
        let mut values: Vec<ValueId> = made.chain(constants).collect();
        values.sort_unstable();
        for id in values {
            let Some(of) = tag(&program.value(id).name) else { continue };
            // Of a value and its narrower twin, keep the one with the model's type.
            let bits = |id: ValueId| program.value(id).ty.as_ref().map_or(0, |ty| ty.dtype.bits);
            let known = planned.known.entry(of).or_insert(id);
            if bits(id) > bits(*known) {
                *known = id;
            }
        }
        planned.tags = planned.known.iter().map(|(&tag, &id)| (id, tag)).collect();
        Ok(planned)
    }

    /// Maps the model's `outputs` to the program's; a replaced output stands for the original.
    pub fn with_outputs(mut self, outputs: &[ValueId]) -> Self {
        for (&tag, &id) in outputs.iter().zip(&self.program.main.outputs) {
            self.known.insert(tag, id);
            self.tags.entry(id).or_insert(tag);
        }
        self
    }

    /// Returns its own value for one of the model's.
    pub fn known(&self, tag: ValueId) -> Option<ValueId> {
        self.known.get(&tag).copied()
    }

    /// Returns all values of the model that it has.
    pub fn tags(&self) -> impl Iterator<Item = ValueId> {
        self.known.keys().copied()
    }

    /// Returns the model's value for one of its own.
    pub fn tag(&self, id: ValueId) -> Option<ValueId> {
        self.tags.get(&id).copied()
    }

    /// Returns the node that makes a value.
    pub fn maker(&self, id: ValueId) -> Option<&Node> {
        self.makers.get(&id).map(|&at| &self.program.main.nodes[at])
    }

    /// Returns the environment for planning units of its regions.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Returns the nodes that values need, back to the values where `stops` is true.
    pub fn cone(&self, targets: &[ValueId], stops: impl Fn(ValueId) -> bool) -> Cone {
        let (mut nodes, mut begins) = (HashSet::new(), Vec::new());
        let mut seen: HashSet<ValueId> = targets.iter().copied().collect();
        let mut open: Vec<ValueId> = targets.to_vec();
        while let Some(id) = open.pop() {
            let is_target = targets.contains(&id);
            let Some(&at) = self.makers.get(&id).filter(|_| is_target || !stops(id)) else {
                if self.program.constant(id).is_none() {
                    begins.push(id);
                }
                continue;
            };
            if nodes.insert(at) {
                open.extend(reads(&self.program.main.nodes[at]).into_iter().filter(|id| seen.insert(*id)));
            }
        }
        let mut cone = Cone { nodes: nodes.into_iter().collect(), begins };
        cone.nodes.sort_unstable();
        cone.begins.sort_unstable();
        cone
    }

    /// Runs the whole program undisturbed.
    ///
    /// # Errors
    /// Errors of planning and running.
    pub fn run_whole(&self, inputs: &[Tensor], cancel: Option<&Cancel>) -> Result<Vec<Tensor>> {
        let plan = Plan::build(self.program.clone(), &self.env)?;
        *self.launched.borrow_mut() = launches(&plan);
        self.run(plan, inputs, cancel)
    }

    /// Returns the launches of the whole program that change with extra outputs; none until that run.
    pub fn changed(&self) -> Vec<String> {
        self.changed.borrow().clone()
    }

    /// Runs some of its nodes, and returns these values: of nodes, constants, or given ones.
    ///
    /// # Errors
    /// Errors of planning and running; [`ErrorKind::Internal`] if `given` lacks a value that the nodes start from.
    pub fn run_part(
        &self,
        cone: &Cone,
        outputs: &[ValueId],
        given: &dyn Fn(ValueId) -> Option<Tensor>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<Tensor>> {
        let missing = |id: ValueId| {
            let text = format!("value %{} of a part is not there", id.0);
            Error::new(ErrorKind::Internal, text)
        };
        let begins: HashSet<ValueId> = cone.begins.iter().copied().collect();
        let made = |id: &ValueId| {
            self.makers.get(id).is_some_and(|at| cone.nodes.binary_search(at).is_ok()) && !begins.contains(id)
        };
        let wanted: Vec<ValueId> = outputs.iter().copied().filter(made).collect();
        let mut results: HashMap<ValueId, Tensor> = HashMap::new();
        if !wanted.is_empty() {
            let nodes = cone.nodes.iter().map(|&at| self.program.main.nodes[at].clone()).collect();
            let region = Region { inputs: cone.begins.clone(), nodes, outputs: wanted.clone() };
            let (mut program, rest) = extract(&self.program, &region);
            if let Some(&id) = rest.first() {
                return Err(missing(id));
            }
            let inputs: Vec<Tensor> =
                cone.begins.iter().map(|&id| given(id).ok_or_else(|| missing(id))).collect::<Result<_>>()?;
            for (&id, tensor) in program.main.inputs.clone().iter().zip(&inputs) {
                program.value_mut(id).ty = Some(tensor.tensor_type());
            }
            let types: Vec<TensorType> = inputs.iter().map(Tensor::tensor_type).collect();
            let is_typed =
                |id: &ValueId| program.value(*id).ty.as_ref().is_some_and(|ty| ty.known_shape().is_some());
            if !program.main.nodes.iter().flat_map(|node| node.outputs.iter().flatten()).all(is_typed) {
                // Types that depended on data are known now.
                program = specialise(&program, &types, Folds::ForShapes, &mut Evaluate::new(&self.env))?;
            }
            let plan = Plan::build(program, &self.env)?;
            if cone.nodes.len() == self.program.main.nodes.len() {
                *self.changed.borrow_mut() = difference(&self.launched.borrow(), launches(&plan));
            }
            results.extend(wanted.iter().copied().zip(self.run(plan, &inputs, cancel)?));
        }
        let result = |&id: &ValueId| match results.get(&id) {
            Some(tensor) => Ok(tensor.clone()),
            None => self.program.constant(id).cloned().or_else(|| given(id)).ok_or_else(|| missing(id)),
        };
        outputs.iter().map(result).collect()
    }

    fn run(&self, plan: Plan, inputs: &[Tensor], cancel: Option<&Cancel>) -> Result<Vec<Tensor>> {
        let plan = Prepared::new(Arc::new(plan), &self.env);
        let results = self.runner.run_plan(&plan, run_tensors(inputs)?, cancel)?;
        results.iter().map(RunTensor::to_tensor).collect()
    }

    /// Returns its nodes at these positions, by name and op.
    pub fn labels(&self, cone: &Cone) -> Vec<String> {
        cone.nodes.iter().map(|&at| self.program.main.nodes[at].label()).collect()
    }
}

/// Returns the kernels that a plan launches, by node, and its control flow.
fn launches(plan: &Plan) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for section in plan.sections() {
        let steps = section.kinds.iter().zip(section.labels.iter().zip(&section.kernels));
        let kernels = steps.filter(|(kind, _)| matches!(kind, StepKind::Kernel | StepKind::Nested));
        // An unnamed node is labelled by a value's number, which differs between programs.
        all.extend(kernels.map(|(_, (label, kernel))| match label.starts_with("making ") {
            true => kernel.clone(),
            false => format!("{label} as {kernel}"),
        }));
    }
    let compiled = plan.compiled().flat_map(|stage| stage.labels.iter());
    all.extend(compiled.filter(|label| !label.starts_with("making ")).cloned());
    all.sort_unstable();
    all
}

/// Returns the items that are in only one of two sorted lists.
fn difference(before: &[String], mut after: Vec<String>) -> Vec<String> {
    let mut others = Vec::new();
    for launch in before {
        match after.binary_search(launch) {
            Ok(at) => drop(after.remove(at)),
            Err(_) => others.push(launch.clone()),
        }
    }
    others.extend(after);
    others
}

/// Returns tensors in host memory for a run.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`] for sizes that overflow.
pub(super) fn run_tensors(tensors: &[Tensor]) -> Result<Vec<RunTensor>> {
    let too_large = || Error::new(ErrorKind::OutOfMemory, "a value is larger than memory");
    tensors.iter().map(|tensor| RunTensor::host(tensor.clone()).ok_or_else(too_large)).collect()
}

/// Returns the values that a node reads: its operands, and the values that its regions capture.
pub(super) fn reads(node: &Node) -> Vec<ValueId> {
    let captured = node.regions.iter().flat_map(|(_, region)| region.captures());
    node.inputs.iter().flatten().copied().chain(captured).collect()
}
