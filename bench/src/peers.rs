//! Peers: other runtimes, each in a separate process, so that subjects take turns within a pass.
//!
//! A peer prints `subject NAME VERSION` when it starts. Then it reads commands, one per line with words separated by tabs,
//! and answers each with one line:
//!
//! | line | action | answer |
//! | --- | --- | --- |
//! | `load THREADS MODEL INPUTS OUTPUTS` | loads the model in place of the previous one, runs it once on the arrays of the archive INPUTS and writes its outputs to the archive OUTPUTS, under the model's names | `loaded` |
//! | `unoptimised THREADS MODEL INPUTS OUTPUTS` | as `load`, without any optimisation of the model | `loaded` |
//! | `graph THREADS FILE` | builds the graph of FILE ([`crate::graphs`]) in its place, and computes it once | `value VALUE`, of the last node |
//! | `cond THREADS N`, `loop THREADS N` | builds N conditionals, or a loop of N iterations ([`crate::control`]), and computes them once, from 0 | `value VALUE` |
//! | `run N` | runs once, and then N times | `ns NANOSECONDS`, per run of the N |
//! | `serve CALLERS N` | runs the model N times, from CALLERS threads at once | `served NANOSECONDS P50 P99`: total over N,
//! and callers' waiting times |
//!
//! A peer answers `error` and the reason if it cannot execute a command or does not know it. It ends at the end of its
//! input.

use crate::agree::Named;
use crate::measure::Subject;
use anyhow::{Context, Result, bail, ensure};
use devbay_host::arrays;
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// Locations of the peers, from the command line.
#[derive(clap::Args)]
pub struct Peers {
    /// The program bench/peers/rten
    #[arg(long, value_name = "PROGRAM")]
    rten: Option<PathBuf>,
    /// The program bench/peers/onnxruntime, which calls onnxruntime without Python
    #[arg(long, value_name = "PROGRAM")]
    onnxruntime_native: Option<PathBuf>,
    /// A Python with the packages of bench/python/requirements.txt
    #[arg(long, value_name = "PROGRAM")]
    onnxruntime: Option<PathBuf>,
    /// The same, for OpenVINO
    #[arg(long, value_name = "PROGRAM")]
    openvino: Option<PathBuf>,
    /// The program bench/peers/onetbb
    #[arg(long, value_name = "PROGRAM")]
    onetbb: Option<PathBuf>,
    /// The program bench/peers/rust-graph
    #[arg(long, value_name = "PROGRAM")]
    rust_graph: Option<PathBuf>,
    /// A Python with the packages of bench/python/requirements-tensorflow.txt
    #[arg(long, value_name = "PROGRAM")]
    tensorflow: Option<PathBuf>,
    /// A folder with the models generated for benchmarks
    #[arg(long, value_name = "DIR")]
    generated: Option<PathBuf>,
    /// Reason why a peer is missing
    #[arg(long, value_name = "PEER=REASON")]
    missing: Vec<String>,
    /// Fail if a peer is missing, instead of continuing without it
    #[arg(long)]
    require_peers: bool,
}

/// The other runtimes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// rten, called from a Rust program.
    Rten,
    /// onnxruntime, called from a Python program.
    Onnxruntime,
    /// OpenVINO, called from a Python program.
    Openvino,
    /// onnxruntime through its C functions, for figures that Python would dominate.
    OnnxruntimeNative,
    /// oneTBB's flow graph.
    OneTbb,
    /// rayon, one task per node.
    Rayon,
    /// rayon, computing the first successor at once.
    RayonInline,
    /// tokio, one task per node.
    Tokio,
    /// TensorFlow's sessions.
    Tensorflow,
}

impl Peer {
    /// Returns its name in the options; some peers share a program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rten => "rten",
            Self::Onnxruntime => "onnxruntime",
            Self::Openvino => "openvino",
            Self::OnnxruntimeNative => "onnxruntime-native",
            Self::OneTbb => "onetbb",
            Self::Rayon | Self::RayonInline | Self::Tokio => "rust-graph",
            Self::Tensorflow => "tensorflow",
        }
    }

    /// Returns whether it lacks ops of some models that devbay runs.
    fn may_refuse(self) -> bool {
        matches!(self, Self::Rten | Self::Openvino)
    }
}

impl Peers {
    /// Starts the peers as processes; skips unavailable ones with a message.
    ///
    /// # Errors
    /// For an unavailable peer, with `--require-peers`.
    pub fn start(&self, peers: &[Peer]) -> Result<Vec<Process>> {
        let mut processes = Vec::new();
        for &peer in peers {
            let mut started =
                self.unless_required(peer.name(), self.command(peer).and_then(Process::start))?;
            started.iter_mut().for_each(|process| process.may_refuse = peer.may_refuse());
            processes.extend(started);
        }
        Ok(processes)
    }

    /// Returns a peer's name for itself.
    ///
    /// # Errors
    /// For an unavailable peer.
    pub fn subject(&self, peer: Peer) -> Result<String> {
        Ok(Process::start(self.command(peer)?)?.subject.clone())
    }

    /// Returns a peer's command.
    ///
    /// # Errors
    /// For a missing peer, with the reason.
    pub fn command(&self, peer: Peer) -> Result<Command> {
        let program = match peer {
            Peer::Rten => &self.rten,
            Peer::Onnxruntime => &self.onnxruntime,
            Peer::Openvino => &self.openvino,
            Peer::OnnxruntimeNative => &self.onnxruntime_native,
            Peer::OneTbb => &self.onetbb,
            Peer::Rayon | Peer::RayonInline | Peer::Tokio => &self.rust_graph,
            Peer::Tensorflow => &self.tensorflow,
        };
        let Some(program) = program else {
            let reasons = self.missing.iter().filter_map(|text| text.split_once('='));
            let reason = reasons.into_iter().find(|(name, _)| *name == peer.name()).map(|(_, reason)| reason);
            bail!("{}", reason.unwrap_or("its path is unknown; `cargo xtask bench` passes it"));
        };
        let mut command = Command::new(program);
        let argument = match peer {
            Peer::Onnxruntime => concat!(env!("CARGO_MANIFEST_DIR"), "/python/onnxruntime_peer.py"),
            Peer::Openvino => concat!(env!("CARGO_MANIFEST_DIR"), "/python/openvino_peer.py"),
            Peer::Tensorflow => concat!(env!("CARGO_MANIFEST_DIR"), "/python/tensorflow_peer.py"),
            Peer::Rayon => "rayon",
            Peer::RayonInline => "rayon-inline",
            Peer::Tokio => "tokio",
            Peer::Rten | Peer::OnnxruntimeNative | Peer::OneTbb => return Ok(command),
        };
        command.arg(argument);
        Ok(command)
    }

    /// Returns the folder of a model generated for a benchmark.
    ///
    /// # Errors
    /// For a missing model.
    pub fn generated(&self, name: &str) -> Result<PathBuf> {
        let folder = self.generated.as_ref().map(|folder| folder.join(name));
        let made = folder.filter(|folder| folder.join("model.onnx").exists());
        made.with_context(|| {
            format!("{name} has no model: `cargo xtask bench` makes one, for which it needs Python")
        })
    }

    /// Returns a peer's result. Unless peers are required, an error is printed and becomes None.
    ///
    /// # Errors
    /// The peer's error, with `--require-peers`.
    pub fn unless_required<T>(&self, peer: &str, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(result) => Ok(Some(result)),
            Err(error) if self.require_peers => Err(error.context(format!("{peer} is required"))),
            Err(error) => {
                eprintln!("{peer} is missing: {error:#}");
                Ok(None)
            }
        }
    }
}

/// A workload that is not a model.
pub enum Workload<'a> {
    /// The graph in a file.
    Graph(&'a Path),
    /// A number of conditionals, one after the other.
    Conditionals(usize),
    /// A loop with a number of iterations.
    Loop(usize),
}

/// A running peer.
pub struct Process {
    /// Its own name and version.
    pub subject: String,
    /// True if it does not load every model that devbay runs: then it is not missing, and cannot be required.
    pub may_refuse: bool,
    /// Its command for loading models.
    loads: &'static str,
    child: Child,
    commands: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Process {
    fn start(mut command: Command) -> Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", command.get_program().display()))?;
        let commands = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut process =
            Self { subject: String::new(), may_refuse: false, loads: "load", child, commands, answers };
        process.subject = process.answer("subject")?;
        Ok(process)
    }

    /// Makes the process load models without optimisation from now on.
    #[must_use]
    pub fn unoptimised(mut self) -> Self {
        self.subject += ", as written";
        self.loads = "unoptimised";
        self
    }

    /// Loads a model, and returns its outputs for these inputs.
    ///
    /// # Errors
    /// The peer's error.
    pub fn load(&mut self, threads: usize, model: &Path, inputs: &Path) -> Result<Named> {
        let folder = tempfile::tempdir()?;
        let outputs = folder.path().join("outputs.npz");
        let (model, inputs) = (model.canonicalize()?, inputs.canonicalize()?);
        self.say(&format!(
            "{}\t{threads}\t{}\t{}\t{}",
            self.loads,
            model.display(),
            inputs.display(),
            outputs.display()
        ))?;
        self.answer("loaded")?;
        Ok(arrays::read_npz(&outputs)?)
    }

    /// Builds a workload, and returns its value.
    ///
    /// # Errors
    /// The peer's error.
    pub fn make(&mut self, workload: &Workload<'_>, threads: usize) -> Result<String> {
        self.say(&match workload {
            Workload::Graph(file) => format!("graph\t{threads}\t{}", file.display()),
            Workload::Conditionals(n) => format!("cond\t{threads}\t{n}"),
            Workload::Loop(n) => format!("loop\t{threads}\t{n}"),
        })?;
        self.answer("value")
    }

    /// Runs the loaded model from `n_callers` threads at once; see [`crate::serving`].
    ///
    /// # Errors
    /// The peer's error.
    pub fn serve(&mut self, n_callers: usize, n_runs: usize) -> Result<[f64; 3]> {
        self.say(&format!("serve\t{n_callers}\t{n_runs}"))?;
        let answer = self.answer("served")?;
        let figures: Vec<f64> = answer.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        <[f64; 3]>::try_from(figures).map_err(|other| anyhow::anyhow!("{other:?} are not three figures"))
    }

    /// Returns the process id.
    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Returns the loaded workload as a subject, whose run counts as `per` things.
    pub fn runs(&mut self, per: f64) -> Subject<'_> {
        Subject::elsewhere(self.subject.clone(), self.pid(), per, move |n| {
            self.say(&format!("run\t{n}"))?;
            Ok(self.answer("ns")?.parse()?)
        })
    }

    fn say(&mut self, line: &str) -> Result<()> {
        let commands = self.commands.as_mut().context("it listens until it is dropped")?;
        writeln!(commands, "{line}").with_context(|| format!("{} does not listen", self.subject))
    }

    /// Returns the text after the expected word.
    fn answer(&mut self, expected: &str) -> Result<String> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(!line.is_empty(), "it ended without an answer");
        let (word, rest) = line.trim_end().split_once(' ').unwrap_or((line.trim_end(), ""));
        ensure!(word != "error", "{rest}");
        ensure!(word == expected, "it answered `{}`, expected `{expected}`", line.trim_end());
        Ok(rest.to_owned())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Closing its input ends the process; its exit status no longer matters.
        self.commands = None;
        let _ = self.child.wait();
    }
}
