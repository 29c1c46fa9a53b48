//! One model on one input, by devbay and by its peers: outputs are compared, then runs are timed.

use crate::agree::{Named, ensure_agree};
use crate::measure::{Figures, Subject, passes};
use crate::peers::{Peers, Process};
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
    let model = Model::load(case.model)?;
    let session = Session::new(&model, &setup::device(runtime)?)?;
    let inputs = read_npz(case.inputs)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let names = session.outputs().iter().map(|port| port.name.to_string());
    let outputs: Named = names.zip(session.run(&given, &RunOptions::default())?).collect();
    if let Some(expected) = case.expected {
        ensure_agree(&outputs, expected, case.tolerance).context("devbay")?;
    }
    let expected = case.expected.unwrap_or(&outputs);

    let views = session.in_order(&given)?;
    let mut memory: Vec<Vec<u8>> =
        outputs.iter().map(|(_, tensor)| vec![0u8; tensor.bytes().len()]).collect();
    let mut subjects = Vec::new();
    for process in processes {
        let name = process.subject.clone();
        let loaded = process.load(runtime.n_threads(), case.model, case.inputs);
        if let Some(outputs) = peers.unless_required(&name, loaded)? {
            ensure_agree(&outputs, expected, case.tolerance).context(name)?;
            subjects.push(process.runs(1.0));
        }
    }
    subjects.push(Subject::fallible("devbay", 1.0, || {
        let mut results: Vec<&mut [u8]> = memory.iter_mut().map(Vec::as_mut_slice).collect();
        Ok(session.run_into(&views, &mut results, &RunOptions::default())?)
    }));
    let mut figures = passes(&mut subjects, n_passes, moment)?;
    for (_, nanos) in &mut figures {
        nanos.iter_mut().for_each(|figure| *figure /= 1e6);
    }
    Ok(figures)
}
