//! Claims: what a device's compiler says of the nodes of a graph (B23).

use super::super::kernel::UNKNOWN_ATTRIBUTE;
use super::model::Graph;
use super::table;
use crate::case::Case;
use crate::rig::{Detail, Device, Rig, status_name};
use crate::verdict::{Outcome, Why, ensure, not_run};
use devbay_plugin_api::abi::*;
use std::ptr::null;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "compile.claims",
        rules: &["B5", "B23"],
        requires: "claims are 0 or 1, and do not change between calls; a node with an unknown domain or \
                   attribute is unclaimed, without an error",
        needs: &["devices.list", "negotiate.extensions"],
        run: claims,
    },
    Case {
        id: "compile.claims.company",
        rules: &["B23"],
        requires: "a node's claim does not depend on the graph's other nodes",
        needs: &["compile.claims"],
        run: company,
    },
    Case {
        id: "compile.claims.refusals",
        rules: &["B18", "B23"],
        requires: "a missing graph, or a number of claims other than the number of nodes, is refused with INVALID",
        needs: &["compile.claims"],
        run: refusals,
    },
];

type ClaimFn = unsafe extern "C" fn(
    *mut devbay_plugin_api::abi::Device,
    *const GraphView,
    *mut NodeClaim,
    u64,
    *mut ErrorDetail,
) -> Status;

fn function(device: &Device<'_>) -> Outcome<ClaimFn> {
    match table(device)?.claim {
        Some(claim) => Ok(claim),
        None => not_run(Why::NotOffered, "the compiler does not accept graphs"),
    }
}

/// Claims on the nodes of a graph: None for a node without one, else its group.
pub(super) type Claimed = Vec<Option<u32>>;

/// Returns the nodes that are compiled or not as one: those of a group, and each other one by itself.
pub(super) fn units(claims: &Claimed) -> Vec<Vec<usize>> {
    let mut units: Vec<(u32, Vec<usize>)> = Vec::new();
    for (position, claim) in claims.iter().enumerate() {
        let group = claim.unwrap_or(0);
        match units.iter_mut().find(|(of, _)| group != 0 && *of == group) {
            Some((_, unit)) => unit.push(position),
            None => units.push((group, vec![position])),
        }
    }
    units.into_iter().map(|(_, unit)| unit).collect()
}

/// Returns the claims on the nodes of a graph.
pub(super) fn ask(device: &Device<'_>, graph: &Graph) -> Outcome<Claimed> {
    let claim = function(device)?;
    let untouched = NodeClaim { is_claimed: u32::MAX, ..NodeClaim::default() };
    let mut claims = vec![untouched; graph.nodes.len()];
    let before = graph.clone();
    let mut detail = Detail::new();
    let status = graph.with_abi(|view| {
        // SAFETY: the plugin's function with its own device; graph and claims are ours, an element for each node.
        unsafe { claim(device.info.handle, view, claims.as_mut_ptr(), claims.len() as u64, &mut detail.raw) }
    });
    ensure!(status == DEVBAY_STATUS_OK, "claim returned {}", detail.describe(status));
    let is_same = |value: u32| graph.constant(value) == before.constant(value);
    ensure!((0..graph.values.len() as u32).all(is_same), "claim changed a constant");
    for (node, claim) in graph.nodes.iter().zip(&claims) {
        ensure!(claim.is_claimed <= 1, "the claim of {} is {}", node.op, claim.is_claimed);
        ensure!(
            claim.is_claimed == 1 || claim.group == 0,
            "{} is not claimed, but belongs to group {}",
            node.op,
            claim.group
        );
    }
    Ok(claims.iter().map(|claim| (claim.is_claimed == 1).then_some(claim.group)).collect())
}

/// Returns the part of the sample that a device's compiler claims, as a graph.
pub(super) fn claimed(device: &Device<'_>) -> Outcome<Graph> {
    let whole = Graph::sample();
    let claims = ask(device, &whole)?;
    if !claims.iter().any(Option::is_some) {
        return not_run(Why::NotOffered, "the compiler does not claim MatMul, Add, Relu, Mul or Sub of f32");
    }
    Ok(whole.part(|position| claims[position].is_some()))
}

/// The sample with a node that a device's compiler does not claim, if there is one: the node of no known domain.
pub(super) fn with_unclaimed(device: &Device<'_>) -> Outcome<Graph> {
    let graph = Graph::with_unknown();
    let claims = ask(device, &graph)?;
    let last = graph.nodes.len() - 1;
    // Leaves out the other unclaimed nodes, so that the refusal is for the one node.
    Ok(graph.part(|position| position == last || claims[position].is_some()))
}

fn claims(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let graph = Graph::with_unknown();
        let claims = ask(device, &graph)?;
        ensure!(claims == ask(device, &graph)?, "a second call returned different claims");
        ensure!(claims[claims.len() - 1].is_none(), "a node of an unknown domain is claimed");
        let graph = Graph::with_attributes();
        let claims = ask(device, &graph)?;
        for (node, claim) in graph.nodes.iter().zip(claims) {
            ensure!(claim.is_none(), "{} with the unknown attribute {UNKNOWN_ATTRIBUTE} is claimed", node.op);
        }
        Ok(())
    })
}

fn company(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let whole = Graph::with_unknown();
        let claims = ask(device, &whole)?;
        let n = whole.nodes.len();
        // The number of a group may be another in another graph.
        let words = |claim: Option<u32>| match claim {
            None => "not claimed",
            Some(0) => "claimed",
            Some(_) => "claimed in a group",
        };
        for unit in units(&claims) {
            let op = whole.nodes[unit[0]].op;
            let alone = ask(device, &whole.part(|position| unit.contains(&position)))?;
            for (&position, found) in unit.iter().zip(alone) {
                ensure!(
                    words(found) == words(claims[position]),
                    "{} is {} alone, and {} in a graph of {n} nodes",
                    whole.nodes[position].op,
                    words(found),
                    words(claims[position])
                );
            }
            let others = ask(device, &whole.part(|position| !unit.contains(&position)))?;
            let expected = (0..n).filter(|position| !unit.contains(position));
            for (position, found) in expected.zip(others) {
                ensure!(
                    words(found) == words(claims[position]),
                    "{} is {} without a {op} in its graph, and {} with it",
                    whole.nodes[position].op,
                    words(found),
                    words(claims[position])
                );
            }
        }
        Ok(())
    })
}

fn refusals(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let claim = function(device)?;
        let graph = Graph::sample();
        let n = graph.nodes.len() as u64;
        // Room for more than is asked for, so that a plugin that does not look does no harm.
        let mut claims = vec![NodeClaim::default(); graph.nodes.len() + 8];
        let mut refused = |view: *const GraphView, n_claims: u64, what: &str| {
            let mut detail = Detail::new();
            // SAFETY: the plugin's function with its own device; graph and claims are ours, with more room than it says.
            let status =
                unsafe { claim(device.info.handle, view, claims.as_mut_ptr(), n_claims, &mut detail.raw) };
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "{what}: expected INVALID, found {}",
                status_name(status)
            );
            Ok(())
        };
        refused(null(), n, "no graph")?;
        graph.with_abi(|view| {
            for n_claims in [0, n - 1, n + 1] {
                refused(view, n_claims, &format!("{n_claims} claims for {n} nodes"))?;
            }
            Ok(())
        })
    })
}
