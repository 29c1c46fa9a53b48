//! The nodes that the compilers among a plan's devices take.

use crate::device::Graph;
use crate::error::Result;
use crate::plan::{Env, is_typed};
use crate::program::{Program, ValueId};
use devbay_plugin_api::abi::NodeClaim;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A compiler's claims: for each device by its position, and each node of the main region by its own.
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
    /// Errors that a plugin reports.
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

    /// Returns the claim of a device's compiler on a node; None if it does not take it.
    pub fn get(&self, site: usize, at: usize) -> Option<&NodeClaim> {
        self.sites.get(site)?.get(at)?.as_ref()
    }

    /// Takes back the claims of nodes that a compiler takes as a group alone, where the parts that are to be compiled, a
    /// device and a range of nodes each, have some of them and not all. Whether there were any.
    pub fn drop_torn(&mut self, parts: impl Iterator<Item = (usize, Range<usize>)>) -> bool {
        let parts: Vec<_> = parts.collect();
        let mut has_dropped = false;
        for (site, claims) in self.sites.iter_mut().enumerate() {
            let part_of = |at: usize| parts.iter().position(|(of, nodes)| *of == site && nodes.contains(&at));
            let group_of =
                |claim: &Option<NodeClaim>| claim.map(|claim| claim.group).filter(|&group| group != 0);
            // The part of each group's first node.
            let mut seen: HashMap<u32, Option<usize>> = HashMap::new();
            let mut torn: HashSet<u32> = HashSet::new();
            for (at, group) in
                claims.iter().enumerate().filter_map(|(at, claim)| Some((at, group_of(claim)?)))
            {
                let part = part_of(at);
                if *seen.entry(group).or_insert(part) != part {
                    torn.insert(group);
                }
            }
            has_dropped |= !torn.is_empty();
            for claim in
                claims.iter_mut().filter(|claim| group_of(claim).is_some_and(|group| torn.contains(&group)))
            {
                *claim = None;
            }
        }
        has_dropped
    }

    /// Follows nodes to other places: at each place the one that was at `order`'s.
    pub fn reorder(&mut self, order: &[usize]) {
        for claims in self.sites.iter_mut().filter(|claims| !claims.is_empty()) {
            *claims = order.iter().map(|&at| claims[at]).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claims(groups: &[Option<u32>]) -> Vec<Option<NodeClaim>> {
        let claim = |group| NodeClaim { is_claimed: 1, group, ..NodeClaim::default() };
        groups.iter().map(|group| group.map(claim)).collect()
    }

    /// Returns the claims by these groups that are left on the second of two devices, when these parts are compiled.
    fn left(groups: &[Option<u32>], parts: &[(usize, Range<usize>)]) -> (bool, Vec<bool>) {
        let mut all = Claims { sites: vec![Vec::new(), claims(groups)] };
        let has_dropped = all.drop_torn(parts.iter().cloned());
        (has_dropped, all.sites[1].iter().map(Option::is_some).collect())
    }

    #[test]
    fn a_group_that_does_not_come_together_is_taken_back() {
        let groups = [Some(0), Some(7), Some(7), Some(8), Some(8)];
        // Whole, whether they share a part or not, or not compiled at all.
        assert_eq!(left(&groups, &[(1, 0..5)]), (false, vec![true; 5]));
        assert_eq!(left(&groups, &[(1, 0..3), (1, 3..5)]), (false, vec![true; 5]));
        assert_eq!(left(&groups, &[]), (false, vec![true; 5]));
        // Between two parts, between a part and nodes that are not compiled, and between two devices.
        let torn = (true, vec![true, false, false, true, true]);
        assert_eq!(left(&groups, &[(1, 0..2), (1, 2..5)]), torn);
        assert_eq!(left(&groups, &[(1, 2..5)]), torn);
        assert_eq!(left(&groups, &[(0, 0..2), (1, 2..5)]), torn);
        // Nodes of no group are compiled one by one.
        assert_eq!(left(&[Some(0), Some(0)], &[(1, 0..1)]), (false, vec![true; 2]));
    }
}
