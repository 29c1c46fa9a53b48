//! One model on one input, by devbay and by its peers: outputs are compared, then runs are timed.

use crate::agree::{Named, ensure_agree};
use crate::measure::{Figures, Subject, passes};
use crate::peers::{Peers, Process};
use crate::rows::OURS;
use crate::setup;
use anyhow::{Context, Result};
use devbay_core::Tensor;
use devbay_host::arrays::read_npz;
use devbay_host::compare::Tolerance;
use devbay_host::model::Model;
use devbay_host::runtime::Runtime;
use devbay_host::session::{RunOptions, Session};
use std::path::Path;
use std::time::Duration;

/// A model with its inputs.
pub struct Case<'a> {
    /// The ONNX file.
    pub model: &'a Path,
    /// An archive whose keys are input names.
    pub inputs: &'a Path,
    /// What the outputs should be; if nobody knows, devbay's are compared with the peers'.
    pub expected: Option<&'a [(String, Tensor)]>,
    /// How near they should be.
    pub tolerance: Tolerance,
}

/// Milliseconds per run of the peers and of devbay, in that order.
///
/// # Errors
/// For a model that does not run, and for outputs that differ, devbay's or a peer's.
pub fn measure(
    case: &Case<'_>,
    runtime: &Runtime,
    peers: &Peers,
    processes: &mut [Process],
    n_passes: usize,
    moment: Duration,
) -> Result<Figures> {
    let session = Session::new(&Model::load(case.model)?, &setup::device(runtime)?)?;
    let sessions = [(OURS, &session)];
    measure_sessions(case, &sessions, runtime.n_threads(), peers, processes, n_passes, moment)
}

/// As [`measure`], of several sessions of devbay's, by name.
///
/// # Errors
/// As there.
pub fn measure_sessions(
    case: &Case<'_>,
    sessions: &[(&str, &Session)],
    n_threads: usize,
    peers: &Peers,
    processes: &mut [Process],
    n_passes: usize,
    moment: Duration,
) -> Result<Figures> {
    let inputs = read_npz(case.inputs)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut first: Option<Named> = None;
    let mut subjects = Vec::new();
    for (name, session) in sessions {
        let names = session.outputs().iter().map(|port| port.name.to_string());
        let outputs: Named = names.zip(session.run(&given, &RunOptions::default())?).collect();
        let views = session.in_order(&given)?;
        let mut memory: Vec<Vec<u8>> =
            outputs.iter().map(|(_, tensor)| vec![0u8; tensor.bytes().len()]).collect();
        let expected = case.expected.or(first.as_deref());
        if let Some(expected) = expected {
            ensure_agree(&outputs, expected, case.tolerance).context((*name).to_owned())?;
        }
        first.get_or_insert(outputs);
        subjects.push(Subject::fallible(*name, 1.0, move || {
            let mut results: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
            Ok(session.run_into(&views, &mut results, &RunOptions::default())?)
        }));
    }
    let expected = case.expected.or(first.as_deref()).context("no session to measure")?;
    let mut theirs = Vec::new();
    for process in processes {
        let name = process.subject.clone();
        let loaded = process.load(n_threads, case.model, case.inputs);
        if let Some(outputs) = peers.unless_required(&name, loaded)? {
            ensure_agree(&outputs, expected, case.tolerance).context(name)?;
            theirs.push(process.runs(1.0));
        }
    }
    subjects.splice(0..0, theirs);
    let mut figures = passes(&mut subjects, n_passes, moment)?;
    for (_, nanos) in &mut figures {
        nanos.iter_mut().for_each(|figure| *figure /= 1e6);
    }
    Ok(figures)
}
