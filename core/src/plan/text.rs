//! The text form of plan reports, for people and golden files. Names come from models: characters that would break a
//! line or a terminal are escaped.

use super::order::tasks::OneTask;
use super::report::{
    CompiledReport, ControlReport, PlanReport, RatesFrom, SectionReport, StageReport, StepReport,
};
use super::section::{ConstantBytes, StepKind};
use crate::units::{bytes, count, duration, percent};
use std::borrow::Cow;
use std::fmt;

/// Longer labels are not waited for when columns are aligned.
const LABEL_WIDTH_MAX: usize = 60;

impl fmt::Display for PlanReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let conditions = &self.conditions;
        let (rates, threads) = (&conditions.rates, conditions.n_threads);
        writeln!(
            f,
            "plan of \"{}\" on {}, {}",
            plain(&self.name),
            plain(&conditions.device),
            count(threads, "thread")
        )?;
        writeln!(
            f,
            "  rates   {} operations and {} bytes a nanosecond; {} a launch, {} a hand-over; {}",
            significant(rates.flops_per_ns),
            significant(rates.bytes_per_ns),
            fine(rates.launch_ns),
            duration(rates.hand_over_ns),
            match conditions.rates_from {
                RatesFrom::Options => "given",
                RatesFrom::Measured => "measured",
                RatesFrom::Default => "defaults, not measured",
            }
        )?;
        for (name, ty) in &self.inputs {
            writeln!(f, "  input   {} {ty}", plain(name))?;
        }
        let launches = self.n_launches();
        write!(f, "  work    {} in {}", duration(self.work_ns()), count(launches, "launch"))?;
        match conditions.has_feedback {
            true => writeln!(f, ", {} of them measured", self.n_measured())?,
            false => writeln!(f)?,
        }
        stages(self, "", f)
    }
}

fn stages(report: &PlanReport, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, stage) in report.stages.iter().enumerate() {
        match stage {
            StageReport::Section(stage) => {
                let (launches, tasks) = (stage.n_launches(), stage.tasks.len());
                writeln!(
                    f,
                    "\n{indent}stage {i}: section on {}, {} in {}",
                    plain(&stage.device),
                    count(launches, "launch"),
                    count(tasks, "task")
                )?;
                section(stage, indent, report.conditions.has_feedback, f)?;
            }
            StageReport::Compiled(stage) => {
                writeln!(
                    f,
                    "\n{indent}stage {i}: program of {} on {}, {}",
                    count(stage.nodes.len(), "node"),
                    plain(&stage.device),
                    if stage.is_stored { "compiled earlier" } else { "compiled now" }
                )?;
                compiled(stage, indent, f)?;
            }
            StageReport::Control(stage) => {
                writeln!(f, "\n{indent}stage {i}: control flow, {}", plain(&stage.node))?;
                control(stage, indent, f)?;
            }
            StageReport::Eager { node } => {
                writeln!(f, "\n{indent}stage {i}: eager, {}", plain(node))?;
                writeln!(
                    f,
                    "{indent}  planned when its operands are there: its types depend on their content"
                )?;
            }
        }
    }
    Ok(())
}

/// Nodes of a program that are written out.
const NODES_MAX: usize = 12;

fn compiled(stage: &CompiledReport, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let (bytes_in, bytes_out) = stage.bytes;
    writeln!(
        f,
        "{indent}  {}, {} operations; {} in, {} out, {} of constants",
        duration(stage.cost_ns),
        stage.flops,
        bytes(bytes_in),
        bytes(bytes_out),
        bytes(stage.constants as u64)
    )?;
    for node in stage.nodes.iter().take(NODES_MAX) {
        writeln!(f, "{indent}  {}", plain(node))?;
    }
    if stage.nodes.len() > NODES_MAX {
        writeln!(f, "{indent}  and {} more", stage.nodes.len() - NODES_MAX)?;
    }
    Ok(())
}

fn control(stage: &ControlReport, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for region in &stage.regions {
        if region.plans.is_empty() {
            writeln!(
                f,
                "{indent}  {}: not planned yet; that is done when it is first taken",
                plain(&region.name)
            )?;
        }
        for plan in &region.plans {
            let types: Vec<&str> = plan.inputs.iter().map(|(_, ty)| ty.as_str()).collect();
            writeln!(f, "{indent}  {}: planned for ({})", plain(&region.name), types.join(", "))?;
            stages(plan, &format!("{indent}    "), f)?;
        }
    }
    Ok(())
}

/// Describes the places of constants, if there are any.
fn places(constants: &ConstantBytes) -> String {
    let ConstantBytes { in_file, made, packed, uploaded } = *constants;
    let places = [(in_file, "in the file"), (made, "made"), (packed, "packed"), (uploaded, "uploaded")];
    let places = places.iter().filter(|(size, _)| *size > 0);
    let places: Vec<String> = places.map(|(size, what)| format!("{what} {}", bytes(*size as u64))).collect();
    if places.is_empty() { String::new() } else { format!(" ({})", places.join(", ")) }
}

/// `says_from` has each launch say whether its time is estimated or measured.
fn section(
    section: &SectionReport,
    indent: &str,
    says_from: bool,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    if let Some(why) = section.one_task {
        writeln!(f, "{indent}  one task: {why}")?;
    }
    writeln!(
        f,
        "{indent}  work {}, longest path {} by tasks, {} by launches",
        duration(section.work_ns),
        duration(section.path_ns),
        duration(section.launch_path_ns)
    )?;
    let memory = section.memory;
    writeln!(
        f,
        "{indent}  arena {} (lower bound {}), constants {}{}{}",
        bytes(memory.arena as u64),
        bytes(memory.lower_bound as u64),
        bytes(memory.constants as u64),
        places(&memory.constants_by_place),
        match memory.streamed {
            0 => String::new(),
            streamed => format!(", streamed in each run {}", bytes(streamed as u64)),
        }
    )?;
    let steps = || section.tasks.iter().flat_map(|task| &task.steps);
    let width = |cell: fn(&StepReport) -> &str| {
        let widths = steps().map(|step| plain(cell(step)).chars().count());
        widths.filter(|&width| width <= LABEL_WIDTH_MAX).max().unwrap_or(0)
    };
    let (node_width, kernel_width) = (width(|step| &step.node), width(|step| &step.kernel));
    let device_width = width(|step| step.device.as_deref().unwrap_or_default());
    for (i, task) in section.tasks.iter().enumerate() {
        write!(f, "{indent}  task {i}: ")?;
        match task.is_arrival {
            true => write!(f, "when the device has done task {}", i - 1)?,
            false => write!(f, "{}, {}", duration(task.cost_ns), percent(section.share(task.cost_ns)))?,
        }
        if task.on_path && section.tasks.len() > 1 {
            write!(f, ", on the longest path")?;
        }
        if !task.succs.is_empty() {
            let succs: Vec<String> = task.succs.iter().map(u32::to_string).collect();
            write!(f, "; then {}", succs.join(", "))?;
        }
        writeln!(f)?;
        for step in &task.steps {
            let mut cost = format!("{:>9}  {:>7}", fine(step.cost_ns), percent(section.share(step.cost_ns)));
            if says_from {
                cost.push_str("  ");
                cost.push_str(step.cost_from.name());
            }
            let (node, kernel) = (plain(&step.node), plain(&step.kernel));
            write!(f, "{indent}    ")?;
            if let Some(device) = &step.device {
                write!(f, "{device:device_width$}  ")?;
            }
            match step.kind {
                StepKind::Order => writeln!(f, "{node}")?,
                _ => writeln!(f, "{node:node_width$}  {kernel:kernel_width$}  {cost}")?,
            }
            regions(step, &format!("{indent}      "), f)?;
        }
    }
    Ok(())
}

/// Writes the steps that control flow runs each time, with their times.
fn regions(step: &StepReport, indent: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for region in &step.regions {
        writeln!(f, "{indent}{}, each time:", region.name)?;
        for step in &region.steps {
            writeln!(f, "{indent}  {}  {}  {}", plain(&step.node), plain(&step.kernel), fine(step.cost_ns))?;
            regions(step, &format!("{indent}    "), f)?;
        }
    }
    Ok(())
}

impl fmt::Display for OneTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked => f.write_str("it was asked for"),
            Self::Asynchronous => {
                f.write_str("the device works asynchronously, and its stream orders launches")
            }
            Self::Serialised => f.write_str("the plugin is called by one thread at a time"),
            Self::OneThread => f.write_str("there is one thread"),
            Self::OneLaunch => f.write_str("there is one launch"),
            Self::Cheap { gain_ns, .. } if *gain_ns <= 0.0 => {
                f.write_str("there is nothing to run side by side")
            }
            Self::Cheap { gain_ns, worth_ns } => write!(
                f,
                "running side by side would gain {} at best, and must gain {}",
                duration(*gain_ns),
                duration(*worth_ns)
            ),
            Self::Narrow => f.write_str("nowhere is enough side by side to be worth two hand-overs"),
        }
    }
}

/// A short time with more places than [`duration`] gives it.
fn fine(nanos: f64) -> String {
    if nanos < 100.0 { format!("{nanos:.1} ns") } else { duration(nanos) }
}

/// A rate with three places.
fn significant(rate: f64) -> String {
    match rate {
        rate if rate >= 100.0 => format!("{rate:.0}"),
        rate if rate >= 10.0 => format!("{rate:.1}"),
        rate => format!("{rate:.2}"),
    }
}

/// Returns a name without characters that would break a line or a terminal.
fn plain(name: &str) -> Cow<'_, str> {
    if !name.chars().any(char::is_control) {
        return Cow::Borrowed(name);
    }
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(name.chars().map(escape).collect())
}
