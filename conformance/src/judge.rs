//! Running tests: in processes of their own with a time limit, or in this one.
//!
//! [`crate::child`] describes a child and the talk with it. Each case has a child of its own. ONNX's node tests share
//! one, which is started again behind the test that ended it.

pub use crate::subject::Subject;

use crate::case::Case;
use crate::cases::numerics::op_of;
use crate::child::{Answer, Child, Said, ask};
use crate::measure::without_thread_caches;
use crate::onnx::{self, Loaded};
use crate::report::{Identity, Report, Test};
use crate::rig::Rig;
use crate::suite::{self, Item, Profile};
use crate::verdict::{Failure, Verdict, Why};
use devbay_host::internals::layers::validation::{self, Side};
use devbay_host::internals::load::Library;
use devbay_host::internals::negotiate::Entry;
use devbay_host::{Cancel, Device, Runtime};
use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The case about a plugin's own output, which only the parent of a child sees.
pub(crate) const OUTPUT_CASE: &str = "shutdown.output";

/// Node tests that a child is given at once.
const BATCH: usize = 200;

/// Prefix of the ids of cases that look for leaks.
const LEAK_CASES: &str = "stress.leak.";

/// Node tests may end their process so many times; then the rest is not run.
const DEATHS_MAX: usize = 20;

/// Settings of a run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Options of the plugin.
    pub options: Vec<(String, String)>,
    /// Only tests that fit one of these patterns; all if there are none.
    pub only: Vec<String>,
    /// But not those that fit one of these.
    pub except: Vec<String>,
    /// Only tests of these profiles; of all if there are none.
    pub profiles: Vec<Profile>,
    /// Path on which node tests are run.
    pub path: onnx::Path,
    /// True if cases run behind the validation layer: then a case fails also where the plugin breaks a rule that it
    /// is not about.
    pub validation: bool,
    /// Where tests run; without it, in this process.
    pub child: Option<Child>,
}

impl Settings {
    /// Returns whether a test is asked for.
    pub fn wants(&self, item: &Item) -> bool {
        let id = item.id();
        let fits = |patterns: &[String]| patterns.iter().any(|pattern| suite::matches(pattern, &id));
        (self.only.is_empty() || fits(&self.only))
            && !fits(&self.except)
            && (self.profiles.is_empty() || self.profiles.contains(&item.profile()))
    }
}

/// Runs the tests that are asked for, and calls `progress` after each.
///
/// A test that others need runs only if it is asked for itself; what was not run is taken to have passed.
pub fn judge(subject: &Subject, settings: &Settings, progress: &mut dyn FnMut(&Test)) -> Report {
    judge_until(&Cancel::new(), subject, settings, progress)
}

/// As [`judge`], until the flag is set: the test that runs then is ended, if it has a process of its own, and the report has
/// what was found before. It ends too where an option is given that the plugin does not list ([`Identity::unlisted`]).
pub fn judge_until(
    cancel: &Cancel,
    subject: &Subject,
    settings: &Settings,
    progress: &mut dyn FnMut(&Test),
) -> Report {
    let items: Vec<Item> = suite::all().filter(|item| settings.wants(item)).collect();
    let mut session = Judging {
        cancel,
        subject,
        settings,
        progress,
        report: Report { path: settings.path, ..Report::new(subject.name()) },
        unmet: BTreeSet::new(),
        stray: None,
    };
    let mut rest = items.as_slice();
    while let Some(first) = rest.first().filter(|_| !cancel.is_cancelled() && !session.is_misused()) {
        match first {
            Item::Case(case) => {
                session.case(case);
                rest = &rest[1..];
            }
            Item::Node(_) => {
                let n = rest.iter().take(BATCH).take_while(|item| matches!(item, Item::Node(_))).count();
                session.nodes(&rest[..n]);
                rest = &rest[n..];
            }
        }
    }
    session.report.n_not_run = items.len() - session.report.tests.len();
    session.report
}

struct Judging<'a> {
    cancel: &'a Cancel,
    subject: &'a Subject,
    settings: &'a Settings,
    progress: &'a mut dyn FnMut(&Test),
    report: Report,
    /// Tests that others cannot build on.
    unmet: BTreeSet<String>,
    /// The first that the plugin printed itself.
    stray: Option<String>,
}

impl Judging<'_> {
    fn case(&mut self, case: &'static Case) {
        let item = Item::Case(case);
        let begin = Instant::now();
        if let Some(verdict) = self.not_asked(&item) {
            return self.record(&item, verdict, None, begin.elapsed());
        }
        let answer = match &self.settings.child {
            Some(_) if case.id == OUTPUT_CASE => Answer::of(output_verdict(self.stray.as_deref())),
            Some(child) => {
                let mut child = child.clone();
                if case.id.starts_with(LEAK_CASES) {
                    child.environment.push(without_thread_caches());
                }
                let said = ask(&child, self.cancel, self.subject, &[item.id()], self.settings);
                self.heard(case.id, &said);
                if said.answers.is_empty() && self.cancel.is_cancelled() {
                    return;
                }
                said.answers.into_iter().next().unwrap_or_else(|| Answer::from(said.end))
            }
            None => run_here(self.subject, case, self.settings, false),
        };
        self.met(answer.plugin);
        self.record(&item, answer.verdict, answer.note, begin.elapsed());
    }

    /// Node tests, as many as a child is given.
    fn nodes(&mut self, items: &[Item]) {
        let mut rest = Vec::new();
        for item in items {
            match self.not_asked(item) {
                Some(verdict) => self.record(item, verdict, None, Duration::ZERO),
                None => rest.push(*item),
            }
        }
        let Some(child) = self.settings.child.clone() else {
            let judge = NodeJudge::new(self.subject, &rest, self.settings);
            self.met(judge.plugin());
            for item in &rest {
                let begin = Instant::now();
                let verdict = judge.verdict(item);
                self.record(item, verdict, None, begin.elapsed());
            }
            return;
        };
        let mut rest = rest.as_slice();
        while !rest.is_empty() {
            let begin = Instant::now();
            let ids: Vec<String> = rest.iter().map(Item::id).collect();
            let said = ask(&child, self.cancel, self.subject, &ids, self.settings);
            self.heard(&ids[0], &said);
            let n = said.answers.len();
            self.met(said.answers.iter().find_map(|answer| answer.plugin.clone()));
            let answered: Duration = said.times.iter().sum();
            for (i, answer) in said.answers.into_iter().enumerate() {
                self.record(&rest[i], answer.verdict, None, said.times[i]);
            }
            rest = &rest[n..];
            if self.cancel.is_cancelled() {
                return;
            }
            // Without an answer to all, the next one ended the process.
            if let Some((first, others)) = rest.split_first() {
                let time = begin.elapsed().saturating_sub(answered);
                self.record(first, Answer::from(said.end).verdict, None, time);
                rest = others;
            }
            if self.report.deaths() > DEATHS_MAX {
                for item in rest {
                    let reason = format!("more than {DEATHS_MAX} tests ended the process");
                    self.record(item, Verdict::Skipped { why: Why::Needs, reason }, None, Duration::ZERO);
                }
                return;
            }
        }
    }

    /// Returns the reason why a test is not run at all.
    fn not_asked(&self, item: &Item) -> Option<Verdict> {
        if let Some(plugin) = self.report.plugin.as_ref().filter(|plugin| !plugin.claims(item.profile())) {
            // A plugin that lists kernels claims theirs.
            let lists = if item.profile() == Profile::Kernels { ", and lists no kernels" } else { "" };
            let name = item.profile().name();
            let reason = format!("{} does not claim the profile {name}{lists}", plugin.name);
            return Some(Verdict::NotClaimed { why: Why::Profile, reason });
        }
        let missing = item.needs().iter().find(|need| self.unmet.contains(**need))?;
        Some(Verdict::Skipped { why: Why::Needs, reason: format!("needs {missing}, which did not pass") })
    }

    fn heard(&mut self, id: &str, said: &Said) {
        if let (None, Some(text)) = (&self.stray, &said.stray) {
            self.stray = Some(format!("during {id}: {text}"));
        }
    }

    /// Returns whether the plugin is given options that it does not take, which is no fault of its.
    fn is_misused(&self) -> bool {
        let plugin = self.report.plugin.as_ref();
        plugin.is_some_and(|plugin| plugin.unlisted(&self.settings.options).is_some())
    }

    fn met(&mut self, plugin: Option<Identity>) {
        if self.report.plugin.is_none() {
            self.report.plugin = plugin;
        }
    }

    fn record(&mut self, item: &Item, verdict: Verdict, note: Option<String>, time: Duration) {
        if matches!(verdict, Verdict::Failed { .. } | Verdict::Skipped { why: Why::Needs, .. }) {
            self.unmet.insert(item.id());
        }
        let test = Test {
            id: item.id(),
            profile: item.profile(),
            rules: item.rules(),
            requires: item.requires(),
            verdict,
            note,
            duration_ms: time.as_micros() as f64 / 1000.0,
            reproduce: reproduce(self.subject, item, self.settings),
        };
        (self.progress)(&test);
        self.report.tests.push(test);
    }
}

fn reproduce(subject: &Subject, item: &Item, settings: &Settings) -> Option<String> {
    settings.child.as_ref()?;
    let options: String = settings
        .options
        .iter()
        .map(|(key, value)| format!(" --plugin-option {}", in_shell(&format!("{key}={value}"))))
        .collect();
    let how = match item {
        Item::Node(_) if settings.path == onnx::Path::Session => " --session",
        Item::Case(_) if settings.validation => " --layers validation",
        _ => "",
    };
    Some(format!("devbay conformance {} --only {}{how}{options}", in_shell(&subject.name()), item.id()))
}

/// Quotes a word for a POSIX shell.
fn in_shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:+@".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// Runs one case in this process.
pub(crate) fn run_here(subject: &Subject, case: &Case, settings: &Settings, own_process: bool) -> Answer {
    let library;
    let entry = match subject {
        Subject::Linked(linked) => Entry::Linked(linked),
        Subject::Library(path) => match Library::open(path) {
            Ok(opened) => {
                library = opened;
                Entry::Library(&library)
            }
            Err(refusal) => return Answer::failed(Failure::Wrong, refusal.reason),
        },
    };
    // The layer does not show the library itself, nor its entry's words.
    let wrapped = (settings.validation && case.topic() != "load").then(|| {
        // Cases make calls that a plugin must refuse: the host's side is not judged here.
        let settings = validation::Settings { only_watch: true, ..Default::default() };
        // SAFETY: `library` above is dropped after the layer in front of it.
        unsafe { validation::wrap(entry, &settings) }
    });
    let shown = match &wrapped {
        Some(Ok(wrapped)) => Some(wrapped.plugin()),
        Some(Err(refusal)) => return Answer::failed(Failure::Wrong, refusal.reason.clone()),
        None => None,
    };
    let entry = shown.as_ref().map_or(entry, Entry::Linked);
    let run = AssertUnwindSafe(|| {
        let mut rig = Rig::new(entry, &settings.options, own_process);
        rig.layered = wrapped.is_some();
        rig.op = op_of(case.id);
        let plugin = rig.agreement().ok().map(|agreed| Identity::of(&agreed.about, agreed.minor));
        let verdict = (case.run)(&rig).into();
        Answer { plugin, note: rig.note.into_inner(), ..Answer::of(verdict) }
    });
    let mut answer = std::panic::catch_unwind(run).unwrap_or_else(|payload| {
        let words = payload.downcast_ref::<String>().map(String::as_str);
        let words = words.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message");
        Answer::failed(Failure::Suite, format!("the suite panicked, a bug in the suite: {words}"))
    });
    if let (Some(Ok(wrapped)), Verdict::Passed) = (&wrapped, &answer.verdict)
        && let Some(found) = wrapped.report().violations().into_iter().find(|found| found.by == Side::Plugin)
    {
        let reason = format!("rule {}, {}: {}", found.rule, found.function, found.words);
        answer.verdict = Verdict::Failed { failure: Failure::Wrong, reason };
    }
    answer
}

/// Judges the plugin's own output, over all cases.
fn output_verdict(stray: Option<&str>) -> Verdict {
    match stray {
        None => Verdict::Passed,
        Some(text) => Verdict::Failed {
            failure: Failure::Wrong,
            reason: format!("the plugin wrote to standard output {text}"),
        },
    }
}

/// Judges node tests in this process, on the plugin's first device.
pub(crate) struct NodeJudge {
    tests: Loaded,
    path: onnx::Path,
    devices: Result<(Runtime, Vec<Arc<Device>>), Verdict>,
}

impl NodeJudge {
    pub(crate) fn new(subject: &Subject, items: &[Item], settings: &Settings) -> Self {
        let names: Vec<&str> = items
            .iter()
            .filter_map(|item| if let Item::Node(name) = item { Some(*name) } else { None })
            .collect();
        Self {
            tests: Loaded::of(names.into_iter()),
            path: settings.path,
            devices: subject.devices(&settings.options).map_err(|stop| Verdict::from(Err(stop))),
        }
    }

    /// Returns the plugin's identity, as it said.
    pub(crate) fn plugin(&self) -> Option<Identity> {
        let (_, devices) = self.devices.as_ref().ok()?;
        let plugin = devices[0].plugin();
        Some(Identity::of(plugin.about(), plugin.minor()))
    }

    pub(crate) fn verdict(&self, item: &Item) -> Verdict {
        match &self.devices {
            Ok((_, devices)) => self.tests.judge(&item.id(), &devices[0], self.path),
            Err(verdict) => verdict.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::in_shell;

    #[test]
    fn words_are_quoted_where_a_shell_would_read_them_otherwise() {
        assert_eq!(in_shell("/a/lib_b-1.so"), "/a/lib_b-1.so");
        assert_eq!(in_shell("a b$c"), "'a b$c'");
        assert_eq!(in_shell("it's"), r"'it'\''s'");
        assert_eq!(in_shell(""), "''");
    }
}
