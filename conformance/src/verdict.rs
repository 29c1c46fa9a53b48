//! Verdict on a test: passed, failed, or why it was not run. A test never ends without one.

use serde::{Deserialize, Serialize};

/// Why a test was not run to its end. Data to match on; the sentence beside it is for a person.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The plugin does not offer this function, kernel, dtype or property.
    NotOffered,
    /// The plugin does not claim the profile that the test belongs to.
    Profile,
    /// Every device is inline, so that there is no timeline to look at.
    Inline,
    /// The threading class that the plugin declares forbids what the test does.
    Threading,
    /// `prepare` answered UNSUPPORTED for all that the test asked for, as it may.
    Refused,
    /// The memory is of a kind (TYPED, WRITE_ONCE) that this test cannot use.
    Memory,
    /// The plugin has no device on this machine.
    NoDevice,
    /// The test needs a process of its own, or a library in a file, and was given neither.
    OwnProcess,
    /// The plugin takes so long that the test would say nothing.
    Slow,
    /// A test that this one builds on did not pass.
    Needs,
    /// The host runs it without asking a plugin, or does not take such a model.
    Host,
}

/// In what way a case failed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Failure {
    /// The plugin did something else than the rule says.
    Wrong,
    /// The process ended in the middle of the case.
    Died,
    /// The case did not end in time.
    TimedOut,
    /// The case itself panicked: a bug in the suite.
    Suite,
}

/// Result of one test.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Verdict {
    /// The plugin does what the test requires.
    Passed,
    /// It does not.
    Failed {
        /// In what way.
        failure: Failure,
        /// Expectation and finding.
        reason: String,
    },
    /// The plugin claims the op or function, and refuses what the test asks for, as it may.
    Unsupported {
        /// The plugin's reason.
        reason: String,
    },
    /// The plugin does not claim what the test is about.
    NotClaimed {
        /// Why, to match on.
        why: Why,
        /// Why, in words.
        reason: String,
    },
    /// The question could not be asked.
    Skipped {
        /// Why, to match on.
        why: Why,
        /// Why, in words.
        reason: String,
    },
}

impl Verdict {
    /// Returns whether the test failed.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }

    /// Returns the outcome's name, as in JSON.
    pub fn outcome(&self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Failed { .. } => "failed",
            Self::Unsupported { .. } => "unsupported",
            Self::NotClaimed { .. } => "not-claimed",
            Self::Skipped { .. } => "skipped",
        }
    }

    /// Returns why it did not pass, in words.
    pub fn reason(&self) -> Option<&str> {
        match self {
            Self::Passed => None,
            Self::Failed { reason, .. }
            | Self::Unsupported { reason }
            | Self::NotClaimed { reason, .. }
            | Self::Skipped { reason, .. } => Some(reason),
        }
    }

    /// Returns why it was not run, if it was not.
    pub fn why(&self) -> Option<Why> {
        match self {
            Self::Passed | Self::Failed { .. } => None,
            Self::Unsupported { .. } => Some(Why::Refused),
            Self::NotClaimed { why, .. } | Self::Skipped { why, .. } => Some(*why),
        }
    }

    /// Returns the outcome of a test that was not run for this reason.
    pub(crate) fn not_run(why: Why, reason: String) -> Self {
        match why {
            Why::Refused => Self::Unsupported { reason },
            Why::NotOffered | Why::Profile | Why::Inline | Why::Threading | Why::Memory => {
                Self::NotClaimed { why, reason }
            }
            Why::NoDevice | Why::OwnProcess | Why::Slow | Why::Needs | Why::Host => {
                Self::Skipped { why, reason }
            }
        }
    }
}

/// Cause of a case's early end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The plugin is wrong.
    Failed(String),
    /// The question does not arise.
    NotRun(Why, String),
}

/// Result of a case.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::Failed(reason)) => Self::Failed { failure: Failure::Wrong, reason },
            Err(Stop::NotRun(why, reason)) => Self::not_run(why, reason),
        }
    }
}

/// Ends a case that found something wrong.
pub(crate) fn failed<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(reason.into()))
}

/// Ends a case whose question does not arise.
pub(crate) fn not_run<T>(why: Why, reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::NotRun(why, reason.into()))
}

/// Fails the case with a message unless a condition holds.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return $crate::verdict::failed(format!($($message)+));
        }
    };
}
pub(crate) use ensure;
