//! `passes`: trained models on one thread, each on its first recorded inputs: with and without devbay's passes, with and
//! without onnxruntime's optimiser.
//!
//! A model that a subject cannot run is measured without that subject, with a note.

use crate::beside::measure_sessions;
use crate::models::{Recorded, first_of_each};
use crate::peers::{Peer, Peers, Process};
use crate::rows::{OURS, Rows};
use crate::setup;
use anyhow::{Result, ensure};
use devbay_core::passes::Switches;
use devbay_core::plan::PlanOptions;
use devbay_host::{Model, Runtime, Session};
use std::time::Duration;

/// Duration of a turn.
const MOMENT: Duration = Duration::from_millis(50);

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    let mut processes = peers.start(&[Peer::Onnxruntime])?;
    processes.extend(peers.start(&[Peer::Onnxruntime])?.into_iter().map(Process::unoptimised));
    let runtime = setup::runtime(1)?;
    let mut failed = Vec::new();
    for case in &first_of_each(rows, peers)? {
        if let Err(error) = measure(rows, case, &runtime, peers, &mut processes, n_passes) {
            eprintln!("{}: {error:#}", case.name);
            failed.push(case.name.clone());
        }
    }
    ensure!(failed.is_empty(), "these could not be measured: {}", failed.join(", "));
    Ok(())
}

fn measure(
    rows: &mut Rows,
    recorded: &Recorded,
    runtime: &Runtime,
    peers: &Peers,
    processes: &mut [Process],
    n_passes: usize,
) -> Result<()> {
    let model = Model::load(&recorded.model)?;
    let device = setup::device(runtime)?;
    let with = Session::new(&model, &device)?;
    let none = PlanOptions { passes: Switches::none(), ..PlanOptions::default() };
    // A model may need its passes: they fold ops that have no kernel.
    let without = Session::with_options(&model, &device, none)
        .inspect_err(|error| eprintln!("{} without passes: {error}", recorded.name));
    let mut sessions = vec![(OURS, &with)];
    sessions.extend(without.iter().map(|session| ("devbay, no passes", session)));
    let (figures, ran) =
        measure_sessions(&recorded.case(), &sessions, 1, peers, processes, n_passes, MOMENT)?;
    rows.case("passes", &recorded.name, 1, "ms", &figures, ran)
}
