//! What a case found: passed, failed, or not applicable with a reason. A case never ends without one.

use serde::{Deserialize, Serialize};

/// Why a case was not run to its end. Data to match on; the sentence beside it is for a person.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Why {
    /// The plugin does not offer this function, kernel, dtype or property.
    NotOffered,
    /// The plugin has no device on this machine.
    NoDevice,
    /// Every device is inline, so that there is no timeline to look at.
    Inline,
    /// The threading class that the plugin declares forbids what the case does.
    Threading,
    /// `prepare` answered UNSUPPORTED for all that the case asked for, as it may.
    Refused,
    /// The case needs a process of its own, or a library in a file, and was given neither.
    OwnProcess,
    /// The memory is of a kind (TYPED, WRITE_ONCE) that this case cannot use.
    Memory,
    /// A case that this one builds on did not pass.
    Needs,
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

/// Result of one case.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "outcome")]
pub enum Verdict {
    /// The plugin does what the case requires.
    Passed,
    /// It does not.
    Failed {
        /// In what way.
        failure: Failure,
        /// What was expected and what was found.
        reason: String,
    },
    /// The question does not arise.
    NotApplicable {
        /// Why, to match on.
        why: Why,
        /// Why, in words.
        reason: String,
    },
}

impl Verdict {
    /// Whether the case failed.
    pub fn is_failed(&self) -> bool {
        matches!(self, Self::Failed { .. })
    }
}

/// What ends a case early.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Stop {
    /// The plugin is wrong.
    Failed(String),
    /// The question does not arise.
    NotApplicable(Why, String),
}

/// What a case returns.
pub(crate) type Outcome<T = ()> = Result<T, Stop>;

impl From<Outcome> for Verdict {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Ok(()) => Self::Passed,
            Err(Stop::Failed(reason)) => Self::Failed { failure: Failure::Wrong, reason },
            Err(Stop::NotApplicable(why, reason)) => Self::NotApplicable { why, reason },
        }
    }
}

/// Ends a case that found something wrong.
pub(crate) fn failed<T>(reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::Failed(reason.into()))
}

/// Ends a case whose question does not arise.
pub(crate) fn not_applicable<T>(why: Why, reason: impl Into<String>) -> Outcome<T> {
    Err(Stop::NotApplicable(why, reason.into()))
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
