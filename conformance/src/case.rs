//! Definition of a case, and the list of all of them in the order in which they run.

use crate::cases;
use crate::rig::Rig;
use crate::verdict::Outcome;
use std::sync::LazyLock;

/// One question to a plugin.
pub struct Case {
    /// Stable name: `topic.what`, cited in reports and never reused.
    pub id: &'static str,
    /// The rules of the ABI that it checks.
    pub rules: &'static [&'static str],
    /// Requirement on a plugin, in one line.
    pub requires: &'static str,
    /// Cases that have to pass first, directly; a plugin that fails one would fail here for its sake.
    pub needs: &'static [&'static str],
    pub(crate) run: fn(&Rig<'_>) -> Outcome,
}

impl Case {
    /// Returns the first word of its id.
    pub fn topic(&self) -> &'static str {
        self.id.split('.').next().unwrap_or(self.id)
    }
}

/// Returns every case, in the order in which they run: those that others need come first.
pub fn all() -> impl Iterator<Item = &'static Case> {
    static ALL: LazyLock<Vec<&'static Case>> =
        LazyLock::new(|| cases::lists().into_iter().flatten().collect());
    ALL.iter().copied()
}

/// Returns the case of that name.
pub fn find(id: &str) -> Option<&'static Case> {
    all().find(|case| case.id == id)
}

/// Returns whether an id fits a pattern. A case's id fits that case alone; `*` stands for any text; anything else is
/// a topic, and fits the ids that begin with it (`transfer` fits `transfer.order`).
pub fn matches(pattern: &str, id: &str) -> bool {
    if find(pattern).is_some() {
        return pattern == id;
    }
    if !pattern.contains('*') {
        let rest = id.strip_prefix(pattern);
        return rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
    }
    let mut parts = pattern.split('*');
    let Some(mut rest) = parts.next().and_then(|first| id.strip_prefix(first)) else {
        return false;
    };
    let parts: Vec<&str> = parts.collect();
    for (i, part) in parts.iter().enumerate() {
        if i + 1 == parts.len() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(at) => rest = &rest[at + part.len()..],
            None => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn patterns_fit_topics_and_stars() {
        let cases = [
            ("transfer", "transfer.order", true),
            ("transfer.order", "transfer.order", true),
            ("load.entry", "load.entry.same", false),
            ("event.callback", "event.callback.once", true),
            ("trans", "transfer.order", false),
            ("*order", "transfer.order", true),
            ("event.*.once", "event.callback.once", true),
            ("event.*.once", "event.callback.order", false),
            ("*", "load.entry", true),
            ("*.callback*", "event.callback", true),
        ];
        for (pattern, id, expected) in cases {
            assert_eq!(matches(pattern, id), expected, "{pattern} on {id}");
        }
    }

    #[test]
    fn ids_are_unique_and_what_a_case_needs_runs_before_it() {
        let mut seen = BTreeSet::new();
        for case in all() {
            for need in case.needs {
                assert!(seen.contains(need), "{} needs {need}, which does not run before it", case.id);
            }
            assert!(!case.rules.is_empty(), "{} names no rule", case.id);
            assert!(seen.insert(case.id), "two cases are called {}", case.id);
        }
    }
}
