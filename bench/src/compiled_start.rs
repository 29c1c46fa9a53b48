//! `compiled-start`: time from the start of a process to its first result, minus one warm run, for a model of a hundred
//! megabytes (ResNet-50). The model is compiled by devbay (`.dbx`), saved by onnxruntime after optimisation (`.ort`), and
//! given to both as ONNX.
//!
//! devbay is the released command; onnxruntime is a program that calls its library without Python. Both use one thread, with
//! all files in the page cache. Results are compared before anything is timed.

use crate::agree::ensure_agree;
use crate::measure::Figures;
use crate::peers::{Peer, Peers};
use crate::ran::Ran;
use crate::rows::Rows;
use crate::setup;
use crate::start::start;
use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_host::arrays::read_npz;
use devbay_host::internals::compare::Tolerance;
use devbay_host::{Model, Session};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// Number of runs averaged for a warm run.
const WARM_RUNS: usize = 5;

/// A program to start with a model.
struct Starting {
    subject: String,
    command: Command,
    /// Mean milliseconds of a warm run.
    warm_ms: f64,
    ms: Vec<f64>,
}

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    let Some(folder) = peers.unless_required("resnet50", peers.generated("resnet50"))? else {
        return Ok(());
    };
    let (model, inputs) = (folder.join("model.onnx"), folder.join("inputs.npz"));
    let made = tempfile::tempdir()?;
    let compiled = made.path().join("model.dbx");
    let mut compile = devbay()?;
    compile.arg("compile").arg(&model).arg("-o").arg(&compiled).args(["--threads", "1"]);
    run_quietly(compile.arg("--shapes-from").arg(&inputs).args(["--device", "cpu:0"]))?;

    let mut starting = Vec::new();
    for (subject, file) in [("devbay", &compiled), ("devbay, ONNX", &model)] {
        starting.push(ours(subject, file, &inputs)?);
    }
    let theirs = theirs(peers, &model, &inputs, made.path());
    starting.extend(peers.unless_required(Peer::OnnxruntimeNative.name(), theirs)?.into_iter().flatten());
    let (n_starts, mut n_results) = (starting.len() * n_passes, 0);
    for pass in 0..n_passes {
        for turn in 0..starting.len() {
            let at = (turn + pass) % starting.len();
            let started = start(&starting[at].command)?;
            n_results += usize::from(!started.line.is_empty());
            let ms = started.ms;
            let warm = starting[at].warm_ms;
            starting[at].ms.push(ms - warm);
        }
    }
    let figures: Figures = starting.into_iter().map(|starting| (starting.subject, starting.ms)).collect();
    let ran = Ran::of("results", n_starts, n_results);
    rows.case("compiled-start", "start resnet50, less a warm run", 1, "ms", &figures, ran)
}

/// Returns the command, as built beside this program.
fn devbay() -> Result<Command> {
    let program = std::env::current_exe()?.with_file_name("devbay");
    ensure!(program.exists(), "{} is missing; `cargo xtask bench` builds it", program.display());
    Ok(Command::new(program))
}

fn ours(subject: &str, file: &Path, inputs: &Path) -> Result<Starting> {
    let mut command = devbay()?;
    command.arg("run").arg(file).arg("--input").arg(inputs).args(["--threads", "1", "--device", "cpu:0"]);
    start(&command)?;
    let runtime = setup::runtime(1)?;
    let session = Session::new(&Model::load(file)?, &setup::device(&runtime)?)?;
    let inputs = read_npz(inputs)?;
    let inputs: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    session.run(&inputs)?;
    let begin = Instant::now();
    for _ in 0..WARM_RUNS {
        session.run(&inputs)?;
    }
    let warm_ms = begin.elapsed().as_nanos() as f64 / 1e6 / WARM_RUNS as f64;
    Ok(Starting { subject: subject.to_owned(), command, warm_ms, ms: Vec::new() })
}

fn theirs(peers: &Peers, model: &Path, inputs: &Path, made: &Path) -> Result<Vec<Starting>> {
    let saved: PathBuf = made.join("model.ort");
    run_quietly(peers.command(Peer::Onnxruntime)?.arg("save").arg(model).arg(&saved))?;
    let mut process = peers.start(&[Peer::OnnxruntimeNative])?.pop().context("it is not here")?;
    let runtime = setup::runtime(1)?;
    let session = Session::new(&Model::load(model)?, &setup::device(&runtime)?)?;
    let given = read_npz(inputs)?;
    let given: Vec<(&str, &Tensor)> = given.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let outputs = session.run(&given)?;
    let names = session.outputs().iter().map(|port| port.name.to_string());
    let outputs: Vec<_> = names.zip(outputs).collect();
    let mut starting = Vec::new();
    for (form, file) in [(", ORT", saved.as_path()), (", ONNX", model)] {
        let theirs = process.load(1, file, inputs)?;
        ensure_agree(&theirs, &outputs, Tolerance { relative: 1e-3, absolute: 0.0 })?;
        process.serve(1, 1)?;
        let [per_run, ..] = process.serve(1, WARM_RUNS)?;
        let mut command = peers.command(Peer::OnnxruntimeNative)?;
        command.args(["once", "1"]).arg(file).arg(inputs);
        start(&command)?;
        let subject = format!("{}{form}", process.subject);
        starting.push(Starting { subject, command, warm_ms: per_run / 1e6, ms: Vec::new() });
    }
    Ok(starting)
}

fn run_quietly(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} failed: {said}", command.get_program().display());
    Ok(())
}
