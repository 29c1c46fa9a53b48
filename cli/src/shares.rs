//! Each device's share of a plan's work with the reasons, and failed devices, as text and as JSON.

use crate::table;
use devbay_host::internals::auto::Auto;
use devbay_host::internals::core::plan::Plan;
use devbay_host::internals::core::plan::estimate::Candidate;
use devbay_host::{Device, Failure, PlaceBy, Session};
use serde_json::{Value, json};

/// Returns the arithmetic of a plan by device, as `1.2 G operations: 99.5 % on wgpu:0, 0.5 % on cpu:0`, and the bytes copied
/// between their memories; None if no kernel reports operations. Stages planned at run time are excluded, with a note.
pub fn text(plan: &Plan) -> Option<String> {
    let flops = plan.flops();
    let all: u64 = flops.iter().map(|(_, flops)| flops).sum();
    if all == 0 {
        return None;
    }
    let share = |(device, flops): &(&Device, u64)| {
        format!("{:.1} % on {}", *flops as f64 * 100.0 / all as f64, device.name())
    };
    let list: Vec<String> = flops.iter().map(share).collect();
    let (n_copies, bytes) = plan.copies().fold((0, 0), |(n, sum), (_, bytes)| (n + 1, sum + bytes));
    let between = if list.len() > 1 { " between devices" } else { "" };
    let copies = match n_copies {
        0 => String::new(),
        1 => format!("; 1 copy{between}, {}", table::bytes(bytes)),
        n => format!("; {n} copies{between}, {}", table::bytes(bytes)),
    };
    let count = table::operations(all);
    let of = if plan.is_open() { " before the parts that are planned as they run" } else { "" };
    Some(format!("{count} operations{of}: {}{copies}", list.join(", ")))
}

/// Returns the device that a plan's arithmetic is on, with its product: the session's, or if all runs elsewhere, that one.
pub fn headline<'a>(plan: &'a Plan, device: &'a Device) -> &'a Device {
    let flops = plan.flops();
    match flops.iter().any(|(worker, _)| worker.name() == device.name()) {
        true => device,
        false => flops.into_iter().max_by_key(|(_, flops)| *flops).map_or(device, |(worker, _)| worker),
    }
}

/// Returns the use and the cost of plans, as `3 plans made in 95.1 ms (specialising 20.0 ms, ...)`.
pub fn plans_text(session: &Session) -> String {
    let plans = session.plan_statistics();
    let time = |ns: u64| table::duration(ns as f64);
    format!(
        "{} plans made in {} (specialising {}, passes {}, planning {}), {} of at most {} kept, {} thrown out; \
         {} kernels prepared, {} shared; runs: {} found theirs, {} waited for it",
        plans.made,
        time(plans.making_ns()),
        time(plans.specialising_ns),
        time(plans.passes_ns),
        time(plans.planning_ns),
        plans.kept,
        plans.kept_max,
        plans.evicted,
        plans.kernels.prepared,
        plans.kernels.shared,
        plans.hits,
        plans.misses
    )
}

/// Returns the use and the cost of plans, as JSON.
pub fn plans(session: &Session) -> Value {
    let plans = session.plan_statistics();
    json!({
        "hits": plans.hits, "misses": plans.misses, "made": plans.made, "failed": plans.failed,
        "evicted": plans.evicted, "kept": plans.kept, "kept_max": plans.kept_max,
        "specialising_ns": plans.specialising_ns, "passes_ns": plans.passes_ns, "planning_ns": plans.planning_ns,
        "kernels_prepared": plans.kernels.prepared, "kernels_shared": plans.kernels.shared,
    })
}

/// Returns the reasons for choosing devices by estimate, as JSON; null if they were chosen otherwise.
pub fn placement(auto: Option<&Auto>) -> Value {
    let Some(auto) = auto else { return Value::Null };
    let candidate = |(i, found): (usize, &Candidate)| {
        let devices = found.placement.devices();
        let nodes =
            devices.iter().zip(&found.n_nodes).map(|(device, n)| (device.name().to_owned(), json!(n)));
        json!({
            "devices": devices.iter().map(|device| device.name()).collect::<Vec<_>>(),
            "by": match found.placement.by { PlaceBy::Order => "order", PlaceBy::Cost => "cost" },
            "nodes": nodes.collect::<serde_json::Map<String, Value>>(), "unknown_nodes": found.n_unknown,
            "estimate_ns": found.ns.as_ref().ok(), "no_kernel_for": found.ns.as_ref().err(), "chosen": i == auto.chosen,
        })
    };
    let candidates: Vec<Value> = auto.candidates.iter().enumerate().map(candidate).collect();
    json!({ "candidates": candidates, "unmeasured": auto.unmeasured() })
}

/// Returns the failed devices and their replacements.
pub fn failures(session: &Session) -> Value {
    let failure = |failure: &Failure| {
        let (error, place) = (&failure.error, failure.error.place());
        json!({
            "device": failure.device, "plugin": place.plugin, "node": place.node, "kind": error.kind().name(),
            "error": error.to_string(), "went_on_with": failure.went_on_with,
        })
    };
    session.failures().iter().map(failure).collect()
}

/// Returns each device's work as JSON: operations by device, and copies.
pub fn json(plan: &Plan) -> Value {
    let flops: serde_json::Map<String, Value> =
        plan.flops().into_iter().map(|(device, flops)| (device.name().to_owned(), flops.into())).collect();
    let (n, bytes) = plan.copies().fold((0u64, 0), |(n, sum), (_, bytes)| (n + 1, sum + bytes));
    json!({ "flops": flops, "copies": n, "copied_bytes": bytes })
}
