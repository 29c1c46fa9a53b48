//! The choice of work for each node: a view, a kernel of one of the devices, a step for its regions, or a stage of its
//! own.
//!
//! A node runs on the device that it is pinned to, else on the one that placement says (`by_cost.rs`), else on the
//! first of the plan's devices that has a kernel which takes it. Equal nodes of one device share a prepared kernel
//! ([`super::kernel_cache`]), so that its state is made, and cached, once.

use super::alike::Asked;
use super::by_cost::{Refused, Table};
use super::indices;
use super::kernel::{self, Chosen, NodeTypes};
use super::kernel_cache::Sites;
use crate::cancel::look;
use crate::error::{Error, ErrorKind, Result};
use crate::plan::compiled::claims::Claims;
use crate::plan::control::nested::{Inlined, inline};
use crate::plan::control::regions::{Flow, flow};
use crate::plan::control::unroll::{Unrolled, unroll};
use crate::plan::memory::views;
use crate::plan::order::merge::GAIN_HAND_OVERS;
use crate::plan::order::tasks::Policy;
use crate::plan::{Env, PlaceBy, is_static};
use crate::program::catalogue::{self, OpKind};
use crate::program::{Node, Program};
use crate::progress::{Counter, Phase};
use std::sync::Arc;

/// The work that runs a node.
#[derive(Clone, Default)]
pub enum NodeWork {
    /// Unknown until its operands are there.
    #[default]
    Later,
    /// Nothing: its results are its operand with another shape, or parts of it, from these offsets in bytes on.
    View(Arc<[usize]>),
    /// The compiler of the device at a position, together with others that it claimed.
    Claimed(usize),
    /// A kernel of the device at a position.
    Kernel(usize, Arc<Chosen>),
    /// A step for its regions, on the device at a position.
    Nested(usize, Inlined),
    /// The launches of all iterations of a loop.
    Unrolled(Arc<Unrolled>),
    /// The launches of its regions, which entry and exit choose among.
    Flow(Arc<Flow>),
}

impl NodeWork {
    /// Returns the devices that it takes.
    pub fn sites(&self) -> Vec<usize> {
        match self {
            Self::Claimed(site) | Self::Kernel(site, _) | Self::Nested(site, _) => vec![*site],
            Self::Unrolled(unrolled) => unrolled.sites(),
            Self::Flow(flow) => flow.sites(),
            Self::View(_) | Self::Later => Vec::new(),
        }
    }

    /// Returns whether a launch of it is elsewhere than on a device. Where the conditions of control flow are read does
    /// not count.
    fn strays_from(&self, site: usize) -> bool {
        match self {
            Self::Flow(flow) => flow.works().any(|work| work.strays_from(site)),
            _ => self.sites().iter().any(|&own| own != site),
        }
    }
}

/// Chooses for the nodes of a program, one after the other.
pub struct Chooser<'a> {
    program: &'a Program,
    env: &'a Env,
    /// Kernels that were prepared, so that they are there when nodes are chosen for again.
    held: Vec<Arc<Chosen>>,
}

/// Chooses the work for each node of a region, whose nodes are asked of the device `first` before the others; None if
/// the work of one is unknown until its operands are there.
///
/// # Errors
/// As [`Chooser::work`].
pub fn works_of_region(region: &Program, env: &Env, first: Option<usize>) -> Result<Option<Vec<NodeWork>>> {
    let mut chooser = Chooser::new(region, env);
    let mut works = Vec::with_capacity(region.main.nodes.len());
    for node in &region.main.nodes {
        match chooser.work(node, first).map_err(|e| e.at_node(node.label()))? {
            NodeWork::Later => return Ok(None),
            work => works.push(work),
        }
    }
    chooser.take_parts(&mut works)?;
    Ok(Some(works))
}

/// Chooses the work for each node of a program, placed first if that is its devices' rule.
///
/// # Errors
/// As [`Chooser::work`].
pub fn works(program: &Program, env: &Env, claims: &Claims) -> Result<Vec<NodeWork>> {
    let mut chooser = Chooser::new(program, env);
    let mut refused = Refused::new();
    // In each turn at least one more device is known to refuse a node.
    loop {
        let sites = match env.placement.by {
            PlaceBy::Cost if env.n_sites() > 1 => Table::new(program, env, &refused, claims)
                .cheapest()
                .map(|found| found.sites)
                .unwrap_or_default(),
            _ => Vec::new(),
        };
        let n_refused = refused.len();
        let mut works = Vec::with_capacity(program.main.nodes.len());
        let counter = Counter::begin(Phase::Place, program.main.nodes.len());
        for (at, node) in program.main.nodes.iter().enumerate() {
            indices::check(program, node).map_err(|e| e.at_node(node.label()))?;
            let first = sites.get(at).copied().flatten();
            let work = match claimed(program, node, (at, first), env, claims) {
                Some(site) => NodeWork::Claimed(site),
                None => chooser.work(node, first).map_err(|e| e.at_node(node.label()))?,
            };
            if let Some(first) = first
                && work.strays_from(first)
            {
                refused.insert((at, first));
            }
            works.push(work);
            counter.done(at + 1);
        }
        if refused.len() == n_refused {
            chooser.take_parts(&mut works)?;
            return Ok(works);
        }
    }
}

/// Returns the device whose compiler takes a node, if the first of the node's devices that takes it has it so: `first`,
/// then the others in their order. Views are not asked for.
fn claimed(
    program: &Program,
    node: &Node,
    (at, first): (usize, Option<usize>),
    env: &Env,
    claims: &Claims,
) -> Option<usize> {
    let kind = catalogue::find(&node.op.domain, &node.op.name).map(|def| def.kind);
    let sites = env.sites_of(node);
    // Nodes that a compiler takes have known types.
    if kind == Some(OpKind::View) || !sites.clone().any(|site| claims.get(site, at).is_some()) {
        return None;
    }
    let first = first.filter(|site| sites.contains(site));
    let mut order = first.into_iter().chain(sites.filter(|&site| Some(site) != first));
    // A kernel's device gives its final answer when the kernel is prepared.
    let types = NodeTypes::of(program, node)?;
    let found = order.find(|&site| {
        claims.get(site, at).is_some() || kernel::first(node, &types, env.site(site).0).is_some()
    })?;
    claims.get(found, at).map(|_| found)
}

impl<'a> Chooser<'a> {
    /// Nothing chosen yet.
    pub fn new(program: &'a Program, env: &'a Env) -> Self {
        Self { program, env, held: Vec::new() }
    }

    /// Chooses the work for a node, which is asked of the device `first` before the others.
    ///
    /// # Errors
    /// [`ErrorKind::UnsupportedOp`] for a node without a kernel, with the reason of each kernel of each device.
    pub fn work(&mut self, node: &'a Node, first: Option<usize>) -> Result<NodeWork> {
        look()?;
        if !node.regions.is_empty() {
            if let Some(unrolled) = unroll(self.program, node, self.env, first)? {
                return Ok(NodeWork::Unrolled(Arc::new(unrolled)));
            }
            let nested = inline(self.program, node, self.env, first)?;
            if let Some((site, nested)) = nested.as_ref().filter(|(_, nested)| !self.is_worth_tasks(nested)) {
                return Ok(NodeWork::Nested(*site, nested.clone()));
            }
            if let Some(flow) = flow(self.program, node, self.env, first)? {
                return Ok(NodeWork::Flow(Arc::new(flow)));
            }
            return Ok(nested.map_or(NodeWork::Later, |(site, nested)| NodeWork::Nested(site, nested)));
        }
        if !is_static(self.program, node, self.env) {
            return Ok(NodeWork::Later);
        }
        if let Some(offsets) = views::offsets(self.program, node, self.env) {
            views::check_whole(self.program, node).map_err(|error| error.at_node(node.label()))?;
            return Ok(NodeWork::View(offsets));
        }
        self.kernel(node, first)
    }

    /// Makes kernels take parts of their results in a memory of their own, if something elsewhere reads the parts.
    fn take_parts(&mut self, works: &mut [NodeWork]) -> Result<()> {
        let program = self.program;
        for (at, site) in views::read_elsewhere(program, works, self.env) {
            let node = &program.main.nodes[at];
            match self.kernel(node, Some(site)) {
                Ok(kernel) => works[at] = kernel,
                // A node without a kernel can still be looked at.
                Err(error) if error.kind() == ErrorKind::UnsupportedOp => {}
                Err(error) => return Err(error.at_node(node.label())),
            }
        }
        Ok(())
    }

    /// A kernel for a node, which is asked of the device `first` before the others.
    fn kernel(&mut self, node: &'a Node, first: Option<usize>) -> Result<NodeWork> {
        let (asked, sites) = (Asked::of(self.program, node), Sites { first, all: self.env.sites_of(node) });
        if let Some((site, chosen)) = self.env.kernels.find(&asked, &sites) {
            return Ok(NodeWork::Kernel(site, Arc::new(chosen)));
        }
        let (site, chosen) = self.choose(node, first)?;
        self.env.kernels.note(&asked, sites, site, &chosen);
        self.held.push(Arc::clone(&chosen));
        Ok(NodeWork::Kernel(site, chosen))
    }

    /// Returns whether launches of a region are better side by side than in a line.
    fn is_worth_tasks(&self, nested: &Inlined) -> bool {
        let n_threads = self.env.device.plugin().services().queue().n_threads();
        self.env.options.tasks == Policy::Auto
            && n_threads > 1
            && nested.gain_ns() >= GAIN_HAND_OVERS * self.env.rates().hand_over_ns
    }

    fn choose(&self, node: &Node, first: Option<usize>) -> Result<(usize, Arc<Chosen>)> {
        let mut refusals: Vec<Error> = Vec::new();
        let sites = self.env.sites_of(node);
        let first = first.filter(|site| sites.contains(site));
        for site in first.into_iter().chain(sites.filter(|&site| Some(site) != first)) {
            match kernel::choose(self.program, node, self.env.site(site).0, self.env.options.numerics) {
                Ok(chosen) => return Ok((site, Arc::new(chosen))),
                Err(error) if error.kind() == ErrorKind::UnsupportedOp => refusals.push(error),
                Err(error) => return Err(error),
            }
        }
        Err(kernel::all_refused(node, refusals))
    }
}
