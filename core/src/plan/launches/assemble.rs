//! From launches to a section: tasks, memory, references.
//!
//! In that order, because each needs the one before: tasks come from the launches' costs, and memory may be reused, in
//! place or one value after another, only where the tasks' edges say that it is free.

use super::references::{Emitter, Parts};
use super::{Launch, Planner, Root, Storage, Work};
use crate::cancel::look;
use crate::device::PreparedKernel;
use crate::error::{Error, ErrorKind, Result};
use crate::kernel::Counts;
use crate::plan::executor::Told;
use crate::plan::memory::constants::Placed;
use crate::plan::memory::storage::{Arenas, Results, Schedule};
use crate::plan::order::flushes;
use crate::plan::order::merge::{self, Terms};
use crate::plan::order::streams::{Division, Lined};
use crate::plan::order::tasks::{Edges, NO_TASK, OneTask, Policy, Reach};
use crate::plan::section::{ConstantBytes, MemoryReport, Section, Step, StepKind};
use crate::plan::steps::{CopyKind, Internal, OwnStep};
use crate::program::ValueId;
use crate::progress::{Counter, Phase};
use std::ptr::null;
use std::sync::Arc;

/// Tasks and memory of a section before anything is placed on a device.
pub(in crate::plan) struct Layout {
    edges: Edges,
    costs: Vec<f64>,
    division: Division,
    one_task: Option<OneTask>,
    storages: Vec<Storage>,
    workspaces: Vec<Vec<usize>>,
    results: Results,
    pub(in crate::plan) arena: Arenas,
}

impl Planner<'_> {
    /// Divides the launches into tasks, and says why they are all one task if they are.
    fn divide(&self, edges: &Edges, costs_ns: &[f64]) -> (Division, Option<OneTask>) {
        let plugin = self.device.plugin();
        let n_threads = plugin.services().queue().n_threads();
        let terms = Terms { policy: self.options.tasks, n_threads, hand_over_ns: self.rates.hand_over_ns };
        if self.lanes.are_placed() || self.regions.len() > 1 {
            let lane_of: Vec<u32> = self.launches.iter().map(|launch| launch.lane).collect();
            let orders = self.lanes.orders(self.env);
            let stages: Vec<u32> = self.launches.iter().map(|launch| launch.stage).collect();
            let (orders, regions) = (&orders, &self.regions);
            let lined = Lined { edges, lane_of: &lane_of, orders, costs_ns, stages: &stages, regions };
            return (lined.divide(terms), None);
        }
        // Tasks run side by side on inline devices, whose launches are calls; on others the stream orders them.
        let (task_of, one_task) = if !self.device.about().inline {
            (vec![0; edges.len()], Some(OneTask::Asynchronous))
        } else if terms.policy == Policy::Auto && plugin.is_serialised() {
            (vec![0; edges.len()], Some(OneTask::Serialised))
        } else {
            merge::divide(edges, costs_ns, terms)
        };
        (Division::inline(edges, task_of, self.lanes.len()), one_task)
    }

    /// Divides launches into tasks and assigns memory; `wanted` has the source of each wanted value.
    ///
    /// # Errors
    /// As [`super::plan`].
    pub(in crate::plan) fn lay_out(&mut self, wanted: &[(ValueId, Root)]) -> Result<Layout> {
        self.regions.region_of = self.launches.iter().map(|launch| launch.region).collect();
        let edges = self.edges();
        self.extend_uses();
        let costs: Vec<f64> = self.launches.iter().map(|launch| launch.cost.ns).collect();
        let (division, one_task) = self.divide(&edges, &costs);
        let schedule = Schedule { reach: Reach::of(&division.graph), task_of: &division.task_of };
        let (mut storages, workspaces) = self.storages(&schedule)?;
        // Results first: a storage that is a result lives in the caller's memory, not in the arena.
        let results = self.results(wanted, &mut storages)?;
        let arena = self.arena(&storages, &division.graph, &schedule)?;
        Ok(Layout { edges, costs, division, one_task, storages, workspaces, results, arena })
    }

    /// Returns the section. Constants are placed now.
    ///
    /// # Errors
    /// As [`super::plan`].
    pub(in crate::plan) fn assemble(mut self, layout: Layout) -> Result<Section> {
        let Layout { edges, costs, division, one_task, storages, workspaces, results, arena } = layout;
        let Division { mut graph, order, waits, signals, n_signals, .. } = division;
        let n_worth = self.tasks_worth(&edges, &costs, graph.len());
        let mut parts = Parts { traced: self.options.trace.is_some(), ..Parts::default() };
        let lane_of: Vec<u32> = self.launches.iter().map(|launch| launch.lane).collect();
        let launches = std::mem::take(&mut self.launches);
        let mut launches: Vec<Option<Launch>> = launches.into_iter().map(Some).collect();
        let mut prepared = Vec::new();
        let mut first_steps = Vec::with_capacity(graph.len() + 1);
        let (counter, mut n_done) = (Counter::begin(Phase::Prepare, launches.len()), 0);
        for task in 0..graph.len() {
            first_steps.push(parts.steps.len() as u32);
            let own = &order[graph.steps_of(task)];
            let lane = own.first().map_or(0, |&at| lane_of[at as usize]);
            for &wait in waits.get(task).into_iter().flatten() {
                let other = &self.lanes.get(wait.lane);
                let text = format!("wait for {}", self.lanes.name(self.env, other));
                let internal = Internal::wait(self.env.site(other.site).0, wait);
                parts.internal(self.env, internal, lane, text);
            }
            let device = self.env.site(self.lanes.get(lane).site).0;
            let flushes = match self.options.flushes && device.gathers() {
                true => flushes::flushes(&own.iter().map(|&at| costs[at as usize]).collect::<Vec<_>>()),
                false => vec![false; own.len()],
            };
            for (&at, flush) in own.iter().zip(flushes) {
                let Some(launch) = launches[at as usize].take() else {
                    return Err(Error::new(ErrorKind::Internal, "a launch in two tasks"));
                };
                let workspace = &workspaces[at as usize];
                look()?;
                parts.launch_of.push(Some(at));
                self.emit(launch, workspace, (&storages, &arena.offsets), &mut parts, &mut prepared)?;
                n_done += 1;
                counter.done(n_done);
                if flush {
                    parts.internal(self.env, Internal::flush(device), lane, "flush".to_owned());
                }
            }
            if let Some(signal) = signals.get(task).copied().flatten() {
                let internal = Internal::signal(device, lane, signal);
                parts.internal(self.env, internal, lane, "signal".to_owned());
            }
        }
        first_steps.push(parts.steps.len() as u32);
        graph.set_first_steps(&first_steps);
        let controls = parts.controls(&self.flows, &graph);
        let inputs = self.inputs.clone();
        let bytes = |placed: &Arc<Placed>| placed.reference().length as usize;
        let streamed = parts.streamed.iter().map(bytes).sum();
        // A packed one that several launches read is one constant.
        parts.constants.sort_unstable_by_key(|placed| Arc::as_ptr(placed).addr());
        parts.constants.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut constants = ConstantBytes::default();
        parts.constants.iter().for_each(|placed| constants.add(placed));
        parts.constants.append(&mut parts.streamed);
        prepared.sort_unstable_by_key(|kernel| Arc::as_ptr(kernel).addr());
        prepared.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut section = Section {
            device: Arc::clone(self.device),
            lanes: self.lanes.iter().map(|lane| Arc::clone(self.env.site(lane.site).0)).collect(),
            stream_priority: self.options.stream_priority,
            is_placed: self.lanes.are_placed(),
            n_signals: n_signals.into(),
            memories: arena.memories.into(),
            inputs: inputs.iter().map(|&id| self.shaped(self.program, id)).collect::<Result<_>>()?,
            input_ids: inputs.into(),
            graph,
            n_worth,
            one_task,
            longest_path_ns: merge::longest_path_ns(&edges, &costs),
            costs_ns: parts.costs_ns.into(),
            costs_from: parts.costs_from.into(),
            flops: parts.flops.into(),
            steps: parts.steps.into(),
            kinds: parts.kinds.into(),
            refs: parts.refs.into(),
            arena_refs: parts.arena_refs.into(),
            input_patches: parts.input_patches.into(),
            output_patches: parts.output_patches.into(),
            results: results.sources.into(),
            written: results.written.into(),
            result_of_written: results.result_of_written.into(),
            memory: MemoryReport {
                arena: arena.size,
                lower_bound: arena.lower_bound,
                constants: constants.total(),
                constants_by_place: constants,
                streamed,
            },
            context_refs: parts.context_refs.into(),
            trips_max: self.options.limits.trips,
            traced: self.options.trace.clone(),
            wrapped: Vec::new(),
            nested: parts.nested.into(),
            controls,
            internal: parts.internals.into(),
            labels: parts.labels.into(),
            kernels: parts.kernels.into(),
            prepared: prepared.into(),
            constants: parts.constants.into(),
        };
        let told = Told {
            names: &parts.names,
            outputs: &parts.outputs,
            counts: &parts.counts,
            signatures: &parts.signatures,
            edges: &edges,
            launch_of: &parts.launch_of,
        };
        self.env.executor().wrap(&mut section, told);
        Ok(section)
    }

    /// Writes one launch: its references, its step, and the objects that keep them alive.
    fn emit(
        &self,
        launch: Launch,
        workspace: &[usize],
        (storages, offsets): (&[Storage], &[usize]),
        parts: &mut Parts,
        prepared: &mut Vec<Arc<PreparedKernel>>,
    ) -> Result<()> {
        let lane = self.lanes.get(launch.lane);
        let host_align = self.env.reads_host_memory(self.lanes.home());
        let mut emitter = Emitter {
            parts,
            pool: self.env.site(lane.site).1,
            site: lane.site,
            home: self.lanes.home(),
            host_align: host_align.then(|| self.device.space().bind_align.max(1) as usize),
            made: &self.made,
            storages,
            offsets,
        };
        if emitter.parts.traced {
            emitter.add_context();
        }
        let first_ref = emitter.parts.refs.len() as u32;
        let step = emitter.parts.steps.len();
        let counts = match &launch.work {
            Work::Kernel(chosen) => chosen.cost.map(Counts::from),
            _ => None,
        };
        let flops = match &launch.work {
            Work::Kernel(_) => counts.map_or(0, |counts| counts.flops),
            Work::Nested(nested, _) => nested.flops(),
            _ => 0,
        };
        let (launch_fn, state, kernel, kind) = match launch.work {
            Work::Copy(kind) => {
                emitter.copy(&launch.inputs, &launch.outputs)?;
                let device = self.env.site(lane.site).0;
                let internal = Internal::copy(device, kind);
                let (own, state) = internal.step();
                parts.internals.push(internal);
                (self.env.launch_fn(own), state, "copy".to_owned(), StepKind::Copy)
            }
            Work::Weight(chosen, input) => {
                emitter.weight(&chosen.kernel, input, &launch.inputs, &launch.outputs)?;
                let internal = Internal::copy(self.env.site(lane.site).0, CopyKind::ToDevice);
                let (own, state) = internal.step();
                parts.internals.push(internal);
                (self.env.launch_fn(own), state, "copy".to_owned(), StepKind::Copy)
            }
            Work::Kernel(chosen) => {
                emitter.operands(&chosen, &launch.inputs, &launch.outputs, workspace)?;
                let kernel = &chosen.kernel;
                let step = (kernel.launch_fn(), kernel.state(), chosen.name.clone(), StepKind::Kernel);
                prepared.push(Arc::clone(kernel));
                step
            }
            Work::Nested(nested, n_operands) => {
                let name = nested.op.clone();
                let state = emitter.nested(nested, &launch.inputs, n_operands, &launch.outputs, workspace)?;
                let (own, pointer) = state.step();
                parts.nested.push(state);
                (self.env.launch_fn(own), pointer, name, StepKind::Nested)
            }
            Work::Entry(control, op) => {
                self.entry(&mut emitter, control, &launch.inputs, &launch.outputs)?;
                parts.entries.push((control, step));
                (self.env.launch_fn(OwnStep::Entry), null(), format!("{op} entry"), StepKind::Control)
            }
            Work::Exit(control, op) => {
                self.exit(&mut emitter, control, &launch.inputs)?;
                parts.exits.push((control, step));
                (self.env.launch_fn(OwnStep::Exit), null(), format!("{op} exit"), StepKind::Control)
            }
        };
        parts.steps.push(Step { launch: launch_fn, state, first_ref, lane: launch.lane });
        if parts.traced {
            parts.names.push(launch.name.to_string());
            parts.outputs.push(launch.output.to_string());
            parts.counts.push(counts);
            parts.signatures.push(launch.signature);
        }
        parts.labels.push(launch.label);
        parts.kernels.push(kernel);
        parts.kinds.push(kind);
        parts.costs_ns.push(launch.cost.ns as f32);
        parts.costs_from.push(launch.cost.from);
        parts.flops.push(flops);
        Ok(())
    }

    /// Returns the number of tasks worth a hand-over to another thread; `NO_TASK` if all together are not.
    fn tasks_worth(&self, edges: &Edges, costs: &[f64], n_tasks: usize) -> u32 {
        if !self.lanes.are_placed() {
            return tasks_worth(self.rates.hand_over_ns, costs, n_tasks);
        }
        // Threads are for inline work, while devices work: enqueuing is no work.
        let inline = |launch: &Launch| self.env.site(self.lanes.get(launch.lane).site).0.about().inline;
        let launches = self.launches.iter().zip(costs);
        let costs: Vec<f64> =
            launches.map(|(launch, &cost)| if inline(launch) { cost } else { 0.0 }).collect();
        let gain_ns = costs.iter().sum::<f64>() - merge::longest_path_ns(edges, &costs);
        match gain_ns < merge::GAIN_HAND_OVERS * self.rates.hand_over_ns {
            true => NO_TASK,
            false => tasks_worth(self.rates.hand_over_ns, &costs, n_tasks),
        }
    }

    fn edges(&self) -> Edges {
        if self.regions.len() > 1 {
            return self.regions.edges(|launch| self.preds(&self.launches[launch]).collect());
        }
        let mut edges = Edges::new();
        self.launches.iter().for_each(|launch| edges.push(self.preds(launch)));
        edges
    }

    /// Returns the launches that a launch needs, by data or otherwise.
    fn preds<'p>(&'p self, launch: &'p Launch) -> impl Iterator<Item = u32> + 'p {
        let makers = launch.inputs.iter().flatten().flat_map(|(root, _)| match root {
            Root::Made(made, _) => self.makers(*made),
            _ => &[],
        });
        makers.chain(&launch.after).copied()
    }
}

/// Returns the number of tasks of the mean cost worth a hand-over; `u32::MAX` if all together are not.
fn tasks_worth(hand_over_ns: f64, costs_ns: &[f64], n_tasks: usize) -> u32 {
    let total: f64 = costs_ns.iter().sum();
    if total < 2.0 * hand_over_ns {
        return u32::MAX;
    }
    ((hand_over_ns * n_tasks as f64 / total).ceil() as u32).max(1)
}
