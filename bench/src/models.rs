//! `models`: trained models beside rten, onnxruntime and OpenVINO, each on all of its recorded inputs.
//!
//! They are in the folder that `DEVBAY_MODELS` names, filled by `cargo xtask models`. Outputs are compared with the recorded
//! ones before anything is timed; a model that differs is reported, and the others continue.

use crate::agree::Named;
use crate::beside::{Case, measure};
use crate::peers::{Peer, Peers};
use crate::rows::Rows;
use crate::setup;
use anyhow::{Context, Result, bail, ensure};
use devbay_host::arrays::read_npz;
use devbay_host::internals::compare::Tolerance;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Passes: enough for a median, few enough that all models take minutes.
const PASSES_MAX: usize = 9;

/// One recorded run of a model.
pub struct Recorded {
    /// The model's folder, and the number of the inputs: `mnist_cnn/0`.
    pub name: String,
    /// The ONNX file.
    pub model: PathBuf,
    /// The archive of its inputs.
    pub inputs: PathBuf,
    outputs: Named,
}

impl Recorded {
    /// Returns the run as a case with the recorded outputs as expected ones.
    pub fn case(&self) -> Case<'_> {
        Case {
            model: &self.model,
            inputs: &self.inputs,
            expected: Some(&self.outputs),
            // The tolerance of the models' README. The quantised model meets it too, although it could not if its rounding
            // differed from onnxruntime's.
            tolerance: Tolerance { relative: 1e-4, absolute: 1e-5 },
        }
    }
}

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    let Some(mut cases) = recorded(peers)? else { return Ok(()) };
    cases.retain(|recorded| rows.want(&recorded.name));
    let mut processes = peers.start(&[Peer::Rten, Peer::Onnxruntime, Peer::Openvino])?;
    let runtimes: Vec<_> = setup::thread_counts().map(setup::runtime).collect::<Result<_>>()?;
    let mut failed = Vec::new();
    for recorded in &cases {
        let case = recorded.case();
        for runtime in &runtimes {
            let moment = Duration::from_millis(20);
            let threads = runtime.n_threads();
            match measure(&case, runtime, peers, &mut processes, n_passes.min(PASSES_MAX), moment) {
                Ok((figures, ran)) => rows.case("models", &recorded.name, threads, "ms", &figures, ran)?,
                Err(error) => {
                    eprintln!("{} on {threads} threads: {error:#}", recorded.name);
                    failed.push(recorded.name.as_str());
                }
            }
        }
    }
    ensure!(failed.is_empty(), "these could not be measured: {}", failed.join(", "));
    Ok(())
}

/// Returns the models in the folder that `DEVBAY_MODELS` names, by name. Without it the models count as missing peers.
///
/// # Errors
/// With `--require-peers`, if the folder does not exist or holds no models.
fn recorded(peers: &Peers) -> Result<Option<Vec<Recorded>>> {
    let folder = std::env::var_os("DEVBAY_MODELS").map(PathBuf::from);
    let folder = folder.context("DEVBAY_MODELS names no folder; `cargo xtask models` fills target/models");
    peers.unless_required("the folder of models", folder.and_then(|folder| recorded_in(&folder)))
}

/// Returns the first recorded run of each model whose rows are wanted; none without a folder of models.
///
/// # Errors
/// As [`recorded`].
pub fn first_of_each(rows: &Rows, peers: &Peers) -> Result<Vec<Recorded>> {
    let mut cases = recorded(peers)?.unwrap_or_default();
    cases.retain(|case| case.name.ends_with("/0") && rows.want(&case.name));
    Ok(cases)
}

fn recorded_in(folder: &Path) -> Result<Vec<Recorded>> {
    let entries = folder.read_dir().with_context(|| format!("cannot read {}", folder.display()))?;
    let mut models: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    models.retain(|model| model.join("model.onnx").exists());
    models.sort();
    if models.is_empty() {
        bail!("{} holds no model; `cargo xtask models` fills it", folder.display());
    }
    let mut cases = Vec::new();
    for model in models {
        let name =
            model.file_name().context("an entry of a folder has a name")?.to_string_lossy().into_owned();
        for i in 0.. {
            let inputs = model.join(format!("case{i}.inputs.npz"));
            if !inputs.exists() {
                if i == 0 {
                    eprintln!("{name} is left out: it has no case");
                }
                break;
            }
            cases.push(Recorded {
                name: format!("{name}/{i}"),
                model: model.join("model.onnx"),
                inputs,
                outputs: read_npz(&model.join(format!("case{i}.outputs.npz")))?,
            });
        }
    }
    Ok(cases)
}
