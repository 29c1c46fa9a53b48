//! From nodes to a section: kernels, tasks, memory, references.
//!
//! In that order, because each needs the one before: costs come from the kernels, tasks from the costs, and memory
//! may be reused, in place or one value after another, only where the tasks' edges say that it is free.

use super::choose::NodeWork;
use super::cost::Rates;
use super::memory::{self, ArenaPlan, Interval};
use super::nested::{Inlined, Kind};
use super::place::Chosen;
use super::references::{Emitter, Parts};
use super::section::{MemoryReport, Section, Shaped, Source, Step};
use super::tasks::{self, Edges, OneTask, Policy, Reach, TaskGraph};
use super::{Env, PlanOptions};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::program::{Node, Program, ValueId};
use crate::tensor::Tensor;
use crate::trace;
use std::collections::HashMap;
use std::sync::Arc;

/// Alignment of values in an arena: of the largest element, and of a cache line.
const ALIGN_MIN: usize = 16;
const ALIGN_MAX: usize = 64;

/// What a value is, views seen through.
#[derive(Clone, Debug)]
pub(super) enum Root {
    /// The value of an input, possibly with another shape.
    Input(u32),
    /// A constant.
    Constant(Tensor),
    /// What a launch makes: a position among the made values.
    Made(usize),
}

/// A value that a launch makes.
pub(super) struct Made {
    pub(super) size: usize,
    pub(super) maker: u32,
    /// Launches that read it, in order; one that reads it twice comes twice.
    pub(super) users: Vec<u32>,
    pub(super) wanted: bool,
    /// Where it lives; set when all launches are known.
    pub(super) storage: usize,
}

/// Memory that one or more values share in place, or a workspace.
pub(super) struct Storage {
    pub(super) size: usize,
    /// Launches that touch it, in order.
    pub(super) touches: Vec<u32>,
    /// Position among the written results, if the caller gives the memory.
    pub(super) written: Option<u32>,
    pub(super) wanted: bool,
}

/// What a launch runs.
enum Work {
    /// A kernel.
    Kernel(Arc<Chosen>),
    /// A region, as often as its node says.
    Nested(Inlined),
}

/// One launch: what it runs, its inputs and results.
struct Launch {
    node: usize,
    /// Which of the section's devices runs it.
    lane: u32,
    work: Work,
    /// Operands of the node, then what its regions capture.
    inputs: Vec<Option<(Root, usize)>>,
    /// Positions among the made values.
    outputs: Vec<Option<usize>>,
    cost_ns: f64,
}

/// Plans nodes of known types. `work` has for each node what runs it, `wanted` are the values that are needed
/// afterwards, in the order in which results are given.
///
/// # Errors
/// [`ErrorKind::OutOfMemory`] for sizes beyond the device's.
pub fn plan(
    program: &Program,
    nodes: &[Node],
    work: Vec<NodeWork>,
    wanted: &[ValueId],
    env: &Env,
    options: &PlanOptions,
) -> Result<Section> {
    // The devices, the first of which gives the memory: the plan's first if it takes part.
    let mut sites: Vec<usize> = work
        .iter()
        .filter_map(|work| match work {
            NodeWork::Kernel(site, _) | NodeWork::Nested(site, _) => Some(*site),
            NodeWork::View | NodeWork::Later => None,
        })
        .collect();
    sites.sort_unstable();
    sites.dedup();
    if sites.is_empty() {
        sites.push(0);
    }
    let mut planner = Planner {
        program,
        nodes,
        env,
        device: env.site(sites[0]).0,
        sites,
        options,
        rates: env.rates(),
        roots: HashMap::new(),
        inputs: Vec::new(),
        made: Vec::new(),
        launches: Vec::new(),
    };
    for ((at, node), work) in nodes.iter().enumerate().zip(work) {
        planner.node(node, at, work).map_err(|e| e.at_node(node.label()))?;
    }
    for &id in wanted {
        if let Root::Made(made) = planner.root(id) {
            planner.made[made].wanted = true;
        }
    }
    planner.finish(wanted)
}

struct Planner<'a> {
    program: &'a Program,
    nodes: &'a [Node],
    env: &'a Env,
    /// Positions of the devices that take part.
    sites: Vec<usize>,
    /// The first of them, whose memory the values live in.
    device: &'a Arc<Device>,
    options: &'a PlanOptions,
    rates: Rates,
    roots: HashMap<ValueId, Root>,
    inputs: Vec<ValueId>,
    made: Vec<Made>,
    launches: Vec<Launch>,
}

impl Planner<'_> {
    fn shaped(&self, id: ValueId) -> Result<Shaped> {
        let value = self.program.value(id);
        let ty = value.ty.as_ref().and_then(|ty| Some((ty.dtype, ty.known_shape()?)));
        let (dtype, shape) = ty.ok_or_else(|| {
            Error::new(ErrorKind::Internal, format!("value %{} of unknown type in a section", id.0))
        })?;
        let shaped = Shaped::new(dtype, &shape);
        let limit = self.device.space().bind_max;
        shaped.filter(|shaped| limit == 0 || shaped.size as u64 <= limit).ok_or_else(|| {
            let ty = value.ty.as_ref().map(ToString::to_string).unwrap_or_default();
            Error::new(
                ErrorKind::OutOfMemory,
                format!("value `{}`, {ty}, is larger than the device takes", value.name),
            )
            .on_device(self.device.name())
        })
    }

    fn root(&mut self, id: ValueId) -> Root {
        if let Some(root) = self.roots.get(&id) {
            return root.clone();
        }
        let root = match self.program.constant(id) {
            Some(tensor) => Root::Constant(tensor.clone()),
            None => {
                self.inputs.push(id);
                Root::Input(self.inputs.len() as u32 - 1)
            }
        };
        self.roots.insert(id, root.clone());
        root
    }

    fn node(&mut self, node: &Node, at: usize, work: NodeWork) -> Result<()> {
        if let NodeWork::View = work {
            let (Some(input), Some(output)) = (node.input(0), node.output(0)) else {
                return Err(Error::new(ErrorKind::InvalidModel, "a view without input or output"));
            };
            let root = match self.root(input) {
                Root::Constant(tensor) => Root::Constant(tensor.reshaped(&self.shaped(output)?.shape)?),
                root => root,
            };
            self.roots.insert(output, root);
            return Ok(());
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            inputs.push(match input {
                Some(id) => Some((self.root(*id), self.shaped(*id)?.size)),
                None => None,
            });
        }
        let sizes: Vec<Option<usize>> = node
            .outputs
            .iter()
            .map(|id| id.map(|id| Ok(self.shaped(id)?.size)).transpose())
            .collect::<Result<_>>()?;
        let (site, work) = match work {
            NodeWork::Kernel(site, chosen) => (site, Work::Kernel(chosen)),
            NodeWork::Nested(site, nested) => (site, Work::Nested(*nested)),
            NodeWork::View | NodeWork::Later => {
                return Err(Error::new(ErrorKind::Internal, "a node in a section that nobody runs"));
            }
        };
        let lane = self.sites.iter().position(|&other| other == site).unwrap_or(0) as u32;
        if let Work::Nested(nested) = &work {
            for &id in nested.regions.iter().flat_map(|region| &region.captures) {
                inputs.push(Some((self.root(id), self.shaped(id)?.size)));
            }
        }
        // Nothing is launched that has nothing to write (ABI-NOTES: empty tensors).
        let empty = sizes.iter().flatten().all(|&size| size == 0);
        let launch = self.launches.len() as u32;
        let mut outputs = Vec::with_capacity(sizes.len());
        for (id, size) in node.outputs.iter().zip(&sizes) {
            // A region gives all its results, wanted or not.
            let Some(size) = size.or_else(|| work.result_size(outputs.len())) else {
                outputs.push(None);
                continue;
            };
            self.made.push(Made { size, maker: launch, users: Vec::new(), wanted: false, storage: 0 });
            if let Some(id) = *id {
                self.roots.insert(id, Root::Made(self.made.len() - 1));
            }
            outputs.push(Some(self.made.len() - 1));
        }
        if empty {
            return Ok(());
        }
        for (root, _) in inputs.iter().flatten() {
            if let Root::Made(made) = root {
                self.made[*made].users.push(launch);
            }
        }
        let operand_bytes = inputs.iter().flatten().map(|(_, size)| size).chain(sizes.iter().flatten()).sum();
        let cost_ns = match &work {
            Work::Kernel(chosen) => self.rates.launch(chosen.cost.as_ref(), operand_bytes),
            Work::Nested(nested) => nested.cost_ns(self.program, node),
        };
        self.launches.push(Launch { node: at, lane, work, inputs, outputs, cost_ns });
        Ok(())
    }

    fn finish(mut self, wanted: &[ValueId]) -> Result<Section> {
        let edges = self.edges();
        let costs: Vec<f64> = self.launches.iter().map(|launch| launch.cost_ns).collect();
        let plugin = self.device.plugin();
        let n_threads = plugin.services().queue().n_threads();
        let hand_over_ns = self.rates.hand_over_ns;
        // Tasks run side by side on inline devices, whose launches are calls; on others the stream orders them.
        let (task_of, one_task) = if !self.device.about().inline {
            (vec![0; edges.len()], Some(OneTask::Asynchronous))
        } else if self.options.tasks == Policy::Auto && plugin.is_serialised() {
            (vec![0; edges.len()], Some(OneTask::Serialised))
        } else {
            tasks::divide(&edges, &costs, self.options.tasks, n_threads, hand_over_ns)
        };
        let (graph, order) = TaskGraph::build(&edges, &task_of);
        let schedule = Schedule { reach: Reach::of(&graph), task_of: &task_of };

        let (mut storages, workspaces) = self.storages(&schedule);
        // Results first: a storage that is a result lives in the caller's memory, not in the arena.
        let results = self.results(wanted, &mut storages)?;
        let arena = self.arena(&storages, &graph, &schedule)?;

        let mut parts = Parts::default();
        let names: Vec<String> = match &self.options.trace {
            Some(_) => self.launches.iter().map(|launch| self.nodes[launch.node].name.to_string()).collect(),
            None => Vec::new(),
        };
        let launches = std::mem::take(&mut self.launches);
        let mut launches: Vec<Option<Launch>> = launches.into_iter().map(Some).collect();
        let mut prepared = Vec::new();
        for &at in &order {
            let Some(launch) = launches[at as usize].take() else {
                return Err(Error::new(ErrorKind::Internal, "a launch in two tasks"));
            };
            let mut emitter = Emitter {
                parts: &mut parts,
                pool: self.env.site(self.sites[launch.lane as usize]).1,
                lane: launch.lane,
                made: &self.made,
                storages: &storages,
                offsets: &arena.offsets,
            };
            if self.options.trace.is_some() {
                emitter.add_context();
            }
            let first_ref = emitter.parts.refs.len() as u32;
            let workspace = &workspaces[at as usize];
            let node = &self.nodes[launch.node];
            let (launch_fn, state, name) = match launch.work {
                Work::Kernel(chosen) => {
                    emitter.operands(&chosen, &launch.inputs, &launch.outputs, workspace)?;
                    let kernel = &chosen.kernel;
                    let step = (kernel.launch_fn(), kernel.state(), chosen.name.clone());
                    prepared.push(Arc::clone(kernel));
                    step
                }
                Work::Nested(nested) => {
                    let n_operands = node.inputs.len();
                    let state =
                        emitter.nested(nested, &launch.inputs, n_operands, &launch.outputs, workspace)?;
                    let (launch_fn, pointer) = state.launch();
                    parts.nested.push(state);
                    (launch_fn, pointer, node.op.to_string())
                }
            };
            parts.steps.push(Step { launch: launch_fn, state, first_ref, lane: launch.lane });
            parts.labels.push(node.label());
            parts.kernels.push(name);
            parts.costs_ns.push(launch.cost_ns as f32);
        }
        let n_worth = tasks_worth(self.rates.hand_over_ns, &costs, graph.len());
        let inputs = self.inputs.clone();
        let constants = parts.constants.iter().map(|placed| placed.reference().length as usize).sum();
        prepared.sort_unstable_by_key(|kernel| Arc::as_ptr(kernel).addr());
        prepared.dedup_by(|a, b| Arc::ptr_eq(a, b));
        let mut section = Section {
            device: Arc::clone(self.device),
            lanes: self.sites.iter().map(|&site| Arc::clone(self.env.site(site).0)).collect(),
            inputs: inputs.iter().map(|&id| self.shaped(id)).collect::<Result<_>>()?,
            input_ids: inputs.into(),
            graph,
            n_worth,
            one_task,
            longest_path_ns: tasks::longest_path_ns(&edges, &costs),
            costs_ns: parts.costs_ns.into(),
            steps: parts.steps.into(),
            refs: parts.refs.into(),
            arena_refs: parts.arena_refs.into(),
            foreign_refs: parts.foreign_refs.into(),
            input_patches: parts.input_patches.into(),
            output_patches: parts.output_patches.into(),
            results: results.sources.into(),
            written: results.written.into(),
            result_of_written: results.result_of_written.into(),
            memory: MemoryReport { arena: arena.size, lower_bound: arena.lower_bound, constants },
            context_refs: parts.context_refs.into(),
            traced: None,
            nested: parts.nested.into(),
            labels: parts.labels.into(),
            kernels: parts.kernels.into(),
            prepared: prepared.into(),
            constants: parts.constants.into(),
        };
        if let Some(recorder) = &self.options.trace {
            trace::trace(&mut section, recorder, &names, &edges, &order);
        }
        Ok(section)
    }

    fn edges(&self) -> Edges {
        let mut edges = Edges::new();
        for launch in &self.launches {
            edges.push(launch.inputs.iter().flatten().filter_map(|(root, _)| match root {
                // What has no elements is made by nobody.
                Root::Made(made) if self.made[*made].size > 0 => Some(self.made[*made].maker),
                _ => None,
            }));
        }
        edges
    }

    /// Memory for every value and workspace: one of its own, or in place that of an input.
    fn storages(&mut self, schedule: &Schedule<'_>) -> (Vec<Storage>, Vec<Vec<usize>>) {
        let mut storages: Vec<Storage> = Vec::with_capacity(self.made.len());
        let mut workspaces: Vec<Vec<usize>> = Vec::with_capacity(self.launches.len());
        for made in &mut self.made {
            made.storage = usize::MAX;
        }
        for (at, launch) in self.launches.iter().enumerate() {
            let at = at as u32;
            for (i, made) in launch.outputs.iter().enumerate() {
                let Some(made) = *made else {
                    continue;
                };
                // A result has memory of its own, the caller's: in place it would drag what came before it there,
                // and every run would have to patch all of that.
                let hint = launch.work.in_place(i).filter(|_| !self.made[made].wanted);
                let shared = hint.and_then(|input| {
                    let storage = self.storage_of_input(launch, input)?;
                    let free = storages[storage].size == self.made[made].size
                        && !storages[storage].wanted
                        && storages[storage]
                            .touches
                            .iter()
                            .all(|&touch| touch == at || schedule.precedes(touch, at));
                    free.then_some(storage)
                });
                let storage = shared.unwrap_or_else(|| {
                    storages.push(Storage {
                        size: self.made[made].size,
                        touches: Vec::new(),
                        written: None,
                        wanted: self.made[made].wanted,
                    });
                    storages.len() - 1
                });
                // All who will read it count from now on: whoever would take it over must come after them.
                storages[storage].touches.push(at);
                storages[storage].touches.extend(&self.made[made].users);
                self.made[made].storage = storage;
            }
            let sizes = launch.work.workspaces();
            workspaces.push((storages.len()..storages.len() + sizes.len()).collect());
            storages.extend(sizes.into_iter().map(|size| Storage {
                size,
                touches: vec![at],
                written: None,
                wanted: false,
            }));
        }
        // What no launch makes has no elements; it still has a place.
        for made in self.made.iter_mut().filter(|made| made.storage == usize::MAX) {
            storages.push(Storage { size: 0, touches: Vec::new(), written: None, wanted: made.wanted });
            made.storage = storages.len() - 1;
        }
        (storages, workspaces)
    }

    /// The memory of an input, if the launch reads it through that input alone.
    fn storage_of_input(&self, launch: &Launch, input: usize) -> Option<usize> {
        let storage = |operand: &Option<(Root, usize)>| match operand {
            Some((Root::Made(made), _)) => Some(self.made[*made].storage),
            _ => None,
        };
        let wanted = storage(launch.inputs.get(input)?)?;
        let readers = launch.inputs.iter().filter(|operand| storage(operand) == Some(wanted));
        (readers.count() == 1 && wanted != usize::MAX).then_some(wanted)
    }

    fn results(&mut self, wanted: &[ValueId], storages: &mut [Storage]) -> Result<Results> {
        let mut results = Results::default();
        let mut result_of_storage: HashMap<usize, u32> = HashMap::new();
        for (i, &id) in wanted.iter().enumerate() {
            let shaped = self.shaped(id)?;
            let source = match self.root(id) {
                Root::Input(input) => Source::Input(input),
                Root::Constant(tensor) => Source::Constant(tensor),
                Root::Made(made) => {
                    let storage = self.made[made].storage;
                    match result_of_storage.get(&storage) {
                        Some(&earlier) => Source::Same(earlier),
                        None => {
                            result_of_storage.insert(storage, i as u32);
                            let written = results.written.len() as u32;
                            storages[storage].written = Some(written);
                            results.written.push(shaped.clone());
                            results.result_of_written.push(i as u32);
                            Source::Written(written)
                        }
                    }
                }
            };
            results.sources.push((shaped, source));
        }
        Ok(results)
    }

    /// An offset for every storage; 0 for those that have no memory here.
    fn arena(&self, storages: &[Storage], graph: &TaskGraph, schedule: &Schedule<'_>) -> Result<ArenaPlan> {
        let space = self.device.space();
        let bind_align = space.bind_align.max(1) as usize;
        let (placed, intervals): (Vec<usize>, Vec<Interval>) = storages
            .iter()
            .enumerate()
            .filter(|(_, storage)| storage.written.is_none() && storage.size > 0)
            .map(|(i, storage)| {
                let first = storage.touches.iter().min().copied().unwrap_or(0);
                let last = storage.touches.iter().max().copied().unwrap_or(0);
                // Small values are not spread over more cache lines than they fill.
                let align = storage.size.next_power_of_two().clamp(ALIGN_MIN, ALIGN_MAX).max(bind_align);
                (i, Interval { size: storage.size, align, first, last })
            })
            .unzip();
        let plan = match &schedule.reach {
            _ if graph.len() <= 1 => memory::assign(&intervals),
            Some(_) if memory::is_greedy(intervals.len()) => {
                let ends_before = |a: usize, b: usize| {
                    storages[placed[a]]
                        .touches
                        .iter()
                        .all(|&touch| schedule.precedes(touch, intervals[b].first))
                };
                memory::assign_where(&intervals, |a, b| ends_before(a, b) || ends_before(b, a))
            }
            _ => memory::assign_apart(&intervals),
        };
        let plan = plan.ok_or_else(|| {
            Error::new(ErrorKind::OutOfMemory, "the values of the program are larger than memory")
                .on_device(self.device.name())
        })?;
        let mut offsets = vec![0usize; storages.len()];
        for (storage, offset) in placed.iter().zip(&plan.offsets) {
            offsets[*storage] = *offset;
        }
        Ok(ArenaPlan { offsets, ..plan })
    }
}

/// How many tasks of the mean cost are worth a hand-over; `u32::MAX` if all together are not.
fn tasks_worth(hand_over_ns: f64, costs_ns: &[f64], n_tasks: usize) -> u32 {
    let total: f64 = costs_ns.iter().sum();
    if total < 2.0 * hand_over_ns {
        return u32::MAX;
    }
    ((hand_over_ns * n_tasks as f64 / total).ceil() as u32).max(1)
}

impl Work {
    /// The input whose memory output `i` may take over.
    fn in_place(&self, i: usize) -> Option<usize> {
        match self {
            Self::Kernel(chosen) => chosen.in_place.get(i).copied().flatten(),
            Self::Nested(_) => None,
        }
    }

    /// Bytes of result `i` of control flow.
    fn result_size(&self, i: usize) -> Option<usize> {
        let Self::Nested(nested) = self else {
            return None;
        };
        // The first result of a loop's body is the condition.
        let skipped = usize::from(nested.kind == Kind::Loop);
        nested.regions[0].section.results.get(i + skipped).map(|(ty, _)| ty.size)
    }

    /// Bytes of each memory that it needs beside its operands, and does not keep.
    fn workspaces(&self) -> Vec<usize> {
        match self {
            Self::Kernel(chosen) => {
                let (bytes, align) = chosen.kernel.workspace();
                if bytes > 0 { vec![bytes.next_multiple_of(align)] } else { Vec::new() }
            }
            // The arena of the regions, of which one runs at a time; for a loop then the iteration number, two
            // truth values, and the odd places of carried values.
            Self::Nested(nested) => {
                let arena = nested.regions.iter().map(|region| region.section.memory.arena).max();
                let mut sizes = vec![arena.unwrap_or(0).next_multiple_of(ALIGN_MAX)];
                if nested.kind == Kind::Loop {
                    sizes.extend([8, 1, 1]);
                    let results = &nested.regions[0].section.results;
                    sizes.extend(results.iter().skip(1).map(|(ty, _)| ty.size));
                }
                sizes
            }
        }
    }
}

/// Which launch ends before which begins.
struct Schedule<'a> {
    /// None if there are too many tasks to know all paths.
    reach: Option<Reach>,
    task_of: &'a [u32],
}

impl Schedule<'_> {
    fn precedes(&self, a: u32, b: u32) -> bool {
        let (task_a, task_b) = (self.task_of[a as usize], self.task_of[b as usize]);
        if task_a == task_b {
            return a < b;
        }
        self.reach.as_ref().is_some_and(|reach| reach.precedes(task_a, task_b))
    }
}

#[derive(Default)]
struct Results {
    sources: Vec<(Shaped, Source)>,
    written: Vec<Shaped>,
    result_of_written: Vec<u32>,
}
