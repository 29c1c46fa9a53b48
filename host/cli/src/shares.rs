//! What of a plan's work each device does, for a person and as JSON.

use crate::table;
use devbay_host::core::device::Device;
use devbay_host::core::plan::Plan;
use serde_json::{Value, json};

/// The arithmetic of a plan, device by device, as `1.2 G operations: 99.5 % on wgpu:0, 0.5 % on cpu:0`, and what is
/// copied between their memories; None if no kernel says.
pub fn text(plan: &Plan) -> Option<String> {
    let flops = plan.flops();
    let all: u64 = flops.iter().map(|(_, flops)| flops).sum();
    if all == 0 {
        return None;
    }
    let (unit, name) = match all {
        1_000_000_000.. => (1e9, " G"),
        1_000_000.. => (1e6, " M"),
        1_000.. => (1e3, " k"),
        _ => (1.0, ""),
    };
    let share = |(device, flops): &(&Device, u64)| {
        format!("{:.1} % on {}", *flops as f64 * 100.0 / all as f64, device.name())
    };
    let list: Vec<String> = flops.iter().map(share).collect();
    let (n_copies, bytes) = plan.copies().fold((0, 0), |(n, sum), (_, bytes)| (n + 1, sum + bytes));
    let copies = match n_copies {
        0 => String::new(),
        n => format!("; {n} copies between devices, {}", table::bytes(bytes)),
    };
    Some(format!("{:.1}{name} operations: {}{copies}", all as f64 / unit, list.join(", ")))
}

/// The same as data: operations by device, and copies.
pub fn json(plan: &Plan) -> Value {
    let flops: serde_json::Map<String, Value> =
        plan.flops().into_iter().map(|(device, flops)| (device.name().to_owned(), flops.into())).collect();
    let (n, bytes) = plan.copies().fold((0u64, 0), |(n, sum), (_, bytes)| (n + 1, sum + bytes));
    json!({ "flops": flops, "copies": n, "copied_bytes": bytes })
}
