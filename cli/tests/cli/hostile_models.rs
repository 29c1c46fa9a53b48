//! Damaged and hostile model files, end to end: imported, planned and run in a process with little memory.
//!
//! For any file, the outcome is an error or results; a panic, an abort or an endless run fails the test. Each damage is
//! derived from a number, so that every run tries the same ones; the last one is on standard error.
//! `host/tests/plugins/import_models.rs` tries more of them on the importer alone.

use crate::support::onnx::{
    self, BOOL, FLOAT, Graph, INT64, Message, graph_attribute, int64s, node, tensor, value,
};
use crate::support::{DONE, cases, run_again};
use devbay_host::internals::core::plan::section::Section;
use devbay_host::internals::core::program::{Program, text};
use devbay_host::internals::import;
use devbay_host::internals::random::Random;
use devbay_host::{
    DType, Dim, ErrorKind, Model, Port, RunOptions, Runtime, Session, Tensor, TensorType, arrays,
};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Deadline of a run; it ends loops whose count was damaged.
const DEADLINE: Duration = Duration::from_millis(300);
/// Maximum memory of a tried run.
const RUN_BYTES_MAX: usize = 16 << 20;
/// Memory limit of the process that tries the models.
const MEMORY_MAX: u64 = 2 << 30;
/// Set in the process with limited memory.
const LIMITED: &str = "DEVBAY_TEST_LIMITED";
/// Maximum time of a run that was ended: its kernels finish first.
const PATIENCE: Duration = Duration::from_secs(20);

fn runtime() -> Runtime {
    let linked = vec![devbay_plugin_cpu::PLUGIN];
    Runtime::builder().threads(1).link_all(linked).build().unwrap()
}

/// Limits this process's memory, so that excessive requests of a hostile model are refused here as on any machine, and
/// actually made on none.
fn limit_memory() {
    let limit = libc::rlimit { rlim_cur: MEMORY_MAX, rlim_max: MEMORY_MAX };
    // SAFETY: `limit` is a struct of the type that the call reads.
    let status = unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) };
    assert_eq!(status, 0, "expected to be allowed less memory");
}

/// Returns the memory that a section's launches need for themselves and their results.
fn bytes_of_run(section: &Section) -> usize {
    section.results.iter().fold(section.memory.arena, |sum, (ty, _)| sum.saturating_add(ty.size))
}

/// Returns zeros for an input; None for an unreasonable size.
fn zeros(ty: Option<&TensorType>) -> Option<Tensor> {
    let ty = ty?;
    let shape: Vec<usize> = ty.shape.as_ref()?.iter().map(|dim: &Dim| dim.known().unwrap_or(1)).collect();
    let n = shape.iter().try_fold(1usize, |n, &extent| n.checked_mul(extent)).filter(|&n| n < 1 << 20)?;
    let dtype: DType = ty.dtype;
    Tensor::from_bytes(dtype, &shape, &vec![0; n * usize::from(dtype.bits).div_ceil(8)]).ok()
}

/// The stage that a model reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Came {
    Refused,
    Imported,
    Planned,
    Ran,
}

fn try_model(bytes: &[u8], inputs: &[(String, Tensor)], runtime: &Runtime) -> Came {
    let check = |error: devbay_host::Error| {
        // Errors that blame a plugin or this repository are bugs.
        let fault =
            [ErrorKind::Internal, ErrorKind::PluginBroken, ErrorKind::PluginPoisoned, ErrorKind::Refused];
        assert!(!fault.contains(&error.kind()), "{error:?}");
        assert!(!error.to_string().is_empty());
    };
    let program: Program = match import::from_bytes(bytes.to_vec(), None) {
        Ok(program) => program,
        Err(error) => {
            check(error);
            return Came::Refused;
        }
    };
    let model = Model::from_program(program);
    let session = match Session::new(&model, &runtime.devices()[0]) {
        Ok(session) => session,
        Err(error) => {
            check(error);
            return Came::Imported;
        }
    };
    let input = |port: &Port| {
        let given = inputs.iter().find(|(name, _)| **name == *port.name).map(|(_, tensor)| tensor.clone());
        Some((port.name.to_string(), given.or_else(|| zeros(port.ty.as_ref()))?))
    };
    let inputs: Option<Vec<(String, Tensor)>> = session.inputs().iter().map(input).collect();
    let Some(inputs) = inputs else { return Came::Planned };
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    // Sizes that this machine has, but a test should not fill.
    match session.plan_for(&given) {
        Ok(plan) if plan.sections().all(|section| bytes_of_run(section) < RUN_BYTES_MAX) => {}
        Ok(_) => return Came::Planned,
        Err(error) => {
            check(error);
            return Came::Imported;
        }
    }
    let begin = Instant::now();
    let result = session.run_with(&given, &RunOptions { deadline: Some(DEADLINE), ..RunOptions::default() });
    assert!(begin.elapsed() < PATIENCE, "a run of {:?}", begin.elapsed());
    match result {
        Ok(_) => Came::Ran,
        Err(error) => {
            check(error);
            Came::Planned
        }
    }
}

/// Tries damaged copies of a model: truncated at many lengths, and with some bits flipped.
fn check(test: &str, model: &[u8], inputs: &[(String, Tensor)], n_flipped: u64) {
    if std::env::var_os(LIMITED).is_none() {
        return run_again(&format!("hostile_models::{test}"), |child| {
            child.env(LIMITED, "1");
        });
    }
    limit_memory();
    let runtime = runtime();
    assert_eq!(try_model(model, inputs, &runtime), Came::Ran, "{test} as it is");
    let mut counts = [0; 4];
    let mut try_one = |what: String, bytes: &[u8]| {
        eprintln!("{test}: {what}");
        match catch_unwind(AssertUnwindSafe(|| try_model(bytes, inputs, &runtime))) {
            Ok(came) => counts[came as usize] += 1,
            Err(_) => {
                let program = import::from_bytes(bytes.to_vec(), None);
                panic!(
                    "{test}: {what}:\n{}",
                    program.map_or_else(|e| e.to_string(), |p| text::print_elided(&p))
                );
            }
        }
        // The next model must be unaffected.
        assert!(!runtime.plugins()[0].is_poisoned(), "{test}: {what}: a kernel panicked");
    };
    let step = (model.len() / 300).max(1);
    for len in (0..model.len()).step_by(step) {
        try_one(format!("cut to {len} bytes"), &model[..len]);
    }
    for seed in 0..n_flipped {
        let mut damaged = model.to_vec();
        let mut random = Random(seed);
        // Weights reveal little, so half of the damage goes to the first part, which holds the nodes.
        let reach = if seed % 2 == 0 { damaged.len() } else { damaged.len().min(4096) };
        for _ in 0..=random.below(3) {
            let at = random.below(reach);
            match random.below(4) {
                0 => damaged[at] ^= 1 << random.below(8),
                1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][random.below(5)],
                2 => damaged[at] = random.below(256) as u8,
                // Replace an eight-byte number, the size of extents, counts and positions.
                _ => {
                    let number =
                        [i64::MIN, i64::MAX, -1, 0, 1, 1 << 31, -(1 << 31), 1 << 40][random.below(8)];
                    let end = damaged.len().min(at + 8);
                    damaged[at..end].copy_from_slice(&number.to_le_bytes()[..end - at]);
                }
            }
        }
        try_one(format!("seed {seed}"), &damaged);
    }
    // The damage was neither harmless nor total: it reached each stage.
    assert!(counts[Came::Refused as usize] > 0 && counts[Came::Ran as usize] > 0, "{test}: {counts:?}");
    eprintln!("{DONE}: {test}: refused, imported, planned, ran: {counts:?}");
}

/// Returns a nested graph.
fn region(nodes: &[Message], inputs: &[Message], outputs: &[Message]) -> Message {
    onnx::graph(&Graph { nodes, inputs, outputs, tensors: &[] })
}

/// Returns a loop of three iterations that collects, around a condition.
fn loop_around_if() -> Vec<u8> {
    let f = |name: &str| value(name, FLOAT, &[4]);
    let then = region(&[node("twice", "Add", &["s", "s"], &["t"])], &[], &[f("t")]);
    let other = region(&[node("half", "Mul", &["s", "w"], &["e"])], &[], &[f("e")]);
    let branches = node("if", "If", &["go"], &["n"])
        .with(5, graph_attribute("then_branch", &then))
        .with(5, graph_attribute("else_branch", &other));
    let body = region(
        &[branches, node("same", "Identity", &["go"], &["stay"]), node("keep", "Identity", &["n"], &["row"])],
        &[value("i", INT64, &[]), value("go", BOOL, &[]), f("s")],
        &[value("stay", BOOL, &[]), f("n"), f("row")],
    );
    let nodes = [
        node("loop", "Loop", &["count", "", "x"], &["last", "rows"]).with(5, graph_attribute("body", &body)),
        node("shape", "Shape", &["rows"], &["extents"]),
        node("flat", "Reshape", &["rows", "all"], &["line"]),
        node("find", "NonZero", &["line"], &["where"]),
    ];
    let untyped = |name: &str| Message::default().with(1, name);
    let model = onnx::model(
        17,
        &Graph {
            nodes: &nodes,
            inputs: &[f("x")],
            outputs: &[f("last"), untyped("line"), untyped("where"), untyped("extents")],
            tensors: &[
                tensor("count", INT64, &[], &3i64.to_le_bytes()),
                tensor("w", FLOAT, &[], &0.5f32.to_le_bytes()),
                int64s("all", &[-1]),
            ],
        },
    );
    model.as_ref().to_vec()
}

/// Returns ops whose attributes and constants determine sizes, windows and positions.
fn sizes_and_windows() -> Vec<u8> {
    let ints = onnx::ints_attribute;
    let nodes = [
        node("pad", "Pad", &["x", "pads"], &["p"]),
        node("conv", "Conv", &["p", "k"], &["c"])
            .with(5, ints("strides", &[1, 2]))
            .with(5, ints("pads", &[1, 0, 1, 0]))
            .with(5, ints("dilations", &[1, 1])),
        node("pool", "MaxPool", &["c"], &["m"])
            .with(5, ints("kernel_shape", &[2, 2]))
            .with(5, ints("strides", &[2, 1])),
        node("resize", "Resize", &["m", "", "scales"], &["r"]),
        node("turn", "Transpose", &["r"], &["t"]).with(5, ints("perm", &[0, 2, 3, 1])),
        node("slice", "Slice", &["t", "starts", "ends", "axes", "steps"], &["s"]),
        node("shape", "Reshape", &["s", "two"], &["q"]),
        node("take", "Gather", &["q", "which"], &["g"]),
        node("tile", "Tile", &["g", "repeats"], &["y"]),
    ];
    let floats = |values: &[f32]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let untyped = |name: &str| Message::default().with(1, name);
    let model = onnx::model(
        17,
        &Graph {
            nodes: &nodes,
            inputs: &[value("x", FLOAT, &[1, 2, 6, 8])],
            outputs: &[untyped("y")],
            tensors: &[
                int64s("pads", &[0, 0, 1, 1, 0, 0, 1, 1]),
                tensor("k", FLOAT, &[3, 2, 3, 3], &floats(&[0.25; 54])),
                tensor("scales", FLOAT, &[4], &floats(&[1.0, 1.0, 2.0, 2.0])),
                int64s("starts", &[-1, 0]),
                int64s("ends", &[i64::MIN, 4]),
                int64s("axes", &[1, 2]),
                int64s("steps", &[-2, 1]),
                int64s("two", &[0, -1]),
                int64s("which", &[0, 0]),
                int64s("repeats", &[2, 1]),
            ],
        },
    );
    model.as_ref().to_vec()
}

#[test]
fn a_loop_around_a_condition() {
    check("a_loop_around_a_condition", &loop_around_if(), &[], 2000);
}

#[test]
fn sizes_windows_and_positions() {
    check("sizes_windows_and_positions", &sizes_and_windows(), &[], 4000);
}

/// Damages a trained model, and runs the result on its own inputs.
fn check_trained(test: &str, name: &str, n_flipped: u64) {
    let cases = cases();
    // `cases` has reported a missing optional model.
    let Some(case) = cases.iter().find(|case| case.name.starts_with(name)) else { return };
    let inputs = arrays::read_npz(&case.inputs).unwrap();
    check(test, &std::fs::read(&case.model).unwrap(), &inputs, n_flipped);
}

#[test]
fn a_trained_model() {
    check_trained("a_trained_model", "mnist_cnn", 600);
}

#[test]
fn a_trained_model_with_conditions() {
    check_trained("a_trained_model_with_conditions", "silero_vad_v6", 200);
}
