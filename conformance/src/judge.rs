//! Running cases: in processes of their own with a time limit, or in this one.
//!
//! A child is this program's own command, which calls [`answer`] and prints the line that it gives; whatever the
//! plugin prints beside it is a finding, and is not mistaken for the verdict.

use crate::case::{self, Case};
use crate::report::{Identity, Report, Test};
use crate::rig::Rig;
use crate::verdict::{Failure, Verdict, Why};
use devbay_host::load::Library;
use devbay_host::negotiate::Entry;
use devbay_plugin_api::sdk::export::LinkedPlugin;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::panic::AssertUnwindSafe;
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Begins the line with a child's verdict.
pub const MARK: &str = "devbay-conformance-verdict ";

/// The case about a plugin's own output, which only the parent of a child sees.
pub(crate) const OUTPUT_CASE: &str = "shutdown.output";

/// The plugin that is judged.
#[derive(Clone)]
pub enum Subject {
    /// A shared library.
    Library(PathBuf),
    /// A plugin that is part of the program.
    Linked(LinkedPlugin),
}

impl Subject {
    /// Its file, or its name.
    pub fn name(&self) -> String {
        match self {
            Self::Library(path) => path.display().to_string(),
            Self::Linked(linked) => linked.name().to_owned(),
        }
    }
}

/// How cases get a process of their own.
#[derive(Clone, Debug)]
pub struct Child {
    /// The program; it prints the line that [`answer`] gives.
    pub program: PathBuf,
    /// What it is told first. The subject, the case and `--plugin-option KEY=VALUE` follow.
    pub arguments: Vec<OsString>,
    /// How long a case may take.
    pub limit: Duration,
}

/// What is run, and how.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options of the plugin.
    pub options: Vec<(String, String)>,
    /// Only cases that fit one of these patterns; all if there are none.
    pub only: Vec<String>,
    /// Where cases run; without it, in this process.
    pub child: Option<Child>,
}

/// What a child says on its marked line.
#[derive(Serialize, Deserialize)]
struct Answer {
    verdict: Verdict,
    plugin: Option<Identity>,
}

/// Runs the cases that are asked for, and calls `progress` after each.
///
/// A case that others need runs only if it is asked for itself; what was not run is taken to have passed.
pub fn judge(subject: &Subject, settings: &Settings, progress: &mut dyn FnMut(&Test)) -> Report {
    let wanted = |case: &&Case| {
        settings.only.is_empty() || settings.only.iter().any(|pattern| case::matches(pattern, case.id))
    };
    let mut report = Report { subject: subject.name(), plugin: None, tests: Vec::new() };
    let mut unmet: BTreeSet<&str> = BTreeSet::new();
    let mut stray: Option<String> = None;
    for case in case::all().filter(wanted) {
        let begin = Instant::now();
        let missing = case.needs.iter().find(|need| unmet.contains(**need));
        let (answer, output) = match (missing, &settings.child) {
            (Some(need), _) => {
                let verdict =
                    Verdict::NotApplicable { why: Why::Needs, reason: format!("{need} did not pass") };
                (Answer { verdict, plugin: None }, None)
            }
            (None, Some(_)) if case.id == OUTPUT_CASE => {
                (Answer { verdict: output_verdict(stray.as_deref()), plugin: None }, None)
            }
            (None, Some(child)) => ask_child(child, subject, case, &settings.options),
            (None, None) => (run_here(subject, case, &settings.options, false), None),
        };
        stray = stray.or_else(|| output.map(|text| format!("during {}: {text}", case.id)));
        report.plugin = report.plugin.or(answer.plugin);
        if matches!(answer.verdict, Verdict::Failed { .. } | Verdict::NotApplicable { why: Why::Needs, .. }) {
            unmet.insert(case.id);
        }
        let test = Test {
            id: case.id,
            rules: case.rules,
            requires: case.requires,
            verdict: answer.verdict,
            duration_ms: begin.elapsed().as_millis() as u64,
            reproduce: reproduce(subject, case, settings),
        };
        progress(&test);
        report.tests.push(test);
    }
    report
}

/// The child's part: runs one case in this process and gives the line to print.
pub fn answer(subject: &Subject, case_id: &str, options: &[(String, String)]) -> Option<String> {
    let answer = run_here(subject, case::find(case_id)?, options, true);
    // Texts and numbers alone: there is always a JSON for them.
    Some(format!("{MARK}{}", serde_json::to_string(&answer).ok()?))
}

fn reproduce(subject: &Subject, case: &Case, settings: &Settings) -> Option<String> {
    let options: String =
        settings.options.iter().map(|(key, value)| format!(" --plugin-option {key}={value}")).collect();
    settings.child.as_ref()?;
    Some(format!("devbay conformance {} --only {}{options}", subject.name(), case.id))
}

fn wrong(failure: Failure, reason: impl Into<String>) -> Answer {
    Answer { verdict: Verdict::Failed { failure, reason: reason.into() }, plugin: None }
}

fn run_here(subject: &Subject, case: &Case, options: &[(String, String)], own_process: bool) -> Answer {
    let library;
    let entry = match subject {
        Subject::Linked(linked) => Entry::Linked(linked),
        Subject::Library(path) => match Library::open(path) {
            Ok(opened) => {
                library = opened;
                Entry::Library(&library)
            }
            Err(refusal) => return wrong(Failure::Wrong, refusal.reason),
        },
    };
    let run = AssertUnwindSafe(|| {
        let rig = Rig::new(entry, options, own_process);
        let plugin = rig.agreement().ok().map(|agreement| {
            let about = &agreement.about;
            Identity {
                name: about.name.clone(),
                version: about.version.clone(),
                vendor: about.vendor.clone(),
                profiles: about.profiles.clone(),
                abi_minors: (about.minors.min, about.minors.max),
                abi_minor: agreement.minor,
                threading: about.threading.name().to_owned(),
            }
        });
        Answer { verdict: (case.run)(&rig).into(), plugin }
    });
    std::panic::catch_unwind(run).unwrap_or_else(|payload| {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        wrong(Failure::Suite, format!("the suite panicked, which is a bug in it: {words}"))
    })
}

/// What the plugin printed itself, over all cases.
fn output_verdict(stray: Option<&str>) -> Verdict {
    match stray {
        None => Verdict::Passed,
        Some(text) => Verdict::Failed {
            failure: Failure::Wrong,
            reason: format!("the plugin wrote to standard output {text}"),
        },
    }
}

/// Runs a case in a child; also gives what was printed beside the verdict.
fn ask_child(
    child: &Child,
    subject: &Subject,
    case: &Case,
    options: &[(String, String)],
) -> (Answer, Option<String>) {
    let mut command = Command::new(&child.program);
    command.args(&child.arguments).arg(subject.name()).arg(case.id);
    for (key, value) in options {
        command.arg("--plugin-option").arg(format!("{key}={value}"));
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = match command.spawn() {
        Ok(process) => process,
        Err(error) => {
            let text = format!("cannot start {}: {error}", child.program.display());
            return (wrong(Failure::Suite, text), None);
        }
    };
    let stdout = process.stdout.take().map(read_in_background);
    let stderr = process.stderr.take().map(read_in_background);
    let deadline = Instant::now() + child.limit;
    let ended: Option<ExitStatus> = loop {
        match process.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            // The time is over, or the process is lost to us.
            _ => {
                let _ = process.kill();
                let _ = process.wait();
                break None;
            }
        }
    };
    let text = |pipe: Option<mpsc::Receiver<Vec<u8>>>| {
        // A process that the plugin started may hold the pipe open: what came until now has to do.
        let bytes = pipe.and_then(|pipe| pipe.recv_timeout(Duration::from_secs(1)).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let (stdout, stderr) = (text(stdout), text(stderr));
    let printed: Vec<&str> =
        stdout.lines().filter(|line| !line.trim().is_empty() && !line.starts_with(MARK)).collect();
    let stray = printed.first().map(|line| format!("{line:?}"));
    let Some(status) = ended else {
        let text = format!("the case did not end within {:?}", child.limit);
        return (wrong(Failure::TimedOut, text), stray);
    };
    let line = stdout.lines().find_map(|line| line.strip_prefix(MARK));
    let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message");
    match line.and_then(|line| serde_json::from_str::<Answer>(line).ok()) {
        Some(answer) if status.success() => (answer, stray),
        Some(Answer { verdict: Verdict::Passed, .. }) => {
            let text = format!("the process ended with {} after the case: {last}", describe(status));
            (wrong(Failure::Died, text), stray)
        }
        Some(answer) => (answer, stray),
        None => {
            let text =
                format!("the process ended with {} in the middle of the case: {last}", describe(status));
            (wrong(Failure::Died, text), stray)
        }
    }
}

/// Reads a pipe to its end in a thread of its own, so that a talkative child does not block.
fn read_in_background(mut pipe: impl Read + Send + 'static) -> mpsc::Receiver<Vec<u8>> {
    const KEPT_MAX: usize = 1 << 20;
    let (end, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let mut kept = Vec::new();
        let mut chunk = [0u8; 4096];
        while let Ok(n @ 1..) = pipe.read(&mut chunk) {
            let room = KEPT_MAX - kept.len();
            kept.extend_from_slice(&chunk[..n.min(room)]);
        }
        let _ = end.send(kept);
    });
    ended
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
