//! Chooses the cheapest way to run a model on several devices by estimates, and explains the choice.
//!
//! Estimates each device alone, with the processor running nodes that it has no kernel for, and all devices together, with
//! each node where launches and copies cost least (`docs/plans.md`). Kernels only report their cost and nothing is prepared,
//! so devices that lose cost next to no time.

use crate::model::Model;
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::plan::estimate::{self, Candidate};
use devbay_core::plan::{Env, PlaceBy, Placement, PlanOptions};
use devbay_core::tensor::TensorType;
use devbay_core::units::duration;
use devbay_plugin_api::abi::DEVBAY_DEVICE_KIND_CPU;
use std::sync::Arc;

/// Constraints on the choice.
#[derive(Clone, Copy, Default)]
pub struct Allowed<'a> {
    /// Nodes by name, and the device that each must run on.
    pub pins: &'a [(String, Arc<Device>)],
    /// True if a device must itself run every node that is not pinned elsewhere.
    pub whole: bool,
}

/// A choice among the ways to run a model.
pub struct Auto {
    /// All candidates: each device alone, in their order, then all together.
    pub candidates: Vec<Candidate>,
    /// Position of the cheapest candidate; the first one on a tie.
    pub chosen: usize,
}

/// Chooses the cheapest way to run a model on devices for inputs of given types, in the model's order.
///
/// # Errors
/// [`ErrorKind::NotFound`] if no device works; [`ErrorKind::UnsupportedOp`] if neither one device nor all together take all
/// nodes, with the ops that each lacks; else the model's error for these types.
pub fn choose(
    model: &Model,
    devices: &[Arc<Device>],
    types: &[TensorType],
    allowed: Allowed<'_>,
    options: &PlanOptions,
) -> Result<Auto> {
    let works = |device: &&Arc<Device>| !device.is_lost() && !device.plugin().is_poisoned();
    let devices: Vec<Arc<Device>> = devices.iter().filter(works).cloned().collect();
    if devices.is_empty() {
        return Err(Error::new(ErrorKind::NotFound, "there is no device that works"));
    }
    let is_processor = |device: &&Arc<Device>| {
        let about = device.about();
        about.kind == DEVBAY_DEVICE_KIND_CPU && about.inline && about.host_refs
    };
    let fallback = devices.iter().find(is_processor).filter(|_| !allowed.whole);
    let unit = model.placed(
        &Placement { pins: allowed.pins.to_vec(), ..Placement::on(fallback.unwrap_or(&devices[0])) },
        options.clone(),
    )?;
    let env_of = |placement: &Placement| Env::placed(placement, options.clone());
    let mut candidates =
        estimate::candidates(unit.program(), types, &devices, fallback, allowed.pins, &env_of)?;
    if allowed.whole {
        candidates.retain(|candidate| candidate.placement.by == PlaceBy::Order);
    }
    let costs = candidates.iter().enumerate().filter_map(|(i, found)| Some((*found.ns.as_ref().ok()?, i)));
    let cheapest = costs.min_by(|a, b| a.0.total_cmp(&b.0));
    match cheapest {
        Some((_, chosen)) => Ok(Auto { candidates, chosen }),
        None => {
            let lacks = candidates.iter().filter_map(|candidate| {
                let node = candidate.ns.as_ref().err()?;
                Some(format!("{} has no kernel for {node}", candidate.placement.device.name()))
            });
            let lacks: Vec<String> = lacks.collect();
            let text = format!("no device can run the model; {}", lacks.join("; "));
            Err(Error::new(ErrorKind::UnsupportedOp, text))
        }
    }
}

impl Auto {
    /// Returns the devices to run the model on, and the rule that places nodes among them.
    pub fn placement(&self) -> &Placement {
        &self.candidates[self.chosen].placement
    }

    /// Returns the candidates' devices that have no measured rates.
    pub fn unmeasured(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for device in self.candidates.iter().flat_map(|candidate| candidate.placement.devices()) {
            if device.rates().is_none() && !names.contains(&device.name()) {
                names.push(device.name());
            }
        }
        names
    }

    /// Returns the reason in one line: the choice with its estimate, then the other candidates; a second line if estimates
    /// rest on default rates.
    pub fn reason(&self) -> String {
        let own = &self.candidates[self.chosen];
        let others = self.candidates.iter().enumerate().filter(|(i, _)| *i != self.chosen);
        let others: Vec<String> =
            others.map(|(_, other)| format!("{}: {}", title(other), time(other))).collect();
        let mut text = format!("chosen as the cheapest by estimate: {}, {}", title(own), time(own));
        if !others.is_empty() {
            text.push_str(&format!("; {}", others.join("; ")));
        }
        let unmeasured = self.unmeasured();
        if !unmeasured.is_empty() {
            let names = unmeasured.join(", ");
            text.push_str(&format!(
                "\nrates of {names} are guesses by kind; `devbay devices --calibrate` measures them"
            ));
        }
        text
    }
}

/// Returns a candidate's devices, with the number of nodes on each if there are several.
pub fn title(candidate: &Candidate) -> String {
    let devices = candidate.placement.devices();
    let count = |(device, n): (&&Arc<Device>, &usize)| match n {
        1 => format!("1 node on {}", device.name()),
        n => format!("{n} nodes on {}", device.name()),
    };
    let used = devices.iter().zip(&candidate.n_nodes).filter(|(_, n)| **n > 0);
    let used: Vec<String> = used.map(count).collect();
    match candidate.placement.by {
        PlaceBy::Order if used.len() < 2 => devices[0].name().to_owned(),
        PlaceBy::Order => format!("{} ({})", devices[0].name(), used.join(", ")),
        PlaceBy::Cost if used.len() < 2 => format!("together (all {})", used.join("")),
        PlaceBy::Cost => format!("together ({})", used.join(", ")),
    }
}

/// Returns a candidate's estimate, or why it has none.
pub fn time(candidate: &Candidate) -> String {
    let unknown = match candidate.n_unknown {
        0 => String::new(),
        n => format!(" and {n} nodes that depend on data"),
    };
    match &candidate.ns {
        Ok(ns) => format!("{}{unknown}", duration(*ns)),
        Err(node) => format!("no kernel for {node}"),
    }
}
