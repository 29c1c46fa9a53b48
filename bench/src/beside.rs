//! Runs one model on one input, by devbay and by its peers: compares outputs, times runs, and compares the outputs of the
//! timed runs again.

use crate::agree::{Named, ensure_agree};
use crate::measure::{Figures, Subject, passes};
use crate::peers::{Peers, Process};
use crate::ran::Ran;
use crate::rows::OURS;
use crate::setup;
use anyhow::{Context, Result};
use devbay_core::Tensor;
use devbay_host::arrays::read_npz;
use devbay_host::internals::compare::Tolerance;
use devbay_host::{Model, RunOptions, Runtime, Session};
use std::cell::RefCell;
use std::path::Path;
use std::time::Duration;

/// A byte that fills outputs before the timed runs.
const UNWRITTEN: u8 = 0xa5;

/// A model with its inputs.
pub struct Case<'a> {
    /// The ONNX file.
    pub model: &'a Path,
    /// An archive whose keys are input names.
    pub inputs: &'a Path,
    /// Expected outputs. Without them, devbay's are compared with the peers'.
    pub expected: Option<&'a [(String, Tensor)]>,
    /// Tolerance of the outputs.
    pub tolerance: Tolerance,
}

/// Returns the milliseconds per run of the peers and of devbay, in that order, and the outputs of each devbay session that
/// are right after the last run.
///
/// # Errors
/// For a model that does not run, and for outputs of devbay or a peer that differ.
pub fn measure(
    case: &Case<'_>,
    runtime: &Runtime,
    peers: &Peers,
    processes: &mut [Process],
    n_passes: usize,
    moment: Duration,
) -> Result<(Figures, Ran)> {
    let session = Session::new(&Model::load(case.model)?, &setup::device(runtime)?)?;
    let sessions = [(OURS, &session)];
    measure_sessions(case, &sessions, runtime.n_threads(), peers, processes, n_passes, moment)
}

/// Measures as [`measure`], with several of devbay's sessions by name.
///
/// # Errors
/// As [`measure`].
pub fn measure_sessions(
    case: &Case<'_>,
    sessions: &[(&str, &Session)],
    n_threads: usize,
    peers: &Peers,
    processes: &mut [Process],
    n_passes: usize,
    moment: Duration,
) -> Result<(Figures, Ran)> {
    let inputs = read_npz(case.inputs)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let mut first: Option<Named> = None;
    // Outputs of each session's timed runs, filled with the marker byte beforehand.
    let written: Vec<RefCell<Vec<Vec<u8>>>> = sessions.iter().map(|_| RefCell::default()).collect();
    let mut subjects = Vec::new();
    // The expected content.
    let mut right: Vec<Vec<Tensor>> = Vec::new();
    for ((name, session), memory) in sessions.iter().zip(&written) {
        let names = session.outputs().iter().map(|port| port.name.to_string());
        let outputs: Named = names.zip(session.run(&given)?).collect();
        let views = session.in_order(&given)?;
        // No output consists of such bytes only.
        memory.replace(outputs.iter().map(|(_, tensor)| vec![UNWRITTEN; tensor.bytes().len()]).collect());
        right.push(outputs.iter().map(|(_, tensor)| tensor.clone()).collect());
        let expected = case.expected.or(first.as_deref());
        if let Some(expected) = expected {
            ensure_agree(&outputs, expected, case.tolerance).context((*name).to_owned())?;
        }
        first.get_or_insert(outputs);
        subjects.push(Subject::fallible(*name, 1.0, move || {
            let mut memory = memory.borrow_mut();
            let mut results: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
            Ok(session.run_into(&views, &mut results, &RunOptions::default())?)
        }));
    }
    let expected = case.expected.or(first.as_deref()).context("no session to measure")?;
    let mut theirs = Vec::new();
    for process in processes {
        let name = process.subject.clone();
        let loaded = process.load(n_threads, case.model, case.inputs);
        let agreed = loaded.and_then(|outputs| ensure_agree(&outputs, expected, case.tolerance));
        let agreed = match agreed {
            Err(error) if process.may_refuse => {
                eprintln!("{name} is left out of {}: {error:#}", case.model.display());
                None
            }
            agreed => peers.unless_required(&name, agreed)?,
        };
        theirs.extend(agreed.map(|()| process.runs(1.0)));
    }
    subjects.splice(0..0, theirs);
    let mut figures = passes(&mut subjects, n_passes, moment)?;
    for (_, nanos) in &mut figures {
        nanos.iter_mut().for_each(|figure| *figure /= 1e6);
    }
    drop(subjects);
    let (mut n_outputs, mut n_right) = (0, 0);
    for (written, right) in written.iter().zip(&right) {
        let written = written.borrow();
        n_outputs += right.len();
        n_right += written.iter().zip(right).filter(|(written, right)| **written == *right.bytes()).count();
    }
    Ok((figures, Ran::of("outputs", n_outputs, n_right)))
}
