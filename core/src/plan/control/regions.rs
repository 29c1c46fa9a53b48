//! Control flow whose regions are tasks of the section around it: If, and Loop with an end that depends on data.
//!
//! Their launches are planned like all others, on any of the section's devices. A node becomes an *entry*, which reads
//! the condition where the host can and chooses a region, and an *exit* behind the regions, which chooses whether the
//! body runs again. Both are tasks without work of their own (`exec/regions.rs`), so that no thread waits for a device,
//! neither in front of a branch nor between iterations.
//!
//! Nothing is copied. A value that is one of several, such as a result of an If or a carried value of a Loop, is a
//! *phi*. Launches that use it have references that entry and exit point at the results of the chosen branch, or of the
//! previous iteration. Carried values of a Loop are made in two places in turn.
//!
//! Launches of a region wait only for each other: the entry has waited for their inputs from outside, and readers of
//! their results wait for the exit (`borders.rs`). So the streams of regions are their own, a set for each depth of
//! nesting.
//!
//! A value that a loop's body uses from outside is in use until the exit, since the next iteration needs it: so its
//! memory is not used again within the body.

use super::extract::extract;
use super::nested::{Kind, of_fixed_types};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Env;
use crate::plan::cost::feedback::Cost;
use crate::plan::launches::references::{Emitter, Parts};
use crate::plan::launches::{Launch, Made, Planner, Root, Scope, Work};
use crate::plan::order::lanes::STREAMS;
use crate::plan::order::tasks::TaskGraph;
use crate::plan::place::choose::{NodeWork, works_of_region};
use crate::plan::section::Patch;
use crate::plan::steps;
use crate::program::{Node, Program, ValueId};
use crate::tensor::{BOOL, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// A control-flow node whose regions are tasks.
pub struct Flow {
    /// Its op, for reports.
    op: String,
    kind: Kind,
    /// `then` and `else`, or the body.
    regions: Vec<FlowRegion>,
    /// The device in whose memory conditions are read.
    home: usize,
}

/// A region, and the work of its nodes.
struct FlowRegion {
    /// Its own inputs, then its captured values.
    program: Program,
    work: Vec<NodeWork>,
    /// Values of the surrounding program that follow the region's own inputs.
    captures: Vec<ValueId>,
}

/// A control-flow node with its regions as tasks; None if types change, a node is planned when its operands are there,
/// the host has no memory among the devices', or one of them has too few streams.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for a region with a node that no kernel takes.
pub fn flow(program: &Program, node: &Node, env: &Env, first: Option<usize>) -> Result<Option<Flow>> {
    let home = env.home_site().filter(|&site| env.works_in_host_memory(site));
    let (Some(home), Some((kind, regions))) = (home, of_fixed_types(program, node)) else {
        return Ok(None);
    };
    let mut planned = Vec::with_capacity(regions.len());
    for region in regions {
        let (program, captures) = extract(program, region);
        let Some(work) = works_of_region(&program, env, first)? else {
            return Ok(None);
        };
        planned.push(FlowRegion { program, work, captures });
    }
    let flow = Flow { op: node.op.to_string(), kind, regions: planned, home };
    let n_streams = STREAMS.saturating_mul(1 + flow.depth());
    let fits = |site: usize| {
        let streams_max = env.site(site).0.about().streams_max;
        env.shares_sections(site) && (streams_max == 0 || streams_max >= n_streams)
    };
    Ok(flow.sites().into_iter().all(fits).then_some(flow))
}

impl Flow {
    /// Returns the devices of its launches, that of the conditions first.
    pub fn sites(&self) -> Vec<usize> {
        [self.home].into_iter().chain(self.works().flat_map(NodeWork::sites)).collect()
    }

    /// Returns the work of the nodes of its regions.
    pub fn works(&self) -> impl Iterator<Item = &NodeWork> {
        self.regions.iter().flat_map(|region| &region.work)
    }

    /// Launches, each counted once.
    pub(in crate::plan) fn n_launches(&self) -> usize {
        let work = self.works().map(|work| match work {
            NodeWork::Unrolled(inner) => inner.n_launches(),
            NodeWork::Flow(inner) => inner.n_launches(),
            _ => 1,
        });
        work.fold(2, usize::saturating_add)
    }

    /// Returns the depth of its regions: 1 if there are none within them.
    fn depth(&self) -> u32 {
        1 + depth_of(self.works())
    }
}

fn depth_of<'a>(work: impl Iterator<Item = &'a NodeWork>) -> u32 {
    let depth = work.map(|work| match work {
        NodeWork::Flow(inner) => inner.depth(),
        NodeWork::Unrolled(inner) => depth_of(inner.body().1.iter()),
        _ => 0,
    });
    depth.max().unwrap_or(0)
}

/// An operand, if there is one, and its bytes.
type Operand = Option<(Root, usize)>;

/// A value that is one of several.
pub(in crate::plan) struct Phi {
    /// The value, among the made ones.
    pub made: usize,
    /// Made values that it may be.
    candidates: Vec<usize>,
}

/// The phis that entry and exit of control flow point at memories.
pub(in crate::plan) enum Phis {
    /// Each result, if it is wanted. The exit's operands are its candidates, `else` before `then`.
    If { results: Vec<Option<u32>> },
    /// Behind trip count and condition the entry's operands are the first of each carried value; its results are the
    /// iteration's number, and two places for each carried value.
    Loop { carried: Vec<Carried> },
}

/// The phis of a carried value.
pub(in crate::plan) struct Carried {
    /// The value that the body takes, the one that it makes, and the one that the node gives.
    pub taken: u32,
    pub given: u32,
    pub result: Option<u32>,
}

impl Planner<'_> {
    /// Adds the launches of a node's regions, its entry and its exit.
    pub(in crate::plan) fn flow(&mut self, scope: &mut Scope<'_>, node: &Node, flow: &Flow) -> Result<()> {
        match flow.kind {
            Kind::If => self.conditional(scope, node, flow),
            Kind::Loop => self.looped(scope, node, flow),
        }
    }

    fn conditional(&mut self, scope: &mut Scope<'_>, node: &Node, flow: &Flow) -> Result<()> {
        let label = || node.label();
        let condition = self.condition(scope, node.input(0), &label)?;
        let captured = self.captured(scope, flow)?;
        let control = self.enter(node, flow, vec![condition], Vec::new());
        let mut memories: Vec<u32> = Vec::new();
        let mut given: Vec<Vec<Root>> = Vec::new();
        for (region, captured) in flow.regions.iter().zip(&captured) {
            let parent = self.open(control);
            let mut inner = Scope::of_region(&region.program);
            inner.roots.extend(region.program.main.inputs.iter().copied().zip(captured.iter().cloned()));
            self.region(&mut inner, region)?;
            let mut roots = Vec::with_capacity(node.outputs.len());
            for (k, &id) in region.program.main.outputs.iter().enumerate() {
                let root = self.root(&mut inner, id)?;
                if memories.len() == k {
                    memories.push(self.memory_of(&root));
                }
                let size = self.shaped(&region.program, id)?.size;
                let root = self.in_memory(root, memories[k], &label)?;
                roots.push(self.aligned(root, size, memories[k], node));
            }
            given.push(roots);
            self.close(control, parent);
        }
        let exit = self.launches.len() as u32;
        let (mut inputs, mut outputs, mut results) = (Vec::new(), Vec::new(), Vec::new());
        for (k, id) in node.outputs.iter().enumerate() {
            let Some(id) = *id else {
                results.push(None);
                continue;
            };
            let size = self.shaped(scope.program, id)?.size;
            let candidates = [given[1][k].clone(), given[0][k].clone()];
            let phi = self.phi(size, exit, memories[k], &candidates);
            inputs.extend(candidates.into_iter().map(|root| Some((root, size))));
            outputs.push(Some(self.phis[phi as usize].made));
            results.push(Some(phi));
            scope.roots.insert(id, Root::Made(self.phis[phi as usize].made, 0));
        }
        self.leave(node, flow, control, inputs, outputs, Phis::If { results });
        Ok(())
    }

    fn looped(&mut self, scope: &mut Scope<'_>, node: &Node, flow: &Flow) -> Result<()> {
        let label = || node.label();
        let body = &flow.regions[0];
        let own = &body.program.main;
        let mut operands = Vec::with_capacity(node.inputs.len());
        for id in [node.input(0), node.input(1)] {
            operands.push(self.condition(scope, id, &label)?);
        }
        let captured = self.captured(scope, flow)?;
        let n_carried = node.inputs.len().saturating_sub(2);
        let captures = own.inputs[2 + n_carried..].iter().copied().zip(captured[0].iter().cloned());
        self.hoist(&body.program, &body.work, captures.clone().collect(), &label)?;
        let mut carried = Vec::with_capacity(n_carried);
        for (c, &given) in own.outputs[1..].iter().enumerate() {
            let missing = || Error::new(ErrorKind::InvalidModel, "a loop with an absent carried value");
            let id = node.input(2 + c).ok_or_else(missing)?;
            // It lives where the body makes it.
            let memory = self.memory_of_maker(body, given);
            let (root, size) = (self.root(scope, id)?, self.shaped(scope.program, id)?.size);
            let root = self.in_memory(root, memory, &label)?;
            operands.push(Some((self.aligned(root, size, memory, node), size)));
            carried.push((size, memory));
        }
        let entry = self.launches.len() as u32;
        self.made.push(Made::new(size_of::<i64>(), entry, 0));
        let number = self.made.len() - 1;
        let mut places = vec![Some(number)];
        let mut values = Vec::with_capacity(n_carried);
        for (&(size, memory), initial) in carried.iter().zip(&operands[2..]) {
            let mut all: Vec<Root> = initial.iter().map(|(root, _)| root.clone()).collect();
            for _ in 0..2 {
                self.made.push(Made::new(size, entry, memory));
                places.push(Some(self.made.len() - 1));
                all.push(Root::Made(self.made.len() - 1, 0));
            }
            let taken = self.phi(size, entry, memory, &all);
            let given = self.phi(size, entry, memory, &all[1..]);
            values.push((all, taken, given));
        }
        let control = self.enter(node, flow, operands, places);
        let parent = self.open(control);
        let mut inner = Scope::of_region(&body.program);
        let go_on = Tensor::from_bytes(BOOL, &[], &[1])?;
        let go_on = go_on.reshaped(&self.shaped(&body.program, own.inputs[1])?.shape)?;
        inner.roots.insert(own.inputs[0], Root::Made(number, 0));
        inner.roots.insert(own.inputs[1], Root::Constant(go_on));
        for (&id, (_, taken, _)) in own.inputs[2..].iter().zip(&values) {
            inner.roots.insert(id, Root::Made(self.phis[*taken as usize].made, 0));
        }
        inner.roots.extend(captures);
        self.region(&mut inner, body)?;
        for (&id, (_, _, given)) in own.outputs[1..].iter().zip(&values) {
            let root = self.root(&mut inner, id)?;
            self.carry(root, *given, entry, &label)?;
        }
        let condition = self.root(&mut inner, own.outputs[0])?;
        let condition = self.in_memory(condition, 0, &label)?;
        self.close(control, parent);
        let exit = self.launches.len() as u32;
        // The places hold until the loop ends, however often its body has used them before.
        for (_, taken, given) in &values {
            for phi in [taken, given] {
                let made = self.phis[*phi as usize].made;
                self.made[made].users.push(exit);
            }
        }
        self.made[number].users.push(exit);
        let (mut outputs, mut phis) = (Vec::new(), Vec::new());
        for (c, ((size, memory), (all, taken, given))) in carried.into_iter().zip(values).enumerate() {
            let id = node.outputs.get(c).copied().flatten();
            let result = id.map(|_| self.phi(size, exit, memory, &all));
            let made = result.map(|phi| self.phis[phi as usize].made);
            if let (Some(id), Some(made)) = (id, made) {
                scope.roots.insert(id, Root::Made(made, 0));
            }
            outputs.push(made);
            phis.push(Carried { taken, given, result });
        }
        self.leave(node, flow, control, vec![Some((condition, 1))], outputs, Phis::Loop { carried: phis });
        Ok(())
    }

    /// An operand that the host reads.
    fn condition(
        &mut self,
        scope: &mut Scope<'_>,
        id: Option<ValueId>,
        label: &dyn Fn() -> String,
    ) -> Result<Operand> {
        let Some(id) = id else {
            return Ok(None);
        };
        let (root, size) = (self.root(scope, id)?, self.shaped(scope.program, id)?.size);
        Ok(Some((self.in_memory(root, 0, label)?, size)))
    }

    /// Returns the values that the regions capture.
    fn captured(&mut self, scope: &mut Scope<'_>, flow: &Flow) -> Result<Vec<Vec<Root>>> {
        let mut captured = Vec::with_capacity(flow.regions.len());
        for region in &flow.regions {
            let roots = region.captures.iter().map(|&id| self.root(scope, id));
            captured.push(roots.collect::<Result<_>>()?);
        }
        Ok(captured)
    }

    /// Adds the launches of a region's nodes.
    fn region(&mut self, scope: &mut Scope<'_>, region: &FlowRegion) -> Result<()> {
        for (node, work) in region.program.main.nodes.iter().zip(&region.work) {
            self.node(scope, node, work.clone()).map_err(|e| e.at_node(node.label()))?;
        }
        Ok(())
    }

    /// Adds an entry; gives its control flow.
    fn enter(
        &mut self,
        node: &Node,
        flow: &Flow,
        inputs: Vec<Operand>,
        outputs: Vec<Option<usize>>,
    ) -> usize {
        let control = self.regions.enter(self.launches.len() as u32, flow.kind == Kind::Loop);
        // Streams of one depth are one control flow's at a time.
        let before = self.last_exit.get(&self.region).copied();
        let after = before.filter(|_| self.lanes.are_placed()).into_iter().collect();
        self.control_launch(node, Work::Entry(control, flow.op.clone()), inputs, outputs, after);
        // Until the exit is there.
        self.flows.push(Phis::If { results: Vec::new() });
        control
    }

    /// Adds the exit.
    fn leave(
        &mut self,
        node: &Node,
        flow: &Flow,
        control: usize,
        inputs: Vec<Operand>,
        outputs: Vec<Option<usize>>,
        phis: Phis,
    ) {
        let exit = self.launches.len() as u32;
        self.regions.leave(control, exit);
        self.last_exit.insert(self.region, exit);
        self.flows[control] = phis;
        self.control_launch(node, Work::Exit(control, flow.op.clone()), inputs, outputs, Vec::new());
    }

    fn control_launch(
        &mut self,
        node: &Node,
        work: Work,
        inputs: Vec<Operand>,
        outputs: Vec<Option<usize>>,
        after: Vec<u32>,
    ) {
        self.launch(Launch {
            label: node.label(),
            name: Arc::clone(&node.name),
            output: Arc::from(""),
            lane: 0,
            region: 0,
            work,
            inputs,
            outputs,
            after,
            stage: 0,
            cost: Cost::default(),
            signature: None,
        });
    }

    /// Begins a region, which contains the launches from now on. Returns the region around it.
    fn open(&mut self, control: usize) -> u32 {
        let parent = self.region;
        self.region = self.regions.open(control, parent);
        self.lanes.depth = self.regions.depth(self.region);
        parent
    }

    /// Ends a region. Copies that were made in it are there only if it was chosen.
    fn close(&mut self, control: usize, parent: u32) {
        let entry = self.regions.controls[control].entry;
        let made = &self.made;
        self.copies.retain(|_, &mut copy| made[copy].maker < entry);
        self.region = parent;
        self.lanes.depth = self.regions.depth(parent);
    }

    /// Adds a value that is one of several, which a launch says.
    fn phi(&mut self, size: usize, by: u32, memory: u32, candidates: &[Root]) -> u32 {
        let phi = self.phis.len() as u32;
        self.made.push(Made { phi: Some(phi), ..Made::new(size, by, memory) });
        let made = |root: &Root| match root {
            Root::Made(made, _) => Some(*made),
            _ => None,
        };
        let candidates = candidates.iter().filter_map(made).collect();
        self.phis.push(Phi { made: self.made.len() - 1, candidates });
        phi
    }

    /// Puts a body's result into the place that this iteration writes: directly if a launch of the body makes it for no
    /// other place, else by a copy.
    fn carry(&mut self, root: Root, given: u32, entry: u32, label: &dyn Fn() -> String) -> Result<()> {
        let whole = self.phis[given as usize].made;
        let (size, memory) = (self.made[whole].size, self.made[whole].memory);
        if size == 0 {
            return Ok(());
        }
        let root = self.in_memory(root, memory, label)?;
        let own = match root {
            Root::Made(made, 0)
                if self.made[made].is_whole()
                    && self.made[made].size == size
                    && self.made[made].maker > entry =>
            {
                made
            }
            root => self.moved_to(memory, root, size, &label()),
        };
        self.made[own].part_of = Some((whole, 0));
        Ok(())
    }

    /// Returns the memory that a value is in; constants are anywhere.
    fn memory_of(&self, root: &Root) -> u32 {
        match root {
            Root::Made(made, _) => self.made[*made].memory,
            _ => 0,
        }
    }

    /// Returns the memory in which a region makes one of its values, views seen through.
    fn memory_of_maker(&self, region: &FlowRegion, id: ValueId) -> u32 {
        let mut id = id;
        for (node, work) in region.program.main.nodes.iter().zip(&region.work).rev() {
            if !node.outputs.contains(&Some(id)) {
                continue;
            }
            match (work, node.input(0)) {
                (NodeWork::Kernel(site, _), _) => return self.lanes.memory_of(*site),
                (NodeWork::View(_), Some(input)) => id = input,
                _ => return 0,
            }
        }
        0
    }

    /// Copies a body's values from outside to the memory where they are needed, once for all iterations.
    fn hoist(
        &mut self,
        program: &Program,
        work: &[NodeWork],
        mut roots: HashMap<ValueId, Root>,
        label: &dyn Fn() -> String,
    ) -> Result<()> {
        for (node, work) in program.main.nodes.iter().zip(work) {
            match work {
                NodeWork::Kernel(site, _) => {
                    let memory = self.lanes.memory_of(*site);
                    for root in node.inputs.iter().flatten().filter_map(|id| roots.get(id)) {
                        self.in_memory(root.clone(), memory, label)?;
                    }
                }
                NodeWork::View(_) => {
                    // A copy is of the whole, whichever part is read.
                    if let Some(root) = node.input(0).and_then(|input| roots.get(&input).cloned()) {
                        roots.extend(node.outputs.iter().flatten().map(|&output| (output, root.clone())));
                    }
                }
                NodeWork::Unrolled(inner) => {
                    let (program, work, captures) = inner.body();
                    let within = captured_within(program, captures, &roots);
                    self.hoist(program, work, within, label)?;
                }
                NodeWork::Flow(inner) => {
                    for FlowRegion { program, work, captures } in &inner.regions {
                        let within = captured_within(program, captures, &roots);
                        self.hoist(program, work, within, label)?;
                    }
                }
                NodeWork::Nested(..) | NodeWork::Claimed(_) | NodeWork::Later => {}
            }
        }
        Ok(())
    }

    /// Extends the use of values of control flow: a loop's body uses values from outside until its exit, and candidates
    /// of a phi are in use as long as the phi.
    pub(in crate::plan) fn extend_uses(&mut self) {
        if self.regions.controls.is_empty() {
            return;
        }
        for at in 0..self.launches.len() {
            let mut region = self.launches[at].region;
            while let (Some(control), Some(around)) = (self.regions.control(region), self.regions.at(region))
            {
                region = around.parent;
                let (entry, exit) = (control.entry, control.exit);
                if !control.is_loop {
                    continue;
                }
                for (root, _) in self.launches[at].inputs.iter().flatten() {
                    if let Root::Made(made, _) = root
                        && self.makers(*made).iter().any(|maker| !(entry + 1..exit).contains(maker))
                    {
                        self.made[*made].users.push(exit);
                    }
                }
            }
        }
        // The candidates of a phi come before it.
        for phi in self.phis.iter().rev() {
            for &candidate in &phi.candidates {
                let users = self.made[phi.made].users.clone();
                self.made[candidate].users.extend(users);
            }
        }
    }
}

/// Returns the values known outside that a region within captures.
fn captured_within(
    program: &Program,
    captures: &[ValueId],
    roots: &HashMap<ValueId, Root>,
) -> HashMap<ValueId, Root> {
    let inputs = &program.main.inputs;
    let captured = inputs[inputs.len() - captures.len()..].iter().zip(captures);
    captured.filter_map(|(&inner, outer)| Some((inner, roots.get(outer)?.clone()))).collect()
}

impl Planner<'_> {
    /// References of an entry: their order is in `exec/regions.rs`.
    pub(in crate::plan) fn entry<'e>(
        &'e self,
        emitter: &mut Emitter<'e>,
        control: usize,
        inputs: &[Operand],
        outputs: &[Option<usize>],
    ) -> Result<()> {
        emitter.add_context();
        let memory = |carried: &Carried| self.made[self.phis[carried.taken as usize].made].memory;
        let carried = match &self.flows[control] {
            Phis::If { .. } => &[][..],
            Phis::Loop { carried } => carried,
        };
        // Conditions are read by the host.
        let n_conditions = inputs.len() - carried.len();
        let memories = std::iter::repeat_n(0, n_conditions).chain(carried.iter().map(memory));
        self.each_from_its_memory(emitter, inputs.iter().cloned().zip(memories))?;
        let places = outputs.iter().flatten().map(|&made| {
            let Made { size, memory, .. } = self.made[made];
            (Some((Root::Made(made, 0), size)), memory)
        });
        self.each_from_its_memory(emitter, places)
    }

    /// References of an exit.
    pub(in crate::plan) fn exit<'e>(
        &'e self,
        emitter: &mut Emitter<'e>,
        control: usize,
        inputs: &[Operand],
    ) -> Result<()> {
        emitter.add_context();
        let memories = match &self.flows[control] {
            Phis::If { results } => {
                let memory = |phi: &u32| self.made[self.phis[*phi as usize].made].memory;
                results.iter().flatten().flat_map(|phi| [memory(phi); 2]).collect()
            }
            Phis::Loop { .. } => vec![0],
        };
        self.each_from_its_memory(emitter, inputs.iter().cloned().zip(memories))
    }

    /// Adds references to operands, each as the device that allocates its memory knows it.
    fn each_from_its_memory<'e>(
        &'e self,
        emitter: &mut Emitter<'e>,
        operands: impl Iterator<Item = (Operand, u32)>,
    ) -> Result<()> {
        let own = (emitter.site, emitter.pool);
        for (operand, memory) in operands {
            emitter.site = self.lanes.site_of(memory);
            emitter.pool = self.env.site(emitter.site).1;
            emitter.add_operand(Some(&operand))?;
        }
        (emitter.site, emitter.pool) = own;
        Ok(())
    }
}

impl Parts {
    /// States for entries and exits, which their steps are given; the graph's control flow is in the same order.
    pub(in crate::plan) fn controls(
        &mut self,
        flows: &[Phis],
        graph: &TaskGraph,
    ) -> Box<[Box<steps::Control>]> {
        let mut uses: HashMap<u32, Vec<Patch>> = HashMap::new();
        for (phi, patch) in self.phi_uses.drain(..) {
            uses.entry(phi).or_default().push(patch);
        }
        let mut uses = |phi: u32| uses.remove(&phi).unwrap_or_default().into_boxed_slice();
        self.entries.sort_unstable();
        self.exits.sort_unstable();
        let mut controls: Vec<Box<steps::Control>> = Vec::with_capacity(flows.len());
        for (number, flow) in flows.iter().enumerate() {
            let (entry, exit) = (self.entries[number].1, self.exits[number].1);
            let (entry_ref, exit_ref) = (self.steps[entry].first_ref, self.steps[exit].first_ref);
            let flow = match flow {
                Phis::If { results } => {
                    let result = |(k, phi): (u32, &u32)| steps::Merge {
                        first_candidate: exit_ref + 1 + 2 * k,
                        uses: uses(*phi),
                    };
                    steps::Flow::If { results: (0..).zip(results.iter().flatten()).map(result).collect() }
                }
                Phis::Loop { carried } => {
                    let n_carried = carried.len() as u32;
                    let carried = (0..).zip(carried).map(|(c, phis): (u32, &Carried)| {
                        let first_place = entry_ref + 4 + n_carried + 2 * c;
                        steps::Carried {
                            places: [entry_ref + 3 + c, first_place, first_place + 1],
                            taken: uses(phis.taken),
                            given: uses(phis.given),
                            result: phis.result.map(&mut uses).unwrap_or_default(),
                        }
                    });
                    steps::Flow::Loop { number: entry_ref + 3 + n_carried, carried: carried.collect() }
                }
            };
            let regions = graph.controls[number].regions.iter();
            let n_signals = regions.map(|region| region.n_signals.clone()).collect();
            controls.push(Box::new(steps::Control {
                number: number as u32,
                entry_ref,
                exit_ref,
                flow,
                n_signals,
            }));
            for step in [entry, exit] {
                self.steps[step].state = std::ptr::from_ref(&*controls[number]).cast();
            }
        }
        controls.into()
    }
}
