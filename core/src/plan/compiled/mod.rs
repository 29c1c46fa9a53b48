//! Parts of a program that a device's compiler takes whole.
//!
//! Nodes that were given to a compiler become programs: as few as the order of their dependencies allows, so that as little
//! as possible comes back to the host in between. Constants that a compiler wants as buffers are written once, into the
//! pool that all plans of the model share.

pub(crate) mod claims;
pub(super) mod programs;
mod store;
pub mod whole;

use crate::device::{Device, Executable, Graph};
use crate::error::{Error, ErrorKind, Result};
use crate::plan::Env;
use crate::plan::memory::constants::Placed;
use crate::plan::place::choose::NodeWork;
use crate::plan::section::Shaped;
use crate::program::{Node, Program, ValueId};
use crate::tensor::{TensorType, bytes_of, n_elements};
use claims::Claims;
use devbay_plugin_api::abi::NodeClaim;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// A program of a compiler's, and the values that it takes and gives.
pub struct CompiledStage {
    /// The program.
    pub executable: Arc<Executable>,
    /// Where the program came from.
    pub origin: Origin,
    /// Operands of a run, in order.
    pub(crate) takes: Box<[Taken]>,
    /// The values that its results are.
    pub results: Box<[ValueId]>,
    /// Types of the results.
    pub(crate) types: Box<[Shaped]>,
    /// Labels of its nodes, in order.
    pub labels: Box<[String]>,
    /// Arithmetic operations, as the compiler counts them.
    pub flops: u64,
    /// Nanoseconds that it should take, copies left out.
    pub cost_ns: f64,
}

/// Where a program came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// It was compiled now.
    Compiled,
    /// It was stored by an earlier compilation.
    Stored,
}

/// An operand of a run of a compiled program.
pub(crate) enum Taken {
    /// A constant that is on the device.
    Constant(Arc<Placed>),
    /// A value of the run.
    Value {
        id: ValueId,
        /// True if no later stage reads it.
        is_last: bool,
    },
}

impl CompiledStage {
    /// Returns the device.
    pub fn device(&self) -> &Arc<Device> {
        self.executable.device()
    }

    /// Leaks the memory that runs use, because the device may touch it at any later time (B24).
    pub(crate) fn leak(&self) {
        let constants = self.takes.iter().filter_map(|taken| match taken {
            Taken::Constant(placed) => Some(Arc::clone(placed)),
            Taken::Value { .. } => None,
        });
        std::mem::forget((Arc::clone(&self.executable), constants.collect::<Vec<_>>()));
    }

    /// Bytes that come in for each run, and that go out.
    pub fn traffic(&self) -> (u64, u64) {
        let values = self.takes.iter().zip(self.executable.inputs());
        let size = |ty: &TensorType| {
            let n = ty.known_shape().and_then(|shape| n_elements(&shape));
            n.and_then(|n| bytes_of(ty.dtype, n)).unwrap_or(0) as u64
        };
        let taken = values.filter(|(taken, _)| matches!(taken, Taken::Value { .. }));
        (taken.map(|(_, ty)| size(ty)).sum(), self.types.iter().map(|ty| ty.size as u64).sum())
    }

    /// Bytes of constants that are on the device for it.
    pub fn constant_bytes(&self) -> usize {
        let bytes = |taken: &Taken| match taken {
            Taken::Constant(placed) => placed.reference().length as usize,
            Taken::Value { .. } => 0,
        };
        self.takes.iter().map(bytes).sum()
    }
}

/// Assigns views to the device that makes the viewed value, or else to its first reader: a view is free for a compiler
/// as well as for the host.
pub(super) fn claim_views(program: &Program, works: &mut [NodeWork], claims: &Claims) {
    let nodes = &program.main.nodes;
    let site_of = |work: &NodeWork| match work {
        NodeWork::Claimed(site) => Some(*site),
        _ => None,
    };
    let mut maker_of: HashMap<ValueId, usize> = HashMap::new();
    for (at, node) in nodes.iter().enumerate() {
        if let NodeWork::View(_) = works[at]
            && let Some(&maker) = node.input(0).and_then(|id| maker_of.get(&id))
            && let Some(site) = site_of(&works[maker])
            && claims.get(site, at).is_some()
        {
            works[at] = NodeWork::Claimed(site);
        }
        maker_of.extend(node.outputs.iter().flatten().map(|&id| (id, at)));
    }
    // For each view of an input, the compiler that reads it first.
    let mut reader_of: HashMap<ValueId, usize> = HashMap::new();
    for (at, node) in nodes.iter().enumerate().rev() {
        if let NodeWork::View(_) = works[at]
            && node.input(0).is_some_and(|id| !maker_of.contains_key(&id))
            && let Some(&reader) = node.output(0).and_then(|id| reader_of.get(&id))
            && let Some(site) = site_of(&works[reader])
            && claims.get(site, at).is_some()
        {
            works[at] = NodeWork::Claimed(site);
        }
        reader_of.extend(node.inputs.iter().flatten().map(|&id| (id, at)));
    }
}

/// Puts nodes of one compiler next to each other, as far as their dependencies allow; the order of others stays.
pub(super) fn gather(program: &mut Program, works: Vec<NodeWork>, claims: &mut Claims) -> Vec<NodeWork> {
    let family = |work: &NodeWork| match work {
        NodeWork::Claimed(site) => Some(*site),
        _ => None,
    };
    let nodes = &program.main.nodes;
    let mut maker_of: HashMap<ValueId, usize> = HashMap::new();
    let mut waits = vec![0usize; nodes.len()];
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); nodes.len()];
    for (at, node) in nodes.iter().enumerate() {
        let captures = node.regions.iter().flat_map(|(_, region)| region.captures());
        for id in node.inputs.iter().copied().flatten().chain(captures) {
            if let Some(&maker) = maker_of.get(&id) {
                followers[maker].push(at);
                waits[at] += 1;
            }
        }
        maker_of.extend(node.outputs.iter().flatten().map(|&id| (id, at)));
    }
    let mut ready: BTreeSet<usize> = (0..nodes.len()).filter(|&at| waits[at] == 0).collect();
    let mut order = Vec::with_capacity(nodes.len());
    let mut current = None;
    while let Some(&first) = ready.first() {
        // The host's nodes come first: more of a compiler's may be ready behind them.
        let next = ready.iter().copied().find(|&at| family(&works[at]) == current);
        let at =
            next.or_else(|| ready.iter().copied().find(|&at| family(&works[at]).is_none())).unwrap_or(first);
        current = family(&works[at]);
        ready.remove(&at);
        order.push(at);
        for &follower in &followers[at] {
            waits[follower] -= 1;
            if waits[follower] == 0 {
                ready.insert(follower);
            }
        }
    }
    let mut nodes: Vec<Option<Node>> =
        std::mem::take(&mut program.main.nodes).into_iter().map(Some).collect();
    let mut works: Vec<Option<NodeWork>> = works.into_iter().map(Some).collect();
    program.main.nodes = order.iter().filter_map(|&at| nodes[at].take()).collect();
    claims.reorder(&order);
    order.iter().filter_map(|&at| works[at].take()).collect()
}

/// The part of a program that a stage is made of.
pub(super) struct Part<'a> {
    pub program: &'a Program,
    /// Its nodes, by their positions.
    pub range: std::ops::Range<usize>,
    /// Values that are read behind it, or are results of the program.
    pub later: &'a dyn Fn(&ValueId) -> bool,
    pub site: usize,
    /// The compiler's claim on each.
    pub claims: Vec<NodeClaim>,
}

/// Compiles a part, or loads its stored program.
///
/// # Errors
/// Errors that the compiler reports; out of memory for its constants.
pub(super) fn compile(part: &Part<'_>, env: &Env) -> Result<CompiledStage> {
    let Part { program, ref range, later, site, ref claims } = *part;
    let nodes: Vec<&Node> = program.main.nodes[range.clone()].iter().collect();
    let results: Vec<ValueId> =
        nodes.iter().flat_map(|node| node.outputs.iter().copied().flatten()).filter(|id| later(id)).collect();
    let labels: Box<[String]> = nodes.iter().map(|node| node.label()).collect();
    let graph = Graph::new(program, nodes, &results);
    let is_last = |number: &u32| !later(&graph.values()[*number as usize]);
    let donors: Vec<u32> = graph.inputs().iter().copied().filter(is_last).collect();
    let (device, pool) = env.site(site);
    let (executable, origin) = programs::make(&graph, device, &donors, env)?;
    let take = |&number: &u32| -> Result<Taken> {
        let id = graph.values()[number as usize];
        Ok(match program.constant(id) {
            Some(tensor) => Taken::Constant(pool.place(tensor)?),
            None => Taken::Value { id, is_last: !later(&id) },
        })
    };
    let takes = executable.takes().iter().map(take).collect::<Result<_>>()?;
    let shaped = |&id: &ValueId| {
        let ty = program.value(id).ty.as_ref();
        ty.and_then(|ty| Shaped::new(ty.dtype, &ty.known_shape()?)).ok_or_else(|| {
            let text = format!("result `{}` is larger than memory", program.value(id).name);
            Error::new(ErrorKind::OutOfMemory, text)
        })
    };
    let types = results.iter().map(shaped).collect::<Result<_>>()?;
    Ok(CompiledStage {
        executable: Arc::new(executable),
        origin,
        takes,
        results: results.into(),
        types,
        labels,
        flops: claims.iter().map(|claim| claim.flops).fold(0, u64::saturating_add),
        cost_ns: claims.iter().map(|claim| env.rates_of(site).compiled(claim)).sum(),
    })
}
