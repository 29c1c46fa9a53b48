//! `arena`: memory of a trained model's run besides its constants, inputs and results, on one thread and on its first
//! recorded inputs. Compares devbay's arena with the memory that onnxruntime's arena allocator holds after three runs,
//! including the one block that onnxruntime plans after the first run.
//!
//! Both keep constants elsewhere. onnxruntime's arena grows by the requested sizes, instead of its default powers of two.

use crate::agree::{Named, ensure_agree};
use crate::beside::Case;
use crate::models::{Recorded, first_of_each};
use crate::peers::{Peer, Peers};
use crate::ran::Ran;
use crate::rows::{OURS, Rows};
use crate::setup;
use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_host::arrays::read_npz;
use devbay_host::{Model, Session};

const KIB: f64 = 1024.0;

pub fn run(rows: &mut Rows, peers: &Peers, _n_passes: usize) -> Result<()> {
    let peer = peers.unless_required(Peer::Onnxruntime.name(), peers.subject(Peer::Onnxruntime))?;
    for case in &first_of_each(rows, peers)? {
        let Some((ours, ran)) = ours(case)? else {
            eprintln!("{} is left out: stages of it are planned when they are reached", case.name);
            continue;
        };
        let mut figures = vec![(OURS.to_owned(), vec![ours / KIB])];
        if let Some(subject) = &peer {
            let [taken, planned] = theirs(peers, case)?;
            figures.push((subject.clone(), vec![taken / KIB]));
            figures.extend((planned > 0.0).then(|| (format!("{subject}, planned"), vec![planned / KIB])));
        }
        rows.case("arena", &case.name, 1, "KiB", &figures, ran)?;
    }
    Ok(())
}

/// Returns the bytes of a plan's arenas, and the outputs that a run gets right; None if the plan leaves a part of the model
/// for run time.
fn ours(case: &Recorded) -> Result<Option<(f64, Ran)>> {
    let runtime = setup::runtime(1)?;
    let session = Session::new(&Model::load(&case.model)?, &setup::device(&runtime)?)?;
    let inputs = read_npz(&case.inputs)?;
    let given: Vec<(&str, &Tensor)> = inputs.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    let plan = session.plan_for(&given)?;
    let report = session.plan_report(&plan);
    let bytes: usize = report.sections().map(|section| section.memory.arena).sum();
    if report.n_unplanned() > 0 {
        return Ok(None);
    }
    let names = session.outputs().iter().map(|port| port.name.to_string());
    let found: Named = names.zip(session.run(&given)?).collect();
    let Case { expected, tolerance, .. } = case.case();
    let expected = expected.unwrap_or_default();
    ensure_agree(&found, expected, tolerance)?;
    Ok(Some((bytes as f64, Ran::of("outputs", expected.len(), found.len()))))
}

/// Returns the memory that onnxruntime's arena holds, and its largest block since the second run began.
fn theirs(peers: &Peers, case: &Recorded) -> Result<[f64; 2]> {
    let mut command = peers.command(Peer::Onnxruntime)?;
    let output = command.arg("arena").arg(&case.model).arg(&case.inputs).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "onnxruntime on {}: {said}", case.name);
    let text = String::from_utf8_lossy(&output.stdout);
    let figures: Vec<f64> = text.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    <[f64; 2]>::try_from(figures).ok().context("onnxruntime's arena is two figures")
}
