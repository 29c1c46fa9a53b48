//! `serving`: 64 concurrent callers, each running a small model repeatedly, beside onnxruntime.
//!
//! Each caller is a thread, in devbay and in the peer, which is the one without Python: its callers would wait for each
//! other's interpreter. Both have one session, equally many threads for kernels, and inputs and outputs in the callers' own
//! memory. `threads` is the runtime's number of threads for kernels, besides the callers: with one, a caller does all of its
//! run itself.

use crate::agree::ensure_agree;
use crate::measure::{Figures, wait_for_rest};
use crate::peers::{Peer, Peers, Process};
use crate::ran::Ran;
use crate::rows::{OURS, Rows};
use crate::{cold_start, setup};
use anyhow::{Context, Result, ensure};
use devbay_core::Tensor;
use devbay_core::exec::host_io::InputView;
use devbay_core::tensor::AlignedBytes;
use devbay_host::arrays::write_npz;
use devbay_host::internals::compare::Tolerance;
use devbay_host::{Model, RunOptions, Session};
use nix::unistd::Pid;
use std::sync::Barrier;
use std::time::Instant;

const CALLERS: usize = 64;

/// Runs per turn: half a second, enough for every caller to get the processor.
const RUNS: usize = CALLERS * 100;

/// Begin and end of each call of a caller.
type Calls = Vec<(Instant, Instant)>;

/// Result of a turn: nanoseconds from start to end divided by the number of runs, and callers' waiting times.
type Served = [f64; 3];

/// Cases of these figures.
const CASES: [&str; 3] = ["mnist per run", "mnist p50", "mnist p99"];

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    if !CASES.iter().any(|case| rows.want(case)) {
        return Ok(());
    }
    let (path, pixels) = (cold_start::model(), cold_start::pixels()?);
    let model = Model::load(&path)?;
    let folder = tempfile::tempdir()?;
    let inputs = folder.path().join("inputs.npz");
    write_npz(&inputs, &[("input", &pixels)])?;
    let mut process = peers.start(&[Peer::OnnxruntimeNative])?.pop();
    for threads in setup::thread_counts() {
        let runtime = setup::runtime(threads)?;
        let session = Session::new(&model, &setup::device(&runtime)?)?;
        let outputs = session.run(&[("input", &pixels)])?;
        let names = session.outputs().iter().map(|port| port.name.to_string());
        let outputs: Vec<_> = names.zip(outputs).collect();
        if let Some(process) = &mut process {
            let theirs = process.load(threads, &path, &inputs)?;
            let tolerance = Tolerance { relative: 1e-4, absolute: 1e-5 };
            ensure_agree(&theirs, &outputs, tolerance).context(process.subject.clone())?;
        }
        let mut served: Vec<(String, Vec<Served>)> =
            process.iter().map(|process| (process.subject.clone(), Vec::new())).collect();
        served.push((OURS.to_owned(), Vec::new()));
        let mut counted = 0;
        // The pass before the first is not counted: it starts threads and allocates memory.
        for pass in 0..=n_passes {
            for turn in 0..served.len() {
                let at = (turn + pass) % served.len();
                let figures = match &mut process {
                    Some(process) if at == 0 => turn_of(process)?,
                    _ => {
                        let (figures, n_right) = our_turn(&session, &pixels, outputs[0].1.bytes())?;
                        counted += n_right;
                        figures
                    }
                };
                served[at].1.extend((pass > 0).then_some(figures));
            }
        }
        for (i, case) in CASES.iter().enumerate() {
            let micros = |served: &Vec<Served>| served.iter().map(|figures| figures[i] / 1e3).collect();
            let figures: Figures =
                served.iter().map(|(name, served)| (name.clone(), micros(served))).collect();
            let ran = Ran::of("runs", (n_passes + 1) * RUNS, counted);
            rows.case("serving", case, threads, "us", &figures, ran)?;
        }
    }
    Ok(())
}

fn turn_of(process: &mut Process) -> Result<Served> {
    let served = process.serve(CALLERS, RUNS)?;
    wait_for_rest(process.pid());
    Ok(served)
}

/// Makes a turn; also returns the number of its runs whose caller's last result is right.
fn our_turn(session: &Session, input: &Tensor, expected: &[u8]) -> Result<(Served, usize)> {
    let together = Barrier::new(CALLERS);
    let call = || -> Result<Calls> {
        let memory = AlignedBytes::zeroed(expected.len());
        together.wait();
        let (mut output, input) = (memory?, InputView::of(input));
        let mut calls = Vec::with_capacity(RUNS / CALLERS);
        for _ in 0..RUNS / CALLERS {
            let begin = Instant::now();
            session.run_into(&[input], &mut [output.as_mut_slice()], &RunOptions::default())?;
            calls.push((begin, Instant::now()));
        }
        ensure!(output.as_mut_slice() == expected, "a caller has another result");
        Ok(calls)
    };
    let calls = std::thread::scope(|scope| {
        let callers: Vec<_> = (0..CALLERS).map(|_| scope.spawn(call)).collect();
        let calls = callers.into_iter().map(|caller| caller.join().expect("a caller does not panic"));
        calls.collect::<Result<Vec<_>>>()
    });
    wait_for_rest(Pid::this());
    let calls = calls?.concat();
    let begin = calls.iter().map(|(begin, _)| begin).min().context("there are calls")?;
    let end = calls.iter().map(|(_, end)| end).max().context("there are calls")?;
    let nanos = |begin: &Instant, end: &Instant| end.duration_since(*begin).as_nanos() as f64;
    let mut waited: Vec<f64> = calls.iter().map(|(begin, end)| nanos(begin, end)).collect();
    waited.sort_by(f64::total_cmp);
    let at = |percent: usize| waited[(waited.len() * percent / 100).min(waited.len() - 1)];
    Ok(([nanos(begin, end) / waited.len() as f64, at(50), at(99)], waited.len()))
}
