//! What the suite found, as data: one entry a case, and the counts.

use crate::verdict::Verdict;
use serde::{Deserialize, Serialize};

/// Who the plugin said it is.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Identity {
    /// Its name.
    pub name: String,
    /// Its own version.
    pub version: String,
    /// Who made it.
    pub vendor: String,
    /// The profiles that it claims.
    pub profiles: Vec<String>,
    /// The ABI's minors that it speaks, oldest and newest.
    pub abi_minors: (u32, u32),
    /// The minor that was agreed on.
    pub abi_minor: u32,
    /// Its threading class.
    pub threading: String,
}

/// One case and what came of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Test {
    /// The case's stable name.
    pub id: &'static str,
    /// The rules that it checks.
    pub rules: &'static [&'static str],
    /// What it requires.
    pub requires: &'static str,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// How long it took.
    pub duration_ms: u64,
    /// The command that runs it alone; none for a plugin that no command has.
    pub reproduce: Option<String>,
}

/// How many cases came to what.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Summary {
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases whose question does not arise.
    pub not_applicable: usize,
}

/// What the suite found.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The file, or the name of a plugin that is linked.
    pub subject: String,
    /// Who the plugin said it is; none if it could not be asked.
    pub plugin: Option<Identity>,
    /// The cases that were asked for, in the order in which they ran.
    pub tests: Vec<Test>,
}

impl Report {
    /// The counts.
    pub fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for test in &self.tests {
            match test.verdict {
                Verdict::Passed => summary.passed += 1,
                Verdict::Failed { .. } => summary.failed += 1,
                Verdict::NotApplicable { .. } => summary.not_applicable += 1,
            }
        }
        summary
    }

    /// The cases that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Test> {
        self.tests.iter().filter(|test| test.verdict.is_failed())
    }

    /// The entry of a case, if it was asked for.
    pub fn test(&self, id: &str) -> Option<&Test> {
        self.tests.iter().find(|test| test.id == id)
    }

    /// The report as JSON: `subject`, `plugin`, `summary`, and `tests`, one object a case.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::json!({
            "subject": self.subject,
            "plugin": self.plugin,
            "summary": self.summary(),
            "tests": self.tests,
        })
    }
}
