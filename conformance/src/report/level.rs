//! Level of a report, in one word.
//!
//! Bronze: all of `base`. Silver: bronze, and all of `kernels` that the plugin claims. Gold: silver, and the tests of
//! stress and faults. A level says nothing about how much is claimed, so that it is printed with it.

use super::{Report, Summary, Test};
use crate::onnx;
use crate::suite::{self, Profile};
use crate::verdict::Why;
use serde::Serialize;

/// Topics that gold asks for beyond silver.
const HARD: &[&str] = &["stress", "fault"];

/// A level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grade {
    /// Something of `base` failed.
    None,
    /// The profile `base`.
    Bronze,
    /// And every kernel claimed.
    Silver,
    /// And stress and faults.
    Gold,
}

impl Grade {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Bronze => "bronze",
            Self::Silver => "silver",
            Self::Gold => "gold",
        }
    }
}

/// A level, and how much is claimed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Level {
    /// The level.
    pub grade: Grade,
    /// Obstacle to the next level; none at gold.
    pub next: Option<String>,
    /// Ops of ONNX's node tests that the plugin takes.
    pub ops_claimed: Vec<String>,
    /// Ops that these tests have in all.
    pub ops_total: usize,
}

impl Report {
    /// The level; none if tests were left out, as nothing is known about those, and none of sessions, in which the host
    /// runs what the plugin does not.
    pub fn level(&self) -> Option<Level> {
        if self.path == onnx::Path::Session || self.tests.len() != suite::all().count() {
            return None;
        }
        let ops = self.ops();
        let claims_kernels = self.plugin.as_ref().is_some_and(|plugin| plugin.claims(Profile::Kernels));
        let is_hard = |test: &&Test| HARD.contains(&test.topic());
        let is_figure = |test: &&Test| test.topic() == "figure";
        let of = |profile: Profile| {
            Summary::of(
                self.tests
                    .iter()
                    .filter(|test| test.profile == profile && !is_hard(test) && !is_figure(test)),
            )
        };
        let (base, kernels) = (of(Profile::Base), of(Profile::Kernels));
        let hard = Summary::of(self.tests.iter().filter(is_hard));
        let missing =
            |what: &str, summary: &Summary| Some(format!("{} tests of {what} failed", summary.failed));
        let is_without = |test: &Test| test.verdict.why() == Some(Why::NoDevice);
        let not_run = self.tests.iter().filter(is_hard).find(|test| test.verdict.outcome() == "skipped");
        let (grade, next) = if base.failed > 0 {
            (Grade::None, missing("base", &base))
        } else if base.passed == 0 || self.tests.iter().any(is_without) {
            (Grade::None, Some("the plugin has no device on this machine".to_owned()))
        } else if kernels.failed > 0 {
            (Grade::Bronze, missing("kernels", &kernels))
        } else if !claims_kernels || kernels.passed == 0 {
            (Grade::Bronze, Some("the plugin claims no kernels".to_owned()))
        } else if hard.failed > 0 {
            (Grade::Silver, missing("stress and faults", &hard))
        } else if let Some(test) = not_run {
            (Grade::Silver, Some(format!("{} was not run", test.id)))
        } else {
            (Grade::Gold, None)
        };
        let claimed = ops.iter().filter(|op| op.claimed()).map(|op| op.op.clone());
        Some(Level { grade, next, ops_claimed: claimed.collect(), ops_total: ops.len() })
    }
}

impl Level {
    /// Returns one line: the level and how much is claimed.
    pub fn line(&self) -> String {
        let claimed =
            format!("{} of {} ops of ONNX's node tests claimed", self.ops_claimed.len(), self.ops_total);
        match &self.next {
            Some(next) => format!("{}: {claimed}; {next}", self.grade.name()),
            None => format!("{}: {claimed}", self.grade.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Identity;
    use crate::suite::Item;
    use crate::verdict::{Failure, Verdict, Why};

    /// Makes a report in which these tests failed, and nothing but them and the skipped ones did not pass.
    fn report(failed: &[&str], n_kernels: usize) -> Report {
        let mut report = Report::new("a".to_owned());
        report.plugin = Some(Identity {
            name: "a".to_owned(),
            version: "1".to_owned(),
            vendor: "b".to_owned(),
            profiles: vec!["base".to_owned()],
            n_kernels,
            abi_minors: (0, 2),
            abi_minor: 2,
            threading: "free".to_owned(),
            options: Vec::new(),
        });
        for item in suite::all() {
            let id = item.id();
            let verdict = if failed.contains(&id.as_str()) {
                Verdict::Failed { failure: Failure::Wrong, reason: "wrong".to_owned() }
            } else if n_kernels == 0 && item.profile() == Profile::Kernels {
                Verdict::NotClaimed { why: Why::Profile, reason: "no kernels".to_owned() }
            } else {
                Verdict::Passed
            };
            report.tests.push(test(&item, verdict));
        }
        report
    }

    fn test(item: &Item, verdict: Verdict) -> Test {
        Test {
            id: item.id(),
            profile: item.profile(),
            rules: item.rules(),
            requires: item.requires(),
            verdict,
            note: None,
            duration_ms: 1.0,
            reproduce: None,
        }
    }

    fn grade(failed: &[&str], n_kernels: usize) -> Grade {
        report(failed, n_kernels).level().expect("every test is there").grade
    }

    #[test]
    fn levels_follow_from_what_failed() {
        assert_eq!(grade(&[], 5), Grade::Gold);
        assert_eq!(grade(&["onnx/test_add"], 5), Grade::Bronze);
        assert_eq!(grade(&["launch.bounds"], 5), Grade::Bronze);
        assert_eq!(grade(&["transfer.order"], 5), Grade::None);
        assert_eq!(grade(&[], 0), Grade::Bronze);
        for hard in suite::all().filter(|item| HARD.contains(&test(item, Verdict::Passed).topic())) {
            assert_eq!(grade(&[&hard.id()], 5), Grade::Silver, "{}", hard.id());
        }
    }

    /// Returns the level of a plugin of which one test could not be asked.
    fn without(id: &str, why: Why) -> Grade {
        let mut report = report(&[], 5);
        let test = report.tests.iter_mut().find(|test| test.id == id).expect("there is such a test");
        test.verdict = Verdict::Skipped { why, reason: "not asked".to_owned() };
        report.level().expect("every test is there").grade
    }

    #[test]
    fn what_was_not_asked_gives_no_level() {
        assert_eq!(without("transfer.order", Why::NoDevice), Grade::None);
        assert_eq!(without("fault.memory", Why::OwnProcess), Grade::Silver);
        assert_eq!(without("stress.leak.instances", Why::Slow), Grade::Silver);
        assert_eq!(without("load.exports", Why::OwnProcess), Grade::Gold);
        let sessions = Report { path: onnx::Path::Session, ..report(&[], 5) };
        assert_eq!(sessions.level(), None);
    }

    #[test]
    fn a_figure_is_no_gate() {
        assert_eq!(grade(&["figure.launch"], 5), Grade::Gold);
    }

    #[test]
    fn a_level_says_how_much_is_claimed() {
        let level = report(&[], 5).level().expect("every test is there");
        assert_eq!((level.ops_claimed.len(), level.ops_total), (197, 197));
        assert!(report(&[], 0).level().expect("every test is there").ops_claimed.is_empty());
        let mut part = report(&[], 5);
        part.tests.pop();
        assert_eq!(part.level(), None);
    }
}
