//! Drawings: of a plan's tasks for Graphviz, and of plans, profiles and rooflines as pages for a browser.
//!
//! The two of plans draw the same [`Picture`]: boxes in rows, where a task's row is the number of tasks that must precede it. A section
//! with too many tasks to read is drawn row by row, with a note. Names come from models and may hold any characters; each
//! format escapes them in its own way.

mod dot;
mod html;
mod page;
mod roofline;
mod timeline;

use devbay_host::internals::core::plan::report::{PlanReport, SectionReport, StageReport, TaskReport};
use devbay_host::internals::core::plan::section::StepKind;
use devbay_host::internals::core::units::{count, duration, percent};
use std::collections::{BTreeMap, BTreeSet};

pub use dot::dot;
pub use html::html;
pub use roofline::page as roofline;
pub use timeline::page as timeline;

/// Maximum tasks and edges of a section, beyond which it is drawn row by row.
const TASKS_MAX: usize = 400;
const EDGES_MAX: usize = 2000;

/// Maximum rows of a section that is drawn row by row; beyond it, rows share boxes.
const ROWS_MAX: usize = 100;

/// Maximum number of launches in a box's tooltip.
const LISTED_MAX: usize = 30;

/// A drawing of a plan.
struct Picture<'a> {
    /// Its title.
    title: String,
    /// Stages; nested ones come after the one that contains them.
    stages: Vec<Drawn<'a>>,
}

/// A drawing of a stage.
#[derive(Default)]
struct Drawn<'a> {
    /// Its title.
    title: String,
    /// Remarks on it.
    notes: Vec<String>,
    /// Its boxes; those of one row do not depend on each other.
    boxes: Vec<Boxed>,
    /// Edges, as pairs of boxes.
    edges: Vec<(usize, usize)>,
    /// The section that it shows, if any.
    section: Option<&'a SectionReport>,
}

/// A task, or several.
struct Boxed {
    /// Its name.
    name: String,
    /// Estimate and share.
    cost: String,
    /// The most frequent ops.
    ops: String,
    /// All launches, up to the limit.
    steps: Vec<String>,
    /// Its row.
    row: usize,
    /// Estimated nanoseconds.
    cost_ns: f64,
    /// True if it is on the critical path.
    on_path: bool,
}

impl<'a> Picture<'a> {
    fn of(report: &'a PlanReport) -> Self {
        let mut stages = Vec::new();
        add_stages(report, "", &mut stages);
        let conditions = &report.conditions;
        let threads = count(conditions.n_threads, "thread");
        let title = format!("{} on {}, {threads}", report.name, conditions.device);
        Self { title, stages }
    }
}

/// Maximum number of named nodes of a compiled program.
const NODES_MAX: usize = 6;

fn add_stages<'a>(report: &'a PlanReport, within: &str, stages: &mut Vec<Drawn<'a>>) {
    for (i, stage) in report.stages.iter().enumerate() {
        match stage {
            StageReport::Section(section) => {
                stages.push(Drawn::section(section, format!("{within}stage {i}, on {}", section.device)))
            }
            StageReport::Compiled(program) => stages.push(Drawn {
                title: format!("{within}stage {i}: compiled for {}", program.device),
                notes: vec![
                    format!("{} nodes as one program; {}", program.nodes.len(), duration(program.cost_ns)),
                    program.nodes.iter().take(NODES_MAX).map(String::as_str).collect::<Vec<_>>().join(", "),
                ],
                ..Drawn::default()
            }),
            StageReport::Eager { node } => stages.push(Drawn {
                title: format!("{within}stage {i}: {node}"),
                notes: vec!["planned during the run, when the shapes of its operands are known".to_owned()],
                ..Drawn::default()
            }),
            StageReport::Control(control) => {
                let open = control.regions.iter().filter(|region| region.plans.is_empty());
                stages.push(Drawn {
                    title: format!("{within}stage {i}: control flow, {}", control.node),
                    notes: open.map(|region| format!("{}: not planned yet", region.name)).collect(),
                    ..Drawn::default()
                });
                for region in &control.regions {
                    for plan in &region.plans {
                        add_stages(plan, &format!("{within}stage {i}, {}, ", region.name), stages);
                    }
                }
            }
        }
    }
}

impl<'a> Drawn<'a> {
    fn section(section: &'a SectionReport, title: String) -> Self {
        let n_edges: usize = section.tasks.iter().map(|task| task.succs.len()).sum();
        let mut notes = vec![format!(
            "{} of {}; {} in all, {} along the longest way",
            count(section.tasks.len(), "task"),
            count(section.n_launches(), "kernel"),
            duration(section.work_ns),
            duration(section.path_ns)
        )];
        notes.extend(section.one_task.map(|why| format!("one task: {why}")));
        let (boxes, edges) = if section.tasks.len() <= TASKS_MAX && n_edges <= EDGES_MAX {
            each_task(section)
        } else {
            notes.push(format!(
                "too many to draw one by one: {} tasks and {n_edges} edges are drawn row by row, tasks with equally many \
                 predecessors in one row",
                section.tasks.len()
            ));
            by_row(section)
        };
        Self { title, notes, boxes, edges, section: Some(section) }
    }

    /// Returns the boxes by row.
    fn rows(&self) -> Vec<Vec<usize>> {
        let n_rows = self.boxes.iter().map(|boxed| boxed.row + 1).max().unwrap_or(0);
        let mut rows = vec![Vec::new(); n_rows];
        for (i, boxed) in self.boxes.iter().enumerate() {
            rows[boxed.row].push(i);
        }
        rows
    }
}

fn each_task(section: &SectionReport) -> (Vec<Boxed>, Vec<(usize, usize)>) {
    let boxes = section.tasks.iter().enumerate().map(|(i, task)| {
        let name = if task.is_arrival { "arrival" } else { "task" };
        Boxed::of(section, format!("{name} {i}"), &[task], task.level as usize, task.on_path)
    });
    let edges = section.tasks.iter().enumerate();
    let edges = edges.flat_map(|(i, task)| task.succs.iter().map(move |&succ| (i, succ as usize)));
    (boxes.collect(), edges.collect())
}

fn by_row(section: &SectionReport) -> (Vec<Boxed>, Vec<(usize, usize)>) {
    let n_levels = section.tasks.iter().map(|task| task.level as usize + 1).max().unwrap_or(1);
    let levels_per_row = n_levels.div_ceil(ROWS_MAX);
    let row = |task: &TaskReport| task.level as usize / levels_per_row;
    let mut rows: BTreeMap<usize, Vec<&TaskReport>> = BTreeMap::new();
    for task in &section.tasks {
        rows.entry(row(task)).or_default().push(task);
    }
    let boxes = rows.iter().map(|(&row, tasks)| {
        let on_path = tasks.iter().any(|task| task.on_path);
        Boxed::of(section, count(tasks.len(), "task"), tasks, row, on_path)
    });
    let edges: BTreeSet<(usize, usize)> = section
        .tasks
        .iter()
        .flat_map(|task| task.succs.iter().map(|&succ| (row(task), row(&section.tasks[succ as usize]))))
        .filter(|(from, to)| from != to)
        .collect();
    (boxes.collect(), edges.into_iter().collect())
}

impl Boxed {
    fn of(section: &SectionReport, name: String, tasks: &[&TaskReport], row: usize, on_path: bool) -> Self {
        let cost_ns: f64 = tasks.iter().map(|task| task.cost_ns).sum();
        let steps = || tasks.iter().flat_map(|task| &task.steps).filter(|step| step.kind != StepKind::Order);
        let mut ops: BTreeMap<&str, usize> = BTreeMap::new();
        for step in steps() {
            *ops.entry(step.kernel.split('@').next().unwrap_or_default()).or_default() += 1;
        }
        let mut ops: Vec<(&str, usize)> = ops.into_iter().collect();
        ops.sort_by_key(|&(_, n)| std::cmp::Reverse(n));
        let more = if ops.len() > 2 { ", …" } else { "" };
        let most =
            ops.iter().take(2).map(|&(op, n)| if n == 1 { op.to_owned() } else { format!("{n} {op}") });
        let most: Vec<String> = most.collect();
        let n_steps = steps().count();
        let mut listed: Vec<String> = steps()
            .take(LISTED_MAX)
            .map(|step| {
                let device = step.device.as_ref().map(|device| format!("{device}: ")).unwrap_or_default();
                format!("{device}{} {}, {}", step.node, step.kernel, duration(step.cost_ns))
            })
            .collect();
        if n_steps > LISTED_MAX {
            listed.push(format!("and {} more", n_steps - LISTED_MAX));
        }
        Self {
            name,
            cost: format!("{}, {}", duration(cost_ns), percent(section.share(cost_ns))),
            ops: format!("{}{more}", most.join(", ")),
            steps: listed,
            row,
            cost_ns,
            on_path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use devbay_host::internals::core::plan::feedback::CostFrom;
    use devbay_host::internals::core::plan::report::{Conditions, RatesFrom, StepReport};
    use std::path::Path;

    /// Returns a report of levels of `n_per_level` tasks, each task depending on one of the previous level.
    fn report(n_levels: usize, n_per_level: usize) -> PlanReport {
        let n = n_levels * n_per_level;
        let task = |i: usize| TaskReport {
            steps: vec![StepReport {
                node: format!("n{i}"),
                kernel: "Add@14".to_owned(),
                kind: StepKind::Kernel,
                device: None,
                cost_ns: 10.0,
                cost_from: CostFrom::Estimate,
                regions: Vec::new(),
            }],
            cost_ns: 10.0,
            level: (i / n_per_level) as u32,
            on_path: i.is_multiple_of(n_per_level),
            is_arrival: false,
            succs: if i + n_per_level < n { vec![(i + n_per_level) as u32] } else { Vec::new() },
        };
        let section = SectionReport {
            device: "cpu:0".to_owned(),
            tasks: (0..n).map(task).collect(),
            one_task: None,
            work_ns: n as f64 * 10.0,
            path_ns: n_levels as f64 * 10.0,
            launch_path_ns: n_levels as f64 * 10.0,
            memory: Default::default(),
        };
        PlanReport {
            name: "levels".to_owned(),
            conditions: Conditions {
                device: "cpu:0".to_owned(),
                n_threads: 2,
                rates: Default::default(),
                rates_from: RatesFrom::Default,
                has_feedback: false,
            },
            inputs: Vec::new(),
            stages: vec![StageReport::Section(section)],
        }
    }

    fn drawn(report: &PlanReport) -> (usize, usize, bool) {
        let picture = Picture::of(report);
        let stage = &picture.stages[0];
        let says = stage.notes.iter().any(|note| note.contains("too many to draw one by one"));
        (stage.boxes.len(), stage.edges.len(), says)
    }

    #[test]
    fn a_section_of_many_tasks_is_drawn_row_by_row() {
        assert_eq!(drawn(&report(20, 20)), (400, 380, false));
        assert_eq!(drawn(&report(20, 21)), (20, 19, true));
        // 5000 levels share a hundred boxes.
        assert_eq!(drawn(&report(5000, 2)), (100, 99, true));
        let long = report(5000, 2);
        assert!(html(&long, Path::new("m.onnx")).len() < 1 << 20 && dot(&long).len() < 1 << 17);
        assert!(html(&long, Path::new("m.onnx")).contains("7000 more kernels are not shown"));
    }

    #[test]
    fn boxes_of_a_picture_do_not_overlap() {
        let report = report(3, 8);
        let picture = Picture::of(&report);
        let page = page::Page::of(&picture.stages[0]);
        for (i, a) in page.places.iter().enumerate() {
            assert!(a.x >= 0.0 && a.x + page::BOX_WIDTH <= page.width && a.y + a.height <= page.height);
            for b in &page.places[i + 1..] {
                let apart =
                    (a.x - b.x).abs() >= page::BOX_WIDTH || (a.y - b.y).abs() >= a.height.min(b.height);
                assert!(apart, "boxes at {},{} and {},{}", a.x, a.y, b.x, b.y);
            }
        }
    }
}
