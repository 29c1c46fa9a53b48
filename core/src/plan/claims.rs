//! What the compilers among a plan's devices take of its nodes.

use super::{Env, is_typed};
use crate::device::Graph;
use crate::error::Result;
use crate::program::{Program, ValueId};
use devbay_plugin_api::abi::NodeClaim;
use std::collections::HashSet;

/// For each device by its position, and each node of the main region by its own, what a compiler says of it.
#[derive(Default)]
pub struct Claims {
    /// Empty for devices without a compiler of graphs.
    sites: Vec<Vec<Option<NodeClaim>>>,
}

impl Claims {
    /// Shows a program to every compiler among the devices; nodes that have regions, or whose types are not known, are
    /// left out.
    ///
    /// # Errors
    /// What a plugin says.
    pub fn of(program: &Program, env: &Env) -> Result<Self> {
        if !(0..env.n_sites()).any(|site| env.site(site).0.takes_graphs()) {
            return Ok(Self::default());
        }
        let is_shown = |&at: &usize| {
            let node = &program.main.nodes[at];
            node.regions.is_empty() && is_typed(program, node)
        };
        let shown: Vec<usize> = (0..program.main.nodes.len()).filter(is_shown).collect();
        let nodes: Vec<_> = shown.iter().map(|&at| &program.main.nodes[at]).collect();
        let made: HashSet<ValueId> =
            nodes.iter().flat_map(|node| node.outputs.iter().copied().flatten()).collect();
        let outputs: Vec<ValueId> =
            program.main.outputs.iter().copied().filter(|id| made.contains(id)).collect();
        let graph = Graph::new(program, nodes, &outputs);
        let mut sites = Vec::with_capacity(env.n_sites());
        for site in 0..env.n_sites() {
            let device = env.site(site).0;
            let mut claims = Vec::new();
            if device.takes_graphs() {
                claims.resize(program.main.nodes.len(), None);
                for (&at, claim) in shown.iter().zip(device.claim(&graph)?) {
                    claims[at] = claim;
                }
            }
            sites.push(claims);
        }
        Ok(Self { sites })
    }

    /// What a device's compiler says of a node; None if it does not take it.
    pub fn get(&self, site: usize, at: usize) -> Option<&NodeClaim> {
        self.sites.get(site)?.get(at)?.as_ref()
    }

    /// Follows nodes to other places: at each place the one that was at `order`'s.
    pub fn reorder(&mut self, order: &[usize]) {
        for claims in self.sites.iter_mut().filter(|claims| !claims.is_empty()) {
            *claims = order.iter().map(|&at| claims[at]).collect();
        }
    }
}
