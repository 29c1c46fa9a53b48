//! Loops whose number of iterations is known when they are planned: their launches, one iteration after the other.
//!
//! A Scan always is such a loop, and so is a Loop with a constant trip count that nothing ends early. Its iterations
//! become launches of the section around it: on any of its devices, asynchronous ones included, in tasks like all
//! others, so that iterations overlap where data allows. At most [`ITERATIONS_AT_ONCE`] do: launches of a later one wait
//! for the end of the one so many before it, which also bounds the memory that they take.
//!
//! Nothing is copied. A carried value is read where the iteration before has made it, and a scanned one is read in
//! place as a part of the whole. A collected value is made in its part of the result, unless that part begins where a
//! device's operands may not.

use super::extract::extract;
use super::nested::{is_scalar, known};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Env;
use crate::plan::cost::work::WorkKind;
use crate::plan::launches::{Made, Planner, Root, Scope};
use crate::plan::limits::Limits;
use crate::plan::order::merge::GAIN_HAND_OVERS;
use crate::plan::order::tasks::Policy;
use crate::plan::place::choose::{NodeWork, works_of_region};
use crate::plan::section::Shaped;
use crate::plan::specialise::through_identities;
use crate::program::scan::ScanLayout;
use crate::program::{Node, Program, Region, ValueId};
use crate::tensor::{BOOL, I64, Tensor};
use std::ops::Range;

/// Iterations of one loop that may be under way at once.
pub const ITERATIONS_AT_ONCE: usize = 8;

/// Launches that a loop may become; one with more stays a loop.
const LAUNCHES_MAX: usize = 1 << 14;

/// A loop as its iterations.
pub struct Unrolled {
    /// The body: its own inputs, then its captured values.
    body: Program,
    /// The work of each of its nodes.
    work: Vec<NodeWork>,
    /// Values of the surrounding program that follow the body's own inputs.
    captures: Vec<ValueId>,
    n_iterations: usize,
    layout: Layout,
}

/// The division of a loop's operands.
struct Layout {
    /// Operands of the node before the carried ones.
    first_carried: usize,
    n_carried: usize,
    /// For each scanned operand, whether it is read backwards.
    scanned: Vec<bool>,
    /// Outputs of the body before the carried ones.
    first_given: usize,
    /// For each collected output, whether it is written backwards.
    collected: Vec<bool>,
}

impl Unrolled {
    /// Returns the devices of its launches.
    pub fn sites(&self) -> Vec<usize> {
        self.work.iter().flat_map(NodeWork::sites).collect()
    }
}

/// A control-flow node as its iterations; None if their number is not known, or nothing is gained. Its nodes are asked of
/// `first` before the other devices.
///
/// # Errors
/// [`ErrorKind::UnsupportedOp`] for a body with a node that no kernel takes; more iterations than the limit.
pub fn unroll(program: &Program, node: &Node, env: &Env, first: Option<usize>) -> Result<Option<Unrolled>> {
    let Some((_, body)) = node.regions.first() else {
        return Ok(None);
    };
    let found = match &*node.op.name {
        "Loop" => of_loop(program, node, body),
        "Scan" => of_scan(program, node, body)?,
        _ => None,
    };
    let Some((layout, n_iterations)) = found else {
        return Ok(None);
    };
    if n_iterations as u64 > env.options.limits.trips {
        return Err(Limits::too_many_trips(env.options.limits.trips));
    }
    // A body without launches is bounded too.
    if n_iterations.saturating_mul(body.nodes.len().max(1)) > LAUNCHES_MAX
        || !types_fit(program, node, body, &layout)
    {
        return Ok(None);
    }
    let (extracted, captures) = extract(program, body);
    let Some(work) = works_of_region(&extracted, env, first)? else {
        return Ok(None);
    };
    let unrolled = Unrolled { body: extracted, work, captures, n_iterations, layout };
    let sites = unrolled.sites();
    let one_section = env.home_site().is_some() || sites.iter().all(|&site| site == sites[0]);
    let fits = one_section
        && unrolled.n_launches() <= LAUNCHES_MAX
        && sites.iter().all(|&site| env.divides_operands(site))
        && parts_fit(program, node, body, &unrolled.layout, &sites, env);
    Ok((fits && unrolled.is_worth_it(node, &sites, env)).then_some(unrolled))
}

impl Unrolled {
    /// Returns the body, the work of its nodes, and its captured values.
    pub(in crate::plan) fn body(&self) -> (&Program, &[NodeWork], &[ValueId]) {
        (&self.body, &self.work, &self.captures)
    }

    /// Launches of all iterations.
    pub(in crate::plan) fn n_launches(&self) -> usize {
        let each = self.work.iter().map(|work| match work {
            NodeWork::Unrolled(inner) => inner.n_launches(),
            NodeWork::Flow(flow) => flow.n_launches(),
            _ => 1,
        });
        each.fold(0usize, usize::saturating_add).saturating_mul(self.n_iterations)
    }

    /// Returns whether iterations are better one by one than as a step that repeats its body, which is as fast on one
    /// thread and takes less memory.
    fn is_worth_it(&self, node: &Node, sites: &[usize], env: &Env) -> bool {
        let repeats = &*node.op.name == "Loop" && self.layout.collected.is_empty();
        if !repeats || sites.iter().any(|&site| !env.works_in_host_memory(site)) {
            return true;
        }
        let cost_ns = |(node, work): (&Node, &NodeWork)| match work {
            NodeWork::Kernel(site, chosen) => {
                let signature = env.signature(&self.body, node, &chosen.name);
                let kind = WorkKind::of(&self.body, node);
                env.launch_cost((*site, kind), signature.as_deref(), chosen.cost.as_ref(), 0).ns
            }
            _ => 0.0,
        };
        let launches = self.body.main.nodes.iter().zip(&self.work);
        let all_ns = launches.map(cost_ns).sum::<f64>() * self.n_iterations as f64;
        let n_threads = env.device.plugin().services().queue().n_threads();
        env.options.tasks == Policy::Auto
            && n_threads > 1
            && all_ns > 2.0 * GAIN_HAND_OVERS * env.rates().hand_over_ns
    }
}

/// A Loop with a constant trip count, which nothing ends early.
fn of_loop(program: &Program, node: &Node, body: &Region) -> Option<(Layout, usize)> {
    let trips = constant_trips(program, &node.inputs, body)?;
    let n_carried = node.inputs.len().checked_sub(2)?;
    let n_collected = body.outputs.len().checked_sub(n_carried + 1)?;
    let fits = body.inputs.len() == n_carried + 2
        && is_scalar(program, body.inputs[0], I64)
        && is_scalar(program, body.inputs[1], BOOL);
    let layout = Layout {
        first_carried: 2,
        n_carried,
        scanned: Vec::new(),
        first_given: 1,
        collected: vec![false; n_collected],
    };
    fits.then_some((layout, trips))
}

/// Returns the number of times that a Loop of these inputs runs its body, if that is constant and nothing ends it
/// early.
pub(in crate::plan) fn constant_trips(
    program: &Program,
    inputs: &[Option<ValueId>],
    body: &Region,
) -> Option<usize> {
    let trips = program.constant((*inputs.first()?)?)?.to_int()?;
    let begins = inputs.get(1).copied().flatten().is_none_or(|id| is_true(program, id));
    let goes_on = through_identities(body, *body.outputs.first()?);
    let goes_on = Some(&goes_on) == body.inputs.get(1) || is_true(program, goes_on);
    (begins && goes_on).then(|| usize::try_from(trips).unwrap_or(0))
}

fn is_true(program: &Program, id: ValueId) -> bool {
    program.constant(id).and_then(Tensor::to_int) == Some(1)
}

/// A Scan along leading axes.
fn of_scan(program: &Program, node: &Node, body: &Region) -> Result<Option<(Layout, usize)>> {
    let layout = ScanLayout::of(node, body)?;
    let leading = layout.input_axes.iter().chain(&layout.output_axes).all(|&axis| axis == 0);
    let lengths = node.inputs[layout.n_states..].iter().map(|id| {
        let shape = known(program, (*id)?)?.known_shape()?;
        shape.first().copied()
    });
    let lengths: Option<Vec<usize>> = lengths.collect();
    let Some(&[length, ref others @ ..]) = lengths.as_deref() else {
        return Ok(None);
    };
    // The run refuses lengths that differ.
    if !leading || others.iter().any(|&other| other != length) {
        return Ok(None);
    }
    let layout = Layout {
        first_carried: 0,
        n_carried: layout.n_states,
        scanned: layout.input_backwards,
        first_given: 0,
        collected: layout.output_backwards,
    };
    Ok(Some((layout, length)))
}

/// Returns whether all types are known, and carried values keep theirs.
fn types_fit(program: &Program, node: &Node, body: &Region, layout: &Layout) -> bool {
    let operands = &node.inputs[layout.first_carried..];
    let taken = &body.inputs[layout.first_carried..];
    let carried = taken.iter().zip(operands).zip(&body.outputs[layout.first_given..]).take(layout.n_carried);
    let all_known = body.inputs.iter().chain(&body.outputs).all(|&id| known(program, id).is_some());
    all_known
        && operands.iter().all(Option::is_some)
        && node.outputs.iter().flatten().all(|&id| known(program, id).is_some())
        && carried.into_iter().all(|((&inside, outside), &given)| {
            let ty = known(program, inside);
            ty == known(program, given) && outside.is_some_and(|outside| known(program, outside) == ty)
        })
}

/// Returns whether parts of wholes are operands as their devices want them.
fn parts_fit(
    program: &Program,
    node: &Node,
    body: &Region,
    layout: &Layout,
    sites: &[usize],
    env: &Env,
) -> bool {
    let first_scanned = layout.first_carried + layout.n_carried;
    let scanned = body.inputs[first_scanned..].iter();
    let collected = body.outputs[layout.first_given + layout.n_carried..].iter();
    // In the host's memory elements need no more than their own alignment (B10); elsewhere an unaligned part is copied
    // to an aligned place.
    let spaces =
        sites.iter().filter(|&&site| !env.reads_host_memory(site)).map(|&site| env.site(site).0.space());
    let align = spaces.map(|space| space.copy_align.max(space.copy_granule).max(1)).max().unwrap_or(1);
    let size = |id: &ValueId| {
        let ty = known(program, *id)?;
        Some(Shaped::new(ty.dtype, &ty.known_shape()?)?.size as u64)
    };
    let n_collected = layout.collected.len();
    node.outputs.len() <= layout.n_carried + n_collected
        && scanned.chain(collected).all(|id| size(id).is_some_and(|size| size.is_multiple_of(align)))
}

impl Planner<'_> {
    /// Adds the launches of all iterations.
    pub(in crate::plan) fn unrolled(
        &mut self,
        scope: &mut Scope<'_>,
        node: &Node,
        of: &Unrolled,
    ) -> Result<()> {
        let Unrolled { body, work, captures, n_iterations, layout } = of;
        let operand = |i: usize| {
            node.input(i).ok_or_else(|| Error::new(ErrorKind::Internal, "a loop without one of its operands"))
        };
        let mut carried: Vec<Root> = Vec::with_capacity(layout.n_carried);
        for i in 0..layout.n_carried {
            carried.push(self.root(scope, operand(layout.first_carried + i)?)?);
        }
        let first_scanned = layout.first_carried + layout.n_carried;
        let mut scanned: Vec<Root> = Vec::with_capacity(layout.scanned.len());
        for i in 0..layout.scanned.len() {
            scanned.push(self.root(scope, operand(first_scanned + i)?)?);
        }
        let captured: Vec<Root> = captures.iter().map(|&id| self.root(scope, id)).collect::<Result<_>>()?;
        let mut collected: Vec<Option<usize>> = vec![None; layout.collected.len()];
        let mut iterations: Vec<Range<usize>> = Vec::new();
        for i in 0..*n_iterations {
            let first = self.launches.len();
            let mut inner = Scope::of_region(body);
            let inputs = &body.main.inputs;
            if layout.first_carried == 2 {
                for (&id, scalar) in inputs.iter().zip(self.loop_scalars(body, i)?) {
                    inner.roots.insert(id, Root::Constant(scalar));
                }
            }
            for (&id, root) in inputs[layout.first_carried..].iter().zip(carried.drain(..)) {
                inner.roots.insert(id, root);
            }
            for ((&id, whole), &backwards) in
                inputs[first_scanned..].iter().zip(&scanned).zip(&layout.scanned)
            {
                let at = if backwards { n_iterations - 1 - i } else { i };
                let ty = self.shaped(body, id)?;
                let part = self.part(whole, at * ty.size, &ty)?;
                inner.roots.insert(id, part);
            }
            for (&id, root) in inputs[first_scanned + scanned.len()..].iter().zip(&captured) {
                inner.roots.insert(id, root.clone());
            }
            for (node, work) in body.main.nodes.iter().zip(work) {
                self.node(&mut inner, node, work.clone()).map_err(|e| e.at_node(node.label()))?;
            }
            let given = &body.main.outputs[layout.first_given..];
            for &id in &given[..layout.n_carried] {
                carried.push(self.root(&mut inner, id)?);
            }
            for ((&id, whole), &backwards) in
                given[layout.n_carried..].iter().zip(&mut collected).zip(&layout.collected)
            {
                let at = if backwards { n_iterations - 1 - i } else { i };
                let root = self.root(&mut inner, id)?;
                let size = self.shaped(body, id)?.size;
                *whole = Some(self.collect(*whole, root, first, (at, *n_iterations, size), &node.label())?);
            }
            iterations.push(first..self.launches.len());
            if let Some(before) = iterations.len().checked_sub(ITERATIONS_AT_ONCE + 1) {
                self.follow(&iterations[before].clone(), &(first..self.launches.len()));
            }
        }
        // A value that no iteration has collected has no elements.
        let collected = collected.into_iter().map(|whole| {
            let whole = whole.unwrap_or_else(|| {
                self.made.push(Made::new(0, 0, 0));
                self.made.len() - 1
            });
            Root::Made(whole, 0)
        });
        for (id, root) in node.outputs.iter().zip(carried.into_iter().chain(collected)) {
            if let Some(id) = id {
                scope.roots.insert(*id, root);
            }
        }
        Ok(())
    }

    /// Iteration number and condition, of the types that the body takes.
    fn loop_scalars(&self, body: &Program, iteration: usize) -> Result<[Tensor; 2]> {
        let number = Tensor::from_elements(&[], &[iteration as i64])?;
        let go_on = Tensor::from_bytes(BOOL, &[], &[1])?;
        Ok([
            number.reshaped(&self.shaped(body, body.main.inputs[0])?.shape)?,
            go_on.reshaped(&self.shaped(body, body.main.inputs[1])?.shape)?,
        ])
    }

    /// Makes a result of an iteration part `at` of `n` of the collected value. In place, if the iteration has made it
    /// for no other result.
    fn collect(
        &mut self,
        whole: Option<usize>,
        root: Root,
        first: usize,
        (at, n, size): (usize, usize, usize),
        label: &str,
    ) -> Result<usize> {
        let memory = match root {
            Root::Made(made, _) => self.made[made].memory,
            _ => 0,
        };
        let whole = whole.unwrap_or_else(|| {
            self.made.push(Made::new(size * n, 0, memory));
            self.made.len() - 1
        });
        if size == 0 {
            return Ok(whole);
        }
        let own = match root {
            Root::Made(made, 0)
                if self.made[made].is_whole()
                    && self.made[made].size == size
                    && memory == self.made[whole].memory
                    && self.may_begin_at(at * size, memory)
                    && self.made[made].maker as usize >= first =>
            {
                made
            }
            root if memory == self.made[whole].memory => self.moved(root, size, label),
            _ => return Err(Error::new(ErrorKind::Internal, "iterations whose results are in two memories")),
        };
        self.made[own].part_of = Some((whole, at * size));
        let maker = self.made[own].maker;
        self.made[whole].part_makers.push(maker);
        Ok(whole)
    }

    /// Lets an iteration begin when another has ended.
    fn follow(&mut self, before: &Range<usize>, after: &Range<usize>) {
        let within = |range: &Range<usize>, launch: &u32| range.contains(&(*launch as usize));
        let ends = |launch: &usize| {
            let mut outputs = self.launches[*launch].outputs.iter().flatten();
            outputs.all(|&made| !self.made[made].users.iter().any(|user| within(before, user)))
        };
        let ends: Vec<u32> = before.clone().filter(ends).map(|launch| launch as u32).collect();
        let begins = |launch: &usize| {
            let mut inputs = self.launches[*launch].inputs.iter().flatten();
            inputs.all(|(root, _)| match root {
                Root::Made(made, _) => !self.makers(*made).iter().any(|maker| within(after, maker)),
                _ => true,
            })
        };
        let begins: Vec<usize> = after.clone().filter(begins).collect();
        for launch in begins {
            self.launches[launch].after.extend(&ends);
        }
    }
}
