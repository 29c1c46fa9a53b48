//! The parent's part: workers, what became of each case on each side, and which failures have one cause.

use super::corpus::{Case, Corpus};
use super::outcome::Outcome;
use super::worker::{MARK, Said};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// A device that the corpus runs on.
#[derive(Clone, Debug)]
pub struct Side {
    /// Its name in tables: the plugin's, and the instruction set.
    pub name: String,
    /// The device as the command has it: `cpu`, `wgpu:0`.
    pub device: String,
    /// The plugin.
    pub library: PathBuf,
    /// Variables of the worker's environment.
    pub environment: Vec<(String, String)>,
}

/// Settings for starting workers.
#[derive(Clone, Debug)]
pub struct Workers {
    /// The program and its first arguments; the plugin follows. It does as [`super::worker::work`].
    pub program: PathBuf,
    /// Arguments before the plugin.
    pub arguments: Vec<OsString>,
    /// Cases that a worker is given.
    pub batch: usize,
    /// Time limit of a case from its beginning to its end, the worker's own deadline included.
    pub limit: Duration,
}

/// Time limit for a worker to load its plugin and read the seeds.
const START_MAX: Duration = Duration::from_secs(300);

/// Workers that may end one after the other without having begun a case.
const FALSE_STARTS_MAX: usize = 3;

/// Outcomes of every case on one side.
#[derive(Debug)]
pub struct SideOutcomes {
    /// The side.
    pub side: Side,
    /// Outcomes, in the order of the cases.
    pub outcomes: Vec<Outcome>,
}

/// Runs all cases on a side; calls `progress` with how many are done.
///
/// # Errors
/// In words, if workers do not start: there is no such device on this machine, or the plugin does not load.
pub fn run_side(
    side: &Side,
    workers: &Workers,
    cases: &[Case],
    progress: &mut dyn FnMut(usize),
) -> Result<SideOutcomes, String> {
    let mut outcomes: Vec<Outcome> = Vec::with_capacity(cases.len());
    let mut false_starts = 0;
    while outcomes.len() < cases.len() {
        let rest = &cases[outcomes.len()..];
        let before = outcomes.len();
        let batch = &rest[..rest.len().min(workers.batch.max(1))];
        let last_words = run_batch(side, workers, batch, &mut outcomes).map_err(|error| error.to_string())?;
        progress(outcomes.len());
        if outcomes.len() > before {
            false_starts = 0;
            continue;
        }
        false_starts += 1;
        if false_starts == FALSE_STARTS_MAX {
            return Err(format!("{}: workers start no case; the last one wrote: {last_words}", side.name));
        }
    }
    Ok(SideOutcomes { side: side.clone(), outcomes })
}

/// One worker; adds outcomes until it has ended, and returns its last words.
fn run_batch(
    side: &Side,
    workers: &Workers,
    cases: &[Case],
    outcomes: &mut Vec<Outcome>,
) -> io::Result<String> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(&workers.program);
    command.args(&workers.arguments).arg(&side.library);
    command.env("RUST_BACKTRACE", "0");
    command.envs(side.environment.iter().map(|(key, value)| (key, value)));
    command.stdin(Stdio::piped()).stdout(writer.try_clone()?).stderr(writer);
    let mut process = command.spawn()?;
    // The pipe's other ends are in the command.
    drop(command);
    if let Some(mut stdin) = process.stdin.take() {
        let names: String = cases.iter().map(|case| format!("{case}\n")).collect();
        std::thread::spawn(move || drop(stdin.write_all(names.as_bytes())));
    }
    let lines = lines_of(reader);
    let mut hearing = Hearing { begun: None, words: Vec::new(), panic: None };
    let mut until = Instant::now() + START_MAX;
    let ended = loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) => match line.strip_prefix(MARK).and_then(|text| serde_json::from_str(text).ok()) {
                Some(Said::Ready) => until = Instant::now() + workers.limit,
                Some(Said::Begin(i)) => {
                    hearing = Hearing { begun: Some(i), words: Vec::new(), panic: None };
                    until = Instant::now() + workers.limit;
                }
                Some(Said::End(_, outcome)) => {
                    hearing.begun = None;
                    outcomes.push(hearing.panic.take().map_or(outcome, Outcome::Panic));
                    // Opening the device anew takes its time.
                    until = Instant::now() + START_MAX;
                }
                None => hearing.hear(line),
            },
            Err(RecvTimeoutError::Disconnected) => break Some(process.wait()?),
            Err(RecvTimeoutError::Timeout) => break None,
        }
    };
    if ended.is_none() {
        end(&mut process)?;
    }
    if hearing.begun.is_some() {
        outcomes.push(hearing.outcome(ended));
    }
    Ok(hearing.words.join(" | "))
}

fn end(process: &mut Child) -> io::Result<()> {
    process.kill()?;
    process.wait().map(drop)
}

/// Messages of a worker since the case began.
struct Hearing {
    begun: Option<usize>,
    words: Vec<String>,
    panic: Option<String>,
}

/// Lines of a case that are kept.
const WORDS_MAX: usize = 8;

impl Hearing {
    fn hear(&mut self, line: String) {
        if line.trim().is_empty() {
            return;
        }
        // The message is on the next line.
        if let Some(panic) = &mut self.panic
            && panic.ends_with(':')
        {
            *panic = format!("{panic} {line}");
        }
        if self.panic.is_none()
            && let Some((_, place)) = line.split_once("panicked at ")
        {
            self.panic = Some(place.to_owned());
        }
        // The first lines tell the failure; a backtrace follows.
        if self.words.len() < WORDS_MAX {
            self.words.push(line);
        }
    }

    /// Returns the outcome of a case during which the process ended, or had to be ended.
    fn outcome(&mut self, ended: Option<ExitStatus>) -> Outcome {
        let Some(status) = ended else { return Outcome::Hung };
        let words = self.words.join(" | ");
        if words.contains("memory allocation of") {
            return Outcome::AbortedForMemory(words);
        }
        let signal = signal(status);
        match signal {
            Some(ABORT) => Outcome::Aborted(words),
            Some(signal) => Outcome::Crashed(format!("signal {signal} {words}")),
            None => Outcome::Aborted(format!("{status} {words}")),
        }
    }
}

/// SIGABRT.
const ABORT: i32 = 6;

#[cfg(unix)]
fn signal(status: ExitStatus) -> Option<i32> {
    std::os::unix::process::ExitStatusExt::signal(&status)
}

#[cfg(not(unix))]
fn signal(_status: ExitStatus) -> Option<i32> {
    None
}

/// Reads lines in a thread of its own.
fn lines_of(pipe: io::PipeReader) -> mpsc::Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut reader = BufReader::new(pipe);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|n| n > 0) {
            if sender.send(String::from_utf8_lossy(&line).trim_end().to_owned()).is_err() {
                return;
            }
            line.clear();
        }
    });
    receiver
}

/// Failures that look alike: of one op, with the same end.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The outcome's class, or `disagreement`.
    pub class: &'static str,
    /// The op.
    pub op: String,
    /// The first case and side.
    pub case: Case,
    /// As above.
    pub side: Side,
    /// Finding there.
    pub text: String,
    /// Number of cases, all sides counted.
    pub n: usize,
    /// The sides that have it.
    pub sides: Vec<String>,
}

/// Ops whose results are random.
fn is_random(op: &str) -> bool {
    op.starts_with("Random") || matches!(op, "Bernoulli" | "Multinomial" | "Dropout")
}

/// Finds disagreements of devices, by case and side: each side beside the first one, and each beside itself where one
/// case has as a constant what another has as an input.
pub fn disagreements(corpus: &Corpus, cases: &[Case], sides: &[SideOutcomes]) -> Vec<(usize, usize, String)> {
    let Some((first, others)) = sides.split_first() else { return Vec::new() };
    let mut found = Vec::new();
    let at: BTreeMap<&Case, usize> = cases.iter().enumerate().map(|(i, case)| (case, i)).collect();
    for (i, case) in cases.iter().enumerate().filter(|(_, case)| !is_random(&corpus.op(case))) {
        let Some(&late) = corpus.given_late(case).and_then(|late| at.get(&late)) else { continue };
        let large = corpus.is_large(case);
        for (side, SideOutcomes { outcomes, .. }) in sides.iter().enumerate() {
            if let Some(text) = outcomes[i].difference_given_late(&outcomes[late], large) {
                found.push((i, side, format!("as a constant and as an input: {text}")));
            }
        }
    }
    for (i, case) in cases.iter().enumerate() {
        if is_random(&corpus.op(case)) {
            continue;
        }
        let large = corpus.is_large(case);
        for (side, other) in others.iter().enumerate() {
            if let Some(text) = first.outcomes[i].difference(&other.outcomes[i], large) {
                found.push((i, side + 1, text));
            }
        }
    }
    found
}

/// Returns all failures, those that look alike together, most frequent first.
pub fn findings(corpus: &Corpus, cases: &[Case], sides: &[SideOutcomes]) -> Vec<Finding> {
    let mut groups: BTreeMap<(String, &'static str, String), Finding> = BTreeMap::new();
    let mut add = |class: &'static str, i: usize, side: &Side, text: &str| {
        let case = &cases[i];
        let op = corpus.op(case);
        let key = (op.clone(), class, without_numbers(text));
        let finding = groups.entry(key).or_insert_with(|| Finding {
            class,
            op,
            case: case.clone(),
            side: side.clone(),
            text: text.to_owned(),
            n: 0,
            sides: Vec::new(),
        });
        finding.n += 1;
        if !finding.sides.contains(&side.name) {
            finding.sides.push(side.name.clone());
        }
    };
    for side in sides {
        for (i, outcome) in side.outcomes.iter().enumerate().filter(|(_, outcome)| outcome.is_failure()) {
            add(outcome.class(), i, &side.side, outcome.text());
        }
    }
    for (i, side, text) in disagreements(corpus, cases, sides) {
        add("disagreement", i, &sides[side].side, &text);
    }
    let mut findings: Vec<Finding> = groups.into_values().collect();
    findings.sort_by(|a, b| a.class.cmp(b.class).then(b.n.cmp(&a.n)));
    findings
}

/// Returns a text without digits, so that places and sizes do not tell alike failures apart.
fn without_numbers(text: &str) -> String {
    let mut short: String = text.chars().filter(|c| !c.is_ascii_digit()).take(120).collect();
    short.retain(|c| c != '-');
    short
}

/// Writes the model and inputs of a case into a folder, and returns the command that runs it.
///
/// # Errors
/// If a file cannot be written.
pub fn reproduce(corpus: &Corpus, case: &Case, side: &Side, folder: &Path) -> io::Result<String> {
    std::fs::create_dir_all(folder)?;
    let model = corpus.model(case).ok_or_else(|| io::Error::other(format!("case {case} does not exist")))?;
    let path = folder.join("model.onnx");
    std::fs::write(&path, &model.model)?;
    let environment = side.environment.iter().map(|(key, value)| format!("{key}={value} "));
    let mut command: String = environment.collect();
    command.push_str(&format!("devbay run {} --deadline-ms 5000", path.display()));
    for (i, (name, bytes)) in model.inputs.iter().enumerate() {
        let file = folder.join(format!("input_{i}.pb"));
        std::fs::write(&file, bytes)?;
        command.push_str(&format!(" --input {name}={}", file.display()));
    }
    command.push_str(&format!(" --plugin {} --device {}", side.library.display(), side.device));
    std::fs::write(folder.join("command.txt"), format!("{command}\n"))?;
    Ok(command)
}
