//! rayon and tokio beside devbay: compute a graph when the benchmarks ask for it.
//!
//! With `rayon`, `rayon-inline` or `tokio` it obeys lines on its standard input, as `bench/src/peers.rs` describes:
//! `graph` and `run`. Neither library has graphs, so each node counts the predecessors that it still waits for. The
//! task that takes the count to 0 spawns the node; with `rayon-inline` the first such node is computed at once and the
//! others are spawned. The last predecessor also sets the count back, so that no run begins with a pass over all.

mod graph;

use anyhow::{Context, Result, bail};
use graph::Graph;
use rayon::Scope;
use std::io::{BufRead, Write, stdin, stdout};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::Notify;

/// The library that runs the tasks.
#[derive(Clone, Copy)]
enum Library {
    Rayon,
    RayonInline,
    Tokio,
}

/// A graph, and the threads that compute it.
struct Loaded {
    run: Arc<Run>,
    pool: Pool,
}

/// State that the tasks of a run share.
struct Run {
    graph: Graph,
    /// Notified by the last node, for libraries without another way to know the end.
    done: Notify,
}

enum Pool {
    Rayon(rayon::ThreadPool),
    RayonInline(rayon::ThreadPool),
    Tokio(tokio::runtime::Runtime),
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (library, name) = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["rayon"] => (Library::Rayon, format!("rayon {}", version("rayon")?)),
        ["rayon-inline"] => (Library::RayonInline, format!("rayon {} inline", version("rayon")?)),
        ["tokio"] => (Library::Tokio, format!("tokio {}", version("tokio")?)),
        _ => bail!("expected rayon, rayon-inline or tokio"),
    };
    reply(&format!("subject {name}"))?;
    let mut loaded = None;
    for line in stdin().lock().lines() {
        match obey(&line?, library, &mut loaded) {
            Ok(text) => reply(&text)?,
            Err(error) => reply(&format!("error {}", format!("{error:#}").replace('\n', " ")))?,
        }
    }
    Ok(())
}

fn reply(text: &str) -> Result<()> {
    let mut out = stdout().lock();
    writeln!(out, "{text}")?;
    Ok(out.flush()?)
}

fn obey(line: &str, library: Library, loaded: &mut Option<Loaded>) -> Result<String> {
    match line.split('\t').collect::<Vec<_>>()[..] {
        ["graph", threads, path] => {
            // The old graph goes first, with its threads.
            *loaded = None;
            let new = loaded.insert(Loaded::new(library, threads.parse()?, path)?);
            new.run();
            Ok(format!("value {}", new.run.graph.value()))
        }
        ["run", n] => {
            let loaded = loaded.as_ref().context("no graph is loaded")?;
            let n: u32 = n.parse()?;
            // The first run warms the caches and does not count.
            loaded.run();
            let begin = Instant::now();
            for _ in 0..n {
                loaded.run();
            }
            Ok(format!("ns {}", begin.elapsed().as_nanos() as f64 / f64::from(n)))
        }
        _ => bail!("unexpected line: {line}"),
    }
}

impl Loaded {
    fn new(library: Library, threads: usize, path: &str) -> Result<Self> {
        let rayon = || rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = match library {
            Library::Rayon => Pool::Rayon(rayon()?),
            Library::RayonInline => Pool::RayonInline(rayon()?),
            Library::Tokio => {
                Pool::Tokio(tokio::runtime::Builder::new_multi_thread().worker_threads(threads).build()?)
            }
        };
        let run = Run { graph: Graph::read(path)?, done: Notify::new() };
        Ok(Self { run: Arc::new(run), pool })
    }

    fn run(&self) {
        match &self.pool {
            Pool::Rayon(pool) => on_rayon(pool, &self.run.graph, spawned),
            Pool::RayonInline(pool) => on_rayon(pool, &self.run.graph, first_inline),
            Pool::Tokio(runtime) => on_tokio(runtime, &self.run),
        }
    }
}

fn on_rayon(pool: &rayon::ThreadPool, graph: &Graph, node: for<'a> fn(&'a Graph, &Scope<'a>, u32)) {
    pool.install(|| {
        rayon::scope(|scope| {
            for &source in graph.sources() {
                scope.spawn(move |scope| node(graph, scope, source));
            }
        });
    });
}

/// Each node is a task.
fn spawned<'a>(graph: &'a Graph, scope: &Scope<'a>, node: u32) {
    for ready in graph.compute(node) {
        scope.spawn(move |scope| spawned(graph, scope, ready));
    }
}

/// The first successor that is ready is computed at once.
fn first_inline<'a>(graph: &'a Graph, scope: &Scope<'a>, node: u32) {
    let mut next = Some(node);
    while let Some(node) = next.take() {
        for ready in graph.compute(node) {
            match next {
                None => next = Some(ready),
                Some(_) => scope.spawn(move |scope| first_inline(graph, scope, ready)),
            }
        }
    }
}

/// Each node is a task; the caller sleeps until the last one is done.
fn on_tokio(runtime: &tokio::runtime::Runtime, run: &Arc<Run>) {
    run.graph.begin();
    let run = Arc::clone(run);
    let all = async move {
        for &source in run.graph.sources() {
            spawn(Arc::clone(&run), source);
        }
        run.done.notified().await;
    };
    // On a worker, whose queue the tasks then begin in.
    let ended = runtime.block_on(async { tokio::spawn(all).await });
    ended.expect("nobody cancels it, and it does not panic");
}

fn spawn(run: Arc<Run>, node: u32) {
    tokio::spawn(async move {
        for ready in run.graph.compute(node) {
            spawn(Arc::clone(&run), ready);
        }
        if run.graph.end() {
            run.done.notify_one();
        }
    });
}

/// A library's version, as the lock file has it.
fn version(name: &str) -> Result<&'static str> {
    let mut lines = include_str!("../Cargo.lock").lines();
    lines.find(|line| line.strip_prefix("name = ") == Some(&format!("{name:?}"))).context("it is locked")?;
    let line = lines.next().context("a locked package has a version")?;
    Ok(line.trim_start_matches("version = \"").trim_end_matches('"'))
}
