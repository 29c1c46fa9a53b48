//! Programs and sessions for benchmarks that build their own models.

use anyhow::{Context, Result};
use devbay_core::device::Device;
use devbay_core::passes::Switches;
use devbay_core::plan::PlanOptions;
use devbay_core::plan::tasks::Policy as Division;
use devbay_core::program::{Node, Op, Program, Value};
use devbay_core::tensor::{F32, Tensor, TensorType};
use devbay_host::{Model, Policy, Requirements, Runtime, Session};
use std::path::PathBuf;
use std::sync::Arc;

/// Returns the numbers of threads to measure with: one and two, if the machine has them.
pub fn thread_counts() -> impl Iterator<Item = usize> {
    let n_processors = std::thread::available_parallelism().map_or(1, usize::from);
    [1, 2].into_iter().filter(move |&n| n <= n_processors)
}

/// Creates a runtime with the CPU plugin linked in.
pub fn runtime(threads: usize) -> Result<Runtime> {
    Ok(Runtime::builder().threads(threads).link(devbay_plugin_cpu::PLUGIN).build()?)
}

/// Creates a runtime with one plugin, `cpu`, `bench` or `wgpu`, as a library.
pub fn runtime_with_library(threads: usize, plugin: &str) -> Result<Runtime> {
    let plugins = vec![library(plugin)?];
    Ok(Runtime::builder().threads(threads).plugins(plugins).build()?)
}

/// Returns the path of a plugin's library, built beside this program.
pub fn library(plugin: &str) -> Result<PathBuf> {
    let folder = std::env::current_exe()?;
    let folder = folder.parent().context("the program is in a folder")?;
    let path = folder.join(format!("libdevbay_plugin_{plugin}.so"));
    anyhow::ensure!(
        path.exists(),
        "{} is missing; `cargo xtask bench` or `cargo build --release -p devbay-plugin-{plugin}` builds it",
        path.display()
    );
    Ok(path)
}

/// Returns the first device.
pub fn device(runtime: &Runtime) -> Result<Arc<Device>> {
    Ok(runtime.choose(&Policy::Auto, &Requirements::default())?.device)
}

/// Division of a program into tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// Each node is a separate task.
    Tasks,
    /// devbay's own division: nodes too small for a task share one.
    Coarse,
}

impl Form {
    /// Returns plans of this form, in which every node is a launch.
    pub fn plans(self) -> PlanOptions {
        let tasks = match self {
            Self::Tasks => Division::Each,
            Self::Coarse => Division::Auto,
        };
        PlanOptions { tasks, ..of_launches() }
    }
}

/// Creates a session in a form.
pub fn session_with(model: &Model, device: &Arc<Device>, form: Form) -> Result<Session> {
    Ok(Session::with_options(model, device, form.plans())?)
}

/// Returns plans in which a chain of additions is as many launches, and equal nodes are each computed, because the cost of a
/// launch is measured. Layers of a product and an activation are still one launch.
pub fn of_launches() -> PlanOptions {
    let passes =
        Switches::without(["fuse-elementwise", "common-subexpressions"]).expect("there are such passes");
    PlanOptions { passes, ..PlanOptions::default() }
}

/// Builds `n` additions of `one`, one after the other, to a tensor of one element.
pub fn chain_of_adds(n: usize, one: &Tensor) -> Result<Program> {
    let mut program = Program { name: "chain".to_owned(), ..Program::default() };
    let mut value = program.add_typed("x", one.tensor_type());
    program.main.inputs = vec![value];
    let one = program.add_constant("one", one.clone());
    for _ in 0..n {
        let next = program.add_value(Value::default());
        program.main.nodes.push(Node::new(op("Add")?, vec![Some(value), Some(one)], vec![Some(next)]));
        value = next;
    }
    program.value_mut(value).name = "y".into();
    program.main.outputs = vec![value];
    Ok(program)
}

/// Builds `weights.len()` layers `y = max(x W + b, 0)` of `n` columns.
pub fn dense_layers(n: usize, weights: &[Vec<f32>], biases: &[Vec<f32>]) -> Result<Program> {
    let mut program = Program { name: "dense".to_owned(), ..Program::default() };
    let mut value = program.add_typed("x", TensorType::new(F32, &[1, n]));
    program.main.inputs = vec![value];
    for (w, b) in weights.iter().zip(biases) {
        let w = program.add_constant("w", Tensor::from_elements(&[n, n], w)?);
        let b = program.add_constant("b", Tensor::from_elements(&[n], b)?);
        let (product, result) = (program.add_value(Value::default()), program.add_value(Value::default()));
        let gemm = Node::new(op("Gemm")?, vec![Some(value), Some(w), Some(b)], vec![Some(product)]);
        program.main.nodes.push(gemm);
        program.main.nodes.push(Node::new(op("Relu")?, vec![Some(product)], vec![Some(result)]));
        value = result;
    }
    program.value_mut(value).name = "y".into();
    program.main.outputs = vec![value];
    Ok(program)
}

/// Returns an op in the version that programs hold.
pub fn op(name: &str) -> Result<Op> {
    let def = devbay_core::program::catalogue::find("", name).with_context(|| format!("op {name}"))?;
    Ok(Op::onnx(name, def.version))
}
