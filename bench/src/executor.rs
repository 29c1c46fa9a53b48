//! `executor`: graphs of almost empty nodes, beside the executors of peers; conditionals and loops.
//!
//! The graphs are those of [`crate::graphs`]. Two forms of devbay take turns with every peer, which has one: in `tasks` each
//! node is a separate task, as in the peers; `coarse` is devbay's own division of the program. Values are compared before
//! anything is timed. With 1 us of work per node, devbay on two threads is compared with devbay on one. Conditionals and
//! loops are in [`crate::control`].

use crate::graphs::{Graph, SHAPES, Work};
use crate::measure::{Figures, Subject, passes};
use crate::peers::{Peer, Peers, Process, Workload};
use crate::ran::{self, Ran};
use crate::rows::{OURS, Rows};
use crate::setup::{self, Form};
use crate::{control, devices};
use anyhow::{Context, Result, ensure};
use devbay_core::exec::host_io::InputView;
use devbay_core::tensor::{AlignedBytes, Bytes, Tensor};
use devbay_host::{Model, RunOptions, Runtime, Session};
use std::time::{Duration, Instant};

/// Approximate numbers of nodes of graphs.
const SIZES: [usize; 4] = [1000, 10_000, 100_000, 1_000_000];

/// Maximum nodes that TensorFlow and onnxruntime load; larger graphs take them minutes.
const LOADED_MAX: usize = 10_000;

/// Passes for a million nodes, whose rounds take up to a second.
const PASSES_OF_MANY: usize = 7;

const MOMENT: Duration = Duration::from_millis(30);

const FORMS: [(&str, Form); 2] = [("tasks", Form::Tasks), ("coarse", Form::Coarse)];

/// Peers that load no model.
const LIBRARIES: [Peer; 4] = [Peer::OneTbb, Peer::Rayon, Peer::RayonInline, Peer::Tokio];

/// Peers that load a model.
const RUNTIMES: [Peer; 2] = [Peer::Onnxruntime, Peer::Tensorflow];

pub fn run(rows: &mut Rows, peers: &Peers, n_passes: usize) -> Result<()> {
    let mut libraries = peers.start(&LIBRARIES)?;
    let mut runtimes = peers.start(&RUNTIMES)?;
    if rows.want("one") {
        let graph = Graph::of("one", 1)?;
        for threads in setup::thread_counts() {
            let processes = libraries.iter_mut().chain(&mut runtimes);
            let (figures, counted) = measure(&graph, &FORMS[1..], threads, peers, processes, n_passes)?;
            let ran = Ran::launches(graph.len(), counted[0]);
            rows.case("executor", "one", threads, "ns", &of_form(&figures, "coarse"), ran)?;
        }
    }
    control::run(rows, peers, &mut runtimes, n_passes)?;
    devices::run(rows, n_passes)?;
    busy(rows, n_passes)?;
    for n in SIZES {
        for shape in SHAPES {
            let name = |form: &str| format!("{shape}-{n}/{form}");
            let forms: Vec<_> = FORMS.into_iter().filter(|(form, _)| rows.want(&name(form))).collect();
            if forms.is_empty() {
                continue;
            }
            let graph = Graph::of(shape, n)?;
            for threads in setup::thread_counts() {
                let few = runtimes.iter_mut().filter(|_| n <= LOADED_MAX);
                let processes = libraries.iter_mut().chain(few);
                let passes = if n < 1_000_000 { n_passes } else { n_passes.min(PASSES_OF_MANY) };
                let figures = measure(&graph, &forms, threads, peers, processes, passes);
                let (figures, counted) = figures.with_context(|| format!("{shape}-{n}"))?;
                for ((form, _), counted) in forms.iter().zip(counted) {
                    let ran = Ran::launches(graph.len(), counted);
                    rows.case("executor", &name(form), threads, "ns/node", &of_form(&figures, form), ran)?;
                }
            }
        }
    }
    Ok(())
}

/// Returns the nanoseconds per node of each peer, and of devbay in each form, under the form's name; and the launches of
/// each form.
fn measure<'p>(
    graph: &Graph,
    forms: &[(&str, Form)],
    threads: usize,
    peers: &Peers,
    processes: impl Iterator<Item = &'p mut Process>,
    n_passes: usize,
) -> Result<(Figures, Vec<usize>)> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("graph.txt");
    graph.write(&file)?;
    let runtime = setup::runtime_with_library(threads, "bench")?;
    let model = Model::from_program(graph.program(Work::Sum));
    let mut ours: Vec<(&str, Ours)> = Vec::new();
    for &(name, form) in forms {
        ours.push((name, Ours::new(&model, &runtime, form, graph)?));
    }
    let mut subjects = Vec::new();
    for process in processes {
        let name = process.subject.clone();
        let made = process.make(&Workload::Graph(&file), threads);
        if let Some(value) = peers.unless_required(&name, made)? {
            ensure_same(&value, graph).context(name)?;
            subjects.push(process.runs(graph.len() as f64));
        }
    }
    subjects.extend(ours.iter_mut().map(|(name, ours)| ours.subject(name, graph)));
    let figures = passes(&mut subjects, n_passes, MOMENT)?;
    drop(subjects);
    ours.iter().try_for_each(|(_, ours)| ours.check(graph))?;
    Ok((figures, ours.iter().map(|(_, ours)| ours.n_launches).collect()))
}

/// Returns the figures of the peers, and of devbay in one form.
fn of_form(figures: &Figures, form: &str) -> Figures {
    let is_form = |name: &str| FORMS.iter().any(|(form, _)| *form == name);
    let kept = figures.iter().filter(|(name, _)| name == form || !is_form(name));
    kept.map(|(name, figures)| (if name == form { OURS.to_owned() } else { name.clone() }, figures.clone()))
        .collect()
}

/// Compares devbay on two threads with devbay on one, with 1 us of work per node.
fn busy(rows: &mut Rows, n_passes: usize) -> Result<()> {
    for shape in ["wide", "layers"] {
        let case = format!("{shape}-10000-1us/coarse");
        if !rows.want(&case) {
            continue;
        }
        let graph = Graph::of(shape, 10_000)?;
        let model = Model::from_program(graph.program(Work::Busy(1000)));
        let mut ours: Vec<(usize, Ours)> = Vec::new();
        for threads in setup::thread_counts() {
            let runtime = setup::runtime_with_library(threads, "bench")?;
            ours.push((threads, Ours::new(&model, &runtime, Form::Coarse, &graph)?));
        }
        let mut subjects: Vec<_> = ours
            .iter_mut()
            .map(|(threads, ours)| ours.subject(if *threads == 1 { "devbay 1 thread" } else { OURS }, &graph))
            .collect();
        let mut figures = passes(&mut subjects, n_passes, MOMENT)?;
        drop(subjects);
        ours.iter().try_for_each(|(_, ours)| ours.check(&graph))?;
        let counted: usize = ours.iter().map(|(_, ours)| ours.n_launches).sum();
        let ran = Ran::launches(ours.len() * graph.len(), counted);
        if figures.len() > 1 {
            rows.case("executor", &case, 2, "ns/node", &figures, ran)?;
        }
        figures.truncate(1);
        OURS.clone_into(&mut figures[0].0);
        rows.case("executor", &case, 1, "ns/node", &figures, ran)?;
    }
    Ok(())
}

/// A graph in a session, and room for its value.
struct Ours {
    session: Session,
    zero: Tensor,
    value: AlignedBytes,
    /// Launches per run.
    n_launches: usize,
}

impl Ours {
    fn new(model: &Model, runtime: &Runtime, form: Form, graph: &Graph) -> Result<Self> {
        let begin = Instant::now();
        let device = setup::device(runtime)?;
        let session = setup::session_with(model, &device, form)?;
        let took = begin.elapsed();
        if took > Duration::from_millis(50) {
            eprintln!("executor: {} nodes were planned in {:.2} s", graph.len(), took.as_secs_f64());
        }
        let zero = Tensor::from_elements(&[1], &[0i64])?;
        let n_launches = ran::count(model, &device, form.plans(), &[("x", &zero)])?.launches;
        let mut new = Self { session, zero, value: AlignedBytes::zeroed(8)?, n_launches };
        new.run()?;
        new.check(graph)?;
        Ok(new)
    }

    fn run(&mut self) -> Result<()> {
        let input = InputView::of(&self.zero);
        Ok(self.session.run_into(&[input], &mut [self.value.as_mut_slice()], &RunOptions::default())?)
    }

    fn subject(&mut self, name: &str, graph: &Graph) -> Subject<'_> {
        Subject::fallible(name, graph.len() as f64, || self.run())
    }

    fn check(&self, graph: &Graph) -> Result<()> {
        let (expected, found) = (graph.value(), bytemuck::pod_read_unaligned::<i64>(self.value.bytes()));
        ensure!(found == expected, "devbay computed {found}, expected {expected}");
        Ok(())
    }
}

/// Checks that a peer has computed the graph's value: a 64-bit integer, or a number with a decimal point.
fn ensure_same(found: &str, graph: &Graph) -> Result<()> {
    let same = match found.parse::<i64>() {
        Ok(found) => found == graph.value(),
        Err(_) => {
            let expected = graph.value_f64();
            (found.parse::<f64>()? - expected).abs() <= 1e-9 * expected
        }
    };
    ensure!(same, "it computed {found}, expected {} or {}", graph.value(), graph.value_f64());
    Ok(())
}
