//! Cases `cond` and `loop` of `executor`: control flow around almost empty kernels, on one thread.
//!
//! A conditional compares a number with 500, takes one of two branches of three additions, and adds once more; 200 of them
//! follow each other. A loop has 10,000 iterations of four additions. All numbers are f32 scalars, starting from 0. The
//! peers are those with both features: onnxruntime runs the same ONNX graph, TensorFlow its own ops for it.

use crate::measure::{Subject, passes};
use crate::peers::{Peers, Process, Workload};
use crate::ran::Ran;
use crate::rows::{OURS, Rows};
use crate::{ran, setup};
use anyhow::{Context, Result, ensure};
use devbay_core::exec::host_io::InputView;
use devbay_core::program::{Node, Program, Region, Value, ValueId};
use devbay_core::tensor::{AlignedBytes, BOOL, Bytes, F32, I64, Tensor, TensorType};
use devbay_host::{Model, RunOptions, Session};
use std::time::Duration;

const CONDITIONALS: usize = 200;
const ITERATIONS: usize = 10_000;

/// Value at which conditionals change branches.
const LIMIT: f32 = 500.0;

pub fn run(rows: &mut Rows, peers: &Peers, runtimes: &mut [Process], n_passes: usize) -> Result<()> {
    let after_conditionals = (0..CONDITIONALS).fold(0.0f32, |x, _| if x < LIMIT { x + 4.0 } else { x + 7.0 });
    let cond = Workload::Conditionals(CONDITIONALS);
    case(rows, peers, runtimes, n_passes, ("cond", &cond, &conditionals()?, after_conditionals))?;
    let iterations = Workload::Loop(ITERATIONS);
    case(rows, peers, runtimes, n_passes, ("loop", &iterations, &looped()?, 4.0 * ITERATIONS as f32))
}

fn case(
    rows: &mut Rows,
    peers: &Peers,
    runtimes: &mut [Process],
    n_passes: usize,
    (name, workload, program, expected): (&str, &Workload<'_>, &Program, f32),
) -> Result<()> {
    if !rows.want(name) {
        return Ok(());
    }
    let per = match workload {
        Workload::Conditionals(n) | Workload::Loop(n) => *n as f64,
        Workload::Graph(_) => 1.0,
    };
    let runtime = setup::runtime(1)?;
    let (model, device) = (Model::from_program(program.clone()), setup::device(&runtime)?);
    let session = Session::with_options(&model, &device, setup::of_launches())?;
    let zero = Tensor::from_elements(&[], &[0.0f32])?;
    let counts = ran::count(&model, &device, setup::of_launches(), &[("x", &zero)])?;
    let mut value = AlignedBytes::zeroed(size_of::<f32>())?;
    let mut subjects = Vec::new();
    for process in runtimes {
        let subject = process.subject.clone();
        if let Some(value) = peers.unless_required(&subject, process.make(workload, 1))? {
            ensure!(value.parse() == Ok(expected), "{subject} computed {value}, expected {expected}");
            subjects.push(process.runs(per));
        }
    }
    subjects.push(Subject::fallible(OURS, per, || {
        let input = InputView::of(&zero);
        Ok(session.run_into(&[input], &mut [value.as_mut_slice()], &RunOptions::default())?)
    }));
    let figures = passes(&mut subjects, n_passes, Duration::from_millis(30))?;
    drop(subjects);
    let found: f32 = bytemuck::pod_read_unaligned(value.bytes());
    ensure!(found == expected, "devbay computed {found}, expected {expected}");
    let n_launches = match workload {
        // A comparison, three additions of the taken branch, and one after it.
        Workload::Conditionals(n) => 5 * n,
        Workload::Loop(n) => 4 * n,
        Workload::Graph(_) => 0,
    };
    rows.case("executor", name, 1, "ns", &figures, Ran::launches(n_launches, counts.launches))
}

/// A program of scalars under construction.
struct Scalars {
    program: Program,
    /// Results of all nodes so far, in order.
    nodes: Vec<Node>,
}

impl Scalars {
    /// Creates a program with one input.
    fn new(name: &str) -> (Self, ValueId) {
        let mut program = Program { name: name.to_owned(), ..Program::default() };
        let x = program.add_typed("x", TensorType::new(F32, &[]));
        program.main.inputs = vec![x];
        (Self { program, nodes: Vec::new() }, x)
    }

    fn constant(&mut self, name: &str, value: f32) -> Result<ValueId> {
        Ok(self.program.add_constant(name, Tensor::from_elements(&[], &[value])?))
    }

    fn node(&mut self, op: &str, inputs: &[ValueId], regions: Vec<(&str, Region)>) -> Result<ValueId> {
        let made = self.program.add_value(Value::default());
        let inputs = inputs.iter().map(|&id| Some(id)).collect();
        let mut node = Node::new(setup::op(op)?, inputs, vec![Some(made)]);
        node.regions = regions.into_iter().map(|(name, region)| (name.into(), region)).collect();
        self.nodes.push(node);
        Ok(made)
    }

    /// Builds a region that adds a number to another `n` times, and returns it with the sum.
    fn additions(&mut self, to: ValueId, number: ValueId, n: usize) -> Result<(Region, ValueId)> {
        let outside = std::mem::take(&mut self.nodes);
        let mut value = to;
        for _ in 0..n {
            value = self.node("Add", &[value, number], Vec::new())?;
        }
        let nodes = std::mem::replace(&mut self.nodes, outside);
        Ok((Region { inputs: Vec::new(), nodes, outputs: vec![value] }, value))
    }

    fn finish(mut self, output: ValueId) -> Program {
        self.program.value_mut(output).name = "y".into();
        self.program.main.outputs = vec![output];
        self.program.main.nodes = self.nodes;
        self.program
    }
}

fn conditionals() -> Result<Program> {
    let (mut scalars, mut value) = Scalars::new("conditionals");
    let one = scalars.constant("one", 1.0)?;
    let two = scalars.constant("two", 2.0)?;
    let limit = scalars.constant("limit", LIMIT)?;
    for _ in 0..CONDITIONALS {
        let less = scalars.node("Less", &[value, limit], Vec::new())?;
        let (then_branch, _) = scalars.additions(value, one, 3)?;
        let (else_branch, _) = scalars.additions(value, two, 3)?;
        let branches = vec![("then_branch", then_branch), ("else_branch", else_branch)];
        let taken = scalars.node("If", &[less], branches)?;
        value = scalars.node("Add", &[taken, one], Vec::new())?;
    }
    Ok(scalars.finish(value))
}

fn looped() -> Result<Program> {
    let (mut scalars, x) = Scalars::new("loop");
    let one = scalars.constant("one", 1.0)?;
    let n = i64::try_from(ITERATIONS).context("a count of iterations is an int64")?;
    let n = scalars.program.add_constant("n", Tensor::from_elements(&[], &[n])?);
    let yes = scalars.program.add_constant("yes", Tensor::from_bytes(BOOL, &[], &[1])?);
    let i = scalars.program.add_typed("i", TensorType::new(I64, &[]));
    let go = scalars.program.add_typed("go", TensorType::new(BOOL, &[]));
    let carried = scalars.program.add_typed("v", TensorType::new(F32, &[]));
    let (mut body, sum) = scalars.additions(carried, one, 4)?;
    let go_on = scalars.program.add_value(Value::default());
    body.nodes.insert(0, Node::new(setup::op("Identity")?, vec![Some(go)], vec![Some(go_on)]));
    body.inputs = vec![i, go, carried];
    body.outputs = vec![go_on, sum];
    let y = scalars.node("Loop", &[n, yes, x], vec![("body", body)])?;
    Ok(scalars.finish(y))
}
