//! `streaming`: a model with only half of its constants in device memory, beside the times of its copies and its kernels
//! alone.
//!
//! The model is a chain of matrix products on the CPU plugin with asynchronous streams, whose copies are limited to a rate.
//! The products are measured first. The rate then makes a layer's copy as long as its product (`balanced`), or longer
//! (`transfer-bound`) or shorter (`compute-bound`) by a factor. Subject `the longer of both` is the larger of two times:
//! that of the same model with all constants on the device, and that of streaming a run's bytes at the copy rate. The ratio
//! is the overhead that overlap leaves. `their sum` is the time of a run without overlap.

use crate::measure::Figures;
use crate::ran::{self, Ran};
use crate::rows::{OURS, Rows, median};
use crate::{peers::Peers, setup};
use anyhow::{Context, Result, ensure};
use devbay_core::device::Device;
use devbay_core::plan::PlanOptions;
use devbay_core::plan::cost::{Link, Rates};
use devbay_core::program::{Node, Program, Value};
use devbay_core::tensor::{F32, Tensor, TensorType};
use devbay_host::{Model, RunOptions, Runtime, Session, SessionOptions};
use std::sync::Arc;
use std::time::Instant;

const LAYERS: usize = 32;
/// Rows and columns of a weight.
const N: usize = 768;
/// Rows of the other operand.
const ROWS: usize = 64;
const WEIGHT_BYTES: usize = N * N * 4;

/// Cases: a layer's copy time as a multiple of its product's, if every layer were streamed. Half of them are.
const CASES: [(&str, f64); 3] = [("balanced", 2.0), ("transfer-bound", 4.0), ("compute-bound", 1.0)];

pub fn run(rows: &mut Rows, _peers: &Peers, n_passes: usize) -> Result<()> {
    let model = chain()?;
    let x = Tensor::from_elements(&[ROWS, N], &vec![0.5f32; ROWS * N])?;
    // One thread computes, and the other processor copies.
    let fast = Devices::new(20_000)?;
    let whole = fast.session(&model, None, None)?;
    let mut nanos = times(&whole, &x, n_passes.max(5))?;
    nanos.sort_by(f64::total_cmp);
    let layer_ns = median(&nanos) / LAYERS as f64;
    for (case, factor) in CASES {
        if !rows.want(case) {
            continue;
        }
        let mb_per_s = (WEIGHT_BYTES as f64 / (layer_ns * factor) * 1e3).round().max(1.0) as u64;
        let devices = Devices::new(mb_per_s)?;
        let link = Link { latency_ns: 10_000.0, bytes_per_ns: mb_per_s as f64 / 1e3 };
        let flops = (2 * ROWS * N * N) as f64;
        let rates = Rates {
            flops_per_ns: flops / layer_ns,
            bytes_per_ns: 1e6,
            launch_ns: 1000.0,
            to_device: link,
            from_device: link,
            ..Rates::default()
        };
        let budget = (LAYERS * WEIGHT_BYTES / 2) as u64;
        let whole = devices.session(&model, None, Some(rates))?;
        let half = devices.session(&model, Some(budget), Some(rates))?;
        let plan = half.plan_for(&[("x", &x)])?;
        let streamed: usize = plan.sections().map(|section| section.memory.streamed).sum();
        ensure!(streamed > 0, "nothing is streamed within {budget} bytes");
        let options = RunOptions::default();
        let results = [&whole, &half].map(|session| session.run_with(&[("x", &x)], &options));
        let [expected, found] = results.map(|results| results.map(|results| results[0].bytes().to_vec()));
        ensure!(expected? == found?, "the results of the streamed model differ");
        let transfer_ns = streamed as f64 / mb_per_s as f64 * 1e3;
        let mut figures: Figures = [OURS, "the longer of both", "their sum", "its transfer", "its compute"]
            .map(|name| (name.to_owned(), Vec::new()))
            .into();
        for _ in 0..n_passes {
            let (compute_ns, ours_ns) = (times(&whole, &x, 1)?[0], times(&half, &x, 1)?[0]);
            let all =
                [ours_ns, compute_ns.max(transfer_ns), compute_ns + transfer_ns, transfer_ns, compute_ns];
            for ((_, figures), nanos) in figures.iter_mut().zip(all) {
                figures.push(nanos / 1e6);
            }
        }
        let counts = [None, Some(budget)].map(|budget| {
            let options = devices.options(budget, Some(rates))?;
            ran::count(&model, &devices.device("cpu:1")?, options, &[("x", &x)])
        });
        let [whole_counts, half_counts] = counts;
        let n_launches = whole_counts?.launches + half_counts?.launches;
        rows.case("streaming", case, 1, "ms", &figures, Ran::launches(2 * LAYERS, n_launches))?;
    }
    Ok(())
}

/// Builds `LAYERS` products with a weight each. The weights keep values from growing or vanishing.
fn chain() -> Result<Model> {
    let mut program = Program { name: "chain".to_owned(), ..Program::default() };
    let mut value = program.add_typed("x", TensorType::new(F32, &[ROWS, N]));
    program.main.inputs = vec![value];
    for layer in 0..LAYERS {
        let element = |i: usize| if (i + i / N * layer) % N == layer { 1.0 } else { 1e-6 };
        let elements: Vec<f32> = (0..N * N).map(element).collect();
        let weight = program.add_constant("w", Tensor::from_elements(&[N, N], &elements)?);
        let next = program.add_value(Value::default());
        let node = Node::new(setup::op("MatMul")?, vec![Some(value), Some(weight)], vec![Some(next)]);
        program.main.nodes.push(node);
        value = next;
    }
    program.value_mut(value).name = "y".into();
    program.main.outputs = vec![value];
    Ok(Model::from_program(program))
}

/// The processor twice: inline, and with asynchronous streams and memory that the host cannot access.
struct Devices {
    runtime: Runtime,
}

impl Devices {
    fn new(copy_mb_per_s: u64) -> Result<Self> {
        let option = |key: &str, value: String| ("cpu".to_owned(), key.to_owned(), value);
        let runtime = Runtime::builder()
            .threads(1)
            .link(devbay_plugin_cpu::PLUGIN)
            .options([option("streams", "inline,async".to_owned())])
            .options([option("copy_mb_per_s", copy_mb_per_s.to_string())])
            .build()?;
        Ok(Self { runtime })
    }

    fn device(&self, name: &str) -> Result<Arc<Device>> {
        let found = self.runtime.devices().into_iter().find(|device| device.name() == name);
        found.with_context(|| format!("device {name}"))
    }

    fn options(&self, memory_budget: Option<u64>, rates: Option<Rates>) -> Result<SessionOptions> {
        Ok(SessionOptions {
            others: vec![self.device("cpu:0")?],
            plans: PlanOptions { memory_budget, rates, ..PlanOptions::default() },
            ..SessionOptions::default()
        })
    }

    fn session(&self, model: &Model, memory_budget: Option<u64>, rates: Option<Rates>) -> Result<Session> {
        let options = self.options(memory_budget, rates)?;
        Ok(Session::with_options(model, &self.device("cpu:1")?, options)?)
    }
}

/// Returns the nanoseconds of runs, after an uncounted one.
fn times(session: &Session, x: &Tensor, n: usize) -> Result<Vec<f64>> {
    let run = || session.run(&[("x", x)]);
    run()?;
    (0..n)
        .map(|_| {
            let begin = Instant::now();
            run()?;
            Ok(begin.elapsed().as_nanos() as f64)
        })
        .collect()
}
