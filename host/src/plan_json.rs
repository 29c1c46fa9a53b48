//! A plan as JSON, with the content of its text form.

use devbay_core::plan::cost::{Rates, WorkRates};
use devbay_core::plan::report::{
    ControlReport, InlinedReport, PlanReport, RatesFrom, SectionReport, StageReport, StepReport, TaskReport,
};
use devbay_core::plan::section::StepKind;
use devbay_core::plan::tasks::OneTask;
use devbay_core::plan::work::WorkKind;
use serde_json::{Value, json};

/// Returns a plan's report as JSON.
pub fn json(report: &PlanReport) -> Value {
    let conditions = &report.conditions;
    let Rates { flops_per_ns, bytes_per_ns, launch_ns, hand_over_ns, by_work, to_device, from_device } =
        conditions.rates;
    let work = WorkKind::ALL.into_iter().zip(by_work).filter_map(|(kind, rates)| {
        let WorkRates { flops_per_ns, bytes_per_ns, launch_ns } = rates?;
        let rates =
            json!({ "flops_per_ns": flops_per_ns, "bytes_per_ns": bytes_per_ns, "launch_ns": launch_ns });
        Some((kind.name().to_owned(), rates))
    });
    let work: serde_json::Map<String, Value> = work.collect();
    let from = match conditions.rates_from {
        RatesFrom::Options => "options",
        RatesFrom::Measured => "measured",
        RatesFrom::Default => "default",
    };
    let inputs: Vec<Value> =
        report.inputs.iter().map(|(name, ty)| json!({ "name": name, "type": ty })).collect();
    let stages: Vec<Value> = report.stages.iter().map(stage).collect();
    json!({
        "name": report.name, "device": conditions.device, "threads": conditions.n_threads,
        "rates": {
            "flops_per_ns": flops_per_ns, "bytes_per_ns": bytes_per_ns, "launch_ns": launch_ns,
            "hand_over_ns": hand_over_ns, "to_device_ns": to_device.latency_ns,
            "to_device_bytes_per_ns": to_device.bytes_per_ns, "from_device_ns": from_device.latency_ns,
            "from_device_bytes_per_ns": from_device.bytes_per_ns, "by_work": work, "from": from,
        },
        "inputs": inputs, "launches": report.n_launches(), "measured": report.n_measured(), "work_ns": report.work_ns(), "stages": stages,
    })
}

fn stage(stage: &StageReport) -> Value {
    match stage {
        StageReport::Section(section) => self::section(section),
        StageReport::Compiled(program) => json!({
            "kind": "compiled", "device": program.device, "nodes": program.nodes, "stored": program.is_stored,
            "flops": program.flops, "work_ns": program.cost_ns, "constant_bytes": program.constants,
            "bytes_in": program.bytes.0, "bytes_out": program.bytes.1,
        }),
        StageReport::Control(control) => self::control(control),
        StageReport::Eager { node } => json!({ "kind": "eager", "node": node }),
    }
}

fn control(control: &ControlReport) -> Value {
    let regions: Vec<Value> = control
        .regions
        .iter()
        .map(|region| {
            let plans: Vec<Value> = region.plans.iter().map(json).collect();
            json!({ "name": region.name, "planned": !plans.is_empty(), "plans": plans })
        })
        .collect();
    json!({ "kind": "control", "node": control.node, "regions": regions })
}

fn section(section: &SectionReport) -> Value {
    let tasks: Vec<Value> = section.tasks.iter().map(|task| self::task(section, task)).collect();
    json!({
        "kind": "section", "device": section.device, "tasks": tasks,
        "one_task": section.one_task.as_ref().map(|why| json!({ "kind": kind(why), "reason": why.to_string() })),
        "work_ns": section.work_ns, "path_ns": section.path_ns, "launch_path_ns": section.launch_path_ns,
        "memory": {
            "arena_bytes": section.memory.arena, "streamed_bytes": section.memory.streamed, "arena_lower_bound_bytes": section.memory.lower_bound,
            "constant_bytes": section.memory.constants,
            "constant_bytes_by_place": {
                "in_file": section.memory.constants_by_place.in_file, "made": section.memory.constants_by_place.made,
                "packed": section.memory.constants_by_place.packed, "uploaded": section.memory.constants_by_place.uploaded,
            },
        },
    })
}

fn task(section: &SectionReport, task: &TaskReport) -> Value {
    let share = |step: &StepReport| {
        let mut value = self::step(step);
        value["share"] = json!(section.share(step.cost_ns));
        value
    };
    let steps: Vec<Value> = task.steps.iter().map(share).collect();
    json!({
        "cost_ns": task.cost_ns, "share": section.share(task.cost_ns), "level": task.level,
        "on_longest_path": task.on_path, "arrival": task.is_arrival, "successors": task.succs, "steps": steps,
    })
}

fn step(step: &StepReport) -> Value {
    let region = |region: &InlinedReport| {
        let steps: Vec<Value> = region.steps.iter().map(self::step).collect();
        json!({ "name": region.name, "steps": steps })
    };
    let regions: Vec<Value> = step.regions.iter().map(region).collect();
    let kind = match step.kind {
        StepKind::Kernel => "kernel",
        StepKind::Nested | StepKind::Control => "control",
        StepKind::Copy => "copy",
        StepKind::Order => "order",
    };
    let mut value = json!({
        "node": step.node, "kernel": step.kernel, "kind": kind, "cost_ns": step.cost_ns,
        "cost_from": step.cost_from.name(), "regions": regions,
    });
    if let Some(device) = &step.device {
        value["device"] = json!(device);
    }
    value
}

fn kind(why: &OneTask) -> &'static str {
    match why {
        OneTask::Asked => "asked",
        OneTask::Asynchronous => "asynchronous",
        OneTask::Serialised => "serialised",
        OneTask::OneThread => "one-thread",
        OneTask::OneLaunch => "one-launch",
        OneTask::Cheap { .. } => "cheap",
        OneTask::Narrow => "narrow",
    }
}
