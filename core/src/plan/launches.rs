//! From nodes to a section: kernels, tasks, memory, references.
//!
//! In that order, because each needs the one before: costs come from the kernels, tasks from the costs, and memory
//! may be reused, in place or one value after another, only where the tasks' edges say that it is free.

use super::constants::{ConstantPool, Placed};
use super::cost::Rates;
use super::memory::{self, ArenaPlan, Interval};
use super::place::{Chosen, choose};
use super::section::{MemoryReport, Patch, Section, Shaped, Source, Step};
use super::tasks::{self, Edges, OneTask, Policy, Reach, TaskGraph};
use super::{Env, PlanOptions};
use crate::device::Device;
use crate::error::{Error, ErrorKind, Result};
use crate::program::catalogue::{self, OpKind};
use crate::program::{AttrValue, Node, Program, ValueId};
use crate::tensor::Tensor;
use devbay_plugin_api::abi::BufferRef;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// Alignment of values in an arena: of the largest element, and of a cache line.
const ALIGN_MIN: usize = 16;
const ALIGN_MAX: usize = 64;

/// What a value is, views seen through.
#[derive(Clone, Debug)]
enum Root {
    /// The value of an input, possibly with another shape.
    Input(u32),
    /// A constant.
    Constant(Tensor),
    /// What a launch makes: a position among the made values.
    Made(usize),
}

/// A value that a launch makes.
struct Made {
    size: usize,
    maker: u32,
    /// Launches that read it, in order; one that reads it twice comes twice.
    users: Vec<u32>,
    wanted: bool,
    /// Where it lives; set when all launches are known.
    storage: usize,
}

/// Memory that one or more values share in place, or a workspace.
struct Storage {
    size: usize,
    /// Launches that touch it, in order.
    touches: Vec<u32>,
    /// Position among the written results, if the caller gives the memory.
    written: Option<u32>,
    wanted: bool,
}

/// One launch: its kernel, inputs and results.
struct Launch {
    node: usize,
    chosen: Arc<Chosen>,
    inputs: Vec<Option<(Root, usize)>>,
    /// Positions among the made values.
    outputs: Vec<Option<usize>>,
    cost_ns: f64,
}

/// Plans nodes of known types. `wanted` are the values that are needed afterwards, in the order in which
/// results are given.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for a node without a kernel, with what each kernel said;
/// [`ErrorKind::OutOfMemory`] for sizes beyond the device's.
pub fn plan(program: &Program, nodes: &[Node], wanted: &[ValueId], env: &Env) -> Result<Section> {
    let mut planner = Planner {
        program,
        nodes,
        device: &env.device,
        pool: &env.constants,
        options: &env.options,
        rates: env.rates(),
        roots: HashMap::new(),
        inputs: Vec::new(),
        made: Vec::new(),
        launches: Vec::new(),
        kernels: HashMap::new(),
    };
    for (at, node) in nodes.iter().enumerate() {
        planner.node(node, at).map_err(|e| e.at_node(node.label()))?;
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
    device: &'a Arc<Device>,
    pool: &'a ConstantPool,
    options: &'a PlanOptions,
    rates: Rates,
    roots: HashMap<ValueId, Root>,
    inputs: Vec<ValueId>,
    made: Vec<Made>,
    launches: Vec<Launch>,
    /// Launches by a hash of what their kernel was prepared for: equal nodes share one.
    kernels: HashMap<u64, Vec<u32>>,
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

    fn node(&mut self, node: &Node, at: usize) -> Result<()> {
        let def = catalogue::find(&node.op.domain, &node.op.name);
        if def.is_some_and(|def| def.kind == OpKind::View) {
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
        let chosen = self.kernel(node)?;
        // Nothing is launched that has nothing to write (ABI-NOTES: empty tensors).
        let empty = sizes.iter().flatten().all(|&size| size == 0);
        let launch = self.launches.len() as u32;
        let mut outputs = Vec::with_capacity(sizes.len());
        for (id, size) in node.outputs.iter().zip(&sizes) {
            let (Some(id), Some(size)) = (*id, *size) else {
                outputs.push(None);
                continue;
            };
            self.made.push(Made { size, maker: launch, users: Vec::new(), wanted: false, storage: 0 });
            self.roots.insert(id, Root::Made(self.made.len() - 1));
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
        let cost_ns = self.rates.launch(chosen.cost.as_ref(), operand_bytes);
        self.launches.push(Launch { node: at, chosen, inputs, outputs, cost_ns });
        self.kernels.entry(self.likeness(node)).or_default().push(launch);
        Ok(())
    }

    /// The node's kernel: that of an equal node if there was one, so that state is prepared, and cached, once.
    fn kernel(&self, node: &Node) -> Result<Arc<Chosen>> {
        let alike = self.kernels.get(&self.likeness(node)).into_iter().flatten();
        for &launch in alike {
            let launch = &self.launches[launch as usize];
            if self.same_request(&self.nodes[launch.node], node) {
                return Ok(Arc::clone(&launch.chosen));
            }
        }
        choose(self.program, node, self.device).map(Arc::new)
    }

    fn likeness(&self, node: &Node) -> u64 {
        let mut hasher = DefaultHasher::new();
        node.op.hash(&mut hasher);
        for id in node.inputs.iter().chain(&node.outputs) {
            if let Some(id) = id {
                let value = self.program.value(*id);
                if let Some(ty) = &value.ty {
                    ty.known_shape().hash(&mut hasher);
                }
                value.constant.as_ref().map(Tensor::identity).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// Whether `prepare` would be asked the same of two nodes.
    fn same_request(&self, a: &Node, b: &Node) -> bool {
        let same_value = |(a, b): (&Option<ValueId>, &Option<ValueId>)| match (a, b) {
            (None, None) => true,
            (Some(a), Some(b)) => {
                let (a, b) = (self.program.value(*a), self.program.value(*b));
                let constant = |tensor: &Option<Tensor>| tensor.as_ref().map(Tensor::identity);
                a.ty == b.ty && constant(&a.constant) == constant(&b.constant)
            }
            _ => false,
        };
        a.op == b.op
            && a.inputs.len() == b.inputs.len()
            && a.outputs.len() == b.outputs.len()
            && a.inputs.iter().zip(&b.inputs).all(same_value)
            && a.outputs.iter().zip(&b.outputs).all(same_value)
            && a.attrs.len() == b.attrs.len()
            && a.attrs
                .iter()
                .zip(&b.attrs)
                .all(|((a_name, a), (b_name, b))| a_name == b_name && same_attr(a, b))
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
        for &launch in &order {
            let (launch, workspace) = (&self.launches[launch as usize], workspaces[launch as usize]);
            let kernel = &launch.chosen.kernel;
            let first_ref = parts.refs.len() as u32;
            for (i, operand) in launch.inputs.iter().enumerate() {
                let pack = kernel.packs().iter().find(|pack| pack.input_idx == i);
                match (operand, pack) {
                    (None, _) => parts.refs.push(BufferRef::ABSENT),
                    (Some((Root::Constant(tensor), _)), Some(pack)) => {
                        let placed = self.pool.place_packed(tensor, kernel, pack)?;
                        parts.refs.push(placed.reference());
                        parts.constants.push(placed);
                    }
                    (Some((Root::Input(operand), size)), _) => parts.input(*operand, *size),
                    (Some((Root::Constant(tensor), size)), None) => {
                        parts.constant(tensor, *size, self.pool)?;
                    }
                    (Some((Root::Made(made), size)), _) => {
                        let storage = self.made[*made].storage;
                        parts.storage(&storages[storage], arena.offsets[storage], *size);
                    }
                }
            }
            for output in &launch.outputs {
                match output {
                    None => parts.refs.push(BufferRef::ABSENT),
                    Some(made) => {
                        let made = &self.made[*made];
                        parts.storage(&storages[made.storage], arena.offsets[made.storage], made.size);
                    }
                }
            }
            if let Some(workspace) = workspace {
                let storage = &storages[workspace];
                parts.storage(storage, arena.offsets[workspace], storage.size);
            }
            parts.steps.push(Step {
                launch: kernel.launch_fn(),
                state: kernel.state(),
                first_ref,
                label: parts.labels.len() as u32,
            });
            parts.labels.push(self.nodes[launch.node].label());
            parts.kernels.push(launch.chosen.name.clone());
            parts.costs_ns.push(launch.cost_ns as f32);
        }
        let n_worth = tasks_worth(self.rates.hand_over_ns, &costs, graph.tasks.len());
        let inputs = self.inputs.clone();
        let constants = parts.constants.iter().map(|placed| placed.reference().length as usize).sum();
        let mut prepared: Vec<_> =
            self.launches.iter().map(|launch| Arc::clone(&launch.chosen.kernel)).collect();
        prepared.sort_unstable_by_key(|kernel| Arc::as_ptr(kernel).addr());
        prepared.dedup_by(|a, b| Arc::ptr_eq(a, b));
        Ok(Section {
            device: Arc::clone(self.device),
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
            input_patches: parts.input_patches.into(),
            output_patches: parts.output_patches.into(),
            results: results.sources.into(),
            written: results.written.into(),
            result_of_written: results.result_of_written.into(),
            memory: MemoryReport { arena: arena.size, lower_bound: arena.lower_bound, constants },
            labels: parts.labels.into(),
            kernels: parts.kernels.into(),
            prepared: prepared.into(),
            constants: parts.constants.into(),
        })
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
    fn storages(&mut self, schedule: &Schedule<'_>) -> (Vec<Storage>, Vec<Option<usize>>) {
        let mut storages: Vec<Storage> = Vec::with_capacity(self.made.len());
        let mut workspaces = Vec::with_capacity(self.launches.len());
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
                let hint =
                    launch.chosen.in_place.get(i).copied().flatten().filter(|_| !self.made[made].wanted);
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
            let (bytes, align) = launch.chosen.kernel.workspace();
            workspaces.push((bytes > 0).then(|| {
                let size = bytes.next_multiple_of(align);
                storages.push(Storage { size, touches: vec![at], written: None, wanted: false });
                storages.len() - 1
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
            _ if graph.tasks.len() <= 1 => memory::assign(&intervals),
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

fn same_attr(a: &AttrValue, b: &AttrValue) -> bool {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    match (a, b) {
        (AttrValue::Int(a), AttrValue::Int(b)) => a == b,
        (AttrValue::Float(a), AttrValue::Float(b)) => a.to_bits() == b.to_bits(),
        (AttrValue::String(a), AttrValue::String(b)) => a == b,
        (AttrValue::Ints(a), AttrValue::Ints(b)) => a == b,
        (AttrValue::Floats(a), AttrValue::Floats(b)) => bits(a) == bits(b),
        (AttrValue::Strings(a), AttrValue::Strings(b)) => a == b,
        (AttrValue::Tensor(a), AttrValue::Tensor(b)) => {
            a.identity() == b.identity() && a.tensor_type() == b.tensor_type()
        }
        _ => false,
    }
}

#[derive(Default)]
struct Results {
    sources: Vec<(Shaped, Source)>,
    written: Vec<Shaped>,
    result_of_written: Vec<u32>,
}

/// The arrays of a section as they grow.
#[derive(Default)]
struct Parts {
    steps: Vec<Step>,
    costs_ns: Vec<f32>,
    refs: Vec<BufferRef>,
    arena_refs: Vec<u32>,
    input_patches: Vec<Patch>,
    output_patches: Vec<Patch>,
    labels: Vec<String>,
    kernels: Vec<String>,
    constants: Vec<Arc<Placed>>,
    placed: HashMap<(usize, usize), usize>,
}

impl Parts {
    fn input(&mut self, operand: u32, size: usize) {
        self.input_patches.push(Patch { ref_idx: self.refs.len() as u32, operand });
        self.refs.push(BufferRef { length: size as u64, ..BufferRef::ABSENT });
    }

    fn constant(&mut self, tensor: &Tensor, size: usize, pool: &ConstantPool) -> Result<()> {
        let constants = &mut self.constants;
        let at = match self.placed.get(&tensor.identity()) {
            Some(&at) => at,
            None => {
                constants.push(pool.place(tensor)?);
                self.placed.insert(tensor.identity(), constants.len() - 1);
                constants.len() - 1
            }
        };
        self.refs.push(BufferRef { length: size as u64, ..constants[at].reference() });
        Ok(())
    }

    fn storage(&mut self, storage: &Storage, offset: usize, size: usize) {
        let ref_idx = self.refs.len() as u32;
        let blank = BufferRef { length: size as u64, ..BufferRef::ABSENT };
        self.refs.push(match storage.written {
            Some(operand) => {
                self.output_patches.push(Patch { ref_idx, operand });
                blank
            }
            None => {
                self.arena_refs.push(ref_idx);
                BufferRef { offset: offset as u64, ..blank }
            }
        });
    }
}
