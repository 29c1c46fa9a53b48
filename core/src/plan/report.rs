//! A plan as plain data: for `devbay inspect --plan`, drawings and tests.
//!
//! A report is made from a plan and its environment; it holds no handle and changes nothing. Its text form is
//! its `Display`. Its times are those by which the plan was divided: estimates, or measurements of earlier runs if the
//! plan was made with them.

use super::compiled::{CompiledStage, Origin};
use super::cost::feedback::CostFrom;
use super::order::tasks::{NO_TASK, OneTask};
use super::section::{MemoryReport, Section, StepKind};
use super::steps::ControlState;
use super::{ControlStage, Env, Plan, Stage};
use crate::device::rates::Rates;
use crate::tensor::TensorType;

/// A plan.
#[derive(Clone, PartialEq, Debug)]
pub struct PlanReport {
    /// The program's name.
    pub name: String,
    /// Conditions that it was planned for.
    pub conditions: Conditions,
    /// Its inputs: name and type.
    pub inputs: Vec<(String, String)>,
    /// Stages, in order.
    pub stages: Vec<StageReport>,
}

/// The conditions that a plan was made for.
#[derive(Clone, PartialEq, Debug)]
pub struct Conditions {
    /// The device.
    pub device: String,
    /// Threads of the queue.
    pub n_threads: usize,
    /// Speed of the device.
    pub rates: Rates,
    /// Source of the rates.
    pub rates_from: RatesFrom,
    /// True if measured times were to be had.
    pub has_feedback: bool,
}

/// Source of a device's rates.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RatesFrom {
    /// The application.
    Options,
    /// A measurement.
    Measured,
    /// A default: neither is known.
    Default,
}

/// One stage.
#[derive(Clone, PartialEq, Debug)]
pub enum StageReport {
    /// Tasks.
    Section(SectionReport),
    /// A program of a device's compiler.
    Compiled(CompiledReport),
    /// Control flow.
    Control(ControlReport),
    /// A node that is planned when its operands are there.
    Eager {
        /// The node, with its op.
        node: String,
    },
}

/// A program that a device's compiler made of several nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct CompiledReport {
    /// The device.
    pub device: String,
    /// Its nodes, with their ops.
    pub nodes: Vec<String>,
    /// True if an earlier compilation was found.
    pub is_stored: bool,
    /// Arithmetic operations.
    pub flops: u64,
    /// Nanoseconds that it should take.
    pub cost_ns: f64,
    /// Bytes of constants that it is given.
    pub constants: usize,
    /// Bytes that come in for each run, and that go out, wherever they come from and go.
    pub bytes: (u64, u64),
}

/// Tasks of launches on one device.
#[derive(Clone, PartialEq, Debug)]
pub struct SectionReport {
    /// The device.
    pub device: String,
    /// Its tasks, in an order in which they could run.
    pub tasks: Vec<TaskReport>,
    /// Why it is one task, if it is.
    pub one_task: Option<OneTask>,
    /// Nanoseconds of all launches.
    pub work_ns: f64,
    /// Nanoseconds of the tasks that must follow each other and take longest.
    pub path_ns: f64,
    /// The same for launches, as if each were a task.
    pub launch_path_ns: f64,
    /// Memory.
    pub memory: MemoryReport,
}

/// One task.
#[derive(Clone, PartialEq, Debug)]
pub struct TaskReport {
    /// Its launches.
    pub steps: Vec<StepReport>,
    /// Nanoseconds of all of them.
    pub cost_ns: f64,
    /// Least number of tasks that come before it.
    pub level: u32,
    /// True if it is on the path that takes longest.
    pub on_path: bool,
    /// Tasks that wait for it; of a task that signals, its arrival too.
    pub succs: Vec<u32>,
    /// True if it has no launches, and is ready when a device has reached the point behind the task before it.
    pub is_arrival: bool,
}

/// One launch.
#[derive(Clone, PartialEq, Debug)]
pub struct StepReport {
    /// The node, with its op.
    pub node: String,
    /// The kernel: op and version; `copy` for a copy, empty for waits and signals of streams.
    pub kernel: String,
    /// Its kind.
    pub kind: StepKind,
    /// The device, where a section has several.
    pub device: Option<String>,
    /// Nanoseconds that it should take.
    pub cost_ns: f64,
    /// Source of the cost.
    pub cost_from: CostFrom,
    /// The regions that it runs, if it is control flow within a section.
    pub regions: Vec<InlinedReport>,
}

/// A region that runs within a launch.
#[derive(Clone, PartialEq, Debug)]
pub struct InlinedReport {
    /// Its name.
    pub name: &'static str,
    /// Its launches, each with the time of one execution.
    pub steps: Vec<StepReport>,
}

/// Control flow.
#[derive(Clone, PartialEq, Debug)]
pub struct ControlReport {
    /// The node, with its op.
    pub node: String,
    /// Its regions.
    pub regions: Vec<RegionReport>,
}

/// A region of control flow.
#[derive(Clone, PartialEq, Debug)]
pub struct RegionReport {
    /// Its name.
    pub name: String,
    /// Its plans so far, by input types; none before it is first taken.
    pub plans: Vec<PlanReport>,
}

impl PlanReport {
    /// Returns a plan's report. `env` is the environment it was planned with; `regions` returns the existing plans of a
    /// region of a stage.
    pub fn of(plan: &Plan, env: &Env, regions: &dyn Fn(usize, usize) -> Vec<Self>) -> Self {
        let rates_from = match (env.options.rates, env.device.rates()) {
            (Some(_), _) => RatesFrom::Options,
            (None, Some(_)) => RatesFrom::Measured,
            (None, None) => RatesFrom::Default,
        };
        let inputs = plan.program.main.inputs.iter().zip(&plan.inputs);
        Self {
            name: plan.program.name.clone(),
            conditions: Conditions {
                device: env.device.name().to_owned(),
                n_threads: env.device.plugin().services().queue().n_threads(),
                rates: env.rates(),
                rates_from,
                has_feedback: env.options.feedback.is_some(),
            },
            inputs: inputs
                .map(|(&id, ty)| {
                    let name = plan.program.value(id).name.to_string();
                    (name, TensorType::new(ty.dtype, &ty.shape).to_string())
                })
                .collect(),
            stages: plan
                .stages
                .iter()
                .enumerate()
                .map(|(at, stage)| StageReport::of(stage, &|region| regions(at, region)))
                .collect(),
        }
    }

    /// Returns the sections, in order; nested ones left out.
    pub fn sections(&self) -> impl Iterator<Item = &SectionReport> {
        self.stages.iter().filter_map(|stage| match stage {
            StageReport::Section(section) => Some(section),
            _ => None,
        })
    }

    /// Returns the programs of compilers, in order.
    pub fn compiled(&self) -> impl Iterator<Item = &CompiledReport> {
        self.stages.iter().filter_map(|stage| match stage {
            StageReport::Compiled(stage) => Some(stage),
            _ => None,
        })
    }

    /// Nanoseconds of all launches that are planned, nested ones left out.
    pub fn work_ns(&self) -> f64 {
        self.sections().map(|section| section.work_ns).chain(self.compiled().map(|stage| stage.cost_ns)).sum()
    }

    /// Stages that are planned when they are reached: their work and their memory are in no figure of this report.
    pub fn n_unplanned(&self) -> usize {
        let is_unplanned = |stage: &&StageReport| match stage {
            StageReport::Section(_) | StageReport::Compiled(_) => false,
            StageReport::Control(_) | StageReport::Eager { .. } => true,
        };
        self.stages.iter().filter(is_unplanned).count()
    }

    /// Launches whose time was measured, nested ones left out.
    pub fn n_measured(&self) -> usize {
        let steps = self.sections().flat_map(|section| &section.tasks).flat_map(|task| &task.steps);
        steps.filter(|step| step.kind.is_launch() && step.cost_from == CostFrom::Measurement).count()
    }

    /// Launches that are planned, nested ones left out.
    pub fn n_launches(&self) -> usize {
        self.sections().map(SectionReport::n_launches).sum::<usize>() + self.compiled().count()
    }
}

impl StageReport {
    fn of(stage: &Stage, plans_of: &dyn Fn(usize) -> Vec<PlanReport>) -> Self {
        match stage {
            Stage::Section(stage) => Self::Section(SectionReport::of(&stage.section)),
            Stage::Compiled(stage) => Self::Compiled(CompiledReport::of(stage)),
            Stage::Control(stage) => Self::Control(ControlReport::of(stage, plans_of)),
            Stage::Eager(stage) => Self::Eager { node: stage.node.label() },
        }
    }
}

impl CompiledReport {
    fn of(stage: &CompiledStage) -> Self {
        Self {
            device: stage.device().name().to_owned(),
            nodes: stage.labels.to_vec(),
            is_stored: stage.origin == Origin::Stored,
            flops: stage.flops,
            cost_ns: stage.cost_ns,
            constants: stage.constant_bytes(),
            bytes: stage.traffic(),
        }
    }
}

impl ControlReport {
    fn of(stage: &ControlStage, plans_of: &dyn Fn(usize) -> Vec<PlanReport>) -> Self {
        let regions = stage.node.regions.iter().enumerate();
        let regions =
            regions.map(|(at, (name, _))| RegionReport { name: name.to_string(), plans: plans_of(at) });
        Self { node: stage.node.label(), regions: regions.collect() }
    }
}

impl SectionReport {
    fn of(section: &Section) -> Self {
        let n_tasks = section.graph.len();
        let mut tasks: Vec<TaskReport> = (0..n_tasks).map(|at| TaskReport::of(section, at)).collect();
        // Tasks are in an order in which they could run: all paths to a task are complete when its turn comes.
        let mut begins = vec![0f64; n_tasks];
        let mut before = vec![NO_TASK; n_tasks];
        let mut last = None;
        let mut path_ns = 0f64;
        for at in 0..n_tasks {
            let (level, end) = (tasks[at].level, begins[at] + tasks[at].cost_ns);
            if end >= path_ns {
                (path_ns, last) = (end, Some(at));
            }
            for &succ in &tasks[at].succs.clone() {
                let succ = succ as usize;
                tasks[succ].level = tasks[succ].level.max(level + 1);
                if before[succ] == NO_TASK || end > begins[succ] {
                    (begins[succ], before[succ]) = (end, at as u32);
                }
            }
        }
        while let Some(at) = last {
            tasks[at].on_path = true;
            last = (before[at] != NO_TASK).then_some(before[at] as usize);
        }
        // A device with several streams has several lanes.
        let mut devices: Vec<&str> = Vec::new();
        for device in &section.lanes {
            if !devices.contains(&device.name()) {
                devices.push(device.name());
            }
        }
        Self {
            device: devices.join(" and "),
            one_task: section.one_task,
            work_ns: tasks.iter().map(|task| task.cost_ns).sum(),
            path_ns,
            launch_path_ns: section.longest_path_ns,
            memory: section.memory,
            tasks,
        }
    }

    /// Launches; waits and signals of streams do not count, nor do entries and exits.
    pub fn n_launches(&self) -> usize {
        let steps = self.tasks.iter().flat_map(|task| &task.steps);
        steps.filter(|step| step.kind.is_launch()).count()
    }

    /// Returns the part of the section's work that `cost_ns` is.
    pub fn share(&self, cost_ns: f64) -> f64 {
        if self.work_ns > 0.0 { cost_ns / self.work_ns } else { 0.0 }
    }
}

impl TaskReport {
    fn of(section: &Section, at: usize) -> Self {
        let steps = StepReport::of(section, section.graph.steps_of(at));
        Self {
            cost_ns: steps.iter().map(|step| step.cost_ns).sum(),
            steps,
            level: 0,
            on_path: false,
            succs: section.graph.following(at).collect(),
            is_arrival: at
                .checked_sub(1)
                .is_some_and(|before| section.graph.arrival_of(before as u32).is_some()),
        }
    }
}

impl StepReport {
    fn of(section: &Section, steps: std::ops::Range<usize>) -> Vec<Self> {
        let report = |at: usize| {
            let step = &section.steps[at];
            // A step of control flow is known by its state's address.
            let nested = section.nested.iter().find(|state| state.step().1 == step.state);
            Self {
                node: section.labels[at].clone(),
                kernel: section.kernels[at].clone(),
                kind: section.kinds[at],
                device: (section.lanes.len() > 1)
                    .then(|| section.lanes[step.lane as usize].name().to_owned()),
                cost_ns: f64::from(section.costs_ns[at]),
                cost_from: section.costs_from[at],
                regions: nested.map(InlinedReport::of).unwrap_or_default(),
            }
        };
        steps.map(report).collect()
    }
}

impl InlinedReport {
    fn of(state: &ControlState) -> Vec<Self> {
        let region =
            |name, section: &Section| Self { name, steps: StepReport::of(section, 0..section.steps.len()) };
        match state {
            ControlState::If(state) => {
                let [(otherwise, _), (then, _)] = &state.branches;
                vec![region("then_branch", then), region("else_branch", otherwise)]
            }
            ControlState::Loop(state) => vec![region("body", &state.body)],
        }
    }
}
