//! `cold-start`: from the start of a process to its first result, for a small model; and the process's peak memory.
//!
//! devbay is the released command. Its peers are a Rust program with rten, and three variants of onnxruntime, since a single
//! figure would be unfair. The first is a Python script, whose time is mostly Python's and NumPy's (`start mnist`). The
//! second is the same script timed from its first line, without the interpreter's start (`start mnist, from import`). The
//! third is a program that calls the same library without Python (`start mnist, native`). The model's file and the programs
//! are always in the page cache.

use crate::measure::Figures;
use crate::peers::{Peer, Peers};
use crate::ran::Ran;
use crate::rows::Rows;
use crate::start::{Started, start};
use anyhow::{Result, ensure};
use devbay_core::Tensor;
use devbay_host::arrays::write_npz;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A program to start, and its figures so far.
struct Starting {
    peer: Option<Peer>,
    subject: String,
    command: Command,
    starts: Vec<Started>,
}

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    let model = model();
    let folder = tempfile::tempdir()?;
    let inputs = folder.path().join("inputs.npz");
    write_npz(&inputs, &[("input", &pixels()?)])?;

    let mut starting = Vec::new();
    for peer in [Peer::Rten, Peer::OnnxruntimeNative, Peer::Onnxruntime] {
        starting.extend(peers.unless_required(peer.name(), once(peers, peer, &model, &inputs))?);
    }
    starting.push(devbay(&model, &inputs)?);
    for pass in 0..n_passes {
        for turn in 0..starting.len() {
            let at = (turn + pass) % starting.len();
            let started = start(&starting[at].command)?;
            starting[at].starts.push(started);
        }
    }

    let figures = |wanted: &[Option<Peer>], figure: &dyn Fn(&Starting, &Started) -> f64| -> Figures {
        let subjects = starting.iter().filter(|starting| wanted.contains(&starting.peer));
        subjects
            .map(|s| (s.subject.clone(), s.starts.iter().map(|started| figure(s, started)).collect()))
            .collect()
    };
    let through_python = [Some(Peer::Rten), Some(Peer::Onnxruntime), None];
    let native = [Some(Peer::OnnxruntimeNative), None];
    let from_import = |starting: &Starting, started: &Started| match starting.peer {
        // The script prints its nanoseconds since its first line.
        Some(Peer::Onnxruntime) => started.line.parse().map_or(f64::NAN, |nanos: f64| nanos / 1e6),
        _ => started.ms,
    };
    // Each start prints a first line with a result.
    let n_results =
        starting.iter().flat_map(|s| &s.starts).filter(|started| !started.line.is_empty()).count();
    let ran = Ran::of("results", starting.len() * n_passes, n_results);
    let mut case = |name: &str, unit: &str, figures: &Figures| -> Result<()> {
        // devbay's figures serve several cases; without a peer they would only be repeated.
        if figures.len() > 1 || !name.contains(',') {
            rows.case("cold-start", name, 1, unit, figures, ran)?;
        }
        Ok(())
    };
    case("start mnist", "ms", &figures(&through_python, &|_, s| s.ms))?;
    case("start mnist, from import", "ms", &figures(&[Some(Peer::Onnxruntime), None], &from_import))?;
    case("start mnist, native", "ms", &figures(&native, &|_, s| s.ms))?;
    case("memory mnist", "MiB", &figures(&through_python, &|_, s| s.peak_mib))?;
    case("memory mnist, native", "MiB", &figures(&native, &|_, s| s.peak_mib))?;
    Ok(())
}

/// Runs the model once in a peer. Its first start is not counted: it loads the peer's files into the page cache, and shows
/// that it works.
fn once(peers: &Peers, peer: Peer, model: &Path, inputs: &Path) -> Result<Starting> {
    let subject = peers.subject(peer)?;
    let mut command = peers.command(peer)?;
    command.args(["once", "1"]).arg(model).arg(inputs);
    start(&command)?;
    Ok(Starting { peer: Some(peer), subject, command, starts: Vec::new() })
}

/// Starts the command, as built beside this program.
fn devbay(model: &Path, inputs: &Path) -> Result<Starting> {
    let program = std::env::current_exe()?.with_file_name("devbay");
    ensure!(program.exists(), "{} is missing; `cargo xtask bench` builds it", program.display());
    let mut command = Command::new(program);
    command.arg("run").arg(model).arg("--input").arg(inputs).args(["--threads", "1"]);
    start(&command)?;
    Ok(Starting { peer: None, subject: "devbay".to_owned(), command, starts: Vec::new() })
}

/// Returns an input for the small model.
pub fn pixels() -> Result<Tensor> {
    let pixels: Vec<f32> = (0..28 * 28u16).map(|i| f32::from(i % 29) / 29.0).collect();
    Ok(Tensor::from_elements(&[1, 1, 28, 28], &pixels)?)
}

/// Returns the path of the repository's small model.
pub fn model() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/mnist_cnn/model.onnx")
}
