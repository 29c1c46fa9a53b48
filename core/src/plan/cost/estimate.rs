//! Expected times of a program on each of several devices, and on all of them together, before anything is prepared.
//!
//! Each device is estimated alone, with another one for ops without a kernel there; and all of them together, each node
//! where it costs least. Nodes are fused for the first device of each candidate, as its plan would have them.

use crate::device::Device;
use crate::error::Result;
use crate::passes::Moment;
use crate::plan::compiled::claims::Claims;
use crate::plan::place::by_cost::{Assigned, Refused, Table};
use crate::plan::{Env, PlaceBy, Placement};
use crate::program::Program;
use crate::tensor::TensorType;
use std::sync::Arc;

/// One way to run a program.
#[derive(Clone)]
pub struct Candidate {
    /// The devices, and the rule that chooses among them.
    pub placement: Placement,
    /// Nanoseconds of all launches and copies; else the label of a node that none of the devices may take.
    pub ns: std::result::Result<f64, String>,
    /// Nodes on each of the devices, in the order of [`Placement::devices`].
    pub n_nodes: Vec<usize>,
    /// Nodes whose types are not known before they run: they are not in the estimate.
    pub n_unknown: usize,
}

/// Estimates a program for input types on each of some devices, in their order, then on all of them together.
/// `fallback` chooses the device for ops without a kernel. Pins apply to every placement. `env_of` returns the
/// environment for planning a placement.
///
/// # Errors
/// Errors of specialising.
pub fn candidates(
    program: &Program,
    types: &[TensorType],
    devices: &[Arc<Device>],
    fallback: Option<&Arc<Device>>,
    pins: &[(String, Arc<Device>)],
    env_of: &dyn Fn(&Placement) -> Arc<Env>,
) -> Result<Vec<Candidate>> {
    let placement = |device: &Arc<Device>, others: Vec<Arc<Device>>, by| Placement {
        device: Arc::clone(device),
        others,
        pins: pins.to_vec(),
        by,
    };
    // Constants are folded once, by the processor where there is one: it needs to compile nothing for it.
    let folds = fallback.or(devices.first());
    let Some(folds) = folds else { return Ok(Vec::new()) };
    let others = devices.iter().filter(|device| !Arc::ptr_eq(device, folds)).cloned().collect();
    let env = env_of(&placement(folds, others, PlaceBy::Order));
    let (specialised, _) = env.specialised(program, types)?;

    let mut alone = Vec::with_capacity(devices.len() + 1);
    let mut together: Option<Candidate> = None;
    for device in devices {
        let others: Vec<_> = devices.iter().filter(|other| !Arc::ptr_eq(other, device)).cloned().collect();
        let all = placement(device, others, PlaceBy::Cost);
        let env = env_of(&all);
        let mut program = specialised.clone();
        env.run_passes(&mut program, Moment::Device)?;
        let claims = Claims::of(&program, &env)?;
        let table = Table::new(&program, &env, &Refused::new(), &claims);
        let n_unknown = table.n_unknown(&program);

        let rest = fallback.filter(|fallback| !Arc::ptr_eq(fallback, device));
        let own = placement(device, rest.into_iter().cloned().collect(), PlaceBy::Order);
        let known = env.placement.devices();
        let position = |device: &&Arc<Device>| known.iter().position(|known| Arc::ptr_eq(known, device));
        let order: Vec<usize> = own.devices().iter().filter_map(position).collect();
        let found = table.in_order(&order);
        let n_nodes = |found: &Assigned, sites: &[usize]| {
            let count = |site: &usize| found.sites.iter().filter(|found| **found == Some(*site)).count();
            sites.iter().map(count).collect::<Vec<_>>()
        };
        let counts = found.as_ref().map(|found| n_nodes(found, &order)).unwrap_or_default();
        alone.push(Candidate { placement: own, ns: found.map(|found| found.ns), n_nodes: counts, n_unknown });

        if devices.len() > 1
            && let Some(found) = table.cheapest()
            && together.as_ref().and_then(|known| known.ns.as_ref().ok()).is_none_or(|&ns| found.ns < ns)
        {
            let sites: Vec<usize> = (0..env.n_sites()).collect();
            let n_nodes = n_nodes(&found, &sites);
            together = Some(Candidate { placement: all, ns: Ok(found.ns), n_nodes, n_unknown });
        }
    }
    alone.extend(together);
    Ok(alone)
}
