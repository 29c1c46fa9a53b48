//! The worker's part: runs cases on one device, and says before and after each where it is.
//!
//! It reads the names of cases from standard input, a line each. What it says goes to standard output on lines that
//! begin with a mark; the parent reads its standard error on the same pipe, so that a panic's message falls between the
//! lines of its case, also that of a plugin library with a panic hook of its own.

use super::corpus::{Case, Corpus};
use super::outcome::{Classes, Outcome};
use super::seed::HostileModel;
use crate::measure::limit_mapped;
use crate::subject::Subject;
use devbay_host::internals::import::{from_bytes, read_tensor};
use devbay_host::{Device, ErrorKind, Model, Result, RunOptions, Runtime, Session};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::sync::Arc;
use std::time::Duration;

/// Begins each line of a worker's.
pub(super) const MARK: &str = "@devbay-hostile ";

/// Message of a worker.
#[derive(Serialize, Deserialize)]
pub(super) enum Said {
    /// The device is open.
    Ready,
    /// The case at this position is begun.
    Begin(usize),
    /// It has ended.
    End(usize, Outcome),
}

/// Settings of a worker.
#[derive(Clone)]
pub struct Work {
    /// The plugin, as a library.
    pub subject: Subject,
    /// Options of the plugin.
    pub options: Vec<(String, String)>,
    /// When a run ends itself.
    pub deadline: Duration,
    /// Bytes that the process may map besides those that it has when the device is open.
    pub memory_max: u64,
}

/// Runs the cases whose names are on standard input.
///
/// # Errors
/// In words: a case that there is none of, a plugin that has no device here, standard input or output that fails.
pub fn work(work: &Work) -> std::result::Result<(), String> {
    let lines = std::io::stdin().lock().lines();
    let cases: Vec<Case> = lines
        .map(|line| line.map_err(|error| error.to_string())?.parse())
        .collect::<std::result::Result<_, _>>()?;
    let corpus = Corpus::of_names(cases.iter().map(|case| case.seed.as_str()));
    let mut open = Some(open(work)?);
    say(&Said::Ready)?;
    // An absent limit leaves the system's.
    let _ = limit_mapped(work.memory_max);
    for (i, case) in cases.iter().enumerate() {
        let model = corpus.model(case).ok_or_else(|| format!("case {case} does not exist"))?;
        let (_, device) = match &open {
            Some(open) => open,
            None => open.insert(self::open(work)?),
        };
        say(&Said::Begin(i))?;
        let outcome = match run(&model, device, work.deadline) {
            Ok(classes) => Outcome::Ok(classes),
            Err(error) => {
                // The remains of a plugin that failed are not the next case's business.
                if !is_verdict(error.kind()) {
                    open = None;
                }
                Outcome::of_error(&error)
            }
        };
        say(&Said::End(i, outcome))?;
    }
    Ok(())
}

type Open = (Runtime, Arc<Device>);

fn open(work: &Work) -> std::result::Result<Open, String> {
    let (runtime, devices) = work.subject.devices(&work.options).map_err(|verdict| format!("{verdict:?}"))?;
    let device = devices.into_iter().next().ok_or("the plugin has no device")?;
    Ok((runtime, device))
}

/// Imports, plans and runs.
fn run(hostile: &HostileModel, device: &Arc<Device>, deadline: Duration) -> Result<Vec<Classes>> {
    // Import, passes and planning may panic too: the hook has reported it on standard error.
    devbay_host::internals::core::error::caught("the host", || {
        let program = from_bytes(hostile.model.clone(), None)?;
        let inputs: Vec<_> = hostile
            .inputs
            .iter()
            .map(|(name, bytes)| Ok((name.as_str(), read_tensor(bytes.clone())?)))
            .collect::<Result<_>>()?;
        let session = Session::new(&Model::from_program(program), device)?;
        let given: Vec<_> = inputs.iter().map(|(name, tensor)| (*name, tensor)).collect();
        let options = RunOptions { deadline: Some(deadline), ..RunOptions::default() };
        let results = session.run_with(&given, &options)?;
        Ok(results.iter().map(Classes::of).collect())
    })
    .and_then(|result: Result<Vec<Classes>>| result)
}

/// Returns whether an error is about the model, and leaves the device as it was.
fn is_verdict(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::InvalidModel
            | ErrorKind::UnsupportedModel
            | ErrorKind::UnsupportedOp
            | ErrorKind::InvalidInput
    )
}

fn say(said: &Said) -> std::result::Result<(), String> {
    let text = serde_json::to_string(said).map_err(|error| error.to_string())?;
    // In one piece, on a line of its own, after anything that was printed before.
    let line = format!("\n{MARK}{text}\n");
    let mut out = std::io::stdout().lock();
    out.write_all(line.as_bytes()).and_then(|()| out.flush()).map_err(|error| error.to_string())
}
