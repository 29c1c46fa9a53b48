//! A process of its own for tests, so that a plugin that aborts or hangs costs one of them.
//!
//! A child is this program's own command, which calls [`answer`] and prints the lines that it gives. They begin with a
//! word that the parent made up and the child reads from its standard input before it loads the plugin, so that what
//! the plugin prints is a finding, and is not mistaken for a verdict.

use crate::case;
use crate::judge::{NodeJudge, Settings, Subject, run_here};
use crate::onnx;
use crate::report::Identity;
use crate::suite::Item;
use crate::verdict::{Failure, Verdict};
use devbay_host::Cancel;
use devbay_host::internals::group::Group;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Begins a line with a child's verdict; the parent's word follows.
const MARK: &str = "devbay-conformance-verdict";

/// A child's options: node tests are run in sessions, cases behind the validation layer.
const SESSION: &str = "--session";
const VALIDATION: &str = "--validation";

/// Recipe for a process of a test's own.
#[derive(Clone, Debug)]
pub struct Child {
    /// The program; it prints the lines that [`answer`] gives.
    pub program: PathBuf,
    /// Its first arguments. The subject, the tests' ids, and options follow, for [`read_arguments`].
    pub arguments: Vec<OsString>,
    /// Variables of its environment besides this process's.
    pub environment: Vec<(OsString, OsString)>,
    /// Time limit of a test.
    pub limit: Duration,
}

/// Content of a marked line of a child.
#[derive(Serialize, Deserialize)]
pub(crate) struct Answer {
    /// The test's id, so that a line that is lost shifts no other's verdict.
    pub id: String,
    pub verdict: Verdict,
    pub plugin: Option<Identity>,
    /// Further measurements.
    pub note: Option<String>,
}

impl Answer {
    pub(crate) fn of(verdict: Verdict) -> Self {
        Self { id: String::new(), verdict, plugin: None, note: None }
    }

    pub(crate) fn failed(failure: Failure, reason: impl Into<String>) -> Self {
        Self::of(Verdict::Failed { failure, reason: reason.into() })
    }
}

/// End of a child, before it had answered everything or after.
pub(crate) struct End {
    failure: Failure,
    reason: String,
}

impl From<End> for Answer {
    fn from(end: End) -> Self {
        Self::failed(end.failure, end.reason)
    }
}

/// Output of a child.
pub(crate) struct Said {
    /// Answers, in the order of the tests that were asked.
    pub answers: Vec<Answer>,
    /// Time of each.
    pub times: Vec<Duration>,
    /// End of the child after those.
    pub end: End,
    /// The first line that it printed besides (B28).
    pub stray: Option<String>,
}

/// Returns the beginning of lines with verdicts, for a word.
fn mark(word: &str) -> String {
    format!("{MARK} {word} ")
}

/// The child's part: reads the parent's word from standard input, runs tests in this process, and hands on what to
/// print of each, whole lines that are to be written at once.
///
/// # Errors
/// In words, for an id that no test has, and for standard input that cannot be read.
pub fn answer(
    subject: &Subject,
    ids: &[String],
    settings: &Settings,
    print: &mut dyn FnMut(&str),
) -> Result<(), String> {
    let mut word = String::new();
    std::io::stdin()
        .read_line(&mut word)
        .map_err(|error| format!("cannot read the parent's request: {error}"))?;
    let mark = mark(word.trim());
    let find = |id: &String| match id.strip_prefix(onnx::PREFIX) {
        Some(name) => onnx::index().get_key_value(name).map(|(name, _)| Item::Node(name)),
        None => case::find(id).map(Item::Case),
    };
    let items: Vec<Item> = ids
        .iter()
        .map(|id| find(id).ok_or_else(|| format!("test {id} does not exist")))
        .collect::<Result<_, _>>()?;
    let mut nodes = None;
    for item in &items {
        let mut answer = match item {
            Item::Case(case) => run_here(subject, case, settings, true),
            Item::Node(_) => {
                let judge = nodes.get_or_insert_with(|| NodeJudge::new(subject, &items, settings));
                Answer { plugin: judge.plugin(), ..Answer::of(judge.verdict(item)) }
            }
        };
        answer.id = item.id();
        // Texts and numbers alone: there is always a JSON for them.
        let text = serde_json::to_string(&answer).unwrap_or_default();
        // On a line of its own, after anything that the plugin has printed; in one piece, so that no thread of the
        // plugin's gets in between.
        print(&format!("\n{mark}{text}\n"));
    }
    Ok(())
}

/// Arguments of a child, as the judge passes them behind the subject: ids of tests, and how to run them.
///
/// # Errors
/// An argument that cannot be read.
pub fn read_arguments(arguments: &[String]) -> Result<(Vec<String>, Settings), String> {
    let (mut ids, mut settings) = (Vec::new(), Settings::default());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            SESSION => settings.path = onnx::Path::Session,
            VALIDATION => settings.validation = true,
            "--plugin-option" => {
                let pair = rest.next().and_then(|pair| pair.split_once('='));
                let (key, value) = pair.ok_or("expected --plugin-option KEY=VALUE")?;
                settings.options.push((key.to_owned(), value.to_owned()));
            }
            id => ids.push(id.to_owned()),
        }
    }
    Ok((ids, settings))
}

/// Runs tests in a child, until all are answered, it ends, one takes too long, or the flag is set.
pub(crate) fn ask(
    child: &Child,
    cancel: &Cancel,
    subject: &Subject,
    ids: &[String],
    settings: &Settings,
) -> Said {
    let mut command = Command::new(&child.program);
    command.args(&child.arguments).arg(subject.name()).args(ids);
    if settings.path == onnx::Path::Session {
        command.arg(SESSION);
    }
    if settings.validation {
        command.arg(VALIDATION);
    }
    for (key, value) in &settings.options {
        command.arg("--plugin-option").arg(format!("{key}={value}"));
    }
    command.envs(child.environment.iter().cloned());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut said = Said {
        answers: Vec::new(),
        times: Vec::new(),
        end: End { failure: Failure::Suite, reason: String::new() },
        stray: None,
    };
    let mut group = match Group::spawn(&mut command) {
        Ok(group) => group,
        Err(error) => {
            said.end.reason = format!("cannot start {}: {error}", child.program.display());
            return said;
        }
    };
    // Randomly keyed, so the next word cannot be guessed.
    let word = format!("{:016x}", RandomState::new().build_hasher().finish());
    if let Some(mut stdin) = group.leader.stdin.take() {
        // A child that is gone already is found out below.
        let _ = writeln!(stdin, "{word}");
    }
    let mark = mark(&word);
    let lines = group.leader.stdout.take().map(lines_in_background).transpose();
    let stderr = group.leader.stderr.take().map(read_in_background).transpose();
    let (lines, stderr) = match (lines, stderr) {
        (Ok(lines), Ok(stderr)) => (lines, stderr),
        (Err(error), _) | (_, Err(error)) => {
            said.end.reason = format!("cannot start a thread that reads a test's output: {error}");
            return said;
        }
    };
    let mut begin = Instant::now();
    // When the process has ended, its output is read to the end. Processes that it started have the pipe as well, and
    // end with it.
    let mut last_call = None;
    while let Some(lines) = &lines {
        match lines.recv_timeout(Duration::from_millis(2)) {
            Ok(line) => said.hear(&line, &mark, ids, &mut begin),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if cancel.is_cancelled() => break,
            Err(RecvTimeoutError::Timeout) if last_call.is_some() => {}
            Err(RecvTimeoutError::Timeout) => {
                if group.has_ended().unwrap_or(true) {
                    let _ = group.end();
                    last_call = Some(Instant::now() + REST_OF_OUTPUT);
                }
            }
        }
        let is_over = match last_call {
            Some(end) => Instant::now() > end,
            None => begin.elapsed() > child.limit,
        };
        if is_over {
            break;
        }
    }
    if cancel.is_cancelled() {
        // From here on its end is our doing.
        let _ = group.end();
        return said;
    }
    let rest = (begin + child.limit).saturating_duration_since(Instant::now());
    let has_ended = group.ends_within(rest).unwrap_or(false);
    // Processes that it started end with it; the status counts only if the end was its own.
    let status = group.end().ok().filter(|_| has_ended);
    let words = stderr.and_then(|pipe| pipe.recv_timeout(REST_OF_OUTPUT).ok()).unwrap_or_default();
    let words = String::from_utf8_lossy(&words).into_owned();
    let last = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    said.end(status, ids.len(), last, child.limit);
    said
}

impl Said {
    /// Takes a line of the child's.
    fn hear(&mut self, line: &str, mark: &str, ids: &[String], begin: &mut Instant) {
        match line.split_once(mark) {
            Some((before, text)) => {
                // The next answer. If one was lost, or cannot be read, its test and those behind it have none.
                if let Ok(answer) = serde_json::from_str::<Answer>(text)
                    && ids.get(self.answers.len()) == Some(&answer.id)
                {
                    self.answers.push(answer);
                    self.times.push(begin.elapsed());
                    *begin = Instant::now();
                }
                if self.stray.is_none() && !before.trim().is_empty() {
                    self.stray = Some(format!("{before:?}"));
                }
            }
            None if line.trim().is_empty() || self.stray.is_some() => {}
            None => self.stray = Some(format!("{line:?}")),
        }
    }

    /// Says how the process ended. An end that is none, after all were answered, is the last test's, unless that has
    /// failed already.
    fn end(&mut self, status: Option<ExitStatus>, n_tests: usize, last_words: &str, limit: Duration) {
        let (failure, reason, after) = match status {
            None => (
                Failure::TimedOut,
                format!("the test did not end within {limit:?}"),
                Some(format!("the process did not end within {limit:?} after the test")),
            ),
            Some(status) => {
                let how = describe(status);
                let after = format!("the process ended with {how} after the test: {last_words}");
                let reason = format!("the process ended with {how} during the test: {last_words}");
                (Failure::Died, reason, (!status.success()).then_some(after))
            }
        };
        if let (Some(reason), Some(answer)) = (after, self.answers.get_mut(n_tests.saturating_sub(1)))
            && !answer.verdict.is_failed()
        {
            answer.verdict = Verdict::Failed { failure, reason };
        }
        self.end = End { failure, reason };
    }
}

/// Time limit for reading the rest of an ended process's output. A pipe is at its end at once, however late a busy
/// machine reads it, but for what has left the process's group and lives on.
const REST_OF_OUTPUT: Duration = Duration::from_secs(10);

/// Maximum that is kept of a line or text.
const KEPT_MAX: usize = 1 << 20;

/// Reads lines in a thread of its own, so that a talkative child does not block.
fn lines_in_background(pipe: impl Read + Send + 'static) -> std::io::Result<mpsc::Receiver<String>> {
    let (sender, receiver) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        let mut reader = BufReader::new(pipe);
        loop {
            // A line without end is cut, and the rest is the next.
            let mut line = Vec::new();
            match reader.by_ref().take(KEPT_MAX as u64).read_until(b'\n', &mut line) {
                Ok(1..) => {
                    let text = String::from_utf8_lossy(&line).trim_end().to_owned();
                    if sender.send(text).is_err() {
                        return;
                    }
                }
                _ => return,
            }
        }
    })?;
    Ok(receiver)
}

/// Reads a pipe to its end in a thread of its own.
fn read_in_background(mut pipe: impl Read + Send + 'static) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
    let (end, ended) = mpsc::channel();
    std::thread::Builder::new().spawn(move || {
        let mut kept = Vec::new();
        let mut chunk = [0u8; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            let room = KEPT_MAX - kept.len();
            kept.extend_from_slice(&chunk[..n.min(room)]);
        }
        let _ = end.send(kept);
    })?;
    Ok(ended)
}

fn describe(status: ExitStatus) -> String {
    #[cfg(unix)]
    {
        use std::os::unix::process::ExitStatusExt;
        if let Some(signal) = status.signal() {
            return format!("signal {signal}");
        }
    }
    status.to_string()
}
