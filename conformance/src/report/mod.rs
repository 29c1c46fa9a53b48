//! Findings of the suite, as data: one entry a test, the counts, and the level that they come to.
//!
//! The forms in which it is handed on are beside this: [`junit`], [`html`], and JSON here; text is the command's.

pub mod html;
pub mod index;
pub mod junit;
mod level;
mod ops;

pub use level::{Grade, Level};
pub use ops::OpCount;

use crate::onnx;
use crate::suite::Profile;
use crate::verdict::{Failure, Verdict, Why};
use devbay_host::internals::core::about::About;
use devbay_plugin_api::abi::HOST_OPTIONS;
use serde::{Deserialize, Serialize};

/// The form's version in JSON: readers refuse what they do not know.
pub const REPORT_VERSION: u32 = 1;

/// Identity that the plugin states.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// The plugin's maker.
    pub vendor: String,
    /// The profiles that it claims.
    pub profiles: Vec<String>,
    /// Number of kernels that it lists.
    pub n_kernels: usize,
    /// The ABI's minors that it speaks, oldest and newest.
    pub abi_minors: (u32, u32),
    /// The minor that was agreed on.
    pub abi_minor: u32,
    /// Its threading class.
    pub threading: String,
    /// Keys of the options that it lists.
    #[serde(default)]
    pub options: Vec<String>,
}

impl Identity {
    /// Of what a plugin says of itself, and the minor that was agreed on.
    pub(crate) fn of(about: &About, minor: u32) -> Self {
        Self {
            name: about.name.clone(),
            version: about.version.clone(),
            vendor: about.vendor.clone(),
            profiles: about.profiles.clone(),
            n_kernels: about.kernels.len(),
            abi_minors: (about.minors.min, about.minors.max),
            abi_minor: minor,
            threading: about.threading.name().to_owned(),
            options: about.options.iter().map(|option| option.key.clone()).collect(),
        }
    }

    /// Returns the first option that the plugin does not list, if there is one: nothing can be judged with it.
    pub fn unlisted<'a>(&self, options: &'a [(String, String)]) -> Option<&'a str> {
        let is_listed =
            |key: &str| key.starts_with(HOST_OPTIONS) || self.options.iter().any(|own| own == key);
        options.iter().map(|(key, _)| key.as_str()).find(|key| !is_listed(key))
    }

    /// Returns whether the tests of a profile apply: a plugin that lists kernels claims those for kernels.
    pub fn claims(&self, profile: Profile) -> bool {
        match profile {
            Profile::Base => true,
            Profile::Kernels if self.n_kernels > 0 => true,
            Profile::Kernels | Profile::Interop | Profile::Compiler => {
                self.profiles.iter().any(|name| name == profile.name())
            }
        }
    }

    /// Profiles that it claims and that this suite has no tests for.
    pub fn claims_untested(&self) -> impl Iterator<Item = &str> {
        self.profiles.iter().map(String::as_str).filter(|name| Profile::find(name).is_none())
    }
}

/// One test and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Test {
    /// The test's stable name.
    pub id: String,
    /// The profile that it belongs to.
    pub profile: Profile,
    /// The rules that it checks.
    pub rules: &'static [&'static str],
    /// Its requirement.
    pub requires: String,
    /// Its result.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// Further measurements, in words: figures for a person, no part of the verdict.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
    /// Duration in milliseconds.
    pub duration_ms: f64,
    /// The command that runs it alone; none for a plugin that no command has.
    pub reproduce: Option<String>,
}

impl Test {
    fn to_json(&self) -> serde_json::Value {
        let mut object = serde_json::json!(self);
        object["rule"] = self.rules.join(", ").into();
        object["duration"] = (self.duration_ms / 1000.0).into();
        object["reason"] = self.verdict.reason().into();
        object
    }

    /// Returns the name of its topic: `transfer`, `onnx`.
    pub fn topic(&self) -> &str {
        self.id.split(['.', '/']).next().unwrap_or(&self.id)
    }
}

/// Numbers of tests by result.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Summary {
    /// Tests that passed.
    pub passed: usize,
    /// Tests that failed.
    pub failed: usize,
    /// Tests of what the plugin claims and refused, as it may.
    pub unsupported: usize,
    /// Tests of what it does not claim.
    pub not_claimed: usize,
    /// Tests that could not be asked.
    pub skipped: usize,
}

impl Summary {
    /// Returns the counts of some tests.
    pub fn of<'a>(tests: impl IntoIterator<Item = &'a Test>) -> Self {
        let mut summary = Self::default();
        for test in tests {
            match test.verdict {
                Verdict::Passed => summary.passed += 1,
                Verdict::Failed { .. } => summary.failed += 1,
                Verdict::Unsupported { .. } => summary.unsupported += 1,
                Verdict::NotClaimed { .. } => summary.not_claimed += 1,
                Verdict::Skipped { .. } => summary.skipped += 1,
            }
        }
        summary
    }
}

impl Summary {
    /// Returns the number of tests of what the plugin claims.
    pub fn claimed(&self) -> usize {
        self.passed + self.failed + self.unsupported
    }
}

/// The date and the machine of a report. The program that runs the suite fills them in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Made {
    /// The date, in UTC.
    pub date: String,
    /// The machine, in words.
    pub machine: String,
}

/// The counts of ONNX's node tests. Those that only the host runs (views, questions about shapes, control flow,
/// strings, sequences) are counted apart: no plugin is asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct NodeSummary {
    /// The counts without those of the host.
    #[serde(flatten)]
    pub plugin: Summary,
    /// Tests that are the host's.
    pub host: usize,
}

/// Findings of the suite.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The file, or the name of a plugin that is linked.
    pub subject: String,
    /// Identity that the plugin states; none if it could not be asked.
    pub plugin: Option<Identity>,
    /// The date and the machine, if they are known.
    pub made: Option<Made>,
    /// Path on which node tests were run.
    pub path: onnx::Path,
    /// The tests that were asked for, in the order in which they ran.
    pub tests: Vec<Test>,
    /// Tests that were asked for and not run, since the run was cancelled.
    pub n_not_run: usize,
}

impl Report {
    pub(crate) fn new(subject: String) -> Self {
        let (path, tests) = (onnx::Path::default(), Vec::new());
        Self { subject, plugin: None, made: None, path, tests, n_not_run: 0 }
    }

    /// Returns the counts.
    pub fn summary(&self) -> Summary {
        Summary::of(&self.tests)
    }

    /// Returns the counts of ONNX's node tests; none if none was asked for.
    pub fn node_summary(&self) -> Option<NodeSummary> {
        let nodes = || self.tests.iter().filter(|test| test.id.starts_with(onnx::PREFIX));
        let is_host = |test: &&Test| test.verdict.why() == Some(Why::Host);
        nodes().next()?;
        Some(NodeSummary {
            plugin: Summary::of(nodes().filter(|test| !is_host(test))),
            host: nodes().filter(is_host).count(),
        })
    }

    /// Returns the tests that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Test> {
        self.tests.iter().filter(|test| test.verdict.is_failed())
    }

    /// Tests that ended their process, or did not end.
    pub(crate) fn deaths(&self) -> usize {
        let died = |test: &&Test| {
            matches!(test.verdict, Verdict::Failed { failure: Failure::Died | Failure::TimedOut, .. })
        };
        self.tests.iter().filter(died).count()
    }

    /// Returns the entry of a test, if it was asked for.
    pub fn test(&self, id: &str) -> Option<&Test> {
        self.tests.iter().find(|test| test.id == id)
    }

    /// Returns topics in the order in which they ran, each with its tests.
    pub fn topics(&self) -> Vec<(&str, Vec<&Test>)> {
        let mut topics: Vec<(&str, Vec<&Test>)> = Vec::new();
        for test in &self.tests {
            match topics.iter_mut().find(|(topic, _)| *topic == test.topic()) {
                Some((_, tests)) => tests.push(test),
                None => topics.push((test.topic(), vec![test])),
            }
        }
        topics
    }

    /// The report as JSON: `report_version`, `subject`, `made`, `plugin`, `level`, `summary`, `not_run`, `onnx`, `ops`, and `tests`, one
    /// object a test. There, besides what a [`Test`] has, `rule` is its rules in one text, `duration` is in seconds,
    /// and `reason` is null where there is none.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "report_version": REPORT_VERSION,
            "suite": env!("CARGO_PKG_VERSION"),
            "subject": self.subject,
            "made": self.made,
            "plugin": self.plugin,
            "level": self.level(),
            "summary": self.summary(),
            "not_run": self.n_not_run,
            "onnx": self.node_summary(),
            "ops": self.ops(),
            "tests": self.tests.iter().map(Test::to_json).collect::<Vec<_>>(),
        })
    }
}
