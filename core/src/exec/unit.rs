//! Units: programs that run, with their plans by input types.
//!
//! A session's program is a unit, and so is each region of a control-flow node. A unit plans when it meets
//! new input types, and keeps a bounded number of plans; looking one up takes no lock.

use super::cancel::Cancel;
use super::compiled;
use super::control;
use super::eager;
use super::frame::first_cause;
use super::prepared::{Prepared, SectionRuns, Single, StageRuns};
use super::statistics::{PlanStatistics, Tally};
use super::value::{RunTensor, constant};
use crate::cancel::{self, look};
use crate::device::{REST_LIMIT, Stream, must_leak};
use crate::error::{Error, ErrorKind, Result};
use crate::passes::{Applied, Moment, dead_code};
use crate::plan::ahead::Specialised;
use crate::plan::report::PlanReport;
use crate::plan::section::{Shaped, Source};
use crate::plan::{Env, Plan, SectionStage, Stage};
use crate::program::{Program, ValueId};
use crate::tensor::{DType, Tensor, TensorType};
use crate::trace::{self, StepInfo};
use arc_swap::{ArcSwap, Guard};
use devbay_plugin_api::abi::BufferRef;
use std::sync::{Arc, Mutex};

/// A program that runs.
pub struct Unit {
    program: Arc<Program>,
    /// Effects of the passes over the model.
    passes: Vec<Applied>,
    /// Programs that need not be specialised.
    ahead: Arc<[Specialised]>,
    env: Arc<Env>,
    plans: ArcSwap<Vec<Prepared>>,
    /// Held while a plan is made.
    planning: Mutex<()>,
    tally: Tally,
}

impl Unit {
    /// Creates a unit without plans.
    pub fn new(program: impl Into<Arc<Program>>, env: Arc<Env>) -> Self {
        Self {
            program: program.into(),
            passes: Vec::new(),
            ahead: Arc::default(),
            env,
            plans: ArcSwap::default(),
            planning: Mutex::new(()),
            tally: Tally::default(),
        }
    }

    /// Returns a unit of a model, whose passes run now.
    ///
    /// # Errors
    /// As [`Env::run_passes`].
    pub fn of_model(model: &Program, env: Arc<Env>) -> Result<Self> {
        env.options.limits.check(model)?;
        let mut program = model.clone();
        let passes =
            cancel::planning(env.options.limits.planning, || env.run_passes(&mut program, Moment::Model))?;
        env.release_constants(model);
        // The model may go before the unit.
        dead_code::drop_constants(&mut program);
        Ok(Self { passes, ..Self::new(program, env) })
    }

    /// Returns a unit of a model whose passes ran before, and did this; for some types of inputs it was specialised
    /// then too.
    pub fn of_compiled(
        program: Program,
        passes: Vec<Applied>,
        ahead: Arc<[Specialised]>,
        env: Arc<Env>,
    ) -> Self {
        Self { passes, ahead, ..Self::new(program, env) }
    }

    /// Returns the program for inputs of known types, before the passes for devices, with the changes of each pass.
    ///
    /// # Errors
    /// As [`Env::specialised`].
    pub fn specialised(&self, types: &[TensorType]) -> Result<Specialised> {
        let (program, passes) = match self.ahead.iter().find(|ahead| ahead.is_for(types)) {
            Some(ahead) => (self.env.typed_again(ahead, types)?, ahead.passes.clone()),
            None => self.env.specialised(&self.program, types)?,
        };
        Ok(Specialised { program, passes })
    }

    /// Returns the effects of the passes over the model, those over specialised programs not counted.
    pub fn model_passes(&self) -> &[Applied] {
        &self.passes
    }

    /// Returns the effects of passes on the model, and then on the program of a plan.
    pub fn passes(&self, plan: &Plan) -> Vec<Applied> {
        let mut all = self.passes.clone();
        plan.passes.iter().for_each(|&applied| Applied::add(&mut all, applied));
        all
    }

    /// Returns the program, not specialised.
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Returns the environment that it is planned with.
    pub fn env(&self) -> &Arc<Env> {
        &self.env
    }

    /// Returns the plans that it has now.
    pub fn plans(&self) -> Vec<Arc<Plan>> {
        self.plans.load().iter().map(|prepared| Arc::clone(prepared.plan())).collect()
    }

    /// Makes reports of the plans that it has now.
    pub(super) fn reports(&self) -> Vec<PlanReport> {
        self.plans.load().iter().map(|prepared| prepared.report(&self.env)).collect()
    }

    /// Makes a report of a plan of this unit's. If the plan was thrown out, its regions' plans are gone.
    pub fn report(&self, plan: &Plan) -> PlanReport {
        let plans = self.plans.load();
        match plans.iter().find(|prepared| std::ptr::eq(&**prepared.plan(), plan)) {
            Some(prepared) => prepared.report(&self.env),
            None => PlanReport::of(plan, &self.env, &|_, _| Vec::new()),
        }
    }

    /// The first of the plans that are like that, marked as used. It takes no reference count.
    #[inline]
    pub(crate) fn find(&self, fits: impl Fn(&Plan) -> bool) -> Option<Found> {
        let plans = self.plans.load();
        let at = plans.iter().position(|prepared| fits(prepared.plan()))?;
        plans[at].mark_used();
        Some(Found { plans, at })
    }

    /// Returns the plan for input types, made now if there is none.
    ///
    /// # Errors
    /// Errors of specialising and planning.
    pub fn plan_for<'a, I>(&self, inputs: I) -> Result<Arc<Plan>>
    where
        I: Iterator<Item = (DType, &'a [usize])> + Clone,
    {
        self.find_or_plan(inputs).map(|(found, _)| Arc::clone(found.prepared().plan()))
    }

    /// Returns the plan as [`Unit::plan_for`] does, with the state that its runs share.
    ///
    /// # Errors
    /// As [`Unit::plan_for`].
    pub fn prepared_for<'a, I>(&self, inputs: I) -> Result<Prepared>
    where
        I: Iterator<Item = (DType, &'a [usize])> + Clone,
    {
        self.find_or_plan(inputs).map(|(found, _)| found.prepared().clone())
    }

    /// As [`Unit::plan_for`], for a run that follows: a plan that is made now is a miss.
    pub(super) fn plan_for_run<'a, I>(&self, inputs: I) -> Result<Found>
    where
        I: Iterator<Item = (DType, &'a [usize])> + Clone,
    {
        let (found, is_new) = self.find_or_plan(inputs)?;
        if is_new {
            self.tally.missed();
        }
        Ok(found)
    }

    /// Returns the plan for input types, and whether it was made now.
    fn find_or_plan<'a, I>(&self, inputs: I) -> Result<(Found, bool)>
    where
        I: Iterator<Item = (DType, &'a [usize])> + Clone,
    {
        let fits = |plan: &Plan| {
            let mut types = plan.inputs.iter().zip(inputs.clone());
            types.all(|(ty, (dtype, shape))| ty.is(dtype, shape))
        };
        if let Some(found) = self.find(fits) {
            return Ok((found, false));
        }
        let _planning = cancel::lock(&self.planning)?;
        // Another thread may have made it meanwhile.
        if let Some(found) = self.find(fits) {
            return Ok((found, false));
        }
        let types: Vec<TensorType> = inputs.map(|(dtype, shape)| TensorType::new(dtype, shape)).collect();
        let plan = cancel::planning(self.env.options.limits.planning, || self.make_plan(&types))?;
        let mut plans = self.plans.load().to_vec();
        let evicted = make_room(&mut plans, self.env.options.plans_max);
        let at = plans.len();
        plans.push(Prepared::new(Arc::new(plan), &self.env));
        self.plans.store(Arc::new(plans));
        self.tally.evicted(&evicted);
        // No other thread plans as long as the lock is held: these are the plans that were stored.
        Ok((Found { plans: self.plans.load(), at }, true))
    }

    fn make_plan(&self, types: &[TensorType]) -> Result<Plan> {
        let mut laps = self.tally.plan();
        let Specialised { mut program, mut passes } = self.specialised(types)?;
        laps.specialised();
        passes.extend(self.env.run_passes(&mut program, Moment::Device)?);
        laps.passed();
        let mut plan = Plan::build(program, &self.env)?;
        // A kernel that was prepared may not have reported that the work is to end.
        look()?;
        self.env.options.limits.check_bytes(plan.bytes())?;
        plan.passes = passes.into();
        plan.is_declared = self.takes(&plan.inputs);
        laps.planned();
        self.env.kernels.sweep();
        self.env.release_constants(&self.program);
        Ok(plan)
    }

    /// Returns the types of the results for inputs of these types, as far as they do not depend on data. Nothing is
    /// planned.
    ///
    /// # Errors
    /// Errors of specialising.
    pub fn result_types(&self, inputs: &[TensorType]) -> Result<Vec<Option<TensorType>>> {
        let Specialised { program, .. } = self.specialised(inputs)?;
        Ok(program.main.outputs.iter().map(|&id| program.value(id).ty.clone()).collect())
    }

    /// Returns the uses of its plans so far, and the cost of making them, without those of nested regions.
    pub fn statistics(&self) -> PlanStatistics {
        self.tally.statistics(&self.plans.load(), &self.env)
    }

    /// Returns whether the program's inputs are declared to be of such types, as far as they are declared.
    fn takes(&self, types: &[Shaped]) -> bool {
        let declared = &self.program.main.inputs;
        let takes = |(&id, ty): (&ValueId, &Shaped)| {
            self.program.value(id).ty.as_ref().is_none_or(|declared| declared.takes(ty.dtype, &ty.shape))
        };
        declared.len() == types.len() && declared.iter().zip(types).all(takes)
    }

    /// Runs on tensors of a run.
    ///
    /// # Errors
    /// Errors of planning, or the first failure of the run.
    pub fn run(&self, inputs: Vec<RunTensor>, cancel: Option<&Cancel>) -> Result<Vec<RunTensor>> {
        let plan = self.plan_for_run(inputs.iter().map(|input| (input.ty.dtype, &*input.ty.shape)))?;
        self.run_plan(plan.prepared(), inputs, cancel)
    }

    /// As [`Unit::run`], on inputs that are there when a stream has reached a point.
    ///
    /// # Errors
    /// As [`Unit::run`], and the stream's failure.
    pub fn run_after(
        &self,
        inputs: Vec<RunTensor>,
        after: Option<Point<'_>>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<RunTensor>> {
        let plan = self.plan_for_run(inputs.iter().map(|input| (input.ty.dtype, &*input.ty.shape)))?;
        self.env().traced(|| self.run_plan_after(plan.prepared(), inputs, after, cancel))
    }

    /// Runs a plan of this unit's.
    ///
    /// # Errors
    /// The first failure of the run.
    pub fn run_plan(
        &self,
        plan: &Prepared,
        inputs: Vec<RunTensor>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<RunTensor>> {
        self.run_plan_after(plan, inputs, None, cancel)
    }

    fn run_plan_after(
        &self,
        prepared: &Prepared,
        inputs: Vec<RunTensor>,
        after: Option<Point<'_>>,
        cancel: Option<&Cancel>,
    ) -> Result<Vec<RunTensor>> {
        let plan = &**prepared.plan();
        // A device that has the first stage to itself waits for the point; otherwise this thread does.
        let mut after = after;
        let waits = |stage: &Stage, point: &Point<'_>| match stage {
            Stage::Section(stage) => stage.section.waits_for(point.stream),
            Stage::Compiled(_) | Stage::Control(_) | Stage::Eager(_) => false,
        };
        if let Some(point) =
            after.take_if(|point| !plan.stages.first().is_some_and(|stage| waits(stage, point)))
        {
            point.stream.wait_reached(point.value, REST_LIMIT)?;
        }
        if plan.single().is_none() {
            prepared.count_staged();
        }
        let mut values = Values { plan, env: &self.env, made: vec![None; plan.program.values.len()] };
        for (&id, input) in plan.program.main.inputs.iter().zip(inputs) {
            values.set(id, input);
        }
        if let Some(Single { stage, runs }) = prepared.single() {
            Cancel::check(cancel)?;
            run_section(stage, runs, &mut values, after.take(), cancel)?;
        }
        for stage in prepared.stages() {
            Cancel::check(cancel)?;
            match stage {
                (Stage::Section(stage), StageRuns::Section(runs)) => {
                    run_section(stage, runs, &mut values, after.take(), cancel)?;
                }
                (Stage::Compiled(stage), StageRuns::Compiled(idle)) => {
                    compiled::run(stage, idle, &mut values, cancel)?;
                }
                (Stage::Control(stage), StageRuns::Control(units)) => {
                    let node = &stage.node;
                    let _traced = trace::begin_lone(self.env.device.name(), 0, || StepInfo::of_stage(node));
                    control::run(stage, units, &mut values, cancel)
                        .map_err(|e| e.at_node(stage.node.label()))?;
                }
                (Stage::Eager(stage), StageRuns::Eager(cache)) => {
                    let results = eager::run_stage(stage, cache, &mut values)
                        .map_err(|e| e.at_node(stage.node.label()))?;
                    // Results without a reader are not made.
                    let wanted = stage.node.outputs.iter().flatten();
                    wanted.zip(results).for_each(|(&id, result)| values.set(id, result));
                }
                _ => return Err(Error::new(ErrorKind::Internal, "a stage that is prepared as another")),
            }
        }
        plan.program.main.outputs.iter().map(|&id| values.get(id)).collect()
    }
}

/// A point of a stream: all work that was enqueued there before its signal.
#[derive(Clone, Copy)]
pub struct Point<'a> {
    /// The stream.
    pub stream: &'a Stream,
    /// The value that was signalled.
    pub value: u64,
}

/// A plan of a unit's, which is there until this goes, with those that the unit had beside it then, though the unit may
/// have thrown them out. It takes no reference count.
pub(crate) struct Found {
    plans: Guard<Arc<Vec<Prepared>>>,
    at: usize,
}

impl Found {
    /// Returns the plan.
    #[inline]
    pub fn prepared(&self) -> &Prepared {
        &self.plans[self.at]
    }
}

/// Throws out plans that were not used lately, and gives them: each that was used gets a second chance.
fn make_room(plans: &mut Vec<Prepared>, plans_max: usize) -> Vec<Prepared> {
    let mut evicted = Vec::new();
    while plans.len() >= plans_max.max(1) {
        let idle = plans.iter().position(|plan| !plan.was_used());
        evicted.push(plans.remove(idle.unwrap_or(0)));
    }
    evicted
}

/// The values of a run that its stages hand on.
pub(crate) struct Values<'a> {
    pub plan: &'a Plan,
    pub env: &'a Arc<Env>,
    made: Vec<Option<RunTensor>>,
}

impl Values<'_> {
    /// A value that was made before, or a constant.
    pub fn get(&self, id: ValueId) -> Result<RunTensor> {
        if let Some(value) = &self.made[id.idx()] {
            return Ok(value.clone());
        }
        match self.plan.program.constant(id) {
            Some(tensor) => constant(tensor, &self.env.constants),
            None => Err(Error::new(
                ErrorKind::Internal,
                format!("value %{} `{}` is used before it is made", id.0, self.plan.program.value(id).name),
            )),
        }
    }

    /// Takes a value at its last use; otherwise like [`Values::get`].
    pub fn take(&mut self, id: ValueId) -> Result<RunTensor> {
        match self.made[id.idx()].take() {
            Some(value) => Ok(value),
            None => self.get(id),
        }
    }

    /// Returns the constant that a value is, if it is one.
    pub fn constant(&self, id: ValueId) -> Option<&Tensor> {
        self.plan.program.constant(id)
    }

    pub fn set(&mut self, id: ValueId, value: RunTensor) {
        self.made[id.idx()] = Some(value);
    }

    pub fn set_results(&mut self, ids: &[Option<ValueId>], results: Vec<RunTensor>) {
        for (id, result) in ids.iter().zip(results) {
            if let Some(id) = id {
                self.set(*id, result);
            }
        }
    }
}

fn run_section(
    stage: &SectionStage,
    runs: &SectionRuns,
    values: &mut Values<'_>,
    after: Option<Point<'_>>,
    cancel: Option<&Cancel>,
) -> Result<()> {
    let section = &stage.section;
    let device = &section.device;
    let mut inputs: Vec<RunTensor> =
        section.input_ids.iter().map(|&id| values.get(id)).collect::<Result<_>>()?;
    let mut written: Vec<RunTensor> =
        section.written.iter().map(|ty| RunTensor::allocate(ty.clone(), device)).collect::<Result<_>>()?;
    let references = |tensors: &mut [RunTensor]| -> Result<Vec<BufferRef>> {
        tensors.iter_mut().map(|tensor| tensor.reference(device)).collect()
    };
    let (input_refs, output_refs) = (references(&mut inputs)?, references(&mut written)?);
    let mut frame = runs.take_frame(section)?;
    frame.bind(section, |i| input_refs[i], |i| output_refs[i]);
    let ordered = match &after {
        Some(point) => frame.streams.first.wait_for(point.stream, point.value, REST_LIMIT),
        None => Ok(()),
    };
    // SAFETY: the references are of tensors that live here until `rest` below has waited; their sizes are
    // the section's, because the plan was made for them.
    let launched = ordered.and_then(|()| unsafe { frame.launch_once(section, cancel) });
    match frame.rest() {
        Ok(()) if frame.is_spent => drop(frame),
        Ok(()) => runs.frames.give(frame),
        Err(error) if must_leak(&error) => {
            // The device may touch them at any later time, so they are leaked (B24).
            std::mem::forget((frame, inputs, written));
            section.leak();
            return Err(launched.err().unwrap_or(error));
        }
        // A failed stream is destroyed, not recovered (B13).
        Err(error) => return Err(first_cause(launched, error)),
    }
    launched?;
    if !device.about().inline {
        // The device could not be stopped; its results are not wanted.
        Cancel::check(cancel)?;
    }
    let mut results: Vec<RunTensor> = Vec::with_capacity(section.results.len());
    for (ty, source) in &section.results {
        let ty: &Shaped = ty;
        let result = match source {
            Source::Written(i) => written[*i as usize].with_type(ty.clone()),
            Source::Input(i) => inputs[*i as usize].with_type(ty.clone()),
            Source::Same(i) => results[*i as usize].with_type(ty.clone()),
            Source::Constant(tensor) => constant(tensor, &values.env.constants)?,
        };
        results.push(result);
    }
    for (&id, result) in stage.results.iter().zip(results) {
        values.set(id, result);
    }
    Ok(())
}
